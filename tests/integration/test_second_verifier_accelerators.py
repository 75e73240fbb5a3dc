"""The JavaScript verifier says of accelerators what ours says, also of real evidence."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from gpu_world import NONCE, NOW, captured, claims, hardware_policy_fields, machine
from node_judges import judge
from variants import variants

from sealtrain.attest.nvidia.collateral import GpuCollateral
from sealtrain.attest.nvidia.parse import GpuEvidence
from sealtrain.attest.nvidia.policy import NvidiaPolicy
from sealtrain.attest.nvidia.rim import NVIDIA_RIM_ROOT_SHA256, verify_rim
from sealtrain.attest.nvidia.verify import verify_gpus
from sealtrain.base.encoding import from_base64, to_base64
from sealtrain.base.models import load_model
from sealtrain.errors import SealtrainError, TrustInvalid
from sealtrain_rehearsal.simulator.gpu_collateral import simulate_collateral

pytestmark = [pytest.mark.long, pytest.mark.claim("C221"), pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
DRIVER = ROOT / "tests/support/second_accelerators.mjs"
DAY = 24 * 3600
VECTOR_TIME = 1_735_689_600  # 2025-01-01: every certificate of the vectors was valid
VECTORS = (
    "hopper_535",
    "hopper_580_mpt",
    "hopper_bad_signature",
    "hopper_cert_hold",
    "hopper_multi4_ppcie",
    "hopper_single_ppcie",
    "switch_ls10",
    "switch_ls10_x4_duplicate",
)
QUESTIONS = (
    "tests/unit/attest/test_nvidia_chain.py",
    "tests/unit/attest/test_nvidia_ocsp.py",
    "tests/unit/attest/test_nvidia_rim.py",
    "tests/unit/attest/test_nvidia_simulator.py",
    "tests/unit/attest/test_nvidia_verify.py",
    "tests/attack/test_nvidia_boards.py",
    "tests/attack/test_nvidia_collateral_forgery.py",
    "tests/attack/test_nvidia_forgery.py",
)
Json = Any
OF_ROOT, BEGINS = " of the root", b"-----BEGIN CERTIFICATE-----"
ROOT_READ = {"certificate-chain-invalid", "quote-root-untrusted"}
"""Which of these another encoding of the root ends in hangs on what of it is read first. Both
refuse it in check 4."""


def ours(question: Json) -> str | None:
    """The code of our refusal."""
    try:
        if question["kind"] == "file":
            at = {"now": question["now"], "pinned": question["pinned"]}
            verify_rim(from_base64(question["xml"]), simulator_root=None, **at)
            return None
        policy = load_model(NvidiaPolicy, question["rules"], TrustInvalid, "policy")
        if (policy.simulator_root is not None) != question["simulated"]:
            return "trust-invalid"
        evidence = GpuEvidence.from_dict(question["evidence"])
        collateral = question["collateral"]
        verify_gpus(
            evidence,
            policy,
            None if collateral is None else GpuCollateral.from_dict(collateral).without_verdict(),
            nonce=bytes.fromhex(question["nonce"]),
            simulator_root=policy.simulator_root,
            now=question["now"],
        )
    except SealtrainError as error:
        return error.code
    return None


def theirs(questions: list[Json]) -> list[str | None]:
    return judge(DRIVER, map(json.dumps, questions), seconds=500)


def agreed(
    questions: list[tuple[str, Json]],
    capsys: pytest.CaptureFixture[str],
    judge: Callable[[Json], str | None] = ours,
) -> Counter[str | None]:
    """Refuses any disagreement. What the second cannot check is counted, and is no pass."""
    said = theirs([question for _, question in questions])
    assert len(said) == len(questions)
    counted: Counter[str | None] = Counter()
    differ = []
    for (label, question), code in zip(questions, said, strict=True):
        counted[code] += 1
        expected = judge(question)
        of_root = label.endswith(OF_ROOT) and {expected, code} <= ROOT_READ
        if code not in (expected, "not-checked") and not of_root:
            differ.append((label, expected, code))
    with capsys.disabled():
        print(f"\n{len(said)} questions, {len(differ)} disagreements: {dict(counted)}")
    assert differ == [], "\n".join(map(str, differ[:30]))
    return counted


def of_hardware(evidence: GpuEvidence, now: int = VECTOR_TIME, **changes: Any) -> Json:
    """A question about captured devices, under the nonce that the first of them answered."""
    kinds = [device.kind for device in evidence.devices]
    rules = {"gpu_count": max(1, kinds.count("gpu")), "switch_count": "any"}
    rules["mode"] = ["single", "mpt", "protected_pcie"]
    return {
        "kind": "gpus",
        "evidence": evidence.to_dict(),
        "rules": hardware_policy_fields(**rules | changes),
        "simulated": False,
        "collateral": None,
        "nonce": evidence.devices[0].report_bytes[4:36].hex(),
        "now": now,
    }


def shown(shared: Path, name: str, **told: Any) -> GpuEvidence:
    devices = captured(shared, name)
    gpus = sum(device.kind == "gpu" for device in devices)
    return GpuEvidence.build(devices, claims(gpu_count=gpus, **told))


def in_every_mode(shared: Path) -> Iterator[tuple[str, Json]]:
    drivers = {"hopper_535": "535.86.09", "hopper_580_mpt": "580.159.03"}
    drivers["hopper_cert_hold"] = "570.86.10"
    for name in VECTORS:
        for mode in ("none", "protected_pcie", "nvle"):
            told = {"multi_gpu_mode": mode, "driver_version": drivers.get(name, "590.12")}
            yield f"{name} {mode}", of_hardware(shown(shared, name, **told))


def test_real_accelerators_end_alike_in_every_mode_at_every_time_and_under_every_policy(
    shared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []
    for label, question in in_every_mode(shared):
        asked.append((label, question))
        for now in (0, VECTOR_TIME - 1000 * DAY, VECTOR_TIME + 9999 * DAY):
            asked.append((f"{label} at {now}", question | {"now": now}))
        for rule, value in (
            ("architectures", ["BLACKWELL"]),
            ("mode", ["single"]),
            ("devices", ["00" * 20]),
            ("devices", ["455472bb690155accc29161a19c7fe6144a8ed92"]),
            ("driver_versions", {"minimum": "570.0", "denied": []}),
            ("driver_versions", {"minimum": "1.0", "denied": ["535.86.9", "590.12.0"]}),
            (
                "vbios_versions",
                [{"architecture": "HOPPER", "minimum": "96.00.74.00.20", "denied": []}],
            ),
            (
                "vbios_versions",
                [{"architecture": "LS10", "minimum": "96.10.6D.00.01", "denied": []}],
            ),
            ("reference_values", "require"),
            ("revocation", "require"),
            ("nras", "require"),
            ("gpu_count", 7),
            ("switch_count", 1),
        ):
            other = {**question, "rules": {**question["rules"], rule: value}}
            asked.append((f"{label} {rule} = {value}", other))
    counted = agreed(asked, capsys)
    assert counted[None] > 10
    assert {"gpu-report-invalid", "gpu-set-refused", "gpu-mode-refused"} <= set(counted)
    assert {"tcb-status-refused", "platform-mismatch", "certificate-chain-invalid"} <= set(counted)
    assert {"reference-value-mismatch", "revocation-unknown"} <= set(counted)
    assert counted["not-checked"] == 0


def with_a_bit(question: Json, step: int) -> Iterator[tuple[str, Json]]:
    """One bit of a report or of a certificate is another, the chain in another spelling."""
    for place, device in enumerate(question["evidence"]["devices"]):
        for field in ("report", "certificate_chain"):
            packed = field == "report"
            raw = from_base64(device[field]) if packed else device[field].encode()
            for at in range(place % step, len(raw), step):
                altered = bytearray(raw)
                altered[at] ^= 1 << (at % 7)
                told = to_base64(altered) if packed else altered.decode("latin-1")
                devices = [*question["evidence"]["devices"]]
                devices[place] = {**device, field: told}
                changed = {**question, "evidence": {**question["evidence"], "devices": devices}}
                where = OF_ROOT if not packed and at > raw.rfind(BEGINS) else ""
                yield f"device {place} {field} bit of byte {at}{where}", changed


@pytest.mark.filterwarnings("ignore:Attribute's length must be")
@pytest.mark.parametrize(
    ("name", "step"),
    variants(
        [
            ("hopper_580_mpt", 97),
            ("hopper_580_mpt", 29),
            ("hopper_580_mpt", 9),
            ("hopper_single_ppcie", 9),
            ("switch_ls10", 9),
        ],
        each_time=[("hopper_580_mpt", 97)],
    ),
)
def test_real_accelerators_with_a_changed_bit_end_alike(
    shared: Path, name: str, step: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of every so manieth byte."""
    honest = of_hardware(shown(shared, name, multi_gpu_mode="protected_pcie"))
    if name == "hopper_580_mpt":
        honest = of_hardware(shown(shared, name, driver_version="580.159.03"))
        assert ours(honest) is None
    if name == "switch_ls10":
        told = shown(shared, "hopper_single_ppcie", multi_gpu_mode="protected_pcie")
        honest["evidence"]["devices"] += told.to_dict()["devices"]
        honest["evidence"]["claims"]["gpu_count"] = 1

    counted = agreed(list(with_a_bit(honest, step)), capsys)
    assert counted["gpu-report-invalid"] > 900 / step
    assert counted["certificate-chain-invalid"] > 900 / step


