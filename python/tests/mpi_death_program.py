"""Three ranks of MPI, of which the last is killed, which test_mpi_death.py starts: what the others have, and can still do."""

import os
import signal
import sys
import time

import numpy as np
from mpi_samples import COMM, ME, OLD, SIM, made

import unimem
from unimem import UnifiedBuffer, launch, mpi, read, readwrite, write

DEAD = 2


def on_device():
    """What a device alone has."""
    buffer = made()
    launch(unimem.Kernel("doubled").host(lambda x: np.multiply(x, 2, out=x)), 1000, readwrite(buffer))
    assert not buffer.valid_on_host
    return buffer


def survivors():
    there, host, into = on_device(), made(), made()
    large = UnifiedBuffer(1 << 20, np.float64, device=SIM)
    large.fill(3.0)
    COMM.Barrier()
    if ME == DEAD:
        os.kill(os.getpid(), signal.SIGKILL)
    coming = mpi.ireceive(write(into, 0, 100), DEAD, 7)
    going = mpi.isend(read(large), DEAD, 7)
    time.sleep(0.3)
    assert not coming.wait(0.2) and not going.wait(0.2), "no message comes, and none is taken"
    # The bytes that wait for it wait, and no others.
    assert (into.slice(100, 900).host == OLD[100:]).all() and (there.host == 2 * OLD).all() and (host.device.to_numpy() == OLD).all() and (large.host == 3).all()
    other, got = 1 - ME, made()
    back = mpi.ireceive(write(got), other)
    mpi.send(read(there), other)
    assert (got.host == 2 * OLD).all() and back.wait()
    print("kept", flush=True)
    os._exit(0)  # MPI_Finalize waits for the dead one


def waiting():
    """The others wait for it in a call that blocks."""
    buffer = made()
    COMM.Barrier()
    if ME == DEAD:
        os.kill(os.getpid(), signal.SIGKILL)
    mpi.receive(write(buffer), DEAD)


globals()[sys.argv[1]]()
