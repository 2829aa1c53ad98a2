"""Serve some forty models as users bring them: answers equal their runtime's, or are refused.

    python benchmarks/serving_models.py [--requests 20000] [--seed 0]

PyTorch exports (default with weights beside the file, and TorchScript's), models of ONNX operators,
pipelines of scikit-learn (needs `pip install skl2onnx`), PyTorch programs and a factory. One server
process with two workers has all that can be served; requests of 1 to 3 rows, of random models, as
JSON or binary tensors, come from eight clients. Each answer is compared with what the model's own
runtime computes of each row alone. What cannot be served has to be refused at the start.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import torch
import yaml
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from placewright.errors import PlacewrightError
from placewright.report.text import plain_table
from placewright.requests.serving.families import read_family
from placewright.requests.serving.server import ServingOptions, serve
from placewright.requests.serving.tensors import NUMPY, Array, to_bytes

FLOAT, INT, TEXT, BOOL = (
    TensorProto.FLOAT,
    TensorProto.INT64,
    TensorProto.STRING,
    TensorProto.BOOL,
)
KINDS = {np.dtype(kind): name for name, kind in NUMPY.items()}
TOLERANCE = {"f2": 5e-3, "f4": 1e-4, "f8": 1e-10}
"""Of the largest output: batches of matrix products add up in another order than one row."""

POOL, CLIENTS = 24, 8
"""Requests of each model that are drawn, and clients at once."""

Inputs = dict[str, Array]
Draw = Callable[[np.random.Generator, int], Inputs]


@dataclass(frozen=True)
class Model:
    """A model as a user has it.

    `file`: of the variant; with `factory` none. `data`: of the file, unless `save` writes it.
    `layout`: other keys of the family's file. `rows`: of the batch that its runtime takes.
    `refused`: what the message has to say where it cannot be served.
    `tolerance`: other than that of its datatype. `apart`: by `default_export`.
    """

    data: bytes
    draw: Draw
    file: str = "model.onnx"
    factory: str = ""
    layout: Mapping[str, Any] = field(default_factory=dict)
    rows: int = 1
    whole: bool = False
    refused: str = ""
    tolerance: float = 0.0
    apart: bool = False


# PyTorch


class Residual(nn.Module):
    """Two convolutions and the way around them, with or without a gate."""

    def __init__(self, channels: int, gated: bool = False, groups: int = 1) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, groups=groups),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 1),
        )
        self.gate = nn.Sequential(nn.Conv2d(channels, channels, 1), nn.Sigmoid()) if gated else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As in residual and squeeze-and-excitation networks."""
        found = self.body(x)
        if self.gate is not None:
            found = found * self.gate(found.mean((2, 3), keepdim=True))
        return torch.relu(x + found)


class Encoder(nn.Module):
    """Tokens to a vector, by attention that sees a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, 16)
        self.query, self.key, self.value = (nn.Linear(16, 16) for _ in range(3))
        self.head = nn.Linear(16, 3)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Logits of the mean over what the mask keeps."""
        x = self.embed(ids)
        scores = self.query(x) @ self.key(x).transpose(1, 2) / 4
        scores = scores + (mask[:, None, :] - 1) * 1e4
        x = torch.softmax(scores, -1) @ self.value(x) * mask[:, :, None]
        return self.head(x.sum(1) / mask.sum(1, keepdim=True).clamp(min=1))  # type: ignore[no-any-return]


class Ranker(nn.Module):
    """A score of two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.user, self.item = nn.Linear(8, 16), nn.Linear(5, 16)

    def forward(self, user: torch.Tensor, item: torch.Tensor) -> torch.Tensor:
        """One number per row."""
        return (self.user(user) * self.item(item)).sum(1, keepdim=True)  # type: ignore[no-any-return]


class Recurrent(nn.Module):
    """An LSTM."""

    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.body, self.batch_first = nn.LSTM(6, 8, batch_first=batch_first), batch_first

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The last hidden state of each row; of all steps where time comes first."""
        found = self.body(x)[0]
        return found[:, -1] if self.batch_first else found  # type: ignore[no-any-return]


def classifier(*blocks: nn.Module, size: int = 8) -> nn.Module:
    """A convolution, blocks, the mean over places, and ten logits."""
    return nn.Sequential(
        nn.Conv2d(3, size, 3, padding=1),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(size, 10),
    ).eval()


