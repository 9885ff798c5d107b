"""Two buffers by turns."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from . import _unimem
from ._buffer import UnifiedBuffer


class DoubleBuffer:
    """Two buffers by turns: while a consumer reads the one, a producer fills the other. All that is published is seen, once and in order.

        frames = DoubleBuffer((480, 640), np.uint8, device=device)

        def produce():                              # on one thread
            for image in camera:
                back = frames.back()
                if back is None: break              # the consumer has closed it
                back.copy_from(image)
                frames.publish()
            frames.close()

        for front in frames:                        # on another
            launch(kernel, front.size, read(front), write(result))

    Work need not have ended when a buffer is handed over: the next use of it goes behind that, on the device. `back` and `front` wait for
    the other side's call and never for a device, and Ctrl-C ends their waiting. One producer and one consumer, each on one thread at a time; one thread
    that is both uses `swap`. The options are those of `UnifiedBuffer`.
    """

    __slots__ = ("_buffers", "_changed", "_turns")

    def __init__(self, shape: SupportsIndex | Iterable[SupportsIndex], dtype: npt.DTypeLike = np.float32, **options: Any) -> None:
        self._buffers = (UnifiedBuffer(shape, dtype, **options), UnifiedBuffer(shape, dtype, **options))
        self._turns = _unimem._BufferTurns()
        self._changed = threading.Condition()

    def back(self) -> UnifiedBuffer | None:
        """The buffer to fill, once the consumer has released it; None when closed. The same one until it is published. It holds what was
        published two turns ago."""
        return self._wait_for(self._turns.try_back)

    def try_back(self) -> UnifiedBuffer | None:
        """Likewise, and None too while the consumer has not released it."""
        return self._buffer(self._turns.try_back())

    def publish(self) -> None:
        """Hands the back over to the consumer. InvalidArgument unless `back` was called before."""
        self._turn(self._turns.publish)

    def front(self) -> UnifiedBuffer | None:
        """The oldest buffer that was published and not released, once there is one; None when closed and all have been seen. The same one
        until it is released."""
        return self._wait_for(self._turns.try_front)

    def try_front(self) -> UnifiedBuffer | None:
        """Likewise, and None too while there is none."""
        return self._buffer(self._turns.try_front())

    def release(self) -> None:
        """Gives the front back to be filled. InvalidArgument unless `front` was called before."""
        self._turn(self._turns.release)

    def swap(self) -> None:
        """For one thread that is both: releases the front, looked at or not, and publishes the back, which `front` gives next. InvalidArgument
        unless `back` was called before."""
        self._turn(self._turns.swap)

    def close(self) -> None:
        """Ends it, from either side: `back` is None from now on, and `front` when what was published before has been seen. Idempotent."""
        self._turn(self._turns.close)

    @property
    def closed(self) -> bool:
        """Whether it was."""
        return self._turns.closed

    def __iter__(self) -> Iterator[UnifiedBuffer]:
        """The fronts, each released when the next one is asked for, or the loop is left."""
        while (front := self.front()) is not None:
            try:
                yield front
            finally:
                self.release()

    def _buffer(self, number: int | None) -> UnifiedBuffer | None:
        return None if number is None else self._buffers[number]

    def _wait_for(self, attempt: Callable[[], int | None]) -> UnifiedBuffer | None:
        with self._changed:
            # Closed is asked before: what was published by then is there to be had.
            while not (closed := self.closed) and (number := attempt()) is None:
                self._changed.wait()
            return self._buffer(attempt() if closed else number)

    def _turn(self, step: Callable[[], None]) -> None:
        with self._changed:
            step()
            self._changed.notify_all()

    def __repr__(self) -> str:
        return f"<unimem.DoubleBuffer of {self._buffers[0].shape} {self._buffers[0].dtype}{', closed' if self.closed else ''}>"
