"""Feed wrong files to every reader: each must be refused by an error of ours, at once.

python benchmarks/fuzz_readers.py --seconds 3600 --seed 1

Files that are right (`fuzz_seeds.py`) are changed: values of other types, numbers that are huge,
negative or none, lone surrogates, NUL, keys twice, deep lists, other encodings, YAML tags, anchors
and bombs, wrong names and versions, paths that no file has, cut and flipped bytes. Each trial runs
in a child process. A finding is an exception that is not ours, or that does not say where; more
than 5 s of the processor (60 s of waiting); more than 500 MB of memory; a process that died; a
file, process or connection that nobody named. Its files and traceback are kept in ``--findings``;
``--replay FOLDER...`` reads them again. Exit code 1 on findings.
"""

from __future__ import annotations

import argparse
import copy
import gzip
import json
import os
import random
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from fuzz_seeds import PLAIN, SLOW, TENSORFLOW, Files, Reader, readers

REPOSITORY = Path(__file__).resolve().parents[1]

CPU_S, WAIT_S, GROWTH, LONGEST = 5.0, 60.0, 500 << 20, 4500
"""Limits of a trial: seconds of the processor, seconds, bytes; characters of a message."""

LARGEST = 1 << 20
"""Bytes of a changed file: a second change writes out what aliases repeat, without limit."""

KILLED_AT = 2 << 30
"""Bytes that a child may gain in a trial, half of those that it may keep, before it is ended."""

# ------------------------------------------------------------------------------------- mutations

RAW = "\ufdd0"
"""Before text that stands in a file as it is: no file has this character."""

VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**53 + 1, 2**63, -(2**63) - 1, 2**64, 10**30, 10**400,
    0.5, -0.0, 1e-320, 1e308, -1e308, "", " ", "x", "inf", "nan", "1e999", "-1GiB", "1e400GiB",
    "9" * 400 + "s", "\x00", "a\x00b", "x" * 300, "x" * 100_000, "/etc/passwd",
    "../../../etc/passwd",
    "\u202e", "\ufeff", "\U0001d7d9", "²", [], {}, [[]], [None], [0], [[1, 2], [3]], {"": 0},
    {"ref": "x"},
    [1, "a"], ["x"] * 50, [0] * 5000,
)  # fmt: skip
JSON_TEXT = (
    "1e999", "-1e999", "NaN", "Infinity", "-Infinity", "9" * 5000, '"\\ud800"', '"\\udfff\\ud800"',
    '"\\u0000"', "[" * 500 + "]" * 500, "[" * 200_000, '{"a":' * 900 + "1" + "}" * 900,
    '{"a": 1, "a": 2}', "1.5e", "0x10", "'x'", "01", "//", "1e-999", "-0", "tru",
)  # fmt: skip
YAML_TEXT = (
    "!!bool foo", "!!int foo", "!!int ''", "!!float ''", "!!float foo", "!!timestamp foo",
    "!!binary x", "!!null x", "!!set [a]", "!!omap [a]", "!!omap {a: 1}", "!!pairs [a]",
    "!!str [a]",
    "!!seq x", "!!map x", "!!python/object/apply:os.system [id]", "!foo x", "!<tag:x> y", ".inf",
    "-.inf", ".nan", "1.0e+999", "0x" + "f" * 5000, "2024-13-45", "2024-01-01",
    "2001-12-14t21:59:43.10-99:99", "1:99:99", "190:20:30.15", "&a [*a]", "&a {b: *a}", "*nothing",
    "&a [x, *a]", '"\\ud800"', '"\\0"', "{? [a] : b}", "{? {a: b} : c}", "{<<: [1]}", "{<<: x}",
    "{<<: &m {<<: *m}}", "{<<: {a: 1}, a: 2}", "{=: 1}", "[" * 500 + "]" * 500, "{a: 1, a: 2}",
    "0o17", "017", "1_000", "0b2", "~", "yes", "@", "`", "%", "|", "---", "...", "? x", "- -",
    "[&b [x, x, x, x, x, x, x, x, x], &c [*b, *b, *b, *b, *b, *b, *b, *b, *b],"
    " &d [*c, *c, *c, *c, *c, *c, *c, *c, *c], &e [*d, *d, *d, *d, *d, *d, *d, *d, *d],"
    " &f [*e, *e, *e, *e, *e, *e, *e, *e, *e], &g [*f, *f, *f, *f, *f, *f, *f, *f, *f],"
    " &h [*g, *g, *g, *g, *g, *g, *g, *g, *g], *h]",
    "{a: &m1 {a1: 1, b1: 2}, b: &m2 {<<: [*m1, *m1, *m1, *m1, *m1, *m1, *m1, *m1]},"
    " c: &m3 {<<: [*m2, *m2, *m2, *m2, *m2, *m2, *m2, *m2]},"
    " d: &m4 {<<: [*m3, *m3, *m3, *m3, *m3, *m3, *m3, *m3]},"
    " e: &m5 {<<: [*m4, *m4, *m4, *m4, *m4, *m4, *m4, *m4]},"
    " f: &m6 {<<: [*m5, *m5, *m5, *m5, *m5, *m5, *m5, *m5]},"
    " g: &m7 {<<: [*m6, *m6, *m6, *m6, *m6, *m6, *m6, *m6]}}",
)  # fmt: skip
WORDS = (
    b"", b"null", b"[]", b"{}", b"0", b'"x"', b" ", b"\n\n", b"\x00", b"\xff\xfe", b"\xef\xbb\xbf",
    b"%YAML 9.9\n---\n{}", b"---\n---\n", b"a: b: c", b"\t- x", b"[" * 100_000, b"- " * 5000,
    b"{" * 5000, b'{"a":' * 100_000, b"&a " * 1000, b"!!" * 1000, b"? " * 3000, b"\x1f\x8b",
    b"PK\x03\x04",
)  # fmt: skip
PATHS = (
    "", ".", "..", "/", "//", "~", "a\x00b", "\x00", "x" * 300, "x/" * 3000, "\ud800", "\udcff",
    "none", "none/none", "{file}/x", "{folder}", "{folder}/none", "loop", "/dev/null", "-", "-x",
    "?", "{file}?", "{file}?x=1", "{file}\x00", "{file}#", "file://{file}", " {file}", "{file}\n",
)  # fmt: skip


def changed(rng: random.Random, files: Files) -> tuple[dict[str, bytes], str | None]:
    """Files with something wrong, and the path that is named where it is not that of the first."""
    found = dict(files)
    first = next(iter(found))
    if rng.random() < 0.04:
        path = rng.choice(PATHS) + rng.choice(("", "".join(Path(first).suffixes)))
        return found, path
    name = rng.choice(list(found)) if rng.random() < 0.3 else first
    for _ in range(1 if rng.random() < 0.7 else rng.randrange(2, 5)):
        new = _changed(rng, name, found[name])
        if len(new) <= max(LARGEST, len(found[name])):
            found[name] = new
    return found, None


def _changed(rng: random.Random, name: str, data: bytes) -> bytes:
    if rng.random() < 0.08:
        return rng.choice(WORDS)
    if rng.random() < 0.12:
        return _other_bytes(rng, data)
    if name.endswith(".gz"):
        with suppress(Exception):  # it may have been cut
            inner = _changed(rng, name.removesuffix(".gz"), gzip.decompress(data))
            packed = gzip.compress(inner, mtime=0)
            return _other_bytes(rng, packed) if rng.random() < 0.2 else packed
    kind = next((k for k in _CHANGES if name.endswith(k)), "")
    with suppress(Exception):  # it may have become none of its kind by an earlier change
        return _CHANGES[kind](rng, data) if kind else _other_text(rng, data)
    return _other_bytes(rng, data)


