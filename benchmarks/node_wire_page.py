"""The page of what several nodes cost: all-reduce, a DDP step, the meeting, and the floor."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Mapping
from typing import Any

FRAME = 512 << 10
ALL_REDUCE_GOAL, STEP_GOAL, MEETING_GOAL_S = 0.9, 1.05, 5.0
_WAYS = {
    "gloo": "gloo in plaintext",
    "wire": "node-wire: TLS 1.3, then frames of AES-256-GCM",
    "ssl": "TLS 1.3 by Python's `ssl`, two threads",
    "wireguard": "gloo over wireguard-go",
}


def floor(seconds: float = 1.0) -> dict[str, float]:
    """Bytes a second of one thread, of what no encrypted exchange can leave out.

    Args:
        seconds: How long each is measured.

    Returns:
        Sealing and opening frames of AES-256-GCM and, beside them, of ChaCha20-Poly1305; a copy.
    """
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

    plain, sealed = bytearray(os.urandom(FRAME)), bytearray(FRAME + 16)
    nonce, key = bytes(12), os.urandom(32)
    found = {}
    for name, cipher in (("aes", AESGCM(key)), ("chacha", ChaCha20Poly1305(key))):
        cipher.encrypt_into(nonce, plain, b"", sealed)
        found[f"{name}_seal"] = _rate(
            lambda cipher=cipher: cipher.encrypt_into(nonce, plain, b"", sealed), seconds
        )
        found[f"{name}_open"] = _rate(
            lambda cipher=cipher: cipher.decrypt_into(nonce, sealed, b"", plain), seconds
        )
    large, other = memoryview(bytearray(64 << 20)), memoryview(bytearray(64 << 20))

    def copied() -> None:
        other[:] = large

    found["copy"] = _rate(copied, seconds) * len(large) / FRAME
    return found


def _rate(work: Any, seconds: float) -> float:
    """Bytes a second of a frame's work."""
    work()
    times, begin = 0, time.perf_counter()
    while (spent := time.perf_counter() - begin) < seconds:
        work()
        times += 1
    return times * FRAME / spent


def page(found: Mapping[str, Any]) -> str:
    """The page as Markdown."""
    facts = found["machine"]
    versions = ", ".join(
        f"{name} {value}"
        for name, value in facts.items()
        if name not in ("processor", "processors", "load", "nice")
    )
    lines = [
        "# Between nodes: what encryption costs",
        "",
        f"Made by `{found['command']}` in {found['seconds']:.0f} s.",
        f"{facts['processor']}, {facts['processors']} processors; {versions}. "
        f"Load of the machine when it began: {facts['load']:.1f}; "
        f"this ran at nice {facts['nice']}.",
        "",
        f"Two ranks between {found['between']}, all ways in one process a rank, in turn within "
        "each round;",
        "figures are medians, ratios are of the same run. "
        "Both ranks share the processors of this machine.",
        "",
        "## All-reduce of two ranks",
        "",
        "| size | way | milliseconds | speed ÷ gloo |",
        "|---:|---|---:|---:|",
    ]
    missed = []
    for size, ways in found["all_reduce"].items():
        base = statistics.median(ways["gloo"])
        for name, seconds in ways.items():
            if not seconds:
                continue
            middle = statistics.median(seconds)
            lines.append(
                f"| {size} MB | {_WAYS[name]} | {middle * 1e3:.1f} | {base / middle:.2f} |"
            )
        if base / statistics.median(ways["wire"]) < ALL_REDUCE_GOAL:
            missed.append(f"all-reduce of {size} MB")
    lines += ["", *_floor(found), "", *_step(found["ddp"], missed), "", *_meeting(found["meeting"])]
    if found["meeting"]["met"] >= MEETING_GOAL_S:
        missed.append("meeting")
    lines += [
        "",
        f"Aims: node-wire at least {ALL_REDUCE_GOAL} of gloo's speed; a sealed step at most "
        f"{STEP_GOAL} of the plaintext one; the meeting under {MEETING_GOAL_S:.0f} s. "
        f"Missed: {', '.join(missed) or 'nothing'}.",
    ]
    return "\n".join(lines) + "\n"


def _floor(found: Mapping[str, Any]) -> list[str]:
    """What the largest all-reduce cannot leave out."""
    rates = found["floor"]
    size = max(found["all_reduce"], key=int)
    moved = int(size) * (1 << 20)
    crypto = moved / rates["aes_seal"] + moved / rates["aes_open"]
    took = statistics.median(found["all_reduce"][size]["wire"])
    return [
        "## The floor",
        "",
        "One thread of this processor, frames of 512 KiB:",
        "",
        "| work | GB/s |",
        "|---|---:|",
        f"| AES-256-GCM, seal | {rates['aes_seal'] / 1e9:.2f} |",
        f"| AES-256-GCM, open | {rates['aes_open'] / 1e9:.2f} |",
        f"| ChaCha20-Poly1305, seal | {rates['chacha_seal'] / 1e9:.2f} |",
        f"| ChaCha20-Poly1305, open | {rates['chacha_open'] / 1e9:.2f} |",
        f"| copy of 64 MiB | {rates['copy'] / 1e9:.2f} |",
        "",
        f"In an all-reduce of {size} MB each of two ranks seals {size} MB and opens {size} MB: "
        f"{crypto * 1e3:.0f} ms of AES-256-GCM,",
        f"which is {crypto / took:.0%} of the {took * 1e3:.0f} ms that node-wire took. "
        "The rest is the kernel's sending and receiving, and the sums.",
    ]


def _step(ddp: Mapping[str, Any], missed: list[str]) -> list[str]:
    gloo, wire = (statistics.median(ddp[name]) for name in ("gloo", "wire"))
    pairs = zip(ddp["wire"], ddp["gloo"], strict=True)
    ratio = statistics.median(ratio / other for ratio, other in pairs)
    if ratio > STEP_GOAL:
        missed.append("DDP step")
    return [
        f"## A DDP step of {ddp['parameters'][0] / 1e6:.1f} million parameters",
        "",
        f"Rows from a plaintext file over gloo: {gloo * 1e3:.0f} ms. "
        f"Rows from a sealed file over node-wire: {wire * 1e3:.0f} ms.",
        f"Median of the ratios of each round: **{ratio:.3f}**. "
        "Both end with the same weights, or the script fails.",
    ]


def _meeting(met: Mapping[str, Any]) -> list[str]:
    return [
        f"## The meeting of {met['nodes']} nodes",
        "",
        "Each node is a process of this machine with simulated evidence, which is made and "
        "verified as hardware's is, under another root",
        "(`benchmarks/meeting.py`). From when the lead listens until each node has every address, "
        "key and secret:",
        "",
        "| | seconds |",
        "|---|---:|",
        f"| {met['nodes']} nodes | {met['met']:.2f} |",
        f"| two nodes | {met['one']:.2f} |",
        f"| processor time of the lead | {met['lead']:.2f} |",
        f"| processor time of all others together | {met['nodes_cpu']:.2f} |",
    ]
