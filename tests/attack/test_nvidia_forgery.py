"""Whoever runs the machine forges accelerators, hides some, or swaps them: each is refused.

The attacker holds every captured byte, devices of a vendor of their own and, for the simulated
machine, even the devices' keys. They do not hold the trusted root's key.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from carrying import carries
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from gpu_world import (
    NONCE,
    NOW,
    Parts,
    captured,
    claiming,
    claims,
    expected,
    hardware_policy_fields,
    judged_by,
    machine,
    put_together,
    resigned,
    showing,
    take_apart,
)

from sealtrain.attest.errors import (
    CertificateChainInvalid,
    GpuModeRefused,
    GpuNonceMismatch,
    GpuReportInvalid,
    GpuSetRefused,
    ReferenceValueMismatch,
    RemoteVerdictRefused,
    RevocationUnknown,
    SimulatedEvidence,
)
from sealtrain.attest.nvidia.device import verify_device
from sealtrain.attest.nvidia.parse import GpuDevice, GpuEvidence
from sealtrain.attest.nvidia.policy import NvidiaPolicy
from sealtrain.attest.nvidia.spdm import OpaqueField
from sealtrain.attest.nvidia.verify import VerifiedGpus, verify_gpus
from sealtrain.base.encoding import to_base64
from sealtrain.base.models import load_model
from sealtrain.errors import EvidenceRefused, TrustInvalid
from sealtrain_rehearsal.simulator.gpu import SimulatedGpus
from sealtrain_rehearsal.simulator.gpu_collateral import simulate_collateral

pytestmark = pytest.mark.claim("C40")

GPUS = machine()
EVIDENCE = GPUS.evidence(NONCE)
COLLATERAL = simulate_collateral(GPUS, NOW)
ALL = range(len(EVIDENCE.devices))
GPU_PLACES, SWITCH_PLACES = ALL[:4], ALL[4:]


def judged(evidence: GpuEvidence, nonce: bytes = NONCE, **changes: Any) -> VerifiedGpus:
    return judged_by(GPUS, evidence, COLLATERAL, nonce=nonce, **changes)


def hardware(evidence: GpuEvidence, nonce: bytes, **changes: Any) -> VerifiedGpus:
    fields = hardware_policy_fields(**changes)
    policy = load_model(NvidiaPolicy, fields, TrustInvalid, "policy")
    return verify_gpus(evidence, policy, None, nonce=nonce, simulator_root=None, now=NOW)


def told(
    at: int, change: Callable[[Parts], Parts], evidence: GpuEvidence = EVIDENCE
) -> GpuEvidence:
    device = (*GPUS.gpu_devices, *GPUS.switch_devices)[at]
    return resigned(evidence, at, device, change)


def test_the_honest_machine_is_accepted() -> None:
    """Otherwise nothing below would mean anything."""
    assert judged(EVIDENCE).mode == "protected_pcie"
    assert judged(told(0, lambda parts: parts)).mode == "protected_pcie"
    assert judged(told(4, lambda parts: parts)).mode == "protected_pcie"


@pytest.mark.negative(42)
def test_a_report_of_another_device_is_refused(shared: Path) -> None:
    (bad,) = captured(shared, "hopper_bad_signature")
    with pytest.raises(GpuReportInvalid, check=carries(check="GPU report signature")):
        verify_device(bad, simulator_root=None, now=NOW)


@pytest.mark.negative(42)
def test_a_switch_whose_report_was_altered_is_refused(shared: Path) -> None:
    (switch,) = captured(shared, "switch_ls10")
    raw = switch.report_bytes
    # Nonce, a digest, the responder's nonce, an opaque field, both halves of the signature.
    for at in (4, 60, 45 + 1705, 45 + 1705 + 40, len(raw) - 96, len(raw) - 1):
        forged = raw[:at] + bytes([raw[at] ^ 0x10]) + raw[at + 1 :]
        device = switch.model_copy(update={"report": to_base64(forged)})
        with pytest.raises(GpuReportInvalid):
            verify_device(device, simulator_root=None, now=NOW)


@pytest.mark.negative(42)
@pytest.mark.parametrize("half", [bytes(48), b"\xff" * 48, bytes(47) + b"\x01"])
def test_signatures_with_degenerate_halves_are_refused(half: bytes) -> None:
    raw = EVIDENCE.devices[0].report_bytes
    for signature in (half + raw[-48:], raw[-96:-48] + half, half + half):
        device = EVIDENCE.devices[0].model_copy(update={"report": to_base64(raw[:-96] + signature)})
        with pytest.raises(GpuReportInvalid):
            verify_device(device, simulator_root=GPUS.root_der, now=NOW)


@pytest.mark.negative(43)
@pytest.mark.parametrize(
    "nonce", [bytes(32), NONCE[:31], NONCE[:-1] + b"\0", NONCE + b"\0", b"", NONCE[::-1]]
)
def test_accelerators_of_another_conversation_are_refused(nonce: bytes) -> None:
    with pytest.raises(GpuNonceMismatch):
        judged(EVIDENCE, nonce)


@pytest.mark.negative(43)
def test_one_device_of_another_conversation_is_enough() -> None:
    other = GPUS.evidence(bytes(32))
    for at in ALL:
        devices = list(EVIDENCE.devices)
        devices[at] = other.devices[at]
        with pytest.raises(GpuNonceMismatch):
            judged(GpuEvidence.build(tuple(devices), EVIDENCE.claims))


@pytest.mark.negative(44)
def test_gpus_of_one_capture_do_not_answer_for_another(shared: Path) -> None:
    names = ("hopper_580_mpt", "hopper_535")
    mine, other = (bytes.fromhex(expected(shared, name)[0]["nonce"]) for name in names)
    evidence = GpuEvidence.build(captured(shared, names[0]), claims(driver_version="580.159.03"))
    assert hardware(evidence, mine).mode == "single"
    with pytest.raises(GpuNonceMismatch):
        hardware(evidence, other)


@pytest.mark.negative(45)
def test_four_times_the_same_switch_is_refused(shared: Path) -> None:
    """The vendor's own sample of a set of switches."""
    switches = captured(shared, "switch_ls10_x4_duplicate")
    nonce = bytes.fromhex(expected(shared, "switch_ls10_x4_duplicate")[0]["nonce"])
    (gpu,) = captured(shared, "hopper_cert_hold")
    assert bytes.fromhex(expected(shared, "hopper_cert_hold")[0]["nonce"]) == nonce
    evidence = GpuEvidence.build((gpu, *switches), claims(driver_version="570.86.10"))
    with pytest.raises(GpuSetRefused, check=carries(check="GPU set", expected="distinct devices")):
        hardware(evidence, nonce, switch_count=4)


