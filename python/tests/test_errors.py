"""Bad input: typed errors that carry what was passed, and buffers that are as they were."""

import asyncio
import ctypes
import inspect
import os
import pickle
import subprocess
import sys
from dataclasses import dataclass
from operator import attrgetter, itemgetter, methodcaller

import numpy as np
import pytest

import unimem
from unimem import BufferSlice, BufferState, InvalidArgument, SizeMismatch, UnifiedBuffer

S = BufferState


@pytest.mark.parametrize(
    ("shape", "value"),
    [(-1, "-1"), ((3, -2), "-2"), (2**63, str(2**63)), ((2**40, 2**40), str((2**40, 2**40))), (1.5, "1.5"), ("12", "'12'"), ((2, None), "None")],
)
def test_shapes_that_make_no_sense_are_named(shape, value):
    with pytest.raises(InvalidArgument, match="shape") as caught:
        UnifiedBuffer(shape)
    assert caught.value.argument == "shape" and caught.value.value == value
    assert isinstance(caught.value, ValueError) and isinstance(caught.value, unimem.Error)


def test_more_than_an_address_space_is_refused():
    with pytest.raises(InvalidArgument):
        UnifiedBuffer(2**62, np.float64)


@pytest.mark.parametrize("dtype", [object, np.dtype([("a", object)]), "S0", "V0", np.dtype((np.float32, (3,))), "no such type"])
def test_dtypes_that_are_no_plain_bytes_are_refused(dtype):
    with pytest.raises(InvalidArgument) as caught:
        UnifiedBuffer(4, dtype)
    assert caught.value.argument == "dtype"


@pytest.mark.parametrize("dtype", ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16", ">f4", "M8[ns]", "m8[s]",
                                   "S5", "U3", "V7", [("a", "i2"), ("b", "f8")]])  # fmt: skip
def test_every_dtype_goes_to_a_device_and_back(discrete, dtype):
    raw = np.random.default_rng(3).integers(0, 2, 40 * np.dtype(dtype).itemsize, dtype=np.uint8)
    data = raw.view(dtype)
    buffer = UnifiedBuffer(40, dtype, device=discrete)
    buffer.copy_from(data)
    buffer.sync_to_device()
    buffer.release_host()
    back = buffer.to_numpy()
    assert back.dtype == data.dtype and back.tobytes() == data.tobytes()
    assert buffer.host.tobytes() == data.tobytes()


def test_zero_elements_are_legal_everywhere(discrete):
    for shape in (0, (3, 0), (0, 5)):
        buffer = UnifiedBuffer(shape, device=discrete)
        assert (buffer.size, buffer.nbytes, buffer.shape) == (0, 0, shape if isinstance(shape, tuple) else (shape,))
        assert buffer.host.shape == buffer.shape
        assert buffer.state is S.SYNCHRONIZED
        buffer.host[...] = 3
        buffer.fill(1).zeros().sync_to_device()
        buffer.copy_from(np.empty(buffer.shape, np.float32))
        assert buffer.device.shape == buffer.shape
        assert buffer.to_numpy().shape == buffer.shape
        assert buffer.state is S.SYNCHRONIZED
        assert buffer.statistics.host_to_device_bytes == 0


@pytest.mark.parametrize("count", [0, 1, 9, 11])
def test_copies_want_exactly_as_many_elements(discrete, count):
    fresh = UnifiedBuffer(10, device=discrete)
    with pytest.raises(SizeMismatch) as caught:
        fresh.copy_from(np.zeros(count, np.float32))
    assert (caught.value.expected, caught.value.actual) == (10, count)
    assert fresh.state is S.UNINITIALIZED and not fresh.is_allocated
    buffer = UnifiedBuffer(10, device=discrete)
    buffer.copy_from(np.arange(10))
    buffer.sync_to_device()
    with pytest.raises(SizeMismatch):
        buffer.copy_from(np.zeros(count))
    out = np.full(count, 8, np.float32)
    with pytest.raises(SizeMismatch) as caught:
        buffer.copy_to(out)
    assert (caught.value.expected, caught.value.actual) == (10, count)
    assert (out == 8).all() and buffer.state is S.SYNCHRONIZED
    np.testing.assert_array_equal(buffer.host, np.arange(10))


