"""The JavaScript verifier says of evidence of every TEE what ours says, also of real evidence."""

from __future__ import annotations

import base64
import copy
import json
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from exhibit_world import REFUSED, accepted, ders_of
from second_verifier import node

from sealtrain.attest.appraise import appraise
from sealtrain.attest.evidence import Evidence
from sealtrain.attest.guest import open_guest
from sealtrain.attest.policy import policy_from_dict
from sealtrain.attest.presets import PRESETS, preset
from sealtrain.attest.report_data import Binding
from sealtrain.attest.verify import verify
from sealtrain.base.canonical import canonical_json
from sealtrain.errors import SealtrainError
from sealtrain_simulator.machine import Machine, fault_meanings
from sealtrain_simulator.server import running
from sealtrain_simulator.state import ensure

pytestmark = [
    pytest.mark.claim("C170"),
    pytest.mark.claim("C238"),
    pytest.mark.timeout(600),
]

DRIVER = Path(__file__).resolve().parents[1] / "support/second_evidence.mjs"
NOW = 1_800_000_000
DAY = 24 * 3600
ASKED = Binding("manifest", {"statement_digest": "00" * 32})
COMPOSE = '{"name": "judged by two"}\n'
MACHINES = {
    "dstack": Machine(),
    "tdx": Machine(tee="tdx"),
    "nitro": Machine(tee="nitro"),
    "snp": Machine(tee="snp"),
}
LIES = [
    (name, fault)
    for name, machine in MACHINES.items()
    for fault in fault_meanings(machine.tee, gpus=0, switches=0)
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A document under a policy at a moment."""

    label: str
    document: Any
    policy: dict[str, Any]
    now: int = NOW


UNREAD_LEAF = {"collateral-mismatch", "quote-invalid", "quote-root-untrusted"}
"""Which of these a PCK certificate of another encoding ends in hangs on what of it is read first.
Both refuse it in check 4."""
IN_LEAF = " of the leaf"
PEM_BEGINS, PEM_ENDS = b"-----BEGIN CERTIFICATE-----", b"-----END CERTIFICATE-----"


def same(label: str, ours: str, theirs: str) -> bool:
    leaf = label.endswith(IN_LEAF) and {ours, theirs} <= UNREAD_LEAF
    return ours == theirs or leaf


def ours(asked: Asked) -> str:
    try:
        policy = policy_from_dict(asked.policy)
    except SealtrainError as error:
        return error.code
    try:
        evidence = Evidence.from_bytes(canonical_json(asked.document))
        verified = verify(evidence, policy, asked.now, binding=ASKED)
        appraise(verified, policy, binding=ASKED, compose_hash=None, app_id=None)
    except SealtrainError as error:
        return error.code
    return "accepted"


def theirs(asked: list[Asked]) -> list[str]:
    lines = [
        json.dumps(
            {
                "evidence": base64.b64encode(canonical_json(one.document)).decode(),
                "policy": one.policy,
                "now": one.now,
                "purpose": ASKED.purpose,
                "transcript": ASKED.transcript,
            }
        )
        for one in asked
    ]
    done = subprocess.run(
        [node(), "--no-warnings", str(DRIVER)],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def agreed(asked: list[Asked], capsys: pytest.CaptureFixture[str]) -> Counter[str]:
    """Refuses any disagreement; returns how many ended in what."""
    pairs = [(one.label, ours(one), said) for one, said in zip(asked, theirs(asked), strict=True)]
    counted = Counter(code for _, code, _ in pairs)
    with capsys.disabled():
        print(f"\n{len(pairs)} documents, {len(counted)} different answers: {dict(counted)}")
    differ = [pair for pair in pairs if not same(*pair)]
    assert differ == [], "\n".join(map(str, differ[:30]))
    return counted


class Park:
    """One simulator, whose machines are started when asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "app-compose.json").write_text(COMPOSE)

    def evidence(self, machine: Machine) -> Any:
        state, socket = self.folder / "state", self.folder / "guest.sock"
        compose = self.folder / "app-compose.json"
        with running(socket, compose, state, clock=lambda: NOW, machine=machine):
            collateral = f"file:{state / 'collateral.json'}"
            guest = open_guest(
                "simulator", str(socket), collateral=collateral, gpu_collateral="none"
            )
            return guest.evidence(ASKED).to_dict()

    def policy(self, machine: Machine) -> dict[str, Any]:
        return ensure(self.folder / "state", NOW).policy(machine).to_dict()


@pytest.fixture(scope="module")
def park(tmp_path_factory: pytest.TempPathFactory) -> Park:
    return Park(tmp_path_factory.mktemp("park"))


def test_every_lie_of_a_machine_ends_alike(park: Park, capsys: pytest.CaptureFixture[str]) -> None:
    asked = []
    for name, fault in LIES:
        machine = MACHINES[name]
        try:
            document = park.evidence(replace(machine, fault=fault))
        except SealtrainError:
            continue  # the guest itself refuses to show this
        asked.append(Asked(label=f"{name} {fault}", document=document, policy=park.policy(machine)))
    assert len(agreed(asked, capsys)) > 10


