"""Vectors of owners' signed requests (RFC 9421), made without sealtrain or a library for it.

Writes ``vectors/requests/signatures.json``. Everything follows from fixed seeds, so a second run
writes the same bytes. Run: ``python tools/vectorgen/signed_requests.py [FOLDER]``.
"""

from __future__ import annotations

import base64
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

Json = Any
OUT = Path(__file__).resolve().parents[2] / "vectors" / "requests"
TIME = 1_772_366_400
NONCE = "0f" * 16
URL = "https://broker.example/sealtrain/v1/approvals"
AUTHORITY = "broker.example"
BODY = b'{"payload":"e30="}'
PARTS = ("@method", "@authority", "@target-uri", "content-digest", "sealtrain-broker")
BROKER, FORMER, OTHER_BROKER = "b0" * 32, "b1" * 32, "b2" * 32


def key(seed: str) -> Ed25519PrivateKey:
    """A private key out of a text."""
    return Ed25519PrivateKey.from_private_bytes(hashlib.sha256(seed.encode()).digest())


def public(private: Ed25519PrivateKey) -> bytes:
    """Its public half."""
    return private.public_key().public_bytes_raw()


def text64(data: bytes) -> str:
    """Standard base64."""
    return base64.b64encode(data).decode()


def key_id(private: Ed25519PrivateKey) -> str:
    """How a key is named."""
    return "ed25519:" + hashlib.sha256(public(private)).hexdigest()


def digest(body: bytes, name: str = "sha-256") -> str:
    """A Content-Digest field (RFC 9530)."""
    return f"{name}=:{text64(hashlib.new(name.replace('-', ''), body).digest())}:"


def sign(
    *,
    seed: str = "owner a",
    keyid: str | None = None,
    url: str = URL,
    authority: str = AUTHORITY,
    method: str = "POST",
    covered: Json = PARTS,
    parameters: Json = None,
    content_digest: str | None = None,
    broker: str = BROKER,
    label: str = "owner",
    **changed: Json,
) -> list[list[str]]:
    """Headers of one request; ``changed`` replaces parameters, ``None`` leaves one out."""
    private = key(seed)
    content_digest = digest(BODY) if content_digest is None else content_digest
    values = {
        "@method": method,
        "@authority": authority,
        "@target-uri": url,
        "content-digest": content_digest,
        "content-type": "application/json",
        "sealtrain-broker": broker,
    }
    given: dict[str, Json] = (
        {
            "created": TIME,
            "keyid": keyid or key_id(private),
            "alg": "ed25519",
            "nonce": NONCE,
            "tag": "sealtrain-owner",
        }
        | (parameters or {})
        | changed
    )
    written = "".join(
        f";{name}={value if isinstance(value, int) else chr(34) + value + chr(34)}"
        for name, value in given.items()
        if value is not None
    )
    members = " ".join(f'"{part}"' for part in covered)
    described = f"({members}){written}"
    base = "".join(f'"{part}": {values[part]}\n' for part in covered)
    base += f'"@signature-params": {described}'
    signature = text64(private.sign(base.encode()))
    return [
        ["content-type", "application/json"],
        ["content-digest", content_digest],
        ["sealtrain-broker", broker],
        ["signature-input", f"{label}={described}"],
        ["signature", f"{label}=:{signature}:"],
    ]


def case(name: str, outcome: str, headers: list[list[str]], **changed: Json) -> Json:
    """One case; ``changed`` replaces what is verified."""
    return {
        "name": name,
        "method": "POST",
        "url": URL,
        "headers": headers,
        "body": BODY.decode(),
        "now": TIME,
        "outcome": outcome,
    } | changed


def without(headers: list[list[str]], name: str) -> list[list[str]]:
    """The headers but one."""
    return [header for header in headers if header[0] != name]


def two(first: list[list[str]], second: list[list[str]]) -> list[list[str]]:
    """A request with two signatures."""
    return [*first, *(value for value in second if value[0].startswith("signature"))]


