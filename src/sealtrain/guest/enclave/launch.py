"""What a parent instance may start, judged before anything is: document, image file, ticket."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from sealtrain.base.canonical import parse_json
from sealtrain.base.hostport import host_and_port
from sealtrain.client.errors import TicketInvalid
from sealtrain.client.ticket import BROKER_ROLE, RunTicket
from sealtrain.errors import DataInvalid, ImageRefused
from sealtrain.guest.enclave.handedfiles import (
    COLLATERAL,
    names_of,
    read_message,
    write_message,
)
from sealtrain.guest.enclave.plan import program_of
from sealtrain.guest.enclave.ports import PROXY_URL
from sealtrain.image.machine.enclavebuild import least_memory
from sealtrain.image.machine.enclavefile import METADATA, EnclaveFile
from sealtrain.recipe.document import Frame
from sealtrain.recipe.terms import EnclaveConfig

_MAX_METADATA_BYTES: Final = 1 << 20
_KEEPS_ITS_OUTPUTS: Final = ("train", "evaluate")
_HTTPS_PORT: Final = 443
Address = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class EnclaveLaunch:
    """What a parent starts, every part of it judged.

    Attributes:
        eif: The image file.
        document: Bytes of the deployment document.
        ticket: Bytes of the ticket, with the tunnel in it.
        processors: Of the enclave.
        memory_mib: Of the enclave.
        servers: That tunnels lead to.
        ports: Of the document.
        files: Message with the files of a broker; ``None`` where the document names none.
    """

    eif: Path
    document: bytes
    ticket: bytes
    processors: int
    memory_mib: int
    servers: frozenset[Address]
    ports: tuple[int, ...]
    files: bytes | None = None


def plan_launch(
    eif: Path,
    data: bytes,
    document: bytes,
    frame: Frame,
    ticket: RunTicket,
    *,
    config: EnclaveConfig | None,
    reach: Collection[str] = (),
    files: Mapping[str, bytes] | None = None,
) -> EnclaveLaunch:
    """Judge what is to be started.

    Args:
        eif: Path of the image file.
        document: Bytes of the deployment document, whose rules were checked.
        frame: Of the document.
        ticket: For the guest.
        config: Of the recipe; without it, the defaults of the image file count.
        reach: Further servers, ``HOST:PORT``.
        files: Files of a broker, by the names that its document gives.

    Raises:
        DataInvalid: A file that the document does not name, or files of more than a MiB.
        ImageRefused: The file is no image, is of another image than the document names, or has
            too little memory.
        LockInvalid: The document is for another platform.
        TicketInvalid: The ticket is for something else, or names what no enclave reaches.
        UsageError: A server is not written as one.
    """
    file = EnclaveFile(data)
    program = program_of(frame, _image_of(file))
    servers = {address(text) for text in reach}
    servers |= _servers_of(ticket)
    _check_ticket(frame, ticket, files or ())
    names, message = names_of(frame), write_message(files or {})
    read_message(message, names)  # as the enclave will
    memory = file.memory >> 20 if config is None else config.memory_mib
    least = least_memory(len(data))
    if memory < least:
        raise ImageRefused(
            "the enclave would have too little memory for its image",
            check="memory",
            got=f"{memory} MiB",
            expected=f"at least {least} MiB, four times the image",
            hint="write as much into hardware.enclave of the recipe",
        )
    return EnclaveLaunch(
        eif=eif,
        document=document,
        ticket=ticket.model_copy(update={"outbound_proxy": PROXY_URL}).to_bytes(),
        processors=file.processors if config is None else config.processors,
        memory_mib=memory,
        servers=frozenset(servers),
        ports=program.ports,
        files=message if names else None,
    )


def address(text: str) -> Address:
    """Host in lower case and port of ``HOST:PORT``.

    Raises:
        UsageError: The text is no ``HOST:PORT``.
    """
    host, port = host_and_port(text)
    return host.lower(), port


def _image_of(file: EnclaveFile) -> str:
    """The container image that an image file says it is of; its init says so again, measured.

    Raises:
        ImageRefused: It says none: another program wrote it.
    """
    found = file.of_kind(METADATA)
    if len(found) == 1 and len(found[0]) <= _MAX_METADATA_BYTES:
        try:
            said = parse_json(bytes(found[0]), max_bytes=_MAX_METADATA_BYTES)
        except DataInvalid:
            said = None
        if isinstance(said, dict) and isinstance(name := said.get("ImageName"), str):
            return name
    raise ImageRefused(
        "the enclave image file names no container image",
        check="EIF",
        hint="write one with sealtrain image eif",
    )


def _check_ticket(frame: Frame, ticket: RunTicket, files: Collection[str]) -> None:
    of_broker = frame.words[:1] == (BROKER_ROLE,)
    if of_broker != (ticket.role == BROKER_ROLE):
        raise TicketInvalid(
            "the run ticket is not for this document",
            check="role",
            got=ticket.role,
            expected=BROKER_ROLE if of_broker else "a role of the recipe",
        )
    if ticket.outbound_proxy not in (None, PROXY_URL):
        raise TicketInvalid(
            "an enclave reaches servers through its parent alone",
            check="outbound_proxy",
            got=ticket.outbound_proxy,
            expected=f"{PROXY_URL}, or none",
            hint="leave --outbound-proxy out",
        )
    if ticket.peers or ticket.holders:
        raise TicketInvalid(
            "an enclave reaches servers of https alone, and no peers",
            check="peers" if ticket.peers else "holders",
            hint="recipes of several machines need another platform",
        )
    if of_broker and ticket.collateral is None and COLLATERAL not in files:
        raise TicketInvalid(
            "a broker in an enclave has no file of collateral",
            check="collateral",
            got="none",
            expected="the URL of a service, or the file",
            hint="write a ticket with --collateral https://…, or hand the file in with --file "
            f"{COLLATERAL}=FILE",
        )
    if ticket.role in _KEEPS_ITS_OUTPUTS and ticket.store is None:
        raise TicketInvalid(
            "what the run makes would end with the enclave",
            check="store",
            got="none",
            expected="the URL of an output store",
            hint="sealtrain deploy ticket --store https://…",
        )


def _urls_of(ticket: RunTicket) -> Iterator[str]:
    yield from (broker.url for broker in ticket.brokers)
    yield from ticket.data
    yield from (place.address for place in ticket.models.values())
    yield from filter(None, (ticket.store, ticket.credentials, ticket.collateral, ticket.previous))


def _servers_of(ticket: RunTicket) -> set[Address]:
    """Servers of a ticket's URLs.

    Raises:
        TicketInvalid: One is of another kind than ``https`` and ``s3``, or a path.
    """
    found: set[Address] = set()
    for url in _urls_of(ticket):
        parts = urlsplit(url)
        if parts.scheme == "s3":
            continue  # its server is in the lender's answer: --reach names it
        if parts.scheme != "https" or parts.hostname is None:
            raise TicketInvalid(
                "an enclave reaches servers of https alone",
                check="address",
                got=url[:80],
                expected="https://…",
                hint="serve it with TLS; the ticket's authorities may name a private one",
            )
        found.add((parts.hostname.lower(), parts.port or _HTTPS_PORT))
    return found
