"""Kernels and launches."""

from __future__ import annotations

import copy
import inspect
import os
import re
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import _unimem
from ._arguments import AnyPath, count_of, flag_of, optional_count, path_of, text_of
from ._buffer import UnifiedBuffer
from ._devices import default_device, named
from ._elements import BufferSlice
from ._errors import InvalidArgument, KernelError, invalid
from ._threads import to_thread
from ._unimem import Device, Event

_READ, _WRITE, _READ_WRITE = range(3)
_SCALARS = "?bBhHiIqQfd"

# What the portable source form and both languages call the scalars that a kernel may take.
_TYPES = {
    "unimem_f32": "f4", "float": "f4", "unimem_f64": "f8", "double": "f8", "unimem_i8": "i1", "unimem_i16": "i2", "unimem_i32": "i4",
    "int": "i4", "unimem_i64": "i8", "long": "i8", "unimem_u8": "u1", "unimem_u16": "u2", "unimem_u32": "u4", "uint": "u4",
    "unimem_u64": "u8", "ulong": "u8",
}  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)  # buffers are compared by their elements
class Operand:
    """A buffer, or a part of one, as an argument of a launch, with what the kernel will do with it."""

    window: UnifiedBuffer | BufferSlice
    intent: int
    offset: int = 0
    count: int | None = None


def _operand(buffer: UnifiedBuffer | BufferSlice, intent: int, offset: int, count: int | None) -> Operand:
    if not isinstance(buffer, (UnifiedBuffer, BufferSlice)):
        raise invalid("buffer", type(buffer).__name__, "a UnifiedBuffer or a BufferSlice")
    return Operand(buffer, intent, count_of("offset", offset), None if count is None else count_of("count", count))


def read(buffer: UnifiedBuffer | BufferSlice, offset: int = 0, count: int | None = None) -> Operand:
    """The kernel looks at `count` elements from `offset` on (all by default)."""
    return _operand(buffer, _READ, offset, count)


def write(buffer: UnifiedBuffer | BufferSlice, offset: int = 0, count: int | None = None) -> Operand:
    """The kernel overwrites every one of them, so nothing is brought in."""
    return _operand(buffer, _WRITE, offset, count)


def readwrite(buffer: UnifiedBuffer | BufferSlice, offset: int = 0, count: int | None = None) -> Operand:
    """The kernel looks at them and may change some."""
    return _operand(buffer, _READ_WRITE, offset, count)


def _parameters(source: str, name: str, defines: Mapping[str, str]) -> list[str] | None:
    """The dtype of each scalar parameter of the entry point, "" for buffers and what is not known; None without a portable form, and where
    the text has several, of which a comment or the preprocessor hides all but one: the compiler knows then."""
    entries = list(re.finditer(rf"UNIMEM_KERNEL\s+{re.escape(name)}\s*\(", source))
    if len(entries) != 1:
        return None
    begin = entries[0]
    depth, last, parts = 0, begin.end(), []
    for at in range(begin.end(), len(source)):
        character = source[at]
        if character == "(":
            depth += 1
        elif character == ")" and depth:
            depth -= 1
        elif character in ",)" and not depth:
            parts.append(source[last:at])
            last = at + 1
            if character == ")":
                break
    words = [re.sub(r"\bconst\b", "", part).split() for part in parts]
    types = [" ".join(one[:-1]) for one in words]
    return [_TYPES.get(defines.get(one, one), "") for one in types]


def _by_turns(name: str, given: Mapping[str, str]) -> list[str]:
    """Names and values, as C++ takes them."""
    if not isinstance(given, Mapping):
        raise invalid(name, type(given).__name__, "texts by name")
    return [text_of(name, one) for item in given.items() for one in item]


