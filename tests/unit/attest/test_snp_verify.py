"""SEV-SNP reports of real machines and of the simulator: what they say, and when they are true."""

from __future__ import annotations

import json
import warnings
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import pytest
from carrying import carries
from cryptography import x509
from cryptography.utils import CryptographyDeprecationWarning
from exhibit_world import real_chain, real_report
from guests import require_rules, verified_guest
from policies import snp
from pydantic import ValidationError

from sealtrain.attest.errors import (
    CertificateChainInvalid,
    CertificateRevoked,
    DebugGuest,
    MeasurementMismatch,
    PlatformMismatch,
    RevocationUnknown,
    TcbStatusRefused,
)
from sealtrain.attest.snp import chain
from sealtrain.attest.snp.appraise import RULES, eat
from sealtrain.attest.snp.parse import (
    PlatformFlag,
    Product,
    SigningKey,
    Tcb,
    parse_report,
    tcb_of,
)
from sealtrain.attest.snp.policy import SnpPolicy
from sealtrain.attest.snp.verify import VerifiedReport, verify_report
from sealtrain.base.clock import to_rfc3339
from sealtrain.base.models import load_model
from sealtrain.errors import DataInvalid, EvidenceRefused, TrustInvalid
from sealtrain_rehearsal.simulator.snp import SNP_EXTENDED_TCB, SNP_MITIGATIONS, SimulatedSnp

NOW = 1_800_000_000
COMPOSE = b'{"name":"unit"}'
ASKED = bytes(range(64))
FLOOR = {"bootloader": 0, "tee": 0, "snp": 0, "microcode": 0}
# name, roots, first and last second of the leaf
REAL = [
    ("genoa_azure_v3", "genoa", 1737685308, 1958523708),
    ("milan_vcek_v2", "milan", 1674583106, 1895507906),
    ("milan_debug_policy", "milan", 1663980928, 1884905728),
]
real = pytest.mark.parametrize(("name", "root", "first", "last"), REAL, ids=[r[0] for r in REAL])


def policy(**changes: Any) -> SnpPolicy:
    return load_model(SnpPolicy, snp(**changes), TrustInvalid, "appraisal policy")


MILAN = {"products": ["InsecureMilan"], "minimum_tcb": {"InsecureMilan": FLOOR}}


def checked(shared: Path, name: str, root: str) -> VerifiedReport:
    """A real machine's report under the authorities of ``root``."""
    return verify_report(
        real_report(shared, name), real_chain(shared, name, root), simulator_root=None, now=NOW
    )


@real
def test_a_real_report_verifies_while_its_certificates_are_valid(
    shared: Path, name: str, root: str, first: int, last: int
) -> None:
    expected = json.loads((shared / "vectors/sev-snp/expected.json").read_text())[name]
    raw, certificates = real_report(shared, name), real_chain(shared, name, root)
    for now in (first, last):
        found = verify_report(raw, certificates, simulator_root=None, now=now)
    report = found.report
    assert not found.simulated
    assert found.product == expected["fam"]
    assert report.version == expected["ver"]
    assert report.debug == expected["debug"]
    assert report.migratable == expected["migrate"]
    assert report.vmpl == expected["vmpl"]
    assert (report.signing_key == "vlek") == expected["vlek"]
    assert report.chip_id.startswith(expected["chip"])
    assert report.measurement.startswith(expected["meas"])
    assert report.report_data.hex().startswith(expected["rd"])
    assert report.committed_tcb.hex() == expected["committed"]
    assert report.launch_tcb.hex() == expected["launch"]
    assert report.current_tcb.hex() == expected["cur"]
    assert hex(report.policy) == expected["policy"]
    assert hex(report.platform_info) == expected["plat"]
    tcb = expected["tcb"]
    assert found.reported_tcb == Tcb(
        bootloader=tcb["bl"], tee=tcb["tee"], snp=tcb["snp"], microcode=tcb["ucode"]
    )


@pytest.mark.negative(10)
@real
def test_a_real_report_is_refused_one_second_outside(
    shared: Path, name: str, root: str, first: int, last: int
) -> None:
    raw, certificates = real_report(shared, name), real_chain(shared, name, root)
    for now in (0, first - 1, last + 1, 1 << 40):
        with pytest.raises(CertificateChainInvalid) as caught:
            verify_report(raw, certificates, simulator_root=None, now=now)
        assert caught.value.check == "certificate dates"


@pytest.mark.negative(38)
def test_a_chip_certificate_that_amd_did_not_sign_is_refused(shared: Path) -> None:
    with pytest.raises(CertificateChainInvalid) as caught:
        checked(shared, "milan_wrong_vcek", "milan")
    assert caught.value.check == "certificate chain"


