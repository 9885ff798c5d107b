"""What pickles and copies keep, what travels of a buffer, and where its bytes are copied."""

import copy
import pickle
import subprocess
import sys

import numpy as np
import pytest
from sample_buffers import DATA, check_both, made, synced

import unimem
from unimem import BufferState, Location, Tracking, UnifiedBuffer

S = BufferState


class Labelled(UnifiedBuffer):
    """A subclass as users write them: with an attribute, a slot, and a constructor of its own."""

    __slots__ = ("__dict__", "unit")

    def __init__(self, unit, *args, **options):
        super().__init__(*args, **options)
        self.unit = unit
        self.notes = ["made"]


def there_and_back(buffer, protocol=pickle.HIGHEST_PROTOCOL):
    return pickle.loads(pickle.dumps(buffer, protocol))


def sent(buffer):
    """By protocol 5 and a transport that copies the bytes, as a socket does; what arrived, and what it was made of."""
    frames = []
    head = pickle.dumps(buffer, 5, buffer_callback=frames.append)
    arrived = [bytearray(one) for one in frames]
    return pickle.loads(head, buffers=arrived), head, arrived


WAYS = {
    "copy": copy.copy, "deepcopy": copy.deepcopy, "clone": lambda buffer: buffer.clone(), "2": lambda buffer: there_and_back(buffer, 2),
    "4": lambda buffer: there_and_back(buffer, 4), "5": lambda buffer: there_and_back(buffer, 5), "out of band": lambda buffer: sent(buffer)[0],
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_copies_and_pickles_keep_device_options_and_subclass(discrete, way):
    buffer = Labelled(
        "m/s", DATA.shape, DATA.dtype, device=discrete, name="speeds", priority=3, strict=True, tracking=Tracking.MANUAL, location=Location.HOST
    ).allocate(True, False)  # fmt: skip
    buffer.copy_from(DATA)
    other = way(buffer)
    assert type(other) is Labelled and (other.unit, other.notes) == ("m/s", ["made"])
    assert other.default_device == discrete and (other.name, other.priority, other.location) == ("speeds", 3, Location.HOST)
    assert other.tracking is Tracking.MANUAL and other.clone().free()._options()[2], "strict"
    assert other.state is S.HOST_DIRTY
    check_both(other, DATA)
    other.fill(1)
    check_both(buffer, DATA)


def test_deep_copies_have_attributes_of_their_own(sim):
    buffer = Labelled("m/s", 10, device=sim)
    assert copy.copy(buffer).notes is buffer.notes and copy.deepcopy(buffer).notes is not buffer.notes
    buffer.notes.append(buffer)
    both = copy.deepcopy([buffer, buffer])
    assert both[0] is both[1] is both[0].notes[1]


def test_locked_and_watched_memory_is_a_buffers_own(sim):
    data = np.arange(100_000, dtype=np.float32)
    watched = sent(made(sim, data, tracking=Tracking.PAGES))[0]
    np.asarray(watched.host)[70_000] = 9  # nobody notices but the pages
    assert watched.tracking is Tracking.PAGES and watched.state is S.HOST_DIRTY and watched.device.to_numpy()[70_000] == 9
    buffer = made(sim, data, pinned=True)
    locked = sent(buffer)[0]
    assert locked.is_pinned == buffer.is_pinned
    check_both(locked, data)


def test_out_of_band_pickles_copy_nothing(discrete):
    buffer = synced(discrete)
    frames = []
    head = pickle.dumps(buffer, 5, buffer_callback=frames.append)
    assert len(frames) == 1 and len(head) < 1000
    assert np.shares_memory(np.frombuffer(frames[0], np.float32), buffer.host)
    arrived = bytearray(frames[0])
    other = pickle.loads(head, buffers=[arrived])
    assert np.shares_memory(np.frombuffer(arrived, np.float32), other.host)
    del arrived, frames
    check_both(other, DATA)
    assert other.statistics.host_to_device_bytes == DATA.nbytes and buffer.statistics.device_to_host_bytes == 0
    in_band = there_and_back(buffer)
    check_both(in_band, DATA)


def test_what_arrives_read_only_or_crooked_is_copied(discrete):
    buffer = made(discrete)
    frames = []
    head = pickle.dumps(buffer, 5, buffer_callback=frames.append)
    still = bytes(frames[0])
    crooked = memoryview(bytearray(b"\0" + still))[1:]
    for arrived in (still, crooked):
        other = pickle.loads(head, buffers=[arrived])
        other.host[0] = 7
        assert bytes(arrived) == still and other.device.to_numpy()[0] == 7


def test_a_buffers_memory_is_not_wrapped_twice(discrete):
    """Frames that never left the process are the sender's memory: what is loaded writes to its own."""
    buffer = synced(discrete)
    frames = []
    head = pickle.dumps(buffer, 5, buffer_callback=frames.append)
    for handed_over in (frames, [memoryview(one) for one in frames], [one.raw() for one in frames]):
        other = pickle.loads(head, buffers=handed_over)
        other.host[:] = 0
        check_both(buffer, DATA)
        check_both(other, np.zeros_like(DATA))
    with pytest.raises(unimem.InvalidArgument, match="another buffer"):
        UnifiedBuffer.from_array(np.asarray(buffer.host))


def test_frames_outlive_their_buffer(sim):
    buffer = made(sim)
    frames = []
    head = pickle.dumps(buffer, 5, buffer_callback=frames.append)
    buffer.free()
    del buffer
    other = UnifiedBuffer(DATA.shape, device=sim)
    other.fill(5)  # would be given that memory
    check_both(pickle.loads(head, buffers=[bytearray(one) for one in frames]), DATA)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_of_a_slice_its_window_travels_alone(discrete, way, moved):
    buffer = UnifiedBuffer(1_000_000, np.uint8, device=discrete, name="large")
    buffer.device.copy_from(np.full(buffer.size, 3, np.uint8))
    buffer.mark_device_dirty()
    part, seen = buffer.slice(1000, 500).reshape(5, 100), moved(buffer)
    other = way(part)
    assert type(other) is UnifiedBuffer and other.shape == (5, 100) and other.name == "large"
    assert seen.since()[3] in (0, 500), "the window alone, or nothing where devices copy"
    assert len(pickle.dumps(part)) < 2000 and (other.to_numpy() == 3).all()


def test_zero_elements_and_untouched_buffers_travel(discrete):
    empty = sent(UnifiedBuffer((0, 4), np.int16, device=discrete))[0]
    assert (empty.shape, empty.dtype, empty.to_numpy().shape) == ((0, 4), np.int16, (0, 4))
    looked_at = UnifiedBuffer((0, 4), np.int16, device=discrete).allocate()
    for way in WAYS.values():
        assert way(looked_at).to_numpy().shape == (0, 4)
    fresh, head, arrived = sent(UnifiedBuffer(1_000_000, device=discrete))
    assert fresh.state is S.UNINITIALIZED and not arrived and len(head) < 1000 and fresh.default_device == discrete
    structured = made(discrete, np.array([(1, 2.5), (3, 4.5)], dtype=[("a", "i4"), ("b", "f8")]))
    np.testing.assert_array_equal(sent(structured)[0].to_numpy(), structured.to_numpy())


def test_a_missing_device_is_the_default(tmp_path):
    """Simulated devices are the process's that made them."""
    buffer = made(unimem.make_sim("memory=1MiB"))
    (tmp_path / "sent").write_bytes(pickle.dumps(buffer))
    code = f"""if True:
        import pickle, unimem
        b = pickle.load(open({str(tmp_path / "sent")!r}, "rb"))
        assert b.default_device == unimem.default_device() and b.to_numpy()[999] == 999
        assert pickle.loads(pickle.dumps(b)).default_device == unimem.default_device()
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


class Sizes:
    """As much of dask.sizeof.sizeof as registers sizes."""

    def __init__(self):
        self.by_type = {}

    def register(self, kind, function=None):
        if function is None:
            return lambda given: self.register(kind, given)
        self.by_type[kind] = function
        return function

    def __call__(self, value):
        return next(self.by_type[kind] for kind in type(value).__mro__ if kind in self.by_type)(value)


def test_dask_is_told_how_large_a_buffer_is(discrete):
    import re
    from importlib import import_module
    from pathlib import Path

    project = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    module, function = re.search(r'\[project\.entry-points\."dask\.sizeof"\]\nunimem = "([\w.]+):(\w+)"', project).groups()
    sizeof = Sizes()
    getattr(import_module(module), function)(sizeof)
    buffer = UnifiedBuffer(16 << 20, np.uint8, device=discrete)
    assert (16 << 20) <= sizeof(buffer) < (16 << 20) + 4096
    assert 1000 <= sizeof(buffer.slice(5, 1000)) < 1000 + 4096
    assert 1000 <= sizeof(buffer.slice(5, 1000).device) < 1000 + 4096


def test_read_only_sources_are_refused(sim):
    data = np.arange(10, dtype=np.float32)
    data.flags.writeable = False

    class Frozen:
        def __dlpack__(self, **arguments):
            return data.__dlpack__(**arguments)

        def __dlpack_device__(self):
            return data.__dlpack_device__()

    for make in (UnifiedBuffer.from_array, UnifiedBuffer.from_dlpack):
        with pytest.raises(unimem.InvalidArgument, match="read-only.*copy=True"):
            make(data if make == UnifiedBuffer.from_array else Frozen(), device=sim)
    with pytest.raises(unimem.InvalidArgument, match="copy=True"):
        UnifiedBuffer.from_array(np.arange(20)[::2])
    for buffer in (
        UnifiedBuffer.from_array(data, copy=True, device=sim, name="mine"), UnifiedBuffer.from_dlpack(Frozen(), copy=True, device=sim, name="mine")
    ):  # fmt: skip
        assert buffer.name == "mine" and buffer.default_device == sim and not np.shares_memory(buffer.host, data)
        buffer.host[0] = 5
        assert data[0] == 0 and buffer.device.to_numpy()[0] == 5
    with pytest.raises(unimem.InvalidArgument, match=r"read-only.*allocate\(array\)"):
        unimem.MemoryManager().wrap(data)
