// Check 1: the file of a run manifest, read strictly (spec/run-manifest.md §1, §2).

import { Refusal, demand, digest, equal, fromBase64, toBase64, utf8 } from "./bytes.js";
import { isConsortium } from "./consortium.js";
import { isEnvelope, spkiDigest } from "./dsse.js";
import { Malformed, canonical, parseCanonical } from "./json.js";
import * as shape from "./shape.js";
import { TIERS } from "./tiers.js";

export const STATEMENT_TYPE = "application/vnd.in-toto+json";
export const EVIDENCE_TYPE = "application/vnd.sealtrain.evidence+json";
export const MARKER = "SIMULATED — NOT ATTESTED";
const BUNDLE = "application/vnd.dev.sigstore.bundle.v0.3+json";
const PREDICATE = "https://sealtrain.dev/attestations/run-manifest/v2";
const MAX_BYTES = 48 * 2 ** 20;

const { record, list, map, nullable, literal, count, number } = shape;
const metricName = shape.match(/^[A-Za-z0-9_][A-Za-z0-9_./-]{0,63}$/);
const values = map(metricName, nullable(number()), { max: 64 });
const role = shape.match(/^[a-z][a-z-]{0,31}$/);
const positive = number((value) => value > 0);
const notNegative = number((value) => value >= 0);
const share = number((value) => value > 0 && value < 1);

const PRIVACY = {
  none: record({ dp: literal("none") }),
  counts: record({ dp: literal("counts"), epsilon: positive, unit: literal("record") }),
  sgd: record({
    dp: literal("sgd"),
    epsilon: notNegative,
    delta: share,
    accountant: literal("prv", "rdp", "gdp"),
    noise_multiplier: positive,
    max_grad_norm: positive,
    sampling: literal("poisson"),
    unit: literal("record"),
    batch: count,
    steps: count,
    datasets: list(
      record({
        owner: shape.ownerName,
        name: shape.ownerName,
        records: count,
        sample_rate: number((value) => value >= 0 && value <= 1),
        epsilon: notNegative,
      }),
      { min: 1, max: 1024 },
    ),
  }),
  patients: record({
    dp: literal("patients"),
    epsilon: notNegative,
    delta: share,
    accountant: literal("prv", "rdp"),
    noise_multiplier: positive,
    max_patient_norm: positive,
    records_a_patient: shape.integer(1),
    sampling: literal("poisson"),
    unit: literal("patient"),
    sample_rate: number((value) => value > 0 && value <= 1),
    rounds: count,
    parties: list(record({ name: shape.ownerName, patients: shape.integer(1) }), {
      min: 1,
      max: 256,
    }),
  }),
};

const PREDICATE_FORM = record(
  {
    version: literal(2),
    simulated: shape.boolean,
    marker: literal(MARKER, null),
    signer: record({ public_key: shape.base64(32) }),
    consortium: isConsortium,
    recipe: record({ recipe_hash: shape.hex64, lock: shape.anyObject }),
    deployment: record({
      platform: literal("dstack", "tdx", "nitro", "snp", "simulator"),
      tier: literal(...TIERS),
      app_id: shape.hex40,
      compose_hash: shape.hex64,
    }),
    datasets: list(shape.anyObject, { min: 1, max: 1024 }),
    approvals: list(shape.anyObject, { max: 4096 }),
    releases: list(
      record({
        receipt: shape.anyObject,
        proof: shape.anyObject,
        rotations: list(shape.anyObject, { max: 64 }),
      }),
      { max: 4096 },
    ),
    run: record({
      run_id: shape.hex32,
      started_at: shape.timestamp,
      finished_at: shape.timestamp,
      steps: count,
      tokens: nullable(count),
      tokens_sha256: nullable(shape.hex64),
      resumes: list(
        record({ at: shape.timestamp, counter: count, step: count, checkpoint: shape.hex64 }),
        { max: 1024 },
      ),
      history: list(record({ step: count, values }), { max: 10_000 }),
      metrics: values,
      environment: map(shape.line(300), shape.line(300), { max: 256 }),
    }),
    run_log: record({
      head: shape.hex64,
      entries: list(shape.anyObject, { min: 1, max: 20_000 }),
    }),
    outputs: record(
      {
        recipients: list(shape.ownerName, { max: 1024 }),
        files: list(record({ name: isSubjectName, size: count, root: shape.hex64 }), {
          min: 1,
          max: 4096,
        }),
      },
      {
        dataset: record({
          dataset_id: shape.hex32,
          owner: shape.ownerName,
          owner_id: shape.hex64,
          name: shape.ownerName,
          root: shape.hex64,
          app_id: shape.hex40,
          compose_hash: shape.hex64,
        }),
      },
    ),
    compute: record({
      wall_s: notNegative,
      cpu_s: nullable(notNegative),
      processors: nullable(count),
      accelerators: list(shape.line(300), { max: 1024 }),
      peak_memory_bytes: nullable(count),
    }),
    privacy: (value) =>
      shape.anyObject(value) && shape.string(value.dp) && Object.hasOwn(PRIVACY, value.dp) && PRIVACY[value.dp](value),
    limits: list(
      record({ id: shape.match(/^[a-z][a-z0-9-]{0,62}$/), text: shape.line(1000, 1) }),
      { max: 64 },
    ),
  },
  {
    series: list(
      record({
        owner: shape.ownerName,
        name: shape.ownerName,
        members: list(shape.hex32, { min: 1, max: 512 }),
        former: list(shape.anyObject, { max: 512 }),
      }),
      { min: 1, max: 256 },
    ),
    collaboration: record({
      kind: role,
      parties: list(
        record({
          name: shape.ownerName,
          role,
          run_id: shape.hex32,
          from: shape.timestamp,
          until: shape.timestamp,
        }),
        { max: 256 },
      ),
    }),
    continues: record({ manifest_digest: shape.hex64, number: shape.integer(2, 10_000) }),
  },
);

