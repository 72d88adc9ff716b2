"""Rows of a table in a file, by their numbers."""

from __future__ import annotations

import json
import operator
import os
from types import TracebackType
from typing import Any, TypeVar, overload

import numpy as np
import numpy.typing as npt

from ._datapipes import RowReader, parse_size
from ._device_rows import Upload, is_on_device
from ._errors import InvalidInput, OutOfRange
from ._paths import Path, text_of


Out = TypeVar("Out")
"""An array of NumPy, or a tensor on a GPU."""


def _whole(width: object) -> int:
    try:
        if isinstance(width, (bool, np.bool_)):
            raise TypeError
        return operator.index(width)  # type: ignore[arg-type]
    except TypeError:
        raise InvalidInput(f"open: rows of {width!r} numbers", operation="open") from None


class Rows:
    """A table of rows of one length; made by `rows`."""

    def __init__(
        self,
        path: Path,
        dtype: npt.DTypeLike,
        width: int,
        cache: int | str,
        offset: int,
        device: object = None,
    ) -> None:
        if dtype is None:  # NumPy would take it for float64.
            raise InvalidInput("open: rows of no dtype: name the type of the numbers", operation="open")
        self._dtype = np.dtype(dtype)
        if self._dtype.hasobject or self._dtype.itemsize == 0:
            raise InvalidInput(f"open: rows of {self._dtype}", operation="open")
        width = _whole(width)
        if width < 1 or width * self._dtype.itemsize > 1 << 30:
            raise InvalidInput(f"open: rows of {width!r} numbers", operation="open")
        budget = parse_size(cache) if isinstance(cache, str) else cache
        self._made: tuple[str, int, int, int] = (text_of(path), width * self._dtype.itemsize, offset, budget)
        self._width = width
        self._upload = Upload(self._dtype, device)
        self._open()

    def __repr__(self) -> str:
        rows = "closed" if self.closed else f"{len(self)} of them"
        return f"<datapipes.Rows of {self._width} {self._dtype}, {rows}, in {self._made[0]}>"

    def _open(self) -> None:
        self._reader: RowReader | None = RowReader(*self._made)
        self._process = os.getpid()

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._reader is None

    def close(self) -> None:
        """Give the cache's memory and the file back. A closed table has no rows to give."""
        self._reader = None

    def __enter__(self) -> Rows:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _here(self) -> RowReader:
        # A child of fork (a worker of a DataLoader) opens the file for itself: the parent's cache
        # has threads and rings that no child has.
        if self._reader is not None and self._process != os.getpid():
            self._open()
        if self._reader is None:
            raise InvalidInput("gather: the table is closed", operation="gather", filename=self._made[0])
        return self._reader

    def __len__(self) -> int:
        return self._here().rows

    @property
    def shape(self) -> tuple[int, int]:
        """The number of rows and their width."""
        return len(self), self._width

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the numbers."""
        return self._dtype

    @overload
    def gather(self, ids: npt.ArrayLike, out: None = None) -> npt.NDArray[Any]: ...
    @overload
    def gather(self, ids: npt.ArrayLike, out: Out) -> Out: ...
    def gather(self, ids: npt.ArrayLike, out: Any = None) -> Any:
        """The rows of these numbers, in this order, into ``out`` or a new array.

        ``out`` may be a tensor on a GPU. Negative numbers and those beyond the table are `OutOfRange`.
        """
        asked = np.asarray(ids)
        if asked.size == 0 and asked.dtype.kind == "f":
            asked = asked.astype(np.int64)  # What an empty list becomes.
        if asked.dtype.kind == "O" and asked.size and all(type(row) is int for row in asked.flat):
            # Numbers of more than 64 bits.
            raise OutOfRange(f"gather: rows {min(asked.flat)} to {max(asked.flat)}", operation="gather")
        if asked.dtype.kind not in "iu":
            raise InvalidInput(f"gather: numbers of rows of {asked.dtype}", operation="gather")
        if asked.dtype == np.uint64 and asked.size and int(asked.max()) >= 1 << 63:
            raise OutOfRange(f"gather: row {int(asked.max())}", operation="gather")
        numbers = np.ascontiguousarray(asked, np.int64)
        shape = (*asked.shape, self._width)
        if out is None and self._upload.device is not None:
            out = self._upload.empty(shape)
        if is_on_device(out):
            reader = self._here()
            return self._upload.fill(out, shape, lambda plain: reader.gather(numbers.reshape(-1), plain))
        if out is None:
            out = np.empty(shape, self._dtype)
        elif not isinstance(out, np.ndarray) or out.dtype != self._dtype or out.shape != shape:
            found = f"{out.dtype} {out.shape}" if isinstance(out, np.ndarray) else type(out).__name__
            raise InvalidInput(f"gather: out is {found}, not {self._dtype} {shape}", operation="gather")
        if numbers.size:
            # As plain bytes: dates and bfloat16 have no format of buffers.
            plain = out.view(np.uint8) if out.flags.c_contiguous else out
            self._here().gather(numbers.reshape(-1), plain)
        return out

    def __getitem__(self, ids: npt.ArrayLike) -> npt.NDArray[Any]:
        """As `gather`: a number gives one row, several give an array of rows (of a table with a
        device, a tensor, which type checkers take for an array).

        ``table[0, 3]`` are the rows 0 and 3. Slices and masks are refused: give their numbers, as by
        ``np.arange`` and ``np.flatnonzero``.
        """
        return self.gather(ids)

    def __getitems__(self, ids: npt.ArrayLike) -> npt.NDArray[Any]:
        """What batched samplers of a torch DataLoader call."""
        return self.gather(ids)

    def __array__(
        self, dtype: npt.DTypeLike | None = None, *, copy: bool | None = None
    ) -> npt.NDArray[Any]:
        """All rows, read at once. Without it, NumPy would ask for one row after the other."""
        if copy is False:
            raise ValueError("an array of all rows is a copy")
        rows = np.arange(len(self))
        whole: npt.NDArray[Any] = self.gather(rows, np.empty((len(rows), self._width), self._dtype))
        return whole if dtype is None else whole.astype(dtype, copy=False)

    def metrics(self) -> dict[str, Any]:
        """The counters of the cache: hits, misses, bytes asked for and read."""
        return json.loads(self._here().metrics())  # type: ignore[no-any-return]

    def __getstate__(self) -> dict[str, Any]:
        made = {"made": self._made, "dtype": self._dtype, "width": self._width, "closed": self.closed}
        return {**made, "device": self._upload.device}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._made, self._dtype, self._width = state["made"], state["dtype"], state["width"]
        self._upload = Upload(self._dtype, state.get("device"))
        if state["closed"]:
            self._reader, self._process = None, os.getpid()
        else:
            self._open()


def rows(
    path: Path,
    dtype: npt.DTypeLike,
    width: int,
    *,
    cache: int | str = "64M",
    offset: int = 0,
    device: object = None,
) -> Rows:
    """Open a table of rows of ``width`` numbers that begins at ``offset`` of a file.

    A table is closed by ``close``, by ``with``, or when nobody refers to it.

    ``cache`` is the memory for cached rows and all that serves them: bytes, or "256M". With
    ``device="cuda:0"``, gathered rows are tensors of torch on that GPU; the cache is in the
    processor's memory.
    """
    return Rows(path, dtype, width, cache, offset, device)
