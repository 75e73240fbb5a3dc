"""Owners' requests signed by RFC 9421, with Ed25519. See ``spec/requests.md`` §1.

``verify_head`` demands of a request's head, before its body is read, in this order,

1. signature headers of at most 2 KiB,
2. one signature with the tag ``sealtrain-owner``, by a trusted key, for this method and this URL,
3. that it covers exactly ``COMPONENTS``, with exactly the parameters ``created``, ``keyid``,
   ``alg``, ``nonce`` and ``tag``, and a nonce of 32 hexadecimal digits,
4. that the broker it names is the one that is asked, and
5. a time of signing that is neither too old nor ahead;

``SignedHead.require_body`` then that the signed Content-Digest is that of the body.

The broker, which keeps nonces, ensures that each serves once. The signed bytes begin with a
quotation mark, so they are never taken for anything else that the same key signs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from http_message_signatures import (
    HTTPMessageSigner,
    HTTPMessageVerifier,
    HTTPSignatureAlgorithm,
    HTTPSignatureKeyResolver,
)
from http_message_signatures.exceptions import HTTPMessageSignaturesException

from sealtrain.base.clock import to_rfc3339
from sealtrain.errors import SignatureInvalid
from sealtrain.signing.ed25519 import Ed25519Signer, verify_signature
from sealtrain.signing.errors import BrokerMismatch, RequestStale

TAG: Final = "sealtrain-owner"
BROKER_FIELD: Final = "sealtrain-broker"
"""Header field that names the broker, by its id."""
COMPONENTS: Final = ("@method", "@authority", "@target-uri", "content-digest", BROKER_FIELD)
_LABEL: Final = "owner"
_PARAMETERS: Final = frozenset({"created", "keyid", "alg", "nonce", "tag"})
_NONCE: Final = re.compile(r"[0-9a-f]{32}")
_COVERED: Final = [*(f'"{name}"' for name in COMPONENTS), '"@signature-params"']
_SIGNING: Final = frozenset({"signature", "signature-input", "content-digest", BROKER_FIELD})
_MAX_HEADER: Final = 2048
"""Bytes of the four together: parsing more of them costs milliseconds."""
_MAX_TIME: Final = 253_402_300_799  # the last second of the year 9999


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedRequest:
    """The signer of a request, its time, and the nonce that serves once."""

    key_id: str
    nonce: str
    created: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedHead:
    """A head that an owner signed; its body was not looked at yet."""

    request: SignedRequest
    _require: Callable[[bytes], None]

    def require_body(self, body: bytes) -> SignedRequest:
        """Return the signer, if the signature is for this body.

        Raises:
            SignatureInvalid: The digest that was signed is another body's.
        """
        self._require(body)
        return self.request


@dataclass(slots=True)
class _Message:
    """A request as the library reads it."""

    method: str
    url: str
    headers: Any


class _HeaderLines:
    """Header lines, repeated ones too, in the order they came."""

    def __init__(self, lines: Iterable[tuple[str, str]]) -> None:
        self._lines = tuple(lines)

    def items(self) -> tuple[tuple[str, str], ...]:
        return self._lines


class _Ed25519(HTTPSignatureAlgorithm):
    """The library's algorithm over the project's one signer and one verifier."""

    algorithm_id = "ed25519"

    def __init__(self, public_key: Any = None, private_key: Any = None) -> None:
        self._public, self._private = public_key, private_key

    def sign(self, message: bytes) -> bytes:
        signed: bytes = self._private.sign(message)
        return signed

    def verify(self, signature: bytes, message: bytes) -> None:
        verify_signature(self._public, signature, message)


class _Keys(HTTPSignatureKeyResolver):
    def __init__(self, *, public: Mapping[str, bytes], private: Ed25519Signer | None) -> None:
        self._public, self._private = public, private

    def resolve_public_key(self, key_id: str) -> bytes | None:
        return self._public.get(key_id)

    def resolve_private_key(self, key_id: str) -> Ed25519Signer | None:
        return self._private


class _Verifier(HTTPMessageVerifier):
    """The library's verifier without its clock: time is an argument of ``verify_head``."""

    def validate_created_and_expires(self, sig_input: Any, max_age: Any = None) -> None:
        """Leave the parameters to ``verify_head``."""


