"""How two ranks prove themselves to each other, and the two keys that come of it (spec §2, §3).

Checks by the numbers of the specification; the first that fails raises, and no key is made:

1. TLS 1.3, with a certificate under an accepted key    ``ChannelRefused`` (``key``)
2. the protocol that TLS negotiated is this one          ``ChannelRefused`` (``protocol``)
3. a statement has exactly its fields                    ``ChannelRefused`` (``statement``)
4. session, membership, world and both ranks agree       ``ChannelRefused`` (their names)
5. the key is the one of the rank that it states         ``ChannelRefused`` (``key``)
6. the responder's secret opens                          ``ChannelRefused`` (``secret``)
7. the first frame opens                                 ``ChannelBroken`` (``frame``)
"""

from __future__ import annotations

import hashlib
import ssl
import struct
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal, Protocol, TypeVar

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from pydantic import Field, StringConstraints

from sealtrain.base.canonical import JsonValue, canonical_json
from sealtrain.base.encoding import from_base64, to_base64
from sealtrain.base.models import Base64, Document, Hex64
from sealtrain.base.secret import Random, Secret
from sealtrain.errors import DataInvalid
from sealtrain.sealing.errors import WrongKey
from sealtrain.sealing.hpke import HpkePrivateKey, HpkePublicKey
from sealtrain.training.errors import ChannelCut, ChannelRefused
from sealtrain_nodes.wire.frames import LABEL
from sealtrain_nodes.wire.identity import PROTOCOL, NodeKey, key_of
from sealtrain_nodes.wire.membership import MAX_WORLD, Membership

SESSION_BYTES: Final = 32
_MAX_STATEMENT: Final = 4 << 10
_MAX_RECORD: Final = (1 << 14) + 256
_RECORD: Final = struct.Struct(">BHH")
_LENGTH: Final = struct.Struct(">I")

_Rank = Annotated[int, Field(ge=0, lt=MAX_WORLD, strict=True)]


class LinkStream(Protocol):
    """What the handshake needs of a connection."""

    def sendall(self, data: bytes | memoryview, /) -> None:
        """Send every byte."""

    def receive(self, size: int, /) -> bytes:
        """Exactly so many bytes."""


class _HandshakeStatement(Document):
    what = "statement"
    refusal = ChannelRefused
    max_bytes = _MAX_STATEMENT
    form = ("statement", None)

    version: Literal[1]
    # Under its name in JSON, which is a word of Python.
    sender: _Rank = Field(alias="from")
    to: _Rank
    world: Annotated[int, Field(ge=1, le=MAX_WORLD, strict=True)]
    membership: Hex64
    session: Hex64
    nonce: Hex64


class _LinkHello(_HandshakeStatement):
    public_key: Annotated[Base64, StringConstraints(min_length=1624, max_length=1624)]


class _LinkAnswer(_HandshakeStatement):
    sealed: Annotated[Base64, StringConstraints(min_length=1560, max_length=1560)]


