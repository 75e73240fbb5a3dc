"""Explanations: every file, every field, every policy line, and never a word of trust too many."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from exhibit_world import (
    FAMILIES,
    REFUSED,
    Real,
    accepted,
    exhibit_of,
    gpu_rules,
    nitro_rules,
    snp_rules,
    tdx_rules,
)

from sealtrain.attest.bundle import Attachments
from sealtrain.attest.errors import PlatformMismatch
from sealtrain.attest.exhibits import recognise
from sealtrain.attest.explain.examine import examine
from sealtrain.attest.explain.explanation import Explanation, explain
from sealtrain.attest.field import shorten
from sealtrain.attest.policy import AppraisalPolicy, policy_from_dict
from sealtrain.attest.presets import insecure_simulator_policy
from sealtrain.attest.report_data import Binding
from sealtrain.base.canonical import canonical_json
from sealtrain.base.secret import Secret
from sealtrain.errors import DataInvalid, EvidenceRefused
from sealtrain_rehearsal.simulator.gpu import SimulatedGpus
from sealtrain_rehearsal.simulator.guest import SimulatedGuest
from sealtrain_rehearsal.simulator.pki import SimulatedPki

NOW = 1_800_000_000


@pytest.fixture(scope="module")
def real(shared: Path) -> dict[str, Real]:
    return {real.file: real for real in accepted(shared)}


def explained(
    shared: Path, one: Real, policy: dict[str, Any] | None = None, at: int | None = None
) -> Explanation:
    rules = policy_from_dict(one.policy if policy is None else policy)
    beside = one.beside(shared)
    return explain(exhibit_of(shared, one.file), beside, rules, one.at if at is None else at)


def standing(found: Explanation, state: str) -> set[str]:
    return {line.policy for line in found.lines if line.standing == state}


def test_every_vector_is_explained_without_a_policy_and_claims_nothing(shared: Path) -> None:
    seen = 0
    for family in FAMILIES:
        for path in sorted((shared / "vectors" / family).rglob("*")):
            if not path.is_file():
                continue
            try:
                found = explain(recognise(path.read_bytes()), Attachments(), None, None)
            except (DataInvalid, PlatformMismatch):
                continue  # test_exhibits says which
            seen += 1
            shown = list(found.to_lines())
            assert "NOT VERIFIED" in shown[0], path
            assert not found.signatures_verified
            assert found.fields, path
            assert all(field.meaning.endswith(".") for field in found.fields), path
            assert max(map(len, shown)) < 240
            assert all(line.isprintable() for line in shown)
            assert json.loads(json.dumps(found.to_dict()))["kind"] == found.kind
    assert seen > 55


def test_what_holds_is_explained_as_verified_and_breaks_no_line(shared: Path) -> None:
    for real in accepted(shared):
        found = explained(shared, real)
        assert found.signatures_verified, real
        assert standing(found, "broken") == set()
        assert ("SIMULATED" in found.heading) == found.simulated == ("mock" in real.file)
        assert "NOT VERIFIED" not in found.heading
        for word in ("trusted", "trustworthy", "accepted", "safe", "genuine"):
            assert word not in found.heading.lower()


def test_one_second_outside_nothing_is_said_to_be_verified(shared: Path) -> None:
    for real in accepted(shared):
        for moment in real.outside:
            found = explained(shared, real, at=moment)
            assert "NOT VERIFIED" in found.heading
            assert not found.signatures_verified
            assert standing(found, "met") == set() or found.kind == "gpu-evidence"
            assert any(line.standing == "not reached" for line in found.lines)


def test_what_is_refused_is_explained_with_the_refusals_own_code(shared: Path) -> None:
    for real, code in REFUSED:
        found = explained(shared, real)
        assert code in {line.code for line in found.lines if line.standing == "broken"}, real
        with pytest.raises(EvidenceRefused) as refused:
            examine(exhibit_of(shared, real.file), real.beside(shared), real.rules(), real.at)
        assert refused.value.code == code


def test_a_flipped_byte_is_a_failed_signature_and_nothing_below_it_is_compared(
    shared: Path, real: dict[str, Real]
) -> None:
    for name, at, beside in (
        ("nitro/prod_2025_pubkey.cose", -5, Attachments()),
        ("sev-snp/genoa_azure_v3.report.bin", 0x90, None),
        ("tdx/tdx_quote", 200, None),
    ):
        one = real[name]
        data = bytearray((shared / "vectors" / name).read_bytes())
        data[at] ^= 1
        found = explain(recognise(bytes(data)), beside or one.beside(shared), one.rules(), one.at)
        assert found.heading.startswith("NOT VERIFIED")
        assert [line.standing for line in found.lines] == ["broken", "not reached"]
        assert found.lines[0].name == "signature and root"


LEVELS = ("fmc", "bootloader", "tee", "snp", "microcode")
OTHER = {"96": "ab" * 48, "64": "ab" * 32, "128": "ab" * 64}
BREAKING: list[tuple[str, dict[str, Any], set[str]]] = [
    (
        "tdx/tdx_quote",
        tdx_rules(
            tcb_status=["OutOfDate"],
            min_tcb_evaluation_data_number=99,
            max_collateral_age_s=1,
            platform_ids=["ab" * 16],
            measurements=[],
        ),
        {
            "cpu.tcb_status",
            "cpu.min_tcb_evaluation_data_number",
            "cpu.max_collateral_age_s",
            "cpu.platform_ids",
            "cpu.measurements",
        },
    ),
    (
        "nitro/prod_2022_pcr8.cose",
        nitro_rules(
            images=[],
            signers=[OTHER["96"]],
            parents=["i-00000000"],
            iam_roles=[OTHER["96"]],
        ),
        {"cpu.images", "cpu.signers", "cpu.parents", "cpu.iam_roles"},
    ),
    (
        "sev-snp/genoa_azure_v3.report.bin",
        snp_rules(
            "Turin",
            (0, 0, 0, 0),
            minimum_tcb={
                "Turin": dict.fromkeys(("bootloader", "tee", "snp", "microcode"), 0) | {"fmc": 0}
            },
            signing_keys=["vlek"],
            chip_ids=[OTHER["128"]],
            measurements=[],
            vmpl=3,
            smt="refuse",
            id_keys=[OTHER["96"]],
            revocation="require",
        ),
        {
            "cpu.products",
            "cpu.minimum_tcb",
            "cpu.signing_keys",
            "cpu.chip_ids",
            "cpu.measurements",
            "cpu.vmpl",
            "cpu.smt",
            "cpu.id_keys",
            "cpu.revocation",
        },
    ),
    (
        "nvidia/hopper_cert_hold.json",
        gpu_rules(
            gpu_count=8,
            switch_count=4,
            mode=["protected_pcie"],
            architectures=["BLACKWELL"],
            devices=["ab" * 20],
            driver_versions={"minimum": "999.0", "denied": []},
            vbios_versions=[{"architecture": "HOPPER", "minimum": "FF.00.00.00.00", "denied": []}],
            reference_values="require",
            revocation="require",
        ),
        {
            "gpu.gpu_count",
            "gpu.switch_count",
            "gpu.mode",
            "gpu.architectures",
            "gpu.devices",
            "gpu.driver_versions",
            "gpu.vbios_versions",
            "gpu.reference_values",
            "gpu.revocation",
        },
    ),
]


@pytest.mark.parametrize(
    ("name", "policy", "broken"), BREAKING, ids=[row[0].split("/")[0] for row in BREAKING]
)
def test_every_line_that_is_broken_is_shown_not_only_the_first(
    shared: Path,
    real: dict[str, Real],
    name: str,
    policy: dict[str, Any],
    broken: set[str],
) -> None:
    found = explained(shared, real[name], policy)
    assert found.signatures_verified
    assert standing(found, "broken") == broken
    said = "\n".join(found.to_lines())
    assert "comparisons fail" in found.heading
    for path in broken:
        assert f"[{path}]" in said


def test_every_rule_for_a_processor_has_its_line(shared: Path, real: dict[str, Real]) -> None:
    for name in (
        "tdx/tdx_quote",
        "dstack/verifier-fixtures/quote-report.json",
        "nitro/prod_2022_pcr8.cose",
        "sev-snp/genoa_azure_v3.report.bin",
    ):
        found = explained(shared, real[name])
        rules = {f"cpu.{field}" for field in real[name].policy["cpu"]} - {"cpu.tee"}
        assert rules <= {line.policy for line in found.lines}, name


class TestSimulated:
    """sealtrain's own evidence, with accelerators, from a simulator."""

    gpus = SimulatedGpus(b"accelerators that are explained", count=2, mode="mpt")
    asked = Binding("attest", {"nonce": "07" * 16})
    pki = SimulatedPki(b"a simulator that is explained")

    def policy(self, **gpu: Any) -> AppraisalPolicy:
        return insecure_simulator_policy(
            self.pki.root_der, gpu=self.gpus.policy(reference_values="any", **gpu)
        )

    def document(self, **claims: Any) -> dict[str, Any]:
        shown = self.gpus.evidence(self.asked.gpu_nonce())
        shown = shown.model_copy(update={"claims": shown.claims.model_copy(update=claims)})
        guest = SimulatedGuest(
            self.pki, Secret(b"\5" * 32), b'{"name":"unit"}', random=lambda count: bytes(count)
        )
        evidence = guest.evidence(
            self.asked.report_data(shown.digest), collateral=self.pki.collateral(NOW)
        )
        return {**evidence.to_dict(), "gpu": shown.to_dict()}

    def explained(self, document: dict[str, Any], **gpu: Any) -> Explanation:
        exhibit = recognise(canonical_json(document))
        return explain(exhibit, Attachments(binding=self.asked), self.policy(**gpu), NOW)

    def test_honest_evidence_meets_every_line_and_is_called_simulated(self) -> None:
        found = self.explained(self.document())
        assert found.signatures_verified
        assert standing(found, "broken") == set()
        assert found.heading.startswith("SIMULATED — NOT ATTESTED")
        fields = set(self.policy().to_dict()["gpu"]) - {"rim_root", "max_ocsp_age_s"}
        assert {f"gpu.{field}" for field in fields} <= {line.policy for line in found.lines}

    def test_explanation_and_verdict_agree(self) -> None:
        exhibit = recognise(canonical_json(self.document()))
        verdict = examine(exhibit, Attachments(binding=self.asked), self.policy(), NOW)
        found = self.explained(self.document())
        compared = {
            (name, claim.name) for name, part in verdict.submods.items() for claim in part.claims
        }
        shown = {(line.part, line.name) for line in found.lines}
        # What the verifier itself establishes before anything is compared has lines of its own.
        assert compared <= shown
        assert {name for _, name in shown - compared} == {"signature and root", "event log"}

    def test_both_lies_of_a_driver_are_shown(self) -> None:
        found = self.explained(self.document(cc_feature=False, dev_tools=True))
        assert {"gpu.cc", "gpu.devtools"} <= standing(found, "broken")

    def test_another_conversation_is_a_broken_line_of_every_part(self) -> None:
        exhibit = recognise(canonical_json(self.document()))
        other = Attachments(binding=Binding("attest", {"nonce": "08" * 16}))
        found = explain(exhibit, other, self.policy(), NOW)
        codes = {(line.part, line.code) for line in found.lines if line.standing == "broken"}
        assert codes == {
            ("cpu0", "report-data-mismatch"),
            ("gpu0", "gpu-nonce-mismatch"),
            ("gpu1", "gpu-nonce-mismatch"),
        }

    def test_accelerators_that_the_policy_does_not_provide_for_are_a_broken_line(self) -> None:
        exhibit = recognise(canonical_json(self.document()))
        policy = insecure_simulator_policy(self.pki.root_der)
        found = explain(exhibit, Attachments(binding=self.asked), policy, NOW)
        assert "gpu" in standing(found, "broken")
        missing = {**self.document(), "gpu": None}
        found = explain(
            recognise(canonical_json(missing)), Attachments(binding=self.asked), self.policy(), NOW
        )
        assert "gpu" in standing(found, "broken")

    def test_simulated_evidence_under_a_policy_for_hardware_is_not_verified(self) -> None:
        found = explain(
            recognise(canonical_json(self.document())),
            Attachments(binding=self.asked),
            policy_from_dict(tdx_rules()),
            NOW,
        )
        assert found.heading.startswith("NOT VERIFIED")
        assert "simulated-evidence" in found.heading


