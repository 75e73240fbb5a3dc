// Inclusion in a broker's signed log (spec/ledger.md §2, §3).

import { concat, demand, ed25519, equal, fromBase64, fromHex, sha256, utf8 } from "./bytes.js";
import { canonical } from "./json.js";
import * as shape from "./shape.js";

const PROOF = shape.record({
  entry: shape.anyObject,
  index: shape.integer(0),
  size: shape.integer(1),
  path: shape.list(shape.hex64, { max: 64 }),
  checkpoint: (value) => typeof value === "string" && value.length <= 524288,
});
const LEAF = new Uint8Array([0]);
const NODE = new Uint8Array([1]);
const signed = (condition, message) => demand(condition, "signature-invalid", message);

/** Size and root of a tree head that a key signed for an origin. */
async function treeHead(note, key, origin) {
  signed(!/[\0-\x09\x0b-\x1f]/.test(note), "tree head holds a control character");
  const cut = note.lastIndexOf("\n\n");
  signed(cut > 0 && note.endsWith("\n"), "tree head has another layout");
  const body = note.slice(0, cut + 1);
  const lines = note.slice(cut + 2, -1).split("\n");
  signed(lines.length <= 64, "tree head has too many signatures");
  const id = (await sha256(utf8(`${origin}\n`), new Uint8Array([1]), key)).subarray(0, 4);
  const own = [];
  for (const line of lines) {
    const found = /^— ([^\s+]{1,256}) (\S+)$/.exec(line);
    const bytes = found && fromBase64(found[2]);
    signed(bytes && bytes.length > 4, "a signature line is malformed");
    if (found[1] === origin && equal(bytes.subarray(0, 4), id)) own.push(bytes.subarray(4));
  }
  signed(own.length === 1 && own[0].length === 64, "not exactly one line of the broker's key");
  signed(await ed25519(key, own[0], utf8(body)), "tree head does not verify");
  const [first, size, root, rest, ...more] = body.split("\n");
  signed(rest === "" && more.length === 0, "tree head has other than three lines");
  signed(first === origin, "tree head of another log");
  signed(/^(?:0|[1-9][0-9]{0,15})$/.test(size) && Number(size) < 2 ** 53, "size is malformed");
  const top = fromBase64(root);
  signed(top?.length === 32, "root is malformed");
  return { size: Number(size), root: top };
}

/** The entry of a proof, once it is shown to be in the log of a key and an origin. */
export async function verifyProof(proof, key, origin) {
  const proven = (condition, message) => demand(condition, "proof-invalid", message);
  proven(PROOF(proof), "not a proof");
  const head = await treeHead(proof.checkpoint, key, origin);
  proven(head.size === proof.size, "a proof for another size");
  const { entry } = proof;
  const fields = Object.keys(entry).sort().join();
  proven(fields === "at,body,kind", "the entry has other fields");
  let node = await sha256(LEAF, canonical(entry));
  let index = BigInt(proof.index);
  let last = BigInt(proof.size) - 1n;
  proven(index <= last, "the entry lies outside the log");
  for (const step of proof.path) {
    proven(last > 0n, "path is too long");
    const other = fromHex(step);
    if (index & 1n || index === last) {
      node = await sha256(concat(NODE, other, node));
      while (!(index & 1n) && index !== 0n) {
        index >>= 1n;
        last >>= 1n;
      }
    } else {
      node = await sha256(concat(NODE, node, other));
    }
    index >>= 1n;
    last >>= 1n;
  }
  proven(last === 0n && equal(node, head.root), "path does not lead to the signed root");
  return entry;
}
