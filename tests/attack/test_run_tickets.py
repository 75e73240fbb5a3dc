"""Attacks through the run ticket: what the operator writes is hostile."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from world import simulated_policy

from sealtrain.base.encoding import to_base64
from sealtrain.client.errors import TicketInvalid
from sealtrain.client.ticket import MAX_TICKET_BYTES, load_ticket, parse_ticket

pytestmark = [pytest.mark.claim("C133")]

PIN: dict[str, Any] = {
    "version": 2,
    "url": "http://127.0.0.1:1",
    "signing_key": to_base64(bytes(32)),
    "compose_hash": "ab" * 32,
    "appraisal": simulated_policy("tickets").to_dict(),
}
TRAIN: dict[str, Any] = {
    "version": 1,
    "role": "train",
    "brokers": [PIN],
    "data": ["/data/sealed", "https://store.example/a.sealed"],
    "base": "/models",
    "collateral": "https://pccs.example",
    "peers": {"accelerator": "10.0.0.7:8471"},
}


def spelled(**changed: Any) -> bytes:
    return json.dumps({**TRAIN, **changed}).encode()


def test_a_ticket_comes_back_as_it_was_written() -> None:
    ticket = parse_ticket(spelled())
    assert parse_ticket(ticket.to_bytes()) == ticket
    assert ticket.brokers[0].to_dict() == PIN


ALTERED: dict[str, dict[str, Any]] = {
    "version": {"version": 2},
    "version as text": {"version": "1"},
    "role": {"role": "owner"},
    "no role": {"role": None},
    "role of others": {"role": "broker"},
    "unknown field": {"out": "/etc"},
    "command": {"command": ["sh"]},
    "environment": {"environment": {"LD_PRELOAD": "x"}},
    "no broker": {"brokers": []},
    "too many brokers": {"brokers": [PIN] * 17},
    "broker of another form": {"brokers": ["broker.yaml"]},
    "broker without a policy": {"brokers": [{**PIN, "appraisal": None}]},
    "broker with another field": {"brokers": [{**PIN, "root": "mine"}]},
    "no data": {"data": []},
    "data as text": {"data": "/data"},
    "data with a secret": {"data": ["https://user:word@store.example/a"]},
    "data with a query": {"data": ["https://store.example/a?token=word"]},
    "data with a line break": {"data": ["/data\n/etc"]},
    "too much data": {"data": ["/data"] * 257},
    "long data": {"data": ["/" + "d" * 1024]},
    "base": {"base": 7},
    "empty base": {"base": ""},
    "collateral from a file": {"collateral": "file:/etc/passwd"},
    "peer": {"peers": {"accelerator": "somewhere"}},
    "peer's port": {"peers": {"accelerator": "10.0.0.7:99999"}},
    "peer's name": {"peers": {"../x": "10.0.0.7:1"}},
    "party of a run of one": {"party": "hospital-a"},
    "run of a run of one": {"run": "ab" * 16},
    "listening for writes": {"listen_writes": "0.0.0.0:80"},
    "node of a run that it leads": {"node": 1},
    "root secret": {"root_secret": "file:mine"},
    "proxies": {"proxies": ["10.0.0.1"]},
    "certificate": {"certificate": "/tls/chain.pem"},
    "certificate key": {"certificate_key": "/tls/key.pem"},
    "proxy with a secret": {"outbound_proxy": "http://user:word@proxy.example:1"},
    "proxy of another kind": {"outbound_proxy": "socks5://proxy.example:1"},
    "authority": {"authorities": ["AA=="]},
    "too many authorities": {"authorities": ["AA=="] * 17},
    "store in a file": {"store": "file:///bank/store"},
    "store's server as a bucket": {"store": "s3://bucket:9000/run"},
    "ranks": {"ranks": "2"},
    "no ranks": {"ranks": 0},
    "too many ranks": {"ranks": 65},
    "threads of a run": {"threads": 2},
    "rejoining a run of one": {"rejoins": True},
}


@pytest.mark.parametrize("changed", ALTERED.values(), ids=ALTERED)
def test_a_ticket_altered_in_any_field_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(TicketInvalid) as refused:
        parse_ticket(spelled(**changed))
    assert refused.value.exit_code == 2
    assert "word" not in str(refused.value)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"null",
        b"[]",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"version":1,"version":1,"role":"dealer"}',
        b'{"version":1,"role":"dealer"}' + b" " * MAX_TICKET_BYTES,
        b'{"version":1e400,"role":"dealer"}',
        b'{"peers":{' + b",".join(b'"p%d":"h:1"' % n for n in range(60_000)) + b"}}",
    ],
)
def test_a_ticket_of_no_form_is_refused(data: bytes) -> None:
    with pytest.raises(TicketInvalid):
        parse_ticket(data)


def test_only_a_regular_file_is_a_ticket(tmp_path: Path) -> None:
    """Docker makes a folder where a mounted file is missing; a pipe would never end."""
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for place in ("folder", "pipe", "nothing"):
        with pytest.raises(TicketInvalid):
            load_ticket(tmp_path / place)


HOLDER = {key: TRAIN[key] for key in ("version", "brokers", "data")} | {
    "role": "holder",
    "party": "clinic-a",
    "peers": {"writes": "10.0.0.7:8472"},
}


@pytest.mark.claim("C655")
def test_an_owner_rejoins_by_its_folder_or_by_its_ticket(tmp_path: Path) -> None:
    ticket = parse_ticket(json.dumps(HOLDER).encode())
    told = parse_ticket(json.dumps(HOLDER | {"rejoins": True}).encode())
    assert not ticket.has_taken_part(tmp_path / "nothing")
    assert not ticket.has_taken_part(tmp_path)
    assert told.has_taken_part(tmp_path / "nothing")
    (tmp_path / "kept").write_text("")
    assert ticket.has_taken_part(tmp_path)
