"""Machines that the simulator plays, every lie that each of them can tell, a place to boot them.

One moment for all: simulated enclaves' certificates begin when a document is made. One conversation
for all: evidence of a run manifest is what each of our judges sees, a broker's driver, ``explain``
and the second verifier.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sealtrain.attest.appraise import Verdict, appraise
from sealtrain.attest.bundle import Attachments
from sealtrain.attest.evidence import Evidence
from sealtrain.attest.explain.explanation import explain
from sealtrain.attest.forms import Exhibit, OwnEvidence
from sealtrain.attest.guest import open_guest
from sealtrain.attest.policy import AppraisalPolicy, policy_from_dict
from sealtrain.attest.report_data import Binding
from sealtrain.attest.verify import verify
from sealtrain.errors import EvidenceRefused
from sealtrain_rehearsal.simulator.machine import Machine, SimulatedTee
from sealtrain_rehearsal.simulator.server import running
from sealtrain_rehearsal.simulator.state import ensure

NOW = 1_800_000_000
ASKED = Binding("manifest", {"statement_digest": "00" * 32})
ELSEWHERE = Binding(ASKED.purpose, {"statement_digest": "11" * 32})
"""Another conversation for the same purpose."""
COMPOSE = b'{"name": "every machine"}\n'
COMPOSE_HASH = hashlib.sha256(COMPOSE).hexdigest()

MACHINES = {
    "dstack": Machine(),
    "dstack-2-gpus": Machine(gpus=2),
    "dstack-2-gpus-1-switch": Machine(gpus=2, switches=1),
    "dstack-8-gpus-4-switches": Machine(gpus=8, switches=4),
    "tdx": Machine(tee="tdx"),
    "nitro": Machine(tee="nitro"),
    "snp": Machine(tee="snp"),
    "dstack-gcp-tdx": Machine(tee="dstack-gcp-tdx"),
    "dstack-aws-nitro-tpm": Machine(tee="dstack-aws-nitro-tpm"),
    "dstack-amd-sev-snp": Machine(tee="dstack-amd-sev-snp"),
    "azure-snp": Machine(tee="azure-snp"),
    "azure-tdx": Machine(tee="azure-tdx"),
    "gcp-snp": Machine(tee="gcp-snp"),
    "test-vtpm": Machine(tee="test-vtpm"),
    "test-nitro": Machine(tee="test-nitro"),
}
BARE = tuple(name for name, machine in MACHINES.items() if not machine.gpus)
"""Machines without accelerators: one of each TEE."""

# --- Lies ---------------------------------------------------------------------------------------

_OF_TDX = {
    "debug-bit": "debug-guest",
    "no-sept-ve-disable": "debug-guest",
    "migratable": "migratable-guest",
    "out-of-date-tcb": "tcb-status-refused",
    "revoked-tcb": "tcb-status-refused",
    "stale-collateral": "collateral-expired",
    "future-collateral": "collateral-expired",
    "low-evaluation-number": "tcb-status-refused",
    "foreign-root": "quote-root-untrusted",
    "other-image": "measurement-mismatch",
    "wrong-report-data": "report-data-mismatch",
    "bad-signature": "quote-invalid",
    "other-compose": "compose-hash-mismatch",
}
_OF_SNP = {
    "debug-bit": "debug-guest",
    "migration-agent": "migratable-guest",
    "old-tcb": "tcb-status-refused",
    "committed-below-reported": "tcb-status-refused",
    "wrong-chip": "collateral-mismatch",
    "milan": "platform-mismatch",
    "vmpl-1": "platform-mismatch",
    "masked-chip-id": "platform-mismatch",
    "wrong-root": "quote-root-untrusted",
    "bad-signature": "quote-invalid",
    "other-image": "measurement-mismatch",
    "revoked-issuer": "certificate-revoked",
}
_OF_CLOUD_TPM = {
    "tpm-altered-register": "measurement-mismatch",
    "tpm-other-image": "measurement-mismatch",
    "tpm-other-events": "event-log-mismatch",
    "tpm-bad-signature": "quote-invalid",
    "other-compose": "compose-hash-mismatch",
}
_OF_NITRO = {
    "debug-pcrs": "debug-guest",
    "stale-document": "evidence-stale",
    "future-document": "evidence-stale",
    "wrong-root": "quote-root-untrusted",
    "bad-signature": "quote-invalid",
    "expired-leaf": "certificate-chain-invalid",
    "wrong-parent": "measurement-mismatch",
    "other-image": "measurement-mismatch",
}
_OF_AZURE = {
    **_OF_CLOUD_TPM,
    "tpm-other-key": "quote-invalid",
    "tpm-other-machine": "report-data-mismatch",
    "tpm-other-conversation": "report-data-mismatch",
}
_OF_GUESTS: dict[SimulatedTee, dict[str, str]] = {
    "dstack": {**_OF_TDX, "replayed-log": "event-log-mismatch"},
    "tdx": _OF_TDX,
    "nitro": _OF_NITRO,
    "snp": _OF_SNP,
    "dstack-gcp-tdx": {
        **_OF_TDX,
        "replayed-log": "event-log-mismatch",
        "tpm-other-quote": "report-data-mismatch",
        "tpm-other-events": "event-log-mismatch",
        "tpm-altered-register": "measurement-mismatch",
        "tpm-other-image": "measurement-mismatch",
        "tpm-other-zone": "platform-mismatch",
        "tpm-test-key": "debug-guest",
        "tpm-foreign-root": "quote-root-untrusted",
        "tpm-bad-signature": "quote-invalid",
    },
    "dstack-aws-nitro-tpm": {
        "stale-document": "evidence-stale",
        "future-document": "evidence-stale",
        "wrong-root": "quote-root-untrusted",
        "bad-signature": "quote-invalid",
        "expired-leaf": "certificate-chain-invalid",
        "other-image": "measurement-mismatch",
        "other-events": "event-log-mismatch",
        "other-config": "event-log-mismatch",
        "enclave": "evidence-malformed",
        "wrong-report-data": "report-data-mismatch",
        "other-compose": "compose-hash-mismatch",
    },
    "dstack-amd-sev-snp": {
        **_OF_SNP,
        "other-launch-config": "compose-hash-mismatch",
        "other-compose": "compose-hash-mismatch",
        "malformed-launch-config": "evidence-malformed",
    },
    "azure-snp": {**_OF_SNP, **_OF_AZURE},
    "azure-tdx": {**_OF_TDX, **_OF_AZURE},
    "gcp-snp": {
        **_OF_SNP,
        **_OF_CLOUD_TPM,
        "tpm-other-quote": "report-data-mismatch",
        "tpm-not-confidential": "measurement-mismatch",
        "tpm-other-zone": "platform-mismatch",
        "tpm-test-key": "debug-guest",
        "tpm-foreign-root": "quote-root-untrusted",
    },
    "test-vtpm": {
        **_OF_CLOUD_TPM,
        "tpm-other-conversation": "report-data-mismatch",
        "tpm-test-key": "debug-guest",
        "tpm-foreign-root": "quote-root-untrusted",
    },
    "test-nitro": {
        **_OF_NITRO,
        "other-compose": "compose-hash-mismatch",
        "wrong-report-data": "report-data-mismatch",
    },
}
_OF_GPUS = {
    "gpu-devtools-on": "gpu-mode-refused",
    "gpu-cc-off": "gpu-mode-refused",
    "gpu-missing-gpu": "gpu-set-refused",
    "gpu-same-gpu-twice": "gpu-set-refused",
    "gpu-wrong-nonce": "gpu-nonce-mismatch",
    "gpu-bad-signature": "gpu-report-invalid",
    "gpu-foreign-root": "quote-root-untrusted",
    "gpu-other-firmware": "reference-value-mismatch",
    "gpu-mixed-modes": "gpu-mode-refused",
    "gpu-old-driver": "tcb-status-refused",
}
_OF_SWITCHES = {
    "gpu-switch-missing": "gpu-set-refused",
    "gpu-other-switch": "gpu-set-refused",
    "gpu-other-gpu": "gpu-set-refused",
}


@dataclass(frozen=True, slots=True)
class Lie:
    """One lie of one machine.

    Attributes:
        name: The machine, a key of ``MACHINES``.
        fault: The lie, as the simulator calls it.
        code: The refusal it ends in under a policy that pins everything.
    """

    name: str
    fault: str
    code: str

    def __str__(self) -> str:
        return f"{self.name}-{self.fault}"

    @property
    def machine(self) -> Machine:
        """The machine that tells it."""
        return replace(MACHINES[self.name], fault=self.fault)


LIES = tuple(
    Lie(name, fault, code)
    for name, machine in MACHINES.items()
    for lies in (
        _OF_GUESTS[machine.tee],
        _OF_GPUS if machine.gpus else {},
        _OF_SWITCHES if machine.switches else {},
    )
    for fault, code in lies.items()
)
"""Every lie of every machine."""


# --- Machines -----------------------------------------------------------------------------------


class MachinePark:
    """A folder with one simulator, which boots each machine once a conversation.

    It keeps their evidence. Its machines share the simulator's state, so one policy trusts the
    honest and the lying alike.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._kept: dict[tuple[Machine, bytes], Evidence] = {}
        self._trusting: dict[Machine, AppraisalPolicy] = {}
        self._pinned: dict[Machine, AppraisalPolicy] = {}
        (folder / "app-compose.json").write_bytes(COMPOSE)

    def evidence(self, machine: Machine, binding: Binding = ASKED) -> Evidence:
        """What the machine shows behind its socket."""
        key = machine, binding.report_data()
        if key not in self._kept:
            self._kept[key] = self._collect(machine, binding)
        return self._kept[key]

    def _collect(self, machine: Machine, binding: Binding) -> Evidence:
        state, socket = self._folder / "state", self._folder / "guest.sock"
        compose = self._folder / "app-compose.json"
        with running(socket, compose, state, clock=lambda: NOW, machine=machine):
            guest = open_guest(
                "simulator",
                str(socket),
                collateral=f"file:{state / 'collateral.json'}",
                gpu_collateral=f"file:{state / 'gpu-collateral.json'}",
            )
            return guest.evidence(binding)

    def trust(self, machine: Machine) -> AppraisalPolicy:
        """The policy that accepts every image on such a machine of this simulator."""
        if machine not in self._trusting:
            self._trusting[machine] = ensure(self._folder / "state", NOW).policy(machine)
        return self._trusting[machine]

    def pin(self, machine: Machine) -> AppraisalPolicy:
        """The same policy, looking at everything that tells one image or machine from another.

        Args:
            machine: An honest one, which the policy describes.
        """
        if machine not in self._pinned:
            self._pinned[machine] = _pin(self.evidence(machine), self.trust(machine))
        return self._pinned[machine]