def exported(
    module: nn.Module, example: Sequence[torch.Tensor], names: Sequence[str], *, open_: str = "0"
) -> bytes:
    """An ONNX file by TorchScript's exporter; `open_`: axes that are open, the batch among them."""
    axes = {
        name: {int(a): f"d{a}" for a in open_ if int(a) < each.dim()}
        for name, each in zip(names, example, strict=True)
    }
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = str(Path(folder) / "m.onnx")
        torch.onnx.export(
            module.eval(),
            tuple(example),
            path,
            input_names=list(names),
            output_names=["y"],
            dynamic_axes=axes | {"y": {0: "d0"}},
            dynamo=False,
            opset_version=17,
        )
        return Path(path).read_bytes()


def default_export(folder: Path) -> None:
    """What `torch.onnx.export` writes unless it is told otherwise: weights beside the file."""
    torch.manual_seed(6)
    module = classifier(Residual(16), nn.MaxPool2d(2), Residual(16), size=16)
    rows = torch.export.Dim("rows", max=64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module,
            (torch.zeros(2, 3, 12, 12),),
            str(folder / "model.onnx"),
            input_names=["x"],
            output_names=["y"],
            dynamic_shapes=({0: rows},),
            external_data=True,
            verbose=False,
        )


def images(*shape: int) -> Draw:
    """Images of one shape."""
    return lambda rng, rows: {"x": rng.standard_normal((rows, *shape)).astype(np.float32)}


def tokens(least: int, most: int) -> Draw:
    """Sentences of one length in each request."""

    def draw(rng: np.random.Generator, rows: int) -> Inputs:
        length = int(rng.integers(least, most + 1))
        return {
            "ids": rng.integers(1, 99, (rows, length)),
            "mask": np.ones((rows, length), np.float32),
        }

    return draw


# ONNX operators


def node(kind: str, inputs: str, outputs: str, **how: Any) -> Any:
    """One operator."""
    return helper.make_node(kind, inputs.split(), outputs.split(), **how)


