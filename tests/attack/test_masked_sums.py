"""A lead that is not honest, and parties that die or lie, in masked sums (spec/masked-sums.md)."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from carrying import carries
from collecting import COLLECTING
from masks_world import (
    BROKER,
    RUN_ID,
    STATE,
    MasksWorld,
    facts,
    introduction,
    masks_world,
    owner_id,
)
from world import signer

from sealtrain.base.canonical import parse_json
from sealtrain.base.encoding import to_base64
from sealtrain.base.secret import Secret
from sealtrain.consortium.receipts import ReleasedDataset
from sealtrain.errors import ChannelBroken, MasksRefused, SealtrainError, UpdateRefused
from sealtrain.keys.shares import split_key
from sealtrain.sealing.datakey import DataKey
from sealtrain.sealing.hpke import HpkePrivateKey
from sealtrain.signing.parties import party_run_id
from sealtrain_collab.federated.masks.introductions import peer_key
from sealtrain_collab.federated.masks.lead import Summing
from sealtrain_collab.federated.masks.messages import Introduction, Task
from sealtrain_collab.federated.masks.party import Revealed
from sealtrain_collab.federated.masks.ring import encode

if not COLLECTING:
    from scipy.stats import chisquare, pearsonr

BOUND = 2.0**-25 + 2.0**-40
"""Of the mean: half a step of the fixed point, and rounding in float64."""

ATTEMPT = "5a" * 16


@pytest.fixture
def world(tmp_path: Path) -> MasksWorld:
    return masks_world(tmp_path)


def near(found: Any, clear: Any) -> bool:
    return bool(np.abs(found.change - clear).max() <= BOUND)


def bits_are_uniform(vector: Any) -> bool:
    """Every byte of the elements is uniform, by a test that fails one time in a million."""
    counts = np.bincount(np.frombuffer(vector.tobytes(), np.uint8), minlength=256)
    return bool(chisquare(counts).pvalue > 1e-6)


# What the lead sees


@pytest.mark.claim("C253")
def test_a_masked_vector_is_uniform_and_tells_nothing_of_the_update(tmp_path: Path) -> None:
    world = masks_world(tmp_path, numbers=100_000)
    world.opened()
    for party in world.parties:
        bare = encode(world.changes[party], world.weights[party])
        assert not bits_are_uniform(bare)  # the test can tell an update
        assert bits_are_uniform(world.seen[party])
        masked = world.seen[party][:-1].astype(np.float64)
        assert abs(pearsonr(masked, world.changes[party]).statistic) < 0.02
    # Nor do any of them together, but all: every mask but one pair's is still in a partial sum.
    for left_out in world.parties:
        part = sum(world.seen[party] for party in world.parties if party != left_out)
        assert bits_are_uniform(part)


@pytest.mark.claim("C253")
def test_one_update_looks_different_in_every_round_and_attempt(world: MasksWorld) -> None:
    seen = []
    for number in (1, 2, 2):
        world.hold(number)
        world.upto(world.summing(number), "upload", number=number)
        seen.append(world.seen[world.parties[0]])
    for first, second in ((0, 1), (1, 2), (0, 2)):
        assert not (seen[first] == seen[second]).any()
        assert bits_are_uniform(seen[first] - seen[second])


@pytest.mark.claim("C253")
def test_no_secret_of_a_party_stands_in_what_the_lead_carries(world: MasksWorld) -> None:
    """Halves and envelopes open for their receivers alone."""
    carried: list[str] = []

    def note(step: str, party: str, words: dict[str, Any], data: bytes) -> Any:
        carried.append(str(words))
        return words, data

    summing = world.summing()
    world.upto(summing, "upload", on=note)
    assert "mnemonic" not in "".join(carried)
    body = Task.read(summing.share()[world.parties[0]])
    other = HpkePrivateKey(Secret(os.urandom(32)))
    assert all(_closed(other, text) for text in body.sealed.values())


def _closed(key: HpkePrivateKey, text: str) -> bool:
    from sealtrain.base.encoding import from_base64

    try:
        key.open(from_base64(text), info=b"")
    except SealtrainError:
        return True
    return False


@pytest.mark.claim("C253")
@pytest.mark.parametrize(("count", "threshold"), [(2, 2), (3, 2), (7, 4), (16, 9)])
def test_the_sum_is_the_mean_in_the_clear_within_the_bound(
    tmp_path: Path, count: int, threshold: int
) -> None:
    world = masks_world(tmp_path, count, threshold=threshold, least=threshold)
    assert near(world.opened(), world.mean())


@pytest.mark.claim("C253")
def test_the_largest_changes_and_weights_stay_in_the_ring(tmp_path: Path) -> None:
    world = masks_world(tmp_path, 16, threshold=9, least=9, numbers=4)
    for party in world.parties:
        world.changes[party] = np.array([1024.0, -1024.0, 2.0**-24, -(2.0**-24)])
        world.weights[party] = 1 << 24
    world.hold()
    found = world.opened()
    assert found.change.tolist() == [1024.0, -1024.0, 2.0**-24, -(2.0**-24)]
    assert found.weight == 16 << 24


@pytest.mark.claim("C255")
@pytest.mark.parametrize("bad", [1024.001, -1025.0, np.inf, -np.inf, np.nan])
def test_a_number_that_does_not_fit_is_refused_by_its_party(bad: float) -> None:
    with pytest.raises(UpdateRefused, check=carries(check="range")):
        encode(np.array([0.0, bad]), 1)


@pytest.mark.claim("C255")
@pytest.mark.parametrize("weight", [0, -1, (1 << 24) + 1])
def test_a_weight_that_does_not_fit_is_refused_by_its_party(weight: int) -> None:
    with pytest.raises(UpdateRefused, check=carries(check="records")):
        encode(np.array([0.0]), weight)


# Parties that die


@pytest.mark.claim("C255")
@pytest.mark.parametrize("step", ["introduce", "share", "upload", "agree", "unmask"])
def test_a_party_that_dies_at_any_step_is_left_out_or_counts_whole(
    world: MasksWorld, step: str
) -> None:
    dead = world.parties[1]

    def dies(at: str, party: str, words: dict[str, Any], data: bytes) -> Any:
        return None if party == dead and at in later else (words, data)

    steps = ["introduce", "share", "upload", "agree", "unmask"]
    later = steps[steps.index(step) :]
    summing = world.summing()
    for name in ("introduce", "share", "upload"):
        world.step(summing, name, getattr(summing, name)(), on=dies)
    alive = frozenset(world.parties) - ({dead} if step in steps[:3] else set())
    world.step(summing, "agree", summing.agree(alive), on=dies)
    world.step(summing, "unmask", summing.unmask(), on=dies)
    assert near(summing.summed(world.weights), world.mean(*sorted(alive)))


@pytest.mark.claim("C255")
def test_one_whose_vector_came_and_who_left_is_not_opened(world: MasksWorld) -> None:
    late = world.parties[3]
    summing = world.summing()
    world.upto(summing, "upload")
    world.step(summing, "agree", summing.agree(frozenset(world.parties) - {late}))
    opened: dict[str, Any] = {}

    def keep(step: str, party: str, words: dict[str, Any], data: bytes) -> Any:
        opened[party] = words
        return words, data

    world.step(summing, "unmask", summing.unmask(), on=keep)
    assert near(summing.summed(world.weights), world.mean(*world.parties[:3]))
    # Its own mask stays on its vector: nobody gave a share of it, and no party both shares.
    assert all(late not in one["own"] and late in one["pair"] for one in opened.values())
    assert all(not set(one["own"]) & set(one["pair"]) for one in opened.values())


@pytest.mark.claim("C255")
def test_fewer_than_the_threshold_open_nothing(world: MasksWorld) -> None:
    summing = world.summing()
    world.upto(summing, "agree")
    for party, body in list(summing.unmask().items())[:2]:
        summing.take("unmask", party, *world.masks[party].answer(1, body))
    with pytest.raises(UpdateRefused, check=carries(check="mask shares")):
        summing.summed(world.weights)


# A lead that is not honest


def honest(party: str) -> Introduction:
    return introduction(party, HpkePrivateKey(Secret(os.urandom(32))))


def of_own_key(party: str) -> Introduction:
    """The lead's own key under a true receipt."""
    true, false = honest(party), honest(party)
    return true.model_copy(update={"transcript": false.transcript})


