"""A real broker over loopback HTTP, real simulated guests on unix sockets, real sealed data."""

from __future__ import annotations

import http.client
import json
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
from broker_site import broker_site
from world import OWNERS, Agreement, bound_to, identity, lock_changed

from sealtrain.attest.guest import Guest, open_guest
from sealtrain.base.clock import system_clock, to_rfc3339
from sealtrain.base.secret import Secret
from sealtrain.broker.config import BrokerConfig, BrokerLimits
from sealtrain.broker.serve import running as running_broker
from sealtrain.client.broker_api import BrokerClient
from sealtrain.client.broker_proof import AttestedBroker
from sealtrain.client.errors import BrokerUnreachable
from sealtrain.client.grant import AskedKey, Grant, KeyRequest, obtain, renew
from sealtrain.client.pin import BrokerPin
from sealtrain.consortium.approvals import ApprovalTally, DatasetPin
from sealtrain.consortium.datasets import load_dataset_manifest, sign_dataset
from sealtrain.consortium.errors import ApprovalRevoked, ApprovalsMissing
from sealtrain.errors import (
    DataInvalid,
    LedgerInconsistent,
    RecipeChanged,
    SealtrainError,
    UsageError,
)
from sealtrain.keys.derive import signing_key
from sealtrain.keys.uris import root_secret
from sealtrain.ledger.ledger import Ledger, verify_extension, verify_proof
from sealtrain.ledger.store import LedgerStore
from sealtrain.manifest.errors import ManifestMalformed
from sealtrain.recipe.lock import LockedRecipe
from sealtrain.release.errors import LeaseUnknown
from sealtrain.release.lease_code import Closing, manifest_key
from sealtrain.release.messages import MAX_REQUEST_BYTES
from sealtrain.sealing.datakey import DataKey
from sealtrain.sealing.hpke import HpkePublicKey
from sealtrain.sealing.opened_dataset import SealedDataset
from sealtrain.sealing.rewrap import read_stanzas
from sealtrain.sealing.sealer import NewDataset, seal_dataset
from sealtrain.sealing.stanza import (
    BrokerBinding,
    find_stanza,
    wrap_for_owner,
    wrap_for_recipe,
)
from sealtrain.signing.dsse import Envelope
from sealtrain.signing.http_signature import sign_request
from sealtrain.signing.identity import broker_id
from sealtrain_rehearsal.simulator.server import running as simulated_guest

pytestmark = pytest.mark.long


