"""``travel demo``: three libraries, one accelerator; the orchestrator is killed, another goes on.

The tokens are bytes of Python's own reference, a part of it at each library. The accelerator goes
from one to the next and keeps nothing of them; the model is sealed to one library in the end.
"""

from __future__ import annotations

import struct
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from sealtrain.cli.output import Json, emit, say
from sealtrain.cli.parts import Part
from sealtrain.cli.rehearsal import Rehearsal
from sealtrain.errors import Unreachable

__all__ = ["register"]

HOLDERS: Final = ("library-a", "library-b", "library-c")
_TOKENS: Final = 49_152
_ROW_TOKENS: Final = 1024
_WITHIN_S: Final = 600.0
_POLL_S: Final = 0.02

RECIPE: dict[str, Any] = {
    "version": 1,
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
    "privacy": {"dp": "none"},
    "release_policy": {
        "metrics": ["loss"],
        "round_to": 3,
        "model": {"recipients": [HOLDERS[0]]},
    },
    "hardware": {
        "platforms": ["simulator"],
        "image": None,
        "key_provider": "none",
        "key_provider_id": None,
    },
}


def register(app: typer.Typer) -> None:
    """Add the command to its noun."""
    app.command()(demo)


def demo(
    out: Annotated[Path, typer.Option(help="Folder to make; holds everything afterwards.")],
    as_json: Json = False,
) -> None:
    """Play a travelling run on the simulator, from founding to verification; about a minute.

    Every part is a process of its own with throwaway keys. Nothing of it is attested.
    """
    say("SIMULATED — NOT ATTESTED")
    with _Stage(out, say) as stage:
        data = _texts(stage.out / "texts")
        row = f"--format tokens --row-tokens {_ROW_TOKENS}"
        done = stage.play_recipe(RECIPE, data, dict.fromkeys(data, row))
    trips = _trips(Path(done["trained"]["manifest"]))
    passed = sum(check["outcome"] == "passed" for check in done["verified"]["checks"])
    losses = [one["loss"] for one in done["trained"]["history"]]
    emit(
        as_json,
        {**done, "trips": trips},
        [
            *(f"{name:<12} gave {count} tokens" for name, count in trips["tokens"].items()),
            f"trips        {trips['trips']}, taken over {trips['takeovers']} times",
            f"loss         {losses[0]} to {losses[-1]} in {done['trained']['steps']} steps",
            f"verified     {passed} checks passed",
            f"manifest     {done['trained']['manifest']}",
            f"report       {done['report']}",
            f"model        {done['model']}",
        ],
    )


class _Stage(Rehearsal):
    """A rehearsal whose training travels, and changes hands."""

    def _train(self, path: Path) -> dict[str, Any]:
        with ExitStack() as stack:
            self._say("starting the accelerator, and a guest at each library")
            places = self._everybody(stack, path)
            words = (*self._words(path, "orchestrate"), *self._brokers, *places)
            states = self.out / "states"
            first = stack.enter_context(
                self._leader("orchestrator-1", (*words, "--guest", self._sockets / "guest.sock"))
            )
            standby = stack.enter_context(
                self._leader(
                    "orchestrator-2",
                    (*words, "--standby", "--guest", self._boot(self._deployment, "standby.sock")),
                )
            )
            self._say("training: the accelerator goes round; a standby waits")
            self._await_state(first, states)
            first.process.kill()  # as kill -9: no word, no clean end
            first.process.wait()
            self._say("the orchestrator is killed; the standby takes over from the sealed state")
            trained = standby.ended(within=_WITHIN_S)
            self._say("every library hears that it is over, and drops its keys")
            for holder in self._holders:
                holder.ended(within=_WITHIN_S)
        return {"trained": trained}

    _holders: tuple[Part, ...] = ()

    def _everybody(self, stack: ExitStack, path: Path) -> tuple[str, ...]:
        """Start accelerator and holders; where they are, as words for an orchestrator."""
        accelerator = stack.enter_context(
            Part(
                "accelerator",
                self.out,
                (
                    *self._words(path, "accelerate"), "--guest",
                    self._boot(self._deployment, "accelerator.sock"),
                ),
                answers=False,
            )
        )  # fmt: skip
        guests = {holder: self._boot(self._deployment, f"{holder}.sock") for holder in HOLDERS}
        control = accelerator.place("accelerator ready", within=_WITHIN_S)
        writes = accelerator.place("writes at", within=_WITHIN_S)
        self._holders = tuple(
            stack.enter_context(
                Part(
                    holder,
                    self.out,
                    (
                        *self._words(path, "hold"), *self._brokers, "--party", holder,
                        "--writes", writes, "--data", self._sealed, "--guest", guest,
                        "--out", self.out / f"{holder}-run",
                    ),
                )
            )
            for holder, guest in guests.items()
        )  # fmt: skip
        places = [
            word
            for holder in self._holders
            for word in (
                "--holder", f"{holder.name}={holder.place('holder ready', within=_WITHIN_S)}",
            )
        ]  # fmt: skip
        return ("--accelerator", control, "--writes", writes, *places)

    def _words(self, path: Path, role: str) -> tuple[str | Path, ...]:
        return (
            "travel", role, self.out / "engineer" / "recipe.lock.json",
            "--platform", "simulator", *self._collateral, "--base", path.parent,
        )  # fmt: skip

    def _leader(self, name: str, words: tuple[str | Path, ...]) -> Part:
        run = self.out / ("run" if name == "orchestrator-2" else f"{name}-run")
        return Part(name, self.out, (*words, "--states", self.out / "states", "--out", run))

    def _await_state(self, first: Part, states: Path) -> None:
        """Until a state is sealed."""
        until = time.monotonic() + _WITHIN_S
        while not list(states.glob("*.sealed")):
            if first.gone:
                first.answer()
            if first.gone or time.monotonic() > until:
                raise Unreachable("no state was sealed", hint=f"see {first.log}")
            time.sleep(_POLL_S)


def _texts(folder: Path) -> dict[str, Path]:
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


def _trips(manifest: Path) -> dict[str, Any]:
    """What a manifest's run log says of trips."""
    from sealtrain.manifest import form
    from sealtrain.manifest.checks.trips import terms_of, travelled
    from sealtrain.recipe.schema import parse_recipe

    predicate = form.read(manifest.read_bytes()).predicate
    recipe = parse_recipe(predicate.recipe.lock["recipe"])
    came = travelled(predicate.run_log.entries, terms_of(recipe))
    return {"trips": came.trips, "tokens": came.tokens, "takeovers": came.takeovers}
