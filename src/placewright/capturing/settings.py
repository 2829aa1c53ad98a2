"""Settings of PyTorch that operators read when they run: recorded with a program, set in workers.

They belong to the process, not to a model: the default dtype (integers divided become it), the
precision of float32 products, whether oneDNN's kernels are used, deterministic algorithms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch


class _Setting(NamedTuple):
    """How a setting is read, how it is set, and what a fresh process has."""

    get: Callable[[], Any]
    put: Callable[[Any], Any]
    usual: Any


def _default_dtype() -> str:
    return str(torch.get_default_dtype()).removeprefix("torch.")


def _set_default_dtype(name: str) -> None:
    torch.set_default_dtype(getattr(torch, name))


def _set_deterministic(level: int) -> None:
    torch.set_deterministic_debug_mode(level)


_SETTINGS: Mapping[str, _Setting] = {
    "default_dtype": _Setting(_default_dtype, _set_default_dtype, "float32"),
    "float32_matmul_precision": _Setting(
        torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "highest"
    ),
    "mkldnn": _Setting(torch._C._get_mkldnn_enabled, torch._C._set_mkldnn_enabled, True),
    "deterministic": _Setting(torch.get_deterministic_debug_mode, _set_deterministic, 0),
}


def current_settings() -> dict[str, Any]:
    """Settings of this process that a fresh one does not have."""
    found = {name: setting.get() for name, setting in _SETTINGS.items()}
    return {name: value for name, value in found.items() if value != _SETTINGS[name].usual}


def apply_settings(settings: Mapping[str, Any]) -> None:
    """Give this process these settings, and all others as a fresh process has them."""
    for name, setting in _SETTINGS.items():
        wanted = settings.get(name, setting.usual)
        if setting.get() != wanted:
            setting.put(wanted)


def tracing_settings() -> tuple[Any, ...]:
    """All that a trace depends on and that belongs to the process, in about a microsecond.

    Read from PyTorch's own functions in C: its functions in Python take three times as long.
    """
    cast = _autocast("cpu")
    return (
        torch.get_default_dtype(),
        torch.get_autocast_dtype("cpu") if cast else None,
        *[read() for read in _READ_BY_TRACES],
    )


_autocast = torch.is_autocast_enabled

_READ_BY_TRACES = (
    torch._C._get_float32_matmul_precision,
    torch._C._get_mkldnn_enabled,
    torch._C._get_deterministic_algorithms,
    torch._C._get_deterministic_algorithms_warn_only,
    torch._C._get_flash_sdp_enabled,
    torch._C._get_math_sdp_enabled,
)
