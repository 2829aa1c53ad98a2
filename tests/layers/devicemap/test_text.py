"""``placewright generate``, and texts of several users: those of `model.generate`."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from placewright.cluster.cluster import Cluster
from placewright.cluster.files import load_cluster
from placewright.errors import InfeasibleError, InputError, UnsupportedError, WorkerLostError
from placewright.layers.devicemap.device_map import device_map
from placewright.layers.devicemap.files import read_problem, write_problem
from placewright.layers.devicemap.text import (
    Draw,
    PlacedText,
    Tokenizer,
    _Watch,
    generate_text,
    text_model,
)
from placewright.layers.generation import layer_timer
from placewright.planning.wing import Ended, Sampling
from placewright.runtime.engines.local import LocalGroup
from tests.cli.run_cli import run_cli
from tests.layers.generation.test_generator import boards, model_of

transformers = pytest.importorskip("transformers")

CLUSTER = """
devices:
  - {name: a, kind: cpu, memory: 140KiB, memory_bandwidth: 10GB/s, peak_flops: 50GFLOPS}
  - {name: b, kind: cpu, memory: 140KiB, memory_bandwidth: 10GB/s, peak_flops: 50GFLOPS}
links:
  - {from: a, to: b, bandwidth: 10Gbps, latency: 20us}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model without a tokenizer."""
    path = tmp_path_factory.mktemp("model")
    model_of("llama").save_pretrained(path)
    return path


def test_a_model_that_fits_on_neither_board(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both hold a part; the tokens are those of one process."""
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(CLUSTER)
    words = ("generate", folder, "12 7 90", "--on", cluster)
    output = run_cli(capsys, *words, "--new-tokens", 12, "--check", "-f", "json")
    assert output.code == 0
    found = output.data
    assert len(found["tokens"]) == 12
    assert found["equal"] is True
    assert sorted(found["ranges"]) == ["a", "b"]
    assert found["measured_token_s"] > 0 < found["predicted_token_s"]


