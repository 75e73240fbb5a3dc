"""The guest a process runs in: what it measured, and evidence of it for one conversation.

An address says where evidence comes from:

- ``SOCKET``: dstack's guest agent, or a simulated guest that speaks for itself;
- ``nitro:/dev/nsm?compose=FILE``: a Nitro enclave's security module;
- ``snp:/sys/kernel/config/tsm/report?compose=FILE``: a SEV-SNP guest; ``&certificates=FOLDER``
  names files of AMD's where the host does not hand them out: certificates (``*.der``) and a
  revocation list (``amd.crl``);
- ``tdx:/sys/kernel/config/tsm/report?compose=FILE``: a TDX guest without dstack;
- ``azure-snp:/dev/tpmrm0?compose=FILE``, ``azure-tdx:/dev/tpmrm0?compose=FILE``: a confidential
  machine of Azure, ``&certificates=FOLDER`` as for ``snp``;
- ``gcp-snp:/sys/kernel/config/tsm/report?compose=FILE``: a SEV-SNP machine of Google's, with the
  same and ``&tpm=FILE``.

``FILE`` is the deployment document that the guest measured. Accelerators are shown where the
machine has any in confidential mode.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, get_args
from urllib.parse import parse_qsl

from sealtrain.attest.dstack.client import DstackClient
from sealtrain.attest.evidence import DCAP_TEES, Collateral, Evidence
from sealtrain.attest.nvidia.collateral import MAX_COLLATERAL_BYTES, GpuCollateral
from sealtrain.attest.registry import TEES
from sealtrain.attest.report_data import REPORT_DATA_BYTES, Binding
from sealtrain.attest.tee import Shown
from sealtrain.attest.verifier import verifier_of
from sealtrain.base.canonical import canonical_json
from sealtrain.base.encoding import from_base64
from sealtrain.base.files import parsing_once, read_bounded
from sealtrain.base.limits import MAX_DEPLOYMENT_BYTES
from sealtrain.base.platforms import Platform, either
from sealtrain.base.tiers import Tier, tier_of
from sealtrain.errors import (
    DataInvalid,
    TrustInvalid,
    UsageError,
)

if TYPE_CHECKING:
    from sealtrain.attest.nvidia.collect import Asked
    from sealtrain.attest.nvidia.parse import GpuDevice, GpuEvidence

_gpu_collateral_in = parsing_once(GpuCollateral.from_bytes, MAX_COLLATERAL_BYTES)
_AGENT_SECONDS = 180
"""For the reports of a whole board, which devices make one after the other."""
GPU_DRIVER = Path("/dev/nvidiactl")
"""There where a guest has NVIDIA's driver."""
_DEVICES = {tee.name: tee for tee in TEES if tee.device is not None}
_FORMS = f"SOCKET, or {either(sorted(f'{name}:' for name in _DEVICES))}DEVICE?compose=FILE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Guest:
    """One guest, seen from inside.

    Attributes:
        platform: What its evidence is offered as.
        sockets: Unix sockets it is reached through.
        writable: Folders of the platform's that asking for evidence writes in.
        app_compose: Reads the deployment document it measured.
        attest: Report data (64 bytes) → the TEE's own form of evidence.
        accelerators: Nonce (32 bytes) → their evidence, ``None`` where there is none.
        services: URLs that collateral is asked for at, none where it is read from files.
        collateral: What was attested → DCAP collateral to carry along.
        gpu_collateral: Reads accelerators' collateral to carry along.
        note: Extends a measured log by an event, where the platform has one; says whether.
    """

    platform: Platform
    sockets: tuple[Path, ...]
    writable: tuple[Path, ...]
    app_compose: Callable[[], bytes]
    attest: Callable[[bytes], Shown]
    accelerators: Callable[[bytes], GpuEvidence | None]
    services: tuple[str, ...]
    collateral: Callable[[Shown], Collateral | None]
    gpu_collateral: Callable[[], GpuCollateral | None]
    note: Callable[[str, bytes], bool]

    def evidence(self, binding: Binding) -> Evidence:
        """Fresh evidence for one conversation.

        Accelerators come first: the processor's quote commits to what they showed.

        Raises:
            GuestApiUnreachable: The platform does not answer.
            EvidenceMalformed: It answers with something else than evidence.
            TrustInvalid: Collateral cannot be read.
        """
        gpu = self.accelerators(binding.gpu_nonce())
        shown = self.attest(binding.report_data(b"" if gpu is None else gpu.digest))
        return Evidence.build(
            self.platform,
            app_compose=self.app_compose(),
            gpu=gpu,
            collateral=self.collateral(shown),
            gpu_collateral=None if gpu is None else self.gpu_collateral(),
            **shown,
        )

    def tier(self) -> Tier:
        """What its kind of evidence proves. It is asked: one agent may show several kinds.

        Raises:
            GuestApiUnreachable: The platform does not answer.
            EvidenceMalformed: It answers with something else than evidence.
        """
        return tier_of(str(self.attest(bytes(REPORT_DATA_BYTES))["tee"]))


