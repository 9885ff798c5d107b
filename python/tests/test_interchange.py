"""Other libraries' ways in and out, memory by memory."""

import asyncio
import ctypes
import gc
import threading

import numpy as np
import pytest

import unimem
from unimem import BufferState, MemoryManager, UnifiedBuffer

S = BufferState


def data(device, dtype=np.float32):
    buffer = UnifiedBuffer((4, 5), dtype, device=device)
    buffer.host[...] = np.arange(20).reshape(4, 5)
    return buffer


def test_numpy_sees_the_host_without_a_copy_and_cannot_write_unnoticed(discrete):
    buffer = data(discrete)
    view = np.asarray(buffer)
    assert np.shares_memory(view, buffer.host) and not view.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1
    assert np.array_equal(np.add(buffer, 1), buffer.host + 1)
    copied = np.array(buffer)
    assert not np.shares_memory(copied, buffer.host)
    copied[0] = 9
    assert np.asarray(buffer, dtype=np.float64).dtype == np.float64
    assert not np.shares_memory(np.array(buffer, copy=True), buffer.host)
    with pytest.raises(ValueError, match="copy"):
        np.array(buffer, dtype=np.int8, copy=False)
    assert buffer.__array_interface__["data"] == (buffer.host.ctypes.data, True)


def test_the_buffer_protocol_reads_and_never_writes(discrete):
    buffer = data(discrete, np.int16)
    view = memoryview(buffer)
    assert view.readonly and view.shape == (4, 5) and view.format == "h" and view.nbytes == 40
    assert bytes(buffer) == np.arange(20, dtype=np.int16).tobytes() and view[3, 4] == 19
    with open("/dev/zero", "rb") as zeros, pytest.raises((BufferError, TypeError)):
        zeros.readinto(buffer)
    assert buffer.to_numpy()[0, 1] == 1
    del buffer
    assert view.tolist()[0] == [0, 1, 2, 3, 4]
    strict = UnifiedBuffer(3, device=discrete, strict=True)
    with pytest.raises(BufferError, match="allocated"):
        memoryview(strict)
    assert hash(bytes(UnifiedBuffer(0, device=discrete))) == hash(b"")


def test_numpy_sees_what_the_device_wrote(discrete):
    buffer = data(discrete)
    buffer.sync_to_device()
    buffer.device.copy_from(np.full((4, 5), 7))
    buffer.mark_device_dirty()
    assert (np.asarray(buffer) == 7).all()


def test_dlpack_gives_the_hosts_memory(discrete):
    buffer = data(discrete)
    assert buffer.__dlpack_device__() == (1, 0)
    view = np.from_dlpack(buffer)
    assert np.shares_memory(view, buffer.host)
    np.testing.assert_array_equal(view, np.arange(20).reshape(4, 5))
    copied = np.from_dlpack(buffer, copy=True)
    assert not np.shares_memory(copied, buffer.host)
    del buffer
    np.testing.assert_array_equal(view, np.arange(20).reshape(4, 5))


def test_dlpack_gives_a_simulated_devices_memory(sim):
    buffer = data(sim)
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
    array = data(opencl).device
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


def test_memory_of_another_device_is_not_wrapped_but_copied_where_it_is_handed_over(opencl, sim):
    theirs = data(opencl).device
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
    buffer = data(sim)
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
    buffer = data(discrete)
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


def test_dlpack_has_the_version_and_the_flags_that_are_asked_for(discrete):
    buffer = data(discrete)
    for one in (buffer, buffer.device):
        kind, number = one.__dlpack_device__()
        for version, major in ((None, 0), ((0, 8), 0), ((1, 0), 1), ((1, 9), 1)):
            capsule = one.__dlpack__(max_version=version)
            given, flags, tensor = inside(capsule)
            assert (given, flags, tensor.kind, tensor.number, tensor.ndim) == (major, 0, kind, number, 2)
            assert (tensor.code, tensor.bits, tensor.lanes, tensor.shape[0], tensor.shape[1]) == (2, 32, 1, 4, 5)
            copied = one.__dlpack__(max_version=version, copy=True)
            given, flags, other = inside(copied)
            assert (given, flags, other.kind) == (major, COPIED if major else 0, 1) and other.data != tensor.data
            shared = one.__dlpack__(max_version=version, copy=False)
            assert inside(shared)[2].data == tensor.data
    with pytest.raises(BufferError):
        buffer.__dlpack__(dl_device=(2, 0))
    assert buffer.state is S.SYNCHRONIZED and buffer.statistics.host_to_device_copies == 1


