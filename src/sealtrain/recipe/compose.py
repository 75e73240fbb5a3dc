"""The deployment document: ``app-compose.json`` of dstack and of the simulator, holding the lock.

``compose_hash`` is SHA-256 of the file's raw bytes, which the guest measures. The document is a
function of the lock alone, so reading it back is strict: take the lock out, build the document
again, compare byte for byte. Any difference is refused, and named where possible.

1. At most ``MAX_COMPOSE_BYTES``, strict JSON.
2. Known top-level fields only, none missing, fixed values as fixed.
3. docker-compose: one service, image by digest, no field beyond the template's (so no port, no
   host mount, no privilege, no environment); bash: the script's frame, marked SIMULATED.
4. The lock parses, and the document built from it has these bytes.
"""

from __future__ import annotations

from typing import Any

from sealtrain.attest.registry import tee_of
from sealtrain.base.canonical import JsonValue, canonical_json, parse_json
from sealtrain.base.digests import sha256_hex
from sealtrain.errors import DataInvalid, LockInvalid
from sealtrain.recipe.lockfile import Lock, parse_lock
from sealtrain.recipe.terms import Hardware

__all__ = ["app_id_of", "build_compose", "compose_hash", "extract_lock", "lint_compose"]

MAX_COMPOSE_BYTES = 256 << 10
LOCK_PATH = "/run/sealtrain/recipe.lock.json"
# Sealed data, collateral and the broker's pin, put here by the operator. The guest trusts none of
# them: it checks each by digest or signature.
WORK = "/run-data"
_SOCKET = "/var/run/dstack.sock"
_SERVICE = "guest"
_CONFIG = "recipe_lock"


_DOCUMENT = "/run/sealtrain/app-compose.json"
_REPORTS = "/sys/kernel/config/tsm/report"


def _arguments(platform: str) -> list[str]:
    tee = None if platform == "simulator" else tee_of(platform)
    guest = _SOCKET
    if tee is not None and tee.device is not None:
        place = _REPORTS if tee.device.reports else f"/{tee.device.path}"
        guest = f"{platform}:{place}?compose={_DOCUMENT}"
    collateral = ("--collateral", f"file:{WORK}/collateral.json")
    return [
        *("train", LOCK_PATH, "--platform", platform, "--guest", guest, "--base", WORK),
        *(() if tee is not None and not tee.dcap else collateral),
        *("--broker", f"{WORK}/broker.yaml"),
        *("--data", f"{WORK}/sealed", "--out", f"{WORK}/out"),
    ]


def _hardware_of(hardware: Hardware) -> str:
    """The platform besides the simulator; dstack if the recipe names an image and no platform."""
    return next((name for name in hardware.platforms if name != "simulator"), "dstack")


_DELIMITER = "SEALTRAIN_RECIPE_LOCK"
_SCRIPT_HEAD = f"""\
#!/bin/bash
# SIMULATED — NOT ATTESTED. This recipe names no image, so no hardware guest may run it.
set -euo pipefail
mkdir -p /run/sealtrain
printf %s "$(cat <<'{_DELIMITER}'
"""
_SCRIPT_TAIL = f"""
{_DELIMITER}
)" > {LOCK_PATH}
exec sealtrain {" ".join(_arguments("simulator"))}
"""
_HINT = "write it with sealtrain lock and deploy exactly those bytes"


def compose_hash(data: bytes) -> str:
    """SHA-256 of a deployment document's raw bytes, 64 hex digits."""
    return sha256_hex(data)


def app_id_of(compose_bytes: bytes, lock: Lock) -> str:
    """40 hex digits: the KMS contract's address, else the first 20 bytes of the compose hash."""
    return lock.recipe.hardware.app_id or compose_hash(compose_bytes)[:40]


def build_compose(lock: Lock) -> bytes:
    """Canonical bytes of the deployment document of ``lock``.

    Raises:
        LockInvalid: The document would be larger than a guest accepts.
    """
    document = _fixed(lock.recipe.hardware) | {"name": lock.recipe.name}
    text = lock.to_bytes().decode("utf-8")
    if lock.recipe.hardware.image is None:
        document |= {"runner": "bash", "bash_script": _SCRIPT_HEAD + text + _SCRIPT_TAIL}
    else:
        services = _services(
            lock.recipe.hardware.image, text.replace("$", "$$"), _hardware_of(lock.recipe.hardware)
        )
        document |= {
            "runner": "docker-compose",
            "docker_compose_file": canonical_json(services).decode("utf-8"),
        }
    data = canonical_json(document)
    if len(data) > MAX_COMPOSE_BYTES:
        raise LockInvalid(
            "deployment document is too large",
            check="compose",
            got=f"{len(data)} bytes",
            expected=f"≤ {MAX_COMPOSE_BYTES}",
        )
    return data


def extract_lock(compose_bytes: bytes) -> bytes:
    """The lock's bytes out of a measured deployment document.

    Raises:
        LockInvalid: One of the module's checks fails; ``message`` names it.
    """
    document = _parse(compose_bytes, "deployment document", MAX_COMPOSE_BYTES)
    runner = document.get("runner")
    if runner == "docker-compose":
        body, text = "docker_compose_file", _lock_in_services(document)
    elif runner == "bash":
        body, text = "bash_script", _lock_in_script(document)
    else:
        raise _refusal("has a runner that sealtrain does not write", got=runner)
    lock_bytes = text.encode("utf-8", "surrogatepass")
    lock = parse_lock(lock_bytes)
    expected: dict[str, JsonValue] = _fixed(lock.recipe.hardware) | {
        "name": lock.recipe.name,
        "runner": runner,
        body: document[body],
    }
    _compare(document, expected, "deployment document")
    if build_compose(lock) != compose_bytes:
        raise _refusal("differs from the one that its lock gives")
    return lock_bytes


