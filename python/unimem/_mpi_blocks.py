"""Which rank has which elements of a distributed array, and sets of ranges of them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from ._errors import DeviceError


class IndexRange(NamedTuple):
    """Elements of a distributed array, ``[begin, end)``, counted from the array's first."""

    begin: int
    end: int

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.end - self.begin

    def contains(self, other: IndexRange) -> bool:
        """Whether all of the other are in this."""
        return self.begin <= other.begin and other.end <= self.end

    def common(self, other: IndexRange) -> IndexRange:
        """What is in both; empty where nothing is."""
        first = max(self.begin, other.begin)
        return IndexRange(first, max(first, min(self.end, other.end)))


class BlockDistribution:
    """Blocks in the order of the ranks, of which the first ones have one element more where they do not come out even; and how far each sees beyond its
    own. Every rank computes the same."""

    __slots__ = ("count", "halo", "ranks")

    def __init__(self, count: int, ranks: int, halo: int) -> None:
        self.count, self.ranks, self.halo = count, ranks, halo

    def own(self, rank: int) -> IndexRange:
        each, more = divmod(self.count, self.ranks)
        return IndexRange(rank * each + min(rank, more), (rank + 1) * each + min(rank + 1, more))

    def reach(self, rank: int) -> IndexRange:
        """What a rank may read. One without elements has no sides."""
        mine = self.own(rank)
        if not mine.size:
            return mine
        return IndexRange(max(mine.begin - self.halo, 0), min(mine.end + self.halo, self.count))

    def edges(self, rank: int) -> tuple[IndexRange, IndexRange]:
        """Of a rank's own elements, the first ones that ranks before it may read, and the last ones that ranks behind it may. Where the two meet, the
        first are all of them."""
        mine = self.own(rank)
        most = min(self.halo, mine.size)
        first = IndexRange(mine.begin, mine.begin + (most if mine.begin else 0))
        last = IndexRange(mine.end - (most if mine.end < self.count else 0), mine.end)
        if first.size and last.size and first.end >= last.begin:
            return mine, IndexRange(mine.end, mine.end)
        return first, last

    def offset_in_edges(self, rank: int, element: int) -> int:
        """Where an element of them is in memory that holds the first ones, and then the last ones."""
        first, last = self.edges(rank)
        return element - first.begin if element < first.end else first.size + element - last.begin


class Ranges:
    """A set of elements, as ascending ranges that neither meet nor are empty."""

    __slots__ = ("_begins", "_ranges")

    def __init__(self, ranges: Iterable[IndexRange] = ()) -> None:
        self._set(ranges)

    def _set(self, ranges: Iterable[IndexRange]) -> None:
        joined: list[IndexRange] = []
        for one in sorted(ranges):
            if not one.size:
                continue
            if joined and one.begin <= joined[-1].end:
                joined[-1] = IndexRange(joined[-1].begin, max(joined[-1].end, one.end))
            else:
                joined.append(one)
        self._ranges = joined
        self._begins = [one.begin for one in joined]

    def contains(self, other: IndexRange) -> bool:
        at = bisect_right(self._begins, other.begin) - 1
        return not other.size or (at >= 0 and other.end <= self._ranges[at].end)

    def within(self, window: IndexRange) -> list[IndexRange]:
        """What of it is in the window."""
        found = []
        for one in self._ranges[max(bisect_right(self._begins, window.begin) - 1, 0) :]:
            if one.begin >= window.end:
                break
            part = one.common(window)
            if part.size:
                found.append(part)
        return found

    def missing(self, window: IndexRange) -> list[IndexRange]:
        """What of the window is not in it."""
        gaps, last = [], window.begin
        for one in self.within(window):
            gaps.append(IndexRange(last, one.begin))
            last = one.end
        gaps.append(IndexRange(last, window.end))
        return [one for one in gaps if one.size]

    def add(self, others: Iterable[IndexRange]) -> None:
        self._set([*self._ranges, *others])

    def remove(self, others: Iterable[IndexRange]) -> None:
        without = Ranges(others)
        self._set([left for one in self._ranges for left in without.missing(one)])


def changed(now: np.ndarray, before: np.ndarray, itemsize: int) -> list[IndexRange]:
    """The elements, by their numbers, in which two memories of bytes differ."""
    if itemsize in (2, 4, 8):
        differs = now.view(f"u{itemsize}") != before.view(f"u{itemsize}")
    else:
        differs = (now != before).reshape(-1, itemsize).any(axis=1)
    ends = np.flatnonzero(np.diff(differs, prepend=False, append=False)).tolist()
    return [IndexRange(*pair) for pair in zip(ends[::2], ends[1::2], strict=True)]


def joined(ranges: Iterable[IndexRange], most: int) -> list[IndexRange]:
    """The ranges with those joined between which fewer than `most` elements lie: what they cost is compared with what one more message costs, gap
    by gap, which is the least that all can cost together."""
    result: list[IndexRange] = []
    for one in ranges:
        if result and one.begin - result[-1].end < most:
            result[-1] = IndexRange(result[-1].begin, one.end)
        else:
            result.append(one)
    return result


def encode(ranges: Iterable[IndexRange], base: int) -> bytes:
    """Ranges as bytes of a message: for each the distance from the one before and its length, seven bits a byte. As C++ writes them."""
    message, last = bytearray(), base
    for one in ranges:
        for number in (one.begin - last, one.size):
            while number >= 0x80:
                message.append((number & 0x7F) | 0x80)
                number >>= 7
            message.append(number)
        last = one.end
    return bytes(message)


def decode(message: bytes, window: IndexRange) -> list[IndexRange]:
    """The ranges again. DeviceError for what no `encode` has made of ranges in the window."""
    numbers, number, shift = [], 0, 0
    for byte in message:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            numbers.append(number)
            number = shift = 0
    ranges, last = [], window.begin
    for gap, length in zip(numbers[::2], numbers[1::2]):
        ranges.append(IndexRange(last + gap, last + gap + length))
        last = ranges[-1].end
    if shift or len(numbers) % 2 or last > window.end:
        text = "it is not whole, or lies beyond the array"
        raise DeviceError._of(f"mpi: reading a list of changes failed with {text} (0)", "mpi", "reading a list of changes", 0, text)
    return ranges