def graph(
    nodes: list[Any],
    inputs: Mapping[str, tuple[int, list[Any]]],
    outputs: Mapping[str, tuple[int, list[Any]]],
    **constants: Any,
) -> bytes:
    """An ONNX file of these operators."""
    made = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(n, *each) for n, each in inputs.items()],
        [helper.make_tensor_value_info(n, *each) for n, each in outputs.items()],
        [numpy_helper.from_array(np.asarray(v), n) for n, v in constants.items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", 3)]
    data: bytes = helper.make_model(made, opset_imports=opsets, ir_version=10).SerializeToString()
    return data


def linear(rows: Any, kind: int = FLOAT, dtype: Any = np.float32) -> bytes:
    """Rows of eight numbers times a matrix."""
    weight = np.random.default_rng(1).standard_normal((8, 4)).astype(dtype)
    return graph(
        [node("MatMul", "x w", "y")], {"x": (kind, [rows, 8])}, {"y": (kind, [rows, 4])}, w=weight
    )


def numbers(dtype: Any = np.float32, size: int = 8) -> Draw:
    """Rows of numbers."""
    return lambda rng, rows: {"x": rng.standard_normal((rows, size)).astype(dtype)}


def whole_numbers(dtype: Any, low: int, high: int) -> Draw:
    """Rows of eight whole numbers."""
    return lambda rng, rows: {"x": rng.integers(low, high, (rows, 8)).astype(dtype)}


WORDS = ("good", "bad", "film", "the", "a", "d\u00f6g", "\u732b")


def text(rng: np.random.Generator, rows: int) -> Inputs:
    """A sentence in each row."""
    found = [" ".join(rng.choice(np.array(WORDS), int(rng.integers(1, 9)))) for _ in range(rows)]
    return {"text": np.array(found, object)}


def text_encoder() -> bytes:
    """Sentences are split into words, words become numbers, numbers vectors, these a mean."""
    table = np.random.default_rng(2).standard_normal((len(WORDS) + 1, 4)).astype(np.float32)
    table[-1] = 0.0
    return graph(
        [
            node("StringSplit", "text", "words counts", delimiter=" "),
            node(
                "LabelEncoder",
                "words",
                "ids",
                domain="ai.onnx.ml",
                keys_strings=list(WORDS),
                values_int64s=list(range(len(WORDS))),
                default_int64=len(WORDS),
            ),
            node("Gather", "table ids", "vectors"),
            node("ReduceSum", "vectors one", "total", keepdims=0),
            node("Cast", "counts", "n", to=FLOAT),
            node("Unsqueeze", "n one", "column"),
            node("Div", "total column", "y"),
        ],
        {"text": (TEXT, ["rows"])},
        {"y": (FLOAT, ["rows", 4])},
        table=table,
        one=np.array([1]),
    )


def labels() -> bytes:
    """A word becomes its number, and is returned."""
    encoder = node(
        "LabelEncoder",
        "words",
        "numbers",
        domain="ai.onnx.ml",
        keys_strings=list(WORDS),
        values_int64s=list(range(len(WORDS))),
        default_int64=-1,
    )
    return graph(
        [encoder, node("Identity", "words", "same")],
        {"words": (TEXT, ["n", 2])},
        {"numbers": (INT, ["n", 2]), "same": (TEXT, ["n", 2])},
    )


def boxes_nms() -> bytes:
    """Boxes of one image that non-maximum suppression leaves, as rows of six numbers."""
    return graph(
        [
            node("NonMaxSuppression", "boxes scores most overlap least", "found"),
            node("Gather", "found two", "which", axis=1),
            node("Squeeze", "boxes zero", "flat"),
            node("Gather", "flat which", "corners"),
            node("Squeeze", "scores front", "one"),
            node("Gather", "one which", "score"),
            node("Unsqueeze", "score last", "score_column"),
            node("Cast", "which", "number", to=FLOAT),
            node("Unsqueeze", "number last", "number_column"),
            node("Concat", "corners score_column number_column", "detections", axis=1),
        ],
        {"boxes": (FLOAT, [1, 12, 4]), "scores": (FLOAT, [1, 1, 12])},
        {"detections": (FLOAT, ["n_boxes", 6])},
        most=np.array([12]),
        overlap=np.array([0.3], np.float32),
        least=np.array([0.2], np.float32),
        two=np.array(2),
        zero=np.array([0]),
        front=np.array([0, 1]),
        last=np.array([1]),
    )


def some_boxes(rng: np.random.Generator, rows: int) -> Inputs:
    """Corners and scores of one image."""
    low = rng.random((1, 12, 2))
    corners = np.concatenate([low, low + rng.random((1, 12, 2))], 2).astype(np.float32)
    return {"boxes": corners, "scores": rng.random((1, 1, 12)).astype(np.float32)}


def quantised() -> bytes:
    """A matrix product in 8 bits with fixed scales."""
    weight = np.random.default_rng(3).integers(-99, 99, (8, 4)).astype(np.int8)
    return graph(
        [
            node("QuantizeLinear", "x s z", "q"),
            node("QLinearMatMul", "q s z w ws wz ys yz", "p"),
            node("DequantizeLinear", "p ys yz", "y"),
        ],
        {"x": (FLOAT, ["n", 8])},
        {"y": (FLOAT, ["n", 4])},
        w=weight,
        s=np.float32(0.05),
        z=np.uint8(128),
        ws=np.float32(0.01),
        wz=np.int8(0),
        ys=np.float32(0.05),
        yz=np.uint8(128),
    )


def dynamic_quantised() -> bytes:
    """A matrix product in 8 bits whose scale is that of the batch."""
    weight = np.random.default_rng(3).integers(-99, 99, (8, 4)).astype(np.int8)
    return graph(
        [
            node("DynamicQuantizeLinear", "x", "q s z"),
            node("MatMulInteger", "q w z wz", "p"),
            node("Cast", "p", "f", to=FLOAT),
            node("Mul", "f s", "y"),
        ],
        {"x": (FLOAT, ["n", 8])},
        {"y": (FLOAT, ["n", 4])},
        w=weight,
        wz=np.int8(0),
    )


def whole_arithmetic() -> bytes:
    """8-bit numbers in, 32-bit numbers out."""
    weight = np.random.default_rng(3).integers(-9, 9, (8, 4)).astype(np.int8)
    return graph(
        [node("MatMulInteger", "x w", "y")],
        {"x": (TensorProto.INT8, ["n", 8])},
        {"y": (TensorProto.INT32, ["n", 4])},
        w=weight,
    )


def logic() -> bytes:
    """Which of two flags differ, and whether any does."""
    return graph(
        [
            node("Xor", "x other", "differs"),
            node("Cast", "differs", "number", to=INT),
            node("ReduceMax", "number one", "most", keepdims=1),
            node("Cast", "most", "any", to=BOOL),
        ],
        {"x": (BOOL, ["n", 8])},
        {"differs": (BOOL, ["n", 8]), "any": (BOOL, ["n", 1])},
        other=np.arange(8) % 2 == 0,
        one=np.array([1]),
    )


def picture() -> bytes:
    """Bytes of an image, normalised within the model."""
    return graph(
        [
            node("Cast", "x", "f", to=FLOAT),
            node("Div", "f most", "n"),
            node("ReduceMean", "n axes", "y", keepdims=0),
        ],
        {"x": (TensorProto.UINT8, ["n", 6, 6, 3])},
        {"y": (FLOAT, ["n", 3])},
        most=np.float32(255),
        axes=np.array([1, 2]),
    )


def best_three() -> bytes:
    """The three largest of eight numbers, and where they are."""
    return graph(
        [node("TopK", "x three", "values places", axis=1)],
        {"x": (FLOAT, ["n", 8])},
        {"values": (FLOAT, ["n", 3]), "places": (INT, ["n", 3])},
        three=np.array([3]),
    )


def candidates() -> bytes:
    """Scores of any number of candidates for a user."""
    return graph(
        [
            node("Unsqueeze", "user one", "u"),
            node("Mul", "u items", "m"),
            node("ReduceSum", "m last", "scores", keepdims=0),
        ],
        {"user": (FLOAT, ["n", 8]), "items": (FLOAT, ["n", "k", 8])},
        {"scores": (FLOAT, ["n", "k"])},
        one=np.array([1]),
        last=np.array([2]),
    )


def some_candidates(rng: np.random.Generator, rows: int) -> Inputs:
    """A user and up to eight candidates in each row."""
    k = int(rng.integers(1, 9))
    return {
        "user": rng.standard_normal((rows, 8)).astype(np.float32),
        "items": rng.standard_normal((rows, k, 8)).astype(np.float32),
    }


def over_batch() -> bytes:
    """Softmax over the batch, as a wrong axis makes it."""
    return graph(
        [node("Softmax", "x", "y", axis=0)], {"x": (FLOAT, ["n", 8])}, {"y": (FLOAT, ["n", 8])}
    )


def turned() -> bytes:
    """The batch is the second dimension of the output."""
    return graph([node("Transpose", "x", "y")], {"x": (FLOAT, ["n", 8])}, {"y": (FLOAT, [8, "n"])})


def total() -> bytes:
    """A number for the whole batch."""
    return graph(
        [node("ReduceSum", "x", "y", keepdims=0)], {"x": (FLOAT, ["n", 8])}, {"y": (FLOAT, [])}
    )


# scikit-learn


def sklearn_models() -> dict[str, Model]:
    """Pipelines by skl2onnx; none where it is not installed."""
    try:
        from skl2onnx import convert_sklearn
        from skl2onnx.common.data_types import FloatTensorType, StringTensorType
    except ImportError:
        print("skl2onnx is not installed: pipelines of scikit-learn are left out")
        return {}
    from sklearn.compose import ColumnTransformer
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((200, 8)).astype(np.float32), rng.integers(0, 3, 200)
    color = np.array(["red", "blue", "green"], object)
    table = np.empty((200, 2), object)
    table[:, 0], table[:, 1] = rng.choice(color, 200), rng.choice(color, 200)
    rows = [("x", FloatTensorType([None, 8]))]
    pipeline = make_pipeline(StandardScaler(), LogisticRegression()).fit(x, y)
    forest = RandomForestClassifier(12, max_depth=5, random_state=0).fit(x, y)
    columns = make_pipeline(
        ColumnTransformer([("c", OneHotEncoder(handle_unknown="ignore"), [0, 1])]),
        LogisticRegression(),
    ).fit(table, y)

    def made(model: Any, types: Any, zipmap: Any = False) -> bytes:
        found = convert_sklearn(model, initial_types=types, options={"zipmap": zipmap})
        data: bytes = found.SerializeToString()
        return data

    def colors(rng: np.random.Generator, rows: int) -> Inputs:
        return {"colors": rng.choice(np.append(color, "none"), (rows, 2)).astype(object)}

    return {
        "sklearn scaler and logistic regression": Model(made(pipeline, rows), numbers()),
        "sklearn random forest": Model(made(forest, rows), numbers()),
        "sklearn columns of strings": Model(
            made(columns, [("colors", StringTensorType([None, 2]))]), colors
        ),
        "sklearn with a list of dictionaries": Model(
            made(pipeline, rows, True), numbers(), refused="zipmap"
        ),
    }


FACTORY = """
import numpy as np

def factory():
    import torch
    torch.manual_seed(5)
    layers = torch.nn.Linear(12, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2)
    net = torch.nn.Sequential(*layers).eval()

    def infer(inputs):
        texts = [str(t) for t in inputs["text"][:, 0]]
        codes = np.zeros((len(texts), 12), np.float32)
        for k, each in enumerate(texts):
            for c, letter in enumerate(each[:12]):
                codes[k, c] = ord(letter) % 64 / 64
        with torch.inference_mode():
            found = net(torch.from_numpy(codes)).argmax(1).numpy()
        return {"label": np.array([["no"], ["yes"]], object)[found]}

    return infer
"""


def torch_programs() -> dict[str, Model]:
    """TorchScript, `torch.export`, and a factory with what comes before and after the network."""
    torch.manual_seed(4)
    net = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)).eval()
    x = {"inputs": {"x": {"datatype": "FP32", "shape": [-1, 8]}}}
    y = {"outputs": {"y": {"datatype": "FP32", "shape": [-1, 4]}}}
    said = {
        "inputs": {"text": {"datatype": "BYTES", "shape": [-1, 1]}},
        "outputs": {"label": {"datatype": "BYTES", "shape": [-1, 1]}},
    }
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        script, program = str(Path(folder) / "m.pt"), str(Path(folder) / "m.pt2")
        torch.jit.script(net).save(script)  # type: ignore[no-untyped-call]
        rows = torch.export.Dim("rows", max=64)
        torch.export.save(
            torch.export.export(net, (torch.zeros(2, 8),), dynamic_shapes=({0: rows},)), program
        )
        script_data, program_data = Path(script).read_bytes(), Path(program).read_bytes()

    def column(rng: np.random.Generator, rows: int) -> Inputs:
        return {"text": text(rng, rows)["text"][:, None]}

    return {
        "TorchScript": Model(script_data, numbers(), file="model.pt", layout=x | y),
        "torch.export": Model(program_data, numbers(), file="model.pt2", layout=x | y),
        "factory with pre-processing": Model(
            FACTORY.encode(), column, factory="own_factory:factory", layout=said
        ),
        "TorchScript without its inputs": Model(
            script_data, numbers(), file="model.pt", refused="inputs and outputs"
        ),
    }


