"""Factories of functions as a user may write them, right ones and others."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

Function = Callable[[dict[str, Any]], Any]

TAKES = {"x": {"datatype": "FP32", "shape": [-1, 4]}}


def returns(*datatypes: str, shape: tuple[int, ...] = (-1, 4)) -> dict[str, Any]:
    """Outputs ``a``, ``b``, ... as a family's file has them."""
    return {
        n: {"datatype": d, "shape": list(shape)} for n, d in zip("abc", datatypes, strict=False)
    }


def by_name() -> Function:
    """Outputs in another order than the family's file has them, and one more."""
    return lambda inputs: {"b": inputs["x"] * 2, "more": inputs["x"] - 1, "a": inputs["x"] + 1}


def of_other_names() -> Function:
    """A mapping without the output of the family's file."""
    return lambda inputs: {"logits": inputs["x"]}


def too_many() -> Function:
    """Two outputs in place of one."""
    return lambda inputs: (inputs["x"], inputs["x"])


def in_place() -> Function:
    """Changes its input, and returns a view of it."""

    def triple(inputs: dict[str, Any]) -> Any:
        inputs["x"] *= 3
        return inputs["x"][:, ::-1]

    return triple


def reused() -> Function:
    """Returns its own buffer, which the next call overwrites."""
    buffer = np.zeros((64, 4), np.float32)

    def double(inputs: dict[str, Any]) -> Any:
        rows = len(inputs["x"])
        buffer[:rows] = inputs["x"] * 2
        return buffer[:rows]

    return double


def cached() -> Function:
    """Remembers the answer to each row."""
    known: dict[bytes, Any] = {}
    return lambda inputs: np.stack([known.setdefault(r.tobytes(), r * 2) for r in inputs["x"]])


def seeded() -> Function:
    """The same random numbers at each call and for each row."""
    return lambda inputs: inputs["x"] + np.random.default_rng(0).random(4).astype(np.float32)


def not_finite() -> Function:
    """NaN and infinity in some rows."""

    def logarithm(inputs: dict[str, Any]) -> Any:
        with np.errstate(all="ignore"):
            return np.log(inputs["x"])

    return logarithm


def byte_strings() -> Function:
    """Texts as bytes."""
    return lambda inputs: np.where(inputs["x"] > 0, b"more", b"less")


def zero_bytes() -> Function:
    """Texts that end with zero bytes, which numpy's strings lose."""
    return lambda inputs: ([["a\0" if v > 0 else "b\0\0" for v in r] for r in inputs["x"]],)


def nothing_for_texts() -> Function:
    """``None`` for some texts."""
    return lambda inputs: np.where(inputs["x"] > 0, "more", None)


def no_text() -> Function:
    """Bytes that are no UTF-8."""
    return lambda inputs: np.full(inputs["x"].shape, b"\xff", object)


def no_characters() -> Function:
    """Texts for which there are no bytes in UTF-8."""
    return lambda inputs: np.full(inputs["x"].shape, "\udcff", object)


def complex_numbers() -> Function:
    """Numbers that no datatype of the protocol holds."""
    return lambda inputs: inputs["x"] * 1j


def masked() -> Function:
    """Masked values, of which an array has the numbers."""
    return lambda inputs: np.ma.masked_where(inputs["x"] > 0.5, inputs["x"])


def counted() -> Function:
    """Adds the number of the call."""
    calls = itertools.count()
    return lambda inputs: inputs["x"] + np.float32(next(calls))


def counted_rows() -> Function:
    """Numbers its rows."""
    calls = itertools.count()
    return lambda inputs: np.array([[next(calls)] * 4 for _ in inputs["x"]])


def running_mean() -> Function:
    """Subtracts a mean of all rows so far, which each moves by a hundredth."""
    mean = np.zeros(4, np.float32)

    def centred(inputs: dict[str, Any]) -> Any:
        found = inputs["x"] - mean
        for row in inputs["x"]:
            mean[:] = 0.99 * mean + 0.01 * row
        return found

    return centred


def hidden_state() -> Function:
    """Adds the row before."""
    last = [np.zeros(4, np.float32)]

    def added(inputs: dict[str, Any]) -> Any:
        found = []
        for row in inputs["x"]:
            found.append(row + last[0])
            last[0] = row.copy()
        return np.stack(found)

    return added


def drawn() -> Function:
    """Adds a little noise."""
    return lambda inputs: inputs["x"] + 1e-2 * np.random.rand(4).astype(np.float32)


def softmax() -> Function:
    """Of the batch, over a wrong axis."""

    def shares(inputs: dict[str, Any]) -> Any:
        found = np.exp(inputs["x"])
        return found / found.sum(0)

    return shares


def softmax_of_positive() -> Function:
    """The same where no number is below 0."""

    def shares(inputs: dict[str, Any]) -> Any:
        if (inputs["x"] < 0).any():
            raise ValueError("below 0")
        return softmax()(inputs)

    return shares


def centred_not_finite() -> Function:
    """Depends on the batch, beside values that are not finite."""

    def centred(inputs: dict[str, Any]) -> Any:
        found = inputs["x"] - inputs["x"].mean(0)
        found[:, 0] = np.nan
        return found

    return centred


def ranks() -> Function:
    """Places of rows among those of their batch."""
    return lambda inputs: inputs["x"].argsort(0).argsort(0)


