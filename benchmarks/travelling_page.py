"""The tables of `travelling.py`, for a terminal and as a page of the documentation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

Told = dict[str, Any]
SHORT = {
    "travelling": "travelling", "own": "own channel", "own+bus": "own channel, two hops",
    "tls": "TLS", "tls+bus": "TLS + bus", "model": "model",
}  # fmt: skip
PARTS = ("trained", "trips", "state", "real")
ON_GPU = "gpu"
"""A part that needs a GPU, and its own machine."""
TIMERS = ("grab", "import_key", "open", "buffer_write", "scrub", "measure")


def page(told: Told) -> str:
    """Markdown; a part that was not measured is named and left out."""
    fields: dict[str, str] = dict(told["machine"])
    parts = [part for part in (*PARTS, ON_GPU) if part in told]
    loads = ", ".join(
        f"{part} {told[part]['load']}" for part in parts if part not in ("real", ON_GPU)
    )
    fields["loads"] = loads and f" Load when each part began: {loads}."
    missing = ", ".join(part for part in PARTS if part not in told)
    fields["missing"] = (
        missing and f"**Not measured with this version of the protocol:** {missing}.\n\n"
    )
    if "trained" in told:
        trained = told["trained"]
        fields |= told["program"] | {
            "kibibytes": f"{trained['bytes'] / 1024:.0f}",
            "state": f"{_state_bytes(trained) / 1024:.0f}",
            "seconds": f"{trained['pooled_seconds']:.1f}",
            "a_byte": f"{trained['microseconds_a_byte']:.1f}",
            "scale": f"{trained['scale']:.0f}",
            "trained": "\n".join(_trained(trained)),
            "timers": "\n".join(_timers(trained["rows"])),
        }
    if "trips" in told:
        fields["trips"] = "\n".join(_trips(told["trips"]))
        fields["fit"] = "\n".join(_fit(told["trips"]["fit"]))
    if "state" in told:
        fields["state_bytes"] = f"{told['state']['bytes'] / 1e9:.2f}"
        fields["state_of"] = "\n".join(_state(told["state"]))
    if "real" in told:
        fields["real"] = "\n".join(_real(told["real"]))
    if ON_GPU in told:
        fields["gpu"] = "\n".join(_real(told[ON_GPU]))
        fields["gpu_machine"] = _machine(told[ON_GPU]["machine"])
    template = Path(__file__).with_name("travelling_page.template").read_text()
    head, *blocks = template.split("%% ")
    named = [block.split("\n", 1) for block in blocks]
    shown = [head, *(text for name, text in named if name in parts)]
    return "".join(shown).format(**fields).rstrip() + "\n"


def printed(told: Told) -> str:
    """The tables alone."""
    parts = [[str(told.get("machine") or told[ON_GPU]["machine"])]]
    if "trained" in told:
        parts += [_trained(told["trained"]), _timers(told["trained"]["rows"])]
    if "trips" in told:
        parts += [_trips(told["trips"]), _fit(told["trips"]["fit"])]
    if "state" in told:
        parts.append(_state(told["state"]))
    if "real" in told:
        parts.append(_real(told["real"]))
    if ON_GPU in told:
        parts.append(_real(told[ON_GPU]))
    return "\n\n".join("\n".join(part) for part in parts)


def _state_bytes(trained: Told) -> int:
    """What model sharing sends on each turn; 0 where it was not run."""
    ways = [way for row in trained["rows"] for way in row["ways"].values()]
    return next((way["bytes_a_trip"] for way in ways if "bytes_a_trip" in way), 0)


def _trained(trained: Told) -> list[str]:
    ways = list(trained["rows"][0]["ways"])
    lines = [
        "| cap | trips | " + " | ".join(f"{SHORT[way]} (s)" for way in ways) + " |",
        "|---|---:|" + "---:|" * len(ways),
    ]
    for row in trained["rows"]:
        cells = [
            f"{_percent(way['beside_training_share'])} ({way['transfer']:.3f})"
            for way in row["ways"].values()
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
            f"{way['ms_a_trip']:.1f} ({way['processor_ms_a_trip']:.1f})"
            for way in row["ways"].values()
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
    for way, line in fit.items():
        lines.append(
            f"| {SHORT[way]} | {line['latency_ms']:.1f} | {line['megabytes_a_second']:.0f} |"
        )
    return lines


def _state(told: Told) -> list[str]:
    names = {
        "read once": "xor of all its words", "fingerprint": "fingerprint under a fresh key",
        "read again": "reading again after a wait",
        "sha256": "SHA-256, as version 1 had twice a trip",
        "code": "code of the process",
    }  # fmt: skip
    lines = ["| | ms | GB/s |", "|---|---:|---:|"]
    for part, name in names.items():
        rate = "" if part == "code" else f"{told['bytes'] / told[part] / 1e9:.1f}"
        lines.append(f"| {name} | {1e3 * told[part]:.1f} | {rate} |")
    return lines


def _real(told: Told) -> list[str]:
    lines = [
        "| steps | type | way | a trip, s | training, s | measuring, ms | rest, ms | not training "
        "| load |",
        "|---:|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for _, sizes in sorted(told["rows"].items(), key=lambda row: int(row[0])):
        measuring = sizes["timers_ms_a_trip"].get("measure", 0.0)
        lines.append(
            f"| {sizes['steps']} | {sizes['dtype']} | {SHORT[sizes['way']]} | "
            f"{sizes['total'] / sizes['trips']:.2f} | {sizes['training'] / sizes['trips']:.2f} | "
            f"{measuring:.0f} | {sizes['beside_training_ms_a_trip'] - measuring:.1f} | "
            f"{_percent(sizes['beside_training_share'])} | {sizes['load']} |"
        )
    return lines


def _machine(facts: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {facts[name]}" for name in ("python", "torch", "transformers"))
    return f"{facts['gpu']}; {facts['processor']}, {facts['processors']} processors; {versions}"


def _percent(share: float) -> str:
    return f"{100 * share:.3f} %" if share < 0.01 else f"{100 * share:.1f} %"
