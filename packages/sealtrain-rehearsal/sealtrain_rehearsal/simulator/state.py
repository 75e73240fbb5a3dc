"""The simulator's state folder: what must stay the same over restarts.

``seed`` (32 bytes in hex, mode 0600) makes the PKI and every guest key; ``root.der`` and
``collateral.json`` are derived from it and public. Several guests may share one folder.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sealtrain.attest.evidence import DCAP_TEES
from sealtrain.attest.policy import AppraisalPolicy
from sealtrain.attest.presets import insecure_simulator_policy
from sealtrain.base.encoding import from_hex
from sealtrain.base.files import atomic_write, read_bounded
from sealtrain.base.secret import Random, Secret
from sealtrain.errors import AlreadyExists, DataInvalid, KeyFileInvalid
from sealtrain_rehearsal.simulator.faults import FAULTS
from sealtrain_rehearsal.simulator.gpu import SimulatedGpus
from sealtrain_rehearsal.simulator.machine import Machine
from sealtrain_rehearsal.simulator.nitro import SimulatedNitroPki
from sealtrain_rehearsal.simulator.pki import SimulatedPki
from sealtrain_rehearsal.simulator.snp import SimulatedSnp

_SEED_BYTES = 32
_EVALUATION_NUMBER = 20
"""Above the floor of policies for hardware."""
HONEST = Machine()
"""A dstack guest without accelerators that tells the truth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatorState:
    """An opened state folder."""

    folder: Path
    seed: Secret
    pki: SimulatedPki

    @property
    def nitro(self) -> SimulatedNitroPki:
        """The vendor of simulated enclaves."""
        return SimulatedNitroPki(self.seed.reveal())

    def snp(self, *, launch: bytes = b"") -> SimulatedSnp:
        """A simulated SEV-SNP guest; another ``launch`` is another start of it."""
        return SimulatedSnp(self.seed.reveal(), launch=launch)

    def gpus(self, machine: Machine) -> SimulatedGpus:
        """The accelerators of a machine. Raises ``DataInvalid`` where numbers do not fit."""
        return SimulatedGpus(
            self.seed.reveal(), count=machine.gpus, switches=machine.switches, mode=machine.mode
        )

    @property
    def root_path(self) -> Path:
        """The root certificate, DER: what ``insecure_simulator_root`` names."""
        return self.folder / "root.der"

    @property
    def collateral_path(self) -> Path:
        """The collateral, JSON, valid for 30 days from the last start."""
        return self.folder / "collateral.json"

    @property
    def gpu_collateral_path(self) -> Path:
        """Collateral of the accelerators, JSON, answers valid for a day from the last start."""
        return self.folder / "gpu-collateral.json"

    def policy(self, machine: Machine) -> AppraisalPolicy:
        """A policy that accepts every guest of this simulator on such a machine."""
        gpus = self.gpus(machine) if machine.gpus else None
        root = {
            "nitro": lambda: self.nitro.root_der,
            "test-nitro": lambda: self.nitro.root_der,
            "snp": lambda: self.snp().root_der,
            "dstack-aws-nitro-tpm": lambda: self.nitro.root_der,
            "dstack-amd-sev-snp": lambda: self.snp().root_der,
            "azure-snp": lambda: self.snp().root_der,
            "gcp-snp": lambda: self.snp().root_der,
        }.get(machine.tee, self.root_path.read_bytes)()
        return insecure_simulator_policy(
            root, tee=machine.tee, gpu=None if gpus is None else gpus.policy()
        )


def ensure(
    folder: Path,
    now: int,
    *,
    random: Random = os.urandom,
    machine: Machine = HONEST,
) -> SimulatorState:
    """Open a state folder, creating it and refreshing its collateral.

    Args:
        folder: Where the state lives; created with mode 0700.
        now: Issue date of the collateral, seconds since 1970.
        random: Source of the seed.
        machine: What is played: lies of the vendor go into the collateral until the next start.
            The root that is trusted stays the honest one.

    Raises:
        KeyFileInvalid: The seed is malformed or readable by others.
        DataInvalid: Numbers of accelerators that do not go together.
    """
    fault = machine.cpu_fault if machine.tee in DCAP_TEES else None
    fault = fault if fault in FAULTS else None  # the others are lies of a vTPM
    folder = Path(folder)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / "seed"
    if not path.exists():
        # Another guest may create it at the same moment: the first to link wins.
        with suppress(AlreadyExists):
            atomic_write(path, random(_SEED_BYTES).hex().encode("ascii") + b"\n", mode=0o600)
    seed = _read_seed(path)
    pki = SimulatedPki(seed.reveal())
    state = SimulatorState(folder=folder, seed=seed, pki=pki.lying(fault))
    atomic_write(state.root_path, pki.root_der, overwrite=True)
    vendor = pki if fault == "foreign-root" else state.pki
    collateral = vendor.collateral(now, tcb_evaluation_data_number=_EVALUATION_NUMBER)
    document = json.dumps(collateral.to_dict(), indent=1).encode("ascii")
    atomic_write(state.collateral_path, document + b"\n", overwrite=True)
    if machine.gpus:
        from sealtrain_rehearsal.simulator.gpu_collateral import simulate_collateral

        made = simulate_collateral(state.gpus(machine), now)
        atomic_write(state.gpu_collateral_path, made.to_bytes(), overwrite=True)
    return state


def _read_seed(path: Path) -> Secret:
    if path.stat().st_mode & 0o077:
        raise KeyFileInvalid(
            f"{path} is readable by others", check="simulator seed", hint=f"chmod 600 {path}"
        )
    try:
        text = read_bounded(path, 256).decode("ascii").removesuffix("\n")
        return Secret(from_hex(text, length=_SEED_BYTES))
    except (DataInvalid, UnicodeDecodeError) as error:
        raise KeyFileInvalid(
            f"{path} does not hold a seed", check="simulator seed", hint="remove it to start anew"
        ) from error
