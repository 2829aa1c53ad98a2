"""Files of secrets: readable by this user only, else an error."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from placewright.errors import InputError
from placewright.runtime.engines import torchrun_agent as secret
from placewright.runtime.engines.torchrun_agent import given_secret, read_secret, write_secret
from tests.other_user import UID, needs_root

GOOD = "0123456789abcdef" * 2


@pytest.fixture(autouse=True)
def _nothing_given(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in (secret.SECRET_VARIABLE, secret.FILE_VARIABLE):
        monkeypatch.delenv(variable, raising=False)


def written(path: Path, text: str = GOOD, mode: int = 0o600) -> Path:
    """A file of a user's."""
    path.write_text(text)
    path.chmod(mode)
    return path


def test_rank_0_writes_what_only_this_user_can_read(tmp_path: Path) -> None:
    """Another one every time, and never over a file that is there."""
    known, path = write_secret(tmp_path), tmp_path / "secret"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(known) == 64
    assert read_secret(path) == known
    with pytest.raises(FileExistsError):
        write_secret(tmp_path)
    (tmp_path / "other").mkdir()
    assert write_secret(tmp_path / "other") != known


def test_the_environment_gives_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By value or by file; nothing by default."""
    assert given_secret() is None
    monkeypatch.setenv(secret.FILE_VARIABLE, str(written(tmp_path / "s", GOOD + "\n")))
    assert given_secret() == GOOD.encode()
    monkeypatch.setenv(secret.SECRET_VARIABLE, GOOD[::-1])
    assert given_secret() == GOOD[::-1].encode()


def test_a_short_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it comes from."""
    monkeypatch.setenv(secret.SECRET_VARIABLE, "hunter2")
    with pytest.raises(InputError, match=r"PLACEWRIGHT_SECRET.*too short \(7 characters, at least"):
        given_secret()
    with pytest.raises(InputError, match="too short"):
        read_secret(written(tmp_path / "s", "short"))


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o777])
def test_a_file_that_others_may_use_is_refused(tmp_path: Path, mode: int) -> None:
    """Readable or writable, by the group or by all."""
    with pytest.raises(InputError, match=rf"others may read or write .*mode {mode:o}"):
        read_secret(written(tmp_path / "s", mode=mode))


@needs_root
def test_a_file_of_another_user_is_refused(tmp_path: Path) -> None:
    """Whatever its mode: root could read it."""
    path = written(tmp_path / "s")
    os.chown(path, UID, UID)
    with pytest.raises(InputError, match=f"belongs to another user .*user {UID}, not 0"):
        read_secret(path)


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    """A pipe that nobody writes to, a folder, a file of the kernel, nothing."""
    os.mkfifo(tmp_path / "pipe", 0o600)
    (tmp_path / "folder").mkdir(mode=0o700)
    for name in ("pipe", "folder"):
        with pytest.raises(InputError, match="must be in a file"):
            read_secret(tmp_path / name)
    with pytest.raises(InputError, match="must be in a file"):
        read_secret(Path("/proc/self/pagemap"))
    with pytest.raises(InputError, match="cannot read the secret"):
        read_secret(tmp_path / "nothing")
