"""What auditors do from Python: pin what they trust, verify manifests and ledgers, write reports.

A function that verifies returns the verified value or raises: none returns a bool.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sealtrain.attest.policy import AppraisalPolicy, load_policy
from sealtrain.manifest.files import examine_file, verify_file
from sealtrain.manifest.report import write_report
from sealtrain.manifest.trust import Trust
from sealtrain.owner.ledger_audit import audit_broker, require_holds
from sealtrain.owner.trusting import trust_in

if TYPE_CHECKING:
    from sealtrain.consortium.members import Consortium
    from sealtrain.ledger.audit import AuditReport
    from sealtrain.manifest.files import Artefacts
    from sealtrain.manifest.verify import Report, VerifiedManifest
    from sealtrain.recipe.lock import LockedRecipe


def pin_trust(
    consortium: Consortium,
    locked: LockedRecipe,
    brokers: Sequence[Path],
    policy: Path | AppraisalPolicy,
    *,
    threshold: int | None = None,
) -> Trust:
    """Pin what an auditor trusts: consortium, recipe, brokers and policy.

    Each broker attests itself first; its key is taken from that evidence. ``Trust.save`` writes the
    file that ``verify_manifest`` and ``sealtrain verify`` read.

    Args:
        consortium: As the auditor holds it.
        brokers: Broker files.
        policy: What guests must show, or the file that says so.
        threshold: So many of several brokers must have released each dataset.

    Raises:
        UsageError: There are several brokers and no threshold.
        EvidenceRefused: A broker's evidence does not verify.
        SealtrainError: As ``client.trusting.trust_in``.
    """
    appraisal = load_policy(policy) if isinstance(policy, Path) else policy
    trust, _ = trust_in(consortium, locked, brokers, appraisal, threshold=threshold)
    return trust


def verify_manifest(
    manifest: Path,
    trust: Path | Trust,
    *,
    artefacts: Artefacts = "beside",
    now: int | None = None,
) -> VerifiedManifest:
    """Return the contents of a run's manifest that passes every check. Asks no server.

    Args:
        manifest: ``manifest.json`` of the run.
        trust: What the auditor trusts, or the file (YAML).
        artefacts: Folder with the sealed outputs, ``beside`` for the manifest's own; ``None``
            leaves the outputs unchecked, and the value's ``limits`` say so.
        now: Seconds since 1970; the system's clock when ``None``.

    Raises:
        Refused: The first refusal in the order of the specification.
        DataInvalid: There is no such file.
        TrustInvalid: The file is no trust file.
    """
    return verify_file(manifest, trust, artefacts=artefacts, now=now)


def examine_manifest(
    manifest: Path,
    trust: Path | Trust,
    *,
    artefacts: Artefacts = "beside",
    now: int | None = None,
) -> Report:
    """Make every check that can be made and return each result, of a refused manifest too.

    To rely on a manifest, use ``verify_manifest``: nothing is raised here for a refused one.
    Arguments as ``verify_manifest``.

    Raises:
        ManifestMalformed: The file is longer than a manifest may be.
        DataInvalid: There is no such file.
        TrustInvalid: The file is no trust file.
    """
    return examine_file(manifest, trust, artefacts=artefacts, now=now)


def report(
    manifest: Path,
    trust: Path | Trust,
    out: Path,
    *,
    artefacts: Artefacts = "beside",
    now: int | None = None,
) -> Report:
    """Write one self-contained HTML page about a run, its checks and its limits.

    The page is written for a refused manifest too, and says so; then the refusal is raised.

    Args:
        manifest: As for ``verify_manifest``.
        trust: As for ``verify_manifest``.
        out: HTML file (0600), whole or not at all; an earlier one is replaced.
        artefacts: As for ``verify_manifest``.
        now: As for ``verify_manifest``.

    Raises:
        Refused: The first refusal; the page is there.
        SealtrainError: As ``examine_manifest``; there is no page.
    """
    found = examine_manifest(manifest, trust, artefacts=artefacts, now=now)
    write_report(found, out)
    if found.refusal is not None:
        raise found.refusal
    return found


def audit_ledger(
    broker: Path, consortium: Consortium, *, key: bytes | None = None, notes: Iterable[str] = ()
) -> AuditReport:
    """Verify the whole ledger that a broker serves, and return the audit that found nothing wrong.

    Args:
        broker: Its broker file.
        consortium: As the auditor holds it.
        key: The ledger's key, 32 bytes, as a trust file or an earlier audit has it; the one that
            the broker proves now when ``None``.
        notes: Tree heads that were kept elsewhere (signed notes), which the entries must give too:
            without any, a broker that shows an old or another ledger is not detected.

    Raises:
        LedgerInconsistent: Something does not hold; the error names the first finding.
        SignatureInvalid: The tree head is by another key.
        BrokerUnreachable: The broker does not answer.
    """
    return require_holds(audit_broker(broker, consortium, key, list(notes)))
