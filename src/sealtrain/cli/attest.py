"""``attest``: collect, verify, explain and bundle evidence. Verifying uses no network."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sealtrain.attest.bundle import Bundle
from sealtrain.attest.explain.examine import Examined, examine, make_bundle, unwrap_bundle
from sealtrain.attest.explain.explanation import explain as explained
from sealtrain.attest.forms import Gpus, OwnEvidence, QuotedGpus
from sealtrain.attest.guest import open_guest, platform_of
from sealtrain.attest.nvidia.device import verify_device
from sealtrain.attest.nvidia.fetch import (
    OCSP_URL,
    RIM_URL,
    NvidiaServices,
    fetch_collateral,
    fetch_remote_verdict,
)
from sealtrain.attest.presets import PRESETS, preset_yaml
from sealtrain.attest.refresher import (
    DAY,
    Published,
    Refresher,
    gpu_published,
    snp_published,
    tdx_published,
)
from sealtrain.attest.snp.collect import SERVICE
from sealtrain.attest.snp.fetch import fetch_published
from sealtrain.attest.tdx.collect import load_collateral
from sealtrain.attest.tdx.parse import parse_quote
from sealtrain.base.clock import system_clock, to_rfc3339
from sealtrain.base.digests import sha256_hex
from sealtrain.base.files import atomic_write
from sealtrain.base.platforms import PLATFORMS
from sealtrain.cli.durations import Duration
from sealtrain.cli.exhibit import (
    BesideOptions,
    GpuCollateral,
    binding_of,
    policy_of,
    recognise_form,
    time_of,
)
from sealtrain.cli.output import Json, emit, say, table
from sealtrain.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sealtrain.attest.nvidia.collateral import GpuCollateral as GpuDocument
    from sealtrain.attest.nvidia.parse import GpuDevice
    from sealtrain.attest.tdx.parse import TdxQuote

File = Annotated[Path, typer.Argument(help="Evidence in any of the known forms, or a bundle.")]
Policy = Annotated[str, typer.Option(help="Appraisal policy (YAML), or preset:NAME.")]
MaybePolicy = Annotated[
    str | None, typer.Option("--policy", help="Appraisal policy (YAML), or preset:NAME.")
]
At = Annotated[
    str | None,
    typer.Option(help="Time to verify at: YYYY-MM-DDTHH:MM:SSZ, or now [a bundle's own]."),
]


def collect(
    platform: Annotated[str, typer.Option(help=f"{PLATFORMS}.")],
    guest: Annotated[
        str, typer.Option(help="Guest agent's socket, or PLATFORM:DEVICE?compose=FILE.")
    ],
    nonce: Annotated[str, typer.Option(help="Fresh and unpredictable, 16 bytes or more (hex).")],
    out: Annotated[Path, typer.Option(help="Evidence to write.")] = Path("evidence.json"),
    collateral: Annotated[
        str | None, typer.Option(help="Collateral to carry along, file:PATH or https://PCCS.")
    ] = None,
    gpu_collateral: GpuCollateral = None,
    as_json: Json = False,
) -> None:
    """Collect evidence of the guest this runs in, for a verifier that sent a nonce."""
    binding = binding_of(nonce)
    found = open_guest(
        platform_of(platform), guest, collateral=collateral, gpu_collateral=gpu_collateral
    ).evidence(binding)
    atomic_write(out, found.to_bytes())
    gpus = 0 if found.gpu is None else len(found.gpu.devices)
    emit(
        as_json,
        {"evidence": str(out), "digest": found.digest, "tee": found.cpu.tee, "accelerators": gpus},
        [f"evidence  {out}", f"digest    {found.digest}"],
    )


def verify(
    file: File,
    policy: Policy,
    *,
    at: At = None,
    given: BesideOptions,
    as_json: Json = False,
) -> None:
    """Verify evidence at a moment under a policy, claim by claim. Exits 3 when refused.

    It reads sealtrain's evidence and bundles, TDX quotes, answers and certificates of dstack,
    documents of AWS Nitro, reports of SEV-SNP, evidence of Azure as the attestation agent of
    Confidential Containers writes it, and reports of NVIDIA's accelerators.
    """
    exhibit = recognise_form(file)
    inner, beside = unwrap_bundle(exhibit, given.read(exhibit))
    found = examine(inner, beside, policy_of(policy), time_of(at, exhibit))
    if not found.bound:
        say("not bound to a conversation: name what it was made for with --nonce")
    elif given.nonce is None:
        say("bound to the conversation that the bundle names: name yours with --nonce")
    if "document" in found.missing:
        say("deployment document not compared: name it with --deployment or --compose-hash")
    emit(as_json, found.to_dict(), _verdict(found))


def explain(
    file: File,
    *,
    policy: MaybePolicy = None,
    at: At = None,
    given: BesideOptions,
    as_json: Json = False,
) -> None:
    """Say what a file of evidence says, what it means, and which policy lines it meets or breaks.

    This is no verdict: it ends with 0 whatever it finds, as long as the file can be read.
    """
    exhibit = recognise_form(file)
    beside = given.read(exhibit)
    own_time = isinstance(getattr(exhibit, "bundle", None), Bundle)
    if policy is not None and at is None and not own_time:
        raise UsageError("a policy is compared at a time", expected="--at TIME")
    found = explained(
        exhibit,
        beside,
        None if policy is None else policy_of(policy),
        None if at is None else time_of(at, exhibit),
    )
    emit(as_json, found.to_dict(), found.to_lines())


def bundle(
    file: File,
    out: Annotated[Path, typer.Option(help="Bundle to write.")],
    *,
    at: At = None,
    policy: MaybePolicy = None,
    given: BesideOptions,
    as_json: Json = False,
) -> None:
    """Keep evidence with all that is needed to verify it again, years later and offline.

    What does not verify is not bundled. Without a policy only signatures and roots are verified.
    """
    exhibit = recognise_form(file)
    inner, beside = unwrap_bundle(exhibit, given.read(exhibit))
    rules = None if policy is None else policy_of(policy)
    data = make_bundle(inner, beside, rules, time_of(at, exhibit)).to_bytes()
    atomic_write(out, data)
    emit(
        as_json,
        {"bundle": str(out), "kind": inner.kind, "sha256": sha256_hex(data)},
        [f"bundle    {out}", f"kind      {inner.kind}", f"sha256    {sha256_hex(data)}"],
    )


def write_policy(
    preset: Annotated[
        str,
        typer.Argument(help="Name of a preset; a name that is none is answered with all of them."),
    ] = "deny-all",
    out: Annotated[Path | None, typer.Option(help="Policy file to write [stdout].")] = None,
    as_json: Json = False,
) -> None:
    """Write a policy to begin from; its comments say what to fill in."""
    text = preset_yaml(preset)
    if out is None:
        emit(as_json, PRESETS[preset], text.rstrip("\n").split("\n"))
        return
    atomic_write(out, text.encode())
    emit(as_json, {"policy": str(out)}, [f"policy   {out}"])


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchOptions:
    """Whose collateral is fetched, and where."""

    quote: Annotated[
        Path | None, typer.Option(help="TDX quote or dstack answer to fetch collateral for.")
    ] = None
    pccs: Annotated[str | None, typer.Option(help="Address of a PCCS or of Intel's service.")] = (
        None
    )
    gpu: Annotated[Path | None, typer.Option(help="NVIDIA evidence to fetch collateral for.")] = (
        None
    )
    rims: Annotated[
        str | None, typer.Option(help="Address of reference values [NVIDIA's service].")
    ] = None
    ocsp: Annotated[
        str | None, typer.Option(help="Address of the OCSP responder [NVIDIA's service].")
    ] = None
    nras: Annotated[
        str | None,
        typer.Option(
            help="Address of NVIDIA's attestation service, whose verdict is kept too: for a policy "
            "with nras: require. The reports leave for it [not asked]."
        ),
    ] = None
    snp: Annotated[
        Path | None, typer.Option(help="SEV-SNP report to fetch AMD's certificates and list for.")
    ] = None
    kds: Annotated[
        str | None, typer.Option(help="Address of AMD's certificates [AMD's service].")
    ] = None

    def fetch(self, *, strict: bool) -> Callable[[int], Published]:
        """What fetches and checks at a time; the file that is named is read now.

        Args:
            strict: Whether TDX's and NVIDIA's collateral is checked; AMD's always is.

        Raises:
            UsageError: None is named, or more than one, or it is of another kind.
        """
        named = [file for file in (self.quote, self.gpu, self.snp) if file is not None]
        if len(named) != 1 or (self.quote is None) != (self.pccs is None):
            raise UsageError(
                "say whose collateral to fetch",
                expected="--quote FILE --pccs URL, --gpu FILE, or --snp FILE",
            )
        if self.snp is not None:
            raw, service = _report_of(self.snp), self.kds or SERVICE
            return lambda now: snp_published(fetch_published(raw, now=now, service=service))
        if self.gpu is not None:
            devices = _devices_of(self.gpu)
            return lambda now: gpu_published(_gpu_collateral(devices, now, self), now, strict)
        quote, pccs = _quote_of(named[0]), self.pccs or ""
        return lambda now: tdx_published(load_collateral(pccs, quote), quote, now, strict)


def fetch(
    out: Annotated[
        Path, typer.Option(help="Collateral to write: a file, with --snp a folder of AMD's files.")
    ],
    *,
    options: FetchOptions,
    every: Annotated[
        int | None,
        typer.Option(
            click_type=Duration("s", least=60),
            help="Stay, and fetch again so often, or sooner where something ends.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Fetch what a vendor publishes about a platform, to verify with it offline.

    With --every the command stays and keeps the files fresh, until Ctrl-C: what is not authentic,
    not current or older than before is not written, and a failure leaves them as they are.
    """
    fetched = options.fetch(strict=every is not None)
    refresher = Refresher(fetched, out, clock=system_clock, every=every or DAY)
    refresher.refresh()
    emit(as_json, {"collateral": str(out)}, [f"collateral  {out}"])
    while every is not None:
        time.sleep(refresher.pause(system_clock()))
        say(refresher.step().to_line())


