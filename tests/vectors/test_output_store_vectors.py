"""The index of an output store, against vectors of an independent generator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sealtrain.errors import OutputStoreInvalid
from sealtrain.storage.outputs import parse_index

VECTORS: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "vectors" / "output-store" / "indexes.json").read_text("utf-8")
)


@pytest.mark.parametrize("name", VECTORS["read"])
def test_an_index_is_read_and_written_as_it_was(name: str) -> None:
    text = VECTORS["read"][name]
    assert parse_index(text.encode()).to_bytes().decode() == text


@pytest.mark.parametrize("name", VECTORS["refused"])
def test_a_faulty_index_is_refused(name: str) -> None:
    with pytest.raises(OutputStoreInvalid):
        parse_index(VECTORS["refused"][name].encode())
