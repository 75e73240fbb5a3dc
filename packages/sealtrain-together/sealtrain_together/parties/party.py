"""A party of a run that several train together: its own data, its own keys, its own lease.

Takes steps 1 to 4 of ``guest.holding`` for the datasets of one owner, under a run id of its own
that follows from the run's (spec/parties.md §2). What it does with them is its kind's; it stops
when its lease ends. At the end it reports to the lead which datasets it held under which receipts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, StringConstraints

from sealtrain.base.canonical import canonical_json, parse_json
from sealtrain.base.clock import from_rfc3339, to_rfc3339
from sealtrain.base.encoding import from_base64, to_base64
from sealtrain.base.files import TEMPORARY_SUFFIX, atomic_write, read_bounded, sync
from sealtrain.base.models import (
    ONE_SPELLING,
    Base64,
    Document,
    Hex32,
    Hex64,
    OwnerName,
    StrictModel,
    Timestamp,
    load_model,
)
from sealtrain.base.secret import Secret
from sealtrain.errors import AlreadyExists, Refused, RunMismatch, UsageError
from sealtrain.guest.guest import Surroundings
from sealtrain.guest.key_holder import Asking, DataGuest
from sealtrain.guest.settings import RunSettings
from sealtrain.guest.validating import counts_of_records
from sealtrain.manifest.condense import select_releases
from sealtrain.manifest.errors import ClaimContradicted
from sealtrain.manifest.predicate import Release
from sealtrain.release.lease_code import Closing
from sealtrain.signing.parties import party_run_id

if TYPE_CHECKING:
    from collections.abc import Callable

    from sealtrain.client.grants import Grants
    from sealtrain.guest.model_before import ModelBefore
    from sealtrain.guest.validating import PublicCounts
    from sealtrain.sealing.datakey import DataKey

MAX_REPORT_BYTES = 4 << 20
_FILE = "party.json"
_MARK = re.compile(rf"{re.escape(_FILE)}|\.{re.escape(_FILE)}\..*{re.escape(TEMPORARY_SUFFIX)}")
_MAX_FILE_BYTES = 64 << 20


class ReportedClosing(StrictModel):
    """Shows one broker that the lead of a party's run hands in the manifest; secret.

    Attributes:
        broker_id: Of a broker that released keys to the party.
        lease_id: Of the party's newest lease there.
        key: ``release.lease_code.manifest_key`` of that lease's key, base64.
    """

    broker_id: Hex64
    lease_id: Hex64
    key: Annotated[Base64, StringConstraints(min_length=44, max_length=44), ONE_SPELLING] = Field(
        repr=False
    )

    def to_closing(self) -> Closing:
        """As a broker is shown it."""
        key = Secret(from_base64(self.key))
        return Closing(broker_id=self.broker_id, lease_id=self.lease_id, key=key)


_Records = Annotated[int, Field(ge=0, le=(1 << 53) - 1)]


class ReportedCounts(StrictModel):
    """What the records of a training dataset leave to learn (spec/run-log.md)."""

    records: _Records
    whole: _Records
    truncated: _Records
    filtered: _Records
    empty: _Records


class PartyReport(Document):
    """What a party says to the lead at the end, for the manifest (spec/parties.md §4).

    It goes over the channel of the two guests alone: ``closings`` are secret.

    Attributes:
        name: Of the owner whose data it held.
        role: What it did, a word of its kind.
        run_id: Its own.
        datasets: Manifests of its datasets, signed by their owner (DSSE envelopes).
        releases: Its receipts with their ledger proofs, in order of time.
        begun: When it was released its keys for the first time; ``from`` in JSON.
        until: Until when it took part.
        closings: For each broker that released keys to it.
        counts: Of each of its training datasets, by id, what its records leave to learn, ``None``
            where that is not public; ``None`` where the recipe's records are not counted.
    """

    what = "a party's report"
    refusal = ClaimContradicted
    max_bytes = MAX_REPORT_BYTES
    form = ("party", None)

    version: Literal[4] = 4
    name: OwnerName
    role: Annotated[str, Field(pattern=r"^[a-z][a-z-]{0,31}$")]
    run_id: Hex32
    datasets: tuple[dict[str, Any], ...] = Field(max_length=256)
    releases: tuple[Release, ...] = Field(max_length=4096)
    begun: Timestamp = Field(alias="from")
    until: Timestamp
    closings: tuple[ReportedClosing, ...] = Field(max_length=64)
    counts: Annotated[dict[Hex32, ReportedCounts | None], Field(max_length=256)] | None


class _PartyFile(StrictModel):
    version: Literal[2]
    run_id: Hex32
    party: OwnerName
    begun: Timestamp | None
    releases: tuple[dict[str, Any], ...]


@dataclass(slots=True)
class _KeptReceipts:
    """Receipts so far, in the party's folder. All of it is public, and signed by brokers.

    The file is there before brokers are asked: who finds it knows that they may have heard of this
    party, also where no receipt came back. ``begun`` is ``None`` until one did.
    """

    path: Path
    run_id: str
    party: str
    begun: str | None = None
    releases: list[dict[str, Any]] = field(default_factory=list)

    def add(self, receipts: Sequence[dict[str, Any]], now: int) -> None:
        self.begun = self.begun or to_rfc3339(now)
        self.releases = select_releases([*self.releases, *receipts])
        self.write()

    def write(self) -> None:
        document = {
            "version": 2,
            "run_id": self.run_id,
            "party": self.party,
            "begun": self.begun,
            "releases": self.releases,
        }
        atomic_write(self.path, canonical_json(document), overwrite=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Participation:
    """A party's part in a run.

    Attributes:
        party: Name of the owner whose data it holds.
        run_id: Of the whole run, 32 hex digits, as its lead made it.
        resume: The brokers know this party already: it was interrupted, or moved. Its folder may
            be another one if its kind keeps nothing in it; then its report begins with this
            release.
    """

    party: str
    run_id: str
    resume: bool = False


class PartyRun(DataGuest):
    """See the module.

    Attributes:
        name: Of the owner whose data it holds.
        run_id: Of the whole run; ``asked_as`` is its own.
        resumed: An earlier guest of this party had its keys.
    """

    def __init__(self, settings: RunSettings, part: Participation, around: Surroundings) -> None:
        """Do nothing yet; ``begin`` prepares it, too. Arguments as there."""
        asking = Asking(
            run_id=party_run_id(part.run_id, part.party), resuming=part.resume, owner=part.party
        )
        super().__init__(settings, asking, around, shared_out=True)
        self.name = part.party
        self.run_id = part.run_id
        self.resumed = part.resume
        self._counted = False
        self._counts: PublicCounts | None = None

    def count_records(self, say: Callable[[str], None] = lambda _line: None) -> None:
        """Count what the records of its training datasets leave to learn, once; reports say it.

        Args:
            say: Takes a line for the operator's terminal.

        Raises:
            DataInvalid: A dataset has records, and none that leaves anything to learn.
            RecordInvalid, ModelInvalid: A record does not fit the recipe or its model.
        """
        if not self._counted:
            self._counts = counts_of_records(self, say)
            self._counted = True

    def prepare(self) -> Self:
        """As ``DataGuest``; then keep the receipts of the release.

        Raises:
            RunMismatch: The folder is of another run or party.
            Refused, Unreachable: As ``DataGuest``.
        """
        out = self.settings.out
        kept = _read_kept(out, self.name, self.run_id)
        self._found_marked = kept is None and _holds_a_mark_alone(out)
        self._kept = kept or _KeptReceipts(out / _FILE, self.run_id, self.name)
        super().prepare()
        self._keep([receipted.to_dict() for receipted in self.grant.fresh])
        return self

    @classmethod
    def begin(cls, settings: RunSettings, part: Participation, around: Surroundings) -> PartyRun:
        """Attest, obtain the keys of one owner's datasets and open them.

        Args:
            settings: Where everything is; ``out`` is the party's own folder.
            part: The party, and its run.
            around: What else it is given.

        Raises:
            UsageError: The recipe is for one guest, or names no dataset of this owner.
            AlreadyExists: The folder holds something, and the party is not to be resumed.
            SealtrainError: As ``prepare``.
        """
        if not part.resume and not _holds_at_most_a_mark(settings.out):
            raise AlreadyExists(
                f"{settings.out} is not empty", hint="choose another folder, or resume this party"
            )
        return cls(settings, part, around).prepare()

    @property
    def key(self) -> DataKey:
        """The party's key for this run, lent as long as its lease lasts; ``derive`` from it."""
        return self.grant.run_key

    def share(self, purpose: str) -> bytes:
        """This party's share of a key that the lead cannot derive alone (``LeadRun.joint_key``).

        Args:
            purpose: Lower-case words with hyphens; the same for all parties.

        Returns:
            32 bytes, the same after a resume. To be sent over an attested channel only.
        """
        return self.key.derive("lead-share", purpose).reveal()

    def report(self, until: int, *, role: str = "holder") -> PartyReport:
        """What this party held, for the manifest. Its lease is live until ``until``.

        Counts its records first, unless ``count_records`` did.

        Args:
            until: When it ended its part, seconds since the epoch.
            role: What it did, a word of its kind.

        Raises:
            LeaseStale: The lease has ended before: a manifest with such a party would be refused.
        """
        self.lease.require()
        self.count_records()
        return PartyReport.model_validate(
            {
                "name": self.name,
                "role": role,
                "run_id": self.asked_as,
                "datasets": tuple(dataset.envelope for dataset in self.sealed_datasets),
                "releases": tuple(
                    Release.model_validate_json(canonical_json(release))
                    for release in self._kept.releases
                ),
                "from": self._kept.begun,
                "until": to_rfc3339(until),
                "closings": tuple(
                    {
                        "broker_id": closing.broker_id,
                        "lease_id": closing.lease_id,
                        "key": to_base64(closing.key.reveal()),
                    }
                    for closing in self.quorum.closings(self.grant)
                ),
                "counts": self._counts,
            }
        )

    def _obtain(self, before: ModelBefore | None, *, resuming: bool) -> Grants:
        """As ``DataGuest``; a party that found its mark alone does not know who has heard of it."""
        with _keep_mark(self._kept, alone=len(self.quorum.urls) == 1):
            if not self._found_marked:
                return super()._obtain(before, resuming=resuming)
            try:
                grants = super()._obtain(before, resuming=True)
                self.resumed = True
            except RunMismatch as unknown:
                try:
                    grants = super()._obtain(before, resuming=False)
                except RunMismatch:
                    raise unknown from None
                self.resumed = False
            return grants

    def _keep(self, receipts: Sequence[dict[str, Any]]) -> None:
        self._kept.add(receipts, self._clock())


