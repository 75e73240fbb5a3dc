"""Parties learn rounds of the recipe's own training; what comes out follows from what went in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from carrying import carries
from collecting import COLLECTING
from training_world import (
    OWNERS,
    checkpoint_store,
    run,
    seal_records,
    sources_of,
    write_records,
)
from variants import variants

from sealtrain.errors import UsageError
from sealtrain.recipe.errors import RecipeInvalid
from sealtrain.training.errors import TrainingDiverged
from sealtrain_together.errors import UpdateRefused
from sealtrain_together.federated.learner import Learner, pool_counts
from sealtrain_together.federated.merging import merge
from sealtrain_together.federated.proximal import keep_near
from sealtrain_together.federated.update import Update, change_norm, decode_state, encode_state

if not COLLECTING:
    import torch
    from learner_world import ATTENTION, PREFIX, Near, Terms, classifier, language
    from safetensors.torch import load

pytestmark = [
    pytest.mark.long,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),
]


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("federated")
    return seal_records(write_records(folder), folder)


def learner(recipe: Any, sealed: dict[str, Any], party: str, terms: Any = None) -> Learner:
    sources = [source for source in sources_of(recipe, sealed) if source.owner == party]
    return Learner(recipe, Path(), sources, party=party, terms=terms or Terms())


def federated(recipe: Any, sealed: dict[str, Any], terms: Any) -> tuple[bytes, list[Learner]]:
    """Every round of a federation in one process; the last adapter and the parties."""
    parties = [learner(recipe, sealed, owner, terms) for owner in OWNERS]
    state = parties[0].initial()
    rank = recipe.peft.r if terms.aggregation == "exact" else None
    for number in range(1, terms.rounds + 1):
        form = parties[0].form
        updates = []
        for owner, party in zip(OWNERS, parties, strict=True):
            learned = party.learn(number, state)
            given = decode_state(learned.state, form)
            updates.append(Update(party=owner, weight=learned.records, state=given))
        before = decode_state(state, form)
        state = encode_state(merge(terms.aggregation, updates, before, rank=rank))
    return state, parties


@pytest.mark.parametrize("kind", variants(["classifier", "language"], each_time=["classifier"]))
def test_a_round_follows_from_the_adapter_alone(kind: str, sealed: dict[str, Any]) -> None:
    recipe = {"classifier": classifier, "language": language}[kind]()
    one, other = (learner(recipe, sealed, OWNERS[0]) for _ in range(2))
    start = one.initial()
    assert start == other.initial()
    first = one.learn(1, start)
    second = one.learn(2, first.state)
    # A party that was gone for the first round, or began anew, learns the same second round.
    assert other.learn(2, first.state) == second
    assert second.state != one.learn(1, first.state).state, "rounds see other rows and rates"
    assert first.records == 40
    assert first.loss is not None


@pytest.mark.claim("C500")
@pytest.mark.claim("C701")
@pytest.mark.parametrize("kind", variants(["classifier", "language"], each_time=["language"]))
def test_a_party_whose_base_is_damaged_sends_neither_update_nor_counts(
    kind: str, sealed: dict[str, Any]
) -> None:
    recipe = {"classifier": classifier, "language": language}[kind]()
    one = learner(recipe, sealed, OWNERS[0])
    start = one.initial()
    with torch.no_grad():
        for parameter in one.model.parameters():
            if not parameter.requires_grad:
                parameter.fill_(float("nan"))
    with pytest.raises(TrainingDiverged, check=carries(check="loss")):
        one.learn(1, start)
    measured = "answers" if kind == "classifier" else "eval_loss"
    with pytest.raises(TrainingDiverged, check=carries(check=measured)):
        one.evaluate(start)


def test_one_party_with_one_round_is_the_training_of_the_recipe(
    sealed: dict[str, Any], tmp_path: Path
) -> None:
    recipe = classifier(
        dropout=0.0,  # the one thing that differs from party to party
        datasets=[{"owner": OWNERS[0], "name": "records", "role": "train"}],
        peft=ATTENTION | {"lora_dropout": 0.0},
    )
    alone = learner(recipe, sealed, OWNERS[0], Terms(rounds=1, local_steps=6))
    learned = alone.learn(1, alone.initial())
    ran = run(recipe, sources_of(recipe, sealed), checkpoint_store(tmp_path / "alone"))
    ours = load(alone.export(learned.state)["adapter_model.safetensors"])
    theirs = load(ran.trained.files["adapter_model.safetensors"])
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize(
    ("peft", "rule"),
    variants(
        [("lora", "exact"), ("lora", "ffa"), ("prefix", "fedavg"), ("lora", "median")],
        each_time=[("lora", "exact"), ("prefix", "fedavg")],
    ),
)
def test_a_federation_of_classifiers_learns_and_is_measured(
    peft: str, rule: str, sealed: dict[str, Any]
) -> None:
    adapter = {"lora": ATTENTION, "prefix": PREFIX}[peft]
    state, parties = federated(classifier(peft=adapter), sealed, Terms(aggregation=rule))
    assert state != parties[0].initial()
    counts = [party.evaluate(state) for party in parties]
    assert counts[1] == {}, "only the first owner has test records"
    metrics = pool_counts(counts)
    assert 0 <= metrics["accuracy"] <= 1
    assert {"f1", "majority"} <= metrics.keys()
    files = parties[0].export(state)
    assert {"adapter_config.json", "adapter_model.safetensors"} <= files.keys()


def test_a_proximal_party_stays_nearer_and_its_pull_is_the_terms_gradient(
    sealed: dict[str, Any],
) -> None:
    recipe = classifier(dropout=0.0, peft=ATTENTION | {"lora_dropout": 0.0})

    def moved(mu: float) -> float:
        one = learner(recipe, sealed, OWNERS[0], Near(proximal_mu=mu))
        return change_norm(decode_state(one.learn(1, one.initial()).state, one.form), one.form)

    assert moved(0.0) == moved(0.0)
    assert moved(1000.0) < moved(10.0) < moved(0.0)
    # By the definition: the gradient of loss + mu/2 |w - w_t|^2, in three passes of one step.
    model = torch.nn.Linear(3, 2)
    rows = torch.randn(6, 3, generator=torch.Generator().manual_seed(1))
    with keep_near(model, 0.7, passes=3):
        start = [parameter.detach().clone() for parameter in model.parameters()]
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.5
        for part in rows.chunk(3):
            (model(part).square().sum() / 3).backward()
    got = [parameter.grad for parameter in model.parameters()]
    distance = sum(
        (parameter - first).square().sum()
        for parameter, first in zip(model.parameters(), start, strict=True)
    )
    loss = model(rows).square().sum() / 3 + 0.35 * distance
    wanted = torch.autograd.grad(loss, list(model.parameters()))
    for value, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(value, other)
    model.zero_grad()
    model(rows).sum().backward()  # closed: the term is gone
    assert torch.equal(model.bias.grad, torch.full((2,), 6.0))


def test_the_start_of_ffa_stays_where_the_recipe_put_it(sealed: dict[str, Any]) -> None:
    terms = Terms(aggregation="ffa")
    one = learner(classifier(), sealed, OWNERS[0], terms)
    assert not any("lora_A" in name for name in one.form)
    before = load(one.export(one.initial())["adapter_model.safetensors"])
    learned = one.learn(1, one.initial())
    after = load(one.export(learned.state)["adapter_model.safetensors"])
    for name in before:
        assert torch.equal(before[name], after[name]) == ("lora_A" in name), name


def test_language_models_are_measured_by_sums(sealed: dict[str, Any]) -> None:
    for columns in ({"prompt": "prompt", "completion": "completion"}, {"text": "text"}):
        recipe = language(columns=columns)
        one = learner(recipe, sealed, OWNERS[0])
        told = one.evaluate(one.initial())
        assert told["records"] == 20
        twice = pool_counts([told, told, {}])
        assert twice["eval_loss"] == pytest.approx(told["sums"]["eval_loss"] / 20)


def test_an_adapter_of_another_recipe_is_refused(sealed: dict[str, Any]) -> None:
    one = learner(classifier(), sealed, OWNERS[0])
    wider = learner(classifier(peft=ATTENTION | {"r": 4}), sealed, OWNERS[0])
    with pytest.raises(UpdateRefused):
        one.learn(1, wider.initial())


def test_what_does_not_go_with_rounds_is_refused(sealed: dict[str, Any]) -> None:
    one = learner(classifier(), sealed, OWNERS[0])
    with pytest.raises(UsageError):
        one.learn(3, one.initial())
    with pytest.raises(UsageError):
        learner(classifier(), sealed, "nobody").learn(1, one.initial())
    with pytest.raises(RecipeInvalid):
        learner(classifier(peft=None), sealed, OWNERS[0])
    with pytest.raises(RecipeInvalid):
        learner(classifier(peft=PREFIX), sealed, OWNERS[0], Terms(aggregation="ffa"))
    for odd in ({"use_dora": True}, {"target_modules": ["word_embeddings"]}):
        for rule in ("exact", "ffa"):
            with pytest.raises(RecipeInvalid):
                learner(classifier(peft=ATTENTION | odd), sealed, OWNERS[0], Terms(2, 3, rule))
    packed = language(trainer={"max_steps": 6, "packing": True}, columns={"text": "text"})
    with pytest.raises(RecipeInvalid):
        learner(packed, sealed, OWNERS[0])