def test_a_t5_with_its_tokenizer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Words go to the encoder with an end, and come from the decoder; so they do for a server."""
    own = model_of("t5", 6)
    own.generation_config.no_repeat_ngram_size = 1  # a random model would repeat a word for good
    own.save_pretrained(tmp_path)
    word_tokenizer(tmp_path)
    ids = torch.tensor([[5, 7, 9, 1]])
    tokens = own.generate(ids, max_new_tokens=8, do_sample=False)[0, 1:].tolist()
    words = " ".join(f"w{k}" for k in tokens if k > 1)
    assert len(set(tokens)) == 8
    asked = ("generate", tmp_path, "w5 w7 w9", "--new-tokens", 8, "--check", "-f", "json")
    output = run_cli(capsys, *asked)
    assert output.code == 0
    assert output.data["tokens"] == tokens
    assert (output.data["text"], output.data["equal"]) == (words, True)
    with text_model(tmp_path, boards("a", "b"), context=64, users=2) as placed:
        assert placed.prompt("w5 w7 w9") == ids[0].tolist()
        found, ended = text_of(placed, Sampling(8, 0.0), placed.prompt("w5 w7 w9"))
        assert (found, ended) == (words, Ended(8, "length"))


def word_tokenizer(folder: Path) -> None:
    """Words w2 to w95, and an end of each text, as T5 has it."""
    from tokenizers import Tokenizer as Made
    from tokenizers import models, pre_tokenizers, processors

    vocabulary = {"<pad>": 0, "</s>": 1} | {f"w{k}": k for k in range(2, 96)}
    made = Made(models.WordLevel(vocabulary, unk_token="<pad>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    special = {"pad_token": "<pad>", "eos_token": "</s>"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=made, **special).save_pretrained(folder)


def test_plans_that_workers_cannot_execute(folder: Path, tmp_path: Path) -> None:
    """Weights in four bits, layers that are read from disk in every step."""
    packed = device_map(folder, boards_with_memory("1GiB", tmp_path), context=64, dtype="int4")
    with pytest.raises(UnsupportedError, match="int4"):
        packed.generator(folder)
    spilling = device_map(
        folder, boards_with_memory("70KiB, disk_bandwidth: 1GB/s", tmp_path), context=8
    )
    assert any(each.from_disk for each in spilling.judgement.plan.ranges)
    with pytest.raises(UnsupportedError, match="from disk"):
        spilling.generator(folder)


def test_a_plan_whose_embedding_has_no_room_beside_the_blocks(tmp_path: Path) -> None:
    """Workers have both on one device: it is named with the bytes, before one is started."""
    own = model_of("gpt2")
    own.save_pretrained(tmp_path)
    cluster = boards("a", "b", "c")
    found: dict[bool, str] = {}
    for memory in range(100_000, 400_000, 10_000):
        devices = tuple(replace(each, memory_bytes=memory) for each in cluster.devices)
        try:
            planned = device_map(tmp_path, replace(cluster, devices=devices), context=16)
        except InfeasibleError:
            continue
        try:
            with planned.generator(tmp_path) as placed:
                held = dict(zip(placed.cluster.device_names, placed.held_bytes, strict=True))
        except UnsupportedError as error:
            found[False] = str(error)
        else:
            assert max(held.values()) <= 0.9 * memory
            found[True] = ""
            break
    assert "apart from the blocks" in found[False]


def test_tied_weights_are_held_once(tmp_path: Path) -> None:
    """On one device, as predicted, also where numbers are converted."""
    own = model_of("qwen2").to(torch.bfloat16)
    for stated in ("bfloat16", "float32"):
        own.save_pretrained(tmp_path)
        file = tmp_path / "config.json"
        file.write_text(file.read_text().replace('"dtype": "bfloat16"', f'"dtype": "{stated}"'))
        planned = device_map(tmp_path, boards("a"), context=16)
        weights = sum(cost.weight_bytes for cost in planned.judgement.costs)
        with planned.generator(tmp_path) as placed:
            assert placed.held_bytes[0] == pytest.approx(weights, rel=0.03)


def test_costs_that_workers_measure(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the plan is made; it is for what they execute. One that is left has no room."""
    monkeypatch.setattr(layer_timer, "BUSY_S", 0.01)
    cluster = boards_with_memory("140KiB", tmp_path)
    planned = device_map(folder, cluster, context=32, prompt=8, users=3, measure="local")
    times = planned.problem.times
    assert times is not None
    for each in (times.block_s, times.prompt_block_s, times.answer_s):
        assert len(each) == 2
        assert min(each) > 0
    assert [each.users for each in times.busy] == [1, 2, 3]
    assert min(min(each.block_s + each.answer_s) for each in times.busy) > 0
    assert min(times.latency_s[0][1], times.latency_s[1][0]) > 0
    assert planned.judgement.token_s > min(times.answer_s)
    file = write_problem(planned.problem, tmp_path / "measured.json")
    assert read_problem(file) == planned.problem
    assert len(planned.block_ranges) == 2
    with planned.generator(folder, adapt=True) as placed:
        assert isinstance(placed.group, LocalGroup)
        placed.group.processes[0].kill()
        with pytest.raises(InfeasibleError, match="context"):
            placed.generate(torch.tensor([[5, 7]]), max_new_tokens=4, do_sample=False)


def boards_with_memory(memory: str, folder: Path) -> Cluster:
    """Both of `CLUSTER`, with other memory."""
    file = folder / "other.yaml"
    file.write_text(CLUSTER.replace("140KiB", memory))
    return load_cluster(str(file))


def test_what_cannot_be_generated(folder: Path, tmp_path: Path) -> None:
    """A text without a tokenizer, a folder without a model, a context that does not fit."""
    with pytest.raises(InputError, match="no tokenizer"):
        generate_text(folder, "Once upon a time", boards("a"))
    with pytest.raises(InputError, match="no configuration"):
        generate_text(tmp_path, "1 2", boards("a"))
    (tmp_path / "cluster.yaml").write_text(CLUSTER.replace("140KiB", "60KiB"))
    with pytest.raises(InfeasibleError, match="context"):
        generate_text(folder, "1 2", load_cluster(str(tmp_path / "cluster.yaml")))
    with pytest.raises(InputError, match=r"more than the context \(2 and 9 tokens, 10 are kept"):
        generate_text(folder, "1 2", boards("a"), new_tokens=9, context=10)


def test_a_folder_that_asks_for_more_than_tokens(tmp_path: Path) -> None:
    """It gets the tokens, up to a text to stop at; what cannot be done is named."""
    own = model_of("llama")
    own.save_pretrained(tmp_path)
    said = own.generation_config

    def generated(**more: Any) -> Any:
        for name, value in more.items():
            setattr(said, name, value)
        said.save_pretrained(tmp_path)
        return generate_text(tmp_path, words, boards("a"), new_tokens=6, check=True)

    words = "5 7"
    with pytest.raises(InputError, match=r"generation_config\.json.*stop strings"):
        generated(stop_strings=["w9"])
    byte_tokenizer(tmp_path, "")
    words = "AB"
    whole = generated(stop_strings=None, return_dict_in_generate=True)
    assert (len(whole.tokens), whole.equal) == (6, True)
    stopped = generated(stop_strings=[whole.text[2]])
    assert (stopped.text, stopped.equal) == (whole.text[:3], True)


