"""NumPy's protocols, DLPack's and CUDA's on the buffer itself: reading gives arrays, and what is written is noticed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
import numpy.typing as npt
from numpy.lib.mixins import NDArrayOperatorsMixin

from . import _unimem
from ._errors import invalid
from ._host import _written_by

if TYPE_CHECKING:

    class _Operators(_unimem.Window, NDArrayOperatorsMixin):
        pass

else:  # classes of C++'s have one base

    class _Operators(_unimem.Window):
        __slots__ = ()
        locals().update({name: one for name, one in vars(NDArrayOperatorsMixin).items() if callable(one)})


# Functions that look at shape and dtype alone, for which nothing has to be on the host.
_LOOK_AT_NO_ELEMENT = frozenset({
    np.shape, np.ndim, np.size, np.empty_like, np.zeros_like, np.ones_like, np.result_type, np.common_type, np.can_cast, np.iscomplexobj, np.isrealobj,
})  # fmt: skip


def _shape_alone(buffer: ArrayProtocols) -> np.ndarray:
    return np.broadcast_to(np.zeros((), buffer.dtype), buffer.shape)


def _with(array_of: Callable[[ArrayProtocols], np.ndarray], value: Any) -> Any:
    """The same arguments with arrays in the place of buffers."""
    if isinstance(value, ArrayProtocols):
        return array_of(value)
    if type(value) in (tuple, list):
        return type(value)(_with(array_of, one) for one in value)
    if type(value) is dict:
        return {name: _with(array_of, one) for name, one in value.items()}
    return value


def _by_host(name: str) -> Any:
    def method(self: ArrayProtocols, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.host, name)(*args, **kwargs)

    method.__name__ = name
    method.__doc__ = f"NumPy's ``host.{name}(…)``, of the current elements."
    return method


class ArrayProtocols(_Operators):
    """What NumPy, and libraries that speak its protocols, DLPack or CUDA's interface, may do with a buffer. Reading works on `.host`, and so
    do writes (``out=buffer``, ``buffer += 1``, `np.copyto`), which are noticed as through `HostArray`."""

    __slots__ = ()
    __array_priority__ = 1.0

    # As in NumPy: compared by elements, true by its one element, and so no key of dictionaries.
    __hash__: ClassVar[None]  # type: ignore[assignment]
    __hash__ = None

    def __eq__(self, other: object) -> Any:
        """By elements, as NumPy does: an array of booleans."""
        return np.ndarray.__eq__(self.__array__(), other.__array__() if isinstance(other, ArrayProtocols) else other)

    def __ne__(self, other: object) -> Any:
        return np.ndarray.__ne__(self.__array__(), other.__array__() if isinstance(other, ArrayProtocols) else other)

    def __bool__(self) -> bool:
        """Of the one element; ValueError for any other number of them, as in NumPy."""
        return bool(self.__array__())

    # Python's own would read the bytes as text, by the buffer protocol.

    def __int__(self) -> int:
        """The one element; TypeError for any other number of them, as in NumPy."""
        return int(self.__array__())

    def __float__(self) -> float:
        """Likewise."""
        return float(self.__array__())

    def __complex__(self) -> complex:
        """Likewise."""
        return complex(self.__array__())

    def __index__(self) -> int:
        """Of a buffer of integers without dimensions; TypeError for any other, as in NumPy."""
        return self.__array__().__index__()

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        """Without a copy a read-only view, since writes to it could not be noticed: those go through `.host`."""
        if copy is True or (dtype is not None and np.dtype(dtype) != self.dtype):
            if copy is False:
                raise ValueError(f"a buffer of {self.dtype} as an array of {np.dtype(dtype)} needs a copy, and copy=False forbids it")
            array = self._to_numpy()
            return array if dtype is None else array.astype(dtype, copy=False)
        view = self.host.view(np.ndarray)
        view.flags.writeable = False
        return view

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return self.__array__().__array_interface__

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        outputs = kwargs.get("out", ())
        hosts = _Hosts()
        result = getattr(ufunc, method)(*hosts.within(inputs), **hosts.within(kwargs))
        if not any(isinstance(one, ArrayProtocols) for one in outputs) or result is NotImplemented:
            return result
        if len(outputs) == 1:
            return outputs[0]
        return tuple(given if isinstance(given, ArrayProtocols) else one for given, one in zip(outputs, result, strict=True))

    def __array_function__(self, func: Callable[..., Any], types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func in _LOOK_AT_NO_ELEMENT:
            return func(*_with(_shape_alone, args), **_with(_shape_alone, kwargs))
        hosts = _Hosts()
        args, kwargs = hosts.within(args), hosts.within(kwargs)
        result = func(*args, **kwargs)
        return hosts.buffer_of(result) if any(result is one for one in _written_by(func, args, kwargs)) else result

    # What arrays have and many ask for.

    @property
    def T(self) -> np.ndarray:  # noqa: N802
        """The host side with its extents in reverse order, without a copy."""
        return self.host.T

    sum, prod, mean, std, var = map(_by_host, ("sum", "prod", "mean", "std", "var"))
    min, max, argmin, argmax = map(_by_host, ("min", "max", "argmin", "argmax"))
    any, all, astype = map(_by_host, ("any", "all", "astype"))

    if not TYPE_CHECKING:  # which would take any name for one that there is

        def __getattr__(self, name: str) -> Any:
            if not name.startswith("_") and hasattr(np.ndarray, name) and not hasattr(type(self), name):
                text = f"'{type(self).__name__}' object has no attribute '{name}': NumPy's is buffer.host.{name}"
                raise AttributeError(text, name=name, obj=self)
            return object.__getattribute__(self, name)  # raises what it has raised

    def __dlpack__(self, **arguments: Any) -> Any:
        """On CUDA the device's memory, else the host's, without a copy.

        The host's is read-only for consumers of DLPack 1.0 and later (`max_version`), which can be told. Earlier ones cannot: for them it is
        a write lease, all of which counts as written when they let go of it. Writes to CUDA's are not noticed: mark them."""
        if self.__dlpack_device__()[0] != 1:
            return self._device(None).__dlpack__(**arguments)
        if arguments.get("stream") is not None:
            raise invalid("stream", arguments["stream"], "None: the host's memory has no streams")
        if arguments.get("copy") is True:
            return self.host.view(np.ndarray).__dlpack__(**arguments)
        version = arguments.get("max_version")
        if version is not None and version[0] >= 1:
            return self.__array__().__dlpack__(**arguments)
        array, lease = self._array_that_may_be_written()
        try:
            return array.__dlpack__(**arguments)
        except BaseException:
            lease.give_up()
            raise

    def __dlpack_device__(self) -> tuple[int, int]:
        on = self.default_device
        return (2, int(on.id.partition(":")[2] or 0)) if on.backend == "cuda" else (1, 0)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The device's memory, as the protocol has it: who takes the address keeps this object alive and nothing else. So from here on the
        memory stays in its place until the buffer is freed or reset, or this object is gone; that of a `DeviceArray` only as long as the
        array lives. Writes of who takes it are not noticed: mark them."""
        on = self.default_device
        if on.backend != "cuda":
            raise AttributeError(f"__cuda_array_interface__: the buffer's device is {on.id}")
        array = self._device(None)
        self._keep_exported(array)
        return cast(dict[str, Any], array.__cuda_array_interface__)


class _Hosts:
    """The host sides of the buffers among the arguments of one call, each asked for once."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[ArrayProtocols, np.ndarray]] = {}

    def of(self, buffer: ArrayProtocols) -> np.ndarray:
        known = self._known.get(id(buffer))
        if known is None:
            known = self._known[id(buffer)] = (buffer, buffer.host)
        return known[1]

    def within(self, value: Any) -> Any:
        return _with(self.of, value)

    def buffer_of(self, array: np.ndarray) -> Any:
        return next((buffer for buffer, host in self._known.values() if host is array), array)