@dataclass(kw_only=True)
class Site(Agreement):
    """Where everything listens, and the owners' consortium."""

    folder: Path
    url: str
    pin: BrokerPin
    client: BrokerClient
    guests: ExitStack
    config: BrokerConfig

    def now(self) -> int:
        return system_clock()

    def attest(self, locked: LockedRecipe | None = None) -> AttestedBroker:
        locked = locked or self.locked
        return self.keys_from(self.client, self.pin, locked)

    def boot(self, locked: LockedRecipe) -> Guest:
        name = locked.compose_hash[:8]
        compose, socket = self.folder / f"{name}.json", self.folder / f"{name}.sock"
        if not socket.exists():
            compose.write_bytes(locked.compose_bytes)
            self.guests.enter_context(simulated_guest(socket, compose, self.folder / "simulator"))
        collateral = f"file:{self.folder}/simulator/collateral.json"
        return open_guest("simulator", str(socket), collateral=collateral)

    def seal(self, owner: str, rows: list[dict[str, Any]]) -> Path:
        me = identity(owner)
        attested = self.attest()
        source, out = self.folder / f"{owner}.jsonl", self.folder / f"{owner}.sealed"
        source.write_text("".join(json.dumps(row) + "\n" for row in rows))
        binding = bound_to(attested, owner)
        recipe_key = HpkePublicKey(attested.key_of(owner))
        seal_dataset(
            source,
            out,
            NewDataset(
                name="biopsies",
                owner_id=me.public.owner_id,
                owner_name=owner,
                binding=binding,
                stanzas=lambda key, dataset_id: (
                    wrap_for_owner(
                        key,
                        dataset_id=dataset_id,
                        owner_id=me.public.owner_id,
                        public=me.sealing.public,
                    ),
                    wrap_for_recipe(
                        key,
                        dataset_id=dataset_id,
                        binding=BrokerBinding.of(binding, attested.broker_id),
                        public=recipe_key,
                    ),
                ),
                sign=lambda described: sign_dataset(
                    described, me.signer, sealed_at=to_rfc3339(system_clock())
                ).to_bytes(),
            ),
        )
        with self.of(owner) as client:
            client.hand_in("dataset", Envelope.from_bytes((out / "dataset.json").read_bytes()))
        return out

    def of(self, owner: str) -> BrokerClient:
        """A client of one owner."""
        me, broker = identity(owner).signer, self.pin.broker_id
        return BrokerClient(self.url, timeout=20.0, signer=me, broker=broker)

    def status(self) -> ApprovalTally:
        return self.client.approvals_status(
            self.target, self.consortium, self.now(), needs=self.needs
        )

    def decide(self, owner: str, *, revoke: bool = False, folder: Path | None = None) -> int:
        pins = {}
        if not revoke:
            sealed = folder or self.folder / f"{owner}.sealed"
            manifest = load_dataset_manifest(sealed, self.consortium)
            pins["datasets"] = [DatasetPin(dataset_id=manifest.dataset_id, root=manifest.root)]
        with self.of(owner) as client:
            return client.hand_in("approval", self.decision(owner, revoke=revoke, **pins))

    def obtain(self, folders: list[Path], locked: LockedRecipe | None = None, **more: Any) -> Grant:
        locked = locked or self.locked
        asked = []
        for folder in folders:
            manifest = load_dataset_manifest(folder, self.consortium)
            binding = BrokerBinding(
                app_id=manifest.app_id,
                compose_hash=manifest.compose_hash,
                owner_id=manifest.owner_id,
                broker_id=self.pin.broker_id,
            )
            stanza = find_stanza(
                read_stanzas(folder)[1], kind="recipe", recipient=binding.recipient
            )
            asked.append(AskedKey(manifest.owner_id, manifest.dataset_id, manifest.root, stanza))
        arguments = {"run_id": os.urandom(16).hex(), "resume": False} | more
        return obtain(
            self.client,
            self.attest(locked),
            self.collect(locked),
            KeyRequest(recipe_hash=locked.recipe_hash, datasets=asked, **arguments),
        )

    def collect(self, locked: LockedRecipe) -> Any:
        return self.boot(locked).evidence


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    with ExitStack() as guests:
        made = guests.enter_context(broker_site(folder))
        config = replace(made.config("broker"), limits=BrokerLimits(posts_per_minute=100_000))
        url = guests.enter_context(running_broker(config))
        client = guests.enter_context(BrokerClient(url, timeout=20.0))
        yield Site(
            folder=folder,
            consortium=made.consortium,
            locked=made.locked,
            url=url,
            pin=made.pin.model_copy(update={"url": url}),
            client=client,
            guests=guests,
            config=config,
        )


@pytest.fixture(scope="module")
def folders(site: Site) -> list[Path]:
    return [
        site.seal(owner, [{"prompt": f"{owner} {row}", "completion": "benign"} for row in range(5)])
        for owner in OWNERS
    ]


def test_three_owners_two_approvals_one_run(site: Site, folders: list[Path]) -> None:
    status = site.status()
    assert (status.threshold, status.progress, status.sealed) == (2, 0, True)
    site.decide("hospital-a")
    with pytest.raises(ApprovalsMissing):
        site.obtain(folders)
    site.decide("hospital-b")
    status = site.status()
    assert (status.progress, status.sealed) == (2, False)

    grant = site.obtain(folders)
    assert grant.simulated
    for folder in folders:
        manifest = load_dataset_manifest(folder, site.consortium)
        with SealedDataset.open(
            folder,
            DataKey(grant.keys[manifest.dataset_id].reveal()),
            root=manifest.root,
        ) as opened:
            first = opened.batch(0).to_pylist()[0]
        assert first == {"prompt": f"{manifest.owner} 0", "completion": "benign"}

    renewed = renew(
        site.client,
        site.attest(),
        site.collect(site.locked),
        grant,
        checkpoint=(1, "aa" * 32),
    )
    assert renewed.latest_checkpoint is not None
    again = site.obtain(folders, run_id=grant.run_id, resume=True)
    assert again.latest_checkpoint == renewed.latest_checkpoint
    assert again.keys == grant.keys


