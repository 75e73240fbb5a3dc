"""Vectors of brokers' deployment documents and of run tickets, made without sealtrain.

Writes ``vectors/deployment/{brokers,tickets}.json``: the fields of a broker with the document that
belongs to them, and tickets that are read or refused.
Run: ``python tools/vectorgen/deployment.py [FOLDER]``.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from approval_parts import TWO_OF_THREE

Json = Any
VECTORS = Path(__file__).resolve().parents[2] / "vectors"
OUT = VECTORS / "deployment"
IMAGE = f"registry.example/sealtrain-broker@sha256:{'5b' * 32}"


def canonical(value: Json) -> str:
    """RFC 8785 for what occurs here: no number but integers."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def simulated_policy() -> Json:
    """A policy that another generator made."""
    return json.loads((VECTORS / "evidence" / "documents.json").read_text("utf-8"))["policy"]


def words(fields: Json, kept: str, measured: str, ticket: str) -> list[str]:
    """The broker's command."""
    here = fields["image"] is None
    guest = "guest.sock" if here else "/var/run/dstack.sock"
    found = ["broker", "serve"]
    for option, name in (("--consortium", "consortium"), ("--policy", "policy")):
        found += [option, f"{measured}{name}.json"]
    found += ["--root-secret", fields["root_secret"], "--state", f"{kept}state"]
    if fields["database"]:
        found += ["--database", f"file:{kept}database"]
    found += ["--guest", guest, "--platform", fields["platform"]]
    found += ["--collateral", f"file:{kept}collateral.json"]
    found += ["--lease-seconds", str(fields["lease_seconds"])]
    if fields["boot_auth"]:
        found += ["--boot-auth", "--gateway-app-id", fields["gateway_app_id"]]
    found += ["--host", "127.0.0.1" if here else "0.0.0.0", "--port", "8470"]  # noqa: S104
    return [*found, "--ticket", ticket]


def document(fields: Json) -> str:
    """The deployment document of a broker."""
    here = fields["image"] is None
    kept, measured = ("", "") if here else ("/run-data/", "document:")
    ticket = "ticket.json" if here else "/run/sealtrain/ticket.json"
    files = {f"{name}.json": canonical(fields[name]) for name in ("consortium", "policy")}
    command = words(fields, kept, measured, ticket)
    kms = bool(fields["key_provider_id"])
    frame: Json = {
        "manifest_version": 2,
        "name": "sealtrain-broker",
        "kms_enabled": kms,
        "local_key_provider_enabled": False,
        "key_provider": "kms" if kms else "none",
        "key_provider_id": fields["key_provider_id"],
        "gateway_enabled": False,
        "public_logs": False,
        "public_sysinfo": False,
        "public_tcbinfo": True,
        "allowed_envs": [],
        "no_instance_id": False,
        "secure_time": True,
        "storage_fs": "zfs",
    }
    if here:
        lines = [
            "#!/bin/bash",
            "# SIMULATED — NOT ATTESTED. This document names no image, so no hardware guest may "
            "run it.",
            "# sealtrain deployment document 3",
            "set -euo pipefail",
        ]
        for name, text in files.items():
            lines += ["printf %s \"$(cat <<'SEALTRAIN_FILE'", text, "SEALTRAIN_FILE"]
            lines.append(f')" > {name}')
        # A shell quotes an empty word; no other word here needs it.
        quoted = [word or "''" for word in command]
        lines.append(f"exec sealtrain {' '.join(quoted)}")
        return canonical(frame | {"runner": "bash", "bash_script": "\n".join(lines) + "\n"})
    socket = "/var/run/dstack.sock"
    service = {
        "image": fields["image"],
        "labels": {"sealtrain.document": "3"},
        "entrypoint": ["sealtrain"],
        "command": command,
        "working_dir": "/run-data",
        "volumes": [
            f"{socket}:{socket}",
            "/dstack/user_config:/run/sealtrain/ticket.json:ro",
            "run-data:/run-data",
        ],
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "read_only": True,
        "tmpfs": ["/tmp:exec"],  # noqa: S108  # a path inside the guest
        "shm_size": "8gb",
        "restart": "no",
        "ports": ["8470:8470"],
    }
    services = {
        "services": {"broker": service},
        "configs": {name: {"content": text.replace("$", "$$")} for name, text in files.items()},
        "volumes": {"run-data": {}},
    }
    return canonical(
        frame | {"runner": "docker-compose", "docker_compose_file": canonical(services)}
    )


def broker_vectors() -> list[Json]:
    """Fields and their documents."""
    simulated = {
        "consortium": TWO_OF_THREE,
        "policy": simulated_policy(),
        "chain": None,
        "succession": None,
        "platform": "simulator",
        "image": None,
        "key_provider_id": "",
        "root_secret": "file:root.secret",
        "lease_seconds": 3600,
        "boot_auth": False,
        "gateway_app_id": "",
        "database": False,
    }
    dstack = simulated | {
        "platform": "dstack",
        "image": IMAGE,
        "key_provider_id": "3059",
        "root_secret": "dstack:/var/run/dstack.sock?path=sealtrain/broker-root/v1",
    }
    cases = {
        "simulator": simulated,
        "simulator, short lease": simulated | {"lease_seconds": 60},
        "simulator, image": simulated | {"image": IMAGE, "root_secret": dstack["root_secret"]},
        "simulator, KMS without a gateway": simulated | {"boot_auth": True},
        "dstack": dstack,
        "dstack, database": dstack | {"database": True},
        "dstack, KMS": dstack | {"boot_auth": True, "gateway_app_id": "ab" * 20},
    }
    made = []
    for comment, fields in cases.items():
        text = document(fields)
        digest = hashlib.sha256(text.encode()).hexdigest()
        made.append({"name": comment, "fields": fields, "document": text, "compose_hash": digest})
    return made


