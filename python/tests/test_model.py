"""Random operations on a handful of buffers, on simulated devices and OpenCL with little room, against NumPy arrays as the model: whatever is
done, every side that is looked at holds the model's bytes. Each operation does the same to a buffer and to its model."""

import os
import random

import numpy as np
import pytest
from sample_buffers import adding, taking

import unimem
from unimem import InvalidArgument, Kernel, KernelError, MapMode, MemoryManager, UnifiedBuffer, launch, read, readwrite, write

ADD, TAKE = adding("int"), taking("int")


def broken(x):
    x[:] = -77
    raise LookupError("on purpose")


BROKEN = Kernel("broken").host(broken)


class World:
    def __init__(self, seed, devices):
        self.draw, self.devices = random.Random(seed), devices
        self.manager, self.kept = MemoryManager(), []
        for one in devices:
            self.manager.set_limit(one, self.draw.choice(["18KiB", "24KiB", "40KiB"]))
        self.pairs = [self.made(2000) for _ in range(8)]
        for one in devices:
            for buffer, _ in self.pairs:
                buffer.sync_to_device(one)
        assert self.manager.statistics.reclaims > 0  # 64 KB are more than any of them holds

    def made(self, count=None):
        values = np.array([self.draw.randrange(-1000, 1000) for _ in range(count or self.draw.choice([1, 7, 100, 2000, 2000]))], np.int32)
        buffer = UnifiedBuffer(len(values), np.int32, device=self.device(), manager=self.manager)
        buffer.copy_from(values)
        return buffer, values

    def device(self):
        return self.draw.choice(self.devices)

    def wait(self):
        """Before writes that nobody notices: nobody waits for who still reads, either."""
        for one in self.devices:
            one.synchronize()

    def part(self, model):
        offset = self.draw.randrange(len(model) + 1)
        return slice(offset, offset + self.draw.randrange(len(model) - offset + 1))

    def other(self, model):
        """Another pair, of the same length."""
        return self.draw.choice([(b, m) for b, m in self.pairs if m is not model and len(m) == len(model)] or [(None, None)])


def of(part):
    return part.start, part.stop - part.start


# Writes to a NumPy array of any kind: the buffer's and the model.
HOST_WRITES = [
    lambda x, p: x.__setitem__(p, 5),
    lambda x, p: x[::-1].__setitem__(p, 6),
    lambda x, p: np.add(x[p], 3, out=x[p]),
    lambda x, p: x.__setitem__(x > 50, 1),
    lambda x, p: x.__setitem__([0, -1], 9),
    lambda x, p: x[p][::-1].sort(),
    lambda x, p: np.multiply(x, 2, out=x, where=(x > 0) & (x < 1000)),
    lambda x, p: np.copyto(x[p], 7),
    lambda x, p: np.add.at(x, [0, 0, len(x) - 1], 1),
    lambda x, p: np.putmask(x, x < 0, 0),
    lambda x, p: x.flat.__setitem__(p, 8),
    lambda x, p: np.take(np.asarray(x).copy(), np.arange(len(x))[::-1], out=x),
]


def write_on_the_host(world, buffer, model, part):
    how = world.draw.choice(HOST_WRITES)
    how(buffer.host, part)
    how(model, part)


def write_through_a_slice(world, buffer, model, part):
    buffer.slice(*of(part)).host[...] = 11
    model[part] = 11


def write_on_a_device(world, buffer, model, part):
    if part.start < part.stop:
        launch(ADD, of(part)[1], readwrite(buffer, *of(part)), 2, device=world.device())
        model[part] += 2


def write_all_on_a_device(world, buffer, model, part):
    launch(ADD, len(model), readwrite(buffer), 1, device=world.device())
    model += 1


def write_to_a_device_array(world, buffer, model, part):
    array = buffer.on(next(one for one in world.devices if one.backend == "sim"))
    np.testing.assert_array_equal(array.to_numpy(), model)
    world.wait()
    np.from_dlpack(array)[part] = 12
    buffer.mark_device_dirty(*of(part), device=array.device)
    model[part] = 12


def compute_from_one_to_another(world, buffer, model, part):
    other, others = world.other(model)
    if other is not None:
        launch(TAKE, len(model), read(buffer), write(other), device=world.device())
        others[:] = model


