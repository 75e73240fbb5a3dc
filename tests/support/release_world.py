"""Three owners, one broker and as many guests as a test wants, from real parts in one process.

``Wire`` stands where HTTP would be: every message crosses it as JSON bytes, a test may alter them
on the way, and all that ever left the broker is kept to be searched for keys.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from broker_tables import with_tables
from world import (
    NOW,
    OWNERS,
    Agreement,
    booted,
    bound_to,
    digest,
    founded,
    identity,
    lock_changed,
    signed_dataset,
    simulated_pki,
)

from sealtrain.attest.evidence import Evidence
from sealtrain.attest.policy import AppraisalPolicy
from sealtrain.attest.presets import insecure_simulator_policy
from sealtrain.attest.report_data import Binding
from sealtrain.base.canonical import canonical_json, parse_json
from sealtrain.base.digests import sha256_hex
from sealtrain.base.encoding import from_base64, to_base64
from sealtrain.base.secret import Secret
from sealtrain.broker.config import AnswerSettings, BrokerConfig, BrokerLimits
from sealtrain.broker.serve import listening
from sealtrain.broker.service.controllers import Controllers
from sealtrain.broker.service.keyring import Keyring
from sealtrain.broker.service.parts import BrokerParts
from sealtrain.broker.service.service import Broker
from sealtrain.broker.store.memory import Store
from sealtrain.client.broker_proof import AttestedBroker
from sealtrain.client.grant import AskedKey, Grant, KeyRequest, obtain, renew
from sealtrain.client.pin import BrokerPin
from sealtrain.consortium.approvals import DatasetPin
from sealtrain.consortium.chainfile import ChainFile
from sealtrain.consortium.receipts import OwnedId, RunDataset
from sealtrain.errors import Refused, SealtrainError
from sealtrain.keys.derive import signing_key
from sealtrain.ledger.audit import Auditor, AuditReport
from sealtrain.ledger.ledger import Ledger, LedgerProof
from sealtrain.ledger.postgres import Postgres
from sealtrain.recipe.lock import LockedRecipe
from sealtrain.release.messages import (
    Accepted,
    BrokerIdentity,
    BrokerKeys,
    Challenge,
    ChallengeRequest,
    EnvelopeDocument,
    ReleaseAnswer,
    ReleaseRequest,
    RenewalAnswer,
    RenewalRequest,
    ledger_origin,
    load_message,
)
from sealtrain.sealing.datakey import DataKey
from sealtrain.sealing.hpke import HpkePublicKey
from sealtrain.sealing.stanza import BrokerBinding, Stanza, wrap_for_recipe
from sealtrain.signing.dsse import Envelope
from sealtrain.signing.identity import broker_id
from sealtrain_chain.chain_condition import ChainGate
from sealtrain_rehearsal.simulator.guest import SimulatedGuest
from sealtrain_rehearsal.simulator.pki import SimulatedPki

ROOT = bytes(range(32))
BROKER_COMPOSE = canonical_json({"name": "sealtrain-broker", "manifest_version": 2})

Tamper = Callable[[dict[str, Any]], None]


class TestClock:
    """A clock that stands still until it is told otherwise."""

    __test__ = False

    def __init__(self, now: int = NOW) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now

    def advance(self, seconds: int) -> None:
        self.now += seconds


@dataclass(frozen=True, kw_only=True)
class SealedSet:
    """What the broker and a guest see of one owner's sealed dataset."""

    owner: str
    dataset_id: str
    root: str
    key: DataKey
    stanza: Stanza
    envelope: Envelope

    @property
    def asked(self) -> AskedKey:
        return self.asked_with()

    def asked_with(self, *, root: str | None = None, stanza: Stanza | None = None) -> AskedKey:
        """What a guest asks for of it, with another root or stanza."""
        owner_id = identity(self.owner).public.owner_id
        return AskedKey(owner_id, self.dataset_id, root or self.root, stanza or self.stanza)

    @property
    def owned(self) -> OwnedId:
        return OwnedId(identity(self.owner).public.owner_id, self.dataset_id)

    @property
    def of_run(self) -> RunDataset:
        """The dataset as a run has it."""
        return RunDataset(*self.owned, self.root)

    @property
    def pin(self) -> DatasetPin:
        return DatasetPin(dataset_id=self.dataset_id, root=self.root)


