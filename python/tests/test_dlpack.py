"""DLPack both ways: memory, versions, streams, flags and copies."""

import ctypes
import gc

import numpy as np
import pytest
from sample_buffers import grid

import unimem
from unimem import BufferState, UnifiedBuffer

S = BufferState


def test_dlpack_gives_the_hosts_memory(discrete):
    buffer = grid(discrete)
    assert buffer.__dlpack_device__() == (1, 0)
    view = np.from_dlpack(buffer)
    assert np.shares_memory(view, buffer.host)
    np.testing.assert_array_equal(view, np.arange(20).reshape(4, 5))
    copied = np.from_dlpack(buffer, copy=True)
    assert not np.shares_memory(copied, buffer.host)
    del buffer
    np.testing.assert_array_equal(view, np.arange(20).reshape(4, 5))


def test_dlpack_gives_a_simulated_devices_memory(sim):
    buffer = grid(sim)
    array = buffer.device
    assert array.__dlpack_device__() == (1, 0)
    view = np.from_dlpack(array)
    assert view.ctypes.data == array.address and not np.shares_memory(view, buffer.host)
    view[...] = 3
    buffer.mark_device_dirty()
    assert (buffer.host == 3).all()
    copied = np.from_dlpack(array, copy=True)
    assert not np.shares_memory(copied, view)
    del array, buffer
    assert (view == 3).all()


def test_dlpack_names_what_it_cannot(opencl, sim):
    array = grid(opencl).device
    assert array.__dlpack_device__() == (4, 0) and array.address == 0 and array.native[0] != 0
    with pytest.raises((RuntimeError, BufferError, ValueError)):
        np.from_dlpack(array)
    np.testing.assert_array_equal(np.from_dlpack(array, device="cpu"), np.arange(20).reshape(4, 5))
    dated = UnifiedBuffer(3, "M8[s]", device=sim).allocate()
    with pytest.raises(unimem.UnsupportedOperation, match="datetime64"):
        dated.device.__dlpack__()


def test_wrapping_by_dlpack_shares(sim):
    source = np.arange(6.0)
    buffer = UnifiedBuffer.from_dlpack(source, device=sim)
    buffer.host[0] = 9
    assert source[0] == 9


def test_memory_of_another_device_is_copied(opencl, sim):
    theirs = grid(opencl).device
    with pytest.raises(unimem.UnsupportedOperation, match="opencl:0.*copy=True") as caught:
        UnifiedBuffer.from_dlpack(theirs)
    assert caught.value.where == "opencl:0"
    copied = UnifiedBuffer.from_dlpack(theirs, copy=True, device=sim, name="copied")
    np.testing.assert_array_equal(copied.device.to_numpy(), np.arange(20).reshape(4, 5))
    assert (copied.name, copied.statistics.host_to_device_copies) == ("copied", 1)


class Foreign:
    """What says that it is a device's, as other libraries' arrays do."""

    def __init__(self, kind, number):
        self._device = (kind, number)

    def __dlpack_device__(self):
        return self._device

    def __dlpack__(self, **arguments):
        raise AssertionError("it is not asked for")


@pytest.mark.parametrize(("kind", "said"), [(2, "cuda:1"), (8, "metal:1"), (10, "rocm:1"), (14, "oneapi:1"), (99, "device kind 99:1")])
def test_devices_that_cannot_be_wrapped_are_named(kind, said):
    with pytest.raises(unimem.UnsupportedOperation, match=said) as caught:
        UnifiedBuffer.from_dlpack(Foreign(kind, 1))
    assert caught.value.where == said


def test_what_cannot_be_wrapped_is_refused(sim):
    with pytest.raises(unimem.InvalidArgument, match="__dlpack__"):
        UnifiedBuffer.from_dlpack([1, 2])
    buffer = grid(sim)
    with pytest.raises(unimem.InvalidArgument, match="buffer"):
        UnifiedBuffer.from_dlpack(buffer)
    copied = UnifiedBuffer.from_dlpack(buffer, copy=True)
    copied.host[:] = 0
    assert (copied.to_numpy() == 0).all() and buffer.to_numpy().sum() == 190
    fixed = np.arange(5)
    fixed.flags.writeable = False
    with pytest.raises(unimem.InvalidArgument, match="read-only"):
        UnifiedBuffer.from_dlpack(fixed)
    assert UnifiedBuffer.from_dlpack(fixed, copy=True).to_numpy().tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(unimem.InvalidArgument, match="C-contiguous"):
        UnifiedBuffer.from_dlpack(np.arange(10)[::2])


