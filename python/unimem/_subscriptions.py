"""Callbacks of the library's, which are called until they are ended."""

from __future__ import annotations

from typing import Self

from . import _unimem

_subscriptions: set[_Subscription] = set()


class _Subscription:
    __slots__ = ("_native",)

    def __init__(self, native: _unimem._PressureSubscription | _unimem._PeerDeathSubscription) -> None:
        self._native = native
        _subscriptions.add(self)

    def end(self) -> None:
        """Afterwards there is no call: waits for one that is going on, but for one that it is ended from. Idempotent."""
        _subscriptions.discard(self)
        self._native.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.end()


class PressureSubscription(_Subscription):
    """The callback of `MemoryManager.on_pressure` is called until this is ended: by `end`, at the end of a ``with`` block, or with the
    interpreter."""

    __slots__ = ()


class PeerDeathSubscription(_Subscription):
    """The callback of `BufferRegistry.on_peer_death` is called until this is ended: by `end`, at the end of a ``with`` block, or with the
    interpreter. In a forked child it is of nothing."""

    __slots__ = ()


def end_all_subscriptions() -> None:
    """Before the interpreter ends, which a callback would need."""
    for one in list(_subscriptions):
        one.end()
