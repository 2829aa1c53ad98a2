"""Growing caches hold, and show, what those of transformers do."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from placewright.layers.generation import caches as growing
from placewright.layers.generation.caches import growing_cache
from placewright.layers.generation.stage import cache_name
from tests.layers.generation.test_generator import DECODERS, model_of, prompts

transformers = pytest.importorskip("transformers")
CHUNK = 12


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several of them in few tokens."""
    monkeypatch.setattr(growing, "CHUNK", CHUNK)


def states(cache: Any) -> list[torch.Tensor]:
    """Keys and values of all layers."""
    return [part for layer in cache.layers for part in (layer.keys, layer.values)]


@pytest.mark.parametrize("kind", DECODERS)
@torch.inference_mode()
def test_every_number_is_that_of_transformers(kind: str) -> None:
    """Logits, keys and values: a padded prompt, more than two chunks of tokens, beams between."""
    model, given = model_of(kind), prompts()
    ids, mask = given["input_ids"], given["attention_mask"]
    caches = [transformers.DynamicCache(config=model.config), growing_cache(model.config)]
    for turn in range(2 * CHUNK + 20):
        logits = [
            model(input_ids=ids, attention_mask=mask, **{cache_name(): cache}).logits
            for cache in caches
        ]
        assert torch.equal(*logits)
        if turn in (3, CHUNK + 7):
            for cache in caches:
                cache.reorder_cache(torch.tensor([1, 0]))
        if turn % 10 == 3:
            assert all(map(torch.equal, *map(states, caches)))
        # Several tokens at once in between: a prompt that goes on.
        ids = logits[0][:, -1:].argmax(-1).repeat(1, 5 if turn == 20 else 1)
        mask = torch.cat([mask, torch.ones_like(ids)], dim=1)
    assert caches[0].get_seq_length() == caches[1].get_seq_length()
    assert caches[0].get_mask_sizes(1, 0) == caches[1].get_mask_sizes(1, 0)


def test_room_is_bounded() -> None:
    """By a chunk, whatever came before; a window keeps no more than itself and a chunk."""
    wide, window = growing_cache(model_of("gemma2").config).layers[1], 8
    slides = growing_cache(model_of("gemma2").config).layers[0]
    one = torch.ones(1, 2, 1, 4)
    for count in range(1, 3 * CHUNK):
        for layer in (wide, slides):
            layer.update(one, one)
        assert wide._keys._memory.shape[-2] <= count + CHUNK
        assert slides._keys._memory.shape[-2] <= window + CHUNK
