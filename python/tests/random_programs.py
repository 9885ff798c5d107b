"""Random programs on several threads: kernels that look at other buffers, launch and collect garbage, buffers dropped while work runs on
them, exceptions, little memory, wrapped arrays, pools, slices. NumPy arrays beside the buffers say what their contents must be.

    ./dev python python/tests/random_programs.py --minutes 30 --seed 1 --device cpu

Each program is a process of its own, so that one that hangs ends with the stack of every Python thread and its seed, and one that crashes
with the signal. A seed fixes what each thread does, and not how the threads interleave."""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import gc
import io
import os
import random
import struct
import subprocess
import sys
import threading
import time

import numpy as np

import unimem
from unimem import DataLost, InvalidArgument, Kernel, KernelError, MapMode, MemoryManager, OutOfMemory, SizeMismatch, UnifiedBuffer, UnsupportedOperation, launch, read, readwrite, write

SECONDS = int(os.environ.get("UNIMEM_TEST_SECONDS", 60))  # until a program counts as hanging; it takes one or two
DEVICES = {"cpu": ["cpu"], "sim": ["sim:memory=16MiB", "sim:memory=17MiB"], "mixed": ["cpu", "sim:memory=16MiB", "sim:memory=17MiB"]}
COUNTS = [1, 7, 100, 2000, 2000]
PURPOSE, ITSELF = "on purpose", "would never end"

ADD = Kernel("add").host(lambda x, a: np.add(x, a, out=x))
TAKE = Kernel("take").host(lambda x, y: np.copyto(y, x))
# Elements of what threads share say where they are, in the upper bits, and how often they were written, in the lower ones.
TURN = Kernel("turn").host(lambda x: np.copyto(x, (x & ~255) | ((x + 1) & 255)))


def broken(x):
    x[:] = -77
    raise LookupError(PURPOSE)


BROKEN = Kernel("broken").host(broken)


def collecting(x):
    x += 1
    gc.collect()


COLLECTING = Kernel("collecting").host(collecting)


class Cycle:
    """Garbage that only the collector finds, on whatever thread it runs."""

    def __init__(self, *kept):
        self.kept, self.itself = kept, self


class Shared:
    """A buffer that threads write by turns, and that kernels look at without."""

    def __init__(self, count, **options):
        self.positions = np.arange(count, dtype=np.int32) * 256
        self.buffer = UnifiedBuffer(count, np.int32, **options)
        self.buffer.copy_from(self.positions)
        self.turn = threading.Lock()

    def check(self, seen):
        np.testing.assert_array_equal(seen & ~255, self.positions)


class World:
    def __init__(self, seed, names):
        draw = random.Random(seed)
        self.devices = [unimem.device(name) for name in names]
        self.manager = MemoryManager()
        for one in self.devices:
            if one.backend == "sim":
                self.manager.set_limit(one, draw.choice(["64KiB", "96KiB", "1MiB"]))
        self.pool = unimem.MemoryPool(manager=self.manager, device=self.devices[-1])
        self.constant = np.array([draw.randrange(-1000, 1000) for _ in range(2000)], np.int32)
        self.constants = [UnifiedBuffer(2000, np.int32, device=one, manager=self.manager) for one in self.devices]
        for one in self.constants:
            one.copy_from(self.constant)
        self.shared = [Shared(draw.choice(COUNTS), device=one, manager=self.manager) for one in self.devices * 2]


def expected(error):
    said = str(error) + getattr(error, "build_log", "")
    return PURPOSE in said or ITSELF in said


class Pair:
    """A buffer and what it must hold, and what is under way on it that may fail."""

    def __init__(self, buffer, model):
        self.buffer, self.model, self.under_way = buffer, model, None

    def may_fail(self, kernel, device, written):
        """Launches what adds `written` to every element, or fails. Whatever fails has another copy to go back to, but on the cpu."""
        self.settle()
        self.buffer.synchronize()
        self.under_way = device, launch(kernel, 1, readwrite(self.buffer), device=device), np.int32(written)

    def settle(self):
        """Waits for what may fail. What it would have written counts if it has not, and is undone if it has."""
        device, event, written = self.under_way or (None, None, None)
        if event is None:
            return
        self.under_way = None
        try:
            event.wait()
            self.model += written
        except KernelError as error:
            if not expected(error):
                raise
            try:
                with contextlib.suppress(KernelError):  # told once more by the first access
                    self.buffer.to_numpy()
                np.testing.assert_array_equal(self.buffer.to_numpy(), self.model)
            except DataLost:
                if device.backend != "cpu":  # it works in the host's memory, so that there is no other copy
                    raise
                self.buffer.copy_from(self.model)

    def check(self):
        self.settle()
        np.testing.assert_array_equal(self.buffer.to_numpy(), self.model)


