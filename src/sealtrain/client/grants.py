"""Keys of one run: the datasets it needs, brokers' parts combined, and when the lease ends.

Each broker hands out its part of a dataset's data key under a lease of its own. A dataset may be
used while as many leases are live as parts are needed for its key. A run may go on while that holds
for all its datasets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from sealtrain.base.clock import from_rfc3339, to_rfc3339
from sealtrain.base.secret import Secret
from sealtrain.client.broker_proof import AttestedBroker
from sealtrain.client.grant import Grant, Receipted
from sealtrain.consortium.receipts import Anchor
from sealtrain.errors import LeaseStale, SealtrainError, UsageError
from sealtrain.keys.shares import join_key
from sealtrain.release.errors import AnswerInvalid
from sealtrain.sealing.datakey import KEY_BYTES, DataKey, Permit
from sealtrain.sealing.errors import NoStanza
from sealtrain.sealing.stanza import BrokerBinding, RecipeBinding, Stanza
from sealtrain.signing.continues import Continues

_KINDS: Final = ("share", "recipe")
"""Stanzas for a broker, in the order in which they are preferred."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedKey:
    """A dataset whose key a run needs, and every stanza of it that is for a broker."""

    dataset_id: str
    root: str
    owner: str
    owner_id: str
    stanzas: tuple[Stanza, ...]

    def stanza_for(self, broker: AttestedBroker) -> Stanza | None:
        """The stanza that this broker can open for the recipe it was asked about.

        A share before a whole key, and one for its present id before one for a former id.
        """
        recipe = RecipeBinding(broker.app_id, broker.compose_hash, self.owner_id)
        recipients = [BrokerBinding.of(recipe, broker_id).recipient for broker_id in broker.ids]
        by_place = {(stanza.kind, stanza.recipient): stanza for stanza in reversed(self.stanzas)}
        preferred = ((kind, recipient) for kind in _KINDS for recipient in recipients)
        return next((by_place[place] for place in preferred if place in by_place), None)

    def wrong_part(self, url: str) -> AnswerInvalid:
        """The error that names a broker which handed out another part than it was given."""
        return AnswerInvalid(
            f"the broker at {url} handed out another part of the key than its owner gave it",
            check="share",
            owner=self.owner,
            got=f"a share of {self.dataset_id} that the others' digests do not name",
            hint="its operator is mistaken or lies; the owner seals again without this broker",
        )

    def too_few_parts(self, got: int, needed: int) -> SealtrainError:
        """The error for too few parts, or parts of which too few belong together."""
        if got >= needed:
            return AnswerInvalid(
                "too few of the brokers' shares of a key belong together",
                check="share",
                owner=self.owner,
                got=f"{got} shares of {self.dataset_id}",
                expected=f"{needed} of one sealing",
                hint="ask the owner to seal again: the guest cannot tell who altered a share",
            )
        return UsageError(
            "too few brokers were asked for a dataset",
            check="brokers",
            owner=self.owner,
            got=f"{got} for {self.dataset_id}",
            expected=f"{needed}",
            hint="give --broker once for each broker that the dataset is sealed to",
        )


@dataclass(frozen=True, slots=True)
class StanzaContent:
    """What a broker handed out of a dataset's key: the kind of stanza it held, and its content."""

    kind: str
    secret: Secret


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedModel:
    """The model of the run before, whose key a run needs.

    Attributes:
        place: Which run it is of.
        run_id: Of that run, under which the model is sealed.
        consortium_id: Whose brokers have its key.
        stanzas: Of its first file.
    """

    place: Continues
    run_id: str
    consortium_id: str
    stanzas: tuple[Stanza, ...]

    def request_to(self, broker: AttestedBroker) -> tuple[Continues, Stanza]:
        """What is asked of the one broker that the model is sealed for.

        Raises:
            NoStanza: It is sealed for none, or for another one.
        """
        wanted = WantedKey(
            dataset_id=self.run_id,
            root="",
            owner="",
            owner_id=self.consortium_id,
            stanzas=self.stanzas,
        )
        stanza = wanted.stanza_for(broker)
        if stanza is None:
            raise NoStanza(
                "the model of the run before is not sealed for this broker",
                check="model stanza",
                got=self.run_id,
                expected=broker.broker_id,
                hint="give the guest the outputs of the run before, as that run left them",
            )
        return self.place, stanza


@dataclass(frozen=True, slots=True, kw_only=True)
class CombinedKey:
    """A dataset's key from the brokers' parts.

    Attributes:
        key: The data key, ``None`` where the parts do not suffice.
        needed: How many brokers' leases it needs; 0 where no part was readable.
        holders: Brokers, by URL, whose part is right.
        wrong: Brokers whose part is not.
    """

    key: DataKey | None
    needed: int
    holders: frozenset[str]
    wrong: tuple[str, ...]


