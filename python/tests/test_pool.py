"""Buffers lent again."""

import gc
import threading
from decimal import Decimal

import numpy as np
import pytest

import unimem
from unimem import BufferState, InvalidArgument, MemoryManager, MemoryPool, PoolLimits, UnifiedBuffer, get_memory_pool


@pytest.fixture
def pool(sim):
    return MemoryPool(device=sim)


def test_an_equal_acquire_gives_the_same_buffer(pool):
    first = pool.acquire((1000,), dtype=np.float32)
    first.host[:] = 7
    first.sync_to_device()
    address = first.host.ctypes.data
    pool.release(first)
    second = pool.acquire((1000,), dtype=np.float32)
    assert second is first
    assert second.state is BufferState.UNINITIALIZED
    assert second.host.ctypes.data == address
    assert second.statistics.host_to_device_bytes == 0
    stats = pool.stats()
    assert (stats.hits, stats.misses, stats.active_buffers, stats.hit_rate) == (1, 1, 1, 0.5)


def test_other_shapes_are_other_buffers(pool):
    first = pool.acquire((10, 100), np.float32)
    pool.release(first)
    others = [pool.acquire((100, 10), np.float32), pool.acquire((10, 100), np.int32), pool.acquire(1000, np.float32),
              pool.acquire((10, 100), np.float32, pinned=True)]  # fmt: skip
    assert all(one is not first for one in others)
    assert pool.acquire((10, 100), "f4") is first


def test_a_buffer_goes_back_to_its_pool(pool, sim):
    buffer = pool.acquire(10)
    buffer.fill(3)
    other = MemoryPool(device=sim)
    with pytest.raises(InvalidArgument, match="lent"):
        other.release(buffer)
    np.testing.assert_array_equal(buffer.to_numpy(), np.full(10, 3))  # as it was
    with pytest.raises(InvalidArgument, match="lent"):
        pool.release(UnifiedBuffer(10, device=sim))
    pool.release(buffer)
    with pytest.raises(InvalidArgument, match="released"):
        pool.release(buffer)
    with pytest.raises(InvalidArgument):
        pool.release("no buffer")
    assert pool.pool_size == 1 and pool.total_bytes == 40


def test_a_released_buffer_may_be_looked_at(pool):
    buffer = pool.acquire((3, 4))
    pool.release(buffer)
    assert "uninitialized" in repr(buffer) and "released to its pool" in buffer._repr_html_()


def test_a_released_buffer_cannot_be_used(pool):
    buffer = pool.acquire(10)
    buffer.fill(1)
    pool.release(buffer)
    assert buffer.state is BufferState.UNINITIALIZED and not buffer.is_allocated
    for use in (lambda: buffer.host, lambda: buffer.device, buffer.to_numpy, lambda: buffer.fill(2), buffer.synchronize, lambda: buffer.slice(0, 1),
                lambda: buffer.copy_from(np.zeros(10)), buffer.free, lambda: buffer.statistics):  # fmt: skip
        with pytest.raises(InvalidArgument, match="released to its pool"):
            use()


def test_memory_that_somebody_holds_is_not_lent_again(pool):
    buffer = pool.acquire(1000)
    kept = buffer.host
    kept[:] = 5
    pool.release(buffer)
    assert pool.stats().let_go == 1 and pool.pool_size == 0
    again = pool.acquire(1000)
    again.host[:] = 6
    assert (kept == 5).all()
    assert not np.shares_memory(kept, again.host)
    part = again.slice(0, 10)
    pool.release(again)
    third = pool.acquire(1000)
    third.host[:] = 7
    assert (part.host == 6).all()
    lease = third.device
    pool.release(third)
    pool.acquire(1000).fill(9).sync_to_device()
    assert (lease.to_numpy() == 7).all()


def test_a_block_gives_its_buffer_back_whatever_happens(pool):
    with pytest.raises(RuntimeError, match="stop"), pool.lend((10,), np.int64) as buffer:
        buffer.fill(1)
        raise RuntimeError("stop")
    assert pool.pool_size == 1
    with pool.lend((10,), np.int64) as again:
        assert again is buffer


