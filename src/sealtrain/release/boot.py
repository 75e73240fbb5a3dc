"""May this dstack guest boot? Pure: no clock, no database, no network (spec/boot-authority.md).

Checks by the numbers of the spec; the first that fails raises:

1. ``parse_boot`` is strict (a shorter hash must never be padded onto an approved one);
2. to 8. ``appraise_boot`` compares what the KMS measured with the policy for guests;
9. ``decide_boot`` counts the owners' decisions on exactly this deployment.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field, StringConstraints
from pydantic.alias_generators import to_camel

from sealtrain.attest.dstack.policy import DstackPolicy
from sealtrain.attest.errors import MeasurementMismatch, PlatformMismatch, TcbStatusRefused
from sealtrain.base.canonical import parse_json
from sealtrain.base.digests import sha256_hex
from sealtrain.base.models import Hex40, Hex64, StrictModel, load_model
from sealtrain.consortium.approvals import (
    ApprovalTally,
    SignedDecision,
    require,
    tally_as_stated,
)
from sealtrain.consortium.decisions import kms_target
from sealtrain.consortium.errors import ApprovalsMissing
from sealtrain.consortium.members import Consortium
from sealtrain.errors import DataInvalid, KeyProviderMismatch

MAX_BOOT_BYTES = 64 << 10

BootRole = Literal["app", "kms"]

_TEE = "dstack-tdx"
_Instance = Annotated[str, StringConstraints(pattern=r"^(?:[0-9a-f]{40})?$")]
_Image = Annotated[str, StringConstraints(pattern=r"^(?:[0-9a-f]{64})?$")]
_Hex = Annotated[str, StringConstraints(pattern=r"^(?:[0-9a-f]{2})*$", max_length=16 << 10)]
_Word = Annotated[str, StringConstraints(max_length=64)]


class _Camel(StrictModel):
    """Fields are written as dstack writes them."""

    model_config = ConfigDict(alias_generator=to_camel)


class BootInfo(_Camel):
    """What dstack's KMS says of a guest whose quote it verified (§1)."""

    tee_variant: _Word
    mr_aggregated: Hex64
    os_image_hash: _Image
    mr_system: Hex64
    app_id: Hex40
    compose_hash: Hex64
    instance_id: _Instance
    device_id: Hex64
    key_provider_info: _Hex
    tcb_status: _Word
    advisory_ids: tuple[_Word, ...] = Field(max_length=256)


class BootAnswer(_Camel):
    """Whether the KMS may give out keys (§1)."""

    is_allowed: bool
    gateway_app_id: str
    reason: str

    @classmethod
    def refuse(cls, reason: str) -> Self:
        """No, and why."""
        return cls.model_validate({"isAllowed": False, "gatewayAppId": "", "reason": reason})


class BootService(_Camel):
    """The broker's answer about itself to the KMS; a chain's fields are empty."""

    status: Literal["ok"]
    kms_contract_addr: str
    eth_rpc_url: str
    gateway_app_id: str
    chain_id: int
    app_implementation: str


def parse_boot(body: bytes) -> BootInfo:
    """Parse what a KMS asks (check 1).

    Raises:
        DataInvalid: A field is missing, unknown or malformed.
        LimitExceeded: Longer or deeper than allowed.
    """
    value = parse_json(body, max_bytes=MAX_BOOT_BYTES)
    if isinstance(value, dict) and "teeVariant" not in value and "attestationMode" in value:
        value = value | {"teeVariant": value["attestationMode"]}  # its name in other versions
        del value["attestationMode"]
    return load_model(BootInfo, value, DataInvalid, "BootInfo")


def appraise_boot(info: BootInfo, policy: DstackPolicy) -> BootInfo:
    """Return ``info`` once it holds against ``policy`` (checks 2-8).

    Raises:
        EvidenceRefused: The subclass of the first check that fails.
    """
    if info.tee_variant != _TEE:
        raise PlatformMismatch(
            "guest runs on another kind of machine",
            check="TEE variant",
            got=info.tee_variant,
            expected=_TEE,
        )
    if info.tcb_status not in policy.tcb_status:
        raise TcbStatusRefused(
            "the machine's TCB status is not one the policy accepts",
            check="TCB status",
            got=info.tcb_status,
            expected=", ".join(policy.tcb_status),
            hint="have the machine's firmware updated",
        )
    accepted = () if policy.advisories == "none" else policy.advisories
    unknown = [
        advisory_id
        for advisory_id in info.advisory_ids
        if accepted != "any" and advisory_id not in accepted
    ]
    if unknown:
        raise TcbStatusRefused(
            "advisories apply to the machine that the policy does not accept",
            check="advisories",
            got=", ".join(unknown[:8]),
            expected=policy.advisories if accepted in ("any", ()) else ", ".join(accepted[:8]),
            hint="have the machine's firmware updated, or list the advisories once they were read",
        )
    _image_fits(info, policy)
    _machine_fits(info, policy)
    return info


