"""``travel demo``: three libraries, one accelerator; the orchestrator is killed, another goes on.

The tokens are bytes of Python's own reference, a part of it at each library. The accelerator goes
from one to the next and keeps nothing of them; the model is sealed to one library in the end.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from sealtrain.cli.programs import SideProgram
from sealtrain.errors import Unreachable
from sealtrain_rehearsal.rehearsal import ON_SIMULATOR, Rehearsal, result_lines, run_log

HOLDERS: Final = ("library-a", "library-b", "library-c")
_TOKENS: Final = 49_152
_ROW_TOKENS: Final = 1024
_WITHIN_S: Final = 600.0
_POLL_S: Final = 0.02

RECIPE: dict[str, Any] = ON_SIMULATOR | {
    "name": "travelling-accelerator",
    "description": "A small GPT-2 from texts of three libraries, none of which leaves its library",
    "phase": "cpt",
    "model": {
        "config": {
            "model_type": "gpt2",
            "n_layer": 2,
            "n_head": 2,
            "n_embd": 64,
            "vocab_size": 256,
        },
        "init_seed": 1,
    },
    "datasets": [{"owner": holder, "name": "texts", "role": "train"} for holder in HOLDERS],
    "columns": {"tokens": "tokens"},
    "trainer": {
        "max_steps": 1000,
        "per_device_train_batch_size": 8,
        "block_size": 64,
        "learning_rate": 0.003,
        "lr_scheduler_type": "constant",
    },
    "peft": None,
    "collaboration": {
        "kind": "travelling",
        "policy": "policy.yaml",
        "buffer_bytes": 32_768,
        "max_tokens": {HOLDERS[2]: 32_768},
        "seal_every": 3,
    },
    "release_policy": {
        "metrics": ["loss"],
        "round_to": 3,
        "model": {"recipients": [HOLDERS[0]]},
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
    say("SIMULATED — NOT ATTESTED")
    with Stage(out, say) as stage:
        data = texts(stage.out / "texts")
        row = f"--format tokens --row-tokens {_ROW_TOKENS}"
        done = stage.play_recipe(RECIPE, data, dict.fromkeys(data, row))
    trips = _trips(done)
    losses = [logged["loss"] for logged in done["trained"]["history"]]
    lines = [
        *(f"{name:<12} gave {count} tokens" for name, count in trips["tokens"].items()),
        f"trips        {trips['trips']}, taken over {trips['takeovers']} times",
        f"loss         {losses[0]} to {losses[-1]} in {done['trained']['steps']} steps",
        *result_lines(done),
    ]
    return {**done, "trips": trips}, lines


class Stage(Rehearsal):
    """A rehearsal whose training travels, and changes hands."""

    def _train(self, path: Path) -> dict[str, Any]:
        self._say("starting the accelerator, and a guest at each library")
        base = ("--base", path.resolve().parent)
        ticket = self._ticket("accelerator", "accelerator", *base)
        accelerator = self._part(
            "accelerator-run", *self._prepare_start("accelerator", ticket), answers=False
        )
        control = accelerator.place("accelerator ready", within=_WITHIN_S)
        writes = accelerator.place("writes at", within=_WITHIN_S)
        peers = ("--peer", f"writes={writes}")
        holders = {}
        for holder in HOLDERS:
            ticket = self._ticket(
                holder, "holder", *base, *self._brokers, *peers,
                "--party", holder, "--data", self._sealed,
            )  # fmt: skip
            holders[holder] = self._part(
                f"{holder}-run", *self._prepare_start(f"{holder}-guest", ticket)
            )
        words: list[str | Path] = ["--peer", f"accelerator={control}", *peers, *base]
        for name, part in holders.items():
            place = part.place("holder ready", within=_WITHIN_S)
            words += ["--holder", f"{name}={place}"]
        first = self._leader("orchestrator", *words)
        standby = self._leader("standby", *words)
        self._say("training: the accelerator goes round; a standby waits")
        self._await_state(first)
        first.kill()
        self._say("the orchestrator is killed; the standby takes over from the sealed state")
        trained = standby.wait_for_end(within=_WITHIN_S)
        self._say("every library hears that it is over, and drops its keys")
        for part in holders.values():
            part.wait_for_end(within=_WITHIN_S)
        return {"trained": trained}

    @property
    def _states(self) -> Path:
        return self.out / "states"

    def _leader(self, role: str, *words: str | Path) -> SideProgram:
        ticket = self._ticket(role, role, *words, *self._brokers, "--states", self._states)
        return self._part(f"{role}-run", *self._prepare_start(role, ticket))

    def _await_state(self, first: SideProgram) -> None:
        """Until a state is sealed."""
        until = time.monotonic() + _WITHIN_S
        while not list(self._states.glob("*.sealed")):
            if first.gone:
                first.answer()
            if first.gone or time.monotonic() > until:
                raise Unreachable("no state was sealed", hint=f"see {first.log}")
            time.sleep(_POLL_S)


def texts(folder: Path) -> dict[str, Path]:
    """Token shards by ``owner.name``: bytes of Python's reference, with llm.c's header."""
    from pydoc_data.topics import topics

    text = "\n\n".join(topics[name] for name in sorted(topics)).encode("ascii", "replace")
    folder.mkdir()
    files = {}
    for place, holder in enumerate(HOLDERS):
        part = text[place * _TOKENS : (place + 1) * _TOKENS]
        header = struct.pack("<iiI", 20240520, 1, len(part)).ljust(1024, b"\0")
        tokens = b"".join(byte.to_bytes(2, "little") for byte in part)
        files[f"{holder}.texts"] = path = folder / f"{holder}.texts.bin"
        path.write_bytes(header + tokens)
    return files


def _trips(done: Mapping[str, Any]) -> dict[str, Any]:
    """What the run log says of trips."""
    from sealtrain.manifest.checks.collaborations.travelling import check_trips, terms_of
    from sealtrain.recipe.schema import parse_recipe

    came = check_trips(run_log(done), terms_of(parse_recipe(RECIPE)))
    return {"trips": came.trips, "tokens": came.tokens, "takeovers": came.takeovers}
