"""Texts of a placed model: those of `model.generate`, whoever else asks."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from placewright.errors import InputError, WorkerLostError
from placewright.layers.devicemap.text import text_model
from placewright.layers.generation.answers import PlacedText, Tokenizer
from placewright.planning.wing import Ended, Sampling
from placewright.runtime.engines.local import LocalGroup
from tests.layers.generation.test_generator import boards, model_of

transformers = pytest.importorskip("transformers")

PROMPT = [12, 7, 90]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a tokenizer of bytes: each token is a byte of a text."""
    path = tmp_path_factory.mktemp("model")
    model_of("llama").save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[PlacedText]:
    """It on two workers."""
    with text_model(folder, boards("a", "b"), context=64, users=2) as found:
        yield found


def text_of(model: PlacedText, how: Sampling, prompt: list[int] | None = None) -> tuple[str, Ended]:
    """Whole."""
    pieces: list[str] = []
    ended = model.generate(prompt or PROMPT, how, pieces.append, lambda: False)
    return "".join(pieces), ended


def expected(seed: int = 0, **options: Any) -> str:
    """Of the model in this process."""
    ids, own = torch.tensor([PROMPT]), model_of("llama")
    torch.manual_seed(seed)
    found = own.generate(ids, attention_mask=torch.ones_like(ids), **options)
    return " ".join(map(str, found[0, 3:].tolist()))


def test_tokens_are_those_of_one_process(model: PlacedText) -> None:
    """Greedy, and sampled with a seed while others sample."""
    greedy = expected(max_new_tokens=12, do_sample=False)
    assert text_of(model, Sampling(12, 0.0)) == (greedy, Ended(12, "length"))
    options = {"do_sample": True, "temperature": 0.7, "top_p": 0.9, "top_k": 0}
    sampled = {seed: expected(seed, max_new_tokens=12, **options) for seed in range(4)}
    assert len(set(sampled.values())) == 4
    with ThreadPoolExecutor(4) as pool:
        work = {s: pool.submit(text_of, model, Sampling(12, 0.7, 0.9, s)) for s in sampled}
        assert {seed: each.result()[0] for seed, each in work.items()} == sampled
    assert text_of(model, Sampling(12))[0] != text_of(model, Sampling(12))[0]


def test_a_text_ends_before_a_stop_and_where_the_user_leaves(model: PlacedText) -> None:
    """The stop is over several tokens; what may begin one waits."""
    words = expected(max_new_tokens=12, do_sample=False).split()
    stop = f"{words[4][-1]} {words[5]} {words[6]}"
    before = " ".join(words).split(stop)[0]
    found, ended = text_of(model, Sampling(12, 0.0, stop=("never", stop)))
    assert (found, ended.reason) == (before, "stop")
    assert ended.new_tokens <= 7
    unlike = f"{words[5]} {words[6]} x"
    assert text_of(model, Sampling(12, 0.0, stop=(unlike,)))[0] == " ".join(words)

    pieces: list[str] = []
    left = model.generate(PROMPT, Sampling(40, 0.0), pieces.append, lambda: len(pieces) >= 3)
    assert left.new_tokens == 3


def test_a_lost_worker_is_named_and_the_model_loaded_again(model: PlacedText) -> None:
    """The next text is right."""
    placed = model._loaded()
    assert isinstance(placed.group, LocalGroup)
    placed.group.processes[0].kill()
    with pytest.raises(WorkerLostError, match=r"device .[ab]."):
        text_of(model, Sampling(4, 0.0))
    assert text_of(model, Sampling(4, 0.0))[0] == expected(max_new_tokens=4, do_sample=False)


@pytest.mark.parametrize(
    ("prompt", "words"), [([12, 96], "96, tokens go from 0 to 95"), ("words", "no tokenizer")]
)
def test_prompts_that_are_none(model: PlacedText, prompt: Any, words: str) -> None:
    """By name; so is a chat without a template."""
    with pytest.raises(InputError, match=words):
        model.prompt(prompt)
    with pytest.raises(InputError, match="/v1/completions"):
        model.chat([{"role": "user", "content": "hello"}])


def byte_tokenizer(folder: Path, template: str) -> Tokenizer:
    """One of bytes."""
    from tokenizers import Tokenizer as Made
    from tokenizers import decoders, models, pre_tokenizers

    letters = {letter: k for k, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    made = Made(models.BPE(vocab=letters, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    kept = transformers.PreTrainedTokenizerFast(tokenizer_object=made)
    kept.chat_template = template
    kept.save_pretrained(folder)
    return Tokenizer(folder)


def test_characters_of_several_tokens_come_whole(tmp_path: Path) -> None:
    """No piece has half a character; the template is the model's."""
    from placewright.layers.generation.answers import _Watch

    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<bot>"
    tokenizer = byte_tokenizer(tmp_path, template)
    text = "größer ist 漢字 🙂"
    tokens = tokenizer.encode(text)
    assert len(tokens) == len(text.encode())
    pieces: list[str] = []
    watch = _Watch(tokenizer, (), pieces.append, lambda: False)
    for k in range(len(tokens)):
        watch(torch.tensor([tokens[: k + 1]]), None)
    watch.finish()
    assert pieces == list(text)
    written = tokenizer.chat([{"role": "user", "content": "hi"}])
    assert tokenizer.decode(written) == "<user>hi<bot>"
    broken = byte_tokenizer(tmp_path, "{{ raise_exception('roles must alternate') }}")
    with pytest.raises(InputError, match="roles must alternate"):
        broken.chat([{"role": "user", "content": "hi"}])
