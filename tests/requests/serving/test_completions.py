"""Texts over HTTP: OpenAI's protocol, users who wait, leave, or ask for what there is not."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any

import pytest

from placewright.errors import InputError, WorkerLostError
from placewright.planning.wing import Ended, Sampling
from placewright.requests.serving.completions import Completions
from placewright.requests.serving.server import Serving, ServingOptions, serve_text

TOKEN = "0123456789abcdef"


class Echo:
    """Answers with its prompt, token by token; waits for `go` before each, dies at `dies`."""

    name, context, users = "org/echo", 40, 2

    def __init__(self) -> None:
        self.go, self.left = threading.Event(), threading.Event()
        self.go.set()
        self.seen: list[Sampling] = []
        self.heard: list[dict[str, str]] = []
        self.dies = -1

    def prompt(self, given: str | Sequence[int]) -> list[int]:
        """A token for each letter."""
        return list(given.encode()) if isinstance(given, str) else list(given)

    def chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """The texts of all; no system's."""
        self.heard = [dict(each) for each in messages]
        if any(each["role"] == "system" for each in messages):
            raise InputError("the template has no such role", where="messages", by="system")
        return self.prompt("".join(each["content"] for each in messages))

    def generate(
        self,
        tokens: Sequence[int],
        how: Sampling,
        put: Callable[[str], object],
        left: Callable[[], bool],
    ) -> Ended:
        """See `TextModel`."""
        self.seen.append(how)
        for count, token in enumerate(tokens[: how.new_tokens]):
            if count == self.dies:
                raise WorkerLostError("the worker process died", where="device 'b'")
            while not self.go.wait(0.005):
                if left():
                    self.left.set()
                    return Ended(count, "length")
            put(chr(token))
        return Ended(min(len(tokens), how.new_tokens), "stop")

    def as_json(self) -> dict[str, Any]:
        """See `TextModel`."""
        return {"token_s": 0.5}


@contextmanager
def serving(**options: Any) -> Iterator[tuple[Echo, Serving]]:
    """A server of an `Echo`."""
    model = Echo()
    with serve_text(model, ServingOptions(port=0, **options)) as running:
        yield model, running
        model.go.set()


@pytest.fixture(scope="module")
def echo() -> Iterator[tuple[Echo, Serving]]:
    """A server for several tests."""
    with serving() as found:
        yield found


def opened(running: Serving) -> http.client.HTTPConnection:
    """A connection."""
    return http.client.HTTPConnection(running.url.removeprefix("http://"), timeout=10)


def ask(
    running: Serving, path: str, body: Any = None, method: str = "", **headers: str
) -> tuple[int, Any]:
    """Status and document."""
    data = None if body is None else body if isinstance(body, bytes) else json.dumps(body)
    with closing(opened(running)) as connection:
        connection.request(method or ("POST" if data else "GET"), path, data, headers)
        answer = connection.getresponse()
        text = answer.read()
    return answer.status, json.loads(text) if text.startswith(b"{") else text.decode()


def wait_for(look: Callable[[], bool]) -> None:
    """Look until it is so."""
    end_s = time.monotonic() + 60
    while not look():
        assert time.monotonic() < end_s
        time.sleep(0.005)


ASKED = {"model": "org/echo", "prompt": "hello"}
CHAT = {"model": "org/echo", "messages": [{"role": "user", "content": "hi"}]}


def test_a_text_and_a_chat(echo: tuple[Echo, Serving]) -> None:
    """Whole, with numbers of tokens; how to sample comes through."""
    model, running = echo
    how = {"temperature": 0.5, "top_p": 0.9, "seed": 7, "stop": "x"}
    status, found = ask(running, "/v1/completions", ASKED | how | {"max_tokens": 3})
    assert (status, found["object"], found["model"]) == (200, "text_completion", "org/echo")
    choice = {"index": 0, "text": "hel", "logprobs": None, "finish_reason": "stop"}
    assert found["choices"] == [choice]
    usage = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
    assert found["usage"] == usage
    assert model.seen[-1] == Sampling(3, 0.5, 0.9, 7, ("x",), continues=True)

    parts = [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]
    asked = CHAT | {
        "messages": [{"role": "user", "content": parts, "name": "bo"}],
        "stop": ["a", "b"],
    }
    status, found = ask(running, "/v1/chat/completions", asked)
    assert found["choices"][0]["message"] == {"role": "assistant", "content": "hi"}
    assert model.seen[-1] == Sampling(38, stop=("a", "b"))
    assert model.heard == [{"role": "user", "content": "hi", "name": "bo"}]


