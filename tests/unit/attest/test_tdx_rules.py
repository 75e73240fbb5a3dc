"""What a policy may say of the registers of a TDX guest, with a log and without."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from sealtrain.attest.policy import policy_from_dict
from sealtrain.attest.presets import PRESETS
from sealtrain.errors import TrustInvalid

IMAGE = dict.fromkeys(("mrtd", "rtmr0", "rtmr1", "rtmr2"), "ab" * 48)


def rules(platform: str, **image: Any) -> dict[str, Any]:
    made = copy.deepcopy(PRESETS["deny-all"])
    made["platform"] = made["cpu"]["tee"] = platform
    if platform == "tdx":
        del made["cpu"]["key_provider"], made["cpu"]["os_image_hash"]
        made["cpu"]["boot_log"] = "any"
    made["cpu"]["measurements"] = [IMAGE | image]
    return made


def test_a_dstack_guest_may_tell_rtmr0_by_its_log() -> None:
    found = policy_from_dict(rules("dstack", rtmr0="log")).to_dict()
    assert found["cpu"]["measurements"] == [IMAGE | {"rtmr0": "log"}]


@pytest.mark.parametrize("register", ["mrtd", "rtmr1", "rtmr2"])
def test_no_other_register_is_told_by_a_log(register: str) -> None:
    with pytest.raises(TrustInvalid):
        policy_from_dict(rules("dstack", **{register: "log"}))


def test_a_guest_of_which_no_log_is_asked_names_every_register() -> None:
    assert policy_from_dict(rules("tdx")).platform == "tdx"
    with pytest.raises(TrustInvalid):
        policy_from_dict(rules("tdx", rtmr0="log"))


@pytest.mark.parametrize("value", ["any", "", None, "LOG", ["log"]])
def test_no_other_word_stands_for_a_register(value: Any) -> None:
    with pytest.raises(TrustInvalid):
        policy_from_dict(rules("dstack", rtmr0=value))
