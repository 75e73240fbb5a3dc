"""A SEV-SNP report by itself: recognised, verified line by line, explained field by field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sealtrain.attest.bundle import Attachments
from sealtrain.attest.certificates import certificate_fields
from sealtrain.attest.errors import CertificateChainInvalid, CollateralUnreachable
from sealtrain.attest.facts import MeasuredDocument, SignedFacts, Situation
from sealtrain.attest.field import CPU, Field, on_off, rows_of
from sealtrain.attest.forms import StatementExhibit
from sealtrain.attest.roots import root_name
from sealtrain.attest.snp import appraise as snp
from sealtrain.attest.snp.chain import AMD_ROOT_SHA256
from sealtrain.attest.snp.collect import (
    certificates_in,
    collect,
    is_table,
    order_chain,
    parse_table,
    revocations_in,
)
from sealtrain.attest.snp.parse import REPORT_BYTES, SnpReport, parse_report, tcb_of
from sealtrain.attest.snp.policy import SnpRules
from sealtrain.attest.snp.tee import SnpEvidence
from sealtrain.attest.snp.verify import REPORT, VerifiedReport, verify_report
from sealtrain.attest.tee import Shown
from sealtrain.attest.verifier import Verifier
from sealtrain.base.encoding import to_base64
from sealtrain.errors import EvidenceRefused

_AMD = "AMD root key (ARK)"
_CHAIN = 3
_WANTED = "the chip's, its issuer, the root"


@dataclass(frozen=True, slots=True, kw_only=True)
class Snp(StatementExhibit):
    """A SEV-SNP report, perhaps with the host's table of certificates behind it."""

    tee = "snp"
    kind = "snp-report"
    title = "AMD SEV-SNP report"
    report: SnpReport
    table: Mapping[str, bytes] = field(default_factory=dict)
    """As ``parse_table`` gives it."""

    def prove(self, beside: Attachments, at: Situation) -> SignedFacts[VerifiedReport]:
        """Its signature under its certificates."""
        crl = self.table.get("crl") if beside.crl is None else beside.crl
        chain = report_chain(self.report, self.table, (), beside.certificates)
        return _of_document(verify_signed_report(self.report.raw, chain, crl, at))

    def fields(self, beside: Attachments) -> list[Field]:
        """Every field but its signature, and its certificates."""
        try:
            chain = report_chain(self.report, self.table, (), beside.certificates)
        except EvidenceRefused:
            chain = beside.certificates
        return report_fields(self.report, chain)

    def root(self, beside: Attachments) -> bytes:
        """The last certificate of its chain."""
        return report_chain(self.report, self.table, (), beside.certificates)[-1]


def _recognise(data: bytes) -> Snp | None:
    """A report by its size and the range of its version; a table behind it by how it begins."""
    if len(data) < REPORT_BYTES or not 0 < data[0] < 0x30 or any(data[1:4]):
        return None
    if len(data) == REPORT_BYTES:
        return Snp(raw=data, report=parse_report(data))
    if not is_table(data[REPORT_BYTES:]):
        return None
    report = parse_report(data[:REPORT_BYTES])
    return Snp(raw=data, report=report, table=parse_table(data[REPORT_BYTES:]))


def report_chain(
    report: SnpReport,
    table: Mapping[str, bytes],
    inside: tuple[bytes, ...],
    beside: tuple[bytes, ...],
) -> tuple[bytes, ...]:
    """Leaf, issuer, root of a report: those beside it, or the file's own with those.

    Args:
        report: Names the kind of its leaf.
        table: The host's table, as ``parse_table`` gives it.
        inside: Certificates that the file has besides, in any order.
        beside: Certificates that a person named; three of them are the chain.

    Returns:
        Nothing where there is no certificate at all.

    Raises:
        CertificateChainInvalid: One of the three is missing, or cannot be read.
        EvidenceMalformed: A certificate of the file cannot be read.
    """
    if not table and not inside:
        return beside
    if len(beside) == _CHAIN:
        return beside
    try:
        return order_chain(report, dict(table), (*inside, *beside))
    except CollateralUnreachable as error:
        raise CertificateChainInvalid(
            error.message,
            check="certificate chain",
            got=f"{len(table) + len(inside) + len(beside)} certificates",
            expected=_WANTED,
            hint="name the missing ones with --certificate",
        ) from error


def _of_document(verified: VerifiedReport) -> SignedFacts[VerifiedReport]:
    """HOST_DATA is the deployment document's hash."""
    report = verified.report
    return SignedFacts(
        statement=verified,
        root=report_root(verified),
        report_data=report.report_data,
        source=REPORT,
        document=MeasuredDocument(got=report.host_data.hex(), source=REPORT),
        # The firmware's own number for this guest, new at every launch.
        instance_id=report.report_id,
    )


def verify_signed_report(
    raw: bytes, certificates: tuple[bytes, ...], crl: bytes | None, at: Situation
) -> VerifiedReport:
    """A report whose signature holds; raises as ``verify_report``."""
    if not certificates:
        raise CertificateChainInvalid(
            "no certificates to verify the report with",
            check="certificate chain",
            got="none",
            expected=_WANTED,
            hint="name them in this order with --certificate",
        )
    return verify_report(raw, certificates, simulator_root=at.root, now=at.now, crl=crl)


def report_root(verified: VerifiedReport) -> str:
    """The root that vouches for a report, in words."""
    return root_name(verified.simulated, f"{_AMD} of {verified.product}")


