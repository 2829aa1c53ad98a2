"""What a worker holds of the weights of its layers."""

from __future__ import annotations

from placewright.layers.plan import Stage, Strategy
from placewright.layers.problem import LayerProblem


def layer_elements(p: LayerProblem, stage: Stage, layer: int, degree: int = 0) -> float:
    """Parameter elements of a layer that one worker of a replica of `degree` computes with.

    Of the smallest replica, whose workers hold the most, where no degree is given.
    """
    own = degree or min(len(r.workers) for r in stage.replicas)
    degree = own if stage.strategy(layer) is Strategy.TENSOR else 1
    return float(p.parameters[layer, p.degree_index(degree)])


def once(p: LayerProblem, stage: Stage) -> list[int]:
    """Layers whose weights a stage holds: of tied layers in one stage only the first."""
    second = {max(a, b) for a, b in p.tied if a in stage.layers and b in stage.layers}
    return [layer for layer in stage.layers if layer not in second]


def state_shards(stage: Stage, strategy: Strategy) -> int:
    """Among how many workers the optimizer states of a layer are divided."""
    shards = len(stage.replicas) if stage.zero_stage >= 1 else 1
    return shards * stage.tensor_degree if strategy is Strategy.SHARDED else shards
