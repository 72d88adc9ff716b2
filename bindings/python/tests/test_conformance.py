"""Transfers between all places that Python has, against a model: arrays of NumPy that do the same.

Each step is drawn from a seed, which a failure prints; DATAPIPES_SEED replays it.
"""

from __future__ import annotations

import asyncio
import os

import datapipes as dp
import numpy as np
import pytest

SIZE = 300_000
STEPS = 400
SEED = int(os.environ["DATAPIPES_SEED"]) if os.environ.get("DATAPIPES_SEED", "random") != "random" else 20261125


class Place:
    """A place, and what it must contain."""

    def __init__(self, name, of, content):
        self.name, self.of, self.content = name, of, content

    def read(self):
        if isinstance(self.of, dp.File):
            return np.asarray(self.of.read(0, SIZE))
        return np.frombuffer(bytes(memoryview(self.of)), np.uint8)


def places(folder, random):
    def content():
        return random.integers(0, 256, SIZE, np.uint8)

    made = []
    for i in range(2):
        bytes_of = content()
        (folder / f"file{i}").write_bytes(bytes_of)
        made.append(Place(f"file {i}", dp.open(folder / f"file{i}", "r+"), bytes_of))
    for i in range(2):
        bytes_of, buffer = content(), dp.Buffer(SIZE)
        memoryview(buffer)[:] = bytes_of.tobytes()
        made.append(Place(f"buffer {i}", buffer, bytes_of))
    placed = dp.open(folder / "file0").buffer_for(10_007, SIZE)
    memoryview(placed)[:] = bytes(SIZE)
    made.append(Place("a buffer for a part of a file", placed, np.zeros(SIZE, np.uint8)))
    bytes_of = content()
    (folder / "mapped").write_bytes(bytes(77) + bytes_of.tobytes())
    with dp.open(folder / "mapped") as file:
        made.append(Place("a mapped file", file.map(77, SIZE), bytes_of))
    return made


def lengths(random):
    exact = [0, 1, 511, 512, 4096, 65_536, 65_537]
    return int(random.choice(exact) if random.random() < 0.4 else random.integers(0, 200_000))


def step(random, made, pipes):
    """One transfer, by one of the ways that there are. Returns what it was."""
    source, target = (made[i] for i in random.choice(len(made), 2, replace=False))
    length = lengths(random)
    at, to = (int(random.integers(0, SIZE - length + 1)) for _ in range(2))
    part = source.content[at : at + length].copy()
    ways = ["pipe"]
    if isinstance(source.of, dp.File) and not isinstance(target.of, dp.File):
        ways += ["readinto", "pread", "ranges", "await"]
    if isinstance(target.of, dp.File) and not isinstance(source.of, dp.File):
        ways += ["write"]
    way = str(random.choice(ways))
    what = f"{way}: {length} bytes at {at} of {source.name} to {to} of {target.name}"
    into = None if isinstance(target.of, dp.File) else target.of.part(to, length)
    if way == "pipe":
        key = (source.name, target.name)
        if key not in pipes:
            pipes[key] = dp.connect(source.of, target.of)
        pipes[key].transfer(at, to, length)
    elif way == "readinto":
        assert source.of.readinto(into, at) == length, what
    elif way == "pread":
        assert source.of.pread(into, at).result(60) == length, what
    elif way == "await":
        assert asyncio.run(source.of.pread_async(into, at)) == length, what
    elif way == "ranges":
        cut = int(random.integers(0, length + 1))
        source.of.read_ranges([(at, cut), (at + cut, length - cut)], out=into)
    else:
        assert target.of.write(source.of.part(at, length), to) == length, what
    target.content[to : to + length] = part
    return what


@pytest.mark.parametrize("seed", [SEED, SEED + 1])
def test_transfers_do_what_the_model_does(folder, seed):
    if os.environ.get("DATAPIPES_SEED") == "random":
        seed = int.from_bytes(os.urandom(4), "little")
    random = np.random.default_rng(seed)
    made, pipes = places(folder, random), {}
    for number in range(STEPS):
        if random.random() < 0.1:
            path = made[int(random.integers(0, 2))].of.path
            with open(path, "rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        what = step(random, made, pipes)
        if number % 20 == 19:
            for place in made:
                different = np.flatnonzero(place.read() != place.content)
                assert different.size == 0, f"seed {seed}, step {number}, {what}: {place.name} at {different[:5]}"


@pytest.mark.parametrize("way", ["readinto", "pread", "await", "ranges", "pipe", "write", "read"])
def test_what_cannot_be_moved_is_an_error_and_changes_nothing(folder, way):
    (folder / "short").write_bytes(bytes(range(100)))
    with dp.open(folder / "short", "r+") as file:
        buffer = dp.Buffer(200)
        memoryview(buffer)[:] = b"\xff" * 200
        if way in ("readinto", "pread", "await"):  # They end where the file does.
            given = {
                "readinto": lambda: file.readinto(buffer, 90),
                "pread": lambda: file.pread(buffer, 90).result(60),
                "await": lambda: asyncio.run(file.pread_async(buffer, 90)),
            }[way]()
            assert given == 10 and bytes(memoryview(buffer)) == bytes(range(90, 100)) + b"\xff" * 190
        elif way == "read":
            assert bytes(memoryview(file.read(95, 50))) == bytes(range(95, 100))
        else:
            calls = {
                "ranges": lambda: file.read_ranges([(90, 20)], out=dp.Buffer(20)),
                "pipe": lambda: dp.connect(file, buffer).transfer(0, 150, 100),
                "write": lambda: file.write(buffer, 1 << 63),
            }
            with pytest.raises(dp.Error):
                calls[way]()
            assert bytes(memoryview(buffer)) == b"\xff" * 200
            assert (folder / "short").read_bytes() == bytes(range(100))
