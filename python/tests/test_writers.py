"""What writes into a buffer: each way given the buffer, `.host`, and a memoryview of the buffer. What is noticed reaches the device by itself; what is refused
has changed nothing; what is neither is in the tables of docs/python.md. Other packages: test_writers_libraries.py."""

import asyncio
import bz2
import ctypes
import gzip
import io
import lzma
import multiprocessing
import os
import socket
import struct
import zipfile
from types import SimpleNamespace

import numpy as np
import pytest
from sample_buffers import check_both, synced
from test_write_leases import WRITABLE, Request, Unversioned
from writer_cases import NEW, OLD, REFUSED, UNNOTICED, Case, all_forms, check

from unimem import BufferState, InvalidArgument, Kernel, UnifiedBuffer, launch, read, readwrite

S = BufferState


def packed(open_to_write, open_to_read):
    """A file of a format of the standard library's, read into the target."""

    def into(target, folder):
        path = folder / "data"
        with open_to_write(path) as file:
            file.write(NEW.tobytes())
        with open_to_read(path) as file:
            assert file.readinto(target) == NEW.nbytes

    return into


def into_zip(target, folder):
    with zipfile.ZipFile(folder / "data.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data", NEW.tobytes())
    with zipfile.ZipFile(folder / "data.zip") as archive, archive.open("data") as file:
        assert file.readinto(target) == NEW.nbytes


def by_socket(receive):
    def into(target, folder):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            theirs.sendall(NEW.tobytes())
            assert receive(ours, target) == NEW.nbytes

    return into


def received_by_asyncio(ours, target):
    async def main():
        ours.setblocking(False)
        return await asyncio.get_running_loop().sock_recv_into(ours, target)

    return asyncio.run(main())


def into_readv(target, folder):
    read, write = os.pipe()
    with open(read, "rb", buffering=0) as ours, open(write, "wb", buffering=0) as theirs:
        theirs.write(NEW.tobytes())
        assert os.readv(ours.fileno(), [target]) == NEW.nbytes


def into_preadv(target, folder):
    (folder / "data").write_bytes(NEW.tobytes())
    with open(folder / "data", "rb") as file:
        assert os.preadv(file.fileno(), [target], 0) == NEW.nbytes


def into_connection(target, folder):
    ours, theirs = multiprocessing.Pipe()
    with ours, theirs:
        theirs.send_bytes(NEW.tobytes())
        assert ours.recv_bytes_into(target) == NEW.nbytes


def by_array_interface(target, folder):
    np.asarray(SimpleNamespace(__array_interface__=target.__array_interface__))[...] = NEW


def by_old_dlpack(target, folder):
    """NumPy writes to no array that it takes so; others do."""
    theirs = np.from_dlpack(Unversioned(target))
    ctypes.memmove(theirs.ctypes.data, NEW.ctypes.data, NEW.nbytes)


def assigned(array):
    array[...] = NEW


STANDARD = {
    "file.readinto": Case(packed(lambda path: open(path, "wb"), lambda path: open(path, "rb", buffering=0))),
    "buffered file.readinto": Case(packed(lambda path: open(path, "wb"), lambda path: open(path, "rb"))),
    "BytesIO.readinto": Case(lambda target, folder: io.BytesIO(NEW.tobytes()).readinto(target)),
    "gzip.readinto": Case(packed(lambda path: gzip.open(path, "wb"), lambda path: gzip.open(path, "rb"))),
    "bz2.readinto": Case(packed(lambda path: bz2.open(path, "wb"), lambda path: bz2.open(path, "rb"))),
    "lzma.readinto": Case(packed(lambda path: lzma.open(path, "wb"), lambda path: lzma.open(path, "rb"))),
    "zipfile.readinto": Case(into_zip),
    "socket.recv_into": Case(by_socket(lambda ours, target: ours.recv_into(target))),
    "socket.recvfrom_into": Case(by_socket(lambda ours, target: ours.recvfrom_into(target)[0])),
    "socket.recvmsg_into": Case(by_socket(lambda ours, target: ours.recvmsg_into([target])[0])),
    "asyncio sock_recv_into": Case(by_socket(received_by_asyncio)),
    "os.readv": Case(into_readv),
    "os.preadv": Case(into_preadv),
    "struct.pack_into": Case(lambda target, folder: struct.pack_into(f"{NEW.size}d", target, 0, *NEW)),
    # They look at a memoryview of what they are given, which says nothing of writing.
    "Connection.recv_bytes_into": Case(into_connection, buffer=REFUSED, host=REFUSED),
    "memoryview.cast": Case(lambda target, folder: memoryview(target).cast("B").__setitem__(slice(None), NEW.tobytes()), buffer=REFUSED, host=REFUSED),
    "ctypes from_buffer": Case(
        lambda target, folder: (ctypes.c_double * NEW.size).from_buffer(target).__setitem__(slice(None), list(NEW)), buffer=REFUSED, host=REFUSED
    ),
    "ctypes.memmove": Case(lambda target, folder: ctypes.memmove(target.ctypes.data, NEW.ctypes.data, NEW.nbytes), buffer=REFUSED, host=UNNOTICED),
}  # fmt: skip

