"""The errors of the library, each with its data as attributes.

Every one is an ``unimem.Error`` and, where Python has a class for what happened, that too: ``OutOfMemory`` is a
``MemoryError``, ``InvalidArgument`` and ``SizeMismatch`` are ``ValueError``, ``NotFound`` is a ``KeyError``, ``IoError`` an
``OSError``. The message is made from the attributes and names the offending value and the limit.
"""

from __future__ import annotations

from inspect import Parameter, Signature
from typing import Any, ClassVar, NamedTuple


class Write(NamedTuple):
    """One of the two writes of a ``CoherenceConflict``: bytes ``[begin, end)`` on "host" or a device."""

    place: str
    begin: int
    end: int


class Holder(NamedTuple):
    """One of the largest holders of live memory, by the name given at allocation ("" for unnamed)."""

    name: str
    nbytes: int
    blocks: int


def _rebuild(cls: type[Error], message: str, fields: tuple[Any, ...]) -> Error:
    return cls._of(message, *fields)


class Error(Exception):
    """What every error of the library can be caught as."""

    _fields: ClassVar[tuple[str, ...]] = ()
    __signature__ = Signature([Parameter("message", Parameter.POSITIONAL_ONLY, default="", annotation="str")])

    @classmethod
    def _of(cls, message: str, *fields: Any) -> Error:
        error = cls(message)
        for name, value in zip(cls._fields, fields, strict=True):
            setattr(error, name, value)
        return error

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""

    def __reduce__(self) -> tuple[Any, ...]:
        # Without it, attributes would be lost on the way to another process.
        try:
            fields = tuple(getattr(self, name) for name in self._fields)
        except AttributeError:  # raised by hand, with a message alone
            return (type(self), self.args)
        return (_rebuild, (type(self), str(self), fields))


class InvalidArgument(Error, ValueError):
    """An argument is outside what the call accepts. Nothing was changed."""

    _fields = ("argument", "value", "requirement")
    argument: str
    value: str
    requirement: str


class SizeMismatch(Error, ValueError):
    """A copy was given another number of elements than it asked for. Nothing was changed and nothing allocated."""

    _fields = ("expected", "actual")
    expected: int
    actual: int


class BufferNotAllocated(Error, RuntimeError):
    """The operation needs storage, and the buffer has none anywhere (or is strict and was not allocated)."""

    _fields = ("buffer", "operation")
    buffer: str
    operation: str


class CoherenceConflict(Error, RuntimeError):
    """Two unsynchronized writes overlap on two sides, and neither covers all of the other side's."""

    _fields = ("buffer", "earlier", "later")
    buffer: str
    earlier: Write
    later: Write

    @classmethod
    def _of(cls, message: str, *fields: Any) -> Error:
        buffer, earlier, later = fields
        return super()._of(message, buffer, Write(*earlier), Write(*later))


class OutOfMemory(Error, MemoryError):
    """Memory could not be had: a limit was reached, or the driver said so. Sizes in bytes."""

    _fields = (
        "where", "requested", "limit", "live", "cached", "leased", "largest_free", "fragmentation", "device_free",
        "held_elsewhere", "holders", "reason",
    )  # fmt: skip
    where: str
    requested: int
    limit: int
    live: int
    cached: int
    leased: int
    largest_free: int
    fragmentation: float
    device_free: int
    held_elsewhere: int
    holders: tuple[Holder, ...]
    reason: str

    @classmethod
    def _of(cls, message: str, *fields: Any) -> Error:
        *first, holders, reason = fields
        return super()._of(message, *first, tuple(Holder(*one) for one in holders), reason)


class DataLost(Error, RuntimeError):
    """Bytes ``[begin, end)`` were valid only on a device that failed or was lost. They never read as garbage."""

    _fields = ("buffer", "begin", "end", "cause")
    buffer: str
    begin: int
    end: int
    cause: str


class DeviceError(Error, RuntimeError):
    """A driver call failed."""

    _fields = ("backend", "call", "code", "code_name")
    backend: str
    call: str
    code: int
    code_name: str


class KernelError(Error, RuntimeError):
    """A kernel cannot be built or run where it was asked to."""

    _fields = ("name", "reason", "build_log")
    name: str
    reason: str
    build_log: str


class IoError(Error, OSError):
    """A file could not be opened, read, written or understood; ``code`` is an errno value, or 0."""

    _fields: ClassVar[tuple[str, ...]] = ("path", "code")
    path: str
    code: int

    @classmethod
    def _of(cls, message: str, *fields: Any) -> Error:
        error = super()._of(message, *fields)
        assert isinstance(error, IoError)
        error.filename, error.errno = fields[0], fields[1] or None
        return error


class ChecksumMismatch(IoError):
    """Files are not what a manifest says of them. ``chunks``: of each that differs (path, index in chunks of the manifest's size or
    None for a header, offset in the data, bytes, the checksum expected, the one found)."""

    _fields = ("path", "code", "chunks")
    chunks: tuple[tuple[str, int | None, int, int, str, str], ...]


class UnsupportedOperation(Error, RuntimeError):
    """The platform or backend cannot do this at all."""

    _fields = ("operation", "where", "reason")
    operation: str
    where: str
    reason: str


class NotFound(Error, KeyError):
    """A name or id that nothing answers to. ``available`` lists what there is."""

    _fields = ("kind", "name", "available", "reason")
    kind: str
    name: str
    available: tuple[str, ...]
    reason: str


class StreamCancelled(Error, RuntimeError):
    """The stream was asked to stop and did. Nothing was left behind."""

    _fields = ("path", "bytes_done", "bytes_total")
    path: str
    bytes_done: int
    bytes_total: int


def invalid(argument: str, value: object, requirement: str) -> InvalidArgument:
    """The error of an argument that this layer refuses, in the words of the C++ library."""
    text = str(value)
    error = InvalidArgument._of(f"invalid {argument} '{text}': must be {requirement}", argument, text, requirement)
    assert isinstance(error, InvalidArgument)
    return error


def size_mismatch(what: str, expected: int, actual: int, unit: str = "elements") -> SizeMismatch:
    error = SizeMismatch._of(f"{what}: expected {expected} {unit}, got {actual}", expected, actual)
    assert isinstance(error, SizeMismatch)
    return error


def unsupported(operation: str, where: str, reason: str) -> UnsupportedOperation:
    error = UnsupportedOperation._of(f"{operation} is not supported on {where}: {reason}", operation, where, reason)
    assert isinstance(error, UnsupportedOperation)
    return error
