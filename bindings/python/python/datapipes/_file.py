"""Files, with what event loops and reports add to them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from . import _datapipes
from ._aio import notifier_of
from ._datapipes import NewObject, Object
from ._errors import Unsupported
from ._paths import Path, text_of
from ._report import Report, moved


class File(_datapipes.File):
    """An open file: blocking reads and writes, futures, and `await`."""

    async def pread_async(self, buffer: Any, offset: int = 0) -> int:
        """Fill ``buffer`` from ``offset`` and return the number of bytes.

        A task that is cancelled no longer waits; the transfer goes on and keeps the buffer until
        it is done. Up to 1 MiB that the page cache has is read at once, and what a quick disk has
        within 100 us is waited for without a turn of the loop. After about a millisecond of such reads
        it has one.
        """
        done = self._at_once(buffer, offset)
        if done is not None:
            if done < 0:
                await asyncio.sleep(0)  # So that other tasks go on.
                done = -1 - done
            return done
        loop = asyncio.get_running_loop()
        notifier = notifier_of(loop)
        pending = self._start(buffer, offset, notifier.notifier)
        if pending.done():
            done = pending.result(0)
            if _datapipes._turn_is_due():
                await asyncio.sleep(0)
            return done
        return await notifier.wait(loop, pending)

    def report(self) -> Report:
        """What was moved by blocking calls, by primitive."""
        return moved(f"file {self.path}", json.loads(self._report()))


_SCHEMES = ("s3://", "gs://", "az://", "http://", "https://")


def is_address(name: str) -> bool:
    """Whether a name is the address of an object."""
    return name.startswith(_SCHEMES)


def open(path: Path, mode: str = "r") -> File:
    """Open a file: "r" to read, "r+" to read and write, "w" to create or empty it, "x" to create it.

    The address of an object, such as "s3://bucket/key", gives what `open_object` ("r") or
    `create_object` ("w", "x") give.
    """
    name = text_of(path)
    if not is_address(name):
        return File(name, mode)
    if mode == "r":
        found: Any = open_object(name)
    elif mode in ("w", "x"):
        found = create_object(name, only_new=mode == "x")
    else:
        raise Unsupported(f"open: {name}: an object is read, or written as a whole: not {mode!r}", operation="open")
    # Types of Python cannot tell addresses from paths.
    return found  # type: ignore[no-any-return]


def open_file(name: str, operation: str) -> File:
    """Open a file to read, for what objects cannot do yet."""
    if is_address(name):
        raise Unsupported(
            f"{operation}: {name}: it is an object, and this takes files",
            operation=operation,
            advice="copy it to a file first (`dpipe copy`), or read its bytes with open_object",
        )
    return File(name, "r")


def open_object(address: str) -> Object:
    """Open an object in a bucket for reading, at the version that it has now. Needs a build with objects."""
    return Object(address)


def create_object(address: str, *, expected_len: int | None = None, only_new: bool = False) -> NewObject:
    """Begin an object in a bucket, which appears as a whole when it is published.

    A `with` block publishes it at its end, and gives it up after an exception. ``expected_len`` helps
    to choose parts, ``only_new`` refuses to replace an object.
    """
    return NewObject(address, expected_len=expected_len, only_new=only_new)
