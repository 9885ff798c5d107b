"""Buffers sent by other libraries, by pickle: what arrives, what of it is copied, and where it lies. Dask and joblib are fetched by `./dev check`
(tools/interop-wheels.txt); mpi4py: test_mpi.py."""

import asyncio
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sample_buffers import made, synced

import unimem
from unimem import BufferState, MapMode, UnifiedBuffer

pytestmark = pytest.mark.check

S = BufferState
LARGE = np.arange(300_000, dtype=np.float64).reshape(300, 1000)
PROGRAM = Path(__file__).with_name("transport_program.py")


def package(name):
    return pytest.importorskip(name, reason=f"{name.partition('.')[0]} is not installed: ./dev check fetches it")


def blocks():
    """Blocks of memory that the library has taken for buffers: of those that lie on what has arrived none."""
    return unimem.default_manager().statistics.total_allocations


def lie_in(buffer, frames):
    return any(np.shares_memory(buffer.host, np.frombuffer(frame, np.uint8)) for frame in frames if memoryview(frame).nbytes)


def check_arrived(buffer, values, name="table"):
    assert (type(buffer), buffer.shape, buffer.dtype, buffer.name, buffer.state) == (UnifiedBuffer, values.shape, values.dtype, name, S.HOST_DIRTY)
    np.testing.assert_array_equal(buffer.device.to_numpy(), values)
    np.testing.assert_array_equal(buffer.host, values)
    assert buffer.statistics.host_to_device_bytes == values.nbytes


# By the rules of pickle alone


@pytest.mark.parametrize("state", ["HOST_DIRTY", "SYNCHRONIZED", "DEVICE_DIRTY"])
def test_sending_reads_and_no_more(discrete, state, moved):
    buffer = synced(discrete, LARGE, name="table")
    if state == "HOST_DIRTY":
        buffer.host[0, 0] = -1
    if state == "DEVICE_DIRTY":
        buffer.device.copy_from(LARGE + 1)
        buffer.mark_device_dirty()
    assert buffer.state is S[state]
    expected = buffer.to_numpy() if state != "DEVICE_DIRTY" else LARGE + 1
    count, before, frames = moved(buffer), blocks(), []
    head = pickle.dumps(buffer, 5, buffer_callback=frames.append)
    assert blocks() == before and count.since() == ((0, 0, 1, LARGE.nbytes) if state == "DEVICE_DIRTY" else (0, 0, 0, 0))
    assert lie_in(buffer, frames) and sum(memoryview(one).nbytes for one in frames) == LARGE.nbytes + 1 and len(head) < 1000
    assert buffer.state is (S.HOST_DIRTY if state == "HOST_DIRTY" else S.SYNCHRONIZED)
    arrived = [bytearray(one) for one in frames]
    before = blocks()
    other = pickle.loads(head, buffers=arrived)
    assert blocks() == before and lie_in(other, arrived)
    check_arrived(other, expected)


def test_of_a_slice_the_frame_is_its_window(discrete, moved):
    buffer = UnifiedBuffer(LARGE.shape, LARGE.dtype, device=discrete, name="table")
    buffer.device.copy_from(LARGE)
    buffer.mark_device_dirty()
    count, frames = moved(buffer), []
    head = pickle.dumps(buffer.slice(50_000, 100_000).reshape(100, 1000), 5, buffer_callback=frames.append)
    assert count.since() == (0, 0, 1, 800_000) and sorted(memoryview(one).nbytes for one in frames) == [1, 800_000]
    before = blocks()
    other = pickle.loads(head, buffers=[bytearray(one) for one in frames])
    assert blocks() == before
    check_arrived(other, LARGE[50:150])


def test_pickles_of_earlier_versions_are_read(discrete):
    """They have one frame."""
    from unimem._pickles import reduced, unpickled

    buffer = made(discrete, LARGE, name="table")
    function, (kind, shape, dtype, asked, data) = reduced(buffer, 5)
    assert function is unpickled and len(asked) == 8
    check_arrived(unpickled(kind, shape, dtype, asked[:7], data.copy()), LARGE)


class Own(UnifiedBuffer):
    def __reduce__(self):
        return str, ("its own",)


def test_a_subclass_reduces_itself(sim):
    for protocol in (2, 4, 5):
        assert pickle.loads(pickle.dumps(Own(3, device=sim), protocol)) == "its own"


# Dask


def test_dask_serializes_without_copies(discrete):
    protocol = package("distributed.protocol")
    buffer = synced(discrete, LARGE, name="table")
    before = blocks()
    header, frames = protocol.serialize(buffer)
    assert header["serializer"] in ("pickle", "dask") and lie_in(buffer, frames) and blocks() == before  # the latter once unimem.dask was imported
    _, of_a_slice = protocol.serialize(buffer.slice(0, 100))
    assert sum(memoryview(one).nbytes for one in of_a_slice) < 800 + 1000
    arrived = [bytearray(one) for one in frames]
    before = blocks()
    other = protocol.deserialize(header, arrived)
    assert blocks() == before and lie_in(other, arrived)
    check_arrived(other, LARGE)
    untouched = protocol.deserialize(*protocol.serialize(UnifiedBuffer((3, 4), np.int16, device=discrete, name="fresh")))
    assert (untouched.shape, untouched.dtype, untouched.name, untouched.state) == ((3, 4), np.int16, "fresh", S.UNINITIALIZED)


