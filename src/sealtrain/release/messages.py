"""What guest, owners and broker say to each other (spec/key-release.md §2-§5): strict documents.

Every message that arrives is one of these models: frozen, no unknown field, no field left out,
every list and text bounded. ``load_message`` is the one door for bytes from the network.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, Self, TypeVar

from pydantic import Field, StringConstraints, model_validator

from sealtrain.attest.evidence import Evidence
from sealtrain.base.canonical import MAX_JSON_VALUES, JsonValue, canonical_json
from sealtrain.base.digests import sha256_hex
from sealtrain.base.models import (
    Base64,
    ErrorCode,
    Hex32,
    Hex40,
    Hex64,
    OwnerName,
    StrictModel,
    Timestamp,
    load_json,
    load_model,
)
from sealtrain.base.visible_text import escape_hidden
from sealtrain.consortium.receipts import Anchor, Lease, RunDataset
from sealtrain.consortium.series_block import MAX_MEMBERS
from sealtrain.errors import DataInvalid, SealtrainError
from sealtrain.signing.continues import Continues
from sealtrain.signing.dsse import Envelope
from sealtrain.signing.note import MAX_NOTE_BYTES

MAX_REQUEST_BYTES = 2 << 20
MAX_CHALLENGE_BYTES = 1 << 10
MAX_REQUEST_VALUES = 20_000
"""Values in the JSON of a request, arrays and objects included."""
MAX_DATASETS = 256
_MAX_WORDS = 2000
HPKE_KEY = Annotated[Base64, StringConstraints(min_length=1624, max_length=1624)]
_SIGNING_KEY = Annotated[Base64, StringConstraints(min_length=44, max_length=44)]
_LEASE_KEY = Annotated[Base64, StringConstraints(min_length=44, max_length=44)]
_PART = Annotated[Base64, StringConstraints(min_length=44, max_length=4096)]

ChallengePurpose = Literal["release", "renewal"]


class ChallengeRequest(StrictModel):
    """Ask for a challenge for one purpose (§3)."""

    version: Literal[1]
    consortium_id: Hex64
    purpose: ChallengePurpose


class Challenge(StrictModel):
    """A single-use number; ``expires_at`` is by the broker's clock (§3)."""

    version: Literal[1]
    consortium_id: Hex64
    purpose: ChallengePurpose
    challenge: Hex64
    expires_at: Timestamp


class StanzaDocument(StrictModel):
    """A stanza for a broker as it travels; ``sealing.stanza`` knows what is inside."""

    kind: Literal["recipe", "share"]
    recipient: Hex64
    body: Annotated[Base64, StringConstraints(min_length=4, max_length=8192)]


class DatasetRequest(StrictModel):
    """One dataset whose key is asked for, with the stanza that wraps it."""

    owner_id: Hex64
    dataset_id: Hex32
    root: Hex64
    stanza: StanzaDocument


class DatasetElsewhere(StrictModel):
    """Data of the run whose key another broker is asked for."""

    owner_id: Hex64
    dataset_id: Hex32
    root: Hex64


class ModelBeforeRequest(Continues):
    """The model of the run before, whose key is asked for with the data's (§4.1)."""

    stanza: StanzaDocument

    @property
    def place(self) -> Continues:
        """Which run it is of."""
        return Continues(manifest_digest=self.manifest_digest, number=self.number)


class _Attested(StrictModel):
    """Fields that release and renewal share; evidence commits to all the others."""

    broker_id: Hex64
    challenge: Hex64
    run_id: Hex32
    consortium_id: Hex64
    app_id: Hex40
    compose_hash: Hex64
    recipe_hash: Hex64
    evidence: Evidence

    def transcript(self) -> dict[str, Any]:
        """Every field but the evidence: what report data commits to."""
        return self.model_dump(mode="json", by_alias=True, exclude={"evidence"})

    @classmethod
    def from_dict(cls, data: JsonValue) -> Self:
        """Validate parsed JSON.

        Raises:
            DataInvalid: A field is missing, unknown or malformed.
        """
        return load_model(cls, data, DataInvalid, cls.__name__)


