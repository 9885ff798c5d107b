"""Slices of a buffer to joblib's processes, and buffers back. A slice's pickle is its window alone; what a process gets is a buffer of its own.
Large data goes by joblib's own files in memory (max_nbytes), which mmap_mode="c" lets each process have without a copy. Needs joblib."""

import pickle

import joblib
import numpy as np

import unimem

COUNT, PARTS = 1 << 20, 4


def squared(part):
    """In a process of joblib's."""
    np.multiply(part, part, out=part)
    return part


def main():
    samples = unimem.UnifiedBuffer(COUNT, np.float32, device="sim", name="samples")
    samples.host[:] = np.arange(COUNT) % 1000
    step = COUNT // PARTS
    parts = [samples.slice(begin, step) for begin in range(0, COUNT, step)]
    assert len(pickle.dumps(parts[0])) < parts[0].nbytes + 1000
    print(f"a slice of {parts[0].nbytes} bytes takes at most 1000 more in a pickle")
    with joblib.Parallel(n_jobs=2, backend="loky", max_nbytes="64K", mmap_mode="c") as pool:
        for part, done in zip(parts, pool(joblib.delayed(squared)(part) for part in parts), strict=True):
            part.copy_from(done)
            print(done.shape, done.dtype, done.name, done.state.name)
    assert np.array_equal(samples.device.to_numpy(), (np.arange(COUNT) % 1000).astype(np.float32) ** 2)
    print("squared, and on the device:", samples.state.name)


if __name__ == "__main__":
    main()
