"""What a manager tells of its memory: usage, leaks, placements and their reasons, recommendations, and statistics in every form."""

import copy
import functools
import gc
import json
import inspect
import pickle
import re
import sys

import numpy as np
import pytest

import unimem
from unimem import AccessPattern, Location, MemoryManager, Optimization, Placement, PlacementRule, UnifiedBuffer


def settled(device):
    """What queues have left to do would hold buffers that are gone."""
    gc.collect()
    device.synchronize()


def line_of_this(less=0):
    """What a line of this file is called: the caller's, or one above it."""
    return f"tests/test_usage.py:{sys._getframe(1).f_lineno + less}"


def places(usage):
    return {(one.device, one.location): one.counts for one in usage.places}


def test_usage_has_every_byte(discrete):
    manager = MemoryManager()
    weights = UnifiedBuffer(1000, np.float32, device=discrete, manager=manager, name="weights")
    other = UnifiedBuffer(10, np.uint8, device=discrete, manager=manager)
    made_here = line_of_this(-1)
    weights.host[:] = 1
    weights.sync_to_device()
    other.allocate(host=True, device=False)

    usage = manager.usage()
    lines = {(one.device, one.location, one.name): one.counts for one in usage.lines}
    on_device = lines[discrete.id, Location.DEVICE, "weights"]
    assert (on_device.live, on_device.live_bytes, on_device.copies_in, on_device.bytes_in) == (1, 4000, 1, 4000)
    on_host = lines["cpu", Location.HOST, "weights"]
    assert (on_host.live_bytes, on_host.copies_out, on_host.bytes_out) == (4000, 1, 4000)
    assert lines["cpu", Location.HOST, made_here].live_bytes == 10
    # Lines sum to places, places to the total.
    assert places(usage)["cpu", Location.HOST].live_bytes == 4010
    assert usage.total.live_bytes == 8010 and usage.total.live == 3

    del weights, other
    settled(discrete)
    after = manager.usage().total
    assert (after.live, after.live_bytes, after.peak_bytes, after.releases) == (0, 0, 8010, 3)


def test_unnamed_buffers_are_known_by_line(discrete):
    manager = MemoryManager()

    def make():
        return UnifiedBuffer(10, np.uint8, device=discrete, manager=manager).allocate()

    many, line_of_many = [make() for _ in range(3)], line_of_this(-2)
    data = np.arange(5, dtype=np.uint8)
    alike, line_of_alike = UnifiedBuffer.from_array(data, device=discrete, manager=manager).allocate(), line_of_this()
    placed, line_of_placed = manager.allocate((7,), np.uint8, device=discrete, location=Location.HOST), line_of_this()
    program = {"__name__": "program", "make": functools.partial(UnifiedBuffer, 10, np.uint8, device=discrete, manager=manager)}
    exec(compile("\n\nmade = make().allocate()", "/home/somebody/solver/heat.py", "exec"), program)
    lines = {(one.location, one.name): one.counts for one in manager.usage().lines}
    assert lines[Location.DEVICE, line_of_many].live_bytes == 30 and lines[Location.DEVICE, line_of_many].live == 3
    assert lines[Location.DEVICE, line_of_alike].live_bytes == 5
    assert lines[Location.HOST, line_of_placed].live_bytes == 7
    assert lines[Location.DEVICE, "solver/heat.py:3"].live_bytes == 10
    assert {one.name for one in manager.leak_report().allocations} == {line_of_many, line_of_alike, line_of_placed, "solver/heat.py:3"}
    assert many[0].name == "" and alike.name == ""
    del many, alike, placed, program


def test_usage_is_told_as_text_json_and_html(sim):
    manager = MemoryManager()
    kept = UnifiedBuffer(1000, device=sim, manager=manager, name="<kept>").allocate()
    usage = manager.usage()
    assert "<kept>" in usage.text() and str(usage) == usage.text()
    told = json.loads(usage.to_json())
    assert told["schema"] == 1 and told["total"]["live_bytes"] == 8000
    assert {(one["device"], one["location"], one["name"]) for one in told["lines"]} == {
        (one.device, one.location.value, one.name) for one in usage.lines
    }
    assert "&lt;kept&gt;" in usage._repr_html_() and "<kept>" not in usage._repr_html_()
    del kept


