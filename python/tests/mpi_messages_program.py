"""Ranks of MPI that send buffers by `unimem.mpi`, which test_mpi_messages.py starts."""

import gc
import tempfile

import numpy as np
from mpi_samples import COMM, ME, MPI, NEW, OLD, OTHER, SIM, in_turns, is_free, made, raises, run

import unimem
from unimem import BufferState, UnifiedBuffer, mpi, read, readwrite, write

TYPES = ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8", "f2", "?", "c8", "c16", ">i4", "M8[s]", "S3", "U2", [("a", "i4"), ("b", "f8")]]


def every_type():
    random = np.random.default_rng(20261128)
    for kind in TYPES:
        dtype = np.dtype(kind)
        values = np.frombuffer(random.bytes(dtype.itemsize * 60), np.uint8)
        values = ((values & 1) if kind == "?" else values & 0x3F).view(dtype).reshape(5, 12)
        from_here, to_here = UnifiedBuffer((5, 12), dtype, device=SIM), UnifiedBuffer((5, 12), dtype, device=SIM)
        from_here.host.view(np.ndarray)[...] = values
        from_here.mark_host_dirty()
        in_turns(lambda: mpi.send(read(from_here), 1, 5), lambda: mpi.receive(write(to_here), 0, 5))
        assert ME == 0 or to_here.to_numpy().tobytes() == values.tobytes(), dtype
        in_turns(lambda: mpi.send(read(from_here.slice(7, 20), 3, 10), 1), lambda: mpi.receive(write(to_here, 40, 10), 0))
        assert ME == 0 or to_here.to_numpy().ravel()[40:50].tobytes() == values.ravel()[10:20].tobytes(), dtype
        # Plain calls of MPI at the other end: one message of as many bytes.
        raw = bytearray(values.nbytes)
        in_turns(lambda: mpi.send(read(from_here), 1), lambda: COMM.Recv([raw, MPI.BYTE], 0))
        assert ME == 0 or bytes(raw) == values.tobytes()


def nothing_in_it():
    empty = UnifiedBuffer(0, np.float64, device=SIM)
    in_turns(lambda: mpi.send(read(empty), 1), lambda: mpi.receive(write(empty), 0))
    buffer = made()
    in_turns(lambda: mpi.send(read(buffer, 1000, 0), 1), lambda: mpi.receive(write(buffer, 5, 0), 0))
    mpi.broadcast(readwrite(empty), 0)
    mpi.all_reduce(readwrite(empty))
    in_turns(lambda: mpi.isend(read(empty), 1).wait(), lambda: mpi.ireceive(write(empty), 0).wait())
    assert (buffer.host == OLD).all()


def no_rank():
    buffer = made()
    mpi.send(read(buffer), MPI.PROC_NULL)
    assert mpi.receive(write(buffer), MPI.PROC_NULL) == mpi.Received(MPI.PROC_NULL, MPI.ANY_TAG, 0)
    for event in (mpi.isend(read(buffer), MPI.PROC_NULL), mpi.ireceive(write(buffer), MPI.PROC_NULL)):
        assert event.ready and event.wait()
    assert buffer.state is BufferState.SYNCHRONIZED and (buffer.host == OLD).all()


def what_moves():
    """What only a device has comes to the host once, its range alone; what is received brings nothing in, and goes to the device when it is used."""
    buffer = made()
    unimem.launch(unimem.Kernel("tripled").host(lambda x: np.copyto(x, x * 3 + 1)), 1000, readwrite(buffer))
    counts = lambda: (buffer.statistics.device_to_host_bytes, buffer.statistics.host_to_device_bytes)  # noqa: E731
    start = counts()
    if ME == 0:
        mpi.send(read(buffer, 100, 50), 1)
        assert counts() == (start[0] + 400, start[1])
        mpi.send(read(buffer, 100, 50), 1)
        assert counts() == (start[0] + 400, start[1]), "it is there already"
        mpi.isend(read(buffer, 0, 200), 1).wait()
        assert counts() == (start[0] + 1600, start[1])
        assert buffer.valid_on(SIM)
    else:
        for _ in range(2):
            assert mpi.receive(write(buffer, 0, 50), MPI.ANY_SOURCE, MPI.ANY_TAG) == mpi.Received(0, 0, 400)
        assert counts() == start
        mpi.ireceive(write(buffer, 500, 200), 0).wait()
        assert counts() == start, "what is overwritten is not brought in"
        expected = NEW.copy()
        expected[0:50], expected[500:700] = NEW[100:150], NEW[0:200]
        np.testing.assert_array_equal(buffer.device.to_numpy(), expected)
        assert counts() == (start[0], start[1] + 2000)
    COMM.Barrier()


