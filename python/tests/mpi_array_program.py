"""Ranks of MPI with arrays over all of them, by `unimem.mpi`, which test_mpi_array.py starts: any number of ranks."""

import gc
import os

import numpy as np
from mpi_samples import COMM, ME, MPI, SIM, raises, run

import unimem
from unimem import BufferState, launch, mpi, read, write
from unimem._mpi_blocks import BlockDistribution, IndexRange, Ranges, decode, encode

SEED = COMM.bcast(int.from_bytes(os.urandom(4), "little") if ME == 0 else None)
if ME == 0:
    import sys

    print("seed", SEED, file=sys.stderr)
RANKS = COMM.size


def filled(count, dtype=np.float64, values=lambda numbers: numbers, **options):
    """An array that holds its elements' numbers."""
    array = mpi.DistributedArray(count, dtype, **options)
    array.local().host[...] = values(np.arange(*array.own)).astype(dtype)
    array.fence()
    return array


def blocks_cover_everything():
    for count in (0, 1, 2, 3, 7, 100, 101):
        for ranks in (1, 2, 3, 7):
            for halo in (0, 1, 5, 1000):
                blocks = BlockDistribution(count, ranks, halo)
                owns = [blocks.own(rank) for rank in range(ranks)]
                assert [one for own in owns for one in range(*own)] == list(range(count))
                assert max(own.size for own in owns) - min(own.size for own in owns) <= 1
                for rank in range(ranks):
                    first, last = blocks.edges(rank)
                    seen = {one for other in range(ranks) if other != rank for one in range(*blocks.reach(other).common(owns[rank]))}
                    assert seen <= {*range(*first), *range(*last)}
                    order = [*range(*first), *range(*last)]
                    assert [blocks.offset_in_edges(rank, one) for one in order] == list(range(len(order)))


