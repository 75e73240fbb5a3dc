"""The JavaScript verifier (``verify/``) says of every manifest what ours says."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from manifest_world import (
    FINISHED,
    NOW,
    RELEASED,
    RUN_ID,
    START,
    World,
    limits_of,
    make_joint,
    make_world,
    with_receipts,
)
from meeting_world import nodes_world, receipt_of
from mutants import DataUses, Mutants
from node_judges import judge, node
from programs import need
from record_examinations import recorded
from run_logs import fields_of
from second_verifier import (
    Comparison,
    Question,
    compare,
    counted,
    second_answers,
)
from world import DAY, OWNERS, RECIPE

from sealtrain.base.canonical import canonical_json
from sealtrain.base.clock import to_rfc3339
from sealtrain.base.yamltext import parse_yaml
from sealtrain.consortium.receipts import Lease, ReleaseReceipt
from sealtrain.errors import SealtrainError, TrustInvalid
from sealtrain.manifest.checks.case import CLOCK_TOLERANCE_S
from sealtrain.manifest.second_verifier import join_page
from sealtrain.manifest.verify import CHECKS
from sealtrain.signing.parties import node_run_id
from sealtrain.signing.runlog import RunLog

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = 90
CORPUS = (
    "tests/attack/test_manifest_negative.py",
    "tests/attack/test_manifest_tampering.py",
    "tests/attack/test_manifest_other_brokers.py",
    "tests/attack/test_nodes_manifest.py",
    "tests/unit/manifest",
)
NIGHT = pytest.mark.nightly
pytestmark = [pytest.mark.long, pytest.mark.claim("C25"), pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def honest(world: World) -> bytes:
    return world.manifest()


def agreed(
    comparison: Comparison, capsys: pytest.CaptureFixture[str], what: str | None = None
) -> None:
    with capsys.disabled():
        print(f"\n{comparison}")
    if what is not None:
        counted(what, comparison.asked, len(comparison.disagreements) + len(comparison.crashes))
    assert comparison.disagreements == ()
    assert comparison.crashes == ()


def test_the_honest_manifest_is_verified_with_every_check_in_order(
    world: World, honest: bytes
) -> None:
    trust, out = world.trust(), world.artefacts
    asked = Question(label="honest", manifest=honest, trust=trust, artefacts=out, now=NOW)
    (answer,) = second_answers([asked])
    assert answer["verdict"] == "verified"
    assert [check["name"] for check in answer["checks"]] == [name for name, _, _ in CHECKS]
    assert {check["outcome"] for check in answer["checks"]} == {"passed"}


def test_a_sample_of_mutants_ends_alike(
    world: World, honest: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = random.Random(20)  # noqa: S311  # the same in every run
    comparison = compare(Mutants(world, honest).sample(chosen, SAMPLE))
    agreed(comparison, capsys)
    assert len(comparison.verdicts) > 8
    assert comparison.undecided.total() == 0


@pytest.mark.parametrize(
    "most", [pytest.param(2 << 20, id="2 MiB"), pytest.param(48 << 20, id="48 MiB", marks=NIGHT)]
)
def test_a_file_of_another_size_or_version_is_refused_alike_and_soon(
    world: World, honest: bytes, most: int
) -> None:
    """So much of one text, of depth and of values; a version twice, and one of the future."""
    mutants = Mutants(world, honest)
    later = json.loads(honest)
    later["version"] = 2
    statement = json.loads(json.dumps(mutants.statement))
    statement["predicateType"] = statement["predicateType"].replace("/v2", "/v3")
    files = {
        "over the limit": b" " * ((48 << 20) + 1),
        "one text": b'{"version":1,"x":"' + b"a" * (most - 21) + b'"}',
        "depth": b"[" * most,
        "values": b"[" + b"0," * (most // 2 - 2) + b"0]",
        "two versions": b'{"version":1,' + honest[1:],
        "file of a later version": canonical_json(later),
        "statement of a later version": mutants.requoted(statement),
    }
    comparison = compare([mutants.question(label, data) for label, data in files.items()])
    assert comparison.disagreements == ()
    assert comparison.verdicts == {"form manifest-malformed": len(files)}
    assert comparison.slowest_ms < 5000


def test_an_event_whose_name_is_no_text_has_an_answer(world: World, honest: bytes) -> None:
    """Found by the second verifier, which refuses it: ``run-log-broken``."""
    mutants = Mutants(world, honest)
    document = mutants.statement
    document["predicate"]["run_log"]["entries"][0]["event"] = {}
    comparison = compare([mutants.question("event = {}", mutants.requoted(document))])
    assert not comparison.disagreements
    assert comparison.undecided.total() == 0


def test_output_files_are_checked_alike(world: World, honest: bytes, tmp_path: Path) -> None:
    def changed(name: str, change: Any) -> Question:
        folder = tmp_path / name
        shutil.copytree(world.artefacts, folder)
        change(folder / "model/model.safetensors.sealed")
        return Question(label=name, manifest=honest, trust=world.trust(), artefacts=folder, now=NOW)

    comparison = compare(
        [
            changed("flip", lambda path: path.write_bytes(path.read_bytes()[::-1])),
            changed("short", lambda path: path.write_bytes(path.read_bytes()[:-1])),
            changed("missing", Path.unlink),
            changed("link", lambda path: (path.unlink(), path.symlink_to("config.json.sealed"))),
            changed("folder", lambda path: (path.unlink(), path.mkdir())),
            changed("more", lambda path: path.with_name("more").write_bytes(b"")),
        ]
    )
    assert comparison.disagreements == ()
    assert comparison.verdicts == {"artefacts subject-mismatch": 6}


def test_rounds_that_never_were_are_refused_alike(tmp_path: Path) -> None:
    """A log without the events of its kind, whatever else holds."""
    joint = make_joint(tmp_path)
    asked = Question(
        label="joint", manifest=joint.manifest(), trust=joint.trust(), artefacts=None, now=NOW
    )
    comparison = compare([asked])
    assert comparison.disagreements == ()
    assert comparison.undecided.total() == 0
    assert comparison.verdicts == {"collaboration claim-contradicted": 1}


def test_a_node_counts_from_its_keys_until_training_was_finished(tmp_path: Path) -> None:
    session, over = "77" * 16, START + 400
    world = nodes_world(tmp_path, nodes=2, ranks=1)
    world.facts["collaboration"] = {"kind": "nodes", "parties": []}
    world.facts["run"]["environment"]["world_size"] = "2"
    joined = {
        "node": 1,
        "run_id": node_run_id(RUN_ID, session, 1),
        "evidence": "11" * 32,
        "key": "22" * 32,
        "from": to_rfc3339(RELEASED),
    }
    log = RunLog(RUN_ID)
    log.append("run.started", fields_of("run.started"), START)
    log.append("nodes.joined", {"session": session, "ranks": 1, "nodes": [joined]}, RELEASED)
    log.append("training.finished", fields_of("training.finished"), over)
    log.append("outputs.sealed", fields_of("outputs.sealed"), FINISHED)
    world.facts["run_log"] = {"head": log.head, "entries": log.entries}
    world.facts["limits"] = limits_of(world.facts)

    def asked(label: str, *receipts: ReleaseReceipt) -> Question:
        manifest = world.manifest(with_receipts(world, [world.receipt(), *receipts]))
        return Question(
            label=label, manifest=manifest, trust=world.trust(), artefacts=None, now=NOW
        )

    def lent_until(second: int) -> ReleaseReceipt:
        lease = Lease(lease_id="33" * 32, not_after=to_rfc3339(second))
        return receipt_of(world, 1, session, lease=lease)

    own = asked("own", lent_until(over - CLOCK_TOLERANCE_S))
    comparison = compare(
        [
            own,
            asked("no receipt"),
            asked("lent too short", lent_until(over - CLOCK_TOLERANCE_S - 1)),
            asked("of another session", receipt_of(world, 1, "88" * 16)),
            asked("of another node", receipt_of(world, 2, session)),
        ]
    )
    assert comparison.disagreements == ()
    assert comparison.undecided.total() == 0
    assert comparison.verdicts == {
        "verified": 1,
        "times lease-stale": 2,
        "releases claim-contradicted": 2,
    }


@pytest.fixture(scope="module")
def uses(tmp_path_factory: pytest.TempPathFactory) -> DataUses:
    """A run whose recipe states its purpose, for statements of the first owner."""
    recipe = {**RECIPE, "purpose": "care", "legal_basis": "consent"}
    return DataUses(make_world(tmp_path_factory.mktemp("data-use"), recipe), OWNERS[0])


def test_purposes_that_bind_hold_alike(uses: DataUses, world: World) -> None:
    def binding(*purposes: str, bind: bool = True) -> dict[str, Any]:
        return {"purposes": list(purposes)} | ({"purposes_bind": True} if bind else {})

    unstated = DataUses(world, OWNERS[0])
    allowed = compare(
        [
            uses.question(binding("research", "care")),
            uses.question(binding("research", bind=False)),
            unstated.question(binding("research", bind=False)),
        ]
    )
    refused = compare(
        [
            uses.question(binding("research")),
            uses.question(binding("Care", "care.", "car")),
            unstated.question(binding("care")),
        ]
    )
    assert (allowed.disagreements, refused.disagreements) == ((), ())
    assert allowed.verdicts == {"verified": 3}
    assert refused.verdicts == {"datasets purpose-mismatch": 3}


def test_retention_ends_alike(uses: DataUses) -> None:
    def until(second: int) -> dict[str, Any]:
        return {"retention_until": to_rfc3339(second)}

    last = FINISHED - CLOCK_TOLERANCE_S
    late = uses.world.record(uses.world.receipt(released_at=to_rfc3339(FINISHED - 30)))
    kept = compare(
        [uses.question(until(second)) for second in (NOW, FINISHED, last)]
        + [uses.question(until(FINISHED - 30), releases=late)]
    )
    ended = compare(
        [uses.question(until(second)) for second in (last - 1, RELEASED, START - DAY)]
        + [uses.question(until(FINISHED - 31), releases=late)]
    )
    assert (kept.disagreements, ended.disagreements) == ((), ())
    assert kept.verdicts == {"verified": 4}
    assert ended.verdicts == {"times retention-ended": 4}


def test_statements_of_another_form_are_refused_alike(
    uses: DataUses, capsys: pytest.CaptureFixture[str]
) -> None:
    """A sample; the nightly test asks all."""
    makers = random.Random(20).sample(uses.malformed(), 24)  # noqa: S311  # the same in every run
    comparison = compare([make() for make in makers])
    agreed(comparison, capsys)
    assert comparison.verdicts["datasets statement-invalid"] > 13
    assert comparison.undecided.total() == 0


VECTORS_DRIVER = """
import {{ readFileSync }} from "node:fs";
import {{ Refusal }} from {bytes};
import {{ ownersOf, readDataset }} from {consortium};
const {{ consortium, cases }} = JSON.parse(readFileSync({vectors}));
const owners = await ownersOf(consortium);
for (const {{ envelope }} of cases) {{
  try {{
    const {{ data_use = null }} = await readDataset(JSON.parse(envelope), owners);
    console.log(JSON.stringify(["ok", data_use]));
  }} catch (error) {{
    if (!(error instanceof Refusal)) throw error;
    console.log(JSON.stringify([error.code, null]));
  }}
}}
"""


def test_the_vectors_of_data_use_end_as_they_say(tmp_path: Path) -> None:
    vectors = ROOT / "vectors/approvals/data-use.json"
    script = tmp_path / "vectors.mjs"
    script.write_text(
        VECTORS_DRIVER.format(
            bytes=json.dumps((ROOT / "verify/bytes.js").as_uri()),
            consortium=json.dumps((ROOT / "verify/consortium.js").as_uri()),
            vectors=json.dumps(str(vectors)),
        )
    )
    done = subprocess.run(
        [node(), "--no-warnings", str(script)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    cases = json.loads(vectors.read_text())["cases"]
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        [case["outcome"], case.get("data_use")] for case in cases
    ]


def test_node_prints_the_checks_and_ends_with_the_code_of_the_verdict(
    world: World, honest: bytes, tmp_path: Path
) -> None:
    trust, other = tmp_path / "trust.yaml", tmp_path / "other.yaml"
    document = json.loads(json.dumps(world.trust().to_dict()))
    trust.write_text(yaml.safe_dump(document))
    other.write_text(yaml.safe_dump(document | {"recipe_hash": "00" * 32}))
    manifest = tmp_path / "manifest.json"
    manifest.write_bytes(honest)
    broken = tmp_path / "broken.yaml"
    broken.write_text("version: 1\n")
    for given, code in ((trust, 0), (other, 3), (broken, 2)):
        done = subprocess.run(
            [node(), "--no-warnings", str(ROOT / "verify/node.js"), str(manifest), str(given)],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        # The run of the world ends in the future of a clock that is behind.
        assert done.returncode in ((code, 3) if code == 0 else (code,)), done.stderr
        json.loads(done.stdout)


def test_tables_and_digest_are_those_of_the_package() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools/verifier_page.py"), "--check"], check=False, timeout=60
    )
    assert done.returncode == 0, "run make format"


def test_without_ed25519_nothing_is_verified(world: World, honest: bytes, tmp_path: Path) -> None:
    """A browser that cannot check signatures says so: no pass, and no refusal of the manifest."""
    trust, manifest, script = (tmp_path / name for name in ("trust.json", "m.json", "old.mjs"))
    trust.write_text(json.dumps(world.trust().to_dict()))
    manifest.write_bytes(honest)
    script.write_text(
        f"""
