"""An Arrow file's column on a device. The columns of an uncompressed file are ranges of it, so buffers are made over the file itself: what is looked
at comes from there, and nothing else is read. Needs pyarrow."""

import os
import tempfile

import numpy as np
import pyarrow as pa

import unimem

doubled = unimem.Kernel("doubled").host(lambda x, y: np.multiply(x, 2, out=y))


def batches_of(path, name, **how):
    """A buffer for each record batch that has rows: over the file where the values lie in it as they are, else over a copy of what pyarrow has
    decompressed. `how`: device, manager. ValueError for a column with nulls, TypeError for one of no numbers, KeyError for none."""
    with pa.memory_map(os.fspath(path)) as mapped:
        file = pa.ipc.open_file(mapped)
        mapped.seek(0)
        begin = mapped.read_buffer(mapped.size()).address
        for number in range(file.num_record_batches):
            column = file.get_batch(number).column(name)
            if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
                raise TypeError(f"column {name!r} is of {column.type}, which is no number of whole bytes")
            if column.null_count:
                raise ValueError(f"column {name!r} has {column.null_count} nulls in batch {number}: pyarrow.compute.fill_null gives them a value")
            if len(column) == 0:
                continue
            dtype = np.dtype(column.type.to_pandas_dtype())
            offset = column.buffers()[1].address + column.offset * dtype.itemsize - begin
            if 0 <= offset < mapped.size():
                yield unimem.UnifiedBuffer.from_file(path, dtype, len(column), offset, **how)
            else:
                yield unimem.UnifiedBuffer.from_array(column.to_numpy(), copy=True, **how)


def main():
    manager, device = unimem.MemoryManager(), unimem.make_sim("memory=64MiB")
    rows = pa.table({"id": np.arange(300_000), "price": np.linspace(0, 1, 300_000, dtype=np.float32)})
    with tempfile.TemporaryDirectory() as folder:
        for compression in (None, "lz4"):
            path = os.path.join(folder, f"prices-{compression}.arrow")
            with pa.ipc.new_file(path, rows.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as file:
                file.write_table(rows, max_chunksize=100_000)
            read, found = manager.statistics.file_read_bytes, []
            for prices in batches_of(path, "price", device=device, manager=manager):
                result = unimem.UnifiedBuffer(prices.size, prices.dtype, device=device, manager=manager)
                unimem.launch(doubled, prices.size, unimem.read(prices), unimem.write(result))
                found.append(result.to_numpy())
                assert prices.statistics.host_to_device_bytes == prices.nbytes
            with pa.OSFile(path) as file:
                expected = pa.ipc.open_file(file).read_all().column("price").to_numpy() * 2
            assert np.array_equal(np.concatenate(found), expected)
            print(f"{compression or 'uncompressed'}: {len(found)} batches, {manager.statistics.file_read_bytes - read} bytes read from the file by unimem")


if __name__ == "__main__":
    main()
