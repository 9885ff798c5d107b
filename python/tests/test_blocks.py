"""What ends with a ``with`` block: mappings for code that nobody can notice, buffers, devices; and how everything looks in a notebook."""

import asyncio
import gc
import threading

import numpy as np
import pytest

import unimem
from unimem import BufferState as S
from unimem import MapMode, UnifiedBuffer

# Mappings


def test_a_mapping_marks_at_its_end(discrete, moved):
    buffer = UnifiedBuffer((4, 250), np.int32, device=discrete)
    buffer.fill(1)
    buffer.sync_to_device()
    count = moved(buffer)
    with buffer.map(MapMode.READ) as array:
        assert type(array) is np.ndarray and array.shape == (4, 250) and (array == 1).all()
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 2
    assert (buffer.state, count.since()) == (S.SYNCHRONIZED, (0, 0, 0, 0))
    with buffer.map() as array:
        # As C code does: nobody is told.
        np.frombuffer(array, np.int32)  # by the buffer protocol
        np.ctypeslib.as_array(array.ctypes.data_as(np.ctypeslib.ctypes.POINTER(np.ctypeslib.ctypes.c_int32)), (1000,))[7] = 5
        assert buffer.state is S.SYNCHRONIZED
    assert buffer.state is S.HOST_DIRTY
    buffer.sync_to_device()
    assert count.since() == (1, 4000, 0, 0)
    on_device = buffer.device.to_numpy()
    assert on_device[0, 7] == 5 and on_device.sum() == 1004


def test_a_mapping_brings_in_device_writes(discrete, moved):
    buffer = UnifiedBuffer(1000, np.float64, device=discrete)
    buffer.fill(1)
    buffer.sync_to_device()
    buffer.device.copy_from(np.full(1000, 3.0))
    buffer.mark_device_dirty()
    count = moved(buffer)
    with buffer.map(MapMode.WRITE) as array:
        assert (array == 3).all()
        array += 1
    assert count.since() == (0, 0, 1, 8000)
    buffer.sync_to_device()
    buffer.mark_device_dirty()
    count = moved(buffer)
    with buffer.map(MapMode.DISCARD) as array:
        array[:] = 9
    assert count.since() == (0, 0, 0, 0) and buffer.state is S.HOST_DIRTY
    np.testing.assert_array_equal(buffer.device.to_numpy(), np.full(1000, 9.0))
    assert count.since() == (1, 8000, 0, 0)


def test_a_dropped_mapping_conflicts_at_the_next_access(sim):
    buffer = UnifiedBuffer(100, np.float32, device=sim)
    buffer.fill(1)
    buffer.sync_to_device()
    kernel = unimem.Kernel("three").host(lambda x: x.fill(3))
    mapping = buffer.slice(0, 40).map()
    mapping.array[:] = 9
    unimem.launch(kernel, 50, unimem.write(buffer.slice(20, 50))).wait()
    del mapping
    with pytest.raises(unimem.CoherenceConflict):
        buffer.to_numpy()
    np.testing.assert_array_equal(buffer.to_numpy(), np.repeat(np.float32([9, 3, 1]), [20, 50, 30]))


def test_a_mapped_part_marks_that_part_alone(discrete, moved):
    buffer = UnifiedBuffer(1 << 16, np.uint8, device=discrete)
    buffer.fill(1)
    buffer.sync_to_device()
    count = moved(buffer)
    with buffer.slice(100, 50).map(MapMode.DISCARD) as part:
        part[:] = 2
    buffer.sync_to_device()
    assert count.since() == (1, 50, 0, 0)
    np.testing.assert_array_equal(np.flatnonzero(buffer.device.to_numpy() == 2), np.arange(100, 150))