class ReleaseRequest(_Attested):
    """A guest asks for keys (§4.1)."""

    version: Literal[3]
    submission_id: Hex32 | None
    hpke_public_key: HPKE_KEY
    datasets: tuple[DatasetRequest, ...] = Field(min_length=1, max_length=MAX_DATASETS)
    elsewhere: tuple[DatasetElsewhere, ...] = Field(max_length=MAX_DATASETS)
    resume: bool
    continues: ModelBeforeRequest | None = Field(
        default=None, exclude_if=lambda value: value is None
    )

    @model_validator(mode="after")
    def _each_dataset_once(self) -> ReleaseRequest:
        named = [dataset.dataset_id for dataset in self.datasets]
        named += [dataset.dataset_id for dataset in self.elsewhere]
        if len(set(named)) != len(named):
            raise ValueError("a dataset is named twice")
        if len(named) > MAX_DATASETS:
            raise ValueError(f"a run has at most {MAX_DATASETS} datasets")
        return self

    @property
    def data(self) -> frozenset[RunDataset]:
        """All data of the run, at whichever broker its keys are."""
        named: tuple[DatasetRequest | DatasetElsewhere, ...] = (*self.datasets, *self.elsewhere)
        return frozenset(
            RunDataset(dataset.owner_id, dataset.dataset_id, dataset.root) for dataset in named
        )


class RenewalRequest(_Attested):
    """A guest asks to keep using its keys (§5)."""

    version: Literal[2]
    lease_id: Hex64
    checkpoint: Anchor | None


class FailureReport(StrictModel):
    """A guest says with which code its run failed, and gives its lease back (§5)."""

    version: Literal[1]
    run_id: Hex32
    lease_id: Hex64
    code: ErrorCode


class EnvelopeSignature(StrictModel):
    """One signature of a DSSE envelope."""

    keyid: Annotated[str, StringConstraints(max_length=128)]
    sig: Annotated[Base64, StringConstraints(max_length=8192)]


class EnvelopeDocument(StrictModel):
    """A DSSE envelope as it travels; ``signing.dsse`` verifies it."""

    payload: Annotated[Base64, StringConstraints(max_length=4 << 20)]
    payloadType: Annotated[str, StringConstraints(max_length=256)]  # noqa: N815  # DSSE's own name
    signatures: tuple[EnvelopeSignature, ...] = Field(min_length=1, max_length=64)

    @classmethod
    def of(cls, envelope: Envelope) -> Self:
        """The message that carries ``envelope``."""
        return cls.model_validate_json(envelope.to_bytes())

    def envelope(self) -> Envelope:
        """The envelope, parsed strictly and unverified. Raises ``SignatureInvalid``."""
        return Envelope.from_dict(self.to_dict())


class ReleaseAnswer(StrictModel):
    """Sealed keys, the receipt of the decision and its place in the ledger (§4.4)."""

    version: Literal[2]
    run_id: Hex32
    enc: Annotated[Base64, StringConstraints(max_length=1 << 20)]
    receipt: EnvelopeDocument
    proof: dict[str, Any]


class RenewalAnswer(StrictModel):
    """The receipt of a renewal and its place in the ledger (§5). No key."""

    version: Literal[2]
    run_id: Hex32
    receipt: EnvelopeDocument
    proof: dict[str, Any]


class SealedKeys(StrictModel):
    """Plaintext of ``ReleaseAnswer.enc``. Holds keys: never logged, never stored.

    A part is what the stanza held: a data key, or this broker's share of one (``keys.shares``).
    Lease, checkpoint and digest are those of the one receipt that these keys belong to. By the
    lease's key the guest shows that a renewal is its own (``release.lease_code``).
    """

    keys: dict[Hex32, _PART] = Field(min_length=1, max_length=MAX_DATASETS, repr=False)
    model_key: _LEASE_KEY | None = Field(default=None, repr=False)
    latest_checkpoint: Anchor | None
    lease: Lease
    lease_key: _LEASE_KEY = Field(repr=False)
    receipt_digest: Hex64


