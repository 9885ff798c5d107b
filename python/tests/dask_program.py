"""A program of its own with a cluster of Dask's on this machine, which test_dask.py starts: one case each time."""

import asyncio
import logging
import os
import signal
import sys
import time

import numpy as np
from distributed import Client, LocalCluster, Scheduler, Worker, wait

import unimem
from unimem import BufferState, UnifiedBuffer

MIB = 1 << 20
COUNT = MIB  # bytes of a chunk, unless it says otherwise


def clustered(case, plugin=None, workers=2, **options):
    """`case` with a client and the addresses of the workers, which are processes."""
    options = {"n_workers": workers, "threads_per_worker": 1, "host": "127.0.0.1", "dashboard_address": "127.0.0.1:0", "memory_limit": "1GiB"} | options
    with LocalCluster(**options) as cluster, Client(cluster) as client:
        if plugin is not None:
            client.register_plugin(plugin)
        case(client, sorted(client.scheduler_info()["workers"]))


def made(number, count=COUNT, device="cpu", name="chunk"):
    buffer = UnifiedBuffer(count, np.uint8, device=device, name=name, priority=2)
    buffer.copy_from(np.full(count, number, np.uint8))
    return buffer


def summed(*buffers):
    return sum(int(np.sum(one.host, dtype=np.int64)) for one in buffers)


def looked_at(buffer):
    return type(buffer).__name__, buffer.shape, buffer.dtype.str, buffer.name, buffer.priority, buffer.state.name, summed(buffer)


def sliced(buffer):
    return buffer.slice(100, 500).reshape(50, 10)


def negated(buffer):
    result = UnifiedBuffer(buffer.shape, np.int16, device="cpu", name=f"of {buffer.name}")
    result.host[...] = -buffer.host.astype(np.int16)
    return result


def blocks():
    return unimem.default_manager().statistics.total_allocations


def host_limit():
    return unimem.default_manager().total_memory("cpu")


