"""Accelerators of one guest together: what is accepted, and what the result says."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from carrying import carries
from gpu_world import (
    NONCE,
    NOW,
    captured,
    claims,
    expected,
    hardware_policy_fields,
    judged_by,
    machine,
)

from sealtrain.attest.claims import require_groups, single
from sealtrain.attest.errors import (
    EvidenceMalformed,
    GpuReportInvalid,
    PlatformMismatch,
    TcbStatusRefused,
)
from sealtrain.attest.nvidia.appraise import checks_of_device, eat
from sealtrain.attest.nvidia.device import verify_device
from sealtrain.attest.nvidia.parse import (
    MAX_DEVICES,
    GpuClaims,
    GpuDevice,
    GpuEvidence,
    canonical_chain,
    from_nvat,
)
from sealtrain.attest.nvidia.policy import NvidiaPolicy, driver_key, vbios_key
from sealtrain.attest.nvidia.verify import SET, VerifiedGpus, verify_gpus
from sealtrain.base.canonical import canonical_json
from sealtrain.base.models import load_model
from sealtrain.errors import TrustInvalid
from sealtrain_rehearsal.simulator.gpu import DRIVER_VERSION, GPU_VBIOS, SWITCH_VBIOS, SimulatedGpus
from sealtrain_rehearsal.simulator.gpu_collateral import simulate_collateral

GPUS = machine()
COLLATERAL = simulate_collateral(GPUS, NOW)
EVIDENCE = GPUS.evidence(NONCE)


def hardware_policy(**changes: Any) -> NvidiaPolicy:
    return load_model(NvidiaPolicy, hardware_policy_fields(**changes), TrustInvalid, "policy")


@pytest.fixture(scope="module")
def verified() -> VerifiedGpus:
    policy = GPUS.policy(revocation="require")
    return verify_gpus(
        EVIDENCE, policy, COLLATERAL, nonce=NONCE, simulator_root=GPUS.root_der, now=NOW
    )


# name, mode, claims of the guest that fit it, fitting changes of the policy
CAPTURES: tuple[tuple[str, str, dict[str, Any], dict[str, Any]], ...] = (
    ("hopper_535", "single", {"driver_version": "535.86.09"}, {}),
    ("hopper_580_mpt", "single", {"driver_version": "580.159.03"}, {}),
    ("hopper_cert_hold", "single", {"driver_version": "570.86.10"}, {}),
)


@pytest.mark.parametrize(("name", "mode", "told", "changes"), CAPTURES, ids=lambda case: str(case))
def test_captured_gpus_are_accepted_under_a_fitting_policy(
    shared: Path, name: str, mode: str, told: dict[str, Any], changes: dict[str, Any]
) -> None:
    notes = expected(shared, name)
    evidence = GpuEvidence.build(captured(shared, name), claims(**told))
    nonce = bytes.fromhex(notes[0]["nonce"])
    found = verify_gpus(
        evidence, hardware_policy(**changes), None, nonce=nonce, simulator_root=None, now=NOW
    )
    assert found.mode == mode
    assert not found.simulated
    assert [device.ueid for device in found.devices.values()] == [
        note["leaf_subject_serial"].lower() for note in notes
    ]


def test_a_captured_switch_verifies_by_itself(shared: Path) -> None:
    (switch,) = captured(shared, "switch_ls10")
    found = verify_device(switch, simulator_root=None, now=NOW)
    assert (found.kind, found.architecture, found.chip) == ("switch", "LS10", "LS10")
    assert found.vbios_version == "96.10.55.00.01"
    assert found.driver_version == found.project == found.chip_sku == ""
    assert found.report.own_pdi == found.pdi == found.device_serial.removeprefix("50")


def test_what_names_the_files_of_a_board_is_read(shared: Path) -> None:
    (gpu,) = captured(shared, "hopper_535")
    found = verify_device(gpu, simulator_root=None, now=NOW)
    assert (found.project, found.project_sku, found.chip_sku) == ("1010", "0200", "882")


def test_every_device_and_the_set_have_their_claims(verified: VerifiedGpus) -> None:
    names = ["gpu0", "gpu1", "gpu2", "gpu3", "switch0", "switch1"]
    assert list(verified.devices) == names
    assert list(verified.claims) == [SET, *names]
    assert verified.simulated
    assert verified.digest == EVIDENCE.digest
    by_name = {claim.name: claim for claim in verified.claims[SET]}
    assert by_name["GPUs"].got == by_name["GPUs"].expected == "4"
    assert by_name["NVSwitches"].outcome == "equal"
    assert by_name["GPU topology"].got == by_name["GPU topology"].expected
    assert by_name["GPU confidential computing"].source.startswith("driver")
    device = {claim.name: claim for claim in verified.claims["gpu3"]}
    assert device["nonce"].got == NONCE.hex()
    assert device["driver version"].expected == "at least 550.0"
    assert device["VBIOS version"].outcome == "any"
    assert "driver version" not in {claim.name for claim in verified.claims["switch0"]}


def test_attested_names_are_those_of_the_standard(verified: VerifiedGpus) -> None:
    gpu, switch = verified.devices["gpu0"], verified.devices["switch0"]
    assert eat(gpu) == {
        "ueid": gpu.ueid,
        "oemid": "5703",
        "hwmodel": "SIMULATED GH100 A01 GSP BROM",
        "hwversion": GPU_VBIOS,
        "swversion": DRIVER_VERSION,
        "dbgstat": "disabled",
    }
    assert eat(switch)["hwversion"] == SWITCH_VBIOS
    assert "swversion" not in eat(switch)


def test_the_verifier_and_the_policy_trust_the_same_root() -> None:
    with pytest.raises(TrustInvalid):
        verify_gpus(EVIDENCE, GPUS.policy(), COLLATERAL, nonce=NONCE, simulator_root=None, now=NOW)


def test_documents_have_one_form() -> None:
    assert GpuEvidence.from_bytes(EVIDENCE.to_bytes()) == EVIDENCE
    assert len(EVIDENCE.digest) == 32
    with pytest.raises(EvidenceMalformed):
        GpuEvidence.from_bytes(EVIDENCE.to_bytes() + b"\n")


def changed(place: tuple[str | int, ...], value: Any) -> bytes:
    document = EVIDENCE.to_dict()
    node: Any = document
    for key in place[:-1]:
        node = node[key]
    if value is None:
        del node[place[-1]]
    else:
        node[place[-1]] = value
    return canonical_json(document)


REPORT = EVIDENCE.devices[0].report
MALFORMED: dict[str, tuple[tuple[str | int, ...], Any]] = {
    "no devices": (("devices",), []),
    "too many devices": (("devices",), [EVIDENCE.devices[0].to_dict()] * (MAX_DEVICES + 1)),
    "GPU called switch": (("devices", 0, "kind"), "switch"),
    "unknown architecture": (("devices", 0, "architecture"), "AMPERE"),
    "report not base64": (("devices", 0, "report"), "?" + REPORT[1:]),
    "report with stray bits": (("devices", 0, "report"), REPORT[:-3] + "B=="),
    "report too long": (("devices", 0, "report"), "A" * ((64 << 10) * 4 // 3 + 8)),
    "no chain": (("devices", 0, "certificate_chain"), ""),
    "chain too long": (("devices", 0, "certificate_chain"), "A" * ((64 << 10) + 1)),
    "chain not ASCII": (("devices", 0, "certificate_chain"), "é"),
    "field too many": (("devices", 0, "nonce"), "00"),
    "unknown environment": (("claims", "environment"), "TEST"),
    "number for a truth": (("claims", "cc_feature"), 1),
    "text for a truth": (("claims", "dev_tools"), "false"),
    "unknown mode": (("claims", "multi_gpu_mode"), "mig"),
    "negative count": (("claims", "gpu_count"), -1),
    "driver too long": (("claims", "driver_version"), "1" * 65),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_documents_of_another_form_are_refused(case: str) -> None:
    with pytest.raises(EvidenceMalformed):
        GpuEvidence.from_bytes(changed(*MALFORMED[case]))


@pytest.mark.negative(47)
@pytest.mark.parametrize("name", GpuClaims.model_fields)
def test_every_claim_of_the_guest_must_be_there(name: str) -> None:
    with pytest.raises(EvidenceMalformed):
        GpuEvidence.from_bytes(changed(("claims", name), None))
    with pytest.raises(EvidenceMalformed):
        GpuEvidence.from_bytes(changed(("claims",), None))


def test_files_of_nvidias_tools_are_read_and_others_refused(shared: Path) -> None:
    path = shared / "vectors" / "nvidia" / "hopper_multi4_ppcie.json"
    assert len(from_nvat(path.read_bytes())) == 4
    item = json.loads(path.read_text())[0]
    for data in (
        b"",
        b"{}",
        b"[]",
        b"[1]",
        b"[[]]",
        b'["evidence"]',
        json.dumps([{**item, "arch": "AMPERE"}]).encode(),
        json.dumps([{**item, "arch": None}]).encode(),
        json.dumps([{**item, "evidence": 5}]).encode(),
        json.dumps([{**item, "certificate": item["evidence"]}]).encode(),
        json.dumps([item] * (MAX_DEVICES + 1)).encode(),
        json.dumps([{key: item[key] for key in ("arch", "evidence")}]).encode(),
        b"[" * 70 + b"]" * 70,
    ):
        with pytest.raises(EvidenceMalformed):
            from_nvat(data)
    short = base64.b64encode(base64.b64decode(item["evidence"])[:-1]).decode()
    with pytest.raises(GpuReportInvalid):
        from_nvat(json.dumps([{**item, "evidence": short}]).encode())


def test_the_collector_trims_and_respells(shared: Path) -> None:
    shown = EVIDENCE.devices[0]
    text = shown.certificate_chain
    raw = "subject=GH100\r\n" + text.replace("\n", "\r\n") + "\r\n\r\n"
    built = GpuDevice.build("HOPPER", shown.report_bytes + b"\0", raw.encode())
    assert built == shown
    for chain in (b"", b"no certificate", text[:200].encode(), bytes(65 << 10)):
        with pytest.raises(EvidenceMalformed):
            canonical_chain(chain)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"architectures": ["BLACKWELL"]}, PlatformMismatch),
        ({"devices": ["00" * 20]}, PlatformMismatch),
        ({"driver_versions": {"minimum": "580.95.06", "denied": []}}, TcbStatusRefused),
        ({"driver_versions": {"minimum": "580.100", "denied": []}}, TcbStatusRefused),
        ({"driver_versions": {"minimum": "1.0", "denied": ["580.095.5"]}}, TcbStatusRefused),
        (
            {
                "vbios_versions": [
                    {"architecture": "HOPPER", "minimum": "96.00.D0.00.02", "denied": []}
                ]
            },
            TcbStatusRefused,
        ),
        (
            {
                "vbios_versions": [
                    {
                        "architecture": "HOPPER",
                        "minimum": "96.00.0F.00.01",
                        "denied": ["96.00.D0.00.01"],
                    }
                ]
            },
            TcbStatusRefused,
        ),
        (
            {
                "vbios_versions": [
                    {"architecture": "LS10", "minimum": "00.00.00.00.00", "denied": []}
                ]
            },
            TcbStatusRefused,
        ),
        ({"vbios_versions": []}, TcbStatusRefused),
        ({"devices": []}, PlatformMismatch),
    ],
)
@pytest.mark.negative(51)
def test_a_device_outside_the_policy_is_refused(
    verified: VerifiedGpus, changes: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        require_groups(
            map(single, checks_of_device(verified.devices["gpu0"], GPUS.policy(**changes)))
        )


def test_a_device_inside_the_policy_is_accepted(verified: VerifiedGpus) -> None:
    gpu, switch = verified.devices["gpu0"], verified.devices["switch0"]
    policy = GPUS.policy(
        devices=[gpu.ueid, switch.ueid],
        driver_versions={"minimum": "580.95.5", "denied": ["580.95.4", "580.95.50"]},
        vbios_versions=[
            {"architecture": "HOPPER", "minimum": GPU_VBIOS, "denied": []},
            {"architecture": "LS10", "minimum": "96.10.72.00.FF", "denied": []},
        ],
    )
    outcomes = {
        claim.name: claim.outcome
        for claim in require_groups(map(single, checks_of_device(gpu, policy)))
    }
    assert (
        outcomes["device"] == outcomes["driver version"] == outcomes["VBIOS version"] == "allowed"
    )
    assert require_groups(map(single, checks_of_device(switch, policy)))


def test_versions_compare_as_numbers() -> None:
    assert driver_key("535.86.09") == driver_key("535.86.9") < driver_key("535.86.10")
    assert driver_key("580.9") < driver_key("580.10")
    assert driver_key("590.12") == driver_key("590.12.0")
    assert vbios_key("96.00.9F.00.01") < vbios_key("96.00.A0.00.01")
    for text in ("", "590.", "a.b", "590.-1", "590. 1", "1_0.2", "٣.1"):
        with pytest.raises(ValueError):
            driver_key(text)


@pytest.mark.parametrize(
    "changes",
    [
        {"gpu_count": 0},
        {"gpu_count": MAX_DEVICES + 1},
        {"gpu_count": "any"},
        {"switch_count": -1},
        {"mode": []},
        {"mode": ["none"]},
        {"mode": ["protected_pcie"], "switch_count": 0},
        {"cc": "off"},
        {"cc": "any"},
        {"devtools": "on"},
        {"devtools": "any"},
        {"architectures": "any"},
        {"devices": ["455472BB690155ACCC29"]},
        {"driver_versions": {"minimum": "latest", "denied": []}},
        {"driver_versions": {"minimum": "590.12"}},
        {"vbios_versions": [{"architecture": "HOPPER", "minimum": "96.00", "denied": []}]},
        {
            "vbios_versions": [
                {"architecture": "HOPPER", "minimum": "96.00.00.00.00", "denied": []},
                {"architecture": "HOPPER", "minimum": "96.00.00.00.01", "denied": []},
            ]
        },
        {"reference_values": {}},
        {"reference_values": {"NV_GPU_DRIVER_GH100_590.12": ["00"]}},
        {"reference_values": "pinned"},
        {"revocation": "no"},
        {"max_ocsp_age_s": 0},
        {"nras": True},
        {"root": "intel"},
        {"rim_root": {"insecure_simulator_root": "AAAA"}},
        {"later": "any"},
    ],
    ids=str,
)
def test_policies_that_say_nothing_clear_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(TrustInvalid):
        hardware_policy(**changes)


@pytest.mark.parametrize("name", NvidiaPolicy.model_fields)
def test_every_field_of_a_policy_is_written(name: str) -> None:
    fields = hardware_policy_fields()
    del fields[name]
    with pytest.raises(TrustInvalid, check=carries(field=name)):
        load_model(NvidiaPolicy, fields, TrustInvalid, "policy")


def test_simulated_and_real_trust_do_not_mix() -> None:
    root = GPUS.policy().to_dict()["root"]
    for changes in ({"root": root}, {"rim_root": root}):
        with pytest.raises(TrustInvalid):
            hardware_policy(**changes)


def test_one_gpu_alone_needs_no_switch() -> None:
    alone = SimulatedGpus(b"one simulated GPU by itself")
    found = judged_by(alone, alone.evidence(NONCE), simulate_collateral(alone, NOW))
    assert found.mode == "single"
    assert list(found.devices) == ["gpu0"]
