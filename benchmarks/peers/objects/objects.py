"""Objects of an S3 server of this machine: `dpipe` beside s5cmd and boto3, in turns.

    python objects.py --server VERSITYGW --s5cmd S5CMD --dpipe DPIPE [--folder /dev/shm/objects] [--bytes 4G] [--turns 3]

Wall seconds, processor seconds (user and system, of the client alone) and peak memory of each client; medians of the turns after
one that does not count. All bytes are in the memory of the machine (tmpfs), on both sides. The sort is of lines: from one object
to another, beside copying down, GNU sort and copying up.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

PORT = 17070
SECRETS = {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench-secret", "AWS_REGION": "us-east-1"}
ENDPOINT = f"http://127.0.0.1:{PORT}"
ENVIRONMENT = {**os.environ, **SECRETS, "AWS_ENDPOINT_URL": ENDPOINT, "AWS_ALLOW_HTTP": "true", "S3_ENDPOINT_URL": ENDPOINT}
CLASSIC = """
import sys, boto3
from boto3.s3.transfer import TransferConfig
verb, key, path = sys.argv[1:]
config = TransferConfig(preferred_transfer_client="classic")
client = boto3.client("s3")
client.download_file("box", key, path, Config=config) if verb == "get" else client.upload_file(path, "box", key, Config=config)
"""
# What `boto3.client("s3")` makes where CRT is preferred, but for `use_ssl`, which boto3 sets for every endpoint.
CRT = """
import os, sys, botocore.session
from s3transfer.crt import BotocoreCRTCredentialsWrapper, BotocoreCRTRequestSerializer, CRTTransferManager, create_s3_crt_client
verb, key, path = sys.argv[1:]
session = botocore.session.get_session()
region, endpoint = os.environ["AWS_REGION"], os.environ["AWS_ENDPOINT_URL"]
credentials = BotocoreCRTCredentialsWrapper(session.get_credentials()).to_crt_credentials_provider()
crt = create_s3_crt_client(region, credentials, use_ssl=False)
serializer = BotocoreCRTRequestSerializer(session, {"region_name": region, "endpoint_url": endpoint})
with CRTTransferManager(crt, serializer) as manager:
    (manager.download("box", key, path) if verb == "get" else manager.upload(path, "box", key)).result()
