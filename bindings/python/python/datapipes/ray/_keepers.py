"""A process on each node that keeps what the node's tasks have sorted, and sends it to others.

It takes longer to start one than to sort many an input. So the keepers of a session with Ray serve all
sorts of this process, each of which has its own ticket, and end when none has needed them for a while.
"""

from __future__ import annotations

import contextlib
import resource
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from .._datapipes import Keeper
from .._errors import Unavailable
from ._turns import ray

_STARTING = 600.0
"""Seconds that Ray may take to start a keeper, where its node lives: 82 were seen on a busy machine."""

_ANSWERING = 60.0
"""Seconds that one may take to answer which runs."""

_LOOK = 1.0
"""Seconds after which it is looked whether the node still lives."""

_STARTS = 10
"""How often a keeper is started, if it fails each time."""

_IDLE = 60.0
"""Seconds after the last sort when keepers are ended."""


@dataclass(frozen=True)
class Kept:
    """Where a node's parts are kept: the socket for its own tasks, and the address for others'."""

    name: str
    address: str


class _NodeKeeper:
    """The actor. It ends with the driver, and what it keeps is then gone."""

    def __init__(self) -> None:
        # Each part is an open file, and each block that is sent has a connection.
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        self._keeper = Keeper(ray.util.get_node_ip_address())

    def begin(self, ticket: bytes) -> Kept:
        self._keeper.admit(ticket)
        return Kept(self._keeper.name, self._keeper.address)

    def end(self, ticket: bytes) -> None:
        self._keeper.dismiss(ticket)


@dataclass
class _Session:
    """The keepers of a session with Ray, by the numbers of their nodes."""

    actors: dict[str, Any] = field(default_factory=dict)
    running: set[str] = field(default_factory=set)
    """The nodes whose keepers have answered."""
    sorts: int = 0
    idle: threading.Timer | None = None
    lock: threading.RLock = field(default_factory=threading.RLock)

    def enter(self) -> None:
        with self.lock:
            self.sorts += 1
            if self.idle is not None:
                self.idle.cancel()
                self.idle = None

    def leave(self) -> None:
        with self.lock:
            self.sorts -= 1
            if self.sorts == 0:
                self.idle = threading.Timer(_IDLE, self._end_idle)
                self.idle.daemon = True
                self.idle.start()

    def _end_idle(self) -> None:
        # Ray has ended the keepers of a session that is over.
        if not ray.is_initialized() or _session() is not self:
            return
        with self.lock:
            if self.sorts == 0:
                for node in list(self.actors):
                    self.end(node)

    def actor(self, node: str) -> tuple[Any, bool]:
        """The keeper of a node, which is started if there is none, and whether it has answered before."""
        with self.lock:
            if node not in self.actors:
                strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)
                actor = ray.remote(_NodeKeeper).options(
                    name=None, num_cpus=0, max_restarts=0, scheduling_strategy=strategy
                )
                self.actors[node] = actor.remote()
            return self.actors[node], node in self.running

    def has_answered(self, node: str, actor: Any) -> None:
        with self.lock:
            if self.actors.get(node) is actor:
                self.running.add(node)

    def end(self, node: str, which: Any = None) -> None:
        """End the keeper of a node, unless another one is in its place."""
        with self.lock:
            if which is None or self.actors.get(node) is which:
                actor = self.actors.pop(node, None)
                self.running.discard(node)
                if actor is not None:
                    with contextlib.suppress(ray.exceptions.RayError, RuntimeError):
                        ray.kill(actor)


_sessions: dict[tuple[str, str], _Session] = {}
"""That of this process, which may have left another one before."""

_sessions_lock = threading.Lock()


def _session() -> _Session:
    context = ray.get_runtime_context()
    key = (str(context.get_job_id()), str(context.get_node_id()))
    with _sessions_lock:
        if key not in _sessions:
            # Ray has ended what belonged to another.
            _sessions.clear()
            _sessions[key] = _Session()
        return _sessions[key]


class Keepers:
    """The keepers as one sort uses them."""

    def __init__(self, ticket: bytes) -> None:
        self._ticket = ticket
        self._session = _session()
        self._session.enter()
        self._begun: list[Any] = []
        self._starting: dict[str, tuple[Any, Any, bool]] = {}
        self._kept: dict[str, Kept] = {}
        for node in ray.nodes():
            if node["Alive"] and node["Resources"].get("CPU", 0) >= 1:
                self._start(node["NodeID"])

    def _start(self, node: str) -> None:
        actor, runs = self._session.actor(node)
        self._begun.append(actor)
        self._starting[node] = (actor, actor.begin.remote(self._ticket), runs)

    def all(self) -> dict[str, Kept]:
        """Those that could be started; a node may have been lost meanwhile."""
        until = time.monotonic() + _STARTING
        for node in list(self._starting):
            kept = self._wait(node, until)
            if kept is not None:
                self._kept[node] = kept
        return dict(self._kept)

    def _wait(self, node: str, until: float) -> Kept | None:
        """Wait until the keeper of a node answers, the node is lost, or the time is over."""
        for failures in range(_STARTS):
            actor, reference, runs = self._starting[node]
            kept = _answer(reference, node, min(until, time.monotonic() + _ANSWERING) if runs else until)
            if kept is not None:
                del self._starting[node]
                self._session.has_answered(node, actor)
                return kept
            # One that served another sort may be gone since then, or stand still.
            self._session.end(node, actor)
            # A node that was lost may pass for a living one for a while (15 s were seen), in which starts fail at once.
            time.sleep(failures * _LOOK)
            if time.monotonic() >= until or not _is_alive(node):
                break
            self._start(node)
        actor, _, _ = self._starting.pop(node)
        self._session.end(node, actor)
        return None

    def renew(self, node: str, used: Kept | None) -> None:
        """Start the keeper of a node that has none, or whose keeper is gone."""
        if self._kept.get(node) != used:
            # Another task has found that out before.
            return
        self._kept.pop(node, None)
        self._session.end(node)
        self._start(node)
        if node not in self.all() and _is_alive(node):
            raise Unavailable(
                f"sort: no process can be started on node {node} that keeps what its tasks sort",
                operation="sort",
                advice='look at the node, or give shuffle="store"',
            )

    def close(self) -> None:
        """Have them let go of what they keep for this sort."""
        for actor in self._begun:
            with contextlib.suppress(ray.exceptions.RayError):
                actor.end.remote(self._ticket)
        self._session.leave()


def _answer(reference: Any, node: str, until: float) -> Kept | None:
    """What a keeper answers, as long as its node lives and Ray still starts it."""
    while True:
        try:
            kept: Kept = ray.get(reference, timeout=_LOOK)
            return kept
        except ray.exceptions.GetTimeoutError:
            if time.monotonic() >= until or not _is_alive(node):
                return None
        except ray.exceptions.RayError:
            return None


def _is_alive(node: str) -> bool:
    return any(of["NodeID"] == node and of["Alive"] for of in ray.nodes())
