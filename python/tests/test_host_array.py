"""Writes through `.host` that are noticed: each reaches the device, and no more bytes travel than it spans."""

import copy
import io
import pickle

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided, sliding_window_view

from unimem import BufferState, HostArray, Tracking, UnifiedBuffer, UnsupportedOperation

S = BufferState


def synced(device, values=None, dtype=np.float64, shape=(10, 10)):
    buffer = UnifiedBuffer(shape, dtype, device=device)
    buffer.host[...] = np.arange(buffer.size, dtype=dtype).reshape(shape) if values is None else values
    buffer.sync_to_device()
    assert buffer.state is S.SYNCHRONIZED
    return buffer


def rng():
    return np.random.default_rng(7)


WRITES = {
    "assignment of all": lambda h: h.__setitem__(slice(None), 1),
    "assignment of an element": lambda h: h.__setitem__((2, 3), 1),
    "assignment of a row": lambda h: h.__setitem__(4, np.zeros(10)),
    "assignment from a list": lambda h: h.__setitem__(0, [1] * 10),
    "assignment with steps": lambda h: h.__setitem__((slice(None, None, 2), slice(1, None, 3)), 5),
    "assignment backwards": lambda h: h.__setitem__(slice(8, 2, -2), 5),
    "assignment by a list of indices": lambda h: h.__setitem__([1, 5], 7),
    "assignment by an array of indices": lambda h: h.__setitem__((np.array([1, 2]), np.array([3, 4])), 7),
    "assignment by a mask": lambda h: h.__setitem__(h > 50, -1),
    "assignment by a mask of rows": lambda h: h.__setitem__(np.arange(10) > 7, -1),
    "assignment with an ellipsis": lambda h: h.__setitem__(..., 2),
    "assignment broadcast from a column": lambda h: h.__setitem__(slice(None), np.arange(10)[:, None]),
    "in-place addition": lambda h: h.__iadd__(1),
    "in-place matrix product": lambda h: h.__imatmul__(np.eye(10) * 2),
    "in-place operator on a slice": lambda h: h[2:4].__imul__(3),
    "a ufunc's out": lambda h: np.multiply(h, 2, out=h),
    "a ufunc's out, positional": lambda h: np.multiply(h, 2, h),
    "a ufunc's out of other arrays": lambda h: np.add(np.ones((10, 10)), 1, out=h),
    "one of a ufunc's two outs": lambda h: np.divmod(np.full((10, 10), 7.0), 2, out=(h, None)),
    "a ufunc at indices": lambda h: np.add.at(h, (np.array([1, 1]), np.array([2, 2])), 5),
    "a reduction's out": lambda h: np.add.reduce(np.ones((10, 10)), axis=0, out=h[0]),
    "an accumulation's out": lambda h: np.add.accumulate(np.ones((10, 10)), out=h),
    "a masked ufunc": lambda h: np.add(h, 1, out=h, where=h > 50),
    "np.copyto": lambda h: np.copyto(h, 9),
    "np.copyto with a mask": lambda h: np.copyto(h, 9, where=np.eye(10, dtype=bool)),
    "np.copyto by name": lambda h: np.copyto(dst=h, src=9),
    "np.put": lambda h: np.put(h, [3, 7], -1),
    "np.place": lambda h: np.place(h, h > 90, -1),
    "np.putmask": lambda h: np.putmask(h, h > 90, -1),
    "np.fill_diagonal": lambda h: np.fill_diagonal(h, -1),
    "np.put_along_axis": lambda h: np.put_along_axis(h, np.zeros((10, 1), int), 99, axis=1),
    "np.clip out": lambda h: np.clip(h, 2, 5, out=h),
    "np.cumsum out, positional": lambda h: np.cumsum(np.ones(10), 0, None, h[1]),
    "np.dot out, positional": lambda h: np.dot(np.eye(10), np.full((10, 10), 4.0), h),
    "np.matmul out": lambda h: np.matmul(np.eye(10), np.full((10, 10), 4.0), out=h),
    "np.take out": lambda h: np.take(np.arange(20.0), np.arange(10), out=h[2]),
    "np.concatenate out": lambda h: np.concatenate([np.ones((5, 10)), np.zeros((5, 10))], out=h),
    "np.einsum out": lambda h: np.einsum("ij->ji", np.arange(100.0).reshape(10, 10) + 1, out=h),
    "np.mean out": lambda h: np.mean(np.ones((10, 10)), axis=0, out=h[3]),
    "np.nan_to_num in place": lambda h: (h.__setitem__((0, 0), np.nan), np.nan_to_num(h, copy=False)),
    "fill": lambda h: h.fill(6),
    "sort": lambda h: h[::-1].sort(axis=0),
    "partition": lambda h: h[:, ::-1].partition(3),
    "put": lambda h: h.put([1, 2], [8, 9]),
    "byteswap": lambda h: h.byteswap(inplace=True),
    "setfield": lambda h: h.setfield(3.5, np.float64),
    "flat": lambda h: h.flat.__setitem__(slice(5, 9), 1),
    "flat as a whole": lambda h: setattr(h, "flat", 3),
    "real": lambda h: setattr(h, "real", 2),
    "a method's out": lambda h: h[0].take(np.arange(10)[::-1], out=h[1]),
    "a cumulative method's out": lambda h: h.cumsum(axis=0, out=h),
    "a shuffle": lambda h: rng().shuffle(h),
    "a reshaped view": lambda h: h.reshape(100).__setitem__(slice(40, 60), 0),
    "a ravelled view": lambda h: h.ravel().__setitem__(3, 0),
    "a transposed view": lambda h: h.T.__setitem__(3, 0),
    "a view by np.reshape": lambda h: np.reshape(h, (20, 5)).__setitem__(3, 0),
    "a view by np.split": lambda h: np.split(h, 2)[1].__setitem__(slice(None), 0),
    "a diagonal of a view": lambda h: np.swapaxes(h, 0, 1)[2:3].__setitem__(slice(None), 0),
    "a row while iterating": lambda h: [row.__setitem__(slice(None), i * 2.0) for i, row in enumerate(h)],
    "a view of another dtype": lambda h: h.view(np.int64).__setitem__((0, 0), 77),
    "a view of a view": lambda h: h[1:][2:][0].__setitem__(slice(2, 4), 0),
    "what np.require gives": lambda h: np.require(h, requirements="CW").__setitem__(0, -1),
    "np.rot90 of a view": lambda h: np.rot90(h).__setitem__(0, -1),
    "np.flip of a view": lambda h: np.flip(h)[2:4].fill(-1),
    "a diagonal by np.einsum": lambda h: np.einsum("ii->i", h).__setitem__(slice(None), -1),
    "a transpose by np.einsum": lambda h: np.einsum("ij->ji", h).sort(axis=0),
    "a view by np.broadcast_arrays": lambda h: np.broadcast_arrays(h, np.zeros((10, 1)))[0].__setitem__(0, -1),
    "a sliding window": lambda h: sliding_window_view(h, 3, axis=0, writeable=True).__setitem__((0, 0, 0), -1),
    "a strided view that keeps the class": lambda h: as_strided(h, (5,), (16,), subok=True).__setitem__(2, -1),
    "a view of a result": lambda h: np.rot90(h)[1:].T.__setitem__(0, -1),
    "np.unstack": lambda h: np.unstack(h)[3].__setitem__(0, -1),
    "np.apply_along_axis": lambda h: np.apply_along_axis(lambda row: row.fill(-1) or row, 0, h),
    "np.median that may overwrite": lambda h: (h.__setitem__(slice(None), h[::-1].copy()), np.median(h, axis=0, overwrite_input=True)),
    "np.stack out": lambda h: np.stack([np.ones(10)] * 10, out=h),
    "np.outer out": lambda h: np.outer(np.ones(10), np.ones(10), out=h),
    "np.linalg.multi_dot out": lambda h: np.linalg.multi_dot([np.eye(10)] * 3, out=h),
    "np.squeeze of a view": lambda h: np.squeeze(h[3:4]).__setitem__(slice(None), 0),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_write_is_noticed_and_arrives(sim, name):
    buffer = synced(sim)
    plain = np.arange(100.0).reshape(10, 10)
    WRITES[name](buffer.host)
    WRITES[name](plain)
    assert buffer.state is S.HOST_DIRTY
    np.testing.assert_array_equal(buffer.device.to_numpy(), plain)
    assert buffer.state is S.SYNCHRONIZED


def test_augmented_assignment_to_the_property_works(sim):
    buffer = synced(sim)
    buffer.host += 1
    buffer.host[2] *= 2
    buffer[3] = 0
    expected = np.arange(100.0).reshape(10, 10) + 1
    expected[2] *= 2
    expected[3] = 0
    np.testing.assert_array_equal(buffer.device.to_numpy(), expected)
    with pytest.raises(ValueError, match=r"buffer\.host\[\.\.\.\]"):
        buffer.host = expected


@pytest.mark.parametrize(
    ("write", "spanned"),
    [
        (lambda h: h.__setitem__(5, 1.0), 80),
        (lambda h: h.__setitem__((5, 5), 1.0), 8),
        (lambda h: h.__setitem__((slice(2, 4), slice(3, 5)), 1.0), 8 * 12),
        (lambda h: h.__setitem__([2, 3], 1.0), 160),
        (lambda h: h.__setitem__(np.arange(10) == 9, 1.0), 80),
        (lambda h: np.add(h[7], 1, out=h[7]), 80),
        (lambda h: h.reshape(100)[10:12].fill(3), 16),
    ],
)
def test_only_what_a_write_spans_travels(sim, moved, write, spanned):
    buffer = synced(sim)
    count = moved(buffer)
    write(buffer.host)
    buffer.sync_to_device()
    assert count.since() == (1, spanned, 0, 0)
    np.testing.assert_array_equal(buffer.device.to_numpy(), buffer.host)


def test_a_write_first_updates_its_span(sim, moved):
    buffer = synced(sim)
    kept = buffer.host
    buffer.device.copy_from(np.full((10, 10), 7.0))
    buffer.mark_device_dirty()
    count = moved(buffer)
    kept[2, 3:5] += 1  # on an array that is out of date
    assert count.since()[2:] == (1, 16)
    assert buffer.state is S.MIXED
    expected = np.full((10, 10), 7.0)
    expected[2, 3:5] += 1
    buffer.synchronize()
    np.testing.assert_array_equal(buffer.host, expected)
    np.testing.assert_array_equal(buffer.device.to_numpy(), expected)


def test_a_refused_assignment_counts_as_no_write(sim):
    buffer = synced(sim)
    for key, value in ((slice(None), np.zeros(3)), (0, [1, 2]), ((11, 0), 1), (slice(None), [[1], [1, 2]])):
        with pytest.raises((ValueError, IndexError)):
            buffer.host[key] = value
        assert buffer.state is S.SYNCHRONIZED


def test_an_assignment_that_fails_half_way_counts(sim):
    buffer = UnifiedBuffer(4, np.int64, device=sim)
    buffer.host[:] = 1
    buffer.sync_to_device()

    class Bad:
        def __int__(self):
            raise RuntimeError("no number")

        __index__ = __int__

    with pytest.raises(RuntimeError, match="no number"):
        buffer.host[[0, 1]] = np.array([5, Bad()], dtype=object)
    assert buffer.state is S.HOST_DIRTY
    np.testing.assert_array_equal(buffer.device.to_numpy(), buffer.host)


def test_refused_writes_mark_nothing(sim):
    buffer = synced(sim)
    view = buffer.host[2:4]
    view.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        view[:] = 0
    assert buffer.state is S.SYNCHRONIZED


@pytest.mark.parametrize(
    "change",
    [
        lambda h: setattr(h, "shape", (5, 20)),
        lambda h: setattr(h, "dtype", np.int64),
        lambda h: setattr(h.flags, "writeable", False),
        lambda h: h.__setstate__((1, (10, 10), np.dtype(np.float64), False, bytes(800))),
    ],
    ids=["shape", "dtype", "flags", "state"],
)
def test_changes_of_an_array_object_stay_there(discrete, change):
    buffer = synced(discrete)
    kept = buffer.host
    assert buffer.host is kept
    change(kept)
    again = buffer.host
    assert (again.shape, again.dtype, again.flags.writeable) == ((10, 10), np.float64, True)
    again[2, 3] = -1
    assert buffer.state is S.HOST_DIRTY and buffer.host is again
    expected = np.arange(100.0).reshape(10, 10)
    expected[2, 3] = -1
    np.testing.assert_array_equal(buffer.device.to_numpy(), expected)


def test_methods_with_out_are_noticed(sim):
    """Of elements that they have nothing to do with: NumPy then copies without asking a ufunc."""
    for write in (lambda s, t: s.round(0, t), lambda s, t: s.round(out=t), lambda s, t: s.conj(t), lambda s, t: s.conjugate(t)):
        source, target = synced(sim, dtype=np.int64), synced(sim, 0, np.int64)
        write(source.host, target.host)
        assert (source.state, target.state) == (S.SYNCHRONIZED, S.HOST_DIRTY)
        np.testing.assert_array_equal(target.device.to_numpy(), source.to_numpy())


def test_results_are_plain_arrays(sim):
    host = synced(sim).host
    for made in (host + 1, host.copy(), host.astype(np.float32), np.sort(host), host.sum(axis=0), np.concatenate([host, host]),
                 copy.copy(host), copy.deepcopy(host), pickle.loads(pickle.dumps(host)), host.flatten(), np.array(host)):  # fmt: skip
        assert type(made) is np.ndarray
        assert not np.shares_memory(made, host)
    for view in (host[2:], host.T, host.reshape(-1), np.reshape(host, 100), host[..., None], host.view()):
        assert isinstance(view, HostArray)
        assert np.shares_memory(view, host)


def test_indexed_copies_are_no_part_of_the_buffer(sim):
    buffer = synced(sim)
    taken = buffer.host[[1, 2]]
    taken[:] = 0
    assert buffer.state is S.SYNCHRONIZED


def test_complex_parts_are_noticed(sim):
    buffer = synced(sim, 1 + 2j, np.complex128, (5,))
    buffer.host.imag = 9
    buffer.host.real[1] = 4
    np.testing.assert_array_equal(buffer.device.to_numpy(), [1 + 9j, 4 + 9j, 1 + 9j, 1 + 9j, 1 + 9j])


def test_fields_of_structured_elements_are_noticed(sim):
    buffer = UnifiedBuffer(4, np.dtype([("a", "i4"), ("b", "f8")]), device=sim)
    buffer.host[:] = (1, 2.0)
    buffer.sync_to_device()
    buffer.host["b"] = 5
    assert buffer.state is S.HOST_DIRTY
    buffer.sync_to_device()
    buffer.host["a"][2] = 7
    assert buffer.state is S.HOST_DIRTY
    assert buffer.device.to_numpy().tolist() == [(1, 5.0), (1, 5.0), (7, 5.0), (1, 5.0)]


def test_a_scalar_buffer_can_be_written(sim):
    buffer = UnifiedBuffer((), np.float64, device=sim)
    buffer.host[()] = 3
    assert buffer.host.shape == () and float(buffer.host) == 3
    assert float(buffer.device.to_numpy()) == 3
    with pytest.raises(TypeError):
        len(buffer)


def test_other_results_are_plain_arrays(sim):
    host = synced(sim).host
    for made in (np.rot90(np.eye(3)), np.einsum("ij,jk->ik", host, host), np.broadcast_arrays(np.zeros(3), host[0, :3])[0], np.flip(host) + 1):
        assert type(made) is np.ndarray and not np.shares_memory(made, host)
    given = np.asarray(host)[2]
    for result in (np.cumsum(host[3], out=given), np.round(host[3], out=given), np.take(host[3], range(10), 0, given)):
        assert result is given and type(result) is np.ndarray


def through_nditer(host):
    for one in np.nditer(host, op_flags=["readwrite"]):
        one[...] = -1


# What docs/python.md lists as unnoticed, on one dimension of doubles.
UNNOTICED = {
    "np.asarray": lambda h: np.asarray(h).fill(-1),
    "np.ascontiguousarray": lambda h: np.ascontiguousarray(h).fill(-1),
    "a view as a plain array": lambda h: h.view(np.ndarray).fill(-1),
    "a view as np.matrix": lambda h: h.view(np.matrix).fill(-1),
    "a view as np.recarray": lambda h: h.view(np.recarray).fill(-1),
    "np.ma.array": lambda h: np.ma.array(h, copy=False).__setitem__(slice(None), -1),
    "as_strided": lambda h: as_strided(h, h.shape, h.strides).fill(-1),
    "np.nditer": through_nditer,
    "ctypes": lambda h: np.ctypeslib.as_array(h.ctypes.data_as(np.ctypeslib.ctypes.POINTER(np.ctypeslib.ctypes.c_double)), h.shape).fill(-1),
    "Generator.random": lambda h: rng().random(out=h),
    "a method of another array": lambda h: np.full(h.size, -1.0).take(np.arange(h.size), out=h),
    "a product of another array": lambda h: np.full((h.size, 1), -1.0).dot(np.ones(1), out=h),
    "a method of the base class": lambda h: np.ndarray.fill(h, -1),
}
# What cannot notice either, and is told so: it gets the memory to read.
REFUSED = {
    "memoryview": lambda h: memoryview(h).__setitem__(0, -1.0),
    "data": lambda h: np.asarray(h.data).fill(-1),
    "np.frombuffer": lambda h: np.frombuffer(h).fill(-1),
    "np.from_dlpack": lambda h: np.from_dlpack(h).fill(-1),
}
# NumPy lets go of its request before the array is written to.
LET_GO = {"np.ndarray over it": lambda h: np.ndarray(h.shape, buffer=h)}
ENOUGH = (64 << 10) // 8  # doubles that are worth tracking by pages


@pytest.mark.parametrize("name", UNNOTICED)
def test_what_nobody_can_notice_is_declared(discrete, moved, name):
    buffer = synced(discrete, 5.0, shape=(ENOUGH,))
    count = moved(buffer)
    UNNOTICED[name](buffer.host)
    assert buffer.state is S.SYNCHRONIZED
    assert (buffer.device.to_numpy() == 5).all() and count.since() == (0, 0, 0, 0)
    written = buffer.to_numpy()
    assert (written != 5).any()
    buffer.mark_host_dirty()
    assert buffer.state is S.HOST_DIRTY
    np.testing.assert_array_equal(buffer.device.to_numpy(), written)
    assert count.since() == (1, 8 * ENOUGH, 0, 0)


@pytest.mark.parametrize("name", REFUSED)
def test_what_could_not_notice_is_read_only(discrete, moved, name):
    buffer = synced(discrete, 5.0, shape=(ENOUGH,))
    count, host = moved(buffer), buffer.host
    with pytest.raises((TypeError, ValueError), match="read-only"):
        REFUSED[name](host)
    assert host.flags.writeable and (buffer.state, count.since()) == (S.SYNCHRONIZED, (0, 0, 0, 0))
    assert (buffer.device.to_numpy() == 5).all() and (host == 5).all()
    with pytest.raises((TypeError, ValueError, BufferError), match="read-only|not C-contiguous"):
        REFUSED[name](host[::2])


def test_a_request_that_is_let_go_counts_and_nothing_afterwards(discrete, moved):
    buffer = synced(discrete, 5.0, shape=(ENOUGH,))
    array = LET_GO["np.ndarray over it"](buffer.host)
    assert buffer.state is S.HOST_DIRTY
    buffer.sync_to_device()
    array.fill(-1)
    assert buffer.state is S.SYNCHRONIZED and (buffer.device.to_numpy() == 5).all()
    buffer.mark_host_dirty()
    assert (buffer.device.to_numpy() == -1).all()


@pytest.mark.parametrize("name", [*UNNOTICED, *REFUSED, *LET_GO])
def test_tracking_by_pages_notices_what_nobody_else_can(discrete, moved, name):
    try:
        buffer = UnifiedBuffer(ENOUGH, np.float64, device=discrete, tracking=Tracking.PAGES)
    except UnsupportedOperation as error:
        pytest.skip(str(error))
    assert buffer.tracking is Tracking.PAGES
    buffer.host[:] = 5
    buffer.sync_to_device()
    assert buffer.state is S.SYNCHRONIZED
    count = moved(buffer)
    result = {**UNNOTICED, **REFUSED, **LET_GO}[name](buffer.host)
    if name in LET_GO:
        result.fill(-1)
    assert buffer.state is S.HOST_DIRTY
    written = buffer.to_numpy()
    assert (written != 5).any()
    np.testing.assert_array_equal(buffer.device.to_numpy(), written)
    assert buffer.state is S.SYNCHRONIZED
    copies, sent, *back = count.since()
    changed = np.flatnonzero(written != 5)
    pages = changed[-1] * 8 // 4096 - changed[0] * 8 // 4096 + 1
    assert (copies, back) == (1, [0, 0]) and changed.size * 8 <= sent <= 4096 * pages


def test_manual_tracking_counts_only_marks(sim):
    buffer = UnifiedBuffer(100, device=sim, tracking=Tracking.MANUAL)
    buffer.host[:] = 1
    buffer.mark_host_dirty()
    buffer.sync_to_device()
    buffer.host[:] = 2
    assert buffer.state is S.SYNCHRONIZED
    buffer.mark_host_dirty()
    np.testing.assert_array_equal(buffer.device.to_numpy(), np.full(100, 2))


def test_only_written_bytes_of_a_page_travel(sim, moved):
    try:
        buffer = UnifiedBuffer(1 << 20, np.uint8, device=sim, tracking=Tracking.PAGES)
    except UnsupportedOperation as error:
        pytest.skip(str(error))
    assert buffer.tracking is Tracking.PAGES
    buffer.host[:] = 0
    buffer.sync_to_device()
    assert buffer.state is S.SYNCHRONIZED
    count = moved(buffer)
    plain = np.asarray(buffer.host)
    plain[70_000] = 9
    assert buffer.state is S.HOST_DIRTY
    assert buffer.device.to_numpy()[70_000] == 9
    assert count.since() == (1, 4096, 0, 0)
