"""The handshake of a channel: two ephemeral keys, two proofs, one secret (spec §2).

Checks by the numbers of the spec; the first that fails raises, and no key is made:

1. messages have exactly their fields     ``ChannelRefused``
2. purpose and context are the ones due   ``ChannelRefused``
3. the responder's proof                  the class of its check (``proofs``)
4. its secret opens                       ``ChannelRefused``
5. the initiator's proof and secret       as 3 and 4
6. ``ready``                              ``ChannelBroken`` (``channel``)
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from pydantic import StringConstraints

from sealtrain.attest.report_data import Binding
from sealtrain.base.canonical import JsonValue, canonical_json
from sealtrain.base.digests import sha256_hex
from sealtrain.base.encoding import from_base64, to_base64
from sealtrain.base.models import Base64, Document, Hex64, StrictModel
from sealtrain.base.secret import Random, Secret
from sealtrain.errors import DataInvalid
from sealtrain.sealing.errors import WrongKey
from sealtrain.sealing.hpke import HpkePrivateKey, HpkePublicKey
from sealtrain.training.errors import ChannelRefused
from sealtrain_together.channel.frames import LABEL
from sealtrain_together.channel.proofs import Acceptance, Peer, Proof
from sealtrain_together.channel.streams import Stream, receive_exactly, send_all

MAX_MESSAGE_BYTES = 4 << 20
MAX_CONTEXT_BYTES = 16 << 10
_PURPOSE = LABEL.decode().strip()
_HPKE_KEY = Annotated[Base64, StringConstraints(min_length=1624, max_length=1624)]
_SEALED = Annotated[Base64, StringConstraints(min_length=1560, max_length=1560)]
_LENGTH = struct.Struct(">I")


class _Spoken(Document):
    what = "handshake message"
    refusal = ChannelRefused
    max_bytes = MAX_MESSAGE_BYTES
    form = ("handshake", None)


class _Hello(_Spoken):
    version: Literal[1]
    purpose: Annotated[str, StringConstraints(max_length=63)]
    context: dict[str, Any]
    public_key: _HPKE_KEY
    nonce: Hex64


class _HandshakeAnswer(_Spoken):
    version: Literal[1]
    public_key: _HPKE_KEY
    nonce: Hex64
    sealed: _SEALED
    proof: dict[str, Any]


class _Finish(_Spoken):
    version: Literal[1]
    sealed: _SEALED
    proof: dict[str, Any]


_Message = TypeVar("_Message", _Hello, _HandshakeAnswer, _Finish)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelTerms:
    """What both sides agree on before they meet.

    Attributes:
        purpose: Word of the application, such as ``travel-provisioning``.
        context: JSON object both expect, such as run and trip. ``None`` at a responder that
            decides by the caller's own context, which the channel then tells.
        proof: Makes this side's proof.
        accept: Verifies the other side's.
        random: Source of ephemeral keys, nonces and secrets.
    """

    purpose: str
    context: dict[str, JsonValue] | None
    proof: Proof
    accept: Acceptance
    random: Random


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelKeys:
    """One key for each direction and one for the application, the peer, and the context."""

    initiator: Secret
    responder: Secret
    export: Secret
    peer: Peer
    context: dict[str, JsonValue]


def initiate(sock: Stream, conversation: ChannelTerms) -> ChannelKeys:
    """The side that opens the channel. Checks 1 to 4.

    Raises:
        ChannelRefused, EvidenceRefused, SignatureInvalid: The class of the first check that fails.
        PeerUnreachable: Nothing arrives in time.
    """
    private = HpkePrivateKey(Secret(conversation.random(32)))
    hello: dict[str, JsonValue] = {
        "version": 1,
        "purpose": conversation.purpose,
        "context": conversation.context,
        "public_key": to_base64(private.public.raw),
        "nonce": conversation.random(32).hex(),
    }
    _send(sock, hello)
    answer = _receive(sock, _HandshakeAnswer)
    first: dict[str, JsonValue] = {"hello": hello, "answer": _without_proof(answer)}
    peer = conversation.accept(answer.proof, Binding("channel-responder", first))  # (3)
    theirs = _open(private, answer.sealed, answer_info(hello, answer.public_key, answer.nonce))
    ours = Secret(conversation.random(32))
    sealed = _public(answer.public_key).seal(ours.reveal(), info=finish_info(first))
    finish: dict[str, JsonValue] = {"version": 1, "sealed": to_base64(sealed)}
    second = first | {"answered": _digest(answer.proof), "finish": finish}
    proof = conversation.proof(Binding("channel-initiator", second))
    _send(sock, finish | {"proof": proof})
    return derive_keys(
        second | {"finished": _digest(proof)}, responder=theirs, initiator=ours, peer=peer
    )


def respond(sock: Stream, conversation: ChannelTerms) -> ChannelKeys:
    """The side that was called. Checks 1, 2 and 5. Raises as ``initiate``."""
    hello = _receive(sock, _Hello)
    _same("purpose", hello.purpose, conversation.purpose)  # (2)
    if conversation.context is not None:
        _same("context", hello.context, conversation.context)
    private = HpkePrivateKey(Secret(conversation.random(32)))
    ours = Secret(conversation.random(32))
    said: dict[str, JsonValue] = hello.to_dict()
    public_key, nonce = to_base64(private.public.raw), conversation.random(32).hex()
    sealed = _public(hello.public_key).seal(
        ours.reveal(), info=answer_info(said, public_key, nonce)
    )
    answer: dict[str, JsonValue] = {
        "version": 1,
        "public_key": public_key,
        "nonce": nonce,
        "sealed": to_base64(sealed),
    }
    first: dict[str, JsonValue] = {"hello": said, "answer": answer}
    proof = conversation.proof(Binding("channel-responder", first))
    _send(sock, answer | {"proof": proof})
    finish = _receive(sock, _Finish)
    second = first | {"answered": _digest(proof), "finish": _without_proof(finish)}
    peer = conversation.accept(finish.proof, Binding("channel-initiator", second))  # (5)
    theirs = _open(private, finish.sealed, finish_info(first))
    return derive_keys(
        second | {"finished": _digest(finish.proof)}, responder=ours, initiator=theirs, peer=peer
    )


def derive_keys(
    transcript: dict[str, JsonValue], *, responder: Secret, initiator: Secret, peer: Peer
) -> ChannelKeys:
    """The keys of a channel.

    Args:
        transcript: T3 of the spec.
        responder: The 32 bytes the responder sent.
        initiator: The 32 bytes the initiator sent.
        peer: The party at the other end.
    """
    salt = hashlib.sha256(canonical_json(transcript)).digest()
    secret = responder.reveal() + initiator.reveal()

    def key(direction: bytes) -> Secret:
        return Secret(HKDF(hashes.SHA256(), 32, salt, LABEL + direction).derive(secret))

    return ChannelKeys(
        initiator=key(b"initiator"),
        responder=key(b"responder"),
        export=key(b"export"),
        peer=peer,
        context=transcript["hello"]["context"],
    )


def answer_info(hello: JsonValue, public_key: str, nonce: str) -> bytes:
    """HPKE info of the responder's secret."""
    return canonical_json(
        {
            "purpose": _PURPOSE,
            "role": "responder",
            "transcript": _digest(hello),
            "public_key": public_key,
            "nonce": nonce,
        }
    )


