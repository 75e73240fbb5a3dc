"""A run whose broker and guest are containers of images of this source."""

from __future__ import annotations

import functools
import http.server
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from http_server import Server, running

from sealtrain.base.yamltext import yaml_text
from sealtrain.cli.programs import SideProgram
from sealtrain.image.layout import describe_image

OWNERS = ("clinic-a", "clinic-b")
READY_SECONDS = 120
RUN_SECONDS = 600
RECIPE: dict[str, Any] = {
    "version": 1,
    "name": "contained",
    "phase": "sft",
    "model": {
        "config": {
            "model_type": "llama",
            "vocab_size": 259,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "max_position_embeddings": 128,
        },
        "init_seed": 1,
        "tokenizer": {"kind": "bytes"},
    },
    "datasets": [{"owner": owner, "name": "notes", "role": "train"} for owner in OWNERS],
    "columns": {"prompt": "prompt", "completion": "completion"},
    "trainer": {
        "max_steps": 4,
        "per_device_train_batch_size": 4,
        "learning_rate": 0.003,
        "logging_steps": 2,
        "save_steps": 2,
        "max_length": 64,
        "seed": 3,
    },
    "privacy": {"dp": "none"},
    "release_policy": {
        "metrics": ["loss"],
        "round_to": 4,
        "model": {"recipients": [OWNERS[0]]},
    },
    "hardware": {
        "platforms": ["simulator"],
        "tier": "processor",
        "image": None,
        "key_provider": "none",
        "key_provider_id": None,
    },
}


def run(folder: Path, *words: str | Path) -> dict[str, Any]:
    """A command as people type it; its answer."""
    done = subprocess.run(
        [sys.executable, "-m", "sealtrain", *map(str, words), "--json"],
        cwd=folder, capture_output=True, text=True, timeout=RUN_SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    answer: dict[str, Any] = json.loads(done.stdout or "{}")
    return answer


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The files of a folder over HTTP: a container sees no file of the host."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    server = Server(("127.0.0.1", 0), handler)
    with running(server):
        yield f"http://127.0.0.1:{server.server_port}"


def named(layout: Path) -> str:
    """An image as a document names it."""
    return f"registry.example/{layout.name}@{describe_image(layout).digest}"


@contextmanager
def broker(folder: Path, image: Path | None, *, guests: str | None = None) -> Iterator[SideProgram]:
    """Found a consortium, and run its broker from its document.

    Args:
        folder: Empty, but for the simulator's state.
        image: The broker's container; ``None`` for a program of this machine.
        guests: Policy for guests, YAML; ``None`` takes the guests of the simulator.
    """
    for owner in OWNERS:
        run(folder, "keygen", owner, "--out", folder)
    publics = [word for owner in OWNERS for word in ("--owner", f"{owner}.public.json")]
    run(folder, "consortium", "create", "two", "--approve", "2", *publics,
        "--out", "consortium.json")  # fmt: skip
    run(folder, "simulator", "serve", "--simulator", "root", "--write-policy", "policy.yaml")
    if guests is not None:
        (folder / "guests.yaml").write_text(guests)
    policy = "policy.yaml" if guests is None else "guests.yaml"
    of_image = [] if image is None else ["--image-name", named(image)]
    run(folder, "broker", "deployment", "--consortium", "consortium.json",
        "--policy", policy, "--platform", "simulator", *of_image,
        "--out", "broker-compose.json")  # fmt: skip
    run(folder, "deploy", "ticket", "--role", "broker", "--listen", "127.0.0.1:0",
        "--out", "broker-ticket.json")  # fmt: skip
    started = [] if image is None else ["--image", image]
    words = ["deploy", "run", "--deployment", folder / "broker-compose.json", *started,
             "--ticket", folder / "broker-ticket.json", "--folder", folder / "broker",
             "--simulator", folder / "root"]  # fmt: skip
    with SideProgram("broker-part", folder, words, answers=False) as part:
        url = part.place("broker ready", within=READY_SECONDS)
        run(folder, "broker", "pin", "--url", url, "--broker-deployment", "broker-compose.json",
            "--policy", "policy.yaml", "--out", "broker.yaml")  # fmt: skip
        yield part


def locked(folder: Path, image: Path, recipe: dict[str, Any] = RECIPE) -> Path:
    """Lock the recipe for an image; its document."""
    hardware = recipe["hardware"] | {"image": named(image)}
    (folder / "recipe.yaml").write_text(yaml_text(recipe | {"hardware": hardware}))
    run(folder, "lock", "recipe.yaml", "--consortium", "consortium.json",
        "--broker", "broker.yaml", "--image", image, "--out", folder)  # fmt: skip
    return folder / "app-compose.json"


def sealed(folder: Path, document: Path) -> None:
    """Seal each owner's records for the document, and approve it."""
    (folder / "sealed").mkdir()
    for owner in OWNERS:
        rows = [
            {"prompt": f"{owner} patient {number}", "completion": "benign" * (number % 3 + 1)}
            for number in range(24)
        ]
        (folder / f"{owner}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        place = f"sealed/{owner}.notes.sealed"
        run(folder, "seal", f"{owner}.jsonl", "--name", "notes", "--identity",
            f"{owner}.identity.json", "--deployment", document, "--broker", "broker.yaml",
            "--out", place)  # fmt: skip
        run(folder, "approve", "--deployment", document, "--identity", f"{owner}.identity.json",
            "--broker",
            "broker.yaml", "--consortium", "consortium.json", "--yes",
            "--data", place)  # fmt: skip


def trained(folder: Path, document: Path, image: Path) -> dict[str, Any]:
    """Run the guest's container until the end of its run; the verified manifest's report."""
    with served(folder / "sealed") as url:
        data = [word for owner in OWNERS for word in ("--data", f"{url}/{owner}.notes.sealed")]
        run(folder, "deploy", "ticket", "--role", "train", "--broker", "broker.yaml", *data,
            "--out", "ticket.json")  # fmt: skip
        run(folder, "deploy", "run", "--deployment", document, "--image", image,
            "--ticket", "ticket.json",
            "--folder", folder / "guest", "--simulator", folder / "root")  # fmt: skip
    run(folder, "trust", "new", "--consortium", "consortium.json", "--deployment", document,
        "--policy", "policy.yaml", "--broker", "broker.yaml", "--out", "trust.yaml")  # fmt: skip
    return run(folder, "verify", manifest_of(folder), "--trust", "trust.yaml")


def manifest_of(folder: Path) -> Path:
    """Where the guest's volume has the manifest."""
    return folder / "guest/run-data/out/manifest.json"
