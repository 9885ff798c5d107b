"""The rows of tests/features.md about pools (41 to 46, 52), devices (76) and sharing (77, 78) through Python, on each kind of device with
memory of its own: bytes on both sides and transfers, as in test_rows_coherence.py. A test's name begins with its row."""

import queue
import threading

import numpy as np
import pytest

import unimem
from unimem import BufferRef, BufferState, Kernel, MemoryPool, PoolLimits, UnifiedBuffer, launch, readwrite, registry

DATA = np.arange(1000, dtype=np.float32)
TWICE = Kernel("twice").source(
    "UNIMEM_KERNEL twice(UNIMEM_BUFFER(float, x)) { UNIMEM_DATA(float, x)[UNIMEM_ITEM_X] *= 2.0f; }"
).host(lambda x: np.multiply(x, 2, out=x))


def use(buffer, counted, data=DATA):
    """A round trip of a lent buffer, of which nothing of an earlier owner's is seen."""
    count = counted(buffer)
    assert buffer.state is BufferState.UNINITIALIZED and buffer.statistics.host_to_device_copies == 0
    buffer.copy_from(data.reshape(buffer.shape))
    buffer.sync_to_device()
    assert count.since() == (1, buffer.nbytes, 0, 0)
    launch(TWICE, buffer.size, readwrite(buffer))
    np.testing.assert_array_equal(buffer.to_numpy(), data.reshape(buffer.shape) * 2)
    assert count.since() == (0, 0, 1, buffer.nbytes)
    np.testing.assert_array_equal(buffer.device.to_numpy(), buffer.host)


def test_row_41_an_equal_acquire_reuses_the_buffer(discrete, counted):
    pool = MemoryPool(device=discrete)
    first = pool.acquire((1000,), np.float32)
    use(first, counted)
    pool.release(first)
    again = pool.acquire((1000,), np.float32)
    assert again is first
    use(again, counted, DATA + 1)
    pool.release(again)
    assert pool.acquire((10, 100), np.float32) is not first and pool.acquire((1000,), np.int32) is not first


def test_row_42_the_key_is_exact(discrete, counted):
    pool = MemoryPool(device=discrete)
    kinds = [((10, 100), np.float32, False), ((100, 10), np.float32, False), (1000, np.float32, False), ((10, 100), np.float32, True)]
    made = [pool.acquire(shape, dtype, pinned=pinned) for shape, dtype, pinned in kinds]
    for one in made:
        use(one, counted)
        pool.release(one)
    for (shape, dtype, pinned), one in zip(kinds, made, strict=True):
        assert pool.acquire(shape, dtype, pinned=pinned) is one
        use(one, counted, DATA * 3)


@pytest.mark.parametrize("size", [1, 4095, 4096, 4097, 65536, 65537, (1 << 20) + 1])
def test_row_43_every_size_has_capacity(discrete, counted, size):
    manager = unimem.MemoryManager()
    data = (np.arange(size) % 251).astype(np.uint8)
    buffer = UnifiedBuffer(size, np.uint8, device=discrete, manager=manager)
    count = counted(buffer)
    buffer.copy_from(data)
    buffer.sync_to_device()
    assert count.since() == (1, size, 0, 0)
    np.testing.assert_array_equal(buffer.device.to_numpy(), data)
    np.testing.assert_array_equal(buffer.host, data)
    statistics = manager.pool(discrete).statistics
    assert statistics.active_bytes >= size and len(statistics.size_classes) == 21
    nth = 0 if size <= 4096 else (size - 1).bit_length() - 12
    assert [one.allocations for one in statistics.size_classes] == [int(i == nth) for i in range(21)]


def test_row_44_the_oldest_goes_first(discrete, counted):
    pool = MemoryPool(device=discrete, limits=PoolLimits(max_bytes=8000))
    lent = [pool.acquire(1000) for _ in range(3)]
    kept = pool.acquire((1000,))
    use(kept, counted)
    for one in lent:
        use(one, counted)
        pool.release(one)
    assert (pool.pool_size, pool.total_bytes) == (2, 8000)
    assert {id(pool.acquire(1000)), id(pool.acquire(1000))} == {id(lent[1]), id(lent[2])}
    np.testing.assert_array_equal(kept.device.to_numpy(), DATA * 2)


def test_row_45_limits_hold(discrete, counted):
    pool = MemoryPool(device=discrete, limits=PoolLimits(max_buffers=2, max_buffer_bytes=4000))
    buffers = [pool.acquire(1000) for _ in range(4)]
    large = pool.acquire(1001)
    for one in buffers:
        use(one, counted)
        pool.release(one)
    use(large, counted, np.arange(1001, dtype=np.float32))
    pool.release(large)
    assert (pool.pool_size, pool.total_bytes) == (2, 8000)
    pool.configure(limits=PoolLimits(max_bytes=4000))
    assert pool.total_bytes == 4000
    use(pool.acquire(1000), counted)
    manager = unimem.MemoryManager()
    manager.set_limit(discrete, "64KiB")
    too_large = UnifiedBuffer(1 << 18, device=discrete, manager=manager)
    count = counted(too_large)
    too_large.fill(1)
    with pytest.raises(unimem.OutOfMemory):
        too_large.sync_to_device()
    assert (too_large.state, count.since()) == (BufferState.HOST_DIRTY, (0, 0, 0, 0)) and (too_large.host == 1).all()
    assert manager.pool(discrete).statistics.reserved_bytes <= 64 << 10
    use(UnifiedBuffer(1000, device=discrete, manager=manager), counted)
    assert 0 < manager.pool(discrete).statistics.reserved_bytes <= 64 << 10


