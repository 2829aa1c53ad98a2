"""What a loop or a process does around a placed model, each beside the same in eager PyTorch."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from harness import onnx_model
from placewright import Cluster, Device, place, train
from placewright.errors import PlacewrightError

DUO = Cluster((Device("a"), Device("b")), name="two")

Change = Callable[[Any, Any], object]


def _net(norm: Callable[[int], nn.Module] = nn.BatchNorm1d) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 6), nn.Dropout(0.0), norm(6), nn.Linear(6, 6), nn.Linear(6, 3)
    )


def _batch() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(8, 6), torch.randn(8, 3)


def _group(**settings: Any) -> Change:
    return lambda model, optimizer: optimizer.param_groups[0].update(settings)


def _of_part(k: int, **attributes: Any) -> Change:
    return lambda model, optimizer: vars(model[k]).update(attributes)


@torch.no_grad()
def _clamp(model: Any, optimizer: Any) -> None:
    for p in model.parameters():
        p.clamp_(-0.05, 0.05)


def _halve(model: Any, optimizer: Any) -> None:
    model.load_state_dict({k: v * 0.5 for k, v in model.state_dict().items()})


CHANGES: dict[str, tuple[Change, type[torch.optim.Optimizer]]] = {
    "freeze a layer": (lambda m, o: m[0].requires_grad_(False), torch.optim.SGD),
    "freeze under Adam": (lambda m, o: m[0].requires_grad_(False), torch.optim.Adam),
    "clamp weights": (_clamp, torch.optim.SGD),
    "load_state_dict": (_halve, torch.optim.SGD),
    "dropout's p": (_of_part(1, p=1.0), torch.optim.SGD),
    "a norm to evaluation": (lambda m, o: m[2].eval(), torch.optim.SGD),
    "a norm's momentum": (_of_part(2, momentum=0.5), torch.optim.SGD),
    "another layer": (lambda m, o: m.__setitem__(3, nn.Identity()), torch.optim.SGD),
    "a hook": (
        lambda m, o: m[3].register_forward_hook(lambda _m, _i, y: y * 2),
        torch.optim.SGD,
    ),
    "learning rate": (_group(lr=0.01), torch.optim.SGD),
    "momentum": (_group(momentum=0.9), torch.optim.SGD),
    "weight decay": (_group(weight_decay=0.1), torch.optim.AdamW),
    "betas": (_group(betas=(0.5, 0.9)), torch.optim.Adam),
    "cleared state": (lambda m, o: o.state.clear(), torch.optim.Adam),
    "loaded state": (lambda m, o: o.load_state_dict(o.state_dict()), torch.optim.Adam),
    "default dtype": (lambda m, o: torch.set_default_dtype(torch.float64), torch.optim.SGD),
}
"""Before the third of five steps."""


@contextmanager
def _settings() -> Iterator[None]:
    """One thread, as the workers have, and the settings of the process put back."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_default_dtype(torch.float32)
        torch.backends.mkldnn.set_flags(True)  # type: ignore[no-untyped-call]


