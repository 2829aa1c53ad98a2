"""Text from a language model on workers: one (`generate_text`), or those of several users.

A prompt, or messages, on their way:

    text -> Tokenizer -> Generator.generate -> Tokenizer -> pieces of text
                            |
                            +-- after each token: is it the end, has the user left?
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from placewright.cluster.cluster import Cluster
from placewright.errors import InputError, PlacewrightError, WorkerError
from placewright.io.arguments import checked
from placewright.layers.devicemap.device_map import DeviceMap, device_map
from placewright.layers.devicemap.reading import language_model
from placewright.layers.generation.generator import Generator, TokenClock
from placewright.layers.generation.model_folder import from_folder, refusing
from placewright.planning.wing import Ended, Sampling
from placewright.report.text import plain_table, seconds, size
from placewright.runtime.engines.engine import EngineName

CONTEXT = 4096
"""Tokens that are kept of each user where nothing is said, or what the model's positions reach."""


@dataclass(frozen=True, slots=True)
class GenerationRun:
    """What was generated, and how long that took.

    Attributes
    ----------
    tokens
        New ones.
    text
        What they say; their numbers where the folder has no tokenizer.
    ranges
        Blocks [start, end) by device.
    held_bytes
        Weights and buffers, by device.
    predicted_first_s, predicted_token_s, measured_first_s, measured_token_s
        To the first token, and for each of the others.
    timed
        Whether the prediction is of layers and links that were timed; else of speeds and bandwidths
        as the cluster states them.
    emulated
        What of the cluster is emulated, in words; empty for nothing.
    lost
        Devices whose workers died meanwhile.
    equal
        Whether one process generates the same; ``None`` where that was not asked.
    planned
        The device map that it ran by.
    """

    tokens: tuple[int, ...]
    text: str
    ranges: dict[str, tuple[int, int]]
    held_bytes: dict[str, int]
    predicted_first_s: float
    predicted_token_s: float
    measured_first_s: float
    measured_token_s: float
    timed: bool
    emulated: str
    lost: tuple[str, ...]
    equal: bool | None
    planned: DeviceMap

    def as_json(self) -> dict[str, Any]:
        """All of it as data, without the device map."""
        names = (each.name for each in fields(self) if each.name != "planned")
        return {name: getattr(self, name) for name in names}

    def __str__(self) -> str:
        rows = [
            (name, f"{start} to {end - 1}", size(float(self.held_bytes[name])))
            for name, (start, end) in self.ranges.items()
        ]
        times = [
            ("first token", seconds(self.predicted_first_s), seconds(self.measured_first_s)),
            ("each other", seconds(self.predicted_token_s), seconds(self.measured_token_s)),
        ]
        lines = [
            self.text,
            "",
            plain_table(("device", "blocks", "weights"), rows, "  r"),
            "",
            plain_table(("", "predicted", "measured"), times, " rr"),
        ]
        if not self.timed:
            lines.append("predicted from the cluster's bandwidths; --measure times layers first")
        if self.emulated:
            lines.append(f"emulated: {self.emulated}")
        if self.lost:
            lines.append(f"lost: {', '.join(self.lost)}; the others went on")
        if self.equal is not None:
            lines.append(f"the tokens of one process: {'equal' if self.equal else 'others'}")
        return "\n".join(lines)


