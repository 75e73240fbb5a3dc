"""Requests of owners: unsigned, stolen, repeated, redirected, late, and hidden in a flood."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
from http_server import Handler, http_served
from hypothesis import given, settings
from hypothesis import strategies as st
from owner_acts import BROKER, HTTP, approval, post, revocation, signed
from prometheus_client.parser import text_string_to_metric_families
from release_world import ReleaseWorld, config_of, release_world, served_world
from variants import examples
from world import DAY, NOW, digest, identity

from sealtrain.broker.config import BrokerLimits
from sealtrain.broker.serve import listening
from sealtrain.broker.service.service import Broker
from sealtrain.broker.store.memory import Store
from sealtrain.broker.store.tokens import TokenState, make_token
from sealtrain.client.broker_api import BrokerClient
from sealtrain.errors import SignatureInvalid, TooManyRequests, UsageError
from sealtrain.ledger.ledger import Ledger
from sealtrain.signing.errors import RequestStale
from sealtrain.signing.http_signature import verify_head
from sealtrain.signing.target import Target

pytestmark = pytest.mark.claim("C46")

Served = tuple[ReleaseWorld, str]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served_world(tmp_path_factory.mktemp("owners")) as both:
        yield both


def test_what_no_owner_signed_is_not_looked_at(served: Served) -> None:
    world, url = served
    path, body, size = f"{url}/v1/approvals", approval(world), world.ledger.size
    stranger = signed(path, body, owner="stranger")
    good = signed(path, body)
    kept = {name: value for name, value in good.items() if name.lower() != "signature"}
    for headers in ({}, stranger, kept, good | {"Signature": stranger["Signature"]}):
        assert post(path, body, headers) == (403, "signature-invalid")
    assert post(path, b"no json at all", {}) == (403, "signature-invalid")
    for other in ("datasets", "ledger/cosignatures"):
        assert post(f"{url}/v1/{other}", body, {}) == (403, "signature-invalid")
    assert world.ledger.size == size, "somebody who is no owner wrote to the ledger"
    assert post(path, body, good) == (200, None)
    assert world.ledger.size == size + 1


def test_a_request_that_was_taken_away_does_for_nothing_else(served: Served) -> None:
    world, url = served
    path, body, size = f"{url}/v1/approvals", approval(world), world.ledger.size
    headers = signed(path, body)
    assert post(path, body + b" ", headers) == (403, "signature-invalid")
    assert post(f"{url}/v1/datasets", body, headers) == (403, "signature-invalid")
    assert post(f"{path}?a=1", body, headers) == (403, "signature-invalid")
    again = headers | {"Content-Digest": signed(path, body + b" ")["Content-Digest"]}
    assert post(path, body + b" ", again) == (403, "signature-invalid")
    assert world.ledger.size == size
    # None of that used up the nonce: only its owner's own request does.
    assert post(path, body, headers) == (200, None)


def test_the_same_request_twice_is_refused(served: Served) -> None:
    world, url = served
    path, body = f"{url}/v1/approvals", approval(world)
    headers = signed(path, body)
    assert post(path, body, headers) == (200, None)
    size = world.ledger.size
    assert post(path, body, headers) == (403, "request-replayed")
    # Another signature over the same nonce is the same request too.
    nonce = headers["Signature-Input"].partition('nonce="')[2][:32]
    other = signed(path, body, at=NOW + 1, nonce=nonce)
    assert post(path, body, other) == (403, "request-replayed")
    assert world.ledger.size == size
    # The nonce of one owner is not another one's.
    theirs = signed(path, body, owner="hospital-b", nonce=nonce)
    assert post(path, body, theirs) == (200, None)


def test_a_nonce_burns_whatever_becomes_of_the_request(served: Served) -> None:
    _, url = served
    path, body = f"{url}/v1/approvals", b"{}"
    headers = signed(path, body)
    assert post(path, body, headers) == (400, "data-invalid")
    assert post(path, body, headers) == (403, "request-replayed")


def test_of_many_copies_at_once_one_is_taken(served: Served) -> None:
    world, url = served
    path, body = f"{url}/v1/approvals", approval(world)
    headers = signed(path, body)
    with ThreadPoolExecutor(12) as pool:
        told = list(pool.map(lambda _: post(path, body, headers), range(12)))
    assert sorted(told, key=str) == [(200, None)] + [(403, "request-replayed")] * 11


def test_a_request_seen_before_a_restart_is_refused_after_it(tmp_path: Path) -> None:
    with served_world(tmp_path) as (world, url):
        path, body = f"{url}/v1/approvals", approval(world)
        headers = signed(path, body)
        assert post(path, body, headers) == (200, None)
        parts = world.parts
    [state] = tmp_path.glob("state-*")
    with Ledger.open(
        state / "ledger.sqlite",
        origin=parts.ledger.origin,
        signer=parts.keyring.signer,
        clock=parts.clock,
    ) as ledger:
        again = Broker(replace(parts, store=Store(state / "broker.sqlite"), ledger=ledger))
        with listening(again, config_of(tmp_path, port=int(url.rpartition(":")[2]))) as same:
            assert same == url
            assert post(path, body, headers) == (403, "request-replayed")
            world.clock.advance(299)
            assert post(path, body, headers) == (403, "request-replayed")


def test_a_request_for_one_broker_is_worthless_at_another(served: Served, tmp_path: Path) -> None:
    """Both serve this consortium, and a network that lies names the first one to the second."""
    world, url = served
    body = approval(world)
    headers = signed(f"{url}/v1/approvals", body)
    with listening(world.broker, config_of(tmp_path)) as second:
        size = world.ledger.size
        own = second.removeprefix("http://")
        claimed = url.removeprefix("http://")
        for host in (own, claimed, "localhost", ""):
            told = post(f"{second}/v1/approvals", body, headers | {"host": host})
            assert told == (403, "signature-invalid")
        forwarded = {"x-forwarded-host": claimed, "forwarded": f"host={claimed}"}
        assert post(f"{second}/v1/approvals", body, headers | forwarded)[0] == 403
        assert world.ledger.size == size


@pytest.mark.claim("C92")
def test_of_two_brokers_behind_one_url_each_takes_its_own(served: Served, tmp_path: Path) -> None:
    """Tunnels give both one address: what an owner signed for one says which of them it is for."""
    world, _ = served
    config = config_of(tmp_path, public_urls=("http://tunnel.example",))
    asked, host = "http://tunnel.example/v1/approvals", {"host": "tunnel.example"}
    with (
        release_world(tmp_path, root=bytes(32)) as second,
        listening(world.broker, config) as one,
        listening(second.broker, config) as other,
    ):
        both = [world.pin.broker_id, second.pin.broker_id]
        ends = world.clock() + 3600
        decision = world.decision("hospital-c", datasets=[], not_after=ends, brokers=both)
        body, sizes = decision.to_bytes(), (world.ledger.size, second.ledger.size)
        headers = signed(asked, body) | host
        assert post(f"{other}/v1/approvals", body, headers) == (403, "broker-mismatch")
        named = headers | {"sealtrain-broker": second.pin.broker_id}
        assert post(f"{other}/v1/approvals", body, named) == (403, "signature-invalid")
        assert (world.ledger.size, second.ledger.size) == sizes
        assert post(f"{one}/v1/approvals", body, headers) == (200, None)
        theirs = signed(asked, body, broker=second.pin.broker_id) | host
        assert post(f"{one}/v1/approvals", body, theirs) == (403, "broker-mismatch")
        assert post(f"{other}/v1/approvals", body, theirs) == (200, None)


def test_behind_a_proxy_it_knows_itself_by_its_public_urls(served: Served, tmp_path: Path) -> None:
    world, _ = served
    public = ("https://broker.example/sealtrain", "http://[::1]:8470/")
    config = config_of(tmp_path, public_urls=public)
    with listening(world.broker, config) as url:
        for base in public:
            body = approval(world)
            asked = f"{base.rstrip('/')}/v1/approvals"
            host = httpx2.URL(asked).netloc.decode()
            told = post(f"{url}/v1/approvals", body, signed(asked, body) | {"host": host})
            assert told == (200, None)
        # Its own address is then none of them.
        body = approval(world)
        asked = f"{url}/v1/approvals"
        assert post(asked, body, signed(asked, body)) == (403, "signature-invalid")
    for wrong in ("broker.example", "ftp://a", "https://u:p@a", "https://a/?b=1", "https://ä.de"):
        with pytest.raises(UsageError) as caught:
            config_of(tmp_path, public_urls=(wrong,))
        assert "u:p" not in str(caught.value)


@pytest.mark.parametrize("at", [NOW - 301, NOW + 61, 0, -1])
def test_an_old_request_or_one_from_the_future(served: Served, at: int) -> None:
    world, url = served
    path, body = f"{url}/v1/approvals", approval(world)
    assert post(path, body, signed(path, body, at=at)) == (403, "request-stale")


def test_a_clock_that_is_set_back_revives_nothing(tmp_path: Path) -> None:
    with served_world(tmp_path) as (world, url):
        path, body = f"{url}/v1/approvals", approval(world)
        headers = signed(path, body)
        assert post(path, body, headers) == (200, None)
        world.clock.advance(1800)
        other = approval(world)
        assert post(path, other, signed(path, other, at=world.clock())) == (200, None)
        world.clock.advance(-1800)
        assert post(path, body, headers) == (403, "request-replayed")


@pytest.mark.parametrize("error", [-400 * DAY, -400, 400, 400 * DAY])
def test_an_owner_whose_clock_is_wrong_can_still_revoke(served: Served, error: int) -> None:
    world, url = served
    target = Target(app_id="0a" * 20, compose_hash="0b" * 32, recipe_hash=digest(str(error)))
    me = identity("hospital-b").signer
    with BrokerClient(url, signer=me, broker=BROKER, clock=lambda: NOW + error) as client:
        client.hand_in("approval", revocation(world, "hospital-b", target))
    assert world.broker.registry.tally(target).tally["revoked_by"] == ["hospital-b"]


def test_a_client_signs_again_once_and_no_more(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, url = served
    limits = world.broker.caps
    asked: list[int] = []
    honest = world.broker.owners.find_signer

    def never(**request: Any) -> object:
        asked.append(1)
        world.clock.advance(-limits.request_seconds * 2 * len(asked))
        try:
            return honest(**request)
        finally:
            world.clock.now = NOW

    monkeypatch.setattr(world.broker.owners, "find_signer", never)
    me = identity("hospital-c").signer
    with (
        BrokerClient(url, signer=me, broker=BROKER, clock=world.clock) as client,
        pytest.raises(RequestStale),
    ):
        client.hand_in("approval", sign_decision_of(world))
    assert len(asked) == 2


@contextmanager
def always_stale(date: str) -> Iterator[tuple[str, list[str]]]:
    """One in the broker's place that finds every request stale; its URL and what it was asked."""
    asked: list[str] = []
    body = json.dumps({"error": {"code": RequestStale.code, "message": "stale"}}).encode()

    class Stale(Handler):
        def do_POST(self) -> None:
            asked.append(self.path)
            self.body()
            self.send_response_only(403)
            for name, value in (("date", date), ("content-length", str(len(body)))):
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

    with http_served(Stale) as url:
        yield url, asked


