"""The firmware's event log of a bare TDX guest: read strictly, replayed, asked for by a line."""

from __future__ import annotations

import base64
import hashlib
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from machines_world import ASKED, COMPOSE, NOW
from second_evidence import EvidenceQuestion, compare_codes, own_code

from sealtrain.attest.errors import EventLogMismatch, EvidenceMalformed
from sealtrain.attest.policy import policy_from_dict
from sealtrain.attest.presets import insecure_simulator_policy
from sealtrain.attest.tdx.bootlog import (
    MAX_CCEL_BYTES,
    MAX_EVENTS,
    check_events,
    parse_ccel,
    read_events,
    replay_events,
)
from sealtrain.errors import TrustInvalid
from sealtrain_rehearsal.simulator.pki import SimulatedPki

pytestmark = pytest.mark.claim("C720")

PKI = SimulatedPki(b"a platform with a boot log")
EVENT = 0x80000007
MEASURED = [(1, b"firmware"), (2, b"kernel"), (1, b"tables"), (3, b"command line")]
"""Register by the log's own count, what was measured."""


def ccel(
    events: Sequence[tuple[int, bytes]] = MEASURED,
    *,
    first: int = 1,
    bank: tuple[int, str] = (0x0C, "sha384"),
    banks: int = 1,
) -> bytes:
    """A log as firmware writes it."""
    number, name = bank
    size = hashlib.new(name).digest_size
    spec = b"Spec ID Event03\0" + struct.pack("<IBBBBI", 0, 0, 2, 0, 2, banks)
    spec += struct.pack("<HH", number, size) * banks + b"\0"
    raw = struct.pack("<II20sI", first, 3, bytes(20), len(spec)) + spec
    for register, data in events:
        raw += struct.pack("<IIIH", register, EVENT, 1, number) + hashlib.new(name, data).digest()
        raw += struct.pack("<I", len(data)) + data
    return raw


def registers(events: Sequence[tuple[int, bytes]] = MEASURED) -> list[bytes]:
    """RTMR0 to RTMR3 after these events."""
    found = [bytes(48)] * 4
    for register, data in events:
        digest = hashlib.sha384(data).digest()
        found[register - 1] = hashlib.sha384(found[register - 1] + digest).digest()
    return found


HONEST = [
    {"index": register - 1, "digest": hashlib.sha384(data).hexdigest()}
    for register, data in MEASURED
]


def test_a_log_replays_to_the_registers_that_it_was_measured_into() -> None:
    events = parse_ccel(ccel() + b"\xff" * 4096)
    check_events(events, [value.hex() for value in registers()])
    assert [event.to_dict() for event in events] == HONEST


def test_the_public_log_of_a_real_guest_is_read(shared: Path) -> None:
    raw = (shared / "vectors/dstack/ccel/ccel.bin").read_bytes()
    events = parse_ccel(raw)
    assert [sum(event.index == index for event in events) for index in (0, 1, 2)] == [13, 5, 0]
    assert replay_events(events, 0).hex().startswith("274c2344116db7c663470693b5ba62b8")
    assert replay_events(events, 1).hex().startswith("bdcf4ee0f7fdfe7c73fbb19ded73193a")


def test_events_of_other_registers_are_left_out() -> None:
    events = parse_ccel(ccel([(0, b"no register"), *MEASURED, (4, b"the running system")]))
    assert len(events) == len(MEASURED)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        ccel(first=0),
        ccel(first=2),
        ccel([(5, b"register 5")]),
        ccel(bank=(0x0B, "sha256")),
        ccel(banks=2),
        ccel(banks=0),
        ccel() + b"\0",
        ccel() + b"\xff" * 8 + b"\1",
        ccel()[:-1],
        b"\0" * 64,
        ccel([(1, b"")] * (MAX_EVENTS + 1)),
        ccel() + b"\xff" * MAX_CCEL_BYTES,
    ],
    ids=range(13),
)
def test_a_log_of_another_form_is_refused(raw: bytes) -> None:
    with pytest.raises(EvidenceMalformed):
        parse_ccel(raw)


def test_every_cut_is_refused_or_a_shorter_log() -> None:
    raw = ccel()
    for cut in range(len(raw)):
        try:
            events = parse_ccel(raw[:cut])
        except EvidenceMalformed:
            continue
        with pytest.raises(EventLogMismatch):
            check_events(events, [value.hex() for value in registers()])


