"""Loads a safetensors file by this package and by others, in turns; each load in a new process.

    python load.py FOLDER [--turns N] [--mib N] [--tensors N]

Prints a table of medians: the time until the loader returned, the time until a byte of every page
was read as well (some loaders only map the file), and the CPU seconds (user and system) of both.
Warm: the page cache has the file. Cold: it was told to forget it. In a virtual machine, free memory
may have been given back to the host, and its first touch costs more than the load; with --touched,
each process touches and frees as much memory just before.
Loaders that are not installed are named.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

HERE = {
    "datapipes": "import datapipes as dp; call = lambda p: dp.load_file(p)",
    "datapipes, torch": "import datapipes as dp, datapipes.torch; call = lambda p: dp.load_file(p, framework='torch')",
    "datapipes, mapped=False": "import datapipes as dp; call = lambda p: dp.load_file(p, mapped=False)",
    "datapipes, File.read": """
import datapipes as dp, numpy as np
def call(p):
    with dp.open(p) as file:
        return np.asarray(file.read())
""",
    "safetensors.numpy": "from safetensors.numpy import load_file; call = lambda p: load_file(p)",
    "safetensors.torch": "from safetensors.torch import load_file; call = lambda p: load_file(p)",
    "numpy.fromfile": "import numpy as np; call = lambda p: np.fromfile(p, np.uint8)",
    "mmap, MAP_POPULATE": """
import mmap, numpy as np
def call(p):
    with open(p, "rb") as file:
        flags = mmap.MAP_PRIVATE | getattr(mmap, "MAP_POPULATE", 0x8000)
        return np.frombuffer(mmap.mmap(file.fileno(), 0, flags, mmap.PROT_READ), np.uint8)
""",
    "numpy.memmap, copied": "import numpy as np; call = lambda p: np.array(np.memmap(p, np.uint8, 'r'))",
    "runai-model-streamer": """
from runai_model_streamer import SafetensorsStreamer
def call(p):
    with SafetensorsStreamer() as s:
        s.stream_files([p])
        return {name: tensor.clone() for name, tensor in s.get_tensors()}
""",
    "fastsafetensors, no GDS": """
from fastsafetensors import SafeTensorsFileLoader, SingleGroup
def call(p):
    loader = SafeTensorsFileLoader(SingleGroup(), "cpu", nogds=True)
    loader.add_filenames({0: [p]})
    held = loader.copy_files_to_device()
    return [held.get_tensor(name) for name in held.key_to_rank_lidx], held, loader
""",
    "kvikio, no GDS": """
import kvikio, kvikio.defaults, numpy as np, os
kvikio.defaults.set("compat_mode", kvikio.CompatMode.ON)
kvikio.defaults.set("num_threads", os.cpu_count())
def call(p):
    out = np.empty(os.path.getsize(p), np.uint8)
    with kvikio.CuFile(p, "r") as f:
        assert f.read(out) == out.nbytes
    return out
""",
    "nixl, POSIX": """
import os, numpy as np
try:
    from nixl._api import nixl_agent, nixl_agent_config
except ImportError:
    from nixl_cu12._api import nixl_agent, nixl_agent_config
agent = nixl_agent("a", nixl_agent_config(backends=[]))
agent.create_backend("POSIX")
def call(p):
    size = os.path.getsize(p)
    out, fd = np.empty(size, np.uint8), os.open(p, os.O_RDONLY)
    part = 16 << 20
    parts = [(at, min(part, size - at)) for at in range(0, size, part)]
    mine = [(out.ctypes.data + at, n, 0) for at, n in parts]
    theirs = [(at, n, fd) for at, n in parts]
    a = agent.register_memory([(*of, "") for of in mine], "DRAM")
    b = agent.register_memory([(*of, "") for of in theirs], "FILE")
    handle = agent.initialize_xfer("READ", agent.get_xfer_descs(mine, "DRAM"), agent.get_xfer_descs(theirs, "FILE"), "a")
    state = agent.transfer(handle)
    while state == "PROC":
        state = agent.check_xfer_state(handle)
    assert state == "DONE", state
    agent.release_xfer_handle(handle)
    os.close(fd)
    return out