def finish_info(first: JsonValue) -> bytes:
    """HPKE info of the initiator's secret; ``first`` is T1 of the spec."""
    return canonical_json({"purpose": _PURPOSE, "role": "initiator", "transcript": _digest(first)})


def _digest(value: JsonValue) -> str:
    return sha256_hex(canonical_json(value))


def _without_proof(message: StrictModel) -> dict[str, JsonValue]:
    return message.model_dump(mode="json", exclude={"proof"})


def _public(text: str) -> HpkePublicKey:
    try:
        return HpkePublicKey(from_base64(text))
    except DataInvalid as error:
        raise ChannelRefused(f"the peer sent no public key: {error.message}") from error


def _open(private: HpkePrivateKey, sealed: str, info: bytes) -> Secret:
    try:
        return private.open(from_base64(sealed), info=info)
    except (WrongKey, DataInvalid) as error:
        raise ChannelRefused(
            "the peer's secret does not open",
            check="channel secret",
            hint="it answers another conversation; open the channel again",
        ) from error


def _same(what: str, got: JsonValue, expected: JsonValue) -> None:
    if got != expected:
        raise ChannelRefused(
            f"the peer asks for another {what}",
            check=f"channel {what}",
            got=_show(got),
            expected=_show(expected),
            hint="both sides must be of the same run and step",
        )


def _show(value: JsonValue) -> str:
    return canonical_json(value).decode()[:200]


def _send(sock: Stream, message: JsonValue) -> None:
    data = canonical_json(message)
    send_all(sock, _LENGTH.pack(len(data)) + data)


def _receive(sock: Stream, kind: type[_Message]) -> _Message:
    (size,) = _LENGTH.unpack(receive_exactly(sock, _LENGTH.size))
    if size > MAX_MESSAGE_BYTES:
        raise ChannelRefused(
            "a message of the handshake is too long",
            check="handshake",
            got=size,
            expected=f"at most {MAX_MESSAGE_BYTES} bytes",
        )
    message = kind.from_bytes(receive_exactly(sock, size))
    if isinstance(message, _Hello) and len(canonical_json(message.context)) > MAX_CONTEXT_BYTES:
        raise ChannelRefused(
            "the context of a channel is too long",
            check="channel context",
            expected=f"at most {MAX_CONTEXT_BYTES} bytes",
        )
    return message