def test_this_guests_log_is_shown_where_it_replays(tmp_path: Path) -> None:
    path = tmp_path / "CCEL"
    quoted = [value.hex() for value in registers()]
    assert read_events(quoted, path) == ()
    path.write_bytes(ccel())
    assert len(read_events(quoted, path)) == len(MEASURED)
    path.write_bytes(ccel(MEASURED[::-1]))
    assert read_events(quoted, path) == ()
    path.write_bytes(b"what the host likes")
    assert read_events(quoted, path) == ()


# --- As evidence ----------------------------------------------------------------------------------


def document(events: Any = None, *, measured: Sequence[tuple[int, bytes]] = MEASURED) -> Any:
    one, two, three, four = registers(measured)
    raw = PKI.quote(
        ASKED.report_data(),
        mr_config_id=b"\1" + hashlib.sha256(COMPOSE).digest() + bytes(15),
        rtmr=(one, two, three, four),
    )
    cpu: dict[str, Any] = {
        "tee": "tdx",
        "quote": base64.b64encode(raw).decode(),
        "app_compose": COMPOSE.decode(),
    }
    if events is not None:
        cpu["boot_events"] = events
    return {
        "version": 2,
        "platform": "simulator",
        "cpu": cpu,
        "gpu": None,
        "collateral": PKI.collateral(NOW).to_dict(),
        "gpu_collateral": None,
    }


def policy(**changed: Any) -> dict[str, Any]:
    rules: dict[str, Any] = insecure_simulator_policy(PKI.root_der, tee="tdx").to_dict()
    return {**rules, "cpu": {**rules["cpu"], **changed}}


def by_log(rtmr0: str = "log") -> dict[str, Any]:
    _, one, two, _ = registers()
    image = {"mrtd": "00" * 48, "rtmr0": rtmr0, "rtmr1": one.hex(), "rtmr2": two.hex()}
    return policy(boot_log="require", measurements=[image])


ALTERED = [{**HONEST[0], "digest": "00" * 48}, *HONEST[1:]]
CASES: dict[str, tuple[Any, dict[str, Any], str]] = {
    "honest": (document(HONEST), policy(boot_log="require"), "accepted"),
    "not asked for": (document(HONEST), policy(), "accepted"),
    "not shown": (document(), policy(), "accepted"),
    "not shown but asked for": (document(), policy(boot_log="require"), "event-log-mismatch"),
    "altered": (document(ALTERED), policy(), "event-log-mismatch"),
    "an event dropped": (document(HONEST[:-1]), policy(), "event-log-mismatch"),
    "an event twice": (document([*HONEST, HONEST[-1]]), policy(), "event-log-mismatch"),
    "moved to another register": (
        document([{**HONEST[0], "index": 2}, *HONEST[1:]]),
        policy(),
        "event-log-mismatch",
    ),
    "out of order": (document(HONEST[::-1]), policy(), "event-log-mismatch"),
    "of one register alone": (
        document([event for event in HONEST if event["index"] == 0]),
        policy(),
        "event-log-mismatch",
    ),
    "an empty list": (document([]), policy(), "evidence-malformed"),
    "register 3": (document([{**HONEST[0], "index": 3}]), policy(), "evidence-malformed"),
    "a short digest": (document([{**HONEST[0], "digest": "00"}]), policy(), "evidence-malformed"),
    "more than a digest": (document([{**HONEST[0], "data": ""}]), policy(), "evidence-malformed"),
    "machine by its log": (document(HONEST), by_log(), "accepted"),
    "machine by another value": (document(HONEST), by_log("00" * 48), "measurement-mismatch"),
}


@pytest.mark.negative(120)
@pytest.mark.parametrize("name", CASES)
def test_a_log_counts_only_where_it_replays(name: str) -> None:
    shown, rules, end = CASES[name]
    assert own_code(EvidenceQuestion(label=name, document=shown, policy=rules)) == end


def test_both_verifiers_agree_on_each(capsys: pytest.CaptureFixture[str]) -> None:
    counted = compare_codes(
        [
            EvidenceQuestion(label=name, document=shown, policy=rules)
            for name, (shown, rules, _) in CASES.items()
        ],
        capsys,
    )
    assert counted["accepted"] == 4


@pytest.mark.parametrize("wrong", [None, "log", True, ["require"]])
def test_a_policy_says_whether_it_asks_for_a_log(wrong: Any) -> None:
    given = policy(boot_log=wrong)
    if wrong is None:
        del given["cpu"]["boot_log"]
    with pytest.raises(TrustInvalid):
        policy_from_dict(given)


def test_a_register_by_log_needs_a_log() -> None:
    given = by_log()
    with pytest.raises(TrustInvalid):
        policy_from_dict({**given, "cpu": {**given["cpu"], "boot_log": "any"}})
