"""How multiprocessing sends buffers. It pickles in band: the bytes would be copied into a pickle, through a pipe and out of it. Instead
they are copied once, into memory that the receiver maps; of a buffer that was made for other processes that is the memory it has."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from multiprocessing import parent_process
from multiprocessing.reduction import ForkingPickler
from multiprocessing.util import Finalize, register_after_fork
from pickle import DEFAULT_PROTOCOL, Pickler
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _unimem
from ._devices import chosen
from ._enums import BufferState
from ._errors import Error
from ._keepers import hand_over, mark_first_process, receivers
from ._pickles import _device_or_none, _kind_of, asked_of, reduced, takes_memory_of_its_own, unpickled

if TYPE_CHECKING:
    from ._buffer import UnifiedBuffer
    from ._elements import Elements

# Below, the way by a pipe is quicker than making memory, asking for it and mapping it.
_SMALLEST_SENT = 256 << 10
# So much of copies that wait for their receivers; more goes in the pickle, for which the pipe has the sender wait. One of any size always goes by memory.
_MOST_WAITING = 64 << 20
# So many seconds for each byte it waits for room before: a third of what the way by a pipe takes, so that a receiver which is a little behind gets it by memory.
_WORTH_WAITING = 0.002 / (1 << 20)
# Most is received within so many seconds, before a process could be started to keep it.
_AT_ONCE = 0.05


class _Message(threading.local):
    """What has been sent in the message that this thread is making, if it is."""

    sent: list[str] | None = None


_message = _Message()


def _taking_back(dump: Callable[[Pickler, Any], None]) -> Callable[[Pickler, Any], None]:
    """`ForkingPickler.dump`, which takes back what was sent in a message that cannot be made: nobody will receive it, and it would be
    waited for."""

    def dump_or_take_back(pickler: Pickler, message: Any) -> None:
        outer, ours = _message.sent, list[str]()
        _message.sent = ours
        try:
            dump(pickler, message)
            if outer is not None:  # of a message within another
                outer += ours
        except BaseException:
            for sent_id in ours:
                _unimem._withdraw_sent(sent_id)
            raise
        finally:
            _message.sent = outer

    return dump_or_take_back


def _copy_sent(buffer: Elements) -> str | None:
    """The id; None: it is to go by the pipe."""
    until = time.monotonic() + buffer.nbytes * _WORTH_WAITING
    while (sent_id := _unimem._send_copy_within(_MOST_WAITING, buffer)) is None and time.monotonic() < until:
        time.sleep(0.001)
    return sent_id


def sent(buffer: Elements) -> tuple[Any, ...]:
    """As `_pickles.reduced`, with an id in place of the data."""
    from ._buffer import UnifiedBuffer

    shared = isinstance(buffer, UnifiedBuffer) and buffer._is_shared
    if buffer.state is BufferState.UNINITIALIZED or (buffer.nbytes < _SMALLEST_SENT and not shared):
        return reduced(buffer, DEFAULT_PROTOCOL)
    attributes = buffer.__getstate__()
    sent_id = _unimem._send_shared(buffer) if shared else _copy_sent(buffer)
    if sent_id is None:
        return reduced(buffer, DEFAULT_PROTOCOL)
    if _message.sent is not None:
        _message.sent.append(sent_id)
    arguments = (_kind_of(buffer), buffer.shape, buffer.dtype, asked_of(buffer), sent_id)
    return (received, arguments, *(() if attributes is None else (attributes,)))


def _wait_for_receivers(until: Callable[[], bool]) -> bool:
    """True: all has been received."""
    while _unimem._sent_and_not_received()[0]:
        if until():
            return False
        time.sleep(0.005)
    return True


def _leave_to_receivers() -> None:
    at_once = time.monotonic() + _AT_ONCE
    if _wait_for_receivers(lambda: time.monotonic() > at_once):
        return
    try:
        if to := receivers():  # else nobody is left
            hand_over(to)
    except (OSError, Error) as error:
        logging.getLogger("unimem").warning(
            "this process waits for the receivers of what it has sent, since no other can keep it: %s", error
        )
        _wait_for_receivers(lambda: not receivers())


def _end_before_receivers(_: object = None) -> None:
    """A process that multiprocessing has started leaves what it has sent, and what is not received by its end, to one that keeps it."""
    mark_first_process()
    Finalize(None, _leave_to_receivers, exitpriority=-10)  # behind the queues' own, which put in the pipe what is left
    if parent_process() is not None:
        Finalize(None, _unimem._tell_of_the_end, exitpriority=-20)  # what ends such a process is mostly _exit


class _ThisModule:
    """What multiprocessing asks for, to call something when a process begins."""


_this_module = _ThisModule()
# Assigned like any other attribute: the class has no other way to tell how a message has ended.
ForkingPickler.dump = _taking_back(ForkingPickler.dump)  # type: ignore[method-assign]
register_after_fork(_this_module, _end_before_receivers)
# And at once: a process by `spawn` calls nothing when it begins, and has imported this before it knows its parent.
_end_before_receivers()


def received(
    kind: type[UnifiedBuffer], shape: tuple[int, ...], dtype: np.dtype[Any],
    asked: tuple[str | None, int, bool, bool, int, int, str], sent_id: str,
) -> UnifiedBuffer:  # fmt: skip
    """A buffer over the memory that was sent. Where it does not come, since its sender has ended, the buffer's data is lost, and
    whoever reads it gets DataLost: what unpickles here is often a thread of a pool's, which an exception would end."""
    id, tracking, _, strict, priority, location, name = asked
    on = _device_or_none(id) or chosen(None)
    made = kind.__new__(kind)
    if not takes_memory_of_its_own(asked):
        _unimem.Window.__init__(made, sent_id, list(shape), dtype, on, location, tracking, strict, name, priority)
        return made
    _unimem.Window.__init__(made, sent_id, list(shape), dtype, on, 0, 0, False, name, priority)
    return unpickled(kind, shape, dtype, asked, made.host.view(np.ndarray))


def send_by_memory(kind: type[Elements]) -> None:
    """Has multiprocessing send objects of this very class so."""
    ForkingPickler.register(kind, sent)
