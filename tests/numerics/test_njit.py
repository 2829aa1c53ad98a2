"""Specialisations that numba compiles, calls resolved before, stale caches, Ctrl-C meanwhile."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import llvmlite.binding
import numba
import numpy as np
import pytest
from llvmlite.binding import ffi
from numba.core import caching, config, types
from numba.core.compiler_lock import global_compiler_lock

from placewright.numerics import njit
from placewright.numerics.njit import njit_internal, njit_no_refcount


@njit_internal
def double(x: int) -> int:
    """Called with numbers that stand in the code."""
    return 2 * x


@njit_no_refcount
def sums(x: int) -> int:
    """Calls `double` in three ways."""
    return double(3) + double(4) + double(x)


def test_numbers_in_a_call_are_of_one_type() -> None:
    """Neither 3 nor 4 has a compiled function of its own."""
    plain, caller = cast("Any", double), cast("Any", sums)
    assert sums(5) == 24
    caller.recompile()  # what a former run left on the disk would compile nothing
    assert len(plain.overloads) == 1


PARTS = """
from placewright.numerics.njit import njit_cached, njit_internal

@njit_internal
def inner(values, k):
    if k < 0:
        raise ValueError("negative")
    return values[k] * 0.1

@njit_internal
def outer(values, k):
    total = 0.0
    for i in range(k):
        total += inner(values, i)
    return total + inner(values, k)

@njit_cached
def one(values, k):
    return outer(values, k)
"""

SECOND = """
import numpy as np
from parts import inner, njit_cached, one, outer

@njit_cached
def two(values, k):
    return outer(values, k) + inner(values, 0)

values = np.arange(7.0)
expected = [0.0]
for i in range(1, 7):
    expected.append(expected[-1] + values[i] * 0.1)
"""

CHECKS = """
assert [FUNCTION(values, k) for k in range(7)] == expected
try:
    FUNCTION(values, -1)
except ValueError as error:
    assert str(error) == "negative"
else:
    raise AssertionError
for each in (inner, outer):
    for compiled in each.overloads.values():
        kind = compiled.library.serialize_using_object_code()[1]
        assert kind == "bitcode", kind
print(len(inner.stats.cache_hits), len(FUNCTION.stats.cache_hits))
"""


def test_what_is_only_linked_is_right_here_and_from_a_cache(tmp_path: Path) -> None:
    """One caller is compiled with it, loaded, and another one compiled with what was kept."""
    (tmp_path / "parts.py").write_text(PARTS)
    (tmp_path / "second.py").write_text(SECOND)
    for function, hits in (("one", "0 0"), ("one", "0 1"), ("two", "1 0"), ("two", "0 1")):
        program = "from second import *\n" + CHECKS.replace("FUNCTION", function)
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.stderr == ""
        assert done.stdout.strip() == hits


MODULE = """from typing import NamedTuple
from placewright.numerics.njit import njit_cached
class {name}(NamedTuple):
    x: int
@njit_cached
def more(a):
    return a.x + {add}
print(more({name}(1)))
"""


def test_a_cache_of_types_that_are_gone_counts_as_empty(tmp_path: Path) -> None:
    """A type of a cached function is renamed: the function is compiled again."""
    for name, add in (("Before", 1), ("After", 2)):
        (tmp_path / "kernel.py").write_text(MODULE.format(name=name, add=add))
        command = [sys.executable, "-c", "import kernel"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert done.stdout == f"{1 + add}\n"
    assert list((tmp_path / "__pycache__").glob("*.nbi"))


def test_processes_that_need_a_function_at_once_compile_it_once(tmp_path: Path) -> None:
    """The other one waits for it, and loads it."""
    program = MODULE.format(name="Both", add=1).replace("a.x", "a").replace("Both(1)", "1")
    (tmp_path / "kernel.py").write_text(program + "print(len(more.stats.cache_misses))\n")
    command = [sys.executable, str(tmp_path / "kernel.py")]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    misses = [process.communicate(timeout=120)[0].split()[-1] for process in both]
    assert sorted(misses) == ["0", "1"]


def test_an_edit_of_what_a_compiled_file_imports_empties_its_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Constants of imported files count, and files that imported kernels import."""
    monkeypatch.setattr(njit, "_PACKAGE", tmp_path)
    digest = njit._digest.__wrapped__
    source = tmp_path / "a.py"
    source.write_text("from placewright.b import kernel\n")
    (tmp_path / "b.py").write_text("from placewright.c import ONE\nnjit\n")
    (tmp_path / "c.py").write_text("ONE = 1\nfrom placewright.d import TWO\n")
    (tmp_path / "d.py").write_text("TWO = 2\n")
    before = digest(source)
    (tmp_path / "d.py").write_text("TWO = 3\n")
    assert digest(source) == before
    (tmp_path / "c.py").write_text("ONE = 2\n")
    assert digest(source) != before


