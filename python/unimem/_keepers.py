"""A process of its own that keeps what another has sent by multiprocessing, and that ends before it was received."""

from __future__ import annotations

import os
import socket
import subprocess
from multiprocessing import current_process, parent_process, spawn
from typing import Any

from . import _unimem
from ._errors import Error

# The module without the package, and without NumPy: the child waits for it. `-S`: what `site` adds to the path is not looked at, either.
_PROGRAM = """
import sys
from _imp import create_dynamic
from importlib.machinery import ExtensionFileLoader, ModuleSpec
file, *numbers = sys.argv[1:]
create_dynamic(ModuleSpec("_keeper", ExtensionFileLoader("_keeper", file), origin=file)).keep(*map(int, numbers))
"""
# Which processes may receive is known to those that are started from the first on: multiprocessing copies this from one to the next.
_FIRST = "unimem_first_process"

Process = tuple[int, int]


def _config() -> dict[str, Any]:
    config: dict[str, Any] = getattr(current_process(), "_config", {})
    return config


def mark_first_process() -> None:
    """Has all that are started by this process, and by those, know the first of them that has imported this."""
    if not getattr(current_process(), "_inheriting", False):  # else it has not been told who it is
        parent = parent_process()
        try:
            first = _unimem._running_process(os.getpid() if parent is None or parent.pid is None else parent.pid)
        except Error:  # a system without /proc; what is sent says so
            first = None
        if first is not None:
            _config().setdefault(_FIRST, first)


def receivers() -> list[Process]:
    """Those that may receive what this process has sent, or that start others which may: the one that started it, and the first of all."""
    found = list[Process]()
    parent, self = parent_process(), _unimem._running_process(os.getpid())
    if parent is not None and parent.pid is not None and self is not None:
        running = _unimem._running_process(parent.pid)
        if running is not None and running[1] <= self[1]:  # else it is another, which has its number now
            found.append(running)
    first = _config().get(_FIRST)
    if first is not None and first not in found and _unimem._running_process(first[0]) == first:
        found.append(first)
    return found


def hand_over(to: list[Process]) -> None:
    """Has another process offer what this one has sent, until it is received or none of those runs any more. Raises OSError or
    unimem.Error, and leaves all as it was, where that process does not start or cannot have it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        with theirs:
            numbers = [theirs.fileno(), *(number for one in to for number in one)]
            # It is no part of what this process writes to, reads, or is interrupted with.
            keeper = subprocess.Popen(
                [os.fsdecode(spawn.get_executable()), *subprocess._args_from_interpreter_flags(), "-S", "-c", _PROGRAM, _unimem.__file__, *map(str, numbers)],  # type: ignore[attr-defined]
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, pass_fds=[theirs.fileno()],
                cwd="/", start_new_session=True,
            )  # fmt: skip
        try:
            _unimem._hand_over_sent(ours.fileno())
        except BaseException:
            keeper.kill()
            keeper.wait()
            raise
    keeper.returncode = 0  # nobody waits for it, and nobody is to be warned of that