FALSE: dict[str, tuple[Callable[[str], Introduction], str]] = {
    "a key of the lead's own": (of_own_key, "introduction transcript"),
    "a broker of the lead's own": (
        lambda party: introduction(party, _key(), by=signer("the lead")),
        "introduction broker",
    ),
    "another party's receipt": (
        lambda party: honest("clinic-00").model_copy(update={"party": party}),
        "introduction run",
    ),
    "another owner's data": (
        lambda party: introduction(
            party,
            _key(),
            datasets=(
                ReleasedDataset(
                    dataset_id="11" * 16, owner_id=owner_id("clinic-00"), root="22" * 32
                ),
            ),
        ),
        "introduction owner",
    ),
    "of another run": (
        lambda party: introduction(party, _key(), run_id=party_run_id("00" * 16, party)),
        "introduction run",
    ),
    "of another recipe": (
        lambda party: introduction(party, _key(), recipe_hash="00" * 32),
        "introduction recipe hash",
    ),
    "of other code": (
        lambda party: introduction(party, _key(), compose_hash="00" * 32),
        "introduction compose hash",
    ),
    "a renewal": (
        lambda party: introduction(party, _key(), kind="renewal"),
        "introduction kind",
    ),
    "hardware among simulators": (
        lambda party: introduction(party, _key(), simulated=False),
        "introduction simulated",
    ),
    "a signature that is none": (
        lambda party: honest(party).model_copy(update={"broker_key": to_base64(bytes(32))}),
        "introduction broker",
    ),
}


