// The checks of a run manifest in the order of spec/run-manifest.md §3. Each takes the state of a
// verification, throws a Refusal or CannotCheck, or returns one line for a reader.

import { Refusal, demand, digest, equal, fromHex, hex, seconds, sha256, utf8 } from "./bytes.js";
import { artefactsMatch } from "./artefacts.js";
import { isFor, readDataset, readDecision, tally } from "./consortium.js";
import { countsTrue } from "./counts.js";
import { rowsTrue } from "./served.js";
import { requirePurpose } from "./datause.js";
import { embeddedLock } from "./deployment.js";
import { verifyEnvelope } from "./dsse.js";
import { appraise, readEvidence, reportData, verifyEvidence } from "./evidence.js";
import { EVIDENCE_TYPE, MARKER, STATEMENT_TYPE, commitment, outputName } from "./form.js";
import { canonical } from "./json.js";
import { collaborationHolds } from "./kinds.js";
import { limitsOfEvidence, requiredLimits } from "./limits.js";
import { datasetsOf, isLock, needsOf } from "./lock.js";
import { EVENTS, isWritten } from "./logevents.js";
import { eventsInOrder, ledgerHolds, receiptsHold } from "./releases.js";
import { admits, chainsOf } from "./series.js";
import * as shape from "./shape.js";
import { checkParties, keysReleased, moment, staysOf } from "./stays.js";
import { datasetRoot } from "./roots.js";
import { reaches } from "./tiers.js";

const TOLERANCE = 300;
const claim = (condition, message) => demand(condition, "claim-contradicted", message);

async function signature({ manifest }) {
  await verifyEnvelope(manifest.statement, [manifest.guestKey], STATEMENT_TYPE);
  return "signed by the guest key alone";
}

async function evidenceSignature(state) {
  const { manifest } = state;
  const payload = await verifyEnvelope(manifest.evidence, [manifest.guestKey], EVIDENCE_TYPE);
  state.evidence = readEvidence(payload);
  return `${payload.length} bytes of evidence signed by the same key`;
}

async function quote(state) {
  const { predicate, trust } = state;
  const evidence = state.need("evidence");
  const finished = moment(predicate.run.finished_at);
  const transcript = await commitment(state.manifest);
  const conversation = { purpose: "manifest", transcript };
  const verified = await verifyEvidence(evidence, trust.appraisal, finished, conversation);
  const accepted = !verified.simulated || trust.simulated === "accept-insecure";
  demand(accepted, "simulated-evidence", "the trust file refuses simulators");
  state.verified = verified;
  return `${evidence.cpu.tee} quote on ${evidence.platform}, as of ${predicate.run.finished_at}`;
}

async function names(state) {
  const { reportData: signed } = state.need("verified");
  const transcript = await commitment(state.manifest);
  return equal(await reportData("manifest", transcript, state.evidence.gpu), signed);
}

async function binding(state) {
  const named = await names(state);
  demand(named, "report-data-mismatch", "the quote was made for another statement, key or run log");
  state.bound = true;
  return "the quote names this statement, this key and this run log";
}

async function appraisal(state) {
  const { predicate, trust } = state;
  const verified = state.need("verified");
  appraise(verified, trust.appraisal, predicate.deployment, moment(predicate.run.finished_at));
  demand(await names(state), "report-data-mismatch", "the quote was made for something else");
  claim(predicate.deployment.tier === verified.tier, `another tier than the evidence proves: ${verified.tier}`);
  return `measurements satisfy the policy; tier ${verified.tier}; compose ${verified.composeHash.slice(0, 16)}…`;
}

const ENTRY = shape.record({
  seq: shape.integer(1),
  at: shape.realTime,
  event: shape.string,
  fields: shape.anyObject,
});