def _eager(model: nn.Module, change: Change, make: Any) -> list[float]:
    optimizer, (x, y), losses = make(model.parameters(), lr=0.1), _batch(), []
    for k in range(5):
        if k == 2:
            change(model, optimizer)
        optimizer.zero_grad()
        loss = functional.mse_loss(model(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    return losses


def _apart(found: list[float], wanted: list[float], mine: nn.Module, eager: nn.Module) -> float:
    """Largest difference of losses, parameters and buffers."""
    pairs = zip(mine.state_dict().values(), eager.state_dict().values(), strict=True)
    off = [float((a.double() - b.double()).abs().max()) for a, b in pairs]
    return max([*off, *(abs(a - b) for a, b in zip(found, wanted, strict=True))])


def changed_between_steps(change: Change, make: type[torch.optim.Optimizer]) -> float:
    """By how much a trainer differs from a loop that does the same."""
    with _settings():
        model, (x, y), found = _net(), _batch(), []
        eager, optimizer = copy.deepcopy(model), make(model.parameters(), lr=0.1)  # type: ignore[call-arg]
        how: Any = {"loss_fn": functional.mse_loss, "targets": y, "optimizer": optimizer}
        fast: Any = {"planner": "round-robin", "method": "analytic"}
        with (
            place(model, x, DUO, training=True, **how, **fast) as placed,
            placed.trainer(adapt=False) as trainer,
        ):
            for k in range(5):
                if k == 2:
                    change(model, optimizer)
                found.append(float(trainer.step(x, y)))
            trainer.finish()
        torch.set_default_dtype(torch.float32)
        return _apart(found, _eager(eager, change, make), model, eager)


def changed_between_layer_steps(change: Change) -> float:
    """The same, of `train`, by plain SGD."""
    with _settings():
        model, (x, y), found = _net(nn.LayerNorm), _batch(), []
        eager = copy.deepcopy(model)
        how: Any = {"loss_fn": functional.mse_loss, "targets": y, "optimizer": "sgd", "lr": 0.1}
        how |= {"planner": "single", "trials": False}
        with (
            train(model, (x,), DUO, **how) as placed,
            placed.trainer(adapt=False) as trainer,
        ):
            for k in range(5):
                if k == 2:
                    model.state_dict()  # what is changed has to be the newest
                    change(model, None)
                found.append(trainer.step((x,), y))
        wanted = _eager(eager, change, torch.optim.SGD)
        off = _apart(found, wanted, model, eager)
        return 0.0 if off < 1e-5 else off


CALLS: dict[str, Callable[[Any], object]] = {
    "weights": lambda m: _halve(m, None),
    "a mode": lambda m: m[2].train(),
    "an attribute": lambda m: vars(m[2]).update(eps=0.5),
    "a buffer": lambda m: m[2].running_var.mul_(4.0),
    "a hook": lambda m: m[3].register_forward_hook(lambda _m, _i, y: y * 2),
    "another layer": lambda m: m.__setitem__(3, nn.Identity()),
    "default dtype": lambda m: torch.set_default_dtype(torch.float64),
    "oneDNN off": lambda m: torch.backends.mkldnn.set_flags(False),  # type: ignore[no-untyped-call]
    "autocast": lambda m: m.register_forward_pre_hook(lambda *_: None),
}
"""Before the second of two calls in evaluation; autocast is around both calls."""


def changed_between_calls(change: Callable[[Any], object], *, autocast: bool = False) -> float:
    """By how much calls of a placed model differ from calls of the model."""
    with _settings(), torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        model, (x, _), off = _net().eval(), _batch(), 0.0
        with place(model, x, DUO, planner="round-robin", method="analytic") as placed:
            for k in range(2):
                if k:
                    change(model)
                twin = copy.deepcopy(model)
                found, wanted = placed(x), twin(x)
                off = max(off, float((found - wanted).abs().max()))
                off = off if found.dtype == wanted.dtype else float("inf")
    return off


def _onnx(folder: str, kind: str) -> str:
    """A file whose outputs are special, or in float16."""
    dtype = "float16" if kind == "float16" else "float"
    drawn = np.random.default_rng(0).standard_normal((2, 8, 8)) / 3
    weights = drawn.astype(np.float16 if kind == "float16" else np.float32)
    outputs, nodes = f"{dtype}[4, 8] y", "h = MatMul (x, w0); r = Relu (h); y = MatMul (r, w1)"
    if kind == "an initializer as output":
        outputs += ", float[8, 8] w1"
    if kind == "a constant as output":
        outputs, nodes = f"{outputs}, float[3] k", f"{nodes}; k = Constant <value = {ONES}> ()"
    data = onnx_model(f"({dtype}[4, 8] x) => ({outputs})", nodes, w0=weights[0], w1=weights[1])
    Path(folder, "m.onnx").write_bytes(data)
    return "m.onnx"


ONES = "float[3] {1.0, 1.0, 1.0}"

KERAS = """
import keras, numpy as np
def model():
    a, z = keras.Input((3,), name="a"), keras.Input((4,), name="z")
    out = keras.layers.Dense(2)(keras.layers.Concatenate()([z, a]))
    rng = np.random.default_rng(0)
    rows = lambda n: rng.standard_normal((2, n)).astype("float32")
    return keras.Model({"z": z, "a": a}, out), {"a": rows(3), "z": rows(4)}
"""


def checked_by_command(make: Callable[[str], str], *options: str) -> float:
    """A file or a model of another framework, by ``operators run --check``."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "two.yaml").write_text("devices:\n  - {name: a}\n  - {name: b}\n")
        command = [os.path.join(os.path.dirname(sys.executable), "placewright"), "operators", "run"]
        ran = subprocess.run(
            [*command, make(folder), "--on", "two.yaml", "--planner", "round-robin", "--check",
             "--steps", "2", *options],
            cwd=folder, capture_output=True, text=True, check=False,
        )  # fmt: skip
    if ran.returncode == 0:
        return 0.0
    if "error:" in ran.stderr and "next:" in ran.stderr and "check" not in ran.stderr:
        raise PlacewrightError(ran.stderr.partition("error:")[2])
    raise RuntimeError(ran.stderr[-600:])


def _keras(folder: str) -> str:
    Path(folder, "nets.py").write_text(KERAS)
    return "tensorflow:nets:model"


SITUATIONS: Mapping[str, Callable[[], float]] = {
    **{f"steps: {n}": partial(changed_between_steps, *c) for n, c in CHANGES.items()},
    **{
        f"layer steps: {n}": partial(changed_between_layer_steps, CHANGES[n][0])
        for n in ("freeze a layer", "load_state_dict", "dropout's p", "a norm to evaluation")
    },
    **{
        f"calls: {n}": partial(changed_between_calls, c, autocast=n == "autocast")
        for n, c in CALLS.items()
    },
    **{
        f"ONNX: {kind}": partial(checked_by_command, partial(_onnx, kind=kind))
        for kind in ("an initializer as output", "a constant as output", "float16")
    },
    "Keras: inputs by name": partial(checked_by_command, _keras),
}
"""Name -> a function that gives the largest difference from eager, or raises what it refuses."""
