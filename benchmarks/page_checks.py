"""What machines find on the pages of the service: axe-core, html-validate and Lighthouse.

    npm install --prefix /tmp/checkers axe-core@4 html-validate@9 lighthouse@12.2.3
    python benchmarks/page_checks.py --tools /tmp/checkers

Starts ``placewright serve`` on an empty folder, plans a small problem and serves the digits, so
that every kind of page is there. Prints a Markdown table: violations of axe-core (serious and
critical, others) in light and dark at 1280 and 390 pixels, errors of the HTML validator, and
Lighthouse's score of accessibility and first paint. Exits 1 where one is beyond the limits. Needs
Chromium, the package playwright, node.js and the three packages above, which users do not need.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from harness import Table, run, server
from placewright.web.client import Client
from service_load import NODES

SCORE, PAINT_S = 0.95, 1.0
"""Least score of accessibility, and latest first paint."""

AUDITS = 3
"""Tries of Lighthouse, which fails at times to record the page's begin (``NO_NAVSTART``)."""

SERIOUS = ("serious", "critical")

LOOKS = [(scheme, width) for scheme in ("light", "dark") for width in (1280, 390)]

HTML_RULES = {
    "root": True,
    "extends": ["html-validate:standard", "html-validate:a11y"],
    # An area that scrolls is a region; a section is a card of these pages.
    "rules": {"prefer-native-element": ["error", {"exclude": ["region"]}]},
}


@dataclass(slots=True)
class Found:
    """What was found on a page; `score` and `paint_s` are ``nan`` without Lighthouse."""

    serious: int = 0
    minor: int = 0
    wide: int = 0
    html: int = 0
    score: float = float("nan")
    paint_s: float = float("nan")
    details: Counter[str] = field(default_factory=Counter)

    @property
    def bad(self) -> bool:
        """Whether it is beyond a limit."""
        slow = self.score < SCORE or self.paint_s > PAINT_S
        return bool(self.serious or self.html or self.wide or slow)


def main(*, tools: Path = Path(), lighthouse: bool = True) -> int:
    """Check every page, and print; `tools`: folder with node_modules."""
    modules = tools / "node_modules"
    axe = modules / "axe-core" / "axe.min.js"
    wanted = [modules / ".bin" / name for name in ("html-validate", "lighthouse")]
    if missing := [str(path) for path in (axe, *wanted) if not path.exists()]:
        packages = "axe-core@4 html-validate@9 lighthouse@12.2.3"
        command = f"npm install --prefix {tools} {packages}"
        sys.exit(f"not found: {', '.join(missing)}\nnext: {command}")
    with tempfile.TemporaryDirectory(prefix="placewright-checks-") as made:
        return _print(_checked(Path(made), axe, *wanted, audited=lighthouse))


def _checked(
    folder: Path, axe: Path, validator: Path, lighthouse: Path, *, audited: bool
) -> dict[str, Found]:
    """What was found, by path."""
    environment = os.environ | {"PLACEWRIGHT_COMPILERS": "0"}
    with server("serve", str(folder / "service"), "--port", "0", env=environment) as (told, _):
        url = told["url"]
        found = _opened(url, _prepared(url, folder), axe.read_text(encoding="utf-8"))
        _validate(url, found, validator, folder)
        Client(url).ask("POST", "services/digits/drain", b"{}")  # it would go on by itself
        for path, one in found.items() if audited else ():
            _audit(url + path, one, lighthouse, folder)
            print(f"{path}: {one.score:.2f}, {one.paint_s:.2f} s", file=sys.stderr)
    return found


def _prepared(url: str, folder: Path) -> list[str]:
    """Paths of pages of every kind, with something on them."""
    client = Client(url)
    problem = folder / "nodes.yaml"
    problem.write_text(NODES)
    client.upload(problem)
    plan = client.run("samples.plan", file="nodes.yaml")
    plan.wait()
    client.run("samples.compare", file="nodes.yaml").wait()
    sides = [file["name"] for file in client.ask("GET", "files?kind=samples-plan")["files"]]
    broken = client.run("samples.plan", file="nodes.yaml", planner="gredy")
    body = {"name": "digits", "family": "digits", "variants": [], "options": {}}
    client.ask("POST", "services", json.dumps(body).encode())
    chosen = "on=edge-duo&model=zoo:small_gpt"
    return [
        *("/", "/new", "/new/operators.plan?on=edge-duo", "/jobs", f"/jobs/{plan.id}"),
        *(f"/jobs/{broken.id}", "/clusters", "/clusters/edge-quad", "/train", f"/train?{chosen}"),
        *("/samples", "/samples?file=nodes.yaml", f"/beside?first={sides[0]}&second={sides[-1]}"),
        *("/services", "/services/new", "/services/digits", "/files", "/api", "/login"),
    ]


