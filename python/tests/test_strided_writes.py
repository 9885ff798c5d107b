"""Writes to strided parts of a buffer count as what they write, and move as rows where that is cheaper."""

import numpy as np
import pytest

from sample_buffers import adding, check_both, synced

from unimem import BufferState, launch, readwrite

S = BufferState
ADD = adding("int")


def counting(*shape):
    return np.arange(np.prod(shape), dtype=np.int32).reshape(shape)


def moved_by(buffer, write, least, most):
    """Writes, synchronizes and compares what moved. On hardware what lies between may go along, where that was measured to be cheaper."""
    before = buffer.statistics.host_to_device_bytes
    write(buffer.host)
    assert buffer.state == S.HOST_DIRTY
    buffer.sync_to_device()
    assert buffer.state == S.SYNCHRONIZED
    sent = buffer.statistics.host_to_device_bytes - before
    assert least <= sent <= (most if buffer.default_device.backend == "sim" else buffer.nbytes)


ROW = 1000 * 4
CASES = {
    # key of an array of 1000 rows of 1000: what must move at least, and may at most
    "a column": (np.s_[:, 0], 4000, 4000),
    "the last column, backwards": (np.s_[::-1, -1], 4000, 4000),
    "first and last row": ([0, 999], 2 * ROW, 2 * ROW),
    "as an array, from the end": (np.array([-1, -1000]), 2 * ROW, 2 * ROW),
    "first and last row, by step": (np.s_[::999], 2 * ROW, 2 * ROW),
    "by a mask": (np.arange(1000) % 999 == 0, 2 * ROW, 2 * ROW),
    "every fifth row": (np.s_[::5], 200 * ROW, 200 * ROW),
    "a block": (np.s_[10:20, 10:20], 400, 400),
    "two columns side by side": (np.s_[:, 3:5], 8000, 8000),
    "the first and the last element of a row": (np.s_[5, [0, 999]], 8, 8),
    "two columns of every third row": (np.s_[::3, ::500], 334 * 8, 334 * 2004),
    "chosen columns": (np.s_[:, [400, 0]], 8000, 1000 * 1604),
    "chosen elements of chosen rows": (np.s_[[0, 999], 5], 8, 2 * ROW),
    "a whole row": (7, ROW, ROW),
    "scattered rows": ([1, 500, 502, 999], 4 * ROW, 999 * ROW),
    "everything": (np.s_[...], 1000 * ROW, 1000 * ROW),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_written_is_what_moves(discrete, name):
    key, least, most = CASES[name]
    data = counting(1000, 1000)
    buffer = synced(discrete, data)
    moved_by(buffer, lambda host: host.__setitem__(key, -7), least, most)
    data[key] = -7
    check_both(buffer, data)


def test_rows_of_views_and_of_functions_that_write(discrete):
    data = counting(1000, 1000)
    buffer = synced(discrete, data)
    for write in (
        lambda a: a[:, 5].fill(3),
        lambda a: a.T[6].__setitem__(slice(None), 4),
        lambda a: np.add(a[:, 7], 1, out=a[:, 7]),
        lambda a: np.copyto(a[:, 8], 2),
        lambda a: a[::-1, 9].sort(),
        lambda a: a.reshape(500, 2, 1000)[:, 0, 10].__setitem__(slice(None), 1),
    ):
        moved_by(buffer, write, 2000, 4000)
        write(data)
        check_both(buffer, data)


def test_newer_device_bytes_are_not_marked(discrete):
    data = counting(100, 1000)
    buffer = synced(discrete, data)
    launch(ADD, data.size, readwrite(buffer), 5, device=discrete)
    data += 5

    def write(a):
        a[:, 3] = -1

    moved_by(buffer, write, 400, 400)
    write(data)
    check_both(buffer, data)


def test_several_columns_are_one_command(discrete):
    data = counting(1000, 3000)
    buffer = synced(discrete, data)

    def write(a):
        a[:, 0] = -1
        a[:, 2000] = -2

    moved_by(buffer, write, 8000, 1000 * 2001 * 4)
    write(data)
    check_both(buffer, data)


def test_a_column_and_rows_are_few_commands(discrete):
    data = counting(1000, 1000)
    buffer = synced(discrete, data)

    def write(a):
        a[:, 0] = 1
        a[[5, 999]] = 2
        a[500, 20:30] = 3

    moved_by(buffer, write, (998 + 2000 + 10) * 4, (998 + 2000 + 10) * 4)
    write(data)
    check_both(buffer, data)


def test_narrow_gaps_go_along(discrete):
    """Rows of 1 KiB: a thousand ranges would cost more than the bytes between them."""
    data = counting(1000, 256)
    buffer = synced(discrete, data)
    moved_by(buffer, lambda host: host.__setitem__(np.s_[:, 0], 7), (999 * 256 + 1) * 4, (999 * 256 + 1) * 4)
    data[:, 0] = 7
    check_both(buffer, data)


def test_more_rows_than_are_kept_apart(discrete):
    data = counting(5000, 700)
    buffer = synced(discrete, data)
    moved_by(buffer, lambda host: host.__setitem__(np.s_[:, 0], 7), (4999 * 700 + 1) * 4, (4999 * 700 + 1) * 4)
    data[:, 0] = 7
    check_both(buffer, data)


def random_key(random, shape):
    def one(extent):
        kind = random.integers(7)
        if kind == 0:
            return int(random.integers(-extent, extent))
        if kind == 1 and extent > 1:
            return [int(i) for i in random.integers(-extent, extent, random.integers(1, 4))]
        if kind == 2:
            return slice(None, None, -int(random.integers(1, extent + 1)))
        start, stop = sorted(int(i) for i in random.integers(0, extent + 1, 2))
        return slice(start, stop, int(random.integers(1, 4)))

    if random.integers(6) == 0:
        return random.random(shape[: random.integers(1, len(shape) + 1)]) < random.choice([0.01, 0.5])
    parts = [one(extent) for extent in shape[: random.integers(1, len(shape) + 1)]]
    lists = [i for i, part in enumerate(parts) if isinstance(part, list)]
    for i in lists[1:]:  # lists are taken together, and must be equally long
        parts[i] = slice(None)
    return tuple(parts)


@pytest.mark.parametrize("seed", range(8))
def test_random_writes_leave_both_sides_equal(discrete, seed):
    """Against NumPy, which knows no sides: views of an array, written through any key, with work of a device between."""
    random = np.random.default_rng(seed)
    data = counting(*[(60, 3000), (7, 40, 1200), (5000,), (3, 4, 5, 900)][seed % 4])
    buffer = synced(discrete, data)
    print("seed", seed)
    for step in range(60):
        views = [lambda a: a, lambda a: a.T, lambda a: a[::-1], lambda a: a[..., ::2]]
        view = views[random.integers(len(views))]
        key = random_key(random, view(data).shape)
        for one in (buffer.host, data):
            view(one)[key] = step
        if random.integers(3) == 0:
            launch(ADD, data.size, readwrite(buffer), 1, device=discrete)
            data += 1
        if random.integers(3) == 0:
            check_both(buffer, data)
    check_both(buffer, data)
