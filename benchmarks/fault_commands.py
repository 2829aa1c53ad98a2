"""Commands that `random_faults` disturbs: what they need, and whether what they leave is right."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

STEPS = 20
"""A run that nothing disturbs has to end well within the limit."""

SECONDS = 5
"""Of what can go on for any time: a search, a load."""

OLD = '{"old": true}\n'
"""What the documents of all commands hold before them: it stays, or a whole one replaces it."""


def small() -> Any:
    """Linear layers with batch norms (buffers) and dropout (random numbers): a user's factory."""
    import torch

    torch.manual_seed(0)
    layers: list[torch.nn.Module] = []
    for _ in range(4):
        layers += [torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64), torch.nn.Dropout(0.3)]
    return torch.nn.Sequential(*layers), torch.randn(16, 64)


def plain() -> Any:
    """Linear layers whose batch can be split, and whose samples can be streamed: a factory."""
    import torch

    torch.manual_seed(0)
    layers = [each for _ in range(4) for each in (torch.nn.Linear(64, 64), torch.nn.ReLU())]
    return torch.nn.Sequential(*layers), torch.randn(16, 64)


START = """
import json
import sys

if __name__ == "__main__":
    try:
        import placewright
        import fault_commands
"""

END = """
    except KeyboardInterrupt:
        sys.exit("interrupted")
    except placewright.PlacewrightError as error:
        sys.exit(f"error: {error}")
    except OSError as error:
        sys.exit(f"error: {error}")
"""

PLACE = """
        from placewright.operators.run import as_json

        model, x = fault_commands.small()
        with placewright.place(
            model, x, "CLUSTER", training=True, planner="round-robin", engine="ENGINE"
        ) as placed:
            measured = placed.run(STEPS, adapt=True, check=True, snapshots="RESULTS/snapshots")
        print(json.dumps(as_json(measured, placed.result)))
"""

TRAIN_SAMPLES = """
        import torch
        from placewright.samples.training.node_training import Recipe

        torch.manual_seed(0)
        model, _ = fault_commands.plain()
        samples = [(torch.randn(64), torch.randn(64)) for _ in range(4000)]
        loss = torch.nn.MSELoss()
        with placewright.train_samples(
            model, samples, "NODES", loss_fn=loss, recipe=Recipe(epochs=4), speed=20
        ) as placed:
            result = placed.plan("lp", time_limit_s=3)
            runs = placed.run(result.plan, baselines=[])
            kept = "RESULTS/epochs.safetensors"
            epochs = [each.epoch.loss for each in placed.adapt(checkpoint=kept)]
        print(json.dumps({"runs": len(runs), "losses": epochs}))
"""

CLUSTER = """
name: {name}
devices:
  - {{name: a, kind: cpu, cores: 1, speed: 0.5, node: a}}
  - {{name: b, kind: cpu, cores: 1, speed: 0.5, node: b}}
  - {{name: c, kind: cpu, cores: 1, speed: 0.5, node: c}}
links:
  - {{from: a, to: b, bandwidth: 1Gbps, latency: 200us}}
  - {{from: b, to: c, bandwidth: 1Gbps, latency: 200us}}
  - {{from: a, to: c, bandwidth: 1Gbps, latency: 200us}}
"""

SERVERS = ("serve", "load", "service")
"""Commands that serve until they are asked to end."""


