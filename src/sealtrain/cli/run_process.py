"""A process for one run, in a Python that runs no code of its environment.

Python starts code of the environment before any program: ``.pth`` files, ``sitecustomize``, what
``PYTHONPATH`` puts before the standard library. None of it is pinned by a lock. So commands that
get keys begin anew, in the same process, with an interpreter that leaves all of that out. Once the
lock is read, ``sandbox.imports`` keeps everything else out.

Libraries start no thread there when they are loaded: the sandbox does not fully bind a thread that
is older than the sandbox (``sandbox.landlock``).
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Final

from sealtrain.base.version import own_folders

BEGIN: Final = """\
import json, sys
sys.path[len(sys.path):], sys.prefix, sys.exec_prefix = json.loads(sys.argv.pop(1))
import site
site.setquit()
site.sethelper()
sys.argv[0] = "sealtrain"
from sealtrain.cli import main
main()
"""
"""The command line, once packages are found again."""
_NO_THREADS: Final = {
    "JE_ARROW_MALLOC_CONF": "background_thread:false",  # PyArrow's allocator
    "OPENBLAS_NUM_THREADS": "1",  # NumPy's products; PyTorch makes the large ones
}
"""Settings that libraries read when they are loaded; the environment's own values win."""


def alone(program: str = BEGIN) -> None:
    """Begin this command anew in such an interpreter, unless it runs in one.

    Does not return where it begins anew: the command's words, its standard streams and its process
    id stay.

    Args:
        program: What runs there, given the places of packages and the prefixes, then the words.
    """
    if sys.flags.isolated and sys.flags.no_site:
        return
    given = json.dumps([_places(), sys.prefix, sys.exec_prefix])
    flags = ["-I", "-S", "-X", f"utf8={sys.flags.utf8_mode}"]
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    words = [sys.executable, *flags, "-c", program, given, *sys.argv[1:]]
    variables = {**_NO_THREADS, **os.environ}
    os.execve(sys.executable, words, variables)  # noqa: S606  # our own program with our own words


def _places() -> list[str]:
    """Folders in which packages are installed, and sealtrain's own.

    Neither the program's folder nor those of ``PYTHONPATH``: a package there could show the record
    of an installed package beside files of its own.
    """
    searched = sys.path if sys.flags.safe_path else sys.path[1:]
    added = {Path(entry).absolute() for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep)}
    places = [
        place for entry in searched if entry and (place := Path(entry).absolute()) not in added
    ]
    places += [folder.parent for folder in own_folders().values()]
    return [str(place) for place in dict.fromkeys(places) if place.is_dir()]
