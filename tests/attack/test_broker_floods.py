"""Floods of strangers against a broker's process: no revocation and no renewal is kept out.

Every flood is bounded and goes on while the owner, or the guest, asks. Addresses are those of the
loopback network.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from http.client import HTTPConnection, HTTPException
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from broker_site import ProcessSite, process_site
from manifest_world import make_world
from owner_acts import ACTS, BROKER, HTTP, Asking, approval, post, revocation, signed
from polling import wait_until
from release_world import release_world, served_world
from world import OWNERS

from sealtrain.base.canonical import canonical_json
from sealtrain.base.digests import sha256_hex
from sealtrain.base.secret import Secret
from sealtrain.broker.config import BrokerLimits
from sealtrain.client.broker_api import BrokerClient
from sealtrain.client.grant import Grant
from sealtrain.consortium.errors import ApprovalRevoked, ApprovalUnknown
from sealtrain.errors import TooManyRequests
from sealtrain.keys.derive import recipe_key
from sealtrain.release.lease_code import (
    LEASE_HEADER,
    Closing,
    manifest_key,
    show_lease,
    show_manifest,
)
from sealtrain.release.messages import RenewalRequest
from sealtrain.sealing.hpke import HpkePrivateKey
from sealtrain.signing.target import Target

pytestmark = [
    pytest.mark.long,
    pytest.mark.claim("C96"),
    pytest.mark.claim("C46"),
    pytest.mark.claim("C44"),
]

STRANGER = "127.0.0.66"


def numbers() -> bytes:
    return b'{"a":[' + b",".join([b"1e-7"] * 1_600_000) + b"]}"


def quotes() -> bytes:
    return b'"' + b'\\"' * 900_000


def keys() -> bytes:
    return json.dumps({f"k{number}": 1 for number in range(60_000)}).encode()


@contextmanager
def serving(folder: Path, **limits: int) -> Iterator[tuple[ProcessSite, Asking]]:
    """A broker's own process, with the limits of a real one."""
    with process_site(folder) as site:
        site.fields["limits"] = limits
        process, url = site.start()
        try:
            made = Asking(site.world, site.attested, url)
            made.grant = made.obtain()
            yield site, made
        finally:
            assert process.end() == 0


def asked_from(
    url: str, address: str, method: str, path: str, body: bytes | None, headers: dict[str, str]
) -> int:
    """One request from a loopback address; its status, 0 where the connection was cut."""
    parts = urlsplit(url)
    made = HTTPConnection(parts.hostname or "", parts.port, timeout=60, source_address=(address, 0))
    try:
        made.request(method, path, body, headers)
        answer = made.getresponse()
        answer.read()
    except (OSError, HTTPException):
        return 0
    else:
        return answer.status
    finally:
        made.close()


@contextmanager
def flood(count: int, act: Callable[[int], int]) -> Iterator[Counter[int]]:
    """So many threads that repeat ``act`` until the block ends; yields what they were told."""
    over, told, counting = threading.Event(), Counter[int](), threading.Lock()

    def repeat(number: int) -> None:
        while not over.is_set():
            status = act(number)
            with counting:
                told[status] += 1

    threads = [threading.Thread(target=repeat, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: sum(told.values()) >= count, 60)
        yield told
    finally:
        over.set()
        for thread in threads:
            thread.join()


def held_through(made: Asking) -> None:
    """A guest renews, then an owner revokes, and the guest's next renewal finds that."""
    made.renew()
    ACTS["revocation"](made)
    with pytest.raises(ApprovalRevoked):
        made.renew()


# --- What is costly to look at --------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "body"),
    [
        pytest.param("manifests", numbers, id="manifest of numbers", marks=pytest.mark.nightly),
        pytest.param("manifests", quotes, id="manifest of quotes", marks=pytest.mark.nightly),
        pytest.param("releases", quotes, id="quotes"),
        pytest.param("releases", keys, id="keys", marks=pytest.mark.nightly),
        pytest.param("challenges", numbers, id="challenge of numbers", marks=pytest.mark.nightly),
    ],
)
def test_bodies_that_are_costly_to_parse(
    tmp_path: Path, path: str, body: Callable[[], bytes]
) -> None:
    """Each address is another one, so that none is turned away for asking too often."""
    with serving(tmp_path, posts_per_minute=100_000) as (_site, made):
        assert made.grant is not None
        target = f"/v1/{path}" + (f"?run_id={made.grant.run_id}" if path == "manifests" else "")
        kind = {"content-type": "application/json"}
        costly = body()

        def send(number: int) -> int:
            return asked_from(made.url, f"127.0.1.{number + 1}", "POST", target, costly, kind)

        with flood(24, send) as told:
            held_through(made)
        assert 200 not in told
        assert set(told) <= {0, 400, 403, 413, 429}