@dataclass(frozen=True)
class Variant:
    """One command."""

    name: str
    targets: tuple[str, ...]
    engine: str = "local"
    adapt: bool = False
    what: str = "training"
    """``training``, ``inference``, ``stream``, ``layers``, ``samples``, ``script``, ``planner``,
    ``plan``, ``train-samples``, ``generate`` or one of `SERVERS`"""

    @property
    def samples(self) -> bool:
        """Whether it trains by samples."""
        return self.what in ("samples", "train-samples")

    @property
    def snapshots(self) -> bool:
        """Whether it leaves parameters to compare with eager ones."""
        return self.adapt and self.what in ("training", "script")

    @property
    def repeated(self) -> bool:
        """Whether the same command again has to go on, or to succeed, from what was left."""
        return self.engine == "local" and self.what not in ("serve", "load", "inference", "stream")

    def command(self, folder: Path) -> list[str]:
        """What is started; files are in `folder`."""
        program = ["-m", "placewright", *self._verb(folder)]
        if self.what in ("script", "train-samples"):
            text = START + (PLACE if self.what == "script" else TRAIN_SAMPLES) + END
            for name, value in {
                "CLUSTER": folder / "cluster.yaml",
                "NODES": folder / "nodes.yaml",
                "RESULTS": folder / "results",
                "ENGINE": self.engine,
                "STEPS": STEPS,
            }.items():
                text = text.replace(name, str(value))
            (folder / "script.py").write_text(text)
            program = [str(folder / "script.py")]
        if self.engine == "torchrun":
            launch = ["-m", "torch.distributed.run", "--nproc-per-node", "3", "--master-port"]
            return [sys.executable, *launch, str(_free_port()), *program]
        return [sys.executable, *program]

    def _verb(self, folder: Path) -> list[str]:
        on, results = str(folder / "cluster.yaml"), folder / "results"
        document = ["-f", "json", "-o", str(results / "document.json")]
        if self.what == "service":
            return ["serve", str(results / "service"), "--port", "0", "-f", "json"]
        if self.what in SERVERS:
            servers = ["--server", "a:1", "--server", "b:0.5"]
            verb = ["requests", "serve", "--port", "0", *servers, "--engine", self.engine]
            logged = ["-f", "json", "--log", str(results / "log.jsonl")]
            return [*verb, *(logged if self.what == "load" else [])]
        if self.what == "layers":
            verb = ["layers", "run", "fault_commands:plain", "--on", on, "--train", str(STEPS)]
            verb += ["--check", "--time-limit", "2", "--engine", self.engine, *document]
            verb += ["--snapshots", str(results / "snapshots")]
            return [*verb, "--weights", str(results / "weights.safetensors")]
        if self.what == "samples":
            # A run that goes on after its fault has to end within the limit, too.
            epochs = "2" if self.engine == "testbed" else "4"
            verb = ["samples", "run", str(folder / "nodes.yaml"), "--epochs", epochs, *document]
            verb += ["--engine", "testbed"] if self.engine == "testbed" else ["--speed", "20"]
            verb += ["--adapt"] if self.adapt else ["--baseline", "none"]
            verb += ["--checkpoint", str(results / "epochs.safetensors")] if self.adapt else []
            verb += ["--time-limit", "3", "--planner", "lp"]
            return verb
        if self.what in ("planner", "plan"):
            # A policy learns from its first update on, which a busy machine may not reach sooner.
            seconds = SECONDS if self.what == "plan" else 4 * SECONDS
            limit = ["--time-limit", str(seconds), *document, "--planner"]
            if self.what == "plan":
                return ["operators", "plan", str(folder / "problem.json"), *limit, "auto"]
            checkpoint = ["--checkpoint", str(results / "post.safetensors")]
            return ["operators", "train", str(folder / "problem.json"), *limit, "post", *checkpoint]
        if self.what == "generate":
            model = str(folder / "model")
            verb = ["generate", model, "12 7 99", "--on", on, "--new-tokens", "200", "--check"]
            return [*verb, *document, *(["--adapt"] if self.adapt else [])]
        model = "fault_commands:small" if self.what == "training" else "fault_commands:plain"
        verb = ["operators", "run", model, "--check", "--on", on, *document]
        verb += ["--steps", str(STEPS), "--planner", "round-robin", "--engine", self.engine]
        verb += ["--training"] if self.what == "training" else []
        verb += ["--objective", "throughput"] if self.what == "stream" else []
        verb += ["--adapt", "--snapshots", str(results / "snapshots")] if self.adapt else []
        return verb

    def prepare(self, folder: Path, mark: str) -> None:
        """Write what the command reads, and documents that it replaces."""
        (folder / "cluster.yaml").write_text(CLUSTER.format(name=mark))
        (folder / "results" / "document.json").write_text(OLD)
        if self.samples:
            (folder / "nodes.yaml").write_text(_nodes(mark))
        if self.what in ("planner", "plan", "service"):
            (folder / "problem.json").write_text(_problem())
        if self.what == "generate":
            write_model(folder / "model")


