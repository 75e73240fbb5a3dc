"""The consortium in which every call of ``bad_input_calls`` works."""

from __future__ import annotations

import base64
import json
import os
import shutil
import socket
import subprocess
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from bad_inputs import FOREIGN
from boot_files import enclave, kernel
from pccs import Pccs, serving
from ports import free_port
from private_network import Authority
from programs import found
from raw_server import server as raw_server
from stage import OWNERS, RECIPE, Stage, records, stage
from storage_world import serving as stored

from sealtrain.attest.evidence import Collateral
from sealtrain.base.canonical import canonical_json
from sealtrain.base.clock import to_rfc3339

REPOSITORY = Path(__file__).resolve().parents[2]
DISK_BYTES = 64 << 10
LORA = {"method": "lora", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]}
TRAINER = RECIPE["trainer"] | {"max_steps": 6, "save_steps": 3}

_SOON = time.time() + 24 * 3600
SCHEDULE = {
    "when": "cron",
    "cron": "0 3 * * *",
    "continue": "base",
    "runs": 3,
    "starts_at": to_rfc3339(int(_SOON)),
    "ends_at": to_rfc3339(int(_SOON + 9 * 24 * 3600)),
}


@dataclass
class World:
    """A stage, and what stands for the names in braces of its calls.

    Attributes:
        disk: It has a small file system that is full, in the folder ``disk``.
    """

    stage: Stage
    places: dict[str, str]
    disk: bool


@contextmanager
def world(folder: Path) -> Iterator[World]:
    """Everything; about a minute."""
    with ExitStack() as stack:
        made = stack.enter_context(stage(folder, submitters=("runner",), runners=("runner",)))
        _desk(folder)
        made.run("keygen", "clinic-d", "--out", "clinic-d")
        made.open_broker("other")
        _recipes(made)
        _runs(made)
        _handed_on(made)
        _adapter(folder)
        _foreign(stack.enter_context(stage(_folder_of_foreign(folder))))
        _brokers(made)
        places = _documents(made)
        places |= stack.enter_context(_chain(made))
        from container_world import make_image_world

        image = make_image_world(folder / "home" / "images")
        shutil.copytree(image.layout, folder / "image")
        shutil.copytree(image.source, folder / "source")
        places |= stack.enter_context(_servers(folder))
        yield World(made, places, stack.enter_context(_full_disk(folder / "disk")))


@contextmanager
def desk(folder: Path) -> Iterator[World]:
    """What the commands of ``bad_input_calls.AT_THE_DESK`` read: no server runs."""
    made = Stage(folder)
    made.meet()
    foreign = Stage(_folder_of_foreign(folder))
    foreign.meet()
    _desk(folder)
    for case in (made, foreign):
        case.inputs.mkdir()
        (case.inputs / "clinic-a.notes.jsonl").write_text(records("clinic-a"))
    with _full_disk(folder / "disk") as disk:
        yield World(made, {"taken": "0"}, disk)


def _enclave(folder: Path) -> None:
    """What an enclave image file is made of, and what its parent starts."""
    (folder / "vmlinuz").write_bytes(kernel())
    (folder / "nsm.ko").write_bytes(b"\x7fELF module")
    vectors = REPOSITORY / "vectors"
    made = json.loads((vectors / "image/enclave.json").read_text())["cases"][0]["layout"]
    for name, data in made.items():
        file = folder / "layout" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(base64.b64decode(data))
    documents = json.loads((vectors / "recipe/compose.json").read_text())["cases"]
    (document,) = (document["compose"] for document in documents if document["name"] == "nitro")
    (folder / "nitro.json").write_text(document)
    named = json.dumps({"ImageName": f"sha256:{'5a' * 32}"}).encode()
    (folder / "nitro.eif").write_bytes(enclave(b"init", b"root", metadata=named))
    tickets = json.loads((vectors / "deployment/tickets.json").read_text())["cases"]
    ticket = json.loads(next(ticket["ticket"] for ticket in tickets if ticket["name"] == "train"))
    kept = {name: ticket[name] for name in ("version", "role", "brokers")}
    places = {"data": ["https://data.example/a"], "store": "https://store.example/out"}
    (folder / "nitro.ticket.json").write_text(json.dumps({**kept, **places}))


