"""Appraisal of a TDX quote: TCB, advisories, collateral, machine, image (spec/evidence.md §6)."""

from __future__ import annotations

from typing import Final

from sealtrain.attest.claims import Claim, among, claim_unchecked, equal
from sealtrain.attest.errors import (
    CollateralExpired,
    DebugGuest,
    MeasurementMismatch,
    MigratableGuest,
    PlatformMismatch,
    TcbStatusRefused,
)
from sealtrain.attest.rules import Rule
from sealtrain.attest.tdx.policy import QuotePolicy
from sealtrain.attest.tdx.security_versions import name_shortfalls
from sealtrain.attest.tdx.verify import QUOTE, VerifiedQuote

_COLLATERAL, _CERTIFICATE = "DCAP collateral", "PCK certificate"


def eat(signed: VerifiedQuote) -> dict[str, str]:
    """Claims by their RFC 9711 names."""
    return {
        "ueid": signed.ppid,
        "hwmodel": f"Intel TDX, FMSPC {signed.fmspc}",
        "dbgstat": "disabled",
    }


def _status(signed: VerifiedQuote, policy: QuotePolicy, now: int) -> Claim:
    status, listed = signed.tcb_status, policy.tcb_status
    if status not in listed:
        got, expected, hint = name_shortfalls(status, signed.levels, listed)
        raise TcbStatusRefused(
            "platform's TCB status is not acceptable",
            check="TCB status",
            got=got,
            expected=expected,
            hint=hint,
        )
    shown = ", ".join(listed)
    return Claim(
        name="TCB status", got=status, expected=shown, source=_COLLATERAL, outcome="allowed"
    )


def _advisories(signed: VerifiedQuote, policy: QuotePolicy, now: int) -> Claim:
    got = ", ".join(signed.advisories) or "none"
    if policy.advisories == "any":
        return claim_unchecked("advisories", got, source=_COLLATERAL)
    allowed = () if policy.advisories == "none" else policy.advisories
    expected = ", ".join(allowed) or "none"
    if not set(signed.advisories) <= set(allowed):
        raise TcbStatusRefused(
            "platform has open advisories that the policy does not accept",
            check="advisories",
            got=", ".join(found for found in signed.advisories if found not in allowed),
            expected=expected,
            hint=name_shortfalls(signed.tcb_status, signed.levels, ("UpToDate",))[2]
            + "; or read the advisories, and list those that the policy shall accept",
        )
    return Claim(
        name="advisories", got=got, expected=expected, source=_COLLATERAL, outcome="allowed"
    )


def _collateral_floor(signed: VerifiedQuote, policy: QuotePolicy, now: int) -> Claim:
    got, floor = signed.tcb_evaluation_data_number, policy.min_tcb_evaluation_data_number
    if got < floor:
        raise TcbStatusRefused(
            "collateral is older than the policy's floor",
            check="collateral floor",
            got=got,
            expected=f"at least {floor}",
            hint="fetch collateral anew; a service that is behind gives older collateral",
        )
    return Claim(
        name="collateral floor",
        got=str(got),
        expected=f"at least {floor}",
        source=_COLLATERAL,
        outcome="allowed",
    )


def _collateral_age(signed: VerifiedQuote, policy: QuotePolicy, now: int) -> Claim:
    age, most = now - signed.collateral_issued, policy.max_collateral_age_s
    if most == "any":
        return claim_unchecked("collateral age", f"{age} s", source=_COLLATERAL)
    if age > most:
        raise CollateralExpired(
            "collateral was issued too long ago for this policy",
            check="collateral age",
            got=f"{age} s",
            expected=f"at most {most} s",
            hint="fetch fresh collateral",
        )
    return Claim(
        name="collateral age",
        got=f"{age} s",
        expected=f"at most {most} s",
        source=_COLLATERAL,
        outcome="allowed",
    )


def _debug(signed: VerifiedQuote, policy: QuotePolicy, now: int) -> Claim:
    return equal(
        "debug",
        "on" if signed.quote.debug else "off",
        "off",
        source=QUOTE,
        error=DebugGuest,
        message="guest runs in debug mode",
    )


def _migration(signed: VerifiedQuote, policy: QuotePolicy, now: int) -> Claim:
    return equal(
        "migration",
        "possible" if any(signed.quote.service_td) else "impossible",
        "impossible",
        source=QUOTE,
        error=MigratableGuest,
        message="guest can be migrated by a service guest",
    )


def _machine(signed: VerifiedQuote, policy: QuotePolicy, now: int) -> Claim:
    return among(
        "machine",
        signed.ppid,
        policy.platform_ids,
        source=_CERTIFICATE,
        error=PlatformMismatch,
        message="guest runs on a machine that the policy does not list",
    )


def _measurements(signed: VerifiedQuote, policy: QuotePolicy, now: int) -> Claim:
    quote = signed.quote
    found = (quote.mrtd, *quote.rtmr[:3])
    got = " ".join(
        f"{name} {value}"
        for name, value in zip(("mrtd", "rtmr0", "rtmr1", "rtmr2"), found, strict=True)
    )
    if policy.measurements == "any":
        return claim_unchecked("guest image", got, source=QUOTE)
    named = quote.rtmr[0]
    for measurement in policy.measurements:
        by_log = measurement.rtmr0 == "log" and signed.firmware_logged
        if found == (
            measurement.mrtd,
            named if by_log else measurement.rtmr0,
            measurement.rtmr1,
            measurement.rtmr2,
        ):
            expected = got.replace(f"rtmr0 {named}", "rtmr0 log") if by_log else got
            return Claim(
                name="guest image", got=got, expected=expected, source=QUOTE, outcome="equal"
            )
    raise MeasurementMismatch(
        "guest booted another image or machine shape than any the policy lists",
        check="guest image",
        got=got,
        expected=f"one of {len(policy.measurements)} reference values",
        hint="recompute reference values for this image, CPU count, memory and GPU count",
    )


RULES: Final = (
    Rule(name="TCB status", compare=_status),
    Rule(name="advisories", compare=_advisories),
    Rule(name="collateral floor", compare=_collateral_floor),
    Rule(name="collateral age", compare=_collateral_age),
    Rule(name="debug", compare=_debug),
    Rule(name="migration", compare=_migration),
    Rule(name="machine", compare=_machine),
    Rule(name="guest image", compare=_measurements),
)
"""What a quote is compared with, in the order of decisions."""