def _other_bytes(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data) + 1)
    way = rng.randrange(7)
    if way == 0:
        return data[:at]
    if way == 1:
        return data[:at] + rng.randbytes(rng.randrange(1, 9)) + data[at:]
    if way == 2:
        return data[:at] + rng.choice(WORDS) + data[at:]
    if way == 3:
        with suppress(UnicodeDecodeError):
            return data.decode().encode(rng.choice(("utf-16", "utf-32", "utf-8-sig")))
    if way == 4:
        end = min(len(data), at + rng.randrange(1, 40))
        return data[:at] + data[end:]
    if way == 5:
        return data[:at] + data[at : at + 60] + data[at:]
    out = bytearray(data or b"x")
    for _ in range(rng.randrange(1, 6)):
        out[rng.randrange(len(out))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    return bytes(out)


def _other_text(rng: random.Random, data: bytes) -> bytes:
    """Text with a number or a word replaced."""
    text = data.decode()
    places = list(re.finditer(r"-?\d+(\.\d+)?|\w+", text))
    place = rng.choice(places)
    words = [str(v) for v in VALUES if not isinstance(v, list | dict)]
    new = rng.choice([*words, "1e999", "nan", "-1", rng.choice(places)[0]])
    return (text[: place.start()] + new + text[place.end() :]).encode("utf-8", "surrogatepass")


def _other_json(rng: random.Random, data: bytes) -> bytes:
    text = json.dumps(_other_data(rng, _parsed(data), JSON_TEXT))
    return _with_raw(text, r'"\\ufdd0((?:[^"\\]|\\.)*)"').encode("utf-8", "surrogatepass")


def _other_yaml(rng: random.Random, data: bytes) -> bytes:
    import yaml

    if b"&" in data:  # written out, what aliases repeat has gigabytes
        return _other_text(rng, data)
    made = _other_data(rng, _parsed(data), YAML_TEXT)
    text = json.dumps(made) if rng.random() < 0.7 else yaml.safe_dump(made)
    return _with_raw(text, r'"(?:\\ufdd0|\\uFDD0|\ufdd0)((?:[^"\\]|\\.)*)"').encode(
        "utf-8", "surrogatepass"
    )


def _parsed(data: bytes) -> Any:
    return copy.deepcopy(_parsed_once(data))


@lru_cache(100)
def _parsed_once(data: bytes) -> Any:
    import yaml

    with suppress(ValueError):
        return json.loads(data)
    return yaml.safe_load(data)


def _with_raw(text: str, pattern: str) -> str:
    """Marked strings as the text that they hold."""
    return re.sub(pattern, lambda found: str(json.loads(f'"{found[1]}"')), text)


def _other_data(rng: random.Random, data: Any, texts: tuple[str, ...]) -> Any:
    """Data with one entry changed: a value, a key, a whole branch."""
    places = list(_places(data))
    if not places:
        return rng.choice(VALUES)
    holder, key = rng.choice(places)
    old, way = holder[key], rng.randrange(10)
    if way < 4:
        holder[key] = _near(rng, old) if rng.random() < 0.4 else rng.choice(VALUES)
    elif way < 6:
        holder[key] = RAW + rng.choice(texts)
    elif way == 6:
        del holder[key]
    elif way == 7 and isinstance(holder, dict):
        del holder[key]
        holder[rng.choice(["", "x", f"{key}s", "x" * 300, "a\x00b", str(key).upper()])] = old
    elif way == 8 and isinstance(holder, list):
        holder.insert(key, old)
    else:
        other, at = rng.choice(places)
        holder[key], other[at] = other[at], old
    return data


def _near(rng: random.Random, old: Any) -> Any:
    """A value of the same type that may be wrong."""
    if isinstance(old, bool):
        return int(old)
    if isinstance(old, int | float):
        return rng.choice((-old, old + 1, old * 1e9, old * 1e300, 0, -1, 2**62, 10**9, 1e-300, 0.5))
    if isinstance(old, str):
        return rng.choice((old + "x", old[:-1], old * 2, old.upper(), f" {old}", f"{old}\x00", ""))
    return [old, old] if rng.random() < 0.5 else {"x": old}


def _places(data: Any) -> Iterator[tuple[Any, Any]]:
    items = data.items() if isinstance(data, dict) else enumerate(data)
    for key, value in list(items):
        yield data, key
        if isinstance(value, list | dict):
            yield from _places(value)


def _other_tensors(rng: random.Random, data: bytes) -> bytes:
    """A safetensors file with another header."""
    size = int.from_bytes(data[:8], "little")
    header = _other_json(rng, data[8 : 8 + size])
    length = len(header) if rng.random() < 0.9 else rng.choice((0, 1, 2**31, 2**63, 2**64 - 1))
    return length.to_bytes(8, "little") + header + data[8 + size :]


def _other_onnx(rng: random.Random, data: bytes) -> bytes:
    import onnx

    model = onnx.ModelProto.FromString(data)
    for _ in range(rng.randrange(1, 4)):
        _other_message(rng, model)
    return bytes(model.SerializeToString())


def _other_graph(rng: random.Random, data: bytes) -> bytes:
    from tensorflow.core.framework import graph_pb2

    graph = graph_pb2.GraphDef.FromString(data)
    for _ in range(rng.randrange(1, 4)):
        _other_message(rng, graph)
    return bytes(graph.SerializeToString())


NUMBERS = (0, 1, -1, 2, 7, 2**31 - 1, -(2**31), 2**40, 2**63 - 1, -(2**63), 10**6)


def _other_message(rng: random.Random, message: Any) -> None:
    """One field changed, somewhere in a protocol buffer."""
    fields = message.DESCRIPTOR.fields
    for _ in range(50):
        chosen = rng.choice(fields)
        repeated = chosen.is_repeated if hasattr(chosen, "is_repeated") else chosen.label == 3
        value = getattr(message, chosen.name)
        if chosen.message_type is not None:
            inner = list(value) if repeated else [value]
            if not inner or not hasattr(inner[0], "DESCRIPTOR"):
                continue
            if repeated and rng.random() < 0.1:
                del value[rng.randrange(len(value))]
            elif repeated and rng.random() < 0.1:
                value.add().CopyFrom(rng.choice(inner))
            elif repeated or message.HasField(chosen.name) or rng.random() < 0.1:
                _other_message(rng, rng.choice(inner))
            else:
                continue
            return
        with suppress(ValueError, TypeError):
            new = _scalar(rng, chosen)
            if repeated:
                value.extend([new])
            else:
                setattr(message, chosen.name, new)
            return


def _scalar(rng: random.Random, chosen: Any) -> Any:
    kind = type(chosen.default_value) if not isinstance(chosen.default_value, list) else None
    if kind is str or chosen.type == chosen.TYPE_STRING:
        return rng.choice(
            ("", "x", "y", "w", "m", "s", "../w.bin", "/etc/passwd", "location", "w.bin", "-1",
             "offset", "length", "9" * 30, "x" * 300, "a/b", "Loop", "If", "Constant", "Shape",
             "ReadFile", "WriteFile", "PyFunc", "value_string", "/")
        )  # fmt: skip
    if chosen.type == chosen.TYPE_BYTES:
        return rng.choice((b"", b"\x00", b"\xff" * 7, b"x" * 300, b"../x"))
    if chosen.type in (chosen.TYPE_FLOAT, chosen.TYPE_DOUBLE):
        return rng.choice((0.0, -1.0, 1e38, float("inf"), float("nan")))
    if chosen.type == chosen.TYPE_BOOL:
        return rng.random() < 0.5
    return rng.choice(NUMBERS)


_CHANGES: dict[str, Callable[[random.Random, bytes], bytes]] = {
    ".json": _other_json,
    ".yaml": _other_yaml,
    ".safetensors": _other_tensors,
    ".onnx": _other_onnx,
    ".pb": _other_graph,
    ".keras": _other_bytes,
    ".bin": _other_bytes,
}

# --------------------------------------------------------------------------------- in the child


class Watch:
    """Files that are opened or changed, processes and connections, as the interpreter audits them.

    `folders`: where a trial may write.
    """

    READABLE = (
        *{os.path.realpath(p) for p in (sys.prefix, sys.base_prefix, *sys.path[1:]) if p},
        str(REPOSITORY), os.path.expanduser("~/."),
        "/usr", "/lib", "/proc", "/sys", "/dev", "/etc/ld", "/etc/mime", "/etc/local", "/bin",
    )  # fmt: skip
    STARTED = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "pty.spawn")
    REACHED = ("socket.connect", "socket.bind", "socket.getaddrinfo", "webbrowser.open")
    CHANGED = (
        "os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.symlink", "os.link", "os.chmod",
        "os.truncate", "os.chown", "os.utime", "shutil.rmtree", "shutil.move",
    )  # fmt: skip

    def __init__(self, folders: tuple[str, ...]) -> None:
        self.folders, self.text, self.found = folders, b"", list[str]()
        self.active = False
        sys.addaudithook(self.hear)

    def hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Note an event that no trial may cause."""
        if not self.active:
            return
        if event in self.STARTED or event in self.REACHED:
            self.found.append(f"{event} {arguments!r}"[:200])
        elif event == "open" or event in self.CHANGED:
            path = arguments[0]
            if isinstance(path, bytes):
                path = os.fsdecode(path)
            if isinstance(path, str):
                flags = arguments[2] if event == "open" and isinstance(arguments[2], int) else 0
                writes = event != "open" or flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
                made = event == "os.mkdir" and os.path.isdir(path)  # which changes nothing
                if not made:
                    self.opened(event, path, bool(writes))

    def opened(self, event: str, path: str, writes: bool) -> None:
        """Note a path outside of the trial's folder; kernels are compiled into caches."""
        full = os.path.realpath(path) if "\x00" not in path else path
        if full.startswith(self.folders) or "__pycache__" in full or "numba" in full:
            return
        if writes and not full.startswith("/dev/null"):
            self.found.append(f"{event} {path!r} to write"[:200])
        elif not writes and not full.startswith(self.READABLE):
            named = os.path.basename(path).encode("utf-8", "surrogateescape")
            # A family names its models, arrivals their file; some readers take the folder.
            if named not in self.text:
                self.found.append(f"{event} {path!r}"[:200])


