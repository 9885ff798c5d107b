"""What other processes do in test_sent_and_ended.py: functions of a module of their own, which any way to start a process finds."""

import logging
import multiprocessing
import multiprocessing.spawn
import os
import signal
import tempfile
import time

import numpy as np

from unimem import UnifiedBuffer, _processes

SIZE = 1 << 20


def filled(value, shape=(SIZE,), **how):
    return UnifiedBuffer(shape, np.float32, **how).fill(value)


def sum_of(buffer):
    return float(np.asarray(buffer).sum())


def send_to_nobody(connection, go):
    assert go.wait(30)
    try:
        connection.send(filled(3))
    except BrokenPipeError:
        pass  # a forked child has the receiver's end, too


def put(queue, value):
    queue.put(filled(value))


def put_and_fail_where_it_is_kept(queue, value):
    _processes._AT_ONCE = 30
    _processes.hand_over = lambda to: os._exit(9)
    queue.put(filled(value))


def put_shared(queue, value):
    buffer = UnifiedBuffer(1000, np.int32, shared=True).fill(value)
    queue.put((buffer, buffer, filled(value)))


def put_many(queue, count):
    for i in range(count):
        queue.put(filled(i, (1000,), shared=True))


def sleep_for_ever():
    while True:
        signal.pause()


def use_queue(queue):
    global _queue
    _queue = queue


def put_in_the_queue(value):
    _queue.put(filled(value))
    return value


def put_and_sleep(queue, value, sent):
    queue.put(filled(value))
    queue.close()
    queue.join_thread()
    sent.set()
    sleep_for_ever()


def start_one_that_puts(way, queue, value):
    process = multiprocessing.get_context(way).Process(target=put, args=(queue, value))
    process.start()


class _Says(logging.Handler):
    def __init__(self, said):
        super().__init__()
        self.said = said

    def emit(self, record):
        self.said.put(record.getMessage())


def put_without_a_keeper(queue, value, program, said):
    logging.getLogger("unimem").addHandler(_Says(said))
    multiprocessing.spawn.set_executable(program)
    queue.put(filled(value))


class Gate:
    """Closed until it is left."""

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = os.path.join(self.folder.name, "open")
        return self

    def __exit__(self, *error):
        open(self.path, "w").close()


def sum_when_open(given):
    path, buffer = given
    while not os.path.exists(path):
        time.sleep(0.005)
    return float(buffer.to_numpy().sum())
