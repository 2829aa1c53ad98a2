"""Train three users' own models on four heterogeneous nodes, from folders of files.

    sudo python benchmarks/samples_own.py [MODEL ...]     seconds to the same loss on a testbed
    python benchmarks/samples_own.py equal                weights beside one process on the union
    python benchmarks/samples_own.py files FOLDER         the files alone, for the command line

The models are a CNN on JPEG files of unlike sizes, a text classifier with ragged lengths and a
collate function of its own, and a tabular MLP on files of rows. Node a, the slowest, holds most
samples, and almost all of two of the six kinds, which d does not have. `ROUNDS` times the plan of
``auto`` runs, then LB-BSP, then steps of its sizes with weights, then nothing moves; a round
measures the nodes' speeds first. The loss to reach is the largest of those that the four ways reach
on the test files in that round.
``equal`` emulates speeds, moves by the plan, and compares with one process on the same batches,
whose texts are padded to the longest of each, in double precision and in single. Beside it is what
one process alone differs by when the samples of each batch come in reverse order.
"""

from __future__ import annotations

import sys
import tempfile
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from harness import run
from placewright import train_samples
from placewright.report.text import percent, plain_table, seconds
from placewright.samples.data import numbered
from placewright.samples.move import transfers_of
from placewright.samples.plan import SamplePlan
from placewright.samples.problem import SampleProblem
from placewright.samples.training.node_training import Recipe, parts, steps_of
from placewright.samples.training.sample_set import SampleSet
from samples_run import four_nodes

ROUNDS = 1
KINDS = 6
SAMPLES = (960, 240, 180, 120)
MIX = ((6, 6, 2, 1, 1, 1), (0, 1, 4, 4, 1, 1), (0, 1, 1, 4, 4, 1), (0, 0, 1, 1, 4, 4))
"""Of each node's samples among the kinds, in proportion."""
TESTED = 300
RECIPE = Recipe(epochs=12, batch=150)
FILE_BYTES = {"cnn": 4_000, "texts": 2_000, "table": 28_000}
WORDS = 500
ROWS, COLUMNS = 192, 32


# What a user has: models, losses, and functions that read their files.


class Pictures(nn.Module):
    """A CNN on pictures of 32 times 32 pixels, bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        )
        self.head = nn.Linear(32 * 16, KINDS)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the kinds."""
        scores: Tensor = self.head(self.features(x.to(self.head.weight.dtype) / 128 - 1).flatten(1))
        return scores


def read_picture(path: Path) -> tuple[Tensor, int]:
    """Any picture as one of 32 times 32 pixels; the kind stands in the file's name."""
    with Image.open(path) as picture:
        pixels = np.asarray(picture.convert("RGB").resize((32, 32)))
    return torch.from_numpy(pixels.copy()).permute(2, 0, 1), kind_of(path)


class Texts(nn.Module):
    """A layer of attention over words, and the mean of those that are no padding."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width, padding_idx=0)
        self.layer = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True)
        self.head = nn.Linear(width, KINDS)

    def forward(self, ids: Tensor, padding: Tensor) -> Tensor:
        """Scores of the kinds."""
        x = self.layer(self.words(ids), src_key_padding_mask=padding)
        kept = (~padding).to(x.dtype)[..., None]
        scores: Tensor = self.head((x * kept).sum(1) / kept.sum(1))
        return scores


def read_text(path: Path) -> tuple[Tensor, int]:
    """Numbers of a text's words, as many as it has."""
    words = path.read_text(encoding="utf-8").split()
    return torch.tensor([1 + zlib.crc32(w.encode()) % (WORDS - 1) for w in words]), kind_of(path)


def collate_texts(samples: list[tuple[Tensor, int]]) -> tuple[dict[str, Tensor], Tensor]:
    """Texts of unlike lengths as a batch, padded to the longest."""
    ids = pad_sequence([words for words, _ in samples], batch_first=True)
    return {"ids": ids, "padding": ids == 0}, torch.tensor([kind for _, kind in samples])