class Program(threading.Thread):
    """What one thread does: its buffers are its own, those of the world are everybody's."""

    def __init__(self, world, seed, steps):
        super().__init__(name=f"program {seed}", daemon=True)
        self.world, self.draw, self.steps = world, random.Random(seed), steps
        self.error = None
        self.done = []
        self.pairs = [self.made() for _ in range(4)]

    def run(self):
        try:
            for _ in range(self.steps):
                operation = self.draw.choice(OPERATIONS)
                self.done.append(operation.__name__)
                pair = self.draw.choice(self.pairs)
                # Room is short, and a kernel's own operand may be what there is no room for.
                with contextlib.suppress(OutOfMemory):
                    operation(self, pair)
            for pair in self.pairs:
                pair.check()
        except BaseException as error:
            self.error = error

    def device(self):
        return self.draw.choice(self.world.devices)

    def made(self):
        values = np.array([self.draw.randrange(-1000, 1000) for _ in range(self.draw.choice(COUNTS))], np.int32)
        buffer = UnifiedBuffer(len(values), np.int32, device=self.device(), manager=self.world.manager)
        buffer.copy_from(values)
        return Pair(buffer, values)

    def part(self, model):
        begin = self.draw.randrange(len(model))
        return slice(begin, begin + 1 + self.draw.randrange(len(model) - begin))


def of(part):
    return part.start, part.stop - part.start


def write_on_the_host(program, pair):
    pair.settle()
    part = program.part(pair.model)
    pair.buffer.host[part] = 5
    pair.model[part] = 5


def write_through_a_slice(program, pair):
    pair.settle()
    part = program.part(pair.model)
    pair.buffer.slice(*of(part)).host[...] = 6
    pair.model[part] = 6


def write_through_a_mapping(program, pair):
    pair.settle()
    part = program.part(pair.model)
    with pair.buffer.slice(*of(part)).map(program.draw.choice([MapMode.READ_WRITE, MapMode.DISCARD])) as array:
        array[:] = 7
    pair.model[part] = 7


def receive(program, pair):
    pair.settle()
    part = program.part(pair.model)
    values = np.arange(of(part)[1], dtype=np.int32)
    if program.draw.random() < 0.5:
        io.BytesIO(values.tobytes()).readinto(pair.buffer.slice(*of(part)))
    else:
        struct.pack_into(f"{values.size}i", pair.buffer, part.start * 4, *values.tolist())
    pair.model[part] = values


def fill(program, pair):
    pair.settle()
    part = program.part(pair.model)
    pair.buffer.fill(8, *of(part))
    pair.model[part] = 8


def copy_in(program, pair):
    pair.settle()
    values = np.arange(len(pair.model), dtype=np.int32)
    pair.buffer.copy_from(values)
    pair.model[:] = values


def add_on_a_device(program, pair):
    pair.settle()
    part = program.part(pair.model)
    launch(ADD, of(part)[1], readwrite(pair.buffer, *of(part)), 2, device=program.device())
    pair.model[part] += 2


def take_another(program, pair):
    pair.settle()
    others = [one for one in program.pairs if one is not pair and len(one.model) == len(pair.model)]
    if others:
        other = program.draw.choice(others)
        other.settle()
        launch(TAKE, len(pair.model), read(other.buffer), write(pair.buffer), device=program.device())
        pair.model[:] = other.model


def take_what_all_read(program, pair):
    pair.settle()
    constant = program.draw.choice(program.world.constants)
    count = len(pair.model)
    launch(TAKE, count, read(constant, 0, count), write(pair.buffer), device=program.device())
    pair.model[:] = program.world.constant[:count]


def read_what_all_read(program, pair):
    constant = program.draw.choice(program.world.constants)
    seen = program.draw.choice([lambda: constant.host, constant.to_numpy, lambda: np.asarray(memoryview(constant)), lambda: np.asarray(constant.slice(0, 2000))])
    np.testing.assert_array_equal(seen(), program.world.constant)


def turn_what_threads_share(program, pair):
    shared = program.draw.choice(program.world.shared)
    with shared.turn:
        launch(TURN, 1, readwrite(shared.buffer), device=program.device())


def read_what_threads_share(program, pair):
    shared = program.draw.choice(program.world.shared)
    with shared.turn:
        shared.check(shared.buffer.to_numpy())


