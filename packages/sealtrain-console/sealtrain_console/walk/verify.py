"""Step 5, the auditor verifies the manifest: what a forger, and the guest's operator, may claim.

Two kinds of forger. One has the file alone and no guest's key. The other operates a genuine guest
of the approved document, which signs what it is told: the quote is then right, and the manifest's
own contents have to give the lie away.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sealtrain.attest.evidence import Evidence
from sealtrain.attest.report_data import Binding
from sealtrain.base.canonical import canonical_json, parse_json
from sealtrain.base.clock import from_rfc3339
from sealtrain.base.encoding import from_base64, to_base64
from sealtrain.manifest import form
from sealtrain.manifest.predicate import PREDICATE_TYPE
from sealtrain.manifest.trust import Trust
from sealtrain.manifest.verify import verify_manifest
from sealtrain.signing import dsse, statement
from sealtrain_console.walk.prepared_run import OWNERS, READ_FROM
from sealtrain_console.walk.stage import Stage
from sealtrain_console.walk.switch import Attempt, Switch

_LIE: Final = 0.01
"""The loss that a forger would rather have had."""
Change = Callable[[dict[str, Any]], None]


def _signature(stage: Stage, off: bool) -> Attempt:
    """The forger has the file alone: it edits the number and keeps the signature."""
    manifest = stage.run.manifest
    if off:
        document: Any = parse_json(manifest)
        envelope = document["bundle"]["dsseEnvelope"]
        payload: Any = parse_json(from_base64(envelope["payload"]))
        _better(payload["predicate"])
        envelope["payload"] = to_base64(canonical_json(payload))
        manifest = canonical_json(document)
    return _try_verify(stage, manifest, stake=_number(stage))


def _binding(stage: Stage, off: bool) -> Attempt:
    """The forger signs with a key of its own and shows the honest run's evidence beside it."""
    honest = form.read(stage.run.manifest)
    recorded = Evidence.from_bytes(honest.signed_evidence.payload)
    manifest = (
        _sign_changed(stage, _better, evidence=lambda _binding: recorded)
        if off
        else stage.run.manifest
    )
    return _try_verify(stage, manifest, stake=_number(stage))


def _releases(stage: Stage, off: bool) -> Attempt:
    """The forger claims that the run used a dataset for which no broker released a key."""

    def change(facts: dict[str, Any]) -> None:
        if off:
            facts["releases"] = []

    return _genuine(
        stage,
        change,
        stake="A run on data that no broker released would have looked like an approved one.",
    )


def _approvals(stage: Stage, off: bool) -> Attempt:
    def change(facts: dict[str, Any]) -> None:
        if off:
            facts["approvals"] = facts["approvals"][:1]

    return _genuine(
        stage,
        change,
        stake=f"A run that only {READ_FROM[0]} approved would have counted as approved by two of "
        f"{len(OWNERS)}.",
    )


def _ledger(stage: Stage, off: bool) -> Attempt:
    def change(facts: dict[str, Any]) -> None:
        if off:
            path = facts["releases"][0]["proof"]["path"]
            path[0] = f"{int(path[0], 16) ^ 1:064x}"

    return _genuine(
        stage,
        change,
        stake="A release that the broker never wrote into its ledger would have counted: no owner "
        "could have seen it there.",
    )


def _metrics(stage: Stage, off: bool) -> Attempt:
    def change(facts: dict[str, Any]) -> None:
        if off:
            facts["run"]["metrics"]["eval_loss"] = 3.14159265358979

    return _genuine(
        stage,
        change,
        stake="A guest could have carried records out as digits of a number that no owner allowed.",
    )


def _simulation(stage: Stage, off: bool) -> Attempt:
    def change(facts: dict[str, Any]) -> None:
        if off:
            facts["simulated"], facts["marker"] = False, None

    return _genuine(
        stage, change, stake="This very walk would have passed for a run on real hardware."
    )


def _limits(stage: Stage, off: bool) -> Attempt:
    def change(facts: dict[str, Any]) -> None:
        if off:
            del facts["limits"][0]

    limits = form.read(stage.run.manifest).predicate.limits
    return _genuine(
        stage,
        change,
        stake=f"The reader would not have learned one of {len(limits)} things that the manifest "
        f"does not prove ({limits[0].id}).",
    )