def _key() -> HpkePrivateKey:
    return HpkePrivateKey(Secret(os.urandom(32)))


@pytest.mark.claim("C254")
@pytest.mark.parametrize("name", FALSE)
def test_a_lead_that_introduces_itself_as_a_party_is_refused(world: MasksWorld, name: str) -> None:
    make, check = FALSE[name]
    victim, other = world.parties[0], world.parties[2]
    summing = world.summing(1, **{other: make(other)})
    with pytest.raises(MasksRefused, check=carries(check=check, owner=other)):
        world.masks[victim].answer(1, summing.introduce()[victim])


@pytest.mark.claim("C254")
def test_a_receipt_that_was_altered_is_refused(world: MasksWorld) -> None:
    other = world.parties[1]
    true = honest(other)
    receipt = true.receipt | {"payload": honest(other).receipt["payload"]}
    with pytest.raises(MasksRefused, check=carries(owner=other)):
        peer_key(true.model_copy(update={"receipt": receipt}), facts(world.parties))


@pytest.mark.claim("C254")
def test_a_stranger_and_a_party_without_itself_are_refused(world: MasksWorld) -> None:
    victim = world.parties[0]
    strangers = world.summing(1, **{"mallory": honest("mallory")})
    with pytest.raises(MasksRefused, check=carries(check="introduction party")):
        world.masks[victim].answer(1, strangers.introduce()[victim])
    another_me = world.summing(1, **{victim: honest(victim)})
    with pytest.raises(MasksRefused, check=carries(check="members")):
        world.masks[victim].answer(1, another_me.introduce()[victim])