@dataclass(kw_only=True)
class Wire:
    """A ``BrokerClient`` without a network, for one broker."""

    broker: Broker
    on_request: Tamper = lambda _document: None
    on_answer: Tamper = lambda _document: None
    left_the_broker: list[bytes] = field(default_factory=list)
    requests: list[ReleaseRequest | RenewalRequest] = field(default_factory=list)

    def identity(self, nonce: str) -> BrokerIdentity:
        return self.answered(BrokerIdentity, self.broker.identity(nonce))

    def keys(self, **query: str) -> BrokerKeys:
        return self.answered(BrokerKeys, self.broker.keys(**query))

    def ledger_rotations(self) -> tuple[tuple[int, dict[str, Any]], ...]:
        return tuple(
            (rotation.index, rotation.rotation) for rotation in self.broker.rotations().rotations
        )

    def ledger_proof(self, index: int) -> LedgerProof:
        return self.broker.ledger.proof(index)

    def challenge(self, consortium_id: str, purpose: str) -> Challenge:
        body = {"version": 1, "consortium_id": consortium_id, "purpose": purpose}
        asked = load_message(ChallengeRequest, canonical_json(body))
        return self.answered(Challenge, self.guarded(self.broker.challenge, asked))

    def release(self, request: ReleaseRequest) -> ReleaseAnswer:
        sent = self.sent(ReleaseRequest, request)
        return self.answered(ReleaseAnswer, self.guarded(self.broker.release, sent))

    def renew(self, request: RenewalRequest, _lease_key: Secret) -> RenewalAnswer:
        sent = self.sent(RenewalRequest, request)
        return self.answered(RenewalAnswer, self.guarded(self.broker.renew, sent))

    def sent(self, cls: Any, request: Any) -> Any:
        self.requests.append(request)
        document = parse_json(canonical_json(request.to_dict()))
        self.on_request(document)
        return load_message(cls, canonical_json(document))

    def guarded(self, act: Callable[[Any], Any], asked: Any) -> Any:
        try:
            return act(asked)
        except SealtrainError as error:
            self.left_the_broker.append(canonical_json(error.to_dict()))
            raise

    def answered(self, cls: Any, answer: Any) -> Any:
        data = canonical_json(answer.to_dict())
        self.left_the_broker.append(data)
        document = parse_json(data)
        self.on_answer(document)
        return load_message(cls, canonical_json(document))


