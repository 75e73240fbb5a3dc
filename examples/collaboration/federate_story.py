"""``federate demo``: three hospitals train one classifier, and no record leaves its hospital.

Real records: scikit-learn's 569 breast biopsies, four measurements of each as digits. One hospital
is cut off in the middle and comes again. Flower carries everything and can read nothing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sealtrain.cli.output import metric_lines
from sealtrain.cli.programs import SideProgram
from sealtrain.errors import Unreachable
from sealtrain_rehearsal.rehearsal import ON_SIMULATOR, Rehearsal, result_lines, run_log

HOSPITALS = ("hospital-a", "hospital-b", "hospital-c")
_ROUNDS = 5
_STEPS = 15
_MEASURES = ("radius", "texture", "concave points", "smoothness")
_WITHIN_S = 600.0
_POLL_S = 0.1

RECIPE: dict[str, Any] = ON_SIMULATOR | {
    "name": "federated-biopsies",
    "description": "Benign or malignant, learned at three hospitals from records that stay there",
    "phase": "classify",
    "model": {
        "config": {
            "model_type": "bert",
            "vocab_size": 259,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "max_position_embeddings": 32,
        },
        "init_seed": 1,
        "tokenizer": {"kind": "bytes"},
    },
    "datasets": [
        {"owner": hospital, "name": name, "role": role}
        for hospital in HOSPITALS
        for name, role in (("biopsies", "train"), ("held-out", "test"))
    ],
    "columns": {"text": "measured", "label": "diagnosis"},
    "labels": ["benign", "malignant"],
    "trainer": {
        "max_steps": _ROUNDS * _STEPS,
        "per_device_train_batch_size": 16,
        "learning_rate": 0.005,
        "logging_steps": _STEPS,
        "save_steps": _STEPS,
        "max_length": 16,
        "seed": 3,
    },
    "peft": {
        "method": "lora",
        "r": 8,
        "lora_alpha": 16,
        "lora_dropout": 0.0,
        "target_modules": ["query", "value", "dense"],
    },
    "collaboration": {
        "kind": "federated",
        "policy": "policy.yaml",
        "rounds": _ROUNDS,
        "local_steps": _STEPS,
        "min_parties": 2,
        "round_seconds": 240,
        "aggregation": "exact",
    },
    "release_policy": {
        "metrics": ["loss", "accuracy", "f1", "auroc"],
        "round_to": 3,
        "model": {"recipients": [HOSPITALS[0]]},
    },
}


def play(out: Path, say: Callable[[str], None]) -> tuple[dict[str, Any], list[str]]:
    """Play it; return data for ``--json``, and lines for people.

    Args:
        out: New folder.
        say: Told of each step.

    Raises:
        SealtrainError: Whatever a step refused.
    """
    from sealtrain_together.federated.flower import require_flower

    require_flower()
    say("SIMULATED — NOT ATTESTED")
    with Stage(out, lambda text: say(f"  {text}")) as stage:
        done = stage.play_recipe(RECIPE, records(stage.out / "records"))
    merged = [entry["fields"] for entry in run_log(done) if entry["event"] == "round.merged"]
    lines = [
        *(
            f"round {entry['round']}      merged of {', '.join(entry['parties'])}"
            for entry in merged
        ),
        *metric_lines(done["trained"]["metrics"]),
        *result_lines(done),
    ]
    return {**done, "rounds": merged}, lines


class Stage(Rehearsal):
    """A rehearsal whose training is a federation."""

    def _train(self, path: Path) -> dict[str, Any]:
        lead, run_id, parties = self._begun(path)
        told = self._follow(lead, parties, 0, until="round 1 of")
        lost = HOSPITALS[-1]
        parties[lost].kill()
        self._say(f"{lost} is cut off, and starts again while the others go on")
        parties[lost] = self._joined(path, f"{lost}-again", lost, run_id)
        self._follow(lead, parties, told, until=None)
        return {"trained": lead.answer()}

    def _begun(self, path: Path) -> tuple[SideProgram, str, dict[str, SideProgram]]:
        """Start everything: the lead, the run's id, and the hospitals' guests."""
        from sealtrain_together.federated.flower import Flower

        flower = self._stack.enter_context(Flower(self.out / "flower"))
        self._say("starting Flower: a SuperLink, and a SuperNode at each hospital")
        flower.open_link()
        for hospital in HOSPITALS:
            flower.add_node(hospital, self._relay(hospital))
        self._say("starting the lead, and a guest at each hospital")
        base = ("--base", path.resolve().parent)
        ticket = self._ticket("lead", "lead", *self._brokers, *base)
        lead = self._part("lead-guest", *self._prepare_start("lead", ticket))
        run_id = lead.place("federation ready", within=_WITHIN_S)
        parties = {
            hospital: self._joined(path, f"{hospital}-run", hospital, run_id)
            for hospital in HOSPITALS
        }
        flower.run_app(self._relay("lead"))
        flower.watch()
        self._say("rounds: each hospital learns, the lead merges")
        return lead, run_id, parties

    def _joined(self, path: Path, name: str, hospital: str, run_id: str) -> SideProgram:
        ticket = self._ticket(
            hospital, "party", *self._brokers, "--base", path.resolve().parent,
            "--data", self._sealed, "--party", hospital, "--run", run_id, *self._peers(hospital),
        )  # fmt: skip
        return self._part(name, *self._prepare_start(f"{hospital}-guest", ticket))

    def _peers(self, hospital: str) -> tuple[str, ...]:
        """Words of a hospital's ticket that name the machines which multiply for it: none."""
        return ()

    def _relay(self, name: str) -> Path:
        """The relay's socket in a guest's folder, by a path that is short enough for one."""
        place = self._sockets / name
        if not place.exists():
            guest = self.out / ("lead" if name == "lead" else f"{name}-guest")
            guest.mkdir(mode=0o700, exist_ok=True)
            place.symlink_to(guest)
        return place / "relay.sock"

    def _follow(
        self, lead: SideProgram, parties: Mapping[str, SideProgram], told: int, *, until: str | None
    ) -> int:
        """Tell of the lead's rounds from one on, up to a word or to its end; how many were told."""
        limit = time.monotonic() + _WITHIN_S
        while time.monotonic() < limit:
            gone = lead.gone
            for line in [text for text in lead.read_stderr() if text.startswith("round ")][told:]:
                self._say(f"  {line}")
                told += 1
                if until is not None and until in line:
                    return told
            if gone:
                return told
            for party in parties.values():
                if party.gone:
                    party.answer()  # raises what it ended with, unless all was done
            time.sleep(_POLL_S)
        raise Unreachable("the rounds did not come to an end", hint=f"see {lead.log}")


