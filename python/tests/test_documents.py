"""The documents' code, run as it is written: the pages of docs/ about Python, and the self-contained blocks of the guides to UnifiedBuffer whose names
the package takes (with the package's name replaced, and not a character else). A state in a comment is compared with the buffer's."""

import asyncio
import hashlib
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import unimem

ROOT = Path(__file__).resolve().parents[2]

PREAMBLE = {
    "np": np,
    "data": np.arange(1000, dtype=np.float32),
    "input_data": np.arange(1000, dtype=np.float32),
    "my_kernel": lambda array: None,
    "gpu_kernel": lambda array: None,
    "process": lambda array: None,
    "process_on_gpu": lambda array: None,
    "batches": [np.full((2, 3), i, np.float32) for i in range(3)],
    "UnifiedBuffer": unimem.UnifiedBuffer,
    "get_memory_pool": unimem.get_memory_pool,
}

# (what it is called there, the code)
BLOCKS = {
    "guide: solution": """
from unimem import UnifiedBuffer

# Create unified buffer
buf = UnifiedBuffer((1000,), dtype=np.float32)

# Work on host
buf.host[:] = np.random.randn(1000)

# Use on device (auto-syncs)
device_array = buf.device  # Automatically copies to GPU

# Read back (auto-syncs if device modified)
result = buf.to_numpy()
""",
    "guide: lazy synchronization": """
buf = UnifiedBuffer((1000,), dtype=np.float32)

# Write on host
buf.host[:] = data  # State: HOST_DIRTY

# No sync yet - still HOST_DIRTY
print(buf.state)  # HOST_DIRTY

# Access device - triggers sync
device_data = buf.device  # Sync: host → device
print(buf.state)  # SYNCHRONIZED
""",
    "guide: explicit synchronization": """
buf = UnifiedBuffer((1000,), dtype=np.float32)

# Prepare data
buf.host[:] = data

# Explicitly sync before kernel launch
buf.sync_to_device()

# Run GPU kernel (modifies device data)
my_kernel(buf.device)

# Mark device as modified
buf.mark_device_dirty()

# Explicitly sync before reading
buf.sync_to_host()

# Now safe to read
result = buf.host[:]
""",
    "guide: pinned memory": """
# Pinned memory for frequent transfers
buf = UnifiedBuffer((1000,), dtype=np.float32, pinned=True)

# Transfers are faster due to DMA
buf.host[:] = data
device_view = buf.device  # Faster copy
""",
    "guide: memory pooling": """
from unimem.core.memory_pool import get_memory_pool

pool = get_memory_pool()

# Acquire from pool (fast if cached)
buf = pool.acquire((1000,), dtype=np.float32)

# Use buffer...
buf.host[:] = data
process(buf.device)

# Release back to pool (not deallocated)
pool.release(buf)

# Next acquire may reuse the buffer
buf2 = pool.acquire((1000,), dtype=np.float32)  # Same buffer!
""",
    "guide: read-modify-write": """
buf = UnifiedBuffer((1000,), dtype=np.float32)

# Read on host
buf.host[:] = input_data  # HOST_DIRTY

# Modify on device
gpu_kernel(buf.device)    # Syncs, then SYNCHRONIZED
buf.mark_device_dirty()   # DEVICE_DIRTY

# Read on host
result = buf.to_numpy()   # Syncs back
""",
    "guide: batch processing": """
pool = get_memory_pool()
results = []

for batch in batches:
    buf = pool.acquire(batch.shape, batch.dtype)
    try:
        buf.copy_from(batch)
        process_on_gpu(buf.device)
        results.append(buf.to_numpy().copy())
    finally:
        pool.release(buf)
""",
    "guide: memory monitoring": """
from unimem import get_accelerator

acc = get_accelerator()

# Before allocation
free_before, total = acc.get_memory_info()

# Allocate
buf = UnifiedBuffer((10_000_000,), dtype=np.float32)
_ = buf.device  # Force device allocation

# After allocation
free_after, _ = acc.get_memory_info()

print(f"Allocated: {(free_before - free_after) / 1e6:.1f} MB")
""",
    "reference: overview": """
from unimem import UnifiedBuffer
import numpy as np

# Create a buffer
buffer = UnifiedBuffer(shape=(1024,), dtype=np.float32)

# Work on host
buffer.host[:] = np.random.randn(1024)

# Access on device (auto-syncs)
device_data = buffer.device
""",
    "reference: basic usage": """
from unimem import UnifiedBuffer
import numpy as np

# Create buffer
buf = UnifiedBuffer((1000,), dtype=np.float32)

# Initialize on host
buf.host[:] = np.arange(1000, dtype=np.float32)

# Use on device (automatically syncs)
device_array = buf.device
# ... GPU computation ...

# Read back (automatically syncs if device modified)
result = buf.to_numpy()
""",
    "reference: pinned memory": """
# Use pinned memory for frequent host-device transfers
buf = UnifiedBuffer((1024, 1024), dtype=np.float32, pinned=True)
""",
    "reference: explicit synchronization": """
buf = UnifiedBuffer((1000,), dtype=np.float32)

# Modify on host
buf.host[:] = np.random.randn(1000)

# Explicitly sync before kernel launch
buf.sync_to_device()

# After GPU kernel modifies device data
buf.mark_device_dirty()

# Explicitly sync back
buf.sync_to_host()
""",
    "reference: state tracking": """
buf = UnifiedBuffer((100,), dtype=np.float32)

print(buf.state)  # UNINITIALIZED

buf.host[:] = 1.0
print(buf.state)  # HOST_DIRTY

buf.sync_to_device()
print(buf.state)  # SYNCHRONIZED
""",
}

