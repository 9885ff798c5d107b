"""Who keeps memory alive, and that nobody keeps it for longer: arrays, slices, leases, threads, processes, the end."""

import gc
import os
import sys
import threading
import warnings
import weakref

import numpy as np
import pytest

import unimem
from unimem import BufferState, InvalidArgument, MemoryManager, UnifiedBuffer, UnsupportedOperation

S = BufferState


def test_an_array_outlives_its_buffer(discrete):
    buffer = UnifiedBuffer(1000, device=discrete)
    buffer.host[:] = 5
    array, part = buffer.host, buffer.host[10:20]
    del buffer
    gc.collect()
    others = [UnifiedBuffer(1000, device=discrete).fill(9) for _ in range(20)]
    assert (array == 5).all() and (part == 5).all()
    part[:] = 6
    assert array[10] == 6 and all((one.to_numpy() == 9).all() for one in others)


def test_an_array_never_shows_reused_memory(discrete):
    buffer = UnifiedBuffer(1000, device=discrete)
    buffer.host[:] = 5
    kept = buffer.host
    assert buffer.free() is buffer
    assert buffer.state is S.UNINITIALIZED
    buffer.host[:] = 7
    assert not np.shares_memory(kept, buffer.host)
    kept[:] = 6
    kept += 1
    assert (kept == 7).all()
    buffer.host[:] = 8
    assert (kept == 7).all() and (buffer.to_numpy() == 8).all()
    buffer.sync_to_device()
    kept[0] = 1  # nobody's data: marks nothing
    assert buffer.state is S.SYNCHRONIZED


def test_free_is_idempotent_and_reset_forgets_the_counts(discrete):
    buffer = UnifiedBuffer(10, device=discrete)
    buffer.fill(1).sync_to_device()
    buffer.free().free()
    assert not buffer.is_allocated
    assert buffer.statistics.host_to_device_copies == 1
    assert buffer.reset() is buffer
    assert buffer.statistics.host_to_device_copies == 0
    buffer.fill(2)
    assert (buffer.device.to_numpy() == 2).all()


def test_a_host_array_is_one_object(sim):
    buffer = UnifiedBuffer(10, device=sim)
    assert buffer.host is buffer.host
    first = buffer.host
    buffer.free()
    assert buffer.host is not first


def test_memory_that_is_looked_at_is_not_moved(discrete):
    buffer = UnifiedBuffer(100, device=discrete)
    buffer.fill(3).sync_to_device()
    kept = buffer.host
    for change in (buffer.release_host, lambda: buffer.resize(10)):
        with pytest.raises(InvalidArgument):
            change()
    assert (kept == 3).all()
    del kept
    buffer.resize(10)
    assert buffer.shape == (10,) and (buffer.to_numpy() == 3).all()
    lease = buffer.device
    with pytest.raises(InvalidArgument, match="lease|use"):
        buffer.release_device()
    assert (lease.to_numpy() == 3).all()
    del lease
    buffer.release_device()
    assert (buffer.to_numpy() == 3).all()


def test_a_device_array_outlives_its_buffer(discrete):
    buffer = UnifiedBuffer(1000, device=discrete)
    buffer.fill(4)
    array = buffer.device
    del buffer
    gc.collect()
    others = [UnifiedBuffer(1000, device=discrete).fill(9).sync_to_device() for _ in range(20)]
    assert (array.to_numpy() == 4).all() and len(others) == 20


def test_slices_share_and_outlive(discrete):
    buffer = UnifiedBuffer((10, 10), np.int64, device=discrete)
    buffer.host[...] = 0
    buffer.sync_to_device()
    part = buffer.slice(20, 30)
    inner = part.slice(5, 10)
    inner.host[:] = 7
    assert buffer.state is part.state is S.HOST_DIRTY
    expected = np.zeros(100, np.int64)
    expected[25:35] = 7
    np.testing.assert_array_equal(buffer.device.to_numpy().reshape(-1), expected)
    np.testing.assert_array_equal(part.device.to_numpy(), expected[20:50])
    buffer.reshape(100)[3:5] = 9
    assert (buffer.host[0, 3:5] == 9).all()
    assert buffer.view(np.int32).size == 200 and buffer.view("u1").slice(8 * 25, 1).to_numpy()[0] == 7
    del buffer, part
    gc.collect()
    assert (inner.to_numpy() == 7).all()
    for bad in ((0, 11), (11, 0), (5, 6)):
        with pytest.raises(InvalidArgument):
            inner.slice(*bad)
    with pytest.raises(unimem.SizeMismatch):
        inner.reshape(3, 3)
    with pytest.raises(unimem.SizeMismatch):
        inner.slice(0, 1).view("V3")
    assert inner.slice(10, 0).to_numpy().size == 0


