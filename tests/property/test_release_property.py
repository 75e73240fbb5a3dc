"""Whatever byte of a release changes on its way, no guest ends up with keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from release_world import ReleaseWorld, Wire, release_world
from variants import examples

from sealtrain.base.canonical import canonical_json
from sealtrain.broker.config import BrokerLimits
from sealtrain.client.grant import KeyRequest, obtain
from sealtrain.consortium.receipts import Anchor
from sealtrain.errors import SealtrainError
from sealtrain.release.decide import advance_anchor
from sealtrain.release.messages import Challenge, ReleaseAnswer, load_message
from sealtrain.sealing.errors import CheckpointRefused

pytestmark = pytest.mark.claim("C18")
BOUNDED = settings(
    max_examples=examples(50),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


class Altering(Wire):
    """Flips one bit of every request, at the same relative place."""

    place: float = 0.0
    bit: int = 0

    def sent(self, cls: Any, request: Any) -> Any:
        return load_message(cls, flipped(canonical_json(request.to_dict()), self.place, self.bit))


class Recorded:
    """A broker client that always gives the challenge and the answer it once heard, bit-flipped."""

    def __init__(self, challenge: Challenge, answer: ReleaseAnswer) -> None:
        self._challenge = challenge
        self.answer = canonical_json(answer.to_dict())

    def challenge(self, *_: str) -> Challenge:
        return self._challenge

    def release(self, _request: object) -> ReleaseAnswer:
        return load_message(ReleaseAnswer, self.answer)


def flipped(data: bytes, place: float, bit: int) -> bytes:
    altered = bytearray(data)
    altered[min(int(place * len(altered)), len(altered) - 1)] ^= 1 << bit
    return bytes(altered)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReleaseWorld]:
    limits = BrokerLimits(posts_per_minute=100_000)
    with release_world(tmp_path_factory.mktemp("property"), limits=limits) as made:
        yield made


@BOUNDED
@given(
    place=st.floats(0, 1, exclude_max=True),
    head=st.booleans(),
    bit=st.integers(0, 7),
)
def test_a_request_with_any_bit_flipped_gives_no_keys(
    world: ReleaseWorld, place: float, head: bool, bit: int
) -> None:
    wire = Altering(broker=world.broker)
    # Evidence is most of the bytes; half of the examples stay in what follows it.
    wire.place, wire.bit = (place, bit) if head else (0.9 + place / 10, bit)
    with pytest.raises(SealtrainError):
        world.obtain(wire=wire)


@BOUNDED
@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_an_answer_with_any_bit_flipped_gives_no_keys(
    recorded: tuple[Recorded, dict[str, Any], bytes], place: float, bit: int
) -> None:
    client, arguments, honest = recorded
    client.answer = flipped(honest, place, bit)
    with pytest.raises(SealtrainError):
        obtain(client, **arguments)


def test_the_recorded_answer_is_good_as_it_is(
    recorded: tuple[Recorded, dict[str, Any], bytes],
) -> None:
    client, arguments, honest = recorded
    client.answer = honest
    assert obtain(client, **arguments).keys


@pytest.fixture(scope="module")
def recorded(world: ReleaseWorld) -> tuple[Recorded, dict[str, Any], bytes]:
    challenges: list[Challenge] = []
    answers: list[ReleaseAnswer] = []

    class Recording(Wire):
        def challenge(self, consortium_id: str, purpose: str) -> Challenge:
            challenges.append(super().challenge(consortium_id, purpose))
            return challenges[-1]

        def release(self, request: Any) -> ReleaseAnswer:
            answers.append(super().release(request))
            return answers[-1]

    collect = world.collect(world.guest())
    arguments: dict[str, Any] = {
        "broker": world.attest(),
        "collect": collect,
        "asked": KeyRequest(
            run_id="cd" * 16,
            recipe_hash=world.locked.recipe_hash,
            datasets=[dataset.asked for dataset in world.sealed.values()],
            resume=False,
        ),
        "random": lambda size: bytes(size),
    }
    obtain(Recording(broker=world.broker), **arguments)
    client = Recorded(challenges[0], answers[0])
    return client, arguments, client.answer


anchors = st.builds(
    Anchor, counter=st.integers(0, 5), digest=st.sampled_from(["aa" * 32, "bb" * 32])
)


@BOUNDED
@given(offered=st.lists(anchors, max_size=12))
def test_an_anchor_never_goes_back_and_never_changes_its_digest(offered: list[Anchor]) -> None:
    anchored: Anchor | None = None
    digests: dict[int, str] = {}
    for item in offered:
        before = anchored
        try:
            anchored = advance_anchor(anchored, item)
        except CheckpointRefused:
            assert before is not None
            assert item.counter <= before.counter
            continue
        assert anchored is not None
        assert before is None or anchored.counter >= before.counter
        assert digests.setdefault(anchored.counter, anchored.digest) == anchored.digest
