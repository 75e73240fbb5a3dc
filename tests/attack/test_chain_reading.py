"""Nodes that lie, disagree, lag, flood or are gone: what they say opens nothing."""

from __future__ import annotations

import copy
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from collecting import COLLECTING
from http_server import Handler, http_served
from release_world import GATEWAY, ReleaseWorld, boot_info, release_world

from sealtrain.base.canonical import canonical_json
from sealtrain.base.clock import from_rfc3339
from sealtrain.consortium.chainfile import ChainFile
from sealtrain.consortium.chainword import compose_slot, read_word
from sealtrain.consortium.decisions import Decision
from sealtrain.errors import ChainRefused, ChainUnreachable, SealtrainError
from sealtrain.signing.errors import ProofInvalid
from sealtrain.signing.needs import Needs
from sealtrain.signing.target import Target
from sealtrain_chain.carrying import carry_out
from sealtrain_chain.chain_condition import ChainGate, open_gate
from sealtrain_chain.decision import ChainDecision, decide
from sealtrain_chain.node import MAX_ANSWER_BYTES
from sealtrain_chain.reading import open_reader

if not COLLECTING:
    from chain_world import (
        OWNERS,
        Lie,
        TestChain,
        chain_file,
        connected_to,
        new_chain,
        owner_account,
        owners_contract,
        served_by,
    )

pytestmark = [pytest.mark.long, pytest.mark.claim("C52")]

HASH = "ab" * 32
APP = "cd" * 20
TARGET = Target(app_id=APP, compose_hash=HASH, recipe_hash="ef" * 32)
DAY = 86400


@pytest.fixture(scope="module")
def chain() -> TestChain:
    return new_chain()


@pytest.fixture(scope="module")
def contract(chain: TestChain) -> str:
    return owners_contract(chain)


@pytest.fixture(autouse=True)
def undone(chain: TestChain) -> Iterator[None]:
    before = chain.tester.take_snapshot()
    yield
    chain.tester.revert_to_snapshot(before)


def decision(
    chain: TestChain,
    file: ChainFile,
    owner: str,
    verdict: Any = "approve",
    *,
    nonce: int = 0,
    ends: int | None = None,
    target: Target = TARGET,
) -> ChainDecision:
    """As ``sealtrain chain approve`` signs it, without asking a node."""
    until = chain.now + DAY if ends is None else ends
    common: dict[str, Any] = {
        "consortium_id": "12" * 32,
        "brokers": ["b1" * 32],
        "target": target,
        "signed_at": min(chain.now, until - 1),
    }
    if verdict == "approve":
        needs = Needs(actions=("approve",), owners=OWNERS)
        written = Decision.approve(**common, needs=needs, not_after=until)
    else:
        written = Decision.revoke(**common)
    return decide(
        owner_account(owner),
        file,
        subject=target.compose_hash,
        verdict=verdict,
        nonce=nonce,
        not_after=until,
        deadline=chain.now + DAY,
        decision=written,
    )


def carry(chain: TestChain, file: ChainFile, *decisions: ChainDecision) -> None:
    with connected_to(chain) as web3:
        carry_out(web3, file, chain.payer, decisions)


def approve(chain: TestChain, file: ChainFile, **changed: Any) -> None:
    carry(chain, file, *(decision(chain, file, name, **changed) for name in OWNERS[:2]))


@contextmanager
def gate_over(
    chain: TestChain, contract: str, *lies: dict[str, Lie] | None, **changed: Any
) -> Iterator[tuple[ChainGate, ChainFile]]:
    """A gate whose nodes lie as told; time is the chain's."""
    monotonic = changed.pop("monotonic", time.monotonic)
    with served_by(chain, *lies) as urls:
        file = chain_file(chain, contract, *urls, **changed)
        with open_gate(file, clock=lambda: chain.now, monotonic=monotonic) as gate:
            yield gate, file


