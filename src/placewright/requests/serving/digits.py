"""The family ``digits``: networks of four sizes, trained in seconds on scikit-learn's digits.

1,797 images of 8 x 8 pixels; 1,000 are trained on, accuracy is that on the other 797. The largest
variant averages the second largest over nine shifts of the image by at most one pixel.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from placewright.errors import MissingDependencyError
from placewright.numerics.arrays import FloatArray, IntArray
from placewright.requests.serving.families import Family, Variant, make_family
from placewright.requests.serving.models import SERVE, open_session

TRAINED_ON = 1000
PIXELS = 64
EPOCHS = 12
BATCH = 50
SIZES = ("linear", "mlp", "cnn", "cnn-shifted")


@cache
def images() -> tuple[FloatArray, IntArray]:
    """All images, shape (1797, 64), values in [0, 1], in a fixed random order, and their digits."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise MissingDependencyError(
            "scikit-learn", extra=SERVE, purpose="the family digits"
        ) from None
    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    return (data.data[order] / 16.0).astype(np.float32), data.target[order]


def held_out() -> tuple[FloatArray, IntArray]:
    """The images that no variant was trained on, and their digits."""
    x, y = images()
    return x[TRAINED_ON:], y[TRAINED_ON:]


def digits(sizes: Sequence[str] = SIZES) -> Family:
    """Train the variants of these sizes; the same sizes give the same family.

    Raises `MissingDependencyError`: PyTorch, scikit-learn, onnx or ONNX Runtime is not installed.
    """
    weights = {"linear": _linear, "mlp": _mlp, "cnn": _cnn, "cnn-shifted": _shifted}
    models = {size: weights[size]() for size in sizes}
    return make_family(
        "digits", [Variant(size, accuracy(model), model) for size, model in models.items()]
    )


def accuracy(model: bytes) -> float:
    """Share of held-out images that an ONNX file names rightly."""
    x, y = held_out()
    answers = open_session(model, "digits").run(None, {"image": x})[0]
    return float((answers.argmax(axis=1) == y).mean())


def _linear() -> bytes:
    from torch import nn

    return _onnx(_trained(nn.Sequential(nn.Linear(PIXELS, 10)), 1e-2))


def _mlp() -> bytes:
    from torch import nn

    net = nn.Sequential(nn.Linear(PIXELS, 64), nn.ReLU(), nn.Linear(64, 10))
    return _onnx(_trained(net, 4e-3))


@cache
def _trained_cnn() -> Any:
    from torch import nn

    net = nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 16, 10),
    )
    return _trained(net, 4e-3, shifted=True)


def _cnn() -> bytes:
    return _onnx(_trained_cnn())


def _shifted() -> bytes:
    return _onnx(_trained_cnn(), shifts=[(a, b) for a in (-1, 0, 1) for b in (-1, 0, 1)])


def _trained(net: Any, rate: float, *, shifted: bool = False) -> Any:
    """Train with Adam and one cycle of the learning rate; on one thread, so that it is the same."""
    import torch
    from torch.nn.functional import cross_entropy

    x, y = (torch.from_numpy(a[:TRAINED_ON]) for a in images())
    threads = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        torch.set_num_threads(1)
        for module in net:
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()
        optimizer = torch.optim.Adam(net.parameters(), rate)
        steps = EPOCHS * len(y) // BATCH
        cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2 * rate, total_steps=steps)
        for _ in range(EPOCHS):
            for chosen in torch.randperm(len(y)).reshape(-1, BATCH):
                rows = (
                    _shift(x[chosen], *torch.randint(-1, 2, (2,)).tolist())
                    if shifted
                    else x[chosen]
                )
                loss = cross_entropy(net(rows), y[chosen])
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                cycle.step()
        torch.set_num_threads(threads)
    return net


def _shift(rows: Any, down: int, right: int) -> Any:
    from torch.nn.functional import pad

    padded = pad(rows.reshape(-1, 8, 8), (1, 1, 1, 1))
    return padded[:, 1 - down : 9 - down, 1 - right : 9 - right].reshape(-1, PIXELS)


def _onnx(net: Any, shifts: Sequence[tuple[int, int]] = ()) -> bytes:
    """The network with a softmax as an ONNX file, averaged over shifts of the image.

    Written by hand: PyTorch's exporter wants a package more, and nine shifts are one batch here.
    """
    try:
        from onnx import TensorProto, checker, helper
    except ImportError:
        raise MissingDependencyError("onnx", extra=SERVE, purpose="the family digits") from None
    writer = _Writer()
    value = writer.shifted("image", shifts) if shifts else "image"
    for module in net:
        value = writer.layer(module, value)
    value = writer.add("Softmax", value, axis=1)
    if shifts:
        value = writer.add("Reshape", value, writer.constant([-1, len(shifts), 10]))
        value = writer.add("ReduceMean", value, writer.constant([1]), keepdims=0)
    writer.nodes.append(helper.make_node("Identity", [value], ["probabilities"]))
    graph = helper.make_graph(
        writer.nodes,
        "digits",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["rows", PIXELS])],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["rows", 10])],
        writer.constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    checker.check_model(model)
    data: bytes = model.SerializeToString()
    return data


class _Writer:
    """Nodes and constants of an ONNX graph that is being written."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, value: Any) -> str:
        """A constant: weights, or whole numbers."""
        from onnx import numpy_helper

        array = value.detach().numpy() if hasattr(value, "detach") else np.array(value, np.int64)
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def add(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """A node; the name of its value."""
        from onnx import helper

        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def layer(self, module: Any, value: str) -> str:
        """A layer of PyTorch."""
        kind = type(module).__name__
        if kind == "Linear":
            weights = self.constant(module.weight), self.constant(module.bias)
            return self.add("Gemm", value, *weights, transB=1)
        if kind == "Conv2d":
            weights = self.constant(module.weight), self.constant(module.bias)
            return self.add("Conv", value, *weights, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
        if kind == "MaxPool2d":
            return self.add("MaxPool", value, kernel_shape=[2, 2], strides=[2, 2])
        if kind == "Unflatten":
            return self.add("Reshape", value, self.constant([-1, 1, 8, 8]))
        return self.add({"ReLU": "Relu", "Flatten": "Flatten"}[kind], value)

    def shifted(self, value: str, shifts: Sequence[tuple[int, int]]) -> str:
        """Every row once per shift, padded with zeros: rows x shifts, 64."""
        rows = self.add("Reshape", value, self.constant([-1, 8, 8]))
        padded = self.add("Pad", rows, self.constant([0, 1, 1, 0, 1, 1]))
        ends = self.constant([1, 2])
        cuts = [
            self.add(
                "Slice",
                padded,
                self.constant([1 - down, 1 - right]),
                self.constant([9 - down, 9 - right]),
                ends,
            )
            for down, right in shifts
        ]
        together = self.add("Concat", *cuts, axis=1)
        return self.add("Reshape", together, self.constant([-1, PIXELS]))
