"""``python -m placewright`` is ``placewright``: what launchers such as torchrun start."""

import atexit
import gc
import os
import signal
import sys

_SET_PARENT_DEATH_SIGNAL = 1
"""Of ``prctl(2)``."""


def main() -> None:
    """The command line, from its first line to its last safe from tracebacks by Ctrl-C."""
    try:
        from placewright.interpreter import load_numba_without_file, safe_variables

        os.environ.update(safe_variables())
        load_numba_without_file()
        # As the last of all: without it, Python's end looks through torch's 170,000 objects.
        atexit.register(gc.freeze)
        # Read once, when torch is loaded: torchrun's store warns with a C++ stack where it ends.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        from placewright.cli.main import main as command_line

        if "TORCHELASTIC_RUN_ID" in os.environ:
            _end_with_parent()
        command_line()
    except KeyboardInterrupt:  # before the command line is there, or once more while it ends
        print("interrupted", file=sys.stderr)
        raise SystemExit(130) from None
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _end_with_parent() -> None:
    """Get a SIGTERM when torchrun is gone, from now on: loading torch takes seconds."""
    import ctypes

    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)


if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]  # the current folder: models are looked for there, and nothing else
    main()
