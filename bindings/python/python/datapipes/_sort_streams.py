"""Sorts of what the program gives, into what it takes.

    caller's thread: read --> socket --> sort, in a thread of its own --> socket --> write: caller's thread

A sort writes nothing before it has read all. So one thread of the program can first give and then take,
and all of its code runs in the thread that called `sort`.
"""

from __future__ import annotations

import contextlib
import io
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeGuard

from ._datapipes import StreamEnd, sort_stream
from ._errors import Forked, InvalidInput, System
from ._file import File
from ._paths import Path

Source = Any
"""A binary file, an object with `readinto` or `read`, one with the buffer protocol, or pieces of bytes."""
Sink = Any
"""An object with `write`, or a function that gets bytes."""
Progress = Callable[[int, int, int], object]
Sort = Callable[[str | StreamEnd, str | StreamEnd, Progress | None], tuple[str, str]]
"""What sorts between two paths or streams, and returns its report."""

_PIECE = 256 << 10
"""Bytes that are given or taken at a time, at most."""
_TURN = 0.05
"""How often progress is told, in seconds."""


def _refused(why: str) -> InvalidInput:
    return InvalidInput(f"sort: {why}", operation="sort")


def is_path(place: object) -> TypeGuard[Path]:
    """Whether it names a file."""
    return isinstance(place, (str, bytes, os.PathLike))


def _bytes_of(piece: object) -> memoryview:
    """The bytes of a piece."""
    try:
        view = memoryview(piece)  # type: ignore[arg-type]
        return memoryview(b"") if view.nbytes == 0 else view.cast("B")
    except (TypeError, ValueError, NotImplementedError) as why:
        raise _refused(f"the input gave {type(piece).__name__}, not bytes: {why}") from None


def reader_of(source: Source) -> Callable[[], memoryview | None]:
    """What gives the next bytes at each call, and None at the end."""
    if isinstance(source, (File, io.TextIOBase)):
        how = "pass its path" if isinstance(source, File) else "open it in a binary mode"
        raise _refused(f"the input is {source!r}: {how}")
    if callable(getattr(source, "readinto", None)):
        return _by_readinto(source)
    if callable(getattr(source, "read", None)):

        def read() -> memoryview | None:
            piece = source.read(_PIECE)
            if piece is None:
                raise _refused(f"{source!r} has no bytes now: a file that does not block cannot be sorted")
            return _bytes_of(piece) if len(piece) else None

        return read
    try:
        pieces = iter((memoryview(source),))
    except TypeError:
        if not isinstance(source, Iterable):
            why = "a path, a binary file, or what gives pieces of bytes"
            raise _refused(f"the input is {type(source).__name__}: give {why}") from None
        pieces = iter(source)

    def following() -> memoryview | None:
        for piece in pieces:
            return _bytes_of(piece)
        return None

    return following


def _by_readinto(source: Source) -> Callable[[], memoryview | None]:
    room = memoryview(bytearray(_PIECE))

    def read() -> memoryview | None:
        count = source.readinto(room)
        if count is None:
            raise _refused(f"{source!r} has no bytes now: a file that does not block cannot be sorted")
        if not 0 <= count <= _PIECE:
            raise _refused(f"{source!r} says that it filled {count} bytes of {_PIECE}")
        return room[:count] if count else None

    return read


def writer_of(sink: Sink) -> Callable[[bytes], None]:
    """What takes bytes, all of them."""
    if isinstance(sink, (File, io.TextIOBase)):
        how = "pass its path" if isinstance(sink, File) else "open it in a binary mode"
        raise _refused(f"the output is {sink!r}: {how}")
    write = getattr(sink, "write", None)
    if write is None and callable(sink):

        def call(piece: bytes) -> None:
            sink(piece)

        return call
    if not callable(write):
        why = "a path, a binary file, or a function"
        raise _refused(f"the output is {type(sink).__name__}: give {why}")
    is_raw = isinstance(sink, io.RawIOBase)

    def take(piece: bytes) -> None:
        rest: bytes | memoryview = piece
        while rest:
            count = write(rest)
            if count is None and not is_raw:
                return  # Objects that are no files of Python say nothing, and take all.
            if not isinstance(count, int) or not 0 < count <= len(rest):
                raise System(f"sort: {sink!r} took {count} of {len(rest)} bytes", operation="sort")
            rest = memoryview(rest)[count:]

    return take


class _Stopped(Exception):
    """Ends the sort whose caller has failed. Nobody sees it."""


