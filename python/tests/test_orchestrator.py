"""Kernels by name, and a device for each execution."""

import asyncio
import threading

import numpy as np
import pytest

import unimem
from unimem import InvalidArgument, Kernel, KernelError, NotFound, Orchestrator, UnifiedBuffer, read, readwrite, write

SCALE = """
UNIMEM_KERNEL scale(UNIMEM_BUFFER(float, x), float a) { UNIMEM_DATA(float, x)[UNIMEM_ITEM_X] *= a; }
"""


@pytest.fixture
def orchestrator():
    made = Orchestrator()
    made.register_kernel(Kernel("scale").source(SCALE).host(lambda x, a: np.multiply(x, a, out=x)))
    made.register_kernel(Kernel("add").host(lambda a, b, total: np.add(a, b, out=total)))
    return made


def filled(device, value, count=1000):
    buffer = UnifiedBuffer(count, device=device)
    buffer.host[:] = value
    return buffer


def test_an_execution_says_what_it_did(orchestrator, sim):
    a, b, total = filled(sim, 1), filled(sim, 2), UnifiedBuffer(1000, device=sim)
    a.sync_to_device()
    done = orchestrator.execute("add", 1000, read(a), read(b), write(total))
    assert (done.name, done.device, done.items) == ("add", sim.id, 1000)
    assert (done.bytes_moved, done.copies) == (4000, 1), "of b alone"
    assert done.seconds > 0
    assert (total.to_numpy() == 3).all()
    assert '"copies": 1' in done.to_json() and "bytes_moved" in done._repr_html_()


def test_a_buffer_passed_twice_is_counted_once(orchestrator, sim):
    x, total = filled(sim, 1), UnifiedBuffer(1000, device=sim)
    assert orchestrator.execute("add", 1000, read(x), read(x.slice(0)), write(total)).bytes_moved == 4000


def test_work_goes_to_where_its_data_is(orchestrator, sim, other_sim):
    x = filled(sim, 1)
    assert orchestrator.execute("scale", 1000, readwrite(x), 2.0).device == sim.id
    x.sync_to_host()
    x.sync_to_device(other_sim)
    x.release_device(sim)
    moved = orchestrator.execute("scale", 1000, readwrite(x), 2.0)
    assert moved.device == other_sim.id and moved.bytes_moved == 0
    assert f"0 bytes to be read are missing on {other_sim.id}" in moved.reason
    assert (x.to_numpy() == 4).all()


def test_the_form_decides_the_device(orchestrator, opencl):
    x, y, total = filled(opencl, 1), filled(opencl, 2), UnifiedBuffer(1000, device=opencl)
    assert orchestrator.execute("scale", 1000, readwrite(x), 2.0).device == opencl.id
    done = orchestrator.execute("add", 1000, read(x), read(y), write(total))
    assert done.device == "cpu" and "needs a source form" in done.reason
    assert (total.to_numpy() == 4).all()
    with pytest.raises(KernelError, match="needs a source form"):
        orchestrator.execute("add", 1000, read(x), read(y), write(total), backend="opencl")


def test_options_may_not_contradict_each_other(orchestrator, sim, other_sim):
    x = filled(sim, 1)
    assert orchestrator.execute("scale", 1000, readwrite(x), 2.0, device=other_sim).device == other_sim.id
    assert orchestrator.execute("scale", 1000, readwrite(x), 2.0, device="cpu", backend="cpu").device == "cpu"
    assert orchestrator.execute("scale", 1000, readwrite(x), 2.0, backend="cpu").device == "cpu"
    with pytest.raises(InvalidArgument, match="backend 'opencl'"):
        orchestrator.execute("scale", 1000, readwrite(x), 2.0, device=sim, backend="opencl")
    with pytest.raises(InvalidArgument, match="backend 'vulkan'"):
        orchestrator.execute("scale", 1000, readwrite(x), 2.0, backend="vulkan")
    with pytest.raises(NotFound) as missing:
        orchestrator.execute("scale", 1000, readwrite(x), 2.0, backend="metal")
    assert missing.value.name == "metal" and "cpu" in missing.value.available
    assert (x.to_numpy() == 8).all()


