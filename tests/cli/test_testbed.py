"""``placewright testbed``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from placewright.testbed import Testbed
from placewright.testbed.blueprint import id_of
from placewright.testbed.record import end_all
from placewright.testbed.testbed import missing
from tests.cli.run_cli import run_cli
from tests.testbed.test_testbed import traces

FILE = """
devices:
  - {name: "a:1", node: a}
  - {name: b, node: b, speed: 0.5}
links:
  - {from: "a:1", to: b, bandwidth: 80Mbps, latency: 1ms}
"""


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    """A cluster file; its testbed is down afterwards."""
    if reason := missing():
        pytest.skip(f"no testbed here: {reason}")
    path = tmp_path / f"cli {os.getpid()}.yaml"
    path.write_text(FILE)
    yield path
    end_all(id_of(path.stem))


def test_the_life_of_a_testbed(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """up, set, status, exec, down: each says what there is now."""
    made = run_cli(capsys, "testbed", "up", file, "-f", "json").data["testbeds"][0]
    assert made["alive"]
    assert made["owner_pids"] == []
    assert [device["cpu_share"] for device in made["devices"]] == [1.0, 0.5]
    run_cli(capsys, "testbed", "set", file, "--device", "b", "--speed", "0.25", "--memory", "1GiB")
    run_cli(capsys, "testbed", "set", file, "--link", "a:1:b", "--bandwidth", "8Mbps", "--one-way")
    run_cli(capsys, "testbed", "set", file, "--link", "b:a:1", "--latency", "2ms", "--cut")
    now = run_cli(capsys, "testbed", "status", file.stem, "-f", "json").data["testbeds"][0]
    assert (now["devices"][1]["cpu_share"], now["devices"][1]["memory_bytes"]) == (0.25, 2**30)
    assert [way["bandwidth"] for way in now["ways"]] == [1e6, 1e7]
    assert [way["latency_s"] for way in now["ways"]] == [2e-3, 2e-3]
    assert [way["cut"] for way in now["ways"]] == [True, True]
    run_cli(capsys, "testbed", "set", file, "--device", "b", "--off")
    powered = run_cli(capsys, "testbed", "set", file, "--device", "b", "--on", "-f", "json").data
    assert not any(way["cut"] for way in powered["testbeds"][0]["ways"])
    words = "from placewright.cli.main import main; import sys; main(sys.argv[1:])"
    inside = subprocess.run(
        [sys.executable, "-c", words, "testbed", "exec", file, "b", "--", "ip", "addr"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "10.78.0.2/32" in inside.stdout
    assert file.stem in run_cli(capsys, "testbed", "down", file).out
    assert run_cli(capsys, "testbed", "down", file, "-f", "json").data == {"down": []}


KILLED = """
import os, signal, sys
from placewright.cli.main import main
from placewright.testbed import namespaces
namespaces.address = lambda position: os.kill(os.getpid(), signal.SIGKILL)
main(sys.argv[1:])
"""


def test_what_a_killed_up_left_goes_down(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the file or by its name; it was not up, and `status` does not say so."""

    def taken_down(spec: Path | str) -> bool:
        killed = subprocess.run([sys.executable, "-c", KILLED, "testbed", "up", file], check=False)
        assert killed.returncode == -signal.SIGKILL
        assert run_cli(capsys, "testbed", "status", file).code == 1
        down = run_cli(capsys, "testbed", "down", spec, "-f", "json")
        assert not any(id_of(file.stem) in trace for trace in traces())
        # Where nothing is left of it, its name is not known.
        return bool(down.code == 0 and down.data["down"] == [file.stem])

    for spec in (file, file.stem):
        # A testbed that another test starts meanwhile removes what is left of killed ones.
        assert any(taken_down(spec) for _ in range(5))


def test_what_is_wrong_is_said(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Usage errors are 2, unknown names 1, with what to do next."""
    assert "unknown testbed" in run_cli(capsys, "testbed", "set", file, "--device", "b").err
    run_cli(capsys, "testbed", "up", file)
    for words in ((), ("--device", "b"), ("--speed", "0.5"), ("--link", "a", "--cut")):
        assert run_cli(capsys, "testbed", "set", file, *words).code == 2
    unknown = run_cli(capsys, "testbed", "set", file, "--device", "c", "--speed", "0.5")
    assert unknown.code == 1
    assert "did you mean" in unknown.err or "known: a:1, b" in unknown.err
    assert run_cli(capsys, "testbed", "set", file, "--device", "b", "--speed", "2").code == 1


def test_selftest_makes_and_removes_what_is_not_up(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked against got for each link and device; the exit code tells whether all are right."""
    monkeypatch.setattr("placewright.testbed.status._SPIN_S", 0.4)
    output = run_cli(capsys, "testbed", "selftest", file, "-f", "json")
    assert [(f["what"], f["where"], f["asked"]) for f in output.data] == [
        ("rate", "a:1 -> b", 1e7),
        ("delay", "a:1 -> b", 1e-3),
        ("rate", "b -> a:1", 1e7),
        ("delay", "b -> a:1", 1e-3),
        ("cpu", "a:1", 1.0),
        ("cpu", "b", 0.5),
    ]
    assert output.code == (0 if all(f["ok"] for f in output.data) else 1)
    assert not any(bed.cluster.name == file.stem for bed in Testbed.all())


def test_without_root_the_verbs_say_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything else, with the way without root."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    for verb in ("up", "selftest", "down", "status"):
        refused = run_cli(capsys, "testbed", verb, "edge-duo")
        assert refused.code == 1
        assert "it needs root" in refused.err
        assert "by waiting" in refused.err
