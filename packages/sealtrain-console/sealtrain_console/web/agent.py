"""The owner's agent: signs a decision once a passkey and its owner's terminal both said so.

See ``spec/console.md`` §3. The agent is a process of the owner beside its identity file. It listens
on a socket that only its user opens, takes one request at a time, and reads recipe, consortium and
broker files itself: of what the console says it takes the wish, and no fact.

1. *prepare*: it reads and asks all that a decision depends on, as ``sealtrain approve`` does, and
   writes the decision. Nothing is signed. It keeps one, for ``PENDING_SECONDS``.
2. *sign*: an enrolled passkey must have signed exactly that decision on this console. The decision
   is used up by this, whatever follows.
3. Its owner reads the recipe in the agent's terminal, and confirms there.
4. The owner's key signs, and brokers get it.

A passkey is enrolled only while the agent was started for it, and confirmed in the terminal too.
"""

from __future__ import annotations

import os
import socket
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from sealtrain.base.canonical import canonical_json, parse_json
from sealtrain.base.digests import sha256_hex
from sealtrain.base.secret import Random
from sealtrain.consortium.approvals import ApprovalTally
from sealtrain.consortium.decisions import Decision
from sealtrain.consortium.members import Consortium
from sealtrain.errors import DataInvalid, SealtrainError, UsageError
from sealtrain.owner import approving
from sealtrain.owner.approving import Intent
from sealtrain.owner.owner_files import AtEach, OwnerFiles
from sealtrain.recipe.lock import LockedRecipe
from sealtrain_console.web.errors import AgentDeclined, PageUnknown
from sealtrain_console.web.passkeys import Passkeys, challenge_of, code_of, url_text

MAX_MESSAGE_BYTES: Final = 64 << 10
PENDING_SECONDS: Final = 300.0
_EXCHANGE_SECONDS: Final = 10.0
_BACKLOG: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingDecision:
    """A decision that is written and not signed.

    Attributes:
        locked: The recipe, as the agent read it.
        consortium: As the owner holds it.
        decision: What will be signed.
        intent: Of an approval; ``None`` for a revocation.
        made: When, by a clock that never goes back.
    """

    locked: LockedRecipe
    consortium: Consortium
    decision: Decision
    intent: Intent | None
    made: float

    @property
    def payload(self) -> bytes:
        """The bytes that the owner's key will sign."""
        return self.decision.to_bytes()

    @property
    def digest(self) -> str:
        """SHA-256 of them."""
        return sha256_hex(self.payload)