async function runLog(state) {
  const { predicate } = state;
  const { run, run_log: log, collaboration } = predicate;
  const kinds = [null, collaboration?.kind ?? null];
  const unbroken = (condition, message) => demand(condition, "run-log-broken", message);
  let head = await sha256(utf8(`sealtrain/run-log/v1:${run.run_id}`));
  for (const [place, entry] of log.entries.entries()) {
    unbroken(ENTRY(entry) && entry.seq === place + 1, `entry ${place + 1} is malformed or out of order`);
    const bytes = canonical(entry);
    unbroken(bytes.length <= 65536, `entry ${place + 1} is too long`);
    unbroken(isWritten(entry.event, entry.fields), `entry ${place + 1} has an event or fields that no run log has`);
    unbroken(kinds.includes(EVENTS[entry.event].of), `entry ${place + 1} has an event of another kind of run`);
    head = await sha256(head, bytes);
  }
  unbroken(equal(head, fromHex(log.head)), "the chain does not lead to the head");
  const first = moment(run.started_at) - TOLERANCE;
  const last = moment(run.finished_at) + TOLERANCE;
  for (const { at, seq } of log.entries) {
    claim(first <= seconds(at) && seconds(at) <= last, `entry ${seq} lies outside the run`);
  }
  state.log = log.entries;
  return `${log.entries.length} events`;
}

async function recipe(state) {
  const { predicate } = state;
  const { lock, recipe_hash: hash } = predicate.recipe;
  const bytes = canonical(lock);
  claim(bytes.length <= 192 * 1024 && (await isLock(lock)), "what the manifest shows is no lock");
  claim((await digest(bytes)) === hash, "the lock does not hash to the recipe hash");
  claim(lock.consortium_id === state.consortiumId, "the lock names another consortium");
  const { hardware } = lock.recipe;
  claim(hardware.platforms.includes(predicate.deployment.platform), "a platform the recipe forbids");
  claim(reaches(predicate.deployment.tier, hardware.tier), "a machine that proves less than the recipe asks for");
  state.lock = lock;
  const verified = state.need("verified");
  const provider = hardware.key_provider_id === null || hardware.key_provider_id === verified.keyProvider;
  demand(provider, "key-provider-mismatch", "another key provider than the recipe pins");
  const measured = await embeddedLock(verified.appCompose);
  demand(equal(measured, bytes), "recipe-changed", "the guest measured another recipe");
  return `${lock.recipe.name}, embedded in what was measured; rules between its fields are not checked here`;
}

async function trusted({ predicate, trust, consortiumId }) {
  const found = {
    consortium_id: consortiumId,
    recipe_hash: predicate.recipe.recipe_hash,
    compose_hash: predicate.deployment.compose_hash,
    app_id: predicate.deployment.app_id,
  };
  for (const [name, got] of Object.entries(found)) {
    demand(["any", got].includes(trust[name]), "trust-mismatch", `another ${name} than you trust`);
  }
  return "consortium, recipe and deployment are those of your trust file";
}

async function datasets(state) {
  const { predicate, owners } = state;
  const { recipe: asked } = state.need("lock");
  const present = await checkParties(predicate, asked);
  const found = [];
  for (const envelope of predicate.datasets) found.push(await readDataset(envelope, owners));
  const { app_id, compose_hash } = predicate.deployment;
  for (const one of found) {
    const here = one.app_id === app_id && one.compose_hash === compose_hash;
    demand(here, "dataset-mismatch", `${one.name} was sealed for another deployment`);
  }
  const ids = new Set(found.map((one) => one.dataset_id));
  demand(ids.size === found.length, "dataset-mismatch", "a dataset is listed twice");
  const pair = ({ owner, name }) => `${owner}/${name}`;
  const chains = await chainsOf(predicate, asked, found, owners);
  const listed = found.map(pair).filter((name) => !chains.has(name)).sort().join();
  const alone = datasetsOf(asked).filter((one) => present.has(one.owner) && one.series === undefined);
  const named = alone.map(pair).sort().join();
  demand(listed === named, "dataset-unknown", "not exactly the datasets that the recipe names");
  for (const one of found) requirePurpose(one, asked.purpose);
  state.datasets = found;
  state.chains = chains;
  return `${found.length} datasets, each signed by its owner`;
}

