"""The rows of tests/features.md about what is in a buffer and how it is seen (13 to 26), as in test_rows_coherence.py."""

import numpy as np
import pytest
from sample_buffers import ADD, DATA, check_both, made, synced

import unimem
from unimem import BufferState, MapMode, UnifiedBuffer, launch, readwrite

S = BufferState


def test_row_13_copy_from_takes_exactly_as_many(discrete, counted):
    buffer = synced(discrete)
    count = counted(buffer)
    for bad in (DATA[:999], np.zeros(1001), np.zeros(0)):
        with pytest.raises(unimem.SizeMismatch):
            buffer.copy_from(bad)
        assert buffer.state is S.SYNCHRONIZED
    buffer.copy_from(DATA * 2)
    assert (buffer.state, count.since()) == (S.HOST_DIRTY, (0, 0, 0, 0))
    buffer.sync_to_device()
    assert count.since() == (1, 4000, 0, 0)
    check_both(buffer, DATA * 2)


def test_row_14_what_is_copied_out_is_independent(discrete, counted):
    buffer = synced(discrete)
    launch(ADD, 1000, readwrite(buffer), 1.0)
    count = counted(buffer)
    out, into = buffer.to_numpy(), np.empty(1000, np.float32)
    buffer.copy_to(into)
    assert (buffer.state, count.since()) == (S.SYNCHRONIZED, (0, 0, 1, 4000))
    assert (out == into).all()
    out[:] = into[:] = 0
    with pytest.raises(unimem.SizeMismatch):
        buffer.copy_to(np.empty(999, np.float32))
    check_both(buffer, DATA + 1)


def test_row_15_copies_by_offset_touch_nothing_else(discrete, counted):
    buffer = synced(discrete)
    count = counted(buffer)
    buffer.copy_from(np.full(10, -1), offset=20)
    out = np.empty(5, np.float32)
    buffer.copy_to(out, offset=28)
    np.testing.assert_array_equal(out, [-1, -1, 30, 31, 32])
    buffer.sync_to_device()
    assert count.since() == (1, 40, 0, 0)
    expected = DATA.copy()
    expected[20:30] = -1
    check_both(buffer, expected)
    for offset in (995, 1001, -1, 2**63):
        with pytest.raises((unimem.SizeMismatch, unimem.InvalidArgument)):
            buffer.copy_from(np.zeros(10), offset=offset)
    check_both(buffer, expected)


@pytest.mark.parametrize("source_on_device", [False, True], ids=["from the host", "from the device"])
@pytest.mark.parametrize("far", [False, True], ids=["on one device", "to another"])
def test_row_16_buffers_are_copied_between_sides(discrete, other_sim, counted, source_on_device, far):
    source, target = synced(discrete), UnifiedBuffer(1000, device=other_sim if far else discrete)
    if source_on_device:
        launch(ADD, 1000, readwrite(source), 1.0).wait()
    of_source, of_target = counted(source), counted(target)
    uploads, downloads = unimem.transfers(target.default_device), unimem.transfers(discrete)
    unimem.copy(source, target)
    target.default_device.synchronize()
    # Where the host is current it is its own copy; else between the devices, or on the one.
    assert target.state is (S.DEVICE_DIRTY if source_on_device else S.HOST_DIRTY)
    between = target.statistics.device_to_device_copies, target.statistics.device_to_device_bytes
    assert between == ((1, 4000) if far and source_on_device else (0, 0))
    # Two drivers know nothing of each other: there it goes by way of the host, which the devices count.
    legs = int(far and source_on_device and discrete.backend != "sim")
    assert unimem.transfers(target.default_device).host_to_device_bytes - uploads.host_to_device_bytes == legs * 4000
    assert unimem.transfers(discrete).device_to_host_bytes - downloads.device_to_host_bytes == legs * 4000
    assert of_source.since_by_buffer() == of_target.since_by_buffer() == (0, 0, 0, 0)
    target.synchronize()
    assert (target.state, of_target.since()) == (S.SYNCHRONIZED, (0, 0, 1, 4000) if source_on_device else (1, 4000, 0, 0))
    assert of_source.since_by_buffer() == (0, 0, 0, 0)
    check_both(target, DATA + source_on_device)
    check_both(source, DATA + source_on_device)
    assert of_target.since_by_buffer() == (0, 0, 0, 0)
    assert of_source.since_by_buffer() == ((0, 0, 1, 4000) if source_on_device else (0, 0, 0, 0))  # looked at just now


