from __future__ import annotations

import pytest

from sealtrain.base.secret import Secret
from sealtrain.errors import UsageError
from sealtrain.keys.derive import derive, recipe_key, run_key, signing_key
from sealtrain.sealing.datakey import DataKey
from sealtrain.sealing.errors import WrongKey

pytestmark = pytest.mark.claim("C6")

ROOT = Secret(b"r" * 32)
APP, COMPOSE, OWNER, RUN = "a" * 40, "b" * 64, "c" * 64, "d" * 32
DATA = {"01" * 16: DataKey(b"1" * 32), "02" * 16: DataKey(b"2" * 32)}


def test_another_recipe_cannot_open_what_was_sealed_for_this_one() -> None:
    key = recipe_key(ROOT, app_id=APP, compose_hash=COMPOSE, owner_id=OWNER)
    sealed = key.public.seal(b"data key", info=b"i")
    same = recipe_key(ROOT, app_id=APP, compose_hash=COMPOSE, owner_id=OWNER)
    assert same.open(sealed, info=b"i").reveal() == b"data key"
    changed = recipe_key(ROOT, app_id=APP, compose_hash="b" * 63 + "c", owner_id=OWNER)
    with pytest.raises(WrongKey):
        changed.open(sealed, info=b"i")


@pytest.mark.parametrize(
    "change",
    [
        {"app_id": "a" * 39},
        {"app_id": "A" * 40},
        {"compose_hash": "b" * 65},
        {"compose_hash": ""},
        {"owner_id": "c" * 63 + "\n"},
        {"owner_id": "c" * 64 + "\n"},
    ],
)
def test_an_argument_of_another_form_derives_nothing(change: dict[str, str]) -> None:
    arguments = {"app_id": APP, "compose_hash": COMPOSE, "owner_id": OWNER} | change
    with pytest.raises(UsageError):
        recipe_key(ROOT, **arguments)


def test_run_keys_need_a_run() -> None:
    assert len(run_key(DATA, app_id=APP, compose_hash=COMPOSE, run_id=RUN)) == 32
    with pytest.raises(UsageError):
        run_key(DATA, app_id=APP, compose_hash=COMPOSE, run_id=COMPOSE)
    with pytest.raises(UsageError):
        run_key({}, app_id=APP, compose_hash=COMPOSE, run_id=RUN)


def test_a_run_key_is_of_one_run_on_these_data_keys_in_whatever_order() -> None:
    def key(data: dict[str, DataKey] = DATA, **changed: str) -> bytes:
        names = {"app_id": APP, "compose_hash": COMPOSE, "run_id": RUN} | changed
        return run_key(data, **names).reveal()

    assert key() == key(dict(reversed(DATA.items())))
    first, second = DATA
    others = [
        key(run_id="e" * 32),
        key(compose_hash="e" * 64),
        key(app_id="e" * 40),
        key({first: DATA[first]}),
        key({first: DATA[second], second: DATA[first]}),
        key({first: DATA[first], "03" * 16: DATA[second]}),
    ]
    assert len({key(), *others}) == len(others) + 1


@pytest.mark.parametrize("purpose", ["", "Broker", "a b", "a/v1", "-a", "a-", "a--b", "a\n", "ä"])
def test_a_purpose_is_words_with_hyphens(purpose: str) -> None:
    with pytest.raises(UsageError):
        derive(ROOT, purpose)


def test_a_secret_of_another_length_derives_nothing() -> None:
    for size in (0, 16, 31, 33, 64):
        with pytest.raises(UsageError):
            signing_key(Secret(b"x" * size), "broker")
