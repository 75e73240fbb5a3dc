"""How far a TDX platform is behind: its security versions against those that the vendor published.

Whether a platform is acceptable is decided in ``verify``. This page of the same table tells a
person which component it is, what it has and what it needs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from sealtrain.attest.evidence import Collateral
from sealtrain.attest.tdx.parse import TdxQuote
from sealtrain.base.canonical import parse_json
from sealtrain.errors import DataInvalid

_EXTENSION: Final = "1.2.840.113741.1.13.1"
_COMPONENTS = 16
_SHOWN = 8
_BY_TYPE: Final = {
    "TDX Module": "updates the TDX module",
    "SEAMLDR ACM": "updates the SEAM loader",
    "TDX Late Microcode Update": "loads newer microcode",
    "SGX Late Microcode Update": "loads newer microcode",
    "Early Microcode Update": "updates the BIOS, which loads microcode",
    "TXT SINIT": "updates the SINIT module",
    "quoting enclave": "updates Intel's quoting enclave (DCAP)",
    "PCE": "updates Intel's provisioning enclave (DCAP)",
}
_BY_STATUS: Final = (
    ("Configuration", "changes BIOS settings as the platform's advisories say"),
    ("SWHardening", "reads the advisories; list the status where the software is hardened"),
    ("Revoked", "replaces the machine: the vendor revoked this level for good"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """One component below what is needed.

    Attributes:
        component: In the vendor's words, where it has some.
        found: Security version (SVN) that the platform has.
        needed: The lowest one that would do.
        action: What the machine's operator does.
    """

    component: str
    found: int
    needed: int
    action: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Levels:
    """A quote beside its collateral, whose signatures hold."""

    quote: TdxQuote
    collateral: Collateral

    def shortfalls(self, statuses: Collection[str]) -> tuple[Shortfall, ...]:
        """What separates the platform from the nearest level with one of these statuses.

        Nothing where no level has one, where the platform reaches it, or where the vendor's
        documents have another form.
        """
        try:
            info = _document(self.collateral.tcb_info)
            identity = _document(self.collateral.qe_identity)
            return (
                *self._platform(info, statuses),
                *self._module(info, statuses),
                *self._enclave(identity, statuses),
            )
        except (DataInvalid, KeyError, TypeError, ValueError, AttributeError):
            return ()

    def _platform(self, info: dict[str, Any], statuses: Collection[str]) -> tuple[Shortfall, ...]:
        """SGX and TDX components and the PCE, by the level with the fewest of them to go."""
        sgx, pce = _read_certified(self.quote)
        tdx, skipped = self.quote.tee_tcb_svn, 2 if self.quote.tee_tcb_svn[1] else 0
        ways = []
        for level in info["tcbLevels"]:
            if level["tcbStatus"] not in statuses:
                continue
            tcb = level["tcb"]
            ways.append(
                (
                    *_below("SGX", sgx, tcb["sgxtcbcomponents"], 0),
                    *_below("TDX", tdx, tcb["tdxtcbcomponents"], skipped),
                    *_one("PCE", pce, tcb["pcesvn"]),
                )
            )
        return min(ways, key=_distance, default=())

    def _module(self, info: dict[str, Any], statuses: Collection[str]) -> tuple[Shortfall, ...]:
        """The TDX module, where it has levels of its own."""
        minor, major = self.quote.tee_tcb_svn[:2]
        if not major:
            return ()
        name = f"TDX_{major:02X}"
        for module in info.get("tdxModuleIdentities", ()):
            if module["id"] == name:
                return _nearest("TDX Module", minor, module["tcbLevels"], statuses)
        return ()

    def _enclave(self, identity: dict[str, Any], statuses: Collection[str]) -> Iterator[Shortfall]:
        found = self.quote.qe_svn
        yield from _nearest("quoting enclave", found, identity["tcbLevels"], statuses)


def name_shortfalls(
    status: str, levels: Levels | None, statuses: Collection[str]
) -> tuple[str, str, str]:
    """What was found, what is needed, and what to do, for an error's fields.

    Args:
        status: The platform's status, or what stands for it.
        levels: Where its security versions can be looked up.
        statuses: Those that a policy accepts.
    """
    behind = () if levels is None else levels.shortfalls(statuses)
    got, needed = status, " or ".join(statuses)
    actions = [action for word, action in _BY_STATUS if word in status]
    for shortfall in behind[:_SHOWN]:
        got += f"; {shortfall.component} SVN {shortfall.found}"
        needed += f"; {shortfall.component} SVN {shortfall.needed}"
    actions += [shortfall.action for shortfall in behind]
    told = "; ".join(dict.fromkeys(actions)) or "updates firmware and microcode"
    return got, needed, f"the machine's operator {told}"


def _document(text: str) -> dict[str, Any]:
    value = parse_json(text.encode("utf-8"), max_depth=16, max_values=32_768)
    if not isinstance(value, dict):
        raise DataInvalid("not an object")
    return value


def _read_certified(quote: TdxQuote) -> tuple[tuple[int, ...], int]:
    """Security versions in the platform's certificate: 16 components, and the PCE."""
    import dcap_qvl  # loads a compiled library

    leaf = x509.load_der_x509_certificate(quote.certificates[0])
    extension = dcap_qvl.parse_pck_extension_from_pem(leaf.public_bytes(Encoding.PEM))
    numbers = [
        int.from_bytes(extension.get_value(f"{_EXTENSION}.2.{place}"), "big")
        for place in range(1, _COMPONENTS + 2)
    ]
    return tuple(numbers[:_COMPONENTS]), numbers[_COMPONENTS]


def _below(
    family: str, found: Collection[int], needed: list[dict[str, Any]], skipped: int
) -> Iterator[Shortfall]:
    for place, (have, want) in enumerate(zip(found, needed, strict=True)):
        if place >= skipped and have < want["svn"]:
            name = want.get("type") or f"{family} component {place + 1}"
            known = _BY_TYPE.get(name)
            if known is None:
                known = "updates the BIOS" if want.get("category") == "BIOS" else "updates it"
            yield Shortfall(component=name, found=have, needed=want["svn"], action=known)


def _one(name: str, found: int, needed: int) -> Iterator[Shortfall]:
    if found < needed:
        yield Shortfall(component=name, found=found, needed=needed, action=_BY_TYPE[name])


def _nearest(
    name: str, found: int, levels: list[dict[str, Any]], statuses: Collection[str]
) -> tuple[Shortfall, ...]:
    needed = [level["tcb"]["isvsvn"] for level in levels if level["tcbStatus"] in statuses]
    return tuple(_one(name, found, min(needed))) if needed else ()


def _distance(way: tuple[Shortfall, ...]) -> tuple[int, int]:
    return len(way), sum(shortfall.needed - shortfall.found for shortfall in way)
