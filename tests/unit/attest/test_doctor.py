"""A look at a machine: made folders, simulated devices, and what each line of a policy gets."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from gpu_world import claims

from sealtrain.attest.bundle import Attachments
from sealtrain.attest.doctor import look as accelerators
from sealtrain.attest.doctor.finding import ASKED, Finding
from sealtrain.attest.doctor.guest import ProcessorEvidence, show_guest
from sealtrain.attest.doctor.look import Seen, look
from sealtrain.attest.doctor.policy import policy_findings
from sealtrain.attest.errors import CollateralUnreachable, EvidenceMalformed, GuestApiUnreachable
from sealtrain.attest.nitro.collect import attestation, measure_compose
from sealtrain.attest.nitro.exhibit import Nitro
from sealtrain.attest.nitro.parse import parse_document
from sealtrain.attest.nvidia.collect import open_nvml
from sealtrain.attest.policy import AppraisalPolicy, policy_from_dict
from sealtrain.attest.presets import PRESETS, insecure_simulator_policy, preset
from sealtrain.attest.snp.exhibit import Snp
from sealtrain.attest.snp.parse import parse_report
from sealtrain.attest.tdx.exhibit import Quote
from sealtrain.attest.tdx.parse import parse_quote
from sealtrain.errors import ExtraMissing, SealtrainError
from sealtrain_rehearsal.simulator.gpu import SimulatedGpus
from sealtrain_rehearsal.simulator.gpu_collateral import simulate_collateral
from sealtrain_rehearsal.simulator.nitro import SimulatedNitroPki, SimulatedNsm
from sealtrain_rehearsal.simulator.pki import SimulatedPki
from sealtrain_rehearsal.simulator.server import running
from sealtrain_rehearsal.simulator.snp import SimulatedSnp

NOW = 1_800_000_000
SEED = b"doctor-" * 5
COMPOSE = b'{"name": "doctor"}\n'
REPORTS = "sys/kernel/config/tsm/report"
HARDWARE_FLAGS = "flags\t\t: fpu vme {} hypervisor\n"
PKI = SimulatedPki(SEED)


def make(root: Path, *files: str, **texts: str) -> Path:
    """Empty files, folders (with a final slash), and texts by path with __ for a slash."""
    for name in files:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("/"):
            path.mkdir()
        else:
            path.touch()
    for name, text in texts.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def show(tee: str, place: Path, report_data: bytes) -> ProcessorEvidence:
    """What simulated devices show; the places are files of a made folder."""
    if tee == "nitro":
        nsm = SimulatedNsm(SimulatedNitroPki(SEED), clock=lambda: NOW)
        measure_compose(nsm, COMPOSE)
        raw = attestation(nsm, user_data=report_data)
        return ProcessorEvidence(exhibit=Nitro(raw=raw, document=parse_document(raw)))
    if tee == "snp":
        guest = SimulatedSnp(SEED)
        raw = guest.report(report_data, COMPOSE)
        return ProcessorEvidence(
            exhibit=Snp(raw=raw, report=parse_report(raw)), certificates=guest.certificates()
        )
    raw = PKI.quote(report_data)
    return ProcessorEvidence(exhibit=Quote(raw=raw, quote=parse_quote(raw)))


def seen(root: Path, **options: Any) -> Seen:
    given: dict[str, Any] = {
        "now": NOW,
        "show": show,
        "requirements": (),
        "installed": lambda name: "1.0",
        "agent": lambda root, socket, shown: (),
    }
    return look(root, **{**given, **options})


def one(seen: Seen, topic: str, name: str) -> Finding:
    (found,) = [each for each in seen.findings if (each.topic, each.name) == (topic, name)]
    return found


def sound(findings: Any) -> None:
    """Whatever is amiss says what it costs and what to do."""
    for finding in findings:
        assert finding.found
        if finding.level in ("refused", "missing"):
            assert finding.refused, finding
        if finding.topic != "policy":
            assert bool(finding.fix) == (finding.level != "ok"), finding
        assert "\n" not in finding.found + finding.refused + finding.fix


# --- The TEE --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "flag", "tee", "words"),
    [
        (["dev/nsm"], "", "nitro", "--guest nitro:/dev/nsm?compose=FILE"),
        ([f"{REPORTS}/", "dev/tdx_guest"], "", "tdx", f"--guest tdx:/{REPORTS}?compose=FILE"),
        ([f"{REPORTS}/"], "tdx_guest", "tdx", f"--guest tdx:/{REPORTS}?compose=FILE"),
        ([f"{REPORTS}/", "dev/sev-guest"], "", "snp", f"--guest snp:/{REPORTS}?compose=FILE"),
        (["dev/sev-guest"], "", "snp", "--guest snp:/dev/sev-guest?compose=FILE"),
        ([f"{REPORTS}/"], "sev_snp", "snp", f"--guest snp:/{REPORTS}?compose=FILE"),
    ],
    ids=lambda value: str(value),
)
def test_a_guest_is_known_by_its_device_and_says_how_to_use_it(
    tmp_path: Path, files: list[str], flag: str, tee: str, words: str
) -> None:
    found = seen(make(tmp_path, *files, proc__cpuinfo=HARDWARE_FLAGS.format(flag)))
    assert found.tee == tee
    assert one(found, "tee", "guest").level == "ok"
    assert words in one(found, "tee", "guest").found
    assert "SIMULATED" in one(found, "tee", "evidence").found
    assert found.shown is not None
    sound(found.findings)


@pytest.mark.parametrize(
    ("files", "flag", "level", "said"),
    [
        ([], "", "missing", "an ordinary virtual machine"),
        ([], "tdx_guest", "missing", "there is no /dev/tdx_guest"),
        ([], "sev_snp", "missing", "there is no /dev/sev-guest"),
        (["dev/tdx_guest"], "tdx_guest", "missing", f"no /{REPORTS}"),
        (["run/dstack.sock"], "", "missing", "an ordinary virtual machine"),  # a file, no socket
    ],
    ids=lambda value: str(value),
)
def test_a_machine_that_cannot_show_evidence_says_why(
    tmp_path: Path, files: list[str], flag: str, level: str, said: str
) -> None:
    found = seen(make(tmp_path, *files, proc__cpuinfo=HARDWARE_FLAGS.format(flag)))
    assert found.shown is None
    assert one(found, "tee", "guest").level == level
    assert said in one(found, "tee", "guest").found
    sound(found.findings)


AZURE = {"sys__class__dmi__id__chassis_asset_tag": "7783-7084-3265-9085-8269-3286-77\n"}
GOOGLE = {"sys__class__dmi__id__product_name": "Google Compute Engine\n"}


def cpu(maker: str, flags: str) -> str:
    return f"vendor_id\t: {maker}\n{HARDWARE_FLAGS.format(flags)}"


@pytest.mark.parametrize(
    ("files", "cloud", "maker", "flag", "tee", "words"),
    [
        (["dev/tpmrm0"], AZURE, "AuthenticAMD", "", "azure-snp", "azure-snp:/dev/tpmrm0"),
        (["dev/tpmrm0"], AZURE, "GenuineIntel", "", "azure-tdx", "azure-tdx:/dev/tpmrm0"),
        ([f"{REPORTS}/"], GOOGLE, "AuthenticAMD", "sev_snp", "gcp-snp", f"gcp-snp:/{REPORTS}"),
        # A TDX guest of Google's is asked as any other: its quote covers what booted.
        ([f"{REPORTS}/", "dev/tdx_guest"], GOOGLE, "GenuineIntel", "", "tdx", f"tdx:/{REPORTS}"),
        # The same TPM is of no kind elsewhere.
        (["dev/tpmrm0", "dev/nsm"], {}, "AuthenticAMD", "", "nitro", "nitro:/dev/nsm"),
    ],
)
def test_a_machine_of_a_cloud_is_known_by_its_maker(
    tmp_path: Path,
    files: list[str],
    cloud: dict[str, str],
    maker: str,
    flag: str,
    tee: str,
    words: str,
) -> None:
    root = make(tmp_path, *files, proc__cpuinfo=cpu(maker, flag), **cloud)
    asked: list[str] = []

    def fail(tee: str, place: Path, report_data: bytes) -> ProcessorEvidence:
        asked.append(tee)
        raise GuestApiUnreachable("no answer", hint="start it again")

    found = seen(root, show=fail)
    assert (found.tee, asked) == (tee, [tee])
    assert words in one(found, "tee", "guest").found


def test_a_machine_on_azure_without_a_tpm_says_which_module_brings_it(tmp_path: Path) -> None:
    told = []
    for files in ([], ["dev/tpm0"]):
        root = make(
            tmp_path / str(len(files)), *files, proc__cpuinfo=cpu("AuthenticAMD", ""), **AZURE
        )
        found = seen(root)
        assert (found.tee, found.shown) == ("azure-snp", None)
        sound(found.findings)
        told.append(one(found, "tee", "guest").fix)
    assert len(set(told)) == 2
    assert all("modprobe" in fix for fix in told)


@pytest.mark.parametrize(
    ("release", "module", "action"),
    [
        ("5.15.0-generic", False, "6.2"),
        ("6.12.95-cloud", False, "modprobe tdx-guest"),
        ("6.12.95-cloud", True, "/dev/tdx_guest"),
        ("no number", False, "modprobe tdx-guest"),
    ],
)
def test_a_missing_device_names_the_kernel_the_module_or_the_mount(
    tmp_path: Path, release: str, module: bool, action: str
) -> None:
    files = ["sys/module/tdx_guest/"] if module else []
    found = seen(
        make(
            tmp_path,
            *files,
            proc__cpuinfo=cpu("GenuineIntel", "tdx_guest"),
            proc__sys__kernel__osrelease=release,
        )
    )
    assert action in one(found, "tee", "guest").fix
    sound(found.findings)


@pytest.mark.parametrize(
    ("release", "mounted", "action"),
    [("6.1.0", False, "6.7"), ("6.12.95", True, "modprobe"), ("6.12.95", False, "mount -t")],
)
def test_missing_reports_name_the_kernel_the_module_or_the_mount(
    tmp_path: Path, release: str, mounted: bool, action: str
) -> None:
    mounts = "configfs /sys/kernel/config configfs rw 0 0\n" if mounted else "proc /proc proc rw\n"
    found = seen(
        make(
            tmp_path,
            "dev/tdx_guest",
            proc__sys__kernel__osrelease=release,
            proc__mounts=mounts,
        )
    )
    assert action in one(found, "tee", "guest").fix
    sound(found.findings)


CCEL = "sys/firmware/acpi/tables/data/CCEL"


@pytest.mark.parametrize(
    ("files", "closed", "level", "said"),
    [
        ([CCEL], False, "ok", "readable"),
        ([CCEL], True, "note", "closed to this user"),
        ([], False, "note", "no such table"),
    ],
)
def test_a_bare_tdx_guest_says_whether_it_shows_its_firmwares_log(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    files: list[str],
    closed: bool,
    level: str,
    said: str,
) -> None:
    if closed:
        monkeypatch.setattr(os, "access", lambda path, mode: "CCEL" not in str(path))
    found = seen(make(tmp_path, f"{REPORTS}/", "dev/tdx_guest", *files))
    told = one(found, "tee", "boot log")
    assert told.level == level
    assert said in told.found
    sound(found.findings)


def test_nothing_at_all_is_no_tee(tmp_path: Path) -> None:
    found = seen(tmp_path)
    assert (found.tee, found.shown, found.gpus) == (None, None, None)
    assert one(found, "tee", "guest").found == "no TEE"
    sound(found.findings)


@contextmanager
def listening(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()
        yield


@pytest.mark.parametrize("name", ["var/run", "run", "var/run/dstack", "run/dstack"])
def test_a_dstack_guest_is_known_by_any_of_its_sockets(tmp_path: Path, name: str) -> None:
    with listening(tmp_path / name / "dstack.sock"):
        found = seen(tmp_path)
    assert found.tee == "dstack"
    assert f"--guest /{name}/dstack.sock" in one(found, "tee", "guest").found


def test_an_agent_of_an_old_generation_is_refused(tmp_path: Path) -> None:
    with listening(tmp_path / "var/run/tappd.sock"):
        found = seen(tmp_path)
    assert found.tee is None
    assert one(found, "tee", "guest").level == "refused"
    sound(found.findings)


def test_a_device_that_is_closed_to_this_user_is_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    found = seen(make(tmp_path, "dev/nsm"))
    assert (found.tee, found.shown) == ("nitro", None)
    assert "read and write access" in one(found, "tee", "guest").fix


@pytest.mark.parametrize(
    ("error", "level"),
    [
        (GuestApiUnreachable("no answer", got="EIO", hint="start it again"), "refused"),
        (EvidenceMalformed("not evidence"), "refused"),
        (CollateralUnreachable("no certificates", hint="bring them along"), "missing"),
    ],
)
def test_a_platform_that_does_not_answer_is_a_finding_and_no_failure(
    tmp_path: Path, error: SealtrainError, level: str
) -> None:
    def fail(tee: str, place: Path, report_data: bytes) -> ProcessorEvidence:
        raise error

    found = seen(make(tmp_path, "dev/nsm"), show=fail)
    assert found.shown is None
    told = one(found, "tee", "evidence")
    assert (told.level, error.code in told.refused) == (level, True)
    sound(found.findings)


@pytest.mark.parametrize(
    "files", [["dev/nsm"], [f"{REPORTS}/", "dev/tdx_guest"], ["dev/sev-guest"]]
)
def test_files_that_are_no_devices_end_in_a_finding(tmp_path: Path, files: list[str]) -> None:
    found = seen(make(tmp_path, *files), show=show_guest)
    assert one(found, "tee", "evidence").level == "refused"
    sound(found.findings)


# --- Accelerators ---------------------------------------------------------------------------------


@contextmanager
def driver() -> Iterator[Any]:
    yield object()


def with_gpus(monkeypatch: pytest.MonkeyPatch, gpus: SimulatedGpus, **changes: Any) -> None:
    told = claims(**{"driver_version": "580.95.05", **changes})
    monkeypatch.setattr(accelerators, "confidential_mode", lambda nvml: told)
    monkeypatch.setattr(accelerators, "collect_gpus", lambda nvml, nonce, **_: gpus.evidence(nonce))


def test_gpus_in_confidential_mode_are_told_with_their_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_gpus(monkeypatch, SimulatedGpus(SEED))
    found = seen(make(tmp_path, "dev/nvidiactl"), driver=driver)
    assert found.gpus is not None
    assert "1 GPUs, driver 580.95.05" in one(found, "gpu", "driver").found
    assert one(found, "gpu", "reports").level == "ok"
    assert one(found, "gpu", "GPU confidential computing").found == "on"
    sound(found.findings)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"environment": "SIM"}, "GPU environment"),
        ({"cc_feature": False}, "GPU confidential computing"),
        ({"dev_tools": True}, "GPU developer tools"),
    ],
)
def test_a_gpu_that_protects_nothing_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], name: str
) -> None:
    with_gpus(monkeypatch, SimulatedGpus(SEED), **changes)
    found = seen(make(tmp_path, "dev/nvidiactl"), driver=driver)
    told = one(found, "gpu", name)
    assert told.level == "refused"
    assert "gpu-mode-refused" in told.refused
    sound(found.findings)


def test_gpus_that_make_no_reports_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(nvml: object, nonce: bytes, **_: object) -> None:
        raise GuestApiUnreachable("driver does not answer", got="Not Supported")

    with_gpus(monkeypatch, SimulatedGpus(SEED), cc_feature=False)
    monkeypatch.setattr(accelerators, "collect_gpus", fail)
    found = seen(make(tmp_path, "dev/nvidiactl"), driver=driver)
    assert found.driver is not None
    assert found.gpus is None
    assert "Not Supported" in one(found, "gpu", "reports").found
    sound(found.findings)


@pytest.mark.parametrize(
    ("error", "level"),
    [(ExtraMissing("no pynvml"), "missing"), (GuestApiUnreachable("no driver"), "refused")],
)
def test_a_driver_that_cannot_be_asked_is_told(
    tmp_path: Path, error: SealtrainError, level: str
) -> None:
    @contextmanager
    def broken() -> Iterator[Any]:
        raise error
        yield

    found = seen(make(tmp_path, "dev/nvidiactl"), driver=broken)
    assert one(found, "gpu", "driver").level == level
    sound(found.findings)


def test_the_real_binding_on_a_machine_without_a_driver_is_a_finding(tmp_path: Path) -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has a driver")
    found = seen(make(tmp_path, "dev/nvidiactl"), driver=open_nvml)
    assert one(found, "gpu", "driver").level in ("refused", "missing")
    sound(found.findings)


def test_cards_without_a_driver_are_counted(tmp_path: Path) -> None:
    devices = "sys/bus/pci/devices"
    for at, vendor in enumerate(("0x10de\n", "0x8086\n", "0x10de\n")):
        make(tmp_path, f"{devices}/{at}/").joinpath(f"{devices}/{at}/vendor").write_text(vendor)
    found = one(seen(tmp_path), "gpu", "driver")
    assert found.level == "missing"
    assert found.found.startswith("2 NVIDIA devices")


# --- Surroundings ---------------------------------------------------------------------------------


@pytest.mark.parametrize("now", [0, -5, 1_700_000_000, 1 << 40])
def test_a_clock_that_cannot_be_right_is_refused(tmp_path: Path, now: int) -> None:
    found = one(seen(tmp_path, now=now), "clock", "time")
    assert found.level == "refused"
    assert "collateral-expired" in found.refused


def test_a_clock_that_the_host_keeps_is_noted(tmp_path: Path) -> None:
    path = "sys/devices/system/clocksource/clocksource0"
    make(tmp_path, f"{path}/").joinpath(path, "current_clocksource").write_text("kvm-clock\n")
    assert one(seen(tmp_path), "clock", "source").level == "note"
    tmp_path.joinpath(path, "current_clocksource").write_text("tsc\n")
    assert [each.name for each in seen(tmp_path).findings if each.topic == "clock"] == ["time"]


SWAPS = "Filename Type Size Used Priority\n"


@pytest.mark.parametrize(
    ("swaps", "level"),
    [
        (SWAPS, "ok"),
        (SWAPS + "/dev/zram0 partition 1 0 5\n", "ok"),
        (SWAPS + "/dev/zram0 partition 1 0 5\n/dev/sda2 partition 8 0 -2\n", "note"),
        (SWAPS + "/swapfile file 8 0 -2\n", "note"),
    ],
)
def test_swap_on_a_disk_is_noted(tmp_path: Path, swaps: str, level: str) -> None:
    found = seen(make(tmp_path, proc__swaps=swaps))
    assert one(found, "memory", "swap").level == level
    sound(found.findings)


@pytest.mark.parametrize(
    ("pattern", "limit", "level"),
    [
        ("core\n", "0", "ok"),
        ("\n", "unlimited", "ok"),
        ("core\n", "unlimited", "note"),
        ("|/usr/share/apport/apport %p\n", "0", "note"),
    ],
)
def test_core_dumps_are_noted(tmp_path: Path, pattern: str, limit: str, level: str) -> None:
    make(
        tmp_path,
        proc__sys__kernel__core_pattern=pattern,
        proc__self__limits=f"Limit Soft Hard\nMax core file size    {limit}  unlimited  bytes\n",
    )
    assert one(seen(tmp_path), "memory", "core dumps").level == level


def test_extras_are_complete_or_say_what_is_missing(tmp_path: Path) -> None:
    asked = (
        "cryptography>=50",
        'torch>=2.9; extra == "train"',
        'numpy>=2; python_version >= "3.8"',
        'boto3>=1.40; extra == "aws"',
        'uvicorn>=0.40; extra == "broker"',
    )
    versions = {"sealtrain": "0.1.0", "torch": "2.13.0+cpu", "boto3": "1.39"}
    found = seen(tmp_path, requirements=asked, installed=versions.get)
    assert one(found, "software", "extra train").level == "ok"
    assert one(found, "software", "extra aws").found == "boto3 is 1.39, wanted >=1.40"
    assert one(found, "software", "extra broker").found == "uvicorn is missing"
    assert "sealtrain[broker]" in one(found, "software", "extra broker").fix
    assert one(found, "software", "torch").level == "ok"
    assert not [each for each in found.findings if each.name == "extra remote"]
    sound(found.findings)


def test_a_torch_that_does_not_see_the_gpus_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_gpus(monkeypatch, SimulatedGpus(SEED))
    found = seen(make(tmp_path, "dev/nvidiactl"), driver=driver, installed=lambda name: "2.9+cpu")
    assert one(found, "software", "torch").level == "note"


def test_a_checkout_that_is_not_installed_is_noted(tmp_path: Path) -> None:
    found = seen(tmp_path, installed=lambda name: None)
    assert one(found, "software", "sealtrain").level == "note"
    sound(found.findings)


def test_looking_executes_nothing_and_connects_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object, **named: object) -> None:
        raise AssertionError("a program was executed or a connection made")

    for owner, name in (
        (subprocess.Popen, "__init__"),
        (os, "system"),
        (os, "posix_spawn"),
        (os, "execv"),
        (socket.socket, "connect"),
        (socket, "create_connection"),
    ):
        monkeypatch.setattr(owner, name, refuse)
    make(tmp_path, "dev/nsm", proc__cpuinfo=HARDWARE_FLAGS.format(""))
    before = sorted(tmp_path.rglob("*"))
    assert seen(tmp_path).shown is not None
    assert sorted(tmp_path.rglob("*")) == before


# --- Policy ---------------------------------------------------------------------------------------


def lines_of(policy: AppraisalPolicy) -> list[str]:
    names: list[str] = []
    document: Any = policy.to_dict()
    for name, value in document.items():
        if name in ("cpu", "gpu") and isinstance(value, dict):
            names += [f"{name}.{inner}" for inner in value]
        elif name != "version":
            names.append(name)
    return names


@pytest.mark.parametrize("name", PRESETS)
def test_every_line_of_a_policy_gets_one_finding_in_its_order(tmp_path: Path, name: str) -> None:
    found = policy_findings(seen(tmp_path), preset(name), Attachments(), NOW)
    assert [each.name for each in found] == lines_of(preset(name))
    platform = found[0]
    assert (platform.level, "platform-mismatch" in platform.refused) == ("refused", True)
    assert all(each.level != "ok" or "any" in each.found or each.name == "gpu" for each in found)
    sound(found)


MACHINES: dict[str, tuple[list[str], AppraisalPolicy, Attachments]] = {
    "nitro": (
        ["dev/nsm"],
        insecure_simulator_policy(SimulatedNitroPki(SEED).root_der, tee="nitro"),
        Attachments(),
    ),
    "snp": (
        ["dev/sev-guest"],
        insecure_simulator_policy(SimulatedSnp(SEED).root_der, tee="snp"),
        Attachments(),
    ),
    "tdx": (
        [f"{REPORTS}/", "dev/tdx_guest"],
        insecure_simulator_policy(PKI.root_der, tee="tdx"),
        Attachments(collateral=PKI.collateral(NOW)),
    ),
}
IMAGES = {"nitro": "images", "snp": "measurements", "tdx": "measurements"}


@pytest.mark.parametrize("name", MACHINES)
def test_a_machine_meets_the_policy_that_fits_it(tmp_path: Path, name: str) -> None:
    files, policy, beside = MACHINES[name]
    found = policy_findings(seen(make(tmp_path, *files)), policy, beside, NOW)
    assert [each.name for each in found] == lines_of(policy)
    assert [each.name for each in found if each.level == "refused"] == []
    assert [each.name for each in found if each.level == "note"] == []
    sound(found)


@pytest.mark.parametrize("name", MACHINES)
def test_a_line_that_a_machine_breaks_names_the_refusal(tmp_path: Path, name: str) -> None:
    files, policy, beside = MACHINES[name]
    document: Any = policy.to_dict()
    document["cpu"][IMAGES[name]] = []
    there = seen(make(tmp_path, *files))
    for given in (beside, Attachments()):  # a quote's own words need no collateral
        found = policy_findings(there, policy_from_dict(document), given, NOW)
        (broken,) = [each for each in found if each.level == "refused"]
        assert broken.name == f"cpu.{IMAGES[name]}"
        assert "measurement-mismatch" in broken.refused


def test_without_collateral_a_quote_leaves_lines_open(tmp_path: Path) -> None:
    files, policy, _ = MACHINES["tdx"]
    found = policy_findings(seen(make(tmp_path, *files)), policy, Attachments(), NOW)
    notes = {each.name for each in found if each.level == "note"}
    assert {"cpu.tcb_status", "cpu.advisories"} <= notes
    assert all("--collateral" in each.found for each in found if each.level == "note")
    assert {each.name: each.level for each in found}["cpu.debug"] == "ok"


def test_a_simulated_machine_breaks_the_root_of_a_hardware_policy(tmp_path: Path) -> None:
    files, _, _ = MACHINES["nitro"]
    found = policy_findings(seen(make(tmp_path, *files)), preset("nitro"), Attachments(), NOW)
    (root,) = [each for each in found if each.name == "root"]
    assert "simulated-evidence" in root.refused


def test_another_tee_than_the_policys_is_refused(tmp_path: Path) -> None:
    found = policy_findings(
        seen(make(tmp_path, "dev/nsm")), preset("dstack-h100"), Attachments(), NOW
    )
    refused = {each.name for each in found if each.level == "refused"}
    assert {"platform", "cpu.tee"} <= refused


def test_accelerators_are_compared_with_their_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus = SimulatedGpus(SEED)
    files, _, beside = MACHINES["tdx"]
    with_gpus(monkeypatch, gpus)
    there = seen(make(tmp_path, *files, "dev/nvidiactl"), driver=driver)
    policy = insecure_simulator_policy(PKI.root_der, tee="tdx", gpu=gpus.policy())
    given = Attachments(collateral=beside.collateral, gpu_collateral=simulate_collateral(gpus, NOW))
    found = {each.name: each for each in policy_findings(there, policy, given, NOW)}
    assert [name for name, each in found.items() if each.level == "refused"] == []
    for name in ("gpu_count", "mode", "cc", "devtools", "reference_values", "driver_versions"):
        assert found[f"gpu.{name}"].level == "ok", name
    more = insecure_simulator_policy(PKI.root_der, tee="tdx", gpu=gpus.policy(gpu_count=2))
    found = {each.name: each for each in policy_findings(there, more, given, NOW)}
    assert "gpu-set-refused" in found["gpu.gpu_count"].refused
    none = insecure_simulator_policy(PKI.root_der, tee="tdx")
    found = {each.name: each for each in policy_findings(there, none, given, NOW)}
    assert "gpu-set-refused" in found["gpu"].refused


def test_gpus_without_reports_are_compared_by_what_their_driver_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(nvml: object, nonce: bytes, **_: object) -> None:
        raise GuestApiUnreachable("driver does not answer")

    gpus = SimulatedGpus(SEED)
    with_gpus(monkeypatch, gpus, dev_tools=True)
    monkeypatch.setattr(accelerators, "collect_gpus", fail)
    there = seen(make(tmp_path, "dev/nvidiactl"), driver=driver)
    policy = insecure_simulator_policy(PKI.root_der, gpu=gpus.policy())
    found = {each.name: each for each in policy_findings(there, policy, Attachments(), NOW)}
    assert "gpu-mode-refused" in found["gpu.devtools"].refused
    assert found["gpu.cc"].level == found["gpu.gpu_count"].level == "ok"
    assert found["gpu.architectures"].level == "note"


def test_a_dstack_guest_is_asked_over_its_socket(tmp_path: Path) -> None:
    make(tmp_path, "run/")
    compose = tmp_path / "app-compose.json"
    compose.write_bytes(COMPOSE)
    state = tmp_path / "state"
    with running(tmp_path / "run/dstack.sock", compose, state, clock=lambda: NOW):
        found = seen(tmp_path, show=show_guest)
    assert found.tee == "dstack"
    assert found.shown is not None
    root = (state / "root.der").read_bytes()
    policy = insecure_simulator_policy(root)
    levels = {each.name: each for each in policy_findings(found, policy, Attachments(), NOW)}
    assert levels["cpu.key_provider"].level == levels["cpu.os_image_hash"].level == "ok"
    document: Any = policy.to_dict()
    document["cpu"]["key_provider"] = "ab" * 32
    levels = {
        each.name: each
        for each in policy_findings(found, policy_from_dict(document), Attachments(), NOW)
    }
    assert "key-provider-mismatch" in levels["cpu.key_provider"].refused


def test_what_is_asked_for_answers_no_conversation() -> None:
    assert ASKED.purpose == "doctor"
    assert ASKED.transcript == {}
