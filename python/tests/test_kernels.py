"""Kernels in both forms, and launches that drive coherence."""

import asyncio
import threading

import numpy as np
import pytest

import unimem
from unimem import BufferState, InvalidArgument, Kernel, KernelError, UnifiedBuffer, launch, read, readwrite, write

S = BufferState
SCALE = """
UNIMEM_KERNEL scale(UNIMEM_BUFFER(float, x), float a) { UNIMEM_DATA(float, x)[UNIMEM_ITEM_X] *= a; }
"""


@pytest.fixture
def scale():
    return Kernel("scale").source(SCALE).host(lambda x, a: np.multiply(x, a, out=x))


def data(device, count=1000):
    buffer = UnifiedBuffer(count, device=device)
    buffer.host[:] = np.arange(count)
    return buffer


SUMS = """
UNIMEM_KERNEL sums(UNIMEM_CONST_BUFFER(unimem_f32, x), UNIMEM_BUFFER(unimem_f32, total)) {
  UNIMEM_SHARED unimem_f32 scratch[64];
  unimem_f32 all = unimem_group_sum(UNIMEM_DATA(const unimem_f32, x)[UNIMEM_ITEM_X], scratch);
  if (UNIMEM_LOCAL_X == 0) UNIMEM_DATA(unimem_f32, total)[UNIMEM_GROUP_X] = all;
}
"""


@pytest.mark.parametrize("where", ["sim", "opencl"])
@pytest.mark.parametrize("said", ["by the launch", "by the kernel"])
def test_a_kernel_runs_in_the_groups_it_is_given(where, said, request):
    sums = Kernel("sums").source(SUMS).host(lambda x, total: np.sum(x.reshape(len(total), -1), axis=1, out=total))
    if said == "by the kernel":
        assert sums.group((25,)) is sums
    device = request.getfixturevalue(where)
    buffer, total = data(device), UnifiedBuffer(40, device=device)
    launch(sums, 1000, read(buffer), write(total), group=25 if said == "by the launch" else None)
    np.testing.assert_array_equal(total.to_numpy(), np.arange(1000).reshape(40, 25).sum(axis=1))


def test_groups_that_cannot_be_are_refused(opencl, sim):
    sums = Kernel("sums").source(SUMS)
    buffer, total = data(opencl), UnifiedBuffer(40, device=opencl)
    with pytest.raises(KernelError, match="uses UNIMEM_SHARED, and no size of its groups is given"):
        launch(sums, 1000, read(buffer), write(total))
    with pytest.raises(InvalidArgument, match="1000 × 1 × 1.*whole groups of 30 × 1 × 1"):
        launch(sums, 1000, read(buffer), write(total), group=30)
    for group in (0, (5, 0), (1, 2, 3, 4), "25", -1):
        with pytest.raises(InvalidArgument, match="group"):
            launch(sums, 1000, read(buffer), write(total), group=group)
    with pytest.raises(InvalidArgument, match="group"):
        sums.group(())
    function = Kernel("all").host(lambda x: None)
    with pytest.raises(InvalidArgument, match="whole groups"):
        launch(function, 1000, read(data(sim)), group=30)
    with pytest.raises(InvalidArgument, match="whole groups"):
        asyncio.run(unimem.launch_async(sums, 1000, read(buffer), write(total), group=30))
    assert buffer.state is S.HOST_DIRTY
    asyncio.run(unimem.launch_async(sums, 1000, read(buffer), write(total), group=(25, 1)))
    assert total.host[1] == np.arange(25, 50).sum()


APPLY = """
#include "steps.h"
#include "more.h"
UNIMEM_KERNEL apply(UNIMEM_BUFFER(REAL, x), REAL a) { UNIMEM_DATA(REAL, x)[UNIMEM_ITEM_X] = a * step(UNIMEM_ITEM_X) + MORE; }
"""


@pytest.mark.parametrize("where", ["sim", "opencl"])
def test_a_source_has_macros_headers_folders_and_fast_mathematics(where, request, tmp_path):
    (tmp_path / "more.h").write_text("#ifdef UNIMEM_FAST_MATH\n#define MORE 1\n#else\n#define MORE 0\n#endif\n")
    device = request.getfixturevalue(where)
    for fast in (False, True):
        kernel = Kernel("apply").source(
            APPLY,
            name="apply.cl",
            defines={"REAL": "float", "FACTOR": "(1 + 2)"},
            headers={"steps.h": "UNIMEM_FUNCTION REAL step(unimem_u64 i) { return FACTOR * i; }"},
            folders=[tmp_path],
            fast_math=fast,
        )
        kernel.host(lambda x, a, fast=fast: np.copyto(x, a * 3 * np.arange(x.size) + fast))
        buffer = data(device, 10)
        launch(kernel, 10, write(buffer), 2.0)
        np.testing.assert_array_equal(buffer.to_numpy(), 6 * np.arange(10) + fast)


