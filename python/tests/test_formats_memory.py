"""What pyarrow, h5py and zarr do with buffers that they are handed: which writes are noticed, and what they read."""

import numpy as np
import pytest

import unimem
from unimem import BufferState, MapMode, UnifiedBuffer

REASON = "is not installed: ./dev check fetches it"
pa = pytest.importorskip("pyarrow", reason=f"pyarrow {REASON}")
h5py = pytest.importorskip("h5py", reason=f"h5py {REASON}")
zarr = pytest.importorskip("zarr", reason=f"zarr {REASON}")
from zarr.buffer.cpu import NDBuffer  # noqa: E402

pytestmark = pytest.mark.check

VALUES = np.arange(1000, dtype=np.float32)


@pytest.fixture
def buffer(sim):
    made = UnifiedBuffer(1000, np.float32, device=sim)
    made.fill(-1).sync_to_device()
    made.sync_to_host()
    assert made.state is BufferState.SYNCHRONIZED
    return made


@pytest.fixture
def dataset(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        yield file.create_dataset("x", data=VALUES)


@pytest.fixture
def array(tmp_path):
    return zarr.create_array(tmp_path / "x.zarr", data=VALUES, chunks=(300,))


def test_hdf5_writes_by_the_address(buffer, dataset):
    """As the documents say of C and Cython: `.host` cannot notice it, and a mapping need not."""
    dataset.read_direct(buffer.host)
    assert buffer.state is BufferState.SYNCHRONIZED and (buffer.device.to_numpy() == -1).all()
    buffer.mark_host_dirty()
    assert np.array_equal(buffer.device.to_numpy(), VALUES)
    buffer.fill(-1)
    with buffer.map(MapMode.DISCARD) as array:
        dataset.read_direct(array)
    assert np.array_equal(buffer.device.to_numpy(), VALUES)
    with pytest.raises(TypeError, match=r"expected numpy\.ndarray, got UnifiedBuffer"):
        dataset.read_direct(buffer)


def test_datasets_are_assigned(buffer, dataset, array, moved):
    for source in (dataset, array):
        buffer.fill(-1).sync_to_device()
        count = moved(buffer)
        buffer.host[10:20] = source[10:20]
        buffer.sync_to_device()
        assert count.since()[1] == 40
        buffer.copy_from(source)
        assert np.array_equal(buffer.device.to_numpy(), VALUES)


def test_zarr_writes_are_noticed(buffer, array, moved):
    count = moved(buffer)
    array.get_basic_selection(np.s_[100:700], out=NDBuffer(buffer.host[100:700]))
    assert buffer.state is BufferState.HOST_DIRTY
    buffer.sync_to_device()
    assert count.since()[:2] == (1, 2400)
    expected = np.full(1000, -1, np.float32)
    expected[100:700] = VALUES[100:700]
    assert np.array_equal(buffer.device.to_numpy(), expected)
    for refused in (buffer, buffer.host):
        with pytest.raises(TypeError, match="needs to be an NDBuffer"):
            array.get_basic_selection(slice(None), out=refused)


def test_zarr_cannot_write_to_what_is_read_only(tmp_path, array):
    VALUES.tofile(tmp_path / "file")
    read = UnifiedBuffer.from_file(tmp_path / "file", np.float32)
    with pytest.raises(ValueError, match="read-only"):
        array.get_basic_selection(slice(None), out=NDBuffer(read.host))
    with pytest.raises(unimem.UnsupportedOperation, match="FileMode::read"):
        read.map(MapMode.DISCARD)


def test_arrow_reads_a_buffer_without_a_copy(buffer):
    buffer.device.copy_from(VALUES)
    buffer.mark_device_dirty()
    theirs = pa.array(np.asarray(buffer))  # brings back what the device has newer
    assert theirs.buffers()[1].address == buffer.host.ctypes.data
    assert np.array_equal(theirs.to_numpy(), VALUES)
    view = pa.py_buffer(buffer)
    assert (view.size, view.is_mutable, view.address) == (4000, False, buffer.host.ctypes.data)


def test_arrows_array_keeps_the_memory(sim):
    buffer = UnifiedBuffer(1000, np.float32, device=sim)
    buffer.host[:] = VALUES
    theirs = pa.array(np.asarray(buffer))
    buffer.free()
    UnifiedBuffer(1000, np.float32, device=sim).host[:] = 0
    assert np.array_equal(theirs.to_numpy(), VALUES)


def test_arrow_reads_into_a_mapping(buffer, tmp_path):
    """pyarrow asks for memory to read, and looks afterwards whether it may write there, so that a buffer is refused."""
    VALUES.tofile(tmp_path / "raw")
    with pa.OSFile(str(tmp_path / "raw")) as file:
        with pytest.raises(TypeError, match="writable"):
            file.readinto(buffer)
        with buffer.map(MapMode.DISCARD) as array:
            assert file.readinto(array) == 4000
    assert np.array_equal(buffer.device.to_numpy(), VALUES)


def test_arrows_arrays_are_read_only_and_are_copied(sim):
    theirs = pa.array(VALUES)
    with pytest.raises(unimem.InvalidArgument, match="read-only.*copy=True"):
        UnifiedBuffer.from_dlpack(theirs, device=sim)
    with pytest.raises(unimem.InvalidArgument, match="read-only.*copy=True"):
        UnifiedBuffer.from_array(theirs.to_numpy(), device=sim)
    for copied in (UnifiedBuffer.from_dlpack(theirs, copy=True, device=sim), UnifiedBuffer.from_array(theirs.to_numpy(), copy=True, device=sim)):
        assert np.array_equal(copied.device.to_numpy(), VALUES)
    with pytest.raises(TypeError, match="null"):
        UnifiedBuffer.from_dlpack(pa.array([1, None], pa.int32()), copy=True)


def test_buffers_are_written_to_datasets(buffer, dataset, array):
    buffer.device.copy_from(VALUES[::-1].copy())
    buffer.mark_device_dirty()
    dataset[...] = buffer
    array[...] = buffer
    assert np.array_equal(dataset[...], VALUES[::-1]) and np.array_equal(array[...], VALUES[::-1])
    with pytest.raises(TypeError, match=r"expected numpy\.ndarray, got UnifiedBuffer"):
        dataset.write_direct(buffer)