@pytest.mark.slow
def test_pages_of_the_ledger(tmp_path: Path) -> None:
    with serving(tmp_path) as (site, made):
        for number in range(40):
            with made.owner("hospital-c") as owner:
                target = Target(
                    app_id="0a" * 20, compose_hash="0b" * 32, recipe_hash=f"{number:064x}"
                )
                owner.hand_in("approval", revocation(site.world, "hospital-c", target))
        pages = (
            "/v1/ledger/entries?start=0&limit=1000",
            "/v1/ledger/cosigned",
            "/v1/approvals?"
            + ("&".join(f"{name}={value}" for name, value in site.world.target.to_dict().items())),
        )

        def read(number: int) -> int:
            page = pages[number % len(pages)]
            return asked_from(made.url, f"127.0.1.{number + 1}", "GET", page, None, {})

        with flood(32, read) as told:
            held_through(made)
        assert told[200]


def test_a_page_is_bounded_in_bytes_and_leaves_nothing_out(tmp_path: Path) -> None:
    with served_world(tmp_path) as (world, url):
        body = {"action": "release", "code": "x" * 60_000}
        for _ in range(9):
            world.ledger.append("refusal", body)
        answered = HTTP.get(f"{url}/v1/ledger/entries", params={"limit": 1000})
        assert len(answered.content) < 300_000
        assert answered.content == canonical_json(answered.json())
        with BrokerClient(url) as client:
            found: list[object] = []
            while page := client.ledger_entries(len(found), 1000):
                found += page
        assert found == world.ledger.entries()


# --- Copies ---------------------------------------------------------------------------------------


def test_a_captured_request_takes_nothing_from_its_owner(tmp_path: Path) -> None:
    limits = BrokerLimits(posts_per_owner=2, posts_per_address=1000)
    with served_world(tmp_path, limits=limits) as (world, url):
        path, body = f"{url}/v1/approvals", approval(world)
        headers = signed(path, body)
        assert post(path, body, headers) == (200, None)
        told = Counter(post(path, body, headers) for _ in range(60))
        assert told == {(403, "request-replayed"): 60}
        ACTS["revocation"](Asking(world, world.attest(), url))


def test_a_captured_request_is_refused_before_its_body_is_read(tmp_path: Path) -> None:
    """Its head alone: the copy cannot hold what is its owner's by sending the rest slowly."""
    with served_world(tmp_path) as (world, url):
        path, body = f"{url}/v1/approvals", approval(world)
        headers = signed(path, body)
        assert post(path, body, headers) == (200, None)
        parts = urlsplit(url)
        with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=20) as slow:
            head = {"Host": parts.netloc, "Content-Length": str(len(body))} | headers
            lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
            slow.sendall(f"POST /v1/approvals HTTP/1.1\r\n{lines}\r\n".encode())
            assert slow.recv(64).startswith(b"HTTP/1.1 403")


def renewal_sent(made: Asking) -> tuple[bytes, dict[str, str]]:
    """A renewal as it went over the wire."""
    sent: list[tuple[bytes, dict[str, str]]] = []

    class Tapped(BrokerClient):
        def renew(self, request: RenewalRequest, lease_key: Secret) -> object:  # type: ignore[override]
            body = canonical_json(request.to_dict())
            sent.append((body, show_lease(request.lease_id, lease_key, body)))
            return super().renew(request, lease_key)

    from sealtrain.client.grant import renew

    assert made.grant is not None
    with Tapped(made.url) as client:
        renew(client, made.attested, made.world.collect(made.world.guest()), made.grant)
    return sent[-1]