def ranges_are_sets():
    random = np.random.default_rng(SEED)
    mine, beside = Ranges(), set()
    for _ in range(300):
        some = [IndexRange(begin, begin + size) for begin, size in zip(random.integers(0, 90, 5).tolist(), random.integers(0, 10, 5).tolist())]
        if random.random() < 0.5:
            mine.add(some)
            beside.update(one for each in some for one in range(*each))
        else:
            mine.remove(some)
            beside.difference_update(one for each in some for one in range(*each))
        window = IndexRange(*sorted(random.integers(0, 100, 2).tolist()))
        within = mine.within(window)
        assert {one for each in within for one in range(*each)} == beside & {*range(*window)}
        assert {one for each in mine.missing(window) for one in range(*each)} == {*range(*window)} - beside
        assert mine.contains(window) == ({*range(*window)} <= beside)
        assert decode(encode(within, window.begin), window) == within
        assert all(a.end < b.begin for a, b in zip(within, within[1:]))
    for torn in (b"\x80", b"\x01", b"\x05\x60", b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01\x01"):
        raises(unimem.DeviceError, lambda: decode(torn, IndexRange(0, 100)), "list of changes")


def at_random():
    """Beside a plain array that every rank has whole: what is read is as of the last fence, own elements as of now."""
    for round_ in range(4):
        random = np.random.default_rng(SEED + round_)  # the same choices in every rank
        count, halo = int(random.integers(0, 300)), int(random.choice([0, 1, 3, 40, 1000]))
        dtype = np.dtype(random.choice(["f8", "i4", "u1", "i2", "c16"]))
        array = filled(count, dtype, halo=halo, message_bytes=int(random.choice([0, 1, 64, 1024])), device=SIM)
        fenced = np.arange(count).astype(dtype)
        for step in range(12):
            now = fenced.copy()
            for _ in range(int(random.integers(0, 20)) if count else 0):
                begin = int(random.integers(0, count))
                end = min(count, begin + int(random.integers(1, 9)))
                now[begin:end] = (np.arange(begin, end) * 3 + step) % 120
            own = array.own
            mine = now[own.begin : own.end]
            changed = np.flatnonzero(mine != fenced[own.begin : own.end])
            if step % 3 == 2 and own.size:
                launch(unimem.Kernel("rewritten").host(lambda x, values=mine: np.copyto(x, values)), own.size, write(array.local()))
            else:
                for one in changed:
                    array.local().host[one] = mine[one]
            beyond = np.random.default_rng([SEED, round_, step, ME])  # each its own
            for _ in range(3):
                begin, end = sorted(beyond.integers(array.reach.begin, array.reach.end + 1, 2).tolist())
                expected = fenced[begin:end].copy()
                common = IndexRange(begin, end).common(own)
                expected[common.begin - begin : common.end - begin] = now[common.begin : common.end]
                np.testing.assert_array_equal(array.read(begin, end).to_numpy(), expected)
            array.fence()
            fenced = now
            np.testing.assert_array_equal(array.read(*array.reach).device.to_numpy(), fenced[array.reach.begin : array.reach.end])
        if dtype.kind in "iuf":
            assert array.sum() == fenced.sum(dtype=f"{dtype.kind}8")
            if count:
                assert (array.min(), array.max()) == (fenced.min(), fenced.max())
        array.close()


def only_what_has_changed_moves():
    """A hundred edits of a byte in a halo of 64 KiB."""
    halo = 1 << 16

    def never_zero(numbers):
        return 1 + numbers % 200

    array = filled(RANKS * halo, np.uint8, never_zero, halo=halo, message_bytes=0)
    array.read(*array.reach)
    sides = (ME > 0) + (ME + 1 < RANKS)
    was = array.statistics
    assert (was.reads, was.read_bytes) == (sides, sides * halo)
    array.read(*array.reach)
    assert array.statistics == was, "it is current"
    places = np.arange(100) * 601 + 7
    array.local().host[places] ^= 0xFF
    array.local().host[50_000] = array.local().host[50_000]  # written, and the same as before
    array.fence()
    now = array.read(*array.reach).to_numpy()
    told = array.statistics
    assert (told.reads - was.reads, told.read_bytes - was.read_bytes) == (sides * 100, sides * 100)
    assert told.notice_bytes - was.notice_bytes <= sides * 300 and told.notices - was.notices == 2 * sides
    expected = never_zero(np.arange(*array.reach)).astype(np.uint8)
    for rank in range(RANKS):
        at = array.own_of(rank).begin + places - array.reach.begin
        at = at[(at >= 0) & (at < expected.size)]
        expected[at] ^= 0xFF
    np.testing.assert_array_equal(now, expected)
    array.close()
    # As one, where a message costs more than what lies between.
    array = filled(RANKS * halo, np.uint8, never_zero, halo=halo, message_bytes="1KiB")
    array.read(*array.reach)
    was = array.statistics
    array.local().host[places] ^= 0xFF
    array.fence()
    np.testing.assert_array_equal(array.read(*array.reach).to_numpy(), expected)
    told = array.statistics
    assert (told.reads - was.reads, told.read_bytes - was.read_bytes) == (sides, sides * (99 * 601 + 1))
    array.close()


def others_read_what_was():
    """The owner goes on writing, also on a device, while others read."""
    array = filled(RANKS * 10, halo=2, device=SIM)
    launch(unimem.Kernel("negated").host(lambda x: np.negative(x, out=x)), 10, unimem.readwrite(array.local()))
    np.testing.assert_array_equal(array.read(array.own.begin, array.own.end).to_numpy(), -np.arange(*array.own))
    beyond = [one for one in (array.own.begin - 1, array.own.end) if array.reach.begin <= one < array.reach.end]
    assert [array.read(one, one + 1).host[0] for one in beyond] == beyond
    moved = array.buffer_statistics.device_to_host_bytes
    array.fence()
    edges = 16 * ((ME > 0) + (ME + 1 < RANKS))
    assert array.buffer_statistics.device_to_host_bytes - moved <= edges, "the edges came, and nothing else"
    assert [array.read(one, one + 1).host[0] for one in beyond] == [-one for one in beyond]
    array.close()


def stencil():
    """The same field by any number of ranks, and the bytes of each step as computed by hand."""
    count, steps = 997, 12
    plain = np.sin(np.arange(count) / 7)
    step = unimem.Kernel("step").host(lambda old, new, skip, left, right: _step(old, new, skip, left, right))
    for device in (SIM, "cpu"):
        now, then = (mpi.DistributedArray(count, halo=1, device=device) for _ in range(2))
        now.local().host[:] = plain[now.own.begin : now.own.end]
        now.fence()
        expected = plain.copy()
        before, reads = now.statistics, 0
        for _ in range(steps):
            reach, own = now.reach, now.own
            launch(step, own.size, read(now.read(*reach)), write(then.local()), own.begin - reach.begin, own.begin == 0, own.end == count)
            then.fence()
            now, then = then, now
            reads += (reach.begin < own.begin) + (own.end < reach.end)
            following = expected.copy()
            following[1:-1] = 0.25 * expected[:-2] + 0.5 * expected[1:-1] + 0.25 * expected[2:]
            expected = following
        assert now.local().to_numpy().tobytes() == expected[now.own.begin : now.own.end].tobytes()
        total = [a + b for a, b in zip((now.statistics.reads, now.statistics.read_bytes), (then.statistics.reads, then.statistics.read_bytes))]
        assert total == [reads, 8 * reads] and before.reads == 0
        now.close()
        then.close()


def _step(old, new, skip, first, last):
    wide = np.concatenate([old[:1], old, old[-1:]])
    middle = wide[skip : skip + new.size + 2]
    np.copyto(new, 0.25 * middle[:-2] + 0.5 * middle[1:-1] + 0.25 * middle[2:])
    if first:
        new[0] = old[0]
    if last:
        new[-1] = old[-1]


def reductions():
    for dtype, values in (("i1", [-100, 100]), ("i8", [2**62, 2**62]), ("u8", [2**63, 2**63]), ("u2", [65535, 1]), ("f4", [0.5, -2.25]), ("f2", [0.5, 3]), ("f8", [1e300, 1])):
        array = mpi.DistributedArray(2 * RANKS, dtype, device=SIM)
        array.local().host[:] = values
        array.local().sync_to_device()
        every = np.tile(np.array(values, dtype), RANKS)
        assert array.sum() == every.sum(dtype=f"{array.dtype.kind}8") and (array.min(), array.max()) == (every.min(), every.max()), dtype
        array.close()
    with mpi.DistributedArray(1, "i4") as few:  # most ranks have none
        few.local().host[...] = -7
        assert (few.sum(), few.min(), few.max()) == (-7, -7, -7)
    for dtype in ("f2", "f4", "f8"):  # infinite, where most ranks have none; and not a number, in whichever rank
        with mpi.DistributedArray(1, dtype) as few:
            for value in (np.inf, -np.inf):
                few.local().host[...] = value
                assert (few.min(), few.max(), few.sum()) == (value, value, value), (dtype, value)
        for rank in range(RANKS):
            with mpi.DistributedArray(2 * RANKS, dtype, device=SIM) as array:
                array.local().host[...] = [1, np.nan if ME == rank else 2]
                assert all(np.isnan(one()) for one in (array.min, array.max, array.sum)), (dtype, rank)
    with mpi.DistributedArray(0) as none:
        assert none.sum() == 0 and none.own == (0, 0) and none.read(0, 0).size == 0
        none.fence()
        raises(unimem.InvalidArgument, none.min, "of no elements")
    with mpi.DistributedArray(4, [("a", "i4"), ("b", "f4")], halo=1) as pairs:
        for call in (pairs.sum, pairs.min, pairs.max):
            raises(unimem.InvalidArgument, call, "integers or floating-point numbers")
        if pairs.own.size:
            pairs.local().host["a"][...] = ME + 1
        pairs.fence()
        owner = {one: rank for rank in range(RANKS) for one in range(*pairs.own_of(rank))}
        assert pairs.read(*pairs.reach).to_numpy()["a"].tolist() == [owner[one] + 1 for one in range(*pairs.reach)]


def what_is_refused():
    wrong = unimem.InvalidArgument
    array = filled(10 * RANKS, halo=2)
    for begin, end in ((array.reach.begin, array.reach.end + 1), (5, 4), (-1, 3), (0, 10**30)):
        raises(wrong, lambda: array.read(begin, end))
    for rank in (RANKS, -1, 0.5, True, None):
        raises(wrong, lambda: array.own_of(rank), argument="rank")
    for call in (lambda: mpi.DistributedArray(-1), lambda: mpi.DistributedArray(10, object), lambda: mpi.DistributedArray(10, halo=-2),
                 lambda: mpi.DistributedArray(2**62, "f8"), lambda: mpi.DistributedArray("3"), lambda: mpi.DistributedArray(3, comm=MPI.COMM_NULL)):  # fmt: skip
        raises(wrong, call)
    raises(unimem.NotFound, lambda: mpi.DistributedArray(10, device="cuda:77"))
    if RANKS > 1:
        last = ME + 1 == RANKS
        raises(wrong, lambda: mpi.DistributedArray(10 + last), "count", "the same in every rank")
        raises(wrong, lambda: mpi.DistributedArray(10, halo=2 * last), "halo", "the same in every rank")
        raises(wrong, lambda: mpi.DistributedArray(10, "i8" if last else "f8"), "dtype", "the same in every rank")
        raises(wrong, lambda: mpi.DistributedArray(10, object if last else "f8"))
        raises(unimem.NotFound if last else wrong, lambda: mpi.DistributedArray(10, device="cuda:77" if last else None))
    array.close()
    array.close()
    for call in (array.fence, array.sum, array.min, array.local, lambda: array.read(*array.own)):
        raises(unimem.UnsupportedOperation, call, "it has been closed")
    assert array.statistics.reads == 0 and "size=" in repr(array)


def never_closed():
    """What is dropped, left open, or left by an exception stays with MPI, and everything ends."""
    mpi.DistributedArray(100, halo=3).fence()
    gc.collect()
    try:
        with mpi.DistributedArray(100, halo=3) as left:
            raise KeyError
    except KeyError:
        pass
    left.fence()
    left.local().host[...] = 1
    assert left.sum() == 100 and left.local().state in (BufferState.HOST_ONLY, BufferState.HOST_DIRTY, BufferState.UNINITIALIZED)


def two_communicators():
    half = COMM.Split(ME % 2)
    arrays = [mpi.DistributedArray(50, comm=comm, halo=1) for comm in (COMM, half)]
    for number, array in enumerate(arrays):
        array.local().host[...] = np.arange(*array.own) + 1000.0 * number + (ME % 2) * number
        array.fence()
    for number, array in enumerate(arrays):
        np.testing.assert_array_equal(array.read(*array.reach).to_numpy(), np.arange(*array.reach) + 1000.0 * number + (ME % 2) * number)
        array.close()
    half.Free()


run(globals())