def models() -> dict[str, Model]:
    """All of them by name."""
    torch.manual_seed(0)
    image, wide = torch.zeros(2, 3, 16, 16), torch.zeros(2, 3, 12, 14)
    ids, mask = torch.ones(2, 6, dtype=torch.int64), torch.ones(2, 6)
    vgg = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
    net = classifier(Residual(8))

    def of_images(module: nn.Module) -> Model:
        return Model(exported(module, [image], ["x"]), images(3, 16, 16))

    segment = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.MaxPool2d(2),
        Residual(8),
        nn.Upsample(scale_factor=2),
        nn.Conv2d(8, 2, 1),
    )
    ragged = {"dimensions": {"d1": [4, 8, 16]}, "padding": True}
    sizes = {"dimensions": {"d2": [12, 16], "d3": [10, 14]}}
    time_first = exported(Recurrent(False), [torch.zeros(5, 2, 6)], ["x"], open_="0")

    def two(rng: np.random.Generator, rows: int) -> Inputs:
        found = rng.standard_normal((rows, 13)).astype(np.float32)
        return {"user": found[:, :8], "item": np.ascontiguousarray(found[:, 8:])}

    def any_size(rng: np.random.Generator, rows: int) -> Inputs:
        shape = (rows, 3, int(rng.choice([12, 16])), int(rng.choice([10, 14])))
        return {"x": rng.standard_normal(shape).astype(np.float32)}

    def steps(rng: np.random.Generator, rows: int) -> Inputs:
        return {"x": rng.standard_normal((rows, 5, 6)).astype(np.float32)}

    def pictures(rng: np.random.Generator, rows: int) -> Inputs:
        return {"x": rng.integers(0, 256, (rows, 6, 6, 3)).astype(np.uint8)}

    def words(rng: np.random.Generator, rows: int) -> Inputs:
        return {"words": rng.choice(np.array([*WORDS, "?"], object), (rows, 2))}

    def flags(rng: np.random.Generator, rows: int) -> Inputs:
        return {"x": rng.random((rows, 8)) < 0.5}

    brain = graph(
        [node("Cast", "x", "y", to=FLOAT)],
        {"x": (TensorProto.BFLOAT16, ["n", 8])},
        {"y": (FLOAT, ["n", 8])},
    )
    inside = graph(
        [
            node("Cast", "x", "b", to=TensorProto.BFLOAT16),
            node("Cast", "w", "v", to=TensorProto.BFLOAT16),
            node("MatMul", "b v", "p"),
            node("Cast", "p", "y", to=FLOAT),
        ],
        {"x": (FLOAT, ["n", 8])},
        {"y": (FLOAT, ["n", 4])},
        w=np.ones((8, 4), np.float32),
    )
    return {
        "residual CNN": of_images(classifier(Residual(8), Residual(8))),
        "depthwise CNN": of_images(classifier(Residual(8, groups=8))),
        "gated CNN": of_images(classifier(Residual(8, gated=True))),
        "CNN with pooling": of_images(classifier(vgg, vgg)),
        "segmentation": of_images(segment),
        "CNN of any size": Model(exported(net, [wide], ["x"], open_="023"), any_size, layout=sizes),
        "CNN of any size, padded": Model(
            exported(net, [wide], ["x"], open_="023"),
            any_size,
            layout=sizes | {"padding": True},
            refused="padded inputs have other outputs",
        ),
        "CNN of any size, unsaid": Model(
            exported(net, [wide], ["x"], open_="023"), any_size, refused="dimensions: {d2"
        ),
        "encoder of tokens": Model(
            exported(Encoder(), [ids, mask], ["ids", "mask"], open_="01"),
            tokens(1, 16),
            layout=ragged,
        ),
        "encoder of strings": Model(text_encoder(), text),
        "labels of strings": Model(labels(), words),
        "two-input ranker": Model(
            exported(Ranker(), [torch.zeros(2, 8), torch.zeros(2, 5)], ["user", "item"]), two
        ),
        "ranker of k candidates": Model(
            candidates(), some_candidates, layout={"dimensions": {"k": [4, 8]}, "padding": True}
        ),
        "LSTM": Model(exported(Recurrent(True), [torch.zeros(2, 5, 6)], ["x"]), steps),
        "LSTM, time first": Model(
            time_first,
            lambda rng, rows: {"x": rng.standard_normal((5, 2, 6)).astype(np.float32)},
            refused="depends on the other rows",
        ),
        "detector of [n_boxes, 6]": Model(
            boxes_nms(), some_boxes, layout={"whole": True}, whole=True
        ),
        "detector of [n_boxes, 6], unsaid": Model(boxes_nms(), some_boxes, refused="whole: true"),
        "detector of 12 boxes": Model(
            graph(
                [node("Concat", "boxes score score", "y", axis=2)],
                {"boxes": (FLOAT, ["n", 12, 4]), "score": (FLOAT, ["n", 12, 1])},
                {"y": (FLOAT, ["n", 12, 6])},
            ),
            lambda rng, rows: {
                "boxes": rng.random((rows, 12, 4)).astype(np.float32),
                "score": rng.random((rows, 12, 1)).astype(np.float32),
            },
        ),
        "FP16": Model(linear("n", TensorProto.FLOAT16, np.float16), numbers(np.float16)),
        "FP64": Model(linear("n", TensorProto.DOUBLE, np.float64), numbers(np.float64)),
        "BF16 input": Model(brain, numbers(), refused="add a Cast"),
        "BF16 inside": Model(inside, numbers(), refused="BFLOAT16"),
        "INT8 with fixed scales": Model(quantised(), numbers()),
        "INT8 with the batch's scale": Model(dynamic_quantised(), numbers(), tolerance=0.1),
        "INT8 in, INT32 out": Model(whole_arithmetic(), whole_numbers(np.int8, -128, 128)),
        "BOOL": Model(logic(), flags),
        "UINT8 image": Model(picture(), pictures),
        "best three": Model(best_three(), numbers()),
        "fixed batch of 1": Model(linear(1), numbers()),
        "fixed batch of 4": Model(linear(4), numbers(), rows=4),
        "softmax over the batch": Model(
            over_batch(), numbers(), refused="depends on the other rows"
        ),
        "batch in the second dimension": Model(turned(), numbers(), refused="whole: true"),
        "a number for the batch": Model(total(), numbers(), refused="whole: true"),
        "a number for the request": Model(total(), numbers(), layout={"whole": True}, whole=True),
        "no ONNX": Model(b"PK\x03\x04 a zip file", numbers(), refused="no ONNX model"),
        **sklearn_models(),
        **torch_programs(),
        "external data beside the file": Model(b"", images(3, 12, 12), apart=True),
    }