@dataclass(slots=True)
class Child:
    """Runs the trials of a group, and writes a line before and after each to a pipe."""

    group: str
    seed: int
    folder: Path
    only: str = ""
    watch: Watch = field(init=False)
    readers: list[Reader] = field(init=False)

    def __post_init__(self) -> None:
        self.readers = [r for r in readers(self.group) if self.only in r.name]
        own = (str(self.folder), os.path.realpath(tempfile.gettempdir()))
        self.watch = Watch(own)

    def run(self, first: int, send: Callable[[dict[str, Any]], None]) -> None:
        """The right files of each reader, which warm it up, then trials without end."""
        for reader in self.readers if first == 0 else []:
            for files in reader.seeds:
                self.trial(reader, files, None, send, right=True)
        for number in range(first, sys.maxsize):
            reader = self.readers[number % len(self.readers)]
            rng = random.Random(f"{self.seed} {reader.name} {number}")
            files, path = changed(rng, rng.choice(reader.seeds))
            self.trial(reader, files, path, send, number=number)

    def trial(
        self,
        reader: Reader,
        files: Files,
        path: str | None,
        send: Callable[[dict[str, Any]], None],
        *,
        number: int = -1,
        right: bool = False,
    ) -> None:
        """Let the reader have the files; what came of it."""
        place = self.folder / "step-00000001"  # a snapshot's folder has such a name
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        for name, data in files.items():
            (place / name).write_bytes(data)
        (place / "loop").symlink_to(place / "loop")
        file = str(place / next(iter(files)))
        named = file if path is None else path.format(file=file, folder=place)
        (place / "trial.json").write_text(json.dumps([reader.name, named]))
        send({"begin": number, "reader": reader.name})
        before = _listed(place)
        _reset_peak()
        held, used = _memory("VmRSS"), time.process_time()
        own = [*map(os.fsencode, files), os.fsencode(repr(named))]
        self.watch.text = b"\n".join([*files.values(), *own])
        self.watch.found = []
        self.watch.active = not right
        what, where = outcome(reader, named, right=right)
        self.watch.active = False
        faults = [what] if what else []
        if not right:
            faults += self.watch.found[:3]
            if time.process_time() - used > CPU_S:
                faults.append(f"took {time.process_time() - used:.1f} s")
            if _memory("VmHWM") - held > GROWTH:
                faults.append(f"took {(_memory('VmHWM') - held) >> 20} MB")
            after = {k: v for k, v in _listed(place).items() if not (reader.writes and "out" in k)}
            if after != before:
                faults.append(f"changed {sorted(set(after.items()) ^ set(before.items()))[:3]}")
        if faults:
            place.rename(self.folder / f"kept{number}")
        send({"end": number, "faults": faults, "where": where})