@pytest.mark.parametrize("root", ["milan", "genoa_vlek", "turin_vcek"])
def test_a_real_leaf_under_another_authority_of_amds_is_refused(shared: Path, root: str) -> None:
    with pytest.raises(CertificateChainInvalid):
        checked(shared, "genoa_azure_v3", root)


@pytest.mark.parametrize("name", ["milan", "genoa", "turin"])
@pytest.mark.parametrize("kind", ["vcek", "vlek"])
def test_every_authority_of_amds_holds_under_its_pinned_root(
    shared: Path, name: str, kind: SigningKey
) -> None:
    """No leaf of Turin is public; its authorities are."""
    suffix = {("turin", "vcek"): "_vcek", ("milan", "vcek"): "", ("genoa", "vcek"): ""}
    root = name + suffix.get((name, kind), "_vlek")
    _, issuer, ark = real_chain(shared, "genoa_azure_v3", root)
    _, product, found, begins, ends = chain.check_authority(issuer, ark, False)
    assert (product, found) == (name.capitalize(), kind)
    assert begins < NOW < ends


def test_a_real_genoa_guest_meets_a_fitting_policy(shared: Path) -> None:
    found = checked(shared, "genoa_azure_v3", "genoa")
    report = found.report
    assert report.author_key_enabled is False
    fitting = policy(
        measurements=[report.measurement],
        chip_ids=[report.chip_id],
        id_keys=[report.id_key_digest],
    )
    claims = require_rules(RULES, found, fitting, NOW)
    assert {claim.name for claim in claims} >= {"debug", "product", "chip", "guest image"}
    assert [c.outcome for c in claims if c.name == "chip"] == ["allowed"]
    assert eat(found) == {
        "hwmodel": "AMD EPYC Genoa",
        "hwversion": "family 0x19 model 0x11 stepping 1",
        "swversion": "SEV-SNP firmware 1.55.40; TCB bootloader 10, tee 0, snp 23, microcode 84",
        "dbgstat": "disabled-since-boot",
        "oemid": "3704",
        "ueid": report.chip_id,
    }


@pytest.mark.claim("C433")
@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"measurements": []}, MeasurementMismatch),
        ({"mitigations": {}}, TcbStatusRefused),
        ({"extended_tcb": []}, TcbStatusRefused),
        ({"chip_ids": []}, PlatformMismatch),
        ({"id_keys": []}, MeasurementMismatch),
    ],
    ids=str,
)
def test_a_list_that_its_author_has_not_filled_accepts_no_machine(
    shared: Path, changes: dict[str, Any], error: type[EvidenceRefused]
) -> None:
    found = checked(shared, "genoa_azure_v3", "genoa")
    require_rules(RULES, found, policy(measurements="any"), NOW)
    with pytest.raises(error):
        require_rules(RULES, found, policy(**{"measurements": "any"} | changes), NOW)


@pytest.mark.negative(40)
def test_a_real_milan_report_is_refused_by_every_policy_that_does_not_say_insecure(
    shared: Path,
) -> None:
    found = checked(shared, "milan_vcek_v2", "milan")
    with pytest.raises(PlatformMismatch, match=r"2605\.12990"):
        require_rules(RULES, found, policy(measurements="any"), NOW)
    require_rules(RULES, found, policy(measurements="any", **MILAN), NOW)


@pytest.mark.negative(37)
def test_a_real_debug_guest_is_refused(shared: Path) -> None:
    found = checked(shared, "milan_debug_policy", "milan")
    with pytest.raises(DebugGuest):
        require_rules(RULES, found, policy(measurements="any", **MILAN), NOW)


def test_the_library_still_loads_a_certificate_with_serial_number_zero(shared: Path) -> None:
    """When this fails, ``cryptography`` made its warning an error: pin it below that release."""
    leaf = real_chain(shared, "genoa_azure_v3", "genoa")[0]
    with pytest.warns(CryptographyDeprecationWarning):
        assert x509.load_der_x509_certificate(leaf).serial_number == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        filters = list(warnings.filters)
        assert chain.common_name(chain.load_certificate(leaf)) == "SEV-VCEK"
        assert warnings.filters == filters
        with pytest.raises(UserWarning):
            warnings.warn("others are heard", UserWarning, stacklevel=1)