def written(folder: Path, name: str, model: Model) -> Path:
    """The family's file, with the model beside it."""
    own = folder / "".join(c if c.isalnum() else "_" for c in name)
    own.mkdir()
    variant: dict[str, Any] = {"accuracy": 0.9}
    if model.factory:
        (folder / f"{model.factory.partition(':')[0]}.py").write_bytes(model.data)
        variant["factory"] = model.factory
    else:
        variant["file"] = model.file
        if model.apart:
            default_export(own)
            assert len(list(own.iterdir())) > 1, "its weights are not beside it"
        else:
            (own / model.file).write_bytes(model.data)
    document = {"name": own.name, "variants": {"own": variant}, **model.layout}
    path = own / "family.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


# What their runtimes compute


def runtime_of(path: Path, model: Model) -> Callable[[Inputs], list[Array]]:
    """The model in its own runtime."""
    if model.factory:
        space: dict[str, Any] = {}
        exec(model.data.decode(), space)
        function = space["factory"]()
        return lambda inputs: list(function(inputs).values())
    file = str(path.parent / model.file)
    if model.file.endswith(".onnx"):
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        session = ort.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        return lambda inputs: list(session.run(None, inputs))
    program: Any = (
        torch.jit.load(file)  # type: ignore[no-untyped-call]
        if file.endswith(".pt")
        else torch.export.load(file).module()
    )

    def run(inputs: Inputs) -> list[Array]:
        with torch.inference_mode():
            return [program(*map(torch.from_numpy, inputs.values())).numpy()]

    return run