import {{ readFile }} from "node:fs/promises";
import {{ readTrust, verify }} from {json.dumps((ROOT / "verify/verify.js").as_uri())};
const known = crypto.subtle.importKey;
crypto.subtle.importKey = function (format, key, algorithm, ...rest) {{
  if (algorithm.name === "Ed25519") throw new DOMException("unknown", "NotSupportedError");
  return known.call(this, format, key, algorithm, ...rest);
}};
const trust = await readTrust(await readFile({json.dumps(str(trust))}));
const bytes = new Uint8Array(await readFile({json.dumps(str(manifest))}));
const {{ verdict, check, code, checks }} = await verify(bytes, trust, {{ now: {NOW} }});
console.log(JSON.stringify({{ verdict, check, code, checks }}));
"""
    )
    done = subprocess.run(
        [node(), "--no-warnings", str(script)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    answer = json.loads(done.stdout)
    assert (answer["verdict"], answer["check"], answer["code"]) == (
        "not verified",
        "signature",
        None,
    )
    outcomes = {check["name"]: check["outcome"] for check in answer["checks"]}
    assert outcomes["signature"] == outcomes["datasets"] == "not-checked"
    assert "failed" not in outcomes.values()


YAML_DRIVER = """
import {{ canonical, Malformed }} from {json};
import {{ parseYaml }} from {yaml};
for (const text of {texts}) {{
  try {{
    console.log(new TextDecoder().decode(canonical(parseYaml(new TextEncoder().encode(text)))));
  }} catch (error) {{
    if (!(error instanceof Malformed)) throw error;
    console.log("refused");
  }}
}}
"""


def test_no_yaml_means_another_thing_to_the_second_reader(tmp_path: Path) -> None:
    """It reads what we read, and refuses what we refuse."""
    texts = [
        "a: 1\nb: [1, two, 3.5]\n",
        "a:\n- x: 1\n  y: no\n- ~\n",
        "a: 'it''s'\nb: \"\\u00e9\"\n",
        "a: {b: any, c: [d, {e: f}]}\n",
        "a: 0x10\nb: 1:30\nc: 2020-01-01\nd: 2e-5\ne: 007\n",
        "a: 1\na: 2\n",
        "a: &x 1\nb: *x\n",
        "a: !!str 1\n",
        "a: |\n  text\n",
        "a: b # comment\n# another\nc: 'd # e'\n",
        "a: b: c\n",
        "a:\n  b: 1\n c: 2\n",
        "a: [1, 2\n",
        "- a\n-b\n",
        'a: "x"y\n',
        'a: ["x"y]\n',
        "a: one\n  two\n",
        "a: ---\n---\nb: 1\n",
        "? a\n: b\n",
        "<<: {a: 1}\n",
        "a: [b,, c]\n",
        "a: {b}\n",
        "a: 'x' y\n",
        "a: -\n",
        "a: @x\n",
        "a: 1_000\n",
        "true: 1\n",
        "1: a\n",
    ]
    script = tmp_path / "read.mjs"
    modules = {name: json.dumps((ROOT / f"verify/{name}.js").as_uri()) for name in ("json", "yaml")}
    script.write_text(YAML_DRIVER.format(**modules, texts=json.dumps(texts)))
    done = subprocess.run(
        [node(), str(script)], capture_output=True, text=True, check=True, timeout=60
    )
    differ = {}
    read = 0
    for text, theirs in zip(texts, done.stdout.splitlines(), strict=True):
        try:
            value = parse_yaml(text.encode(), error=TrustInvalid, what="text", max_bytes=1 << 20)
            ours = canonical_json(value).decode()
        except SealtrainError:
            ours = "refused"
        read += theirs != "refused"
        if theirs != ours:
            differ[text] = (ours, theirs)
    assert differ == {}
    assert read > 6


@pytest.mark.nightly
def test_chromium_verifies_from_disk_offline_in_half_a_second(
    world: World, honest: bytes, tmp_path: Path
) -> None:
    chromium = need("chromium")["chromium"]
    manifest, forged = tmp_path / "manifest.json", tmp_path / "forged.json"
    manifest.write_bytes(honest)
    forged.write_bytes(honest.replace(b"A", b"B", 1))
    trust = tmp_path / "trust.yaml"
    trust.write_text(yaml.safe_dump(json.loads(json.dumps(world.trust().to_dict()))))

    page = tmp_path / "verify.html"
    page.write_text(join_page(), "utf-8")

    def shown(file: Path) -> dict[str, Any]:
        driver = ROOT / "tests/support/in_chromium.mjs"
        done = subprocess.run(
            [node(), str(driver), chromium, str(page), str(file), str(trust)],
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    answer = shown(manifest)
    assert answer["verdict"] == "verified"
    assert [row["check"] for row in answer["rows"]] == [name for name, _, _ in CHECKS]
    assert answer["milliseconds"] < 500
    assert answer["asked"] == [page.as_uri()]
    assert answer["faults"] == []
    assert shown(forged)["verdict"] == "refused"


@pytest.mark.nightly
def test_every_mutant_ends_alike(
    world: World, honest: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    makers = Mutants(world, honest).all()
    assert len(makers) > 10_000
    agreed(compare([make() for make in makers]), capsys, "mutants of a manifest, signed anew")


@pytest.mark.nightly
def test_every_statement_of_another_form_is_refused_alike(
    uses: DataUses, capsys: pytest.CaptureFixture[str]
) -> None:
    comparison = compare([make() for make in uses.malformed()])
    agreed(comparison, capsys, "statements of use of data in another form")
    assert comparison.verdicts["datasets statement-invalid"] > 150
    assert comparison.undecided.total() == 0


@pytest.mark.nightly
def test_the_corpus_of_the_other_tests_ends_alike(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "examinations"
    folder.mkdir()
    run = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "record_examinations", *CORPUS]
    done = subprocess.run(
        run,
        cwd=ROOT,
        env={**os.environ, "EXAMINATIONS": str(folder), "PYTHONPATH": str(ROOT / "tests/support")},
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout[-2000:]
    questions = [Question(**record) for record in recorded(folder)]
    assert len(questions) > 1000
    agreed(compare(questions), capsys, "manifests that the tests of our verifier attack")


KINDS = {"cut", "federated", "nodes", "pads", "travelling"}
LOGS = (
    "tests/unit/manifest/test_manifest_cut.py",
    "tests/unit/manifest/test_manifest_pads.py",
    "tests/unit/manifest/test_manifest_patients.py",
    "tests/unit/manifest/test_manifest_rounds.py",
    "tests/attack/test_nodes_manifest.py",
    "tests/attack/test_patient_rounds.py",
    "tests/attack/test_travelling.py",
)


@pytest.mark.nightly
def test_run_logs_of_every_kind_end_alike(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each log that a test of check 18 holds to the rules of its kind."""
    folder = tmp_path / "logs"
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "record_rules", *LOGS],
        cwd=ROOT,
        env={**os.environ, "RULES_SEEN": str(folder), "PYTHONPATH": str(ROOT / "tests/support")},
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout[-2000:]
    seen = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    answers = judge(ROOT / "tests/support/second_rules.mjs", map(json.dumps, seen))
    with capsys.disabled():
        print(f"\n{len(seen)} run logs of {len({record['kind'] for record in seen})} kinds")
    assert {record["kind"] for record in seen if record["code"] is None} == KINDS
    assert {record["kind"] for record in seen if record["code"] is not None} == KINDS
    differ = [
        (record["label"], record["code"], answer)
        for record, answer in zip(seen, answers, strict=True)
        if record["code"] != answer
    ]
    counted("run logs of joint runs", len(seen), len(differ))
    assert differ == []
