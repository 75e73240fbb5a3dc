"""The owners' own contract, from its deployment to a revocation, by the commands they type."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from collecting import COLLECTING
from release_world import ReleaseWorld, served_world
from world import lock_changed

from sealtrain.base.canonical import canonical_json
from sealtrain.base.clock import system_clock
from sealtrain.base.encoding import from_base64
from sealtrain.errors import AlreadyExists, ChainRefused, SignatureInvalid, TrustInvalid, UsageError
from sealtrain.recipe.needs import needs_of
from sealtrain.signing.errors import StatementInvalid
from sealtrain_chain.account import address

if not COLLECTING:
    from chain_world import (
        DEVICE,
        OWNERS,
        TestChain,
        command,
        key_file,
        new_chain,
        owner_account,
        served_by,
    )

    OWNERS_GIVEN = [f"--owner-address={name}={address(owner_account(name))}" for name in OWNERS]


@pytest.fixture(scope="module")
def chain() -> TestChain:
    return new_chain()


@pytest.fixture
def urls(chain: TestChain) -> Iterator[list[str]]:
    with served_by(chain, None, None, None) as urls:
        yield [f"--rpc={url}" for url in urls]


def test_owners_approve_and_revoke_by_commands(
    chain: TestChain, urls: list[str], tmp_path: Path
) -> None:
    with served_world(tmp_path) as (world, url):
        decide_on_the_chain(chain, urls, tmp_path, world, url)


def decide_on_the_chain(
    chain: TestChain, urls: list[str], tmp_path: Path, world: ReleaseWorld, url: str
) -> None:
    consortium = world.consortium
    members = tmp_path / "members.json"
    members.write_bytes(consortium.to_bytes())
    broker = tmp_path / "broker.yaml"
    broker.write_text(world.pin.model_copy(update={"url": url}).to_yaml())
    chain_id = f"--chain-id={chain.web3.eth.chain_id}"
    paying = ["--ethereum-key", key_file(tmp_path, "payer")]
    made = command("deploy", *OWNERS_GIVEN, *urls, chain_id, "--approve", "2", *paying)
    contract = made["contract"]
    locked = lock_changed(
        consortium.consortium_id,
        (world.pin.broker_id,),
        lambda recipe: recipe["hardware"].update(
            app_id=contract[2:], key_provider="kms", key_provider_id="3059" + "00" * 89
        ),
    )
    deployment = tmp_path / "app-compose.json"
    deployment.write_bytes(locked.compose_bytes)
    file = str(tmp_path / "chain.yaml")
    pin = ["pin", "--contract", contract, "--kind", "owners", *urls, chain_id, "--agree", "2"]
    pin += ["--block", "latest", "--out", file]
    command(*pin, *OWNERS_GIVEN[:2], fails=UsageError)
    pinned = command(*pin, *OWNERS_GIVEN)
    assert pinned["told"]["approve"] == 2
    assert pinned["told"]["revoke"] == 1
    assert Path(file).stat().st_mode & 0o777 == 0o600
    command(*pin, *OWNERS_GIVEN, fails=AlreadyExists)

    status = ["status", "--chain", file, "--deployment", str(deployment)]
    command(*status, fails=ChainRefused)

    def decided(verdict: str, owner: str, name: str) -> str:
        out = str(tmp_path / name)
        words = [
            verdict,
            "--deployment",
            str(deployment),
            "--chain",
            file,
            "--consortium",
            str(members),
            "--yes",
        ]
        words += ["--ethereum-key", key_file(tmp_path, owner), "--out", out]
        command(*words, *(["--broker", str(broker)] if verdict == "approve" else []))
        return out

    with pytest.raises(AssertionError, match="ApprovalsMissing"):
        decided("approve", OWNERS[0], "a")
    assert not (tmp_path / "a").exists()
    ends = system_clock() + 3600
    for name in OWNERS[:2]:
        needs = needs_of(locked.lock.recipe)
        world.approve(name, target=locked.target, needs=needs, not_after=ends)
    first = decided("approve", OWNERS[0], "a")
    written = json.loads(Path(first).read_bytes())
    assert Path(first).read_bytes() == canonical_json(written)
    [entry] = [
        entry["body"]["envelope"]["payload"]
        for entry in world.ledger.entries()
        if entry["kind"] == "approval"
        and entry["body"]["owner"] == OWNERS[0]
        and entry["body"]["compose_hash"] == locked.compose_hash
    ]
    assert canonical_json(written["decision"]) == from_base64(entry)
    assert written["not_after"] == ends
    execute = ["execute", "--chain", file, *paying]
    refused = command(*execute, first, fails=ChainRefused)
    assert refused["got"] == "NotEnough"
    second = decided("approve", OWNERS[1], "b")
    command(*execute, first, second)
    shown = command(*status)
    assert shown["deployment"]["allowed"] is True
    assert shown["deployment"]["nonce"] == 1
    assert len(shown["agreed"]) == 3
    assert "TCB up to date" in shown["told"]

    command(*execute, decided("revoke", OWNERS[2], "c"))
    command(*status, fails=ChainRefused)
    assert command(*execute, first, second, fails=ChainRefused)["got"] == "NotOwner"
    again = decided("approve", OWNERS[0], "d")
    command(*execute, again, second, fails=StatementInvalid)
    with pytest.raises(AssertionError, match="ApprovalsMissing"):
        decided("approve", "stranger", "e")
    assert not (tmp_path / "e").exists()

    # A decision says one thing to the ledger and to the chain.
    forged = written | {"decision": written["decision"] | {"recipe_hash": "77" * 32}}
    (tmp_path / "f").write_bytes(canonical_json(forged))
    command(*execute, str(tmp_path / "f"), second, fails=SignatureInvalid)

    device = str(tmp_path / "device")
    command("device", DEVICE, "--chain", file, "--ethereum-key", key_file(tmp_path, OWNERS[0]),
            "--out", device)  # fmt: skip
    assert json.loads(Path(device).read_bytes())["decision"] is None
    command(
        "propose", "--deployment", str(deployment), "--chain", file, "--safe", contract,
        "--out", str(tmp_path / "p"), fails=UsageError,
    )  # fmt: skip


def test_a_chain_file_with_an_unknown_or_missing_field_is_refused(tmp_path: Path) -> None:
    good = {
        "version": 1,
        "chain_id": 1,
        "rpc": ["http://node.example/secret-access-key"],
        "agree": 1,
        "block": "finalized",
        "max_age_seconds": 1800,
        "cache_seconds": 0,
        "timeout_seconds": 1,
        "contract": "0x" + "11" * 20,
        "kind": "owners",
        "code_hash": "22" * 32,
        "implementation": "none",
        "app_id": "any",
        "kms": "none",
        "owners": {"hospital-a": "0x" + "33" * 20},
    }
    file = tmp_path / "chain.yaml"

    def refused(document: object) -> str:
        file.write_text(document if isinstance(document, str) else yaml.safe_dump(document))
        told = str(command("status", "--chain", str(file), fails=TrustInvalid))
        assert "secret-access-key" not in told
        return told

    for name in good:
        assert name in refused({key: value for key, value in good.items() if key != name})
    refused(good | {"more": 1})
    refused("rpc: [http://node.example/secret-access-key\n: {")
    refused(yaml.safe_dump(good) + "contract: '0x" + "99" * 20 + "'\n")  # written twice
    refused("a: &a [http://node.example/secret-access-key]\nrpc: *a\n")
    twice = ["http://node.example/a", "http://node.example/b"]
    two = ["http://node.example/a", "http://other.example/b"]
    for changed in (
        {"rpc": []},
        {"rpc": twice, "agree": 2},
        {"rpc": two, "agree": 1},
        {"rpc": two, "agree": 3},
        {"rpc": ["ftp://node.example/"]},
        {"rpc": ["http:///nowhere"]},
        {"rpc": ["http://node.example:99999/"]},
        {"block": "pending"},
        {"max_age_seconds": 0},
        {"cache_seconds": 301},
        {"contract": "0x" + "AB" * 20},
        {"kind": "dstack-app"},
        {"implementation": "0x" + "11" * 20},
        {"owners": {}},
        {"owners": {"a": "0x" + "33" * 20, "b": "0x" + "33" * 20}},
        {"owners": {"Not A Name": "0x" + "33" * 20}},
        {"agree": True},
        {"chain_id": "1"},
    ):
        refused(good | changed)