@contextmanager
def pressed_at_release(times: int = 1) -> Iterator[None]:
    """Press Ctrl-C so often while llvmlite releases its lock for the first time."""
    left = [signal.SIGINT] * times

    def release() -> None:
        while left:
            signal.raise_signal(left.pop())

    callbacks = list, release
    ffi.lib._lock.register(*callbacks)
    try:
        yield
    finally:
        ffi.lib._lock.unregister(*callbacks)


def free_for_others() -> bool:
    """Whether another thread can take the locks of llvmlite and of Numba."""
    found: list[bool] = []

    def take() -> None:
        for lock in (ffi.lib._lock._lock, global_compiler_lock._lock):
            found.append(lock.acquire(timeout=1.0))
            if found[-1]:
                lock.release()

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    return all(found)


def test_ctrl_c_while_compiling_leaves_no_lock_taken() -> None:
    """It is raised once the function is compiled, and the function is whole."""
    double = numba.njit(lambda x: 2 * x)
    with pressed_at_release(), pytest.raises(KeyboardInterrupt):
        double(21)
    assert free_for_others()
    assert double(21) == 42
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_two_ctrl_c_while_compiling_interrupt_twice() -> None:
    """The second one comes a moment later: whoever goes on after the first one ends by it."""
    with pytest.raises(KeyboardInterrupt), pressed_at_release(2):
        numba.njit(lambda x: 3 * x)(7)
    with pytest.raises(KeyboardInterrupt):
        time.sleep(60)
    assert free_for_others()


def test_ctrl_c_while_code_is_freed_is_not_lost() -> None:
    """Not raised in a garbage collection, which would print and forget it, but right after it."""
    cycle: list[Any] = [llvmlite.binding.parse_assembly("")]
    cycle.append(cycle)
    del cycle
    with pressed_at_release():
        gc.collect()
    with pytest.raises(KeyboardInterrupt):
        time.sleep(60)
    assert free_for_others()


AS_IT_ENDS = """
import atexit, sys
before = sys.unraisablehook
atexit.register(lambda: print(sys.unraisablehook is before))  # the last one
from placewright.numerics import njit
assert sys.unraisablehook is not before
"""


def test_errors_that_cannot_be_raised_are_python_s_again_as_it_ends() -> None:
    """What would read names of modules, which may be gone by then, is no longer called."""
    command = [sys.executable, "-c", AS_IT_ENDS]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("True\n", "")


LOST_IN_A_COLLECTION = """
import gc, signal, sys, time, weakref
from placewright.errors import Terminated
from placewright.numerics import njit

class Held:
    pass

def begin():
    njit._signals_wait.begin = usual
    # After the collection has begun, and before it is held back.
    signal.raise_signal(getattr(signal, sys.argv[1]))

def terminate(number, frame):
    signal.signal(number, signal.SIG_IGN)
    raise Terminated(143)

def unheard(*to):
    signal.pthread_kill = kill

kill = signal.pthread_kill
if "unheard" in sys.argv:
    signal.pthread_kill = unheard
signal.signal(signal.SIGTERM, terminate)
if "callback" in sys.argv:
    held = Held()
    reference = weakref.ref(held, lambda _: signal.raise_signal(getattr(signal, sys.argv[1])))
    del held
else:
    usual, njit._signals_wait.begin = njit._signals_wait.begin, begin
    gc.collect()
try:
    time.sleep(60)
except KeyboardInterrupt:
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    print("interrupted")
"""


@pytest.mark.parametrize("sent", ["heard", "unheard", "callback"])
@pytest.mark.parametrize(
    ("name", "code", "printed"), [("SIGINT", 0, "interrupted\n"), ("SIGTERM", 143, "")]
)
def test_a_signal_as_a_collection_begins_or_in_a_callback_is_not_lost(
    name: str, code: int, printed: str, sent: str
) -> None:
    """Python ignores what a callback of its collector, or of a reference, raises, and prints it.

    It is sent again, until it is heard: not in the moment before a call that blocks.
    """
    command = [sys.executable, "-c", LOST_IN_A_COLLECTION, name, sent]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (code, printed, "")


def test_a_handler_of_the_caller_is_called_after_compiling() -> None:
    """Whatever is in force for a signal, also one that replaces it meanwhile, is not replaced."""
    seen: list[bool] = []
    before = signal.signal(signal.SIGTERM, lambda *_: seen.append(free_for_others()))
    try:
        own = signal.getsignal(signal.SIGTERM)
        with cast("Any", global_compiler_lock):
            signal.raise_signal(signal.SIGTERM)
            assert not seen
        assert seen == [True]
        assert signal.getsignal(signal.SIGTERM) is own
    finally:
        signal.signal(signal.SIGTERM, before)


