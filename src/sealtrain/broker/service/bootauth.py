"""Answers dstack's KMS from the owners' ledger (spec/boot-authority.md); off unless asked for.

Every decision is in the ledger on disk before the KMS reads it. An error that prevents deciding or
recording is raised: the KMS receives a failed request, and boots nothing on a failure.
"""

from __future__ import annotations

from sealtrain.attest.dstack.policy import DstackPolicy
from sealtrain.base.canonical import JsonValue
from sealtrain.base.digests import sha256_hex
from sealtrain.broker.service.counting import Counting
from sealtrain.broker.service.entries import is_refusal
from sealtrain.broker.service.parts import BrokerParts
from sealtrain.errors import ConfigError, SealtrainError
from sealtrain.release.boot import (
    BootAnswer,
    BootInfo,
    BootRole,
    BootService,
    appraise_boot,
    decide_boot,
    parse_boot,
)

_NO_CONTRACT = "0x" + "00" * 20


class BootAuthority:
    """The webhook of one broker. Thread-safe."""

    def __init__(self, parts: BrokerParts, counting: Counting) -> None:
        """Take the rules for dstack guests from the broker's policy.

        Raises:
            ConfigError: The policy is for guests of another kind.
        """
        if not isinstance(parts.policy.cpu, DstackPolicy):
            raise ConfigError(
                "the broker's policy is not for dstack guests, and the boot authority needs one",
                check="boot authority",
                got=parts.policy.cpu.tee,
                expected="dstack",
                hint="serve without --boot-auth, or with a policy for dstack",
            )
        self._policy = parts.policy.cpu
        self._parts = parts
        self._counting = counting

    @property
    def body_seconds(self) -> float:
        """For a request's body to arrive."""
        return self._parts.limits.body_seconds

    def service(self) -> BootService:
        """This broker's identity, for the KMS's own metadata."""
        return BootService.model_validate(
            {
                "status": "ok",
                "kmsContractAddr": _NO_CONTRACT,
                "ethRpcUrl": "",
                "gatewayAppId": self._parts.answers.gateway_app_id,
                "chainId": 0,
                "appImplementation": _NO_CONTRACT,
            }
        )

    def answer(self, role: BootRole, body: bytes) -> tuple[BootAnswer, SealtrainError | None]:
        """Decide on one boot and record it.

        Args:
            role: Of the path, app or KMS.
            body: As received.

        Returns:
            The answer, and the refusal if it is one.

        Raises:
            Unreachable: The decision could not be made or recorded.
        """
        now = self._parts.clock()
        info: BootInfo | None = None
        try:
            info = parse_boot(body)
            appraise_boot(info, self._policy)
            if role == "app" and self._parts.chain is not None:
                self._parts.chain.require_allowed(info.app_id, info.compose_hash)
            self._permit(role, info, now)
        except SealtrainError as error:
            if not is_refusal(error):
                raise
            with self._parts.store.transaction(alone=False):
                self._parts.ledger.append("refusal", _refusal(role, info, body, error))
            return BootAnswer.refuse(f"{error.code}: {error}"), error
        allowed = {
            "isAllowed": True,
            "gatewayAppId": self._parts.answers.gateway_app_id,
            "reason": "",
        }
        return BootAnswer.model_validate(allowed), None

    def _permit(self, role: BootRole, info: BootInfo, now: int) -> None:
        """Count approvals and record in one transaction: no revocation comes in between."""
        with self._parts.store.transaction() as transaction:
            transaction.successions.require_none()
            counted = decide_boot(
                info,
                role,
                self._counting.decisions(transaction),
                self._parts.consortium,
                now=now,
            )
            self._parts.ledger.append(
                "boot",
                {
                    "action": f"boot-{role}",
                    **counted.target.to_dict(),
                    "instance_id": info.instance_id,
                    "device_id": info.device_id,
                    "os_image_hash": info.os_image_hash,
                    "mr_aggregated": info.mr_aggregated,
                    "tcb_status": info.tcb_status,
                    "needs": counted.needs.to_dict(),
                    "approved_by": list(counted.approved_by),
                },
            )


def _refusal(
    role: BootRole, info: BootInfo | None, body: bytes, error: SealtrainError
) -> dict[str, JsonValue]:
    named = {} if info is None else {"app_id": info.app_id, "compose_hash": info.compose_hash}
    return {
        "action": f"boot-{role}",
        "code": error.code,
        "check": error.check,
        **named,
        "digest": sha256_hex(body),
    }