@pytest.mark.negative(45)
@pytest.mark.parametrize(
    "places",
    [
        (0, 1, 2, 4, 5),  # a GPU fewer
        (0, 1, 2, 3, 4),  # a switch fewer
        (0, 1, 2, 3),  # no switch
        (4, 5),  # no GPU
        (0, 1, 2, 2, 4, 5),  # a GPU twice
        (0, 1, 2, 3, 4, 4),  # a switch twice
        (0, 1, 2, 3, 3, 4, 5),  # one more, shown twice
    ],
)
def test_missing_and_repeated_devices_are_refused(places: tuple[int, ...]) -> None:
    with pytest.raises(GpuSetRefused):
        judged(showing(EVIDENCE, *places))


@pytest.mark.negative(45)
@pytest.mark.parametrize("changes", [{"gpu_count": 3}, {"gpu_count": 5}, {"switch_count": 4}])
def test_a_whole_machine_of_another_size_is_refused(changes: dict[str, Any]) -> None:
    """Every GPU names exactly the switches that are shown; there are still too few."""
    with pytest.raises(GpuSetRefused, check=carries(expected=str(next(iter(changes.values()))))):
        judged(EVIDENCE, **changes)


@pytest.mark.negative(45)
def test_a_driver_that_sees_more_gpus_than_are_shown_is_believed() -> None:
    for count in (0, 3, 5):
        with pytest.raises(GpuSetRefused):
            judged(claiming(EVIDENCE, gpu_count=count))


