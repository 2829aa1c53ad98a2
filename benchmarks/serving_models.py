"""Serve some forty models as users bring them: answers equal their runtime's, or are refused.

    python benchmarks/serving_models.py [--requests 20000] [--seed 0]

PyTorch exports (default with weights beside the file, and TorchScript's), models of ONNX operators,
pipelines of scikit-learn (needs `pip install skl2onnx`), PyTorch programs and a factory. One server
process with two workers has all that can be served; requests of 1 to 3 rows, of random models, as
JSON or binary tensors, come from eight clients. Each answer is compared with what the model's own
runtime computes of each row alone. What cannot be served has to be refused at the start.
"""

from __future__ import annotations

import http.client
import io
import json
import os
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import torch
import yaml
from torch import nn

from harness import onnx_model, run, server
from placewright.errors import PlacewrightError
from placewright.report.text import plain_table
from placewright.requests.serving.families import read_family
from placewright.requests.serving.server import ServingOptions, serve
from placewright.requests.serving.tensors import NUMPY, Array, to_bytes

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
    how: Any = {"dynamic_axes": axes | {"y": {0: "d0"}}, "dynamo": False, "opset_version": 17}
    file: Any = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module.eval(), tuple(example), file, input_names=list(names), output_names=["y"], **how
        )
    return bytes(file.getvalue())


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


def numbers(dtype: Any = np.float32, size: int = 8) -> Draw:
    """Rows of numbers."""
    return lambda rng, rows: {"x": rng.standard_normal((rows, size)).astype(dtype)}


def whole_numbers(dtype: Any, low: int, high: int, *shape: int) -> Draw:
    """Rows of whole numbers."""
    return lambda rng, rows: {"x": rng.integers(low, high, (rows, *shape)).astype(dtype)}


WORDS = ("good", "bad", "film", "the", "a", "d\u00f6g", "\u732b")


def text(rng: np.random.Generator, rows: int) -> Inputs:
    """A sentence in each row."""
    found = [" ".join(rng.choice(np.array(WORDS), int(rng.integers(1, 9)))) for _ in range(rows)]
    return {"text": np.array(found, object)}


def some_boxes(rng: np.random.Generator, rows: int) -> Inputs:
    """Corners and scores of one image."""
    low = rng.random((1, 12, 2))
    corners = np.concatenate([low, low + rng.random((1, 12, 2))], 2).astype(np.float32)
    return {"boxes": corners, "scores": rng.random((1, 1, 12)).astype(np.float32)}


def some_candidates(rng: np.random.Generator, rows: int) -> Inputs:
    """A user and up to eight candidates in each row."""
    k = int(rng.integers(1, 9))
    return {
        "user": rng.standard_normal((rows, 8)).astype(np.float32),
        "items": rng.standard_normal((rows, k, 8)).astype(np.float32),
    }


def linear(rows: Any, kind: str = "float", dtype: Any = np.float32) -> bytes:
    """Rows of eight numbers times a matrix."""
    weight = np.random.default_rng(1).standard_normal((8, 4)).astype(dtype)
    ends = f"({kind}[{rows}, 8] x) => ({kind}[{rows}, 4] y)"
    return onnx_model(ends, "y = MatMul (x, w)", w=weight)


def encoder(default: int) -> str:
    """Words to numbers, others to `default`."""
    words = ", ".join(f'"{word}"' for word in WORDS)
    counts = ", ".join(map(str, range(len(WORDS))))
    keys = f"keys_strings = [{words}], values_int64s = [{counts}], default_int64 = {default}"
    return f"ids = ai.onnx.ml.LabelEncoder <{keys}> (words)"