def test_a_captured_renewal_takes_nothing_from_the_lease(tmp_path: Path) -> None:
    limits = BrokerLimits(posts_per_lease=2, posts_per_minute=20, posts_per_address=1000)
    with served_world(tmp_path, limits=limits) as (world, url):
        made = Asking(world, world.attest(), url)
        made.grant = made.obtain()
        body, shown = renewal_sent(made)
        told = Counter(post(f"{url}/v1/renewals", body, shown) for _ in range(40))
        # Copies count for all strangers together, and refusals in the ledger are as few.
        assert set(told) == {(403, "challenge-replayed"), (429, "too-many-requests")}
        made.renew()


# --- Counts ---------------------------------------------------------------------------------------


def test_strangers_use_up_what_is_for_all_and_nothing_else(tmp_path: Path) -> None:
    limits = BrokerLimits(posts_per_minute=6, posts_per_address=1000)
    with served_world(tmp_path, limits=limits) as (world, url):
        made = Asking(world, world.attest(), url)
        made.grant = made.obtain()
        told = [post(f"{url}/v1/releases", b"{}", {})[0] for _ in range(12)]
        assert told[-1] == 429
        with pytest.raises(TooManyRequests):
            made.obtain()
        for _ in range(3):
            made.renew()
        for _ in range(20):  # without a count
            assert HTTP.get(f"{url}/v1/health").status_code == 200
        held_through(made)


def test_a_renewal_without_its_lease_shown_counts_for_all(tmp_path: Path) -> None:
    limits = BrokerLimits(posts_per_minute=2, posts_per_address=1000)
    with served_world(tmp_path, limits=limits) as (world, url):
        made = Asking(world, world.attest(), url)
        made.grant = made.obtain()
        body, shown = renewal_sent(made)
        lease_id, digest, code = shown[LEASE_HEADER].split()
        wrong = [
            "",
            shown[LEASE_HEADER][:-1],
            f"{lease_id} {digest} {'0' * 64}",
            f"{'0' * 64} {digest} {code}",
            f"{lease_id} {'0' * 64} {code}",
        ]
        told = [post(f"{url}/v1/renewals", body, {LEASE_HEADER: fault})[0] for fault in wrong]
        assert told[-3:] == [429] * 3
        # Shown, but for another body: it is not looked at, and takes nothing.
        size = world.ledger.size
        assert post(f"{url}/v1/renewals", body + b" ", shown) == (403, "signature-invalid")
        assert world.ledger.size == size
        made.renew()


def test_a_lease_key_of_the_root_secret_before_still_shows_the_lease(tmp_path: Path) -> None:
    from sealtrain.broker.service.keyring import Keyring
    from sealtrain.keys.derive import derive
    from sealtrain.release.lease_code import read_lease_header

    old, new = Secret(bytes([1]) * 32), Secret(bytes([2]) * 32)
    key = derive(old, "lease-key", "ab" * 32)
    shown = read_lease_header(show_lease("ab" * 32, key, b"{}")[LEASE_HEADER])
    assert shown is not None
    assert Keyring(new, [old]).has_granted(shown)
    assert not Keyring(new).has_granted(shown)
    for text in ("", "x", "ab " * 3, show_lease("ab" * 32, key, b"{}")[LEASE_HEADER].upper()):
        assert read_lease_header(text) is None


