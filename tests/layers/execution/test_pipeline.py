"""Transfers of a pipeline overlap with the receiver's passes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from placewright.layers.execution import pipeline
from placewright.layers.execution.pipeline import ACTIVATION, GRADIENT, _TimedStage


class Message:
    """A receive or send that has not ended."""

    def __init__(self) -> None:
        self.waits = 0

    def wait(self) -> None:
        """Count it."""
        self.waits += 1

    def is_completed(self) -> bool:
        """Never."""
        return False


@pytest.fixture
def posted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int, Message]]:
    """Messages in the order of their calls: kind, peer, tag."""
    found: list[tuple[str, int, int, Message]] = []

    def note(kind: str):
        def call(tensor: torch.Tensor, peer: int, group: object, tag: int) -> Message:
            found.append((kind, peer, tag, Message()))
            return found[-1][3]

        return call

    monkeypatch.setattr(pipeline.dist, "irecv", note("receive"))
    monkeypatch.setattr(pipeline.dist, "isend", note("send"))
    return found


def stage(number: int) -> _TimedStage:
    """The middle one of three stages, say, with three micro-batches and one value per cut."""
    made = _TimedStage.__new__(_TimedStage)
    made.own = SimpleNamespace(stage=number, micro_batches=3)
    made.ahead, made.awaited, made.sent, made.group = True, {}, [], None
    made.args_recv_info = dict.fromkeys(range(3), (number - 1,))
    made.grad_recv_info = dict.fromkeys(range(3), (number + 1,))
    made._get_recv_ops = lambda peers: [operation(peer) for peer in peers]
    return made


def operation(peer: int) -> SimpleNamespace:
    """As PyTorch describes a message."""
    return SimpleNamespace(tensor=torch.zeros(1), peer=peer)


def test_everything_is_asked_for_when_the_step_begins(posted) -> None:
    """Before the first pass: gloo sends nothing that its receiver has not asked for."""
    middle = stage(1)

    assert middle.get_fwd_recv_ops(0) == []
    assert [(kind, peer) for kind, peer, _, _ in posted] == [("receive", 0), ("receive", 2)] * 3
    middle.get_bwd_recv_ops(0)
    middle.get_fwd_recv_ops(1)
    assert len(posted) == 6

    middle._await(ACTIVATION, 1)
    assert [message.waits for *_, message in posted] == [0, 0, 1, 0, 0, 0]


def test_sender_and_receiver_agree_on_tags(posted) -> None:
    """And no two messages of a step have the same."""
    first, second = stage(1), stage(2)
    second.get_fwd_recv_ops(0)
    received = {tag for _, peer, tag, _ in posted if peer == 1}
    posted.clear()
    for m in range(3):
        first._send_now([operation(2)], ACTIVATION, m)
        second._send_now([operation(1)], GRADIENT, m)
    sent = [(peer, tag) for _, peer, tag, _ in posted]

    assert {tag for peer, tag in sent if peer == 2} == received
    assert len({tag for _, tag in sent}) == 6
    first.end_step()
    assert [message.waits for _, peer, _, message in posted if peer == 2] == [1, 1, 1]
