"""What single calls cost, in turns: short copies, futures, asyncio, rows.

    python calls.py FOLDER [--turns N] [--only NAMES]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import datapipes as dp
import numpy as np


def cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def measure(cases: dict[str, Callable[[], int]], turns: int, unit: float = 1e6) -> None:
    """Runs cases in turns; each returns how many calls it made. Prints times a call."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in cases}
    for _ in range(turns):
        for name, case in cases.items():
            c, t = cpu(), time.perf_counter()
            count = case()
            found[name].append(((time.perf_counter() - t) / count, (cpu() - c) / count))
    print("| call | wall us, median | least to most | CPU us, median |\n|---|---|---|---|")
    for name, all_of in found.items():
        walls = sorted(w * unit for w, _ in all_of)
        used = statistics.median(c * unit for _, c in all_of)
        print(f"| {name} | {statistics.median(walls):.2f} | {walls[0]:.2f} to {walls[-1]:.2f} | {used:.2f} |")


def repeat(call: Callable[[], object], count: int) -> Callable[[], int]:
    def run() -> int:
        for _ in range(count):
            call()
        return count

    return run


def short_calls(folder: Path, turns: int) -> None:
    print("\n## 64 bytes\n")
    (folder / "short").write_bytes(bytes(1 << 20))
    file, own, array = dp.open(folder / "short", "r+"), dp.Buffer(64), bytearray(64)
    source, target = memoryview(bytes(64)), memoryview(bytearray(64))
    plain = open(folder / "short", "rb", buffering=0)

    def copy() -> None:
        target[:] = source

    def preadv() -> None:
        os.preadv(plain.fileno(), [array], 128)

    pipe = dp.connect(dp.Buffer(64), dp.Buffer(64), typical_len=64)
    measure(
        {
            "memoryview copy": repeat(copy, 20_000),
            "Pipe.transfer, Buffer to Buffer": repeat(pipe.transfer, 20_000),
            "os.preadv into a bytearray": repeat(preadv, 20_000),
            "File.readinto a Buffer": repeat(lambda: file.readinto(own, 128), 20_000),
            "File.readinto a bytearray": repeat(lambda: file.readinto(array, 128), 20_000),
            "File.write a bytearray": repeat(lambda: file.write(array, 128), 5_000),
        },
        turns,
    )


