"""Loads a safetensors file into the memory of a GPU, by this package and by others, in turns.

    python load.py FOLDER [--turns N] [--layers N] [--only NAMES] [--temperature cold|warm|both]

Each load is made by a new process, forked from one that has imported torch and touched no GPU. It
sets its loader up, makes the context of the driver and a first tensor, and then takes the time and
the processor time (user and system, of all its threads and children) until the tensors are on the
device. Each tensor is then checked there, by a sum over its bytes that depends on their places.
Memory is the most that was resident beside what was before the load. Cold: the page cache was
dropped (as root), or told to forget the file. Warm: the file was read once before.

A warm process loads twice: the second load finds what its loader keeps.

Loaders that are not installed, or fail, are named with the reason.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import signal
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

LOADERS = {
    "datapipes": """
import datapipes as dp, datapipes.torch
def call(p):
    loaded = dp.load_file(p, device="cuda:0")
    say(lambda: str(loaded.report()))
    return loaded
""",
    "safetensors.torch": """
from safetensors.torch import load_file
call = lambda p: load_file(p, device="cuda:0")
""",
    "fastsafetensors": """
from fastsafetensors import SafeTensorsFileLoader, SingleGroup
def call(p):
    loader = SafeTensorsFileLoader(SingleGroup(), "cuda:0", nogds=False)
    loader.add_filenames({0: [p]})
    held = loader.copy_files_to_device()
    say(lambda: "copier " + loader.copier_class.__name__)
    return Kept({name: held.get_tensor(name) for name in held.key_to_rank_lidx}, held, loader)
""",
    "fastsafetensors, no GDS": """
from fastsafetensors import SafeTensorsFileLoader, SingleGroup
def call(p):
    loader = SafeTensorsFileLoader(SingleGroup(), "cuda:0", nogds=True)
    loader.add_filenames({0: [p]})
    held = loader.copy_files_to_device()
    return Kept({name: held.get_tensor(name) for name in held.key_to_rank_lidx}, held, loader)
""",
    "runai-model-streamer": """
from runai_model_streamer import SafetensorsStreamer
def call(p):
    with SafetensorsStreamer() as s:
        s.stream_files([p], device="cuda:0")
        return dict(s.get_tensors())
""",
    "kvikio, compat": """
import kvikio, kvikio.defaults
kvikio.defaults.set("compat_mode", kvikio.CompatMode.ON)
kvikio.defaults.set("num_threads", min(os.cpu_count(), 16))
def call(p):
    header, at = header_of(p)
    size = os.path.getsize(p) - at
    whole = torch.empty(size, dtype=torch.uint8, device="cuda:0")
    torch.cuda.current_stream().synchronize()
    with kvikio.CuFile(p, "r") as f:
        assert f.read(whole, size, at) == size
    return tensors_of(whole, header)
