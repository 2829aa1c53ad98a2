"""Keys and values of the tokens so far, in memory that has room for the next ones.

Users whose next tokens are computed together keep caches of their own: `JoinedCaches`.

A cache of transformers joins all keys and values anew with each token: it copies all of them, and
its memory falls into pieces. Here a token is written behind the others, and the attention gets a
view of the same numbers:

    memory   | no longer seen | tokens that are kept | room for more |
                              ^ start                ^ end           every `CHUNK` tokens a new one
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, DynamicCache
from transformers.cache_utils import Cache, DynamicLayer, DynamicSlidingWindowLayer

from placewright.runtime.messages import own_pages

CHUNK = 128
"""Tokens for which there is room at most, and after which all are copied once."""


class GrowingCache(DynamicCache):
    """Keys and values, or states of other kinds, of some layers of a model.

    Attributes
    ----------
    seen
        Tokens before these: layers without attention do not count them.
    rotations
        What modules that rotate by length have noted of this text.
    """

    def __init__(self, config: Any, start: int, end: int | None) -> None:
        super().__init__(config=config)
        self.layers = [_growing(layer) for layer in self.layers[start:end]]
        self.seen, self.rotations = 0, list[dict[str, Any]]()
        self._attends = any(hasattr(layer, "get_seq_length") for layer in self.layers)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens before these."""
        return int(super().get_seq_length(layer_idx)) if self._attends else self.seen

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """Tokens that are seen, and the first of them."""
        if not self._attends:
            return self.seen + query_length, 0
        found: tuple[int, int] = super().get_mask_sizes(query_length, layer_idx)
        return found


def growing_cache(config: Any, start: int = 0, end: int | None = None) -> GrowingCache:
    """Of no token yet, for layers [start, end) of a whole model's configuration."""
    return GrowingCache(config, start, end)


def _growing(layer: Any) -> Any:
    """Its kind, with room; states of other kinds have a size that stays."""
    if type(layer) is DynamicLayer:
        return GrowingLayer()
    if type(layer) is DynamicSlidingWindowLayer:
        return GrowingWindow(layer.sliding_window)
    return layer


class _Grown:
    """Keys, or values: shape (rows, heads, tokens, width)."""

    def __init__(self) -> None:
        self._memory: Tensor | None = None
        self._start = self._end = 0

    def add(self, new: Tensor) -> Tensor:
        """Write tokens behind the others; a view of all."""
        count = new.shape[-2]
        if self._memory is None or self._end + count > self._memory.shape[-2]:
            self._move(new)
        assert self._memory is not None
        self._memory[:, :, self._end : self._end + count] = new
        self._end += count
        return self._kept(self._memory)

    def keep(self, count: int) -> Tensor:
        """Let go of all but the last tokens; a view of them."""
        assert self._memory is not None
        self._start = max(self._start, self._end - count)
        return self._kept(self._memory)

    def reorder(self, rows: Tensor) -> Tensor:
        """Let row i be what row `rows[i]` was; a view of all tokens."""
        assert self._memory is not None
        memory, kept = self._memory, self._kept(self._memory)
        self._memory = _room(kept, len(rows), memory.shape[-2])
        self._start, self._end = 0, kept.shape[-2]
        torch.index_select(kept, 0, rows, out=self._kept(self._memory))
        return self._kept(self._memory)

    def _kept(self, memory: Tensor) -> Tensor:
        return memory[:, :, self._start : self._end]

    def _move(self, new: Tensor) -> None:
        """Go on in memory with room for these and `CHUNK` more."""
        old, kept = self._memory, self._end - self._start
        memory = _room(new, len(new), kept + new.shape[-2] + CHUNK)
        if old is not None:
            memory[:, :, :kept] = self._kept(old)
        self._memory, self._start, self._end = memory, 0, kept


def _room(like: Tensor, rows: int, tokens: int) -> Tensor:
    """Memory for so many tokens of so many rows.

    On a CPU in pages of its own: the allocator would put other tensors into what is freed, and hold
    more from chunk to chunk.
    """
    shape = (rows, like.shape[1], tokens, like.shape[-1])
    if like.device.type != "cpu":
        return like.new_empty(shape)
    size = rows * like.shape[1] * tokens * like.shape[-1] * like.element_size()
    return own_pages(size).view(like.dtype).view(shape)


class _WithRoom:
    """What layers of both kinds have in common."""

    keys: Tensor | None
    values: Tensor | None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._keys, self._values = _Grown(), _Grown()

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Let row i be what row `beam_idx[i]` was."""
        self.keys, self.values = self._keys.reorder(beam_idx), self._values.reorder(beam_idx)


class GrowingLayer(_WithRoom, DynamicLayer):
    """Of a layer that sees all tokens."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Add those of new tokens; those of all."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.keys, self.values = self._keys.add(key_states), self._values.add(value_states)
        return self.keys, self.values


