"""Honest fields of every event of a run log, and chains over entries that no ``RunLog`` writes."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from sealtrain.base.canonical import canonical_json
from sealtrain.base.clock import to_rfc3339

_A, _B, _C, _D = (digit * 64 for digit in "abcd")
_PADS_BEGUN = {
    "pads": "dealer",
    "checks": 2,
    "skip": ["lm_head"],
    "layers": {"q_proj": 12},
    "products": 12,
    "dealer": {"simulated": True},
}
_PADS_SPENT = {"products": 12, "rows": 48, "bytes_out": 4096, "bytes_in": 2048}
FIELDS: Mapping[str, dict[str, Any]] = {
    "run.started": {"platform": "simulator", "phase": "sft"},
    "run.restarted": {},
    "run.resumed": {"counter": 1, "step": 100, "checkpoint": _A},
    "border.closed": {"landlock": 7, "seccomp": True, "unbound": 0, "memory": "private"},
    "keys.released": {"lease_id": _A, "not_after": "2026-09-22T14:13:20Z"},
    "data.validated": {"rules_sha256": _A, "report_sha256": _B},
    "data.counted": {
        _A[:32]: {"records": 9, "whole": 4, "truncated": 3, "filtered": 0, "empty": 2},
        _B[:32]: None,
    },
    "rows.served": {_A[:32]: 96, _B[:32]: None},
    "checkpoint.sealed": {"counter": 1, "step": 100, "digest": _A},
    "training.finished": {"steps": 300, "samples": 4800},
    "output.withheld": {"printed": 3, "holder.channel-cut": 1},
    "outputs.sealed": {"model/model.safetensors.sealed": _A},
    "nodes.joined": {
        "session": _A[:32],
        "ranks": 2,
        "nodes": [
            {
                "node": 1,
                "run_id": _B[:32],
                "evidence": _C,
                "key": _D,
                "from": "2026-09-21T14:13:35Z",
            }
        ],
    },
    "federation.begun": {
        "rule": "fedavg",
        "rounds": 3,
        "min_parties": 2,
        "parties": ["hospital-a", "hospital-b"],
        "state": _A,
    },
    "federation.planned": {
        "patients": {"hospital-a": 20},
        "rate": 0.5,
        "noise_multiplier": 1.5,
        "epsilon": 3.5,
    },
    "party.joined": {
        "party": "hospital-a",
        "records": 40,
        "patients": 20,
        "products": _PADS_BEGUN,
    },
    "party.left": {"party": "hospital-a", "code": "peer-unreachable"},
    "party.refused": {"code": "update-refused"},
    "round.begun": {"round": 1, "state": _A},
    "update.taken": {
        "round": 1,
        "party": "hospital-a",
        "digest": _A,
        "records": 40,
        "norm": 0.25,
        "products": {"session": _A[:32], **_PADS_SPENT},
    },
    "update.refused": {"round": 1, "party": "hospital-a", "code": "update-refused"},
    "round.merged": {
        "round": 1,
        "rule": "fedavg",
        "parties": ["hospital-a", "hospital-b"],
        "state": _A,
        "noise_multiplier": 1.5,
    },
    "federation.finished": {"rounds": 3, "state": _A},
    "cut.begun": {"layers": 4, "wire": "int8", "spf_share": 0.25},
    "cut.joined": {
        "party": "hospital-a",
        "consent": {
            "payload": "e30=",
            "payloadType": "application/vnd.sealtrain.cut-consent+json",
            "signatures": [{"keyid": f"ed25519:{_A}", "sig": "A" * 86 + "=="}],
        },
    },
    "cut.received": {
        "party": "hospital-a",
        "dataset_id": _A[:32],
        "rows": 40,
        "messages": 10,
        "bytes": 4096,
        "digest": _B,
    },
    "cut.finished": {"entries": 12},
    "pads.begun": _PADS_BEGUN,
    "pads.spent": _PADS_SPENT,
    "travel.setup": {
        "buffer": 4096,
        "program": {"version": 1, "device": "cpu"},
        "holders": {"hospital-a": 400},
        "nonce": _A,
        "code": _B,
        "model": _C,
    },
    "travel.taken-over": {"code": _B, "model": _C},
    "travel.finished": {
        "model": _C,
        "privacy": {"hospital-a": {"epsilon": 1.5, "delta": 1e-6, "sequences": 40}},
    },
    "trip.lent": {"trip": 0, "holder": "hospital-a", "start": 0, "end": 2048, "id": _A[:32]},
    "trip.written": {"trip": 0, "size": 2048, "mark": _A},
    "trip.refused": {"trip": 0, "holder": "hospital-a", "code": "data-invalid"},
    "trip.trained": {
        "trip": 0,
        "tokens": 512,
        "nonce": _D,
        "after": {"code": _B, "model": _C},
        "moved": 0.5,
    },
    "trip.scrubbed": {"trip": 0, "seed": _A, "nonce": _B, "proof": _C},
}
"""Event → all fields that it may have."""


def fields_of(event: str, **changed: Any) -> dict[str, Any]:
    """The honest fields of an event, some of them others."""
    return copy.deepcopy(FIELDS[event]) | changed


def rechained(run_id: str, entries: Iterable[Any]) -> str:
    """The head of a chain over entries as they are."""
    head = hashlib.sha256(b"sealtrain/run-log/v1:" + run_id.encode()).digest()
    for entry in entries:
        head = hashlib.sha256(head + canonical_json(entry)).digest()
    return head.hex()


def chained(run_id: str, told: Iterable[tuple[str, Any, int]]) -> dict[str, Any]:
    """A manifest's run log of events, fields and times, whatever they are."""
    entries = [
        {"seq": seq, "at": to_rfc3339(at), "event": event, "fields": fields}
        for seq, (event, fields, at) in enumerate(told, start=1)
    ]
    return {"head": rechained(run_id, entries), "entries": entries}
