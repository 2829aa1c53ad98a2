"""Functions as users write them: each answers as the function called row by row, or is refused."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from placewright.errors import InputError
from placewright.interpreter import python_command, python_environment
from placewright.requests.serving.families import Family, read_family
from placewright.requests.serving.fleet import model_of
from placewright.requests.serving.models import Computed, open_model, reason
from placewright.requests.serving.row_checks import RowCheck
from placewright.requests.serving.server import Running, ServingOptions, serve
from tests.requests.serving import factories
from tests.requests.serving.factories import TAKES, returns

FLOATS, INTEGERS, TEXTS = returns("FP32"), returns("INT64"), returns("BYTES")
PORT = ServingOptions(port=0)
Row = tuple[np.ndarray[Any, Any], ...]


def family(folder: Path, *names: str, outputs: dict[str, Any] = FLOATS, **more: Any) -> Family:
    """The family of these factories, of a file."""
    made = [f"{factories.__name__}:{name}" for name in names]
    variants = {n: {"factory": f, "accuracy": 0.5} for n, f in zip(names, made, strict=True)}
    described = {"name": "m", "variants": variants, "inputs": TAKES, "outputs": outputs}
    path = folder / "family.json"
    path.write_text(json.dumps(described | more))
    return read_family(path, made)


def checked(made: Family, most: int = 16) -> str:
    """What the check of its first variant says, the variant being loaded here."""
    bucket = made.buckets()[0]
    model = open_model(model_of(bucket, bucket.variants[0]), "m/v")

    async def compute(rows: Sequence[Row]) -> Computed:
        try:
            # Copies, as inputs and outputs are sent.
            found = model.run(None, {n: x.copy() for n, x in bucket.stacked(rows).items()})
            return Computed(tuple(x.copy() for x in found), 0.0)
        except Exception as error:
            return Computed((), 0.0, reason(error))

    return asyncio.run(RowCheck(bucket, compute, most, "variant v").why_alone())


def answers(made: Family, x: Any) -> list[Any]:
    """Outputs of rows that are computed together."""
    model = open_model(model_of(made, made.variants[0]), "m/v")
    return list(model.run(None, {"x": x.copy()}))


RIGHT: dict[str, tuple[dict[str, Any], Any]] = {
    "by_name": (returns("FP32", "FP32"), lambda x: [x + 1, x * 2]),
    "in_place": (FLOATS, lambda x: [x[:, ::-1] * 3]),
    "reused": (FLOATS, lambda x: [x * 2]),
    "cached": (FLOATS, lambda x: [x * 2]),
    "seeded": (FLOATS, lambda x: [factories.seeded()({"x": x})]),
    "not_finite": (FLOATS, lambda x: [factories.not_finite()({"x": x})]),
    "byte_strings": (TEXTS, lambda x: [np.where(x > 0, "more", "less")]),
    "zero_bytes": (TEXTS, lambda x: [np.where(x > 0, "a+", "b++").astype(object)]),
}


@pytest.mark.parametrize("name", RIGHT)
def test_right_functions_share_batches(name: str, tmp_path: Path) -> None:
    """With their own buffers, caches, views and names of outputs."""
    outputs, want = RIGHT[name]
    made = family(tmp_path, name, outputs=outputs)
    assert checked(made) == ""
    x = np.random.default_rng(1).standard_normal((7, 4)).astype(np.float32)
    for got, wanted in zip(answers(made, x), want(x), strict=True):
        plain = np.vectorize(lambda t: t.replace("\0", "+"))(got) if got.dtype == object else got
        np.testing.assert_array_equal(plain, wanted)


@pytest.mark.parametrize(
    ("name", "outputs", "says"),
    [
        ("counted", FLOATS, "differs between two calls"),
        ("counted_rows", INTEGERS, "differs between two calls"),
        ("running_mean", FLOATS, "differs between two calls"),
        ("hidden_state", FLOATS, "differs between two calls"),
        ("drawn", FLOATS, "differs between two calls"),
        ("in_turns", FLOATS, "differs between two calls"),
        ("softmax", FLOATS, "depends on the other rows"),
        ("softmax_of_positive", FLOATS, "depends on the other rows"),
        ("centred_not_finite", FLOATS, "depends on the other rows"),
        ("in_eights", FLOATS, "depends on the other rows"),
        ("ranks", INTEGERS, "depends on its place in the batch"),
        ("classes", TEXTS, "depends on its place in the batch"),
    ],
)
def test_functions_of_more_than_a_row_are_refused(
    name: str, outputs: dict[str, Any], says: str, tmp_path: Path
) -> None:
    """Of earlier calls, of random numbers or of the batch, in any datatype."""
    with pytest.raises(InputError, match=says):
        checked(family(tmp_path, name, outputs=outputs))


@pytest.mark.parametrize(
    ("name", "outputs"),
    [
        ("best", TEXTS),
        ("seldom", INTEGERS),
        ("quantised", FLOATS),
        ("damped", FLOATS),
        ("spreads_nan", FLOATS),
        ("small_beside_large", FLOATS),
    ],
)
def test_rows_that_others_change_a_little_are_computed_alone(
    name: str, outputs: dict[str, Any], tmp_path: Path
) -> None:
    """So that a client has the answer that it would have without others."""
    made = family(tmp_path, name, outputs=outputs)
    assert "depends on the other rows" in checked(made)
    assert checked(made, most=1) == ""


@pytest.mark.parametrize("name", ["shares_of_whole", "sums_of_whole"])
@pytest.mark.parametrize("datatype", ["INT64", "UINT8"])
def test_rows_of_whole_numbers_that_others_change_are_computed_alone(
    datatype: str, name: str, tmp_path: Path
) -> None:
    """Numbers of 0 and 1, which are places in most tables, have the same largest in all rows."""
    takes = {"x": {"datatype": datatype, "shape": [-1, 4]}}
    made = family(tmp_path, name, inputs=takes)
    assert "depends on the other rows" in checked(made)


@pytest.mark.parametrize("most", range(1, 8))
def test_models_that_take_turns_are_found_whatever_the_largest_batch(
    most: int, tmp_path: Path
) -> None:
    """The number of calls between two of a row is no multiple of their number for all of them."""
    with pytest.raises(InputError, match="differs between two calls"):
        checked(family(tmp_path, "in_turns"), most)


def test_functions_that_draw_random_numbers_say_so(tmp_path: Path) -> None:
    """Their answers are not compared."""
    assert checked(family(tmp_path, "drawn", random=True)) == ""


@pytest.mark.parametrize(
    ("name", "outputs", "says"),
    [
        ("of_other_names", FLOATS, "a mapping without an output"),
        ("nothing_for_texts", TEXTS, "holds NoneType, neither numbers nor texts"),
        ("no_text", TEXTS, "codec can't decode byte"),
        ("no_characters", TEXTS, "surrogates not allowed"),
        ("complex_numbers", FLOATS, "holds complex, neither numbers nor texts"),
        ("masked", FLOATS, "values are masked"),
    ],
)
def test_outputs_that_are_no_tensors_are_errors(
    name: str, outputs: dict[str, Any], says: str, tmp_path: Path
) -> None:
    """They are not made into texts, or into the numbers under a mask."""
    with pytest.raises((InputError, TypeError, UnicodeError), match=says):
        answers(family(tmp_path, name, outputs=outputs), np.array([[1, -1, 1, 1]], np.float32))


def test_another_number_of_outputs_is_refused(tmp_path: Path) -> None:
    """It ended the server's start with a traceback, and later its requests without an answer."""
    made = family(tmp_path, "too_many")
    with (
        pytest.raises(InputError, match="returns 2 outputs in place of 1"),
        serve([made], {"a": 1.0}, ServingOptions(port=0)),
    ):
        pass


