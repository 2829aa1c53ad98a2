"""`Completions`: texts of a language model over HTTP, as OpenAI's clients ask for them.

    GET   /v1/models, /v1/models/{name}
    POST  /v1/completions, /v1/chat/completions    also as server-sent events ("stream": true)
    GET   /v2/health/live, /v2/health/ready
    GET   /metrics, /status.json                   Prometheus, numbers

Each text is generated in a thread; as many at a time as there is memory for, others wait. A client
that leaves ends its text. An answer other than 200 is ``{"error": {"message": reason, ...}}``.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter, deque
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from statistics import median
from typing import Annotated, Any, ClassVar, Literal
from uuid import uuid4

from pydantic import BaseModel, ConfigDict, Field

from placewright.errors import InputError, MissingDependencyError, PlacewrightError, RunError
from placewright.io.boundary import parse_json, validate
from placewright.planning.wing import Ended, Sampling, TextModel
from placewright.requests.serving.models import SERVE
from placewright.requests.serving.rows import shutting_down
from placewright.requests.serving.site import (
    HttpLimits,
    Reply,
    Site,
    json_reply,
    path_parts,
    presence_of,
    refusal_of,
    refused,
)
from placewright.web.refusals import Presence, Receive, Refusal, client_gone, only, read_body

COMPLETION_TOKENS = 16
"""Of ``/v1/completions`` where nothing is said, as OpenAI has it; a chat goes on to its end."""

RECENT = 64
"""Texts whose times are looked at."""

HEAD_BYTES, TOKEN_BYTES = 1 << 16, 64
"""Of the largest body: so many, and for each token of the context."""

Text = Annotated[str, Field(min_length=1, max_length=200)]


class StreamOptions(BaseModel):
    """`include_usage`: a last event with the numbers of tokens."""

    model_config = ConfigDict(extra="forbid")

    include_usage: bool = False


class TextBody(BaseModel):
    """What both kinds of requests may say; fields of one value are taken with that alone."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: Text | Annotated[list[Text], Field(max_length=16)] | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: Literal[1] | None = None
    frequency_penalty: Literal[0] | None = None
    presence_penalty: Literal[0] | None = None
    logit_bias: Annotated[dict[str, float], Field(max_length=0)] | None = None
    user: str | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None

    object: ClassVar[str]
    id: ClassVar[str]

    def tokens(self, model: TextModel) -> list[int]:
        """Of the prompt."""
        raise NotImplementedError

    def limit(self, room: int) -> int:
        """New tokens where `room` are left of the context."""
        raise NotImplementedError

    def choice(self, text: str) -> dict[str, Any]:
        """A text as an answer has it."""
        raise NotImplementedError

    def piece(self, text: str | None) -> dict[str, Any]:
        """A piece of it as an event has it; ``None`` at the end."""
        raise NotImplementedError


class CompletionBody(TextBody):
    """A text that is to be continued."""

    prompt: str | Annotated[list[int], Field(min_length=1)]
    best_of: Literal[1] | None = None
    echo: Literal[False] | None = None
    suffix: Literal[""] | None = None
    logprobs: None = None

    object = "text_completion"
    id = "cmpl"

    def tokens(self, model: TextModel) -> list[int]:
        """See `TextBody`."""
        return model.prompt(self.prompt)

    def limit(self, room: int) -> int:
        """See `TextBody`."""
        return self.max_tokens or min(COMPLETION_TOKENS, room)

    def choice(self, text: str) -> dict[str, Any]:
        """See `TextBody`."""
        return {"text": text, "logprobs": None}

    def piece(self, text: str | None) -> dict[str, Any]:
        """See `TextBody`."""
        return self.choice(text or "")


class Part(BaseModel):
    """A part of a message: text only."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["text"]
    text: str


class ChatMessage(BaseModel):
    """A message of a conversation."""

    model_config = ConfigDict(extra="forbid")

    role: str
    content: str | list[Part]
    name: str | None = None

    def plain(self) -> dict[str, str]:
        """For a template."""
        parts = self.content if isinstance(self.content, list) else [self.content]
        text = "".join(part if isinstance(part, str) else part.text for part in parts)
        named = {} if self.name is None else {"name": self.name}
        return {"role": self.role, "content": text} | named


class ChatBody(TextBody):
    """A conversation that is to be continued."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: Literal[False] | None = None

    object = "chat.completion"
    id = "chatcmpl"

    def tokens(self, model: TextModel) -> list[int]:
        """See `TextBody`."""
        return model.chat([each.plain() for each in self.messages])

    def limit(self, room: int) -> int:
        """See `TextBody`."""
        return self.max_completion_tokens or self.max_tokens or room

    def choice(self, text: str) -> dict[str, Any]:
        """See `TextBody`."""
        return {"message": {"role": "assistant", "content": text}, "logprobs": None}

    def piece(self, text: str | None) -> dict[str, Any]:
        """See `TextBody`."""
        return {"delta": {} if text is None else {"content": text}}