def closed(gate: ChainGate, error: type[SealtrainError], check: str | None = None) -> None:
    with pytest.raises(error) as caught:
        gate.require_allowed(APP, HASH)
    if check is not None:
        assert caught.value.check == check


def test_k_approvals_open_and_one_revocation_closes(chain: TestChain, contract: str) -> None:
    with gate_over(chain, contract, None, None, None) as (gate, file):
        closed(gate, ChainRefused, "compose hash")
        approve(chain, file)
        gate.require_allowed(APP, HASH)
        with pytest.raises(ChainRefused):
            gate.require_allowed(APP, "ac" * 32)
        carry(chain, file, decision(chain, file, OWNERS[2], "revoke", nonce=1))
        closed(gate, ChainRefused, "compose hash")


@pytest.mark.claim("C581")
def test_a_permission_comes_with_its_proof(chain: TestChain, contract: str) -> None:
    with gate_over(chain, contract, None, None, None, cache_seconds=300) as (gate, file):
        approve(chain, file)
        word = gate.require_allowed(APP, HASH)
        assert word is not None
        assert gate.require_allowed(APP, HASH) is word  # as long as the permission is kept
        proven = read_word(word, HASH)
        latest = chain.tester.get_block_by_number("latest")
        header = (proven.number, proven.time, f"0x{proven.block}")
        assert header == (latest["number"], latest["timestamp"], latest["hash"])
        assert proven.code_hash == file.code_hash
        with pytest.raises(ProofInvalid):
            read_word(word, "ac" * 32)


@pytest.mark.claim("C581")
def test_a_header_of_another_form_gives_no_word(chain: TestChain, contract: str) -> None:
    def odd(_params: list[Any], block: Any) -> Any:
        return block | {"extraData": "0x00"}

    lies: dict[str, Lie] = {"eth_getBlockByNumber": odd}
    with gate_over(chain, contract, lies, lies) as (gate, file):
        approve(chain, file)
        assert gate.require_allowed(APP, HASH) is None
    with gate_over(chain, contract, lies, None) as (gate, _file):
        assert gate.require_allowed(APP, HASH) is not None  # one of those that agree shows it


def test_an_approval_that_ended_opens_nothing(chain: TestChain, contract: str) -> None:
    with gate_over(chain, contract, None) as (gate, file):
        approve(chain, file, ends=chain.now + 60)
        gate.require_allowed(APP, HASH)
        chain.tester.time_travel(chain.now + 61)
        chain.tester.mine_block()
        closed(gate, ChainRefused, "compose hash")


def value(lie: str) -> Lie:
    def told(_params: list[Any], answer: Any) -> Any:
        answer["storageProof"][0]["value"] = lie
        return answer

    return told


@pytest.mark.parametrize("lie", ["0xffffffffff", "0x1"])
def test_a_node_that_lies_about_the_value_is_refused(
    chain: TestChain, contract: str, lie: str
) -> None:
    with gate_over(chain, contract, {"eth_getProof": value(lie)}) as (gate, _):
        closed(gate, ProofInvalid, "chain proof")


def other_proof(chain: TestChain, contract: str, key: str) -> Lie:
    """The genuine proof of a slot that says what the liar wants."""

    def told(params: list[Any], _answer: Any) -> Any:
        return chain.answer("eth_getProof", [contract, [key], params[2]])

    return told


def test_the_proof_of_another_slot_or_contract_is_refused(chain: TestChain, contract: str) -> None:
    other = owners_contract(chain)
    approved = chain_file(chain, other, "http://127.0.0.1:1")
    approve(chain, approved)
    key = f"0x{compose_slot('owners', HASH).hex()}"
    with gate_over(chain, contract, {"eth_getProof": other_proof(chain, other, key)}) as (gate, _):
        closed(gate, ProofInvalid, "chain proof")
    mine = chain_file(chain, contract, "http://127.0.0.1:1")
    another = Target(app_id=APP, compose_hash="ac" * 32, recipe_hash="ef" * 32)
    approve(chain, mine, target=another)
    key = f"0x{compose_slot('owners', 'ac' * 32).hex()}"
    lie = {"eth_getProof": other_proof(chain, contract, key)}
    with gate_over(chain, contract, lie) as (gate, _):
        closed(gate, ProofInvalid, "chain proof")


