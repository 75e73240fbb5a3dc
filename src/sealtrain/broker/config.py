"""A broker's settings. Every setting that decides trust has no default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sealtrain.attest.guest import platform_of
from sealtrain.broker.logs import LogFormat
from sealtrain.broker.urls import public_url
from sealtrain.errors import UsageError

MIN_LEASE, MAX_LEASE = 60, 7 * 24 * 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerLimits:
    """Caps that keep one caller from exhausting the broker.

    Attributes:
        challenge_seconds: Lifetime of a challenge, seconds.
        deciding: Guests whose evidence is verified at a time; the others wait. More threads of one
            Python process would only wait for each other.
        posts_per_minute: Requests that may write to the ledger, per minute and broker.
        request_seconds: How long an owner's signed request is good for.
        request_ahead_seconds: How far ahead of the broker's clock a request may be dated.
        decisions: Signed decisions the broker keeps: an equal share for each owner, half of it for
            revocations.
        manifests_per_run: Run manifests it records for one run.
        posts_per_address: Requests of one address that may write, or cost a quote, per minute;
            ``None`` for half of all.
        posts_per_owner: Requests signed by one owner, per minute, independent of others; ``None``
            for half of all.
        posts_per_controller: Requests signed by one submitter or runner, per minute.
        posts_per_lease: Renewals signed by the holder of one lease, per minute, independent of
            others.
        connections: Open connections of unauthenticated callers.
        connections_per_address: Of these, of one address (of one /64 of IPv6).
        connections_per_caller: Open connections of one owner, or of the holder of one lease,
            besides these.
        body_bytes: Memory for request bodies of unauthenticated callers.
        head_seconds: For the head of a request to arrive.
        body_seconds: For its body to arrive.
    """

    challenge_seconds: int = 120
    deciding: int = 4
    posts_per_minute: int = 600
    request_seconds: int = 300
    request_ahead_seconds: int = 60
    decisions: int = 8192
    manifests_per_run: int = 16
    posts_per_address: int | None = None
    posts_per_owner: int | None = None
    posts_per_controller: int = 120
    posts_per_lease: int = 60
    connections: int = 256
    connections_per_address: int = 128
    connections_per_caller: int = 4
    body_bytes: int = 64 << 20
    head_seconds: float = 10.0
    body_seconds: float = 30.0

    @property
    def share(self) -> int:
        """Requests of one address per minute."""
        return self._half if self.posts_per_address is None else self.posts_per_address

    @property
    def owner_share(self) -> int:
        """Requests of one owner per minute."""
        return self._half if self.posts_per_owner is None else self.posts_per_owner

    @property
    def _half(self) -> int:
        return max(1, self.posts_per_minute // 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerSettings:
    """What a broker answers guests and dstack's KMS.

    Attributes:
        lease_seconds: How long released keys may be used, 60 s to 7 days.
        boot_auth: Whether it answers dstack's KMS from the ledger (spec/boot-authority.md).
        gateway_app_id: App id of the gateway, as the broker answers it to the KMS.
    """

    lease_seconds: int = 3600
    boot_auth: bool = False
    gateway_app_id: str = ""

    def __post_init__(self) -> None:
        """Refuse a lease that no broker gives.

        Raises:
            UsageError: The lease is out of its range.
        """
        if not MIN_LEASE <= self.lease_seconds <= MAX_LEASE:
            raise UsageError(
                "lease time is out of range",
                check="lease seconds",
                got=self.lease_seconds,
                expected=f"{MIN_LEASE} to {MAX_LEASE}",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """Settings of ``sealtrain broker serve``.

    Attributes:
        consortium: The consortium file.
        succeeds: The succession that made it replace another consortium; ``None`` for the first.
        policy: Appraisal policy for guests, YAML.
        root_secret: URI of the root secret (``file:…`` or ``dstack:…``).
        state: Folder of the database and the ledger; created if absent, mode 0700.
        database: PostgreSQL for both instead (``broker.address.database_of``); ``None`` for files
            in ``state``.
        guest: Where evidence of the broker itself comes from (``attest.guest``).
        collateral: Source of the collateral for quotes (``file:…``, or ``https://…`` of a PCCS or
            of Intel's service); ``None`` where neither guests nor broker run on TDX.
        platform: What the broker itself runs on.
        gpu_collateral: URI of the collateral for guests' accelerators (``file:…``).
        former_root_secrets: URIs of the root secrets before a rotation, newest first, for as long
            as something is sealed to them.
        host: Address to listen on.
        port: TCP port; 0 lets the system choose.
        certificate: PEM of the chain by which it speaks TLS itself; ``None`` for plain HTTP.
        certificate_key: PEM of the certificate's private key.
        answers: What guests and dstack's KMS are answered.
        limits: Caps.
        chain: The chain file of a contract that must allow a deployment too (spec/chain.md);
            ``None`` for none.
        proxies: Addresses of reverse proxies trusted to state a caller's address.
        public_urls: URLs under which owners reach it; none for the address it listens on.
        metrics_port: Port of the page for Prometheus on 127.0.0.1; ``None`` for none.
        log_format: How the log is written.
        submitters: Who may submit runs besides the owners: name → Ed25519 key in base64.
        runners: Who may claim submissions and report on them: the same.
    """

    consortium: Path
    policy: Path
    root_secret: str
    state: Path
    guest: str
    collateral: str | None
    platform: str
    succeeds: Path | None = None
    gpu_collateral: str | None = None
    database: str | None = None
    former_root_secrets: tuple[str, ...] = ()
    host: str = "127.0.0.1"
    port: int = 8470
    certificate: Path | None = None
    certificate_key: Path | None = None
    answers: AnswerSettings = field(default_factory=AnswerSettings)
    limits: BrokerLimits = field(default_factory=BrokerLimits)
    chain: Path | None = None
    proxies: tuple[str, ...] = ()
    public_urls: tuple[str, ...] = ()
    metrics_port: int | None = None
    log_format: LogFormat = "text"
    submitters: Mapping[str, str] = field(default_factory=dict)
    runners: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse values that no broker can run with.

        Raises:
            UsageError: A value is out of its range.
        """
        platform_of(self.platform)
        for url in self.public_urls:
            public_url(url)
        if (self.certificate is None) != (self.certificate_key is None):
            raise UsageError(
                "a certificate needs its key, and a key its certificate",
                check="certificate",
                expected="--certificate together with --certificate-key",
            )
        for port in (self.port, self.metrics_port or 0):
            if not 0 <= port <= 65535:
                raise UsageError(
                    "the port is out of range", check="port", got=port, expected="0 to 65535"
                )
