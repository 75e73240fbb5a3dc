"""Options that describe the machine of a simulated guest, as commands take and hand them on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

Tee = Annotated[
    str,
    typer.Option(
        help="What to play: dstack (on TDX), tdx, nitro, snp, dstack-gcp-tdx (dstack on Google "
        "Cloud), dstack-aws-nitro-tpm (dstack on EC2), dstack-amd-sev-snp, azure-snp, azure-tdx, "
        "gcp-snp, test-vtpm (a TPM under a test root) or test-nitro (an enclave under one)."
    ),
]
Gpus = Annotated[int, typer.Option(min=0, max=32, help="Simulated GPUs of the machine.")]
Switches = Annotated[int, typer.Option(min=0, max=32, help="NVSwitches beside the GPUs.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedMachineOptions:
    """The machine that a simulated guest is on."""

    tee: Tee = "dstack"
    gpus: Gpus = 0
    switches: Switches = 0

    @property
    def words(self) -> tuple[str, ...]:
        """The options as ``sealtrain simulator serve`` and ``deploy run`` take them."""
        return (
            *("--tee", self.tee),
            *("--gpus", str(self.gpus)),
            *("--switches", str(self.switches)),
        )
