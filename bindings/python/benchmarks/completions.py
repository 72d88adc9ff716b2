"""Awaited reads beside blocking ones, and beside NIXL, whose completions are polled for: in turns, in one process.

    python completions.py FILE LENGTH COUNT warm|cold TASKS [TURNS]

All of it runs in a loop of asyncio that is there already, as in a service; the loop's own start would
cost 0.3 ms. A row has the wall time and the processor time of a read in microseconds (all threads of
the process; medians of the turns, and the least), and the median time of one read from the call to
its bytes. With several TASKS so many reads are under way at once, where there is something to await.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import random
import resource
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import datapipes as dp

Latencies = list[float]
Case = Callable[[], Awaitable[Latencies]]


def cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class Reads:
    """The reads that every contestant makes."""

    def __init__(self, path: str, length: int, count: int, warm: bool, tasks: int) -> None:
        self.path, self.length, self.warm, self.tasks = path, length, warm, tasks
        places = os.path.getsize(path) // length
        offsets = [at * length for at in random.Random(5).sample(range(places), min(count, places))]
        self.offsets = offsets * max(1, count // len(offsets)) if warm else offsets
        self.descriptor = os.open(path, os.O_RDONLY)
        # A blocking read would read what is around it, too.
        os.posix_fadvise(self.descriptor, 0, 0, os.POSIX_FADV_RANDOM)

    def prepare(self) -> None:
        other = os.open(self.path, os.O_RDONLY)
        if self.warm:
            while os.read(other, 1 << 24):
                pass
        else:
            os.posix_fadvise(other, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(other)

    def blocking(self, read: Callable[[bytearray, int], object]) -> Case:
        async def run() -> Latencies:
            target, clock, found = bytearray(self.length), time.perf_counter, []
            if self.warm:  # Two looks at the clock would be a part of what they measure.
                for at in self.offsets:
                    read(target, at)
                return []
            for at in self.offsets:
                begun = clock()
                read(target, at)
                found.append(clock() - begun)
            return found

        return run

    def awaited(self, read: Callable[[bytearray, int], Awaitable[object]]) -> Case:
        async def task(part: list[int]) -> Latencies:
            target, clock, found = bytearray(self.length), time.perf_counter, []
            if self.warm:
                for at in part:
                    await read(target, at)
                return []
            for at in part:
                begun = clock()
                await read(target, at)
                found.append(clock() - begun)
            return found

        async def run() -> Latencies:
            if self.tasks == 1:
                return await task(self.offsets)
            parts = await asyncio.gather(*(task(self.offsets[i :: self.tasks]) for i in range(self.tasks)))
            return [one for part in parts for one in part]

        return run


class NixlReads:
    """NIXL's POSIX backend: what it needs is registered and prepared once, outside of the time."""

    def __init__(self, reads: Reads) -> None:
        import numpy as np
        from nixl._api import nixl_agent, nixl_agent_config

        self.reads = reads
        self.agent = nixl_agent("reads", nixl_agent_config(backends=[]))
        self.agent.create_backend("POSIX")
        # It is kept as long as the agent may write it.
        self.memory = np.empty(reads.tasks * reads.length, np.uint8)
        address, size = self.memory.ctypes.data, os.path.getsize(reads.path)
        targets = [(address + i * reads.length, reads.length, 0) for i in range(reads.tasks)]
        offsets = sorted(set(reads.offsets))
        sources = [(at, reads.length, reads.descriptor) for at in offsets]
        self.number = {at: i for i, at in enumerate(offsets)}
        self.agent.register_memory([(address, self.memory.nbytes, 0, "")], "DRAM")
        self.agent.register_memory([(0, size, reads.descriptor, "")], "FILE")
        self.local = self.agent.prep_xfer_dlist("", self.agent.get_xfer_descs(targets, "DRAM"))
        self.remote = self.agent.prep_xfer_dlist("reads", self.agent.get_xfer_descs(sources, "FILE"))
        self.free = list(range(reads.tasks))

    def start(self, at: int, slot: int) -> tuple[Any, str]:
        handle = self.agent.make_prepped_xfer("READ", self.local, [slot], self.remote, [self.number[at]])
        return handle, self.agent.transfer(handle)

    def end(self, handle: Any, state: str) -> None:
        assert state == "DONE", state
        self.agent.release_xfer_handle(handle)

    async def polled(self) -> Latencies:
        """As many as there are tasks are under way; the thread asks for them without a pause."""
        clock, found = time.perf_counter, []
        under_way: dict[int, tuple[float, Any, str]] = {}
        rest = iter(self.reads.offsets)
        while True:
            while self.free and (at := next(rest, None)) is not None:
                slot, begun = self.free.pop(), clock()
                under_way[slot] = (begun, *self.start(at, slot))
            if not under_way:
                return found
            for slot, (begun, handle, state) in list(under_way.items()):
                if state == "PROC":
                    state = self.agent.check_xfer_state(handle)
                    under_way[slot] = (begun, handle, state)
                if state != "PROC":
                    self.end(handle, state)
                    found.append(clock() - begun)
                    del under_way[slot]
                    self.free.append(slot)

    async def read(self, _: bytearray, at: int) -> None:
        """One read of a task: other tasks run between two looks at it."""
        slot = self.free.pop()
        handle, state = self.start(at, slot)
        while state == "PROC":
            await asyncio.sleep(0)
            state = self.agent.check_xfer_state(handle)
        self.end(handle, state)
        self.free.append(slot)


