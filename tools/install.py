"""Install this checkout and what it needs by uv, as pip is configured on this machine.

Usage: ``python -m pip install uv``, then ``python tools/install.py WORDS …``, which are those of
``pip install``.

uv unpacks two gigabytes in a quarter of the time that pip takes, and does not read pip's settings.
Those that say where packages come from are handed on to it. Where pip has a setting that uv is not
told of here, or uv fails, pip installs.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

_LISTS = {"constraint", "extra-index-url", "find-links"}
"""Settings with several values, which uv calls alike."""
_VARIABLES = {
    "cert": "SSL_CERT_FILE",
    "default-timeout": "UV_HTTP_TIMEOUT",
    "timeout": "UV_HTTP_TIMEOUT",
}
"""Settings that uv reads in the environment."""
_OTHERS = {
    "disable-pip-version-check",
    "no-compile",
    "no-input",
    "progress-bar",
    "quiet",
    "require-virtualenv",
    "root-user-action",
    "verbose",
}
"""Settings that change nothing of what is installed."""


def words_of(settings: str) -> tuple[list[str], dict[str, str]] | None:
    """What pip's settings are to uv: words, and variables of its environment.

    Args:
        settings: What ``pip config list`` prints.

    Returns:
        None where uv cannot do as pip would.
    """
    found: dict[str, str] = {}
    for source in ("global", "install", ":env:"):  # as pip does: the last one has its way
        for line in settings.splitlines():
            name, _, value = line.partition("=")
            where, _, key = name.rpartition(".")
            if where == source:
                found[key] = str(ast.literal_eval(value))
    # Of all indexes the best version, as pip chooses.
    words = ["--index-strategy", "unsafe-best-match"]
    variables: dict[str, str] = {}
    for key, value in found.items():
        if key in _LISTS:
            words += [part for item in value.split() for part in (f"--{key}", item)]
        elif key == "index-url":
            words += ["--default-index", value]
        elif key in _VARIABLES:
            variables[_VARIABLES[key]] = value
        elif key not in _OTHERS:
            return None
    return words, variables


def main(words: Sequence[str]) -> int:
    """Install; the exit code is that of the program that did."""
    pip = [sys.executable, "-m", "pip"]
    listed = subprocess.run(  # noqa: S603  # our own words
        [*pip, "--disable-pip-version-check", "config", "list"],
        check=True,
        capture_output=True,
        text=True,
    )
    if (said := words_of(listed.stdout)) is not None:
        uv = [sys.executable, "-m", "uv", "pip", "install", "-q", "--python", sys.executable]
        if _run([*uv, *said[0], *words], said[1]) == 0:
            return 0
    return _run([*pip, "install", "-q", "--no-compile", "--disable-pip-version-check", *words], {})


def _run(words: Sequence[str], variables: Mapping[str, str]) -> int:
    return subprocess.run(words, env={**os.environ, **variables}).returncode  # noqa: S603


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
