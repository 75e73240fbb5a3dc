"""The second act of ``split demo``: method 2, the front of the model with owners who have no TEE.

Two clinics send activations to a guest that trains the back half. A client whose owner approved
another recipe than the guest measured tells it nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sealtrain.cli.acts import Played
from sealtrain.cli.parts import Part
from sealtrain.cli.rehearsal import Rehearsal
from sealtrain.errors import ClaimContradicted, ComposeHashMismatch, SealtrainError, UsageError

__all__ = ["play"]

_CLINICS = ("clinic-a", "clinic-b")
_CALM = ("mild cough", "sore knee", "itchy skin", "runny nose", "back ache", "dry eyes")
_ALARMING = ("chest pain", "cannot breathe", "slurred speech", "heavy bleeding")
_URGENT_SHARE = 0.4
_STARTS_WITHIN_S = 90.0
_ENDS_WITHIN_S = 300.0

RECIPE: dict[str, Any] = {
    "version": 1,
    "name": "split-cut",
    "description": "Triage notes: two layers read them at home, a guest learns what is behind",
    "phase": "classify",
    "model": {
        "config": {
            "model_type": "bert",
            "vocab_size": 259,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "max_position_embeddings": 128,
        },
        "init_seed": 1,
        "tokenizer": {"kind": "bytes"},
    },
    "datasets": [
        *({"owner": clinic, "name": "notes", "role": "train"} for clinic in _CLINICS),
        {"owner": _CLINICS[0], "name": "check", "role": "test"},
    ],
    "columns": {"text": "text", "label": "label"},
    "labels": ["routine", "urgent"],
    "trainer": {
        "max_steps": 60,
        "per_device_train_batch_size": 16,
        "per_device_eval_batch_size": 32,
        "learning_rate": 0.005,
        "logging_steps": 10,
        "save_steps": 60,
        "max_length": 64,
        "seed": 3,
    },
    "peft": {
        "method": "lora",
        "r": 8,
        "lora_alpha": 16,
        "lora_dropout": 0.0,
        "target_modules": ["query", "value"],
    },
    "collaboration": {
        "kind": "cut",
        "policy": "policy.yaml",
        "layers": 2,
        "spf_share": 0.05,
        "wire": "int8",
    },
    "privacy": {"dp": "none"},
    "release_policy": {
        "metrics": ["loss", "eval_loss", "accuracy", "majority", "f1"],
        "round_to": 6,
        "model": {"recipients": [_CLINICS[0]]},
    },
    "hardware": {
        "platforms": ["simulator"],
        "image": None,
        "key_provider": "none",
        "key_provider_id": None,
    },
}


class _Stage(Rehearsal):
    """A rehearsal in which no key is released: owners' clients send activations."""

    def _train(self, path: Path) -> dict[str, Any]:
        self._say("starting the server in a guest; no broker will release a key to it")
        base = path.resolve().parent
        server = self._part(
            "server", "split", "serve", self.out / "engineer" / "recipe.lock.json",
            "--platform", "simulator", "--guest", self._sockets / "guest.sock",
            *self._collateral, *self._brokers, "--base", base, "--out", self.out / "run",
            "--patience", "300", "--wait", "300",
        )  # fmt: skip
        place = server.place("cut server ready", within=_STARTS_WITHIN_S)
        self._say("two clinics send activations; their records stay with them")
        clients = {
            clinic: self._client(clinic, self._deployment, place, base) for clinic in _CLINICS
        }
        refused = self._refused(place, path)
        self._say(f"  a client that approved another recipe tells it nothing [{refused.code}]")
        trained = server.ended(within=_ENDS_WITHIN_S)
        sent = {clinic: client.ended(within=_ENDS_WITHIN_S) for clinic, client in clients.items()}
        manifest = Path(trained["manifest"]).read_bytes()
        if any(Path(one["manifest"]).read_bytes() != manifest for one in sent.values()):
            raise ClaimContradicted("an owner holds another manifest than the server wrote")
        return {"refused": refused.to_dict(), "sent": sent, "trained": trained}

    def _refused(self, place: str, path: Path) -> SealtrainError:
        """A client whose owner approved one more step than the guest will do."""
        import yaml

        other = path.with_name("other-recipe.yaml")
        trainer = RECIPE["trainer"] | {"max_steps": RECIPE["trainer"]["max_steps"] + 1}
        other.write_text(yaml.safe_dump(RECIPE | {"trainer": trainer}, sort_keys=False))
        folder = self.out / "another-engineer"
        self._run("lock", other, "--consortium", self._consortium, "--out", folder)
        try:
            self._client(
                _CLINICS[1], folder / "app-compose.json", place, path.parent, called="wary"
            ).ended(within=_ENDS_WITHIN_S)
        except ComposeHashMismatch as error:
            return error
        raise UsageError("the client was to refuse the guest, and did not")

    def _client(
        self, clinic: str, deployment: Path, place: str, base: Path, *, called: str = ""
    ) -> Part:
        name = called or clinic
        return self._part(
            name, "split", "client", deployment, "--server", place,
            "--identity", self._identity(clinic), "--consortium", self._consortium,
            "--data", *self._own(clinic), "--base", base, "--out", self.out / clinic / "run",
            "--patience", "300",
        )  # fmt: skip

    def _own(self, clinic: str) -> list[str | Path]:
        """A clinic's datasets, as the words after ``--data``."""
        folders = sorted(self._sealed.glob(f"{clinic}.*.sealed"))
        words: list[str | Path] = [word for folder in folders for word in ("--data", folder)]
        return words[1:]

    def _part(self, name: str, *words: str | Path) -> Part:
        return self._stack.enter_context(Part(name, self.out, words))


def play(out: Path, say: Callable[[str], None]) -> Played:
    """Play it.

    Args:
        out: New folder.
        say: Told of each step.

    Raises:
        SealtrainError: Whatever a step refused.
    """
    with _Stage(out, say) as stage:
        done = stage.play_recipe(RECIPE, _records(stage.out / "records"))
    passed = sum(check["outcome"] == "passed" for check in done["verified"]["checks"])
    sent = {clinic: one["bytes"] for clinic, one in done["sent"].items()}
    return Played(
        data=done,
        lines=(
            f"refused      {done['refused']['code']}: by a clinic that approved another recipe",
            *(f"{clinic:<12} {size} bytes of activations sent" for clinic, size in sent.items()),
            *(f"{name:<12} {value}" for name, value in done["trained"]["metrics"].items()),
            f"verified     {passed} checks passed",
            f"manifest     {done['trained']['manifest']}",
            f"report       {done['report']}",
            f"model        {done['model']}",
        ),
    )


def _records(folder: Path) -> dict[str, Path]:
    """Made-up notes and whether they are urgent, by ``owner.name``."""
    import random

    folder.mkdir()
    files = {}
    for key, count in (("clinic-a.notes", 160), ("clinic-b.notes", 160), ("clinic-a.check", 64)):
        drawn = random.Random(key)  # noqa: S311  # nothing secret
        rows = []
        for _ in range(count):
            signs = drawn.sample(_CALM, 2)
            urgent = drawn.random() < _URGENT_SHARE
            if urgent:
                signs[drawn.randrange(2)] = drawn.choice(_ALARMING)
            rows.append({"text": ", ".join(signs), "label": "urgent" if urgent else "routine"})
        path = folder / f"{key}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        files[key] = path
    return files