def forget(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def completions(folder: Path, turns: int) -> None:
    path = folder / "completions"
    size = 256 << 20
    if not path.exists():
        with open(path, "wb") as out:
            for _ in range(size >> 20):
                out.write(os.urandom(1 << 20))
            out.flush()
            os.fsync(out.fileno())
    random = np.random.default_rng(1)
    for length, count in ((4096, 300), (64 << 10, 300), (256 << 10, 200), (1 << 20, 100)):
        for warm in (True, False):
            print(f"\n## {length >> 10} KiB, {'warm' if warm else 'cold'}, one at a time\n")
            file, target = dp.open(path), bytearray(length)
            offsets = [int(at) * length for at in random.choice(size // length, count, replace=False)]
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)

            async def many() -> None:
                for at in offsets:
                    await file.pread_async(target, at)

            def loop() -> int:
                asyncio.run(many())
                return count

            cases = {
                "os.preadv": repeat_over(offsets, lambda at: os.preadv(descriptor, [target], at)),
                "File.readinto": repeat_over(offsets, lambda at: file.readinto(target, at)),
                "File.pread, result": repeat_over(offsets, lambda at: file.pread(target, at).result()),
                "await File.pread_async": loop,
            }
            prepared = {name: prepare(path, warm, case) for name, case in cases.items()}
            measure_prepared(prepared, turns)
            os.close(descriptor)


def repeat_over(offsets: list[int], call: Callable[[int], object]) -> Callable[[], int]:
    def run() -> int:
        for at in offsets:
            call(at)
        return len(offsets)

    return run


Prepared = tuple[Callable[[], None], Callable[[], int]]


def prepare(path: Path, warm: bool, case: Callable[[], int]) -> Prepared:
    def before() -> None:
        if warm:
            with open(path, "rb", buffering=0) as file:
                while file.read(1 << 24):
                    pass
        else:
            forget(path)

    return before, case


def measure_prepared(cases: dict[str, Prepared], turns: int) -> None:
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in cases}
    for _ in range(turns):
        for name, (before, case) in cases.items():
            before()
            c, t = cpu(), time.perf_counter()
            count = case()
            found[name].append(((time.perf_counter() - t) / count * 1e6, (cpu() - c) / count * 1e6))
    print("| call | wall us, median | least to most | CPU us, median |\n|---|---|---|---|")
    for name, all_of in found.items():
        walls = sorted(w for w, _ in all_of)
        used = statistics.median(c for _, c in all_of)
        print(f"| {name} | {statistics.median(walls):.1f} | {walls[0]:.1f} to {walls[-1]:.1f} | {used:.1f} |")


ROWS = """
import resource, sys, time
import numpy as np
path, kind, width, count, batch = sys.argv[1], sys.argv[2], 32, int(sys.argv[3]), 4096
rows = __import__("os").path.getsize(path) // (width * 4)
ids = (np.random.default_rng(7).zipf(1.2, count) * 2654435761) % rows
if kind == "datapipes":
    import datapipes as dp
    table = dp.rows(path, "float32", width, cache=sys.argv[4])
    take = lambda part: table[part]
else:
    table = np.memmap(path, np.float32, "r").reshape(rows, width)
    if kind == "memmap-random":
        table.base._mmap.madvise(1) if hasattr(table.base, "_mmap") else table._mmap.madvise(1)
    take = lambda part: table[part]
def cpu():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
total = 0.0
c, t = cpu(), time.perf_counter()
for at in range(0, count, batch):
    total += float(take(ids[at : at + batch])[:, 0].sum())
print(time.perf_counter() - t, cpu() - c, total)
"""


def rows(folder: Path, turns: int, prefix: list[str], mib: int, count: int) -> None:
    """rows[ids] against numpy.memmap. `prefix` starts a program under a limit of memory."""
    path = folder / f"table-{mib}"
    if not path.exists():
        with open(path, "wb") as out:
            part = np.random.default_rng(1).random((1 << 20) // 4, np.float32).tobytes()
            for _ in range(mib):
                out.write(part)
            out.flush()
            os.fsync(out.fileno())
    found: dict[str, list[tuple[float, float]]] = {}
    sums = set()
    for _ in range(turns):
        for kind in ("datapipes", "memmap", "memmap-random"):
            forget(path)
            # With the kernel's readahead a row costs milliseconds.
            asked = count // 40 if kind == "memmap" else count
            command = [*prefix, sys.executable, "-c", ROWS, str(path), kind, str(asked), "64M"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=170, check=False)
            if done.returncode != 0:
                print(f"{kind}: {done.stderr.strip().splitlines()[-1:]}")
                continue
            wall, used, total = map(float, done.stdout.split())
            if kind != "memmap":
                sums.add(total)
            found.setdefault(kind, []).append((wall / asked * 1e6, used / asked * 1e6))
    print(f"\n## rows of 128 bytes out of {mib} MiB, {count} of them\n")
    print("| reader | wall us a row, median | least to most | CPU us a row |\n|---|---|---|---|")
    for kind, all_of in found.items():
        walls = sorted(w for w, _ in all_of)
        used = statistics.median(c for _, c in all_of)
        print(f"| {kind} | {statistics.median(walls):.2f} | {walls[0]:.2f} to {walls[-1]:.2f} | {used:.2f} |")
    assert len(sums) == 1, f"the readers disagree: {sums}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--only", default="short,completions,rows")
    parser.add_argument("--prefix", default="", help="what starts a program under a limit, for the rows")
    parser.add_argument("--mib", type=int, default=4096)
    parser.add_argument("--count", type=int, default=400_000)
    of = parser.parse_args()
    asked = of.only.split(",")
    if "short" in asked:
        short_calls(of.folder, of.turns)
    if "completions" in asked:
        completions(of.folder, of.turns)
    if "rows" in asked:
        rows(of.folder, of.turns, of.prefix.split(), of.mib, of.count)


main()