def alone(run: Callable[[Inputs], list[Array]], model: Model, inputs: Inputs) -> list[Array]:
    """Outputs of each row by itself."""
    if model.whole:
        return run(inputs)
    count = len(next(iter(inputs.values())))
    rows = [
        run({n: np.repeat(a[k : k + 1], model.rows, 0) for n, a in inputs.items()})
        for k in range(count)
    ]
    return [np.concatenate([each[:1] for each in column]) for column in zip(*rows, strict=True)]


@dataclass(frozen=True)
class Prepared:
    """A request with the answer that is right."""

    name: str
    path: str
    body: bytes
    headers: Mapping[str, str]
    outputs: list[Array]
    tolerance: float


def prepared(
    name: str, path: Path, model: Model, rng: np.random.Generator, count: int
) -> list[Prepared]:
    """Requests of a model, every other one binary."""
    run, found = runtime_of(path, model), []
    for k in range(count):
        inputs = model.draw(rng, 1 if model.whole else int(rng.integers(1, 4)))
        body, headers = body_of(inputs, binary=bool(k % 2))
        url = f"/v2/models/{path.parent.name}/infer"
        right = alone(run, model, inputs)
        found.append(Prepared(name, url, body, headers, right, model.tolerance))
    return found


def body_of(inputs: Inputs, *, binary: bool) -> tuple[bytes, dict[str, str]]:
    """A request that asks for answers of its own kind."""
    entries, behind = [], []
    for name, value in inputs.items():
        entry = {"name": name, "datatype": KINDS[value.dtype], "shape": list(value.shape)}
        if binary:
            data = to_bytes(value)
            behind.append(data)
            entries.append(entry | {"parameters": {"binary_data_size": len(data)}})
        else:
            entries.append(entry | {"data": value.tolist()})
    document: dict[str, Any] = {"inputs": entries}
    if not binary:
        return json.dumps(document).encode(), {}
    document["parameters"] = {"binary_data_output": True}
    head = json.dumps(document).encode()
    return head + b"".join(behind), {"Inference-Header-Content-Length": str(len(head))}