def platform_of(name: str) -> Platform:
    """The platform of that name.

    Raises:
        UsageError: No platform has that name.
    """
    known: tuple[Platform, ...] = get_args(Platform)
    for platform in known:
        if name == platform:
            return platform
    raise UsageError("unknown platform", got=name, expected=" or ".join(known))


def open_guest(
    platform: Platform,
    address: str,
    *,
    collateral: str | None,
    gpu_collateral: str | None = None,
) -> Guest:
    """The guest at an address of a form above.

    Args:
        platform: What its evidence shall be offered as. Always chosen explicitly.
        address: Where evidence comes from.
        collateral: Source of DCAP collateral (``file:…`` or the URL of a service); needed for
            TDX, without meaning for other TEEs.
        gpu_collateral: Source of accelerators' collateral (``file:…``).

    Raises:
        UsageError: The address does not fit the platform, or collateral is missing.
        GuestApiUnreachable: A guest agent does not answer.
    """
    accelerators: Callable[[bytes], GpuEvidence | None] = _local_gpus
    tee, separator, rest = address.partition(":")
    if not separator or tee not in _DEVICES:
        tee, attest, client = _agent(platform, address)
        compose = partial(_agents_document, client)
        asked = partial(agents_devices, client)
        if platform == "simulator":
            accelerators = partial(_simulate_gpus, client, asked if tee == "dstack" else None)
        else:
            accelerators = partial(_local_gpus, agent=asked)
        note: Callable[[str, bytes], bool] = client.emit_event
        sockets: tuple[Path, ...] = (Path(address),)
        writable: tuple[Path, ...] = ()
    else:
        if platform not in (
            _DEVICES[tee].platform,
            "simulator",
        ):  # a simulator may stand behind such a folder, too
            raise UsageError(
                "the guest's address is of another platform",
                check="guest",
                got=tee,
                expected=platform,
            )
        attest, device, document = _device(tee, rest)
        compose = partial(_document, document)
        note, sockets = _is_unnoted, ()
        # Devices below /dev need no write access; a configfs report is a folder that the guest
        # makes.
        writable = (device,) if device.is_dir() else ()
    if collateral is None and tee in DCAP_TEES:
        raise UsageError(
            "quotes of TDX need collateral",
            check="collateral",
            got="none",
            expected="file:PATH or https://HOST",
            hint="name it with --collateral",
        )
    services, carried = _collateral(collateral if tee in DCAP_TEES else None)
    return Guest(
        platform=platform,
        sockets=sockets,
        writable=writable,
        app_compose=compose,
        attest=attest,
        accelerators=accelerators,
        services=services,
        collateral=carried,
        gpu_collateral=partial(load_gpu_collateral, gpu_collateral),
        note=note,
    )


def load_gpu_collateral(uri: str | None) -> GpuCollateral | None:
    """Read accelerators' collateral from ``file:PATH``; nothing where no source is named.

    Raises:
        TrustInvalid: Another scheme, no such file, or not JSON.
        EvidenceMalformed: The document is not collateral.
    """
    if uri is None:
        return None
    scheme, _, rest = uri.partition(":")
    if scheme != "file" or not rest:
        raise TrustInvalid(
            "accelerators' collateral has an unsupported address",
            check="collateral",
            got=uri,
            expected="file:PATH",
        )
    try:
        return _gpu_collateral_in(Path(rest.removeprefix("//")))
    except DataInvalid as error:
        raise TrustInvalid(
            f"accelerators' collateral cannot be read: {error.message}",
            check="collateral",
            hint=error.hint,
        ) from error


