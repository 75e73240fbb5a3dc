"""``deploy parts`` and ``deploy adopt``: to a platform that writes documents of its own, and back.

Such a platform takes the docker compose file and a launch script, and answers with a document whose
hash is another. What it added is judged by a closed list (``recipe.adopted``); the bytes that were
judged are the bytes that are written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from sealtrain.attest.dstack.client import DstackClient
from sealtrain.attest.errors import ComposeHashMismatch
from sealtrain.base.canonical import parse_json
from sealtrain.base.files import atomic_folder, atomic_write, read_bounded
from sealtrain.base.limits import MAX_DEPLOYMENT_BYTES
from sealtrain.base.visible_text import escape_hidden
from sealtrain.broker.service.deployment import read_broker_document
from sealtrain.cli.output import Json, emit
from sealtrain.errors import DataInvalid, UsageError
from sealtrain.recipe.adopted_document import EMPTY_SCRIPT, SCRIPT_FIELD, Addition, script_digest
from sealtrain.recipe.compose import (
    build_compose,
    compose_hash,
    launch_scripts,
)
from sealtrain.recipe.document import frame_of, require_same
from sealtrain.recipe.errors import LockInvalid
from sealtrain.recipe.lock import LockedRecipe

COMPOSE_FILE: Final = "docker-compose.yaml"
SCRIPT_FILE: Final = "pre-launch.sh"
_MAX_ANSWER_BYTES: Final = 4 << 20
_DIGEST = re.compile(r"[0-9a-f]{64}")

Deployment = Annotated[
    Path,
    typer.Option(help="The document that sealtrain wrote: app-compose.json, or a broker's."),
]


def parts(
    deployment: Deployment,
    out: Annotated[Path, typer.Option(help="Folder to make.")] = Path("parts"),
    as_json: Json = False,
) -> None:
    """Write what a platform asks for that makes its own document: Compose file, launch script.

    The script does nothing. A platform that gets none runs one of its own, as root, before your
    container.
    """
    data = read_bounded(deployment, MAX_DEPLOYMENT_BYTES)
    _read_expected(data)
    document = parse_json(data, max_bytes=MAX_DEPLOYMENT_BYTES)
    if not isinstance(document, dict) or frame_of(data).image is None:
        raise UsageError(
            "the document names no image, so no platform can start it",
            check="deployment",
            got=str(deployment),
            hint="name the image's digest in hardware.image of the recipe, and lock again",
        )
    with atomic_folder(out) as folder:
        (folder / COMPOSE_FILE).write_bytes(str(document["docker_compose_file"]).encode())
        (folder / SCRIPT_FILE).write_bytes(EMPTY_SCRIPT.encode())
    files = {"compose_file": str(out / COMPOSE_FILE), "script": str(out / SCRIPT_FILE)}
    emit(
        as_json,
        {**files, "script_sha256": script_digest(EMPTY_SCRIPT)},
        [f"Compose file   {files['compose_file']}", f"launch script  {files['script']}"],
    )


def adopt(
    theirs: Annotated[
        Path,
        typer.Argument(
            metavar="DOCUMENT",
            help="The platform's document, the answer to Info with it, or the agent's socket.",
        ),
    ],
    deployment: Deployment,
    accepted: Annotated[
        list[str] | None,
        typer.Option(
            "--accept-script",
            metavar="SHA256",
            help="Digest of a launch script that you have read and that the lock names; repeat.",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="File to write.")] = Path("adopted.json"),
    as_json: Json = False,
) -> None:
    """Judge the document that a platform made of yours, and write it for owners to approve.

    Prints each field that the platform added. Refuses whatever could change what runs, who sees it
    or which keys it gets. The file has exactly the bytes that were judged.
    """
    for digest in accepted or ():
        if not _DIGEST.fullmatch(digest):
            raise UsageError(
                "not the digest of a script",
                check="--accept-script",
                got=digest[:80],
                expected="64 lower-case hex digits",
            )
    expected, named, app_id = _read_expected(read_bounded(deployment, MAX_DEPLOYMENT_BYTES))
    data, stated = _read(theirs)
    found = compose_hash(data)
    if stated is not None and stated != found:
        raise ComposeHashMismatch(
            "the answer states another compose hash than its document has",
            check="compose hash",
            got=str(stated)[:64],
            expected=found,
        )
    added = require_same(data, expected, named)
    _require_accepted(added, accepted or ())
    atomic_write(out, data)
    emit(
        as_json,
        {
            "deployment": str(out),
            "compose_hash": found,
            "app_id": app_id or found[:40],
            "added": [
                {"field": addition.field, "value": addition.value, "changes": addition.changes}
                for addition in added
            ],
        },
        _lines(out, found, app_id or found[:40], added),
    )


def _read_expected(data: bytes) -> tuple[bytes, tuple[str, ...], str | None]:
    """What sealtrain writes, scripts that its lock names, and the app id where it is fixed."""
    if frame_of(data).words[:1] != ("guest",):
        return read_broker_document(data).to_bytes(), (), None
    lock = LockedRecipe.parse(data).lock
    return build_compose(lock), launch_scripts(lock), lock.recipe.hardware.app_id


def _read(source: Path) -> tuple[bytes, object]:
    """The platform's document, read once, and the compose hash that is stated beside it."""
    if source.is_socket():
        info = DstackClient(str(source)).info()
        return info.app_compose, info.compose_hash
    data = read_bounded(source, _MAX_ANSWER_BYTES)
    answer = _object(data)
    if "runner" in answer:
        return data, None
    holder: Any = answer
    if "app_compose" not in answer:
        inner = answer.get("tcb_info")
        holder = _object(inner.encode()) if isinstance(inner, str) else inner
    text = holder.get("app_compose") if isinstance(holder, dict) else None
    if not isinstance(text, str):
        raise LockInvalid(
            "neither a deployment document nor an answer to Info that has one",
            check="document",
            got=str(source),
            hint="give the file that the platform shows, or the answer of its guest agent",
        )
    return text.encode(), answer.get("compose_hash")


def _object(data: bytes) -> dict[str, Any]:
    try:
        value = parse_json(data, max_bytes=_MAX_ANSWER_BYTES)
    except DataInvalid as error:
        raise LockInvalid(
            f"deployment document is not readable: {error.message}", check="document"
        ) from error
    if not isinstance(value, dict):
        raise LockInvalid("deployment document is not a JSON object", check="document")
    return value


def _require_accepted(added: Sequence[Addition], accepted: Sequence[str]) -> None:
    """A script that is not ours needs the caller's word besides the lock's."""
    for addition in added:
        if addition.field != SCRIPT_FIELD or addition.value == EMPTY_SCRIPT:
            continue
        digest = script_digest(str(addition.value))
        if digest not in accepted:
            raise LockInvalid(
                "the platform runs a script of its own, as root, before your container",
                check="document",
                got=digest,
                hint=f"read it, then repeat with --accept-script {digest}",
                field=SCRIPT_FIELD,
            )


def _lines(out: Path, found: str, app_id: str, added: Sequence[Addition]) -> Iterator[str]:
    for addition in added:
        script = addition.field == SCRIPT_FIELD
        value = f"SHA-256 {script_digest(str(addition.value))}" if script else repr(addition.value)
        yield f"added         {addition.field} = {escape_hidden(value, 90)}"
        yield f"              can change {addition.changes}"
    if not added:
        yield "added         nothing: these are the bytes that sealtrain wrote"
    yield f"document      {out}"
    yield f"compose hash  {found}"
    yield f"app id        {app_id}"
