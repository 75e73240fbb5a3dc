"""Real files of evidence with what belongs to them: when they hold, and under which policy."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from policies import intel

from sealtrain.attest.bundle import Attachments
from sealtrain.attest.evidence import Collateral
from sealtrain.attest.exhibits import recognise
from sealtrain.attest.forms import Exhibit, Gpus
from sealtrain.attest.policy import AppraisalPolicy, policy_from_dict
from sealtrain.attest.presets import PRESETS, insecure_simulator_policy
from sealtrain.attest.roots import quiet
from sealtrain.attest.tdx.parse import canonical_quote
from sealtrain.base.clock import to_rfc3339

FAMILIES = ("tdx", "dstack", "nitro", "nvidia", "sev-snp")


@dataclass(frozen=True, kw_only=True)
class Real:
    """One file of a third party.

    ``at`` is a moment at which it holds; ``outside`` are moments at which it must not, each the
    first second too early or too late. ``nonce`` is what it was made for, where it says.
    """

    file: str
    policy: dict[str, Any]
    at: int
    outside: tuple[int, ...]
    late: str = ""
    nonce: str | None = None
    collateral: str | None = None
    certificates: tuple[str, ...] = field(default=())
    chain: str | None = None

    def __str__(self) -> str:
        return self.file

    def beside(self, shared: Path, **changed: Any) -> Attachments:
        """What lies beside it."""
        names = (*self.certificates, *(() if self.chain is None else (self.chain,)))
        collateral = None
        if self.collateral is not None:
            collateral = real_collateral(shared, self.collateral)
        fields: dict[str, Any] = {"collateral": collateral, "certificates": ders_of(shared, names)}
        return Attachments(**{**fields, **changed})

    def options(self, shared: Path) -> list[str]:
        """The same as words of a command, without policy and time."""
        vectors = shared / "vectors"
        words: list[str] = []
        if self.collateral is not None:
            words += ["--collateral", f"file:{vectors / self.collateral}"]
        for name in self.certificates:
            words += ["--certificate", str(vectors / name)]
        if self.chain is not None:
            words += ["--gpu-chain", str(vectors / self.chain)]
        return words

    def rules(self) -> AppraisalPolicy:
        """The policy it fits."""
        return policy_from_dict(self.policy)

    @property
    def time(self) -> str:
        """``at`` as a command takes it."""
        return to_rfc3339(self.at)


def exhibit_of(shared: Path, name: str) -> Exhibit:
    return recognise((shared / "vectors" / name).read_bytes())


def ders_of(shared: Path, names: tuple[str, ...]) -> tuple[bytes, ...]:
    """Certificates of files in PEM or DER."""
    return tuple(der for name in names for der in _ders((shared / "vectors" / name).read_bytes()))


def _ders(data: bytes) -> list[bytes]:
    if not data.startswith(b"-----"):
        return [data]
    found = x509.load_pem_x509_certificates(data)
    return [certificate.public_bytes(Encoding.DER) for certificate in found]


def _window(ders: tuple[bytes, ...]) -> tuple[int, int]:
    """First and last second at which all are valid."""
    with quiet():
        found = [x509.load_der_x509_certificate(der) for der in ders]
    return (
        max(int(item.not_valid_before_utc.timestamp()) for item in found),
        min(int(item.not_valid_after_utc.timestamp()) for item in found),
    )


def tdx_rules(**changed: Any) -> dict[str, Any]:
    """A policy for a bare quote."""
    document = intel(min_tcb_evaluation_data_number=17)
    cpu = dict(document["cpu"])
    for name in ("key_provider", "os_image_hash"):
        cpu.pop(name)
    return {
        **document,
        "platform": "tdx",
        "cpu": {**cpu, "tee": "tdx", "boot_log": "any", **changed},
    }


def nitro_rules(**changed: Any) -> dict[str, Any]:
    """A policy for any enclave."""
    preset = PRESETS["nitro"]
    left_open = dict.fromkeys(("images", "signers", "parents", "iam_roles"), "any")
    return {**preset, "cpu": {**preset["cpu"], **left_open, "max_age_s": 600, **changed}}


_OPEN_SNP = (
    "measurements",
    "mitigations",
    "extended_tcb",
    "platform_flags",
    "chip_ids",
    "smt",
    "id_keys",
    "revocation",
)


def snp_rules(product: str, floor: tuple[int, int, int, int], **changed: Any) -> dict[str, Any]:
    """A policy for a report of one product."""
    preset = PRESETS["snp-genoa"]
    names = ("bootloader", "tee", "snp", "microcode")
    cpu = {
        **preset["cpu"],
        "products": [product],
        "minimum_tcb": {product: {**dict(zip(names, floor, strict=True)), "fmc": None}},
        **dict.fromkeys(_OPEN_SNP, "any"),
        **changed,
    }
    return {**preset, "cpu": cpu}


def gpu_rules(**changed: Any) -> dict[str, Any]:
    """A policy for accelerators alone; its processor's rules are not looked at."""
    preset = PRESETS["dstack-h100"]
    gpu = {
        **preset["gpu"],
        "switch_count": "any",
        "devices": "any",
        "vbios_versions": "any",
        "driver_versions": "any",
        "reference_values": "any",
        "revocation": "any",
        **changed,
    }
    return {**preset, "gpu": gpu}


