"""The state table, cell by cell, with the bytes on both sides and what moved for them."""

import numpy as np
import pytest

import unimem
from unimem import BufferNotAllocated, BufferState, UnifiedBuffer

S = BufferState
DATA = np.arange(1000, dtype=np.float32)
BYTES = DATA.nbytes


def on_device(buffer):
    return buffer.device.to_numpy()


def write_on_device(buffer, values):
    buffer.device.copy_from(values)
    buffer.mark_device_dirty()


def test_a_new_buffer_has_no_data(discrete):
    buffer = UnifiedBuffer((10, 20), np.int16, device=discrete)
    assert buffer.state is S.UNINITIALIZED
    assert not buffer.is_allocated
    assert (buffer.shape, buffer.size, buffer.nbytes, buffer.ndim, buffer.itemsize) == ((10, 20), 200, 400, 2, 2)
    assert buffer.dtype == np.dtype(np.int16)
    assert len(buffer) == 10


def test_writing_through_the_host_is_host_dirty(discrete):
    buffer = UnifiedBuffer(1000, device=discrete)
    view = buffer.host
    assert buffer.state is S.HOST_ONLY
    view[:] = DATA
    assert buffer.state is S.HOST_DIRTY


def test_a_first_device_access_gives_device_only(discrete):
    buffer = UnifiedBuffer(1000, device=discrete)
    array = buffer.device
    assert buffer.state is S.DEVICE_ONLY
    assert array.shape == (1000,) and array.dtype == np.float32 and array.device == discrete


def test_host_writes_travel_once_and_reach_the_device(discrete, moved):
    buffer = UnifiedBuffer(1000, device=discrete)
    buffer.host[:] = DATA
    count = moved(buffer)
    np.testing.assert_array_equal(on_device(buffer), DATA)
    assert buffer.state is S.SYNCHRONIZED
    assert count.since() == (1, BYTES, 0, 0)
    buffer.sync_to_device()
    _ = buffer.device
    assert count.since() == (0, 0, 0, 0)


def test_device_writes_travel_back_once(discrete, moved):
    buffer = UnifiedBuffer(1000, device=discrete)
    buffer.host[:] = DATA
    buffer.sync_to_device()
    write_on_device(buffer, DATA * 2)
    assert buffer.state is S.DEVICE_DIRTY
    count = moved(buffer)
    np.testing.assert_array_equal(buffer.host, DATA * 2)
    assert buffer.state is S.SYNCHRONIZED
    assert count.since() == (0, 0, 1, BYTES)
    np.testing.assert_array_equal(buffer.to_numpy(), DATA * 2)
    assert count.since() == (0, 0, 0, 0)


def test_reading_marks_nothing(discrete, moved):
    buffer = UnifiedBuffer(1000, device=discrete)
    buffer.host[:] = DATA
    buffer.sync_to_device()
    count = moved(buffer)
    host = buffer.host
    assert float(host.sum()) == float(DATA.sum())
    assert host[3] == 3 and host[-1] == 999 and host.mean() == DATA.mean()
    assert np.dot(host, host) == np.dot(DATA, DATA)
    assert list(host[:3]) == [0, 1, 2]
    _ = host + 1, host * host, np.sqrt(host), host.reshape(10, 100).T.copy(), np.sort(host), host.astype(np.int32)
    assert buffer[5] == 5 and list(buffer)[7] == 7
    assert buffer.state is S.SYNCHRONIZED
    buffer.sync_to_device()
    assert count.since() == (0, 0, 0, 0)


@pytest.mark.parametrize("method", ["sync_to_device", "sync_to_host", "synchronize", "mark_host_dirty", "mark_device_dirty"])
def test_marks_and_syncs_need_storage(discrete, method):
    buffer = UnifiedBuffer(10, device=discrete, name="empty")
    with pytest.raises(BufferNotAllocated) as caught:
        getattr(buffer, method)()
    assert "empty" in caught.value.buffer and "empty" in str(caught.value)
    assert caught.value.operation
    assert buffer.state is S.UNINITIALIZED and not buffer.is_allocated


def test_the_explicit_forms_end_synchronized(discrete):
    for end in ("sync_to_device", "synchronize"):
        buffer = UnifiedBuffer(1000, device=discrete)
        buffer.copy_from(DATA)
        assert buffer.state is S.HOST_DIRTY
        getattr(buffer, end)()
        assert buffer.state is S.SYNCHRONIZED
    write_on_device(buffer, DATA + 1)
    buffer.sync_to_host()
    assert buffer.state is S.SYNCHRONIZED
    np.testing.assert_array_equal(buffer.host, DATA + 1)


def test_disjoint_writes_are_mixed_and_merge(discrete, moved):
    buffer = UnifiedBuffer(1000, device=discrete)
    buffer.host[:] = 0
    buffer.sync_to_device()
    host = buffer.host  # asking for it later would bring the device's bytes along
    buffer.device.copy_from(np.ones(1000))
    buffer.mark_device_dirty(0, 500)
    host[600:700] = 2
    assert buffer.state is S.MIXED
    count = moved(buffer)
    buffer.synchronize()
    expected = np.zeros(1000)
    expected[:500], expected[600:700] = 1, 2
    np.testing.assert_array_equal(buffer.host, expected)
    assert count.since() == (1, 400, 1, 2000)


