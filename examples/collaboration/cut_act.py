"""The second act of ``split demo``: method 2, the front of the model with owners who have no TEE.

Two clinics send activations to a guest that trains the back half. A client whose owner approved
another recipe than the guest measured tells it nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from split_acts import CLINICS, DATASETS, Played, made_up

from sealtrain.attest.errors import ComposeHashMismatch
from sealtrain.cli.output import metric_lines
from sealtrain.cli.programs import SideProgram
from sealtrain.errors import SealtrainError, UsageError
from sealtrain.manifest.errors import ClaimContradicted
from sealtrain_rehearsal.rehearsal import ON_SIMULATOR, Rehearsal, result_lines

_CALM = ("mild cough", "sore knee", "itchy skin", "runny nose", "back ache", "dry eyes")
_ALARMING = ("chest pain", "cannot breathe", "slurred speech", "heavy bleeding")
_URGENT_SHARE = 0.4
_STARTS_WITHIN_S = 90.0
_ENDS_WITHIN_S = 300.0

RECIPE: dict[str, Any] = ON_SIMULATOR | {
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
    "datasets": DATASETS,
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
    "release_policy": {
        "metrics": ["loss", "eval_loss", "accuracy", "majority", "f1"],
        "round_to": 6,
        "model": {"recipients": [CLINICS[0]]},
    },
}


class Stage(Rehearsal):
    """A rehearsal in which no key is released: owners' clients send activations."""

    def _train(self, path: Path) -> dict[str, Any]:
        self._say("starting the server in a guest; no broker will release a key to it")
        ticket = self._ticket(
            "guest", "server", *self._brokers, "--base", path.resolve().parent,
        )  # fmt: skip
        server = self._part("server", *self._prepare_start("guest", ticket))
        place = server.place("cut server ready", within=_STARTS_WITHIN_S)
        self._say("two clinics send activations; their records stay with them")
        clients = {
            clinic: self._client(clinic, clinic, self._deployment, place) for clinic in CLINICS
        }
        refused = self._refused(place)
        self._say(f"  a client that approved another recipe tells it nothing [{refused.code}]")
        trained = server.wait_for_end(within=_ENDS_WITHIN_S)
        sent = {
            clinic: client.wait_for_end(within=_ENDS_WITHIN_S) for clinic, client in clients.items()
        }
        manifest = Path(trained["manifest"]).read_bytes()
        if any(Path(answer["manifest"]).read_bytes() != manifest for answer in sent.values()):
            raise ClaimContradicted("an owner holds another manifest than the server wrote")
        return {"refused": refused.to_dict(), "sent": sent, "trained": trained}

    def _refused(self, place: str) -> SealtrainError:
        """A client whose owner approved one more step than the guest will do."""
        from sealtrain.base.yamltext import yaml_text

        other = self.out / "other-recipe.yaml"
        trainer = RECIPE["trainer"] | {"max_steps": RECIPE["trainer"]["max_steps"] + 1}
        other.write_text(yaml_text(RECIPE | {"trainer": trainer}))
        folder = self.out / "another-engineer"
        self._run("lock", other, "--consortium", self._consortium, *self._brokers, "--out", folder)
        try:
            wary = self._client("wary", CLINICS[1], folder / "app-compose.json", place)
            wary.wait_for_end(within=_ENDS_WITHIN_S)
        except ComposeHashMismatch as error:
            return error
        raise UsageError("the client was to refuse the guest, and did not")

    def _client(self, name: str, clinic: str, deployment: Path, place: str) -> SideProgram:
        return self._part(
            name, "split", "client", "--deployment", deployment, "--server", place,
            "--identity", self._identity(clinic), "--consortium", self._consortium,
            *self._own(clinic), "--base", self.out, "--out", self.out / clinic / "run",
            "--patience", "300", "--wait", "300",
        )  # fmt: skip

    def _own(self, clinic: str) -> list[str | Path]:
        """The words that name a clinic's datasets."""
        folders = sorted(self._sealed.glob(f"{clinic}.*.sealed"))
        return [word for folder in folders for word in ("--data", folder)]


def play(out: Path, say: Callable[[str], None]) -> Played:
    """Play it.

    Args:
        out: New folder.
        say: Told of each step.

    Raises:
        SealtrainError: Whatever a step refused.
    """
    with Stage(out, say) as stage:
        data = made_up(stage.out / "records", note, learned=160, checked=64)
        done = stage.play_recipe(RECIPE, data)
    sent = {clinic: answer["bytes"] for clinic, answer in done["sent"].items()}
    return Played(
        data=done,
        lines=(
            f"refused      {done['refused']['code']}: by a clinic that approved another recipe",
            *(f"{clinic:<12} {size} bytes of activations sent" for clinic, size in sent.items()),
            *metric_lines(done["trained"]["metrics"]),
            *result_lines(done),
        ),
    )


def note(drawn: Random) -> dict[str, str]:
    """A made-up note, and whether it is urgent."""
    signs = drawn.sample(_CALM, 2)
    urgent = drawn.random() < _URGENT_SHARE
    if urgent:
        signs[drawn.randrange(2)] = drawn.choice(_ALARMING)
    return {"text": ", ".join(signs), "label": "urgent" if urgent else "routine"}