def sizes_that_do_not_fit():
    for count, size, said in ((1001, 8, "expected 1000 elements, got 1001"), (999, 8, "got 999"), (7, 1, "expected 8000 bytes, got 7"), (0, 8, "got 0")):
        buffer = made()
        if ME == 0:
            sent = made(np.ones(count, f"u{size}" if size == 1 else "f8"))
            mpi.send(read(sent), 1, 9)
            mpi.isend(read(sent), 1, 9).wait()
            mpi.send(read(made(NEW)), 1, 9)
        else:
            expected, actual = (1000, count) if size == 8 else (8000, count)
            error = raises(unimem.SizeMismatch, lambda: mpi.receive(write(buffer), 0, 9), "a message from rank 0 with tag 9", said, expected=expected, actual=actual)
            assert buffer.state is BufferState.SYNCHRONIZED and (buffer.host == OLD).all() and (buffer.device.to_numpy() == OLD).all()
            event = mpi.ireceive(write(buffer), 0, 9)
            raises(unimem.SizeMismatch, event.wait, said)
            raises(unimem.SizeMismatch, lambda: buffer.host, said)
            np.testing.assert_array_equal(buffer.host, OLD)
            np.testing.assert_array_equal(buffer.device.to_numpy(), OLD)
            is_free(buffer)
            mpi.receive(write(buffer), 0, 9)  # the others were dropped
            assert (buffer.host == NEW).all()
            del error
        COMM.Barrier()
    # A large one, which its sender keeps until it is taken.
    small = UnifiedBuffer(10, np.float64)
    large = UnifiedBuffer(1 << 20, np.float64)
    in_turns(lambda: mpi.send(read(large), 1), lambda: raises(unimem.SizeMismatch, lambda: mpi.receive(write(small), 0), expected=10, actual=1 << 20))


def bad_arguments():
    buffer = made()
    wrong = unimem.InvalidArgument
    for rank in (2, -7, 10**30):
        raises(wrong, lambda: mpi.send(read(buffer), rank), "to", "from 0 to 1", argument="to")
        raises(wrong, lambda: mpi.isend(read(buffer), rank), argument="to")
        raises(wrong, lambda: mpi.receive(write(buffer), rank), argument="source")
        raises(wrong, lambda: mpi.ireceive(write(buffer), rank), argument="source")
    for rank in (True, 0.5, None, "0"):
        raises(wrong, lambda: mpi.send(read(buffer), rank), argument="to")
    highest = COMM.Get_attr(MPI.TAG_UB)
    for tag in (-5, highest, highest + 1, 10**30, 1.0):
        raises(wrong, lambda: mpi.send(read(buffer), 0, tag), argument="tag")
        raises(wrong, lambda: mpi.receive(write(buffer), 0, tag), argument="tag")
    raises(wrong, lambda: mpi.send(read(buffer), 0, MPI.ANY_TAG), argument="tag")
    raises(wrong, lambda: mpi.send(read(buffer), MPI.ANY_SOURCE), argument="to")
    for comm in (MPI.COMM_NULL, "world", 3):
        raises(wrong, lambda: mpi.send(read(buffer), 0, 0, comm), argument="comm")
        raises(wrong, lambda: mpi.broadcast(readwrite(buffer), 0, comm), argument="comm")
    raises(wrong, lambda: mpi.send(write(buffer), OTHER), "what is sent", "read(…)")
    raises(wrong, lambda: mpi.receive(read(buffer), OTHER), "what receives", "write(…)")
    for operand in (buffer, buffer.host, None, buffer.block((0,), (3,)), "x", np.zeros(3)):
        raises(wrong, lambda: mpi.send(operand, OTHER), argument="operand")
        raises(wrong, lambda: mpi.ireceive(operand, OTHER), argument="operand")
    raises(wrong, lambda: mpi.send(read(buffer, 990, 11), OTHER), "within 1000 elements")
    raises(wrong, lambda: mpi.receive(write(buffer, 1001), OTHER), "within 1000 elements")
    with tempfile.NamedTemporaryFile() as file:
        file.write(OLD.tobytes())
        file.flush()
        fixed = UnifiedBuffer.from_file(file.name, np.float64)
        in_turns(lambda: mpi.send(read(fixed), 1), lambda: mpi.receive(write(buffer), 0))
        for call in (mpi.receive, mpi.ireceive):
            raises(unimem.UnsupportedOperation, lambda: call(write(fixed), OTHER))
    strict = UnifiedBuffer(3, strict=True)
    raises(unimem.BufferNotAllocated, lambda: mpi.send(read(strict), OTHER))
    raises(unimem.BufferNotAllocated, lambda: mpi.ireceive(write(strict), OTHER))
    raises(unimem.BufferNotAllocated, lambda: mpi.isend(read(strict), OTHER))
    assert (buffer.host == OLD).all()
    is_free(buffer)


