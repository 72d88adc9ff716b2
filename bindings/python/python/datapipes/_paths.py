"""Paths of files and folders: text, bytes, or objects that have one of them."""

from __future__ import annotations

import os
from collections.abc import Iterable

from ._errors import InvalidInput

Path = str | bytes | os.PathLike[str] | os.PathLike[bytes]


def text_of(path: Path) -> str:
    """The path as a text, from which the same bytes can be made again."""
    text = os.fsdecode(path)
    try:
        os.fsencode(text)
    except UnicodeEncodeError as why:
        raise InvalidInput(f"the path {text[:200]!r} cannot be encoded: {why.reason}") from None
    return text


def texts_of(paths: Iterable[Path], operation: str) -> list[str]:
    """Several paths as texts. One path is refused: its letters would be taken for paths."""
    if isinstance(paths, (str, bytes, os.PathLike)):
        raise InvalidInput(f"{operation}: {paths!r} is one path, not a list of paths", operation=operation)
    return [text_of(path) for path in paths]
