"""Logs: records that survive a crash."""

from __future__ import annotations

import json
from typing import Any

from . import _datapipes
from ._paths import Path, text_of
from ._report import Report


class Log(_datapipes.Log):
    """A log of records in a folder; one writer at a time has it.

    A record that was appended is durable when `append_durable` or `sync` returns. Opening a log
    that a crash left finds its end: what was not durable is cut off, and damage of what was durable
    is `Corrupt`, with the offset.
    """

    def stats(self) -> dict[str, Any]:
        """What the log did since it was opened: records, batches, times of writes and syncs."""
        return json.loads(self._stats())  # type: ignore[no-any-return]


def examine_log(folder: Path) -> Report:
    """Read and check a whole log: its first record, the next one, bytes and segments."""
    found = json.loads(_datapipes.examine_log(folder))
    text = (
        f"records {found['first']} to {found['next'] - 1}, {found['payload_bytes']} bytes, in "
        f"{found['segments']} segments of {found['segment_bytes']} bytes"
    )
    return Report(f"log {text_of(folder)}", text, found)
