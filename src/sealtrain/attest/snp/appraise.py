"""What a verified SEV-SNP guest is compared with: ``RULES``, one claim each.

They raise:
    DebugGuest: The host may read the guest's memory.
    MigratableGuest: A migration agent may move the guest.
    PlatformMismatch: Product, kind of key, chip, privilege level or threads.
    TcbStatusRefused: Firmware below the policy's floor, or not committed.
    MeasurementMismatch: Another image, or no author that the policy knows.
    RevocationUnknown: No valid revocation list where the policy requires one.
    CertificateRevoked: A certificate of the chain was revoked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sealtrain.attest.claims import Claim, among, claim_unchecked, equal
from sealtrain.attest.errors import (
    DebugGuest,
    MeasurementMismatch,
    MigratableGuest,
    PlatformMismatch,
    TcbStatusRefused,
)
from sealtrain.attest.rules import Rule
from sealtrain.attest.snp.parse import SnpReport, Tcb
from sealtrain.attest.snp.policy import ProductName, SnpRules, product_name
from sealtrain.attest.snp.revocation import check_revocation
from sealtrain.attest.snp.verify import REPORT, VerifiedReport
from sealtrain.base.clock import to_rfc3339

_CHAIN = "AMD certificate chain"
_UPDATED_BY = {
    "bootloader": "bootloader, tee and fmc come with a BIOS",
    "tee": "bootloader, tee and fmc come with a BIOS",
    "fmc": "bootloader, tee and fmc come with a BIOS",
    "snp": "snp comes with the SEV firmware (amd_sev_*.sbin), or with a BIOS",
    "microcode": "microcode comes with a BIOS, or with the host's microcode package",
}
"""Component of a TCB → what brings a newer one."""
_AMD_ENTERPRISE = "3704"
"""AMD's private enterprise number, an ``oemid`` by RFC 9711 §4.2.3.3."""


def eat(platform: VerifiedReport) -> dict[str, str]:
    """The guest in the words of RFC 9711."""
    report = platform.report
    found = {
        "hwmodel": f"AMD EPYC {platform.product}",
        "swversion": f"SEV-SNP firmware {report.current_firmware}; TCB {platform.reported_tcb}",
        "dbgstat": "enabled" if report.debug else "disabled-since-boot",
        "oemid": _AMD_ENTERPRISE,
    }
    if report.cpuid is not None:
        family, model, stepping = report.cpuid
        found["hwversion"] = f"family {family:#x} model {model:#x} stepping {stepping}"
    if not report.chip_id_masked:
        found["ueid"] = report.chip_id
    return found


def _debug(platform: VerifiedReport, policy: SnpRules, now: int) -> Claim:
    return equal(
        "debug",
        "allowed" if platform.report.debug else "forbidden",
        "forbidden",
        source=REPORT,
        error=DebugGuest,
        message="guest runs with debugging allowed: its host reads its memory",
        hint="start the guest with bit 19 of its policy clear",
    )


def _migration(platform: VerifiedReport, policy: SnpRules, now: int) -> Claim:
    return equal(
        "migration",
        "allowed" if platform.report.migratable else "forbidden",
        "forbidden",
        source=REPORT,
        error=MigratableGuest,
        message="guest may be moved by a migration agent, memory included",
        hint="start the guest with bit 18 of its policy clear and without an agent",
    )


def _product(platform: VerifiedReport, policy: SnpRules, now: int) -> Claim:
    milan = platform.product == "Milan"
    return among(
        "product",
        product_name(platform.product),
        policy.products,
        source=_CHAIN,
        error=PlatformMismatch,
        message="Milan reports can be forged by software (arXiv 2605.12990)"
        if milan
        else "guest runs on another processor generation",
        hint="move the guest to Genoa or Turin" if milan else None,
    )


def _signing_key(platform: VerifiedReport, policy: SnpRules, now: int) -> Claim:
    return among(
        "signing key",
        platform.report.signing_key,
        policy.signing_keys,
        source=_CHAIN,
        error=PlatformMismatch,
        message="report is signed by a kind of key that the policy does not allow",
        hint="a VLEK is shared by a cloud's machines; allow it only where that is meant",
    )


def _chip(platform: VerifiedReport, policy: SnpRules, now: int) -> Claim:
    report = platform.report
    name = "hidden" if report.chip_id_masked else report.chip_id
    return among(
        "chip",
        name,
        policy.chip_ids,
        source=REPORT,
        error=PlatformMismatch,
        message="platform hides its chip id; the policy lists chips"
        if report.chip_id_masked
        else "guest runs on a machine that the policy does not list",
    )


