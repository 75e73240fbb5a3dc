"""What a simulator plays: a TEE, accelerators, an age of agent, and perhaps one lie."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

from sealtrain.attest.nvidia.policy import GpuMode
from sealtrain.errors import UsageError
from sealtrain_rehearsal.simulator import clouds, dstack_platforms, faults, gpu, nitro, snp

SimulatedTee = Literal[
    "dstack",
    "tdx",
    "nitro",
    "snp",
    "dstack-gcp-tdx",
    "dstack-aws-nitro-tpm",
    "dstack-amd-sev-snp",
    "azure-snp",
    "azure-tdx",
    "gcp-snp",
    "test-vtpm",
    "test-nitro",
]
GPU_FAULT: Final = "gpu-"
"""Before the names of lies that accelerators tell."""
_OF_SEVERAL = ("missing-gpu", "same-gpu-twice", "mixed-modes")
_OF_SWITCHES = ("switch-missing", "other-switch", "other-gpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One simulated machine.

    Attributes:
        tee: A dstack guest on TDX, a TDX guest without dstack, a Nitro enclave, a SEV-SNP guest, a
            dstack guest on Google Cloud, on EC2 with a NitroTPM, or on SEV-SNP, a machine of Azure
            with SEV-SNP or TDX, of Google with SEV-SNP, one with a TPM under a test root, or
            an enclave under one.
        gpus: Accelerators, 0 to 32.
        switches: NVSwitches beside them, 0 to 32.
        emit_events: Play an agent of 0.5, which measures the app's own events.
        fault: A lie to tell, one of ``fault_meanings``; ``None`` for the truth.
    """

    tee: SimulatedTee = "dstack"
    gpus: int = 0
    switches: int = 0
    emit_events: bool = False
    fault: str | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be played.

        Raises:
            UsageError: No such TEE, or no such lie of this machine.
        """
        if self.tee not in get_args(SimulatedTee):
            raise UsageError(
                "no such simulated TEE", got=self.tee, expected=" or ".join(get_args(SimulatedTee))
            )
        known = fault_meanings(self.tee, gpus=self.gpus, switches=self.switches)
        if self.fault is not None and self.fault not in known:
            raise UsageError("no such fault", got=self.fault, expected=", ".join(known))

    @property
    def mode(self) -> GpuMode:
        """How the accelerators protect what they say to each other."""
        if self.switches:
            return "protected_pcie"
        return "single" if self.gpus < 2 else "mpt"

    @property
    def gpu_fault(self) -> str | None:
        """The lie of the accelerators."""
        told = self.fault or ""
        return told.removeprefix(GPU_FAULT) if told.startswith(GPU_FAULT) else None

    @property
    def cpu_fault(self) -> str | None:
        """The lie of the guest or of its processor's vendor."""
        return None if self.gpu_fault is not None else self.fault


def fault_meanings(tee: SimulatedTee, *, gpus: int, switches: int) -> dict[str, str]:
    """Lies a machine can be told to tell, with the refusal each must end in."""
    without_log = {
        name: text for name, text in faults.FAULT_MEANINGS.items() if name != "replayed-log"
    }
    of_cpu = {
        "dstack": faults.FAULT_MEANINGS,
        "tdx": without_log,
        "nitro": nitro.FAULT_MEANINGS,
        "snp": snp.SNP_FAULT_MEANINGS,
        "dstack-gcp-tdx": {**faults.FAULT_MEANINGS, **clouds.TPM_FAULT_MEANINGS},
        "dstack-aws-nitro-tpm": clouds.NITRO_TPM_FAULT_MEANINGS,
        "dstack-amd-sev-snp": {**snp.SNP_FAULT_MEANINGS, **dstack_platforms.LAUNCH_FAULT_MEANINGS},
        "azure-snp": {**snp.SNP_FAULT_MEANINGS, **clouds.AZURE_FAULT_MEANINGS},
        "azure-tdx": {**without_log, **clouds.AZURE_FAULT_MEANINGS},
        "gcp-snp": {**snp.SNP_FAULT_MEANINGS, **clouds.GOOGLE_SNP_FAULT_MEANINGS},
        "test-vtpm": clouds.TEST_VTPM_FAULT_MEANINGS,
        "test-nitro": clouds.TEST_NITRO_FAULT_MEANINGS,
    }[tee]
    told = {} if gpus == 0 else dict(gpu.FAULT_MEANINGS)
    for name in (*(_OF_SEVERAL if gpus < 2 else ()), *(_OF_SWITCHES if switches == 0 else ())):
        told.pop(name, None)
    return {**of_cpu, **{f"{GPU_FAULT}{name}": text for name, text in told.items()}}
