"""What the library logs, as messages of Python's logger "unimem"."""

from __future__ import annotations

import os

from . import _unimem


def log_to_python() -> None:
    """From now on. Python's levels decide what is shown; a level that the environment names decides before them."""
    _unimem._log_to_python(not os.environ.get("UNIMEM_LOG_LEVEL"))