def _privilege(platform: VerifiedReport, policy: SnpRules, now: int) -> Claim:
    return equal(
        "VMPL",
        str(platform.report.vmpl),
        None if policy.vmpl == "any" else str(policy.vmpl),
        source=REPORT,
        error=PlatformMismatch,
        message="report was requested from another privilege level",
    )


def _threads(platform: VerifiedReport, policy: SnpRules, now: int) -> Claim:
    report = platform.report
    allowed = "allowed" if report.smt_allowed else "forbidden"
    return equal(
        "simultaneous threads",
        allowed,
        None if policy.smt == "any" else "forbidden",
        source=REPORT,
        error=PlatformMismatch,
        message="guest accepts that another guest shares its cores",
        hint="start the guest with bit 16 of its policy clear, on a machine with SMT off",
    )


def _floor(platform: VerifiedReport, policy: SnpRules) -> Tcb | None:
    name: ProductName = product_name(platform.product)
    listed = policy.minimum_tcb.get(name)
    return None if listed is None else listed.tcb


def _check_reported_tcb(platform: VerifiedReport, policy: SnpRules, now: int) -> Claim:
    return _at_least(
        "reported TCB",
        platform.reported_tcb,
        _floor(platform, policy),
        "platform's firmware is older than the policy's floor",
        "the machine's operator updates",
    )


def _launch_tcb(platform: VerifiedReport, policy: SnpRules, now: int) -> Claim:
    return _at_least(
        "launch TCB",
        platform.launch_tcb,
        _floor(platform, policy),
        "guest was launched by firmware older than the policy's floor",
        "restart the guest once the machine's operator has updated",
    )


def _check_committed_tcb(platform: VerifiedReport, policy: SnpRules, now: int) -> Claim:
    """What is reported can no longer be undone."""
    return _at_least(
        "committed TCB",
        platform.committed_tcb,
        platform.reported_tcb,
        "platform reports a TCB that it has not committed to and can leave again",
        "the machine's operator commits the firmware (SNP_COMMIT)",
        {},
    )


def _at_least(
    name: str,
    got: Tcb,
    floor: Tcb | None,
    message: str,
    hint: str,
    sources: Mapping[str, str] = _UPDATED_BY,
) -> Claim:
    """Compare with a floor; ``None`` is that of a product which the policy does not list.

    ``sources`` tells of each component what brings a newer one.
    """
    if floor is None:
        raise TcbStatusRefused(
            message,
            check=name,
            got=got,
            expected="no floor for this product",
            hint="write a floor for this product into minimum_tcb",
        )
    behind = got.below(floor)
    if behind:
        ours, theirs = got.parts(), floor.parts()
        raise TcbStatusRefused(
            message,
            check=name,
            got=", ".join(f"{part} {ours.get(part, 'missing')}" for part in behind),
            expected=", ".join(f"{part} at least {theirs.get(part, 'none')}" for part in behind),
            hint=": ".join((hint, "; ".join(dict.fromkeys(sources[part] for part in behind))))
            if sources
            else hint,
        )
    expected = f"at least {floor}"
    return Claim(name=name, got=str(got), expected=expected, source=REPORT, outcome="allowed")


def _mitigations(platform: VerifiedReport, policy: SnpRules, now: int) -> Claim:
    """Mitigations that the policy asks of the product were on at the launch and are on now."""
    report = platform.report
    got = [
        "not reported" if bits is None else f"{bits:016x}"
        for bits in (report.launch_mitigations, report.current_mitigations)
    ]
    shown = f"launch {got[0]}, current {got[1]}"
    if policy.mitigations == "any":
        return claim_unchecked("mitigations", shown, source=REPORT)
    asked = policy.mitigations.get(product_name(platform.product))
    wanted = None if asked is None else int(asked, 16)
    held_at = [
        wanted is not None and bits is not None and bits & wanted == wanted
        for bits in (report.launch_mitigations, report.current_mitigations)
    ]
    if not all(held_at):
        raise TcbStatusRefused(
            "platform lacks a mitigation that the policy asks for",
            check="mitigations",
            got=shown,
            expected="what no entry names"
            if wanted is None
            else f"at least {asked} in both: bit {_missing_bits(report, wanted)}",
            hint="the machine's operator updates firmware and microcode, then restart the guest"
            if report.current_mitigations is not None
            else f"reports of version {report.version} tell none: the operator updates the SEV "
            "firmware to one whose reports have version 5 or later",
        )
    return Claim(
        name="mitigations",
        got=shown,
        expected=f"at least {asked} in both",
        source=REPORT,
        outcome="allowed",
    )