# What is checked when they have run.
AFTERWARDS = {
    "guide: memory pooling": "assert buf2 is buf\npool.release(buf2)",
    "guide: batch processing": "assert [one.tolist() for one in results] == [one.tolist() for one in batches]",
    "reference: basic usage": "assert result.tolist() == list(range(1000))",
}

# Of the blocks as they are in the documents, which are not part of this project: SHA-256, its first 16 digits.
DIGESTS = {
    "guide: solution": "2cb3ab7a7d2bd51d",
    "guide: lazy synchronization": "5da54541b7cc1e0c",
    "guide: explicit synchronization": "3d787efeaafcf2ba",
    "guide: pinned memory": "5341e036f7fcc68f",
    "guide: memory pooling": "a4b75e58adc4d2f5",
    "guide: read-modify-write": "c746b12b4e8391e5",
    "guide: batch processing": "7365612ccadd5edc",
    "guide: memory monitoring": "a10583ce05905ad1",
    "reference: overview": "ba528c7fcb1343e8",
    "reference: basic usage": "79be92383744ea39",
    "reference: pinned memory": "b24b8d39a1e73edd",
    "reference: explicit synchronization": "b1696c2a2e25902b",
    "reference: state tracking": "e8324a9d0385bad9",
}

STATES = "|".join(unimem.BufferState.__members__)


def with_states_checked(code: str) -> str:
    """After each line whose comment ends in a state: is the buffer in it?"""
    lines = []
    for line in code.splitlines():
        lines.append(line)
        said = re.search(rf"#.*\b({STATES})\b", line)
        if said and line.split("#")[0].strip():
            indent = re.match(r"\s*", line).group()
            name = re.search(r"\b(buffer|buf)\b", line)
            if name:
                lines.append(f"{indent}assert {name.group()}.state.name == '{said.group(1)}', ({name.group()}, {line.strip()!r})")
    return "\n".join(lines)


@pytest.mark.parametrize("name", BLOCKS)
def test_the_documents_blocks_are_as_they_are_there(name):
    there = BLOCKS[name].lstrip("\n").replace("unimem", "pydotcompute")
    assert hashlib.sha256(there.encode()).hexdigest()[:16] == DIGESTS[name]


@pytest.mark.parametrize("name", BLOCKS)
def test_the_documents_blocks_run_as_written(name):
    code = with_states_checked(BLOCKS[name])
    if "#" in BLOCKS[name] and "_DIRTY" in BLOCKS[name]:
        assert "assert buf" in code
    names = dict(PREAMBLE)
    exec(compile(code, name, "exec"), names)
    exec(compile(AFTERWARDS.get(name, ""), f"after {name}", "exec"), names)


@pytest.mark.parametrize(
    ("page", "least_blocks", "least_states"), [("python.md", 9, 10), ("from-pydotcompute.md", 9, 6), ("from-cupy-and-pytorch.md", 7, 1)]
)
def test_the_guides_to_the_package_run_as_written(page, least_blocks, least_states):
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) >= least_blocks
    names: dict[str, object] = {}
    for number, block in enumerate(blocks):
        code = with_states_checked(block)
        exec(compile(code, f"docs/{page}, block {number + 1}", "exec"), names)
    assert sum(with_states_checked(block).count(".state.name ==") for block in blocks) >= least_states


