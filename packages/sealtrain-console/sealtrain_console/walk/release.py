"""Step 3, the guest proves itself: what the hardware must say before a broker releases a key."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

from sealtrain.attest.presets import preset
from sealtrain.base.canonical import parse_json
from sealtrain.base.encoding import to_base64
from sealtrain.base.secret import Secret
from sealtrain.client.broker_api import BrokerClient
from sealtrain.release.messages import ReleaseAnswer, ReleaseRequest
from sealtrain.sealing.hpke import HpkePrivateKey
from sealtrain_console.walk.stage import ServedBroker, Stage
from sealtrain_console.walk.switch import Attempt, Switch
from sealtrain_rehearsal.simulator.guest import SimulatedGuest
from sealtrain_rehearsal.simulator.pki import SimulatedPki

_FOREIGN_SEED: Final = b"another vendor, which no owner trusts"


class TamperingNetwork(BrokerClient):
    """A network between guest and broker that keeps, and may alter, what the guest sends."""

    def __init__(self, url: str, alter: Callable[[dict[str, Any]], None] = lambda _body: None):
        super().__init__(url)
        self._alter = alter
        self.carried: ReleaseRequest | None = None

    def release(self, request: ReleaseRequest) -> ReleaseAnswer:
        """Carry a request on, altered."""
        body: Any = parse_json(request.to_bytes())
        self._alter(body)
        self.carried = ReleaseRequest.from_dict(body)
        return super().release(self.carried)


def _document(stage: Stage, off: bool) -> Attempt:
    desk = stage.desk()
    guest = stage.run.boot_guest(stage.run.other) if off else stage.run.guest
    return _show(desk, guest, "A guest with another program would have got the keys")


def _registers(stage: Stage, off: bool) -> Attempt:
    desk = stage.desk()
    guest = stage.run.boot_guest(stage.run.locked, fault="replayed-log" if off else None)
    return _show(desk, guest, "A guest could have told any story about how it booted")


def _vendor(stage: Stage, off: bool) -> Attempt:
    desk = stage.desk()
    run = stage.run
    foreign = SimulatedPki(_FOREIGN_SEED)
    guest = SimulatedGuest(foreign, run.vendor.seed, run.locked.compose_bytes) if off else run.guest
    return _show(desk, guest, "A program that only says that it is a guest would have the keys")


def _hardware(stage: Stage, off: bool) -> Attempt:
    desk = stage.desk(policy=preset("dstack-h100") if off else None)
    return _show(desk, stage.run.guest, "A simulator would have passed for hardware")


def _try_patched(stage: Stage, off: bool) -> Attempt:
    status = "OutOfDate" if off else "UpToDate"
    desk = stage.desk(collateral=lambda now: stage.run.collateral(now, tcb_status=status))
    return _show(desk, stage.run.guest, "A processor with known holes would have held the keys")


def _debug(stage: Stage, off: bool) -> Attempt:
    desk = stage.desk()
    guest = stage.run.boot_guest(stage.run.locked, fault="debug-bit" if off else None)
    return _show(desk, guest, "The operator would have read the keys in the guest's memory")


def _once(stage: Stage, off: bool) -> Attempt:
    desk = stage.desk()
    carrier = stage.parts.enter_context(TamperingNetwork(desk.url))
    grant = desk.obtain(client=carrier)

    def act() -> str:
        if not off:
            return f"The broker answers the challenge once, with {len(grant.keys)} data keys."
        assert carrier.carried is not None  # noqa: S101  # obtain sent it
        answer = desk.guest_side.release(carrier.carried)
        return f"The broker answered the recorded request again, for run {answer.run_id}."

    return Attempt(act=act, stake=desk.stake("A recorded request would have counted again"))


def _key(stage: Stage, off: bool) -> Attempt:
    desk = stage.desk()
    mine = to_base64(HpkePrivateKey(Secret(os.urandom(32))).public.raw)

    def alter(body: dict[str, Any]) -> None:
        if off:
            body["hpke_public_key"] = mine

    carrier = stage.parts.enter_context(TamperingNetwork(desk.url, alter))
    attested = desk.attest()

    def act() -> str:
        grant = desk.obtain(client=carrier, attested=attested)
        return f"{len(grant.keys)} data keys arrive, encrypted to the guest that proved itself."

    return Attempt(
        act=act, stake=desk.stake("The broker would have encrypted the keys to the operator")
    )


def _conversation(stage: Stage, off: bool) -> Attempt:
    desk = stage.desk()
    honest = desk.evidence()
    carrier = stage.parts.enter_context(TamperingNetwork(desk.url))
    desk.obtain(client=carrier)
    assert carrier.carried is not None  # noqa: S101  # obtain sent it
    recorded = carrier.carried.evidence

    def act() -> str:
        grant = desk.obtain(collect=(lambda _binding: recorded) if off else honest)
        return f"The broker releases {len(grant.keys)} data keys for evidence of this conversation."

    return Attempt(
        act=act,
        stake=desk.stake("Evidence of a guest of yesterday would have got keys for any program"),
    )


def _try_second_instance(stage: Stage, off: bool) -> Attempt:
    """A second instance of the genuine broker, with a root secret that its operator chose."""
    honest = stage.desk()
    desk = stage.desk(root=Secret(os.urandom(32))) if off else honest

    def act() -> str:
        grant = desk.obtain(attested=desk.attest())
        return f"The lock names this broker, and it releases {len(grant.keys)} data keys."

    return Attempt(
        act=act, stake=honest.stake("The operator's own broker would have decided instead")
    )


def _show(desk: ServedBroker, guest: SimulatedGuest, so: str) -> Attempt:
    attested = desk.attest()

    def act() -> str:
        grant = desk.obtain(attested=attested, collect=desk.evidence(guest))
        return f"The broker believes the evidence, and releases {len(grant.keys)} data keys."

    return Attempt(act=act, stake=desk.stake(so))


SWITCHES: Final = (
    Switch(
        name="release-document",
        step="release",
        protection="The guest's hardware measured the approved document.",
        off="The guest booted another document and claims the approved one.",
        claim="C14",
        make=_document,
    ),
    Switch(
        name="release-log",
        step="release",
        protection="The log of what booted is replayed against the registers that were signed.",
        off="The operator shows the log of an earlier boot.",
        claim="C14",
        make=_registers,
    ),
    Switch(
        name="release-vendor",
        step="release",
        protection="The quote is signed under the hardware vendor that the policy trusts.",
        off="The quote is signed under a vendor that the operator made up.",
        claim="C14",
        make=_vendor,
    ),
    Switch(
        name="release-hardware",
        step="release",
        protection="A policy for hardware accepts hardware alone (the walk's own does not ask).",
        off="The broker's policy asks for hardware, and the guest is simulated.",
        claim="C15",
        make=_hardware,
    ),
    Switch(
        name="release-patched",
        step="release",
        protection="The vendor calls the platform up to date.",
        off="The vendor calls the platform out of date.",
        claim="C16",
        make=_try_patched,
    ),
    Switch(
        name="release-debug",
        step="release",
        protection="The guest's memory is closed to its host.",
        off="The operator starts the guest in debug mode.",
        claim="C16",
        make=_debug,
    ),
    Switch(
        name="release-once",
        step="release",
        protection="A challenge counts once.",
        off="The operator sends a recorded request a second time.",
        claim="C17",
        make=_once,
    ),
    Switch(
        name="release-conversation",
        step="release",
        protection="Evidence is made for one conversation.",
        off="The operator shows evidence that it recorded in an earlier conversation.",
        claim="C18",
        make=_conversation,
    ),
    Switch(
        name="release-key",
        step="release",
        protection="The keys are encrypted to the guest that proved itself.",
        off="The operator puts its own public key into the guest's request.",
        claim="C18",
        make=_key,
    ),
    Switch(
        name="release-broker",
        step="release",
        protection="The lock that the owners approved names the broker.",
        off="The operator starts a genuine broker of its own, and the guest asks that one.",
        claim="C90",
        make=_try_second_instance,
    ),
)