def _report_of(path: Path) -> bytes:
    from sealtrain.attest.evidence import Evidence
    from sealtrain.attest.snp.exhibit import Snp
    from sealtrain.attest.snp.tee import ReportEvidence

    exhibit = recognise_form(path)
    match exhibit:
        case Snp(report=found):
            return found.raw
        case OwnEvidence(evidence=Evidence(cpu=ReportEvidence(report_bytes=raw))):
            return raw
    raise UsageError("no SEV-SNP report in this file", got=exhibit.title)


def _quote_of(path: Path) -> TdxQuote:
    from sealtrain.attest.dstack.exhibit import DstackQuote
    from sealtrain.attest.evidence import Evidence
    from sealtrain.attest.tdx.exhibit import Quote
    from sealtrain.attest.tdx.tee import QuoteEvidence

    exhibit = recognise_form(path)
    match exhibit:
        case (
            Quote(quote=parsed) | DstackQuote(quote=parsed) | QuotedGpus(quote=Quote(quote=parsed))
        ):
            return parsed
        case OwnEvidence(evidence=Evidence(cpu=QuoteEvidence(quote_bytes=raw))):
            return parse_quote(raw)
    raise UsageError("collateral is fetched for TDX quotes", got=exhibit.title)


def _devices_of(path: Path) -> Sequence[GpuDevice]:
    exhibit = recognise_form(path)
    match exhibit:
        case Gpus(devices=devices) | QuotedGpus(devices=devices):
            return devices
        case OwnEvidence(evidence=evidence) if evidence.gpu is not None:
            return evidence.gpu.devices
    raise UsageError("no accelerators in this file", got=exhibit.title)