"""


def size_of(text: str) -> int:
    return int(float(text[:-1]) * {"M": 1 << 20, "G": 1 << 30}[text[-1]]) if text[-1] in "MG" else int(text)


def run(words: list[str]) -> tuple[float, float, float]:
    """Wall seconds, processor seconds and peak MiB of a program and of what it waited for."""
    begun = time.monotonic()
    child = subprocess.Popen(words, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    said = child.stderr.read()
    _, status, usage = os.wait4(child.pid, 0)
    wall = time.monotonic() - begun
    if status != 0:
        raise RuntimeError(f"{words[:4]}: status {status}: {said[-300:].decode(errors='replace')}")
    return wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def shell(line: str) -> list[str]:
    return ["bash", "-euc", line]


def main() -> None:
    options = argparse.ArgumentParser()
    for name in ("server", "s5cmd", "dpipe"):
        options.add_argument(f"--{name}", required=True)
    options.add_argument("--folder", default="/dev/shm/objects")
    options.add_argument("--bytes", default="4G")
    options.add_argument("--sort-bytes", default="1G")
    options.add_argument("--turns", type=int, default=3)
    options.add_argument("--only", default="")
    chosen = options.parse_args()
    folder = Path(chosen.folder)
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "buckets" / "box").mkdir(parents=True)
    (folder / "side").mkdir()
    server = subprocess.Popen(
        [chosen.server, "--port", f"127.0.0.1:{PORT}", "--access", "bench", "--secret", "bench-secret", "--quiet", "posix", "--sidecar", str(folder / "side"),
         str(folder / "buckets")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        time.sleep(2)
        jobs = contestants(chosen, folder)
        for group in jobs:
            if chosen.only and group not in chosen.only.split(","):
                continue
            prepare(group, chosen, folder)
            compare(group, jobs[group], chosen, folder)
    finally:
        server.terminate()
        server.wait()
        shutil.rmtree(folder, ignore_errors=True)


def fill(file: Path, size: int) -> None:
    with file.open("wb") as out:
        block = os.urandom(1 << 20)
        for at in range(size >> 20):
            out.write(at.to_bytes(8, "little") + block[8:])


def prepare(group: str, chosen: argparse.Namespace, folder: Path) -> None:
    """Make what a group needs, and remove what others left: all of it is memory."""
    s5cmd, file = chosen.s5cmd, folder / "file"
    subprocess.run([s5cmd, "rm", "s3://box/*"], env=ENVIRONMENT, capture_output=True)
    (folder / "down").unlink(missing_ok=True)
    if group == "sort":
        run([chosen.dpipe, "gen", "lines", "--size", chosen.sort_bytes, str(file)])
        run([s5cmd, "cp", str(file), "s3://box/lines"])
    elif not file.exists() or group == "put":
        fill(file, size_of(chosen.bytes))
    if group in ("get", "memory"):
        run([s5cmd, "cp", str(file), "s3://box/obj"])
    if group != "put":
        file.unlink()


def between(group: str, chosen: argparse.Namespace, folder: Path) -> None:
    """Remove what a client made."""
    (folder / "down").unlink(missing_ok=True)
    if group == "put":
        subprocess.run([chosen.s5cmd, "rm", "s3://box/up"], env=ENVIRONMENT, capture_output=True)


def verify(group: str, chosen: argparse.Namespace, folder: Path) -> None:
    """Look at what a client made: its length, and the number in each of its blocks."""
    made = {"get": folder / "down", "put": folder / "buckets" / "box" / "up"}.get(group)
    if made is None:
        return
    size = size_of(chosen.bytes) >> 20
    with made.open("rb") as bytes_of:
        for at in range(size):
            bytes_of.seek(at << 20)
            if bytes_of.read(8) != at.to_bytes(8, "little"):
                raise RuntimeError(f"{made}: block {at} is another one")
    if made.stat().st_size != size << 20:
        raise RuntimeError(f"{made}: {made.stat().st_size} bytes")


def contestants(chosen: argparse.Namespace, folder: Path) -> dict[str, dict[str, list[str]]]:
    file, down = folder / "file", folder / "down"
    dpipe, s5cmd = chosen.dpipe, [chosen.s5cmd]
    classic, crt = ([sys.executable, "-c", program] for program in (CLASSIC, CRT))
    by_hand = (f"{chosen.s5cmd} cp s3://box/lines {folder}/in; {{sort}}; rm {folder}/in; {chosen.s5cmd} cp {folder}/out s3://box/sorted; rm {folder}/out")
    return {
        "get": {
            "dpipe copy s3://box/obj FILE": [dpipe, "copy", "s3://box/obj", str(down)],
            "s5cmd cp": [*s5cmd, "cp", "s3://box/obj", str(down)],
            "boto3, classic": [*classic, "get", "obj", str(down)],
            "boto3, crt": [*crt, "get", "obj", str(down)],
        },
        "memory": {
            "dpipe copy s3://box/obj dram:": [dpipe, "copy", "s3://box/obj", "dram:"],
        },
        "put": {
            "dpipe copy FILE s3://box/up": [dpipe, "copy", str(file), "s3://box/up"],
            "s5cmd cp": [*s5cmd, "cp", str(file), "s3://box/up"],
            "boto3, classic": [*classic, "put", "up", str(file)],
            "boto3, crt": [*crt, "put", "up", str(file)],
        },
        "sort": {
            "dpipe sort s3://box/lines -o s3://box/sorted -S 256M": [dpipe, "sort", "s3://box/lines", "-o", "s3://box/sorted", "-S", "256M", "-T", str(folder)],
            "s5cmd cp; dpipe sort -S 256M; s5cmd cp": shell(by_hand.format(sort=f"{dpipe} sort {folder}/in -o {folder}/out -S 256M -T {folder}")),
            "s5cmd cp; sort -S 256M --parallel=2; s5cmd cp": shell(by_hand.format(sort=f"LC_ALL=C sort {folder}/in -o {folder}/out -S 256M --parallel=2 -T {folder}")),
        },
    }


def compare(group: str, programs: dict[str, list[str]], chosen: argparse.Namespace, folder: Path) -> None:
    results: dict[str, list[tuple[float, float, float]]] = {name: [] for name in programs}
    for turn in range(chosen.turns + 1):
        for name, words in programs.items():
            if results[name] is None:
                continue
            between(group, chosen, folder)
            try:
                result = run(words)
                verify(group, chosen, folder)
            except RuntimeError as error:
                print(f"failed: {name}: {error}", flush=True)
                results[name] = None
                continue
            print(f"turn {turn}: {name}: {result}", file=sys.stderr, flush=True)
            if turn > 0:
                results[name].append(result)
    print(f"\n## {group}\n\n| client | wall s | CPU s | peak MiB |\n|---|---|---|---|")
    for name, rounds in results.items():
        if not rounds:
            print(f"| `{name}` | failed | | |")
            continue
        walls, cpus, peaks = zip(*rounds)
        each = lambda values: f"{statistics.median(values):.2f} ({' '.join(f'{v:.2f}' for v in values)})"
        print(f"| `{name}` | {each(walls)} | {each(cpus)} | {statistics.median(peaks):.0f} |", flush=True)


if __name__ == "__main__":
    main()
