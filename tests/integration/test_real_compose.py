"""Docker's own Compose creates every document that we write for a container; it starts none.

Owners approve a document's hash, so a document that Compose refuses is of no use however well our
own executor runs it. What a machine here does not have is replaced by one function, ``as_here``.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from docker_world import IMAGE, Docker, docker
from every_document import PLATFORMS, Compose, compose_in, documents_in
from variants import variants

from sealtrain.recipe.kinds import KINDS

pytestmark = [pytest.mark.long, pytest.mark.claim("C128")]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Docker]:
    with docker(tmp_path_factory.mktemp("docker")) as running:
        yield running


def as_here(compose: Compose, folder: Path) -> Compose:
    """The same file with another image, device and places of this machine; nothing else differs."""
    changed = copy.deepcopy(compose)
    (service,) = changed["services"].values()
    service["image"] = IMAGE
    service["devices"] = [
        f"/dev/null:{device.split(':')[1]}" for device in service.get("devices", ())
    ]
    service["volumes"] = [
        f"{folder}{volume}" if volume.startswith("/") else volume for volume in service["volumes"]
    ]
    return changed


def one_of_each(documents: dict[str, bytes]) -> dict[str, bytes]:
    """Of every kind, role and platform, and with a GPU, one document at least."""
    first, *_ = PLATFORMS
    names = [f"guest-{kind}-{first}-cpu" for kind in KINDS]
    for platform in PLATFORMS:
        names += [f"guest-alone-{platform}-nvidia", f"broker-full-{platform}"]
    return {name: documents[name] for name in names}


@pytest.mark.parametrize(
    "which", variants(["first", "one of each", "every one"], each_time=["first"])
)
def test_compose_creates_every_document(
    engine: Docker, tmp_path: Path, capsys: pytest.CaptureFixture[str], which: str
) -> None:
    documents = documents_in(tmp_path)
    assert len(documents) > 50
    if which == "one of each":
        documents = one_of_each(documents)
    elif which == "first":
        documents = dict([next(iter(documents.items()))])
    said = [f"\n{inspect.getsource(as_here)}"]
    refused = {}
    for name, document in documents.items():
        project = f"{name}-{which.split()[0]}"
        done = engine.create(project, as_here(compose_in(document), engine.folder))
        said.append(f"{'created' if done.returncode == 0 else 'REFUSED'}  {name}")
        if done.returncode:
            refused[name] = done.stderr
    with capsys.disabled():
        print("\n".join(said))
    assert refused == {}
    created = engine.created()
    for name, document in documents.items():
        (service,) = compose_in(document)["services"].values()
        require_as_written(name, service, created[f"{name}-{which.split()[0]}"])


def require_as_written(name: str, service: dict[str, Any], there: dict[str, Any]) -> None:
    """The engine understood what the document says of its container."""
    config, host = there["Config"], there["HostConfig"]
    assert [*config["Entrypoint"], *config["Cmd"]] == ["sealtrain", *service["command"]], name
    assert config["User"] == service.get("user", ""), name
    assert config["WorkingDir"] == "/run-data", name
    assert host["ReadonlyRootfs"] is True, name
    assert (host["CapDrop"], host["CapAdd"], host["Privileged"]) == (["ALL"], None, False), name
    assert host["SecurityOpt"] == ["no-new-privileges:true"], name
    assert {mount["Destination"] for mount in there["Mounts"]} == {
        volume.split(":")[1] for volume in service["volumes"]
    }, name
    ports = {f"{port.split(':')[1]}/tcp" for port in service.get("ports", ())}
    assert set(host["PortBindings"] or ()) == ports, name
    gpus = [devicerequest["Driver"] for devicerequest in host["DeviceRequests"] or ()]
    assert gpus == (["nvidia"] if "deploy" in service else []), name


@pytest.mark.parametrize("read_only", variants([True, False], each_time=[True]))
def test_a_file_that_compose_should_write_into_the_container_is_refused(
    engine: Docker, tmp_path: Path, capsys: pytest.CaptureFixture[str], *, read_only: bool
) -> None:
    """Template 2 did that: no document for hardware was created."""
    name, document = next(iter(documents_in(tmp_path).items()))
    compose = as_here(compose_in(document), engine.folder)
    (service,) = compose["services"].values()
    service["read_only"] = read_only
    service["configs"] = [
        {"source": config, "target": f"/run/{config}"} for config in compose["configs"]
    ]
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
