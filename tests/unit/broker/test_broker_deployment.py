"""A broker's deployment document: what owners pin of it, and that it serves nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from release_world import chain_file, config_of
from world import OWNERS, founded

from sealtrain.attest.presets import insecure_simulator_policy
from sealtrain.base.canonical import canonical_json
from sealtrain.broker.config import AnswerSettings, BrokerConfig
from sealtrain.broker.errors import DocumentMismatch
from sealtrain.broker.service.deployment import (
    document_of,
    read_broker_document,
    require_measured,
)
from sealtrain.errors import TrustInvalid, UsageError
from sealtrain.recipe.errors import LockInvalid
from sealtrain_rehearsal.simulator.state import ensure

pytestmark = [pytest.mark.claim("C131")]

IMAGE = "registry.example/broker@sha256:" + "ab" * 32


BOOTING = AnswerSettings(boot_auth=True)
A_WEEK = AnswerSettings(lease_seconds=604_800)


@pytest.fixture
def config(tmp_path: Path) -> BrokerConfig:
    consortium = founded("three")
    (tmp_path / "consortium.json").write_bytes(consortium.to_bytes())
    root = ensure(tmp_path / "simulator", 1_790_000_000).root_path.read_bytes()
    policy = insecure_simulator_policy(root)
    (tmp_path / "policy.yaml").write_text(yaml.safe_dump(policy.to_dict()))
    return replace(
        config_of(tmp_path),
        consortium=tmp_path / "consortium.json",
        policy=tmp_path / "policy.yaml",
        platform="simulator",
        root_secret="file:root.secret",
    )


def chain_of(folder: Path, *owners: str) -> Path:
    path = folder / f"chain-{len(owners)}.yaml"
    path.write_text(chain_file(*owners).to_yaml())
    return path


def on_hardware(config: BrokerConfig) -> bytes:
    there = replace(config, platform="dstack", root_secret="dstack:/var/run/dstack.sock")
    return document_of(there, image=IMAGE, key_provider_id="3059").to_bytes()


def test_a_document_comes_back_as_it_was_written(config: BrokerConfig, tmp_path: Path) -> None:
    chained = replace(config, chain=chain_of(tmp_path, *OWNERS), database="file:x", answers=BOOTING)
    for settings in (config, chained):
        made = document_of(settings)
        assert read_broker_document(made.to_bytes()) == made
        assert document_of(settings).to_bytes() == made.to_bytes()
        require_measured(settings, made.to_bytes())
    data = on_hardware(config)
    services = json.loads(json.loads(data)["docker_compose_file"])
    assert read_broker_document(data).to_bytes() == data
    assert set(services["configs"]) == {"consortium.json", "policy.json"}
    assert services["services"]["broker"]["ports"] == ["8470:8470"]
    assert services["services"]["broker"]["restart"] == "no"


def _other_consortium(config: BrokerConfig, folder: Path) -> BrokerConfig:
    other = founded("three", approve=1)
    (folder / "other.json").write_bytes(other.to_bytes())
    return replace(config, consortium=folder / "other.json")


def _other_policy(config: BrokerConfig, folder: Path) -> BrokerConfig:
    root = ensure(folder / "operators", 1_790_000_000).root_path.read_bytes()
    policy = insecure_simulator_policy(root)
    (folder / "other.yaml").write_text(yaml.safe_dump(policy.to_dict()))
    return replace(config, policy=folder / "other.yaml")


OTHERS: dict[str, Callable[[BrokerConfig, Path], BrokerConfig]] = {
    "consortium": _other_consortium,
    "policy": _other_policy,
    "chain": lambda config, folder: replace(config, chain=chain_of(folder, *OWNERS)),
    "lease_seconds": lambda config, folder: replace(
        config, answers=AnswerSettings(lease_seconds=604_800)
    ),
    "boot_auth": lambda config, folder: replace(config, answers=BOOTING),
    "database": lambda config, folder: replace(config, database="file:database"),
    "root_secret": lambda config, folder: replace(config, root_secret="dstack:/tmp/mine.sock"),
    "former_root_secrets": lambda config, folder: replace(
        config, former_root_secrets=("dstack:/tmp/mine.sock",)
    ),
}


@pytest.mark.parametrize("field", OTHERS)
def test_a_broker_told_something_else_than_it_measured_does_not_serve(
    config: BrokerConfig, tmp_path: Path, field: str
) -> None:
    measured = document_of(config).to_bytes()
    with pytest.raises(DocumentMismatch) as refused:
        require_measured(OTHERS[field](config, tmp_path), measured)
    assert refused.value.check == field


def test_a_rotated_root_secret_keeps_the_document(config: BrokerConfig) -> None:
    measured = document_of(config).to_bytes()
    rotated = replace(
        config, root_secret="file:second.secret", former_root_secrets=("file:root.secret",)
    )
    require_measured(rotated, measured)


def test_a_guest_that_measured_no_broker_serves_none(config: BrokerConfig) -> None:
    for other, check in ((b"{}", "document"), (b"", "document"), (on_hardware(config), "platform")):
        with pytest.raises(DocumentMismatch) as refused:
            require_measured(config, other)
        assert refused.value.check == check


def test_a_document_that_no_broker_would_serve_is_not_written(
    config: BrokerConfig, tmp_path: Path
) -> None:
    strangers = replace(config, chain=chain_of(tmp_path, OWNERS[0], "somebody-else"))
    missing = replace(config, chain=tmp_path / "none.yaml")
    scheme = replace(config, root_secret="env:SECRET")
    for settings in (strangers, scheme):
        with pytest.raises(UsageError):
            document_of(settings)
    with pytest.raises(TrustInvalid):
        document_of(missing)
    with pytest.raises(UsageError):
        document_of(replace(config, platform="dstack"))  # none on hardware
    with pytest.raises(UsageError):
        document_of(config, key_provider_id="3059")


@pytest.mark.parametrize("hardware", [False, True])
def test_every_byte_of_a_document_counts(config: BrokerConfig, hardware: bool) -> None:
    """No byte of a document can be changed such that a broker still reads it as its own."""
    data = on_hardware(config) if hardware else document_of(config).to_bytes()
    said = read_broker_document(data)
    for at in range(0, len(data), max(1, len(data) // 400)):
        changed = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        try:
            other = read_broker_document(changed)
        except LockInvalid:
            continue
        assert other != said  # another consortium or policy: another hash, and the broker's refusal


EDITS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "host mount": lambda service: service["volumes"].append("/:/host"),
    "environment": lambda service: service.update(environment={"PYTHONPATH": "/state"}),
    "another port": lambda service: service["ports"].append("22:22"),
    "no port": lambda service: service.pop("ports"),
    "further option": lambda service: service["command"].extend(["--boot-auth"]),
    "lease": lambda service: service["command"].__setitem__(-7, "604801"),
    "entry point": lambda service: service.update(entrypoint=["sh"]),
    "tag": lambda service: service.update(image="registry.example/broker:latest"),
    "restart": lambda service: service.update(restart="always"),
    "template": lambda service: service["labels"].update({"sealtrain.document": "2"}),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_any_edit_of_a_container_is_refused(
    config: BrokerConfig, edit: Callable[[dict[str, Any]], Any]
) -> None:
    document = json.loads(on_hardware(config))
    services = json.loads(document["docker_compose_file"])
    edit(services["services"]["broker"])
    document["docker_compose_file"] = canonical_json(services).decode()
    with pytest.raises(LockInvalid):
        read_broker_document(canonical_json(document))
