"""Our own vectors of dataset manifests that state how the data may be used."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sealtrain.consortium.datasets import verify_dataset
from sealtrain.consortium.members import Consortium
from sealtrain.errors import SealtrainError
from sealtrain.signing.dsse import Envelope

REPOSITORY = Path(__file__).resolve().parents[2]
VECTORS = REPOSITORY / "vectors" / "approvals" / "data-use.json"
MADE = json.loads(VECTORS.read_text())
pytestmark = pytest.mark.claim("C178")


@pytest.mark.parametrize("case", [pytest.param(case, id=case["name"]) for case in MADE["cases"]])
def test_a_statement_is_accepted_or_refused_by_its_rule(case: dict[str, Any]) -> None:
    consortium = Consortium.from_dict(MADE["consortium"])
    envelope = Envelope.from_bytes(case["envelope"].encode())
    if case["outcome"] != "ok":
        with pytest.raises(SealtrainError) as caught:
            verify_dataset(envelope, consortium)
        assert caught.value.code == case["outcome"]
        return
    manifest = verify_dataset(envelope, consortium)
    stated = None if manifest.data_use is None else manifest.data_use.to_dict()
    assert stated == case["data_use"]
    assert envelope.digest == case["digest"]
    assert manifest.to_bytes() == envelope.payload


def test_they_are_made_again_byte_for_byte(tmp_path: Path) -> None:
    maker = REPOSITORY / "tools" / "vectorgen" / "data_use.py"
    subprocess.run([sys.executable, str(maker), str(tmp_path)], check=True, timeout=60)
    assert (tmp_path / "data-use.json").read_bytes() == VECTORS.read_bytes()
