"""The rows of tests/features.md about where a buffer is current and what travels (1 to 12, 27 to 30) through Python, on each kind of device with
memory of its own: bytes on both sides, and transfers by the buffer's count, which the devices' own must agree with. A test's name begins
with its row."""

import asyncio
import threading

import numpy as np
import pytest
from sample_buffers import ADD, COPY, DATA, check_both, made, synced

import unimem
from unimem import BufferState, Tracking, UnifiedBuffer, launch, read, readwrite, write

S = BufferState


def test_row_01_construction_allocates_nothing_and_checks_sizes(discrete, counted):
    buffer = UnifiedBuffer((3, 4, 5), np.int16, device=discrete)
    count = counted(buffer)
    assert (buffer.state, buffer.is_allocated, buffer.shape, buffer.size, buffer.nbytes, buffer.ndim) == (S.UNINITIALIZED, False, (3, 4, 5), 60, 120, 3)
    for bad in (-1, (2, -3), 2**63, (2**40, 2**40)):
        with pytest.raises(unimem.InvalidArgument, match="shape"):
            UnifiedBuffer(bad, device=discrete)
    assert UnifiedBuffer((), device=discrete).size == 1 and UnifiedBuffer((2**40, 2**40, 0), device=discrete).nbytes == 0
    buffer.host[...] = np.arange(60).reshape(3, 4, 5)
    buffer.sync_to_device()
    assert count.since() == (1, 120, 0, 0)
    check_both(buffer, np.arange(60).reshape(3, 4, 5))


@pytest.mark.parametrize("dtype", ["f4", "f8", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "c8", "c16", "?", "f2"])
def test_row_02_element_types_travel_both_ways(discrete, counted, dtype):
    data = (np.arange(1000) % 100).astype(dtype)
    buffer = made(discrete, data)
    count = counted(buffer)
    buffer.sync_to_device()
    buffer.mark_device_dirty()
    assert buffer.to_numpy().tobytes() == data.tobytes()
    assert count.since() == (1, data.nbytes, 1, data.nbytes)
    check_both(buffer, data)


def test_row_03_the_states_are_all_reached(discrete, counted):
    buffer = UnifiedBuffer(1000, device=discrete)
    count, seen = counted(buffer), [buffer.state]
    assert buffer.host.shape == (1000,)
    seen.append(buffer.state)
    buffer.host[:] = DATA
    seen.append(buffer.state)
    buffer.sync_to_device()
    seen.append(buffer.state)
    launch(ADD, 1000, readwrite(buffer), 1.0)
    seen.append(buffer.state)
    kept = buffer.host
    launch(ADD, 10, readwrite(buffer, 0, 10), 1.0)
    kept[500:] = 7
    seen.append(buffer.state)
    del kept
    buffer.synchronize()
    buffer.release_host()
    seen.append(buffer.state)
    assert [one.value for one in seen] == ["uninitialized", "host_only", "host_dirty", "synchronized", "device_dirty", "mixed", "device_only"]
    assert count.since() == (2, 4000 + 2000, 2, 4000 + 40)
    expected = DATA + 1
    expected[:10] += 1
    expected[500:] = 7
    check_both(buffer, expected)


def test_row_04_first_access_allocates_unless_strict(discrete, counted):
    for first, state in ((lambda b: b.host, S.HOST_ONLY), (lambda b: b.device, S.DEVICE_ONLY)):
        buffer = UnifiedBuffer(1000, device=discrete)
        count = counted(buffer)
        first(buffer)
        assert (buffer.state, buffer.is_allocated, count.since()) == (state, True, (0, 0, 0, 0))
        strict = UnifiedBuffer(1000, device=discrete, strict=True)
        with pytest.raises(unimem.BufferNotAllocated):
            first(strict)
        strict.allocate()
        first(strict)
        strict.host[:] = DATA
        check_both(strict, DATA)


def test_row_05_the_four_line_probe_reads_five(discrete, counted):
    buffer = UnifiedBuffer(1000, device=discrete).allocate()
    count = counted(buffer)
    buffer.host[:] = 5
    assert (buffer.state, count.since()) == (S.HOST_DIRTY, (0, 0, 0, 0))
    array = buffer.device
    assert count.since() == (1, 4000, 0, 0)
    assert (array.to_numpy() == 5).all()


def test_row_06_reading_the_host_marks_nothing(discrete, counted):
    buffer = synced(discrete)
    launch(ADD, 1000, readwrite(buffer), 1.0)
    count = counted(buffer)
    assert buffer.host[3] == 4 and (buffer.state, count.since()) == (S.SYNCHRONIZED, (0, 0, 1, 4000))
    for _ in range(10):
        assert float(buffer.host.sum()) == float(np.asarray(buffer).sum()) == 500500
    assert (buffer.state, count.since()) == (S.SYNCHRONIZED, (0, 0, 0, 0))
    check_both(buffer, DATA + 1)


