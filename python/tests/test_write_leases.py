"""What others write into a buffer by Python's own protocols counts as written when they are done with it."""

import array
import ctypes
import gc
import os
import socket
import struct
import threading

import numpy as np
import pytest
from sample_buffers import check_both, synced, taking

import unimem
from unimem import BufferState, InvalidArgument, Kernel, UnifiedBuffer, launch, read, readwrite

S = BufferState
DATA = np.arange(1000, dtype=np.float32)
NEW = (DATA * 3 + 1).astype(np.float32)


@pytest.fixture(params=["sim", "opencl", "cpu"])
def device(request):
    return request.getfixturevalue(request.param)


def into_file(target, data, tmp_path):
    path = tmp_path / "data"
    path.write_bytes(data.tobytes())
    with open(path, "rb", buffering=0) as file:
        assert file.readinto(target) == data.nbytes


def into_buffered_file(target, data, tmp_path):
    path = tmp_path / "data"
    path.write_bytes(data.tobytes())
    with open(path, "rb") as file:
        assert file.readinto(target) == data.nbytes


def into_socket(target, data, tmp_path):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(data.tobytes())
        assert ours.recv_into(target) == data.nbytes


def into_preadv(target, data, tmp_path):
    (tmp_path / "data").write_bytes(data.tobytes())
    with open(tmp_path / "data", "rb") as file:
        assert os.preadv(file.fileno(), [target], 0) == data.nbytes


def into_struct(target, data, tmp_path):
    struct.pack_into(f"{data.size}f", target, 0, *data.tolist())


WAYS = [into_file, into_buffered_file, into_socket, into_preadv, into_struct]


@pytest.mark.parametrize("receive", WAYS)
def test_what_is_received_reaches_the_device(device, receive, tmp_path, moved):
    buffer = synced(device)
    count = moved(buffer)
    receive(buffer, NEW, tmp_path)
    shared = device.backend == "cpu"
    assert buffer.state is S.HOST_DIRTY and count.since() == (0, 0, 0, 0)
    buffer.sync_to_device()
    check_both(buffer, NEW) if not shared else np.testing.assert_array_equal(buffer.to_numpy(), NEW)
    assert count.since() == ((0, 0, 0, 0) if shared else (1, NEW.nbytes, 0, 0))
    copied = UnifiedBuffer(1000, device=device)
    launch(taking("float"), 1000, read(buffer), unimem.write(copied))
    np.testing.assert_array_equal(copied.to_numpy(), NEW)


@pytest.mark.parametrize("receive", WAYS)
def test_receiving_into_a_part_moves_that_part(discrete, receive, tmp_path, moved):
    buffer = synced(discrete)
    count = moved(buffer)
    receive(buffer.slice(100, 50), NEW[:50], tmp_path)
    expected = DATA.copy()
    expected[100:150] = NEW[:50]
    buffer.sync_to_device()
    assert count.since() == (1, 200, 0, 0)
    check_both(buffer, expected)


@pytest.mark.parametrize("receive", WAYS)
def test_device_writes_beside_a_receive_stay(discrete, receive, tmp_path, moved):
    buffer = synced(discrete)
    buffer.device.copy_from(DATA + 5)
    buffer.mark_device_dirty()
    count = moved(buffer)
    receive(buffer.slice(0, 10), NEW[:10], tmp_path)
    assert count.since() == (0, 0, 1, 40)
    expected = DATA + 5
    expected[:10] = NEW[:10]
    buffer.synchronize()
    check_both(buffer, expected)


def test_a_fresh_buffer_is_received_into(device, tmp_path):
    buffer = UnifiedBuffer(1000, device=device)
    into_file(buffer, DATA, tmp_path)
    assert buffer.state is S.HOST_DIRTY
    buffer.sync_to_device()
    np.testing.assert_array_equal(buffer.to_numpy(), DATA)


