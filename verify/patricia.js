// RLP and proofs of Ethereum's Merkle-Patricia trie (Yellow Paper, appendices B to D).

import { Refusal, equal, hex } from "./bytes.js";
import { keccak256 } from "./keccak.js";

const MAX_DEPTH = 8; // a node embeds only nodes of less than 32 bytes
const EMPTY = hex(keccak256(Uint8Array.of(0x80)));

const invalid = (why) => new Refusal("proof-invalid", `the chain's proof does not hold: ${why}`);
const isBytes = (item) => item instanceof Uint8Array;

/** The item that bytes are, in the one canonical form: bytes, or a list of items. */
export function rlpDecoded(data) {
  const [item, end] = itemAt(data, 0, data.length, 0);
  if (end !== data.length) throw invalid("bytes follow an RLP item");
  return item;
}

function itemAt(data, at, end, depth) {
  if (at >= end || depth > MAX_DEPTH) throw invalid("an RLP item is cut off, or nested too deeply");
  const first = data[at];
  if (first < 0x80) return [data.slice(at, at + 1), at + 1];
  const isList = first >= 0xc0;
  const [length, begin] = lengthAt(data, at, end, first - (isList ? 0xc0 : 0x80));
  const stop = begin + length;
  if (stop > end) throw invalid("an RLP item is cut off");
  if (!isList) {
    if (length === 1 && data[begin] < 0x80) throw invalid("an RLP item is not in its one form");
    return [data.slice(begin, stop), stop];
  }
  const items = [];
  for (let next = begin; next < stop; ) {
    const [item, after] = itemAt(data, next, stop, depth + 1);
    items.push(item);
    next = after;
  }
  return [items, stop];
}

function lengthAt(data, at, end, given) {
  if (given <= 55) return [given, at + 1];
  const digits = data.slice(at + 1, Math.min(end, at + 1 + given - 55));
  let length = 0;
  for (const digit of digits) length = length * 256 + digit;
  if (digits.length !== given - 55 || digits[0] === 0 || length <= 55) {
    throw invalid("an RLP item is not in its one form");
  }
  return [length, at + 1 + digits.length];
}

/**
 * The value at Keccak-256 of `key` under the 32 bytes `root`, null where the nodes show that there is
 * none. `nodes` are those from the root to the value, each once.
 */
export function valueAt(root, key, nodes) {
  let path = hex(keccak256(key));
  let reference = root;
  let used = 0;
  const found = (value) => {
    if (used !== nodes.length) throw invalid("its nodes are not those from the root to the value, each once");
    return value;
  };
  if (hex(root) === EMPTY) return found(null);
  for (;;) {
    if (isBytes(reference) && reference.length === 0) return found(null);
    let node = reference;
    if (isBytes(reference)) {
      const raw = nodes[used];
      if (raw === undefined || reference.length !== 32 || !equal(keccak256(raw), reference)) {
        throw invalid("a node is missing");
      }
      used += 1;
      node = rlpDecoded(raw);
    }
    if (isBytes(node) || (node.length !== 2 && node.length !== 17)) {
      throw invalid("a node is neither a branch nor a path");
    }
    if (node.length === 17) {
      if (path === "") return found(valueOf(node[16]));
      reference = node[Number.parseInt(path[0], 16)];
      path = path.slice(1);
      continue;
    }
    const [shared, isLeaf] = pathOf(node[0]);
    if (isLeaf) return found(shared === path ? valueOf(node[1]) : null);
    if (shared === "" || !path.startsWith(shared)) return found(null);
    reference = node[1];
    path = path.slice(shared.length);
  }
}

function valueOf(item) {
  if (!isBytes(item)) throw invalid("a value is a list");
  return item.length ? item : null;
}

/** Hex digits of a compact path, and whether it ends in a value. */
function pathOf(packed) {
  if (!isBytes(packed) || packed.length === 0 || packed[0] >> 4 > 3) {
    throw invalid("a path inside a node is malformed");
  }
  const digits = hex(packed);
  const isOdd = (packed[0] >> 4) & 1;
  if (!isOdd && digits[1] !== "0") throw invalid("a path inside a node is malformed");
  return [digits.slice(isOdd ? 1 : 2), packed[0] >> 4 >= 2];
}