async function approvals(state) {
  const { predicate, owners, consortiumId } = state;
  const decisions = [];
  for (const envelope of predicate.approvals) {
    decisions.push(await readDecision(envelope, owners, consortiumId));
  }
  const needs = needsOf(state.need("lock").recipe);
  const target = { ...predicate.deployment, recipe_hash: predicate.recipe.recipe_hash };
  let last = null;
  const unasked = new Set();
  for (const { at, approvedBy, using, brokers } of await moments(state)) {
    const here = decisions.filter((one) => isFor(one, brokers));
    const known = here.filter(({ statement }) => {
      const signedAt = seconds(statement.signed_at);
      return statement.decision === "revoke" ? signedAt < at : signedAt <= at + TOLERANCE;
    });
    last = tally(known, predicate.consortium, target, needs, at);
    if (last.refusal) throw new Refusal(last.refusal, "approvals did not suffice when keys were released");
    const { approved } = last;
    for (const owner of using) if (!approved.includes(owner)) unasked.add(owner);
    claim(approvedBy.every((name) => approved.includes(name)), "an approval the broker counted is missing");
    for (const one of last.counted) await checkPins(state.need("datasets"), one, state.chains);
  }
  if (last === null) state.need("receipts-of-the-run");
  state.unasked = [...unasked].sort();
  return `${last.approved.length} owners approved: ${last.approved.join(", ")}`;
}

async function moments(state) {
  const { predicate } = state;
  const counted = state.need("receipts");
  if (!keysReleased(predicate)) {
    const { brokers } = state.need("lock");
    return [{ at: moment(predicate.run.started_at), approvedBy: [], using: new Set(), brokers }];
  }
  const ownerOf = new Map(state.need("datasets").map((one) => [one.dataset_id, one.owner]));
  const released = new Set(counted.flatMap((one) => one.receipt.datasets.map((data) => data.dataset_id)));
  const elsewhere = [...ownerOf].filter(([id]) => !released.has(id)).map(([, owner]) => owner);
  const using = new Map();
  for (const { runId, party } of await staysOf(predicate)) {
    using.set(runId, new Set(elsewhere.filter((owner) => party === null || owner === party)));
  }
  return counted.map(({ receipt, ids }) => {
    const now = new Set(using.get(receipt.run_id));
    for (const { dataset_id } of receipt.datasets) now.add(ownerOf.get(dataset_id));
    using.set(receipt.run_id, now);
    return { at: seconds(receipt.released_at), approvedBy: receipt.approved_by, using: now, brokers: ids };
  });
}

async function checkPins(listed, { owner, statement }, chains) {
  const pins = new Map(statement.datasets.map((one) => [one.dataset_id, one.root]));
  for (const dataset of listed.filter((one) => one.owner === owner)) {
    const pinned = pins.get(dataset.dataset_id);
    const left = !(await admits(statement, dataset, chains));
    const same = !left && [undefined, dataset.root].includes(pinned);
    demand(same, "dataset-mismatch", "an approval pins another root");
  }
}

async function policy(state) {
  const { predicate, manifest } = state;
  const lock = state.need("lock");
  const { release_policy: allowed } = lock.recipe;
  const { run, outputs, consortium } = predicate;
  for (const values of [...run.history.map((point) => point.values), run.metrics]) {
    for (const [name, value] of Object.entries(values)) {
      demand(allowed.metrics.includes(name), "egress-refused", `metric ${name} may not leave`);
      const rounded = value === null || Number(value.toFixed(allowed.round_to)) === value;
      demand(rounded, "egress-refused", `metric ${name} is finer than the recipe allows`);
    }
  }
  const { recipients } = outputs;
  const same = JSON.stringify(recipients) === JSON.stringify(allowed.model.recipients);
  claim(same, "outputs are sealed to other recipients than the recipe names");
  const known = consortium.owners.map((one) => one.name);
  claim(recipients.every((name) => known.includes(name)), "a recipient is no owner");
  await handedOn(state, lock, manifest);
  privacyKept(predicate, lock.recipe);
  countsTrue(state, lock.recipe);
  rowsTrue(state, lock.recipe);
  return `metrics, recipients and privacy are the recipe's`;
}

async function handedOn({ predicate, owners }, lock) {
  const { dataset, files } = predicate.outputs;
  const pin = lock.handed_on;
  claim((dataset === undefined) === (pin === undefined), "handed on exactly where the lock does");
  if (!pin) return;
  const owner = [...owners.values()].find((one) => one.name === pin.owner);
  const fits =
    dataset.owner === pin.owner &&
    dataset.owner_id === owner?.ownerId &&
    dataset.name === pin.dataset &&
    dataset.app_id === pin.app_id &&
    dataset.compose_hash === pin.compose_hash;
  claim(fits, "handed on to another recipe or owner than the lock says");
  const expected = ["index", ...files.slice(1).map((_, i) => `shard-${String(i).padStart(5, "0")}`)];
  const listed = files.map((file) => outputName(file.name));
  claim(listed.length > 1 && listed.join() === expected.join(), "files of another kind of dataset");
  const shards = files.slice(1).map((file) => ({ ...file, name: file.name.slice("model/".length) }));
  const root = await datasetRoot(dataset.dataset_id, files[0].root, shards);
  claim(hex(root) === dataset.root, "root of the handed-on dataset is another");
}