def test_a_factory_that_ends_python_is_named(tmp_path: Path) -> None:
    """With what it has raised, where its server cannot start."""
    with (
        pytest.raises(InputError, match="SystemExit: no weights") as caught,
        serve([family(tmp_path, "exits")], {"a": 1.0}, ServingOptions(port=0)),
    ):
        pass
    assert "takes no arguments" in caught.value.hint


def ask(running: Running, *rows: float) -> tuple[int, Any]:
    """Status, and the first number of each row of the answer, or the error."""
    data = [[value] * 4 for value in rows]
    tensor = {"name": "x", "datatype": "FP32", "shape": [len(rows), 4], "data": data}
    url, body = f"{running.url}/v2/models/m/infer", json.dumps({"inputs": [tensor]}).encode()
    try:
        with urllib.request.urlopen(url, body) as answer:
            return answer.status, json.load(answer)["outputs"][0]["data"][::4]
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)["error"]


@pytest.mark.parametrize("name", ["exits_for_some", "raises_unreadably"])
def test_whatever_a_function_raises_its_server_goes_on(name: str, tmp_path: Path) -> None:
    """Only the row that it raises for is refused; no server is lost over it."""
    with serve([family(tmp_path, name)], {"a": 1.0}, ServingOptions(port=0)) as running:
        assert ask(running, 1.0, 2.0) == (200, [2.0, 4.0])
        for value, says in ((10.0, "UnreadableError"), (100.0, "ValueError")):
            status, error = ask(running, value)
            assert status == 400
            assert says in error or "SystemExit: 3" in error
        assert ask(running, 3.0) == (200, [6.0])
        for path in ("", "/config"):  # no ONNX Runtime computes it
            with urllib.request.urlopen(f"{running.url}/v2/models/m{path}") as answer:
                assert json.load(answer)["platform"] == "placewright"
        assert running.dispatcher.fleet.slots[0].restarts == 0