@checked
def generate_text(
    folder: Path,
    prompt: str,
    cluster: Cluster,
    *,
    new_tokens: int = 64,
    context: int | None = None,
    sample: bool = False,
    seed: int = 0,
    engine: EngineName = "local",
    measure: bool = False,
    adapt: bool = False,
    check: bool = False,
) -> GenerationRun:
    """Generate with a model whose blocks are placed by `device_map`.

    Parameters
    ----------
    folder
        As `save_pretrained` writes it.
    prompt
        Text, or numbers of tokens.
    context
        Tokens to keep; by default those of the prompt and the new ones.
    measure
        Time layers and links on the workers before the plan is made.
    adapt
        Plan again where a worker has died, and go on with the devices that are left.
    check
        Load the model in this process, too, and compare.

    Raises
    ------
    InputError
        There is no model, no tokenizer for a text, or no way to generate as the folder says; or
        the context is too short for the prompt and the new tokens.
    InfeasibleError
        It does not fit.
    """
    tokenizer = Tokenizer(folder)
    ids = torch.tensor([tokenizer.encode(prompt)])
    length = ids.shape[1] + new_tokens
    if context is not None and context < length:
        raise InputError(
            "the prompt and the new tokens are more than the context",
            where=str(folder),
            by=f"{ids.shape[1]} and {new_tokens} tokens, {context} are kept",
            hint="raise the context, or ask for fewer tokens",
        )
    planned = device_map(
        folder,
        cluster,
        context=context or length,
        prompt=ids.shape[1],
        measure=engine if measure else None,
    )
    # A folder may ask for beams, which show no token before the last, and for more than tokens.
    options = {"max_new_tokens": new_tokens, "do_sample": sample, "num_beams": 1}
    options |= {"return_dict_in_generate": False, "tokenizer": tokenizer.own}
    with planned.generator(folder, engine=engine, adapt=adapt) as placed:
        torch.manual_seed(seed)
        clock = TokenClock()
        with _as_the_folder_says(folder):
            found = placed.generate(ids, streamer=clock, **options)
        held = dict(zip(placed.cluster.device_names, placed.held_bytes, strict=True))
        ranges, lost = placed.ranges, tuple(placed.lost)
        begin = ids.shape[1] if placed.repeats_prompt else 1
        emulated = placed.emulated
    fresh = tuple(found[0, begin:].tolist())
    first_s, *others = clock.seconds
    return GenerationRun(
        tokens=fresh,
        text=tokenizer.decode(fresh),
        ranges=ranges,
        held_bytes={name: held[name] for name in ranges},
        predicted_first_s=planned.judgement.first_token_s,
        predicted_token_s=planned.judgement.token_s,
        measured_first_s=first_s,
        measured_token_s=sorted(others)[len(others) // 2] if others else first_s,
        timed=measure,
        emulated=emulated,
        lost=lost,
        equal=_same(folder, ids, options, seed, found) if check else None,
        planned=planned,
    )


@contextmanager
def _as_the_folder_says(folder: Path) -> Iterator[None]:
    """Name the folder where transformers refuses what its configuration asks of `generate`."""
    try:
        yield
    except PlacewrightError:
        raise
    except ValueError as error:
        raise InputError(
            "transformers cannot generate as the folder says",
            where=str(folder / "generation_config.json"),
            by=f"{error!s:.200}".strip(),
            hint="leave that out there",
        ) from None


@checked
@contextmanager
def text_model(
    folder: Path,
    cluster: Cluster,
    *,
    context: int | None = None,
    users: int = 1,
    engine: EngineName = "local",
) -> Iterator[PlacedText]:
    """A model whose blocks are placed by `device_map`, loaded, for texts of several users.

    Parameters
    ----------
    folder
        As `save_pretrained` writes it.
    context
        Tokens that are kept of each user; by default `CONTEXT`.
    users
        Texts at the same time; there is memory for the caches of so many.

    Raises
    ------
    InputError
        There is no model.
    InfeasibleError
        It does not fit.
    """
    model = language_model(folder)
    kept = context or min(CONTEXT, model.longest or CONTEXT)
    planned = device_map(model, cluster, context=kept, users=users)

    def load() -> Any:
        return planned.generator(folder, engine=engine)

    name = folder.resolve().name
    with PlacedText(
        name, folder, load, context=kept, users=users, plan=planned.as_json()
    ) as placed:
        yield placed


def _same(folder: Path, ids: torch.Tensor, options: Any, seed: int, found: torch.Tensor) -> bool:
    """Whether the model in this process gives the same tokens."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM
    from transformers.utils import logging

    seq2seq = from_folder(AutoConfig, folder).is_encoder_decoder
    loader: Any = AutoModelForSeq2SeqLM if seq2seq else AutoModelForCausalLM
    quiet: Any = logging
    quiet.disable_progress_bar()
    model = from_folder(loader, folder).eval()
    torch.manual_seed(seed)
    return torch.equal(model.generate(ids, **options), found)


UNFINISHED = "\ufffd"
"""What a tokenizer writes for bytes that are no character yet."""


class Tokenizer:
    """The tokenizer in a model's folder; without one, texts are numbers of tokens: ``12 7 99``."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._lock = folder, threading.Lock()
        self.own: Any = None
        if (folder / "tokenizer.json").is_file():
            from transformers import AutoTokenizer

            self.own = from_folder(AutoTokenizer, folder)

    @property
    def chats(self) -> bool:
        """Whether it has a template of conversations."""
        return self.own is not None and bool(self.own.chat_template)

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Tokens of a text; `special`: with those that begin one.

        Raises `InputError`: there is no tokenizer, and the text is none of numbers.
        """
        if self.own is not None:
            with self._lock, refusing(self._folder):  # they keep settings of a call in themselves
                return list(self.own(text, add_special_tokens=special)["input_ids"])
        words = text.replace(",", " ").split()
        if words and all(word.isascii() and word.isdigit() and len(word) < 10 for word in words):
            return [int(word) for word in words]
        raise InputError(
            "the folder has no tokenizer",
            where=str(self._folder),
            hint="give the prompt as numbers of tokens: '12 7 99'",
        )

    def chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Tokens of a conversation, by the template of the tokenizer.

        Raises `InputError`: there is none, or it refuses the messages.
        """
        if not self.chats:
            what = "tokenizer" if self.own is None else "chat template"
            raise InputError(
                f"the model has no {what}, which says how a conversation is written",
                where=self._folder.name,
                hint="send one text to /v1/completions",
            )
        try:
            with self._lock:
                text = self.own.apply_chat_template(
                    [dict(each) for each in messages], tokenize=False, add_generation_prompt=True
                )
        except Exception as error:  # what a template raises is its author's choice
            raise InputError(
                "the model's chat template refuses the messages",
                where="messages",
                by=f"{error!s:.200}",
                hint="give the roles that it knows, in its order",
            ) from None
        return self.encode(str(text), special=False)

    def decode(self, tokens: Sequence[int]) -> str:
        """Their text, without special tokens."""
        if self.own is None:
            return " ".join(map(str, tokens))
        with self._lock, refusing(self._folder):
            return str(self.own.decode(tokens, skip_special_tokens=True))


class PlacedText:
    """A language model for a server of text; see `placewright.planning.wing.TextModel`.

    A context manager. Where a worker died, the model is loaded again for the next text.

    Parameters
    ----------
    name
        What clients call it.
    folder
        Of the model, for its tokenizer.
    load
        Loads the model on workers.
    plan
        Which device holds what, and the predicted times.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        load: Callable[[], AbstractContextManager[Generator]],
        *,
        context: int,
        users: int,
        plan: Mapping[str, Any],
    ) -> None:
        self.name, self.context, self.users = name, context, users
        self._tokenizer, self._plan = Tokenizer(folder), dict(plan)
        self._load, self._stack = load, ExitStack()
        self._model: Generator | None = None
        self._loading = threading.Lock()

    def __enter__(self) -> Self:
        self._loaded()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _loaded(self) -> Generator:
        """The model; loaded again where it was lost."""
        with self._loading:
            if self._model is None:
                self._stack.close()
                self._model = self._stack.enter_context(self._load())
            return self._model

    def prompt(self, given: str | Sequence[int]) -> list[int]:
        """See `TextModel`."""
        tokens = self._tokenizer.encode(given) if isinstance(given, str) else list(given)
        vocabulary = self._loaded().vocabulary
        wrong = [token for token in tokens if not 0 <= token < vocabulary]
        if wrong or not tokens:
            raise InputError(
                "the model has no such token" if wrong else "the prompt has no tokens",
                where="prompt",
                by=f"{wrong[0]}, tokens go from 0 to {vocabulary - 1}" if wrong else "",
                hint="give a text, or numbers of tokens",
            )
        return tokens

    def chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """See `TextModel`."""
        return self._tokenizer.chat(messages)

    def generate(
        self,
        tokens: Sequence[int],
        how: Sampling,
        put: Callable[[str], object],
        left: Callable[[], bool],
    ) -> Ended:
        """See `TextModel`."""
        model = self._loaded()
        stop = (*how.stop, *_texts(model.generation_config.stop_strings))
        watch = _Watch(self._tokenizer, stop, put, left, tokens if how.continues else ())
        ids = torch.tensor([list(tokens)])
        try:
            found = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=how.new_tokens,
                stopping_criteria=[watch],
                logits_processor=_drawing(model.generation_config, how, model.vocabulary),
                **_ALONE,
            )
        except WorkerError:
            with self._loading:
                self._model = None if self._model is model else self._model
            raise
        watch.finish()
        ended = watch.stopped or int(found[0, -1]) in _ends(model.generation_config)
        return Ended(watch.count, "stop" if ended else "length")

    def as_json(self) -> dict[str, Any]:
        """See `TextModel`; ``chat``: whether conversations can be answered."""
        return self._plan | {"chat": self._tokenizer.chats}


class _Watch:
    """A stopping criterion of transformers, which sees each token first.

    Text that may be the beginning of a text to stop at waits; so do tokens that are no whole
    character yet.

    `prompt`: tokens whose text is continued: many tokenizers leave out a space at the begin.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: Sequence[str],
        put: Callable[[str], object],
        left: Callable[[], bool],
        prompt: Sequence[int] = (),
    ) -> None:
        self._tokenizer, self._stop, self._put, self._left = tokenizer, stop, put, left
        before = [] if tokenizer.own is None else list(prompt[-BEFORE:])
        if tokenizer.decode(before).endswith(UNFINISHED):
            before = []
        self._tokens = before
        # Text from `begin` to `shown` of the tokens is known.
        self._begin, self._shown = 0, len(before)
        self._first = len(before)
        self._held = ""
        self.stopped = False

    @property
    def count(self) -> int:
        """Tokens that were generated."""
        return len(self._tokens) - self._first

    def __call__(self, ids: Tensor, scores: Any, **rest: Any) -> Tensor:
        self._tokens.append(int(ids[0, -1]))
        self._add(self._new_text(last=False))
        return torch.tensor([self.stopped or self._left()])

    def finish(self) -> None:
        """Give what waits."""
        if not self.stopped:
            self._add(self._new_text(last=True))
        if not self.stopped and self._held:
            self._put(self._held)

    def _new_text(self, *, last: bool) -> str:
        """Text that the newest tokens add.

        It is decoded with some tokens before it: spaces depend on them.
        """
        known = self._tokenizer.decode(self._tokens[self._begin : self._shown])
        whole = self._tokenizer.decode(self._tokens[self._begin :])
        if whole.endswith(UNFINISHED) and not last:
            return ""
        if len(whole) > len(known):  # else these are special tokens, before which there is no text
            self._begin = self._shown
        self._shown = len(self._tokens)
        return whole[len(known) :]

    def _add(self, text: str) -> None:
        self._held += text
        found = [at for at in map(self._held.find, self._stop) if at >= 0]
        if found:
            self.stopped, self._held = True, self._held[: min(found)]
        kept = 0 if found else max((_overlap(self._held, each) for each in self._stop), default=0)
        sent = self._held[: len(self._held) - kept]
        self._held = self._held[len(sent) :]
        if sent:
            self._put(sent)


