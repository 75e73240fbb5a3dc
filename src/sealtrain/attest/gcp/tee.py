"""dstack on Google's TDX machines, for the rest of attest."""

from __future__ import annotations

from typing import Literal

from sealtrain.attest.dstack.tee import AgentEvidence
from sealtrain.attest.gcp.policy import COMMENTS, LINES, PRESETS, SIMULATED, GcpPolicy
from sealtrain.attest.tee import Tee
from sealtrain.attest.tpm.form import TpmShown

__all__ = ["TEE", "GcpEvidence"]


class GcpEvidence(AgentEvidence):
    """A dstack guest whose machine has a vTPM of Google's besides."""

    tee: Literal["dstack-gcp-tdx"]
    tpm: TpmShown


TEE = Tee(
    name="dstack-gcp-tdx",
    of="dstack",
    folder="gcp",
    vendor="intel",
    vendor_root="Intel's root",
    evidence=GcpEvidence,
    policy=GcpPolicy,
    kinds=("dstack-gcp-quote",),
    dcap=True,
    lines=LINES,
    comments=COMMENTS,
    presets=PRESETS,
    simulated=SIMULATED,
)
