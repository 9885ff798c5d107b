"""Buffers in an object store, as Ray has it: what is put there is pickled by protocol 5, with its data out of band, lies in memory that all processes of the host
map to be read, and is loaded over that memory. With Ray the two functions are `ray.put(buffer)` and `ray.get(reference)`, and a buffer may be an argument and
a result of tasks; nothing of a buffer's has to be registered.

What is in the store stays as it is: a buffer that is loaded has a copy of its own, which may be written, here and on devices."""

import mmap
import multiprocessing
import pickle
import tempfile
from pathlib import Path

import numpy as np

import unimem

ALIGNMENT = 64  # Ray's


def put(path: Path, value: object) -> None:
    frames: list[pickle.PickleBuffer] = []
    head = pickle.dumps(value, 5, buffer_callback=frames.append)
    with path.open("wb") as file:
        places = []
        for frame in frames:
            data = frame.raw()  # the buffer's memory, under a lease until it is released
            file.seek(-(-file.tell() // ALIGNMENT) * ALIGNMENT)
            places.append((file.tell(), data.nbytes))
            file.write(data)
            data.release()
            frame.release()
        path.with_suffix(".head").write_bytes(pickle.dumps((head, places)))


def get(path: Path) -> object:
    head, places = pickle.loads(path.with_suffix(".head").read_bytes())
    with path.open("rb") as file:
        store = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    return pickle.loads(head, buffers=[store[begin : begin + size] for begin, size in places])


def doubled(folder: str) -> float:
    """A task in another process: the argument comes from the store, and the result goes there."""
    table = get(Path(folder) / "table")
    assert isinstance(table, unimem.UnifiedBuffer)
    double = unimem.Kernel("double").host(lambda x: np.multiply(x, 2, out=x))
    unimem.launch(double, table.size, unimem.readwrite(table))
    put(Path(folder) / "doubled", table)
    return float(table.host.sum())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        table = unimem.UnifiedBuffer((1000, 100), np.float64, name="table")
        table.host[:] = np.arange(100)
        put(Path(folder) / "table", table)
        before = (Path(folder) / "table").read_bytes()
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            print("sum of the doubled:", pool.apply(doubled, (folder,)))
        back = get(Path(folder) / "doubled")
        assert isinstance(back, unimem.UnifiedBuffer)
        print("it came back as it was sent:", back.shape, back.dtype, back.name, bool((back.host == 2 * table.host).all()))
        print("what is in the store is the same:", (Path(folder) / "table").read_bytes() == before)
