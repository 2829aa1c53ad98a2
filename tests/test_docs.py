"""The documentation agrees with the package: names, paths, menu, examples."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import placewright
from placewright.capturing.zoo import FACTORIES
from placewright.cluster.schema import preset_names
from placewright.planning.wings import families, planners

ROOT = Path(__file__).resolve().parents[1]


def page(name: str) -> str:
    """The text of a page."""
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def test_every_planner_is_described() -> None:
    """In the tables of reference/planners.md, of every wing; single devices share a row."""
    problems = [p for _, w in families() for p in w.conformance().tiny_instances().values()]
    known = {n for p in problems for n in planners(p) if not n.startswith("only:")}
    described = set(re.findall(r"`([^`]+)`", page("reference/planners.md")))
    assert known <= described


def test_every_public_name_is_in_the_reference() -> None:
    """One by one, or with its module as errors are."""
    shown = re.findall(r"^::: placewright\.(\S+)$", page("reference/python.md"), re.MULTILINE)
    names = {name.rpartition(".")[2] for name in shown}  # some are shown where they are defined
    modules = {f"placewright.{name}" for name in shown}
    missing = {n for n, home in placewright._HOME.items() if n not in names | {"__version__"}}
    assert {n for n in missing if placewright._HOME[n] not in modules} == set()


def test_every_model_and_preset_is_named() -> None:
    """In the pages on the command line and on clusters."""
    assert all(f"`{name}`" in page("reference/cli.md") for name in FACTORIES)
    assert all(f"`{name}`" in page("reference/cluster-file.md") for name in preset_names())


def test_folders_of_the_architecture_page_exist() -> None:
    """Every line of the drawing in architecture.md is a folder or a file; no folder is left out."""
    text = page("concepts/architecture.md")
    drawing = text.split("src/placewright/\n", 1)[1].split("```", 1)[0]
    rooms = [line.split()[0] for line in drawing.splitlines() if line.strip()]
    assert len(rooms) > 10
    source = ROOT / "src" / "placewright"
    missing = [room for room in rooms if not (source / room).exists()]
    assert missing == []
    folders = {f"{path.parent.relative_to(source)}/" for path in source.rglob("*.py")} - {"./"}
    assert folders <= set(rooms)


def test_files_of_the_architecture_page_exist() -> None:
    """Those that its stories and tables name, some without their folder."""
    named = set(re.findall(r"`([a-z_/]+\.py)`", page("concepts/architecture.md")))
    files = [f"/{path.relative_to(ROOT)}" for path in (ROOT / "src").rglob("*.py")]
    assert len(named) > 30
    assert [n for n in sorted(named) if not any(f.endswith(f"/{n}") for f in files)] == []


PAGES = sorted(str(p.relative_to(ROOT / "docs")) for p in (ROOT / "docs").rglob("*.md"))


@pytest.mark.parametrize("name", PAGES)
def test_every_page_is_in_the_menu(name: str) -> None:
    """Nothing is written that cannot be found; what a benchmark generates is left out by name."""
    menu = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert f": {name}\n" in menu or f"  /{name}\n" in menu


def test_the_cluster_of_the_documentation_can_be_read() -> None:
    """The first example of reference/cluster-file.md is a cluster file."""
    from placewright.cluster.cluster import Cluster

    text = page("reference/cluster-file.md").split("```yaml\n", 1)[1].split("```", 1)[0]
    cluster = Cluster.from_text(text, where="cluster-file.md")
    assert cluster.device_names == ("board-a", "board-b")


def test_code_of_the_readme_runs_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Placed, called, trained, saved, reloaded and streamed; what was learned is reloaded."""
    import torch

    text = (ROOT / "README.md").read_text(encoding="utf-8")
    code = text.split("## One model", 1)[1].split("```python\n", 1)[1].split("```", 1)[0]
    monkeypatch.chdir(tmp_path)
    made: dict[str, Any] = {}
    exec(compile(code, "README.md", "exec"), made)
    with torch.no_grad():
        assert not torch.equal(made["before"], made["model"](made["x"]))
    assert (tmp_path / "trained" / "model.safetensors").exists()
    assert made["losses"][-1] < made["losses"][0]
    assert len(made["outputs"]) == 2
    assert all(torch.equal(y, made["model"](made["x"])) for y in made["outputs"])


def test_paths_of_the_contributing_page_exist() -> None:
    """Every path in its table is a folder or a file of the package."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text.split("| you want to", 1)[1].split("\n## ", 1)[0]
    places = re.findall(r"`([a-z_/]+(?:/|\.py))`", table)
    assert len(places) > 20
    source = ROOT / "src" / "placewright"
    assert [place for place in places if not (source / place).exists()] == []


def test_troubleshooting_names_messages_that_exist() -> None:
    """What stands in the first column of its tables is in the source, but for what is put in."""
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    source = re.sub(r'"\s*\n\s*f?"', "", source)  # one text over several lines
    source = re.sub(r"\{[^{}]*\}", "...", source)
    cells = re.findall(r"^\| (`.*?) \|", page, re.M)
    messages = [message for cell in cells for message in re.findall(r"`([^`]+)`", cell)]
    parts = [part.strip() for text in messages for part in re.split(r"\.\.\.|\b[NM]\b", text)]
    missing = [part for part in parts if len(part) > 14 and part not in source]
    assert len(parts) > 40
    assert not missing