_SUMMER = 1_750_000_000


def accepted(shared: Path) -> Iterator[Real]:
    """Every file that must be accepted, under a policy that fits it."""
    yield Real(
        file="tdx/tdx_quote",
        policy=tdx_rules(),
        at=1750329147,
        outside=(1750329146, 1752919235),
        late="collateral-expired",
        nonce=_report_data(shared, "tdx/tdx_quote"),
        collateral="tdx/tdx_quote_collateral.json",
    )
    yield Real(
        file="tdx/near-gas-test/quote_hex.txt",
        policy=tdx_rules(),
        at=1759388630,
        outside=(1756798918, 1759388631),
        late="collateral-expired",
        nonce=_report_data(shared, "tdx/near-gas-test/quote_hex.txt"),
        collateral="tdx/near-gas-test/quote_collateral.json",
    )
    yield Real(
        file="dstack/verifier-fixtures/quote-report.json",
        policy=intel(),
        at=1774003274,
        outside=(1771412330, 1774003275),
        late="collateral-expired",
        nonce=_report_data(shared, "dstack/verifier-fixtures/quote-report.json"),
        collateral="tdx/tdx_quote_outdated_collateral.json",
    )
    root = (shared / "vectors/tdx/own-mock/root.der").read_bytes()
    yield Real(
        file="tdx/own-mock/quote.bin",
        policy=insecure_simulator_policy(root, tee="tdx").to_dict(),
        at=1750000001,
        outside=(1, 1 << 33),
        late="collateral-expired",
        nonce=_report_data(shared, "tdx/own-mock/quote.bin"),
        collateral="tdx/own-mock/collateral.json",
    )
    yield from _enclaves(shared)
    yield from _reports(shared)
    yield from _accelerators(shared)


def _enclaves(shared: Path) -> Iterator[Real]:
    for name, facts in expected(shared, "nitro").items():
        if facts["error"] is None and not facts["debug_mode"]:
            nonce = facts["nonce"]
            yield Real(
                file=f"nitro/{name}",
                policy=nitro_rules(),
                at=facts["timestamp_ms"] // 1000,
                outside=tuple(
                    moment(facts[key]) + step
                    for key, step in (("chain_valid_from", -1), ("chain_valid_to", 1))
                ),
                late="certificate-chain-invalid",
                nonce=nonce,
            )


