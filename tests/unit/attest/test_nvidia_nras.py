"""NVIDIA's verdicts: whose keys, about which devices, when, and what they say."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jwt
import pytest
from carrying import carries
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from nvidia_world import (
    DRIVER,
    HOUR,
    NONCE,
    NOW,
    VBIOS,
    Service,
    device_claims,
    policy,
    verified,
)

from sealtrain.attest.errors import RemoteVerdictRefused
from sealtrain.attest.nvidia.collateral import GpuCollateral, RemoteVerdict
from sealtrain.attest.nvidia.nras import check_remote_verdict, verify_remote_verdict

SERVICE = Service()
TWO = {"GPU-0": device_claims(ueid="1"), "GPU-1": device_claims(ueid="2")}
VECTOR_NONCE = bytes.fromhex("931d8dd0add203ac3d8b4fbde75e115278eefcdceac5b87671a748f32364dfcb")
VECTOR_TIME = 1_749_601_858


def check(verdict: RemoteVerdict, *, gpu_count: int = 2, **changes: Any) -> list[str]:
    given = {"nonce": NONCE, "now": NOW, **changes}
    return sorted(verify_remote_verdict(verdict, gpu_count=gpu_count, **given))


def refused(verdict: RemoteVerdict, *fields: str, **changes: Any) -> None:
    """Refused, and for one of these claims where any is named."""
    with pytest.raises(RemoteVerdictRefused) as caught:
        check(verdict, **changes)
    assert caught.value.check == "remote verdict"
    assert not fields or caught.value.field in fields


@pytest.mark.parametrize("version", ["2.0", "3.0"])
def test_a_positive_verdict_about_two_gpus(version: str) -> None:
    devices = {name: device_claims(version, ueid=name) for name in TWO}
    assert check(SERVICE.verdict(devices, version=version)) == ["GPU-0", "GPU-1"]


@pytest.mark.parametrize("now", [NOW - HOUR // 2, NOW + HOUR // 2])
def test_both_ends_of_the_window_hold(now: int) -> None:
    assert check(SERVICE.verdict(TWO), now=now)


@pytest.mark.negative(54)
@pytest.mark.parametrize("now", [NOW - HOUR // 2 - 1, NOW + HOUR // 2 + 1, 0])
def test_outside_the_window_nothing_holds(now: int) -> None:
    refused(SERVICE.verdict(TWO), "nbf", "exp", now=now)


@pytest.mark.negative(54)
@pytest.mark.parametrize("place", ["overall", "GPU-1"])
@pytest.mark.parametrize(
    "change",
    [
        {"exp": NOW - 1},
        {"nbf": NOW + 1},
        {"exp": None},
        {"exp": str(NOW + 1)},
        {"nbf": True},
        {"exp": 1e300},
        {"iss": "https://nras.attestation-stg.nvidia.com"},
        {"iss": "https://nras.attestation.nvidia.com/"},
        {"iss": ["https://nras.attestation.nvidia.com"]},
        {"iss": None},
        {"eat_nonce": "00" * 32},
        {"eat_nonce": NONCE.hex()[:-2]},
        {"eat_nonce": NONCE.hex() + "00"},
        {"eat_nonce": NONCE.hex().upper()},
        {"eat_nonce": [NONCE.hex()]},
        {"eat_nonce": None},
        {"eat_nonce": ""},
    ],
)
def test_every_token_has_its_issuer_time_and_nonce(place: str, change: dict[str, Any]) -> None:
    [claim] = change
    if place == "overall":
        refused(SERVICE.verdict(TWO, overall=lambda claims: claims.update(change)), claim)
    else:
        refused(SERVICE.verdict({**TWO, place: {**TWO[place], **change}}), claim)


@pytest.mark.negative(54)
@pytest.mark.parametrize("nonce", [b"", NONCE[:-1], NONCE + b"\0", bytes(32)])
def test_a_verdict_for_another_nonce_is_refused(nonce: bytes) -> None:
    refused(SERVICE.verdict(TWO), "eat_nonce", nonce=nonce)


@pytest.mark.negative(54)
@pytest.mark.parametrize("value", [False, None, "true", 1, [True]])
def test_the_overall_result_is_true_and_nothing_like_it(value: Any) -> None:
    change = {"x-nvidia-overall-att-result": value}
    refused(
        SERVICE.verdict(TWO, overall=lambda claims: claims.update(change)),
        "x-nvidia-overall-att-result",
    )


def negatives(version: str) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, value in device_claims(version).items():
        if value is True:
            found += [(name, False), (name, None), (name, "true")]
        if name.endswith("-cert-chain"):
            found += [(name, None), (name, {})]
            found += [(name, {**value, "x-nvidia-cert-status": "expired"})]
            for status in ("revoked", "unknown"):
                found += [(name, {**value, "x-nvidia-cert-ocsp-status": status})]
    found += [("measres", "fail"), ("measres", None), ("dbgstat", "enabled"), ("dbgstat", None)]
    return [*found, ("x-nvidia-attestation-warning", "certificate on hold")]


@pytest.mark.negative(54)
@pytest.mark.parametrize("version", ["2.0", "3.0"])
def test_one_bad_word_about_one_device_refuses_all(version: str) -> None:
    cases = negatives(version)
    assert len(cases) > 50
    for name, value in cases:
        bad = device_claims(version, **{name: value})
        # The overall token still says that all is well.
        with pytest.raises(RemoteVerdictRefused):
            check(SERVICE.verdict({"GPU-0": bad}, version=version), gpu_count=1)


@pytest.mark.negative(54)
@pytest.mark.parametrize("version", ["1.0", "2.0 ", "4.0", None, 3.0, [], {}])
def test_claims_of_an_unknown_version_are_refused(version: Any) -> None:
    change = {"x-nvidia-ver": version}
    refused(SERVICE.verdict(TWO, overall=lambda claims: claims.update(change)), "x-nvidia-ver")


@pytest.mark.negative(54)
def test_claims_of_one_version_do_not_pass_as_another() -> None:
    older = {name: device_claims("2.0") for name in TWO}
    refused(
        SERVICE.verdict(older, version="3.0"),
        "x-nvidia-gpu-attestation-report-cert-chain-fwid-match",
    )


@pytest.mark.negative(54)
def test_another_device_token_than_was_digested_is_refused() -> None:
    other = SERVICE.token(device_claims(ueid="9"))
    refused(SERVICE.verdict(TWO, tokens=lambda t: t.update({"GPU-1": other})), "submods.GPU-1")


@pytest.mark.negative(54)
@pytest.mark.parametrize(
    "change",
    [
        lambda tokens: tokens.pop("GPU-1"),
        lambda tokens: tokens.update({"GPU-2": tokens["GPU-1"]}),
        lambda tokens: tokens.update({"gpu-1": tokens.pop("GPU-1")}),
    ],
)
def test_names_of_both_sides_are_equal(change: Callable[[dict[str, str]], None]) -> None:
    refused(SERVICE.verdict(TWO, tokens=change), "submods")


@pytest.mark.negative(54)
def test_as_many_devices_as_were_shown() -> None:
    one = {"GPU-0": TWO["GPU-0"]}
    refused(SERVICE.verdict(one), "submods")
    refused(SERVICE.verdict(TWO), "submods", gpu_count=1)
    refused(SERVICE.verdict(TWO), "submods", gpu_count=8)


@pytest.mark.negative(54)
@pytest.mark.parametrize(
    "submods",
    [
        None,
        {},
        {"GPU-0": None, "GPU-1": None},
        {name: ["DIGEST", ["SHA-256", "00" * 32]] for name in TWO},
        {name: ["DIGEST", ["SHA-1", "00" * 20]] for name in TWO},
    ],
)
def test_submodules_of_another_form_are_refused(submods: Any) -> None:
    refused(SERVICE.verdict(TWO, overall=lambda claims: claims.update(submods=submods)))


def token_of(algorithm: str, key: Any, claims: dict[str, Any]) -> str:
    return jwt.encode(claims, key, algorithm=algorithm, headers={"kid": SERVICE.kid})


def overall_replaced(make: Callable[[dict[str, Any]], str]) -> RemoteVerdict:
    """A good verdict whose overall token is made again from the same claims."""
    good = SERVICE.verdict(TWO)
    overall, devices = json.loads(good.token)
    claims = jwt.decode(overall[1], options={"verify_signature": False})
    return RemoteVerdict(token=json.dumps([["JWT", make(claims)], devices]), jwks=good.jwks)


def compact(header: dict[str, Any], claims: dict[str, Any]) -> bytes:
    """What a compact token signs."""
    text = [json.dumps(part).encode() for part in (header, claims)]
    return b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in text)


def appended(message: bytes, signature: bytes) -> str:
    return b".".join([message, base64.urlsafe_b64encode(signature).rstrip(b"=")]).decode()


@pytest.mark.negative(54)
def test_a_token_signed_with_a_shared_secret_is_refused() -> None:
    public = SERVICE.key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    for secret in (b"notasecret", public):

        def by_secret(claims: dict[str, Any], secret: bytes = secret) -> str:
            message = compact({"alg": "HS256", "kid": SERVICE.kid}, claims)
            return appended(message, hmac.digest(secret, message, "sha256"))

        refused(overall_replaced(by_secret), "alg")


@pytest.mark.negative(54)
@pytest.mark.parametrize("name", ["none", "None", "ES256", "RS256", "", None])
def test_a_header_that_names_another_algorithm_is_refused(name: str | None) -> None:
    def unsigned(claims: dict[str, Any]) -> str:
        return appended(compact({"alg": name, "kid": SERVICE.kid}, claims), b"")

    refused(overall_replaced(unsigned), "alg")


@pytest.mark.negative(54)
@pytest.mark.parametrize("name", ["ES256", "ES256K", "ES512"])
def test_a_key_of_another_curve_is_refused(name: str) -> None:
    curves = {"ES256": ec.SECP256R1, "ES256K": ec.SECP256K1, "ES512": ec.SECP521R1}
    key = ec.generate_private_key(curves[name]())
    good = overall_replaced(lambda claims: token_of(name, key, claims))
    public = jwt.algorithms.ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
    keys = json.dumps({"keys": [{**public, "kid": SERVICE.kid}]})
    refused(RemoteVerdict(token=good.token, jwks=keys), "alg")
    # A good token against that key.
    refused(RemoteVerdict(token=SERVICE.verdict(TWO).token, jwks=keys), "signature")


@pytest.mark.negative(54)
@pytest.mark.parametrize("kid", ["nv-eat-kid-test-2", "", None])
def test_an_unknown_key_id_is_refused(kid: str | None) -> None:
    verdict = overall_replaced(
        lambda claims: jwt.encode(
            claims, SERVICE.key, algorithm="ES384", headers={} if kid is None else {"kid": kid}
        )
    )
    refused(verdict, "kid")


@pytest.mark.negative(54)
def test_a_key_that_only_shares_its_name_is_refused() -> None:
    good = SERVICE.verdict(TWO)
    refused(RemoteVerdict(token=good.token, jwks=Service().jwks), "signature")
    forged = Service().verdict(TWO)
    refused(RemoteVerdict(token=forged.token, jwks=SERVICE.jwks), "signature")


@pytest.mark.negative(54)
@pytest.mark.parametrize("extra", [{"crit": ["exp"]}, {"jku": "https://a"}, {"b64": False}])
def test_a_header_that_asks_for_more_is_refused(extra: dict[str, Any]) -> None:
    def signed(claims: dict[str, Any]) -> str:
        message = compact({"alg": "ES384", "kid": SERVICE.kid, **extra}, claims)
        algorithm = jwt.algorithms.ECAlgorithm(jwt.algorithms.ECAlgorithm.SHA384, ec.SECP384R1)
        return appended(message, algorithm.sign(message, SERVICE.key))

    refused(overall_replaced(signed), "header")


@pytest.mark.negative(54)
@pytest.mark.parametrize(
    "jwks",
    ["", "{}", "[]", '{"keys": []}', '{"keys": {}}', '{"keys": [1]}', '{"keys": [{"kty": "EC"}]}'],
)
def test_a_key_set_of_another_form_is_refused(jwks: str) -> None:
    token = SERVICE.verdict(TWO).token
    refused(RemoteVerdict.model_construct(token=token, jwks=jwks), "keys", "key set")


@pytest.mark.negative(54)
def test_a_key_id_that_occurs_twice_is_refused() -> None:
    [key] = json.loads(SERVICE.jwks)["keys"]
    keys = json.dumps({"keys": [key, key]})
    refused(RemoteVerdict(token=SERVICE.verdict(TWO).token, jwks=keys), "keys")


@pytest.mark.negative(54)
@pytest.mark.parametrize(
    "change",
    [{"crv": "P-256"}, {"kty": "RSA"}, {"kty": "oct", "k": "AAAA"}, {"x": "AAAA"}, {"x": None}],
)
def test_a_key_of_another_form_is_refused(change: dict[str, Any]) -> None:
    [key] = json.loads(SERVICE.jwks)["keys"]
    keys = json.dumps({"keys": [{**key, **change}]})
    token = SERVICE.verdict(TWO).token
    refused(RemoteVerdict(token=token, jwks=keys), "signature")


@pytest.mark.negative(54)
@pytest.mark.parametrize(
    "token",
    [
        "[]",
        "{}",
        "null",
        '[["JWT", "a.b.c"]]',
        '[["JWT", "a.b.c"], {}]',
        '[["JWT", 1], {"GPU-0": "a.b.c"}]',
        '[["JWT", "a.b.c"], {"GPU-0": 1}]',
        '[["JWT", "a.b.c"], {"GPU-0": "a.b.c"}, {}]',
        '[["CWT", "a.b.c"], {"GPU-0": "a.b.c"}]',
        '[["JWT", "a.b.c"], {"GPU-0": "a.b.c"}]',
        '[["JWT", "a.b"], {"GPU-0": "a.b.c"}]',
        '[["JWT", "é.b.c"], {"GPU-0": "a.b.c"}]',
        '[["JWT", "bnVsbA.e30.AA"], {"GPU-0": "a.b.c"}]',
        '[["JWT", "a.b.c"], {"GPU-0": "x", "GPU-0": "y"}]',
        "[" * 5000,
    ],
)
def test_an_answer_of_another_form_is_refused(token: str) -> None:
    refused(RemoteVerdict(token=token, jwks=SERVICE.jwks))


@pytest.mark.negative(54)
def test_claims_that_name_a_key_twice_are_refused() -> None:
    def twice(claims: dict[str, Any]) -> str:
        claims["x-nvidia-overall-att-result"] = False
        body = json.dumps(claims)[:-1] + ', "x-nvidia-overall-att-result": true}'
        return jwt.PyJWS().encode(
            body.encode(), SERVICE.key, algorithm="ES384", headers={"kid": SERVICE.kid}
        )

    refused(overall_replaced(twice), "payload")


@pytest.mark.negative(54)
def test_no_changed_character_of_a_token_passes() -> None:
    good = SERVICE.verdict({"GPU-0": TWO["GPU-0"]})
    overall, devices = json.loads(good.token)
    for place in range(0, len(overall[1]), 5):
        other = "A" if overall[1][place] != "A" else "B"
        changed = overall[1][:place] + other + overall[1][place + 1 :]
        token = json.dumps([["JWT", changed], devices])
        with pytest.raises(RemoteVerdictRefused):
            check(RemoteVerdict(token=token, jwks=good.jwks), gpu_count=1)


def about(device: Any, **changes: Any) -> dict[str, Any]:
    serial = x509.load_der_x509_certificate(device.certificates[0]).serial_number
    versions = {"x-nvidia-gpu-driver-version": DRIVER, "x-nvidia-gpu-vbios-version": VBIOS.lower()}
    return device_claims(**{"ueid": str(serial), **versions, **changes})


def collateral(devices: dict[str, dict[str, Any]]) -> GpuCollateral:
    return GpuCollateral.build(rims={}, ocsp=(), nras=SERVICE.verdict(devices))


def test_a_verdict_about_the_devices_shown_holds() -> None:
    gpus = [verified(number=0), verified(number=1)]
    kept = collateral({f"GPU-{place}": about(gpu) for place, gpu in enumerate(gpus)})
    [claim] = check_remote_verdict(kept, [*gpus, verified("switch")], NONCE, policy(), NOW)
    assert claim.got == "positive for GPU-0, GPU-1"
    [unlooked] = check_remote_verdict(None, gpus, NONCE, policy(nras="local"), NOW)
    assert unlooked.outcome == "any"


@pytest.mark.negative(54)
@pytest.mark.parametrize(
    "change",
    [
        {"ueid": "1"},
        {"ueid": None},
        {"x-nvidia-gpu-driver-version": "590.13"},
        {"x-nvidia-gpu-vbios-version": "96.00.A5.00.02"},
    ],
)
def test_a_verdict_about_another_device_is_refused(change: dict[str, Any]) -> None:
    gpu = verified()
    kept = collateral({"GPU-0": about(gpu, **change)})
    with pytest.raises(RemoteVerdictRefused, check=carries(check="remote verdict")):
        check_remote_verdict(kept, [gpu], NONCE, policy(), NOW)


@pytest.mark.negative(54)
def test_one_device_judged_twice_is_not_two_devices() -> None:
    gpus = [verified(number=0), verified(number=1)]
    kept = collateral({name: about(gpus[0]) for name in ("GPU-0", "GPU-1")})
    with pytest.raises(RemoteVerdictRefused, check=carries(check="remote verdict")):
        check_remote_verdict(kept, gpus, NONCE, policy(), NOW)


@pytest.mark.negative(54)
def test_a_verdict_that_is_asked_for_must_be_there() -> None:
    for kept in (None, GpuCollateral.build(rims={}, ocsp=())):
        with pytest.raises(RemoteVerdictRefused, check=carries(check="remote verdict")):
            check_remote_verdict(kept, [verified()], NONCE, policy(), NOW)


@pytest.mark.negative(54)
def test_structure_and_times_of_a_real_verdict(shared: Path) -> None:
    text = (shared / "vectors/nvidia/nras_eat_2025.json").read_text()
    overall, devices = json.loads(text)
    # Its key is no longer published: another key under the same name ends at the signature.
    kid = jwt.get_unverified_header(overall[1])["kid"]
    given = {"gpu_count": 1, "nonce": VECTOR_NONCE, "now": VECTOR_TIME}
    refused(RemoteVerdict(token=text, jwks=SERVICE.jwks), "kid", **given)
    today = Service(kid)
    refused(RemoteVerdict(token=text, jwks=today.jwks), "signature", **given)
    # The same claims under a key of ours: the digest has to follow, all else is as it was.
    bodies = {
        name: jwt.decode(token, options={"verify_signature": False})
        for name, token in {"overall": overall[1], **devices}.items()
    }
    said = bodies["overall"]["submods"]["GPU-0"]
    assert said[1][1] == hashlib.sha256(devices["GPU-0"].encode()).hexdigest()
    resigned = today.token(bodies["GPU-0"])

    def answer(digest: str) -> RemoteVerdict:
        submods = {"GPU-0": ["DIGEST", ["SHA-256", digest]]}
        token = today.token({**bodies["overall"], "submods": submods})
        return RemoteVerdict(
            token=json.dumps([["JWT", token], {"GPU-0": resigned}]), jwks=today.jwks
        )

    good = answer(hashlib.sha256(resigned.encode()).hexdigest())
    assert check(good, **given) == ["GPU-0"]
    refused(answer(said[1][1]), "submods.GPU-0", **given)
    refused(good, "exp", **{**given, "now": VECTOR_TIME + HOUR + 1})
    refused(good, "eat_nonce", **{**given, "nonce": NONCE})
