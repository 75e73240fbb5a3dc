"""What the maker of a file can say about it must not look as if somebody had compared it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sealtrain.attest.bundle import Attachments, Bundle
from sealtrain.attest.errors import (
    ComposeHashMismatch,
    EvidenceMalformed,
    GpuNonceMismatch,
    ReportDataMismatch,
)
from sealtrain.attest.evidence import Evidence
from sealtrain.attest.exhibits import recognise
from sealtrain.attest.explain.examine import Examined, examine, make_bundle, unwrap_bundle
from sealtrain.attest.nvidia.parse import GpuClaims
from sealtrain.attest.policy import AppraisalPolicy
from sealtrain.attest.presets import insecure_simulator_policy
from sealtrain.attest.report_data import Binding
from sealtrain.base.digests import sha256_hex
from sealtrain.base.encoding import to_base64
from sealtrain.base.secret import Secret
from sealtrain_rehearsal.simulator.gpu import SimulatedGpus
from sealtrain_rehearsal.simulator.guest import SimulatedGuest
from sealtrain_rehearsal.simulator.pki import SimulatedPki

pytestmark = pytest.mark.claim("C119")

NOW = 1_800_000_000
PKI = SimulatedPki(b"an auditor and an attacker......")
RUNS, NAMED = b'{"name":"what runs"}', b'{"name":"what was agreed"}'
GUEST = SimulatedGuest(PKI, Secret(b"\x07" * 32), RUNS)
COLLATERAL = PKI.collateral(NOW)
OLD, MINE = Binding("attest", {"nonce": "0a" * 16}), Binding("attest", {"nonce": "0b" * 16})
SHOWN = GUEST.evidence(OLD, collateral=COLLATERAL)
POLICY = insecure_simulator_policy(PKI.root_der)


def audited(data: bytes, given: Attachments, policy: AppraisalPolicy = POLICY) -> Examined:
    inner, kept = unwrap_bundle(recognise(data), given)
    return examine(inner, kept, policy, NOW)


def bundle(**changed: Any) -> bytes:
    """An attacker's bundle: genuine evidence, and whatever they write beside it."""
    made = Bundle.build(
        "evidence", SHOWN.to_bytes(), Attachments(binding=OLD), policy=POLICY, verified_at=NOW
    )
    return Bundle.model_construct(**{**made.__dict__, **changed}).to_bytes()


@pytest.mark.negative(23)
def test_a_document_that_a_bundle_names_does_not_stand_in_for_the_auditors() -> None:
    lying = bundle(compose_hash=sha256_hex(RUNS))
    assert audited(lying, Attachments(binding=OLD)).bound
    for given in (Attachments(app_compose=NAMED), Attachments(compose_hash=sha256_hex(NAMED))):
        with pytest.raises(ComposeHashMismatch):
            audited(lying, replace(given, binding=OLD))
    for given in (Attachments(app_compose=RUNS), Attachments(compose_hash=sha256_hex(RUNS))):
        audited(lying, replace(given, binding=OLD))
        with pytest.raises(ComposeHashMismatch):
            audited(
                bundle(compose_hash=sha256_hex(NAMED)), Attachments(app_compose=RUNS, binding=OLD)
            )


def test_what_a_kind_is_not_compared_with_is_no_bundle() -> None:
    """A nonce beside evidence of ours, a conversation beside a quote: nobody looks at either."""
    quote = to_base64(SHOWN.cpu.quote_bytes)  # type: ignore[union-attr]  # of a dstack guest
    for lying in (
        bundle(conversation=None, nonce="00" * 32),
        bundle(nonce="00" * 32),
        bundle(kind="tdx-quote", evidence=quote),
    ):
        with pytest.raises(EvidenceMalformed):
            audited(lying, Attachments())


def test_the_conversation_of_a_bundle_does_not_stand_in_for_the_auditors() -> None:
    with pytest.raises(ReportDataMismatch):
        audited(bundle(), Attachments(binding=MINE))
    assert not audited(bundle(conversation=None), Attachments()).bound
    unbound = audited(SHOWN.to_bytes(), Attachments(nonce=bytes(32)))
    assert (unbound.bound, unbound.missing) == (False, ("conversation",))


def test_two_documents_that_are_named_are_not_one() -> None:
    with pytest.raises(ComposeHashMismatch):
        audited(
            SHOWN.to_bytes(),
            Attachments(binding=OLD, app_compose=RUNS, compose_hash=sha256_hex(NAMED)),
        )


# --- Parts of several machines --------------------------------------------------------------------


def spliced(**changed: Any) -> tuple[Evidence, AppraisalPolicy]:
    """A processor's evidence beside accelerators of another machine, with claims made up."""
    gpus = SimulatedGpus(b"somebody else's accelerators")
    claims = {**gpus.evidence(bytes(32)).claims.to_dict(), **changed}
    stolen = gpus.evidence(bytes(32)).model_copy(
        update={"claims": GpuClaims.model_validate(claims)}
    )
    rules = gpus.policy(reference_values="any")
    policy = insecure_simulator_policy(PKI.root_der, gpu=rules)
    return SHOWN.model_copy(update={"gpu": stolen}), policy


@pytest.mark.negative(44)
def test_nothing_says_that_spliced_parts_belong_together() -> None:
    """In a conversation they are refused; without one, their reader is told of it."""
    evidence, policy = spliced()
    with pytest.raises(GpuNonceMismatch):
        audited(evidence.to_bytes(), Attachments(binding=OLD), policy)
    found = audited(evidence.to_bytes(), Attachments(), policy)
    assert found.missing == ("conversation", "tie")
    again = make_bundle(recognise(evidence.to_bytes()), Attachments(), policy, NOW)
    assert audited(again.to_bytes(), Attachments(), policy).missing == ("conversation", "tie")


def test_a_processor_alone_does_not_pass_for_a_machine_with_accelerators() -> None:
    _, policy = spliced()
    quote = SHOWN.cpu.quote_bytes  # type: ignore[union-attr]  # of a dstack guest
    rules = insecure_simulator_policy(PKI.root_der, tee="tdx", gpu=policy.gpu)  # type: ignore[arg-type]  # rules
    said = OLD.report_data()
    found = audited(quote, Attachments(collateral=COLLATERAL, nonce=said), rules)
    assert (found.bound, found.missing) == (True, ("document", "accelerators"))
    none = insecure_simulator_policy(PKI.root_der, tee="tdx")
    assert audited(quote, Attachments(collateral=COLLATERAL, nonce=said), none).missing == (
        "document",
    )
