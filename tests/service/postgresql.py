"""A PostgreSQL server of the test's own, in a temporary folder."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def programs() -> Path | None:
    """The folder of the newest `initdb` and `pg_ctl`, ``None`` where there is none."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return found[-1].parent if found else None


@contextmanager
def postgresql() -> Iterator[str]:
    """The URL of an empty database."""
    folder = programs()
    assert folder is not None
    # It refuses to run as root.
    user: dict[str, Any] = {"user": "postgres"} if os.geteuid() == 0 else {}
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    data = Path(tempfile.mkdtemp(dir="/tmp"))
    if user:
        shutil.chown(data, "postgres")
    quick = f"-p {port} -k {data} -h 127.0.0.1 -c fsync=off"

    def run(program: str, *arguments: str) -> None:
        command = [str(folder / program), *arguments]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=data, **user)

    try:
        run("initdb", "-A", "trust", "-U", "tester", "-N", str(data / "data"))
        run("pg_ctl", "-D", str(data / "data"), "-o", quick, "-l", str(data / "log"), "-w", "start")
        try:
            yield f"postgresql://tester@127.0.0.1:{port}/postgres"
        finally:
            run("pg_ctl", "-D", str(data / "data"), "-m", "immediate", "stop")
    finally:
        shutil.rmtree(data, ignore_errors=True)
