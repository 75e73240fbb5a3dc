"""An operator's own program that starts guests, in place of ``sealtrain deploy run``."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from sealtrain.base.processes import end_with_starter
from sealtrain.cli.programs import Process, Start
from sealtrain.errors import UsageError


def own_program(path: Path) -> Start:
    """Starts a program with the options of ``deploy run``; it cannot outlive this process.

    Args:
        path: Of the program.

    Raises:
        UsageError: There is no such file.
    """
    if not path.is_file():
        raise UsageError("there is no such program", check="--starter", got=str(path))
    program = str(path.absolute())

    def start(words: Sequence[str], stdout: IO[bytes], stderr: IO[bytes]) -> Process:
        options = words[2:]  # behind "deploy run"
        return subprocess.Popen(  # noqa: S603  # the operator's own program
            [program, *options],
            stdout=stdout,
            stderr=stderr,
            process_group=0,
            preexec_fn=end_with_starter(),
        )

    return start
