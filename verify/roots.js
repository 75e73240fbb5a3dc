// Roots of sealed files and datasets (spec/sealed-file.md §5, §7).

import { concat, fromHex, sha256, u64be, utf8 } from "./bytes.js";
import { blake3 } from "./blake3.js";
import { canonical } from "./json.js";

const GROUP = 64 * 16400;
const byte = (value) => new Uint8Array([value]);
const hashOf = (suite) => (suite === 1 ? async (...parts) => blake3(concat(...parts)) : sha256);

async function top(hash, leaves) {
  if (leaves.length === 1) return leaves[0];
  const left = 2 ** Math.floor(Math.log2(leaves.length - 1));
  const [one, other] = [await top(hash, leaves.slice(0, left)), await top(hash, leaves.slice(left))];
  return hash(byte(1), one, other);
}

/** Root of a sealed file's payload under its core. */
export async function fileRoot(suite, core, payload) {
  const hash = hashOf(suite);
  const leaves = [];
  for (let at = 56; at < payload.length; at += GROUP) {
    leaves.push(await hash(byte(0), payload.subarray(at, at + GROUP)));
  }
  const label = utf8("sealtrain/file-root/v1");
  const head = payload.subarray(0, 56);
  return hash(byte(2), label, u64be(payload.length), await hash(core), head, await top(hash, leaves));
}

/** Root of a sealed dataset: its id, the index's root, and its shards in order. */
export async function datasetRoot(id, indexRoot, shards) {
  const leaves = [];
  for (const { name, root, size } of shards) {
    leaves.push(await sha256(byte(0), canonical({ name, root, size })));
  }
  const count = u64be(shards.length).subarray(4);
  const label = utf8("sealtrain/dataset-root/v1");
  return sha256(byte(2), label, fromHex(id), fromHex(indexRoot), count, await top(sha256, leaves));
}