def test_less_than_all_may_be_received(discrete, tmp_path):
    buffer = synced(discrete)
    (tmp_path / "short").write_bytes(NEW[:3].tobytes())
    with open(tmp_path / "short", "rb") as file:
        assert file.readinto(buffer) == 12
    expected = DATA.copy()
    expected[:3] = NEW[:3]
    buffer.sync_to_device()
    check_both(buffer, expected)


def test_reading_by_the_buffer_protocol_marks_nothing(discrete, moved):
    buffer = synced(discrete)
    count = moved(buffer)
    view = memoryview(buffer)
    assert view.readonly and bytes(buffer) == DATA.tobytes() and array.array("f", bytes(view)).tolist() == DATA.tolist()
    assert not np.frombuffer(buffer, np.float32).flags.writeable
    with pytest.raises(TypeError, match="read-only"):
        view.cast("B")[0] = 1
    with pytest.raises(TypeError, match="not writable"):  # it goes by way of a memoryview
        (ctypes.c_float * 1000).from_buffer(buffer)
    left, right = socket.socketpair()
    with left, right:
        left.sendall(buffer.slice(0, 4))
        assert right.recv(16) == DATA[:4].tobytes()
    del view
    gc.collect()
    assert (buffer.state, count.since()) == (S.SYNCHRONIZED, (0, 0, 0, 0))


SIMPLE, WRITABLE, FORMAT, ND, STRIDES, CONTIG = 0, 1, 4, 8, 24, 9


class Request:
    """A request as C code makes it, mpi4py for one, and holds it for as long as it likes."""

    class View(ctypes.Structure):
        _fields_ = [("buf", ctypes.c_void_p), ("obj", ctypes.c_void_p), ("len", ctypes.c_ssize_t), ("itemsize", ctypes.c_ssize_t),
                    ("readonly", ctypes.c_int), ("ndim", ctypes.c_int), ("format", ctypes.c_char_p), ("shape", ctypes.POINTER(ctypes.c_ssize_t)),
                    ("strides", ctypes.POINTER(ctypes.c_ssize_t)), ("suboffsets", ctypes.c_void_p), ("internal", ctypes.c_void_p)]  # fmt: skip

    def __init__(self, target, flags):
        self.view = self.View()
        ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(target), ctypes.byref(self.view), ctypes.c_int(flags))

    def write(self, data):
        ctypes.memmove(self.view.buf, data.ctypes.data, data.nbytes)

    def release(self):
        ctypes.pythonapi.PyBuffer_Release(ctypes.byref(self.view))


def receive_like_mpi4py(target, data):
    """Its order of asking: the buffer protocol, then DLPack without a version, then CUDA's interface. (how, when it is done)"""
    try:
        request = Request(target, WRITABLE | FORMAT | ND)
    except BufferError:
        array = np.from_dlpack(Unversioned(target))
        array[...] = data
        return "dlpack", lambda: None
    request.write(data)
    return "buffer", request.release


class Unversioned:
    """What consumers of before DLPack 1.0 ask for."""

    def __init__(self, target):
        self._target = target

    def __dlpack_device__(self):
        return self._target.__dlpack_device__()

    def __dlpack__(self, **arguments):
        return self._target.__dlpack__()


@pytest.mark.parametrize("part", [None, (100, 50)])
def test_a_message_as_mpi4pys_reaches_the_device(device, part):
    buffer = synced(device)
    target = buffer if part is None else buffer.slice(*part)
    expected = DATA.copy()
    expected[slice(None) if part is None else slice(100, 150)] = 7
    how, done = receive_like_mpi4py(target, np.full(target.size, 7, np.float32))
    assert how == "buffer" and buffer.state is S.SYNCHRONIZED
    done()
    assert buffer.state is S.HOST_DIRTY
    buffer.sync_to_device()
    np.testing.assert_array_equal(buffer.on(device) if device.backend == "cpu" else buffer.on(device).to_numpy(), expected)
    np.testing.assert_array_equal(buffer.to_numpy(), expected)


