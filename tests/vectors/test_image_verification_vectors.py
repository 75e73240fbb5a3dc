"""Our own vectors of owners' records that an image was accounted for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sealtrain.base.clock import from_rfc3339
from sealtrain.consortium.members import Consortium
from sealtrain.consortium.verifications import verify_image_record
from sealtrain.errors import SealtrainError
from sealtrain.signing.dsse import Envelope

REPOSITORY = Path(__file__).resolve().parents[2]
VECTORS = REPOSITORY / "vectors" / "image" / "verification.json"
MADE = json.loads(VECTORS.read_text())
pytestmark = pytest.mark.claim("C171")


@pytest.mark.parametrize("case", [pytest.param(case, id=case["name"]) for case in MADE["cases"]])
def test_a_record_holds_or_is_refused_by_its_rule(case: dict[str, Any]) -> None:
    envelope = Envelope.from_bytes(case["envelope"].encode())
    consortium = Consortium.from_dict(MADE["consortium"])
    now = from_rfc3339(MADE["now"])
    if case["outcome"] != "ok":
        with pytest.raises(SealtrainError) as caught:
            verify_image_record(envelope, consortium, **MADE["lock"], now=now)
        assert caught.value.code == case["outcome"]
        return
    signed = verify_image_record(envelope, consortium, **MADE["lock"], now=now)
    assert signed.digest == case["digest"]
    assert signed.document.to_bytes() == envelope.payload


def test_they_are_made_again_byte_for_byte(tmp_path: Path) -> None:
    maker = REPOSITORY / "tools" / "vectorgen" / "image_verification.py"
    subprocess.run([sys.executable, str(maker), str(tmp_path)], check=True, timeout=60)
    assert (tmp_path / "verification.json").read_bytes() == VECTORS.read_bytes()
