"""Attestation of others is named, and told what would stand in its place."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from public_evidence import published

from sealtrain.attest.errors import EvidenceMalformed
from sealtrain.attest.exhibits import recognise
from sealtrain.errors import FormatUnknown, SealtrainError


def token(payload: Any, header: Any = None) -> bytes:
    parts = [{"alg": "RS256", "typ": "JWT"} if header is None else header, payload]
    encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in parts]
    return b".".join([*encoded, b"c2lnbmF0dXJl"])


def tools(tee: int | None = None) -> bytes:
    """An attestation of go-tpm-tools: key, quotes, log, and perhaps what a processor signed."""
    fields = {1: b"\0\1\0\x0b" + bytes(274), 2: b"\n\5quote", 3: bytes(20_000)}
    fields |= {} if tee is None else {tee: bytes(3)}

    def varint(value: int) -> bytes:
        low, high = value & 0x7F, value >> 7
        return bytes([low | 0x80]) + varint(high) if high else bytes([low])

    return b"".join(
        bytes([number << 3 | 2]) + varint(len(held)) + held for number, held in fields.items()
    )


FILES = {
    "Azure Attestation": token({"iss": "https://sharedeus.eus.attest.azure.net"}),
    "Intel Trust Authority": token({"iss": "https://portal.trustauthority.intel.com"}),
    "Confidential Space": token({"iss": "https://confidentialcomputing.googleapis.com"}),
    "EAR": token({"ear.verifier-id": {"build": "x", "developer": "y"}, "submods": {}}),
    "another service": token({"iss": "https://issuer.example"}),
    "without an issuer": token({"sub": "x"}),
    "an issuer that is no text": token({"iss": 7}),
    "Arm CCA": b"\xd9\x01\x8f\xa2\x19\xac\xca\x58\x20" + bytes(32),
    "Arm CCA, hexadecimal": (b"\xd9\x03\x8b\xa2" + bytes(64)).hex().encode(),
    "Azure HCL": b"HCLA" + bytes(2600),
    "TPM quote": b"\xffTCG\x80\x18" + bytes(139),
    "EAR, decoded": b'{"ear.verifier-id": {"build": "x"}, "submods": {}}',
    "vaportpm": b'{"nonce": "00", "pcrs": {}, "ak_pubkeys": {}, "attestation": {}}',
    "vaportpm, Google": b'{"ak_pubkeys": {}, "attestation": {"tpm": {}, "gcp": {}}}',
    "vaportpm, EC2": b'{"ak_pubkeys": {}, "attestation": {"tpm": {}, "nitro": {}}}',
    "Confidential Containers, TPM": b'{"svn": "1", "ak_public": "", "tpm_quote": {}}',
    "az-cvm-vtpm": (256).to_bytes(8, "little") + bytes(264) + b"\xffTCG\x80\x18" + bytes(139),
    "go-tpm-tools": tools(),
    "go-tpm-tools, SEV-SNP": tools(8),
    "go-tpm-tools, TDX": tools(9),
    "go-tpm-tools, text": b'ak_pub: "\\000\\001"\nquotes: {\n}\n',
    "go-tpm-tools, SEV-SNP, text": b'ak_pub: "\\000\\001"\nsev_snp_attestation: {\n}\n',
    "go-tpm-tools, TDX, text": b'ak_pub: "\\000\\001"\ntdx_attestation: {\n}\n',
}


@pytest.mark.parametrize("data", FILES.values(), ids=FILES)
def test_it_is_named_and_its_reader_told_what_to_bring(data: bytes) -> None:
    with pytest.raises(FormatUnknown) as refused:
        recognise(data)
    assert refused.value.got
    assert refused.value.hint
    assert str(refused.value.got) in refused.value.message


def test_each_has_a_name_of_its_own() -> None:
    names = set()
    for data in FILES.values():
        with pytest.raises(FormatUnknown) as refused:
            recognise(data)
        names.add(refused.value.got)
    # Three tokens of any other service, Arm's in two ways and three texts have no own name.
    assert len(names) == len(FILES) - 2 - 1 - 1 - 3


def test_a_real_nitrotpm_document_is_no_malformed_enclave() -> None:
    told = json.loads(published("a NitroTPM without Secure Boot"))
    document = bytes.fromhex(told["attestation"]["nitro"]["document"])
    with pytest.raises(FormatUnknown) as refused:
        recognise(document)
    assert "NitroTPM" in str(refused.value.got)
    quote = bytes.fromhex(told["attestation"]["tpm"]["ecc_p256"]["attest_data"])
    with pytest.raises(FormatUnknown):
        recognise(quote)
    with pytest.raises(FormatUnknown):
        recognise(json.dumps(told).encode())


@pytest.mark.parametrize(
    "issuer",
    ["https://attest.azure.net.evil.example", "https://evilattest.azure.net", "attest.azure.net"],
)
def test_a_name_that_only_looks_alike_is_another_service(issuer: str) -> None:
    with pytest.raises(FormatUnknown) as refused:
        recognise(token({"iss": issuer}))
    with pytest.raises(FormatUnknown) as other:
        recognise(FILES["another service"])
    assert refused.value.got == other.value.got


@pytest.mark.parametrize(
    "data",
    [
        token([1]),
        token({"iss": "x"}, header={"typ": "JWT"}),
        token({"iss": "x"}, header=[]),
        b"aaaa.bbbb.cccc",
        b"e30.e30.",
        b"\n\xff\x7f\0\1\0\x0c",
        b"\n\4\0\2\0\x0b",
        (256).to_bytes(8, "little") + bytes(300),
        b"....",
        b"a." * 1000,
        token({"iss": "https://x", "pad": "x" * (300 << 10)}),
        token(json.loads("[" * 40 + "]" * 40)),
    ],
)
def test_what_is_no_token_is_no_form_at_all(data: bytes) -> None:
    with pytest.raises(SealtrainError) as refused:
        recognise(data)
    assert isinstance(refused.value, FormatUnknown | EvidenceMalformed)
    assert refused.value.got is None or "token" not in str(refused.value.got)


@pytest.mark.parametrize(
    "name",
    [
        "the vTPM of a Google machine with SEV-SNP",
        "a quote of an Azure vTPM",
        "TPM evidence of Confidential Containers",
        "a Google machine by go-tpm-tools",
    ],
)
def test_published_files_of_other_tools_are_named(name: str) -> None:
    with pytest.raises(FormatUnknown) as refused:
        recognise(published(name))
    assert refused.value.got


def test_a_message_of_many_fields_or_of_lengths_beyond_it_is_read_in_bounds() -> None:
    begins = b"\n\4\0\1\0\x0b"
    plain = str(_named(tools()))
    for tail in (b"\x12\0" * 100_000, b"\x12" + b"\xff" * 20, b"\x42", b"\x12\x7f", b"\x08\1", b""):
        assert _named(begins + tail) in (plain, _named(tools(8)))
    assert _named(begins + b"\x12\0" * 1000 + b"\x42\0") == plain


def _named(data: bytes) -> object:
    with pytest.raises(FormatUnknown) as refused:
        recognise(data)
    return refused.value.got