def test_included_files_may_have_any_bytes(opencl, tmp_path):
    (tmp_path / "more.h").write_bytes(b"\xef\xbb\xbf#pragma once\n// caf\xe9\n#define MORE 5\n")
    text = '#include "more.h"\nUNIMEM_KERNEL fill(UNIMEM_BUFFER(float, x)) { UNIMEM_DATA(float, x)[UNIMEM_ITEM_X] = MORE; }'
    buffer = UnifiedBuffer(3, device=opencl)
    launch(Kernel("fill").source(text, folders=[tmp_path]), 3, write(buffer))
    assert (buffer.to_numpy() == 5).all()
    for folders in (str(tmp_path), tmp_path):
        with pytest.raises(unimem.InvalidArgument, match="a list of folders"):
            Kernel("fill").source(text, folders=folders)
    for name in ("", "two\nlines"):
        with pytest.raises(unimem.InvalidArgument, match="one line of text"):
            Kernel("fill").source("UNIMEM_KERNEL fill() {}", name=name)


def test_constants_make_a_kernel_of_their_own(opencl, sim):
    kernel = Kernel("fill").source("UNIMEM_KERNEL fill(UNIMEM_BUFFER(double, x)) { UNIMEM_DATA(double, x)[UNIMEM_ITEM_X] = VALUE; }")
    kernel.host(lambda x: x.fill(7))
    largest = 2**64 - 1
    for value in (3, -3, True, np.bool_(False), 1 << 40, -(1 << 31), -(1 << 63), largest, np.uint8(255), np.int16(-7), np.uint64(largest), 0.1, np.float32(0.1)):
        special = kernel.specialize(VALUE=value)
        buffer = UnifiedBuffer(3, np.float64, device=opencl)
        launch(special, 3, write(buffer))
        assert buffer.to_numpy().tolist() == [float(value)] * 3
        assert kernel.specialize(VALUE=value)._native._is_built(opencl)
    signed = Kernel("fill").source("UNIMEM_KERNEL fill(UNIMEM_BUFFER(double, x)) { UNIMEM_DATA(double, x)[UNIMEM_ITEM_X] = (2 - VALUE) / 2; }")
    for value in (np.uint8(4), np.uint16(4), np.int32(4)):
        buffer = UnifiedBuffer(3, np.float64, device=opencl)
        launch(signed.specialize(VALUE=value), 3, write(buffer))
        assert buffer.to_numpy().tolist() == [-1] * 3
    buffer = UnifiedBuffer(3, np.float64, device=sim)
    launch(special, 3, write(buffer))
    assert buffer.to_numpy().tolist() == [7] * 3
    for value in (largest + 1, -(1 << 63) - 1, float("inf"), float("nan"), "3", 1j, np.float16(1), None):
        with pytest.raises(InvalidArgument):
            kernel.specialize(VALUE=value)
    with pytest.raises(InvalidArgument, match="OTHER"):
        kernel.specialize(OTHER=1)
    with pytest.raises(KernelError):
        kernel.build(opencl)
    assert Kernel("host").host(lambda x: None).specialize(VALUE=1).has_host


def test_what_a_source_cannot_have_is_refused(opencl, tmp_path):
    kernel = Kernel("apply").source(SCALE.replace("scale", "apply"))
    for options, name in [
        ({"defines": {"A(x)": "x"}}, "A"),
        ({"defines": {"UNIMEM_DATA": "x"}}, "UNIMEM_DATA"),
        ({"defines": {"A": "1\n2"}}, "of A"),
        ({"defines": {"A": 1}}, "defines"),
        ({"defines": ["A"]}, "list"),
        ({"headers": {"../a.h": ""}}, "a.h"),
        ({"folders": [tmp_path / "absent"]}, "absent"),
        ({"folders": [3]}, "folders"),
        ({"defines": {}, "name": ""}, "name"),
    ]:
        with pytest.raises(InvalidArgument, match=name):
            kernel.source(APPLY, **options)
    buffer = data(opencl)
    launch(kernel, 1000, readwrite(buffer), 2.0)  # as it was
    np.testing.assert_array_equal(buffer.to_numpy(), 2 * np.arange(1000))
    with pytest.raises(KernelError) as caught:
        Kernel("apply").source(APPLY, folders=[], name="apply.cl").build(opencl)
    assert '"steps.h" is among neither headers nor folders: apply.cl:2' in caught.value.build_log