def outcome(reader: Reader, named: str, *, right: bool = False) -> tuple[str, str]:
    """What is wrong with how a reader took a file, and the traceback; empty if nothing is."""
    from placewright.errors import PlacewrightError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            reader.read(named)
    except PlacewrightError as error:
        text = str(error)
        if right:
            return f"refused a right file: {text}", ""
        placed = error.where or "'" in error.what  # an unknown name is its own place
        if not error.what or not placed or "\n  next: " not in text:
            return f"an error without all of its parts: {text!r:.200}", traceback.format_exc()
        if len(text) > LONGEST + 2 * len(named):
            return f"a message of {LONGEST}+ characters: {text!r:.200}", traceback.format_exc()
    except Exception as error:
        found = traceback.format_exc()
        return f"{type(error).__name__}: {error!s:.300}", found[-6000:]
    return "", ""


def _listed(folder: Path) -> dict[str, tuple[int, int]]:
    stats = ((p.name, p.lstat()) for p in folder.rglob("*"))
    return {name: (stat.st_size, stat.st_mtime_ns) for name, stat in stats}


def _reset_peak() -> None:
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _memory(key: str, pid: int | str = "self") -> int:
    with suppress(OSError, ValueError, IndexError):
        text = Path(f"/proc/{pid}/status").read_text()
        return int(text.partition(f"{key}:")[2].split()[0]) << 10
    return 0


