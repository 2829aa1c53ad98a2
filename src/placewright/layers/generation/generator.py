"""`Generator`: tokens from a language model whose layers are on the workers of a cluster."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from itertools import count, pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from placewright.cluster.cluster import Cluster
from placewright.errors import (
    InputError,
    UnknownNameError,
    UnsupportedError,
    WorkerError,
    WorkerLostError,
)
from placewright.io.scratch import Scratch
from placewright.io.tensor_files import StoredTensor, write_tensors
from placewright.layers.generation.batcher import JOINING, Arrays, Batcher, Step
from placewright.layers.generation.stage import (
    Loaded,
    RandomWeights,
    Source,
    Stage,
    StageOrder,
    cache_name,
    decoder_of,
    layer_counts,
    needed_names,
    positions_in_table,
    rotates_by_length,
    skeleton,
    source_of,
)
from placewright.runtime import limits
from placewright.runtime.engines.engine import Engine, EngineName, WorkerGroup, open_engine
from placewright.runtime.engines.torchrun_agent import served_torchrun
from placewright.runtime.probe import LinkSeconds
from placewright.runtime.session import WorkerSession

PROGRAM = "placewright.layers.generation.worker:StageWorker"

_NOTHING: Mapping[str, StoredTensor] = {}

Ranges = Mapping[str, tuple[int, int]]
"""Layers [start, end) by name of the device, from the first layer to the last one."""

Replan = Callable[[Cluster], Ranges]

PASSED = ("logits_to_keep",)
"""Whole numbers that the model is called with, beside its tensors."""

PROMPT_CHUNK = 128
"""Tokens of a prompt that are computed at a time: between them are those of other users."""

_OFF: tuple[Any, ...] = (None, False)

REFUSED: Mapping[str, tuple[Any, ...]] = {
    "use_cache": (None, True),
    "guidance_scale": (None, 1),
    "assistant_early_exit": (None, 0),
    **dict.fromkeys(
        (
            *("cache_implementation", "assistant_model", "prompt_lookup_num_tokens"),
            *("past_key_values", "cache", "output_attentions", "output_hidden_states"),
        ),
        _OFF,
    ),
    "inputs_embeds": (None,),
}
"""Options of `generate` that want caches, embeddings or activations in this process, and the values
with which they do not."""


class Generator:
    """A language model of transformers, its layers on worker processes; a context manager.

    ``generate`` is that of transformers: greedy or sampled, several rows with padding, beams,
    streamers and stopping rules; the same tokens as `model.generate` gives on one device. Each
    call keeps its own caches on the workers. Threads generate side by side: tokens of all of them
    are computed together (`placewright.layers.generation.batcher`).

    Parameters
    ----------
    model
        A language model, decoder-only or T5, or the folder of one with safetensors.
    ranges
        Consecutive layers from 0 to the last one; an encoder's come before the decoder's.
    engine
        Who starts the workers; children of this process by default.
    replan
        Ranges for the part of the cluster that is left when workers have died: calls go on there.
    groups
        Of users, whose tokens are computed at the same time on different devices; as many as there
        are devices with layers by default.

    Attributes
    ----------
    cluster, ranges
        In force.
    session
        The workers.
    held_bytes
        Of weights and buffers, by device of the cluster.
    lost
        Devices whose workers died.
    prompt_chunk
        Tokens of a prompt that are computed at a time.

    Raises
    ------
    InputError
        The ranges are not all layers in order, or name a device that is not there.
    UnsupportedError
        It is no such language model, was changed (hooks, modules of other classes), or its
        checkpoint lacks a tensor; with `replan`, angles of its positions change with the length
        (dynamic, longrope).
    """

    def __init__(
        self,
        model: Any,
        ranges: Ranges,
        cluster: Cluster,
        engine: Engine | None = None,
        replan: Replan | None = None,
        groups: int | None = None,
    ) -> None:
        from placewright.layers.generation.caches import can_join, can_split

        source = source_of(model)
        self.cluster = cluster
        shell = skeleton(source.config, source.dtype, source.attention)
        if isinstance(source, Loaded):
            source.demand_made_by(shell)
        self._counts = layer_counts(shell)
        self._source, self._replan, self._groups = source, replan, groups
        self._place(ranges, cluster)
        self._by_length = rotates_by_length(shell)
        if replan is not None and self._by_length:
            raise _by_length("adapt", "generate without it")
        self._positions = positions_in_table(shell)
        self._splits = can_split(shell) and not self._by_length
        joins = can_join(shell, decoder_of(shell), cache_name()) and self._splits
        self._shell = _placed(shell, self._forward, self._encoded)
        self._shell.generation_config = source.generation_config(shell)
        self._folder = Scratch()
        self.session = WorkerSession(cluster, PROGRAM, engine)
        self._batcher = Batcher(self.group, 1, joins=joins, recover=self._replace_workers)
        self._users = count()
        self._own = threading.local()
        self.held_bytes: list[int] = []
        self.lost: list[str] = []
        self.prompt_chunk = PROMPT_CHUNK

    def _place(self, ranges: Ranges, cluster: Cluster) -> None:
        self._orders = _orders(self._source, ranges, self._counts, cluster.device_names)
        self.ranges = dict(ranges)

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.group.close()
            self._folder.cleanup()
            raise
        return self

    def _start(self) -> None:
        """Start the workers, and give them their layers."""
        self.group.limit_s = limits.order_s(self._source.nbytes)
        self.session.__enter__()
        self._load()

    def __exit__(self, kind: object, *rest: object) -> None:
        try:
            self.session.__exit__(kind, *rest)
        finally:
            self._folder.cleanup()

    @property
    def group(self) -> WorkerGroup:
        """The workers."""
        return self.session.group

    @property
    def emulated(self) -> str:
        """See `Engine.emulated`."""
        return self.session.emulated

    @property
    def joins(self) -> bool:
        """Whether tokens of several users are computed together."""
        return self._batcher.joins

    @property
    def vocabulary(self) -> int:
        """How many tokens there are."""
        return int(self._shell.config.get_text_config().vocab_size)

    @property
    def repeats_prompt(self) -> bool:
        """Whether what `generate` gives begins with the prompt; behind an encoder, it does not."""
        return not self._shell.config.is_encoder_decoder

    @property
    def generation_config(self) -> Any:
        """What `generate` does where an option is not given."""
        return self._shell.generation_config

    def load(self, ranges: Ranges) -> None:
        """Place the layers otherwise on the same workers; calls that are under way go on.

        Their tokens so far are computed again, as a prompt. Raises `UnsupportedError`: there are
        some, and their positions are rotated by the length that the text had.
        """
        with self._batcher.quiet():
            if self._by_length and self._batcher.users:
                raise _by_length("load", "wait for the calls that are under way")
            self._place(ranges, self.cluster)
            self._load()

    def give(self, stages: Sequence[StageOrder | None]) -> None:
        """Give the devices stages of random numbers, for which only the time counts."""
        with self._batcher.quiet():
            self._orders = [() if each is None else (each,) for each in stages]
            self._deal([""] * len(self.group.specs))

    def generate(self, inputs: Tensor | None = None, **options: Any) -> Any:
        """As `generate` of transformers.

        Parameters
        ----------
        inputs
            The prompt, shape (batch, tokens), also by the name ``input_ids``; the token that
            begins a text where none is given.
        options
            Of `transformers.GenerationMixin.generate`: ``max_new_tokens``, ``do_sample``, ...

        Raises
        ------
        WorkerError
            A worker died; the message names it. With `replan` only where nobody is left.
        RunError
            The model raised on a worker; other calls go on.
        InfeasibleError
            The workers that are left cannot hold the model.
        UnsupportedError
            An option needs in this process what is on the workers.
        InputError
            The prompt has tokens that the model has not, or a mask of another shape, or the text
            gets longer than the model has positions.
        """
        for name, harmless in REFUSED.items():
            if self._option(name, options) not in harmless:
                raise _not_here(
                    name,
                    f"leave it out, or give {name}={harmless[-1]}: the model's "
                    "configuration may ask for it",
                )
        given = options.get("input_ids") if inputs is None else inputs
        if isinstance(given, Tensor):
            self._check(given, options.get("attention_mask"))
        cache = self._own.cache = _remote_cache(self, next(self._users))
        with self._batcher.user():
            try:
                return self._shell.generate(inputs, **{cache_name(): cache}, **options)
            finally:
                # Tokens are there, or an error is: that a worker died now is for the next call.
                with suppress(WorkerError):
                    self._batcher.order("forget", cache.user)

    def _option(self, name: str, options: Mapping[str, Any]) -> Any:
        """What an option is: by itself, in a configuration that is given, or in the model's."""
        if name in options:
            return options[name]
        for config in (options.get("generation_config"), self.generation_config):
            if (found := getattr(config, name, None)) is not None:
                return found
        return None

    def _check(self, tokens: Tensor, mask: Any) -> None:
        """Raise `InputError` for a prompt at which a worker would end in an error."""
        if tokens.dim() != 2 or not tokens.numel() or tokens.dtype not in (torch.long, torch.int):
            raise InputError(
                "a prompt is no table of whole numbers",
                where="generate: input_ids",
                by=f"shape {tuple(tokens.shape)}, {tokens.dtype}",
                hint="give int64 tokens of shape (batch, tokens), neither of which is 0",
            )
        least, most = int(tokens.min()), int(tokens.max())
        if least < 0 or most >= self.vocabulary:
            raise InputError(
                "a prompt has a token that the model has not",
                where="generate: input_ids",
                by=f"tokens from {least} to {most}, the model has {self.vocabulary}",
                hint="use the tokenizer of the model; negative labels are no tokens",
            )
        if isinstance(mask, Tensor) and mask.dim() == 2 and mask.shape != tokens.shape:
            raise InputError(
                "an attention mask has another shape than the prompt",
                where="generate: attention_mask",
                by=f"{tuple(mask.shape)}, the prompt {tuple(tokens.shape)}",
                hint="give one number for each token: 1, or 0 for padding",
            )

    def _check_positions(self, tensors: Arrays, before: int) -> None:
        """Raise `InputError` where a text gets longer than the model has positions."""
        places = tensors.get("position_ids")
        last = before + tensors["input_ids"].shape[1] if places is None else int(places.max()) + 1
        if self._positions is not None and last > self._positions:
            raise InputError(
                "a text is longer than the model's positions",
                where="generate",
                by=f"{last} tokens, the model has {self._positions} positions",
                hint="give a shorter prompt, or fewer new tokens",
            )

    def order(self, name: str, *arguments: Any) -> list[Any]:
        """Give all workers an order, behind those that are on their way; answers by device."""
        return self.session.by_device(self._batcher.order(name, *arguments))

    def time_links(self, pairs: Sequence[tuple[int, int]]) -> dict[tuple[int, int], LinkSeconds]:
        """Round trips between pairs of devices, as stages send."""
        found = self._batcher.order("time_links", pairs)
        return {pair: trips for each in found for pair, trips in each.items()}

    def _forward(self, **given: Any) -> Any:
        """What transformers calls for the logits of the next token."""
        from transformers.modeling_outputs import CausalLMOutputWithPast

        cache = given.pop(cache_name(), None)
        if given.get("use_cache") is False or (cache is None and not self._by_length):
            raise _not_here("use_cache=False", "give use_cache=True")
        if cache is None:  # Phi 3, whose angles change: all tokens are given again
            cache = self._begun_again()
        if "decoder_input_ids" in given:
            given["input_ids"] = given.pop("decoder_input_ids")
            encoded = given.pop("encoder_outputs")
            given.pop("position_ids", None)  # T5 takes any option, and has no positions
            if given.get("attention_mask") is None:
                given["attention_mask"] = torch.ones(encoded.last_hidden_state.shape[:2])
            if not cache.length:
                given["encoded"] = encoded.last_hidden_state
        tensors = _arrays(given)
        self._check_positions(tensors, cache.length)
        numbers = {name: int(given[name]) for name in PASSED if isinstance(given.get(name), int)}
        new = tensors["input_ids"].shape[1]
        with self._batcher.prompt() if new > 1 else nullcontext():
            most = self.prompt_chunk if self._splits else new
            for piece in _pieces(tensors, numbers, cache.length, most):
                logits = self._logits(cache, piece, numbers)
        # Ray's answers cannot be written to, and `generate` may write.
        made = torch.from_numpy(np.require(logits[:, -new:], None, "W"))
        output = CausalLMOutputWithPast(logits=made)
        output[cache_name()] = cache
        return output

    def _begun_again(self) -> Any:
        """The caches of the user of this thread, without tokens."""
        cache = self._own.cache
        self._batcher.order("forget", cache.user)
        cache.begin()
        return cache

    def _logits(self, cache: Any, tensors: Arrays, numbers: Mapping[str, int]) -> Any:
        """Behind some new tokens of a user."""
        cache.inputs.add(tensors)

        def behind(anew: bool) -> Arrays:
            kept = not anew and cache.placement in (None, self._batcher.placement)
            return tensors if kept else cache.inputs.arrays

        step = Step(cache.user, tensors, numbers, behind)
        (logits,) = self._batcher.answers(step)
        cache.placement = step.placement
        cache.length += tensors["input_ids"].shape[1]
        return logits

    def _encoded(self, input_ids: Tensor, attention_mask: Tensor | None = None, **rest: Any) -> Any:
        """What transformers calls for the activations behind an encoder."""
        from transformers.modeling_outputs import BaseModelOutput

        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        tensors = _arrays({"input_ids": input_ids, "attention_mask": mask})
        step = Step(next(self._users), tensors, {"encoder": 1}, lambda anew: tensors)
        (found,) = self._batcher.answers(step)
        return BaseModelOutput(last_hidden_state=torch.from_numpy(np.require(found, None, "W")))

    def reorder(self, cache: Any, rows: Any) -> None:
        """Let row i of a user's caches be what row `rows[i]` was: beams that go on."""
        cache.inputs.reorder(rows)
        if cache.placement == self._batcher.placement:
            self._batcher.order("reorder", cache.user, rows)

    def _replace_workers(self, error: WorkerLostError) -> WorkerGroup:
        """Go on with those that are left, by another plan.

        Raises the error itself where nobody plans again, or nobody is left.
        """
        while True:
            dead = self.session.lost()
            left = [name for name in self.cluster.device_names if name not in dead]
            if self._replan is None or not dead or not left:
                raise error
            self.group.close()
            self.lost += [name for name in self.cluster.device_names if name in dead]
            self.cluster = self.cluster.part(left)
            self._place(self._replan(self.cluster), self.cluster)
            self.session = WorkerSession(self.cluster, PROGRAM, self.session.engine)
            try:
                self._start()
            except WorkerLostError as another:
                error = another
            else:
                return self.group

    def _load(self) -> None:
        """Give every device its layers; caches are gone."""
        source = self._source
        if isinstance(source, RandomWeights):
            return  # given by `give`
        own = self.session.by_process(self._orders)
        if source.stored and self.session.engine.name in ("local", "testbed"):  # one disk
            self._deal([""] * len(own), source.stored)
            return
        files = []
        for rank, orders in enumerate(own):
            files.append(Path(self._folder.name) / f"stage-{rank}.safetensors")
            own_orders = [each for of in orders for each in of]
            names = [name for each in own_orders for name in needed_names(Stage(each))]
            write_tensors(files[-1], source.tensors(sorted(set(names))))
        paths = self.group.distribute_each(files)
        for each in files:
            each.unlink()
        self._deal(paths)

    def _deal(self, files: Sequence[str], stored: Mapping[str, StoredTensor] = _NOTHING) -> None:
        """Let the workers load their stages: from a file each, or what is `stored` on their disk.

        Neither: of random numbers.
        """
        orders = self.session.by_process(self._orders)
        given = [(own, file, stored) for own, file in zip(orders, files, strict=True)]
        held = self.session.order("load", given)
        self.held_bytes = self.session.by_device(held)
        self._batcher.placement += 1
        stages = sum(bool(each) for each in self._orders)
        self._batcher.groups = self._groups or stages


