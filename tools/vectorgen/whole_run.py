"""A whole run manifest with its trust file and output files, made without sealtrain.

Writes ``vectors/manifest/whole.json``: two owners, one of them with data, a broker, its ledger, a
simulated guest and its sealed model, all from ``spec/`` and the seeds of the other generators, and
cases that each change one thing behind a signature that holds. A second run writes the same bytes.
Run: ``python tools/vectorgen/whole_run.py [FOLDER]``.
"""

from __future__ import annotations

import copy
import hashlib
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import data_use
import evidence
import evidence_pki
import ledger
import manifest
import recipe
import sealed_format
from approval_parts import DECISION, A, B, b64, sha
from approval_parts import consortium as consortium_of
from approval_parts import envelope as signed_by
from cryptography.hazmat.primitives import serialization

Json = Any
OUT = Path(__file__).resolve().parents[2] / "vectors" / "manifest"
NOW = evidence_pki.NOW
STARTED, RELEASED, FINISHED, VERIFIED = NOW, NOW + 20, NOW + 600, NOW + 3600
RUN, DATASET = "5a" * 16, {"dataset_id": "d1" * 16, "root": "e1" * 32}
PKI = evidence_pki.Pki("Whole Run")
CONSORTIUM = consortium_of([A, B], 2, 1, own=True)
CONSORTIUM_ID = sha(manifest.canonical(CONSORTIUM))
BROKER_ID = sha(b"sealtrain/broker/v1:" + manifest.raw(manifest.BROKER))
MODEL = {"config.json": b'{"model_type":"llama"}', "model.safetensors": bytes(20_000)}
LIMITS = (
    *("simulated", "side-channels", "memorisation", "revocation", "owners-word"),
    *("recipe-judgement", "guest-clock", "broker-word", "sealed-outputs"),
    *("records-not-counted", "border-in-software"),
)


def canonical(value: Json) -> bytes:
    """RFC 8785, also of the floats that a lock and one case have."""
    return recipe.write(value).replace("1e+17", "100000000000000000").encode()


def at(second: int) -> str:
    """RFC 3339."""
    return evidence_pki.text(second)


def lock() -> Json:
    """The lock of the run: the data of the first owner, the model to both."""
    hardware = {
        "platforms": ["simulator"],
        "tier": "processor",
        "image": None,
        "key_provider": "none",
        "key_provider_id": None,
    }
    document = recipe.lock("A run that no program of ours wrote", hardware)
    document |= {"consortium_id": CONSORTIUM_ID, "brokers": [BROKER_ID]}
    document["recipe"]["datasets"][0] |= {"owner": A.name, "name": "biopsies"}
    document["recipe"]["release_policy"]["model"] = {"recipients": [A.name, B.name]}
    return document


LOCK = lock()
LOCK_TEXT = recipe.write(LOCK)
COMPOSE = recipe.compose(LOCK["recipe"]["hardware"], LOCK_TEXT)
COMPOSE_HASH = hashlib.sha256(COMPOSE.encode()).digest()
TARGET = {
    "app_id": COMPOSE_HASH[:20].hex(),
    "compose_hash": COMPOSE_HASH.hex(),
    "recipe_hash": sha(LOCK_TEXT.encode()),
}


def dataset_manifest() -> Json:
    """What the first owner signed of its data."""
    document = {
        "version": 1,
        **DATASET,
        "name": "biopsies",
        "owner": A.name,
        "owner_id": A.owner_id,
        "shards": 3,
        "records": 569,
        "tokens": None,
        "schema_digest": "f1" * 32,
        "app_id": TARGET["app_id"],
        "compose_hash": TARGET["compose_hash"],
        "sealed_at": at(STARTED - 7200),
        "previous": None,
        "data_use": {"purposes": ["research"], "retention_until": at(NOW + 365 * 86400)},
    }
    return signed_by(document, A, kind=data_use.TYPE)


def approval(owner: Any, **changes: Json) -> Json:
    """The decision of an owner for this target."""
    document = {
        "version": 2,
        "consortium_id": CONSORTIUM_ID,
        "brokers": [BROKER_ID],
        **TARGET,
        "datasets": [DATASET] if owner is A else [],
        "needs": {"actions": ["approve", "export_model"], "owners": [A.name]},
        "lifts": [],
        "decision": "approve",
        "nonce": hashlib.sha256(owner.name.encode()).hexdigest()[:32],
        "signed_at": at(STARTED - 3600),
        "not_after": at(STARTED + 30 * 86400),
        **changes,
    }
    return signed_by(document, owner, kind=DECISION)


