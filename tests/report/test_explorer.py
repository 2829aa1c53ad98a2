"""The graph explorer: its data, and what it does in Chromium."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placewright.report.explorer import (
    HEADER,
    MOST_CHILDREN,
    Amount,
    Category,
    ExploredGraph,
    GraphLayout,
    LayoutGraph,
    explorer,
    layout,
    operator_depths,
)
from placewright.report.page import Note, html_page
from tests.report.examples import HOSTILE, in_chromium

LAYERS, EACH = 5, 8
SEPARATORS = "\u2028\u2029"


def explored(name: str = "net") -> ExploredGraph:
    """Layers of a chain on two devices."""
    n = LAYERS * EACH
    modules = tuple(f"{name}.h.{i // EACH}" for i in range(n))
    flow = LayoutGraph(
        tuple(f"{name}{i}" for i in range(n)),
        np.arange(n - 1),
        np.full(n - 1, 1024.0),
        np.arange(n),
        np.arange(1, n),
        np.zeros(n - 1, dtype=np.bool_),
        modules,
    )
    return ExploredGraph(
        name,
        flow,
        [
            Category("device", (f"{name} a", f"{name} b"), np.arange(n) // EACH % 2, devices=True),
            Category("phase", ("forward",), np.zeros(n, dtype=np.int64)),
        ],
        [
            Amount("time", "s", np.arange(1, n + 1) / 1000),
            Amount("starts", "s", np.append(np.arange(n - 1.0), np.inf), sums=False),
        ],
        [Note("kind", [f"{name}.mm" if i % 2 else "add" for i in range(n)])],
    )


def data_of(markup: str) -> dict[str, Any]:
    """The JSON of an explorer."""
    found = re.findall(r'<script type="application/json">(.*?)</script>', markup, re.DOTALL)
    assert len(found) == 1
    data: dict[str, Any] = json.loads(found[0])
    return data


def test_data_are_arrays_of_one_length() -> None:
    """An entry per operator; a box has its place besides."""
    data, n = data_of(explorer(explored())), LAYERS * EACH
    assert len(data["names"]) == n
    assert {len(c["of"]) for k in ("categories", "amounts", "facts") for c in data[k]} == {n}
    assert len(data["x"]) == len(data["y"]) == len(data["parent"]) == n + len(data["boxes"])
    assert len(data["width"]) == len(data["height"]) == len(data["boxes"])
    assert {len(ends) for ends in data["edges"]} == {n - 1}
    assert data["amounts"][1]["of"][-1] is None


@pytest.mark.parametrize("name", [HOSTILE, f"a{SEPARATORS}b", "<!--<script>", "\ud800"])
def test_hostile_names_stay_names(name: str) -> None:
    """They neither end the script element nor begin another, and come back as they were."""
    markup = explorer(explored(name))
    written = markup.partition('<script type="application/json">')[2].partition("</script>")[0]
    assert not re.search(f"[<>&{SEPARATORS}]", written)
    assert data_of(markup)["names"][0] == f"{name}0"
    assert markup.isascii() or name not in written


def test_the_same_graph_gives_the_same_page() -> None:
    """To the last byte; and nothing asks the network or is an event handler."""
    page = html_page("a", explorer(explored()))
    assert page == html_page("a", explorer(explored()))
    assert not re.search(r"(src|href)\s*=|https?://|fetch\(|\son[a-z]+=", page)


def test_only_pages_with_an_explorer_have_its_script() -> None:
    """Others stay small."""
    assert len(html_page("a", "b")) + 10_000 < len(html_page("a", explorer(explored())))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The explorer in Chromium; fails where its script does."""
    file: Path = tmp_path_factory.mktemp("page") / "page.html"
    file.write_text(html_page("graph", explorer(explored())), encoding="utf-8")
    with in_chromium(file) as opened:
        yield opened


@pytest.fixture
def fresh(page: Any) -> Any:
    """The page as it was opened."""
    page.reload()
    page.wait_for_function("document.querySelector('.seen')?.textContent")
    return page


def about(page: Any) -> str:
    """What is shown of the selection."""
    return str(page.inner_text(".about"))


