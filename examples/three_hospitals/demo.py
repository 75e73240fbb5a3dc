"""Three hospitals train one model on 569 real patients without showing each other a record.

Runs every step as its own process, as the people concerned would: owners seal and approve, a
broker guards the keys, a simulated guest trains, an auditor verifies. Then it repeats the training
on plaintext to show that sealing changes nothing, and tries one attack.

    python examples/three_hospitals/demo.py [--out demo-out]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from sealtrain.base.processes import end_with_starter  # noqa: E402
from sealtrain.client.pin import load_pin  # noqa: E402
from sealtrain.manifest import form  # noqa: E402
from staging import Stage, emptied  # noqa: E402 - it lies beside the stories

HOSPITALS = ("hospital-a", "hospital-b", "hospital-c")


def play(out: Path) -> None:
    """The whole story, from raw records to a verified manifest and a refused attack."""
    with Stage(out) as demo:
        _story(demo)


def _story(demo: Stage) -> None:
    from records import write_records

    out = demo.out
    demo.title("Three hospitals hold records that must not be pooled")
    counts = write_records(out)
    for name, count in counts.items():
        print(f"  {name}: {count} patients")

    demo.title(
        "Each makes an identity; together they found a consortium: 2 of 3 must approve, and every "
        "hospital whose records are read"
    )
    for hospital in HOSPITALS:
        demo.run("keygen", hospital, "--out", out / hospital)
    owners = [("--owner", out / name / f"{name}.public.json") for name in HOSPITALS]
    consortium = out / "consortium.json"
    demo.run(
        "consortium", "create", "three-hospitals", *(word for pair in owners for word in pair),
        "--approve", "2", "--out", consortium,
    )  # fmt: skip

    demo.title("SIMULATED — NOT ATTESTED: a broker starts, and proves which one it is")
    root = out / "simulated-root"
    policy = out / "policy.yaml"
    demo.run("simulator", "serve", "--simulator", root, "--write-policy", policy)
    demo.run(
        "broker", "deployment", "--consortium", consortium, "--policy", policy,
        "--out", out / "broker-compose.json",
    )  # fmt: skip
    demo.run(
        "deploy", "ticket", "--role", "broker", "--listen", "127.0.0.1:0",
        "--out", out / "broker-ticket.json",
    )  # fmt: skip
    _, url = demo.server(
        "broker ready", "deploy", "run", "--deployment", out / "broker-compose.json",
        "--ticket", out / "broker-ticket.json", "--folder", out / "broker", "--simulator", root,
    )  # fmt: skip
    broker = out / "broker.yaml"
    demo.run(
        "broker", "pin", "--url", url, "--broker-deployment", out / "broker-compose.json",
        "--policy", policy, "--out", broker,
    )  # fmt: skip
    print(f"  broker at {url}")

    demo.title(
        "The engineer locks the recipe for this broker; the deployment document fixes every byte"
    )
    lock_folder = out / "engineer"
    lock_folder.mkdir()
    shutil.copy(HERE / "recipe.yaml", lock_folder / "recipe.yaml")
    locked = demo.run(
        "lock", lock_folder / "recipe.yaml", "--consortium", consortium, "--broker", broker,
        "--out", lock_folder,
    )  # fmt: skip
    deployment = lock_folder / "app-compose.json"
    print(f"  recipe hash {locked['recipe_hash']}")

    demo.title("Each hospital seals its records at home, for this recipe only")
    sealed = out / "sealed"
    sealed.mkdir()
    for source in sorted(out.glob("hospital-*/*.jsonl")):
        owner = source.parent.name
        demo.run(
            "seal", source, "--name", source.stem, "--identity", _identity(out, owner),
            "--deployment", deployment, "--broker", broker,
            "--out", sealed / f"{owner}.{source.stem}.sealed",
        )  # fmt: skip

    demo.title("Two approve; the recipe reads records of the third, which did not: refused")
    for hospital in HOSPITALS[:2]:
        _approve(demo, hospital, deployment, broker)
    ticket = out / "ticket.json"
    demo.run(
        "deploy", "ticket", "--role", "train", "--broker", broker, "--data", sealed,
        "--out", ticket,
    )  # fmt: skip
    train = ["deploy", "run", "--deployment", deployment, "--ticket", ticket, "--simulator", root]
    refused = demo.run(*train, "--folder", out / "guest", expect=3)["error"]
    print(f"  refused [{refused['code']}]: {refused['message']}")

    demo.title("The third hospital approves; the guest proves itself, gets the keys and trains")
    _approve(demo, HOSPITALS[2], deployment, broker)
    trained = demo.run(*train, "--folder", out / "guest")
    run = out / "guest" / "out"

    demo.title("The auditor verifies the manifest offline")
    trust = out / "trust.yaml"
    demo.run(
        "trust", "new", "--consortium", consortium, "--deployment", deployment,
        "--policy", policy, "--broker", broker, "--out", trust,
    )  # fmt: skip
    manifest = run / "manifest.json"
    verified = demo.run("verify", manifest, "--trust", trust)
    for check in verified["checks"]:
        print(f"  {'✓' if check['outcome'] == 'passed' else '·'} {check['title']}")
    demo.run("report", manifest, "--trust", trust, "--out", out / "report.html")

    demo.title("A hospital opens the model that was sealed to it")
    demo.run(
        "open", run / "model", "--identity", _identity(out, "hospital-a"),
        "--trust", trust, "--out", out / "hospital-a" / "model",
    )  # fmt: skip

    demo.title("The same training on plaintext, for comparison")
    plaintext = [str(HERE / "plaintext.py"), str(lock_folder / "recipe.lock.json"), str(out)]
    comparison = subprocess.run(  # noqa: S603 - our own program with our own words
        [sys.executable, *plaintext],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        preexec_fn=end_with_starter(),
    )
    plain = json.loads(comparison.stdout)
    _compare(trained, plain)

    demo.title("Attack: the engineer changes the recipe after approval")
    changed = _changed_recipe(demo, lock_folder, consortium)
    refused = demo.run(
        "deploy", "run", "--deployment", changed / "app-compose.json", "--ticket", ticket,
        "--simulator", root, "--folder", out / "changed-guest", expect=3,
    )["error"]  # fmt: skip
    print(f"  refused [{refused['code']}]: {refused['message']}")

    demo.title("What was measured is what ran: every document's hash, and what was proved of it")
    _compare_documents(
        {
            "guest": (deployment, _measured(manifest)),
            "broker": (out / "broker-compose.json", load_pin(broker).compose_hash),
        }
    )

    demo.title("Done")
    accuracy, majority = trained["metrics"]["accuracy"], plain["majority"]
    print(
        f"""
  SIMULATED — NOT ATTESTED: no hardware protected this run. On a TDX guest the same steps are real.

  accuracy   {accuracy:.4f} on sealed test records (always guessing benign: {majority:.4f})
  manifest   {manifest}
  report     {out / "report.html"}
  model      {out / "hospital-a" / "model"} (opened by hospital-a)
  sealed     {sealed}
