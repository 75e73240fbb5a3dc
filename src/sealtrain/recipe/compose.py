"""The deployment document of a recipe: ``app-compose.json`` of dstack and of the simulator.

``compose_hash`` is SHA-256 of the file's raw bytes, which the guest measures. The document is a
function of the lock alone, so reading it back is strict: take the lock out of the frame
(``recipe.document``), write the document again, compare byte for byte. Any difference is refused,
and named where possible.
"""

from __future__ import annotations

from typing import Final

from sealtrain.base.digests import sha256_hex
from sealtrain.base.platforms import Platform
from sealtrain.recipe.backends import numbers_of
from sealtrain.recipe.document import (
    Program,
    frame_of,
    layout_of,
    write_document,
)
from sealtrain.recipe.errors import LockInvalid
from sealtrain.recipe.lockfile import Lock
from sealtrain.recipe.terms import Hardware

LOCK_FILE: Final = "recipe.lock.json"
GUEST_PORTS: Final = (8471, 8472)
"""Where a role that other machines call listens in its guest: for all, and for writes to it. Where
a kind of collaboration has more ports, they follow."""


def compose_hash(data: bytes) -> str:
    """SHA-256 of a deployment document's raw bytes, 64 hex digits."""
    return sha256_hex(data)


def build_compose(lock: Lock, lock_bytes: bytes | None = None) -> bytes:
    """Canonical bytes of the deployment document of ``lock``.

    Args:
        lock: What the document deploys.
        lock_bytes: ``lock.to_bytes()``, where the caller has them already.

    Raises:
        LockInvalid: The document would be larger than a guest accepts.
    """
    hardware = lock.recipe.hardware
    platform = _platform_of(hardware)
    text = lock.to_bytes() if lock_bytes is None else lock_bytes
    return write_document(
        Program(
            name=lock.recipe.name,
            service="guest",
            platform=platform,
            image=hardware.image,
            key_provider=hardware.key_provider,
            key_provider_id=hardware.key_provider_id or "",
            files={LOCK_FILE: text.decode("utf-8")},
            words=_words(platform, hardware.image),
            ports=_ports(lock),
            gpu=hardware.gpu == "nvidia",
        )
    )


def lock_text(compose_bytes: bytes) -> bytes:
    """The bytes of the lock in a deployment document, which are neither parsed nor compared.

    ``recipe.lock.LockedRecipe`` does both.

    Raises:
        LockInvalid: Another frame than sealtrain writes, or no lock in it.
    """
    files = frame_of(compose_bytes).files
    text = files.get(LOCK_FILE)
    if text is None:
        raise LockInvalid(
            "deployment document has no lock in it",
            check="document",
            got=", ".join(files)[:60] or "no file",
            expected=LOCK_FILE,
            hint="name the app-compose.json that sealtrain lock wrote",
        )
    return text.encode("utf-8", "surrogatepass")


def launch_scripts(lock: Lock) -> tuple[str, ...]:
    """Digests of the platform's launch scripts that a lock names."""
    named = lock.recipe.hardware.launch_script
    return () if named is None else (named,)


def _ports(lock: Lock) -> tuple[int, ...]:
    how = lock.recipe.collaboration
    first = GUEST_PORTS[0]
    if how is None:
        return ()
    return tuple(range(first, first + how.ports(max(numbers_of(lock.recipe.backend)))))


def _platform_of(hardware: Hardware) -> Platform:
    """What the document is for: hardware where it can be, else the simulator."""
    if hardware.image is None:
        return "simulator"
    return next((name for name in hardware.platforms if name != "simulator"), "simulator")


def _words(platform: Platform, image: str | None) -> tuple[str, ...]:
    """The guest's command: everything that no ticket may choose."""
    layout = layout_of(platform, image=image)
    kept = layout.kept
    collateral = ("--collateral", f"file:{kept}collateral.json") if layout.collateral else ()
    return (
        *("guest", f"{layout.measured}{LOCK_FILE}"),
        *("--platform", platform, "--guest", layout.guest),
        *collateral,
        *("--gpu-collateral", f"file:{kept}gpu-collateral.json"),
        *("--base", f"{kept}base", "--out", f"{kept}out"),
        *("--ticket", layout.ticket, "--json"),
    )
