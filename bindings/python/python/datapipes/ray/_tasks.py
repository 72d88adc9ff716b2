"""What Ray runs on the nodes. What a sorted part becomes, and where a merge has its blocks from, is
decided by the way of the shuffle (`_direct`, `_store`).
"""

from __future__ import annotations

import json
import os
import resource
import time
from collections.abc import Sequence
from typing import Any, Protocol

from .. import _datapipes
from .._errors import NotFound
from . import _memory
from ._order import Order
from ._outputs import Target
from ._places import Source
from ._plan import Piece, Splitters

Account = dict[str, Any]
Bounds = tuple[bytes | None, bytes | None]


class SortedPart:
    """What came of a part of the input: where it is cut, the report, facts for the driver, and blocks."""

    def __init__(self, cuts: list[int], report: str, facts: Account, whole: Any = None) -> None:
        self.cuts, self.report, self.facts, self.whole = cuts, report, facts, whole


class SortWay(Protocol):
    """Sorts a part to where its blocks are to be. Returns the part, or an account of why there is none."""

    def sort(
        self, order: Order, pieces: list[tuple[str, int, int]], part: int, splitters: Splitters, memory: int
    ) -> SortedPart | Account: ...


class MergeWay(Protocol):
    """Merges blocks into a file or an object. Returns the report, or an account of what was lost."""

    def merge(self, order: Order, path: str, bounds: Bounds, blocks: Sequence[Any]) -> str | Account: ...


class _Meter:
    """The time and the processor seconds of a task, which begins with it."""

    def __init__(self) -> None:
        _memory.limit()
        self._started = time.monotonic()
        self._cpu = self._spent()

    @staticmethod
    def _spent() -> float:
        spent = resource.getrusage(resource.RUSAGE_SELF)
        return spent.ru_utime + spent.ru_stime

    def account(self, report: str) -> Account:
        return {
            "report": json.loads(report),
            "seconds": time.monotonic() - self._started,
            "cpu_seconds": self._spent() - self._cpu,
            "node": os.uname().nodename,
            "process": os.getpid(),
        }


def sample(
    order: Order, places: Sequence[tuple[int, Source, list[int]]], most: int
) -> list[tuple[int, int, int, bytes]]:
    """Look up records: the number of the source, the offset there, the length, and the record.

    Of longer lines so many bytes are returned: they divide the order as well.
    """
    found = []
    for number, source, offsets in places:
        source.check()
        for offset, record in _datapipes.sample_records(order, source.path, offsets):
            length = len(record)
            if order.fixed_len is None and length > most:
                record = record[:most] + record[-1:]
            found.append((number, offset, length, record))
    return found


def sort_part(
    order: Order,
    part: int,
    pieces: Sequence[Piece],
    splitters: Splitters,
    ranges: int,
    memory: int,
    way: SortWay,
) -> Account | list[Any]:
    """Sort a part of the input. Return the account; and a block for each range, if the way has them."""
    meter = _Meter()
    sources = {piece.source for piece in pieces}
    for source in sources:
        source.check()
    asked = [(piece.source.path, piece.start, piece.end) for piece in pieces]
    sorted_ = way.sort(order, asked, part, splitters, memory)
    if not isinstance(sorted_, SortedPart):
        return sorted_
    for source in sources:
        source.check()
    cuts = sorted_.cuts + [sorted_.cuts[-1]] * (ranges + 1 - len(sorted_.cuts))
    account = {**meter.account(sorted_.report), **sorted_.facts}
    borders = list(zip(cuts, cuts[1:], strict=False))
    account["blocks"] = [end - start for start, end in borders]
    account["cuts"] = cuts
    if sorted_.whole is None:
        return account
    return [account, *(sorted_.whole[start:end] for start, end in borders)]


def merge_range(
    order: Order, target: Target, number: int, count: int, bounds: Bounds, way: MergeWay, *blocks: Any
) -> Account:
    """Merge the blocks of a range into a file or an object. Its name is that of this attempt."""
    meter = _Meter()
    name = target.attempt(number, count)
    if blocks:
        merged = way.merge(order, target.path_of(name), bounds, blocks)
    else:
        target.write_empty(name)
        nothing = {"records": 0, "bytes": 0, "sum": "0" * 16}
        merged = json.dumps({"written": nothing, "dropped": nothing, "records": 0, "bytes_out": 0})
    if not isinstance(merged, str):
        return merged
    return {**meter.account(merged), "name": name}


def check_folder(folder: str) -> None:
    """Fail if it is no folder of this node."""
    if not os.path.isdir(folder):
        raise NotFound(f"sort: {folder} is no folder of node {os.uname().nodename}", operation="sort", filename=folder)