BEFORE = 8
"""Tokens of a prompt with which its continuation is decoded."""


def _overlap(text: str, stop: str) -> int:
    """Characters at the end of a text with which `stop` may begin."""
    longest = min(len(text), len(stop) - 1)
    return next((k for k in range(longest, 0, -1) if text.endswith(stop[:k])), 0)


_ALONE: Mapping[str, Any] = {
    "do_sample": False,
    "num_beams": 1,
    "num_return_sequences": 1,
    "stop_strings": None,
    "return_dict_in_generate": False,
    **dict.fromkeys(("temperature", "top_p", "top_k", "min_p", "typical_p", "top_h"), None),
    **dict.fromkeys(("epsilon_cutoff", "eta_cutoff"), 0.0),
}
"""Options of `generate` where processors of logits choose the token, and texts to stop at are seen
here, whatever the model's folder says."""


COLDEST = 1e-4
"""Temperature below which the likeliest token is taken: numbers divided by it would be infinite."""


def _drawing(config: Any, how: Sampling, vocabulary: int) -> list[Any]:
    """What chooses the token: nothing where the likeliest is taken.

    What a request does not say is as the model's `config` has it, in the order of `generate`.
    """
    from transformers.generation import logits_process as made

    temperature = config.temperature if how.temperature is None else how.temperature
    temperature = 1.0 if temperature is None else float(temperature)
    if temperature < COLDEST:
        return []
    top_p = config.top_p if how.top_p is None else how.top_p
    shares: list[tuple[Any, float | None]] = [
        (made.TopPLogitsWarper, top_p),
        (made.MinPLogitsWarper, config.min_p),
        (made.TypicalLogitsWarper, config.typical_p),
        (made.EpsilonLogitsWarper, config.epsilon_cutoff),
        (made.EtaLogitsWarper, config.eta_cutoff),
    ]
    found: list[Any] = [made.TemperatureLogitsWarper(temperature)] if temperature != 1 else []
    if config.top_h is not None:
        found.append(made.TopHLogitsWarper(config.top_h))
    if config.top_k:
        found.append(made.TopKLogitsWarper(config.top_k))
    found += [kind(share) for kind, share in shares if share is not None and 0 < share < 1]
    if config.watermarking_config is not None:
        found.append(config.watermarking_config.construct_processor(vocabulary, "cpu"))
    return [*found, Draw(how.seed)]


