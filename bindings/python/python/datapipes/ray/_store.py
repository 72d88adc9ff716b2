"""Sorted parts between tasks as objects of Ray's store: Ray moves them, spills them, makes them again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import _datapipes
from .._datapipes import Buffer
from .._errors import Busy
from . import _memory
from ._order import Order
from ._outputs import Target
from ._plan import Division, Splitters
from ._shuffle import Shuffle
from ._tasks import Account, Bounds, SortedPart, check_folder


@dataclass(frozen=True)
class _InStore:
    """The side of the tasks: a part is sorted in memory, of which the store takes copies."""

    spill: str | None
    memory: int
    """What a merge gets."""

    def sort(
        self, order: Order, pieces: list[tuple[str, int, int]], part: int, splitters: Splitters, memory: int
    ) -> SortedPart:
        if self.spill is not None:
            check_folder(self.spill)

        def sorted_into(buffer: Buffer | None) -> tuple[Buffer, list[int], str]:
            return _datapipes.sort_part(order, pieces, part, splitters, memory, self.spill, buffer)

        kept = _memory.kept
        try:
            buffer, cuts, report = sorted_into(kept[0] if kept else None)
        except Busy:
            # Views of the last task's result are still alive.
            kept.clear()
            buffer, cuts, report = sorted_into(None)
        kept[:] = [buffer]
        return SortedPart(cuts, report, {}, np.frombuffer(memoryview(buffer.toreadonly()), np.uint8))

    def merge(self, order: Order, path: str, bounds: Bounds, blocks: Sequence[Any]) -> str:
        return _datapipes.merge_parts(order, list(blocks), path, *bounds, self.memory, self.spill)


class Store(Shuffle):
    """The blocks of a sort, in Ray's store."""

    name = "store"

    def __init__(self, order: Order, division: Division, target: Target, spill: str | None) -> None:
        super().__init__(order, division, target, spill)
        self._blocks: list[list[Any]] = []
        """By range and part; None for a block without bytes."""

    def _begin(self, parts: int) -> int:
        self._blocks = [[None] * parts for _ in range(self._division.ranges)]
        return self._division.ranges

    def _sort_way(self) -> _InStore:
        return self._merge_way([])

    def _take(self, part: int, account: Account, blocks: list[Any]) -> bool:
        del account["cuts"]
        for row, size, block in zip(self._blocks, account["blocks"], blocks, strict=True):
            row[part] = block if size else None
        return True

    def _blocks_of(self, number: int) -> tuple[list[Any], list[Any]]:
        blocks = [block for block in self._blocks[number] if block is not None]
        return blocks, blocks

    def _merge_way(self, used: list[Any]) -> _InStore:
        return _InStore(self._spill, self._division.merge_memory(self._order))

    def _merged(self, number: int) -> None:
        # Ray frees what nothing refers to.
        self._blocks[number] = []

    def close(self) -> None:
        self._blocks = []
