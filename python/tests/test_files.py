"""Buffers that are made from files."""

import errno
import os
import subprocess
import sys

import numpy as np
import pytest

import unimem
from unimem import MemoryManager, UnifiedBuffer

MIB = 1 << 20
STEP = 16384


@pytest.fixture
def numbers(tmp_path):
    path = tmp_path / "numbers"
    np.arange(2 * MIB, dtype=np.uint32).tofile(path)
    return path


def read_by_us():
    with open("/proc/self/io") as counts:
        return int(counts.readline().split()[1])


def test_row_80_only_what_is_looked_at_is_read(numbers):
    manager = MemoryManager()
    before = read_by_us()
    buffer = UnifiedBuffer.from_file(numbers, np.uint32, manager=manager)
    assert buffer.shape == (2 * MIB,) and buffer.dtype == np.uint32 and buffer.name == "numbers"
    assert manager.statistics.file_read_bytes == 0
    assert np.array_equal(buffer.slice(1000, 1000).host, np.arange(1000, 2000, dtype=np.uint32))
    assert int(buffer.slice(2 * MIB - 1, 1).host[0]) == 2 * MIB - 1
    assert manager.statistics.file_read_bytes == 1001 * 4
    assert read_by_us() - before < 1001 * 4 + 65536


def test_row_80_modes_are_those_of_memmap(numbers):
    original = np.fromfile(numbers, dtype=np.uint32)
    read = UnifiedBuffer.from_file(numbers, np.uint32)
    assert not read.host.flags.writeable
    with pytest.raises(unimem.UnsupportedOperation, match="FileMode::read"):
        read.fill(1)
    with pytest.raises(unimem.UnsupportedOperation):
        read.copy_from(original)
    with pytest.raises(ValueError):
        read.host[0] = 1

    copied = UnifiedBuffer.from_file(numbers, np.uint32, mode="c")
    copied.slice(0, 10).fill(7)
    copied.flush()
    assert np.array_equal(copied.slice(0, 12).host, [7] * 10 + [10, 11])
    assert np.array_equal(np.fromfile(numbers, dtype=np.uint32), original)

    written = UnifiedBuffer.from_file(numbers, np.uint32, mode="r+")
    written.slice(5, 10).copy_from(np.full(10, 9, dtype=np.uint32))
    written.host[20] = 3
    written.flush()
    expected = original.copy()
    expected[5:15], expected[20] = 9, 3
    assert np.array_equal(np.fromfile(numbers, dtype=np.uint32), expected)
    assert np.array_equal(np.memmap(numbers, np.uint32, "r"), written.to_numpy())


def test_the_end_of_with_is_in_the_file_and_free_forgets(numbers, sim):
    add = unimem.Kernel("add").host(lambda x: np.add(x, 1, out=x))
    with UnifiedBuffer.from_file(numbers, np.uint32, mode="r+", device=sim) as buffer:
        unimem.launch(add, buffer.size, unimem.readwrite(buffer))
    assert np.array_equal(np.fromfile(numbers, np.uint32), np.arange(1, 2 * MIB + 1, dtype=np.uint32))
    with pytest.raises(KeyError), UnifiedBuffer.from_file(numbers, np.uint32, mode="r+") as buffer:
        buffer.slice(0, 2).fill(7)
        raise KeyError
    assert np.fromfile(numbers, np.uint32, 3).tolist() == [7, 7, 3]
    for mode in ("r+", "c"):
        with UnifiedBuffer.from_file(numbers, np.uint32, mode=mode) as buffer:
            buffer.fill(9)
            buffer.free()
            assert buffer.slice(0, 3).to_numpy().tolist() == [7, 7, 3]
    with UnifiedBuffer.from_file(numbers, np.uint32, mode="c") as buffer:
        buffer.fill(9)
    assert np.fromfile(numbers, np.uint32, 3).tolist() == [7, 7, 3]