@contextmanager
def generating(
    model: Any,
    ranges: Ranges,
    cluster: Cluster,
    *,
    engine: EngineName = "local",
    replan: Replan | None = None,
    groups: int | None = None,
) -> Iterator[Generator]:
    """A `Generator` on an engine by its name, with a process for each device.

    Under torchrun, ranks beyond the first serve in here until the first has ended, and exit.
    """
    if served_torchrun(engine):
        raise SystemExit(0)
    with (
        open_engine(engine, cluster, together=False) as opened,
        Generator(model, ranges, cluster, opened, replan, groups) as found,
    ):
        yield found


class _Inputs:
    """What the model was called with so far for one user: to be computed again as one prompt."""

    def __init__(self) -> None:
        self.arrays: dict[str, np.ndarray[Any, Any]] = {}

    def add(self, tensors: Arrays) -> None:
        """The next tokens: what has a number for each of them grows, a mask is of all tokens."""
        new = tensors["input_ids"].shape[-1]
        for name, value in tensors.items():
            known = self.arrays.get(name)
            grows = value.shape[-1] == new and name not in ("attention_mask", "encoded")
            joined = known is not None and grows
            self.arrays[name] = np.concatenate([known, value], axis=-1) if joined else value

    def reorder(self, rows: np.ndarray[Any, Any]) -> None:
        """Let row i be what row `rows[i]` was."""
        count = len(self.arrays["input_ids"])
        for name, value in self.arrays.items():
            if value.ndim > 1 and len(value) == count:
                self.arrays[name] = value[rows]


