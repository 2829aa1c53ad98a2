"""What the benchmarks share: a command line, Markdown tables, rows kept in a file, servers.

A benchmark is a function `main`, whose signature is its command line (`run`). It goes through
cases, gets a row of each (`KeptRows`, where that takes long), and prints them (`Table`).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import Parameter, signature
from pathlib import Path
from statistics import median
from typing import Any, Literal, get_args, get_origin, get_type_hints

from placewright import Cluster, Device, Link, PlacewrightError

DATA = Path(
    os.environ.get("PLACEWRIGHT_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data"
)
"""Published instances, profiles and traces."""


def run(main: Callable[..., Any], words: Sequence[str] | None = None) -> None:
    """Call `main` with the options of the command line, and exit with what it returns.

    Arguments before a ``*`` are positional, ``*names`` any number of them; keyword-only ones are
    options: ``--a-name VALUE``, ``-f VALUE``, several values where the default is a tuple,
    ``--flag`` and ``--no-flag`` of a bool, choices of a `Literal`, ``--out`` and ``--minutes`` of
    `KeptRows`.
    """
    module = sys.modules[main.__module__]
    parser = argparse.ArgumentParser(
        description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parameters, hints = signature(main).parameters, get_type_hints(main)
    for name, parameter in parameters.items():
        _add(parser, parameter, hints[name])
    given = vars(parser.parse_args(words))
    kept, several = KeptRows(), list[Any]()
    for name, parameter in parameters.items():
        if hints[name] is KeptRows:
            given[name] = kept = KeptRows(given.pop("out"), given.pop("minutes"))
        elif parameter.kind is Parameter.VAR_POSITIONAL:
            several = given.pop(name)
        elif given[name] is None:
            given[name] = parameter.default
    first = [given.pop(n) for n, p in parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    found = main(*first, *several, **given)
    kept.print_left()
    sys.exit(found)


def _add(parser: argparse.ArgumentParser, parameter: Parameter, hint: Any) -> None:
    """An argument of `main` as one of the command line; what is not given is ``None``."""
    if hint is KeptRows:
        parser.add_argument("--out", type=Path, help="keep rows here, and take them from here")
        parser.add_argument("--minutes", type=float, default=math.inf, help="begin none later")
        return
    several = get_origin(hint) is tuple
    kind = next((t for t in get_args(hint) if t not in (None, type(None), ...)), hint)
    kind = hint if get_origin(hint) is Literal else kind
    how: dict[str, Any] = {"type": kind}
    if get_origin(kind) is Literal:
        how = {"choices": get_args(kind), "type": type(get_args(kind)[0])}
    if parameter.kind is Parameter.VAR_POSITIONAL:
        parser.add_argument(parameter.name, nargs="*", **how)
    elif parameter.kind is Parameter.POSITIONAL_OR_KEYWORD:
        optional = parameter.default is not Parameter.empty
        parser.add_argument(parameter.name, nargs="?" if optional else None, **how)
    else:
        name = parameter.name.strip("_").replace("_", "-")
        option = f"--{name}" if len(name) > 1 else f"-{name}"
        if kind is bool:
            how = {"action": argparse.BooleanOptionalAction}
        elif several:
            how |= {"action": "extend", "nargs": "*"}
        parser.add_argument(option, dest=parameter.name, **how)


class Table:
    """A Markdown table, printed row by row; all columns but the first `left` end flush."""

    def __init__(self, *head: str, left: int = 1) -> None:
        self.row(*head)
        print(f"|{'---|' * left}{'---:|' * (len(head) - left)}", flush=True)

    def row(self, *cells: object) -> None:
        """Print a row."""
        print(f"| {' | '.join(map(str, cells))} |", flush=True)


class KeptRows:
    """Rows by key: those of a file, and those computed now, which the file gets, a line each.

    A benchmark with ``--out FILE --minutes M`` does not compute rows again that FILE holds, begins
    none that may not end within M minutes, and says how many are left; the same command goes on
    from there.
    """

    def __init__(self, file: Path | None = None, minutes: float = math.inf) -> None:
        self.file, self.end_s = file, time.monotonic() + 60 * minutes
        self.known: dict[str, Any] = {}
        self.left, self.longest_s = 0, 0.0
        if file is not None and file.exists():
            rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
            self.known = {row["key"]: row["row"] for row in rows}

    def get(self, key: str, compute: Callable[[], Any]) -> Any:
        """The row of a key; ``None`` where it is not known and there is no time, or it failed."""
        if key in self.known:
            return self.known[key]
        begun_s = time.monotonic()
        if begun_s + self.longest_s > self.end_s:
            self.left += 1
            return None
        try:
            self.known[key] = compute()
        except PlacewrightError as error:
            print(f"{key}: {error}", file=sys.stderr, flush=True)
            self.left += 1
            return None
        self.longest_s = max(self.longest_s, time.monotonic() - begun_s)
        if self.file is not None:
            with self.file.open("a", encoding="utf-8") as out:
                out.write(json.dumps({"key": key, "row": self.known[key]}) + "\n")
        return self.known[key]

    def print_left(self) -> None:
        """How many rows another call has to compute."""
        if self.left:
            print(f"{self.left} rows are left: run the same command again.")


def accuracy(predicted: Sequence[float], measured: Sequence[float]) -> str:
    """Errors relative to what was measured, and Spearman's rank correlation."""
    from scipy.stats import spearmanr

    off = sorted(abs(p / m - 1) for p, m in zip(predicted, measured, strict=True))
    within = sum(x <= 0.05 for x in off)
    rank = f"{spearmanr(predicted, measured).statistic:.3f}" if len(off) > 1 else "-"
    return (
        f"median error {median(off):.1%}, 90th percentile {off[int(0.9 * (len(off) - 1))]:.1%}, "
        f"largest {off[-1]:.1%}, within 5 %: {within} of {len(off)}; rank correlation {rank}"
    )