def test_row_07_the_device_copy_is_lazy(discrete, counted):
    buffer = made(discrete)
    count = counted(buffer)
    _ = buffer.device
    assert (buffer.state, count.since()) == (S.SYNCHRONIZED, (1, 4000, 0, 0))
    _ = buffer.device
    buffer.sync_to_device()
    assert count.since() == (0, 0, 0, 0)
    check_both(buffer, DATA)


def test_row_07_out_of_memory_loses_nothing(discrete, counted):
    manager = unimem.MemoryManager()
    manager.set_limit(discrete, "4KiB")
    buffer = made(discrete, np.arange(100_000), manager=manager)
    count = counted(buffer)
    with pytest.raises(unimem.OutOfMemory) as caught:
        _ = buffer.device
    assert (caught.value.requested, caught.value.limit) == (800_000, 4096)
    assert (buffer.state, count.since()) == (S.HOST_DIRTY, (0, 0, 0, 0))
    manager.set_limit(discrete, "8MiB")
    check_both(buffer, np.arange(100_000))
    assert buffer.statistics.host_to_device_copies == 1


def test_row_08_device_writes_are_marked(discrete, counted):
    buffer = synced(discrete)
    count = counted(buffer)
    buffer.device.copy_from(DATA * 2)
    buffer.mark_device_dirty()
    assert buffer.state is S.DEVICE_DIRTY
    assert (buffer.to_numpy() == DATA * 2).all()
    launch(ADD, 1000, readwrite(buffer), 1.0)
    assert buffer.state is S.DEVICE_DIRTY
    np.testing.assert_array_equal(buffer.to_numpy(), DATA * 2 + 1)
    assert count.since_by_buffer() == (0, 0, 2, 8000)
    check_both(buffer, DATA * 2 + 1)


def test_row_09_a_second_device_has_a_copy(discrete, other_sim, counted):
    buffer = synced(discrete)
    count = counted(buffer, other_sim)
    launch(ADD, 1000, readwrite(buffer), 1.0, device=other_sim).wait()
    assert buffer.valid_on(other_sim) and not buffer.valid_on(discrete)
    assert (buffer.state, count.since()) == (S.DEVICE_DIRTY, (1, 4000, 0, 0))  # there
    assert buffer.host[1] == 2
    assert (buffer.state, count.since()) == (S.SYNCHRONIZED, (0, 0, 1, 4000))  # back
    _ = buffer.on(discrete)
    assert count.since() == (1, 4000, 0, 0)  # and to the first
    _ = buffer.on(other_sim)
    assert buffer.valid_on(other_sim) and buffer.valid_on(discrete) and count.since() == (0, 0, 0, 0)
    check_both(buffer, DATA + 1)
    check_both(buffer, DATA + 1, other_sim)
    assert count.since_by_buffer() == (0, 0, 0, 0)
    with pytest.raises(unimem.UnsupportedOperation, match="Metal"):
        _ = buffer.metal
    assert count.since() == (0, 0, 0, 0)


@pytest.mark.parametrize("state", [S.HOST_ONLY, S.DEVICE_ONLY, S.SYNCHRONIZED, S.HOST_DIRTY, S.DEVICE_DIRTY, S.MIXED])
@pytest.mark.parametrize("side", ["host", "device"])
def test_row_10_marks_are_defined_in_every_state(discrete, counted, state, side):
    buffer = synced(discrete)
    if state is S.HOST_ONLY:
        buffer.release_device()
    elif state is S.DEVICE_ONLY:
        buffer.release_host()
    elif state is S.HOST_DIRTY:
        buffer.host[:] = DATA * 2
    elif state is S.DEVICE_DIRTY:
        launch(ADD, 1000, readwrite(buffer), 1.0)
    elif state is S.MIXED:
        buffer.host[:10] = -1
        launch(ADD, 10, readwrite(buffer, 500, 10), 1.0)
    assert buffer.state is state
    merged = {S.HOST_DIRTY: DATA * 2, S.DEVICE_DIRTY: DATA + 1}.get(state, DATA).copy()
    if state is S.MIXED:
        merged[:10] = -1
        merged[500:510] += 1
    count = counted(buffer)
    (buffer.mark_host_dirty if side == "host" else buffer.mark_device_dirty)()
    assert buffer.state is (S.HOST_DIRTY if side == "host" else S.DEVICE_DIRTY)
    # A side that has no copy gets one first; else a mark moves nothing, and what is marked moves whole.
    made_first = {("host", S.DEVICE_ONLY): (0, 0, 1, 4000), ("device", S.HOST_ONLY): (1, 4000, 0, 0)}
    assert count.since() == made_first.get((side, state), (0, 0, 0, 0))
    overruled = (side, state) in {("host", S.DEVICE_DIRTY), ("device", S.HOST_DIRTY), ("host", S.MIXED), ("device", S.MIXED)}
    assert buffer.statistics.conflicting_marks == int(overruled)
    buffer.synchronize()
    assert (buffer.state, count.since()) == (S.SYNCHRONIZED, (1, 4000, 0, 0) if side == "host" else (0, 0, 1, 4000))
    expected = buffer.to_numpy()
    if not overruled:
        np.testing.assert_array_equal(expected, merged)
    elif side == "host":
        np.testing.assert_array_equal(expected, np.where(merged == -1, -1, DATA) if state is S.MIXED else DATA)
    else:
        np.testing.assert_array_equal(expected, np.where(merged == -1, DATA, merged) if state is S.MIXED else DATA)
    check_both(buffer, expected)
    assert count.since_by_buffer() == (0, 0, 0, 0)


