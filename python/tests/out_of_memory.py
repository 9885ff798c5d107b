"""Runs every operation with each of its allocations by `operator new` failing in its turn: in the calling thread, or wherever it comes.

    LD_PRELOAD=build/release/tests/core/libfailing_new.so ./dev python python/tests/out_of_memory.py cpu [all]

Prints how many allocations each operation has that failed. What fails is MemoryError, OutOfMemory, or a launch whose event says so; a buffer
is as it was or as asked for, or says that its bytes are lost; and afterwards everything works and nothing is kept."""

import asyncio
import copy
import ctypes
import faulthandler
import gc
import pickle
import sys

import numpy as np

import unimem
from unimem import DataLost, Kernel, KernelError, MapMode, MemoryManager, UnifiedBuffer, launch, readwrite

COUNT = 100
ADD = Kernel("add").host(lambda x, a: np.add(x, a, out=x))
BROKEN = Kernel("broken").host(lambda x: 1 // 0)

faulthandler.enable()
process = ctypes.PyDLL(None)
device, all_threads = unimem.device(sys.argv[1]), sys.argv[2:] == ["all"]
other = unimem.device("sim:memory=3MiB")
manager = MemoryManager()


def made(count=50):
    return UnifiedBuffer(count, np.int32, device=device, manager=manager)


def mapped(buffer):
    with buffer.slice(0, 10).map(MapMode.READ_WRITE) as array:
        array[:] = 0


def write(array, value):
    array[...] = value


def failing(buffer):
    try:
        launch(BROKEN, 1, readwrite(made().fill(0)), device=device).wait()
    except KernelError as error:
        if "ZeroDivisionError" not in str(error) and "bad_alloc" not in str(error):
            raise


async def awaited(buffer):
    await launch(ADD, COUNT, readwrite(buffer), 0, device=device)


OPERATIONS = {
    "make": lambda buffer: made(),
    "make and fill": lambda buffer: made().fill(1),
    "launch": lambda buffer: launch(ADD, COUNT, readwrite(buffer), 0, device=device).wait(),
    "launch elsewhere": lambda buffer: launch(ADD, COUNT, readwrite(buffer), 0, device=other).wait(),
    "launch and read": lambda buffer: [launch(ADD, COUNT, readwrite(buffer), 0, device=device), buffer.to_numpy()],
    "await": lambda buffer: asyncio.run(awaited(buffer)),
    "a launch that fails": failing,
    "fill": lambda buffer: buffer.fill(0),
    "fill a part": lambda buffer: buffer.fill(0, 10, 20),
    "copy from": lambda buffer: buffer.copy_from(np.zeros(COUNT, np.int32)),
    "copy between": lambda buffer: unimem.copy(buffer, UnifiedBuffer(COUNT, np.int32, device=other, manager=manager)),
    "read": lambda buffer: buffer.host.sum(),
    "write": lambda buffer: write(buffer.host, 0),
    "write a slice": lambda buffer: write(buffer.slice(5, 10).host, 0),
    "map": mapped,
    "memoryview": lambda buffer: bytes(memoryview(buffer)),
    "dlpack": np.from_dlpack,
    "device array": lambda buffer: buffer.device,
    "wrap": lambda buffer: UnifiedBuffer.from_array(np.zeros(10, np.int32), device=device, manager=manager).fill(2),
    "copy": copy.copy,
    "pickle": lambda buffer: pickle.loads(pickle.dumps(buffer, 5)),
    "resize": lambda buffer: made().fill(1).resize(120),
    "free": lambda buffer: made(10).fill(0).free(),
    "add": lambda buffer: buffer + 1,
    "statistics": lambda buffer: (buffer.statistics, repr(buffer), str(manager.statistics)),
}


def sweep(name, operation):
    for n in range(1, 3000):
        buffer = made(COUNT).fill(0)
        buffer.synchronize()
        process.fail_new(n, all_threads)
        try:
            operation(buffer)
        except (MemoryError, KernelError, DataLost) as error:
            assert not isinstance(error, KernelError) or "bad_alloc" in str(error), (name, n, error)
        reached = not process.new_is_to_fail()
        process.fail_new(0, 0)
        try:
            assert not buffer.to_numpy().any(), (name, n)
        except (MemoryError, KernelError, DataLost) as error:
            assert all_threads and "bad_alloc" in str(error), (name, n, error)
        buffer.copy_from(np.zeros(COUNT, np.int32))
        launch(ADD, COUNT, readwrite(buffer), n, device=device).wait()
        assert (buffer.to_numpy() == n).all(), (name, n)
        if not reached:
            return n - 1
    raise AssertionError(f"{name} never passes")


# Nanobind's own table of objects grows where nothing can be thrown, once in a long while: it has grown before, and does not shrink.
many = [made(1) for _ in range(5000)]
del many
for name, operation in OPERATIONS.items():
    print(name, sweep(name, operation), flush=True)
device.synchronize()
gc.collect()
assert not manager.live(), manager.live()
