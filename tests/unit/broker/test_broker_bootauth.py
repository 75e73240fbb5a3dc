"""May a dstack guest boot: the policy's words against what its KMS measured, the owners' word."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from policies import dstack
from release_world import GATEWAY, audited, boot_info, release_world
from world import DAY

from sealtrain.attest.dstack.policy import DstackPolicy
from sealtrain.attest.errors import MeasurementMismatch, PlatformMismatch, TcbStatusRefused
from sealtrain.attest.presets import insecure_simulator_policy
from sealtrain.base.canonical import canonical_json
from sealtrain.broker.config import AnswerSettings
from sealtrain.broker.service.bootauth import BootAuthority
from sealtrain.broker.service.service import Broker
from sealtrain.consortium.decisions import kms_target
from sealtrain.consortium.errors import ApprovalExpired, ApprovalsMissing
from sealtrain.errors import ConfigError, DataInvalid, KeyProviderMismatch, SealtrainError
from sealtrain.release.boot import BootInfo, appraise_boot, parse_boot

REGISTERS = {name: f"{number:02x}" * 48 for number, name in enumerate(("mrtd", "rtmr0", "rtmr1"))}
REGISTERS["rtmr2"] = "99" * 48
PROVIDER = "ab" * 91
PAYLOAD = json.dumps({"name": "kms", "id": PROVIDER}).encode()


def policy(**changed: Any) -> DstackPolicy:
    return DstackPolicy.model_validate_json(json.dumps(dstack(**changed)))


def info(**changed: Any) -> BootInfo:
    fields = {
        "teeVariant": "dstack-tdx",
        "mrAggregated": "11" * 32,
        "osImageHash": "22" * 32,
        "mrSystem": "33" * 32,
        "appId": "66" * 20,
        "composeHash": "77" * 32,
        "instanceId": "",
        "deviceId": "55" * 32,
        "keyProviderInfo": "",
        "tcbStatus": "UpToDate",
        "advisoryIds": [],
    } | changed
    return parse_boot(canonical_json(fields))


def system(last: bytes) -> str:
    return hashlib.sha256(bytes.fromhex("".join(REGISTERS.values())) + last).hexdigest()


MEASURED = {"measurements": [REGISTERS]}
DEVICE = hashlib.sha256(bytes.fromhex("ab" * 16)).hexdigest()


@pytest.mark.parametrize(
    ("rules", "told"),
    [
        ({}, {}),
        (MEASURED, {"mrSystem": system(bytes(32))}),
        (
            MEASURED,
            {
                "mrSystem": system(hashlib.sha256(PAYLOAD).digest()),
                "keyProviderInfo": PAYLOAD.hex(),
            },
        ),
        ({"platform_ids": ["cd" * 16, "ab" * 16]}, {"deviceId": DEVICE}),
        ({"key_provider": PROVIDER}, {"keyProviderInfo": PAYLOAD.hex()}),
        ({"key_provider": PROVIDER}, {}),
        ({"key_provider": PROVIDER, "os_image_hash": ["22" * 32]}, {}),
        ({"advisories": ["INTEL-SA-1"]}, {"advisoryIds": ["INTEL-SA-1"]}),
        ({"advisories": "any"}, {"advisoryIds": ["INTEL-SA-1"]}),
        ({"tcb_status": ["UpToDate", "SWHardeningNeeded"]}, {"tcbStatus": "SWHardeningNeeded"}),
    ],
)
def test_what_the_policy_lists_may_boot(rules: dict[str, Any], told: dict[str, Any]) -> None:
    asked = info(**told)
    assert appraise_boot(asked, policy(**rules)) is asked


@pytest.mark.parametrize(
    ("rules", "told", "error"),
    [
        ({}, {"teeVariant": "dstack-gcp-tdx"}, PlatformMismatch),
        ({}, {"tcbStatus": "OutOfDate"}, TcbStatusRefused),
        ({}, {"tcbStatus": "uptodate"}, TcbStatusRefused),
        ({}, {"tcbStatus": ""}, TcbStatusRefused),
        ({}, {"advisoryIds": ["INTEL-SA-1"]}, TcbStatusRefused),
        ({"advisories": ["INTEL-SA-2"]}, {"advisoryIds": ["INTEL-SA-1"]}, TcbStatusRefused),
        (MEASURED, {}, MeasurementMismatch),
        (MEASURED, {"mrSystem": system(bytes(32)), "keyProviderInfo": "00"}, MeasurementMismatch),
        ({"measurements": []}, {"mrSystem": system(bytes(32))}, MeasurementMismatch),
        (
            {"key_provider": PROVIDER, "os_image_hash": ["23" * 32]},
            {},
            MeasurementMismatch,
        ),
        (
            {"key_provider": PROVIDER, "os_image_hash": ["22" * 32]},
            {"osImageHash": ""},
            MeasurementMismatch,
        ),
        ({"platform_ids": ["cd" * 16]}, {"deviceId": DEVICE}, PlatformMismatch),
        ({"platform_ids": []}, {"deviceId": DEVICE}, PlatformMismatch),
        (
            {"key_provider": "ef" * 91},
            {"keyProviderInfo": PAYLOAD.hex()},
            KeyProviderMismatch,
        ),
        ({"key_provider": PROVIDER}, {"keyProviderInfo": "00"}, DataInvalid),
        ({"key_provider": PROVIDER}, {"keyProviderInfo": b"[]".hex()}, DataInvalid),
        ({"key_provider": PROVIDER}, {"keyProviderInfo": b'{"id":1}'.hex()}, DataInvalid),
    ],
)
def test_what_the_policy_does_not_list_may_not(
    rules: dict[str, Any], told: dict[str, Any], error: type[SealtrainError]
) -> None:
    with pytest.raises(error):
        appraise_boot(info(**told), policy(**rules))


def test_the_former_name_of_the_first_field_is_understood() -> None:
    fields = json.loads(canonical_json(info().to_dict()))
    fields["attestationMode"] = fields.pop("teeVariant")
    assert parse_boot(canonical_json(fields)) == info()
    with pytest.raises(DataInvalid):
        parse_boot(canonical_json(fields | {"teeVariant": "dstack-tdx"}))


def test_a_kms_is_approved_by_a_hash_that_no_recipe_has() -> None:
    target = kms_target(app_id="66" * 20, compose_hash="77" * 32)
    mark = hashlib.sha256(b"sealtrain/dstack-kms/v1:" + b"77" * 32).hexdigest()
    assert target.to_dict() == {
        "app_id": "66" * 20,
        "compose_hash": "77" * 32,
        "recipe_hash": mark,
    }


def test_every_answer_is_an_entry_of_the_ledger(tmp_path: Path) -> None:
    with release_world(tmp_path, gateway_app_id=GATEWAY) as world:
        authority = world.broker.boot
        assert isinstance(authority, BootAuthority)
        size = world.ledger.size
        told, refusal = authority.answer("app", canonical_json(boot_info(world)))
        assert (told.is_allowed, told.gateway_app_id) == (True, GATEWAY)
        assert (told.reason, refusal) == ("", None)
        entry = world.ledger.entry(size)
        assert entry["kind"] == "boot"
        body: Any = entry["body"]
        assert body["approved_by"] == ["hospital-a", "hospital-b"]
        assert body["recipe_hash"] == world.locked.recipe_hash

        refused = canonical_json(boot_info(world, tcbStatus="OutOfDate"))
        told, refusal = authority.answer("kms", refused)
        assert (told.is_allowed, told.gateway_app_id) == (False, "")
        assert type(refusal) is TcbStatusRefused
        assert told.reason.startswith("tcb-status-refused: ")
        body = world.ledger.entry(size + 1)["body"]
        assert body == {
            "action": "boot-kms",
            "code": "tcb-status-refused",
            "check": "TCB status",
            "app_id": world.locked.app_id,
            "compose_hash": world.locked.compose_hash,
            "digest": hashlib.sha256(refused).hexdigest(),
        }
        world.clock.advance(31 * DAY)
        told, refusal = authority.answer("app", canonical_json(boot_info(world)))
        assert (told.is_allowed, type(refusal)) == (False, ApprovalExpired)
        assert world.ledger.size == size + 3


def test_a_boot_takes_the_thresholds_of_what_approvals_state(tmp_path: Path) -> None:
    rules = {"approve": 1, "export_model": 3}
    with release_world(tmp_path, gateway_app_id="", rules=rules) as world:
        authority = world.broker.boot
        assert authority is not None
        asked = canonical_json(boot_info(world))
        told, refusal = authority.answer("app", asked)
        assert (told.is_allowed, type(refusal)) == (False, ApprovalsMissing)
        assert "3 of 3 owners" in told.reason
        world.approve("hospital-c")
        assert authority.answer("app", asked)[0].is_allowed
        assert audited(world).holds
        world.ledger.append(
            "boot",
            world.ledger.entry(world.ledger.size - 1)["body"]
            | {"needs": {"actions": ["approve"], "owners": list(world.needs.owners)}},
        )
        assert "with 0 of 1 approvals" in audited(world).findings[-1].problem


def test_it_is_off_unless_asked_for_and_wants_rules_for_dstack(tmp_path: Path) -> None:
    with release_world(tmp_path) as world:
        assert world.broker.boot is None
        policy = insecure_simulator_policy(world.pki.root_der, tee="nitro")
        parts = replace(world.parts, answers=AnswerSettings(boot_auth=True), policy=policy)
        with pytest.raises(ConfigError) as caught:
            Broker(parts)
        assert caught.value.got == "nitro"