def test_row_46_statistics_add_up(discrete, counted):
    pool = MemoryPool(device=discrete)
    assert pool.stats().hit_rate == 0
    before = unimem.transfers(discrete)
    for _ in range(10):
        buffer = pool.acquire(1000)
        use(buffer, counted)
        pool.release(buffer)
    after = unimem.transfers(discrete)
    # By the library alone one copy there and one back for each; `use` looks at each device array, which is one more.
    assert after.host_to_device_bytes - before.host_to_device_bytes == 10 * 4000
    assert after.device_to_host_bytes - before.device_to_host_bytes == 10 * 2 * 4000
    held = pool.acquire(7)
    use(held, counted, DATA[:7])
    stats = pool.stats()
    assert (stats.hits, stats.misses, stats.released, stats.active_buffers, stats.pooled_buffers, stats.pooled_bytes) == (9, 2, 10, 1, 1, 4000)
    assert stats.hit_rate == 9 / 11 and held.size == 7


def test_row_52_the_processs_pool_is_configured(discrete, moved):
    from unimem.core.memory_pool import get_memory_pool

    pool = get_memory_pool()
    assert pool is unimem.get_memory_pool()
    before = pool.limits
    try:
        pool.configure(limits=PoolLimits(max_buffers=1))
        assert pool.limits.max_buffers == 1
        first, second = pool.acquire((10, 100)), pool.acquire((10, 100))
        for one in (first, second):  # of the default device; used on another one
            count, on_device = moved(one), unimem.transfers(discrete)
            one.copy_from(DATA.reshape(10, 100))
            one.sync_to_device(discrete)
            assert count.since() == (1, 4000, 0, 0)
            launch(TWICE, 1000, readwrite(one), device=discrete)
            np.testing.assert_array_equal(one.to_numpy(), DATA.reshape(10, 100) * 2)
            assert count.since() == (0, 0, 1, 4000)
            now = unimem.transfers(discrete)
            assert (now.host_to_device_bytes - on_device.host_to_device_bytes, now.device_to_host_bytes - on_device.device_to_host_bytes) == (4000, 4000)
            np.testing.assert_array_equal(one.on(discrete).to_numpy(), one.host)
            pool.release(one)
        assert pool.pool_size == 1 and pool.acquire((10, 100)) is second
        pool.release(second)
    finally:
        pool.configure(limits=before)
        pool.clear()


def test_row_76_devices_are_chosen_by_name(discrete, counted):
    listed = unimem.devices()
    assert listed[0].id == "cpu" and discrete in listed and unimem.device(discrete.id if discrete.backend != "sim" else "cpu") in listed
    info = unimem.device_info(discrete)
    assert info.name and info.total_bytes > 0 and info.runs_host_form is (discrete.backend == "sim")
    with pytest.raises(unimem.NotFound) as caught:
        unimem.device("opencl:99")
    assert "cpu" in caught.value.available
    accelerator = unimem.get_accelerator(discrete)
    free, total = accelerator.get_memory_info()
    buffer = UnifiedBuffer(1_000_000, device=discrete)
    count = counted(buffer)
    buffer.fill(1)
    buffer.sync_to_device()
    assert count.since() == (1, 4_000_000, 0, 0)
    now = accelerator.get_memory_info()
    assert now.total == total and free - now.free >= 4_000_000
    np.testing.assert_array_equal(buffer.device.to_numpy(), buffer.host)


def test_row_77_ids_open_the_same_buffer(discrete, counted):
    buffer = UnifiedBuffer(1000, device=discrete)
    buffer.copy_from(DATA)
    buffer.sync_to_device()
    count = counted(buffer)
    name = registry().publish(buffer, name="row 77")
    same = registry().open(name)
    part = BufferRef(name, 100, 50).resolve()
    assert same.state is part.state is BufferState.SYNCHRONIZED and count.since() == (0, 0, 0, 0)
    part.host[:] = -1
    same.sync_to_device()
    assert count.since() == (1, 200, 0, 0)
    expected = DATA.copy()
    expected[100:150] = -1
    np.testing.assert_array_equal(buffer.device.to_numpy(), expected)
    np.testing.assert_array_equal(buffer.host, expected)
    with pytest.raises(unimem.InvalidArgument):
        BufferRef(name, 990, 11).resolve()
    registry().release(name)
    with pytest.raises(unimem.NotFound):
        registry().open(name)
    np.testing.assert_array_equal(same.to_numpy(), expected)


def test_row_78_a_worker_gets_a_reference(discrete, counted):
    buffer = UnifiedBuffer(1000, device=discrete)
    buffer.copy_from(DATA)
    buffer.sync_to_device()
    name = registry().publish(buffer)
    requests: "queue.Queue[bytes | None]" = queue.Queue()

    def worker():
        while (message := requests.get()) is not None:
            part = BufferRef.from_bytes(message).resolve()
            launch(TWICE, part.size, readwrite(part)).wait()

    count = counted(buffer)
    thread = threading.Thread(target=worker)
    thread.start()
    for offset in range(0, 1000, 100):
        requests.put(bytes(registry().refer(name, offset, 100)))
    requests.put(None)
    thread.join()
    assert (buffer.state, count.since()) == (BufferState.DEVICE_DIRTY, (0, 0, 0, 0))
    np.testing.assert_array_equal(buffer.to_numpy(), DATA * 2)
    assert count.since() == (0, 0, 1, 4000)
    np.testing.assert_array_equal(buffer.device.to_numpy(), DATA * 2)
