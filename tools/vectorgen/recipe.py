"""Vectors of locks and deployment documents, made without sealtrain.

Writes ``vectors/recipe/{compose,adopted,records,yaml}.json``: locks with the deployment document
that belongs to them, documents that a platform added to with their outcome, RECORD files with their
digest, and YAML with the value it must have or none.
Run: ``python tools/vectorgen/recipe.py [FOLDER]``.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

Json = Any
OUT = Path(__file__).resolve().parents[2] / "vectors" / "recipe"
ARGUMENTS = (
    "guest MEASUREDrecipe.lock.json --platform PLATFORM --guest GUEST "
    "COLLATERAL--gpu-collateral file:KEPTgpu-collateral.json "
    "--base KEPTbase --out KEPTout --ticket TICKET --json"
)
SCRIPT = (
    "#!/bin/bash\n"
    "# SIMULATED — NOT ATTESTED. This document names no image, so no hardware guest may run it.\n"
    "# sealtrain deployment document 3\n"
    "set -euo pipefail\n"
    "printf %s \"$(cat <<'SEALTRAIN_FILE'\n"
    "LOCK\n"
    "SEALTRAIN_FILE\n"
    ')" > recipe.lock.json\n'
    "exec sealtrain COMMAND\n"
)


def arguments(platform: str, *, script: bool) -> str:
    """The guest's command on a platform, in a script or a container."""
    device = {
        "simulator": "guest.sock" if script else "/var/run/dstack.sock",
        "dstack": "/var/run/dstack.sock",
        "nitro": "nitro:/dev/nsm?compose=/run/sealtrain/app-compose.json",
        "snp": "snp:/sys/kernel/config/tsm/report?compose=/run/sealtrain/app-compose.json",
    }
    inside = "vsock:8475" if platform == "nitro" else "/run/sealtrain/ticket.json"
    words = {
        "MEASURED": "" if script else "document:",
        "TICKET": "ticket.json" if script else inside,
        "PLATFORM": platform,
        "GUEST": device[platform],
        "COLLATERAL": ""
        if platform in ("nitro", "snp")
        else "--collateral file:KEPTcollateral.json ",
        "KEPT": "" if script else "/run-data/",
    }
    text = ARGUMENTS
    for name, value in words.items():
        text = text.replace(name, value)
    return text


