"""Arguments of public functions: what is refused, in which words, and what is converted."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import pytest
import torch

import placewright
from placewright.cluster.files import load_cluster
from placewright.deployment.placed_model import PlacedModel
from placewright.errors import InputError, UnknownNameError
from placewright.io.arguments import Count, OneOf, Range, Share, Unlimited, checked
from placewright.numerics.arrays import FloatArray, IntVector

if TYPE_CHECKING:
    import decimal

    from placewright.cluster.cluster import Cluster


class Colour(StrEnum):
    """Two of them."""

    RED = "red"
    BLUE = "blue"


@checked
def takes(
    count: Count = 1,
    share: Share = 0.5,
    seconds: Unlimited = 1.0,
    offset: Annotated[int, Range(-5, 5)] = 0,
    unset: float = math.nan,
    flag: bool = False,
    name: str = "",
    method: Literal["auto", "fast"] = "auto",
    optimizer: Annotated[str, OneOf("adam", "sgd")] | Path = "adam",
    colour: Colour = Colour.RED,
    loose: Colour | str = Colour.RED,
    names: tuple[str, ...] = (),
    numbers: Sequence[float] = (),
    table: Mapping[str, int] | None = None,
    loss: Callable[[Any, Any], Any] | None = None,
    array: FloatArray | None = None,
    vector: IntVector | None = None,
    cluster: Cluster | None = None,
    exact: decimal.Decimal | None = None,
    later: Iterable[int] = (),
    path: str | Path = "here",
) -> dict[str, Any]:
    """Arguments of every kind."""
    return dict(locals())


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("count", 0, r"must be a whole number >= 1 \(got 0\)"),
        ("count", True, "must be a whole number >= 1 .got True"),
        ("count", 2**63, r"< 2\^63"),
        ("count", 1.0, "got 1.0"),
        ("share", 1.5, ">= 0 and <= 1"),
        ("share", "0.5", "got '0.5'"),
        ("seconds", math.nan, "got nan"),
        ("seconds", -1, "got -1"),
        ("seconds", 10**400, "a whole number of 1329 bits"),
        ("offset", -6, ">= -5 and <= 5"),
        ("flag", 1, "True or False"),
        ("flag", None, "True or False"),
        ("name", b"a", "a text"),
        ("name", "a\0", "without a NUL"),
        ("name", "\ud800", "UTF-8"),
        ("method", "fats", "unknown method 'fats'.*did you mean 'fast'"),
        ("method", 1, "one of 'auto', 'fast'"),
        ("optimizer", "sdg", "unknown optimizer 'sdg'.*did you mean 'sgd'"),
        ("colour", "rde", "unknown colour 'rde'.*did you mean 'red'"),
        ("loose", "bleu", "unknown loose 'bleu'.*did you mean 'blue'"),
        ("names", "abc", "a tuple"),
        ("names", [1], r"^names\[0\] of .* a text"),
        ("numbers", [1, None], r"^numbers\[1\] of .* a number >= 0 .got None"),
        ("numbers", "12", "a sequence"),
        ("table", {"a": None}, r"^table\.a of .* a whole number"),
        ("table", {1: 2}, r"^table \(a key\) of .* a text .got 1"),
        ("loss", lambda outputs: 0, "a function of 2 arguments"),
        ("loss", Colour, "got the class Colour"),
        ("array", [[1.0], [1.0, 2.0]], "rows of one length"),
        ("array", ["a"], "an array of numbers"),
        ("array", np.array([None]), "an array of numbers"),
        ("array", np.array(1.0), "an array of numbers"),
        ("vector", [1.5], "an array of whole numbers"),
        ("vector", [math.nan], "an array of whole numbers"),
        ("vector", np.zeros((2, 2)), "with 1 axis"),
        ("vector", [True], "an array of whole numbers"),
        ("vector", np.ma.masked_equal([1, 2], 2), "none of them masked"),
        ("array", np.ma.masked_invalid([1.0, math.nan]), "none of them masked"),
        ("cluster", object(), "must be a Cluster or None"),
        ("exact", 0.5, "must be a Decimal or None"),
        ("later", 1, "an iterable"),
        ("path", "", "a path.*got ''"),
        ("path", "a/" + "x" * 256, "a path, each name in it of at most 255 bytes"),
        ("path", Path("a" * 256), "a path, each name in it of at most 255 bytes"),
        ("path", 1, "a path"),
    ],
)
def test_what_does_not_fit_is_refused(name: str, value: Any, says: str) -> None:
    """The message names the argument, the value and what is accepted."""
    with pytest.raises(InputError, match=f"(?s){says}") as caught:
        takes(**{name: value})
    assert caught.value.where.startswith(name)
    assert caught.value.hint


def test_what_fits_is_handed_on_as_it_is_annotated() -> None:
    """NumPy's numbers become Python's, texts members of enums, lists tuples and arrays."""
    given = takes(np.int64(2), np.float32(0.25), math.inf, flag=np.True_, unset=math.nan)
    assert given["count"] == 2
    assert type(given["count"]) is int
    assert type(given["share"]) is float
    assert given["flag"] is True
    given = takes(colour="blue", loose="red", names=["a"], vector=[1.0, 2.0], numbers=np.ones(2))
    assert given["colour"] is Colour.BLUE
    assert given["loose"] is Colour.RED
    assert given["names"] == ("a",)
    assert given["vector"].dtype == np.int64
    assert given["numbers"] == [1.0, 1.0]


def test_what_stands_for_a_path_is_one() -> None:
    """As everywhere in Python: an object with ``__fspath__``."""

    class Entry:
        def __fspath__(self) -> str:
            return "a/b"

    assert takes(path=Entry())["path"] == Path("a/b")
    assert takes(path="a/b")["path"] == "a/b"


def test_an_array_of_the_right_type_is_not_copied() -> None:
    """Nor is any other container that fits."""
    array, table = np.zeros(3), {"a": 1}
    given = takes(array=array, table=table)
    assert given["array"] is array
    assert given["table"] is table


def test_what_can_be_read_once_is_not_read() -> None:
    """Entries of a generator are looked at by the function alone."""
    assert list(takes(later=(k for k in range(3)))["later"]) == [0, 1, 2]


def test_what_is_not_imported_yet_is_looked_up_when_a_value_comes() -> None:
    """Annotations under ``TYPE_CHECKING`` are checked as others are."""
    assert takes(cluster=load_cluster("edge-duo"))["cluster"].name == "edge-duo"


def test_a_class_checks_its_constructor_and_decorated_methods() -> None:
    """The object is named by its name."""

    @checked
    @dataclass(frozen=True, slots=True)
    class Box:
        name: str
        size: Count = 1

        @checked
        def grown(self, factor: float) -> float:
            return self.size * factor

        @staticmethod
        @checked
        def of(size: int) -> Box:
            return Box("of", size)

    assert Box.of(3).grown(np.float64(2.0)) == 6
    with pytest.raises(InputError, match="size of Box 'a': must be a whole number >= 1"):
        Box("a", 0)
    with pytest.raises(InputError, match=r"factor of Box.grown\(\): must be a number >= 0"):
        Box("a").grown(math.inf)
    with pytest.raises(TypeError, match="unexpected keyword"):
        Box("a", wide=1)  # type: ignore[call-arg]


@pytest.mark.parametrize("name", ["adamw", "sdg", "Adam", ""])
def test_optimizers_that_are_not_known_are_refused(name: str) -> None:
    """Training of layers took plain Adam for every name but one."""
    with pytest.raises(UnknownNameError, match="optimizer of train"):
        placewright.train(None, optimizer=name)


def test_what_starts_workers_is_checked_too() -> None:
    """Before a worker starts: names of engines, numbers of steps."""
    model = torch.nn.Linear(2, 2)
    with pytest.raises(UnknownNameError, match=r"(?s)engine of Trainer.*did you mean 'local'"):
        placewright.Trainer(model, torch.ones(1, 2), engine="locla")
    with pytest.raises(InputError, match="steps of Trainer: must be a whole number"):
        placewright.Trainer(model, torch.ones(1, 2), steps=-1)
    placed = PlacedModel.__new__(PlacedModel)
    with pytest.raises(UnknownNameError, match=r"engine of PlacedModel.run"):
        placed.run(engine="locla")
    with pytest.raises(InputError, match=r"snapshot_every of PlacedModel.trainer\(\): must be"):
        placed.trainer(snapshot_every="1")  # type: ignore[arg-type]
