"""Arrays that a Python kernel keeps beyond its call: an error, and memory that stays theirs whatever becomes of the buffer meanwhile."""

import gc
import threading

import numpy as np
import pytest

import unimem
from unimem import Kernel, KernelError, UnifiedBuffer, launch, read, readwrite, write

BYTES = 1 << 16


class Keeper:
    """A kernel that keeps its first argument, and does not end before it may."""

    def __init__(self, keeps=True):
        self.kept, self.seen = [], []
        self.begun, self.may_end = threading.Event(), threading.Event()
        self._keeps = keeps

    def __call__(self, x, *others):
        self.begun.set()
        assert self.may_end.wait(60)
        self.seen.append(int(x[0]))
        for one in others:
            one[:] = x
        if x.flags.writeable:
            x[:] = 77
        if self._keeps:
            self.kept.append(x[100:])


def made(device, manager, value):
    return UnifiedBuffer(BYTES, np.uint8, device=device, manager=manager).fill(value)


def nobody_else_has(array, device, manager):
    """What others are given is not what the array shows, and the array may be written."""
    before = array.copy()
    others = [made(device, manager, i) for i in range(8)]
    for one in others:
        one.sync_to_device()
    np.testing.assert_array_equal(array, before)
    if array.flags.writeable:
        array[:] = 5
    assert [int(one.on(device).to_numpy().max() if device.backend != "cpu" else one.to_numpy().max()) for one in others] == list(range(8))
    return True


def let_go(how, buffer):
    if how == "free":
        buffer.free()
    elif how == "reset":
        buffer.reset()
    elif how == "free, and use it again":
        buffer.free().host[:] = 3


WAYS = ["free", "reset", "free, and use it again"]


@pytest.mark.parametrize("where", ["sim", "cpu"])
@pytest.mark.parametrize("intent", [read, readwrite])
@pytest.mark.parametrize("how", WAYS)
def test_kept_arrays_outlive_a_free_during_the_kernel(where, intent, how, request):
    device, manager, keeper = request.getfixturevalue(where), unimem.MemoryManager(), Keeper()
    buffer = made(device, manager, 1)
    buffer.sync_to_device()
    event = launch(Kernel("keeps").host(keeper), 1, intent(buffer))
    assert keeper.begun.wait(60)
    let_go(how, buffer)
    keeper.may_end.set()
    with pytest.raises(KernelError, match="kept argument 1"):
        event.wait()
    array = keeper.kept[0]
    assert keeper.seen == [1] and (array == (1 if intent is read else 77)).all()
    assert nobody_else_has(array, device, manager)
    del array, buffer
    keeper.kept.clear()
    gc.collect()
    device.synchronize()
    assert manager.statistics.active_bytes == 0


@pytest.mark.parametrize("where", ["sim", "cpu"])
@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("how", WAYS)
def test_a_free_before_the_kernel_changes_nothing(where, keeps, how, request):
    device, manager, first, keeper = request.getfixturevalue(where), unimem.MemoryManager(), Keeper(keeps=False), Keeper(keeps)
    keeper.may_end.set()
    buffer, result = made(device, manager, 1), made(device, manager, 0)
    launch(Kernel("holds up").host(first), 1, readwrite(buffer))
    assert first.begun.wait(60)
    event = launch(Kernel("keeps").host(keeper), 1, readwrite(buffer), write(result))
    let_go(how, buffer)
    first.may_end.set()
    if keeps:
        with pytest.raises(KernelError, match="kept argument 1"):
            event.wait()
        assert (keeper.kept[0] == 77).all() and nobody_else_has(keeper.kept[0], device, manager)
        with pytest.raises(KernelError):
            result.to_numpy()
    else:
        event.wait()
        assert (result.to_numpy() == 77).all()
    assert keeper.seen == [77]
    del buffer, result
    keeper.kept.clear()
    gc.collect()
    device.synchronize()
    assert manager.statistics.active_bytes == 0


