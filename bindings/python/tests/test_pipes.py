"""Pipes that are kept."""

from __future__ import annotations

import threading

import datapipes as dp
import pytest
from conftest import in_child

MIB = 1 << 20


def test_transfers_between_places(folder, pattern):
    data = pattern(MIB + 5)
    (folder / "in").write_bytes(data)
    with dp.open(folder / "in") as file, dp.open(folder / "out", "w") as out:
        first, second = dp.Buffer(MIB + 5), dp.Buffer(MIB)
        read, copy, write = dp.connect(file, first), dp.connect(first, second), dp.connect(second, out)
        read.transfer()
        assert bytes(memoryview(first)) == data
        for source, target, length in ((0, 0, 64), (5, 100, 4096), (7, 9000, 70_000), (MIB + 5, MIB, 0)):
            copy.transfer(source, target, length)
            assert bytes(memoryview(second)[target : target + length]) == data[source : source + length]
        copy.transfer(6)
        assert bytes(memoryview(second)[: MIB - 1]) == data[6:]
        write.transfer(target=100)
        write.transfer(0, 3, 50)
    written = (folder / "out").read_bytes()
    assert len(written) == MIB + 100 and written[3:53] == data[6:56] and written[200:MIB] == data[106 : MIB - 94]
    assert copy.route().to_dict()["hops"][0]["primitive"] in repr(copy)
    moved = [hop["counters"]["bytes"] for hop in copy.report().to_dict()["hops"]]
    assert moved == [64 + 4096 + 70_000 + MIB - 1] and str(copy.report())


def test_what_is_refused(folder, pattern):
    (folder / "in").write_bytes(pattern(100))
    buffer, other = dp.Buffer(100), dp.Buffer(100)
    with dp.open(folder / "in") as file:
        with pytest.raises(dp.InvalidInput):
            dp.connect(file, bytearray(5))
        with pytest.raises(dp.InvalidInput, match="read-only"):
            dp.connect(file, buffer.toreadonly())
        with pytest.raises(dp.Error):
            dp.connect(buffer, file)
        pipe = dp.connect(file, buffer)
    with pytest.raises(dp.InvalidInput, match="is closed"):
        dp.connect(file, buffer)
    pipe.transfer()  # A pipe keeps its file.
    assert bytes(memoryview(buffer)) == pattern(100)
    with pytest.raises(dp.EndOfFile):
        pipe.transfer(1, 0, 100)
    copy = dp.connect(buffer, other)
    for source, target, length in ((1, 0, 100), (0, 1, 100), (101, 0, 1), (1 << 63, 1 << 63, 1 << 63)):
        with pytest.raises(dp.OutOfRange):
            copy.transfer(source, target, length)
    with memoryview(other), pytest.raises(dp.Busy):
        copy.transfer()
    with pytest.raises(OverflowError):
        copy.transfer(-1)


def test_threads_and_children(folder, pattern):
    data = pattern(MIB)
    (folder / "in").write_bytes(data)
    with dp.open(folder / "in") as file:
        targets, failed = [dp.Buffer(MIB) for _ in range(4)], []
        pipes = [dp.connect(file, target) for target in targets]

        def work(at):
            try:
                for _ in range(50):
                    pipes[at].transfer(at * 5, 0, 100_000)
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=work, args=(at,)) for at in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert not failed
        for at, target in enumerate(targets):
            assert bytes(memoryview(target)[:100_000]) == data[at * 5 : at * 5 + 100_000]

        def forked():
            with pytest.raises(dp.Forked):
                pipes[0].transfer()

        in_child(forked)
        pipes[0].transfer()
