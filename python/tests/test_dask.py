"""unimem.dask: what Dask knows of buffers, how they go from worker to worker, where they are spilled. Clusters are programs of their own
(dask_program.py): two processes on this machine. Dask is fetched by `./dev check` (tools/interop-wheels.txt)."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sample_buffers import synced

import unimem
from unimem import BufferState, InvalidArgument, MemoryManager, UnifiedBuffer

pytest.importorskip("distributed", reason="distributed is not installed: ./dev check fetches it")
pytestmark = [pytest.mark.check, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

PROGRAM = Path(__file__).with_name("dask_program.py")
VALUES = np.arange(300_000, dtype=np.float64).reshape(300, 1000)


@pytest.fixture
def with_dask():
    import unimem.dask

    return unimem.dask


# What Dask knows of them


def test_importing_the_package_imports_no_dask():
    code = "import sys, unimem; assert not {'dask', 'distributed'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_sizes(with_dask, discrete):
    from dask.sizeof import sizeof

    buffer = UnifiedBuffer(VALUES.shape, VALUES.dtype, device=discrete)
    assert VALUES.nbytes <= sizeof(buffer) < VALUES.nbytes + 4096
    assert 800 <= sizeof(buffer.slice(100, 100)) < 800 + 4096
    assert buffer.state is BufferState.UNINITIALIZED, "looking takes no memory"


def test_tokens_are_of_contents(with_dask, discrete):
    from dask.base import tokenize

    buffer, other = synced(discrete, VALUES, name="a"), synced(discrete, VALUES, name="b")
    assert tokenize(buffer) == tokenize(other) == tokenize(buffer.slice(0, VALUES.size).reshape(VALUES.shape))
    different = {tokenize(buffer), tokenize(buffer.reshape(VALUES.size)), tokenize(buffer.view(np.int64).reshape(VALUES.shape)), tokenize(VALUES)}
    buffer.host[5, 5] = -1
    different.add(tokenize(buffer))
    different.add(tokenize(UnifiedBuffer(VALUES.shape, VALUES.dtype, device=discrete)))
    assert len(different) == 6


# Messages


def lie_in(buffer, frames):
    return any(np.shares_memory(buffer.host, np.frombuffer(frame, np.uint8)) for frame in frames if memoryview(frame).nbytes)


@pytest.mark.parametrize("context", [None, {"recipient": {"unimem": "elsewhere"}}, {"recipient": {}}, {}])
def test_frames_are_the_memory(with_dask, discrete, moved, context):
    from distributed.protocol import deserialize, serialize

    buffer = UnifiedBuffer(VALUES.shape, VALUES.dtype, device=discrete, name="table", priority=4)
    buffer.host[...] = VALUES
    buffer.sync_to_device()
    count, before = moved(buffer), unimem.default_manager().statistics.total_allocations
    header, frames = serialize(buffer, context=context)
    # The table of functions that the other family needs is filled where somebody says so alone.
    assert header["serializer"] == ("pickle" if context is not None and not context.get("recipient") else "dask")
    assert lie_in(buffer, frames) and count.since() == (0, 0, 0, 0)
    assert sum(memoryview(one).nbytes for one in frames) < VALUES.nbytes + 2000
    arrived = [bytearray(one) for one in frames]
    other = deserialize(header, arrived)
    assert lie_in(other, arrived) and unimem.default_manager().statistics.total_allocations == before
    assert (type(other), other.name, other.dtype, other.shape, other.priority, other.state) == (
        UnifiedBuffer, "table", VALUES.dtype, VALUES.shape, 4, BufferState.HOST_DIRTY,
    )  # fmt: skip
    np.testing.assert_array_equal(other.device.to_numpy(), VALUES)
    header, frames = serialize(buffer.slice(1000, 2000), context=context)
    assert sum(memoryview(one).nbytes for one in frames) < 16_000 + 2000
    np.testing.assert_array_equal(deserialize(header, [bytearray(one) for one in frames]).host, VALUES.ravel()[1000:3000])
    untouched = deserialize(*serialize(UnifiedBuffer((3, 4), np.int16, device=discrete, name="fresh"), context=context))
    assert (untouched.shape, untouched.dtype, untouched.name, untouched.state) == ((3, 4), np.int16, "fresh", BufferState.UNINITIALIZED)


class Named(UnifiedBuffer):
    __slots__ = ("label",)


class Reduces(UnifiedBuffer):
    def __reduce__(self):
        return str, ("its own",)


def test_subclasses(with_dask, sim):
    from distributed.protocol import deserialize, serialize

    buffer = Named(100, np.int32, device=sim, name="of __main__")
    buffer.host[:], buffer.label = 3, "mine"
    other = deserialize(*serialize(buffer))
    assert (type(other), other.label, other.name, int(other.host.sum())) == (Named, "mine", "of __main__", 300)
    assert deserialize(*serialize(Reduces(3, device=sim))) == "its own"


def test_what_no_room_is_left_for_is_sent_all_the_same(with_dask, tmp_path):
    from distributed.protocol import deserialize, serialize

    manager = MemoryManager(spill_directory=tmp_path)
    manager.set_limit("cpu", 2 << 20)
    buffers = [UnifiedBuffer(1 << 20, np.uint8, device="cpu", manager=manager) for _ in range(3)]
    for number, buffer in enumerate(buffers):
        buffer.copy_from(np.full(1 << 20, number, np.uint8))
    assert manager.statistics.spills == 1
    header, frames = serialize(buffers)
    assert manager.statistics.direct_reads == 1, "the memory of two is read by the frames of theirs"
    for number, other in enumerate(deserialize(header, [bytearray(one) for one in frames])):
        assert (other.host == number).all()


# Limits


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"host": "2 gallons"}, "limits['host'] '2 gallons'"),
        ({"host": -1}, "limits['host'] '-1'"),
        ({"host": "1GiB", "device": 1.5}, "limits['device'] '1.5'"),
        ({"host": None}, "limits['host'] 'None'"),
        ({3: "1GiB"}, "limits '3'"),
        ("1GiB", "limits ''1GiB''"),
    ],
)
def test_limits_are_looked_at_first(with_dask, limits, said):
    for use in (lambda: with_dask.MemoryPlugin(limits=limits), lambda: with_dask.storage("/nonexistent", limits=limits)):
        with pytest.raises(InvalidArgument) as error:
            use()
        assert said in str(error.value)


def test_all_limits_or_none(with_dask, sim):
    from unimem._dask_limits import checked_limits, set_limits

    manager = MemoryManager()
    set_limits(manager, checked_limits({"host": "64MiB", sim.id: 32 << 20}))
    assert (manager.total_memory("cpu"), manager.total_memory(sim)) == (64 << 20, 32 << 20)
    buffer = UnifiedBuffer(1 << 20, np.uint8, device=sim, manager=manager).allocate(host=False)
    with pytest.raises(InvalidArgument, match="1000"):
        set_limits(manager, checked_limits({"host": "16MiB", sim.id: 1000}))
    with pytest.raises(unimem.NotFound, match="cuda:99"):
        set_limits(manager, checked_limits({"host": "16MiB", "cuda:99": 1000}))
    assert (manager.total_memory("cpu"), manager.total_memory(sim)) == (64 << 20, 32 << 20)
    del buffer


def test_figures(with_dask, sim, tmp_path):
    from unimem._dask_plugin import FIGURES, figures

    manager = MemoryManager(spill_directory=tmp_path)
    buffer = UnifiedBuffer(1 << 20, np.uint8, device=sim, manager=manager)
    buffer.host[:] = 1
    buffer.sync_to_device()
    buffer.fill(2)
    assert (buffer.to_numpy() == 2).all() and buffer.statistics.device_to_host_bytes == 1 << 20
    other = UnifiedBuffer(1 << 20, np.uint8, device="cpu", manager=manager).fill(3)
    assert other._spill() == 1 << 20
    seen = figures(manager)
    assert set(seen) == set(FIGURES) and all(isinstance(seen[name], int) for name in FIGURES if name != "unimem_bytes")
    mib = {name: seen[f"unimem_{name}_bytes"] >> 20 for name in ("host", "device", "moved", "spilled", "restored", "spill_file")}
    assert mib == {"host": 1, "device": 1, "moved": 2, "spilled": 1, "restored": 0, "spill_file": 1}
    assert seen["unimem_bytes"][f"{sim.id} device"] == seen["unimem_device_bytes"]


# Storage


@pytest.fixture
def stored(with_dask, tmp_path):
    """A worker's results, of a manager of their own."""
    manager = MemoryManager(spill_directory=tmp_path)
    storage = with_dask.Storage(str(tmp_path / "dask"), manager, 4 << 20)

    def made(number, count=1 << 20):
        buffer = UnifiedBuffer(count, np.uint8, device="cpu", manager=manager)
        buffer.host[:] = number
        return buffer

    return storage, manager, made


