"""The chain's word in a manifest: what is altered, stale or not named, both verifiers refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from chain_word_world import State, state_of, trusted_chain
from manifest_world import NOW, RELEASED, World, make_world
from release_world import chain_file
from second_verifier import Question, own_answer, second_answers
from world import OWNERS

from sealtrain.base.clock import to_rfc3339
from sealtrain.base.models import load_model
from sealtrain.base.yamltext import parse_yaml
from sealtrain.cli.trust import TrustedChainOptions
from sealtrain.consortium.chainword import ChainWord
from sealtrain.consortium.receipts import Lease
from sealtrain.errors import TrustInvalid, UsageError
from sealtrain.manifest.limits import chain_is_open
from sealtrain.manifest.trust import parse_trust
from sealtrain.signing.errors import StatementInvalid

pytestmark = pytest.mark.claim("C581")

REMOVED = "5f" * 32


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))


def asked(world: World, label: str, trust: dict[str, Any] | None, *words: Any) -> Question:
    """A manifest whose release, and each renewal after it, carries a word."""
    receipts = []
    for number, word in enumerate(words):
        more: dict[str, Any] = {}
        if word is not None:
            more["chain"] = load_model(ChainWord, word, StatementInvalid, "word")
        if number:
            at = RELEASED + 60 * number
            more |= {
                "kind": "renewal",
                "datasets": (),
                "released_at": to_rfc3339(at),
                "lease": Lease(
                    lease_id=receipts[0].lease.lease_id, not_after=to_rfc3339(at + 3600)
                ),
            }
        receipts.append(world.receipt(**more))
    kept = world.releases
    world.releases = world.record(*receipts)
    try:
        manifest = world.manifest(lambda facts: facts.update(releases=world.releases))
    finally:
        world.releases = kept
    changed = {} if trust is None else {"chain": trust}
    return Question(
        label=label, manifest=manifest, trust=world.trust(**changed), artefacts=None, now=NOW
    )


def flipped(node: str) -> str:
    return node[:20] + f"{int(node[20], 16) ^ 1:x}" + node[21:]


def good(world: World) -> list[tuple[str, dict[str, Any] | None, tuple[Any, ...]]]:
    owners, app = state_of(world), state_of(world, "dstack-app")
    later = state_of(world, time=RELEASED + 30)
    both = trusted_chain(owners, blocks=[owners.block, later.block])
    return [
        ("no chain at all", None, (None,)),
        ("owners decide", trusted_chain(owners), (owners.word(),)),
        ("dstack's contract", trusted_chain(app), (app.word(),)),
        ("a release and a renewal", both, (owners.word(), later.word())),
        ("the trust file names no chain", None, (owners.word(),)),
    ]


def bad(world: World) -> list[tuple[int, str, str, dict[str, Any] | None, tuple[Any, ...]]]:
    """Number, name, code; the trust file's chain; a word of each receipt."""
    owners, app = state_of(world), state_of(world, "dstack-app")
    word, trust = owners.word(), trusted_chain(owners)
    stale = state_of(world, time=RELEASED - 1000)
    early = state_of(world, time=RELEASED + 700)
    ended = state_of(world, until=RELEASED - 1)
    gone = State(owners.contract, "owners", RELEASED - 60)
    other = "0x" + "01" * 20

    def changed(name: str) -> dict[str, Any]:
        nodes = word[name]
        return word | {name: [*nodes[:-1], flipped(nodes[-1])]}

    return [
        (88, "an altered storage proof", "proof-invalid", trust, (changed("slot"),)),
        (88, "an altered proof of the account", "proof-invalid", trust, (changed("account"),)),
        (88, "and no trust in a chain", "proof-invalid", None, (changed("slot"),)),
        (88, "another contract of the state", "proof-invalid", trust,
         (word | {"contract": other},)),
        (88, "the slot of another hash", "proof-invalid", trust, (owners.word(REMOVED),)),
        (88, "a hash that the state does not have", "proof-invalid", trust,
         (word | {"slot": gone.word()["slot"]},)),
        (88, "an altered header", "proof-invalid", trust,
         (word | {"header": word["header"] + "00"},)),
        (88, "an altered word of a renewal", "proof-invalid", trust, (word, changed("slot"))),
        (89, "a block that is not named", "trust-mismatch",
         trusted_chain(owners, blocks=["ab" * 32]), (word,)),
        (89, "a block of a renewal that is not named", "trust-mismatch", trust,
         (word, stale.word())),
        (89, "another chain", "trust-mismatch", trusted_chain(owners, chain_id=1), (word,)),
        (89, "another contract", "trust-mismatch", trusted_chain(owners, contract=other), (word,)),
        (89, "other code", "trust-mismatch", trusted_chain(owners, code_hash="ab" * 32), (word,)),
        (89, "another kind", "trust-mismatch", trusted_chain(app), (word,)),
        (89, "another implementation", "trust-mismatch", trusted_chain(app, implementation=other),
         (app.word(),)),
        (90, "a stale block", "chain-refused", trusted_chain(stale), (stale.word(),)),
        (90, "a block from after the release", "chain-refused", trusted_chain(early),
         (early.word(),)),
        (90, "votes that had ended", "chain-refused", trusted_chain(ended), (ended.word(),)),
        (90, "votes that had ended, and no trust in a chain", "chain-refused", None,
         (ended.word(),)),
        (90, "a receipt without a word", "chain-refused", trust, (None,)),
        (90, "a renewal without a word", "chain-refused", trust, (word, None)),
    ]  # fmt: skip