@pytest.mark.parametrize(
    ("date", "times"),
    [
        ("Mon, 01 Jan 2026 00:00:00 GMT", 2),
        ("Mon, 01 Jan 99999999999999999999 00:00:00 GMT", 1),
        ("Mon, 99999999999999999999 Jan 2026 00:00:00 GMT", 1),
        ("Mon, 01 Jan 2026 00:00:00 +9999999999999999999999", 1),
        ("soon", 1),
    ],
)
def test_whatever_date_a_broker_answers_with_a_client_ends_in_its_refusal(
    served: Served, date: str, times: int
) -> None:
    world, _url = served
    me = identity("hospital-c").signer
    with (
        always_stale(date) as (url, asked),
        BrokerClient(url, signer=me, broker=BROKER, clock=world.clock) as client,
        pytest.raises(RequestStale),
    ):
        client.hand_in("approval", sign_decision_of(world))
    assert len(asked) == times


def sign_decision_of(world: ReleaseWorld) -> Any:
    from sealtrain.signing.dsse import Envelope

    return Envelope.from_bytes(approval(world))


def test_a_client_without_an_identity_hands_nothing_in(served: Served) -> None:
    world, url = served
    with BrokerClient(url) as client, pytest.raises(UsageError):
        client.hand_in("approval", sign_decision_of(world))
    stranger = identity("stranger").signer
    with (
        BrokerClient(url, signer=stranger, broker=BROKER, clock=world.clock) as client,
        pytest.raises(SignatureInvalid),
    ):
        client.hand_in("approval", sign_decision_of(world))