const SUBJECTS = list(
  record({ name: isSubjectName, digest: record({ sha256: shape.hex64 }) }),
  { min: 1, max: 4096 },
);

const DEVICE = /^(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\.|$)/i;

/** NAME of the subject `model/NAME.sealed`, null where it is none (spec/sealed-file.md §9). */
export function outputName(subject) {
  const found = /^model\/(.{1,255})\.sealed$/s.exec(subject);
  if (!found) return null;
  const parts = found[1].split("/");
  const sound = (part) =>
    /^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$/.test(part) && !part.endsWith(".") && !DEVICE.test(part);
  return parts.every(sound) ? found[1] : null;
}

function isSubjectName(value) {
  return typeof value === "string" && outputName(value) !== null;
}

function namesAgree(names) {
  const files = new Set();
  const folders = new Set();
  for (const name of names.map((one) => one.toLowerCase())) {
    if (files.has(name)) return false;
    files.add(name);
    const parts = name.split("/");
    for (let i = 1; i < parts.length; i++) folders.add(parts.slice(0, i).join("/"));
  }
  const clash = [...files].some((name) => folders.has(name) || folders.has(`${name}.sealed`));
  return !clash && names.every((name, i) => i === 0 || names[i - 1] < name);
}

const malformed = (condition, message) => demand(condition, "manifest-malformed", message);

/** The parsed manifest: envelopes, statement, predicate, guest key. Nothing of it is verified. */
export async function readManifest(bytes) {
  try {
    return await read(bytes);
  } catch (error) {
    if (error instanceof Malformed) throw new Refusal("manifest-malformed", error.message);
    throw error;
  }
}

async function read(bytes) {
  const file = parseCanonical(bytes, { size: MAX_BYTES, values: 10_000 });
  const envelope = (value) => isEnvelope(value);
  const isFile = record({
    version: literal(1),
    bundle: record({
      mediaType: literal(BUNDLE),
      verificationMaterial: record({
        publicKey: record({ hint: shape.string }),
        tlogEntries: list(() => false),
      }),
      dsseEnvelope: envelope,
    }),
    evidence: envelope,
  });
  malformed(isFile(file), "not the file of a run manifest");
  const signed = file.bundle.dsseEnvelope;
  const payload = fromBase64(signed.payload);
  const statement = parseCanonical(payload, { size: MAX_BYTES, values: 250_000 });
  const isStatement = record({
    _type: literal("https://in-toto.io/Statement/v1"),
    subject: SUBJECTS,
    predicateType: literal(PREDICATE),
    predicate: PREDICATE_FORM,
  });
  malformed(isStatement(statement), "not a statement of this version");
  const { predicate, subject } = statement;
  const names = subject.map((one) => one.name);
  malformed(namesAgree(names.map(outputName)), "names of files clash or are out of order");
  const same = names.every((name, i) => predicate.outputs.files[i]?.name === name);
  malformed(same && names.length === predicate.outputs.files.length, "subjects and outputs differ");
  const guestKey = fromBase64(predicate.signer.public_key);
  const hint = fromBase64(file.bundle.verificationMaterial.publicKey.hint);
  malformed(hint !== null && equal(hint, await spkiDigest(guestKey)), "hint of another key");
  return {
    statement: signed,
    evidence: file.evidence,
    payload,
    subjects: subject,
    predicate,
    guestKey,
    digest: await digest(bytes),
  };
}

/** Report data's transcript of the final quote. */
export const commitment = async (manifest) => ({
  statement_digest: await digest(manifest.payload),
  signing_key: toBase64(manifest.guestKey),
  run_log_head: manifest.predicate.run_log.head,
});

export const transcriptOf = async (purpose, document) =>
  [utf8(`sealtrain/${purpose}/v1:`), canonical(document)];
