// The page: files in, checks out. Text of a manifest is only ever set as text.

import { Refusal } from "./bytes.js";
import { escapeHidden } from "./characters.js";
import { HEAD_BYTES, MOST_BYTES, chooseFiles, recogniseFile } from "./filekinds.js";
import { readTrust, verify } from "./verify.js";

const MARKS = { passed: "✓", failed: "✗", "not-done": "–", "not-checked": "?" };
const WORDS = { passed: "passed", failed: "failed", "not-done": "not done", "not-checked": "not checked" };
const COLUMNS = ["outcome", "check", "name", "code", "detail"];
const MISSING = {
  both: "Nothing is verified yet: a manifest and a trust file are missing.",
  manifest: "Nothing is verified yet: the manifest is missing.",
  trust: "Nothing is verified yet: your trust file is missing. It says what you trust; sealtrain trust new writes one.",
};
const MOST_ENTRIES = 10_000;
const KIND_WORDS = { manifest: "a run's manifest", trust: "a trust file" };
const given = { manifest: null, trust: null, artefacts: null };
const givenNames = { manifest: "", trust: "" };

const byId = (id) => document.getElementById(id);

function show(id, value) {
  byId(id).textContent = escapeHidden(value);
}

function verdictText({ verdict, check, code, manifest }) {
  if (verdict === "verified") {
    return manifest.predicate.simulated ? "✓ verified: SIMULATED — NOT ATTESTED" : "✓ verified";
  }
  return verdict === "refused" ? `✗ refused: ${code} (${check})` : `not verified: ${check} could not be checked`;
}