def outputs_of(answer: bytes, length: str | None) -> list[Array]:
    """Tensors of an answer."""
    size = len(answer) if length is None else int(length)
    found, place = [], size
    for entry in json.loads(answer[:size])["outputs"]:
        dtype, shape = np.dtype(NUMPY[entry["datatype"]]), entry["shape"]
        if "data" in entry:
            values: Any = np.array(entry["data"], object).reshape(shape)
            found.append(values if dtype.kind == "O" else values.astype(dtype))
            continue
        end = place + entry["parameters"]["binary_data_size"]
        data, place = answer[place:end], end
        if dtype.kind != "O":
            found.append(np.frombuffer(data, dtype).reshape(shape))
            continue
        strings, at = [], 0
        while at < len(data):
            width = int.from_bytes(data[at : at + 4], "little")
            strings.append(data[at + 4 : at + 4 + width].decode())
            at += 4 + width
        found.append(np.array(strings, object).reshape(shape))
    return found


def wrong(request: Prepared, outputs: Sequence[Array]) -> str:
    """Why an answer is wrong; or empty."""
    if len(outputs) != len(request.outputs):
        return f"{len(outputs)} outputs"
    for got, want in zip(outputs, request.outputs, strict=True):
        if got.shape != want.shape:
            return f"shape {got.shape}, not {want.shape}"
        if want.dtype.kind != "f":
            if not (got == want).all():
                return "other values"
            continue
        share = request.tolerance or TOLERANCE[f"f{want.dtype.itemsize}"]
        limit = share * max(1.0, float(np.abs(want).max(initial=0.0)))
        off = float(np.abs(got.astype(np.float64) - want.astype(np.float64)).max(initial=0.0))
        if not off <= limit:
            return f"off by {off:.3g}"
    return ""


