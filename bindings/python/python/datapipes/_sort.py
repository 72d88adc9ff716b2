"""The external sort, as Python calls it."""

from __future__ import annotations

import os
from collections.abc import Sequence

from . import _datapipes
from ._datapipes import StreamEnd, parse_size
from ._errors import InvalidInput
from ._paths import Path, text_of, texts_of
from ._report import Report
from ._sort_streams import Progress, Sink, Source, StreamSort, is_path, reader_of, writer_of

_LEAST_MEMORY = 16 << 20


def sort(
    input: Path | Source,
    output: Path | Sink,
    *,
    format: str = "lines",
    record: tuple[int, int, int] | None = None,
    reverse: bool = False,
    unique: bool = False,
    keys: Sequence[str] = (),
    separator: str | bytes | None = None,
    memory: int | str | None = None,
    spill: Sequence[Path] | str = (),
    threads: int | None = None,
    compression: bool | None = None,
    sync: bool = True,
    progress: Progress | None = None,
) -> Report:
    """Sort a file, of any size, into another; or what the program gives, into what it takes.

    ``input`` is a path; or a binary file or anything else with ``readinto`` or ``read``; or something that
    gives pieces of bytes, such as a generator. A piece may end anywhere. ``output`` is a path; or something
    with ``write``, or a function, either of which gets bytes. They are called by the calling thread, first
    those of the input until its end. An exception of theirs stops the sort.

    ``format``: "lines" (in byte order, or by ``keys`` such as "2,2n" as of sort -k), "u32", "u64",
    "i64", "f64" (little-endian numbers), or "records" with ``record=(length, key offset, key
    length)``. ``memory`` is all that may be used: bytes, or "2G"; the least is 16 MiB.

    What does not fit the memory is written to the folders of ``spill`` (a list, or places as of
    ``dpipe sort -T``: "/fast:20G,/large"), else beside the output, or to the folder for temporary files
    where the program takes it. It is compressed if that is faster, or always or never with
    ``compression``. ``threads`` are one a core.

    An output file is durable when this returns. With ``sync=False`` it still appears as a whole, but a power
    failure soon afterwards may take bytes of it.

    ``progress`` is called some times a second with (bytes of the input, read, written); an exception
    of it, or Ctrl-C, stops the sort, which then leaves no files behind.
    """
    if isinstance(keys, str):
        raise InvalidInput("sort: keys is a list of strings", operation="sort")
    if isinstance(separator, str):
        separator = os.fsencode(separator)
    if separator is not None and (not isinstance(separator, bytes) or len(separator) != 1):
        raise InvalidInput(f"sort: a separator is one byte, not {separator!r}", operation="sort")
    if format != "lines" and (keys or separator is not None):
        why = f'keys= and separator= are for format "lines", not {format!r}'
        raise InvalidInput(f"sort: {why}", operation="sort")
    if progress is not None and not callable(progress):
        raise InvalidInput("sort: progress is not callable", operation="sort")
    byte = separator[0] if separator is not None else None
    budget = parse_size(memory) if isinstance(memory, str) else memory
    if budget is not None and budget < _LEAST_MEMORY:
        raise InvalidInput(f"sort: memory={memory!r}: the least is 16 MiB", operation="sort")
    if threads is not None and threads < 1:
        raise InvalidInput(f"sort: threads={threads!r}: at least 1", operation="sort")
    places = spill if isinstance(spill, str) else texts_of(spill, "sort")
    how = (budget, places, threads, compression, sync)
    order = (format, record, reverse, unique, list(keys), byte)

    def run(source: str | StreamEnd, target: str | StreamEnd, tell: Progress | None) -> tuple[str, str]:
        return _datapipes.sort(source, target, *order, how, tell)

    if is_path(input) and is_path(output):
        return Report._of("sort", run(text_of(input), text_of(output), progress))
    source = text_of(input) if is_path(input) else reader_of(input)
    target = text_of(output) if is_path(output) else writer_of(output)
    return Report._of("sort", StreamSort(source, target, progress).run(run))
