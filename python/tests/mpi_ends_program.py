"""Ranks of MPI whose calls fail, which make calls together, and which begin and end, by `unimem.mpi`: test_mpi_messages.py starts them."""

import sys
import time

import numpy as np
from mpi_samples import COMM, ME, MPI, NEW, OLD, OTHER, SIM, in_turns, is_free, made, raises, run

import unimem
from unimem import BufferState, UnifiedBuffer, mpi, read, readwrite, write


class Broken(MPI.Intracomm):
    """Calls of MPI that fail."""

    calls: frozenset[str] = frozenset()

    def fail(self, name):
        if name in self.calls:
            raise MPI.Exception(MPI.ERR_OTHER)

    def Send(self, *a):
        self.fail("Send")
        return MPI.Intracomm.Send(self, *a)

    def Isend(self, *a):
        self.fail("Isend")
        return MPI.Intracomm.Isend(self, *a)

    def Mprobe(self, *a):
        self.fail("Mprobe")
        return BrokenMessage(MPI.Intracomm.Mprobe(self, *a), self)

    def Improbe(self, *a):
        self.fail("Improbe")
        found = MPI.Intracomm.Improbe(self, *a)
        return found and BrokenMessage(found, self)

    def Bcast(self, *a):
        self.fail("Bcast")
        return MPI.Intracomm.Bcast(self, *a)


class BrokenMessage:
    def __init__(self, message, comm):
        self.message, self.comm = message, comm

    def Recv(self, *a):
        self.message.Recv(*a)
        self.comm.fail("Recv")

    def Irecv(self, *a):
        request = self.message.Irecv(*a)
        if "Irecv" in self.comm.calls:
            request.Wait()
        self.comm.fail("Irecv")
        return request


def failures_of_mpi():
    comm = Broken(COMM)
    buffer = made()
    if ME == 0:
        for name, call in (("Send", mpi.send), ("Isend", lambda *a: mpi.isend(*a).wait())):
            comm.calls = frozenset({name})
            error = raises(unimem.DeviceError, lambda: call(read(buffer), 1, 0, comm), "mpi: ", backend="mpi", code=MPI.ERR_OTHER)
            assert error.code_name in str(error) and buffer.state is BufferState.SYNCHRONIZED
            is_free(buffer)
            buffer.sync_to_device()
        for _ in range(4):
            mpi.send(read(made(NEW)), 1)
    else:
        for name, call, takes in (("Mprobe", mpi.receive, False), ("Improbe", mpi.ireceive, False), ("Recv", mpi.receive, True), ("Irecv", mpi.ireceive, True)):
            buffer = made()
            comm.calls = frozenset({name})

            def received():
                event = call(write(buffer), 0, 0, comm)
                event.wait()

            raises(unimem.DeviceError, received, backend="mpi", code=MPI.ERR_OTHER)
            if call is mpi.ireceive:
                raises(unimem.DeviceError, lambda: buffer.host)
            if not takes:
                np.testing.assert_array_equal(buffer.host, OLD)
                np.testing.assert_array_equal(buffer.device.to_numpy(), OLD)
            is_free(buffer)
        comm.calls = frozenset()
        for _ in range(2):
            mpi.receive(write(buffer), 0)
            assert (buffer.host == NEW).all()
    COMM.Barrier()


def collectives():
    for device in (SIM, unimem.device("cpu")):
        buffer = made(NEW if ME == 0 else OLD, device)
        mpi.broadcast(read(buffer) if ME == 0 else write(buffer), 0)
        assert (buffer.host == NEW).all() and (ME or device is not SIM or buffer.state is BufferState.SYNCHRONIZED)
        np.testing.assert_array_equal(buffer.to_numpy(), NEW)
        part = made(NEW + ME, device)
        mpi.broadcast(readwrite(part, 10, 20), 1)
        expected = NEW + ME
        expected[10:30] = NEW[10:30] + 1
        np.testing.assert_array_equal(part.to_numpy(), expected)
        for kind in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8"):
            mine = [np.arange(5).astype(kind) + 1 + rank for rank in range(2)]
            for reduction, of in ((mpi.Reduction.SUM, np.add), (mpi.Reduction.PRODUCT, np.multiply), (mpi.Reduction.MINIMUM, np.minimum), (mpi.Reduction.MAXIMUM, np.maximum)):
                x = made(mine[ME], device)
                mpi.all_reduce(readwrite(x), reduction)
                np.testing.assert_array_equal(x.to_numpy(), of(*mine))
                assert device is not SIM or x.state is BufferState.HOST_DIRTY
    structured = made(np.array([(ME, 2.5)] * 3, [("a", "i4"), ("b", "f8")]))
    mpi.broadcast(readwrite(structured), 1)
    assert structured.to_numpy()["a"].tolist() == [1, 1, 1]