NUMPY = {
    "np.copyto": Case(lambda target, folder: np.copyto(target, NEW)),
    "target[...] =": Case(lambda target, folder: assigned(target)),
    "target +=": Case(lambda target, folder: target.__iadd__(NEW - OLD)),
    "ufunc out": Case(lambda target, folder: np.add(NEW, 0, out=target)),
    "np.take out": Case(lambda target, folder: np.take(NEW, np.arange(NEW.size), out=target)),
    "np.cumsum out": Case(lambda target, folder: np.cumsum(np.diff(NEW, prepend=0), out=target)),
    "np.put": Case(lambda target, folder: np.put(target, np.arange(NEW.size), NEW)),
    "np.asarray": Case(lambda target, folder: assigned(np.asarray(target)), buffer=REFUSED, host=UNNOTICED),
    "np.frombuffer": Case(lambda target, folder: assigned(np.frombuffer(target, NEW.dtype)), buffer=REFUSED, host=REFUSED),
    "np.from_dlpack": Case(lambda target, folder: assigned(np.from_dlpack(target)), buffer=REFUSED, host=REFUSED),
    "DLPack without a version": Case(by_old_dlpack),
    "__array_interface__": Case(by_array_interface, buffer=REFUSED, host=UNNOTICED),
    "np.ctypeslib.as_ctypes": Case(
        lambda target, folder: np.ctypeslib.as_ctypes(target).__setitem__(slice(None), list(NEW)), buffer=REFUSED, host=UNNOTICED
    ),
    "a method of another array": Case(lambda target, folder: NEW.take(np.arange(NEW.size), out=target), buffer=REFUSED, host=UNNOTICED),
    "Generator.random out": Case(
        lambda target, folder: np.random.default_rng(1).random(out=target), buffer=REFUSED, host=UNNOTICED, values=np.random.default_rng(1).random(NEW.size)
    ),
}  # fmt: skip


@pytest.mark.parametrize(("case", "form"), all_forms({**STANDARD, **NUMPY}))
def test_a_write_is_noticed_refused_or_listed(discrete, case, form, tmp_path, moved):
    check(case, form, discrete, tmp_path, moved)


@pytest.mark.parametrize("part", [np.s_[8:24], np.s_[40:]], ids=["inside", "the end"])
def test_part_of_an_array_is_received_into(discrete, part, tmp_path, moved):
    buffer = synced(discrete, OLD)
    count, target = moved(buffer), buffer.host[part]
    assert io.BytesIO(NEW[part].tobytes()).readinto(target) == target.nbytes
    expected = OLD.copy()
    expected[part] = NEW[part]
    buffer.sync_to_device()
    assert count.since() == (1, target.nbytes, 0, 0)
    check_both(buffer, expected)


