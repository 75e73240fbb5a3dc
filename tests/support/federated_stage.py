"""Lead and parties of a federation as processes, with the relay's sockets between them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
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
    packages: Mapping[str, Any] = field(default_factory=lambda: SHARED)

    @property
    def starts(self) -> Start:
        """Starts a command that needs the packages of the run's recipe."""
        return starting(self.packages)

    def relay(self, name: str) -> Path:
        """The socket of a guest, in its folder."""
        return self.sockets / name / "relay.sock"

    def start(self, name: str, *, of: str | None = None, **ticket: Any) -> None:
        """Start a guest in a folder of its own.

        Args:
            name: Of its folder, and of the part.
            of: The guest whose run it goes on with, where it is another's.
            ticket: Its fields.
        """
        words = self.at.guest_words(of or name, **ticket)
        here = self.relay(name).parent
        here.mkdir(exist_ok=True)
        part = SideProgram(name, self.at.folder, words, start=starting(self.packages, here))
        self.parts[name] = self.stack.enter_context(part)

    def lead(self, name: str = "lead") -> None:
        """Start the lead; under another name it goes on with the run behind another socket."""
        self.start(name, of="lead", role="lead", brokers=[self.at.broker])

    def join(self, owner: str, run_id: str, **ticket: Any) -> None:
        """Start a party, or start it again."""
        ticket |= {"data": tuple(map(str, self.at.settings(owner).data)), "run": run_id}
        self.start(owner, role="party", brokers=[self.at.broker], party=owner, **ticket)

    def said(self, name: str, word: str) -> str:
        """The line with a word, once a program said it."""
        return self.parts[name].line(word, within=WITHIN_S)

    def ended(self, name: str) -> dict[str, Any]:
        return self.parts[name].wait_for_end(within=WITHIN_S)


@contextmanager
def stage(folder: Path, *, rows: Callable[[str], str] = records, **recipe: Any) -> Iterator[Stage]:
    with ExitStack() as stack:
        at = stack.enter_context(joint_site(folder, rows=rows, **RECIPE | recipe))
        # A socket's path is short, wherever the tests lie.
        sockets = stack.enter_context(tempfile.TemporaryDirectory(prefix="fed-"))
        made = Stage(at=at, sockets=Path(sockets), stack=stack)
        if "strategy" in recipe.get("collaboration", {}):  # it needs Flower's package as well
            made.packages = WHOLE_RECIPE | RECIPE | recipe
        yield made
