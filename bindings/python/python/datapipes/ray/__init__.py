"""The external sort on a cluster of Ray: Ray schedules and recovers, this package sorts. Needs Ray.

    import datapipes.ray
    report = datapipes.ray.sort(["a.txt", "b.txt"], "sorted", keys=["2,2n"])

Inputs and output lie on a file system that all nodes share, by the same names, or are objects in buckets.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

if find_spec("ray") is None:
    raise ImportError("datapipes.ray needs Ray: pip install 'datapipes[ray]'")

if TYPE_CHECKING:
    from ._sort import sort

__all__ = ["sort"]


def __getattr__(name: str) -> object:
    # Ray takes a second to import. The command can then be interrupted, and tells of its options, before.
    if name != "sort":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ._sort import sort

    return sort
