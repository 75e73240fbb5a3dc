"""Simulated accelerators: the same code judges them, and every lie has its refusal."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import pytest
from cryptography import x509
from gpu_world import NONCE, NOW, judged_by, machine

from sealtrain.attest.errors import CertificateRevoked
from sealtrain.attest.nvidia.parse import GpuEvidence
from sealtrain.attest.nvidia.verify import VerifiedGpus
from sealtrain.errors import DataInvalid, SealtrainError, TrustInvalid
from sealtrain_rehearsal.simulator.gpu import FAULT_MEANINGS, FAULTS, SimulatedGpus
from sealtrain_rehearsal.simulator.gpu_collateral import simulate_collateral

GPUS = machine()
COLLATERAL = simulate_collateral(GPUS, NOW)


def judged(gpus: SimulatedGpus, evidence: GpuEvidence, **changes: Any) -> VerifiedGpus:
    return judged_by(gpus, evidence, simulate_collateral(gpus, NOW), **changes)


def test_an_honest_machine_is_accepted_with_everything_required() -> None:
    found = judged(GPUS, GPUS.evidence(NONCE), revocation="require")
    assert found.mode == "protected_pcie"
    assert found.simulated


@pytest.mark.parametrize("fault", FAULTS)
def test_every_lie_ends_in_the_refusal_it_names(fault: str) -> None:
    code = re.search(r"\(([a-z-]+)\)$", FAULT_MEANINGS[fault])
    assert code is not None
    with pytest.raises(SealtrainError) as refused:
        judged(GPUS, GPUS.evidence(NONCE, fault=fault))
    assert refused.value.code == code[1]


@pytest.mark.parametrize(("count", "mode"), [(1, "single"), (1, "mpt"), (3, "mpt")])
def test_machines_without_switches_are_accepted(count: int, mode: Any) -> None:
    gpus = SimulatedGpus(b"machine without switches", count=count, mode=mode)
    assert judged(gpus, gpus.evidence(NONCE)).mode == mode


def test_the_seed_determines_everything_but_responses_of_nobody() -> None:
    again = machine()
    assert again.root_der == GPUS.root_der
    assert again.rim_root_der == GPUS.rim_root_der
    assert again.evidence(NONCE) == GPUS.evidence(NONCE)
    assert machine(b"the seed of another machine").root_der != GPUS.root_der
    assert GPUS.evidence(bytes(32)) != GPUS.evidence(NONCE)


def test_every_name_says_that_it_is_simulated() -> None:
    chains = [device.chain for device in (*GPUS.gpu_devices, *GPUS.switch_devices)]
    for chain in (*chains, GPUS.pki.rim_signer):
        for certificate in chain:
            assert str(certificate.certificate.subject.rdns[0].rfc4514_string()).startswith(
                "CN=SIMULATED "
            )
        for child, issuer in pairwise(chain):
            child.certificate.verify_directly_issued_by(issuer.certificate)


def test_serial_numbers_are_those_the_names_repeat() -> None:
    for device in GPUS.gpu_devices:
        leaf = device.chain[0].certificate
        (serial,) = leaf.subject.get_attributes_for_oid(x509.oid.NameOID.SERIAL_NUMBER)
        assert int(str(serial.value), 16) == leaf.serial_number


def test_a_revoked_device_is_refused() -> None:
    revoked = simulate_collateral(GPUS, NOW, revoked=x509.ReasonFlags.certificate_hold)
    with pytest.raises(CertificateRevoked):
        judged_by(GPUS, GPUS.evidence(NONCE), revoked, revocation="require")


@pytest.mark.parametrize(
    "arguments",
    [
        {"seed": b"short"},
        {"count": 0},
        {"count": 33},
        {"count": 2},
        {"count": 2, "switches": 1, "mode": "mpt"},
        {"mode": "protected_pcie"},
        {"count": 20, "switches": 13, "mode": "protected_pcie"},
    ],
    ids=str,
)
def test_machines_that_cannot_be_are_not_made(arguments: dict[str, Any]) -> None:
    fields = {"seed": b"a seed that is long enough", **arguments}
    with pytest.raises(DataInvalid):
        SimulatedGpus(fields.pop("seed"), **fields).root_der  # noqa: B018  # made on first use


def test_requests_that_make_no_sense_are_refused() -> None:
    alone = SimulatedGpus(b"one GPU and no switch")
    for nonce in (b"", NONCE[:-1], NONCE + b"\0"):
        with pytest.raises(DataInvalid):
            alone.evidence(nonce)
    for fault in ("no such lie", "same-gpu-twice", "missing-gpu", "switch-missing", "other-switch"):
        with pytest.raises(DataInvalid):
            alone.evidence(NONCE, fault=fault)
    with pytest.raises(TrustInvalid):
        alone.policy(gpu_count=0)
