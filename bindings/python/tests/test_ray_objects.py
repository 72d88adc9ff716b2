"""The sort on Ray from objects to objects, with a server that fails and workers that are killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from types import SimpleNamespace

import datapipes as dp
import numpy as np
import pytest

ray = pytest.importorskip("ray")

import datapipes.ray as dpray  # noqa: E402
from ray.cluster_utils import Cluster  # noqa: E402
from test_ray import command, until, workers_of  # noqa: E402

MIB = 1 << 20
SIZES = {"num_cpus": 1, "object_store_memory": 100 * MIB, "memory": 1 << 30}
OPTIONS = {"records": (100, 0, 10), "memory_per_task": "64M", "partitions": 3}


@pytest.fixture(scope="module")
def cluster(server):
    """Two nodes, whose processes know the server."""
    made = Cluster(initialize_head=True, head_node_args=SIZES)
    made.add_node(**SIZES)
    made.wait_for_nodes()
    ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.fixture(scope="module")
def much(tmp_path_factory):
    """Records in two pieces, and sorted. Each part of the output is several parts of an upload."""
    folder = tmp_path_factory.mktemp("much")
    content = np.random.default_rng(3).integers(0, 256, (300_000, 100), np.uint8).tobytes()
    (folder / "in").write_bytes(content)
    dp.sort(folder / "in", folder / "sorted", format="records", record=(100, 0, 10))
    return [content[:10_000_000], content[10_000_000:]], (folder / "sorted").read_bytes()


@pytest.fixture
def inputs(prefix, much):
    for number, content in enumerate(much[0]):
        put(f"{prefix}/in/{number}", content)
    return f"{prefix}/in/*"


def put(address: str, content: bytes) -> None:
    with dp.open(address, "w") as new:
        new.write(content)


def named(output: str) -> list[dict[str, object]]:
    return json.loads(bytes(dp.open(f"{output}/_manifest.json").read()))["parts"]


def whole(output: str) -> bytes:
    """What the manifest names, which must be all that is there."""
    parts = named(output)
    listed = dp._datapipes.list_objects(f"{output}/*")
    assert listed == [f"{output}/_manifest.json", *(f"{output}/{part['name']}" for part in parts)]
    found = [dp.open(f"{output}/{part['name']}") for part in parts]
    assert [(part.size(), part.version) for part in found] == [(of["bytes"], of["version"]) for of in parts]
    return b"".join(bytes(part.read()) for part in found)


def nothing_of(objects, output: str) -> None:
    assert dp._datapipes.list_objects(f"{output}/*") == [] and objects.unfinished() == 0


@pytest.mark.parametrize("shuffle", ["direct", "store"])
def test_objects_to_objects(cluster, objects, prefix, inputs, much, shuffle):
    report = dpray.sort(inputs, f"{prefix}/out", shuffle=shuffle, **OPTIONS).to_dict()
    assert whole(f"{prefix}/out") == much[1] and objects.unfinished() == 0
    assert [part["bytes"] for part in report["parts"]] == [part["bytes"] for part in named(f"{prefix}/out")]
    with pytest.raises(FileExistsError):
        dpray.sort(inputs, f"{prefix}/out", **OPTIONS)
    with pytest.raises(dp.Unsupported, match="prefix"):
        dpray.sort(inputs, f"{prefix}/one", single_file=True)
    assert whole(f"{prefix}/out") == much[1]


def test_lines_of_objects_and_files(cluster, folder, prefix):
    lines = [b"%d" % number for number in np.random.default_rng(3).integers(0, 1 << 40, 50_000)]
    put(f"{prefix}/in/a", b"\n".join(lines[:20_000]) + b"\n")
    put(f"{prefix}/in/b", b"")
    (folder / "c").write_bytes(b"\n".join(lines[20_000:]))
    want = b"".join(line + b"\n" for line in sorted(lines))
    dpray.sort([f"{prefix}/in/*", folder / "c"], f"{prefix}/out", partitions=3)
    assert whole(f"{prefix}/out") == want
    dpray.sort([f"{prefix}/out/part-*"], folder / "out", single_file=True)
    assert (folder / "out").read_bytes() == want
    # More parts than records: some are empty.
    put(f"{prefix}/in/few", b"b\na\n")
    dpray.sort(f"{prefix}/in/few", f"{prefix}/few", partitions=4)
    assert whole(f"{prefix}/few") == b"a\nb\n"


def test_a_server_that_fails_now_and_then(cluster, objects, prefix, inputs, much):
    for method, part, kind in (
        ("GET", "/in/", ["cut-answer", 100_000]),
        ("GET", "/in/", ["refuse", 503, "SlowDown"]),
        ("PUT", "partNumber", ["cut-request"]),
        ("PUT", "partNumber", ["lose-answer"]),
    ):
        objects.fault(2, method, part, *kind)
    dpray.sort(inputs, f"{prefix}/out", **OPTIONS)
    assert objects.hits() == 8
    assert whole(f"{prefix}/out") == much[1] and objects.unfinished() == 0


@pytest.mark.parametrize("part", ["partNumber=2", "_manifest"])
def test_a_server_that_refuses(cluster, objects, prefix, inputs, part):
    objects.fault(100, "PUT", part, "refuse", 403, "AccessDenied")
    with pytest.raises(dp.PermissionDenied):
        dpray.sort(inputs, f"{prefix}/out", **OPTIONS)
    assert objects.hits() > 0
    nothing_of(objects, f"{prefix}/out")


def test_an_object_that_changes(cluster, objects, prefix, inputs, much):
    def change(total, read, written):
        if read:
            put(f"{prefix}/in/1", b"x" * len(much[0][1]))

    with pytest.raises(dp.Corrupt, match="was changed|changed since"):
        dpray.sort(inputs, f"{prefix}/out", progress=change, parallelism=1, **OPTIONS)
    nothing_of(objects, f"{prefix}/out")


def test_a_worker_that_is_killed_while_it_uploads(cluster, objects, prefix, inputs, much):
    # The server takes a part and says nothing: the upload is begun, and the worker waits.
    objects.fault(1, "PUT", "partNumber=2", "swallow")
    seen = []

    def kill():
        while objects.hits() == 0:
            time.sleep(0.01)
        seen.append(objects.unfinished())
        for worker in workers_of("dpipe-merge", os.getpid()):
            os.kill(worker, signal.SIGKILL)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    dpray.sort(inputs, f"{prefix}/out", **OPTIONS)
    killer.join()
    assert seen[0] > 0
    # What the killed workers began is ended as well.
    assert whole(f"{prefix}/out") == much[1] and objects.unfinished() == 0


def test_a_driver_that_is_killed_and_the_next_sort(cluster, objects, prefix, inputs, much):
    objects.fault(1, "PUT", "partNumber=2", "swallow")
    words = [inputs, "-o", f"{prefix}/out", "--records", "--memory-per-task=64M", "--partitions=3"]
    driver = subprocess.Popen(command(cluster, *words))
    until(lambda: objects.hits() > 0)
    # Other parts are done.
    until(lambda: len(dp._datapipes.list_objects(f"{prefix}/out/*")) > 0)
    driver.kill()
    driver.wait()
    with pytest.raises(dp.NotFound):
        dp.open(f"{prefix}/out/_manifest.json")
    until(lambda: not workers_of("dpipe-merge", os.getpid()))
    dpray.sort(inputs, f"{prefix}/out", **OPTIONS)
    assert whole(f"{prefix}/out") == much[1] and objects.unfinished() == 0


@pytest.mark.parametrize("is_late", [True, False])
def test_two_sorts_to_one_prefix(cluster, objects, prefix, inputs, much, is_late):
    def second(total, read, written):
        # With all of its parts written, or while tasks write some.
        if (written == total if is_late else written > 0) and not named_there():
            put(f"{prefix}/other", b"a\n")
            dpray.sort(f"{prefix}/other", f"{prefix}/out", partitions=1)

    def named_there():
        return dp._datapipes.list_objects(f"{prefix}/out/_manifest*")

    with pytest.raises(FileExistsError, match="_manifest.json exists"):
        dpray.sort(inputs, f"{prefix}/out", progress=second, **OPTIONS)
    # The one that lost leaves nothing, and does not disturb the one that won.
    assert whole(f"{prefix}/out") == b"a\n" and objects.unfinished() == 0


@pytest.mark.parametrize("how", ["interrupt", "lost answer"])
def test_a_manifest_whose_answer_does_not_come(cluster, objects, prefix, inputs, much, monkeypatch, how):
    from datapipes.ray import _outputs

    class Manifest:
        def __init__(self, address, **options):
            self._object = dp._file.create_object(address, **options)

        def __enter__(self):
            return self._object.__enter__()

        def __exit__(self, *trouble):
            self._object.__exit__(*trouble)
            raise KeyboardInterrupt if how == "interrupt" else dp.Unavailable("sort: no answer", operation="sort")

    monkeypatch.setattr(_outputs, "create_object", Manifest)
    if how == "interrupt":
        with pytest.raises(KeyboardInterrupt) as raised:
            dpray.sort(inputs, f"{prefix}/out", **OPTIONS)
        assert raised.value.is_done
    else:
        dpray.sort(inputs, f"{prefix}/out", **OPTIONS)
    # What the manifest names is not removed.
    assert whole(f"{prefix}/out") == much[1] and objects.unfinished() == 0


def test_wrong_credentials(cluster, objects, prefix, inputs, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another-secret-of-nobody")
    with pytest.raises(dp.PermissionDenied) as raised:
        dpray.sort(inputs, f"{prefix}/out", **OPTIONS)
    assert "another-secret" not in str(raised.value)
    monkeypatch.undo()
    nothing_of(objects, f"{prefix}/out")


class Kept:
    """Objects in a dict, in the place of a server: what a draft asks for and removes."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.trouble: BaseException | None = None

    def list_objects(self, pattern):
        return sorted(name for name in self.objects if name.startswith(pattern.removesuffix("*")))

    def remove_object(self, address):
        del self.objects[address]

    def end_object_uploads(self, pattern):
        pass

    @contextlib.contextmanager
    def open(self, address):
        if address not in self.objects:
            raise dp.NotFound(f"{address}: no such object", operation="open")
        content = self.objects[address]
        yield SimpleNamespace(size=lambda: len(content), version="1", read=lambda: content)

    @contextlib.contextmanager
    def create(self, address, only_new):
        assert only_new and address not in self.objects
        written: list[bytes] = []
        yield SimpleNamespace(write=written.append)
        self.objects[address] = b"".join(written)
        if self.trouble is not None:
            raise self.trouble