_OWN = ("launcher", "fork server", "tracker", "worker", "worker")
_RUN = ("agent", "lead", "keeper", "fork server", "tracker", "worker", "worker")
_RAY = ("launcher", "worker", "worker", "raylet", "gcs")
_TARGETS = {"local": _OWN, "testbed": (*_OWN, "emulator"), "torchrun": _RUN, "ray": _RAY}
VARIANTS = (
    Variant("local", _OWN),
    Variant("local-adapt", _OWN, adapt=True),
    Variant("testbed", _TARGETS["testbed"], "testbed"),
    Variant("testbed-adapt", _TARGETS["testbed"], "testbed", adapt=True),
    Variant("torchrun", _RUN, "torchrun"),
    Variant("torchrun-adapt", _RUN, "torchrun", adapt=True),
    Variant("ray", _RAY, "ray"),
    Variant("ray-adapt", _RAY, "ray", adapt=True),
    Variant("samples", _OWN, what="samples"),
    Variant("samples-adapt", _OWN, adapt=True, what="samples"),
    Variant("samples-testbed", _TARGETS["testbed"], "testbed", what="samples"),
    Variant("samples-testbed-adapt", _TARGETS["testbed"], "testbed", adapt=True, what="samples"),
    *(
        Variant(what if engine == "local" else f"{what}-{engine}", targets, engine, adapt, what)
        for what, adapt in (
            ("inference", False),
            ("stream", False),
            ("layers", True),
            ("script", True),
        )
        for engine, targets in _TARGETS.items()
    ),
    Variant("serve", _OWN, what="serve"),
    Variant("serve-testbed", _TARGETS["testbed"], "testbed", what="serve"),
    Variant("serve-ray", _RAY, "ray", what="serve"),
    Variant("load", _OWN, what="load"),
    Variant("plan", ("launcher",), what="plan"),
    Variant("planner", ("launcher",), what="planner"),
    Variant("train-samples", _OWN, what="train-samples"),
    Variant("generate", _OWN, what="generate"),
    Variant("generate-adapt", _OWN, adapt=True, what="generate"),
    Variant("service", ("launcher", "job", "job"), what="service"),
)


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@cache
def _nodes(mark: str) -> str:
    import yaml

    words = ["-m", "placewright", "samples", "generate", "moderate", "--nodes", "3", "-q"]
    made = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True)
    return yaml.safe_dump(yaml.safe_load(made.stdout) | {"name": mark})


@cache
def _problem() -> str:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "problem.json"
        words = ["-m", "placewright", "profile", "zoo:resnet50", "--on", "edge-quad", "-q"]
        words += ["--training", "--method", "analytic", "-o", str(file)]
        subprocess.run([sys.executable, *words], capture_output=True, check=True)
        return file.read_text()


def write_model(folder: Path) -> None:
    """A Llama of six layers with random weights."""
    import torch

    from harness import llama

    torch.manual_seed(0)
    settings = {"num_key_value_heads": 4, "max_position_embeddings": 512}
    llama(512, 64, 128, 6, 4, **settings).save_pretrained(folder)


# -- whoever uses a server -------------------------------------------------------------------------


@dataclass
class Users:
    """Clients of a server while it is up, and what they found."""

    variant: Variant
    folder: Path
    ends: threading.Event = field(default_factory=threading.Event)
    outcomes: Counter[str] = field(default_factory=Counter)
    jobs: list[str] = field(default_factory=list)

    @contextmanager
    def working(self) -> Iterator[None]:
        """Send requests or jobs meanwhile."""
        works: dict[str, list[Callable[[], None]]] = {
            "load": [self._requests] * 3 + [self._leaving],
            "service": [self._jobs],
        }
        threads = [threading.Thread(target=w) for w in works.get(self.variant.what, [])]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self.ends.set()
            for thread in threads:
                thread.join()

    def url(self) -> str:
        """The address that the server prints, once it does; empty where it has ended before."""
        while not self.ends.wait(0.1):
            with suppress(OSError, ValueError, KeyError):
                return str(json.loads((self.folder / "out").read_text())["url"])
        return ""

    def _requests(self) -> None:
        from serving_malformed import right

        address, body = self.url().removeprefix("http://"), json.dumps(right())
        while not self.ends.wait(0.02) and address:
            link = http.client.HTTPConnection(address, timeout=60)
            try:
                link.request("POST", "/v2/models/digits/infer", body)
                answer = link.getresponse()
                found = json.loads(answer.read())
                clear = answer.status == 200 or found.get("error")
                self.outcomes[str(answer.status) if clear else f"{answer.status} unclear"] += 1
            except TimeoutError:
                self.outcomes["no answer"] += 1
            except (OSError, http.client.HTTPException):
                self.outcomes["cut off"] += 1
            finally:
                link.close()

    def _leaving(self) -> None:
        """Connections that are cut in the middle of a request."""
        import socket

        host, _, port = self.url().removeprefix("http://").partition(":")
        while not self.ends.wait(0.05) and port:
            with suppress(OSError), socket.create_connection((host, int(port)), 5) as link:
                link.sendall(
                    b"POST /v2/models/digits/infer HTTP/1.1\r\nContent-Length: 900\r\n\r\n{"
                )

    def _jobs(self) -> None:
        import placewright

        url = self.url()
        while not self.ends.wait(0.5) and url:
            with suppress(placewright.PlacewrightError, OSError):
                service = placewright.connect(url)
                file = service.upload(self.folder / "problem.json")
                for _ in range(2):
                    options = {"planner": "auto", "time_limit": 3.0}
                    self.jobs.append(service.run("operators.plan", source=file, **options).id)
                return

    def faults(self, *, killed: bool) -> list[str]:
        """What no client should have met."""
        wrong = {"no answer", *(name for name in self.outcomes if "unclear" in name)}
        wrong |= set() if killed else {"500"}
        return [f"clients: {n} {name}" for name, n in self.outcomes.items() if name in wrong]


