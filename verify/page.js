// The page: files in, checks out. Text of a manifest is only ever set as text.

import { Refusal } from "./bytes.js";
import { escapeHidden } from "./characters.js";
import { readTrust, verify } from "./verify.js";

const MARKS = { passed: "✓", failed: "✗", "not-done": "–", "not-checked": "?" };
const WORDS = { passed: "passed", failed: "failed", "not-done": "not done", "not-checked": "not checked" };
const given = { manifest: null, trust: null, artefacts: null };

function show(id, value) {
  document.getElementById(id).textContent = escapeHidden(value);
}

function verdictText({ verdict, check, code, manifest }) {
  if (verdict === "verified") {
    return manifest.predicate.simulated ? "verified: SIMULATED — NOT ATTESTED" : "verified";
  }
  return verdict === "refused" ? `refused: ${code} (${check})` : `not verified: ${check} could not be checked`;
}

function rowOf({ name, title, outcome, detail, code }) {
  const row = document.createElement("tr");
  row.dataset.check = name;
  row.dataset.outcome = outcome;
  for (const cell of [`${MARKS[outcome]} ${WORDS[outcome]}`, title, name, code ?? "", detail]) {
    row.insertCell().textContent = escapeHidden(cell);
  }
  return row;
}

function listLimits({ limits }) {
  const items = limits.map(({ id, text, field, released, chain }) => {
    const item = document.createElement("li");
    if (field) item.dataset.open = field;
    if (released) item.dataset.released = released.join();
    if (chain) item.dataset.chain = chain;
    item.textContent = escapeHidden(id === null ? text : `${id}: ${text}`);
    return item;
  });
  document.getElementById("limits").replaceChildren(...items);
}

async function run() {
  if (!given.manifest || !given.trust) {
    show("verdict", given.manifest ? "now the trust file" : "drop a manifest and a trust file");
    return;
  }
  const began = performance.now();
  const body = document.getElementById("checks");
  body.replaceChildren();
  document.getElementById("limits").replaceChildren();
  let report;
  try {
    const trust = await readTrust(given.trust);
    const now = Math.floor(Date.now() / 1000);
    report = await verify(given.manifest, trust, { artefacts: given.artefacts, now });
  } catch (error) {
    document.body.dataset.verdict = "unusable";
    const said = error instanceof Refusal ? `${error.code}: ${error.message}` : String(error);
    show("verdict", `not verified: ${said}`);
    return;
  }
  body.replaceChildren(...report.checks.map(rowOf));
  listLimits(report);
  document.body.dataset.simulated = String(Boolean(report.manifest?.predicate.simulated));
  show("verdict", verdictText(report));
  document.body.dataset.milliseconds = String(Math.round(performance.now() - began));
  document.body.dataset.verdict = report.verdict;
  show("time", `${document.body.dataset.milliseconds} ms, offline; nothing left this page`);
}

async function take(files) {
  for (const file of files) {
    if (file.size > 16 * 2 ** 20) continue;
    const bytes = new Uint8Array(await file.arrayBuffer());
    const isManifest = new TextDecoder().decode(bytes).includes('"dsseEnvelope"');
    given[isManifest ? "manifest" : "trust"] = bytes;
  }
  await run();
}

function takeFolder(files) {
  const found = new Map();
  for (const file of files) {
    const path = file.webkitRelativePath.split("/");
    const from = path.indexOf("model");
    if (from < 0) continue;
    found.set(path.slice(from).join("/"), async () => new Uint8Array(await file.arrayBuffer()));
  }
  given.artefacts = found;
  return run();
}

document.getElementById("files").addEventListener("change", ({ target }) => take(target.files));
document.getElementById("folder").addEventListener("change", ({ target }) => takeFolder(target.files));
document.addEventListener("dragover", (event) => event.preventDefault());
document.addEventListener("drop", (event) => {
  event.preventDefault();
  take(event.dataTransfer.files);
});