def look_from_a_kernel(program, pair):
    """Either it sees whole elements, or it is told that it would wait for itself."""
    shared = program.draw.choice(program.world.shared + [None])
    other = program.draw.choice(program.pairs).buffer if shared is None else shared.buffer
    raises, way = program.draw.random() < 0.2, program.draw.choice(["host", "to_numpy", "copy", "slice"])

    def look(x):
        x += 3
        try:
            if way == "host":
                seen = np.array(other.host)
            elif way == "to_numpy":
                seen = other.to_numpy()
            elif way == "copy":
                seen = np.empty(other.shape, other.dtype)
                other.copy_to(seen)
            else:
                seen = other.slice(0, other.size).to_numpy()
            if shared is not None:
                shared.check(seen)
        except UnsupportedOperation as error:
            assert ITSELF in str(error), error
            if raises:
                raise
        except (KernelError, DataLost) as error:
            assert expected(error), error
        except OutOfMemory:
            pass  # work inside of work waits for nobody
        except (InvalidArgument, SizeMismatch) as error:
            assert shared is None, error  # resized by the program's own thread, between two steps

    pair.may_fail(Kernel("look").host(look), program.device(), 3)
    if program.draw.random() < 0.5:
        pair.settle()


def launch_from_a_kernel(program, pair):
    """What is launched there is of a buffer that nothing else knows."""
    pair.settle()
    inner, on = UnifiedBuffer(10, np.int32, device=program.device(), manager=program.world.manager).fill(1), program.device()
    waits, outcome = program.draw.random() < 0.5, []

    def outer(x):
        x += 4
        try:
            event = launch(ADD, 10, readwrite(inner), 1, device=on)
            outcome.append(event)
            if waits:
                event.wait()
        except UnsupportedOperation as error:
            assert ITSELF in str(error), error
        except OutOfMemory:
            pass

    launch(Kernel("outer").host(outer), 1, readwrite(pair.buffer), device=program.device()).wait()
    pair.model += 4
    assert (inner.to_numpy() == 1 + len(outcome)).all()


def fail_on_a_device(program, pair):
    pair.may_fail(BROKEN, program.device(), 0)
    if program.draw.random() < 0.5:
        pair.settle()


def collect_in_a_kernel(program, pair):
    pair.settle()
    launch(COLLECTING, 1, readwrite(pair.buffer), device=program.device())
    pair.model += 1


def drop_while_work_runs(program, pair):
    pair.settle()
    launch(COLLECTING, 1, readwrite(pair.buffer), device=program.device())
    program.pairs[program.pairs.index(pair)] = program.made()


def free_while_work_runs(program, pair):
    pair.settle()
    launch(ADD, 1, readwrite(pair.buffer), 1, device=program.device())
    pair.buffer.free()
    values = np.full(len(pair.model), 9, np.int32)
    pair.buffer.copy_from(values)
    pair.model[:] = values


def leave_garbage(program, pair):
    """A cycle of a buffer, an array over it, and a part of it, with work under way."""
    pair.settle()
    launch(ADD, 1, readwrite(pair.buffer), 1, device=program.device())
    Cycle(pair.buffer, pair.buffer.slice(0, 1), pair.buffer.host if program.draw.random() < 0.3 else None)
    program.pairs[program.pairs.index(pair)] = program.made()
    if program.draw.random() < 0.1:
        gc.collect()


def wrap_an_array(program, pair):
    array = np.arange(program.draw.choice(COUNTS), dtype=np.int32)
    expected = array + 3
    buffer = UnifiedBuffer.from_array(array, device=program.device(), manager=program.world.manager)
    launch(ADD, len(array), readwrite(buffer), 3, device=program.device())
    np.testing.assert_array_equal(buffer.host, expected)
    np.testing.assert_array_equal(array, expected)


def drop_a_wrapped_array(program, pair):
    """Its kernel may be running, and the last reference may go on the thread that runs it, or in the collector."""
    array = np.arange(program.draw.choice(COUNTS), dtype=np.int32)
    buffer = UnifiedBuffer.from_array(array, device=program.device(), manager=program.world.manager)
    event = launch(program.draw.choice([COLLECTING, TURN]), 1, readwrite(buffer), device=program.device())
    if program.draw.random() < 0.3:
        Cycle(buffer, array)
    del buffer, array
    if program.draw.random() < 0.5:
        event.wait()


def use_the_pool(program, pair):
    """Released while work may be under way on it."""
    with program.world.pool.lend((program.draw.choice(COUNTS),), np.int32) as lent:
        lent.fill(10)
        launch(ADD, 1, readwrite(lent), 1, device=program.device())
        if program.draw.random() < 0.5:
            assert (lent.to_numpy() == 11).all()


