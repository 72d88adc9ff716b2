"""Sorted parts between tasks as files of the nodes that made them, of which ranges are sent.

    map      sorts a part into a file without a name on its node; the node's keeper gets the file
    reduce   merges a range of all parts: files of its own node it reads itself, other nodes' keepers
             send it theirs
    driver   has parts sorted again whose keeper is gone
"""

from __future__ import annotations

import os
import resource
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .. import _datapipes
from .._errors import Unavailable
from ._keepers import Keepers, Kept
from ._order import Order
from ._outputs import Target
from ._plan import Division, Splitters
from ._shuffle import Shuffle
from ._tasks import Account, Bounds, SortedPart, check_folder
from ._turns import RETRIES, lost, ray


def _folder_of(spill: str | None) -> str:
    """A folder of this node. /tmp may be memory, and /var/tmp is none."""
    if spill is not None:
        check_folder(spill)
        return spill
    return "/var/tmp" if "TMPDIR" not in os.environ and os.path.isdir("/var/tmp") else tempfile.gettempdir()


def _node_id() -> str:
    return str(ray.get_runtime_context().get_node_id())


@dataclass(frozen=True)
class BlockPlace:
    """Bytes of a sorted part, on a node."""

    node: str
    keeper: Kept
    file: int
    start: int
    end: int


@dataclass(frozen=True)
class _Block:
    """The compiled half of the package reads these attributes."""

    local: bool
    keeper: str
    file: int
    start: int
    end: int


@dataclass(frozen=True)
class _SortInFiles:
    """The side of the tasks that sort: the keeper of the node gets the file."""

    keepers: Mapping[str, Kept]
    ticket: bytes
    spill: str | None

    def sort(
        self, order: Order, pieces: list[tuple[str, int, int]], part: int, splitters: Splitters, memory: int
    ) -> SortedPart | Account:
        """If this node has no keeper, or none that answers, the account says so by "unkept"."""
        node = _node_id()
        keeper = self.keepers.get(node)
        if keeper is None:
            return {"unkept": f"node {node} has no keeper", "node_id": node, "keeper": None}
        folder = _folder_of(self.spill)
        try:
            file, cuts, report = _datapipes.sort_part_kept(
                order, pieces, part, splitters, memory, folder, keeper.name, self.ticket
            )
        except Unavailable as error:
            return {"unkept": str(error), "node_id": node, "keeper": keeper}
        return SortedPart(cuts, report, {"node_id": node, "keeper": keeper, "file": file})


@dataclass(frozen=True)
class _MergeFromFiles:
    """The side of the tasks that merge."""

    ticket: bytes
    spill: str | None
    memory: tuple[int, int]
    """What the merge gets, and what the worker keeps."""

    def merge(self, order: Order, path: str, bounds: Bounds, blocks: Sequence[Sequence[BlockPlace]]) -> str | Account:
        """If blocks could not be had, the account has their numbers as "lost", and "why"."""
        # A merge reads a file or a connection for each part.
        least, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        if least < most:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        node = _node_id()
        (places,) = blocks
        asked = [
            _Block(True, place.keeper.name, place.file, place.start, place.end)
            if place.node == node
            else _Block(False, place.keeper.address, place.file, place.start, place.end)
            for place in places
        ]
        folder = _folder_of(self.spill)
        report, gone, why = _datapipes.merge_kept(order, asked, path, *bounds, self.memory, folder, self.ticket)
        return {"lost": gone, "why": why} if report is None else report


@dataclass(frozen=True)
class _Part:
    """A sorted part: who keeps it, by which number, and where it is cut."""

    node: str
    keeper: Kept
    file: int
    cuts: tuple[int, ...]


class Direct(Shuffle):
    """The blocks of a sort, in files of its nodes."""

    name = "direct"

    def __init__(self, order: Order, division: Division, target: Target, spill: str | None) -> None:
        super().__init__(order, division, target, spill)
        self._ticket = os.urandom(32)
        self._keepers = Keepers(self._ticket)
        self._parts: list[_Part | None] = []
        self._tries: list[int] = []

    def _begin(self, parts: int) -> int:
        self._parts, self._tries = [None] * parts, [0] * parts
        return 0

    def _sort_way(self) -> _SortInFiles:
        return _SortInFiles(self._keepers.all(), self._ticket, self._spill)

    def _take(self, part: int, account: Account, blocks: list[Any]) -> bool:
        if "unkept" in account:
            self._count(part, account["unkept"])
            self._keepers.renew(account["node_id"], account["keeper"])
            return False
        keeper, cuts = account.pop("keeper"), tuple(account.pop("cuts"))
        self._parts[part] = _Part(account.pop("node_id"), keeper, account.pop("file"), cuts)
        return True

    def _is_ready(self) -> bool:
        return None not in self._parts

    def _blocks_of(self, number: int) -> tuple[list[Any], list[Any]]:
        used = [
            (i, part)
            for i, part in enumerate(self._parts)
            if part is not None and part.cuts[number] < part.cuts[number + 1]
        ]
        places = [
            BlockPlace(part.node, part.keeper, part.file, part.cuts[number], part.cuts[number + 1])
            for _, part in used
        ]
        # One argument: each argument of a task costs something of its own.
        return used, [places] if places else []

    def _merge_way(self, used: list[Any]) -> _MergeFromFiles:
        division = self._division
        memory = (division.kept_merge_memory(self._order, len(used)), division.memory_per_task)
        return _MergeFromFiles(self._ticket, self._spill, memory)

    def _lost(self, account: Account, used: list[Any]) -> list[int]:
        gone = [used[i] for i in account["lost"]]
        if not gone:
            # The blocks are there, but the way to them failed.
            for part, _ in used:
                self._count(part, account["why"])
        sort_again = [part for part, of in gone if self._parts[part] is of]
        for part in sort_again:
            self._count(part, account["why"])
            self._parts[part] = None
        return sort_again

    def _count(self, part: int, why: str) -> None:
        self._tries[part] += 1
        if self._tries[part] > RETRIES:
            raise lost(why)

    def close(self) -> None:
        """End the keepers, and with them what they keep."""
        self._keepers.close()
