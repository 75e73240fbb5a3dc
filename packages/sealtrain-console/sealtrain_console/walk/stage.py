"""Where a switch is played: one broker on loopback, its owners, its guests, and a movable clock.

The broker is the broker's own code behind HTTP, with the root secret of the prepared run and an
empty ledger, so that each switch decides what was registered and approved. It is made for one
switch and ends with it; nothing of it changes the prepared run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from sealtrain.attest.evidence import Collateral, Evidence
from sealtrain.attest.policy import AppraisalPolicy
from sealtrain.attest.report_data import Binding
from sealtrain.base.clock import system_clock
from sealtrain.base.encoding import to_base64
from sealtrain.base.files import read_bounded
from sealtrain.base.secret import Secret
from sealtrain.broker.config import AnswerSettings, BrokerConfig, BrokerLimits
from sealtrain.broker.serve import listening
from sealtrain.broker.service.controllers import Controllers
from sealtrain.broker.service.keyring import Keyring
from sealtrain.broker.service.parts import BrokerParts
from sealtrain.broker.service.service import Broker
from sealtrain.broker.store.memory import Store
from sealtrain.client.broker_api import BrokerClient
from sealtrain.client.broker_proof import AttestedBroker, Deployed, fetch_keys
from sealtrain.client.grant import AskedKey, Grant, KeyRequest, obtain, renew
from sealtrain.consortium.approvals import DatasetPin, Decision, sign_decision
from sealtrain.keys.identity import Identity
from sealtrain.ledger.ledger import Ledger
from sealtrain.recipe.lock import LockedRecipe
from sealtrain.recipe.needs import needs_of
from sealtrain.release.messages import ledger_origin
from sealtrain.sealing.rewrap import read_stanzas
from sealtrain.sealing.stanza import Stanza
from sealtrain.signing.dsse import Envelope
from sealtrain.signing.identity import broker_id
from sealtrain_console.walk.prepared_run import READ_FROM, Prepared
from sealtrain_rehearsal.simulator.guest import SimulatedGuest

LEASE_S: Final = 3600
_APPROVED_FOR_S: Final = 30 * 24 * 3600
_ENDS_WITHIN_S: Final = 1


@dataclass(slots=True)
class Clock:
    """The machine's clock, moved ahead.

    Attributes:
        ahead: Seconds that were added so far.
    """

    ahead: int = 0

    def __call__(self) -> int:
        """The time on the stage, seconds since 1970."""
        return system_clock() + self.ahead

    def advance(self, seconds: int) -> None:
        """Let so many seconds pass at once."""
        self.ahead += seconds


@dataclass(frozen=True, kw_only=True)
class Stage:
    """What a switch is played with.

    Attributes:
        run: The prepared run, which stays as it is.
        folder: For this switch alone; empty.
        clock: The time of broker and owners.
        parts: Ends what was started.
    """

    run: Prepared
    folder: Path
    clock: Clock = field(default_factory=Clock)
    parts: ExitStack = field(default_factory=ExitStack)

    def desk(
        self,
        *,
        approved_by: Iterable[str] = READ_FROM,
        root: Secret | None = None,
        policy: AppraisalPolicy | None = None,
        collateral: Callable[[int], Collateral] | None = None,
    ) -> ServedBroker:
        """Start a broker, with the datasets registered and these owners' approvals.

        Args:
            approved_by: Owners that approve the recipe.
            root: Another root secret than the run's broker has.
            policy: Of guests; the one that accepts the simulator when ``None``.
            collateral: At a moment; current when ``None``.
        """
        desk = self.parts.enter_context(_serve(self, root, policy, collateral))
        if root is None:
            for owner in READ_FROM:
                desk.register(owner)
            for owner in approved_by:
                desk.approve(owner)
        return desk


@dataclass(frozen=True, kw_only=True)
class ServedBroker:
    """A broker that serves, and what every role does with it.

    Attributes:
        stage: Where it stands.
        url: Its address.
        key: Its public signing key, 32 bytes.
    """

    stage: Stage
    url: str
    key: bytes

    @property
    def run(self) -> Prepared:
        """The prepared run."""
        return self.stage.run

    @cached_property
    def guest_side(self) -> BrokerClient:
        """The client of guests."""
        return self.stage.parts.enter_context(BrokerClient(self.url))

    def owner_side(self, owner: str) -> BrokerClient:
        """The client of an owner, which signs what it hands in."""
        client = BrokerClient(
            self.url,
            signer=self.run.owners[owner].signer,
            broker=broker_id(self.key),
            clock=self.stage.clock,
        )
        return self.stage.parts.enter_context(client)

    def register(self, owner: str) -> None:
        """Register the owner's sealed dataset."""
        signed = read_bounded(self.run.sealed_folder(owner) / "dataset.json", 1 << 20)
        self.owner_side(owner).hand_in("dataset", Envelope.from_bytes(signed))

    def approval(
        self,
        owner: str,
        *,
        locked: LockedRecipe | None = None,
        signer: Identity | None = None,
        days: int = 30,
    ) -> Envelope:
        """An owner's approval, as it signs it now.

        Args:
            owner: Whose; its dataset is pinned where the recipe reads it.
            locked: What is approved; the run's recipe when ``None``.
            signer: Another signer than the owner.
            days: It holds for so long.
        """
        of = locked or self.run.locked
        datasets = []
        if owner in READ_FROM and locked is None:
            sealed = self.run.dataset(owner)
            datasets = [DatasetPin(dataset_id=sealed.dataset_id, root=sealed.root)]
        now = self.stage.clock()
        decision = Decision.approve(
            consortium_id=self.run.consortium.consortium_id,
            brokers=of.lock.brokers,
            target=of.target,
            needs=needs_of(of.lock.recipe),
            datasets=datasets,
            signed_at=now,
            not_after=now + days * 24 * 3600,
        )
        return sign_decision(decision, (signer or self.run.owners[owner]).signer)

    def approve(self, owner: str, **how: Any) -> Envelope:
        """Sign an approval and hand it in. Arguments as ``approval``."""
        signed = self.approval(owner, **how)
        self.owner_side(owner).hand_in("approval", signed)
        return signed

    def revoke(self, owner: str) -> None:
        """Revoke the run's recipe."""
        decision = Decision.revoke(
            consortium_id=self.run.consortium.consortium_id,
            brokers=self.run.locked.lock.brokers,
            target=self.run.locked.target,
            signed_at=self.stage.clock(),
        )
        signed = sign_decision(decision, self.run.owners[owner].signer)
        self.owner_side(owner).hand_in("approval", signed)

    def attest(self, locked: LockedRecipe | None = None) -> AttestedBroker:
        """The broker's keys for a recipe, once it proved itself to the asker."""
        of = locked or self.run.locked
        file = {"url": self.url, "signing_key": to_base64(self.key)}
        pin = self.run.pin.model_copy(update=file)
        deployed = Deployed(app_id=of.app_id, compose_hash=of.compose_hash, brokers=of.lock.brokers)
        return fetch_keys(
            self.guest_side, pin, self.run.consortium, deployed, now=self.stage.clock()
        )

    def evidence(self, guest: SimulatedGuest | None = None) -> Callable[[Binding], Evidence]:
        """Collects the evidence of a guest, the honest one when ``None``."""
        shown = guest or self.run.guest
        return lambda binding: shown.evidence(
            binding, collateral=self.run.collateral(self.stage.clock())
        )

    def ask_for(self, owner: str, stanza: Stanza | None = None) -> AskedKey:
        """An owner's dataset as a guest asks for its key; ``stanza`` replaces the sealed one."""
        dataset = self.run.dataset(owner)
        _, stanzas = read_stanzas(self.run.sealed_folder(owner))
        own = next(candidate for candidate in stanzas if candidate.kind == "recipe")
        return AskedKey(dataset.owner_id, dataset.dataset_id, dataset.root, stanza or own)

    def obtain(
        self,
        *,
        client: BrokerClient | None = None,
        collect: Callable[[Binding], Evidence] | None = None,
        attested: AttestedBroker | None = None,
        datasets: list[AskedKey] | None = None,
    ) -> Grant:
        """Ask for the keys as the run's guest does, with changes.

        Args:
            client: Carries the request.
            collect: The guest's evidence.
            attested: What the broker proved before.
            datasets: What to ask for.
        """
        asked = KeyRequest(
            run_id=os.urandom(16).hex(),
            recipe_hash=self.run.locked.recipe_hash,
            datasets=datasets or [self.ask_for(owner) for owner in READ_FROM],
            resume=False,
        )
        return obtain(
            client or self.guest_side,
            attested or self.attest(),
            collect or self.evidence(),
            asked,
        )

    def stake(self, so: str) -> str:
        """What an attacker would have had if the broker had released the keys.

        Args:
            so: How, as the beginning of a sentence.
        """
        return f"{so}: {self.run.records} records of {' and '.join(READ_FROM)} would have opened."

    def renew(self, grant: Grant, checkpoint: tuple[int, str] | None = None) -> Grant:
        """Renew a lease, anchoring a checkpoint on the way."""
        return renew(self.guest_side, self.attest(), self.evidence(), grant, checkpoint=checkpoint)


