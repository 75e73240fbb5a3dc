"""Messages of activations and their rounding, against vectors made without sealtrain or torch."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from collecting import COLLECTING

from sealtrain.errors import DataInvalid

if not COLLECTING:
    import torch

    from sealtrain_together.cut.activations import Expected, decode, restore_row, rows_of

FOLDER = Path(__file__).resolve().parents[2] / "vectors" / "split-cut"
MESSAGES = json.loads((FOLDER / "messages.json").read_text())["cases"]


def read(one: dict[str, Any]) -> Any:
    expected = Expected(
        form=one["form"],
        width=one["width"],
        max_tokens=one["max_tokens"],
        labels=one["labels"],
        per_token=one["per_token"],
    )
    return decode(base64.b64decode(one["message"]), expected, rows=one["records"])


@pytest.mark.parametrize(
    "one",
    [message for message in MESSAGES if message["outcome"] == "ok"],
    ids=lambda one: str(one["name"]),
)
def test_a_message_is_read_as_it_is_meant(one: dict[str, Any]) -> None:
    rows = read(one)
    assert [len(row.values) for row in rows] == one["lengths"]
    found = torch.cat([restore_row(row, torch.float32) for row in rows]).flatten()
    assert found.tolist() == one["activations"]
    assert torch.cat([row.labels.reshape(-1) for row in rows]).tolist() == one["read_labels"]


@pytest.mark.parametrize(
    "one",
    [message for message in MESSAGES if message["outcome"] != "ok"],
    ids=lambda one: str(one["name"]),
)
def test_a_message_that_is_none_is_refused(one: dict[str, Any]) -> None:
    with pytest.raises(DataInvalid) as refused:
        read(one)
    assert refused.value.code == one["outcome"]


@pytest.mark.parametrize("one", json.loads((FOLDER / "roundings.json").read_text())["cases"])
def test_activations_are_rounded_to_the_nearest(one: dict[str, Any]) -> None:
    values = torch.tensor(one["activations"])[None, None]
    (row,) = rows_of(values, torch.ones(1, 1, dtype=torch.int64), torch.zeros(1), "int8")
    assert row.scales is not None
    assert row.scales.tolist() == [one["scale"]]
    assert row.values[0].tolist() == one["values"]
