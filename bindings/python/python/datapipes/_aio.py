"""Completions in asyncio: by a descriptor that the loop watches; no thread polls."""

from __future__ import annotations

import asyncio
from weakref import WeakKeyDictionary, ref

from ._datapipes import Notifier, Pending


class _LoopNotifier:
    """The transfers of one event loop that are under way.

    Only the loop refers to it, as to the reader of a descriptor. So a loop that is closed, also in
    the middle of a transfer, takes it along.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.notifier = Notifier()
        self._waiting: dict[int, tuple[asyncio.Future[int], Pending]] = {}
        loop.add_reader(self.notifier.fileno(), self._ready)

    def wait(self, loop: asyncio.AbstractEventLoop, pending: Pending) -> asyncio.Future[int]:
        future: asyncio.Future[int] = loop.create_future()
        self._waiting[pending._number] = (future, pending)
        return future

    def _ready(self) -> None:
        for number in self.notifier.take():
            waiting = self._waiting.pop(number, None)
            if waiting is None:
                continue  # Nobody waits for it: an error came between its start and its future.
            future, pending = waiting
            try:
                result = pending.result(0)
            except Exception as error:
                if not future.cancelled():
                    future.set_exception(error)
            else:
                if not future.cancelled():
                    future.set_result(result)


_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, ref[_LoopNotifier]] = WeakKeyDictionary()


def notifier_of(loop: asyncio.AbstractEventLoop) -> _LoopNotifier:
    known = _loops.get(loop)
    found = known() if known is not None else None
    if found is None:
        found = _LoopNotifier(loop)
        _loops[loop] = ref(found)
    return found
