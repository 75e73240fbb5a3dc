// Consortium, decisions, dataset manifests and receipts (spec/consortium.md, spec/approvals.md).

import { concat, demand, digest, fromBase64, seconds, utf8 } from "./bytes.js";
import { isChainWord } from "./chainword.js";
import { isDataUse } from "./datause.js";
import { isSoundKey, keyId, readEnvelope, verifyEnvelope } from "./dsse.js";
import { Malformed, canonical, parseCanonical } from "./json.js";
import * as shape from "./shape.js";

const { record, list, literal, nullable, count } = shape;
const ACTIONS = ["approve", "revoke", "amend_members", "amend_thresholds", "raise_logging", "export_model"];

/** ML-KEM-768 ‖ X25519; the coefficients of the first, 12 bits each, are below its modulus. */
function isSealingKey(key) {
  if (key?.length !== 1216) return false;
  for (let at = 0; at < 1152; at += 3) {
    const whole = key[at] | (key[at + 1] << 8) | (key[at + 2] << 16);
    if ((whole & 0xfff) >= 3329 || whole >>> 12 >= 3329) return false;
  }
  return true;
}

const IDENTITY = record(
  {
    name: shape.ownerName,
    signing_key: (value) => isSoundKey(fromBase64(value)),
    sealing_key: (value) => isSealingKey(fromBase64(value)),
  },
  { witness_key: shape.base64(1312) },
);

/** Whether a value is a consortium document. */
export function isConsortium(value) {
  const isDocument = record({
    version: literal(2),
    name: shape.ownerName,
    owners: list(IDENTITY, { min: 1, max: 64 }),
    thresholds: record(Object.fromEntries(ACTIONS.map((name) => [name, shape.integer(1, 64)]))),
    own_data_consent: shape.boolean,
  });
  if (!isDocument(value)) return false;
  const { owners, thresholds } = value;
  const differ = (field) => new Set(owners.map((one) => one[field])).size === owners.length;
  const bounded = Object.values(thresholds).every((number) => number <= owners.length);
  const ordered = sorted(owners.map((one) => one.name));
  const witnesses = owners.map((one) => one.witness_key).filter(Boolean);
  if (new Set(witnesses).size !== witnesses.length) return false;
  return bounded && ordered && differ("signing_key") && differ("sealing_key");
}

export const consortiumId = (document) => digest(canonical(document));

/** Owners by key id, each with its raw key and owner id. */
export async function ownersOf(document) {
  const result = new Map();
  for (const { name, signing_key, sealing_key } of document.owners) {
    const key = fromBase64(signing_key);
    const ownerId = await digest(utf8("sealtrain/owner/v1:"), key, fromBase64(sealing_key));
    result.set(await keyId(key), { name, key, ownerId });
  }
  return result;
}

function read(bytes, form, what) {
  let document = null;
  try {
    document = parseCanonical(bytes);
  } catch (error) {
    if (!(error instanceof Malformed)) throw error;
  }
  demand(form(document), "statement-invalid", `not a ${what}`);
  return document;
}

async function signer(envelope, owners, type, stranger = "signature-invalid") {
  readEnvelope(envelope);
  demand(envelope.signatures.length === 1, "signature-invalid", "not exactly one signature");
  const owner = owners.get(envelope.signatures[0].keyid);
  demand(owner, stranger, "signed by no owner of this consortium");
  return [owner, await verifyEnvelope(envelope, [owner.key], type)];
}

const sorted = (values) => values.every((value, i) => i === 0 || values[i - 1] < value);

const NEEDS = record({
  actions: (value) =>
    list(literal("approve", "export_model", "raise_logging"), { min: 1 })(value) &&
    sorted(value) &&
    value.includes("approve"),
  owners: (value) => list(shape.ownerName, { min: 1 })(value) && sorted(value),
});

const STANDING = record(
  { runs: shape.integer(1, 1_000_000) },
  {
    epsilon: shape.number((value) => value > 0 && value <= 1000),
    series: (value) =>
      list(record({ name: shape.ownerName, first: shape.hex64 }), { min: 1, max: 64 })(value) &&
      sorted(value.map((one) => one.name)),
  },
);

const DECISION = record({
  version: literal(2),
  consortium_id: shape.hex64,
  brokers: list(shape.hex64, { min: 1, max: 64 }),
  app_id: shape.hex40,
  compose_hash: shape.hex64,
  recipe_hash: shape.hex64,
  datasets: list(record({ dataset_id: shape.hex32, root: shape.hex64 }), { max: 1024 }),
  needs: nullable(NEEDS),
  decision: literal("approve", "revoke"),
  lifts: list(shape.hex64, { max: 64 }),
  nonce: shape.hex32,
  signed_at: shape.realTime,
  not_after: nullable(shape.realTime),
}, { standing: STANDING });