def test_a_planted_leak_is_found(discrete):
    manager = MemoryManager()
    for _ in range(100):
        UnifiedBuffer(100, device=discrete, manager=manager, name="balanced").fill(1)
    settled(discrete)
    assert not manager.leak_report() and manager.leak_report().text() == "" and manager.live() == ()

    leaked = UnifiedBuffer(500, np.float64, device=discrete, manager=manager, name="leaked")
    leaked.host[:] = 2
    leaked.sync_to_device()
    report = manager.leak_report()
    assert report and report.bytes == 8000
    assert {(one.name, one.device.id, one.location, one.bytes) for one in report.allocations} == {
        ("leaked", "cpu", Location.HOST, 4000),
        ("leaked", discrete.id, Location.DEVICE, 4000),
    }
    assert len({one.buffer for one in report.allocations}) == 1
    assert all(one.stack == () and one.age_seconds >= 0 for one in report.allocations)
    assert report.text().count("leaked") == 2 and report.text(most=1).count("leaked") == 1
    with pytest.raises(unimem.InvalidArgument, match="most"):
        report.text(most=-1)
    assert "leaked" in report._repr_html_()
    assert (leaked.to_numpy() == 2).all()


@pytest.mark.skipif(not unimem.can_capture_stacks(), reason="the library was built without what captures stacks")
def test_a_leak_tells_where_it_was_taken(sim):
    manager = MemoryManager(stacks_every=1)
    leaked = UnifiedBuffer(500, device=sim, manager=manager, name="leaked").allocate()
    stacks = [one.stack for one in manager.live()]
    assert len(stacks) == 2 and all(stacks)
    assert all(isinstance(unimem.describe_address(address), str) for address in stacks[0])
    del leaked


@pytest.mark.skipif(not unimem.can_capture_stacks(), reason="the library was built without what captures stacks")
def test_a_leak_shows_its_python_calls(sim):
    def innermost(**options):
        return UnifiedBuffer(500, device=sim, manager=manager, **options), inspect.currentframe().f_lineno

    manager = MemoryManager(stacks_every=1)
    leaked, line = innermost(name="leaked")
    _ = leaked.host  # memory is taken here, and made there
    stack = [unimem.describe_address(one) for one in manager.live()[0].stack]
    assert stack[0] == f"innermost() at {__file__}:{line}"
    assert stack[1].startswith(f"test_a_leak_shows_its_python_calls() at {__file__}:")
    assert f"innermost() at {__file__}:{line}" in manager.leak_report().text() and f"{__file__}:{line}" in manager.snapshot().to_json()
    assert unimem.describe_address(2**63 + 10**9).startswith("0x")
    clone, allocated = leaked.clone(), manager.allocate((10,), device=sim)
    firsts = [unimem.describe_address(one.stack[0]) for one in manager.live()]
    assert len(firsts) >= 3 and all(__file__ in one for one in firsts), firsts
    del leaked, clone, allocated


@pytest.mark.skipif(not unimem.can_capture_stacks(), reason="the library was built without what captures stacks")
def test_of_every_third_buffer_the_calls_are_noted(sim):
    manager = MemoryManager(stacks_every=3)
    buffers = [UnifiedBuffer(500, device=sim, manager=manager).allocate(True, False) for _ in range(9)]
    stacks = [one.stack for one in manager.live()]
    assert len(stacks) == 9 and len([one for one in stacks if one]) == 3
    assert all(__file__ in unimem.describe_address(one[0]) for one in stacks if one)
    none = MemoryManager()
    one = UnifiedBuffer(5, device=sim, manager=none).allocate()
    assert all(live.stack == () for live in none.live())
    del buffers, one


