"""Rectangular parts of buffers with several dimensions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from . import _unimem
from ._arguments import count_of, elements_of
from ._errors import invalid, size_mismatch
from ._pickles import lies_in_a_buffer

if TYPE_CHECKING:
    from ._elements import Elements


class BufferBlock:
    """A rectangular part of a buffer: ``image.block((16, 32), (64, 64))``. It shares the buffer's memory and coherence, and is copied out of, into, and to
    blocks of other buffers row by row: nothing between its rows moves, or counts as written."""

    __slots__ = ("_begin", "_count", "_of")

    def __init__(self, of: Elements, begin: Iterable[SupportsIndex], count: Iterable[SupportsIndex]) -> None:
        self._of = of
        self._begin = [count_of("begin", one) for one in begin]
        self._count = [count_of("count", one) for one in count]
        if len(self._begin) != of.ndim or len(self._count) != of.ndim:
            raise invalid("block", f"{tuple(self._begin)}, {tuple(self._count)}", f"a begin and a count for each of {of.ndim} dimensions")
        for dimension, (first, number, extent) in enumerate(zip(self._begin, self._count, of.shape, strict=True)):
            if first > extent or number > extent - first:
                raise invalid("block", f"[{first}, {first + number})", f"within {extent} of dimension {dimension}")

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents, outermost first."""
        return tuple(self._count)

    @property
    def size(self) -> int:
        """The number of elements."""
        return int(np.prod(self._count, dtype=object))

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numpy.dtype of an element."""
        return self._of.dtype

    def to_numpy(self) -> np.ndarray:
        """A copy of the current contents. Brings the rows of the block to the host, and nothing else."""
        result = np.empty(self._count, self.dtype)
        _unimem._read_block(self._of, result, self._begin, self._count)
        return result

    def copy_from(self, data: npt.ArrayLike) -> None:
        """Replaces the contents on the host with data of exactly this shape, as `copy_from` of a buffer does."""
        array = elements_of(data, self.dtype, "data", self.shape, self.size)
        _unimem._write_block(self._of, array.copy() if lies_in_a_buffer(array) else array, self._begin, self._count)

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError("the rows of a block are not one piece of memory: an array of it needs a copy, and copy=False forbids it")
        return self.to_numpy() if dtype is None else self.to_numpy().astype(dtype, copy=False)

    def __repr__(self) -> str:
        return f"BufferBlock(begin={tuple(self._begin)}, shape={self.shape}, of {self._of!r})"


def copy_blocks(source: Any, target: Any) -> None:
    """Along the nearest path: on the device if the source is current there alone, all rows as one piece of work."""
    for name, one in (("source", source), ("target", target)):
        if not isinstance(one, BufferBlock):
            raise invalid(name, type(one).__name__, "a block, as the other one is")
    if source.dtype != target.dtype:
        raise invalid("target", f"block of {target.dtype}", f"of {source.dtype}, as the source")
    if source.shape != target.shape:
        if source.size != target.size:
            raise size_mismatch("copy", target.size, source.size)
        raise invalid("target", f"block of shape {target.shape}", f"of shape {source.shape}, as the source")
    _unimem._copy_block(source._of, source._begin, target._of, target._begin, source._count)