def _constant_type(name: str, value: object) -> str:
    """Its letter in the struct module."""
    if isinstance(value, (bool, np.bool_)):
        return "?"
    if isinstance(value, np.integer):
        size = value.dtype.itemsize
        return ("qQ" if size > 4 else "iI")[value.dtype.kind == "u" and size >= 4]  # smaller ones are `int` in what is computed
    if isinstance(value, int):
        for letter, (least, most) in {"i": (-(1 << 31), 1 << 31), "q": (-(1 << 63), 1 << 63), "Q": (0, 1 << 64)}.items():
            if least <= value < most:
                return letter
        raise invalid(name, value, "an integer of 64 bits")
    if isinstance(value, (float, np.float32)):
        return "f" if isinstance(value, np.float32) else "d"
    raise invalid(name, type(value).__name__, "a boolean, an integer, or a float of 32 or 64 bits")


def _arity(function: Callable[..., object]) -> tuple[int, float] | None:
    """How many arguments a function takes, at least and at most; None where it does not say."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return None
    positional = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    most = float("inf") if any(one.kind is one.VAR_POSITIONAL for one in parameters) else len(positional)
    return sum(one.default is one.empty for one in positional), most


class Kernel:
    """A kernel in up to two forms: source, for devices that compile (docs/kernels.md), and a Python function, for those that run
    code of the host's (cpu and sim).

        scale = Kernel("scale").source('''
            UNIMEM_KERNEL scale(UNIMEM_BUFFER(float, x), float a) { UNIMEM_DATA(float, x)[UNIMEM_ITEM_X] *= a; }
        ''').host(lambda x, a: np.multiply(x, a, out=x))

    The function is called once for a launch, on a thread of the library's or one that waits for it, with a NumPy array for each
    buffer, read-only for what is read, and each scalar as it was given. The arrays are the device's memory and last as long as the
    call: copy what is to be kept. An array that is kept all the same makes the launch a KernelError, and keeps its memory, as long as
    the buffer was not freed or released to its pool while the function ran. Set both forms before the first launch; launching is
    thread-safe.
    """

    __slots__ = ("_counts", "_function", "_group", "_native", "_parameters", "name")

    def __init__(self, name: str) -> None:
        self.name = text_of("name", name)
        self._native: _unimem._Kernel | None = None
        self._parameters: list[str] | None = None
        self._function: Callable[..., object] | None = None
        self._counts: tuple[int, float] | None = None
        self._group: tuple[int, ...] | None = None

    def group(self, group: int | tuple[int, ...]) -> Kernel:
        """Sets in groups of how many items it is launched where the launch says nothing else; returns the kernel."""
        self._group = tuple(_group(group))
        if self._native is not None:
            self._native._group(*self._group)
        return self

    def source(
        self,
        text: str,
        *,
        name: str = "source",
        defines: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        folders: Iterable[AnyPath] | None = None,
        fast_math: bool = False,
    ) -> Kernel:
        """Sets the source form; returns the kernel.

        `defines` are macros that are defined before the text, `headers` texts by the names that ``#include`` has for them, `folders` where else
        it looks, in this order; what is included is read now, and not later. `fast_math` trades exact rounding, infinities and NaN for speed;
        the source sees UNIMEM_FAST_MATH defined. `name` is what compilers' logs call the text then. Without any of these the text is compiled
        as it stands. Raises InvalidArgument naming the macro, the header or the folder that cannot be; an ``#include`` of what there is not
        is the compiler's KernelError, where the kernel is built."""
        text = text_of("text", text)
        native = _unimem._Kernel(self.name)
        fast_math = flag_of("fast_math", fast_math)
        if fast_math or name != "source" or any(one is not None for one in (defines, headers, folders)):
            lists = _by_turns("defines", defines or {}), _by_turns("headers", headers or {})
            if isinstance(folders, (str, bytes, os.PathLike)):
                raise invalid("folders", folders, "a list of folders")
            paths = [path_of("folders", folder) for folder in folders or ()]
            text = native._source_with(text, text_of("name", name), *lists, paths, fast_math).decode(errors="replace")
        else:
            native._source(text)
        if self._group is not None:
            native._group(*self._group)
        self._native = native
        self._parameters = _parameters(text, self.name, defines or {})
        return self

    def specialize(self, **constants: bool | int | float | np.generic) -> Kernel:
        """The same kernel with constants: macros that its source has by these names, in the place of `defines`: ``kernel.specialize(TILE=16)``.

        Of the type that a NumPy scalar says; a Python integer is one of 32 bits where it fits and of 64 else, a float a `double`. A macro that the
        source defines by itself it defines where it is not (``#ifndef``). The Python function stays as it is. The 64 used last are kept, each with
        what was built of it. Raises InvalidArgument for a name that the source does not have."""
        types, values = [], []
        for name, value in constants.items():
            types.append(_constant_type(name, value))
            values.append(value.item() if isinstance(value, np.generic) else value)
        result = copy.copy(self)
        if self._native is not None:
            result._native = self._native._specialize(list(constants), "".join(types), values)
        return result

    def host(self, function: Callable[..., object]) -> Kernel:
        """Sets the Python function; returns the kernel."""
        if not callable(function):
            raise invalid("function", repr(function), "callable")
        self._function = function
        self._counts = _arity(function)
        return self

    def build(self, device: Device | str | None = None) -> Kernel:
        """Makes the kernel ready for a device, by default `default_device()`, so that no launch there has to compile it, which may take a
        second; returns the kernel. A Python function needs no building. Raises what a launch would: KernelError for a kernel that lacks
        the form that the device needs or does not build (`build_log`), NotFound for an id that no device has. Thread-safe."""
        target = named(device) or default_device()
        if not self._runs_function_on(target):
            self._source_for(target)._build(target)
        return self

    async def build_async(self, device: Device | str | None = None) -> Kernel:
        """The same on a thread, without blocking the event loop. Cancelled, it is built all the same, for the next to need it."""
        target = named(device) or default_device()
        if not self._runs_function_on(target) and not self._source_for(target)._is_built(target):
            await to_thread(self.build, target)
        return self

    def _runs_function_on(self, device: Device) -> bool:
        return self._function is not None and device._runs_host_form

    def _check_count(self, count: int) -> None:
        """That the Python function takes so many arguments: what it refused itself, it would refuse after its operands were brought in."""
        if self._counts is None or self._counts[0] <= count <= self._counts[1]:
            return
        least, most = self._counts
        takes = f"{least}" if least == most else f"at least {least}" if most == float("inf") else f"{least} to {most}"
        reason = f"launched with {count} arguments, takes {takes}"
        raise KernelError._of(f"kernel '{self.name}': {reason}", self.name, reason, "")

    def _source_for(self, device: Device) -> _unimem._Kernel:
        if self._native is None:
            form = "source form" if device._info()["compiles_source"] else "host form"
            reason = f"it has no {form}, and {device.id} runs no other"
            raise KernelError._of(f"kernel '{self.name}': {reason}", self.name, reason, "")
        return self._native

    @property
    def has_source(self) -> bool:
        """Whether it runs on devices that compile."""
        return self._native is not None

    @property
    def has_host(self) -> bool:
        """Whether it runs on devices that run code of the host's."""
        return self._function is not None

    def __repr__(self) -> str:
        forms = [word for word, there in (("source", self.has_source), ("host", self.has_host)) if there]
        return f"<unimem.Kernel {self.name!r}: {' and '.join(forms) or 'no form yet'}>"


