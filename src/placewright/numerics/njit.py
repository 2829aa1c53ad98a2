"""Numba decorators: nopython mode, cached on disk.

Five decorators, named after what they change of `numba.njit`. Hot functions that hand arrays to
each other should be `njit_no_refcount` or `njit_inline`: otherwise counting references to every
array at every call takes most of the time.
Numba's cache looks at a function's own file only. Here it looks at what that file imports, too: a
function that calls another, or reads a constant of another file, holds a copy of it.
Processes that need the same function at once compile it once: the others wait, and load it.
Functions that only compiled functions call have no machine code (`_Library`).
Importing this also makes signals wait while code is compiled or freed (`_SignalsWait`), and
garbage: a collection that meets nothing but the compiler's own objects takes a tenth of its time.
"""

from __future__ import annotations

import atexit
import gc
import os
import re
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fcntl import LOCK_EX, LOCK_NB, LOCK_UN, lockf
from functools import cache
from hashlib import sha256
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar, cast
from zlib import crc32

import numpy as np
from llvmlite.binding import ffi, parse_bitcode  # type: ignore[import-untyped]
from numba import njit
from numba.core import config, event, types
from numba.core.codegen import JITCodeLibrary, JITCPUCodegen
from numba.core.compiler_lock import global_compiler_lock
from numba.core.targetconfig import ConfigStack
from numba.core.types.functions import BaseFunction

from placewright.errors import Terminated
from placewright.numerics.clocks import CompileClock
from placewright.numerics.collector import collector_paused
from placewright.ownership import open_to_others

F = TypeVar("F", bound=Callable[..., Any])

_PACKAGE = Path(__file__).parents[1]
_IMPORTED = re.compile(rb"^from placewright\.([\w.]+) import", re.MULTILINE)


def _read_no_file_of_the_current_folder() -> None:
    """Take Numba's settings from the environment alone.

    It reads ``.numba_config.yaml`` of the current folder at its import and before each
    compilation, and unpickles what is in the folder that ``cache_dir`` there names: whoever may
    write to the current folder would have his code executed.
    """
    settings: Any = config
    settings._config_fname = ""
    settings._env_reloader.update(force=True)


_read_no_file_of_the_current_folder()


def _compile(**options: Any) -> Callable[[F], F]:
    """`njit`, which would compile a function again for every number written in a call to it."""

    def compile_plain(function: F) -> F:
        dispatcher = _dispatcher(function, options)
        if dispatcher is function:  # NUMBA_DISABLE_JIT=1, for a debugger
            return function
        _ignore_stale_cache(dispatcher, function.__code__.co_filename)
        _compile_in_one_process(dispatcher)
        template, plain = dispatcher.get_call_template, cast(Any, types).unliteral
        dispatcher.get_call_template = lambda args, kws: template(
            tuple(plain(x) for x in args), {name: plain(x) for name, x in kws.items()}
        )
        return dispatcher  # type: ignore[no-any-return]

    return compile_plain


def _dispatcher(function: Callable[..., Any], options: dict[str, Any]) -> Any:
    """`njit`, without a cache where there is no place for one that is this user's alone.

    What is in a cache is unpickled. The current folder is no place either: Numba would keep a
    cache in a folder ``~`` there where the user has no home.
    """
    caches = os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache"))
    if cast(Any, config).CACHE_DIR or os.path.isabs(caches):
        try:
            made = njit(**options)(function)
        except RuntimeError as error:
            if "no locator available" not in str(error):
                raise
        else:
            if made is function or not _why_no_cache(made):
                return made
    _warn_of_no_cache()
    return njit(**options | {"cache": False})(function)


def _why_no_cache(dispatcher: Any) -> str:
    """Why another user may have written what is in the cache of a function; empty: none may."""
    folder = getattr(dispatcher._cache, "cache_path", None)
    beside = os.path.join(os.path.dirname(dispatcher.py_func.__code__.co_filename), "__pycache__")
    return "" if folder in (None, beside) else _open_to_others(folder)


_open_to_others = cache(open_to_others)


class NoCacheWarning(UserWarning):
    """Compiled functions cannot be kept."""


@cache
def _warn_of_no_cache() -> None:
    warnings.warn(
        "compiled functions cannot be kept: neither Placewright's own folder nor this user's cache "
        "(~/.cache, or NUMBA_CACHE_DIR) can be written to by this user alone, so every command "
        "compiles for minutes; let NUMBA_CACHE_DIR name a folder of this user",
        NoCacheWarning,
        stacklevel=2,
    )


