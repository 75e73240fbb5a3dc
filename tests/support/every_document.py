"""Every deployment document with an image that sealtrain can write, by what is in it."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import yaml
from lock_mutants import locks
from release_world import chain_file, config_of
from world import OWNERS, founded

from sealtrain.attest.presets import insecure_simulator_policy
from sealtrain.base.canonical import canonical_json
from sealtrain.base.platforms import Platform
from sealtrain.base.tiers import TIER_OF_KIND
from sealtrain.broker.config import AnswerSettings
from sealtrain.broker.service.deployment import document_of
from sealtrain.recipe.compose import build_compose
from sealtrain.recipe.kinds import KINDS
from sealtrain.recipe.lockfile import parse_lock
from sealtrain_rehearsal.simulator.state import ensure

DIGEST = f"registry.example/sealtrain@sha256:{'5a' * 32}"
PLATFORMS: tuple[Platform, ...] = get_args(Platform)
Compose = dict[str, Any]


def documents_in(folder: Path) -> dict[str, bytes]:
    """Documents of guests and brokers, made in a folder."""
    (folder / "broker").mkdir()
    return dict([*guests(folder / "guests"), *brokers(folder / "broker")])


def compose_in(document: bytes) -> Compose:
    return dict(json.loads(json.loads(document)["docker_compose_file"]))


def guests(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Documents of recipes of every kind of collaboration, for every platform and with GPUs."""
    made = locks(folder)
    of_kind = {"alone": made["ranks"]} | {kind: made[kind] for kind in KINDS}
    for kind, lock in of_kind.items():
        for platform in PLATFORMS:
            for gpu in (None, "nvidia"):
                changed = copy.deepcopy(lock)
                hardware = {"platforms": [platform], "image": DIGEST, "key_provider": "none"}
                tier = TIER_OF_KIND.get(platform, "processor")
                changed["recipe"]["hardware"] |= hardware | {"key_provider_id": None, "tier": tier}
                if gpu is not None:
                    changed["recipe"]["hardware"]["gpu"] = gpu
                written = build_compose(parse_lock(canonical_json(changed)))
                yield f"guest-{kind}-{platform}-{gpu or 'cpu'}", written


def brokers(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Documents of brokers for every platform, with and without all that is optional."""
    (folder / "consortium.json").write_bytes(founded("three").to_bytes())
    root = ensure(folder / "simulator", 1_790_000_000).root_path.read_bytes()
    policy = insecure_simulator_policy(root)
    (folder / "policy.yaml").write_text(yaml.safe_dump(policy.to_dict()))
    (folder / "chain.yaml").write_text(chain_file(*OWNERS).to_yaml())
    config = replace(
        config_of(folder),
        consortium=folder / "consortium.json",
        policy=folder / "policy.yaml",
        root_secret="pkcs11:token=brokers;object=root",
    )
    full = {
        "chain": folder / "chain.yaml",
        "database": "file:x",
        "answers": AnswerSettings(boot_auth=True),
    }
    for platform in PLATFORMS:
        for name, more in (("plain", {}), ("full", full)):
            there = replace(config, platform=platform, **more)
            yield f"broker-{name}-{platform}", document_of(there, image=DIGEST).to_bytes()
