"""Lead and parties of a federation as processes, with the relay's sockets between them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from joint_site import JointSite, joint_site, records
from stage import RECIPE as SHARED
from warm import starting
from world import OWNERS
from world import RECIPE as WHOLE_RECIPE

from sealtrain.cli.programs import SideProgram, Start

WITHIN_S = 200.0
RECIPE: dict[str, Any] = {
    "model": {
        "config": {
            "model_type": "llama",
            "vocab_size": 259,
            "hidden_size": 16,
            "intermediate_size": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "max_position_embeddings": 64,
        },
        "init_seed": 7,
        "tokenizer": {"kind": "bytes"},
    },
    "trainer": {"max_steps": 12, "per_device_train_batch_size": 4, "max_length": 32},
    "peft": {"method": "lora", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj", "v_proj"]},
    "release_policy": {
        "metrics": ["loss"],
        "round_to": 4,
        "every_n_steps": 2,
        "model": {"recipients": list(OWNERS)},
    },
}


@dataclass
class Stage:
    """Processes, and where they talk."""

    at: JointSite
    sockets: Path
    stack: ExitStack
    parts: dict[str, SideProgram] = field(default_factory=dict)
    starts: Start = field(default_factory=lambda: starting(SHARED))

    def start(self, name: str, *words: str | Path) -> None:
        settings = self.at.settings(name)
        command = [
            "federate", words[0], settings.lock, *words[1:],
            "--platform", "simulator", "--guest", settings.guest,
            "--collateral", settings.collateral, "--broker", self.at.broker,
            "--base", settings.base, "--out", settings.out,
            "--relay", self.sockets / f"{name}.sock",
        ]  # fmt: skip
        part = SideProgram(name, self.at.folder, command, start=self.starts)
        self.parts[name] = self.stack.enter_context(part)

    def join(self, owner: str, run_id: str, *words: str) -> None:
        sealed = self.at.settings(owner).data[0]
        self.start(owner, "join", "--data", sealed, "--party", owner, "--run", run_id, *words)

    def said(self, name: str, word: str) -> str:
        """The line with a word, once a program said it."""
        return self.parts[name].line(word, within=WITHIN_S)

    def ended(self, name: str) -> dict[str, Any]:
        return self.parts[name].ended(within=WITHIN_S)


@contextmanager
def stage(folder: Path, *, rows: Callable[[str], str] = records, **recipe: Any) -> Iterator[Stage]:
    with ExitStack() as stack:
        at = stack.enter_context(joint_site(folder, rows=rows, **RECIPE | recipe))
        # A socket's path is short, wherever the tests lie.
        sockets = stack.enter_context(tempfile.TemporaryDirectory(prefix="fed-"))
        made = Stage(at=at, sockets=Path(sockets), stack=stack)
        if "strategy" in recipe.get("collaboration", {}):  # it needs Flower's package as well
            made.starts = starting(WHOLE_RECIPE | RECIPE | recipe)
        yield made