def child(arguments: argparse.Namespace) -> None:
    """Run trials until the parent ends this process."""
    sys.dont_write_bytecode = True
    folder = Path(arguments.folder)
    (folder / "cwd").mkdir(parents=True, exist_ok=True)
    os.chdir(folder / "cwd")
    pipe = os.fdopen(arguments.child, "w")

    def send(line: dict[str, Any]) -> None:
        pipe.write(json.dumps(line) + "\n")
        pipe.flush()

    Child(arguments.group, arguments.seed, folder, arguments.reader).run(arguments.first, send)


# -------------------------------------------------------------------------------- in the parent


@dataclass(slots=True)
class Group:
    """A child, and what is known of its trials."""

    name: str
    arguments: argparse.Namespace
    folder: Path
    trials: Counter[str] = field(default_factory=Counter)
    findings: Counter[tuple[str, str]] = field(default_factory=Counter)
    process: subprocess.Popen[bytes] | None = None
    pipe: int = -1
    rest: bytes = b""
    number: int = 0
    reader: str = ""
    since: float = 0.0
    cpu_s: float = 0.0
    held: int = 0

    def start(self) -> None:
        """Start the child at the next trial."""
        self.pipe, end = os.pipe()
        command = [
            sys.executable, __file__, "--child", str(end), "--group", self.name, "--folder",
            str(self.folder), "--first", str(self.number), "--seed", str(self.arguments.seed),
            "--reader", self.arguments.reader,
        ]  # fmt: skip
        self.folder.joinpath("tmp").mkdir(parents=True, exist_ok=True)
        self.process = subprocess.Popen(
            command,
            pass_fds=[end],
            env={**os.environ, "TMPDIR": str(self.folder / "tmp"), "TF_CPP_MIN_LOG_LEVEL": "3"},
            stdout=subprocess.DEVNULL,
            stderr=(self.folder / "stderr").open("wb"),
        )
        os.close(end)
        self.rest, self.reader = b"", ""

    def stop(self) -> None:
        """End the child."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        os.close(self.pipe)

    def hear(self) -> None:
        """Take the child's lines; note findings; start it again where it has died."""
        assert self.process is not None
        data = os.read(self.pipe, 1 << 16)
        if not data:
            code = self.process.wait()
            last = (self.folder / "stderr").read_bytes()[-3000:].decode(errors="replace")
            if not self.reader:
                raise SystemExit(f"the child of {self.name} does not start:\n{last}")
            self.again(f"the process died: {code}", last)
            return
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in map(json.loads, lines):
            if "begin" in line:
                self.number, self.reader = line["begin"] + 1, line["reader"]
                self.since, self.cpu_s = time.monotonic(), _cpu_s(self.process.pid)
                self.held = _memory("VmRSS", self.process.pid)
            else:
                self.trials[self.reader] += 1
                self.since = 0.0
                for fault in line["faults"]:
                    self.found(fault, line["where"], f"kept{line['end']}")
                shutil.rmtree(self.folder / f"kept{line['end']}", ignore_errors=True)

    def check(self) -> None:
        """End a child that takes too long or too much."""
        assert self.process is not None
        if not self.since or not self.number:
            return
        used, waited = _cpu_s(self.process.pid) - self.cpu_s, time.monotonic() - self.since
        if used > CPU_S + 1 or waited > WAIT_S:
            self.again(f"hangs: {CPU_S:g} s of the processor or {WAIT_S:g} s")
        elif (now := _memory("VmRSS", self.process.pid)) - self.held > KILLED_AT:
            self.again(f"takes more than {KILLED_AT >> 30} GB")
        elif now > 2 * KILLED_AT:
            self.again(f"has kept more than {2 * KILLED_AT >> 30} GB of many trials")

    def again(self, fault: str, where: str = "") -> None:
        """Go on behind the trial that was lost."""
        self.stop()
        self.found(fault, where, "step-00000001")
        self.since = 0.0
        self.start()

    def found(self, fault: str, where: str, place: str) -> None:
        """Count a finding; the files of the first three of a kind are kept."""
        places = re.findall(r'File "[^"]*/src/(placewright/[^"]+)", line (\d+)', where)
        kind = re.sub(r"0x[0-9a-f]+|\d+|'[^']*'|\"[^\"]*\"", "#", fault)[:60]
        key = (self.reader, f"{kind} {':'.join(places[-1]) if places else ''}")
        self.findings[key] += 1
        if self.findings[key] <= 3:
            target = self.arguments.findings / f"{len(self.findings):04d}-{self.number - 1}"
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(self.folder / place, target, symlinks=True)
            head = f"{self.reader}\n{fault}\n\n"
            (target / "error.txt").write_text(head + where, errors="backslashreplace")


