"""Stanzas: the data key or a share of it, wrapped once for each recipient by HPKE.

The HPKE ``info`` names dataset, kind and recipient (for a broker also application, compose hash,
owner and broker id), so a stanza moved to another dataset or shown to another recipient does not
open (spec/sealed-file.md §4). Only *unwrap* needs a private key; nothing here decides whether it
may be used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from sealtrain.base.canonical import JsonValue, canonical_json
from sealtrain.base.digests import sha256_hex
from sealtrain.base.encoding import from_base64, to_base64
from sealtrain.base.secret import Secret
from sealtrain.errors import DataInvalid, LimitExceeded
from sealtrain.sealing.datakey import KEY_BYTES, DataKey
from sealtrain.sealing.errors import HeaderDamaged, NoStanza, WrongKey
from sealtrain.sealing.hpke import HpkePrivateKey, HpkePublicKey

MAX_STANZAS = 64
MAX_BODY_BYTES = 4096
KINDS = ("owner", "recipe", "share")
_HEX = frozenset("0123456789abcdef")


@dataclass(frozen=True, slots=True)
class RecipeBinding:
    """The one recipe, on one deployment, that a dataset is sealed for."""

    app_id: str
    compose_hash: str
    owner_id: str

    def to_dict(self) -> dict[str, str]:
        """JSON form."""
        return {
            "app_id": self.app_id,
            "compose_hash": self.compose_hash,
            "owner_id": self.owner_id,
        }


@dataclass(frozen=True, slots=True)
class BrokerBinding(RecipeBinding):
    """The one broker that may release a key, or its share of one, for that recipe."""

    broker_id: str

    @classmethod
    def of(cls, binding: RecipeBinding, broker_id: str) -> Self:
        """The binding of one broker for the same recipe."""
        return cls(**binding.to_dict(), broker_id=broker_id)

    def to_dict(self) -> dict[str, str]:
        """JSON form."""
        return RecipeBinding.to_dict(self) | {"broker_id": self.broker_id}

    @property
    def recipient(self) -> str:
        """Name of this binding in a stanza: SHA-256 of its canonical JSON, 64 hex digits."""
        return sha256_hex(canonical_json(self.to_dict()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stanza:
    """One wrapped copy of the data key, or of a share of it."""

    kind: str
    recipient: str
    body: bytes

    def to_dict(self) -> dict[str, str]:
        """JSON form."""
        return {"kind": self.kind, "recipient": self.recipient, "body": to_base64(self.body)}

    @classmethod
    def from_dict(cls, value: JsonValue) -> Stanza:
        """Parse the JSON form.

        Raises:
            HeaderDamaged: A field is missing, unknown or malformed.
            LimitExceeded: The body is too long.
        """
        if not isinstance(value, dict) or set(value) != {"kind", "recipient", "body"}:
            raise HeaderDamaged("stanza lacks a field or has one too many", check="stanza")
        kind, recipient, body = value["kind"], value["recipient"], value["body"]
        if kind not in KINDS:
            raise HeaderDamaged("stanza is of an unknown kind", check="stanza")
        if not isinstance(recipient, str) or len(recipient) != 64 or not _HEX.issuperset(recipient):
            raise HeaderDamaged("stanza names no recipient", check="stanza")
        if not isinstance(body, str) or len(body) > MAX_BODY_BYTES * 4 // 3 + 4:
            raise LimitExceeded("stanza is too long", expected=f"at most {MAX_BODY_BYTES} bytes")
        try:
            return cls(kind=kind, recipient=recipient, body=from_base64(body))
        except DataInvalid as error:
            raise HeaderDamaged("stanza body is not base64", check="stanza") from error


def parse_stanzas(value: JsonValue) -> tuple[Stanza, ...]:
    """Parse the stanza list of a header.

    Raises:
        HeaderDamaged: Malformed, or one recipient twice.
        LimitExceeded: More than 64, or one too long.
    """
    if not isinstance(value, list):
        raise HeaderDamaged("stanzas are not a list", check="stanza")
    return check_stanzas([Stanza.from_dict(item) for item in value])


def check_stanzas(stanzas: Sequence[Stanza]) -> tuple[Stanza, ...]:
    """Return the stanzas as a tuple if a header may carry them.

    Raises:
        HeaderDamaged: One recipient twice.
        LimitExceeded: More than 64, or one too long.
    """
    if len(stanzas) > MAX_STANZAS:
        raise LimitExceeded(
            "header has too many stanzas", got=len(stanzas), expected=f"at most {MAX_STANZAS}"
        )
    if any(len(stanza.body) > MAX_BODY_BYTES for stanza in stanzas):
        raise LimitExceeded("stanza is too long", expected=f"at most {MAX_BODY_BYTES} bytes")
    if len({(stanza.kind, stanza.recipient) for stanza in stanzas}) != len(stanzas):
        raise HeaderDamaged("header names a recipient twice", check="stanza")
    return tuple(stanzas)


def find_stanza(stanzas: Sequence[Stanza], *, kind: str, recipient: str) -> Stanza:
    """The stanza for one recipient.

    Raises:
        NoStanza: The recipient has no stanza.
    """
    for stanza in stanzas:
        if stanza.kind == kind and stanza.recipient == recipient:
            return stanza
    raise NoStanza(
        f"no {kind} stanza for this recipient",
        check="stanza",
        got=", ".join(sorted({stanza.kind for stanza in stanzas})) or "no stanza",
        expected=f"{kind} {recipient[:16]}…",
        hint="it was sealed for another owner or another recipe; the owner can rewrap it",
    )


def wrap_for_owner(
    data_key: DataKey, *, dataset_id: str, owner_id: str, public: HpkePublicKey
) -> Stanza:
    """Wrap the data key for an owner, so that the owner can open and rewrap later."""
    body = public.seal(data_key.reveal(), info=_info("owner", dataset_id, owner_id))
    return Stanza(kind="owner", recipient=owner_id, body=body)


def unwrap_for_owner(
    stanza: Stanza, *, dataset_id: str, owner_id: str, private: HpkePrivateKey
) -> DataKey:
    """Unwrap an owner's stanza.

    Raises:
        NoStanza: The stanza is not for this owner.
        WrongKey: Another key, another dataset, or altered bytes.
    """
    _refuse_foreign(stanza, "owner", owner_id)
    return _unwrap(stanza, _info("owner", dataset_id, owner_id), private)


def wrap_for_recipe(
    data_key: DataKey, *, dataset_id: str, binding: BrokerBinding, public: HpkePublicKey
) -> Stanza:
    """Wrap the data key: only that broker's key for exactly this recipe opens it."""
    info = _info("recipe", dataset_id, binding.recipient, binding)
    return Stanza(
        kind="recipe", recipient=binding.recipient, body=public.seal(data_key.reveal(), info=info)
    )


