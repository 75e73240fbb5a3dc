"""The first act of ``split demo``: method 1, an accelerator and a dealer beside a guest.

A dealer proves its guest; one accelerator alters a product, which ends the run; the run goes on
with another one; what it learned is compared with the int8 model trained here in the clear.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

from split_acts import CLINICS, DATASETS, Played, made_up

from sealtrain.cli.output import metric_lines
from sealtrain.errors import SealtrainError, UsageError
from sealtrain_rehearsal.rehearsal import ON_SIMULATOR, Rehearsal, result_lines, run_log
from sealtrain_together.errors import ProductAltered

CLOSE = 1e-3
"""Losses under pads stay so near to those of the int8 model."""
_ALTERED_PRODUCT = 150
"""After the first sealed checkpoint, and before the last step."""

RECIPE: dict[str, Any] = ON_SIMULATOR | {
    "name": "split-pads",
    "description": "Triage notes, learned in a guest whose frozen layers are multiplied elsewhere",
    "phase": "sft",
    "model": {
        "config": {
            "model_type": "llama",
            "vocab_size": 259,
            "hidden_size": 64,
            "intermediate_size": 160,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 128,
        },
        "init_seed": 1,
        "tokenizer": {"kind": "bytes"},
    },
    "datasets": DATASETS,
    "columns": {"prompt": "prompt", "completion": "completion"},
    "trainer": {
        "max_steps": 30,
        "per_device_train_batch_size": 8,
        "learning_rate": 0.01,
        "logging_steps": 5,
        "save_steps": 5,
        "max_length": 64,
        "seed": 3,
    },
    "peft": {
        "method": "lora",
        "r": 8,
        "lora_alpha": 16,
        "lora_dropout": 0.0,
        "target_modules": ["q_proj", "v_proj", "up_proj", "down_proj"],
    },
    "collaboration": {"kind": "pads", "pads": "dealer", "checks": 2, "policy": "policy.yaml"},
    "release_policy": {
        "metrics": ["loss", "eval_loss", "accuracy"],
        "round_to": 6,
        "model": {"recipients": [CLINICS[0]]},
    },
}


class Stage(Rehearsal):
    """A rehearsal whose guest has others multiply for it."""

    def _train(self, path: Path) -> dict[str, Any]:
        self._say("starting a dealer in a guest of its own, and two accelerators outside of any")
        dealer = self._dealer(path)
        liar = self._accelerator("--alter", str(_ALTERED_PRODUCT))
        honest = self._accelerator()
        self._say(f"training on the accelerator at {liar}, which will alter one number")
        refused = self._refused(path, liar, dealer)
        self._say(f"  refused [{refused.code}]: nothing of it was used")
        self._say(f"going on from the sealed checkpoint with the accelerator at {honest}")
        peers = ("--peer", f"accelerator={honest}", "--peer", f"dealer={dealer}")
        again = self._prepare_start("guest", self._training(path, *peers))
        trained = self._run(*again, shown=True)
        return {"refused": refused.to_dict(), "trained": trained}

    def _refused(self, path: Path, liar: str, dealer: str) -> SealtrainError:
        ticket = self._training(path, "--peer", f"accelerator={liar}", "--peer", f"dealer={dealer}")
        try:
            self._run(*self._prepare_start("guest", ticket), shown=True)
        except ProductAltered as error:
            return error
        raise UsageError("the accelerator was to lie, and training ended before it did")

    def tried(self, path: Path, data: Mapping[str, Path]) -> dict[str, Any]:
        """The same recipe on the same records here, in the clear."""
        self._say("comparing: the int8 model, trained here on the same records in the clear")
        pairs = [word for key, file in data.items() for word in ("--records", f"{key}={file}")]
        return self._run("split", "try", path, *pairs, shown=True)


def play(out: Path, say: Callable[[str], None]) -> Played:
    """Play it.

    Args:
        out: New folder.
        say: Told of each step.

    Raises:
        SealtrainError: Whatever a step refused.
    """
    with Stage(out, say) as stage:
        data = made_up(stage.out / "records", measured, learned=96, checked=32)
        done = stage.play_recipe(RECIPE, data)
        tried = stage.tried(stage.recipe_file, data)
    return _played(done, tried)


def _played(done: dict[str, Any], tried: dict[str, Any]) -> Played:
    spent = _spent(done)
    under_pads = {
        logged["step"]: logged["loss"] for logged in done["trained"]["history"] if "loss" in logged
    }
    here = {pad["step"]: pad["loss"] for pad in tried["under_pads"] if "loss" in pad}
    int8 = {logged["step"]: logged["loss"] for logged in tried["int8"] if "loss" in logged}
    if under_pads != here:
        raise ProductAltered(
            "the losses of the run are not those of the same arithmetic here", check="losses"
        )
    apart = max(abs(loss - int8[step]) for step, loss in under_pads.items())
    if apart > CLOSE:
        raise ProductAltered(
            "the losses under pads are not those of the int8 model",
            check="losses",
            got=f"{apart:.6f} apart",
            expected=f"at most {CLOSE}",
        )
    steps = [
        f"  step {step:<4} {loss:.6f} under pads   {int8[step]:.6f} int8"
        for step, loss in under_pads.items()
    ]
    return Played(
        data={**done, "tried": tried, "largest_difference": apart, "spent": spent},
        lines=(
            "losses",
            *steps,
            f"  at most {apart:.6f} apart, and the same digits as in the clear with int8 products",
            f"refused      {done['refused']['code']}: the accelerator that altered a product",
            f"products     {spent['products']} made elsewhere, {spent['bytes_out']} bytes out, "
            f"{spent['beginnings']} beginnings",
            *metric_lines(done["trained"]["metrics"]),
            *result_lines(done),
        ),
    )


def _spent(done: Mapping[str, Any]) -> dict[str, Any]:
    """What the run log says of products made elsewhere, all processes of the run."""
    from dataclasses import asdict

    from sealtrain.manifest.checks.collaborations.pads import read_pad_use
    from sealtrain.recipe.collaborations.pads import Pads

    return asdict(read_pad_use(run_log(done), Pads.model_validate(RECIPE["collaboration"])))


def measured(drawn: Random) -> dict[str, str]:
    """Made-up measurements, and what follows from them."""
    pulse, heat, oxygen = drawn.randint(50, 140), drawn.randint(355, 410), drawn.randint(84, 100)
    urgent = pulse > 120 or heat > 395 or oxygen < 90
    return {
        "prompt": f"pulse {pulse}, {heat / 10} C, oxygen {oxygen} %:",
        "completion": " urgent" if urgent else " routine",
    }
