// Checks 11, 13 and 14: the brokers' receipts, their ledgers, and the order of events.

import { Refusal, demand, digest, fromBase64, seconds } from "./bytes.js";
import { chainAllowed } from "./chainword.js";
import { brokerId, listedReceipt, readReceipt, readRotation } from "./consortium.js";
import { requireRetained } from "./datause.js";
import { keyId, readEnvelope } from "./dsse.js";
import { canonical } from "./json.js";
import { liveThroughout, windowsOf } from "./leases.js";
import { verifyProof } from "./ledger.js";
import { reservations } from "./lock.js";
import { beginsAsAllowed } from "./series.js";
import { keysReleased, moment, staysOf } from "./stays.js";
import { equal } from "./bytes.js";

const TOLERANCE = 300;
const claim = (condition, message) => demand(condition, "claim-contradicted", message);
const same = (condition, message) => demand(condition, "dataset-mismatch", message);

/** (11) Enough trusted brokers of the lock released each dataset to this run. */
export async function receiptsHold(state) {
  const { predicate, trust } = state;
  if (!keysReleased(predicate)) {
    claim(predicate.releases.length === 0, "receipts in a run whose clients keep their data");
    chainAllowed([], trust.chain ?? null);
    state.receipts = [];
    return "no key was released: each client kept its data";
  }
  const trusted = new Map();
  for (const key of trust.brokers.signing_keys.map(fromBase64)) trusted.set(await keyId(key), key);
  const counted = [];
  for (const listed of predicate.releases) {
    const envelope = readEnvelope(listed.receipt);
    for (const { keyid } of envelope.signatures) {
      const key = trusted.get(keyid);
      if (!key) continue;
      const receipt = await readReceipt(envelope, key);
      const ids = await idsOf(state, key, listed.rotations);
      counted.push({ broker: namedBroker(state, ids), ids, key, receipt, listed, digest: await digest(canonical(envelope)) });
    }
  }
  if (counted.length === 0) {
    const code = predicate.releases.length ? "signature-invalid" : "claim-contradicted";
    throw new Refusal(code, "no receipt by a trusted broker");
  }
  claim(new Set(counted.map((one) => one.digest)).size === counted.length, "a receipt is listed twice");
  const stays = await staysOf(predicate);
  for (const { receipt } of counted) aboutThisRun(state, receipt, stays);
  enoughBrokers(state, counted);
  chainAllowed(counted.map((one) => one.receipt), trust.chain ?? null);
  state.receipts = counted;
  const renewals = counted.filter((one) => one.receipt.kind === "renewal").length;
  const ignored = predicate.releases.length - counted.length;
  return `${counted.length - renewals} releases, ${renewals} renewals, ${ignored} of other brokers`;
}

/** Ids of the broker with this key: its own, and those of the keys that it was rotated from. */
async function idsOf(state, key, rotations) {
  const origin = `sealtrain/ledger/${state.consortiumId}`;
  const keys = [key];
  for (const envelope of [...rotations].reverse()) {
    const { oldKey, newKey } = await readRotation(envelope, origin);
    const leads = equal(newKey, keys.at(-1));
    demand(leads, "statement-invalid", "a rotation does not lead to the key of the receipt");
    keys.push(oldKey);
  }
  return Promise.all(keys.map(brokerId));
}

function namedBroker(state, ids) {
  const { brokers } = state.need("lock");
  const named = ids.find((id) => brokers.includes(id));
  if (named !== undefined) return named;
  throw new Refusal("broker-not-approved", "a broker that the lock does not name");
}

/** Datasets of the manifest that a guest held. */
const dataOf = (state, stay) =>
  state.need("datasets").filter((one) => stay.party === null || one.owner === stay.party);

