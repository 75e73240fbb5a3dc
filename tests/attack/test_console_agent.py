"""An agent signs what a passkey signed and its owner confirmed, and nothing else."""

from __future__ import annotations

import hashlib
import json
import socket
import stat
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from agent_world import ORIGIN, AgentWorld, Authenticator, agent_of, answering
from broker_site import BrokerSite, broker_site
from carrying import carries
from cryptography.hazmat.primitives.asymmetric import ec
from world import signed_dataset

from sealtrain.client.broker_api import BrokerClient
from sealtrain.errors import DataInvalid, KeyFileInvalid, SealtrainError, UsageError
from sealtrain_console.web.agentlink import ask_agent
from sealtrain_console.web.errors import (
    AgentDeclined,
    AgentUnreachable,
    PageUnknown,
    PasskeyInvalid,
)
from sealtrain_console.web.passkeys import passkey_file, url_text

pytestmark = pytest.mark.claim("C208")
OWNER = "hospital-a"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerSite]:
    with broker_site(tmp_path_factory.mktemp("site")) as made:
        yield made


@pytest.fixture(scope="module")
def client(site: BrokerSite) -> Iterator[BrokerClient]:
    with site.serving("agent") as found:
        sealed = signed_dataset(site.target, OWNER, sealed_at=site.now())
        with site.owner(found, OWNER) as mine:
            mine.hand_in("dataset", sealed)
        yield found


@pytest.fixture
def world(site: BrokerSite, client: BrokerClient) -> AgentWorld:
    identity = site.folder / f"{OWNER}.identity.json"
    passkey_file(identity).unlink(missing_ok=True)
    return agent_of(
        identity, (site.broker_file(client),), site.folder / "consortium.json", (site.deployment,)
    )


@pytest.fixture
def passkey(world: AgentWorld) -> Authenticator:
    made = Authenticator()
    world.enrolled(made)
    return made


@pytest.fixture
def recorded(site: BrokerSite, client: BrokerClient) -> Callable[[], int]:
    return lambda: len(client.list_decisions(site.target, site.consortium))


def sign(world: AgentWorld, digest: str, credential: dict[str, Any]) -> dict[str, Any]:
    return world.agent.answer({"op": "sign", "digest": digest, "credential": credential})


def test_an_approval_needs_passkey_and_terminal_and_is_then_the_owners(
    world: AgentWorld, passkey: Authenticator, site: BrokerSite, recorded: Callable[[], int]
) -> None:
    before = recorded()
    made = world.prepared(site.locked.compose_hash)
    assert recorded() == before
    told = sign(world, made["digest"], passkey.asserted(made["challenge"]))
    assert told["failed"] == {}
    assert [text.digest for text in world.shown] == [made["digest"]]
    assert recorded() == before + 1


def test_a_revocation_takes_the_same_way(
    world: AgentWorld, passkey: Authenticator, site: BrokerSite, recorded: Callable[[], int]
) -> None:
    before = recorded()
    made = world.prepared(site.locked.compose_hash, "revoke")
    sign(world, made["digest"], passkey.asserted(made["challenge"]))
    assert recorded() == before + 1
    lifted = world.prepared(site.locked.compose_hash, lift=True)
    sign(world, lifted["digest"], passkey.asserted(lifted["challenge"]))
    assert recorded() == before + 2