def test_what_with_cannot_write_stays_in_the_buffer(tmp_path):
    """A process of its own: the limit of file sizes is a process's."""
    path = tmp_path / "file"
    path.write_bytes(bytes(8192))
    code = f"""
import resource, unimem
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
try:
    with unimem.UnifiedBuffer.from_file({str(path)!r}, "u1", mode="r+") as buffer:
        buffer.fill(5)
except unimem.IoError as error:
    print(error.errno, buffer.to_numpy().sum())
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
"""
    paths = os.pathsep.join(map(os.path.abspath, sys.path))
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{errno.EFBIG} {5 * 8192}\n", "")
    assert path.read_bytes() == b"\5" * 8192  # at its end


def test_row_81_passes_over_more_than_there_is_memory_for(numbers):
    manager = MemoryManager()
    manager.set_limit("cpu", 4 * MIB)
    buffer = UnifiedBuffer.from_file(numbers, np.uint32, manager=manager)
    total = int(np.arange(2 * MIB, dtype=np.uint64).sum())

    def one_pass():
        return sum(int(buffer.slice(i, STEP).host.sum(dtype=np.uint64)) for i in range(0, 2 * MIB, STEP))

    assert one_pass() == total
    assert manager.statistics.file_read_bytes == 8 * MIB
    for _ in range(4):
        assert one_pass() == total
    assert manager.statistics.file_read_bytes <= 1.15 * 3 * 8 * MIB
    assert manager.statistics.file_written_bytes == 0
    assert manager.statistics.reserved_bytes <= 4 * MIB


def test_a_shape_and_an_offset(numbers):
    buffer = UnifiedBuffer.from_file(numbers, "<u4", (10, 20), offset=40)
    assert np.array_equal(buffer.host, np.arange(10, 210, dtype=np.uint32).reshape(10, 20))
    assert UnifiedBuffer.from_file(numbers, np.uint8, offset=8 * MIB).shape == (0,)