class GrowingWindow(_WithRoom, DynamicSlidingWindowLayer):
    """Of a layer that sees a window of the last tokens."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Add those of new tokens; those that any of them sees."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.cumulative_length += key_states.shape[-2]
        seen = self._keys.add(key_states), self._values.add(value_states)
        behind = self.sliding_window - 1
        self.keys, self.values = self._keys.keep(behind), self._values.keep(behind)
        return seen


PROBED = "placewright-probed"
"""Name of `_reached` among the implementations of transformers."""

JOINED = "placewright-joined"
"""Name of `joined_attention` among the implementations of transformers."""


def can_join(model: Any, decoder: Any, argument: str) -> bool:
    """Whether steps of several users can be computed together: `JoinedCaches`.

    All but the attention treats rows alike, and the attention is one that can be replaced.
    `decoder`: of the model; `argument`: what it calls its caches.
    """
    return (
        bool(model._supports_attention_backend) and can_split(model) and _reaches(decoder, argument)
    )


def can_split(model: Any) -> bool:
    """Whether a long prompt can be computed in pieces: all that stays is keys and values."""
    if model.config.is_encoder_decoder:
        return False
    own = {type(each) for each in growing_cache(model.config).layers}
    return own <= {GrowingLayer, GrowingWindow}


class _Reached(Exception):  # noqa: N818 - no error
    """Keys and values of several users have come to the attention as they are."""


def _reached(
    module: Any, query: Tensor, key: _Joined, value: Sequence[Tensor], mask: None, **options: Any
) -> tuple[Tensor, None]:
    """In place of `joined_attention`, and called as that is."""
    raise _Reached


def _reaches(decoder: Any, argument: str) -> bool:
    """Whether the first block gives its attention what a cache gives it.

    Others expand latent vectors or repeat heads between. Only numbers of the meta device, and no
    experts, are computed.
    """
    config = decoder.config
    ids = torch.zeros((2, 1), dtype=torch.long, device="meta")
    caches = JoinedCaches([growing_cache(config) for _ in range(2)], [1, 1], "")
    own, config._attn_implementation = config._attn_implementation, PROBED
    padding = getattr(config, "pad_token_id", None)
    try:
        # Without it no numbers are looked at for a warning of padding without a mask.
        config.pad_token_id = None
        decoder(input_ids=ids, position_ids=ids, **{argument: caches}, use_cache=True)
    except _Reached:
        return True
    except Exception:  # of what the block does with them
        return False
    finally:
        config._attn_implementation, config.pad_token_id = own, padding
    return False


class JoinedCaches(Cache):
    """Caches of several users, for one new token of each of their rows.

    Rows of different users have different lengths. So only their attention is computed apart, each
    with its own keys and values as if it was alone, and everything else for all rows together.

    Parameters
    ----------
    rows
        By user.
    attention
        Name of the implementation that each user alone would have.
    """

    def __init__(self, caches: Sequence[Any], rows: Sequence[int], attention: str) -> None:
        super().__init__(layers=caches[0].layers)
        self._caches, self._rows, self._attention = caches, list(rows), attention

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> Any:
        """Add those of new tokens; those of each user, for `joined_attention`."""
        new = zip(
            torch.split(key_states, self._rows), torch.split(value_states, self._rows), strict=True
        )
        pairs = [
            cache.update(keys, values, layer_idx, *args, **kwargs)
            for cache, (keys, values) in zip(self._caches, new, strict=True)
        ]
        keys, values = zip(*pairs, strict=True)
        return _Joined(keys, self._rows, self._attention), values


class _Joined(tuple[Tensor, ...]):
    """Keys by user; `rows` and `attention` as of `JoinedCaches`."""

    rows: list[int]
    attention: str

    def __new__(cls, keys: Sequence[Tensor], rows: list[int], attention: str) -> _Joined:
        found = super().__new__(cls, keys)
        found.rows, found.attention = rows, attention
        return found


def joined_attention(
    module: Any, query: Tensor, key: _Joined, value: Sequence[Tensor], mask: None, **options: Any
) -> tuple[Tensor, None]:
    """The attention of each user by itself: the last token sees all that its cache shows."""
    own = _attention(module, key.attention)
    queries = torch.split(query, key.rows)
    parts = [own(module, *of, None, **options)[0] for of in zip(queries, key, value, strict=True)]
    return torch.cat(parts), None


def _attention(module: Any, name: str) -> Callable[..., Any]:
    """An implementation by name; the eager one is in the file of each model."""
    if name == "eager":
        found: Callable[..., Any] = sys.modules[type(module).__module__].eager_attention_forward
        return found
    return AttentionInterface()[name]  # type: ignore[no-any-return]


AttentionInterface.register(JOINED, joined_attention)
AttentionInterface.register(PROBED, _reached)