def test_a_stranger_who_asks_for_one_owners_key_has_one_key_derived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a large consortium every other owner's key would be derived for nothing."""
    derived: list[tuple[str, str]] = []

    def counted(root: Secret, *, app_id: str, compose_hash: str, owner_id: str) -> HpkePrivateKey:
        derived.append((app_id, owner_id))
        return recipe_key(root, app_id=app_id, compose_hash=compose_hash, owner_id=owner_id)

    monkeypatch.setattr("sealtrain.broker.service.keyring.recipe_key", counted)
    names = (*OWNERS, *(f"hospital-{number}" for number in range(60)))
    with release_world(tmp_path, owners=names) as world:
        owners = world.consortium.owners
        assert len(owners) == 63
        derived.clear()
        for number in range(5):
            for nonce in ("1", "2"):
                world.broker.sealing_key(
                    app_id=f"{number:040x}",
                    compose_hash="0" * 64,
                    owner_id=owners[-1].owner_id,
                    nonce=nonce * 64,
                )
        assert derived == [(f"{number:040x}", owners[-1].owner_id) for number in range(5)]
        with pytest.raises(ApprovalUnknown):
            world.broker.sealing_key(
                app_id="9" * 40, compose_hash="0" * 64, owner_id="0" * 64, nonce="0" * 64
            )
        assert len(derived) == 5


def closing_of(grant: Grant) -> Closing:
    """What a guest, or the lead of its parties, shows a broker with the run's manifest."""
    lease_id, key = grant.lease_id, manifest_key(grant.lease_key)
    return Closing(broker_id=BROKER, lease_id=lease_id, key=key)


def test_one_run_is_handed_in_so_often(tmp_path: Path) -> None:
    with served_world(tmp_path) as (world, url):
        made = Asking(world, world.attest(), url)
        first, second = made.obtain(), made.obtain()
        size = world.ledger.size
        path = f"{url}/v1/manifests"
        told = [
            post(path, body, show_manifest(closing_of(first), body))[0]
            for body in (bytes([number]) for number in range(20))
        ]
        assert told == [403] * 8 + [429] * 12
        assert world.ledger.size == size + 8
        assert post(path, b"{}", show_manifest(closing_of(second), b"{}"))[0] == 403
        assert world.ledger.size == size + 9


def strangers(first: Grant, other: Grant, body: bytes) -> Iterator[tuple[str, dict[str, str]]]:
    """Heads that a caller without the key of the run's lease can send, and its path's query."""
    yield f"?run_id={first.run_id}", {}
    yield "", {LEASE_HEADER: f"{first.lease_id} {'00' * 32} {'00' * 32}"}
    yield "", {LEASE_HEADER: "x"}
    yield "", show_lease(first.lease_id, first.lease_key, body)  # of a renewal that it saw
    yield "", show_manifest(replace(closing_of(other), lease_id=first.lease_id), body)
    made_up = Closing(broker_id=BROKER, lease_id=first.lease_id, key=Secret(bytes(32)))
    yield "", show_manifest(made_up, body)
    of_the_lease = replace(closing_of(first), key=first.lease_key)
    yield "", show_manifest(of_the_lease, body)


def test_no_stranger_uses_up_what_counts_for_a_run(tmp_path: Path) -> None:
    """The run id and the lease id stand in the public ledger; its key does not."""
    with served_world(tmp_path) as (world, url):
        made = Asking(world, world.attest(), url)
        first, other = made.obtain(), made.obtain()
        size = world.ledger.size
        path = f"{url}/v1/manifests"
        for _ in range(10):
            for query, head in strangers(first, other, b"junk"):
                assert post(f"{path}{query}", b"junk", head) == (403, "lease-unknown")
        # A head that it saw on the way, before another body.
        seen = show_manifest(closing_of(first), b"{}")
        for _ in range(10):
            assert post(path, b"junk", seen) == (403, "signature-invalid")
        assert world.ledger.size == size
        told = [post(path, b"{}", seen)[0] for _ in range(8)]
        assert told == [403] * 8
        assert world.ledger.size == size + 8