def joined(
    name: str,
    speeds: Mapping[str, float],
    bandwidth: float = 1.25e8,
    latency_s: float = 2e-4,
    **device: Any,
) -> Cluster:
    """Devices of these speeds on a node each, a link between every two; bytes per second."""
    devices = tuple(Device(n, node=n, speed=s, **device) for n, s in speeds.items())
    links = tuple(Link(a, b, bandwidth, latency_s) for a in speeds for b in speeds if a != b)
    return Cluster(devices, links, name)


@contextmanager
def server(*words: str, **how: Any) -> Iterator[tuple[dict[str, Any], subprocess.Popen[str]]]:
    """``placewright WORDS -f json`` in a process of its own: what it prints once it listens."""
    command = [sys.executable, "-P", "-m", "placewright", *words, "-f", "json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **how)
    assert process.stdout is not None
    text = ""
    try:
        while not text.rstrip().endswith("}"):
            line = process.stdout.readline()
            if not line:
                raise SystemExit(f"the server has ended with code {process.wait()}")
            text += line
        yield json.loads(text), process
    finally:
        process.terminate()
        process.wait(60)


def onnx_model(ends: str, nodes: str, **constants: Any) -> bytes:
    """An ONNX file from the notation of ONNX's parser; `constants` are initializers.

    `ends`: ``(float[n, 8] x) => (float[n, 8] y)``; `nodes`: ``h = Relu (x); y = Exp (h)``.
    """
    import numpy as np
    from onnx import numpy_helper, parser

    head = '<ir_version: 9, opset_import: ["" : 20, "ai.onnx.ml" : 3, "own" : 1]>'
    model = parser.parse_model(f"{head} g {ends} {{ {nodes.replace(';', ' ')} }}")
    given = [numpy_helper.from_array(np.asarray(value), n) for n, value in constants.items()]
    model.graph.initializer.extend(given)
    return bytes(model.SerializeToString())


def llama(words: int, width: int, inner: int, layers: int, heads: int, **settings: Any) -> Any:
    """A Llama of transformers with random weights, whose texts do not end by themselves."""
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=words,
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        eos_token_id=None,
        pad_token_id=0,
        **settings,
    )
    loader: Any = transformers.AutoModelForCausalLM
    return loader.from_config(config).eval()
