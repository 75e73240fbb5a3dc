"""A PCCS on this machine: collateral in the form of Intel's API, and ways to misbehave."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit

from http_server import Handler, http_served

from sealtrain.attest.evidence import Collateral

Answer = tuple[int, dict[str, str], bytes]
_SGX, _TDX = "/sgx/certification/v4", "/tdx/certification/v4"


@dataclass(kw_only=True)
class Pccs:
    """What the server hands out.

    Attributes:
        change: May replace any answer.
        asked: Targets of the requests that came in.
        hosts: The hosts they named.
    """

    collateral: Collateral
    fmspc: str
    ca: str = "platform"
    root_crl_as_hex: bool = True
    url: str = ""
    asked: list[str] = field(default_factory=list)
    hosts: list[str] = field(default_factory=list)
    change: Callable[[str, Answer], Answer] = lambda _path, answer: answer

    def answer(self, target: str) -> Answer:
        parts = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        self.asked.append(target)
        return self.change(parts.path, self._answer(parts.path, query))

    def _answer(self, path: str, query: dict[str, str]) -> Answer:
        one = self.collateral
        if path == f"{_SGX}/pckcrl" and query.get("ca") == self.ca:
            chain = {"SGX-PCK-CRL-Issuer-Chain": quote(one.pck_crl_issuer_chain)}
            return 200, chain, bytes.fromhex(one.pck_crl)
        if path == f"{_SGX}/rootcacrl":
            crl = bytes.fromhex(one.root_ca_crl)
            return 200, {}, crl.hex().encode() if self.root_crl_as_hex else crl
        if path == f"{_TDX}/tcb" and query.get("fmspc", "").lower() == self.fmspc:
            chain = {"TCB-Info-Issuer-Chain": quote(one.tcb_info_issuer_chain)}
            return 200, chain, _signed("tcbInfo", one.tcb_info, one.tcb_info_signature)
        if path == f"{_TDX}/qe/identity":
            chain = {"SGX-Enclave-Identity-Issuer-Chain": quote(one.qe_identity_issuer_chain)}
            body = _signed("enclaveIdentity", one.qe_identity, one.qe_identity_signature)
            return 200, chain, body
        return 404, {}, b"No cache data for this platform."


def _signed(name: str, text: str, signature: str) -> bytes:
    return f'{{"{name}":{text},"signature":"{signature}"}}'.encode()


@contextmanager
def serving(pccs: Pccs, certificate: Path | None = None) -> Iterator[Pccs]:
    """Serve it, over TLS where there is a certificate."""

    class Answering(Handler):
        def do_GET(self) -> None:  # the name is the library's
            pccs.hosts.append(self.headers["Host"])
            status, headers, body = pccs.answer(self.path)
            self.answer(status, body, **headers)

    with http_served(Answering, certificate) as pccs.url:
        yield pccs
