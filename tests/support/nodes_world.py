"""Runs of several nodes as real processes: a lead, the others, and what they end with."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from polling import wait_until
from safetensors.torch import load_file
from stage import OWNERS, RECIPE, Stage

from sealtrain.cli.programs import SideProgram

WITHIN_S = 120


def recipe_of(
    nodes: int,
    *,
    steps: int = 12,
    ranks: int = 1,
    trainer: dict[str, Any] | None = None,
    **changed: Any,
) -> dict[str, Any]:
    """The stage's recipe for several nodes: a step of two parts, which ranks share out."""
    recipe = copy.deepcopy(RECIPE) | changed
    recipe["trainer"] |= {
        "max_steps": steps,
        "save_steps": 4,
        "per_device_train_batch_size": 2,
        **(trainer or {}),
        "gradient_accumulation_steps": max(1, 2 // (nodes * ranks)),
    }
    backend = {"name": "trl"} | recipe.get("backend", {})
    recipe["backend"] = backend | {"ranks": ranks}
    if nodes > 1:
        recipe["collaboration"] = {
            "kind": "nodes",
            "nodes": nodes,
            "policy": "policy.yaml",
            "join_seconds": 100,
        }
    return recipe


class Nodes:
    """One proposed recipe, approved, with a guest for each node."""

    def __init__(
        self,
        world: Stage,
        name: str,
        recipe: dict[str, Any],
        sources: dict[str, Path] | None = None,
        files: dict[str, str] | None = None,
    ) -> None:
        self.world = world
        self.name = name
        policy = (world.folder / "policy.yaml").read_text()
        self.folder = world.propose(name, recipe, {"policy.yaml": policy} | (files or {}), sources)
        world.approve(self.folder, *OWNERS)
        self.count = recipe.get("collaboration", {}).get("nodes", 1)
        for node in range(1, self.count):
            self.boot(self.socket(node))

    def socket(self, node: int) -> str:
        return f"{self.name}-{node}.sock" if node else f"{self.name}.sock"

    def boot(self, socket: str) -> None:
        self.world.serve(
            "guest API", "simulator", "serve", "--deployment", self.folder / "app-compose.json",
            "--socket", socket, "--simulator", "root", *self.world.machine,
        )  # fmt: skip

    @contextmanager
    def lead(self, out: str, **ticket: Any) -> Iterator[tuple[SideProgram, str]]:
        """The lead, again where it ended before, and the address at which nodes join."""
        with self.world.part(*self.lead_words(out, **ticket)) as part:
            yield part, self.place(part)

    def lead_words(self, out: str, **ticket: Any) -> list[str | Path]:
        """The words that start the lead."""
        said = {"data": (str(self.folder / "sealed"),), "listen": "127.0.0.1:0"} | ticket
        return self.world.guest_words(
            self.folder, self.world.folder / out, "train", brokers=[self.world.broker], **said
        )

    def place(self, part: SideProgram) -> str:
        """Where the lead says that nodes join; the newest line counts."""

        def said() -> str | None:
            lines = [
                line for line in part.read_stderr() if "waiting for" in line and " at " in line
            ]
            if part.gone and not lines:
                raise AssertionError("\n".join(part.read_stderr()))
            return lines[-1].partition(" at ")[2].split()[0] if lines else None

        return str(wait_until(said))

    def join(
        self,
        node: int,
        lead: str,
        *,
        out: str | None = None,
        broker: Path | None = None,
        **ticket: Any,
    ) -> SideProgram:
        """Another node, with a pin of its own for the broker if one is given. Use as a context."""
        # Guests beside each other share their broker files.
        beside = self.world.folder if broker is None else self.world.folder / "elsewhere"
        beside.mkdir(exist_ok=True)
        folder = beside / (out or f"{self.name}-node-{node}")
        return self.world.part(
            *self.world.guest_words(
                self.folder,
                folder,
                "node",
                self.socket(node),
                brokers=[broker or self.world.broker],
                data=(str(self.folder / "sealed"),),
                peers={"lead": lead},
                node=node,
                **ticket,
            )
        )

    def opened(self, out: str) -> Path:
        """The model of a finished run, opened by its first recipient."""
        plain = self.world.folder / f"{out}-plain"
        self.world.run(
            "open", self.world.folder / out, "--identity", self.world.identity(OWNERS[0]),
            "--out", plain,
        )  # fmt: skip
        return plain

    def trust(self) -> Path:
        """A trust file for this recipe."""
        trust = self.world.folder / f"{self.name}.trust.yaml"
        if not trust.exists():
            self.world.run(
                "trust", "new", "--consortium", "consortium.json",
                "--deployment", self.folder / "app-compose.json", "--policy", "policy.yaml",
                "--broker", self.world.broker, "--out", trust,
            )  # fmt: skip
        return trust


def weights(folder: Path) -> dict[str, Any]:
    """All tensors of an opened model."""
    found: dict[str, Any] = {}
    for path in sorted(folder.glob("**/*.safetensors")):
        found |= load_file(path)
    return found