""",
}

CHILD = """
import json, mmap, os, resource, sys, time
{setup}
size = os.path.getsize(sys.argv[1]) * 5 // 4
if {touched}:
    before = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    before.madvise(mmap.MADV_HUGEPAGE)
    for at in range(0, size, 4096):
        before[at] = 1
    before.close()
path = sys.argv[1]
def cpu():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
def use(x):
    if isinstance(x, dict):
        x = list(x.values())
    if isinstance(x, (list, tuple)):
        return sum(map(use, x))
    if hasattr(x, "ctypes"):
        return int(x.reshape(-1).view("u1")[::4096].sum())
    if hasattr(x, "data_ptr"):
        import torch
        return int(x.reshape(-1).view(torch.uint8)[::4096].sum())
    return 0
c, t = cpu(), time.perf_counter()
kept = call(path)
loaded = time.perf_counter() - t
assert use(kept) > 0
print(json.dumps([loaded, time.perf_counter() - t, cpu() - c]), flush=True)
os._exit(0)
"""


def make(path: Path, mib: int, tensors: int) -> None:
    """A file of F32 tensors, whose payload does not begin at a block."""
    if path.exists():
        return
    each = (mib << 20) // tensors // 4 * 4
    header = {
        f"layer.{i}.weight": {"dtype": "F32", "shape": [each // 4], "data_offsets": [i * each, (i + 1) * each]}
        for i in range(tensors)
    }
    text = json.dumps(header).encode()
    text += b" " * (-(len(text) + 8) % 8)
    with open(path, "wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for _ in range(tensors):
            out.write(os.urandom(each))
        out.flush()
        os.fsync(out.fileno())


def prepare(path: Path, warm: bool) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    if warm:
        while os.read(descriptor, 1 << 24):
            pass
    else:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def load(name: str, path: Path, touched: bool) -> list[float] | str:
    child = CHILD.format(setup=HERE[name], touched=touched)
    environment = {**os.environ, "OMP_NUM_THREADS": str(os.cpu_count()), "RUNAI_STREAMER_LOG_TO_STDERR": "0"}
    command = [sys.executable, "-c", child, str(path)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        return "60 s were not enough"
    lines = [line for line in done.stdout.splitlines() if line.startswith("[")]
    if done.returncode != 0 or not lines:
        return (done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1]
    found: list[float] = json.loads(lines[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--tensors", type=int, default=126)
    parser.add_argument("--only", default="", help="names that begin so, separated by commas")
    parser.add_argument("--touched", action="store_true", help="touch and free as much memory before each load")
    parser.add_argument("--temperature", choices=["warm", "cold", "both"], default="both")
    of = parser.parse_args()
    path = of.folder / f"model-{of.mib}-{of.tensors}.safetensors"
    make(path, of.mib, of.tensors)
    names = [name for name in HERE if not of.only or any(name.startswith(w) for w in of.only.split(","))]
    for warm in (True, False):
        word = "warm" if warm else "cold"
        if of.temperature not in ("both", word):
            continue
        found: dict[str, list[list[float]]] = {name: [] for name in names}
        broken: dict[str, str] = {}
        for turn in range(of.turns):
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                if name in broken:
                    continue
                prepare(path, warm)
                took = load(name, path, of.touched)
                if isinstance(took, str):
                    broken[name] = took
                else:
                    found[name].append(took)
        print(f"\n{word}: {of.mib} MiB, {of.tensors} tensors, {of.turns} turns\n")
        print("| loader | loaded, wall s | and every page read, wall s | least to most | CPU s |")
        print("|---|---|---|---|---|")
        for name, all_of in found.items():
            if name in broken:
                continue
            loaded, used, cpus = (statistics.median(one) for one in zip(*all_of, strict=True))
            walls = [of_one[1] for of_one in all_of]
            print(f"| {name} | {loaded:.2f} | {used:.2f} | {min(walls):.2f} to {max(walls):.2f} | {cpus:.2f} |")
        for name, why in broken.items():
            print(f"\nnot measured: {name}: {why}")


main()