def combine(parts: Mapping[str, StanzaContent]) -> CombinedKey:
    """Combine the parts of one dataset's key.

    A recipe stanza holds the whole key. Where there is one, shares are not needed.

    Args:
        parts: By broker URL.
    """
    keys = {url: part.secret for url, part in parts.items() if part.kind == "recipe"}
    return _compare_keys(keys) if keys else _join_keys(parts)


def _compare_keys(keys: Mapping[str, Secret]) -> CombinedKey:
    """The first broker's key counts; a broker with another one is wrong.

    Whether it is the owner's key shows when the dataset is opened.
    """
    key = next((secret for secret in keys.values() if len(secret) == KEY_BYTES), None)
    agreeing = frozenset(url for url, secret in keys.items() if secret == key)
    return CombinedKey(
        key=None if key is None else DataKey(key.reveal()),
        needed=1,
        holders=agreeing,
        wrong=tuple(url for url in keys if url not in agreeing),
    )


def _join_keys(parts: Mapping[str, StanzaContent]) -> CombinedKey:
    joined = join_key({url: part.secret for url, part in parts.items()})
    return CombinedKey(
        key=joined.key,
        needed=joined.threshold,
        holders=frozenset(parts) - set(joined.wrong),
        wrong=joined.wrong,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Grants:
    """Keys of one run, and until when enough brokers lend them.

    Attributes:
        data_keys: By dataset id.
        run_key: Of the run's checkpoints and outputs.
        held: What each broker granted, by URL, without keys.
        needed: How many brokers' leases each dataset needs, by dataset id.
        holders: Which brokers handed out their part of it, by dataset id.
        answered: Brokers that decided in the last round.
        model_key: Of the model of the run before, where it was asked for.
    """

    data_keys: dict[str, DataKey]
    run_key: DataKey
    held: dict[str, Grant]
    needed: dict[str, int]
    holders: dict[str, frozenset[str]]
    answered: frozenset[str]
    model_key: DataKey | None = None

    def with_permit(self, permit: Permit) -> Grants:
        """The same with keys that ask ``permit`` before each use."""
        return replace(
            self,
            data_keys={name: key.with_permit(permit) for name, key in self.data_keys.items()},
            run_key=self.run_key.with_permit(permit),
            model_key=None if self.model_key is None else self.model_key.with_permit(permit),
        )

    @property
    def receipts(self) -> tuple[Receipted, ...]:
        """Of the release and the newest renewal of each broker, oldest first."""
        return _by_time(receipt for grant in self.held.values() for receipt in grant.receipts)

    @property
    def fresh(self) -> tuple[Receipted, ...]:
        """Of the last round, oldest first."""
        return _by_time(self.held[url].receipts[-1] for url in self.answered)

    @property
    def latest_checkpoint(self) -> Anchor | None:
        """The newest that any broker has anchored; a resuming guest refuses anything older."""
        anchored = (grant.latest_checkpoint for grant in self.held.values())
        known = (anchor for anchor in anchored if anchor is not None)
        return max(known, key=lambda anchor: anchor.counter, default=None)

    @property
    def lease_ends(self) -> int:
        """First second at which some dataset has too few live leases, by the brokers' clocks."""
        return self._enough_until({url: grant.lease_ends for url, grant in self.held.items()})

    @property
    def lease_seconds(self) -> int:
        """For how long the last round lent the keys, by the brokers' own clocks."""
        return self._enough_until({url: self.held[url].lease_seconds for url in self.answered})

    @property
    def simulated(self) -> bool:
        """A broker saw simulated evidence."""
        return any(grant.simulated for grant in self.held.values())

    def suffices(self) -> bool:
        """Whether the brokers of the last round suffice for every dataset."""
        return all(
            len(holders & self.answered) >= self.needed[dataset_id]
            for dataset_id, holders in self.holders.items()
        )

    def _enough_until(self, ends: Mapping[str, int]) -> int:
        """Until when every dataset has enough leases, of which each ends at ``ends``, by broker.

        A dataset that needs two has enough until the second longest of its leases ends.
        """

        def enough_until(dataset_id: str) -> int:
            leases = [ends[url] for url in self.holders[dataset_id] if url in ends]
            return sorted(leases, reverse=True)[self.needed[dataset_id] - 1]

        return min(enough_until(dataset_id) for dataset_id in self.holders)


def refuse_lapsed(ended: int, now: int) -> LeaseStale:
    """The error for leases that have ended by the guest's own clock."""
    return LeaseStale(
        "too few of the brokers' leases are live",
        check="lease",
        got=to_rfc3339(now),
        expected=f"before {to_rfc3339(ended)}",
        hint="sealtrain resume asks for the keys again",
    )


def _by_time(receipts: Iterable[Receipted]) -> tuple[Receipted, ...]:
    return tuple(sorted(receipts, key=lambda held: from_rfc3339(held.receipt.released_at)))
