"""The driver of a sort: it plans, hands tasks to Ray, verifies, and publishes."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from .. import _datapipes
from .._datapipes import parse_size
from .._errors import Error
from .._paths import Path, text_of
from .._report import Report
from . import _tasks
from ._account import account_of, verify
from ._cluster import join
from ._direct import Direct
from ._order import Order, order_of, refused
from ._outputs import Draft, Prefix, draft_of
from ._places import absolute, sources_of
from ._plan import Division, Layout, divide
from ._shuffle import Shuffle
from ._store import Store
from ._turns import RETRIES, Job, Turns, alive_nodes, ray

Progress = Callable[[int, int, int], object]

_SAMPLES_A_TASK = 500

_SAMPLE_BYTES, _MIN_SAMPLE = 64 << 20, 256
"""All samples have about so many bytes at most, and each of a long line no fewer than so many."""

_WAYS: dict[str, type[Shuffle]] = {"direct": Direct, "store": Store}
"""How sorted parts come from the tasks that sort to those that merge."""

_SMALL = 256 << 20
"""Up to so many bytes for each node go through Ray's store: less than it takes to start keepers."""


def sort(
    inputs: Path | Iterable[Path],
    output: Path,
    *,
    records: tuple[int, int, int] | None = None,
    format: str = "lines",
    keys: Sequence[str] = (),
    separator: str | bytes | None = None,
    letters: str = "",
    reverse: bool = False,
    unique: bool = False,
    stable: bool = False,
    zero_terminated: bool = False,
    memory_per_task: int | str | None = None,
    parallelism: int | None = None,
    partitions: int | None = None,
    single_file: bool = False,
    shuffle: str | None = None,
    spill: Path | None = None,
    progress: Progress | None = None,
) -> Report:
    """Sort files, on all nodes of a cluster of Ray, into a folder of parts in order.

    ``inputs`` are files, or folders of files (without those whose names begin with "." or "_", which the
    report names), and ``output`` is a name that does not exist yet; both
    are on a file system that all nodes have under the same names. The folder has files
    ``part-00000``, ``part-00001``, ...; it appears when all of them are complete and verified.
    ``single_file`` makes one file of them instead, which the driver copies together. Inputs and output
    may also be objects (``s3://``, ``gs://``, ``az://``): ``s3://bucket/prefix/*`` as inputs, a prefix as
    output, whose parts are an output once ``_manifest.json`` names them.

    ``records=(length, key offset, key length)`` sorts binary records, ``format`` numbers ("u32",
    "u64", "i64", "f64", little-endian), and otherwise lines are sorted: by bytes, or by ``keys`` such
    as "2,2n", with ``separator`` and ``letters`` as of sort -t and sort -bdfghiMnV. ``stable`` keeps
    lines with equal keys in the order of the input, ``unique`` only the first of them; records of
    equal keys always keep their order.

    ``memory_per_task`` is what one task may use (bytes, or "2G"; the least is 64 MiB), beside Ray's
    object store. ``parallelism`` is how many tasks run at once, ``partitions`` how many parts the
    output has.

    ``shuffle="direct"`` keeps sorted parts in files without names, in the folder ``spill`` of the node
    that sorted them, and sends ranges of them from node to node. ``"store"`` gives them to Ray's
    object store, and uses the folder only for runs that do not fit the memory of a task. By default an
    input of at most 256 MiB for each node goes through the store.
    ``progress`` is called about twice a second with (bytes of the input, read, written).

    Ray runs tasks again whose worker or node was lost. After an error, or Ctrl-C, nothing is left.
    If the driver itself is killed, the next sort to the same name removes what it left.
    """
    order = order_of(
        format,
        records,
        keys,
        separator,
        letters,
        reverse=reverse,
        unique=unique,
        stable=stable,
        zero_terminated=zero_terminated,
    )
    memory_per_task = parse_size(memory_per_task) if isinstance(memory_per_task, str) else memory_per_task
    budget = _whole("memory_per_task", memory_per_task)
    parallelism, partitions = _whole("parallelism", parallelism), _whole("partitions", partitions)
    takes = "sorted parts and runs are files in a folder of each node"
    folder = absolute(text_of(spill), takes) if spill is not None else None
    if progress is not None and not callable(progress):
        raise refused("progress is not callable")
    # It is compiled here, too: what is wrong with it is known before anything is started.
    _datapipes.choose_splitters(order, [], 1)
    sources, left_out = sources_of(inputs)
    layout = Layout(sources)
    if shuffle not in (None, *_WAYS):
        raise refused(f'shuffle={shuffle!r}: give "direct" or "store"')
    join()
    nodes = alive_nodes()
    if shuffle is None:
        shuffle = "store" if layout.total <= _SMALL * len(nodes.nodes) else "direct"
    division = divide(layout.total, nodes, budget, parallelism, partitions, kept=shuffle == "direct")
    draft = draft_of(output, single_file=single_file)
    try:
        try:
            way = _WAYS[shuffle](order, division, draft.target, folder)
            run = _Run(order, layout, division, draft, way, progress, left_out)
            try:
                return run.sort(single_file)
            finally:
                try:
                    run.cancel()
                finally:
                    way.close()
        except Error as error:
            if (cause := draft.cause_of(error)) is not error:
                raise cause from None
            raise
        finally:
            try:
                draft.discard()
            except KeyboardInterrupt:
                # One that comes meanwhile ends the sort, but leaves nothing either.
                draft.discard()
                raise
    except KeyboardInterrupt:
        there = draft.is_there()
        if there is not False:
            raise InterruptedWhilePublishing(there) from None
        raise