def test_nothing_is_broadcast_or_reshaped_in_silence(sim):
    buffer = UnifiedBuffer((2, 3), device=sim)
    for data in (np.zeros((3, 2)), np.zeros(6), 5.0, np.zeros((1, 2, 3))):
        with pytest.raises((InvalidArgument, SizeMismatch)):
            buffer.copy_from(data)
        assert buffer.state is S.UNINITIALIZED
    with pytest.raises(InvalidArgument, match=r"shape \(3, 2\)"):
        buffer.copy_from(np.zeros((3, 2)))


def test_copies_cast_as_numpy_does_by_same_kind(sim):
    buffer = UnifiedBuffer(3, np.float32, device=sim)
    for data in ([1, 2, 3], np.array([1, 2, 3], np.float64), np.array([1, 2, 3], ">i2"), np.arange(6)[::2] // 2 + 1, (1.0, 2.0, 3.0)):
        buffer.copy_from(data)
        np.testing.assert_array_equal(buffer.to_numpy(), [1, 2, 3])
    small = UnifiedBuffer(3, np.uint8, device=sim)
    small.copy_from([1, 2, 255])
    assert small.to_numpy().tolist() == [1, 2, 255]
    for data in ([1, 2, 256], [-1, 2, 3], np.array([1, 2, 3])):
        with pytest.raises(InvalidArgument):
            small.copy_from(data)
    assert small.to_numpy().tolist() == [1, 2, 255]
    whole = UnifiedBuffer(3, np.int32, device=sim)
    for data in (np.array([1.5, 2, 3]), np.array([1j, 2, 3]), np.array(["1", "2", "3"]), np.array([None, 1, 2])):
        with pytest.raises(InvalidArgument, match=str(data.dtype).replace("<", ".")):
            whole.copy_from(data)
    with pytest.raises(InvalidArgument):
        whole.copy_from([[1], [2, 3], [4]])


def test_sources_of_any_stride_are_copied(sim):
    source = np.arange(60.0).reshape(3, 4, 5)
    read_only = source.copy()
    read_only.flags.writeable = False
    buffer = UnifiedBuffer((3, 4, 5), np.float64, device=sim)
    for data in (np.asfortranarray(source), read_only, np.stack([source, source], -1)[..., 0], source[::-1][::-1]):
        buffer.zeros().copy_from(data)
        np.testing.assert_array_equal(buffer.to_numpy(), source)


def test_copies_in_parts_stay_within_their_bounds(discrete):
    buffer = UnifiedBuffer(10, np.int32, device=discrete)
    buffer.fill(-1)
    buffer.copy_from([5, 6, 7], offset=4)
    np.testing.assert_array_equal(buffer.to_numpy(), [-1, -1, -1, -1, 5, 6, 7, -1, -1, -1])
    out = np.zeros(2, np.int32)
    buffer.copy_to(out, offset=5)
    np.testing.assert_array_equal(out, [6, 7])
    for offset, count in ((8, 3), (11, 0), (10, 1)):
        with pytest.raises(SizeMismatch):
            buffer.copy_from(np.zeros(count + (offset > 10), np.int32), offset=offset)
    for offset in (-1, 2**64, 1.5):
        with pytest.raises(InvalidArgument, match="offset"):
            buffer.copy_from([1], offset=offset)
    np.testing.assert_array_equal(buffer.to_numpy(), [-1, -1, -1, -1, 5, 6, 7, -1, -1, -1])


def test_copy_to_wants_memory_it_can_write(sim):
    buffer = UnifiedBuffer(4, device=sim)
    buffer.fill(1)
    read_only = np.zeros(4, np.float32)
    read_only.flags.writeable = False
    for out in (read_only, np.zeros(8, np.float32)[::2], np.zeros(4), [0, 0, 0, 0]):
        with pytest.raises(InvalidArgument):
            buffer.copy_to(out)


def test_values_that_are_no_element_are_refused(sim):
    buffer = UnifiedBuffer(4, np.int8, device=sim)
    buffer.fill(7)
    for value in (1.5, 300, "x", [1, 2], None, 1j):
        with pytest.raises(InvalidArgument, match="value"):
            buffer.fill(value)
    np.testing.assert_array_equal(buffer.to_numpy(), [7] * 4)
    assert UnifiedBuffer(2, np.float32, device=sim).fill(3).to_numpy().tolist() == [3, 3]
    assert UnifiedBuffer(2, np.complex64, device=sim).fill(3).to_numpy().tolist() == [3, 3]
    assert UnifiedBuffer(2, np.uint8, device=sim).fill(255).to_numpy().tolist() == [255, 255]
    assert UnifiedBuffer(2, bool, device=sim).fill(True).to_numpy().tolist() == [True, True]
    assert UnifiedBuffer(2, np.float32, device=sim).fill(np.float64(0.5)).to_numpy().tolist() == [0.5, 0.5]


def test_fill_works_on_the_side_that_is_current(discrete, moved):
    buffer = UnifiedBuffer(1000, device=discrete)
    buffer.copy_from(np.arange(1000))
    buffer.sync_to_device()
    buffer.device.copy_from(np.zeros(1000))
    buffer.mark_device_dirty()
    count = moved(buffer)
    assert buffer.fill(5, offset=10, count=20) is buffer
    assert count.since() == (0, 0, 0, 0)
    assert buffer.state is S.DEVICE_DIRTY
    expected = np.zeros(1000)
    expected[10:30] = 5
    np.testing.assert_array_equal(buffer.to_numpy(), expected)
    with pytest.raises(InvalidArgument):
        buffer.fill(5, offset=990, count=20)


def test_marks_outside_the_buffer_are_refused(sim):
    buffer = UnifiedBuffer(10, device=sim).allocate()
    for offset, count in ((11, 0), (0, 11), (5, 6), (-1, 1), (0, -1), (2**63, 1)):
        for mark in (buffer.mark_host_dirty, buffer.mark_device_dirty):
            with pytest.raises(InvalidArgument):
                mark(offset, count)


TAKES_A_DEVICE = {
    "UnifiedBuffer": lambda d: unimem.UnifiedBuffer(4, device=d),
    "UnifiedBuffer.from_array": lambda d: unimem.UnifiedBuffer.from_array(np.zeros(4), device=d),
    "UnifiedBuffer.from_dlpack": lambda d: unimem.UnifiedBuffer.from_dlpack(np.zeros(4), device=d),
    "UnifiedBuffer.from_dlpack, a copy": lambda d: unimem.UnifiedBuffer.from_dlpack(np.zeros(4), copy=True, device=d),
    "on": lambda d: unimem.UnifiedBuffer(4).on(d),
    "sync_to_device": lambda d: unimem.UnifiedBuffer(4).fill(1).sync_to_device(d),
    "prefetch": lambda d: unimem.UnifiedBuffer(4).fill(1).prefetch(d),
    "mark_device_dirty": lambda d: unimem.UnifiedBuffer(4).fill(1).mark_device_dirty(device=d),
    "valid_on": lambda d: unimem.UnifiedBuffer(4).valid_on(d),
    "release_device": lambda d: unimem.UnifiedBuffer(4).release_device(d),
    "will_use": lambda d: unimem.UnifiedBuffer(4).will_use(d),
    "wont_use": lambda d: unimem.UnifiedBuffer(4).wont_use(d),
    "ensure_on_device": lambda d: asyncio.run(unimem.UnifiedBuffer(4).ensure_on_device(d)),
    "sync_to_device_async": lambda d: asyncio.run(unimem.UnifiedBuffer(4).fill(1).sync_to_device_async(d)),
    "MemoryPool": lambda d: unimem.MemoryPool(device=d),
    "get_accelerator": unimem.get_accelerator,
    "MemoryManager.allocate": lambda d: unimem.MemoryManager().allocate(4, device=d),
    "MemoryManager.wrap": lambda d: unimem.MemoryManager().wrap(np.zeros(4), device=d),
    "MemoryManager.pool": lambda d: unimem.MemoryManager().pool(d),
    "MemoryManager.available_memory": lambda d: unimem.MemoryManager().available_memory(d),
    "MemoryManager.total_memory": lambda d: unimem.MemoryManager().total_memory(d),
    "MemoryManager.set_limit": lambda d: unimem.MemoryManager().set_limit(d, "1MiB"),
    "MemoryManager.recommendations": lambda d: unimem.MemoryManager().recommendations(d),
    "MemoryManager.defragment": lambda d: unimem.MemoryManager().defragment(d),
    "launch": lambda d: unimem.launch(unimem.Kernel("nothing").host(lambda: None), 1, device=d),
    "stream_file": lambda d: unimem.stream_file(__file__, unimem.histogram(), device=d),
}  # fmt: skip


@pytest.mark.parametrize("taker", TAKES_A_DEVICE)
@pytest.mark.parametrize("value", [5, 0.0, b"cpu", ["cpu"], unimem.UnifiedBuffer])
def test_wrong_devices_are_named_everywhere(taker, value):
    with pytest.raises(unimem.InvalidArgument, match=r"a Device, or the id of one") as caught:
        TAKES_A_DEVICE[taker](value)
    assert (caught.value.argument, caught.value.value) == ("device", f"{type(value).__name__} {value!r}")


def test_wrong_devices_are_named_by_an_orchestrator():
    orchestrator = unimem.Orchestrator()
    orchestrator.register_kernel(unimem.Kernel("nothing").host(lambda: None))
    for call in (orchestrator.execute, orchestrator.launch):
        with pytest.raises(unimem.InvalidArgument, match="int 5"):
            call("nothing", 1, device=5)
    for value in (5, None, b"cpu"):
        with pytest.raises(unimem.InvalidArgument, match="text, such as") as caught:
            unimem.device(value)
        assert (caught.value.argument, caught.value.value) == ("id", repr(value))
    with pytest.raises(unimem.InvalidArgument, match="a MemoryManager") as caught:
        unimem.UnifiedBuffer(4, manager=5)
    assert (caught.value.argument, caught.value.value) == ("manager", "int 5")


def test_unknown_devices_are_named_with_what_there_is():
    with pytest.raises(unimem.NotFound) as caught:
        UnifiedBuffer(4, device="no:7")
    error = caught.value
    assert error.kind == "device" and error.name == "no:7" and "cpu" in error.available
    assert isinstance(error, KeyError) and "no:7" in str(error) and not str(error).startswith("'")
    with pytest.raises(InvalidArgument, match="memory"):
        unimem.device("sim:memory=lots")


def test_out_of_memory_is_a_memory_error(moved):
    device = unimem.make_sim("memory=1MiB")
    buffer = UnifiedBuffer(1 << 20, device=device, name="too big")
    buffer.copy_from(np.full(1 << 20, 4.0))
    with pytest.raises(MemoryError) as caught:
        _ = buffer.device
    error = caught.value
    assert isinstance(error, unimem.OutOfMemory)
    assert error.requested == 4 << 20 and error.limit == 1 << 20 and error.where == f"{device.id} device"
    assert buffer.state is S.HOST_DIRTY
    assert (buffer.to_numpy() == 4).all()


def test_slices_of_what_does_not_fit_are_used_in_windows():
    device = unimem.make_sim("memory=1MiB")
    buffer = UnifiedBuffer(1 << 20, device=device, name="rows")
    buffer.copy_from(np.full(1 << 20, 4.0))
    _ = buffer.slice(0, 1 << 10).device
    assert buffer.statistics.host_to_device_bytes == 4 << 10
    with pytest.raises(unimem.OutOfMemory) as caught:
        _ = buffer.device
    again = pickle.loads(pickle.dumps(caught.value))
    assert again.requested == 4 << 20 and str(again) == str(caught.value)


def test_errors_survive_pickling():
    with pytest.raises(SizeMismatch) as caught:
        UnifiedBuffer(3).copy_from([1])
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is SizeMismatch and (again.expected, again.actual, str(again)) == (3, 1, str(caught.value))
    with pytest.raises(unimem.NotFound) as missing:
        unimem.device("no:7")
    again = pickle.loads(pickle.dumps(missing.value))
    assert again.name == "no:7" and str(again) == str(missing.value)


def test_a_failing_copy_loses_nothing():
    device = unimem.make_sim("fail_upload=1")
    buffer = UnifiedBuffer(100, device=device)
    buffer.copy_from(np.full(100, 6))
    with pytest.raises(unimem.DeviceError) as caught:
        buffer.sync_to_device()
    assert caught.value.backend == "sim" and caught.value.call and isinstance(caught.value.code, int)
    assert (buffer.to_numpy() == 6).all()
    buffer.sync_to_device()
    np.testing.assert_array_equal(buffer.device.to_numpy(), np.full(100, 6))


def test_a_lost_devices_bytes_are_never_garbage():
    device = unimem.make_sim("memory=64MiB,lose_after=3")
    buffer = UnifiedBuffer(100, device=device, name="gone")
    buffer.copy_from(np.ones(100))
    buffer.sync_to_device()
    buffer.mark_device_dirty()
    with pytest.raises(unimem.Error):
        for _ in range(5):
            device_array = buffer.device
            device_array.copy_from(np.zeros(100))
            buffer.mark_device_dirty()
            buffer.to_numpy()
    with pytest.raises((unimem.DataLost, unimem.DeviceError)):
        buffer.to_numpy()


@pytest.mark.parametrize(
    "call, said",
    [
        (lambda: UnifiedBuffer(4, name=3), "invalid name '3'"),
        (lambda: UnifiedBuffer(4, name="\ud800"), "invalid name"),
        (lambda: UnifiedBuffer(4, priority=2**40), "invalid priority '1099511627776'"),
        (lambda: UnifiedBuffer(4, priority=1.5), "invalid priority '1.5'"),
        (lambda: UnifiedBuffer(4, pinned=3), "invalid pinned '3'"),
        (lambda: UnifiedBuffer(4, strict="no"), "invalid strict ''no''"),
        (lambda: setattr(UnifiedBuffer(4), "priority", "x"), "invalid priority"),
        (lambda: unimem.copy(np.zeros(4), UnifiedBuffer(4)), "invalid source 'ndarray'"),
        (lambda: unimem.copy(UnifiedBuffer(4), np.zeros(4)), "invalid target 'ndarray'"),
        (lambda: unimem.MemoryPool().acquire(4, pinned="x"), "invalid pinned ''x''"),
        (lambda: unimem.MemoryPool(limits=3), "invalid limits 'int'"),
        (lambda: unimem.MemoryPool(trim_interval="x"), "invalid trim_interval ''x''"),
        (lambda: unimem.registry().open(3), "invalid buffer_id '3'"),
        (lambda: unimem.registry().release(None), "invalid buffer_id 'None'"),
        (lambda: unimem.registry().refer(b"x"), "invalid buffer_id"),
        (lambda: unimem.registry().find(3), "invalid name '3'"),
        (lambda: unimem.BufferRef(3).resolve(np.uint8), "invalid buffer_id '3'"),
        (lambda: unimem.registry().publish(UnifiedBuffer(4), name=3), "invalid name '3'"),
        (lambda: unimem.Kernel(3), "invalid name '3'"),
        (lambda: unimem.Kernel("k").source(3), "invalid text '3'"),
        (lambda: unimem.affine("x", 2), "invalid scale ''x''"),
        (lambda: unimem.affine(2, 10**400), "invalid offset"),
        (lambda: unimem.stream_file("/etc/pass\0wd", unimem.histogram()), "without NUL"),
        (lambda: unimem.stream_file(__file__, unimem.histogram(), progress=3), "invalid progress '3'"),
    ],
)
def test_arguments_of_another_type_are_named(call, said):
    with pytest.raises(InvalidArgument) as caught:
        call()
    assert said in str(caught.value)


def test_shapes_are_taken_as_numpy_writes_them(sim):
    assert UnifiedBuffer(np.array(3), device=sim).shape == (3,)
    buffer = UnifiedBuffer(4, [("a", "i4"), ("b", "f8")], device=sim).fill((1, 2.5))
    assert buffer.to_numpy().tolist() == [(1, 2.5)] * 4
    with pytest.raises(InvalidArgument, match=r"\(1, 2, 3\)"):
        buffer.fill((1, 2, 3))
    with pytest.raises(InvalidArgument, match="invalid offset '5': must be at most 4"):
        buffer.copy_to(np.empty(0, buffer.dtype), offset=5)


class Forgetful(UnifiedBuffer):
    """Its __init__ does not call that of its base class."""

    def __init__(self):
        pass


@pytest.mark.parametrize("ask", [memoryview, (ctypes.c_char * 8).from_buffer], ids=["to read", "to write"])
def test_a_buffer_that_was_not_initialized_says_so(ask):
    with pytest.raises(BufferError, match=r"invalid buffer '.*Forgetful'.*super\(\).__init__"):
        ask(Forgetful.__new__(Forgetful))


class Heir(Forgetful):
    """Makes good what its base forgets."""

    def __init__(self):
        super().__init__()
        UnifiedBuffer.__init__(self, 3, np.int16)


class Slow(UnifiedBuffer):
    def __init__(self, count: int, *, unit: str = "m"):
        """A doc of its own."""
        super().__init__(count)
        self.unit = unit


def test_an_init_that_forgets_its_base_is_told():
    with pytest.raises(InvalidArgument, match=r"invalid buffer '.*Forgetful': must be initialized: .*super\(\).__init__"):
        Forgetful()
    assert Heir().shape == (3,)
    assert Slow(5).unit == "m" and Slow(5, unit="s").size == 5
    assert str(inspect.signature(Slow)) == "(count: int, *, unit: str = 'm')" and Slow.__init__.__doc__ == "A doc of its own."


class Part(BufferSlice):
    def __init__(self):
        pass


@dataclass(eq=False, repr=False)
class Stamped(UnifiedBuffer):
    """Its __init__ is set when there is the class already."""

    time: float = 0.0


def asked_by_name(kind):
    """All that can be asked of such an object by a name alone, but Metal, which is refused first."""
    for name in sorted(set(dir(kind)) - {"metal", "mark_metal_dirty"}):
        member = inspect.getattr_static(kind, name)
        if name.startswith("_") or isinstance(member, classmethod):
            continue
        if not callable(member):
            yield name, attrgetter(name)
        elif all(one.default is not one.empty or one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD) or one.name == "self"
                 for one in inspect.signature(member).parameters.values()):  # fmt: skip
            yield name, methodcaller(name)