@contextmanager
def _serve(
    stage: Stage,
    root: Secret | None,
    policy: AppraisalPolicy | None,
    collateral: Callable[[int], Collateral] | None,
) -> Iterator[ServedBroker]:
    run = stage.run
    keyring = Keyring(root or run.root)
    state = stage.folder / f"broker-{os.urandom(4).hex()}"
    state.mkdir()
    issued = collateral or run.collateral
    store = Store(state / "broker.sqlite")
    config = BrokerConfig(
        consortium=run.folder / "consortium.json",
        policy=run.simulation / "policy.yaml",
        root_secret=f"file:{state / 'unused'}",
        state=state,
        guest="none",
        collateral=None,
        platform="simulator",
        port=0,
    )
    try:
        with Ledger.open(
            state / "ledger.sqlite",
            origin=ledger_origin(run.consortium.consortium_id),
            signer=keyring.signer,
            clock=stage.clock,
        ) as ledger:
            broker = Broker(
                BrokerParts(
                    consortium=run.consortium,
                    policy=policy or run.pin.appraisal,
                    keyring=keyring,
                    store=store,
                    ledger=ledger,
                    collect=lambda binding: run.broker_guest.evidence(
                        binding, collateral=run.collateral(stage.clock())
                    ),
                    collateral=lambda _evidence: issued(stage.clock()),
                    gpu_collateral=lambda: None,
                    clock=stage.clock,
                    random=os.urandom,
                    limits=BrokerLimits(),
                    answers=AnswerSettings(lease_seconds=LEASE_S),
                    controllers=Controllers.of(run.consortium, {}, {}),
                )
            )
            with listening(broker, config, stop_seconds=_ENDS_WITHIN_S) as url:
                yield ServedBroker(stage=stage, url=url, key=keyring.signer.public)
    finally:
        store.close()