_LEVELS = ("bootloader", "tee", "snp", "microcode", "fmc")


def _pin(evidence: Evidence, policy: AppraisalPolicy) -> AppraisalPolicy:
    tee = policy.cpu.tee
    signed: Any = verify(evidence, policy, NOW, binding=ASKED).signed
    processor = getattr(signed, "processor", signed)
    if tee in ("dstack", "tdx", "dstack-gcp-tdx", "azure-tdx"):
        rules = _quote_rules(processor)
    elif tee == "dstack-aws-nitro-tpm":
        pcrs = signed.document.pcrs
        rules = {
            "boots": [{f"pcr{index}": pcrs[index] for index in (4, 7, 12)}],
            "instances": [signed.document.parent_id],
        }
    elif tee == "nitro":
        rules = {
            "images": [{f"pcr{index}": signed.pcrs[index] for index in (0, 1, 2)}],
            "parents": [signed.parent_id],
        }
    elif tee == "test-nitro":
        rules = {"images": [{f"pcr{index}": signed.pcrs[index] for index in (0, 1, 2)}]}
    elif tee == "test-vtpm":
        rules = _boot_rules(signed.boot, (4, 7, 8, 9, 11, 12))
    else:
        rules = _report_rules(processor)
    if tee == "dstack-gcp-tdx":
        rules |= _boot_rules(signed.tpm, (0, 2)) | _google_rules(signed.tpm.machine)
    elif tee in ("azure-snp", "azure-tdx"):
        rules |= _boot_rules(signed.boot, (4, 7, 8, 9, 11, 12))
        rules["vm_ids"] = [signed.place.vm_id]
    elif tee == "gcp-snp":
        rules |= _boot_rules(signed.boot, (0, 4, 7, 8, 9, 11, 12)) | _google_rules(signed.place)
    document: dict[str, Any] = policy.to_dict()
    return policy_from_dict({**document, "cpu": {**document["cpu"], **rules}})


