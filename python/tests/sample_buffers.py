"""Buffers and kernels that several tests begin with, and what they end with."""

import numpy as np

from unimem import Kernel, UnifiedBuffer


def adding(element):
    """A kernel in both forms that adds a number to elements of that type."""
    return Kernel("add").source(
        f"UNIMEM_KERNEL add(UNIMEM_BUFFER({element}, x), {element} a) {{ UNIMEM_DATA({element}, x)[UNIMEM_ITEM_X] += a; }}"
    ).host(lambda x, a: np.add(x, a, out=x))


def taking(element):
    """One that copies its first argument to its second."""
    return Kernel("take").source(
        f"UNIMEM_KERNEL take(UNIMEM_BUFFER(const {element}, x), UNIMEM_BUFFER({element}, y)) {{"
        f" UNIMEM_DATA({element}, y)[UNIMEM_ITEM_X] = UNIMEM_DATA(const {element}, x)[UNIMEM_ITEM_X]; }}"
    ).host(lambda x, y: np.copyto(y, x))


DATA = np.arange(1000, dtype=np.float32)
ADD, COPY = adding("float"), taking("float")


def made(device, data=DATA, **options):
    """Data on the host alone."""
    buffer = UnifiedBuffer(data.shape, data.dtype, device=device, **options)
    buffer.host[...] = data
    return buffer


def grid(device, dtype=np.float32):
    """Four rows of five, on the host alone."""
    return made(device, np.arange(20, dtype=dtype).reshape(4, 5))


def synced(device, data=DATA, **options):
    buffer = made(device, data, **options)
    buffer.sync_to_device()
    return buffer


def check_both(buffer, expected, device=None):
    """What each side holds, without a transfer of the buffer's."""
    np.testing.assert_array_equal(buffer.on(device).to_numpy(), expected)
    np.testing.assert_array_equal(buffer.host, expected)
    np.testing.assert_array_equal(buffer.to_numpy(), expected)
