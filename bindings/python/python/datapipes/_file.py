"""Files, with what event loops and reports add to them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from . import _datapipes
from ._aio import notifier_of
from ._paths import Path, text_of
from ._report import Report, moved


class File(_datapipes.File):
    """An open file: blocking reads and writes, futures, and `await`."""

    async def pread_async(self, buffer: Any, offset: int = 0) -> int:
        """Fill ``buffer`` from ``offset`` and return the number of bytes.

        A task that is cancelled no longer waits; the transfer goes on and keeps the buffer until
        it is done. Up to 1 MiB that the page cache has is read at once.
        """
        done = self._at_once(buffer, offset)
        if done is not None:
            return done
        loop = asyncio.get_running_loop()
        notifier = notifier_of(loop)
        return await notifier.wait(loop, self._start(buffer, offset, notifier.notifier))

    def report(self) -> Report:
        """What was moved by blocking calls, by primitive."""
        return moved(f"file {self.path}", json.loads(self._report()))


def open(path: Path, mode: str = "r") -> File:
    """Open a file: "r" to read, "r+" to read and write, "w" to create or empty it, "x" to create it."""
    return File(text_of(path), mode)