@pytest.mark.parametrize("bad", [3, None, [b"x"], "nul\0behind", b"nul\0behind", "\udcff", b"\xff", object()])
def test_what_is_no_path_is_refused_by_all_that_takes_one(bad):
    manager = MemoryManager()
    named = UnifiedBuffer(3, name="named", manager=manager)
    named.fill(1)
    calls = [
        lambda: UnifiedBuffer.from_file(bad, np.uint8), lambda: unimem.open_tensors(bad), lambda: manager.save(bad), lambda: manager.restore(bad),
        lambda: unimem.stream_file([bad], unimem.histogram()), lambda: unimem.stream_file(__file__, unimem.affine(1, 1, "u8"), output=bad or 0),
        lambda: unimem.stream_file(__file__, unimem.histogram(), manifest=bad or 0), lambda: unimem.stream_file(__file__, unimem.histogram(), verify=bad or 0),
        lambda: MemoryManager(spill_directory=bad or 0),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(unimem.InvalidArgument, match="path|text that UTF-8 can say"):
            call()


def test_paths_are_text_bytes_or_objects(numbers, tmp_path):
    for path in (numbers, str(numbers), os.fsencode(numbers)):
        assert UnifiedBuffer.from_file(path, np.uint32).slice(5, 1).to_numpy() == [5]
    np.save(tmp_path / "a.npy", np.arange(3))
    assert unimem.open_tensors(os.fsencode(tmp_path / "a.npy"))["a"].to_numpy().tolist() == [0, 1, 2]
    with pytest.raises(unimem.InvalidArgument, match="element"):
        unimem.stream_file(numbers, unimem.histogram(), element=3)


def test_bad_files_and_arguments(numbers, tmp_path):
    with pytest.raises(unimem.IoError):
        UnifiedBuffer.from_file(tmp_path / "missing", np.uint8)
    with pytest.raises(unimem.IoError):
        UnifiedBuffer.from_file(tmp_path, np.uint8)
    with pytest.raises(unimem.IoError, match="multiple"):
        UnifiedBuffer.from_file(numbers, np.dtype([("a", "u1", 3)]))
    for bad in ("w", "w+", "rb", None, 1):
        with pytest.raises(unimem.InvalidArgument, match="mode"):
            UnifiedBuffer.from_file(numbers, np.uint8, mode=bad)
    with pytest.raises(unimem.InvalidArgument, match="offset"):
        UnifiedBuffer.from_file(numbers, np.uint8, offset=8 * MIB + 1)
    with pytest.raises(unimem.InvalidArgument, match="offset"):
        UnifiedBuffer.from_file(numbers, np.uint8, offset=-1)
    with pytest.raises(unimem.InvalidArgument, match="count"):
        UnifiedBuffer.from_file(numbers, np.uint8, 9 * MIB)
    with pytest.raises(unimem.UnsupportedOperation, match="flush"):
        UnifiedBuffer(3).flush()
    os.truncate(numbers, MIB)
    buffer = UnifiedBuffer.from_file(numbers, np.uint8)
    os.truncate(numbers, 100)
    with pytest.raises(unimem.IoError, match="shorter"):
        buffer.to_numpy()


def make_cold(path):
    with open(path, "rb") as file:
        os.fdatasync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@pytest.mark.parametrize("access", ["auto", "direct", "cached"])
def test_row_83_bytes_are_equal_on_every_way(numbers, access):
    manager = MemoryManager()
    make_cold(numbers)
    try:
        buffer = UnifiedBuffer.from_file(numbers, np.uint32, offset=4, access=access, manager=manager)
    except unimem.UnsupportedOperation:
        pytest.skip("no reads past the page cache in this folder")
    assert np.array_equal(buffer.host, np.arange(1, 2 * MIB, dtype=np.uint32))
    statistics = manager.statistics
    assert statistics.file_read_bytes == 8 * MIB - 4
    if access == "direct":
        assert statistics.file_direct_bytes == 8 * MIB - 4
    if access == "cached":
        assert statistics.file_direct_bytes == 0
    assert statistics.file_uring_bytes <= statistics.file_direct_bytes


def test_row_83_in_place_without_a_copy(numbers):
    manager = MemoryManager()
    manager.set_limit("cpu", 64 << 10)
    expected = np.arange(2 * MIB, dtype=np.uint32)
    buffer = UnifiedBuffer.from_file(numbers, np.uint32, access="mapped", manager=manager)
    assert manager.statistics.file_mapped_bytes == 0
    host = buffer.host
    assert np.array_equal(host, expected)
    assert np.array_equal(buffer.slice(1000, 1000).host, expected[1000:2000])
    assert not host.flags.writeable
    with pytest.raises(ValueError):
        host[0] = 1
    assert manager.statistics.file_reads == 0
    assert manager.statistics.reserved_bytes == 0
    assert manager.statistics.file_mapped_bytes == 8 * MIB

    os.truncate(numbers, 4 * MIB)
    assert host[-1] == 0xCDCDCDCD
    assert host[MIB - 1] == MIB - 1
    with pytest.raises(unimem.IoError, match=rf"\[0, {8 * MIB}\)"):
        buffer.to_numpy()
    assert np.array_equal(buffer.slice(0, MIB).to_numpy(), expected[:MIB])
    del host, buffer
    assert manager.statistics.file_mapped_bytes == 0


def test_row_83_streams_tell_the_way(numbers):
    done = unimem.stream_file(numbers, unimem.histogram(), device="cpu", access="mapped")
    assert (done.access, done.direct_bytes) == ("mapped", 0)
    try:
        direct = unimem.stream_file(numbers, unimem.histogram(), device="cpu", access="direct")
    except unimem.UnsupportedOperation:
        pytest.skip("no reads past the page cache in this folder")
    assert (direct.access, direct.direct_bytes) == ("direct", 8 * MIB)
    assert direct.result == done.result


def test_row_83_what_cannot_be_is_refused(numbers, sim):
    with pytest.raises(unimem.InvalidArgument, match="access"):
        UnifiedBuffer.from_file(numbers, np.uint32, access="fast")
    with pytest.raises(unimem.InvalidArgument, match="access"):
        unimem.stream_file(numbers, unimem.histogram(), access=1)
    for mode in ("c", "r+"):
        with pytest.raises(unimem.InvalidArgument, match="FileMode::read"):
            UnifiedBuffer.from_file(numbers, np.uint32, mode=mode, access="mapped")
    with pytest.raises(unimem.InvalidArgument, match="multiple of 4"):
        UnifiedBuffer.from_file(numbers, np.uint32, 5, offset=6, access="mapped")
    with pytest.raises(unimem.UnsupportedOperation):
        unimem.stream_file(numbers, unimem.histogram(), device=sim, access="mapped")
