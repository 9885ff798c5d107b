"""Two processes under MPI, which test_mpi.py starts: messages into buffers, and buffers as messages."""

import sys

import numpy as np
from mpi4py import MPI
from mpi4py.util import pkl5

import unimem
from unimem import BufferState, UnifiedBuffer

S = BufferState
COMM = MPI.COMM_WORLD
OTHER = 1 - COMM.rank
OLD = np.arange(1000, dtype=np.float64)
NEW = OLD * 3 + 1
SIM = unimem.make_sim("memory=64MiB")


def synced(values=OLD):
    buffer = UnifiedBuffer(values.shape, values.dtype, device=SIM)
    buffer.host[...] = values
    buffer.sync_to_device()
    return buffer


def check(buffer, values, sent):
    """What has arrived reaches the device, and `sent` bytes did."""
    assert buffer.state is S.HOST_DIRTY, buffer.state
    before = buffer.statistics.host_to_device_bytes
    np.testing.assert_array_equal(buffer.device.to_numpy(), values)
    np.testing.assert_array_equal(buffer.host, values)
    assert buffer.statistics.host_to_device_bytes - before == sent


def part_of(values, begin, end):
    result = OLD.copy()
    result[begin:end] = values[begin:end]
    return result


TARGETS = {
    "buffer": (lambda buffer: buffer, 0, 1000), "slice": (lambda buffer: buffer.slice(100, 50), 100, 150),
    "host": (lambda buffer: buffer.host, 0, 1000), "part of host": (lambda buffer: buffer.host[100:150], 100, 150),
}  # fmt: skip


def receives():
    for of, begin, end in TARGETS.values():
        buffer = synced()
        if COMM.rank == 0:
            COMM.Send(NEW[begin:end], 1)
            COMM.Send(of(buffer), 1)
            assert buffer.state is S.SYNCHRONIZED, "sending reads"
            continue
        COMM.Recv(of(buffer), 0)
        check(buffer, part_of(NEW, begin, end), 8 * (end - begin))
        COMM.Recv(of(buffer), 0)
        check(buffer, OLD, 8 * (end - begin))


def receives_later():
    buffer = synced()
    if COMM.rank == 0:
        COMM.Barrier()
        COMM.Send(NEW, 1)
        return
    request = COMM.Irecv(buffer, 0)
    try:
        buffer.resize(10)
    except unimem.InvalidArgument:
        pass
    else:
        raise AssertionError("resized under a message")
    assert (buffer.device.to_numpy() == OLD).all() and buffer.state is S.SYNCHRONIZED
    COMM.Barrier()
    request.Wait()
    check(buffer, NEW, OLD.nbytes)


def collectives():
    for of in (lambda buffer: buffer, lambda buffer: buffer.host):
        buffer = synced(NEW if COMM.rank == 0 else OLD)
        COMM.Bcast(of(buffer), 0)
        check(buffer, NEW, OLD.nbytes) if COMM.rank else None
        buffer = synced()
        COMM.Allreduce(MPI.IN_PLACE, of(buffer), MPI.SUM)
        check(buffer, 2 * OLD, OLD.nbytes)
        buffer = synced(OLD + COMM.rank)
        COMM.Sendrecv_replace(of(buffer), OTHER, 0, OTHER, 0)
        check(buffer, OLD + OTHER, OLD.nbytes)
        mine, all_of_them = synced(OLD[:500] + COMM.rank), synced()
        COMM.Allgather(of(mine), of(all_of_them))
        check(all_of_them, np.concatenate([OLD[:500], OLD[:500] + 1]), OLD.nbytes)


def windows():
    """What others write into counts when the window ends."""
    buffer = synced()
    window = MPI.Win.Create(buffer, comm=COMM)
    window.Fence()
    window.Put(NEW, OTHER)
    window.Fence()
    window.Free()
    check(buffer, NEW, OLD.nbytes)


def read_only_is_refused():
    try:
        COMM.Recv(memoryview(synced()), 0) if COMM.rank else None
    except (BufferError, ValueError, TypeError):
        pass
    else:
        assert COMM.rank == 0


def messages_by_pickle():
    """Out of band: the memory that MPI received into is the buffer's."""
    comm = pkl5.Intracomm(COMM)
    kept = UnifiedBuffer((100, 10), np.float64, device=SIM, name="kept")
    kept.host[...] = NEW.reshape(100, 10)
    if COMM.rank == 0:
        for one in (kept, kept.slice(100, 50), UnifiedBuffer((3, 4), np.int16, device=SIM)):
            comm.send(one, 1)
        return
    taken = unimem.default_manager().statistics
    whole, part, fresh = (comm.recv(source=0) for _ in range(3))
    assert (whole.shape, whole.dtype, whole.name, whole.state) == ((100, 10), np.float64, "kept", S.HOST_DIRTY)
    assert unimem.default_manager().statistics.total_allocations == taken.total_allocations, "all of it over what has arrived"
    np.testing.assert_array_equal(whole.device.to_numpy(), NEW.reshape(100, 10))
    assert (part.shape, part.name) == ((50,), "kept")
    np.testing.assert_array_equal(part.device.to_numpy(), NEW[100:150])
    assert (fresh.shape, fresh.dtype, fresh.state) == ((3, 4), np.int16, S.UNINITIALIZED)


for test in sys.argv[1:]:
    globals()[test]()
    COMM.Barrier()
    if COMM.rank == 0:
        print(test, flush=True)