def test_a_recipe_changed_after_approval_is_named_so(site: Site, folders: list[Path]) -> None:
    site.decide("hospital-a")
    other = lock_changed(
        site.consortium.consortium_id,
        site.locked.lock.brokers,
        lambda recipe: recipe["trainer"].update(max_steps=9),
    )
    with pytest.raises(RecipeChanged) as caught:
        site.obtain(folders, locked=other)
    assert caught.value.exit_code == 3
    assert caught.value.expected == site.locked.recipe_hash
    assert caught.value.hint


def test_the_ledger_proves_every_decision_and_its_own_growth(
    site: Site, folders: list[Path]
) -> None:
    attested = site.attest()
    kept = site.client.ledger_checkpoint()
    size = int(kept.splitlines()[1])
    index = site.decide("hospital-b")
    proof = site.client.ledger_proof(index)
    entry = verify_proof(proof, attested.signing_key, origin=attested.origin)
    assert entry["kind"] == "approval"
    assert entry["body"]["owner"] == "hospital-b"
    path = site.client.ledger_consistency(size, proof.size)
    grown = verify_extension(
        kept, proof.checkpoint, path, attested.signing_key, origin=attested.origin
    )
    assert grown.size == index + 1
    entries = site.client.ledger_entries(size, 10)
    assert entries == [entry]
    assert site.client.health().ledger_size == grown.size
    with pytest.raises(DataInvalid):
        site.client.ledger_proof(10_000)


def test_the_same_decision_twice_is_one(site: Site, folders: list[Path]) -> None:
    envelope = site.decision("hospital-c")
    with site.of("hospital-c") as client:
        assert client.hand_in("approval", envelope) == client.hand_in("approval", envelope)
        manifest = (folders[0] / "dataset.json").read_bytes()
        size = site.client.health().ledger_size
        client.hand_in("dataset", Envelope.from_bytes(manifest))
    assert site.client.health().ledger_size == size


def test_a_manifest_that_is_none_is_refused(site: Site, folders: list[Path]) -> None:
    site.decide("hospital-a")
    site.decide("hospital-b")
    grant = site.obtain(folders)
    closing = Closing(
        broker_id=site.attest().broker_id,
        lease_id=grant.lease_id,
        key=manifest_key(grant.lease_key),
    )
    with pytest.raises(ManifestMalformed):
        site.client.submit_manifest(b'{"version":1}', closing)


def test_a_manifest_of_a_run_that_got_no_keys_is_not_looked_at(site: Site) -> None:
    size = site.client.health().ledger_size
    closing = Closing(
        broker_id=site.attest().broker_id, lease_id="ab" * 32, key=Secret(bytes(range(32)))
    )
    with pytest.raises(LeaseUnknown):
        site.client.submit_manifest(b'{"version":1}', closing)
    for query in ("", "?run_id=", "?run_id=x", f"?run_id={'ab' * 16}"):
        answer = httpx2.post(f"{site.url}/v1/manifests{query}", content=b"{}", trust_env=False)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "lease-unknown")
    assert site.client.health().ledger_size == size


def test_the_consortium_is_served(site: Site) -> None:
    assert site.client.consortium(site.consortium.consortium_id) == site.consortium


POSTS = [
    "challenges",
    "releases",
    "renewals",
    "approvals",
    "datasets",
    "withdrawals",
    "successions",
    "ledger/cosignatures",
]


def post(site: Site, path: str, body: bytes) -> tuple[int, dict[str, Any]]:
    url, nonce = site.url + path, os.urandom(16).hex()
    me, broker = identity("hospital-a").signer, site.pin.broker_id
    signed = sign_request("POST", url, body, me, broker=broker, created=system_clock(), nonce=nonce)
    answer = httpx2.post(url, content=body, headers=signed, trust_env=False)
    assert "traceback" not in answer.text.lower()
    document = answer.json()
    assert set(document) == {"error"}
    return answer.status_code, document["error"]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "data-invalid"),
        (b"not json", "data-invalid"),
        (b"[]", "data-invalid"),
        (b'{"version":1,"version":1}', "data-invalid"),
        (b'{"version":1}', "data-invalid"),
        (b"[" * 100, "limit-exceeded"),
        (b'{"a":"\xff"}', "data-invalid"),
    ],
)
@pytest.mark.parametrize("path", POSTS)
def test_a_body_that_is_no_message(site: Site, path: str, body: bytes, code: str) -> None:
    size = site.client.health().ledger_size
    status, error = post(site, f"/v1/{path}", body)
    assert (status, error["code"]) == (400, code)
    assert site.client.health().ledger_size == size


