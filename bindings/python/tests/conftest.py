from __future__ import annotations

import os
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import datapipes as dp
import numpy as np
import pytest
from objectserver import PROGRAM, ObjectServer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder on a disk, where the file system may know direct I/O."""
    return tmp_path


@pytest.fixture
def pattern() -> Callable[[int], bytes]:
    """Bytes that do not repeat within a page."""

    def make(length: int, seed: int = 7) -> bytes:
        return np.random.default_rng(seed).integers(0, 256, length, np.uint8).tobytes()

    return make


def eventually(holds: Callable[[], bool]) -> None:
    """Wait until something holds. A machine that does much else may keep a thread from its end."""
    until = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < until, "it does not come"
        time.sleep(0.01)


MODEL = Path(__file__).parents[3] / "crates/backends/gpu/tests/model/driver.c"
"""A model of NVIDIA's driver, whose devices have memory of the process."""


@pytest.fixture(scope="session")
def gpu_driver(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The driver that this process uses: NVIDIA's own where it is, else the model."""
    named = "DATAPIPES_CUDA_DRIVER"
    if Path("/dev/nvidiactl").exists() or named in os.environ:
        return os.environ.get(named, "libcuda.so.1")
    library = tmp_path_factory.mktemp("model") / "libcuda-model.so"
    try:
        subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-pthread", "-o", library, MODEL], check=True)
    except (OSError, subprocess.CalledProcessError) as why:
        pytest.skip(f"there is no NVIDIA driver, and no model of it can be compiled: {why}")
    os.environ[named] = str(library)
    return str(library)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectServer]:
    """A server of objects, which the environment names from now on."""
    if not dp._datapipes._OBJECTS:
        pytest.skip("this package was built without objects")
    if not PROGRAM:
        pytest.skip("DATAPIPES_TEST_SERVER names no server of objects")
    made = ObjectServer(tmp_path_factory.mktemp("buckets"))
    before = {name: os.environ.get(name) for name in made.settings}
    os.environ.update(made.settings)
    yield made
    for name, value in before.items():
        os.environ.pop(name) if value is None else os.environ.update({name: value})
    made.close()


@pytest.fixture
def objects(server: ObjectServer) -> Iterator[ObjectServer]:
    """The same, without faults of other tests."""
    server.say("clear")
    yield server
    server.say("clear")


@pytest.fixture
def prefix(objects: ObjectServer) -> str:
    """Where a test has its objects."""
    return f"s3://box/{uuid.uuid4().hex}"


def in_child(work: Callable[[], None]) -> None:
    """Run work in a child made by fork; fail here if it fails there."""
    import faulthandler
    import signal
    import traceback

    child = os.fork()
    if child == 0:
        status = 1
        try:
            # By a signal, for a thread that waits would be missing in a child of the child.
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            faulthandler.register(signal.SIGALRM, chain=True)
            signal.alarm(60)
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert status == 0, f"the child ended with {status}"
