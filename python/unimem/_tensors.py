"""Arrays of files, by their names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from threading import Lock
from types import MappingProxyType
from typing import Any

import numpy as np

from . import _unimem
from ._arguments import AnyPath, file_mode_of, path_of, shape_of
from ._buffer import UnifiedBuffer
from ._devices import chosen
from ._errors import NotFound, UnsupportedOperation
from ._manager import MemoryManager, native
from ._records import Record
from ._unimem import Device

_MOST_SHOWN = 16


@dataclass(frozen=True, slots=True)
class TensorInfo(Record):
    """What an array of a file is, and where: its first byte is the file's `offset`. `dtype` is NumPy's name, or that of ml_dtypes."""

    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    offset: int


def _dtype_named(name: str, tensor: str, path: str) -> np.dtype[Any]:
    """NumPy's own, or that of ml_dtypes, which is imported when it is first needed."""
    try:
        return np.dtype(name)
    except TypeError:
        pass
    try:
        import ml_dtypes  # type: ignore[import-not-found,import-untyped,unused-ignore]

        found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return found
    except (ImportError, AttributeError):
        operation, where = f"opening tensor {tensor!r}", f"NumPy {np.__version__} without ml_dtypes"
        reason = f"it is of {name}, which '{path}' has and NumPy has not: install ml_dtypes (pip install ml_dtypes), in a version that has {name}"
        raise UnsupportedOperation._of(
            f"{operation} is not supported on {where}: {reason}", operation, where, reason
        ) from None  # fmt: skip


class Tensors(Mapping[str, UnifiedBuffer]):
    """The arrays of a file by their names, as `open_tensors` gives them: immutable, and each a buffer that is made when it is first looked
    up, and is the same from then on. It lives as long as this, so drop the mapping, or `free()` a buffer, to have its memory back. `len`,
    `in` and iteration make no buffers. Thread-safe."""

    __slots__ = ("_how", "_lock", "_made", "_numbers", "_path", "_table")

    def __init__(self, path: str, mode: int, device: Device | None, manager: Any) -> None:
        self._path = path
        self._how = (mode, manager, device)
        self._table = _unimem._open_tensors(path)
        self._numbers = {name: number for number, name in enumerate(self._table.names())}
        self._made: dict[str, UnifiedBuffer] = {}
        self._lock = Lock()

    @property
    def path(self) -> str:
        """Of the file, as it was given."""
        return self._path

    @property
    def metadata(self) -> Mapping[str, str]:
        """The text that a ``.safetensors`` keeps beside its arrays; empty for other files."""
        return MappingProxyType(self._table.metadata())

    def info(self, name: str) -> TensorInfo:
        """What an array is, without a buffer. Raises NotFound, which is a KeyError; IoError for an array that cannot be opened."""
        return TensorInfo(*self._table.info(self._number_of(name)))

    def _number_of(self, name: object) -> int:
        number = self._numbers.get(name) if isinstance(name, str) else None
        if number is not None:
            return number
        available = tuple(list(self._numbers)[:_MOST_SHOWN])
        more = len(self._numbers) - len(available)
        reason = f"and {more} more in {self._path}" if more else f"in {self._path}"
        said = ", ".join(map(repr, available)) or "none"
        raise NotFound._of(f"no tensor {name!r}: there are {said}; {reason}", "tensor", str(name), available, reason)

    def __getitem__(self, name: str) -> UnifiedBuffer:
        """The buffer over an array, of its shape, dtype and name. Raises NotFound, which is a KeyError; UnsupportedOperation for a dtype that
        needs ml_dtypes where that is not installed; IoError for an array of a ``.npz`` that is no plain numbers, in
        Fortran order or big-endian, and if the file was changed so that the array is not what and where it was."""
        number = self._number_of(name)
        with self._lock:
            made = self._made.get(name)
            if made is None:
                dtype, shape, _, _ = self._table.info(number)
                shape_of(shape)  # what NumPy counts in fewer bits than the file does
                mode, manager, device = self._how
                made = UnifiedBuffer.__new__(UnifiedBuffer)
                _unimem.Window.__init__(made, self._table, number, _dtype_named(dtype, name, self._path), mode, manager, device)
                self._made[name] = made
            return made

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._numbers

    # By identity: the arrays need not be read for it.
    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __reduce__(self) -> Any:
        raise TypeError("the arrays of an open file are neither copied nor pickled: open the file again, or pickle a buffer")

    def __repr__(self) -> str:
        names = list(self._numbers)
        shown = ", ".join(map(repr, names[:_MOST_SHOWN])) + (", …" if len(names) > _MOST_SHOWN else "")
        return f"Tensors({self._path!r}: {shown})" if names else f"Tensors({self._path!r}: none)"


def open_tensors(
    path: AnyPath, mode: str = "r", *, device: Device | str | None = None, manager: MemoryManager | None = None
) -> Tensors:
    """The arrays of a ``.npy``, ``.npz`` (uncompressed, as `numpy.savez` writes it) or ``.safetensors`` file by their names, each a lazy buffer of
    its shape and dtype: nothing of an array is read before it is looked at.

        weights = unimem.open_tensors("model.safetensors")
        scale = weights["layer.0.scale"].host[:10]      # reads 10 elements

    `mode`, `device` and `manager` are those of `UnifiedBuffer.from_file`. The file stays open, and what has its name by then is not read. Raises
    IoError for a file that is missing, malformed, compressed or encrypted, a ``.npy`` in Fortran order or of no plain numbers, and a
    ``.safetensors`` with dtypes of less than a byte; such an array of a ``.npz`` is listed, and IoError when it is looked up. InvalidArgument for
    another extension. Mode "r+" of a ``.npz`` is UnsupportedOperation when an array is looked up: its checksums would no longer be right."""
    return Tensors(path_of("path", path), file_mode_of(mode), chosen(device), native(manager))
