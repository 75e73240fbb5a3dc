"""The tables of `travelling.py`, for a terminal and as a page of the documentation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

Told = dict[str, Any]
SHORT = {
    "travelling": "travelling", "own": "own channel", "own+bus": "own channel, two hops",
    "tls": "TLS", "tls+bus": "TLS + bus", "model": "model",
}  # fmt: skip
TIMERS = ("grab", "import_key", "open", "buffer_write", "scrub", "measure")


def page(told: Told) -> str:
    """Markdown."""
    trained, fit = told["trained"], told["trips"]["fit"]
    tables = {
        "trained": _trained(trained),
        "timers": _timers(trained["rows"]),
        "trips": _trips(told["trips"]),
        "fit": _fit(fit),
        "real": _real(told["real"]),
    }
    fields = {
        **told["machine"],
        **told["program"],
        "kibibytes": f"{trained['bytes'] / 1024:.0f}",
        "state": f"{_state_bytes(trained) / 1024:.0f}",
        "seconds": f"{trained['pooled_seconds']:.1f}",
        "a_byte": f"{trained['microseconds_a_byte']:.1f}",
        "scale": f"{trained['scale']:.0f}",
        **{name: "\n".join(lines) for name, lines in tables.items()},
    }
    return Path(__file__).with_name("travelling_page.template").read_text().format(**fields)


def printed(told: Told) -> str:
    """The tables alone."""
    parts = [[str(told["machine"])]]
    if "trained" in told:
        parts += [_trained(told["trained"]), _timers(told["trained"]["rows"])]
    if "trips" in told:
        parts += [_trips(told["trips"]), _fit(told["trips"]["fit"])]
    if "real" in told:
        parts.append(_real(told["real"]))
    return "\n\n".join("\n".join(part) for part in parts)


def _state_bytes(trained: Told) -> int:
    """What model sharing sends on each turn; 0 where it was not run."""
    ways = [one for row in trained["rows"] for one in row["ways"].values()]
    return next((one["bytes_a_trip"] for one in ways if "bytes_a_trip" in one), 0)


def _trained(trained: Told) -> list[str]:
    ways = list(trained["rows"][0]["ways"])
    lines = [
        "| cap | trips | " + " | ".join(f"{SHORT[way]} (s)" for way in ways) + " |",
        "|---|---:|" + "---:|" * len(ways),
    ]
    for row in trained["rows"]:
        cells = [
            f"{_percent(one['beside_training_share'])} ({one['transfer']:.3f})"
            for one in row["ways"].values()
        ]
        lines.append(f"| {row['cap']} | {row['trips']} | " + " | ".join(cells) + " |")
    if "gradient" in trained:
        one = trained["gradient"]
        lines += [
            "",
            f"Gradient sharing has no trips: {one['steps']} steps waited {one['transfer']:.1f} s, "
            f"{_percent(one['transfer_share'])} of {one['total']:.1f} s.",
        ]
    return lines


def _timers(rows: list[Told]) -> list[str]:
    lines = ["| cap | " + " | ".join(TIMERS) + " |", "|---|" + "---:|" * len(TIMERS)]
    for row in rows:
        spent = row["ways"]["travelling"]["timers_ms_a_trip"]
        cells = [f"{spent.get(name, 0.0):.2f}" for name in TIMERS]
        lines.append(f"| {row['cap']} | " + " | ".join(cells) + " |")
    return lines


def _trips(told: Told) -> list[str]:
    ways = list(told["rows"][0]["ways"])
    lines = [
        "| cap | chunk MiB | " + " | ".join(f"{SHORT[way]} ms (processor)" for way in ways)
        + " | travelling ÷ own channel | ÷ two hops | ÷ TLS |",
        "|---|---:|" + "---:|" * len(ways) + "---:|---:|---:|",
    ]  # fmt: skip
    for row in told["rows"]:
        cells = [
            f"{one['ms_a_trip']:.1f} ({one['processor_ms_a_trip']:.1f})"
            for one in row["ways"].values()
        ]
        ratios = [_ratio(row["ways"], way) for way in ("own", "own+bus", "tls")]
        lines.append(
            f"| {row['cap']} | {row['chunk_bytes'] / (1 << 20):.0f} | "
            + " | ".join(cells)
            + f" | {' | '.join(ratios)} |"
        )
    return lines


def _ratio(ways: Told, other: str) -> str:
    """Travelling to another way, by the clock and in processor time."""
    wall, processor = (
        ways["travelling"][name] / ways[other][name]
        for name in ("ms_a_trip", "processor_ms_a_trip")
    )
    return f"{wall:.2f} ({processor:.2f})"


def _fit(fit: Told) -> list[str]:
    lines = ["| | latency, ms a trip | bandwidth, MB/s |", "|---|---:|---:|"]
    for way, one in fit.items():
        lines.append(
            f"| {SHORT[way]} | {one['latency_ms']:.1f} | {one['megabytes_a_second']:.0f} |"
        )
    return lines


def _real(told: Told) -> list[str]:
    spent = told["measured"]
    lines = [
        f"A state of {spent['bytes'] / 1e9:.2f} GB, milliseconds, best of five: SHA-256 "
        f"{1e3 * spent['sha256']:.0f}, fingerprint under a fresh key "
        f"{1e3 * spent['fingerprint']:.0f}, reading again after a wait "
        f"{1e3 * spent['read again']:.0f}, code {1e3 * spent['code']:.1f}.",
        "",
        "| steps of a chunk | way | trips | training s | measuring ms a trip | not training |",
        "|---:|---|---:|---:|---:|---:|",
    ]
    for row in told["rows"]:
        for way, one in row["ways"].items():
            measuring = one["timers_ms_a_trip"].get("measure", 0.0)
            lines.append(
                f"| {row['steps']} | {SHORT[way]} | {one['trips']} | {one['training']:.1f} | "
                f"{measuring:.0f} | {_percent(one['beside_training_share'])} |"
            )
    return lines


def _percent(share: float) -> str:
    return f"{100 * share:.3f} %" if share < 0.01 else f"{100 * share:.1f} %"
