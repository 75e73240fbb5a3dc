"""The second program of a guest of our own, from the measured root (spec/guest-image.md §9)."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sealtrain.attest.tpm.device import DEVICES, open_tpm
from sealtrain.errors import ImageRefused
from sealtrain.guest import kernel_calls
from sealtrain.guest.boot import kernel
from sealtrain.guest.boot.decisions import (
    COMMAND_USER,
    DOCUMENT,
    NETWORK,
    SCRIPT_USER,
    GuestState,
    parse_network,
)
from sealtrain.guest.boot.first import HANDED_OVER, SCRATCH, first_card, lease_network, say
from sealtrain.guest.boot.health import HEALTH_PORT, HealthPage


def main() -> None:
    """Prepare the machine, start the document's command, and switch off when it ends."""
    step, health = "memory", HealthPage()
    try:
        mount_memory()
        step = "network"
        set_network(HANDED_OVER / NETWORK)
        step = "health"
        health.serve(socket.create_server(("", HEALTH_PORT), backlog=16))
        _enter(health, GuestState.STARTING)
        step = "TPM"
        show_registers()
        step = "agent"
        document = (HANDED_OVER / DOCUMENT).read_bytes()
        serve_agent(document)
        step = "command"
        words = command_of(document)
        _enter(health, GuestState.RUNNING)
        code = start(words)
        say(f"SEALTRAIN-ENDED {code}")
        _enter(health, GuestState.ENDED)
    except BaseException as error:
        _enter(health, GuestState.STOPPED)
        say(f"SEALTRAIN-STOPPED {step}: {type(error).__name__}: {error}")
    time.sleep(1)
    kernel.switch_off()


def _enter(health: HealthPage, state: GuestState) -> None:
    health.state = state
    say(f"SEALTRAIN-STATE {state}")


def mount_memory() -> None:
    """Everything that can be written: in memory and gone with it, unless a disk is there for it."""
    safe = kernel.NO_SUID | kernel.NO_DEVICES
    own = f"uid={COMMAND_USER},gid={COMMAND_USER}"
    for place, mode in (("/tmp", "711"), (SCRATCH, "700")):  # noqa: S108  # a mount point
        if not os.path.ismount(place):
            kernel_calls.mount("tmpfs", place, "tmpfs", safe, f"mode={mode},{own}")
    for name, target in (("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        Path("/dev", name).symlink_to(f"/proc/self/{target}")
    shared = Path("/dev/shm")  # noqa: S108  # a mount point
    shared.mkdir(exist_ok=True)
    kernel_calls.mount("tmpfs", str(shared), "tmpfs", safe | kernel.NO_PROGRAMS, "mode=1777")


def set_network(file: Path) -> None:
    """Loopback, and the first network card: the operator's address, or one that is leased."""
    kernel.raise_network("lo", None)
    card = first_card()
    if card is None:
        return
    if file.exists():
        kernel.raise_network(card, parse_network(file.read_bytes()))
    elif not kernel.has_address(card):
        try:
            lease_network(card)
        except ImageRefused as error:
            say(f"SEALTRAIN-NETWORK none: {error.message}")


def show_registers() -> None:
    """Say on the console what the TPM's registers hold: an operator compares it with the image."""
    if (device := DEVICES[1]).exists():
        with open_tpm(device) as tpm:
            for index, value in sorted(tpm.registers().items()):
                say(f"SEALTRAIN-REGISTER {index} {value.hex()}")


def serve_agent(document: bytes) -> None:
    """Answer the command's user, who opens no TPM; imported late, since it loads much."""
    from sealtrain.attest.tpm.collect import read_boot_log, vtpm_shown
    from sealtrain.guest.boot.agent import AGENT_SOCKET, GuestAgent, answers

    log = read_boot_log()

    def attest(report_data: bytes) -> dict[str, Any]:
        with open_tpm(next(device for device in DEVICES if device.exists())) as tpm:
            return vtpm_shown(tpm, report_data, log)

    agent = GuestAgent(Path(AGENT_SOCKET), answers(document, attest, "test-vtpm"))
    os.chown(AGENT_SOCKET, COMMAND_USER, COMMAND_USER)
    agent.start()


def command_of(document: bytes) -> Sequence[str]:
    """Words of the command that the document names; imported late, since it loads much."""
    from sealtrain.guest.boot.command import words_of

    return words_of(document)


def start(words: Sequence[str], home: str = SCRATCH) -> int:
    """Run a command as the user of the image, which may start another one's; wait for it.

    Args:
        words: The program first.
        home: Folder that it begins in.
    """
    from sealtrain.guest.sandbox.users import LENT, WORKLOAD_USER, change_user

    environment = dict(os.environ, HOME=home, PYTHONDONTWRITEBYTECODE="1")
    environment[WORKLOAD_USER] = str(SCRIPT_USER)
    done = subprocess.run(  # noqa: S603  # of the measured document
        words, check=False, cwd=home, env=environment, stdin=subprocess.DEVNULL,
        preexec_fn=lambda: change_user(COMMAND_USER, LENT),
    )  # fmt: skip
    return done.returncode


if __name__ == "__main__":
    main()