def test_events(echo: tuple[Echo, Serving]) -> None:
    """Pieces one after another, the end, the numbers of tokens, and the mark of the end."""
    asked = {"stream": True, "stream_options": {"include_usage": True}}
    status, text = ask(echo[1], "/v1/chat/completions", CHAT | asked)
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert (status, lines[-1]) == (200, "[DONE]")
    events = [json.loads(line) for line in lines[:-1]]
    assert {each["object"] for each in events} == {"chat.completion.chunk"}
    deltas = [each["choices"][0]["delta"] for each in events[:-1]]
    assert deltas == [{"role": "assistant", "content": ""}, {"content": "h"}, {"content": "i"}, {}]
    assert events[-2]["choices"][0]["finish_reason"] == "stop"
    assert events[-1]["usage"]["completion_tokens"] == 2


def test_what_there_is(echo: tuple[Echo, Serving]) -> None:
    """Models, whose names may have slashes, health, numbers."""
    running = echo[1]
    _, models = ask(running, "/v1/models")
    entry = models["data"][0]
    assert (entry["id"], entry["max_model_len"]) == ("org/echo", 40)
    assert ask(running, "/v1/models/org/echo") == (200, entry)
    assert ask(running, "/v1/models/other")[1]["error"]["code"] == "model_not_found"
    assert ask(running, "/v2/health/ready") == (200, {"ready": True})
    status = ask(running, "/status.json")[1]
    assert (status["map"], status["users"]) == ({"token_s": 0.5}, 2)
    assert "placewright_generated_tokens_total" in ask(running, "/metrics")[1]


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("completions", ASKED | {"max_token": 3}, 400, "did you mean 'max_tokens'"),
        ("completions", ASKED | {"max_tokens": 36}, 400, "1 more than the 40"),
        ("completions", ASKED | {"prompt": "x" * 40}, 400, "40 tokens and 1 are to follow"),
        ("chat/completions", CHAT | {"max_completion_tokens": 100}, 400, "62 more"),
        ("completions", ASKED | {"prompt": []}, 400, "prompt"),
        ("completions", ASKED | {"prompt": ["a", "b"]}, 400, "prompt"),
        ("completions", ASKED | {"temperature": -1}, 400, "temperature"),
        ("completions", ASKED | {"max_tokens": True}, 400, "max_tokens"),
        ("completions", ASKED | {"stop": [""]}, 400, "stop"),
        ("completions", ASKED | {"n": 2}, 400, "n: must be 1"),
        ("completions", ASKED | {"echo": True}, 400, "echo"),
        ("completions", ASKED | {"model": "b"}, 404, "no model 'b'"),
        ("completions", [1], 400, "mapping"),
        ("completions", b"{", 400, "JSON"),
        ("completions", b" " * (1 << 17), 413, "more than"),
        ("chat/completions", CHAT | {"messages": []}, 400, "messages"),
        ("chat/completions", CHAT | {"tools": []}, 400, "tools"),
        (
            "chat/completions",
            CHAT | {"messages": [{"role": "system", "content": "x"}]},
            400,
            "no such role",
        ),
        ("embeddings", ASKED, 404, "nothing at"),
    ],
)
def test_bad_requests(
    echo: tuple[Echo, Serving], path: str, body: Any, status: int, words: str
) -> None:
    """In OpenAI's form, with the reason; the next request is answered."""
    found, document = ask(echo[1], f"/v1/{path}", body)
    assert found == status
    error = document["error"]
    assert words in error["message"]
    assert (error["type"], error["param"]) == ("invalid_request_error", None)
    assert ask(echo[1], "/v1/completions", ASKED)[0] == 200


def test_a_worker_that_died(echo: tuple[Echo, Serving]) -> None:
    """Before the first piece with a status, later as the last event."""
    model, running = echo
    model.dies = 0
    for stream in (False, True):
        status, found = ask(running, "/v1/completions", ASKED | {"stream": stream})
        assert status == 503
        assert (found["error"]["code"], found["error"]["type"]) == ("server-lost", "server_error")
        assert "device 'b'" in found["error"]["message"]
    model.dies = 2
    status, text = ask(running, "/v1/completions", ASKED | {"stream": True})
    *pieces, last = [json.loads(line[6:]) for line in text.split("\n\n") if line]
    assert (status, len(pieces)) == (200, 2)
    assert last["error"]["code"] == "server-lost"
    model.dies = -1


