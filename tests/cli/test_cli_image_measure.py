"""``sealtrain image measure``: what it prints, and what it says that it cannot tell."""

from __future__ import annotations

import hashlib
import json
import struct
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from boot_files import disk_image, enclave, googles_firmware, kernel, program
from typer.testing import CliRunner

from sealtrain.attest.policy import policy_from_dict
from sealtrain.attest.presets import PRESETS
from sealtrain.cli import app
from sealtrain.errors import ExtraMissing, UsageError
from sealtrain.image.machine.pe_file import Portable


def run(*words: str | Path) -> Any:
    return CliRunner().invoke(app, ["image", "measure", *map(str, words)])


def answered(*words: str | Path) -> dict[str, Any]:
    done = run(*words, "--json")
    assert done.exit_code == 0, done.output
    return dict(json.loads(done.stdout))


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "image.eif").write_bytes(enclave(b"init", b"root"))
    (tmp_path / "ovmf.fd").write_bytes(googles_firmware())
    (tmp_path / "initrd").write_bytes(b"initrd")
    kernel = program((".text", b"kernel"))
    (tmp_path / "image.efi").write_bytes(program((".linux", kernel), (".cmdline", b"quiet")))
    return tmp_path


def test_an_enclaves_values_are_a_part_of_a_policy(files: Path) -> None:
    said = run("--eif", files / "image.eif")
    assert said.exit_code == 0
    pinned = yaml.safe_load(said.stdout.partition("#")[2].partition("\n")[2])
    rules = PRESETS["nitro"] | {"cpu": PRESETS["nitro"]["cpu"] | pinned}
    (image,) = policy_from_dict(rules).to_dict()["cpu"]["images"]
    answer = answered("--eif", files / "image.eif")
    assert image == answer["values"]
    assert answer["not_computed"].keys() == {"pcr3", "pcr4", "pcr8"}


def test_what_files_do_not_tell_is_named_with_its_reason(files: Path) -> None:
    answer = answered("--firmware", files / "ovmf.fd")
    assert answer["values"].keys() == {"mrtd", "mrtd (single pass)"}
    assert answer["not_computed"].keys() == {"rtmr0", "rtmr1", "rtmr2", "rtmr3"}
    assert answer["policy"] is None
    more = ("--command-line", "quiet", "--kernel", files / "image.efi", "--initrd")
    answer = answered("--firmware", files / "ovmf.fd", *more, files / "initrd")
    assert answer["values"].keys() == {"mrtd", "mrtd (single pass)", "rtmr2"}
    assert answer["not_computed"].keys() == {"rtmr0", "rtmr1", "rtmr3"}
    answer = answered("--uki", files / "image.efi", "--stub", "257")
    assert answer["values"].keys() == {"pcr4", "pcr7", "pcr9", "pcr11", "pcr12"}
    assert answer["not_computed"].keys() == {"pcr5", "pcr14"}
    (files / "disk").write_bytes(disk_image())
    (files / "app-compose.json").write_bytes(b"{}")
    more = ("--disk", files / "disk", "--document", files / "app-compose.json", "--tpm", "sha256")
    answer = answered("--uki", files / "image.efi", "--stub", "257", *more)
    assert answer["values"].keys() >= {"pcr5", "pcr14"}
    assert answer["not_computed"] == {}


def sha384(*events: bytes) -> str:
    value = bytes(48)
    for event in events:
        value = hashlib.sha384(value + hashlib.sha384(event).digest()).digest()
    return value.hex()


@pytest.mark.claim("C713")
def test_a_tdx_guest_that_boots_a_disk_has_its_table_and_programs_in_rtmr1(files: Path) -> None:
    (files / "disk").write_bytes(disk_image())
    (files / "app-compose.json").write_bytes(b"{}")
    words = ("--firmware", files / "ovmf.fd", "--uki", files / "image.efi", "--stub", "257")
    answer = answered(*words)
    assert answer["not_computed"].keys() == {"rtmr0", "rtmr1", "rtmr3"}
    assert answer["policy"] is None
    words += ("--disk", files / "disk", "--document", files / "app-compose.json")
    answer = answered(*words)
    values = answer["values"]
    assert answer["not_computed"].keys() == {"rtmr0"}
    assert values["rtmr3"] == sha384(b"{}")
    sections = (b".linux\0", program((".text", b"kernel")), b".cmdline\0", b"quiet")
    assert values["rtmr2 (with a TPM)"] == sha384(*sections)
    assert values["rtmr2"] == sha384(*sections, "quiet\0".encode("utf-16-le"))
    start, table = disk_image(), struct.Struct("<Q")
    used = [start[at : at + 128] for at in range(1024, 1024 + 128 * 128, 128)]
    used = [entry for entry in used if any(entry[:16])]
    gpt = start[512 : 512 + 92] + table.pack(len(used)) + b"".join(used)
    programs = [(files / "image.efi").read_bytes(), program((".text", b"kernel"))]
    value = bytes(48)
    for digest in (
        hashlib.sha384(b"Calling EFI Application from Boot Option").digest(),
        hashlib.sha384(bytes(4)).digest(),
        hashlib.sha384(gpt).digest(),
        *(Portable(data, "a program").authenticode("sha384") for data in programs),
        hashlib.sha384(b"Exit Boot Services Invocation").digest(),
        hashlib.sha384(b"Exit Boot Services Returned with Success").digest(),
    ):
        value = hashlib.sha384(value + digest).digest()
    assert values["rtmr1"] == value.hex()
    (image,) = answer["policy"]["measurements"]
    assert image == {name: values[name] for name in ("mrtd", "rtmr1", "rtmr2")} | {"rtmr0": "log"}
    without = answered(*words[:5], "255", *words[6:])["values"]
    assert without["rtmr2 (with a TPM)"] == sha384()
    later = answered(*words[:5], "258", *words[6:])["values"]
    assert later["rtmr1"] != values["rtmr1"]  # this stub starts the kernel by itself


