"""A dstack guest before it asks for keys: its agent, its log, its TPM and its disk.

What its agent shows is compared with itself: the document with its hash, the log with the quote's
registers, the events with those that keys are released for. Nothing here is signed for; a verifier
decides. Which machine it is, a guest on a cloud reads in the firmware's tables, as the agent does.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from sealtrain.attest.doctor.finding import Finding, text_of
from sealtrain.attest.doctor.guest import ProcessorEvidence
from sealtrain.attest.dstack.client import DstackClient
from sealtrain.attest.dstack.exhibit import DstackQuote
from sealtrain.attest.dstack.verify import replay_log
from sealtrain.errors import SealtrainError

Agent = Callable[[str], DstackClient]
"""Opens the agent at a socket."""

_VENDOR = "sys/class/dmi/id/sys_vendor"
_CLOUDS: Final = {"Google": "dstack-gcp-tdx", "Amazon EC2": "dstack-aws-nitro-tpm"}
"""Vendor in the firmware's tables → kind of evidence there, which has a TPM's quote in it."""
_TPMS = ("dev/tpmrm0", "dev/tpm0")
_TPM_CLASS = "sys/class/tpm"
_DISK = "run-data"
_LEAST_FREE = 10 << 30
"""Bytes: a base model and its checkpoints; a smaller disk may do for a small run."""
_TIMEOUT_S = 30.0
_TOPIC = "agent"
_NO_EVIDENCE = "no key is released"


def _client(socket: str) -> DstackClient:
    return DstackClient(socket, timeout=_TIMEOUT_S)


def agent_findings(
    root: Path, socket: Path, shown: ProcessorEvidence | None, *, agent: Agent = _client
) -> Iterator[Finding]:
    """What the guest's agent says, and what a dstack guest needs besides.

    Args:
        root: Folder that is taken for ``/``.
        socket: Of the agent.
        shown: Evidence that the agent made; ``None`` where it made none.
        agent: Opens the agent.
    """
    client = agent(str(socket))
    try:
        version, generation = client.version(), client.api
    except SealtrainError as error:
        yield _report_refused("version", error)
    else:
        yield _version(version, generation)
        yield _document(client)
    cloud = _CLOUDS.get(text_of(root / _VENDOR).strip())
    exhibit = None if shown is None else shown.exhibit
    yield _kind(None if exhibit is None else exhibit.kind, cloud)
    if isinstance(exhibit, DstackQuote):
        yield _log(exhibit)
        yield _events(exhibit)
    yield _tpm(root, cloud)
    yield _disk(root)


def _version(version: str | None, generation: str) -> Finding:
    known = version is not None
    return Finding(
        topic=_TOPIC,
        name="version",
        level="ok" if known else "note",
        found=f"{version or 'not stated'}, guest API {generation}",
        refused="" if known else "nothing; an agent before 0.5.6 states none",
        fix="" if known else "use a newer guest image, if its evidence is refused",
    )


def _document(client: DstackClient) -> Finding:
    try:
        info = client.info()
    except SealtrainError as error:
        return _report_refused("document", error)
    digest = hashlib.sha256(info.app_compose).hexdigest()
    same = digest == info.compose_hash
    return Finding(
        topic=_TOPIC,
        name="document",
        level="ok" if same else "refused",
        found=f"compose hash {digest}",
        refused="" if same else f"{_NO_EVIDENCE} (compose-hash-mismatch)",
        fix="" if same else f"deploy again: the agent states {info.compose_hash[:64]}",
    )


def _kind(kind: str | None, cloud: str | None) -> Finding:
    if kind is None:
        return Finding(
            topic=_TOPIC,
            name="kind",
            level="missing",
            found="no evidence",
            refused=_NO_EVIDENCE,
            fix="mend what the line evidence says",
        )
    return Finding(
        topic=_TOPIC,
        name="kind",
        level="ok" if cloud is None else "note",
        found=kind if cloud is None else f"{kind}, on a machine of the kind {cloud}",
        refused="" if cloud is None else "nothing; a policy for that kind asks for the TPM too",
        fix="" if cloud is None else f"collect evidence of the kind {cloud} for such a policy",
    )


def _log(exhibit: DstackQuote) -> Finding:
    firmware = sum(entry.imr < 3 for entry in exhibit.log)
    found = f"{firmware} of the firmware, {len(exhibit.log) - firmware} of the guest"
    return Finding(
        topic=_TOPIC,
        name="event log",
        level="ok" if firmware else "note",
        found=found,
        refused="" if firmware else "nothing; RTMR0 to 2 are compared as the quote has them",
        fix="" if firmware else "pin the registers of the image: sealtrain image measure",
    )


def _events(exhibit: DstackQuote) -> Finding:
    quote = exhibit.quote
    try:
        measured = replay_log(exhibit.log, quote.rtmr, quote.mr_config_id)
    except SealtrainError as error:
        return _report_refused("RTMR3 events", error)
    return Finding(
        topic=_TOPIC,
        name="RTMR3 events",
        level="ok",
        found=f"replay; app id {measured.app_id}, keys by {measured.key_provider_name}",
    )


def _tpm(root: Path, cloud: str | None) -> Finding:
    # A container is given no device; the kernel's list of them is shown to it.
    device = next((f"/{name}" for name in _TPMS if (root / name).exists()), None)
    listed = device is not None or any((root / _TPM_CLASS).glob("tpm[0-9]*"))
    lacking = cloud is not None and not listed
    return Finding(
        topic=_TOPIC,
        name="TPM",
        level="missing" if lacking else "ok",
        found=device or ("the machine's, asked by its agent" if listed else "none"),
        refused=f"every policy for {cloud}" if lacking else "",
        fix="start the machine with its TPM (vTPM, NitroTPM) on" if lacking else "",
    )


def _disk(root: Path) -> Finding:
    folder = root / _DISK
    try:
        free = shutil.disk_usage(folder).free if os.access(folder, os.W_OK) else None
    except OSError:
        free = None
    if free is None:
        return Finding(
            topic=_TOPIC,
            name="disk",
            level="missing",
            found=f"no /{_DISK} that this user can write",
            refused="the run: it keeps its checkpoints and what it fetched there",
            fix="start the container with the deployment document, which mounts it",
        )
    enough = free >= _LEAST_FREE
    return Finding(
        topic=_TOPIC,
        name="disk",
        level="ok" if enough else "note",
        found=f"{free / (1 << 30):.1f} GiB free in /{_DISK}",
        refused="" if enough else "nothing; base model and checkpoints have to fit",
        fix="" if enough else "start the machine with a larger data disk",
    )


def _report_refused(name: str, error: SealtrainError) -> Finding:
    return Finding(
        topic=_TOPIC,
        name=name,
        level="refused",
        found=error.message if error.got is None else f"{error.message}: {error.got}",
        refused=f"{_NO_EVIDENCE} ({error.code})",
        fix=error.hint or "read the log of the guest's agent on the machine's console",
    )