def _desk(folder: Path) -> None:
    """Files that no command wrote."""
    (folder / "base").mkdir()
    (folder / "enclave.eif").write_bytes(enclave(b"init", b"root"))
    _enclave(folder)
    (folder / "axolotl.yaml").write_text(yaml.safe_dump({
        "base_model": "base", "adapter": "lora", "lora_r": 8, "lora_alpha": 16,
        "lora_target_modules": ["q_proj"], "datasets": [{"path": "x", "type": "completion"}],
        "max_steps": 5, "micro_batch_size": 1, "gradient_accumulation_steps": 1,
        "learning_rate": 0.001, "sequence_len": 64, "seed": 3,
    }))  # fmt: skip
    (folder / "webhook.txt").write_text("http://127.0.0.1:9/approvals\n")
    (folder / "data-use.yaml").write_text("purposes: [care]\nphi: limited\n")
    (folder / "ruled.yaml").write_text(
        yaml.safe_dump(RECIPE | {"validation": {"columns": {"prompt": {"max_nulls": 0}}}})
    )
    notes = [json.loads(line) for line in records("clinic-a").splitlines()]
    (folder / "notes.csv").write_text(
        "prompt,completion,age\n"
        + "".join(f"{row['prompt']},{row['completion']},{40 + n}\n" for n, row in enumerate(notes))
    )
    platform = json.loads((REPOSITORY / "vectors/recipe/adopted.json").read_text())
    (case,) = (case for case in platform["cases"] if case["name"] == "the script alone")
    adopted = case["compose"].replace("@@", platform["locks"][case["lock"]]["runs"])
    (folder / "platform.json").write_text(adopted)
    ours = {name: value for name, value in json.loads(adopted).items() if "script" not in name}
    (folder / "on-platform.json").write_bytes(canonical_json(ours))
    (folder / "credentials.json").write_text(json.dumps({"AWS_ACCESS_KEY_ID": "a"}))
    for name in ("root.secret", "next.secret"):
        (folder / name).write_text(os.urandom(32).hex())
    for name in ("root.secret", "next.secret", "credentials.json"):
        (folder / name).chmod(0o600)


def _recipes(made: Stage) -> None:
    made.propose("engineer", RECIPE | {"trainer": TRAINER})
    made.approve(made.folder / "engineer", *OWNERS)
    made.propose("spare", RECIPE | {"trainer": TRAINER | {"seed": 4}})
    made.approve(made.folder / "spare", *OWNERS)
    made.propose("scheduled", RECIPE | {"trainer": TRAINER, "schedule": SCHEDULE})
    made.approve(made.folder / "scheduled", *OWNERS)
    policy = {"policy.yaml": (made.folder / "policy.yaml").read_text()}
    together: dict[str, dict[str, Any]] = {
        "nodes": {"kind": "nodes", "nodes": 2},
        "pads": {"kind": "pads", "pads": "dealer", "checks": 1},
        "cut": {"kind": "cut", "layers": 1, "spf_share": 0.05, "wire": "int8"},
        "federated": {
            "kind": "federated", "rounds": 2, "local_steps": 3, "min_parties": 2,
            "round_seconds": 60, "aggregation": "exact",
        },
        "travelling": {"kind": "travelling", "buffer_bytes": 4096},
    }  # fmt: skip
    datasets = [{"owner": owner, "name": "notes", "role": "train"} for owner in OWNERS]
    for name, how in together.items():
        recipe = RECIPE | {
            "trainer": TRAINER | {"max_steps": 6, "gradient_accumulation_steps": 1},
            "peft": LORA,
            "datasets": datasets,
            "collaboration": how | {"policy": "policy.yaml"},
        }
        if name == "cut":
            recipe["model"] = recipe["model"] | {
                "config": recipe["model"]["config"] | {"num_hidden_layers": 3}
            }
        sources = None
        if name == "federated":
            recipe |= CLASSIFY
        if name == "travelling":
            recipe |= TRAVELLING
            sources = _tokens(made, name)
        made.propose(name, recipe, policy, sources)
        made.approve(made.folder / name, *OWNERS)


def _folder_of_foreign(folder: Path) -> Path:
    made = folder / FOREIGN
    made.mkdir()
    return made