def _cpu_s(pid: int) -> float:
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def fuzz(arguments: argparse.Namespace) -> list[Group]:
    """Run all groups side by side; seconds count from when each has read its right files."""
    arguments.findings.mkdir(parents=True, exist_ok=True)
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=memory) as folder:
        groups = [Group(name, arguments, Path(folder) / name) for name in arguments.groups]
        try:
            for group in groups:
                group.start()
            end = {group.name: float("inf") for group in groups}
            while any(time.monotonic() < end[group.name] for group in groups):
                ready, _, _ = select.select([group.pipe for group in groups], [], [], 0.1)
                for group in groups:
                    if group.pipe in ready:
                        group.hear()
                    group.check()
                    if group.number and end[group.name] == float("inf"):
                        end[group.name] = time.monotonic() + arguments.seconds
        finally:
            for group in groups:
                group.stop()
    return groups


def report(groups: list[Group]) -> int:
    """Print trials and findings by reader; the number of findings."""
    print(f"{'reader':60} {'trials':>8} {'findings':>8}")
    for group in groups:
        for reader, trials in sorted(group.trials.items()):
            own = sum(n for (name, _), n in group.findings.items() if name == reader)
            print(f"{reader:60} {trials:8} {own or '':>8}")
    for group in groups:
        for (reader, kind), number in sorted(group.findings.items()):
            print(f"{number:6} x {reader}: {kind}")
    print(f"{sum(sum(g.trials.values()) for g in groups)} trials")
    return sum(sum(group.findings.values()) for group in groups)


