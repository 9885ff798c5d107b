"""``from unimem.core.memory_pool import get_memory_pool``, as the documents have it."""

from .._pool import MemoryPool, get_memory_pool

__all__ = ["MemoryPool", "get_memory_pool"]
