"""Put a run's facts, the final quote and the signatures into one file (spec/run-manifest.md §1).

The order matters: statement, its digest, quote over the digest, signatures. The guest key signs
only bytes that the quote commits to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sealtrain.attest.evidence import DCAP_TEES, Evidence
from sealtrain.attest.report_data import Binding
from sealtrain.base.encoding import to_base64
from sealtrain.base.tiers import tier_of
from sealtrain.manifest import form, limits
from sealtrain.manifest.errors import ClaimContradicted
from sealtrain.manifest.predicate import PREDICATE_TYPE, SIMULATED_MARKER, Predicate
from sealtrain.signing import dsse, runlog, statement


def build_manifest(
    *,
    subjects: Sequence[statement.Subject],
    predicate: Predicate,
    guest_signer: dsse.Ed25519Signer,
    quote: Callable[[Binding], Evidence],
) -> bytes:
    """Canonical bytes of a signed run manifest.

    Args:
        subjects: The sealed output files in the order of ``predicate.outputs.files``.
        predicate: Every fact of the run; its ``signer`` is ``guest_signer``'s public half.
        guest_signer: Fresh key, used for this manifest and then discarded.
        quote: Collects evidence for one binding, with collateral inside, so that an auditor can
            verify the file offline.

    Raises:
        ClaimContradicted: The predicate contradicts itself, the subjects or the evidence; the
            guest does not write a file that its own verifier would refuse.
    """
    _refuse_contradictions(subjects, predicate, guest_signer)
    payload = statement.build(subjects, PREDICATE_TYPE, predicate.to_dict())
    promised = form.commitment(payload, guest_signer.public, predicate.run_log.head)
    evidence = quote(Binding("manifest", promised))
    if evidence.platform != predicate.deployment.platform:
        raise ClaimContradicted(
            "evidence comes from another platform than the manifest says",
            check="simulation",
            got=evidence.platform,
            expected=predicate.deployment.platform,
        )
    if tier_of(evidence.cpu.tee) != predicate.deployment.tier:
        raise ClaimContradicted(
            "evidence is of another tier than the manifest says",
            check="tier",
            got=tier_of(evidence.cpu.tee),
            expected=predicate.deployment.tier,
        )
    if evidence.collateral is None and evidence.cpu.tee in DCAP_TEES:
        raise ClaimContradicted(
            "evidence carries no collateral; the manifest could not be verified offline",
            check="quote",
            hint="collect evidence with a collateral source",
        )
    data = form.write(
        dsse.sign(payload, statement.PAYLOAD_TYPE, guest_signer),
        dsse.sign(evidence.to_bytes(), form.EVIDENCE_PAYLOAD_TYPE, guest_signer),
        guest_signer.public,
    )
    form.read(data)  # every written file can be read
    return data


def _refuse_contradictions(
    subjects: Sequence[statement.Subject], predicate: Predicate, signer: dsse.Ed25519Signer
) -> None:
    simulated = predicate.deployment.platform == "simulator"
    listed = {limit.id for limit in predicate.limits}
    contradictions = {
        "signer": predicate.signer.public_key != to_base64(signer.public),
        "outputs": [subject.name for subject in subjects]
        != [file.name for file in predicate.outputs.files],
        "simulated": predicate.simulated != simulated
        or predicate.marker != (SIMULATED_MARKER if simulated else None),
        "limits": not listed.issuperset(limits.list_required(predicate)),
    }
    for what, wrong in contradictions.items():
        if wrong:
            raise ClaimContradicted(f"the manifest contradicts itself about {what}", check=what)
    runlog.verify(predicate.run.run_id, predicate.run_log.entries, head=predicate.run_log.head)