function aboutThisRun(state, receipt, stays) {
  const { deployment, recipe } = state.predicate;
  const stay = stays.find((one) => one.runId === receipt.run_id);
  claim(stay, "a receipt is about another run");
  claim(receipt.consortium_id === state.consortiumId, "a receipt is about another consortium");
  claim(receipt.app_id === deployment.app_id, "a receipt is about another app");
  claim(receipt.compose_hash === deployment.compose_hash, "a receipt is about another deployment");
  claim(receipt.recipe_hash === recipe.recipe_hash, "a receipt is about another recipe");
  aboutModelBefore(state, receipt);
  const used = new Map(dataOf(state, stay).map((one) => [one.dataset_id, one]));
  const ids = receipt.datasets.map((one) => one.dataset_id);
  claim(new Set(ids).size === ids.length, "a receipt releases a dataset twice");
  same((receipt.kind === "renewal") === (ids.length === 0), "datasets in a renewal, or none in a release");
  for (const { dataset_id, owner_id, root } of receipt.datasets) {
    const known = used.get(dataset_id);
    same(known && known.owner_id === owner_id && known.root === root, "another dataset was released");
  }
}

/** A run began with the model of the run that it names, where its recipe says so, and no other. */
function aboutModelBefore(state, receipt) {
  const follows = state.need("lock").recipe.schedule?.continue === "last";
  const expected = follows && receipt.kind === "release" ? state.predicate.continues : undefined;
  const text = (value) => (value === undefined ? "" : `${value.number}:${value.manifest_digest}`);
  claim(text(receipt.continues) === text(expected), "the key of another model was released");
}

function enoughBrokers(state, counted) {
  const { threshold, datasets } = state.trust.brokers;
  for (const { dataset_id, name } of state.need("datasets")) {
    const lists = ({ receipt }) => receipt.datasets.some((one) => one.dataset_id === dataset_id);
    const brokers = new Set(counted.filter(lists).map((one) => one.broker)).size;
    const free = datasets === "theirs" && brokers === 0;
    same(free || brokers >= threshold, `too few trusted brokers released ${name}`);
  }
}

/** (13) Each broker's signed log holds its receipts. */
export async function ledgerHolds(state) {
  const stays = await staysOf(state.predicate);
  const places = new Map();
  const proven = (condition, message) => demand(condition, "proof-invalid", message);
  for (const { broker, ids, key, receipt, listed, digest: name } of state.need("receipts")) {
    const entry = await verifyProof(listed.proof, key, `sealtrain/ledger/${state.consortiumId}`);
    const fits = entry.kind === receipt.kind && entry.body?.receipt_digest === name;
    proven(fits, "the entry is about something else than the receipt");
    proven(reserves(state, receipt, entry.body, listed.proof.index), "a reservation of privacy is missing");
    await beginsAsAllowed(state, { receipt, ids }, entry.body);
    if (receipt.kind === "release") {
      sameData(dataOf(state, stays.find((one) => one.runId === receipt.run_id)), entry.body);
    }
    const before = places.get(broker) ?? -1;
    places.set(broker, listed.proof.index > before ? listed.proof.index : Infinity);
  }
  proven(![...places.values()].includes(Infinity), "receipts stand in another order in the ledger");
  return "in the brokers' signed logs";
}

function reserves(state, receipt, body, index) {
  const asked = reservations(state.need("lock").recipe);
  const first = receipt.kind === "release" && !receipt.resume;
  const again = receipt.kind === "release" && receipt.resume && asked.length > 0;
  const text = (value) => new TextDecoder().decode(canonical(value));
  const place = body.reserved_at ?? null;
  const named = again ? Number.isSafeInteger(place) && place >= 0 && place < index : place === null;
  const held = Array.isArray(body.privacy) || !body.privacy ? body.privacy || [] : null;
  return named && held !== null && text(held) === text(first ? asked : []);
}

// An id names a dataset only beside its owner.
const NAMED = ["owner_id", "dataset_id", "root"];

function sameData(used, body) {
  const lists = [body.datasets, body.elsewhere];
  const wellFormed = lists.every(
    (list) => Array.isArray(list) && list.every((one) => NAMED.every((name) => one?.[name] !== undefined)),
  );
  demand(wellFormed, "statement-invalid", "the entry does not name the data of the run");
  const named = (list) => new Set(list.map((one) => NAMED.map((name) => one[name]).join(" ")));
  const [released, known] = [named(lists.flat()), named(used)];
  const equalSets = released.size === known.size && [...released].every((one) => known.has(one));
  same(equalSets, "keys were released to a run on other data");
}

