"""Processes that keep what others have sent, by the system's word."""

import os
import time
from pathlib import Path

from unimem import _unimem

PATIENCE = 30


def _of(process):
    """Which runs, or has not been asked how it ended: None. Else for whom it keeps."""
    try:
        if (process / "comm").read_text().strip() != "unimem keeper" or (process / "stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
            return None
        arguments = (process / "cmdline").read_bytes().split(b"\0")[:-1]
        return [int(pid) for pid in arguments[arguments.index(b"-c") + 4 :: 2]]
    except (OSError, IndexError, ValueError):  # it has ended meanwhile
        return None


def keepers_for(pid):
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            receivers = _of(process)
            if receivers is not None and pid in receivers:
                found.append(int(process.name))
    return found


def wait_until(what, message):
    until = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < until, message
        time.sleep(0.01)


def wait_until_all_is_received():
    """What a receiver has is taken off the list behind it."""
    wait_until(lambda: _unimem._sent_and_not_received() == (0, 0), "something waits for a receiver")


def wait_for_no_keeper(pid=None):
    wait_until(lambda: not keepers_for(pid or os.getpid()), "a keeper stays")
