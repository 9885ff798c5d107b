"""Buffers in Dask: what a cluster is told of their sizes and tokens, how they go from worker to worker, where they are spilled.

    import unimem.dask

    cluster = LocalCluster(data=unimem.dask.storage)
    client = Client(cluster)
    client.register_plugin(unimem.dask.MemoryPlugin(limits={"host": "2GiB", "device": "1GiB"}))

Needs dask and distributed, which ``import unimem`` does not. docs/dask.md is the guide.
"""

from __future__ import annotations

from dask.base import normalize_token  # type: ignore[import-not-found,unused-ignore]
from dask.sizeof import sizeof  # type: ignore[import-not-found,unused-ignore]

from ._dask import register_sizes
from ._dask_messages import Transfers, register_messages, token_of, transfers
from ._dask_plugin import MemoryPlugin
from ._dask_storage import Storage, storage
from ._elements import Elements

__all__ = ["MemoryPlugin", "Storage", "Transfers", "storage", "transfers"]

register_sizes(sizeof)  # a package that is not installed, but lies on the path, has no entry point
normalize_token.register(Elements, token_of)
register_messages()