@pytest.mark.negative(45)
def test_one_device_with_two_firmware_keys_is_one_device() -> None:
    """A device certifies a second key for itself; both chains and both reports hold."""
    mpt = SimulatedGpus(b"two GPUs that are one device", count=2, mode="mpt")
    first, second = mpt.gpu_devices
    twin = replace(second, chain=(*second.chain[:1], *first.chain[1:]))
    leaf, boot = second.chain[0].certificate, first.chain[1]
    builder = x509.CertificateBuilder(
        boot.certificate.subject,
        leaf.subject,
        second.key.public_key(),
        leaf.serial_number,
        leaf.not_valid_before_utc,
        leaf.not_valid_after_utc,
    )
    for extension in leaf.extensions:
        builder = builder.add_extension(extension.value, critical=extension.critical)
    certified = builder.sign(boot.key, leaf.signature_hash_algorithm)  # type: ignore[arg-type]
    chain = (replace(twin.chain[0], certificate=certified), *twin.chain[1:])
    evidence = mpt.evidence(NONCE)
    pem = b"".join(certificate.certificate.public_bytes(Encoding.PEM) for certificate in chain)
    forged = GpuDevice.build("HOPPER", evidence.devices[1].report_bytes, pem)
    assert verify_device(forged, simulator_root=mpt.root_der, now=NOW).ueid
    shown = GpuEvidence.build((evidence.devices[0], forged), evidence.claims)
    with pytest.raises(GpuSetRefused, check=carries(check="GPU set", got="4179b2cc5838b6d172")):
        judged_by(mpt, shown, None, reference_values="any")


@pytest.mark.negative(46)
@pytest.mark.parametrize(
    ("status", "flag"),
    [
        (b"\x55", b"\x02\x00"),
        (b"\xaa", b"\x00\x00"),
        (b"\xaa", b"\x01\x00"),
        (b"\x55", b"\x00\x00"),
        (None, b"\x02\x00"),
        (None, None),
        (b"\x55", None),
    ],
)
@pytest.mark.parametrize("places", [(0,), (3,), tuple(GPU_PLACES)])
def test_gpus_that_do_not_report_the_protected_mode_are_refused(
    status: bytes | None, flag: bytes | None, places: tuple[int, ...]
) -> None:
    evidence = EVIDENCE
    for at in places:
        evidence = told(
            at,
            lambda parts: parts.with_field(OpaqueField.PROTECTED_PCIE, status).with_field(
                OpaqueField.FEATURE_FLAG, flag
            ),
            evidence,
        )
    with pytest.raises(GpuModeRefused):
        judged(evidence, mode=["single", "mpt", "protected_pcie"])


@pytest.mark.negative(46)
@pytest.mark.parametrize("mode", ["none", "nvle"])
def test_a_driver_that_contradicts_its_gpus_is_refused(mode: str) -> None:
    with pytest.raises(GpuModeRefused):
        judged(claiming(EVIDENCE, multi_gpu_mode=mode), mode=["single", "mpt", "protected_pcie"])


# What a driver reads, what its GPU reports (status, flag), and the mode they make, if they agree.
AGREEMENTS: tuple[tuple[str, bytes | None, bytes | None, str | None], ...] = (
    ("none", b"\x55", b"\x00\x00", "single"),
    ("none", b"\x55", None, "single"),
    ("none", None, None, "single"),
    ("none", b"\x55", b"\x01\x00", "mpt"),
    ("nvle", b"\x55", b"\x01\x00", "mpt"),
    ("none", b"\xaa", b"\x00\x00", None),
    ("none", b"\xaa", None, None),
    ("none", b"\x55", b"\x02\x00", None),
    ("none", None, b"\x02\x00", None),
    ("nvle", b"\x55", b"\x00\x00", None),
    ("nvle", b"\x55", None, None),
    ("nvle", b"\xaa", b"\x01\x00", None),
)


