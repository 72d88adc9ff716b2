"""What the records are and how they are ordered, as tasks on other machines are told."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from .._errors import InvalidInput

_WIDTHS = {"u32": 4, "u64": 8, "i64": 8, "f64": 8}
_LETTERS = "bdfghiMnV"


def refused(why: str) -> InvalidInput:
    return InvalidInput(f"sort: {why}", operation="sort")


@dataclass(frozen=True)
class Order:
    """The compiled half of the package reads these attributes."""

    format: str
    record: tuple[int, int, int] | None
    reverse: bool
    unique: bool
    stable: bool
    keys: list[str]
    letters: str
    separator: int | None
    zero_terminated: bool

    @property
    def fixed_len(self) -> int | None:
        """The length of every record; None for lines."""
        return self.record[0] if self.record is not None else _WIDTHS.get(self.format)

    @property
    def numbers(self) -> bool:
        return self.format in _WIDTHS


def _is_length(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and 0 <= number < 1 << 31


def order_of(
    format: str,
    records: tuple[int, int, int] | None,
    keys: Sequence[str],
    separator: str | bytes | None,
    letters: str,
    *,
    reverse: bool,
    unique: bool,
    stable: bool,
    zero_terminated: bool,
) -> Order:
    """Check the arguments of a sort, and take them together."""
    if isinstance(keys, str) or not all(isinstance(key, str) for key in keys):
        raise refused("keys is a list of strings")
    if isinstance(separator, str):
        separator = os.fsencode(separator)
    if separator is not None and (not isinstance(separator, bytes) or len(separator) != 1):
        raise refused(f"a separator is one byte, not {separator!r}")
    if records is not None:
        if format not in ("lines", "records"):
            raise refused(f"records= is for binary records, not {format!r}")
        format = "records"
        if len(records) != 3 or not all(_is_length(n) for n in records):
            raise refused("records=(length, key offset, key length)")
    if format != "lines" and (keys or letters or separator is not None or zero_terminated):
        raise refused(f"keys, letters and separators are for lines, not {format!r}")
    if format not in ("lines", "records", *_WIDTHS):
        raise refused(f'format {format!r}: give "lines", "records", "u32", "u64", "i64" or "f64"')
    if "R" in letters or any("R" in key for key in keys):
        raise refused("a random order (R) is not sorted on a cluster: its salt would differ by task")
    if unknown := set(letters) - set(_LETTERS):
        raise refused(f"no order has the letters {''.join(sorted(unknown))!r}")
    return Order(
        format=format,
        record=None if records is None else (records[0], records[1], records[2]),
        reverse=reverse,
        unique=unique,
        stable=stable,
        keys=list(keys),
        letters=letters,
        separator=separator[0] if separator is not None else None,
        zero_terminated=zero_terminated,
    )
