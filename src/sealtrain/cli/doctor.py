"""``doctor``: what this machine can prove, what a policy would refuse, and how to fix it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sealtrain.attest.bundle import Attachments
from sealtrain.attest.doctor.look import look
from sealtrain.attest.doctor.policy import policy_findings
from sealtrain.attest.guest import load_gpu_collateral
from sealtrain.attest.tdx.collect import load_collateral
from sealtrain.base.clock import system_clock
from sealtrain.cli.exhibit import policy_of
from sealtrain.cli.output import Json, emit
from sealtrain.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sealtrain.attest.doctor.finding import Finding


def doctor(
    policy: Annotated[
        str | None,
        typer.Option(help="Appraisal policy (YAML), or preset:NAME: say for each line what holds."),
    ] = None,
    collateral: Annotated[
        str | None, typer.Option(help="Collateral of this machine's TDX quotes, file:PATH.")
    ] = None,
    gpu_collateral: Annotated[
        str | None, typer.Option(help="Collateral of its accelerators, file:PATH.")
    ] = None,
    root: Annotated[Path, typer.Option(help="Folder to take for the root of the machine.")] = Path(
        "/"
    ),
    as_json: Json = False,
) -> None:
    """Look at this machine: its TEE, GPUs, clock, memory and software.

    Says what a policy would refuse, and how to fix it; in a dstack guest also what its agent, log,
    TPM and disk lack before keys are asked for. Nothing is sent and nothing is executed; it is a
    report, so it exits 0 whatever it finds.
    """
    if not root.is_dir():
        raise UsageError("no such folder", check="root", got=str(root), expected="a folder")
    rules = None if policy is None else policy_of(policy)
    beside = Attachments(
        collateral=None if collateral is None else load_collateral(collateral),
        gpu_collateral=load_gpu_collateral(gpu_collateral),
    )
    now = system_clock()
    seen = look(root, now=now)
    findings = list(seen.findings)
    if rules is not None:
        findings += policy_findings(seen, rules, beside, now)
    emit(
        as_json,
        {"tee": seen.tee, "findings": [finding.to_dict() for finding in findings]},
        _lines(findings),
    )


def _lines(findings: Sequence[Finding]) -> Iterator[str]:
    topic = ""
    for finding in findings:
        if finding.topic != topic:
            topic = finding.topic
            yield topic
        found = finding.found if len(finding.found) <= 100 else f"{finding.found[:99]}…"
        yield f"  {finding.level:<8} {finding.name:<34} {found}".rstrip()
        if finding.refused:
            yield f"  {'':<8}   refused: {finding.refused}"
        if finding.fix:
            yield f"  {'':<8}   fix: {finding.fix}"