# -- what a command leaves -------------------------------------------------------------------------


def half_written(results: Path, *, killed: bool) -> list[str]:
    """Files that are neither what was there before nor whole; drafts, unless it was `killed`."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    faults = []
    for file in sorted(path for path in results.rglob("*") if path.is_file()):
        name = str(file.relative_to(results))
        if "unfinished-" in name or file.name.startswith("."):
            faults += [] if killed else [f"draft left: {name}"]
            continue
        try:
            if file.suffix == ".json":
                json.loads(file.read_text())
            elif file.suffix == ".jsonl":
                text = file.read_text()
                lines = text.splitlines()
                torn = lines and not text.endswith("\n")
                for line in lines[: -1 if killed and torn else None]:
                    json.loads(line)
            elif file.suffix == ".safetensors":
                load_file(file)
        except (ValueError, OSError, SafetensorError) as error:
            faults.append(f"{name} is not whole: {error}")
    return faults


def numbers(variant: Variant, folder: Path, *, interrupted: bool) -> list[str]:
    """What is wrong with the results of a command that says that all is well.

    `interrupted`: by Ctrl-C.
    """
    document = folder / "results" / "document.json"
    text = (folder / "out").read_text()
    if variant.what in SERVERS:
        return []
    if not text.strip():
        return ["exit code 0 and no result"]
    try:
        data = json.loads(text)
    except ValueError:
        return [f"exit code 0 and a result that is no JSON: {text[:80]!r}"]
    if variant.what not in ("script", "train-samples") and document.read_text() == OLD:
        return ["exit code 0 and the document is that of before"]
    if variant.samples:
        return _samples_numbers(variant, data, interrupted)
    if variant.what == "layers":  # its own check has compared the losses
        return [] if data["training"] is not None else ["nothing was trained"]
    if variant.what in ("plan", "planner"):
        return []
    if variant.what == "generate":
        return [] if data["equal"] or interrupted else ["other tokens"]
    faults = []
    unchecked = variant.adapt and interrupted  # no check after Ctrl-C
    if data.get("max_abs_error") != 0.0 and not (unchecked and data["check"] is None):
        faults.append(f"--check: {data.get('max_abs_error')}")
    if variant.snapshots:
        done, error = _of_snapshot(folder / "results" / "snapshots")
        if done != STEPS and not interrupted:
            faults.append(f"the last snapshot is of step {done}")
        if error != 0.0:
            faults.append(f"parameters after {done} steps are off by {error:g}")
    return faults


def _samples_numbers(variant: Variant, data: Any, interrupted: bool) -> list[str]:
    if variant.what == "train-samples":
        return [] if len(data["losses"]) == 4 and data["runs"] else [f"epochs: {data['losses']}"]
    runs = data.get("runs")
    if runs is None:
        epochs = data["epochs"]
        finite = all(e["loss"] is not None for e in epochs)
        return [] if (epochs or interrupted) and finite else [f"epochs: {json.dumps(epochs)[:200]}"]
    if len(runs) < 2 and not interrupted:
        return [f"{len(runs)} runs"]
    expected = REFERENCES.get(variant.name, {})
    found = {r["name"]: [e["loss"] for e in r["epochs"]] for r in runs}
    if variant.engine == "testbed":
        return []
    return [f"losses of {n} differ" for n in found if n in expected and found[n] != expected[n]]


REFERENCES: dict[str, dict[str, list[float]]] = {}
"""Losses of undisturbed runs of samples, by command."""


def _of_snapshot(folder: Path) -> tuple[int, float]:
    """Step of the last whole snapshot, and how far its parameters and buffers are from eager's."""
    from safetensors.torch import load_file

    whole = sorted(folder.glob("step-*"))
    if not whole:
        return 0, 0.0
    state: dict[str, Any] = {}
    for file in whole[-1].glob("*.safetensors"):
        state.update(load_file(file))
    step = int(whole[-1].name.rpartition("-")[2])
    expected = _eager(step)
    return step, max(
        (float((state[n] - e).abs().max()) for n, e in expected.items() if n in state), default=9.9
    )


@cache
def _captured() -> Any:
    from placewright.capturing.model import capture_source
    from placewright.capturing.source import load_model

    source = load_model("fault_commands:small", None, True, weights=True)
    return source, capture_source(source, training=True)


@cache
def _eager(step: int) -> dict[str, Any]:
    from placewright.operators.check import run_eager

    source, graph = _captured()
    found = run_eager(source, training=True, steps=step).state
    inputs = [i for i in graph.program.inputs if i.role in ("parameter", "buffer")]
    return {i.name: found[i.key] for i in inputs if i.mutated}
