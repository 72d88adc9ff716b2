"""The file system for fsspec."""

from __future__ import annotations

import io
import os

import datapipes as dp
import pytest

fsspec = pytest.importorskip("fsspec")

from datapipes.fsspec import DatapipesFileSystem  # noqa: E402

MIB = 1 << 20


@pytest.fixture
def files(folder, pattern):
    fs = fsspec.filesystem("datapipes")
    assert isinstance(fs, DatapipesFileSystem)
    for seed in range(3):
        (folder / f"file{seed}").write_bytes(pattern(2 * MIB + 17, seed))
    return fs, folder


def test_the_name_of_the_protocol(files, pattern):
    fs, folder = files
    with fsspec.open(f"datapipes://{folder}/file1", "rb") as opened:
        assert opened.read() == pattern(2 * MIB + 17, 1)
    assert fs.unstrip_protocol(f"{folder}/file1") == f"datapipes://{folder}/file1"
    assert fs.unstrip_protocol("datapipes://x/y") == f"datapipes://{os.getcwd()}/x/y"
    assert sorted(path.rsplit("/", 1)[1] for path in fs.ls(f"datapipes://{folder}", detail=False)) == [
        "file0",
        "file1",
        "file2",
    ]
    assert fs.info(f"{folder}/file0")["size"] == 2 * MIB + 17


def test_cat(files, pattern):
    fs, folder = files
    want = pattern(2 * MIB + 17, 0)
    path = f"{folder}/file0"
    assert fs.cat_file(path) == fs.cat(path) == want
    for start, end in ((5, 10), (None, 7), (-9, None), (10, -3), (MIB + 1, 2 * MIB), (9, 3), (1 << 40, None)):
        assert fs.cat_file(path, start, end) == want[start:end], (start, end)
    assert fs.cat([path, f"{folder}/file2"])[f"{folder}/file2"] == pattern(2 * MIB + 17, 2)
    with pytest.raises(FileNotFoundError):
        fs.cat_file(f"{folder}/none")


def test_cat_ranges(files, pattern):
    fs, folder = files
    wants = [pattern(2 * MIB + 17, seed) for seed in range(3)]
    asked = [(seed, at, at + n) for at, n in ((0, 5), (100, 70_000), (MIB, 0), (MIB + 3, 99)) for seed in (2, 0, 1)]
    paths = [f"{folder}/file{seed}" for seed, _, _ in asked]
    got = fs.cat_ranges(paths, [a for _, a, _ in asked], [b for _, _, b in asked])
    assert got == [wants[seed][a:b] for seed, a, b in asked]
    assert fs.cat_ranges(paths[:2], 3, 8) == [wants[2][3:8], wants[0][3:8]]
    got = fs.cat_ranges([f"{folder}/none", paths[0]], [0, 0], [5, 5])
    assert isinstance(got[0], dp.NotFound) and got[1] == wants[2][:5]
    with pytest.raises(dp.NotFound):
        fs.cat_ranges([f"{folder}/none"], [0], [5], on_error="raise")
    with pytest.raises(ValueError):
        fs.cat_ranges(paths, [0], [5])


def test_a_file_is_a_file_of_python(files, pattern):
    fs, folder = files
    want = pattern(2 * MIB + 17, 0)
    with fs.open(f"{folder}/file0") as opened:
        assert opened.readable() and opened.seekable() and not opened.writable()
        assert opened.read(10) == want[:10] and opened.tell() == 10
        assert opened.seek(-7, io.SEEK_END) == 2 * MIB + 10 and opened.read() == want[-7:]
        assert opened.seek(3) == 3 and opened.seek(4, io.SEEK_CUR) == 7
        part = bytearray(100_000)
        assert opened.readinto(part) == 100_000 and part == want[7:100_007]
        with pytest.raises(ValueError):
            opened.seek(-1)
        with pytest.raises(io.UnsupportedOperation):
            opened.write(b"x")
    with pytest.raises(ValueError):
        opened.read()
    with fs.open(f"{folder}/new", "wb") as out:
        out.write(b"one\ntwo\n")
    with fs.open(f"{folder}/new", "r") as lines:
        assert list(lines) == ["one\n", "two\n"]
    fs.rm(f"{folder}/new")
    assert not fs.exists(f"{folder}/new")


def test_a_compressed_file_is_opened_by_position_too(folder):
    import gzip

    (folder / "a.gz").write_bytes(gzip.compress(b"words"))
    system = DatapipesFileSystem()
    with system.open(str(folder / "a.gz"), "rb", None, None, "gzip") as file:
        assert file.read() == b"words"
    with system.open(str(folder / "a.gz"), compression="infer") as file:
        assert file.read() == b"words"