def test_functions_are_compiled_where_no_cache_can_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a home, and in an installation of another user; once it is said."""
    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [])
    njit._warn_of_no_cache.cache_clear()
    with pytest.warns(njit.NoCacheWarning, match="NUMBA_CACHE_DIR") as said:
        made = [njit.njit_no_refcount(lambda x: 2 * x), njit.njit_internal(lambda x: 3 * x)]
    assert len(said) == 1
    assert made[0](21) == 42


@pytest.mark.parametrize(
    ("caches", "mode"), [("{}", 0o700), ("{}", 0o1777), ("~none/.cache", 0), ("", 0)]
)
def test_no_cache_is_read_that_another_user_may_have_written(
    caches: str, mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where all may write; in ``./~`` for a user without a home. What is there is unpickled."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(config, "CACHE_DIR", "")
    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [caching.UserWideCacheLocator])
    monkeypatch.setenv("XDG_CACHE_HOME", caches.format(tmp_path / "home"))
    sub = caching.UserWideCacheLocator.get_suitable_cache_subpath(__file__)
    if mode:
        (theirs := tmp_path / "home" / "numba" / sub).mkdir(parents=True)
        theirs.chmod(mode)
    before = [*tmp_path.rglob("*")]
    njit._open_to_others.cache_clear()
    njit._warn_of_no_cache.cache_clear()
    if mode != 0o700:
        with pytest.warns(njit.NoCacheWarning, match="by this user alone"):
            made: Any = njit.njit_no_refcount(lambda x: 5 * x)
        assert made._cache.cache_path is None
    else:
        made = njit.njit_no_refcount(lambda x: 5 * x)
        assert made._cache.cache_path == str(theirs)
    assert made(3) == 15
    assert mode == 0o700 or [*tmp_path.rglob("*")] == before


SETTINGS = """
from numba.core import config
import placewright.numerics.njit
config.reload_config()  # as before each compilation
print(config.CACHE_DIR)
"""


def test_settings_in_the_current_folder_are_not_read(tmp_path: Path) -> None:
    """Whoever may write there could name a folder of pickles, which Numba would load."""
    (tmp_path / ".numba_config.yaml").write_text("cache_dir: /theirs\n")
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    env.pop("NUMBA_CACHE_DIR", None)
    command = [sys.executable, "-P", "-c", SETTINGS]
    assert subprocess.check_output(command, cwd=tmp_path, env=env, text=True) == "\n"


def _kernel(values: Any, rows: Any, counts: Any, at: int, by: float) -> Any:
    total = values[at] * by + max(counts[0], at) - rows[at].x
    for k in range(len(counts)):
        total += values[k, ...] if counts[k] > 2 and k != at else np.sqrt(by + counts[k])
        counts[k] = min(counts[k] + 1, 7) // 2
        rows[k].x = total
    return total


def _compiled(**options: bool) -> tuple[Any, list[str], list[Any]]:
    """What is returned, the types of all calls, and what arrays hold after two calls."""
    rows = np.zeros(4, dtype=[("x", "f8"), ("n", "u4")])
    arguments = [np.arange(4.0), rows, np.arange(1, 5), 2, 0.5]
    dispatcher: Any = numba.njit(**options)(_kernel)
    with njit.remembered_call_types():
        results = [dispatcher(*arguments) for _ in range(2)]
    (overload,) = dispatcher.overloads.values()
    calls = [str(call) for call in overload.type_annotation.calltypes.values()]
    return results, calls, [x.tolist() for x in arguments[:3]]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "options", [{}, {"nogil": True}, {"error_model": "numpy"}, {"_nrt": False}]
)
def test_functions_are_typed_and_computed_as_by_numba_alone(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for other flags than those which the calls were resolved for before."""
    _compiled()
    remembered = _compiled(**options), _compiled(**options)
    monkeypatch.setattr(njit, "_get_call_type", njit.resolve_call)
    alone = _compiled(**options)
    assert remembered == (alone, alone)


def test_functions_of_users_ask_numba_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """They may add implementations between two kernels."""
    _compiled()
    asked: list[Any] = []
    resolve = njit.resolve_call
    monkeypatch.setattr(njit, "resolve_call", lambda *of: asked.append(of) or resolve(*of))  # type: ignore[func-returns-value]
    numba.njit(lambda values: values[0] + values[1])(np.arange(3.0))
    assert asked


def test_a_call_is_resolved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second function asks Numba for none of the first one's calls, but those with tuples."""
    _compiled()
    asked: list[Any] = []
    resolve = njit.resolve_call

    def counted(self: Any, context: Any, args: Any, kws: Any) -> Any:
        asked.append(args)
        return resolve(self, context, args, kws)

    monkeypatch.setattr(njit, "resolve_call", counted)
    _compiled()
    assert not [x for x in asked if not any(isinstance(y, types.BaseTuple) for y in x)]