@contextmanager
def _keep_mark(kept: _KeptReceipts, *, alone: bool) -> Iterator[None]:
    """Have the file there while brokers are asked.

    It stays where one of them may have granted something, whatever became of the answer.

    Args:
        kept: With the file.
        alone: One broker is asked, whose refusal says that it granted nothing.
    """
    folder = kept.path.parent
    made, written, asked = not folder.exists(), not kept.path.exists(), False
    folder.mkdir(exist_ok=True)
    try:
        if written:
            kept.write()
            sync(folder.parent)
        asked = True
        yield
    except BaseException as error:
        if written and (not asked or (alone and isinstance(error, Refused))):
            with suppress(OSError):
                kept.path.unlink(missing_ok=True)
                if made:
                    folder.rmdir()
        raise


def _holds_at_most_a_mark(out: Path) -> bool:
    return not out.exists() or not any(out.iterdir()) or _holds_a_mark_alone(out)


def _holds_a_mark_alone(out: Path) -> bool:
    """Whether a party ended while it asked brokers: a file without receipts, or half of it."""
    names = [entry.name for entry in out.iterdir()] if out.is_dir() else []
    if not names or not all(_MARK.fullmatch(name) for name in names):
        return False
    return _FILE not in names or _read(out / _FILE).begun is None


def _read(path: Path) -> _PartyFile:
    document = parse_json(read_bounded(path, _MAX_FILE_BYTES), max_bytes=_MAX_FILE_BYTES)
    return load_model(_PartyFile, document, UsageError, _FILE)


def _read_kept(out: Path, party: str, run_id: str) -> _KeptReceipts | None:
    """What an earlier guest of the party kept; ``None`` where it has no receipt."""
    path = out / _FILE
    if not path.is_file():
        return None
    found = _read(path)
    if found.begun is None:
        return None
    if (found.run_id, found.party) != (run_id, party):
        raise RunMismatch(
            f"{out} is the folder of another party",
            check="party",
            got=f"{found.party} in run {found.run_id}",
            expected=f"{party} in run {run_id}",
            hint="name the folder that this party began in",
        )
    from_rfc3339(found.begun)
    return _KeptReceipts(path, run_id, party, found.begun, list(found.releases))