def send(url: str, requests: Sequence[Prepared], order: Sequence[int]) -> Counter[tuple[str, str]]:
    """Outcomes by model of requests over one connection."""
    found: Counter[tuple[str, str]] = Counter()
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=120)
    for k in order:
        request = requests[k]
        connection.request("POST", request.path, request.body, dict(request.headers))
        answer = connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            found[request.name, f"{answer.status} {body[:200].decode()}"] += 1
            continue
        length = answer.getheader("Inference-Header-Content-Length")
        found[request.name, wrong(request, outputs_of(body, length)) or "right"] += 1
    connection.close()
    return found


def refusal(path: Path) -> str:
    """Why the family is not served; or empty."""
    try:
        with serve([read_family(path, ["model.pt"])], {"a": 1.0}, ServingOptions(port=0)):
            return ""
    except PlacewrightError as error:
        return str(error)


def started(folder: Path, paths: Sequence[Path]) -> subprocess.Popen[str]:
    """The server of all families."""
    command = [sys.executable, "-m", "placewright", "requests", "serve", "--port", "0"]
    for path in paths:
        command += ["--family", str(path)]
    for allowed in ("model.pt", "model.pt2", "own_factory:factory"):
        command += ["--models", allowed]
    command += ["--server", "a:1", "--server", "b:1", "-f", "json"]
    source = os.pathsep.join(p for p in sys.path if p)
    return subprocess.Popen(
        command,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": source},
        stdout=subprocess.PIPE,
        text=True,
    )


def main() -> None:
    """Print what was refused and answered by model; exit 1 where anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="Models whose names hold this.")
    given = parser.parse_args()
    rng = np.random.default_rng(given.seed)
    known = {name: model for name, model in models().items() if given.only in name}
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        paths = {name: written(Path(folder), name, model) for name, model in known.items()}
        served = [name for name, model in known.items() if not model.refused]
        for name, model in known.items():
            if model.refused:
                why = refusal(paths[name])
                good = bool(why) and model.refused in why
                failed += not good
                print(f"{'refused' if good else 'NOT REFUSED RIGHTLY'}: {name}: {why}")
        requests = [
            each for name in served for each in prepared(name, paths[name], known[name], rng, POOL)
        ]
        begun_s = time.monotonic()
        process = started(Path(folder), [paths[name] for name in served])
        try:
            assert process.stdout is not None
            text_ = ""
            while not text_.rstrip().endswith("}"):
                line = process.stdout.readline()
                if not line:
                    raise SystemExit("the server did not start")
                text_ += line
            url = json.loads(text_)["url"]
            print(f"{len(served)} models served {time.monotonic() - begun_s:.1f} s after the start")
            orders = np.array_split(rng.integers(0, len(requests), given.requests), CLIENTS)
            begun_s = time.monotonic()
            with ThreadPoolExecutor(CLIENTS) as clients:
                parts = clients.map(lambda order: send(url, requests, order.tolist()), orders)
                found = sum(parts, Counter[tuple[str, str]]())
            took_s = time.monotonic() - begun_s
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(30)
    rows = [(name, outcome, str(count)) for (name, outcome), count in sorted(found.items())]
    print(plain_table(("model", "answer", "requests"), rows, "  r"))
    right = sum(count for (_, outcome), count in found.items() if outcome == "right")
    print(f"{right} of {given.requests} answers are right, in {took_s:.0f} s")
    raise SystemExit(failed > 0 or right < given.requests)


if __name__ == "__main__":
    main()
