"""A call that works of every command, its files and folders those of ``bad_input_world``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bad_input_cases import Call
from bad_inputs import Address, ProxyUrl, Read, ServerUrl, StoreUrl, Text, Ticket, Write

ME: Final = ("--identity", Read("clinic-a/clinic-a.identity.json"))
BROKER: Final = ("--broker", Read("broker.yaml"))
OTHER: Final = ("--broker", Read("other.yaml"))
CONSORTIUM: Final = ("--consortium", Read("consortium.json"))
POLICY: Final = ("--policy", Read("policy.yaml"))
DOCUMENT: Final = Read("engineer/app-compose.json")
DEPLOYMENT: Final = ("--deployment", DOCUMENT)
SPARE: Final = ("--deployment", Read("spare/app-compose.json"))
IN_IMAGE: Final = ("--deployment", Read("on-platform.json"))
LOCK: Final = Read("engineer/recipe.lock.json")
SEALED: Final = Read("engineer/sealed/clinic-a.notes.sealed")
SPARE_SEALED: Final = Read("spare/sealed/clinic-a.notes.sealed")
MANIFEST: Final = Read("run/manifest.json")
TRUST: Final = ("--trust", Read("trust.yaml"))
COLLATERAL: Final = ("--collateral", "file:root/collateral.json")
GPU_COLLATERAL: Final = ("--gpu-collateral", "file:root/gpu-collateral.json")
OUT: Final = ("--out", Write("new"))
RECORDS: Final = "inputs/clinic-a.notes.jsonl"
ALL_RECORDS: Final = tuple(
    word
    for name in ("clinic-a.notes", "clinic-b.notes", "clinic-c.notes", "clinic-a.check")
    for word in ("--records", Text(f"{name}=inputs/{name}.jsonl"))
)
GPUS: Final = ("--gpus", "2")


def guest(name: str = "engineer") -> tuple[str | Text, ...]:
    return (
        "--platform", "simulator", "--guest", Text(f"{name}.sock"), *COLLATERAL, *GPU_COLLATERAL,
    )  # fmt: skip


def played(recipe: str, role: str, ready: str = "", *, code: int = 0, keeps: bool = False) -> Call:
    """A guest in a role of another recipe."""
    words = (
        f"{recipe}/recipe.lock.json", "--platform", "simulator", "--guest", f"{recipe}.sock",
        *COLLATERAL, *GPU_COLLATERAL, "--ticket", Ticket(f"{role}.ticket.json"), *OUT,
    )  # fmt: skip
    return Call(words, ready=ready, code=code, keeps=keeps, command="guest")


RUN: Final = (*guest(), *BROKER, "--data", Read("engineer/sealed"))
EVIDENCE: Final = (
    Read("evidence.json"), *COLLATERAL, *GPU_COLLATERAL, "--at", Text("now"), *POLICY,
)  # fmt: skip
CHAIN: Final = ("--chain", Read("chain.yaml"))
PAYER: Final = ("--ethereum-key", Read("payer.key"))
NODES: Final = ("--rpc", Text("{rpc0}"), "--rpc", "{rpc1}", "--rpc", "{rpc2}")
OWNERS_ON_CHAIN: Final = (
    "--owner-address", Text("{owner0}"), "--owner-address", "{owner1}",
    "--owner-address", "{owner2}",
)  # fmt: skip

CALLS: Final[Mapping[str, Call]] = {
    "keygen": Call((Text("clinic-e"), *OUT)),
    "lock": Call((Read("engineer/recipe.yaml"), *BROKER, *CONSORTIUM, *OUT)),
    "seal": Call((
        Read(RECORDS), "--name", Text("notes"), *ME, *SPARE, *BROKER, "--no-register",
        "--data-use", Read("data-use.yaml"), *OUT,
    )),
    "seal of a table": Call(
        (
            Read("notes.csv"), "--name", Text("notes"), *ME, *SPARE, *BROKER, "--no-register",
            "--columns", Text("read"), "--decimals", Text("comma"), "--layout", Text("arrow"),
            "--format", Text("auto"), "--padding", Text("bucket"), *OUT,
        ),
        command="seal",
    ),
    "rewrap": Call(
        (SPARE_SEALED, *ME, *SPARE, *BROKER, "--data-use", Read("data-use.yaml")), lasting=True,
    ),
    "adopt": Call((
        Read("handed"), "--identity", Read("clinic-c/clinic-c.identity.json"),
        "--deployment", Read("further/app-compose.json"), "--trust", Read("risk-trust.yaml"),
        *BROKER, *OUT,
    )),
    "register": Call((SEALED, *ME, *DEPLOYMENT, *BROKER)),
    "status": Call((*DEPLOYMENT, *BROKER, "--interrupted", Read("killed"))),
    "init": Call((
        Write("new"), "--owner-name", Text("clinic-e"), "--sample", Read(RECORDS),
        "--prompt", Text("prompt"), "--completion", "completion",
        "--base-model", Text("models/base"),
    )),
    "init of a table": Call(
        (
            Write("new"), "--owner-name", "clinic-e", "--sample", Read("notes.csv"),
            "--phase", Text("classify"), "--feature", Text("age"), "--label", Text("completion"),
        ),
        command="init",
    ),
    "up": Call(
        (
            *CONSORTIUM, "--out", Write("new"), "--port", Text("{free}"), *GPUS,
            "--tee", Text("dstack"), "--switches", Text("0"), "--brokers", Text("1"),
        ),
        ready="broker http", keeps=True,
    ),
    "rehearse": Call(
        (Read("engineer/recipe.yaml"), *ALL_RECORDS, *OUT, "--no-show"), ready="founding",
        keeps=True,
    ),
    "recipe check": Call(
        (Read("engineer/recipe.yaml"), *CONSORTIUM, *ALL_RECORDS[:2], "--no-show")
    ),
    "recipe import": Call((Read("axolotl.yaml"), "--dataset", Text("clinic-a.notes"), *OUT)),
    "inspect": Call((SEALED,)),
    "contains": Call((SEALED, Read("evidence.json"), *ME), code=5),
    "open": Call((Read("run/model"), *ME, *TRUST, *OUT)),
    "approve": Call((
        *SPARE, *ME, *BROKER, *CONSORTIUM, "--data", SPARE_SEALED,
        "--data", "spare/sealed/clinic-a.check.sealed", "--yes",
    )),
    "revoke": Call((*SPARE, *ME, *BROKER, *CONSORTIUM, "--yes"), lasting=True),
    "train": Call((LOCK, *RUN, *OUT)),
    "resume": Call(
        (Read("killed"), "--wait-for-lease", Text("1s"), "--ranks", Text("1")), lasting=True,
    ),
    "guest": Call((LOCK, *guest(), "--ticket", Read("guest.ticket.json"), *OUT)),
    "guest as accelerator": played("travelling", "accelerator", "accelerator ready"),
    "guest as dealer": played("pads", "dealer", "dealer ready"),
    "guest as holder": played("travelling", "holder", "holder ready"),
    "guest as lead": played("federated", "lead", "federation ready", keeps=True),
    "guest as node": played("nodes", "node", code=4),
    "guest as orchestrator": played("travelling", "orchestrator", code=4, keeps=True),
    "guest as party": played("federated", "party", "party ready"),
    "guest as server": played("cut", "server", "cut server ready", keeps=True),
    "checkpoints": Call((Read("killed"),)),
    "merge": Call((Read("adapter"), "--base-model", Read("base"), *OUT)),
    "verify": Call((MANIFEST, *TRUST, "--artefacts", Read("run"))),
    "report": Call((MANIFEST, *TRUST, *OUT), keeps=True),
    "approvals watch": Call(
        (
            Text("clinic-a"), *BROKER, *CONSORTIUM, "--webhook", Read("webhook.txt"),
            "--memory", Write("new"), "--every", Text("60s"), "--once",
        ),
    ),
    "run track": Call((
        MANIFEST, *TRUST, "--tracker", Text("mlflow"), "--tracking-uri", Text("http://127.0.0.1:9"),
        "--experiment", Text("study"), "--dry-run",
    )),
    "run compare": Call((MANIFEST, *TRUST, "--metric", Text("loss"), *OUT), keeps=True),
    "export": Call((MANIFEST, *TRUST, "--format", Text("model-card"), *OUT)),
    "validate": Call((
        Read("ruled.yaml"), *ME,
        "--records", Text("clinic-a.notes=engineer/sealed/clinic-a.notes.sealed"),
    )),
    "validate of a table": Call(
        (
            Read("ruled.yaml"), "--records", Text("clinic-a.notes=notes.csv"),
            "--decimals", Text("comma"),
        ),
        command="validate",
    ),
    "publish": Call((SEALED, Text("{store}"))),
    "doctor": Call((
        "--policy", Text("policy.yaml"), "--collateral", Text("file:root/collateral.json"),
        "--gpu-collateral", Text("file:root/gpu-collateral.json"),
    )),
    "withdraw": Call((SPARE_SEALED, *ME, *BROKER, "--yes"), lasting=True),
    "explain": Call((Text("usage"),)),
    "recipes": Call((Text("sft-lora"),)),
    "recipe show": Call((LOCK,)),
    "recipe diff": Call((LOCK, Read("spare/recipe.lock.json"))),
    "log": Call(BROKER),
    "log witness": Call((*BROKER, *ME, *CONSORTIUM)),
    "log audit": Call((*BROKER, *CONSORTIUM, *TRUST)),
    "log uses": Call((SEALED, *BROKER)),
    "console": Call(
        (*BROKER, *CONSORTIUM, *DEPLOYMENT, "--folder", Read("run"), "--port", Text("0")),
        ready="console ready", answers=False,
    ),
    "console agent": Call(
        (*ME, *BROKER, *CONSORTIUM, *DEPLOYMENT, "--socket", Write("new")),
        ready="agent ready", answers=False,
    ),
    "approvals status": Call((*DEPLOYMENT, *BROKER, *CONSORTIUM)),
    "policy new": Call((Text("dstack-h100"), *OUT)),
    "policy set": Call((Read("policy.yaml"), *ME, *OTHER, "--yes")),
    "policy clear": Call((*ME, *OTHER, "--yes")),
    "policy show": Call((*BROKER, *CONSORTIUM)),
    "consortium create": Call((
        Text("stage"), "--owner", Read("clinic-a/clinic-a.public.json"), "--approve", Text("1"),
        *OUT,
    )),
    "consortium propose": Call((
        *ME, *OTHER, "--add", Read("clinic-d/clinic-d.public.json"), *OUT, "--yes",
    )),
    "consortium verify": Call((Read("signed.json"), *CONSORTIUM)),
    "consortium sign": Call(
        (
            Read("succession.json"), "--identity", Read("clinic-b/clinic-b.identity.json"),
            *OTHER, "--yes",
        ),
        lasting=True,
    ),
    "consortium follow": Call((Read("signed.json"), *ME, *OTHER)),
    "consortium succeed": Call((Read("signed.json"), *ME, *OTHER, *OUT), keeps=True, lasting=True),
    "attest collect": Call((*guest(), "--nonce", Text("00" * 32), *OUT)),
    "attest verify": Call(EVIDENCE),
    "attest explain": Call(EVIDENCE),
    "attest bundle": Call((*EVIDENCE, *OUT)),
    "attest fetch": Call((*OUT, "--quote", Read("evidence.json"), "--pccs", Text("{pccs}"))),
    "trust new": Call((*CONSORTIUM, *DEPLOYMENT, *POLICY, *BROKER, *OUT)),
    "broker serve": Call(
        (
            *CONSORTIUM, *POLICY, "--root-secret", Text("file:root.secret"),
            "--state", Write("new"), *guest("broker"), "--port", Text("0"),
        ),
        ready="broker ready", answers=False, keeps=True,
    ),
    "broker deployment": Call((*CONSORTIUM, *POLICY, *OUT)),
    "broker pin": Call((
        "--url", ServerUrl("{broker}"), "--broker-deployment", Read("broker-compose.json"),
        *POLICY, "--ca-file", Read("bank-ca.pem"), *OUT,
    )),
    "broker status": Call((*BROKER, "--token-file", Read("token"))),
    "broker backup": Call(("--state", Read("broker/state"), *OUT)),
    "broker restore": Call((Read("backup"), "--state", Write("new"))),
    "broker migrate": Call(("--state", Read("broker-copy"))),
    "broker restored": Call(
        ("--database", Text("postgresql+psycopg://broker@127.0.0.1:9/none")), code=4,
    ),
    "broker approve-kms": Call((DOCUMENT, *ME, *OTHER, "--yes")),
    "broker rotate-root": Call(
        (
            *CONSORTIUM, "--state", Read("served"), "--root-secret", Text("file:root.secret"),
            "--new-root-secret", Text("file:next.secret"),
        ),
        lasting=True,
    ),
    "broker root split": Call((
        "--root-secret", Text("file:root.secret"), "--threshold", Text("2"),
        "--shares", Text("3"), *OUT,
    )),
    "broker root join": Call((Read("shares/{share0}"), "shares/{share1}", *OUT)),
    "broker token create": Call(
        (Text("watcher"), "--scope", Text("metrics"), *OUT, "--state", Read("broker-copy")),
        undo=("broker", "token", "remove", "watcher", "--state", "broker-copy"),
    ),
    "broker token list": Call(("--state", Read("broker-copy"))),
    "broker token remove": Call((Text("old"), "--state", Read("broker-copy")), lasting=True),
    "deploy run": Call(
        (
            *DEPLOYMENT, "--folder", Write("new"), "--ticket", Read("guest.ticket.json"),
            "--simulator", Read("root"), *GPUS,
        ),
        keeps=True,
    ),
    "deploy ticket": Call((
        "--role", Text("train"), *BROKER, "--data", Text("engineer/sealed"),
        "--store", StoreUrl("s3://results/run"), "--ca-file", Read("bank-ca.pem"),
        "--outbound-proxy", ProxyUrl("http://proxy.example:3128"), *OUT,
    )),
    "deploy ticket of a holder": Call(
        (
            "--role", Text("holder"), *BROKER, "--data", Text("engineer/sealed"),
            "--party", Text("clinic-a"), "--peer", Text("writes=127.0.0.1:9"),
            "--listen", Address("127.0.0.1:0"), *OUT,
        ),
        command="deploy ticket",
    ),
    "deploy ticket of a node": Call(
        (
            "--role", Text("node"), *BROKER, "--data", Text("engineer/sealed"),
            "--node", Text("1"), "--peer", Text("lead=127.0.0.1:9"), *OUT,
        ),
        command="deploy ticket",
    ),
    "deploy ticket of a party": Call(
        (
            "--role", Text("party"), *BROKER, "--data", Text("engineer/sealed"),
            "--party", Text("clinic-a"), "--run", Text("0" * 32), *OUT,
        ),
        command="deploy ticket",
    ),
    "deploy ticket of an orchestrator": Call(
        (
            "--role", Text("orchestrator"), *BROKER, "--holder", Text("clinic-a=127.0.0.1:9"),
            "--peer", Text("accelerator=127.0.0.1:9"), "--peer", Text("writes=127.0.0.1:9"),
            "--states", Write("states"), *OUT,
        ),
        command="deploy ticket",
    ),
    "deploy parts": Call((*IN_IMAGE, *OUT)),
    "deploy adopt": Call((
        Read("platform.json"), *IN_IMAGE, "--accept-script", Text("ab" * 32), *OUT,
    )),
    "deploy credentials": Call(
        (Read("credentials.json"), *DEPLOYMENT, *POLICY, "--listen", Address("127.0.0.1:0")),
        ready="lender ready", answers=False,
    ),
    "run submit": Call((
        Text("nightly"), "--ticket", Read("guest.ticket.json"), *DEPLOYMENT, *BROKER, *ME,
        "--within", Text("1h"),
    )),
    "run list": Call((*BROKER, "--limit", Text("5"))),
    "run wait": Call((Text("nightly"), *BROKER, "--timeout", Text("1s")), code=124),
    "run logs": Call((Text("nightly"), *BROKER)),
    "run download": Call((Text("nightly"), *BROKER, *OUT, "--store", Text("{store}")), code=1),
    "run stop": Call((Text("nightly"), *BROKER, *ME), lasting=True),
    "run serve": Call(
        (
            *BROKER, "--identity", Read("runner/runner.identity.json"), *DEPLOYMENT,
            "--folder", Write("new"), "--simulator", Read("root"), "--claim", Text("60s"), *GPUS,
        ),
        ready="runner ready", answers=False, keeps=True,
    ),
    "run schedule": Call(
        (
            Read("scheduled/app-compose.json"), *BROKER,
            "--identity", Read("runner/runner.identity.json"),
            "--ticket", Read("scheduled.ticket.json"), "--once",
        ),
    ),
    "image verify": Call((Read("image"), "--source", Read("source"))),
    "image show": Call((Read("image"),)),
    "image eif": Call((
        Read("layout"), "--kernel", Read("vmlinuz"), "--module", Read("nsm.ko"), *OUT,
    )),
    "nitro run": Call(
        (
            Read("nitro.eif"), "--deployment", Read("nitro.json"),
            "--ticket", Read("nitro.ticket.json"), "--reach", Text("kms.example:443"),
            "--nitro-cli", "no-such-nitro-cli",
        ),
        code=4,
    ),
    "image measure": Call(("--eif", Read("enclave.eif"))),
    "simulator serve": Call(
        (
            "--simulator", Read("root"), *DEPLOYMENT, "--socket", Write("new"), *GPUS,
        ),
        ready="guest API", answers=False,
    ),
    "demo": Call(("--out", Write("new")), ready="SIMULATED", keeps=True),
    "walk": Call(
        ("--out", Write("new"), "--port", Text("0")), ready="SIMULATED", keeps=True,
    ),
    "split accelerator": Call(
        ("--listen", Address("127.0.0.1:0"), "--device", Text("cpu"), "--threads", Text("1")),
        ready="accelerator ready", answers=False,
    ),
    "split try": Call((Read("pads/recipe.yaml"), *ALL_RECORDS[:6])),
    "split client": Call(
        (
            "--deployment", Read("cut/app-compose.json"), "--server", Text("127.0.0.1:9"), *ME,
            *CONSORTIUM, "--data", Read("cut/sealed"), *OUT, "--wait", Text("1s"),
        ),
        code=4,
    ),
    "split demo": Call(("--out", Write("new")), ready="SIMULATED", keeps=True),
    "travel demo": Call(("--out", Write("new")), ready="SIMULATED", keeps=True),
    "federate relay": Call(OUT),
    "federate demo": Call(("--out", Write("new")), ready="SIMULATED", keeps=True),
    "chain deploy": Call((
        *OWNERS_ON_CHAIN, *NODES, "--chain-id", Text("{chain_id}"), "--approve", Text("2"), *PAYER,
    )),
    "chain pin": Call((
        "--contract", Text("{contract}"), "--kind", Text("owners"), *OWNERS_ON_CHAIN, *NODES,
        "--chain-id", Text("{chain_id}"), "--agree", Text("2"), "--block", Text("latest"),
        "--app-id", Text("any"), *OUT,
    )),
    "chain status": Call((*CHAIN, *DEPLOYMENT), code=3),
    "chain approve": Call((
        *DEPLOYMENT, *CHAIN, "--ethereum-key", Read("clinic-a.key"), *BROKER, *OUT, *CONSORTIUM,
        "--yes",
    )),
    "chain revoke": Call((
        *DEPLOYMENT, *CHAIN, "--ethereum-key", Read("clinic-a.key"), *OUT, *CONSORTIUM, "--yes",
    )),
    "chain device": Call((
        Text("ab" * 32), *CHAIN, "--ethereum-key", Read("clinic-a.key"), *OUT,
    )),
    "chain execute": Call((Read("revocation.json"), *CHAIN, *PAYER), lasting=True),
    "chain propose": Call(
        (*DEPLOYMENT, *CHAIN, "--safe", Text("{contract}"), *OUT), code=2,
    ),
    "chain sign": Call(
        (Read("revocation.json"), *CHAIN, "--ethereum-key", Read("clinic-a.key"), *OUT), code=3,
    ),
}  # fmt: skip
"""By command."""

AT_THE_DESK: Final = (
    "broker deployment", "broker root split", "consortium create", "deploy adopt", "deploy parts",
    "explain", "image eif", "image measure",
    "init", "init of a table", "keygen", "nitro run", "policy new", "recipe import", "recipes",
)  # fmt: skip
"""Commands that ask no server: their bad input is played with every change."""

NOTHING_TO_REPLACE: Final[Mapping[str, str]] = {
    "broker openapi": "it reads nothing",
    "recipe schema": "it reads nothing",
    "simulator faults": "it reads nothing",
}
"""Commands without a call, and why."""

NOT_WHOLE: Final[Mapping[str, str]] = {
    "broker restored": "tests/integration plays it on a PostgreSQL",
    "chain propose": "a Safe is played on anvil: tests/integration/test_chain_safe.py",
    "chain sign": "a Safe is played on anvil: tests/integration/test_chain_safe.py",
    "contains": "a dataset with commitments is sealed for it: tests/cli/test_cli_data_use.py",
    "guest as node": "its lead is a run of its own: tests/integration plays nodes",
    "guest as orchestrator": "its holders are runs of their own: test_travel_demo.py",
    "nitro run": "no parent instance is here: tests/unit/guest/test_enclave_parent.py plays one",
    "run download": "a run that ended: tests/integration plays runners",
    "split client": "its server is a run of its own: tests/integration/test_cut_run.py",
}
"""Calls that go as far as their peers, or a system that is not here, and no further."""
