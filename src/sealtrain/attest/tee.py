"""What the rest of attest asks of a TEE: one descriptor for each, in its own folder.

``attest.registry`` has the table. A descriptor is light: it names models, rules and words. What
needs a TEE's parsers and libraries is its ``Verifier`` (``attest.verifier``), in ``exhibit.py`` of
its folder, which is loaded when it is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

from sealtrain.attest.statement import GuestEvidence, GuestPolicy
from sealtrain.base.canonical import JsonValue

S = TypeVar("S", bound="SignedStatement")

NONE = "Empty accepts none."
"""Ends comments on lists that accept nothing until their author fills them."""
SHOWN = "as sealtrain attest explain shows it"
"""In comments on values that a machine's own evidence shows."""

TEST_VENDOR: Final = "test"
"""Of kinds that no hardware shows: no policy can name it, only a root that says SIMULATED."""
_ROOTS: Final = {
    "intel": "Intel's root",
    "amd": "AMD's root",
    "aws": "the root of AWS",
    TEST_VENDOR: "a test root",
}
"""Vendor, as a policy calls it → its root in words."""

Shown = dict[str, JsonValue]
"""The TEE's own form of evidence without the deployment document."""


class SignedStatement(Protocol):
    """A statement whose signature leads to a trusted root."""

    @property
    def simulated(self) -> bool:
        """A simulator signed it."""

    @property
    def quote_identity(self) -> str:
        """SHA-256 of what was signed, hex."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedGuest(Generic[S]):
    """A guest whose processor signed a statement about its deployment document.

    Attributes:
        signed: The statement in the TEE's own form.
        report_data: 64 bytes that mean nothing until they are compared.
        compose_hash: SHA-256 of the deployment document that was measured, hex.
        app_id: 40 hex digits; the first of the compose hash where nothing else names the app.
        instance_id: Which guest, hex; empty where the platform has no such thing.
        key_provider: Id of the guest's key provider, hex; empty where the platform has none.
    """

    signed: S
    report_data: bytes
    compose_hash: str
    app_id: str
    instance_id: str = ""
    key_provider: str = ""

    @property
    def simulated(self) -> bool:
        """It proves nothing about hardware."""
        return self.signed.simulated

    @property
    def quote_identity(self) -> str:
        """SHA-256 of what the processor signed: the only name that cannot be re-encoded."""
        return self.signed.quote_identity


@dataclass(frozen=True, slots=True, kw_only=True)
class TeeDevice:
    """Where a guest asks its platform without an agent.

    Attributes:
        path: The device file, from the root of the file system.
        flag: The processor's word for being such a guest.
        reports: Whether Linux's configfs-tsm asks for evidence, too.
        alone: Whether the device answers without configfs-tsm.
        options: Names of further options of its address.
        absent: Message for a guest whose processor has the flag while the device is missing.
        cloud: A file below ``/sys/class/dmi/id`` and the line in it by which the machines of one
            cloud are known, where the device is one that others have, too.
        maker: The processor's maker, as ``/proc/cpuinfo`` names it, where that tells two kinds
            of one cloud apart.
    """

    path: str
    flag: str
    reports: bool
    alone: bool = True
    options: tuple[str, ...] = ()
    absent: str | None = None
    cloud: tuple[str, str] | None = None
    maker: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What a policy may ask of a TEE, in ``policy.py`` of its folder.

    Attributes:
        form: Of the rules.
        lines: Comparison → field of the rules.
        comments: Field of the rules → its comment in a preset.
        presets: Name → whole policy.
        simulated: Rules that accept every simulated guest.
    """

    form: type[GuestPolicy]
    lines: Mapping[str, str]
    comments: Mapping[str, str]
    presets: Mapping[str, dict[str, Any]]
    simulated: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tee:
    """One TEE.

    Attributes:
        name: As ``base.platforms.Platform`` has it, or a kind of evidence of one of those.
        vendor: Whose hardware a policy trusts, in the policy's word.
        evidence: Form of its evidence.
        rules: What a policy may ask of it.
        kinds: Kinds of files (``StatementExhibit.kind``) that hold its statement by itself.
        device: Where a guest asks for evidence; ``None`` where only an agent does.
        of: The platform whose agent shows it, where that has another name.
        folder: Its folder, where that has another name.
        exhibit: Its ``Verifier`` in ``exhibit.py`` of the folder, which may have several.
    """

    name: str
    vendor: str
    evidence: type[GuestEvidence]
    rules: Rules
    kinds: tuple[str, ...] = ()
    device: TeeDevice | None = None
    of: str | None = None
    folder: str | None = None
    exhibit: str = "VERIFIER"

    @property
    def vendor_root(self) -> str:
        """The vendor's root in words."""
        return _ROOTS[self.vendor]

    @property
    def dcap(self) -> bool:
        """Whether quotes are verified with DCAP collateral."""
        return self.vendor == "intel"

    @property
    def platform(self) -> str:
        """What its evidence is offered as where no simulator stands behind it."""
        return self.of or self.name