def test_dlpack_of_what_may_not_be_written_says_so(discrete):
    buffer = data(discrete)
    view = np.asarray(buffer)
    capsule = view.__dlpack__(max_version=(1, 0))
    assert inside(capsule)[1] == READ_ONLY
    with pytest.raises(BufferError):  # a capsule without a version cannot say it
        view.__dlpack__()
    assert not np.from_dlpack(view).flags.writeable
    with pytest.raises(unimem.InvalidArgument, match="read-only"):
        UnifiedBuffer.from_dlpack(view)
    assert np.from_dlpack(buffer).flags.writeable


def test_arguments_of_dlpack_that_make_no_sense_are_named(discrete):
    array = data(discrete).device
    for name, value in (("copy", "yes"), ("copy", 1), ("dl_device", 5), ("dl_device", (1,)), ("dl_device", ("cpu", 0))):
        with pytest.raises(unimem.InvalidArgument) as caught:
            array.__dlpack__(**{name: value})
        assert (caught.value.argument, caught.value.value) == (name, repr(value))


@pytest.mark.parametrize("copy", [None, True, False])
def test_what_goes_round_by_dlpack_comes_back_the_same(discrete, copy):
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
    array = data(opencl).device
    with pytest.raises((BufferError, ValueError, RuntimeError)):
        np.from_dlpack(array, device="cpu", copy=False)


def test_interfaces_of_cuda_are_not_there_off_cuda(discrete):
    buffer = data(discrete)
    assert not hasattr(buffer, "__cuda_array_interface__")
    assert not hasattr(buffer.device, "__cuda_array_interface__")


@pytest.fixture
def held_up(sim):
    """A buffer that a kernel writes sevens to as soon as the gate is opened, and the gate."""
    gate = threading.Event()
    buffer = UnifiedBuffer(1000, device=sim)

    def sevens(x):
        assert gate.wait(60)
        x[:] = 7

    unimem.launch(unimem.Kernel("sevens").host(sevens), 1, unimem.write(buffer))
    yield buffer, gate
    gate.set()


def test_awaitable_forms_leave_the_loop_alone(held_up):
    buffer, gate = held_up

    async def main():
        waiting = asyncio.ensure_future(buffer.ensure_on_host())
        for _ in range(100):
            await asyncio.sleep(0.001)
        assert not waiting.done()  # and yet we are here
        gate.set()
        assert (await waiting == 7).all() and buffer.state is S.SYNCHRONIZED
        await buffer.copy_from_async(np.full(1000, 2))
        assert buffer.state is S.HOST_DIRTY
        array = await buffer.ensure_on_device()
        assert (array.to_numpy() == 2).all() and buffer.state is S.SYNCHRONIZED
        await buffer.sync_to_device_async()
        await buffer.sync_to_host_async()
        await buffer.synchronize_async()
        assert (await buffer.to_numpy_async() == 2).all()
        with pytest.raises(unimem.SizeMismatch):
            await buffer.copy_from_async([1])

    asyncio.run(main())


def test_a_cancelled_wait_leaves_the_buffer_right(held_up):
    buffer, gate = held_up

    async def main():
        task = asyncio.ensure_future(buffer.ensure_on_host())
        await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.set()

    asyncio.run(main())
    assert (buffer.to_numpy() == 7).all() and buffer.state is S.SYNCHRONIZED


def test_copies_between_buffers_take_the_nearest_way(sim, other_sim):
    source, near, far = data(sim), UnifiedBuffer((4, 5), device=sim), UnifiedBuffer(20, device=other_sim)
    source.sync_to_device()
    source.device.copy_from(np.full((4, 5), 6))
    source.mark_device_dirty()
    unimem.copy(source, near)
    unimem.copy(near, far.reshape(4, 5))
    assert source.statistics.device_to_host_bytes == near.statistics.device_to_host_bytes == 0
    assert (near.to_numpy() == 6).all() and (far.to_numpy() == 6).all()
    near.copy_from(source)
    with pytest.raises(unimem.SizeMismatch):
        unimem.copy(source, UnifiedBuffer(19, device=sim))
    with pytest.raises(unimem.InvalidArgument, match="int32"):
        unimem.copy(source, UnifiedBuffer(20, np.int32, device=sim))
    whole = UnifiedBuffer(20, device=sim)
    whole.copy_from(np.arange(20))
    unimem.copy(whole.slice(0, 10), whole.slice(5, 10))
    np.testing.assert_array_equal(whole.to_numpy(), [*range(5), *range(10), *range(15, 20)])