@dataclass(kw_only=True)
class Agent:
    """Answers a console for one owner.

    Attributes:
        owner: Identity and broker files.
        consortium: The consortium file.
        deployments: Deployment documents that may be decided on.
        passkeys: Those enrolled.
        confirm: Shows a pending decision in the terminal, and says whether its owner confirmed.
        confirm_passkey: The same before a passkey is enrolled, with the code that the page shows
            of it; ``None`` where none may be.
        on_signed: Called with what was signed, and how far it is at each broker.
        monotonic: Seconds that never go back.
        random: Source of challenges.
    """

    owner: OwnerFiles
    consortium: Path
    deployments: tuple[Path, ...]
    passkeys: Passkeys
    confirm: Callable[[PendingDecision], bool]
    confirm_passkey: Callable[[str], bool] | None = None
    on_signed: Callable[[PendingDecision, AtEach[ApprovalTally]], None] = lambda _made, _answers: (
        None
    )
    monotonic: Callable[[], float] = time.monotonic
    random: Random = os.urandom
    _pending: PendingDecision | None = field(default=None, init=False)
    _challenge: bytes | None = field(default=None, init=False)

    def answer(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Answer one request.

        Raises:
            SealtrainError: Nothing was signed; or brokers refused what was.
        """
        match asked:
            case {"op": "state", **rest} if not rest:
                return {
                    "owner": self.owner.keys.name,
                    "passkeys": len(self.passkeys.ids),
                    "enrolls": self.confirm_passkey is not None,
                    "origin": self.passkeys.origin,
                }
            case {
                "op": "prepare",
                "action": "approve" | "revoke" as action,
                "compose_hash": str(compose_hash),
                "days": int(days),
                "lift": bool(lift),
                **rest,
            } if not rest and 1 <= days <= 3650:
                return self._prepare(action, compose_hash, days, lift=lift)
            case {"op": "sign", "digest": str(digest), "credential": dict(credential), **rest} if (
                not rest
            ):
                return self._sign(digest, credential)
            case {"op": "passkey", **rest} if not rest:
                return self._options()
            case {"op": "enroll", "credential": dict(credential), **rest} if not rest:
                return self._enroll(credential)
        raise DataInvalid("the agent takes no such request", check="request")

    def _prepare(
        self, action: Literal["approve", "revoke"], compose_hash: str, days: int, *, lift: bool
    ) -> dict[str, Any]:
        """Step 1."""
        self._pending = None
        locked = self._read(compose_hash)
        consortium = Consortium.load(self.consortium)
        intent = None
        if action == "approve":
            intent = approving.prepare(self.owner, locked, consortium, lift_revocation=lift)
            decision = approving.write_decision(intent, days=days)
        else:
            decision = approving.revocation(self.owner, locked, consortium)
        self._pending = made = PendingDecision(
            locked=locked,
            consortium=consortium,
            decision=decision,
            intent=intent,
            made=self.monotonic(),
        )
        return {
            "digest": made.digest,
            "challenge": url_text(challenge_of(made.payload)),
            "passkeys": self.passkeys.ids,
            "owner": self.owner.keys.name,
            "ends": decision.not_after,
        }

    def _sign(self, digest: str, credential: dict[str, Any]) -> dict[str, Any]:
        """Steps 2 to 4."""
        made, self._pending = self._pending, None
        late = made is not None and self.monotonic() - made.made > PENDING_SECONDS
        if made is None or made.digest != digest or late:
            raise AgentDeclined(
                "the agent has no such decision before it",
                check="digest",
                got=digest[:64],
                expected="none" if made is None else f"{made.digest}, for five minutes",
                hint="press the button again: a decision is prepared anew each time",
            )
        self.passkeys.require(credential, made.payload)  # (2)
        if not self.confirm(made):  # (3)
            raise AgentDeclined(
                "the owner did not confirm in the agent's terminal, so nothing was signed",
                check="confirmation",
                hint="press the button again, and type the word that the agent asks for",
            )
        if self.monotonic() - made.made > PENDING_SECONDS:
            raise AgentDeclined(
                "the owner confirmed too late, so nothing was signed",
                check="time",
                expected=f"within {PENDING_SECONDS:g} s",
                hint="press the button again",
            )
        answers = self._hand_in(made)  # (4)
        self.on_signed(made, answers)
        return {
            "digest": made.digest,
            "tallies": {url: tally.in_words() for url, tally in answers.done.items()},
            "failed": {url: error.code for url, error in answers.failed.items()},
        }

    def _hand_in(self, made: PendingDecision) -> AtEach[ApprovalTally]:
        if made.intent is not None:
            return approving.hand_in(self.owner, made.intent, made.decision)
        return approving.hand_in_revocation(self.owner, made.locked, made.consortium, made.decision)

    def _options(self) -> dict[str, Any]:
        if self.confirm_passkey is None:
            raise _enrolls_none()
        self._challenge = self.random(32)
        return {"options": self.passkeys.options(self.owner.keys.name, self._challenge)}

    def _enroll(self, credential: dict[str, Any]) -> dict[str, Any]:
        challenge, self._challenge = self._challenge, None
        if self.confirm_passkey is None or challenge is None:
            raise _enrolls_none()
        if not self.confirm_passkey(code_of(credential)):
            raise AgentDeclined(
                "the owner did not confirm the passkey in the agent's terminal",
                check="confirmation",
            )
        found = self.passkeys.enroll(credential, challenge)
        self.confirm_passkey = None  # one for each start
        return {"enrolled": found}

    def _read(self, compose_hash: str) -> LockedRecipe:
        for path in self.deployments:
            locked = LockedRecipe.load(path)
            if locked.compose_hash == compose_hash:
                return locked
        raise PageUnknown(
            "the agent was not started with this deployment document",
            check="--deployment",
            got=compose_hash[:64],
            hint="start the agent with --deployment app-compose.json too",
        )


def _enrolls_none() -> AgentDeclined:
    return AgentDeclined(
        "the agent was not started to enroll a passkey, or enrolled it already",
        check="--enroll",
        hint="start it with --enroll; each start enrolls one passkey",
    )


@contextmanager
def listening(path: Path) -> Iterator[socket.socket]:
    """A socket that only this user opens; gone after the block.

    Args:
        path: Its name. A socket that no program answers on is replaced.

    Raises:
        UsageError: The name is taken, or no socket can be made there.
    """
    _make_room(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        before = os.umask(0o177)
        try:
            listener.bind(str(path))
        finally:
            os.umask(before)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise UsageError(
            "the agent's socket cannot be made",
            check="--socket",
            got=error.strerror or type(error).__name__,
            expected="a short name in a folder of yours",
        ) from error
    try:
        yield listener
    finally:
        listener.close()
        with suppress(OSError):
            path.unlink()


def _make_room(path: Path) -> None:
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise UsageError("another file has the agent's name", check="--socket", got=path.name)
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.settimeout(1.0)
        with suppress(OSError):
            other.connect(str(path))
            raise UsageError(
                "an agent answers at this socket already",
                check="--socket",
                hint="end it, or name another socket",
            )
    path.unlink()


def answer_one(listener: socket.socket, agent: Agent) -> None:
    """Take one connection, answer its request, and close it."""
    connection, _ = listener.accept()
    with connection, suppress(OSError):
        connection.settimeout(_EXCHANGE_SECONDS)
        try:
            asked = parse_json(_line(connection))
            if not isinstance(asked, dict):
                raise DataInvalid("the agent takes no such request", check="request")
            told: dict[str, Any] = {"done": agent.answer(asked)}
        except SealtrainError as error:
            told = {"error": error.to_dict()}
        connection.settimeout(_EXCHANGE_SECONDS)
        connection.sendall(canonical_json(told) + b"\n")


def _line(connection: socket.socket) -> bytes:
    """One line of a connection, whole and within the time of an exchange."""
    ends = time.monotonic() + _EXCHANGE_SECONDS
    data = b""
    while not data.endswith(b"\n"):
        if len(data) > MAX_MESSAGE_BYTES or time.monotonic() > ends:
            raise DataInvalid("the request is too long or too slow", check="request")
        more = connection.recv(8192)
        if not more:
            raise DataInvalid("the request is not whole", check="request")
        data += more
    return data