def each_kind_of_buffer():
    count = 1 << 14
    values = np.arange(count, dtype=np.float64) + 1000 * ME
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/file"
        np.zeros(count).tofile(path)
        kinds = [
            lambda: UnifiedBuffer(count, np.float64, shared=True), lambda: UnifiedBuffer(count, np.float64, tracking=unimem.Tracking.PAGES, device=SIM),
            lambda: UnifiedBuffer(count, np.float64, pinned=True, device=SIM), lambda: UnifiedBuffer(count, np.float64, location=unimem.Location.HOST),
            lambda: UnifiedBuffer.from_array(np.zeros(count), device=SIM), lambda: UnifiedBuffer.from_file(path, np.float64, mode="r+", device=SIM),
            lambda: UnifiedBuffer.from_file(path, np.float64, mode="c"), lambda: UnifiedBuffer((128, 128), np.float64, device=SIM),
        ]  # fmt: skip
        for kind in kinds:
            buffer, expected = kind(), values.copy()
            buffer.host[...] = values.reshape(buffer.shape)
            buffer.sync_to_device()
            went = mpi.isend(read(buffer, 100, 5000), OTHER, 1)
            mpi.ireceive(write(buffer, 8000, 5000), OTHER, 1)
            expected[8000:13000] = np.arange(100, 5100) + 1000 * OTHER
            np.testing.assert_array_equal(buffer.to_numpy().ravel(), expected)
            assert went.wait()
            in_turns(lambda: mpi.send(read(buffer), 1), lambda: mpi.receive(write(buffer), 0))
            expected[:] = COMM.bcast(expected)
            np.testing.assert_array_equal(np.asarray(buffer.to_numpy()).ravel(), expected)
            buffer.sync_to_device()
            mpi.all_reduce(readwrite(buffer))
            np.testing.assert_array_equal(buffer.to_numpy().ravel(), 2 * expected)
            mpi.broadcast(readwrite(buffer, 5, 7), 1)
            buffer.free()


def freed():
    """A buffer without data is one of zeros to who reads it, as for a launch."""
    buffer = made(OLD)
    buffer.free()
    if ME == 0:
        mpi.send(read(buffer), 1)
    else:
        mpi.receive(write(buffer), 0)
        assert buffer.size == 1000 and buffer.state in (BufferState.HOST_ONLY, BufferState.HOST_DIRTY)
    COMM.Barrier()
    # Freed, or dropped, while a message is to be received into it, which has the memory to itself until then.
    buffer = made()
    if ME == 0:
        COMM.Barrier()
        for _ in range(2):
            mpi.send(read(made(NEW)), 1)
        return
    freed, dropped = mpi.ireceive(write(buffer), 0), made()
    buffer.free()
    last = mpi.ireceive(write(dropped), 0)
    del dropped
    gc.collect()
    assert buffer.state is BufferState.UNINITIALIZED and not freed.ready
    COMM.Barrier()
    others = [made(device=unimem.device("cpu")) for _ in range(20)]
    assert freed.wait() and last.wait() and all((one.host == OLD).all() for one in others)
    buffer.host[:] = OLD
    assert (buffer.to_numpy() == OLD).all()


run(globals())