def test_placements_say_why(discrete):
    manager = MemoryManager()
    small = manager.allocate(1000, np.uint8, device=discrete)
    assert small.placement.rule is PlacementRule.SMALL and small.placement.wanted is Placement.HOST_PINNED
    assert small.location is (Location.PINNED if small.is_pinned else Location.HOST)
    medium = manager.allocate(1 << 20, np.uint8, device=discrete)
    assert (medium.placement.placement, medium.location) == (Placement.DEVICE_LOCAL, Location.DEVICE)
    assert medium.placement.rule is PlacementRule.MEDIUM and "1 MiB" in medium.placement.why()
    # The boundaries belong to the middle row.
    assert manager.place((64 << 10) - 1, device=discrete).rule is PlacementRule.SMALL
    assert manager.place("64KiB", device=discrete).rule is PlacementRule.MEDIUM
    assert manager.place("16MiB", device=discrete).rule is PlacementRule.MEDIUM
    assert manager.place((16 << 20) + 1, device=discrete).rule in (PlacementRule.LARGE, PlacementRule.DEVICE_FULL)
    read_only = manager.place("1MiB", access=AccessPattern.READ_ONLY, device=discrete)
    assert read_only.placement is Placement.READ_ONLY_OPTIMIZED
    assert UnifiedBuffer(10, device=discrete).placement is None


def test_allocations_are_placed_as_asked(discrete):
    manager = MemoryManager()
    data = np.arange(1000, dtype=np.int32)
    on_host = manager.allocate(data, device=discrete, placement=Placement.HOST_ACCESSIBLE)
    assert (on_host.location, on_host.statistics.host_to_device_copies) == (Location.HOST, 0)
    on_device = manager.allocate(data, device=discrete, location=Location.DEVICE)
    assert on_device.location is Location.DEVICE and on_device.valid_on(discrete)
    assert (on_device.statistics.host_to_device_copies, on_device.statistics.host_to_device_bytes) == (1, 4000)
    for buffer in (on_host, on_device):
        np.testing.assert_array_equal(buffer.to_numpy(), data)
    with pytest.raises(unimem.InvalidArgument):
        manager.allocate(10, device=discrete, location=Location.HOST, placement=Placement.DEVICE_LOCAL)
    with pytest.raises(unimem.InvalidArgument, match="placement"):
        manager.allocate(10, device=discrete, placement="device_local")
    with pytest.raises(unimem.InvalidArgument, match="location"):
        manager.allocate(10, device=discrete, location=3)
    with pytest.raises(unimem.InvalidArgument, match="shape"):
        manager.allocate(-1, device=discrete)
    wrapped = manager.wrap(data, device=discrete)
    wrapped.host[0] = 7
    assert data[0] == 7 and manager.usage().total.live == 3  # wrapped memory is on no book


def test_recommendations_are_the_table_until_use_says_otherwise():
    # A link so fast that locked pages pay.
    fast = unimem.make_sim("memory=256MiB,h2d=64GB/s,d2h=64GB/s")
    manager = MemoryManager()
    before = manager.recommendations(fast)
    assert (before.small_buffers, before.medium_buffers, before.large_buffers, before.read_only) == (
        Placement.HOST_PINNED,
        Placement.DEVICE_LOCAL,
        Placement.DEVICE_LOCAL,
        Placement.READ_ONLY_OPTIMIZED,
    )
    # Goes to and fro often: locked pages pay, which the table does not know.
    busy = UnifiedBuffer(1 << 20, np.uint8, device=fast, manager=manager, name="busy")
    for i in range(50):
        busy.host[:] = i
        busy.device.to_numpy()
        busy.mark_device_dirty()
        busy.sync_to_host()
    assert busy.statistics.host_to_device_copies == busy.statistics.device_to_host_copies == 50
    after = manager.recommendations(fast)
    assert after.medium_buffers is Placement.HOST_PINNED and after.hints
    assert after.hints[0] in after.text() and str(after) == after.text()
    decision = manager.place(1 << 20, device=fast, name="busy")
    # A noticed write and a mark are uses, as a read on the device is.
    assert (decision.use.host_writes, decision.use.device_writes) == (50, 50) and decision.use.device_reads >= 50
    assert decision.rule is PlacementRule.COPIED_OFTEN and decision.use.uploads == 50 and decision.use.downloaded_bytes == 50 << 20
    assert manager.place(1 << 20, device=fast, name="another").rule is PlacementRule.MEDIUM