class BrokerIdentity(StrictModel):
    """Which broker this is, under fresh evidence of its own (§2.2)."""

    version: Literal[1]
    consortium_id: Hex64
    signing_key: _SIGNING_KEY
    nonce: Hex64
    evidence: Evidence

    def transcript(self) -> dict[str, Any]:
        """What the broker's report data commits to."""
        return self.model_dump(mode="json", by_alias=True, exclude={"evidence", "version"})


class BrokerKey(StrictModel):
    """Public key an owner seals to, for one recipe (§2)."""

    owner: OwnerName
    owner_id: Hex64
    public_key: HPKE_KEY


class BrokerKeys(StrictModel):
    """The broker's identity and its keys for one recipe (§2)."""

    version: Literal[1]
    consortium_id: Hex64
    app_id: Hex40
    compose_hash: Hex64
    keys: tuple[BrokerKey, ...] = Field(min_length=1, max_length=1024)
    signing_key: _SIGNING_KEY
    nonce: Hex64
    evidence: Evidence

    def transcript(self) -> dict[str, Any]:
        """What the broker's report data commits to."""
        return self.model_dump(mode="json", by_alias=True, exclude={"evidence", "version"})


class StandingCount(StrictModel):
    """What runs took of one standing approval."""

    owner: OwnerName
    approval: Hex64
    """Digest of its envelope."""
    runs: int = Field(ge=0)
    """How many count under it."""
    epsilon: float = Field(ge=0, allow_inf_nan=False)
    """Largest sum of reservations of one of its owner's datasets."""


class TallyAnswer(StrictModel):
    """Where the approval of one target stands, with the signed decisions behind it (§6)."""

    version: Literal[1]
    tally: dict[str, Any]
    decisions: tuple[EnvelopeDocument, ...]
    standing: tuple[StandingCount, ...] = Field(
        default=(), max_length=64, exclude_if=lambda value: not value
    )
    """Of each standing approval that counts, what was used of it: the broker's word."""


class OwnerPolicies(StrictModel):
    """What owners ask of guests that read their data, as they signed it; those in force (§6)."""

    policies: tuple[EnvelopeDocument, ...] = Field(max_length=64)


class ListedSeries(StrictModel):
    """All members of a series that are registered for one deployment, by number (§4.6)."""

    owner: OwnerName
    name: OwnerName
    members: tuple[EnvelopeDocument, ...] = Field(min_length=1, max_length=MAX_MEMBERS)


SERIES_PAGE: Final = 64
"""Most members of a series in one answer."""
REGISTERED_PAGE: Final = 256
"""Most dataset ids in one answer."""
MAX_NAMED_IDS: Final = 64
"""Most dataset ids in one question: its head is bounded."""


class SeriesPage(StrictModel):
    """Members of one owner's series that are registered for one deployment, by number (§4.6)."""

    members: tuple[EnvelopeDocument, ...] = Field(max_length=SERIES_PAGE)
    end: int | None = Field(ge=1, le=MAX_MEMBERS)
    """After which number to continue; ``None`` after the last member."""


class RegisteredDatasets(StrictModel):
    """Ids of one owner's datasets that are registered for one deployment (§5.2)."""

    dataset_ids: tuple[Hex32, ...] = Field(max_length=REGISTERED_PAGE)
    end: Hex32 | None
    """After which id to continue; ``None`` after the last."""


class Accepted(StrictModel):
    """An owner's submission was accepted; ``index`` is its entry in the ledger (§6)."""

    version: Literal[1]
    index: int = Field(ge=0)
    digest: Hex64
    proof: dict[str, Any]


class LedgerCheckpoint(StrictModel):
    """Head of the ledger, a signed note (§7)."""

    checkpoint: str


