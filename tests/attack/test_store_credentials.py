"""Credentials of stores reach a guest of the right document, and nobody else."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from carrying import carries
from channel_world import COMPOSE, NOW, guest
from http_server import running
from storage_world import serving
from world import simulated_policy

from sealtrain.attest.errors import ComposeHashMismatch, ReportDataMismatch
from sealtrain.attest.report_data import Binding
from sealtrain.base.canonical import canonical_json
from sealtrain.base.digests import sha256_hex
from sealtrain.base.encoding import to_base64
from sealtrain.base.http import Bounds
from sealtrain.base.secret import Secret
from sealtrain.cli.credential_lender import lending
from sealtrain.client.storecredentials import Lender, ask_lender, parse_credentials
from sealtrain.errors import DataInvalid, EvidenceRefused, LimitExceeded, SealtrainError, UsageError
from sealtrain.release.errors import AnswerInvalid, ChallengeExpired, ChallengeUnknown
from sealtrain.sealing.hpke import HpkePrivateKey
from sealtrain.storage.connect import open_folder
from sealtrain.storage.errors import StorageUnreachable

pytestmark = pytest.mark.claim("C137")

GIVEN = {"AWS_ACCESS_KEY_ID": "AKIAEXAMPLE", "AWS_SECRET_ACCESS_KEY": "canary-5f1c"}
HASH = sha256_hex(COMPOSE)
HASTY = Bounds(connect=5.0, read=5.0, total=5.0, tries=1)


def lender(now: int = NOW, credentials: dict[str, str] | None = None) -> Lender:
    policy = simulated_policy()
    return Lender(credentials or GIVEN, compose_hash=HASH, policy=policy, clock=lambda: now)


@contextmanager
def served(one: Any) -> Iterator[str]:
    with lending(one, "127.0.0.1:0") as server, running(server):
        yield f"http://127.0.0.1:{server.server_port}"


def request(one: Lender, **changed: Any) -> tuple[bytes, HpkePrivateKey]:
    """What an honest guest asks, with fields changed after its evidence was made."""
    private = HpkePrivateKey(Secret(os.urandom(32)))
    fields = {"nonce": json.loads(one.challenge())["nonce"], "key": to_base64(private.public.raw)}
    binding = Binding("store-credentials", {"compose_hash": HASH, **fields})
    shown = guest().collect(binding).to_dict()
    return canonical_json({"version": 1, "evidence": shown, **fields} | changed), private


def test_a_guest_of_the_document_gets_what_was_lent() -> None:
    with served(lender()) as url:
        assert ask_lender(url, guest().collect, HASH) == GIVEN


def test_a_guest_of_another_document_gets_nothing() -> None:
    other = canonical_json({"name": "another", "manifest_version": 2})
    with served(lender()) as url, pytest.raises(ComposeHashMismatch):
        ask_lender(url, guest(other).collect, HASH)
    with served(lender()) as url, pytest.raises(EvidenceRefused):
        ask_lender(url, guest(other).collect, sha256_hex(other))


def test_a_guest_of_another_vendor_gets_nothing() -> None:
    with served(lender()) as url, pytest.raises(EvidenceRefused):
        ask_lender(url, guest(vendor="another").collect, HASH)


@pytest.mark.parametrize("field", ["key", "nonce"])
def test_evidence_for_another_conversation_gets_nothing(field: str) -> None:
    one = lender()
    instead = {
        "key": to_base64(HpkePrivateKey(Secret(os.urandom(32))).public.raw),
        "nonce": json.loads(one.challenge())["nonce"],
    }
    asking, _ = request(one, **{field: instead[field]})
    with pytest.raises(ReportDataMismatch):
        one.lend(asking)


def test_a_nonce_of_another_lender_or_of_long_ago_gets_nothing() -> None:
    asking, _ = request(lender())
    with pytest.raises(ChallengeUnknown):
        lender().lend(asking)
    moments = [NOW]
    policy = simulated_policy()
    slow = Lender(GIVEN, compose_hash=HASH, policy=policy, clock=lambda: moments[-1])
    asking, private = request(slow)
    moments.append(NOW + 299)
    assert b"sealed" in slow.lend(asking)
    assert private is not None
    moments.append(NOW + 300)
    with pytest.raises(ChallengeExpired):
        slow.lend(asking)


def test_who_repeats_what_was_recorded_gets_nothing_that_it_can_open() -> None:
    one = lender()
    asking, _ = request(one)
    first, second = one.lend(asking), one.lend(asking)
    assert b"canary" not in first + second
    assert first != second


@pytest.mark.parametrize(
    "change",
    [{"version": 2}, {"key": "AAAA"}, {"nonce": "00"}, {"evidence": {}}, {"more": 1}],
    ids=str,
)
def test_a_malformed_request_is_refused(change: dict[str, Any]) -> None:
    one = lender()
    asking, _ = request(one, **change)
    with pytest.raises(SealtrainError):
        one.lend(asking)
    for data in (b"", b"{", b"[" * 100_000, bytes((8 << 20) + 1)):
        with pytest.raises((DataInvalid, LimitExceeded)):
            one.lend(data)


def test_whoever_answers_in_the_lenders_place_hands_over_nothing_else() -> None:
    class Stranger:
        def challenge(self) -> bytes:
            return canonical_json({"nonce": "ab" * 32})

        def lend(self, _request: bytes) -> bytes:
            private = HpkePrivateKey(Secret(bytes(32)))
            sealed = private.public.seal(canonical_json(GIVEN), info=b"")
            return canonical_json({"sealed": to_base64(sealed)})

    with served(Stranger()) as url, pytest.raises(AnswerInvalid):
        ask_lender(url, guest().collect, HASH)


@pytest.mark.parametrize(
    "values",
    [
        {"LD_PRELOAD": "/tmp/x.so"},  # noqa: S108
        {"AWS_ACCESS_KEY_ID": ""},
        {"AWS_ACCESS_KEY_ID": "a\nb"},
        {"AWS_ACCESS_KEY_ID": 7},
        {},
        [],
        {"SEALTRAIN_STORE_TOKEN": "t"},
        {"SEALTRAIN_STORE_URL": "https://store.example/run"},
        {"SEALTRAIN_STORE_TOKEN": "t", "SEALTRAIN_STORE_URL": "http://store.example/run"},
        {"SEALTRAIN_STORE_TOKEN": "t", "SEALTRAIN_STORE_URL": "https://u:p@store.example/run"},
    ],
    ids=str,
)
def test_other_names_and_values_are_taken_by_nobody(values: Any) -> None:
    with pytest.raises(UsageError, check=carries(check="credentials")) as caught:
        parse_credentials(json.dumps(values).encode())
    assert "/tmp" not in str(caught.value.to_dict())  # noqa: S108

    class Wrong(Lender):
        def lend(self, request: bytes) -> bytes:
            fields = json.loads(request)
            transcript = {"compose_hash": HASH, "key": fields["key"], "nonce": fields["nonce"]}
            from sealtrain.base.encoding import from_base64
            from sealtrain.sealing.hpke import HpkePublicKey

            info = b"sealtrain/store-credentials/v1:" + canonical_json(transcript)
            key = HpkePublicKey(from_base64(fields["key"]))
            sealed = key.seal(json.dumps(values).encode(), info=info)
            return canonical_json({"sealed": to_base64(sealed)})

    policy = simulated_policy()
    wrong = Wrong(GIVEN, compose_hash=HASH, policy=policy, clock=lambda: NOW)
    with served(wrong) as url, pytest.raises(AnswerInvalid):
        ask_lender(url, guest().collect, HASH)


def test_a_lender_that_is_away_can_be_waited_for() -> None:
    with served(lender()) as url:
        pass
    with pytest.raises(StorageUnreachable) as caught:
        ask_lender(url, guest().collect, HASH, bounds=HASTY)
    assert caught.value.retry == "again"


def test_a_token_goes_to_the_store_that_it_is_for_and_to_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(tmp_path / "right") as right, serving(tmp_path / "wrong") as wrong:
        monkeypatch.setenv("SEALTRAIN_STORE_TOKEN", "canary-77aa")
        monkeypatch.setenv("SEALTRAIN_STORE_URL", f"{right.url}/runs")
        places = [
            (right, f"{right.url}/runs/one", True),
            (right, f"{right.url}/runs-of-others/one", False),
            (wrong, f"{wrong.url}/runs/one", False),
        ]
        for server, url, sent in places:
            server.seen.clear()
            with pytest.raises(DataInvalid):
                open_folder(url).read("index.json", 100)
            assert ("canary-77aa" in str(server.seen)) is sent