@pytest.mark.parametrize("kind", [Forgetful, Part, Stamped])
def test_uninitialized_objects_refuse_every_call(kind):
    made = kind.__new__(kind)
    asked = dict(asked_by_name(kind))
    assert {"shape", "state", "name", "T", "sum", "to_numpy", "synchronize", "to_numpy_async", "clone"} <= set(asked)
    asked.pop("time", None)  # its own
    kernel = unimem.Kernel("kernel").host(print)
    asked |= {"len()": len, "[0]": itemgetter(0), "repr()": repr, "asarray()": np.asarray, "+ 1": lambda made: made + 1}
    asked |= {"launch()": lambda made: unimem.launch(kernel, 1, unimem.read(made)), "copy_from()": UnifiedBuffer(3).copy_from}
    for name, ask in asked.items():
        with pytest.raises(InvalidArgument, match=rf"invalid buffer '.*{kind.__name__}': must be initialized: .*super\(\).__init__"):
            done = ask(made)
            if inspect.iscoroutine(done):
                asyncio.run(done)
            pytest.fail(f"{name}: {done}")


def test_calls_before_the_base_is_initialized_are_told():
    class Early(UnifiedBuffer):
        def __init__(self):
            self.unit = "m"
            self.before = self.size if self.unit else 0
            super().__init__(3)

    with pytest.raises(InvalidArgument, match=r"invalid buffer '.*Early': must be initialized"):
        Early()