def test_optimizing_gives_idle_copies_back_and_loses_nothing(sim):
    manager = MemoryManager()
    idle = UnifiedBuffer(1 << 18, np.float32, device=sim, manager=manager, name="idle")
    idle.host[:] = 3
    idle.sync_to_device()
    idle.wont_use(sim)
    report = manager.optimize()
    assert [(one.what, one.name, one.device, one.bytes) for one in report.steps] == [(Optimization.RELEASE, "idle", sim, 1 << 20)]
    assert report.released_bytes == 1 << 20 and "idle" in report.text() and "idle" in report._repr_html_()
    assert manager.usage().total.live_bytes == 1 << 20
    assert idle.state is unimem.BufferState.HOST_ONLY and (idle.to_numpy() == 3).all()
    assert idle.statistics.device_to_host_copies == 0
    with pytest.raises(unimem.InvalidArgument, match="max_pinned_bytes"):
        manager.optimize(max_pinned_bytes=-1)


def test_statistics_add_up(discrete):
    manager = MemoryManager()
    buffers = [UnifiedBuffer(5000, np.uint8, device=discrete, manager=manager, name="counted").allocate() for _ in range(3)]
    s = manager.statistics
    assert s.active_allocations == 6 == sum(one.pool.active_allocations for one in s.pools)
    assert {(one.device, one.location) for one in s.pools} >= {("cpu", Location.HOST), (discrete.id, Location.DEVICE)}
    on_device = next(one.pool for one in s.pools if one.device == discrete.id)
    assert on_device.total_allocations == 3 == on_device.size_classes[1].allocations and len(on_device.size_classes) == 21
    assert on_device == manager.pool(discrete).statistics
    told = json.loads(s.to_json())
    assert told["schema"] == 1 and told["active_bytes"] == s.active_bytes
    assert json.loads(on_device.to_json()) == next(one["pool"] for one in told["pools"] if one["device"] == discrete.id)
    assert manager.report() == told
    html = s._repr_html_()
    assert discrete.id in html and html.count("<table>") == 2
    if unimem.can_expose_to_prometheus():
        assert re.search(r"^unimem_active_bytes " + str(s.active_bytes), s.to_prometheus(), re.MULTILINE)
        assert f'unimem_usage_live_bytes{{device="{discrete.id}",location="device",name="counted"}} 15000' in manager.usage().to_prometheus()
    else:
        with pytest.raises(unimem.UnsupportedOperation):
            s.to_prometheus()
    del buffers


def test_a_snapshot_has_all_its_parts(discrete):
    manager = MemoryManager()
    manager.set_limit(discrete, "16MiB")
    kept = UnifiedBuffer(5000, np.uint8, device=discrete, manager=manager, name="kept").allocate()
    snapshot = manager.snapshot()
    assert snapshot.statistics == manager.statistics
    assert snapshot.usage.total.live_bytes == 10000 == snapshot.live.bytes
    assert [one.name for one in snapshot.live.allocations] == ["kept", "kept"]
    limits = {(one.device, one.location): one.limit_bytes for one in snapshot.limits}
    assert limits[discrete.id, Location.DEVICE] == 16 << 20
    assert limits.keys() == {(one.device, one.location) for one in snapshot.statistics.pools}

    told = json.loads(snapshot.to_json())
    assert list(told) == ["schema", "statistics", "usage", "live", "limits"] and told["schema"] == 1
    assert told["statistics"] == json.loads(snapshot.statistics.to_json())
    assert told["usage"] == json.loads(snapshot.usage.to_json())
    assert [one["name"] for one in told["live"]["allocations"]] == ["kept", "kept"]
    assert {(one["device"], one["location"]): one["limit_bytes"] for one in told["limits"]} == {
        (device, location.value): limit for (device, location), limit in limits.items()
    }
    text = snapshot.text()
    assert str(snapshot) == text and str(snapshot.statistics) == snapshot.statistics.text()
    assert snapshot.statistics.text() in text and snapshot.usage.text() in text and snapshot.live.text() in text
    if unimem.can_expose_to_prometheus():
        assert f'unimem_limit_bytes{{device="{discrete.id}",location="device"}} {16 << 20}' in snapshot.to_prometheus()
    else:
        with pytest.raises(unimem.UnsupportedOperation):
            snapshot.to_prometheus()
    del kept


