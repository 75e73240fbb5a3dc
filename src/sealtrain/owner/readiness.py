"""Would a broker release a recipe's keys now? Asked from outside, before any guest runs.

``ask`` judges with the function that the broker decides with (``release.decide.objections``), on
what the broker's ledger says:

1. the broker proves itself under its pin, as to a guest, and is one that the lock names;
2. its ledger holds (``ledger.audit``), and ends in a tree head under the key that it proved;
3. the consortium is in force;
4. what the broker checks, and in its order: approvals, run, withdrawals, datasets, budgets;
5. the dataset at hand, where there is one, has a stanza that this broker can open;
6. asked inside the guest, its evidence meets the policies of the owners whose data it reads and,
   where the asker holds it, the broker's;
7. the broker says that it can decide.

What owners signed is verified here. An answer names what is not: that the ledger shown is the
newest one, unless the asker remembers a tree head; the budgets that runs reserved; and the guest's
evidence, where there is none yet or the broker's policy is not at hand. As long as the guest is not
proven the answer is no *yes*.

Of several brokers, as many as a dataset needs must lend their part of its key (``Together``), as a
guest asks them (``client.quorum``).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from sealtrain.attest.appraise import appraise
from sealtrain.attest.evidence import Evidence
from sealtrain.attest.policy import AppraisalPolicy
from sealtrain.attest.report_data import Binding
from sealtrain.attest.verify import verify
from sealtrain.base.clock import Clock, system_clock, to_rfc3339
from sealtrain.base.secret import Random
from sealtrain.base.tiers import TIER_OF_KIND
from sealtrain.client.broker_api import BrokerClient
from sealtrain.client.broker_proof import AttestedBroker, Deployed, fetch_keys
from sealtrain.client.grants import WantedKey
from sealtrain.client.pin import BrokerPin
from sealtrain.consortium.datasets import DatasetManifest
from sealtrain.consortium.members import Consortium
from sealtrain.consortium.receipts import OwnedId
from sealtrain.consortium.series import members_read
from sealtrain.consortium.standing_approval import Reserve
from sealtrain.errors import SealtrainError, Unreachable
from sealtrain.owner.ledger_audit import Progress, audit_served, require_holds
from sealtrain.owner.standing import StandingUsed, join_uses
from sealtrain.recipe.errors import DatasetUnknown
from sealtrain.recipe.lock import Lock
from sealtrain.release.checks import objections
from sealtrain.release.decide import in_force, reserves_of
from sealtrain.release.facts import DecisionLimits, Known, Measured
from sealtrain.release.ledger_facts import AskedDataset, Question, Standing
from sealtrain.sealing.errors import NoStanza
from sealtrain.signing.datause import REMINDER_DAYS
from sealtrain.signing.target import Target

_DAY_SECONDS: Final = 86_400
_PURPOSE: Final = "status"
"""Evidence for it answers no broker."""
AtHand = Mapping[tuple[str, str], tuple[WantedKey, ...]]
Verdict = Literal["refused", "guest-unproven", "released"]
_OF_ONE_DATASET: Final = (DatasetUnknown, NoStanza)
"""A guest asks a broker of which one of these is known for the other datasets only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestHere:
    """The guest that a run will be in.

    Attributes:
        collect: Collects its evidence for a binding.
        policy: The policy that a broker has for guests, by the hash of the broker's deployment
            document; ``None`` where its document is not at hand.
    """

    collect: Callable[[Binding], Evidence]
    policy: Callable[[str], AppraisalPolicy | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRun:
    """What a guest would ask for.

    Attributes:
        lock: Of the recipe.
        target: Its deployment document.
        platform: What will attest the guest; the lock's first where that is not known yet.
        run_id: Of an interrupted run that is to go on; ``None`` for a new one.
        at_hand: Gives the sealed datasets that the guest will be given, by (owner, name); ``None``
            where they are taken as they are registered.
        guest: The guest that will ask, where the asker is in it.
    """

    lock: Lock
    target: Target
    platform: str
    run_id: str | None = None
    at_hand: Callable[[Consortium], AtHand] | None = None
    guest: GuestHere | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle:
    """A reason why no key would be released.

    Attributes:
        error: What a guest would be told.
        dataset: Name of the dataset that it is about, where it is about one.
    """

    error: SealtrainError
    dataset: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        found: dict[str, Any] = dict(self.error.to_dict())
        return found if self.dataset is None else found | {"dataset": self.dataset}


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Until when a dataset may be used.

    Attributes:
        owner: Of the dataset.
        dataset: Its name.
        until: Last second, since the epoch.
        now: The present.
    """

    owner: str
    dataset: str
    until: int
    now: int

    @property
    def days_left(self) -> int:
        """Whole days; negative once it has ended."""
        return (self.until - self.now) // _DAY_SECONDS

    @property
    def ending(self) -> bool:
        """Whether it ends soon enough for a reminder, or has ended."""
        return self.days_left < REMINDER_DAYS

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {
            "owner": self.owner,
            "dataset": self.dataset,
            "until": to_rfc3339(self.until),
            "days_left": self.days_left,
            "ending": self.ending,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """How a broker would decide.

    Attributes:
        obstacles: In the order of the checks: a guest is told the first. None where it is ready.
        entries: Size of the ledger that this was read from.
        remembered: It extends a tree head that the asker remembered.
        valid_until: Last second at which the approvals suffice; ``None`` where they do not.
        retention: Of the recipe's datasets whose owners state one.
        policies: Owners whose own policy the guest must meet besides.
        budgets: Privacy is reserved, and counted from the broker's word.
        guest: Evidence of the guest was collected, and held where it was judged.
        brokers_policy: It was judged under the policy of the broker too.
        standing: Standing approvals, those that are spent too, and what runs took of them.
        thresholds: By owner and name of a dataset that is registered there, how many brokers give
            its key back, as its owner sealed it.
    """

    obstacles: tuple[Obstacle, ...]
    entries: int | None = None
    remembered: bool = False
    valid_until: int | None = None
    retention: tuple[Retention, ...] = ()
    policies: tuple[str, ...] = ()
    budgets: bool = False
    guest: bool = False
    brokers_policy: bool = False
    standing: tuple[StandingUsed, ...] = ()
    thresholds: Mapping[tuple[str, str], int] = field(default_factory=dict)

    @property
    def verdict(self) -> Verdict:
        """Whether keys would be released; not known before the guest is proven."""
        if self.obstacles:
            return "refused"
        return "released" if self.proven else "guest-unproven"

    @property
    def proven(self) -> bool:
        """The guest was judged under every policy."""
        return self.guest and self.brokers_policy

    def obstacle_to(self, owner: str, dataset: str) -> Obstacle | None:
        """The first reason why the broker would not lend its part of a dataset's key."""
        for obstacle in self.obstacles:
            elsewhere = (obstacle.error.owner, obstacle.dataset) != (owner, dataset)
            if not (elsewhere and isinstance(obstacle.error, _OF_ONE_DATASET)):
                return obstacle
        return None

    @property
    def unproven(self) -> list[str]:
        """What the broker alone says, or decides later."""
        words = []
        if not self.guest:
            also = f", to the policy of {', '.join(self.policies)} too" if self.policies else ""
            words.append(f"the guest: it proves itself when it asks for keys{also}")
        elif not self.brokers_policy:
            words.append("that the guest meets the broker's policy: give the broker's document")
        if self.entries is not None and not self.remembered:
            words.append("that this is the newest ledger: the broker's word; --memory compares")
        if self.standing:
            words.append("how many runs count under standing approvals: the broker's word")
        if self.budgets:
            words.append("what earlier runs took of the privacy budgets: the broker's word")
        return words

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        until = self.valid_until
        return {
            "verdict": self.verdict,
            "obstacles": [obstacle.to_dict() for obstacle in self.obstacles],
            "approved_until": None if until is None else to_rfc3339(until),
            "retention": [retention.to_dict() for retention in self.retention],
            **({"standing": [use.to_dict() for use in self.standing]} if self.standing else {}),
            "ledger": {"size": self.entries, "remembered": self.remembered},
            "owner_policies": list(self.policies),
            "unproven": self.unproven,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Together:
    """How several brokers would decide about one run.

    Attributes:
        brokers: By URL.
        datasets: (owner, name) of each dataset of the recipe.
        threshold: How many of the brokers must lend their part of each dataset's key; ``None`` for
            as many as its owner sealed it for.
    """

    brokers: Mapping[str, Readiness]
    datasets: tuple[tuple[str, str], ...]
    threshold: int | None = None

    @property
    def needed(self) -> int:
        """The most brokers that any of the datasets needs."""
        return max(self.count_needed(*dataset) for dataset in self.datasets)

    def count_needed(self, owner: str, dataset: str) -> int:
        """How many brokers a dataset needs: all where none of them knows it."""
        if self.threshold is not None:
            return self.threshold
        stated = [broker.thresholds.get((owner, dataset)) for broker in self.brokers.values()]
        known = [threshold for threshold in stated if threshold is not None]
        return max(known, default=len(self.brokers))

    @property
    def lenders(self) -> tuple[str, ...]:
        """URLs of the brokers that would lend their part of some dataset's key."""
        return tuple(
            url
            for url, broker in self.brokers.items()
            if any(broker.obstacle_to(*dataset) is None for dataset in self.datasets)
        )

    @property
    def verdict(self) -> Verdict:
        """Whether enough brokers would release; not known before the guest is proven."""
        if self.obstacle is not None:
            return "refused"
        proven = [broker for broker in self.brokers.values() if broker.proven]
        return "released" if self._short(proven) is None else "guest-unproven"

    @property
    def obstacle(self) -> Obstacle | None:
        """What a guest would be told; ``None`` where enough brokers would release.

        A refusal says more than silence.
        """
        short = self._short(list(self.brokers.values()))
        if short is None:
            return None
        found = [broker.obstacle_to(*short) for broker in self.brokers.values()]
        known = [obstacle for obstacle in found if obstacle is not None]
        refused = [obstacle for obstacle in known if not isinstance(obstacle.error, Unreachable)]
        return (refused or known)[0]

    def _short(self, brokers: Sequence[Readiness]) -> tuple[str, str] | None:
        """The first dataset of whose key too few of these brokers would lend a part."""
        for dataset in self.datasets:
            lent = sum(broker.obstacle_to(*dataset) is None for broker in brokers)
            if lent < self.count_needed(*dataset):
                return dataset
        return None


def ask(
    client: BrokerClient,
    pin: BrokerPin,
    run: PlannedRun,
    *,
    progress: Progress,
    notes: Sequence[str] = (),
    clock: Clock = system_clock,
    random: Random = os.urandom,
) -> Readiness:
    """How the broker of a pin would decide about a run now. Steps 1 to 6.

    Args:
        pin: What it must prove.
        run: What a guest would ask for.
        progress: Shows how much of the ledger is read.
        notes: Tree heads of this ledger that the asker remembers.
        clock: Source of the time.
        random: Source of nonces.

    Returns:
        What stands against it. A broker out of reach, or that does not prove itself, does so too.
    """
    try:
        return _ask(client, pin, run, progress, notes, clock(), random)
    except SealtrainError as error:
        return Readiness(obstacles=(Obstacle(error=error),))


def _ask(
    client: BrokerClient,
    pin: BrokerPin,
    run: PlannedRun,
    progress: Progress,
    notes: Sequence[str],
    now: int,
    random: Random,
) -> Readiness:
    lock, target = run.lock, run.target
    consortium = client.consortium(lock.consortium_id)
    broker = fetch_keys(  # (1)
        client,
        pin,
        consortium,
        Deployed(app_id=target.app_id, compose_hash=target.compose_hash, brokers=lock.brokers),
        now=now,
        random=random,
    )
    data = {} if run.at_hand is None else run.at_hand(consortium)
    standing = Standing(consortium)
    report = audit_served(  # (2)
        client, consortium, broker.signing_key, notes, progress=progress, seen=standing.entry
    )
    require_holds(report)
    measured = Measured.of(
        lock,
        target,
        instance_id="",
        platform=run.platform,
        tier=TIER_OF_KIND.get(run.platform, lock.recipe.hardware.tier),
    )
    tally = standing.tally(target, now, needs=measured.needs, begins=_begins(run, measured))
    found = [
        *_find_replaced(standing),  # (3)
        *_list_objections(run, data, broker, measured, standing, now),  # (4) (5)
    ]
    read = {owner for owner, _name in measured.datasets}
    asking = {
        name: rules
        for name, signed in sorted(standing.policies.items())
        if name in read and (rules := signed.document.appraisal) is not None
    }
    brokers_policy = None if run.guest is None else run.guest.policy(pin.compose_hash)
    if run.guest is not None:
        unmet = _unmet(run, run.guest, {"": brokers_policy, **asking}, now, random)
        found[:0] = unmet  # (6) a broker looks at evidence first
    if not found:
        client.ready()  # (7)
    return Readiness(
        obstacles=tuple(found),
        entries=report.size,
        remembered=bool(notes),
        valid_until=tally.valid_until,
        retention=tuple(_list_retained(run, standing, now)),
        standing=join_uses(
            tally,
            [(signed.digest, use.runs, use.most) for signed, use in standing.uses(target)],
        ),
        thresholds=_thresholds(run, standing),
        policies=tuple(asking),
        budgets=bool(measured.privacy),
        guest=run.guest is not None,
        brokers_policy=brokers_policy is not None,
    )


def _begins(run: PlannedRun, measured: Measured) -> Sequence[Reserve] | None:
    """What a run reserves, where it would begin."""
    return reserves_of(measured) if run.run_id is None else None


def _thresholds(run: PlannedRun, standing: Standing) -> dict[tuple[str, str], int]:
    named = {
        (dataset.owner, dataset.name): standing.find_named(dataset.owner, dataset.name, run.target)
        for dataset in run.lock.recipe.datasets
    }
    return {key: dataset.threshold or 1 for key, dataset in named.items() if dataset is not None}


def _list_retained(run: PlannedRun, standing: Standing, now: int) -> Iterator[Retention]:
    for dataset in run.lock.recipe.datasets:
        manifest = standing.find_named(dataset.owner, dataset.name, run.target)
        if manifest is not None and manifest.last_second is not None:
            yield Retention(
                owner=dataset.owner, dataset=dataset.name, until=manifest.last_second, now=now
            )


def _find_replaced(standing: Standing) -> Iterator[Obstacle]:
    try:
        in_force(standing.successor)
    except SealtrainError as error:
        yield Obstacle(error=error)


def _unmet(
    run: PlannedRun,
    guest: GuestHere,
    policies: Mapping[str, AppraisalPolicy | None],
    now: int,
    random: Random,
) -> Iterator[Obstacle]:
    """What the guest's evidence lacks, as the broker judges it; policies by owner."""
    binding = Binding(_PURPOSE, {"nonce": random(32).hex()})
    target = run.target
    try:
        evidence = guest.collect(binding)
    except SealtrainError as error:
        yield Obstacle(error=error)
        return
    for owner, policy in policies.items():
        if policy is None:
            continue
        try:
            verified = verify(evidence, policy, now, binding=binding, collateral=None)
            appraise(
                verified,
                policy,
                binding=binding,
                compose_hash=target.compose_hash,
                app_id=target.app_id,
            )
            run.lock.recipe.hardware.require_key_provider(verified.key_provider)
        except SealtrainError as error:
            said = error.with_message(f"by the policy of {owner}: {error.message}", owner=owner)
            yield Obstacle(error=said if owner else error)


def _list_objections(
    run: PlannedRun,
    data: AtHand,
    broker: AttestedBroker,
    measured: Measured,
    standing: Standing,
    now: int,
) -> Iterator[Obstacle]:
    """All objections; of a recipe for several parties, those against each party's request."""
    datasets = [(dataset.owner, dataset.name) for dataset in run.lock.recipe.datasets]
    parties = sorted({owner for owner, _name in datasets}) if measured.apart else [None]
    told: set[tuple[str, str | None, str | None]] = set()
    for party in parties:
        asked = [(owner, name) for owner, name in datasets if party in (None, owner)]
        for obstacle in _of_request(run, data, broker, measured, standing, asked, now):
            error = obstacle.error
            key = (error.code, error.owner, obstacle.dataset or error.got)
            if key not in told:  # approvals are asked about once for each party
                told.add(key)
                yield obstacle


def _of_request(
    run: PlannedRun,
    at_hand: AtHand,
    broker: AttestedBroker,
    measured: Measured,
    standing: Standing,
    names: Sequence[tuple[str, str]],
    now: int,
) -> Iterator[Obstacle]:
    """What stands against one request, for the datasets of these names."""
    target = run.target
    chains = standing.chains(target)
    asked = {
        dataset: key
        for place, key in enumerate(names)
        for dataset in _list_asked(
            run,
            at_hand.get(key, ()),
            standing,
            chains.get(key, ()) if key in measured.series else (),
            place,
            *key,
        )
    }
    named = {dataset.dataset_id: key for dataset, key in asked.items()}
    began = standing.runs.get(run.run_id or "")
    data = {OwnedId(dataset.owner_id, dataset.dataset_id) for dataset in asked}
    data |= {dataset.owned for dataset in (began.data if began else ())}
    found = objections(
        Question(
            target=target,
            run_id=run.run_id or "",
            resume=run.run_id is not None,
            datasets=tuple(asked),
        ),
        measured,
        Known(
            challenge=None,
            tally=standing.tally(target, now, needs=measured.needs, begins=_begins(run, measured)),
            chains=chains,
            uses={signed.digest: use for signed, use in standing.uses(target)},
            run=began,
            withdrawn=standing.withdrawn_of(data)
            | (standing.withdrawn_before(target) if measured.follows else {}),
        ),
        registered=standing.list_registered(
            data, app_id=target.app_id, compose_hash=target.compose_hash
        ),
        now=now,
        limits=DecisionLimits(
            broker_ids=broker.ids, consortium_id=broker.consortium_id, lease_seconds=0
        ),
        spent=standing.spent,
    )
    for error, dataset_id in found:
        owner, name = named.get(dataset_id or "", (error.owner, None))
        yield Obstacle(error=_of_owner(error, owner), dataset=name)
    for owner, name in names:  # (5)
        for here in at_hand.get((owner, name), ()):
            if here.stanza_for(broker) is None:
                yield Obstacle(error=_no_stanza(here), dataset=name)


def _list_asked(
    run: PlannedRun,
    here: Sequence[WantedKey],
    standing: Standing,
    chain: Sequence[DatasetManifest],
    place: int,
    owner: str,
    name: str,
) -> tuple[AskedDataset, ...]:
    """What a guest would ask for of a dataset or series: what is at hand, or is registered."""
    if here:
        return tuple(AskedDataset(key.owner_id, key.dataset_id, key.root) for key in here)
    if chain:
        return tuple(
            AskedDataset(member.owner_id, member.dataset_id, member.root)
            for member in members_read(chain)
        )
    known = standing.find_named(owner, name, run.target)
    if known is not None:
        return (AskedDataset(known.owner_id, known.dataset_id, known.root),)
    return (AskedDataset("0" * 64, f"{place:032x}", "0" * 64),)  # no owner registered such an id


def _of_owner(error: SealtrainError, owner: str | None) -> SealtrainError:
    return error if owner in (None, error.owner) else error.with_message(error.message, owner=owner)


def _no_stanza(wanted: WantedKey) -> NoStanza:
    return NoStanza(
        "the dataset at hand holds no key for this broker",
        check="stanza",
        owner=wanted.owner,
        got=wanted.dataset_id,
        hint="its owner adds one: sealtrain rewrap --deployment --broker",
    )
