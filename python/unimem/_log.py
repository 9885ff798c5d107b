"""What the library logs, as messages of Python's logger "unimem"."""

from __future__ import annotations

from . import _unimem


def log_to_python() -> None:
    """From now on. Python's levels decide what is shown; `UNIMEM_LOG_LEVEL` decides before them."""
    _unimem._log_to_python()
