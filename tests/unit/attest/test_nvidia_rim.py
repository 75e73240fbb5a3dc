"""Reference values: authentic, for this version, equal on every active index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from carrying import carries
from gpu_world import captured
from nvidia_world import (
    DRIVER,
    DRIVER_RIM,
    HOUR,
    MEASUREMENTS,
    NOW,
    PKI,
    SWITCH_RIM,
    VBIOS,
    VBIOS_RIM,
    authority,
    digest,
    policy,
    rim,
    verified,
)

from sealtrain.attest.errors import EvidenceMalformed, ReferenceValueInvalid, ReferenceValueMismatch
from sealtrain.attest.nvidia.collateral import GpuCollateral
from sealtrain.attest.nvidia.device import VerifiedDevice, verify_device
from sealtrain.attest.nvidia.rim import (
    check_reference_values,
    compare_measurements,
    parse_rim,
    rim_ids,
    verify_rim,
)
from sealtrain.base.digests import sha256_hex

ROOT = PKI.rim_signer[-1].der
DRIVER_VALUES = {7: [digest("another"), MEASUREMENTS[8]], 21: [MEASUREMENTS[22]]}
VBIOS_VALUES = {0: [MEASUREMENTS[1]], 9: [MEASUREMENTS[10]]}
VECTOR_TIME = 1_735_689_600  # 2025-01-01: every signer of the vectors was valid
VBIOS_535 = "vbios_1010_0200_882_96005E0001.swidtag"


def files(
    driver: Mapping[int, Sequence[bytes]] = DRIVER_VALUES,
    vbios: Mapping[int, Sequence[bytes]] = VBIOS_VALUES,
    **changes: Any,
) -> GpuCollateral:
    rims = {DRIVER_RIM: rim(DRIVER, driver), VBIOS_RIM: rim(VBIOS, vbios), **changes}
    return GpuCollateral.build(
        rims={name: xml for name, xml in rims.items() if xml is not None}, ocsp=()
    )


def check(device: VerifiedDevice, collateral: GpuCollateral | None, **changes: Any) -> list[str]:
    claims = check_reference_values(
        device, collateral, policy(**changes), simulator_root=ROOT, now=NOW
    )
    return [claim.got for claim in claims]


def test_names_of_the_files_follow_from_the_report() -> None:
    assert rim_ids(verified()) == (DRIVER_RIM, VBIOS_RIM)
    assert rim_ids(verified("switch")) == (SWITCH_RIM,)


def test_both_files_of_a_gpu_match() -> None:
    assert check(verified(), files()) == [
        DRIVER,
        "2 of 2 compared, all equal",
        VBIOS,
        "2 of 2 compared, all equal",
    ]


def test_a_switch_has_one_file() -> None:
    values = {3: [MEASUREMENTS[4]]}
    collateral = GpuCollateral.build(rims={SWITCH_RIM: rim("96.10.6d.00.01", values)}, ocsp=())
    assert check(verified("switch"), collateral) == ["96.10.6D.00.01", "1 of 1 compared, all equal"]


def test_a_policy_that_does_not_look_says_so() -> None:
    assert check(verified(), None, reference_values="any") == ["not compared"]


def test_inactive_indices_do_not_count() -> None:
    values = {**VBIOS_VALUES, 11: [digest("not yet in use")]}
    collateral = files(**{VBIOS_RIM: rim(VBIOS, values, inactive=[11])})
    assert check(verified(), collateral)[-1] == "2 of 2 compared, all equal"


@pytest.mark.negative(50)
@pytest.mark.parametrize("missing", [DRIVER_RIM, VBIOS_RIM])
def test_each_file_must_be_there(missing: str) -> None:
    with pytest.raises(
        ReferenceValueMismatch, check=carries(check="reference values", got="no such file")
    ):
        check(verified(), files(**{missing: None}))
    with pytest.raises(
        ReferenceValueMismatch, check=carries(check="reference values", got="no such file")
    ):
        check(verified(), None)


@pytest.mark.negative(50)
@pytest.mark.parametrize("index", [0, 7, 9, 21])
def test_every_index_must_match(index: int) -> None:
    altered = {**MEASUREMENTS, index + 1: digest("altered firmware")}
    with pytest.raises(ReferenceValueMismatch, match=f"index {index}:"):
        check(verified(measurements=altered), files())


@pytest.mark.negative(50)
def test_a_measurement_at_its_neighbour_does_not_match() -> None:
    shifted = {index + 1: values for index, values in VBIOS_VALUES.items()}
    with pytest.raises(ReferenceValueMismatch):
        check(verified(), files(vbios=shifted))


@pytest.mark.negative(50)
def test_an_index_the_report_lacks_does_not_match() -> None:
    fewer = {block: value for block, value in MEASUREMENTS.items() if block < 20}
    with pytest.raises(
        ReferenceValueMismatch,
        check=carries(check="reference values", got=f"{DRIVER_RIM} index 21: no such block"),
    ):
        check(verified(measurements=fewer), files())


@pytest.mark.negative(50)
def test_driver_and_vbios_share_no_index() -> None:
    overlapping = {**VBIOS_VALUES, 21: [MEASUREMENTS[22]]}
    with pytest.raises(
        ReferenceValueMismatch,
        check=carries(check="reference values", got="index 21 in both files"),
    ):
        check(verified(), files(vbios=overlapping))


@pytest.mark.negative(50)
@pytest.mark.parametrize(
    ("rim_id", "version"), [(DRIVER_RIM, "590.13"), (VBIOS_RIM, "96.00.A5.00.02")]
)
def test_a_valid_file_of_another_version_is_refused(rim_id: str, version: str) -> None:
    values = DRIVER_VALUES if rim_id == DRIVER_RIM else VBIOS_VALUES
    with pytest.raises(ReferenceValueMismatch, check=carries(expected=version)):
        check(verified(), files(**{rim_id: rim(version, values)}))


@pytest.mark.negative(50)
def test_files_do_not_stand_in_for_each_other() -> None:
    with pytest.raises(ReferenceValueMismatch):
        check(verified(), files(**{VBIOS_RIM: rim(DRIVER, DRIVER_VALUES)}))


@pytest.mark.parametrize(("nvdec0", "counts"), [(b"\x55", False), (b"\xaa", True), (None, True)])
def test_the_decoder_index_counts_unless_the_decoder_is_off(
    nvdec0: bytes | None, counts: bool
) -> None:
    right = {**DRIVER_VALUES, 35: [MEASUREMENTS[36]]}
    wrong = {**DRIVER_VALUES, 35: [digest("another")]}
    device = verified(nvdec0=nvdec0)
    compared = 3 if counts else 2
    assert check(device, files(driver=right))[1] == f"{compared} of 3 compared, all equal"
    if counts:
        with pytest.raises(ReferenceValueMismatch, match="index 35:"):
            check(device, files(driver=wrong))
    else:
        assert check(device, files(driver=wrong))[1] == "2 of 3 compared, all equal"


def test_a_pinned_file_outlives_its_signer() -> None:
    old = authority("signer", PKI.rim_signer[-1], ca=False, end=NOW - HOUR)
    chain = [old, PKI.rim_signer[-1]]
    kept = {
        DRIVER_RIM: rim(DRIVER, DRIVER_VALUES, chain=chain),
        VBIOS_RIM: rim(VBIOS, VBIOS_VALUES),
    }
    pins = {name: [sha256_hex(xml)] for name, xml in kept.items()}
    collateral = GpuCollateral.build(rims=kept, ocsp=())
    assert len(check(verified(), collateral, reference_values=pins)) == 4
    with pytest.raises(ReferenceValueInvalid, check=carries(check="reference values")):
        check(verified(), collateral)


@pytest.mark.negative(50)
def test_a_file_that_is_not_pinned_is_refused() -> None:
    pins = {DRIVER_RIM: ["00" * 32], VBIOS_RIM: ["11" * 32]}
    with pytest.raises(ReferenceValueInvalid, check=carries(check="reference values")):
        check(verified(), files(), reference_values=pins)
    with pytest.raises(
        ReferenceValueInvalid,
        check=carries(check="reference values", expected="no file NV_GPU_DRIVER_GH100_590.12"),
    ):
        check(verified(), files(), reference_values={"OTHER": ["00" * 32]})


@pytest.mark.negative(50)
def test_a_pin_does_not_replace_the_signature() -> None:
    forged = rim(DRIVER, DRIVER_VALUES, chain=[authority("forger", None)] * 2)
    pins = {DRIVER_RIM: [sha256_hex(forged)], VBIOS_RIM: ["11" * 32]}
    with pytest.raises(ReferenceValueInvalid):
        check(verified(), files(**{DRIVER_RIM: forged}), reference_values=pins)


def test_window_of_the_signer_is_returned_and_both_ends_hold() -> None:
    signer = authority("signer", PKI.rim_signer[-1], ca=False)
    xml = rim(DRIVER, DRIVER_VALUES, chain=[signer, PKI.rim_signer[-1]])
    found = verify_rim(xml, simulator_root=ROOT, now=NOW, pinned=False)
    assert (found.not_before, found.not_after) == (NOW - 100 * HOUR, NOW + 100 * HOUR)
    assert found.simulated
    for now in (found.not_before, found.not_after):
        verify_rim(xml, simulator_root=ROOT, now=now, pinned=False)
    for now in (found.not_before - 1, found.not_after + 1):
        with pytest.raises(ReferenceValueInvalid, check=carries(check="reference values")):
            verify_rim(xml, simulator_root=ROOT, now=now, pinned=False)


def test_a_file_can_be_read_without_being_believed() -> None:
    forged = rim(DRIVER, DRIVER_VALUES, chain=[authority("forger", None)] * 2)
    read = parse_rim(forged)
    assert (read.version, read.product, sorted(read.measurements)) == (DRIVER, "GH100", [7, 21])


def real_device(shared: Path, name: str) -> VerifiedDevice:
    (device,) = captured(shared, name)
    return verify_device(device, simulator_root=None, now=VECTOR_TIME)


def test_vbios_file_of_a_real_gpu_matches_on_every_index(shared: Path) -> None:
    vectors = shared / "vectors/nvidia"
    device = real_device(shared, "hopper_535")
    xml = (vectors / "rim" / VBIOS_535).read_bytes()
    found = verify_rim(xml, simulator_root=None, now=VECTOR_TIME, pinned=False)
    assert rim_ids(device)[1] == f"NV_GPU_VBIOS_{VBIOS_535[6:-8]}"
    assert device.vbios_version == found.rim.version
    claim = compare_measurements(device, found.rim, name="VBIOS")
    assert claim.got == "12 of 12 compared, all equal"
    # Its signer expired on 2025-06-22; whoever pins the file may go on using it.
    with pytest.raises(ReferenceValueInvalid, check=carries(check="reference values")):
        verify_rim(xml, simulator_root=None, now=NOW, pinned=False)
    assert verify_rim(xml, simulator_root=None, now=NOW, pinned=True).rim == found.rim


@pytest.mark.negative(50)
def test_an_older_issue_of_a_real_file_differs_at_one_index(shared: Path) -> None:
    vectors = shared / "vectors/nvidia"
    device = real_device(shared, "hopper_580_mpt")
    xml = (vectors / "rim/vbios_1010_0205_862_9600740020.swidtag").read_bytes()
    found = verify_rim(xml, simulator_root=None, now=VECTOR_TIME, pinned=False)
    assert device.vbios_version == found.rim.version
    with pytest.raises(ReferenceValueMismatch, match="index 9:"):
        compare_measurements(device, found.rim, name="VBIOS")


@pytest.mark.negative(50)
@pytest.mark.parametrize(
    "name", ["driver_GH100_550.144.03_bad_signature.xml", "driver_bad_chain.xml"]
)
@pytest.mark.parametrize("pinned", [True, False])
def test_broken_real_files_are_refused(shared: Path, name: str, pinned: bool) -> None:
    xml = (shared / "vectors/nvidia/rim" / name).read_bytes()
    with pytest.raises(ReferenceValueInvalid):
        verify_rim(xml, simulator_root=None, now=VECTOR_TIME, pinned=pinned)


def test_collateral_comes_back_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "collateral.json"
    kept = files()
    path.write_bytes(kept.to_bytes())
    assert GpuCollateral.load(path) == kept
    assert GpuCollateral.from_bytes(kept.to_bytes()).rim(DRIVER_RIM) == kept.rim(DRIVER_RIM)


@pytest.mark.parametrize(
    "changes",
    [
        {"rims": {"../../etc": "QUJD"}},
        {"rims": {"A": "QUJ"}},
        {"rims": {"A": "QUJDRB=="}},
        {"rims": {f"A{number}": "QUJD" for number in range(33)}},
        {"rims": {"A": "A" * 400_000}},
        {"ocsp": ["QUJD"] * 129},
        {"ocsp": ["not base64"]},
        {"nras": {"token": "[]"}},
        {"nras": {"token": "[]", "jwks": "{}", "more": 1}},
        {"more": 1},
        {"ocsp": None},
    ],
)
def test_collateral_of_another_form_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(EvidenceMalformed):
        GpuCollateral.from_dict({"rims": {}, "ocsp": [], "nras": None, **changes})


@pytest.mark.parametrize("data", [b"", b"[]", b'{ "rims": {}, "ocsp": [], "nras": null }'])
def test_collateral_has_one_spelling(data: bytes) -> None:
    with pytest.raises(EvidenceMalformed):
        GpuCollateral.from_bytes(data)