def until(condition, what, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def raised(kind, call):
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


# Graphs


def check_graph(client, workers):
    one, other = workers
    before = client.run(blocks)
    source = client.submit(made, 7, workers=[one])
    arrived = client.submit(looked_at, source, workers=[other])
    assert arrived.result() == ("UnifiedBuffer", (COUNT,), "|u1", "chunk", 2, "HOST_DIRTY", 7 * COUNT)
    taken = {worker: number - before[worker] for worker, number in client.run(blocks).items()}
    assert taken == {one: 1, other: 0}, "what has arrived is not copied"
    part = client.submit(sliced, source, workers=[one])
    assert client.submit(looked_at, part, workers=[other]).result() == ("UnifiedBuffer", (50, 10), "|u1", "chunk", 2, "HOST_DIRTY", 7 * 500)
    result = client.submit(negated, source, workers=[other]).result()
    assert (result.name, result.dtype, result.shape) == ("of chunk", np.int16, (COUNT,)) and (result.host == -7).all()
    mine = UnifiedBuffer((3, 5), np.float32, device="cpu", name="mine")
    mine.host[...] = 2
    assert client.submit(looked_at, client.scatter(mine, workers=[other]), workers=[one]).result()[1:4] == ((3, 5), "<f4", "mine")
    assert client.submit(lambda pair: summed(*pair), client.submit(lambda: (made(1), made(2)), workers=[one]), workers=[other]).result() == 3 * COUNT
    chunks = client.map(made, range(10))
    assert client.submit(summed, *chunks).result() == 45 * COUNT
    assert COUNT <= client.nbytes(summary=False)[chunks[0].key] < COUNT + 4096, "Dask knows the sizes by the package's entry point"


def graphs():
    import unimem.dask

    def case(client, workers):
        check_graph(client, workers)
        kept = [client.submit(made, 1, 4 * MIB, workers=[worker], pure=False) for worker in workers]
        wait(kept)
        until(lambda: client.scheduler_info()["workers"][workers[0]]["metrics"].get("unimem_host_bytes", 0) >= 4 * MIB, "figures come with a worker's heartbeat")
        low = unimem.dask.MemoryPlugin(limits={"cpu": "1MiB"})
        low.name = "low"
        error = raised(unimem.InvalidArgument, lambda: client.register_plugin(low))
        assert error.value == str(MIB), error.value
        absent = unimem.dask.MemoryPlugin(limits={"host": "48MiB", "cuda:7": "1MiB"})
        absent.name = "absent"
        assert "cuda:7" in str(raised(unimem.NotFound, lambda: client.register_plugin(absent)))
        client.unregister_worker_plugin("low")
        client.unregister_worker_plugin("absent")
        limits = client.run(host_limit)
        assert limits == dict.fromkeys(workers, 64 * MIB), limits
        pids = set(client.run(os.getpid).values())
        client.restart()
        workers = sorted(client.scheduler_info()["workers"])
        assert pids.isdisjoint(client.run(os.getpid).values())
        assert client.run(host_limit) == dict.fromkeys(workers, 64 * MIB), "the plugin is theirs as well"
        check_graph(client, workers)

    clustered(case, unimem.dask.MemoryPlugin(limits={"host": "64MiB", "device": "16MiB"}))


def without():
    """Nobody has imported unimem.dask."""

    def case(client, workers):
        check_graph(client, workers)
        assert not any(client.run(lambda: "unimem.dask" in sys.modules).values())

    clustered(case)
    assert "unimem.dask" not in sys.modules


def killed():
    import unimem.dask

    def slow(buffer):
        time.sleep(0.15)
        return negated(buffer)

    def case(client, workers):
        total = client.submit(summed, *client.map(slow, client.map(made, range(20))))
        until(lambda: sum(len(keys) for keys in client.has_what(workers).values()) >= 20, "the graph has begun")
        assert not total.done()
        os.kill(client.run(os.getpid, workers=[workers[0]])[workers[0]], signal.SIGKILL)
        assert total.result(timeout=40) == -190 * COUNT

    clustered(case, unimem.dask.MemoryPlugin(limits={"host": "64MiB"}))


# Memory handed over


def told():
    import unimem.dask

    return unimem.dask.transfers()


def shared():
    import unimem.dask

    def case(client, workers):
        one, other = workers
        source = client.submit(made, 7, workers=[one])
        small = client.submit(made, 3, 1000, workers=[one])
        arrived = client.submit(lambda *buffers: [looked_at(buffer) for buffer in buffers], source, small, workers=[other])
        assert arrived.result() == [
            ("UnifiedBuffer", (COUNT,), "|u1", "chunk", 2, "HOST_ONLY", 7 * COUNT),  # as of a buffer by its id
            ("UnifiedBuffer", (1000,), "|u1", "chunk", 2, "HOST_DIRTY", 3000),
        ]
        counts = client.run(told)
        assert (counts[one].handed_over, counts[one].handed_over_bytes, counts[one].declined) == (1, COUNT, 0), counts
        assert (counts[other].opened, counts[other].opened_bytes) == (1, COUNT), counts
        pids = set(client.run(os.getpid).values())

        def held():
            """By these workers: other programs of this user may be at work."""
            return [{one.pid for one in entry.holders} for entry in unimem.shared_on_this_host().buffers if not pids.isdisjoint(one.pid for one in entry.holders)]

        assert held() == [pids]
        client.cancel([source, small, arrived])
        del source, small, arrived
        until(lambda: not any(client.run(lambda: len(unimem.registry())).values()), "an id ends with the result that it names")
        until(lambda: not held(), "and the memory with its last holder")

        # A buffer that was made otherwise, and a receiver that is elsewhere: bytes.
        apart = client.submit(lambda: UnifiedBuffer(COUNT, np.uint8, device="cpu", shared=False).fill(5), workers=[one])
        assert client.submit(summed, apart, workers=[other]).result() == 5 * COUNT
        assert client.run(told, workers=[one])[one].declined == 1

        def says(identity, dask_worker):
            dask_worker.rpc.connection_args["handshake_overrides"]["unimem"] = identity
            for comms in dask_worker.rpc.available.values():
                for comm in list(comms):
                    comm.abort()

        here = unimem._dask_messages.identity_of_host()
        client.run(says, here + "elsewhere", workers=[other])
        distant = client.submit(made, 9, workers=[one])
        assert client.submit(summed, distant, workers=[other]).result() == 9 * COUNT
        assert client.run(told, workers=[one])[one].handed_over == 1

        # The memory outlives who made it.
        client.run(says, here, workers=[other])
        source = client.submit(made, 8, workers=[one])
        kept = client.submit(lambda buffer: buffer, source, workers=[other])
        wait(kept)
        assert client.run(told, workers=[one])[one].handed_over == 2
        os.kill(client.run(os.getpid, workers=[one])[one], signal.SIGKILL)
        until(lambda: one not in client.scheduler_info()["workers"], "it is missed")
        assert client.submit(summed, kept, workers=[other]).result() == 8 * COUNT
        until(lambda: len(client.scheduler_info()["workers"]) == 2, "another takes its place")
        (one,) = set(client.scheduler_info()["workers"]) - {other}

        # A receiver that cannot open it asks for bytes.
        def break_open(dask_worker):
            from unimem import _unimem

            def fails(*arguments):
                raise unimem.IoError("no")

            _unimem._open = fails

        client.run(break_open, workers=[other])
        refused = client.submit(made, 11, workers=[one])
        assert client.submit(summed, refused, workers=[other]).result(timeout=30) == 11 * COUNT
        counts = client.run(told)
        assert counts[one].handed_over == 1 and counts[other].opened == 2, counts

    clustered(case, unimem.dask.MemoryPlugin(shared=True))


# Within limits


def memory_told(dask_worker):
    statistics = unimem.default_manager().statistics
    host = [one.pool for one in statistics.pools if one.device == "cpu"]
    return {
        "spilled": statistics.spilled_bytes, "restored": statistics.restored_bytes, "files": statistics.spill_file_bytes,
        "peak": max(one.peak_reserved_bytes for one in host), "dask": dask_worker.data.spilled_total.disk, "keys": len(dask_worker.data),
        "dasks_files": len(dask_worker.data.slow),
    }  # fmt: skip


def most_on_device():
    return max(one.pool.peak_reserved_bytes for one in unimem.default_manager().statistics.pools if one.device.startswith("sim"))


def four_times():
    """Sixteen MiB each, and 128 of data."""
    import unimem.dask

    limit, chunk, count = 16 * MIB, 2 * MIB, 64

    def case(client, workers):
        halves = {worker: client.map(made, range(begin, count, 2), [chunk] * 32, workers=[worker]) for begin, worker in enumerate(workers)}
        for chunks in halves.values():
            wait(chunks)
        sums = [client.map(summed, chunks, workers=[worker]) for worker, chunks in halves.items()]
        assert sum(sum(client.gather(half)) for half in sums) == sum(range(count)) * chunk
        for worker, seen in client.run(memory_told).items():
            least = 2 * (32 * chunk - limit)  # out and back
            assert least <= seen["spilled"] + seen["restored"] <= 1.1 * least, (worker, seen, least)
            assert seen["dask"] == seen["files"] > 0 and seen["peak"] <= limit and seen["dasks_files"] == 0, seen
        spilled = {worker: seen["spilled"] for worker, seen in client.run(memory_told).items()}
        told = lambda: {worker: one["metrics"].get("unimem_spilled_bytes") for worker, one in client.scheduler_info()["workers"].items()}  # noqa: E731
        until(lambda: told() == spilled, "the scheduler is told of them")

        # As Dask's monitor does; the result is the same afterwards.
        def evicted(dask_worker):
            before = unimem.default_manager().statistics.active_bytes
            return dask_worker.data.evict(), before - unimem.default_manager().statistics.active_bytes, bool(dask_worker.data.fast)

        assert set(client.run(evicted).values()) == {(chunk, chunk, True)}
        assert sum(client.gather([client.submit(summed, *chunks[:3], workers=[worker]) for worker, chunks in halves.items()])) == sum(range(6)) * chunk

        # From one worker to the other, within the limits of both.
        across = client.map(summed, halves[workers[0]], workers=[workers[1]], pure=False)
        assert sum(client.gather(across)) == sum(range(0, count, 2)) * chunk
        del halves, sums, across, chunks
        until(lambda: not any(seen["files"] for seen in client.run(memory_told).values()), "files end with their results")

        # Of a device, and tuples; others beside them.
        def on_device(number):
            buffer = made(number, chunk, "sim")
            buffer.sync_to_device()
            buffer.fill(number + 1)
            assert buffer.state is BufferState.DEVICE_DIRTY, buffer.state
            return (buffer, made(number, chunk)), np.full(chunk, number, np.uint8)

        results = client.map(on_device, range(16), workers=[workers[0]])
        wait(results)
        most = client.run(most_on_device, workers=workers[:1])[workers[0]]
        assert 0 < most <= 8 * MIB, most
        totals = client.map(lambda result: summed(*result[0]) + int(result[1].sum(dtype=np.int64)), results, workers=[workers[0]])
        assert sum(client.gather(totals)) == sum(3 * number + 1 for number in range(16)) * chunk

    plugin = unimem.dask.MemoryPlugin(limits={"host": limit, "sim": 8 * MIB})
    clustered(case, plugin, data=unimem.dask.storage)


def others():
    """Arrays go to files as Dask has it, when they and the buffers have what they may."""
    import unimem.dask

    def case(client, workers):
        arrays = client.map(lambda number: np.full(MIB, number, np.uint8), range(16))
        buffers = client.map(made, range(6))
        wait(arrays + buffers)
        (seen,) = client.run(memory_told).values()
        assert seen["dasks_files"] >= 7 and seen["peak"] <= 8 * MIB, seen
        assert client.submit(lambda *all: sum(int(one.sum(dtype=np.int64)) for one in all), *arrays[:4]).result() == 6 * MIB
        assert client.submit(summed, *buffers).result() == 15 * MIB
        del arrays, buffers
        until(lambda: not client.run(memory_told)[workers[0]]["keys"], "results go")

    clustered(case, unimem.dask.MemoryPlugin(), workers=1, data=(unimem.dask.storage, {"limits": {"host": "8MiB"}, "target": "10MiB"}))


def too_small():
    """Limits below one chunk: the task fails, by a typed error, and the worker goes on."""
    import unimem.dask

    def case(client, workers):
        error = raised(unimem.OutOfMemory, client.submit(made, 1, 4 * MIB, retries=0).result)
        assert (error.requested, error.limit) == (4 * MIB, 2 * MIB), error
        assert client.submit(summed, client.submit(made, 1, MIB)).result() == MIB

    clustered(case, unimem.dask.MemoryPlugin(limits={"host": "2MiB"}), data=unimem.dask.storage)


# Leaks


def leaks():
    import unimem.dask

    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger("unimem.dask").addHandler(handler)
    logging.getLogger("unimem.dask").propagate = False

    def forgets():
        sys.modules["__main__"].forgotten = made(1, name="forgotten")
        return made(2, name="result")

    async def ended(function, report):
        options = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
        async with Scheduler(**options) as scheduler, Worker(scheduler.address, host="127.0.0.1", nthreads=1) as worker:
            async with Client(scheduler.address, asynchronous=True) as client:
                await client.register_plugin(unimem.dask.MemoryPlugin(report_leaks=report))
                future = client.submit(function)
                assert await client.submit(summed, future) == 2 * COUNT and len(worker.data) > 0
                await client.unregister_worker_plugin("unimem")
        return list(lines)

    assert asyncio.run(ended(lambda: made(2, name="result"), True)) == []
    assert asyncio.run(ended(forgets, False)) == []
    (line,) = asyncio.run(ended(lambda: made(2, name="result"), True))
    assert line == f"a worker closes with 1 buffers alive that are none of its results: forgotten ({COUNT} bytes, host of cpu)", line
    raised(unimem.UnsupportedOperation, lambda: unimem.dask.storage("/nonexistent/never made"))


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    print("done")