PROMPT = [12, 7, 90]


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


FOLDERS: list[dict[str, Any]] = [
    {"min_p": 0.95},
    {"typical_p": 0.4},
    {"epsilon_cutoff": 0.0106},
    {"eta_cutoff": 0.5},
    {"top_h": 0.3},
    {"top_k": 3},
    {"repetition_penalty": 3.0},
    {"watermarking_config": transformers.WatermarkingConfig(bias=8.0)},
    {"return_dict_in_generate": True, "output_scores": True},
]


@pytest.mark.parametrize("said", FOLDERS, ids=lambda said: next(iter(said)))
def test_what_the_folder_says_of_sampling_counts(
    model: PlacedText, said: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in `generate`, where a request does not say it."""
    config = model._loaded().generation_config
    for name, value in said.items():
        monkeypatch.setattr(config, name, value)
    own = {k: v for k, v in said.items() if not k.startswith(("return", "output"))}
    sampled = expected(3, max_new_tokens=12, do_sample=True, **{"top_k": 0} | own)
    assert text_of(model, Sampling(12, seed=3)) == (sampled, Ended(12, "length"))


def test_the_folder_says_where_a_text_stops(
    model: PlacedText, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a request may."""
    words = expected(3, max_new_tokens=12, do_sample=True, top_k=0)
    config = model._loaded().generation_config
    for stop in (words[8:10], [words[8:10], "never"]):
        monkeypatch.setattr(config, "stop_strings", stop)
        found, ended = text_of(model, Sampling(12, seed=3))
        assert (found, ended.reason) == (words.split(words[8:10])[0], "stop")


@pytest.mark.parametrize("temperature", [1e-320, 1e-40, 1e-9])
def test_a_temperature_next_to_zero_takes_the_likeliest(
    model: PlacedText, temperature: float
) -> None:
    """Not infinite numbers, of which none can be drawn."""
    greedy = expected(max_new_tokens=3, do_sample=False)
    assert text_of(model, Sampling(3, temperature))[0] == greedy


def test_a_model_of_no_numbers_is_named() -> None:
    """Its client reads why, and the server prints no traceback."""
    scores = torch.tensor([[0.0, torch.nan]])
    with pytest.raises(InputError, match=r"no probabilities of tokens .*NaN"):
        Draw(0)(torch.tensor([[1]]), scores)


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


def test_text_behind_a_token_that_is_not_shown(tmp_path: Path) -> None:
    """A space between words belongs to the word before: pieces are the whole text."""
    word_tokenizer(tmp_path)
    tokenizer = Tokenizer(tmp_path)
    tokens = [5, 1, 7, 0, 0, 9, 1]
    pieces: list[str] = []
    watch = _Watch(tokenizer, (), pieces.append, lambda: False)
    for k in range(len(tokens)):
        watch(torch.tensor([tokens[: k + 1]]), None)
    watch.finish()
    assert "".join(pieces) == tokenizer.decode(tokens) == "w5 w7 w9"


def test_a_continuation_begins_with_the_space_of_its_first_word(tmp_path: Path) -> None:
    """Tokenizers of SentencePiece leave it out at the begin of a text, as in a conversation."""
    from tokenizers import Tokenizer as Made
    from tokenizers import decoders, models, pre_tokenizers

    words = ["\u2581the", "\u2581quick", "\u2581fox", "es"]
    made = Made(models.WordLevel(dict(zip(words, range(4), strict=True))))
    made.pre_tokenizer, made.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=made).save_pretrained(tmp_path)
    tokenizer, text, tokens = Tokenizer(tmp_path), "the quick foxes", [0, 1, 2, 3]
    for first in range(1, 4):
        for prompt, known in ((tokens[:first], tokenizer.decode(tokens[:first])), ((), "")):
            pieces: list[str] = []
            watch = _Watch(tokenizer, (), pieces.append, lambda: False, prompt)
            for k in range(first, 4):
                watch(torch.tensor([tokens[: k + 1]]), None)
            watch.finish()
            assert known + "".join(pieces) == (text if prompt else tokenizer.decode(tokens[first:]))
            assert watch.count == 4 - first


def test_characters_of_several_tokens_come_whole(tmp_path: Path) -> None:
    """No piece has half a character; the template is the model's."""
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