"""
    )


def _identity(out: Path, owner: str) -> Path:
    return out / owner / f"{owner}.identity.json"


def _approve(demo: Stage, owner: str, deployment: Path, broker: Path) -> None:
    out = demo.out
    datasets = sorted((out / "sealed").glob(f"{owner}.*.sealed"))
    pins = [word for folder in datasets for word in ("--data", folder)]
    tally = demo.run(
        "approve", "--deployment", deployment, "--identity", _identity(out, owner),
        "--broker", broker,
        "--consortium", out / "consortium.json", *pins, "--yes",
    )  # fmt: skip
    print(f"  progress {tally['progress']}/{tally['threshold']}, sealed: {tally['sealed']}")


def _changed_recipe(demo: Stage, lock_folder: Path, consortium: Path) -> Path:
    changed = demo.out / "changed"
    changed.mkdir()
    text = (lock_folder / "recipe.yaml").read_text()
    (changed / "recipe.yaml").write_text(text.replace("seed: 7", "seed: 8"))
    demo.run(
        "lock", changed / "recipe.yaml", "--consortium", consortium,
        "--broker", demo.out / "broker.yaml", "--out", changed,
    )  # fmt: skip
    difference = demo.run(
        "recipe", "diff", lock_folder / "recipe.lock.json", changed / "recipe.lock.json"
    )
    for change in difference["changes"]:
        print(f"  {change['path']}: {change['before']} → {change['after']}")
    return changed


def _compare(trained: dict[str, Any], plain: dict[str, Any]) -> None:
    print(f"  {'step':>6}  {'sealed':>8}  {'plaintext':>9}")
    sealed_losses = {entry["step"]: entry["loss"] for entry in trained["history"]}
    plain_losses = {entry["step"]: entry["loss"] for entry in plain["history"]}
    for step in list(sealed_losses)[:: max(1, len(sealed_losses) // 6)]:
        print(f"  {step:>6}  {sealed_losses[step]:>8.4f}  {plain_losses[step]:>9.4f}")
    if sealed_losses != plain_losses:
        raise SystemExit("sealed and plaintext losses differ")
    print(f"  all {len(sealed_losses)} logged losses are equal")
    print(f"  accuracy sealed {trained['metrics']['accuracy']}, plaintext {plain['accuracy']}")


def _measured(manifest: Path) -> str:
    """The document that the run's guest measured, as its signed manifest says."""
    return form.read(manifest.read_bytes()).predicate.deployment.compose_hash


def _compare_documents(documents: dict[str, tuple[Path, str]]) -> None:
    for name, (path, proved) in documents.items():
        started = hashlib.sha256(path.read_bytes()).hexdigest()
        print(f"  {name:<7} started   {started}")
        print(f"  {'':<7} measured  {proved}")
        if started != proved:
            raise SystemExit(f"the {name} measured another document than was started")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("demo-out"))
    chosen: Path = parser.parse_args().out.resolve()
    try:
        play(emptied(chosen, "consortium.json"))
    except OSError as error:
        refused = error.filename or chosen
        raise SystemExit(f"the system refused {refused}: {error.strerror}") from None
