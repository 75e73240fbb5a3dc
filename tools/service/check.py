"""Try a real broker against its own OpenAPI document with schemathesis.

``python tools/service/check.py --st .venv-service/bin/st [--examples N] [--seed N]``

It starts a broker over a simulated consortium on 127.0.0.1, gives schemathesis an owner's key,
operators' tokens and messages that reach decisions, and exits as schemathesis does.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]


def main() -> int:
    """Serve, run schemathesis, stop."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--st", type=Path, required=True, help="schemathesis's program")
    parser.add_argument("--examples", type=int, default=60, help="cases for each operation")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    sys.path.insert(0, str(REPOSITORY / "tests" / "support"))
    from release_world import served_world  # type: ignore[import-not-found]  # of the tests

    from sealtrain.broker.config import BrokerLimits

    plenty = BrokerLimits(
        posts_per_minute=1_000_000,
        connections_per_address=1_000,
    )
    with (
        tempfile.TemporaryDirectory() as folder,
        served_world(Path(folder), limits=plenty) as (world, url),
    ):
        given = Path(folder) / "given.json"
        given.write_text(json.dumps(_make_messages(world, url)))
        given.chmod(0o600)
        command = [
            str(asked.st.absolute()),
            *("--config-file", str(HERE / "schemathesis.toml")),
            *("run", f"{url}/openapi.json"),
            *("--max-examples", str(asked.examples), "--seed", str(asked.seed)),
            *("--checks", "all", "--continue-on-failure"),
            *("--output-truncate", "true", "--no-color"),
            *("--generation-database", "none", "--suppress-health-check", "all"),
        ]
        environment = os.environ | {
            "SCHEMATHESIS_HOOKS": str(HERE / "hooks.py"),
            "SEALTRAIN_SERVICE": str(given),
        }
        # The program that the caller names, on an address of ours.
        done = subprocess.run(command, env=environment, cwd=folder, check=False)  # noqa: S603
        return done.returncode


def _make_messages(world: Any, url: str) -> dict[str, Any]:
    """An owner's seed, operators' tokens, and messages of this broker."""
    from release_world import boot_info
    from world import identity  # type: ignore[import-not-found]  # of the tests

    from sealtrain.broker.store.tokens import TokenState, make_token, scope_of
    from sealtrain.consortium.approvals import Decision, sign_decision
    from sealtrain.consortium.owner_document import sign_owned
    from sealtrain.consortium.policies import OwnerPolicy
    from sealtrain.ledger.witness import cosign_tree_head
    from sealtrain.signing.note import SignedNote

    owner, now, target = "hospital-a", world.clock(), world.target
    tokens = {}
    for scope in ("metrics", "status"):
        tokens[scope] = make_token(os.urandom)
        kept = TokenState(name=scope, scope=scope_of(scope), made_at=now, not_after=now + 3600)
        with world.store.transaction() as transaction:
            transaction.tokens.add(tokens[scope], kept)
    world.obtain()
    approval = Decision.approve(
        consortium_id=world.consortium.consortium_id,
        brokers=world.locked.lock.brokers,
        target=target,
        needs=world.needs,
        signed_at=now,
        not_after=now + 3600,
    )
    policy = OwnerPolicy.of(
        consortium_id=world.consortium.consortium_id,
        owner=identity(owner).public,
        appraisal=world.policy,
        lease_seconds=600,
        previous=None,
        signed_at=now,
    )
    note = world.ledger.checkpoint()
    line = cosign_tree_head(note, owner, identity(owner).signer, at=now)
    challenge = {"version": 1, "consortium_id": world.consortium.consortium_id}
    boot = boot_info(world)
    return {
        "seed": _signing_seed(owner),
        "keyid": identity(owner).public.key_id,
        "authority": url.removeprefix("http://"),
        "now": now,
        "tokens": tokens,
        "queries": {**target.to_dict(), "nonce": "0f" * 32, "index": 1, "first": 1, "second": 2},
        "bodies": {
            "/v1/challenges": [challenge | {"purpose": name} for name in ("release", "renewal")],
            "/v1/releases": [world.wire.requests[-1].to_dict()],
            "/v1/approvals": [sign_decision(approval, identity(owner).signer).to_dict()],
            "/v1/datasets": [world.sealed[owner].envelope.to_dict()],
            "/v1/policies": [sign_owned(policy, identity(owner).signer).to_dict()],
            "/v1/ledger/cosignatures": [
                {
                    "version": 1,
                    "cosigned": SignedNote.from_text(note).with_signature(line).to_text(),
                }
            ],
            "/bootAuth/app": [boot],
            "/bootAuth/kms": [boot],
        },
    }


def _signing_seed(owner: str) -> str:
    """Of a test owner, in hex."""
    from hashlib import sha256

    from sealtrain.base.secret import Secret
    from sealtrain.keys.derive import derive

    seed = Secret(sha256(b"test owner " + owner.encode()).digest())
    return derive(seed, "identity-signing").reveal().hex()


if __name__ == "__main__":
    sys.exit(main())
