"""Devices that tests run on: simulated ones are always there, others where the machine has them."""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator

import pytest

import unimem


# A shell's background processes ignore SIGINT, and so would all that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="run what takes minutes as well")


@pytest.fixture
def sim() -> unimem.Device:
    """A discrete device whose transfers count from zero."""
    return unimem.make_sim("memory=256MiB")


@pytest.fixture
def other_sim() -> unimem.Device:
    return unimem.make_sim("memory=256MiB")


@pytest.fixture
def opencl() -> unimem.Device:
    for one in unimem.devices():
        if one.backend == "opencl":
            return one
    pytest.skip("no OpenCL device here: " + "; ".join(f"{b}: {why}" for b, why in unimem.unavailable_backends()))


@pytest.fixture(params=["sim", "opencl"])
def discrete(request: pytest.FixtureRequest) -> unimem.Device:
    """Each kind of device with memory of its own."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def cpu() -> unimem.Device:
    return unimem.device("cpu")


@pytest.fixture(autouse=True)
def nothing_left_in_the_registry() -> Iterator[None]:
    yield
    if not unimem.registry().list():
        return  # nearly always, and collecting takes longer than most tests
    gc.collect()
    for one in unimem.registry().list():
        unimem.registry().release(one.id)


class Moved:
    """What a buffer has moved since it was last asked: (copies to devices, bytes, copies to the host, bytes)."""

    def __init__(self, buffer: unimem.UnifiedBuffer | unimem.BufferSlice) -> None:
        self._buffer = buffer
        self._last = self._now()

    def _now(self) -> tuple[int, int, int, int]:
        s = self._buffer.statistics
        return s.host_to_device_copies, s.host_to_device_bytes, s.device_to_host_copies, s.device_to_host_bytes

    def since(self) -> tuple[int, int, int, int]:
        now = self._now()
        difference = tuple(a - b for a, b in zip(now, self._last, strict=True))
        self._last = now
        return difference  # type: ignore[return-value]


@pytest.fixture
def moved() -> type[Moved]:
    return Moved


class Counted:
    """The same by the buffer's count and by its device's own, with those of `others`, which agree."""

    def __init__(self, buffer: unimem.UnifiedBuffer, *others: unimem.Device) -> None:
        self._by_buffer = Moved(buffer)
        self._devices = (buffer.default_device, *others)
        self._last = self._now()

    def _now(self) -> tuple[int, int, int, int]:
        seen = [unimem.transfers(one) for one in self._devices]
        return (
            sum(t.host_to_device_copies for t in seen), sum(t.host_to_device_bytes for t in seen),
            sum(t.device_to_host_copies for t in seen), sum(t.device_to_host_bytes for t in seen),
        )  # fmt: skip

    def since(self) -> tuple[int, int, int, int]:
        now = self._now()
        by_device = tuple(a - b for a, b in zip(now, self._last, strict=True))
        by_buffer = self.since_by_buffer()
        assert by_device == by_buffer, f"the device counted {by_device}, the buffer {by_buffer}"
        return by_buffer

    def since_by_buffer(self) -> tuple[int, int, int, int]:
        """Where the device has moved more: by its arrays, or for other buffers."""
        self._last = self._now()
        return self._by_buffer.since()


@pytest.fixture
def counted() -> type[Counted]:
    return Counted
