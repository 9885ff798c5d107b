"""NumPy's protocols on the buffer itself: what is read comes out as NumPy's, what is written is noticed, and every byte is counted."""

import operator

import numpy as np
import pytest
from sample_buffers import DATA, check_both, grid, made, synced

import unimem
from unimem import BufferState, UnifiedBuffer

S = BufferState


@pytest.fixture
def ahead(discrete):
    """A buffer that its device has written: ones on the host before, DATA on the device since."""
    buffer = made(discrete, np.ones_like(DATA))
    buffer.device.copy_from(DATA)
    buffer.mark_device_dirty()
    return buffer


def test_equality_and_truth_are_numpys(discrete):
    a, b, c = grid(discrete), grid(discrete), grid(discrete)
    c.host[1, 2] = 99
    assert type(a == b) is np.ndarray and (a == b).dtype == bool and (a == b).all() and not (a != b).any()
    assert (a == c).sum() == 19 and (a != c).sum() == 1 and (c == 99).sum() == 1 and (a.to_numpy() == a).all()
    assert not np.any(a == None) and not np.any(a == "text")  # noqa: E711
    for asked in (lambda: bool(a), lambda: a == b or True, lambda: b in [a], lambda: [a].index(b)):
        with pytest.raises(ValueError, match="ambiguous"):
            asked()
    assert a in [a]
    one = UnifiedBuffer(1, device=discrete).fill(0)
    assert not one and one.fill(2)
    with pytest.raises(TypeError, match="unhashable"):
        hash(a)
    with pytest.raises(TypeError, match="unhashable"):
        hash(a.slice(1, 2))


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_a_number_is_the_one_element(discrete, dtype):
    """And not what its bytes say as text, by the buffer protocol."""
    one = UnifiedBuffer(1, dtype, device=discrete).fill(52).reshape(())
    assert (int(one), float(one), complex(one)) == (52, 52.0, 52 + 0j)
    digits = UnifiedBuffer(2, dtype, device=discrete).fill(52)
    for number in (int, float, complex):
        with pytest.raises(TypeError, match="only .*(length-1|0-dimensional) arrays"):
            number(digits)


def test_an_integer_without_dimensions_is_an_index(discrete):
    index = UnifiedBuffer(1, np.int64, device=discrete).fill(2)
    assert ["a", "b", "c"][index.reshape(())] == "c"
    for none in (index.slice(0, 1), UnifiedBuffer((), np.float32, device=discrete).fill(2)):
        with pytest.raises(TypeError, match="only integer scalar arrays"):
            operator.index(none)


def test_comparing_brings_the_bytes_once(ahead, counted):
    seen = counted(ahead)
    assert (ahead == DATA).all() and (ahead == ahead).all() and seen.since() == (0, 0, 1, DATA.nbytes)
    assert (ahead == DATA).all() and seen.since() == (0, 0, 0, 0) and ahead.state is S.SYNCHRONIZED


READS = {
    "b + 1": lambda b: b + 1, "1 - b": lambda b: 1 - b, "b @ b": lambda b: b @ b, "-b": lambda b: -b, "b > 3": lambda b: b > 3, "b ** 2": lambda b: b**2,
    "abs": abs, "divmod": lambda b: divmod(b, 3)[1], "np.sin": np.sin, "np.add.reduce": np.add.reduce, "np.sum": np.sum, "b.sum()": lambda b: b.sum(),
    "b.mean()": lambda b: b.mean(), "b.min()": lambda b: b.min(), "b.max()": lambda b: b.max(), "b.T": lambda b: b.T, "any": lambda b: b.any(),
    "all": lambda b: b.all(), "astype": lambda b: b.astype(np.int32), "np.concatenate": lambda b: np.concatenate([b, b]), "np.where": lambda b: np.where(b > 3, b, 0),
    "np.stack": lambda b: np.stack((b, DATA)), "np.dot": lambda b: np.dot(b, DATA), "np.reshape": lambda b: np.reshape(b, (10, 100)), "np.mean": np.mean,
    "array + b": lambda b: DATA + b, "np.array_equal": lambda b: np.array_equal(b, DATA), "np.einsum": lambda b: np.einsum("i,i->", b, b),
    "np.histogram": lambda b: np.histogram(b, bins=4)[0], "where=": lambda b: np.add(DATA, 1, where=b > 5, out=np.zeros_like(DATA)),
    "np.clip": lambda b: np.clip(b, 2, 5), "b.argmax()": lambda b: b.argmax(), "b.std(ddof=1)": lambda b: b.std(ddof=1),
}  # fmt: skip


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_reading_gives_numpys_own_from_current_bytes(ahead, read, counted):
    seen = counted(ahead)
    with np.errstate(all="ignore"):
        result, expected = read(ahead), read(DATA)
    np.testing.assert_array_equal(result, expected)
    assert isinstance(result, (np.ndarray, np.generic, bool)) and seen.since() == (0, 0, 1, DATA.nbytes)
    assert ahead.state is S.SYNCHRONIZED


@pytest.mark.parametrize("kind", ["buffer", "slice"])
def test_an_array_takes_a_buffer(ahead, kind):
    source = ahead if kind == "buffer" else ahead.slice(0, DATA.size)
    z = np.zeros_like(DATA)
    z[:] = source
    np.testing.assert_array_equal(z, DATA)
    other = UnifiedBuffer(DATA.shape, device=ahead.default_device)
    other[:] = source
    other.host[:5] = source.slice(0, 5)
    check_both(other, DATA)


