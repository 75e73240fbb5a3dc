"""Our own vectors of key rotations; their generator shares no code with sealtrain."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sealtrain.errors import SealtrainError
from sealtrain.ledger.rotation import read_rotation

REPOSITORY = Path(__file__).resolve().parents[2]
VECTORS = REPOSITORY / "vectors/ledger/rotations.json"
MADE = json.loads(VECTORS.read_text())


@pytest.mark.parametrize("case", MADE["cases"], ids=lambda case: case["name"])
def test_a_rotation_holds_or_is_refused_by_its_rule(case: dict[str, Any]) -> None:
    if case["outcome"] == "ok":
        found = read_rotation(case["body"], origin=MADE["origin"])
        assert found.old == base64.b64decode(MADE["old_key"])
        assert found.new == base64.b64decode(MADE["new_key"])
        assert found.rotated_at == MADE["rotated_at"]
        return
    with pytest.raises(SealtrainError) as caught:
        read_rotation(case["body"], origin=MADE["origin"])
    assert caught.value.code == case["outcome"]


def test_the_generator_writes_the_same_bytes_and_does_not_know_us(tmp_path: Path) -> None:
    generator = REPOSITORY / "tools/vectorgen/rotations.py"
    assert not re.search(r"^\s*(import|from) sealtrain", generator.read_text(), re.MULTILINE)
    subprocess.run([sys.executable, str(generator), str(tmp_path)], check=True, timeout=60)
    assert (tmp_path / VECTORS.name).read_bytes() == VECTORS.read_bytes()