def test_mappings_end_once_however_they_end(sim):
    buffer = UnifiedBuffer(10, np.int32, device=sim)
    buffer.fill(0)
    buffer.sync_to_device()
    mapping = buffer.map()
    mapping.array[:] = 1
    mapping.unmap()
    assert buffer.state is S.HOST_DIRTY
    buffer.sync_to_device()
    mapping.unmap()
    assert buffer.state is S.SYNCHRONIZED
    with pytest.raises(ValueError, match="read-only"):
        mapping.array[0] = 2
    # An exception ends it as well: what was written until then was written.
    with pytest.raises(ZeroDivisionError), buffer.map() as array:
        array[3] = 1 // 0
    assert buffer.state is S.HOST_DIRTY
    buffer.sync_to_device()
    dropped = buffer.map()
    dropped.array[5] = 7
    del dropped
    gc.collect()
    assert buffer.state is S.HOST_DIRTY and buffer.device.to_numpy()[5] == 7
    with pytest.raises(unimem.InvalidArgument, match="mode"):
        buffer.map("write")
    with UnifiedBuffer(0, device=sim).map() as nothing:
        assert nothing.shape == (0,)


def test_a_mapped_array_keeps_its_memory(sim):
    buffer = UnifiedBuffer(1000, np.int64, device=sim)
    mapping = buffer.map(MapMode.DISCARD)
    mapping.array[:] = 5
    with pytest.raises(unimem.InvalidArgument):
        buffer.release_host()
    buffer.free()
    array = mapping.array
    others = [UnifiedBuffer(1000, np.int64, device=sim).fill(i) for i in range(8)]
    assert (array == 5).all()
    mapping.unmap()
    assert buffer.state is S.UNINITIALIZED and (array == 5).all()
    del others


def test_device_writes_beside_a_mapped_part_stay(sim):
    buffer = UnifiedBuffer(1000, np.uint8, device=sim)
    buffer.fill(1)
    buffer.sync_to_device()
    mapping = buffer.slice(0, 500).map()
    mapping.array[:] = 2
    buffer.mark_device_dirty()
    with pytest.raises(unimem.CoherenceConflict):
        mapping.unmap()


# Buffers


def test_a_with_block_frees_its_buffer(discrete):
    manager = unimem.MemoryManager()
    with UnifiedBuffer(1000, device=discrete, manager=manager) as buffer:
        buffer.fill(2)
        buffer.sync_to_device()
        assert manager.usage().total.live_bytes == 8000
    assert not buffer.is_allocated and buffer.state is S.UNINITIALIZED
    discrete.synchronize()
    assert manager.usage().total.live_bytes == 0
    with pytest.raises(KeyError), buffer:
        buffer.fill(1)
        raise KeyError
    assert not buffer.is_allocated


def test_a_pooled_buffer_may_go_back_early(sim):
    pool = unimem.MemoryPool(device=sim)
    with pool.acquire(100) as buffer:
        buffer.fill(1)
        pool.release(buffer)
    assert pool.stats().pooled_buffers == 1
    with pytest.raises(ZeroDivisionError), pool.lend(100) as lent:
        assert lent is buffer
        1 // 0  # noqa: B018
    assert pool.stats().active_buffers == 0 and pool.stats().hits == 1


# Devices


def test_a_devices_block_decides_where_buffers_are(sim, other_sim):
    outside = unimem.default_device()
    with sim as entered:
        assert entered is sim and unimem.default_device() == sim
        buffer = UnifiedBuffer(10)
        wrapped = UnifiedBuffer.from_array(np.zeros(10))
        placed = unimem.MemoryManager().allocate(10)
        pool = unimem.MemoryPool()
        with other_sim:
            inner = UnifiedBuffer(10)
            assert unimem.get_accelerator().device == other_sim
        assert unimem.default_device() == sim
        named = UnifiedBuffer(10, device=other_sim)
    assert unimem.default_device() == outside
    lent = pool.acquire(10)
    assert {one.default_device for one in (buffer, wrapped, placed, lent)} == {sim}
    assert {inner.default_device, named.default_device} == {other_sim}
    # A buffer stays its device's, whatever block it is used in.
    with other_sim:
        buffer.fill(1)
        buffer.sync_to_device()
    assert buffer.valid_on(sim) and not buffer.valid_on(other_sim)
    with pytest.raises(ZeroDivisionError), sim:
        1 // 0  # noqa: B018
    assert unimem.default_device() == outside