_Kind = TypeVar("_Kind", _LinkHello, _LinkAnswer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """What a rank knows before it meets the others.

    Attributes:
        membership: All ranks.
        rank: This one.
        key: This node's.
        session: 32 bytes that are new for each run and each time its membership changes.
        random: Source of ephemeral keys, nonces and secrets.
    """

    membership: Membership
    rank: int
    key: NodeKey = field(repr=False)
    session: bytes
    random: Random


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkKeys:
    """The peer that was proven, and one key for each direction."""

    peer: int
    initiator: Secret
    responder: Secret


def initiate(stream: LinkStream, meeting: Meeting, peer: int, context: ssl.SSLContext) -> LinkKeys:
    """The rank that connects.

    Args:
        stream: A connection to the peer's address.
        meeting: What is known.
        peer: Rank that has to be there.
        context: TLS that accepts this peer's key.

    Raises:
        ChannelRefused: Checks 1 to 6.
        ChannelCut: The stream ended.
        OSError: The stream failed.
    """
    tls = _Tls(stream, context, server=False)
    _require_key(tls.handshake(), meeting, peer)
    private = HpkePrivateKey(Secret(meeting.random(32)))
    hello = _statement(meeting, peer) | {"public_key": to_base64(private.public.raw)}
    tls.send(hello)
    answer = tls.receive(_LinkAnswer)
    tls.end()
    said = answer.model_dump(mode="json", by_alias=True)
    _require_same(answer, meeting, peer)
    try:
        secret = private.open(from_base64(answer.sealed), info=secret_info(hello))
    except (WrongKey, DataInvalid) as error:
        raise ChannelRefused("the peer's secret does not open", check="secret") from error
    return derive_keys(hello, said, secret, peer=peer)


def respond(stream: LinkStream, meeting: Meeting, context: ssl.SSLContext) -> LinkKeys:
    """The rank that listens. Errors as ``initiate``; any rank above this one may call."""
    tls = _Tls(stream, context, server=True)
    shown = tls.handshake()
    hello = tls.receive(_LinkHello)
    if not meeting.rank < hello.sender < meeting.membership.world:
        raise ChannelRefused(
            "a rank calls that should be called",
            check="from",
            got=hello.sender,
            expected=f"{meeting.rank + 1} to {meeting.membership.world - 1}",
        )
    _require_same(hello, meeting, hello.sender)
    _require_key(shown, meeting, hello.sender)
    said = hello.model_dump(mode="json", by_alias=True)
    ours = Secret(meeting.random(32))
    try:
        public = HpkePublicKey(from_base64(hello.public_key))
        sealed = public.seal(ours.reveal(), info=secret_info(said))
    except DataInvalid as error:
        raise ChannelRefused("the peer sent no public key", check="statement") from error
    answer = _statement(meeting, hello.sender) | {"sealed": to_base64(sealed)}
    tls.send(answer)
    tls.end()
    return derive_keys(said, answer, ours, peer=hello.sender)


def derive_keys(
    hello: dict[str, JsonValue], answer: dict[str, JsonValue], secret: Secret, *, peer: int
) -> LinkKeys:
    """The keys of a wire (spec §3).

    Args:
        hello: The initiator's statement.
        answer: The responder's.
        secret: The responder's 32 bytes, which travelled sealed.
        peer: Rank at the other end.
    """
    salt = hashlib.sha256(canonical_json({"hello": hello, "answer": answer})).digest()
    material = secret.reveal() + bytes.fromhex(hello["nonce"]) + bytes.fromhex(answer["nonce"])

    def key(direction: bytes) -> Secret:
        return Secret(HKDF(hashes.SHA256(), 32, salt, LABEL + direction).derive(material))

    return LinkKeys(peer=peer, initiator=key(b"initiator"), responder=key(b"responder"))


def _statement(meeting: Meeting, peer: int) -> dict[str, JsonValue]:
    return {
        "version": 1,
        "from": meeting.rank,
        "to": peer,
        "world": meeting.membership.world,
        "membership": meeting.membership.digest,
        "session": meeting.session.hex(),
        "nonce": meeting.random(32).hex(),
    }


def secret_info(hello: dict[str, JsonValue]) -> bytes:
    """HPKE info of the responder's secret."""
    return LABEL + b"secret " + hashlib.sha256(canonical_json(hello)).digest()


def _require_same(said: _HandshakeStatement, meeting: Meeting, peer: int) -> None:
    for check, got, expected in (
        ("session", said.session, meeting.session.hex()),
        ("membership", said.membership, meeting.membership.digest),
        ("world", said.world, meeting.membership.world),
        ("from", said.sender, peer),
        ("to", said.to, meeting.rank),
    ):
        if got != expected:
            raise ChannelRefused(
                "the peer is of another run, or another rank than expected",
                check=check,
                got=got,
                expected=expected,
                hint="all nodes of a run need the same membership and session",
            )


def _require_key(shown: bytes, meeting: Meeting, peer: int) -> None:
    expected = meeting.membership.peer(peer).public_key
    if shown != expected:
        raise ChannelRefused(
            "the peer has another key than the rank that it states",
            check="key",
            got=shown.hex(),
            expected=expected.hex(),
        )


class _Tls:
    """TLS over a stream, record by record, so that nothing beyond its last record is read."""

    def __init__(self, stream: LinkStream, context: ssl.SSLContext, *, server: bool) -> None:
        self._stream = stream
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=server)

    def handshake(self) -> bytes:
        """Do it; returns the public key that the peer proved (checks 1 and 2)."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._flush()
                self._read_record()
            except ssl.SSLError as error:
                self._flush()  # the alert
                raise _refuse(error) from error
            else:
                break
        self._flush()
        if self._tls.selected_alpn_protocol() != PROTOCOL:
            raise ChannelRefused(
                "the peer speaks another protocol",
                check="protocol",
                got=self._tls.selected_alpn_protocol(),
                expected=PROTOCOL,
            )
        certificate = self._tls.getpeercert(binary_form=True)
        if certificate is None:
            raise ChannelRefused("the peer showed no key", check="key")
        return key_of(certificate)

    def send(self, statement: dict[str, JsonValue]) -> None:
        data = canonical_json(statement)
        self._tls.write(_LENGTH.pack(len(data)) + data)
        self._flush()

    def receive(self, kind: type[_Kind]) -> _Kind:
        (size,) = _LENGTH.unpack(self._read(_LENGTH.size))
        if size > _MAX_STATEMENT:
            raise ChannelRefused(
                "a statement is too long",
                check="statement",
                got=size,
                expected=f"at most {_MAX_STATEMENT} bytes",
            )
        return kind.from_bytes(self._read(size))

    def end(self) -> None:
        """Nothing of TLS may follow: the frames begin."""
        if self._tls.pending() or self._in.pending:
            raise ChannelRefused("the peer said more than its statement", check="statement")

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            try:
                part = self._tls.read(size - len(data))
            except ssl.SSLWantReadError:
                self._flush()
                self._read_record()
                continue
            except ssl.SSLError as error:
                raise _refuse(error) from error
            if not part:
                raise ChannelCut("the peer ended the handshake", check="statement")
            data += part
        return data

    def _read_record(self) -> None:
        head = self._stream.receive(_RECORD.size)
        _, _, size = _RECORD.unpack(head)
        if size > _MAX_RECORD:
            raise ChannelRefused("the peer speaks another protocol", check="protocol")
        self._in.write(head + self._stream.receive(size))

    def _flush(self) -> None:
        if data := self._out.read():
            self._stream.sendall(data)


def _refuse(error: ssl.SSLError) -> ChannelRefused:
    return ChannelRefused(
        "the peer did not prove a key of this run's membership, or refused ours",
        check="key",
        got=error.reason or type(error).__name__,
        hint="all nodes of a run need the same membership and session",
    )
