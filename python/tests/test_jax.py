"""JAX on the CPU: its arrays over buffers, and buffers over copies of its arrays. `./dev check` fetches it (tools/jax-wheels.txt)."""

import gc

import numpy as np
import pytest

import unimem
from unimem import UnifiedBuffer

jax = pytest.importorskip("jax", reason="JAX is not installed: ./dev check fetches it")

pytestmark = pytest.mark.check

ALIGNED = 1 << 14  # large enough for memory that JAX takes as it is


def data(device):
    buffer = UnifiedBuffer((16, ALIGNED // 16), np.float32, device=device)
    buffer.host[:] = np.arange(ALIGNED).reshape(16, -1)
    return buffer


def test_jax_sees_the_buffers_own_memory(discrete, moved):
    buffer = data(discrete)
    buffer.sync_to_device()
    count = moved(buffer)
    theirs = jax.dlpack.from_dlpack(buffer)
    assert theirs.shape == buffer.shape and theirs.unsafe_buffer_pointer() == buffer.host.ctypes.data
    np.testing.assert_array_equal(np.asarray(theirs), buffer.to_numpy())
    assert (buffer.state, count.since()) == (unimem.BufferState.SYNCHRONIZED, (0, 0, 0, 0))


def test_jax_sees_device_writes(discrete, moved):
    buffer = data(discrete)
    buffer.sync_to_device()
    buffer.device.copy_from(np.full(buffer.shape, 3))
    buffer.mark_device_dirty()
    count = moved(buffer)
    assert float(jax.dlpack.from_dlpack(buffer).sum()) == 3 * ALIGNED
    assert count.since() == (0, 0, 1, 4 * ALIGNED)


def test_jaxs_array_keeps_the_memory(sim):
    buffer = data(sim)
    theirs = jax.dlpack.from_dlpack(buffer)
    buffer.free()
    others = [data(sim) for _ in range(4)]
    for one in others:
        one.host[:] = 0
    del buffer, others
    gc.collect()
    np.testing.assert_array_equal(np.asarray(theirs).ravel(), np.arange(ALIGNED))


def test_jaxs_arrays_are_read_only_and_are_copied(discrete, moved):
    theirs = (jax.dlpack.from_dlpack(data(discrete)) * 2).block_until_ready()
    with pytest.raises(unimem.InvalidArgument, match="read-only"):
        UnifiedBuffer.from_dlpack(theirs, device=discrete)
    copied = UnifiedBuffer.from_dlpack(theirs, copy=True, device=discrete)
    np.testing.assert_array_equal(copied.device.to_numpy().ravel(), 2 * np.arange(ALIGNED))
    assert moved(copied).since() == (0, 0, 0, 0) and copied.statistics.host_to_device_copies == 1
    buffer = UnifiedBuffer(theirs.shape, np.float32, device=discrete)
    buffer.copy_from(theirs)
    np.testing.assert_array_equal(buffer.to_numpy(), copied.to_numpy())


def test_jax_takes_buffers_as_arrays(sim):
    buffer = data(sim)
    assert float(jax.numpy.asarray(buffer).sum()) == ALIGNED * (ALIGNED - 1) / 2
