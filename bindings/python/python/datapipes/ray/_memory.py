"""Memory that a worker of Ray keeps from one task to the next: fresh memory costs its first touch."""

from __future__ import annotations

from typing import Any

import ray as _ray

from .. import _datapipes
from .._datapipes import Buffer

kept: list[Buffer] = []
"""Memory for a sorted part, which the next task of the process uses again."""


def limit() -> None:
    """Keep no more memory of earlier sorts than the task that begins was given."""
    ray: Any = _ray
    most = int(ray.get_runtime_context().get_assigned_resources().get("memory", 0))
    if _datapipes.limit_kept_memory(sum(map(len, kept)), most):
        kept.clear()
