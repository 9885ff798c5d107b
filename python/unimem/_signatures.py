"""Functions and methods of the extension module as Python's own, with the signatures that `inspect` and ``help`` look for: those of nanobind
have none that Python knows."""

from __future__ import annotations

from functools import wraps
from inspect import Signature, cleandoc, signature
from typing import Any, TypeVar, cast

from . import _unimem

_F = TypeVar("_F")


def _signature_of(text: str) -> Signature:
    """Of a function's head, as nanobind writes it into the stub."""
    names: dict[str, Any] = {}
    exec(f"from __future__ import annotations\n{text}: ...", names)  # the extension module's own text
    return signature(names[text[len("def ") : text.index("(")]])


def _python_form(native: _F) -> _F:
    head, text, _ = cast(Any, native).__nb_signature__[0]

    @wraps(cast(Any, native), assigned=("__name__", "__qualname__"), updated=())
    def form(*args: Any, **kwargs: Any) -> Any:
        return cast(Any, native)(*args, **kwargs)

    del form.__wrapped__  # which has no signature
    form.__module__ = cast(Any, native).__module__  # where the stub describes it
    form.__doc__ = cleandoc(text or "")
    form.__signature__ = _signature_of(head)  # type: ignore[attr-defined]
    return cast(_F, form)


can_capture_stacks = _python_form(_unimem.can_capture_stacks)
can_expose_to_prometheus = _python_form(_unimem.can_expose_to_prometheus)
describe_address = _python_form(_unimem.describe_address)
device = _python_form(_unimem.device)
devices = _python_form(_unimem.devices)
format_size = _python_form(_unimem.format_size)
make_sim = _python_form(_unimem.make_sim)
parse_size = _python_form(_unimem.parse_size)
version = _python_form(_unimem.version)

for _class in (_unimem.Device, _unimem.DeviceArray, _unimem.Event, _unimem.StreamKernel, _unimem.Window):
    for _name, _member in list(vars(_class).items()):
        if not _name.startswith("_") and hasattr(_member, "__nb_signature__") and callable(_member):
            setattr(_class, _name, _python_form(_member))
    if _class is not _unimem.Window:
        setattr(_class, "__signature__", Signature())  # functions make them: a call is a TypeError