@pytest.mark.parametrize("where", ["cpu", "sim", "opencl"])
def test_one_kernel_runs_on_every_device(scale, where, request, moved):
    device = request.getfixturevalue(where)
    buffer = data(device)
    count = moved(buffer)
    event = launch(scale, 1000, readwrite(buffer), 2.0)
    event.wait()
    assert event.ready and buffer.state is S.DEVICE_DIRTY
    launch(scale, 1000, readwrite(buffer), 5)
    np.testing.assert_array_equal(buffer.to_numpy(), np.arange(1000) * 10)
    assert count.since() == ((0, 0, 0, 0) if where == "cpu" else (1, 4000, 1, 4000))


def test_what_is_only_written_is_not_brought_in(discrete, moved):
    iota = Kernel("iota").source("""
        UNIMEM_KERNEL iota(UNIMEM_BUFFER(unimem_i32, out), unimem_i32 first) {
          UNIMEM_DATA(unimem_i32, out)[UNIMEM_ITEM_X] = first + (unimem_i32)UNIMEM_ITEM_X;
        }""").host(lambda out, first: out.__setitem__(slice(None), np.arange(first, first + out.size)))
    buffer = UnifiedBuffer(100, np.int32, device=discrete)
    buffer.host[:] = -1
    count = moved(buffer)
    launch(iota, 10, write(buffer, 20, 10), 7)
    assert count.since() == (0, 0, 0, 0)
    expected = np.full(100, -1)
    expected[20:30] = np.arange(7, 17)
    np.testing.assert_array_equal(buffer.to_numpy(), expected)
    assert count.since() == (0, 0, 1, 40)


def test_functions_get_shapes_slices_and_read_only_arrays(sim):
    seen = []

    def weigh(matrix, row, weights, factor):
        seen.append((matrix.shape, row.shape, matrix.flags.writeable, row.flags.writeable, factor))
        row[:] = matrix @ weights * factor

    matrix = UnifiedBuffer((3, 4), np.float64, device=sim)
    matrix.host[...] = np.arange(12).reshape(3, 4)
    result = UnifiedBuffer(10, np.float64, device=sim)
    result.fill(-1)
    weights = UnifiedBuffer(4, np.float64, device=sim)
    weights.fill(1)
    launch(Kernel("weigh").host(weigh), 1, read(matrix), write(result.slice(2, 3)), read(weights), 2)
    np.testing.assert_array_equal(result.to_numpy(), [-1, -1, 12, 44, 76, -1, -1, -1, -1, -1])
    assert seen == [((3, 4), (3,), False, True, 2)]


def test_a_functions_exception_comes_out(sim):
    def broken(x):
        x[:] = 99
        raise LookupError("no such thing")

    buffer = data(sim, 10)
    event = launch(Kernel("broken").host(broken), 1, readwrite(buffer))
    with pytest.raises(KernelError) as caught:
        event.wait()
    assert caught.value.name == "broken" and caught.value.reason == "the Python function raised LookupError: no such thing"
    assert "in broken" in caught.value.build_log
    with pytest.raises(KernelError, match="no such thing"):
        buffer.to_numpy()
    np.testing.assert_array_equal(buffer.to_numpy(), np.arange(10))


def test_work_that_needs_failed_work_fails(sim):
    import gc
    import weakref

    class Function:
        def __call__(self, x):
            raise AssertionError("never called")

    release = threading.Event()

    def first(x):
        release.wait(30)
        raise LookupError("first")

    second = Function()
    gone = weakref.ref(second)
    buffer = data(sim, 10)
    one = launch(Kernel("first").host(first), 1, readwrite(buffer))
    two = launch(Kernel("second").host(second), 1, readwrite(buffer))
    del second
    release.set()
    for event in (one, two):
        with pytest.raises(KernelError, match="LookupError: first"):
            event.wait()
    with pytest.raises(KernelError):
        buffer.to_numpy()
    launch(Kernel("third").host(lambda x: None), 1, readwrite(buffer)).wait()
    gc.collect()
    assert gone() is None


def test_arrays_last_as_long_as_the_call(sim):
    kept = []
    buffer = data(sim, 10)
    event = launch(Kernel("keeps").host(lambda x: kept.append(x[2:])), 1, readwrite(buffer))
    with pytest.raises(KernelError, match="kept argument 1"):
        event.wait()
    kept.clear()
    with pytest.raises(KernelError):
        buffer.to_numpy()
    copies = []
    launch(Kernel("copies").host(lambda x: copies.append(x.copy())), 1, read(buffer)).wait()
    np.testing.assert_array_equal(copies[0], np.arange(10))


