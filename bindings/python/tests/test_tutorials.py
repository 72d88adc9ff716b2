"""The pages of docs/tutorials are programs: each is run in a folder of its own."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

PAGES = sorted((Path(__file__).parents[3] / "docs/tutorials").glob("*.py"))


def test_there_are_pages():
    assert {page.stem for page in PAGES} >= {
        "asyncio_service",
        "checkpoint",
        "embedding_table",
        "first_pipe",
        "load_a_model",
        "sort",
    }


def _talks_to_itself():
    """Whether the machine has the network of its own addresses."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        try:
            socket.create_connection(server.getsockname(), timeout=60).close()
        except OSError:
            return False
    return True


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_page(page, tmp_path):
    if page.stem == "asyncio_service" and not _talks_to_itself():
        pytest.skip("127.0.0.1 cannot be reached")
    # Within -P a page named as a module (sort, checkpoint) hides none.
    command = [sys.executable, "-P", "-X", "dev", "-W", "error::DeprecationWarning", page]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout
