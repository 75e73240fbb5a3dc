"""An owner's signed manifest of a sealed dataset: its id, its root and its deployment.

The manifest is canonical JSON in a DSSE envelope under ``PAYLOAD_TYPE`` and lies in the dataset's
folder as ``dataset.json``. ``verify_dataset`` checks

1. the envelope carries exactly one signature,
2. by the signing key of a trusted owner,
3. that verifies,
4. over a canonical document that follows the format, and
5. that names the signer, by id and by name, as the dataset's owner.

Record and token counts are ``None`` when their owner keeps them private. ``data_use`` says how the
owner lets the data be used, and until when.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, model_validator

from sealtrain.base.canonical import JsonValue, canonical_json, parse_canonical
from sealtrain.base.clock import from_rfc3339
from sealtrain.base.models import Document, Hex32, Hex40, Hex64, OwnerName, RealTime, load_model
from sealtrain.consortium.errors import DatasetMismatch
from sealtrain.consortium.members import Consortium
from sealtrain.consortium.series_block import SeriesBlock
from sealtrain.errors import DataInvalid, SignatureInvalid
from sealtrain.sealing.places import Folder, read_small
from sealtrain.signing import dsse
from sealtrain.signing.datause import DataUse
from sealtrain.signing.errors import StatementInvalid
from sealtrain.signing.identity import PublicIdentity

if TYPE_CHECKING:
    from sealtrain.sealing.description import DatasetDescription

PAYLOAD_TYPE = "application/vnd.sealtrain.dataset+json"
FILE_NAME = "dataset.json"
MAX_MANIFEST_BYTES = 64 << 10
_MAX_COUNT = 2**53 - 1
_MOST_BROKERS = 16
"""That share a key (``keys.shares``)."""


class DatasetManifest(Document):
    """The signed document."""

    what = "dataset manifest"
    refusal = DataInvalid
    max_bytes = MAX_MANIFEST_BYTES

    version: Literal[1]
    dataset_id: Hex32
    name: OwnerName
    owner: OwnerName
    owner_id: Hex64
    root: Hex64
    """Root of the hash tree over the ciphertext."""
    shards: int = Field(ge=1, le=_MAX_COUNT)
    records: int | None = Field(ge=0, le=_MAX_COUNT)
    tokens: int | None = Field(ge=0, le=_MAX_COUNT)
    schema_digest: Hex64
    app_id: Hex40
    compose_hash: Hex64
    sealed_at: RealTime
    previous: Hex64 | None
    """SHA-256 of the envelope of the manifest this one continues."""
    data_use: DataUse | None = Field(default=None, exclude_if=lambda value: value is None)
    """How the owner says that it may be used; left out where the owner says nothing."""
    series: SeriesBlock | None = Field(default=None, exclude_if=lambda value: value is None)
    """Its place in a series; left out of a dataset that is in none."""
    threshold: int | None = Field(
        default=None, ge=2, le=_MOST_BROKERS, exclude_if=lambda value: value is None
    )
    """So many of several brokers give its key back; left out where each of them holds the key."""

    @model_validator(mode="after")
    def _is_named_like_its_series(self) -> Self:
        if self.series is None and "series" in self.model_fields_set:
            raise ValueError("series that states nothing is left out")
        if self.series is not None and self.series.name != self.name:
            raise ValueError("a member has the name of its series")
        if self.threshold is None and "threshold" in self.model_fields_set:
            raise ValueError("threshold that states nothing is left out")
        return self

    @model_validator(mode="after")
    def _leaves_out_what_is_not_stated(self) -> Self:
        use = self.data_use
        written = "data_use" in self.model_fields_set
        if written and (use is None or use.model_fields_set != use.to_dict().keys()):
            raise ValueError("data_use holds what states nothing: leave it out")
        return self

    @property
    def last_second(self) -> int | None:
        """Last second at which it may be used, since the epoch; ``None`` where none is stated."""
        return None if self.data_use is None else self.data_use.last_second

    def require_purpose(self, purpose: str | None) -> None:
        """As ``DataUse.require_purpose``; a manifest without one allows every purpose."""
        if self.data_use is not None:
            self.data_use.require_purpose(purpose, owner=self.owner, name=self.name)

    def require_retained(self, moment: int) -> None:
        """As ``DataUse.require_retained``; a manifest without one has no end."""
        if self.data_use is not None:
            self.data_use.require_retained(moment, owner=self.owner, name=self.name)


def sign_dataset(
    description: DatasetDescription,
    signer: dsse.Ed25519Signer,
    *,
    sealed_at: str,
    publish_counts: bool = True,
    previous: str | None = None,
    data_use: DataUse | None = None,
    series: SeriesBlock | None = None,
    threshold: int | None = None,
) -> dsse.Envelope:
    """Sign the manifest of a dataset that was just sealed.

    Args:
        description: As ``sealing.sealer.seal_dataset`` returned it.
        signer: The owner's signing key.
        sealed_at: RFC 3339 time.
        publish_counts: ``False`` leaves the numbers of records and tokens out.
        previous: Digest of the preceding manifest's envelope when shards were appended.
        data_use: How it may be used; ``None`` says nothing.
        series: Its place in a series; ``None`` for a dataset that is in none.
        threshold: How many of several brokers give its key back; ``None`` for a single one.

    Raises:
        StatementInvalid: The description does not make a valid manifest.
    """
    document = {
        "version": 1,
        "dataset_id": description.dataset_id,
        "name": description.name,
        "owner": description.owner_name,
        "owner_id": description.owner_id,
        "root": description.root,
        "shards": len(description.shards),
        "records": description.records if publish_counts else None,
        "tokens": description.tokens if publish_counts else None,
        "schema_digest": description.schema_digest,
        "app_id": description.binding.app_id,
        "compose_hash": description.binding.compose_hash,
        "sealed_at": sealed_at,
        "previous": previous,
        **({} if series is None else {"series": series.to_dict()}),
        **({} if threshold is None else {"threshold": threshold}),
    } | _state_use(data_use)
    load_model(DatasetManifest, document, StatementInvalid, "dataset manifest")
    return dsse.sign(canonical_json(document), PAYLOAD_TYPE, signer)


def reissue_dataset(
    envelope: dsse.Envelope,
    signer: dsse.Ed25519Signer,
    *,
    app_id: str,
    compose_hash: str,
    sealed_at: str,
    owner_id: str | None = None,
    data_use: DataUse | None = None,
    threshold: int | Literal["kept"] | None = "kept",
) -> dsse.Envelope:
    """The same sealed records, signed for another recipe; names its predecessor.

    Args:
        envelope: The manifest so far, verified by the caller.
        signer: The owner's.
        app_id: Of the other recipe, 40 hex digits.
        compose_hash: Of the other recipe, 64 hex digits.
        sealed_at: Now, RFC 3339.
        owner_id: Of the signer, if the owner's keys changed; ``None`` keeps the former id.
        data_use: How it may be used from now on; ``None`` keeps what was stated.
        threshold: As ``sign_dataset``, of the brokers of the other recipe.

    Raises:
        StatementInvalid: The values do not make a valid manifest.
    """
    document = parse_canonical(envelope.payload, max_bytes=MAX_MANIFEST_BYTES)
    if threshold != "kept":
        document.pop("threshold", None)
        document |= {} if threshold is None else {"threshold": threshold}
    document |= {
        "owner_id": owner_id or document["owner_id"],
        "app_id": app_id,
        "compose_hash": compose_hash,
        "sealed_at": sealed_at,
        "previous": envelope.digest,
    } | _state_use(data_use)
    load_model(DatasetManifest, document, StatementInvalid, "dataset manifest")
    return dsse.sign(canonical_json(document), PAYLOAD_TYPE, signer)


def _state_use(data_use: DataUse | None) -> dict[str, JsonValue]:
    return {} if data_use is None else {"data_use": data_use.to_dict()}


def verify_dataset(
    envelope: dsse.Envelope, trusted: Consortium | PublicIdentity
) -> DatasetManifest:
    """Return the manifest inside ``envelope``, once the module's checks hold.

    Args:
        envelope: As received or read.
        trusted: The consortium whose owners may sign, or the one owner who must have.

    Raises:
        SignatureInvalid: Not one signature, not by a trusted owner, or it does not verify.
        StatementInvalid: Signed but malformed.
        DatasetMismatch: An owner signed for another owner's dataset.
    """
    if len(envelope.signatures) != 1:
        raise SignatureInvalid(
            "a dataset manifest carries exactly one signature",
            check="signatures",
            got=len(envelope.signatures),
            expected=1,
        )
    owners = trusted.owners if isinstance(trusted, Consortium) else (trusted,)
    keys = [owner.signing_bytes for owner in owners]
    payload = dsse.verify(envelope, keys, payload_type=PAYLOAD_TYPE)
    signer = next(owner for owner in owners if owner.key_id == envelope.signatures[0].keyid)
    try:
        document = parse_canonical(payload, max_bytes=MAX_MANIFEST_BYTES)
    except DataInvalid as error:
        raise StatementInvalid(f"dataset manifest: {error}", owner=signer.name) from error
    manifest = load_model(DatasetManifest, document, StatementInvalid, "dataset manifest")
    if (manifest.owner, manifest.owner_id) != (signer.name, signer.owner_id):
        raise DatasetMismatch(
            "the dataset manifest names another owner than its signer",
            check="dataset owner",
            owner=signer.name,
            got=f"{manifest.owner} {manifest.owner_id}",
            expected=f"{signer.name} {signer.owner_id}",
            hint="each owner signs and registers only their own datasets",
        )
    return manifest


def replaces(manifest: DatasetManifest, before: DatasetManifest, digest: str) -> bool:
    """Whether a manifest may take the place of the one that a broker has registered.

    It names that manifest as previous; or it is of the same ciphertext and not older, so that a
    broker that missed a manifest in between accepts the next.

    Args:
        manifest: The new one, verified.
        before: The registered one, verified.
        digest: Of the registered one's envelope.
    """
    not_older = from_rfc3339(manifest.sealed_at) >= from_rfc3339(before.sealed_at)
    return manifest.previous == digest or (manifest.root == before.root and not_older)


def dataset_entry(manifest: DatasetManifest, envelope: dsse.Envelope) -> dict[str, JsonValue]:
    """Body of the ledger's entry about a dataset.

    Args:
        manifest: As ``verify_dataset`` returned it.
        envelope: The envelope it was in.
    """
    return {
        "owner": manifest.owner,
        "owner_id": manifest.owner_id,
        "name": manifest.name,
        "dataset_id": manifest.dataset_id,
        "root": manifest.root,
        "app_id": manifest.app_id,
        "compose_hash": manifest.compose_hash,
        "digest": envelope.digest,
        "envelope": envelope.to_dict(),
    }


def read_dataset_envelope(folder: Folder) -> dsse.Envelope:
    """Read ``dataset.json`` of a sealed dataset; nothing is verified yet.

    Raises:
        DataInvalid: There is no such file, or it is too long.
        SignatureInvalid: It is no envelope.
    """
    return dsse.Envelope.from_bytes(read_small(folder, FILE_NAME, 2 * MAX_MANIFEST_BYTES))


def read_claimed(folder: Folder) -> DatasetManifest:
    """Read the manifest of a sealed dataset; nothing is verified.

    Raises:
        DataInvalid: There is no such file, or it is no dataset manifest.
        SignatureInvalid: It is no envelope.
    """
    return DatasetManifest.from_bytes(read_dataset_envelope(folder).payload)


def dataset_id_in(folder: Folder) -> str:
    """Id that the manifest of a sealed dataset names; nothing is verified.

    Raises as ``read_claimed``.
    """
    return read_claimed(folder).dataset_id


def load_dataset_manifest(folder: Folder, trusted: Consortium | PublicIdentity) -> DatasetManifest:
    """Read and verify the manifest of a sealed dataset. Raises as its two steps."""
    return verify_dataset(read_dataset_envelope(folder), trusted)
