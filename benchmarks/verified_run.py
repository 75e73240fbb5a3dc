"""A real run to time commands on: one owner, a broker and a simulated guest as processes.

Everything that ``sealtrain verify`` looks at is real but the hardware: a manifest made by
``sealtrain train`` after a released key, its sealed outputs, a trust file. The recipe is tiny; what
is verified does not depend on how long was trained.

Commands start from compiled modules, as an installed package does, also where the environment
forbids Python to keep them beside the sources.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

__all__ = ["VerifiedRun", "seconds_of", "warm_environment"]

OWNER = "owner"
_CONSORTIUM = ("--consortium", "consortium.json")
RECIPE: dict[str, Any] = {
    "version": 1,
    "name": "benchmark",
    "phase": "sft",
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
        "init_seed": 1,
        "tokenizer": {"kind": "bytes"},
    },
    "datasets": [{"owner": OWNER, "name": "notes", "role": "train"}],
    "columns": {"text": "text"},
    "trainer": {"max_steps": 20, "per_device_train_batch_size": 2, "max_length": 32, "seed": 1},
    "peft": None,
    "privacy": {"dp": "none"},
    "release_policy": {
        "metrics": ["loss"],
        "round_to": 4,
        "model": {"recipients": [OWNER]},
    },
    "hardware": {
        "platforms": ["simulator"],
        "image": None,
        "key_provider": "none",
        "key_provider_id": None,
    },
}


def warm_environment(cache: Path) -> dict[str, str]:
    """The environment of commands whose compiled modules lie in ``cache``."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return kept | {"PYTHONPYCACHEPREFIX": str(cache)}


def seconds_of(words: list[str], environment: dict[str, str], rounds: int) -> float:
    """Median wall time of starting ``sealtrain`` with these words, after one start to warm up."""
    command = [sys.executable, "-m", "sealtrain", *words]
    taken = []
    for _ in range(rounds + 1):
        began = time.perf_counter()
        subprocess.run(
            command, check=True, stdout=subprocess.DEVNULL, env=environment
        )
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[1:])


class VerifiedRun:
    """The files of one run. A context manager: its servers stop at the end.

    Attributes:
        manifest: ``manifest.json`` beside its sealed outputs.
        trust: Trust file under which it verifies.
        commands: Wall seconds of every command on the way, by name; each ran once.
    """

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        """Play the run in an empty folder whose path is short enough for a unix socket."""
        self._folder, self._environment = folder, environment
        self.commands: dict[str, float] = {}
        self.manifest, self.trust = folder / "run" / "manifest.json", folder / "trust.yaml"
        with ExitStack() as servers:
            self._found(servers)
            self._train()
            self._servers = servers.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._servers.close()

    def _found(self, servers: ExitStack) -> None:
        self._run("keygen", OWNER)
        self._run("init", "bench", "--owner", f"{OWNER}.public.json", "--approve", "1")
        (self._folder / "recipe.yaml").write_text(json.dumps(RECIPE))  # JSON is YAML
        self._run("lock", "recipe.yaml")
        self._run("simulator", "policy", "--state", "root", "--out", "policy.yaml")
        self._run("broker", "deployment", *_CONSORTIUM, "--policy", "policy.yaml")
        for deployment, socket in (("broker-compose.json", "b.sock"), ("app-compose.json", "g")):
            servers.enter_context(
                self._server(
                    "guest API", "simulator", "serve", deployment,
                    "--socket", socket, "--state", "root",
                )
            )  # fmt: skip
        url = servers.enter_context(
            self._server(
                "broker ready", "broker", "serve", *_CONSORTIUM, "--policy", "policy.yaml",
                "--root-secret", "file:root.secret", "--state", "state", "--guest", "b.sock",
                "--collateral", "file:root/collateral.json", "--platform", "simulator",
                "--port", "0",
            )
        )  # fmt: skip
        self._run(
            "broker", "pin", "--url", url, "--deployment", "broker-compose.json",
            "--policy", "policy.yaml", "--out", "broker.yaml",
        )  # fmt: skip

    def _train(self) -> None:
        rows = [{"text": f"note {number} " + "and so on " * 3} for number in range(64)]
        (self._folder / "notes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        identity, deployment = f"{OWNER}.identity.json", "app-compose.json"
        self._run(
            "seal", "notes.jsonl", "--name", "notes", "--identity", identity,
            "--deployment", deployment, "--broker", "broker.yaml",
        )  # fmt: skip
        self._run(
            "approve", deployment, "--identity", identity, "--broker", "broker.yaml",
            "--dataset", "notes.sealed", "--yes",
        )  # fmt: skip
        self._run(
            "train", "recipe.lock.json", "--platform", "simulator", "--guest", "g",
            "--collateral", "file:root/collateral.json", "--broker", "broker.yaml",
            "--data", "notes.sealed", "--out", "run",
        )  # fmt: skip
        self._run(
            "trust", "new", *_CONSORTIUM, "--deployment", deployment, "--policy", "policy.yaml",
            "--broker", "broker.yaml", "--out", "trust.yaml",
        )  # fmt: skip

    def _run(self, *words: str) -> None:
        began = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "sealtrain", *words, "--json"],
            capture_output=True,
            text=True,
            env=self._environment,
            cwd=self._folder,
        )
        if done.returncode:
            raise SystemExit(f"sealtrain {' '.join(words)}: exit {done.returncode}\n{done.stderr}")
        name = " ".join(words[:2]) if words[0] in ("broker", "simulator", "trust") else words[0]
        self.commands[name] = round(time.perf_counter() - began, 2)

    @contextmanager
    def _server(self, ready: str, *words: str) -> Iterator[str]:
        """A server; yields the last word of its line that begins with ``ready``."""
        process = subprocess.Popen(
            [sys.executable, "-m", "sealtrain", *words],
            stderr=subprocess.PIPE,
            text=True,
            env=self._environment,
            cwd=self._folder,
        )
        try:
            if process.stderr is None:
                raise SystemExit("the server has no stderr")
            said = ""
            for line in process.stderr:
                said += line
                if ready in line:
                    yield line.rsplit(" ", 1)[-1].strip()
                    break
            else:
                raise SystemExit(f"server did not start:\n{said}")
        finally:
            process.terminate()
            process.wait(timeout=20)
            if process.stderr is not None:
                process.stderr.close()