def ticket_vectors() -> list[Json]:
    """Tickets as JSON, and whether a reader takes them."""
    pin = {
        "version": 2,
        "url": "https://broker.example",
        "signing_key": "A" * 43 + "=",
        "compose_hash": "ab" * 32,
        "appraisal": simulated_policy(),
    }
    asked = {"version": 1, "brokers": [pin]}
    train = asked | {"role": "train", "data": ["https://store.example/a.sealed"]}
    holder = train | {"role": "holder", "party": "bank-a", "peers": {"writes": "10.0.0.1:8472"}}
    lead = asked | {"role": "orchestrator", "peers": {"accelerator": "a:1", "writes": "a:2"}}
    run = {"party": "bank-a", "run": "ab" * 16}
    good = {
        "train": train,
        "evaluate": train | {"role": "evaluate"},
        "train that other nodes join": train | {"listen": "10.0.0.1:8471"},
        "node": train | {"role": "node", "node": 2, "peers": {"lead": "10.0.0.1:8471"}},
        "train with helpers": train | {"peers": {"accelerator": "[::1]:8471", "dealer": "d:1"}},
        "train on other ranks": train | {"ranks": 4},
        "null is not written": train | {"base": None, "listen": None},
        "lead": asked | {"role": "lead"},
        "party": train | run | {"role": "party"},
        "party that rejoins": train | run | {"role": "party", "rejoins": True},
        "holder that rejoins": holder | {"rejoins": True},
        "rejoins is not written": holder | {"rejoins": False},
        "for a submission": train | {"submission_id": "cd" * 16},
        "holder": holder,
        "orchestrator": lead | {"holders": {"bank-a": "h:1"}},
        "standby": lead | {"role": "standby", "states": "/s", "holders": {"bank-a": "h:1"}},
        "accelerator": {"version": 1, "role": "accelerator", "listen": "0.0.0.0:8471"},
        "accelerator with threads": {"version": 1, "role": "accelerator", "threads": 1024},
        "dealer": {"version": 1, "role": "dealer"},
        "dealer with threads": {"version": 1, "role": "dealer", "threads": 8},
        "server": asked | {"role": "server", "listen": "0.0.0.0:8471"},
        "broker": {"version": 1, "role": "broker", "public_urls": ["https://broker.example"]},
    }
    bad = {
        "no version": {"role": "dealer"},
        "another version": {"version": 2, "role": "dealer"},
        "no role": {"version": 1},
        "unknown role": {"version": 1, "role": "owner"},
        "unknown field": train | {"store": "s3://bucket"},
        "no data": asked | {"role": "train"},
        "no broker": {"version": 1, "role": "train", "data": ["/d"]},
        "a party's field": train | run,
        "a submission by its name": train | {"submission_id": "nightly"},
        "a broker for a submission": {"version": 1, "role": "broker", "submission_id": "cd" * 16},
        "a node without a number": train | {"role": "node", "peers": {"lead": "a:1"}},
        "node 0": train | {"role": "node", "node": 0, "peers": {"lead": "a:1"}},
        "a node's number": train | {"node": 1},
        "a broker's field": train | {"root_secret": "file:mine"},
        "user in a URL": train | {"data": ["https://me:word@store.example/a"]},
        "query in a URL": train | {"data": ["https://store.example/a?key=word"]},
        "no ranks": train | {"ranks": 0},
        "too many ranks": train | {"ranks": 65},
        "ranks of a measurement": train | {"role": "evaluate", "ranks": 2},
        "a run that rejoins": train | {"rejoins": True},
        "rejoins by a number": holder | {"rejoins": 1},
        "no threads": {"version": 1, "role": "dealer", "threads": 0},
        "too many threads": {"version": 1, "role": "dealer", "threads": 1025},
        "threads of a run": train | {"threads": 2},
        "no port": train | {"peers": {"accelerator": "10.0.0.1"}},
        "holder without writes": {key: holder[key] for key in holder if key != "peers"},
        "orchestrator without holders": lead,
        "collateral from a file": train | {"collateral": "file:/collateral.json"},
        "too many brokers": train | {"brokers": [pin] * 17},
        "a broker file's path": train | {"brokers": ["broker.yaml"]},
    }
    return [
        {
            "name": name,
            "ticket": canonical(ticket),
            "outcome": outcome,
        }
        for cases, outcome in ((good, "ok"), (bad, "ticket-invalid"))
        for name, ticket in cases.items()
    ]


def main(out: Path) -> None:
    """Write both files."""
    out.mkdir(parents=True, exist_ok=True)
    for name, vectors in (("brokers", broker_vectors()), ("tickets", ticket_vectors())):
        text = json.dumps({"version": 1, "cases": vectors}, indent=1, ensure_ascii=False) + "\n"
        (out / f"{name}.json").write_text(text, "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else OUT)