def test_functions_may_use_the_library(sim):
    other = data(sim, 10)

    def nested(x):
        x += other.host[3]
        inner = UnifiedBuffer(5).fill(2)
        x += inner.to_numpy()[0]

    buffer = data(sim, 10)
    for _ in range(50):
        launch(Kernel("nested").host(nested), 1, readwrite(buffer))
    np.testing.assert_array_equal(buffer.to_numpy(), np.arange(10) + 250)


def test_many_threads_launch_and_wait(sim):
    kernel = Kernel("increment").host(lambda x: np.add(x, 1, out=x))
    results = []

    def work():
        buffer = data(sim, 100)
        for _ in range(50):
            launch(kernel, 1, readwrite(buffer))
            if _ % 10 == 0:
                buffer.to_numpy()
        results.append(int(buffer.to_numpy()[7]))

    threads = [threading.Thread(target=work) for _ in range(6)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert results == [57] * 6


def test_a_missing_form_says_so(sim, opencl, scale):
    with pytest.raises(KernelError, match="source form") as caught:
        launch(Kernel("f").host(lambda x: None), 1, readwrite(data(opencl)))
    assert caught.value.name == "f"
    with pytest.raises(KernelError, match="host form"):
        launch(Kernel("g").source(SCALE.replace("scale", "g")), 1, readwrite(data(sim)), 2.0)
    with pytest.raises(KernelError, match="no form|host form"):
        launch(Kernel("none"), 1, readwrite(data(sim)))
    assert repr(scale) == "<unimem.Kernel 'scale': source and host>"


def test_a_failed_build_has_its_log(opencl):
    bad = Kernel("bad").source("UNIMEM_KERNEL bad(UNIMEM_BUFFER(float, x)) { nonsense; }")
    buffer = data(opencl)
    with pytest.raises(KernelError) as caught:
        launch(bad, 10, readwrite(buffer))
    assert "nonsense" in caught.value.build_log
    assert buffer.state is S.HOST_DIRTY


def test_scalars_have_the_type_the_kernel_says(opencl):
    typed = Kernel("typed").source("""
        UNIMEM_KERNEL typed(UNIMEM_BUFFER(unimem_f64, out), float a, unimem_i64 b, const unimem_u8 c, unimem_f64 d) {
          UNIMEM_DATA(unimem_f64, out)[0] = a; UNIMEM_DATA(unimem_f64, out)[1] = b;
          UNIMEM_DATA(unimem_f64, out)[2] = c; UNIMEM_DATA(unimem_f64, out)[3] = d;
        }""")
    buffer = UnifiedBuffer(4, np.float64, device=opencl)
    launch(typed, 1, write(buffer), 0.5, -3, np.int64(255), np.float32(0.25))
    np.testing.assert_array_equal(buffer.to_numpy(), [0.5, -3, 255, 0.25])
    for wrong in ((0.5, 1.5, 1, 0.5), (0.5, 1, 256, 0.5), (0.5, 1, -1, 0.5), ("a", 1, 1, 0.5), (0.5, 2**63, 1, 0.5)):
        with pytest.raises(InvalidArgument, match="argument"):
            launch(typed, 1, write(buffer), *wrong)
    np.testing.assert_array_equal(buffer.to_numpy(), [0.5, -3, 255, 0.25])


def test_bad_launches_are_refused_before_anything_runs(sim, scale):
    buffer = data(sim, 10)
    with pytest.raises(InvalidArgument):
        readwrite(np.zeros(3))
    with pytest.raises(InvalidArgument, match="kernel 'function'"):
        launch(print_nothing, 10, readwrite(buffer), 2.0)
    with pytest.raises(InvalidArgument, match="range"):
        launch(scale, (1, 2, 3, 4), readwrite(buffer), 2.0)
    with pytest.raises(InvalidArgument, match="range"):
        launch(scale, -1, readwrite(buffer), 2.0)
    with pytest.raises(InvalidArgument, match="within 10"):
        launch(scale, 10, readwrite(buffer, 5, 6), 2.0)
    with pytest.raises(InvalidArgument, match="callable"):
        Kernel("k").host(3)
    assert buffer.state is S.HOST_DIRTY
    np.testing.assert_array_equal(buffer.to_numpy(), np.arange(10))


def print_nothing():
    pass


NO_ARGUMENTS = {
    "an array": (np.zeros(3), "ndarray"), "an array of one element": (np.array(2.0), "ndarray"), "text": ("two", "str"), "nothing": (None, "NoneType"),
    "a list": ([1.0], "list"), "bytes": (b"2", "bytes"), "a function": (print_nothing, "function"), "a date": (np.datetime64("2020-01-01"), "datetime64"),
}  # fmt: skip


@pytest.mark.parametrize("where", ["cpu", "sim", "opencl"])
@pytest.mark.parametrize("name", [*NO_ARGUMENTS, "a buffer", "a slice", "an array of a buffer's", "a device array"])
def test_wrong_arguments_are_named_by_position(scale, where, name, request, moved):
    device = request.getfixturevalue(where)
    buffer = data(device, 10)
    own = {"a buffer": buffer, "a slice": buffer.slice(2), "an array of a buffer's": buffer.host, "a device array": buffer.device}
    value, type_name = NO_ARGUMENTS.get(name, (own.get(name), type(own.get(name)).__name__))
    buffer.host[:] = np.arange(10)
    count = moved(buffer)
    orchestrator = unimem.Orchestrator()
    orchestrator.register_kernel(scale)
    for call in (lambda: launch(scale, 10, readwrite(buffer), value), lambda: orchestrator.execute("scale", 10, readwrite(buffer), value)):
        with pytest.raises(InvalidArgument, match=r"read\(b\), write\(b\) or readwrite\(b\)") as caught:
            call()
        assert (caught.value.argument, caught.value.value) == ("argument 2", type_name)
        assert ("from_array" in caught.value.requirement) == isinstance(value, np.ndarray)
    assert (buffer.state, count.since()) == (S.HOST_DIRTY, (0, 0, 0, 0))
    np.testing.assert_array_equal(buffer.to_numpy(), np.arange(10))


def test_a_function_takes_every_kind_of_number(sim):
    seen = []
    numbers = [True, 3, 2**70, 0.5, 1 + 2j, np.float32(0.25), np.int8(-1), np.bool_(False), np.complex64(2j)]
    launch(Kernel("sees").host(lambda *values: seen.extend(values)), 1, *numbers, device=sim).wait()
    assert seen == numbers


@pytest.mark.parametrize("where", ["cpu", "sim"])
@pytest.mark.parametrize("waits", [True, False], ids=["on the thread that waits", "on a thread of the library's"])
@pytest.mark.parametrize(
    "look",
    [
        lambda own, other, inner: own.to_numpy(),
        lambda own, other, inner: own.host.fill(3),
        lambda own, other, inner: own.resize(3),
        lambda own, other, inner: own.default_device.synchronize(),
        lambda own, other, inner: launch(inner, 1, readwrite(other)).wait(),
        lambda own, other, inner: (launch(inner, 1, readwrite(other)), other.to_numpy()),
    ],
    ids=["its buffer", "a write to its buffer", "resize", "its device", "work behind it", "what work behind it writes"],
)
def test_waiting_for_itself_is_refused(where, waits, look, request):
    device = request.getfixturevalue(where)
    own, other = data(device, 10), data(device, 10)
    own.sync_to_device()
    other.sync_to_device()
    inner = Kernel("inner").host(lambda x: np.add(x, 1, out=x))
    begin = threading.Event()

    def function(x):
        assert begin.wait(60)
        look(own, other, inner)

    event = launch(Kernel("selfish").host(function), 1, readwrite(own))
    begin.set()
    while not waits and not event.ready:
        pass
    with pytest.raises(KernelError, match="UnsupportedOperation: waiting for work .* would never end"):
        event.wait(timeout=60)
    assert other.to_numpy()[1] in (1, 2)


def test_a_function_may_use_finished_buffers(sim, other_sim):
    own, other, elsewhere = data(sim, 10), data(sim, 10), data(other_sim, 10)
    add = Kernel("add").host(lambda x: np.add(x, 1, out=x))

    def function(x):
        launch(add, 1, readwrite(elsewhere)).wait()
        x[:] += other.to_numpy() + elsewhere.to_numpy()
        launch(add, 1, readwrite(other))

    launch(Kernel("function").host(function), 1, readwrite(own)).wait()
    np.testing.assert_array_equal(own.to_numpy(), 3 * np.arange(10) + 1)
    np.testing.assert_array_equal(other.to_numpy(), np.arange(10) + 1)


def test_an_extra_argument_writes_nothing(scale, opencl, moved):
    """As many as the plain form would take: the second would be an address."""
    buffer = data(opencl)
    for arguments in ((2.0, 1), (2.0, 1, 1), ()):
        with pytest.raises(KernelError, match="takes 2"):
            launch(scale, 1000, readwrite(buffer), *arguments).wait()
    np.testing.assert_array_equal(buffer.to_numpy(), np.arange(1000))