def test_a_slice_does_not_hold_the_side(sim):
    buffer = UnifiedBuffer(100, device=sim)
    part = buffer.slice(10, 10)
    part.host[:] = 4
    buffer.sync_to_device()
    buffer.release_host()
    assert buffer.state is S.DEVICE_ONLY
    assert (part.to_numpy() == 4).all()


def test_objects_made_twice_are_errors():
    buffer = UnifiedBuffer(10)
    buffer.fill(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nanobind warns besides
        with pytest.raises((RuntimeError, TypeError)):
            buffer.__init__(20)
    with pytest.raises(InvalidArgument, match="must be initialized"):
        UnifiedBuffer.__new__(UnifiedBuffer).to_numpy()
    assert buffer.shape == (10,) and (buffer.to_numpy() == 1).all()


def test_a_slice_that_no_longer_fits_is_refused(sim):
    buffer = UnifiedBuffer(100, device=sim)
    buffer.fill(1)
    part = buffer.slice(50, 50)
    buffer.resize(60)
    with pytest.raises(InvalidArgument, match="resized"):
        part.to_numpy()


def test_wrapped_arrays_are_shared_and_let_go(discrete):
    class Source(np.ndarray):
        pass

    source = np.arange(1000.0).view(Source)
    gone = weakref.ref(source)
    buffer = UnifiedBuffer.from_array(source, device=discrete, name="wrapped")
    assert np.shares_memory(buffer.host, source) and buffer.dtype == np.float64
    assert buffer.state is S.HOST_ONLY
    buffer.host[0] = -1
    assert source[0] == -1
    np.testing.assert_array_equal(buffer.device.to_numpy(), source)
    buffer.device.copy_from(np.zeros(1000))
    buffer.mark_device_dirty()
    buffer.sync_to_host()
    assert (source == 0).all()
    kept = buffer.host
    del source, buffer
    gc.collect()
    assert (kept == 0).all()
    base = kept
    del kept, base
    gc.collect()
    for _ in range(100):  # seen off by the interpreter's next calls
        if gone() is None or gone().base is None:
            break
    assert gone() is None


@pytest.mark.parametrize(
    "array",
    [np.arange(10)[::2], np.asfortranarray(np.zeros((3, 4))), np.array([None]), np.frombuffer(b"12345678", np.int32),
     np.frombuffer(bytearray(9), np.uint8)[1:].view(np.int64)],
)  # fmt: skip
def test_arrays_that_cannot_be_wrapped_are_refused(array):
    with pytest.raises(InvalidArgument):
        UnifiedBuffer.from_array(array)


def test_untrackable_arrays_are_refused(sim):
    source = np.zeros(1 << 17, np.uint8)
    before = sys.getrefcount(source)
    with pytest.raises(UnsupportedOperation, match="Tracking::pages"):
        UnifiedBuffer.from_array(source, device=sim, tracking=unimem.Tracking.PAGES)
    assert sys.getrefcount(source) == before


def test_wrapping_nothing_keeps_nothing(sim):
    import sys

    source = np.zeros((0, 3))
    before = sys.getrefcount(source)
    buffer = UnifiedBuffer.from_array(source, device=sim)
    assert buffer.shape == (0, 3) and buffer.to_numpy().shape == (0, 3)
    del buffer
    assert sys.getrefcount(source) == before


def test_a_buffers_host_is_not_wrapped_again(sim):
    with pytest.raises(InvalidArgument, match="slice"):
        UnifiedBuffer.from_array(UnifiedBuffer(10, device=sim).host)


def resident_bytes():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.check
def test_ten_thousand_buffers_leave_nothing_behind(discrete):
    manager = MemoryManager()

    def cycle(count):
        for i in range(count):
            buffer = UnifiedBuffer((64, 64), device=discrete, manager=manager, name="cycled")
            buffer.host[...] = i
            part = buffer.slice(0, 64)
            array = buffer.device
            buffer.mark_device_dirty()
            assert buffer.host[0, 0] == part.to_numpy()[1] == array.to_numpy()[63, 63] == i

    cycle(500)
    _ = manager.statistics  # whose classes are imported when they are first asked for
    gc.collect()
    objects, before = len(gc.get_objects()), resident_bytes()
    cycle(10_000)
    gc.collect()
    statistics = manager.statistics
    assert statistics.active_allocations == 0 and statistics.active_bytes == 0
    assert abs(len(gc.get_objects()) - objects) < 100
    # 10,000 buffers had 320 MiB; what is left is noise of the allocator.
    assert resident_bytes() - before < 16 << 20
    manager.cleanup()
    assert manager.statistics.reserved_bytes == 0


def test_readers_on_many_threads_copy_once(discrete):
    buffer = UnifiedBuffer(1 << 16, device=discrete)
    buffer.copy_from(np.arange(1 << 16))
    results = []
    threads = [threading.Thread(target=lambda: results.append(buffer.device.to_numpy()[1000])) for _ in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert results == [1000] * 8
    assert buffer.statistics.host_to_device_copies == 1


def test_copies_are_deep_and_pickles_hold_data_alone(discrete):
    import copy
    import pickle

    buffer = UnifiedBuffer((2, 5), np.float64, device=discrete, name="original")
    buffer.host[...] = 3
    for other in (buffer.clone(), copy.copy(buffer), copy.deepcopy(buffer), pickle.loads(pickle.dumps(buffer))):
        assert other.shape == (2, 5) and other.dtype == np.float64 and other.name == "original"
        assert (other.to_numpy() == 3).all()
        other.host[...] = 4
        assert (buffer.to_numpy() == 3).all()
    assert buffer.clone().default_device == discrete
    part = buffer.slice(2, 3)
    for other in (part.clone(), copy.copy(part), copy.deepcopy(part), pickle.loads(pickle.dumps(part))):
        assert type(other) is UnifiedBuffer and other.shape == (3,)
        other.host[...] = 4
        assert (buffer.to_numpy() == 3).all()
    with pytest.raises(TypeError, match="a mapping ends once"):
        copy.deepcopy(buffer.map())
    assert pickle.loads(pickle.dumps(unimem.registry())) is unimem.registry()
    fresh = pickle.loads(pickle.dumps(UnifiedBuffer(4, strict=True)))
    assert fresh.state is S.UNINITIALIZED
    with pytest.raises(unimem.BufferNotAllocated):
        _ = fresh.host


def test_a_clone_has_its_buffers_options(discrete):
    manager = unimem.MemoryManager()
    buffer = UnifiedBuffer(1000, np.uint8, device=discrete, manager=manager, name="original", priority=3).fill(1)
    clone = buffer.clone()
    assert (clone.name, clone.priority, clone.default_device) == ("original", 3, discrete)
    clone.sync_to_device()
    assert [one.bytes for one in manager.live()] == [1000] * 3  # the buffer on its host, the clone on both sides
    assert (clone.device.to_numpy() == 1).all() and clone.statistics.host_to_device_bytes == 1000


def test_a_busy_buffer_may_be_dropped():
    sim = unimem.make_sim("memory=1MiB")
    increment = unimem.Kernel("increment").host(lambda x: np.add(x, 1, out=x))

    def step(value):
        buffer = unimem.UnifiedBuffer(300_000, np.uint8, device=sim)
        buffer.fill(value)
        unimem.launch(increment, 1, unimem.readwrite(buffer))

    for value in range(200):
        step(value)
    last = unimem.UnifiedBuffer(300_000, np.uint8, device=sim)
    last.fill(7)
    unimem.launch(increment, 1, unimem.readwrite(last))
    assert (last.to_numpy() == 8).all()
