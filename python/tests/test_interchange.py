"""NumPy's ways in and out, awaitable forms, copies between buffers, managers and devices as Python has them."""

import asyncio
import ctypes
import threading

import numpy as np
import pytest
from sample_buffers import grid

import unimem
from unimem import BufferState, MemoryManager, UnifiedBuffer

S = BufferState


def test_numpy_sees_the_host_without_a_copy(discrete):
    buffer = grid(discrete)
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


def test_the_buffer_protocol_reads(discrete):
    buffer = grid(discrete, np.int16)
    view = memoryview(buffer)
    assert view.readonly and view.shape == (4, 5) and view.format == "h" and view.nbytes == 40
    assert bytes(buffer) == np.arange(20, dtype=np.int16).tobytes() and view[3, 4] == 19
    del buffer
    assert view.tolist()[0] == [0, 1, 2, 3, 4]
    strict = UnifiedBuffer(3, device=discrete, strict=True)
    with pytest.raises(BufferError, match="allocated"):
        memoryview(strict)
    assert hash(bytes(UnifiedBuffer(0, device=discrete))) == hash(b"")


def test_numpy_sees_what_the_device_wrote(discrete):
    buffer = grid(discrete)
    buffer.sync_to_device()
    buffer.device.copy_from(np.full((4, 5), 7))
    buffer.mark_device_dirty()
    assert (np.asarray(buffer) == 7).all()


def test_interfaces_of_cuda_are_not_there_off_cuda(discrete):
    buffer = grid(discrete)
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
    source, near, far = grid(sim), UnifiedBuffer((4, 5), device=sim), UnifiedBuffer(20, device=other_sim)
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
    assert info == unimem.device_info(sim.id) and unimem.transfers(sim) == unimem.transfers(sim.id)
    for wrong in (None, 3):
        with pytest.raises(unimem.InvalidArgument, match="a Device, or the id of one"):
            unimem.device_info(wrong)  # type: ignore[arg-type]
    assert info.total_bytes == 256 << 20 and info.runs_host_form and not info.compiles_source
    with pytest.raises(AttributeError):
        info.total_bytes = 3  # type: ignore[misc]
    assert cpu.shares_storage_with_host and not sim.shares_storage_with_host
    assert all(isinstance(reason, str) and reason for _, reason in unimem.unavailable_backends())
    buffer = grid(sim)
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
