"""The series that a run reads: whole, newest, and within their owners' bounds.

See spec/key-release.md §4.6. The guest

1. takes the longest chain of members that its brokers list, signed by their owner, without a gap or
   a fork;
2. finds exactly the members that a run reads (``guest.datasets``);
3. sees that the ledger entry of every release that begins the run states the same newest member;
4. compares records and columns of the opened members with the bounds, before it trains.

An operator that withholds a successor is refused by the broker, which counts in its own ledger. On
a resume the chain ends with the members that the run began with, and step 3 is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sealtrain.base.canonical import JsonValue, canonical_json, parse_json
from sealtrain.base.files import atomic_write, read_bounded
from sealtrain.consortium.datasets import DatasetManifest, verify_dataset
from sealtrain.consortium.errors import SeriesMismatch
from sealtrain.consortium.members import Consortium
from sealtrain.consortium.receipts import OwnedId
from sealtrain.consortium.series import (
    block_of,
    chain_of,
    growth_kept,
    member_digest,
    members_read,
    newest_of,
)
from sealtrain.errors import DataInvalid
from sealtrain.sealing.index import schema_digest_of
from sealtrain.signing.dsse import Envelope

if TYPE_CHECKING:
    import pyarrow as pa

    from sealtrain.client.grants import Grants
    from sealtrain.recipe.schema import PhaseRecipe
    from sealtrain.release.messages import ListedSeries
    from sealtrain.sealing.opened_dataset import SealedDataset

SERIES_FILE: Final = "series.json"
_MAX_BYTES: Final = 64 << 10
_Key = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesMembers:
    """The members of one series, from member 1 to the newest that the run knows.

    Attributes:
        members: Verified manifests, by number.
        envelopes: Theirs, in the same order.
    """

    members: tuple[DatasetManifest, ...]
    envelopes: tuple[Envelope, ...]

    @property
    def read(self) -> tuple[DatasetManifest, ...]:
        """The members that a run reads."""
        return members_read(self.members)

    def until(self, number: int) -> SeriesMembers:
        """The same up to one member."""
        return SeriesMembers(members=self.members[:number], envelopes=self.envelopes[:number])

    def to_dict(self) -> dict[str, JsonValue]:
        """An item of ``series`` in the run manifest's predicate."""
        former = len(self.members) - len(self.read)
        return {
            "owner": self.members[0].owner,
            "name": self.members[0].name,
            "members": [member.dataset_id for member in self.read],
            "former": [envelope.to_dict() for envelope in self.envelopes[:former]],
        }


@dataclass(frozen=True, slots=True)
class Chains:
    """The chains of a recipe's series, by owner and name, in the recipe's order."""

    of: Mapping[_Key, SeriesMembers] = field(default_factory=dict)

    def to_list(self) -> list[dict[str, JsonValue]]:
        """Field ``series`` of the run manifest's predicate."""
        return [chain.to_dict() for chain in self.of.values()]

    def until(self, numbers: Mapping[_Key, int]) -> Chains:
        """The same up to the members that a run began with, where they are known."""
        return Chains(
            {
                key: chain.until(numbers.get(key, len(chain.members)))
                for key, chain in self.of.items()
            }
        )


def list_series(
    answers: Iterable[Sequence[ListedSeries]], recipe: PhaseRecipe, consortium: Consortium
) -> Chains:
    """Step 1.

    Args:
        answers: What each broker lists.
        recipe: Names series.
        consortium: Its members' signatures count.

    Raises:
        SeriesMismatch: Members with a gap, a fork or a broken bound; or no broker lists any.
        SignatureInvalid, StatementInvalid, DatasetMismatch: A member is not its owner's.
    """
    wanted = [
        (dataset.owner, dataset.name) for dataset in recipe.datasets if dataset.series is not None
    ]
    found: dict[_Key, SeriesMembers] = {}
    for answer in answers:
        for series in answer:
            key = (series.owner, series.name)
            if key in wanted:
                longest = found.get(key)
                found[key] = _longer(longest, _verify_members(series, consortium))
    for owner, name in wanted:
        if (owner, name) not in found:
            raise SeriesMismatch(
                f"no broker lists a member of the series {name}",
                check="series",
                owner=owner,
                dataset=name,
                hint="its owner begins it: sealtrain seal --series",
            )
    return Chains({key: found[key] for key in wanted})


def check_entries(grants: Grants, chains: Chains) -> None:
    """Step 3.

    Args:
        grants: Of a release that began the run.
        chains: As the guest found them.

    Raises:
        SeriesMismatch: A broker's ledger states another newest member, or none of a series of which
            the broker handed out a member.
    """
    for grant in grants.held.values():
        first = grant.receipts[0]
        released = {
            OwnedId(dataset.owner_id, dataset.dataset_id) for dataset in first.receipt.datasets
        }
        body = first.proof.entry.get("body")
        stated = body.get("series", []) if isinstance(body, dict) else []
        said = {
            (str(series.get("owner")), str(series.get("name"))): series
            for series in (stated if isinstance(stated, list) else [])
            if isinstance(series, dict)
        }
        for key, chain in chains.of.items():
            members = (OwnedId(member.owner_id, member.dataset_id) for member in chain.members)
            handed_out = not released.isdisjoint(members)
            expected = newest_of(chain.members).to_dict()
            if (key in said or handed_out) and said.get(key) != expected:
                raise SeriesMismatch(
                    "the broker's ledger states another newest member than the guest was shown",
                    check="series",
                    owner=key[0],
                    dataset=key[1],
                    got=(said.get(key) or {}).get("number"),
                    expected=expected["number"],
                    hint="start the run again: the operator withholds a member, or one was added",
                )