@pytest.mark.claim("C254")
def test_a_lead_that_swaps_sealed_halves_or_envelopes_is_refused(world: MasksWorld) -> None:
    first, second, third = world.parties[:3]
    summing = world.summing()
    world.upto(summing, "introduce")
    swapped = Task.read(summing.share()[first])
    sealed = swapped.sealed | {second: swapped.sealed[third], third: swapped.sealed[second]}
    with pytest.raises(ChannelBroken, check=carries(check="mask half")):
        world.masks[first].answer(1, swapped.model_copy(update={"sealed": sealed}).to_bytes())
    summing = world.summing()
    world.upto(summing, "share")
    swapped = Task.read(summing.upload()[first])
    sealed = swapped.sealed | {second: swapped.sealed[third]}
    with pytest.raises(ChannelBroken, check=carries(check="mask envelope", owner=second)):
        world.masks[first].answer(1, swapped.model_copy(update={"sealed": sealed}).to_bytes())


@pytest.mark.claim("C254")
def test_a_lead_that_seals_halves_of_its_own_reads_no_envelope(world: MasksWorld) -> None:
    """It knows every key that others send, and still not the half that the party drew."""
    victim, other = world.parties[:2]
    old = world.summing()
    world.upto(old, "introduce")
    fresh = world.summing()
    world.upto(fresh, "introduce")
    # Halves of the attempt before are sealed for that attempt.
    stale = Task.read(old.share()[victim]).sealed
    task = Task.read(fresh.share()[victim])
    mixed = task.model_copy(update={"sealed": task.sealed | {other: stale[other]}})
    with pytest.raises(ChannelBroken, check=carries(check="mask half", owner=other)):
        world.masks[victim].answer(1, mixed.to_bytes())


@pytest.mark.claim("C254")
def test_a_lead_that_shows_two_sets_of_survivors_gets_no_share(tmp_path: Path) -> None:
    """Of four parties, two are told that the third is gone, two that the fourth is."""
    world = masks_world(tmp_path, 4, threshold=3, least=3)
    a, b, c, d = world.parties
    summing = world.summing()
    world.upto(summing, "upload")
    tags: dict[str, dict[str, str]] = {}
    told = {a: (a, b, c), b: (a, b, c), c: (a, c, d), d: (a, c, d)}
    for party, survivors in told.items():
        task = Task(step="agree", attempt=_attempt(summing), survivors=survivors)
        tags[party] = world.masks[party].answer(1, task.to_bytes())[0]["tags"]
    for party in world.parties:
        given = {other: tags[other][party] for other in told if party in tags[other]}
        task = Task(step="unmask", attempt=_attempt(summing), tags=given)
        # Two of them hear of the other set; the others of too few who agree.
        check = "survivors" if party in (a, c) else "threshold"
        with pytest.raises(MasksRefused, check=carries(check=check)):
            world.masks[party].answer(1, task.to_bytes())


@pytest.mark.claim("C254")
def test_a_lead_that_leaves_out_codes_gets_no_share(world: MasksWorld) -> None:
    summing = world.summing()
    world.upto(summing, "agree")
    party, body = next(iter(summing.unmask().items()))
    task = Task.read(body)
    one = dict(list(task.tags.items())[:1])
    with pytest.raises(MasksRefused, check=carries(check="threshold", got="2")):
        world.masks[party].answer(1, task.model_copy(update={"tags": one}).to_bytes())


@pytest.mark.claim("C254")
def test_a_lead_gets_shares_once_in_an_attempt(world: MasksWorld) -> None:
    """The same request is answered the same, for a party that the network lost; no other is."""
    summing = world.summing()
    world.upto(summing, "agree")
    party, body = next(iter(summing.unmask().items()))
    first = world.masks[party].answer(1, body)
    assert world.masks[party].answer(1, body) == first
    task = Task.read(body)
    fewer = task.model_copy(update={"tags": dict(list(task.tags.items())[1:])})
    with pytest.raises(MasksRefused, check=carries(check="step")):
        world.masks[party].answer(1, fewer.to_bytes())
    others = Task(step="agree", attempt=task.attempt, survivors=world.parties[:3])
    with pytest.raises(MasksRefused, check=carries(check="step")):
        world.masks[party].answer(1, others.to_bytes())


