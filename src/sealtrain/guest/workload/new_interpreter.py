"""A process that goes on in a new interpreter: nothing of its parent's memory is left in it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from typing import Any, Final, NoReturn

_BEGIN: Final = """\
import json, os, sys
with os.fdopen(int(sys.argv.pop(1))) as file:
    given = json.load(file)
sys.path[len(sys.path):], sys.prefix, sys.exec_prefix = given.pop("python")
from {module} import begin_anew
begin_anew(given)
"""


def execute_anew(module: str, given: dict[str, Any], *, inherited: Iterable[int]) -> NoReturn:
    """Go on in a new interpreter, isolated and with this one's import path.

    Args:
        module: Its function ``begin_anew`` is called with ``given``.
        given: JSON.
        inherited: Descriptors that the new interpreter has.
    """
    python = [[*filter(os.path.isdir, sys.path)], sys.prefix, sys.exec_prefix]
    document = os.memfd_create("sealtrain-anew")
    with os.fdopen(os.dup(document), "w") as file:
        json.dump({"python": python, **given}, file)
    os.lseek(document, 0, os.SEEK_SET)
    for number in (document, *inherited):
        os.set_inheritable(number, True)
    flags = ["-I", "-S", "-X", f"utf8={sys.flags.utf8_mode}"]
    words = [sys.executable, *flags, "-c", _BEGIN.format(module=module), str(document)]
    os.execve(sys.executable, words, dict(os.environ))  # noqa: S606  # our own program