def test_a_proof_of_before_the_revocation_is_refused(chain: TestChain, contract: str) -> None:
    file = chain_file(chain, contract, "http://127.0.0.1:1")
    approve(chain, file)
    before = hex(chain.web3.eth.block_number)
    carry(chain, file, decision(chain, file, OWNERS[2], "revoke", nonce=1))

    def old(params: list[Any], _answer: Any) -> Any:
        return chain.answer("eth_getProof", [params[0], params[1], before])

    with gate_over(chain, contract, {"eth_getProof": old}) as (gate, _):
        closed(gate, ProofInvalid, "chain proof")


def test_every_changed_bit_of_a_proof_is_refused(chain: TestChain, contract: str) -> None:
    file = chain_file(chain, contract, "http://127.0.0.1:1")
    approve(chain, file)
    flips: list[Callable[[Any], None]] = []

    def flip(part: Callable[[Any], list[str]], node: int, digit: int) -> Callable[[Any], None]:
        def change(answer: Any) -> None:
            nodes = part(answer)
            text = nodes[node % len(nodes)]
            at = 2 + digit % (len(text) - 2)
            nodes[node % len(nodes)] = (
                text[:at] + format(int(text[at], 16) ^ 1, "x") + text[at + 1 :]
            )

        return change

    for part in (lambda one: one["accountProof"], lambda one: one["storageProof"][0]["proof"]):
        for step in range(5):
            flips.append(flip(part, step, 37 * step + 1))
        for node in range(2):
            flips.append(lambda one, part=part, node=node: part(one).pop(node % len(part(one))))
        flips.append(lambda one, part=part: part(one).clear())
    flips.append(lambda one: one["storageProof"].clear())
    flips.append(lambda one: one["storageProof"].append(one["storageProof"][0]))
    flips.append(lambda one: one.pop("accountProof"))
    flips.append(lambda one: one["accountProof"].extend(["0x80"] * 65))
    flips.append(lambda one: one["accountProof"].append("0x" + "ab" * 4097))
    changes = iter(flips)

    def lie(_params: list[Any], answer: Any) -> Any:
        changed = copy.deepcopy(answer)
        next(changes)(changed)
        return changed

    with gate_over(chain, contract, {"eth_getProof": lie}) as (gate, _):
        for _change in flips:
            closed(gate, ProofInvalid)
    with gate_over(chain, contract, None) as (gate, _):
        gate.require_allowed(APP, HASH)


def test_an_agreeing_node_that_cannot_prove_does_not_stop_the_others(
    chain: TestChain, contract: str
) -> None:
    liar = {"eth_getProof": value("0x1")}
    with gate_over(chain, contract, liar, None, None) as (gate, file):
        approve(chain, file)
        gate.require_allowed(APP, HASH)


def forged(field: str, told: str) -> dict[str, Lie]:
    def lie(_params: list[Any], answer: Any) -> Any:
        return answer | {field: told}

    return {"eth_getBlockByNumber": lie}


FORGED = forged("stateRoot", "0x" + "77" * 32)


def test_a_minority_cannot_choose_the_state_root(chain: TestChain, contract: str) -> None:
    with gate_over(chain, contract, FORGED, None, None) as (gate, file):
        approve(chain, file)
        gate.require_allowed(APP, HASH)
    with gate_over(chain, contract, FORGED, None) as (gate, _):
        closed(gate, ChainUnreachable, "chain nodes")
    with gate_over(chain, contract, FORGED, forged("hash", "0x" + "66" * 32), None) as (gate, _):
        closed(gate, ChainUnreachable, "chain nodes")


def test_a_node_that_claims_a_height_alone_does_not_move_the_others(
    chain: TestChain, contract: str
) -> None:
    ahead = forged("number", "0xffffff")
    with gate_over(chain, contract, ahead, None, None) as (gate, file):
        approve(chain, file)
        gate.require_allowed(APP, HASH)


