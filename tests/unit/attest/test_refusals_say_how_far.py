"""A refusal of a TCB or of firmware names component, value found, value needed, and what to do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from exhibit_world import ders_of, exhibit_of, real_collateral, snp_rules, tdx_rules
from nvidia_world import (
    DRIVER,
    DRIVER_RIM,
    MEASUREMENTS,
    NOW,
    PKI,
    VBIOS,
    VBIOS_RIM,
    digest,
    rim,
    verified,
)
from nvidia_world import policy as gpu_policy

from sealtrain.attest.bundle import Attachments
from sealtrain.attest.claims import require_groups, single
from sealtrain.attest.errors import ReferenceValueMismatch, TcbStatusRefused
from sealtrain.attest.exhibits import recognise
from sealtrain.attest.explain.examine import examine
from sealtrain.attest.explain.explanation import explain
from sealtrain.attest.nvidia.appraise import checks_of_device
from sealtrain.attest.nvidia.collateral import GpuCollateral
from sealtrain.attest.nvidia.rim import check_reference_values
from sealtrain.attest.policy import AppraisalPolicy, policy_from_dict
from sealtrain.attest.presets import insecure_simulator_policy
from sealtrain.attest.tdx.parse import parse_quote
from sealtrain.attest.tdx.security_versions import Levels, name_shortfalls
from sealtrain.errors import EvidenceRefused
from sealtrain_rehearsal.simulator.pki import SimulatedPki
from sealtrain_rehearsal.simulator.snp import SNP_TCB, SimulatedSnp

pytestmark = pytest.mark.claim("C422")

ASKED = bytes(64)
INTEL = SimulatedPki(b"a platform that is behind")
GUEST = SimulatedSnp(b"a chip that is behind")


def refused(
    raw: bytes, beside: Attachments, policy: AppraisalPolicy, now: int = NOW
) -> EvidenceRefused:
    with pytest.raises(TcbStatusRefused) as found:
        examine(recognise(raw), beside, policy, now)
    assert found.value.hint
    return found.value


# --- Intel -------------------------------------------------------------------------------------


def tdx(**rules: Any) -> AppraisalPolicy:
    document = insecure_simulator_policy(INTEL.root_der, tee="tdx").to_dict()
    return policy_from_dict({**document, "cpu": {**document["cpu"], **rules}})


@pytest.mark.negative(14)
def test_an_old_tdx_platform_is_told_each_component_it_lacks() -> None:
    needed = {"SEAMLDR ACM": 5, "TDX Late Microcode Update": 3, "PCE": 13}
    collateral = INTEL.collateral(NOW, tcb_status="OutOfDate", needed=needed)
    beside = Attachments(collateral=collateral)
    error = refused(INTEL.quote(ASKED), beside, tdx(tcb_status=["UpToDate"]))
    assert error.check == "TCB status"
    assert error.got == ("OutOfDate; SEAMLDR ACM SVN 0; TDX Late Microcode Update SVN 0; PCE SVN 0")
    assert error.expected == (
        "UpToDate; SEAMLDR ACM SVN 5; TDX Late Microcode Update SVN 3; PCE SVN 13"
    )
    # The same line of an explanation, which makes every comparison.
    told = explain(recognise(INTEL.quote(ASKED)), beside, tdx(tcb_status=["UpToDate"]), NOW)
    broken = [line for line in told.lines if line.name == "TCB status"]
    assert [(line.got, line.expected) for line in broken] == [(error.got, error.expected)]


@pytest.mark.negative(14)
@pytest.mark.parametrize("status", ["ConfigurationNeeded", "SWHardeningNeeded", "Revoked"])
def test_a_status_without_a_component_has_an_action_of_its_own(status: str) -> None:
    beside = Attachments(collateral=INTEL.collateral(NOW, tcb_status=status))
    error = refused(INTEL.quote(ASKED), beside, tdx(tcb_status=["UpToDate"]))
    assert (error.got, error.expected) == (status, "UpToDate")
    other = name_shortfalls("OutOfDate", None, ["UpToDate"])
    assert error.hint != other[2]


@pytest.mark.negative(14)
def test_open_advisories_are_named_and_no_others() -> None:
    advisories = ("INTEL-SA-00001", "INTEL-SA-00002")
    beside = Attachments(collateral=INTEL.collateral(NOW, advisories=advisories))
    error = refused(INTEL.quote(ASKED), beside, tdx(advisories=["INTEL-SA-00001"]))
    assert (error.check, error.got) == ("advisories", "INTEL-SA-00002")


@pytest.mark.negative(19)
def test_old_collateral_is_told_both_numbers() -> None:
    beside = Attachments(collateral=INTEL.collateral(NOW, tcb_evaluation_data_number=17))
    error = refused(INTEL.quote(ASKED), beside, tdx(min_tcb_evaluation_data_number=18))
    assert (error.check, error.got, error.expected) == ("collateral floor", "17", "at least 18")


@pytest.mark.negative(15)
def test_real_platforms_below_every_level_lack_their_seam_loader(shared: Path) -> None:
    for name, collateral, at in (
        ("tdx/tdx_quote_outdated", "tdx/tdx_quote_outdated_collateral.json", 1772708331),
        ("dstack/simulator-v0.5.4/quote.hex", "tdx/tdx_quote_collateral.json", 1750332747),
    ):
        beside = Attachments(collateral=real_collateral(shared, collateral))
        raw = exhibit_of(shared, name).raw
        error = refused(raw, beside, policy_from_dict(tdx_rules()), at)
        assert error.got == "no TCB level; SEAMLDR ACM SVN 3"
        assert error.expected == "UpToDate; SEAMLDR ACM SVN 5"


def test_a_module_of_its_own_levels_and_the_quoting_enclave_are_named(shared: Path) -> None:
    collateral = real_collateral(shared, "tdx/tdx_quote_collateral.json")
    quote = parse_quote(exhibit_of(shared, "tdx/tdx_quote").raw)
    assert Levels(quote=quote, collateral=collateral).shortfalls(["UpToDate"]) == ()
    older = replace(quote, tee_tcb_svn=b"\x02\x01" + quote.tee_tcb_svn[2:], qe_svn=0)
    behind = Levels(quote=older, collateral=collateral).shortfalls(["UpToDate"])
    assert [(item.component, item.found, item.needed) for item in behind] == [
        ("TDX Module", 2, 4),
        ("quoting enclave", 0, 4),
    ]
    # Nothing is said of documents of another form, and no error hides the refusal.
    for info in ("", "[]", "{}", '{"tcbLevels":[{}]}'):
        other = collateral.model_copy(update={"tcb_info": info})
        assert Levels(quote=older, collateral=other).shortfalls(["UpToDate"]) == ()


# --- AMD ---------------------------------------------------------------------------------------


def snp(guest: SimulatedSnp = GUEST, **rules: Any) -> AppraisalPolicy:
    document = insecure_simulator_policy(guest.root_der, tee="snp").to_dict()
    return policy_from_dict({**document, "cpu": {**document["cpu"], **rules}})


def of_report(
    policy: AppraisalPolicy, fault: str | None = None, guest: SimulatedSnp = GUEST
) -> EvidenceRefused:
    beside = Attachments(certificates=guest.certificates(fault=fault))
    return refused(guest.report(ASKED, b"{}", fault=fault), beside, policy)


@pytest.mark.negative(41)
def test_an_old_snp_platform_is_told_the_components_it_lacks_and_no_others() -> None:
    floor = {"Genoa": {**SNP_TCB, "fmc": None}}
    error = of_report(snp(minimum_tcb=floor), "old-tcb")
    assert (error.check, error.got, error.expected) == (
        "reported TCB",
        "microcode 199",
        "microcode at least 200",
    )
    floor["Genoa"] |= {"bootloader": 11, "snp": 24}
    error = of_report(snp(minimum_tcb=floor))
    assert error.got == "bootloader 10, snp 23"
    assert error.expected == "bootloader at least 11, snp at least 24"


@pytest.mark.negative(41)
def test_what_is_not_committed_is_named() -> None:
    error = of_report(snp(), "committed-below-reported")
    assert (error.check, error.got, error.expected) == (
        "committed TCB",
        "snp 22",
        "snp at least 23",
    )


@pytest.mark.negative(41)
def test_missing_mitigations_are_named_by_bit_and_old_reports_by_version() -> None:
    asked = {"Genoa": f"{0b1011:016x}"}
    newer = SimulatedSnp(b"a chip that is behind", version=5)
    error = of_report(snp(newer, mitigations=asked), guest=newer)
    assert error.expected == "at least 000000000000000b in both: bit 3"
    assert error.got == "launch 0000000000000003, current 0000000000000003"
    older = of_report(snp(mitigations=asked))
    assert older.got == "launch not reported, current not reported"
    assert older.hint != error.hint


@pytest.mark.negative(41)
def test_an_extended_tcb_is_named_by_when_it_was() -> None:
    guest = SimulatedSnp(b"a chip that is behind", version=6)
    error = of_report(snp(guest, extended_tcb=["00" * 32]), guest=guest)
    assert error.got is not None
    assert error.got.split()[0] == "current"
    assert error.expected == "00" * 32
    assert of_report(snp(extended_tcb=["00" * 32])).got == "not reported"


@pytest.mark.negative(41)
def test_a_real_platform_is_told_what_it_has_and_needs(shared: Path) -> None:
    certificates = ("sev-snp/genoa_azure_v3.cert.der", "sev-snp/roots/ask_ark_genoa.pem")
    beside = Attachments(certificates=ders_of(shared, certificates))
    rules = policy_from_dict(snp_rules("Genoa", (10, 0, 24, 84)))
    raw = exhibit_of(shared, "sev-snp/genoa_azure_v3.report.bin").raw
    error = refused(raw, beside, rules, 1_760_000_000)
    assert (error.got, error.expected) == ("snp 23", "snp at least 24")


# --- NVIDIA ------------------------------------------------------------------------------------


@pytest.mark.negative(50)
@pytest.mark.parametrize(("index", "rim_id"), [(7, DRIVER_RIM), (9, VBIOS_RIM)])
def test_firmware_that_differs_is_told_file_index_and_digests(index: int, rim_id: str) -> None:
    values = {7: [digest("another"), MEASUREMENTS[8]], 9: [MEASUREMENTS[10]]}
    files = {
        DRIVER_RIM: rim(DRIVER, {7: values[7]}),
        VBIOS_RIM: rim(VBIOS, {9: values[9]}),
    }
    collateral = GpuCollateral.build(rims=files, ocsp=())
    root = PKI.rim_signer[-1].der
    altered = {**MEASUREMENTS, index + 1: digest("altered firmware")}
    with pytest.raises(ReferenceValueMismatch) as found:
        check_reference_values(
            verified(measurements=altered), collateral, gpu_policy(), simulator_root=root, now=NOW
        )
    assert found.value.got == f"{rim_id} index {index}: {digest('altered firmware').hex()}"
    shown = ", ".join(value.hex() for value in values[index])
    assert found.value.expected == f"{rim_id} index {index}: {shown}"
    assert found.value.hint


@pytest.mark.negative(51)
def test_an_old_driver_is_told_both_versions() -> None:
    floor = {"minimum": "999.1", "denied": []}
    with pytest.raises(TcbStatusRefused) as found:
        require_groups(map(single, checks_of_device(verified(), gpu_policy(driver_versions=floor))))
    error = found.value
    assert (error.check, error.got, error.expected) == ("driver version", DRIVER, "at least 999.1")
    assert "999.1" in (error.hint or "")
