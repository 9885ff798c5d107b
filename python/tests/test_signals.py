"""What a manager tells and is told: limits for a block, pressure, links; advice of buffers."""

import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest
from sample_buffers import DATA, check_both, made

import unimem
from unimem import Advice, LinkSource, Location, MemoryManager, PressureLevel, UnifiedBuffer

MIB = 1 << 20


def test_a_limit_ends_with_its_block(sim):
    manager = MemoryManager()
    before = manager.total_memory(sim)
    with manager.limit(sim, "1MiB") as inside:
        assert inside is manager and manager.total_memory(sim) == MIB
        with manager.limit(sim, "64KiB"):
            assert manager.total_memory(sim) == 64 << 10
            with pytest.raises(unimem.OutOfMemory) as caught:
                UnifiedBuffer(MIB, np.uint8, device=sim, manager=manager).allocate(False, True)
            assert caught.value.limit == 64 << 10
        assert manager.total_memory(sim) == MIB
        fits = UnifiedBuffer(MIB // 2, np.uint8, device=sim, manager=manager).allocate(False, True)
    assert manager.total_memory(sim) == before
    larger = UnifiedBuffer(64 * MIB, np.uint8, device=sim, manager=manager).allocate(False, True)
    assert fits.is_allocated and larger.is_allocated


def test_a_limit_ends_also_after_an_exception(sim):
    manager = MemoryManager()
    manager.set_limit(sim, "8MiB")
    with pytest.raises(ZeroDivisionError), manager.limit(sim, "1MiB"):
        1 / 0  # noqa: B018
    assert manager.total_memory(sim) == 8 * MIB
    with manager.limit("cpu", "64MiB", location=Location.PINNED):
        assert {(one.location, one.limit_bytes) for one in manager.snapshot().limits if one.device == "cpu"} >= {(Location.PINNED, 64 * MIB)}
    assert (Location.PINNED, 64 * MIB) not in {(one.location, one.limit_bytes) for one in manager.snapshot().limits}


def test_a_limit_that_is_refused_changes_nothing(sim):
    manager = MemoryManager()
    manager.set_limit(sim, "8MiB")
    live = UnifiedBuffer(4 * MIB, np.uint8, device=sim, manager=manager).allocate(False, True)
    with pytest.raises(unimem.InvalidArgument), manager.limit(sim, "1MiB"):
        raise AssertionError("the block must not begin")
    assert manager.total_memory(sim) == 8 * MIB
    with pytest.raises(unimem.InvalidArgument), manager.limit(sim, "64MiB"):  # noqa: PT012
        more = UnifiedBuffer(16 * MIB, np.uint8, device=sim, manager=manager).allocate(False, True)
    assert manager.total_memory(sim) == 64 * MIB, "what is live cannot be taken back"
    assert live.is_allocated and more.is_allocated


def test_pressure_is_told_once_a_crossing(sim):
    manager, told = MemoryManager(), []
    manager.set_limit(sim, "10MiB")
    subscription = manager.on_pressure(told.append)
    buffer = UnifiedBuffer(9 * MIB, np.uint8, device=sim, manager=manager).allocate(False, True)
    manager.settle_pressure()
    assert [(one.device, one.location, one.before, one.now, one.limit_bytes) for one in told] == [
        (sim, Location.DEVICE, PressureLevel.NONE, PressureLevel.HIGH, 10 * MIB)
    ]
    assert told[0].live_bytes >= 9 * MIB and manager.pressure(sim) is PressureLevel.HIGH
    assert manager.statistics.pressure_calls == 1 and '"now": "high"' in told[0].to_json()
    buffer.free()
    assert manager.pressure(sim) is PressureLevel.NONE
    manager.settle_pressure()
    assert [(one.before, one.now) for one in told[1:]] == [(PressureLevel.HIGH, PressureLevel.NONE)]
    subscription.end()
    subscription.end()
    again = UnifiedBuffer(9 * MIB, np.uint8, device=sim, manager=manager).allocate(False, True)
    manager.settle_pressure()
    assert len(told) == 2 and again.is_allocated
    with pytest.raises(unimem.InvalidArgument, match="callable"):
        manager.on_pressure(3)


def test_a_callback_may_free_and_end_itself(sim):
    manager, seen = MemoryManager(), threading.Event()
    manager.set_limit(sim, "10MiB")
    buffer = UnifiedBuffer(9 * MIB, np.uint8, device=sim, manager=manager)

    def callback(change):
        buffer.free()
        subscription.end()
        seen.set()

    subscription = manager.on_pressure(callback)
    buffer.allocate(False, True)
    assert seen.wait(60)
    manager.settle_pressure()
    assert not buffer.is_allocated and manager.pressure(sim) is PressureLevel.NONE


def test_an_interpreter_ends_with_subscriptions():
    code = """
        import unimem, numpy as np
        manager = unimem.MemoryManager()
        sim = unimem.make_sim("memory=16MiB")
        manager.set_limit(sim, "10MiB")
        manager.on_pressure(lambda change: print(change.now))
        buffer = unimem.UnifiedBuffer(9 << 20, np.uint8, device=sim, manager=manager).allocate(False, True)
        manager.settle_pressure()
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "HIGH\n", "")


def test_links_are_what_a_device_says():
    near = unimem.make_sim("memory=16MiB,h2d=12GB/s,d2h=6GB/s,latency=10us")
    far = unimem.make_sim("memory=16MiB,h2d=3GB/s,d2h=3GB/s,latency=10us")
    links = {(one.source, one.target): one for one in MemoryManager().links(near, far)}
    up = links["host", near.id]
    assert (up.bytes_per_second, up.latency_seconds, up.via_host, up.known_by) == (12e9, 10e-6, False, LinkSource.CONFIGURED)
    assert links[near.id, "host"].bytes_per_second == 6e9 and {(near.id, far.id), (far.id, near.id)} <= links.keys()
    assert up.seconds(12_000_000) == pytest.approx(1e-3 + 10e-6)
    assert MemoryManager().links("cpu") == ()


def test_advice_holds_until_it_is_taken_back(sim):
    buffer = made(sim)
    buffer.advise(Advice.READ_MOSTLY)
    buffer.slice(100, 50).advise(Advice.PREFERRED_LOCATION, "cpu")
    assert buffer.advice == [(Advice.READ_MOSTLY, None, slice(0, 4000)), (Advice.PREFERRED_LOCATION, unimem.device("cpu"), slice(400, 600))]
    buffer.unadvise(Advice.READ_MOSTLY)
    assert [one[0] for one in buffer.advice] == [Advice.PREFERRED_LOCATION]
    with pytest.raises(unimem.InvalidArgument, match="Advice"):
        buffer.advise("read_mostly")
    check_both(buffer, DATA)


def test_the_copy_that_will_be_used_goes_last():
    """Advice decides between two equals, as does priority."""
    for hint in ("will_use", "wont_use", "priority"):
        device = unimem.make_sim("memory=64MiB")
        manager = MemoryManager()
        manager.set_limit(device, "12MiB")
        kept, gone = (UnifiedBuffer(4 * MIB, np.uint8, device=device, manager=manager).fill(7) for _ in range(2))
        for one in (kept, gone):
            one.synchronize()
        if hint == "will_use":
            kept.will_use()
        elif hint == "wont_use":
            gone.wont_use()
        else:
            kept.priority = 5
        third = UnifiedBuffer(6 * MIB, np.uint8, device=device, manager=manager).allocate(False, True)
        assert (kept.valid_on(), gone.valid_on()) == (True, False), hint
        assert third.is_allocated and (gone.to_numpy() == 7).all() and (kept.to_numpy() == 7).all()
