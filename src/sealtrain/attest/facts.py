"""What a TEE gives the engine: facts that a trusted root signed, and what it is asked.

A TEE leads every signature of its evidence to a root and then says what was signed, typed. It
compares nothing with platform, document, app or conversation: ``attest.engine`` does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from sealtrain.attest.claims import Claim, Group
from sealtrain.attest.policy import AppraisalPolicy
from sealtrain.attest.tee import SignedStatement

S_co = TypeVar("S_co", bound=SignedStatement, covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """Under which policy, when, and for which conversation and deployment document.

    Attributes:
        policy: ``None`` where only signatures and roots are asked for.
        root: Trusted software root of processors (DER), ``None`` for the vendors'.
        now: Seconds since 1970.
        nonce: Nonce that the part must carry, ``None`` if unknown.
        shown_compose: SHA-256 of the deployment document that the evidence itself shows, hex; such
            evidence is bound to it before anything else is compared.
        compose_hashes: What the measured deployment document must hash to; empty for any.
        app_id: The app that the guest must be; ``None`` for any.
        every_line: Leave judgements that a verifier could make at once to comparisons.
    """

    policy: AppraisalPolicy | None
    root: bytes | None
    now: int
    nonce: bytes | None = None
    compose_hashes: tuple[str, ...] = ()
    every_line: bool = False
    shown_compose: str | None = None
    app_id: str | None = None

    def with_(self, **changes: Any) -> Situation:
        """The same with other fields."""
        return replace(self, **changes)


def _itself(digest: str) -> str:
    return digest


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredDocument:
    """What a guest measured of its deployment document.

    Attributes:
        got: As the platform writes it.
        source: The component that measured it.
        of: SHA-256 of a document, hex → what the platform measures of it.
    """

    got: str
    source: str
    of: Callable[[str], str] = _itself


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedFacts(Generic[S_co]):
    """What was signed, of a guest whose signatures lead to a root; nothing of it is compared yet.

    Attributes:
        statement: In the TEE's own form, as its rules read it.
        root: The root in words.
        report_data: What the statement was made for; ``None`` where it does not say.
        source: The component that says so.
        document: What was measured; ``None`` where that is malformed, as one of ``ties`` says.
        held: Comparisons that held while signatures were verified.
        ties: Comparisons that no policy leaves out: they tie what is shown to what was signed, and
            come before the document that the evidence shows.
        app_id: The app, where the guest measured one; else the document's first 20 bytes name it.
        instance_id: Which guest, hex; empty where the platform has no such thing.
        key_provider: Id of the guest's key provider, hex; empty where the platform has none.
        asked: Comparisons with the conversation, where report data are not what tells it.
    """

    statement: S_co
    root: str
    report_data: bytes | None
    source: str
    document: MeasuredDocument | None
    held: tuple[Claim, ...] = ()
    ties: tuple[Group, ...] = ()
    app_id: str | None = None
    instance_id: str = ""
    key_provider: str = ""
    asked: tuple[Group, ...] | None = None
