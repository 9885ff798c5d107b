"""Buffers by id, and workers that are sent references instead of data."""

import queue
import threading
import zlib

import numpy as np
import pytest

import unimem
from unimem import BufferRef, InvalidArgument, Kernel, NotFound, UnifiedBuffer, launch, readwrite, registry


def test_an_id_opens_the_same_buffer(discrete, moved):
    buffer = UnifiedBuffer((10, 10), device=discrete)
    buffer.fill(3)
    name = registry().publish(buffer, name="frame")
    same = registry().open(name)
    assert same.shape == (10, 10) and same.dtype == np.float32
    same.host[0, 0] = 8
    assert buffer.host[0, 0] == 8
    assert name in registry() and registry()[name].shape == (10, 10) and registry().find("frame") == name
    assert [one.name for one in registry().list()] == ["frame"] and len(registry()) == 1
    del buffer
    assert (same.host[1:] == 3).all()
    registry().release(name)
    assert name not in registry()
    same.fill(4)
    assert (same.to_numpy() == 4).all()


def test_unknown_ids_are_not_found_and_never_zeros(sim):
    buffer = UnifiedBuffer(4, device=sim).fill(1)
    name = registry().publish(buffer)
    registry().release(name)
    for bad in (name, "0123456789abcdef-1", "no id", "", name + "0"):
        for use in (registry().open, registry().release, registry().refer, lambda i: BufferRef(i).resolve(), lambda i: registry()[i]):
            with pytest.raises(NotFound) as caught:
                use(bad)
            assert isinstance(caught.value, KeyError)
    with pytest.raises(NotFound, match="nobody"):
        registry().find("nobody")


def test_other_types_and_windows_are_refused(sim):
    buffer = UnifiedBuffer(100, np.float32, device=sim).fill(1)
    name = registry().publish(buffer, name="typed")
    with pytest.raises(InvalidArgument):
        registry().open(name, np.int32)
    for offset, count in ((101, 0), (0, 101), (50, 51), (-1, 1), (2**63, 2**63)):
        with pytest.raises(InvalidArgument):
            BufferRef(name, offset, count).resolve()
        with pytest.raises(InvalidArgument):
            registry().refer(name, offset, count)
    with pytest.raises(InvalidArgument, match="typed"):
        registry().publish(UnifiedBuffer(1, device=sim), name="typed")
    with pytest.raises(InvalidArgument):
        registry().publish(np.zeros(3))


def test_references_travel_as_forty_bytes(sim):
    buffer = UnifiedBuffer(100, np.float32, device=sim)
    buffer.host[:] = np.arange(100)
    ref = registry().refer(registry().publish(buffer), 10, 5)
    wire = bytes(ref)
    assert len(wire) == 40 and wire[:2] == b"uB" and int.from_bytes(wire[36:], "little") == zlib.crc32(wire[:36])
    again = BufferRef.from_bytes(wire)
    assert again == ref
    np.testing.assert_array_equal(again.resolve().to_numpy(), np.arange(10, 15))
    for position in range(40):
        garbled = bytearray(wire)
        garbled[position] ^= 1
        with pytest.raises(InvalidArgument):
            BufferRef.from_bytes(garbled)
    for bad in (b"", wire[:39], wire + b"0"):
        with pytest.raises(InvalidArgument):
            BufferRef.from_bytes(bad)


def test_a_worker_works_in_place(discrete):
    frame = UnifiedBuffer(1000, device=discrete)
    frame.host[:] = 1
    name = registry().publish(frame)
    double = Kernel("twice").source(
        "UNIMEM_KERNEL twice(UNIMEM_BUFFER(float, x)) { UNIMEM_DATA(float, x)[UNIMEM_ITEM_X] *= 2.0f; }"
    ).host(lambda x: np.multiply(x, 2, out=x))
    requests: "queue.Queue[bytes | None]" = queue.Queue()

    def worker():
        while (wire := requests.get()) is not None:
            part = BufferRef.from_bytes(wire).resolve()
            launch(double, part.size, readwrite(part))

    frame.sync_to_device()
    before = frame.statistics
    thread = threading.Thread(target=worker)
    thread.start()
    requests.put(bytes(registry().refer(name, 100, 24)))
    requests.put(bytes(BufferRef(name, 110, 2, element=11)))
    requests.put(None)
    thread.join()
    assert frame.statistics.host_to_device_copies == before.host_to_device_copies
    expected = np.ones(1000)
    expected[100:124] = 2
    expected[110:112] = 4
    np.testing.assert_array_equal(frame.to_numpy(), expected)
    assert frame.statistics.device_to_host_bytes == 24 * 4