def test_limits_hold_and_the_oldest_go_first(pool):
    pool.configure(limits=PoolLimits(max_buffers=2))
    lent = [pool.acquire(100 + i) for i in range(3)]
    for one in lent:
        pool.release(one)
    assert pool.pool_size == 2 and pool.total_bytes == (101 + 102) * 4
    assert pool.limits == PoolLimits(max_buffers=2) and pool.pinned_limits.max_bytes == 256 << 20
    assert pool.trim(102 * 4) == 101 * 4
    pool.clear()
    assert pool.pool_size == 0 and pool.total_bytes == 0
    assert pool.stats().evicted == 3
    pool.configure(limits=PoolLimits(max_buffer_bytes=16))
    big = pool.acquire(100)
    pool.release(big)
    assert pool.pool_size == 0
    with pytest.raises(InvalidArgument, match="max_bytes"):
        pool.configure(limits=PoolLimits(max_bytes=-1))
    with pytest.raises(InvalidArgument, match="trim_interval"):
        pool.configure(trim_interval=-1)


def test_lent_buffers_outlive_a_clear(pool):
    buffer = pool.acquire(10)
    buffer.fill(4)
    pool.clear()
    assert (buffer.to_numpy() == 4).all()
    pool.release(buffer)
    assert pool.pool_size == 1


def test_lent_buffers_outlive_their_pool(sim):
    pool = MemoryPool(device=sim)
    buffer = pool.acquire(10)
    del pool
    gc.collect()
    buffer.fill(4)
    assert (buffer.to_numpy() == 4).all()


def test_zeroed_pools_show_nothing_of_earlier_owners(sim):
    pool = MemoryPool(device=sim, zero_on_release=True)
    buffer = pool.acquire(100)
    buffer.fill(9)
    buffer.sync_to_device()
    pool.release(buffer)
    again = pool.acquire(100)
    assert again is buffer
    assert (again.host == 0).all()


def flags_of_memory_at(address):
    here = False
    with open("/proc/self/smaps") as maps:
        for line in maps:
            head = line.split()[0]
            if "-" in head:
                begin, end = (int(part, 16) for part in head.split("-"))
                here = begin <= address < end
            elif here and head == "VmFlags:":
                return line.split()[1:]
    raise AssertionError("nothing is mapped there")


@pytest.mark.parametrize("zero_on_release", [True, False])
def test_zeroed_managers_show_nothing_of_earlier_owners(sim, zero_on_release):
    manager = MemoryManager(zero_on_release=zero_on_release)
    buffer = UnifiedBuffer(10_000, device=sim, manager=manager)
    buffer.host[:] = 9
    assert ("dd" in flags_of_memory_at(buffer.host.ctypes.data)) == zero_on_release, "is left out of core dumps"
    buffer.sync_to_device()
    buffer.free()
    again = UnifiedBuffer(10_000, device=sim, manager=manager).allocate()
    assert (again.host == (0 if zero_on_release else 9)).all()


def test_a_dropped_buffer_leaves_its_pool(pool):
    for _ in range(10):
        pool.acquire(10).fill(1)
    gc.collect()
    assert pool.stats().active_buffers == 0 and pool.pool_size == 0


def test_no_buffer_is_ever_held_by_two(pool):
    failures = []

    def work(mark):
        for i in range(200):
            with pool.lend(64, np.int64) as buffer:
                buffer.host[:] = mark * 1000 + i
                if not (buffer.host == mark * 1000 + i).all():
                    failures.append((mark, i))

    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not failures
    stats = pool.stats()
    assert stats.hits + stats.misses == 1600 and stats.active_buffers == 0 and stats.pooled_buffers <= 8


def test_the_processs_pool_is_one():
    from unimem.core.memory_pool import get_memory_pool as documented

    assert documented() is get_memory_pool() is documented()
    assert isinstance(get_memory_pool(), MemoryPool)
    buffer = documented().acquire((8,), dtype=np.float32)
    documented().release(buffer)


def test_what_is_refused_of_an_acquire_is_named(pool):
    with pytest.raises(InvalidArgument, match="shape"):
        pool.acquire(-1)
    with pytest.raises(InvalidArgument, match="dtype"):
        pool.acquire(1, object)
    assert unimem.format_size(4096) == "4 KiB" and unimem.parse_size("1.5KiB") == 1536


def test_keys_of_another_type_are_refused(pool):
    def look():
        for extent in (1013.0, np.float64(1013), 1013 + 0j, Decimal(1013)):
            with pytest.raises(InvalidArgument, match="shape"):
                pool.acquire((extent,))
        for pinned in (0, 0.0, 0j):
            with pytest.raises(InvalidArgument, match="pinned"):
                pool.acquire((1013,), pinned=pinned)
        with pytest.raises(InvalidArgument, match="shape"), pool.lend((1013.0,)):
            pass

    look()
    first = pool.acquire((1013,))
    pool.release(first)
    look()
    for shape, pinned in (((1013,), False), ((np.int64(1013),), np.False_), ([1013], False)):
        again = pool.acquire(shape, pinned=pinned)
        assert again is first
        pool.release(again)
    look()
