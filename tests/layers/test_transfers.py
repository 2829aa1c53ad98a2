"""Boundaries between stages of any tensor degrees, against counts by hand."""

from __future__ import annotations

import numpy as np
import pytest

from placewright.layers.conformance import tiny
from placewright.layers.plan import LayerPlan, Replica, Stage
from placewright.layers.problem import LayerProblem, Training
from placewright.layers.simulation import network_of
from placewright.layers.transfers import crossing_times, message, ring_s, transfers
from placewright.layers.workers import Link

BYTES, CARD, BUS = 80.0, 10.0, 1000.0


def two_nodes(cards: Link, **changes: object) -> LayerProblem:
    """Two nodes of eight workers; outputs of 80 bytes a sample, and a bus inside each."""
    degrees = (1, 2, 4, 8)
    times = np.ones((1, len(degrees), 1, 2))
    return tiny(
        [1.0, 1.0],
        16,
        2,
        degrees=degrees,
        parameters=np.full((2, 4), 8.0),
        output_bytes=np.full((2, 4), BYTES),
        activation_bytes=np.full((2, 4), BYTES),
        forward_s=times,
        backward_s=times,
        links=(Link.linear(BUS, 0.0, BUS), cards),
        link_index=np.array([[0, 1], [1, 0]]),
        **{"global_batch": 2} | changes,
    )


def groups(before: int, behind: int, start: int = 8) -> LayerPlan:
    """A stage on the first node, and one on workers from `start` on."""
    ends = (tuple(range(before)), tuple(range(start, start + behind)))
    stages = [Stage(s, s, (Replica(w, 2),), len(w)) for s, w in enumerate(ends)]
    return LayerPlan(tuple(stages))


@pytest.mark.parametrize("before", [1, 2, 8])
@pytest.mark.parametrize("behind", [1, 4, 8])
def test_an_activation_and_its_gradient_cross_a_shared_card_once(before: int, behind: int) -> None:
    """Whatever the degrees; receivers then gather inside their node."""
    p, plan = two_nodes(Link.linear(CARD, 0.0, CARD)), groups(before, behind)
    (found,) = transfers(p, plan, 0, 0.0)
    whole_s = 2 * BYTES / CARD
    assert (found.forward_s, found.backward_s) == pytest.approx((whole_s, whole_s))
    rings = [ring_s(p, stage.workers, 2 * BYTES, 1) for stage in plan.stages]
    assert found.gather_s == pytest.approx((rings[1], rings[0]))
    assert (rings[1] == 0) == (behind == 1)
    alone = crossing_times(p, *(stage.workers for stage in plan.stages), np.array([2 * BYTES]))
    assert alone[0] == pytest.approx(2 * whole_s + sum(rings))
    costs = network_of(p, plan).costs
    assert costs[1][0].forward - costs[0][0].forward == pytest.approx(
        _inside_s(p, behind) + rings[1] - _inside_s(p, before)
    )


def _inside_s(p: LayerProblem, degree: int) -> float:
    """All-reduces of a layer's forward pass in a tensor group."""
    return ring_s(p, range(degree), 2 * float(p.tensor_bytes[0, 0]), 2)


def test_a_card_for_each_worker_carries_a_part() -> None:
    """Eight cards carry an eighth each; from two workers to eight, two cards carry four parts."""
    p = two_nodes(Link.linear(CARD))
    (equal,) = transfers(p, groups(8, 8), 0, 0.0)
    assert equal.forward_s == pytest.approx(2 * BYTES / 8 / CARD)
    sent = message(
        p, groups(2, 8).stages, (Replica((0, 1), 2), Replica(tuple(range(8, 16)), 2)), 2, back=False
    )
    assert len(sent.pairs) * sent.each_bytes == pytest.approx(2 * BYTES)


def test_a_whole_activation_goes_to_every_receiver_where_none_is_split() -> None:
    """Four copies forwards over one card; one gradient back to a single worker."""
    whole = Training(split_activations=False, split_gradients=False)
    p = two_nodes(Link.linear(CARD, 0.0, CARD), training=whole)
    (found,) = transfers(p, groups(1, 4), 0, 0.0)
    assert found.forward_s == pytest.approx(4 * 2 * BYTES / CARD)
    assert found.backward_s == pytest.approx(2 * BYTES / CARD)
    assert found.gather_s == (0.0, 0.0)


def test_inside_a_node_the_bus_carries_the_activation_once() -> None:
    """Stages of two workers each on one node; stages of the same workers send nothing."""
    p = two_nodes(Link.linear(CARD, 0.0, CARD))
    (found,) = transfers(p, groups(2, 2, start=2), 0, 0.0)
    assert found.forward_s == pytest.approx(2 * BYTES / BUS)
    (same,) = transfers(p, groups(2, 2, start=0), 0, 0.0)
    assert (same.forward_s, same.backward_s, same.gather_s) == (0.0, 0.0, (0.0, 0.0))


def test_a_sender_that_kept_its_part_gathers_again_before_the_backward_pass() -> None:
    """As long as the gather of the gradient."""
    p, plan = two_nodes(Link.linear(CARD)), groups(4, 4)
    (plain,) = transfers(p, plan, 0, 0.0)
    (kept,) = transfers(p.replace(training=Training(keeps_parts=True)), plan, 0, 0.0)
    assert kept.gather_s == pytest.approx((plain.gather_s[0], 2 * plain.gather_s[1]))


def test_messages_of_uneven_shares_share_the_receivers_card() -> None:
    """One and three samples from two nodes: the first takes turns with the second, then it is done.

    The card takes 8 seconds a sample: both have sent one sample after 16, all four are there at 32.
    """
    p = two_nodes(Link.linear(CARD, 0.0, CARD), global_batch=4)
    stages = (
        Stage(0, 0, (Replica((0,), 1), Replica((1,), 3))),
        Stage(1, 1, (Replica((8, 9), 4),), 2),
    )
    found = transfers(p, LayerPlan(stages), 0, 1e9)
    assert [t.samples for t in found] == [1, 3]
    assert [t.forward_s for t in found] == pytest.approx([16.0, 32.0])