ANSWERS: dict[str, Callable[[Authenticator, dict[str, Any]], dict[str, Any]]] = {
    "another decision": lambda key, made: key.asserted("A" * 43),
    "the digest itself": lambda key, made: key.asserted(url_text(bytes.fromhex(made["digest"]))),
    "another page": lambda key, made: replace(key, origin="http://localhost:8601").asserted(
        made["challenge"]
    ),
    "another site": lambda key, made: replace(key, origin="https://evil.example").asserted(
        made["challenge"]
    ),
    "another relying party": lambda key, made: replace(key, rp_id="evil.example").asserted(
        made["challenge"]
    ),
    "nobody verified": lambda key, made: replace(key, verified=False).asserted(made["challenge"]),
    "another key": lambda key, made: replace(
        key, key=ec.generate_private_key(ec.SECP256R1())
    ).asserted(made["challenge"]),
    "another passkey": lambda key, made: replace(key, credential_id=b"another").asserted(
        made["challenge"]
    ),
    "a counter that went back": lambda key, made: replace(key, count=1).asserted(made["challenge"]),
    "a registration": lambda key, made: key.registered(made["challenge"]),
    "nothing": lambda key, made: {},
    "deep": lambda key, made: {"id": key.asserted("A")["id"], "response": {"a": {"b": []}}},
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_what_is_no_passkeys_word_on_this_decision_signs_nothing(
    answer: str,
    world: AgentWorld,
    passkey: Authenticator,
    site: BrokerSite,
    recorded: Callable[[], int],
) -> None:
    passkey.count = 7
    first = world.prepared(site.locked.compose_hash, "revoke")
    world.answers = False
    with pytest.raises(AgentDeclined, check=carries(check="confirmation")):
        sign(world, first["digest"], passkey.asserted(first["challenge"]))
    world.answers, world.shown[:] = True, []
    before = recorded()
    made = world.prepared(site.locked.compose_hash)
    with pytest.raises(PasskeyInvalid):
        sign(world, made["digest"], ANSWERS[answer](passkey, made))
    assert world.shown == []  # its owner is not even asked
    assert recorded() == before


def test_a_decision_is_used_up_by_its_first_try(
    world: AgentWorld, passkey: Authenticator, site: BrokerSite, recorded: Callable[[], int]
) -> None:
    made = world.prepared(site.locked.compose_hash)
    answer = passkey.asserted(made["challenge"])
    world.answers = False
    before = recorded()
    with pytest.raises(AgentDeclined, check=carries(check="confirmation")):
        sign(world, made["digest"], answer)
    world.answers = True
    with pytest.raises(AgentDeclined, check=carries(check="digest")):
        sign(world, made["digest"], answer)
    again = world.prepared(site.locked.compose_hash)
    with pytest.raises(PasskeyInvalid):  # the same words give another decision
        sign(world, again["digest"], answer)
    assert recorded() == before


def test_nothing_of_an_agent_that_ended_is_signed_by_the_next(
    world: AgentWorld, passkey: Authenticator, site: BrokerSite, recorded: Callable[[], int]
) -> None:
    """Neither a decision that was kept, nor an answer that was given: counters outlive an agent."""
    made = world.prepared(site.locked.compose_hash)
    answer = passkey.asserted(made["challenge"])
    before = recorded()

    def again() -> AgentWorld:
        owner = world.agent.owner
        return agent_of(
            owner.identity, owner.brokers, site.folder / "consortium.json", (site.deployment,)
        )

    following = again()
    with pytest.raises(AgentDeclined, check=carries(check="digest")):
        sign(following, made["digest"], answer)
    other = following.prepared(site.locked.compose_hash)
    with pytest.raises(PasskeyInvalid):
        sign(following, other["digest"], answer)
    assert recorded() == before
    third = following.prepared(site.locked.compose_hash)
    sign(following, third["digest"], passkey.asserted(third["challenge"]))
    assert recorded() == before + 1
    last = again()
    fourth = last.prepared(site.locked.compose_hash)
    passkey.count -= 1  # a copy of the passkey that stayed behind
    with pytest.raises(PasskeyInvalid):
        sign(last, fourth["digest"], passkey.asserted(fourth["challenge"]))
    assert recorded() == before + 1


def test_a_decision_that_another_took_the_place_of_is_not_signed(
    world: AgentWorld, passkey: Authenticator, site: BrokerSite, recorded: Callable[[], int]
) -> None:
    first = world.prepared(site.locked.compose_hash, "revoke")
    second = world.prepared(site.locked.compose_hash)
    before = recorded()
    with pytest.raises(AgentDeclined, check=carries(check="digest")):
        sign(world, first["digest"], passkey.asserted(first["challenge"]))
    with pytest.raises(AgentDeclined, check=carries(check="digest")):  # that used it up
        sign(world, second["digest"], passkey.asserted(second["challenge"]))
    assert recorded() == before


def test_late_is_too_late_before_and_after_the_owner_read_it(
    site: BrokerSite, client: BrokerClient, recorded: Callable[[], int]
) -> None:
    now = [0.0]
    identity = site.folder / f"{OWNER}.identity.json"
    passkey_file(identity).unlink(missing_ok=True)
    files = (site.broker_file(client),), site.folder / "consortium.json", (site.deployment,)

    def slow(_made: Any) -> bool:
        now[0] += 301
        return True

    world = agent_of(identity, *files, monotonic=lambda: now[0], confirm=slow)
    passkey = Authenticator()
    world.enrolled(passkey)
    before = recorded()
    made = world.prepared(site.locked.compose_hash)
    with pytest.raises(AgentDeclined, check=carries(check="time")):
        sign(world, made["digest"], passkey.asserted(made["challenge"]))
    made = world.prepared(site.locked.compose_hash)
    now[0] += 301
    with pytest.raises(AgentDeclined, check=carries(check="digest")):
        sign(world, made["digest"], passkey.asserted(made["challenge"]))
    assert recorded() == before


def test_a_recipe_that_the_agent_was_not_given_is_not_decided_on(
    world: AgentWorld, passkey: Authenticator
) -> None:
    with pytest.raises(PageUnknown):
        world.prepared("0" * 64)


def test_a_recipe_that_changes_under_the_agent_is_another_one(
    world: AgentWorld, passkey: Authenticator, site: BrokerSite, tmp_path: Path
) -> None:
    """What was prepared is signed, whatever lies in the file by then."""
    copy = tmp_path / "app-compose.json"
    copy.write_bytes(site.deployment.read_bytes())
    world.agent.deployments = (copy,)
    made = world.prepared(site.locked.compose_hash)
    copy.write_bytes(b"{}")
    sign(world, made["digest"], passkey.asserted(made["challenge"]))
    assert world.shown[0].decision.target == site.target


def test_a_passkey_is_enrolled_only_where_its_owner_wanted_one(
    site: BrokerSite, client: BrokerClient, world: AgentWorld
) -> None:
    first = Authenticator()
    world.enrolled(first)
    with pytest.raises(AgentDeclined, check=carries(check="--enroll")):  # one for each start
        world.enrolled(Authenticator(credential_id=b"second"))
    closed = agent_of(
        site.folder / f"{OWNER}.identity.json",
        (site.broker_file(client),),
        site.folder / "consortium.json",
        (site.deployment,),
        confirm_passkey=None,
    )
    with pytest.raises(AgentDeclined, check=carries(check="--enroll")):
        closed.agent.answer({"op": "passkey"})
    with pytest.raises(AgentDeclined):
        closed.agent.answer({"op": "enroll", "credential": first.registered("A")})
    assert len(closed.agent.passkeys.ids) == 1


def test_an_owner_sees_whose_passkey_is_to_be_enrolled(world: AgentWorld) -> None:
    """Another program of the machine may answer first: its passkey has another code."""
    mine, theirs = Authenticator(), Authenticator(credential_id=b"of another browser")
    world.answers = False
    for entry in (mine, theirs, mine):
        with pytest.raises(AgentDeclined):
            world.enrolled(entry)
    assert world.codes[0] == world.codes[2] != world.codes[1]
    shown = hashlib.sha256(url_text(mine.credential_id).encode()).hexdigest()
    assert world.codes[0] == shown[: len(world.codes[0])]  # what the page computes
    world.agent.answer({"op": "passkey"})
    with pytest.raises(PasskeyInvalid):
        world.agent.answer({"op": "enroll", "credential": {"id": 7}})
    assert world.agent.passkeys.ids == []


@pytest.mark.parametrize(
    ("how", "refusal"), [("declined", AgentDeclined), ("elsewhere", PasskeyInvalid)]
)
def test_a_passkey_of_another_page_or_without_consent_is_not_kept(
    how: str, refusal: type[SealtrainError], world: AgentWorld
) -> None:
    world.answers = how != "declined"
    origin = "http://localhost:1" if how == "elsewhere" else ORIGIN
    with pytest.raises(refusal):
        world.enrolled(Authenticator(origin=origin))
    assert world.agent.passkeys.ids == []


def test_a_damaged_list_of_passkeys_lets_none_in(
    world: AgentWorld, passkey: Authenticator, site: BrokerSite
) -> None:
    file = world.agent.passkeys.file
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    made = world.prepared(site.locked.compose_hash)
    document = json.loads(file.read_bytes())
    file.write_text(json.dumps({**document, "passkeys": [{"id": "", "public_key": 1}]}))
    with pytest.raises(KeyFileInvalid):
        sign(world, made["digest"], passkey.asserted(made["challenge"]))


REQUESTS: dict[str, Any] = {
    "no object": [],
    "no op": {},
    "unknown op": {"op": "export"},
    "further field": {"op": "state", "path": "/"},
    "other type": {"op": "sign", "digest": 7, "credential": {}},
    "no days": {"op": "prepare", "action": "approve", "compose_hash": "", "days": 0, "lift": False},
    "days as truth": {"op": "sign", "digest": "0", "credential": []},
    "other action": {
        "op": "prepare", "action": "lift", "compose_hash": "0", "days": 1, "lift": False,
    },
}  # fmt: skip


@pytest.mark.parametrize("request_", REQUESTS)
def test_a_request_of_another_form_is_refused_on_the_socket_too(
    request_: str, world: AgentWorld
) -> None:
    with answering(world) as place, pytest.raises(DataInvalid):
        ask_agent(place, REQUESTS[request_], seconds=5)


@pytest.mark.parametrize("data", [b"", b"\n", b"{" * 2000 + b"\n", b"\xff\n", b'{"op":"state"}'])
def test_bytes_that_are_no_request_end_neither_agent_nor_owner(
    data: bytes, world: AgentWorld
) -> None:
    with answering(world) as place:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(place))
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            connection.settimeout(15)
            connection.recv(65536)
        assert ask_agent(place, {"op": "state"}, seconds=5)["owner"] == OWNER


def test_only_its_user_opens_the_socket_and_no_second_agent_takes_it(world: AgentWorld) -> None:
    with answering(world) as place:
        assert stat.S_IMODE(place.stat().st_mode) & 0o077 == 0
        with pytest.raises(UsageError, check=carries(check="--socket")), answering(world):
            pass
        assert ask_agent(place, {"op": "state"}, seconds=5)["owner"] == OWNER
    assert not place.exists()
    with pytest.raises(AgentUnreachable):
        ask_agent(place, {"op": "state"}, seconds=1)
    place.write_text("a file of its owner")
    with pytest.raises(UsageError, check=carries(check="--socket")), answering(world):
        pass
    assert place.read_text() == "a file of its owner"
    place.unlink()


def test_an_agent_that_says_nothing_is_away_in_time(tmp_path: Path) -> None:
    place = tmp_path / "silent"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place))
        listener.listen()
        with pytest.raises(AgentUnreachable):
            ask_agent(place, {"op": "state"}, seconds=0.3)
