"""The broker's own deployment document: with it, owners pin the code that holds their keys.

The document embeds what a broker decides by (consortium, appraisal policy, chain file, succession,
each as canonical JSON whose bytes are measured) and names every setting that a promise rests on. A
broker reads it back from what its guest measured, and serves nothing else (``require_measured``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, Self

from pydantic import Field, StringConstraints, model_validator

from sealtrain.attest.policy import AppraisalPolicy, load_policy
from sealtrain.base.canonical import canonical_json, parse_json
from sealtrain.base.models import StrictModel, load_model
from sealtrain.base.platforms import Platform
from sealtrain.broker.config import MAX_LEASE, MIN_LEASE, BrokerConfig
from sealtrain.broker.errors import DocumentMismatch
from sealtrain.consortium.errors import ConsortiumMismatch
from sealtrain.consortium.members import Consortium
from sealtrain.consortium.succession import SuccessionFile
from sealtrain.errors import ConfigError, DataInvalid, SealtrainError, TrustInvalid, UsageError
from sealtrain.keys.uris import anchor_of
from sealtrain.recipe.document import (
    MAX_DOCUMENT_BYTES,
    CommandPaths,
    Program,
    frame_of,
    layout_of,
    require_same,
    write_document,
)
from sealtrain.recipe.errors import LockInvalid
from sealtrain.recipe.fields import ImageName

if TYPE_CHECKING:
    from sealtrain.consortium.chainfile import ChainFile

_PORT: Final = 8470
_FILES: Final = {
    "consortium": "consortium.json",
    "policy": "policy.json",
    "chain": "chain.json",
    "succession": "succession.json",
}
"""Field of the document → the file that the broker reads it from."""
_OPTIONS: Final = {
    "consortium": "--consortium",
    "policy": "--policy",
    "chain": "--chain",
    "succession": "--succeeds",
}
_HINT: Final = "write the broker's document again with sealtrain broker deployment"

Uri = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]+:[!-~]{1,1000}$")]


class BrokerDocument(StrictModel):
    """What owners pin of a broker.

    Attributes:
        consortium: The one consortium it serves.
        policy: What it asks of guests.
        chain: Chain file of a contract that it asks too.
        succession: Succession by which the consortium took another one's place.
        platform: What it runs on.
        image: Container with a digest; ``None`` only for the simulator.
        key_provider_id: Pin of the KMS root in hex; empty without a KMS.
        root_secret: Where its root secret comes from. A ticket may name another one with the same
            anchor (``keys.uris.anchor_of``): a rotation keeps the document.
        lease_seconds: How long released keys may be used.
        boot_auth: It answers dstack's KMS from the ledger.
        gateway_app_id: What that KMS is told of its gateway.
        database: It keeps its memory in an outside database, whose administrator can withhold that
            memory. The address is a secret.
    """

    consortium: Consortium
    policy: AppraisalPolicy
    chain: dict[str, Any] | None
    succession: dict[str, Any] | None
    platform: Platform
    image: ImageName | None
    key_provider_id: Annotated[str, StringConstraints(pattern=r"^([0-9a-f]{2}){0,1024}$")]
    root_secret: Uri
    lease_seconds: int = Field(ge=MIN_LEASE, le=MAX_LEASE)
    boot_auth: bool
    gateway_app_id: Annotated[str, StringConstraints(pattern=r"^[0-9A-Za-z]{0,128}$")]
    database: bool

    @model_validator(mode="after")
    def _check_served(self) -> Self:
        """Refuse what no broker would serve."""
        if self.image is None and self.platform != "simulator":
            raise ValueError(f"image is required on {self.platform}, as name@sha256:…")
        if self.platform != "dstack" and self.key_provider_id:
            raise ValueError(f"{self.platform} has no key provider: leave key_provider_id out")
        if self.gateway_app_id and not self.boot_auth:
            raise ValueError("gateway_app_id goes with boot_auth")
        try:
            anchor_of(self.root_secret)
            if self.chain is not None:
                require_known_owners(_chain_file(self.chain), self.consortium)
            if self.succession is not None:
                found = SuccessionFile.from_bytes(canonical_json(self.succession)).verify()
                if found.successor.consortium_id != self.consortium.consortium_id:
                    raise ConsortiumMismatch("the succession names another successor")
        except SealtrainError as error:
            raise ValueError(error.message) from None
        return self

    def to_bytes(self) -> bytes:
        """Canonical bytes of the deployment document; their SHA-256 is the broker's compose hash.

        Raises:
            LockInvalid: The document would be larger than a guest accepts.
        """
        fields = self.to_dict()
        layout = layout_of(self.platform, image=self.image)
        return write_document(
            Program(
                name="sealtrain-broker",
                service="broker",
                platform=self.platform,
                image=self.image,
                key_provider="kms" if self.key_provider_id else "none",
                key_provider_id=self.key_provider_id,
                files={
                    file: canonical_json(fields[name]).decode()
                    for name, file in _FILES.items()
                    if fields[name] is not None
                },
                words=("broker", "serve", *self._options(layout)),
                ports=(_PORT,),
            )
        )

    def _options(self, layout: CommandPaths) -> Iterator[str]:
        for name, option in _OPTIONS.items():
            if getattr(self, name) is not None:
                yield from (option, f"{layout.measured}{_FILES[name]}")
        yield from ("--root-secret", self.root_secret, "--state", f"{layout.kept}state")
        if self.database:
            yield from ("--database", f"file:{layout.kept}database")
        yield from ("--guest", layout.guest, "--platform", self.platform)
        yield from ("--collateral", f"file:{layout.kept}collateral.json")
        if not isinstance(self.policy.gpu, str):
            yield from ("--gpu-collateral", f"file:{layout.kept}gpu-collateral.json")
        yield from ("--lease-seconds", str(self.lease_seconds))
        if self.boot_auth:
            yield "--boot-auth"
            yield from ("--gateway-app-id", self.gateway_app_id)
        yield from ("--host", "127.0.0.1" if self.image is None else "0.0.0.0")  # noqa: S104  # in its guest
        yield from ("--port", str(_PORT), "--ticket", layout.ticket)


def document_of(
    config: BrokerConfig, *, image: str | None = None, key_provider_id: str = ""
) -> BrokerDocument:
    """The document of a broker with these settings.

    Args:
        config: As the broker is to serve.
        image: Container with a digest; ``None`` only for the simulator.
        key_provider_id: Pin of the KMS root in hex.

    Raises:
        UsageError: No broker would serve with these settings.
        SealtrainError: A file that they name cannot be read or is malformed.
    """
    chain, answers = None, config.answers
    if config.chain is not None:
        from sealtrain.consortium.chainfile import load_chain_file

        chain = load_chain_file(config.chain).to_dict()
    succession = None
    if config.succeeds is not None:
        succession = parse_json(SuccessionFile.load(config.succeeds).to_bytes())
    return _document(
        {
            "consortium": Consortium.load(config.consortium).to_dict(),
            "policy": load_policy(config.policy).to_dict(),
            "chain": chain,
            "succession": succession,
            "platform": config.platform,
            "image": image,
            "key_provider_id": key_provider_id,
            "root_secret": config.root_secret,
            "lease_seconds": answers.lease_seconds,
            "boot_auth": answers.boot_auth,
            "gateway_app_id": answers.gateway_app_id if answers.boot_auth else "",
            "database": config.database is not None,
        },
        UsageError,
    )


def read_broker_document(data: bytes) -> BrokerDocument:
    """A broker's document from its bytes.

    Raises:
        LockInvalid: Another frame, a field that no broker would serve, or other bytes than these
            fields give.
    """
    frame = frame_of(data)
    options = _options_in(frame.words)
    fields: dict[str, Any] = {
        name: None if file not in frame.files else _json_in(frame.files[file])
        for name, file in _FILES.items()
    }
    lease = options.get("--lease-seconds", "")
    found = _document(
        fields
        | {
            "platform": options.get("--platform"),
            "image": frame.image,
            "key_provider_id": frame.key_provider_id,
            "root_secret": options.get("--root-secret"),
            "lease_seconds": int(lease) if lease.isdecimal() and len(lease) < 9 else None,
            "boot_auth": "--boot-auth" in options,
            "gateway_app_id": options.get("--gateway-app-id", ""),
            "database": "--database" in options,
        },
        LockInvalid,
    )
    require_same(data, found.to_bytes())
    return found


def require_measured(config: BrokerConfig, measured: bytes) -> None:
    """Check that a broker serves what its guest measured.

    Args:
        config: As it was told to serve.
        measured: The deployment document that its guest measured.

    Raises:
        DocumentMismatch: The document is no broker's, or says something else; ``check`` names the
            field.
        SealtrainError: As ``document_of``.
    """
    try:
        said = read_broker_document(measured)
    except LockInvalid as error:
        raise DocumentMismatch(
            f"the guest measured no broker's document: {error.message}",
            check="document",
            hint=_HINT,
        ) from error
    if config.platform != said.platform:  # of another platform no such document could be written
        raise _mismatch("platform", config.platform, said.platform)
    told = document_of(config, image=said.image, key_provider_id=said.key_provider_id)
    for name in BrokerDocument.model_fields:
        one, other = getattr(told, name), getattr(said, name)
        if name == "root_secret":
            one, other = anchor_of(one), anchor_of(other)
        if one != other:
            raise _mismatch(name, one, other)
    for uri in config.former_root_secrets:
        if anchor_of(uri) != anchor_of(said.root_secret):
            raise _mismatch("former_root_secrets", anchor_of(uri), anchor_of(said.root_secret))


def require_known_owners(chain: ChainFile, consortium: Consortium) -> None:
    """Check that a chain file names owners of the consortium only.

    Raises:
        TrustInvalid: It names others.
    """
    if unknown := chain.owners.keys() - {owner.name for owner in consortium.owners}:
        raise TrustInvalid(
            "the chain file names owners that the consortium does not have",
            check="chain file",
            got=", ".join(sorted(unknown)),
            expected=", ".join(owner.name for owner in consortium.owners),
            hint="write the chain file anew for this consortium",
        )


def _document(fields: Mapping[str, Any], error: type[ConfigError]) -> BrokerDocument:
    return load_model(BrokerDocument, dict(fields), error, "broker document")


def _chain_file(fields: dict[str, Any]) -> ChainFile:
    from sealtrain.consortium.chainfile import ChainFile

    return load_model(ChainFile, fields, TrustInvalid, "chain file")


def _options_in(words: tuple[str, ...]) -> dict[str, str]:
    """Options of ``broker serve``; the caller compares with what they give."""
    if words[:2] != ("broker", "serve"):
        raise LockInvalid(
            "the deployment document starts no broker",
            check="document",
            got=" ".join(words[:2])[:60],
            expected="broker serve",
            hint=_HINT,
        )
    found: dict[str, str] = {}
    rest = iter(words[2:])
    for word in rest:
        found[word] = "" if word == "--boot-auth" else next(rest, "")
    return found


def _json_in(text: str) -> object:
    try:
        return parse_json(text.encode("utf-8", "surrogatepass"), max_bytes=MAX_DOCUMENT_BYTES)
    except DataInvalid as error:
        raise LockInvalid(
            f"a file of the broker's document is not readable: {error.message}", check="document"
        ) from error


def _mismatch(field: str, told: object, measured: object) -> DocumentMismatch:
    return DocumentMismatch(
        f"the broker was told another {field} than its guest measured",
        check=field,
        got=_show(told),
        expected=_show(measured),
        hint="start it from its document: sealtrain deploy run",
    )


def _show(value: object) -> str:
    return repr(value)[:80] if isinstance(value, (str, int, bool)) else "other bytes"
