"""Objects in buckets, where the package was built with them and the server of the tests is there."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time

import datapipes as dp
import numpy as np
import pytest
from conftest import in_child


def test_a_build_without_objects_refuses_them_by_name():
    if dp._datapipes._OBJECTS:
        pytest.skip("this package was built with objects")
    for call in (
        lambda: dp.open("s3://bucket/key"),
        lambda: dp.open("s3://bucket/key", "w"),
        lambda: dp.open_object("https://host/page"),
        lambda: dp.create_object("s3://bucket/key"),
    ):
        with pytest.raises(dp.Unsupported, match="built without objects") as raised:
            call()
        assert "--features=object" in raised.value.advice


def put(address: str, content: bytes) -> None:
    with dp.open(address, "w") as new:
        new.write(content)


def begun(objects) -> None:
    """Waits until the server knows of an upload, whose parts are sent beside the writer."""
    while objects.unfinished() == 0:
        time.sleep(0.01)


def test_an_object_is_written_as_a_whole_and_read_in_ranges(prefix, pattern):
    content = pattern(9_000_001)
    with dp.create_object(f"{prefix}/x", expected_len=len(content)) as new:
        new.write(content[:8_000_000])
        with pytest.raises(dp.NotFound):
            dp.open(f"{prefix}/x")
        assert new.write(content[8_000_000:]) == 1_000_001
    with dp.open(f"{prefix}/x") as found:
        assert (len(found), found.size(), found.closed) == (len(content), len(content), False)
        assert bytes(found.read()) == content and bytes(found.read(8_999_999, 50)) == content[-2:]
        array = np.zeros(1000, np.uint8)
        assert found.readinto(array, 17) == 1000 and array.tobytes() == content[17:1017]
        assert len(found.read(len(content))) == 0
        put(f"{prefix}/x", pattern(9_000_001, 8))
        with pytest.raises(dp.Corrupt):
            found.read()
    assert found.closed
    with pytest.raises(dp.InvalidInput, match="closed"):
        found.read()


def test_what_fails_is_not_there(prefix):
    with pytest.raises(RuntimeError):
        with dp.open(f"{prefix}/y", "w") as new:
            new.write(b"half")
            raise RuntimeError
    with pytest.raises(dp.NotFound):
        dp.open(f"{prefix}/y")
    put(f"{prefix}/y", b"")
    assert len(dp.open(f"{prefix}/y")) == 0
    with pytest.raises(dp.Error):
        with dp.open(f"{prefix}/y", "x") as new:
            new.write(b"more")
    with pytest.raises(dp.Unsupported, match="not 'r\\+'"):
        dp.open(f"{prefix}/y", "r+")


def test_connections_that_break_are_made_again(objects, prefix, pattern):
    content = pattern(9_000_001)
    for method, part, kind in (
        ("PUT", "partNumber", ["cut-request"]),
        ("PUT", "partNumber", ["lose-answer"]),
        ("POST", "uploadId", ["cut-request"]),
    ):
        objects.fault(1, method, part, *kind)
        put(f"{prefix}/x", content)
    assert objects.hits() == 3
    with dp.open(f"{prefix}/x") as found:
        for kind in (["cut-request"], ["cut-answer", 1000], ["refuse", 503, "SlowDown"]):
            objects.fault(1, "GET", prefix[9:], *kind)
            assert bytes(found.read()) == content
    assert objects.hits() == 6


def test_damaged_bytes_are_an_error(objects, prefix, pattern):
    put(f"{prefix}/x", pattern(3_000_000))
    with dp.open(f"{prefix}/x") as found:
        objects.fault(1, "GET", prefix[9:], "damage-answer", 1_000_000)
        with pytest.raises(dp.Corrupt):
            found.read()
    objects.fault(1, "PUT", "partNumber=1", "damage-request", 1000)
    with pytest.raises(dp.Corrupt):
        put(f"{prefix}/y", pattern(9_000_000))
    assert objects.hits() == 2 and objects.unfinished() == 0
    with pytest.raises(dp.NotFound):
        dp.open(f"{prefix}/y")


def test_wrong_credentials(prefix, monkeypatch):
    put(f"{prefix}/x", b"content")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another-secret-of-nobody")
    for call in (
        lambda: dp.open(f"{prefix}/x"),
        lambda: put(f"{prefix}/x", b"other"),
        lambda: dp._datapipes.list_objects(f"{prefix}/*"),
    ):
        with pytest.raises(dp.PermissionDenied) as raised:
            call()
        assert "another-secret" not in str(raised.value)
    monkeypatch.undo()
    assert bytes(dp.open(f"{prefix}/x").read()) == b"content"


def test_a_variable_that_changes_is_read_again(monkeypatch):
    if not dp._datapipes._OBJECTS:
        pytest.skip("built without objects")
    monkeypatch.setenv("GOOGLE_BASE_URL", "nonsense")
    with pytest.raises(dp.InvalidInput, match="GOOGLE_BASE_URL is no address"):
        dp.open("gs://box/x")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "h:1")
    with pytest.raises(dp.InvalidInput, match="STORAGE_EMULATOR_HOST and GOOGLE_BASE_URL say different"):
        dp.open("gs://box/x")


def test_a_server_that_refuses(objects, prefix):
    objects.fault(1, "PUT", "partNumber", "refuse", 403, "AccessDenied")
    with pytest.raises(dp.PermissionDenied):
        put(f"{prefix}/x", bytes(9_000_000))
    with pytest.raises(dp.NotFound):
        dp.open(f"{prefix}/x")
    assert objects.unfinished() == 0


def test_an_object_that_nobody_refers_to_is_given_up(objects, prefix):
    new = dp.create_object(f"{prefix}/x")
    new.write(bytes(9_000_000))
    begun(objects)
    del new
    gc.collect()
    assert objects.unfinished() == 0


WRITER = """
import sys, datapipes as dp
new = dp.create_object(sys.argv[1])
new.write(bytes(9_000_000))
print("written", flush=True)
sys.stdin.read()
"""


def test_a_writer_that_is_killed_leaves_no_object(objects, prefix):
    address = f"{prefix}/x"
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, address], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert writer.stdout.readline() == b"written\n"
    begun(objects)
    os.kill(writer.pid, signal.SIGKILL)
    writer.communicate()
    assert objects.unfinished() == 1
    with pytest.raises(dp.NotFound):
        dp.open(address)
    # A writer of the key leaves what may still be written, and removes what is old.
    put(address, b"new")
    assert objects.unfinished() == 1
    objects.say("age", 601)
    put(address, b"new")
    objects.say("age", 0)
    assert objects.unfinished() == 0


def test_the_keys_of_a_pattern_and_their_uploads(objects, prefix):
    for key in ("in/a", "in/b", "in/deep/c", "out"):
        put(f"{prefix}/{key}", b"content")
    found = dp._datapipes.list_objects(f"{prefix}/in/*")
    assert found == [f"{prefix}/in/a", f"{prefix}/in/b"]
    dp._datapipes.remove_object(f"{prefix}/in/a")
    assert dp._datapipes.list_objects(f"{prefix}/in/*") == found[1:]
    new = dp.create_object(f"{prefix}/in/b")
    new.write(bytes(9_000_000))
    begun(objects)
    assert dp._datapipes.end_object_uploads(f"{prefix}/in/*") == 1
    with pytest.raises(dp.Error):
        new.publish()
    assert bytes(dp.open(f"{prefix}/in/b").read()) == b"content"


def test_objects_of_the_parent_in_a_child(objects, prefix):
    put(f"{prefix}/x", b"content")
    found, new = dp.open(f"{prefix}/x"), dp.open(f"{prefix}/y", "w")
    new.write(b"of the parent")

    def work():
        for call in (found.read, lambda: new.write(b"of the child"), new.publish):
            with pytest.raises(dp.Forked):
                call()
        # The child has a client of its own.
        assert bytes(dp.open(f"{prefix}/x").read()) == b"content"
        put(f"{prefix}/z", b"of the child")
        found.close()
        new.close()

    in_child(work)
    assert bytes(found.read()) == b"content"
    new.publish()
    assert bytes(dp.open(f"{prefix}/y").read()) == b"of the parent"
    assert bytes(dp.open(f"{prefix}/z").read()) == b"of the child"