def records(folder: Path) -> dict[str, Path]:
    """Biopsies by ``owner.name``: of each hospital every fourth is held out."""
    import numpy as np
    from sklearn.datasets import load_breast_cancer

    biopsies = load_breast_cancer()
    columns = [list(biopsies.feature_names).index(f"worst {name}") for name in _MEASURES]
    low, high = np.quantile(biopsies.data[:, columns], (0.05, 0.95), axis=0)
    digits = np.clip((biopsies.data[:, columns] - low) / (high - low) * 10, 0, 9).astype(int)
    names = biopsies.target_names
    rows = [
        {"measured": " ".join(map(str, row)), "diagnosis": str(names[target])}
        for row, target in zip(digits, biopsies.target, strict=True)
    ]
    order = np.random.default_rng(569).permutation(len(rows))
    folder.mkdir()
    files = {}
    for place, hospital in enumerate(HOSPITALS):
        mine = [rows[number] for number in order[place :: len(HOSPITALS)]]
        held_out = mine[::4]
        learned = [row for number, row in enumerate(mine) if number % 4]
        for name, part in (("biopsies", learned), ("held-out", held_out)):
            files[f"{hospital}.{name}"] = path = folder / f"{hospital}.{name}.jsonl"
            path.write_text("".join(json.dumps(row) + "\n" for row in part))
    return files