def test_nodes_of_another_chain_do_not_count(chain: TestChain, contract: str) -> None:
    other: dict[str, Lie] = {"eth_chainId": lambda _params, _told: "0x1"}
    with gate_over(chain, contract, other, other, None) as (gate, _):
        closed(gate, ChainUnreachable, "chain nodes")
    with gate_over(chain, contract, other) as (gate, _):
        closed(gate, ChainUnreachable, "chain id")


@pytest.mark.parametrize("seconds", [601, -301])
def test_a_block_of_another_time_is_no_answer(
    chain: TestChain, contract: str, seconds: int
) -> None:
    with served_by(chain, None) as [url], open_reader(chain_file(chain, contract, url)) as reader:
        with pytest.raises(ChainUnreachable) as caught:
            reader.read([], now=chain.now + seconds)
        assert caught.value.check == "block age"
        reader.read([], now=chain.now + (600 if seconds > 0 else -300))


def test_nodes_do_not_go_back_behind_what_was_read(chain: TestChain, contract: str) -> None:
    shown = {"height": "latest"}

    def frozen(params: list[Any], answer: Any) -> Any:
        if params[0] == "latest" and shown["height"] != "latest":
            return chain_block(chain, shown["height"])
        return answer

    lies: dict[str, Lie] = {"eth_getBlockByNumber": frozen}
    with gate_over(chain, contract, lies) as (gate, file):
        approve(chain, file)
        shown["height"] = hex(chain.web3.eth.block_number)
        carry(chain, file, decision(chain, file, OWNERS[2], "revoke", nonce=1))
        gate.require_allowed(APP, HASH)  # a node may lag, within max_age_seconds
        old, shown["height"] = shown["height"], "latest"
        closed(gate, ChainRefused)
        shown["height"] = old
        closed(gate, ChainUnreachable, "block height")


def chain_block(chain: TestChain, number: str) -> Any:
    from chain_world import hexed

    return hexed(chain.answer("eth_getBlockByNumber", [number, False]))


def test_another_contract_at_the_address_is_refused(chain: TestChain, contract: str) -> None:
    with gate_over(chain, contract, None, code_hash="11" * 32) as (gate, _):
        closed(gate, ChainRefused, "contract code")
    with served_by(chain, None) as [url]:
        nobody = chain_file(chain, "0x" + "99" * 20, url)
        with open_gate(nobody, clock=lambda: chain.now, monotonic=time.monotonic) as gate:
            closed(gate, ChainRefused, "chain contract")


def test_a_proxy_that_was_upgraded_is_refused(chain: TestChain) -> None:
    rich = {"from": chain.web3.eth.accounts[0]}
    logic, next_logic = chain.deploy("AppStandIn"), chain.deploy("AppStandIn")
    begin = logic.encode_abi("initialize", [chain.web3.eth.accounts[0]])
    proxy = chain.deploy("ProxyStandIn", logic.address, begin).address
    app = chain.web3.eth.contract(address=proxy, abi=logic.abi)
    pinned = {"kind": "dstack-app", "implementation": logic.address.lower()}
    with gate_over(chain, proxy.lower(), None, **pinned) as (gate, _):
        closed(gate, ChainRefused, "compose hash")
        app.functions.addComposeHash(bytes.fromhex(HASH)).transact(rich)
        gate.require_allowed(APP, HASH)
        app.functions.upgradeToAndCall(next_logic.address, b"").transact(rich)
        closed(gate, ChainRefused, "implementation")
        app.functions.upgradeToAndCall(logic.address, b"").transact(rich)
        app.functions.removeComposeHash(bytes.fromhex(HASH)).transact(rich)
        closed(gate, ChainRefused, "compose hash")