def _quote_rules(signed: Any) -> dict[str, Any]:
    quote = signed.quote
    registers = dict(zip(("rtmr0", "rtmr1", "rtmr2"), quote.rtmr[:3], strict=True))
    return {
        "measurements": [{"mrtd": quote.mrtd, **registers}],
        "platform_ids": [signed.ppid],
    }


def _report_rules(signed: Any) -> dict[str, Any]:
    report, tcb = signed.report, signed.reported_tcb
    return {
        "measurements": [report.measurement],
        "revocation": "require",
        "chip_ids": [report.chip_id],
        "minimum_tcb": {"Genoa": {name: getattr(tcb, name) for name in _LEVELS}},
    }


def _boot_rules(boot: Any, indexes: tuple[int, ...]) -> dict[str, Any]:
    return {"boots": [{f"pcr{index}": boot.registers[index].hex() for index in indexes}]}


def _google_rules(machine: Any) -> dict[str, Any]:
    return {
        "zones": [machine.zone],
        "projects": [machine.project],
        "instances": [str(machine.instance_id)],
    }


def judge(evidence: Evidence, policy: AppraisalPolicy, binding: Binding = ASKED) -> Verdict:
    """Verify and appraise as a broker does: over the bytes that were sent."""
    received = Evidence.from_bytes(evidence.to_bytes())
    facts = verify(received, policy, NOW, binding=binding)
    return appraise(
        facts, policy, binding=binding, compose_hash=COMPOSE_HASH, app_id=COMPOSE_HASH[:40]
    )


def refusal(
    evidence: Evidence, policy: AppraisalPolicy, now: int, beside: Attachments
) -> str | None:
    """The code that evidence in its conversation ends in, as a decision and an explanation say.

    Returns:
        ``None`` where everything holds.
    """
    binding = beside.binding
    assert binding is not None
    exhibit = OwnEvidence(raw=evidence.to_bytes(), evidence=evidence)
    try:
        facts = verify(evidence, policy, now, binding=binding)
        appraise(facts, policy, binding=binding, compose_hash=beside.compose_hash, app_id=None)
    except EvidenceRefused as error:
        refused: str | None = error.code
    else:
        refused = None
    shown = broken_lines(exhibit, policy, now, beside)
    assert next(iter(shown), None) == refused, (shown, refused)
    return refused


def broken_lines(
    exhibit: Exhibit, policy: AppraisalPolicy, now: int, beside: Attachments
) -> list[str | None]:
    """Codes of the lines that an explanation shows as broken, or of its refusal to show any."""
    try:
        lines = explain(exhibit, beside, policy, now).lines
    except EvidenceRefused as error:  # not even its form holds
        return [error.code]
    return [line.code for line in lines if line.standing == "broken"]