def _foreign(made: Stage) -> None:
    """Another consortium, its owners and files named as in the stage's, and a run in it."""
    folder = made.folder
    made.propose("engineer", RECIPE | {"trainer": TRAINER})
    made.approve(folder / "engineer", *OWNERS)
    made.run(*made.train_words(folder / "engineer", "run"))
    made.run("keygen", "clinic-d", "--out", "clinic-d")
    _trust(made, made.deployment, made.trust)
    _evidence(made)
    _token(made)
    made.run("broker", "backup", "--state", "broker/state", "--out", "backup")
    (folder / "spare").symlink_to("engineer")


def _trust(made: Stage, deployment: Path, out: str | Path) -> None:
    made.run(
        "trust", "new", "--consortium", "consortium.json", "--deployment", deployment,
        "--policy", "policy.yaml", "--broker", made.broker, "--out", out,
    )  # fmt: skip


def _evidence(made: Stage) -> None:
    made.run(
        "attest", "collect", "--platform", "simulator", "--guest", "engineer.sock",
        *made.collateral, "--nonce", "00" * 32, "--out", "evidence.json",
    )  # fmt: skip


def _token(made: Stage) -> None:
    made.run(
        "broker", "token", "create", "watch", "--scope", "status", "--out", "token",
        "--state", "broker/state",
    )  # fmt: skip


def _tokens(made: Stage, name: str) -> dict[str, Path]:
    """Records of tokens, already sealed in no other form."""
    found = {}
    for owner in OWNERS:
        path = made.folder / f"{owner}.{name}.jsonl"
        rows = ({"tokens": list(range(32))} for _ in range(64))
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        found[f"{owner}.notes"] = path
    return found


def _handed_on(made: Stage) -> None:
    """A model that one recipe's run hands on to another recipe."""
    classifying = RECIPE | {
        "phase": "classify",
        "columns": {"text": "prompt", "label": "completion"},
        "labels": [" a", " b"],
        "peft": LORA | {"merge": True},
        "trainer": {"max_steps": 3, "max_length": 48, "seed": 3, "save_steps": 3},
    }
    release = {"metrics": ["loss"], "round_to": 4}
    notes = [{"owner": owner, "name": "notes", "role": "train"} for owner in OWNERS]
    further = made.folder / "further"
    further.mkdir()
    measuring = {name: classifying[name] for name in classifying if name != "peft"} | {
        "name": "further",
        "phase": "evaluate",
        "model": {"sealed": "risk"},
        "datasets": [
            {"owner": "clinic-c", "name": "risk", "role": "model"},
            {"owner": "clinic-b", "name": "notes", "role": "test"},
        ],
        "trainer": {"max_length": 48},
        "release_policy": {
            "metrics": ["accuracy", "majority"],
            "round_to": 4,
            "model": {"recipients": ["clinic-b"]},
        },
    }
    (further / "recipe.yaml").write_text(yaml.safe_dump(measuring))
    made.run("lock", further / "recipe.yaml", "--broker", made.broker, "--out", further)
    risk = made.propose("risk", classifying | {
        "name": "risk",
        "datasets": notes[:2],
        "release_policy": release
        | {"model": {"handed_on": {"deployment": "../further/app-compose.json"}}},
    })  # fmt: skip
    made.approve(risk, *OWNERS[:2])
    made.run(*made.train_words(risk, "handed"))
    _trust(made, risk / "app-compose.json", "risk-trust.yaml")


def _adapter(folder: Path) -> None:
    """An adapter as ``open`` gives it, and its base model."""
    from language_world import write_base, write_files
    from peft import get_peft_model
    from training_world import sft

    from sealtrain.training.model_files import model_files
    from sealtrain.training.models.adapters import adapter_config
    from sealtrain.training.models.base import build_model

    write_base(folder / "base")
    recipe = sft(model={"path": "base"}, peft=LORA)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of one library by another
        model = get_peft_model(
            build_model(recipe, folder, "AutoModelForCausalLM"),
            adapter_config(recipe.peft, "CAUSAL_LM"),
        )
    write_files(folder / "adapter", model_files(model, None))


