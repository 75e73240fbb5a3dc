"""The JavaScript verifier reads certificates as strictly as ours, with odd DER at each place.

No authority of a vendor issues such certificates. Two readers of which one is more lenient would
still disagree about a simulator's, and about a vendor's on the day that it does.
"""

from __future__ import annotations

import hashlib
import json
import struct
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding
from node_judges import node
from odd_certificates import PLACES, keys, odd_chain, oddities

from sealtrain.attest.errors import EvidenceMalformed
from sealtrain.attest.tpm.form import TpmShown, verify_tpm
from sealtrain.base.encoding import to_base64
from sealtrain.base.models import load_model
from sealtrain.errors import EvidenceRefused
from sealtrain_rehearsal.simulator.tpm import tpms_attest

pytestmark = [pytest.mark.claim("C170"), pytest.mark.claim("C565")]

DRIVER = Path(__file__).resolve().parents[1] / "support/second_tpm.mjs"
NOW = 1_780_000_000
VALUES = {index: hashlib.sha256(bytes([index])).digest() for index in range(24)}
READ_ALIKE = ("as it is", "unknown, not critical", "machine by its parts", "an id")
"""Odd to a person, and sound."""


def own_code(shown: dict[str, object], root: bytes | None) -> str:
    """The code of our refusal, or ``accepted``."""
    try:
        form = load_model(TpmShown, shown, EvidenceMalformed, "TPM quote")
        verify_tpm(form, simulator_root=root, now=NOW)
    except EvidenceRefused as error:
        return error.code
    return "accepted"


def second_codes(asked: list[tuple[str, dict[str, object], bytes | None]]) -> list[str]:
    """The same of the JavaScript verifier, in one process."""
    lines = [
        json.dumps({"shown": shown, "root": None if root is None else to_base64(root), "now": NOW})
        for _, shown, root in asked
    ]
    done = subprocess.run(
        [node(), "--no-warnings", str(DRIVER)],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return [json.loads(line).partition(" ")[0] for line in done.stdout.splitlines()]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_odd_certificates_end_alike_at_each_place() -> None:
    message = tpms_attest(b"nonce", list(VALUES.values()), "sha256", range(24))
    signed = keys()[0].sign(message, padding.PKCS1v15(), hashes.SHA256())
    quoted: dict[str, object] = {
        "message": to_base64(message),
        "signature": to_base64(struct.pack(">HHH", 0x14, 0x0B, len(signed)) + signed),
        "registers": [{"index": i, "value": value.hex()} for i, value in VALUES.items()],
        "events": [],
    }
    asked = []
    for place in PLACES:
        for label, odd in oddities(place).items():
            chain = odd_chain(place, odd)
            shown = {**quoted, "certificates": [to_base64(der) for der in chain]}
            asked.append((f"{label} at {place}", shown, chain[-1]))
            if place == len(PLACES) - 1:
                asked.append((f"{label}, for hardware", shown, None))
    said = [own_code(shown, root) for _, shown, root in asked]
    both = list(zip((label for label, *_ in asked), said, second_codes(asked), strict=True))
    assert [answer for answer in both if answer[1] != answer[2]] == []
    accepted = {label for label, code, _ in both if code == "accepted"}
    assert {f"{label} at 0" for label in READ_ALIKE} <= accepted
    counted = Counter(said)
    assert counted["certificate-chain-invalid"] > counted["accepted"] > 40
    assert not any(label.endswith("hardware") for label in accepted)
