"""Task graphs in Graphviz's language: one directed graph without groups.

Read here and not by a library: pydot takes 3 ms for each statement, and four times as long for two
more braces in braces (a minute for 14, which are 40 bytes).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from placewright.errors import InputError, check_known
from placewright.io.arguments import Unlimited, checked
from placewright.io.boundary import errors_in
from placewright.io.stored import stem, stored_text
from placewright.operators.problem import OperatorProblem
from placewright.operators.readers.tasks import tasks

if TYPE_CHECKING:
    from placewright.cluster.cluster import Cluster


@checked
def read_dot(
    path: str | Path, cluster: Cluster | None = None, *, bandwidth_bytes: Unlimited = math.inf
) -> OperatorProblem:
    """Read a directed graph in Graphviz's language.

    Nodes have an attribute for each device, or each kind of device of the cluster: seconds, as in
    ``a [cpu=1.2, gpu=0.1]``. Edges have ``bytes``, by default none. Attributes that draw are
    ignored. Numbers with an exponent need quotes.

    Parameters
    ----------
    cluster
        The devices and their links.
    bandwidth_bytes
        Without a cluster: bytes per second of every link.

    Raises
    ------
    InputError
        No directed graph, groups of nodes, an attribute that is no number, or what `tasks` refuses;
        names the file.
    """
    where = str(path)
    seconds: dict[str, dict[str, float]] = {}
    edges: dict[tuple[str, str], float] = {}
    graph = _Graph(stored_text(path), where)
    for ends, attributes in graph.statements():
        at = f"{where}: {'edge' if len(ends) > 1 else 'node'} {' -> '.join(ends)}"
        found = _numbers(attributes, at)
        if len(ends) == 1:
            seconds.setdefault(ends[0], {}).update(found)
            continue
        found.pop("key", None)  # which tells parallel edges of networkx apart
        for key in found:
            check_known("attribute", key, ("bytes",), where=at)
        for pair in pairwise(ends):
            if graph.strict:  # a pair has one edge: what is said again replaces what was said
                edges[pair] = found.get("bytes", edges.get(pair, 0.0))
            else:
                edges[pair] = edges.get(pair, 0.0) + found.get("bytes", 0.0)  # parallel: one tensor
    if cluster is not None:
        keys = OperatorProblem.builder(cluster).keys
        seconds = {n: {k: v for k, v in row.items() if k in keys} for n, row in seconds.items()}
    bandwidth = None if cluster is not None and bandwidth_bytes == math.inf else bandwidth_bytes
    with errors_in(where):
        return tasks(seconds, edges, cluster=cluster, bandwidth=bandwidth, name=stem(path))


class _Token(NamedTuple):
    """A part of the text.

    `kind`: ``quoted``, ``html``, ``word`` (numbers, too), ``mark``, or ``end`` of the text.
    """

    kind: str
    text: str
    line: int

    @property
    def names(self) -> bool:
        """Whether it is an identifier."""
        return self.kind in ("quoted", "html", "word")

    def is_word(self, *words: str) -> bool:
        """Whether it is one of these keywords, which have no case."""
        return self.kind == "word" and self.text.lower() in words


_SKIPPED = re.compile(r"(?:\s+|//[^\n]*|/\*.*?\*/|(?<![^\n])#[^\n]*)*", re.DOTALL)
_TOKEN = re.compile(
    r'"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<word>[\w.]+|-[.\d][\w.]*)|(?P<mark>->|--|[][{}<;,:=+])',
    re.DOTALL,
)
_NUMERAL = re.compile(r"-?(\.[0-9]+|[0-9]+(\.[0-9]*)?)")


def _tokens(text: str) -> Iterator[_Token]:
    """All of them, then ends; a part that is none is an end, too."""
    at, line = 0, 1
    while True:
        start = _SKIPPED.match(text, at).end()  # type: ignore[union-attr]  # it matches nothing, too
        line += text.count("\n", at, start)
        found = _TOKEN.match(text, start)
        if found is None:
            break
        kind, at = str(found.lastgroup), found.end()
        token = found[kind]
        if token == "<" and kind == "mark":
            kind, at = "html", _end_of_html(text, at)
            token = text[start:at]
        elif kind == "quoted":
            token = token.replace("\\\n", "").replace('\\"', '"')
        yield _Token(kind, token, line)
        line += text.count("\n", start, at)
    rest = text[start : start + 20].partition("\n")[0]
    while True:
        yield _Token("end", rest, line)


def _end_of_html(text: str, at: int) -> int:
    """Where the brackets that opened before `at` are closed; the end where they are not."""
    depth = 1
    for bracket in re.compile("[<>]").finditer(text, at):
        depth += 1 if bracket[0] == "<" else -1
        if not depth:
            return bracket.end()
    return len(text)


class _Graph:
    """A directed graph, statement by statement.

    Raises `InputError`: it is none, or has groups.
    """

    def __init__(self, text: str, where: str) -> None:
        self._where = where
        self._tokens = _tokens(text)
        self._next = next(self._tokens)
        self.strict = self._took(self._next.is_word("strict"))
        self._must(self._next.is_word("digraph"))
        self._took(self._next.names)
        self._must(self._is("{"))

    def statements(self) -> Iterator[tuple[list[str], dict[str, _Token]]]:
        """Nodes and edges: their ends in their order, and their attributes."""
        while not self._took(self._is("}")):
            if self._took(self._is(";", ",")):
                continue
            first = self._next
            ends = [self._end_of_edge()]
            if len(ends) == 1 and self._took(self._is("=")):
                self._must(self._next.names)  # an attribute of the graph
                continue
            while self._took(self._is("->")):
                if self._is("{") or self._next.is_word("subgraph"):
                    hint = "write an edge for each pair of nodes"
                    raise InputError("an edge joins groups of nodes", where=self._where, hint=hint)
                ends.append(self._end_of_edge())
            attributes = self._attributes()
            if first.is_word("node", "edge", "graph"):
                self._refuse_defaults(first.text.lower(), attributes)
            else:
                yield ends, attributes
        self._must(self._next.kind == "end" and not self._next.text)

    def _refuse_defaults(self, kind: str, attributes: dict[str, _Token]) -> None:
        where = f"{self._where}: {kind}"
        for key in _numbers(attributes, where) if kind != "graph" else ():
            hint = f"write {key} at each {kind}"
            raise InputError(f"a default of {key!r} is not read", where=where, hint=hint)

    def _end_of_edge(self) -> str:
        """A node, without the port at which an edge is drawn."""
        name = self._identifier()
        while self._took(self._is(":")):
            self._identifier()
        return name

    def _attributes(self) -> dict[str, _Token]:
        found = {}
        while self._took(self._is("[")):
            while not self._took(self._is("]")):
                key = self._identifier()
                self._must(self._is("="))
                value = self._next
                found[key] = value._replace(text=self._identifier())
                self._took(self._is(";", ","))
        return found

    def _identifier(self) -> str:
        token = self._next
        self._must(token.names and not token.is_word("subgraph"))
        text = token.text
        while token.kind == "quoted" and self._took(self._is("+")):
            text += self._next.text
            self._must(self._next.kind == "quoted")
        return text

    def _is(self, *marks: str) -> bool:
        return self._next.kind == "mark" and self._next.text in marks

    def _took(self, wanted: bool) -> bool:
        """Whether the next part is wanted; then it is taken."""
        if wanted:
            self._next = next(self._tokens)
        return wanted

    def _must(self, wanted: bool) -> None:
        """Take the next part, or refuse the text."""
        if not self._took(wanted):
            line, text = self._next.line, self._next.text
            by = f"line {line}: got {text[:20]!r}" if text else f"line {line} ends it"
            hint = "write one digraph without subgraphs"
            what = "is no directed graph of Graphviz"
            raise InputError(what, where=self._where, by=by, hint=hint)


_DRAWN = re.compile(
    r"(head|tail|edge|label)?(URL|href|target|tooltip)|(head|tail)(clip|label|port|_lp)"
    r"|label(angle|distance|float|fontcolor|fontname|fontsize|loc)?|arrow(head|size|tail)"
    r"|(fill|font)?color|colorscheme|font(name|size)|image(pos|scale)?|same(head|tail)"
    r"|bb|class|comment|constraint|decorate|dir|distortion|fixedsize|gradientangle|group|height"
    r"|id|layer|len|lhead|lp|ltail|margin|minlen|nojustify|ordering|orientation|penwidth"
    r"|peripheries|pos|radius|rects|regular|root|samplepoints|shape|shapefile|showboxes|sides"
    r"|skew|sortv|style|vertices|weight|width|xlabel|xlp"
)
"""Attributes that say how a node or an edge is drawn: Graphviz writes some to each."""


def _numbers(attributes: dict[str, _Token], where: str) -> dict[str, float]:
    """The attributes of a node or an edge that say more than how it is drawn."""
    found = {}
    for key, value in attributes.items():
        if _DRAWN.fullmatch(key):
            continue
        try:
            whole = value.kind == "quoted" or _NUMERAL.fullmatch(value.text)
            found[key] = float(value.text if whole else "")
        except ValueError:
            hint, by = 'an exponent needs quotes, as in bytes="4e6"', f"got {value.text[:40]!r}"
            what = f"{key!r} must be a number"
            raise InputError(what, where=where, by=by, hint=hint) from None
    return found