def cases_of(reads: Reads) -> dict[str, Case]:
    file, descriptor = dp.open(reads.path), reads.descriptor
    alone = reads.tasks == 1
    cases: dict[str, Case] = {"`os.preadv`": reads.blocking(lambda target, at: os.preadv(descriptor, [target], at))}
    if alone:
        cases["`File.readinto`"] = reads.blocking(file.readinto)
        cases["`File.pread`, `result()`"] = reads.blocking(lambda target, at: file.pread(target, at).result())
    cases["`await File.pread_async`"] = reads.awaited(file.pread_async)
    if len(reads.offsets) <= 5_000:  # A hop to a thread and back takes 100 us and more.
        cases["`await asyncio.to_thread(os.preadv)`"] = reads.awaited(
            lambda target, at: asyncio.to_thread(os.preadv, descriptor, [target], at)
        )
    if importlib.util.find_spec("nixl"):
        nixl = NixlReads(reads)
        cases["NIXL, polled"] = nixl.polled
        cases["NIXL, polled in the loop (`sleep(0)`)"] = reads.awaited(nixl.read)
    return cases


async def measure(reads: Reads, turns: int) -> None:
    cases = cases_of(reads)
    walls: dict[str, list[float]] = {name: [] for name in cases}
    used: dict[str, list[float]] = {name: [] for name in cases}
    latencies: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(turns):
        for name, case in cases.items():
            reads.prepare()
            c, t = cpu(), time.perf_counter()
            found = await case()
            wall, processor = time.perf_counter() - t, cpu() - c
            walls[name].append(wall / len(reads.offsets) * 1e6)
            used[name].append(processor / len(reads.offsets) * 1e6)
            latencies[name].append(statistics.median(found) * 1e6 if found else walls[name][-1])
    kind = "cached" if reads.warm else "cold"
    print(f"\n{len(reads.offsets)} reads of {reads.length} bytes, {kind}, {reads.tasks} at once, {turns} turns\n")
    print("| read | wall us (least) | CPU us (least) | of one read, us |\n|---|---|---|---|")
    for name in cases:
        wall, processor, one = (statistics.median(of[name]) for of in (walls, used, latencies))
        least = min(walls[name]), min(used[name])
        print(f"| {name} | {wall:.2f} ({least[0]:.2f}) | {processor:.2f} ({least[1]:.2f}) | {one:.2f} |")


def main() -> None:
    path, length, count, kind, tasks = sys.argv[1:6]
    if kind not in ("warm", "cold"):
        sys.exit(__doc__)
    reads = Reads(path, int(length), int(count), kind == "warm", int(tasks))
    asyncio.run(measure(reads, int(sys.argv[6]) if len(sys.argv) > 6 else 5))


main()