def canonical(value: Json) -> str:
    """RFC 8785 for what occurs here: no float that JSON and Python would write differently."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def sha(text: str) -> str:
    """SHA-256 in hex."""
    return hashlib.sha256(text.encode()).hexdigest()


def lock(description: str, hardware: Json) -> Json:
    """A whole lock, every default written out."""
    config = {"model_type": "llama", "hidden_size": 64}
    start = {"config": config, "init_seed": 7, "dtype": "float32"}
    return {
        "version": 2,
        "consortium_id": "c0" * 32,
        "brokers": ["b0" * 32, "b1" * 32],
        "recipe": {
            "version": 1,
            "name": "vector",
            "description": description,
            "phase": "sft",
            "model": {**start, "tokenizer": {"kind": "bytes"}},
            "datasets": [
                {
                    "owner": "a",
                    "name": "x",
                    "role": "train",
                    "weight": 1,
                    "max_records": None,
                    "columns": {},
                }
            ],
            "columns": {"text": "text"},
            "trainer": {
                "max_steps": 3,
                "per_device_train_batch_size": 8,
                "per_device_eval_batch_size": 8,
                "gradient_accumulation_steps": 1,
                "learning_rate": 0.00005,
                "lr_scheduler_type": "linear",
                "lr_scheduler_kwargs": {},
                "warmup_steps": 0,
                "optim": "adamw_torch",
                "weight_decay": 0,
                "adam_beta1": 0.9,
                "adam_beta2": 0.999,
                "adam_epsilon": 1e-8,
                "max_grad_norm": 1,
                "label_smoothing_factor": 0,
                "neftune_noise_alpha": None,
                "bf16": False,
                "activation_checkpointing": False,
                "seed": 42,
                "data_seed": None,
                "logging_steps": 10,
                "save_steps": 500,
                "save_total_limit": 2,
                "eval_steps": None,
                "metric_for_best_model": None,
                "greater_is_better": None,
                "load_best_model_at_end": False,
                "early_stopping_patience": None,
                "early_stopping_threshold": 0,
                "max_length": 1024,
                "truncation_mode": "keep_start",
                "packing": False,
                "packing_strategy": "bfd",
                "padding_free": False,
                "pad_to_multiple_of": None,
                "completion_only_loss": None,
                "assistant_only_loss": False,
                "loss_type": "nll",
                "eos_token": None,
                "pad_token": None,
            },
            "peft": None,
            "audit": None,
            "scripts": [],
            "packages": [],
            "validation": None,
            "privacy": {"dp": "none"},
            "release_policy": {
                "metrics": ["loss"],
                "round_to": 4,
                "every_n_steps": 1,
                "logs": "none",
                "model": {"recipients": ["a"]},
            },
            "monitoring": None,
            "hardware": {"app_id": None, **hardware},
        },
        "code": [{"name": "sealtrain", "version": "0.1.0", "sha256": "11" * 32}],
        "environment": {
            "python": "3.11.7",
            "packages": {"trl": {"version": "1.16.0", "record_sha256": "22" * 32}},
        },
        "scripts": {},
        "model": {"kind": "config", "sha256": sha(canonical(start))},
        "tokenizer": {"kind": "bytes", "sha256": None},
        "models": {},
    }


def with_reward(plain: Json) -> Json:
    """The same lock for reinforcement with a reward model, pinned beside the base model."""
    last = list(plain["recipe"]["trainer"]).index("early_stopping_threshold")
    trainer = dict(list(plain["recipe"]["trainer"].items())[: last + 1])
    trainer |= {
        "algorithm": "ppo",
        "max_completion_length": 256,
        "temperature": 1,
        "disable_dropout": True,
        "num_ppo_epochs": 4,
        "num_mini_batches": 1,
        "init_kl_coef": 0.2,
        "kl_target": 6,
        "kl_horizon": 10000,
        "target_kl": None,
        "cliprange": 0.2,
        "cliprange_value": 0.2,
        "vf_coef": 0.1,
        "gamma": 1,
        "lam": 0.95,
        "missing_eos_penalty": None,
    }
    scorer = {"path": "scorer", "tokenizer": {"path": "scorer"}, "dtype": "float32"}
    shared = {name: value for name, value in plain["recipe"].items() if name != "audit"}
    recipe = shared | {
        "phase": "rlhf",
        "columns": {"prompt": "text", "answer": None},
        "trainer": trainer,
        "reward": {"model": scorer, "max_length": 1024},
    }
    pin = {
        "model": {"kind": "folder", "sha256": "33" * 32},
        "tokenizer": {"kind": "folder", "sha256": "44" * 32},
    }
    return plain | {"recipe": recipe, "models": {"reward": pin}}


def with_gaps(plain: Json) -> Json:
    """The same lock for a table with gaps, of which each has a meaning."""
    last = list(plain["recipe"]["trainer"]).index("early_stopping_threshold")
    trainer = dict(list(plain["recipe"]["trainer"].items())[: last + 1]) | {"max_length": 512}
    config = {"model_type": "sealtrain-tabular"}
    model = {"config": config, "init_seed": 7, "tokenizer": None, "dtype": "float32"}
    policy = plain["recipe"]["release_policy"] | {"metrics": ["loss", "missing_2"]}
    recipe = plain["recipe"] | {
        "phase": "classify",
        "model": model,
        "columns": {"features": ["age", "CRP mg/L", "dose"], "label": "triage"},
        "trainer": trainer,
        "peft": None,
        "release_policy": policy,
        "labels": ["routine", "urgent"],
        "num_labels": 2,
        "preparation": None,
        "augmentation": None,
        "calibration_share": 0,
        "missing": {
            "age": "own-category",
            "CRP mg/L": "median",
            "dose": {"constant": 0.5},
            "triage": {"constant": "routine"},
        },
    }
    start = {"config": config, "init_seed": 7, "dtype": "float32"}
    pin = {"kind": "config", "sha256": sha(canonical(start))}
    return plain | {"recipe": recipe, "model": pin, "tokenizer": {"kind": "none", "sha256": None}}


def with_script(plain: Json) -> Json:
    """The same lock with a training script of one's own, its module, and a package of theirs."""
    recipe = plain["recipe"] | {"scripts": ["train.py", "lib/data.py"], "packages": ["extra==1.0"]}
    packages = plain["environment"]["packages"] | {
        "extra": {"version": "1.0", "record_sha256": "55" * 32}
    }
    texts = {
        "train.py": 'import lib.data\n\nprint(f"${lib.data.NAME} \\$ 大")\n',
        "lib/data.py": "NAME = 'SEALTRAIN_RECIPE_LOCK'\n",
    }
    environment = plain["environment"] | {"packages": packages}
    return plain | {"recipe": recipe, "environment": environment, "scripts": texts}


