"""The frame of deployment documents: files whose bytes are measured, and one command.

The frame is the same for guests and brokers (spec/deployment-document.md, template 3). A document
without an image is a script that only the simulator runs; with one it is a docker-compose file, for
hardware or for the simulator, and never for both. A script writes the files where its command finds
them. A container gets none of them: Docker Compose refuses to write into a container whose root is
read-only, so its program reads them out of the document that its guest measured (``file_within``).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sealtrain.attest.registry import tee_of
from sealtrain.base.canonical import JsonValue, canonical_json, parse_json
from sealtrain.base.platforms import Platform
from sealtrain.errors import DataInvalid
from sealtrain.recipe.adopted_document import SCRIPT_FIELD, Addition, require_additions
from sealtrain.recipe.errors import LockInvalid

MAX_DOCUMENT_BYTES: Final = 256 << 10
TEMPLATE: Final = 3
FROM_DOCUMENT: Final = "document:"
"""What a command says before the name of a file that is in the measured document alone."""

_SOCKET = "/var/run/dstack.sock"
_REPORTS = "/sys/kernel/config/tsm/report"
_GIVEN = "/run/sealtrain/"
_KEPT = "/run-data"
_USER_CONFIG = "/dstack/user_config"
_VSOCK = "vsock:8475"
_LABEL = "sealtrain.document"
_MARK = "SEALTRAIN_FILE"
_HEAD = f"""\
#!/bin/bash
# SIMULATED — NOT ATTESTED. This document names no image, so no hardware guest may run it.
# sealtrain deployment document {TEMPLATE}
set -euo pipefail
"""
_BLOCK = re.compile(
    rf"printf %s \"\$\(cat <<'{_MARK}'\n([^\n]*)\n{_MARK}\n\)\" > ([a-z]+(?:\.[a-z]+)+)\n"
)
_BREAKS = re.compile("[\x00-\x1f\x7f\x85\u2028\u2029\ufeff]")
"""What one reader of the three (JSON, YAML, bash) takes for the end of a line, or drops."""
_COMMAND = re.compile(r"exec sealtrain [^\n]+\n")
_HINT = "deploy exactly the bytes that sealtrain wrote; another version of it reads other documents"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandPaths:
    """Where a document's command finds things; on the simulator beside each other.

    Attributes:
        measured: What stands before the name of a file whose bytes are measured: nothing, or
            ``FROM_DOCUMENT``.
        kept: The same for what a guest keeps and what it is given.
        guest: Address of the guest's evidence (``attest.guest``).
        collateral: Whether its quotes need collateral.
        ticket: The run ticket: a path, or where an enclave's parent sends it.
        mounts: Volumes of a container.
        devices: Devices of a container.
        user: Of a container that is not the image's: Linux lets user 0 alone ask for reports.
    """

    measured: str
    kept: str
    guest: str
    collateral: bool
    ticket: str
    mounts: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    user: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What a document starts, and in which guest.

    Attributes:
        name: Of the document.
        service: Of the container.
        platform: That it is for.
        image: Of the container, by digest; ``None`` for a script, which only the simulator runs.
        key_provider: ``none``, ``kms``, ``local`` or ``tpm``.
        key_provider_id: Its pin, hex; empty without one.
        files: Name → text of one line.
        words: After ``sealtrain``.
        ports: That others reach from outside.
        gpu: The container gets the machine's NVIDIA GPUs.
    """

    name: str
    service: str
    platform: Platform
    image: str | None
    key_provider: str
    key_provider_id: str
    files: Mapping[str, str]
    words: tuple[str, ...]
    ports: tuple[int, ...] = ()
    gpu: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What a document says, before it is compared with the one that its files give.

    Attributes:
        files: Name → text of the measured files.
        words: Of the command, after ``sealtrain``.
        key_provider_id: Pin of the key provider; empty without one.
        image: Of the container; ``None`` for a script.
        script: That the simulator runs; ``None`` for a container.
        compose: The docker compose file, as parsed; ``None`` for a script.
        adopted: It has a launch script, which a platform runs (``recipe.adopted``).
    """

    files: Mapping[str, str]
    words: tuple[str, ...]
    key_provider_id: str
    image: str | None
    script: str | None
    compose: Mapping[str, Any] | None
    adopted: bool = False


def layout_of(platform: Platform, *, image: str | None) -> CommandPaths:
    """Where things are in a guest of a platform, with an image or without one."""
    if image is None:
        return CommandPaths(
            measured="", kept="", guest="guest.sock", collateral=True, ticket="ticket.json"
        )
    # In a simulated guest a container finds everything where it is on dstack.
    tee = tee_of("dstack" if platform == "simulator" else platform)
    ticket = f"{_GIVEN}ticket.json"
    if tee.device is None:
        return CommandPaths(
            measured=FROM_DOCUMENT,
            kept=f"{_KEPT}/",
            guest=_SOCKET,
            collateral=True,
            ticket=ticket,
            mounts=(f"{_SOCKET}:{_SOCKET}", f"{_USER_CONFIG}:{ticket}:ro"),
        )
    document = f"{_GIVEN}app-compose.json"
    if not tee.device.reports:  # an enclave has no disk that others write
        ticket = _VSOCK
    device = f"/{tee.device.path}"
    place = _REPORTS if tee.device.reports else device
    return CommandPaths(
        measured=FROM_DOCUMENT,
        kept=f"{_KEPT}/",
        guest=f"{platform}:{place}?compose={document}",
        collateral=tee.dcap,
        ticket=ticket,
        mounts=(
            *((f"{_REPORTS}:{_REPORTS}",) if tee.device.reports else ()),
            f"{document}:{document}:ro",
            *((f"{ticket}:{ticket}:ro",) if tee.device.reports else ()),
        ),
        devices=() if tee.device.reports else (f"{device}:{device}",),
        user="0:0" if tee.device.reports else None,
    )


def write_document(program: Program) -> bytes:
    """The document's canonical bytes.

    Raises:
        LockInvalid: They would be more than a guest accepts, or a file is not one line of text.
    """
    for name, text in program.files.items():
        if not text or text == _MARK or _BREAKS.search(text):
            raise LockInvalid(f"{name} is not one line of text", check="document")
    if program.image is None:
        runner: dict[str, JsonValue] = {"runner": "bash", "bash_script": _script(program)}
    else:
        services = canonical_json(_services(program, program.image)).decode("utf-8")
        runner = {"runner": "docker-compose", "docker_compose_file": services}
    data = canonical_json(_write_fixed_fields(program) | runner)
    if len(data) > MAX_DOCUMENT_BYTES:
        raise LockInvalid(
            "deployment document is too large",
            check="document",
            got=f"{len(data)} bytes",
            expected=f"≤ {MAX_DOCUMENT_BYTES}",
        )
    return data


def frame_of(data: bytes) -> Frame:
    """What a document's frame holds.

    Nothing else is checked: a reader writes the document again and compares (``require_same``).

    Raises:
        LockInvalid: Not strict JSON, or another frame than one of template 3.
    """
    document = _parse(data, "deployment document")
    key_provider_id = document.get("key_provider_id")
    if not isinstance(key_provider_id, str):
        raise _refusal("lacks the field 'key_provider_id'")
    runner = document.get("runner")
    if runner == "bash":
        script = document.get("bash_script")
        files, words = _in_script(script)
        return Frame(
            files=files,
            words=words,
            key_provider_id=key_provider_id,
            image=None,
            script=script,
            compose=None,
        )
    if runner == "docker-compose":
        compose = _services_in(document)
        files, words, image = _in_services(compose)
        return Frame(
            files=files,
            words=words,
            key_provider_id=key_provider_id,
            image=image,
            script=None,
            compose=compose,
            adopted=SCRIPT_FIELD in document,
        )
    raise _refusal("has a runner that sealtrain does not write", got=runner)


def file_within(data: bytes, name: str) -> bytes:
    """A file of a document that the guest measured.

    Args:
        data: The document's bytes, as the guest shows them.
        name: Of the file, without a folder.

    Raises:
        LockInvalid: As ``frame_of``, or the document has no such file.
    """
    files = frame_of(data).files
    if name not in files:
        raise LockInvalid(
            "the measured document has no such file",
            check="document",
            got=name[:60],
            expected=", ".join(files)[:60] or "no file",
            hint=_HINT,
        )
    return files[name].encode("utf-8", "surrogatepass")


def require_same(
    data: bytes, expected: bytes, scripts: Collection[str] = ()
) -> tuple[Addition, ...]:
    """Compare a document with the one that its files give.

    Args:
        data: The document.
        expected: The document that its files give.
        scripts: Digests of launch scripts of a platform that are accepted.

    Returns:
        What a platform added to the document (``recipe.adopted``); nothing to most documents.

    Raises:
        LockInvalid: They differ in something else; the message names the field where it can.
    """
    if data == expected:
        return ()
    got, wanted = _parse(data, "deployment document"), _parse(expected, "deployment document")
    if SCRIPT_FIELD in got and got.get("runner") == wanted["runner"] == "docker-compose":
        return require_additions(data, got, wanted, scripts)
    if got.get("runner") == wanted["runner"] == "docker-compose":
        services, template = _services_in(got), _services_in(wanted)
        got, wanted = (
            {name: value for name, value in side.items() if name != "docker_compose_file"}
            for side in (got, wanted)
        )
        (service,) = template["services"]
        _compare(
            services["services"].get(service), template["services"][service], f"service {service}"
        )
        _compare(services, template, "docker compose file")
    _compare(got, wanted, "deployment document")
    raise _refusal("differs from the one that its files give")


def _write_fixed_fields(program: Program) -> dict[str, JsonValue]:
    return {
        "manifest_version": 2,
        "name": program.name,
        "kms_enabled": program.key_provider == "kms",
        "local_key_provider_enabled": program.key_provider == "local",
        "key_provider": program.key_provider,
        "key_provider_id": program.key_provider_id,
        "gateway_enabled": False,
        "public_logs": False,
        "public_sysinfo": False,
        "public_tcbinfo": True,
        "allowed_envs": [],
        "no_instance_id": False,
        "secure_time": True,
        "storage_fs": "zfs",
    }


def _script(program: Program) -> str:
    blocks = [
        f"printf %s \"$(cat <<'{_MARK}'\n{text}\n{_MARK}\n)\" > {name}\n"
        for name, text in program.files.items()
    ]
    return f"{_HEAD}{''.join(blocks)}exec sealtrain {shlex.join(program.words)}\n"


def _services(program: Program, image: str) -> dict[str, JsonValue]:
    layout = layout_of(program.platform, image=image)
    service: dict[str, JsonValue] = {
        "image": image,
        "labels": {_LABEL: str(TEMPLATE)},
        "entrypoint": ["sealtrain"],
        "command": list(program.words),
        "working_dir": _KEPT,
        # The guest's own evidence, its ticket and its encrypted disk; nothing else.
        "volumes": [*layout.mounts, f"run-data:{_KEPT}"],
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "read_only": True,
        # Kernels that are compiled in the guest are loaded from there.
        "tmpfs": ["/tmp:exec"],  # noqa: S108  # a path inside the guest, in its memory
        "shm_size": "8gb",  # for ranks and loaders; what is not used costs nothing
        "restart": "no",
    }
    if layout.user is not None:
        service["user"] = layout.user
    if layout.devices:
        service["devices"] = list(layout.devices)
    if program.ports:
        service["ports"] = [f"{port}:{port}" for port in program.ports]
    if program.gpu:
        gpus: JsonValue = [{"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}]
        service["deploy"] = {"resources": {"reservations": {"devices": gpus}}}
    return {
        "services": {program.service: service},
        # No service refers to them. Compose would interpolate a single dollar.
        "configs": {
            name: {"content": text.replace("$", "$$")} for name, text in program.files.items()
        },
        "volumes": {"run-data": {}},
    }


def _in_script(script: object) -> tuple[dict[str, str], tuple[str, ...]]:
    if not isinstance(script, str) or not script.startswith(_HEAD):
        raise _refusal("has another bash_script than sealtrain writes")
    files: dict[str, str] = {}
    at = len(_HEAD)
    while block := _BLOCK.match(script, at):
        text, name = block.groups()
        if name in files:
            raise _refusal("writes a file twice in its bash_script", got=name)
        files[name], at = text, block.end()
    if not _COMMAND.fullmatch(script, at):
        raise _refusal("has another bash_script than sealtrain writes")
    try:
        return files, tuple(shlex.split(script[at:])[2:])
    except ValueError:
        raise _refusal("has another bash_script than sealtrain writes") from None


def _in_services(compose: dict[str, Any]) -> tuple[dict[str, str], tuple[str, ...], str]:
    what = "docker compose file"
    ((name, service),) = compose["services"].items()
    if not isinstance(service, dict):
        raise _refusal(f"has no service {name!r}", what=what)
    image, labels = service.get("image"), service.get("labels")
    if not isinstance(image, str) or "@sha256:" not in image:
        raise _refusal("must name its image by digest, name@sha256:…", what=what)
    if labels != {_LABEL: str(TEMPLATE)}:
        raise _refusal(f"is not of template {TEMPLATE}: 'labels'", what=what, got=labels)
    words = service.get("command")
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise _refusal("has no 'command'", what=what)
    configs = compose.get("configs")
    if not isinstance(configs, dict):
        raise _refusal("has no 'configs'", what=what)
    files = {}
    for file, config in configs.items():
        content = config.get("content") if isinstance(config, dict) else None
        if not isinstance(content, str):
            raise _refusal(f"has no content of {file!r} in its 'configs'", what=what)
        if "$" in content.replace("$$", ""):
            raise _refusal(f"would interpolate a variable into {file!r}", what=what)
        files[file] = content.replace("$$", "$")
    return files, tuple(words), image


def _services_in(document: dict[str, Any]) -> dict[str, Any]:
    what = "docker compose file"
    text = document.get("docker_compose_file")
    if not isinstance(text, str):
        raise _refusal("has no docker_compose_file")
    compose = _parse(text.encode("utf-8", "surrogatepass"), what)
    services = compose.get("services")
    if not isinstance(services, dict) or len(services) != 1:
        raise _refusal("must have one service", what=what)
    return compose


def _parse(data: bytes, what: str) -> dict[str, Any]:
    try:
        value = parse_json(data, max_bytes=MAX_DOCUMENT_BYTES)
    except DataInvalid as error:
        raise _refusal(f"is not readable: {error.message}", what=what) from error
    if not isinstance(value, dict):
        raise _refusal("is not a JSON object", what=what)
    return value


def _compare(got: object, expected: dict[str, Any], what: str) -> None:
    if not isinstance(got, dict):
        raise _refusal("is missing", what=what)
    for name in sorted(got.keys() - expected.keys()):
        raise _refusal(f"has a field that is not allowed: {name!r}", what=what)
    for name in sorted(expected.keys() - got.keys()):
        raise _refusal(f"lacks the field {name!r}", what=what)
    for name, value in expected.items():
        if got[name] != value or type(got[name]) is not type(value):
            raise _refusal(f"has another {name!r} than its files give", what=what)


def _refusal(problem: str, *, what: str = "deployment document", got: object = None) -> LockInvalid:
    shown = None if got is None else repr(got)[:60]
    return LockInvalid(f"{what} {problem}", check="document", got=shown, hint=_HINT)
