"""Calls that are repeated leave no blocks of the interpreter, no descriptors, no mappings, also where they fail."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import sys

import datapipes as dp
import numpy as np
from test_calls import forget
from test_products import write

MIB = 1 << 20


def calls(folder):
    path = folder / "file"
    path.write_bytes(bytes(2 * MIB))
    write(folder / "x.safetensors", {"x": np.zeros(MIB // 2, np.float32)})
    np.save(folder / "x.npy", np.zeros(1000))
    (folder / "bad.safetensors").write_bytes(b"\x10" + bytes(7) + b'{"x":{"dtype":1}')
    (folder / "bad.pt").write_bytes(b"PK\x03\x04" + bytes(100))
    file, buffer, pipe_target = dp.open(path, "r+"), dp.Buffer(70_000), dp.Buffer(MIB)
    pipe = dp.connect(file, pipe_target)
    table = dp.rows(path, "float32", 32, cache="4M")
    log = dp.Log(folder / "log")
    loop = asyncio.new_event_loop()

    def cold(work):
        forget(path)
        return work()

    async def cancelled():
        forget(path)
        task = asyncio.ensure_future(file.pread_async(bytearray(MIB)))
        await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    def fails(work):
        try:
            work()
        except (dp.Error, TypeError):
            return
        raise AssertionError("nothing was raised")

    yield {
        "readinto": lambda: file.readinto(bytearray(5000), 7),
        "readinto a Buffer": lambda: file.readinto(buffer, 7),
        "read": lambda: bytes(memoryview(file.read(5, 100))),
        "write": lambda: file.write(bytes(100), 9),
        "map": lambda: np.asarray(file.map(5, MIB))[7],
        "pread": lambda: file.pread(bytearray(4096), 4096).result(60),
        "pread, cold": lambda: cold(lambda: file.pread(bytearray(4096), 4096).result(60)),
        "await": lambda: loop.run_until_complete(file.pread_async(bytearray(4096), 8)),
        "await, cold": lambda: cold(lambda: loop.run_until_complete(file.pread_async(bytearray(4096), MIB))),
        "await, cold, a Buffer": lambda: cold(lambda: loop.run_until_complete(file.pread_async(buffer, MIB))),
        "await, cancelled": lambda: loop.run_until_complete(cancelled()),
        "ranges": lambda: file.read_ranges([(0, 10), (100, 10)]),
        "pipe": lambda: pipe.transfer(0, 0, 4096),
        "load, mapped": lambda: dp.load_file(folder / "x.safetensors", mapped=True),
        "load, read": lambda: dp.load_file(folder / "x.safetensors", mapped=False),
        "npy": lambda: dp.load_npy(folder / "x.npy"),
        "rows": lambda: table[[1, 2, 3]],
        "log": lambda: log.append(b"x" * 100),
        "a mode": lambda: fails(lambda: dp.open(path, "q")),
        "a name": lambda: fails(lambda: dp.open(folder / "none")),
        "a type": lambda: fails(lambda: file.readinto(5)),
        "read-only": lambda: fails(lambda: file.readinto(b"12345")),
        "beyond": lambda: fails(lambda: file.map(0, 1 << 40)),
        "a header": lambda: fails(lambda: dp.load_file(folder / "bad.safetensors")),
        "an archive": lambda: fails(lambda: dp.load_file(folder / "bad.pt")),
        "a row": lambda: fails(lambda: table[[1 << 40]]),
        "a record": lambda: fails(lambda: log.append(bytes(3 * MIB))),
    }
    loop.close()
    log.close()


def counted():
    gc.collect()
    with open("/proc/self/maps") as text:
        maps = sum("/file" in line or ".safetensors" in line for line in text)
    return sys.getallocatedblocks(), len(os.listdir("/proc/self/fd")), maps


def test_rounds_leave_nothing(folder):
    rounds = 60
    for made in calls(folder):
        for name, call in made.items():
            for _ in range(20):  # What is made once and kept.
                call()
            # Lists and dicts of the interpreter grow at times: a leak does so each time.
            grown = []
            for _ in range(4):
                blocks, descriptors, maps = counted()
                for _ in range(rounds):
                    call()
                after = counted()
                assert after[1] <= descriptors and after[2] <= maps, (name, (blocks, descriptors, maps), after)
                grown.append(after[0] - blocks)
                if grown[-1] < rounds // 2:
                    break
            assert min(grown) < rounds // 2, (name, grown)
