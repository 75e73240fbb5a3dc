"""The index of an output store, against vectors of an independent generator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sealtrain.storage.errors import OutputStoreInvalid
from sealtrain.storage.outputs import parse_index

VECTORS: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "vectors" / "output-store" / "indexes.json").read_text("utf-8")
)


READ = {case["name"]: case["index"] for case in VECTORS["cases"] if case["outcome"] == "ok"}
REFUSED = {case["name"]: case for case in VECTORS["cases"] if case["outcome"] != "ok"}


@pytest.mark.parametrize("name", READ)
def test_an_index_is_read_and_written_as_it_was(name: str) -> None:
    text = READ[name]
    assert parse_index(text.encode()).to_bytes().decode() == text


@pytest.mark.parametrize("name", REFUSED)
def test_a_faulty_index_is_refused(name: str) -> None:
    with pytest.raises(OutputStoreInvalid) as caught:
        parse_index(REFUSED[name]["index"].encode())
    assert caught.value.code == REFUSED[name]["outcome"]