def test_row_16_a_buffer_is_copied_within_itself(discrete, counted):
    for on_device in (False, True):
        whole = synced(discrete)
        if on_device:
            launch(ADD, 1000, readwrite(whole), 1.0).wait()
        count, data = counted(whole), DATA + on_device
        unimem.copy(whole.slice(0, 900), whole.slice(100, 900))
        assert count.since() == (0, 0, 0, 0)
        whole.synchronize()
        assert count.since() == ((0, 0, 1, 4000) if on_device else (1, 3600, 0, 0))
        check_both(whole, np.concatenate([data[:100], data[:900]]))


def test_row_17_filling_happens_where_the_data_is(discrete, counted):
    buffer = synced(discrete)
    count = counted(buffer)
    assert buffer.fill(3) is buffer and buffer.state is S.DEVICE_DIRTY
    buffer.fill(4, 10, 5)
    assert count.since() == (0, 0, 0, 0)
    expected = np.full(1000, 3)
    expected[10:15] = 4
    np.testing.assert_array_equal(buffer.to_numpy(), expected)
    assert count.since() == (0, 0, 1, 4000)
    check_both(buffer, expected)
    on_host = UnifiedBuffer(1000, np.complex128, device=discrete).fill(1 + 2j)
    assert on_host.state is S.HOST_DIRTY
    on_host.fill(5j, 0, 1).sync_to_device()
    check_both(on_host, np.array([5j] + [1 + 2j] * 999))
    check_both(buffer.zeros(), np.zeros(1000))


def test_row_18_elements_one_by_one(discrete, counted):
    buffer = synced(discrete, DATA.reshape(10, 100))
    count = counted(buffer)
    assert len(buffer) == 10 and buffer[2, 3] == 203 and [row[0] for row in buffer] == list(range(0, 1000, 100))
    assert (buffer.state, count.since()) == (S.SYNCHRONIZED, (0, 0, 0, 0))
    buffer[2, 3] = -1
    assert buffer.state is S.HOST_DIRTY
    for bad in ((10, 0), (0, 100), (-11, 0)):
        with pytest.raises(IndexError):
            buffer[bad] = 0
    buffer.sync_to_device()
    assert count.since() == (1, 4, 0, 0)
    expected = DATA.reshape(10, 100).copy()
    expected[2, 3] = -1
    check_both(buffer, expected)


def test_row_19_text_names_shape_dtype_and_state(discrete, counted):
    buffer = synced(discrete, DATA.reshape(10, 100), name="frame")
    count = counted(buffer)
    assert repr(buffer) == "UnifiedBuffer(shape=(10, 100), dtype=float32, state=synchronized, name='frame')"
    launch(ADD, 1000, readwrite(buffer), 1.0)
    assert "state=device_dirty" in repr(buffer) and count.since() == (0, 0, 0, 0)
    np.testing.assert_array_equal(buffer.to_numpy(), DATA.reshape(10, 100) + 1)


def is_locked(buffer):
    """Whether the system keeps the pages of the host side where they are, by what it says of them itself."""
    address, found = buffer.host.ctypes.data, False
    with open("/proc/self/smaps", encoding="utf-8", errors="replace") as mappings:
        for line in mappings:
            word, *words = line.split()
            if word == "VmFlags:":
                if found:
                    return "lo" in words
            elif not word.endswith(":"):
                first, last = (int(end, 16) for end in word.split("-"))
                found = first <= address < last
    raise AssertionError(f"no flags of what is at {address:#x}")


def test_row_20_pinned_memory_tells_the_truth(discrete, counted):
    buffer, plain = made(discrete, pinned=True), made(discrete)
    count = counted(buffer)
    # What CUDA pins, the system does not call locked.
    cuda = any(one.backend == "cuda" for one in unimem.devices())
    assert buffer.is_pinned == (cuda or is_locked(buffer))
    assert not plain.is_pinned and not is_locked(plain)
    buffer.sync_to_device()
    assert count.since() == (1, 4000, 0, 0)
    check_both(buffer, DATA)


def test_row_21_a_freed_buffer_is_usable(discrete, counted):
    manager = unimem.MemoryManager()
    buffer = synced(discrete, manager=manager)
    assert manager.statistics.active_bytes > 0
    count = counted(buffer)
    assert buffer.free().free() is buffer
    assert (buffer.state, buffer.is_allocated, manager.statistics.active_bytes) == (S.UNINITIALIZED, False, 0)
    with pytest.raises(unimem.BufferNotAllocated):
        buffer.sync_to_host()
    assert count.since() == (0, 0, 0, 0)
    buffer.copy_from(DATA)
    check_both(buffer, DATA)
    del buffer, count
    assert manager.statistics.active_bytes == 0


