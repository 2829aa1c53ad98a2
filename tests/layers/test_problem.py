"""Problems and plans of layers: defaults, links, refusals."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from placewright.errors import InputError, UnsupportedError
from placewright.layers.conformance import tiny
from placewright.layers.plan import LayerPlan, Replica, Schedule, Stage, Strategy, check_plan
from placewright.layers.problem import LayerProblem, Refusal, Training
from placewright.layers.stage_costs import state_bytes, worker_bytes
from placewright.layers.workers import Link


def two_layers(**changes: object) -> LayerProblem:
    """Two layers, two workers on two nodes, tensor degrees 1 and 2."""
    usual: dict[str, object] = {
        "layer_names": ("a", "b"),
        "parameters": [[4.0, 2.0], [8.0, math.inf]],
        "output_bytes": np.full((2, 2), 10.0),
        "forward_s": np.ones((1, 2, 1, 2)),
        "backward_s": np.full((1, 2, 1, 2), 2.0),
        "degrees": (1, 2),
        "worker_names": ("w0", "w1"),
        "node_names": ("n0", "n1"),
        "worker_node": [0, 1],
        "links": (Link.linear(100.0, 0.5),),
        "link_index": [[-1, 0], [0, -1]],
        "global_batch": 4,
    }
    return LayerProblem(**usual | changes)  # type: ignore[arg-type]


def test_a_problem_is_a_chain_unless_edges_say_otherwise() -> None:
    """Edges carry the outputs; the hash covers links and options."""
    p = two_layers()
    assert p.is_chain
    assert p.edge_bytes.tolist() == [10.0]
    assert p.hash() == two_layers().hash()
    assert p.hash() != two_layers(links=(Link.linear(101.0, 0.5),)).hash()
    assert p.hash() != p.replace(global_batch=8).hash()


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"global_batch": 0}, "global_batch must be at least 1"),
        ({"global_batch": 10**15}, "global_batch must be at most"),
        ({"degrees": (2, 4)}, "degrees must ascend from 1"),
        ({"layer_names": ("a", "a")}, "the layer 'a' is there twice"),
        ({"forward_s": np.ones((1, 1, 1, 2))}, "forward_s has the wrong shape"),
        ({"output_bytes": np.ones(2)}, "output_bytes has the wrong shape"),
        ({"output_bytes": np.ones((2, 0))}, "output_bytes has the wrong shape"),
        ({"output_bytes": np.ones((3, 1))}, "output_bytes has the wrong shape"),
        ({"edge_source": [1], "edge_target": [0], "edge_bytes": [1.0]}, "topological order"),
        ({"edge_source": [0], "edge_target": [1], "edge_bytes": []}, "got none for 1 edges"),
        ({"link_index": [[-1, 3], [0, -1]]}, "a link that does not exist"),
        ({"micro_batches": 3}, "micro_batches must divide the global batch"),
        ({"zero_stages": (0, 7)}, "zero_stages must be some of 0"),
        ({"zero_stages": (0, 1, 0)}, "each once"),
        ({"refusals": (Refusal(2, Strategy.DATA, "batch norm"),)}, "refusals name a layer"),
    ],
)
def test_wrong_problems_are_refused(changes: dict[str, object], match: str) -> None:
    """By name of the field or the layer."""
    with pytest.raises(InputError, match=match):
        two_layers(**changes)


@pytest.mark.parametrize("size", [0.0, -1.0, math.nan])
def test_buckets_of_nothing_are_refused(size: float) -> None:
    """They would be exchanged in no time."""
    with pytest.raises(InputError, match=r"bucket_bytes .*number > 0"):
        Training(bucket_bytes=size)


def test_links_share_what_their_ends_have_in_common() -> None:
    """Pairs on one card wait for each other; sizes beyond the table keep its bandwidth."""
    link = Link.linear(100.0, 0.5, shared_bandwidth=200.0)
    assert link.seconds(100.0) == pytest.approx(1.5)
    assert link.seconds(100.0, pairs=2) == pytest.approx(1.5)
    assert link.seconds(100.0, pairs=4) == pytest.approx(2.5)
    assert link.seconds(0.0) == 0.0
    table = Link(np.array([1]), np.array([10.0, 20.0]), np.array([[1.0, 1.5]]))
    assert table.seconds(15.0) == pytest.approx(1.25)
    assert table.seconds(40.0) == pytest.approx(3.0)
    assert table.seconds(20.0, pairs=3) == pytest.approx(4.5)


def test_links_are_read_in_ascending_rows() -> None:
    """Other orders would answer with a row of fewer pairs."""
    with pytest.raises(InputError, match="ascending numbers of pairs"):
        Link(np.array([4, 1]), np.array([0.0, 1.0]), np.ones((2, 2)))


def plan(*stages: Stage, micro_batches: int = 2, **changes: object) -> LayerPlan:
    """A plan of these stages."""
    return LayerPlan(tuple(stages), micro_batches, **changes)  # type: ignore[arg-type]


def test_plans_are_checked_against_their_problem() -> None:
    """Layers without gaps, workers once, shares that make up the batch, possible strategies."""
    p, one = two_layers(), (Replica((0,), 2),)
    check_plan(p, plan(Stage(0, 1, one)))
    check_plan(p, plan(Stage(0, 0, one), Stage(1, 1, (Replica((1,), 2),))))
    wrong = {
        "all layers in order": plan(Stage(1, 1, one)),
        "must hold all layers": plan(Stage(0, 0, one)),
        "is in two stages": plan(Stage(0, 0, one), Stage(1, 1, one)),
        "make up the global batch": plan(Stage(0, 1, (Replica((0,), 3),))),
        "does not exist": plan(Stage(0, 1, (Replica((7,), 2),))),
        "each of them a worker": plan(Stage(0, 1, (Replica((0, 1), 1), Replica((), 1)), 2)),
        "names a worker twice": plan(Stage(0, 1, (Replica((0,), 1), Replica((0,), 1)))),
        "at least one sample": plan(Stage(0, 1, (Replica((0,), 2), Replica((1,), 0)))),
        "cannot be tensor": plan(Stage(0, 1, (Replica((0, 1), 2),), 2)),
    }
    for match, bad in wrong.items():
        with pytest.raises(InputError, match=match):
            check_plan(p, bad)
    mixed = Stage(0, 1, (Replica((0, 1), 2),), 2, (Strategy.TENSOR, Strategy.DATA))
    check_plan(p, plan(mixed))
    check_plan(p, plan(Stage(0, 0, one), Stage(1, 1, one), schedule=Schedule.INTERLEAVED))


def test_a_refused_strategy_is_named_with_its_reason() -> None:
    """The layer, the strategy, why."""
    p = two_layers(refusals=(Refusal(0, Strategy.TENSOR, "3 heads over 2 workers"),))
    with pytest.raises(UnsupportedError, match=r"layer 'a' cannot be tensor.*3 heads"):
        p.demand(0, Strategy.TENSOR, 2)
    assert p.refusal(0, Strategy.DATA) == ""


def test_a_layer_that_sees_the_whole_batch_is_not_sharded_either() -> None:
    """Workers that shard a layer have a part of the samples each; one alone has all of them."""
    p = two_layers(refusals=(Refusal(0, Strategy.DATA, "batch norm"),))
    with pytest.raises(UnsupportedError, match=r"layer 'a' cannot be sharded.*batch norm"):
        p.demand(0, Strategy.SHARDED, 2)
    assert p.refusal(0, Strategy.SHARDED) == ""


def test_the_optimizer_may_need_more_memory_than_the_passes() -> None:
    """The largest parameter's update comes when activations are gone; ZeRO divides it."""
    kept, update = np.full((2, 2), 5.0), [[30.0, 15.0], [1000.0, 500.0]]
    p = two_layers(activation_bytes=kept, update_bytes=update)
    one = Stage(0, 1, (Replica((0,), 2),))
    assert worker_bytes(p, plan(one))[0] == pytest.approx(state_bytes(p, one) + 1000.0)
    without = p.replace(update_bytes=np.zeros((2, 2)))
    assert worker_bytes(without, plan(one))[0] == pytest.approx(state_bytes(p, one) + 20.0)
    unknown = p.replace(activation_bytes=np.full((2, 2), math.nan))
    assert math.isnan(worker_bytes(unknown, plan(one))[0])
    both = (Replica((0,), 1), Replica((1,), 1))
    for zero, needs in ((0, 1000.0), (1, 500.0)):
        stage = Stage(0, 1, both, zero_stage=zero)
        assert worker_bytes(p, plan(stage))[0] == pytest.approx(state_bytes(p, stage) + needs)