def collectives_that_disagree():
    buffer = made()
    short, other = made(OLD[:999]), made(OLD.astype("i8"))
    wrong, sizes = unimem.InvalidArgument, unimem.SizeMismatch
    cases = [
        (sizes, lambda: mpi.broadcast(readwrite(buffer if ME else short), 0), "7992 bytes", "8000"),
        (wrong, lambda: mpi.broadcast(readwrite(buffer if ME else other), 0), "of one type"),
        (wrong, lambda: mpi.broadcast(readwrite(buffer), ME), "root"),
        (wrong, lambda: mpi.broadcast(readwrite(buffer), 2 if ME else 0), ""),
        (wrong, lambda: mpi.broadcast(readwrite(buffer), 2), "from 0 to 1"),
        (wrong, lambda: mpi.broadcast(readwrite(buffer), MPI.PROC_NULL), "root", "from 0 to 1"),
        (wrong, lambda: mpi.broadcast(readwrite(buffer), None), "an integer"),
        (wrong, lambda: mpi.broadcast(write(buffer) if ME == 0 else readwrite(buffer), 0), ""),
        (wrong, lambda: mpi.broadcast(readwrite(buffer) if ME == 0 else read(buffer), 0), ""),
        (wrong, lambda: mpi.broadcast(buffer if ME else readwrite(buffer), 0), ""),
        (wrong, lambda: mpi.broadcast(readwrite(buffer, 5, 996) if ME else readwrite(buffer, 5, 900), 0), ""),
        (sizes, lambda: mpi.all_reduce(readwrite(buffer if ME else short)), "bytes in every rank"),
        (wrong, lambda: mpi.all_reduce(readwrite(buffer if ME else other)), "of one type"),
        (wrong, lambda: mpi.all_reduce(readwrite(buffer), mpi.Reduction.SUM if ME else mpi.Reduction.MAXIMUM), "reduction"),
        (wrong, lambda: mpi.all_reduce(readwrite(buffer), "sum" if ME else mpi.Reduction.SUM), ""),
        (wrong, lambda: mpi.all_reduce(read(buffer) if ME else readwrite(buffer)), ""),
        (wrong, lambda: mpi.all_reduce(readwrite(buffer.view("c16"))), "integers or floating-point numbers"),
    ]  # fmt: skip
    for kind, call, *words in cases:
        error = raises(kind, call, *words)
        assert buffer.state is BufferState.SYNCHRONIZED, call
        is_free(buffer)
        buffer.sync_to_device()
        del error
    # A root that has no room to bring it to.
    manager = unimem.MemoryManager()
    manager.set_limit("cpu", 4096)
    tight = UnifiedBuffer(1 << 20, np.float64, manager=manager) if ME == 0 else UnifiedBuffer(1 << 20, np.float64)
    raises(wrong if ME else unimem.OutOfMemory, lambda: mpi.broadcast(readwrite(tight), 0))
    np.testing.assert_array_equal(buffer.to_numpy(), OLD)
    mpi.broadcast(readwrite(buffer), np.array(0))  # an integer by its __index__
    mpi.all_reduce(readwrite(buffer))
    np.testing.assert_array_equal(buffer.to_numpy(), 2 * OLD)


