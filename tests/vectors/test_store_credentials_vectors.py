"""Store credentials, against vectors of an independent generator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sealtrain.attest.report_data import Binding
from sealtrain.base.canonical import canonical_json
from sealtrain.base.encoding import from_base64, to_base64
from sealtrain.base.secret import Secret
from sealtrain.client.storecredentials import parse_credentials
from sealtrain.errors import UsageError
from sealtrain.sealing.hpke import HpkePrivateKey

VECTORS: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "vectors" / "store-credentials" / "exchange.json").read_text(
        "utf-8"
    )
)


def test_what_a_lender_seals_opens_with_the_guests_key_in_its_conversation() -> None:
    one = VECTORS["exchange"]
    private = HpkePrivateKey(Secret(bytes.fromhex(one["seed"])))
    assert to_base64(private.public.raw) == one["transcript"]["key"]
    binding = Binding("store-credentials", one["transcript"])
    assert binding.report_data().hex() == one["report_data"]
    info = b"sealtrain/store-credentials/v1:" + canonical_json(one["transcript"])
    opened = private.open(from_base64(one["sealed"]), info=info).reveal()
    assert parse_credentials(opened) == one["credentials"]


@pytest.mark.parametrize("case", VECTORS["cases"], ids=lambda case: case["name"])
def test_what_is_no_credentials_is_refused(case: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        parse_credentials(json.dumps(case["document"]).encode())
    assert caught.value.code == case["outcome"]
