"""The address of a guest's network card, as the network of a cloud hands it out (DHCP, RFC 2131).

One question for an offer and one for the lease, each asked a few times. The card has no address
yet, so answers are asked for as broadcasts. An address stays as long as the machine runs: clouds
hand out the same one again. The module imports little, since the first program of a guest has it.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from sealtrain.errors import ImageRefused
from sealtrain.guest.boot.decisions import Network

SERVER_PORT, CLIENT_PORT = 67, 68
DISCOVER, OFFER, REQUEST, ACK = 1, 2, 3, 5
_MASK, _ROUTER, _ADDRESS, _KIND, _SERVER, _WISHES, _SIZE, _END = 1, 3, 50, 53, 54, 55, 57, 255
_COOKIE: Final = b"\x63\x82\x53\x63"
_HEAD: Final = struct.Struct(">BBBB4sHH4s4s4s4s16s64s128s4s")
_AS_BROADCAST: Final = 0x8000
_MAX_BYTES: Final = 1500
_TRIES: Final = 4
_SECONDS: Final = 3.0
Exchange = Callable[[bytes], bytes | None]
"""Sends a message, and returns the next answer of anyone; ``None`` where none comes in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressOffer:
    """What a server offers, or leases.

    Attributes:
        network: Address, mask and gateway.
        server: Address of the server.
    """

    network: Network
    server: bytes


def lease_address(exchange: Exchange, card: bytes, transaction: bytes) -> Network:
    """Ask for an address.

    Args:
        exchange: See the type; called again while none answers.
        card: Hardware address, 6 bytes.
        transaction: 4 random bytes, by which answers are known.

    Raises:
        ImageRefused: No server leases one.
    """
    offer = _wait(exchange, write_question(DISCOVER, card, transaction), OFFER, card, transaction)
    wanted = write_question(REQUEST, card, transaction, offer)
    return _wait(exchange, wanted, ACK, card, transaction).network


def _wait(
    exchange: Exchange, question: bytes, kind: int, card: bytes, transaction: bytes
) -> AddressOffer:
    for _ in range(_TRIES):
        answer = exchange(question)
        found = None if answer is None else read_answer(answer, kind, card, transaction)
        if found is not None:
            return found
    raise ImageRefused(
        "the network leases this machine no address", check="network", got=f"{_TRIES} tries"
    )


def write_question(
    kind: int, card: bytes, transaction: bytes, offer: AddressOffer | None = None
) -> bytes:
    """A message of a machine without an address."""
    options = bytes(
        (_KIND, 1, kind, _WISHES, 2, _MASK, _ROUTER, _SIZE, 2, *divmod(_MAX_BYTES, 256))
    )
    if offer is not None:
        options += bytes((_ADDRESS, 4)) + offer.network.address
        options += bytes((_SERVER, 4)) + offer.server
    nowhere = bytes(4)
    head = _HEAD.pack(
        1, 1, 6, 0, transaction, 0, _AS_BROADCAST, nowhere, nowhere, nowhere, nowhere, card, b"",
        b"", _COOKIE,
    )  # fmt: skip
    return (head + options + bytes((_END,))).ljust(300, b"\0")


def read_answer(message: bytes, kind: int, card: bytes, transaction: bytes) -> AddressOffer | None:
    """What an answer offers; ``None`` for another's message, or one of another form.

    Args:
        message: A stranger's.
        kind: Of the answer: ``OFFER`` or ``ACK``.
        card: Hardware address of this machine.
        transaction: Of the question.
    """
    if not _HEAD.size < len(message) <= _MAX_BYTES:
        return None
    op, hardware, length, _, answered, _, _, _, own, _, _, to, _, _, cookie = _HEAD.unpack_from(
        message
    )
    if (op, hardware, length, answered, to[:6]) != (2, 1, 6, transaction, card):
        return None
    options = _options(message[_HEAD.size :]) if cookie == _COOKIE else None
    if options is None or options.get(_KIND) != bytes((kind,)):
        return None
    mask, router, server = (options.get(name, b"") for name in (_MASK, _ROUTER, _SERVER))
    if len(mask) != 4 or len(router) < 4 or len(router) % 4 or len(server) != 4:
        return None
    network = Network(address=own, mask=mask, gateway=router[:4])
    return AddressOffer(network=network, server=server) if _is_usable(network) else None


def _options(data: bytes) -> dict[int, bytes] | None:
    """Options by their number; ``None`` where one is cut off or comes twice."""
    found: dict[int, bytes] = {}
    at = 0
    while at < len(data) and data[at] != _END:
        name = data[at]
        if name == 0:
            at += 1
            continue
        if at + 2 > len(data) or at + 2 + data[at + 1] > len(data) or name in found:
            return None
        found[name] = data[at + 2 : at + 2 + data[at + 1]]
        at += 2 + data[at + 1]
    return found if at < len(data) else None


def _is_usable(network: Network) -> bool:
    """Whether a machine can have it: a mask of ones before zeros, and two ordinary addresses."""
    own, gateway = ipaddress.IPv4Address(network.address), ipaddress.IPv4Address(network.gateway)
    ones = int.from_bytes(network.mask, "big")
    ordinary = all(
        not (address.is_loopback or address.is_multicast or address.is_unspecified)
        and int(address) != 0xFFFFFFFF
        for address in (own, gateway)
    )
    host = ~ones & 0xFFFFFFFF
    return ordinary and own != gateway and ones != 0 and host & (host + 1) == 0


def exchange_on(card: str, monotonic: Callable[[], float] = time.monotonic) -> Exchange:
    """Exchange messages over a network card that is switched on, by broadcasts."""

    def exchange(message: bytes) -> bytes | None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
            handle.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
            handle.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            handle.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, os.fsencode(card) + b"\0")
            handle.bind(("", CLIENT_PORT))
            handle.sendto(message, ("255.255.255.255", SERVER_PORT))
            until = monotonic() + _SECONDS
            while (left := until - monotonic()) > 0:
                handle.settimeout(left)
                try:
                    answer = handle.recv(_MAX_BYTES + 1)
                except OSError:
                    return None
                if answer[4:8] == message[4:8] and answer[:1] == b"\2":
                    return answer
        return None

    return exchange
