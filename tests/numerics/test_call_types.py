"""Types of calls that Numba has resolved before."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pytest
from numba.core import types

from placewright.numerics import njit


def _kernel(values: Any, rows: Any, counts: Any, at: int, by: float) -> Any:
    total = values[at] * by + max(counts[0], at) - rows[at].x
    for k in range(len(counts)):
        total += values[k, ...] if counts[k] > 2 and k != at else np.sqrt(by + counts[k])
        counts[k] = min(counts[k] + 1, 7) // 2
        rows[k].x = total
    return total


def _compiled(**options: bool) -> tuple[Any, list[str], list[Any]]:
    """What is returned, the types of all calls, and what arrays hold after two calls."""
    rows = np.zeros(4, dtype=[("x", "f8"), ("n", "u4")])
    arguments = [np.arange(4.0), rows, np.arange(1, 5), 2, 0.5]
    dispatcher: Any = numba.njit(**options)(_kernel)
    with njit.remembered_call_types():
        results = [dispatcher(*arguments) for _ in range(2)]
    (overload,) = dispatcher.overloads.values()
    calls = [str(call) for call in overload.type_annotation.calltypes.values()]
    return results, calls, [x.tolist() for x in arguments[:3]]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "options", [{}, {"nogil": True}, {"error_model": "numpy"}, {"_nrt": False}]
)
def test_functions_are_typed_and_computed_as_by_numba_alone(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for other flags than those which the calls were resolved for before."""
    _compiled()
    remembered = _compiled(**options), _compiled(**options)
    monkeypatch.setattr(njit, "_get_call_type", njit.resolve_call)
    alone = _compiled(**options)
    assert remembered == (alone, alone)


def test_functions_of_users_ask_numba_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """They may add implementations between two kernels."""
    _compiled()
    asked: list[Any] = []
    resolve = njit.resolve_call
    monkeypatch.setattr(njit, "resolve_call", lambda *of: asked.append(of) or resolve(*of))  # type: ignore[func-returns-value]
    numba.njit(lambda values: values[0] + values[1])(np.arange(3.0))
    assert asked


def test_a_call_is_resolved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second function asks Numba for none of the first one's calls, but those with tuples."""
    _compiled()
    asked: list[Any] = []
    resolve = njit.resolve_call

    def counted(self: Any, context: Any, args: Any, kws: Any) -> Any:
        asked.append(args)
        return resolve(self, context, args, kws)

    monkeypatch.setattr(njit, "resolve_call", counted)
    _compiled()
    assert not [x for x in asked if not any(isinstance(y, types.BaseTuple) for y in x)]