def release(entry: Json | None = None, **changes: Json) -> Json:
    """The broker's receipt with its proof: the second of three entries of the ledger.

    ``entry`` changes what that entry says of the run's data.
    """
    receipt = {
        "version": 2,
        "kind": "release",
        "broker_id": BROKER_ID,
        "run_id": RUN,
        "resume": False,
        "consortium_id": CONSORTIUM_ID,
        **TARGET,
        "datasets": [{**DATASET, "owner_id": A.owner_id}],
        "approved_by": [A.name, B.name],
        "evidence_digest": "09" * 32,
        "transcript_digest": "0a" * 32,
        "verdict": {"label": manifest.MARKER, "claims": []},
        "simulated": True,
        "released_at": at(RELEASED),
        "lease": {"lease_id": "0b" * 32, "not_after": at(RELEASED + 3600)},
        "checkpoint": None,
        **changes,
    }
    envelope = manifest.envelope(canonical(receipt), manifest.RECEIPT_TYPE, manifest.BROKER)
    body = {
        "receipt_digest": sha(canonical(envelope)),
        "datasets": [{**DATASET, "owner_id": A.owner_id}],
        "elsewhere": [],
        **(entry or {}),
    }
    entries = [
        {"kind": "approval", "at": at(STARTED - 60), "body": {}},
        {"kind": "release", "at": at(RELEASED), "body": body},
        {"kind": "manifest", "at": at(FINISHED), "body": {}},
    ]
    leaves = [canonical(entry) for entry in entries]
    origin = f"sealtrain/ledger/{CONSORTIUM_ID}"
    text = ledger.body(len(leaves), ledger.mth(leaves), origin)
    proof = {
        "entry": entries[1],
        "index": 1,
        "size": len(leaves),
        "path": [digest.hex() for digest in ledger.audit_path(1, leaves)],
        "checkpoint": ledger.note(text, ledger.line(origin, manifest.BROKER, text)),
    }
    return {"receipt": envelope, "proof": proof, "rotations": []}


def sealed_model() -> dict[str, tuple[bytes, str]]:
    """Files of the model as they lie on disk, and their roots."""
    made = {}
    for shard, (name, content) in enumerate(sorted(MODEL.items())):
        core = sealed_format.core_of(
            dataset_id=RUN,
            owner_id=CONSORTIUM_ID,
            name=name,
            shard=shard,
            kind="model",
            binding={"files": len(MODEL)},
        )
        file = sealed_format.Made(
            content, key=sealed_format.seed("whole run"), core=core, stanzas=[], salt=name
        )
        made[f"model/{name}.sealed"] = (file.file(), file.root().hex())
    return made


MODEL_FILES = sealed_model()


STARTED_FIELDS = {"platform": "simulator", "phase": "sft"}
FINISHED_FIELDS = {"steps": 3, "samples": 24}


def run_log(counted: Json = None, served: Json = None) -> Json:
    """Two events and their hash chain; between them counts and rows, where some are given."""
    head = hashlib.sha256(f"sealtrain/run-log/v1:{RUN}".encode()).digest()
    told: list[tuple[str, int, Json]] = [("run.started", STARTED, STARTED_FIELDS)]
    told += [("data.counted", STARTED, counted)] if counted else []
    told += [("rows.served", FINISHED, served)] if served else []
    told += [("training.finished", FINISHED, FINISHED_FIELDS)]
    entries = [
        {"seq": seq, "at": at(second), "event": event, "fields": fields}
        for seq, (event, second, fields) in enumerate(told, start=1)
    ]
    for entry in entries:
        head = hashlib.sha256(head + canonical(entry)).digest()
    return {"head": head.hex(), "entries": entries}


def statement() -> Json:
    """The statement of the honest run."""
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [
            {"name": name, "digest": {"sha256": sha(data)}}
            for name, (data, _) in MODEL_FILES.items()
        ],
        "predicateType": "https://sealtrain.dev/attestations/run-manifest/v2",
        "predicate": {
            **manifest.predicate(),
            "consortium": CONSORTIUM,
            "recipe": {"recipe_hash": TARGET["recipe_hash"], "lock": LOCK},
            "deployment": {
                "platform": "simulator",
                "tier": "processor",
                "app_id": TARGET["app_id"],
                "compose_hash": TARGET["compose_hash"],
            },
            "datasets": [dataset_manifest()],
            "approvals": [approval(A), approval(B)],
            "releases": [release()],
            "run": {
                "run_id": RUN,
                "started_at": at(STARTED),
                "finished_at": at(FINISHED),
                "steps": 3,
                "tokens": 1536,
                "tokens_sha256": None,
                "resumes": [],
                "history": [{"step": 1, "values": {"loss": 1.5}}, {"step": 3, "values": {}}],
                "metrics": {"loss": 1.25},
                "environment": {"python": "3.11.9"},
            },
            "run_log": run_log(),
            "outputs": {
                "recipients": [A.name, B.name],
                "files": [
                    {"name": name, "size": len(data), "root": root}
                    for name, (data, root) in MODEL_FILES.items()
                ],
            },
            "limits": [{"id": name, "text": f"Limit {name}."} for name in LIMITS],
        },
    }


