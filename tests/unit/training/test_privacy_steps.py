"""DP-SGD step by step: one clipped gradient a record, noise on the sum, and nothing else leaves."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from carrying import carries
from collecting import COLLECTING
from training_world import (
    SECRET,
    checkpoint_store,
    private_classify,
    private_sft,
    run,
    seal_records,
    source_of,
    sources_of,
    write_records,
)

from sealtrain.errors import UsageError
from sealtrain.recipe.errors import ModelInvalid
from sealtrain.recipe.privacy import PrivateSgd
from sealtrain.sealing.datakey import DataKey
from sealtrain.training.errors import PrivacyBroken
from sealtrain.training.privacy.accounting import Plan, epsilon_of, make_plan
from sealtrain.training.privacy.noise import NoiseSource

if not COLLECTING:
    import torch

    from sealtrain.training.privacy.steps import RecordGradients, record_losses

pytestmark = [
    pytest.mark.long,
    pytest.mark.claim("C37"),
    pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning"),
]

if not COLLECTING:

    class Net(torch.nn.Module):
        """Layers of kinds that Opacus knows and does not know."""

        def __init__(self) -> None:
            super().__init__()
            self.first = torch.nn.Linear(3, 5)
            self.norm = torch.nn.LayerNorm(5)
            self.scale = Scale(5)
            self.last = torch.nn.Linear(5, 2)

        def forward(self, features: torch.Tensor) -> Any:
            hidden = self.scale(self.norm(torch.tanh(self.first(features))))
            return SimpleNamespace(logits=self.last(hidden))

    class Scale(torch.nn.Module):
        """As RMS norms of language models: a parameter of a class of its own."""

        def __init__(self, width: int) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.linspace(0.5, 2, width))

        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            return self.weight * hidden


def settings(**changed: Any) -> PrivateSgd:
    fields = {"dp": "sgd", "target_epsilon": 8.0, "delta": 1e-4, "accountant": "rdp"} | changed
    return PrivateSgd.model_validate(fields)


def plan(*, noise: float = 0.0, norm: float = 0.3, batch: int = 4) -> Plan:
    return Plan(
        privacy=settings(max_grad_norm=norm),
        noise_multiplier=noise,
        batch=batch,
        steps=10,
        rates=(0.1,),
    )


def noise() -> NoiseSource:
    return NoiseSource(SECRET)


def records(count: int, seed: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    source = torch.Generator().manual_seed(seed)
    return torch.randn(count, 3, generator=source) * 3, torch.arange(count) % 2


def clipped_sum(net: Net, features: torch.Tensor, labels: torch.Tensor, norm: float) -> Any:
    """One record at a time, by autograd."""
    total = {name: torch.zeros_like(parameter) for name, parameter in net.named_parameters()}
    norms = []
    for row, label in zip(features, labels, strict=True):
        net.zero_grad()
        scores = net(row[None]).logits
        torch.nn.functional.cross_entropy(scores, label[None]).backward()
        whole = math.sqrt(
            sum(float(parameter.grad.square().sum()) for parameter in net.parameters())
        )
        norms.append(whole)
        for name, parameter in net.named_parameters():
            total[name] += parameter.grad * min(1.0, norm / whole)
    net.zero_grad()
    return total, norms


def noiseless(net: Net, features: torch.Tensor, labels: torch.Tensor, norm: float) -> Any:
    gradients = RecordGradients(net, plan(norm=norm), noise())
    for at in range(0, len(labels), 4):
        batch = {"features": features[at : at + 4], "labels": labels[at : at + 4]}
        losses = record_losses(net, batch, 0.0)
        losses.sum().backward()
        gradients.take(len(losses))
    gradients.give(step=0)
    gradients.detach()
    return {name: parameter.grad.clone() for name, parameter in net.named_parameters()}


def test_the_sum_is_that_of_each_records_own_clipped_gradient() -> None:
    torch.manual_seed(0)
    net = Net()
    features, labels = records(10)
    _, norms = clipped_sum(net, features, labels, 1.0)
    norm = sorted(norms)[5]  # some are cut, some are not
    expected, _ = clipped_sum(net, features, labels, norm)
    found = noiseless(net, features, labels, norm)
    for name, total in expected.items():
        torch.testing.assert_close(found[name], total / 4, rtol=1e-5, atol=1e-6)


def test_one_record_moves_the_sum_by_no_more_than_the_norm() -> None:
    torch.manual_seed(0)
    net = Net()
    features, labels = records(12)
    features[5] *= 1000
    whole = noiseless(net, features, labels, 0.3)
    for left_out in (0, 5, 11):
        kept = torch.arange(12) != left_out
        without = noiseless(net, features[kept], labels[kept], 0.3)
        moved = sum(float((whole[name] - without[name]).square().sum()) for name in whole)
        assert math.sqrt(moved) * 4 <= 0.3 * (1 + 1e-5)


def test_a_gradient_that_is_not_finite_is_left_out() -> None:
    torch.manual_seed(0)
    net = Net()
    features, labels = records(8)
    kept = torch.arange(8) != 2
    expected = noiseless(net, features[kept], labels[kept], 0.3)
    features[2, 1] = float("inf")
    found = noiseless(net, features, labels, 0.3)
    for name, case in expected.items():
        torch.testing.assert_close(found[name], case)


def test_the_noise_on_the_mean_has_the_planned_deviation() -> None:
    net = torch.nn.Linear(100, 100)
    gradients = RecordGradients(net, plan(noise=2.0, norm=0.5, batch=20), noise())
    gradients.give(step=0)
    drawn = net.weight.grad.numpy()
    assert abs(drawn.std() / (2.0 * 0.5 / 20) - 1) < 0.05
    before = drawn.copy()
    gradients.give(step=1)
    assert abs(np.corrcoef(before.ravel(), net.weight.grad.numpy().ravel())[0, 1]) < 0.05


def test_layers_that_mix_records_are_refused() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    with pytest.raises(ModelInvalid, check=carries(check="privacy", got="1 such layers")):
        RecordGradients(net, plan(), noise())


def test_a_parameter_that_all_records_share_in_one_use_is_refused() -> None:
    class Positions(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(4, 3)

        def forward(self, features: torch.Tensor) -> torch.Tensor:
            return (features + self.table(torch.arange(3)[None, :1])).sum((1, 2))

    net = Positions()
    gradients = RecordGradients(net, plan(), noise())
    net(torch.randn(5, 2, 3)).sum().backward()
    with pytest.raises(ModelInvalid, check=carries(check="privacy", got="table.weight")):
        gradients.take(5)


class Counted:
    def __init__(self, *rows: int) -> None:
        self.batch_rows = rows


def test_the_plan_keeps_to_epsilon_and_wastes_little() -> None:
    sources = [source_of(Counted(200)), source_of(Counted(100, 100), weight=2.0)]
    made = make_plan(settings(target_epsilon=3.0), sources, batch=30, steps=50)
    assert made.rates == (0.05, 0.1)
    first, second = made.costs(sources, 50)
    assert first.epsilon < second.epsilon <= 3.0
    assert second.epsilon > 2.8
    assert second.records == 200
    assert made.costs(sources, 0)[1].epsilon == 0.0
    assert made.costs(sources, 10)[1].epsilon < second.epsilon


def test_noise_that_spends_too_much_is_refused() -> None:
    sources = [source_of(Counted(100))]
    with pytest.raises(
        PrivacyBroken, check=carries(check="privacy.noise_multiplier", got="epsilon 38.32")
    ):
        make_plan(settings(target_epsilon=1, noise_multiplier=0.5), sources, batch=20, steps=50)
    with pytest.raises(PrivacyBroken, check=carries(check="sampling", expected="at most 1")):
        make_plan(settings(), sources, batch=101, steps=50)


def test_accountants_agree_and_bound_the_known_case() -> None:
    # No sampling, one step: the Gaussian mechanism, whose exact epsilon is known in closed form.
    from scipy.optimize import brentq
    from scipy.stats import norm

    sigma, delta = 2.0, 1e-4

    def excess(epsilon: float) -> float:
        low, high = -epsilon * sigma + 1 / (2 * sigma), -epsilon * sigma - 1 / (2 * sigma)
        return float(norm.cdf(low) - math.exp(epsilon) * norm.cdf(high)) - delta

    exact = brentq(excess, 0.1, 10)
    for accountant, slack in (("prv", 0.03), ("rdp", 0.5)):
        found = epsilon_of(settings(accountant=accountant), sigma, 1.0, 1)
        assert exact <= found <= exact + slack


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    paths = write_records(tmp_path_factory.mktemp("records"))
    return dict(seal_records(paths, tmp_path_factory.mktemp("sealed")))


def test_a_private_run_tells_what_it_spent_and_nothing_of_training_records(
    sealed: dict[str, Any], tmp_path: Path
) -> None:
    recipe = private_sft(trainer={"max_steps": 3, "eval_steps": 1})
    ran = run(recipe, sources_of(recipe, sealed), checkpoint_store(tmp_path), secret=SECRET)
    record = ran.trained.privacy
    assert record["dp"] == "sgd"
    assert record["steps"] == 3
    assert 0 < record["epsilon"] <= 8
    assert {dataset["epsilon"] for dataset in record["datasets"]} == {record["epsilon"]}
    assert ran.trained.tokens is None
    left = {name for _, values in ran.history for name in values}
    assert left == {"accuracy", "eval_loss", "majority"}


def test_the_secret_decides_and_the_recipes_seed_does_not_tell(
    sealed: dict[str, Any], tmp_path: Path
) -> None:
    recipe = private_classify(trainer={"max_steps": 2})
    sources = sources_of(recipe, sealed)
    ways = {"a": SECRET, "b": SECRET, "c": DataKey(b"\x08" * 32)}
    weights = [
        run(recipe, sources, checkpoint_store(tmp_path / name), secret=way).weights
        for name, way in ways.items()
    ]
    assert weights[0] == weights[1] != weights[2]


def test_without_a_secret_nothing_is_trained(sealed: dict[str, Any], tmp_path: Path) -> None:
    recipe = private_classify()
    with pytest.raises(UsageError, check=carries(code="usage")):
        run(recipe, sources_of(recipe, sealed), checkpoint_store(tmp_path))


@pytest.mark.parametrize("make", [private_classify, private_sft])
def test_weights_that_stayed_are_no_private_model(
    make: Any, sealed: dict[str, Any], tmp_path: Path
) -> None:
    # So small that no float32 moves: what opacus#820 looked like from outside.
    recipe = make(trainer={"max_steps": 2, "learning_rate": 1e-44, "optim": "sgd"})
    with pytest.raises(PrivacyBroken, check=carries(check="weights")):
        run(recipe, sources_of(recipe, sealed), checkpoint_store(tmp_path), secret=SECRET)


@pytest.mark.claim("C554")
def test_sums_that_differ_in_a_bit_have_noise_that_does_not_cancel() -> None:
    """A step that is repeated on another processor, and one on the same."""
    torch.manual_seed(0)
    net = Net()
    features, labels = records(6)

    def given(scale: float) -> dict[str, torch.Tensor]:
        gradients = RecordGradients(net, plan(noise=1.0), noise())
        losses = record_losses(net, {"features": features, "labels": labels}, 0.0)
        (losses.sum() * scale).backward()
        gradients.take(len(labels))
        gradients.give(step=3)
        gradients.detach()
        return {name: parameter.grad.clone() for name, parameter in net.named_parameters()}

    first, again, elsewhere = given(1.0), given(1.0), given(1.0 + 2.0**-20)
    assert all(torch.equal(first[name], again[name]) for name in first)
    moved = torch.cat([(first[name] - elsewhere[name]).flatten() for name in first])
    deviation = 0.3 / 4  # of the noise on the mean
    assert 0.7 * deviation < float(moved.std()) / math.sqrt(2) < 1.4 * deviation
