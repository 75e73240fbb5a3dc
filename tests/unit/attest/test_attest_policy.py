"""Appraisal policies: nothing assumed, nothing silently ignored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from carrying import carries
from policies import intel

from sealtrain.attest.open_values import open_values
from sealtrain.attest.policy import AppraisalPolicy, load_policy, policy_from_dict
from sealtrain.attest.presets import PRESETS, insecure_simulator_policy, preset
from sealtrain.base.encoding import to_base64
from sealtrain.errors import TrustInvalid
from sealtrain_rehearsal.simulator.pki import SimulatedPki

pytestmark = pytest.mark.claim("C28")

INTEL: dict[str, Any] = intel(
    tcb_status=["UpToDate", "SWHardeningNeeded"],
    advisories=["INTEL-SA-00615"],
    measurements=[dict.fromkeys(("mrtd", "rtmr0", "rtmr1", "rtmr2"), "ab" * 48)],
    key_provider="30" * 91,
    os_image_hash=["cd" * 32],
    platform_ids=["ef" * 16],
    min_tcb_evaluation_data_number=17,
    max_collateral_age_s=86400,
)


def test_a_policy_file_reads_back_as_written(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(yaml.safe_dump(INTEL))
    policy = load_policy(path)
    assert policy.to_dict() == INTEL
    assert policy.simulator_root is None


@pytest.mark.parametrize("name", sorted(INTEL))
def test_every_field_is_mandatory(name: str) -> None:
    with pytest.raises(TrustInvalid, check=carries(field=name)):
        policy_from_dict({key: value for key, value in INTEL.items() if key != name})


@pytest.mark.parametrize("name", sorted(INTEL["cpu"]))
def test_every_rule_is_mandatory(name: str) -> None:
    rules = {key: value for key, value in INTEL["cpu"].items() if key != name}
    with pytest.raises(TrustInvalid):
        policy_from_dict({**INTEL, "cpu": rules})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tcb_status", []),
        ("tcb_status", ["Revoked"]),
        ("tcb_status", "any"),
        ("advisories", "some"),
        ("debug", "allow"),
        ("measurements", [{"mrtd": "ab" * 48}]),
        ("measurements", [{**INTEL["cpu"]["measurements"][0], "rtmr3": "ab" * 48}]),
        ("key_provider", "none"),
        ("key_provider", ""),
        ("os_image_hash", ["CD" * 32]),
        ("min_tcb_evaluation_data_number", -1),
        ("min_tcb_evaluation_data_number", "17"),
        ("min_tcb_evaluation_data_number", True),
    ],
)
def test_a_value_of_another_form_is_refused(name: str, value: object) -> None:
    with pytest.raises(TrustInvalid):
        policy_from_dict({**INTEL, "cpu": {**INTEL["cpu"], name: value}})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("version", 1),
        ("version", True),
        ("platform", "tpm"),
        ("platform", "tdx"),
        ("platform", "nitro"),
        ("root", "any"),
        ("root", "aws"),
        ("gpu", "all"),
        ("gpu", None),
    ],
)
def test_a_part_that_does_not_fit_is_refused(name: str, value: object) -> None:
    with pytest.raises(TrustInvalid):
        policy_from_dict({**INTEL, name: value})


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_a_preset_for_hardware_accepts_no_image_until_some_are_listed(name: str) -> None:
    rules = preset(name).to_dict()["cpu"]
    listed = {"nitro": "images", "dstack-aws-nitro-tpm": "boots"}.get(rules["tee"], "measurements")
    assert rules[listed] == []


@pytest.mark.claim("C433")
@pytest.mark.parametrize("name", sorted(PRESETS))
def test_a_preset_for_hardware_leaves_no_value_open(name: str) -> None:
    assert list(open_values(preset(name))) == []


@pytest.mark.claim("C433")
def test_each_open_value_of_a_policy_is_named() -> None:
    opened = {**INTEL["cpu"], "platform_ids": "any", "os_image_hash": "any"}
    opened["measurements"] = [{**INTEL["cpu"]["measurements"][0], "rtmr0": "log"}]
    policy = policy_from_dict({**INTEL, "cpu": opened, "gpu": "any"})
    fields = {value.field for value in open_values(policy)}
    expected = {"cpu.platform_ids", "cpu.os_image_hash", "cpu.measurements.rtmr0", "gpu"}
    assert fields == expected


def test_an_image_that_the_registers_name_needs_registers() -> None:
    measured = {**INTEL["cpu"], "os_image_hash": "measured", "key_provider": "any"}
    assert list(open_values(policy_from_dict({**INTEL, "cpu": measured})))
    with pytest.raises(TrustInvalid):
        policy_from_dict({**INTEL, "cpu": {**measured, "measurements": "any"}})


def test_an_unknown_field_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(TrustInvalid) as caught:
        policy_from_dict({**INTEL, "cpu": {**INTEL["cpu"], "measurement": "any"}})
    assert "measurements" in str(caught.value.hint)


def test_a_simulators_root_and_a_hardware_platform_do_not_mix(pki: SimulatedPki) -> None:
    root = {"insecure_simulator_root": to_base64(pki.root_der)}
    with pytest.raises(TrustInvalid, match="insecure_simulator_root"):
        policy_from_dict({**INTEL, "root": root})
    with pytest.raises(TrustInvalid, match="insecure_simulator_root"):
        policy_from_dict({**INTEL, "platform": "simulator"})


def test_a_root_that_does_not_call_itself_simulated_is_refused(pki: SimulatedPki) -> None:
    from datetime import UTC, datetime

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "Intel SGX Root CA")])
    root = (
        x509.CertificateBuilder(name, name, key.public_key(), 1)
        .not_valid_before(datetime(2020, 1, 1, tzinfo=UTC))
        .not_valid_after(datetime(2040, 1, 1, tzinfo=UTC))
        .sign(key, hashes.SHA256())
        .public_bytes(serialization.Encoding.DER)
    )
    with pytest.raises(TrustInvalid, match="SIMULATED"):
        insecure_simulator_policy(root)
    with pytest.raises(TrustInvalid):
        insecure_simulator_policy(b"no certificate")
    assert insecure_simulator_policy(pki.root_der).simulator_root == pki.root_der


def test_an_os_image_needs_the_key_provider_that_told_it_pinned() -> None:
    with pytest.raises(TrustInvalid, check=carries(check="appraisal policy", field="cpu.dstack")):
        policy_from_dict({**INTEL, "cpu": {**INTEL["cpu"], "key_provider": "any"}})


@pytest.mark.parametrize(
    "text",
    [
        "platform: [",
        "a: &x [1]\nb: *x\n",
        "platform: dstack\nplatform: dstack\n",
        "!!python/object/apply:os.getcwd []",
        "- just\n- a list\n",
        "",
        "\x00",
    ],
)
def test_a_file_that_is_no_plain_yaml_map_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    with pytest.raises(TrustInvalid):
        load_policy(path)


def test_a_missing_or_huge_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TrustInvalid):
        load_policy(tmp_path / "none.yaml")
    (tmp_path / "huge.yaml").write_bytes(b"#" * (1 << 20))
    with pytest.raises(TrustInvalid):
        load_policy(tmp_path / "huge.yaml")


def test_a_policy_is_frozen(policy: AppraisalPolicy) -> None:
    from pydantic import ValidationError

    with pytest.raises(ValidationError):
        policy.gpu = "any"  # type: ignore[misc]
