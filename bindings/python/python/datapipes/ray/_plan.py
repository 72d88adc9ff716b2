"""How the work is divided: parts of the input for map tasks, ranges of the order for reduce tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import lcm

from .._errors import Unavailable
from ._order import Order, refused
from ._places import Source

MIB = 1 << 20

Splitters = list[tuple[bytes, int]]
"""Records that divide the order into ranges, with the numbers of their parts."""

MIN_MEMORY = 64 * MIB
"""The least memory of a task: the engine's least, what it keeps for blocks, and room for a part."""

_OVERHEAD = 24 * MIB
"""What a sort takes beside records and entries: its program, rings and blocks of output."""

_MERGE_MEMORY = 64 * MIB
"""What a merge of parts in memory takes: blocks of output."""

_MERGE_BUFFERS = 2 * MIB
"""What a merge takes more for each block in a file. It uses half of it, two buffers of half a megabyte; the
rest is for records that cross them."""

_MIN_PART = 16 * MIB
"""Smaller parts are not made only to have more of them: a task costs more than it would gain."""

_GOOD_PART = 128 * MIB
"""Longer parts are made only where there would be too many blocks: their memory costs its first touch."""

_ALIGN = 4096
"""Where parts begin at multiples of it, they are read past the page cache straight into place."""

_MANY_BLOCKS = 20_000
"""From so many on, parts become longer instead."""

_MAX_RANGE = 1 << 30
"""Longer ranges are not made where nobody asks for them."""

_MAX_BLOCKS = 250_000
"""The most blocks that go through Ray's store: the driver remembers each of them."""

_MAX_KEPT_RANGE = 4 << 30
"""As long may a range be whose blocks stay in files: no memory holds it."""

_MAX_CONNECTIONS = 8000
"""The most connections of a node over which it sends blocks. Each has a thread that waits."""

_SAMPLES_A_RANGE = 200
"""A range is then rarely a quarter longer than the mean."""

_MAX_SAMPLES = 40_000


