"""Data files whose format follows from their name."""

from __future__ import annotations

import gzip
import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from placewright.errors import InputError
from placewright.io.output import open_to_append, output_file
from placewright.io.stored import drafted_folder, locked, read_data, write_data, write_file
from tests.other_user import UID, needs_root, run_as_other_user
from tests.processes import output_of

DATA = {"name": "ü", "numbers": [1, 2.5e-7, 1e-5, None], "inner": {"yes": "no"}}


@pytest.mark.parametrize("end", ["json", "yaml", "yml", "json.gz", "yaml.gz"])
def test_data_are_read_back_equal(tmp_path: Path, end: str) -> None:
    """Twice written is the same file; packed only if the name says so."""
    path = write_data(DATA, tmp_path / f"data.{end}")
    assert read_data(path)[0] == DATA
    assert (path.read_bytes()[:2] == b"\x1f\x8b") == end.endswith(".gz")
    assert write_data(DATA, tmp_path / f"other.{end}").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("end", ["json", "yaml"])
@pytest.mark.parametrize("name", ["a\x85b", "\x85", "\u2028", "\ufeffa", "a\rb", "ü", "\x1b", "😀"])
def test_names_are_read_back_letter_by_letter(tmp_path: Path, end: str, name: str) -> None:
    """Those too that YAML takes for breaks of lines."""
    data = {"names": [name, f"{name} {name}"], name: {name: name}}
    assert read_data(write_data(data, tmp_path / f"data.{end}"))[0] == data


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", b'{"a": 1, "b": {"c": 2, "c": 3}}', "the key 'c' is given twice"),
        ("a.yaml", b"{a: 1, b: {c: 2, c: 3}}", "the key 'c' is given twice"),
        ("a.json.gz", b"{}", "cannot be read as gzip"),
        ("a.json.gz", gzip.compress(b"{}", mtime=0)[:-9], "cannot be read as gzip"),
        ("a.yaml.gz", gzip.compress(b"a: [1", mtime=0), "is not valid YAML"),
        ("a.json", b"a: 1", "is not valid JSON"),
    ],
)
def test_what_is_not_what_its_name_says_is_refused(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    """With the file's name."""
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        read_data(path)
    assert name in str(caught.value)


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    """On a full disk what was there stays, nothing lies beside it, and the error says what next."""
    with full_disk(tmp_path) as folder:
        kept = write_file(folder / "kept.json", "small")
        with pytest.raises(InputError, match=r"No space left on device .*9999999 bytes") as raised:
            write_file(kept, b"x" * 9_999_999)
        assert "free space there" in str(raised.value)
        assert kept.read_text() == "small"
        assert [path.name for path in folder.iterdir()] == ["kept.json"]


def test_threads_may_write_one_file(tmp_path: Path) -> None:
    """One of them wins; nothing lies beside the file."""
    path, contents = tmp_path / "one.json", [str(k) * 100_000 for k in range(8)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda content: write_file(path, content), contents * 4))
    assert path.read_text() in contents
    assert [found.name for found in tmp_path.iterdir()] == ["one.json"]


def test_a_device_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    """``-o /dev/stdout``, or a pipe that somebody reads."""
    assert write_file("/dev/null", "gone") == Path("/dev/null")
    assert Path("/dev/null").is_char_device()
    with pytest.raises(InputError, match="/dev/full: cannot be written: No space left"):
        write_file("/dev/full", "gone")


def test_a_link_stays_one_and_a_mode_stays_too(tmp_path: Path) -> None:
    """The file that it leads to is replaced."""
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("old")
    real.chmod(0o640)
    link.symlink_to(real)
    write_file(link, "new")
    assert link.is_symlink()
    assert real.read_text() == "new"
    assert real.stat().st_mode & 0o777 == 0o640


def test_a_loop_of_links_is_named(tmp_path: Path) -> None:
    """Before anything is computed, and when it is written."""
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    for write in (output_file, partial(write_file, content="text")):
        with pytest.raises(InputError, match="a: cannot be written: Too many levels"):
            write(tmp_path / "a")


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    """With what to do."""
    with pytest.raises(InputError, match=r"nowhere/a\.json: cannot be written: No such file"):
        write_file(tmp_path / "nowhere" / "a.json", "text")


