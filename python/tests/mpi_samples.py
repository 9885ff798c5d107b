"""What the programs of MPI's ranks that test `unimem.mpi` have in common."""

import sys

if "without_threads" in sys.argv[1:]:
    import mpi4py

    mpi4py.rc.thread_level = "serialized"
if "not_initialized" in sys.argv[1:]:
    import mpi4py

    mpi4py.rc.initialize = False

import numpy as np
from mpi4py import MPI

import unimem
from unimem import UnifiedBuffer

COMM = MPI.COMM_WORLD
ME = COMM.rank if MPI.Is_initialized() else -1
OTHER = 1 - ME
SIM = unimem.make_sim("memory=256MiB")
OLD = np.arange(1000, dtype=np.float64)
NEW = OLD * 3 + 1


def made(values=OLD, device=SIM, synced=True):
    buffer = UnifiedBuffer(values.shape, values.dtype, device=device)
    buffer.host[...] = values
    if synced:
        buffer.sync_to_device()
    return buffer


def raises(kind, call, *words, **fields):
    """`call` raises that, and its message has the words. The error itself."""
    try:
        call()
    except kind as error:
        assert type(error) is kind, error
        assert all(one in str(error) for one in words), error
        for name, value in fields.items():
            assert getattr(error, name) == value, (name, getattr(error, name))
        return error
    raise AssertionError(f"{kind.__name__} was not raised")


def is_free(buffer):
    """No message holds its memory: an operation is allowed that holds forbid."""
    buffer.resize(buffer.size + 1)
    buffer.resize(buffer.size - 1)


def in_turns(sends, receives):
    sends() if ME == 0 else receives()
    COMM.Barrier()


def run(tests):
    for test in sys.argv[1:]:
        tests[test]()
        if not MPI.Is_finalized():
            COMM.Barrier()
            if ME == 0:
                print(test, flush=True)