def test_devices_in_another_order_twice_or_left_out_end_alike(
    shared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gpus, evidence = machine(), machine().evidence(NONCE)
    collateral = simulate_collateral(gpus, NOW)
    honest = of_simulator(evidence, gpus.policy(), collateral)
    asked = [("honest", honest)]
    devices = honest["evidence"]["devices"]
    for label, told in (
        ("reversed", devices[::-1]),
        *((f"without {at}", devices[:at] + devices[at + 1 :]) for at in range(len(devices))),
        *((f"{at} for the first", [devices[at], *devices[1:]]) for at in range(len(devices))),
    ):
        changed = copy.deepcopy(honest)
        changed["evidence"]["devices"] = told
        asked.append((label, changed))
        counted = copy.deepcopy(changed)
        gpu_count = sum(device["kind"] == "gpu" for device in told)
        counted["evidence"]["claims"]["gpu_count"] = gpu_count
        counted["rules"] |= {"gpu_count": gpu_count, "switch_count": "any"}
        asked.append((f"{label}, counted", counted))
    found = agreed(asked, capsys)
    assert found[None] > 1
    assert found["gpu-set-refused"] > 10


def of_simulator(evidence: GpuEvidence, policy: NvidiaPolicy, collateral: GpuCollateral) -> Json:
    return {
        "kind": "gpus",
        "evidence": evidence.to_dict(),
        "rules": policy.to_dict(),
        "simulated": True,
        "collateral": collateral.to_dict(),
        "nonce": NONCE.hex(),
        "now": NOW,
    }


@pytest.mark.parametrize("bits", variants([2, 5, 12, 60], each_time=[2]))
def test_collateral_with_a_changed_bit_ends_alike(
    bits: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Reference values and revocation answers of a simulator, at every stage of their checks."""
    gpus = machine()
    honest = of_simulator(gpus.evidence(NONCE), gpus.policy(), simulate_collateral(gpus, NOW))
    honest["rules"] |= {"reference_values": "require", "revocation": "require"}
    asked = [("honest", honest)]
    held = [("rims", name) for name in honest["collateral"]["rims"]]
    held += [("ocsp", at) for at in range(len(honest["collateral"]["ocsp"]))]
    for part, name in held:
        raw = from_base64(honest["collateral"][part][name])
        for at in range(0, len(raw), max(1, len(raw) // bits)):
            altered = bytearray(raw)
            altered[at] ^= 1 << (at % 8)
            told = copy.copy(honest["collateral"][part])
            told[name] = to_base64(altered)
            changed = {**honest, "collateral": {**honest["collateral"], part: told}}
            asked.append((f"{part} {name} bit of byte {at}", changed))
        changed = copy.deepcopy(honest)
        del changed["collateral"][part][name]
        asked.append((f"without {part} {name}", changed))
    for now in (NOW - 9 * DAY, NOW - 301, NOW + DAY // 2, NOW + 9 * DAY, NOW + 4000 * DAY):
        asked.append((f"at {now}", honest | {"now": now}))
    counted = agreed(asked, capsys)
    assert counted[None] > 0
    assert counted["reference-value-invalid"] > 2 * bits
    assert counted["revocation-unknown"] > 2 * bits


def rewritten(text: str) -> Iterator[tuple[str, str]]:
    """Other spellings of a signed list: of some the signature holds, others break it."""
    yield "carriage returns", text.replace("\n", "\r\n")
    yield "single quotes", text.replace('edition="GPU"', "edition='GPU'")
    yield "spaces in a tag", text.replace(' edition="GPU"', '\n\t edition = "GPU" ')
    yield (
        "attributes in another order",
        text.replace('edition="GPU" product="GH100"', 'product="GH100" edition="GPU"'),
    )
    yield "a character reference", text.replace('edition="GPU"', 'edition="&#71;P&#x55;"')
    yield (
        "a namespace once more",
        text.replace(
            "<ns0:Entity ",
            '<ns0:Entity xmlns:ns0="http://standards.iso.org/iso/19770/-2/2015/schema.xsd" ',
        ),
    )
    yield "an unused namespace", text.replace("<ns0:Entity ", '<ns0:Entity xmlns:x="urn:x" ')
    yield "a comment", text.replace("<ns0:Entity ", "<!-- x --><ns0:Entity ")
    yield "a comment in the signature", text.replace("<ds:SignedInfo>", "<!-- x --><ds:SignedInfo>")
    yield "an instruction", text.replace("<ns0:Entity ", "<?x y?><ns0:Entity ")
    yield "a declaration", '<?xml version="1.0" encoding="UTF-16"?>\n' + text
    yield "text behind", text + "x"
    yield "space around", f"\n {text}\n "
    yield "a document type", f"<!DOCTYPE x>{text}"
    yield "a document type in a comment", f"<!-- <!DOCTYPE x> -->{text}"
    yield "an entity", text.replace('edition="GPU"', 'edition="&gpu;"')
    yield "an open tag", text.replace("/></ns0:Payload>", "></ns0:Payload>", 1)
    yield (
        "elements for empty ones",
        text.replace(
            'role="softwareCreator tagCreator"/>', 'role="softwareCreator tagCreator"></ns0:Entity>'
        ),
    )
    yield "an id of the signature", text.replace("<ds:Signature ", '<ds:Signature Id="x" ')
    yield "an object", text.replace("</ds:Signature>", "<ds:Object/></ds:Signature>")
    yield "a key value", text.replace("<ds:KeyInfo>", "<ds:KeyInfo><ds:KeyName>x</ds:KeyName>")
    yield (
        "a second signature",
        text.replace(
            "</ds:Signature>",
            "</ds:Signature><ds:Signature xmlns:ds='http://www.w3.org/2000/09/xmldsig#'/>",
        ),
    )
    yield "a value moved", text.replace('index="1"', 'index="250"', 1)
    yield "a value that counts", text.replace('active="False"', 'active="True"', 1)
    yield "another digest algorithm", text.replace("xmldsig-more#sha384", "xmldsig-more#sha512")
    yield "another transform", text.replace("2006/12/xml-c14n11", "TR/2001/REC-xml-c14n-20010315")
    yield "a reference to an element", text.replace('URI=""', 'URI="#x"')
    yield "spaces in the signature", text.replace("<ds:SignatureValue>", "<ds:SignatureValue> \n ")
    yield "junk in the signature", text.replace("<ds:SignatureValue>", "<ds:SignatureValue>!")
    yield "upper case", text.upper()
    yield "cut", text[: len(text) // 2]
    yield "empty", ""
    yield "too long", text + " " * (262145 - len(text))


@pytest.mark.parametrize("step", variants([4001, 1009, 331], each_time=[4001]))
def test_real_reference_values_end_alike_however_they_are_written(
    shared: Path, step: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """XML signatures by NVIDIA: which spellings they hold for, and that no bit may be another."""
    asked = []
    for path in sorted((shared / "vectors/nvidia/rim").iterdir()):
        raw = path.read_bytes()
        spelled = [("as it is", raw)]
        spelled += [(label, text.encode()) for label, text in rewritten(raw.decode())]
        for at in range(0, len(raw), step):
            altered = bytearray(raw)
            altered[at] ^= 1 << (at % 7)
            spelled.append((f"bit of byte {at}", bytes(altered)))
        for label, xml in spelled:
            at_times = (VECTOR_TIME, NOW) if label == "as it is" else (VECTOR_TIME,)
            asked += [
                (
                    f"{path.name} {label}",
                    {
                        "kind": "file",
                        "xml": to_base64(xml),
                        "root": NVIDIA_RIM_ROOT_SHA256,
                        "now": now,
                        "pinned": False,
                    },
                )
                for now in at_times
            ]
    counted = agreed(asked, capsys)
    assert counted[None] > 20
    assert counted["reference-value-invalid"] > 60_000 / step
    assert 0 < counted["not-checked"] < 30


def policies_near(rules: Json) -> Iterator[tuple[str, Json]]:
    """Rules of which one is missing, of another type, or beyond its limits."""
    for name in rules:
        yield f"without {name}", {key: value for key, value in rules.items() if key != name}
        values: list[Json] = ["any", "require", "on", "off", "nvidia", None, [], {}, 0, -1, 1, 33]
        values += [True, ["x"], ["single"], ["HOPPER", "HOPPER"], {"x": ["00" * 32]}, {"x": []}]
        values += [
            {"minimum": "570.0", "denied": []},
            {"minimum": "570", "denied": []},
            2**31,
            2**31 + 1,
        ]
        values += [[{"architecture": "LS10", "minimum": "96.10.6D.00.01", "denied": []}] * 2]
        values += [
            {"insecure_simulator_root": rules["root"]},
            ["protected_pcie"],
            ["00" * 4],
            ["0" * 65],
        ]
        for value in values:
            yield f"{name} = {value!r:.60}", {**rules, name: value}
    yield "a rule too many", {**rules, "x": 1}
    yield "no switch for protected PCIe", {**rules, "mode": ["protected_pcie"], "switch_count": 0}


def test_policies_of_another_form_are_read_alike(
    shared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gpus = machine()
    real = of_hardware(shown(shared, "hopper_580_mpt", driver_version="580.159.03"))
    played = of_simulator(gpus.evidence(NONCE), gpus.policy(), simulate_collateral(gpus, NOW))
    asked = []
    for name, honest in (("real", real), ("simulated", played)):
        for label, rules in policies_near(honest["rules"]):
            asked.append((f"{name} {label}", {**honest, "rules": rules}))
    counted = agreed(asked, capsys)
    assert counted["trust-invalid"] > 300
    assert counted[None] > 20


def test_evidence_of_another_form_is_read_alike(
    shared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    honest = of_hardware(shown(shared, "hopper_580_mpt", driver_version="580.159.03"))
    asked = []
    values: list[Json] = [
        None,
        "",
        "x",
        0,
        1,
        33,
        True,
        [],
        {},
        "LS10",
        "switch",
        "nvle",
        "e\u0301",
    ]
    for part in ("claims", "device"):
        fields = honest["evidence"]["claims" if part == "claims" else "devices"]
        for name in fields if part == "claims" else fields[0]:
            for value in values:
                changed = copy.deepcopy(honest)
                told = changed["evidence"]["claims" if part == "claims" else "devices"]
                (told if part == "claims" else told[0])[name] = value
                asked.append((f"{part} {name} = {value!r}", changed))
    for value in values:
        asked.append((f"collateral = {value!r}", {**honest, "collateral": value}))
        for name in ("rims", "ocsp", "nras"):
            collateral = {"rims": {}, "ocsp": [], "nras": None, name: value}
            asked.append((f"{name} = {value!r}", {**honest, "collateral": collateral}))
    for collateral in (
        {"rims": {"-": "AAAA"}, "ocsp": [], "nras": None},
        {"rims": {"x": "AAA"}, "ocsp": ["AAAA"], "nras": None},
        {"rims": {"x": ""}, "ocsp": [""], "nras": None},
        {"rims": {"x": "AAAA"}, "ocsp": ["AAAA"] * 129, "nras": None},
        {"rims": {"x": "AAAA"}, "ocsp": ["AAAA"] * 128, "nras": {"token": "xx", "jwks": "xx"}},
        {"rims": {}, "ocsp": [], "nras": {"token": "x", "jwks": "xx"}},
    ):
        asked.append((f"collateral {collateral!r:.60}", {**honest, "collateral": collateral}))
    counted = agreed(asked, capsys)
    assert counted["evidence-malformed"] > 100
    assert counted[None] > 5


@pytest.mark.nightly
def test_questions_of_the_other_tests_end_alike(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever tests of accelerators ask our verifier, attacks on it included."""
    folder = tmp_path / "questions"
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "record_accelerators", *QUESTIONS],
        cwd=ROOT,
        env={
            **os.environ,
            "ACCELERATORS_SEEN": str(folder),
            "PYTHONPATH": str(ROOT / "tests/support"),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout[-2000:]
    seen = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    asked = [(f"{event['kind']} {at}", event) for at, event in enumerate(seen)]
    counted = agreed(asked, capsys, lambda question: question["code"])
    assert {event["kind"] for event in seen} == {"gpus", "revocation", "file", "reference"}
    assert len(seen) > 200
    assert len(counted) > 12
    assert counted["not-checked"] < 10