""",
}
LOADERS["datapipes, once more"] = LOADERS["datapipes"]
"""The same code: its distance from the first shows the noise."""

DTYPES = {"BF16": torch.bfloat16, "F32": torch.float32}


class Kept(dict[str, Any]):
    """Tensors, with what must outlive them."""

    def __init__(self, tensors: dict[str, Any], *kept: Any) -> None:
        super().__init__(tensors)
        self.kept = kept


def header_of(path: str) -> tuple[dict[str, Any], int]:
    """The tensors of a header, and the offset of the first byte."""
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    return header, 8 + length


def tensors_of(whole: Any, header: dict[str, Any]) -> dict[str, Any]:
    """Tensors over the bytes of a file."""
    found = {}
    for name, of in header.items():
        begin, end = of["data_offsets"]
        found[name] = whole[begin:end].view(DTYPES[of["dtype"]]).reshape(of["shape"])
    return found


def digest(tensor: Any) -> int:
    """A sum over the 8-byte words of a tensor on the device, each times an odd number of its place."""
    words = tensor.contiguous().reshape(-1).view(torch.uint8).view(torch.int64)
    total, part = 0, 1 << 24
    for at in range(0, len(words), part):
        some = words[at : at + part]
        places = torch.arange(2 * at + 1, 2 * (at + len(some)) + 1, 2, device=some.device)
        total += int((some * places).sum())
    return total % (1 << 64)


def shapes(layers: int) -> dict[str, tuple[str, list[int]]]:
    """The tensors of a model of the size of Llama 3 8B with so many layers (of 32)."""
    found: dict[str, tuple[str, list[int]]] = {}
    for layer in range(layers):
        at = f"model.layers.{layer}."
        found[at + "input_layernorm.weight"] = ("BF16", [4096])
        for part, rows, columns in (
            ("self_attn.q_proj", 4096, 4096),
            ("self_attn.k_proj", 1024, 4096),
            ("self_attn.v_proj", 1024, 4096),
            ("self_attn.o_proj", 4096, 4096),
            ("mlp.gate_proj", 14336, 4096),
            ("mlp.up_proj", 14336, 4096),
            ("mlp.down_proj", 4096, 14336),
        ):
            found[f"{at}{part}.weight"] = ("BF16", [rows, columns])
        found[at + "post_attention_layernorm.weight"] = ("F32", [4096])
    return found


def make(path: Path, layers: int) -> dict[str, int]:
    """Writes the file, of random bytes, in a child, and returns the sums of its tensors."""
    sums = path.with_suffix(".json")
    if not sums.exists():
        child = os.fork()
        if child == 0:
            write(path, sums, layers)
            os._exit(0)
        if os.waitpid(child, 0)[1] != 0:
            sys.exit("the file could not be made")
    found: dict[str, int] = json.loads(sums.read_text())
    return found


def write(path: Path, sums: Path, layers: int) -> None:
    header, at = {}, 0
    for name, (kind, shape) in shapes(layers).items():
        length = torch.Size(shape).numel() * DTYPES[kind].itemsize
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [at, at + length]}
        at += length
    text = json.dumps(header).encode()
    text += b" " * (-(len(text) + 8) % 8)
    found = {}
    with open(path, "wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for name, of in header.items():
            begin, end = of["data_offsets"]
            words = torch.randint(-(1 << 63), (1 << 63) - 1, ((end - begin) // 8,), device="cuda:0")
            found[name] = digest(words)
            out.write(memoryview(words.cpu().numpy()).cast("B"))
        out.flush()
        os.fsync(out.fileno())
    sums.write_text(json.dumps(found))


def prepare(path: Path, warm: bool) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    if warm:
        buffer = bytearray(1 << 24)
        while os.readv(descriptor, [buffer]):
            pass
    else:
        os.fsync(descriptor)
        try:
            Path("/proc/sys/vm/drop_caches").write_text("3")
        except OSError:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def resident(which: str) -> int:
    """VmRSS or VmHWM in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(which))


def cpu() -> float:
    each = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(used.ru_utime + used.ru_stime for used in each)


def measure(setup: str, path: str, sums: dict[str, int], times: int) -> dict[str, Any]:
    """In a process of its own: what a load takes. Of several, the later ones find the loader used."""
    said: list[Any] = []
    of: dict[str, Any] = {**globals(), "say": said.append}
    exec(setup, of)
    torch.cuda.init()
    torch.ones(1, device="cuda:0").sum().item()
    found: dict[str, Any] = {"loads": []}
    for _ in range(times):
        # From here on the most that was resident is counted anew.
        Path("/proc/self/clear_refs").write_text("5")
        before, used, began = resident("VmRSS"), cpu(), time.perf_counter()
        loaded = of["call"](path)
        torch.cuda.synchronize()
        wall, used = time.perf_counter() - began, cpu() - used
        found["loads"].append([wall, used, max(resident("VmHWM") - before, 0)])
        wrong = [name for name, total in sums.items() if digest(loaded[name]) != total]
        if wrong or set(loaded) != set(sums):
            found["error"] = f"wrong bytes in {len(wrong)} tensors, the first {wrong[:1]}"
            break
        found["said"] = said[-1]() if said else ""
        del loaded
        said.clear()
        torch.cuda.empty_cache()
    return found