def test_buffers_stay_objects(stored):
    storage, manager, made = stored
    buffers = [made(number) for number in range(4)]
    for number, buffer in enumerate(buffers):
        storage[number] = buffer
    storage["pair"] = pair = (made(4), [made(5)])
    assert storage[0] is buffers[0]  # and is the one that was used last
    assert storage.fast and storage.evict() == 1 << 20 and manager.statistics.spilled_bytes == 1 << 20
    assert [buffer._may_spill and buffer._spill() for buffer in buffers[:2]] == [1 << 20, 0], "the second has gone already"
    while storage.evict() != -1:
        pass
    assert manager.statistics.active_bytes == 0 and storage.spilled_total.disk == 6 << 20 and len(storage.slow) == 0
    assert storage["pair"] is pair and (pair[1][0].host == 5).all()
    assert [int(storage[number].host[-1]) for number in range(4)] == [0, 1, 2, 3]
    assert len(storage) == 5 and set(storage) == {0, 1, 2, 3, "pair"} and dict(storage.items())["pair"] is pair
    for key in list(storage):
        del storage[key]
    del pair, buffer
    buffers.clear()
    assert storage.spilled_total.disk == 0 and not storage.fast and storage.evict() == -1
    with pytest.raises(KeyError):
        storage[0]