/** (14) Start, releases, resumes, end and leases follow each other. */
export async function eventsInOrder(state) {
  const { predicate, now } = state;
  const { run } = predicate;
  const [started, finished] = [moment(run.started_at), moment(run.finished_at)];
  claim(started <= finished, "the run ended before it began");
  claim(finished <= now + TOLERANCE, "the run ends in the future");
  const inside = (at, first, last, what) =>
    claim(first - TOLERANCE <= at && at <= last + TOLERANCE, `${what} lies outside the run`);
  for (const { at } of run.resumes) inside(moment(at), started, finished, "a resume");
  const stays = await staysOf(predicate);
  for (const stay of stays) {
    inside(stay.begins, started, finished, "a party's part");
    inside(stay.until, started, finished, "a party's part");
    claim(stay.begins <= stay.until, "a party left before it came");
  }
  const counted = state.need("receipts");
  for (const { receipt } of counted) {
    const stay = stays.find((one) => one.runId === receipt.run_id);
    inside(seconds(receipt.released_at), stay.begins, stay.until, "a release");
  }
  for (const stay of stays) {
    await leasesHold(state, stay, counted);
    retentionKept(state, stay, counted);
  }
  const releases = counted.filter((one) => one.receipt.kind === "release");
  const last = releases.length ? Math.max(...releases.map((one) => seconds(one.receipt.released_at))) : finished;
  for (const { name, sealed_at } of state.need("datasets")) {
    claim(seconds(sealed_at) <= last + TOLERANCE, `the dataset ${name} was sealed after its release`);
  }
  return `${run.started_at} to ${run.finished_at}`;
}

async function leasesHold(state, stay, counted) {
  const own = counted.filter((one) => one.receipt.run_id === stay.runId);
  const windows = [...new Set(own.map((one) => one.broker))].flatMap((broker) =>
    windowsOf(own.filter((one) => one.broker === broker).map((one) => one.receipt)),
  );
  const { threshold, datasets } = state.trust.brokers;
  if (!keysReleased(state.predicate)) return;
  if (datasets === "theirs") return guestHadKeys(state, stay, counted);
  const resumes = stay.leads ? state.predicate.run.resumes.length : 0;
  for (const { dataset_id, name } of dataOf(state, stay)) {
    const lent = windows.filter((one) => one.datasets.has(dataset_id));
    const begun = lent.map((one) => one.begins).sort((one, other) => one - other)[threshold - 1];
    const early = !stay.leads && begun !== undefined && begun > stay.begins + TOLERANCE;
    claim(!early, `a party took part before keys of ${name} were released`);
    liveThroughout(lent, threshold, stay.until - TOLERANCE, name);
    claim(lent.length >= threshold * (resumes + 1), "the run was resumed without asking for keys");
  }
}

/** A guest that held all data is listed with a release of each dataset that a trusted broker released. */
async function guestHadKeys(state, stay, counted) {
  if (stay.party !== null) return;
  const trusted = new Set(counted.map((one) => one.broker));
  for (const key of state.trust.brokers.signing_keys) trusted.add(await brokerId(fromBase64(key)));
  const others = state.need("lock").brokers.some((id) => !trusted.has(id));
  const listed = others ? state.predicate.releases.map((one) => listedReceipt(one.receipt)) : [];
  const receipts = [...counted.map((one) => one.receipt), ...listed.filter((one) => one !== null)];
  const idsOf = (list) => new Set(list.flatMap((one) => one.datasets.map((each) => each.dataset_id)));
  const theirs = idsOf(counted.map((one) => one.receipt));
  const shown = idsOf(receipts.filter((one) => one.run_id === stay.runId));
  for (const { dataset_id, name } of state.need("datasets")) {
    const missing = theirs.has(dataset_id) && !shown.has(dataset_id);
    claim(!missing, `a guest took part without a release of ${name}`);
  }
}

/** Brokers decide by their own clock: there is no tolerance for a receipt, only for the use. */
function retentionKept(state, stay, counted) {
  const own = counted.filter((one) => one.receipt.run_id === stay.runId);
  const released = own.map((one) => seconds(one.receipt.released_at));
  const last = Math.max(stay.until - TOLERANCE, ...released);
  for (const dataset of dataOf(state, stay)) requireRetained(dataset, last);
}