def decide_boot(
    info: BootInfo,
    role: BootRole,
    decisions: Iterable[SignedDecision],
    consortium: Consortium,
    *,
    now: int,
) -> ApprovalTally:
    """Return the tally that lets this guest boot (check 9).

    Args:
        info: Appraised.
        role: What it wants to boot as.
        decisions: Every verified decision of the consortium, in the order of the ledger.
        consortium: Owners and thresholds.
        now: The broker's time, seconds since the epoch.

    Raises:
        ApprovalRevoked: Enough owners revoked a target of this deployment.
        ReleaseRefused: No target of this deployment is approved by enough owners now.
    """
    known = tuple(decisions)
    kms = kms_target(app_id=info.app_id, compose_hash=info.compose_hash)
    decided = {
        signed.decision.target
        for signed in known
        if (signed.decision.app_id, signed.decision.compose_hash)
        == (info.app_id, info.compose_hash)
    }
    meant = decided & {kms} if role == "kms" else decided - {kms}
    tallies = [
        tally_as_stated(known, consortium, target, now)
        for target in sorted(meant, key=lambda target: target.recipe_hash)
    ]
    if not tallies:
        raise ApprovalsMissing(
            f"no owner decided on this deployment as {role}",
            check="approvals",
            got=f"app id {info.app_id}, compose hash {info.compose_hash}",
            expected=f"approved by {consortium.thresholds.approve} of "
            f"{len(consortium.owners)} owners",
            hint="have the owners review and approve this deployment",
        )
    for tally in tallies:
        if tally.revoked:
            require(tally)
    return require(max(tallies, key=lambda tally: (not tally.sealed, tally.progress)))


def _image_fits(info: BootInfo, policy: DstackPolicy) -> None:
    if policy.measurements != "any":
        provider = bytes.fromhex(info.key_provider_info)
        last = sha256_hex(provider) if provider else "00" * 32
        systems = {
            sha256_hex(
                bytes.fromhex(
                    measurement.mrtd
                    + measurement.rtmr0
                    + measurement.rtmr1
                    + measurement.rtmr2
                    + last
                )
            )
            for measurement in policy.measurements
            if measurement.rtmr0 != "log"  # the KMS shows no log
        }
        if info.mr_system not in systems:
            raise MeasurementMismatch(
                "guest booted another image or machine shape than any the policy lists",
                check="guest image",
                got=info.mr_system,
                expected=f"one of {len(systems)} reference values",
                hint="recompute reference values for this image, CPU count and memory",
            )
    if (
        policy.os_image_hash not in ("any", "measured")
        and info.os_image_hash not in policy.os_image_hash
    ):
        raise MeasurementMismatch(
            "guest runs another OS image",
            check="OS image",
            got=info.os_image_hash or "not told",
            expected=", ".join(policy.os_image_hash[:4]),
        )


def _machine_fits(info: BootInfo, policy: DstackPolicy) -> None:
    if policy.platform_ids != "any":
        devices = {sha256_hex(bytes.fromhex(platform_id)) for platform_id in policy.platform_ids}
        if info.device_id not in devices:
            raise PlatformMismatch(
                "guest runs on a machine that the policy does not list",
                check="device id",
                got=info.device_id,
                expected=f"SHA-256 of one of {len(devices)} platform ids",
            )
    if policy.key_provider != "any" and info.key_provider_info:
        got = _provider_id(info.key_provider_info)
        if got != policy.key_provider:
            raise KeyProviderMismatch(
                "guest got its keys from another key provider",
                check="key provider",
                got=got[:200],
                expected=policy.key_provider,
            )


def _provider_id(payload: str) -> str:
    try:
        document = parse_json(bytes.fromhex(payload))
        found = document["id"]
    except (DataInvalid, ValueError, KeyError, TypeError) as error:
        raise DataInvalid("keyProviderInfo is not the JSON of dstack", check="BootInfo") from error
    if not isinstance(found, str):
        raise DataInvalid("keyProviderInfo names no id", check="BootInfo")
    return found
