"""Logs: what is durable, what a torn tail leaves, what damage is told."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading

import datapipes as dp
import numpy as np
import pytest

SMALL = {"segment_bytes": 64 << 10, "batch_bytes": 4096}


def test_append_and_read(folder):
    with dp.Log(folder / "log") as log:
        assert log.append(b"one") == 1
        assert log.append_durable(bytearray(b"two")) == 2
        assert log.append(np.arange(3, dtype="<u4")) == 3
        assert log.append(b"") == 4
        log.sync()
        whole = [(1, b"one"), (2, b"two"), (3, np.arange(3, dtype="<u4").tobytes()), (4, b"")]
        assert list(log) == whole
        assert list(log.records_from(3)) == whole[2:]
        assert log.read(2) == b"two"
        stats = log.stats()
        assert stats["records"] == 4 and stats["durable_before"] == 5 and stats["failed"] is None
        assert "log" in repr(log) and log.path == folder / "log"
    assert log.closed and "closed" in repr(log)
    assert list(dp.read_log(folder / "log")) == whole
    with dp.Log(folder / "log") as log:
        assert log.append_durable(b"five") == 5
    assert list(dp.read_log(folder / "log", 5)) == [(5, b"five")]
    report = dp.examine_log(folder / "log")
    assert report.to_dict()["next"] == 6 and "records 1 to 5" in str(report)


def test_only_durable_records_are_read(folder):
    with dp.Log(folder / "log") as log:
        log.append_durable(b"durable")
        log.append(b"not yet")
        assert [number for number, _ in log] == [1]
        log.sync()
        assert [number for number, _ in log] == [1, 2]


def test_what_is_refused(folder):
    with pytest.raises(dp.NotFound):
        dp.read_log(folder / "none")
    with pytest.raises(dp.InvalidInput):
        dp.Log(folder / "log", batch_bytes=5)
    with dp.Log(folder / "log", **SMALL) as log:
        with pytest.raises(dp.Busy):
            dp.Log(folder / "log")
        with pytest.raises(dp.InvalidInput):
            log.append(bytes(log.record_limit + 1))
        assert log.append(bytes(log.record_limit)) == 1
        for wrong in (None, "text", 5):
            with pytest.raises(TypeError):
                log.append(wrong)
        with pytest.raises(dp.InvalidInput, match="side by side"):
            log.append(np.zeros((8, 8))[:, ::2])
        for number in (0, 7, (1 << 64) - 1):
            with pytest.raises(dp.OutOfRange):
                log.read(number)
        with pytest.raises(OverflowError):
            log.read(-1)
    calls = [
        lambda: log.append(b"x"),
        lambda: log.append_durable(b"x"),
        lambda: log.sync(),
        lambda: log.read(1),
        lambda: iter(log),
        lambda: log.stats(),
        lambda: log.release_before(1),
        lambda: log.record_limit,
        lambda: log.__enter__(),
    ]
    for call in calls:
        with pytest.raises(dp.InvalidInput, match="is closed"):
            call()
    log.close()


def test_a_crash_leaves_what_was_durable(folder):
    """The program ends without closing its log: what was acknowledged is there."""
    program = """
import os, sys, datapipes as dp
log = dp.Log(sys.argv[1])
for number in range(100):
    log.append(b"record %d" % number)
print(log.append_durable(b"acknowledged"), flush=True)
log.append(b"lost")
os._exit(1)
"""
    done = subprocess.run([sys.executable, "-c", program, folder / "log"], capture_output=True, text=True, timeout=120)
    assert done.stdout == "101\n", done.stderr
    assert [number for number, _ in dp.read_log(folder / "log")] == list(range(1, 102))
    with dp.Log(folder / "log") as log:
        assert log.append_durable(b"next") == 102
        assert log.read(101) == b"acknowledged" and log.read(102) == b"next"


def _segments(folder):
    return sorted(path for path in folder.iterdir() if path.stat().st_size >= 4096)


def test_a_torn_tail_is_cut_off_and_damage_is_corrupt(folder):
    program = """
import os, sys, datapipes as dp
log = dp.Log(sys.argv[1])
for number in range(20):
    log.append_durable(b"record %d " % number * 20)
os._exit(1)
"""
    subprocess.run([sys.executable, "-c", program, folder / "log"], check=False, timeout=120)
    (segment,) = _segments(folder / "log")
    whole = segment.read_bytes()
    last, middle = whole.rindex(b"record 19 "), whole.index(b"record 7 ")

    def read_with(damaged_at):
        broken = bytearray(whole)
        broken[damaged_at] ^= 1
        segment.write_bytes(broken)
        return [number for number, _ in dp.read_log(folder / "log")]

    # The last batch was not followed by anything: it looks like one that a crash tore.
    assert read_with(last) == list(range(1, 20))
    with pytest.raises(dp.Corrupt) as caught:
        read_with(middle)
    assert 0 < caught.value.offset <= middle
    with pytest.raises(dp.Corrupt):
        dp.Log(folder / "log")
    found = dp.read_log(folder / "log")
    numbers = []
    with pytest.raises(dp.Corrupt):
        for number, _ in found:
            numbers.append(number)
    assert numbers == list(range(1, 8)) and list(found) == []  # It ends after its error.
    segment.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(dp.Corrupt):
        dp.Log(folder / "log")


def test_the_end_of_a_closed_log_is_known(folder):
    with dp.Log(folder / "log") as log:
        for number in range(20):
            log.append_durable(b"record %d " % number * 20)
    (segment,) = _segments(folder / "log")
    broken = bytearray(segment.read_bytes())
    broken[broken.rindex(b"record 19 ")] ^= 1
    segment.write_bytes(broken)
    with pytest.raises(dp.Corrupt):
        list(dp.read_log(folder / "log"))


def test_segments_are_released(folder):
    with dp.Log(folder / "log", **SMALL) as log:
        for _ in range(200):
            log.append(bytes(1000))
        log.sync()
        assert log.release_before(150) > 0
        first = next(iter(log))[0]
        assert 1 < first <= 150
        with pytest.raises(dp.OutOfRange):
            log.read(1)
        assert log.read(first) == bytes(1000)


def test_many_threads_append(folder):
    failed, numbers = [], []
    with dp.Log(folder / "log", **SMALL) as log:

        def work(name):
            try:
                for at in range(50):
                    numbers.append(log.append_durable(b"%d %d" % (name, at)))
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert not failed
        assert sorted(numbers) == list(range(1, 201))
        records = dict(log)
        assert len(set(records.values())) == 200
        assert log.stats()["batches"] <= 200


def test_a_log_that_is_dropped_is_closed(folder):
    log = dp.Log(folder / "log")
    log.append(b"one")
    reader = iter(log)
    del log
    gc.collect()
    assert list(reader) == []
    with dp.Log(folder / "log") as again:
        assert again.read(1) == b"one"