def _texts(given: str | Sequence[str] | None) -> tuple[str, ...]:
    """One, several or none."""
    return (given,) if isinstance(given, str) else tuple(given or ())


def _ends(config: Any) -> tuple[int, ...]:
    """Tokens that end a text."""
    own = config.eos_token_id
    return tuple(own) if isinstance(own, list | tuple) else () if own is None else (own,)


class Draw:
    """The last logits processor: leaves one token, drawn as `generate` draws it.

    `generate` draws from the generator of the process, which threads share; with this one, and
    `do_sample=False`, a text with a seed is the same whoever else generates.
    """

    def __init__(self, seed: int | None) -> None:
        self._random = torch.Generator()
        self._random.manual_seed(secrets.randbits(63) if seed is None else seed)

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        """Zero at the token that is drawn, shape (batch, vocabulary).

        Raises `InputError`: what the model computes is no number.
        """
        chances = scores.softmax(-1)
        if chances.isnan().any():
            raise InputError(
                "the model gives no probabilities of tokens",
                where="the model",
                by="they are not numbers (NaN)",
                hint="look for NaN or infinity in its weights",
            )
        drawn = torch.multinomial(chances, 1, generator=self._random)
        found = torch.full_like(scores, -torch.inf)
        return found.scatter_(1, drawn, 0.0)
