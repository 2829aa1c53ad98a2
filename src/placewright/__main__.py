"""``python -m placewright`` is ``placewright``: what launchers such as torchrun start."""

import signal
import sys


def main() -> None:
    """The command line, from its first line to its last safe from tracebacks by Ctrl-C."""
    try:
        from placewright.cli.main import main as command_line

        command_line()
    except KeyboardInterrupt:  # before the command line is there, or once more while it ends
        print("interrupted", file=sys.stderr)
        raise SystemExit(130) from None
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


if __name__ == "__main__":
    main()
