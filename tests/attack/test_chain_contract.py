"""OwnersAppAuth on a real EVM: who may decide what, and what an old signature is worth."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from carrying import carries
from collecting import COLLECTING

from sealtrain.consortium.chainfile import ChainFile
from sealtrain.errors import ChainRefused, ChainUnreachable, SignatureInvalid
from sealtrain.signing.errors import StatementInvalid
from sealtrain_chain.account import address
from sealtrain_chain.account import sign_message as sign
from sealtrain_chain.carrying import carry_out, votes_of
from sealtrain_chain.contracts import artefact, connect, send
from sealtrain_chain.contracts import deploy as deployed
from sealtrain_chain.decision import ChainDecision, decide
from sealtrain_chain.node import Node

if not COLLECTING:
    import rlp
    from chain_world import (
        DEVICE,
        OS_IMAGE,
        OWNERS,
        TestChain,
        connected_to,
        contract_of,
        new_chain,
        owner_account,
        owners_contract,
        served,
    )
    from chain_world import chain_file as file_of

pytestmark = [pytest.mark.long, pytest.mark.claim("C51")]

HASH = "ab" * 32
FAR = 2**40
_HALF_ORDER_TIMES_TWO = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141


@pytest.fixture(scope="module")
def chain() -> TestChain:
    return new_chain()


@pytest.fixture(scope="module")
def contract(chain: TestChain) -> str:
    return owners_contract(chain, approve=2, revoke=1, any_device=False)


@pytest.fixture(scope="module", autouse=True)
def wire(chain: TestChain) -> Iterator[None]:
    """Refusals travel over JSON-RPC, as from any node."""
    with connected_to(chain) as web3:
        chain.wire = web3
        yield


@pytest.fixture
def file(chain: TestChain, contract: str) -> Iterator[ChainFile]:
    """Of the contract as it was deployed; what a test does is undone."""
    before = chain.tester.take_snapshot()
    yield file_of(chain, contract, "http://127.0.0.1:1")
    chain.tester.revert_to_snapshot(before)


def vote(file: ChainFile, owner: str, verdict: Any = "approve", **changed: Any) -> ChainDecision:
    """On a device, which needs no ledger decision beside it; the rules are the same."""
    arguments: dict[str, Any] = {
        "subject": HASH,
        "verdict": verdict,
        "nonce": 0,
        "not_after": FAR,
        "deadline": FAR,
        "decision": None,
    }
    return decide(owner_account(owner), file, **(arguments | changed))


def carry(chain: TestChain, file: ChainFile, *votes: ChainDecision) -> None:
    carry_out(chain.wire, file, chain.payer, votes)


def raw(chain: TestChain, file: ChainFile, votes: list[Any], approve: bool = True) -> None:
    """Past everything that is checked before it is sent."""
    call = contract_of(chain, file.contract).functions.decide(
        1, bytes.fromhex(HASH), approve, votes
    )
    send(chain.wire, chain.payer, call)


def until(chain: TestChain, file: ChainFile, kind: int = 1) -> int:
    read = contract_of(chain, file.contract).functions.approvedUntil(kind, bytes.fromhex(HASH))
    return int(read.call())


def refusal(chain: TestChain, file: ChainFile, votes: list[Any], approve: bool = True) -> str:
    before = until(chain, file)
    with pytest.raises(ChainRefused) as caught:
        raw(chain, file, votes, approve)
    assert until(chain, file) == before
    return str(caught.value.got)


def test_k_owners_approve_and_one_revokes(chain: TestChain, file: ChainFile) -> None:
    carry(chain, file, vote(file, OWNERS[0]), vote(file, OWNERS[2], not_after=FAR - 1))
    assert until(chain, file) == FAR - 1
    carry(chain, file, vote(file, OWNERS[1], "revoke", nonce=1))
    assert until(chain, file) == 0


def test_k_minus_one_signatures_decide_nothing(chain: TestChain, file: ChainFile) -> None:
    one = vote(file, OWNERS[0])
    assert refusal(chain, file, votes_of([one])) == "NotEnough"
    assert refusal(chain, file, []) == "NotEnough"
    # The same owner twice is one owner.
    assert refusal(chain, file, votes_of([one]) * 2) == "NotAscending"
    with pytest.raises(StatementInvalid):
        carry(chain, file, one, one)


def test_a_strangers_signature_counts_nothing(chain: TestChain, file: ChainFile) -> None:
    stranger = file.model_copy(update={"owners": {"stranger": address(owner_account("stranger"))}})
    votes = votes_of([vote(file, OWNERS[0]), vote(stranger, "stranger")])
    assert refusal(chain, file, votes) == "NotOwner"
    with pytest.raises(SignatureInvalid):
        vote(file, "stranger")


def test_signatures_are_worth_nothing_a_second_time(chain: TestChain, file: ChainFile) -> None:
    used = [vote(file, OWNERS[0]), vote(file, OWNERS[1])]
    carry(chain, file, *used)
    assert refusal(chain, file, votes_of(used)) == "NotOwner"


def test_a_revocation_is_not_undone_by_old_signatures(chain: TestChain, file: ChainFile) -> None:
    used = [vote(file, OWNERS[0]), vote(file, OWNERS[1])]
    waiting = [vote(file, OWNERS[0], nonce=1), vote(file, OWNERS[1], nonce=1)]
    carry(chain, file, *used)
    carry(chain, file, vote(file, OWNERS[2], "revoke", nonce=1))
    for old in (used, waiting):
        assert refusal(chain, file, votes_of(old)) == "NotOwner"
    assert until(chain, file) == 0
    carry(chain, file, *(vote(file, name, nonce=2) for name in OWNERS[:2]))
    assert until(chain, file) == FAR


def test_a_revocation_voids_approvals_that_still_wait(chain: TestChain, file: ChainFile) -> None:
    waiting = [vote(file, OWNERS[0]), vote(file, OWNERS[1])]
    carry(chain, file, vote(file, OWNERS[2], "revoke"))
    assert refusal(chain, file, votes_of(waiting)) == "NotOwner"


def test_an_approval_is_no_revocation_nor_one_of_another_subject(
    chain: TestChain, file: ChainFile
) -> None:
    approvals = votes_of([vote(file, OWNERS[0]), vote(file, OWNERS[1])])
    assert refusal(chain, file, approvals, approve=False) == "NotOwner"
    others = votes_of([vote(file, name, subject="cd" * 32) for name in OWNERS[:2]])
    assert refusal(chain, file, others) == "NotOwner"
    functions = contract_of(chain, file.contract).functions
    for kind, why in ((0, "NotOwner"), (2, "KindUnknown")):  # a device is no deployment
        call = functions.decide(kind, bytes.fromhex(HASH), True, approvals)
        with pytest.raises(ChainRefused, check=carries(check="chain contract", got=why)):
            send(chain.wire, chain.payer, call)


@pytest.mark.parametrize("moved", ["chain_id", "contract"])
def test_signatures_for_another_place_count_nothing(
    chain: TestChain, file: ChainFile, moved: str
) -> None:
    elsewhere = file.model_copy(update={moved: 1 if moved == "chain_id" else "0x" + "12" * 20})
    votes = [vote(elsewhere, OWNERS[0]), vote(elsewhere, OWNERS[1])]
    assert refusal(chain, file, votes_of(votes)) == "NotOwner"
    with pytest.raises(SignatureInvalid):
        carry(chain, file, *votes)


def test_a_deadline_that_is_over_is_over(chain: TestChain, file: ChainFile) -> None:
    ends = chain.now + 30
    votes = votes_of([vote(file, OWNERS[0], deadline=ends), vote(file, OWNERS[1])])
    chain.tester.time_travel(ends + 1)
    chain.tester.mine_block()
    assert refusal(chain, file, votes) == "Late"


def test_a_later_deadline_or_end_than_was_signed_is_refused(
    chain: TestChain, file: ChainFile
) -> None:
    first, second = votes_of(
        [vote(file, OWNERS[0], not_after=chain.now + 60), vote(file, OWNERS[1])]
    )
    for place in (0, 1):
        stretched = tuple(FAR + 1 if i == place else part for i, part in enumerate(first))
        assert refusal(chain, file, [stretched, second]) in ("NotOwner", "NotAscending")


def test_the_other_form_of_a_signature_is_refused(chain: TestChain, file: ChainFile) -> None:
    (after, deadline, statement, signature), second = votes_of(
        [vote(file, OWNERS[0]), vote(file, OWNERS[1])]
    )
    s = _HALF_ORDER_TIMES_TWO - int.from_bytes(signature[32:64], "big")
    other = signature[:32] + s.to_bytes(32, "big") + bytes([55 - signature[64]])
    for odd in (other, signature[:-1], signature + b"\x00", bytes(65), signature[:64] + b"\x01"):
        votes = [(after, deadline, statement, odd), second]
        assert refusal(chain, file, votes) == "SignatureMalformed"


def boot(chain: TestChain, asked: Any, app: str, **changed: Any) -> tuple[bool, str]:
    info: dict[str, Any] = {
        "appId": chain.web3.to_checksum_address(app),
        "composeHash": bytes.fromhex(HASH),
        "instanceId": "0x" + "00" * 20,
        "deviceId": bytes.fromhex(DEVICE),
        "mrAggregated": bytes(32),
        "mrSystem": bytes(32),
        "osImageHash": bytes.fromhex(OS_IMAGE),
        "tcbStatus": "UpToDate",
        "advisoryIds": [],
    } | changed
    allowed, reason = asked.functions.isAppAllowed(tuple(info.values())).call()
    return bool(allowed), str(reason)


def test_dstacks_kms_gets_its_answer_in_the_order_it_is_used_to(
    chain: TestChain, file: ChainFile
) -> None:
    kms = chain.deploy("KmsStandIn")
    app = chain.web3.to_checksum_address(file.contract)
    rich = {"from": chain.web3.eth.accounts[0]}
    own = contract_of(chain, app)
    assert own.functions.supportsInterface(bytes.fromhex("1e079198")).call()
    assert not own.functions.supportsInterface(bytes.fromhex("8fd37527")).call()
    assert boot(chain, kms, app) == (False, "App not registered")
    kms.functions.registerApp(app).transact(rich)
    assert boot(chain, kms, app) == (False, "OS image is not allowed")
    kms.functions.addOsImageHash(bytes.fromhex(OS_IMAGE)).transact(rich)
    assert boot(chain, kms, app) == (False, "Compose hash not allowed")
    compose(chain, file)
    assert boot(chain, kms, app) == (False, "Device not allowed")
    carry(chain, file, *(vote(file, name, subject=DEVICE) for name in OWNERS[:2]))
    assert boot(chain, kms, app) == (True, "")
    for status in ("OutOfDate", "uptodate", "", "UpToDate "):
        assert boot(chain, kms, app, tcbStatus=status) == (False, "TCB status is not up to date")
    assert not boot(chain, own, app, appId=chain.payer.account.address)[0]
    carry(chain, file, vote(file, OWNERS[1], "revoke", subject=DEVICE, nonce=1))
    assert boot(chain, kms, app) == (False, "Device not allowed")


def test_an_approval_ends_by_itself(chain: TestChain, file: ChainFile) -> None:
    app = chain.web3.to_checksum_address(file.contract)
    own = contract_of(chain, app)
    carry(chain, file, *(vote(file, name, subject=DEVICE) for name in OWNERS[:2]))
    ends = chain.now + 100
    compose(chain, file, ends)
    assert boot(chain, own, app)[0]
    chain.tester.time_travel(ends + 1)
    chain.tester.mine_block()
    assert boot(chain, own, app) == (False, "Compose hash not allowed")


def compose(chain: TestChain, file: ChainFile, ends: int = FAR) -> None:
    """Approve the compose hash, as two owners sign it."""
    signed = [
        vote(file, name, not_after=ends).model_copy(update={"kind": "compose"})
        for name in OWNERS[:2]
    ]
    votes = [
        item.model_copy(update={"signature": sign(owner_account(name), item.message())})
        for name, item in zip(OWNERS, signed, strict=False)
    ]
    call = contract_of(chain, file.contract).functions.decide(
        0, bytes.fromhex(HASH), True, votes_of(votes)
    )
    send(chain.wire, chain.payer, call)


@pytest.mark.parametrize(
    ("owners", "approve", "revoke", "why"),
    [
        ([], 1, 1, "OwnersInvalid"),
        (["twice", "twice"], 1, 1, "OwnersInvalid"),
        (["zero", "hospital-a"], 1, 1, "OwnersInvalid"),
        (["hospital-a"], 0, 1, "ThresholdInvalid"),
        (["hospital-a"], 2, 1, "ThresholdInvalid"),
        (["hospital-a"], 1, 0, "ThresholdInvalid"),
        (["hospital-a"], 1, 2, "ThresholdInvalid"),
    ],
)
def test_a_contract_that_nobody_or_anybody_could_use_is_not_made(
    chain: TestChain, owners: list[str], approve: int, revoke: int, why: str
) -> None:
    addresses = [
        "0x" + "00" * 20 if owner == "zero" else address(owner_account(owner)) for owner in owners
    ]
    with pytest.raises(ChainRefused, check=carries(check="chain contract", got=why)):
        deployed(
            chain.wire,
            chain.payer,
            owners=addresses,
            approve=approve,
            revoke=revoke,
            require_tcb_up_to_date=True,
            allow_any_device=True,
        )


def test_nobody_owns_upgrades_or_pays_the_contract() -> None:
    writing = {
        function["name"]
        for function in artefact()["abi"]
        if function["type"] == "function" and function["stateMutability"] not in ("view", "pure")
    }
    assert writing == {"decide"}
    assert not [
        function for function in artefact()["abi"] if function.get("stateMutability") == "payable"
    ]
    # No DELEGATECALL, CALLCODE or SELFDESTRUCT among its instructions.
    code = bytes.fromhex(artefact()["bytecode"])
    at, found = 0, set()
    while at < len(code):
        found.add(code[at])
        at += code[at] - 0x5E if 0x60 <= code[at] <= 0x7F else 1
    assert not found & {0xF2, 0xF4, 0xFF}


def test_a_node_cannot_make_who_pays_pay_any_price(chain: TestChain, file: ChainFile) -> None:
    votes = [vote(file, OWNERS[0]), vote(file, OWNERS[1])]
    asked: dict[str, Any] = {
        "eth_maxPriorityFeePerGas": hex(101 * 10**9),
        "eth_estimateGas": hex(8_000_001),
    }
    for method, told in asked.items():
        with served(chain, {method: lambda _params, _told, told=told: told}) as url:
            node = Node(url, 10)
            with pytest.raises(ChainUnreachable) as caught:
                carry_out(connect(node), file, chain.payer, votes)
            node.close()
        assert caught.value.check == "fee"
    # What is signed is worth nothing on another chain, whatever the node says it is.
    sent: list[str] = []

    def kept(params: list[Any], told: Any) -> Any:
        sent.append(params[0])
        return told

    with served(chain, {"eth_sendRawTransaction": kept}) as url:
        node = Node(url, 10)
        carry_out(connect(node), file, chain.payer, votes)
        node.close()
    [raw_transaction] = sent
    fields = rlp.decode(bytes.fromhex(raw_transaction[2:])[1:])
    assert int.from_bytes(fields[0], "big") == chain.web3.eth.chain_id