def test_another_app_than_the_contracts_is_refused(chain: TestChain, contract: str) -> None:
    with gate_over(chain, contract, None, app_id="contract") as (gate, file):
        mine = Target(app_id=contract[2:], compose_hash=HASH, recipe_hash="ef" * 32)
        approve(chain, file, target=mine)
        gate.require_allowed(contract[2:], HASH)
        closed(gate, ChainRefused, "app id")


def test_a_permission_is_kept_for_its_time_and_a_refusal_never(
    chain: TestChain, contract: str
) -> None:
    asked: list[str] = []
    moment = [0.0]

    def noted(params: list[Any], answer: Any) -> Any:
        asked.append(params[0])
        return answer

    lies: dict[str, Lie] = {"eth_getProof": noted}
    changed = {"cache_seconds": 10, "monotonic": lambda: moment[0]}
    with gate_over(chain, contract, lies, **changed) as (gate, file):
        closed(gate, ChainRefused)
        approve(chain, file, ends=chain.now + 3600)
        gate.require_allowed(APP, HASH)
        gate.require_allowed(APP, HASH)
        assert len(asked) == 2
        carry(chain, file, decision(chain, file, OWNERS[2], "revoke", nonce=1))
        moment[0] = 9.9
        gate.require_allowed(APP, HASH)
        moment[0] = 10.0
        closed(gate, ChainRefused)
        assert len(asked) == 3
        approve(chain, file, nonce=2, ends=chain.now + 3600)
        gate.require_allowed(APP, HASH)
        chain.tester.time_travel(chain.now + 3700)
        chain.tester.mine_block()
        closed(gate, ChainRefused)  # kept never beyond its own end


# --- Nodes that do not answer as they must ----------------------------------------------------


@contextmanager
def answering(body: Callable[[Any], None]) -> Iterator[str]:
    """A node that writes what it is told to."""

    class Node(Handler):
        def do_POST(self) -> None:
            self.body()
            with suppress(OSError):  # the asker had enough
                body(self)

    with http_served(Node) as url:
        yield f"{url}/secret-access-key"


def replied(status: int, content: bytes, **headers: str) -> Callable[[Any], None]:
    def write(handler: Any) -> None:
        handler.send_response(status)
        for name, text in headers.items():
            handler.send_header(name, text)
        handler.end_headers()
        handler.wfile.write(content)

    return write


