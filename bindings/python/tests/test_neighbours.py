"""With packages that people use beside: Arrow and tqdm. Each test is skipped where its package is missing."""

from __future__ import annotations

import io

import datapipes as dp
import numpy as np
import pytest


def test_arrow_reads_parquet_by_the_file_system(folder):
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pytest.importorskip("fsspec")
    from datapipes.fsspec import DatapipesFileSystem

    table = pa.table({"number": np.arange(100_000), "text": [f"row {n}" for n in range(100_000)]})
    parquet.write_table(table, folder / "t.parquet", row_group_size=10_000)
    system = DatapipesFileSystem()
    assert parquet.read_table(str(folder / "t.parquet"), filesystem=system).equals(table)
    some = parquet.read_table(str(folder / "t.parquet"), filesystem=system, columns=["number"])
    assert some.column("number").to_numpy().sum() == np.arange(100_000).sum()
    parquet.write_table(table, str(folder / "written.parquet"), filesystem=system)
    assert parquet.read_table(folder / "written.parquet").equals(table)


def test_arrow_and_buffers_share_their_bytes(folder, pattern):
    pa = pytest.importorskip("pyarrow")
    (folder / "file").write_bytes(pattern(80_000))
    with dp.open(folder / "file") as file:
        buffer = file.read(0, 80_000)
        view = pa.py_buffer(buffer)
        assert view.address == buffer.address and buffer.exports == 1
        column = pa.Array.from_buffers(pa.int64(), 10_000, [None, view])
        assert column.to_numpy().tobytes() == pattern(80_000)
        with pytest.raises(dp.Busy):  # Arrow has the bytes.
            file.readinto(buffer)
        del view, column
        assert buffer.exports == 0
        memory = pa.allocate_buffer(80_000)
        assert file.readinto(memory) == 80_000 and memory.to_pybytes() == pattern(80_000)


def test_a_bar_of_tqdm_follows_a_sort(folder):
    tqdm = pytest.importorskip("tqdm")
    np.arange(2_000_000, dtype=np.uint64)[::-1].tofile(folder / "in")
    told = []
    with tqdm.tqdm(file=io.StringIO(), unit="B", unit_scale=True) as bar:

        def progress(total, read, written):
            bar.total = 2 * total
            bar.update(read + written - bar.n)
            told.append(bar.n)

        dp.sort(folder / "in", folder / "out", format="u64", progress=progress)
        assert bar.n == bar.total == 2 * 16_000_000 and told == sorted(told)