def test_users_wait_for_a_place_and_clients_that_leave_end_theirs() -> None:
    """Two at a time, one waits, the next is refused; who leaves makes room."""
    with serving(most_waiting=1) as (model, running):
        model.go.clear()
        first, second, third = (opened(running) for _ in range(3))
        for k, each in enumerate((first, second, third)):
            each.request("POST", "/v1/completions", json.dumps(ASKED))
            under_way, waiting = min(k + 1, 2), max(0, k - 1)

            def there(under_way: int = under_way, waiting: int = waiting) -> bool:
                status = ask(running, "/status.json")[1]
                return (status["under_way"], status["waiting"]) == (under_way, waiting)

            wait_for(there)
        status, found = ask(running, "/v1/completions", ASKED)
        assert (status, found["error"]["code"]) == (429, "queue-full")
        second.close()
        assert model.left.wait(60)
        wait_for(lambda: ask(running, "/status.json")[1]["waiting"] == 0)
        model.go.set()
        for each in (first, third):
            assert json.loads(each.getresponse().read())["choices"][0]["text"] == "hello"
            each.close()
        status = ask(running, "/status.json")[1]
        assert (status["outcomes"]["client-gone"], status["under_way"]) == (1, 0)

        model.go.clear()
        model.left.clear()
        waiting = [opened(running) for _ in range(3)]
        for each in waiting:
            each.request("POST", "/v1/completions", json.dumps(ASKED | {"stream": True}))
        wait_for(lambda: ask(running, "/status.json")[1]["waiting"] == 1)
        for each in waiting:  # the last one waits for a place, and leaves
            each.close()
        wait_for(lambda: ask(running, "/status.json")[1]["under_way"] == 0)
        assert ask(running, "/status.json")[1]["waiting"] == 0
        model.go.set()
        assert ask(running, "/v1/completions", ASKED)[0] == 200


def test_the_end_lets_texts_finish(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is generated ends; what takes longer than that is broken off."""
    limits_s, drain = list[float](), Completions.drain

    async def noted(application: Completions, limit_s: float) -> None:
        limits_s.append(limit_s)
        await drain(application, limit_s)

    monkeypatch.setattr(Completions, "drain", noted)
    with serving(drain_s=5.0) as (model, running):
        model.go.clear()
        connection = opened(running)
        connection.request("POST", "/v1/completions", json.dumps(ASKED))
        wait_for(lambda: ask(running, "/status.json")[1]["under_way"] == 1)
    with closing(connection):
        assert json.loads(connection.getresponse().read())["usage"]["completion_tokens"] == 5
    model = Echo()
    with serve_text(model, ServingOptions(port=0, drain_s=0.1)) as running:
        model.go.clear()
        connection = opened(running)
        connection.request("POST", "/v1/completions", json.dumps(ASKED))
        wait_for(lambda: ask(running, "/status.json")[1]["under_way"] == 1)
    assert model.left.is_set()
    assert limits_s == [5.0, 0.1]
    connection.close()


def test_who_is_answered() -> None:
    """The token of the server, as everywhere."""
    with serving(token=TOKEN) as (_, running):
        status, found = ask(running, "/v1/completions", ASKED)
        assert (status, found["error"]["code"]) == (401, "unauthorized")
        assert ask(running, "/v1/models", Authorization=f"Bearer {TOKEN}")[0] == 200
        assert ask(running, "/v2/health/live")[0] == 200
        assert ask(running, "/v1/models", Origin="http://evil.example")[0] == 403


def test_openais_client(echo: tuple[Echo, Serving]) -> None:
    """It reads answers, events and errors."""
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=f"{echo[1].url}/v1", api_key="none", max_retries=0)
    assert [each.id for each in client.models.list()] == ["org/echo"]
    found = client.completions.create(model="org/echo", prompt="hello", max_tokens=3)
    assert (found.choices[0].text, found.usage.total_tokens) == ("hel", 8)
    events = list(client.chat.completions.create(**CHAT, stream=True))
    assert "".join(each.choices[0].delta.content or "" for each in events) == "hi"
    with pytest.raises(openai.BadRequestError, match="more than the 40"):
        client.completions.create(model="org/echo", prompt="hello", max_tokens=300)
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="other", prompt="hello")
    client.close()
