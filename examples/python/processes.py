"""A buffer to another process and back by pickle protocol 5, out of band: what is sent is the buffer's memory, and what has arrived is the other buffer's. Only
the pipe copies. `connection.send(buffer)` does as well, with copies of pickle's own."""

import multiprocessing
import pickle

import numpy as np

import unimem

negative = unimem.Kernel("negative").host(lambda x: np.negative(x, out=x))


def send(connection, buffer):
    frames = []
    head = pickle.dumps(buffer, 5, buffer_callback=lambda frame: frames.append(frame.raw()))
    connection.send_bytes(head)
    connection.send([frame.nbytes for frame in frames])
    for frame in frames:
        connection.send_bytes(frame)


def receive(connection):
    head, frames = connection.recv_bytes(), []
    for size in connection.recv():
        frames.append(bytearray(size))
        connection.recv_bytes_into(frames[-1])
    return pickle.loads(head, buffers=frames)


def worker(connection):
    unimem.device("sim")  # simulated devices are those of a process: without this one the buffer would be for the default device
    taken = unimem.default_manager().statistics.total_allocations
    buffer = receive(connection)
    own = unimem.default_manager().statistics.total_allocations - taken
    connection.send(f"arrived as {buffer!r}, with {own} blocks of memory beside what has arrived")
    unimem.launch(negative, buffer.size, unimem.readwrite(buffer))
    send(connection, buffer)


def main():
    buffer = unimem.UnifiedBuffer((1000, 500), np.float64, device="sim", name="table")
    buffer.host[...] = np.arange(buffer.size).reshape(buffer.shape)
    buffer.sync_to_device()
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=worker, args=(theirs,))  # a forked one could not use the devices
    process.start()
    send(ours, buffer)
    print(f"sent from {buffer!r}")
    print(ours.recv())
    back = receive(ours)
    process.join()
    assert np.array_equal(back.device.to_numpy(), -buffer.to_numpy())
    print(f"back as {back!r}")


if __name__ == "__main__":
    main()