def change(function):
    def write(buffer, plain):
        assert function(buffer) is buffer
        function(plain)

    return write


def _plus(x):
    x += 1
    return x


def _power(x):
    x[:] **= 2
    return x


WRITES = {
    "+=": change(_plus), "[:] **=": change(_power), "out=": change(lambda x: np.add(x, 2, out=x)), "out=(x,)": change(lambda x: np.multiply(x, x, out=(x,))),
    "other out=": change(lambda x: np.sin(DATA, out=x)), "out= of a reduction": lambda b, p: (np.add.accumulate(DATA, out=b), np.add.accumulate(DATA, out=p)),
    "np.clip": change(lambda x: np.clip(x, 2, 5, out=x)), "np.take": change(lambda x: np.take(DATA, np.arange(DATA.size), out=x)), "at": lambda b, p: (np.add.at(b, [1, 1], 5), np.add.at(p, [1, 1], 5)),
    "np.copyto": lambda b, p: (np.copyto(b, 7), np.copyto(p, 7)), "np.put": lambda b, p: (np.put(b, [1], 7), np.put(p, [1], 7)),
    "np.cumsum": change(lambda x: np.cumsum(DATA, out=x)), "a view": lambda b, p: (np.reshape(b, (10, 100)).__setitem__(0, 3), p.reshape(10, 100).__setitem__(0, 3)),
    "b.T": lambda b, p: (b.T.__setitem__(0, 3), p.T.__setitem__(0, 3)),
}  # fmt: skip


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_writing_is_noticed(ahead, write, counted):
    plain, seen = DATA.copy(), counted(ahead)
    write(ahead, plain)
    to_device, _, to_host, bytes_to_host = seen.since()
    assert to_device == 0 and to_host in (0, 1) and bytes_to_host in (0, DATA.nbytes), "what it spans comes to the host, once"
    assert ahead.state in (S.HOST_DIRTY, S.MIXED)
    check_both(ahead, plain)


def test_a_slice_is_written_and_nothing_else(discrete, counted):
    buffer = synced(discrete)
    seen, part = counted(buffer), buffer.slice(100, 50)
    part += 1
    assert seen.since() == (0, 0, 0, 0)
    buffer.sync_to_device()
    assert seen.since() == (1, 200, 0, 0)
    expected = DATA.copy()
    expected[100:150] += 1
    check_both(buffer, expected)


def test_two_outputs_one_of_them_a_buffer(discrete):
    buffer, plain = made(discrete), np.empty_like(DATA)
    fraction, whole = np.modf(DATA / 4, out=(plain, buffer))
    assert fraction is plain and whole is buffer
    check_both(buffer, np.floor(DATA / 4))


def test_what_does_not_fit_changes_nothing(ahead):
    for wrong in (lambda: np.add(DATA, 1.5, out=ahead.slice(0, 3)), lambda: np.add(DATA, 1j, out=ahead), lambda: ahead + np.zeros(3)):
        with pytest.raises((ValueError, TypeError)):
            wrong()
    check_both(ahead, DATA)


def test_missing_methods_name_the_host(discrete):
    buffer = grid(discrete)
    for name in ("cumsum", "sort", "strides", "flatten"):
        with pytest.raises(AttributeError, match=rf"\.host\.{name}"):
            getattr(buffer, name)
        assert not hasattr(buffer, name)
    with pytest.raises(AttributeError) as caught:
        _ = buffer.no_such_thing
    assert ".host" not in str(caught.value) and caught.value.name == "no_such_thing" and caught.value.obj is buffer


def test_device_arrays_are_no_host_arrays(discrete):
    buffer = grid(discrete)
    array = buffer.device
    for asked in (np.asarray, np.array, lambda a: np.add(a, 1), lambda a: np.zeros((4, 5)) + a, np.sum, lambda a: np.stack([a, a])):
        with pytest.raises(unimem.UnsupportedOperation, match=r"to_numpy\(\)") as caught:
            asked(array)
        assert caught.value.where == discrete.id
    np.testing.assert_array_equal(array.to_numpy(), buffer.host)
    assert np.asarray(UnifiedBuffer(3, device="cpu").fill(2).device).tolist() == [2, 2, 2]


def test_strict_buffers_are_not_allocated_by_looking(sim):
    strict = UnifiedBuffer(3, device=sim, strict=True)
    for asked in (lambda: strict + 1, lambda: strict == strict, lambda: bool(strict), lambda: strict.T, lambda: np.sum(strict)):
        with pytest.raises(unimem.BufferNotAllocated):
            asked()


def test_asking_for_shape_and_dtype_moves_nothing(ahead, counted):
    seen = counted(ahead)
    assert np.shape(ahead) == (1000,) and np.ndim(ahead) == 1 and np.size(ahead) == 1000 and not np.iscomplexobj(ahead)
    assert np.zeros_like(ahead).shape == (1000,) and np.empty_like(ahead).flags.c_contiguous and np.result_type(ahead, np.float64) == np.float64
    assert seen.since() == (0, 0, 0, 0) and ahead.state is S.DEVICE_DIRTY
