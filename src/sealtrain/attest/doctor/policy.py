"""Which lines of a policy a machine can meet, before a verifier has seen anything of it.

Lines are compared by the verifiers' own checks. What only a vendor's collateral tells needs it;
without it a TDX quote's own words are compared and the rest is said to be open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from sealtrain.attest.bundle import Attachments
from sealtrain.attest.claims import Claim
from sealtrain.attest.doctor.finding import ASKED, Finding
from sealtrain.attest.doctor.look import Seen
from sealtrain.attest.dstack.exhibit import DstackQuote
from sealtrain.attest.explain.explanation import Line, explain, line_of
from sealtrain.attest.forms import Gpus
from sealtrain.attest.nvidia.policy import NvidiaPolicy
from sealtrain.attest.nvidia.topology import count_check, protection_checks
from sealtrain.attest.policy import AppraisalPolicy
from sealtrain.attest.rules import Rule
from sealtrain.attest.tdx.exhibit import Quote
from sealtrain.attest.tdx.policy import QuotePolicy
from sealtrain.base.tiers import or_stronger, reaches, tier_of
from sealtrain.errors import EvidenceRefused, TierRefused

_UNSIGNED = ("debug", "migration", "guest image")
"""What a quote says without any collateral."""


def policy_findings(
    seen: Seen, policy: AppraisalPolicy, beside: Attachments, now: int
) -> list[Finding]:
    """One finding for each line of a policy.

    Args:
        seen: The machine.
        policy: Its lines.
        beside: Collateral at hand.
        now: Time of the comparison, seconds since 1970.
    """
    told: dict[str, list[Finding]] = {}
    for finding in (*_platform(seen, policy), *_cpu(seen, policy, beside, now)):
        told.setdefault(finding.name, []).append(finding)
    for finding in _gpu(seen, policy, beside, now):
        told.setdefault(finding.name, []).append(finding)
    lines = dict(_lines(policy))
    findings = []
    for name, wanted in lines.items():
        own = told.pop(name, [])
        worst = next((finding for finding in own if finding.level == "refused"), None)
        findings.append(worst or (own[0] if own else _open(name, wanted, seen, policy)))
    return findings


def _lines(policy: AppraisalPolicy) -> Iterator[tuple[str, Any]]:
    document: Any = policy.to_dict()
    for name, value in document.items():
        if name in ("cpu", "gpu") and isinstance(value, dict):
            yield from ((f"{name}.{inner}", wanted) for inner, wanted in value.items())
        elif name != "version":
            yield name, value


def _platform(seen: Seen, policy: AppraisalPolicy) -> Iterator[Finding]:
    if seen.tee is None:
        yield _report_refused(
            "platform", "no TEE", f"{policy.cpu.tee} is asked for", "platform-mismatch"
        )
    elif seen.tee != policy.cpu.tee:
        said = f"{policy.cpu.tee} is asked for"
        yield _report_refused("platform", seen.tee, said, "platform-mismatch")
        yield _report_refused("cpu.tee", seen.tee, said, "platform-mismatch")
    else:
        # The line `root` compares whether hardware signed it.
        yield _report_met("platform", policy.platform)
        yield _report_met("cpu.tee", seen.tee)
    if seen.tee is not None:
        proven = tier_of(seen.tee)
        if reaches(proven, policy.tier):
            yield _report_met("tier", proven)
        else:
            yield _report_refused(
                "tier", proven, f"{or_stronger(policy.tier)} is asked for", TierRefused.code
            )


def _cpu(seen: Seen, policy: AppraisalPolicy, beside: Attachments, now: int) -> Iterator[Finding]:
    if seen.shown is None or seen.tee != policy.cpu.tee:
        return
    exhibit = seen.shown.exhibit
    if isinstance(exhibit, Quote | DstackQuote) and beside.collateral is None:
        yield from _examine_unsigned(exhibit, policy, now)
        return
    given = replace(beside, certificates=seen.shown.certificates, crl=seen.shown.crl)
    yield from _explain_lines(explain(exhibit, given, policy, now).lines)


def _examine_unsigned(
    quote: Quote | DstackQuote, policy: AppraisalPolicy, now: int
) -> Iterator[Finding]:
    """What a quote says of itself; that it says so truly is for collateral to show."""
    from sealtrain.attest.dstack import appraise as dstack
    from sealtrain.attest.dstack.policy import DstackPolicy
    from sealtrain.attest.dstack.verify import MeasuredQuote, describe_unmeasured, replay_log
    from sealtrain.attest.tdx import appraise as tdx
    from sealtrain.attest.tdx.verify import check_root

    rules = policy.cpu
    if not isinstance(rules, QuotePolicy):
        return
    simulated = False
    try:
        simulated = check_root(quote.quote, policy.simulator_root)
    except EvidenceRefused as error:
        yield _report_broken("root", error)
    else:
        yield _report_met("root", "as the policy names it, if its signatures hold")
    open_words = "not known without collateral"
    log = quote.log if isinstance(quote, DstackQuote) else ()
    read = MeasuredQuote(
        measured=describe_unmeasured(log),
        quote=quote.quote,
        simulated=simulated,
        tcb_status=open_words,
        advisories=(),
        tcb_evaluation_data_number=0,
        collateral_issued=now,
        ppid=open_words,
        fmspc=open_words,
    )
    for finding in _apply_rules(tdx.RULES, read, rules, now):
        if finding.name in {line_of(rules.tee, "cpu0", name) for name in _UNSIGNED}:
            yield finding
    if isinstance(quote, DstackQuote) and isinstance(rules, DstackPolicy):
        try:
            measured = replay_log(quote.log, quote.quote.rtmr, quote.quote.mr_config_id)
        except EvidenceRefused as error:
            yield _report_broken("cpu.measurements", error)
        else:
            yield from _apply_rules(dstack.MEASURED_RULES, measured, rules, now)


def _gpu(seen: Seen, policy: AppraisalPolicy, beside: Attachments, now: int) -> Iterator[Finding]:
    rules = policy.gpu
    count = 0 if seen.driver is None else seen.driver.gpu_count
    if not isinstance(rules, NvidiaPolicy):
        if rules == "none" and count:
            yield _report_refused("gpu", f"{count} GPUs", "none is asked for", "gpu-set-refused")
        else:
            yield _report_met("gpu", f"{count} GPUs" if count else "none")
        return
    if seen.driver is None:
        said = f"{rules.gpu_count} are asked for"
        yield _report_refused("gpu.gpu_count", "no GPU", said, "gpu-set-refused")
        return
    if seen.gpus is not None:
        exhibit = Gpus(raw=seen.gpus.to_bytes(), devices=seen.gpus.devices, claims=seen.gpus.claims)
        given = replace(beside, nonce=ASKED.gpu_nonce())
        yield from _explain_lines(explain(exhibit, given, policy, now).lines)
        return
    checks = [*protection_checks(seen.driver), lambda: count_check("GPUs", count, rules.gpu_count)]
    yield from _run_checks(checks, policy.cpu.tee, part="gpus")


def _explain_lines(lines: Iterable[Line]) -> Iterator[Finding]:
    for line in lines:
        if not line.policy:
            continue
        if line.standing == "broken":
            yield _report_refused(line.policy, line.got, line.message or line.name, line.code or "")
        elif line.standing != "not reached":
            yield _report_met(line.policy, line.got)


def _apply_rules(
    table: Iterable[Rule], statement: object, rules: QuotePolicy, now: int
) -> Iterator[Finding]:
    for rule in table:
        yield from _run_checks([partial(rule.compare, statement, rules, now)], rules.tee)


def _run_checks(
    checks: Iterable[Callable[[], Claim | None]], tee: str, *, part: str = "cpu0"
) -> Iterator[Finding]:
    for check in checks:
        try:
            claim = check()
        except EvidenceRefused as error:
            yield _report_broken(line_of(tee, part, error.check or ""), error)
        else:
            if claim is not None:
                yield _report_met(line_of(tee, part, claim.name), claim.got)


def _report_met(name: str, found: str) -> Finding:
    return Finding(topic="policy", name=name, level="ok", found=found)


def _report_broken(name: str, error: EvidenceRefused) -> Finding:
    got = "" if error.got is None else str(error.got)
    return Finding(
        topic="policy",
        name=name,
        level="refused",
        found=got,
        refused=f"{error.message} ({error.code})",
        fix=error.hint or "",
    )


def _report_refused(name: str, found: str, message: str, code: str) -> Finding:
    return Finding(
        topic="policy", name=name, level="refused", found=found, refused=f"{message} ({code})"
    )


def _open(name: str, wanted: Any, seen: Seen, policy: AppraisalPolicy) -> Finding:
    if wanted == "any":
        return _report_met(name, "any: not compared")
    return Finding(topic="policy", name=name, level="note", found=_why_open(name, seen, policy))


def _why_open(name: str, seen: Seen, policy: AppraisalPolicy) -> str:
    if name.startswith("gpu."):
        if seen.driver is None:
            return "no accelerator here"
        if seen.gpus is None:
            return "told by reports, which the GPUs do not make"
        return "told by collateral of the GPUs: --gpu-collateral file:PATH"
    if seen.shown is None or seen.tee != policy.cpu.tee:
        return "no such evidence here"
    if isinstance(seen.shown.exhibit, Quote | DstackQuote):
        return "told by collateral: --collateral file:PATH"
    return "a verifier decides"