@pytest.mark.parametrize("where", ["sim", "opencl"])
def test_the_documents_blocks_run_on_discrete_devices(where, request):
    default = request.getfixturevalue(where).id if where == "opencl" else "sim"
    code = "import test_documents as t; [t.test_the_documents_blocks_run_as_written(name) for name in t.BLOCKS]; "
    code += "import unimem; print(unimem.default_device().id)"
    paths = os.pathsep.join([str(Path(__file__).parent), *map(os.path.abspath, sys.path)])
    environment = {**os.environ, "UNIMEM_DEVICE": default, "PYTHONPATH": paths}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1].startswith(default)


def test_the_double_buffering_pattern(sim, moved):
    """The guide's loop, with a first batch for its first kernel, which says what it writes and ends only if the host goes on meanwhile."""
    batches: Iterator[np.ndarray] = iter([np.full(1000, i, np.float32) for i in range(7)])
    results: list[float] = []
    filled = threading.Event()

    def data_available() -> bool:
        return len(results) < 6

    def get_next_batch() -> np.ndarray:
        return next(batches)

    def double(x: np.ndarray) -> None:
        assert filled.wait(60)
        filled.clear()
        np.multiply(x, 2, out=x)

    kernel = unimem.Kernel("double").host(double)

    def launch_async(kernel: unimem.Kernel, buf: unimem.UnifiedBuffer) -> unimem.Event:
        return unimem.launch(kernel, buf.size, unimem.readwrite(buf))

    async def main() -> None:
        # Two buffers for overlap
        buf_a = unimem.UnifiedBuffer((1000,), dtype=np.float32)
        buf_b = unimem.UnifiedBuffer((1000,), dtype=np.float32)
        buf_a.host[:] = get_next_batch()
        counts = moved(buf_a), moved(buf_b)

        while data_available():
            # Process buf_a on GPU while filling buf_b on CPU
            buf_a.sync_to_device()
            gpu_task = launch_async(kernel, buf_a)

            # Meanwhile, fill buf_b on host
            buf_b.host[:] = get_next_batch()
            filled.set()

            # Wait for GPU
            await gpu_task
            results.append(float(buf_a.to_numpy()[0]))

            # Swap buffers
            buf_a, buf_b = buf_b, buf_a
        assert [count.since() for count in counts] == [(3, 12000, 3, 12000)] * 2

    with sim:
        asyncio.run(main())
    assert results == [0, 2, 4, 6, 8, 10]


def test_the_message_pattern(sim):
    """The guide's messages, through a queue of asyncio's and with the package's registry for its dictionary."""

    @dataclass
    class ProcessRequest:
        buffer_id: str
        offset: int
        size: int

    def create_work_buffer(data: np.ndarray) -> str:
        buf = unimem.UnifiedBuffer(data.shape, data.dtype)
        buf.copy_from(data)
        return unimem.registry().publish(buf)

    async def processor(inbox: asyncio.Queue[ProcessRequest]) -> np.ndarray:
        request = await inbox.get()
        part = unimem.BufferRef(request.buffer_id, request.offset, request.size).resolve()
        assert part.default_device == sim
        return part.to_numpy()

    async def main(large_array: np.ndarray) -> np.ndarray:
        inbox: asyncio.Queue[ProcessRequest] = asyncio.Queue()
        processing = asyncio.ensure_future(processor(inbox))

        # Send just the reference
        buf_id = create_work_buffer(large_array)
        await inbox.put(ProcessRequest(
            buffer_id=buf_id,
            offset=0,
            size=len(large_array),
        ))  # fmt: skip
        return await processing

    large_array = np.arange(1000, dtype=np.float32)
    with sim:
        np.testing.assert_array_equal(asyncio.run(main(large_array)), large_array)


def test_metal_blocks_are_refused():
    buf = unimem.UnifiedBuffer((1000,), dtype=np.float32)
    buf.host[:] = np.random.default_rng(1).standard_normal(1000).astype(np.float32)
    buf.mark_host_dirty()
    with pytest.raises(unimem.UnsupportedOperation):
        _ = buf.metal
    with pytest.raises(unimem.UnsupportedOperation):
        buf.mark_metal_dirty()
