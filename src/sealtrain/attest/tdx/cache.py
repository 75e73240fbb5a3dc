"""A cache of collateral that never goes backwards.

It keeps the highest ``tcbEvaluationDataNumber`` it has seen in authentic collateral, per root and
platform family, and refuses a lower one: collateral that was replaced is still signed and in date.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from filelock import FileLock

from sealtrain.attest.errors import CollateralMismatch, QuoteRootUntrusted, TcbStatusRefused
from sealtrain.attest.roots import X509_ERRORS, certificates_of_pem
from sealtrain.attest.statement import Collateral
from sealtrain.attest.tdx.fetch import Platform, fetch_collateral, platform_of
from sealtrain.attest.tdx.parse import TdxQuote
from sealtrain.attest.tdx.verify import check_root
from sealtrain.attest.tdx.window import collateral_window
from sealtrain.base.canonical import canonical_json, parse_json
from sealtrain.base.digests import sha256_hex
from sealtrain.base.files import atomic_write, read_bounded
from sealtrain.errors import DataInvalid, EvidenceRefused

DAY = 24 * 3600
_MAX_CACHE_BYTES = 16 << 20


def obtain_collateral(
    folder: Path,
    base_url: str,
    quote: TdxQuote,
    *,
    now: int,
    max_age: int = DAY,
    simulator_root: bytes | None = None,
    fetch: Callable[[str, TdxQuote], Collateral] = fetch_collateral,
) -> Collateral:
    """Collateral at most ``max_age`` old, never older than what was seen before.

    Only the platforms of a trusted root reach the service or the disk: a forged quote fills no
        cache and raises no floor.

    Args:
        folder: Where collateral and floors live; created with mode 0700.
        base_url: As ``fetch_collateral``.
        quote: Names the platform.
        now: Seconds since 1970.
        max_age: Seconds for which an answer is reused, at most a day.
        simulator_root: The trusted software root (DER); ``None`` is Intel's.
        fetch: Asks the service.

    Raises:
        SimulatedEvidence: A simulator's quote where Intel's root is trusted.
        QuoteRootUntrusted: The quote's chain does not lead to the trusted root.
        TcbStatusRefused: The service offers older collateral than it did before.
        CollateralMismatch: The answer is not signed under that root.
        CollateralUnreachable: As ``fetch_collateral``, whose other errors are passed on too.
    """
    platform = verify_platform(quote, simulator_root)
    key = f"tdx-{sha256_hex(quote.root_der)[:16]}-{platform.fmspc}-{platform.ca}"
    folder = Path(folder)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path, floor = folder / f"{key}.json", folder / f"{key}.highest.json"
    # One process at a time reads, asks and writes; the floor can then only rise.
    with FileLock(folder / f"{key}.lock"):
        kept = _read_kept(path, quote, now, min(max_age, DAY))
        if kept is not None:
            _check_floor(_numbers(kept), _floor(floor))
            return kept
        fresh = fetch(base_url, quote)
        check_signed(fresh, quote)
        numbers, highest = _numbers(fresh), _floor(floor)
        _check_floor(numbers, highest)
        if numbers != highest:
            atomic_write(floor, canonical_json(numbers), overwrite=True)
        document = canonical_json({"fetched_at": now, "collateral": fresh.to_dict()})
        atomic_write(path, document, overwrite=True)
    return fresh


def verify_platform(quote: TdxQuote, simulator_root: bytes | None) -> Platform:
    """The platform a quote names, where a trusted root vouches for it.

    Raises:
        SimulatedEvidence: A simulator's root where Intel's is trusted.
        QuoteRootUntrusted: The chain does not lead to the trusted root.
        QuoteInvalid: The certificates do not say which platform it is.
    """
    check_root(quote, simulator_root)
    _check_issued(*quote.certificates)
    return platform_of(quote)


def _check_issued(*chain: bytes) -> None:
    """Every certificate is signed by the next one."""
    try:
        certificates = [x509.load_der_x509_certificate(der) for der in chain]
        for certificate, issuer in pairwise(certificates):
            certificate.verify_directly_issued_by(issuer)
    except (InvalidSignature, *X509_ERRORS) as error:
        raise QuoteRootUntrusted(
            "certificate chain does not lead to the trusted root", check="root"
        ) from error


def _read_kept(path: Path, quote: TdxQuote, now: int, max_age: int) -> Collateral | None:
    """What the cache holds, where it is young and still in date; a damaged file is no cache."""
    try:
        document = parse_json(read_bounded(path, _MAX_CACHE_BYTES), max_depth=8)
        fetched_at, collateral = document["fetched_at"], document["collateral"]
        found = Collateral.from_dict(collateral)
        chains = found.tcb_info_issuer_chain + found.pck_crl_issuer_chain
        certificates = certificates_of_pem(chains.encode("ascii"))
        window = collateral_window(found, certificates)
    except (DataInvalid, EvidenceRefused, KeyError, TypeError, UnicodeEncodeError):
        return None
    young = isinstance(fetched_at, int) and fetched_at <= now < fetched_at + max_age
    return found if young and window.start <= now < window.end else None


def _numbers(collateral: Collateral) -> dict[str, int]:
    found: dict[str, int] = {}
    for name in ("tcb_info", "qe_identity"):
        try:
            document: Any = parse_json(getattr(collateral, name).encode("utf-8"), max_depth=16)
            number = document["tcbEvaluationDataNumber"]
        except (DataInvalid, KeyError, TypeError) as error:
            raise CollateralMismatch("collateral cannot be parsed", check="collateral") from error
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < 1 << 31:
            raise CollateralMismatch("collateral has no evaluation number", check="collateral")
        found[name] = number
    return found


def _floor(path: Path) -> dict[str, int]:
    """The highest numbers seen. Unlike the cache, a floor that cannot be read is not ignored."""
    if not path.exists():
        return {}
    try:
        value: Any = parse_json(read_bounded(path, 4096), max_depth=2)
        return {name: int(value[name]) for name in ("tcb_info", "qe_identity")}
    except (DataInvalid, KeyError, TypeError, ValueError) as error:
        raise TcbStatusRefused(
            f"{path} does not name the collateral that was seen last",
            check="collateral floor",
            hint="restore it from a backup; remove it only if you accept older collateral",
        ) from error


def _check_floor(numbers: dict[str, int], highest: dict[str, int]) -> None:
    for name, seen in highest.items():
        if numbers[name] < seen:
            raise TcbStatusRefused(
                "collateral was rolled back: newer was seen before",
                check="collateral floor",
                got=f"{name} {numbers[name]}",
                expected=f"at least {seen}",
                hint="ask another PCCS, or Intel's service itself",
            )


def check_signed(collateral: Collateral, quote: TdxQuote) -> None:
    """Only authentic collateral may raise a floor. The verifier checks all this again, and more.

    Raises:
        CollateralMismatch: TCB info or QE identity is not signed under the quote's root.
        QuoteRootUntrusted: Their certificates are not.
    """
    for name in ("tcb_info", "qe_identity"):
        chain = certificates_of_pem(getattr(collateral, f"{name}_issuer_chain").encode("ascii"))
        if len(chain) != 2 or chain[1] != quote.root_der:
            raise CollateralMismatch(
                f"{name} is of another root than the quote", check="collateral"
            )
        _check_issued(*chain)
        key = x509.load_der_x509_certificate(chain[0]).public_key()
        raw = bytes.fromhex(getattr(collateral, f"{name}_signature"))
        signature = encode_dss_signature(
            int.from_bytes(raw[:32], "big"), int.from_bytes(raw[32:], "big")
        )
        try:
            if not isinstance(key, ec.EllipticCurvePublicKey):
                raise InvalidSignature  # noqa: TRY301  # one refusal for both
            text = getattr(collateral, name).encode("utf-8")
            key.verify(signature, text, ec.ECDSA(hashes.SHA256()))
        except InvalidSignature as error:
            raise CollateralMismatch(f"{name} is not authentic", check="collateral") from error
