"""Idle clients, clients that leave, killed workers: others are answered, health at once.

    python benchmarks/serving_clients.py [--idle 5000] [--leaving 1000] [--kills 200] [--grpc]

The server is a process of its own, ``placewright requests serve``, with two workers. Four clients
send requests one after another all the time, each request on a connection of its own, and another
process asks for health. With ``--grpc`` they are Triton's clients over gRPC, a connection each.
Meanwhile so many connections are opened that ask for nothing, so many
requests break off in mid-body, one every two milliseconds, and workers are killed, one every
quarter of a second.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from harness import run, server
from serving_malformed import right

CLIENTS, LEAVE_S, KILL_S = 4, 0.002, 0.25
BODY = json.dumps(right()).encode()


def ask(address: str, method: str, path: str, body: bytes | None = None) -> tuple[int, Any]:
    """Status and JSON of an answer on a connection of its own."""
    link = http.client.HTTPConnection(address, timeout=30)
    try:
        link.request(method, path, body)
        answer = link.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        link.close()


class Others:
    """Clients that go on whatever happens; outcomes, and seconds of each health answer."""

    def __init__(self, address: str, grpc: str) -> None:
        self.address, self.grpc, self.ends = address, grpc, threading.Event()
        self.outcomes, self.health_s = Counter[str](), list[float]()
        # A thread of this process would wait for those that open connections.
        command = [sys.executable, __file__, "--health", address]
        self.asker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        works = [*[self._call if grpc else self._infer] * CLIENTS, self._health]
        self.threads = [threading.Thread(target=work) for work in works]
        for thread in self.threads:
            thread.start()

    def _infer(self) -> None:
        while not self.ends.is_set():
            try:
                status, answer = ask(self.address, "POST", "/v2/models/digits/infer", BODY)
                self.outcomes[str(status) if status == 200 else f"{status} {answer}"] += 1
            except (OSError, http.client.HTTPException) as error:
                self.outcomes[f"{type(error).__name__}: {error}"] += 1
            time.sleep(0.02)

    def _call(self) -> None:
        from tritonclient import grpc as triton
        from tritonclient.utils import InferenceServerException

        tensor = right()["inputs"][0]
        given = triton.InferInput(tensor["name"], tensor["shape"], tensor["datatype"])
        given.set_data_from_numpy(np.array(tensor["data"], np.float32).reshape(tensor["shape"]))
        with triton.InferenceServerClient(self.grpc) as client:
            while not self.ends.is_set():
                try:
                    client.infer("digits", [given])
                    self.outcomes["200"] += 1
                except InferenceServerException as error:
                    self.outcomes[str(error)] += 1
                time.sleep(0.02)

    def _health(self) -> None:
        assert self.asker.stdout is not None
        for line in self.asker.stdout:
            self.health_s.append(float(line))
            if self.ends.is_set():
                self.asker.kill()
        self.asker.wait()

    def report(self, what: str, pid: int) -> bool:
        """Print what has happened since the last report; whether all were answered."""
        failed = {k: n for k, n in self.outcomes.items() if k != "200"}
        slowest = sorted(self.health_s)
        usual_s = slowest[int(0.99 * (len(slowest) - 1))]
        print(
            f"{what}: {self.outcomes['200']} of {self.outcomes.total()} answered {failed or ''}, "
            f"health of {len(slowest)} within {1e3 * slowest[-1]:.0f} ms, "
            f"99 % within {1e3 * usual_s:.0f} ms, "
            f"{resident_mb(pid):.0f} MB, {len(os.listdir(f'/proc/{pid}/fd'))} files",
            flush=True,
        )
        self.outcomes, self.health_s = Counter(), []
        return not failed


def resident_mb(pid: int) -> float:
    """Memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / 1e6


def print_health(address: str) -> None:
    """Print the seconds of each answer, for ever; one that fails counts as a minute."""
    while True:
        begun_s = time.monotonic()
        try:
            ask(address, "GET", "/v2/health/live")
            took_s = time.monotonic() - begun_s
        except (OSError, http.client.HTTPException):
            took_s = 60.0
        print(took_s, flush=True)
        time.sleep(0.05)


def hold(host: str, port: int, count: int) -> None:
    """Connections that ask for nothing, for some seconds."""
    links = []
    for _ in range(count):
        with suppress(OSError):
            links.append(socket.create_connection((host, port), timeout=10))
    time.sleep(3)
    for link in links:
        link.close()


def leave(host: str, port: int, count: int) -> None:
    """Requests whose body breaks off."""
    head = (
        b"POST /v2/models/digits/infer HTTP/1.1\r\nhost: localhost\r\ncontent-length: 900\r\n\r\n"
    )
    for k in range(count):
        with suppress(OSError), socket.create_connection((host, port), timeout=10) as link:
            link.sendall(head + BODY[: 1 + k % 200])
        time.sleep(LEAVE_S)


def kill_workers(address: str, count: int, seed: int) -> None:
    """Kill workers that are up."""
    rng = random.Random(seed)
    for _ in range(count):
        status = ask(address, "GET", "/status.json")[1]
        up = [each["pid"] for each in status["servers"] if each["up"] and each["pid"]]
        if up:
            with suppress(ProcessLookupError):
                os.kill(rng.choice(up), signal.SIGKILL)
        time.sleep(KILL_S)


def main(
    *,
    idle: int = 5000,
    leaving: int = 1000,
    kills: int = 200,
    grpc: bool = False,
    health: str = "",
) -> int:
    """Print a line for each kind of client; 1 where an innocent one was not answered."""
    if health:
        print_health(health)
    workers = ("--server", "a:1", "--server", "b:1", *(("--grpc-port", "0") if grpc else ()))
    with server("requests", "serve", "--port", "0", *workers) as (found, process):
        address = found["url"].removeprefix("http://")
        host, _, port = address.rpartition(":")
        disturbed: dict[str, Callable[[], None]] = {
            "before": lambda: time.sleep(2),
            f"{idle} idle clients": lambda: hold(host, int(port), idle),
            f"{leaving} that leave in mid-body": lambda: leave(host, int(port), leaving),
            f"{kills} kills of workers": lambda: kill_workers(address, kills, 0),
            "after": lambda: time.sleep(2),
        }
        others, good = Others(address, found.get("grpc", "")), True
        try:
            for what, disturb in disturbed.items():
                if not what.startswith("0 "):
                    disturb()
                    good &= others.report(what, process.pid)
        finally:
            others.ends.set()
            for thread in others.threads:
                thread.join()
    return int(not good)


if __name__ == "__main__":
    run(main)
