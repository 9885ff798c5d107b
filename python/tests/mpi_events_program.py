"""Ranks of MPI with messages behind their backs, in order with kernels and each other, by `unimem.mpi`: test_mpi_messages.py starts them."""

import asyncio
import os
import signal
import threading
import time

import numpy as np
from mpi_samples import COMM, ME, MPI, NEW, OLD, OTHER, SIM, made, raises, run

import unimem
from unimem import UnifiedBuffer, mpi, read, readwrite, write


def in_order_with_kernels():
    slow = unimem.Kernel("slow").host(lambda x, a: (time.sleep(0.1), np.copyto(x, a)))
    added = unimem.Kernel("added").host(lambda x, y: np.add(x, 1, out=y))
    for device in (SIM, unimem.device("cpu")):
        x, y = made(device=device), made(device=device)
        if ME == 0:
            unimem.launch(slow, 1000, write(x), 1.0)
            sent = mpi.isend(read(x), 1)             # waits for the kernel,
            unimem.launch(slow, 1000, write(x), 2.0)  # and what writes next waits for it
            again = mpi.isend(read(x), 1)
            x.host[:] = 3
            assert sent.ready and again.ready
            mpi.send(read(x), 1)
        else:
            coming = mpi.ireceive(write(x), 0)
            event = unimem.launch(added, 1000, read(x), write(y))
            assert (y.host == 2).all() and coming.ready and event.ready, "it has waited for the message"
            coming = mpi.ireceive(write(x), 0)
            assert (x.host == 2).all(), "so does the host"
            mpi.receive(write(x), 0)
            assert (x.device.to_numpy() == 3).all() if device is SIM else (x.host == 3).all()
        COMM.Barrier()


def both_ways_at_once():
    """Each has a large message under way to the other, by calls that block: as MPI promises of receives that were posted."""
    x, y = UnifiedBuffer(1 << 21, np.float64, device=SIM), UnifiedBuffer(1 << 21, np.float64, device=SIM)
    x.fill(float(ME))
    coming = mpi.ireceive(write(y), OTHER, 3)
    mpi.send(read(x), OTHER, 3)
    coming.wait()
    assert (y.host == OTHER).all()
    x.fill(ME + 10.0)
    coming = mpi.ireceive(write(y), OTHER, 3)
    COMM.Send(x, OTHER, 3)
    assert (y.host == OTHER + 10).all()
    events = [mpi.ireceive(write(y, i << 12, 1 << 12), OTHER, i) for i in range(256)] + [mpi.isend(read(x, i << 12, 1 << 12), OTHER, i) for i in reversed(range(256))]
    for event in events:
        event.wait()
    assert (y.host[: 256 << 12] == OTHER + 10).all()


def messages_keep_their_order():
    slow = unimem.Kernel("slow").host(lambda x, a: (time.sleep(0.2), np.copyto(x, a)))
    one, two = made(), made()
    if ME == 0:
        unimem.launch(slow, 1000, write(one), 1.0)
        mpi.isend(read(one), 1, 4)
        two.fill(2.0)
        mpi.send(read(two), 1, 4)  # ready, and blocks: behind the other all the same
        COMM.Barrier()
        for value in range(20):
            mpi.isend(read(made(np.full(1000, float(value)))), 1, 4) if value % 3 else mpi.send(read(made(np.full(1000, float(value)))), 1, 4)
    else:
        first = mpi.ireceive(write(one), 0, MPI.ANY_TAG)
        mpi.receive(write(two), MPI.ANY_SOURCE, 4)
        first.wait()
        assert (one.host == 1).all() and (two.host == 2).all()
        COMM.Barrier()
        buffers = [made() for _ in range(20)]
        events = [mpi.ireceive(write(buffer), 0, 4) for buffer in buffers[:15]]
        for buffer in buffers[15:]:
            mpi.receive(write(buffer), 0, 4)
        assert all(event.wait() for event in events)
        assert [buffer.host[7] for buffer in buffers] == list(range(20))
    COMM.Barrier()