@contextmanager
def full_disk(where: Path) -> Iterator[Path]:
    """A file system of a megabyte; root mounts it."""
    folder = where / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "placewright-test", str(folder)]
    if os.geteuid() or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a file system can be mounted by root only")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_missing_packed_file_is_not_called_damaged(tmp_path: Path) -> None:
    """The message is that of any other missing file, with the nearest name."""
    (tmp_path / "graph.json.gz").write_bytes(b"")
    with pytest.raises(InputError, match=r"(?s)cannot be read: No such file.*did you mean .*graph"):
        read_data(tmp_path / "grahp.json.gz")


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """One that others may enter; pytest's they may not."""
    with TemporaryDirectory() as name:
        Path(name).chmod(0o711)
        yield Path(name)


PLANTS = """
folder = os.path.dirname(MARK)
for name, mode in (("writable", 0o666), ("program", 0o4777)):
    open(f"{folder}/{name}", "w").close()
    os.chmod(f"{folder}/{name}", mode)
os.symlink("../kept", f"{folder}/link")
os.mkfifo(f"{folder}/pipe")
"""


@needs_root
@pytest.mark.parametrize(("mode", "group"), [(0o1777, 0), (0o777, 0), (0o2775, UID)])
def test_files_of_another_user_in_a_shared_folder_get_him_nothing(
    mode: int, group: int, open_folder: Path
) -> None:
    """Neither their modes, with which he could write programs of ours, nor where links lead."""
    shared, kept = open_folder / "shared", open_folder / "kept"
    kept.write_text("kept")
    shared.mkdir()
    os.chown(shared, -1, group)
    shared.chmod(mode)
    output_of(run_as_other_user(PLANTS, shared / "mark", []))
    for name in ("writable", "program"):
        found = write_file(shared / name, "new").stat()
        assert (found.st_uid, found.st_mode & 0o7022) == (0, 0)
    for name in ("link", "pipe"):
        with pytest.raises(InputError, match="another user has put a link or a pipe there"):
            write_file(shared / name, "new")
        with pytest.raises(OSError, match="another user has put a link or a pipe there"):
            open_to_append(shared / name)
        with pytest.raises(InputError, match="another user has put a link or a pipe there"):
            output_file(shared / name)
        with (
            pytest.raises(OSError, match="another user has put a link or a pipe there"),
            drafted_folder(shared, "last") as draft,
        ):
            (draft / name).touch()
        assert (shared / name).lstat().st_uid == UID
    made = open_folder / "made"
    (shared / "dangling").symlink_to(made)
    os.lchown(shared / "dangling", UID, UID)
    with locked(shared / "dangling"):
        assert not made.exists()
    assert kept.read_text() == "kept"
    (shared / "own").symlink_to(kept)
    write_file(shared / "own", "new")
    assert kept.read_text() == "new"
    with open_to_append(shared / "own") as file:  # what is no whole line goes
        file.write("line\n")
    assert kept.read_text() == "line\n"
    os.chown(shared, UID, UID)  # his own folder, in which all may write
    shared.chmod(0o777)
    with pytest.raises(InputError, match="another user has put a link or a pipe there"):
        write_file(shared / "link", "new")


def test_files_of_a_folder_come_together_or_not_at_all(tmp_path: Path) -> None:
    """The first time as a whole; then the one that leads to the others goes first, comes last."""
    folder, seen = tmp_path / "a" / "export", []
    with drafted_folder(folder, "last") as draft:
        (draft / "part").write_text("old")
        (draft / "last").write_text("old")
        assert not folder.exists()
    (folder / "notes").write_text("kept")
    replace = Path.replace
    with pytest.MonkeyPatch.context() as patch, drafted_folder(folder, "last") as draft:
        (draft / "part").write_text("new")
        (draft / "last").write_text("new")
        (draft / "more").write_text("new")
        assert (folder / "part").read_text() == "old"

        def replaced(self: Path, target: Path) -> Path:
            assert not (folder / "last").exists()
            seen.append(target.name)
            return replace(self, target)

        patch.setattr(Path, "replace", replaced)
    assert seen == ["more", "part", "last"]
    texts = {path.name: path.read_text() for path in folder.iterdir()}
    assert texts == {"part": "new", "last": "new", "more": "new", "notes": "kept"}
    with pytest.raises(FileNotFoundError), drafted_folder(folder, "last") as draft:
        (draft / "none" / "part").write_text("newer")
    assert {path.name: path.read_text() for path in folder.iterdir()} == texts
    assert list((tmp_path / "a").iterdir()) == [folder]
