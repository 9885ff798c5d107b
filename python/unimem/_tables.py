"""Tables as notebooks show them."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from . import _unimem


def shown(name: str, value: object) -> str:
    """A value for people: bytes with their unit, where the name says that they are."""
    if name.endswith("bytes") and isinstance(value, int):
        return _unimem.format_size(value)
    if name.endswith("rate") and isinstance(value, float):
        return f"{value:.1%}"
    return str(value)


def pairs(caption: str, rows: Iterable[tuple[str, object]]) -> str:
    """Names and what they stand for."""
    cells = "".join(f"<tr><th>{escape(name)}</th><td>{escape(shown(name, value))}</td></tr>" for name, value in rows)
    return f"<table><caption>{escape(caption)}</caption>{cells}</table>"


def grid(caption: str, names: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A head, and rows of as many cells."""
    columns = list(names)
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(shown(name, value))}</td>" for name, value in zip(columns, row, strict=True)) + "</tr>" for row in rows
    )
    return f"<table><caption>{escape(caption)}</caption><tr>{head}</tr>{body}</table>"
