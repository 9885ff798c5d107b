"""What dask asks for by itself, through the entry points of its extensions."""

from __future__ import annotations

from typing import Any

from ._elements import Elements
from ._unimem import DeviceArray


def register_sizes(sizeof: Any) -> None:
    """Tells ``dask.sizeof.sizeof`` how large buffers are: their elements, wherever they are, and the object."""

    for kind in (Elements, DeviceArray):
        sizeof.register(kind, lambda value: object.__sizeof__(value) + value.nbytes)