@pytest.mark.claim("C592")
def test_a_guest_with_many_leases_keeps_no_other_run_from_being_recorded(tmp_path: Path) -> None:
    with served_world(tmp_path) as (world, url):
        made = Asking(world, world.attest(), url)
        leases, victim = [made.obtain() for _ in range(10)], made.obtain()
        folder = tmp_path / "runs"
        folder.mkdir()
        junk = make_world(folder, rules={"own_data_consent": False}, brokers=(BROKER,)).manifest()
        numbers = count()

        def hand_in(grant: Grant) -> int:
            body = junk + b" " * next(numbers)
            return post(f"{url}/v1/manifests", body, show_manifest(closing_of(grant), body))[0]

        served = [hand_in(lease) for lease in leases]
        assert served == [403] * len(leases)
        with flood(len(leases), lambda number: hand_in(leases[number])) as told:
            # Looked at: it is another run's. At the turn of a minute all are equal once.
            assert any(hand_in(victim) == 403 for _ in range(3))
        assert told[429] > 0


def test_a_guest_hands_in_the_manifest_of_its_own_run_alone(tmp_path: Path) -> None:
    with served_world(tmp_path) as (world, url):
        lease = Asking(world, world.attest(), url).obtain()
        folder = tmp_path / "runs"
        folder.mkdir()
        others = make_world(folder, rules={"own_data_consent": False}, brokers=(BROKER,))
        manifest = others.manifest()
        head = show_manifest(closing_of(lease), manifest)
        assert post(f"{url}/v1/manifests", manifest, head) == (403, "run-mismatch")


def test_a_manifest_that_was_recorded_counts_no_more(tmp_path: Path) -> None:
    with served_world(tmp_path) as (world, url):
        lease = Asking(world, world.attest(), url).obtain()
        manifest = b"recorded before"
        with world.store.transaction() as transaction:
            transaction.add_manifest(sha256_hex(manifest), lease.run_id, ledger_index=0)
        head = show_manifest(closing_of(lease), manifest)
        assert {post(f"{url}/v1/manifests", manifest, head)[0] for _ in range(20)} == {200}


def test_a_failure_is_counted_for_the_holder_of_its_lease_alone(tmp_path: Path) -> None:
    with served_world(tmp_path) as (world, url):
        made = Asking(world, world.attest(), url)
        first, other = made.obtain(), made.obtain()
        named = {"run_id": first.run_id, "lease_id": first.lease_id}
        body = canonical_json({"version": 1, **named, "code": "rank-lost"})
        size = world.ledger.size
        heads = [
            {},
            {LEASE_HEADER: f"{first.lease_id} {'00' * 32} {'00' * 32}"},
            show_lease(first.lease_id, other.lease_key, body),
            show_manifest(closing_of(first), body),
        ]
        for head in heads * 10:
            assert post(f"{url}/v1/failures", body, head) == (403, "lease-unknown")
        assert world.ledger.size == size
        shown = show_lease(first.lease_id, first.lease_key, body)
        assert post(f"{url}/v1/failures", body, shown)[0] == 200


# --- Connections ----------------------------------------------------------------------------------


def hold(url: str, address: str, count: int, said: bytes, held: ExitStack) -> int:
    """Open connections that say something unfinished and wait."""
    parts, opened = urlsplit(url), 0
    for _ in range(count):
        made = held.enter_context(socket.socket())
        made.settimeout(5)
        try:
            made.bind((address, 0))
            made.connect((parts.hostname, parts.port))
            made.sendall(said)
            opened += 1
        except OSError:
            continue
    return opened


