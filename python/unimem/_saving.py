"""Named buffers in files, and off their devices for a while."""

from __future__ import annotations


from ._arguments import AnyPath
from ._errors import invalid
from ._manager import MemoryManager, default_manager


def _of(manager: MemoryManager | None) -> MemoryManager:
    if manager is None:
        return default_manager()
    if not isinstance(manager, MemoryManager):
        raise invalid("manager", f"{type(manager).__name__} {manager!r}", "a MemoryManager")
    return manager


def save(path: AnyPath, manager: MemoryManager | None = None) -> None:
    """Writes every live buffer that was given a name to a ``.safetensors``: `MemoryManager.save`."""
    _of(manager).save(path)


def restore(path: AnyPath, manager: MemoryManager | None = None) -> None:
    """Fills the named buffers with what `save` has written: `MemoryManager.restore`."""
    _of(manager).restore(path)


def sleep(tag: str = "", manager: MemoryManager | None = None) -> int:
    """Gives the device memory of the buffers back that a tag names, and keeps their contents: `MemoryManager.sleep`."""
    return _of(manager).sleep(tag)


def wake(tag: str = "", manager: MemoryManager | None = None) -> int:
    """Brings back to devices what `sleep` has taken away: `MemoryManager.wake`."""
    return _of(manager).wake(tag)
