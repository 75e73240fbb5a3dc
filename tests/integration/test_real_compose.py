"""Docker's own Compose creates every document that we write for a container; it starts none.

Owners approve a document's hash, so a document that Compose refuses is of no use however well our
own executor runs it. What a machine here does not have is replaced by one function, ``as_here``.
"""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from docker_world import IMAGE, Docker, docker
from lock_mutants import locks
from release_world import chain_file, config_of
from world import OWNERS, founded

from sealtrain.attest.presets import insecure_simulator_policy
from sealtrain.base.canonical import canonical_json
from sealtrain.base.platforms import Platform
from sealtrain.broker.service.deployment import document_of
from sealtrain.recipe.compose import build_compose
from sealtrain.recipe.kinds import KINDS
from sealtrain.recipe.lockfile import parse_lock
from sealtrain_simulator.state import ensure

pytestmark = [pytest.mark.long, pytest.mark.claim("C128")]

DIGEST = f"registry.example/sealtrain@sha256:{'5a' * 32}"
PLATFORMS: tuple[Platform, ...] = get_args(Platform)
Compose = dict[str, Any]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Docker]:
    with docker(tmp_path_factory.mktemp("docker")) as running:
        yield running


def as_here(compose: Compose, folder: Path) -> Compose:
    """The same file with another image, device and places of this machine; nothing else differs."""
    changed = copy.deepcopy(compose)
    (service,) = changed["services"].values()
    service["image"] = IMAGE
    service["devices"] = [f"/dev/null:{one.split(':')[1]}" for one in service.get("devices", ())]
    service["volumes"] = [
        f"{folder}{one}" if one.startswith("/") else one for one in service["volumes"]
    ]
    return changed


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
                changed["recipe"]["hardware"] |= hardware | {"key_provider_id": None}
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
    full = {"chain": folder / "chain.yaml", "database": "file:x", "boot_auth": True}
    for platform in PLATFORMS:
        for name, more in (("plain", {}), ("full", full)):
            there = replace(config, platform=platform, **more)
            yield f"broker-{name}-{platform}", document_of(there, image=DIGEST).to_bytes()


def test_compose_creates_every_document(
    engine: Docker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broker").mkdir()
    documents = dict([*guests(tmp_path / "guests"), *brokers(tmp_path / "broker")])
    said = [f"\n{inspect.getsource(as_here)}"]
    refused = {}
    for name, document in documents.items():
        done = engine.create(name, as_here(compose_in(document), engine.folder))
        said.append(f"{'created' if done.returncode == 0 else 'REFUSED'}  {name}")
        if done.returncode:
            refused[name] = done.stderr
    with capsys.disabled():
        print("\n".join(said))
    assert refused == {}
    assert len(documents) > 50
    created = engine.created()
    for name, document in documents.items():
        (service,) = compose_in(document)["services"].values()
        require_as_written(name, service, created[name])


def require_as_written(name: str, service: dict[str, Any], there: dict[str, Any]) -> None:
    """The engine understood what the document says of its container."""
    config, host = there["Config"], there["HostConfig"]
    assert [*config["Entrypoint"], *config["Cmd"]] == ["sealtrain", *service["command"]], name
    assert config["User"] == service.get("user", ""), name
    assert config["WorkingDir"] == "/run-data", name
    assert host["ReadonlyRootfs"] is True, name
    assert (host["CapDrop"], host["CapAdd"], host["Privileged"]) == (["ALL"], None, False), name
    assert host["SecurityOpt"] == ["no-new-privileges:true"], name
    assert {one["Destination"] for one in there["Mounts"]} == {
        one.split(":")[1] for one in service["volumes"]
    }, name
    ports = {f"{one.split(':')[1]}/tcp" for one in service.get("ports", ())}
    assert set(host["PortBindings"] or ()) == ports, name
    gpus = [one["Driver"] for one in host["DeviceRequests"] or ()]
    assert gpus == (["nvidia"] if "deploy" in service else []), name


@pytest.mark.parametrize("read_only", [True, False], ids=["read-only", "writable"])
def test_a_file_that_compose_should_write_into_the_container_is_refused(
    engine: Docker, tmp_path: Path, capsys: pytest.CaptureFixture[str], *, read_only: bool
) -> None:
    """Template 2 did that: no document for hardware was created."""
    name, document = next(guests(tmp_path))
    compose = as_here(compose_in(document), engine.folder)
    (service,) = compose["services"].values()
    service["read_only"] = read_only
    service["configs"] = [{"source": one, "target": f"/run/{one}"} for one in compose["configs"]]
    done = engine.create(f"{name}-{'ro' if read_only else 'rw'}", compose)
    with capsys.disabled():
        print(f"\ntemplate 2, read_only {read_only}: {done.stderr.splitlines()[-1]}")
    assert (done.returncode != 0) is read_only


def test_the_engine_and_compose_are_real_ones(
    engine: Docker, capsys: pytest.CaptureFixture[str]
) -> None:
    versions = [
        engine.run("docker", "version", "--format", "{{.Server.Version}}").stdout.strip(),
        engine.run("docker-compose", "version", "--short").stdout.strip(),
    ]
    with capsys.disabled():
        print(f"\nDocker Engine {versions[0]}, Compose {versions[1]}")
    assert [int(version.split(".")[0]) for version in versions] >= [26, 2]
