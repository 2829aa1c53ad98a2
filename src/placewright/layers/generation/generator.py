"""`Generator`: tokens from a language model whose layers are on the workers of a cluster."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import count, pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from placewright.cluster.cluster import Cluster
from placewright.errors import (
    InputError,
    UnknownNameError,
    UnsupportedError,
    WorkerError,
    WorkerLostError,
)
from placewright.layers.generation.stage import (
    Stage,
    StageOrder,
    cache_name,
    needed_names,
    skeleton,
)
from placewright.runtime import limits
from placewright.runtime.engines.engine import Engine, EngineName, open_engine
from placewright.runtime.engines.group import WorkerGroup
from placewright.runtime.engines.local import Local
from placewright.runtime.engines.torchrun_agent import served_torchrun
from placewright.runtime.scratch import Scratch

PROGRAM = "placewright.layers.generation.worker:StageWorker"

Ranges = Mapping[str, tuple[int, int]]
"""Layers [start, end) by name of the device, from the first layer to the last one."""

Replan = Callable[[Cluster], Ranges]

Arrays = Mapping[str, np.ndarray[Any, Any]]

PASSED = ("logits_to_keep",)
"""Whole numbers that the model is called with, beside its tensors."""

REFUSED = (
    *("cache_implementation", "assistant_model", "prompt_lookup_num_tokens", "past_key_values"),
    *("cache", "inputs_embeds", "output_attentions", "output_hidden_states"),
)
"""Options of `generate` that want caches, embeddings or activations in this process."""


class Generator:
    """A language model of transformers, its layers on worker processes; a context manager.

    ``generate`` is that of transformers: greedy or sampled, several rows with padding, beams,
    streamers and stopping rules; the same tokens as `model.generate` gives on one device. Each
    call keeps its own caches on the workers, so that threads may generate side by side.

    Parameters
    ----------
    model
        A decoder-only language model, or the folder of one with safetensors.
    ranges
        Consecutive layers from 0 to the last one.
    engine
        Who starts the workers; children of this process by default.
    replan
        Ranges for the part of the cluster that is left when workers have died: calls go on there.

    Attributes
    ----------
    cluster, ranges
        In force.
    held_bytes
        Of weights and buffers, by device of the cluster.
    lost
        Devices whose workers died.

    Raises
    ------
    InputError
        The ranges are not all layers in order, or name a device that is not there.
    UnsupportedError
        It is no decoder-only language model, or its checkpoint lacks a tensor.
    """

    def __init__(
        self,
        model: Any,
        ranges: Ranges,
        cluster: Cluster,
        engine: Engine | None = None,
        replan: Replan | None = None,
    ) -> None:
        source = _source(model)
        self.cluster = cluster
        shell = skeleton(source.config, source.dtype, source.attention)
        self._layers = int(shell.config.get_text_config().num_hidden_layers)
        self._source, self._replan = source, replan
        self._place(ranges, cluster)
        self._shell = _placed(shell, self._forward)
        self._shell.generation_config = source.generation_config(shell)
        self._folder = Scratch()
        self.engine: Engine = Local() if engine is None else engine
        self.group: WorkerGroup = self.engine.group(cluster, PROGRAM)
        self._shares_disk = self.engine.name in ("local", "testbed")
        self._lock, self._users = threading.Lock(), count()
        self._placement = 0
        self._lost_error: WorkerLostError | None = None
        self.held_bytes: list[int] = []
        self.lost: list[str] = []

    def _place(self, ranges: Ranges, cluster: Cluster) -> None:
        self._orders = _orders(self._source, ranges, self._layers, cluster.device_names)
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
        self.group.__enter__()
        self._load()

    def __exit__(self, kind: object, *rest: object) -> None:
        try:
            self.group.__exit__(kind, *rest)
        finally:
            self._folder.cleanup()

    @property
    def emulated(self) -> str:
        """See `Engine.emulated`."""
        return self.engine.emulated(self.cluster, self.group.hosts)

    @property
    def vocabulary(self) -> int:
        """How many tokens there are."""
        return int(self._shell.config.get_text_config().vocab_size)

    @property
    def generation_config(self) -> Any:
        """What `generate` does where an option is not given."""
        return self._shell.generation_config

    def load(self, ranges: Ranges) -> None:
        """Place the layers otherwise on the same workers; calls that are under way go on.

        Their tokens so far are computed again, as a prompt.
        """
        with self._lock:
            self._place(ranges, self.cluster)
            self._load()

    def give(self, stages: Sequence[StageOrder | None]) -> None:
        """Give the workers stages of random numbers, for which only the time counts."""
        with self._lock:
            self._placement += 1
            self.held_bytes = self.group.order("load", [(each, ()) for each in stages])

    def generate(self, input_ids: Tensor, **options: Any) -> Any:
        """As `generate` of transformers.

        Parameters
        ----------
        input_ids
            Shape (batch, tokens).
        options
            Of `transformers.GenerationMixin.generate`: ``max_new_tokens``, ``do_sample``, ...

        Raises
        ------
        WorkerError
            A worker died; the message names it. With `replan` only where nobody is left.
        InfeasibleError
            The workers that are left cannot hold the model.
        UnsupportedError
            An option needs in this process what is on the workers.
        """
        for name in REFUSED:
            if options.get(name):
                raise _not_here(name)
        cache = _remote_cache(self, next(self._users))
        try:
            return self._shell.generate(input_ids, **{cache_name(): cache}, **options)
        finally:
            # Tokens are there, or an error is: that a worker died now is for the next call.
            with suppress(WorkerError):
                self.order("forget", cache.user)

    def order(self, name: str, *arguments: Any) -> list[Any]:
        """Give all workers an order; one at a time, whichever thread asks."""
        with self._lock:
            return self._answers(name, *arguments)

    def _answers(self, name: str, *arguments: Any) -> list[Any]:
        if self._lost_error is not None:
            raise self._lost_error
        try:
            return self.group.order_all(name, *arguments)
        except WorkerLostError as error:
            self._lost_error = error
            raise

    def _forward(self, **given: Any) -> Any:
        """What transformers calls for the logits of the next token."""
        from transformers.modeling_outputs import CausalLMOutputWithPast

        cache = given.pop(cache_name(), None)
        if cache is None or given.get("use_cache") is False:
            raise _not_here("use_cache=False")
        for name in REFUSED:  # by a generation_config
            if given.get(name):
                raise _not_here(name)
        tensors = {k: v.cpu().numpy() for k, v in given.items() if isinstance(v, Tensor)}
        numbers = {name: int(given[name]) for name in PASSED if isinstance(given.get(name), int)}
        cache.inputs.add(tensors)
        with self._lock:
            logits = self._logits(cache, tensors, numbers)
        new = tensors["input_ids"].shape[1]
        cache.length += new
        # Ray's answers cannot be written to, and `generate` may write.
        made = torch.from_numpy(np.require(logits[:, -new:], None, "W"))
        output = CausalLMOutputWithPast(logits=made)
        output[cache_name()] = cache
        return output

    def _logits(self, cache: Any, tensors: Arrays, numbers: dict[str, int]) -> Any:
        """Of new tokens, behind all others where the workers have no caches of them."""
        while True:
            kept = cache.placement in (None, self._placement)
            try:
                sent = tensors if kept else cache.inputs.arrays
                answers = self._answers("compute", cache.user, sent, numbers)
            except WorkerLostError as error:
                self._replace_workers(error)
                continue
            cache.placement = self._placement
            return next(each for each in answers if each is not None)

    def reorder(self, cache: Any, rows: Any) -> None:
        """Let row i of a user's caches be what row `rows[i]` was: beams that go on."""
        cache.inputs.reorder(rows)
        with self._lock:
            if cache.placement == self._placement:
                try:
                    self._answers("reorder", cache.user, rows)
                except WorkerLostError as error:
                    self._replace_workers(error)

    def _replace_workers(self, error: WorkerLostError) -> None:
        """Go on with those that are left, by another plan.

        Raises the error itself where nobody plans again, or nobody is left.
        """
        while True:
            dead = [self.group.names[rank] for rank in self.group.dead()]
            left = [name for name in self.cluster.device_names if name not in dead]
            if self._replan is None or not dead or not left:
                raise error
            self.group.close()
            self.lost += dead
            self.cluster = self.cluster.part(left)
            self._place(self._replan(self.cluster), self.cluster)
            self.group = self.engine.group(self.cluster, PROGRAM)
            try:
                self._start()
            except WorkerLostError as another:
                error = another
            else:
                self._lost_error = None
                return

    def _load(self) -> None:
        """Give every worker its layers; caches are gone."""
        source = self._source
        if isinstance(source, RandomWeights):
            return  # given by `give`
        self._placement += 1
        if source.files and self._shares_disk:
            self.held_bytes = self.group.order("load", [(x, source.files) for x in self._orders])
            return
        files = []
        for rank, asked in enumerate(self._orders):
            files.append(Path(self._folder.name) / f"stage-{rank}.safetensors")
            wanted = () if asked is None else needed_names(Stage(asked))
            save_file(source.tensors(wanted), files[-1])
        paths = self.group.distribute_each(files)
        for each in files:
            each.unlink()
        loads = [(o, (path,)) for o, path in zip(self._orders, paths, strict=True)]
        self.held_bytes = self.group.order("load", loads)