@pytest.mark.parametrize("product", ["Milan", "Genoa", "Turin"])
@pytest.mark.parametrize("signing_key", ["vcek", "vlek"])
def test_a_simulated_guest_of_every_kind_is_accepted_by_its_policy(
    product: Product, signing_key: SigningKey
) -> None:
    guest = SimulatedSnp(b"unit tests of snp", product=product, signing_key=signing_key)
    name = "InsecureMilan" if product == "Milan" else product
    floor = {**FLOOR, "fmc": 1} if product == "Turin" else FLOOR
    fitting = policy(
        products=[name],
        minimum_tcb={name: floor},
        signing_keys=[signing_key],
        chip_ids=[guest.chip_id],
    )
    found = verified_guest(
        "snp",
        {
            "report_bytes": guest.report(ASKED, COMPOSE),
            "certificates_der": guest.certificates(),
            "crl_der": None,
        },
        COMPOSE,
        fitting,
        simulator_root=guest.root_der,
        now=NOW,
    )
    assert found.simulated
    assert found.report_data == ASKED
    assert found.app_id == found.compose_hash[:40]
    assert found.signed.product == product
    assert (found.signed.csp_id is None) == (signing_key == "vcek")
    assert len(require_rules(RULES, found.signed, fitting, NOW)) == 16
    other = SimulatedSnp(
        b"unit tests of snp", product=product, signing_key=signing_key, launch=b"again"
    )
    again = parse_report(other.report(ASKED, COMPOSE))
    assert again.chip_id == guest.chip_id
    assert again.report_id != found.instance_id


def test_turin_writes_its_levels_in_another_order() -> None:
    raw = bytes([1, 2, 3, 4, 0, 0, 0, 200])
    turin = tcb_of(raw, "Turin")
    assert turin == Tcb(fmc=1, bootloader=2, tee=3, snp=4, microcode=200)
    assert tcb_of(raw, "Genoa") == Tcb(bootloader=1, tee=2, snp=0, microcode=200)
    assert turin.below(tcb_of(raw, "Genoa")) == ("fmc",)
    assert turin.below(turin) == ()
    assert Tcb(fmc=1, bootloader=2, tee=2, snp=9, microcode=9).below(turin) == ("microcode", "tee")


@pytest.mark.parametrize("version", [2, 3, 4, 5, 6])
def test_each_version_adds_its_fields(version: int) -> None:
    turin = SimulatedSnp(b"unit tests of snp", product="Turin", version=version)
    report = parse_report(turin.report(ASKED, COMPOSE))
    bits, etcb = SNP_MITIGATIONS, SNP_EXTENDED_TCB.hex()
    assert report.version == version
    assert report.cpuid == ((0x1A, 2, 1) if version >= 3 else None)
    assert report.product == ("Turin" if version >= 3 else None)
    found = (report.launch_mitigations, report.current_mitigations)
    assert found == ((bits, bits) if version >= 5 else (None, None))
    assert report.extended_tcb == ((etcb, etcb, etcb) if version >= 6 else None)
    assert report.platform_flags == ("ecc", "alias_check_complete")
    assert report.chip_id[16:] == "0" * 112
    if version == 6:
        assert all(getattr(report, field.name) is not None for field in fields(report))


def test_fields_stand_where_the_specification_puts_them() -> None:
    """Offsets of AMD's publication 56860, written out once more; each byte at its own place."""
    raw = bytearray(
        SimulatedSnp(b"unit tests of snp", product="Turin", version=6).report(ASKED, COMPOSE)
    )
    raw[0x1F8:0x208] = bytes(range(1, 17))
    raw[0x208:0x220] = b"\xee" * 24  # reserved
    raw[0x220:0x280] = bytes(range(0x40, 0xA0))
    raw[0x40:0x48] = (0xFF).to_bytes(8, "little")
    report = parse_report(bytes(raw))
    assert report.launch_mitigations == int.from_bytes(bytes(range(1, 9)), "little")
    assert report.current_mitigations == int.from_bytes(bytes(range(9, 17)), "little")
    assert report.extended_tcb == tuple(
        bytes(range(at, at + 32)).hex() for at in (0x40, 0x60, 0x80)
    )
    assert report.platform_flags == get_args(PlatformFlag)


@pytest.mark.parametrize(
    ("cpuid", "product"),
    [
        ((0x19, 0x01, 1), "Milan"),
        ((0x19, 0x11, 1), "Genoa"),
        ((0x19, 0xA0, 2), "Genoa"),
        ((0x1A, 0x02, 1), "Turin"),
        ((0x1A, 0x11, 0), "Turin"),
        ((0x19, 0x50, 0), None),
        ((0x1A, 0x50, 0), None),
        ((0x17, 0x31, 0), None),
    ],
)
def test_processor_numbers_name_the_product(
    cpuid: tuple[int, int, int], product: Product | None
) -> None:
    raw = bytearray(SimulatedSnp(b"unit tests of snp").report(ASKED, COMPOSE))
    raw[0x188:0x18B] = bytes(cpuid)
    assert parse_report(bytes(raw)).product == product