def test_records_cannot_be_changed_and_travel_by_value(sim):
    manager = MemoryManager()
    buffer = manager.allocate(1 << 20, np.uint8, device=sim, name="one")
    pool = unimem.MemoryPool(device=sim)
    records = [
        manager.statistics, manager.usage(), manager.leak_report(), manager.snapshot(), manager.recommendations(sim), manager.optimize(),
        buffer.placement,
        buffer.statistics, unimem.transfers(sim), unimem.device_info(sim), pool.stats(), pool.limits, manager.pool(sim).fragmentation(),
        manager.pool(sim).defragment(), manager.defragment(sim), *buffer.migrations, *manager.live(),
    ]  # fmt: skip
    for one in records:
        name = next(iter(type(one).__dataclass_fields__))
        with pytest.raises(AttributeError):
            setattr(one, name, 1)
        assert one == copy.copy(one) == pickle.loads(pickle.dumps(one))
        assert isinstance(json.loads(one.to_json()), dict)
        assert one._repr_html_().startswith("<table>")
    assert json.loads(pool.stats().to_json())["hit_rate"] == 0


def test_defragmenting_keeps_within_what_it_may_move(sim):
    manager = MemoryManager()
    sixteen = [UnifiedBuffer(1 << 20, np.uint8, device=sim, manager=manager).allocate(False, True) for _ in range(16)]
    for value, buffer in enumerate(sixteen):
        buffer.host[:] = value
        buffer.sync_to_device(sim)
    del buffer, sixteen[::2]
    settled(sim)
    blocks = manager.pool(sim)
    assert manager.defragment(sim, max_moved_bytes=0, max_copied_bytes=0).blocks_moved == 0
    before = blocks.fragmentation().largest_free_block
    within = blocks.defragment(max_moved_bytes="3MiB")
    assert 2 << 20 <= within.bytes_moved <= 3 << 20
    assert within.largest_free_after > before
    assert manager.defragment(sim, max_copied_bytes=0).largest_free_after >= 8 << 20
    for wrong in (-1, 1.5, "much"):
        with pytest.raises((unimem.InvalidArgument, TypeError)):
            blocks.defragment(max_moved_bytes=wrong)
    for i, buffer in enumerate(sixteen):
        buffer.release_host()
        assert (buffer.to_numpy() == 2 * i + 1).all()


def test_a_devices_blocks_are_trimmed(sim):
    manager = MemoryManager()
    keep = [UnifiedBuffer(1 << 20, np.uint8, device=sim, manager=manager).allocate(False, True) for _ in range(8)]
    del keep[::2]
    settled(sim)
    blocks = manager.pool(sim)
    free = blocks.fragmentation()
    assert free.total_free >= 4 << 20 and 0 <= free.fragmentation_ratio < 1
    assert blocks.statistics.active_allocations == 4
    before = blocks.statistics
    given = blocks.trim()
    after = blocks.statistics
    assert given == before.reserved_bytes - after.reserved_bytes > 0 and after.total_pooled_bytes == 0
    assert all(one.valid_on(sim) is False for one in keep)
    with pytest.raises(unimem.InvalidArgument, match="keep_bytes"):
        blocks.trim(-1)
    # The host's limit, and the device's.
    manager.set_limit(sim, "4MiB")
    assert manager.total_memory(sim) == 4 << 20
    with pytest.raises(unimem.InvalidArgument):
        manager.set_limit(sim, "3MiB")
    manager.set_limit(sim, "1MiB", location=Location.HOST)
    with pytest.raises(unimem.OutOfMemory) as caught:
        UnifiedBuffer(2 << 20, np.uint8, device=sim, manager=manager).allocate(True, False)
    assert caught.value.limit == 1 << 20


