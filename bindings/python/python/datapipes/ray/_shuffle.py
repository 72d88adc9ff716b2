"""The jobs of a sort: one for each part of the input, then one for each range of the order.

How sorted parts come from the ones to the others is what `_direct` and `_store` differ in.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

from . import _tasks
from ._order import Order
from ._outputs import Target
from ._plan import Division, Piece, Splitters, bounds_of
from ._tasks import Account, MergeWay, SortWay
from ._turns import RETRIES, Job, Turns, ray


class Shuffle(ABC):
    """A way of sorted parts from the tasks that sort to those that merge."""

    name: ClassVar[str]

    def __init__(self, order: Order, division: Division, target: Target, spill: str | None) -> None:
        self._order, self._division, self._target, self._spill = order, division, target, spill
        self._sort_job: Callable[[int], Job] | None = None

    def sort_parts(
        self,
        turns: Turns,
        parts: Sequence[list[Piece]],
        memory: int,
        splitters: Splitters,
        read: Callable[[int], None],
    ) -> list[Account]:
        """Sort all parts. Return the accounts."""
        ranges, returned = self._division.ranges, self._begin(len(parts))
        # Each range is merged from all parts, so no node should have more of them than others.
        spread = {"num_returns": 1 + returned, "scheduling_strategy": "SPREAD"}
        task = self._task(_tasks.sort_part, "dpipe-sort", **spread)
        cut_at = ray.put(splitters)
        accounts: list[Account] = [{}] * len(parts)

        def job(part: int) -> Job:
            def start() -> Any:
                return task.remote(self._order, part, parts[part], cut_at, ranges, memory, self._sort_way())

            def done(account: Account, blocks: list[Any]) -> Iterable[Job]:
                if not self._take(part, account, blocks):
                    return [job(part)]
                if not accounts[part]:
                    read(account["report"]["bytes"])
                accounts[part] = account
                return []

            return Job(start, done)

        self._sort_job = job
        turns.run(job(part) for part in range(len(parts)))
        return accounts

    def merge_ranges(self, turns: Turns, splitters: Splitters, written: Callable[[int], None]) -> list[Account]:
        """Merge all ranges. Return the accounts."""
        ranges = self._division.ranges
        # A worker keeps what it used for a sort, so a merge is counted as one, although it takes less.
        task = self._task(_tasks.merge_range, "dpipe-merge")
        accounts: list[Account] = [{}] * ranges
        bounds = bounds_of(splitters, ranges)

        def job(number: int) -> Job:
            used: list[Any] = []

            def start() -> Any:
                used[:], blocks = self._blocks_of(number)
                way = self._merge_way(used)
                return task.remote(self._order, self._target, number, ranges, bounds[number], way, *blocks)

            def done(account: Account, _references: list[Any]) -> Iterable[Job]:
                if "lost" in account:
                    again = self._lost(account, used)
                    assert self._sort_job is not None
                    return [*map(self._sort_job, again), job(number)]
                accounts[number] = account
                written(account["report"]["written"]["bytes"])
                self._merged(number)
                return []

            return Job(start, done, self._is_ready)

        turns.run(job(number) for number in range(ranges))
        return accounts

    def _task(self, function: Callable[..., Any], name: str, **options: Any) -> Any:
        memory = self._division.memory_per_task
        return ray.remote(function).options(name=name, num_cpus=1, memory=memory, max_retries=RETRIES, **options)

    @abstractmethod
    def _begin(self, parts: int) -> int:
        """Prepare for so many parts. Return how many blocks a task returns itself."""

    @abstractmethod
    def _sort_way(self) -> SortWay:
        """What a task that is started now does with its sorted part."""

    @abstractmethod
    def _take(self, part: int, account: Account, blocks: list[Any]) -> bool:
        """Take note of where a sorted part is. Return whether it is anywhere."""

    @abstractmethod
    def _blocks_of(self, number: int) -> tuple[list[Any], list[Any]]:
        """The blocks of a range: what this side knows of them, and what a task is told."""

    @abstractmethod
    def _merge_way(self, used: list[Any]) -> MergeWay:
        """How a task merges these blocks, as this side knows them."""

    def _is_ready(self) -> bool:
        """Whether all blocks are there."""
        return True

    def _lost(self, account: Account, used: list[Any]) -> list[int]:
        """The parts that must be sorted again, because a merge did not get blocks of them."""
        raise NotImplementedError(f"{self.name}: {account} of {used}")

    def _merged(self, number: int) -> None:
        """A range is done."""

    @abstractmethod
    def close(self) -> None:
        """Let go of all blocks."""
