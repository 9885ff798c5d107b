"""Named buffers saved to files, restored from them, and put to sleep."""

from __future__ import annotations

import _thread
import json
import struct
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import unimem
from unimem import InvalidArgument, IoError, MemoryManager, NotFound, OutOfMemory, SizeMismatch, UnifiedBuffer, UnsupportedOperation

DTYPES = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64", "complex64"]
OTHERS = ["complex128", ">f4", "datetime64[ns]", [("x", "f4"), ("n", "i8")]]
CODES = {"BOOL": "?", "I8": "i1", "U8": "u1", "I16": "i2", "U16": "u2", "I32": "i4", "U32": "u4", "I64": "i8", "U64": "u8"}
CODES |= {"F16": "f2", "F32": "f4", "F64": "f8", "C64": "c8"}


def by_hand(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """What is in a ``.safetensors``, read as its format says."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    metadata = header.pop("__metadata__", {})
    data = content[8 + length :]
    arrays = {}
    for name, one in header.items():
        begin, end = one["data_offsets"]
        arrays[name] = np.frombuffer(data[begin:end], CODES[one["dtype"]]).reshape(one["shape"])
    return arrays, metadata


def contents(dtype: Any) -> np.ndarray:
    dtype = np.dtype(dtype)
    bytes_of = np.random.default_rng(2026).integers(0, 2, 24 * dtype.itemsize, dtype=np.uint8)
    return bytes_of.view(dtype).reshape(2, 3, 4)


@pytest.fixture
def manager() -> MemoryManager:
    return MemoryManager()


def test_an_empty_path_is_named(manager: MemoryManager) -> None:
    named = UnifiedBuffer(3, manager=manager, name="named").fill(1)
    for call in (manager.save, manager.restore):
        with pytest.raises(InvalidArgument) as caught:
            call("")
        assert (caught.value.argument, caught.value.value) == ("path", "")
    assert named.to_numpy().tolist() == [1, 1, 1]


def test_every_dtype_is_there_for_others_and_comes_back(tmp_path: Path, sim: unimem.Device, manager: MemoryManager) -> None:
    buffers = {}
    for dtype in [*DTYPES, *OTHERS]:
        array = contents(dtype)
        buffer = UnifiedBuffer(array.shape, array.dtype, device=sim, manager=manager, name=str(dtype))
        buffer.copy_from(array)
        buffers[str(dtype)] = (buffer, array)
        buffer.sync_to_device()
    path = tmp_path / "state.safetensors"
    manager.save(path)
    arrays, metadata = by_hand(path)
    opened = unimem.open_tensors(path, manager=MemoryManager())
    assert set(arrays) == set(opened) == set(buffers)
    for dtype in DTYPES:
        np.testing.assert_array_equal(arrays[dtype], buffers[dtype][1])
        assert arrays[dtype].dtype == np.dtype(dtype)
        assert opened[dtype].to_numpy().tobytes() == buffers[dtype][1].tobytes()
    for other in map(str, OTHERS):
        assert arrays[other].tobytes() == buffers[other][1].tobytes()
        assert metadata[f"unimem.element.{other}"]
    for buffer, _ in buffers.values():
        buffer.copy_from(np.zeros(buffer.shape, buffer.dtype))
    manager.restore(str(path))
    for buffer, array in buffers.values():
        assert buffer.to_numpy().tobytes() == array.tobytes()


def test_allocated_wrapped_and_files_of_ones_own_are_named(tmp_path: Path, manager: MemoryManager) -> None:
    numbers = np.arange(1000, dtype=np.float32)
    numbers.tofile(tmp_path / "data")
    allocated = manager.allocate(numbers, name="allocated")
    wrapped = manager.wrap(numbers.copy(), name="wrapped")
    file = UnifiedBuffer.from_file(tmp_path / "data", np.float32, mode="c", name="file", manager=manager)
    kept = [UnifiedBuffer.from_file(tmp_path / "data", np.float32, manager=manager), UnifiedBuffer(3, manager=manager)]
    manager.save(tmp_path / "a.safetensors")
    arrays, _ = by_hand(tmp_path / "a.safetensors")
    assert set(arrays) == {"allocated", "wrapped", "file"}
    for one in arrays.values():
        np.testing.assert_array_equal(one, numbers)
    assert len(kept) == 2
    for buffer in (allocated, wrapped, file):
        buffer.host[:] = 0
    manager.restore(tmp_path / "a.safetensors")
    for buffer in (allocated, wrapped, file):
        np.testing.assert_array_equal(buffer.to_numpy(), numbers)


def test_what_does_not_match_changes_nothing(tmp_path: Path, manager: MemoryManager) -> None:
    path = tmp_path / "a.safetensors"
    buffer = UnifiedBuffer(100, np.int32, manager=manager, name="a").fill(1)
    manager.save(path)
    buffer.fill(2)
    for shape, dtype, name, error in [(99, np.int32, "a", SizeMismatch), (100, np.float32, "a", InvalidArgument), (100, np.int32, "b", NotFound)]:
        other = MemoryManager()
        one = UnifiedBuffer(shape, dtype, manager=other, name=name).fill(3)
        with pytest.raises(error):
            other.restore(path)
        assert (one.to_numpy() == 3).all()
    twin = UnifiedBuffer(100, np.int32, manager=manager, name="a")
    with pytest.raises(InvalidArgument, match="one live buffer alone"):
        manager.save(tmp_path / "b")
    del twin
    damaged = bytearray(path.read_bytes())
    damaged[-5] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(IoError, match="#a") as caught:
        manager.restore(path)
    assert isinstance(caught.value, OSError)
    assert (buffer.to_numpy() == 2).all()
    with pytest.raises(IoError, match="No such file"):
        manager.restore(tmp_path / "none")
    assert not (tmp_path / "b").exists()
    other = MemoryManager()
    np.zeros(100, np.int32).tofile(tmp_path / "c")
    readable = UnifiedBuffer.from_file(tmp_path / "c", np.int32, manager=other, name="a")
    other.save(tmp_path / "c.safetensors")
    with pytest.raises(UnsupportedOperation):
        other.restore(tmp_path / "c.safetensors")
    assert not readable.to_numpy().any()


def test_bad_arguments(manager: MemoryManager) -> None:
    for call in (unimem.save, unimem.restore):
        with pytest.raises(InvalidArgument, match="a MemoryManager"):
            call("x", 3)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match="without NUL"):
            call("x\0y", manager)
    for call in (unimem.sleep, unimem.wake):
        with pytest.raises(InvalidArgument, match="tag"):
            call(3, manager)  # type: ignore[arg-type]


def test_the_default_manager_is_meant_without_one(tmp_path: Path) -> None:
    buffer = UnifiedBuffer(10, np.int64, name="only here").fill(7)
    unimem.save(tmp_path / "a")
    buffer.fill(0)
    unimem.restore(tmp_path / "a")
    assert (buffer.to_numpy() == 7).all()


def test_other_threads_run_meanwhile_and_ctrl_c_ends_it(tmp_path: Path, manager: MemoryManager) -> None:
    slow = unimem.make_sim("memory=256MiB,d2h=50MB/s")
    buffer = UnifiedBuffer(32 << 18, np.float32, device=slow, manager=manager, name="large").fill(1)
    buffer.sync_to_device()
    buffer.release_host()
    steps = []

    def press() -> None:
        for _ in range(10):
            time.sleep(0.01)
            steps.append(1)
        _thread.interrupt_main()

    thread = threading.Thread(target=press)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        manager.save(tmp_path / "large")
        thread.join()
    thread.join()
    assert len(steps) == 10
    assert list(tmp_path.iterdir()) == []
    manager.save(tmp_path / "large")
    assert (by_hand(tmp_path / "large")[0]["large"] == 1).all()


def test_sleep_gives_the_devices_memory_back(sim: unimem.Device, manager: MemoryManager) -> None:
    layers = [UnifiedBuffer(1 << 18, np.float32, device=sim, manager=manager, name=f"model.{i}").fill(i) for i in range(3)]
    cache = UnifiedBuffer(1 << 18, np.float32, device=sim, manager=manager, name="cache").fill(9)
    for one in (*layers, cache):
        one.sync_to_device()
        one.release_host()
    everything = manager.pool(sim).statistics.active_bytes
    assert manager.sleep("model") >= 3 << 20
    assert manager.pool(sim).statistics.active_bytes <= everything - (3 << 20)
    with pytest.raises(InvalidArgument, match="asleep"):
        manager.sleep("model")
    with pytest.raises(NotFound):
        manager.wake("cache")
    with manager.limit(sim, "2MiB"), pytest.raises(OutOfMemory):
        manager.wake("model")
    assert unimem.wake("model", manager) == 3 << 20
    for i, one in enumerate(layers):
        assert one.valid_on(sim)
        assert (one.to_numpy() == i).all()
    with pytest.raises(NotFound):
        unimem.sleep("nothing", manager)