def test_long_values_are_shortened_for_people_and_whole_in_json() -> None:
    digest = "0123456789abcdef" * 6
    assert shorten(f"mrtd {digest}") == "mrtd 0123456789abcdef…89abcdef"
    assert len(shorten("x y " * 100)) == 96
    assert shorten("a\x1b[31mb\n") == "a\\u{1b}[31mb\\u{a}"


def test_a_files_text_cannot_draw_on_the_terminal(shared: Path) -> None:
    report = json.loads((shared / "vectors/dstack/rtmr3-based/report.json").read_text())
    log = json.loads(report["event_log"])
    log.append({**log[-1], "imr": 3, "event": "\x1b[2J\nVERIFIED", "event_payload": "00"})
    changed = {**report, "event_log": json.dumps(log), "vm_config": "\x1b]0;owned\x07"}
    found = explain(recognise(json.dumps(changed).encode()), Attachments(), None, None)
    said = {"GPU-0\x1b[2J": {"eat_nonce": "00", "x\nVERIFIED": "\x1b[31m"}}
    claims = explain(recognise(json.dumps(said).encode()), Attachments(), None, None)
    for shown in (list(found.to_lines()), list(claims.to_lines())):
        assert all(line.isprintable() for line in shown)
        assert not any(line.lstrip().startswith("VERIFIED") for line in shown)