# What most scalars are: Python's own numbers, for which NumPy would take longer than the launch.
_PACKING = {
    name: struct.Struct(code)
    for name, code in zip(["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8"], "bBhHiIqQfd", strict=True)
}  # fmt: skip

# struct.pack makes infinity of what is beyond it.
_MOST_OF_F4 = float(np.finfo(np.float32).max)


def _no_argument(value: Any, position: int, number: str) -> InvalidArgument:
    """The error of what a launch does not take: by its position, from 1 on."""
    accepted = f"read(b), write(b) or readwrite(b) of a UnifiedBuffer or BufferSlice b, or {number}"
    if isinstance(value, np.ndarray):
        accepted += "; memory of an array's goes there by way of UnifiedBuffer.from_array(a)"
    return invalid(f"argument {position + 1}", type(value).__name__, accepted)


def _scalar(value: Any, position: int, parameters: list[str] | None) -> tuple[bytes, str, Any]:
    """A scalar's bytes: of the type the kernel's text names; else NumPy scalars say it themselves, and Python's numbers are 64 bits
    wide."""
    wanted = parameters[position] if parameters is not None and position < len(parameters) else ""
    if not isinstance(value, (bool, int, float, np.bool_, np.integer, np.floating)):
        raise _no_argument(value, position, "a boolean, an integer or a float")
    if not wanted:
        if not isinstance(value, np.generic) and isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
            raise invalid(f"argument {position + 1}", value, "an integer of 64 bits")
        wanted = value.dtype.str[1:] if isinstance(value, np.generic) else "f8" if isinstance(value, float) else "i8" if value < 1 << 63 else "u8"
    packing = _PACKING.get(wanted)
    if packing is not None and type(value) is (float if wanted[0] == "f" else int) and (wanted != "f4" or abs(value) <= _MOST_OF_F4):
        try:
            return packing.pack(value), packing.format, value
        except (OverflowError, struct.error):
            pass  # said below
    dtype = np.dtype(wanted)
    if isinstance(value, (float, np.floating)) and dtype.kind != "f":
        raise invalid(f"argument {position + 1}", repr(value), f"of the kernel's {dtype}")
    plain = value if isinstance(value, (bool, int, float)) else value.item()
    try:
        with np.errstate(over="raise"):  # a number that is finite does not become infinite
            scalar = np.array(plain, dtype=dtype)
    except (OverflowError, FloatingPointError):
        most = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
        raise invalid(f"argument {position + 1}", value, f"within the kernel's {dtype}, {most.min} to {most.max}") from None
    if dtype.kind == "f" and isinstance(plain, int) and int(scalar) != plain:
        raise invalid(f"argument {position + 1}", value, f"an integer that the kernel's {dtype} has, or a float, which may be rounded")
    code = dtype.char.replace("l", "q").replace("L", "Q")
    if code not in _SCALARS:
        raise invalid(f"argument {position + 1}", dtype, "a boolean, an integer, or a float of 32 or 64 bits")
    return scalar.tobytes(), code, value