def test_a_cpu_limit_bounds_host_memory(cpu, sim):
    manager = MemoryManager()
    manager.set_limit(cpu, "1MiB")
    assert manager.total_memory(cpu) == manager.available_memory(cpu) == 1 << 20
    for home in (cpu, sim):
        with pytest.raises(unimem.OutOfMemory) as caught:
            manager.allocate(2 << 20, np.uint8, location=Location.HOST, device=home)
        assert caught.value.limit == 1 << 20
    manager.set_limit(cpu, "2MiB", location=Location.HOST)
    with pytest.raises(unimem.OutOfMemory):  # a limit of one location is within that of all of it
        manager.allocate(2 << 20, np.uint8, device=cpu)
    manager.set_limit(cpu, "2MiB")
    assert manager.allocate(2 << 20, np.uint8, device=cpu).nbytes == 2 << 20


def test_a_cpu_limit_bounds_pinned_memory(cpu, sim):
    manager = MemoryManager()
    manager.set_limit("cpu", "1MiB")
    for home in (cpu, sim):
        with pytest.raises(unimem.OutOfMemory) as caught:
            UnifiedBuffer(4 << 20, np.uint8, pinned=True, device=home, manager=manager).fill(1)
        assert (caught.value.requested, caught.value.limit) == (4 << 20, 1 << 20)
    assert manager.statistics.reserved_bytes == 0

    pageable = UnifiedBuffer(768 << 10, np.uint8, device=sim, manager=manager).fill(2)
    pinned = UnifiedBuffer(512 << 10, np.uint8, pinned=True, device=sim, manager=manager)
    with pytest.raises(unimem.OutOfMemory) as caught:
        pinned.fill(3)
    assert (caught.value.limit, caught.value.live) == (1 << 20, 768 << 10)
    assert (pageable.host == 2).all()
    del pageable  # what only its pool has is given back
    assert (pinned.fill(3).host == 3).all()
    assert manager.statistics.reserved_bytes <= 1 << 20 and manager.available_memory(cpu) == 512 << 10

    manager.set_limit("cpu", "256KiB", location=Location.HOST)
    assert manager.total_memory(cpu) == 256 << 10
    with pytest.raises(unimem.InvalidArgument, match="in use in all of the host's memory"):
        manager.set_limit("cpu", "256KiB")


def test_enumerations_are_the_librarys_in_its_order():
    # What C++ calls them, in texts made from the numbers.
    manager = MemoryManager()
    sim = unimem.make_sim("memory=256MiB")
    for placement in list(Placement)[1:]:
        decision = manager.place(1 << 20, placement=placement, device=sim)
        assert decision.asked is decision.wanted is placement and decision.rule is PlacementRule.ASKED
        assert decision.why().startswith(decision.placement.value)
    for access, wanted in {AccessPattern.READ_ONLY: Placement.READ_ONLY_OPTIMIZED, AccessPattern.READ_WRITE: Placement.DEVICE_LOCAL}.items():
        assert manager.place(1 << 20, access=access, device=sim).wanted is wanted
    assert manager.place(1 << 20, device=unimem.device("cpu")).rule is PlacementRule.SHARED_MEMORY


