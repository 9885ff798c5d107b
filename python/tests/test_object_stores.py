"""Buffers loaded from memory that may only be read, as an object store such as Ray's gives it (protocol 5 of pickle, out of band): they can be used and written,
and nothing is written into the store. A write there would end the process: the memory is mapped to be read alone."""

import mmap
import pickle

import numpy as np
import pytest
from sample_buffers import synced

import unimem
from unimem import BufferState, Location, MapMode, Tracking, UnifiedBuffer

VALUES = np.arange(30_000, dtype=np.float64).reshape(300, 100)


class Named(UnifiedBuffer):
    """With an attribute of its own."""


class Store:
    """One object, its frames one after the other at multiples of 64 in memory that is mapped to be read."""

    def __init__(self, path, value, shift=0):
        frames = []
        self.head = pickle.dumps(value, 5, buffer_callback=frames.append)
        data, places = bytearray(shift), []
        for frame in frames:
            data += bytes(-(len(data) - shift) % 64)
            places.append((len(data), frame.raw().nbytes))
            data += frame.raw()
        path.write_bytes(data or b"\0")
        self.path, self.bytes = path, path.read_bytes()
        with path.open("rb") as file:
            self.map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.frames = [memoryview(self.map)[begin : begin + size] for begin, size in places]
        assert all(one.readonly for one in self.frames)

    def get(self):
        return pickle.loads(self.head, buffers=self.frames)

    def is_untouched(self):
        return bytes(self.map) == self.bytes == self.path.read_bytes()

    def close(self):
        """What was loaded holds nothing of it."""
        for one in self.frames:
            one.release()
        self.map.close()


@pytest.fixture
def stored(tmp_path):
    return lambda value, **how: Store(tmp_path / "store", value, **how)


@pytest.mark.parametrize("shift", [0, 1, 8])  # at an address that suits the elements, or not
@pytest.mark.parametrize("state", ["HOST_DIRTY", "DEVICE_DIRTY"])
def test_a_buffer_from_the_store_is_used_and_written(sim, stored, state, shift):
    sent = synced(sim, VALUES, name="table")
    unimem.launch(unimem.Kernel("more").host(lambda x: np.add(x, 1, out=x)), sent.size, unimem.readwrite(sent))
    if state == "HOST_DIRTY":
        sent.host[:] += 0
    assert sent.state is BufferState[state]
    store = stored(sent, shift=shift)
    one, two = store.get(), store.get()
    assert (one.shape, one.dtype, one.name) == (VALUES.shape, VALUES.dtype, "table") and (one.host == VALUES + 1).all()
    assert not any(np.shares_memory(one.host, np.frombuffer(frame, np.uint8)) for frame in store.frames)
    one.host[0, :] = -1
    one.fill(7.0, 100, 100)
    with one.slice(200, 100).map(MapMode.DISCARD) as array:
        array[:] = 8
    one.slice(300, 100).copy_from(np.full(100, 9.0))
    one += 1
    one.sync_to_device(sim)
    unimem.launch(unimem.Kernel("less").host(lambda x: np.subtract(x, 2, out=x)), one.size, unimem.readwrite(one), device=sim)
    memoryview(one.slice(400, 1))[0]
    expected = VALUES + 1
    expected[0], expected[1], expected[2], expected[3] = -1, 7, 8, 9
    np.testing.assert_array_equal(one.to_numpy(), expected - 1)
    np.testing.assert_array_equal(two.host, VALUES + 1, "another that was loaded is its own")
    assert store.is_untouched()
    store.close()
    np.testing.assert_array_equal(one.to_numpy(), expected - 1)


def test_each_kind_of_buffer(sim, stored):
    named = Named((300, 100), np.float64, name="named")
    named.host[:] = VALUES
    named.note = "kept"
    kinds = [
        named, synced(sim, VALUES).slice(100, 5000), synced(sim, VALUES).reshape(100, 300), UnifiedBuffer(0), UnifiedBuffer(10_000),
        UnifiedBuffer((300, 100), np.float64, tracking=Tracking.PAGES), UnifiedBuffer((300, 100), np.float64, pinned=True),
        UnifiedBuffer((300, 100), np.float64, location=Location.HOST), UnifiedBuffer((300, 100), np.float64, strict=True),
    ]  # fmt: skip
    for kind in kinds[5:]:
        kind.allocate().copy_from(VALUES)
    for kind in kinds:
        store = stored(kind)
        loaded = store.get()
        assert type(loaded) is (Named if kind is named else UnifiedBuffer) and loaded.shape == kind.shape and loaded.tracking is kind.tracking
        if loaded.state is not BufferState.UNINITIALIZED:
            np.testing.assert_array_equal(loaded.to_numpy(), kind.to_numpy())
        loaded.host[...] = 5
        loaded.sync_to_host()
        assert store.is_untouched()
        store.close()
        assert (loaded.host == 5).all()
        if kind is named:
            assert loaded.note == "kept"



def test_several_in_one_object(stored):
    table = UnifiedBuffer((300, 100), np.float64)
    table.host[:] = VALUES
    store = stored({"whole": table, "again": table, "part": table.slice(10, 20), "plain": VALUES})
    loaded = store.get()
    assert loaded["whole"] is loaded["again"]
    loaded["whole"].host[:] = 0
    assert (loaded["part"].host == VALUES.ravel()[10:30]).all() and (loaded["plain"] == VALUES).all() and not loaded["plain"].flags.writeable
    with pytest.raises(unimem.InvalidArgument, match="read-only"):
        UnifiedBuffer.from_array(loaded["plain"])
    copied = UnifiedBuffer.from_array(loaded["plain"], copy=True)
    copied.host[:] = 1
    assert store.is_untouched()