function isDecision(value) {
  if (!DECISION(value)) return false;
  const ids = value.datasets.map((one) => one.dataset_id);
  if (!sorted(ids) || !sorted(value.lifts) || !sorted(value.brokers)) return false;
  if (value.decision === "revoke") {
    if (value.standing !== undefined) return false;
    return ids.length + value.lifts.length === 0 && value.needs === null && value.not_after === null;
  }
  return value.needs !== null && value.not_after !== null && value.not_after > value.signed_at;
}

/** A decision of an owner, verified: `{owner, statement, digest}`. */
export async function readDecision(envelope, owners, id) {
  const type = "application/vnd.sealtrain.decision+json";
  const [owner, payload] = await signer(envelope, owners, type, "approval-unknown");
  const statement = read(payload, isDecision, "decision");
  demand(statement.consortium_id === id, "approval-unknown", "a decision in another consortium");
  return { owner: owner.name, statement, digest: await digest(canonical(envelope)) };
}

const growth = shape.integer(-(2 ** 53) + 1);
const BOUNDS = record({}, { min_growth: growth, max_growth: growth, schema: literal("same", "nullable-columns") });
const SERIES = record(
  {
    name: shape.ownerName,
    number: shape.integer(1, 512),
    mode: literal("append", "replace"),
    previous: nullable(shape.hex64),
  },
  { bounds: BOUNDS },
);

function isSeries(value) {
  if (!SERIES(value) || (value.number === 1) !== (value.previous === null)) return false;
  const { bounds } = value;
  if (bounds === undefined) return true;
  const { min_growth: least = -Infinity, max_growth: most = Infinity } = bounds;
  const says = Object.keys(bounds).length > 0 && least <= most && value.number === 1;
  return says && !(value.mode === "replace" && bounds.schema === "nullable-columns");
}

const DATASET = record(
  {
    version: literal(1),
    dataset_id: shape.hex32,
    name: shape.ownerName,
    owner: shape.ownerName,
    owner_id: shape.hex64,
    root: shape.hex64,
    shards: shape.integer(1),
    records: nullable(count),
    tokens: nullable(count),
    schema_digest: shape.hex64,
    app_id: shape.hex40,
    compose_hash: shape.hex64,
    sealed_at: shape.realTime,
    previous: nullable(shape.hex64),
  },
  { data_use: isDataUse, series: isSeries, threshold: shape.integer(2, 16) },
);

const isDataset = (value) => DATASET(value) && (value.series === undefined || value.series.name === value.name);

/** A dataset manifest, verified to be its owner's. */
export async function readDataset(envelope, owners) {
  const [owner, payload] = await signer(envelope, owners, "application/vnd.sealtrain.dataset+json");
  const dataset = read(payload, isDataset, "dataset manifest");
  const own = dataset.owner === owner.name && dataset.owner_id === owner.ownerId;
  demand(own, "dataset-mismatch", "signed by another owner than it names");
  return dataset;
}

/** A document of an owner's own (spec/approvals.md §6, checks 1 to 5): `{owner, document}`. */
export async function readOwned(envelope, owners, id, { type, form, what }) {
  const [owner, payload] = await signer(envelope, owners, type, "approval-unknown");
  const document = read(payload, form, what);
  demand(document.consortium_id === id, "approval-unknown", `a ${what} in another consortium`);
  const own = document.owner === owner.name && document.owner_id === owner.ownerId;
  demand(own, "dataset-mismatch", "signed by another owner than it names");
  return { owner: owner.name, document };
}

const RECEIPT = record(
  {
    version: literal(2),
    kind: literal("release", "renewal"),
    broker_id: shape.hex64,
    run_id: shape.hex32,
    resume: shape.boolean,
    consortium_id: shape.hex64,
    app_id: shape.hex40,
    compose_hash: shape.hex64,
    recipe_hash: shape.hex64,
    datasets: list(record({ dataset_id: shape.hex32, owner_id: shape.hex64, root: shape.hex64 }), {
      max: 1024,
    }),
    approved_by: list(shape.ownerName, { min: 1, max: 64 }),
    evidence_digest: shape.hex64,
    transcript_digest: shape.hex64,
    verdict: shape.anyObject,
    simulated: shape.boolean,
    released_at: shape.realTime,
    lease: record({ lease_id: shape.hex64, not_after: shape.realTime }),
    checkpoint: nullable(record({ counter: shape.integer(1), digest: shape.hex64 })),
  },
  { continues: record({ manifest_digest: shape.hex64, number: shape.integer(2, 10_000) }), chain: isChainWord },
);