def test_a_strided_request_counts_its_elements(sim, moved):
    """As a typed memoryview of Cython's makes it."""
    table = np.arange(1000.0 * 1000).reshape(1000, 1000)
    buffer = synced(sim, table)
    count, target = moved(buffer), buffer.host[::100, 10:20]
    request = Request(target, WRITABLE | 24)  # with strides
    assert [request.view.shape[i] for i in range(2)] == [10, 10] and request.view.strides[0] == 800_000
    for row in range(10):
        ctypes.memmove(request.view.buf + row * 800_000, NEW.ctypes.data, 80)
    request.release()
    table[::100, 10:20] = NEW[:10]
    buffer.sync_to_device()
    assert count.since() == (10, 800, 0, 0)
    check_both(buffer, table)
    with pytest.raises((BufferError, ValueError), match="contiguous"):
        Request(target, WRITABLE)
    assert buffer.state is S.SYNCHRONIZED


def test_what_a_device_has_newer_is_there_before(discrete, moved):
    buffer = synced(discrete, OLD)
    host = buffer.host
    buffer.device.copy_from(OLD + 5)
    buffer.mark_device_dirty()
    count = moved(buffer)
    struct.pack_into("2d", host[10:20], 8, 7.0, 7.0)
    assert count.since() == (0, 0, 1, 80)
    expected = OLD + 5
    expected[11:13] = 7
    buffer.synchronize()
    check_both(buffer, expected)


def test_a_request_on_an_array_keeps_its_memory(discrete):
    buffer = synced(discrete, OLD)
    request = Request(buffer.host, WRITABLE)
    for refused in (lambda: buffer.resize(10), buffer.release_host):
        with pytest.raises(InvalidArgument):
            refused()
    buffer.free()
    buffer.fill(9)
    request.write(NEW)
    request.release()
    assert (buffer.to_numpy() == 9).all()
    left = synced(discrete, OLD).host  # of a buffer that is gone
    assert io.BytesIO(NEW.tobytes()).readinto(left) == NEW.nbytes
    np.testing.assert_array_equal(left, NEW)


def test_an_array_of_memory_let_go_is_nobodys(discrete):
    buffer = synced(discrete, OLD)
    host = buffer.host
    buffer.free()
    assert io.BytesIO(NEW.tobytes()).readinto(host) == NEW.nbytes
    np.testing.assert_array_equal(host, NEW)
    buffer.fill(9)
    assert (buffer.device.to_numpy() == 9).all()


@pytest.mark.parametrize("own", [False, True])
def test_a_request_on_an_array_may_be_released_in_kernels(sim, own):
    """Where the counting would wait for the kernel itself it comes soon after."""
    buffer, other = synced(sim, OLD), UnifiedBuffer(10, device=sim).zeros()
    request = Request(buffer.host, WRITABLE)
    request.write(NEW)

    def kernel(x, *y):
        request.release()
        x[:10] += 1

    launch(Kernel("releases").host(kernel), 1, readwrite(other), *([read(buffer)] if own else []))
    np.testing.assert_array_equal(other.to_numpy(), 1)
    for _ in range(100):
        if buffer.state is S.HOST_DIRTY:
            break
    buffer.sync_to_device()
    check_both(buffer, NEW)


def test_requests_on_arrays_say_what_they_were_asked_for(sim):
    host = UnifiedBuffer((4, 5), np.int16, device=sim).zeros().host
    read = memoryview(host)
    assert (read.readonly, read.shape, read.format, read.nbytes) == (True, (4, 5), "h", 40) and read.tolist() == [[0] * 5] * 4
    request = Request(host, WRITABLE | 28)
    view = request.view
    assert (view.readonly, view.len, view.itemsize, view.buf, view.format) == (0, 40, 2, host.ctypes.data, b"h")
    assert [view.shape[i] for i in range(2)] == [4, 5] and [view.strides[i] for i in range(2)] == [10, 2]
    request.release()
    host.flags.writeable = False
    with pytest.raises((BufferError, ValueError), match="(?i)read-only|not writ"):
        Request(host, WRITABLE)
    empty = UnifiedBuffer(0, device=sim).host
    assert io.BytesIO(b"data").readinto(empty) == 0
