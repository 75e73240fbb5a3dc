from __future__ import annotations

import json
import math
import mmap
import struct
import time
from itertools import count
from pathlib import Path
from typing import IO, Any

import httpx2
import pytest
from polling import wait_until
from training_world import (
    CANARY,
    checkpoint_store,
    run,
    seal_records,
    sft,
    sources_of,
    write_records,
)

from sealtrain.recipe.monitoring import Alert, Monitoring
from sealtrain.training.checkpoints.checkpoint import newest
from sealtrain.training.telemetry.bar import progress_bar
from sealtrain.training.telemetry.eventfile import event_file
from sealtrain.training.telemetry.gauges import SYSTEM_METRICS, SystemGauges
from sealtrain.training.telemetry.monitor import ALERTS_FILE, Monitor

pytestmark = pytest.mark.long


def scraped(monitor: Monitor) -> dict[str, float]:
    """The page as Prometheus' own parser reads it: ``family{label}`` → value."""
    from prometheus_client.parser import text_string_to_metric_families

    url = f"http://127.0.0.1:{monitor.bound_port}/metrics"
    text = httpx2.get(url, trust_env=False, timeout=10).text
    return {
        sample.name + "".join(f"{{{value}}}" for value in sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def watched(folder: Path, sealed: dict[str, Any], **changed: Any) -> tuple[Any, Monitor, Any]:
    """A training with a page on a free port, and what was scraped at each checkpoint."""
    keywords = {name: changed.pop(name) for name in ("resume", "stop_at") if name in changed}
    recipe = sft(**changed)
    pages: list[dict[str, float]] = []
    rows = recipe.trainer.per_device_train_batch_size * recipe.trainer.gradient_accumulation_steps
    with Monitor(recipe.monitoring, folder=folder, rows_per_step=rows, port=0) as monitor:
        monitor.watch()
        ran = run(
            recipe,
            sources_of(recipe, sealed),
            checkpoint_store(folder / "checkpoints"),
            on_checkpoint=lambda _: pages.append(scraped(monitor)),
            monitor=monitor,
            **keywords,
        )
        pages.append(scraped(monitor))
    return ran, monitor, pages


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("records")
    return dict(seal_records(write_records(folder), folder))


@pytest.fixture(scope="module")
def page(sealed: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    policy = sft().release_policy.to_dict() | {"metrics": ["loss"], "round_to": 3}
    return watched(
        tmp_path_factory.mktemp("page"),
        sealed,
        release_policy=policy,
        monitoring={"system_metrics": True},
    )


@pytest.mark.claim("C35")
def test_the_page_shows_what_the_policy_lets_out_and_nothing_else(page: Any) -> None:
    ran, _, pages = page
    last = pages[-1]
    names = {name for name in last if name.startswith("sealtrain_metric")}
    assert names == {"sealtrain_metric{loss}"}
    assert last["sealtrain_metric{loss}"] == ran.history[-1][1]["loss"]
    assert last["sealtrain_metric{loss}"] == round(last["sealtrain_metric{loss}"], 3)
    families = {name.partition("{")[0] for name in last}
    assert families <= {
        "sealtrain_metric",
        "sealtrain_system",
        "sealtrain_steps_total",
        "sealtrain_samples_total",
    }
    assert CANARY not in str(pages)


def test_the_machine_is_shown_where_the_recipe_says_so(page: Any, sealed: Any) -> None:
    _, monitor, _ = page
    assert set(monitor.shown.system) <= set(SYSTEM_METRICS)
    with Monitor(Monitoring(system_metrics=True), port=0) as asked:
        asked.watch()
        asked.look()
        shown = scraped(asked)
        assert shown["sealtrain_system{memory_bytes}"] > 10_000_000
        assert 0 < shown["sealtrain_system{memory_percent}"] < 100
    with Monitor(Monitoring(), port=0) as unasked:
        unasked.watch()
        unasked.look()
        assert not [name for name in scraped(unasked) if "system" in name]


def test_the_page_is_on_the_loopback_address_and_goes_with_the_run(page: Any) -> None:
    _, monitor, _ = page
    with pytest.raises(httpx2.ConnectError):
        scraped(monitor)
    with Monitor(port=0) as open_page:
        listening = _listening_addresses(open_page.bound_port or 0)
    assert listening == {"0100007F"}


def _listening_addresses(port: int) -> set[str]:
    """Local addresses, in the kernel's own hexadecimal, that listen on a port."""
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            address, _, number = line.split()[1].partition(":")
            if int(number, 16) == port and line.split()[3] == "0A":
                found.add(address)
    return found


def test_counters_only_rise_also_over_a_resume(sealed: dict[str, Any], tmp_path: Path) -> None:
    _, _, first = watched(tmp_path, sealed, stop_at=3)
    resume = newest(checkpoint_store(tmp_path / "checkpoints"), None)
    _, _, second = watched(tmp_path, sealed, resume=resume)
    pages = [item for item in (*first[:1], *second) if item["sealtrain_steps_total"]]
    for name in ("sealtrain_steps_total", "sealtrain_samples_total"):
        series = [page[name] for page in pages]
        assert series == sorted(series)
    assert pages[-1]["sealtrain_steps_total"] == 8
    assert pages[-1]["sealtrain_samples_total"] == 8 * 4


def test_throughput_and_the_machine_leave_when_named(
    sealed: dict[str, Any], tmp_path: Path
) -> None:
    names = ["loss", "grad_norm", "learning_rate", "tokens_per_second", "samples_per_second"]
    policy = sft().release_policy.to_dict() | {"metrics": [*names, "memory_bytes", "cpu_percent"]}
    ran, _, _ = watched(
        tmp_path, sealed, release_policy=policy, monitoring={"system_metrics": True}
    )
    last = ran.history[-1][1]
    assert set(names) <= set(last)
    assert last["tokens_per_second"] > last["samples_per_second"] > 0
    assert last["memory_bytes"] > 10_000_000


def test_watching_changes_no_number(page: Any, sealed: dict[str, Any], tmp_path: Path) -> None:
    recipe = sft()
    plain = run(recipe, sources_of(recipe, sealed), checkpoint_store(tmp_path / "checkpoints"))
    assert plain.weights == page[0].weights


def test_gauges_read_this_machine() -> None:
    gauges = SystemGauges()
    # Mapped, so that it is given back at once: an allocator may keep what it had.
    with mmap.mmap(-1, 64 << 20) as ballast:
        ballast[::4096] = b"x" * (len(ballast) // 4096)
        before = gauges.read()["memory_bytes"]
    assert before - gauges.read()["memory_bytes"] > 32 << 20
    sum(number * number for number in range(2_000_000))
    assert gauges.read()["cpu_percent"] > 0


def test_an_event_file_reads_back_as_written() -> None:
    from tensorboardX.proto.event_pb2 import Event

    history = [
        {"step": 1, "values": {"loss": 2.5, "accuracy": 0.25}},
        {"step": 2, "values": {"loss": None}},
        {"step": 3, "values": {"loss": 0.5}},
    ]
    name, data = event_file(history, 1_700_000_000)
    assert name == "events.out.tfevents.1700000000.sealtrain"
    events, place = [], 0
    while place < len(data):  # length, its checksum, the event, its checksum
        (size,) = struct.unpack_from("<Q", data, place)
        events.append(Event.FromString(data[place + 12 : place + 12 + size]))
        place += 12 + size + 4
    assert events[0].file_version == "brain.Event:2"
    points = [
        (event.step, value.tag, value.simple_value)
        for event in events[1:]
        for value in event.summary.value
    ]
    assert points == [(1, "accuracy", 0.25), (1, "loss", 2.5), (3, "loss", 0.5)]


@pytest.mark.claim("C21")
@pytest.mark.parametrize("seen", [False, True], ids=["lines", "bar"])
def test_the_bar_shows_released_numbers_only(tmp_path: Path, seen: bool) -> None:
    said = (tmp_path / "terminal").open("w+")
    if seen:
        said = _Terminal(said)  # type: ignore[assignment]
    with said, progress_bar(said, 10) as bar:
        bar.step(5, {"loss": 0.123456789})
        bar.take_metrics(5, {"loss": 0.12, "tokens_per_second": 1234.5})
        bar.step(10, {"loss": 0.987654321})
    text = (tmp_path / "terminal").read_text()
    assert "0.12" in text
    assert "1,234" in text
    assert "0.123" not in text
    assert "0.98" not in text


class _Terminal:
    """A file that says it is a terminal."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def isatty(self) -> bool:
        return True


def test_without_a_terminal_a_line_comes_every_few_seconds(tmp_path: Path) -> None:
    now = 0.0
    with (
        (tmp_path / "log").open("w") as said,
        progress_bar(said, 100, monotonic=lambda: now) as bar,
    ):
        for step in range(1, 101):
            now += 1.0
            bar.step(step, {})
    lines = (tmp_path / "log").read_text().splitlines()
    assert lines[1:4] == ["step 1/100", "step 6/100", "step 11/100"]
    assert lines[-1] == "step 100/100"


@pytest.mark.claim("C573")
def test_a_line_shows_a_step_with_its_own_loss(tmp_path: Path) -> None:
    with (
        (tmp_path / "log").open("w") as said,
        progress_bar(said, 4, monotonic=count().__next__) as bar,
    ):
        for step in range(1, 5):
            bar.step(step, {})
            if step != 3:
                bar.take_metrics(step, {"loss": step / 10})
    lines = (tmp_path / "log").read_text().splitlines()[1:]
    assert lines == ["step 1/4  loss 0.1", "step 4/4  loss 0.4"]
    now = iter(range(0, 100, 9))
    with (tmp_path / "far").open("w") as said, progress_bar(said, 4, monotonic=now.__next__) as bar:
        for step in range(1, 4):
            bar.step(step, {})
            if step != 3:
                bar.take_metrics(step, {"loss": step / 10})
    last = (tmp_path / "far").read_text().splitlines()[-1]
    assert last == "step 3/4  loss 0.2  (of step 2)"


def test_a_loss_that_is_no_number_is_shown_as_such() -> None:
    with Monitor(port=0) as monitor:
        monitor.watch()
        monitor.take_metrics(1, {"loss": None})
        assert math.isnan(scraped(monitor)["sealtrain_metric{loss}"])


def alerting(folder: Path, *, lease_left: Any) -> Monitor:
    alert = Alert(when="lease-seconds-left", threshold=60.0)
    wanted = Monitoring(alerts=(alert,), alert_to="file")
    return Monitor(wanted, folder=folder, lease_left=lease_left, every=0.01)


def test_an_alert_that_a_full_disk_did_not_take_is_written_later(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.write_text("no folder: every write below it fails")
    with alerting(folder, lease_left=lambda: 5.0) as monitor:
        monitor.watch()
        wait_until(lambda: monitor.shown.alerts, 10)
        assert monitor.shown.alerts == {"lease-seconds-left": 1}
        folder.unlink()
        folder.mkdir()
        wait_until((folder / ALERTS_FILE).exists, 10)
    lines = (folder / ALERTS_FILE).read_text().splitlines()
    assert [json.loads(line)["alert"] for line in lines] == ["lease-seconds-left"]


def test_the_watch_goes_on_after_a_tick_that_could_not_read(tmp_path: Path) -> None:
    asked: list[float] = []

    def left() -> float:
        asked.append(time.monotonic())
        if len(asked) == 1:
            raise OSError(5, "Input/output error")
        return 5.0

    with alerting(tmp_path, lease_left=left) as monitor:
        monitor.watch()
        wait_until(lambda: monitor.shown.alerts, 10)
        monitor.step(1, {})
    assert monitor.shown.alerts == {"lease-seconds-left": 1}


def test_a_fault_of_the_watch_ends_the_training_and_not_silently(tmp_path: Path) -> None:
    def left() -> float:
        raise ZeroDivisionError

    def training(monitor: Monitor) -> None:
        monitor.watch()
        wait_until(lambda: monitor.step(1, {}), 10)

    with alerting(tmp_path, lease_left=left) as monitor, pytest.raises(ZeroDivisionError):
        training(monitor)
