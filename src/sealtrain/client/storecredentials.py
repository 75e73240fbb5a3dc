"""Credentials of stores, handed to a guest that proved itself (spec/store-credentials.md).

``ask_lender`` is the guest's side, ``Lender`` the side of the operator, who has the credentials.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Field, StringConstraints

from sealtrain.attest.appraise import appraise
from sealtrain.attest.evidence import Evidence
from sealtrain.attest.policy import AppraisalPolicy
from sealtrain.attest.report_data import Binding
from sealtrain.attest.verify import verify
from sealtrain.base.canonical import JsonValue, canonical_json, parse_json
from sealtrain.base.clock import Clock, system_clock
from sealtrain.base.encoding import from_base64, to_base64
from sealtrain.base.http import Bounds, HttpClient, Problem
from sealtrain.base.models import Base64, Hex64, StrictModel, load_json, load_model
from sealtrain.base.secret import Random, Secret
from sealtrain.errors import DataInvalid, Refused, SealtrainError, UsageError, error_by_code
from sealtrain.release.challenge_code import expiry_of, make_challenge
from sealtrain.release.errors import AnswerInvalid, ChallengeExpired, ChallengeUnknown
from sealtrain.sealing.hpke import HpkePrivateKey, HpkePublicKey
from sealtrain.storage.connect import STORE_TOKEN, STORE_URL, is_token_safe
from sealtrain.storage.errors import StorageUnreachable

NAMES: Final = frozenset(
    {
        "AWS_ACCESS_KEY_ID",
        "AWS_DEFAULT_REGION",
        "AWS_ENDPOINT_URL_S3",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AZURE_STORAGE_ACCOUNT_KEY",
        "AZURE_STORAGE_ACCOUNT_NAME",
        "AZURE_STORAGE_CONNECTION_STRING",
        "AZURE_STORAGE_SAS_TOKEN",
        STORE_TOKEN,
        STORE_URL,
    }
)
"""Variables that a guest takes, and no others."""
MAX_REQUEST_BYTES: Final = 8 << 20
_MAX_CREDENTIALS_BYTES: Final = 64 << 10
_MAX_ANSWER_BYTES: Final = 256 << 10
_PURPOSE: Final = "store-credentials"
_INFO: Final = b"sealtrain/store-credentials/v1:"
_SERVES_SECONDS: Final = 300
_BOUNDS: Final = Bounds(connect=10.0, read=30.0, total=60.0, tries=3)

Value = Annotated[
    str, StringConstraints(min_length=1, max_length=16 << 10, pattern=r"^[\x20-\x7e]+$")
]


class _Credentials(StrictModel):
    values: Annotated[dict[str, Value], Field(min_length=1, max_length=len(NAMES))]


class _CredentialRequest(StrictModel):
    version: Literal[1]
    nonce: Hex64
    key: Base64
    evidence: Evidence


class _Challenge(StrictModel):
    nonce: Hex64


class _SealedCredentials(StrictModel):
    sealed: Base64


def parse_credentials(data: bytes, error: type[SealtrainError] = UsageError) -> dict[str, str]:
    """Credentials from their JSON.

    Args:
        data: At most 64 KiB.
        error: Class of the refusal.

    Raises:
        SealtrainError: An instance of ``error``: not such JSON, or a name that no store reads. It
            quotes no value.
    """
    try:
        found = parse_json(data, max_bytes=_MAX_CREDENTIALS_BYTES)
    except DataInvalid as fault:
        raise error(f"credentials: {fault.message}", check="credentials") from None
    values = load_model(_Credentials, {"values": found}, error, "credentials").values
    if strange := sorted(set(values) - NAMES):
        raise error(
            "credentials have a name that no store's tool reads",
            check="credentials",
            got=strange[0][:80],
            expected=", ".join(sorted(NAMES)),
        )
    if (STORE_TOKEN in values) != (STORE_URL in values) or not is_token_safe(values):
        raise error(
            "a bearer token needs the https URL that it is for",
            check="credentials",
            expected=f"{STORE_TOKEN} together with {STORE_URL}",
        )
    return values


def ask_lender(
    url: str,
    evidence: Callable[[Binding], Evidence],
    compose_hash: str,
    *,
    random: Random = os.urandom,
    bounds: Bounds = _BOUNDS,
) -> dict[str, str]:
    """Ask the lender at a URL for credentials.

    Args:
        url: Of the lender.
        evidence: Collects the guest's own.
        compose_hash: Of the document that the guest measured.
        random: Source of the key.
        bounds: Of each exchange.

    Raises:
        Refused: The lender refuses; its class says why.
        AnswerInvalid: Its answer does not open, or holds something else than credentials.
        StorageUnreachable: It does not answer.
    """
    private = HpkePrivateKey(Secret(random(32)))
    key = to_base64(private.public.raw)
    with HttpClient(bounds, failed=_unreachable, tls=url.startswith("https:")) as client:
        nonce = _exchange(client, _Challenge, "GET", f"{url}/v1/challenge").nonce
        transcript = _transcript(compose_hash, key, nonce)
        shown = evidence(Binding(_PURPOSE, transcript))
        request = {"version": 1, "nonce": nonce, "key": key, "evidence": shown.to_dict()}
        sealed = _exchange(
            client, _SealedCredentials, "POST", f"{url}/v1/credentials", canonical_json(request)
        ).sealed
    try:
        opened = private.open(from_base64(sealed), info=_info(transcript))
    except (Refused, DataInvalid) as error:
        raise AnswerInvalid(
            "the lender's credentials are not sealed to this guest", check="credentials"
        ) from error
    return parse_credentials(opened.reveal(), AnswerInvalid)


class Lender:
    """Hands credentials to guests of one document. Keeps no state; thread-safe."""

    def __init__(
        self,
        credentials: Mapping[str, str],
        *,
        compose_hash: str,
        policy: AppraisalPolicy,
        clock: Clock = system_clock,
        random: Random = os.urandom,
    ) -> None:
        """Lend nothing yet.

        Args:
            credentials: Names of ``NAMES``, and values.
            compose_hash: Document that a guest must have measured.
            policy: What its evidence must meet.
            clock: Source of the time.
            random: Source of nonces.
        """
        self._credentials = canonical_json(dict(credentials))
        self._compose_hash = compose_hash
        self._policy = policy
        self._clock = clock
        self._random = random
        self._key = Secret(random(32))

    def challenge(self) -> bytes:
        """A fresh nonce, as JSON."""
        expires_at = self._clock() + _SERVES_SECONDS
        nonce = make_challenge(self._key, expires_at=expires_at, random=self._random)
        return canonical_json({"nonce": nonce})

    def lend(self, request: bytes) -> bytes:
        """The answer to a guest's request: credentials sealed to it.

        Raises:
            DataInvalid: (1) The request is malformed.
            ChallengeUnknown, ChallengeExpired: (2) The nonce is not one of this lender, or is old.
            EvidenceRefused: (3) The guest is not what it must be; its class says why.
        """
        given = load_json(
            _CredentialRequest, request, DataInvalid, "request", max_bytes=MAX_REQUEST_BYTES
        )
        now = self._clock()
        self._check_nonce(given.nonce, now)
        transcript = _transcript(self._compose_hash, given.key, given.nonce)
        binding = Binding(_PURPOSE, transcript)
        verified = verify(given.evidence, self._policy, now, binding=binding)
        appraise(
            verified, self._policy, binding=binding, compose_hash=self._compose_hash, app_id=None
        )
        key = HpkePublicKey(from_base64(given.key))
        sealed = key.seal(self._credentials, info=_info(transcript))
        return canonical_json({"sealed": to_base64(sealed)})

    def _check_nonce(self, nonce: str, now: int) -> None:
        expires_at = expiry_of(nonce, self._key)
        if expires_at is None:
            raise ChallengeUnknown("the nonce is not one of this lender", check="nonce")
        if expires_at <= now:
            raise ChallengeExpired("the nonce is too old", check="nonce", hint="ask for another")


def _transcript(compose_hash: str, key: str, nonce: str) -> dict[str, JsonValue]:
    return {"compose_hash": compose_hash, "key": key, "nonce": nonce}


def _info(transcript: JsonValue) -> bytes:
    return _INFO + canonical_json(transcript)


def _exchange(
    client: HttpClient, model: type[Any], method: str, url: str, content: bytes | None = None
) -> Any:
    answer = client.ask(method, url, cap=_MAX_ANSWER_BYTES, content=content, idempotent=True)
    if answer.status == 200:
        return load_json(model, answer.body, AnswerInvalid, "answer", max_bytes=_MAX_ANSWER_BYTES)
    try:
        code = str(parse_json(answer.body)["error"]["code"])
    except (DataInvalid, LookupError, TypeError):
        code = ""
    if answer.status >= 500 or not code:
        raise _unreachable(Problem("broken", f"HTTP {answer.status}"))
    raise error_by_code(code)(
        "the lender of store credentials refuses this guest",
        check="credentials",
        got=code,
        hint="ask the lender which document and policy it lends for",
    )


def _unreachable(problem: Problem) -> Exception:
    return StorageUnreachable(
        "the lender of store credentials does not answer",
        check=problem.check or "credentials",
        got=problem.reason,
        hint=problem.remedy or "have it started: sealtrain deploy credentials",
    )
