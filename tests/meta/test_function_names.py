"""A function is a verb: ``open_datasets``, never ``opened``.

A function whose name begins with a participle leaves open who does what. What stays is listed here
with its reason, and a name that no function has any more leaves the list.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
FOLDERS = ("src", "packages", "tools")
DEFINITION = re.compile(r"^ *(?:async )?def _?([a-z]\w*)\(", re.MULTILINE)

IRREGULAR = {
    "begun",
    "borne",
    "bought",
    "bound",
    "brought",
    "built",
    "caught",
    "chosen",
    "cut",
    "dealt",
    "done",
    "drawn",
    "driven",
    "felt",
    "found",
    "given",
    "gone",
    "grown",
    "heard",
    "held",
    "kept",
    "known",
    "laid",
    "led",
    "left",
    "lent",
    "lost",
    "made",
    "meant",
    "met",
    "paid",
    "said",
    "sealed",
    "seen",
    "sent",
    "shown",
    "sold",
    "spent",
    "split",
    "spoken",
    "stood",
    "sworn",
    "taken",
    "taught",
    "thought",
    "told",
    "torn",
    "understood",
    "won",
    "worn",
    "wound",
    "woven",
    "written",
}
# Words that end like participles and are none.
NO_PARTICIPLES = {
    "broken",
    "embed",
    "exceed",
    "feed",
    "flatten",
    "happen",
    "harden",
    "hidden",
    "keygen",
    "lengthen",
    "listen",
    "need",
    "open",
    "proceed",
    "screen",
    "seed",
    "shed",
    "shorten",
    "speed",
    "split",
    "succeed",
    "ten",
    "then",
    "token",
    "tokens",
    "when",
    "whiten",
    "cut",
}

# Why a name stays, and which names do.
STAYS = {
    "a noun phrase, for what the function returns": {
        "adopted_vectors", "closed_list", "failed_lanes", "kept_settings", "learned_turns",
        "locked_identity", "locked_schema", "malformed_error", "owned_vectors", "padded_size",
        "pinned_wheels", "recorded_decisions", "refused_enclaves", "rented_attestation",
        "sealed_folder", "sealed_model", "sealed_span", "settled_rows", "signed_bytes",
        "signed_keys", "simulated_policy", "tracked_files", "trimmed_mean", "typed_digest",
        "unified_image",
    },
    "a verb: to found a consortium, to bound a norm": {
        "bound", "bound_moves", "found", "found_consortium",
    },
    "an address that answers; the OpenAPI document has its name": {"cosigned", "registered"},
    "PyTorch's name": {"monitored_barrier"},
    "the wire between ranks, not renamed yet": {
        "arrived", "handed_over", "taken", "taken_over", "typed",
    },
}  # fmt: skip


def begins_with_a_participle(name: str) -> bool:
    word = name.split("_")[0]
    return word not in NO_PARTICIPLES and (word in IRREGULAR or word.endswith(("ed", "en")))


def participles() -> dict[str, list[str]]:
    """Where functions stand whose names begin with a participle; a property may be one."""
    found = defaultdict(list)
    for folder in FOLDERS:
        for path in (REPOSITORY / folder).rglob("*.py"):
            text = path.read_text()
            for definition in DEFINITION.finditer(text):
                above = text[: definition.start()].rstrip("\n").rsplit("\n", 1)[-1]
                if begins_with_a_participle(definition[1]) and "property" not in above:
                    found[definition[1]].append(path.relative_to(REPOSITORY).as_posix())
    return found


def test_no_function_is_named_by_a_participle() -> None:
    found = participles()
    listed = set().union(*STAYS.values())
    assert {name: places for name, places in found.items() if name not in listed} == {}
    assert listed <= found.keys()


def test_a_participle_is_recognised() -> None:
    named = ("opened", "told", "recorded_by", "taken_over")
    assert all(begins_with_a_participle(name) for name in named)
    assert not any(begins_with_a_participle(name) for name in ("open", "seed_of", "is_opened"))
