"""What a guest's first program decides, apart from every system call (spec/guest-image.md).

The command line is measured; disks and their names are the host's, and two of one name are refused.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sealtrain.errors import ImageRefused

DOCUMENT: Final = "app-compose.json"
TICKET: Final = "ticket.json"
NETWORK: Final = "network"
CONFIG_LIMITS: Final = {DOCUMENT: 256 << 10, TICKET: 1 << 20, NETWORK: 256}
"""Files of a config drive, and how many bytes each has at most."""
CONFIG_SERIAL: Final = "sealtrain-config"
SCRATCH_SERIAL: Final = "sealtrain-scratch"
SCRATCH_KEY_BYTES: Final = 64
COMMAND_USER: Final = 65532
"""Runs the document's command, which keeps the keys, and alone uses the agent's socket."""
SCRIPT_USER: Final = 65531
"""Runs the recipe's code (``guest.sandbox.users``)."""
HOST_MODULES: Final = (
    "hv_sock", "vmw_vsock_virtio_transport", "vmw_vsock_virtio_transport_common", "vsock",
)  # fmt: skip
"""Modules of the line to the host (vsock), in the order in which they go. No network namespace
parts it from a recipe's code, so it is there until the operator has handed in its files."""
ROOT_PARTITION: Final = "sealtrain-root"
_ROOT: Final = re.compile(r"[0-9a-f]{64}")
_BLOCKS: Final = re.compile(r"[1-9][0-9]{0,9}")
_NAME: Final = re.compile(r"[a-z][a-z0-9]{0,15}")
BLOCK: Final = 4096
_SECTORS: Final = BLOCK // 512


class GuestState(StrEnum):
    """What a guest says of itself to its operator."""

    STARTING = "starting"
    RUNNING = "running"
    ENDED = "ended"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class BootParameters:
    """What the command line says of the root.

    Attributes:
        root_hash: Of the hash tree, hex.
        blocks: Number of blocks of the file system.
    """

    root_hash: str
    blocks: int

    @property
    def sectors(self) -> int:
        """Size of the file system in sectors."""
        return self.blocks * _SECTORS

    def verity_table(self, device: str) -> str:
        """The parameters of dm-verity's target.

        Args:
            device: Of data and tree, as ``major:minor``.
        """
        tree = self.blocks + 1  # behind the superblock
        words = (1, device, device, BLOCK, BLOCK, self.blocks, tree, "sha256", self.root_hash)
        return " ".join(map(str, (*words, "00" * 32, 1, "panic_on_corruption")))


def parse_parameters(line: str) -> BootParameters:
    """What the command line says of the root.

    Raises:
        ImageRefused: Root or blocks come not exactly once, or in another form.
    """
    words = line.split()
    found = {
        name: [word.partition("=")[2] for word in words if word.startswith(f"{name}=")]
        for name in ("sealtrain.root", "sealtrain.blocks")
    }
    roots, blocks = found["sealtrain.root"], found["sealtrain.blocks"]
    if len(roots) != 1 or len(blocks) != 1:
        raise _refusal("names not exactly one root")
    if not _ROOT.fullmatch(roots[0]) or not _BLOCKS.fullmatch(blocks[0]):
        raise _refusal("names a root in another form")
    return BootParameters(root_hash=roots[0], blocks=int(blocks[0]))


def choose_device(described: Mapping[str, str], wanted: str, what: str) -> str:
    """The one device of a name.

    Args:
        described: Kernel's name of each device → what it calls itself.
        wanted: What the right one calls itself.
        what: How errors call it.

    Raises:
        ImageRefused: No device has the name, or several have it.
    """
    found = sorted(name for name, text in described.items() if text == wanted)
    if len(found) != 1 or not _NAME.fullmatch(found[0]):
        raise ImageRefused(
            f"there is not exactly one {what}",
            check=what,
            got=", ".join(found)[:200] or "none",
            expected=wanted,
        )
    return found[0]


def choose_scratch(described: Mapping[str, str]) -> str | None:
    """The disk for files of the run; ``None`` where the operator gave none: they stay in memory.

    Raises:
        ImageRefused: There is more than one.
    """
    if SCRATCH_SERIAL not in described.values():
        return None
    return choose_device(described, SCRATCH_SERIAL, "scratch disk")


def crypt_table(device: str, key: bytes) -> str:
    """The parameters of dm-crypt's target: AES-256-XTS in sectors of 4096 bytes.

    Args:
        device: As ``major:minor``.
        key: 64 bytes.
    """
    return f"aes-xts-plain64 {key.hex()} 0 {device} 0 1 sector_size:{BLOCK}"


def partition_name(uevent: str) -> str:
    """The name of a partition by its ``uevent`` of sysfs; empty for a whole disk."""
    return next(
        (line.partition("=")[2] for line in uevent.splitlines() if line.startswith("PARTNAME=")), ""
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """IPv4 of the first network card.

    Attributes:
        address: Its address.
        mask: Its network's mask.
        gateway: Where everything else is sent.
    """

    address: bytes
    mask: bytes
    gateway: bytes

    @property
    def has_gateway(self) -> bool:
        """Whether the gateway is in the network that address and mask name."""
        both = zip(self.address, self.gateway, self.mask, strict=True)
        return all((own ^ other) & mask == 0 for own, other, mask in both)


def parse_network(text: bytes) -> Network:
    """What a config drive says of the network: ``ADDRESS/PREFIX GATEWAY``.

    Raises:
        ImageRefused: Another form, or a gateway outside of the network.
    """
    try:
        own, gateway = text.decode("ascii").split()
        interface = ipaddress.IPv4Interface(own)
        router = ipaddress.IPv4Address(gateway)
    except (ValueError, UnicodeDecodeError) as error:
        raise _network() from error
    if router not in interface.network or "/" not in own or router == interface.ip:
        raise _network()
    return Network(
        address=interface.ip.packed, mask=interface.netmask.packed, gateway=router.packed
    )


def _network() -> ImageRefused:
    return ImageRefused(
        "the config drive's network is of another form",
        check=NETWORK,
        expected="ADDRESS/PREFIX GATEWAY",
    )


def _refusal(problem: str) -> ImageRefused:
    return ImageRefused(f"the command line {problem}", check="command line")
