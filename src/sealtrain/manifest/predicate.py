"""The predicate of a run manifest, field by field (spec/run-manifest.md §2).

The models check the shape only: each is frozen and refuses unknown fields, and every list and text
is bounded. ``manifest.checks`` decides whether the fields agree with each other, with the evidence
and with a trust file. Envelopes, locks and log entries stay plain JSON here, because their own
modules read them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AllowInfNan, Field, StringConstraints

from sealtrain.base.limits import MAX_RECEIPTS
from sealtrain.base.models import (
    Base64,
    Hex32,
    Hex40,
    Hex64,
    OwnerName,
    StrictModel,
    Timestamp,
    printable,
)
from sealtrain.base.platforms import Platform
from sealtrain.base.tiers import Tier
from sealtrain.consortium.members import Consortium
from sealtrain.consortium.series_block import MAX_MEMBERS
from sealtrain.recipe.collaboration import is_none
from sealtrain.sealing.trainedmodel import MAX_FILES, MODEL_FOLDER, model_name
from sealtrain.signing.continues import Continues

PREDICATE_TYPE = "https://sealtrain.dev/attestations/run-manifest/v2"
SIMULATED_MARKER = "SIMULATED — NOT ATTESTED"

MAX_ROTATIONS = 64
Document = dict[str, Any]
"""A JSON object that another module parses."""
MetricName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_./-]{0,63}$")]
Value = Annotated[float, AllowInfNan(False)]
"""A finite number; a measurement that was not finite is written as null."""
Count = Annotated[int, Field(ge=0, le=2**53 - 1)]
Role = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z-]{0,31}$")]
Key = Annotated[Base64, StringConstraints(min_length=44, max_length=44)]
"""An Ed25519 public key, base64 of 32 bytes."""


Line = Annotated[str, StringConstraints(max_length=300), AfterValidator(printable)]
"""Short text without control characters: safe to show in a terminal."""


def output_name(subject: str) -> str:
    """Name in training of the output that a subject names: ``model/NAME.sealed``.

    Raises:
        ValueError: The subject names another kind of file, or another folder.
    """
    folder, _, sealed = subject.partition("/")
    if folder != MODEL_FOLDER:
        raise ValueError(f"does not lie in {MODEL_FOLDER}/")
    return model_name(sealed)


def _names_an_output(subject: str) -> str:
    output_name(subject)
    return subject


SubjectName = Annotated[str, AfterValidator(_names_an_output)]


class ManifestSigner(StrictModel):
    """The guest key that signs this manifest and that the final quote names."""

    public_key: Key


class RecipeRecord(StrictModel):
    """The lock, whole; its canonical bytes hash to ``recipe_hash``."""

    recipe_hash: Hex64
    lock: Document


class Deployment(StrictModel):
    """The measured deployment document, by hash; the document lies in the evidence.

    Attributes:
        tier: What the machine that ran proves of itself; check 6 compares it with the evidence.
    """

    platform: Platform
    tier: Tier
    app_id: Hex40
    compose_hash: Hex64


class Release(StrictModel):
    """A broker's receipt (DSSE envelope) and the proof that its ledger holds it.

    Attributes:
        rotations: Rotations from a key that the lock names to the receipt's key (DSSE envelopes,
            oldest first); empty where the lock names it.
    """

    receipt: Document
    proof: Document
    rotations: tuple[Document, ...] = Field(max_length=MAX_ROTATIONS)


class Resume(StrictModel):
    """The run continued from a sealed checkpoint."""

    at: Timestamp
    counter: Count
    step: Count
    checkpoint: Hex64


class Point(StrictModel):
    """Metrics at one step, as the release policy allows."""

    step: Count
    values: dict[MetricName, Value | None] = Field(max_length=64)


class RunCourse(StrictModel):
    """The course of the run, by the guest's own log and clock."""

    run_id: Hex32
    started_at: Timestamp
    finished_at: Timestamp
    steps: Count
    tokens: Count | None
    tokens_sha256: Hex64 | None
    resumes: tuple[Resume, ...] = Field(max_length=1024)
    history: tuple[Point, ...] = Field(max_length=10_000)
    metrics: dict[MetricName, Value | None] = Field(max_length=64)
    environment: dict[Line, Line] = Field(max_length=256)


class RunLogRecord(StrictModel):
    """The run's events; ``signing.runlog`` verifies the chain."""

    head: Hex64
    entries: tuple[Document, ...] = Field(min_length=1, max_length=20_000)


class OutputFile(StrictModel):
    """One subject of the statement; ``size`` in bytes as sealed, ``root`` of the sealed file."""

    name: SubjectName
    size: Count
    root: Hex64


class HandedOn(StrictModel):
    """The sealed dataset that the outputs are, and the deployment that it is sealed for."""

    dataset_id: Hex32
    owner: OwnerName
    owner_id: Hex64
    name: OwnerName
    root: Hex64
    app_id: Hex40
    compose_hash: Hex64


class Outputs(StrictModel):
    """Sealed files, and the owners or the guests of another recipe that can open them."""

    recipients: tuple[OwnerName, ...] = Field(max_length=1024)
    files: tuple[OutputFile, ...] = Field(min_length=1, max_length=MAX_FILES)
    dataset: HandedOn | None = Field(default=None, exclude_if=is_none)


