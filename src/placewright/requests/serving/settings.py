"""Settings of a server's process that factories may change: each function has its own.

Variants share a process. What the code of one of them sets, where it is made or while it computes,
must not change the answers of another: the working folder, environment variables, how NumPy treats
errors, and PyTorch's default dtype, gradients and deterministic algorithms.

    make a      the process's own settings -> a is made    -> what it has set is kept for a
    compute b   b's settings               -> b computes   -> the process's own again
    compute a   a's settings               -> a computes   -> ...

Generators of random numbers are shared.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

_TORCH = ("float32", True, False)
"""PyTorch's settings, as `Settings` has them, before anybody has changed them."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a process.

    `torch`: dtype by default, whether gradients are computed, whether algorithms are deterministic.
    """

    folder: str
    environment: dict[str, str]
    numpy_errors: dict[str, Any]
    torch: tuple[str, bool, bool]

    @classmethod
    def now(cls) -> Settings:
        """Those of this process, of its thread where they are a thread's."""
        return cls(os.getcwd(), dict(os.environ), dict(np.geterr()), _torch_settings())

    def replace(self, now: Settings) -> None:
        """Set what is different `now`."""
        if self.folder != now.folder:
            os.chdir(self.folder)
        if self.environment != now.environment:
            for name in now.environment.keys() - self.environment.keys():
                del os.environ[name]
            os.environ.update(self.environment)
        if self.numpy_errors != now.numpy_errors:
            np.seterr(**self.numpy_errors)
        if self.torch != now.torch:
            _set_torch(*self.torch)


def _torch_settings() -> tuple[str, bool, bool]:
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return _TORCH
    dtype = str(torch.get_default_dtype()).removeprefix("torch.")
    return dtype, torch.is_grad_enabled(), torch.are_deterministic_algorithms_enabled()


def _set_torch(dtype: str, gradients: bool, deterministic: bool) -> None:
    torch: Any = sys.modules["torch"]
    torch.set_default_dtype(getattr(torch, dtype))
    torch.set_grad_enabled(gradients)
    torch.use_deterministic_algorithms(deterministic)


class OwnSettings:
    """What the code of one variant has set."""

    def __init__(self) -> None:
        self._kept: Settings | None = None

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Go on with what it has set, keep what it sets now, and put back what was there."""
        before = Settings.now()
        if self._kept is not None:
            self._kept.replace(before)
        try:
            yield
        finally:
            self._kept = after = Settings.now()
            before.replace(after)


def print_to_stderr() -> None:
    """Let what this process prints go to stderr: stdout is that of the server."""
    sys.stdout.flush()
    with suppress(OSError):  # closed
        os.dup2(sys.stderr.fileno(), 1)
    sys.stdout = sys.stderr