@pytest.mark.parametrize("name", MACHINES)
def test_the_truth_ends_alike_at_every_time_and_under_every_policy(
    park: Park, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = MACHINES[name]
    document, own = park.evidence(machine), park.policy(machine)
    policies = [own, *(park.policy(other) for other in MACHINES.values())]
    policies += [preset(other).to_dict() for other in PRESETS]
    times = (0, NOW - 400 * DAY, NOW - 1, NOW, NOW + 61, NOW + 2 * DAY, NOW + 20_000 * DAY)
    asked = [
        Asked(label=f"policy {i} at {now}", document=document, policy=policy, now=now)
        for i, policy in enumerate(policies)
        for now in times
    ]
    assert agreed(asked, capsys)["accepted"] > 0


def changed(document: Any, step: int) -> Iterator[tuple[str, Any]]:
    """One bit of the signed evidence, or one text or item of it, is another."""
    for field, value in document["cpu"].items():
        if field in ("tee", "vm_config"):
            continue
        values = value if isinstance(value, list) else [value]
        for place, text in enumerate(values):
            if not isinstance(text, str):
                continue
            raw = text.encode() if field == "app_compose" else base64.b64decode(text)
            leaf = range(raw.find(PEM_BEGINS), raw.find(PEM_ENDS) + len(PEM_ENDS))
            for at in range(0, len(raw), max(1, len(raw) // step)):
                altered = bytearray(raw)
                altered[at] ^= 1
                kept = copy.deepcopy(document)
                spelt = (
                    altered.decode("latin-1")
                    if field == "app_compose"
                    else base64.b64encode(altered).decode()
                )
                if isinstance(value, list):
                    kept["cpu"][field][place] = spelt
                else:
                    kept["cpu"][field] = spelt
                where = IN_LEAF if field == "quote" and at in leaf else ""
                yield f"{field} {place} bit of byte {at}{where}", kept
        if isinstance(value, list):
            yield f"{field} reversed", {**document, "cpu": {**document["cpu"], field: value[::-1]}}
            yield f"{field} short", {**document, "cpu": {**document["cpu"], field: value[:-1]}}


@pytest.mark.parametrize("name", MACHINES)
def test_altered_evidence_ends_alike(
    park: Park, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    document, policy = park.evidence(MACHINES[name]), park.policy(MACHINES[name])
    asked = [
        Asked(label=label, document=other, policy=policy) for label, other in changed(document, 150)
    ]
    counted = agreed(asked, capsys)
    assert len(counted) > 3


P256 = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
P384 = int(
    "FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFF"
    "C7634D81F4372DDF581A0DB248B0A77AECEC196ACCC52973",
    16,
)


def resigned(document: Any, name: str) -> Iterator[tuple[str, Any]]:
    """The same signature with the other s, and numbers that no signature has."""
    field = {"snp": "report", "nitro": "document"}.get(name, "quote")
    raw = base64.b64decode(document["cpu"][field])
    size, order, byteorder = (32, P256, "big") if field == "quote" else (48, P384, "big")
    at, room = {"quote": (636, 32), "document": (len(raw) - 96, 48), "report": (0x2A0, 72)}[field]
    if field == "report":
        size, byteorder = 72, "little"
    r, s = (
        int.from_bytes(raw[at + room * i : at + room * (i + 1)], byteorder)  # type: ignore[arg-type]
        for i in (0, 1)
    )
    for label, numbers in {
        "the other s": (r, order - s),
        "r is zero": (0, s),
        "s is zero": (r, 0),
        "s is the order": (r, order),
        "r is the order": (order, s),
        "all bits": ((1 << 8 * size) - 1, (1 << 8 * size) - 1),
        "r and s swapped": (s, r),
    }.items():
        pair = b"".join(number.to_bytes(room, byteorder) for number in numbers)  # type: ignore[arg-type]
        altered = raw[:at] + pair + raw[at + 2 * room :]
        yield (
            label,
            {
                **document,
                "cpu": {**document["cpu"], field: base64.b64encode(altered).decode()},
            },
        )


@pytest.mark.parametrize("name", MACHINES)
def test_signatures_of_other_numbers_end_alike(
    park: Park, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """ECDSA has two signatures for one: real documents have either, so both verifiers accept it."""
    document, policy = park.evidence(MACHINES[name]), park.policy(MACHINES[name])
    asked = [
        Asked(label=label, document=other, policy=policy)
        for label, other in resigned(document, name)
    ]
    counted = agreed(asked, capsys)
    assert counted.pop("accepted") == 1
    assert set(counted) <= {"quote-invalid", "evidence-malformed"}


def not_der(der: bytes) -> Iterator[tuple[str, bytes]]:
    """Other encodings of an element; a lenient reader takes them for the same."""
    head = 2 + (der[1] & 0x7F)
    length, content = der[2:head], der[head:]
    yield "a length with a zero", b"\x30" + bytes([der[1] + 1]) + b"\0" + length + content
    yield "an indefinite length", b"\x30\x80" + content + b"\0\0"
    yield "a byte behind", der + b"\0"
    yield "an element behind", der + b"\x05\0"
    yield (
        "a length beyond the end",
        b"\x30"
        + der[1:2]
        + (int.from_bytes(length, "big") + 1).to_bytes(len(length), "big")
        + content,
    )
    yield "a length of four bytes", b"\x30\x84" + len(content).to_bytes(4, "big") + content
    yield "the tag of a set", b"\x31" + der[1:]
    yield "cut", der[:-1]
    yield "depth", b"\x30\x80" * 2000
    yield "empty", b""
    bits = der.rfind(b"\x03", 0, len(der) - 60)
    yield "bits left over", der[: bits + 2] + b"\x01" + der[bits + 3 :]


@pytest.mark.parametrize("name", ["snp", "tdx"])
def test_certificates_and_lists_that_are_not_der_end_alike(
    park: Park, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    document, policy = park.evidence(MACHINES[name]), park.policy(MACHINES[name])
    asked = []

    def ask(label: str, change: Callable[[Any], None]) -> None:
        changed = copy.deepcopy(document)
        change(changed)
        asked.append(Asked(label=label, document=changed, policy=policy))

    def put(place: Any, key: Any, text: str) -> Callable[[Any], None]:
        def change(changed: Any) -> None:
            at = changed
            for step in place:
                at = at[step]
            at[key] = text

        return change

    if name == "snp":
        for i, text in enumerate(document["cpu"]["certificates"]):
            for label, der in not_der(base64.b64decode(text)):
                encoded = base64.b64encode(der).decode()
                ask(f"certificate {i} {label}", put(("cpu", "certificates"), i, encoded))
    else:
        for field in ("root_ca_crl", "pck_crl"):
            for label, der in not_der(bytes.fromhex(document["collateral"][field])):
                ask(f"{field} {label}", put(("collateral",), field, der.hex()))
    assert "accepted" not in agreed(asked, capsys)


def policies_near(policy: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """A policy with one rule that is missing, of another type, or accepts nothing."""
    for name in policy["cpu"]:
        without = copy.deepcopy(policy)
        del without["cpu"][name]
        yield f"without {name}", without
        for other in ("any", "refuse", "require", None, [], {}, 0, -1, ["x"], ["00" * 48]):
            near = copy.deepcopy(policy)
            near["cpu"][name] = other
            yield f"{name} = {other!r}", near


@pytest.mark.parametrize("name", ["nitro", "snp"])
def test_policies_of_another_form_are_read_alike(
    park: Park, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    document, policy = park.evidence(MACHINES[name]), park.policy(MACHINES[name])
    asked = [
        Asked(label=label, document=document, policy=other)
        for label, other in policies_near(policy)
    ]
    counted = agreed(asked, capsys)
    assert counted["trust-invalid"] > 20


def evidence_of(platform: str, cpu: dict[str, Any]) -> dict[str, Any]:
    part = {"tee": platform, **cpu, "app_compose": COMPOSE}
    return {
        "version": 2,
        "platform": platform,
        "cpu": part,
        "gpu": None,
        "collateral": None,
        "gpu_collateral": None,
    }


def real(shared: Path) -> Iterator[Asked]:
    """Real evidence and what is refused of it, at its time and just outside.

    No real machine measured our deployment document: what holds is refused for that alone.
    """
    for one in (*accepted(shared), *(refused for refused, _ in REFUSED)):
        data = (shared / "vectors" / one.file).read_bytes()
        if one.file.startswith("nitro/") and one.file.endswith(".cose"):
            cpu: dict[str, Any] = {"document": base64.b64encode(data).decode()}
            document = evidence_of("nitro", cpu)
        elif one.file.startswith("sev-snp/") and len(one.certificates) == 2:
            chain = ders_of(shared, one.certificates)
            cpu = {
                "report": base64.b64encode(data).decode(),
                "certificates": [base64.b64encode(der).decode() for der in chain],
                "crl": None,
            }
            document = evidence_of("snp", cpu)
        else:
            continue
        policies = [one.rules().to_dict(), preset("nitro").to_dict(), preset("snp-genoa").to_dict()]
        for now in {one.at, *one.outside, NOW}:
            for place, policy in enumerate(policies):
                label = f"{one.file} policy {place} at {now}"
                yield Asked(label=label, document=document, policy=policy, now=now)


def test_real_evidence_ends_alike(shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    counted = agreed(list(real(shared)), capsys)
    assert counted["compose-hash-mismatch"] > 3
    assert counted["certificate-chain-invalid"] > 3


def test_real_evidence_with_a_changed_bit_ends_alike(
    shared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The chains of AWS and AMD, and signatures under them: no bit of them may be another."""
    asked = []
    for honest in real(shared):
        if ours(honest) != "compose-hash-mismatch":
            continue
        for label, document in changed(honest.document, 60):
            asked.append(replace(honest, label=f"{honest.label} {label}", document=document))
    counted = agreed(asked, capsys)
    assert counted["certificate-chain-invalid"] + counted["quote-invalid"] > 100
