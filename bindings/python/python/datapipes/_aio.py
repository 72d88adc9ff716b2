"""Completions in asyncio: by a descriptor that the loop watches; no thread polls."""

from __future__ import annotations

import asyncio
import os
import threading
from weakref import WeakKeyDictionary, ref

from ._datapipes import Notifier, Pending, _turn_is_due
from ._errors import Forked


class _LoopNotifier:
    """The transfers of one event loop that are under way.

    Only the loop refers to it, as to the reader of a descriptor. So a loop that is closed, also in
    the middle of a transfer, takes it along.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.notifier = Notifier()
        self._process = os.getpid()
        self._waiting: dict[int, tuple[asyncio.Future[int], Pending]] = {}
        loop.add_reader(self.notifier.fileno(), self._ready)

    def wait(self, loop: asyncio.AbstractEventLoop, pending: Pending) -> asyncio.Future[int]:
        future: asyncio.Future[int] = loop.create_future()
        self._waiting[pending._number] = (future, pending)
        return future

    def also(self, loop: asyncio.AbstractEventLoop, pending: Pending) -> asyncio.Future[int]:
        """The future of a transfer that was started without a loop; all who await it share it."""
        known = self._waiting.get(pending._number)
        if known is not None:
            return known[0]
        future = self.wait(loop, pending)
        try:
            pending._tell(self.notifier)
        except BaseException:
            self._waiting.pop(pending._number, None)
            raise
        return future

    def forsake(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for future, _ in waiting.values():
            if not future.done():
                future.set_exception(Forked("read: the transfer is the parent's", operation="read"))

    def _ready(self) -> None:
        if self._process != os.getpid():
            return  # What is to be read there is the parent's.
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


class _Last(threading.local):
    """The loop of a thread that asked last, which nearly always asks again."""

    found: tuple[ref[asyncio.AbstractEventLoop], ref[_LoopNotifier]] | None = None


_last = _Last()


def notifier_of(loop: asyncio.AbstractEventLoop) -> _LoopNotifier:
    last = _last.found
    if last is not None and last[0]() is loop:
        notifier = last[1]()
        if notifier is not None:
            return notifier
    known = _loops.get(loop)
    found = known() if known is not None else None
    if found is None:
        found = _LoopNotifier(loop)
        _loops[loop] = ref(found)
    _last.found = (ref(loop), ref(found))
    return found


def _in_child() -> None:
    """In a child of fork: who awaits a transfer of the parent is told so.

    The loop's descriptors are shared with the parent, so none of them is touched.
    """
    for known in list(_loops.values()):
        found = known()
        if found is not None:
            found.forsake()


async def awaited(pending: Pending) -> int:
    """What `await pending` does."""
    if pending.done():
        done = pending.result(0)
        if _turn_is_due():
            await asyncio.sleep(0)  # So that other tasks go on.
        return done
    loop = asyncio.get_running_loop()
    # A task that is cancelled must not take the future from others.
    return await asyncio.shield(notifier_of(loop).also(loop, pending))


os.register_at_fork(after_in_child=_in_child)
