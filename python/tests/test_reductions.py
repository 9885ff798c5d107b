"""Sums and extremes of whole buffers, as NumPy has them."""

import numpy as np
import pytest

import unimem
from unimem import InvalidArgument, Kernel, SizeMismatch, UnifiedBuffer, UnsupportedOperation, launch, readwrite, reduce, reduce_into

random = np.random.default_rng(20261129)
SIZES = [1, 2, 31, 33, 4096, 4097, 9973, 50_021]


@pytest.fixture(params=["cpu", "sim", "opencl"])
def device(request):
    return request.getfixturevalue(request.param)


def on(device, values):
    buffer = UnifiedBuffer(values.shape, dtype=values.dtype, device=device)
    buffer.copy_from(values)
    buffer.sync_to_device()
    return buffer


@pytest.mark.parametrize("dtype", ["u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "?"])
def test_integers_are_numpys(device, dtype):
    for size in SIZES:
        values = np.frombuffer(random.bytes(size * np.dtype(dtype).itemsize), dtype if dtype != "?" else "u1")
        if dtype == "?":
            values = values > 127
        x = on(device, values)
        assert reduce(x, device=device) == int(values.sum(dtype="u8" if np.dtype(dtype).kind in "bu" else "i8"))
        for operation, expected in (("min", values.min()), ("max", values.max())):
            result = reduce(x, operation, device=device)
            assert result == expected
            assert result.dtype == values.dtype


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_floats_are_near_numpys_and_the_same_on_every_device(device, dtype, cpu):
    for size in SIZES:
        values = (random.random(size) - 0.5).astype(dtype)
        x = on(device, values)
        total = reduce(x, device=device)
        assert total == reduce(on(cpu, values))
        assert total == pytest.approx(float(values.astype("f8").sum()), abs=1e-10)
        assert reduce(x, "min", device=device) == values.min()
        assert reduce(x, "max", device=device).dtype == values.dtype
        values[size // 2] = np.nan
        assert np.isnan(reduce(on(device, values), "max", device=device))


def test_slices_begin_where_they_do(device):
    values = random.integers(-1000, 1000, 20_000, dtype="i4")
    x = on(device, values)
    for offset, count in ((0, 1), (1, 4097), (777, 9973), (19_999, 1)):
        assert reduce(x.slice(offset, count), device=device) == values[offset : offset + count].sum()


def test_shapes_are_all_their_elements(device):
    values = random.integers(-1000, 1000, (7, 11, 131), dtype="i2")
    x = on(device, values)
    assert reduce(x, device=device) == values.sum(dtype="i8")
    assert reduce(x, "min") == values.min()


@pytest.mark.parametrize("dtype", ["u1", "?", "i2", "u8", "f4", "f8"])
def test_results_may_stay_where_they_are(device, dtype):
    x = on(device, random.integers(0, 100, 9973).astype(dtype))
    sums = on(device, np.zeros(3, {"i": "i8", "f": "f8"}.get(np.dtype(dtype).kind, "u8")))
    most = on(device, np.zeros(1, dtype))
    before = unimem.transfers(device).device_to_host_bytes
    reduce_into(sums.slice(1, 1), x, device=device)
    reduce_into(most, x, "max", device=device).wait()
    assert unimem.transfers(device).device_to_host_bytes == before
    assert sums.to_numpy().tolist() == [0, reduce(x), 0]
    assert most.to_numpy()[0] == reduce(x, "max")
    reduce_into(sums.slice(2, 1), x.slice(0, 0))
    reduce_into(sums.slice(1, 1), x.slice(5, 0)).wait()
    assert sums.to_numpy().tolist() == [0, 0, 0]


def test_a_kernel_does_not_wait_for_itself(sim):
    x = on(sim, np.ones(10))
    refused = []

    def reducing_its_own(elements):
        try:
            reduce(x, device=sim)
        except UnsupportedOperation as error:
            refused.append(str(error))

    launch(Kernel("own").host(reducing_its_own), 10, readwrite(x)).wait()
    assert len(refused) == 1
    assert reduce(x) == 10


def test_only_what_must_moves(sim):
    x = on(sim, np.arange(100_000, dtype="i8"))
    before = x.statistics, unimem.transfers(sim)
    assert reduce(x) == 100_000 * 99_999 // 2
    assert x.statistics == before[0]
    after = unimem.transfers(sim)
    assert after.host_to_device_bytes == before[1].host_to_device_bytes
    assert after.device_to_host_bytes - before[1].device_to_host_bytes == 8
    x.host[:] = 1
    assert reduce(x) == 100_000, "on the host, which alone has them"
    assert unimem.transfers(sim).host_to_device_bytes == before[1].host_to_device_bytes


def test_what_is_refused(sim):
    none = UnifiedBuffer((0,), dtype="f4", device=sim)
    assert reduce(none) == 0.0
    for call in (
        lambda: reduce(none, "min"),
        lambda: reduce(on(sim, np.ones(3)), "mean"),
        lambda: reduce(np.ones(3)),
        lambda: reduce_into(on(sim, np.ones(1, "f4")), on(sim, np.ones(3, "f4"))),
        lambda: reduce_into(on(sim, np.ones(1, "i8")), on(sim, np.ones(3, "f4")), "max"),
        lambda: reduce_into(np.ones(1), on(sim, np.ones(3))),
        lambda: reduce_into(on(sim, np.ones(1)), none, "max"),
        lambda: reduce(on(sim, np.ones(3)), device=7),
        lambda: reduce(on(sim, np.ones(3, "f2"))),
        lambda: reduce(on(sim, np.ones(3, "c8"))),
        lambda: reduce(on(sim, np.ones(3, ">f4"))),
    ):
        with pytest.raises(InvalidArgument):
            call()
    with pytest.raises(SizeMismatch):
        reduce_into(on(sim, np.ones(2)), on(sim, np.ones(3)))