def lint_compose(compose_bytes: bytes) -> None:
    """Check a deployment document. Raises ``LockInvalid`` as ``extract_lock``."""
    extract_lock(compose_bytes)


def _fixed(hardware: Hardware) -> dict[str, JsonValue]:
    return {
        "manifest_version": 2,
        "kms_enabled": hardware.key_provider == "kms",
        "local_key_provider_enabled": hardware.key_provider == "local",
        "key_provider": hardware.key_provider,
        "key_provider_id": hardware.key_provider_id or "",
        "gateway_enabled": False,
        "public_logs": False,
        "public_sysinfo": False,
        "public_tcbinfo": True,
        "allowed_envs": [],
        "no_instance_id": False,
        "secure_time": True,
        "storage_fs": "zfs",
    }


def _services(image: str, content: str, platform: str) -> dict[str, JsonValue]:
    return {
        "services": {
            _SERVICE: {
                "image": image,
                "entrypoint": ["sealtrain"],
                "command": _arguments(platform),
                "working_dir": WORK,
                "configs": [{"source": _CONFIG, "target": LOCK_PATH}],
                # The guest's own attestation socket and its encrypted disk; nothing else.
                "volumes": [f"{_SOCKET}:{_SOCKET}", f"run-data:{WORK}"],
                "cap_drop": ["ALL"],
                "security_opt": ["no-new-privileges:true"],
                "read_only": True,
                "tmpfs": ["/tmp"],  # noqa: S108  # a path inside the guest, in its memory
                "restart": "no",
            }
        },
        "configs": {_CONFIG: {"content": content}},
        "volumes": {"run-data": {}},
    }


def _lock_in_services(document: dict[str, JsonValue]) -> str:
    what = "docker compose file"
    text = document.get("docker_compose_file")
    if not isinstance(text, str):
        raise _refusal("has no docker_compose_file")
    compose = _parse(text.encode("utf-8", "surrogatepass"), what, MAX_COMPOSE_BYTES)
    services = compose.get("services")
    if not isinstance(services, dict) or set(services) != {_SERVICE}:
        raise _refusal(f"must have one service, {_SERVICE!r}", what=what)
    service = services[_SERVICE]
    image = service.get("image") if isinstance(service, dict) else None
    if not isinstance(image, str) or "@sha256:" not in image:
        raise _refusal("must name its image by digest, name@sha256:…", what=what)
    try:
        content = compose["configs"][_CONFIG]["content"]
    except (KeyError, TypeError):
        content = None
    if not isinstance(content, str):
        raise _refusal("has no lock in its configs", what=what)
    template = _services(image, content, _platform_named_in(content))
    _compare(service, template["services"][_SERVICE], f"{what}, service {_SERVICE}")
    _compare(compose, template, what)
    if "$" in content.replace("$$", ""):
        raise _refusal("would interpolate a variable into the lock", what=what)
    return content.replace("$$", "$")


def _platform_named_in(content: str) -> str:
    """The platform whose command to compare; an unreadable lock is refused afterwards."""
    try:
        lock = parse_lock(content.replace("$$", "$").encode("utf-8", "surrogatepass"))
    except (LockInvalid, DataInvalid):
        return "dstack"
    return _hardware_of(lock.recipe.hardware)


def _lock_in_script(document: dict[str, JsonValue]) -> str:
    script = document.get("bash_script")
    if not isinstance(script, str):
        raise _refusal("has no bash_script")
    text = script.removeprefix(_SCRIPT_HEAD).removesuffix(_SCRIPT_TAIL)
    if _SCRIPT_HEAD + text + _SCRIPT_TAIL != script or "\n" in text:
        raise _refusal("has another bash_script than sealtrain writes")
    return text


def _parse(data: bytes, what: str, max_bytes: int) -> dict[str, JsonValue]:
    try:
        value = parse_json(data, max_bytes=max_bytes)
    except DataInvalid as error:
        raise _refusal(f"is not readable: {error.message}", what=what) from error
    if not isinstance(value, dict):
        raise _refusal("is not a JSON object", what=what)
    return value


def _compare(got: dict[str, Any], expected: dict[str, Any], what: str) -> None:
    for name in sorted(got.keys() - expected.keys()):
        raise _refusal(f"has a field that is not allowed: {name!r}", what=what)
    for name in sorted(expected.keys() - got.keys()):
        raise _refusal(f"lacks the field {name!r}", what=what)
    for name, value in expected.items():
        if got[name] != value or type(got[name]) is not type(value):
            raise _refusal(f"has another {name!r} than its lock gives", what=what)


def _refusal(problem: str, *, what: str = "deployment document", got: object = None) -> LockInvalid:
    shown = None if got is None else repr(got)[:60]
    return LockInvalid(f"{what} {problem}", check="compose", got=shown, hint=_HINT)