def test_managers_have_limits_and_give_back(sim):
    manager = MemoryManager()
    manager.set_limit(sim, "1MiB")
    assert manager.total_memory(sim) == 1 << 20 == manager.available_memory(sim)
    buffer = manager.allocate(1000, np.float64, location=unimem.Location.DEVICE, device=sim, name="mine")
    assert buffer.state is S.UNINITIALIZED or buffer.is_allocated
    assert manager.available_memory(sim) <= (1 << 20) - 8000
    with pytest.raises(unimem.OutOfMemory) as caught:
        manager.allocate(1 << 18, np.float64, location=unimem.Location.DEVICE, device=sim)
    assert caught.value.limit == 1 << 20 and caught.value.requested == 2 << 20
    filled = manager.allocate(np.arange(10), device=sim)
    assert filled.dtype == np.arange(10).dtype and (filled.to_numpy() == np.arange(10)).all()
    assert manager.statistics.active_allocations >= 2
    with pytest.raises(unimem.InvalidArgument):
        manager.set_limit(sim, 100)
    del buffer, filled
    assert manager.statistics.active_bytes == 0
    with manager:
        pass
    assert manager.statistics.reserved_bytes == 0
    assert {one["device"] for one in manager.report()["pools"]} == {"cpu", sim.id}
    assert "MemoryManager" in manager._repr_html_() and "in use" in repr(manager)


def test_memory_info_falls_with_allocations_and_rises_again(sim):
    accelerator = unimem.get_accelerator(sim)
    free_before, total = accelerator.get_memory_info()
    buffer = UnifiedBuffer(1_000_000, device=sim)
    _ = buffer.device
    free_after, _ = accelerator.get_memory_info()
    assert total == 256 << 20 and free_before - free_after >= 4_000_000
    del _
    buffer.free()
    assert accelerator.get_memory_info().free == free_before
    cpu = unimem.get_accelerator("cpu").get_memory_info()
    assert 0 < cpu.free <= cpu.total
    assert unimem.get_accelerator().device == unimem.default_device()


def test_devices_are_listed_with_their_properties(cpu, sim):
    all_devices = unimem.devices()
    assert all_devices[0] == cpu and sim in all_devices and len({one.id for one in all_devices}) == len(all_devices)
    info = unimem.device_info(sim)
    assert info.total_bytes == 256 << 20 and info.runs_host_form and not info.compiles_source
    with pytest.raises(AttributeError):
        info.total_bytes = 3  # type: ignore[misc]
    assert cpu.shares_storage_with_host and not sim.shares_storage_with_host
    assert all(isinstance(reason, str) and reason for _, reason in unimem.unavailable_backends())
    buffer = data(sim)
    before = unimem.transfers(sim)
    buffer.sync_to_device()
    assert unimem.transfers(sim).host_to_device_bytes - before.host_to_device_bytes == 80
    buffer.on(sim)
    assert [(one.source, one.target, one.bytes) for one in buffer.migrations] == [("host", sim.id, 80)]


def test_pinned_memory_tells_the_truth(sim):
    buffer = UnifiedBuffer(1000, device=sim, pinned=True)
    buffer.host[:] = 3
    with open("/proc/self/status", encoding="ascii") as status:
        locked = next(int(line.split()[1]) for line in status if line.startswith("VmLck"))
    assert buffer.is_pinned == (locked > 0)
    assert (buffer.device.to_numpy() == 3).all()
    plain = UnifiedBuffer(1000, device=sim)
    plain.fill(1)
    assert not plain.is_pinned


def test_looks_are_for_people(sim):
    buffer = UnifiedBuffer((2, 3), np.int16, device=sim, name="looked at")
    assert repr(buffer) == "UnifiedBuffer(shape=(2, 3), dtype=int16, state=uninitialized, name='looked at')"
    assert "uninitialized" in buffer._repr_html_() and "12 B" in buffer._repr_html_()
    assert repr(buffer.slice(0, 2)).startswith("BufferSlice(shape=(2,), dtype=int16")