CLASSIFY: dict[str, Any] = {
    "phase": "classify",
    "columns": {"text": "prompt", "label": "completion"},
    "labels": [" a", " b"],
    "trainer": {"max_steps": 6, "max_length": 48, "seed": 3},
    "release_policy": {
        "metrics": ["loss"], "round_to": 4, "every_n_steps": 3,
        "model": {"recipients": list(OWNERS)},
    },
}  # fmt: skip
TRAVELLING: dict[str, Any] = {
    "phase": "cpt",
    "model": {
        "config": {
            "model_type": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 16, "vocab_size": 256,
        },
        "init_seed": 1,
    },
    "columns": {"tokens": "tokens"},
    "peft": None,
    "trainer": {
        "max_steps": 10, "per_device_train_batch_size": 2, "block_size": 32,
        "learning_rate": 0.003, "lr_scheduler_type": "constant",
    },
    "release_policy": {
        "metrics": ["loss"], "round_to": 3, "model": {"recipients": ["clinic-a"]},
    },
}  # fmt: skip


def _runs(made: Stage) -> None:
    folder = made.folder
    made.run(*made.train_words(folder / "engineer", "run"))
    checkpoints = folder / "killed" / "checkpoints"
    made.train_and_kill(
        folder / "engineer", "killed", lambda: any(checkpoints.glob("checkpoint-*.sealed"))
    )
    _trust(made, made.deployment, made.trust)


def _brokers(made: Stage) -> None:
    made.run("broker", "backup", "--state", "broker/state", "--out", "backup")
    made.run("broker", "restore", "backup", "--state", "broker-copy")
    made.run(
        "broker", "token", "create", "old", "--scope", "metrics", "--out", "old.token",
        "--state", "broker-copy",
    )  # fmt: skip
    _token(made)
    made.run(
        "broker", "root", "split", "--root-secret", "file:root.secret", "--threshold", "2",
        "--shares", "3", "--out", "shares",
    )  # fmt: skip
    made.serve(
        "guest API", "simulator", "serve", "--deployment", "broker-compose.json",
        "--socket", "broker.sock", "--simulator", "root", *made.machine,
    )  # fmt: skip
    serving = (
        "broker", "serve", "--consortium", "consortium.json", "--policy", "policy.yaml",
        "--root-secret", "file:root.secret", "--state", "served", "--guest", "broker.sock",
        "--platform", "simulator", *made.collateral, "--port", "0",
    )  # fmt: skip
    with made.part(*serving, answers=False) as part:
        part.place("broker ready", within=60)


def _roles(made: Stage) -> None:
    """Tickets of the other roles, each as ``ROLE.ticket.json``."""
    here, nowhere = "127.0.0.1:0", "127.0.0.1:9"
    brokers = ("--broker", made.broker)
    held = ("--data", made.folder / "travelling" / "sealed" / "clinic-a.notes.sealed")
    joined = ("--data", made.folder / "federated" / "sealed" / "clinic-a.notes.sealed")
    holders = (word for owner in OWNERS for word in ("--holder", f"{owner}={nowhere}"))
    peers = ("--peer", f"accelerator={nowhere}", "--peer", f"writes={nowhere}")
    roles: dict[str, Sequence[str | Path]] = {
        "accelerator": ("--listen", here, "--listen-writes", here),
        "dealer": ("--listen", here),
        "holder": (
            *brokers, *held, "--party", "clinic-a", "--peer", f"writes={nowhere}",
            "--listen", here,
        ),
        "lead": brokers,
        "node": (
            *brokers, "--data", made.folder / "nodes" / "sealed", "--node", "1",
            "--peer", f"lead={nowhere}", "--listen", here,
        ),
        "orchestrator": (*brokers, *peers, *holders, "--states", made.folder / "states"),
        "party": (*brokers, *joined, "--party", "clinic-a", "--run", "0" * 32),
        "server": (*brokers, "--listen", here),
    }  # fmt: skip
    for role, words in roles.items():
        made.run("deploy", "ticket", "--role", role, *words, "--out", f"{role}.ticket.json")