def _outputs(stage: Stage, off: bool) -> Attempt:
    folder = stage.folder / "out"
    shutil.copytree(stage.run.run, folder)
    if off:
        model = folder / "model" / "model.safetensors.sealed"
        data = bytearray(model.read_bytes())
        data[len(data) // 2] ^= 1
        model.write_bytes(data)
    return _try_verify(
        stage,
        stage.run.manifest,
        artefacts=folder,
        stake="Owners would have taken another model for the one that their records made.",
    )


def _hardware(stage: Stage, off: bool) -> Attempt:
    trust = stage.run.trust
    if off:
        trust = trust.model_copy(update={"simulated": "refuse"})
    return _try_verify(
        stage,
        stage.run.manifest,
        trust=trust,
        stake="An auditor who asked for hardware would have been shown a simulation.",
    )


def _better(facts: dict[str, Any]) -> None:
    facts["run"]["metrics"]["loss"] = _LIE


def _number(stage: Stage) -> str:
    loss = form.read(stage.run.manifest).predicate.run.metrics["loss"]
    return f"The model's loss would have read {_LIE} instead of {loss}."


def _genuine(stage: Stage, change: Change, *, stake: str) -> Attempt:
    """A genuine guest of the approved document signs a changed manifest."""
    finished = from_rfc3339(form.read(stage.run.manifest).predicate.run.finished_at)
    quote = partial(stage.run.guest.evidence, collateral=stage.run.collateral(finished))
    return _try_verify(stage, _sign_changed(stage, change, evidence=quote), stake=stake)


def _sign_changed(
    stage: Stage, change: Change, *, evidence: Callable[[Binding], Evidence]
) -> bytes:
    """The run's manifest with a change, signed by a new key, with this evidence beside it."""
    honest = form.read(stage.run.manifest)
    signer = dsse.Ed25519Signer(Ed25519PrivateKey.generate())
    facts: dict[str, Any] = copy.deepcopy(honest.predicate.to_dict())
    facts["signer"] = {"public_key": to_base64(signer.public)}
    change(facts)
    payload = statement.build(honest.subjects, PREDICATE_TYPE, facts)
    promised = form.commitment(payload, signer.public, honest.predicate.run_log.head)
    shown = evidence(Binding("manifest", promised))
    return form.write(
        dsse.sign(payload, statement.PAYLOAD_TYPE, signer),
        dsse.sign(shown.to_bytes(), form.EVIDENCE_PAYLOAD_TYPE, signer),
        signer.public,
    )


def _try_verify(
    stage: Stage,
    manifest: bytes,
    *,
    trust: Trust | None = None,
    artefacts: Path | None = None,
    stake: str,
) -> Attempt:
    def act() -> str:
        found = verify_manifest(
            manifest,
            trust or stage.run.trust,
            artefacts=artefacts or stage.run.run,
            now=stage.clock(),
        )
        return f"The manifest is accepted: {len(found.checks)} checks passed."

    return Attempt(act=act, stake=stake)


SWITCHES: Final = (
    Switch(
        name="verify-signature",
        step="verify",
        protection="The guest signed the manifest.",
        off="A forger edits the loss in the file.",
        claim="C25",
        make=_signature,
    ),
    Switch(
        name="verify-quote",
        step="verify",
        protection="The hardware's last quote names this very manifest and the key that signed it.",
        off="A forger edits the loss, signs with its own key, and keeps the honest run's quote.",
        claim="C18",
        make=_binding,
    ),
    Switch(
        name="verify-releases",
        step="verify",
        protection="The manifest carries the broker's signed receipt for every dataset.",
        off="The operator of a genuine guest leaves the receipts out.",
        claim="C26",
        make=_releases,
    ),
    Switch(
        name="verify-approvals",
        step="verify",
        protection="The manifest carries the owners' signed approvals.",
        off="The operator of a genuine guest shows one approval where two are needed.",
        claim="C26",
        make=_approvals,
    ),
    Switch(
        name="verify-ledger",
        step="verify",
        protection="A proof shows that the broker's ledger holds the release.",
        off="One bit of the ledger's proof differs.",
        claim="C13",
        make=_ledger,
    ),
    Switch(
        name="verify-metrics",
        step="verify",
        protection="Only the metrics that the recipe names leave the guest.",
        off="The manifest carries a metric that the recipe does not name.",
        claim="C21",
        make=_metrics,
    ),
    Switch(
        name="verify-simulated",
        step="verify",
        protection="A simulated run says that it is simulated.",
        off="The manifest leaves that out.",
        claim="C27",
        make=_simulation,
    ),
    Switch(
        name="verify-limits",
        step="verify",
        protection="The manifest says what it does not prove.",
        off="The manifest leaves one of its limits out.",
        claim="C27",
        make=_limits,
    ),
    Switch(
        name="verify-outputs",
        step="verify",
        protection="The manifest names every output file by its digest.",
        off="The operator exchanges the sealed model.",
        claim="C110",
        make=_outputs,
    ),
    Switch(
        name="verify-hardware",
        step="verify",
        protection="An auditor says whether a simulation may pass (the walk's own says yes).",
        off="The auditor asks for hardware.",
        claim="C15",
        make=_hardware,
    ),
)
