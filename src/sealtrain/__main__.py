"""The ``sealtrain`` command, and ``python -m sealtrain``.

Ctrl-C counts from the first line: what the command line imports takes longer than a hasty person
waits, and a traceback out of it says nothing.
"""

import sys


def main() -> None:
    """Entry point: load the command line, then run it."""
    try:
        from sealtrain.cli import main as run
    except KeyboardInterrupt:
        sys.stderr.write("interrupted: nothing was done; the same command begins again\n")
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