@dataclass(frozen=True)
class Nodes:
    """What the cluster has: processors in all, and by node its processors, memory and object store."""

    nodes: tuple[tuple[float, int, int], ...]

    @property
    def cpus(self) -> int:
        return max(1, int(sum(cpus for cpus, _, _ in self.nodes)))

    def memory_per_task(self) -> int:
        """Memory for each task if every processor has one."""
        shares = [memory / max(1.0, cpus) for cpus, memory, _ in self.nodes if cpus >= 1]
        share = int(min(shares, default=0) * 0.8)
        return min(max(share, MIN_MEMORY), 2 << 30)

    def range_bytes(self) -> int:
        """How long a range may be, so that the ranges of all tasks of a node fit its object store."""
        shares = [store / (3 * max(1.0, cpus)) for cpus, _, store in self.nodes if cpus >= 1]
        return int(min(max(min(shares, default=0.0), 4 * MIB), _MAX_RANGE))

    def most_parts(self) -> int:
        """How many parts each of a node's tasks may merge, with a connection for each part."""
        return max(64, _MAX_CONNECTIONS // max(1, int(max((cpus for cpus, _, _ in self.nodes), default=1))))

    def check(self, memory: int) -> None:
        """Fail if no node can run a task, for which Ray would wait for ever."""
        if not any(cpus >= 1 and has >= memory for cpus, has, _ in self.nodes):
            raise Unavailable(
                f"sort: no node of the cluster has a processor and {memory} bytes of memory for a task",
                operation="sort",
                advice="give less memory_per_task, or start nodes with more memory",
            )


@dataclass(frozen=True)
class Piece:
    """The records of a file that begin in its bytes ``start`` to ``end``."""

    source: Source
    start: int
    end: int


class Layout:
    """All inputs as one sequence of bytes."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self.sources = list(sources)
        self._starts = [0, *accumulate(source.size for source in sources)]
        self.total = self._starts[-1]

    def samples(self, count: int) -> list[tuple[int, list[int]]]:
        """Where to look for samples: for each source its number and offsets in it, at equal distances."""
        count = max(1, min(count, self.total))
        places: list[tuple[int, list[int]]] = []
        source = 0
        for i in range(count if self.total else 0):
            at = (2 * i + 1) * self.total // (2 * count)
            while at >= self._starts[source + 1]:
                source += 1
            if not places or places[-1][0] != source:
                places.append((source, []))
            places[-1][1].append(at - self._starts[source])
        return places

    def part_of(self, source: int, offset: int, part_bytes: int) -> int:
        """The number of the part in which a record at this offset begins."""
        return (self._starts[source] + offset) // part_bytes

    def parts(self, part_bytes: int) -> list[list[Piece]]:
        """Parts of about so many bytes, in order. Files much smaller than a part share one."""
        parts: list[list[Piece]] = [[] for _ in range(-(-self.total // part_bytes))]
        for number, source in enumerate(self.sources):
            first = self._starts[number]
            for part in range(first // part_bytes, -(-self._starts[number + 1] // part_bytes)):
                start = max(part * part_bytes - first, 0)
                end = min((part + 1) * part_bytes - first, source.size)
                if start < end:
                    parts[part].append(Piece(source, start, end))
        return parts


@dataclass(frozen=True)
class Division:
    """The numbers by which the work is divided."""

    ranges: int
    parallelism: int
    memory_per_task: int
    samples: int
    most_parts: int | None
    """How many parts there may be where they stay in files; None where they go through Ray's store."""

    def part_bytes(self, order: Order, total: int, mean_len: float) -> int:
        """The length of a part that a task sorts in its memory, with the result beside it if it is memory."""
        unit = order.fixed_len or 1
        beside = 1 if self.most_parts is None else 0
        longest = int((self.memory_per_task - _OVERHEAD) * 0.9 / (beside + weight(order, mean_len)))
        few = total * self.ranges // _MANY_BLOCKS if self.most_parts is None else 2 * total // self.most_parts
        longest = min(longest, max(_GOOD_PART, few))
        tasks = -(-total // max(longest, 1))
        if tasks < self.parallelism:
            tasks = min(self.parallelism, max(1, total // _MIN_PART))
        else:
            # No processor is idle in the last turn.
            tasks = -(-tasks // self.parallelism) * self.parallelism
        part = -(-total // max(tasks, 1))
        aligned = lcm(unit, _ALIGN)
        # A longer part costs little then, and reads of it need no copy in memory.
        unit = aligned if order.fixed_len and part >= 100 * aligned else unit
        return max(-(-part // unit) * unit, unit)

    def sort_memory(self, order: Order, part_bytes: int, mean_len: float) -> int:
        """What the engine gets of the memory of a task that sorts a part."""
        if self.most_parts is not None:
            return self.memory_per_task
        needed = int(part_bytes * 1.1 * weight(order, mean_len)) + _OVERHEAD
        return max(min(self.memory_per_task - part_bytes, 2 * needed), 32 * MIB)

    def merge_memory(self, order: Order) -> int:
        """What the engine gets in a task that merges. Numbers are sorted anew there."""
        return self.memory_per_task if order.numbers else min(_MERGE_MEMORY, self.memory_per_task)

    def kept_merge_memory(self, order: Order, blocks: int) -> int:
        """The same for blocks in files: with buffers of a good size for each."""
        if order.numbers:
            return self.memory_per_task
        return min(_MERGE_MEMORY + blocks * _MERGE_BUFFERS, self.memory_per_task)

    def check_blocks(self, parts: int) -> None:
        if self.most_parts is None and parts * self.ranges > _MAX_BLOCKS:
            raise refused(
                f"{parts} parts of the input times {self.ranges} ranges are more blocks than {_MAX_BLOCKS}: "
                "give more memory_per_task, or fewer partitions"
            )
        if self.most_parts is not None and parts > self.most_parts:
            raise refused(
                f"{parts} parts of the input are more than {self.most_parts}, which the tasks of a node can "
                'have sent: give more memory_per_task, or shuffle="store"'
            )


def weight(order: Order, mean_len: float) -> float:
    """The bytes that the engine needs for each byte of records: they and their entries."""
    return 1.0 if order.numbers else 1.0 + 32 / max(mean_len, 1.0) * 1.05


def divide(
    total: int,
    nodes: Nodes,
    memory_per_task: int | None,
    parallelism: int | None,
    partitions: int | None,
    *,
    kept: bool,
) -> Division:
    """Divide the work, by what was asked for and by what the cluster has. ``kept``: blocks stay in files."""
    if memory_per_task is not None and memory_per_task < MIN_MEMORY:
        raise refused(f"memory_per_task={memory_per_task}: the least is {MIN_MEMORY}")
    for name, number in (("parallelism", parallelism), ("partitions", partitions)):
        if number is not None and number < 1:
            raise refused(f"{name}={number}: the least is 1")
    memory = memory_per_task if memory_per_task is not None else nodes.memory_per_task()
    nodes.check(memory)
    tasks = min(parallelism or nodes.cpus, nodes.cpus)
    ranges = partitions
    if ranges is None:
        ranges = -(-total // (_MAX_KEPT_RANGE if kept else nodes.range_bytes()))
        ranges = max(-(-ranges // tasks) * tasks, 1)
        ranges = min(ranges, max(1, total // MIB))
    samples = min(_SAMPLES_A_RANGE * ranges, _MAX_SAMPLES)
    return Division(ranges, tasks, memory, samples, nodes.most_parts() if kept else None)


def bounds_of(splitters: Splitters, ranges: int) -> list[tuple[bytes | None, bytes | None]]:
    """The splitters on both sides of each range."""
    records: list[bytes | None] = [None, *(record for record, _ in splitters), None]
    if len(splitters) + 1 != ranges:
        # There were no samples to choose splitters from: all is in the first range.
        records = [None] * (ranges + 1)
    return list(zip(records, records[1:], strict=False))