def test_search_goes_through_the_hits(fresh: Any) -> None:
    """By name, kind or module; / and Enter; the facts are those of the hit."""
    fresh.keyboard.press("/")
    fresh.keyboard.type("net.mm h.1")
    assert fresh.inner_text(".hits") == f"{EACH // 2} of {LAYERS * EACH}"
    for expected in ("net9", "net11"):
        fresh.keyboard.press("Enter")
        assert about(fresh).splitlines()[0] == expected
    for words in ("net b", "12 ms", "net10", "net.mm"):
        assert words in about(fresh)
    fresh.keyboard.press("Escape")
    assert fresh.inner_text(".hits") == ""


def test_closed_modules_have_the_sum_of_their_operators(fresh: Any) -> None:
    """Closed and opened by the choice and by key; what is in view is said."""
    fresh.select_option("[data-choose=modules]", "closed")
    fresh.wait_for_function("document.querySelector('.seen').textContent.startsWith('1 closed')")
    fresh.focus("canvas")
    fresh.keyboard.press("Enter")  # what is in the middle
    assert f"operators\n{LAYERS * EACH}" in about(fresh)
    assert "820 ms" in about(fresh)
    fresh.click("text=Open module")
    fresh.wait_for_function(
        f"document.querySelector('.seen').textContent.startsWith('{LAYERS} closed')"
    )
    fresh.focus("canvas")
    fresh.keyboard.press("c")
    fresh.wait_for_function("document.querySelector('.seen').textContent.startsWith('1 closed')")


def test_colours_have_a_key(fresh: Any) -> None:
    """Categories with how many operators, amounts with a scale; the picture changes."""
    picture = "document.querySelector('canvas').toDataURL()"
    before = fresh.evaluate(picture)
    assert "net a: 24" in fresh.inner_text(".key")
    fresh.select_option("[data-choose=colour]", "time")
    assert "40 ms" in fresh.inner_text(".key")
    fresh.wait_for_timeout(100)
    assert fresh.evaluate(picture) != before


def test_the_table_is_the_text_of_the_drawing(fresh: Any) -> None:
    """All operators, or those that match; its buttons select."""
    fresh.click("summary")
    assert f"{LAYERS * EACH} operators of the graph" in fresh.inner_text("caption")
    fresh.fill("input[type=search]", "net39")
    assert "1 operators that match" in fresh.inner_text("caption")
    fresh.click("td button")
    assert about(fresh).startswith("net39")


def test_keys_move_and_zoom(fresh: Any) -> None:
    """Zoomed in there is less in view; 0 shows everything again."""
    seen = "document.querySelector('.seen').textContent"
    everything = fresh.evaluate(seen)
    fresh.focus("canvas")
    for key in ("+", "+", "+", "+", "+", "+", "ArrowRight"):
        fresh.keyboard.press(key)
    fresh.wait_for_function(f"{seen} !== '{everything}'")
    fresh.keyboard.press("0")
    fresh.wait_for_function(f"{seen} === '{everything}'")


def flow_of(readers: list[list[int]], modules: tuple[str, ...] = ()) -> LayoutGraph:
    """Operator i makes one tensor for `readers[i]`."""
    made = [i for i, r in enumerate(readers) if r]
    return LayoutGraph(
        tuple(f"op{i}" for i in range(len(readers))),
        np.array(made, dtype=np.int64),
        np.ones(len(made)),
        np.cumsum([0, *(len(readers[i]) for i in made)]),
        np.array([r for i in made for r in readers[i]], dtype=np.int64),
        np.zeros(len(made), dtype=np.bool_),
        modules,
    )


def random_flow(n: int, seed: int) -> LayoutGraph:
    """A random graph with nested modules that depend on each other in circles."""
    rng = np.random.default_rng(seed)
    readers = [[j for j in range(i + 1, n) if rng.random() < 3 / n] for i in range(n)]
    modules = tuple(f"a.{rng.integers(3)}.{rng.integers(2)}" for _ in range(n))
    return flow_of(readers, modules)


def longest_path(readers: list[list[int]], i: int) -> int:
    """Operators before `i` on the longest path, by plain recursion."""
    before = [k for k, found in enumerate(readers) if i in found]
    return max((longest_path(readers, k) + 1 for k in before), default=0)