def _reports(shared: Path) -> Iterator[Real]:
    for name, product, root, floor in (
        ("genoa_azure_v3", "Genoa", "genoa", (10, 0, 23, 84)),
        ("milan_vcek_v2", "InsecureMilan", "milan", (3, 0, 8, 115)),
    ):
        certificates = (f"sev-snp/{name}.cert.der", f"sev-snp/roots/ask_ark_{root}.pem")
        first, last = _window(ders_of(shared, certificates))
        yield Real(
            file=f"sev-snp/{name}.report.bin",
            policy=snp_rules(product, floor),
            at=first,
            outside=(first - 1, last + 1),
            late="certificate-chain-invalid",
            nonce=_report_data(shared, f"sev-snp/{name}.report.bin"),
            certificates=certificates,
        )


def _accelerators(shared: Path) -> Iterator[Real]:
    facts = expected(shared, "nvidia")
    name = "hopper_cert_hold.json"
    shown = exhibit_of(shared, f"nvidia/{name}")
    assert isinstance(shown, Gpus)
    pem = "".join(device.certificate_chain for device in shown.devices).encode()
    first, _ = _window(tuple(_ders(pem)))
    yield Real(
        file=f"nvidia/{name}",
        policy=gpu_rules(),
        at=first,
        outside=(first - 1,),  # they end in the year 9999
        late="certificate-chain-invalid",
        nonce=facts[name][0]["nonce"],
    )
    for name in ("hopper_535", "hopper_580_mpt"):
        chain = f"nvidia/{name}.chain.pem"
        first, _ = _window(ders_of(shared, (chain,)))
        yield Real(
            file=f"nvidia/{name}.report.bin",
            policy=gpu_rules(),
            at=first,
            outside=(first - 1,),
            late="certificate-chain-invalid",
            nonce=facts[name]["nonce"],
            chain=chain,
        )


def _refused(file: str, code: str, policy: dict[str, Any], **facts: Any) -> tuple[Real, str]:
    return Real(file=file, policy=policy, **{"at": _SUMMER, "outside": ()} | facts), code


def _snp_files(name: str) -> tuple[str, ...]:
    return f"sev-snp/{name}.cert.der", "sev-snp/roots/ask_ark_milan.pem"


_ANY_MILAN = snp_rules("InsecureMilan", (0, 0, 0, 0))
_OUTDATED, _TDX = "tdx/tdx_quote_outdated_collateral.json", "tdx/tdx_quote_collateral.json"
_BAD = "nvidia/hopper_bad_signature"
REFUSED: tuple[tuple[Real, str], ...] = (
    _refused("tdx/sgx_quote", "platform-mismatch", tdx_rules(), at=1750935371),
    _refused(
        "tdx/tdx_quote_outdated", "tcb-status-refused", tdx_rules(), at=1772708331,
        collateral=_OUTDATED,
    ),
    _refused(
        "tdx/own-mock/quote.bin", "simulated-evidence", tdx_rules(), at=1750000001,
        collateral="tdx/own-mock/collateral.json",
    ),
    _refused(
        "dstack/verifier-fixtures/tdx-lite-getquote.json", "collateral-expired", intel(),
        at=1772708331, collateral=_OUTDATED,
    ),
    _refused(
        "dstack/simulator-v0.5.4/quote.hex", "tcb-status-refused", tdx_rules(), at=1750332747,
        collateral=_TDX,
    ),
    _refused(
        "dstack/rtmr3-based/report.json", "tcb-status-refused", intel(), at=1750332747,
        collateral=_TDX,
    ),
    _refused("nitro/bad_signature_2024.cose", "quote-invalid", nitro_rules(), at=1721770180),
    _refused("nitro/debug_2023.cose", "debug-guest", nitro_rules(), at=1695049410),
    _refused("nitro/debug_2024_userdata_nonce.cose", "debug-guest", nitro_rules(), at=1725911352),
    _refused(
        "sev-snp/milan_wrong_vcek.report.bin", "certificate-chain-invalid", _ANY_MILAN,
        certificates=_snp_files("milan_wrong_vcek"),
    ),
    _refused(
        "sev-snp/milan_debug_policy.report.bin", "debug-guest", _ANY_MILAN,
        certificates=_snp_files("milan_debug_policy"),
    ),
    _refused(
        "sev-snp/milan_vcek_v2.report.bin", "platform-mismatch", snp_rules("Genoa", (0, 0, 0, 0)),
        certificates=_snp_files("milan_vcek_v2"),
    ),
    _refused(f"{_BAD}.report.bin", "gpu-report-invalid", gpu_rules(), chain=f"{_BAD}.chain.pem"),
    *(
        _refused(
            f"nvidia/{name}", "gpu-set-refused",
            gpu_rules(gpu_count=count, mode=["single", "mpt", "protected_pcie"]),
        )
        # Parts of boards: GPUs without their switches, a switch without its GPUs.
        for name, count in (
            ("hopper_single_ppcie.json", 1),
            ("hopper_multi4_ppcie.json", 4),
            ("switch_ls10.json", 1),
        )
    ),
    _refused(
        "nvidia/switch_ls10_x4_duplicate.json", "gpu-set-refused", gpu_rules(switch_count=4)
    ),
    _refused(
        "nvidia/nras_eat_2025.json", "remote-verdict-refused", gpu_rules(), at=1749602000,
        nonce="93" * 32,
    ),
    _refused(
        "nvidia/rim/driver_GH100_550.144.03_bad_signature.xml", "reference-value-invalid",
        gpu_rules(),
    ),
    _refused("nvidia/rim/driver_bad_chain.xml", "reference-value-invalid", gpu_rules()),
)  # fmt: skip
"""Files that must be refused, and the code of the refusal."""


