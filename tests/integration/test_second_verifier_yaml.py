"""One YAML text has one meaning: our two readers end alike, and general YAML says the same."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from manifest_world import make_world
from node_judges import judge
from variants import variants

from sealtrain.attest.presets import PRESETS, preset_yaml
from sealtrain.base.canonical import canonical_json
from sealtrain.base.encoding import to_base64
from sealtrain.base.foreignyaml import parse_foreign_yaml
from sealtrain.base.yamltext import parse_yaml, yaml_text
from sealtrain.errors import SealtrainError, TrustInvalid
from sealtrain.manifest.trust import parse_trust
from sealtrain.recipe.errors import RecipeInvalid

ROOT = Path(__file__).resolve().parents[2]
SUPPORT = ROOT / "tests/support"
MUTATED = 12_000
MUTATED_TRUST = 3_000
pytestmark = [
    pytest.mark.long,
    pytest.mark.claim("C98"),
    pytest.mark.claim("C238"),
    pytest.mark.timeout(300),
]

HAND_MADE = (
    "a: 1\nb: [1, two, 3.5]\nc:\n- x: 1\n  y: no\n- ~\nd: {e: f, 'g': \"h\"}\n",
    "- a\n- - b\n  - c: 1\n    d: [\n      e, f,\n    ]\n-\n- # none\n",
    "a: \"\\u00e9\\n\" # comment\n# another\nb: 'it''s # not'\n\"c\": -1e-5\n\n\nd:\n  e:\n    f\n",
    '{"a": [1, 2.50, true, null, {"b": "\\ud83e\\uddec"}],\n "c":"d"}\n',
    "---\na: https://x.example:1/y?z#w\nb: a, b [c] {d}\nc: -x\nd: 'x'\n",
    "a: one two  three\nb: 12:30\nc: 0x10\nd: 007\ne: .5\nf: 1_000\ng: 2026-01-01\n",
    "a: 9007199254740991\nb: -9007199254740991\nc: 1e400\nd: 12345678901234567890\n",
    "'': ''\n\"\": x\n'a b': [[], {}, [{}]]\n",
)
TOKENS = (
    *("\r", "\r\n", "\u0085", "\u2028", "\u2029", "\v", "\f", "\t", "\ufeff", "\x00", "\u00a0"),
    *("\n", "\n ", "\n  ", "\n- ", "\n#", " ", "  ", " #", "#", ": ", ":", ",", "-", "- ", "? "),
    *("'", '"', "''", '""', "\\", "\\n", "\\x41", "\\u0041", "\\ud800", "\\e", "`", "@", "%", "="),
    *("[", "]", "{", "}", "[]", "{}", "&a ", "*a", "!", "!!str ", "|", ">", "|\n  ", "<<: ", "<<"),
    *("---", "---\n", "\n---\n", "...", "\n...\n", "%YAML 1.1\n", "~", "null", "true", "False"),
    *("0", "-0", "+1", "01", "1.", ".5", "1e5", "1E+5", "1e400", "1e-400", "0o7", "0x1f", "1_0"),
    *("9007199254740992", "9007199254740993", "123456789012345678901234567890", "-1", "inf"),
    *(".inf", ".nan", "yes", "a", "b: c", "a: 1\n", "\u00e9", "e\u0301", "\u6f22", "\u202e"),
    *("\u2800", "\U0001f9ec", "x" * 1100),
)


def mutated(texts: Sequence[str], count: int, seed: int) -> Iterable[str]:
    """The texts, and texts made of them by a few changes each, mostly at places that matter."""
    seeded = random.Random(seed)  # noqa: S311  # no secret
    yield from texts
    for _ in range(count):
        text = seeded.choice(texts)
        lines = text.split("\n")
        if len(lines) > 12:  # a part of a long document, so that a change meets what follows
            at = seeded.randrange(len(lines) - 8)
            text = "\n".join(lines[at : at + seeded.randrange(1, 9)])
        for _ in range(seeded.randrange(1, 5)):
            at = seeded.randrange(len(text) + 1)
            end = at + seeded.choice((0, 0, 0, 1, 1, 2, 5))
            text = text[:at] + seeded.choice((*TOKENS, "")) + text[end:]
        yield text


def asked_of(driver: str, lines: Iterable[str]) -> list[str | None]:
    return judge(SUPPORT / driver, lines, seconds=240)


def ours(data: bytes) -> str | None:
    try:
        value = parse_yaml(data, error=RecipeInvalid, what="text", max_bytes=1 << 20)
    except RecipeInvalid:
        return None
    return canonical_json(value).decode()


def generals(data: bytes) -> str | None:
    try:
        value = parse_foreign_yaml(data, error=RecipeInvalid, what="text", max_bytes=1 << 20)
    except RecipeInvalid:
        return None
    # Where YAML has the halves of a pair, JSON has its character.
    text = json.dumps(value).encode()
    return canonical_json(json.loads(text)).decode()


def compared(texts: Iterable[str | bytes]) -> int:
    """Both readers read each text alike, or both refuse it; returns how many they read."""
    data = [text if isinstance(text, bytes) else text.encode() for text in texts]
    theirs = asked_of("second_yaml.mjs", map(to_base64, data))
    assert len(theirs) == len(data)
    read = 0
    for item, said in zip(data, theirs, strict=True):
        mine = ours(item)
        assert mine == said, item
        if mine is not None:
            read += 1
            assert generals(item) == mine, item
    return read


def documents() -> list[str]:
    recipes = sorted((ROOT / "recipes").glob("*.yaml"))
    presets = [preset_yaml(name) for name in PRESETS]
    return [*HAND_MADE, *presets, *(path.read_text("utf-8") for path in recipes)]


@pytest.mark.parametrize("count", variants([MUTATED // 3, MUTATED], each_time=[MUTATED // 3]))
def test_thousands_of_texts_have_one_meaning_or_none(count: int) -> None:
    texts = list(mutated(documents(), count, seed=36))
    read = compared(texts)
    # Neither nearly all nor nearly none: otherwise the comparison says little.
    assert count // 10 < read < count * 9 // 10


@pytest.mark.parametrize(
    "text",
    [
        "# agreed\rsimulated: accept-insecure\n",
        "a: 1 # agreed\u2028b: 2\n",
        "a: 1 # agreed\u2029b: 2\n",
        "# agreed\u0085compose_hash: any\n",
        "# agreed\vcompose_hash: any\n",
        "a: 'x\ry'\n",
        "a: 'x\u0085y'\n",
        "a: 9007199254740992\n",
        "a: -9007199254740993\n",
        "a: 12345678901234567890123\n",
        "a: 1e400\n",
        'a: "\\x41"\n',
        'a: "\\ud800"\n',
        'a: "x\n  y"\n',
        "a: x\n  y\n",
        "a: |\n  x\n",
        "a: >\n  x\n",
        "a:\tb\n",
        "\ufeffa: b\n",
        "a: b\n...\n",
        "a: b\n--- \nc: d\n",
        "? a\n: b\n",
        "[a: b]\n",
        "{a, b}\n",
        "{a: }\n",
        "a: [b, c\n]\n",
        "1: a\n",
        "null: a\n",
        "<<: a\n",
        "'<<': a\n",
        "a: 1\n'a': 2\n",
        "a: \u202eb\n",
        b"a: \xff\n",
        b"a: \xed\xa0\x80\n",
        f"{'k' * 1001}: 1\n",
        "[" * 25 + "]" * 25,
        "- " * 25 + "a",
        "".join(f"{'  ' * level}a:\n" for level in range(26)),
        "[" + "1, " * 20_000 + "1]",
    ],
    ids=lambda text: ascii(text[:24]),
)
def test_what_readers_of_yaml_read_differently_is_refused_by_both(text: str | bytes) -> None:
    assert compared([text]) == 0


@pytest.mark.parametrize("most", variants([240_000, 900_000], each_time=[240_000]))
def test_long_lines_cost_no_more_than_their_length(most: int) -> None:
    half = most // 2
    long = ["a" * most, "a " * half, "[" + "a" * most, "'" + "''" * (half - 1), '"' * most]
    long += [f"a:{' ' * most}b", f"a: {'x:' * (most // 3)}", f"a: b{' #' * half}", "- " * half]
    compared(long)


def test_what_we_write_is_in_the_subset() -> None:
    values = [
        parse_yaml(text.encode(), error=RecipeInvalid, what="x")
        for text in documents()[len(HAND_MADE) :]
    ]
    odd = {name: name for name in ("", " ", "a: b", "#", "\r", "\u2028", "...", "7e5", "null", "-")}
    texts = [
        yaml_text(value, flow=flow)
        for value in [*values, odd, [odd]]
        for flow in (False, True, None)
    ]
    assert compared(texts) == len(texts)


@pytest.mark.parametrize(
    "count", variants([MUTATED_TRUST // 3, MUTATED_TRUST], each_time=[MUTATED_TRUST // 3])
)
def test_changed_trust_files_are_the_same_to_both(tmp_path: Path, count: int) -> None:
    whole = make_world(tmp_path / "w").trust()
    root = whole.to_dict()["appraisal"]["root"]["insecure_simulator_root"]
    # Other bytes of a certificate are another matter, and most of the text.
    trust = whole.to_yaml().decode().replace(root, "ROOT")
    texts = list(mutated([trust], count, seed=63))
    texts += [
        text + change for text in (trust,) for change in ("# x\rsimulated: refuse\n", "#\u2028")
    ]
    # Parts of the file are none of it: most of these change one place of the whole.
    seeded = random.Random(3)  # noqa: S311  # no secret
    for _ in range(count):
        at = seeded.randrange(len(trust))
        at = seeded.choice((at, trust.index("\n", at)))
        texts.append(trust[:at] + seeded.choice(TOKENS) + trust[at + seeded.randrange(2) :])
    texts = [text.replace("ROOT", root) for text in texts]
    theirs = asked_of("second_trust.mjs", map(json.dumps, texts))
    accepted = 0
    for text, said in zip(texts, theirs, strict=True):
        try:
            document = parse_yaml(
                text.encode(), error=TrustInvalid, what="trust file", max_bytes=1 << 20
            )
            mine = canonical_json(parse_trust(document).to_dict()).decode()
            accepted += 1
        except SealtrainError as error:
            mine = error.code
        assert said == mine, ascii(text)
    assert accepted > 30