class CosignedCheckpoint(StrictModel):
    """A tree head of the ledger with an owner's cosignature (spec/ledger.md §7)."""

    version: Literal[1]
    cosigned: str = Field(max_length=MAX_NOTE_BYTES)


class CosignedPage(StrictModel):
    """Tree heads with their cosignatures (spec/ledger.md §7)."""

    checkpoints: tuple[str, ...] = Field(max_length=100)


class LedgerPage(StrictModel):
    """Consecutive entries of the ledger (§7)."""

    start: int = Field(ge=0)
    entries: tuple[dict[str, Any], ...]


class LedgerRotation(StrictModel):
    """A change of the ledger's key and the entry that holds it."""

    index: int = Field(ge=0)
    rotation: dict[str, Any]


class LedgerRotations(StrictModel):
    """Every change of the ledger's key, oldest first."""

    rotations: tuple[LedgerRotation, ...] = Field(max_length=1024)


class LedgerConsistency(StrictModel):
    """Proof that a larger ledger extends a smaller one (§7)."""

    path: tuple[Hex64, ...]


class Health(StrictModel):
    """That the broker answers."""

    status: Literal["ok"]
    version: str
    consortium_id: Hex64
    ledger_size: int = Field(ge=0)


class Ready(StrictModel):
    """That the broker can decide."""

    status: Literal["ready"]


class BrokerStatus(StrictModel):
    """How a broker is, for its operators."""

    version: str
    consortium_id: Hex64
    now: Timestamp
    started_at: Timestamp
    ready: bool
    failing: dict[str, str]
    """Parts that it cannot decide without and that fail now: name → what was found."""
    sizes: dict[str, int]
    """Of what could be read."""


class ErrorFields(StrictModel):
    """``SealtrainError.to_dict()`` (§8)."""

    code: str
    message: str
    check: str | None = None
    owner: str | None = None
    dataset: str | None = None
    column: str | None = None
    got: str | None = None
    expected: str | None = None
    hint: str | None = None

    def error(self) -> SealtrainError:
        """The error as the peer raised it, its words safe for a terminal."""
        return SealtrainError.from_dict(
            self.model_dump(), lambda text: escape_hidden(text, _MAX_WORDS)
        )


class ErrorBody(StrictModel):
    """Body of every answer that is not 200 (§8)."""

    error: ErrorFields


Message = TypeVar("Message", bound=StrictModel)


def load_message(
    cls: type[Message],
    body: bytes,
    *,
    max_bytes: int = MAX_REQUEST_BYTES,
    max_values: int = MAX_JSON_VALUES,
    error: type[SealtrainError] = DataInvalid,
) -> Message:
    """Parse a message from the network.

    Args:
        body: Bytes received.
        max_bytes: Largest accepted length.
        max_values: Most values in it, arrays and objects included.
        error: Class to raise when the fields are not those of ``cls``.

    Raises:
        LimitExceeded: Longer, deeper or of more values than allowed.
        DataInvalid: Not JSON.
        SealtrainError: An ``error`` naming the first wrong field, never its value.
    """
    return load_json(cls, body, error, cls.__name__, max_bytes=max_bytes, max_values=max_values)


RELEASE_PURPOSE = "release"
RENEWAL_PURPOSE = "renewal"
KEYS_PURPOSE = "broker-keys"
IDENTITY_PURPOSE = "broker-identity"
"""Purposes of ``attest.report_data``: evidence for one cannot serve another."""


def transcript_digest(transcript: JsonValue) -> str:
    """SHA-256 of the canonical transcript, 64 hex digits."""
    return sha256_hex(canonical_json(transcript))


def answer_info(digest: str) -> bytes:
    """HPKE ``info`` of the answer to the request with this transcript digest."""
    return canonical_json({"purpose": "sealtrain/release/v2", "transcript_digest": digest})


def ledger_origin(consortium_id: str) -> str:
    """Origin line of the tree heads of a consortium's ledger."""
    return f"sealtrain/ledger/{consortium_id}"
