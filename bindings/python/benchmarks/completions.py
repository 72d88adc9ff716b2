"""Awaited reads against blocking ones, in this process: wall and CPU time of a read in microseconds.

    python completions.py FILE LENGTH COUNT warm|cold TASKS

Two builds are compared by calling this in turns with each of them in PYTHONPATH.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import random
import resource
import sys
import time
from collections.abc import Callable

import datapipes as dp


def cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    path, length, count, warm, tasks = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "warm", int(sys.argv[5])
    places = os.path.getsize(path) // length
    offsets = [at * length for at in random.Random(5).sample(range(places), min(count, places))]
    if warm:
        offsets *= count // len(offsets)
    target, file = bytearray(length), dp.open(path)
    descriptor = os.open(path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)

    def timed(work: Callable[[], object]) -> str:
        other = os.open(path, os.O_RDONLY)
        if warm:
            while os.read(other, 1 << 24):
                pass
        else:
            os.posix_fadvise(other, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(other)
        c, t = cpu(), time.perf_counter()
        work()
        return f"{(time.perf_counter() - t) / len(offsets) * 1e6:.1f} {(cpu() - c) / len(offsets) * 1e6:.1f}"

    async def all_tasks() -> None:
        async def task(part: list[int]) -> None:
            own = bytearray(length)
            for at in part:
                await file.pread_async(own, at)

        await asyncio.gather(*(task(offsets[i::tasks]) for i in range(tasks)))

    async def in_threads() -> None:
        for at in offsets:
            await asyncio.to_thread(os.preadv, descriptor, [target], at)

    async def by_aiofiles() -> None:
        import aiofiles

        async with aiofiles.open(path, "rb", buffering=0) as other:
            for at in offsets:
                await other.seek(at)
                await other.readinto(target)

    print("os.preadv", timed(lambda: [os.preadv(descriptor, [target], at) for at in offsets]))
    print("File.pread, result", timed(lambda: [file.pread(target, at).result() for at in offsets]))
    print("await File.pread_async", timed(lambda: asyncio.run(all_tasks())))
    if tasks == 1:
        print("await asyncio.to_thread(os.preadv)", timed(lambda: asyncio.run(in_threads())))
        if importlib.util.find_spec("aiofiles"):
            print("await aiofiles", timed(lambda: asyncio.run(by_aiofiles())))


main()