def _extents(name: str, given: int | tuple[int, ...]) -> list[int]:
    extents = [given] if not isinstance(given, (tuple, list)) else list(given)
    if not 1 <= len(extents) <= 3:
        raise invalid(name, given, "one to three numbers of items")
    return [count_of(name, extent) for extent in extents] + [1] * (3 - len(extents))


def _group(group: int | tuple[int, ...]) -> list[int]:
    extents = _extents("group", group)
    if 0 in extents:
        raise invalid("group", " × ".join(map(str, extents)), "at least 1 in each dimension")
    return extents


def _range(range: int | tuple[int, ...], group: int | tuple[int, ...] | None) -> list[int]:
    """Three numbers of items, and three of a group's: 0 where none is given."""
    extents = _extents("range", range)
    if group is None:
        return extents + [0, 0, 0]
    each = _group(group)
    if any(items % one for items, one in zip(extents, each, strict=True)):
        raise invalid("range", " × ".join(map(str, extents)), "whole groups of " + " × ".join(map(str, each)))
    return extents + each


def launch(
    kernel: Kernel,
    range: int | tuple[int, ...],
    *arguments: Any,
    device: Device | str | None = None,
    group: int | tuple[int, ...] | None = None,
) -> Event:
    """Runs a kernel over `range` items, asynchronously: ``launch(kernel, n, read(a), write(b), 2.0)``.

    In groups of `group` items, for a kernel that asks for its group; by default of what `Kernel.group` says. The range must be whole groups. A
    Python function has no groups: it is called once, for all items.

    On `device`, or the default device of the first buffer; without buffers, on `default_device()`. Brings in what is read and lacking, nothing
    else; what is written is then current on that device alone. Later accesses wait for it by themselves. Arguments are buffers said to be read or
    written, and numbers: anything else, a bare buffer or an array too, is InvalidArgument naming its position and type. Raises KernelError for a
    kernel that lacks the form the device needs, does not build, or takes other arguments; nothing was written then. An error of the kernel itself
    comes out of the event, and out of the next access to a buffer it wrote, which then holds its last good copy again.
    """
    if not isinstance(kernel, Kernel):
        raise invalid("kernel", type(kernel).__name__, "a Kernel")
    target = _target(device, arguments)
    by_function = kernel._runs_function_on(target)
    extents = _range(range, kernel._group if group is None else group)
    given = _given(kernel, arguments, by_function)
    if by_function:
        return _unimem._launch_python(kernel.name, kernel._function, target, given)
    return _unimem._launch_source(kernel._source_for(target), target, extents, given)


