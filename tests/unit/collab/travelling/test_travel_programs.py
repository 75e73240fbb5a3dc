"""Wide tokens and bfloat16: a travelling run ends with the bits of training in one place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from collecting import COLLECTING
from variants import variants

from sealtrain.errors import DataInvalid
from sealtrain.recipe.errors import ModelInvalid
from sealtrain_together.travelling.program import ProgramSettings, TravellingModel
from sealtrain_together.travelling.schedule import HolderPlan, TravelPlan, TripRotation

if not COLLECTING:
    from travel_world import HOLDERS, PROGRAM, Tokens, TravelWorld, travel_world

WIDE = {"vocab_size": 70_000, "n_embd": 8}
CHANGES: dict[str, dict[str, Any]] = {
    "wide": WIDE,
    "bfloat16": {"dtype": "bfloat16"},
    "both": WIDE | {"dtype": "bfloat16"},
}


def _settings(changes: dict[str, Any]) -> ProgramSettings:
    return ProgramSettings.from_dict(PROGRAM.to_dict() | changes)


def _plan(program: ProgramSettings, world: TravelWorld) -> TravelPlan:
    width = program.token_bytes
    holders = tuple(
        HolderPlan(name=name, tokens=world.tokens[name].size // width, max_tokens=1 << 30)
        for name in HOLDERS
    )
    return TravelPlan(
        program=program, holders=holders, buffer_bytes=world.buffer_bytes, seal_every=2
    )


def _in_one_place(plan: TravelPlan, tokens: dict[str, Tokens]) -> bytes:
    program, rotation, half = TravellingModel(plan.program), TripRotation(plan), 0
    while (trip := rotation.next(half)) is not None:
        chunk = tokens[trip.holder].data[trip.offset : trip.offset + trip.size]
        program.train(memoryview(chunk))
        half = 1 - half
    return program.state()


@pytest.mark.claim("C247")
@pytest.mark.parametrize("name", variants(CHANGES, each_time=["both"]))
def test_a_run_ends_with_the_bits_of_training_in_one_place(name: str) -> None:
    program = _settings(CHANGES[name])
    with travel_world(buffer_bytes=4 * program.step_bytes) as world:
        if program.token_bytes == 4:
            for number, source in enumerate(world.tokens.values()):
                drawn = np.random.default_rng(number)
                source.data = drawn.integers(0, program.vocab_size, 256).astype("<u4").tobytes()
        plan = _plan(program, world)
        with world.orchestrator(plan) as orchestrator:
            state = orchestrator.run()
        assert orchestrator.progress.losses
        assert len(orchestrator.progress.losses) > len(HOLDERS)
        assert state == _in_one_place(plan, world.tokens)


@pytest.mark.claim("C247")
def test_a_wide_token_beyond_the_vocabulary_is_refused() -> None:
    program = _settings(WIDE)
    tokens = np.full(program.step_bytes // 4, 70_000, dtype="<u4").tobytes()
    with pytest.raises(DataInvalid):
        TravellingModel(program).train(memoryview(tokens))


@pytest.mark.claim("C247")
def test_a_state_of_another_type_is_no_state_of_this_program() -> None:
    other = TravellingModel(_settings({"dtype": "bfloat16"}))
    with pytest.raises(ModelInvalid):
        TravellingModel(_settings({}), other.state())
