"""Verify one processor's statement with its deployment document, as ``attest.verify`` does."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import partial
from types import SimpleNamespace
from typing import Any

from sealtrain.attest.bundle import Attachments
from sealtrain.attest.claims import Claim, equal
from sealtrain.attest.dstack.verify import LOG, MeasuredGuest, replay_log
from sealtrain.attest.engine import guest_part
from sealtrain.attest.errors import ComposeHashMismatch
from sealtrain.attest.facts import Situation
from sealtrain.attest.rules import Rule
from sealtrain.attest.statement import Collateral, LogEntry
from sealtrain.attest.tee import VerifiedGuest
from sealtrain.attest.verifier import verifier_of
from sealtrain.attest.verify import vouch_for_guest


def verified_guest(
    tee: str,
    shown: dict[str, Any],
    app_compose: bytes,
    rules: Any,
    *,
    simulator_root: bytes | None,
    now: int,
    collateral: Collateral | None = None,
    crl: bytes | None = None,
) -> VerifiedGuest[Any]:
    """Facts about a guest.

    Args:
        tee: Name of its TEE.
        shown: Properties of the TEE's form of evidence, decoded; nothing of them is validated.
        app_compose: The deployment document's raw bytes.
        rules: Of the TEE, as a policy has them under ``cpu``.
        simulator_root: Trusted software root (DER), ``None`` for the vendor's.
        now: Verification time, seconds since 1970.
        collateral: DCAP collateral, where the TEE has such a thing.
        crl: The verifier's revocation list (DER).
    """
    policy: Any = SimpleNamespace(cpu=rules)
    at = Situation(
        policy=policy,
        root=simulator_root,
        now=now,
        shown_compose=hashlib.sha256(app_compose).hexdigest(),
    )
    beside = Attachments(collateral=collateral, crl=crl)
    verifier = verifier_of(tee)
    prove = partial(verifier.prove, SimpleNamespace(**shown), beside, at)
    return vouch_for_guest(guest_part(prove, verifier, at))


def verify_log(
    log: tuple[LogEntry, ...],
    registers: tuple[str, str, str, str],
    mr_config_id: bytes,
    app_compose: bytes,
) -> MeasuredGuest:
    """What a log says that replays to registers and names a deployment document."""
    measured = replay_log(log, registers, mr_config_id)
    equal(
        "compose hash",
        measured.compose_hash,
        hashlib.sha256(app_compose).hexdigest(),
        source=LOG,
        error=ComposeHashMismatch,
        message="guest measured another deployment document",
    )
    return measured


def require_rules(
    rules: Iterable[Rule], statement: Any, policy: Any, now: int
) -> tuple[Claim, ...]:
    """Compare one statement by a table of rules, in order; raises what the first breach raises."""
    made = (rule.compare(statement, policy, now) for rule in rules)
    return tuple(claim for claim in made if claim is not None)