def test_rows_with_outputs_of_unequal_sizes_are_asked_for_one_by_one(tmp_path: Path) -> None:
    """Together they are no tensor, which was an answer without a word."""
    outputs = returns("INT64", shape=(-1, -1))
    with serve([family(tmp_path, "below", outputs=outputs)], {"a": 1.0}, PORT) as running:
        assert ask(running, 2.0)[0] == 200
        assert ask(running, 2.0, 3.0)[0] == 422
        error = ask(running, 2.0, 3.0)[1]
        assert "[2] and [3]" in error
        assert "one row at a time" in error
        assert running.observer.totals == {"in-time": 1, "unequal-shapes": 2}


def test_settings_of_one_function_do_not_reach_another(tmp_path: Path) -> None:
    """Nor those of the server: folder, environment, dtype of PyTorch, errors of NumPy."""
    (tmp_path / "b").mkdir()
    first = family(tmp_path, "other_folder")
    second = family(tmp_path / "b", "own_folder", name="n")
    models = [open_model(model_of(f, f.variants[0]), f.name) for f in (first, second)]
    x, here = np.ones((1, 4), np.float32), len(os.getcwd())
    for _ in range(2):
        found = [float(model.run(None, {"x": x})[0][0, 0]) for model in models]
        assert found == [3.0, here]
    assert "LENGTH" not in os.environ


def test_what_functions_print_is_not_on_stdout(tmp_path: Path) -> None:
    """Programs read the server's own answer there."""
    family(tmp_path, "prints")
    code = (
        "from pathlib import Path\n"
        "from placewright.requests.serving.server import ServingOptions, serve\n"
        "from tests.requests.serving.test_factories import ask, read_family\n"
        f"made = read_family({str(tmp_path / 'family.json')!r}, "
        f"[{factories.__name__ + ':prints'!r}])\n"
        "with serve([made], {'a': 1.0}, ServingOptions(port=0)) as running:\n"
        "    print(ask(running, 2.0))\n"
    )
    environment = python_environment()
    environment["PYTHONPATH"] += os.pathsep + os.getcwd()
    done = subprocess.run(
        python_command("-c", code), env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "(200, [4.0])\n"
    assert "made" in done.stderr
    assert "computed" in done.stderr


def test_a_factory_that_makes_another_model_each_time_is_refused(tmp_path: Path) -> None:
    """Each server would have weights of its own."""
    with (
        pytest.raises(InputError, match="makes another model each time") as caught,
        serve([family(tmp_path, "unseeded")], {"a": 1.0, "b": 1.0}, ServingOptions(port=0)),
    ):
        pass
    assert "server 'b'" in str(caught.value)
    assert "seed" in caught.value.hint
    made = family(tmp_path, "unseeded", random=True)
    with serve([made], {"a": 1.0, "b": 1.0}, ServingOptions(port=0)) as running:
        assert ask(running, 1.0)[0] == 200


def until(true: Callable[[], object]) -> None:
    """Wait for a state."""
    while not true():
        time.sleep(0.01)


def test_a_server_that_is_started_again_has_the_model_of_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not what its factory makes of files that were changed: until the model is loaded again."""
    module = tmp_path / "that_changes.py"
    module.write_text("def made():\n    return lambda inputs: inputs['x'] * 2\n")
    variants = {"v": {"factory": "that_changes:made", "accuracy": 0.5}}
    described = {"name": "m", "variants": variants, "inputs": TAKES, "outputs": FLOATS}
    (tmp_path / "family.json").write_text(json.dumps(described))
    monkeypatch.chdir(tmp_path)  # from which it is imported
    made = read_family(tmp_path / "family.json", ["that_changes:made"])
    with serve([made], {"a": 1.0, "b": 1.0}, ServingOptions(port=0)) as running:
        slot = running.dispatcher.fleet.slots[0]
        module.write_text(module.read_text().replace("2", "7.5"))
        assert slot.process.pid is not None
        os.kill(slot.process.pid, signal.SIGKILL)
        until(lambda: slot.restarts >= 2)
        assert not slot.up
        assert {ask(running, 1.0)[1][0] for _ in range(8)} == {2.0}
        headers = {"authorization": f"Bearer {running.application.admin_token}"}
        url = f"{running.url}/v2/repository/models/m/load"
        urllib.request.urlopen(urllib.request.Request(url, b"{}", headers)).close()
        until(lambda: slot.up)
        assert {ask(running, 1.0)[1][0] for _ in range(8)} == {7.5}