def flood(handler: Any) -> None:
    handler.send_response(200)
    handler.end_headers()
    for _ in range(2 * MAX_ANSWER_BYTES // 65536):
        handler.wfile.write(b" " * 65536)


def drip(handler: Any) -> None:
    handler.send_response(200)
    handler.end_headers()
    for _ in range(200):
        handler.wfile.write(b" ")
        handler.wfile.flush()
        time.sleep(0.1)


@pytest.mark.parametrize(
    "body",
    [
        replied(500, b"{}"),
        replied(302, b"", location="http://127.0.0.1:1/"),
        replied(200, b"no JSON"),
        replied(200, b'{"jsonrpc":"2.0","id":2,"result":"0x1"}'),
        replied(200, b'{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"no"}}'),
        replied(200, b'{"jsonrpc":"2.0","id":1,"result":null}'),
        replied(200, b"[" * 100_000),
        flood,
        drip,
    ],
    ids=["500", "redirect", "text", "id", "error", "null", "deep", "flood", "drip"],
)
def test_a_node_that_does_not_answer_as_it_must_closes_the_gate(
    chain: TestChain, contract: str, body: Callable[[Any], None]
) -> None:
    with answering(body) as url:
        file = chain_file(chain, contract, url, timeout_seconds=1)
        with open_gate(file, clock=lambda: chain.now, monotonic=time.monotonic) as gate:
            begun = time.monotonic()
            with pytest.raises(ChainUnreachable) as caught:
                gate.require_allowed(APP, HASH)
            assert time.monotonic() - begun < 10
        told = str(caught.value.to_dict())
        assert "127.0.0.1" in told
        assert "secret-access-key" not in told


def test_nodes_that_are_down_close_the_gate(chain: TestChain, contract: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: nobody else gets it meanwhile
        down = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with served_by(chain, None, None) as [one, two]:
            enough = chain_file(chain, contract, down, one, two)
            with open_gate(enough, clock=lambda: chain.now, monotonic=time.monotonic) as gate:
                approve(chain, enough)
                gate.require_allowed(APP, HASH)
            few = chain_file(chain, contract, down, one)
            with open_gate(few, clock=lambda: chain.now, monotonic=time.monotonic) as gate:
                closed(gate, ChainUnreachable, "chain nodes")


# --- The broker ---------------------------------------------------------------------------------


def test_a_broker_releases_and_renews_only_while_the_chain_allows(
    chain: TestChain, contract: str, tmp_path: Path
) -> None:
    from sealtrain.client.grant import renew

    down: dict[str, bool] = {"now": False}

    def unwell(_params: list[Any], answer: Any) -> Any:
        return "gone" if down["now"] else answer

    lies: dict[str, Lie] = {"eth_chainId": unwell}
    with (
        gate_over(chain, contract, lies) as (gate, file),
        release_world(tmp_path, chain=gate) as world,
    ):
        target = world.target
        refuse(world, ChainRefused)
        assert world.refusals()[-1]["code"] == "chain-refused"
        approve(chain, file, target=target)
        grant = world.obtain()
        receipt = grant.receipts[-1].receipt
        assert receipt.chain is not None
        proven = read_word(receipt.chain, target.compose_hash)
        assert (proven.code_hash, proven.implementation) == (file.code_hash, "none")
        assert proven.until >= from_rfc3339(receipt.released_at)
        down["now"] = True
        entries = world.kinds()
        refuse(world, ChainUnreachable)
        with pytest.raises(ChainUnreachable):
            renew(world.wire, world.attest(), world.collect(world.guest()), grant)
        assert world.kinds() == entries  # the broker failed, nobody was refused
        down["now"] = False
        grant = renew(world.wire, world.attest(), world.collect(world.guest()), grant)
        carry(chain, file, decision(chain, file, OWNERS[0], "revoke", nonce=1, target=target))
        refuse(world, ChainRefused)
        with pytest.raises(ChainRefused):
            renew(world.wire, world.attest(), world.collect(world.guest()), grant)
        body = world.refusals()[-1]
        assert (body["action"], body["code"]) == ("renewal", "chain-refused")
        world.assert_no_key_left()


def test_the_chain_adds_a_condition_and_replaces_none(
    chain: TestChain, contract: str, tmp_path: Path
) -> None:
    from sealtrain.consortium.errors import ApprovalsMissing

    with (
        gate_over(chain, contract, None) as (gate, file),
        release_world(tmp_path, chain=gate, approved_by=()) as world,
    ):
        approve(chain, file, target=world.target)
        refuse(world, ApprovalsMissing)


def refuse(world: ReleaseWorld, error: type[SealtrainError]) -> None:
    with pytest.raises(error):
        world.obtain()


def test_an_app_boots_by_the_webhook_only_while_the_chain_allows(
    chain: TestChain, contract: str, tmp_path: Path
) -> None:
    down = {"now": False}

    def unwell(_params: list[Any], answer: Any) -> Any:
        return "gone" if down["now"] else answer

    with (
        gate_over(chain, contract, {"eth_chainId": unwell}) as (gate, file),
        release_world(tmp_path, chain=gate, gateway_app_id=GATEWAY) as world,
    ):
        assert world.broker.boot is not None
        asked = canonical_json(boot_info(world))
        told, refusal = world.broker.boot.answer("app", asked)
        assert (told.is_allowed, type(refusal)) == (False, ChainRefused)
        approve(chain, file, target=world.target)
        assert world.broker.boot.answer("app", asked)[0].is_allowed
        down["now"] = True
        entries = world.kinds()
        with pytest.raises(ChainUnreachable):  # no decision: the KMS boots nothing
            world.broker.boot.answer("app", asked)
        assert world.kinds() == entries
