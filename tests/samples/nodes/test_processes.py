"""Nodes' processes that are killed or stopped are told apart from those that only take long."""

from __future__ import annotations

import os
import signal
import time
from multiprocessing.connection import Connection

import pytest

from placewright.errors import WorkerError
from placewright.runtime import limits
from placewright.samples.nodes.processes import NodeLeft, answers


def obey(order: str, told: Connection) -> None:
    """Do to oneself what others may do."""
    if order in ("KILL", "STOP"):
        os.kill(os.getpid(), getattr(signal, f"SIG{order}"))
    if order == "wait":
        time.sleep(100)
    if order != "leave":
        told.send(order)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is stopped is noticed soon."""
    monkeypatch.setattr(limits, "STOPPED_S", 0.3)
    monkeypatch.setattr(limits, "LOOK_S", 0.05)


def test_everybody_answers_in_order() -> None:
    """However much each is told: more than a pipe takes, too."""
    orders = ["x" * 200_000, "y"]
    assert answers(obey, orders, 60.0) == orders


@pytest.mark.parametrize(("how", "told"), [("KILL", "was killed"), ("STOP", "is stopped")])
def test_a_node_that_is_gone_is_named(how: str, told: str) -> None:
    """Also where the others wait for it."""
    with pytest.raises(NodeLeft, match=f"node 1: the process {told}") as error:
        answers(obey, ["wait", how, "wait"], 60.0)
    assert error.value.ranks == (1,)


def test_a_node_that_ends_without_a_word_has_not_left() -> None:
    """It has an exit code of its own."""
    with pytest.raises(WorkerError, match=r"node 0: the process died .exit code 0"):
        answers(obey, ["leave", "wait"], 60.0)


def test_silence_has_a_limit() -> None:
    """With who is silent."""
    with pytest.raises(WorkerError, match="node 1: no answer in time"):
        answers(obey, ["fine", "wait"], 3.0)