def cases() -> list[Json]:
    """Every case."""
    good = sign()
    other = "http://127.0.0.1:8470/v1/approvals"
    flipped = text64(bytes(64))
    return [
        case("signed", "ok", good),
        case("at the last second", "ok", good, now=TIME + 300),
        case("dated ahead as far as is borne", "ok", good, now=TIME - 60),
        case(
            "with a port",
            "ok",
            sign(url=other, authority="127.0.0.1:8470"),
            url=other,
        ),
        case("digest of another kind", "ok", sign(content_digest=digest(BODY, "sha-512"))),
        case(
            "beside a signature of somebody's proxy",
            "ok",
            two(good, sign(seed="proxy", label="proxy", tag="proxy")),
        ),
        case("too old", "request-stale", good, now=TIME + 301),
        case("dated too far ahead", "request-stale", good, now=TIME - 61),
        case("at no real time", "request-stale", sign(created=-1)),
        case("not signed", "signature-invalid", [["content-type", "application/json"]]),
        case("no digest", "signature-invalid", without(good, "content-digest")),
        case("no signature", "signature-invalid", without(good, "signature")),
        case("no input", "signature-invalid", without(good, "signature-input")),
        case("by a stranger", "signature-invalid", sign(seed="stranger")),
        case(
            "by a stranger with an owner's name",
            "signature-invalid",
            sign(seed="stranger", keyid=key_id(key("owner a"))),
        ),
        case("another owner's name", "signature-invalid", sign(keyid=key_id(key("owner b")))),
        case(
            "another signature",
            "signature-invalid",
            [*without(good, "signature"), ["signature", f"owner=:{flipped}:"]],
        ),
        case("another body", "signature-invalid", good, body=BODY.decode() + " "),
        case("another path", "signature-invalid", good, url=URL.replace("approvals", "datasets")),
        case("another broker", "signature-invalid", good, url=URL.replace("broker", "other")),
        case("without TLS", "signature-invalid", good, url=URL.replace("https", "http")),
        case("a query added", "signature-invalid", good, url=URL + "?a=1"),
        case("another method", "signature-invalid", good, method="PUT"),
        case("for the broker's former id", "ok", sign(broker=FORMER)),
        case("for another broker behind one URL", "broker-mismatch", sign(broker=OTHER_BROKER)),
        case("for no broker", "broker-mismatch", sign(broker="")),
        case(
            "for two brokers",
            "broker-mismatch",
            sign(broker=f"{BROKER}, {OTHER_BROKER}"),
        ),
        case(
            "the broker exchanged",
            "signature-invalid",
            [
                *without(sign(broker=OTHER_BROKER), "sealtrain-broker"),
                ["sealtrain-broker", BROKER],
            ],
        ),
        case(
            "a second broker added",
            "signature-invalid",
            [*sign(broker=OTHER_BROKER), ["sealtrain-broker", BROKER]],
        ),
        case("no broker named", "signature-invalid", without(good, "sealtrain-broker")),
        case("the broker not covered", "signature-invalid", sign(covered=PARTS[:4])),
        case("the digest not covered", "signature-invalid", sign(covered=(*PARTS[:3], PARTS[4]))),
        case("the address not covered", "signature-invalid", sign(covered=PARTS[2:])),
        case("more covered", "signature-invalid", sign(covered=(*PARTS, "content-type"))),
        case("parts in another order", "signature-invalid", sign(covered=PARTS[::-1])),
        case("a part twice", "signature-invalid", sign(covered=(*PARTS, "@method"))),
        case("another tag", "signature-invalid", sign(tag="other")),
        case("no tag", "signature-invalid", sign(tag=None)),
        case("no time", "signature-invalid", sign(created=None)),
        case("no nonce", "signature-invalid", sign(nonce=None)),
        case("a short nonce", "signature-invalid", sign(nonce="0f")),
        case("a nonce in capitals", "signature-invalid", sign(nonce="0F" * 16)),
        case("no algorithm", "signature-invalid", sign(alg=None)),
        case("another algorithm", "signature-invalid", sign(alg="hmac-sha256")),
        case("an end of its own", "signature-invalid", sign(expires=TIME + 9)),
        case("a parameter nobody knows", "signature-invalid", sign(extra="x")),
        case("a time that is text", "signature-invalid", sign(created=str(TIME))),
        case("signed twice", "signature-invalid", two(good, sign(seed="owner b", label="second"))),
        case(
            "nonsense",
            "signature-invalid",
            [*without(good, "signature-input"), ["signature-input", "owner=("]],
        ),
        case(
            "a digest of nothing known",
            "signature-invalid",
            sign(content_digest="md5=:AAAAAAAAAAAAAAAAAAAAAA==:"),
        ),
    ]


def main() -> None:
    """Write the file."""
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else OUT
    out.mkdir(parents=True, exist_ok=True)
    keys = {key_id(key(seed)): text64(public(key(seed))) for seed in ("owner a", "owner b")}
    document = {
        "about": "Owners' requests signed by RFC 9421; made by tools/vectorgen/signed_requests.py.",
        "keys": keys,
        "brokers": [BROKER, FORMER],
        "max_age": 300,
        "max_ahead": 60,
        "nonce": NONCE,
        "created": TIME,
        "cases": cases(),
    }
    text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
    (out / "signatures.json").write_text(text)


if __name__ == "__main__":
    main()
