"""What pip is told on a machine is handed on to uv, or pip installs (tools/install.py)."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path

import pytest

Words = Callable[[str], tuple[list[str], dict[str, str]] | None]


@pytest.fixture(scope="module")
def words_of(repository: Path) -> Words:
    found: Words = runpy.run_path(str(repository / "tools/install.py"))["words_of"]
    return found


def test_where_packages_come_from_is_handed_on(words_of: Words) -> None:
    settings = """\
global.cert='/etc/ca.pem'
global.extra-index-url='https://one.example/simple https://two.example/simple'
global.index-url='https://global.example/simple'
install.find-links='/srv/packages'
:env:.index-url='https://mirror.example/simple'
:env:.disable-pip-version-check='1'
"""
    given = words_of(settings)
    assert given is not None
    words, variables = given
    pairs = list(zip(words[::2], words[1::2], strict=True))
    assert sorted(pairs) == [
        ("--default-index", "https://mirror.example/simple"),
        ("--" + "extra-index-url", "https://one.example/simple"),
        ("--" + "extra-index-url", "https://two.example/simple"),
        ("--" + "find-links", "/srv/packages"),
        ("--index-strategy", "unsafe-best-match"),
    ]
    assert variables == {"SSL_CERT_FILE": "/etc/ca.pem"}


@pytest.mark.parametrize("setting", ["trusted-host", "no-index", "proxy", "only-binary", "hash"])
def test_where_uv_would_do_otherwise_pip_installs(words_of: Words, setting: str) -> None:
    assert words_of("") is not None
    assert words_of(f"global.{setting}='value'\n") is None
