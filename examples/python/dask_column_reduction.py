"""The mean and the standard deviation of each column of a table that is four times what the workers may have in memory, on Dask. The first pass makes the
table, some rows at a time, and the second needs all of it again: what had no room went to files, and comes back. Needs dask and distributed."""

import logging

import numpy as np
from distributed import Client, LocalCluster, wait

import unimem
import unimem.dask

ROWS, COLUMNS, PARTS = 1 << 16, 8, 32  # a part: 2 MiB
LIMIT = 8 << 20  # of each of two workers; the table has 64 MiB


def made(part):
    """Some rows, in a buffer of the worker's."""
    rows = unimem.UnifiedBuffer((ROWS, COLUMNS), np.float32, device="cpu", name=f"rows.{part}")
    rows.host[...] = np.random.default_rng(part).normal(np.arange(COLUMNS), 1 + np.arange(COLUMNS), (ROWS, COLUMNS))
    return rows


def sums(rows):
    return rows.host.sum(axis=0, dtype=np.float64)


def squares(rows, mean):
    """Of the distances from the mean."""
    return ((rows.host - mean) ** 2).sum(axis=0, dtype=np.float64)


def total(parts):
    return np.sum(parts, axis=0)


def memory():
    """Whether a worker stayed within its limit, what went to files, and what came back."""
    manager = unimem.default_manager()
    most = max(one.pool.peak_reserved_bytes for one in manager.statistics.pools)
    return most <= LIMIT, manager.statistics.spilled_bytes, manager.statistics.restored_bytes


def main():
    options = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0", "silence_logs": logging.CRITICAL}  # what Dask says of connections when a cluster ends
    with LocalCluster(n_workers=2, threads_per_worker=1, data=unimem.dask.storage, **options) as cluster, Client(cluster) as client:
        client.register_plugin(unimem.dask.MemoryPlugin(limits={"host": LIMIT}))
        parts = client.map(made, range(PARTS))
        wait(parts)
        count = ROWS * PARTS
        mean = client.submit(total, client.map(sums, parts)).result() / count
        deviation = np.sqrt(client.submit(total, [client.submit(squares, part, mean) for part in parts]).result() / count)
        for column in range(COLUMNS):
            print(f"column {column}: mean {mean[column]:.2f}, deviation {deviation[column]:.2f}")
        within, spilled, restored = zip(*client.run(memory).values(), strict=True)
        print("each worker within its limit:", all(within))
        print("what had no room went to files:", sum(spilled) >= PARTS * (2 << 20) - 2 * LIMIT)
        print("and came back for the second pass:", sum(restored) >= PARTS * (2 << 20) - 2 * LIMIT)


if __name__ == "__main__":
    main()
