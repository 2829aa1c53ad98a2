"""Samples of data sets and of folders of files, with the names of those that do not fit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import default_collate

from placewright.errors import InputError, UnknownNameError
from placewright.samples.training.sample_set import Files, SampleSet, files_in

Text = tuple[torch.Tensor, int]


def texts(*lengths: int) -> list[Text]:
    """One of each length; words count from 1."""
    return [(torch.arange(1, n + 1), n % 2) for n in lengths]


def padded(samples: list[Text]) -> tuple[torch.Tensor, torch.Tensor]:
    """To the longest of the batch."""
    words = pad_sequence([words for words, _ in samples], batch_first=True)
    return words, torch.tensor([label for _, label in samples])


def test_padded_samples_all_have_the_largest_shape() -> None:
    """Of both sets; a sample alone is padded as in a batch, and batches of single ones are not."""
    train, test = SampleSet(texts(2, 5, 3), "a", padded), SampleSet(texts(1, 7), "b", padded)
    train.pad_alike(test)
    words, labels = train.batch(2)
    assert words.tolist() == [[1, 2, 0, 0, 0, 0, 0], [1, 2, 3, 4, 5, 0, 0]]
    assert labels.tolist() == [0, 1]
    for each in (train, test):
        for k in range(len(each)):
            array, label = each.arrays(k)
            assert array.tolist() == each.batch(k + 1)[0][k].tolist()
            assert label == each[k][1]
    assert train.rows([0, 2])[0].shape == (2, 3)
    assert train.padded is not None
    alone, beside = train.padded
    assert (alone[0].shape, beside[0].shape) == ((1, 2), (1, 7))


def test_samples_of_equal_shapes_are_padded_beside_nothing() -> None:
    """Whether `collate` is the user's or not."""
    for collate in (padded, None):
        samples = SampleSet(texts(3, 3), "a", collate)
        samples.pad_alike()
        assert samples.padded is None
        assert samples.arrays(1)[0].tolist() == [1, 2, 3]


