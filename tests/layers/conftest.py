"""Workers of these tests train."""

from __future__ import annotations

from tests.processes import preload_training

preload_training()
