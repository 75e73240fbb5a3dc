"""Brokers' documents and run tickets, against vectors made without sealtrain."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sealtrain.base.digests import sha256_hex
from sealtrain.broker.service.deployment import BrokerDocument, read_broker_document
from sealtrain.client.errors import TicketInvalid
from sealtrain.client.ticket import parse_ticket

FOLDER = Path(__file__).resolve().parents[2] / "vectors" / "deployment"


def vectors(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((FOLDER / f"{name}.json").read_text())["cases"]
    return found


@pytest.mark.parametrize("vector", vectors("brokers"), ids=lambda vector: vector["name"])
def test_a_brokers_document(vector: dict[str, Any]) -> None:
    fields = BrokerDocument.model_validate_json(json.dumps(vector["fields"]))
    data = vector["document"].encode()
    assert fields.to_bytes() == data
    assert read_broker_document(data) == fields
    assert sha256_hex(data) == vector["compose_hash"]


@pytest.mark.parametrize("vector", vectors("tickets"), ids=lambda vector: vector["name"])
def test_a_ticket(vector: dict[str, Any]) -> None:
    data = vector["ticket"].encode()
    if vector["outcome"] != "ok":
        with pytest.raises(TicketInvalid):
            parse_ticket(data)
    else:
        assert parse_ticket(parse_ticket(data).to_bytes()) == parse_ticket(data)