class Compute(StrictModel):
    """The cost of the run in seconds and bytes; null where the guest did not measure it."""

    wall_s: Annotated[Value, Field(ge=0)]
    cpu_s: Annotated[Value, Field(ge=0)] | None
    processors: Count | None
    accelerators: tuple[Line, ...] = Field(max_length=1024)
    peak_memory_bytes: Count | None


class NoPrivacyStated(StrictModel):
    """No formal privacy of the outputs."""

    dp: Literal["none"]


class DatasetCost(StrictModel):
    """The epsilon that training spent on one dataset, at the run's delta."""

    owner: OwnerName
    name: OwnerName
    records: Count
    sample_rate: Annotated[Value, Field(ge=0, le=1)]
    epsilon: Annotated[Value, Field(ge=0)]


class PrivateTraining(StrictModel):
    """DP-SGD as the guest performed it.

    Attributes:
        epsilon: Largest epsilon of the datasets.
        noise_multiplier: Deviation of the noise over ``max_grad_norm``.
        batch: Expected records in a step.
        steps: Noised steps, all of the run's.
    """

    dp: Literal["sgd"]
    epsilon: Annotated[Value, Field(ge=0)]
    delta: Annotated[Value, Field(gt=0, lt=1)]
    accountant: Literal["prv", "rdp", "gdp"]
    noise_multiplier: Annotated[Value, Field(gt=0)]
    max_grad_norm: Annotated[Value, Field(gt=0)]
    sampling: Literal["poisson"]
    unit: Literal["record"]
    batch: Count
    steps: Count
    datasets: tuple[DatasetCost, ...] = Field(min_length=1, max_length=1024)


class PrivateCounting(StrictModel):
    """Metrics of an evaluation, computed from one histogram with noise."""

    dp: Literal["counts"]
    epsilon: Annotated[Value, Field(gt=0)]
    unit: Literal["record"]


class PatientParty(StrictModel):
    """The number of patients of a party whose rounds were merged."""

    name: OwnerName
    patients: Annotated[Count, Field(ge=1)]


class PatientTraining(StrictModel):
    """Rounds of a federation that hide patients, as the parties performed them.

    Attributes:
        epsilon: Upper limit of the epsilon spent on each patient of a party.
        noise_multiplier: Deviation of the noise over ``max_patient_norm``.
        sample_rate: Probability of a patient to take part in a round.
        rounds: Noised steps, all of the run's.
    """

    dp: Literal["patients"]
    epsilon: Annotated[Value, Field(ge=0)]
    delta: Annotated[Value, Field(gt=0, lt=1)]
    accountant: Literal["prv", "rdp"]
    noise_multiplier: Annotated[Value, Field(gt=0)]
    max_patient_norm: Annotated[Value, Field(gt=0)]
    records_a_patient: Annotated[Count, Field(ge=1)]
    sampling: Literal["poisson"]
    unit: Literal["patient"]
    sample_rate: Annotated[Value, Field(gt=0, le=1)]
    rounds: Count
    parties: tuple[PatientParty, ...] = Field(min_length=1, max_length=256)


Privacy = Annotated[
    NoPrivacyStated | PrivateTraining | PrivateCounting | PatientTraining, Field(discriminator="dp")
]
"""Formal privacy of the outputs."""


class Party(StrictModel):
    """A party that took part with its own data.

    Attributes:
        name: Name of the owner of its data.
        role: Its role, a word of the kind.
        run_id: Run id under which it asked brokers for keys.
        begun: Start of its part; ``from`` in JSON.
        until: End of its part: its lease was live until then.
    """

    name: OwnerName
    role: Role
    run_id: Hex32
    begun: Timestamp = Field(alias="from")
    until: Timestamp


class Collaboration(StrictModel):
    """How several parties trained together; ``parties`` is empty where one guest held all data."""

    kind: Role
    parties: tuple[Party, ...] = Field(max_length=256)


class SeriesRead(StrictModel):
    """The members of one series that the run read, by number.

    Attributes:
        members: Ids of datasets of the manifest.
        former: Manifests of the members before them, which the run did not read (DSSE envelopes).
    """

    owner: OwnerName
    name: OwnerName
    members: tuple[Hex32, ...] = Field(min_length=1, max_length=MAX_MEMBERS)
    former: tuple[Document, ...] = Field(max_length=MAX_MEMBERS)


class Limit(StrictModel):
    """A fact that the manifest does not prove."""

    id: Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]{0,62}$")]
    text: Annotated[
        str, StringConstraints(min_length=1, max_length=1000), AfterValidator(printable)
    ]


class Predicate(StrictModel):
    """Everything a run manifest says besides the digests of its outputs."""

    version: Literal[2] = 2
    simulated: bool
    marker: Literal["SIMULATED — NOT ATTESTED"] | None
    signer: ManifestSigner
    consortium: Consortium
    recipe: RecipeRecord
    deployment: Deployment
    datasets: tuple[Document, ...] = Field(min_length=1, max_length=1024)
    approvals: tuple[Document, ...] = Field(max_length=4096)
    releases: tuple[Release, ...] = Field(max_length=MAX_RECEIPTS)
    run: RunCourse
    run_log: RunLogRecord
    outputs: Outputs
    compute: Compute
    privacy: Privacy
    limits: tuple[Limit, ...] = Field(max_length=64)
    series: tuple[SeriesRead, ...] = Field(
        default=(), min_length=1, max_length=256, exclude_if=lambda value: not value
    )
    collaboration: Collaboration | None = Field(default=None, exclude_if=is_none)
    continues: Continues | None = Field(default=None, exclude_if=is_none)
