"""Explain a file: its fields, their meaning, and the policy lines that it meets or breaks.

An explanation is no verdict. Its heading says ``NOT VERIFIED`` unless every part's signature was
led to a root at a moment, and even then only that. Every policy line is shown, not only the first
one broken; nothing is compared below a signature that does not hold, because nothing there can be
trusted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

from sealtrain.attest.bundle import Attachments
from sealtrain.attest.explain.examine import unwrap_bundle
from sealtrain.attest.explain.fields import fields_of
from sealtrain.attest.explain.parts import parts_of
from sealtrain.attest.field import Field, shorten
from sealtrain.attest.forms import Exhibit
from sealtrain.attest.parts import CheckOutcome, show
from sealtrain.attest.policy import AppraisalPolicy
from sealtrain.attest.registry import tee_of
from sealtrain.attest.roots import SIMULATED_LABEL
from sealtrain.base.clock import to_rfc3339
from sealtrain.errors import EvidenceRefused

_GPU: Final = {
    "architecture": "architectures",
    "device": "devices",
    "driver version": "driver_versions",
    "VBIOS version": "vbios_versions",
    "reference values": "reference_values",
    "revocation": "revocation",
    "remote verdict": "nras",
    "GPUs": "gpu_count",
    "NVSwitches": "switch_count",
    "GPU topology": "switch_count",
    "GPUs of the driver": "gpu_count",
    "NVSwitch topology": "gpu_count",
    "GPU mode": "mode",
    "GPU confidential computing": "cc",
    "GPU environment": "cc",
    "GPU developer tools": "devtools",
    "GPU root": "root",
}


def line_of(tee: str, part: str, comparison: str) -> str:
    """The policy's field, as a path; empty where the comparison is not the policy's.

    Args:
        tee: What the policy is for.
        part: ``cpu0``, or a part of the accelerators.
        comparison: Name of the claim, or of the check that failed.
    """
    if comparison in ("signature and root", "root"):
        return "root" if part == "cpu0" else "gpu.root"
    if comparison in ("platform", "tier"):
        return comparison
    if comparison == "accelerators":
        return "gpu"
    if part == "cpu0":
        name = tee_of(tee).rules.lines.get(comparison)
        return "" if name is None else f"cpu.{name}"
    if comparison.endswith(" measurements") or comparison.endswith(" version"):
        comparison = comparison if comparison in _GPU else "reference values"
    return f"gpu.{_GPU[comparison]}" if comparison in _GPU else ""


Standing = Literal["met", "broken", "any", "not reached"]
_SIGNATURE = "signature and root"
_MARKS: dict[Standing, str] = {"met": "✓", "broken": "✗", "any": "·", "not reached": "?"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One comparison and how it ended.

    Attributes:
        part: What was compared.
        policy: The policy's line, empty where it is not the policy's.
        name: What was compared, in words.
        standing: ``any`` where the policy asks nothing; ``not reached`` below a broken signature.
        code: The refusal it ends in, where broken.
    """

    part: str
    policy: str
    name: str
    got: str
    expected: str
    source: str
    standing: Standing
    code: str | None
    message: str | None

    def to_dict(self) -> dict[str, str | None]:
        """JSON form."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What a file says and how it stands."""

    kind: str
    title: str
    heading: str
    signatures_verified: bool
    simulated: bool
    at: int | None
    fields: tuple[Field, ...]
    lines: tuple[Line, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON form; nothing shortened."""
        return {
            "kind": self.kind,
            "title": self.title,
            "heading": self.heading,
            "signatures_verified": self.signatures_verified,
            "simulated": self.simulated,
            "at": None if self.at is None else to_rfc3339(self.at),
            "fields": [field.to_dict() for field in self.fields],
            "lines": [line.to_dict() for line in self.lines],
        }

    def to_lines(self) -> Iterator[str]:
        """For people: heading, fields, then comparisons."""
        yield f"{self.title}: {self.heading}"
        part = None
        for field in self.fields:
            if field.part != part:
                part = field.part
                yield ""
                yield shorten(part)
            yield f"  {shorten(field.name):<22}  {shorten(field.value)}"
            yield f"  {'':<22}    {field.meaning}"
        if self.lines:
            yield ""
            yield "compared"
        for line in self.lines:
            yield from _show(line)


def explain(
    exhibit: Exhibit, given: Attachments, policy: AppraisalPolicy | None, at: int | None
) -> Explanation:
    """Explain a recognised file.

    Args:
        exhibit: What the file is.
        given: What lies beside it.
        policy: What it is compared with, if anything.
        at: Time of the comparison, seconds since 1970; a bundle's own where none is given.

    Raises:
        EvidenceRefused: A part inside sealtrain's own document does not even parse.
        DataInvalid: A bundle's content is nothing this release knows.
    """
    inner, beside = unwrap_bundle(exhibit, given)
    if at is None:
        at = getattr(getattr(exhibit, "bundle", None), "time", None)
    title = exhibit.title if inner is exhibit else f"{exhibit.title} of: {inner.title}"
    lines: list[Line] = []
    simulated, refused, signed = False, False, False
    if at is not None:
        tee = "" if policy is None else policy.cpu.tee
        for outcome in show(parts_of(inner, beside, policy, at, every_line=True)):
            signed = True
            simulated = simulated or (outcome.vouched is not None and outcome.vouched.simulated)
            refused = refused or (outcome.signature and outcome.error is not None)
            lines += _lines_of(outcome, tee)
    verified = signed and not refused
    return Explanation(
        kind=exhibit.kind,
        title=title,
        heading=_heading(lines, at, signed=signed, verified=verified, simulated=simulated),
        signatures_verified=verified,
        simulated=simulated,
        at=at,
        fields=tuple(fields_of(inner, beside)),
        lines=tuple(lines),
    )


def _lines_of(outcome: CheckOutcome, tee: str) -> Iterator[Line]:
    part = outcome.part
    if outcome.error is not None and not outcome.signature:
        yield _write_broken(part, tee, outcome.error)
    elif outcome.error is not None:
        yield _write_broken(part, tee, outcome.error, name=_SIGNATURE)
        yield Line(
            part=part,
            policy="",
            name="everything else",
            got="",
            expected="",
            source="",
            standing="not reached",
            code=None,
            message="nothing below a signature that does not hold can be trusted",
        )
    elif outcome.vouched is not None:
        root = outcome.vouched.root
        yield _write_held(part, tee, _SIGNATURE, (root, root, "signature"), "met")
    elif outcome.claim is not None:
        claim = outcome.claim
        values = (claim.got, claim.expected, claim.source)
        standing: Standing = "any" if claim.outcome == "any" else "met"
        yield _write_held(part, tee, claim.name, values, standing)


def _write_held(
    part: str, tee: str, name: str, values: tuple[str, str, str], standing: Standing
) -> Line:
    got, expected, source = values
    return Line(
        part=part,
        policy=line_of(tee, part, name) if tee else "",
        name=name,
        got=got,
        expected=expected,
        source=source,
        standing=standing,
        code=None,
        message=None,
    )


def _write_broken(part: str, tee: str, error: EvidenceRefused, *, name: str | None = None) -> Line:
    check = error.check or error.code
    return Line(
        part=part,
        policy=line_of(tee, part, check) if tee else "",
        name=name or check,
        got="" if error.got is None else str(error.got),
        expected="" if error.expected is None else str(error.expected),
        source="",
        standing="broken",
        code=error.code,
        message=error.message,
    )


def _heading(
    lines: list[Line], at: int | None, *, signed: bool, verified: bool, simulated: bool
) -> str:
    if at is None:
        return "NOT VERIFIED (no time was given: --at)"
    if not signed:
        return "NOT VERIFIED (not evidence by itself)"
    if not verified:
        first = next(
            line for line in lines if line.name == _SIGNATURE and line.standing == "broken"
        )
        return f"NOT VERIFIED ({first.part}: {first.message}) [{first.code}]"
    broken = sum(line.standing == "broken" for line in lines)
    said = f"signature and root verified at {to_rfc3339(at)}"
    if broken:
        said += f"; {broken} of {len(lines)} comparisons fail"
    elif any(line.policy for line in lines):
        said += "; no policy line is broken"
    else:
        said += "; compared with no policy"
    return f"{SIMULATED_LABEL}; {said}" if simulated else said


def _show(line: Line) -> Iterator[str]:
    where = f"  [{line.policy}]" if line.policy else ""
    code = f"  {line.code}" if line.code else ""
    yield f"{_MARKS[line.standing]} {line.part}  {shorten(line.name)}{where}{code}"
    if line.message is not None:
        yield f"    {shorten(line.message)}"
    if line.got:
        yield f"    got       {shorten(line.got)}"
    if line.standing != "any" and line.expected and line.expected != line.got:
        yield f"    expected  {shorten(line.expected)}"