def test_row_22_slices_share_memory_and_state(discrete, counted):
    buffer = synced(discrete)
    part = buffer.slice(100, 200).slice(50, 100)
    count = counted(buffer)
    part.host[:] = -1
    assert buffer.state is part.state is S.HOST_DIRTY
    part.sync_to_device()
    assert count.since() == (1, 400, 0, 0)
    launch(ADD, 100, readwrite(part), 3.0)
    assert buffer.to_numpy()[150] == 2 and count.since() == (0, 0, 1, 400)
    expected = DATA.copy()
    expected[150:250] = 2
    check_both(buffer, expected)
    del buffer, count
    np.testing.assert_array_equal(part.to_numpy(), expected[150:250])
    assert part.slice(100, 0).to_numpy().size == 0


def test_row_23_the_same_bytes_as_other_elements(discrete, counted):
    buffer = synced(discrete)
    count = counted(buffer)
    bits = buffer.view(np.uint32)
    np.testing.assert_array_equal(bits.to_numpy(), DATA.view(np.uint32))
    bits.host[0] = 0x40490FDB
    assert buffer.host[0] == np.float32(np.pi) and buffer.state is S.HOST_DIRTY
    buffer.sync_to_device()
    assert count.since() == (1, 4, 0, 0)
    with pytest.raises(unimem.SizeMismatch, match="12 bytes"):
        buffer.slice(0, 3).view(np.float64)
    with pytest.raises(unimem.InvalidArgument, match="multiple of 8"):
        buffer.slice(1, 2).view(np.float64)
    expected = DATA.copy()
    expected[0] = np.pi
    check_both(buffer, expected)


def test_row_24_mappings_mark_by_their_mode(discrete, counted):
    buffer = synced(discrete)
    count = counted(buffer)
    with buffer.map(MapMode.READ) as array:
        assert array[5] == 5
    assert (buffer.state, count.since()) == (S.SYNCHRONIZED, (0, 0, 0, 0))
    with buffer.slice(10, 5).map(MapMode.WRITE) as array:
        array[:] = -1
    buffer.sync_to_device()
    assert count.since() == (1, 20, 0, 0)
    launch(ADD, 1000, readwrite(buffer), 1.0)
    with buffer.map(MapMode.DISCARD) as array:
        array[:] = DATA
    assert (buffer.state, count.since()) == (S.HOST_DIRTY, (0, 0, 0, 0))
    check_both(buffer, DATA)


def test_row_25_host_views_share_memory(discrete, counted):
    buffer = synced(discrete)
    count = counted(buffer)
    address = buffer.host.ctypes.data
    assert np.asarray(buffer).ctypes.data == np.from_dlpack(buffer).ctypes.data == buffer.slice(0).host.ctypes.data == address
    assert buffer.slice(10).host.ctypes.data == address + 40 and not np.asarray(buffer).flags.writeable
    assert memoryview(buffer).readonly and count.since() == (0, 0, 0, 0)
    mine = DATA.copy()
    wrapped = UnifiedBuffer.from_array(mine, device=discrete)
    wrapped.host[0] = 9
    assert mine[0] == 9 and wrapped.host.ctypes.data == mine.ctypes.data
    check_both(wrapped, mine)


def test_row_26_resize_release_prefetch_and_discard(discrete, counted):
    buffer = synced(discrete)
    launch(ADD, 1000, readwrite(buffer), 1.0)
    buffer.resize(1500)
    assert buffer.shape == (1500,)
    np.testing.assert_array_equal(buffer.to_numpy()[:1000], DATA + 1)
    buffer.resize(10)
    check_both(buffer, DATA[:10] + 1)
    launch(ADD, 10, readwrite(buffer), 1.0)
    count = counted(buffer)
    buffer.release_device()
    assert (buffer.state, count.since()) == (S.HOST_ONLY, (0, 0, 1, 40))
    buffer.prefetch().wait()
    assert (buffer.state, count.since()) == (S.SYNCHRONIZED, (1, 40, 0, 0))
    check_both(buffer, DATA[:10] + 2)
    launch(ADD, 10, readwrite(buffer), 1.0)
    count.since_by_buffer()
    buffer.discard()
    assert buffer.host.shape == (10,) and count.since() == (0, 0, 0, 0)
