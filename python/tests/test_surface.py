"""What one sees of the package: names, signatures, docstrings, and what objects say of themselves."""

import dataclasses
import enum
import inspect
import subprocess
import sys
import types

import numpy as np
import pytest
from sample_buffers import grid

import unimem

PUBLIC = [name for name in dir(unimem) if not name.startswith("_")]


def members_of(kind):
    """What the package itself defines of a class: (name, member), without the fields of records."""
    for base in kind.__mro__:
        if base.__module__.split(".")[0] != "unimem":
            continue
        for name, member in vars(base).items():
            if name.startswith("_") or isinstance(member, (types.MemberDescriptorType, enum.Enum)):
                continue
            if dataclasses.is_dataclass(base) and name in base.__dataclass_fields__:
                continue
            yield f"{kind.__name__}.{name}", member.__func__ if isinstance(member, (classmethod, staticmethod)) else member


def everything_public():
    for name in PUBLIC:
        one = getattr(unimem, name)
        yield name, one
        if isinstance(one, type):
            yield from members_of(one)


EVERYTHING = dict(everything_public())


def test_the_walk_finds_what_there_is():
    assert {"Event.wait", "UnifiedBuffer.sync_to_host", "Device.synchronize", "DeviceArray.to_numpy", "launch", "HostArray.fill"} <= EVERYTHING.keys()
    assert len(EVERYTHING) > 300


@pytest.mark.parametrize("name", [name for name, one in EVERYTHING.items() if callable(one)])
def test_every_callable_has_a_signature(name):
    inspect.signature(EVERYTHING[name])


@pytest.mark.parametrize("name", [name for name, one in EVERYTHING.items() if callable(one) or isinstance(one, property)])
def test_every_name_has_a_docstring(name):
    text = (EVERYTHING[name].__doc__ or "").strip()
    assert len(text) > 5 and not text.startswith(name), f"{name}: {text!r}"


def test_signatures_are_those_of_the_stub_and_bind():
    assert str(inspect.signature(unimem.Event.wait)) == "(self, timeout: 'float | None' = None) -> 'bool'"
    assert str(inspect.signature(unimem.make_sim)) == "(options: 'str' = '') -> 'Device'"
    assert list(inspect.signature(unimem.parse_size).parameters) == ["text"] and unimem.parse_size(text="4KiB") == 4096
    event = unimem.UnifiedBuffer(3, device="sim").fill(1).prefetch()
    assert list(inspect.signature(event.wait).parameters) == ["timeout"] and event.wait(timeout=60) is True
    with pytest.raises(TypeError):
        unimem.devices(1)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        unimem.Device()


def test_taking_all_names_shadows_no_module():
    names = {}
    exec("import copy, statistics\nfrom unimem import *", names)
    assert names["copy"] is sys.modules["copy"] and names["statistics"] is sys.modules["statistics"]
    assert names["UnifiedBuffer"] is unimem.UnifiedBuffer and names["launch"] is unimem.launch
    import builtins

    assert not [name for name in unimem.__all__ if hasattr(builtins, name)]
    assert callable(unimem.copy) and callable(unimem.statistics)


def test_a_directory_shows_what_is_public():
    assert set(unimem.__all__) <= set(PUBLIC) and {"copy", "statistics"} <= set(PUBLIC)
    assert not {"annotations", "atexit", "os"} & set(PUBLIC) and not [one for one in dir(unimem) if one[0] == "_" and one[:2] != "__"]
    assert all(hasattr(unimem, one) for one in dir(unimem))


def test_objects_say_what_they_are(sim):
    buffer = grid(sim)
    assert repr(buffer.device) == f"<unimem.DeviceArray on '{sim.id}': shape=(4, 5), dtype=float32>"
    event = buffer.prefetch()
    event.wait()
    assert repr(event) == "<unimem.Event: the work has ended>"
    assert repr(unimem.histogram()) == "<unimem.StreamKernel 'histogram'>"
    buffer_id = unimem.registry().publish(buffer)
    assert repr(unimem.registry()) == "<unimem.BufferRegistry: 1 published>"
    unimem.registry().release(buffer_id)
    assert repr(unimem.registry()) == "<unimem.BufferRegistry: 0 published>"
    assert repr(buffer.block((1, 2), (2, 3))).startswith("BufferBlock(begin=(1, 2), shape=(2, 3), of UnifiedBuffer(")
    assert repr(unimem.DoubleBuffer(3, np.int16)) == "<unimem.DoubleBuffer of (3,) int16>"


def test_work_that_goes_on_says_so(sim):
    import threading

    gate = threading.Event()
    buffer = unimem.UnifiedBuffer(4, device=sim)
    event = unimem.launch(unimem.Kernel("wait").host(lambda x: gate.wait(60)), 1, unimem.write(buffer))
    assert repr(event) == "<unimem.Event: the work is under way>"
    gate.set()
    event.wait()


def test_importing_costs_no_thread():
    code = "import threading, os, unimem; print(threading.active_count(), len(os.listdir('/proc/self/task')))"
    plain = "import threading, os, numpy; print(threading.active_count(), len(os.listdir('/proc/self/task')))"
    ours, theirs = (subprocess.run([sys.executable, "-c", one], capture_output=True, text=True, timeout=60).stdout for one in (code, plain))
    assert ours == theirs != ""


def test_what_few_programs_need_is_imported_when_it_is_asked_for():
    program = """
import sys
import unimem
names = {"asyncio", "unimem._manager_records"}
assert not names & sys.modules.keys(), names & sys.modules.keys()
assert unimem.Usage.__name__ == "Usage" and "unimem._manager_records" in sys.modules
try:
    unimem.Usages
except AttributeError as error:
    assert "no attribute 'Usages'" in str(error)
else:
    raise AssertionError
from unimem import *
assert LeakReport is unimem.LeakReport
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