def test_others_go_as_dask_has_it(stored):
    """With what buffers have on the host they are bounded: 4 MiB."""
    storage, manager, made = stored
    for number in range(3):
        storage[number] = np.full(1 << 20, number, np.uint8)
    assert len(storage.slow) == 0
    storage["ours"] = made(7)
    wrapped = UnifiedBuffer.from_array(np.full(1 << 20, 8, np.uint8), device="cpu", manager=manager)
    storage["wrapped"] = wrapped  # somebody else's memory, which the manager moves nowhere
    assert len(storage.slow) == 2
    del wrapped
    assert [int(storage[key][5]) for key in (0, 1, 2)] == [0, 1, 2] and (storage["wrapped"].host == 8).all() and (storage["ours"].host == 7).all()
    storage[0] = made(9)  # what takes the place of another
    storage["ours"] = "text"
    assert (storage[0].host == 9).all() and storage["ours"] == "text" and len(storage) == 5
    while storage.evict() > 0:
        pass
    assert set(storage.slow) == {1, 2, "ours", "wrapped"} and storage["ours"] == "text"


def test_what_is_in_use_is_not_evicted(stored):
    storage, manager, made = stored
    kept = storage["kept"] = made(1)
    array = kept.host
    storage["small"] = made(2, 1000)
    assert storage.evict() > 0, "the small one goes as others do" and storage.evict() == -1
    assert array[0] == 1 and manager.statistics.spills == 0
    del array
    assert storage.evict() == 1 << 20 and (kept.host == 1).all()


# Clusters


def run_program(case, tmp_path):
    """With the package's entry points, which a package on the path has not."""
    declared = (Path(__file__).resolve().parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    (entry,) = re.findall(r'\[project\.entry-points\."dask\.sizeof"\]\nunimem = "(.+)"', declared)
    folder = tmp_path / "unimem-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: unimem\nVersion: 1\n", encoding="utf-8")
    (folder / "entry_points.txt").write_text(f"[dask.sizeof]\nunimem = {entry}\n", encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]), "DASK_TEMPORARY_DIRECTORY": str(tmp_path)}
    done = subprocess.run([sys.executable, PROGRAM, case], capture_output=True, text=True, timeout=100, check=False, env=environment, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


@pytest.mark.parametrize("case", ["graphs", "without", "killed", "shared", "four_times", "others", "too_small", "leaks"])
def test_a_cluster(case, tmp_path):
    run_program(case, tmp_path)


def test_the_guide_runs_as_written(tmp_path):
    (block,) = re.findall(r"```python\n(.*?)```", (PROGRAM.parents[2] / "docs/dask.md").read_text(encoding="utf-8"), re.DOTALL)
    program = tmp_path / "guide.py"
    program.write_text(block, encoding="utf-8")
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=100, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    spilled = ast.literal_eval(done.stdout)
    assert len(spilled) == 2 and sum(spilled.values()) >= 96 << 20, spilled
