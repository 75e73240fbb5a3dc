"""Three hospitals train a prefix in rounds, and machines that nobody trusts multiply for them.

    python examples/rounds_under_pads.py [--out DIR] [--lora] [--json]

The records and the Flower of ``sealtrain federate demo``. Each hospital's guest is a small TEE: the
frozen layers of its model are multiplied by an accelerator of its own under one-time pads, which a
dealer makes for all of them in a guest of the same document. One accelerator alters a number: its
hospital ends, its lead hears why, and it joins again with another accelerator and other pads.

Then the same rounds are trained here in the clear: with the arithmetic of the pads, which must give
the same adapter bit for bit, and as the int8 model in floating point, whose losses must be near.
Exits with 1 where they are not. ``--lora`` trains LoRA in place of P-tuning v2.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collaboration.federate_story import HOSPITALS, RECIPE, Stage, records
from sealtrain.base.digests import sha256_hex
from sealtrain.cli.output import metric_lines
from sealtrain.errors import UsageError
from sealtrain.recipe.schema import load_recipe
from sealtrain_rehearsal.rehearsal import result_lines, run_log
from sealtrain_together.errors import ProductAltered

WITHIN_S = 600.0
CLOSE = 0.02
"""Losses of a round under pads stay so near to those of the int8 model."""
ALTERED_PRODUCT = 400
"""Of the last hospital: after its first round, and before its last one."""
PREFIX = {"method": "prefix_tuning", "num_virtual_tokens": 8}
COLLABORATION = RECIPE["collaboration"] | {
    "aggregation": "fedavg",
    "min_parties": len(HOSPITALS),  # a round waits for a hospital that joins again
    "round_seconds": 900,
    "products": {"pads": "dealer", "checks": 2},
}


def recipe_of(adapter: Mapping[str, Any]) -> dict[str, Any]:
    """The recipe of the story."""
    return RECIPE | {
        "name": "federated-under-pads",
        "description": "As federated-biopsies; frozen layers are multiplied elsewhere",
        "peft": dict(adapter),
        "collaboration": COLLABORATION,
    }


class UnderPads(Stage):
    """A federation whose hospitals have others multiply for them."""

    def _train(self, path: Path) -> dict[str, Any]:
        lost = HOSPITALS[-1]
        self._say("starting a dealer in a guest of its own, and an accelerator for each hospital")
        self._dealer_at = self._dealer(path)
        self._accelerators = {hospital: self._accelerator() for hospital in HOSPITALS[:-1]}
        self._accelerators[lost] = self._accelerator("--alter", str(ALTERED_PRODUCT))
        lead, run_id, parties = self._begun(path)
        try:
            parties[lost].wait_for_end(within=WITHIN_S)
        except ProductAltered as error:
            refused = error
        else:
            raise UsageError("the accelerator was to lie, and training ended before it did")
        self._say(f"  {lost} ended [{refused.code}]: no update came of it")
        self._accelerators[lost] = self._accelerator()
        self._say(f"{lost} joins again with another accelerator, and other pads")
        parties[lost] = self._joined(path, f"{lost}-again", lost, run_id)
        self._follow(lead, parties, 0, until=None)
        return {"refused": refused.to_dict(), "trained": lead.answer()}

    def _peers(self, hospital: str) -> tuple[str, ...]:
        accelerator = self._accelerators[hospital]
        return ("--peer", f"accelerator={accelerator}", "--peer", f"dealer={self._dealer_at}")


@dataclass(frozen=True)
class InTheClear:
    """The same rounds on the same records, here.

    Attributes:
        state: Digest of the adapter that every round was merged to.
        losses: Mean of each round.
    """

    state: list[str]
    losses: list[float]


class SameArithmetic:
    """``StandIns``: products as they are under pads, made here."""

    def put_in(self, model: Any) -> None:
        """As ``StandIns.put_in``."""
        from sealtrain_together.pads.protect import quantise

        quantise(model)

    def take_out(self, model: Any) -> None:
        """They stay."""


def in_the_clear(path: Path, data: Mapping[str, Path], standins: type[Any]) -> InTheClear:
    """Train the rounds of a recipe without guests, accelerators, pads and seals."""
    from sealtrain_together.federated.learner import Learner
    from sealtrain_together.federated.merging import merge
    from sealtrain_together.federated.update import Update, decode_state, encode_state
    from sealtrain_together.pads.guest.trial import plain_source

    recipe = load_recipe(path)
    parties = {}
    for hospital in HOSPITALS:
        sources = [
            plain_source(recipe, dataset, data[f"{hospital}.{dataset.name}"])
            for dataset in recipe.datasets
            if dataset.owner == hospital
        ]
        parties[hospital] = Learner(
            recipe, path.parent, sources, party=hospital, standins=standins()
        )
    form = parties[HOSPITALS[0]].form
    state = encode_state(form)
    found = InTheClear([], [])
    for number in range(1, COLLABORATION["rounds"] + 1):
        learned = {hospital: party.learn(number, state) for hospital, party in parties.items()}
        updates = [
            Update(party=hospital, weight=update.records, state=decode_state(update.state, form))
            for hospital, update in learned.items()
        ]
        state = encode_state(merge("fedavg", updates, decode_state(state, form)))
        found.state.append(sha256_hex(state))
        losses = [result.loss for result in learned.values() if result.loss is not None]
        found.losses.append(sum(losses) / len(losses))
    return found


def played(out: Path, adapter: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Play it; return data for ``--json``, and lines for people.

    Raises:
        ProductAltered: The rounds under pads are not those in the clear.
        SealtrainError: Whatever a step refused.
    """
    from sealtrain_together.pads.protect import IntegerWeights

    with UnderPads(out, lambda line: print(line, file=sys.stderr)) as stage:
        data = records(stage.out / "records")
        done = stage.play_recipe(recipe_of(adapter), data)
        print("the same rounds here, in the clear", file=sys.stderr)
        same = in_the_clear(stage.recipe_file, data, SameArithmetic)
        int8 = in_the_clear(stage.recipe_file, data, IntegerWeights)
    log = run_log(done)
    merged = [entry["fields"] for entry in log if entry["event"] == "round.merged"]
    if [entry["state"] for entry in merged] != same.state:
        raise ProductAltered("the rounds are not those of the same arithmetic here", check="state")
    apart = max(abs(loss - two) for loss, two in zip(same.losses, int8.losses, strict=True))
    if apart > CLOSE:
        raise ProductAltered(
            "the losses under pads are not those of the int8 model",
            check="losses",
            got=f"{apart:.6f} apart",
            expected=f"at most {CLOSE}",
        )
    spent: dict[str, dict[str, Any]] = {}
    for entry in log:
        if entry["event"] == "update.taken":
            spent[entry["fields"]["products"]["session"]] = entry["fields"]
    lines = [
        *(
            f"round {number}      loss {under:.6f} under pads   {plain:.6f} int8"
            for number, (under, plain) in enumerate(zip(same.losses, int8.losses, strict=True), 1)
        ),
        "adapter      of each round, bit for bit as in the clear with the same arithmetic",
        f"refused      {done['refused']['code']}: {HOSPITALS[-1]}'s first accelerator",
        *(
            f"pads         {share['party']}, session {session[:8]}: "
            f"{share['products']['products']:,} products, "
            f"{share['products']['bytes_out']:,} bytes out"
            for session, share in sorted(spent.items(), key=lambda pair: pair[1]["party"])
        ),
        *metric_lines(done["trained"]["metrics"]),
        *result_lines(done),
    ]
    shown = {"losses": same.losses, "int8": int8.losses, "largest_difference": apart}
    return {**done, **shown, "sessions": spent}, lines


def main(words: Sequence[str] | None = None) -> None:
    """Play it as the command line says."""
    parser = argparse.ArgumentParser(description="Rounds whose products are made under pads.")
    parser.add_argument("--out", type=Path, default=Path("rounds-under-pads"))
    parser.add_argument("--lora", action="store_true", help="train LoRA, not a prefix")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args(words)
    data, lines = played(given.out, RECIPE["peft"] if given.lora else PREFIX)
    print(json.dumps(data) if given.json else "\n".join(lines))


if __name__ == "__main__":
    main()
