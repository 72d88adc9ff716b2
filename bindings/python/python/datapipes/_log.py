"""Logs: records that survive a crash."""

from __future__ import annotations

import json
from typing import Any, Self

from . import _datapipes
from ._datapipes import LogReader
from ._paths import Path, text_of
from ._report import Report


class Log(_datapipes.Log):
    """A log of records in a folder; one writer at a time has it.

    A record that was appended is durable when `append_durable` or `sync` returns. Opening a log
    that a crash left finds its end: what was not durable is cut off, and damage of what was durable
    is `Corrupt`, with the offset.
    """

    def __new__(cls, folder: Path, **options: Any) -> Self:
        """Open the log of a folder; the options are those of the compiled half."""
        return super().__new__(cls, text_of(folder), **options)

    def stats(self) -> dict[str, Any]:
        """What the log did since it was opened: records, batches, times of writes and syncs."""
        return json.loads(self._stats())  # type: ignore[no-any-return]


def read_log(folder: Path, start: int = 0) -> LogReader:
    """Read a log without opening it for appending; another process may append meanwhile."""
    return _datapipes.read_log(text_of(folder), start)


def examine_log(folder: Path) -> Report:
    """Read and check a whole log: its first record, the next one, bytes and segments."""
    found = json.loads(_datapipes.examine_log(text_of(folder)))
    text = (
        f"records {found['first']} to {found['next'] - 1}, {found['payload_bytes']} bytes, in "
        f"{found['segments']} segments of {found['segment_bytes']} bytes"
    )
    return Report(f"log {text_of(folder)}", text, found)