@pytest.mark.negative(46)
@pytest.mark.parametrize(("driver", "status", "flag", "mode"), AGREEMENTS)
def test_driver_status_and_flag_must_agree(
    driver: str, status: bytes | None, flag: bytes | None, mode: str | None
) -> None:
    alone = SimulatedGpus(b"one GPU and what it reports", count=1)
    evidence = resigned(
        claiming(alone.evidence(NONCE), multi_gpu_mode=driver),
        0,
        alone.gpu_devices[0],
        lambda parts: parts.with_field(OpaqueField.PROTECTED_PCIE, status).with_field(
            OpaqueField.FEATURE_FLAG, flag
        ),
    )

    def verdict() -> VerifiedGpus:
        return judged_by(
            alone, evidence, None, mode=["single", "mpt", "protected_pcie"], reference_values="any"
        )

    if mode is None:
        with pytest.raises(GpuModeRefused):
            verdict()
    else:
        assert verdict().mode == mode


@pytest.mark.negative(46)
def test_captured_gpus_in_the_other_mode_are_refused(shared: Path) -> None:
    nonce = bytes.fromhex(expected(shared, "hopper_580_mpt")[0]["nonce"])
    wrong = claims(driver_version="580.159.03", multi_gpu_mode="protected_pcie")
    with pytest.raises(GpuModeRefused):
        hardware(
            GpuEvidence.build(captured(shared, "hopper_580_mpt"), wrong),
            nonce,
            mode=["single", "mpt", "protected_pcie"],
            switch_count="any",
        )


@pytest.mark.negative(46)
def test_a_mode_outside_the_policy_is_refused() -> None:
    with pytest.raises(GpuModeRefused):
        judged(EVIDENCE, mode=["single", "mpt"])


@pytest.mark.negative(46)
def test_several_gpus_that_do_not_say_how_they_talk_are_refused() -> None:
    mpt = SimulatedGpus(b"two GPUs with an old driver", count=2, mode="mpt")
    evidence = mpt.evidence(NONCE)
    for at in (0, 1):
        evidence = resigned(
            evidence,
            at,
            mpt.gpu_devices[at],
            lambda parts: parts.with_field(OpaqueField.FEATURE_FLAG, None),
        )
    with pytest.raises(GpuModeRefused, check=carries(check="GPU mode")):
        judged_by(
            mpt, evidence, simulate_collateral(mpt, NOW), mode=["single", "mpt", "protected_pcie"]
        )


@pytest.mark.negative(46)
@pytest.mark.parametrize("at", [0, 1])
def test_gpus_that_are_passed_on_differently_are_no_set(at: int) -> None:
    mpt = SimulatedGpus(b"two GPUs, one passed on alone", count=2, mode="mpt")
    alone = resigned(
        mpt.evidence(NONCE),
        at,
        mpt.gpu_devices[at],
        lambda parts: parts.with_field(OpaqueField.FEATURE_FLAG, b"\x00\x00"),
    )
    with pytest.raises(GpuModeRefused, check=carries(check="GPU mode", expected="one mode")):
        judged_by(mpt, alone, None, mode=["single", "mpt"], reference_values="any")


def test_what_the_policy_requires_and_nobody_brought_is_refused() -> None:
    for changes, error in (
        ({"reference_values": "require"}, ReferenceValueMismatch),
        ({"revocation": "require"}, RevocationUnknown),
        ({"nras": "require"}, RemoteVerdictRefused),
    ):
        fields: dict[str, Any] = {"reference_values": "any", **changes}
        with pytest.raises(error):
            judged_by(GPUS, EVIDENCE, None, **fields)


@pytest.mark.negative(47)
@pytest.mark.parametrize(
    "changes",
    [
        {"dev_tools": True},
        {"cc_feature": False, "multi_gpu_mode": "none"},
        {"environment": "SIM"},
        {"environment": "UNAVAILABLE"},
        {"driver_version": "580.95.06"},
    ],
    ids=str,
)
def test_gpus_that_do_not_protect_the_guest_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(GpuModeRefused):
        judged(claiming(EVIDENCE, **changes))


