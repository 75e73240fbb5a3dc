"""The parts of an exhibit: how each is verified, and what it is then compared with.

A part is what one device signed: ``cpu0``, ``gpu0``, ``switch0``…; ``gpus`` is what holds for
accelerators together. ``verify`` leads its signature to a root at a moment; the comparisons that
follow are made by ``attest.engine``.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import NoReturn

from sealtrain.attest import forms
from sealtrain.attest.bundle import Attachments
from sealtrain.attest.claims import single
from sealtrain.attest.engine import check_tier, other_tee, statement_part
from sealtrain.attest.errors import GpuSetRefused, PlatformMismatch
from sealtrain.attest.evidence import Evidence
from sealtrain.attest.explain.accelerators import (
    explain_devices,
    one_device,
    reference_part,
    verdict_part,
)
from sealtrain.attest.facts import Situation
from sealtrain.attest.parts import Part, Vouched
from sealtrain.attest.policy import AppraisalPolicy
from sealtrain.attest.verify import check_shown, own_part
from sealtrain.base.digests import sha256_hex
from sealtrain.base.tiers import tier_of

_HALF = 32


def parts_of(
    exhibit: forms.Exhibit,
    beside: Attachments,
    policy: AppraisalPolicy | None,
    now: int,
    *,
    every_line: bool = False,
) -> tuple[Part, ...]:
    """Every signed part of an exhibit.

    Args:
        exhibit: What the file is; of a bundle, what it holds.
        beside: What lies beside it.
        policy: What it is compared with; ``None`` for signatures and roots alone.
        now: Verification time, seconds since 1970.
        every_line: Leave judgements that a verifier could make at once to comparisons.

    Returns:
        Nothing where the exhibit is no evidence.
    """
    document, named = beside.app_compose, beside.compose_hash
    at = Situation(
        policy=policy,
        root=None if policy is None else policy.simulator_root,
        now=now,
        nonce=beside.nonce,
        compose_hashes=(
            *(() if document is None else (sha256_hex(document),)),
            *(() if named is None else (named,)),
        ),
        every_line=every_line,
    )
    match exhibit:
        case forms.OwnEvidence(evidence=evidence):
            return _own(evidence, beside, at)
        case forms.StatementExhibit():
            return (_of_its_tee(statement_part(exhibit, beside, at), exhibit.tee, policy),)
        case forms.SgxQuote(raw=raw):
            return (Part(name="cpu0", verify=partial(_refuse_enclave, raw)),)
        case forms.Gpus(devices=devices, claims=claims):
            return explain_devices((*devices, *beside.switches), claims, beside.gpu_collateral, at)
        case forms.QuotedGpus():
            return _explain_quote(exhibit, beside, at)
        case forms.GpuReportFile(report=report):
            return one_device(
                report, beside.certificates, beside.switches, beside.gpu_collateral, at
            )
        case forms.RemoteVerdictFile(token=token):
            return (verdict_part(token, beside.gpu_collateral, at),)
        case forms.ReferenceValues(raw=raw, rim=rim):
            return (reference_part(raw, rim, at),)
    return ()


def _own(evidence: Evidence, beside: Attachments, at: Situation) -> tuple[Part, ...]:
    """Sealtrain's own document: the same parts, bound to one conversation and document."""
    said = beside.binding
    here = at.with_(nonce=None if said is None else said.report_data(evidence.gpu_digest))
    offered = replace(own_part(evidence, beside, here), last=True)
    rules = None if at.policy is None else at.policy.gpu
    if at.policy is not None:
        if evidence.cpu.tee == at.policy.cpu.tee:
            # It needs no signature: a policy's reader sees it beside the platform.
            tier = single(partial(check_tier, tier_of(evidence.cpu.tee), at.policy))
            offered = replace(offered, before=(*offered.before, tier))
        try:
            check_shown(evidence, at.policy)
        except GpuSetRefused as error:
            return offered, Part(name="gpus", verify=partial(_refuse, error))
    if evidence.gpu is None:
        return (offered,)
    if rules == "any":
        return (offered,)
    gpu_collateral = beside.gpu_collateral
    if gpu_collateral is None and evidence.gpu_collateral is not None:
        gpu_collateral = evidence.gpu_collateral.without_verdict()
    there = at.with_(nonce=None if said is None else said.gpu_nonce())
    return offered, *explain_devices(
        evidence.gpu.devices, evidence.gpu.claims, gpu_collateral, there
    )


def _explain_quote(shown: forms.QuotedGpus, beside: Attachments, at: Situation) -> tuple[Part, ...]:
    """The quote, then accelerators whose nonce is the second half of what it signed."""
    first, second = shown.report_data[:_HALF], shown.report_data[_HALF:]
    named = at.nonce
    if named is not None and len(named) == _HALF:
        named = first + named  # the first half is the service's own, such as its key's hash
    cpu = statement_part(shown.quote, beside, at.with_(nonce=named))
    devices = (*shown.devices, *beside.switches)
    there = at.with_(nonce=second)
    gpus = explain_devices(devices, None, beside.gpu_collateral, there)
    return _of_its_tee(cpu, shown.quote.tee, at.policy), *gpus


def _of_its_tee(part: Part, tee: str, policy: AppraisalPolicy | None) -> Part:
    """The same; TEE and tier are the first comparisons below its signature."""
    if policy is None:
        return part
    first = single(partial(check_tier, tier_of(tee), policy))
    if policy.cpu.tee != tee:
        first = other_tee(tee, policy.cpu.tee)

    def verify() -> Vouched:
        vouched = part.verify()
        return replace(vouched, groups=(first, *vouched.groups))

    return replace(part, verify=verify)


def _refuse_enclave(raw: bytes) -> NoReturn:
    raise PlatformMismatch(
        "quote is not of a TDX guest",
        check="quote kind",
        got=f"SGX, version {int.from_bytes(raw[:2], 'little')}",
        expected="TDX",
    )


def _refuse(error: GpuSetRefused) -> NoReturn:
    raise error
