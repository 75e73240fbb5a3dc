"""Verify one processor's statement with its deployment document, as ``attest.verify`` does."""

from __future__ import annotations

import hashlib
from types import SimpleNamespace
from typing import Any

from sealtrain.attest.bundle import Attachments
from sealtrain.attest.dstack.verify import LOG, MeasuredGuest, replay_log
from sealtrain.attest.part import Situation, same_document
from sealtrain.attest.statement import Collateral, LogEntry
from sealtrain.attest.tee import VerifiedGuest
from sealtrain.attest.verifier import verifier_of
from sealtrain.attest.verify import vouched_guest


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
    return vouched_guest(verifier_of(tee).part(SimpleNamespace(**shown), beside, at))


def verify_log(
    log: tuple[LogEntry, ...],
    registers: tuple[str, str, str, str],
    mr_config_id: bytes,
    app_compose: bytes,
) -> MeasuredGuest:
    """What a log says that replays to registers and names a deployment document."""
    measured = replay_log(log, registers, mr_config_id)
    same_document(measured.compose_hash, hashlib.sha256(app_compose).hexdigest(), LOG)
    return measured