@pytest.mark.negative(48)
def test_gpus_wired_to_other_switches_are_refused() -> None:
    own = [device.pdi[::-1] for device in GPUS.switch_devices]
    other = b"\x11" * 8
    for wires in (
        own[0] * 18,
        (own[0] + own[1] + other) * 6,
        (own[0] + other) * 9,
        (own[0][::-1] + own[1][::-1]) * 9,
        bytes(144),
        b"",
    ):
        with pytest.raises(GpuSetRefused) as refused:
            judged(told(1, lambda parts, wires=wires: parts.with_field(OpaqueField.PDI, wires)))  # type: ignore[misc]
        assert refused.value.check == "GPU topology"
        everywhere = EVIDENCE
        for at in GPU_PLACES:
            everywhere = told(
                at,
                lambda parts, wires=wires: parts.with_field(OpaqueField.PDI, wires),  # type: ignore[misc]
                everywhere,
            )
        with pytest.raises(GpuSetRefused):
            judged(everywhere)
    # Ports without a switch read zero and count for nothing.
    some = (own[0] + own[1] + bytes(8)) * 6
    assert judged(told(1, lambda parts: parts.with_field(OpaqueField.PDI, some)))


@pytest.mark.negative(48)
def test_captured_gpus_without_their_switches_are_refused(shared: Path) -> None:
    name = "hopper_multi4_ppcie"
    nonce = bytes.fromhex(expected(shared, name)[0]["nonce"])
    fitting = claims(multi_gpu_mode="protected_pcie", gpu_count=4)
    mode = ["mpt", "protected_pcie"]
    for switches, devices in (
        (0, captured(shared, name)),
        (4, captured(shared, name)),
    ):
        with pytest.raises(GpuSetRefused):
            hardware(
                GpuEvidence.build(devices, fitting),
                nonce,
                gpu_count=4,
                switch_count=switches,
                mode=mode,
            )


@pytest.mark.negative(48)
def test_switches_beside_gpus_that_are_not_wired_to_them_are_refused() -> None:
    mpt = SimulatedGpus(b"a simulated machine with GPUs", count=4, mode="mpt")
    assert mpt.root_der == GPUS.root_der
    gpus = mpt.evidence(NONCE)
    shown = GpuEvidence.build((*gpus.devices, *EVIDENCE.devices[4:]), gpus.claims)
    with pytest.raises(GpuSetRefused) as refused:
        judged(shown, mode=["mpt"])
    assert refused.value.check == "GPU topology"


@pytest.mark.negative(49)
def test_a_simulators_gpus_are_never_hardware() -> None:
    fields = hardware_policy_fields(gpu_count=4, switch_count=2, mode=["protected_pcie"])
    policy = load_model(NvidiaPolicy, fields, TrustInvalid, "policy")
    with pytest.raises(SimulatedEvidence):
        verify_gpus(EVIDENCE, policy, COLLATERAL, nonce=NONCE, simulator_root=None, now=NOW)


@pytest.mark.negative(49)
def test_the_chain_of_another_gpu_is_refused(shared: Path) -> None:
    first, second = captured(shared, "hopper_multi4_ppcie")[:2]
    swapped = first.model_copy(update={"certificate_chain": second.certificate_chain})
    with pytest.raises(GpuReportInvalid, check=carries(check="GPU report signature")):
        verify_device(swapped, simulator_root=None, now=NOW)


@pytest.mark.negative(49)
def test_a_key_made_for_other_firmware_is_refused() -> None:
    for fwid in (bytes(48), GPUS.gpu_devices[1].fwid):
        with pytest.raises(CertificateChainInvalid, check=carries(check="firmware id")):
            judged(told(0, lambda parts, fwid=fwid: parts.with_field(OpaqueField.FWID, fwid)))  # type: ignore[misc]


@pytest.mark.negative(49)
def test_a_device_under_another_name_is_refused() -> None:
    gpu, switch = EVIDENCE.devices[0], EVIDENCE.devices[4]
    for device, update in (
        (gpu, {"architecture": "BLACKWELL"}),
        (gpu, {"architecture": "LS10", "kind": "switch"}),
        (switch, {"architecture": "HOPPER", "kind": "gpu"}),
    ):
        with pytest.raises(GpuReportInvalid, check=carries(check="GPU architecture")):
            verify_device(device.model_copy(update=update), simulator_root=GPUS.root_der, now=NOW)
    # A switch that claims a driver would read as a GPU; its certificate says otherwise.
    parts = take_apart(switch.report_bytes).with_field(OpaqueField.DRIVER_VERSION, b"580.95.05\0")
    report = put_together(parts, GPUS.switch_devices[0].key)
    for update in (
        {"architecture": "HOPPER", "kind": "gpu"},
        {"architecture": "LS10", "kind": "switch"},
    ):
        device = switch.model_copy(update={"report": to_base64(report), **update})
        with pytest.raises(GpuReportInvalid):
            verify_device(device, simulator_root=GPUS.root_der, now=NOW)


