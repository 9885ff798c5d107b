"""One logical array kept coherent between the host and accelerators.

    import numpy as np
    from unimem import UnifiedBuffer

    buffer = UnifiedBuffer((1000,), dtype=np.float32)
    buffer.host[:] = np.arange(1000)
    on_device = buffer.device      # copied there when it must be, and not before
    result = buffer.to_numpy()

docs/python.md is the guide.
"""

from __future__ import annotations

import atexit
import os
from typing import TYPE_CHECKING, Any

from . import _unimem  # first: subinterpreters are refused before NumPy is theirs
from ._buffer import UnifiedBuffer
from ._devices import (
    Accelerator,
    default_device,
    device_info,
    get_accelerator,
    transfers,
    unavailable_backends,
)
from ._blocks import BufferBlock
from ._double_buffer import DoubleBuffer
from ._elements import BufferSlice, Mapping
from ._elements import copy as copy
from ._enums import (
    AccessPattern,
    Advice,
    BufferState,
    LinkSource,
    Location,
    MapMode,
    Optimization,
    Placement,
    PlacementRule,
    PressureLevel,
    Tracking,
)
from ._errors import (
    BufferNotAllocated,
    ChecksumMismatch,
    CoherenceConflict,
    DataLost,
    DeviceError,
    Error,
    InvalidArgument,
    IoError,
    KernelError,
    NotFound,
    OutOfMemory,
    SizeMismatch,
    StreamCancelled,
    UnsupportedOperation,
)
from ._host import HostArray
from ._kernels import Kernel, Operand, launch, launch_async, read, readwrite, write
from ._log import log_to_python
from ._manager import BlockPool, MemoryManager, default_manager
from ._orchestrator import KernelExecution, Orchestrator
from ._pool import MemoryPool, get_memory_pool
from ._records import (
    BufferStatistics,
    DeviceInfo,
    LinkStatistics,
    MemoryInfo,
    PoolLimits,
    PoolStatistics,
    TransferCounters,
    UnavailableBackend,
)
from ._reductions import reduce, reduce_into
from ._saving import restore, save, sleep, wake
from ._sharing import (
    BufferRef,
    BufferRegistry,
    PeerDeath,
    SentAndNotReceived,
    SharedBuffer,
    SharedOnThisHost,
    SharedWithOthers,
    SharingProcess,
    registry,
    shared_on_this_host,
)
from ._streams import (
    HistogramResult,
    MappingResult,
    ReductionResult,
    StatisticsResult,
    StreamedFile,
    StreamResult,
    affine,
    histogram,
    mapping,
    reducing,
    stream_file,
    stream_file_async,
)
from ._signatures import (
    can_capture_stacks,
    can_expose_to_prometheus,
    describe_address,
    device,
    devices,
    format_size,
    make_sim,
    parse_size,
    version,
)
from ._streams import statistics as statistics
from ._subscriptions import PeerDeathSubscription, PressureSubscription, end_all_subscriptions
from ._tensors import TensorInfo, Tensors, open_tensors
from ._unimem import Device, DeviceArray, Event, StreamKernel

if TYPE_CHECKING:
    from ._manager_records import (
        BlockStatistics,
        GlobalMemoryStatistics,
        LeakReport,
        Link,
        LiveAllocation,
        MemoryLimit,
        MemorySnapshot,
        OptimizationReport,
        OptimizationStep,
        PlacementDecision,
        PlacementRecommendations,
        PlaceUsage,
        PoolDefragmentation,
        PoolFragmentation,
        PoolUsage,
        PressureChange,
        RecordedUse,
        SizeClassStatistics,
        Usage,
        UsageCounts,
        UsageLine,
    )


__version__ = version()

log_to_python()
# Kernels written in Python that are under way end before the interpreter does, and callbacks before them; a forked child has none of them.
atexit.register(_unimem._interpreter_ends)
atexit.register(end_all_subscriptions)
os.register_at_fork(after_in_child=_unimem._after_fork)

# Without `copy` and `statistics`, which are modules of Python's own to a program that takes all names.
__all__ = [
    "Accelerator", "AccessPattern", "Advice", "BlockPool", "BlockStatistics", "BufferBlock", "BufferNotAllocated", "BufferRef", "BufferRegistry",
    "BufferSlice", "BufferState", "BufferStatistics", "ChecksumMismatch", "CoherenceConflict", "DataLost", "Device", "DeviceArray",
    "DeviceError", "DeviceInfo", "DoubleBuffer", "Error", "Event", "GlobalMemoryStatistics", "HistogramResult", "HostArray",
    "InvalidArgument", "IoError", "Kernel", "KernelError", "KernelExecution", "LeakReport", "Link", "LinkSource", "LinkStatistics", "LiveAllocation", "Location",
    "MapMode", "Mapping", "MappingResult", "MemoryInfo", "MemoryLimit", "MemoryManager", "MemoryPool", "MemorySnapshot",
    "NotFound", "Operand",
    "Optimization", "OptimizationReport", "OptimizationStep", "Orchestrator", "OutOfMemory", "PeerDeath", "PeerDeathSubscription",
    "PlaceUsage", "Placement",
    "PlacementDecision", "PlacementRecommendations", "PlacementRule", "PoolDefragmentation", "PoolFragmentation",
    "PoolLimits", "PoolStatistics", "PoolUsage", "PressureChange", "PressureLevel", "PressureSubscription", "RecordedUse", "ReductionResult", "SentAndNotReceived", "SharedBuffer",
    "SharedOnThisHost", "SharedWithOthers", "SharingProcess", "SizeClassStatistics", "SizeMismatch",
    "StatisticsResult", "StreamCancelled", "StreamKernel", "StreamResult", "StreamedFile", "TensorInfo", "Tensors", "Tracking", "TransferCounters",
    "UnavailableBackend", "UnifiedBuffer", "UnsupportedOperation", "Usage", "UsageCounts", "UsageLine", "affine",
    "can_capture_stacks", "can_expose_to_prometheus", "default_device", "default_manager", "describe_address",
    "device", "device_info", "devices", "format_size", "get_accelerator", "get_memory_pool", "histogram", "launch", "launch_async",
    "make_sim", "mapping", "open_tensors", "parse_size", "read", "readwrite", "reduce", "reduce_into", "reducing", "registry", "restore", "save", "shared_on_this_host", "sleep", "stream_file",
    "stream_file_async", "transfers", "unavailable_backends", "version", "wake", "write",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    # What managers tell of their memory is twenty classes, a tenth of the import, which most programs never ask for.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import _manager_records

    value = getattr(_manager_records, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, "copy", "statistics", *(name for name in globals() if name.startswith("__") or name == "core")})