HEAD = b"GET /v1/health HTTP/1.1\r\nhost: x\r\n"
BODY = b"POST /v1/releases HTTP/1.1\r\nhost: x\r\ncontent-length: 2000000\r\n\r\n" + b" " * 60_000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("said", "addresses"),
    [
        pytest.param(b"", 200, id="nothing of 200", marks=pytest.mark.nightly),
        pytest.param(HEAD, 1, id="heads of 1"),
        pytest.param(HEAD, 3, id="heads of 3", marks=pytest.mark.nightly),
        pytest.param(HEAD, 200, id="heads of 200", marks=pytest.mark.nightly),
        pytest.param(BODY, 200, id="bodies of 200"),
    ],
)
def test_connections_that_wait(tmp_path: Path, said: bytes, addresses: int) -> None:
    limits = {"posts_per_minute": 100_000, "body_bytes": 4 << 20}
    with serving(tmp_path, **limits) as (_site, made), ExitStack() as held:
        opened = sum(
            hold(made.url, f"127.0.{2 + number // 200}.{1 + number % 200}", count, said, held)
            for number in range(addresses)
            for count in [600 // addresses]
        )
        assert opened > 300
        held_through(made)


@pytest.mark.slow
def test_connections_that_come_again_and_again(tmp_path: Path) -> None:
    """As many as a flood can open, each from another address, while the owner asks."""
    with serving(tmp_path) as (_site, made):

        def connect(number: int) -> int:
            with ExitStack() as held:
                for turn in range(20):
                    hold(made.url, f"127.0.{3 + number}.{1 + turn}", 1, HEAD, held)
                time.sleep(0.2)
            return 0

        with flood(8, connect):
            held_through(made)


def test_one_who_shares_the_floods_address_gets_in(tmp_path: Path) -> None:
    limits = BrokerLimits(connections_per_address=16, posts_per_minute=40)
    with served_world(tmp_path, limits=limits) as (world, url), ExitStack() as held:
        made = Asking(world, world.attest(), url)
        made.grant = made.obtain()
        hold(url, "127.0.0.1", 64, HEAD, held)
        while post(f"{url}/v1/releases", b"{}", {})[0] != 429:
            continue
        held_through(made)


# --- Challenges -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_challenges_that_nobody_uses(tmp_path: Path) -> None:
    with serving(tmp_path) as (site, made):
        body = canonical_json(
            {
                "version": 1,
                "consortium_id": site.world.consortium.consortium_id,
                "purpose": "release",
            }
        )
        size = sum(path.stat().st_size for path in site.state.iterdir())

        def ask(number: int) -> int:
            address = f"127.0.{1 + number % 4}.1"
            return asked_from(made.url, address, "POST", "/v1/challenges", body, {})

        with flood(8, ask) as told:
            wait_until(lambda: told[200] >= 1500, 60)
            made.renew()
        grown = sum(path.stat().st_size for path in site.state.iterdir()) - size
        assert grown < 512 << 10  # the renewal's own, and no challenge's
        held_through(made)


# --- A flood of refusals and of nonsense ----------------------------------------------------------


@pytest.mark.slow
def test_heads_that_claim_to_be_an_owners(tmp_path: Path) -> None:
    """Each costs a look at a signature; none gets a slot, a thread or a count of an owner."""
    with serving(tmp_path) as (site, made):
        path, body = f"{made.url}/v1/approvals", approval(site.world)
        good = signed(path, body)
        wrong = good | {"Signature": "owner=:" + "A" * 86 + "==:"}
        endless = good | {"Signature-Input": "owner=(" + '"a" ' * 3000 + ")"}

        def claim(number: int) -> int:
            headers = (wrong, endless)[number % 2]
            return asked_from(
                made.url, f"127.0.1.{number + 1}", "POST", "/v1/approvals", body, headers
            )

        with flood(24, claim) as told:
            held_through(made)
        assert set(told) <= {0, 403}


def test_a_body_that_comes_slowly_holds_nothing_of_the_owners(tmp_path: Path) -> None:
    """An owner's own head, withheld from the broker until now: its slot and no more."""
    with served_world(tmp_path) as (world, url), ExitStack() as held:
        parts = urlsplit(url)
        path = f"{url}/v1/approvals"
        for _ in range(12):
            body = approval(world)
            headers = signed(path, body, owner="hospital-b")
            slow = held.enter_context(
                socket.create_connection((parts.hostname or "", parts.port or 0), timeout=20)
            )
            head = {"Host": parts.netloc, "Content-Length": str(len(body))} | headers
            lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
            slow.sendall(f"POST /v1/approvals HTTP/1.1\r\n{lines}\r\n".encode() + body[:10])
        made = Asking(world, world.attest(), url)
        made.grant = made.obtain()
        held_through(made)
