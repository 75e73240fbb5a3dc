"""Our own vectors of cosigned checkpoints; their generator shares no code with sealtrain."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sealtrain.consortium.witness import Witnessed, verify_witnessed
from sealtrain.errors import SealtrainError
from sealtrain.records.identity import SEALING_KEY_BYTES, PublicIdentity

REPOSITORY = Path(__file__).resolve().parents[2]
MADE = json.loads((REPOSITORY / "vectors/ledger/cosignatures.json").read_text())


@pytest.mark.parametrize("case", MADE["cases"], ids=lambda case: case["name"])
def test_cosignatures_are_counted_or_refused_by_their_rule(case: dict[str, Any]) -> None:
    witnesses = [
        PublicIdentity.of(
            name, signing_key=base64.b64decode(key), sealing_key=bytes(SEALING_KEY_BYTES)
        )
        for name, key in MADE["witnesses"].items()
    ]

    def verify() -> Witnessed:
        return verify_witnessed(
            case["note"],
            base64.b64decode(MADE["public_key"]),
            origin=MADE["origin"],
            witnesses=witnesses,
            quorum=case["quorum"],
        )

    if case["outcome"] == "ok":
        witnessed = verify()
        assert witnessed.checkpoint.size == case["size"]
        assert witnessed.times == case["times"]
    else:
        with pytest.raises(SealtrainError) as caught:
            verify()
        assert caught.value.code == case["outcome"]


def test_the_generator_is_independent_and_writes_the_same_bytes(tmp_path: Path) -> None:
    generator = REPOSITORY / "tools/vectorgen/witness.py"
    imports = [line for line in generator.read_text().splitlines() if "import " in line]
    assert imports
    assert not any("sealtrain" in line for line in imports)
    subprocess.run([sys.executable, str(generator), str(tmp_path)], check=True, capture_output=True)
    written = (tmp_path / "cosignatures.json").read_bytes()
    assert written == (REPOSITORY / "vectors/ledger/cosignatures.json").read_bytes()
