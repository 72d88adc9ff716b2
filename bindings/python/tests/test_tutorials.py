"""The pages of docs/tutorials are programs: each is run in a folder of its own."""

from __future__ import annotations

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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_page(page, tmp_path):
    # Within -P a page named as a module (sort, checkpoint) hides none.
    command = [sys.executable, "-P", "-X", "dev", "-W", "error::DeprecationWarning", page]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout
