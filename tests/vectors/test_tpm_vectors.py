"""``vectors/tpm`` comes from a generator that shares no code with sealtrain."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import load_der_public_key

from sealtrain.attest.dstack.parse import log_entries
from sealtrain.attest.dstack.verify import replay_register
from sealtrain.attest.tpm.log import parse_log
from sealtrain.attest.tpm.quote import check_key, check_registers, check_signature, parse_quote
from sealtrain.errors import SealtrainError

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "vectors" / "tpm"
CASES: dict[str, list[dict[str, Any]]] = json.loads((FOLDER / "machines.json").read_text())["cases"]


def named(case: dict[str, Any]) -> str:
    return str(case["name"])


@pytest.mark.parametrize("case", CASES["quotes"], ids=named)
def test_each_quote_ends_as_its_vector_says(case: dict[str, Any]) -> None:
    if case["outcome"] != "ok":
        with pytest.raises(SealtrainError) as caught:
            parse_quote(bytes.fromhex(case["message"]))
        assert caught.value.code == case["outcome"]
        return
    quote = parse_quote(bytes.fromhex(case["message"]))
    values = {int(index): bytes.fromhex(register) for index, register in case["registers"].items()}
    assert (quote.bank, quote.selection) == (case["bank"], tuple(sorted(values)))
    assert quote.qualifying_data.hex() == case["qualifying_data"]
    assert quote.identity == case["identity"]
    check_registers(quote, values)
    key = check_key(load_der_public_key(bytes.fromhex(case["key"])))
    check_signature(quote, bytes.fromhex(case["signature"]), key)


@pytest.mark.parametrize("case", CASES["event_registers"], ids=lambda case: case["bank"])
def test_each_log_extends_the_register_of_its_vector(case: dict[str, Any]) -> None:
    assert replay_register(log_entries(case["log"]), case["bank"]).hex() == case["register"]


@pytest.mark.parametrize("case", CASES["boot_logs"], ids=named)
def test_each_boot_log_ends_as_its_vector_says(case: dict[str, Any]) -> None:
    if case["outcome"] != "ok":
        with pytest.raises(SealtrainError) as caught:
            parse_log(bytes.fromhex(case["log"]))
        assert caught.value.code == case["outcome"]
        return
    log = parse_log(bytes.fromhex(case["log"]))
    for bank, registers in case["registers"].items():
        for index, value in registers.items():
            assert log.replay(int(index), bank).hex() == value


def test_the_generator_writes_the_same_file_and_imports_nothing_of_ours(tmp_path: Path) -> None:
    generator = ROOT / "tools" / "vectorgen" / "tpm.py"
    subprocess.run([sys.executable, str(generator), str(tmp_path)], check=True)
    written = (tmp_path / "machines.json").read_bytes()
    assert written == (FOLDER / "machines.json").read_bytes()
    source = generator.read_text()
    assert "import sealtrain" not in source
    assert "from sealtrain" not in source