export const brokerId = (key) => digest(utf8("sealtrain/broker/v1:"), key);

/** A receipt that a broker's key signed. */
export async function readReceipt(envelope, key) {
  const type = "application/vnd.sealtrain.release-receipt+json";
  const payload = await verifyEnvelope(envelope, [key], type);
  const receipt = read(payload, RECEIPT, "receipt");
  demand(receipt.broker_id === (await brokerId(key)), "statement-invalid", "id of another broker");
  const lent = seconds(receipt.lease.not_after) > seconds(receipt.released_at);
  demand(lent, "statement-invalid", "a lease that ends before it begins");
  return receipt;
}

/** A receipt as a manifest lists it, by whichever broker; null for anything else. */
export function listedReceipt(envelope) {
  try {
    return read(fromBase64(envelope.payload), RECEIPT, "receipt");
  } catch (error) {
    if (error instanceof Refusal) return null;
    throw error;
  }
}

const ROTATION = record({
  version: literal(1),
  origin: shape.string,
  old_key: shape.base64(32),
  new_key: shape.base64(32),
  rotated_at: shape.realTime,
});

/** A rotation that both its keys signed. */
export async function readRotation(envelope, origin) {
  readEnvelope(envelope);
  const rotation = read(fromBase64(envelope.payload), ROTATION, "rotation");
  const keys = [fromBase64(rotation.old_key), fromBase64(rotation.new_key)];
  demand(envelope.signatures.length === 2, "signature-invalid", "not signed by both keys");
  await verifyEnvelope(envelope, keys, "application/vnd.sealtrain.key-rotation+json");
  demand(rotation.origin === origin, "statement-invalid", "a rotation of another ledger");
  return { oldKey: keys[0], newKey: keys[1] };
}

/** Whether a decision names a broker by one of its ids (spec/approvals.md §2, check 7). */
export const isFor = ({ statement }, ids) => statement.brokers.some((id) => ids.includes(id));

/** Approvals that count at a time, and what stops the target (spec/approvals.md §3). */
export function tally(decisions, consortium, target, needs, now) {
  const own = consortium.own_data_consent ? needs.owners : [];
  const threshold = Math.max(...needs.actions.map((action) => consortium.thresholds[action]));
  const hits = decisions.filter(({ statement }) =>
    ["app_id", "compose_hash", "recipe_hash"].every((name) => statement[name] === target[name]),
  );
  const revocations = hits.filter(({ statement }) => statement.decision === "revoke");
  const written = JSON.stringify([needs.actions, needs.owners]);
  const latest = new Map();
  const stopped = new Set(revocations.map((one) => one.owner));
  const nonces = new Set();
  for (const decision of hits) {
    const { owner, statement } = decision;
    if (statement.decision !== "approve") continue;
    const used = `${owner} ${statement.nonce}`;
    if (nonces.has(used)) continue;
    nonces.add(used);
    if (seconds(statement.signed_at) > now + 300) continue;
    if (JSON.stringify([statement.needs.actions, statement.needs.owners]) !== written) continue;
    const against = revocations.filter((one) => one.owner === owner);
    if (!against.every((one) => statement.lifts.includes(one.digest))) continue;
    stopped.delete(owner);
    latest.set(owner, decision);
  }
  const counted = [...latest.values()].filter((one) => now <= seconds(one.statement.not_after));
  const approved = counted.map((one) => one.owner);
  const expired = [...latest.keys()].filter((owner) => !approved.includes(owner));
  const revoked = stopped.size >= consortium.thresholds.revoke || own.some((name) => stopped.has(name));
  const suffices = (names) => names.length >= threshold && own.every((name) => names.includes(name));
  let refusal = null;
  if (revoked) refusal = "approval-revoked";
  else if (!suffices(approved)) {
    const other = decisions.some(({ statement }) => statement.decision === "approve" && !hits.some((one) => one.statement === statement));
    if (suffices([...approved, ...expired])) refusal = "approval-expired";
    else if (hits.length === 0 && other) refusal = "recipe-changed";
    else refusal = "approvals-missing";
  }
  return { approved, counted, refusal };
}

export const runIdOf = async (prefix, ...parts) =>
  (await digest(concat(utf8(prefix), utf8(parts.join("/"))))).slice(0, 32);