def onnx_models() -> dict[str, bytes]:
    """By what they do, in the notation of ONNX's parser."""
    rng = np.random.default_rng(2)
    vectors = np.append(rng.standard_normal((len(WORDS), 4)), np.zeros((1, 4)), 0)
    small = np.random.default_rng(3).integers(-99, 99, (8, 4)).astype(np.int8)
    one, wz = np.array([1]), np.int8(0)
    scales = {"s": np.float32(0.05), "z": np.uint8(128), "ws": np.float32(0.01), "wz": wz}
    return {
        "words to a mean of vectors": onnx_model(
            "(string[rows] text) => (float[rows, 4] y)",
            f'words, counts = StringSplit <delimiter = " "> (text); {encoder(len(WORDS))};'
            "vectors = Gather (table, ids); total = ReduceSum <keepdims = 0> (vectors, one);"
            "n = Cast <to = 1> (counts); column = Unsqueeze (n, one); y = Div (total, column)",
            table=vectors.astype(np.float32),
            one=one,
        ),
        "a word to its number and itself": onnx_model(
            "(string[n, 2] words) => (int64[n, 2] ids, string[n, 2] same)",
            f"{encoder(-1)}; same = Identity (words)",
        ),
        "boxes that non-maximum suppression leaves": onnx_model(
            "(float[1, 12, 4] boxes, float[1, 1, 12] scores) => (float[n_boxes, 6] detections)",
            "found = NonMaxSuppression (boxes, scores, most, overlap, least);"
            "which = Gather <axis = 1> (found, two); flat = Squeeze (boxes, zero);"
            "corners = Gather (flat, which); one = Squeeze (scores, front);"
            "score = Gather (one, which); score_column = Unsqueeze (score, last);"
            "number = Cast <to = 1> (which); number_column = Unsqueeze (number, last);"
            "detections = Concat <axis = 1> (corners, score_column, number_column)",
            most=np.array([12]),
            overlap=np.array([0.3], np.float32),
            least=np.array([0.2], np.float32),
            two=np.array(2),
            zero=np.array([0]),
            front=np.array([0, 1]),
            last=one,
        ),
        "boxes with scores": onnx_model(
            "(float[n, 12, 4] boxes, float[n, 12, 1] score) => (float[n, 12, 6] y)",
            "y = Concat <axis = 2> (boxes, score, score)",
        ),
        "8 bits with fixed scales": onnx_model(
            "(float[n, 8] x) => (float[n, 4] y)",
            "q = QuantizeLinear (x, s, z); p = QLinearMatMul (q, s, z, w, ws, wz, s, z);"
            "y = DequantizeLinear (p, s, z)",
            w=small,
            **scales,
        ),
        "8 bits with the batch's scale": onnx_model(
            "(float[n, 8] x) => (float[n, 4] y)",
            "q, s, z = DynamicQuantizeLinear (x); p = MatMulInteger (q, w, z, wz);"
            "f = Cast <to = 1> (p); y = Mul (f, s)",
            w=small,
            wz=wz,
        ),
        "8 bits in, 32 bits out": onnx_model(
            "(int8[n, 8] x) => (int32[n, 4] y)",
            "y = MatMulInteger (x, w)",
            w=np.random.default_rng(3).integers(-9, 9, (8, 4)).astype(np.int8),
        ),
        "flags that differ, and whether any does": onnx_model(
            "(bool[n, 8] x) => (bool[n, 8] differs, bool[n, 1] any)",
            "differs = Xor (x, other); number = Cast <to = 7> (differs);"
            "most = ReduceMax <keepdims = 1> (number, one); any = Cast <to = 9> (most)",
            other=np.arange(8) % 2 == 0,
            one=one,
        ),
        "bytes of an image": onnx_model(
            "(uint8[n, 6, 6, 3] x) => (float[n, 3] y)",
            "f = Cast <to = 1> (x); n = Div (f, most); y = ReduceMean <keepdims = 0> (n, axes)",
            most=np.float32(255),
            axes=np.array([1, 2]),
        ),
        "the three largest, and where": onnx_model(
            "(float[n, 8] x) => (float[n, 3] values, int64[n, 3] places)",
            "values, places = TopK <axis = 1> (x, three)",
            three=np.array([3]),
        ),
        "scores of any number of candidates": onnx_model(
            "(float[n, 8] user, float[n, k, 8] items) => (float[n, k] scores)",
            "u = Unsqueeze (user, one); m = Mul (u, items);"
            "scores = ReduceSum <keepdims = 0> (m, last)",
            one=one,
            last=np.array([2]),
        ),
        "softmax over the batch": onnx_model(
            "(float[n, 8] x) => (float[n, 8] y)", "y = Softmax <axis = 0> (x)"
        ),
        "the batch behind": onnx_model("(float[n, 8] x) => (float[8, n] y)", "y = Transpose (x)"),
        "a number for the batch": onnx_model(
            "(float[n, 8] x) => (float y)", "y = ReduceSum <keepdims = 0> (x)"
        ),
        "bfloat16 in": onnx_model("(bfloat16[n, 8] x) => (float[n, 8] y)", "y = Cast <to = 1> (x)"),
        "bfloat16 inside": onnx_model(
            "(float[n, 8] x) => (float[n, 4] y)",
            "b = Cast <to = 16> (x); v = Cast <to = 16> (w); p = MatMul (b, v);"
            "y = Cast <to = 1> (p)",
            w=np.ones((8, 4), np.float32),
        ),
    }


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
    ends = {"x": ("FP32", 8), "y": ("FP32", 4), "text": ("BYTES", 1), "label": ("BYTES", 1)}
    tensors = {n: {n: {"datatype": kind, "shape": [-1, w]}} for n, (kind, w) in ends.items()}
    plain = {"inputs": tensors["x"], "outputs": tensors["y"]}
    said = {"inputs": tensors["text"], "outputs": tensors["label"]}
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
        "TorchScript": Model(script_data, numbers(), file="model.pt", layout=plain),
        "torch.export": Model(program_data, numbers(), file="model.pt2", layout=plain),
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

    def words(rng: np.random.Generator, rows: int) -> Inputs:
        return {"words": rng.choice(np.array([*WORDS, "?"], object), (rows, 2))}

    def boxes(rng: np.random.Generator, rows: int) -> Inputs:
        found = rng.random((rows, 12, 5)).astype(np.float32)
        return {"boxes": found[:, :, :4].copy(), "score": found[:, :, 4:].copy()}

    resized, made = exported(net, [wide], ["x"], open_="023"), onnx_models()
    whole: dict[str, Any] = {"layout": {"whole": True}, "whole": True}
    detector = made["boxes that non-maximum suppression leaves"]
    total = made["a number for the batch"]
    return {
        "residual CNN": of_images(classifier(Residual(8), Residual(8))),
        "depthwise CNN": of_images(classifier(Residual(8, groups=8))),
        "gated CNN": of_images(classifier(Residual(8, gated=True))),
        "CNN with pooling": of_images(classifier(vgg, vgg)),
        "segmentation": of_images(segment),
        "CNN of any size": Model(resized, any_size, layout=sizes),
        "CNN of any size, padded": Model(
            resized,
            any_size,
            layout=sizes | {"padding": True},
            refused="padded inputs have other outputs",
        ),
        "CNN of any size, unsaid": Model(resized, any_size, refused="dimensions: {d2"),
        "encoder of tokens": Model(
            exported(Encoder(), [ids, mask], ["ids", "mask"], open_="01"),
            tokens(1, 16),
            layout=ragged,
        ),
        "encoder of strings": Model(made["words to a mean of vectors"], text),
        "labels of strings": Model(made["a word to its number and itself"], words),
        "two-input ranker": Model(
            exported(Ranker(), [torch.zeros(2, 8), torch.zeros(2, 5)], ["user", "item"]), two
        ),
        "ranker of k candidates": Model(
            made["scores of any number of candidates"],
            some_candidates,
            layout={"dimensions": {"k": [4, 8]}, "padding": True},
        ),
        "LSTM": Model(exported(Recurrent(True), [torch.zeros(2, 5, 6)], ["x"]), images(5, 6)),
        "LSTM, time first": Model(
            time_first,
            lambda rng, rows: {"x": rng.standard_normal((5, 2, 6)).astype(np.float32)},
            refused="depends on the other rows",
        ),
        "detector of [n_boxes, 6]": Model(detector, some_boxes, **whole),
        "detector of [n_boxes, 6], unsaid": Model(detector, some_boxes, refused="whole: true"),
        "detector of 12 boxes": Model(made["boxes with scores"], boxes),
        "FP16": Model(linear("n", "float16", np.float16), numbers(np.float16)),
        "FP64": Model(linear("n", "double", np.float64), numbers(np.float64)),
        "BF16 input": Model(made["bfloat16 in"], numbers(), refused="add a Cast"),
        "BF16 inside": Model(made["bfloat16 inside"], numbers(), refused="BFLOAT16"),
        "INT8 with fixed scales": Model(made["8 bits with fixed scales"], numbers()),
        "INT8 with the batch's scale": Model(
            made["8 bits with the batch's scale"], numbers(), tolerance=0.1
        ),
        "INT8 in, INT32 out": Model(
            made["8 bits in, 32 bits out"], whole_numbers(np.int8, -128, 128, 8)
        ),
        "BOOL": Model(
            made["flags that differ, and whether any does"], whole_numbers(np.bool_, 0, 2, 8)
        ),
        "UINT8 image": Model(made["bytes of an image"], whole_numbers(np.uint8, 0, 256, 6, 6, 3)),
        "best three": Model(made["the three largest, and where"], numbers()),
        "fixed batch of 1": Model(linear(1), numbers()),
        "fixed batch of 4": Model(linear(4), numbers(), rows=4),
        "softmax over the batch": Model(
            made["softmax over the batch"], numbers(), refused="depends on the other rows"
        ),
        "batch in the second dimension": Model(
            made["the batch behind"], numbers(), refused="whole: true"
        ),
        "a number for the batch": Model(total, numbers(), refused="whole: true"),
        "a number for the request": Model(total, numbers(), **whole),
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


def main(*, requests: int = 20_000, seed: int = 0, only: str = "") -> int:
    """Print what was refused and answered by model; 1 where anything is wrong.

    `only`: models whose names hold this.
    """
    rng, failed = np.random.default_rng(seed), 0
    known = {name: model for name, model in models().items() if only in name}
    with tempfile.TemporaryDirectory() as folder:
        paths = {name: written(Path(folder), name, model) for name, model in known.items()}
        served = [name for name, model in known.items() if not model.refused]
        for name, model in known.items():
            if model.refused:
                why = refusal(paths[name])
                good = bool(why) and model.refused in why
                failed += not good
                print(f"{'refused' if good else 'NOT REFUSED RIGHTLY'}: {name}: {why}")
        drawn = [
            each for name in served for each in prepared(name, paths[name], known[name], rng, POOL)
        ]
        words = [word for name in served for word in ("--family", str(paths[name]))]
        for allowed in ("model.pt", "model.pt2", "own_factory:factory"):
            words += ["--models", allowed]
        words += ["--server", "a:1", "--server", "b:1"]
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([folder, *filter(None, sys.path)])
        }
        begun_s = time.monotonic()
        with server("requests", "serve", "--port", "0", *words, env=environment) as (found, _):
            print(f"{len(served)} models served {time.monotonic() - begun_s:.1f} s after the start")
            orders = np.array_split(rng.integers(0, len(drawn), requests), CLIENTS)
            begun_s = time.monotonic()
            with ThreadPoolExecutor(CLIENTS) as clients:
                parts = clients.map(lambda own: send(found["url"], drawn, own.tolist()), orders)
                counts = sum(parts, Counter[tuple[str, str]]())
            took_s = time.monotonic() - begun_s
    rows = [(name, outcome, str(count)) for (name, outcome), count in sorted(counts.items())]
    print(plain_table(("model", "answer", "requests"), rows, "  r"))
    right = sum(count for (_, outcome), count in counts.items() if outcome == "right")
    print(f"{right} of {requests} answers are right, in {took_s:.0f} s")
    return int(failed > 0 or right < requests)


if __name__ == "__main__":
    run(main)