function privacyKept({ privacy, run, series = [] }, asked) {
  const promise = asked.collaboration?.patient_privacy ? "patients" : asked.privacy.dp;
  claim(privacy.dp === promise, "another kind of privacy than the recipe's");
  if (privacy.dp === "counts") {
    claim(privacy.epsilon === asked.privacy.target_epsilon, "another epsilon than the recipe's");
  }
  if (privacy.dp !== "sgd") return;
  for (const name of ["delta", "accountant", "max_grad_norm", "sampling", "unit"]) {
    claim(privacy[name] === asked.privacy[name], `another ${name} than the recipe's`);
  }
  const noise = asked.privacy.noise_multiplier;
  claim(noise === null || noise === privacy.noise_multiplier, "another noise than the recipe's");
  claim(privacy.epsilon <= asked.privacy.target_epsilon, "epsilon is above the recipe's");
  claim(privacy.steps === run.steps, "another number of steps than the run's");
  claim(privacy.epsilon === Math.max(...privacy.datasets.map((one) => one.epsilon)), "not the largest epsilon");
  const pair = ({ owner, name }) => `${owner}/${name}`;
  const members = (name) => series.find((one) => pair(one) === name)?.members ?? [name];
  const expected = datasetsOf(asked).filter((one) => one.role === "train").map(pair);
  const trained = expected.flatMap((name) => members(name).map(() => name)).sort().join();
  claim(privacy.datasets.map(pair).sort().join() === trained, "privacy of other datasets");
}

async function simulation(state) {
  const { predicate, trust } = state;
  const verified = state.need("verified");
  const said = [
    predicate.simulated,
    predicate.marker === MARKER,
    predicate.deployment.platform === "simulator",
    verified.platform === "simulator",
    ...state.need("receipts").map((one) => one.receipt.simulated),
  ];
  claim(said.every((value) => value === verified.simulated), "parts disagree on whether it was simulated");
  const accepted = !verified.simulated || trust.simulated === "accept-insecure";
  demand(accepted, "simulated-evidence", "the trust file refuses simulated runs");
  return verified.simulated ? MARKER : "hardware evidence, and nothing says otherwise";
}

async function limits({ predicate, evidence }) {
  const listed = predicate.limits.map((one) => one.id);
  claim(new Set(listed).size === listed.length, "a limit is listed twice");
  const needed = [...requiredLimits(predicate), ...limitsOfEvidence(evidence)];
  const missing = needed.filter((id) => !listed.includes(id));
  claim(missing.length === 0, `a limit is concealed: ${missing.join(", ")}`);
  return `${listed.length} limits stated`;
}

/** Every check after `form`, in order: name, title, function. */
export const CHECKS = [
  ["signature", "Statement is signed", signature],
  ["evidence-signature", "Evidence is signed by the same key", evidenceSignature],
  ["quote", "Quote verifies", quote],
  ["binding", "Quote names this statement", binding],
  ["appraisal", "Measurements satisfy your policy", appraisal],
  ["run-log", "Run log is unbroken", runLog],
  ["recipe", "Recipe is the measured one", recipe],
  ["trust", "It is what you trust", trusted],
  ["datasets", "Datasets are their owners'", datasets],
  ["releases", "Broker released the keys", receiptsHold],
  ["approvals", "Enough owners had approved", approvals],
  ["ledger", "Ledger holds the releases", ledgerHolds],
  ["times", "Events are in order", eventsInOrder],
  ["policy", "Release policy was kept", policy],
  ["simulation", "Simulation is declared", simulation],
  ["limits", "Limits are stated", limits],
  ["collaboration", "Parties kept to their rules", collaborationHolds],
  ["artefacts", "Output files match", artefactsMatch],
];
