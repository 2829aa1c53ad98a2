"""placewright devices and doctor: the devices of a cluster, and the environment of this machine."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from placewright.cli.console import Console, write
from placewright.cli.options import OnOption
from placewright.version import __version__

PACKAGES = (
    "numpy",
    "numba",
    "pydantic",
    "typer",
    "rich",
    "tensorflow",
    "torch",
    "transformers",
    "ortools",
    "highspy",
    "ray",
)
VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "CUDA_VISIBLE_DEVICES")


def devices(
    console: Console,
    on: OnOption = None,
) -> None:
    """Show the devices and links of this machine, a cluster file or a preset.

    [bold]Examples[/bold]

    [cyan]placewright devices[/cyan]

    [cyan]placewright devices --on edge-duo -o my-cluster.yaml[/cyan]   a file to start from
    """
    from placewright.cli.sources import find_cluster
    from placewright.cluster.files import cluster_data, cluster_to_text
    from placewright.cluster.schema import preset_names

    cluster = find_cluster(on)
    console.show(lambda: cluster_data(cluster), lambda: repr(cluster))
    if console.output is not None and console.output.suffix in (".yaml", ".yml"):
        console.kept(write(console.output, cluster_to_text(cluster)))
    else:
        console.keep(lambda: cluster_data(cluster))
    console.detail(f"presets: {', '.join(preset_names())}")


def doctor(
    console: Console,
) -> None:
    """Print versions and the environment: paste it into a bug report.

    [bold]Example[/bold]

    [cyan]placewright doctor -f json[/cyan]
    """
    findings = examine()
    console.answer(lambda: findings, lambda: _table(findings))


def examine() -> dict[str, dict[str, str]]:
    """Versions, machine, environment variables and checks, each a mapping of texts."""
    return {
        "versions": {
            "placewright": __version__,
            "python": platform.python_version(),
            **{name: _version(name) for name in PACKAGES},
        },
        "machine": _machine(),
        "environment": {name: os.environ.get(name, "") for name in VARIABLES},
        "checks": _checks(),
    }


def _machine() -> dict[str, str]:
    from placewright.cluster.detect import cpu_cores, cpu_model, gpu_texts, host_memory_bytes
    from placewright.report.text import size

    return {
        "platform": platform.platform(),
        "cpu": cpu_model(),
        "cores": str(cpu_cores()),
        "memory": size(host_memory_bytes()),
        **gpu_texts(),
    }


def _checks() -> dict[str, str]:
    torch_missing = "no: capture and run need it; pip install 'placewright[torch]'"
    shared = Path("/dev/shm")
    free = shutil.disk_usage(shared).free / 2**20 if shared.exists() else 0.0
    return {
        "capture and run": "ok" if _version("torch") != "-" else torch_missing,
        "between GPUs": _between_gpus(),
        "temporary files": "ok" if os.access(tempfile.gettempdir(), os.W_OK) else "not writable",
        "shared memory": f"{free:.0f} MiB free" if free else "none",
        "root": "yes" if hasattr(os, "geteuid") and os.geteuid() == 0 else "no",
    }


def _between_gpus() -> str:
    """What carries tensors between GPUs of two processes."""
    if _version("torch") == "-":
        return "-"
    import torch.distributed as dist

    return "NCCL" if dist.is_available() and dist.is_nccl_available() else "gloo: no NCCL here"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "-"


def _table(findings: dict[str, dict[str, str]]) -> str:
    from placewright.report.text import plain_table

    rows = [
        (section if k == 0 else "", key, value or "-")
        for section, entries in findings.items()
        for k, (key, value) in enumerate(entries.items())
    ]
    return plain_table(("", "what", "value"), rows)
