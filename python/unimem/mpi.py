"""Buffers of the ranks of an MPI program, over mpi4py, by intent as in a launch.

    from unimem import mpi, read, readwrite, write

    mpi.send(read(x), 1)                        # waits for the kernel that writes x; the other rank:
    coming = mpi.ireceive(write(y), 0)          # at once; what reads y waits for it
    mpi.all_reduce(readwrite(x))

Needs mpi4py, which is imported by the first call, and starts MPI then if the program has not. docs/cluster.md is the guide.
"""

from __future__ import annotations

from ._mpi_array import DistributedArray
from ._mpi_blocks import IndexRange
from ._mpi_collectives import Reduction, all_reduce, broadcast
from ._mpi_halo import ExchangeStatistics
from ._mpi_messages import Received, ireceive, isend, receive, send

__all__ = [
    "DistributedArray", "ExchangeStatistics", "IndexRange", "Received", "Reduction", "all_reduce", "broadcast", "ireceive", "isend", "receive", "send",
]  # fmt: skip