def test_no_flood_keeps_an_owner_from_revoking(tmp_path: Path) -> None:
    limits = BrokerLimits(posts_per_minute=4, posts_per_address=1000, posts_per_owner=2)
    with served_world(tmp_path, limits=limits) as (world, url):
        flood = [post(f"{url}/v1/releases", b"{}", {})[0] for _ in range(8)]
        assert flood[-1] == 429
        unsigned = [post(f"{url}/v1/approvals", b"{}", {})[0] for _ in range(8)]
        assert set(unsigned) == {403}
        # Nor does another owner.
        loud = identity("hospital-a").signer
        with BrokerClient(url, signer=loud, broker=BROKER, clock=world.clock) as client:
            for _ in range(2):
                client.hand_in("approval", sign_decision_of(world))
            with pytest.raises(TooManyRequests):
                client.hand_in("approval", sign_decision_of(world))
        me = identity("hospital-b").signer
        with BrokerClient(url, signer=me, broker=BROKER, clock=world.clock) as client:
            client.hand_in("approval", revocation(world, "hospital-b"))
        assert world.broker.registry.tally(world.target).tally["revoked_by"] == ["hospital-b"]


def test_every_refusal_at_the_door_is_counted(served: Served) -> None:
    world, url = served
    token = make_token(os.urandom)
    made = TokenState(name="door", scope="metrics", made_at=NOW, not_after=NOW + DAY)
    with world.store.transaction() as transaction:
        transaction.tokens.add(token, made)

    def counted() -> dict[str, float]:
        page = HTTP.get(f"{url}/metrics", headers={"authorization": f"Bearer {token}"}).text
        return {
            sample.labels["reason"]: sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
            if sample.name == "policy_violations_total"
        }

    before = counted()
    path, body = f"{url}/v1/approvals", approval(world)
    headers = signed(path, body)
    assert post(path, body, headers) == (200, None)
    post(path, body, headers)
    post(path, body, {})
    post(path, body, signed(path, body, at=0))
    after = counted()
    for reason in ("request-replayed", "signature-invalid", "request-stale"):
        assert after[reason] - before.get(reason, 0) == 1


HEADERS = st.sampled_from(["signature", "signature-input", "content-digest"])
TEXT = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=60)


@settings(max_examples=examples(100), deadline=None)
@given(changes=st.dictionaries(HEADERS, TEXT, min_size=1), cut=st.integers(0, 200))
def test_nonsense_in_the_signature_is_refused_and_breaks_nothing(
    changes: dict[str, str], cut: int
) -> None:
    url, body, me = "http://127.0.0.1:1/v1/approvals", b"{}", identity("hospital-c")
    headers = {name.lower(): value for name, value in signed(url, body).items()}
    signature_input = headers["signature-input"]
    for name, text in changes.items():
        headers[name] = headers[name][:cut] + text + headers[name][cut + 1 :]
    try:
        head = verify_head(
            "POST",
            url,
            headers.items(),
            {me.public.key_id: me.public.signing_bytes},
            brokers=(BROKER,),
            now=NOW,
            max_age=300,
            max_ahead=60,
        )
        found = head.require_body(body)
    except (SignatureInvalid, RequestStale):
        return
    # Another spelling of the very same signature: base64 may lack its padding.
    assert f'nonce="{found.nonce}"' in signature_input
    assert (found.key_id, found.created) == (me.public.key_id, NOW)
