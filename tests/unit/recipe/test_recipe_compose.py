from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from carrying import carries

from sealtrain.base.canonical import canonical_json
from sealtrain.recipe import document as frame
from sealtrain.recipe.errors import LockInvalid
from sealtrain.recipe.lock import LockedRecipe

Document = dict[str, Any]
LockOf = Callable[..., LockedRecipe]


def test_the_lock_comes_back_out_of_either_document(
    sft: Document, on_dstack: Document, lock_of: LockOf
) -> None:
    for recipe, runner in ((sft, "bash"), (on_dstack, "docker-compose")):
        locked = lock_of(recipe)
        assert json.loads(locked.compose_bytes)["runner"] == runner
        assert LockedRecipe.parse(locked.compose_bytes).lock_bytes == locked.lock_bytes


def test_nothing_is_public_and_no_environment_is_allowed(
    on_dstack: Document, lock_of: LockOf
) -> None:
    document = json.loads(lock_of(on_dstack).compose_bytes)
    expected = {
        "public_logs": False,
        "public_sysinfo": False,
        "gateway_enabled": False,
        "allowed_envs": [],
        "kms_enabled": True,
        "key_provider": "kms",
        "key_provider_id": "3059301306",
        "manifest_version": 2,
    }
    assert {name: document[name] for name in expected} == expected


def test_the_service_is_one_image_by_digest_without_privilege(
    on_dstack: Document, lock_of: LockOf
) -> None:
    services = yaml.safe_load(json.loads(lock_of(on_dstack).compose_bytes)["docker_compose_file"])
    (service,) = services["services"].values()
    assert service["image"] == on_dstack["hardware"]["image"]
    assert service["cap_drop"] == ["ALL"]
    assert service["volumes"] == [
        "/var/run/dstack.sock:/var/run/dstack.sock",
        "/dstack/user_config:/run/sealtrain/ticket.json:ro",
        "run-data:/run-data",
    ]
    assert not {"ports", "privileged", "environment", "env_file", "devices"} & set(service)


def test_every_yaml_reader_sees_the_same_lock(on_dstack: Document, lock_of: LockOf) -> None:
    on_dstack["description"] = "Größe, 大きさ ≤ 'quoted' \"twice\" \\n # {{x}} ${HOME} $$ %"
    locked = lock_of(on_dstack)
    text = json.loads(locked.compose_bytes)["docker_compose_file"]
    assert yaml.safe_load(text) == json.loads(text)
    content = yaml.safe_load(text)["configs"]["recipe.lock.json"]["content"]
    # Compose turns "$$" into "$" and any other "$" into a variable.
    assert content.replace("$$", "").count("$") == 0
    assert (
        content.replace("$$", "$").encode()
        == locked.lock_bytes
        == LockedRecipe.parse(locked.compose_bytes).lock_bytes
    )


def test_the_simulators_script_says_so_and_writes_exactly_the_lock(
    sft: Document, lock_of: LockOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sft["description"] = "$(touch /tmp/x) `id` $HOME ' \" \\ EOF"
    locked = lock_of(sft)
    script = json.loads(locked.compose_bytes)["bash_script"]
    assert "SIMULATED — NOT ATTESTED" in script.splitlines()[1]
    (tmp_path / "bin").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "bin" / "sealtrain").write_text(f'#!/bin/bash\necho "$@" > {tmp_path}/called\n')
    (tmp_path / "bin" / "sealtrain").chmod(0o755)
    path = f"{tmp_path}/bin:/usr/bin:/bin"
    subprocess.run(["bash", "-c", script], check=True, env={"PATH": path}, cwd=tmp_path / "run")
    assert (tmp_path / "run" / "recipe.lock.json").read_bytes() == locked.lock_bytes
    assert "--platform simulator" in (tmp_path / "called").read_text()


def edited(locked: LockedRecipe, change: Callable[[Document, Document], None]) -> bytes:
    """The document after ``change(document, docker compose file)``."""
    document = json.loads(locked.compose_bytes)
    services = json.loads(document["docker_compose_file"])
    change(document, services)
    document["docker_compose_file"] = canonical_json(services).decode()
    return canonical_json(document)


def service(services: Document) -> Document:
    found: Document = services["services"]["guest"]
    return found


