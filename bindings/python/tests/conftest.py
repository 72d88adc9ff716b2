from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest


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