@pytest.mark.claim("C254")
def test_two_sums_of_one_round_are_never_opened(world: MasksWorld) -> None:
    """Their difference would be the update of the party that is in one of them."""
    gone = world.parties[3]
    assert near(world.opened(), world.mean())
    summing = world.summing()
    world.upto(summing, "upload")
    world.step(summing, "agree", summing.agree(frozenset(world.parties) - {gone}))
    for party, body in summing.unmask().items():
        with pytest.raises(MasksRefused, check=carries(check="second sum")):
            world.masks[party].answer(1, body)
    # Nor after every guest was started again, nor by going back to an earlier round.
    for party in world.parties:
        world.start(party)
    world.hold()
    summing = world.summing()
    world.upto(summing, "upload")
    world.step(summing, "agree", summing.agree(frozenset(world.parties) - {gone}))
    with pytest.raises(MasksRefused, check=carries(check="second sum")):
        world.step(summing, "unmask", summing.unmask())


@pytest.mark.claim("C255")
def test_the_same_sum_is_opened_again_for_a_lead_that_died(world: MasksWorld) -> None:
    first = world.opened()
    again = world.opened()
    assert (first.change == again.change).all()


@pytest.mark.claim("C254")
def test_a_round_is_of_one_adapter(world: MasksWorld) -> None:
    world.opened()
    world.hold(1, "77" * 32)
    with pytest.raises(MasksRefused, check=carries(check="second sum")):
        world.opened()


@pytest.mark.claim("C254")
def test_a_party_without_its_folder_sits_out_what_it_may_have_opened(tmp_path: Path) -> None:
    path = tmp_path / "masked-sums.json"
    record = Revealed(path, RUN_ID, floor=3)
    with pytest.raises(MasksRefused, check=carries(check="second sum")):
        record.note(3, STATE, ("clinic-00",))
    record.note(4, STATE, ("clinic-00",))
    with pytest.raises(MasksRefused, check=carries(check="second sum")):
        Revealed(path, RUN_ID).note(4, STATE, ("clinic-01",))
    with pytest.raises(MasksRefused, check=carries(check="run")):
        Revealed(path, "00" * 16)


@pytest.mark.claim("C254")
@pytest.mark.parametrize("few", ["members", "survivors"])
def test_a_sum_of_fewer_than_the_recipe_says_is_refused(world: MasksWorld, few: str) -> None:
    """A sum of one is that one's update."""
    victim = world.parties[0]
    summing = world.summing()
    if few == "members":
        task = Task.read(summing.introduce()[victim])
        cut = task.model_copy(update={"members": task.members[:2]})
        with pytest.raises(MasksRefused, check=carries(check="members", got="2")):
            world.masks[victim].answer(1, cut.to_bytes())
        return
    world.upto(summing, "upload")
    task = Task(step="agree", attempt=_attempt(summing), survivors=(victim,))
    with pytest.raises(MasksRefused, check=carries(check="survivors", got="1")):
        world.masks[victim].answer(1, task.to_bytes())


@pytest.mark.claim("C254")
def test_steps_are_taken_in_their_order_only(world: MasksWorld) -> None:
    victim = world.parties[0]
    masks = world.masks[victim]
    summing = world.summing()
    for step in ("share", "upload", "agree", "unmask"):
        task = Task(step=step, attempt=_attempt(summing))  # type: ignore[arg-type]
        with pytest.raises(MasksRefused, check=carries(check="attempt")):
            masks.answer(1, task.to_bytes())
    world.upto(summing, "upload")
    for step in ("introduce", "share", "upload", "unmask"):
        task = Task(step=step, attempt=_attempt(summing))  # type: ignore[arg-type]
        with pytest.raises(MasksRefused, check=carries(check="step")):
            masks.answer(1, task.to_bytes())
    with pytest.raises(MasksRefused, check=carries(check="round")):
        masks.answer(2, summing.introduce()[victim])


# Parties and networks that lie to an honest lead


def _attempt(summing: Summing) -> str:
    return Task.read(next(iter(summing.introduce().values()))).attempt


