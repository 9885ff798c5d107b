"""Arrow, Parquet, HDF5 and zarr: their own packages read, and examples/python shows how what they read gets into buffers. `./dev check` fetches them
(tools/formats-wheels.txt)."""

import importlib.util
import os
from pathlib import Path

import numpy as np
import pytest

import unimem
from unimem import MapMode, MemoryManager, UnifiedBuffer

REASON = "is not installed: ./dev check fetches it"
pa = pytest.importorskip("pyarrow", reason=f"pyarrow {REASON}")
h5py = pytest.importorskip("h5py", reason=f"h5py {REASON}")
zarr = pytest.importorskip("zarr", reason=f"zarr {REASON}")
import pyarrow.parquet as pq  # noqa: E402
from zarr.buffer.cpu import NDBuffer  # noqa: E402

pytestmark = pytest.mark.check

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NUMBERS = ["u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8"]
MIB = 1 << 20


def example(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / "python" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


arrow, parquet, hdf5, zarrs = map(example, ("arrow_file", "parquet_file", "hdf5_file", "zarr_array"))


class Cases:
    """Random arrays, whose seed the test prints."""

    def __init__(self):
        seed = int(os.environ.get("UNIMEM_TEST_SEED") or np.random.SeedSequence().entropy % 2**32)
        print("UNIMEM_TEST_SEED =", seed)
        self.random = np.random.default_rng(seed)

    def array(self, dtype, *, dimensions=None):
        extents = self.random.integers(1, 40, dimensions or int(self.random.integers(1, 4)))
        made = self.random.integers(0, 256, int(np.prod(extents)) * np.dtype(dtype).itemsize, np.uint8).view(dtype)
        return np.nan_to_num(made).reshape(extents)

    def below(self, most):
        return int(self.random.integers(1, most + 1))


def assert_on_device(buffer, expected):
    """The device has the bytes, and they went there once."""
    before = buffer.statistics.host_to_device_bytes
    assert buffer.device.to_numpy().tobytes() == np.ascontiguousarray(expected).tobytes()
    assert buffer.statistics.host_to_device_bytes - before == buffer.nbytes


def write_arrow(path, table, **options):
    chunk = options.pop("max_chunksize", None)
    with pa.ipc.new_file(path, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as file:
        file.write_table(table, max_chunksize=chunk)


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_arrow_columns_of_any_number(tmp_path, sim, dtype, compression):
    cases, manager = Cases(), MemoryManager()
    values = np.concatenate([cases.array(dtype, dimensions=1) for _ in range(5)])
    path, rows = tmp_path / "table.arrow", cases.below(values.size)
    write_arrow(path, pa.table({"other": np.arange(values.size), "x": values}), compression=compression, max_chunksize=rows)
    buffers = list(arrow.batches_of(path, "x", device=sim, manager=manager))
    assert [one.size for one in buffers] == [min(rows, values.size - i) for i in range(0, values.size, rows)]
    assert manager.statistics.file_read_bytes == 0
    for number, one in enumerate(buffers):
        assert_on_device(one, values[number * rows :][: one.size])
    # pyarrow leaves what does not become smaller as it was.
    assert manager.statistics.file_read_bytes == values.nbytes or (compression and manager.statistics.file_read_bytes < values.nbytes)


@pytest.mark.parametrize("dtype", NUMBERS)
def test_parquet_columns_of_any_number(tmp_path, sim, dtype):
    cases = Cases()
    values = np.concatenate([cases.array(dtype, dimensions=1) for _ in range(5)])
    path = tmp_path / "table.parquet"
    pq.write_table(pa.table({"other": np.arange(values.size), "x": values}), path, row_group_size=cases.below(values.size), compression="zstd")
    with pq.ParquetFile(path) as file:
        buffer = UnifiedBuffer(values.size, parquet.dtype_of(file, "x"), device=sim)
        parquet.read_into(file, "x", buffer)
    assert buffer.dtype == values.dtype
    assert_on_device(buffer, values)


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("stored", ["contiguous", "big-endian", "chunked", "compressed", "user block"])
def test_hdf5_datasets_of_any_number(tmp_path, sim, dtype, stored):
    cases, manager = Cases(), MemoryManager()
    values = cases.array(dtype)
    how = {}
    if stored in ("chunked", "compressed"):
        how["chunks"] = tuple(cases.below(extent) for extent in values.shape)
    if stored == "compressed":
        how |= {"compression": "gzip", "shuffle": True, "fletcher32": True}
    with h5py.File(tmp_path / "x.h5", "w", userblock_size=1024 if stored == "user block" else 0) as file:
        file.create_dataset("x", data=values.astype(values.dtype.newbyteorder(">")) if stored == "big-endian" else values, **how)
    with h5py.File(tmp_path / "x.h5") as file:
        buffer = hdf5.buffer_of(file["x"], device=sim, manager=manager)
        assert (buffer.shape, buffer.dtype) == (values.shape, values.dtype)
        assert_on_device(buffer, values)
        in_place = stored in ("contiguous", "user block") or (stored == "big-endian" and values.itemsize == 1)
        assert manager.statistics.file_read_bytes == (values.nbytes if in_place else 0)


@pytest.mark.parametrize("dtype", [*NUMBERS, ">f4"])
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("sharded", [False, True])
def test_zarr_arrays_of_any_number(tmp_path, sim, dtype, version, sharded):
    if version == 2 and sharded:
        return  # format 3 alone has shards
    cases = Cases()
    values = cases.array(dtype)
    chunks = tuple(cases.below(extent) for extent in values.shape)
    shards = tuple(chunk * cases.below(3) for chunk in chunks) if sharded else None
    array = zarr.create_array(tmp_path / "x.zarr", data=values, chunks=chunks, shards=shards, zarr_format=version)
    buffer = UnifiedBuffer(array.shape, np.dtype(array.dtype).newbyteorder("="), device=sim)
    zarrs.read_into(array, buffer)
    assert_on_device(buffer, values.astype(buffer.dtype))


def test_rows_with_a_step(tmp_path, sim):
    values = np.arange(600, dtype=np.int32).reshape(60, 10)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        dataset = file.create_dataset("x", data=values, chunks=(7, 3), compression="gzip")
        some = UnifiedBuffer((15, 10), np.int32, device=sim)
        with some.map(MapMode.DISCARD) as part:
            dataset.read_direct(part, np.s_[1:60:4])
        assert_on_device(some, values[1::4])
        spread = UnifiedBuffer((60, 10), np.int32, device=sim).zeros()
        with spread.map() as part:  # what lies between stays
            dataset.read_direct(part, np.s_[0:30], np.s_[0:60:2])
        expected = np.zeros_like(values)
        expected[::2] = values[:30]
        assert_on_device(spread, expected)
    array = zarr.create_array(tmp_path / "x.zarr", data=values, chunks=(7, 3))
    some.sync_to_device()
    array.get_basic_selection(np.s_[0:60:4], out=NDBuffer(some.host))
    assert_on_device(some, values[::4])


def test_nothing_in_it(tmp_path, sim):
    write_arrow(tmp_path / "x.arrow", pa.table({"x": np.zeros(0, np.int16)}))
    assert list(arrow.batches_of(tmp_path / "x.arrow", "x", device=sim)) == []
    pq.write_table(pa.table({"x": np.zeros(0, np.int16)}), tmp_path / "x.parquet")
    with pq.ParquetFile(tmp_path / "x.parquet") as file:
        parquet.read_into(file, "x", UnifiedBuffer(0, parquet.dtype_of(file, "x")))
    with h5py.File(tmp_path / "x.h5", "w", userblock_size=512) as file:
        file.create_dataset("x", (0, 3), "f4", chunks=(1, 3), maxshape=(None, 3))
        file.create_dataset("contiguous", (3, 0), "f4")
        file.create_dataset("never written", (100,), "f4", fillvalue=7)
    with h5py.File(tmp_path / "x.h5") as file:
        assert hdf5.buffer_of(file["x"]).shape == (0, 3)
        assert hdf5.buffer_of(file["contiguous"]).shape == (3, 0)
        assert not hdf5.lies_in_its_file(file["never written"])
        assert (hdf5.buffer_of(file["never written"]).to_numpy() == 7).all()
    array = zarr.create_array(tmp_path / "x.zarr", shape=(0, 3), chunks=(1, 3), dtype="f4")
    zarrs.read_into(array, UnifiedBuffer((0, 3), np.float32))
    array = zarr.create_array(tmp_path / "never.zarr", shape=(100,), chunks=(30,), dtype="f4", fill_value=7)
    buffer = UnifiedBuffer(100, np.float32, device=sim)
    zarrs.read_into(array, buffer)
    assert (buffer.device.to_numpy() == 7).all()


def test_datasets_larger_than_the_hosts_limit(tmp_path, sim):
    """In place, part by part; what has to be decoded goes to a buffer over a file of ours, which takes what the limit has no room for."""
    values = np.random.default_rng(5).integers(0, 100, (1024, 2048), dtype=np.int32)  # 8 MiB
    limit = 2 * MIB
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"] = values
        file.create_dataset("chunked", data=values, chunks=(64, 512), compression="lzf")
    pq.write_table(pa.table({"x": values.ravel()}), tmp_path / "x.parquet", row_group_size=100_000)
    array = zarr.create_array(tmp_path / "x.zarr", data=values, chunks=(64, 512))

    manager = MemoryManager()
    manager.set_limit("cpu", limit)
    with h5py.File(tmp_path / "x.h5") as file:
        buffer = hdf5.buffer_of(file["x"], device=sim, manager=manager)
        for begin in range(0, values.size, values.size // 16):
            assert np.array_equal(buffer.slice(begin, values.size // 16).host, values.ravel()[begin:][: values.size // 16])
        assert manager.statistics.file_read_bytes == values.nbytes
        assert manager.statistics.reserved_bytes <= limit

    def decoded(fill):
        scratch = tmp_path / "scratch"
        scratch.write_bytes(bytes(values.nbytes))
        manager = MemoryManager()
        manager.set_limit("cpu", limit)
        buffer = UnifiedBuffer.from_file(scratch, np.int32, values.shape, mode="r+", device=sim, manager=manager)
        fill(buffer)
        assert manager.statistics.reserved_bytes <= limit
        assert manager.statistics.file_read_bytes == 0  # what is overwritten altogether is not brought in
        buffer.flush()
        assert np.array_equal(np.fromfile(scratch, np.int32).reshape(values.shape), values)
        assert manager.statistics.file_written_bytes == values.nbytes

    with h5py.File(tmp_path / "x.h5") as file:
        decoded(lambda buffer: hdf5.read_into(file["chunked"], buffer))
    decoded(lambda buffer: zarrs.read_into(array, buffer))
    with pq.ParquetFile(tmp_path / "x.parquet") as file:
        decoded(lambda buffer: parquet.read_into(file, "x", buffer))


def test_a_damaged_chunk_is_told_and_the_buffer_goes_on(tmp_path, sim):
    values = np.arange(100, dtype=np.int32)
    array = zarr.create_array(tmp_path / "x.zarr", data=values, chunks=(10,))
    whole = (tmp_path / "x.zarr/c/3").read_bytes()
    (tmp_path / "x.zarr/c/3").write_bytes(b"damaged")
    buffer = UnifiedBuffer(100, np.int32, device=sim)
    with pytest.raises(RuntimeError):
        zarrs.read_into(array, buffer)
    assert np.array_equal(buffer.slice(0, 30).device.to_numpy(), values[:30])  # what came before is there
    (tmp_path / "x.zarr/c/3").write_bytes(whole)
    zarrs.read_into(array, buffer)
    assert np.array_equal(buffer.device.to_numpy(), values)


def test_what_is_no_such_number_is_refused(tmp_path):
    table = pa.table({"i": pa.array([1, 2, None], pa.int32()), "b": pa.array([True, False, True]), "s": ["a", "b", "c"]})
    write_arrow(tmp_path / "x.arrow", table)
    pq.write_table(table, tmp_path / "x.parquet")
    for name, kind in (("b", "bool"), ("s", "string")):
        with pytest.raises(TypeError, match=f"column '{name}' is of {kind}, which is no number"):
            next(arrow.batches_of(tmp_path / "x.arrow", name))
    with pytest.raises(ValueError, match="column 'i' has 1 nulls in batch 0"):
        next(arrow.batches_of(tmp_path / "x.arrow", "i"))
    with pytest.raises(KeyError, match="missing"):
        next(arrow.batches_of(tmp_path / "x.arrow", "missing"))
    with pq.ParquetFile(tmp_path / "x.parquet") as file:
        for name, kind in (("b", "bool"), ("s", "string")):
            with pytest.raises(TypeError, match=f"column '{name}' is of {kind}, which is no number"):
                parquet.dtype_of(file, name)
        buffer = UnifiedBuffer(3, np.int32)
        with pytest.raises(ValueError, match="column 'i' has 1 nulls in row group 0"):
            parquet.read_into(file, "i", buffer)
        parquet.read_into(file, "i", buffer, null=-1)
        assert buffer.to_numpy().tolist() == [1, 2, -1]
        with pytest.raises(pa.ArrowInvalid, match="truncated"):
            parquet.read_into(file, "i", buffer, null=1.5)
        assert buffer.to_numpy().tolist() == [1, 2, -1]
        for dtype in (np.uint8, np.int64, np.float64):
            with pytest.raises(TypeError, match="column 'i' is of int32, the buffer of"):
                parquet.read_into(file, "i", UnifiedBuffer(3, dtype), null=0)
        with pytest.raises(ValueError, match="has 3 rows, the buffer 4 elements"):
            parquet.read_into(file, "i", UnifiedBuffer(4, np.int32), null=0)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"] = np.arange(6, dtype=np.float64).reshape(2, 3)
        file["text"] = "text"
        file["compound"] = np.zeros(3, [("a", "i4"), ("b", "f4")])
        for dtype in (np.float32, np.int64):
            with pytest.raises(TypeError, match="is of float64, the buffer of"):
                hdf5.read_into(file["x"], UnifiedBuffer((2, 3), dtype))
        with pytest.raises(ValueError, match=r"has shape \(2, 3\), the buffer \(3, 2\)"):
            hdf5.read_into(file["x"], UnifiedBuffer((3, 2), np.float64))
        with pytest.raises(TypeError, match="they have to be numbers"):
            hdf5.read_into(file["compound"], UnifiedBuffer(3, file["compound"].dtype))
        with pytest.raises(unimem.InvalidArgument, match="dtype"):
            hdf5.buffer_of(file["text"])
    array = zarr.create_array(tmp_path / "x.zarr", data=np.arange(6.0).reshape(2, 3), chunks=(1, 3))
    with pytest.raises(TypeError, match="the array is of float64, the buffer of float32"):
        zarrs.read_into(array, UnifiedBuffer((2, 3), np.float32))
    with pytest.raises(ValueError, match=r"has shape \(2, 3\), the buffer \(6,\)"):
        zarrs.read_into(array, UnifiedBuffer(6, np.float64))