@given(st.integers(1, 9), st.integers(0, 1000))
def test_depth_is_the_longest_path(n: int, seed: int) -> None:
    """Against a slow reference on random graphs."""
    rng = np.random.default_rng(seed)
    readers = [[j for j in range(i + 1, n) if rng.random() < 0.4] for i in range(n)]
    assert operator_depths(flow_of(readers)).tolist() == [
        longest_path(readers, i) for i in range(n)
    ]


def apart(laid: GraphLayout, a: int, b: int) -> bool:
    """Whether two nodes do not overlap."""
    return bool(
        laid.x[a] + laid.width[a] <= laid.x[b]
        or laid.x[b] + laid.width[b] <= laid.x[a]
        or laid.y[a] + laid.height[a] <= laid.y[b]
        or laid.y[b] + laid.height[b] <= laid.y[a]
    )


@given(st.integers(1, 60), st.integers(0, 1000))
def test_nothing_overlaps_and_boxes_hold_what_is_in_them(n: int, seed: int) -> None:
    """Siblings are apart; children are inside, below the title."""
    laid = layout(random_flow(n, seed))
    for box in range(len(laid.boxes)):
        inside, own = np.flatnonzero(laid.parent == box).tolist(), n + box
        assert inside
        assert all(apart(laid, a, b) for a, b in combinations(inside, 2))
        for k in inside:
            assert laid.x[own] <= laid.x[k]
            assert laid.y[own] + HEADER <= laid.y[k]
            assert laid.x[k] + laid.width[k] <= laid.x[own] + laid.width[own]
            assert laid.y[k] + laid.height[k] <= laid.y[own] + laid.height[own]


@pytest.mark.parametrize("n", [1, 40, MOST_CHILDREN + 1, 2000])
def test_every_operator_is_in_one_box_and_boxes_follow_their_parents(n: int) -> None:
    """Up from every operator one comes to the whole graph."""
    laid = layout(flow_of([[i + 1] for i in range(n - 1)] + [[]]))
    assert len(laid.x) == len(laid.parent) == n + len(laid.boxes)
    assert laid.parent[n] == -1
    for box in range(1, len(laid.boxes)):
        assert laid.parent[n + box] < box
    assert max(Counter(laid.parent[:n].tolist()).values()) <= MOST_CHILDREN


def test_the_same_graph_gives_the_same_layout() -> None:
    """To the last coordinate."""
    first, second = layout(random_flow(80, 3)), layout(random_flow(80, 3))
    assert first.x.tolist() == second.x.tolist()
    assert first.y.tolist() == second.y.tolist()
    assert first.parent.tolist() == second.parent.tolist()


def test_data_flow_from_left_to_right() -> None:
    """In a short chain each operator stands right of the one before; branches stand together."""
    laid = layout(flow_of([[1, 2], [3], [3], []]))
    assert laid.x[0] < laid.x[1] == laid.x[2] < laid.x[3]
    assert laid.y[1] != laid.y[2]


def test_modules_are_boxes() -> None:
    """Small ones and those that hold nothing but another are none; members of lists have a name."""
    modules = ("net.h.0",) * 4 + ("net.h.1",) * 4 + ("net.h.1.small",) + ("net.out",) * 4
    laid = layout(flow_of([[i + 1] for i in range(12)] + [[]], modules))
    assert laid.boxes == ("", "net", "h", "h.0", "h.1", "out")
    nested = layout(flow_of([[]] * 9, ("s.0.0",) * 4 + ("s.0.1",) * 4 + ("",)))
    assert nested.boxes == ("", "s.0", "s.0.0", "s.0.1")


def test_layers_that_are_linked_through_others_follow_each_other() -> None:
    """As in a backward pass whose sums of gradients are in no module."""
    modules = tuple(module for k in range(8) for module in (*[f"h.{k}"] * 4, ""))
    laid = layout(flow_of([[i + 1] for i in range(39)] + [[]], modules))
    boxes = [40 + laid.boxes.index(f"h.{k}") for k in range(8)]
    right, below = np.diff(laid.x[boxes]) > 0, np.diff(laid.y[boxes]) > 0
    assert (right | below).all()
    assert right.any()