@pytest.mark.claim("C255")
@pytest.mark.parametrize("change", [lambda data: data[:-8], lambda data: data * 3, lambda _: b""])
def test_a_vector_of_another_length_is_refused_and_its_party_left_out(
    world: MasksWorld, change: Callable[[bytes], bytes]
) -> None:
    liar = world.parties[0]
    summing = world.summing()
    world.upto(summing, "share")
    for party, body in summing.upload().items():
        words, data = world.masks[party].answer(1, body)
        if party == liar:
            with pytest.raises(UpdateRefused, check=carries(check="size", owner=liar)):
                summing.take("upload", party, words, change(data))
        else:
            summing.take("upload", party, words, data)
    world.step(summing, "agree", summing.agree(frozenset(world.parties)))
    world.step(summing, "unmask", summing.unmask())
    assert near(summing.summed(world.weights), world.mean(*world.parties[1:]))


@pytest.mark.claim("C255")
def test_a_vector_of_an_earlier_round_is_in_no_sum(world: MasksWorld) -> None:
    world.opened()
    replayed = world.seen[world.parties[0]].tobytes()
    world.hold(2)

    def replay(step: str, party: str, words: dict[str, Any], data: bytes) -> Any:
        return words, replayed if (step, party) == ("upload", world.parties[0]) else data

    with pytest.raises(UpdateRefused, check=carries(check="sum of weights")):
        world.opened(2, on=replay)


@pytest.mark.claim("C255")
def test_a_party_that_counts_more_records_than_it_told_is_refused(world: MasksWorld) -> None:
    liar = world.parties[0]
    world.masks[liar].hold(1, STATE, encode(world.changes[liar], 100_000))
    with pytest.raises(UpdateRefused, check=carries(check="sum of weights")):
        world.opened()


@pytest.mark.claim("C255")
@pytest.mark.parametrize("dead", [False, True])
def test_false_shares_are_named_and_open_nothing(tmp_path: Path, dead: bool) -> None:
    """All that a threshold needs gave shares, and one of them is of another secret."""
    world = masks_world(tmp_path, 3 + dead, threshold=3, least=3)
    liar, gone = world.parties[0], world.parties[-1]
    other = split_key(DataKey(os.urandom(32)), threshold=3, count=4)[0].reveal().decode()

    def lies(step: str, party: str, words: dict[str, Any], data: bytes) -> Any:
        if step == "unmask" and party == liar:
            which = "pair" if dead else "own"
            words = words | {which: dict.fromkeys(words[which], other)}
        return words, data

    summing = world.summing()
    world.upto(summing, "upload")
    here = frozenset(world.parties) - ({gone} if dead else set())
    world.step(summing, "agree", summing.agree(here))
    world.step(summing, "unmask", summing.unmask(), on=lies)
    with pytest.raises(UpdateRefused, check=carries(check="mask shares")):
        summing.summed(world.weights)


@pytest.mark.claim("C255")
@pytest.mark.parametrize("body", [b"", b"{}", b"[1]", b'{"attempt":"x","step":"introduce"}'])
def test_what_is_no_task_is_refused(world: MasksWorld, body: bytes) -> None:
    with pytest.raises(SealtrainError) as caught:
        world.masks[world.parties[0]].answer(1, body)
    assert caught.value.code in ("channel-broken", "data-invalid")


@pytest.mark.claim("C253")
def test_what_a_party_writes_down_is_no_secret(world: MasksWorld, tmp_path: Path) -> None:
    world.opened()
    written = parse_json((tmp_path / f"{world.parties[0]}.json").read_bytes())
    assert written == {
        "version": 1, "run_id": RUN_ID, "round": 1, "state": STATE,
        "survivors": list(world.parties),
    }  # fmt: skip


def test_the_broker_of_these_tests_is_the_one_that_parties_know(world: MasksWorld) -> None:
    """So every refusal above is for its own reason."""
    true = honest(world.parties[0])
    assert peer_key(true, facts(world.parties)).raw
    with pytest.raises(MasksRefused, check=carries(check="introduction broker")):
        peer_key(true, replace(facts(world.parties), brokers=("00" * 32,)))
    assert BROKER.public
