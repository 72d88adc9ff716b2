"""Pipes that are kept for many transfers between the same two places."""

from __future__ import annotations

from . import _datapipes
from ._datapipes import Buffer, Hbm
from ._file import File
from ._report import Report


class Pipe(_datapipes.Pipe):
    """A pipe between two places; made by `connect`. It keeps both of them."""

    def route(self) -> Report:
        """Which primitive was chosen, why, and why not the others."""
        return Report._of("route", self._route())

    def report(self) -> Report:
        """What was moved so far, by primitive."""
        return Report._of("pipe", self._report())


def connect(
    source: File | Buffer | Hbm, target: File | Buffer | Hbm, *, typical_len: int | None = None
) -> Pipe:
    """Connect two places: Files, Buffers and Hbm. The route is chosen here, once for all transfers.

    ``typical_len`` is the length of a typical transfer in bytes, 1 MiB if it is not given.
    """
    return Pipe(source, target, typical_len=typical_len)
