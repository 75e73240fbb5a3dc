"""Documents in another spelling end alike in both verifiers, and no spelling passes for another."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from manifest_world import World, make_world
from mutants import Mutants
from node_judges import judge
from second_verifier import Question, compare
from variants import variants

from sealtrain.base.canonical import canonical_json
from sealtrain.base.yamltext import parse_yaml
from sealtrain.errors import SealtrainError, TrustInvalid
from sealtrain.manifest.trust import parse_trust

ROOT = Path(__file__).resolve().parents[2]
DRIVER = ROOT / "tests/support/second_trust.mjs"
pytestmark = [pytest.mark.long, pytest.mark.claim("C238"), pytest.mark.timeout(600)]

NUMBERS = (
    *("1.0", "1e2", "1E2", "-0", "-0.0", "0.0", "01", "+1", "1e400", "1e-400", "1e+21", "1e21"),
    *("9007199254740991", "9007199254740992", "9007199254740993", "100000000000000000"),
    *("100000000000000001", "123456789012345680000", "1e20", "0.1", "0.10", "5e-324"),
    *("1.7976931348623157e+308", "1e-7", "0.0000001", "0.000001", "NaN", "Infinity", "0x10"),
    *("1_000", ".5", "5."),
)
TEXTS = (
    "caf\u00e9",
    "cafe\u0301",
    "\u212b",
    "Gr\u00f6\u00dfe",
    "\u03a9 \u2264 3",
    "\u0436\u0438",
    "\u6f22\u5b57",
    "\u30c7\u30fc\u30bf",
    "\uac00",
    "a\u0323\u0301",
    "a\u0323\u0301\u0300",
    "\u05d0\u05d1",
    "\uff41",
    "\u2800",
    "\U0001f9ec",
    "\U0001faf8",  # of Unicode 15
    "\U0001fadf",  # of Unicode 16
    "\U000323af",  # unassigned for long
    "\u2065",
    "\U00013440",
    "\u061c",
    "\ufe0f",
    "\U000e0101",
    "a\u00a0b",
    "\ufeff",
    "\ufffe",
    "\x7f",
)


@pytest.fixture(scope="module")
def mutants(tmp_path_factory: pytest.TempPathFactory) -> Mutants:
    world = make_world(tmp_path_factory.mktemp("world"))
    return Mutants(world, world.manifest())


def agreed(questions: list[Question], capsys: pytest.CaptureFixture[str]) -> dict[str, int]:
    comparison = compare(questions)
    with capsys.disabled():
        print(f"\n{comparison}")
    assert comparison.disagreements == ()
    assert comparison.crashes == ()
    assert comparison.undecided.total() == 0
    return dict(comparison.verdicts)


PLACEHOLDER = 1234567890123
PLACES: dict[str, Callable[[Any], Any]] = {
    "a metric": lambda predicate: predicate["run"]["metrics"],
    "a count": lambda predicate: predicate["run"],
    "a time": lambda predicate: predicate["compute"],
    "a lock": lambda predicate: predicate["recipe"]["lock"]["recipe"],
    "an entry": lambda predicate: predicate["run_log"]["entries"][0],
    "a fact": lambda predicate: predicate["run_log"]["entries"][0]["fields"],
}
NAMES = {"a metric": "loss", "a count": "steps", "a time": "wall_s", "a lock": "version"}


def spelled(mutants: Mutants, place: str, text: str) -> Question:
    """The statement with one number as it is written, signed and quoted as those bytes."""

    def spell(document: Any) -> bytes:
        return canonical_json(document).replace(str(PLACEHOLDER).encode(), text.encode())

    document = json.loads(json.dumps(mutants.statement))
    at = PLACES[place](document["predicate"])
    at[NAMES.get(place, "seq" if place == "an entry" else "x")] = PLACEHOLDER
    return mutants.question(f"{place} {text}", mutants.requoted(document, spell))


@pytest.mark.parametrize("step", variants([3, 1], each_time=[3]))
def test_numbers_in_every_spelling_end_alike(
    mutants: Mutants, step: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """In every place, or each of them in one place of three."""
    asked = [
        spelled(mutants, place, text)
        for at, place in enumerate(PLACES)
        for text in NUMBERS[at % step :: step]
    ]
    counted = agreed(asked, capsys)
    assert counted["form manifest-malformed"] > 100 / step
    assert len(counted) > 3


def test_a_measurement_beyond_two_to_the_53_is_a_measurement(
    mutants: Mutants, capsys: pytest.CaptureFixture[str]
) -> None:
    """A perplexity of 2e17 says that the model learned nothing, not that the file is broken."""
    document = json.loads(json.dumps(mutants.statement))
    document["predicate"]["compute"]["wall_s"] = 2e17
    asked = mutants.question("2e17", mutants.requoted(document))
    assert b"200000000000000000" in base64.b64decode(
        json.loads(asked.manifest)["bundle"]["dsseEnvelope"]["payload"]
    )
    assert agreed([asked], capsys) == {"verified": 1}


def test_texts_in_every_normal_form_end_alike(
    mutants: Mutants, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []
    for text in TEXTS:
        document = json.loads(json.dumps(mutants.statement))
        document["predicate"]["run"]["environment"]["torch"] = text
        asked.append(mutants.question(f"text {text!a}", mutants.requoted(document)))
        document = json.loads(json.dumps(mutants.statement))
        document["predicate"]["run"]["environment"][text] = "1"
        asked.append(mutants.question(f"key {text!a}", mutants.requoted(document)))
    counted = agreed(asked, capsys)
    assert counted["verified"] >= 16
    assert counted["form manifest-malformed"] >= 12


def bytes_of(mutants: Mutants) -> Iterator[tuple[str, Callable[[bytes], bytes]]]:
    """Other spellings of the statement's bytes, and bytes that are no JSON."""
    yield "a key twice", lambda raw: raw.replace(b'"steps":', b'"steps":1,"steps":', 1)
    yield "a key twice, escaped", lambda raw: raw.replace(b'"steps":', b'"s\\u0074eps":1,"steps":')
    yield "an escape too many", lambda raw: raw.replace(b'"steps"', b'"\\u0073teps"')
    yield "half a character", lambda raw: raw.replace(b'"steps"', b'"\\ud800"')
    yield "the other half", lambda raw: raw.replace(b'"dp":"none"', b'"dp":"\\udc00"')
    yield "halves in reverse", lambda raw: raw.replace(b'"dp":"none"', b'"dp":"\\udc00\\ud800"')
    yield "bytes of a half", lambda raw: raw.replace(b'"none"', b'"\xed\xa0\x80"')
    yield "overlong UTF-8", lambda raw: raw.replace(b'"none"', b'"\xc0\xaf"')
    yield "beyond Unicode", lambda raw: raw.replace(b'"none"', b'"\xf4\x90\x80\x80"')
    yield "a byte order mark", lambda raw: b"\xef\xbb\xbf" + raw
    yield "UTF-16", lambda raw: raw.decode().encode("utf-16")
    yield "a line feed behind", lambda raw: raw + b"\n"
    yield "a NUL behind", lambda raw: raw + b"\0"
    yield "a tab in a text", lambda raw: raw.replace(b'"none"', b'"no\tne"')
    yield "a slash escaped", lambda raw: raw.replace(b"model/", b"model\\/", 1)
    yield "an escape in capitals", lambda raw: raw.replace(b'"none"', b'"\\u000F"')
    yield "another order", lambda raw: b'{"subject":[],' + raw[1:]
    yield "a comment", lambda raw: raw[:-1] + b"/**/}"
    yield "a comma too many", lambda raw: raw[:-1] + b",}"
    yield "single quotes", lambda raw: raw.replace(b'"none"', b"'none'")
    for depth in (64, 65, 2_000, 500_000):
        deep = b"[" * depth + b"]" * depth
        yield f"depth {depth}", lambda raw, deep=deep: raw.replace(b'"none"', deep)
        closed = b'{"a":' * depth + b"1" + b"}" * depth
        yield f"objects {depth}", lambda raw, closed=closed: raw.replace(b'"none"', closed)
    whole = json.dumps(mutants.statement).count(",")
    for values in (249_000 - whole, 250_001):
        many = b"[" + b",".join([b"[]"] * (values // 2)) + b"]"
        yield f"{values} values", lambda raw, many=many: raw.replace(b'"none"', many)


def test_bytes_of_another_spelling_end_alike(
    mutants: Mutants, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [
        mutants.question(
            label,
            mutants.requoted(
                mutants.statement, lambda value, edit=edit: edit(canonical_json(value))
            ),
        )
        for label, edit in bytes_of(mutants)
    ]
    asked += [
        mutants.question(f"file, {label}", edit(mutants.honest))
        for label, edit in bytes_of(mutants)
        if edit(mutants.honest) != mutants.honest
    ]
    counted = agreed(asked, capsys)
    assert set(counted) == {"form manifest-malformed"}


def base64_variants(text: str) -> Iterator[tuple[str, str]]:
    """Texts of which a lenient reader gets the same bytes."""
    bare = text.rstrip("=")
    if bare != text:
        yield "without padding", bare
    yield "padding too much", text + "="
    yield "of URLs", f"{text[:4]}-_{text[6:]}"
    yield "a line feed", text[:64] + "\n" + text[64:]
    yield "a line feed behind", text + "\n"
    yield "a space", " " + text
    yield "a letter beyond ASCII", "\uff21" + text[1:]
    if text.endswith("="):
        letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
        stray = letters[letters.index(bare[-1]) + 1]
        yield "stray bits", bare[:-1] + stray + text[len(bare) :]


def test_base64_of_another_spelling_ends_alike(
    mutants: Mutants, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []
    for path in (
        ("bundle", "dsseEnvelope", "payload"),
        ("bundle", "dsseEnvelope", "signatures", 0, "sig"),
        ("evidence", "payload"),
        ("evidence", "signatures", 0, "sig"),
        ("bundle", "verificationMaterial", "publicKey", "hint"),
    ):
        document = json.loads(mutants.honest)
        at: Any = document
        for step in path[:-1]:
            at = at[step]
        honest = at[path[-1]]
        for label, text in base64_variants(honest):
            at[path[-1]] = text
            asked.append(mutants.question(f"{path} {label}", canonical_json(document)))
        at[path[-1]] = honest
    for label, text in base64_variants(mutants.statement["predicate"]["signer"]["public_key"]):
        document = json.loads(json.dumps(mutants.statement))
        document["predicate"]["signer"]["public_key"] = text
        asked.append(mutants.question(f"guest key {label}", mutants.requoted(document)))
    for label, text in base64_variants(mutants.evidence["cpu"]["quote"]):
        document = json.loads(json.dumps(mutants.evidence))
        document["cpu"]["quote"] = text
        manifest = mutants.signed(mutants.read.signed_statement.payload, canonical_json(document))
        asked.append(mutants.question(f"quote {label}", manifest))
    assert "verified" not in agreed(asked, capsys)


def trust_texts(world: World) -> Iterator[tuple[str, str]]:
    """Trust files as people and programs may write them."""
    document = json.loads(json.dumps(world.trust().to_dict()))
    plain = yaml.safe_dump(document)
    yield "as YAML", plain
    yield "as JSON", json.dumps(document)
    yield "as JSON with spaces", json.dumps(document, indent=2)
    for number in ("1.0", "1e0", "10e-1", "+1", "01", "0x1", "1_0", "-1", "'1'", "true", "~", "1 "):
        yield f"threshold: {number}", plain.replace("threshold: 1", f"threshold: {number}")
        changed = json.dumps(document).replace('"threshold": 1', f'"threshold": {number}')
        yield f'"threshold": {number}', changed
        yield f"version: {number}", plain.replace("\nversion: 1", f"\nversion: {number}")
    yield "a key twice", plain + "version: 1\n"
    yield "an unknown key", plain + "also: 1\n"
    yield "a second document", plain + "---\n" + plain
    yield "a byte order mark", "\ufeff" + plain
    yield "a tab", plain.replace("  threshold", "\tthreshold")
    yield "line feeds of Windows", plain.replace("\n", "\r\n")
    yield "an anchor", plain.replace("simulated: ", "simulated: &a ")
    yield "a tag", plain.replace("simulated: ", "simulated: !!str ")
    yield "any recipe", plain.replace(document["recipe_hash"], "any")
    yield (
        "a hash in capitals",
        plain.replace(
            document["recipe_hash"], document["recipe_hash"].upper().replace("0", "A", 1)
        ),
    )
    yield "a hash of digits", plain.replace(document["recipe_hash"], "1" * 64)
    yield (
        "a hash with an exponent",
        plain.replace(document["recipe_hash"], f"{'1' * 20}e{'1' * 43}"),
    )
    yield "a hash of wide digits", plain.replace(document["recipe_hash"], "\uff11" * 64)
    yield "depth", "a: " + "[" * 5000 + "]" * 5000
    yield "empty", ""
    yield "no text", "\x00"


def test_a_trust_file_in_another_spelling_is_read_alike(mutants: Mutants) -> None:
    texts = dict(trust_texts(mutants.world))
    answers = judge(DRIVER, map(json.dumps, texts.values()), seconds=60)
    differ, accepted = {}, 0
    for (label, text), theirs in zip(texts.items(), answers, strict=True):
        try:
            read = parse_yaml(
                text.encode("utf-8", "surrogatepass"), error=TrustInvalid, what="trust file"
            )
            ours = canonical_json(parse_trust(read).to_dict()).decode()
        except SealtrainError as error:
            ours = error.code
        accepted += theirs == ours != "trust-invalid"
        # It may refuse a spelling that no trust file needs; it reads none as another value.
        if theirs not in (ours, "trust-invalid"):
            differ[label] = (ours, theirs)
    assert differ == {}
    assert accepted > 4
