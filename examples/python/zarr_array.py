"""A zarr array on a device, of format 2 or 3: zarr decodes each chunk, and puts it where the buffer has it. Needs zarr."""

import os
import tempfile

import numpy as np
import zarr
from zarr.buffer.cpu import NDBuffer

import unimem

doubled = unimem.Kernel("doubled").host(lambda x, y: np.multiply(x, 2, out=y))


def read_into(array, buffer):
    """Fills a buffer of the array's shape and dtype, in this machine's byte order, in steps along the first axis: each chunk, or shard, is decoded once.
    TypeError for another dtype, which zarr would convert to in silence."""
    if buffer.dtype != array.dtype.newbyteorder("=") or array.dtype.kind not in "iuf":
        raise TypeError(f"the array is of {array.dtype}, the buffer of {buffer.dtype}: they have to be numbers, and the same")
    if buffer.shape != array.shape:
        raise ValueError(f"the array has shape {array.shape}, the buffer {buffer.shape}")
    if not array.shape:
        raise ValueError("the array is one number: array[()]")
    if buffer.size == 0:
        return
    rows, width = array.shape[0], buffer.size // array.shape[0]
    step = (array.shards or array.chunks)[0]
    for begin in range(0, rows, step):
        end = min(begin + step, rows)
        with buffer.slice(begin * width, (end - begin) * width).map(unimem.MapMode.DISCARD) as part:
            array.get_basic_selection(np.s_[begin:end], out=NDBuffer(part.reshape(end - begin, *array.shape[1:])))


def main():
    device = unimem.make_sim("memory=64MiB")
    image = np.arange(600 * 500, dtype=np.float32).reshape(600, 500)
    with tempfile.TemporaryDirectory() as folder:
        for version in (2, 3):
            array = zarr.create_array(os.path.join(folder, f"images-{version}.zarr"), data=image, chunks=(100, 100), zarr_format=version)
            buffer = unimem.UnifiedBuffer(array.shape, array.dtype, device=device)
            read_into(array, buffer)
            result = unimem.UnifiedBuffer(buffer.shape, buffer.dtype, device=device)
            unimem.launch(doubled, buffer.size, unimem.read(buffer), unimem.write(result))
            assert np.array_equal(result.to_numpy(), array[...] * 2)
            print(f"format {version}: {array.nchunks} chunks, {buffer.statistics.host_to_device_bytes} bytes to the device")


if __name__ == "__main__":
    main()
