"""``placewright devicemap``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from placewright.errors import InputError
from placewright.layers.devicemap.commands import tokens
from tests.cli.run_cli import run_cli
from tests.layers.devicemap.models import LLAMA_8B


@pytest.fixture
def model(tmp_path: Path) -> str:
    """A folder with a configuration."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B))
    return str(tmp_path)


@pytest.mark.parametrize(("written", "count"), [("4096", 4096), ("32k", 32768), ("1M", 2**20)])
def test_numbers_of_tokens(written: str, count: int) -> None:
    """A ``k`` is 1024."""
    assert tokens(written, "--context") == count


@pytest.mark.parametrize("written", ["", "0", "-1", "k", "1.5k", "4kk", "9999999M", "nan"])
def test_what_is_no_number_of_tokens(written: str) -> None:
    """Is refused with an example."""
    with pytest.raises(InputError, match="is not a number of tokens"):
        tokens(written, "--context")


def test_table_and_json(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The plan, candidates, and what is not used."""
    given = ("devicemap", model, "--on", "server-4gpu", "--context", "32k", "--users", "4")
    shown = run_cli(capsys, *given)
    assert shown.code == 0
    for word in ("gpu3", "accelerate-auto", "memory-proportional", "not used: cpu", "optimal"):
        assert word in shown.out
    data = run_cli(capsys, *given, "-f", "json").data
    assert data["unit"] == "s"
    assert data["plan"]["ranges"][-1]["end"] == 35


def test_exports(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Data in a file, a command line on stdout, notes on stderr."""
    given = ("devicemap", model, "--on", "server-4gpu", "--export")
    target = tmp_path / "map.json"
    run_cli(capsys, *given, "accelerate", "-o", str(target))
    assert set(json.loads(target.read_text())) == {"device_map", "max_memory"}
    shown = run_cli(capsys, *given, "llamacpp")
    assert shown.out.startswith("llama-server -ngl 33 ")
    assert "input embedding" in shown.err


def test_what_does_not_fit_has_its_own_exit_code(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three, with the longest context."""
    shown = run_cli(capsys, "devicemap", model, "--on", "edge-duo")
    assert shown.code == 3
    assert "no device can hold" in shown.err
