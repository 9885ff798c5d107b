"""A program of its own whose processes send each other buffers, which test_transports.py starts: by multiprocessing, executors and joblib."""

import multiprocessing
import os
import pickle
import sys
from concurrent.futures import ProcessPoolExecutor

import numpy as np

import unimem
from unimem import BufferState, UnifiedBuffer

S = BufferState
VALUES = np.arange(200_000, dtype=np.float32).reshape(400, 500)


def made():
    buffer = UnifiedBuffer(VALUES.shape, VALUES.dtype, device="sim", name="table", priority=3)
    buffer.host[...] = VALUES
    buffer.sync_to_device()
    return buffer


def looked_at(buffer):
    """What a process finds."""
    total = 0 if buffer.state is S.UNINITIALIZED else float(buffer.to_numpy().sum(dtype=np.float64))
    return os.getpid(), buffer.shape, buffer.dtype.str, buffer.name, buffer.priority, buffer.state.name, total


def negated(buffer):
    buffer.host[...] = -buffer.host
    return buffer


def blocks_for(buffer):
    """The blocks of memory that the process's manager has given out: none where buffers lie on what has arrived."""
    return unimem.default_manager().statistics.total_allocations, buffer.host.flags.writeable, float(buffer.host[0, 0])


def check(apply):
    """`apply(function, buffer)` does so in another process."""
    buffer = made()
    before = buffer.statistics
    cases = [
        (buffer, VALUES.shape, "HOST_DIRTY", VALUES.sum(dtype=np.float64)), (buffer.slice(1000, 2000), (2000,), "HOST_DIRTY", VALUES.ravel()[1000:3000].sum(dtype=np.float64)),
        (UnifiedBuffer((3, 4), np.float32, device="sim", name="table", priority=3), (3, 4), "UNINITIALIZED", 0.0),
    ]  # fmt: skip
    for sent, shape, state, total in cases:
        process, *found = apply(looked_at, sent)
        assert process != os.getpid() and found == [shape, "<f4", "table", 3, state, total], found
    back = apply(negated, buffer)
    assert (back.name, back.priority, back.state) == ("table", 3, S.HOST_DIRTY)
    np.testing.assert_array_equal(back.on("sim").to_numpy(), -VALUES)  # the other process has no such device
    np.testing.assert_array_equal(buffer.to_numpy(), VALUES)
    assert buffer.state is S.SYNCHRONIZED and buffer.statistics == before, "sending moves nothing"


def pool(method):
    with multiprocessing.get_context(method).Pool(1) as workers:
        check(lambda function, buffer: workers.apply_async(function, (buffer,)).get(50))


def executor(method):
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context(method)) as workers:
        check(lambda function, buffer: workers.submit(function, buffer).result(50))


def serve(tasks, results):
    for function, buffer in iter(tasks.get, None):
        results.put(function(buffer))


def queue(method):
    context = multiprocessing.get_context(method)
    tasks, results = context.Queue(), context.Queue()
    process = context.Process(target=serve, args=(tasks, results))
    process.start()

    def apply(function, buffer):
        tasks.put((function, buffer))
        return results.get(timeout=50)

    check(apply)
    tasks.put(None)
    process.join(50)
    assert process.exitcode == 0


def serve_pipe(connection):
    for function, buffer in iter(connection.recv, None):
        connection.send(function(buffer))


def pipe(method):
    context = multiprocessing.get_context(method)
    ours, theirs = context.Pipe()
    process = context.Process(target=serve_pipe, args=(theirs,))
    process.start()

    def apply(function, buffer):
        ours.send((function, buffer))
        assert ours.poll(50)
        return ours.recv()

    check(apply)
    ours.send(None)
    process.join(50)
    assert process.exitcode == 0


def joblib(backend):
    from joblib import Parallel, delayed

    if backend == "threading":  # nothing is pickled there
        buffer = made()
        with Parallel(n_jobs=2, backend=backend) as workers:
            assert all(one is buffer for one in workers(delayed(lambda one: one)(buffer) for _ in range(4)))
        return
    # In the pickle, and by a file in memory, which arrives writable and is not copied, or read-only and is. The processes go on from one to the next.
    for options, copies in (({"max_nbytes": None}, False), ({"max_nbytes": "64K", "mmap_mode": "c"}, False), ({"max_nbytes": "64K", "mmap_mode": "r"}, True)):
        with Parallel(n_jobs=2, backend=backend, **options) as workers:
            check(lambda function, buffer, workers=workers: workers([delayed(function)(buffer)])[0])
            found = workers(delayed(blocks_for)(made()) for _ in range(3))
            assert all(writable and first == 0 and (blocks > 0) == copies for blocks, writable, first in found), (options, found)


if __name__ == "__main__":
    globals()[sys.argv[1]](sys.argv[2])
    print("done")
