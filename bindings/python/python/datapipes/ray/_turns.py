"""Tasks that Ray runs, so many at once."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import ray as _ray

from .._errors import Error, NoSpace, Unavailable
from ._plan import Nodes

ray: Any = _ray
"""It has types for some of its functions only."""

RETRIES = 10
"""How often a task is started again whose worker or node was lost, or a part is sorted anew."""

_TURN = 0.5
"""Seconds after which progress is told although nothing was finished."""

_PATIENCE = 60.0
"""Seconds for which tasks wait for a node that could run them."""

_SAID = 600
"""The most letters of what Ray says that an error repeats."""

_ENDING = 10.0
"""Seconds for which the end of tasks is waited for that are no longer wanted."""

_QUIET, _SETTLING = 0.2, 2.0
"""Seconds without the end of a task before others are cancelled, and the most that are waited for that."""


@dataclass
class Job:
    """A task to be run."""

    start: Callable[[], Any]
    """Hands it to Ray. Returns the reference of its result, or a list that begins with it."""
    done: Callable[[Any, list[Any]], Iterable[Job] | None]
    """Takes the result, and the other references. Returns jobs that must be done next."""
    ready: Callable[[], bool] = lambda: True
    """Whether it can be started."""


class Turns:
    """Runs jobs."""

    def __init__(self, parallelism: int, memory_per_task: int, tell: Callable[[], None]) -> None:
        self._parallelism, self._memory, self._tell = parallelism, memory_per_task, tell
        self._pending: dict[Any, tuple[Job, list[Any], frozenset[str]]] = {}

    def run(self, jobs: Iterable[Job]) -> None:
        """Run jobs, and those that they bring about, in their order."""
        waiting = deque(jobs)
        # If all processors are used, one task more is ready for each, so that none is idle.
        window = self._parallelism * (2 if self._parallelism >= alive_nodes().cpus else 1)
        stalled = 0
        since = time.monotonic()
        while waiting or self._pending:
            while len(self._pending) < window and (job := _next(waiting)) is not None:
                self._start(job)
            if not self._pending:
                raise RuntimeError("sort: tasks wait for others that nobody runs; report this as a bug")
            ready, _ = ray.wait(list(self._pending), num_returns=1, timeout=_TURN)
            for reference in ready:
                job, references, _ = self._pending.pop(reference)
                try:
                    result = result_of(reference)
                except BaseException:
                    _forget(references)
                    raise
                waiting.extendleft(reversed(list(job.done(result, references) or ())))
            self._tell()
            if ready:
                since = time.monotonic()
            elif time.monotonic() - since > _PATIENCE:
                # Ray waits for ever for a node that could run them.
                stalled = 0 if self._has_node() else stalled + 1
                if stalled > 1:
                    raise Unavailable(
                        "sort: no node is left that has a processor and the memory for a task",
                        operation="sort",
                        advice="start nodes, and sort again",
                    )
                self._start_again()
                since = time.monotonic()

    def _start(self, job: Job) -> None:
        started = job.start()
        references = started if isinstance(started, list) else [started]
        self._pending[references[0]] = (job, references[1:], _alive())

    def _start_again(self) -> None:
        """Start tasks again that may have run on a node that is gone.

        Ray notices a killed node at once, but minutes after one that stands still was given up.
        """
        alive = _alive()
        for reference, (job, _, nodes) in list(self._pending.items()):
            if nodes - alive:
                del self._pending[reference]
                ray.cancel(reference, force=True)
                self._start(job)

    def cancel(self) -> None:
        """End the tasks that are under way, and wait for their end."""
        pending = list(self._pending)
        others = [reference for _, references, _ in self._pending.values() for reference in references]
        until = time.monotonic() + _SETTLING
        # What failed one task often fails the others at the same moment, and Ray 2.60 aborts this process
        # if a task is cancelled just while its end is noted ("Tried to complete task that was not pending").
        while pending and time.monotonic() < until:
            ended, pending = ray.wait(pending, num_returns=1, timeout=_QUIET)
            if not ended:
                break
            _forget(ended)
        for reference in pending:
            ray.cancel(reference, force=True)
        if pending:
            _forget(ray.wait(pending, num_returns=len(pending), timeout=_ENDING)[0])
        if others:
            _forget(ray.wait(others, num_returns=len(others), timeout=0, fetch_local=False)[0])
        self._pending.clear()

    def _has_node(self) -> bool:
        try:
            alive_nodes().check(self._memory)
        except Unavailable:
            return False
        return True


def _forget(ended: Iterable[Any]) -> None:
    """Look at what became of tasks, for Ray prints an error that nobody has asked for."""
    for reference in ended:
        with contextlib.suppress(Exception):
            ray.get(reference, timeout=_QUIET)


def _next(waiting: deque[Job]) -> Job | None:
    """Take the first job that can be started."""
    for number, job in enumerate(waiting):
        if job.ready():
            del waiting[number]
            return job
    return None


def _alive() -> frozenset[str]:
    return frozenset(node["NodeID"] for node in ray.nodes() if node["Alive"])


def alive_nodes() -> Nodes:
    """What the cluster has now."""
    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return Nodes(
        tuple(
            (of.get("CPU", 0.0), int(of.get("memory", 0)), int(of.get("object_store_memory", 0))) for of in alive
        )
    )


def result_of(reference: Any) -> Any:
    """What a task returned. Its own errors are raised as they are, and Ray's as `Unavailable`."""
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, ray.exceptions.OutOfDiskError):
            raise _full(error) from error
        if isinstance(error.cause, NoSpace):
            # What the engine advises names settings of a sort on one machine.
            error.cause.advice = "make room there, or give another folder (`spill`, the output)"
        if isinstance(error.cause, (Error, OSError)):
            raise error.cause from error
        if isinstance(error.cause, ray.exceptions.RayError):
            raise lost(error.cause) from error
        raise
    except ray.exceptions.OutOfDiskError as error:
        raise _full(error) from error
    except ray.exceptions.RayError as error:
        raise lost(error) from error


def _full(why: object) -> NoSpace:
    return NoSpace(
        f"sort: a disk of a node is full, to which Ray's store spills: {_brief(why)}",
        operation="sort",
        advice='make room, start Ray with another --object-spilling-directory, or give shuffle="direct"',
    )


def lost(why: object) -> Unavailable:
    said = f"sort: a task was lost, or what it needs, and cannot be run again: {_brief(why)}"
    return Unavailable(said, operation="sort", advice="look at the cluster, and sort again")


def _brief(why: object) -> str:
    """The beginning of what Ray says, to which it adds logs of its processes."""
    text = " ".join(str(why).split("\n\n", 1)[0].split())
    return text if len(text) <= _SAID else f"{text[:_SAID].rstrip()} ..."