function rowOf({ name, title, outcome, detail, code }) {
  const row = document.createElement("tr");
  row.dataset.check = name;
  row.dataset.outcome = outcome;
  for (const [at, text] of [`${MARKS[outcome]} ${WORDS[outcome]}`, title, name, code ?? "", detail].entries()) {
    const cell = row.insertCell();
    cell.dataset.label = COLUMNS[at];
    cell.textContent = escapeHidden(text);
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
  byId("limits").replaceChildren(...items);
}

/** What the manifest says it is about; its checks say whether that holds. */
function listAbout({ manifest }) {
  const { predicate } = manifest ?? {};
  const facts = predicate
    ? [["recipe", predicate.recipe?.lock?.recipe?.name], ["run", predicate.run?.run_id], ["finished", predicate.run?.finished_at]]
    : [];
  const items = facts.flatMap(([label, value]) => {
    const [term, said] = [document.createElement("dt"), document.createElement("dd")];
    term.textContent = label;
    said.textContent = escapeHidden(typeof value === "string" ? value : "–");
    return [term, said];
  });
  byId("about").replaceChildren(...items);
}

function clear() {
  for (const id of ["checks", "limits", "about"]) byId(id).replaceChildren();
  show("time", "");
  byId("found").hidden = true;
  for (const fact of ["verdict", "simulated", "milliseconds"]) delete document.body.dataset[fact];
}

async function run() {
  clear();
  if (!given.manifest || !given.trust) {
    show("verdict", MISSING[given.manifest ? "trust" : given.trust ? "manifest" : "both"]);
    return;
  }
  const began = performance.now();
  show("verdict", "Verifying…");
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
  byId("checks").replaceChildren(...report.checks.map(rowOf));
  byId("found").hidden = false;
  listLimits(report);
  listAbout(report);
  document.body.dataset.simulated = String(Boolean(report.manifest?.predicate.simulated));
  show("verdict", verdictText(report));
  document.body.dataset.milliseconds = String(Math.round(performance.now() - began));
  document.body.dataset.verdict = report.verdict;
  show("time", `${document.body.dataset.milliseconds} ms, offline; nothing left this page`);
}

async function readFile(file) {
  const whole = file.size <= MOST_BYTES;
  const part = whole ? file : file.slice(0, HEAD_BYTES);
  return { size: file.size, bytes: new Uint8Array(await part.arrayBuffer()) };
}

/** What each file is, and the bytes of the first of each kind that the page verifies: one file at a time is in memory. */
async function recogniseEach(named) {
  const files = [];
  const bytesOf = {};
  for (const file of named) {
    const read = await readFile(file);
    const found = recogniseFile(read);
    files.push(found);
    if (found.kind in KIND_WORDS) bytesOf[found.kind] ??= read.bytes;
  }
  return { files, bytesOf };
}

function givenItem(named, { kind, what, need, used }) {
  const item = document.createElement("li");
  item.dataset.kind = kind;
  item.dataset.used = String(used);
  const name = document.createElement("b");
  name.textContent = escapeHidden(named);
  item.append(name, escapeHidden(`: ${what}.${used || need === "" ? "" : ` Not used: ${need}.`}`));
  return item;
}

/** The files that came, after those that the page holds since earlier. */
function listGiven(names, { taken, notes, more }) {
  const held = Object.keys(KIND_WORDS)
    .filter((kind) => given[kind] !== null && taken[kind] === null)
    .map((kind) => givenItem(givenNames[kind], { kind, what: KIND_WORDS[kind], need: "", used: true }));
  const items = [...held, ...notes.map((note, at) => givenItem(names[at], note))];
  if (more) {
    const item = document.createElement("li");
    item.textContent = `and ${more} more`;
    items.push(item);
  }
  byId("given").replaceChildren(...items);
}

let turn = Promise.resolve();

/** Take files in the order in which they came: a large one may not overtake the next. */
function take(files, outputs = null) {
  const named = [...files];
  turn = turn.then(async () => {
    if (outputs !== null) given.artefacts = outputs;
    if (named.length) {
      const names = named.map(({ name }) => name);
      try {
        const { files: recognised, bytesOf } = await recogniseEach(named);
        const chosen = chooseFiles(recognised);
        for (const kind of chosen.several) given[kind] = null;
        for (const [kind, at] of Object.entries(chosen.taken)) {
          if (at !== null) [given[kind], givenNames[kind]] = [bytesOf[kind], names[at]];
        }
        listGiven(names, chosen);
      } catch (error) {
        clear();
        document.body.dataset.verdict = "unusable";
        show("verdict", `not verified: a file cannot be read (${error.message})`);
        return;
      }
    }
    await run();
  });
  return turn;
}

/** Output files of a run by their path from `model`, and its manifest, out of its folder. */
function takeFolder(files) {
  const found = new Map();
  const named = [];
  for (const [path, file] of files) {
    const parts = path.split("/");
    const from = parts.indexOf("model");
    if (from >= 0) found.set(parts.slice(from).join("/"), async () => new Uint8Array(await file.arrayBuffer()));
    else if (parts.length <= 2 && /^(?:manifest\.json|.*trust.*\.ya?ml)$/.test(parts.at(-1))) named.push(file);
  }
  return take(named, found);
}

/** Files of a dropped entry by their paths; at most `MOST_ENTRIES` of them. */
async function filesBelow(entry, found) {
  if (found.length >= MOST_ENTRIES) return;
  if (entry.isFile) {
    const file = await new Promise((resolve, reject) => entry.file(resolve, reject));
    found.push([entry.fullPath.replace(/^\//, ""), file]);
    return;
  }
  const reader = entry.createReader();
  for (;;) {
    const some = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
    if (!some.length) return;
    for (const each of some) await filesBelow(each, found);
  }
}

async function takeDropped({ items, files }) {
  // Entries are there only while the event is handled, so they are asked for before anything waits.
  const entries = [...(items ?? [])].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
  const loose = [...files];
  const folders = entries.filter((entry) => entry.isDirectory);
  if (!folders.length) return take(loose);
  const found = [];
  for (const folder of folders) await filesBelow(folder, found);
  const names = new Set(folders.map(({ name }) => name));
  await takeFolder(found);
  const others = loose.filter(({ name }) => !names.has(name));
  return others.length ? take(others) : turn;
}

// The same file again, changed meanwhile, is another choice.
for (const id of ["files", "folder"]) byId(id).addEventListener("click", ({ target }) => (target.value = ""));
byId("files").addEventListener("change", ({ target }) => take(target.files));
byId("folder").addEventListener("change", ({ target }) =>
  takeFolder([...target.files].map((file) => [file.webkitRelativePath, file])),
);
document.addEventListener("dragover", (event) => {
  event.preventDefault();
  byId("drop").dataset.over = "true";
});
document.addEventListener("dragleave", () => delete byId("drop").dataset.over);
document.addEventListener("drop", (event) => {
  event.preventDefault();
  delete byId("drop").dataset.over;
  takeDropped(event.dataTransfer);
});