def test_row_11_syncs_end_synchronized_and_move_once(discrete, counted):
    fresh = UnifiedBuffer(1000, device=discrete)
    for sync in (fresh.sync_to_device, fresh.sync_to_host, fresh.synchronize):
        with pytest.raises(unimem.BufferNotAllocated):
            sync()
    for sync, moved in (("sync_to_device", (1, 4000, 0, 0)), ("synchronize", (1, 4000, 0, 0)), ("sync_to_host", (0, 0, 1, 4000))):
        buffer = made(discrete)
        if sync == "sync_to_host":
            launch(ADD, 1000, readwrite(buffer), 0.0).wait()
        count = counted(buffer)
        for expected in (moved, (0, 0, 0, 0)):
            getattr(buffer, sync)()
            assert (buffer.state, count.since()) == (S.SYNCHRONIZED, expected)
        check_both(buffer, DATA)


def test_row_12_asynchronous_forms_are_awaited(discrete, counted):
    buffer = UnifiedBuffer(1000, device=discrete)
    count = counted(buffer)

    async def main():
        await buffer.copy_from_async(DATA)
        array = await buffer.ensure_on_device()
        assert count.since() == (1, 4000, 0, 0)
        assert (array.to_numpy() == DATA).all()
        await launch(ADD, 1000, readwrite(buffer), 1.0)
        await buffer.sync_to_host_async()
        assert (buffer.state, count.since_by_buffer()) == (S.SYNCHRONIZED, (0, 0, 1, 4000))
        await buffer.synchronize_async()
        await buffer.sync_to_device_async()
        np.testing.assert_array_equal(await buffer.to_numpy_async(), DATA + 1)
        with pytest.raises(unimem.SizeMismatch):
            await buffer.copy_from_async(DATA[:3])

    asyncio.run(main())
    assert count.since_by_buffer() == (0, 0, 0, 0)
    check_both(buffer, DATA + 1)


@pytest.mark.parametrize("tracking", [Tracking.ACCESS, Tracking.PAGES])
def test_row_27_only_what_was_written_travels(discrete, counted, tracking):
    data = np.zeros(1 << 18, np.uint8)
    buffer = synced(discrete, data, tracking=tracking)
    if buffer.tracking is not tracking:
        pytest.skip("pages are not watched here")
    count = counted(buffer)
    for pages in ((3, 4, 5), (40,)):
        for page in pages:
            buffer.host[page << 12 : (page + 1) << 12] = page
            data[page << 12 : (page + 1) << 12] = page
        buffer.sync_to_device()
        assert count.since() == (1, len(pages) << 12, 0, 0)
    check_both(buffer, data)


def test_row_28_diagnostics_count_every_byte(discrete, counted):
    buffer = synced(discrete)
    launch(ADD, 1000, readwrite(buffer), 1.0)
    _ = buffer.host
    s = buffer.statistics
    assert (s.host_to_device_copies, s.host_to_device_bytes, s.device_to_host_copies, s.device_to_host_bytes) == (1, 4000, 1, 4000)
    links = {(one.source, one.target): (one.copies, one.bytes) for one in buffer.migrations}
    assert links == {("host", discrete.id): (1, 4000), (discrete.id, "host"): (1, 4000)}
    assert discrete.backend != "sim" or (s.host_to_device_nanoseconds > 0 and s.untimed_copies == 0)
    check_both(buffer, DATA + 1)
    buffer.reset()
    assert buffer.statistics.host_to_device_bytes == 0 and buffer.migrations == []


def test_row_29_without_a_device_states_move(cpu, counted):
    buffer = made(cpu)
    count = counted(buffer)
    assert buffer.state is S.HOST_DIRTY
    buffer.sync_to_device()
    assert buffer.state is S.SYNCHRONIZED and buffer.device is buffer.host
    launch(ADD, 1000, readwrite(buffer), 1.0)
    assert buffer.state is S.DEVICE_DIRTY
    np.testing.assert_array_equal(buffer.host, DATA + 1)
    assert (buffer.state, count.since()) == (S.SYNCHRONIZED, (0, 0, 0, 0))


def test_row_30_concurrent_readers_copy_once(discrete, counted):
    buffer = made(discrete)
    count = counted(buffer)
    start, seen = threading.Barrier(8), []

    def look():
        start.wait(60)
        seen.append(buffer.device)

    threads = [threading.Thread(target=look) for _ in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert count.since() == (1, 4000, 0, 0) and len(seen) == 8
    assert all((one.to_numpy() == DATA).all() for one in seen)
    source, target = made(discrete), UnifiedBuffer(1000, device=discrete)
    launch(COPY, 1000, read(source), write(target))
    check_both(target, DATA)