def write(value: Json) -> str:
    """Canonical text of a lock; the two small floats as RFC 8785 (ECMAScript) spells them."""
    return canonical(value).replace("5e-05", "0.00005").replace("1e-08", "1e-8")


def compose(hardware: Json, text: str) -> str:
    """The deployment document of a lock's text."""
    document: Json = {
        "manifest_version": 2,
        "name": "vector",
        "kms_enabled": hardware["key_provider"] == "kms",
        "local_key_provider_enabled": hardware["key_provider"] == "local",
        "key_provider": hardware["key_provider"],
        "key_provider_id": hardware["key_provider_id"] or "",
        "gateway_enabled": False,
        "public_logs": False,
        "public_sysinfo": False,
        "public_tcbinfo": True,
        "allowed_envs": [],
        "no_instance_id": False,
        "secure_time": True,
        "storage_fs": "zfs",
    }
    if hardware["image"] is None:
        script = SCRIPT.replace("COMMAND", arguments("simulator", script=True))
        document |= {"runner": "bash", "bash_script": script.replace("LOCK\n", text + "\n", 1)}
        return canonical(document)
    platform = hardware["platforms"][0]
    shown = "/run/sealtrain/app-compose.json"
    ticket = "/run/sealtrain/ticket.json"
    reports = "/sys/kernel/config/tsm/report"
    mounts = {
        "dstack": ["/var/run/dstack.sock:/var/run/dstack.sock", f"/dstack/user_config:{ticket}:ro"],
        "simulator": [
            "/var/run/dstack.sock:/var/run/dstack.sock",
            f"/dstack/user_config:{ticket}:ro",
        ],
        "nitro": [f"{shown}:{shown}:ro"],
        "snp": [f"{reports}:{reports}", f"{shown}:{shown}:ro", f"{ticket}:{ticket}:ro"],
    }
    service: Json = {
        "image": hardware["image"],
        "labels": {"sealtrain.document": "3"},
        "entrypoint": ["sealtrain"],
        "command": arguments(platform, script=False).split(),
        "working_dir": "/run-data",
        "volumes": [*mounts[platform], "run-data:/run-data"],
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "read_only": True,
        "tmpfs": ["/tmp:exec"],  # noqa: S108  # a path inside the guest
        "shm_size": "8gb",
        "restart": "no",
    }
    if platform == "snp":
        service["user"] = "0:0"
    if platform == "nitro":
        service["devices"] = ["/dev/nsm:/dev/nsm"]
    if hardware.get("gpu"):
        gpus = [{"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}]
        service["deploy"] = {"resources": {"reservations": {"devices": gpus}}}
    services = {
        "services": {"guest": service},
        "configs": {"recipe.lock.json": {"content": text.replace("$", "$$")}},
        "volumes": {"run-data": {}},
    }
    document |= {"runner": "docker-compose", "docker_compose_file": canonical(services)}
    return canonical(document)


def compose_vectors() -> list[Json]:
    """Valid pairs."""
    simulator = {
        "platforms": ["simulator"],
        "tier": "processor",
        "image": None,
        "key_provider": "none",
        "key_provider_id": None,
    }
    image = f"registry.example/sealtrain@sha256:{'5a' * 32}"
    kms = {
        "platforms": ["dstack"],
        "tier": "processor",
        "image": image,
        "key_provider": "kms",
        "key_provider_id": "3059",
    }
    local = {**kms, "key_provider": "local", "key_provider_id": None}
    contract = {**kms, "app_id": "ab" * 20}
    bare = {"image": image, "key_provider": "none", "key_provider_id": None}
    rehearsed = {**bare, "platforms": ["simulator"], "tier": "processor"}
    nitro = {**bare, "platforms": ["nitro"], "tier": "cloud"}
    size = {"processors": 4, "memory_mib": 16384, "mode": "production"}
    sized = {**nitro, "enclave": size}
    snp = {**bare, "platforms": ["snp"], "tier": "processor", "gpu": "nvidia"}
    result = []
    for comment, hardware, locked in (
        ("simulator, bash", simulator, lock("", simulator)),
        ("simulator, shell syntax", simulator, lock("$(id) `id` ' \" \\ $HOME", simulator)),
        ("simulator, reward model", simulator, with_reward(lock("", simulator))),
        ("simulator, scripts", simulator, with_script(lock("", simulator))),
        ("dstack, scripts", kms, with_script(lock("", kms))),
        ("dstack, KMS", kms, lock("", kms)),
        ("dstack, interpolation", kms, lock("$HOME ${HOME} $$ 大", kms)),
        ("dstack, local key provider", local, lock("", local)),
        ("dstack, KMS contract", contract, lock("", contract)),
        ("simulator, image", rehearsed, lock("", rehearsed)),
        ("nitro", nitro, lock("", nitro)),
        ("nitro, an enclave of a size", sized, lock("", sized)),
        ("snp with GPUs", snp, lock("", snp)),
        ("simulator, a table with gaps", simulator, with_gaps(lock("", simulator))),
    ):
        text = write(locked)
        document = compose(hardware, text)
        result.append(
            {
                "name": comment,
                "lock": text,
                "recipe_hash": sha(text),
                "compose": document,
                "compose_hash": sha(document),
                "app_id": hardware.get("app_id") or sha(document)[:40],
            }
        )
    return result


def refused_enclaves() -> list[Json]:
    """Documents of another platform whose lock names the size of an enclave."""
    size = {"processors": 4, "memory_mib": 16384, "mode": "production"}
    fixed = {
        "image": f"registry.example/sealtrain@sha256:{'5a' * 32}",
        "key_provider": "none",
        "key_provider_id": None,
        "tier": "processor",
        "enclave": size,
    }
    found = []
    for platform in ("snp", "dstack", "simulator"):
        hardware = {**fixed, "platforms": [platform]}
        document = compose(hardware, write(lock("", hardware)))
        found.append({"name": f"an enclave on {platform}", "compose": document})
    return found


EMPTY_SCRIPT = (
    "#!/bin/sh\n"
    "# sealtrain deployment document 3\n"
    "# Nothing is done before the containers start.\n"
    ":\n"
)
LOGIN = "#!/bin/bash\necho login \u00e9\n"


def adopted_vectors() -> Json:
    """Documents that a platform added to, with what a reader says of each.

    What a document runs is long and mostly that of its lock: it stands beside the lock, once, and
    as ``@@`` in the documents.
    """
    hardware = {
        "platforms": ["dstack"],
        "tier": "processor",
        "image": f"registry.example/sealtrain@sha256:{'5a' * 32}",
        "key_provider": "kms",
        "key_provider_id": "3059",
    }
    named_hardware = {**hardware, "launch_script": sha(LOGIN)}
    bash = {
        "platforms": ["simulator"],
        "tier": "processor",
        "image": None,
        "key_provider": "none",
        "key_provider_id": None,
    }
    locks = {
        name: write(lock(text, given))
        for name, text, given in (
            ("plain", "$HOME \u5927", hardware),
            ("named", "", named_hardware),
            ("bash", "", bash),
        )
    }
    documents = {
        "plain": json.loads(compose(hardware, locks["plain"])),
        "named": json.loads(compose(named_hardware, locks["named"])),
        "bash": json.loads(compose(bash, locks["bash"])),
    }
    ours = documents["plain"]
    runs = {
        name: canonical(document.get("docker_compose_file") or document["bash_script"])[1:-1]
        for name, document in documents.items()
    }
    result: list[Json] = []

    def case(name: str, outcome: str, text: str, locked: str = "plain") -> None:
        assert "@@" not in text
        short = text.replace(runs[locked], "@@")
        result.append(
            {
                "name": name,
                "lock": locked,
                "compose": short,
                "compose_hash": sha(text),
                "outcome": outcome,
            }
        )

    def change_document(title: str, outcome: str, /, **changes: Json) -> None:
        document = {**ours, "pre_launch_script": EMPTY_SCRIPT, **changes}
        document = {field: value for field, value in document.items() if value is not ...}
        case(title, outcome, canonical(document))

    ok, refused = "ok", "lock-invalid"
    metadata = {
        "name": "",
        "features": ["kms"],
        "tproxy_enabled": False,
        "docker_config": {"registry": None, "username": "", "password": "", "token_key": None},
        "salt": "05fcefaecd984204bb6ccf16938eaad5",
        "env_pubkey": "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "port_policy": {"ports": [], "restrict_mode": True},
        "swap_size": 0,
        "event_log_version": 1,
        "verity_volumes": [],
    }
    change_document("the script alone", ok)
    change_document("all that a platform may add", ok, **metadata)
    for field, value in metadata.items():
        change_document(f"{field} alone", ok, **{field: value})
    change_document("features empty", ok, features=[])
    change_document("salt null", ok, salt=None)
    change_document("env_pubkey empty", ok, env_pubkey="")
    change_document("port_policy open", ok, port_policy={"ports": [], "restrict_mode": False})
    change_document("docker_config empty", ok, docker_config={})
    change_document("name in another script", ok, name="\u8a3a\u65ad" * 64)
    # The script.
    change_document("script null", refused, pre_launch_script=None)
    change_document("script empty", refused, pre_launch_script="")
    change_document("script a list", refused, pre_launch_script=[EMPTY_SCRIPT])
    change_document("script another", refused, pre_launch_script=LOGIN)
    change_document("script twice", refused, pre_launch_script=EMPTY_SCRIPT + EMPTY_SCRIPT)
    change_document("script with a line more", refused, pre_launch_script=EMPTY_SCRIPT + "id\n")
    change_document("script without its last byte", refused, pre_launch_script=EMPTY_SCRIPT[:-1])
    change_document(
        "script with CRLF", refused, pre_launch_script=EMPTY_SCRIPT.replace("\n", "\r\n")
    )
    change_document("script with a mark", refused, pre_launch_script="\ufeff" + EMPTY_SCRIPT)
    change_document(
        "script with a look-alike", refused, pre_launch_script=EMPTY_SCRIPT.replace("a", "\u0430")
    )
    for name, outcome, script in (
        ("script that the lock names", ok, LOGIN),
        ("the empty script, another named", ok, EMPTY_SCRIPT),
        ("script near the one that the lock names", refused, LOGIN + " "),
    ):
        document = {**documents["named"], "pre_launch_script": script}
        case(name, outcome, canonical(document), "named")
    # Fields of ours.
    services = json.loads(ours["docker_compose_file"])
    evil = {**services, "services": {**services["services"], "evil": {"image": "evil"}}}
    privileged = json.loads(ours["docker_compose_file"])
    privileged["services"]["guest"]["environment"] = {"PYTHONPATH": "/run-data"}
    for name, change in (
        ("a trailing service", {"docker_compose_file": canonical(evil)}),
        ("an environment", {"docker_compose_file": canonical(privileged)}),
        (
            "the compose file with a space",
            {"docker_compose_file": ours["docker_compose_file"] + " "},
        ),
        ("the compose file null", {"docker_compose_file": None}),
        ("the compose file left out", {"docker_compose_file": ...}),
        ("an environment variable allowed", {"allowed_envs": ["DSTACK_AUTHORIZED_KEYS"]}),
        ("allowed_envs a text", {"allowed_envs": ""}),
        ("allowed_envs left out", {"allowed_envs": ...}),
        ("another key provider", {"key_provider": "local"}),
        ("key_provider left out", {"key_provider": ...}),
        ("another pin", {"key_provider_id": "305a"}),
        ("no pin", {"key_provider_id": ""}),
        ("kms off", {"kms_enabled": False}),
        ("kms 1", {"kms_enabled": 1}),
        ("public logs", {"public_logs": True}),
        ("public logs 0", {"public_logs": 0}),
        ("public sysinfo", {"public_sysinfo": True}),
        ("no public tcbinfo", {"public_tcbinfo": False}),
        ("a gateway", {"gateway_enabled": True}),
        ("time of the host", {"secure_time": False}),
        ("secure_time left out", {"secure_time": ...}),
        ("no instance", {"no_instance_id": True}),
        ("another file system", {"storage_fs": "ext4"}),
        ("another runner", {"runner": "nerdctl-compose"}),
        ("a script as runner", {"runner": "bash", "bash_script": "id"}),
        ("version 3", {"manifest_version": "3"}),
        ("version as a text", {"manifest_version": "2"}),
        # The name.
        ("a name of 129", {"name": "x" * 129}),
        ("a name with a line", {"name": "a\nb"}),
        ("a name that turns text", {"name": "a\u202eb"}),
        ("a name that is none", {"name": None}),
        ("name left out", {"name": ...}),
        # Fields of the platform.
        ("features with the gateway", {"features": ["kms", "tproxy-net"]}),
        ("features twice", {"features": ["kms", "kms"]}),
        ("features a text", {"features": "kms"}),
        ("features null", {"features": None}),
        ("tproxy on", {"tproxy_enabled": True}),
        ("tproxy 0", {"tproxy_enabled": 0}),
        ("an account", {"docker_config": {"username": "me", "password": ""}}),
        ("an account's list", {"docker_config": []}),
        ("another field of an account", {"docker_config": {"auth": ""}}),
        ("salt upper case", {"salt": "AB"}),
        ("salt empty", {"salt": ""}),
        ("salt of 65", {"salt": "a" * 65}),
        ("salt with a line", {"salt": "ab\n"}),
        ("salt in other digits", {"salt": "\u0661"}),
        ("salt a number", {"salt": 5}),
        ("env_pubkey null", {"env_pubkey": None}),
        ("env_pubkey no hex", {"env_pubkey": "0x00"}),
        ("env_pubkey of 131", {"env_pubkey": "a" * 131}),
        ("a port", {"port_policy": {"ports": [{"port": 22, "pp": False}], "restrict_mode": True}}),
        ("ports null", {"port_policy": {"ports": None, "restrict_mode": True}}),
        ("restrict_mode 1", {"port_policy": {"ports": [], "restrict_mode": 1}}),
        ("port_policy and more", {"port_policy": {"ports": [], "restrict_mode": True, "a": 1}}),
        ("port_policy a list", {"port_policy": []}),
        ("swap", {"swap_size": 1}),
        ("swap as a text", {"swap_size": "0"}),
        ("swap false", {"swap_size": False}),
        ("event log 2", {"event_log_version": 2}),
        ("event log true", {"event_log_version": True}),
        (
            "a volume",
            {"verity_volumes": [{"source": "a", "target": "/", "verity_root": "00" * 32}]},
        ),
        ("volumes as an object", {"verity_volumes": {}}),
        # Fields that no platform may add.
        ("bash_script", {"bash_script": "id"}),
        ("bash_script null", {"bash_script": None}),
        ("init_script", {"init_script": "id"}),
        ("no init_script", {"init_script": []}),
        ("snapshotter", {"snapshotter": "overlayfs"}),
        ("port_policy", {"port_policy": {}}),
        ("requirements", {"requirements": {}}),
        ("an unknown field", {"metadata": {}}),
        ("an inherited name", {"__proto__": {}}),
        ("a constructor", {"constructor": 0}),
        ("a field with a zero width", {"salt\u200b": "ab"}),
        ("the script in another spelling", {"pre\u200b_launch_script": "id"}),
    ):
        change_document(name, refused, **change)
    # Spellings.
    whole = canonical({**ours, "pre_launch_script": EMPTY_SCRIPT})
    script = canonical(EMPTY_SCRIPT)
    case("not adopted: a name alone", refused, canonical({**ours, "name": "other"}))
    case("not adopted: metadata alone", refused, canonical({**ours, "salt": "ab"}))
    case("the script's field twice", refused, f'{whole[:-1]},"pre_launch_script":{script}}}')
    case("a second script first", refused, f'{{"pre_launch_script":{canonical(LOGIN)},{whole[1:]}')
    case("keys in another order", refused, json_text({**ours, "pre_launch_script": EMPTY_SCRIPT}))
    case("with spaces", refused, json.dumps(json.loads(whole), sort_keys=True, ensure_ascii=False))
    case("in ASCII", refused, json.dumps(json.loads(whole), sort_keys=True, separators=(",", ":")))
    case("with a line at its end", refused, whole + "\n")
    case("with a mark at its start", refused, "\ufeff" + whole)
    case("with a float", refused, whole.replace('"manifest_version":2', '"manifest_version":2.0'))
    case(
        "with an exponent", refused, whole.replace('"manifest_version":2', '"manifest_version":2e0')
    )
    in_script = canonical({**documents["bash"], "pre_launch_script": EMPTY_SCRIPT})
    case("a document without an image", refused, in_script, "bash")
    return {
        "locks": {name: {"text": text, "runs": runs[name]} for name, text in locks.items()},
        "cases": result,
    }


def json_text(value: Json) -> str:
    """Compact, with keys as they come."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def record_vectors() -> list[Json]:
    """RECORD files with the map that is left and its digest."""
    kept = {"pkg/__init__.py": "sha256=aaa", "pkg/x, y.py": "sha256=bbb"}
    rows = 'pkg/__init__.py,sha256=aaa,1\n"pkg/x, y.py",sha256=bbb,2\n'
    noise = (
        "../../../bin/pkg,sha256=n,1\n/usr/bin/pkg,sha256=n,1\n"
        "pkg/__pycache__/x.cpython-311.pyc,sha256=n,1\npkg/y.pyc,,\n"
        "pkg-1.dist-info/RECORD,,\npkg-1.dist-info/INSTALLER,sha256=n,1\n"
        "pkg-1.dist-info/REQUESTED,sha256=n,1\npkg-1.dist-info/direct_url.json,sha256=n,1\n"
        "pkg-1.dist-info/uv_cache.json,sha256=n,1\n"
    )
    more = {**kept, "pkg-1.dist-info/METADATA": "sha256=ccc", "pkg/INSTALLER": "sha256=ddd"}
    extra = "pkg-1.dist-info/METADATA,sha256=ccc,3\npkg/INSTALLER,sha256=ddd,4\n"
    return [
        {"name": "plain", "record": rows, "sha256": sha(canonical(kept))},
        {"name": "installer's rows", "record": noise + rows, "sha256": sha(canonical(kept))},
        {"name": "CRLF", "record": rows.replace("\n", "\r\n"), "sha256": sha(canonical(kept))},
        {"name": "more files", "record": rows + extra, "sha256": sha(canonical(more))},
    ]


def yaml_vectors() -> list[Json]:
    """Texts with their value; ``refused`` where there is none."""
    good: list[tuple[str, Json]] = [
        ("a: 1\nb: 2.5\nc: 2e-5\nd: -3", {"a": 1, "b": 2.5, "c": 2e-5, "d": -3}),
        ("a: yes\nb: 0o7\nc: 0x1\nd: 1_000", {"a": "yes", "b": "0o7", "c": "0x1", "d": "1_000"}),
        ("a: .5\nb: 5.\nc: +1\nd: 00", {"a": ".5", "b": "5.", "c": 1, "d": "00"}),
        ("a: True\nb: NULL\nc: false", {"a": "True", "b": "NULL", "c": False}),
        ("a: 2001-12-14\nb: 1:30", {"a": "2001-12-14", "b": "1:30"}),
        (
            "a: 'null'\nb: \"x\\ny\"\n'c': [d, # e\n f,]\n",
            {"a": "null", "b": "x\ny", "c": ["d", "f"]},
        ),
        ("- a: b\n  c:\n  - d\n-\n- - e\r\n", [{"a": "b", "c": ["d"]}, None, ["e"]]),
        ('{"a":{"b":[1]},\n"c" : "\\ud83e\\uddec"}', {"a": {"b": [1]}, "c": "\U0001f9ec"}),
        (
            "a: 9007199254740991\nb: x:y#z\nc: it's",
            {"a": 9007199254740991, "b": "x:y#z", "c": "it's"},
        ),
        ("[]", []),
        ("text", "text"),
    ]
    bad = [
        "a: 1\na: 1",
        "a: &x b",
        "a: *x",
        "a: !!int '1'",
        "<<: {}",
        "{[a]: b}",
        "{{a: b}: c}",
        "---\na: 1\n---\n",
        "%TAG ! x\n---\na",
        "a: 1e400",
        "a: [",
        "\ta: 1",
        "a: \u0007",
        "# a\rb: 1",
        "a: 1 # b\u0085c: 2",
        "a: 1 # b\u2028c: 2",
        "a: 1 # b\u2029c: 2",
        "a: |\n  b\n",
        "a: b\n  c\n",
        'a: "b\n  c"\n',
        'a: "\\x41"',
        'a: "\\ud83e"',
        "a: 9007199254740992",
        "a: -12345678901234567890",
        f"a: 0.{'1' * 31}",
        "? a\n: b",
        "1: a",
        "null: a",
        "{a, b}",
        "[a: b]",
        "a: [b\n]",
        "a: b\n...\n",
        "a:\tb",
        "a: \u202eb",
        "a: 1\n'a': 2",
    ]
    return [
        *({"yaml": text, "value": value, "outcome": "ok"} for text, value in good),
        *({"yaml": text, "value": None, "outcome": "recipe-invalid"} for text in bad),
    ]


def main(out: Path) -> None:
    """Write the four files."""
    out.mkdir(parents=True, exist_ok=True)
    families = {
        "compose": {"cases": compose_vectors(), "refused": refused_enclaves()},
        "adopted": adopted_vectors(),
        "records": {"cases": record_vectors()},
        "yaml": {"cases": yaml_vectors()},
    }
    for name, vectors in families.items():
        document = {"version": 1, **vectors}
        text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
        (out / f"{name}.json").write_text(text, "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else OUT)