def _ignore_stale_cache(dispatcher: Any, source: str) -> None:
    """Treat a cache as empty after an edit of its source or of what that imports.

    Also one that names types which an edit has renamed or moved: Numba unpickles a cache's index
    before it compares the source, and would raise.
    """
    file = getattr(dispatcher._cache, "_cache_file", None)
    if file is None:
        return
    file._source_stamp = (file._source_stamp, _digest(Path(source)))
    load_index = file._load_index

    def load() -> Any:
        try:
            return load_index()
        except (AttributeError, ImportError):
            return {}

    file._load_index = load


def _compile_in_one_process(dispatcher: Any) -> None:
    """Let a process wait for another one that compiles the same function, and load what it made.

    Numba would compile it in both. Two that save a function for other types at once may even
    exchange their files.
    """
    file = getattr(dispatcher._cache, "_cache_file", None)
    if file is None:
        return
    compile_now, key = dispatcher.compile, crc32(dispatcher.py_func.__qualname__.encode()) >> 1

    def compile_or_wait(signature: Any) -> Any:
        known = signature if isinstance(signature, tuple) else ()
        lock = None if known in dispatcher.overloads else _lock_file(file._cache_path)
        if lock is None:
            return compile_now(signature)
        try:
            _lock(lock, key, dispatcher)
            with collector_paused(), remembered_call_types():
                return compile_now(signature)
        finally:
            with suppress(OSError):
                lockf(lock, LOCK_UN, 1, key)

    dispatcher.compile = compile_or_wait


class _TellsClocks(event.Listener):
    """Tells the clocks that run what Numba compiles."""

    def on_start(self, event: Any) -> None:
        """Numba starts to compile a function."""
        for clock in tuple(CompileClock.running):
            clock.start()

    def on_end(self, event: Any) -> None:
        """Numba has compiled it."""
        for clock in tuple(CompileClock.running):
            clock.stop()


event.register("numba:compile", _TellsClocks())  # type: ignore[no-untyped-call]


def _lock(file: int, key: int, dispatcher: Any) -> None:
    """Lock one byte of a file; waiting counts as compiling."""
    try:
        lockf(file, LOCK_EX | LOCK_NB, 1, key)
    except BlockingIOError:
        waiting = {"dispatcher": dispatcher, "args": (), "return_type": None}
        with event.trigger_event("numba:compile", data=waiting), suppress(OSError):
            lockf(file, LOCK_EX, 1, key)
    except OSError:
        pass  # a file system without locks