@pytest.mark.parametrize("kind", [unimem.Device, unimem.DeviceArray, unimem.Event, unimem.StreamKernel])
def test_what_functions_alone_make_has_no_subclasses(kind):
    with pytest.raises(TypeError, match=f"{kind.__name__}.*subclassing"):
        type("Mine", (kind,), {"__init__": lambda self: None})


def test_a_buffer_is_no_type_of_elements():
    buffer = UnifiedBuffer(3)
    for make in (lambda: unimem.statistics(buffer), lambda: unimem.affine(1, 2, buffer)):
        with pytest.raises(InvalidArgument, match=r"invalid element 'UnifiedBuffer': must be the name of a type.*buffer.mean\(\)"):
            make()
    with pytest.raises(InvalidArgument, match="invalid element 'int'"):
        unimem.statistics(3)


WITHOUT_THREADS = """
import os, resource, unimem
if os.geteuid() == 0:
    os.setgid(65534), os.setuid(65534)
buffer = unimem.UnifiedBuffer(8, "i4", device=DEVICE)
buffer.fill(3)
resource.setrlimit(resource.RLIMIT_NPROC, (1, resource.getrlimit(resource.RLIMIT_NPROC)[1]))
add = unimem.Kernel("add").host(lambda x: x.__iadd__(1))
try:
    unimem.launch(add, 8, unimem.readwrite(buffer))
except unimem.DeviceError as error:
    print(error, error.code_name, sep=chr(10))
resource.setrlimit(resource.RLIMIT_NPROC, (resource.getrlimit(resource.RLIMIT_NPROC)[1],) * 2)
print(buffer.to_numpy().tolist())
unimem.launch(add, 8, unimem.readwrite(buffer)).wait()
print(buffer.to_numpy().tolist())
"""


@pytest.mark.parametrize("device", ["cpu", "sim:memory=1MiB"])
def test_a_thread_that_cannot_start_is_named(device):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_THREADS.replace("DEVICE", repr(device))], capture_output=True, text=True, timeout=60, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )
    said = "the system: starting a thread for the work of a queue (limits: `ulimit -u`, pids.max of the control group, memory) failed with EAGAIN (11)"
    assert (done.returncode, done.stdout.splitlines()) == (0, [said, "EAGAIN", str([3] * 8), str([4] * 8)]), done.stderr
