"""A Parquet file's column in one buffer. Parquet is always decoded, so pyarrow does that, some rows at a time, and each part is copied once, to its
place. Needs pyarrow."""

import os
import tempfile

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import unimem

doubled = unimem.Kernel("doubled").host(lambda x, y: np.multiply(x, 2, out=y))


def dtype_of(file, name):
    """Of the column of a ParquetFile. KeyError where there is none, TypeError for one of no numbers."""
    kind = file.schema_arrow.field(name).type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise TypeError(f"column {name!r} is of {kind}, which is no number of whole bytes")
    return np.dtype(kind.to_pandas_dtype())


def read_into(file, name, buffer, null=None):
    """Fills a buffer of as many elements as the file has rows. `null`: the value of nulls; without one they are a ValueError. A buffer over a file in mode
    "r+" may be larger than the host's limit. TypeError for another dtype, which NumPy would convert to in silence."""
    if buffer.dtype != dtype_of(file, name):
        raise TypeError(f"column {name!r} is of {dtype_of(file, name)}, the buffer of {buffer.dtype}: they have to be the same")
    if buffer.size != file.metadata.num_rows:
        raise ValueError(f"column {name!r} has {file.metadata.num_rows} rows, the buffer {buffer.size} elements")
    begin = 0
    for group in range(file.num_row_groups):
        for batch in file.iter_batches(row_groups=[group], columns=[name]):
            column = batch.column(0)
            if column.null_count and null is None:
                raise ValueError(f"column {name!r} has {column.null_count} nulls in row group {group}: say what they are, null=0")
            values = column.fill_null(pa.scalar(null).cast(column.type)) if column.null_count else column
            buffer.slice(begin, len(values)).copy_from(values.to_numpy())
            begin += len(values)


def main():
    device = unimem.make_sim("memory=64MiB")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "prices.parquet")
        prices = np.linspace(0, 1, 300_000, dtype=np.float32)
        pq.write_table(pa.table({"id": np.arange(300_000), "price": pa.array(prices, mask=prices > 0.75)}), path, row_group_size=100_000)
        with pq.ParquetFile(path) as file:
            buffer = unimem.UnifiedBuffer(file.metadata.num_rows, dtype_of(file, "price"), device=device)
            try:
                read_into(file, "price", buffer)
            except ValueError as error:
                print(error)
            read_into(file, "price", buffer, null=0)
            print(f"{file.num_row_groups} row groups, {buffer.size} rows")
        result = unimem.UnifiedBuffer(buffer.size, buffer.dtype, device=device)
        unimem.launch(doubled, buffer.size, unimem.read(buffer), unimem.write(result))
        expected = pc.fill_null(pq.read_table(path)["price"], pa.scalar(0, pa.float32())).to_numpy() * 2
        assert np.array_equal(result.to_numpy(), expected)
        print(f"{buffer.statistics.host_to_device_bytes} bytes to the device, {result.statistics.device_to_host_bytes} back")


if __name__ == "__main__":
    main()
