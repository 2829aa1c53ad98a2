"""The pages: each is filled; the way from a form to a result in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from placewright.files import write
from placewright.planning.solving import solve
from placewright.report.text import amount
from placewright.web.client import Client
from tests.planning.test_toy_wing import PackingFiles
from tests.report.examples import chain
from tests.service.serving import Serving
from tests.service.test_jobs import THREE


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/", ("Where should it run?", "items -&gt; bins", "edge-duo")),
        ("/new", ("packing", "operators", "capture")),
        ("/new/packing.plan", ("required", "planner")),
        ("/new/operators.plan?source=zoo:resnet50&on=edge-duo", ('value="zoo:resnet50"',)),
        ("/jobs", ("Jobs",)),
        ("/files", ("Upload",)),
        ("/beside", ("first plan", "second plan")),
        ("/api", ("/api/v1/operations/packing.plan/jobs",)),
    ],
)
def test_pages_are_filled(serving: Serving, path: str, words: tuple[str, ...]) -> None:
    """With what there is; the toy wing among it."""
    status, body = serving.request("GET", path)
    assert status == 200
    assert [word for word in words if word not in body.decode()] == []


@pytest.mark.parametrize(
    ("path", "status"),
    [
        *(("/new/operators.plam%3Cscript%3E", 404), ("/nowhere", 404), ("/jobs/nothing", 422)),
        *(("/train?batch=%3Cscript%3E", 422), ("/train?batch=0", 422)),
    ],
)
def test_what_is_not_there_is_a_page(serving: Serving, path: str, status: int) -> None:
    """With what to do next, whatever is wrong in an address; names in it are no markup."""
    answered, body = serving.request("GET", path)
    assert answered == status
    assert "<script>" not in body.decode().split("</head>")[1]
    assert "Next: " in body.decode()


def test_a_long_name_makes_no_page_wider(serving: Serving, browser: Any) -> None:
    """Than the screen of a phone."""
    page = browser.new_page(viewport={"width": 390, "height": 800})
    page.goto(f"{serving.url}/new/{'x' * 100}")
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    page.goto("about:blank")
    style = serving.request("GET", "/report/style.css")[1].decode()
    cells = f"<td>{'x' * 100}</td><td class=note>why a plan was taken</td>"
    page.set_content(f"<style>{style}</style><body class=pw><table><tr>{cells}</tr></table>")
    assert page.evaluate("document.querySelector('.note').offsetWidth") >= 150
    page.close()


def test_from_the_form_to_the_result(
    serving: Serving, client: Client, browser: Any, tmp_path: Path
) -> None:
    """Upload, plan, watch, read; stop a search; nothing is refused by the page's own rules."""
    page = browser.new_page()
    wrong: list[str] = []
    page.on("console", lambda message: message.type == "error" and wrong.append(message.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto(f"{serving.url}/files")
    page.set_input_files("#upload", PackingFiles().write_problem(THREE, tmp_path / "chosen.json"))
    page.get_by_role("row", name="chosen.json").get_by_role("link", name="plan", exact=True).click()
    assert page.input_value("#option-file") == "chosen.json"
    page.fill("#option-planner", "slow")
    page.get_by_role("button", name="Start").click()
    page.wait_for_selector("text=look")
    assert "4 bins" in page.inner_text("#value")
    page.get_by_role("button", name="Stop").click()
    page.wait_for_selector("h2:text('Result')", timeout=60_000)
    assert page.inner_text("#state") == "interrupted"
    page.get_by_role("link", name="Change options").click()
    page.fill("#option-planner", "shufled")
    page.get_by_role("button", name="Start").click()
    page.wait_for_selector("text=did you mean 'shuffled'?", timeout=60_000)
    page.goto(f"{serving.url}/new/packing.plan?file=chosen.json&planner=shuffled")
    page.get_by_role("button", name="Start").click()
    page.wait_for_selector("h2:text('Result')", timeout=60_000)
    report = page.frame_locator("iframe")
    assert "3 bins" in report.locator("body").inner_text()
    page.goto(f"{serving.url}/new/packing.plan")
    page.fill("#option-planner", "@/etc/passwd")
    page.select_option("#option-file", "chosen.json")
    page.get_by_role("button", name="Start").click()
    page.wait_for_selector("text=paths are not taken from requests")
    assert [each for each in wrong if "422" not in each] == []
    page.close()


def test_an_uploaded_model_leads_to_its_plan(serving: Serving, page: Any, tmp_path: Path) -> None:
    """From the overview, without a look at the list of files, where it has the same link."""
    model = tmp_path / "net.onnx"
    model.write_bytes(b"planned by nobody here")
    page.goto(serving.url)
    page.set_input_files("#upload", model)
    page.wait_for_url("**/new/operators.plan?on=edge-duo&source=net.onnx")
    assert (page.input_value("#option-source"), page.input_value("#option-on")) == (
        "net.onnx",
        "edge-duo",
    )
    page.get_by_role("button", name="zoo:small_gpt").click()
    assert page.input_value("#option-source") == "zoo:small_gpt"
    page.keyboard.press("Shift+Tab")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.goto(f"{serving.url}/files")
    page.get_by_role("row", name="net.onnx").get_by_role("link", name="serve").click()
    assert page.is_checked("#own-yes")
    assert page.input_value("#variants select") == "net.onnx"
    page.goto(f"{serving.url}/files")
    page.get_by_role("button", name="Delete net.onnx").click()
    page.wait_for_selector("text=net.onnx", state="detached")


def test_an_upload_is_named_as_files_are_here(
    serving: Serving, browser: Any, tmp_path: Path
) -> None:
    """Spaces and accents become dashes and letters; what was refused may be chosen again."""
    model = tmp_path / "mön modèle (1)..2.onnx"
    model.write_bytes(b"planned by nobody here")
    page = browser.new_page()
    page.goto(serving.url)
    page.route("**/api/v1/files/*", lambda route: route.abort())
    page.set_input_files("#upload", model)
    page.wait_for_selector(".problem >> text=the service does not answer")
    page.unroute("**/api/v1/files/*")
    page.set_input_files("#upload", model)
    page.wait_for_url("**/new/operators.plan?on=edge-duo&source=mon-modele-1-.2.onnx")
    page.close()
    serving.request("DELETE", "/api/v1/files/mon-modele-1-.2.onnx")


def test_two_plans_side_by_side(
    serving: Serving, client: Client, page: Any, tmp_path: Path
) -> None:
    """Of a wing without an edit; of operators with timelines, zoomed and asked by keyboard."""
    name = client.upload(PackingFiles().write_problem(THREE, tmp_path / "beside.json"))
    for planner in ("first-fit", "shuffled"):
        client.run("packing.plan", file=name, planner=planner).wait()
    page.goto(f"{serving.url}/files")
    page.get_by_role("link", name="Show two plans side by side").click()
    options = page.locator("#first option[value^='packing-plan']")
    for side, k in (("#first", 1), ("#second", 0)):
        page.select_option(side, options.nth(k).get_attribute("value"))
    page.get_by_role("button", name="Show").click()
    assert "first-fit" in page.inner_text("table")
    assert "What differs" in page.inner_text("main")
    sides = []
    for planner in ("heft", "only:dev1"):
        plan = solve(chain(), planner).save(tmp_path / f"{planner[:4]}.json")
        sides.append(client.upload(plan))
    page.goto(f"{serving.url}/beside?first={sides[0]}&second={sides[1]}")
    page.locator(".timeline svg").first.focus()
    for key in ("w", "ArrowRight", "Enter"):
        page.keyboard.press(key)
    assert "runs on" in page.locator(".timeline .about").first.inner_text()
    page.get_by_role("link", name="Open it alone").click()
    page.locator(".timeline .tools").nth(1).wait_for()  # its script adds them
    assert page.locator(".timeline .tools").count() == 2
    assert serving.request("GET", "/beside?first=none&second=none")[0] == 404
    assert serving.request("GET", f"/beside?first=beside.json&second={sides[0]}")[0] == 422


def test_a_plan_leads_to_its_run(
    serving: Serving, client: Client, page: Any, tmp_path: Path
) -> None:
    """With what it was made of, and not with how; what its log warns of stands above the result."""
    problem = client.upload(write(chain(), tmp_path / "chain.json"))
    job = client.run("operators.plan", source=problem, planner="heft", time_limit=5.0)
    job.wait()
    log = serving.folder / "service" / "jobs" / job.id / "log.txt"
    with log.open("a") as file:
        file.write("warning: measured while others computed\n  next: again\n")
    page.goto(f"{serving.url}/jobs/{job.id}")
    page.wait_for_selector("#warnings >> text=warning: measured while others computed")
    page.get_by_role("link", name="Run this plan").click()
    assert page.input_value("#option-source") == problem
    assert page.input_value("#option-plan") == f"operators-plan-{job.id[-6:]}.json"
    assert page.input_value("#option-planner") == page.input_value("#option-time_limit") == ""


def test_a_form_offers_what_its_operation_may_read(
    serving: Serving, client: Client, tmp_path: Path
) -> None:
    """A model or a problem as the source of a plan, and no cluster or another wing's problem."""
    (tmp_path / "mine.onnx").write_bytes(b"planned by nobody here")
    (tmp_path / "mine.yaml").write_text("devices: [{name: a, memory: 1GiB}]\n")
    names = [client.upload(tmp_path / name) for name in ("mine.onnx", "mine.yaml")]
    names.append(client.upload(PackingFiles().write_problem(THREE, tmp_path / "packed.json")))
    (tmp_path / "mine.onnx.data").write_bytes(b"weights")
    names.append(client.upload(tmp_path / "mine.onnx.data"))
    body = serving.request("GET", "/new/operators.plan")[1].decode()
    source = body.partition('id="list-source"')[2]
    offered = source.partition("</datalist>")[0]
    assert [name for name in names if f'"{name}"' in offered] == names[:1]
    for operation in ("devicemap", "capture", "layers.run", "samples.run", "requests.plan"):
        form = serving.request("GET", f"/new/{operation}")[1].decode()
        assert ('value="zoo:resnet50"' in form) == (operation in ("capture", "layers.run"))
        assert (f'value="{names[0]}"' in form) == (operation == "capture")
        assert f'value="{names[2]}"' not in form.partition("<datalist")[2]
    assert f'<option value="{names[1]}"' in body  # as its cluster
    gone = serving.request("GET", "/new/operators.plan?on=gone.yaml")[1].decode()
    assert "<option selected>gone.yaml</option>" in gone  # not another cluster in its place
    no_relay = serving.request("GET", "/new/samples.plan?relay=false")[1].decode()
    assert '<option value="false" selected>' in no_relay
    for name in names:
        serving.request("DELETE", f"/api/v1/files/{name}")


SEEN = """(seen) => {
    Object.defineProperty(document, "hidden", { value: !seen, configurable: true });
    document.dispatchEvent(new Event("visibilitychange"));
}"""


def test_many_tabs_may_show_jobs_that_run(
    serving: Serving, client: Client, browser: Any, tmp_path: Path
) -> None:
    """A browser has six connections to a service; tabs that are not seen keep none of them."""
    name = client.upload(PackingFiles().write_problem(THREE, tmp_path / "tabs.json"))
    job, context = client.run("packing.plan", file=name, planner="slow"), browser.new_context()
    tabs = [context.new_page() for _ in range(8)]
    for tab in tabs:
        tab.goto(f"{serving.url}/jobs/{job.id}")
        tab.wait_for_selector("text=look", timeout=60_000)
        tab.evaluate(SEEN, False)
    tabs[0].evaluate(SEEN, True)
    job.cancel()
    tabs[0].wait_for_selector("h2:text('Result')", timeout=60_000)
    context.close()


def test_a_page_says_that_the_service_does_not_answer(
    serving: Serving, client: Client, browser: Any, tmp_path: Path
) -> None:
    """While it is away, and no longer; a button that was pressed meanwhile keeps the focus."""
    name = client.upload(PackingFiles().write_problem(THREE, tmp_path / "away.json"))
    job = client.run("packing.plan", file=name, planner="slow", beside=[name])
    page = browser.new_page()
    page.route("**/api/v1/**", lambda route: route.abort())
    page.goto(f"{serving.url}/jobs/{job.id}")
    page.wait_for_selector("#away >> text=the service does not answer")
    stop = page.get_by_role("button", name="Stop")
    stop.press("Enter")
    page.wait_for_selector(".problem >> text=the service does not answer")
    assert page.evaluate("document.activeElement.dataset.post")
    page.unroute("**/api/v1/**")
    page.wait_for_selector("#away", state="detached")
    assert "beside away.json" in page.inner_text(".verdict")
    stop.press("Enter")
    page.wait_for_selector("h2:text('Result')", timeout=60_000)
    page.close()


@pytest.mark.parametrize(
    ("to", "then"),
    [
        ("/jobs%3Fstate%3Ddone", "/jobs?state=done"),
        *(("//other.example/", "/"), ("javascript:alert(1)", "/"), ("https://other.example", "/")),
    ],
)
def test_a_token_leads_to_the_page_that_was_asked_for(
    serving: Serving, page: Any, to: str, then: str
) -> None:
    """And to no other site."""
    page.goto(f"{serving.url}/login?to={to}")
    page.fill("#token", "any")
    page.keyboard.press("Enter")
    page.wait_for_url(serving.url + then)


def test_numbers_of_scripts_are_those_of_tables(serving: Serving, page: Any) -> None:
    """Digits and units of live values, which the tables of the result repeat."""
    draw = np.random.default_rng(0)
    values = [0.0, 1.0, 0.9996, 999.6e-3, 5e-12, *10 ** draw.uniform(-10, 5, 300)]
    page.goto(serving.url)
    script = """async ([values, unit]) => {
        const { amount } = await import("/static/service.js");
        return values.map((each) => amount(each, unit));
    }"""
    assert page.evaluate(script, [values, "s"]) == [amount(each, "s") for each in values]
    shown = page.evaluate(script, [values, "bins"])
    assert [float(each.split()[0]) for each in shown] == [
        float(amount(each, "bins").split()[0]) for each in values
    ]
