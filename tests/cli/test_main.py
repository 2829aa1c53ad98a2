"""Verbs, help, exit codes and error messages of the command line."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.core import TyperGroup

from placewright import __version__
from placewright.cli import sources
from placewright.cli.main import app, main
from placewright.errors import PlacewrightError
from tests.cli.run_cli import run_cli

HEAVY = ("torch", "numba", "numpy", "yaml", "placewright.io.boundary")


def verbs() -> dict[str, Any]:
    """Every verb by its words, those of the wings too."""
    root = typer.main.get_command(app)
    assert isinstance(root, TyperGroup)
    context, found = typer.Context(root), {}
    for name in root.list_commands(context):
        command = root.get_command(context, name)
        inner = getattr(command, "commands", None)
        found |= {name: command} if inner is None else {f"{name} {k}": v for k, v in inner.items()}
    return found


def test_the_verbs_are_those_of_the_design() -> None:
    """No more, no less."""
    assert set(verbs()) == {
        "quickstart",
        "devices",
        "doctor",
        "capture",
        "profile",
        "devicemap",
        "generate",
        "show",
        "bench",
        "serve",
        "schema",
        *(f"operators {v}" for v in ("plan", "compare", "simulate", "explain", "run")),
        *(f"operators {v}" for v in ("export", "train")),
        *(f"samples {v}" for v in ("plan", "compare", "simulate", "explain", "run", "generate")),
        *(f"layers {v}" for v in ("plan", "compare", "simulate", "explain", "run")),
        *(f"requests {v}" for v in ("plan", "compare", "simulate", "explain", "run")),
        *(f"requests {v}" for v in ("serve", "profile", "evaluate")),
        *(f"testbed {v}" for v in ("up", "down", "status", "set", "selftest", "exec")),
    }


@pytest.mark.parametrize("verb", sorted(verbs()))
def test_every_verb_has_help_with_examples(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    """``--help`` has an example that starts with the verb itself."""
    output = run_cli(capsys, *verb.split(), "--help")
    assert output.code == 0
    assert "Example" in output.out
    assert f"placewright {verb}" in " ".join(output.out.split("Example", 1)[1].split())


def test_help_fills_the_width_of_the_terminal() -> None:
    """No paragraph has line ends of its own, which would break lines twice."""
    for command in verbs().values():
        assert not any("\n" in each for each in command.help.strip().split("\n\n"))


@pytest.mark.parametrize("verb", sorted(set(verbs()) - {"quickstart", "testbed exec"}))
def test_every_verb_has_the_common_options(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Format, output, quiet and verbose, under one name everywhere."""
    output = run_cli(capsys, *verb.split(), "--help")
    for option in ("--format", "--output", "--quiet", "--verbose"):
        assert option in output.out


