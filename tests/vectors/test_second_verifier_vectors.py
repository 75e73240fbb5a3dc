"""The JavaScript verifier ends the vectors of ``vectors/`` as they say."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from node_judges import node

ROOT = Path(__file__).resolve().parents[2]
DRIVER = """
import {{ readFileSync }} from "node:fs";
import {{ Refusal, utf8, equal, fromHex }} from "{verify}/bytes.js";
import {{ embeddedLock }} from "{verify}/deployment.js";
import {{ requiredLimits }} from "{verify}/limits.js";
import {{ appraise, readEvidence, reportData, verifyEvidence }} from "{verify}/evidence.js";
import {{ readManifest }} from "{verify}/form.js";
import {{ canonical }} from "{verify}/json.js";
import {{ TIERS, TIER_OF_KIND, reaches }} from "{verify}/tiers.js";
const read = (name) => JSON.parse(readFileSync("{vectors}/" + name));
const say = (name, got, expected) => console.log(JSON.stringify([name, got, expected]));
async function code(judge) {{
  try {{
    await judge();
    return "ok";
  }} catch (error) {{
    if (!(error instanceof Refusal)) return `fault: ${{error.stack}}`;
    return error.code;
  }}
}}
const form = read("manifest/form.json");
for (const one of form.cases.filter(({{ outcome }}) => outcome !== "ok")) {{
  const bytes = utf8(one.file);
  say(`form ${{one.name}}`, await code(() => readManifest(bytes)), one.outcome);
}}
for (const {{ name, lock, compose }} of read("recipe/compose.json").cases) {{
  const found = await embeddedLock(utf8(compose));
  say(`compose ${{name}}`, equal(found, utf8(lock)), true);
}}
for (const {{ name, compose }} of read("recipe/compose.json").refused) {{
  say(`compose ${{name}}`, await code(() => embeddedLock(utf8(compose))), "recipe-changed");
}}
const adopted = read("recipe/adopted.json");
for (const {{ name, lock, compose, outcome }} of adopted.cases) {{
  const {{ text, runs }} = adopted.locks[lock];
  const whole = utf8(compose.replaceAll("@@", () => runs));
  const judge = async () => {{
    if (!equal(await embeddedLock(whole), utf8(text))) throw new Refusal("another lock", "");
  }};
  say(`adopted ${{name}}`, await code(judge), outcome === "ok" ? "ok" : "recipe-changed");
}}
for (const [script, expected] of [["ab".repeat(32), true], [null, false], [undefined, false]]) {{
  const recipe = {{ lock: {{ recipe: {{ hardware: {{ launch_script: script }} }} }} }};
  const [privacy, compute, log] = [{{ dp: "none" }}, {{ accelerators: [] }}, {{ entries: [] }}];
  const deployment = {{ tier: "processor" }};
  const rest = {{ deployment, consortium: {{}}, releases: [], run_log: log }};
  const said = {{ privacy, compute, recipe, ...rest }};
  const ids = requiredLimits(said);
  say(`limit for the script ${{script}}`, ids.includes("platform-script"), expected);
}}
const tiers = read("evidence/tiers.json");
const sorted = (value) => JSON.stringify(Object.entries(value).sort());
say("order of tiers", TIERS.join(), tiers.order.join());
say("kinds of evidence", sorted(TIER_OF_KIND), sorted(tiers.kinds));
for (const {{ name, kind, lowest, outcome }} of tiers.cases) {{
  say(`tier ${{name}}`, reaches(TIER_OF_KIND[kind], lowest) ? "ok" : "tier-refused", outcome);
}}
const shared = read("evidence/documents.json");
for (const {{ name, changes, cpu, now, outcome }} of shared.cases) {{
  const document = {{ ...shared.evidence, ...changes }};
  document.cpu = {{ ...document.cpu, ...cpu }};
  const judge = async () => {{
    const evidence = readEvidence(canonical(document));
    const conversation = {{ purpose: shared.purpose, transcript: shared.transcript }};
    const facts = await verifyEvidence(evidence, shared.policy, now, conversation);
    const expected = {{ compose_hash: shared.compose_hash, app_id: shared.app_id }};
    appraise(facts, shared.policy, expected, now);
    const named = await reportData(shared.purpose, shared.transcript, evidence.gpu);
    if (!equal(named, facts.reportData)) throw new Refusal("report-data-mismatch", "");
  }};
  say(`evidence ${{name}}`, await code(judge), outcome);
}}
"""


@pytest.mark.claim("C671")
def test_it_ends_vectors_of_forms_documents_and_evidence_as_they_say(tmp_path: Path) -> None:
    script = tmp_path / "vectors.mjs"
    verify = (ROOT / "verify").as_uri()
    script.write_text(DRIVER.format(verify=verify, vectors=str(ROOT / "vectors")))
    done = subprocess.run(
        [node(), "--no-warnings", str(script)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    judged = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(judged) > 60
    assert [part for part in judged if part[1] != part[2]] == []