def _documents(made: Stage) -> dict[str, str]:
    folder = made.folder
    made.run(
        "deploy", "ticket", "--role", "train", "--broker", made.broker,
        "--data", folder / "engineer" / "sealed", "--out", "guest.ticket.json",
    )  # fmt: skip
    made.run(
        "deploy", "ticket", "--role", "train", "--broker", made.broker,
        "--data", folder / "scheduled" / "sealed", "--out", "scheduled.ticket.json",
    )  # fmt: skip
    _roles(made)
    _evidence(made)
    propose = (
        "consortium", "propose", "--identity", made.identity("clinic-a"),
        "--broker", "other.yaml", "--add", "clinic-d/clinic-d.public.json", "--yes", "--out",
    )  # fmt: skip
    made.run(*propose, "succession.json")
    made.run(*propose, "signed.json")
    for owner in OWNERS[1:]:
        made.run(
            "consortium", "sign", "signed.json", "--identity", made.identity(owner),
            "--broker", "other.yaml", "--yes",
        )  # fmt: skip
    made.run(
        "run", "submit", "nightly", "--ticket", "guest.ticket.json",
        "--deployment", made.deployment, "--broker", made.broker,
        "--identity", made.identity("clinic-a"),
    )  # fmt: skip
    shares = sorted(path.name for path in (folder / "shares").iterdir())
    pinned = yaml.safe_load(made.broker.read_text())
    return {"share0": shares[0], "share1": shares[1], "broker": pinned["url"]}


@contextmanager
def _chain(made: Stage) -> Iterator[dict[str, str]]:
    from chain_world import (
        chain_file,
        key_file,
        new_chain,
        owner_account,
        owners_contract,
        served_by,
    )

    from sealtrain_chain.account import address

    folder = made.folder
    chain = new_chain()
    contract = owners_contract(chain, names=OWNERS, any_device=False)
    with served_by(chain, None, None, None) as urls:
        people = {name: address(owner_account(name)) for name in OWNERS}
        file = chain_file(chain, contract, *urls, owners=people)
        (folder / "chain.yaml").write_text(file.to_yaml())
        (folder / "chain.yaml").chmod(0o600)
        for name in ("payer", OWNERS[0]):
            key_file(folder, name)
        made.run(
            "chain", "revoke", "--deployment", made.deployment, "--chain", "chain.yaml",
            "--ethereum-key", f"{OWNERS[0]}.key", "--out", "revocation.json", "--yes",
        )  # fmt: skip
        yield {
            "contract": contract,
            "chain_id": str(chain.web3.eth.chain_id),
            **{f"rpc{number}": url for number, url in enumerate(urls)},
            **{
                f"owner{number}": f"{name}={where}"
                for number, (name, where) in enumerate(people.items())
            },
        }


@contextmanager
def _servers(folder: Path) -> Iterator[dict[str, str]]:
    """A store that takes PUT, a PCCS, a port that is taken, and servers with bad certificates."""
    collateral = Collateral.model_validate_json((folder / "root/collateral.json").read_bytes())
    with (
        stored(folder / "home") as store,
        serving(Pccs(collateral=collateral, fmspc="00" * 6)) as pccs,
        socket.create_server(("127.0.0.1", 0)) as taken,
        ExitStack() as stack,
    ):
        bank = Authority(folder / "home" / "bank")
        shutil.copy(bank.file, folder / "bank-ca.pem")
        secured = {
            "expired": bank.server("localhost", days=(-9, -2), file="expired"),
            "unknown": Authority(folder / "home" / "other-bank", "Other CA").server("localhost"),
            "self-signed": bank.self_signed("localhost"),
            "misnamed": bank.server("broker.bank"),
        }
        yield {
            "store": f"{store.url}/published",
            "pccs": pccs.url,
            "taken": str(taken.getsockname()[1]),
            "free": str(free_port()),
            "without-tls": store.url.rpartition(":")[2],
            **{
                name: stack.enter_context(_bad(certificate)).rpartition(":")[2]
                for name, certificate in secured.items()
            },
        }


@contextmanager
def _bad(certificate: Path) -> Iterator[str]:
    """A server that shows a certificate and answers nothing."""
    with raw_server(lambda _connection, _number: None, certificate=certificate) as (url, _):
        yield url


@contextmanager
def _full_disk(place: Path) -> Iterator[bool]:
    """A small file system that takes no byte more, where this process may mount one."""
    place.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(place)]
    mounts = found("mount") is not None and os.geteuid() == 0
    if not mounts or subprocess.run(words, check=False).returncode:
        yield False
        return
    try:
        with (place / "fill").open("wb") as file, suppress(OSError):
            file.write(bytes(DISK_BYTES))
        yield True
    finally:
        subprocess.run(["umount", str(place)], check=True)