class TokenClock:
    """A streamer of transformers that notes when tokens come; the first is the prompt."""

    def __init__(self) -> None:
        self.times_s: list[float] = []

    def put(self, value: Any) -> None:
        """The prompt, or a token."""
        self.times_s.append(time.perf_counter())

    def end(self) -> None:
        """There are no more."""

    @property
    def seconds(self) -> list[float]:
        """Of each token; the first with the prompt."""
        return [b - a for a, b in pairwise(self.times_s)]


def _orders(
    source: Source, ranges: Ranges, counts: Mapping[str, int], names: Sequence[str]
) -> list[tuple[StageOrder, ...]]:
    """By device; several where it has layers of several parts, of which `counts` says how many."""
    layers = sum(counts.values())
    for device in ranges:
        if device not in names:
            raise UnknownNameError("device", device, names)
    ranks = [names.index(device) for device in ranges]
    edges = [(0, 0), *ranges.values(), (layers, layers)]
    gaps = any(a[1] != b[0] for a, b in pairwise(edges))
    if gaps or any(start >= end for start, end in ranges.values()):
        hint = f"give consecutive ranges from 0 to {layers}"
        by = ", ".join(f"{device} [{start}, {end})" for device, (start, end) in ranges.items())
        raise InputError("the ranges are not all layers in order", by=by[:300], hint=hint)
    found: list[tuple[StageOrder, ...]] = [()] * len(names)
    begin = 0
    for part, size in counts.items():
        inside = [
            (rank, max(start - begin, 0), min(end - begin, size))
            for rank, (start, end) in zip(ranks, ranges.values(), strict=True)
            if start < begin + size and end > begin
        ]
        for k, (rank, start, end) in enumerate(inside):
            found[rank] += (
                StageOrder(
                    config=source.config,
                    dtype=source.dtype,
                    attention=source.attention,
                    start=start,
                    end=end,
                    layers=size,
                    previous=inside[k - 1][0] if k > 0 else None,
                    following=inside[k + 1][0] if k + 1 < len(inside) else None,
                    converted=bool(source.stored),
                    part=part,
                ),
            )
        begin += size
    return found


