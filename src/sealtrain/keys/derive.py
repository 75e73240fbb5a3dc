"""Derivations from a broker's root secret, an identity's seed and the data keys of a run.

One scheme (spec/keys.md)::

    derive(secret, purpose, p1, …) = HKDF-SHA256(ikm = secret, salt = none, L = 32,
                                                 info = lp("sealtrain/<purpose>/v1") lp(p1) …)
    lp(s) = u32 big-endian length of UTF-8(s), then UTF-8(s)

Length prefixes make the list of parts unambiguous; the purpose keeps uses apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from sealtrain.base.secret import Secret
from sealtrain.errors import UsageError
from sealtrain.sealing.datakey import DataKey, derivation_info
from sealtrain.sealing.hpke import HpkePrivateKey
from sealtrain.signing.dsse import Ed25519Signer

KEY_BYTES = 32
_HEX40 = re.compile(r"[0-9a-f]{40}")
_HEX64 = re.compile(r"[0-9a-f]{64}")
_HEX32 = re.compile(r"[0-9a-f]{32}")
_PURPOSE = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


def derive(secret: Secret, purpose: str, *parts: str) -> Secret:
    """32 bytes for one purpose and its parts.

    Args:
        secret: 32 uniformly random bytes.
        purpose: Lower-case words with hyphens; becomes ``sealtrain/<purpose>/v1``.
        parts: What the key is bound to, in order.

    Raises:
        UsageError: The purpose is not of that form, or the secret is not 32 bytes.
    """
    if not _PURPOSE.fullmatch(purpose):
        raise UsageError("not a purpose", got=purpose[:80], expected="words with hyphens")
    if len(secret) != KEY_BYTES:
        raise UsageError("secret has the wrong length", got=len(secret), expected=KEY_BYTES)
    return Secret(_expand(secret.reveal(), purpose, parts))


def recipe_key(root: Secret, *, app_id: str, compose_hash: str, owner_id: str) -> HpkePrivateKey:
    """The broker's key pair that one owner seals to for one deployed recipe.

    Args:
        root: The broker's root secret.
        app_id: 40 hex digits.
        compose_hash: 64 hex digits; another recipe has another, so old data does not open for it.
        owner_id: 64 hex digits.

    Raises:
        UsageError: An argument has another form.
    """
    _check(app_id=(app_id, _HEX40), compose_hash=(compose_hash, _HEX64))
    _check(owner_id=(owner_id, _HEX64))
    return HpkePrivateKey(derive(root, "recipe-key", app_id, compose_hash, owner_id))


def run_key(
    data_keys: Mapping[str, DataKey], *, app_id: str, compose_hash: str, run_id: str
) -> DataKey:
    """The key of one run's sealed checkpoints, which takes every data key of the run.

    Args:
        data_keys: By dataset id, at least one.
        app_id: 40 hex digits.
        compose_hash: 64 hex digits.
        run_id: 32 hex digits.

    Raises:
        UsageError: An argument has another form.
    """
    _check(app_id=(app_id, _HEX40), compose_hash=(compose_hash, _HEX64), run_id=(run_id, _HEX32))
    if not data_keys:
        raise UsageError("a run without data has no key", got="no data key", expected="one or more")
    ids = sorted(data_keys)
    joined = b"".join(data_keys[dataset_id].reveal() for dataset_id in ids)
    return DataKey(_expand(joined, "run-key", (app_id, compose_hash, run_id, *ids)))


def joint_key(
    shares: Mapping[str, bytes], *, compose_hash: str, run_id: str, purpose: str
) -> DataKey:
    """A key of a run of several parties, which takes every party's share.

    Args:
        shares: 32 bytes by party's name, at least one; each derived from that party's run key.
        compose_hash: 64 hex digits.
        run_id: Of the whole run, 32 hex digits.
        purpose: Lower-case words with hyphens.

    Raises:
        UsageError: An argument has another form.
    """
    _check(compose_hash=(compose_hash, _HEX64), run_id=(run_id, _HEX32))
    _check(purpose=(purpose, _PURPOSE))
    names = sorted(shares)
    if not names or any(len(shares[name]) != KEY_BYTES for name in names):
        raise UsageError("a joint key is of one share of 32 bytes or more", got=len(names))
    joined = b"".join(shares[name] for name in names)
    return DataKey(_expand(joined, "joint-key", (purpose, compose_hash, run_id, *names)))


def signing_key(root: Secret, purpose: str) -> Ed25519Signer:
    """An Ed25519 signer for one purpose, such as ``"broker"``.

    Raises:
        UsageError: As ``derive``.
    """
    seed = derive(root, "signing-key", purpose)
    return Ed25519Signer(Ed25519PrivateKey.from_private_bytes(seed.reveal()))


def _expand(material: bytes, purpose: str, parts: Iterable[str]) -> bytes:
    return HKDF(hashes.SHA256(), KEY_BYTES, None, derivation_info(purpose, *parts)).derive(material)


def _check(**arguments: tuple[str, re.Pattern[str]]) -> None:
    for name, (text, pattern) in arguments.items():
        if not pattern.fullmatch(text):
            raise UsageError(f"{name} has the wrong form", got=text[:80], expected=pattern.pattern)