@pytest.mark.parametrize("where", ["sim", "cpu"])
@pytest.mark.parametrize("begun", [True, False])
def test_a_pools_next_owner_shares_no_kept_array(where, begun, request):
    device, first, keeper = request.getfixturevalue(where), Keeper(keeps=False), Keeper()
    pool = unimem.MemoryPool(device=device)
    buffer = pool.acquire(BYTES, np.uint8)
    buffer.fill(1).sync_to_device()
    if not begun:
        keeper.may_end.set()
        launch(Kernel("holds up").host(first), 1, readwrite(buffer))
        assert first.begun.wait(60)
    event = launch(Kernel("keeps").host(keeper), 1, readwrite(buffer))
    assert not begun or keeper.begun.wait(60)
    pool.release(buffer)
    owners = [pool.acquire(BYTES, np.uint8) for _ in range(3)]
    first.may_end.set()
    keeper.may_end.set()
    with pytest.raises(KernelError, match="kept argument 1"):
        event.wait()
    for value, one in enumerate(owners):
        one.fill(value).sync_to_device()
    array = keeper.kept[0]
    assert (array == 77).all()
    array[:] = 5
    assert [int(one.to_numpy().max()) for one in owners] == [0, 1, 2]
    for value, one in enumerate(owners):
        one.fill(10 + value).sync_to_device()
    assert (array == 5).all()


def test_kept_arrays_keep_wrapped_memory(cpu):
    keeper = Keeper()
    buffer = UnifiedBuffer.from_array(np.full(BYTES, 1, np.uint8), device=cpu)
    event = launch(Kernel("keeps").host(keeper), 1, readwrite(buffer))
    assert keeper.begun.wait(60)
    buffer.free()
    keeper.may_end.set()
    with pytest.raises(KernelError, match="kept argument 1"):
        event.wait()
    del buffer
    gc.collect()
    others = [np.full(BYTES, i, np.uint8) for i in range(50)]
    assert (keeper.kept[0] == 77).all() and len(others) == 50