def test_documented_verbs_are_the_verbs() -> None:
    """docs/reference/cli.md describes every verb."""
    text = (Path(__file__).parents[2] / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    for verb in verbs():
        assert f"`placewright {verb}" in text


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a verb."""
    assert run_cli(capsys, "--version").out == f"placewright {__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ("bogus",),
        ("operators", "plan"),
        ("operators", "plan", "x.json", "--objective", "speed"),
        ("devices", "-f", "xml"),
        ("operators", "plan", "x.json", "--seed", "-1"),
    ],
)
def test_wrong_usage_exits_with_2(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """The error is on stderr, nothing on stdout."""
    output = run_cli(capsys, *arguments)
    assert output.code == 2
    assert output.out == ""
    assert output.err


def test_an_error_exits_with_1_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    """What, where, and what next."""
    output = run_cli(capsys, "devices", "--on", "edge-dou")
    assert output.code == 1
    assert output.out == ""
    assert output.err == (
        "error: unknown cluster preset 'edge-dou'\n  next: did you mean 'edge-duo'?\n"
    )


def test_an_unwritable_file_exits_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    """The operating system's errors name the file and have no traceback either."""
    output = run_cli(capsys, "devices", "-o", "/no/such/folder/c.yaml")
    message = (
        "error: /no/such/folder/c.yaml: cannot be written: No such file or directory\n  next: "
    )
    assert output.code == 1
    assert output.err.startswith(message + "name a file in a folder that exists")


@pytest.mark.parametrize("flag", [("-vv",), ("-v", "--verbose")])
def test_twice_verbose_shows_the_traceback(flag: tuple[str, ...]) -> None:
    """For whoever wants to know."""
    from placewright.cli.main import main
    from placewright.errors import UnknownNameError

    with pytest.raises(UnknownNameError):
        main(["devices", "--on", "edge-dou", *flag])


def test_the_command_line_starts_light() -> None:
    """``--help`` needs none of the heavy packages."""
    code = (
        "import sys\nfrom placewright.cli.main import main\n"
        "try:\n    main(['operators', 'plan', '--help'])\n"
        f"finally:\n    print([m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


def test_a_closed_pipe_is_no_error(tmp_path: Path) -> None:
    """``placewright schema | head -1`` ends quietly, with 0; the file of ``-o`` is written."""
    code = "from placewright.cli.main import main; main(['schema', '-o', 'schema.json'])"
    command = f'set -o pipefail; {sys.executable} -c "{code}" | head -1'
    options: dict[str, Any] = {"capture_output": True, "text": True, "cwd": tmp_path}
    done = subprocess.run(["bash", "-c", command], check=True, **options)
    assert done.stdout == "{\n"
    assert done.stderr == "wrote schema.json\n"
    assert json.loads((tmp_path / "schema.json").read_text())


@pytest.mark.parametrize("form", ["table", "json"])
def test_a_reader_that_was_never_there_is_no_error(form: str) -> None:
    """Whatever prints it, and whether or not it fits in the pipe's buffer."""
    words = ["devices", "--on", "edge-duo", "-f", form]
    code = f"from placewright.cli.main import main; main({words})"
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=writing, stderr=subprocess.PIPE, check=True
    )
    os.close(writing)
    assert done.stderr == b""


def test_a_broken_pipe_to_another_process_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody has left stdout."""

    def broken(spec: str | None) -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr(sources, "find_cluster", broken)
    output = run_cli(capsys, "devices")
    assert output.code == 1
    assert "BrokenPipeError" in output.err


def test_an_unexpected_error_prints_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its kind and what it says, and how to see more; with -vv it is raised, its cause with it."""

    def broken(spec: str | None) -> None:
        raise EOFError("the pipe\nis gone")

    monkeypatch.setattr(sources, "find_cluster", broken)
    output = run_cli(capsys, "devices")
    assert output.code == 1
    assert output.err.startswith("error: this should not happen: EOFError: the pipe\n  next: ")
    with pytest.raises(PlacewrightError) as raised:
        main(["devices", "-vv"])
    assert isinstance(raised.value.__cause__, EOFError)


def test_a_full_disk_behind_stdout_is_reported() -> None:
    """Once, and not as an exception that is ignored at exit."""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "placewright", "schema", "cluster"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr.startswith("error: stdout or a file: No space left on device\n  next: ")
    assert done.stderr.count("\n") == 2


def test_a_full_disk_without_a_file_name_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As what a library writes somewhere."""

    def full(spec: str | None) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sources, "find_cluster", full)
    output = run_cli(capsys, "devices")
    assert output.code == 1
    assert "No space left on device\n  next: free space there" in output.err


def test_streams_that_the_caller_has_closed_are_nothing() -> None:
    """Files that are opened meanwhile do not take their place, nor those of a process started."""
    look = "import os, subprocess, sys; from placewright.cli import main as m; m._open_closed(); "
    look += "print('nowhere'); print('nowhere', file=sys.stderr); "
    look += "subprocess.run([sys.executable, '-c', 'print(1)'], check=True); "
    look += "sys.exit([os.readlink(f'/proc/self/fd/{n}') for n in (0, 1, 2)] != ['/dev/null'] * 3)"
    command = ["bash", "-c", 'exec "$@" <&- >&- 2>&-', "-", sys.executable, "-c", look]
    assert subprocess.run(command, check=False).returncode == 0


def test_a_lack_of_memory_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is no error that nobody has foreseen."""

    def refused(given: object) -> None:
        raise MemoryError("9 TiB")

    monkeypatch.setattr("placewright.cli.main._run_verb", refused)
    with pytest.raises(SystemExit) as left:
        main(["doctor"])
    assert left.value.code == 1
    said = capsys.readouterr().err
    assert said.startswith("error: this process: there is not enough memory (9 TiB)")
    assert "next: " in said