@contextmanager
def generating(
    model: Any,
    ranges: Ranges,
    cluster: Cluster,
    *,
    engine: EngineName = "local",
    replan: Replan | None = None,
) -> Iterator[Generator]:
    """A `Generator` on an engine by its name.

    Under torchrun, ranks beyond the first serve in here until the first has ended, and exit.
    """
    if served_torchrun(engine):
        raise SystemExit(0)
    with (
        open_engine(engine, cluster) as opened,
        Generator(model, ranges, cluster, opened, replan) as found,
    ):
        yield found


class Loaded:
    """A model in this process.

    Raises `UnsupportedError`: it is none of transformers.
    """

    files: tuple[str, ...] = ()

    def __init__(self, model: Any) -> None:
        if not hasattr(model, "generate") or not hasattr(model, "get_decoder"):
            raise UnsupportedError(
                "tokens come from decoder-only language models of transformers",
                where=type(model).__name__,
                hint="give one, or its folder",
            )
        self._state: Mapping[str, Tensor] = model.state_dict()
        self._tied = dict(getattr(model, "all_tied_weights_keys", None) or {})
        self._generation = model.generation_config
        self.config = model.config.to_json_string(use_diff=False)
        self.dtype = str(model.dtype).removeprefix("torch.")
        self.attention = model.config._attn_implementation or "eager"
        self.nbytes = sum(each.nbytes for each in self._state.values())

    def generation_config(self, shell: Any) -> Any:
        """What `generate` does where an option is not given."""
        return self._generation

    def tensors(self, names: Sequence[str]) -> dict[str, Tensor]:
        """Those that a stage needs; of tied ones one."""
        copies = {n for n in names if self._tied.get(n, n) != n and self._tied[n] in names}
        own = [n for n in names if n in self._state and n not in copies]
        return {n: self._state[n].detach().contiguous().clone() for n in own}


