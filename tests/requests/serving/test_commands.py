"""placewright requests serve and run."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from placewright.cli.console import Console
from placewright.errors import InputError
from placewright.requests.files import read_problem
from placewright.requests.serving import commands
from placewright.requests.serving.commands import _families, _servers
from tests.cli.run_cli import run_cli
from tests.requests.serving.models import scaled


@pytest.fixture(scope="module")
def family_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A family of two ONNX files."""
    folder = tmp_path_factory.mktemp("family")
    (folder / "small.onnx").write_bytes(scaled(2.0))
    (folder / "large.onnx").write_bytes(scaled(2.0, 1))
    path = folder / "double.yaml"
    path.write_text(
        "name: double\nvariants:\n"
        "  small: {file: small.onnx, accuracy: 0.7}\n"
        "  large: {file: large.onnx, accuracy: 0.9}\n"
    )
    return path


def status(url: str) -> dict[str, Any]:
    """The server's numbers."""
    with urllib.request.urlopen(url.partition("/v2")[0] + "/status.json") as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def test_serve_until_sigterm(family_file: Path, tmp_path: Path) -> None:
    """One command: its URL on stdout, answers, logs, and exit code 0 at SIGTERM."""
    log = tmp_path / "log.jsonl"
    command = [sys.executable, "-m", "placewright", "requests", "serve", "-f", "json"]
    command += ["--family", str(family_file), "--server", "a:1", "--port", "0", "--log", str(log)]
    command += ["--log-format", "json"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        text = "".join(iter(process.stdout.readline, "}\n")) + "}"
        tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
        assert len(json.loads(text)["admin_token"]) >= 32
        url = json.loads(text)["url"] + "/v2/models/double/infer"
        needs = {"deadline_ms": 30_000, "min_accuracy": 0.8}  # what only one of them has
        asked = {"inputs": [tensor], "parameters": needs}
        request = urllib.request.Request(url, json.dumps(asked).encode())
        with urllib.request.urlopen(request) as answer:
            assert json.load(answer)["outputs"][0]["data"] == [2, 4, 6, 8]
        profile = [*command[:4], "profile", json.loads(text)["url"], "-o"]
        subprocess.run([*profile, str(tmp_path / "requests.yaml")], check=True, capture_output=True)
        pid = next(each["pid"] for each in status(url)["servers"])
        os.kill(pid, signal.SIGKILL)
        while not any(s["up"] and s["pid"] != pid for s in status(url)["servers"]):
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        events = [json.loads(x) for x in process.stderr if x.startswith("{")]
    problem = read_problem(tmp_path / "requests.yaml")
    assert problem.service.server_names == ("a",)
    assert problem.service.variant_names == ("small", "large")
    assert problem.service.latency_s[0, :, 1].all()
    kinds = [each["event"] for each in events]
    lost = ["server-lost", "server-restarted"]
    assert kinds == ["server-added", "started", *lost, "draining", "drained"]
    assert events[-1]["unanswered"] == 0
    assert events[-1]["outcomes"] == {"in-time": 1}
    assert events[2]["reason"].startswith("its process ")
    assert [json.loads(line)["variant"] for line in log.read_text().splitlines()] == ["large"]


def test_measured_beside_predicted(family_file: Path, tmp_path: Path) -> None:
    """Every request is counted; shares are shares; a file of arrivals sets the gaps."""
    from placewright.requests.serving.families import read_family
    from placewright.requests.serving.load import Traffic, run_loads, table
    from placewright.requests.serving.server import ServingOptions

    times = tmp_path / "times.csv"
    times.write_text("TIMESTAMP,x\n" + "".join(f"2023-11-16 18:15:{k:02}.5,1\n" for k in range(40)))
    found = run_loads(
        [read_family(family_file)],
        {"a": 0.05, "b": 0.02},
        ServingOptions(port=0),
        [0.2],
        Traffic(str(times), 1.0, deadlines=50.0),
    )
    (result,) = found
    assert sum(result.statuses.values()) == result.requests <= 40
    assert 0 <= result.success <= 1
    assert result.predicted_success >= result.predicted_effective_accuracy > 0
    assert result.latency_p50_ms <= result.latency_p99_ms
    assert f"{100 * result.success:.2f}" in table(found)


def test_wrong_files_and_policies(tmp_path: Path) -> None:
    """A family or a policy that is wrong is an error of the input, before anything starts."""
    from placewright.requests.plan import RequestPlan
    from placewright.requests.planners import named_policy
    from placewright.requests.serving.engines import server_cluster
    from placewright.requests.serving.families import read_family
    from placewright.requests.serving.server import PlannedPolicy

    path = tmp_path / "f.yaml"
    path.write_text("name: f\nvariants: {v: {file: none.onnx, accuracy: 0.5}}\n")
    with pytest.raises(InputError, match=r"none\.onnx: cannot be read"):
        read_family(path)
    path.write_text("name: f\nvariants: {v: {file: f.yaml, accuracy: 0.5}}\n")
    with pytest.raises(InputError, match="no ONNX model"):
        read_family(path)
    for elsewhere in ("/dev/zero", "../x.onnx"):
        path.write_text(f"name: f\nvariants: {{v: {{file: {elsewhere}, accuracy: 0.5}}}}\n")
        with pytest.raises(InputError, match="in the folder of the family's file"):
            read_family(path)
    path.write_text("name: f\nvariants: {v: {file: f.onnx, accuracy: 0.5, a: 3}}\n")
    with pytest.raises(InputError, match=r"variants\.v\.a: unknown key 'a'"):
        read_family(path)
    with pytest.raises(InputError, match="did you mean 'rolling'"):
        PlannedPolicy(RequestPlan("roling"))
    for choice in ("roling", "roling(price=3)"):
        with pytest.raises(InputError, match=r"unknown policy 'roling'\n.*'rolling'"):
            named_policy(choice)
    with pytest.raises(InputError, match="a family is a YAML file") as caught:
        _families(["some/net.onnx"], Console())
    assert "{file: net.onnx, accuracy: 0.9}" in caught.value.hint
    with pytest.raises(InputError, match="did you mean 'digits'"):
        _families(["digit"], Console())
    for name in ("", ":0.5"):
        with pytest.raises(InputError, match="a server needs a name"):
            _servers([name], None)
        with pytest.raises(InputError, match="a server needs a name"):
            server_cluster({name.partition(":")[0]: 1.0})
    with pytest.raises(InputError, match="two servers 'a'"):
        _servers(["a:1", "a:0.5"], None)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("serve --port {port}", "cannot listen"),
        ("serve --host no.such.invalid", "token"),
        ("serve --policy roling", "did you mean 'rolling'"),
        ("serve --server a:2 --port 0", "speed must be in"),
        ("run --arrivals none.csv", "none.csv"),
    ],
)
def test_what_is_wrong_is_said_before_a_family_is_trained(
    words: str, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Training takes seconds."""
    from tests.cli.run_cli import run_cli

    monkeypatch.setattr(commands, "_families", lambda *_: pytest.fail("trained"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        written = words.format(port=taken.getsockname()[1])
        output = run_cli(capsys, "requests", *written.split())
    assert output.code == 1
    assert says in output.err


def test_a_saved_plan_is_the_policy_of_the_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`requests plan -o` gives what --plan takes."""
    from placewright.requests.conformance import random_problem
    from placewright.requests.files import write_problem
    from placewright.requests.plan import RequestPlan
    from placewright.requests.planners import named_policy
    from placewright.requests.serving.commands import _policy
    from tests.cli.run_cli import run_cli

    problem, path = tmp_path / "p.json", tmp_path / "plan.json"
    write_problem(random_problem(5), problem)
    made = run_cli(
        capsys, *f"requests plan {problem} -o {path} --planner edf-fastest -f json".split()
    )
    found = _policy("auto", path).plan
    assert found.policy == made.data["plan"]["policy"] == "edf"
    assert dict(found.parameters) == made.data["plan"]["parameters"] != {}
    assert named_policy("auto") == RequestPlan("rolling", (("wait", 0.1),))
    assert _policy("edf-fastest-batch", None).plan == RequestPlan("edf", (("batching", True),))
    assert _policy("rolling(price=3)", None).plan == RequestPlan("rolling", (("price", 3.0),))
    with pytest.raises(InputError, match="--policy or --plan"):
        _policy("edf", path)
    path.write_text("plan: {policy: edf, parameters: {x: 1}}")
    with pytest.raises(InputError):
        _policy("auto", path)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--language-model", "m", "--policy", "rolling"), "--policy"),
        (("--language-model", "m", "--server", "a:1"), "--server"),
        (("--language-model", "m", "--deadline", "2"), "--deadline"),
        (("--language-model", "m", "--on", "edge-duo"), "no configuration of a model"),
        (("--context", "64"), "--context"),
        (("--users", "2"), "--users"),
    ],
)
def test_options_that_a_language_model_has_not(
    options: tuple[str, ...], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Refused by name, and its own ones without one."""
    given = [str(tmp_path) if each == "m" else each for each in options]
    found = run_cli(capsys, "requests", "serve", "--port", 0, *given)
    assert found.code == 1
    assert words in found.err
