"""Buffers of several processes: by id, and as multiprocessing sends them."""

import json
import multiprocessing
import multiprocessing.pool
import os
import pickle
import subprocess
import sys
import threading
import time
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest
import shared_peer
from keepers import wait_until_all_is_received
from shared_peer import SIZE, Labelled

import unimem
from unimem import BufferState, DataLost, InvalidArgument, NotFound, UnifiedBuffer, UnsupportedOperation, launch, readwrite, registry

# Other tests of the process have imported JAX, which warns of every fork; what is forked here does not use it.
pytestmark = [
    pytest.mark.filterwarnings("ignore:os.fork.* was called:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

WAYS = ["spawn", "fork", "forkserver"]
PATIENCE = 30


class Peer:
    """Another process, which answers calls."""

    def __init__(self):
        ways = multiprocessing.get_context("spawn")
        self.connection, theirs = ways.Pipe()
        self.process = ways.Process(target=shared_peer.answer, args=(theirs,))
        self.process.start()
        theirs.close()

    def call(self, function, *args):
        self.connection.send((function, args))
        assert self.connection.poll(PATIENCE), "it hangs"
        result = self.connection.recv()
        if isinstance(result, Exception):
            raise result
        return result

    def kill(self, function, *args):
        self.connection.send((function, args))
        self.process.join(PATIENCE)
        assert self.process.exitcode == -9

    def end(self):
        if self.process.is_alive():
            self.connection.send((None, ()))
        self.process.join(PATIENCE)
        assert not self.process.is_alive()


@pytest.fixture
def peer():
    one = Peer()
    yield one
    one.end()


@pytest.fixture
def published():
    names = []

    def publish(buffer, **how):
        names.append(registry().publish(buffer, cross_process=True, **how))
        return names[-1]

    yield publish
    for name in names:
        registry().release(name)


@pytest.mark.parametrize("shared", [False, True])
def test_what_is_published_is_opened_with_its_shape_and_dtype(peer, published, shared):
    buffer = UnifiedBuffer((10, 100), np.float32, shared=shared)
    buffer.host[...] = 1
    name = published(buffer)
    assert peer.call(shared_peer.open_buffer, name) == ((10, 100), "<f4", "HOST_ONLY")
    assert peer.call(shared_peer.total, name) == 1000
    copied = [(link.source, link.target, link.bytes) for link in buffer.migrations if link.target == "shared memory"]
    assert copied == ([] if shared else [("host", "shared memory", 4000)])


@pytest.mark.parametrize("dtype", [">f4", "f2", "c8", "S5", [("a", "i4"), ("b", "f8", (2,))], "?"])
def test_any_dtype_is_opened_as_it_was(peer, published, dtype):
    buffer = UnifiedBuffer(3, np.dtype(dtype))
    buffer.zeros()
    assert peer.call(shared_peer.open_buffer, published(buffer))[1] == np.dtype(dtype).str


def test_each_sees_what_the_other_writes(peer, published, sim):
    buffer = UnifiedBuffer(1000, np.float32, device=sim).fill(1)
    name = published(buffer)
    peer.call(shared_peer.open_buffer, name)
    buffer.sync_to_device()
    before = buffer.statistics
    peer.call(shared_peer.set_part, name, 100, 200, 3)
    assert buffer.state is BufferState.HOST_DIRTY
    launch(shared_peer.twice, buffer.size, readwrite(buffer))
    assert buffer.statistics.host_to_device_bytes - before.host_to_device_bytes == 400, "the range that was written"
    assert peer.call(shared_peer.total, name) == 2 * 900 + 6 * 100
    peer.call(shared_peer.double_on_device, name)
    assert buffer.to_numpy().sum() == 4 * 900 + 12 * 100
    buffer.host[:10] = 0
    assert peer.call(shared_peer.look, name, 9) == 0
    assert peer.call(shared_peer.look, name, 10) == 4


def test_what_a_killed_process_was_writing_is_lost_until_it_is_written(published):
    peer = Peer()
    buffer = UnifiedBuffer(1000, np.float32).fill(1)
    name = published(buffer)
    peer.call(shared_peer.open_buffer, name)
    peer.kill(shared_peer.die_writing, name, 100, 200)
    with pytest.raises(DataLost):
        buffer.to_numpy()
    assert buffer.slice(0, 100).to_numpy().sum() == 100
    buffer.slice(100, 100).copy_from(np.full(100, 7, np.float32))
    assert buffer.to_numpy().sum() == 900 + 700


def test_who_shares_what_is_listed(peer, published):
    buffer = UnifiedBuffer((10, 100), np.float32, name="pixels").fill(1)
    name = published(buffer, name="frame")
    peer.call(shared_peer.open_buffer, name)
    with buffer.slice(0, 256).map(unimem.MapMode.READ_WRITE):
        (found,) = [one for one in unimem.shared_on_this_host().buffers if one.id == name]
    assert (found.name, found.buffer, found.shape, found.nbytes) == ("frame", "pixels", (10, 100), 4000)
    assert (found.element, found.lost_bytes, found.trouble) == ("float", 0, "")
    holders = {one.pid: one for one in found.holders}
    assert set(holders) == {os.getpid(), peer.process.pid}
    assert holders[os.getpid()].writing_bytes == 1024
    assert all(one.serves and one.alive and one.command for one in found.holders)
    assert json.loads(found.to_json())["holders"][0]["pid"] == found.holders[0].pid
    assert "pixels" in unimem.shared_on_this_host()._repr_html_()


def test_what_is_on_its_way_is_listed():
    own = lambda: [one for one in unimem.shared_on_this_host().sent if one.pid == os.getpid()]  # noqa: E731
    message = ForkingPickler.dumps(UnifiedBuffer(SIZE, np.float32).fill(2))
    (sent,) = own()
    assert (sent.copies, sent.copied_bytes, sent.shared, sent.shared_bytes) == (1, 4 * SIZE, 0, 0)
    assert pickle.loads(message).to_numpy().sum() == 2 * SIZE
    assert own() == []


class Told:
    """Keeps what it is called with."""

    def __init__(self):
        self.deaths, self.came = [], threading.Condition()

    def __call__(self, death):
        with self.came:
            self.deaths.append(death)
            self.came.notify_all()

    def wait(self, count):
        with self.came:
            assert self.came.wait_for(lambda: len(self.deaths) >= count, PATIENCE)
        return self.deaths


def test_deaths_of_others_are_told(published):
    buffer = UnifiedBuffer(1000, np.float32).fill(1)
    name = published(buffer)
    told = Told()
    peers = [Peer() for _ in range(3)]
    for one in peers:
        one.call(shared_peer.open_buffer, name)
    with registry().on_peer_death(told) as subscription:
        peers[0].end()  # in good order, with the buffer
        peers[1].kill(shared_peer.die_writing, name, 100, 200)
        (death,) = told.wait(1)
        assert death == unimem.PeerDeath(peers[1].process.pid, (name,), 400)
        assert json.loads(death.to_json())["lost_bytes"] == 400
        with pytest.raises(DataLost):
            buffer.to_numpy()
        buffer.slice(100, 100).copy_from(np.ones(100, np.float32))
    peers[2].kill(shared_peer.die)
    subscription.end()
    assert len(told.deaths) == 1
    with pytest.raises(InvalidArgument, match="callable"):
        registry().on_peer_death(3)


@pytest.mark.parametrize("way", WAYS)
def test_children_that_end_are_no_deaths(way, published):
    buffer = UnifiedBuffer(1000, np.float32).fill(2)
    name = published(buffer)
    told = Told()
    ways = multiprocessing.get_context(way)
    with registry().on_peer_death(told):
        process = ways.Process(target=shared_peer.open_buffer, args=(name,))
        process.start()
        process.join(PATIENCE)
        assert process.exitcode == 0
        peer = Peer()
        peer.call(shared_peer.open_buffer, name)
        peer.kill(shared_peer.die)
        assert [one.pid for one in told.wait(1)] == [peer.process.pid]


def test_callbacks_that_raise_are_logged_and_others_called(published, caplog):
    name = published(UnifiedBuffer(1000, np.float32).fill(2))
    told = Told()

    def raises(death):
        raise RuntimeError("on purpose")

    with registry().on_peer_death(raises), registry().on_peer_death(told):
        peer = Peer()
        peer.call(shared_peer.open_buffer, name)
        peer.kill(shared_peer.die)
        told.wait(1)
    until = time.monotonic() + PATIENCE
    while not any("on purpose" in one.getMessage() for one in caplog.records) and time.monotonic() < until:
        time.sleep(0.001)  # messages come to Python a little later
    assert any("on purpose" in one.getMessage() for one in caplog.records)


def test_an_interpreter_ends_with_a_subscription():
    program = """
import numpy as np, unimem
buffer = unimem.UnifiedBuffer(1000, np.float32, shared=True)
subscription = unimem.registry().on_peer_death(print)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_the_last_holder_keeps_it(published):
    first, second = Peer(), Peer()
    buffer = UnifiedBuffer(1000, np.float32).fill(2)
    name = registry().publish(buffer, cross_process=True)
    first.call(shared_peer.open_buffer, name)
    registry().release(name)
    del buffer
    second.call(shared_peer.open_buffer, name)
    first.end()
    assert second.call(shared_peer.total, name) == 2000
    second.call(shared_peer.close, name)
    with pytest.raises(NotFound):
        second.call(shared_peer.open_buffer, name)
    second.end()


def test_what_is_held_is_not_published():
    buffer = UnifiedBuffer(1000, np.float32).fill(1)
    kept = buffer.host
    with pytest.raises(UnsupportedOperation, match="leased or mapped"):
        registry().publish(buffer, cross_process=True)
    assert kept[0] == 1
    del kept
    registry().release(registry().publish(buffer, cross_process=True))
    with pytest.raises(UnsupportedOperation, match="wrapped"):
        registry().publish(UnifiedBuffer.from_array(np.ones(10)), cross_process=True)


def test_what_others_share_is_not_resized(published):
    buffer = UnifiedBuffer(1000, np.float32, shared=True).fill(1)
    published(buffer)
    with pytest.raises(UnsupportedOperation, match="other processes share"):
        buffer.resize(10)
    with buffer:
        pass
    assert buffer.state is BufferState.UNINITIALIZED


def test_another_dtype_is_refused(peer, published):
    name = published(UnifiedBuffer(10, np.float32).fill(1))
    with pytest.raises(InvalidArgument):
        registry().open(name, np.int32)
    with pytest.raises(NotFound):
        peer.call(shared_peer.open_buffer, "0123456789abcdef-7")


@pytest.fixture(params=WAYS)
def pool(request):
    with multiprocessing.get_context(request.param).Pool(1) as one:
        yield one


def test_pools_return_buffers(pool):
    result = pool.apply_async(shared_peer.filled, (3,)).get(PATIENCE)
    assert (result.shape, result.dtype, result.state) == ((SIZE,), np.float32, BufferState.HOST_DIRTY)
    assert np.array_equal(result.to_numpy(), np.full(SIZE, 3, np.float32))
    result.host[:5] = 1
    result.free()  # it is the receiver's own
    assert result.state is BufferState.UNINITIALIZED


def test_what_is_received_takes_no_memory_but_what_has_arrived(pool):
    pool.apply_async(shared_peer.filled, (3,)).get(PATIENCE)
    before = unimem.default_manager().statistics.total_allocations
    result = pool.apply_async(shared_peer.filled, (4,)).get(PATIENCE)
    assert result.to_numpy().sum() == 4 * SIZE
    assert unimem.default_manager().statistics.total_allocations == before
    assert (result.statistics.host_to_device_bytes, result.statistics.device_to_host_bytes) == (0, 0)


def test_pools_take_buffers(pool):
    buffer = UnifiedBuffer(SIZE, np.float32).fill(2)
    assert pool.apply_async(shared_peer.sum_of, (buffer,)).get(PATIENCE) == 2 * SIZE
    assert pool.apply_async(shared_peer.sum_of, (buffer.slice(10, SIZE // 2),)).get(PATIENCE) == SIZE


def test_subclasses_names_and_attributes_arrive():
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        result = pool.apply_async(shared_peer.labelled, (3,)).get(PATIENCE)
        part = pool.apply_async(shared_peer.part_of, (5,)).get(PATIENCE)
        from_device = pool.apply_async(shared_peer.on_device, (5,)).get(PATIENCE)
    assert (type(result), result.label, result.name, result.shape) == (Labelled, "mine", "table", (256, 1024))
    assert result.to_numpy().min() == result.to_numpy().max() == 3
    assert type(part) is UnifiedBuffer
    assert np.array_equal(part.to_numpy(), np.arange(SIZE // 2, SIZE // 2 + SIZE, dtype=np.float32) + 5)
    assert from_device.to_numpy().min() == from_device.to_numpy().max() == 10


@pytest.mark.parametrize("mode", list(unimem.MapMode), ids=lambda mode: mode.name)
def test_nobody_waits_for_the_array_of_a_mapping_that_has_ended(peer, mode):
    buffer = UnifiedBuffer(SIZE, np.float32, shared=True).fill(3)
    name = registry().publish(buffer, cross_process=True)
    peer.call(shared_peer.open_buffer, name)
    mapping = buffer.map(mode)
    with mapping as array:
        assert not array.flags.writeable or mode is not unimem.MapMode.READ
    peer.call(shared_peer.set_part, name, 10, 20, 7)  # which waits for readers and writers
    assert array[10:20].tolist() == [7] * 10
    assert buffer.host[10] == 7


def test_nobody_waits_for_the_array_of_a_device_that_is_the_host(peer):
    buffer = UnifiedBuffer(SIZE, np.float32, device="cpu", shared=True).fill(3)
    name = registry().publish(buffer, cross_process=True)
    peer.call(shared_peer.open_buffer, name)
    array = buffer.device
    peer.call(shared_peer.set_part, name, 10, 20, 7)
    assert array[10:20].tolist() == [7] * 10


def test_small_and_empty_buffers_go_in_the_pickle():
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        small = pool.apply_async(shared_peer.filled, (1, (3, 4))).get(PATIENCE)
        empty = pool.apply_async(shared_peer.filled, (1, (0,))).get(PATIENCE)
    assert np.array_equal(small.to_numpy(), np.ones((3, 4), np.float32))
    assert empty.shape == (0,)


def test_buffers_made_for_others_are_the_same_in_both():
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        buffer = pool.apply_async(shared_peer.make_shared_and_return).get(PATIENCE)
        assert buffer.to_numpy().sum() == 3000
        pool.apply_async(shared_peer.change_shared, (7,)).get(PATIENCE)
        assert buffer.to_numpy().sum() == 3000 + 40
        buffer.host[0] = 9
        assert pool.apply_async(shared_peer.first_of_shared).get(PATIENCE) == 9
    assert buffer.to_numpy().sum() == 3000 + 40 + 2


@pytest.mark.parametrize("way", WAYS)
def test_what_was_sent_in_a_message_that_could_not_be_made_is_not_waited_for(way):
    ways = multiprocessing.get_context(way)
    queue = ways.Queue()
    process = ways.Process(target=shared_peer.put_what_cannot_be_sent, args=(queue, 4))
    process.start()
    process.join(PATIENCE)
    assert process.exitcode == 0
    with ways.Pool(1) as pool:
        with pytest.raises(multiprocessing.pool.MaybeEncodingError):
            pool.apply_async(shared_peer.return_what_cannot_be_sent, (4,)).get(PATIENCE)
        assert pool._pool[0].pid not in {one.pid for one in unimem.shared_on_this_host().sent}
    with pytest.raises((AttributeError, pickle.PicklingError)):
        ForkingPickler.dumps((UnifiedBuffer(SIZE, np.float32).fill(3), lambda: None))
    wait_until_all_is_received()


def test_a_sender_that_was_killed_is_told_when_the_data_is_read():
    ways = multiprocessing.get_context("spawn")
    queue, sent = ways.Queue(), ways.Event()
    process = ways.Process(target=shared_peer.put_and_be_killed, args=(queue, 4, sent))
    process.start()
    assert sent.wait(PATIENCE)
    process.join(PATIENCE)
    buffer = queue.get(timeout=PATIENCE)
    assert buffer.shape == (SIZE,)
    with pytest.raises(DataLost, match="ended before it was received"):
        buffer.to_numpy()
    buffer.fill(1)
    assert buffer.to_numpy().sum() == SIZE


def test_other_pickles_are_as_they_were():
    buffer = UnifiedBuffer(SIZE, np.float32).fill(3)
    assert pickle.loads(pickle.dumps(buffer)).to_numpy().sum() == 3 * SIZE
