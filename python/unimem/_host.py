"""NumPy arrays over a buffer's host memory that notice what is written through them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from . import _unimem


def _plain(value: Any) -> Any:
    """The same elements without notice. What lies in no buffer is a plain array already."""
    return value.view(np.ndarray) if isinstance(value, HostArray) else value


def _result(value: Any) -> Any:
    """What a function gives back: views of a buffer notice on, everything else is NumPy's own."""
    if isinstance(value, HostArray):
        return value if value._hold is not None else value.view(np.ndarray)
    if type(value) in (tuple, list):
        return type(value)(_result(one) for one in value)
    return value


def _lying_in(value: Any, given: list[Any]) -> Any:
    """What a function made of `given`: plain arrays that lie in a buffer notice as well, unless they were given so."""
    if type(value) in (tuple, list):
        return type(value)(_lying_in(one, given) for one in value)
    if type(value) is not np.ndarray or value.flags.owndata or any(value is one for one in given):
        return _result(value)
    hold = next((one._hold for one in _hosts(given) if one._hold is not None and one._hold.covers(value)), None)
    if hold is None:
        return value
    view = value.view(HostArray)
    view._hold = hold
    return view


@contextmanager
def _writing(targets: list[HostArray]) -> Iterator[None]:
    """Around something that writes to `targets`: each is up to date before, and counts as written afterwards.

    Also if it fails: it may have come half-way.
    """
    writes = [write for target in targets if target._hold is not None and (write := target._hold.before_write(target))]
    try:
        yield
    finally:
        _done(writes)


def _done(writes: list[_unimem.HostWrite]) -> None:
    """All of them, whatever one raises, and without taking memory for it."""
    if not writes:
        return
    try:
        writes.pop(0).done()
    finally:
        _done(writes)


def _is_index(key: Any) -> bool:
    return isinstance(key, (int, np.integer)) and not isinstance(key, (bool, np.bool_))


def _is_basic(key: Any) -> bool:
    """Whether indexing with it gives a view."""
    parts = key if isinstance(key, tuple) else (key,)
    return all(part is None or part is Ellipsis or isinstance(part, slice) or _is_index(part) for part in parts)


class _Written(NamedTuple):
    """What an assignment may write: of `view` all, or what the ascending indexes `chosen` along `axis` say."""

    view: HostArray
    axis: int = 0
    chosen: npt.NDArray[np.intp] | None = None


def _indexes(key: Any, shape: tuple[int, ...]) -> npt.NDArray[np.intp] | None:
    """Which indexes along the first axis of `shape` an array, or a list, chooses, each once and ascending; None where that is not easily told."""
    try:
        chosen = np.asarray(key)
    except (TypeError, ValueError):
        return None
    if chosen.dtype == np.bool_ and 0 < chosen.ndim and chosen.shape == shape[: chosen.ndim]:
        rows = np.flatnonzero(chosen if chosen.ndim == 1 else chosen.any(axis=tuple(range(1, chosen.ndim))))
    elif chosen.dtype.kind in "iu" and chosen.size:
        rows = np.unique(np.where(chosen < 0, chosen + shape[0], chosen)).astype(np.intp, copy=False)
    else:
        return None
    return rows if rows.size and 0 <= rows[0] and rows[-1] < shape[0] else None


def _spanned(array: HostArray, key: Any) -> _Written:
    """What an assignment to `array[key]` may write, as far as that is easily told. Raises IndexError."""
    parts = key if isinstance(key, tuple) else (key,)
    if _is_basic(key):
        # With an ellipsis a full index, too, gives a view, of one element.
        return _Written(cast(HostArray, np.ndarray.__getitem__(array, parts if Ellipsis in parts else (*parts, Ellipsis))))
    axis = next((i for i, part in enumerate(parts) if not _is_basic(part)), 0)
    # Everything before the first array stands for one axis, and everything behind it is taken to be written.
    simple = axis < array.ndim and array.dtype.names is None and isinstance(parts[axis], (list, np.ndarray))
    if simple and all(isinstance(part, slice) or _is_index(part) for part in parts[:axis]):
        chosen = _indexes(parts[axis], array.shape[axis:])
        if chosen is not None:
            before = tuple(part if isinstance(part, slice) else slice(part, part + 1 or None) for part in parts[:axis])
            view = np.ndarray.__getitem__(array, (*before, slice(int(chosen[0]), int(chosen[-1]) + 1)))
            return _Written(cast(HostArray, view), axis, chosen - chosen[0])
    return _Written(array)