def ragged_in_two_dimensions(samples: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Pictures padded to the highest and the widest one."""
    sizes = np.array([picture.shape for picture, _ in samples]).max(axis=0)
    batch = torch.zeros(len(samples), *sizes.tolist())
    for row, (picture, _) in zip(batch, samples, strict=True):
        row[: picture.shape[0], : picture.shape[1]] = picture
    return batch, torch.tensor([label for _, label in samples])


def test_the_highest_and_the_widest_picture_are_different_ones() -> None:
    """Both sizes are those of all samples."""
    pictures = [(torch.ones(2, 6), 0), (torch.ones(5, 3), 1), (torch.ones(4, 4), 1)]
    samples = SampleSet(pictures, "a", ragged_in_two_dimensions)
    samples.pad_alike()
    assert {samples.arrays(k)[0].shape for k in range(3)} == {(5, 6)}


def failing(samples: list[Text]) -> tuple[torch.Tensor, torch.Tensor]:
    """Fails on the text of two words."""
    if any(len(words) == 2 for words, _ in samples):
        raise KeyError("no such word")
    return padded(samples)


def flat(samples: list[Text]) -> tuple[torch.Tensor, torch.Tensor]:
    """All words in one row, as ``EmbeddingBag`` takes them."""
    return torch.cat([words for words, _ in samples]), torch.tensor([y for _, y in samples])


@pytest.mark.parametrize(
    ("collate", "message"),
    [
        (failing, "KeyError: 'no such word'.*a, sample 1|a, sample 1.*KeyError"),
        (flat, "without a row for each sample"),
        (lambda samples: samples[0][0], "do not make a batch"),
    ],
)
def test_a_collate_that_fails_names_the_sample(collate: Callable[..., Any], message: str) -> None:
    """Before anything is trained."""
    with pytest.raises(InputError, match=message):
        SampleSet(texts(3, 2, 4), "a", collate).pad_alike()


def test_a_sample_of_another_shape_is_named_with_both() -> None:
    """Where nothing pads it, in a batch and alone."""
    samples = SampleSet(texts(3, 3, 4), "a")
    with pytest.raises(InputError, match=r"a, sample 2"):
        samples.batch(3)
    with pytest.raises(InputError, match=r"(?s)\[4\] int64.*\[3\] int64.*collate"):
        samples.arrays(2)


def test_samples_that_cannot_be_stored_are_named() -> None:
    """By their type or layout, before anything is captured."""
    for kind, sample in (
        ("bfloat16", torch.zeros(2, dtype=torch.bfloat16)),
        ("float8_e5m2", torch.zeros(2).to(torch.float8_e5m2)),
    ):
        with pytest.raises(InputError, match=rf"(?s)cannot be stored.*{kind}.*NumPy"):
            SampleSet([(sample, 1)], "a").batch(1)


def read(path: Path) -> tuple[torch.Tensor, int]:
    """Numbers of a file."""
    numbers = [float(x) for x in path.read_text(encoding="utf-8").split()]
    return torch.tensor(numbers[:-1]), int(numbers[-1])


def write(folder: Path, files: dict[str, str]) -> Path:
    """Files by path."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def test_files_are_those_of_nodes_or_dealt_out_by_path(tmp_path: Path) -> None:
    """Hidden ones are none; folders of classes are no nodes."""
    folder = write(tmp_path, {"b/2": "3 1", "b/1": "2 0", "a/x/1": "1 0", ".old/1": "", "a/.z": ""})
    found = files_in(folder, read)
    assert isinstance(found, Files)
    assert [found[k][0].item() for k in range(3)] == [1, 2, 3]
    own = files_in(folder, read, ("a", "b", "c"))
    assert isinstance(own, dict)
    assert {name: len(files) for name, files in own.items()} == {"a": 1, "b": 2}
    assert isinstance(files_in(folder, read, ("n0", "n1")), Files)


def test_links_to_folders_are_followed(tmp_path: Path) -> None:
    """As those to files; one that leads back, or nowhere, is named."""
    folder, there = tmp_path / "pictures", tmp_path / "there"
    for each in (folder / "a", there / "deep"):
        each.mkdir(parents=True)
    for path in (folder / "a" / "1", there / "2", there / "deep" / "3", there / ".hidden"):
        path.write_text("0")
    (folder / "b").symlink_to(there)
    found = files_in(folder, float, ("a", "b"))
    assert isinstance(found, dict)
    assert {name: len(files) for name, files in found.items()} == {"a": 1, "b": 2}
    (there / "deep" / "back").symlink_to(there)
    with pytest.raises(InputError, match="back: a link leads to a folder that it is in"):
        files_in(folder, float)
    (there / "deep" / "back").unlink()
    (there / "gone").symlink_to(tmp_path / "nowhere")
    with pytest.raises(InputError, match="gone: a link leads to no file"):
        files_in(folder, float)


def normalised(samples: list[Any]) -> Any:
    """A batch whose samples depend on each other."""
    inputs, targets = default_collate(samples)
    return inputs - inputs.mean(0), targets


def sorted_by_length(samples: list[Any]) -> Any:
    """A batch in another order."""
    return padded(sorted(samples, key=lambda sample: -len(sample[0])))


@pytest.mark.parametrize("collate", [normalised, sorted_by_length])
def test_samples_that_are_others_beside_others_are_refused(collate: Any) -> None:
    """Nodes would keep what each is alone."""
    lengths = [4] * 6 if collate is normalised else [1, 2, 4, 3]
    data = [(torch.full((n,), float(k)), 0) for k, n in enumerate(lengths)]
    samples = SampleSet(data, "data", collate)
    samples.pad_alike()
    with pytest.raises(InputError, match="makes another sample of one that is in a batch"):
        samples.demand_alone()


def test_samples_that_are_others_each_time_are_found_anywhere() -> None:
    """Not among the first ones only."""
    drawn = np.random.default_rng(0)

    class Late(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 40

        def __getitem__(self, k: int) -> Any:
            return torch.full((3,), float(drawn.random()) if k > 30 else 0.0), 0

    with pytest.raises(InputError, match="sample 31: a sample is another one each time"):
        SampleSet(Late(), "data").demand_repeatable()


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    """Empty ones, and those on which the user's function fails."""
    folder = write(tmp_path, {"a/1": "1 0", "a/2": "", "a/3": "one 0"})
    samples = SampleSet(files_in(folder, read), "a")
    with pytest.raises(InputError, match=r"the file is empty.*a/2|a/2.*the file is empty"):
        _ = samples[1]
    with pytest.raises(InputError, match=r"a/3.*ValueError|ValueError.*a/3"):
        _ = samples[2]


def test_folders_that_fit_no_node_are_refused(tmp_path: Path) -> None:
    """A misspelt node, an empty folder, one that is missing, and no function to read."""
    folder = write(tmp_path / "x", {"n0/1": "1 0", "n_1/1": "1 0"})
    with pytest.raises(UnknownNameError, match="n_1"):
        files_in(folder, read, ("n0", "n1"))
    (tmp_path / "y").mkdir()
    with pytest.raises(InputError, match="no file"):
        files_in(tmp_path / "y", read)
    with pytest.raises(InputError, match="no such folder"):
        files_in(tmp_path / "z", read)
    with pytest.raises(InputError, match="give read"):
        files_in(folder, None)


def test_a_name_too_long_for_any_folder_is_named() -> None:
    """The system's own error would be raised otherwise."""
    with pytest.raises(InputError, match="no such folder"):
        files_in(Path("x" * 5000), None)