@pytest.mark.parametrize("change", [lambda b: b.release_device(), lambda b: b.resize(BYTES // 2)])
@pytest.mark.parametrize("intent", [read, readwrite])
@pytest.mark.parametrize("keeps", [True, False])
def test_taking_memory_away_waits_for_the_kernel(sim, change, intent, keeps):
    keeper = Keeper(keeps)
    buffer = made(sim, None, 1)
    buffer.sync_to_device()
    launch(Kernel("keeps").host(keeper), 1, intent(buffer))
    assert keeper.begun.wait(60)
    outcome = []

    def take_away():
        try:
            change(buffer)
            outcome.append(None)
        except unimem.Error as error:
            outcome.append(type(error))

    thread = threading.Thread(target=take_away)
    thread.start()
    keeper.may_end.set()
    thread.join()
    refused = keeps and outcome[0] is not None
    if keeps:
        # What a failed kernel wrote is told first; then its memory is somebody's.
        assert outcome[0] in (KernelError, unimem.InvalidArgument) and refused
        while True:
            try:
                assert (buffer.to_numpy() == 1).all()
                break
            except KernelError:
                continue
        with pytest.raises(unimem.InvalidArgument):
            change(buffer)
        keeper.kept.clear()
        gc.collect()
        change(buffer)
        assert (buffer.to_numpy() == 1).all()
    else:
        assert outcome == [None]
        assert (buffer.to_numpy() == (1 if intent is read else 77)).all()


def test_a_function_works_on_two_dimensions_apart(sim):
    """What a buffer let go of before the call is shown in its shape, and in C order."""
    first = Keeper(keeps=False)
    buffer = UnifiedBuffer((3, 4), np.int32, device=sim)
    buffer.host[...] = np.arange(12).reshape(3, 4)
    gate = made(sim, None, 1)
    result = UnifiedBuffer((3, 4), np.int32, device=sim)
    launch(Kernel("holds up").host(first), 1, readwrite(gate))
    assert first.begun.wait(60)

    def copy_out(x, out):
        assert x.shape == (3, 4) and x.flags.c_contiguous and not x.flags.writeable
        out[...] = x

    launch(Kernel("copies").host(copy_out), 1, read(buffer), write(result))
    buffer.free()
    first.may_end.set()
    np.testing.assert_array_equal(result.to_numpy(), np.arange(12).reshape(3, 4))


@pytest.mark.parametrize("raises", [False, True])
def test_a_kept_array_keeps_its_memory(sim, raises):
    kept = []
    manager = unimem.MemoryManager()

    def keep(x):
        x[:] = 77
        kept.append(x[100:])  # a view, which holds the array
        if raises:
            raise LookupError("after keeping it")

    buffer = unimem.UnifiedBuffer(1 << 16, np.uint8, device=sim, manager=manager)
    buffer.fill(1)
    buffer.sync_to_device()
    with pytest.raises(KernelError, match="after keeping it" if raises else "kept argument 1"):
        launch(Kernel("keeps").host(keep), 1, readwrite(buffer)).wait()
    with pytest.raises(KernelError):
        buffer.to_numpy()
    assert (buffer.to_numpy() == 1).all()  # the last good copy
    # Its memory is neither taken for somebody else, nor given back.
    with pytest.raises(unimem.InvalidArgument, match="lease"):
        buffer.release_device()
    del buffer
    gc.collect()
    live = manager.statistics.active_bytes
    assert live >= 1 << 16
    others = [unimem.UnifiedBuffer(1 << 16, np.uint8, device=sim, manager=manager).fill(i) for i in range(8)]
    for one in others:
        one.sync_to_device()
    array = kept[0]
    array[:] = 5
    assert [int(one.device.to_numpy().max()) for one in others] == list(range(8))
    assert (array == 5).all()
    del others, one, array
    kept.clear()
    gc.collect()
    sim.synchronize()
    assert manager.statistics.active_bytes == 0


def test_a_kernel_holds_only_what_it_keeps(sim):
    manager = unimem.MemoryManager()
    manager.set_limit(sim, "256KiB")
    # More than fits, launched without waiting: each makes room for the next.
    buffers = [unimem.UnifiedBuffer(1 << 16, np.uint8, device=sim, manager=manager).fill(i) for i in range(16)]
    kernel = Kernel("add").host(lambda x: np.add(x, 1, out=x))
    for one in buffers:
        launch(kernel, 1, readwrite(one))
    assert [int(one.to_numpy()[0]) for one in buffers] == list(range(1, 17))


ROOM = 2  # buffers that fit on the device below


@pytest.fixture
def crowded(sim):
    """A manager that has room for so many buffers on the device, and no more."""
    manager = unimem.MemoryManager()
    manager.set_limit(sim, ROOM * BYTES)
    return manager


def fill_the_device(sim, manager):
    """In the background: other buffers' data, all of it; and what became of that."""
    others, outcome = [made(sim, manager, 10 + i) for i in range(ROOM)], []

    def fill():
        try:
            for one in others:
                one.sync_to_device()
            outcome.append(None)
        except unimem.OutOfMemory as error:
            outcome.append(error)

    thread = threading.Thread(target=fill)
    thread.start()
    return thread, outcome, others


def until(true):
    while not true():
        threading.Event().wait(0.001)


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("only_there", [True, False])
def test_a_running_kernels_inputs_are_evicted_afterwards(sim, crowded, keeps, only_there, moved):
    keeper, two = Keeper(keeps), ROOM * BYTES
    buffer = UnifiedBuffer(two, np.uint8, device=sim, manager=crowded).fill(1)
    buffer.sync_to_device()
    if only_there:  # then it has to be saved as well
        buffer.device.copy_from(np.full(two, 3, np.uint8))
        buffer.mark_device_dirty()
    count = moved(buffer)
    event = launch(Kernel("keeps").host(keeper), 1, read(buffer))
    assert keeper.begun.wait(60)
    thread, outcome, others = fill_the_device(sim, crowded)
    until(lambda: crowded.statistics.waits != 0)
    assert crowded.statistics.reclaims == 0
    keeper.may_end.set()
    thread.join()
    value = 3 if only_there else 1
    assert keeper.seen == [value]
    if keeps:
        with pytest.raises(KernelError, match="kept argument 1"):
            event.wait()
        assert outcome[0].leased == two and crowded.statistics.reclaims == 0
        array = keeper.kept[0]
        assert (array == value).all()
        del array
        keeper.kept.clear()
        for one in others:
            one.sync_to_device()
    else:
        assert event.wait() and outcome == [None]
    assert crowded.statistics.reclaims == 1 and buffer.state is unimem.BufferState.HOST_ONLY
    assert count.since() == (0, 0, *((1, two) if only_there else (0, 0)))
    assert [one.on(sim).to_numpy().max() for one in others] == [10, 11] and (buffer.to_numpy() == value).all()


def test_an_evicted_kernel_keeps_its_own_array(sim, crowded):
    first, keeper = Keeper(keeps=False), Keeper()
    keeper.may_end.set()
    gate, buffer = made(sim, unimem.MemoryManager(), 0), UnifiedBuffer(ROOM * BYTES, np.uint8, device=sim, manager=crowded).fill(1)
    buffer.sync_to_device()
    launch(Kernel("holds up").host(first), 1, readwrite(gate))
    assert first.begun.wait(60)
    event = launch(Kernel("keeps").host(keeper), 1, read(buffer))
    thread, outcome, others = fill_the_device(sim, crowded)
    until(lambda: crowded.statistics.reclaims == 1)
    assert buffer.state is unimem.BufferState.HOST_ONLY
    first.may_end.set()
    with pytest.raises(KernelError, match="kept argument 1"):
        event.wait()
    thread.join()
    assert outcome == [None] and [one.on(sim).to_numpy().max() for one in others] == [10, 11]
    assert keeper.seen == [1] and (keeper.kept[0] == 1).all() and (buffer.to_numpy() == 1).all()


def test_a_kernel_cannot_evict_its_inputs(sim, crowded):
    buffer = UnifiedBuffer(ROOM * BYTES, np.uint8, device=sim, manager=crowded).fill(1)
    buffer.sync_to_device()
    other, kept, refused, launched = made(sim, crowded, 2), [], [], threading.Event()

    def crowd(x):
        assert launched.wait(60)
        kept.append(x)
        try:
            other.sync_to_device()
        except unimem.OutOfMemory as error:
            refused.append(error.leased)

    event = launch(Kernel("crowds").host(crowd), 1, read(buffer))
    launched.set()
    with pytest.raises(KernelError, match="kept argument 1"):
        event.wait()
    assert refused == [ROOM * BYTES] and crowded.statistics.waits == 0
    assert (kept[0] == 1).all()


def test_kept_arrays_survive_another_devices_write(sim, other_sim, crowded):
    keeper = Keeper()
    buffer = made(sim, crowded, 1)
    event = launch(Kernel("keeps").host(keeper), 1, readwrite(buffer))
    assert keeper.begun.wait(60)
    launch(Kernel("overwrites").host(lambda x: x.fill(50)), 1, write(buffer), device=other_sim).wait()
    thread, _, others = fill_the_device(sim, crowded)
    keeper.may_end.set()
    with pytest.raises(KernelError, match="kept argument 1"):
        event.wait()
    thread.join()
    more = [made(sim, crowded, 20 + i) for i in range(8)]
    for one in more:
        one.sync_to_device()
    assert (keeper.kept[0] == 77).all()
    assert [int(one.to_numpy().max()) for one in others + more] == [10, 11, *range(20, 28)]
