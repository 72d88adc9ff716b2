"""Completions in asyncio: by a descriptor that the loop watches; no thread polls."""

from __future__ import annotations

import asyncio
from weakref import WeakKeyDictionary

from ._datapipes import Notifier, Pending


class _LoopNotifier:
    """The transfers of one event loop that are under way."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.notifier = Notifier()
        self._waiting: dict[int, tuple[asyncio.Future[int], Pending]] = {}
        self._watched = False

    def wait(self, loop: asyncio.AbstractEventLoop, pending: Pending) -> asyncio.Future[int]:
        future: asyncio.Future[int] = loop.create_future()
        self._waiting[pending._number] = (future, pending)
        if not self._watched:
            # Only while transfers are under way, so that a loop that ends holds nothing of ours.
            loop.add_reader(self.notifier.fileno(), self._ready, loop)
            self._watched = True
        return future

    def _ready(self, loop: asyncio.AbstractEventLoop) -> None:
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
        if not self._waiting and self._watched:
            loop.remove_reader(self.notifier.fileno())
            self._watched = False


_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopNotifier] = WeakKeyDictionary()


def notifier_of(loop: asyncio.AbstractEventLoop) -> _LoopNotifier:
    found = _loops.get(loop)
    if found is None:
        found = _loops[loop] = _LoopNotifier(loop)
    return found