def quote(payload: bytes, head: str) -> Json:
    """The final evidence: a guest of this deployment, and what its quote commits to."""
    commitment = {
        "statement_digest": sha(payload),
        "signing_key": b64(manifest.raw(manifest.GUEST)),
        "run_log_head": head,
    }
    provider = b'{"name":"none","id":""}'
    log = [
        evidence.firmware(0, "firmware"),
        evidence.firmware(1, "kernel"),
        evidence.firmware(2, "command line"),
        evidence.runtime("system-preparing", b""),
        evidence.runtime("app-id", COMPOSE_HASH[:20]),
        evidence.runtime("compose-hash", COMPOSE_HASH),
        evidence.runtime("instance-id", b"\x41" * 20),
        evidence.runtime("boot-mr-done", b""),
        evidence.runtime("key-provider", provider),
        evidence.runtime("system-ready", b""),
    ]
    data = evidence.report_data("manifest", commitment)
    return {
        "version": 2,
        "platform": "simulator",
        "cpu": {
            "tee": "dstack",
            "quote": b64(PKI.quote(data, evidence.registers_of(log))),
            "event_log": log,
            "app_compose": COMPOSE,
            "vm_config": "{}",
        },
        "gpu": None,
        "collateral": PKI.collateral(),
        "gpu_collateral": None,
    }


def whole(change: Callable[[Json], object] = lambda predicate: None) -> str:
    """The file around the honest statement, or one with another predicate, signed and quoted."""
    document = statement()
    change(document["predicate"])
    payload = canonical(document)
    final = canonical(quote(payload, document["predicate"]["run_log"]["head"]))
    file = manifest.document(payload)
    file["evidence"] = manifest.envelope(final, manifest.EVIDENCE_TYPE, manifest.GUEST)
    return canonical(file).decode()


def trust() -> Json:
    """What an auditor takes as given."""
    root = PKI.root.public_bytes(serialization.Encoding.DER)
    return {
        "version": 1,
        "consortium_id": CONSORTIUM_ID,
        "recipe_hash": TARGET["recipe_hash"],
        "compose_hash": TARGET["compose_hash"],
        "app_id": TARGET["app_id"],
        "brokers": {
            "signing_keys": [b64(manifest.raw(manifest.BROKER))],
            "threshold": 1,
            "datasets": "all",
        },
        "appraisal": {
            "version": 2,
            "platform": "simulator",
            "tier": "processor",
            "root": {"insecure_simulator_root": b64(root)},
            "cpu": {
                "tee": "dstack",
                "tcb_status": ["UpToDate"],
                "advisories": "none",
                "debug": "refuse",
                "migration": "refuse",
                "measurements": "any",
                "platform_ids": "any",
                "min_tcb_evaluation_data_number": 7,
                "max_collateral_age_s": "any",
                "key_provider": "any",
                "os_image_hash": "any",
            },
            "gpu": "none",
        },
        "simulated": "accept-insecure",
    }


