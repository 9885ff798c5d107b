"""What CuPy and PyTorch make of our memory on a GPU. Skipped where there is none, or one of the two is not installed."""

import os

import numpy as np
import pytest

import unimem
from unimem import UnifiedBuffer

COUNT = 100_000
GPUS = [one for one in unimem.devices() if one.backend == "cuda" and "UNIMEM_CUDA_LIBRARY" not in os.environ]

if not GPUS:
    pytest.skip("no GPU of CUDA here", allow_module_level=True)


@pytest.fixture
def gpu() -> unimem.Device:
    return GPUS[0]


@pytest.fixture
def cupy():
    return pytest.importorskip("cupy")


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def counting(gpu) -> UnifiedBuffer:
    buffer = UnifiedBuffer(COUNT, np.float32, device=gpu)
    buffer.host[:] = np.arange(COUNT)
    return buffer


def test_cupy_computes_in_the_buffers_memory(gpu, cupy, counted):
    buffer = counting(gpu)
    moved = counted(buffer)
    array = buffer.device
    assert type(array) is cupy.ndarray
    assert (array.shape, array.dtype) == ((COUNT,), np.float32)
    array *= 2
    cupy.cuda.runtime.deviceSynchronize()
    del array
    buffer.mark_device_dirty()
    assert np.array_equal(buffer.host, np.arange(COUNT, dtype=np.float32) * 2)
    assert moved.since() == (1, COUNT * 4, 1, COUNT * 4)


def test_torch_computes_in_the_buffers_memory(gpu, torch, counted):
    buffer = counting(gpu)
    moved = counted(buffer)
    tensor = torch.from_dlpack(buffer)
    assert str(tensor.device) == "cuda:0"
    tensor += 1
    torch.cuda.synchronize()
    del tensor
    buffer.mark_device_dirty()
    assert np.array_equal(buffer.host, np.arange(COUNT, dtype=np.float32) + 1)
    assert moved.since() == (1, COUNT * 4, 1, COUNT * 4)


def test_every_interface_gives_the_same_address(gpu, cupy, torch):
    buffer = counting(gpu)
    addresses = {
        buffer.device.data.ptr, torch.from_dlpack(buffer).data_ptr(), cupy.from_dlpack(buffer).data.ptr,
        cupy.asarray(buffer).data.ptr, torch.as_tensor(buffer, device="cuda").data_ptr(),
        buffer.__cuda_array_interface__["data"][0],
    }  # fmt: skip
    assert len(addresses) == 1


def test_readers_come_behind_work_in_flight(gpu, cupy, torch):
    add = unimem.Kernel("add").source("""
        UNIMEM_KERNEL add(UNIMEM_BUFFER(unimem_f32, x), unimem_f32 a) {
          UNIMEM_GLOBAL unimem_f32* data = UNIMEM_DATA(unimem_f32, x);
          data[UNIMEM_ITEM_X] += a;
        }""")  # fmt: skip
    buffer = UnifiedBuffer(1 << 24, np.float32, device=gpu)
    buffer.fill(0)
    for expected, read in enumerate([cupy.from_dlpack, torch.from_dlpack, cupy.asarray], start=1):
        for _ in range(50):
            unimem.launch(add, buffer.size, unimem.readwrite(buffer), np.float32(1))
        seen = read(buffer)
        assert (float(seen.min()), float(seen.max())) == (50.0 * expected, 50.0 * expected)


def test_arrays_of_others_keep_their_memory_in_place(gpu, torch):
    manager = unimem.MemoryManager()
    manager.set_limit(gpu, 8 << 20)
    kept = UnifiedBuffer(1 << 20, np.uint8, device=gpu, manager=manager)
    kept.fill(7)
    tensor = torch.from_dlpack(kept)
    others = [UnifiedBuffer(1 << 20, np.uint8, device=gpu, manager=manager) for _ in range(16)]
    for value, one in enumerate(others):
        one.fill(value)
        one.sync_to_device()
    assert manager.statistics.reclaims > 0
    assert bool((tensor == 7).all())
    for value, one in enumerate(others):
        assert (one.host == value).all()


def test_memory_of_the_gpu_is_not_taken_for_the_hosts(gpu, cupy, torch):
    for theirs in (cupy.ones(10), torch.ones(10, device="cuda")):
        with pytest.raises(unimem.Error, match="cuda:0"):
            UnifiedBuffer.from_dlpack(theirs)