class Checkpoint:
    """The folder of a model with its ``config.json`` and safetensors.

    Raises `InputError`: one of them is not there.
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)
        files = sorted(self._folder.glob("*.safetensors"))
        config = self._folder / "config.json"
        if not config.is_file() or not files:
            missing = "*.safetensors" if config.is_file() else "config.json"
            hint = "give the folder that save_pretrained has written"
            raise InputError(
                "is no model of transformers", where=str(folder), by=missing, hint=hint
            )
        from transformers import AutoConfig

        found = AutoConfig.from_pretrained(self._folder)
        self.config = found.to_json_string(use_diff=False)
        self.dtype = str(found.dtype or torch.float32).removeprefix("torch.")
        self.attention = ""
        self.files = tuple(str(each.resolve()) for each in files)
        self.nbytes = sum(each.stat().st_size for each in files)

    def generation_config(self, shell: Any) -> Any:
        """What its folder says of `generate`."""
        from transformers import GenerationConfig

        if (self._folder / "generation_config.json").is_file():
            return GenerationConfig.from_pretrained(self._folder)
        return shell.generation_config

    def tensors(self, names: Sequence[str]) -> dict[str, Tensor]:
        """Those that a stage needs."""
        found: dict[str, Tensor] = {}
        for name in self.files:
            with safe_open(name, "pt") as file:
                for key in set(names).intersection(file.keys()):
                    found[key] = file.get_tensor(key)
        return found


class RandomWeights:
    """A model without weights: workers get their stages by `Generator.give`.

    Parameters
    ----------
    config
        Of transformers, as JSON.
    dtype
        Of the weights: ``float32``, ``bfloat16``, ``float16``.
    """

    files: tuple[str, ...] = ()

    def __init__(self, config: str, dtype: str, nbytes: float = 0.0) -> None:
        self.config, self.dtype, self.attention, self.nbytes = config, dtype, "", nbytes

    def generation_config(self, shell: Any) -> Any:
        """That of its architecture."""
        return shell.generation_config


def _source(model: Any) -> Loaded | Checkpoint | RandomWeights:
    if isinstance(model, RandomWeights):
        return model
    return Checkpoint(model) if isinstance(model, str | Path) else Loaded(model)


class _Inputs:
    """What the model was called with so far for one user: to be computed again as one prompt."""

    def __init__(self) -> None:
        self.arrays: dict[str, np.ndarray[Any, Any]] = {}

    def add(self, tensors: Arrays) -> None:
        """The next tokens: what has a number for each of them grows, a mask is of all tokens."""
        new = tensors["input_ids"].shape[-1]
        for name, value in tensors.items():
            known = self.arrays.get(name)
            grows = value.shape[-1] == new and name != "attention_mask"
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
        self._times_s: list[float] = []

    def put(self, value: Any) -> None:
        """The prompt, or a token."""
        self._times_s.append(time.perf_counter())

    def end(self) -> None:
        """There are no more."""

    @property
    def seconds(self) -> list[float]:
        """Of each token; the first with the prompt."""
        return [b - a for a, b in pairwise(self._times_s)]


def _orders(
    source: Loaded | Checkpoint | RandomWeights, ranges: Ranges, layers: int, names: Sequence[str]
) -> list[StageOrder | None]:
    """By rank; ``None`` for a device without layers."""
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
    found: list[StageOrder | None] = [None] * len(names)
    for k, (start, end) in enumerate(ranges.values()):
        found[ranks[k]] = StageOrder(
            config=source.config,
            dtype=source.dtype,
            attention=source.attention,
            start=start,
            end=end,
            layers=layers,
            previous=ranks[k - 1] if k > 0 else None,
            following=ranks[k + 1] if k + 1 < len(ranks) else None,
        )
    return found


def _not_here(option: str) -> UnsupportedError:
    """The error of an option that needs what the workers keep."""
    return UnsupportedError(
        "caches and activations stay on the workers, one growing cache for each call",
        where=f"generate: {option}",
        hint="leave it out",
    )


def _placed(shell: Any, forward: Callable[..., Any]) -> Any:
    """A model on the meta device that computes elsewhere, and has its tensors on the CPU."""
    kind = type(shell)

    @functools.wraps(kind.forward)  # `generate` looks at its parameters
    def placed_forward(self: Any, **given: Any) -> Any:
        return forward(**given)

    own = {"forward": placed_forward, "device": property(lambda self: torch.device("cpu"))}
    shell.__class__ = type(kind.__name__, (kind,), own)
    return shell


def _remote_cache(generator: Generator, user: int) -> Any:
    """Stands for the caches of a user, which are on the workers."""
    from transformers import DynamicCache

    class RemoteCache(DynamicCache):
        """Knows how many tokens there are."""

        def __init__(self) -> None:
            super().__init__()
            self.user, self.length = user, 0
            self.inputs = _Inputs()
            self.placement: int | None = None

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