@pytest.mark.parametrize("stream", [1, -1, 0, 2.5, "a"])
def test_streams_of_dlpack_are_checked(discrete, stream):
    buffer = grid(discrete)
    for one in (buffer, buffer.device):
        with pytest.raises(unimem.InvalidArgument, match="stream"):
            one.__dlpack__(stream=stream)
        if one.__dlpack_device__()[0] == 1:
            assert one.__dlpack__(stream=None) is not None


class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("kind", ctypes.c_int32), ("number", ctypes.c_int32), ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8),
                ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.c_void_p),
                ("offset", ctypes.c_uint64)]  # fmt: skip


class Versioned(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p),
                ("flags", ctypes.c_uint64), ("tensor", Tensor)]  # fmt: skip


def inside(capsule):
    """(major version or 0, flags, the tensor) of what DLPack hands over."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    name = repr(capsule).split('"')[1]
    at = pointer(capsule, name.encode())
    if name == "dltensor":
        return 0, 0, Tensor.from_address(at)
    versioned = Versioned.from_address(at)
    return versioned.major, versioned.flags, versioned.tensor


READ_ONLY, COPIED = 1, 2


def test_dlpack_has_the_requested_version_and_flags(discrete):
    buffer = grid(discrete)
    for one in (buffer, buffer.device):
        kind, number = one.__dlpack_device__()
        for version, major in ((None, 0), ((0, 8), 0), ((1, 0), 1), ((1, 9), 1)):
            capsule = one.__dlpack__(max_version=version)
            given, flags, tensor = inside(capsule)
            said = READ_ONLY if major and one is buffer else 0
            assert (given, flags, tensor.kind, tensor.number, tensor.ndim) == (major, said, kind, number, 2)
            assert (tensor.code, tensor.bits, tensor.lanes, tensor.shape[0], tensor.shape[1]) == (2, 32, 1, 4, 5)
            copied = one.__dlpack__(max_version=version, copy=True)
            given, flags, other = inside(copied)
            assert (given, flags, other.kind) == (major, COPIED if major else 0, 1) and other.data != tensor.data
            shared = one.__dlpack__(max_version=version, copy=False)
            assert inside(shared)[2].data == tensor.data
    with pytest.raises(BufferError):
        buffer.__dlpack__(dl_device=(2, 0))
    # Those without a version may have been written.
    assert buffer.state is S.HOST_DIRTY and buffer.statistics.host_to_device_copies == 1


def test_dlpack_of_read_only_memory_says_so(discrete):
    buffer = grid(discrete)
    view = np.asarray(buffer)
    capsule = view.__dlpack__(max_version=(1, 0))
    assert inside(capsule)[1] == READ_ONLY
    with pytest.raises(BufferError):  # a capsule without a version cannot say it
        view.__dlpack__()
    assert not np.from_dlpack(view).flags.writeable
    with pytest.raises(unimem.InvalidArgument, match="read-only"):
        UnifiedBuffer.from_dlpack(view)
    assert not np.from_dlpack(buffer).flags.writeable and not np.from_dlpack(buffer.host).flags.writeable
    assert np.from_dlpack(buffer.host, copy=True).flags.writeable and buffer.host.flags.writeable
    watched = UnifiedBuffer(1 << 20, np.uint8, device=discrete, tracking=unimem.Tracking.MANUAL)
    assert np.from_dlpack(watched.host).flags.writeable  # nothing has to be noticed there


def test_senseless_arguments_of_dlpack_are_named(discrete):
    array = grid(discrete).device
    for name, value in (("copy", "yes"), ("copy", 1), ("dl_device", 5), ("dl_device", (1,)), ("dl_device", ("cpu", 0))):
        with pytest.raises(unimem.InvalidArgument) as caught:
            array.__dlpack__(**{name: value})
        assert (caught.value.argument, caught.value.value) == (name, repr(value))


@pytest.mark.parametrize("copy", [None, True, False])
def test_dlpack_round_trips_are_exact(discrete, copy):
    source = np.arange(20.0).reshape(4, 5)
    buffer = UnifiedBuffer.from_dlpack(source, copy=copy, device=discrete)
    buffer.sync_to_device()
    buffer.device.copy_from(source + 1)
    buffer.mark_device_dirty()
    back = np.from_dlpack(buffer, copy=copy)
    assert np.shares_memory(back, source) == (copy is not True)
    expected = np.arange(20.0).reshape(4, 5) + 1
    np.testing.assert_array_equal(back, expected)
    del buffer
    gc.collect()
    np.testing.assert_array_equal(back, expected)
    assert copy is True or (source == expected).all()


def test_a_copy_that_is_forbidden_is_not_made(opencl):
    array = grid(opencl).device
    with pytest.raises((BufferError, ValueError, RuntimeError)):
        np.from_dlpack(array, device="cpu", copy=False)


def test_memory_of_a_buffer_is_not_wrapped_twice(sim):
    buffer = grid(sim)
    for theirs in (buffer, buffer.slice(2, 3), buffer.device, buffer.host, buffer.host[1:]):
        with pytest.raises(unimem.InvalidArgument, match="memory that no buffer looks after"):
            UnifiedBuffer.from_dlpack(theirs)
    copied = UnifiedBuffer.from_dlpack(buffer.device, copy=True)
    copied.host[...] = 0
    np.testing.assert_array_equal(buffer.to_numpy().ravel(), np.arange(20))


@pytest.mark.parametrize("dtype", ["g", "G", ">f4", "M8[s]", "S3"])
def test_dlpack_refuses_unknown_dtypes_by_name(sim, dtype):
    array = UnifiedBuffer(3, dtype, device=sim).zeros().device
    with pytest.raises(unimem.UnsupportedOperation, match="handing over elements of dtype"):
        np.from_dlpack(array)


@pytest.mark.parametrize("place", [3, "x", (1,), (1, 2, 3), (1, "a"), None])
def test_a_place_that_dlpack_cannot_say_is_refused(place):
    class Liar:
        def __dlpack_device__(self):
            return place

        def __dlpack__(self, **arguments):
            raise AssertionError("never asked")

    with pytest.raises(unimem.InvalidArgument, match="'Liar': must be at a place"):
        UnifiedBuffer.from_dlpack(Liar())


class _Place(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int), ("number", ctypes.c_int)]


class _Type(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("place", _Place), ("dimensions", ctypes.c_int), ("type", _Type), ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)), ("offset", ctypes.c_uint64), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p),
    ]  # fmt: skip


class Handed:
    """What hands over a capsule made by hand, which lives as long as this."""

    def __init__(self, data=None, count=8, kind=1, code=0, bits=32, lanes=1):
        self.shape, self.kind = (ctypes.c_int64 * 1)(count), kind
        self.tensor = _Tensor(data, _Place(kind, 0), 1, _Type(code, bits, lanes), self.shape)

    def __dlpack_device__(self):
        return self.kind, 0

    def __dlpack__(self, **how):
        made = ctypes.pythonapi.PyCapsule_New
        made.restype, made.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return made(ctypes.addressof(self.tensor), b"dltensor", None)


@pytest.mark.parametrize("copy", [None, True])
def test_elements_without_memory_are_refused(copy):
    with pytest.raises(unimem.InvalidArgument, match="8 elements without memory.*address of its memory"):
        UnifiedBuffer.from_dlpack(Handed(), copy=copy)
    assert UnifiedBuffer.from_dlpack(Handed(count=0), copy=copy).size == 0
    source = np.arange(8, dtype=np.int32)
    np.testing.assert_array_equal(UnifiedBuffer.from_dlpack(Handed(source.ctypes.data), copy=True).to_numpy(), source)


@pytest.mark.parametrize("copy", [None, True])
@pytest.mark.parametrize("wrong", [{"bits": 7}, {"lanes": 4}, {"code": 77}])
def test_types_unknown_to_numpy_are_refused(copy, wrong):
    source = np.arange(8, dtype=np.int32)
    with pytest.raises(unimem.InvalidArgument, match="invalid source 'Handed'.*Unsupported"):
        UnifiedBuffer.from_dlpack(Handed(source.ctypes.data, **wrong), copy=copy)


def test_a_device_unknown_to_numpy_is_refused():
    with pytest.raises(unimem.InvalidArgument, match="invalid source 'Handed'.*Unsupported device"):
        UnifiedBuffer.from_dlpack(Handed(1 << 20, kind=99), copy=True)


@pytest.mark.parametrize("kind", [RuntimeError, BufferError])  # NumPy's own, before 2.5 and since
def test_what_is_refused_on_its_way_is_an_error_of_the_librarys(kind):
    class Refuses:
        def __dlpack_device__(self):
            return (1, 0)

        def __dlpack__(self, **_):
            raise kind("not today")

    with pytest.raises(unimem.InvalidArgument, match=r"invalid source 'Refuses'.*not today"):
        UnifiedBuffer.from_dlpack(Refuses())