def _arrays(given: Mapping[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """Tensors as orders have them; a mask as small as it can be."""
    found = {
        k: v.float() if v.is_floating_point() else v
        for k, v in given.items()
        if isinstance(v, Tensor)
    }
    arrays = {k: v.cpu().numpy() for k, v in found.items()}
    mask = arrays.get("attention_mask")
    if mask is not None and mask.ndim == 2:
        arrays["attention_mask"] = mask.astype(bool)
    return arrays


def _pieces(
    tensors: Arrays, numbers: Mapping[str, int], before: int, most: int
) -> Iterator[Arrays]:
    """New tokens, `most` of a long prompt at a time, each with a mask of all up to them.

    All at once where more than the logits of the last one are wanted, or a tensor is not by token.
    `before`: tokens that are in the caches.
    """
    count, mask = tensors["input_ids"].shape[1], tensors.get("attention_mask")
    whole = numbers.get("logits_to_keep") != 1 or not tensors.keys() <= JOINING
    if count <= most or whole or (mask is not None and mask.ndim != 2):
        yield tensors
        return
    pieces = -(-count // most)
    for start, end in pairwise(count * k // pieces for k in range(pieces + 1)):
        yield {
            name: value[..., : before + end] if value is mask else value[..., start:end]
            for name, value in tensors.items()
        }


def _not_here(option: str, hint: str = "leave it out") -> UnsupportedError:
    """The error of an option that needs what the workers keep."""
    return UnsupportedError(
        "caches and activations stay on the workers, one growing cache for each call",
        where=f"generate: {option}",
        hint=hint,
    )


def _by_length(what: str, hint: str) -> UnsupportedError:
    """The error of what would compute the tokens so far again, as one prompt."""
    return UnsupportedError(
        "angles of positions depend on the length that a text had at each token",
        where=f"{what}: rope_parameters",
        hint=hint,
    )


class _Encoder:
    """Stands for an encoder, which is on the workers."""

    def __init__(self, call: Callable[..., Any], forward: Any) -> None:
        self._call, self.forward = call, forward  # `generate` looks at its parameters

    def __call__(self, **given: Any) -> Any:
        return self._call(**given)


def _placed(shell: Any, forward: Callable[..., Any], encoded: Callable[..., Any]) -> Any:
    """A model on the meta device that computes elsewhere, and has its tensors on the CPU."""
    kind = type(shell)

    @functools.wraps(kind.forward)  # `generate` looks at its parameters
    def placed_forward(self: Any, **given: Any) -> Any:
        return forward(**given)

    own: dict[str, Any] = {
        "forward": placed_forward,
        "device": property(lambda self: torch.device("cpu")),
    }
    if shell.config.is_encoder_decoder:
        encoder = _Encoder(encoded, shell.get_encoder().forward)
        own["get_encoder"] = lambda self, *of: encoder
    shell.__class__ = type(kind.__name__, (kind,), own)
    return shell


def _remote_cache(generator: Generator, user: int) -> Any:
    """Stands for the caches of a user, which are on the workers."""
    from transformers import DynamicCache

    class RemoteCache(DynamicCache):
        """Knows how many tokens there are."""

        def __init__(self) -> None:
            super().__init__()
            self.user = user
            self.begin()

        def begin(self) -> None:
            """There are no tokens."""
            self.length, self.inputs = 0, _Inputs()
            self.placement: int | None = None

        def __len__(self) -> int:
            return 1  # not false, as one that has layers

        def get_seq_length(self, *layer: Any, **named: Any) -> int:
            return self.length

        def reorder_cache(self, beam_idx: Tensor) -> None:
            generator.reorder(self, np.asarray(beam_idx.cpu()))

        def crop(self, *length: Any, **named: Any) -> None:
            raise _not_here("decoding that takes tokens back")

        def batch_select_indices(self, *indices: Any, **named: Any) -> None:
            raise _not_here("decoding that drops rows")

        def batch_repeat_interleave(self, *repeats: Any, **named: Any) -> None:
            raise _not_here("decoding that repeats rows")

    return RemoteCache()
