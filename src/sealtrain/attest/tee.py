"""What the rest of attest asks of a TEE: one descriptor for each, in its own folder.

``attest.registry`` has the table. A descriptor is light: it names models, rules and words. What
needs a TEE's parsers and libraries is behind its functions, which import when they are called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from sealtrain.attest.statement import Collateral, GuestEvidence, GuestPolicy
from sealtrain.base.canonical import JsonValue

if TYPE_CHECKING:
    from sealtrain.attest.bundle import Beside
    from sealtrain.attest.claims import Claim
    from sealtrain.attest.field import Field
    from sealtrain.attest.forms import Exhibit, Statement
    from sealtrain.attest.part import Part, Situation

__all__ = ["FILL", "Device", "Given", "Shown", "Tee", "VerifiedGuest"]

E = TypeVar("E", bound=GuestEvidence)
P = TypeVar("P", bound=GuestPolicy)
V = TypeVar("V", bound="VerifiedGuest")

FILL = "FILL IN: "
"""Begins comments on lines that accept nothing until they are filled in."""

Shown = dict[str, JsonValue]
"""The TEE's own form of evidence without the deployment document."""


class VerifiedGuest(Protocol):
    """Facts about a guest that its processor signed."""

    @property
    def simulated(self) -> bool:
        """A simulator signed it."""

    @property
    def quote_identity(self) -> str:
        """SHA-256 of what was signed, hex."""

    @property
    def report_data(self) -> bytes:
        """64 bytes that mean nothing until they are compared."""

    @property
    def app_id(self) -> str:
        """40 hex digits."""

    @property
    def compose_hash(self) -> str:
        """SHA-256 of the deployment document, hex."""

    @property
    def app_compose(self) -> bytes:
        """The deployment document that was measured."""

    @property
    def instance_id(self) -> str:
        """Which guest, hex; empty where the platform has no such thing."""

    @property
    def key_provider(self) -> str:
        """Id of the guest's key provider, hex; empty where the platform has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What a verifier decides with, besides evidence and rules.

    Attributes:
        collateral: DCAP collateral, where the TEE has such a thing.
        crl: The verifier's own revocation list (DER); ``None`` uses what the evidence carries.
        simulator_root: Trusted software root (DER), ``None`` for the vendor's.
        now: Seconds since 1970.
    """

    collateral: Collateral | None
    crl: bytes | None
    simulator_root: bytes | None
    now: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Where a guest asks its platform without an agent.

    Attributes:
        path: The device file, from the root of the file system.
        flag: The processor's word for being such a guest.
        reports: Whether Linux's configfs-tsm asks for evidence, too.
        alone: Whether the device answers without configfs-tsm.
        options: Names of further options of its address.
        absent: Message for a guest whose processor has the flag while the device is missing.
    """

    path: str
    flag: str
    reports: bool
    alone: bool = True
    options: tuple[str, ...] = ()
    absent: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tee(Generic[E, P, V]):
    """One TEE.

    Attributes:
        name: As ``base.platforms.Platform`` has it.
        vendor: Whose hardware a policy trusts, in the policy's word.
        vendor_root: The vendor's root in words.
        evidence: Form of its evidence.
        policy: Form of its rules.
        verify: Evidence, rules, what is given → facts; raises ``EvidenceRefused``.
        claims: Facts, rules, time → what held; raises ``EvidenceRefused`` for the first breach.
        eat: Facts → claims under their RFC 9711 names.
        part: Evidence, what lies beside it, situation → how it is verified line by line.
        fields: Evidence → everything it says.
        kinds: Kinds of files (``Statement.kind``) that hold its statement by itself.
        recognise: A file → its statement; ``None`` where it is something else.
        show: Device or socket, 64 bytes → a statement over them and what lies beside it.
        pinned_roots: SHA-256 of pinned roots → their names in words.
        dcap: Whether quotes are verified with DCAP collateral.
        device: Where a guest asks for evidence; ``None`` where only an agent does.
        collect: Device, 64 bytes, options of the address → evidence; there with ``device``.
        ask_agent: A ``DstackClient`` of the guest's socket, 64 bytes → evidence; ``None`` asks a
            simulated driver.
        lines: Comparison → field of the rules.
        comments: Field of the rules → its comment in a preset.
        presets: Name → whole policy.
        simulated: Rules that accept every simulated guest.
    """

    name: str
    vendor: str
    vendor_root: str
    evidence: type[E]
    policy: type[P]
    verify: Callable[[E, P, Given], V]
    claims: Callable[[V, P, int], tuple[Claim, ...]]
    eat: Callable[[V], dict[str, str]]
    part: Callable[[E, Beside, Situation], Part]
    fields: Callable[[E], list[Field]]
    show: Callable[[Path, bytes], tuple[Statement, Beside]]
    pinned_roots: Callable[[], Mapping[str, str]]
    lines: Mapping[str, str]
    comments: Mapping[str, str]
    presets: Mapping[str, dict[str, Any]]
    simulated: Mapping[str, Any]
    kinds: tuple[str, ...] = ()
    recognise: Callable[[bytes], Exhibit | None] = field(default=lambda data: None)
    dcap: bool = False
    device: Device | None = None
    collect: Callable[[Path, bytes, Mapping[str, str]], Shown] | None = None
    ask_agent: Callable[[Any, bytes], Shown] | None = None
