"""Remote verdicts: tokens of NVIDIA's attestation service (NRAS), with the keys of their day.

An extra, never the base: what a token says can also be verified here, and its keys are gone from
the service after a day, so an archived verdict is worth what the archive of ``jwks`` is worth.

    answer = [["JWT", overall], {"GPU-0": device, …}]

1. Every token: ES384, a key id that occurs once in the key set, the issuer, our nonce, ``now``
   between ``nbf`` and ``exp``.
2. Overall: the result is true; ``submods`` names the same devices as the answer, each with the
   SHA-256 of that device's compact token.
3. Each device: measured, booted securely, not in debug mode, every check that its version of the
   claims knows passed, no warning.
4. As many devices as were shown to us, with their certificate serials and versions.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

import jwt
from cryptography import x509

from sealtrain.attest.claims import Claim, claim_unchecked
from sealtrain.attest.errors import RemoteVerdictRefused
from sealtrain.attest.nvidia.collateral import (
    MAX_JWKS_CHARS,
    MAX_TOKEN_CHARS,
    GpuCollateral,
    RemoteVerdict,
)
from sealtrain.attest.nvidia.device import VerifiedDevice
from sealtrain.attest.nvidia.policy import NvidiaPolicy
from sealtrain.base.canonical import parse_json
from sealtrain.base.clock import to_rfc3339
from sealtrain.errors import DataInvalid

NRAS_ISSUER = "https://nras.attestation.nvidia.com"

_CHECK = "remote verdict"
_ALGORITHM = "ES384"
_MAX_DEPTH = 8
_MAX_VALUES = 1 << 13
_MAX_KEYS = 256
_GPU = "x-nvidia-gpu-"
_PASSED = (
    "arch-check",
    "attestation-report-parsed",
    "attestation-report-nonce-match",
    "attestation-report-signature-verified",
    "driver-rim-fetched",
    "driver-rim-schema-validated",
    "driver-rim-signature-verified",
    "driver-rim-measurements-available",
    "vbios-rim-fetched",
    "vbios-rim-schema-validated",
    "vbios-rim-signature-verified",
    "vbios-rim-measurements-available",
    "vbios-index-no-conflict",
)
_PASSED_IN = {
    "2.0": (
        "attestation-report-cert-chain-validated",
        "driver-rim-cert-validated",
        "vbios-rim-cert-validated",
    ),
    "3.0": (
        "attestation-report-cert-chain-fwid-match",
        "driver-rim-version-match",
        "vbios-rim-version-match",
    ),
}
_CHAINS = (
    "attestation-report-cert-chain",
    "driver-rim-cert-chain",
    "vbios-rim-cert-chain",
)


def check_remote_verdict(
    collateral: GpuCollateral | None,
    devices: Sequence[VerifiedDevice],
    nonce: bytes,
    policy: NvidiaPolicy,
    now: int,
) -> tuple[Claim, ...]:
    """Require NVIDIA's own verdict about these devices where the policy asks for it.

    Args:
        collateral: Where the verdict is.
        devices: Every verified device of the guest. The service judges GPUs in this form;
            switches among them are passed over.
        nonce: The nonce the reports were made for, 32 bytes.
        policy: Whether it is asked for.
        now: Verification time, seconds since 1970.

    Raises:
        RemoteVerdictRefused: Missing, not authentic, about other devices, or negative.
    """
    if policy.nras == "local":
        return (claim_unchecked("remote verdict", "not asked for", source="NRAS token"),)
    if collateral is None or collateral.nras is None:
        raise _refuse("policy asks for NVIDIA's verdict; there is none")
    gpus = [device for device in devices if device.kind == "gpu"]
    verdicts = verify_remote_verdict(collateral.nras, nonce=nonce, gpu_count=len(gpus), now=now)
    got = sorted(_identity(claims) for claims in verdicts.values())
    expected = sorted(_identity_of(device) for device in gpus)
    if got != expected:
        raise _refuse("it is about other devices or firmware", "ueid", got=got, expected=expected)
    return (
        Claim(
            name="remote verdict",
            got=f"positive for {', '.join(sorted(verdicts))}",
            expected=f"positive for {len(gpus)} GPUs",
            source="NRAS token",
            outcome="equal",
        ),
    )


def verify_remote_verdict(
    verdict: RemoteVerdict, *, nonce: bytes, gpu_count: int, now: int
) -> Mapping[str, Mapping[str, Any]]:
    """Verify a verdict's tokens and that all they say is good.

    Args:
        verdict: Answer of the service and its key set, as archived.
        nonce: The nonce the reports were made for, 32 bytes.
        gpu_count: How many GPUs were shown.
        now: Verification time, seconds since 1970.

    Returns:
        Claims of each device by the name the service gave it.

    Raises:
        RemoteVerdictRefused: Anything of it does not hold.
    """
    overall_token, device_tokens = _answer(verdict.token)
    keys = _keys(verdict.jwks)
    overall = _claims("overall", overall_token, keys, nonce=nonce, now=now)
    version = overall.get("x-nvidia-ver")
    if not isinstance(version, str) or version not in _PASSED_IN:
        raise _refuse(
            "its claims are of an unknown version",
            "x-nvidia-ver",
            got=str(version)[:32],
            expected=", ".join(_PASSED_IN),
        )
    if overall.get("x-nvidia-overall-att-result") is not True:
        raise _refuse(
            "the service judged negatively",
            "x-nvidia-overall-att-result",
            got="overall result is not true",
        )
    _check_submodules(overall.get("submods"), device_tokens)
    if len(device_tokens) != gpu_count:
        raise _refuse(
            "it is about another number of devices",
            "submods",
            got=len(device_tokens),
            expected=gpu_count,
        )
    found: dict[str, Mapping[str, Any]] = {}
    for name, token in device_tokens.items():
        claims = _claims(name, token, keys, nonce=nonce, now=now)
        _check_device(name, claims, version)
        found[name] = claims
    return found


def _answer(text: str) -> tuple[str, dict[str, str]]:
    value = _json(text, MAX_TOKEN_CHARS, "answer")
    match value:
        case [["JWT", str(overall)], dict(devices)] if devices and all(
            isinstance(token, str) for token in devices.values()
        ):
            return overall, devices
    raise _refuse("answer is not one overall token with one token for each device")


def _keys(text: str) -> dict[str, Mapping[str, Any]]:
    value = _json(text, MAX_JWKS_CHARS, "key set")
    listed = value.get("keys") if isinstance(value, dict) else None
    if not isinstance(listed, list) or not 0 < len(listed) <= _MAX_KEYS:
        raise _refuse("key set lists no keys", "keys")
    found: dict[str, Mapping[str, Any]] = {}
    for key in listed:
        name = key.get("kid") if isinstance(key, dict) else None
        if not isinstance(name, str) or name in found:
            raise _refuse("key set has a key without a name, or a name twice", "keys")
        found[name] = key
    return found


def _claims(
    name: str, token: str, keys: Mapping[str, Mapping[str, Any]], *, nonce: bytes, now: int
) -> dict[str, Any]:
    header = _header(name, token)
    if header.get("alg") != _ALGORITHM:
        raise _refuse(
            f"{name} token is not signed with a key of the service",
            "alg",
            got=str(header.get("alg"))[:32],
            expected=_ALGORITHM,
        )
    if not set(header) <= {"alg", "kid", "typ"}:
        raise _refuse(f"{name} token's header asks for more than is understood", "header")
    key = keys.get(header["kid"]) if isinstance(header.get("kid"), str) else None
    if key is None:
        raise _refuse(f"{name} token's key is not in the archived key set", "kid")
    try:
        payload = jwt.PyJWS().decode_complete(
            token, jwt.PyJWK(dict(key), algorithm=_ALGORITHM), algorithms=[_ALGORITHM]
        )["payload"]
    except (jwt.PyJWTError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise _refuse(f"{name} token's signature does not hold", "signature") from error
    claims = _object(name, payload)
    _check_common(name, claims, nonce=nonce, now=now)
    return claims


def _header(name: str, token: str) -> dict[str, Any]:
    parts = token.split(".")
    if len(parts) != 3 or not token.isascii():
        raise _refuse(f"{name} token is not a compact JWT")
    try:
        data = base64.b64decode(
            parts[0] + "=" * (-len(parts[0]) % 4), altchars=b"-_", validate=True
        )
    except (binascii.Error, ValueError) as error:
        raise _refuse(f"{name} token is not a compact JWT") from error
    return _object(name, data)


def _check_common(name: str, claims: Mapping[str, Any], *, nonce: bytes, now: int) -> None:
    if claims.get("iss") != NRAS_ISSUER:
        raise _refuse(
            f"{name} token has another issuer",
            "iss",
            got=str(claims.get("iss"))[:128],
            expected=NRAS_ISSUER,
        )
    got = claims.get("eat_nonce")
    # Lengths first: a prefix of the nonce is another nonce.
    if (
        not isinstance(got, str)
        or len(nonce) != 32
        or not hmac.compare_digest(got.encode("utf-8"), nonce.hex().encode("ascii"))
    ):
        raise _refuse(
            f"{name} token was made for another conversation",
            "eat_nonce",
            got=str(got)[:64],
            expected=nonce.hex(),
        )
    start, end = claims.get("nbf"), claims.get("exp")
    if not _is_time(start) or not _is_time(end):
        field = "exp" if _is_time(start) else "nbf"
        raise _refuse(f"{name} token does not say when it is valid", field)
    if not start <= now <= end:
        raise _refuse(
            f"{name} token is not valid at this time",
            "nbf" if now < start else "exp",
            got=to_rfc3339(now),
            expected=f"{to_rfc3339(start)} to {to_rfc3339(end)}",
        )


def _is_time(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 36


def _check_submodules(submods: Any, tokens: Mapping[str, str]) -> None:
    if not isinstance(submods, dict) or set(submods) != set(tokens):
        raise _refuse("overall token names other devices than the answer", "submods")
    for name, token in tokens.items():
        digest = hashlib.sha256(token.encode("utf-8")).hexdigest()
        if submods[name] != ["DIGEST", ["SHA-256", digest]]:
            raise _refuse(f"overall token is about another {name} token", f"submods.{name}")


def _check_device(name: str, claims: Mapping[str, Any], version: str) -> None:
    _require(name, claims, "measres", "success")
    _require(name, claims, "secboot", True)
    _require(name, claims, "dbgstat", "disabled")
    for check in (*_PASSED, *_PASSED_IN[version]):
        _require(name, claims, f"{_GPU}{check}", True)
    if claims.get("x-nvidia-attestation-warning") is not None:
        raise _refuse(f"the service warns about {name}", "x-nvidia-attestation-warning")
    for chain in _CHAINS if version == "3.0" else ():
        said = claims.get(f"{_GPU}{chain}")
        if not isinstance(said, dict):
            raise _refuse(f"{name} token says nothing of a certificate chain", chain, got=chain)
        _require(name, said, "x-nvidia-cert-status", "valid", chain)
        _require(name, said, "x-nvidia-cert-ocsp-status", "good", chain)


def _require(
    name: str, claims: Mapping[str, Any], claim: str, expected: str | bool, where: str = ""
) -> None:
    got = claims.get(claim)
    if type(got) is not type(expected) or got != expected:
        raise _refuse(
            f"the service judged {name} negatively",
            claim,
            got=f"{where} {claim}: {got!s:.64}".strip(),
            expected=str(expected),
        )


def _identity(claims: Mapping[str, Any]) -> str:
    """Certificate serial (decimal), driver and VBIOS version, as a token names them."""
    parts = (
        claims.get("ueid"),
        claims.get("x-nvidia-gpu-driver-version"),
        claims.get("x-nvidia-gpu-vbios-version"),
    )
    return " ".join(str(part)[:64].upper() for part in parts)


def _identity_of(device: VerifiedDevice) -> str:
    leaf = x509.load_der_x509_certificate(device.certificates[0])
    return f"{leaf.serial_number} {device.driver_version} {device.vbios_version}".upper()


def _object(name: str, data: bytes) -> dict[str, Any]:
    try:
        value = parse_json(
            data, max_bytes=MAX_TOKEN_CHARS, max_depth=_MAX_DEPTH, max_values=_MAX_VALUES
        )
    except DataInvalid as error:
        raise _refuse(f"{name} token is not JSON", "payload") from error
    if not isinstance(value, dict):
        raise _refuse(f"{name} token is not a JSON object")
    return value


def _json(text: str, limit: int, what: str) -> Any:
    try:
        return parse_json(
            text.encode("utf-8"), max_bytes=limit, max_depth=_MAX_DEPTH, max_values=_MAX_VALUES
        )
    except (DataInvalid, UnicodeEncodeError) as error:
        raise _refuse(f"{what} of the service is not JSON", what) from error


def _refuse(
    problem: str, field: str | None = None, *, got: object = None, expected: object = None
) -> RemoteVerdictRefused:
    return RemoteVerdictRefused(
        f"NVIDIA's verdict: {problem}",
        check=_CHECK,
        field=field,
        got=got,
        expected=expected,
        hint="ask the service again for this guest's reports and archive its keys the same hour",
    )