@cache
def _lock_file(folder: str) -> int | None:
    """A file beside compiled functions whose bytes are locked, ``None`` where it cannot be.

    It stays open: closing it would give up all locks of this process.
    """
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        return os.open(
            Path(folder, "compiling.lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600
        )
    except OSError:
        return None


@cache
def _digest(source: Path) -> bytes:
    """SHA-256 of a file with compiled functions, of all that it imports, and so on from those."""
    found, left = {source: source.read_bytes()}, [source]
    while left:
        for name in _IMPORTED.findall(found[left.pop()]):
            path = _PACKAGE / (name.decode().replace(".", "/") + ".py")
            if path in found or not path.is_file():
                continue
            found[path] = path.read_bytes()
            # Others may hand over constants, but no compiled code.
            if b"njit" in found[path]:
                left.append(path)
    return sha256(b"".join(found[path] for path in sorted(found))).digest()


def njit_cached(function: F) -> F:
    """Compile a function that may allocate arrays; the machine code is cached on disk.

    Here and below without a wrapper for C, which nobody calls.
    """
    result: F = _compile(cache=True, no_cfunc_wrapper=True)(function)
    return result


def njit_nogil(function: F) -> F:
    """As `njit_cached`; releases the GIL, so that other threads run meanwhile."""
    result: F = _compile(cache=True, nogil=True, no_cfunc_wrapper=True)(function)
    return result


def njit_no_refcount(function: F) -> F:
    """Compile a function that allocates no array: without Numba's runtime and reference counts."""
    result: F = _compile(cache=True, _nrt=False, no_cfunc_wrapper=True)(function)
    return result


def njit_internal(function: F) -> F:
    """As `njit_no_refcount`, for functions that only compiled functions call.

    Without a wrapper for Python, too, there is about half as much to compile.
    """
    _linked.add(function.__qualname__)
    result: F = _compile(cache=True, _nrt=False, no_cpython_wrapper=True, no_cfunc_wrapper=True)(
        function
    )
    return result


def njit_inline(function: F) -> F:
    """Inline a small function into each compiled caller, on Numba's level."""
    result: F = _compile(inline="always")(function)
    return result


_plain: Any = JITCodeLibrary
_linked: set[str] = set()
"""Names of functions that only compiled functions call."""


class _Library(JITCodeLibrary):
    """The code of one function, which is no machine code where only compiled functions call it.

    Whatever calls such a function gets a copy of it that is translated with the caller. It is kept
    as what copies are made from, LLVM's intermediate code, optimised as far as inlining goes:
    callers would be slower without.
    """

    _linked_only: bool | None = None

    def _is_linked_only(self) -> bool:
        if self._linked_only is None:
            flags: Any = ConfigStack.top_or_none()  # type: ignore[no-untyped-call]
            # Others may have the same name, and wrappers.
            bare = flags is not None and flags.no_cpython_wrapper and flags.no_cfunc_wrapper
            self._linked_only = bare and self.name in _linked
        return self._linked_only

    def _optimize_final_module(self) -> None:
        if not self._is_linked_only():
            _plain._optimize_final_module(self)
            return
        codegen: Any = self._codegen
        passes, builder = codegen._module_pass_manager(
            loop_vectorize=False, slp_vectorize=False, opt=codegen._opt_level, cost="cheap"
        )
        passes.run(self._final_module, builder)

    def _finalize_final_module(self) -> None:
        if not self._is_linked_only():
            _plain._finalize_final_module(self)
            return
        _plain._finalize_dynamic_globals(self)
        _plain._verify_declare_only_symbols(self)
        self._finalized = True

    def serialize_using_object_code(self) -> Any:
        """What a cache keeps."""
        if self._is_linked_only():
            return _plain.serialize_using_bitcode(self)
        return _plain.serialize_using_object_code(self)

    @classmethod
    def _unserialize(cls, codegen: Any, state: Any) -> Any:
        name, kind, data = state
        if kind != "bitcode":  # which nothing else is kept as
            return _plain._unserialize.__func__(cls, codegen, state)
        made: Any = cls(codegen, name)
        made._linked_only = True
        made._final_module = parse_bitcode(data)
        made._finalize_final_module()
        return made


_environments: dict[str, Any] = {}
_codegen: Any = JITCPUCodegen
_set = _codegen.set_env


def _set_environment(codegen: Any, name: str, environment: Any) -> None:
    """Write an environment into the code that refers to it, once there is any."""
    _environments[name] = environment
    for each in [x for x in _environments if codegen._engine.is_symbol_defined(x)]:
        _set(codegen, each, _environments.pop(each))


_codegen._library_class, _codegen.set_env = _Library, _set_environment


index: Any = np.uint32
"""The same number as an unsigned index, which needs no test for wrapping around."""

_PLAIN = (types.Number, types.Boolean, types.Literal, types.Array, types.Record, types.NoneType)
"""Of arguments whose types change no more: those of tuples, functions or lists may."""

resolve_call = BaseFunction.get_call_type
"""Numba's own."""

_compiling = threading.local()


@contextmanager
def remembered_call_types() -> Iterator[None]:
    """Let Numba resolve a call with arguments of plain types once, for each set of flags.

    For every ``a[i]`` and every sum, Numba asks its implementations (of lists, dicts, text, arrays
    and more) one after another which of them takes these types, and builds a message for each that
    does not: a quarter of what compiling takes. The answer follows from the types and the
    compiler's flags. A user's own kernels may add implementations at any time: they ask Numba.
    """
    BaseFunction.get_call_type = _get_call_type  # type: ignore[method-assign]
    outer = getattr(_compiling, "ours", False)
    _compiling.ours = True
    try:
        yield
    finally:
        _compiling.ours = outer


@dataclass(frozen=True, slots=True)
class _Resolved:
    """A call; function and context are kept, so that no other one gets their `id`."""

    function: Any
    context: Any
    flags: Any
    signature: Any
    implementation: Any


_resolved: dict[tuple[int, int, tuple[Any, ...]], _Resolved] = {}


def _get_call_type(self: Any, context: Any, args: Any, kws: Any) -> Any:
    ours = getattr(_compiling, "ours", False) and not kws and type(self) is types.Function
    if not ours or not all(isinstance(x, _PLAIN) for x in args):
        return resolve_call(self, context, args, kws)
    key = id(self), id(context), tuple(args)
    flags = ConfigStack.top_or_none()  # type: ignore[no-untyped-call]
    known = _resolved.get(key)
    if known is None or (known.flags is not flags and known.flags != flags):
        signature: Any = resolve_call(self, context, args, kws)
        implementation = self._impl_keys[signature.args]
        known = _resolved[key] = _Resolved(self, context, flags, signature, implementation)
    # Other flags may have put their own implementation there since.
    self._impl_keys[known.signature.args] = known.implementation
    return known.signature


HELD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals whose handlers may raise."""

LATER_S, AGAIN_S = 0.02, 0.5
"""After freed code, and between two signals; until one that was not heard is sent once more."""


class _SignalsWait:
    """Holds signals back in the main thread, where Python executes handlers, while LLVM works.

    The locks of Numba and llvmlite are released by Python code: an exception of a handler within
    it, a `KeyboardInterrupt` for one, leaves a lock taken, and the next thread that compiles or
    frees code waits for ever. Whatever handler is in force is called afterwards.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._before: dict[signal.Signals, Any] = {}
        self._arrived: list[int] = []

    def begin(self) -> None:
        """Hold signals back until as many calls of `end`."""
        if threading.current_thread() is not threading.main_thread():
            return
        depth = self._depth
        try:
            # First: a garbage collection within the next lines may free code.
            self._depth = depth + 1
            for number in () if depth else HELD:
                if callable(handler := signal.getsignal(number)):
                    self._before[number] = handler
                    signal.signal(number, self._remember)
        except BaseException:  # a signal came before it was held back
            self._restore()
            self._depth = depth
            raise

    def end(self, *, raises: bool) -> None:
        """Let signals take effect; `raises`: the first one here, and not a moment later."""
        if threading.current_thread() is not threading.main_thread():
            return
        if self._depth > 1:
            self._depth -= 1
            return
        try:
            self._restore()
        finally:  # also where one raises whose handler is back before the others are
            self._restore()
            self._depth = 0
        arrived, self._arrived = self._arrived, []
        if again := arrived[1:] if raises else arrived:
            threading.Thread(target=_send_again, args=(again,), daemon=True).start()
        if raises and arrived and callable(handler := signal.getsignal(arrived[0])):
            handler(arrived[0], None)

    def _remember(self, number: int, _: FrameType | None) -> None:
        self._arrived.append(number)

    def _restore(self) -> None:
        """Put handlers back, SIGINT's last; those that were replaced meanwhile stay."""
        while self._before:
            number, handler = self._before.popitem()
            if signal.getsignal(number) == self._remember:
                signal.signal(number, handler)


def _send_again(numbers: Sequence[int]) -> None:
    """Send signals to the main thread, unless nobody handles them any more."""
    for number in numbers:
        time.sleep(LATER_S)
        if callable(signal.getsignal(number)):
            signal.pthread_kill(cast(int, threading.main_thread().ident), number)


_signals_wait = _SignalsWait()


def _make_signals_wait(lock: Any, *, raises: bool) -> None:
    """Let no handler be called while a lock of this class is held by the main thread."""
    enter, leave = lock.__enter__, lock.__exit__

    def entered(self: Any) -> Any:
        _signals_wait.begin()
        try:
            return enter(self)
        except BaseException:
            _signals_wait.end(raises=False)
            raise

    def left(self: Any, *exception: object) -> Any:
        try:
            return leave(self, *exception)
        finally:
            _signals_wait.end(raises=raises)

    lock.__enter__, lock.__exit__ = entered, left


def _make_signals_wait_for_collections(phase: str, info: dict[str, int]) -> None:
    """Hold signals back in full garbage collections, which free code, take long and lose errors."""
    if info["generation"] == 2:
        if phase == "start":
            _signals_wait.begin()
        else:
            _signals_wait.end(raises=False)


def _raise_again(lost: Any) -> None:
    """Raise what a signal's handler raised in a callback: of the collector, say, or a reference.

    Python prints and forgets what those raise. Sent again, the signal may have no handler: that of
    SIGTERM ends by ignoring the next one.
    """
    at_start = lost.object is _make_signals_wait_for_collections
    of_signal = at_start or isinstance(lost.exc_value, KeyboardInterrupt | Terminated)
    if not of_signal or threading.current_thread() is not threading.main_thread():
        _report_unraisable(lost)
        return
    before, error = signal.getsignal(signal.SIGINT), lost.exc_value

    def raise_error(number: int, _: FrameType | None) -> None:
        signal.signal(signal.SIGINT, before)
        raise error

    def send() -> None:
        """Send it until it is heard.

        Python looks for signals after calls: one that comes right before a call that blocks waits
        for its end, and after a long collection this thread runs right there.
        """
        while signal.getsignal(signal.SIGINT) is raise_error:
            _send_again([signal.SIGINT])
            time.sleep(AGAIN_S)

    signal.signal(signal.SIGINT, raise_error)
    threading.Thread(target=send, daemon=True).start()


_report_unraisable, sys.unraisablehook = sys.unraisablehook, _raise_again
# When the interpreter ends, what `_raise_again` reads may be gone before it is called.
atexit.register(setattr, sys, "unraisablehook", _report_unraisable)
_make_signals_wait(type(global_compiler_lock), raises=True)
_make_signals_wait(type(ffi.lib._lock), raises=False)
gc.callbacks.append(_make_signals_wait_for_collections)
