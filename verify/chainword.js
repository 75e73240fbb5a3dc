// The chain's word in receipts (spec/chain.md §8): part of check 11.

import { Refusal, concat, demand, fromHex, hex, seconds, utf8 } from "./bytes.js";
import { keccak256 } from "./keccak.js";
import { rlpDecoded, valueAt } from "./patricia.js";
import * as shape from "./shape.js";

const TOLERANCE = 300;
const FOR_EVER = 2n ** 63n;

/** Slot of an ERC-1967 proxy: Keccak-256 of its name, less one. */
const IMPLEMENTATION = keccak256(utf8("eip1967.proxy.implementation"));
IMPLEMENTATION[31] -= 1;

const bounded = (most) => (value) => shape.string(value) && value.length <= 2 * most && /^(?:[0-9a-f]{2})+$/.test(value);
const nodes = shape.list(bounded(4096), { min: 1, max: 64 });
export const isChainWord = shape.record({
  chain_id: shape.integer(1),
  contract: shape.match(/^0x[0-9a-f]{40}$/),
  kind: shape.literal("owners", "dstack-app"),
  header: bounded(4096),
  account: nodes,
  slot: nodes,
  implementation: shape.nullable(nodes),
});

const CHAIN = shape.record({
  chain_id: shape.integer(1),
  contract: shape.match(/^0x[0-9a-f]{40}$/),
  kind: shape.literal("owners", "dstack-app"),
  code_hash: shape.hex64,
  implementation: shape.either(shape.literal("none"), shape.match(/^0x[0-9a-f]{40}$/)),
  app_id: shape.literal("contract", "any"),
  max_age_seconds: shape.integer(1, 86400),
  blocks: shape.list(shape.hex64, { min: 1, max: 4096 }),
});

/** `chain` of a trust file. */
export const isTrustedChain = (value) =>
  CHAIN(value) &&
  new Set(value.blocks).size === value.blocks.length &&
  (value.kind === "dstack-app") === (value.implementation !== "none");

const invalid = (why) => new Refusal("proof-invalid", `the chain's proof does not hold: ${why}`);
const isBytes = (item, length) => item instanceof Uint8Array && (length === undefined || item.length === length);

function hashOf(item) {
  if (!isBytes(item, 32)) throw invalid("a hash is missing");
  return item;
}

function integerOf(item) {
  if (!isBytes(item) || item.length > 7 || item[0] === 0) throw invalid("a number in the header is malformed");
  let value = 0;
  for (const byte of item) value = value * 256 + byte;
  if (value > Number.MAX_SAFE_INTEGER) throw invalid("a number in the header is malformed");
  return value;
}

function found(root, key, proof) {
  const value = valueAt(root, key, proof.map(fromHex));
  if (value === null) throw invalid("it shows that there is no value");
  return value;
}

/** The value of a slot, 1 to 32 bytes. */
function slotValue(root, slot, proof) {
  const content = rlpDecoded(found(root, slot, proof));
  if (!isBytes(content) || content.length === 0 || content.length > 32 || content[0] === 0) {
    throw invalid("it does not lead to a slot's value");
  }
  return BigInt(`0x${hex(content)}`);
}

function composeSlot(kind, composeHash) {
  const subject = fromHex(composeHash);
  return keccak256(concat(subject, kind === "dstack-app" ? new Uint8Array(32) : keccak256(new Uint8Array(64))));
}

function countsUntil(kind, value) {
  if (kind === "owners") return value;
  return (value & 0xffn) === 1n ? FOR_EVER : 0n;
}

/** What a word proves of a deployment, if its block is one of the chain. */
export function readWord(word, composeHash) {
  const header = fromHex(word.header);
  const fields = rlpDecoded(header);
  if (isBytes(fields) || fields.length < 15 || fields.length > 32) throw invalid("the header is none of a block");
  const [number, time, stateRoot] = [integerOf(fields[8]), integerOf(fields[11]), hashOf(fields[3])];
  const account = rlpDecoded(found(stateRoot, fromHex(word.contract.slice(2)), word.account));
  if (isBytes(account) || account.length !== 4) throw invalid("it does not lead to an account");
  const [storageRoot, codeHash] = [hashOf(account[2]), hashOf(account[3])];
  const value = slotValue(storageRoot, composeSlot(word.kind, composeHash), word.slot);
  if ((word.kind === "dstack-app") !== (word.implementation !== null)) {
    throw invalid("it has a proof of an implementation where there is none, or lacks it");
  }
  let implementation = "none";
  if (word.implementation !== null) {
    const leads = slotValue(storageRoot, IMPLEMENTATION, word.implementation);
    implementation = `0x${leads.toString(16).padStart(40, "0")}`;
  }
  return {
    block: hex(keccak256(header)),
    number,
    time,
    code_hash: hex(codeHash),
    until: countsUntil(word.kind, value),
    implementation,
  };
}

/** The chain allowed what brokers released, as far as receipts and trust file say. */
export function chainAllowed(receipts, trusted) {
  const none = "a receipt carries no word of the chain, and the trust file asks for it";
  demand(trusted === null || receipts.length > 0, "chain-refused", none);
  for (const receipt of receipts) {
    const word = receipt.chain;
    if (word === undefined) {
      demand(trusted === null, "chain-refused", none);
      continue;
    }
    const proven = readWord(word, receipt.compose_hash);
    const moment = seconds(receipt.released_at);
    const message = "the chain did not allow the deployment when its keys were released";
    demand(BigInt(moment) <= proven.until, "chain-refused", message);
    if (trusted === null) continue;
    const pairs = [
      ["chain id", word.chain_id, trusted.chain_id],
      ["contract", word.contract, trusted.contract],
      ["kind of contract", word.kind, trusted.kind],
      ["contract code", proven.code_hash, trusted.code_hash],
      ["implementation", proven.implementation, trusted.implementation],
    ];
    if (trusted.app_id === "contract") pairs.push(["app id", receipt.app_id, trusted.contract.slice(2)]);
    for (const [what, got, expected] of pairs) {
      demand(got === expected, "trust-mismatch", `a receipt relies on another ${what} on the chain than you trust`);
    }
    const named = trusted.blocks.includes(proven.block);
    demand(named, "trust-mismatch", `the trust file does not name block ${proven.block} at height ${proven.number}`);
    const recent =
      moment - trusted.max_age_seconds - TOLERANCE <= proven.time && proven.time <= moment + 2 * TOLERANCE;
    demand(recent, "chain-refused", "a receipt relies on a stale block of the chain");
  }
}

/** Blocks that receipts rely on, each once, by height: `{chain_id, contract, number, block}`. */
export function chainBlocks(receipts) {
  const blocks = new Map();
  for (const { chain, compose_hash: composeHash } of receipts) {
    if (chain === undefined) continue;
    const { block, number } = readWord(chain, composeHash);
    blocks.set(`${chain.chain_id} ${block}`, { chain_id: chain.chain_id, contract: chain.contract, number, block });
  }
  return [...blocks.values()].sort((one, other) => one.number - other.number);
}
