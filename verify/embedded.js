// A report that verifies itself: the manifest and the trust file that lie in the page, checked here.

import { Refusal, fromBase64 } from "./bytes.js";
import { escapeHidden } from "./characters.js";
import { readTrust, verify } from "./verify.js";

const MARKS = { passed: "✓", failed: "✗", "not-done": "–", "not-checked": "?" };
const WORDS = { passed: "passed", failed: "failed", "not-done": "not done", "not-checked": "not checked" };
const box = document.getElementById("self-check");

function say(verdict, text) {
  box.dataset.verdict = verdict;
  document.getElementById("self-verdict").textContent = escapeHidden(text);
}

function rowOf({ name, title, outcome, code, detail }) {
  const row = document.createElement("li");
  row.className = outcome;
  row.dataset.check = name;
  row.dataset.outcome = outcome;
  const parts = { mark: MARKS[outcome], title, detail: [WORDS[outcome], code, detail].filter(Boolean).join(": ") };
  for (const [kind, text] of Object.entries(parts)) {
    const part = document.createElement("span");
    part.className = kind;
    part.textContent = escapeHidden(text);
    row.append(part);
  }
  return row;
}

function textOf({ verdict, check, code, manifest, open }) {
  if (verdict === "refused") return `✗ Refused by this page: ${code} (${check})`;
  if (verdict !== "verified") return `? Could not check: ${check}. This is not a pass.`;
  const simulated = manifest.predicate.simulated ? " SIMULATED — NOT ATTESTED." : "";
  const left = open.map(({ field }) => field).join(", ");
  const openly = left && ` Left open by the trust file: ${left}.`;
  return `✓ Verified again by this page.${simulated} The output files were not looked at.${openly}`;
}

async function run() {
  const part = (id) => fromBase64(document.getElementById(id).textContent);
  const began = performance.now();
  try {
    const trust = await readTrust(part("self-trust"));
    const report = await verify(part("self-manifest"), trust, { now: Math.floor(Date.now() / 1000) });
    document.getElementById("self-rows").replaceChildren(...report.checks.map(rowOf));
    box.dataset.milliseconds = String(Math.round(performance.now() - began));
    box.dataset.simulated = String(Boolean(report.manifest?.predicate.simulated));
    say(report.verdict, textOf(report));
  } catch (error) {
    const said = error instanceof Refusal ? `${error.code}: ${error.message}` : String(error);
    say("unusable", `? Could not check: ${said}. This is not a pass.`);
  }
}

run();