def test_a_devices_block_is_per_thread_and_task(sim, other_sim):
    outside = unimem.default_device()
    seen = []
    with sim:
        thread = threading.Thread(target=lambda: seen.append(unimem.default_device()))
        thread.start()
        thread.join()
    assert seen == [outside]

    async def within(device, turns):
        with device:
            for _ in range(turns):
                await asyncio.sleep(0)
                assert UnifiedBuffer(4).default_device == device
            # Work on a thread of asyncio's belongs to its task.
            assert await asyncio.to_thread(unimem.default_device) == device

    async def both():
        await asyncio.gather(within(sim, 5), within(other_sim, 3))

    asyncio.run(both())
    assert unimem.default_device() == outside


def test_streams_run_on_the_device_of_their_block(tmp_path, sim):
    path = tmp_path / "data"
    path.write_bytes(bytes(1000))
    with sim:
        done = unimem.stream_file(path, unimem.histogram(), progress=False)
    assert done.device == sim.id and done.result.counts[0] == 1000 and done.host_to_device_bytes == 1000


def test_launches_without_buffers_use_their_blocks_device(sim, request):
    gate, seen = threading.Event(), []
    request.addfinalizer(gate.set)

    def named(name):
        return unimem.Kernel(name).host(lambda: seen.append(name))

    held = unimem.launch(unimem.Kernel("held").host(lambda: gate.wait(60)), 1, device=sim)
    with sim:
        within = unimem.launch(named("within"), 1)
    unimem.launch(named("on the cpu"), 1, device="cpu").wait()
    assert not within.ready and seen == ["on the cpu"]  # it waits for its turn behind what is held
    gate.set()
    within.wait()
    assert held.ready and seen == ["on the cpu", "within"]
    only_source = unimem.Kernel("only source").source("UNIMEM_KERNEL only_source(int a) {}")
    with sim, pytest.raises(unimem.KernelError, match=sim.id):
        unimem.launch(only_source, 1, 2)


# Looks


def test_everything_has_a_table_for_notebooks(tmp_path, sim):
    buffer = UnifiedBuffer(10, [("<x>", "f4")], device=sim)
    path = tmp_path / "data"
    path.write_bytes(bytes(100))
    unimem.registry().publish(buffer, name="<published>")
    pool = unimem.MemoryPool(device=sim)
    manager = unimem.MemoryManager()
    shown = [
        buffer, buffer.slice(2, 3), buffer.statistics, sim, unimem.device_info(sim), unimem.transfers(sim), unimem.get_accelerator(sim), pool,
        pool.limits, manager, manager.statistics, manager.usage(), manager.leak_report(), manager.pool(sim), unimem.registry(),
        unimem.registry().list()[0], unimem.stream_file(path, unimem.histogram(), device=sim, progress=False),
    ]  # fmt: skip
    for one in shown:
        html = one._repr_html_()
        assert html.startswith("<table>") and html.endswith("</table>") and html.count("<table>") == html.count("</table>")
        assert "<x>" not in html and "<published>" not in html
    assert "&lt;published&gt;" in unimem.registry()._repr_html_()
    assert sim.id in sim._repr_html_() and "256 MiB" in sim._repr_html_()


def test_transfers_have_differences(sim):
    before = unimem.transfers(sim)
    buffer = UnifiedBuffer(1000, device=sim)
    buffer.host[:] = 1
    buffer.sync_to_device()
    moved = unimem.transfers(sim).since(before)
    assert (moved.host_to_device_copies, moved.host_to_device_bytes, moved.device_to_host_copies) == (1, 4000, 0)