def cases() -> list[Json]:
    """The honest run, and one refusal for most checks."""
    made: list[Json] = [{"name": "the run as it was", "manifest": whole(), "outcome": "ok"}]

    def case(name: str, outcome: str, change: Callable[[Json], object]) -> None:
        made.append({"name": name, "manifest": whole(change), "outcome": outcome})

    def trusting(name: str, outcome: str, **changes: Json) -> None:
        made.append({"name": name, "manifest": whole(), "trust": changes, "outcome": outcome})

    expired = approval(B, not_after=at(STARTED - 60))
    other = copy.deepcopy(LOCK)
    other["recipe"]["description"] = "another"
    case("a fact that no version knows", "form manifest-malformed", lambda it: it.update(note=""))
    case(
        "a loss of 1e17, which RFC 8785 writes without an exponent",
        "ok",
        lambda it: it["run"]["history"][0]["values"].update(loss=1e17),
    )
    case("an entry dropped", "run-log run-log-broken", lambda it: it["run_log"]["entries"].pop())
    case(
        "a tier that is none",
        "form manifest-malformed",
        lambda it: it["deployment"].update(tier="hardware"),
    )
    case("no tier", "form manifest-malformed", lambda it: it["deployment"].pop("tier"))
    case(
        "another tier than the evidence proves",
        "appraisal claim-contradicted",
        lambda it: it["deployment"].update(tier="cloud"),
    )
    case("another lock", "recipe claim-contradicted", lambda it: it["recipe"].update(lock=other))
    case(
        "a dataset listed twice",
        "datasets dataset-mismatch",
        lambda it: it.update(datasets=it["datasets"] * 2),
    )
    case("no release", "releases claim-contradicted", lambda it: it["releases"].clear())
    carried = approval(B, brokers=["b9" * 32])
    case(
        "an approval that was given to another broker",
        "approvals approvals-missing",
        lambda it: it.update(approvals=[it["approvals"][0], carried]),
    )
    case("one approval", "approvals approvals-missing", lambda it: it["approvals"].pop())
    case(
        "an approval that had ended",
        "approvals approval-expired",
        lambda it: it.update(approvals=[it["approvals"][0], expired]),
    )
    case(
        "a receipt beside the proof of another",
        "ledger proof-invalid",
        lambda it: it["releases"][0].update(proof=release(transcript_digest="0c" * 32)["proof"]),
    )
    case(
        "keys to a run on data of another owner with the same id",
        "ledger dataset-mismatch",
        lambda it: it.update(
            releases=[release({"datasets": [{**DATASET, "owner_id": B.owner_id}]})]
        ),
    )
    case(
        "keys to a run on data of no owner",
        "ledger statement-invalid",
        lambda it: it.update(releases=[release({"datasets": [DATASET]})]),
    )
    repeated = approval(B, datasets=[{**DATASET, "root": "e9" * 32}])
    case(
        "another owner pins the id of this data",
        "ok",
        lambda it: it.update(approvals=[it["approvals"][0], repeated]),
    )
    otherwise = approval(A, datasets=[{**DATASET, "root": "e9" * 32}])
    case(
        "its owner pins another root",
        "approvals dataset-mismatch",
        lambda it: it.update(approvals=[otherwise, it["approvals"][1]]),
    )
    case(
        "keys after the end",
        "times claim-contradicted",
        lambda it: it.update(releases=[release(released_at=at(FINISHED + 301), lease={
            "lease_id": "0b" * 32, "not_after": at(FINISHED + 3600)})]),
    )  # fmt: skip
    case(
        "a metric that the recipe does not release",
        "policy egress-refused",
        lambda it: it["run"]["metrics"].update(accuracy=0.5),
    )

    def put(log: Json, it: Json) -> None:
        it.update(run_log=log)

    dataset = DATASET["dataset_id"]
    counts = {"records": 569, "whole": 560, "truncated": 4, "filtered": 0, "empty": 5}
    for name, outcome, counted in (
        ("records counted, and no count public", "ok", {dataset: None}),
        ("counts that the recipe keeps in", "policy egress-refused", {dataset: counts}),
        ("counts of another dataset", "policy claim-contradicted", {"ab" * 16: None}),
        ("a count left out", "run-log run-log-broken", {dataset: {"records": 569}}),
    ):
        log = run_log(counted)
        made.append({"name": name, "manifest": whole(partial(put, log)), "outcome": outcome})
    word = {"id": "workload-word", "text": "Limit workload-word."}
    for name, outcome, served, limits in (
        ("rows served, and no number public", "ok", {dataset: None}, [word]),
        ("the word of a workload concealed", "limits claim-contradicted", {dataset: None}, []),
        ("rows that the recipe keeps in", "policy egress-refused", {dataset: 9}, [word]),
        ("rows of another dataset", "policy claim-contradicted", {"ab" * 16: None}, [word]),
        ("rows that are no number", "run-log run-log-broken", {dataset: -1}, [word]),
    ):

        def serve(log: Json, more: list[Json], it: Json) -> None:
            it.update(run_log=log, limits=[*it["limits"], *more])

        log = run_log(served=served)
        made.append(
            {"name": name, "manifest": whole(partial(serve, log, limits)), "outcome": outcome}
        )
    case("no marker", "simulation claim-contradicted", lambda it: it.update(marker=None))
    case("a limit concealed", "limits claim-contradicted", lambda it: it["limits"].pop())
    case(
        "records not counted, and the limit concealed",
        "limits claim-contradicted",
        lambda it: it["limits"].remove({"id": LIMITS[-2], "text": f"Limit {LIMITS[-2]}."}),
    )
    trusting("another consortium is trusted", "trust trust-mismatch", consortium_id="00" * 32)
    trusting("a simulator is refused", "quote simulated-evidence", simulated="refuse")
    first = next(iter(MODEL_FILES))
    made.append(
        {
            "name": "a file with a changed bit",
            "manifest": whole(),
            "changed": first,
            "outcome": "artefacts subject-mismatch",
        }
    )
    return made


def main() -> None:
    """Write the file."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else OUT
    folder.mkdir(parents=True, exist_ok=True)
    document = {
        "version": 1,
        "now": VERIFIED,
        "trust": trust(),
        "files": {name: b64(data) for name, (data, _) in MODEL_FILES.items()},
        "cases": cases(),
    }
    text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
    (folder / "whole.json").write_text(text, "utf-8")


if __name__ == "__main__":
    main()
