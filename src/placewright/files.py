"""Read and write files: ours are known by their keys, published formats by the name before them."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from contextlib import suppress
from inspect import signature
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from yaml import safe_dump

from placewright.cluster.cluster import Cluster
from placewright.cluster.files import load_cluster, read_cluster, write_cluster
from placewright.cluster.schema import ClusterFile
from placewright.errors import InputError, UnsupportedError, check_known
from placewright.graph.files import GraphFile, read_graph, write_graph
from placewright.graph.graph import Graph
from placewright.io.arguments import checked, described_value
from placewright.io.boundary import parse_json, parse_yaml
from placewright.io.stored import is_yaml, stored_text
from placewright.io.units import BYTES, SECONDS, parse
from placewright.planning.result import Result
from placewright.planning.wing import Document, Files, Format
from placewright.planning.wings import families, wing_of

LARGE = 1_000_000
"""Characters from which a file is searched for keys before it is parsed, which takes ten times as
long as reading it."""

READ_BYTES, READ_YAML_BYTES = 16 << 20, 256 << 10
"""Larger files of others are not looked at; to read YAML takes 8 s a megabyte."""

MOST_PARTS = 1 << 20
"""Of lists and mappings in JSON that is looked at: they take up to 200 bytes each, and `[]` two."""


@checked
def read(source: str | Path | Mapping[str, Any], *, problem: Any = None, **options: Any) -> Any:
    """Read a file of any kind: a cluster, a graph, a problem, a plan, or a published format.

    Of a folder every file is read, also as ``dag:FOLDER``: a dict by name.

    Parameters
    ----------
    source
        A file of ours, JSON or YAML, also packed by gzip; or a published format and its file, as
        in ``dag:FILE.json``: `formats` lists them.
    problem
        What the plan in the file is for.
    options
        Of the format's reader, such as ``cluster=`` for ``pipedream:``. They may also follow the
        file's name: ``msr:FILE.json?cost_scale=1000``.

    Returns
    -------
    A `Cluster`, a `Graph`, a problem or a plan of any wing.

    Raises
    ------
    InputError
        There is no such file or format, or what is in it is wrong; names file and field.
    """
    if problem is not None:
        wing_of(problem)  # before anything is read
    if isinstance(source, Mapping):
        for key in options:
            check_known("option", key, (), where="source")
        return _of_data(dict(source))
    form, path, query = _parts(source)
    if path.is_dir():
        before, ending = f"{form}:" if form else "", f"?{query}" if query else ""
        return {
            file.name: read(f"{before}{file}{ending}", problem=problem, **options)
            for file in sorted(path.iterdir())
            if file.is_file() and not file.name.startswith((".", "README"))
        }
    if form:
        return _published(str(source), form, path, query, options)
    where = str(source)
    kind = kind_of(read_document(path), where=where)
    if kind in _OF_NO_WING:
        return _called(_OF_NO_WING[kind], path, options, where)
    files = next(each for each in _files() if kind in _kinds(each))
    if kind == files.problem_document.kind:
        return _called(files.read_problem, path, options, where)
    if problem is None:
        hint = f"read({where!r}, problem=...)"
        raise InputError("is a plan, and needs the problem it is for", where=where, hint=hint)
    if _kinds(wing_of(problem).files()) != _kinds(files):
        raise InputError(
            "is a plan for another kind of problem",
            where=where,
            by=f"{kind!r}, and problem is {described_value(problem)}",
            hint="give the problem that it was made for",
        )
    return files.read_proposal(path, problem).plan


def read_file(source: str | Path, **options: Any) -> Any:
    """What `read` finds in one file; `InputError` where a folder is named."""
    if _parts(source)[1].is_dir():
        hint = "give a file in it; `placewright bench` takes folders"
        raise InputError("is a folder", where=str(source), hint=hint)
    return read(source, **options)


def _parts(source: str | Path) -> tuple[str, Path, str]:
    """Format, path and query of ``FORMAT:PATH?QUERY``; no format for the path of our own file."""
    form, colon, rest = str(source).partition(":")
    path, _, query = rest.partition("?")
    if not colon or Path(source).exists():
        form, path, query = "", str(source), ""
    if not path:
        raise InputError("names no file", where=repr(str(source)), hint="give a path")
    return form, Path(path), query


@checked
def write(value: Any, path: str | Path) -> Path:
    """Write a cluster, a graph, a problem, or a result with its plan; `read` reads it back equal.

    By the name of the file it is JSON (``.json``) or YAML (``.yaml``), packed if it ends in
    ``.gz``.

    Raises
    ------
    UnsupportedError
        It is none of these. Plans alone are not written: `Result.save` writes one with its value.
    """
    if isinstance(value, Cluster):
        return write_cluster(value, path)
    if isinstance(value, Graph):
        return write_graph(value, path)
    if isinstance(value, Result):
        return value.save(path)
    for _, wing in families():
        if isinstance(value, wing.problem_type()):
            return wing.files().write_problem(value, path)
    raise UnsupportedError(
        "there is no file of this kind",
        where="value",
        by=f"got {described_value(value)}",
        hint="give a Cluster, a Graph, a problem or a Result",
    )


def formats() -> dict[str, Format]:
    """Every published format by its name."""
    found = [form for files in _files() for form in getattr(files, "formats", ())]
    return {form.name: form for form in found}


_OF_NO_WING: Mapping[str, Any] = {"cluster": read_cluster, "graph": read_graph}


def _of_data(data: dict[str, Any]) -> Any:
    """The cluster or the problem that a file with these data would hold."""
    kind = kind_of(data, where="source")
    for files in _files():
        if kind == files.problem_document.kind:
            return files.problem_from(data, where="source", name=str(data.get("name", kind)))
    if kind == "cluster":
        return Cluster.from_text(safe_dump(data), where="source")
    hint = "write it to a file"
    raise UnsupportedError(f"a {kind} is read from a file", where="source", hint=hint)


def _files() -> list[Files]:
    return [wing.files() for _, wing in families()]


def _kinds(files: Files) -> tuple[str, str]:
    return files.plan_document.kind, files.problem_document.kind


def _published(source: str, name: str, path: Path, query: str, options: Mapping[str, Any]) -> Any:
    """The problem of a file whose format is named."""
    known = formats()
    check_known("format", name, known, where=source)
    return _called(known[name].read, path, {**query_options(known[name], query), **options}, source)


def _called(reader: Any, path: str | Path, options: Mapping[str, Any], where: str) -> Any:
    known = [each for each in signature(reader).parameters if each != "path"]
    for key in options:
        check_known("option", key, known, where=where)
    cluster = options.get("cluster")
    given = {"cluster": load_cluster(cluster)} if isinstance(cluster, str) else {}
    missing = [key for key in ("cluster", "scenario") if key in known and key not in options]
    needed = [key for key in missing if _is_needed(reader, key)]
    if needed:
        hint = f"read({where!r}, {needed[0]}=...)"
        raise InputError(f"needs a {needed[0]}", where=where, hint=hint)
    return reader(path, **{**options, **given})


def _is_needed(reader: Any, option: str) -> bool:
    parameter = signature(reader).parameters[option]
    return parameter.default is parameter.empty


def query_options(form: Format, query: str) -> dict[str, Any]:
    """The options of ``cost_scale=1000&memory=16GiB``: their units may be left out of their names.

    Raises `UnknownNameError`: the format's reader has no such option.
    Raises `InputError`: no number of this unit.
    """
    where = f"{form.name}:...?{query}"
    known = {each.split("_bytes")[0]: each for each in list(signature(form.read).parameters)[1:]}
    found: dict[str, Any] = {}
    for key, value in parse_qsl(query, keep_blank_values=True):
        check_known("option", key, known, where=where)
        if known[key] in found:
            raise InputError(f"{key} is given twice", where=where, hint="keep one of them")
        found[known[key]] = _parsed(known[key], value)
    return found


def _parsed(option: str, value: str) -> Any:
    """Bytes, seconds, a number, or the text itself."""
    for ending, quantity in (("_bytes", BYTES), ("_s", SECONDS)):
        if option.endswith(ending):
            return parse(value, quantity)
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value


def documents() -> dict[str, Document]:
    """Every kind of file, those of the wings first: they have keys that others have too.

    Of two kinds that a file has the keys of, the one with more keys comes first.
    """
    found = [x for files in _files() for x in (files.plan_document, files.problem_document)]
    found.append(Document("cluster", ("devices",), ClusterFile))
    found.append(Document("graph", ("operators",), GraphFile))
    found.sort(key=lambda document: -len(document.keys))
    return {document.kind: document for document in found}


def read_document(path: Path) -> dict[str, Any]:
    """A JSON or YAML file whose top is a mapping."""
    yaml, text = is_yaml(path), stored_text(path)
    if not yaml and len(text) >= LARGE:
        _refuse_early(text, str(path))
    data = (parse_yaml if yaml else parse_json)(text, where=str(path))
    if not isinstance(data, dict):
        raise _unknown(str(path), f"its top is a {type(data).__name__}")
    return data


def document_kind(path: Path) -> str:
    """The kind of a file, by its keys.

    Raises
    ------
    InputError
        It is of no kind.
    """
    return kind_of(read_document(path), where=str(path))


def kind_of(data: dict[str, Any], *, where: str) -> str:
    """The kind of a document, by its keys."""
    for name, document in documents().items():
        if document.matches(data):
            return name
    raise _unknown(where, f"its keys: {', '.join(list(data)[:8]) or 'none'}")


def kind_if_small(path: Path, name: str) -> str:
    """The kind of a file that anybody may have sent; empty where it has none, or is very large.

    `name`: what it is called, by which it is JSON or YAML.
    """
    parse, most = (parse_yaml, READ_YAML_BYTES) if is_yaml(name) else (parse_json, READ_BYTES)
    if not name.endswith((".json", ".yaml", ".yml")) or path.stat().st_size > most:
        return ""
    with suppress(InputError, UnicodeDecodeError), _looking:
        text = path.read_text(encoding="utf-8")
        if text.count("[") + text.count("{") > MOST_PARTS:
            return ""
        data = parse(text, where=name)
        return kind_of(data, where=name) if isinstance(data, dict) else ""
    return ""


_looking = threading.Lock()
"""One file at a time: what becomes of sixteen megabytes takes ten times as much memory."""


def _refuse_early(text: str, where: str) -> None:
    """Refuse JSON that is no mapping, or that has the keys of no document anywhere."""
    if re.match(r"\s*\[", text):
        raise _unknown(where, "its top is a list")
    needed = [
        {part for key in document.keys for part in key.split(".")}
        for document in documents().values()
    ]
    every = sorted(set().union(*needed))
    there = {key for key in every if f'"{key}"' in text}
    if "\\u" not in text and not any(keys <= there for keys in needed):
        raise _unknown(where, f"it lacks the keys {', '.join(every)}")


def _unknown(where: str, by: str) -> InputError:
    return InputError(
        "is none of Placewright's documents",
        where=where,
        by=by,
        hint="see `placewright schema`; published formats need their name, as in dag:FILE.json",
    )