def test_memory_that_pytorch_and_its_heap_need_beside_activations() -> None:
    """Gradients beside their sum, buffers of a pipeline, blocks that glibc does not give back."""
    kept, work, update = np.full((2, 2), 5.0), np.full((2, 2), 8.0), np.full((2, 2), 50.0)
    p = two_layers(activation_bytes=kept, working_bytes=work, update_bytes=update)

    def held(training: dict[str, Any], *stages: Stage, micro_batches: int = 1) -> list[float]:
        problem = p.replace(training=replace(p.training, **training))
        chosen = plan(*stages, micro_batches=micro_batches)
        states = [(w, state_bytes(p, s)) for s in stages for w in s.workers]
        return [worker_bytes(problem, chosen)[w] - state for w, state in states]

    alone = Stage(0, 1, (Replica((0,), 4),))
    assert held({}, alone) == pytest.approx([40 + 32])
    assert held({"heap_block_bytes": 16.0}, alone) == pytest.approx([40 + 32 + 50])
    assert held({"heap_block_bytes": 15.0}, alone) == pytest.approx([40 + 32])

    halves, most = Stage(0, 1, (Replica((0,), 2), Replica((1,), 2))), 4 * 8.0
    assert held({}, halves) == pytest.approx([50, 50])
    # When the second layer goes backward, the first one's gradient is not made yet.
    made = 4 * p.parameters[0, 0]
    assert held({"gradients_apart": True}, alone) == pytest.approx([40 + 32 - made])
    twice = Stage(0, 1, (Replica((0,), 2),))
    found = held({"gradients_apart": True}, twice, micro_batches=2)
    assert found == pytest.approx([20 + 16 + most])  # beside the gradients of the first one
    assert held({"gradients_apart": True}, halves) == pytest.approx([20 + 16 + most] * 2)

    pair = Stage(0, 0, (Replica((0,), 2),)), Stage(1, 1, (Replica((1,), 2),))
    assert held({}, *pair, micro_batches=2) == pytest.approx([50, 50])
    received = held({"keeps_received": True}, *pair, micro_batches=2)
    assert received == pytest.approx([50 + 4 * 10, 50 + 2 * 4 * 10])


@pytest.mark.parametrize("sources", [(), (0,), (1,), (0, 1)])
def test_layers_that_are_computed_again_keep_what_they_read(sources: tuple[int, ...]) -> None:
    """The outputs of the layers before them, which need not be the next ones in the list."""
    outputs = np.array([30.0, 5.0, 1.0])
    p = tiny(
        [1.0] * 3,
        1,
        degrees=(1,),
        parameters=np.zeros((3, 1)),
        output_bytes=outputs[:, None],
        activation_bytes=np.full((3, 1), 100.0),
        forward_s=np.ones((1, 1, 1, 3)),
        backward_s=np.ones((1, 1, 1, 3)),
        edge_source=[0, *sources],
        edge_target=[1, *(2 for _ in sources)],
        edge_bytes=outputs[[0, *sources]],
        global_batch=1,
    )
    stage = Stage(0, 2, (Replica((0,), 1),), recompute=True)
    read = outputs[0] + outputs[list(sources)].sum()
    assert worker_bytes(p, LayerPlan((stage,)))[0] == pytest.approx(100.0 + read)