def _target(device: Device | str | None, arguments: tuple[Any, ...]) -> Device:
    """Where a launch goes."""
    on = named(device)
    if on is not None:
        return on
    first = next((one.window for one in arguments if isinstance(one, Operand)), None)
    return first.default_device if first is not None else default_device()


async def launch_async(
    kernel: Kernel,
    range: int | tuple[int, ...],
    *arguments: Any,
    device: Device | str | None = None,
    group: int | tuple[int, ...] | None = None,
) -> Event:
    """`launch`, and waits until the kernel has ended, on a thread, so that the event loop goes on: also while the kernel is compiled, if it has
    not been built for the device, and while the launch waits for room there. Gives the event, which has ended, or raises what the launch, the
    build or the kernel raises.

        await launch_async(kernel, n, read(a), write(b), 2.0)

    Like any coroutine it begins when it is awaited or made a task. Of several tasks none comes before the other: await the one before
    what needs its results begins. Cancelled before the kernel is built, it launches nothing; a launch that has begun goes on.
    """
    if not isinstance(kernel, Kernel):
        raise invalid("kernel", type(kernel).__name__, "a Kernel")
    target = _target(device, arguments)
    _range(range, kernel._group if group is None else group)
    _given(kernel, arguments, kernel._runs_function_on(target))  # what is wrong with them is told before a compiler is waited for
    await kernel.build_async(target)
    return await to_thread(_run, kernel, range, arguments, target, group)


def _run(
    kernel: Kernel, range: int | tuple[int, ...], arguments: tuple[Any, ...], device: Device, group: int | tuple[int, ...] | None
) -> Event:
    event = launch(kernel, range, *arguments, device=device, group=group)
    event.wait()
    return event


def _time_launches(kernel: Kernel, range: int | tuple[int, ...], count: int, *arguments: Any) -> float:
    """Seconds that `count` launches of the source form take when C++ makes them: for benchmarks/bench_python.py."""
    assert kernel._native is not None
    return _unimem._time_launches(kernel._native, _range(range, kernel._group), _given(kernel, arguments, False), count)


def _given(kernel: Kernel, arguments: tuple[Any, ...], by_function: bool) -> list[tuple[Any, ...]]:
    """The arguments of a launch as C++ takes them, checked."""
    given: list[tuple[Any, ...]] = []
    if by_function:
        kernel._check_count(len(arguments))
    for position, one in enumerate(arguments):
        if isinstance(one, Operand):
            whole = one.offset == 0 and one.count is None
            count = one.window.size - one.offset if one.count is None else one.count
            if one.offset > one.window.size or count > one.window.size - one.offset:
                raise invalid(f"argument {position + 1}", f"[{one.offset}, {one.offset + count})", f"within {one.window.size} elements")
            if not by_function and not one.window.dtype.isnative:
                raise invalid(f"argument {position + 1}", one.window.dtype, "of the machine's byte order, or bytes: buffer.view('u1')")
            shape = list(one.window.shape) if whole else [count]
            given.append((one.window, one.intent, one.offset, optional_count("count", one.count), shape))
        elif by_function:
            if not isinstance(one, (bool, int, float, complex, np.bool_, np.number)):
                raise _no_argument(one, position, "a number")
            given.append((b"", "V", one))
        else:
            given.append(_scalar(one, position, kernel._parameters))
    return given