class Rows(nn.Module):
    """A tabular MLP on each row of a file."""

    def __init__(self) -> None:
        super().__init__()
        layers = (nn.Linear(COLUMNS, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU())
        self.layers, self.head = nn.Sequential(*layers), nn.Linear(128, KINDS)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the kinds, for every row."""
        scores: Tensor = self.head(self.layers(x.to(self.head.weight.dtype)))
        return scores


def read_rows(path: Path) -> tuple[Tensor, Tensor]:
    """A file of rows: their columns, and the label in the last one."""
    rows = np.loadtxt(path, delimiter=",", dtype=np.float32)
    return torch.from_numpy(rows[:, :-1]), torch.from_numpy(rows[:, -1].astype(np.int64))


def loss_of_rows(scores: Tensor, labels: Tensor) -> Tensor:
    """Mean over the rows of all files."""
    return functional.cross_entropy(scores.flatten(0, 1), labels.flatten())


ADAM = {"optimizer": "adam", "lr": 0.003}


def cnn() -> dict[str, Any]:
    """For ``--model samples_own:cnn``."""
    return {"model": Pictures(), "loss_fn": nn.CrossEntropyLoss(), "read": read_picture, **ADAM}


def texts() -> dict[str, Any]:
    """For ``--model samples_own:texts``."""
    reading = {"read": read_text, "collate": collate_texts}
    return {"model": Texts(), "loss_fn": nn.CrossEntropyLoss(), **reading, **ADAM}


def table() -> dict[str, Any]:
    """For ``--model samples_own:table``."""
    return {"model": Rows(), "loss_fn": loss_of_rows, "read": read_rows, **ADAM}


MODELS: dict[str, Callable[[], dict[str, Any]]] = {"cnn": cnn, "texts": texts, "table": table}


# Their files.


def kind_of(path: Path) -> int:
    """The number before the first dash of a file's name."""
    return int(path.name.split("-")[0])


def write_picture(path: Path, kind: int, rng: np.random.Generator) -> None:
    """Stripes whose direction is the kind, in noise, of any size and colour."""
    height, width = rng.integers(36, 64, 2)
    y, x = np.mgrid[:height, :width] / 32 * 2 * np.pi
    angle = np.pi * kind / KINDS + rng.normal(0, 0.06)
    waves = np.sin(rng.uniform(2, 4) * (x * np.cos(angle) + y * np.sin(angle)) + rng.uniform(0, 6))
    pixels = 128 + 40 * waves[..., None] * rng.uniform(0.3, 1, 3)
    noisy = np.clip(pixels + rng.normal(0, 45, (height, width, 3)), 0, 255)
    Image.fromarray(noisy.astype(np.uint8)).save(path.with_suffix(".jpg"), quality=85)


def write_text(path: Path, kind: int, rng: np.random.Generator) -> None:
    """Four to sixty words, one in five of the topic."""
    count = int(rng.integers(4, 61))
    topical = rng.random(count) < 0.2
    words = np.where(topical, 1000 * (kind + 1) + rng.integers(0, 40, count), rng.integers(0, 400))
    path.with_suffix(".txt").write_text(" ".join(f"w{w}" for w in words), encoding="utf-8")


def write_rows(path: Path, kind: int, rng: np.random.Generator) -> None:
    """Rows of one region, labelled by its own linear map."""
    own = np.random.default_rng(kind)
    centre, scores = own.normal(0, 1.0, COLUMNS), own.normal(0, 1, (COLUMNS, KINDS))
    x = rng.normal(0, 1, (ROWS, COLUMNS))
    labels = (x @ scores).argmax(axis=1)
    np.savetxt(path.with_suffix(".csv"), np.c_[x + centre, labels], fmt="%.4g", delimiter=",")


WRITERS = {"cnn": write_picture, "texts": write_text, "table": write_rows}


def write_files(name: str, folder: Path) -> tuple[Path, Path]:
    """The nodes' folders and that of the test, in `folder`."""
    rng, nodes, test = np.random.default_rng(0), folder / "nodes", folder / "test"
    for node, samples, mix in zip("abcd", SAMPLES, MIX, strict=True):
        (nodes / node).mkdir(parents=True)
        for k, kind in enumerate(rng.choice(KINDS, samples, p=np.array(mix) / sum(mix))):
            WRITERS[name](nodes / node / f"{kind}-{k}", int(kind), rng)
    test.mkdir()
    for k in range(TESTED):
        WRITERS[name](test / f"{k % KINDS}-{k}", k % KINDS, rng)
    return nodes, test


def nodes_of(name: str) -> SampleProblem:
    """Four nodes: the one with most samples is the slowest, the fast ones hold little."""
    held = [{"samples": count} for count in SAMPLES]
    return four_nodes(held, f"four nodes for {name}", FILE_BYTES[name], RECIPE.epochs)


def made(name: str) -> dict[str, Any]:
    """The user's model, the same one each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return MODELS[name]()


# What is measured.


def one_round(name: str, nodes: Path, test: Path) -> dict[str, dict[str, Any]]:
    """The three ways on the same measured nodes, each from the same weights."""
    given = made(name)
    model = given.pop("model")
    placed = train_samples(
        model, nodes, nodes_of(name), test=test, recipe=RECIPE, engine="testbed", **given
    )
    with placed:
        plan = placed.plan(time_limit_s=10).plan
        runs = placed.run(plan, baselines=["lb-bsp", "weighted", "none"])
    loss = max(run.best_loss for run in runs)
    return {run.name: run.as_json(loss) | {"loss_to_reach": loss} for run in runs}


def measure(names: Sequence[str]) -> None:
    """A table of medians, with the ratios of every round."""
    lines = []
    for name in names:
        with tempfile.TemporaryDirectory(prefix="placewright-") as folder:
            nodes, test = write_files(name, Path(folder))
            rounds = [one_round(name, nodes, test) for _ in range(ROUNDS)]
        for way in rounds[0]:
            runs = [each[way] for each in rounds]
            lines.append((name, way, *_cells(runs, [each["plan"] for each in rounds])))
        print(f"{name} done", file=sys.stderr, flush=True)
    header = ("", "", "predicted", "measured", "moving", "to same loss", "plan's / its", "loss", "")
    print(plain_table((*header[:-1], "accuracy"), lines, "  rrrrrrr"))


def _cells(runs: list[dict[str, Any]], plans: list[dict[str, Any]]) -> tuple[str, ...]:
    def middle(key: str) -> float:
        return float(median(run[key] for run in runs))

    pairs = zip(plans, runs, strict=True)
    ratios = [plan["seconds_to_loss"] / run["seconds_to_loss"] for plan, run in pairs]
    known = all(run["predicted_s"] is not None for run in runs)
    return (
        seconds(middle("predicted_s")) if known else "-",
        seconds(middle("measured_s")),
        seconds(middle("move_s")),
        seconds(middle("seconds_to_loss")),
        ", ".join(f"{ratio:.2f}" for ratio in ratios),
        f"{middle('best_loss'):.3f}",
        "-" if runs[0]["accuracy"] is None else percent(middle("accuracy")),
    )


def compare_weights(name: str, dtype: torch.dtype) -> tuple[float, float, float]:
    """Largest difference of a weight to one process on the same batches.

    Also that of one process with its batches in reverse order, and of the first weights.
    """
    recipe = Recipe(epochs=2, batch=RECIPE.batch)
    given = made(name)
    model, alone, other = (made(name)["model"].to(dtype) for _ in range(3))
    del given["model"]
    first = [p.detach().clone() for p in alone.parameters()]
    with tempfile.TemporaryDirectory(prefix="placewright-") as folder:
        nodes, _ = write_files(name, Path(folder))
        placed = train_samples(model, nodes, nodes_of(name), recipe=recipe, speed=300, **given)
        with placed:
            plan = placed.plan("lp").plan
            placed.train(plan)
        samples, problem = placed.job.samples, placed.problem
        held = held_after(problem, plan)
        train_alone(alone, given, samples, held, recipe)
        train_alone(other, given, samples, held, recipe, step=-1)

    def apart(one: Iterable[Tensor], two: Iterable[Tensor]) -> float:
        pairs = zip(one, two, strict=True)
        return max(float((a - b).detach().abs().max()) for a, b in pairs)

    known = list(alone.parameters())
    return apart(model.parameters(), known), apart(other.parameters(), known), apart(first, known)


def held_after(problem: SampleProblem, plan: SamplePlan) -> list[np.ndarray[Any, Any]]:
    """Numbers of the samples of each node when they have moved."""
    held = [{s for pile in node for s in pile} for node in numbered(problem)]
    for transfer in transfers_of(problem, plan):
        held[transfer.source] -= set(transfer.samples)
        held[transfer.target] |= set(transfer.samples)
    return [np.array(sorted(node), dtype=np.int64) for node in held]


def train_alone(
    model: nn.Module,
    given: dict[str, Any],
    samples: SampleSet,
    held: Sequence[np.ndarray[Any, Any]],
    recipe: Recipe,
    *,
    step: int = 1,
) -> None:
    """Plain PyTorch on the union of the nodes' batches, padded by the user's collate alone.

    `step`: -1 takes the samples of each batch in reverse order.
    """
    kind = torch.optim.Adam if given.get("optimizer") == "adam" else torch.optim.SGD
    optimizer = kind(model.parameters(), lr=given["lr"])
    steps = steps_of(sum(map(len, held)), recipe.batch)
    for epoch in range(recipe.epochs):
        own = [parts(node, steps, recipe.seed, epoch) for node in held]
        for k in range(steps):
            rows = np.concatenate([node[k] for node in own])[::step].tolist()
            inputs, targets = samples.rows(rows)
            optimizer.zero_grad()
            outputs = model(**inputs) if isinstance(inputs, dict) else model(inputs)
            given["loss_fn"](outputs, targets).backward()
            optimizer.step()


def main(*words: str) -> None:
    """One of the three uses."""
    if words[:1] == ("files",):
        for name in MODELS:
            print(*write_files(name, Path(words[1]) / name))
    elif words[:1] == ("equal",):
        for name in words[1:] or MODELS:
            for dtype in (torch.float64, torch.float32):
                apart, reverse, learned = compare_weights(name, dtype)
                print(
                    f"{name}, {dtype}: weights differ by {apart:.2g}; in reverse order by "
                    f"{reverse:.2g}; training changed them by {learned:.2g}"
                )
    else:
        measure(words or list(MODELS))


if __name__ == "__main__":
    run(main)
