"""Limits of a worker's memory, as programs name them: "host", "device", or a device's id."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from ._arguments import size_of
from ._devices import default_device
from ._errors import InvalidArgument, invalid
from ._manager import MemoryManager
from ._unimem import Device, device

_logger = logging.getLogger("unimem.dask")


def checked_limits(limits: object) -> dict[str, int]:
    """By "host", "device" or a device's id, in bytes. InvalidArgument naming what is none."""
    if not isinstance(limits, Mapping):
        raise invalid("limits", repr(limits), 'a mapping such as {"host": "2GiB", "device": "1GiB"}')
    checked: dict[str, int] = {}
    for place, size in limits.items():
        if not isinstance(place, str) or not place:
            raise invalid("limits", repr(place), '"host", "device", or a device\'s id')
        try:
            checked[place] = size_of(f"limits[{place!r}]", size)
        except InvalidArgument as error:
            raise invalid(f"limits[{place!r}]", error.value, error.requirement) from None
    return checked


def _places(limits: Mapping[str, int]) -> list[tuple[Device, int]]:
    """NotFound for a device that this process does not have."""
    found = []
    for place, size in limits.items():
        on = device("cpu") if place == "host" else default_device() if place == "device" else device(place)
        if place == "device" and on.backend == "cpu":
            _logger.info("the limit of the device bounds nothing: this worker's device is the host")
            continue
        found.append((on, size))
    return found


def set_limits(manager: MemoryManager, limits: Mapping[str, int]) -> None:
    """All of them or none."""
    places = _places(limits)
    earlier = [(on, manager._native._limit(on, -1)) for on, _ in places]
    try:
        for on, size in places:
            manager.set_limit(on, size)
    except Exception:
        for on, before in earlier:
            manager._native._set_limit(on, -1, before)
        raise
