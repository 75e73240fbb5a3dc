"""Our own vectors of signed requests; their generator shares no code with sealtrain."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sealtrain.errors import SealtrainError
from sealtrain.signing.http_signature import SignedRequest, sign_request, verify_head

REPOSITORY = Path(__file__).resolve().parents[2]
MADE = json.loads((REPOSITORY / "vectors/requests/signatures.json").read_text())
KEYS = {name: base64.b64decode(key) for name, key in MADE["keys"].items()}


@pytest.mark.parametrize("case", MADE["cases"], ids=lambda case: case["name"])
def test_a_request_is_taken_or_refused_by_its_rule(case: dict[str, Any]) -> None:
    def verify() -> SignedRequest:
        head = verify_head(
            case["method"],
            case["url"],
            [(name, value) for name, value in case["headers"]],
            KEYS,
            brokers=MADE["brokers"],
            now=case["now"],
            max_age=MADE["max_age"],
            max_ahead=MADE["max_ahead"],
        )
        return head.require_body(case["body"].encode())

    if case["outcome"] == "ok":
        found = verify()
        assert (found.nonce, found.created) == (MADE["nonce"], MADE["created"])
        assert found.key_id == next(iter(KEYS))
    else:
        with pytest.raises(SealtrainError) as caught:
            verify()
        assert caught.value.code == case["outcome"]
        assert caught.value.exit_code == 3


def test_our_signature_is_the_one_of_the_generator() -> None:
    from hashlib import sha256

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from sealtrain.signing.ed25519 import Ed25519Signer

    case = MADE["cases"][0]
    private = Ed25519PrivateKey.from_private_bytes(sha256(b"owner a").digest())
    headers = sign_request(
        case["method"],
        case["url"],
        case["body"].encode(),
        Ed25519Signer(private),
        broker=MADE["brokers"][0],
        created=MADE["created"],
        nonce=MADE["nonce"],
    )
    expected = {name: value for name, value in case["headers"] if name != "content-type"}
    assert {name.lower(): value for name, value in headers.items()} == expected


def test_the_generator_is_independent_and_writes_the_same_bytes(tmp_path: Path) -> None:
    generator = REPOSITORY / "tools/vectorgen/signed_requests.py"
    imports = [line for line in generator.read_text().splitlines() if "import " in line]
    assert imports
    assert not any("sealtrain" in line or "http_message" in line for line in imports)
    subprocess.run([sys.executable, str(generator), str(tmp_path)], check=True, capture_output=True)
    written = (tmp_path / "signatures.json").read_bytes()
    assert written == (REPOSITORY / "vectors/requests/signatures.json").read_bytes()
