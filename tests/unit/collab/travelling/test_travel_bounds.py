"""What holders' data may do to the model: hidden sequences, bounded movement."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from carrying import carries
from collecting import COLLECTING

from sealtrain.errors import UsageError
from sealtrain.recipe.privacy import SequencePrivacy
from sealtrain_together.travelling.bounds import PrivateSteps, bound_moves, epsilon_spent
from sealtrain_together.travelling.program import ProgramSettings, TravellingModel
from sharing.training import turns

if not COLLECTING:
    import torch
    from safetensors.torch import load
    from sharing_world import Held, held
    from travel_world import PROGRAM, plan_of

pytestmark = pytest.mark.claim("C81")

PRIVACY = SequencePrivacy(noise_multiplier=1.0, max_sequence_norm=0.5, delta=1e-5)


def program(random: Any = bytes, **changed: Any) -> TravellingModel:
    return TravellingModel(ProgramSettings(**(PROGRAM.model_dump() | changed)), random=random)


def rows_of(tokens: Any) -> torch.Tensor:
    """The first step in ``tokens``, int64 (sequences, seq_len)."""
    ids = np.frombuffer(tokens[: PROGRAM.step_bytes], dtype="<u2").astype(np.int64)
    return torch.from_numpy(ids).view(-1, PROGRAM.seq_len)


def private_steps() -> tuple[PrivateSteps, Any]:
    model = program().model
    return PrivateSteps(model, PRIVACY, PROGRAM.batch_size, bytes), model


def gradient_of(model: Any) -> torch.Tensor:
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def weights(one: TravellingModel) -> torch.Tensor:
    return torch.cat([each.detach().flatten().clone() for each in one.model.parameters()])


def test_epsilon_is_that_of_one_gaussian_mechanism() -> None:
    def delta_of(epsilon: float, noise: float) -> float:
        # Balle and Wang 2018, theorem 8, for sensitivity 1.
        def normal(x: float) -> float:
            return 0.5 * math.erfc(-x / math.sqrt(2))

        half = 0.5 / noise
        return normal(half - epsilon * noise) - math.exp(epsilon) * normal(-half - epsilon * noise)

    for noise in (0.7, 1.0, 3.0):
        for accountant in ("prv", "rdp"):
            told = epsilon_spent(
                SequencePrivacy(
                    noise_multiplier=noise, max_sequence_norm=1.0, delta=1e-5, accountant=accountant
                )
            )
            assert delta_of(told, noise) <= 1e-5  # not less than it costs
            assert delta_of(0.9 * told, noise) > 1e-5  # and hardly more


def test_first_weights_are_those_of_the_seed_in_every_thread() -> None:
    with ThreadPoolExecutor(4) as threads:
        assert len(set(threads.map(lambda _: program().digest(), range(12)))) == 1


def test_each_sequence_is_in_one_step_of_a_run_at_most() -> None:
    seen = set()
    for trip in turns(plan_of(held())):
        assert trip.offset % PROGRAM.sequence_bytes == 0
        for start in range(trip.offset, trip.offset + trip.size, PROGRAM.sequence_bytes):
            assert (trip.holder, start) not in seen
            seen.add((trip.holder, start))
    assert len(seen) == 38  # every whole step of both


def test_one_sequence_moves_a_sum_by_no_more_than_the_norm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class NoNoise:
        def __init__(self, _key: Any) -> None:
            pass

        def gaussian_noise(self, count: int, *_place: Any) -> Any:
            return torch.zeros(count, dtype=torch.float64).numpy()

    monkeypatch.setattr("sealtrain.training.privacy.noise.NoiseSource", NoNoise)
    sums = []
    for replaced in (Held(1, 32), Held(2, 32)):
        private, model = private_steps()
        tokens = Held(1, 32).data[:32] + replaced.data[32:]  # the second sequence is another
        private.backward(rows_of(tokens))
        sums.append(2 * gradient_of(model))
    apart = float((sums[0] - sums[1]).double().norm())
    assert 0 < apart <= 2 * PRIVACY.max_sequence_norm + 1e-3  # one sum without it, one with another
    assert float(sums[0].double().norm()) <= 2 * PRIVACY.max_sequence_norm + 1e-3


def test_gradients_are_sums_of_cut_sequences_with_noise_of_that_size() -> None:
    tokens = memoryview(Held(1, 32).data)
    quiet = PRIVACY.model_dump() | {"noise_multiplier": 0.1, "max_sequence_norm": 1e-3}
    model = program().model
    PrivateSteps(model, SequencePrivacy(**quiet), PROGRAM.batch_size, bytes).backward(
        rows_of(tokens)
    )
    found = gradient_of(model)

    plain, total = program(), torch.zeros(found.numel(), dtype=torch.float64)
    size = PROGRAM.sequence_bytes
    for start in range(0, PROGRAM.step_bytes, size):
        flat, _loss = plain.gradient(tokens[start : start + size])
        gradient = torch.frombuffer(bytearray(flat), dtype=torch.float32).double()
        total += gradient * min(1.0, 1e-3 / float(gradient.norm()))
    added = found.double() - total / 2
    deviation = 0.1 * 1e-3 / 2
    assert float(added.std()) == pytest.approx(deviation, rel=0.1)
    assert abs(float(added.mean())) < 5 * deviation / math.sqrt(len(added))


def test_private_training_tells_no_loss_and_noise_is_of_its_secret() -> None:
    tokens = memoryview(Held(1, 96).data)
    one, same, other = (
        program(lambda size, byte=byte: bytes([byte]) * size, privacy=PRIVACY) for byte in (1, 1, 2)
    )
    assert one.train(tokens) == (96, 0.0)
    same.train(tokens)
    other.train(tokens)
    assert one.digest() == same.digest()
    assert one.digest() != other.digest()


def test_noise_differs_from_step_to_step() -> None:
    private, model = private_steps()
    rows = rows_of(Held(1, 32).data)
    seen = []
    for _ in range(2):
        private.backward(rows)
        seen.append(gradient_of(model))
        model.zero_grad()
    assert not torch.equal(*seen)


def test_noise_does_not_come_again_when_the_model_goes_back() -> None:
    tokens = memoryview(Held(1, 32).data)
    private = program(privacy=PRIVACY)
    first = private.state()
    ends = []
    for _ in range(2):
        private.restore(first)
        private.train(tokens)
        ends.append(private.digest())
    assert ends[0] != ends[1]


def test_a_private_program_gives_no_bare_gradient() -> None:
    with pytest.raises(UsageError, check=carries(code="usage")):
        program(privacy=PRIVACY).gradient(memoryview(Held(1, 32).data))


def test_private_training_still_learns() -> None:
    walk = (torch.arange(32 * 200) % 64).numpy().astype("<u2").tobytes()
    private = program(
        privacy=SequencePrivacy(noise_multiplier=0.3, max_sequence_norm=1.0, delta=1e-5),
        learning_rate=0.01,
        batch_size=16,
    )
    rows = torch.from_numpy(np.frombuffer(walk[: 16 * 32], "<u2").astype(np.int64)).view(16, 16)

    def loss() -> float:
        with torch.no_grad():
            logits = private.model(input_ids=rows).logits[:, :-1].flatten(0, 1)
            return float(torch.nn.functional.cross_entropy(logits, rows[:, 1:].flatten()))

    before = loss()
    private.train(memoryview(walk))
    assert loss() < 0.75 * before


def test_a_chunk_within_the_bound_trains_as_without_one() -> None:
    tokens = memoryview(Held(1, 96).data)
    free, bound = program(), program(max_update_norm=1e5)
    assert free.train(tokens) == bound.train(tokens)
    assert torch.equal(weights(free), weights(bound))
    assert free.moved is None
    assert bound.moved is not None
    assert bound.moved > 0


def test_a_chunk_that_goes_too_far_is_cut_back_and_leaves_no_moments() -> None:
    tokens = memoryview(Held(1, 96).data)
    one = program(max_update_norm=0.01)
    before, state = weights(one), one.digest()
    one.train(tokens)
    moved = weights(one) - before
    assert float(moved.double().norm()) == pytest.approx(0.01, rel=1e-3)
    assert one.moved is not None
    assert one.moved > 0.1
    assert not one.optimizer.state  # none before, none after
    assert one.digest() != state

    free = program()
    free.train(tokens)
    wanted = weights(free) - before
    cosine = torch.nn.functional.cosine_similarity(moved, wanted, dim=0)
    assert float(cosine) == pytest.approx(1.0, abs=1e-4)


def test_moments_of_earlier_chunks_survive_one_that_goes_too_far() -> None:
    one = program(max_update_norm=2.0)
    one.train(memoryview(Held(1, 32).data))
    kept = {name: each for name, each in load(one.state()).items() if name.startswith("optimizer.")}
    assert kept
    one.train(memoryview(Held(2, 960).data))
    assert one.moved is not None
    assert one.moved > 2.0
    now = load(one.state())
    assert all(torch.equal(now[name], each) for name, each in kept.items())


def test_weights_that_are_no_numbers_go_back() -> None:
    one = program(max_update_norm=1.0)
    before = weights(one)
    with bound_moves(one.model, one.optimizer, 1.0) as moved, torch.no_grad():
        next(one.model.parameters()).fill_(float("nan"))
    assert moved() == -1.0
    assert torch.equal(weights(one), before)


def test_a_state_under_bounds_goes_on_elsewhere() -> None:
    first = program(max_update_norm=2.0)
    first.train(memoryview(Held(1, 32).data))
    second = TravellingModel(first.settings, first.state())
    for item in (first, second):
        item.train(memoryview(Held(2, 64).data))
    assert first.digest() == second.digest()
