// Check 19: the output files beside a manifest (spec/run-manifest.md §2.3, spec/sealed-file.md §9).

import { demand, digest, hex, latin1, u32be } from "./bytes.js";
import { outputName } from "./form.js";
import { Malformed, canonical, parseCanonical } from "./json.js";
import { fileRoot } from "./roots.js";

const match = (condition, message) => demand(condition, "subject-mismatch", message);
const MAGIC = "SEALTRN\x01";
const END = "SEALEND\x01";

/**
 * `state.artefacts` maps the path of everything below the folder of the run, such as
 * `model/config.json.sealed`, to a function that resolves to its bytes; to null what is no file.
 */
export async function artefactsMatch(state) {
  state.need("bound");
  const { artefacts, manifest, predicate } = state;
  const named = new Set(manifest.subjects.map((one) => one.name));
  for (const path of artefacts.keys()) {
    if (path.startsWith("model/")) match(named.has(path), `${path} is not named by the manifest`);
  }
  let total = 0;
  for (const [position, subject] of manifest.subjects.entries()) {
    const open = artefacts.get(subject.name);
    match(open, `${subject.name} is missing or no regular file`);
    const bytes = await open();
    const signed = predicate.outputs.files[position];
    match(bytes.length === signed.size, `${subject.name} has another size`);
    match((await digest(bytes)) === subject.digest.sha256, `${subject.name} has another digest`);
    const { core, payload } = parts(bytes, subject.name);
    const expected = await coreOf(state, position);
    const same = Object.keys(expected).every((key) => JSON.stringify(core.value[key]) === JSON.stringify(expected[key]));
    match(same && Object.keys(core.value).length === Object.keys(expected).length, `${subject.name} has another core`);
    const root = hex(await fileRoot(1, core.bytes, payload));
    match(root === signed.root, `${subject.name} has another root`);
    total += bytes.length;
  }
  return `${manifest.subjects.length} files, ${total} bytes, as signed`;
}

async function coreOf({ predicate, consortiumId }, position) {
  const { files, dataset } = predicate.outputs;
  const plain = { schema_digest: "", padding: "none", suite: 1 };
  if (!dataset) {
    return {
      ...plain,
      dataset_id: predicate.run.run_id,
      owner_id: consortiumId,
      name: outputName(files[position].name),
      shard: position,
      kind: "model",
      binding: { files: files.length },
    };
  }
  return {
    ...plain,
    dataset_id: dataset.dataset_id,
    owner_id: dataset.owner_id,
    name: dataset.name,
    shard: Math.max(0, position - 1),
    kind: position === 0 ? "index" : "raw",
    schema_digest: await digest(canonical("raw")),
    binding: {},
  };
}

function parts(bytes, name) {
  match(bytes.length > 16 + 64 + 48 && latin1(bytes.subarray(0, 8)) === MAGIC, `${name} is no sealed file`);
  const [core, stanzas] = [u32be(bytes, 8), u32be(bytes, 12)];
  match(core <= 4096 && stanzas <= 256 * 1024, `${name} has a header over the limits`);
  const start = 16 + core + stanzas + 64;
  match(latin1(bytes.subarray(-8)) === END, `${name} has no end`);
  const view = new DataView(bytes.buffer, bytes.byteOffset + bytes.length - 48, 8);
  const size = Number(view.getBigUint64(0));
  const groups = Math.ceil((size - 56) / (64 * 16400));
  match(size > 56 && start + size + 32 * groups + 48 === bytes.length, `${name} has another length`);
  const coreBytes = bytes.subarray(16, 16 + core);
  try {
    const value = parseCanonical(coreBytes);
    return { core: { bytes: coreBytes, value }, payload: bytes.subarray(start, start + size) };
  } catch (error) {
    if (!(error instanceof Malformed)) throw error;
    match(false, `${name} has a malformed core`);
  }
}
