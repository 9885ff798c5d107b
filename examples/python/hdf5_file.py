"""HDF5 datasets on a device. A contiguous dataset is a range of its file, and a buffer is made over that; what is chunked, compressed, or of the other byte
order is decoded by HDF5 right into the buffer's memory. Needs h5py."""

import os
import tempfile

import h5py
import numpy as np

import unimem

doubled = unimem.Kernel("doubled").host(lambda x, y: np.multiply(x, 2, out=y))


def lies_in_its_file(dataset):
    """Whether the bytes of an array are those of a range of the file, which is open to be read alone. By its size, too: of a dataset that was never written
    some files tell an offset all the same."""
    stored = dataset.id.get_type()
    return (
        dataset.chunks is None and dataset.id.get_offset() is not None and dataset.id.get_storage_size() == dataset.nbytes
        and dataset.file.mode == "r" and dataset.file.driver == "sec2"
        and dataset.dtype.isnative and stored.equal(h5py.h5t.py_create(dataset.dtype))
    )  # fmt: skip


def read_into(dataset, buffer):
    """Fills a buffer of the dataset's shape and dtype, in this machine's byte order, in steps along the first axis: each chunk is decoded once. HDF5 writes by the
    address, which `.host` could not notice, so it gets a mapping. TypeError for another dtype, which HDF5 would convert to in silence."""
    if buffer.dtype != dataset.dtype.newbyteorder("=") or dataset.dtype.kind not in "iuf":
        raise TypeError(f"dataset {dataset.name!r} is of {dataset.dtype}, the buffer of {buffer.dtype}: they have to be numbers, and the same")
    if buffer.shape != dataset.shape:
        raise ValueError(f"dataset {dataset.name!r} has shape {dataset.shape}, the buffer {buffer.shape}")
    if not dataset.shape:
        raise ValueError(f"dataset {dataset.name!r} is one number: dataset[()]")
    if buffer.size == 0:
        return
    rows, width = dataset.shape[0], buffer.size // dataset.shape[0]
    step = dataset.chunks[0] if dataset.chunks else max(1, (4 << 20) // (width * buffer.itemsize))
    for begin in range(0, rows, step):
        end = min(begin + step, rows)
        with buffer.slice(begin * width, (end - begin) * width).map(unimem.MapMode.DISCARD) as array:
            dataset.read_direct(array.reshape(end - begin, *dataset.shape[1:]), np.s_[begin:end])


def buffer_of(dataset, **how):
    """Over the file where that can be, else filled. `how`: device, manager."""
    if lies_in_its_file(dataset):
        return unimem.UnifiedBuffer.from_file(dataset.file.filename, dataset.dtype, dataset.shape, dataset.id.get_offset(), **how)
    buffer = unimem.UnifiedBuffer(dataset.shape, dataset.dtype.newbyteorder("="), **how)
    read_into(dataset, buffer)
    return buffer


def main():
    manager, device = unimem.MemoryManager(), unimem.make_sim("memory=64MiB")
    image = np.arange(600 * 500, dtype=np.float32).reshape(600, 500)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "images.h5")
        with h5py.File(path, "w") as file:
            file["contiguous"] = image
            file.create_dataset("compressed", data=image, chunks=(100, 100), compression="gzip", shuffle=True)
            file["big-endian"] = image.astype(">f4")
        with h5py.File(path) as file:
            for name, dataset in file.items():
                read = manager.statistics.file_read_bytes
                buffer = buffer_of(dataset, device=device, manager=manager)
                result = unimem.UnifiedBuffer(buffer.shape, buffer.dtype, device=device, manager=manager)
                unimem.launch(doubled, buffer.size, unimem.read(buffer), unimem.write(result))
                assert np.array_equal(result.to_numpy(), dataset[...] * 2)
                print(f"{name}: {manager.statistics.file_read_bytes - read} bytes read from the file by unimem, {buffer.statistics.host_to_device_bytes} to the device")


if __name__ == "__main__":
    main()
