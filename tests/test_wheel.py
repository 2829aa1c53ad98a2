"""The wheel: built, unpacked and used outside the repository, without optional packages."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

LIGHT = """
import sys
sys.path.insert(0, {wheel!r})
for name in ("torch", "onnx", "onnxruntime", "ortools", "highspy", "ray", "tensorflow", "openvino"):
    sys.modules[name] = None  # as if it were not installed
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    build = ["wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(folder), str(ROOT)]
    subprocess.run([sys.executable, "-P", "-m", "pip", *build], check=True)
    (found,) = folder.glob("placewright-*.whl")
    with zipfile.ZipFile(found) as packed:
        packed.extractall(folder / "installed")
    return folder / "installed"


def light(wheel: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Python with the wheel and what it always needs, in an empty folder."""
    script = LIGHT.format(wheel=str(wheel)) + code
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    command = [sys.executable, "-P", "-c", script]
    return subprocess.run(
        command, cwd=wheel.parent, env=environment, capture_output=True, text=True, check=False
    )


def verb(wheel: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command line from the wheel."""
    return light(
        wheel, f"from placewright.__main__ import main\nsys.argv[1:] = {arguments!r}\nmain()"
    )


def test_the_wheel_holds_what_the_source_holds(wheel: Path) -> None:
    """Every file under version control, presets, styles and weights as well."""
    listed = ["git", "ls-files", "src/placewright"]
    tracked = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    wanted = {name.removeprefix("src/") for name in tracked.splitlines()}
    assert wanted
    assert not [name for name in wanted if not (wheel / name).is_file()]


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (("--version",), "placewright"),
        (("devices", "--on", "edge-duo"), "board-b"),
        (("schema", "cluster"), '"devices"'),
        (("operators", "plan", "--help"), "--time-limit"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_verbs_work_from_the_wheel(wheel: Path, arguments: tuple[str, ...], shown: str) -> None:
    """Outside the repository, with nothing optional installed."""
    done = verb(wheel, *arguments)
    assert done.returncode == 0, done.stderr
    assert shown in done.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ("quickstart",),
        ("layers", "plan", "zoo:bert_3", "--on", "edge-duo"),
        ("requests", "serve"),
        ("operators", "run", "zoo:resnet50", "--on", "edge-duo"),
    ],
    ids=" ".join,
)
def test_a_verb_names_the_extra_that_it_needs(wheel: Path, arguments: tuple[str, ...]) -> None:
    """Not what it could not import."""
    done = verb(wheel, *arguments)
    assert done.returncode == 1
    assert "pip install 'placewright[torch]'" in done.stderr
    assert "should not happen" not in done.stderr


def test_public_functions_name_the_extra_that_they_need(wheel: Path) -> None:
    """Where a name is read, and where it is called."""
    done = light(
        wheel,
        """
import placewright
from placewright.errors import MissingDependencyError
for use in (lambda: placewright.Trainer, lambda: placewright.place(None, None)):
    try:
        use()
    except MissingDependencyError as error:
        print(error)
""",
    )
    assert done.stdout.count("pip install 'placewright[torch]'") == 2, done.stderr