@cache
def expected(shared: Path, family: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((shared / "vectors" / family / "expected.json").read_text())
    return found


def moment(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp())


def _report_data(shared: Path, name: str) -> str:
    """What the file carries, read by its fixed place: not by the parser under test."""
    data = (shared / "vectors" / name).read_bytes()
    if name.endswith(".json"):
        data = bytes.fromhex(json.loads(data)["quote"])
    elif name.endswith((".txt", ".hex")):
        data = bytes.fromhex(data.decode().strip().removeprefix("0x"))
    start = 0x50 if len(data) == 1184 else 48 + 520
    return data[start : start + 64].hex()


# -- files by themselves --------------------------------------------------------------------------


class RealQuote(NamedTuple):
    """Files among the vectors, first and last valid second, evaluation data number."""

    quote: str
    collateral: str
    first: int
    last: int
    number: int


REAL = {
    "tdx": RealQuote("tdx/tdx_quote", "tdx/tdx_quote_collateral.json", 1750329147, 1752919234, 17),
    "gpu-guest": RealQuote(
        "dstack/verifier-fixtures/quote-report.json",
        "tdx/tdx_quote_outdated_collateral.json",
        1771412331,
        1774003274,
        18,
    ),
    "near": RealQuote(
        "tdx/near-gas-test/quote_hex.txt",
        "tdx/near-gas-test/quote_collateral.json",
        1756798919,
        1759388630,
        17,
    ),
}


def real_quote(shared: Path, name: str) -> bytes:
    path = shared / "vectors" / name
    if path.suffix == ".json":
        raw = bytes.fromhex(json.loads(path.read_text())["quote"])
    elif path.suffix in (".txt", ".hex"):
        raw = bytes.fromhex(path.read_text().strip())
    else:
        raw = path.read_bytes()
    return canonical_quote(raw)


def real_collateral(shared: Path, name: str) -> Collateral:
    return Collateral.from_dict(json.loads((shared / "vectors" / name).read_text()))


def real_chain(shared: Path, name: str, root: str) -> tuple[bytes, ...]:
    """A SEV-SNP machine's leaf under the authorities that AMD publishes for ``root``."""
    return ders_of(shared, (f"sev-snp/{name}.cert.der", f"sev-snp/roots/ask_ark_{root}.pem"))


def real_report(shared: Path, name: str) -> bytes:
    return (shared / "vectors" / "sev-snp" / f"{name}.report.bin").read_bytes()