def _gpu_collateral(devices: Sequence[GpuDevice], now: int, options: FetchOptions) -> GpuDocument:
    # Only real devices: there is no collateral of simulated ones.
    verified = [verify_device(device, simulator_root=None, now=now) for device in devices]
    with NvidiaServices() as services:
        verdict = None
        if options.nras is not None:
            nonce = verified[0].report.nonce  # the service refuses reports of several
            verdict = fetch_remote_verdict(devices, services, nonce=nonce, nras_url=options.nras)
        return fetch_collateral(
            verified,
            services,
            rim_url=options.rims or RIM_URL,
            ocsp_url=options.ocsp or OCSP_URL,
            nras=verdict,
        )


def _verdict(found: Examined) -> Iterator[str]:
    from sealtrain.attest.field import shorten

    yield f"{found.label}: {found.title} at {to_rfc3339(found.verified_at)}"
    header = ("claim", "got", "expected", "source", "outcome")
    for name, part in found.submods.items():
        yield ""
        yield name
        for claim, value in part.eat.items():
            yield f"  {claim} {shorten(value)}"
        rows = [
            (row.name, shorten(row.got), shorten(row.expected), row.source, row.outcome)
            for row in part.claims
        ]
        yield from (f"  {line}" for line in table(rows, header=header))