def _agent(platform: Platform, address: str) -> tuple[str, Callable[[bytes], Shown], DstackClient]:
    client = DstackClient(address)
    if platform == "dstack":
        return "dstack", _asking("dstack", client), client
    if platform != "simulator":
        raise UsageError(
            "a socket is a guest of dstack or of the simulator",
            check="guest",
            got=platform,
            expected=_FORMS,
        )
    tee = str(client.call("/simulator/Guest", {}).get("tee"))
    return tee, _asking(tee, client), client


def _asking(name: str, client: DstackClient) -> Callable[[bytes], Shown]:
    """How a guest behind a socket is asked: by its agent, or as a simulated driver."""
    return partial(verifier_of(name).ask_agent or _simulate_driver, client)


def _agents_document(client: DstackClient) -> bytes:
    return client.info().app_compose


def _simulate_driver(client: DstackClient, report_data: bytes) -> Shown:
    return client.call("/simulator/Attest", {"report_data": report_data.hex()})


def _local_gpus(
    nonce: bytes, *, agent: Callable[[], Asked | None] = lambda: None
) -> GpuEvidence | None:
    if not GPU_DRIVER.exists():
        return None
    from sealtrain.attest.nvidia.collect import collect_gpus, open_nvml
    from sealtrain.attest.nvidia.nscq import CONTROL, collect_switches

    switches = collect_switches if CONTROL.exists() else None
    with open_nvml() as nvml:
        return collect_gpus(nvml, nonce, switches=switches, agent=agent())


def _simulate_gpus(
    client: DstackClient, agent: Callable[[], Asked | None] | None, nonce: bytes
) -> GpuEvidence | None:
    """As ``_local_gpus``, with a simulated driver: an app of dstack 0.6 does not see switches."""
    from sealtrain.attest.nvidia.collect import devices_of
    from sealtrain.attest.nvidia.parse import GpuEvidence

    shown = client.call("/simulator/Gpus", {"nonce": nonce.hex()}).get("evidence")
    if shown is None:
        return None
    seen = GpuEvidence.from_dict(shown)
    asked = None if agent is None else agent()

    def of_kind(kind: str, _nonce: bytes) -> list[GpuDevice]:
        return [device for device in seen.devices if device.kind == kind]

    devices = devices_of(
        seen.claims,
        nonce,
        gpus=partial(of_kind, "gpu"),
        switches=partial(of_kind, "switch") if asked is None else None,
        agent=asked,
    )
    return GpuEvidence.build(tuple(devices), seen.claims)


def agents_devices(client: DstackClient) -> Asked | None:
    """How dstack's agent is asked for accelerators; ``None`` where it is too old."""
    if client.api != "v1":
        return None
    from sealtrain.attest.nvidia.parse import from_nvat

    patient = DstackClient(client.socket, timeout=_AGENT_SECONDS)
    return lambda nonce: from_nvat(canonical_json(patient.attest_gpu(nonce)))


def _collateral(
    uri: str | None,
) -> tuple[tuple[str, ...], Callable[[Shown], Collateral | None]]:
    """URLs of collateral services, and the function that gets collateral for evidence."""
    if uri is None:
        return (), lambda shown: None
    from sealtrain.attest.tdx.collect import CollateralSource

    source = CollateralSource(uri)

    def carry(shown: Shown) -> Collateral | None:
        # An agent of dstack's also runs where no quote of TDX is made.
        return source.of(from_base64(str(shown["quote"]))) if shown["tee"] in DCAP_TEES else None

    return source.services, carry


def _device(tee: str, rest: str) -> tuple[Callable[[bytes], Shown], Path, Path]:
    """The collector for a device, the device, and the path of the deployment document."""
    name, _, query = rest.partition("?")
    place = Path(name)
    options = dict(parse_qsl(query, keep_blank_values=True))
    document = options.pop("compose", "")
    device, collect = _DEVICES[tee].device, verifier_of(tee).collect
    known = () if device is None else device.options
    strange = any(value and option not in known for option, value in options.items())
    if not name or not document or collect is None or strange:
        raise UsageError("not the address of a guest", check="guest", got=rest, expected=_FORMS)

    def show(report_data: bytes) -> Shown:
        return collect(place, report_data, options)

    return show, place, Path(document)


def _document(path: Path) -> bytes:
    try:
        return read_bounded(path, MAX_DEPLOYMENT_BYTES)
    except DataInvalid as error:
        raise UsageError(
            f"deployment document cannot be read: {error.message}", check="guest"
        ) from error


def _is_unnoted(event: str, payload: bytes) -> bool:
    return False
