"""Files of dstack and TDX that others made: accepted where they hold, refused when touched."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from guests import verify_log
from policies import intel

from sealtrain.attest.dstack import keys
from sealtrain.attest.dstack.parse import parse_attestation, parse_event_log
from sealtrain.attest.dstack.secp256k1 import sign_recoverable
from sealtrain.attest.errors import (
    ComposeHashMismatch,
    EventLogMismatch,
    EvidenceMalformed,
    PlatformMismatch,
    TcbStatusRefused,
)
from sealtrain.attest.evidence import Collateral, LogEntry
from sealtrain.attest.policy import policy_from_dict
from sealtrain.attest.tdx.parse import TdxQuote, canonical_quote, parse_quote
from sealtrain.attest.tdx.verify import verify_quote
from sealtrain.base.secret import Secret
from sealtrain.errors import EvidenceRefused, KeyProviderMismatch, Refused

pytestmark = pytest.mark.claim("C16")

RULES = policy_from_dict(intel(advisories="any")).cpu


def quote_named(folder: Path, name: str) -> bytes:
    """A quote by the name that the table of expected results gives it."""
    named = {
        "dstack quote-report": folder / "dstack/verifier-fixtures/quote-report.json",
        "dstack tdx-lite-getquote": folder / "dstack/verifier-fixtures/tdx-lite-getquote.json",
        "dstack simulator-v0.5.4": folder / "dstack/simulator-v0.5.4/quote.hex",
        "dstack-examples rtmr3-based": folder / "dstack/rtmr3-based/report.json",
        "near-gas-test": folder / "tdx/near-gas-test/quote_hex.txt",
        "quote-from-tappd": folder / "tdx/quote-from-tappd.hex",
    }
    path = named.get(name, folder / "tdx" / name)
    if path.suffix == ".json":
        return bytes.fromhex(json.loads(path.read_text())["quote"])
    if path.suffix in (".hex", ".txt"):
        return bytes.fromhex(path.read_text().strip().removeprefix("0x"))
    return path.read_bytes()


def test_the_table_of_expected_results_is_ours_too(shared: Path) -> None:
    """40 pairs of quote and collateral. Only TDX guests with their own collateral pass."""
    folder = shared / "vectors"
    table = json.loads((folder / "tdx/expected-results.json").read_text())["matrix"]
    accepted, refused = 0, 0
    for row in table:
        name = row["collateral"].removesuffix("_collateral") + "_collateral.json"
        if row["collateral"] == "near-gas-test":
            name = "near-gas-test/quote_collateral.json"
        collateral = Collateral.from_dict(json.loads((folder / "tdx" / name).read_text()))
        raw = quote_named(folder, row["quote"])
        sgx = row["quote"] == "sgx_quote"

        def checked(
            raw: bytes = raw, collateral: Collateral = collateral, now: int = row["now"]
        ) -> Any:
            cut = raw if raw[4] != 0x81 else canonical_quote(raw)
            return verify_quote(cut, collateral, RULES, simulator_root=None, now=now)

        if row.get("status") == "UpToDate":
            assert checked().tcb_status == "UpToDate"
            accepted += 1
            continue
        with pytest.raises(PlatformMismatch if sgx else EvidenceRefused) as caught:
            checked()
        if "No matching TCB level" in row.get("error", ""):
            assert isinstance(caught.value, TcbStatusRefused)
        refused += 1
    assert (accepted, refused) == (3, len(table) - 3)
    assert refused > 30


# --- Logs --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def example(shared: Path) -> tuple[TdxQuote, tuple[LogEntry, ...], bytes]:
    """The one public guest whose deployment document is public too."""
    folder = shared / "vectors/dstack/rtmr3-based"
    report = json.loads((folder / "report.json").read_text())
    quote = parse_quote(canonical_quote(bytes.fromhex(report["quote"])))
    compose = (folder / "app-compose.json").read_bytes()
    return quote, parse_event_log(report["event_log"]), compose


@pytest.mark.negative(23)
def test_no_byte_of_a_real_deployment_document_can_be_changed(
    example: tuple[TdxQuote, tuple[LogEntry, ...], bytes],
) -> None:
    quote, log, compose = example
    verify_log(log, quote.rtmr, quote.mr_config_id, compose)
    for at in range(0, len(compose), max(1, len(compose) // 60)):
        changed = compose[:at] + bytes([compose[at] ^ 1]) + compose[at + 1 :]
        with pytest.raises(ComposeHashMismatch):
            verify_log(log, quote.rtmr, quote.mr_config_id, changed)


@pytest.mark.negative(23)
def test_no_event_of_a_real_log_can_be_changed(
    example: tuple[TdxQuote, tuple[LogEntry, ...], bytes],
) -> None:
    quote, log, compose = example
    tried = 0
    for index, entry in enumerate(log):
        for changed in variants(entry):
            altered = (*log[:index], changed, *log[index + 1 :])
            with pytest.raises(EventLogMismatch):
                verify_log(altered, quote.rtmr, quote.mr_config_id, compose)
            tried += 1
    assert tried > 40


def variants(entry: LogEntry) -> Iterator[LogEntry]:
    if entry.imr < 3:
        first = entry.digest[0]
        yield entry.model_copy(update={"digest": ("0" if first != "0" else "1") + entry.digest[1:]})
        yield entry.model_copy(update={"imr": 3})
        return
    yield entry.model_copy(update={"event": entry.event + "-"})
    yield entry.model_copy(update={"event_payload": entry.event_payload + "00"})
    yield entry.model_copy(update={"version": 2})
    yield entry.model_copy(update={"event_type": entry.event_type + 1})


@pytest.mark.negative(23)
def test_no_digit_of_a_real_register_can_be_changed(
    example: tuple[TdxQuote, tuple[LogEntry, ...], bytes],
) -> None:
    quote, log, compose = example
    for index in range(4):
        for at in range(0, 96, 19):
            text = quote.rtmr[index]
            other = text[:at] + ("0" if text[at] != "0" else "1") + text[at + 1 :]
            registers = list(quote.rtmr)
            registers[index] = other
            with pytest.raises(EventLogMismatch):
                verify_log(
                    log,
                    (registers[0], registers[1], registers[2], registers[3]),
                    quote.mr_config_id,
                    compose,
                )


# --- Blobs -------------------------------------------------------------------------------------


def test_a_real_blob_and_a_real_quote_of_one_guest_agree(shared: Path) -> None:
    folder = shared / "vectors/dstack/verifier-fixtures"
    blob = json.loads((folder / "tdx-lite-attestation.json").read_text())["attestation"]
    quote, log, _, _ = parse_attestation(bytes.fromhex(blob))
    plain = json.loads((folder / "tdx-lite-getquote.json").read_text())
    of_the_blob = parse_quote(canonical_quote(quote))
    of_the_call = parse_quote(canonical_quote(bytes.fromhex(plain["quote"])))
    assert of_the_blob.rtmr == of_the_call.rtmr
    runtime = [entry for entry in parse_event_log(plain["event_log"]) if entry.imr == 3]
    assert list(log) == runtime


def test_a_real_blob_of_another_processor_is_not_taken_for_one(shared: Path) -> None:
    path = shared / "vectors/dstack/verifier-fixtures/sev-snp-attestation.json"
    blob = bytes.fromhex(json.loads(path.read_text())["attestation"])
    with pytest.raises(PlatformMismatch) as refused:
        parse_attestation(blob)
    assert refused.value.got == "amd-sev-snp"


def test_a_real_blob_cut_or_prolonged_anywhere_is_refused(shared: Path) -> None:
    path = shared / "vectors/dstack/verifier-fixtures/tdx-lite-attestation.json"
    blob = bytes.fromhex(json.loads(path.read_text())["attestation"])
    for data in (*(blob[:cut] for cut in range(0, len(blob), 61)), blob + b"\0"):
        with pytest.raises(EvidenceMalformed):
            parse_attestation(data)


# --- Keys --------------------------------------------------------------------------------------


def test_no_byte_of_a_real_key_chain_can_be_changed(shared: Path) -> None:
    """Two signatures, the claim, the app: each byte is one of a chain to the pinned root or not."""
    folder = shared / "vectors/dstack"
    published = json.loads((folder / "published-constants.json").read_text())["simulator_v054"]
    stored = json.loads((folder / "simulator-v0.5.4/appkeys.json").read_text())
    app_key = Secret(bytes.fromhex(stored["k256_key"]))
    app_id, root = bytes.fromhex(published["app_id"]), bytes.fromhex(published["kms_root_pub"])
    key = keys.derive_v0(app_key, "test")
    claim = keys.claim_v0("p", keys.public_half(key, "secp256k1"))
    chain = (sign_recoverable(app_key, claim), bytes.fromhex(stored["k256_signature"]))
    keys.verify_chain(chain, claim=claim, app_id=app_id, root_key=root)
    for link in (0, 1):
        for at in (0, 17, 31, 32, 49, 63, 64):
            altered = list(chain)
            altered[link] = flipped(chain[link], at)
            with pytest.raises(Refused):
                keys.verify_chain(
                    (altered[0], altered[1]), claim=claim, app_id=app_id, root_key=root
                )
    for at in (0, 2, len(claim) // 2, len(claim) - 1):
        with pytest.raises(Refused):
            keys.verify_chain(chain, claim=flipped(claim, at), app_id=app_id, root_key=root)
    for at in (0, 19):
        with pytest.raises(KeyProviderMismatch):
            keys.verify_chain(chain, claim=claim, app_id=flipped(app_id, at), root_key=root)


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
