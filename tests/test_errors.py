"""The error tree and its messages."""

from __future__ import annotations

import pickle

import pytest

from placewright import errors
from placewright.errors import (
    InfeasibleError,
    InputError,
    MissingDependencyError,
    PlacewrightError,
    UnknownNameError,
    WorkerError,
    check_known,
    look_up,
)


def test_a_message_has_four_parts() -> None:
    """Where, what, by how much, what next."""
    error = InputError("too big", where="'conv1' on 'gpu0'", by="2 GiB over", hint="add a device")
    assert str(error) == "'conv1' on 'gpu0': too big (2 GiB over)\n  next: add a device"
    assert str(InputError("too big")).startswith("too big\n  next: correct it")


def test_exit_codes() -> None:
    """Infeasible is 3, every other error 1."""
    kinds = [k for k in vars(errors).values() if isinstance(k, type)]
    codes = {k.__name__: k.exit_code for k in kinds if issubclass(k, PlacewrightError)}
    assert codes.pop("InfeasibleError") == codes.pop("OutOfTimeError") == 3
    assert set(codes.values()) == {1}


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    """Every error is drawn at the top of the file, and nothing else is."""
    assert errors.__doc__ is not None
    drawn = {word for word in errors.__doc__.split() if word.endswith("Error")}
    raised = {
        k.__name__
        for k in vars(errors).values()
        if isinstance(k, type) and issubclass(k, PlacewrightError)
    }
    assert drawn == raised


def test_the_nearest_name_or_all_of_them() -> None:
    """A slip is corrected; a wild guess is shown what there is."""
    near = UnknownNameError("planner", "heftt", ["heft", "cpop"], where="p")
    assert str(near) == "p: unknown planner 'heftt'\n  next: did you mean 'heft'?"
    assert "known: heft, cpop" in str(UnknownNameError("planner", "zzz", ["heft", "cpop"]))


@pytest.mark.parametrize(
    "error",
    [
        WorkerError("died", where="worker 1", by="exit code 9", hint="look above"),
        UnknownNameError("planner", "x", ["y"]),
        MissingDependencyError("torch", extra="torch", purpose="capture"),
        InfeasibleError("no room"),
    ],
)
def test_errors_cross_process_boundaries(error: PlacewrightError) -> None:
    """Type and message survive."""
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)


def test_a_missing_package_names_its_extra() -> None:
    """One of ours; not a module of the user's, nor one without a name."""
    missing = ModuleNotFoundError("No module named 'torch.nn'", name="torch.nn")
    error = MissingDependencyError.of(missing, "placewright layers plan")
    assert str(error) == (
        "placewright layers plan needs the package 'torch'\n"
        "  next: pip install 'placewright[torch]'"
    )
    assert MissingDependencyError.of(ModuleNotFoundError(name="my_model"), "x") is None
    assert MissingDependencyError.of(ModuleNotFoundError("?"), "x") is None


def test_a_name_is_looked_up() -> None:
    """What has it, or the nearest name that something has."""
    known = {"edge-duo": 2, "server": 4}
    check_known("cluster", "server", known)
    assert look_up("cluster", "edge-duo", known) == 2
    for find in (check_known, look_up):
        with pytest.raises(UnknownNameError, match=r"^here: unknown cluster 'edge-due'") as found:
            find("cluster", "edge-due", known, where="here")
        assert found.value.hint == "did you mean 'edge-duo'?"