async def sent_by_tcp(message):
    """What arrives of a message by Dask's own connection, and the blocks of memory it took."""
    comm = package("distributed.comm")
    received = asyncio.get_running_loop().create_future()

    async def handle(theirs):
        before = blocks()
        received.set_result((await theirs.read(), blocks() - before))
        await theirs.close()

    listener = await comm.listen("tcp://127.0.0.1:0", handle)
    ours = await comm.connect(listener.contact_address)
    before = blocks()
    await ours.write(message)
    arrived, taken = await asyncio.wait_for(received, 50)
    assert blocks() - before == taken, "sending takes none"
    await ours.close()
    listener.stop()
    return arrived, taken


@pytest.mark.parametrize("names", [["one"], ["one", "two", "three"]])
def test_dask_sends_without_copies_at_either_end(discrete, names, moved):
    """Dask receives each frame into memory of its own, but for the first, which stands behind what comes before it: that is not the data."""
    to_serialize = package("distributed.protocol").to_serialize
    buffers = {name: synced(discrete, LARGE + place, name=name) for place, name in enumerate(names)}
    counts = [moved(buffer) for buffer in buffers.values()]
    arrived, taken = asyncio.run(sent_by_tcp({name: to_serialize(buffer) for name, buffer in buffers.items()}))
    assert taken == 0 and all(count.since() == (0, 0, 0, 0) for count in counts)
    for place, name in enumerate(names):
        check_arrived(arrived[name], LARGE + place, name)


def test_dask_sends_slices_and_small_buffers(discrete):
    to_serialize = package("distributed.protocol").to_serialize
    buffer = synced(discrete, LARGE, name="table")
    arrived, taken = asyncio.run(sent_by_tcp({"large": to_serialize(buffer.slice(50_000, 100_000)), "small": to_serialize(buffer.slice(10, 5))}))
    assert taken == 0
    check_arrived(arrived["large"], LARGE.ravel()[50_000:150_000])
    check_arrived(arrived["small"], LARGE.ravel()[10:15])
    arrived, _ = asyncio.run(sent_by_tcp({"small": to_serialize(buffer.slice(10, 5))}))  # alone it lies where it may, and is copied
    check_arrived(arrived["small"], LARGE.ravel()[10:15])


def test_dask_measures_buffers(discrete):
    from unimem._dask import register_sizes

    sizeof = package("dask.utils").Dispatch("sizeof")  # what dask.sizeof.sizeof is, which the installed package's entry point is called with
    register_sizes(sizeof)
    assert LARGE.nbytes <= sizeof(UnifiedBuffer(LARGE.shape, LARGE.dtype, device=discrete)) < LARGE.nbytes + 4096



# joblib


@pytest.mark.parametrize("compress", [0, 3])
def test_joblib_dumps_and_loads(discrete, compress, tmp_path):
    joblib = package("joblib")
    buffer = synced(discrete, LARGE, name="table")
    joblib.dump({"weights": buffer, "part": buffer.slice(10, 100)}, tmp_path / "x.joblib", compress=compress)
    assert compress or (tmp_path / "x.joblib").stat().st_size < LARGE.nbytes + 100 * 8 + 5000
    loaded = joblib.load(tmp_path / "x.joblib")
    check_arrived(loaded["weights"], LARGE)
    check_arrived(loaded["part"], LARGE.ravel()[10:110])


def test_joblib_maps_a_file(discrete, tmp_path):
    """Mode "c" is memory for writing that the file does not see: the buffer lies on it. Of a mapping to be read it is a copy."""
    joblib = package("joblib")
    joblib.dump(synced(discrete, LARGE, name="table"), tmp_path / "x.joblib")
    written = (tmp_path / "x.joblib").read_bytes()
    for mode, taken in (("c", 0), ("r", 1)):
        before = blocks()
        buffer = joblib.load(tmp_path / "x.joblib", mmap_mode=mode)
        assert blocks() - before == taken
        check_arrived(buffer, LARGE)
        buffer.host[0, 0] = 7
        assert buffer.device.to_numpy()[0, 0] == 7
        del buffer
    assert (tmp_path / "x.joblib").read_bytes() == written


def test_joblib_hashes_contents(discrete):
    joblib = package("joblib")
    buffer, other = synced(discrete, LARGE, name="table"), synced(discrete, LARGE, name="table")
    assert joblib.hash(buffer) == joblib.hash(other)
    other.host[5, 5] = 0
    assert joblib.hash(buffer) != joblib.hash(other)


# Processes


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("way", ["pool", "executor", "queue", "pipe"])
def test_processes_send_buffers(way, method):
    run_program(way, method)


@pytest.mark.parametrize("backend", ["loky", "multiprocessing", "threading"])
def test_joblib_sends_buffers(backend):
    package("joblib")
    run_program("joblib", backend)


def run_program(*arguments):
    done = subprocess.run([sys.executable, PROGRAM, *arguments], capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_bytes_of_a_connection_go_into_a_mapping(discrete):
    """Frames without a pickle: multiprocessing asks for memory to read, and is refused the buffer itself."""
    from multiprocessing import Pipe

    buffer = synced(discrete, LARGE[:2])
    ours, theirs = Pipe()
    with ours, theirs:
        theirs.send_bytes(LARGE[2:4].tobytes())
        with buffer.map(MapMode.DISCARD) as array:
            assert ours.recv_bytes_into(array.reshape(-1)) == 16_000  # which counts the bytes of one dimension alone
    assert (buffer.device.to_numpy() == LARGE[2:4]).all()
