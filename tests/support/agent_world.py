"""An owner's agent in this process, and passkeys as a test makes them without a browser."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cbor2
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256

from sealtrain.owner.owner_files import OwnerFiles
from sealtrain_console.web.agent import Agent, PendingDecision, answer_one, listening
from sealtrain_console.web.passkeys import Passkeys, passkey_file, url_text

ORIGIN = "http://localhost:8600"


@dataclass(kw_only=True)
class Authenticator:
    """A passkey in software: signs whatever a test has it sign."""

    key: ec.EllipticCurvePrivateKey = field(
        default_factory=lambda: ec.generate_private_key(ec.SECP256R1())
    )
    credential_id: bytes = b"a passkey of a test"
    rp_id: str = "localhost"
    origin: str = ORIGIN
    verified: bool = True
    count: int = 1

    def _data(self, attested: bytes = b"") -> bytes:
        flags = 0x01 | (0x04 if self.verified else 0) | (0x40 if attested else 0)
        head = hashlib.sha256(self.rp_id.encode()).digest()
        return head + bytes([flags]) + self.count.to_bytes(4, "big") + attested

    def _client(self, kind: str, challenge: str) -> bytes:
        said = {"type": kind, "challenge": challenge, "origin": self.origin, "crossOrigin": False}
        return json.dumps(said).encode()

    def _credential(self, **response: bytes) -> dict[str, Any]:
        shown = url_text(self.credential_id)
        told = {name: url_text(value) for name, value in response.items()}
        return {"id": shown, "rawId": shown, "type": "public-key", "response": told}

    def registered(self, challenge: str) -> dict[str, Any]:
        numbers = self.key.public_key().public_numbers()
        cose = cbor2.dumps(
            {1: 2, 3: -7, -1: 1, -2: numbers.x.to_bytes(32), -3: numbers.y.to_bytes(32)}
        )
        attested = bytes(16) + len(self.credential_id).to_bytes(2) + self.credential_id + cose
        made = {"fmt": "none", "attStmt": {}, "authData": self._data(attested)}
        return self._credential(
            attestationObject=cbor2.dumps(made),
            clientDataJSON=self._client("webauthn.create", challenge),
        )

    def asserted(self, challenge: str) -> dict[str, Any]:
        self.count += 1
        data, client = self._data(), self._client("webauthn.get", challenge)
        signature = self.key.sign(data + hashlib.sha256(client).digest(), ec.ECDSA(SHA256()))
        return self._credential(authenticatorData=data, clientDataJSON=client, signature=signature)


@dataclass(kw_only=True)
class AgentWorld:
    """An agent, what it showed its owner, and what its owner answers."""

    agent: Agent
    socket: Path
    shown: list[PendingDecision]
    codes: list[str]
    answers: bool = True

    def enrolled(self, authenticator: Authenticator) -> None:
        challenge = self.agent.answer({"op": "passkey"})["options"]["challenge"]
        made = authenticator.registered(challenge)
        self.agent.answer({"op": "enroll", "credential": made})

    def prepared(self, compose_hash: str, action: str = "approve", **more: Any) -> dict[str, Any]:
        asked = {"action": action, "compose_hash": compose_hash, "days": 30, "lift": False}
        return self.agent.answer({"op": "prepare", **asked, **more})


def agent_of(
    identity: Path,
    brokers: tuple[Path, ...],
    consortium: Path,
    deployments: tuple[Path, ...],
    *,
    origin: str = ORIGIN,
    **changed: Any,
) -> AgentWorld:
    shown: list[PendingDecision] = []
    codes: list[str] = []
    world: AgentWorld

    def confirm(made: PendingDecision) -> bool:
        shown.append(made)
        return world.answers

    given: dict[str, Any] = {
        "owner": OwnerFiles(identity=identity, brokers=brokers),
        "consortium": consortium,
        "deployments": deployments,
        "passkeys": Passkeys(file=passkey_file(identity), origin=origin),
        "confirm": confirm,
        "confirm_passkey": lambda code: codes.append(code) or world.answers,
    }
    world = AgentWorld(
        agent=Agent(**{**given, **changed}),
        socket=identity.with_name("agent.sock"),
        shown=shown,
        codes=codes,
    )
    return world


@contextmanager
def answering(world: AgentWorld) -> Iterator[Path]:
    """The agent on its socket, in a thread, while the block runs."""
    over = threading.Event()

    def serve(listener: Any) -> None:
        listener.settimeout(0.1)
        while not over.is_set():
            try:
                answer_one(listener, world.agent)
            except TimeoutError:
                continue

    with listening(world.socket) as listener:
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        try:
            yield world.socket
        finally:
            over.set()
            thread.join()