@pytest.mark.parametrize("flags", [SIMPLE, ND, STRIDES, FORMAT | ND, CONTIG])
def test_a_request_says_what_it_was_asked_for(sim, flags):
    buffer = UnifiedBuffer((4, 5), np.int16, device=sim).zeros()
    request = Request(buffer, flags | WRITABLE)
    view = request.view
    assert (view.readonly, view.len, view.itemsize, view.buf) == (0, 40, 2, buffer.host.ctypes.data)
    assert view.format == (b"h" if flags & FORMAT else None)
    assert [view.shape[i] for i in range(2)] == [4, 5] if flags & ND else not view.shape
    assert [view.strides[i] for i in range(2)] == [10, 2] if flags & STRIDES == STRIDES else not view.strides
    request.release()
    request.release()  # the interpreter's own: no second time
    assert buffer.state is S.HOST_DIRTY


def test_a_request_keeps_its_buffer_and_its_memory(discrete):
    buffer = synced(discrete)
    request = Request(buffer, WRITABLE)
    with pytest.raises(InvalidArgument):
        buffer.resize(10)
    with pytest.raises(InvalidArgument):
        buffer.release_host()
    buffer.free()
    buffer.fill(9)
    request.write(NEW)
    request.release()
    assert (buffer.to_numpy() == 9).all()
    buffer = synced(discrete)
    request = Request(buffer, WRITABLE)
    del buffer
    gc.collect()
    request.write(NEW)
    request.release()


def test_a_request_waits_for_the_work_before_it(sim):
    buffer, begun, go = synced(sim), threading.Event(), threading.Event()

    def slow(x):
        begun.set()
        go.wait()
        x += 1

    launch(Kernel("slow").host(slow), 1, readwrite(buffer))
    begun.wait()
    threading.Timer(0.05, go.set).start()
    request = Request(buffer, WRITABLE)
    assert go.is_set()
    seen = np.ctypeslib.as_array((ctypes.c_float * 1000).from_address(request.view.buf))
    np.testing.assert_array_equal(seen, DATA + 1)
    request.release()


def test_work_meanwhile_sees_what_was_there_before(sim):
    buffer = synced(sim)
    request = Request(buffer, WRITABLE)
    request.write(NEW)
    np.testing.assert_array_equal(buffer.on(sim).to_numpy(), DATA)
    request.release()
    np.testing.assert_array_equal(buffer.on(sim).to_numpy(), NEW)


def test_a_device_write_meanwhile_is_a_conflict(sim):
    buffer = synced(sim)
    request = Request(buffer.slice(0, 10), WRITABLE)
    buffer.on(sim).copy_from(DATA + 1)
    buffer.mark_device_dirty()
    request.release()
    with pytest.raises(unimem.CoherenceConflict, match=r"\[0, 40\)"):
        buffer.to_numpy()


def test_two_requests_at_once_both_count(discrete):
    buffer = synced(discrete)
    first, second = Request(buffer.slice(0, 10), WRITABLE), Request(buffer.slice(500, 10), WRITABLE)
    first.write(NEW[:10])
    second.write(NEW[:10])
    second.release()
    first.release()
    expected = DATA.copy()
    expected[:10] = expected[500:510] = NEW[:10]
    buffer.sync_to_device()
    check_both(buffer, expected)


def test_a_request_is_released_on_any_thread(discrete):
    for let_go in (lambda request: threading.Thread(target=request.release), None):
        buffer = synced(discrete)
        request = Request(buffer, WRITABLE)
        request.write(NEW)
        if let_go is not None:
            thread = let_go(request)
            thread.start()
            thread.join()
        else:

            class Holder:
                def __init__(self):
                    self.itself, self.request = self, request

                def __del__(self):
                    self.request.release()

            Holder()
            gc.collect()
        buffer.sync_to_device()
        check_both(buffer, NEW)


