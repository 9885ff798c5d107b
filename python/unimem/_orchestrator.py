"""Kernels by name, and a device for each execution."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any

from . import _unimem
from ._devices import chosen, named
from ._errors import NotFound, invalid
from ._kernels import Kernel, _given, _range, launch
from ._records import Record
from ._threads import to_thread
from ._unimem import Device, Event


@dataclass(frozen=True, slots=True)
class KernelExecution(Record):
    """What one execution did: where it ran and why there, the seconds from the call until the kernel had ended, copies included, and
    what the statistics of its buffers grew by meanwhile. Copies of the same buffers that other threads caused count too."""

    name: str
    device: str
    reason: str
    items: int
    seconds: float
    bytes_moved: int
    copies: int


class _Execution:
    """An execution that knows where it goes."""

    def __init__(self, kernel: Kernel, device: Device | str | None, backend: str | None, range: Any, arguments: tuple[Any, ...]) -> None:
        self._begin = time.perf_counter()
        self._kernel = kernel
        extents = _range(range, kernel._group)
        self._items = extents[0] * extents[1] * extents[2]
        # Scalars do not matter here, and are checked when it is launched.
        self._given = _given(kernel, arguments, True)
        on = named(device)
        if on is None:
            forms = kernel.has_source, kernel.has_host
            self._device, self._reason = _unimem._choose_device(kernel.name, *forms, self._given, backend, chosen(None))
        elif backend is not None and backend != on.backend:
            raise invalid("backend", backend, f"that of {on.id}, or none")
        else:
            self._device, self._reason = on, "the call names it"
        self._range, self._arguments = range, arguments

    def begin(self) -> Event:
        self._traffic = _unimem._TrafficOf(self._given)
        return launch(self._kernel, self._range, *self._arguments, device=self._device)

    def build(self) -> _Execution:
        self._kernel.build(self._device)
        return self

    def run(self) -> KernelExecution:
        self.begin().wait()
        seconds = time.perf_counter() - self._begin
        return KernelExecution(self._kernel.name, self._device.id, self._reason, self._items, seconds, *self._traffic.so_far())


class Orchestrator:
    """Kernels by name, and a device for each execution.

        orchestrator = Orchestrator()
        orchestrator.register_kernel(scale)
        done = orchestrator.execute("scale", x.size, readwrite(x), 2.0)

    Unless `device` or `backend` say where, an execution goes to where its data is: of the devices that its buffers are at home on or
    have been brought to, and that can run the kernel, the one where least is missing of what is read, the earliest argument's home
    among equals. Without buffers it goes to `default_device()`, that of a ``with device:`` block among them. If none of them can run it,
    the cpu does, if it can; the result's `reason` tells. Thread-safe.
    """

    __slots__ = ("_kernels", "_lock")

    def __init__(self) -> None:
        self._kernels: dict[str, Kernel] = {}
        self._lock = threading.Lock()

    def register_kernel(self, kernel: Kernel) -> None:
        """Raises InvalidArgument if another kernel has its name; the same one may come again."""
        if not isinstance(kernel, Kernel):
            raise invalid("kernel", type(kernel).__name__, "a Kernel")
        with self._lock:
            if self._kernels.setdefault(kernel.name, kernel) is not kernel:
                raise invalid("kernel", kernel.name, "a name that no other registered kernel has")

    def unregister_kernel(self, name: str) -> None:
        """Forgets the kernel; what runs is not disturbed. Raises NotFound."""
        with self._lock:
            self._find(name)
            del self._kernels[name]

    def kernel(self, name: str) -> Kernel:
        """Raises NotFound, listing those there are."""
        with self._lock:
            return self._find(name)

    @property
    def kernel_names(self) -> list[str]:
        """In alphabetical order."""
        with self._lock:
            return sorted(self._kernels)

    def __contains__(self, name: object) -> bool:
        with self._lock:
            return name in self._kernels

    def __repr__(self) -> str:
        return f"<unimem.Orchestrator: {', '.join(self.kernel_names) or 'no kernel yet'}>"

    def execute(
        self, name: str, range: int | tuple[int, ...], *arguments: Any, device: Device | str | None = None, backend: str | None = None
    ) -> KernelExecution:
        """Runs a registered kernel and waits for it; the arguments are those of `launch`. Raises what `launch` and waiting raise,
        NotFound for a name that is not registered or a backend without a device, InvalidArgument if device and backend contradict
        each other."""
        return _Execution(self.kernel(name), device, backend, range, arguments).run()

    async def execute_async(
        self, name: str, range: int | tuple[int, ...], *arguments: Any, device: Device | str | None = None, backend: str | None = None
    ) -> KernelExecution:
        """The same on a thread, without blocking the event loop; `seconds` has what was built, too. Cancelled as `launch_async` is."""
        kernel = self.kernel(name)
        execution = await to_thread(lambda: _Execution(kernel, device, backend, range, arguments).build())
        return await to_thread(execution.run)

    def launch(
        self, name: str, range: int | tuple[int, ...], *arguments: Any, device: Device | str | None = None, backend: str | None = None
    ) -> Event:
        """The same without waiting: what `launch` returns."""
        return _Execution(self.kernel(name), device, backend, range, arguments).begin()

    def _find(self, name: str) -> Kernel:
        found = self._kernels.get(name)
        if found is not None:
            return found
        known = tuple(sorted(self._kernels))
        there = f"; there is {', '.join(known)}" if known else ""
        raise NotFound._of(f"kernel '{name}' not found{there}", "kernel", name, known, "")