def sign_request(
    method: str,
    url: str,
    body: bytes,
    signer: Ed25519Signer,
    *,
    broker: str,
    created: int,
    nonce: str,
) -> dict[str, str]:
    """The headers that sign a request.

    Args:
        method: HTTP method, upper case.
        url: Absolute URL that is asked, encoded as it is sent.
        body: What is sent.
        signer: The owner's signing key.
        broker: Id of the broker that is asked, 64 hex digits.
        created: Now, seconds since the epoch.
        nonce: 32 fresh hexadecimal digits.
    """
    message = _Message(method, url, {BROKER_FIELD: broker})
    HTTPMessageSigner(
        signature_algorithm=_Ed25519, key_resolver=_Keys(public={}, private=signer)
    ).sign(
        message,
        key_id=signer.key_id,
        created=datetime.fromtimestamp(created, tz=UTC),
        nonce=nonce,
        label=_LABEL,
        tag=TAG,
        covered_component_ids=COMPONENTS,
        body=body,
    )
    return dict(message.headers)


def verify_head(
    method: str,
    url: str,
    headers: Iterable[tuple[str, str]],
    keys: Mapping[str, bytes],
    *,
    brokers: Collection[str],
    now: int,
    max_age: int,
    max_ahead: int,
) -> SignedHead:
    """Return the signer of a request, by its head; the body is left to ``require_body``.

    Args:
        method: HTTP method, upper case.
        url: Absolute URL under the receiver's own address, not the request's.
        headers: Every header line.
        keys: Key id → raw Ed25519 key of everybody who may ask.
        brokers: Ids of the broker that is asked: its own and its former ones.
        now: Seconds since the epoch.
        max_age: Seconds a signature is good for.
        max_ahead: Seconds it may be dated ahead.

    Raises:
        SignatureInvalid: One of the first three checks fails.
        BrokerMismatch: The request is for another broker.
        RequestStale: The last check fails.
    """
    lines = [(name, value) for name, value in headers if name.lower() in _SIGNING]
    if sum(len(value) for _, value in lines) > _MAX_HEADER:
        raise _invalid(f"signature headers of more than {_MAX_HEADER} bytes")
    verifier = _Verifier(
        signature_algorithm=_Ed25519, key_resolver=_Keys(public=keys, private=None)
    )
    message = _Message(method, url, _HeaderLines(lines))
    try:
        found = verifier.verify(message, max_age=None, expect_tag=TAG)
    except (HTTPMessageSignaturesException, ValueError, TypeError) as error:
        raise _invalid(str(error)) from error
    if len(found) != 1:
        raise _invalid(f"{len(found)} signatures")
    (signed,) = found
    if list(signed.covered_components) != _COVERED or signed.parameters.keys() != _PARAMETERS:
        raise _invalid("a signature over other parts or with other parameters")
    key_id, nonce, created = (signed.parameters[name] for name in ("keyid", "nonce", "created"))
    if not isinstance(key_id, str) or not isinstance(nonce, str) or not isinstance(created, int):
        raise _invalid("parameters of other types")
    if not _NONCE.fullmatch(nonce):
        raise _invalid("a nonce of another form")
    broker = signed.covered_components[f'"{BROKER_FIELD}"']
    if broker not in brokers:
        raise BrokerMismatch(
            "the request is signed for another broker",
            check="request broker",
            got=str(broker)[:200],
            expected=" or ".join(sorted(brokers)),
            hint="give the broker file of the broker that is asked, or write it anew: "
            "sealtrain broker pin",
        )
    if not now - max_age <= created <= now + max_ahead:
        raise RequestStale(
            "the request was not signed just now",
            check="request time",
            got=to_rfc3339(created) if 0 <= created <= _MAX_TIME else created,
            expected=f"{to_rfc3339(now - max_age)} to {to_rfc3339(now + max_ahead)}",
            hint="set your clock, or the broker's",
        )

    def require(body: bytes) -> None:
        try:
            verifier.verify_body(message, found, body)
        except (HTTPMessageSignaturesException, ValueError, TypeError) as error:
            raise _invalid(str(error)) from error

    signer = SignedRequest(key_id=key_id, nonce=nonce, created=created)
    return SignedHead(request=signer, _require=require)


def _invalid(got: str) -> SignatureInvalid:
    return SignatureInvalid(
        "the request is not signed by an owner for this broker",
        check="request signature",
        got=got[:200],
        expected=f"one Ed25519 signature (RFC 9421) over {', '.join(COMPONENTS)}, tag {TAG}",
        hint="sign with your identity, for the URL that the broker knows itself by",
    )