PATHS: Mapping[tuple[str, ...], type[TextBody]] = {
    ("v1", "completions"): CompletionBody,
    ("v1", "chat", "completions"): ChatBody,
}


class Places:
    """As many texts at the same time as there is memory for; others wait in order.

    Parameters
    ----------
    free
        Of them.
    most_waiting
        Texts that may wait; more are refused with 429.
    """

    def __init__(self, free: int, most_waiting: int) -> None:
        self.free, self.most_waiting = free, most_waiting
        self.waiting: deque[asyncio.Future[None]] = deque()

    async def take(self, presence: Presence) -> None:
        """Wait for a place.

        Raises `Refusal`: 429: too many wait; 499: the client has left.
        """
        if presence.left:
            raise client_gone()
        if self.free > 0:
            self.free -= 1
            return
        if len(self.waiting) >= self.most_waiting:
            why = f"{len(self.waiting)} requests wait; at most {self.most_waiting} may"
            raise Refusal(429, why, code="queue-full", retry_after_s=1.0)
        turn = asyncio.get_running_loop().create_future()

        def leave() -> None:
            if not turn.done():
                turn.set_exception(client_gone())

        presence.on_leave = leave
        self.waiting.append(turn)
        try:
            await turn
        except BaseException:
            if turn in self.waiting:
                self.waiting.remove(turn)
            elif not turn.cancelled() and turn.exception() is None:
                self.give()  # it had come, and nobody was there any more
            raise
        finally:
            presence.on_leave = lambda: None

    def give(self) -> None:
        """A place is free again."""
        while self.waiting:
            turn = self.waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self.free += 1


@dataclass(slots=True, eq=False)
class Generation:
    """A text that is generated: its pieces, then its end or an error.

    `prompt`: tokens of it. `begin_s`, `first_s`: of the text, and when its first piece was known.
    """

    prompt: int
    begin_s: float = field(default_factory=time.monotonic)
    first_s: float | None = None
    pieces: asyncio.Queue[str | Ended | BaseException] = field(default_factory=asyncio.Queue)
    left: threading.Event = field(default_factory=threading.Event)
    ended: Ended | None = None

    async def next(self) -> str | None:
        """The next piece; ``None`` at the end.

        Raises `Refusal`: a worker died, or the client has left.
        """
        found = await self.pieces.get()
        if isinstance(found, Ended):
            self.ended = found
            return None
        if isinstance(found, str):
            return found
        if isinstance(found, RunError):
            why = refusal_of(found).reason
            raise Refusal(503, why, code="server-lost", retry_after_s=1.0)
        raise found

    def usage(self) -> dict[str, int]:
        """Numbers of tokens."""
        fresh = 0 if self.ended is None else self.ended.new_tokens
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": fresh,
            "total_tokens": self.prompt + fresh,
        }


