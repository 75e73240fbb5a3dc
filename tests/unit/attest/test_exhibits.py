"""Files are recognised by their bytes: every vector, every text form, no byte string is a bug."""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path

import pytest
from carrying import carries
from exhibit_world import FAMILIES
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sealtrain.attest.errors import EvidenceMalformed
from sealtrain.attest.exhibits import MAX_FILE_BYTES, recognise
from sealtrain.errors import DataInvalid, FormatUnknown, SealtrainError

KINDS = {
    "tdx/tdx_quote": "tdx-quote",
    "tdx/tdx_quote_outdated": "tdx-quote",
    "tdx/tdx-quote.hex": "tdx-quote",
    "tdx/quote-from-tappd.hex": "tdx-quote",
    "tdx/near-gas-test/quote_hex.txt": "tdx-quote",
    "tdx/own-mock/quote.bin": "tdx-quote",
    "tdx/sgx_quote": "sgx-quote",
    "dstack/simulator-v0.5.4/quote.hex": "tdx-quote",
    "dstack/simulator-v0.5.4/eventlog.json": "event-log",
    "dstack/simulator-head/attestation.bin": "dstack-quote",
    "dstack/rtmr3-based/report.json": "dstack-quote",
    "dstack/verifier-fixtures/quote-report.json": "dstack-quote",
    "dstack/verifier-fixtures/tdx-lite-getquote.json": "dstack-quote",
    "dstack/verifier-fixtures/tdx-lite-attestation.json": "dstack-quote",
    "dstack/verifier-fixtures/sev-snp-attestation.json": "dstack-snp-report",
    "dstack/gpu/gpu_attestation_h100.json": "gpu-verdict",
    "dstack/ccel/ccel.bin": "boot-log",
    "nvidia/nras_eat_2025.json": "gpu-verdict",
    "nvidia/nras_eat_2025_decoded.json": "gpu-claims",
}
SUFFIXES = {
    ".cose": "nitro-document",
    ".report.bin": None,  # by folder, below
    ".pem": "certificates",
    ".der": "certificates",
    "app-compose.json": "deployment",
    "collateral.json": "tdx-collateral",
    ".xml": "reference-values",
    ".swidtag": "reference-values",
}
SECRET = ("appkeys.json", "test_recipient_rsa2048_key.pem")
OTHERS = (
    "SOURCES.md",
    "expected.json",
    "expected-results.json",
    "sys-config.json",
    "contract-abi-ids.json",
    "published-constants.json",
    "expected_plaintext.bin",
    "cms_enveloped_der.bin",
    "cms_enveloped_ber_indefinite.bin",
)


def kind_of(name: str) -> str:
    if name in KINDS:
        return KINDS[name]
    if name.endswith(".report.bin"):
        return "snp-report" if name.startswith("sev-snp") else "gpu-report"
    for suffix, kind in SUFFIXES.items():
        if name.endswith(suffix) and kind is not None:
            return kind
    assert name.startswith("nvidia/"), name
    return "gpu-evidence"


def test_every_vector_is_recognised_as_what_it_is_or_refused_clearly(shared: Path) -> None:
    seen = 0
    for family in FAMILIES:
        for path in sorted((shared / "vectors" / family).rglob("*")):
            if not path.is_file():
                continue
            seen += 1
            name = path.relative_to(shared / "vectors").as_posix()
            if path.name in SECRET:
                with pytest.raises(DataInvalid, check=carries(check="secret key")):
                    recognise(path.read_bytes())
            elif path.name in OTHERS:
                with pytest.raises(FormatUnknown):
                    recognise(path.read_bytes())
            else:
                assert recognise(path.read_bytes()).kind == kind_of(name), name
    assert seen > 70


def test_what_was_recognised_is_recognised_again_by_its_bytes(shared: Path) -> None:
    """What a bundle keeps must still be the same thing when it is opened."""
    for name in KINDS:
        first = recognise((shared / "vectors" / name).read_bytes())
        again = recognise(first.raw)
        assert (again.kind, again.raw) == (first.kind, first.raw)


def test_padding_and_text_do_not_change_a_quote(shared: Path) -> None:
    data = (shared / "vectors/tdx/tdx_quote").read_bytes()
    raw = recognise(data).raw
    assert data.startswith(raw)
    lines = "\n".join(data.hex()[at : at + 64] for at in range(0, 2 * len(data), 64))
    for form in (
        raw,
        data + bytes(100),
        data.hex().encode(),
        b"0x" + data.hex().upper().encode() + b"\n",
        b"  " + lines.encode() + b"\n\n",
        b64encode(data),
        b64encode(data) + b"\n",
    ):
        assert recognise(form).raw == raw


def test_documents_and_reports_may_come_as_text(shared: Path) -> None:
    for name in ("nitro/prod_2025_pubkey.cose", "sev-snp/genoa_azure_v3.report.bin"):
        data = (shared / "vectors" / name).read_bytes()
        for form in (data.hex().encode(), b64encode(data)):
            assert recognise(form).raw == data


def test_a_secret_key_is_never_shown() -> None:
    key = "5ec4e7" * 10
    for data in (
        json.dumps({"k256_key": key}).encode(),
        f"-----BEGIN PRIVATE KEY-----\n{key}\n-----END PRIVATE KEY-----\n".encode(),
    ):
        with pytest.raises(DataInvalid) as refused:
            recognise(data)
        assert key not in str(refused.value.to_dict())


def test_a_known_form_that_is_malformed_is_refused_as_evidence(shared: Path) -> None:
    quote = (shared / "vectors/tdx/tdx_quote").read_bytes()
    report = json.loads((shared / "vectors/dstack/rtmr3-based/report.json").read_text())
    for data, code in (
        (quote[:3000], "quote-invalid"),
        (quote + b"\1", "quote-invalid"),
        (json.dumps({**report, "event_log": "[]"}).encode(), "evidence-malformed"),
        (json.dumps({**report, "quote": "zz"}).encode(), "evidence-malformed"),
        (b'{"version":2,"platform":"tdx","cpu":{}}', "evidence-malformed"),
        (b'{"kind":1,"evidence":1,"verified_at":1}', "evidence-malformed"),
    ):
        with pytest.raises(SealtrainError) as refused:
            recognise(data)
        assert refused.value.code == code


def test_a_file_over_the_limit_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(EvidenceMalformed):
        recognise(b"[" * (MAX_FILE_BYTES + 1))


def test_deep_and_long_text_end_quickly() -> None:
    for data in (
        b"[" * 100_000,
        b"ab " * 300_000 + b"!",
        b"a" * 900_001 + b"=",
        b"{" + b'"a":' * 50_000,
        b"\x8f" * 100_000,
    ):
        with pytest.raises((DataInvalid, EvidenceMalformed)):
            recognise(data)


STARTS = (
    b"\x04\0\x02\0\x81\0\0\0",
    b"\x05\0\x02\0\x81\0\0\0",
    b"\x03\0\x02\0\0\0\0\0",
    b"\x11\xe0\x01\xff",
    b"\x84\x44\xa1\x01\x38\x22",
    b"\xd2\x84\x44\xa1\x01\x38\x22",
    b"\x02\0\0\0",
    b"\x30\x82",
    b"\0\0",
    b"\x83\xa7version",
    b"<SoftwareIdentity ",
    b"-----BEGIN CERTIFICATE-----\n",
    bytes(32) + b"Spec ID Event03\0",
    b'{"quote":"", "event_log":',
    b'[["JWT", "a"], ',
    b'[{"imr":0}',
    b"",
)


@settings(deadline=None)
@given(st.sampled_from(STARTS), st.binary(max_size=1300))
@example(b"", b"")
@example(b"\x02\0\0\0", bytes(1180))
def test_any_bytes_are_recognised_or_end_in_a_typed_error(start: bytes, rest: bytes) -> None:
    try:
        found = recognise(start + rest)
    except SealtrainError:
        return
    assert found.kind


NAMES = [
    "quote",
    "event_log",
    "attestation",
    "detached_eat",
    "devices",
    "claims",
    "imr",
    "tcb_info",
    "pck_crl",
    "rims",
    "ocsp",
    "evidence",
    "certificate",
    "eat_nonce",
    "version",
    "platform",
    "cpu",
    "kind",
    "verified_at",
    "manifest_version",
]


@settings(deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(NAMES),
                inner,
                max_size=4,
            )
        ),
        max_leaves=8,
    )
)
def test_any_json_is_recognised_or_ends_in_a_typed_error(value: object) -> None:
    try:
        found = recognise(json.dumps(value).encode())
    except SealtrainError:
        return
    assert found.kind