@pytest.mark.claim("C713")
@pytest.mark.parametrize(
    "more", [("--kernel", "image.efi"), ("--initrd", "initrd"), ("--command-line", "debug")]
)
def test_what_is_beside_a_uki_is_refused_for_a_tdx_guest(
    files: Path, more: tuple[str, str]
) -> None:
    name, value = more
    word = value if name == "--command-line" else files / value
    words = ("--firmware", files / "ovmf.fd", "--uki", files / "image.efi", "--stub", "257")
    assert run(*words, name, word).exit_code != 0


@pytest.mark.parametrize(
    ("name", "algorithm", "further"),
    [
        ("dstack-aws-nitro-tpm", "sha384", {}),
        ("azure-snp", "sha256", {}),
        ("azure-tdx", "sha256", {}),
        ("gcp-snp", "sha256", {"pcr0": "11" * 32}),
    ],
)
def test_a_unified_images_values_are_a_part_of_a_policy(
    files: Path, name: str, algorithm: str, further: dict[str, str]
) -> None:
    """Google's PCR 0 is of its firmware, and in no file."""
    answer = answered("--uki", files / "image.efi", "--stub", "257", "--tpm", algorithm)
    (boot,) = answer["policy"]["boots"]
    rules = PRESETS[name] | {"cpu": PRESETS[name]["cpu"] | {"boots": [boot | further]}}
    (pinned,) = policy_from_dict(rules).to_dict()["cpu"]["boots"]
    known = {register: pinned[register] for register in answer["values"] if register in pinned}
    assert known.items() <= answer["values"].items()
    assert pinned.keys() - further.keys() - known.keys() <= {"pcr8"}
    assert pinned.get("pcr8", "00" * 32) == "00" * 32


def test_a_launch_digest_is_a_part_of_a_policy(files: Path) -> None:
    pytest.importorskip("sevsnpmeasure", reason="the extra measure is not installed")
    words = ("--snp-firmware", files / "ovmf.fd", "--vcpus", "1", "--vcpu-type", "EPYC-Milan")
    answer = answered(*words, "--monitor", "gce")
    rules = PRESETS["snp-genoa"] | {"cpu": PRESETS["snp-genoa"]["cpu"] | answer["policy"]}
    (pinned,) = policy_from_dict(rules).to_dict()["cpu"]["measurements"]
    assert pinned == answer["values"]["measurement"]
    assert pinned.startswith("20ec0dbd1c0a26d1")
    assert answer["not_computed"].keys() == {"host data", "id key"}


def test_without_its_extra_a_launch_digest_names_it(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sevsnpmeasure.guest", None)
    words = ("--snp-firmware", files / "ovmf.fd", "--vcpus", "1", "--vcpu-type", "EPYC-Milan")
    error = run(*words).exception
    assert isinstance(error, ExtraMissing)
    assert error.hint == "pip install 'sealtrain[measure]'"


def test_a_direct_boots_values_are_a_part_of_a_policy(files: Path) -> None:
    (files / "bzImage").write_bytes(kernel())
    words = ("--firmware", files / "ovmf.fd", "--kernel", files / "bzImage")
    words += ("--initrd", files / "initrd", "--command-line", "quiet", "--guest-memory", "2G")
    answer = answered(*words)
    rules = PRESETS["dstack-h100"] | {"cpu": PRESETS["dstack-h100"]["cpu"] | answer["policy"]}
    (pinned,) = policy_from_dict(rules).to_dict()["cpu"]["measurements"]
    assert pinned["rtmr0"] == "log"
    assert pinned.items() - {("rtmr0", "log")} <= answer["values"].items()
    assert answer["not_computed"].keys() == {"rtmr0", "rtmr3"}


@pytest.mark.parametrize(
    ("words", "check"),
    [
        ((), "machine"),
        (("--eif", "image.eif", "--uki", "image.efi"), "machine"),
        (("--firmware", "ovmf.fd", "--snp-firmware", "ovmf.fd"), "machine"),
        (("--snp-firmware", "ovmf.fd"), "--vcpus, --vcpu-type"),
        (("--snp-firmware", "ovmf.fd", "--vcpus", "1"), "--vcpus, --vcpu-type"),
        (
            ("--snp-firmware", "ovmf.fd", "--vcpus", "1", "--vcpu-type", "x", "--initrd", "initrd"),
            "--kernel",
        ),
        (("--uki", "image.efi"), "--stub"),
        (("--uki", "image.efi", "--stub", "257", "--tpm", "sha1"), "--tpm"),
    ],
)
def test_what_is_missing_or_too_much_is_a_wrong_call(
    files: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], check: str
) -> None:
    monkeypatch.chdir(files)
    done = run(*words)
    assert isinstance(done.exception, UsageError)
    assert done.exception.check == check


@pytest.mark.parametrize("memory", ["", "0", "2g", "-1", "2 G", "1e9", "9" * 30])
def test_a_size_of_memory_that_is_none_is_refused(
    files: Path, memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(files)
    words = ("--firmware", "ovmf.fd", "--kernel", "image.efi", "--initrd", "initrd")
    error = run(*words, "--guest-memory", memory).exception
    assert isinstance(error, UsageError)
    assert error.check == "--guest-memory"
