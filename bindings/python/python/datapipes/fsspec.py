"""A file system for fsspec: local files past the page cache. Needs fsspec.

    fsspec.filesystem("datapipes").cat_ranges(paths, starts, ends)
    fsspec.open("datapipes:///data/x").open()
"""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from typing import Any

from fsspec.implementations.local import LocalFileSystem

from ._file import File

__all__ = ["DatapipesFile", "DatapipesFileSystem"]

_BLOCK = 1 << 20
"""Bytes that a reader of a few bytes reads ahead."""


class DatapipesFile(io.RawIOBase):
    """A file that is read by transfers: `readinto` fills the caller's memory."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._file = File(path, "r")
        self._at = 0
        self.path = self.name = path

    @property
    def size(self) -> int:
        """The present length in bytes."""
        return self._file.size()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._file.fileno()

    def tell(self) -> int:
        self._check()
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._check()
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: None}.get(whence, -1)
        if base == -1:
            raise ValueError(f"seek: whence={whence}")
        to = offset + (self.size if base is None else base)
        if to < 0:
            raise ValueError(f"seek: to offset {to}")
        self._at = to
        return to

    def readinto(self, buffer: Any) -> int:
        self._check()
        count = self._file.readinto(buffer, self._at)
        self._at += count
        return count

    def readall(self) -> bytes:
        self._check()
        with memoryview(self._file.read(self._at)) as found:
            self._at += len(found)
            return bytes(found)

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()

    def _check(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file.")


class DatapipesFileSystem(LocalFileSystem):  # type: ignore[misc]
    """Local files. Whole files and ranges of them are read by transfers; all else is as in
    fsspec's own file system for local files."""

    protocol = ("datapipes",)
    root_marker = "/"

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, str):
            path = path.removeprefix("datapipes://").removeprefix("datapipes:")
        return super()._strip_protocol(path)

    def unstrip_protocol(self, name: str) -> str:
        return f"datapipes://{self._strip_protocol(name)}"

    def _open(self, path: str, mode: str = "rb", block_size: int | None = None, **options: Any) -> Any:
        if mode != "rb":
            return super()._open(path, mode=mode, block_size=block_size, **options)
        return io.BufferedReader(DatapipesFile(path), block_size or _BLOCK)

    def open(
        self,
        path: Any,
        mode: str = "rb",
        block_size: int | None = None,
        cache_options: Any = None,
        compression: str | None = None,
        **options: Any,
    ) -> Any:
        if mode != "rb" or compression is not None:
            return super().open(path, mode, block_size, cache_options, compression, **options)
        return self._open(self._strip_protocol(path), mode, block_size)

    def cat_file(self, path: Any, start: int | None = None, end: int | None = None, **options: Any) -> bytes:
        """The bytes of a file from ``start`` to ``end``; negative numbers count from its end."""
        with File(self._strip_protocol(path), "r") as file:
            at, until = _bounds(start, end, file)
            with memoryview(file.read(at, until - at)) as found:
                return bytes(found)

    def cat_ranges(
        self,
        paths: Any,
        starts: Any,
        ends: Any,
        max_gap: int | None = None,
        on_error: str = "return",
        **options: Any,
    ) -> list[Any]:
        """The bytes of many ranges. Those of one file are one transfer, with many requests under
        way."""
        if max_gap is not None:
            raise NotImplementedError("cat_ranges: max_gap")
        if not isinstance(paths, list):
            raise TypeError("cat_ranges: paths is a list")
        starts = starts if isinstance(starts, list) else [starts] * len(paths)
        ends = ends if isinstance(ends, list) else [ends] * len(paths)
        if not len(paths) == len(starts) == len(ends):
            raise ValueError("cat_ranges: the lists have different lengths")
        by_path: dict[str, list[int]] = {}
        for place, path in enumerate(paths):
            by_path.setdefault(self._strip_protocol(path), []).append(place)
        found: list[Any] = [None] * len(paths)
        for path, places in by_path.items():
            try:
                for place, part in zip(places, _ranges(path, places, starts, ends), strict=True):
                    found[place] = part
            except Exception as error:
                if on_error == "raise":
                    raise
                for place in places:
                    found[place] = error
        return found


def _bounds(start: int | None, end: int | None, file: File) -> tuple[int, int]:
    """From where to where a slice of a file goes, as of a list."""
    at, until, _ = slice(start, end).indices(file.size())
    return at, max(at, until)


def _ranges(path: str, places: Sequence[int], starts: Sequence[Any], ends: Sequence[Any]) -> list[bytes]:
    with File(path, "r") as file:
        bounds = [_bounds(starts[place], ends[place], file) for place in places]
        parts = []
        with memoryview(file.read_ranges([(at, until - at) for at, until in bounds])) as found:
            done = 0
            for at, until in bounds:
                parts.append(bytes(found[done : done + until - at]))
                done += until - at
        return parts