def report_fields(report: SnpReport, certificates: tuple[bytes, ...]) -> list[Field]:
    """Every field of a SEV-SNP report but its signature."""
    product = report.product or "Genoa"
    unsure = "" if report.product else " (read as before Turin: the report does not say)"
    rows = [
        ("version", str(report.version), "Format of the report."),
        ("guest SVN", str(report.guest_svn), "Security version that the guest's owner gave it."),
        ("policy", f"{report.policy:#x}", "What the guest lets its host do."),
        ("debug", on_off(report.debug), "On means that the host may read the guest's memory."),
        ("migration", on_off(report.migratable), "On means that an agent may move the guest."),
        (
            "SMT",
            on_off(report.smt_allowed),
            "On means that a core's other thread may be anybody's.",
        ),
        ("family id", report.family_id, "Set by the host that launched the guest."),
        ("image id", report.image_id, "Set by the host that launched the guest."),
        ("VMPL", str(report.vmpl), "Privilege level that asked for the report; 0 is the highest."),
        ("platform info", f"{report.platform_info:#x}", "How the platform is set up, as bits."),
        ("platform flags", ", ".join(report.platform_flags) or "none", "The same in words."),
        (
            "author key",
            on_off(report.author_key_enabled),
            "Whether an author key vouches for the id.",
        ),
        ("chip key masked", on_off(report.chip_key_masked), "On means that no chip key signs."),
        ("signing key", report.signing_key, "vcek: one chip's; vlek: lent to a cloud."),
        ("REPORT_DATA", report.report_data.hex(), "The guest's side of the conversation."),
        ("MEASUREMENT", report.measurement, "Measurement of the launched image."),
        ("HOST_DATA", report.host_data.hex(), "Set at launch; ours: the deployment document."),
        ("ID key", report.id_key_digest, "Digest of the key that authorised the launch."),
        ("author key digest", report.author_key_digest, "Digest of the key above the ID key."),
        ("report id", report.report_id, "The firmware's number for this guest."),
        ("migration agent", report.report_id_ma, "Report id of the agent; all f is none."),
        ("current TCB", f"{tcb_of(report.current_tcb, product)}{unsure}", "What runs now."),
        ("reported TCB", f"{tcb_of(report.reported_tcb, product)}", "What the key stands for."),
        ("committed TCB", f"{tcb_of(report.committed_tcb, product)}", "What cannot be undone."),
        ("launch TCB", f"{tcb_of(report.launch_tcb, product)}", "What ran at the launch."),
        ("chip id", report.chip_id, "Which chip; zeros where its owner hides it."),
        ("firmware", report.current_firmware, "Version of the SEV firmware that runs."),
        ("committed firmware", report.committed_firmware, "Version that cannot be undone."),
    ]
    if report.cpuid is not None:
        family, model, stepping = report.cpuid
        number = f"family {family:#x} model {model:#x} stepping {stepping}"
        rows.append(("processor", f"{number}: {report.product or 'unknown'}", "Its generation."))
    if report.launch_mitigations is not None and report.current_mitigations is not None:
        launched, current = report.launch_mitigations, report.current_mitigations
        rows.append(("mitigations", f"{current:#x}", "Mitigations that are on now."))
        rows.append(("launch mitigations", f"{launched:#x}", "Mitigations on at the launch."))
    for when, value in zip(
        ("current", "launch", "committed"), report.extended_tcb or (), strict=False
    ):
        told = "Security versions of further firmware; their parts are the product's."
        rows.append((f"{when} extended TCB", value, told))
    rows.append(("identity", report.identity, "SHA-256 of what the signature covers."))
    return [*rows_of(rows), *certificate_fields(CPU, certificates)]


def _prove(
    evidence: SnpEvidence, beside: Attachments, at: Situation
) -> SignedFacts[VerifiedReport]:
    crl = evidence.crl_der if beside.crl is None else beside.crl
    raw, chain = evidence.report_bytes, evidence.certificates_der
    return _of_document(verify_signed_report(raw, chain, crl, at))


def _own_fields(evidence: SnpEvidence) -> list[Field]:
    return report_fields(parse_report(evidence.report_bytes), evidence.certificates_der)


def _show(place: Path, report_data: bytes) -> tuple[Snp, Attachments]:
    found = collect(place, report_data)
    shown = Snp(raw=found.report, report=parse_report(found.report))
    return shown, Attachments(certificates=found.certificates, crl=found.crl)


def _collect(device: Path, report_data: bytes, options: Mapping[str, str]) -> Shown:
    folder = Path(options["certificates"]) if options.get("certificates") else None
    found = collect(device, report_data, certificates=certificates_in(folder))
    crl = revocations_in(folder) or found.crl
    return {
        "tee": "snp",
        "report": to_base64(found.report),
        "certificates": [to_base64(certificate) for certificate in found.certificates],
        "crl": None if crl is None else to_base64(crl),
    }


AMD_ROOTS: Mapping[str, str] = {
    digest: f"AMD's pinned root of {product}" for digest, product in AMD_ROOT_SHA256.items()
}
VERIFIER = Verifier(
    prove=_prove,
    form=SnpRules,
    rules=snp.RULES,
    eat=snp.eat,
    fields=_own_fields,
    recognise=_recognise,
    show=_show,
    pinned_roots=AMD_ROOTS,
    collect=_collect,
)