def look(program, pair):
    pair.settle()
    buffer = pair.buffer
    seen = program.draw.choice([lambda: buffer.host, buffer.to_numpy, lambda: np.asarray(memoryview(buffer)), lambda: np.from_dlpack(buffer),
                                lambda: np.from_dlpack(buffer.on(program.device()))])()  # fmt: skip
    np.testing.assert_array_equal(seen, pair.model)


def move(program, pair):
    pair.settle()
    program.draw.choice([lambda: pair.buffer.sync_to_device(program.device()), pair.buffer.synchronize, lambda: pair.buffer.prefetch(program.device()),
                         program.world.manager.optimize, program.world.manager.cleanup, program.world.pool.clear])()  # fmt: skip


def resize(program, pair):
    pair.settle()
    gc.collect()  # arrays over it are refused
    count = program.draw.choice(COUNTS)
    kept = min(count, len(pair.model))
    try:
        pair.buffer.resize(count)
    except InvalidArgument as error:
        assert "without leases, mappings and graphs" in str(error), error  # a kernel that looks at it has an array over it just now
        return
    pair.model = np.concatenate([pair.model[:kept], np.zeros(count - kept, np.int32)])
    if kept < count:
        pair.buffer.host[kept:] = 0  # needs no room on a device


OPERATIONS = [
    write_on_the_host, write_through_a_slice, write_through_a_mapping, receive, fill, copy_in, add_on_a_device, add_on_a_device, take_another,
    take_what_all_read, read_what_all_read, turn_what_threads_share, turn_what_threads_share, read_what_threads_share,
    look_from_a_kernel, look_from_a_kernel, launch_from_a_kernel, fail_on_a_device, collect_in_a_kernel, drop_while_work_runs,
    free_while_work_runs, leave_garbage, wrap_an_array, drop_a_wrapped_array, use_the_pool, look, look, move, resize,
]  # fmt: skip


def run_program(seed, names, threads, steps):
    """One program, in this process. The watchdog's thread needs no interpreter, so it also ends a process that hangs with its lock."""
    faulthandler.enable()
    faulthandler.dump_traceback_later(SECONDS, exit=True)
    world = World(seed, names)
    programs = [Program(world, f"{seed}/{i}", steps) for i in range(threads)]
    for one in programs:
        one.start()
    for one in programs:
        one.join()
    for one in programs:
        if one.error is not None:
            raise AssertionError(f"{one.name}, after {one.done[-5:]}") from one.error
    for shared in world.shared:
        shared.check(shared.buffer.to_numpy())
    if random.Random(seed).random() < 0.5:
        for one in world.devices:
            one.synchronize()
    # Else the interpreter ends with whatever is under way.


def run_apart(seed, device, *, threads=4, steps=150):
    """A program in a process of its own; what went wrong, or None."""
    command = [sys.executable, __file__, "--one", "--seed", str(seed), "--device", device, "--threads", str(threads), "--steps", str(steps)]
    paths = os.pathsep.join(map(os.path.abspath, sys.path))
    again = " ".join(["./dev python", *command[1:]])
    try:
        done = subprocess.run(
            command, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, timeout=SECONDS + 15, check=False
        )
    except subprocess.TimeoutExpired as error:
        return f"{again}\nhangs at the end of the interpreter\n{error.stderr}"
    return None if done.returncode == 0 else f"{again}\nended with {done.returncode}\n{done.stdout}{done.stderr}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0, help="for how long programs are begun")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32), help="of the first program; each next one is one more")
    parser.add_argument("--device", choices=list(DEVICES), action="append", help="by turns if given more than once; by default all of them")
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--steps", type=int, default=150, help="operations of each thread")
    parser.add_argument("--one", action="store_true", help="one program, in this process")
    given = parser.parse_args()
    devices = given.device or list(DEVICES)
    if given.one:
        run_program(given.seed, DEVICES[devices[0]], given.threads, given.steps)
        return
    seed, failures, end = given.seed, 0, time.monotonic() + given.minutes * 60
    print("first seed:", seed, flush=True)
    while time.monotonic() < end:
        wrong = run_apart(seed, devices[seed % len(devices)], threads=given.threads, steps=given.steps)
        if wrong is not None:
            failures += 1
            print(f"seed {seed} failed: {wrong}", flush=True)
        seed += 1
    print(f"{seed - given.seed} programs, {failures} failed")
    sys.exit(failures != 0)


if __name__ == "__main__":
    main()
