"""What the tests of the rows of docs/features.md about buffers begin with, and end with."""

import numpy as np

from unimem import Kernel, UnifiedBuffer

DATA = np.arange(1000, dtype=np.float32)
ADD = Kernel("add").source(
    "UNIMEM_KERNEL add(UNIMEM_BUFFER(float, x), float a) { UNIMEM_DATA(float, x)[UNIMEM_ITEM_X] += a; }"
).host(lambda x, a: np.add(x, a, out=x))
COPY = Kernel("take").source(
    "UNIMEM_KERNEL take(UNIMEM_BUFFER(const float, x), UNIMEM_BUFFER(float, y)) {"
    " UNIMEM_DATA(float, y)[UNIMEM_ITEM_X] = UNIMEM_DATA(const float, x)[UNIMEM_ITEM_X]; }"
).host(lambda x, y: np.copyto(y, x))


def made(device, data=DATA, **options):
    """Data on the host alone."""
    buffer = UnifiedBuffer(data.shape, data.dtype, device=device, **options)
    buffer.host[...] = data
    return buffer


def synced(device, data=DATA, **options):
    buffer = made(device, data, **options)
    buffer.sync_to_device()
    return buffer


def check_both(buffer, expected, device=None):
    """What each side holds, without a transfer of the buffer's."""
    np.testing.assert_array_equal(buffer.on(device).to_numpy(), expected)
    np.testing.assert_array_equal(buffer.host, expected)
    np.testing.assert_array_equal(buffer.to_numpy(), expected)