def replay(folders: list[Path]) -> int:
    """Read kept findings again, as trials of this process; how many are still bad."""
    groups: dict[str, Child] = {}
    bad = 0
    with tempfile.TemporaryDirectory(prefix="fuzz-") as place:
        (own := Path(place).resolve() / "cwd").mkdir()
        kept = [folder.resolve() for folder in folders]
        os.chdir(own)
        for number, folder in enumerate(kept):
            name, path = json.loads((folder / "trial.json").read_text())
            path = re.sub(r"^.*/step-00000001(?=/|$)", "{folder}", path, flags=re.S)
            child, reader = _child_of(name, groups, own.parent)
            for right in reader.seeds:  # which warm it up
                child.trial(reader, right, None, lambda line: None, right=True)
            found: dict[str, Any] = {}
            notes = ("error.txt", "trial.json", "loop")
            files = {p.name: p.read_bytes() for p in folder.iterdir() if p.name not in notes}
            began = time.process_time()
            child.trial(reader, files, path, found.update, number=number)
            said = "; ".join([*found["faults"], found["where"]]) or "nothing is wrong"
            print(f"{folder.name} {name}: {time.process_time() - began:.1f} s: {said}", flush=True)
            bad += bool(found["faults"])
    return bad


def _child_of(name: str, groups: dict[str, Child], folder: Path) -> tuple[Child, Reader]:
    """The reader of this name, and a child of its group that runs in this process."""
    for group in (PLAIN, SLOW, TENSORFLOW):
        if group not in groups:
            groups[group] = Child(group, 0, folder)
        for reader in groups[group].readers:
            if reader.name == name:
                return groups[group], reader
    raise SystemExit(f"no reader {name!r}")


def main() -> None:
    """Fuzz, or replay a finding."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--groups", nargs="+", default=[PLAIN, SLOW, TENSORFLOW])
    parser.add_argument("--reader", default="", help="only readers with this in their name")
    parser.add_argument("--findings", type=Path, default=Path("fuzz-findings"))
    parser.add_argument("--replay", type=Path, nargs="+", metavar="FOLDER")
    for own in ("--child", "--first"):
        parser.add_argument(own, type=int, default=-1, help=argparse.SUPPRESS)
    for own in ("--group", "--folder"):
        parser.add_argument(own, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child >= 0:
        child(arguments)
    if arguments.replay:
        raise SystemExit(1 if replay(arguments.replay) else 0)
    raise SystemExit(1 if report(fuzz(arguments)) else 0)


if __name__ == "__main__":
    main()