def unwrap_for_recipe(
    stanza: Stanza, *, dataset_id: str, binding: BrokerBinding, private: HpkePrivateKey
) -> DataKey:
    """Unwrap a recipe's stanza.

    Raises:
        NoStanza: The stanza is for another recipe or another broker.
        WrongKey: Another key, another dataset, or altered bytes.
    """
    _refuse_foreign(stanza, "recipe", binding.recipient)
    return _unwrap(stanza, _info("recipe", dataset_id, binding.recipient, binding), private)


def wrap_share(
    share: Secret, *, dataset_id: str, binding: BrokerBinding, public: HpkePublicKey
) -> Stanza:
    """Wrap one broker's share: only that broker's key for exactly this binding opens it."""
    info = _info("share", dataset_id, binding.recipient, binding)
    return Stanza(
        kind="share", recipient=binding.recipient, body=public.seal(share.reveal(), info=info)
    )


def unwrap_share(
    stanza: Stanza, *, dataset_id: str, binding: BrokerBinding, private: HpkePrivateKey
) -> Secret:
    """Unwrap a broker's share, whatever is in it: ``keys.shares`` reads it.

    Raises:
        NoStanza: The stanza is for another recipe or another broker.
        WrongKey: Another key, another dataset, or altered bytes.
    """
    _refuse_foreign(stanza, "share", binding.recipient)
    return private.open(stanza.body, info=_info("share", dataset_id, binding.recipient, binding))


def _info(
    kind: str, dataset_id: str, recipient: str, binding: BrokerBinding | None = None
) -> bytes:
    fields = {
        "purpose": "sealtrain/stanza/v2",
        "kind": kind,
        "dataset_id": dataset_id,
        "recipient": recipient,
    }
    return canonical_json(fields | (binding.to_dict() if binding else {}))


def _refuse_foreign(stanza: Stanza, kind: str, recipient: str) -> None:
    if stanza.kind != kind or stanza.recipient != recipient:
        raise NoStanza(
            f"stanza is not for this {kind}",
            check="stanza",
            got=f"{stanza.kind} {stanza.recipient[:16]}…",
            expected=f"{kind} {recipient[:16]}…",
        )


def _unwrap(stanza: Stanza, info: bytes, private: HpkePrivateKey) -> DataKey:
    secret = private.open(stanza.body, info=info)
    if len(secret) != KEY_BYTES:
        raise WrongKey("stanza holds no data key", check="stanza")
    return DataKey(secret.reveal())
