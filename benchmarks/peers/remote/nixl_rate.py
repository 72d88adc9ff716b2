"""Puts and gets by NIXL's UCX backend: what `remote_rate` of `datapipes-net` measures of ours, with the same lines of output.

    python nixl_rate.py [SIZE...]

Two processes of this machine, each an agent. The client polls, as NIXL's callers do; the time of one transfer is the median, and the
rate is that of 16 under way. CPU seconds are those of both processes, by GiB moved. `UCX_TLS` chooses the way (`tcp`; `shm`).
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import sys
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from nixl._api import nixl_agent, nixl_agent_config

SIZES = [64, 4096, 64 << 10, 1 << 20, 16 << 20, 64 << 20]
DEPTH = 16
HOLDER, CLIENT = "holder", "client"


def agent_with(name: str, memory: np.ndarray) -> Any:
    agent = nixl_agent(name, nixl_agent_config(backends=["UCX"]))
    agent.register_memory([(memory.ctypes.data, memory.nbytes, 0, "")], "DRAM")
    return agent


def hold(length: int, client: Connection) -> None:
    """Exports memory until the client has gone."""
    memory = np.zeros(length, np.uint8)
    agent = agent_with(HOLDER, memory)
    client.send((agent.get_agent_metadata(), memory.ctypes.data))
    agent.add_remote_agent(client.recv())
    while client.recv():
        client.send(time.process_time())


class Transfers:
    def __init__(self, length: int, holder: Connection) -> None:
        self.memory = np.zeros(length, np.uint8)
        self.agent = agent_with(CLIENT, self.memory)
        metadata, self.there = holder.recv()
        holder.send(self.agent.get_agent_metadata())
        self.agent.add_remote_agent(metadata)

    def prepare(self, verb: str, at: int, size: int) -> Any:
        """A transfer of these bytes, which can be made again and again."""
        here = self.agent.get_xfer_descs([(self.memory.ctypes.data + at, size, 0)], "DRAM")
        there = self.agent.get_xfer_descs([(self.there + at, size, 0)], "DRAM")
        return self.agent.initialize_xfer(verb, here, there, HOLDER)

    def finish(self, handle: Any, state: str) -> None:
        while state == "PROC":
            state = self.agent.check_xfer_state(handle)
        assert state == "DONE", state

    def latency_us(self, verb: str, size: int) -> float:
        handle, times = self.prepare(verb, 0, size), []
        for _ in range(min(max((64 << 20) // max(size, 16 << 10), 20), 4000)):
            begun = time.perf_counter()
            self.finish(handle, self.agent.transfer(handle))
            times.append(time.perf_counter() - begun)
        self.agent.release_xfer_handle(handle)
        return statistics.median(times) * 1e6

    def rate(self, verb: str, size: int) -> tuple[float, int]:
        """Bytes a second, and bytes."""
        places = min(max(self.memory.nbytes // size, 1), DEPTH)
        handles = [self.prepare(verb, place * size, size) for place in range(places)]
        rounds = min(max((128 << 20) // size, 16), 8000)
        begun = time.perf_counter()
        states = [self.agent.transfer(handle) for handle in handles]
        for number in range(places, rounds):
            place = number % places
            self.finish(handles[place], states[place])
            states[place] = self.agent.transfer(handles[place])
        for handle, state in zip(handles, states, strict=True):
            self.finish(handle, state)
        seconds = time.perf_counter() - begun
        for handle in handles:
            self.agent.release_xfer_handle(handle)
        return rounds * size / seconds, rounds * size


def main() -> None:
    sizes = [int(size) for size in sys.argv[1:]] or SIZES
    length = max(*sizes, 4 << 20)
    holder, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=hold, args=(length, there))
    process.start()
    transfers = Transfers(length, holder)

    def spent() -> float:
        holder.send(True)
        return time.process_time() + float(holder.recv())

    for size in sizes:
        for name, verb in (("put", "WRITE"), ("get", "READ")):
            before = spent()
            latency = transfers.latency_us(verb, size)
            rate, moved = transfers.rate(verb, size)
            moved += min(max((64 << 20) // max(size, 16 << 10), 20), 4000) * size
            cpu = (spent() - before) / moved * (1 << 30)
            print(f"{name} {size}: {latency:.2f} us, {rate / 1e9:.3f} GB/s, {cpu:.2f} CPU s a GiB", flush=True)
    # What was put is there: the holder's memory is read back.
    transfers.memory[:] = 7
    handle = transfers.prepare("WRITE", 0, 1 << 20)
    transfers.finish(handle, transfers.agent.transfer(handle))
    transfers.memory[:] = 0
    handle = transfers.prepare("READ", 0, 1 << 20)
    transfers.finish(handle, transfers.agent.transfer(handle))
    assert (transfers.memory[: 1 << 20] == 7).all() and not transfers.memory[1 << 20 :].any()
    holder.send(False)
    process.join()
    os._exit(0)


main()
