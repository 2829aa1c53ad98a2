"""A real service in a process of its own, for tests."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from placewright.web.client import Client

REPOSITORY = Path(__file__).parents[2]


class Serving:
    """``placewright serve FOLDER``, with the toy wing as that of another distribution."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder, self.options = folder, options
        self.process: subprocess.Popen[str]
        self.url, self.token = "", ""

    def start(self) -> Client:
        """Start it, or start it again."""
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "placewright", "serve"),
                *(str(self.folder / "service"), "--port", "0", "-f", "json", *self.options),
            ],
            stdout=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env=os.environ | {"PYTHONPATH": self._with_toy_wing()},
        )
        assert self.process.stdout is not None
        lines: list[str] = []
        while not lines or lines[-1] != "}\n":
            lines.append(self.process.stdout.readline())
            assert lines[-1], "the service has ended"
        told = json.loads("".join(lines))
        self.url, self.token = told["url"], told.get("token", self.token)
        return Client(self.url, self.token or None)

    def end(self, number: int = signal.SIGTERM) -> None:
        """End it."""
        self.process.send_signal(number)
        self.process.wait(120)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def request(
        self, method: str, path: str, headers: Mapping[str, str] | None = None, body: Any = None
    ) -> tuple[int, bytes]:
        """Status and body of the answer to a request with exactly these headers."""
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=60)
        try:
            connection.request(method, path, body, dict(headers or {}))
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def _with_toy_wing(self) -> str:
        info = self.folder / "installed" / "toy-1.dist-info"
        info.mkdir(parents=True, exist_ok=True)
        points = "[placewright.wings]\npacking = tests.service.slow_wing:WING\n"
        (info / "entry_points.txt").write_text(points)
        return os.pathsep.join([str(info.parent), str(REPOSITORY), *sys.path])
