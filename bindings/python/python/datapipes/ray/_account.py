"""The final account: what went in, what came out, and whether they agree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .._errors import Corrupt
from .._report import Report

_SUM_BITS = 64


class Tally:
    """Records, their bytes, and a sum of their hashes that does not depend on their order."""

    def __init__(self) -> None:
        self.records = 0
        self.bytes = 0
        self.sum = 0

    def add(self, tally: dict[str, Any]) -> None:
        self.records += tally["records"]
        self.bytes += tally["bytes"]
        self.sum = (self.sum + int(tally["sum"], 16)) % (1 << _SUM_BITS)

    def to_dict(self) -> dict[str, Any]:
        return {"records": self.records, "bytes": self.bytes, "sum": f"{self.sum:016x}"}

    def __str__(self) -> str:
        return f"{self.records} records of {self.bytes} bytes with the sum {self.sum:016x}"


def tally_of(accounts: Sequence[dict[str, Any]], *sides: str) -> Tally:
    total = Tally()
    for account in accounts:
        for side in sides:
            total.add(account["report"][side])
    return total


def verify(maps: Sequence[dict[str, Any]], merges: Sequence[dict[str, Any]]) -> None:
    """Fail unless all that map tasks sorted is what reduce tasks wrote or dropped."""
    sorted_ = tally_of(maps, "written")
    merged = tally_of(merges, "written", "dropped")
    if sorted_.to_dict() != merged.to_dict():
        raise Corrupt(
            f"sort: sorted {sorted_}, but merged {merged}",
            operation="sort",
            advice="the output was not published; check the machines' memory, and report this as a bug",
        )
    lengths = [sum(map_["blocks"][number] for map_ in maps) for number in range(len(merges))]
    for number, (length, merge) in enumerate(zip(lengths, merges, strict=True)):
        came = merge["report"]["written"]["bytes"] + merge["report"]["dropped"]["bytes"]
        if came != length:
            raise Corrupt(f"sort: range {number} has {length} bytes, but {came} were merged", operation="sort")


def account_of(
    maps: Sequence[dict[str, Any]],
    merges: Sequence[dict[str, Any]],
    parts: Sequence[str],
    facts: dict[str, Any],
    phases: Sequence[tuple[str, float]],
) -> Report:
    """What was done, in the words of ``dpipe sort --json`` where it has them."""
    read, written = tally_of(maps, "written", "dropped"), tally_of(merges, "written")
    dropped = tally_of(maps, "dropped")
    for merge in merges:
        dropped.add(merge["report"]["dropped"])
    sizes = [merge["report"]["written"] for merge in merges]
    whole = len(parts) != len(merges)
    seconds = sum(seconds for _, seconds in phases)
    data = {
        "records": read.records,
        "records_out": written.records,
        "bytes": sum(map_["report"]["bytes"] for map_ in maps),
        "bytes_out": written.bytes,
        "record_sum": read.to_dict()["sum"],
        "written": written.to_dict(),
        "dropped": dropped.to_dict(),
        **facts,
        "maps": len(maps),
        "partitions": len(merges),
        "parts": [
            {"name": name, "records": size["records"], "bytes": size["bytes"]}
            for name, size in zip(parts, [written.to_dict()] if whole else sizes, strict=True)
        ],
        "nodes": sorted({account["node"] for account in (*maps, *merges)}),
        "task_cpu_seconds": round(sum(account["cpu_seconds"] for account in (*maps, *merges)), 3),
        "phases": [{"name": name, "seconds": round(seconds, 3)} for name, seconds in phases],
        "seconds": round(seconds, 3),
    }
    longest = max((size["bytes"] for size in sizes), default=0)
    mean = written.bytes / max(len(sizes), 1)
    lines = [
        f"{read.records} records, {data['bytes'] / 1e9:.3f} GB in {seconds:.2f} s: {len(maps)} parts sorted, "
        f"{len(merges)} ranges merged, {facts['parallelism']} tasks at once, "
        f"{facts['memory_per_task'] >> 20} MiB of memory each",
        *(f"  {name:<8} {seconds:.2f} s" for name, seconds in phases),
        f"  ranges   the longest has {longest} bytes, {longest / mean if mean else 1:.2f} times the mean",
        f"  checked  {written} written, {dropped.records} records dropped: as many as were read",
    ]
    if facts["left_out"]:
        lines.append(f"  left out {len(facts['left_out'])} files of folders, by their names: {facts['left_out'][0]} ...")
    return Report("sort on Ray", "\n".join(lines), data)