def failed_kernels():
    """What needs failed work fails with its error, and no message is sent."""
    def fails(x):
        raise RuntimeError("not today")

    buffer = made()
    unimem.launch(unimem.Kernel("fails").host(fails), 1000, write(buffer))
    if ME == 0:
        raises(unimem.KernelError, lambda: mpi.send(read(buffer), 1), "fails")
        unimem.launch(unimem.Kernel("fails").host(fails), 1000, write(buffer))
        try:
            raises(unimem.KernelError, mpi.isend(read(buffer), 1).wait, "fails")
        except unimem.KernelError as error:
            assert "fails" in str(error)
    COMM.Barrier()
    assert ME == 0 or not COMM.Iprobe()


def awaited():
    buffer, looks = made(), []

    async def receives():
        event = mpi.ireceive(write(buffer), 0)

        async def others():
            while not event.ready:
                looks.append(1)
                await asyncio.sleep(0.005)

        await asyncio.gather(event, others())
        assert (buffer.host == NEW).all() and looks

    if ME == 0:
        time.sleep(0.2)
        mpi.send(read(made(NEW)), 1)
    else:
        asyncio.run(receives())


def interrupted():
    """Ctrl-C ends the waiting for a message, and not the message."""
    buffer = made()
    if ME == 0:
        COMM.Barrier()
        mpi.send(read(made(NEW)), 1)
        return
    coming = mpi.ireceive(write(buffer), 0)
    for wait in (coming.wait, lambda: buffer.host):
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            wait()
        except KeyboardInterrupt:
            continue
        raise AssertionError("it was not interrupted")
    assert not coming.ready
    COMM.Barrier()
    assert (buffer.host == NEW).all() and coming.wait()


def many_messages():
    """Each element by a message of its own, in an order of its own."""
    count, order = 2000, np.random.default_rng(ME).permutation(2000).tolist()
    x, y = made(np.full(count, ME + 1.0)), made(np.zeros(count))
    coming = [mpi.ireceive(write(y, i, 1), OTHER, i) for i in range(count)]
    for i in order:
        mpi.isend(read(x, i, 1), OTHER, i)
    assert (y.host == OTHER + 1).all() and all(one.wait() for one in coming)


def refused_while_a_kernel_runs():
    """A message of another size ends its work while a kernel in Python has the memory: neither waits for the other."""
    for device in (unimem.device("cpu"), SIM):
        buffer = made(device=device)
        if ME == 0:
            COMM.Barrier()
            mpi.send(read(made(NEW), 0, 10), 1)
            continue
        running = unimem.launch(unimem.Kernel("slow").host(lambda x: time.sleep(0.5)), 1000, read(buffer))
        coming = mpi.ireceive(write(buffer), 0)
        COMM.Barrier()
        raises(unimem.SizeMismatch, coming.wait, "got 10")
        assert running.wait()
        raises(unimem.SizeMismatch, lambda: buffer.host)
        assert (buffer.host == OLD).all()


def freed_communicators():
    """A message that waits for a kernel while its communicator is freed fails, and the process goes on. What MPI has by then ends."""
    slow = unimem.Kernel("slow").host(lambda x: time.sleep(0.3))
    comm, buffer, sent = COMM.Dup(), made(), made(NEW)
    unimem.launch(slow, 1000, readwrite(sent))
    late = mpi.isend(read(sent), OTHER, 0, comm)
    comm.Free()
    raises(unimem.UnsupportedOperation, late.wait, "its communicator", "freed")
    assert (sent.host == NEW).all()
    comm = COMM.Dup()
    gone = mpi.isend(read(sent), OTHER, 0, comm)
    mpi.receive(write(buffer), OTHER, 0, comm)
    COMM.Barrier()
    comm.Free()
    assert gone.wait() and (buffer.host == NEW).all()


def many_threads():
    """Several threads of a rank, each with messages of its own tag."""
    failures = []

    def works(tag):
        try:
            for value in range(30):
                x, y = made(np.full(100, value + tag * 1000.0)), made(np.zeros(100))
                coming = mpi.ireceive(write(y), OTHER, tag)
                mpi.isend(read(x), OTHER, tag) if value % 2 else mpi.send(read(x), OTHER, tag)
                assert (y.host == value + tag * 1000).all() and coming.wait()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=works, args=(tag,)) for tag in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not failures, failures


run(globals())
