"""Whoever audits a file accepts nothing that a broker would refuse.

Two ways lead from bytes to a decision: a broker's (``verify`` and ``appraise`` over what a guest
sent) and that of whoever holds a file (``recognise`` and ``examine``: evidence of ours, a bundle,
what one device signed, a run manifest). Under one policy and for one conversation they decide
alike. Where somebody names no conversation, the file's reader is told what was not compared.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from exhibit_world import Real, accepted, exhibit_of
from fuzzing import JSON, mutated, put_somewhere
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from machines_world import BARE, LIES
from manifest_world import FINISHED, NOW, World, make_world
from variants import examples

from sealtrain.attest.appraise import appraise
from sealtrain.attest.bundle import Attachments, Bundle
from sealtrain.attest.dstack.exhibit import DstackQuote
from sealtrain.attest.evidence import Evidence
from sealtrain.attest.exhibits import recognise
from sealtrain.attest.explain.examine import Examined, examine, unwrap_bundle
from sealtrain.attest.forms import Exhibit, Gpus, OwnEvidence
from sealtrain.attest.nitro.collect import attestation, measure_compose
from sealtrain.attest.nitro.exhibit import Nitro
from sealtrain.attest.nvidia.parse import GpuEvidence
from sealtrain.attest.nvidia.verify import verify_gpus
from sealtrain.attest.policy import AppraisalPolicy, policy_from_dict
from sealtrain.attest.presets import insecure_simulator_policy
from sealtrain.attest.report_data import Binding
from sealtrain.attest.snp.exhibit import Snp
from sealtrain.attest.tdx.exhibit import Quote
from sealtrain.attest.verify import verify
from sealtrain.base.canonical import canonical_json
from sealtrain.base.digests import sha256_hex
from sealtrain.base.encoding import to_base64
from sealtrain.base.secret import Secret
from sealtrain.errors import FormatUnknown, Refused, TrustInvalid
from sealtrain.manifest import form
from sealtrain.manifest.verify import verify_manifest
from sealtrain.signing import dsse
from sealtrain_rehearsal.simulator.gpu import SimulatedGpus
from sealtrain_rehearsal.simulator.gpu_collateral import simulate_collateral
from sealtrain_rehearsal.simulator.guest import SimulatedGuest
from sealtrain_rehearsal.simulator.machine import SimulatedTee
from sealtrain_rehearsal.simulator.nitro import SimulatedNitroPki, SimulatedNsm
from sealtrain_rehearsal.simulator.pki import SimulatedPki
from sealtrain_rehearsal.simulator.snp import SimulatedSnp

pytestmark = [pytest.mark.long, pytest.mark.claim("C119")]

AT = 1_800_000_000
SEED = b"two ways to one decision........"
COMPOSE = b'{"name":"audited"}'
ASKED = Binding("release", {"challenge": "a broker's"})
PKI = SimulatedPki(SEED)
ENCLAVES = SimulatedNitroPki(SEED)
BOARD = SimulatedGpus(SEED, count=2, switches=1, mode="protected_pcie")
PUBLISHED = simulate_collateral(BOARD, AT)
TEES: tuple[SimulatedTee, ...] = ("dstack", "tdx", "nitro", "snp")
bounded = settings(max_examples=examples(50), deadline=None)
UNNAMED = {"report-data-mismatch", "gpu-nonce-mismatch", "compose-hash-mismatch"}
"""How a broker refuses what belongs to another conversation or document."""


@dataclass(frozen=True, kw_only=True)
class Told:
    """What a machine shows in one conversation, and what its verifier has at hand."""

    evidence: Evidence
    policy: AppraisalPolicy
    beside: Attachments

    @property
    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.evidence.to_bytes())
        return found


@cache
def told(tee: SimulatedTee, fault: str | None = None, *, board: bool = False) -> Told:
    """Evidence with one lie, or none: signed by whom it should be, whatever it says."""
    gpu_fault = fault.removeprefix("gpu-") if fault and fault.startswith("gpu-") else None
    lie = None if gpu_fault is not None else fault
    gpu = BOARD.evidence(ASKED.gpu_nonce(), fault=gpu_fault) if board else None
    said = ASKED.report_data(b"" if gpu is None else gpu.digest)
    pki = PKI.lying(lie if tee in ("dstack", "tdx") else None)
    collateral = pki.collateral(AT) if tee in ("dstack", "tdx") else None
    root = PKI.root_der
    if tee == "dstack":
        guest = SimulatedGuest(pki, Secret(SEED), COMPOSE, fault=lie)
        cpu: dict[str, Any] = json.loads(guest.evidence(said, collateral=None).to_bytes())["cpu"]
        cpu["app_compose"] = cpu["app_compose"].encode()
    elif tee == "tdx":
        booted = COMPOSE + b" " if lie == "other-compose" else COMPOSE
        config = b"\x01" + bytes.fromhex(sha256_hex(booted)) + bytes(15)
        data = bytes(64) if lie == "wrong-report-data" else said
        quote = pki.quote(data, mrtd=b"\1" * 48, mr_config_id=config)
        cpu = {"tee": tee, "quote": to_base64(quote), "app_compose": COMPOSE}
    elif tee == "nitro":
        nsm = SimulatedNsm(ENCLAVES, clock=lambda: AT, fault=lie)
        measure_compose(nsm, COMPOSE)
        shown = attestation(nsm, user_data=said, nonce=said)
        cpu, root = {"tee": tee, "document": to_base64(shown)}, ENCLAVES.root_der
        cpu["app_compose"] = COMPOSE
    else:
        snp = SimulatedSnp(SEED)
        cpu = {**snp.show(said, COMPOSE, now=AT, fault=lie), "app_compose": COMPOSE}
        root = snp.root_der
    rules = BOARD.policy(revocation="require") if board else None
    return Told(
        evidence=Evidence.build(
            "simulator",
            gpu=gpu,
            collateral=collateral,
            gpu_collateral=PUBLISHED if board else None,
            **cpu,
        ),
        policy=insecure_simulator_policy(root, tee=tee, gpu=rules),
        beside=Attachments(
            binding=ASKED,
            collateral=collateral,
            gpu_collateral=PUBLISHED if board else None,
            compose_hash=sha256_hex(COMPOSE),
        ),
    )


def outcome(decide: Callable[[], object]) -> str:
    """``accepted``, or the code of a refusal; nothing else comes of bytes that others chose."""
    try:
        decide()
    except (Refused, FormatUnknown) as error:  # or it does not even begin like evidence
        return error.code
    return "accepted"


def by_broker(data: bytes, policy: AppraisalPolicy, beside: Attachments, now: int = AT) -> str:
    """As ``broker.service.guests`` decides over what a guest sent."""

    def decide() -> None:
        assert beside.binding is not None
        received = Evidence.from_bytes(data)
        facts = verify(
            received,
            policy,
            now,
            binding=beside.binding,
            collateral=beside.collateral,
            gpu_collateral=beside.gpu_collateral,
        )
        hashed = beside.compose_hash
        appraise(facts, policy, binding=beside.binding, compose_hash=hashed, app_id=None)

    return outcome(decide)


def audit(data: bytes, policy: AppraisalPolicy, beside: Attachments) -> Examined:
    """As ``attest verify`` decides over a file."""
    inner, kept = unwrap_bundle(recognise(data), beside)
    return examine(inner, kept, policy, AT)


def by_auditor(data: bytes, policy: AppraisalPolicy, beside: Attachments) -> str:
    return outcome(partial(audit, data, policy, beside))


def wrapped(exhibit: Exhibit, beside: Attachments, platform: str = "simulator") -> bytes:
    """The document of ours that would show what is in a file of one processor."""
    parts: dict[str, Any] = {}
    if isinstance(exhibit, Quote):
        parts = {"tee": "tdx", "quote": to_base64(exhibit.raw)}
    elif isinstance(exhibit, DstackQuote):
        log = [entry.to_dict() for entry in exhibit.log]
        parts = {"tee": "dstack", "quote": to_base64(exhibit.quote.raw), "event_log": log}
        parts["vm_config"] = None
    elif isinstance(exhibit, Nitro):
        parts = {"tee": "nitro", "document": to_base64(exhibit.raw)}
    elif isinstance(exhibit, Snp):
        ders = [to_base64(certificate) for certificate in beside.certificates]
        crl = None if beside.crl is None else to_base64(beside.crl)
        parts = {"tee": "snp", "report": to_base64(exhibit.raw), "certificates": ders, "crl": crl}
    document = beside.app_compose or COMPOSE
    return Evidence.build(
        platform,  # type: ignore[arg-type]  # a word of a policy
        app_compose=document,
        collateral=beside.collateral,
        **parts,
    ).to_bytes()


def signed_by(one: Told, tee: SimulatedTee) -> tuple[bytes, Attachments]:
    """What the processor signed, as a file of other tools, and what lies beside that."""
    cpu: Any = one.evidence.cpu
    beside = replace(one.beside, binding=None, nonce=ASKED.report_data(), app_compose=COMPOSE)
    if tee == "dstack":
        log = [entry.to_dict() for entry in cpu.event_log]
        quoted = {"quote": cpu.quote_bytes.hex(), "event_log": log}
        return json.dumps(quoted).encode(), beside
    if tee == "tdx":
        return cpu.quote_bytes, beside
    if tee == "nitro":
        return cpu.document_bytes, beside
    return cpu.report_bytes, replace(beside, certificates=cpu.certificates_der, crl=cpu.crl_der)


def lies() -> Iterator[tuple[SimulatedTee, str, bool]]:
    """Every lie of every machine, each signed as if it were true.

    ``unit/attest/test_rented_agents.py`` has those of rented machines.
    """
    for lie in LIES:
        if lie.name in BARE and lie.machine.tee in TEES:
            yield lie.machine.tee, lie.fault, False
        elif lie.name == "dstack-2-gpus-1-switch" and lie.machine.gpu_fault is not None:
            yield lie.machine.tee, lie.fault, True


def test_both_accept_what_is_honest() -> None:
    for tee in TEES:
        one = told(tee)
        data, (raw, beside) = one.evidence.to_bytes(), signed_by(one, tee)
        assert by_broker(data, one.policy, one.beside) == "accepted"
        assert by_auditor(data, one.policy, one.beside) == "accepted"
        assert audit(raw, one.policy, beside).bound
        assert by_broker(wrapped(recognise(raw), beside), one.policy, one.beside) == "accepted"
    one = told("dstack", board=True)
    assert by_auditor(one.evidence.to_bytes(), one.policy, one.beside) == "accepted"


@pytest.mark.parametrize(("tee", "fault", "board"), tuple(lies()))
def test_of_a_lie_both_think_alike(tee: SimulatedTee, fault: str, board: bool) -> None:
    one = told(tee, fault, board=board)
    data = one.evidence.to_bytes()
    decided = by_broker(data, one.policy, one.beside)
    assert by_auditor(data, one.policy, one.beside) == decided
    unbound = by_auditor(data, one.policy, replace(one.beside, binding=None))
    assert unbound != "accepted" or decided in {"accepted", *UNNAMED}
    if not board:
        raw, beside = signed_by(one, tee)
        audited = by_auditor(raw, one.policy, beside)
        assert (audited == "accepted") == (decided == "accepted")


RULES: dict[str, dict[str, list[Any]]] = {
    "dstack": {
        "tcb_status": [["UpToDate"], ["OutOfDate"]],
        "advisories": ["any", "none"],
        "measurements": ["any", []],
        "platform_ids": ["any", [], ["77" * 16]],
        "min_tcb_evaluation_data_number": [0, 1, 2],
        "max_collateral_age_s": ["any", 1, 10_000],
        "key_provider": ["any", "none", "00" * 32],
        "os_image_hash": ["any", ["00" * 32]],
    },
    "tdx": {
        "tcb_status": [["UpToDate"], []],
        "measurements": ["any", []],
        "platform_ids": ["any", []],
        "min_tcb_evaluation_data_number": [0, 2],
        "max_collateral_age_s": ["any", 1],
        "boot_log": ["any", "require"],
    },
    "nitro": {
        "images": ["any", []],
        "signers": ["any", []],
        "parents": ["any", []],
        "iam_roles": ["any", []],
        "max_age_s": [300, 1],
        "debug": ["refuse"],
    },
    "snp": {
        "products": [["Genoa"], ["Turin"], []],
        "signing_keys": [["vcek"], ["vlek"]],
        "measurements": ["any", []],
        "mitigations": ["any", {"Genoa": "0" * 15 + "1"}],
        "extended_tcb": ["any", []],
        "platform_flags": ["any", ["ciphertext-hiding"]],
        "chip_ids": ["any", []],
        "vmpl": ["any", 0, 1],
        "smt": ["any", "refuse"],
        "id_keys": ["any", []],
        "revocation": ["any", "require"],
    },
    "board": {
        "gpu_count": [2, 1],
        "switch_count": ["any", 1, 0],
        "mode": [["protected_pcie"], ["mpt"]],
        "devices": ["any", []],
        "driver_versions": ["any", {"minimum": "999.0", "denied": []}],
        "vbios_versions": ["any", []],
        "reference_values": ["any", "require"],
        "revocation": ["any", "require"],
        "max_ocsp_age_s": [1, 86400],
        "nras": ["any", "require"],
    },
}
"""What rules of a policy are drawn from: some hold, some do not, some are none."""


@st.composite
def judged(draw: st.DrawFn) -> tuple[SimulatedTee, bool, AppraisalPolicy]:
    """A machine and a policy for it that may refuse it."""
    board = draw(st.booleans())
    tee: SimulatedTee = "dstack" if board else draw(st.sampled_from(TEES))
    policy: Any = told(tee, board=board).policy.to_dict()
    for part, name in (("cpu", tee), *((("gpu", "board"),) if board else ())):
        for rule in draw(st.sets(st.sampled_from(sorted(RULES[name])), max_size=3)):
            policy[part][rule] = draw(st.sampled_from(RULES[name][rule]))
    if not board:
        policy["gpu"] = draw(st.sampled_from(["none", "any", BOARD.policy().to_dict()]))
    try:
        return tee, board, policy_from_dict(policy)
    except TrustInvalid:
        assume(False)
        raise


@bounded
@given(drawn=judged())
def test_under_any_policy_both_decide_alike(
    drawn: tuple[SimulatedTee, bool, AppraisalPolicy],
) -> None:
    tee, board, policy = drawn
    one = told(tee, board=board)
    data = one.evidence.to_bytes()
    decided = by_broker(data, policy, one.beside)
    assert by_auditor(data, policy, one.beside) == decided
    unbound = by_auditor(data, policy, replace(one.beside, binding=None))
    assert (unbound == "accepted") == (decided == "accepted")
    if board:
        return
    raw, beside = signed_by(one, tee)
    alone = by_auditor(raw, policy, beside)
    if alone == "accepted" != decided:  # a file of one processor shows no accelerators
        assert audit(raw, policy, beside).missing == ("accelerators",)
    else:
        assert (alone == "accepted") == (decided == "accepted")


@bounded
@given(
    tee=st.sampled_from(TEES),
    board=st.booleans(),
    path=st.integers(0, 10**6),
    value=JSON,
    spoilt=st.data(),
    whole=st.booleans(),
)
def test_of_any_document_both_think_alike(
    tee: SimulatedTee, board: bool, path: int, value: Any, spoilt: st.DataObject, whole: bool
) -> None:
    one = told("dstack" if board else tee, board=board)
    document = one.document
    put_somewhere(document, path, value)
    data = canonical_json(document) if whole else spoilt.draw(mutated(one.evidence.to_bytes()))
    decided = by_broker(data, one.policy, one.beside)
    audited = by_auditor(data, one.policy, one.beside)
    assert audited == decided or "accepted" not in (audited, decided)
    unbound = by_auditor(data, one.policy, replace(one.beside, binding=None))
    assert unbound != "accepted" or decided in {"accepted", *UNNAMED}


@bounded
@given(tee=st.sampled_from(TEES), data=st.data())
def test_of_anything_signed_both_think_alike(tee: SimulatedTee, data: st.DataObject) -> None:
    one = told(tee)
    raw, beside = signed_by(one, tee)
    spoilt = data.draw(mutated(raw) | mutated(raw, keep_length=True) | st.just(raw))
    audited = by_auditor(spoilt, one.policy, beside)
    if audited == "accepted":
        shown = wrapped(recognise(spoilt), beside)
        assert by_broker(shown, one.policy, one.beside) == "accepted"


@bounded
@given(data=st.data())
def test_of_accelerators_both_think_alike(data: st.DataObject) -> None:
    one = told("dstack", board=True)
    assert one.evidence.gpu is not None
    file = one.evidence.gpu.to_bytes()
    spoilt = data.draw(mutated(file, keep_length=True) | mutated(file) | st.just(file))
    asked = Attachments(gpu_collateral=PUBLISHED, nonce=ASKED.gpu_nonce())
    if by_auditor(spoilt, one.policy, asked) != "accepted":
        return
    assert audit(spoilt, one.policy, asked).missing == ("guest",)
    exhibit = recognise(spoilt)
    assert isinstance(exhibit, Gpus)
    verify_gpus(
        GpuEvidence.build(tuple(exhibit.devices), one.evidence.gpu.claims),
        BOARD.policy(revocation="require"),
        PUBLISHED,
        nonce=ASKED.gpu_nonce(),
        simulator_root=BOARD.root_der,
        now=AT,
    )


@bounded
@given(tee=st.sampled_from(TEES), path=st.integers(0, 10**6), value=JSON, named=st.booleans())
def test_a_bundle_persuades_nobody_of_what_it_holds(
    tee: SimulatedTee, path: int, value: Any, named: bool
) -> None:
    """Whoever makes a bundle chooses every field of it: what a person names is compared."""
    one = told(tee)
    made = Bundle.build(
        "evidence", one.evidence.to_bytes(), one.beside, policy=one.policy, verified_at=AT
    )
    document: Any = made.to_dict()
    put_somewhere(document, path, value)
    given_to_auditor = one.beside if named else Attachments(compose_hash=one.beside.compose_hash)

    def decide() -> Examined:
        inner, kept = unwrap_bundle(recognise(canonical_json(document)), given_to_auditor)
        assert isinstance(inner, OwnEvidence)
        found = examine(inner, kept, one.policy, AT)
        assert kept.compose_hash == one.beside.compose_hash
        assert kept.binding == ASKED or not named
        if found.bound:
            assert by_broker(inner.raw, one.policy, kept) == "accepted"
        return found

    outcome(decide)


# --- Manifests and real evidence --------------------------------------------------------------


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))


@settings(max_examples=examples(25), deadline=None)
@given(path=st.integers(0, 10**6), value=JSON)
def test_a_manifest_passes_with_no_evidence_that_a_broker_refuses(
    world: World, path: int, value: Any
) -> None:
    """Its own guest signs other evidence into it: whoever has that key is the attacker."""
    honest = form.read(world.manifest())
    document = json.loads(honest.signed_evidence.payload)
    put_somewhere(document, path, value)
    payload = canonical_json(document)
    data = form.write(
        honest.signed_statement,
        dsse.sign(payload, form.EVIDENCE_PAYLOAD_TYPE, world.guest_key),
        world.guest_key.public,
    )
    passed = outcome(
        lambda: verify_manifest(data, world.trust(), artefacts=world.artefacts, now=NOW)
    )
    statement = json.loads(honest.signed_statement.payload)
    commitment = form.commitment(
        honest.signed_statement.payload,
        honest.guest_key,
        statement["predicate"]["run_log"]["head"],
    )
    hashed = statement["predicate"]["deployment"]["compose_hash"]
    asked = Attachments(binding=Binding("manifest", commitment), compose_hash=hashed)
    decided = by_broker(payload, world.trust().appraisal, asked, FINISHED)
    assert (passed == "accepted") <= (decided == "accepted")
    assert passed == "accepted" or json.loads(payload) != json.loads(honest.signed_evidence.payload)


def test_real_files_that_are_accepted_break_no_rule_of_a_brokers(shared: Path) -> None:
    """All that a broker could hold against them is what nobody can name: document, conversation."""
    seen = set()

    def judge(one: Real) -> None:
        exhibit, beside = exhibit_of(shared, one.file), one.beside(shared)
        rules = one.rules()
        examine(exhibit, beside, rules, one.at)
        if not isinstance(exhibit, (Quote, DstackQuote, Nitro, Snp)):
            return
        shown = wrapped(exhibit, beside, rules.platform)
        asked = Attachments(binding=ASKED)
        decided = by_broker(shown, rules, asked, one.at)
        assert decided in UNNAMED, (one.file, decided)
        seen.add(rules.cpu.tee)

    for real in accepted(shared):
        judge(real)
    assert seen == set(TEES)
