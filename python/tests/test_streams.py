"""Files streamed through a device, against NumPy."""

import asyncio
import os
import signal
import threading

import numpy as np
import pytest

import unimem
from unimem import IoError, Kernel, affine, histogram, mapping, statistics, stream_file, stream_file_async


@pytest.fixture
def file(tmp_path):
    data = np.random.default_rng(11).integers(0, 200, 1_000_003, dtype=np.uint8)
    path = tmp_path / "data.bin"
    data.tofile(path)
    return path, data


@pytest.mark.parametrize("where", ["cpu", "sim", "opencl"])
def test_every_byte_is_counted(file, where, request):
    path, data = file
    seen = []
    done = stream_file(path, histogram(), device=request.getfixturevalue(where), chunk_bytes="64KiB", progress=lambda *now: seen.append(now))
    assert done.result.counts == tuple(np.bincount(data, minlength=256))
    assert 7.6 < done.result.entropy_bits_per_byte < 7.7
    assert (done.nbytes, done.chunks, done.kernel, done.element) == (1_000_003, 16, "histogram", "u8")
    assert done.host_to_device_bytes == (0 if where == "cpu" else 1_000_003)
    assert seen[0] == (0, 1_000_003) and seen[-1] == (1_000_003, 1_000_003)
    assert done.pool["hit_rate"] >= 0 and done.gigabytes_per_second > 0


def test_a_memory_limit_holds(file, sim):
    done = stream_file(file[0], histogram(), device=sim, chunk_bytes=1 << 16, memory_limit="150KiB")
    assert 0 < done.peak_device_bytes <= 150 << 10 and done.buffers == 2
    with pytest.raises(unimem.OutOfMemory):
        stream_file(file[0], histogram(), device=sim, memory_limit=1 << 16)


def test_statistics_and_maps_agree_with_numpy(tmp_path, discrete):
    values = np.random.default_rng(5).standard_normal(50_000).astype(np.float32)
    path, out = tmp_path / "values.npy", tmp_path / "mapped.npy"
    np.save(path, values)
    result = stream_file(path, statistics(), device=discrete, chunk_bytes=40_000).result
    assert (result.count, result.min, result.max) == (50_000, values.min(), values.max())
    np.testing.assert_allclose([result.mean, result.standard_deviation], [values.mean(dtype=np.float64), values.std(dtype=np.float64)], rtol=1e-9)
    assert stream_file(path, affine(2, 1), device=discrete, output=out, chunk_bytes=40_000).result.elements == 50_000
    np.testing.assert_array_equal(np.load(out), (values.astype(np.float64) * 2 + 1).astype(np.float32))


def test_a_kernel_of_ones_own_maps_a_file(tmp_path, opencl):
    values = np.arange(10_000, dtype=np.float32)
    path, out = tmp_path / "in.npy", tmp_path / "out.npy"
    np.save(path, values)
    square = Kernel("square").source("""
        UNIMEM_KERNEL square(UNIMEM_CONST_BUFFER(float, in), UNIMEM_BUFFER(float, out), unimem_u64 count) {
          float v = UNIMEM_DATA(const float, in)[UNIMEM_ITEM_X]; UNIMEM_DATA(float, out)[UNIMEM_ITEM_X] = v * v;
        }""")
    stream_file(path, square, device=opencl, output=out, chunk_bytes=4000)
    np.testing.assert_array_equal(np.load(out), values * values)


@pytest.mark.parametrize("first", ["group", "source"])
def test_a_kernel_of_ones_own_runs_in_its_groups(tmp_path, opencl, first):
    values = np.arange(10_000, dtype=np.float32)
    path, out = tmp_path / "in.npy", tmp_path / "out.npy"
    np.save(path, values)
    text = """
        UNIMEM_KERNEL turned(UNIMEM_CONST_BUFFER(unimem_f32, in), UNIMEM_BUFFER(unimem_f32, out), unimem_u64 count) {
          UNIMEM_SHARED unimem_f32 all[25];
          all[UNIMEM_LOCAL_X] = UNIMEM_DATA(const unimem_f32, in)[UNIMEM_ITEM_X];
          UNIMEM_BARRIER();
          UNIMEM_DATA(unimem_f32, out)[UNIMEM_ITEM_X] = all[24 - UNIMEM_LOCAL_X];
        }"""
    turned = Kernel("turned").group(25).source(text) if first == "group" else Kernel("turned").source(text).group(25)
    stream_file(path, turned, device=opencl, output=out, chunk_bytes=4000)
    np.testing.assert_array_equal(np.load(out), values.reshape(-1, 25)[:, ::-1].ravel())
    out.unlink()
    with pytest.raises(unimem.InvalidArgument, match="1024 × 1 × 1.*whole groups of 25"):
        stream_file(path, turned, device=opencl, output=out, chunk_bytes=4096)
    assert not out.exists()
    np.save(path, values[:9_999])  # the last chunk is not of whole groups
    with pytest.raises(unimem.InvalidArgument, match="999 × 1 × 1.*whole groups of 25"):
        stream_file(path, turned, device=opencl, output=out, chunk_bytes=4000)
    assert not out.exists()


