"""A Safe 2-of-3 on anvil opens a release by one approval and closes it by one removal.

The Safe is the real one, from npm; dstack's contracts are stand-ins of its published interface.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from collecting import COLLECTING
from npm_world import anvil, node_modules
from release_world import release_world

from sealtrain.base.clock import system_clock
from sealtrain.consortium.chainfile import load_chain_file
from sealtrain.consortium.decisions import Decision
from sealtrain.errors import ChainRefused, SignatureInvalid
from sealtrain.signing.needs import Needs
from sealtrain.signing.target import Target
from sealtrain_chain.account import address
from sealtrain_chain.chain_condition import open_gate
from sealtrain_chain.contracts import kms_allows
from sealtrain_chain.decision import decide

if not COLLECTING:
    from chain_world import (
        DEVICE,
        OS_IMAGE,
        OWNERS,
        command,
        deployed,
        key_file,
        owner_account,
    )
    from web3 import HTTPProvider, Web3
    from web3.logs import DISCARD

pytestmark = [pytest.mark.long, pytest.mark.slow]

NOBODY = "0x" + "00" * 20


@dataclass
class SafeSite:
    url: str
    web3: Web3
    safe: str
    proxy: Any
    kms: Any

    def mine(self) -> None:
        """Until what was sent is final."""
        self.web3.provider.make_request("anvil_mine", ["0x4"])


@pytest.fixture(scope="module")
def site() -> Iterator[SafeSite]:
    artefacts = node_modules() / "@safe-global/safe-contracts/build/artifacts/contracts"
    with anvil() as url:
        web3 = Web3(HTTPProvider(url))
        rich = web3.eth.accounts[0]
        web3.eth.send_transaction(
            {"from": rich, "to": owner_account("payer").address, "value": 10**18}
        )

        def made(path: str) -> Any:
            compiled = json.loads((artefacts / path).read_text())
            factory = web3.eth.contract(abi=compiled["abi"], bytecode=compiled["bytecode"])
            sent = factory.constructor().transact({"from": rich})
            where = web3.eth.wait_for_transaction_receipt(sent)["contractAddress"]
            return web3.eth.contract(address=where, abi=compiled["abi"])

        singleton = made("Safe.sol/Safe.json")
        factory = made("proxies/SafeProxyFactory.sol/SafeProxyFactory.json")
        owners = [owner_account(name).address for name in OWNERS]
        begin = singleton.encode_abi("setup", [owners, 2, NOBODY, b"", NOBODY, NOBODY, 0, NOBODY])
        sent = factory.functions.createProxyWithNonce(singleton.address, begin, 1).transact(
            {"from": rich}
        )
        receipt = web3.eth.wait_for_transaction_receipt(sent)
        safe = factory.events.ProxyCreation().process_receipt(receipt, errors=DISCARD)[0]["args"][
            "proxy"
        ]
        logic = deployed(web3, rich, "AppStandIn")
        proxy = deployed(
            web3, rich, "ProxyStandIn", logic.address, logic.encode_abi("initialize", [safe])
        )
        kms = deployed(web3, rich, "KmsStandIn")
        kms.functions.registerApp(proxy.address).transact({"from": rich})
        kms.functions.addOsImageHash(bytes.fromhex(OS_IMAGE)).transact({"from": rich})
        yield SafeSite(
            url=url,
            web3=web3,
            safe=safe.lower(),
            proxy=web3.eth.contract(address=proxy.address, abi=logic.abi),
            kms=kms,
        )


def test_a_safe_opens_the_release_and_one_removal_closes_it(site: SafeSite, tmp_path: Path) -> None:
    chain = str(tmp_path / "chain.yaml")
    site.mine()
    owners = [f"--owner-address={name}={address(owner_account(name))}" for name in OWNERS]
    pinned = command(
        "pin", "--contract", site.proxy.address, "--kind", "dstack-app", *owners,
        "--rpc", site.url, "--chain-id", "31337", "--agree", "1", "--app-id", "any",
        "--kms", site.kms.address, "--cache-seconds", "0", "--out", chain,
    )  # fmt: skip
    assert pinned["told"]["Safe threshold"] == 2
    assert pinned["told"]["Safe modules"] == []
    assert pinned["told"]["TCB up to date"] is True
    assert pinned["told"]["registered with the KMS"] is True
    file = load_chain_file(Path(chain))

    with (
        open_gate(file, clock=system_clock, monotonic=time.monotonic) as gate,
        release_world(tmp_path, chain=gate) as world,
    ):
        deployment = tmp_path / "app-compose.json"
        deployment.write_bytes(world.locked.compose_bytes)
        compose_hash = world.locked.compose_hash

        def kms_says() -> tuple[bool, str]:
            return kms_allows(
                site.kms,
                app_id=site.proxy.address[2:].lower(),
                compose_hash=compose_hash,
                os_image_hash=OS_IMAGE,
                device_id=DEVICE,
            )

        assert kms_says() == (False, "Compose hash not allowed")
        with pytest.raises(ChainRefused):
            world.obtain()

        # One owner alone cannot: neither past the Safe nor through it.
        with pytest.raises(Exception, match="0x118cdaa7"):  # OwnableUnauthorizedAccount
            site.proxy.functions.addComposeHash(bytes.fromhex(compose_hash)).call(
                {"from": owner_account(OWNERS[0]).address}
            )
        proposal, first, second = (str(tmp_path / name) for name in ("p", "p.a", "p.b"))
        common = ["--chain", chain]
        command(
            "propose",
            "--deployment",
            str(deployment),
            *common,
            "--safe",
            site.safe,
            "--out",
            proposal,
        )
        signing = [*common, "--deployment", str(deployment), "--yes"]
        command(
            "sign",
            proposal,
            *signing,
            "--ethereum-key",
            key_file(tmp_path, OWNERS[0]),
            "--out",
            first,
        )
        paying = [*common, "--ethereum-key", key_file(tmp_path, "payer")]
        told = command("execute", first, *paying, fails=ChainRefused)
        assert "GS020" in told["got"]
        as_stranger = [*signing, "--ethereum-key", key_file(tmp_path, "stranger"), "--out", second]
        command("sign", proposal, *as_stranger, fails=SignatureInvalid)
        command(
            "sign",
            proposal,
            *signing,
            "--ethereum-key",
            key_file(tmp_path, OWNERS[2]),
            "--out",
            second,
        )
        command("execute", first, second, *paying)
        assert kms_says() == (True, "")
        with pytest.raises(ChainRefused):
            world.obtain()  # not final yet
        site.mine()
        status = ["status", *common, "--deployment", str(deployment)]
        assert command(*status)["deployment"]["allowed"] is True
        world.obtain()

        # The signatures serve once; two other owners remove it.
        assert "GS026" in command("execute", first, second, *paying, fails=ChainRefused)["got"]
        removal, third, fourth = (str(tmp_path / name) for name in ("r", "r.b", "r.c"))
        command("propose", "--deployment", str(deployment), *common, "--safe", site.safe,
            "--remove",
                  "--out", removal)  # fmt: skip
        signing = [*common, "--yes"]
        command(
            "sign",
            removal,
            *signing,
            "--ethereum-key",
            key_file(tmp_path, OWNERS[1]),
            "--out",
            third,
        )
        command(
            "sign",
            removal,
            *signing,
            "--ethereum-key",
            key_file(tmp_path, OWNERS[2]),
            "--out",
            fourth,
        )
        command("execute", third, fourth, *paying)
        site.mine()
        assert kms_says() == (False, "Compose hash not allowed")
        with pytest.raises(ChainRefused):
            world.obtain()
        command(*status, fails=ChainRefused)
        world.assert_no_key_left()


def test_the_owners_contract_is_proven_by_another_implementation(
    site: SafeSite, tmp_path: Path
) -> None:
    """What py-evm's trie shows elsewhere, anvil's shows here; dstack's KMS reads it directly."""
    owners = [f"--owner-address={name}={address(owner_account(name))}" for name in OWNERS]
    node = ["--rpc", site.url, "--chain-id", "31337"]
    paying = ["--ethereum-key", key_file(tmp_path, "payer")]
    contract = command("deploy", *owners, *node, "--approve", "2", "--any-device", *paying)[
        "contract"
    ]
    path = str(tmp_path / "chain.yaml")
    site.mine()
    command(
        "pin", "--contract", contract, "--kind", "owners", *owners, *node, "--agree", "1",
        "--block", "latest", "--cache-seconds", "0", "--out", path,
    )  # fmt: skip
    file = load_chain_file(Path(path))
    target = Target(app_id=contract[2:], compose_hash="ab" * 32, recipe_hash="cd" * 32)
    now = system_clock()
    decision = Decision.approve(
        consortium_id="12" * 32,
        brokers=["b1" * 32],
        target=target,
        needs=Needs(actions=("approve",), owners=()),
        signed_at=now,
        not_after=now + 3600,
    )
    votes = []
    for name in OWNERS[:2]:
        vote = decide(
            owner_account(name), file, subject=target.compose_hash, verdict="approve", nonce=0,
            not_after=now + 3600, deadline=now + 3600, decision=decision,
        )  # fmt: skip
        votes.append(str(tmp_path / f"{name}.vote"))
        Path(votes[-1]).write_bytes(vote.to_bytes())
    rich = {"from": site.web3.eth.accounts[0]}
    where = site.web3.to_checksum_address(contract)
    site.kms.functions.registerApp(where).transact(rich)

    def kms_says() -> tuple[bool, str]:
        return kms_allows(
            site.kms,
            app_id=target.app_id,
            compose_hash=target.compose_hash,
            os_image_hash=OS_IMAGE,
            device_id=DEVICE,
        )

    with open_gate(file, clock=system_clock, monotonic=time.monotonic) as gate:
        assert kms_says() == (False, "Compose hash not allowed")
        with pytest.raises(ChainRefused):
            gate.require_allowed(target.app_id, target.compose_hash)
        command("execute", *votes, "--chain", path, *paying)
        assert kms_says() == (True, "")
        gate.require_allowed(target.app_id, target.compose_hash)