def _missing_bits(report: SnpReport, wanted: int) -> str:
    """Numbers of the bits that are not set both at the launch and now."""
    on = (report.launch_mitigations or 0) & (report.current_mitigations or 0)
    lacking = wanted & ~on
    return ", ".join(str(bit) for bit in range(64) if lacking >> bit & 1)


def _check_extended_tcb(platform: VerifiedReport, policy: SnpRules, now: int) -> Claim:
    report, listed = platform.report, policy.extended_tcb
    found = report.extended_tcb or ("not reported",)
    if listed == "any":
        return claim_unchecked("extended TCB", ", ".join(found), source=REPORT)
    # One claim for all three: the first that is not listed, or the last.
    when = ("current", "launch", "committed")
    at = next((place for place, value in enumerate(found) if value not in listed), None)
    if at is not None:
        told = f"{when[at]} {found[at]}" if report.extended_tcb else found[at]
        raise TcbStatusRefused(
            "platform's firmware is of another extended TCB than the policy lists",
            check="extended TCB",
            got=told,
            expected=", ".join(listed[:8]),
            hint="the machine's operator updates firmware, or list the value once it was reviewed"
            if report.extended_tcb
            else f"reports of version {report.version} tell none: the operator updates the SEV "
            "firmware to one whose reports have version 6 or later",
        )
    shown = ", ".join(listed[:8]) + (", …" if len(listed) > 8 else "")
    return Claim(
        name="extended TCB", got=found[-1], expected=shown, source=REPORT, outcome="allowed"
    )


def _flags(platform: VerifiedReport, policy: SnpRules, now: int) -> Claim:
    found = platform.report.platform_flags
    shown = ", ".join(found) or "none"
    if policy.platform_flags == "any":
        return claim_unchecked("platform flags", shown, source=REPORT)
    expected = ", ".join(policy.platform_flags)
    if not set(policy.platform_flags) <= set(found):
        raise PlatformMismatch(
            "platform is not set up as the policy asks",
            check="platform flags",
            got=shown,
            expected=expected,
            hint="the machine's operator changes its BIOS settings or updates its firmware",
        )
    return Claim(
        name="platform flags", got=shown, expected=expected, source=REPORT, outcome="allowed"
    )


def _image(platform: VerifiedReport, policy: SnpRules, now: int) -> Claim:
    return among(
        "guest image",
        platform.report.measurement,
        policy.measurements,
        source=REPORT,
        error=MeasurementMismatch,
        message="guest booted another image or machine shape than any the policy lists",
        hint="recompute reference values for this image, CPU count and kernel line",
    )


def _check_signer(platform: VerifiedReport, policy: SnpRules, now: int) -> Claim:
    """The key that signed the launch: the ID key, or the author key above it."""
    report = platform.report
    found = [report.id_key_digest]
    if report.author_key_enabled:
        found.append(report.author_key_digest)
    if policy.id_keys == "any":
        return claim_unchecked("launch authority", found[-1], source=REPORT)
    known = next((digest for digest in found if digest in policy.id_keys), found[-1])
    return among(
        "launch authority",
        known,
        policy.id_keys,
        source=REPORT,
        error=MeasurementMismatch,
        message="launch was authorised by no key that the policy lists",
    )


def _revocation(platform: VerifiedReport, policy: SnpRules, now: int) -> Claim:
    if policy.revocation == "any":
        return claim_unchecked("revocation", "not looked at", source=_CHAIN)
    made = check_revocation(platform.certificates, platform.crl, now=now)
    return Claim(
        name="revocation",
        got="not revoked",
        expected="not revoked",
        source=f"AMD revocation list of {to_rfc3339(made)}",
        outcome="equal",
    )


RULES: Final = (
    Rule(name="debug", compare=_debug),
    Rule(name="migration", compare=_migration),
    Rule(name="product", compare=_product),
    Rule(name="signing key", compare=_signing_key),
    Rule(name="chip", compare=_chip),
    Rule(name="VMPL", compare=_privilege),
    Rule(name="simultaneous threads", compare=_threads),
    Rule(name="reported TCB", compare=_check_reported_tcb),
    Rule(name="launch TCB", compare=_launch_tcb),
    Rule(name="committed TCB", compare=_check_committed_tcb),
    Rule(name="mitigations", compare=_mitigations),
    Rule(name="extended TCB", compare=_check_extended_tcb),
    Rule(name="platform flags", compare=_flags),
    Rule(name="guest image", compare=_image),
    Rule(name="launch authority", compare=_check_signer),
    Rule(name="revocation", compare=_revocation),
)
"""In the order of decisions. A report carries no date of its own; its challenge is its age."""