class StreamSort:
    """One sort of which the program gives the input, takes the output, or both."""

    def __init__(
        self,
        source: str | Callable[[], memoryview | None],
        target: str | Callable[[bytes], None],
        progress: Progress | None,
    ) -> None:
        self._source, self._target, self._progress = source, target, progress
        self._given: socket.socket | None = None
        self._taken: socket.socket | None = None
        self._process = os.getpid()
        self._counts: tuple[int, int, int] | None = None
        self._told = time.monotonic()
        self._is_stopped = False
        self._failed: BaseException | None = None
        self._report = ("", "")

    def run(self, sort: Sort) -> tuple[str, str]:
        """Sorts; what the program or the sort raises is raised here."""
        thread: threading.Thread | None = None
        try:
            source, self._given = _connected(self._source)
            target, self._taken = _connected(self._target)
            made = threading.Thread(target=self._work, args=(sort, source, target), name="dp-sort-streams")
            try:
                made.start()
            except RuntimeError as why:
                raise System(f"sort: {why}", operation="sort") from None
            thread = made
            if self._given is not None:
                self._give(self._given)
            if self._taken is not None:
                self._take(self._taken)
            while thread.is_alive():
                thread.join(_TURN)
                self._tell()
        except BaseException:
            self._is_stopped = True
            if thread is not None and os.getpid() == self._process:
                _end(thread, self._taken)
            raise
        finally:
            for stream in (self._given, self._taken):
                if stream is not None:
                    with contextlib.suppress(OSError):  # The program may have closed it.
                        stream.close()
        if self._failed is not None:
            raise self._failed
        self._tell(always=True)
        return self._report

    def _work(self, sort: Sort, source: str | StreamEnd, target: str | StreamEnd) -> None:
        """What the thread of the sort does."""
        try:
            self._report = sort(source, target, self._seen)
        except BaseException as error:
            self._failed = error
        finally:
            for end in (source, target):
                if isinstance(end, StreamEnd):
                    end.close()
            # A child of fork may have a copy of the sort's end: this ends the stream all the same.
            _shut(self._given, socket.SHUT_RDWR)
            _shut(self._taken, socket.SHUT_RD)

    def _seen(self, total: int, read: int, written: int) -> None:
        """Called by the thread of the sort."""
        self._counts = (total, read, written)
        if self._is_stopped:
            raise _Stopped

    def _tell(self, always: bool = False) -> None:
        if self._progress is None or self._counts is None:
            return
        now = time.monotonic()
        if always or now - self._told >= _TURN:
            self._told = now
            self._progress(*self._counts)
            self._check_process()

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise Forked("sort: the sort is the parent's", operation="sort")

    def _give(self, to: socket.socket) -> None:
        assert callable(self._source)
        while (piece := self._source()) is not None:
            self._check_process()
            while piece:
                self._tell()
                try:
                    piece = piece[to.send(piece, socket.MSG_NOSIGNAL) :]
                except TimeoutError:
                    continue
                except OSError:
                    return  # The sort has ended, and says why.
        self._check_process()
        _shut(to, socket.SHUT_WR)

    def _take(self, stream: socket.socket) -> None:
        assert callable(self._target)
        while True:
            self._tell()
            try:
                piece = stream.recv(_PIECE)
            except TimeoutError:
                continue
            except OSError as why:  # The program has closed it.
                raise System(f"sort: the stream of the output: {why}", errno=why.errno, operation="sort") from None
            if not piece:
                return
            # After a failure the output is no whole one, whatever more is taken.
            self._target(piece)
            self._check_process()


def _connected(place: object) -> tuple[Any, socket.socket | None]:
    """What the sort gets for a place: its path, or the end of a stream, whose other end is returned, too."""
    if isinstance(place, str):
        return place, None
    end, descriptor = sort_stream()
    own = socket.socket(fileno=descriptor)
    own.settimeout(_TURN)
    return end, own


def _shut(stream: socket.socket | None, how: int) -> None:
    if stream is not None:
        with contextlib.suppress(OSError):  # The other end may be closed.
            stream.shutdown(how)


def _end(thread: threading.Thread, taken: socket.socket | None) -> None:
    """Waits for a sort that is stopped; it may still write."""
    while thread.is_alive():
        if taken is None:
            thread.join(_TURN)
            continue
        try:
            is_over = not taken.recv(_PIECE)
        except TimeoutError:
            continue
        except OSError:  # The program has closed it.
            is_over = True
        if is_over:
            thread.join(_TURN)