def fail_on_a_device(world, buffer, model, part):
    buffer.synchronize()
    event = launch(BROKEN, 1, readwrite(buffer), device=world.draw.choice([one for one in world.devices if one.backend == "sim"]))
    with pytest.raises(KernelError, match="on purpose"):
        event.wait()
    with pytest.raises(KernelError, match="on purpose"):
        buffer.to_numpy()


def write_unnoticed(world, buffer, model, part):
    raw = np.asarray(buffer.host)
    world.wait()
    raw[part] = 13
    buffer.mark_host_dirty(*of(part))
    model[part] = 13


def write_through_a_mapping(world, buffer, model, part):
    mode = world.draw.choice([MapMode.READ_WRITE, MapMode.DISCARD])
    with buffer.slice(*of(part)).map(mode) as array:
        assert mode is MapMode.DISCARD or (array == model[part]).all()
        array[:] = 14
    model[part] = 14


def copy_in(world, buffer, model, part):
    values = np.arange(of(part)[1])
    buffer.copy_from(values, offset=part.start)
    model[part] = values


def copy_between_buffers(world, buffer, model, part):
    other, others = world.other(model)
    if other is not None:
        unimem.copy(buffer, other)
        others[:] = model


def copy_within(world, buffer, model, part):
    offset, count = of(part)
    half = count // 2
    unimem.copy(buffer.slice(offset, half), buffer.slice(offset + count - half, half))
    model[offset + count - half : offset + count] = model[offset : offset + half].copy()


def fill(world, buffer, model, part):
    buffer.fill(15, *of(part))
    model[part] = 15


def resize(world, buffer, model, part):
    count, at = world.draw.choice([1, 7, 100, 2000]), next(i for i, (b, _) in enumerate(world.pairs) if b is buffer)
    world.kept.clear()
    buffer.resize(count)
    kept = min(count, len(model))
    buffer.fill(0, kept)
    world.pairs[at] = buffer, np.concatenate([model[:kept], np.zeros(count - kept, np.int32)])


def replace(world, buffer, model, part):
    at = next(i for i, (b, _) in enumerate(world.pairs) if b is buffer)
    world.pairs[at] = world.draw.choice([world.made, lambda: (buffer.clone(), model.copy())])()


def look(world, buffer, model, part):
    seen = world.draw.choice([lambda: buffer.host, buffer.to_numpy, lambda: buffer.on(world.device()).to_numpy(), lambda: np.from_dlpack(buffer)])()
    np.testing.assert_array_equal(seen, model)


def move(world, buffer, model, part):
    world.draw.choice([lambda: buffer.sync_to_device(world.device()), buffer.synchronize, lambda: buffer.prefetch(world.device()),
                       lambda: buffer.release_device(world.device()), world.manager.optimize, world.manager.cleanup])()  # fmt: skip


def keep(world, buffer, model, part):
    world.kept.append(buffer.host)
    if len(world.kept) > 5:
        world.kept.clear()


def release_host(world, buffer, model, part):
    try:
        buffer.release_host()
    except InvalidArgument:
        assert world.kept  # somebody has an array over it


OPERATIONS = [
    write_on_the_host, write_on_the_host, write_on_the_host, write_through_a_slice, write_on_a_device, write_on_a_device, write_all_on_a_device,
    write_to_a_device_array, compute_from_one_to_another, fail_on_a_device, write_unnoticed, write_through_a_mapping, copy_in,
    copy_between_buffers, copy_within, fill, resize, replace, look, look, move, move, keep, release_host,
]  # fmt: skip


@pytest.mark.parametrize("devices", ["sim", "opencl"])
def test_buffers_agree_with_the_model(devices, sim, other_sim, request):
    seed = int(os.environ.get("UNIMEM_TEST_SEED") or random.SystemRandom().randrange(2**32))
    print("UNIMEM_TEST_SEED =", seed)
    others = [] if devices == "sim" else [request.getfixturevalue(devices)]
    world = World(seed, [sim, other_sim, *others])
    for step in range(10_000 if request.config.getoption("--long") else 150):
        buffer, model = world.draw.choice(world.pairs)
        operation = world.draw.choice(OPERATIONS)
        try:
            operation(world, buffer, model, world.part(model))
        except BaseException as error:
            error.add_note(f"step {step}: {operation.__name__} of {buffer!r}") if hasattr(error, "add_note") else None
            raise
        if step % 50 == 0:
            for one, expected in world.pairs:
                np.testing.assert_array_equal(one.to_numpy(), expected, f"after step {step}, {operation.__name__}")