EDITS: list[tuple[str, Callable[[Document, Document], Any]]] = [
    ("'pre_launch_script'", lambda d, s: d.update(pre_launch_script="echo")),
    ("'init_script'", lambda d, s: d.update(init_script="echo")),
    ("'tproxy_enabled'", lambda d, s: d.update(tproxy_enabled=True)),
    ("'bash_script'", lambda d, s: d.update(bash_script="echo")),
    ("'public_logs'", lambda d, s: d.update(public_logs=True)),
    ("'public_sysinfo'", lambda d, s: d.update(public_sysinfo=True)),
    ("'gateway_enabled'", lambda d, s: d.update(gateway_enabled=True)),
    ("'gateway_enabled'", lambda d, s: d.update(gateway_enabled=0)),
    ("'allowed_envs'", lambda d, s: d.update(allowed_envs=["LD_PRELOAD"])),
    ("'key_provider_id'", lambda d, s: d.update(key_provider_id="")),
    ("'key_provider_id'", lambda d, s: d.update(key_provider_id="3059301307")),
    ("'key_provider'", lambda d, s: d.update(key_provider="none")),
    ("'kms_enabled'", lambda d, s: d.update(kms_enabled=False)),
    ("'storage_fs'", lambda d, s: d.update(storage_fs="ext4")),
    ("'name'", lambda d, s: d.update(name="other")),
    ("'secure_time'", lambda d, s: d.pop("secure_time")),
    ("runner", lambda d, s: d.update(runner="nerdctl-compose")),
    ("bash_script", lambda d, s: d.update(runner="bash")),
    ("one service", lambda d, s: s["services"].update(evil={"image": "x"})),
    ("one service", lambda d, s: s["services"].clear()),
    ("by digest", lambda d, s: service(s).update(image="name:latest")),
    ("by digest", lambda d, s: service(s).pop("image")),
    ("'image'", lambda d, s: service(s).update(image=f"evil@sha256:{'0' * 64}")),
    ("'privileged'", lambda d, s: service(s).update(privileged=True)),
    ("'ports'", lambda d, s: service(s).update(ports=["22:22"])),
    ("'environment'", lambda d, s: service(s).update(environment={"PYTHONPATH": "/run-data"})),
    ("'env_file'", lambda d, s: service(s).update(env_file="/run-data/env")),
    ("'labels'", lambda d, s: service(s).update(labels={"sealtrain.document": "2"})),
    ("'labels'", lambda d, s: service(s).pop("labels")),
    ("'deploy'", lambda d, s: service(s).update(deploy={"replicas": 2})),
    ("'devices'", lambda d, s: service(s).update(devices=["/dev/mem"])),
    ("'volumes'", lambda d, s: service(s)["volumes"].append("/:/host")),
    ("'entrypoint'", lambda d, s: service(s).update(entrypoint=["sh"])),
    ("'command'", lambda d, s: service(s)["command"].append("--yes")),
    ("'configs'", lambda d, s: service(s).update(configs=[])),
    ("'secrets'", lambda d, s: s.update(secrets={})),
    ("'configs'", lambda d, s: s["configs"].update(more={"content": "x"})),
    ("no lock", lambda d, s: s["configs"].clear()),
    ("interpolate", lambda d, s: s["configs"]["recipe.lock.json"].update(content="$LOCK")),
    ("lock lacks", lambda d, s: s["configs"]["recipe.lock.json"].update(content="{}")),
]  # fmt: skip


@pytest.mark.parametrize(("named", "change"), EDITS)
def test_any_edit_of_the_document_is_refused_by_name(
    on_dstack: Document, lock_of: LockOf, named: str, change: Callable[..., Any]
) -> None:
    locked = lock_of(on_dstack)
    assert edited(locked, lambda d, s: None) == locked.compose_bytes
    with pytest.raises(LockInvalid, match=named):
        LockedRecipe.parse(edited(locked, change))


def test_the_document_has_one_spelling(on_dstack: Document, lock_of: LockOf) -> None:
    data = lock_of(on_dstack).compose_bytes
    spaced = json.dumps(json.loads(data)).encode()
    twice = b'{"name":"diagnosis",' + data[1:]
    for other in (spaced, data + b"\n", twice, data[:-1], b"", b"[]", b"\xff"):
        with pytest.raises(LockInvalid):
            LockedRecipe.parse(other)
    document = json.loads(data)
    document["docker_compose_file"] = yaml.safe_dump(json.loads(document["docker_compose_file"]))
    with pytest.raises(LockInvalid, check=carries(check="document")):
        LockedRecipe.parse(canonical_json(document))


@pytest.mark.parametrize(
    "change",
    [
        lambda script: script + "curl example.org\n",
        lambda script: "#!/bin/bash\nid\n" + script,
        lambda script: script.replace("\nSEALTRAIN", "\nSEALTRAIN_FILE\n) id; $(\n", 1),
        lambda script: script.replace("deployment document 3", "deployment document 2"),
        lambda script: script + script.splitlines()[-1] + "\n",
        lambda script: script.replace("SIMULATED — NOT ATTESTED", "ATTESTED"),
        lambda script: script.replace("--platform simulator", "--platform dstack"),
        lambda script: None,
    ],
)  # fmt: skip
def test_any_edit_of_the_script_is_refused(
    sft: Document, lock_of: LockOf, change: Callable[[str], str | None]
) -> None:
    document = json.loads(lock_of(sft).compose_bytes)
    document["bash_script"] = change(document["bash_script"])
    with pytest.raises(LockInvalid, match="bash_script"):
        LockedRecipe.parse(canonical_json(document))


def test_a_document_beyond_the_guests_limit_is_never_written(
    sft: Document, lock_of: LockOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = lock_of(sft).compose_bytes
    monkeypatch.setattr(frame, "MAX_DOCUMENT_BYTES", len(data) - 1)
    with pytest.raises(LockInvalid, match="too large"):
        lock_of(sft)
    with pytest.raises(LockInvalid, check=carries(check="document")):
        LockedRecipe.parse(data)