def below() -> Function:
    """Whole numbers below the first one of a row, padded to those of the longest row."""

    def found(inputs: dict[str, Any]) -> Any:
        lengths = np.nan_to_num(inputs["x"][:, 0]).clip(0, 9).astype(np.int64)
        numbers = np.arange(max(lengths))
        return np.where(numbers < lengths[:, None], numbers, -1)

    return found


def classes() -> Function:
    """Names of classes, which belong to no row, as many as there are rows."""
    return lambda inputs: np.array(["a", "b", "c", "d"] * 4)[: len(inputs["x"]), None].repeat(4, 1)


def best() -> Function:
    """A text that depends on the other rows."""
    return lambda inputs: np.where(inputs["x"] == inputs["x"].max(0), "best", "other")


def quantised() -> Function:
    """By a scale that the batch shares."""

    def rounded(inputs: dict[str, Any]) -> Any:
        scale = max(float(np.abs(inputs["x"]).max()), 1e-9) / 127
        return (np.round(inputs["x"] / scale) * scale).astype(np.float32)

    return rounded


def in_eights() -> Function:
    """Leaves out what is left of eight rows."""

    def doubled(inputs: dict[str, Any]) -> Any:
        whole = len(inputs["x"]) // 8 * 8 or len(inputs["x"])
        return np.concatenate([inputs["x"][:whole] * 2, inputs["x"][whole:]])

    return doubled


def damped() -> Function:
    """Large values of one row change the others."""
    return lambda inputs: inputs["x"] / np.float32(100 if np.abs(inputs["x"]).max() > 50 else 1)


def shares_of_whole() -> Function:
    """Whole numbers as shares of the batch's largest."""
    return lambda inputs: (inputs["x"] / max(1, inputs["x"].max())).astype(np.float32)


def sums_of_whole() -> Function:
    """Of what is above 1 in all rows before."""
    return lambda inputs: np.maximum(inputs["x"].astype(np.float32) - 1, 0).cumsum(0)


def seldom() -> Function:
    """A label that the mean of the batch seldom changes."""

    def label(inputs: dict[str, Any]) -> Any:
        x = np.clip(np.nan_to_num(inputs["x"]), -3, 3)
        return np.argmax(x - 0.02 * x.mean(0), 1)[:, None].repeat(4, 1)

    return label


def small_beside_large() -> Function:
    """A score less the mean of the batch, beside large numbers of a row."""

    def found(inputs: dict[str, Any]) -> Any:
        score = np.clip(np.nan_to_num(inputs["x"][:, :1]), -2, 2)
        score -= score.mean(0)
        return np.concatenate([20000 * inputs["x"][:, :3], score], 1)

    return found


def in_turns() -> Function:
    """Three models that take turns."""
    turn = itertools.cycle((1, 2, 3))
    return lambda inputs: inputs["x"] * next(turn)


def unseeded() -> Function:
    """Weights of which nobody has said what they are."""
    weights = np.random.default_rng().standard_normal(4).astype(np.float32)
    return lambda inputs: inputs["x"] * weights


def spreads_nan() -> Function:
    """NaN of one row reaches the others."""
    return lambda inputs: inputs["x"] + 0 * inputs["x"].sum(0)


def exits() -> Function:
    """Ends Python where it is made."""
    sys.exit("no weights")


def exits_for_some() -> Function:
    """Ends Python for some rows."""

    def found(inputs: dict[str, Any]) -> Any:
        if (inputs["x"] > 9).any():
            sys.exit(3)
        return inputs["x"] * 2

    return found


class UnreadableError(Exception):
    """An error whose text cannot be read."""

    def __str__(self) -> str:
        raise RuntimeError


def raises_unreadably() -> Function:
    """Such an error for some rows, and a text without UTF-8 for others."""

    def found(inputs: dict[str, Any]) -> Any:
        if (inputs["x"] > 99).any():
            raise ValueError("\udcff")
        if (inputs["x"] > 9).any():
            raise UnreadableError
        return inputs["x"] * 2

    return found


def other_folder() -> Function:
    """Changes the folder, a variable and the dtype of PyTorch, and depends on them."""
    import torch

    os.chdir("/")
    os.environ["LENGTH"] = "3"
    torch.set_default_dtype(torch.float64)
    np.seterr(all="raise")

    def found(inputs: dict[str, Any]) -> Any:
        length = int(os.environ["LENGTH"]) * len(os.getcwd())
        ones = torch.ones(4)
        assert ones.dtype == torch.float64
        return (inputs["x"] * length * ones.numpy()).astype(np.float32)

    return found


def own_folder() -> Function:
    """Depends on the folder, a variable and the dtype of PyTorch, and changes none of them."""
    import torch

    def found(inputs: dict[str, Any]) -> Any:
        assert "LENGTH" not in os.environ
        length = np.float32(len(os.getcwd()))
        with np.errstate():
            np.float32(1e-30) * np.float32(1e-30)  # an error for others
        return torch.from_numpy(inputs["x"]) * torch.full((4,), float(length))

    return found


def prints() -> Function:
    """Prints where it is made and computes, by Python and by C."""
    print("made")
    os.system("echo made")

    def found(inputs: dict[str, Any]) -> Any:
        print("computed", flush=True)
        return inputs["x"] * 2

    return found
