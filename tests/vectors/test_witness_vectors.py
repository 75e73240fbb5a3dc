"""Our own vectors of cosigned checkpoints; their generator shares no code with sealtrain."""

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
from sealtrain.ledger.witness import Witnessed, verify_witnessed
from sealtrain.signing.identity import SEALING_KEY_BYTES, PublicIdentity

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
        assert witnessed.head.size == case["size"]
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


QUANTUM = json.loads((REPOSITORY / "vectors/ledger/cosignatures-ml-dsa.json").read_text())


@pytest.mark.parametrize("case", QUANTUM["cases"], ids=lambda case: case["name"])
def test_cosignatures_by_a_post_quantum_key(case: dict[str, Any]) -> None:
    owner = PublicIdentity.of(
        QUANTUM["owner"],
        signing_key=base64.b64decode(QUANTUM["signing_key"]),
        sealing_key=bytes(SEALING_KEY_BYTES),
        witness_key=base64.b64decode(QUANTUM["witness_key"]),
    )

    def verify() -> Witnessed:
        return verify_witnessed(
            case["note"],
            base64.b64decode(QUANTUM["public_key"]),
            origin=QUANTUM["origin"],
            witnesses=[owner],
            quorum=1,
        )

    if case["outcome"] == "ok":
        assert verify().times == {owner.name: QUANTUM["time"]}
    else:
        with pytest.raises(SealtrainError) as caught:
            verify()
        assert caught.value.code == case["outcome"]


def test_the_post_quantum_generator_is_independent_and_writes_all_but_the_same_signatures(
    tmp_path: Path,
) -> None:
    generator = REPOSITORY / "tools/vectorgen/witness_ml_dsa.py"
    imports = [line for line in generator.read_text().splitlines() if "import " in line]
    assert not any("sealtrain" in line for line in imports)
    subprocess.run([sys.executable, str(generator), str(tmp_path)], check=True, capture_output=True)

    def unsigned(path: Path) -> str:
        # Key id and time stay; signing is hedged, so the rest differs from run to run.
        return re.sub(r"([A-Za-z0-9+/]{16})[A-Za-z0-9+/]{3000,}=*", r"\1", path.read_text())

    written = unsigned(tmp_path / "cosignatures-ml-dsa.json")
    assert written == unsigned(REPOSITORY / "vectors/ledger/cosignatures-ml-dsa.json")
    assert "subtree/v1" in bytes.fromhex(QUANTUM["message"]).decode("latin-1")