def bad_questions(world: World, *numbers: int) -> list[tuple[str, str, Question]]:
    """Name, code and question of each bad case of these numbers."""
    return [
        (name, code, asked(world, name, trust, *words))
        for number, name, code, trust, words in bad(world)
        if number in numbers
    ]


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(88, marks=pytest.mark.negative(88)),
        pytest.param(89, marks=pytest.mark.negative(89)),
        pytest.param(90, marks=pytest.mark.negative(90)),
    ],
)
def test_a_word_that_does_not_hold_is_refused(number: int, world: World) -> None:
    for name, code, question in bad_questions(world, number):
        refusal = own_answer(question).refusal
        assert refusal is not None, name
        assert (refusal.code, refusal.exit_code) == (code, 3), name


@pytest.mark.needs("node")
def test_the_second_verifier_refuses_the_same_words(world: World) -> None:
    cases = bad_questions(world, 88, 89, 90)
    answers = second_answers(question for _name, _code, question in cases)
    for (name, code, _question), answer in zip(cases, answers, strict=True):
        told = (answer["verdict"], answer["check"], answer["code"])
        assert told == ("refused", "releases", code), name


def test_a_word_that_holds_is_verified_and_never_silently(world: World) -> None:
    block = state_of(world).block
    for name, trust, words in good(world):
        report = own_answer(asked(world, name, trust, *words))
        assert report.refusal is None, (name, report.refusal)
        said = [limit for limit in report.limits if block in limit]
        is_open = trust is None and words != (None,)
        assert len(said) == is_open, name
        assert chain_is_open(report.trust, report.facts.receipts or ()) is is_open, name


@pytest.mark.needs("node")
def test_the_second_verifier_verifies_the_same_words_and_lists_the_same_blocks(
    world: World,
) -> None:
    cases = good(world)
    answers = second_answers(asked(world, name, trust, *words) for name, trust, words in cases)
    for (name, trust, words), answer in zip(cases, answers, strict=True):
        assert answer["verdict"] == "verified", (name, answer)
        found = [entry["block"] for entry in answer["chain"]]
        is_open = trust is None and words != (None,)
        assert found == ([state_of(world).block] if is_open else []), name


@pytest.mark.parametrize(
    "changed",
    [
        {"blocks": []},
        {"blocks": ["ab" * 32] * 2},
        {"implementation": "0x" + "12" * 20},
        {"max_age_seconds": 0},
        {"contract": "0x" + "AB" * 20},
        {"more": 1},
    ],
)
def test_a_trust_file_names_its_chain_whole(world: World, changed: dict[str, Any]) -> None:
    document = world.trust_document(chain=trusted_chain(state_of(world), **changed))
    with pytest.raises(TrustInvalid):
        parse_trust(document)


def test_a_chain_file_and_blocks_make_what_a_trust_file_names(world: World, tmp_path: Path) -> None:
    path = tmp_path / "chain.yaml"
    path.write_text(chain_file(*OWNERS).to_yaml())
    block = state_of(world).block
    made = TrustedChainOptions(chain=path, blocks=[f"0x{block.upper()}"]).read_chain()
    assert made is not None
    assert made.blocks == (block,)
    assert made.contract == chain_file(*OWNERS).contract
    trust = world.trust().model_copy(update={"chain": made})
    assert parse_trust(parse_yaml(trust.to_yaml(), error=TrustInvalid, what="trust")) == trust
    assert TrustedChainOptions().read_chain() is None
    for options in (TrustedChainOptions(chain=path), TrustedChainOptions(blocks=[block])):
        with pytest.raises(UsageError):
            options.read_chain()
    with pytest.raises(TrustInvalid):
        TrustedChainOptions(chain=path, blocks=["ab"]).read_chain()
