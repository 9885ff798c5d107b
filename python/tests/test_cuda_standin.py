"""What Python hands over of CUDA memory, on the stand-in driver of the C++ tests, over host memory: no kernel runs, and no hardware is needed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import unimem

pytestmark = pytest.mark.check

STANDIN = Path(unimem.__file__).parents[2] / "tests" / "device" / "cuda_standin" / "libcuda.so.1"

PREAMBLE = """
import ctypes, gc
import numpy as np
import unimem
from unimem import MemoryManager, UnifiedBuffer
device = unimem.device("cuda:0")
manager = MemoryManager()
manager.set_limit(device, 1 << 20)

def made(value, count=1 << 18):
    return UnifiedBuffer(count, np.uint8, device=device, manager=manager).fill(value)

def fill_the_device():
    '''With four times of what it holds: everything that may be evicted is.'''
    many = [made(value) for value in range(16)]
    for one in many:
        one.sync_to_device()
    assert manager.statistics.reclaims > 0

def at(address, count=1 << 18):
    return np.ctypeslib.as_array((ctypes.c_uint8 * count).from_address(address))
"""


def on_the_standin(code):
    if not STANDIN.is_file():
        pytest.skip(f"no stand-in driver here: {STANDIN} is built with the C++ tests")
    environment = os.environ | {"UNIMEM_CUDA_LIBRARY": str(STANDIN), "UNIMEM_CUDA_STANDIN_DEVICES": "1"}
    result = subprocess.run([sys.executable, "-c", PREAMBLE + code], env=environment, capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stderr) == (0, "")


def test_the_cuda_interface_needs_its_buffer():
    """As CuPy and Numba do: they keep the object whose interface they asked for."""
    on_the_standin(
        """
buffer = made(7)
interface = buffer.__cuda_array_interface__
assert (interface["shape"], interface["typestr"], interface["version"]) == ((1 << 18,), "|u1", 3)
address, read_only = interface["data"]
gc.collect()
fill_the_device()
assert not read_only and buffer.valid_on(device) and (at(address) == 7).all()
part = made(8).slice(100, 50)
address = part.__cuda_array_interface__["data"][0]
fill_the_device()
assert (at(address, 50) == 8).all()
try:
    buffer.release_device()
    assert False, "somebody has its address"
except unimem.InvalidArgument:
    pass
before = manager.statistics.active_bytes
buffer.free()
assert manager.statistics.active_bytes < before
"""
    )


def test_dlpack_keeps_cuda_memory_in_place():
    on_the_standin(
        """
buffer = made(7)
assert buffer.__dlpack_device__() == (2, 0)
array = buffer.device
address = array.__cuda_array_interface__["data"][0]
capsule = buffer.__dlpack__()
del array
fill_the_device()
assert buffer.valid_on(device) and (at(address) == 7).all() and buffer.statistics.host_to_device_copies == 1
del capsule
gc.collect()
fill_the_device()
assert not buffer.valid_on(device) and (buffer.to_numpy() == 7).all() and buffer.statistics.device_to_host_copies == 0
"""
    )


SENT = """
import multiprocessing
import numpy as np
import unimem

size = 1 << 20

def moved(device):
    counts = device._transfers()
    return counts["host_to_device_bytes"], counts["device_to_host_bytes"], counts["device_to_device_bytes"]

def add_one(buffer):
    device = unimem.device("cuda:0,shareable=1")
    state, there = buffer.state, moved(device)
    buffer.host[:] += 1
    return state, there, buffer

def main():
    device = unimem.device("cuda:0,shareable=1")
    buffer = unimem.UnifiedBuffer(size, np.uint8, device=device).fill(41)
    buffer.sync_to_device()
    buffer.release_host()
    before = moved(device)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        state, there, result = pool.apply(add_one, (buffer,))
    assert state is unimem.BufferState.DEVICE_DIRTY, state
    assert there == (0, 0, size), there
    now = moved(device)
    assert now[:2] == before[:2] and now[2] - before[2] == size, (before, now)
    assert (result.to_numpy() == 42).all()

if __name__ == "__main__":
    main()
"""


def test_a_pool_gets_what_only_the_gpu_has_over_no_bus(tmp_path):
    if not STANDIN.is_file():
        pytest.skip(f"no stand-in driver here: {STANDIN} is built with the C++ tests")
    program = tmp_path / "sent.py"
    program.write_text(SENT)
    environment = os.environ | {"UNIMEM_CUDA_LIBRARY": str(STANDIN), "UNIMEM_CUDA_STANDIN_DEVICES": "1"}
    result = subprocess.run([sys.executable, program], env=environment, capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stderr) == (0, "")