def test_executions_without_buffers_use_their_blocks_device(orchestrator, sim, other_sim):
    orchestrator.register_kernel(Kernel("nothing").host(lambda: None))
    orchestrator.register_kernel(Kernel("only source").source("UNIMEM_KERNEL only_source(int a) {}"))
    with sim:
        done = orchestrator.execute("nothing", 1)
        assert done.device == sim.id and done.reason == "it is the default device, and there are no buffers"
        assert orchestrator.execute("nothing", 1, backend="sim").device == sim.id
        assert orchestrator.execute("nothing", 1, backend="cpu").device == "cpu"
        assert orchestrator.execute("nothing", 1, device=other_sim).device == other_sim.id
        assert asyncio.run(orchestrator.execute_async("nothing", 1)).device == sim.id
        with pytest.raises(KernelError, match=sim.id):
            orchestrator.execute("only source", 1, 2)
        x = filled(other_sim, 1)
        assert orchestrator.execute("scale", 1000, readwrite(x), 2.0).device == other_sim.id, "where its data is"
    # A real GPU runs no host form.
    default = unimem.default_device()
    assert orchestrator.execute("nothing", 1).device == (default.id if unimem.device_info(default).runs_host_form else "cpu")


def test_launches_by_name_run_where_launches_do(orchestrator, sim, request):
    gate, seen = threading.Event(), []
    request.addfinalizer(gate.set)
    orchestrator.register_kernel(Kernel("held").host(lambda: gate.wait(60)))
    orchestrator.register_kernel(Kernel("seen").host(lambda: seen.append(1)))
    orchestrator.launch("held", 1, device=sim)
    with sim:
        within = orchestrator.launch("seen", 1)
    orchestrator.execute("seen", 1, device="cpu")
    assert not within.ready and seen == [1]  # behind what is held there
    gate.set()
    within.wait()
    assert seen == [1, 1]


def test_missing_names_are_told(orchestrator):
    assert orchestrator.kernel_names == ["add", "scale"] and "add" in orchestrator
    orchestrator.register_kernel(orchestrator.kernel("add"))
    with pytest.raises(InvalidArgument, match="'add'"):
        orchestrator.register_kernel(Kernel("add"))
    with pytest.raises(InvalidArgument):
        orchestrator.register_kernel(print)
    orchestrator.unregister_kernel("add")
    with pytest.raises(NotFound, match="kernel 'add' not found; there is scale") as missing:
        orchestrator.execute("add", 1)
    assert missing.value.available == ("scale",)
    assert "scale" in repr(orchestrator)


def test_a_failing_kernel_raises(orchestrator, sim):
    def fails(x):
        raise ValueError("no")

    orchestrator.register_kernel(Kernel("fails").host(fails))
    with pytest.raises(KernelError, match="ValueError: no"):
        orchestrator.execute("fails", 1000, readwrite(filled(sim, 1)))


def test_it_can_be_awaited_or_left_to_run(orchestrator, sim):
    x = filled(sim, 1)

    async def twice():
        first = await orchestrator.execute_async("scale", 1000, readwrite(x), 2.0)
        second = await orchestrator.execute_async("scale", 1000, readwrite(x), 2.0)
        return first.bytes_moved, second.bytes_moved

    assert asyncio.run(twice()) == (4000, 0)
    event = orchestrator.launch("scale", 1000, readwrite(x), 2.0)
    assert isinstance(event, unimem.Event)
    event.wait()
    assert (x.to_numpy() == 8).all()


def test_a_reset_buffer_counts_from_then_on(orchestrator, sim):
    begun, go = threading.Event(), threading.Event()

    def holds(x, y):
        begun.set()
        assert go.wait(60)

    orchestrator.register_kernel(Kernel("holds").host(holds))
    x, y = (UnifiedBuffer(1000, device=sim).fill(1) for _ in range(2))
    x.sync_to_device()
    done = []
    thread = threading.Thread(target=lambda: done.append(orchestrator.execute("holds", 1, read(x), read(y))))
    thread.start()
    assert begun.wait(60)
    x.reset()
    go.set()
    thread.join()
    assert (done[0].bytes_moved, done[0].copies) == (4000, 1)  # of y alone, and no less for what x had moved before