class Completions(Site):
    """The interface of one language model.

    Parameters
    ----------
    most_waiting
        Requests that may wait; more are refused with 429.
    """

    def __init__(
        self,
        model: TextModel,
        *,
        most_waiting: int = 1000,
        token: str = "",
        hosts: Collection[str] = (),
        origins: Collection[str] = (),
        limits: HttpLimits | None = None,
    ) -> None:
        super().__init__(token=token, hosts=hosts, origins=origins, limits=limits)
        self.model, self.numbers = model, Numbers()
        self._places = Places(model.users, most_waiting)
        self._threads = ThreadPoolExecutor(model.users, "placewright-text")
        self._under_way: set[Generation] = set()
        self._draining = False
        self._created = int(time.time())

    @property
    def models(self) -> list[str]:
        """See `Site`."""
        return [self.model.name]

    @property
    def draining(self) -> bool:
        """See `Site`."""
        return self._draining

    @property
    def waiting(self) -> int:
        """Texts."""
        return len(self._places.waiting)

    async def drain(self, limit_s: float) -> None:
        """Take no more requests, and wait until those that are here are answered."""
        self._draining = True
        end_s = time.monotonic() + limit_s
        while (self._under_way or self.waiting) and time.monotonic() < end_s:
            await asyncio.sleep(0.01)

    def close(self) -> None:
        """End all texts; waits for the token that each of them computes."""
        self._draining = True
        for turn in self._places.waiting:
            if not turn.done():
                turn.set_exception(shutting_down())
        for each in self._under_way:
            each.left.set()
        self._threads.shutdown()

    def refused(self, refusal: Refusal) -> Reply:
        """In OpenAI's form."""
        return refused(refusal, _error(refusal))

    async def reply(
        self, scope: Mapping[str, Any], headers: Mapping[str, str], receive: Receive
    ) -> Reply:
        """See `Site`."""
        method, parts = scope["method"], tuple(path_parts(scope))
        self.demand_token(headers, list(parts))
        if parts in PATHS:
            only(method, "POST")
            return await self._text(PATHS[parts], headers, receive, presence_of(scope))
        found = self._page(parts)
        if found is None:
            raise Refusal(404, f"there is nothing at {scope['path']!r:.100}", code="not-found")
        only(method, "GET")
        return found

    def _page(self, parts: Sequence[str]) -> Reply | None:
        """What is read only."""
        match parts:
            case ("v1", "models"):
                return json_reply({"object": "list", "data": [self._entry()]})
            case ("v1", "models", *names):
                self._demand_model("/".join(names))
                return json_reply(self._entry())
            case ("v2", "health", "live"):
                return json_reply({"live": True})
            case ("v2", "health", "ready"):
                if self._draining:
                    raise shutting_down()
                return json_reply({"ready": True})
            case ("status.json",):
                return json_reply(self.status())
            case ("metrics",):
                return Reply(self.numbers.metrics(), kind=b"text/plain; version=0.0.4")
        return None

    def _entry(self) -> dict[str, Any]:
        """The model in a list of them."""
        return {
            "id": self.model.name,
            "object": "model",
            "created": self._created,
            "owned_by": "placewright",
            "max_model_len": self.model.context,
        }

    def _demand_model(self, name: str) -> None:
        if name != self.model.name:
            why = f"there is no model {name!r:.100} here, but {self.model.name!r}"
            raise Refusal(404, why, code="model_not_found")

    def status(self) -> dict[str, Any]:
        """Numbers of the server, and which device holds what."""
        return self.numbers.as_json() | {
            "ready": not self._draining,
            "models": self.models,
            "context": self.model.context,
            "users": self.model.users,
            "waiting": self.waiting,
            "under_way": len(self._under_way),
            "map": self.model.as_json(),
        }

    async def _text(
        self,
        kind: type[TextBody],
        headers: Mapping[str, str],
        receive: Receive,
        presence: Presence,
    ) -> Reply:
        """Generate what a request asks for."""
        try:
            if self._draining:
                raise shutting_down()
            most = min(self.limits.body_bytes, HEAD_BYTES + TOKEN_BYTES * self.model.context)
            with self._bodies.share() as take:
                body = await read_body(receive, headers, most, self.limits.body_s, take)
                asked = _asked(kind, body)
                self._demand_model(asked.model)
                # A long prompt takes the tokenizer a while, in which others are answered.
                tokens = await asyncio.to_thread(asked.tokens, self.model)
            generation = await self._begun(tokens, self._sampling(asked, len(tokens)), presence)
            return await self._answer(asked, generation)
        except PlacewrightError as error:
            refusal = refusal_of(error)
        except Refusal as found:
            refusal = found
        self.numbers.refused(refusal)
        raise refusal

    def _sampling(self, asked: TextBody, prompt: int) -> Sampling:
        """How to generate; refuses what is longer than the context."""
        context = self.model.context
        room = context - prompt
        limit = asked.limit(room)
        if room < 1 or limit > room:
            why = (
                f"the prompt has {prompt} tokens and {max(limit, 1)} are to follow: "
                f"{max(limit, 1) - room} more than the {context} that are kept of a user"
            )
            raise Refusal(400, why, code="context_length_exceeded")
        stop = [asked.stop] if isinstance(asked.stop, str) else asked.stop or []
        chosen = asked.temperature, asked.top_p, asked.seed
        return Sampling(limit, *chosen, tuple(stop), isinstance(asked, CompletionBody))

    async def _begun(self, tokens: Sequence[int], how: Sampling, presence: Presence) -> Generation:
        """Generate in a thread, as soon as there is a place."""
        await self._places.take(presence)
        generation, loop = Generation(len(tokens)), asyncio.get_running_loop()
        presence.on_leave = generation.left.set
        if presence.left:
            generation.left.set()

        def put(piece: str) -> None:
            generation.first_s = generation.first_s or time.monotonic()
            loop.call_soon_threadsafe(generation.pieces.put_nowait, piece)

        work = loop.run_in_executor(
            self._threads, self.model.generate, tokens, how, put, generation.left.is_set
        )
        self._under_way.add(generation)

        def ended(done: asyncio.Future[Ended]) -> None:
            self._under_way.discard(generation)
            self._places.give()
            error = done.exception()
            if error is None:
                self.numbers.answered(generation, done.result())
            generation.pieces.put_nowait(error or done.result())

        work.add_done_callback(ended)
        return generation

    async def _answer(self, asked: TextBody, generation: Generation) -> Reply:
        """Whole, or in pieces that begin with the first one that is known."""
        head = {
            "id": f"{asked.id}-{uuid4().hex}",
            "object": asked.object,
            "created": int(time.time()),
            "model": self.model.name,
        }
        try:
            text = await generation.next()
            if asked.stream:
                pieces = self._events(asked, generation, head, text)
                cache = ((b"cache-control", b"no-store"),)
                return Reply(kind=b"text/event-stream", headers=cache, pieces=pieces)
            texts = []
            while text is not None:
                texts.append(text)
                text = await generation.next()
        except BaseException:
            generation.left.set()
            raise
        if generation.left.is_set():
            raise client_gone()
        assert generation.ended is not None
        choice = {"index": 0} | asked.choice("".join(texts))
        choice["finish_reason"] = generation.ended.reason
        return json_reply(head | {"choices": [choice], "usage": generation.usage()})

    async def _events(
        self, asked: TextBody, generation: Generation, head: dict[str, Any], text: str | None
    ) -> AsyncGenerator[bytes]:
        """Server-sent events."""
        try:
            if isinstance(asked, ChatBody):
                head = head | {"object": f"{asked.object}.chunk"}
                opening = {"delta": {"role": "assistant", "content": ""}, "finish_reason": None}
                yield _event(head | {"choices": [{"index": 0} | opening]})
            while text is not None:
                choice = {"index": 0} | asked.piece(text) | {"finish_reason": None}
                yield _event(head | {"choices": [choice]})
                text = await generation.next()
            assert generation.ended is not None
            choice = {"index": 0} | asked.piece(None)
            choice["finish_reason"] = generation.ended.reason
            yield _event(head | {"choices": [choice]})
            if asked.stream_options is not None and asked.stream_options.include_usage:
                yield _event(head | {"choices": [], "usage": generation.usage()})
            yield b"data: [DONE]\n\n"
        except (Refusal, PlacewrightError) as error:
            refusal = error if isinstance(error, Refusal) else refusal_of(error)
            self.numbers.refused(refusal)
            yield _event(_error(refusal))
        finally:
            generation.left.set()