def check_opened(chains: Chains, opened: Mapping[str, SealedDataset]) -> None:
    """Step 4.

    Args:
        chains: The series of the run.
        opened: Its datasets, by id.

    Raises:
        SeriesMismatch: A member holds other records than its manifest states, or breaks a bound.
    """
    for chain in chains.of.values():
        before: pa.Schema | None = None
        for member in chain.read:
            dataset = opened[member.dataset_id]
            _check_member(chain, member, dataset, before)
            before = dataset.schema


def remember(out: Path, chains: Chains) -> None:
    """Note in a run's folder which members it began with, so that a resume finds them again.

    The brokers hold a resume to the data of its run; this file only says what to ask for.
    """
    note(out, {f"{owner}/{name}": len(chain.members) for (owner, name), chain in chains.of.items()})


def note(out: Path, numbers: Mapping[str, int]) -> None:
    """As ``remember``, of numbers by OWNER/NAME that another guest of the run noted."""
    if numbers:
        atomic_write(out / SERIES_FILE, canonical_json(dict(numbers)), overwrite=True)


def note_counters(out: Path) -> dict[str, int]:
    """The numbers of ``remember`` by OWNER/NAME, as an output store keeps them."""
    return {f"{owner}/{name}": number for (owner, name), number in read_remembered(out).items()}


def read_remembered(out: Path) -> dict[_Key, int]:
    """What ``remember`` noted; nothing where it did not, or where the file is damaged."""
    numbers: dict[_Key, int] = {}
    with suppress(DataInvalid):
        found = parse_json(read_bounded(out / SERIES_FILE, _MAX_BYTES))
        for key, number in found.items() if isinstance(found, dict) else ():
            owner, _, name = key.partition("/")
            if isinstance(number, int) and number >= 1:
                numbers[owner, name] = number
    return numbers


def _verify_members(series: ListedSeries, consortium: Consortium) -> SeriesMembers:
    envelopes = [document.envelope() for document in series.members]
    members = [verify_dataset(envelope, consortium) for envelope in envelopes]
    for member in members:
        if (member.owner, member.name) != (series.owner, series.name):
            raise SeriesMismatch(
                "a broker lists a member of another series",
                check="series",
                owner=series.owner,
                dataset=series.name,
                got=f"{member.owner}/{member.name}",
                expected=f"{series.owner}/{series.name}",
            )
    if [block_of(member).number for member in members] != list(range(1, len(members) + 1)):
        raise SeriesMismatch(
            "a broker lists members of a series out of their order, or with a gap",
            check="series",
            owner=series.owner,
            dataset=series.name,
        )
    return SeriesMembers(members=chain_of(members), envelopes=tuple(envelopes))


def _longer(known: SeriesMembers | None, other: SeriesMembers) -> SeriesMembers:
    """The longer of two chains, of which one must begin with the other."""
    if known is None:
        return other
    short, long = sorted((known, other), key=lambda chain: len(chain.members))
    last = len(short.members) - 1
    if member_digest(short.members[last]) != member_digest(long.members[last]):
        raise SeriesMismatch(
            "two brokers list different members of one series",
            check="series",
            owner=short.members[0].owner,
            dataset=short.members[0].name,
            got=f"two members {last + 1}",
            hint="its owner forked the series, or a broker lies: compare with sealtrain log",
        )
    return long


def _check_member(
    chain: SeriesMembers, member: DatasetManifest, dataset: SealedDataset, before: pa.Schema | None
) -> None:
    records = dataset.num_rows if dataset.schema is not None else None
    number = block_of(member).number
    if member.records is not None and member.records != records:
        raise _beyond(member, "another number of records than its manifest states")
    bounds = block_of(chain.members[0]).bounds
    if bounds is None:
        return
    if bounds.schema_drift is not None and schema_digest_of(dataset.schema) != member.schema_digest:
        raise _beyond(member, "other columns than its manifest states")
    if number == 1:
        return
    if bounds.schema_drift == "same" and member.schema_digest != chain.members[0].schema_digest:
        raise _beyond(member, "other columns than its series allows")
    if bounds.schema_drift == "nullable-columns" and not _only_adds(dataset.schema, before):
        raise _beyond(member, "other columns than its series allows")
    if records is not None:
        growth_kept(member, bounds, records, chain.members[number - 2].records)


def _only_adds(schema: pa.Schema | None, before: pa.Schema | None) -> bool:
    """Whether columns are those of before, and nullable ones behind them."""
    if schema is None or before is None:
        return schema is before
    kept = list(_columns(schema))[: len(before)]
    return kept == list(_columns(before)) and all(
        field.nullable for field in list(schema)[len(before) :]
    )


def _columns(schema: pa.Schema) -> Iterator[tuple[Any, ...]]:
    return ((field.name, str(field.type), field.nullable) for field in schema)


def _beyond(member: DatasetManifest, problem: str) -> SeriesMismatch:
    return SeriesMismatch(
        f"member {block_of(member).number} of a series holds {problem}",
        check="series bounds",
        owner=member.owner,
        dataset=member.name,
    )