def test_bad_input_is_named(tmp_path, file, sim):
    with pytest.raises(IoError) as caught:
        stream_file(tmp_path / "missing", histogram())
    assert caught.value.path.endswith("missing") and caught.value.code == 2 and isinstance(caught.value, OSError) and caught.value.errno == 2
    with pytest.raises(IoError):
        stream_file(file[0], statistics("f64"), device=sim)
    for bad in ({"chunk_bytes": 0}, {"chunk_bytes": "lots"}, {"buffers": 0}, {"element": "f16"}, {"chunk_bytes": -1}):
        with pytest.raises(unimem.InvalidArgument):
            stream_file(file[0], statistics(), device=sim, **bad)
    with pytest.raises(unimem.InvalidArgument):
        affine(float("nan"), 0)
    with pytest.raises(unimem.InvalidArgument, match="kernel"):
        stream_file(file[0], "histogram")


@pytest.mark.parametrize("where", ["cpu", "sim"])
def test_kernels_that_do_not_stream_say_which_do(where, file):
    def told(kernel, **options):
        with pytest.raises(unimem.KernelError) as caught:
            stream_file(file[0], kernel, **options)
        assert caught.value.name == "mine"
        for word in ("opencl", "cuda", "cpu and sim", "histogram()", "statistics()", "affine(…)"):
            assert word in caught.value.reason
        return caught.value.reason

    source = "UNIMEM_KERNEL mine(UNIMEM_CONST_BUFFER(uchar, in), UNIMEM_BUFFER(uchar, out), unimem_u64 count) {}"
    on = unimem.device(where)
    assert told(Kernel("mine").host(lambda *a: None), device=on).startswith("streams need its source form")
    for kernel in (Kernel("mine").source(source), Kernel("mine").source(source).host(lambda *a: None)):
        assert told(kernel, device=on).startswith(f"{on.id} does not compile its source form")
        assert told(mapping(kernel), device=where).startswith(f"{on.id} does not compile its source form")
        with on:
            assert told(kernel).startswith(f"{on.id} does not")

    def progress(done, total):
        raise unimem.KernelError("no host form of the caller's")

    with pytest.raises(unimem.KernelError, match="of the caller's"):
        stream_file(file[0], histogram(), device=on, progress=progress)


def test_exceptions_of_progress_end_the_stream(tmp_path, file, sim):
    out = tmp_path / "out.bin"

    def stop(done, total):
        if done > 200_000:
            raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        stream_file(file[0], affine(1, 0), device=sim, chunk_bytes="64KiB", output=out, progress=stop)
    assert [one.name for one in tmp_path.iterdir()] == ["data.bin"]


def test_awaited_streams_can_be_cancelled(tmp_path, file):
    slow = unimem.make_sim("latency=20ms")
    out = tmp_path / "out.bin"

    async def main():
        started = threading.Event()
        task = asyncio.ensure_future(
            stream_file_async(file[0], affine(1, 0), device=slow, chunk_bytes="16KiB", output=out, progress=lambda *_: started.set())
        )
        while not started.is_set():
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not out.exists()
        done = await stream_file_async(file[0], histogram())
        assert done.nbytes == 1_000_003

    asyncio.run(main())
    assert [one.name for one in tmp_path.iterdir()] == ["data.bin"]


