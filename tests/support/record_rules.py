"""A pytest plugin (``-p record_rules``): run logs that tests hold to the rules of a kind.

``RULES_SEEN`` names an empty folder. Each log lies there once, with what the rules of its kind read
beside it in the form of a manifest and a lock, and how our rules ended.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sealtrain.base.clock import to_rfc3339
from sealtrain.errors import SealtrainError
from sealtrain.manifest.checks.collaborations import cut, federated, nodes, pads, travelling

_FOLDER = Path(os.environ["RULES_SEEN"]) if "RULES_SEEN" in os.environ else None
_AT, _LATER = 0, 4_000_000_000


def _party(name: str, window: tuple[int, int]) -> dict[str, str]:
    return {"name": name, "from": to_rfc3339(window[0]), "until": to_rfc3339(window[1])}


def _training(owner: str) -> dict[str, str]:
    return {"owner": owner, "name": "records", "role": "train"}


def _of_pads(how: Any) -> dict[str, Any]:
    return {"recipe": {"collaboration": how.to_dict(), "datasets": []}}


def _of_nodes(terms: Any) -> dict[str, Any]:
    environment = {} if terms.world_size is None else {"world_size": terms.world_size}
    return {
        "recipe": {"collaboration": {"nodes": terms.nodes}, "backend": {"ranks": terms.ranks}},
        "run": {"run_id": terms.run_id, "environment": environment},
    }


def _of_federated(terms: Any) -> dict[str, Any]:
    promised = terms.promised
    return {
        "recipe": {
            "collaboration": {
                "aggregation": terms.rule,
                "rounds": terms.rounds,
                "min_parties": terms.min_parties,
                "patient_privacy": None if promised is None else promised.to_dict(),
                "local_steps": terms.local_steps,
                "products": None if terms.products is None else terms.products.to_dict(),
            },
            "datasets": [_training(owner) for owner in sorted(terms.holders)],
        },
        "parties": [_party(name, window) for name, window in terms.windows.items()],
        "datasets": [
            {"owner": owner, "name": "records", "records": records}
            for owner, records in terms.records.items()
        ],
    }


def _of_travelling(terms: Any) -> dict[str, Any]:
    program = dict(terms.program)
    config = {name: program[name] for name in ("n_layer", "n_head", "n_embd", "vocab_size")}
    trainer = {**program, "max_steps": 1 << 50 if terms.max_steps is None else terms.max_steps}
    trainer["block_size"] = program["seq_len"]
    trainer["per_device_train_batch_size"] = program["batch_size"]
    windows = terms.windows or dict.fromkeys(terms.limits, (_AT, _LATER))
    limits = {owner: limit for owner, limit in terms.limits.items() if limit is not None}
    return {
        "recipe": {
            "collaboration": {
                "buffer_bytes": terms.buffer_bytes,
                "max_tokens": limits,
                "sequence_privacy": program.get("privacy"),
                "max_update_norm": program.get("max_update_norm"),
            },
            "model": {
                "config": config,
                "init_seed": program["seed"],
                "dtype": program.get("dtype", "float32"),
            },
            "trainer": trainer,
            "datasets": [_training(owner) for owner in terms.limits],
        },
        "parties": [_party(name, window) for name, window in windows.items()],
    }


def _of_cut(terms: Any) -> dict[str, Any]:
    times = list(terms.parties.values()) or [terms.started]
    return {
        "recipe": {
            "collaboration": terms.how.to_dict(),
            "datasets": [_training(owner) for owner in terms.owners],
        },
        "parties": [_party(name, (terms.started, until)) for name, until in terms.parties.items()],
        "datasets": [dataset.to_dict() for dataset in terms.datasets],
        "consortium": terms.consortium.to_dict(),
        "deployment": {
            "app_id": terms.target.app_id,
            "compose_hash": terms.target.compose_hash,
            "recipe_hash": terms.target.recipe_hash,
        },
        "run": {
            "run_id": terms.run_id,
            "started_at": to_rfc3339(terms.started),
            "finished_at": to_rfc3339(max(times)),
        },
    }


_RULES: tuple[tuple[str, Any, str, Callable[[Any], dict[str, Any]]], ...] = (
    ("cut", cut, "received", _of_cut),
    ("federated", federated, "merged_rounds", _of_federated),
    ("nodes", nodes, "meetings_hold", _of_nodes),
    ("pads", pads, "read_pad_use", _of_pads),
    ("travelling", travelling, "travelled", _of_travelling),
)


def _recording(kind: str, rule: Any, described: Callable[[Any], dict[str, Any]]) -> Any:
    def judged(entries: Any, terms: Any) -> Any:
        log = list(entries)
        code: str | None = None
        try:
            return rule(log, terms)
        except SealtrainError as error:
            code = error.code
            raise
        finally:
            record = {"kind": kind, "entries": log, "code": code, **described(terms)}
            record["label"] = os.environ.get("PYTEST_CURRENT_TEST", "")
            data = json.dumps(record)
            name = hashlib.sha256(data.encode()).hexdigest()
            assert _FOLDER is not None
            (_FOLDER / f"{name}.json").write_text(data)

    return judged


if _FOLDER is not None:
    for _kind, _module, _name, _described in _RULES:
        setattr(_module, _name, _recording(_kind, getattr(_module, _name), _described))