def _opened(url: str, pages: list[str], axe: str) -> dict[str, Found]:
    """Open each page in every look, and let axe-core search it."""
    found = {path: Found() for path in pages}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"),
            args=["--no-sandbox", "--disable-background-networking"],
        )
        for scheme, width in LOOKS:
            size: Any = {"width": width, "height": 900}
            context = browser.new_context(color_scheme=scheme, viewport=size)  # type: ignore[arg-type]
            for path, one in found.items():
                page = context.new_page()
                page.goto(url + path)
                page.wait_for_timeout(500)
                page.evaluate(axe)  # as a script it would be refused: nothing foreign is loaded
                for each in page.evaluate("axe.run().then((found) => found.violations)"):
                    one.details[f"{each['id']} ({each['impact']}, {scheme} {width})"] += 1
                    one.serious += each["impact"] in SERIOUS
                    one.minor += each["impact"] not in SERIOUS
                root = "document.documentElement"
                one.wide += page.evaluate(f"{root}.scrollWidth > {root}.clientWidth")
                page.close()
            context.close()
        browser.close()
    return found


def _validate(url: str, found: Mapping[str, Found], command: Path, folder: Path) -> None:
    """Check the HTML of every page as the service sends it."""
    html, named = folder / "html", {}
    html.mkdir()
    (html / ".htmlvalidate.json").write_text(json.dumps(HTML_RULES))
    for number, path in enumerate(found):
        named[f"{number}.html"] = path
        with urllib.request.urlopen(url + path) as page:
            (html / f"{number}.html").write_bytes(page.read())
    written = html / "found.json"  # a pipe is cut off where the command ends
    subprocess.run(
        [command.resolve(), "--formatter", f"json={written}", *named], cwd=html, check=False
    )
    for file in json.loads(written.read_bytes()):
        one = found[named[Path(file["filePath"]).name]]
        for message in file["messages"]:
            if message["severity"] == 2:
                one.html += 1
                one.details[f"html: {message['ruleId']}: {message['message']}"] += 1


def _audit(url: str, one: Found, command: Path, folder: Path) -> None:
    """Let Lighthouse open a page as a desktop's browser would, with the network that is there."""
    written = folder / "lighthouse.json"  # a pipe is cut off where the command ends
    for _ in range(AUDITS):
        written.unlink(missing_ok=True)
        done = subprocess.run(
            [
                *(command, url, "--quiet", "--output=json", f"--output-path={written}"),
                *("--only-categories=accessibility,performance", "--throttling-method=provided"),
                "--preset=desktop",
                "--chrome-flags=--headless=new --no-sandbox --disable-background-networking",
            ],
            env=os.environ | {"CHROME_PATH": shutil.which("chromium") or "", "TMPDIR": str(folder)},
            capture_output=True,
            check=False,
        )
        if done.returncode == 0:
            break
    else:
        one.score = 0.0
        one.details[f"Lighthouse: {done.stderr.decode()[-300:]}"] += 1
        return
    report = json.loads(written.read_bytes())
    one.score = report["categories"]["accessibility"]["score"] or 0.0
    one.paint_s = report["audits"]["first-contentful-paint"]["numericValue"] / 1000
    for name, audit in report["audits"].items():
        weighed = {each["id"] for each in report["categories"]["accessibility"]["auditRefs"]}
        if name in weighed and audit["score"] == 0:
            one.details[f"Lighthouse: {name}"] += 1


def _print(found: Mapping[str, Found]) -> int:
    """The table, what was found, and the exit code."""
    head = ("axe: serious", "others", "wider than the screen", "HTML errors")
    table = Table("page", *head, "Lighthouse: accessibility", "first paint")
    for path, one in found.items():
        name, counts = re.sub(r"[0-9a-f]{25}", "ID", path), (one.serious, one.minor, one.wide)
        table.row(f"`{name}`", *counts, one.html, f"{one.score * 100:.0f}", f"{one.paint_s:.2f} s")
    print()
    for path, one in found.items():
        for detail, count in one.details.items():
            print(f"{path}: {detail}" + (f", {count} times" if count > 1 else ""))
    return int(any(one.bad for one in found.values()))


if __name__ == "__main__":
    run(main)
