"""Devices, and what of their memory is free."""

from __future__ import annotations

import json
from contextvars import ContextVar

from . import _unimem
from ._errors import invalid
from ._records import DeviceInfo, MemoryInfo, TransferCounters, UnavailableBackend
from ._tables import pairs
from ._unimem import Device, device

_entered: ContextVar[tuple[Device, ...]] = ContextVar("unimem.device", default=())
"""The devices of the ``with`` blocks that this thread, or task, is in."""


def _enter(on: Device) -> Device:
    _entered.set((*_entered.get(), on))
    return on


def _leave() -> None:
    _entered.set(_entered.get()[:-1])


def default_device() -> Device:
    """The device of the innermost ``with device:`` block; else UNIMEM_DEVICE if set, else the first of cuda, metal, a GPU under OpenCL,
    cpu, which is decided once."""
    entered = _entered.get()
    return entered[-1] if entered else _unimem.default_device()


def _one(on: Device | str) -> Device:
    found = named(on)
    if found is None:
        raise invalid("device", "None", 'a Device, or the id of one, such as "cpu" or "sim"')
    return found


def device_info(on: Device | str) -> DeviceInfo:
    """What does not change while a device, or that with this id, exists."""
    return DeviceInfo(**_one(on)._info())


def transfers(on: Device | str) -> TransferCounters:
    """What a device, or that with this id, has carried out since the process began."""
    return TransferCounters(**_one(on)._transfers())


def unavailable_backends() -> list[UnavailableBackend]:
    """The backends that `devices()` found nothing for, and why."""
    return [UnavailableBackend(*one) for one in _unimem._unavailable_backends()]


def named(on: Device | str | None) -> Device | None:
    """A device, by itself or by its id; None: the buffer's own. Raises NotFound, and InvalidArgument for what is neither."""
    if on is None or isinstance(on, Device):
        return on
    if isinstance(on, str):
        return device(on)
    raise invalid("device", f"{type(on).__name__} {on!r}", 'a Device, or the id of one, such as "cpu" or "sim"')


def _device_of(id: str) -> Device:
    """What a pickled device becomes, since only functions of Python's own can be named in a pickle."""
    return device(id)


def chosen(on: Device | str | None) -> Device | None:
    """The same for what is made now: None is the device of the ``with`` block, if there is one."""
    if on is None:
        entered = _entered.get()
        return entered[-1] if entered else None
    return named(on)


class Accelerator:
    """A device as the documents ask for it."""

    __slots__ = ("_device",)

    def __init__(self, on: Device) -> None:
        self._device = on

    @property
    def device(self) -> Device:
        """The device itself."""
        return self._device

    @property
    def name(self) -> str:
        """The hardware's own name."""
        return self.info.name

    @property
    def info(self) -> DeviceInfo:
        """What does not change while the device exists."""
        return device_info(self._device)

    def get_memory_info(self) -> MemoryInfo:
        """``(free, total)`` in bytes, now: free is the limit less what is live, cached blocks count as free."""
        manager = _unimem._default_manager()
        free, total = self._device._memory_info()
        if self._device.backend == "cpu":
            return MemoryInfo(free, total)
        return MemoryInfo(manager._available(self._device), manager._total(self._device))

    def synchronize(self) -> None:
        """Waits for all work submitted so far to every queue of the device."""
        self._device.synchronize()

    def __repr__(self) -> str:
        return f"<unimem.Accelerator {self._device.id!r}: {self.name}>"

    def _repr_html_(self) -> str:
        free, total = self.get_memory_info()
        rows = [("device", self._device.id), ("name", self.name), ("free_bytes", free), ("total_bytes", total)]
        return pairs("Accelerator", rows)


def _device_html(on: Device) -> str:
    return pairs(f"Device {on.id}", json.loads(device_info(on).to_json()).items())


def get_accelerator(on: Device | str | None = None) -> Accelerator:
    """The device named, or the default one. Raises NotFound, which lists what there is."""
    return Accelerator(named(on) or default_device())