def test_an_unknown_field_is_named(site: Site) -> None:
    body = {"version": 1, "consortium_id": "ab" * 32, "purpose": "release", "extra": 1}
    status, error = post(site, "/v1/challenges", json.dumps(body).encode())
    assert status == 400
    assert "'extra'" in error["message"]


@pytest.mark.parametrize("path", POSTS)
def test_an_oversize_body(site: Site, path: str) -> None:
    status, error = post(site, f"/v1/{path}", b" " * (MAX_REQUEST_BYTES + 1))
    assert (status, error["code"]) == (413, "request-too-large")


@pytest.mark.parametrize("name", ["signature-input", "authorization", "x-other", "cookie"])
def test_an_oversize_head(site: Site, name: str) -> None:
    """By the server where it came in parts, else before anything is done with it."""
    answer = httpx2.post(
        f"{site.url}/v1/approvals", headers={name: "a" * 100_000}, content=b"{}", trust_env=False
    )
    assert answer.status_code in (400, 431)
    assert site.client.health().status == "ok"


def test_as_many_header_lines_as_fit_are_refused_quickly(site: Site) -> None:
    lines = [("signature-input", f's{n}=();tag="sealtrain-owner"') for n in range(180)]
    lines += [("signature", f"s{n}=:AAAA:") for n in range(180)]
    began = time.monotonic()
    answer = httpx2.post(f"{site.url}/v1/approvals", headers=lines, content=b"{}", trust_env=False)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "signature-invalid")
    assert time.monotonic() - began < 10


def test_an_oversize_body_of_unannounced_length(site: Site) -> None:
    parts = urlsplit(site.url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=20)
    chunks = (b" " * 65536 for _ in range(MAX_REQUEST_BYTES // 65536 + 2))
    try:
        connection.request("POST", "/v1/releases", body=chunks, encode_chunked=True,
                           headers={"transfer-encoding": "chunked"})  # fmt: skip
        status = connection.getresponse().status
    except (BrokenPipeError, ConnectionResetError):
        status = 413  # the broker hung up first
    finally:
        connection.close()
    assert status == 413


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/nothing", 404),
        ("/v1/keys", 400),
        ("/v1/keys?app_id=XY&compose_hash=1&nonce=2", 400),
        ("/v1/keys/signed", 400),
        (f"/v1/keys/signed?app_id={40 * '0'}&compose_hash={64 * '0'}&owner_id=1&nonce=2", 400),
        ("/v1/ledger/proof?index=-1", 400),
        ("/v1/ledger/entries?limit=100000", 400),
        ("/v1/ledger/consistency?first=5&second=999999", 404),
        ("/v1/releases", 405),
    ],
)
def test_a_path_or_query_that_is_none(site: Site, path: str, status: int) -> None:
    answer = httpx2.get(site.url + path, trust_env=False)
    assert answer.status_code == status
    assert set(answer.json()) == {"error"}


def test_answers_are_not_cached(site: Site) -> None:
    assert (
        httpx2.get(site.url + "/v1/health", trust_env=False).headers["cache-control"] == "no-store"
    )


def test_the_documentation_names_every_body(site: Site) -> None:
    document = httpx2.get(site.url + "/openapi.json", trust_env=False).json()
    release = document["paths"]["/v1/releases"]["post"]
    schema = release["requestBody"]["content"]["application/json"]["schema"]
    assert schema == {"$ref": "#/components/schemas/ReleaseRequest"}
    named = json.dumps(document).count('"$ref": "#/components/schemas/')
    assert named > 20
    for reference in _references(document):
        assert reference.removeprefix("#/components/schemas/") in document["components"]["schemas"]
    assert "422" not in release["responses"]


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "$ref":
                yield inner
            else:
                yield from _references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _references(inner)


def test_a_failure_inside_is_told_to_nobody(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_self: object) -> str:
        raise RuntimeError("a secret reason")

    monkeypatch.setattr(Ledger, "checkpoint", broken)
    answer = httpx2.get(site.url + "/v1/ledger/checkpoint", trust_env=False)
    assert answer.status_code == 500
    assert answer.json() == {"error": {"code": "internal", "message": "the broker failed"}}
    assert "a secret reason" not in caplog.text
    assert "RuntimeError" in caplog.text
    with pytest.raises(BrokerUnreachable) as caught:
        site.client.ledger_checkpoint()
    assert caught.value.exit_code == 4