def without_threads():
    assert MPI.Query_thread() < MPI.THREAD_MULTIPLE
    buffer = made(NEW if ME == 0 else OLD)
    for call in (lambda: mpi.isend(read(buffer), OTHER), lambda: mpi.ireceive(write(buffer), OTHER)):
        raises(unimem.UnsupportedOperation, call, "MPI_THREAD_MULTIPLE", where="MPI")
    in_turns(lambda: mpi.send(read(buffer), 1), lambda: mpi.receive(write(buffer), 0))
    assert (buffer.host == NEW).all()


def not_initialized():
    buffer = made()
    calls = [lambda: mpi.send(read(buffer), 0), lambda: mpi.ireceive(write(buffer), 0), lambda: mpi.broadcast(readwrite(buffer), 0),
             lambda: mpi.all_reduce(readwrite(buffer)), lambda: mpi.DistributedArray(10)]  # fmt: skip
    for call in calls:
        raises(unimem.UnsupportedOperation, call, "MPI_Init has not been called", where="MPI")
    MPI.Init()
    mpi.broadcast(readwrite(buffer), 0)
    MPI.COMM_WORLD.Barrier()
    if MPI.COMM_WORLD.rank == 0:
        print("not_initialized", flush=True)
    MPI.Finalize()
    for call in calls:
        raises(unimem.UnsupportedOperation, call, "MPI_Finalize has been called")


def finalized_under_way():
    """What nobody has sent fails when MPI ends, and the buffer holds what it held."""
    buffer, coming = made(), []
    for tag in range(3):
        coming.append(mpi.ireceive(write(buffer, 10 * tag, 10), OTHER, tag))
    mpi.send(read(buffer, 500, 10), OTHER, 1)
    coming[1].wait()
    COMM.Barrier()
    if ME == 0:
        print("finalized_under_way", flush=True)
    MPI.Finalize()
    for one in (coming[0], coming[2]):
        raises(unimem.UnsupportedOperation, one.wait, "it had not ended")
    raises(unimem.UnsupportedOperation, lambda: buffer.host)
    expected = OLD.copy()
    expected[10:20] = OLD[500:510]
    for _ in range(3):
        try:
            np.testing.assert_array_equal(buffer.host, expected)
            break
        except unimem.UnsupportedOperation:
            pass
    else:
        raise AssertionError("it cannot be read any more")


def arrays_after_finalize():
    """MPI has taken back what it had for them; what this rank has of them is there."""
    left, read_, closed = (mpi.DistributedArray(10, halo=1) for _ in range(3))
    for array in (left, read_):
        array.local().host[...] = ME + 1
        array.fence()
    left.read(*left.reach)
    COMM.Barrier()
    if ME == 0:
        print("arrays_after_finalize", flush=True)
    MPI.Finalize()
    for call in (left.fence, left.sum, left.min, left.max, lambda: read_.read(*read_.reach)):
        raises(unimem.UnsupportedOperation, call, "MPI_Finalize has been called", where="MPI")
    assert left.read(*left.reach).to_numpy().tolist() == ([1] * 5 + [2] if ME == 0 else [1] + [2] * 5)
    with closed, left:
        assert left.local().to_numpy().tolist() == [ME + 1] * 5
    raises(unimem.UnsupportedOperation, left.local, "it has been closed")


LEFT = []


def left_under_way():
    """The interpreter ends with receives that nobody sends to, and sends that MPI has had."""
    buffer = made()
    LEFT.extend([buffer, mpi.ireceive(write(buffer), OTHER, 1), mpi.isend(read(made(NEW)), OTHER, 2)])
    unimem.launch(unimem.Kernel("reads").host(lambda x: None), 1000, read(buffer))
    other = made(device=unimem.device("cpu"))  # the other one's queue has a kernel that waits
    mpi.receive(write(other), OTHER, 2)
    assert (other.host == NEW).all()


def left_behind_a_kernel():
    """The interpreter ends while a kernel in Python runs that a message waits for."""
    buffer = made()
    unimem.launch(unimem.Kernel("slow").host(lambda x: time.sleep(0.5)), 1000, readwrite(buffer))
    mpi.isend(read(buffer), OTHER)


def left_by_an_exception():
    left_under_way()
    COMM.Barrier()
    if ME == 0:
        print("left_by_an_exception", flush=True)
    sys.stdout.flush()
    raise SystemExit(0)


run(globals())