@pytest.mark.parametrize("how", ["interrupt", "lost answer", "silence", "never written"])
def test_parts_that_a_manifest_may_name_are_not_removed(monkeypatch, how):
    from datapipes.ray import _outputs

    kept = Kept()
    monkeypatch.setattr(_outputs, "_datapipes", kept)
    monkeypatch.setattr(_outputs, "open_object", kept.open)
    monkeypatch.setattr(_outputs, "create_object", kept.create)
    draft = _outputs.Prefix("s3://box/out")
    part = draft.target.attempt(0, 1)
    kept.objects[draft.target.path_of(part)] = b"a\n"
    manifest = "s3://box/out/_manifest.json"
    lost = dp.Unavailable("sort: no answer", operation="sort")
    if how == "lost answer":
        kept.trouble = lost
        assert draft.publish([part], single_file=False) == [part]
    elif how == "interrupt":
        kept.trouble = KeyboardInterrupt()
        with pytest.raises(KeyboardInterrupt):
            draft.publish([part], single_file=False)
    else:
        monkeypatch.setattr(_outputs, "create_object", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            draft.publish([part], single_file=False)
    if how == "silence":
        # Whether there is a manifest cannot be known.
        monkeypatch.setattr(_outputs, "open_object", lambda _: (_ for _ in ()).throw(lost))
    draft.discard()
    is_done = how in ("interrupt", "lost answer")
    assert draft.is_there() is (None if how == "silence" else is_done)
    assert (manifest in kept.objects) is is_done
    # Of a sort that failed nothing is left, where that is sure.
    assert (draft.target.path_of(part) in kept.objects) is (how != "never written")