def _fits(value: np.ndarray, target: np.ndarray) -> bool:
    """Whether an assignment may broadcast `value` to `target`: also with extra dimensions of one in front."""
    missing = target.ndim - value.ndim
    extents = value.shape
    if missing < 0:
        if any(extent != 1 for extent in extents[:-missing]):
            return False
        extents, missing = extents[-missing:], 0
    return all(one in (1, other) for one, other in zip(extents, target.shape[missing:], strict=True))


# Functions that write to their first argument.
_WRITES_FIRST = frozenset({"copyto", "put", "place", "putmask", "fill_diagonal", "put_along_axis"})


@cache
def _position_of_out(function: Callable[..., Any]) -> int | None:
    """Where `out` stands among a function's positional arguments; None where it can only be named."""
    if function is np.dot:  # written in C, and without a signature
        return 2
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return None
    for position, parameter in enumerate(parameters.values()):
        if parameter.name == "out":
            return None if parameter.kind is inspect.Parameter.KEYWORD_ONLY else position
    return None


def _hosts(value: Any) -> list[HostArray]:
    if isinstance(value, HostArray):
        return [value]
    return [one for one in value if isinstance(one, HostArray)] if isinstance(value, (tuple, list)) else []


def _written_by(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[HostArray]:
    targets = _hosts(kwargs.get("out"))
    if getattr(function, "__name__", "") in _WRITES_FIRST:
        first = args[0] if args else next((kwargs[name] for name in ("dst", "a", "arr") if name in kwargs), None)
        targets += _hosts(first)
    position = _position_of_out(function)
    if position is not None and position < len(args):
        targets += _hosts(args[position])
    return targets


class FlatView:
    """``array.flat`` of a HostArray: what is assigned through it is noticed."""

    __slots__ = ("_array", "_iterator")

    def __init__(self, array: HostArray) -> None:
        self._array = array
        self._iterator = np.ndarray.flat.__get__(array)

    def __setitem__(self, key: Any, value: Any) -> None:
        with _writing([self._array]):
            self._iterator[key] = _plain(value)

    def __getitem__(self, key: Any) -> Any:
        return _result(self._iterator[key])

    def __iter__(self) -> FlatView:
        return self

    def __next__(self) -> Any:
        return next(self._iterator)

    def __len__(self) -> int:
        return len(self._iterator)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(_plain(self._array).ravel(), dtype=dtype, copy=copy)

    @property
    def base(self) -> HostArray:
        return self._array

    @property
    def coords(self) -> tuple[int, ...]:
        return cast("tuple[int, ...]", self._iterator.coords)

    @property
    def index(self) -> int:
        return int(self._iterator.index)

    def copy(self) -> np.ndarray:
        return np.asarray(self._iterator.copy())


class HostArray(np.ndarray):
    """The host side of a buffer, without a copy: a NumPy array that notices what is written through it.

    Noticed are assignment, in-place operators, ufuncs with ``out=`` (``at`` too), NumPy's functions that write
    (``np.copyto``, ``np.put``, ``np.place``, ``np.putmask``, ``np.fill_diagonal``, ``out=``, …), and the methods and
    attributes that do (``fill``, ``sort``, ``partition``, ``put``, ``byteswap(inplace=True)``, ``setfield``, ``flat``, ``real``,
    ``imag``), through slices, reshapes and other views of it as well, those that NumPy's functions give (``np.rot90``, ``np.einsum``,
    ``np.broadcast_arrays``, ``sliding_window_view``, …) among them. What such a write spans is brought up to date on the host first,
    and what it writes counts as written afterwards. Reading marks nothing.

    So is who asks for memory to write by the buffer protocol (``file.readinto``, ``socket.recv_into``, mpi4py, Cython) or by DLPack without a
    version, when it lets go of it. ``memoryview``, ``np.frombuffer`` and ``np.from_dlpack`` get memory to read.

    Not noticed is who writes by the address, as other libraries do, or to a plain array over the same memory: ``np.asarray(array)`` and
    its like, ``array.view(np.ndarray)`` and views as other classes (``np.matrix``, ``np.recarray``, ``np.ma``), ``as_strided`` without
    ``subok=True``, ``np.nditer``, ``np.ndarray(…, buffer=array)``, ``Generator.random(out=…)``, methods of *other*
    arrays that are no ufuncs (``plain.take(…, out=array)``; ``np.take`` is noticed). Say ``mark_host_dirty()`` then,
    or make the buffer with ``Tracking.PAGES``, which notices all writes. docs/python.md has the list.

    It keeps the memory alive and in its place, also when the buffer is gone. After ``free()`` it still points at its own memory,
    never at another buffer's, and is no buffer's data any more. It shows what the host side held when ``.host`` was asked for:
    ask again after a device has written.
    """

    __slots__ = ("_hold",)
    _hold: _unimem.HostHold | None

    def __array_finalize__(self, made_from: Any) -> None:
        hold = getattr(made_from, "_hold", None)
        self._hold = hold if hold is not None and hold.covers(self) else None

    # Assignment

    def __setitem__(self, key: Any, value: Any) -> None:
        hold = self._hold
        if hold is None:
            np.ndarray.__setitem__(self, key, value)
            return
        value = _plain(value)
        key = tuple(map(_plain, key)) if isinstance(key, tuple) else _plain(key)
        if isinstance(key, str) or (isinstance(key, list) and key and isinstance(key[0], str)):
            written = _Written(self)  # fields of structured elements
        else:
            written = _spanned(self, key)
            target = written.view
            if self.dtype.names is None:
                # What will be refused is refused before anything counts as written.
                if isinstance(value, (list, tuple)):
                    value = np.asarray(value)
                if isinstance(value, np.ndarray) and _is_basic(key) and not _fits(value, target):
                    np.empty(target.shape, self.dtype)[...] = value
        write = hold.before_write(*written)
        if write is None:
            np.ndarray.__setitem__(self, key, value)
            return
        try:
            np.ndarray.__setitem__(self, key, value)
        finally:
            write.done()

    # NumPy's functions

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        outputs = kwargs.pop("out", ())
        written = _hosts(outputs)
        if method == "at":
            written += _hosts(inputs[0])
        if "where" in kwargs:
            kwargs["where"] = _plain(kwargs["where"])
        if outputs:
            kwargs["out"] = tuple(map(_plain, outputs))
        arguments = [_plain(one) for one in inputs]
        if not written:
            return getattr(ufunc, method)(*arguments, **kwargs)
        with _writing(written):
            result = getattr(ufunc, method)(*arguments, **kwargs)
        if not outputs or result is NotImplemented:
            return result
        if len(outputs) == 1:
            return outputs[0] if outputs[0] is not None else result
        return tuple(given if given is not None else one for given, one in zip(outputs, result, strict=True))

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        written = _written_by(func, args, kwargs)
        with _writing(written):
            result = super().__array_function__(func, types, args, kwargs)
        given = [*args, *kwargs.values()]
        for one in given[:]:
            if type(one) in (tuple, list):
                given += one
        return _lying_in(result, given)

    # Methods that write

    def fill(self, value: Any) -> None:
        with _writing([self]):
            np.ndarray.fill(self, value)

    def sort(self, *args: Any, **kwargs: Any) -> None:
        with _writing([self]):
            np.ndarray.sort(self, *args, **kwargs)

    def partition(self, *args: Any, **kwargs: Any) -> None:
        with _writing([self]):
            np.ndarray.partition(self, *args, **kwargs)

    def put(self, *args: Any, **kwargs: Any) -> None:
        with _writing([self]):
            np.ndarray.put(self, *args, **kwargs)

    def setfield(self, *args: Any, **kwargs: Any) -> None:
        with _writing([self]):
            np.ndarray.setfield(self, *args, **kwargs)

    def byteswap(self, inplace: bool = False) -> Any:
        if not inplace:
            return np.ndarray.byteswap(_plain(self))
        with _writing([self]):
            return np.ndarray.byteswap(self, inplace=True)

    @property
    def flat(self) -> Any:
        return FlatView(self)

    @flat.setter
    def flat(self, value: Any) -> None:
        with _writing([self]):
            _plain(self).flat = _plain(value)

    @property
    def real(self) -> Any:
        return np.ndarray.real.__get__(self)

    @real.setter
    def real(self, value: Any) -> None:
        self.real[...] = value

    @property
    def imag(self) -> Any:
        return np.ndarray.imag.__get__(self)

    @imag.setter
    def imag(self, value: Any) -> None:
        if self.dtype.kind != "c":
            raise TypeError(f"cannot set the imaginary part of an array of {self.dtype}")
        self.imag[...] = value

    # What others are handed

    def __dlpack__(self, **arguments: Any) -> Any:
        """As the buffer's own: read-only for consumers of DLPack 1.0 and later, which can be told; for earlier ones a write lease, all of
        which counts as written when they let go of it. Arrays whose writes have not to be told are handed over as they are."""
        plain = _plain(self)
        if self._hold is None or arguments.get("copy") is True or not self.flags.writeable:
            return plain.__dlpack__(**arguments)
        version = arguments.get("max_version")
        if version is not None and version[0] >= 1:
            plain.flags.writeable = not self._hold.has_to_be_told
            return plain.__dlpack__(**arguments)
        lent = _unimem._elements_that_may_be_written(self)
        if lent is None:
            return plain.__dlpack__(**arguments)
        array, lease = lent
        try:
            return array.__dlpack__(**arguments)
        except BaseException:
            lease.give_up()
            raise

    # What is copied belongs to its owner alone.

    def copy(self, order: Any = "C") -> Any:
        return _plain(self).copy(order)

    def __copy__(self) -> Any:
        return _plain(self).copy()

    def __deepcopy__(self, memo: Any) -> Any:
        return _plain(self).__deepcopy__(memo)

    def __reduce__(self) -> Any:
        return _plain(self).__reduce__()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _plain(self).__reduce_ex__(protocol)

    def astype(self, *args: Any, **kwargs: Any) -> Any:
        return _result(np.ndarray.astype(self, *args, **kwargs))

    def flatten(self, *args: Any, **kwargs: Any) -> Any:
        return _plain(self).flatten(*args, **kwargs)


def _method_with_out(name: str, position: int) -> Any:
    """A method that reads the array and may write to `out`, which stands at `position`."""
    original = getattr(np.ndarray, name)

    def method(self: HostArray, *args: Any, **kwargs: Any) -> Any:
        out = kwargs.get("out", args[position] if position < len(args) else None)
        with _writing(_hosts(out)):
            return _result(original(self, *args, **kwargs))

    method.__name__, method.__doc__ = name, original.__doc__
    return method


for _name, _position in (
    ("take", 2), ("choose", 1), ("compress", 2), ("dot", 1), ("argmax", 1), ("argmin", 1), ("trace", 4), ("round", 1), ("conj", 0), ("conjugate", 0),
):  # fmt: skip
    setattr(HostArray, _name, _method_with_out(_name, _position))

for _name, _member in list(vars(HostArray).items()):
    if not _name.startswith("_") and _member.__doc__ is None:
        _member.__doc__ = getattr(np.ndarray, _name).__doc__

_unimem._set_host_array(HostArray)
