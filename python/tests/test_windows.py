"""Arrays larger than a device's memory, used by slices: over memory of NumPy's and over a file mapped by it."""

import os

import numpy as np
import pytest

import unimem
from unimem import Kernel, MemoryManager, launch, readwrite

MIB = 1 << 20
TRIPLE = Kernel("triple").source(
    "UNIMEM_KERNEL triple(UNIMEM_BUFFER(unsigned, x)) { UNIMEM_DATA(unsigned, x)[UNIMEM_ITEM_X] *= 3; }"
).host(lambda x: np.multiply(x, np.uint32(3), out=x))


@pytest.fixture
def limited(discrete):
    manager = MemoryManager()
    manager.set_limit(discrete, 4 * MIB)
    return manager


def test_a_mapped_file_goes_through_a_small_device_once(discrete, tmp_path):
    """16 times the device's limit, a 64th at a time; UNIMEM_TEST_ARRAY_MIB says another size than 64 MiB."""
    count = int(os.environ.get("UNIMEM_TEST_ARRAY_MIB", "64")) * MIB // 4
    step = count // 64
    manager = MemoryManager()
    manager.set_limit(discrete, count // 4)
    path = tmp_path / "array.bin"
    mapped = np.memmap(path, dtype=np.uint32, mode="w+", shape=count)
    for begin in range(0, count, step):
        mapped[begin : begin + step] = np.arange(begin, begin + step, dtype=np.uint32)
    buffer = manager.wrap(mapped, device=discrete)
    for begin in range(0, count, step):
        launch(TRIPLE, step, readwrite(buffer.slice(begin, step)))
    buffer.sync_to_host()
    moved = buffer.statistics
    assert (moved.host_to_device_bytes, moved.device_to_host_bytes) == (4 * count, 4 * count)
    assert manager.statistics.reclaims >= 60
    mapped.flush()
    in_file = np.memmap(path, dtype=np.uint32, mode="r")
    for begin in range(0, count, step):
        expected = np.arange(begin, begin + step, dtype=np.uint32) * np.uint32(3)
        np.testing.assert_array_equal(in_file[begin : begin + step], expected)


def test_a_slice_larger_than_the_device_is_refused(limited, discrete):
    buffer = limited.wrap(np.arange(4 * MIB, dtype=np.uint32), device=discrete)
    with pytest.raises(unimem.OutOfMemory):
        launch(TRIPLE, 2 * MIB, readwrite(buffer.slice(0, 2 * MIB)))
    launch(TRIPLE, 1000, readwrite(buffer.slice(3 * MIB, 1000)))
    assert buffer.to_numpy()[3 * MIB + 1] == (3 * MIB + 1) * 3


def test_a_view_of_a_slice_keeps_its_window(limited, discrete):
    buffer = limited.wrap(np.arange(4 * MIB, dtype=np.uint32), device=discrete)
    view = buffer.slice(0, MIB // 2).device
    for begin in range(MIB, 4 * MIB, MIB // 4):
        launch(TRIPLE, MIB // 4, readwrite(buffer.slice(begin, MIB // 4)))
    assert buffer.statistics.host_to_device_bytes == 4 * (MIB // 2 + 3 * MIB)
    np.testing.assert_array_equal(view.to_numpy()[:4], np.arange(4))