def test_a_ledger_that_cannot_be_written_answers_internal(
    site: Site, folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    pending = LedgerStore.pending

    class Full:
        def __init__(self, store: Any, connection: Any) -> None:
            self.pending = pending(store, connection)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.pending, name)

        def write(self) -> None:
            raise OSError("no space left on device")

    site.decide("hospital-a")
    site.decide("hospital-b")
    with monkeypatch.context() as patched:
        patched.setattr(LedgerStore, "pending", lambda *given: Full(*given))
        with pytest.raises(BrokerUnreachable):
            site.obtain(folders)
    site.obtain(folders)


def test_collateral_that_is_gone_is_the_brokers_own_failure(
    site: Site, folders: list[Path]
) -> None:
    path = Path(site.config.collateral.removeprefix("file:"))
    kept, size = path.read_bytes(), site.client.health().ledger_size
    path.unlink()
    try:
        answer = httpx2.get(
            site.url + "/v1/keys",
            params={"app_id": "a" * 40, "compose_hash": "b" * 64, "nonce": "c" * 64},
            trust_env=False,
        )
    finally:
        path.write_bytes(kept)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unreachable")
    assert str(site.folder) not in answer.text
    assert "check" not in answer.json()["error"]
    assert site.client.health().ledger_size == size


def test_a_broker_that_restarts_keeps_its_keys_and_its_ledger(
    site: Site, folders: list[Path]
) -> None:
    before = site.attest()
    with running_broker(site.config) as url, BrokerClient(url) as client:
        after = site.keys_from(client, site.pin)
        assert (after.keys, after.signing_key) == (before.keys, before.signing_key)
        assert client.ledger_checkpoint() == site.client.ledger_checkpoint()


def test_a_broker_with_another_root_secret_refuses_the_old_ledger(
    site: Site, tmp_path: Path
) -> None:
    config = replace(site.config, root_secret=f"file:{tmp_path / 'other'}")
    with pytest.raises(LedgerInconsistent), running_broker(config):
        pass


def test_a_port_that_is_taken(site: Site) -> None:
    port = urlsplit(site.url).port
    assert port is not None
    with pytest.raises(UsageError), running_broker(replace(site.config, port=port)):
        pass


def test_too_many_requests_a_minute(site: Site, tmp_path: Path) -> None:
    config = replace(
        site.config,
        state=tmp_path / "state",
        root_secret=f"file:{tmp_path / 'root'}",
        limits=BrokerLimits(posts_per_minute=1),
    )
    nonce = {"app_id": "a" * 40, "compose_hash": "b" * 64, "nonce": "c" * 64}
    with running_broker(config) as url, BrokerClient(url) as client:
        told = []
        for _ in range(3):  # at least two of them fall into one minute
            client.challenge(site.consortium.consortium_id, "release")  # costs nothing
            told.append(httpx2.get(f"{url}/v1/keys", params=nonce, trust_env=False).status_code)
        assert told[-1] == 429
        me = identity("hospital-a").signer
        foreign = site.decision("hospital-a", revoke=True, consortium_id="ab" * 32)
        key = signing_key(root_secret(config.root_secret), "broker").public
        with BrokerClient(url, signer=me, broker=broker_id(key)) as owner:
            codes = []
            for _ in range(3):  # at least two of them fall into one minute
                with pytest.raises(SealtrainError) as caught:
                    owner.hand_in("approval", foreign)
                codes.append(caught.value.code)
        assert codes[-1] == "too-many-requests"


def test_a_revocation_reaches_a_running_guest(site: Site, folders: list[Path]) -> None:
    """Last in this file: a revocation is final for its recipe."""
    site.decide("hospital-a")
    site.decide("hospital-b")
    grant = site.obtain(folders)
    site.decide("hospital-c", revoke=True)
    with pytest.raises(ApprovalRevoked) as caught:
        renew(site.client, site.attest(), site.collect(site.locked), grant)
    assert caught.value.owner == "hospital-c"
    with pytest.raises(ApprovalRevoked):
        site.obtain(folders)
