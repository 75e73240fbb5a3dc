"""The bytecode that is shipped is what the Solidity beside it compiles to."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from npm_world import node_modules

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.nightly]


def test_shipped_contracts_are_what_their_sources_compile_to(repository: Path) -> None:
    sys.path.insert(0, str(repository / "tools"))
    try:
        import contracts
    finally:
        sys.path.pop(0)
    found = contracts.build(node_modules())
    assert found.keys() == contracts.PLACES.keys()
    for place, text in found.items():
        assert contracts.COMPILER in text
        assert place.read_text("utf-8") == text, f"{place.name}: run tools/contracts.py"
