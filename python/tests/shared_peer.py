"""What other processes do in test_shared_processes.py: functions of a module of their own, which any way to start a process finds."""

import os
import signal

import numpy as np

import unimem
from unimem import Kernel, UnifiedBuffer, launch, readwrite, registry

SIZE = 1 << 20

twice = Kernel("twice").host(lambda x: np.multiply(x, 2, out=x))


class Labelled(UnifiedBuffer):
    def __init__(self, *args, label="", **kwargs):
        super().__init__(*args, **kwargs)
        self.label = label


def answer(connection):
    """Does what it is told, call by call."""
    while True:
        function, args = connection.recv()
        if function is None:
            return
        try:
            connection.send(function(*args))
        except Exception as error:
            connection.send(error)


_opened = {}


def open_buffer(name):
    buffer = _opened[name] = registry().open(name)
    return buffer.shape, buffer.dtype.str, buffer.state.name


def total(name):
    return float(_opened[name].to_numpy().sum())


def look(name, index):
    return float(_opened[name].host[index])


def set_part(name, first, last, value):
    _opened[name].host[first:last] = value


def double_on_device(name):
    buffer = _opened[name]
    launch(twice, buffer.size, readwrite(buffer), device="sim")


def die_writing(name, first, last):
    window = _opened[name].slice(first, last - first).map(unimem.MapMode.READ_WRITE)
    window.array[:1] = 5
    os.kill(os.getpid(), signal.SIGKILL)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def close(name):
    del _opened[name]


def filled(value, shape=(SIZE,), **how):
    return UnifiedBuffer(shape, np.float32, **how).fill(value)


def labelled(value):
    buffer = Labelled((256, 1024), np.float32, label="mine", name="table")
    buffer.host[...] = value
    return buffer


def part_of(value):
    buffer = UnifiedBuffer(2 * SIZE, np.float32)
    buffer.host[:] = np.arange(2 * SIZE) + value
    return buffer.slice(SIZE // 2, SIZE)


def on_device(value):
    buffer = UnifiedBuffer(SIZE, np.float32, device="sim").fill(value)
    launch(twice, buffer.size, readwrite(buffer))
    return buffer


def sum_of(buffer):
    return float(buffer.to_numpy().sum())


def allocations():
    return unimem.default_manager().statistics.total_allocations


def put_and_end(queue, value):
    queue.put(filled(value))


def put_what_cannot_be_sent(queue, value):
    queue.put((filled(value), lambda: None))


def return_what_cannot_be_sent(value):
    return filled(value), lambda: None


def put_and_be_killed(queue, value, sent):
    queue.put(filled(value))
    queue.close()
    queue.join_thread()
    sent.set()
    os.kill(os.getpid(), signal.SIGKILL)


_shared = None


def make_shared_and_return():
    global _shared
    _shared = UnifiedBuffer(1000, np.int32, shared=True).fill(3)
    return _shared


def change_shared(value):
    _shared.host[:10] = value


def first_of_shared():
    return int(_shared.host[0])