def _whole(name: str, value: Any) -> int | None:
    """A number of an argument, also one of NumPy."""
    if value is None:
        return None
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise refused(f"{name}={value!r} is no whole number") from None


class InterruptedWhilePublishing(KeyboardInterrupt):
    """An interrupt that came when the output had its name, or may have had it (``is_done`` is None)."""

    def __init__(self, is_done: bool | None) -> None:
        super().__init__()
        self.is_done = is_done


class _Run:
    """One sort."""

    def __init__(
        self,
        order: Order,
        layout: Layout,
        division: Division,
        draft: Draft | Prefix,
        way: Shuffle,
        progress: Progress | None,
        left_out: Sequence[str],
    ) -> None:
        self._order, self._layout, self._division, self._draft = order, layout, division, draft
        self._way, self._tell, self._left_out = way, progress, left_out
        self._turns = Turns(division.parallelism, division.memory_per_task, self._told)
        self._read = self._written = 0
        self._phases: list[tuple[str, float]] = []

    def sort(self, single_file: bool) -> Report:
        started = time.monotonic()
        self._told()
        samples = self._sample()
        started = self._phase("sample", started)
        division = self._division
        mean_len = sum(length for _, _, length, _ in samples) / max(len(samples), 1)
        part_bytes = division.part_bytes(self._order, self._layout.total, mean_len)
        parts = self._layout.parts(part_bytes)
        division.check_blocks(len(parts))
        placed = [(record, self._layout.part_of(source, at, part_bytes)) for source, at, _, record in samples]
        splitters = _datapipes.choose_splitters(self._order, placed, division.ranges)
        memory = division.sort_memory(self._order, part_bytes, mean_len)
        maps = self._way.sort_parts(self._turns, parts, memory, splitters, self._has_read)
        started = self._phase("map", started)
        merges = self._way.merge_ranges(self._turns, splitters, self._has_written)
        started = self._phase("reduce", started)
        verify(maps, merges)
        names = [merge["name"] for merge in merges]
        self._draft.check(names, [merge["report"]["written"]["bytes"] for merge in merges])
        # The last call of the user's function: what it raises leaves no output.
        self._told()
        made = self._draft.publish(names, single_file=single_file)
        self._phase("publish", started)
        facts: dict[str, Any] = {
            "parallelism": division.parallelism,
            "memory_per_task": division.memory_per_task,
            "part_bytes": part_bytes,
            "samples": len(samples),
            "shuffle": self._way.name,
            "inputs": len(self._layout.sources),
            "left_out": list(self._left_out),
        }
        return account_of(maps, merges, made, facts, self._phases)

    def cancel(self) -> None:
        """End the tasks that are under way."""
        self._turns.cancel()

    def _has_read(self, count: int) -> None:
        self._read += count

    def _has_written(self, count: int) -> None:
        self._written += count

    def _phase(self, name: str, started: float) -> float:
        now = time.monotonic()
        self._phases.append((name, now - started))
        return now

    def _told(self) -> None:
        if self._tell is not None:
            self._tell(self._layout.total, self._read, self._written)

    def _sample(self) -> list[tuple[int, int, int, bytes]]:
        sources = self._layout.sources
        jobs: list[list[tuple[int, Any, list[int]]]] = []
        left = 0
        for number, offsets in self._layout.samples(self._division.samples):
            for i in range(0, len(offsets), _SAMPLES_A_TASK):
                some = offsets[i : i + _SAMPLES_A_TASK]
                if left < len(some):
                    jobs.append([])
                    left = _SAMPLES_A_TASK
                jobs[-1].append((number, sources[number], some))
                left -= len(some)
        task = ray.remote(_tasks.sample).options(name="dpipe-sample", num_cpus=1, max_retries=RETRIES)
        most = max(_MIN_SAMPLE, _SAMPLE_BYTES // self._division.samples)
        found: list[list[tuple[int, int, int, bytes]]] = [[]] * len(jobs)

        def job_of(number: int) -> Job:
            def done(samples: list[tuple[int, int, int, bytes]], _references: list[Any]) -> None:
                found[number] = samples

            return Job(lambda: task.remote(self._order, jobs[number], most), done)

        self._turns.run(job_of(number) for number in range(len(jobs)))
        return [sample for samples in found for sample in samples]