@pytest.mark.parametrize("own", [False, True])
def test_a_request_may_be_released_in_kernels(sim, own):
    buffer, other = synced(sim), UnifiedBuffer(10, device=sim).zeros()
    request = Request(buffer, WRITABLE)
    request.write(NEW)

    def kernel(x):
        request.release()
        x[:10] += 1

    launch(Kernel("releases").host(lambda x, *y: kernel(x)), 1, readwrite(other), *([read(buffer)] if own else []))
    np.testing.assert_array_equal(other.to_numpy(), 1)
    np.testing.assert_array_equal(buffer.to_numpy(), NEW)
    for _ in range(100):
        if buffer.state is S.HOST_DIRTY:
            break
    buffer.sync_to_device()
    check_both(buffer, NEW)


def test_a_request_allocates_no_strict_buffer(sim):
    with pytest.raises(BufferError, match="allocated"):
        Request(UnifiedBuffer(3, device=sim, strict=True), WRITABLE)


def test_an_empty_buffer_is_received_into(sim, tmp_path):
    buffer = UnifiedBuffer(0, device=sim)
    with open("/dev/zero", "rb") as zeros:
        assert zeros.readinto(buffer) == 0


# DLPack


def test_dlpack_with_a_version_is_read_only(discrete, moved):
    buffer = synced(discrete)
    count = moved(buffer)
    for one in (buffer, buffer.slice(10, 20)):
        seen = np.from_dlpack(one)
        assert not seen.flags.writeable and np.shares_memory(seen, buffer.host)
        copied = np.from_dlpack(one, copy=True)
        copied[:] = 0
    del seen
    assert (buffer.state, count.since()) == (S.SYNCHRONIZED, (0, 0, 0, 0))


@pytest.mark.parametrize("part", [None, (100, 50)])
def test_unversioned_dlpack_counts_as_written(discrete, part, moved):
    buffer = synced(discrete)
    count = moved(buffer)
    target = buffer if part is None else buffer.slice(*part)
    array = np.from_dlpack(Unversioned(target))
    capsule = target.__dlpack__()
    expected = DATA.copy()
    expected[slice(None) if part is None else slice(100, 150)] = 7
    writable = np.ctypeslib.as_array((ctypes.c_float * target.size).from_address(array.ctypes.data))
    writable[:] = 7
    assert (buffer.state, count.since()) == (S.SYNCHRONIZED, (0, 0, 0, 0))
    del array
    assert buffer.state is S.HOST_DIRTY
    del capsule
    buffer.sync_to_device()
    assert count.since() == (1, target.nbytes, 0, 0)
    check_both(buffer, expected)


@pytest.mark.parametrize("part", [(0, 1000), (0, 10)])
def test_unversioned_dlpack_never_overwrites_device_writes(sim, part):
    """It may have been taken to read, and held for long."""
    buffer = synced(sim)
    capsule = buffer.slice(*part).__dlpack__()
    buffer.on(sim).copy_from(DATA + 1)
    buffer.mark_device_dirty()
    del capsule
    with pytest.raises(unimem.CoherenceConflict, match="DLPack"):
        buffer.to_numpy()
    assert buffer.statistics.conflicting_marks == 0
    np.testing.assert_array_equal(buffer.to_numpy(), DATA + 1)


def test_unversioned_dlpack_keeps_seen_device_writes(sim):
    buffer = synced(sim)
    capsule = buffer.__dlpack__()
    buffer.on(sim).copy_from(DATA + 1)
    buffer.mark_device_dirty()
    assert buffer.host[0] == 1
    del capsule
    buffer.sync_to_device()
    check_both(buffer, DATA + 1)


def test_dlpack_that_is_refused_writes_nothing(discrete):
    buffer = synced(discrete)
    with pytest.raises(BufferError):
        buffer.__dlpack__(dl_device=(2, 0))
    assert buffer.state is S.SYNCHRONIZED