@dataclass(kw_only=True)
class ReleaseWorld(Agreement):
    folder: Path
    state: Path
    clock: TestClock
    pki: SimulatedPki
    policy: AppraisalPolicy
    parts: BrokerParts
    broker: Broker
    store: Store
    ledger: Ledger
    keyring: Keyring
    wire: Wire
    sealed: dict[str, SealedSet] = field(default_factory=dict)

    def restart(self, **changed: Any) -> None:
        """Start the broker anew, with these parts in the place of its own."""
        self.parts = replace(self.parts, **changed)
        self.broker = self.wire.broker = Broker(self.parts)

    def now(self) -> int:
        return self.clock()

    def pins_of(self, owner: str) -> Sequence[DatasetPin]:
        return [self.sealed[owner].pin] if owner in self.sealed else []

    @property
    def pin(self) -> BrokerPin:
        return BrokerPin(
            url="http://127.0.0.1:1",
            signing_key=to_base64(self.keyring.signer.public),
            compose_hash=sha256_hex(BROKER_COMPOSE),
            appraisal=self.policy,
        )

    def guest(
        self,
        locked: LockedRecipe | None = None,
        *,
        pki: SimulatedPki | None = None,
        number: int = 0,
    ) -> SimulatedGuest:
        return booted(pki or self.pki, (locked or self.locked).compose_bytes, number)

    def collect(
        self, guest: SimulatedGuest, *, pki: SimulatedPki | None = None
    ) -> Callable[[Binding], Evidence]:
        return lambda binding: evidence_of(guest, binding, pki or self.pki, self.clock())

    def lock(self, change: Callable[[dict[str, Any]], None] = lambda _recipe: None) -> LockedRecipe:
        return lock_changed(self.consortium.consortium_id, self.locked.lock.brokers, change)

    def seal(
        self,
        owner: str,
        *,
        locked: LockedRecipe | None = None,
        name: str = "biopsies",
        signed_by: str | None = None,
        keyring: Keyring | None = None,
        **changed: Any,
    ) -> SealedSet:
        """What sealing makes of an owner's data, without the data."""
        locked, keyring = locked or self.locked, keyring or self.keyring
        key = DataKey.generate()
        dataset_id = os.urandom(16).hex()
        keys = keyring.public_keys(
            self.consortium, app_id=locked.app_id, compose_hash=locked.compose_hash
        )
        public = HpkePublicKey(
            next(from_base64(key.public_key) for key in keys if key.owner == owner)
        )
        mine = BrokerBinding.of(bound_to(locked, owner), broker_id(keyring.signer.public))
        stanza = wrap_for_recipe(key, dataset_id=dataset_id, binding=mine, public=public)
        fields = {"dataset_id": dataset_id, "root": digest(f"root {dataset_id}")} | changed
        envelope = signed_dataset(
            locked, owner, name, sealed_at=self.clock() - 3600, signed_by=signed_by, **fields
        )
        return SealedSet(
            owner=owner,
            dataset_id=fields["dataset_id"],
            root=fields["root"],
            key=key,
            stanza=stanza,
            envelope=envelope,
        )

    def register(self, sealed: SealedSet) -> Accepted:
        return self.broker.registry.hand_in("dataset", document_of(sealed.envelope))

    def approve(self, owner: str, **changed: Any) -> Accepted:
        return self.submit(self.decision(owner, **{"brokers": self.decided_at} | changed))

    def revoke(self, owner: str) -> Accepted:
        return self.submit(self.decision(owner, revoke=True, brokers=self.decided_at))

    @property
    def decided_at(self) -> list[str]:
        """Ids of the brokers of the lock, and of this one, which a lock may leave out."""
        return [*self.locked.lock.brokers, self.pin.broker_id]

    def submit(self, envelope: Envelope) -> Accepted:
        return self.broker.registry.hand_in("approval", document_of(envelope))

    def attest(
        self, locked: LockedRecipe | None = None, wire: Wire | None = None
    ) -> AttestedBroker:
        return self.keys_from(wire or self.wire, self.pin, locked)

    def obtain(self, **changed: Any) -> Grant:
        """A release that a test changes one thing of; honest without arguments."""
        locked = changed.pop("locked", self.locked)
        broker = changed.pop("attested", None) or self.attest(locked)
        guest = changed.pop("guest", None) or self.guest(locked)
        arguments: dict[str, Any] = {
            "run_id": os.urandom(16).hex(),
            "recipe_hash": locked.recipe_hash,
            "datasets": [dataset.asked for dataset in self.sealed.values()],
            "resume": False,
        }
        wire = changed.pop("wire", self.wire)
        collect = changed.pop("collect", None) or self.collect(guest)
        return obtain(wire, broker, collect, KeyRequest(**(arguments | changed)))

    def outcomes_at_once(self, guests: int) -> list[str]:
        """What so many guests get that ask at the same time: ``released``, or a refusal's code."""
        outcomes: list[str] = []

        def attempt() -> None:
            try:
                self.obtain()
            except Refused as error:
                outcomes.append(error.code)
            else:
                outcomes.append("released")

        threads = [threading.Thread(target=attempt) for _ in range(guests)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        return outcomes

    def refusals(self) -> list[dict[str, Any]]:
        return [entry["body"] for entry in self.ledger.entries() if entry["kind"] == "refusal"]

    def kinds(self) -> list[str]:
        return [str(entry["kind"]) for entry in self.ledger.entries()]

    def assert_no_key_left(self) -> None:
        """No data key, run key or root in anything that left the broker or that it wrote."""
        secrets = [dataset.key.reveal() for dataset in self.sealed.values()] + [ROOT]
        forms = [
            form for key in secrets for form in (key, key.hex().encode(), to_base64(key).encode())
        ]
        written = [path.read_bytes() for path in self.folder.rglob("*sqlite*")]
        for data in (*self.wire.left_the_broker, *written):
            for form in forms:
                assert form not in data


def renewed(world: ReleaseWorld, grant: Grant) -> Grant:
    return renew(world.wire, world.attest(), world.collect(world.guest()), grant)


def audited(world: ReleaseWorld) -> AuditReport:
    """What an auditor finds in the ledger's entries alone."""
    auditor = Auditor(world.consortium, world.keyring.signer.public, origin=world.ledger.origin)
    for entry in world.ledger.entries():
        auditor.entry(canonical_json(entry))
    return auditor.finish()


def ids_of(*roots: bytes) -> tuple[str, ...]:
    """Ids of the brokers with these root secrets."""
    return tuple(broker_id(signing_key(Secret(root), "broker").public) for root in roots)


def document_of(envelope: Envelope) -> EnvelopeDocument:
    return load_message(EnvelopeDocument, envelope.to_bytes())


def evidence_of(guest: SimulatedGuest, binding: Binding, pki: SimulatedPki, now: int) -> Evidence:
    return guest.evidence(binding, collateral=pki.collateral(now))


@dataclass(frozen=True, kw_only=True)
class _Beginning:
    """What owners have done when a world begins: another world of their kind begins with a copy."""

    broker: bytes
    ledger: bytes
    sealed: Mapping[str, SealedSet]

    @classmethod
    def of(cls, world: ReleaseWorld) -> _Beginning:
        files = (_bytes_of(world.state / f"{name}.sqlite") for name in ("broker", "ledger"))
        return cls(broker=next(files), ledger=next(files), sealed=dict(world.sealed))


_beginnings: defaultdict[str, list[_Beginning]] = defaultdict(list)


def _bytes_of(database: Path) -> bytes:
    """A database's file as it is once its log of writes is in it."""
    with closing(sqlite3.connect(database)) as connection:
        return connection.serialize()


@contextmanager
def release_world(
    folder: Path,
    *,
    approved_by: tuple[str, ...] = ("hospital-a", "hospital-b"),
    limits: BrokerLimits | None = None,
    guest_pki: SimulatedPki | None = None,
    lease_seconds: int = 3600,
    root: bytes = ROOT,
    former: Sequence[Secret] = (),
    owners: tuple[str, ...] = OWNERS,
    gateway_app_id: str | None = None,
    rules: Mapping[str, Any] | None = None,
    chain: ChainGate | None = None,
    database: Postgres | None = None,
    brokers: tuple[bytes, ...] | None = None,
    submitters: tuple[str, ...] = (),
    runners: tuple[str, ...] = (),
) -> Iterator[ReleaseWorld]:
    """A broker whose owners sealed, registered and, but for those left out, approved.

    ``brokers`` are root secrets of the brokers that the lock names; this one alone when ``None``.
    ``rules`` are thresholds of the consortium, and whether it asks for consent on own data.
    """
    clock = TestClock()
    pki = guest_pki or simulated_pki()
    policy = insecure_simulator_policy(pki.root_der)
    consortium = founded(owners=owners, **{"own_data_consent": False, **(rules or {})})
    keyring = Keyring(Secret(root), former)
    state = folder / f"state-{os.urandom(4).hex()}"
    state.mkdir()
    beginnings = _beginnings[repr((approved_by, root, owners, rules, brokers, submitters, runners))]
    usual = database is None and chain is None and limits is None and not former
    begun = beginnings.pop() if usual and beginnings else None
    if begun:
        (state / "broker.sqlite").write_bytes(begun.broker)
        (state / "ledger.sqlite").write_bytes(begun.ledger)
        store = Store(state / "broker.sqlite")
    else:
        store = Store(database or with_tables(state / "broker.sqlite"))
    own_guest = booted(pki, BROKER_COMPOSE, 0)
    try:
        with Ledger.open(
            database or state / "ledger.sqlite",
            origin=ledger_origin(consortium.consortium_id),
            signer=keyring.signer,
            clock=clock,
        ) as ledger:
            parts = BrokerParts(
                consortium=consortium,
                policy=policy,
                keyring=keyring,
                store=store,
                ledger=ledger,
                collect=lambda binding: evidence_of(own_guest, binding, pki, clock()),
                collateral=lambda _evidence: pki.collateral(clock()),
                gpu_collateral=lambda: None,
                clock=clock,
                random=os.urandom,
                limits=limits or BrokerLimits(),
                answers=AnswerSettings(
                    lease_seconds=lease_seconds,
                    boot_auth=gateway_app_id is not None,
                    gateway_app_id=gateway_app_id or "",
                ),
                controllers=Controllers.of(
                    consortium,
                    *(
                        {name: identity(name).public.signing_key for name in names}
                        for names in (submitters, runners)
                    ),
                ),
                chain=chain,
            )
            broker = Broker(parts)
            world = ReleaseWorld(
                folder=folder,
                state=state,
                clock=clock,
                consortium=consortium,
                locked=lock_changed(consortium.consortium_id, ids_of(*(brokers or (root,)))),
                pki=pki,
                policy=policy,
                parts=parts,
                broker=broker,
                store=store,
                ledger=ledger,
                keyring=keyring,
                wire=Wire(broker=broker),
            )
            if begun:
                world.sealed |= begun.sealed
            else:
                for owner in owners:
                    world.sealed[owner] = world.seal(owner)
                    world.register(world.sealed[owner])
                for owner in approved_by:
                    world.approve(owner)
            if usual and not begun:
                begun = _Beginning.of(world)
            yield world
    finally:
        store.close()
        if begun:  # two worlds at one time never have the same beginning
            beginnings.append(begun)


GATEWAY = "aa" * 20


def config_of(folder: Path, **changed: Any) -> BrokerConfig:
    """Settings of the socket; what is assembled comes from the release world."""
    fields: dict[str, Any] = {
        "consortium": folder / "consortium.json",
        "policy": folder / "policy.yaml",
        "root_secret": f"file:{folder / 'root'}",
        "state": folder,
        "guest": "none",
        "collateral": None,
        "platform": "simulator",
        "port": 0,
    }
    return BrokerConfig(**(fields | changed))


SOCKET = ("certificate", "certificate_key", "host", "metrics_port", "proxies", "public_urls")
"""Settings of a broker that only its socket knows."""


@contextmanager
def served_world(folder: Path, **changed: Any) -> Iterator[tuple[ReleaseWorld, str]]:
    """A release world and the URL of its broker, which answers dstack's KMS too."""
    limits = changed.pop("limits", BrokerLimits(posts_per_minute=10_000))
    socket = {name: changed.pop(name) for name in SOCKET if name in changed}
    arguments = {"limits": limits, "gateway_app_id": GATEWAY} | changed
    with (
        release_world(folder, **arguments) as world,
        listening(world.broker, config_of(folder, limits=limits, **socket)) as url,
    ):
        yield world, url


def boot_info(world: ReleaseWorld, **changed: Any) -> dict[str, Any]:
    """What the KMS asks about the guest of the approved recipe."""
    return {
        "teeVariant": "dstack-tdx",
        "mrAggregated": "11" * 32,
        "osImageHash": "22" * 32,
        "mrSystem": "33" * 32,
        "appId": world.locked.app_id,
        "composeHash": world.locked.compose_hash,
        "instanceId": "44" * 20,
        "deviceId": "55" * 32,
        "keyProviderInfo": "",
        "tcbStatus": "UpToDate",
        "advisoryIds": [],
    } | changed


def chain_file(*owners: str, url: str = "http://127.0.0.1:1/") -> ChainFile:
    """A chain file of owners' accounts; the contract is nowhere."""
    return ChainFile(
        version=1,
        chain_id=1,
        rpc=(url,),
        agree=1,
        block="finalized",
        max_age_seconds=60,
        cache_seconds=0,
        timeout_seconds=1,
        contract="0x" + "11" * 20,
        kind="owners",
        code_hash="22" * 32,
        implementation="none",
        app_id="any",
        kms="none",
        owners={name: f"0x{number:040x}" for number, name in enumerate(owners, 1)},
    )