@pytest.mark.negative(45)
@pytest.mark.parametrize(
    ("at", "field", "value"),
    [
        (2, OpaqueField.DRIVER_VERSION, b"580.95.04\0"),
        (2, OpaqueField.VBIOS_VERSION, bytes.fromhex("00d0009602000000")),
        (5, OpaqueField.VBIOS_VERSION, b"96.10.73.00.02"),
    ],
)
def test_devices_of_different_firmware_are_no_set(
    at: int, field: OpaqueField, value: bytes
) -> None:
    with pytest.raises(GpuSetRefused, check=carries(expected="one version")):
        judged(told(at, lambda parts: parts.with_field(field, value)), reference_values="any")


@pytest.mark.negative(50)
def test_firmware_that_measures_otherwise_is_refused() -> None:
    def altered(parts: Parts) -> Parts:
        return replace(parts, blocks=(*parts.blocks[:29], (30, bytes(48)), *parts.blocks[30:]))

    def shorter(parts: Parts) -> Parts:
        return replace(parts, blocks=parts.blocks[:29])

    for change in (altered, shorter):
        with pytest.raises(ReferenceValueMismatch):
            judged(told(3, change))


def flipped(data: bytes, step: int) -> list[bytes]:
    """``data`` with each ``step``-th byte changed in one bit."""
    return [
        data[:at] + bytes([data[at] ^ (1 << at % 8)]) + data[at + 1 :]
        for at in range(0, len(data), step)
    ]


@pytest.mark.negative(42)
@pytest.mark.parametrize(
    ("name", "step"), [("hopper_535", 13), ("hopper_580_mpt", 17), ("switch_ls10", 11)]
)
def test_no_changed_byte_of_a_captured_report_is_accepted(
    shared: Path, name: str, step: int
) -> None:
    """The signature covers every byte before it, so there is none that may change."""
    (device,) = captured(shared, name)
    verify_device(device, simulator_root=None, now=NOW)
    for raw in flipped(device.report_bytes, step):
        with pytest.raises(GpuReportInvalid):
            verify_device(
                device.model_copy(update={"report": to_base64(raw)}), simulator_root=None, now=NOW
            )


@pytest.mark.negative(49)
def test_no_changed_byte_of_a_captured_chain_is_accepted(shared: Path) -> None:
    (device,) = captured(shared, "hopper_580_mpt")
    chain = x509.load_pem_x509_certificates(device.certificate_chain.encode())
    ders = [certificate.public_bytes(Encoding.DER) for certificate in chain]
    for depth, der in enumerate(ders):
        for forged in flipped(der, 17):
            text = "".join(_pem(forged if at == depth else der) for at, der in enumerate(ders))
            with pytest.raises(EvidenceRefused):
                verify_device(
                    device.model_copy(update={"certificate_chain": text}),
                    simulator_root=None,
                    now=NOW,
                )


def test_a_second_spelling_of_a_signature_is_the_same_report() -> None:
    """ECDSA signatures have two encodings; what names a report is what was signed."""
    order = int(
        "ffffffffffffffffffffffffffffffffffffffffffffffff"
        "c7634d81f4372ddf581a0db248b0a77aecec196accc52973",
        16,
    )
    shown = EVIDENCE.devices[0]
    raw = shown.report_bytes
    other = raw[:-48] + (order - int.from_bytes(raw[-48:], "big")).to_bytes(48, "big")
    twice = shown.model_copy(update={"report": to_base64(other)})
    first, second = (
        verify_device(device, simulator_root=GPUS.root_der, now=NOW) for device in (shown, twice)
    )
    assert first.report.identity == second.report.identity


def _pem(der: bytes) -> str:
    body = to_base64(der)
    lines = "\n".join(body[at : at + 64] for at in range(0, len(body), 64))
    return f"-----BEGIN CERTIFICATE-----\n{lines}\n-----END CERTIFICATE-----\n"