@pytest.mark.parametrize("checksum", ["xxh3", "crc32c"])
def test_what_is_read_is_checked(file, sim, tmp_path, checksum):
    path, data = file
    done = stream_file(path, histogram(), device=sim, chunk_bytes="64KiB", checksum=checksum, manifest=tmp_path / "m.json")
    [one] = done.files
    assert (done.checksum, done.checksum_bytes, one.path, one.nbytes, len(one.checksums)) == (checksum, 1 << 16, str(path), data.size, 16)
    assert len(set(one.checksums)) == 16 and {len(text) for text in one.checksums} == {16 if checksum == "xxh3" else 8}
    again = stream_file(path, histogram(), device=sim, chunk_bytes="100KiB", verify=tmp_path / "m.json")
    assert again.files == done.files
    for bit in (3, 500_000 * 8, data.size * 8 - 1):
        flipped = data.copy()
        flipped[bit // 8] ^= 1 << bit % 8
        flipped.tofile(path)
        with pytest.raises(unimem.ChecksumMismatch) as caught:
            stream_file(path, histogram(), device=sim, verify=tmp_path / "m.json")
        [(name, index, offset, nbytes, expected, found)] = caught.value.chunks
        at = bit // 8 >> 16
        assert (name, index, offset, expected) == (str(path), at, at << 16, one.checksums[at])
        assert nbytes == min(1 << 16, data.size - offset) and found != expected
        assert isinstance(caught.value, IoError) and caught.value.path == str(path)
    with pytest.raises(unimem.InvalidArgument):
        stream_file(path, histogram(), checksum="md5")
    with pytest.raises(unimem.InvalidArgument):
        stream_file(path, histogram(), retries=-1)


def test_several_files_are_one(file, sim, tmp_path):
    path, data = file
    other = tmp_path / "other"
    other.write_bytes(b"abc")
    done = stream_file([path, str(other), path], histogram(), device=sim, chunk_bytes="64KiB")
    assert done.result.counts == tuple(2 * np.bincount(data, minlength=256) + np.bincount(list(b"abc"), minlength=256))
    assert [one.nbytes for one in done.files] == [data.size, 3, data.size] and done.checksum is None
    with pytest.raises(unimem.InvalidArgument):
        stream_file([], histogram())
    with pytest.raises(unimem.InvalidArgument, match="path"):
        stream_file(3, histogram())


def test_a_pipe_is_read_until_its_end(file, sim, tmp_path):
    _, data = file
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(data.tobytes()), daemon=True)
    writer.start()
    seen = []
    done = stream_file(pipe, histogram(), device=sim, chunk_bytes="64KiB", progress=lambda *now: seen.append(now))
    writer.join()
    assert done.result.counts == tuple(np.bincount(data, minlength=256))
    assert done.nbytes == data.size and seen[-1] == (data.size, 0)


def test_ctrl_c_ends_waiting_for_a_pipe(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        stream_file(pipe, histogram(), device="cpu")


def test_a_stream_goes_on_where_it_was_interrupted(file, sim, tmp_path):
    path, data = file
    out = tmp_path / "out"
    same = dict(device=sim, chunk_bytes="64KiB", output=out, resume=True)

    def stop(done, _total):
        if done >= 5 << 16:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        stream_file(path, affine(1, 1), progress=stop, **same)
    assert not out.exists() and (tmp_path / "out.unimem-journal").exists()
    with pytest.raises(IoError, match="the journal of another run: its kernel"):
        stream_file(path, affine(1, 2), **same)
    done = stream_file(path, affine(1, 1), **same)
    assert done.resumed_bytes >= 5 << 16 and done.nbytes == data.size
    assert np.array_equal(np.fromfile(out, np.uint8), data + 1)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["data.bin", "out"]


def test_a_kernel_accumulates_over_a_stream(file, opencl):
    path, data = file
    source = """UNIMEM_KERNEL large(UNIMEM_CONST_BUFFER(unimem_u8, in), UNIMEM_BUFFER(unimem_u64, result), unimem_u64 count, unimem_u64 lanes, unimem_u64 first) {
      for (unimem_u64 i = UNIMEM_ITEM_X; i < count; i += lanes) UNIMEM_DATA(unimem_u64, result)[UNIMEM_ITEM_X] += UNIMEM_DATA(const unimem_u8, in)[i] > 99;
    }"""
    done = stream_file(path, unimem.reducing(Kernel("large").source(source), "u64", 50), device=opencl, chunk_bytes="100KiB")
    assert len(done.result.values) == 50 and done.result.element == "u64"
    assert sum(done.result.values) == int((data > 99).sum()) and done.chunks == 10
    with pytest.raises(unimem.InvalidArgument):
        unimem.reducing(Kernel("large").source(source), "u64", 0)