def _asked(kind: type[TextBody], body: bytes) -> TextBody:
    """A request's body.

    Raises `Refusal`: 400: a field is wrong, or there is none of its name.
    """
    try:
        return validate(kind, parse_json(body, where="body"), where="body")
    except InputError as error:
        raise Refusal(400, refusal_of(error).reason) from None


def _event(value: Any) -> bytes:
    return f"data: {json.dumps(value)}\n\n".encode()


def _error(refusal: Refusal) -> dict[str, Any]:
    """A refusal in OpenAI's form."""
    kind = "invalid_request_error" if refusal.status < 500 else "server_error"
    error = {"message": refusal.reason, "type": kind, "param": None, "code": refusal.code}
    return {"error": error}


class Numbers:
    """Counts texts and tokens."""

    def __init__(self) -> None:
        try:
            import prometheus_client as prometheus
        except ImportError:
            raise MissingDependencyError(
                "prometheus-client", extra=SERVE, purpose="serving requests"
            ) from None
        self._prometheus, self.registry = prometheus, prometheus.CollectorRegistry()
        self._start_s = time.monotonic()
        self._outcomes: Counter[str] = Counter()
        self._recent: deque[tuple[float, float]] = deque(maxlen=RECENT)
        named: dict[str, Any] = {"registry": self.registry}
        self._texts = prometheus.Counter(
            "placewright_texts", "Texts by outcome.", ["outcome"], **named
        )
        self._tokens = prometheus.Counter(
            "placewright_generated_tokens", "Tokens generated.", **named
        )

    def answered(self, text: Generation, ended: Ended) -> None:
        """A text has ended."""
        self._count("client-gone" if text.left.is_set() else ended.reason)
        self._tokens.inc(ended.new_tokens)
        if text.first_s is not None and ended.new_tokens > 1:
            each_s = (time.monotonic() - text.first_s) / (ended.new_tokens - 1)
            self._recent.append((text.first_s - text.begin_s, each_s))

    def refused(self, refusal: Refusal) -> None:
        """A request was refused."""
        if refusal.code != "client-gone":
            self._count(refusal.code)

    def _count(self, outcome: str) -> None:
        self._outcomes[outcome] += 1
        self._texts.labels(outcome).inc()

    def metrics(self) -> bytes:
        """The exposition that Prometheus scrapes."""
        data: bytes = self._prometheus.generate_latest(self.registry)
        return data

    def as_json(self) -> dict[str, Any]:
        """Totals, and median times of the last texts: to the first token, and of each other."""
        first_s, each_s = zip(*self._recent, strict=True) if self._recent else ((), ())
        return {
            "uptime_s": time.monotonic() - self._start_s,
            "requests": sum(self._outcomes.values()),
            "outcomes": dict(self._outcomes),
            "first_token_s": median(first_s) if first_s else None,
            "token_s": median(each_s) if each_s else None,
        }
