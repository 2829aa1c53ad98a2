"""The quickstart from start to finish, on models that take no time."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from placewright.capturing.model import capture_source, load_model
from placewright.capturing.zoo.language import text_batches
from placewright.cluster.cluster import Cluster, Device, Link
from placewright.deployment import demonstration
from placewright.deployment.demonstration import ModelJob
from placewright.operators.judge import judge
from placewright.operators.plan import OperatorPlan
from placewright.planning.contract import monitor_of, silent
from placewright.profiling.profiler import profile
from tests.cli.run_cli import run_cli


def test_quickstart_runs_and_ends_with_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prediction, measurement, exactness, three files a job, five lines, and a row for each."""
    jobs = (
        ModelJob("tests.cli.models:tower"),
        ModelJob("tests.cli.models:tower", training=True),
        ModelJob("tests.cli.models:tiny_gpt", training=True, batches=text_batches),
    )
    monkeypatch.setattr(demonstration, "JOBS", jobs)
    output = run_cli(capsys, "quickstart", "--out", tmp_path, "--steps", "2")
    assert output.code == 0, output.err
    for words in ("predicted", "measured", "difference from eager PyTorch: 0", "emulated: board-b"):
        assert output.out.count(words) >= 2
    *_, head, stream, training, shares, language, own, _, last = output.out.strip().splitlines()
    assert head.split() == ["fastest", "board", "all", "boards", "gain", "differs", "from", "eager"]
    assert stream.startswith("tower, stream")
    assert "/s" in stream
    assert training.startswith("tower, training step")
    assert shares.startswith("tiny_gpt, training on shares of the batch")
    assert ", limit 1." in shares
    assert ", after 2 steps " in output.out
    assert language.startswith("a language model of random weights")
    assert "tokens/s" in language
    assert "the tokens of one process: equal" in output.out
    assert own.startswith("your own model, five lines")
    assert last.endswith(f"placewright serve {tmp_path} --open")
    assert len(demonstration.five_lines().splitlines()) == 5
    assert {path.name for path in tmp_path.iterdir()} == {
        *(
            f"tower{kind}{end}"
            for kind in ("", "-training")
            for end in (".html", "-trace.json.gz", "-plan.json")
        ),
        "tiny_gpt-layers.html",
        "tiny_gpt-layers-plan.json",
        "language-model.html",
    }
    assert "Predicted and measured" in (tmp_path / "tiny_gpt-layers.html").read_text()


def boards(memory_bytes: int) -> Cluster:
    """Two that are alike."""
    boards = (
        Device(name, memory_bytes=memory_bytes, node=name, peak_flops=1e10)
        for name in ("left", "right")
    )
    links = (Link(a, b, 1e8, 1e-4) for a, b in (("left", "right"), ("right", "left")))
    return Cluster(tuple(boards), tuple(links))


def test_a_step_that_fits_on_no_board_says_what_is_lacking(tmp_path: Path) -> None:
    """By the board that lacks least; the plan on both is run."""
    source = load_model("tests.cli.models:tower", training=True)
    graph = capture_source(source, training=True)
    problem = profile(graph, boards(1 << 20), method="analytic")
    alone = judge(problem, OperatorPlan(np.zeros(problem.n, dtype=np.int64)))
    cluster = boards(int(0.9 * alone.peak_bytes.max()))
    outcomes = demonstration.demonstrate(
        cluster,
        tmp_path,
        jobs=[ModelJob("tests.cli.models:tower", training=True)],
        steps=1,
        monitor=monitor_of(silent),
    )
    with closing(outcomes):  # a model of 77 KB fits on neither
        found = next(outcomes)
    assert found.single.startswith("fits on none (left lacks ")
    assert found.gain == "runs"
    assert found.differs == "0"