def load(name: str, path: Path, sums: dict[str, int], times: int) -> dict[str, Any]:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        signal.alarm(90)
        try:
            found = measure(LOADERS[name], str(path), sums, times)
        except BaseException as why:  # Of whatever kind: it is told.
            found = {"error": f"{type(why).__name__}: {why}"}
        with os.fdopen(writer, "w") as out:
            json.dump(found, out)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as results:
        text = results.read()
    _, status = os.waitpid(child, 0)
    found: dict[str, Any] = json.loads(text) if text else {"error": f"it ended with {status}"}
    return found


def machine() -> str:
    """What the record says of the machine, asked in a child: this process touches no GPU."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "?")
    asked = "name,driver_version,pcie.link.gen.current,pcie.link.width.current"
    gpu = os.popen(f"nvidia-smi --query-gpu={asked} --format=csv,noheader").read().strip()
    return f"{model}, {os.cpu_count()} cores, Linux {platform.release()}, torch {torch.__version__}, {gpu}"


def show(title: str, size: int, found: dict[str, list[list[float]]]) -> None:
    """Prints a table of medians."""
    print(f"\n{title}\n\n| loader | wall s | least to most | CPU s | GB/s | memory, MB | turns |")
    print("|---|---|---|---|---|---|---|")
    for name, loads in found.items():
        if loads:
            wall, used, memory = (statistics.median(one) for one in zip(*loads, strict=True))
            walls = [one[0] for one in loads]
            spread = f"{min(walls):.3f} to {max(walls):.3f}"
            rate = size / wall / 1e9
            print(f"| {name} | {wall:.3f} | {spread} | {used:.2f} | {rate:.1f} | {memory / 1e6:.0f} | {len(loads)} |")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--layers", type=int, default=10, help="419 MB each")
    parser.add_argument("--only", default="", help="names that begin so, separated by semicolons")
    parser.add_argument("--temperature", choices=["warm", "cold", "both"], default="both")
    parser.add_argument("--until", type=float, default=1e9, help="begin no turn after so many seconds")
    of = parser.parse_args()
    began = time.monotonic()
    path = of.folder / f"model-{of.layers}.safetensors"
    print(machine(), flush=True)
    sums = make(path, of.layers)
    size = path.stat().st_size
    print(f"{size / 1e9:.2f} GB, {len(sums)} tensors, made in {time.monotonic() - began:.0f} s", flush=True)
    names = [name for name in LOADERS if not of.only or any(name.startswith(w) for w in of.only.split(";"))]
    for word in ("warm", "cold"):
        if of.temperature not in ("both", word):
            continue
        found: dict[str, list[list[list[float]]]] = {name: [] for name in names}
        times = 2 if word == "warm" else 1
        broken: dict[str, str] = {}
        said: dict[str, str] = {}
        for turn in range(of.turns):
            if time.monotonic() - began > of.until:
                break
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                if name in broken:
                    continue
                prepare(path, word == "warm")
                took = load(name, path, sums, times)
                if "error" in took:
                    broken[name] = took["error"]
                    continue
                found[name].append(took["loads"])
                said[name] = took["said"]
                print(f"  {word} {turn} {name}: {took['loads']}", flush=True)
        for at in range(times):
            nth = {name: [one[at] for one in loads] for name, loads in found.items()}
            show(f"{word}, load {at + 1} of a process", size, nth)
        for name, why in broken.items():
            print(f"\nnot measured: {name}: {why}")
        for name, words in said.items():
            print(f"\n{name}: {words}" if words else "", end="")
        print(flush=True)


if __name__ == "__main__":
    main()
