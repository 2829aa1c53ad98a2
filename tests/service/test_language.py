"""A language model as a request service: started by name, talked to, drawn, drained."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from placewright.errors import InputError
from placewright.service.server import ServiceOptions
from tests.service.serving import Serving
from tests.service.test_serving import Asking

CLUSTER = """
devices:
  - {name: board-a, node: a, memory: 200KiB, memory_bandwidth: 10GB/s, peak_flops: 50GFLOPS}
  - {name: board-b, node: b, memory: 200KiB, memory_bandwidth: 10GB/s, peak_flops: 50GFLOPS}
links:
  - {from: board-a, to: board-b, bandwidth: 10Gbps, latency: 20us}
"""


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asking]:
    """A service that may serve one language model, which runs."""
    from tests.layers.generation.test_generator import model_of

    folder = tmp_path_factory.mktemp("language")
    model_of("llama").save_pretrained(folder / "tiny")
    (folder / "boards.yaml").write_text(CLUSTER)
    made = Serving(folder, "--language-models", "tiny")
    made.start().upload(folder / "boards.yaml")
    asking = Asking(made)
    options = {"cluster": "boards.yaml", "context": 64}
    try:
        asking("POST", "services", name="chat", language_model="tiny", options=options)
        # Four processes import PyTorch: half a minute, or several on a busy machine.
        asking.until(
            lambda: asking("GET", "services/chat"),
            lambda found: found["state"] != "starting",
            wait_s=240.0,
        )
        yield asking
        asking("POST", "services/chat/drain")
    finally:
        made.end()


def complete(ask: Asking, **body: Any) -> tuple[int, str]:
    """Status and answer of OpenAI's route."""
    asked = json.dumps({"model": "tiny", **body})
    headers = {"content-type": "application/json"}
    path = "/api/v1/services/chat/v1/completions"
    status, answer = ask.serving.request("POST", path, headers, asked)
    return status, answer.decode()


def test_talk(ask: Asking) -> None:
    """Events as they come; a refusal in the words of its server; another model is unknown."""
    given = {"prompt": "12 7 90", "max_tokens": 5, "temperature": 0}
    status, text = complete(ask, stream=True, **given)
    assert status == 200
    lines = [line[6:] for line in text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    texts = [json.loads(line)["choices"][0]["text"] for line in lines[:-1]]
    assert len("".join(texts).split()) == 5
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=f"{ask.serving.url}/api/v1/services/chat/v1", api_key="none")
    assert [each.id for each in client.models.list()] == ["tiny"]
    whole = client.completions.create(model="tiny", **given)
    assert whole.choices[0].text == "".join(texts)
    for body, words in (
        ({"prompt": "words"}, "no tokenizer"),
        ({"prompt": "12", "max_tokens": 90}, "more than the 64"),
    ):
        status, text = complete(ask, **body)
        assert status == 400
        assert words in json.loads(text)["error"]["message"]
    with pytest.raises(InputError, match="did you mean 'tiny'"):
        ask("POST", "services", name="other", language_model="tiyn")


def test_its_page(ask: Asking, page: Any) -> None:
    """A box whose answer streams, the map with predicted and measured times."""
    page.goto(f"{ask.serving.url}/services/chat")
    page.fill("#text", "12 7 90")
    page.fill("#tokens", "20")
    page.click("text=Send")
    page.locator("#took:not(:empty)").wait_for()
    assert len(page.inner_text("#answer").split()) == 20
    page.reload()
    drawn = page.get_by_role("img").filter(has=page.locator("text=board-a"))
    assert drawn.count() == 1
    assert "Measured" in page.inner_text("main")
    page.goto(f"{ask.serving.url}/services/new")
    page.check("#own-language")
    assert page.is_visible("#language-model")


def test_folders_that_are_no_model(tmp_path: Path) -> None:
    """Before anything is started."""
    with pytest.raises(InputError, match=r"no config\.json"):
        ServiceOptions(tmp_path, language_models=(tmp_path,))


def test_two_folders_of_one_name(tmp_path: Path) -> None:
    """A request could mean either."""
    folders = tmp_path / "a" / "tiny", tmp_path / "b" / "tiny"
    for each in folders:
        each.mkdir(parents=True)
        (each / "config.json").write_text("{}")
    with pytest.raises(InputError, match="the same name"):
        ServiceOptions(tmp_path, language_models=folders)
