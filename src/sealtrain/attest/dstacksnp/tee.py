"""dstack on SEV-SNP, for the rest of attest."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import StringConstraints

from sealtrain.attest.dstacksnp.policy import COMMENTS, LINES, PRESETS, SIMULATED, DstackSnpPolicy
from sealtrain.attest.snp.tee import ReportEvidence
from sealtrain.attest.tee import Tee

__all__ = ["TEE", "DstackSnpEvidence"]


class DstackSnpEvidence(ReportEvidence):
    """A dstack guest on SEV-SNP: the report, and the text that its HOST_DATA commits to."""

    tee: Literal["dstack-amd-sev-snp"]
    mr_config: Annotated[str, StringConstraints(min_length=2, max_length=64 << 10)]


TEE = Tee(
    name="dstack-amd-sev-snp",
    of="dstack",
    folder="dstacksnp",
    vendor="amd",
    vendor_root="AMD's root",
    evidence=DstackSnpEvidence,
    policy=DstackSnpPolicy,
    kinds=("dstack-snp-report",),
    lines=LINES,
    comments=COMMENTS,
    presets=PRESETS,
    simulated=SIMULATED,
)