def test_overlapping_writes_are_a_conflict_that_names_both(discrete):
    buffer = UnifiedBuffer(1000, device=discrete, name="torn")
    buffer.host[:] = 0
    buffer.sync_to_device()
    buffer.mark_device_dirty(0, 500)
    with pytest.raises(unimem.CoherenceConflict) as caught:
        buffer.mark_host_dirty(400, 300)
    error = caught.value
    assert "torn" in error.buffer
    assert (error.earlier.place, error.earlier.begin, error.earlier.end) == (discrete.id, 0, 2000)
    assert (error.later.place, error.later.begin, error.later.end) == ("host", 1600, 2800)


def test_a_covering_mark_wins(discrete):
    buffer = UnifiedBuffer(1000, device=discrete)
    buffer.host[:] = 1
    buffer.sync_to_device()
    write_on_device(buffer, np.full(1000, 2))
    buffer.mark_host_dirty()
    assert buffer.state is S.HOST_DIRTY
    assert buffer.statistics.conflicting_marks == 1
    np.testing.assert_array_equal(on_device(buffer), np.ones(1000))


def test_strict_buffers_want_to_be_allocated_first(discrete, monkeypatch):
    for buffer in (UnifiedBuffer(10, device=discrete, strict=True), strict_by_environment(discrete, monkeypatch)):
        for access in (lambda b: b.host, lambda b: b.device, lambda b: b.to_numpy(), lambda b: b.copy_from(np.zeros(10))):
            with pytest.raises(BufferNotAllocated):
                access(buffer)
        assert buffer.allocate() is buffer
        buffer.host[:] = 3
        np.testing.assert_array_equal(on_device(buffer), np.full(10, 3))


def strict_by_environment(device, monkeypatch):
    monkeypatch.setenv("UNIMEM_STRICT", "1")
    return UnifiedBuffer(10, device=device)


def test_without_a_device_only_states_move(cpu):
    buffer = UnifiedBuffer(1000, device=cpu)
    buffer.host[:] = DATA
    assert buffer.state is S.HOST_DIRTY
    array = buffer.device
    assert buffer.state is S.SYNCHRONIZED
    assert array is buffer.host
    assert array.ctypes.data == buffer.host.ctypes.data
    buffer.mark_device_dirty()
    assert buffer.state is S.DEVICE_DIRTY
    np.testing.assert_array_equal(buffer.host, DATA)
    assert buffer.state is S.SYNCHRONIZED
    s = buffer.statistics
    assert (s.host_to_device_bytes, s.device_to_host_bytes) == (0, 0)


def test_on_the_cpu_a_buffer_starts_device_only(cpu):
    buffer = UnifiedBuffer(1000, device=cpu)
    _ = buffer.device
    assert buffer.state is S.DEVICE_ONLY


def test_two_devices_see_each_others_writes(sim, other_sim):
    buffer = UnifiedBuffer(1000, device=sim)
    buffer.host[:] = DATA
    buffer.on(other_sim).copy_from(DATA * 3)
    buffer.mark_device_dirty(device=other_sim)
    np.testing.assert_array_equal(on_device(buffer), DATA * 3)
    np.testing.assert_array_equal(buffer.host, DATA * 3)
    assert buffer.valid_on(sim) and buffer.valid_on(other_sim) and buffer.valid_on_host


def test_giving_copies_back_saves_what_only_they_hold(discrete):
    buffer = UnifiedBuffer(1000, device=discrete)
    buffer.host[:] = DATA
    buffer.sync_to_device()
    write_on_device(buffer, DATA * 5)
    buffer.release_device()
    assert buffer.state is S.HOST_ONLY
    np.testing.assert_array_equal(buffer.to_numpy(), DATA * 5)
    buffer.sync_to_device()
    buffer.release_host()
    assert buffer.state is S.DEVICE_ONLY
    np.testing.assert_array_equal(buffer.to_numpy(), DATA * 5)


def test_states_print_as_the_documents_show_them():
    assert [str(one) for one in S] == [
        "UNINITIALIZED", "HOST_ONLY", "DEVICE_ONLY", "SYNCHRONIZED", "HOST_DIRTY", "DEVICE_DIRTY", "MIXED",
    ]  # fmt: skip
    assert [one.value for one in S] == [one.name.lower() for one in S]


def test_metal_is_refused_with_a_reason(sim):
    buffer = UnifiedBuffer(4, device=sim)
    for use in (lambda: buffer.metal, buffer.mark_metal_dirty):
        with pytest.raises(unimem.UnsupportedOperation, match="Metal") as caught:
            use()
        assert caught.value.operation in ("metal", "mark_metal_dirty")