def test_revocation_needs_a_current_list_of_the_root() -> None:
    guest = SimulatedSnp(b"unit tests of snp")
    demanding = policy(revocation="require")

    def check(crl: bytes | None, now: int = NOW) -> list[str]:
        found = verified_guest(
            "snp",
            {
                "report_bytes": guest.report(ASKED, COMPOSE),
                "certificates_der": guest.certificates(),
                "crl_der": crl,
            },
            COMPOSE,
            demanding,
            simulator_root=guest.root_der,
            now=now,
        )
        return [
            c.source
            for c in require_rules(RULES, found.signed, demanding, now)
            if c.name == "revocation"
        ]

    made = to_rfc3339(NOW - 300)
    assert check(guest.revocations(NOW)) == [f"AMD revocation list of {made}"]
    with pytest.raises(CertificateRevoked):
        check(guest.revocations(NOW, issuer_revoked=True))
    good = guest.revocations(NOW)
    foreign = SimulatedSnp(b"another seed of 16").revocations(NOW)
    for crl in (None, b"", b"\x30\x00", foreign, good[:-1], good[:-1] + b"\0", bytes(1 << 17)):
        with pytest.raises(RevocationUnknown):
            check(crl)
    for now in (NOW - 301, NOW + 31 * 86400):
        with pytest.raises(RevocationUnknown):
            check(good, now)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"products": ["Milan"]}, "InsecureMilan"),
        ({"products": ["Genoa", "Milan"]}, "InsecureMilan"),
        ({"products": []}, "products"),
        ({"products": ["Genoa", "Genoa"]}, "products"),
        ({"products": ["Genoa", "Turin"]}, "minimum_tcb"),
        ({"minimum_tcb": {}}, "minimum_tcb"),
        ({"minimum_tcb": {"Genoa": {**FLOOR, "fmc": 1}}}, "fmc"),
        ({"products": ["Turin"], "minimum_tcb": {"Turin": FLOOR}}, "fmc"),
        ({"minimum_tcb": {"Genoa": {**FLOOR, "snp": 256}}}, "snp"),
        ({"minimum_tcb": {"Genoa": {"snp": 1}}}, "bootloader"),
        ({"chip_ids": ["00" * 64]}, "chip_ids"),
        ({"chip_ids": ["00" * 63]}, "chip_ids"),
        ({"id_keys": ["00" * 48]}, "id_keys"),
        ({"vmpl": 4}, "vmpl"),
        ({"mitigations": {"Turin": "00" * 8}}, "mitigations"),
        ({"mitigations": {"Genoa": "3"}}, "mitigations"),
        ({"mitigations": "require"}, "mitigations"),
        ({"extended_tcb": ["00" * 31]}, "extended_tcb"),
        ({"platform_flags": []}, "platform_flags"),
        ({"platform_flags": ["ecc", "ecc"]}, "platform_flags"),
        ({"platform_flags": ["ECC"]}, "platform_flags"),
        ({"vmpl": True}, "vmpl"),
        ({"debug": "any"}, "debug"),
        ({"migration": "any"}, "migration"),
        ({"smt": "require"}, "smt"),
        ({"revocation": True}, "revocation"),
        ({"unknown": 1}, "unknown"),
    ],
)
def test_a_policy_with_a_flaw_is_refused(changes: dict[str, Any], name: str) -> None:
    with pytest.raises(TrustInvalid, match=name):
        policy(**changes)


@pytest.mark.parametrize("name", sorted(SnpPolicy.model_fields))
def test_a_policy_lacks_no_field(name: str) -> None:
    values = policy().to_dict()
    del values[name]
    with pytest.raises(TrustInvalid, check=carries(field=name)):
        load_model(SnpPolicy, values, TrustInvalid, "appraisal policy")


def test_a_policy_cannot_be_changed() -> None:
    with pytest.raises(ValidationError):
        policy().vmpl = 1


def test_the_simulator_refuses_what_it_cannot_play() -> None:
    guest = SimulatedSnp(b"unit tests of snp")
    for act in (
        lambda: SimulatedSnp(b"short"),
        lambda: guest.report(bytes(63), COMPOSE),
        lambda: guest.report(ASKED, COMPOSE, fault="no such fault"),
        lambda: guest.certificates(fault="no such fault"),
    ):
        with pytest.raises(DataInvalid):
            act()