def test_host_memory_is_spilled_and_restored(discrete, tmp_path):
    manager = MemoryManager(spill_directory=tmp_path)
    count = 1 << 18
    manager.set_limit("cpu", 2 << 20, location=Location.HOST)
    buffers = [UnifiedBuffer(count, np.uint32, device=discrete, manager=manager) for _ in range(4)]
    for number, buffer in enumerate(buffers):
        buffer.copy_from(np.full(count, number, np.uint32))
    statistics = manager.statistics
    assert (statistics.spills, statistics.spilled_bytes, statistics.spill_files) == (2, 2 << 20, 2)
    assert list(tmp_path.iterdir()) == []  # files have no names
    for number, buffer in enumerate(buffers):
        assert (buffer.to_numpy() == number).all()
    assert manager.statistics.restores >= 2
    assert json.loads(manager.statistics.to_json())["restored_bytes"] == manager.statistics.restores << 20

    kept = [buffers[0].host, buffers[1].host]  # somebody has the address
    with pytest.raises(unimem.OutOfMemory):
        _ = buffers[2].host
    before = manager.statistics
    assert (buffers[2].to_numpy() == 2).all() and (buffers[3].to_numpy() == 3).all()  # straight from the files
    part = np.zeros(10, np.uint32)
    buffers[2].slice(100, 10).copy_to(part)
    assert (part == 2).all()
    statistics = manager.statistics
    assert (statistics.direct_reads, statistics.direct_read_bytes) == (3, (2 << 20) + 40)
    assert (statistics.restores, statistics.spill_files) == (before.restores, before.spill_files)
    assert json.loads(statistics.to_json())["direct_reads"] == 3
    assert (kept[0][0], kept[1][0]) == (0, 1)
    with pytest.raises(OSError, match="nowhere"):
        MemoryManager(spill_directory=tmp_path / "nowhere")


def test_what_an_array_shows_is_spilled_when_it_is_gone(discrete, tmp_path):
    manager = MemoryManager(spill_directory=tmp_path)
    manager.set_limit("cpu", 2 << 20, location=Location.HOST)
    buffers = [UnifiedBuffer(1 << 20, np.uint8, device=discrete, manager=manager) for _ in range(4)]
    for number, buffer in enumerate(buffers):
        buffer.host[:] = number
        buffer.host[100] = 9
    assert manager.statistics.spilled_bytes == 2 << 20
    shown = buffers[0].host
    view = shown[50:200].view(np.ndarray)
    del shown
    for number, buffer in enumerate(buffers):
        array = buffer.host
        assert (array[99], array[100], array[-1]) == (number, 9, number)
        del array
    assert view[50] == 9 and view[0] == 0
    # On the cpu its memory is the host's.
    here = UnifiedBuffer(1 << 20, np.uint8, device="cpu", manager=manager)
    here.device[:] = 5
    here.mark_device_dirty()
    del view
    before = manager.statistics.host_reclaims
    assert sum(int(buffer.host[7]) for buffer in buffers) == 6 and manager.statistics.host_reclaims > before
    assert (here.to_numpy() == 5).all()


def test_equal_options_are_the_same_sim():
    one = unimem.device("sim:memory=3MiB,latency=1us")
    assert unimem.device("sim:latency=1000ns,memory=3072KiB,peer=1") == one
    first, second = (UnifiedBuffer(10, device="sim:memory=3MiB,latency=1us").fill(number) for number in (1, 2))
    first.sync_to_device()
    second.sync_to_device()
    assert first.valid_on(one) and second.valid_on(one)
    made = unimem.make_sim("memory=3MiB,latency=1us")
    assert made.id not in (one.id, unimem.make_sim("memory=3MiB,latency=1us").id)
    assert unimem.device(made.id) == made
    manager = MemoryManager()
    manager.set_limit("sim:memory=3MiB", "1MiB")
    with pytest.raises(unimem.OutOfMemory):
        UnifiedBuffer(2 << 20, np.uint8, device="sim:memory=3MiB", manager=manager).allocate(False, True)
    before = len(unimem.devices())
    for _ in range(200):
        unimem.device("sim:memory=3MiB")
    assert len(unimem.devices()) == before
    with pytest.raises(unimem.InvalidArgument, match="speed"):
        unimem.make_sim("speed=fast")
    with pytest.raises(unimem.InvalidArgument, match="options"):
        unimem.make_sim(3)  # type: ignore[arg-type]
