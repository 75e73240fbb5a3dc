const module_bytes = (() => {
// Bytes, text encodings and the hashes of WebCrypto; and the two errors that a check can end in.

/** A check refuses: `code` is the code of docs/reference/errors.md. */
class Refusal extends Error {
  constructor(code, message) {
    super(message);
    this.code = code;
  }
}

/** This program or this browser cannot make the check. Never a pass. */
class CannotCheck extends Error {}

/** Throw a refusal unless a condition holds. */
function demand(condition, code, message) {
  if (!condition) throw new Refusal(code, message);
}

const encoder = new TextEncoder();
const strictDecoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

const utf8 = (text) => encoder.encode(text);

/** Text of UTF-8 bytes; throws TypeError where they are none. */
const text = (bytes) => strictDecoder.decode(bytes);

/** Text whose code units are the bytes. */
function latin1(bytes) {
  let result = "";
  for (let at = 0; at < bytes.length; at += 8192) {
    result += String.fromCharCode(...bytes.subarray(at, at + 8192));
  }
  return result;
}

function concat(...parts) {
  const result = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    result.set(part, at);
    at += part.length;
  }
  return result;
}

function equal(first, second) {
  if (first.length !== second.length) return false;
  let difference = 0;
  for (let i = 0; i < first.length; i++) difference |= first[i] ^ second[i];
  return difference === 0;
}

const HEX = Array.from({ length: 256 }, (_, byte) => byte.toString(16).padStart(2, "0"));

function hex(bytes) {
  let result = "";
  for (const byte of bytes) result += HEX[byte];
  return result;
}

/** Bytes of lower-case hexadecimal text, null where it is none. */
function fromHex(value) {
  if (typeof value !== "string" || value.length % 2 || !/^[0-9a-f]*$/.test(value)) return null;
  const result = new Uint8Array(value.length / 2);
  for (let i = 0; i < result.length; i++) result[i] = parseInt(value.slice(2 * i, 2 * i + 2), 16);
  return result;
}

const toBase64 = (bytes) => btoa(latin1(bytes));

/** Bytes of padded standard base64 in its one encoding, null where it is none. */
function fromBase64(value) {
  if (typeof value !== "string" || value.length % 4 || !/^[A-Za-z0-9+/]*={0,2}$/.test(value)) {
    return null;
  }
  let raw;
  try {
    raw = atob(value);
  } catch {
    return null;
  }
  const result = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) result[i] = raw.charCodeAt(i);
  // Four characters are three bytes and nothing else; only those at the end can have a second spelling.
  const end = result.subarray(Math.max(0, 3 * (value.length / 4 - 1)));
  return toBase64(end) === value.slice(-4) ? result : null;
}

const u16be = (bytes, at) => (bytes[at] << 8) | bytes[at + 1];
const u16le = (bytes, at) => bytes[at] | (bytes[at + 1] << 8);
const u32be = (bytes, at) => u16be(bytes, at) * 65536 + u16be(bytes, at + 2);
const u32le = (bytes, at) => u16le(bytes, at + 2) * 65536 + u16le(bytes, at);

/** Eight bytes, big endian. */
function u64be(value) {
  const result = new Uint8Array(8);
  new DataView(result.buffer).setBigUint64(0, BigInt(value));
  return result;
}

function subtle() {
  const found = globalThis.crypto?.subtle;
  if (!found) throw new CannotCheck("this browser offers no WebCrypto on this page");
  return found;
}

async function hash(name, parts) {
  return new Uint8Array(await subtle().digest(name, parts.length === 1 ? parts[0] : concat(...parts)));
}

const sha1 = (...parts) => hash("SHA-1", parts);
const sha256 = (...parts) => hash("SHA-256", parts);
const sha384 = (...parts) => hash("SHA-384", parts);
const sha512 = (...parts) => hash("SHA-512", parts);
const digest = async (...parts) => hex(await sha256(...parts));

/** Whether an Ed25519 signature verifies. */
async function ed25519(publicKey, signature, message) {
  let key;
  try {
    key = await subtle().importKey("raw", publicKey, { name: "Ed25519" }, false, ["verify"]);
  } catch (error) {
    if (error.name === "NotSupportedError") {
      throw new CannotCheck("this browser does not know Ed25519");
    }
    return false; // not a point of the curve
  }
  return subtle().verify({ name: "Ed25519" }, key, signature, message);
}

/** Whether an ECDSA signature `r ‖ s` verifies under an uncompressed point. */
async function ecdsa(curve, hashName, point, signature, message) {
  let key;
  try {
    key = await subtle().importKey("raw", point, { name: "ECDSA", namedCurve: curve }, false, [
      "verify",
    ]);
  } catch (error) {
    if (error.name === "NotSupportedError") throw new CannotCheck(`this browser lacks ${curve}`);
    return false;
  }
  return subtle().verify({ name: "ECDSA", hash: hashName }, key, signature, message);
}

/** Whether an RSASSA-PSS signature with SHA-384 verifies under a SubjectPublicKeyInfo. */
async function rsaPss(info, signature, message) {
  let key;
  try {
    const name = { name: "RSA-PSS", hash: "SHA-384" };
    key = await subtle().importKey("spki", info, name, false, ["verify"]);
  } catch (error) {
    if (error.name === "NotSupportedError") throw new CannotCheck("this browser lacks RSA-PSS");
    return false;
  }
  return subtle().verify({ name: "RSA-PSS", saltLength: 48 }, key, signature, message);
}

/** Whether an RSASSA-PKCS1-v1_5 signature with SHA-256 verifies under a SubjectPublicKeyInfo. */
async function rsaPkcs1(info, signature, message) {
  let key;
  try {
    const name = { name: "RSASSA-PKCS1-v1_5", hash: "SHA-256" };
    key = await subtle().importKey("spki", info, name, false, ["verify"]);
  } catch (error) {
    if (error.name === "NotSupportedError") throw new CannotCheck("this browser lacks RSASSA-PKCS1-v1_5");
    return false;
  }
  return subtle().verify({ name: "RSASSA-PKCS1-v1_5" }, key, signature, message);
}

/** Seconds since the epoch of an RFC 3339 UTC time in whole seconds, null where it is none; no
 * calendar has a year 0. */
function seconds(value) {
  if (typeof value !== "string" || !/^(?!0000)\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$/.test(value)) return null;
  const milliseconds = Date.parse(value);
  if (Number.isNaN(milliseconds)) return null;
  return new Date(milliseconds).toISOString().slice(0, 19) + "Z" === value
    ? milliseconds / 1000
    : null;
}
return { Refusal, CannotCheck, demand, utf8, text, latin1, concat, equal, hex, fromHex, toBase64, fromBase64, u16be, u16le, u32be, u32le, u64be, sha1, sha256, sha384, sha512, digest, ed25519, ecdsa, rsaPss, rsaPkcs1, seconds };
})();
const module_characters = (() => {
// What the table of visible characters does not admit (spec/key-release.md §1): written
// by tools/verifier_page.py from src/sealtrain/base/visible_text.py.

const HIDDEN =
  /[^\u{20}-\u{7e}\u{c0}-\u{d6}\u{d8}-\u{f6}\u{f8}-\u{131}\u{134}-\u{13e}\u{141}-\u{148}\u{14a}-\u{17e}\u{180}-\u{1bf}\u{1cd}-\u{1f0}\u{1f4}-\u{24f}\u{1e00}-\u{1e99}\u{1e9b}-\u{1eff}\u{370}-\u{373}\u{376}-\u{377}\u{37b}-\u{37d}\u{37f}\u{386}\u{388}-\u{38a}\u{38c}\u{38e}-\u{3a1}\u{3a3}-\u{3cf}\u{3d7}-\u{3e1}\u{3f3}\u{3f7}-\u{3f8}\u{3fa}-\u{3ff}\u{1f00}-\u{1f15}\u{1f18}-\u{1f1d}\u{1f20}-\u{1f45}\u{1f48}-\u{1f4d}\u{1f50}-\u{1f57}\u{1f59}\u{1f5b}\u{1f5d}\u{1f5f}-\u{1f70}\u{1f72}\u{1f74}\u{1f76}\u{1f78}\u{1f7a}\u{1f7c}\u{1f80}-\u{1f87}\u{1f90}-\u{1f97}\u{1fa0}-\u{1fa7}\u{1fb0}-\u{1fb4}\u{1fb6}-\u{1fba}\u{1fc2}-\u{1fc4}\u{1fc6}-\u{1fc8}\u{1fca}\u{1fd0}-\u{1fd2}\u{1fd6}-\u{1fda}\u{1fe0}-\u{1fe2}\u{1fe4}-\u{1fea}\u{1fec}\u{1ff2}-\u{1ff4}\u{1ff6}-\u{1ff8}\u{1ffa}\u{400}-\u{481}\u{48a}-\u{52f}\u{531}-\u{556}\u{560}-\u{586}\u{10d0}-\u{10fa}\u{10fd}-\u{10ff}\u{3041}-\u{3096}\u{30a1}-\u{30fa}\u{30fc}\u{3005}\u{3400}-\u{4dbf}\u{4e00}-\u{9fff}\u{ac00}-\u{d7a3}\u{300}-\u{304}\u{306}-\u{30c}\u{30f}\u{311}\u{313}-\u{314}\u{31b}\u{323}-\u{328}\u{32d}-\u{32e}\u{330}-\u{331}\u{342}\u{345}\u{a1}\u{a3}\u{a5}\u{a7}\u{ab}\u{b0}\u{b1}\u{b2}\u{b3}\u{b5}\u{b7}\u{bb}\u{bf}\u{d7}\u{f7}\u{2013}\u{2014}\u{2018}\u{2019}\u{201a}\u{201c}\u{201d}\u{201e}\u{2026}\u{20ac}\u{2192}\u{2260}\u{2264}\u{2265}\u{2713}\u{2717}\u{3001}\u{3002}\u{300c}\u{300d}]|(?<![\u{41}-\u{5a}\u{61}-\u{7a}\u{c0}-\u{d6}\u{d8}-\u{f6}\u{f8}-\u{131}\u{134}-\u{13e}\u{141}-\u{148}\u{14a}-\u{17e}\u{180}-\u{1bf}\u{1cd}-\u{1f0}\u{1f4}-\u{24f}\u{1e00}-\u{1e99}\u{1e9b}-\u{1eff}\u{370}-\u{373}\u{376}-\u{377}\u{37b}-\u{37d}\u{37f}\u{386}\u{388}-\u{38a}\u{38c}\u{38e}-\u{3a1}\u{3a3}-\u{3cf}\u{3d7}-\u{3e1}\u{3f3}\u{3f7}-\u{3f8}\u{3fa}-\u{3ff}\u{1f00}-\u{1f15}\u{1f18}-\u{1f1d}\u{1f20}-\u{1f45}\u{1f48}-\u{1f4d}\u{1f50}-\u{1f57}\u{1f59}\u{1f5b}\u{1f5d}\u{1f5f}-\u{1f70}\u{1f72}\u{1f74}\u{1f76}\u{1f78}\u{1f7a}\u{1f7c}\u{1f80}-\u{1f87}\u{1f90}-\u{1f97}\u{1fa0}-\u{1fa7}\u{1fb0}-\u{1fb4}\u{1fb6}-\u{1fba}\u{1fc2}-\u{1fc4}\u{1fc6}-\u{1fc8}\u{1fca}\u{1fd0}-\u{1fd2}\u{1fd6}-\u{1fda}\u{1fe0}-\u{1fe2}\u{1fe4}-\u{1fea}\u{1fec}\u{1ff2}-\u{1ff4}\u{1ff6}-\u{1ff8}\u{1ffa}\u{400}-\u{481}\u{48a}-\u{52f}\u{300}-\u{304}\u{306}-\u{30c}\u{30f}\u{311}\u{313}-\u{314}\u{31b}\u{323}-\u{328}\u{32d}-\u{32e}\u{330}-\u{331}\u{342}\u{345}])[\u{300}-\u{304}\u{306}-\u{30c}\u{30f}\u{311}\u{313}-\u{314}\u{31b}\u{323}-\u{328}\u{32d}-\u{32e}\u{330}-\u{331}\u{342}\u{345}]|(?<=[\u{300}-\u{304}\u{306}-\u{30c}\u{30f}\u{311}\u{313}-\u{314}\u{31b}\u{323}-\u{328}\u{32d}-\u{32e}\u{330}-\u{331}\u{342}\u{345}]{2})[\u{300}-\u{304}\u{306}-\u{30c}\u{30f}\u{311}\u{313}-\u{314}\u{31b}\u{323}-\u{328}\u{32d}-\u{32e}\u{330}-\u{331}\u{342}\u{345}]/gu;

/** Text for people: what the table does not admit is shown by number. */
const escapeHidden = (text) =>
  String(text).replace(HIDDEN, (found) => `\\u{${found.codePointAt(0).toString(16)}}`);
return { HIDDEN, escapeHidden };
})();
const module_keccak = (() => {
// Keccak-256 as Ethereum uses it, which WebCrypto lacks. Inputs here are a few hundred bytes.

const MASK = (1n << 64n) - 1n;
const ROTATIONS = [
  0, 1, 62, 28, 27, 36, 44, 6, 55, 20, 3, 10, 43, 25, 39, 41, 45, 15, 21, 8, 18, 2, 61, 56, 14,
];

function roundConstants() {
  const constants = [];
  let register = 1;
  for (let round = 0; round < 24; round++) {
    let value = 0n;
    for (let j = 0; j < 7; j++) {
      if (register & 1) value |= 1n << BigInt(2 ** j - 1);
      register = (register << 1) ^ (register & 0x80 ? 0x171 : 0);
    }
    constants.push(value);
  }
  return constants;
}

const CONSTANTS = roundConstants();
const rotate = (value, by) =>
  by === 0 ? value : ((value << BigInt(by)) | (value >> BigInt(64 - by))) & MASK;

function permute(a) {
  for (const constant of CONSTANTS) {
    const c = [0, 1, 2, 3, 4].map((x) => a[x] ^ a[x + 5] ^ a[x + 10] ^ a[x + 15] ^ a[x + 20]);
    for (let i = 0; i < 25; i++) a[i] ^= c[(i + 4) % 5] ^ rotate(c[((i % 5) + 1) % 5], 1);
    const b = new Array(25);
    for (let x = 0; x < 5; x++) {
      for (let y = 0; y < 5; y++) {
        b[y + 5 * ((2 * x + 3 * y) % 5)] = rotate(a[x + 5 * y], ROTATIONS[x + 5 * y]);
      }
    }
    for (let y = 0; y < 25; y += 5) {
      for (let x = 0; x < 5; x++) {
        a[y + x] = b[y + x] ^ (~b[y + ((x + 1) % 5)] & MASK & b[y + ((x + 2) % 5)]);
      }
    }
    a[0] ^= constant;
  }
}

function keccak256(bytes) {
  const rate = 136;
  const padded = new Uint8Array(Math.floor(bytes.length / rate + 1) * rate);
  padded.set(bytes);
  padded[bytes.length] ^= 1;
  padded[padded.length - 1] ^= 0x80;
  const state = new Array(25).fill(0n);
  const view = new DataView(padded.buffer);
  for (let at = 0; at < padded.length; at += rate) {
    for (let i = 0; i < rate / 8; i++) state[i] ^= view.getBigUint64(at + 8 * i, true);
    permute(state);
  }
  const result = new Uint8Array(32);
  const out = new DataView(result.buffer);
  for (let i = 0; i < 4; i++) out.setBigUint64(8 * i, state[i], true);
  return result;
}
return { keccak256 };
})();
const module_patricia = (() => {
// RLP and proofs of Ethereum's Merkle-Patricia trie (Yellow Paper, appendices B to D).

const { Refusal, equal, hex } = module_bytes;
const { keccak256 } = module_keccak;

const MAX_DEPTH = 8; // a node embeds only nodes of less than 32 bytes
const EMPTY = hex(keccak256(Uint8Array.of(0x80)));

const invalid = (why) => new Refusal("proof-invalid", `the chain's proof does not hold: ${why}`);
const isBytes = (item) => item instanceof Uint8Array;

/** The item that bytes are, in the one canonical form: bytes, or a list of items. */
function rlpDecoded(data) {
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
function valueAt(root, key, nodes) {
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
return { rlpDecoded, valueAt };
})();
const module_codes = (() => {
// The closed list of error codes: written by tools/verifier_page.py from
// spec/schema/error-codes.json.

const ERROR_CODES = [
  "accelerator-unreachable",
  "agent-declined",
  "agent-unreachable",
  "already-exists",
  "answer-invalid",
  "app-id-mismatch",
  "approval-expired",
  "approval-revoked",
  "approval-spent",
  "approval-unknown",
  "approvals-missing",
  "broker-mismatch",
  "broker-not-approved",
  "broker-unreachable",
  "budget-spent",
  "capability-refused",
  "certificate-chain-invalid",
  "certificate-revoked",
  "chain-refused",
  "chain-unreachable",
  "challenge-expired",
  "challenge-replayed",
  "challenge-unknown",
  "channel-broken",
  "channel-cut",
  "channel-refused",
  "checkpoint-refused",
  "chunk-damaged",
  "claim-contradicted",
  "claim-taken",
  "collateral-expired",
  "collateral-mismatch",
  "collateral-unreachable",
  "compose-hash-mismatch",
  "config",
  "consortium-invalid",
  "consortium-mismatch",
  "cross-site-refused",
  "data-invalid",
  "dataset-mismatch",
  "dataset-unknown",
  "dataset-withdrawn",
  "dealer-unreachable",
  "debug-guest",
  "decryption-lost",
  "document-mismatch",
  "egress-refused",
  "entry-unknown",
  "environment-changed",
  "error",
  "event-log-mismatch",
  "evidence-malformed",
  "evidence-refused",
  "evidence-stale",
  "extra-missing",
  "file-truncated",
  "fork-refused",
  "format-unknown",
  "gpu-mode-refused",
  "gpu-nonce-mismatch",
  "gpu-report-invalid",
  "gpu-set-refused",
  "guest-api-unreachable",
  "guest-lost",
  "head-too-large",
  "header-damaged",
  "hub-unreachable",
  "image-refused",
  "import-refused",
  "internal",
  "key-file-invalid",
  "key-provider-mismatch",
  "kms-answer-invalid",
  "kms-unreachable",
  "lease-stale",
  "lease-unknown",
  "ledger-inconsistent",
  "limit-exceeded",
  "lock-invalid",
  "manifest-malformed",
  "manifest-refused",
  "measurement-mismatch",
  "migratable-guest",
  "model-invalid",
  "model-not-reloaded",
  "no-stanza",
  "node-lost",
  "node-missing",
  "node-refused",
  "node-taken",
  "not-sealed",
  "output-store-invalid",
  "pads-refused",
  "page-unknown",
  "passkey-invalid",
  "peer-unreachable",
  "platform-mismatch",
  "privacy-broken",
  "product-altered",
  "project-invalid",
  "proof-invalid",
  "protection-missing",
  "purpose-mismatch",
  "quote-invalid",
  "quote-root-untrusted",
  "rank-lost",
  "recipe-changed",
  "recipe-invalid",
  "record-invalid",
  "reference-value-invalid",
  "reference-value-mismatch",
  "refused",
  "release-refused",
  "remote-verdict-refused",
  "report-data-mismatch",
  "request-late",
  "request-replayed",
  "request-stale",
  "request-too-large",
  "retention-ended",
  "revocation-unknown",
  "root-mismatch",
  "run-chain-broken",
  "run-event-refused",
  "run-log-broken",
  "run-mismatch",
  "run-not-completed",
  "run-stopped",
  "run-unconfirmed",
  "schema-mismatch",
  "script-failed",
  "seal-refused",
  "series-mismatch",
  "signature-invalid",
  "signer-unknown",
  "simulated-evidence",
  "statement-invalid",
  "storage-failed",
  "storage-refused",
  "storage-unreachable",
  "subject-mismatch",
  "submission-conflict",
  "submission-ended",
  "submission-unknown",
  "tcb-status-refused",
  "ticket-invalid",
  "tier-refused",
  "token-refused",
  "too-few-parties",
  "too-many-requests",
  "training-diverged",
  "training-failed",
  "transcript-invalid",
  "trip-broken",
  "trust-invalid",
  "trust-mismatch",
  "unreachable",
  "update-refused",
  "usage",
  "validation-failed",
  "wait-over",
  "wrong-context",
  "wrong-key",
];
return { ERROR_CODES };
})();
const module_shape = (() => {
// Shapes of documents: small functions that say whether a parsed value has a form.

const { fromBase64, seconds } = module_bytes;
const { HIDDEN } = module_characters;
const { ERROR_CODES } = module_codes;

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

/** An object with exactly the fields of `fields` and any of `optional`. */
function record(fields, optional = {}) {
  const required = Object.keys(fields);
  return (value) =>
    isObject(value) &&
    required.every((key) => key in value) &&
    Object.keys(value).every((key) => {
      if (Object.hasOwn(fields, key)) return fields[key](value[key]);
      return Object.hasOwn(optional, key) && optional[key](value[key]);
    });
}

const list =
  (item, { min = 0, max = Infinity } = {}) =>
  (value) =>
    Array.isArray(value) && value.length >= min && value.length <= max && value.every(item);

/** An object whose keys and values have forms. */
const map =
  (key, item, { min = 0, max = Infinity } = {}) =>
  (value) =>
    isObject(value) &&
    Object.keys(value).length >= min &&
    Object.keys(value).length <= max &&
    Object.keys(value).every((name) => key(name) && item(value[name]));

const match = (pattern) => (value) => typeof value === "string" && pattern.test(value);
const literal =
  (...values) =>
  (value) =>
    values.includes(value);
const nullable = (item) => (value) => value === null || item(value);
const either =
  (...forms) =>
  (value) =>
    forms.some((form) => form(value));
const integer =
  (min, max = 2 ** 53 - 1) =>
  (value) =>
    Number.isSafeInteger(value) && value >= min && value <= max;
const number =
  (holds = () => true) =>
  (value) =>
    typeof value === "number" && Number.isFinite(value) && holds(value);
const string = (value) => typeof value === "string";
const boolean = (value) => typeof value === "boolean";
const anyObject = isObject;
/** A code of the closed list: a word of its form could hold anything. */
const errorCode = literal(...ERROR_CODES);

const hex32 = match(/^[0-9a-f]{32}$/);
const hex40 = match(/^[0-9a-f]{40}$/);
const hex64 = match(/^[0-9a-f]{64}$/);
const hex96 = match(/^[0-9a-f]{96}$/);
const ownerName = match(/^[a-z0-9][a-z0-9-]{0,62}$/);
const timestamp = match(/^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$/);
const realTime = (value) => seconds(value) !== null;
const count = integer(0);
/** Base64 of so many bytes, or of any number. */
const base64 = (length) => (value) => {
  const bytes = fromBase64(value);
  return bytes !== null && (length === undefined || bytes.length === length);
};
/** Base64 whose length is that of so many bytes at most, and is not empty. */
const encoded = (most) => (value) =>
  string(value) && value.length >= 4 && value.length <= Math.ceil(most / 3) * 4 && fromBase64(value) !== null;
/** Text of a deployment document. */
const compose = (value) => string(value) && value.length >= 2 && value.length <= 4 * 2 ** 20;
/** Text that the table of visible characters admits (spec/key-release.md §1). */
const visible = (value) => value.search(HIDDEN) < 0;

/** One line of visible text of at most so many characters. */
const line =
  (most, least = 0) =>
  (value) => {
    if (typeof value !== "string") return false;
    const length = [...value].length;
    return length >= least && length <= most && visible(value);
  };
return { record, list, map, match, literal, nullable, either, integer, number, string, boolean, anyObject, errorCode, hex32, hex40, hex64, hex96, ownerName, timestamp, realTime, count, base64, encoded, compose, visible, line };
})();
const module_chainword = (() => {
// The chain's word in receipts (spec/chain.md §8): part of check 11.

const { Refusal, concat, demand, fromHex, hex, seconds, utf8 } = module_bytes;
const { keccak256 } = module_keccak;
const { rlpDecoded, valueAt } = module_patricia;
const shape = module_shape;

const TOLERANCE = 300;
const FOR_EVER = 2n ** 63n;

/** Slot of an ERC-1967 proxy: Keccak-256 of its name, less one. */
const IMPLEMENTATION = keccak256(utf8("eip1967.proxy.implementation"));
IMPLEMENTATION[31] -= 1;

const bounded = (most) => (value) => shape.string(value) && value.length <= 2 * most && /^(?:[0-9a-f]{2})+$/.test(value);
const nodes = shape.list(bounded(4096), { min: 1, max: 64 });
const isChainWord = shape.record({
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
const isTrustedChain = (value) =>
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
function readWord(word, composeHash) {
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
function chainAllowed(receipts, trusted) {
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
function chainBlocks(receipts) {
  const blocks = new Map();
  for (const { chain, compose_hash: composeHash } of receipts) {
    if (chain === undefined) continue;
    const { block, number } = readWord(chain, composeHash);
    blocks.set(`${chain.chain_id} ${block}`, { chain_id: chain.chain_id, contract: chain.contract, number, block });
  }
  return [...blocks.values()].sort((one, other) => one.number - other.number);
}
return { isChainWord, isTrustedChain, readWord, chainAllowed, chainBlocks };
})();
const module_datause = (() => {
// How owners say that a dataset may be used, and until when (spec/approvals.md §5.1).

const { demand, seconds } = module_bytes;
const shape = module_shape;

const { line, list, literal, record } = shape;
const differ = (values) => new Set(values).size === values.length;
const texts = (length, most) => (value) => list(line(length, 1), { min: 1, max: most })(value) && differ(value);

const purposeText = line(200, 1);
const legalBasis = literal(
  "consent",
  "contract",
  "legal-obligation",
  "vital-interests",
  "public-task",
  "legitimate-interests",
  "other",
);

const STATED = record(
  {},
  {
    purposes: texts(200, 16),
    purposes_bind: literal(true),
    legal_basis: legalBasis,
    legal_basis_note: line(500, 1),
    categories: texts(100, 64),
    phi: literal("none", "de-identified", "limited", "identified"),
    retention_until: shape.realTime,
  },
);

/** Whether a value is the block `data_use` of a dataset manifest. */
function isDataUse(value) {
  if (!STATED(value) || Object.keys(value).length === 0) return false;
  const { purposes, purposes_bind: bind, legal_basis: basis, legal_basis_note: note } = value;
  if (bind && purposes === undefined) return false;
  return note === undefined ? basis !== "other" : basis !== undefined;
}

/** Refuse a recipe whose purpose (undefined: none stated) an owner does not allow for a dataset. */
function requirePurpose({ name, owner, data_use: use }, purpose) {
  const allowed = !use?.purposes_bind || use.purposes.includes(purpose);
  demand(allowed, "purpose-mismatch", `the recipe's purpose is none that ${owner} allows for ${name}`);
}

/** Refuse a moment after the end of a dataset's retention. */
function requireRetained({ name, data_use: use }, at) {
  const last = use?.retention_until === undefined ? Infinity : seconds(use.retention_until);
  demand(at <= last, "retention-ended", `keys or data of ${name} in use after ${use?.retention_until}`);
}
return { purposeText, legalBasis, isDataUse, requirePurpose, requireRetained };
})();
const module_dsse = (() => {
// DSSE envelopes as spec/approvals.md §1 reads them, and keys that sign them.

const { concat, demand, digest, ed25519, fromBase64, hex, sha256, utf8 } = module_bytes;
const { base64, list, record, string } = module_shape;

const name = (value) => string(value) && value !== "" && [...value].length <= 128;
const ENVELOPE = record({
  payload: base64(),
  payloadType: name,
  signatures: list(record({ keyid: name, sig: base64(64) }), { min: 1, max: 64 }),
});

const keyId = async (key) => `ed25519:${await digest(key)}`;

/** Whether a document has the form of an envelope; says nothing about its signatures. */
const isEnvelope = (document) => ENVELOPE(document);

function readEnvelope(document) {
  demand(isEnvelope(document), "signature-invalid", "not a DSSE envelope");
  return document;
}

function signedBytes(envelope) {
  const payload = fromBase64(envelope.payload);
  const type = utf8(envelope.payloadType);
  return concat(utf8(`DSSEv1 ${type.length} `), type, utf8(` ${payload.length} `), payload);
}

/** Payload of an envelope that exactly these keys signed. */
async function verifyEnvelope(envelope, keys, type) {
  readEnvelope(envelope);
  const known = new Map();
  for (const key of keys) known.set(await keyId(key), key);
  demand(envelope.payloadType === type, "signature-invalid", "another payload type");
  const ids = envelope.signatures.map((one) => one.keyid);
  const once = ids.length > 0 && new Set(ids).size === ids.length;
  demand(once, "signature-invalid", "unsigned, or signed twice by one key");
  const message = signedBytes(envelope);
  for (const { keyid, sig } of envelope.signatures) {
    demand(known.has(keyid), "signature-invalid", "signed by a key that is not trusted");
    const holds = await ed25519(known.get(keyid), fromBase64(sig), message);
    demand(holds, "signature-invalid", "a signature does not verify");
  }
  return fromBase64(envelope.payload);
}

const P = 2n ** 255n - 19n;
const SMALL_ORDER = new Set([
  0n,
  1n,
  P - 1n,
  0x05fc536d880238b13933c6d305acdfd5f098eff289f4c345b027b2c28f95e826n,
  0x7a03ac9277fdc74ec6cc392cfa53202a0f67100d760b3cba4fd83d3d7017c8c7n & (2n ** 255n - 1n),
]);

/** Whether a key is canonically encoded and not of small order. */
function isSoundKey(key) {
  if (key === null || key.length !== 32) return false;
  const whole = BigInt(`0x${hex(key.slice().reverse())}`);
  const y = whole & (2n ** 255n - 1n);
  return y < P && !SMALL_ORDER.has(y);
}

const SPKI = new Uint8Array([0x30, 0x2a, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 3, 0x21, 0]);

/** SHA-256 of a key's SubjectPublicKeyInfo, which Sigstore takes as its hint. */
const spkiDigest = (key) => sha256(SPKI, key);
return { keyId, isEnvelope, readEnvelope, signedBytes, verifyEnvelope, isSoundKey, spkiDigest };
})();
const module_json = (() => {
// Strict JSON and its canonical form (RFC 8785).

const { text, utf8 } = module_bytes;

/** Bytes or text that are not the expected JSON; the caller names the refusal. */
class Malformed extends Error {}

function fail(message) {
  throw new Malformed(message);
}

const NUMBER = /-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?/y;
const PLAIN = /[^"\\\u0000-\u001f]*/y;
const ESCAPES = { '"': '"', "\\": "\\", "/": "/", b: "\b", f: "\f", n: "\n", r: "\r", t: "\t" };
const LONE = /[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/;

class Parser {
  constructor(source, { depth, values, whole }) {
    this.source = source;
    this.at = 0;
    this.depth = depth;
    this.left = values;
    this.whole = whole;
  }

  space() {
    while (" \t\n\r".includes(this.source[this.at] ?? "x")) this.at++;
  }

  expect(word) {
    if (!this.source.startsWith(word, this.at)) fail(`unexpected character at ${this.at}`);
    this.at += word.length;
  }

  value(level) {
    if (--this.left < 0) fail("too many values");
    this.space();
    const first = this.source[this.at];
    if (first === "{") return this.object(level + 1);
    if (first === "[") return this.array(level + 1);
    if (first === '"') return this.string();
    if (first === "t") return this.expect("true"), true;
    if (first === "f") return this.expect("false"), false;
    if (first === "n") return this.expect("null"), null;
    NUMBER.lastIndex = this.at;
    const [number] = NUMBER.exec(this.source) ?? fail(`no value at ${this.at}`);
    this.at += number.length;
    return Number.isFinite(Number(number)) ? counted(number, this.whole) : fail("number out of range");
  }

  /** An empty object or array counts as two values (spec/key-release.md §1). */
  empty(result) {
    if (--this.left < 0) fail("too many values");
    this.at++;
    return result;
  }

  object(level) {
    if (level > this.depth) fail("nested too deeply");
    const result = Object.create(null);
    this.at++;
    this.space();
    if (this.source[this.at] === "}") return this.empty(result);
    for (;;) {
      this.space();
      if (this.source[this.at] !== '"') fail(`no key at ${this.at}`);
      const key = this.string();
      if (key in result) fail("a key occurs twice");
      this.space();
      this.expect(":");
      result[key] = this.value(level);
      this.space();
      if (this.source[this.at] === "}") return this.at++, result;
      this.expect(",");
    }
  }

  array(level) {
    if (level > this.depth) fail("nested too deeply");
    const result = [];
    this.at++;
    this.space();
    if (this.source[this.at] === "]") return this.empty(result);
    for (;;) {
      result.push(this.value(level));
      this.space();
      if (this.source[this.at] === "]") return this.at++, result;
      this.expect(",");
    }
  }

  string() {
    this.at++;
    let result = "";
    for (;;) {
      PLAIN.lastIndex = this.at;
      const [plain] = PLAIN.exec(this.source);
      result += plain;
      this.at += plain.length;
      const next = this.source[this.at++];
      if (next === '"') break;
      if (next !== "\\") fail("text is not closed or holds a control character");
      const escape = this.source[this.at++];
      if (escape === "u") {
        const digits = this.source.slice(this.at, this.at + 4);
        if (!/^[0-9a-fA-F]{4}$/.test(digits)) fail("bad escape");
        result += String.fromCharCode(parseInt(digits, 16));
        this.at += 4;
      } else {
        result += Object.hasOwn(ESCAPES, escape) ? ESCAPES[escape] : fail("bad escape");
      }
    }
    return LONE.test(result) ? fail("half of a surrogate pair") : result;
  }
}

/** A number; `whole` refuses an integer that is written as a fraction or with an exponent. */
function counted(written, whole) {
  const value = Number(written);
  if (whole && Number.isInteger(value) && /[.eE]/.test(written)) fail("an integer written otherwise");
  return value;
}

/** The value of strict JSON bytes. Objects have no prototype. */
function parseJson(bytes, { depth = 64, values = 2 ** 20, size = Infinity, whole = false } = {}) {
  if (bytes.length > size) fail("too large");
  let source;
  try {
    source = text(bytes);
  } catch {
    fail("not UTF-8");
  }
  const parser = new Parser(source, { depth, values, whole });
  const result = parser.value(0);
  parser.space();
  if (parser.at !== source.length) fail("something follows the value");
  return result;
}

function write(value) {
  if (value === null || typeof value === "boolean") return String(value);
  if (typeof value === "number") {
    return Number.isFinite(value) ? String(Object.is(value, -0) ? 0 : value) : fail("no number");
  }
  if (typeof value === "string") return JSON.stringify(value);
  if (Array.isArray(value)) return `[${value.map(write).join(",")}]`;
  const keys = Object.keys(value).sort();
  return `{${keys.map((key) => `${JSON.stringify(key)}:${write(value[key])}`).join(",")}}`;
}

/** Canonical JSON of RFC 8785, as bytes. */
const canonical = (value) => utf8(write(value));

/** The value of bytes that are its canonical JSON and nothing else. */
function parseCanonical(bytes, limits) {
  const value = parseJson(bytes, limits);
  if (write(value) !== text(bytes)) fail("not canonical");
  return value;
}
return { Malformed, parseJson, canonical, parseCanonical };
})();
const module_consortium = (() => {
// Consortium, decisions, dataset manifests and receipts (spec/consortium.md, spec/approvals.md).

const { concat, demand, digest, fromBase64, seconds, utf8 } = module_bytes;
const { isChainWord } = module_chainword;
const { isDataUse } = module_datause;
const { isSoundKey, keyId, readEnvelope, verifyEnvelope } = module_dsse;
const { Malformed, canonical, parseCanonical } = module_json;
const shape = module_shape;

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
function isConsortium(value) {
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

const consortiumId = (document) => digest(canonical(document));

/** Owners by key id, each with its raw key and owner id. */
async function ownersOf(document) {
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
async function readDecision(envelope, owners, id) {
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
async function readDataset(envelope, owners) {
  const [owner, payload] = await signer(envelope, owners, "application/vnd.sealtrain.dataset+json");
  const dataset = read(payload, isDataset, "dataset manifest");
  const own = dataset.owner === owner.name && dataset.owner_id === owner.ownerId;
  demand(own, "dataset-mismatch", "signed by another owner than it names");
  return dataset;
}

/** A document of an owner's own (spec/approvals.md §6, checks 1 to 5): `{owner, document}`. */
async function readOwned(envelope, owners, id, { type, form, what }) {
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

const brokerId = (key) => digest(utf8("sealtrain/broker/v1:"), key);

/** A receipt that a broker's key signed. */
async function readReceipt(envelope, key) {
  const type = "application/vnd.sealtrain.release-receipt+json";
  const payload = await verifyEnvelope(envelope, [key], type);
  const receipt = read(payload, RECEIPT, "receipt");
  demand(receipt.broker_id === (await brokerId(key)), "statement-invalid", "id of another broker");
  const lent = seconds(receipt.lease.not_after) > seconds(receipt.released_at);
  demand(lent, "statement-invalid", "a lease that ends before it begins");
  return receipt;
}

/** A receipt as a manifest lists it, by whichever broker; null for anything else. */
function listedReceipt(envelope) {
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
async function readRotation(envelope, origin) {
  readEnvelope(envelope);
  const rotation = read(fromBase64(envelope.payload), ROTATION, "rotation");
  const keys = [fromBase64(rotation.old_key), fromBase64(rotation.new_key)];
  demand(envelope.signatures.length === 2, "signature-invalid", "not signed by both keys");
  await verifyEnvelope(envelope, keys, "application/vnd.sealtrain.key-rotation+json");
  demand(rotation.origin === origin, "statement-invalid", "a rotation of another ledger");
  return { oldKey: keys[0], newKey: keys[1] };
}

/** Whether a decision names a broker by one of its ids (spec/approvals.md §2, check 7). */
const isFor = ({ statement }, ids) => statement.brokers.some((id) => ids.includes(id));

/** Approvals that count at a time, and what stops the target (spec/approvals.md §3). */
function tally(decisions, consortium, target, needs, now) {
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

const runIdOf = async (prefix, ...parts) =>
  (await digest(concat(utf8(prefix), utf8(parts.join("/"))))).slice(0, 32);
return { isConsortium, consortiumId, ownersOf, readDecision, readDataset, readOwned, brokerId, readReceipt, listedReceipt, readRotation, isFor, tally, runIdOf };
})();
const module_tiers = (() => {
// What a kind of evidence really proves of a machine (spec/evidence.md §6.1): written
// by tools/verifier_page.py from src/sealtrain/base/tiers.py.

/** Strongest first. */
const TIERS = ["processor", "processor-and-paravisor", "cloud-tpm", "cloud"];

/** What each tier means. */
const TIER_WORDS = {
  "processor":
    "the processor's vendor vouches for what started and for the encryption of its memory",
  "processor-and-paravisor":
    "the processor's vendor vouches for the encryption of memory and for the cloud's paravisor; the paravisor vouches for what started",
  "cloud-tpm":
    "the processor's vendor vouches for the encryption of memory; the cloud's TPM vouches for what started",
  "cloud":
    "the cloud alone vouches for what started, and nothing shows that memory is encrypted",
};

/** Kind of the processor's evidence → its tier. */
const TIER_OF_KIND = {
  "dstack": "processor",
  "tdx": "processor",
  "nitro": "cloud",
  "snp": "processor",
  "dstack-gcp-tdx": "processor",
  "dstack-aws-nitro-tpm": "cloud",
  "dstack-amd-sev-snp": "processor",
  "azure-snp": "processor-and-paravisor",
  "azure-tdx": "processor-and-paravisor",
  "gcp-snp": "cloud-tpm",
  "test-vtpm": "cloud",
};

/** Whether a tier is at least the lowest that is taken. */
const reaches = (proven, lowest) =>
  TIERS.indexOf(proven) <= TIERS.indexOf(lowest);
return { TIERS, TIER_WORDS, TIER_OF_KIND, reaches };
})();
const module_form = (() => {
// Check 1: the file of a run manifest, read strictly (spec/run-manifest.md §1, §2).

const { Refusal, demand, digest, equal, fromBase64, toBase64, utf8 } = module_bytes;
const { isConsortium } = module_consortium;
const { isEnvelope, spkiDigest } = module_dsse;
const { Malformed, canonical, parseCanonical } = module_json;
const shape = module_shape;
const { TIERS } = module_tiers;

const STATEMENT_TYPE = "application/vnd.in-toto+json";
const EVIDENCE_TYPE = "application/vnd.sealtrain.evidence+json";
const MARKER = "SIMULATED — NOT ATTESTED";
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
function outputName(subject) {
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
async function readManifest(bytes) {
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
const commitment = async (manifest) => ({
  statement_digest: await digest(manifest.payload),
  signing_key: toBase64(manifest.guestKey),
  run_log_head: manifest.predicate.run_log.head,
});

const transcriptOf = async (purpose, document) =>
  [utf8(`sealtrain/${purpose}/v1:`), canonical(document)];
return { STATEMENT_TYPE, EVIDENCE_TYPE, MARKER, outputName, readManifest, commitment, transcriptOf };
})();
const module_blake3 = (() => {
// BLAKE3 with 32 bytes of output, which WebCrypto lacks.

const IV = [
  0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19,
];
const PERMUTATION = [2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8];
const SCHEDULE = [Array.from({ length: 16 }, (_, i) => i)];
for (let round = 1; round < 7; round++) SCHEDULE.push(PERMUTATION.map((i) => SCHEDULE[round - 1][i]));
const MIXES = [
  [0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15],
  [0, 5, 10, 15], [1, 6, 11, 12], [2, 7, 8, 13], [3, 4, 9, 14],
];
const START = 1;
const END = 2;
const PARENT = 4;
const ROOT = 8;

function compress(chain, words, counter, length, flags) {
  const v = new Uint32Array(16);
  v.set(chain);
  v.set(IV.slice(0, 4), 8);
  v[12] = counter >>> 0;
  v[13] = Math.floor(counter / 2 ** 32);
  v[14] = length;
  v[15] = flags;
  for (const order of SCHEDULE) {
    for (let i = 0; i < 8; i++) {
      const [a, b, c, d] = MIXES[i];
      v[a] = v[a] + v[b] + words[order[2 * i]];
      v[d] ^= v[a];
      v[d] = (v[d] >>> 16) | (v[d] << 16);
      v[c] = v[c] + v[d];
      v[b] ^= v[c];
      v[b] = (v[b] >>> 12) | (v[b] << 20);
      v[a] = v[a] + v[b] + words[order[2 * i + 1]];
      v[d] ^= v[a];
      v[d] = (v[d] >>> 8) | (v[d] << 24);
      v[c] = v[c] + v[d];
      v[b] ^= v[c];
      v[b] = (v[b] >>> 7) | (v[b] << 25);
    }
  }
  return v.subarray(0, 8).map((word, i) => word ^ v[i + 8]);
}

function blockWords(bytes, at, length) {
  const block = new Uint8Array(64);
  block.set(bytes.subarray(at, at + length));
  const view = new DataView(block.buffer);
  return Uint32Array.from({ length: 16 }, (_, i) => view.getUint32(4 * i, true));
}

function chunk(bytes, start, end, counter, root) {
  let chain = Uint32Array.from(IV);
  for (let at = start; ; at += 64) {
    const length = Math.min(64, end - at);
    const last = at + 64 >= end;
    const flags = (at === start ? START : 0) | (last ? END | root : 0);
    chain = compress(chain, blockWords(bytes, at, length), counter, length, flags);
    if (last) return chain;
  }
}

function tree(bytes, start, end, counter, root) {
  const length = end - start;
  if (length <= 1024) return chunk(bytes, start, end, counter, root);
  const left = 1024 * 2 ** Math.floor(Math.log2((length - 1) / 1024));
  const words = new Uint32Array(16);
  words.set(tree(bytes, start, start + left, counter, 0));
  words.set(tree(bytes, start + left, end, counter + left / 1024, 0), 8);
  return compress(Uint32Array.from(IV), words, 0, 64, PARENT | root);
}

function blake3(bytes) {
  const words = tree(bytes, 0, bytes.length, 0, ROOT);
  const result = new Uint8Array(32);
  const view = new DataView(result.buffer);
  words.forEach((word, i) => view.setUint32(4 * i, word, true));
  return result;
}
return { blake3 };
})();
const module_roots = (() => {
// Roots of sealed files and datasets (spec/sealed-file.md §5, §7).

const { concat, fromHex, sha256, u64be, utf8 } = module_bytes;
const { blake3 } = module_blake3;
const { canonical } = module_json;

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
async function fileRoot(suite, core, payload) {
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
async function datasetRoot(id, indexRoot, shards) {
  const leaves = [];
  for (const { name, root, size } of shards) {
    leaves.push(await sha256(byte(0), canonical({ name, root, size })));
  }
  const count = u64be(shards.length).subarray(4);
  const label = utf8("sealtrain/dataset-root/v1");
  return sha256(byte(2), label, fromHex(id), fromHex(indexRoot), count, await top(sha256, leaves));
}
return { fileRoot, datasetRoot };
})();
const module_artefacts = (() => {
// Check 19: the output files beside a manifest (spec/run-manifest.md §2.3, spec/sealed-file.md §9).

const { demand, digest, hex, latin1, u32be } = module_bytes;
const { outputName } = module_form;
const { Malformed, canonical, parseCanonical } = module_json;
const { fileRoot } = module_roots;

const match = (condition, message) => demand(condition, "subject-mismatch", message);
const MAGIC = "SEALTRN\x01";
const END = "SEALEND\x01";

/**
 * `state.artefacts` maps the path of everything below the folder of the run, such as
 * `model/config.json.sealed`, to a function that resolves to its bytes; to null what is no file.
 */
async function artefactsMatch(state) {
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
return { artefactsMatch };
})();
const module_recipeschema = (() => {
// The schema of the recipes in locks: written by tools/verifier_page.py from
// spec/schema/recipe.schema.json.

const RECIPE_SCHEMA = {"$defs":{"0":{"pattern":"^[a-z0-9][a-z0-9-]{0,62}$","type":"string"},"1":{"format":"visible","maxLength":1024,"type":"string"},"2":{"anyOf":[{"maxLength":200,"minLength":1,"type":"string"},{"type":"null"}],"not":{"const":null}},"3":{"anyOf":[{"enum":["consent","contract","legal-obligation","vital-interests","public-task","legitimate-interests","other"],"type":"string"},{"type":"null"}],"not":{"const":null}},"6":{"anyOf":[{"enum":["eager","sdpa"],"type":"string"},{"type":"null"}],"not":{"const":null}},"7":{"maxLength":255,"pattern":"^(\\.\\./)?[A-Za-z0-9_][A-Za-z0-9._+@=-]*(/[A-Za-z0-9_][A-Za-z0-9._+@=-]*)*$","type":"string"},"9":{"additionalProperties":false,"properties":{"kind":{"const":"bytes","type":"string"}},"required":["kind"],"type":"object"},"10":{"additionalProperties":false,"properties":{"path":{"$ref":"#/$defs/7"}},"required":["path"],"type":"object"},"8":{"anyOf":[{"oneOf":[{"$ref":"#/$defs/9"},{"$ref":"#/$defs/10"}]},{"type":"null"}]},"11":{"enum":["float32","bfloat16"],"type":"string"},"5":{"additionalProperties":false,"properties":{"attn_implementation":{"$ref":"#/$defs/6"},"path":{"$ref":"#/$defs/7"},"tokenizer":{"$ref":"#/$defs/8"},"dtype":{"$ref":"#/$defs/11"}},"required":["dtype","path","tokenizer"],"type":"object"},"12":{"additionalProperties":false,"properties":{"attn_implementation":{"$ref":"#/$defs/6"},"path":{"$ref":"#/$defs/7"},"tokenizer":{"$ref":"#/$defs/8"},"dtype":{"$ref":"#/$defs/11"},"id":{"maxLength":96,"pattern":"^(?!.*(--|\\.\\.))[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?/[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?$","type":"string"},"revision":{"maxLength":64,"pattern":"^[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?$","type":"string"}},"required":["dtype","id","path","revision","tokenizer"],"type":"object"},"13":{"exclusiveMaximum":4294967296,"minimum":0,"type":"integer"},"4":{"oneOf":[{"$ref":"#/$defs/5"},{"$ref":"#/$defs/12"},{"additionalProperties":false,"properties":{"attn_implementation":{"$ref":"#/$defs/6"},"config":{"additionalProperties":true,"maxProperties":256,"minProperties":1,"type":"object"},"init_seed":{"$ref":"#/$defs/13"},"tokenizer":{"$ref":"#/$defs/8"},"dtype":{"$ref":"#/$defs/11"}},"required":["config","dtype","init_seed","tokenizer"],"type":"object"},{"additionalProperties":false,"properties":{"attn_implementation":{"$ref":"#/$defs/6"},"sealed":{"$ref":"#/$defs/0"},"tokenizer":{"anyOf":[{"additionalProperties":false,"properties":{"kind":{"const":"sealed","type":"string"}},"required":["kind"],"type":"object"},{"$ref":"#/$defs/9"},{"$ref":"#/$defs/10"},{"type":"null"}]},"dtype":{"$ref":"#/$defs/11"}},"required":["dtype","sealed","tokenizer"],"type":"object"}]},"15":{"exclusiveMinimum":0,"maximum":1000000,"type":"number"},"16":{"maximum":9007199254740991,"minimum":1,"type":"integer"},"17":{"format":"visible","maxLength":128,"minLength":1,"type":"string"},"18":{"format":"visible","maxLength":128,"minLength":1},"14":{"items":{"additionalProperties":false,"oneOf":[{"required":["name"]},{"required":["series"]}],"properties":{"owner":{"$ref":"#/$defs/0"},"name":{"$ref":"#/$defs/0"},"series":{"anyOf":[{"$ref":"#/$defs/0"},{"type":"null"}],"not":{"const":null}},"role":{"enum":["train","test","model"],"type":"string"},"weight":{"$ref":"#/$defs/15"},"max_records":{"anyOf":[{"$ref":"#/$defs/16"},{"type":"null"}]},"columns":{"additionalProperties":{"$ref":"#/$defs/17"},"maxProperties":256,"propertyNames":{"$ref":"#/$defs/18"},"type":"object"}},"required":["columns","max_records","owner","role","weight"],"type":"object"},"maxItems":256,"minItems":1,"type":"array"},"19":{"additionalProperties":false,"properties":{"text":{"$ref":"#/$defs/17"},"label":{"$ref":"#/$defs/17"}},"required":["label","text"],"type":"object"},"20":{"additionalProperties":false,"properties":{"features":{"items":{"$ref":"#/$defs/17"},"maxItems":4096,"minItems":1,"type":"array","uniqueItems":true},"label":{"$ref":"#/$defs/17"}},"required":["features","label"],"type":"object"},"22":{"maximum":10000000,"minimum":1,"type":"integer"},"23":{"maximum":65536,"minimum":1,"type":"integer"},"24":{"exclusiveMinimum":0,"maximum":10,"type":"number"},"25":{"enum":["linear","cosine","cosine_with_restarts","cosine_with_min_lr","polynomial","constant","constant_with_warmup","inverse_sqrt","warmup_stable_decay"],"type":"string"},"26":{"additionalProperties":false,"maxProperties":8,"patternProperties":{"^[a-z_]{1,40}$":{"anyOf":[{"type":"integer"},{"type":"number"}]}},"type":"object"},"27":{"maximum":10000000,"minimum":0,"type":"number"},"28":{"enum":["adamw_torch","adamw_torch_fused","sgd","adafactor","adagrad","rmsprop","adamw_bnb_8bit","paged_adamw_8bit","paged_adamw_32bit"],"type":"string"},"29":{"maximum":1,"minimum":0,"type":"number"},"30":{"exclusiveMaximum":1,"minimum":0,"type":"number"},"31":{"exclusiveMinimum":0,"maximum":1,"type":"number"},"32":{"maximum":1000000,"minimum":0,"type":"number"},"34":{"exclusiveMinimum":0,"maximum":100,"type":"number"},"33":{"anyOf":[{"$ref":"#/$defs/34"},{"type":"null"}]},"35":{"type":"boolean","not":{"const":false}},"36":{"anyOf":[{"$ref":"#/$defs/13"},{"type":"null"}]},"37":{"maximum":10000,"minimum":1,"type":"integer"},"38":{"anyOf":[{"$ref":"#/$defs/22"},{"type":"null"}]},"40":{"pattern":"^[a-z][a-z0-9_]{0,62}$","type":"string"},"39":{"anyOf":[{"$ref":"#/$defs/40"},{"type":"null"}]},"41":{"anyOf":[{"type":"boolean"},{"type":"null"}]},"42":{"maximum":4194304,"minimum":1,"type":"integer"},"21":{"additionalProperties":false,"properties":{"max_steps":{"$ref":"#/$defs/22"},"per_device_train_batch_size":{"$ref":"#/$defs/23"},"per_device_eval_batch_size":{"$ref":"#/$defs/23"},"gradient_accumulation_steps":{"$ref":"#/$defs/23"},"learning_rate":{"$ref":"#/$defs/24"},"lr_scheduler_type":{"$ref":"#/$defs/25"},"lr_scheduler_kwargs":{"$ref":"#/$defs/26"},"warmup_steps":{"$ref":"#/$defs/27"},"optim":{"$ref":"#/$defs/28"},"weight_decay":{"$ref":"#/$defs/29"},"adam_beta1":{"$ref":"#/$defs/30"},"adam_beta2":{"$ref":"#/$defs/30"},"adam_epsilon":{"$ref":"#/$defs/31"},"max_grad_norm":{"$ref":"#/$defs/32"},"label_smoothing_factor":{"$ref":"#/$defs/30"},"neftune_noise_alpha":{"$ref":"#/$defs/33"},"bf16":{"type":"boolean"},"fp16":{"$ref":"#/$defs/35"},"activation_checkpointing":{"type":"boolean"},"seed":{"$ref":"#/$defs/13"},"data_seed":{"$ref":"#/$defs/36"},"logging_steps":{"$ref":"#/$defs/22"},"save_steps":{"$ref":"#/$defs/22"},"save_total_limit":{"$ref":"#/$defs/37"},"eval_steps":{"$ref":"#/$defs/38"},"metric_for_best_model":{"$ref":"#/$defs/39"},"greater_is_better":{"$ref":"#/$defs/41"},"load_best_model_at_end":{"type":"boolean"},"early_stopping_patience":{"$ref":"#/$defs/38"},"early_stopping_threshold":{"$ref":"#/$defs/32"},"max_length":{"$ref":"#/$defs/42"}},"required":["activation_checkpointing","adam_beta1","adam_beta2","adam_epsilon","bf16","data_seed","early_stopping_patience","early_stopping_threshold","eval_steps","gradient_accumulation_steps","greater_is_better","label_smoothing_factor","learning_rate","load_best_model_at_end","logging_steps","lr_scheduler_kwargs","lr_scheduler_type","max_grad_norm","max_length","max_steps","metric_for_best_model","neftune_noise_alpha","optim","per_device_eval_batch_size","per_device_train_batch_size","save_steps","save_total_limit","seed","warmup_steps","weight_decay"],"type":"object"},"44":{"anyOf":[{"additionalProperties":false,"properties":{"bnb_4bit_quant_type":{"enum":["nf4","fp4"],"type":"string"},"bnb_4bit_use_double_quant":{"type":"boolean"},"bnb_4bit_compute_dtype":{"enum":["bfloat16","float32"],"type":"string"}},"type":"object","required":["bnb_4bit_compute_dtype","bnb_4bit_quant_type","bnb_4bit_use_double_quant"]},{"type":"null"}]},"46":{"pattern":"^[A-Za-z0-9_.]{1,200}$","type":"string"},"45":{"anyOf":[{"const":"all-linear","type":"string"},{"items":{"$ref":"#/$defs/46"},"minItems":1,"type":"array"}]},"48":{"items":{"$ref":"#/$defs/46"},"type":"array"},"47":{"anyOf":[{"$ref":"#/$defs/48"},{"type":"null"}]},"49":{"maximum":4096,"minimum":1,"type":"integer"},"50":{"anyOf":[{"$ref":"#/$defs/23"},{"type":"null"}]},"51":{"maximum":64,"minimum":1,"type":"integer"},"43":{"anyOf":[{"oneOf":[{"additionalProperties":false,"properties":{"quantization":{"$ref":"#/$defs/44"},"target_modules":{"$ref":"#/$defs/45"},"modules_to_save":{"$ref":"#/$defs/47"},"merge":{"type":"boolean"},"method":{"const":"lora","type":"string"},"r":{"$ref":"#/$defs/49"},"lora_alpha":{"$ref":"#/$defs/23"},"lora_dropout":{"$ref":"#/$defs/30"},"bias":{"enum":["none","all","lora_only"],"type":"string"},"use_rslora":{"type":"boolean"},"use_dora":{"type":"boolean"},"init_lora_weights":{"anyOf":[{"type":"boolean"},{"enum":["gaussian","pissa","olora"],"type":"string"}]},"layers_to_transform":{"anyOf":[{"items":{"maximum":100000,"minimum":0,"type":"integer"},"type":"array"},{"type":"null"}]}},"required":["bias","init_lora_weights","layers_to_transform","lora_alpha","lora_dropout","merge","method","modules_to_save","quantization","r","target_modules","use_dora","use_rslora"],"type":"object"},{"additionalProperties":false,"properties":{"quantization":{"$ref":"#/$defs/44"},"target_modules":{"$ref":"#/$defs/45"},"modules_to_save":{"$ref":"#/$defs/47"},"merge":{"type":"boolean"},"method":{"const":"ia3","type":"string"},"feedforward_modules":{"$ref":"#/$defs/48"}},"required":["feedforward_modules","merge","method","modules_to_save","quantization","target_modules"],"type":"object"},{"additionalProperties":false,"properties":{"quantization":{"$ref":"#/$defs/44"},"num_virtual_tokens":{"$ref":"#/$defs/49"},"method":{"const":"prefix_tuning","type":"string"},"prefix_projection":{"type":"boolean"},"encoder_hidden_size":{"$ref":"#/$defs/50"}},"required":["encoder_hidden_size","method","num_virtual_tokens","prefix_projection","quantization"],"type":"object"},{"additionalProperties":false,"properties":{"quantization":{"$ref":"#/$defs/44"},"num_virtual_tokens":{"$ref":"#/$defs/49"},"method":{"const":"p_tuning","type":"string"},"encoder_reparameterization_type":{"enum":["MLP","LSTM"],"type":"string"},"encoder_hidden_size":{"$ref":"#/$defs/50"},"encoder_num_layers":{"$ref":"#/$defs/51"},"encoder_dropout":{"$ref":"#/$defs/30"}},"required":["encoder_dropout","encoder_hidden_size","encoder_num_layers","encoder_reparameterization_type","method","num_virtual_tokens","quantization"],"type":"object"},{"additionalProperties":false,"properties":{"quantization":{"$ref":"#/$defs/44"},"num_virtual_tokens":{"$ref":"#/$defs/49"},"method":{"const":"prompt_tuning","type":"string"},"prompt_tuning_init":{"enum":["RANDOM","SAMPLE_VOCAB"],"type":"string"}},"required":["method","num_virtual_tokens","prompt_tuning_init","quantization"],"type":"object"}]},{"type":"null"}]},"53":{"items":{"$ref":"#/$defs/51"},"maxItems":8,"type":"array","uniqueItems":true,"not":{"const":[]}},"52":{"oneOf":[{"additionalProperties":false,"properties":{"ranks":{"$ref":"#/$defs/51"},"resume_ranks":{"$ref":"#/$defs/53"},"name":{"const":"trl","type":"string"}},"required":["name","ranks"],"type":"object"},{"additionalProperties":false,"properties":{"ranks":{"$ref":"#/$defs/51"},"resume_ranks":{"$ref":"#/$defs/53"},"name":{"const":"fsdp","type":"string"},"reshard_after_forward":{"type":"boolean"}},"required":["name","ranks","reshard_after_forward"],"type":"object"},{"additionalProperties":false,"properties":{"ranks":{"$ref":"#/$defs/51"},"name":{"const":"deepspeed","type":"string"},"zero_stage":{"enum":[0,1,2,3],"type":"integer"},"offload":{"enum":["none","cpu"],"type":"string"}},"required":["name","offload","ranks","zero_stage"],"type":"object"},{"additionalProperties":false,"properties":{"ranks":{"const":1,"type":"integer"},"name":{"const":"unsloth","type":"string"}},"required":["name","ranks"],"type":"object"},{"additionalProperties":false,"properties":{"ranks":{"const":1,"type":"integer"},"name":{"const":"axolotl","type":"string"}},"required":["name","ranks"],"type":"object"}],"not":{"const":{"ranks":1,"name":"trl"}}},"55":{"maximum":1000000,"minimum":1,"type":"integer"},"56":{"anyOf":[{"exclusiveMinimum":0,"maximum":1000000000.0,"type":"number"},{"type":"null"}]},"57":{"maximum":10000,"minimum":0.1,"type":"number"},"58":{"exclusiveMinimum":0,"maximum":0.01,"type":"number"},"59":{"enum":["prv","rdp"],"type":"string"},"60":{"maximum":256,"minimum":2,"type":"integer"},"61":{"maximum":604800,"minimum":1,"type":"integer"},"62":{"maximum":256,"minimum":1,"type":"integer"},"63":{"exclusiveMinimum":0,"maximum":1000000.0,"type":"number"},"64":{"exclusiveMaximum":0.5,"minimum":0,"type":"number"},"65":{"maximum":126,"minimum":0,"type":"integer"},"66":{"exclusiveMinimum":0,"maximum":1000,"type":"number"},"67":{"anyOf":[{"$ref":"#/$defs/57"},{"type":"null"}]},"68":{"enum":["own","pool","dealer"],"type":"string"},"69":{"items":{"pattern":"^[A-Za-z0-9_][A-Za-z0-9_.]{0,199}$","type":"string"},"maxItems":256,"type":"array"},"70":{"maximum":1000,"minimum":0,"type":"integer"},"54":{"anyOf":[{"oneOf":[{"additionalProperties":false,"properties":{"policy":{"$ref":"#/$defs/7"},"kind":{"const":"travelling","type":"string"},"program":{"enum":["loop","trainer"],"type":"string","not":{"const":"loop"}},"buffer_bytes":{"maximum":1099511627776,"minimum":2,"type":"integer"},"max_tokens":{"anyOf":[{"additionalProperties":false,"patternProperties":{"^[a-z0-9][a-z0-9-]{0,62}$":{"$ref":"#/$defs/16"}},"type":"object"},{"$ref":"#/$defs/16"},{"type":"null"}]},"seal_every":{"$ref":"#/$defs/55"},"max_update_norm":{"$ref":"#/$defs/56"},"sequence_privacy":{"anyOf":[{"additionalProperties":false,"properties":{"noise_multiplier":{"$ref":"#/$defs/57"},"max_sequence_norm":{"$ref":"#/$defs/15"},"delta":{"$ref":"#/$defs/58"},"accountant":{"$ref":"#/$defs/59"}},"required":["accountant","delta","max_sequence_norm","noise_multiplier"],"type":"object"},{"type":"null"}]}},"required":["buffer_bytes","kind","max_tokens","max_update_norm","policy","seal_every","sequence_privacy"],"type":"object"},{"additionalProperties":false,"properties":{"policy":{"$ref":"#/$defs/7"},"kind":{"const":"federated","type":"string"},"rounds":{"$ref":"#/$defs/37"},"local_steps":{"$ref":"#/$defs/55"},"min_parties":{"$ref":"#/$defs/60"},"round_seconds":{"$ref":"#/$defs/61"},"joining_days":{"anyOf":[{"maximum":90,"minimum":1,"type":"integer"},{"type":"null"}],"not":{"const":null}},"aggregation":{"enum":["exact","ffa","fedavg","median","trimmed-mean","flower"],"type":"string"},"strategy":{"anyOf":[{"oneOf":[{"additionalProperties":false,"properties":{"fraction_train":{"$ref":"#/$defs/31"},"min_train_nodes":{"$ref":"#/$defs/62"},"min_available_nodes":{"$ref":"#/$defs/62"},"name":{"const":"FedAvg","type":"string"}},"required":["fraction_train","min_available_nodes","min_train_nodes","name"],"type":"object"},{"additionalProperties":false,"properties":{"fraction_train":{"$ref":"#/$defs/31"},"min_train_nodes":{"$ref":"#/$defs/62"},"min_available_nodes":{"$ref":"#/$defs/62"},"name":{"const":"FedAvgM","type":"string"},"server_learning_rate":{"$ref":"#/$defs/63"},"server_momentum":{"$ref":"#/$defs/30"}},"required":["fraction_train","min_available_nodes","min_train_nodes","name","server_learning_rate","server_momentum"],"type":"object"},{"additionalProperties":false,"properties":{"fraction_train":{"$ref":"#/$defs/31"},"min_train_nodes":{"$ref":"#/$defs/62"},"min_available_nodes":{"$ref":"#/$defs/62"},"eta":{"$ref":"#/$defs/63"},"eta_l":{"$ref":"#/$defs/63"},"tau":{"$ref":"#/$defs/63"},"name":{"const":"FedAdagrad","type":"string"}},"required":["eta","eta_l","fraction_train","min_available_nodes","min_train_nodes","name","tau"],"type":"object"},{"additionalProperties":false,"properties":{"fraction_train":{"$ref":"#/$defs/31"},"min_train_nodes":{"$ref":"#/$defs/62"},"min_available_nodes":{"$ref":"#/$defs/62"},"eta":{"$ref":"#/$defs/63"},"eta_l":{"$ref":"#/$defs/63"},"tau":{"$ref":"#/$defs/63"},"name":{"const":"FedAdam","type":"string"},"beta_1":{"$ref":"#/$defs/30"},"beta_2":{"$ref":"#/$defs/30"}},"required":["beta_1","beta_2","eta","eta_l","fraction_train","min_available_nodes","min_train_nodes","name","tau"],"type":"object"},{"additionalProperties":false,"properties":{"fraction_train":{"$ref":"#/$defs/31"},"min_train_nodes":{"$ref":"#/$defs/62"},"min_available_nodes":{"$ref":"#/$defs/62"},"eta":{"$ref":"#/$defs/63"},"eta_l":{"$ref":"#/$defs/63"},"tau":{"$ref":"#/$defs/63"},"name":{"const":"FedYogi","type":"string"},"beta_1":{"$ref":"#/$defs/30"},"beta_2":{"$ref":"#/$defs/30"}},"required":["beta_1","beta_2","eta","eta_l","fraction_train","min_available_nodes","min_train_nodes","name","tau"],"type":"object"},{"additionalProperties":false,"properties":{"fraction_train":{"$ref":"#/$defs/31"},"min_train_nodes":{"$ref":"#/$defs/62"},"min_available_nodes":{"$ref":"#/$defs/62"},"name":{"const":"FedProx","type":"string"},"proximal_mu":{"maximum":1000000.0,"minimum":0,"type":"number"}},"required":["fraction_train","min_available_nodes","min_train_nodes","name","proximal_mu"],"type":"object"},{"additionalProperties":false,"properties":{"fraction_train":{"$ref":"#/$defs/31"},"min_train_nodes":{"$ref":"#/$defs/62"},"min_available_nodes":{"$ref":"#/$defs/62"},"name":{"const":"FedMedian","type":"string"}},"required":["fraction_train","min_available_nodes","min_train_nodes","name"],"type":"object"},{"additionalProperties":false,"properties":{"fraction_train":{"$ref":"#/$defs/31"},"min_train_nodes":{"$ref":"#/$defs/62"},"min_available_nodes":{"$ref":"#/$defs/62"},"name":{"const":"FedTrimmedAvg","type":"string"},"beta":{"$ref":"#/$defs/64"}},"required":["beta","fraction_train","min_available_nodes","min_train_nodes","name"],"type":"object"},{"additionalProperties":false,"properties":{"fraction_train":{"$ref":"#/$defs/31"},"min_train_nodes":{"$ref":"#/$defs/62"},"min_available_nodes":{"$ref":"#/$defs/62"},"name":{"const":"Krum","type":"string"},"num_malicious_nodes":{"$ref":"#/$defs/65"}},"required":["fraction_train","min_available_nodes","min_train_nodes","name","num_malicious_nodes"],"type":"object"},{"additionalProperties":false,"properties":{"fraction_train":{"$ref":"#/$defs/31"},"min_train_nodes":{"$ref":"#/$defs/62"},"min_available_nodes":{"$ref":"#/$defs/62"},"name":{"const":"MultiKrum","type":"string"},"num_malicious_nodes":{"$ref":"#/$defs/65"},"num_nodes_to_select":{"$ref":"#/$defs/62"}},"required":["fraction_train","min_available_nodes","min_train_nodes","name","num_malicious_nodes","num_nodes_to_select"],"type":"object"},{"additionalProperties":false,"properties":{"fraction_train":{"$ref":"#/$defs/31"},"min_train_nodes":{"$ref":"#/$defs/62"},"min_available_nodes":{"$ref":"#/$defs/62"},"name":{"const":"Bulyan","type":"string"},"num_malicious_nodes":{"$ref":"#/$defs/65"}},"required":["fraction_train","min_available_nodes","min_train_nodes","name","num_malicious_nodes"],"type":"object"}]},{"type":"null"}],"not":{"const":null}},"trim":{"anyOf":[{"maximum":127,"minimum":1,"type":"integer"},{"type":"null"}]},"max_update_norm":{"$ref":"#/$defs/56"},"patient_privacy":{"anyOf":[{"additionalProperties":false,"properties":{"patient":{"$ref":"#/$defs/17"},"records_a_patient":{"$ref":"#/$defs/49"},"patients_a_round":{"$ref":"#/$defs/16"},"target_epsilon":{"$ref":"#/$defs/66"},"delta":{"$ref":"#/$defs/58"},"max_patient_norm":{"$ref":"#/$defs/15"},"noise_multiplier":{"$ref":"#/$defs/67"},"accountant":{"$ref":"#/$defs/59"}},"required":["accountant","delta","max_patient_norm","noise_multiplier","patient","patients_a_round","records_a_patient","target_epsilon"],"type":"object"},{"type":"null"}],"not":{"const":null}},"products":{"anyOf":[{"additionalProperties":false,"properties":{"pads":{"$ref":"#/$defs/68"},"checks":{"enum":[1,2],"type":"integer"},"skip":{"$ref":"#/$defs/69"}},"required":["checks","pads","skip"],"type":"object"},{"type":"null"}],"not":{"const":null}}},"required":["aggregation","kind","local_steps","max_update_norm","min_parties","policy","round_seconds","rounds","trim"],"type":"object"},{"additionalProperties":false,"properties":{"pads":{"$ref":"#/$defs/68"},"checks":{"enum":[1,2],"type":"integer"},"skip":{"$ref":"#/$defs/69"},"kind":{"const":"pads","type":"string"},"policy":{"anyOf":[{"$ref":"#/$defs/7"},{"type":"null"}]}},"required":["checks","kind","pads","policy","skip"],"type":"object"},{"additionalProperties":false,"properties":{"policy":{"$ref":"#/$defs/7"},"kind":{"const":"cut","type":"string"},"layers":{"$ref":"#/$defs/70"},"spf_share":{"$ref":"#/$defs/29"},"wire":{"enum":["bfloat16","int8"],"type":"string"}},"required":["kind","layers","policy","spf_share","wire"],"type":"object"},{"additionalProperties":false,"properties":{"kind":{"const":"nodes","type":"string"},"nodes":{"$ref":"#/$defs/60"},"policy":{"$ref":"#/$defs/7"},"join_seconds":{"$ref":"#/$defs/61"}},"required":["join_seconds","kind","nodes","policy"],"type":"object"}]},{"type":"null"}],"not":{"const":null}},"71":{"items":{"$ref":"#/$defs/7"},"maxItems":32,"type":"array"},"72":{"items":{"maxLength":200,"pattern":"^[A-Za-z0-9][A-Za-z0-9._-]*(\\[[A-Za-z0-9._,-]+\\])?==[A-Za-z0-9.+!_-]{1,64}$","type":"string"},"maxItems":64,"type":"array"},"74":{"anyOf":[{"type":"number"},{"type":"null"}]},"75":{"anyOf":[{"maximum":9007199254740991,"minimum":0,"type":"integer"},{"type":"null"}]},"76":{"items":{"$ref":"#/$defs/17"},"maxItems":64,"minItems":1,"type":"array"},"77":{"maximum":1000000,"minimum":2,"type":"integer"},"73":{"anyOf":[{"additionalProperties":false,"properties":{"columns":{"additionalProperties":{"additionalProperties":false,"properties":{"type":{"anyOf":[{"enum":["text","integer","number","boolean","bytes","list","struct"],"type":"string"},{"type":"null"}]},"max_nulls":{"$ref":"#/$defs/29"},"min":{"$ref":"#/$defs/74"},"max":{"$ref":"#/$defs/74"},"min_length":{"$ref":"#/$defs/75"},"max_length":{"$ref":"#/$defs/75"},"max_tokens":{"$ref":"#/$defs/75"},"values":{"anyOf":[{"items":{"$ref":"#/$defs/1"},"maxItems":4096,"minItems":1,"type":"array"},{"type":"null"}]}},"type":"object","required":["max","max_length","max_nulls","max_tokens","min","min_length","type","values"]},"maxProperties":256,"propertyNames":{"$ref":"#/$defs/18"},"type":"object"},"min_records":{"anyOf":[{"minimum":1,"type":"integer"},{"type":"null"}]},"duplicates":{"anyOf":[{"additionalProperties":false,"properties":{"columns":{"$ref":"#/$defs/76"},"within_owner":{"$ref":"#/$defs/29"},"across_owners":{"$ref":"#/$defs/29"}},"required":["across_owners","columns","within_owner"],"type":"object"},{"type":"null"}]},"label":{"anyOf":[{"additionalProperties":false,"properties":{"column":{"$ref":"#/$defs/17"},"values":{"items":{"$ref":"#/$defs/1"},"maxItems":4096,"minItems":2,"type":"array"},"min_share":{"$ref":"#/$defs/29"}},"required":["column","min_share","values"],"type":"object"},{"type":"null"}]},"personal":{"anyOf":[{"additionalProperties":false,"properties":{"columns":{"$ref":"#/$defs/76"},"kinds":{"items":{"enum":["credit-card","email","iban","ip-address","nhs-number","phone","us-ssn"],"type":"string"},"minItems":1,"type":"array"},"regions":{"items":{"pattern":"^[A-Z]{2}$","type":"string"},"maxItems":16,"minItems":1,"type":"array"},"max_share":{"$ref":"#/$defs/29"}},"required":["columns","kinds","max_share","regions"],"type":"object"},{"type":"null"}]},"floor":{"$ref":"#/$defs/77"}},"type":"object","required":["columns","duplicates","floor","label","min_records","personal"]},{"type":"null"}]},"79":{"const":"record","type":"string"},"80":{"additionalProperties":false,"maxProperties":256,"patternProperties":{"^[a-z0-9][a-z0-9-]{0,62}$":{"$ref":"#/$defs/66"}},"type":"object"},"81":{"maxItems":2,"minItems":2,"prefixItems":[{"type":"number"},{"type":"number"}],"type":"array"},"78":{"oneOf":[{"additionalProperties":false,"properties":{"dp":{"const":"none","type":"string"}},"required":["dp"],"type":"object"},{"additionalProperties":false,"properties":{"dp":{"const":"sgd","type":"string"},"target_epsilon":{"$ref":"#/$defs/66"},"delta":{"$ref":"#/$defs/58"},"noise_multiplier":{"$ref":"#/$defs/67"},"max_grad_norm":{"$ref":"#/$defs/15"},"accountant":{"enum":["prv","rdp","gdp"],"type":"string"},"sampling":{"const":"poisson","type":"string"},"unit":{"$ref":"#/$defs/79"},"budgets":{"$ref":"#/$defs/80"},"feature_ranges":{"anyOf":[{"additionalProperties":{"$ref":"#/$defs/81"},"maxProperties":4096,"propertyNames":{"$ref":"#/$defs/18"},"type":"object"},{"type":"null"}]}},"required":["accountant","budgets","delta","dp","feature_ranges","max_grad_norm","noise_multiplier","sampling","target_epsilon","unit"],"type":"object"},{"additionalProperties":false,"properties":{"dp":{"const":"counts","type":"string"},"target_epsilon":{"$ref":"#/$defs/66"},"unit":{"$ref":"#/$defs/79"},"budgets":{"$ref":"#/$defs/80"}},"required":["budgets","dp","target_epsilon","unit"],"type":"object"}]},"83":{"maximum":1000,"minimum":1,"type":"integer"},"84":{"format":"date-time","pattern":"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$","type":"string"},"82":{"anyOf":[{"additionalProperties":false,"properties":{"when":{"enum":["cron","new-data"],"type":"string"},"cron":{"anyOf":[{"format":"cron","maxLength":128,"type":"string"},{"type":"null"}]},"least_seconds":{"anyOf":[{"maximum":2678400,"minimum":3600,"type":"integer"},{"type":"null"}]},"continue":{"enum":["base","last"],"type":"string"},"runs":{"$ref":"#/$defs/83"},"starts_at":{"$ref":"#/$defs/84"},"ends_at":{"$ref":"#/$defs/84"}},"required":["continue","cron","ends_at","least_seconds","runs","starts_at","when"],"type":"object"},{"type":"null"}],"not":{"const":null}},"85":{"additionalProperties":false,"properties":{"metrics":{"items":{"$ref":"#/$defs/40"},"maxItems":64,"type":"array","uniqueItems":true},"round_to":{"maximum":8,"minimum":0,"type":"integer"},"every_n_steps":{"$ref":"#/$defs/22"},"logs":{"enum":["none","error-summary","structured"],"type":"string"},"model":{"additionalProperties":false,"properties":{"recipients":{"items":{"$ref":"#/$defs/0"},"maxItems":256,"type":"array","uniqueItems":true},"handed_on":{"anyOf":[{"additionalProperties":false,"properties":{"deployment":{"$ref":"#/$defs/7"},"threshold":{"anyOf":[{"maximum":16,"minimum":1,"type":"integer"},{"type":"null"}]}},"required":["deployment","threshold"],"type":"object"},{"type":"null"}],"not":{"const":null}}},"type":"object","required":["recipients"]}},"required":["every_n_steps","logs","metrics","model","round_to"],"type":"object"},"86":{"anyOf":[{"additionalProperties":false,"properties":{"system_metrics":{"type":"boolean"},"tensorboard":{"type":"boolean"},"alerts":{"items":{"additionalProperties":false,"properties":{"when":{"enum":["loss-not-finite","loss-diverges","no-step","memory-percent","lease-seconds-left"],"type":"string"},"threshold":{"$ref":"#/$defs/56"}},"required":["threshold","when"],"type":"object"},"maxItems":32,"type":"array"},"alert_to":{"anyOf":[{"maxLength":1024,"pattern":"^(file|https?://[A-Za-z0-9.-]{1,253}(:[0-9]{1,5})?(/[A-Za-z0-9._~/-]{0,512})?)$","type":"string"},{"type":"null"}]}},"type":"object","required":["alert_to","alerts","system_metrics","tensorboard"]},{"type":"null"}]},"87":{"additionalProperties":false,"properties":{"platforms":{"items":{"enum":["dstack","tdx","nitro","snp","simulator"],"type":"string"},"minItems":1,"type":"array","uniqueItems":true},"tier":{"enum":["processor","processor-and-paravisor","cloud-tpm","cloud"],"type":"string"},"image":{"anyOf":[{"maxLength":400,"pattern":"^[a-z0-9]+([._:/-]+[a-z0-9]+)*(:[A-Za-z0-9_.-]{1,128})?@sha256:[0-9a-f]{64}$","type":"string"},{"type":"null"}]},"key_provider":{"enum":["none","kms","local","tpm"],"type":"string"},"key_provider_id":{"anyOf":[{"pattern":"^([0-9a-f]{2}){1,1024}$","type":"string"},{"type":"null"}]},"app_id":{"anyOf":[{"pattern":"^[0-9a-f]{40}$","type":"string"},{"type":"null"}]},"gpu":{"anyOf":[{"const":"nvidia","type":"string"},{"type":"null"}],"not":{"const":null}},"launch_script":{"anyOf":[{"pattern":"^[0-9a-f]{64}$","type":"string"},{"type":"null"}],"not":{"const":null}}},"required":["app_id","image","key_provider","key_provider_id","platforms","tier"],"type":"object"},"88":{"anyOf":[{"items":{"$ref":"#/$defs/1"},"type":"array"},{"type":"null"}]},"89":{"maximum":65536,"minimum":2,"type":"integer"},"91":{"enum":["nearest","bilinear","bicubic","lanczos"],"type":"string"},"92":{"items":{"maximum":1000,"minimum":-1000,"type":"number"},"maxItems":3,"minItems":3,"type":"array"},"93":{"items":{"$ref":"#/$defs/66"},"maxItems":3,"minItems":3,"type":"array"},"94":{"maximum":1073741824,"minimum":1,"type":"integer"},"90":{"additionalProperties":false,"properties":{"resample":{"$ref":"#/$defs/91"},"mean":{"$ref":"#/$defs/92"},"std":{"$ref":"#/$defs/93"},"max_pixels":{"$ref":"#/$defs/94"},"size":{"$ref":"#/$defs/49"},"resize":{"anyOf":[{"$ref":"#/$defs/49"},{"type":"null"}]},"stretch":{"type":"boolean"}},"required":["max_pixels","mean","resample","resize","size","std","stretch"],"type":"object"},"95":{"additionalProperties":false,"properties":{"horizontal_flip":{"$ref":"#/$defs/29"},"vertical_flip":{"$ref":"#/$defs/29"},"crop":{"anyOf":[{"$ref":"#/$defs/31"},{"type":"null"}]},"crop_ratio":{"maximum":10,"minimum":1,"type":"number"},"brightness":{"$ref":"#/$defs/29"},"contrast":{"$ref":"#/$defs/29"},"saturation":{"$ref":"#/$defs/29"}},"type":"object","required":["brightness","contrast","crop","crop_ratio","horizontal_flip","saturation","vertical_flip"]},"96":{"anyOf":[{"additionalProperties":false,"properties":{"canaries":{"$ref":"#/$defs/70"},"repetitions":{"$ref":"#/$defs/83"},"membership":{"type":"boolean"}},"type":"object","required":["canaries","membership","repetitions"]},{"type":"null"}]},"97":{"anyOf":[{"additionalProperties":{"anyOf":[{"enum":["refuse","mean","median","own-category"],"type":"string"},{"additionalProperties":false,"properties":{"constant":{"anyOf":[{"maximum":1e+30,"minimum":-1e+30,"type":"number"},{"$ref":"#/$defs/1"}]}},"required":["constant"],"type":"object"}]},"maxProperties":256,"minProperties":1,"propertyNames":{"$ref":"#/$defs/18"},"type":"object"},{"type":"null"}],"not":{"const":null}},"98":{"additionalProperties":false,"properties":{"text":{"$ref":"#/$defs/17"}},"required":["text"],"type":"object"},"100":{"anyOf":[{"$ref":"#/$defs/17"},{"type":"null"}]},"101":{"anyOf":[{"$ref":"#/$defs/17"},{"type":"null"}],"not":{"const":null}},"99":{"additionalProperties":false,"properties":{"prompt":{"$ref":"#/$defs/100"},"chosen":{"$ref":"#/$defs/17"},"rejected":{"$ref":"#/$defs/17"},"tools":{"$ref":"#/$defs/101"}},"required":["chosen","prompt","rejected"],"type":"object"},"102":{"enum":["sigmoid","hinge","ipo","exo_pair","nca_pair","robust","bco_pair","sppo_hard","aot","aot_unpaired","apo_zero","apo_down","discopop","sft","sigmoid_norm"],"type":"string"},"103":{"maximum":1000,"minimum":0,"type":"number"},"104":{"anyOf":[{"$ref":"#/$defs/29"},{"type":"null"}]},"105":{"anyOf":[{"$ref":"#/$defs/42"},{"type":"null"}]},"106":{"anyOf":[{"$ref":"#/$defs/66"},{"type":"null"}]},"107":{"anyOf":[{"$ref":"#/$defs/1"},{"type":"null"}]},"108":{"anyOf":[{"$ref":"#/$defs/15"},{"type":"null"}]},"109":{"exclusiveMaximum":1,"exclusiveMinimum":0,"type":"number"},"110":{"maximum":1000000,"minimum":0,"type":"integer"},"111":{"maximum":67108864,"minimum":1,"type":"integer"}},"oneOf":[{"additionalProperties":false,"properties":{"version":{"const":1,"type":"integer"},"name":{"$ref":"#/$defs/0"},"description":{"$ref":"#/$defs/1"},"purpose":{"$ref":"#/$defs/2"},"legal_basis":{"$ref":"#/$defs/3"},"phase":{"const":"classify","type":"string"},"model":{"$ref":"#/$defs/4"},"datasets":{"$ref":"#/$defs/14"},"columns":{"oneOf":[{"$ref":"#/$defs/19"},{"additionalProperties":false,"properties":{"image":{"$ref":"#/$defs/17"},"label":{"$ref":"#/$defs/17"}},"required":["image","label"],"type":"object"},{"$ref":"#/$defs/20"}]},"trainer":{"$ref":"#/$defs/21"},"peft":{"$ref":"#/$defs/43"},"backend":{"$ref":"#/$defs/52"},"collaboration":{"$ref":"#/$defs/54"},"scripts":{"$ref":"#/$defs/71"},"packages":{"$ref":"#/$defs/72"},"validation":{"$ref":"#/$defs/73"},"privacy":{"$ref":"#/$defs/78"},"schedule":{"$ref":"#/$defs/82"},"release_policy":{"$ref":"#/$defs/85"},"monitoring":{"$ref":"#/$defs/86"},"hardware":{"$ref":"#/$defs/87"},"labels":{"$ref":"#/$defs/88"},"num_labels":{"$ref":"#/$defs/89"},"preparation":{"anyOf":[{"$ref":"#/$defs/90"},{"type":"null"}]},"augmentation":{"anyOf":[{"oneOf":[{"$ref":"#/$defs/95"},{"additionalProperties":false,"properties":{"token_dropout":{"$ref":"#/$defs/30"},"span_masking":{"$ref":"#/$defs/30"},"span_length":{"maximum":1000,"minimum":1,"type":"number"}},"type":"object","required":["span_length","span_masking","token_dropout"]}]},{"type":"null"}]},"calibration_share":{"maximum":0.5,"minimum":0,"type":"number"},"audit":{"$ref":"#/$defs/96"},"missing":{"$ref":"#/$defs/97"}},"required":["audit","augmentation","calibration_share","columns","datasets","description","hardware","labels","model","monitoring","name","num_labels","packages","peft","phase","preparation","privacy","release_policy","scripts","trainer","validation","version"],"type":"object"},{"additionalProperties":false,"properties":{"version":{"const":1,"type":"integer"},"name":{"$ref":"#/$defs/0"},"description":{"$ref":"#/$defs/1"},"purpose":{"$ref":"#/$defs/2"},"legal_basis":{"$ref":"#/$defs/3"},"phase":{"const":"cpt","type":"string"},"model":{"$ref":"#/$defs/4"},"datasets":{"$ref":"#/$defs/14"},"columns":{"oneOf":[{"$ref":"#/$defs/98"},{"additionalProperties":false,"properties":{"tokens":{"$ref":"#/$defs/17"}},"required":["tokens"],"type":"object"}]},"trainer":{"additionalProperties":false,"properties":{"max_steps":{"$ref":"#/$defs/22"},"per_device_train_batch_size":{"$ref":"#/$defs/23"},"per_device_eval_batch_size":{"$ref":"#/$defs/23"},"gradient_accumulation_steps":{"$ref":"#/$defs/23"},"learning_rate":{"$ref":"#/$defs/24"},"lr_scheduler_type":{"$ref":"#/$defs/25"},"lr_scheduler_kwargs":{"$ref":"#/$defs/26"},"warmup_steps":{"$ref":"#/$defs/27"},"optim":{"$ref":"#/$defs/28"},"weight_decay":{"$ref":"#/$defs/29"},"adam_beta1":{"$ref":"#/$defs/30"},"adam_beta2":{"$ref":"#/$defs/30"},"adam_epsilon":{"$ref":"#/$defs/31"},"max_grad_norm":{"$ref":"#/$defs/32"},"label_smoothing_factor":{"$ref":"#/$defs/30"},"neftune_noise_alpha":{"$ref":"#/$defs/33"},"bf16":{"type":"boolean"},"fp16":{"$ref":"#/$defs/35"},"activation_checkpointing":{"type":"boolean"},"seed":{"$ref":"#/$defs/13"},"data_seed":{"$ref":"#/$defs/36"},"logging_steps":{"$ref":"#/$defs/22"},"save_steps":{"$ref":"#/$defs/22"},"save_total_limit":{"$ref":"#/$defs/37"},"eval_steps":{"$ref":"#/$defs/38"},"metric_for_best_model":{"$ref":"#/$defs/39"},"greater_is_better":{"$ref":"#/$defs/41"},"load_best_model_at_end":{"type":"boolean"},"early_stopping_patience":{"$ref":"#/$defs/38"},"early_stopping_threshold":{"$ref":"#/$defs/32"},"block_size":{"maximum":4194304,"minimum":2,"type":"integer"},"append_eos":{"$ref":"#/$defs/41"},"token_digest":{"type":"boolean"}},"required":["activation_checkpointing","adam_beta1","adam_beta2","adam_epsilon","append_eos","bf16","block_size","data_seed","early_stopping_patience","early_stopping_threshold","eval_steps","gradient_accumulation_steps","greater_is_better","label_smoothing_factor","learning_rate","load_best_model_at_end","logging_steps","lr_scheduler_kwargs","lr_scheduler_type","max_grad_norm","max_steps","metric_for_best_model","neftune_noise_alpha","optim","per_device_eval_batch_size","per_device_train_batch_size","save_steps","save_total_limit","seed","token_digest","warmup_steps","weight_decay"],"type":"object"},"peft":{"$ref":"#/$defs/43"},"backend":{"$ref":"#/$defs/52"},"collaboration":{"$ref":"#/$defs/54"},"scripts":{"$ref":"#/$defs/71"},"packages":{"$ref":"#/$defs/72"},"validation":{"$ref":"#/$defs/73"},"privacy":{"$ref":"#/$defs/78"},"schedule":{"$ref":"#/$defs/82"},"release_policy":{"$ref":"#/$defs/85"},"monitoring":{"$ref":"#/$defs/86"},"hardware":{"$ref":"#/$defs/87"}},"required":["columns","datasets","description","hardware","model","monitoring","name","packages","peft","phase","privacy","release_policy","scripts","trainer","validation","version"],"type":"object"},{"additionalProperties":false,"properties":{"version":{"const":1,"type":"integer"},"name":{"$ref":"#/$defs/0"},"description":{"$ref":"#/$defs/1"},"purpose":{"$ref":"#/$defs/2"},"legal_basis":{"$ref":"#/$defs/3"},"phase":{"const":"dpo","type":"string"},"model":{"$ref":"#/$defs/4"},"datasets":{"$ref":"#/$defs/14"},"columns":{"oneOf":[{"$ref":"#/$defs/99"},{"additionalProperties":false,"properties":{"prompt":{"$ref":"#/$defs/17"},"completion":{"$ref":"#/$defs/17"},"label":{"$ref":"#/$defs/17"},"tools":{"$ref":"#/$defs/101"}},"required":["completion","label","prompt"],"type":"object"}]},"trainer":{"oneOf":[{"additionalProperties":false,"properties":{"max_steps":{"$ref":"#/$defs/22"},"per_device_train_batch_size":{"$ref":"#/$defs/23"},"per_device_eval_batch_size":{"$ref":"#/$defs/23"},"gradient_accumulation_steps":{"$ref":"#/$defs/23"},"learning_rate":{"$ref":"#/$defs/24"},"lr_scheduler_type":{"$ref":"#/$defs/25"},"lr_scheduler_kwargs":{"$ref":"#/$defs/26"},"warmup_steps":{"$ref":"#/$defs/27"},"optim":{"$ref":"#/$defs/28"},"weight_decay":{"$ref":"#/$defs/29"},"adam_beta1":{"$ref":"#/$defs/30"},"adam_beta2":{"$ref":"#/$defs/30"},"adam_epsilon":{"$ref":"#/$defs/31"},"max_grad_norm":{"$ref":"#/$defs/32"},"label_smoothing_factor":{"$ref":"#/$defs/30"},"neftune_noise_alpha":{"$ref":"#/$defs/33"},"bf16":{"type":"boolean"},"fp16":{"$ref":"#/$defs/35"},"activation_checkpointing":{"type":"boolean"},"seed":{"$ref":"#/$defs/13"},"data_seed":{"$ref":"#/$defs/36"},"logging_steps":{"$ref":"#/$defs/22"},"save_steps":{"$ref":"#/$defs/22"},"save_total_limit":{"$ref":"#/$defs/37"},"eval_steps":{"$ref":"#/$defs/38"},"metric_for_best_model":{"$ref":"#/$defs/39"},"greater_is_better":{"$ref":"#/$defs/41"},"load_best_model_at_end":{"type":"boolean"},"early_stopping_patience":{"$ref":"#/$defs/38"},"early_stopping_threshold":{"$ref":"#/$defs/32"},"beta":{"$ref":"#/$defs/66"},"disable_dropout":{"type":"boolean"},"loss_type":{"anyOf":[{"$ref":"#/$defs/102"},{"items":{"$ref":"#/$defs/102"},"maxItems":8,"minItems":1,"type":"array"}]},"loss_weights":{"anyOf":[{"items":{"$ref":"#/$defs/103"},"type":"array"},{"type":"null"}]},"label_smoothing":{"$ref":"#/$defs/64"},"f_divergence_type":{"enum":["reverse_kl","forward_kl","js_divergence","alpha_divergence"],"type":"string"},"f_alpha_divergence_coef":{"$ref":"#/$defs/34"},"ld_alpha":{"$ref":"#/$defs/104"},"discopop_tau":{"$ref":"#/$defs/34"},"use_weighting":{"type":"boolean"},"max_length":{"$ref":"#/$defs/105"},"pad_to_multiple_of":{"$ref":"#/$defs/50"}},"required":["activation_checkpointing","adam_beta1","adam_beta2","adam_epsilon","beta","bf16","data_seed","disable_dropout","discopop_tau","early_stopping_patience","early_stopping_threshold","eval_steps","f_alpha_divergence_coef","f_divergence_type","gradient_accumulation_steps","greater_is_better","label_smoothing","label_smoothing_factor","ld_alpha","learning_rate","load_best_model_at_end","logging_steps","loss_type","loss_weights","lr_scheduler_kwargs","lr_scheduler_type","max_grad_norm","max_length","max_steps","metric_for_best_model","neftune_noise_alpha","optim","pad_to_multiple_of","per_device_eval_batch_size","per_device_train_batch_size","save_steps","save_total_limit","seed","use_weighting","warmup_steps","weight_decay"],"type":"object"},{"additionalProperties":false,"properties":{"max_steps":{"$ref":"#/$defs/22"},"per_device_train_batch_size":{"$ref":"#/$defs/23"},"per_device_eval_batch_size":{"$ref":"#/$defs/23"},"gradient_accumulation_steps":{"$ref":"#/$defs/23"},"learning_rate":{"$ref":"#/$defs/24"},"lr_scheduler_type":{"$ref":"#/$defs/25"},"lr_scheduler_kwargs":{"$ref":"#/$defs/26"},"warmup_steps":{"$ref":"#/$defs/27"},"optim":{"$ref":"#/$defs/28"},"weight_decay":{"$ref":"#/$defs/29"},"adam_beta1":{"$ref":"#/$defs/30"},"adam_beta2":{"$ref":"#/$defs/30"},"adam_epsilon":{"$ref":"#/$defs/31"},"max_grad_norm":{"$ref":"#/$defs/32"},"label_smoothing_factor":{"$ref":"#/$defs/30"},"neftune_noise_alpha":{"$ref":"#/$defs/33"},"bf16":{"type":"boolean"},"fp16":{"$ref":"#/$defs/35"},"activation_checkpointing":{"type":"boolean"},"seed":{"$ref":"#/$defs/13"},"data_seed":{"$ref":"#/$defs/36"},"logging_steps":{"$ref":"#/$defs/22"},"save_steps":{"$ref":"#/$defs/22"},"save_total_limit":{"$ref":"#/$defs/37"},"eval_steps":{"$ref":"#/$defs/38"},"metric_for_best_model":{"$ref":"#/$defs/39"},"greater_is_better":{"$ref":"#/$defs/41"},"load_best_model_at_end":{"type":"boolean"},"early_stopping_patience":{"$ref":"#/$defs/38"},"early_stopping_threshold":{"$ref":"#/$defs/32"},"beta":{"$ref":"#/$defs/66"},"disable_dropout":{"type":"boolean"},"loss_type":{"enum":["kto","apo_zero_unpaired"],"type":"string"},"desirable_weight":{"$ref":"#/$defs/66"},"undesirable_weight":{"$ref":"#/$defs/66"},"max_length":{"$ref":"#/$defs/105"},"pad_to_multiple_of":{"$ref":"#/$defs/50"}},"required":["activation_checkpointing","adam_beta1","adam_beta2","adam_epsilon","beta","bf16","data_seed","desirable_weight","disable_dropout","early_stopping_patience","early_stopping_threshold","eval_steps","gradient_accumulation_steps","greater_is_better","label_smoothing_factor","learning_rate","load_best_model_at_end","logging_steps","loss_type","lr_scheduler_kwargs","lr_scheduler_type","max_grad_norm","max_length","max_steps","metric_for_best_model","neftune_noise_alpha","optim","pad_to_multiple_of","per_device_eval_batch_size","per_device_train_batch_size","save_steps","save_total_limit","seed","undesirable_weight","warmup_steps","weight_decay"],"type":"object"},{"additionalProperties":false,"properties":{"max_steps":{"$ref":"#/$defs/22"},"per_device_train_batch_size":{"$ref":"#/$defs/23"},"per_device_eval_batch_size":{"$ref":"#/$defs/23"},"gradient_accumulation_steps":{"$ref":"#/$defs/23"},"learning_rate":{"$ref":"#/$defs/24"},"lr_scheduler_type":{"$ref":"#/$defs/25"},"lr_scheduler_kwargs":{"$ref":"#/$defs/26"},"warmup_steps":{"$ref":"#/$defs/27"},"optim":{"$ref":"#/$defs/28"},"weight_decay":{"$ref":"#/$defs/29"},"adam_beta1":{"$ref":"#/$defs/30"},"adam_beta2":{"$ref":"#/$defs/30"},"adam_epsilon":{"$ref":"#/$defs/31"},"max_grad_norm":{"$ref":"#/$defs/32"},"label_smoothing_factor":{"$ref":"#/$defs/30"},"neftune_noise_alpha":{"$ref":"#/$defs/33"},"bf16":{"type":"boolean"},"fp16":{"$ref":"#/$defs/35"},"activation_checkpointing":{"type":"boolean"},"seed":{"$ref":"#/$defs/13"},"data_seed":{"$ref":"#/$defs/36"},"logging_steps":{"$ref":"#/$defs/22"},"save_steps":{"$ref":"#/$defs/22"},"save_total_limit":{"$ref":"#/$defs/37"},"eval_steps":{"$ref":"#/$defs/38"},"metric_for_best_model":{"$ref":"#/$defs/39"},"greater_is_better":{"$ref":"#/$defs/41"},"load_best_model_at_end":{"type":"boolean"},"early_stopping_patience":{"$ref":"#/$defs/38"},"early_stopping_threshold":{"$ref":"#/$defs/32"},"beta":{"$ref":"#/$defs/66"},"disable_dropout":{"type":"boolean"},"loss_type":{"const":"orpo","type":"string"},"max_length":{"$ref":"#/$defs/42"}},"required":["activation_checkpointing","adam_beta1","adam_beta2","adam_epsilon","beta","bf16","data_seed","disable_dropout","early_stopping_patience","early_stopping_threshold","eval_steps","gradient_accumulation_steps","greater_is_better","label_smoothing_factor","learning_rate","load_best_model_at_end","logging_steps","loss_type","lr_scheduler_kwargs","lr_scheduler_type","max_grad_norm","max_length","max_steps","metric_for_best_model","neftune_noise_alpha","optim","per_device_eval_batch_size","per_device_train_batch_size","save_steps","save_total_limit","seed","warmup_steps","weight_decay"],"type":"object"}]},"peft":{"$ref":"#/$defs/43"},"backend":{"$ref":"#/$defs/52"},"collaboration":{"$ref":"#/$defs/54"},"scripts":{"$ref":"#/$defs/71"},"packages":{"$ref":"#/$defs/72"},"validation":{"$ref":"#/$defs/73"},"privacy":{"$ref":"#/$defs/78"},"schedule":{"$ref":"#/$defs/82"},"release_policy":{"$ref":"#/$defs/85"},"monitoring":{"$ref":"#/$defs/86"},"hardware":{"$ref":"#/$defs/87"}},"required":["columns","datasets","description","hardware","model","monitoring","name","packages","peft","phase","privacy","release_policy","scripts","trainer","validation","version"],"type":"object"},{"additionalProperties":false,"properties":{"version":{"const":1,"type":"integer"},"name":{"$ref":"#/$defs/0"},"description":{"$ref":"#/$defs/1"},"purpose":{"$ref":"#/$defs/2"},"legal_basis":{"$ref":"#/$defs/3"},"phase":{"const":"embed","type":"string"},"model":{"$ref":"#/$defs/4"},"datasets":{"$ref":"#/$defs/14"},"columns":{"additionalProperties":false,"properties":{"anchor":{"$ref":"#/$defs/17"},"positive":{"$ref":"#/$defs/17"},"negative":{"$ref":"#/$defs/100"}},"required":["anchor","negative","positive"],"type":"object"},"trainer":{"additionalProperties":false,"properties":{"max_steps":{"$ref":"#/$defs/22"},"per_device_train_batch_size":{"$ref":"#/$defs/23"},"per_device_eval_batch_size":{"$ref":"#/$defs/23"},"gradient_accumulation_steps":{"$ref":"#/$defs/23"},"learning_rate":{"$ref":"#/$defs/24"},"lr_scheduler_type":{"$ref":"#/$defs/25"},"lr_scheduler_kwargs":{"$ref":"#/$defs/26"},"warmup_steps":{"$ref":"#/$defs/27"},"optim":{"$ref":"#/$defs/28"},"weight_decay":{"$ref":"#/$defs/29"},"adam_beta1":{"$ref":"#/$defs/30"},"adam_beta2":{"$ref":"#/$defs/30"},"adam_epsilon":{"$ref":"#/$defs/31"},"max_grad_norm":{"$ref":"#/$defs/32"},"label_smoothing_factor":{"$ref":"#/$defs/30"},"neftune_noise_alpha":{"$ref":"#/$defs/33"},"bf16":{"type":"boolean"},"fp16":{"$ref":"#/$defs/35"},"activation_checkpointing":{"type":"boolean"},"seed":{"$ref":"#/$defs/13"},"data_seed":{"$ref":"#/$defs/36"},"logging_steps":{"$ref":"#/$defs/22"},"save_steps":{"$ref":"#/$defs/22"},"save_total_limit":{"$ref":"#/$defs/37"},"eval_steps":{"$ref":"#/$defs/38"},"metric_for_best_model":{"$ref":"#/$defs/39"},"greater_is_better":{"$ref":"#/$defs/41"},"load_best_model_at_end":{"type":"boolean"},"early_stopping_patience":{"$ref":"#/$defs/38"},"early_stopping_threshold":{"$ref":"#/$defs/32"},"max_length":{"$ref":"#/$defs/42"},"scale":{"$ref":"#/$defs/66"},"mini_batch_size":{"$ref":"#/$defs/50"},"matryoshka_dims":{"anyOf":[{"items":{"$ref":"#/$defs/23"},"maxItems":16,"minItems":1,"type":"array"},{"type":"null"}]}},"required":["activation_checkpointing","adam_beta1","adam_beta2","adam_epsilon","bf16","data_seed","early_stopping_patience","early_stopping_threshold","eval_steps","gradient_accumulation_steps","greater_is_better","label_smoothing_factor","learning_rate","load_best_model_at_end","logging_steps","lr_scheduler_kwargs","lr_scheduler_type","matryoshka_dims","max_grad_norm","max_length","max_steps","metric_for_best_model","mini_batch_size","neftune_noise_alpha","optim","per_device_eval_batch_size","per_device_train_batch_size","save_steps","save_total_limit","scale","seed","warmup_steps","weight_decay"],"type":"object"},"peft":{"$ref":"#/$defs/43"},"backend":{"$ref":"#/$defs/52"},"collaboration":{"$ref":"#/$defs/54"},"scripts":{"$ref":"#/$defs/71"},"packages":{"$ref":"#/$defs/72"},"validation":{"$ref":"#/$defs/73"},"privacy":{"$ref":"#/$defs/78"},"schedule":{"$ref":"#/$defs/82"},"release_policy":{"$ref":"#/$defs/85"},"monitoring":{"$ref":"#/$defs/86"},"hardware":{"$ref":"#/$defs/87"},"pooling":{"anyOf":[{"enum":["mean","cls","max","lasttoken"],"type":"string"},{"type":"null"}]},"normalize":{"$ref":"#/$defs/41"}},"required":["columns","datasets","description","hardware","model","monitoring","name","normalize","packages","peft","phase","pooling","privacy","release_policy","scripts","trainer","validation","version"],"type":"object"},{"additionalProperties":false,"properties":{"version":{"const":1,"type":"integer"},"name":{"$ref":"#/$defs/0"},"description":{"$ref":"#/$defs/1"},"purpose":{"$ref":"#/$defs/2"},"legal_basis":{"$ref":"#/$defs/3"},"phase":{"const":"evaluate","type":"string"},"model":{"$ref":"#/$defs/4"},"datasets":{"$ref":"#/$defs/14"},"columns":{"oneOf":[{"$ref":"#/$defs/19"},{"$ref":"#/$defs/20"}]},"trainer":{"additionalProperties":false,"properties":{"max_steps":{"const":0,"type":"integer"},"per_device_train_batch_size":{"$ref":"#/$defs/23"},"per_device_eval_batch_size":{"$ref":"#/$defs/23"},"gradient_accumulation_steps":{"$ref":"#/$defs/23"},"learning_rate":{"$ref":"#/$defs/24"},"lr_scheduler_type":{"$ref":"#/$defs/25"},"lr_scheduler_kwargs":{"$ref":"#/$defs/26"},"warmup_steps":{"$ref":"#/$defs/27"},"optim":{"$ref":"#/$defs/28"},"weight_decay":{"$ref":"#/$defs/29"},"adam_beta1":{"$ref":"#/$defs/30"},"adam_beta2":{"$ref":"#/$defs/30"},"adam_epsilon":{"$ref":"#/$defs/31"},"max_grad_norm":{"$ref":"#/$defs/32"},"label_smoothing_factor":{"$ref":"#/$defs/30"},"neftune_noise_alpha":{"$ref":"#/$defs/33"},"bf16":{"type":"boolean"},"fp16":{"$ref":"#/$defs/35"},"activation_checkpointing":{"type":"boolean"},"seed":{"$ref":"#/$defs/13"},"data_seed":{"$ref":"#/$defs/36"},"logging_steps":{"$ref":"#/$defs/22"},"save_steps":{"$ref":"#/$defs/22"},"save_total_limit":{"$ref":"#/$defs/37"},"eval_steps":{"$ref":"#/$defs/38"},"metric_for_best_model":{"$ref":"#/$defs/39"},"greater_is_better":{"$ref":"#/$defs/41"},"load_best_model_at_end":{"type":"boolean"},"early_stopping_patience":{"$ref":"#/$defs/38"},"early_stopping_threshold":{"$ref":"#/$defs/32"},"max_length":{"$ref":"#/$defs/42"}},"type":"object","required":["activation_checkpointing","adam_beta1","adam_beta2","adam_epsilon","bf16","data_seed","early_stopping_patience","early_stopping_threshold","eval_steps","gradient_accumulation_steps","greater_is_better","label_smoothing_factor","learning_rate","load_best_model_at_end","logging_steps","lr_scheduler_kwargs","lr_scheduler_type","max_grad_norm","max_length","max_steps","metric_for_best_model","neftune_noise_alpha","optim","per_device_eval_batch_size","per_device_train_batch_size","save_steps","save_total_limit","seed","warmup_steps","weight_decay"]},"peft":{"$ref":"#/$defs/43"},"backend":{"$ref":"#/$defs/52"},"collaboration":{"$ref":"#/$defs/54"},"scripts":{"$ref":"#/$defs/71"},"packages":{"$ref":"#/$defs/72"},"validation":{"$ref":"#/$defs/73"},"privacy":{"$ref":"#/$defs/78"},"schedule":{"$ref":"#/$defs/82"},"release_policy":{"$ref":"#/$defs/85"},"monitoring":{"$ref":"#/$defs/86"},"hardware":{"$ref":"#/$defs/87"},"labels":{"$ref":"#/$defs/88"},"num_labels":{"$ref":"#/$defs/60"},"min_records":{"$ref":"#/$defs/77"},"missing":{"$ref":"#/$defs/97"}},"required":["columns","datasets","description","hardware","labels","min_records","model","monitoring","name","num_labels","packages","peft","phase","privacy","release_policy","scripts","trainer","validation","version"],"type":"object"},{"additionalProperties":false,"properties":{"version":{"const":1,"type":"integer"},"name":{"$ref":"#/$defs/0"},"description":{"$ref":"#/$defs/1"},"purpose":{"$ref":"#/$defs/2"},"legal_basis":{"$ref":"#/$defs/3"},"phase":{"const":"reward","type":"string"},"model":{"$ref":"#/$defs/4"},"datasets":{"$ref":"#/$defs/14"},"columns":{"$ref":"#/$defs/99"},"trainer":{"additionalProperties":false,"properties":{"max_steps":{"$ref":"#/$defs/22"},"per_device_train_batch_size":{"$ref":"#/$defs/23"},"per_device_eval_batch_size":{"$ref":"#/$defs/23"},"gradient_accumulation_steps":{"$ref":"#/$defs/23"},"learning_rate":{"$ref":"#/$defs/24"},"lr_scheduler_type":{"$ref":"#/$defs/25"},"lr_scheduler_kwargs":{"$ref":"#/$defs/26"},"warmup_steps":{"$ref":"#/$defs/27"},"optim":{"$ref":"#/$defs/28"},"weight_decay":{"$ref":"#/$defs/29"},"adam_beta1":{"$ref":"#/$defs/30"},"adam_beta2":{"$ref":"#/$defs/30"},"adam_epsilon":{"$ref":"#/$defs/31"},"max_grad_norm":{"$ref":"#/$defs/32"},"label_smoothing_factor":{"$ref":"#/$defs/30"},"neftune_noise_alpha":{"$ref":"#/$defs/33"},"bf16":{"type":"boolean"},"fp16":{"$ref":"#/$defs/35"},"activation_checkpointing":{"type":"boolean"},"seed":{"$ref":"#/$defs/13"},"data_seed":{"$ref":"#/$defs/36"},"logging_steps":{"$ref":"#/$defs/22"},"save_steps":{"$ref":"#/$defs/22"},"save_total_limit":{"$ref":"#/$defs/37"},"eval_steps":{"$ref":"#/$defs/38"},"metric_for_best_model":{"$ref":"#/$defs/39"},"greater_is_better":{"$ref":"#/$defs/41"},"load_best_model_at_end":{"type":"boolean"},"early_stopping_patience":{"$ref":"#/$defs/38"},"early_stopping_threshold":{"$ref":"#/$defs/32"},"max_length":{"$ref":"#/$defs/105"},"center_rewards_coefficient":{"$ref":"#/$defs/106"},"disable_dropout":{"type":"boolean"},"eos_token":{"$ref":"#/$defs/107"},"pad_to_multiple_of":{"$ref":"#/$defs/50"}},"required":["activation_checkpointing","adam_beta1","adam_beta2","adam_epsilon","bf16","center_rewards_coefficient","data_seed","disable_dropout","early_stopping_patience","early_stopping_threshold","eos_token","eval_steps","gradient_accumulation_steps","greater_is_better","label_smoothing_factor","learning_rate","load_best_model_at_end","logging_steps","lr_scheduler_kwargs","lr_scheduler_type","max_grad_norm","max_length","max_steps","metric_for_best_model","neftune_noise_alpha","optim","pad_to_multiple_of","per_device_eval_batch_size","per_device_train_batch_size","save_steps","save_total_limit","seed","warmup_steps","weight_decay"],"type":"object"},"peft":{"$ref":"#/$defs/43"},"backend":{"$ref":"#/$defs/52"},"collaboration":{"$ref":"#/$defs/54"},"scripts":{"$ref":"#/$defs/71"},"packages":{"$ref":"#/$defs/72"},"validation":{"$ref":"#/$defs/73"},"privacy":{"$ref":"#/$defs/78"},"schedule":{"$ref":"#/$defs/82"},"release_policy":{"$ref":"#/$defs/85"},"monitoring":{"$ref":"#/$defs/86"},"hardware":{"$ref":"#/$defs/87"}},"required":["columns","datasets","description","hardware","model","monitoring","name","packages","peft","phase","privacy","release_policy","scripts","trainer","validation","version"],"type":"object"},{"additionalProperties":false,"properties":{"version":{"const":1,"type":"integer"},"name":{"$ref":"#/$defs/0"},"description":{"$ref":"#/$defs/1"},"purpose":{"$ref":"#/$defs/2"},"legal_basis":{"$ref":"#/$defs/3"},"phase":{"const":"rlhf","type":"string"},"model":{"$ref":"#/$defs/4"},"datasets":{"$ref":"#/$defs/14"},"columns":{"additionalProperties":false,"properties":{"prompt":{"$ref":"#/$defs/17"},"answer":{"$ref":"#/$defs/100"}},"required":["answer","prompt"],"type":"object"},"trainer":{"oneOf":[{"additionalProperties":false,"properties":{"max_steps":{"$ref":"#/$defs/22"},"per_device_train_batch_size":{"$ref":"#/$defs/23"},"per_device_eval_batch_size":{"$ref":"#/$defs/23"},"gradient_accumulation_steps":{"$ref":"#/$defs/23"},"learning_rate":{"$ref":"#/$defs/24"},"lr_scheduler_type":{"$ref":"#/$defs/25"},"lr_scheduler_kwargs":{"$ref":"#/$defs/26"},"warmup_steps":{"$ref":"#/$defs/27"},"optim":{"$ref":"#/$defs/28"},"weight_decay":{"$ref":"#/$defs/29"},"adam_beta1":{"$ref":"#/$defs/30"},"adam_beta2":{"$ref":"#/$defs/30"},"adam_epsilon":{"$ref":"#/$defs/31"},"max_grad_norm":{"$ref":"#/$defs/32"},"label_smoothing_factor":{"$ref":"#/$defs/30"},"neftune_noise_alpha":{"$ref":"#/$defs/33"},"bf16":{"type":"boolean"},"fp16":{"$ref":"#/$defs/35"},"activation_checkpointing":{"type":"boolean"},"seed":{"$ref":"#/$defs/13"},"data_seed":{"$ref":"#/$defs/36"},"logging_steps":{"$ref":"#/$defs/22"},"save_steps":{"$ref":"#/$defs/22"},"save_total_limit":{"$ref":"#/$defs/37"},"eval_steps":{"$ref":"#/$defs/38"},"metric_for_best_model":{"$ref":"#/$defs/39"},"greater_is_better":{"$ref":"#/$defs/41"},"load_best_model_at_end":{"type":"boolean"},"early_stopping_patience":{"$ref":"#/$defs/38"},"early_stopping_threshold":{"$ref":"#/$defs/32"},"max_completion_length":{"$ref":"#/$defs/42"},"temperature":{"$ref":"#/$defs/34"},"disable_dropout":{"type":"boolean"},"algorithm":{"const":"ppo","type":"string"},"num_ppo_epochs":{"$ref":"#/$defs/83"},"num_mini_batches":{"$ref":"#/$defs/23"},"init_kl_coef":{"$ref":"#/$defs/103"},"kl_target":{"$ref":"#/$defs/108"},"kl_horizon":{"maximum":1000000000,"minimum":1,"type":"integer"},"target_kl":{"$ref":"#/$defs/106"},"cliprange":{"$ref":"#/$defs/109"},"cliprange_value":{"$ref":"#/$defs/66"},"vf_coef":{"$ref":"#/$defs/103"},"gamma":{"$ref":"#/$defs/31"},"lam":{"$ref":"#/$defs/29"},"missing_eos_penalty":{"$ref":"#/$defs/108"}},"required":["activation_checkpointing","adam_beta1","adam_beta2","adam_epsilon","algorithm","bf16","cliprange","cliprange_value","data_seed","disable_dropout","early_stopping_patience","early_stopping_threshold","eval_steps","gamma","gradient_accumulation_steps","greater_is_better","init_kl_coef","kl_horizon","kl_target","label_smoothing_factor","lam","learning_rate","load_best_model_at_end","logging_steps","lr_scheduler_kwargs","lr_scheduler_type","max_completion_length","max_grad_norm","max_steps","metric_for_best_model","missing_eos_penalty","neftune_noise_alpha","num_mini_batches","num_ppo_epochs","optim","per_device_eval_batch_size","per_device_train_batch_size","save_steps","save_total_limit","seed","target_kl","temperature","vf_coef","warmup_steps","weight_decay"],"type":"object"},{"additionalProperties":false,"properties":{"max_steps":{"$ref":"#/$defs/22"},"per_device_train_batch_size":{"$ref":"#/$defs/23"},"per_device_eval_batch_size":{"$ref":"#/$defs/23"},"gradient_accumulation_steps":{"$ref":"#/$defs/23"},"learning_rate":{"$ref":"#/$defs/24"},"lr_scheduler_type":{"$ref":"#/$defs/25"},"lr_scheduler_kwargs":{"$ref":"#/$defs/26"},"warmup_steps":{"$ref":"#/$defs/27"},"optim":{"$ref":"#/$defs/28"},"weight_decay":{"$ref":"#/$defs/29"},"adam_beta1":{"$ref":"#/$defs/30"},"adam_beta2":{"$ref":"#/$defs/30"},"adam_epsilon":{"$ref":"#/$defs/31"},"max_grad_norm":{"$ref":"#/$defs/32"},"label_smoothing_factor":{"$ref":"#/$defs/30"},"neftune_noise_alpha":{"$ref":"#/$defs/33"},"bf16":{"type":"boolean"},"fp16":{"$ref":"#/$defs/35"},"activation_checkpointing":{"type":"boolean"},"seed":{"$ref":"#/$defs/13"},"data_seed":{"$ref":"#/$defs/36"},"logging_steps":{"$ref":"#/$defs/22"},"save_steps":{"$ref":"#/$defs/22"},"save_total_limit":{"$ref":"#/$defs/37"},"eval_steps":{"$ref":"#/$defs/38"},"metric_for_best_model":{"$ref":"#/$defs/39"},"greater_is_better":{"$ref":"#/$defs/41"},"load_best_model_at_end":{"type":"boolean"},"early_stopping_patience":{"$ref":"#/$defs/38"},"early_stopping_threshold":{"$ref":"#/$defs/32"},"max_completion_length":{"$ref":"#/$defs/42"},"temperature":{"$ref":"#/$defs/34"},"disable_dropout":{"type":"boolean"},"num_generations":{"$ref":"#/$defs/89"},"num_iterations":{"$ref":"#/$defs/22"},"beta":{"$ref":"#/$defs/103"},"epsilon":{"$ref":"#/$defs/109"},"epsilon_high":{"$ref":"#/$defs/106"},"top_p":{"$ref":"#/$defs/31"},"top_k":{"$ref":"#/$defs/110"},"min_p":{"$ref":"#/$defs/104"},"repetition_penalty":{"$ref":"#/$defs/34"},"mask_truncated_completions":{"type":"boolean"},"algorithm":{"const":"rloo","type":"string"},"normalize_advantages":{"type":"boolean"},"reward_clip_range":{"anyOf":[{"$ref":"#/$defs/81"},{"type":"null"}]}},"required":["activation_checkpointing","adam_beta1","adam_beta2","adam_epsilon","algorithm","beta","bf16","data_seed","disable_dropout","early_stopping_patience","early_stopping_threshold","epsilon","epsilon_high","eval_steps","gradient_accumulation_steps","greater_is_better","label_smoothing_factor","learning_rate","load_best_model_at_end","logging_steps","lr_scheduler_kwargs","lr_scheduler_type","mask_truncated_completions","max_completion_length","max_grad_norm","max_steps","metric_for_best_model","min_p","neftune_noise_alpha","normalize_advantages","num_generations","num_iterations","optim","per_device_eval_batch_size","per_device_train_batch_size","repetition_penalty","reward_clip_range","save_steps","save_total_limit","seed","temperature","top_k","top_p","warmup_steps","weight_decay"],"type":"object"},{"additionalProperties":false,"properties":{"max_steps":{"$ref":"#/$defs/22"},"per_device_train_batch_size":{"$ref":"#/$defs/23"},"per_device_eval_batch_size":{"$ref":"#/$defs/23"},"gradient_accumulation_steps":{"$ref":"#/$defs/23"},"learning_rate":{"$ref":"#/$defs/24"},"lr_scheduler_type":{"$ref":"#/$defs/25"},"lr_scheduler_kwargs":{"$ref":"#/$defs/26"},"warmup_steps":{"$ref":"#/$defs/27"},"optim":{"$ref":"#/$defs/28"},"weight_decay":{"$ref":"#/$defs/29"},"adam_beta1":{"$ref":"#/$defs/30"},"adam_beta2":{"$ref":"#/$defs/30"},"adam_epsilon":{"$ref":"#/$defs/31"},"max_grad_norm":{"$ref":"#/$defs/32"},"label_smoothing_factor":{"$ref":"#/$defs/30"},"neftune_noise_alpha":{"$ref":"#/$defs/33"},"bf16":{"type":"boolean"},"fp16":{"$ref":"#/$defs/35"},"activation_checkpointing":{"type":"boolean"},"seed":{"$ref":"#/$defs/13"},"data_seed":{"$ref":"#/$defs/36"},"logging_steps":{"$ref":"#/$defs/22"},"save_steps":{"$ref":"#/$defs/22"},"save_total_limit":{"$ref":"#/$defs/37"},"eval_steps":{"$ref":"#/$defs/38"},"metric_for_best_model":{"$ref":"#/$defs/39"},"greater_is_better":{"$ref":"#/$defs/41"},"load_best_model_at_end":{"type":"boolean"},"early_stopping_patience":{"$ref":"#/$defs/38"},"early_stopping_threshold":{"$ref":"#/$defs/32"},"max_completion_length":{"$ref":"#/$defs/42"},"temperature":{"$ref":"#/$defs/34"},"disable_dropout":{"type":"boolean"},"num_generations":{"$ref":"#/$defs/89"},"num_iterations":{"$ref":"#/$defs/22"},"beta":{"$ref":"#/$defs/103"},"epsilon":{"$ref":"#/$defs/109"},"epsilon_high":{"$ref":"#/$defs/106"},"top_p":{"$ref":"#/$defs/31"},"top_k":{"$ref":"#/$defs/110"},"min_p":{"$ref":"#/$defs/104"},"repetition_penalty":{"$ref":"#/$defs/34"},"mask_truncated_completions":{"type":"boolean"},"algorithm":{"const":"grpo","type":"string"},"loss_type":{"enum":["grpo","bnpo","dr_grpo","dapo"],"type":"string"},"scale_rewards":{"enum":["group","batch","none"],"type":"string"},"importance_sampling_level":{"enum":["token","sequence"],"type":"string"},"delta":{"anyOf":[{"exclusiveMinimum":1,"maximum":1000,"type":"number"},{"type":"null"}]}},"required":["activation_checkpointing","adam_beta1","adam_beta2","adam_epsilon","algorithm","beta","bf16","data_seed","delta","disable_dropout","early_stopping_patience","early_stopping_threshold","epsilon","epsilon_high","eval_steps","gradient_accumulation_steps","greater_is_better","importance_sampling_level","label_smoothing_factor","learning_rate","load_best_model_at_end","logging_steps","loss_type","lr_scheduler_kwargs","lr_scheduler_type","mask_truncated_completions","max_completion_length","max_grad_norm","max_steps","metric_for_best_model","min_p","neftune_noise_alpha","num_generations","num_iterations","optim","per_device_eval_batch_size","per_device_train_batch_size","repetition_penalty","save_steps","save_total_limit","scale_rewards","seed","temperature","top_k","top_p","warmup_steps","weight_decay"],"type":"object"}]},"peft":{"$ref":"#/$defs/43"},"backend":{"$ref":"#/$defs/52"},"collaboration":{"$ref":"#/$defs/54"},"scripts":{"$ref":"#/$defs/71"},"packages":{"$ref":"#/$defs/72"},"validation":{"$ref":"#/$defs/73"},"privacy":{"$ref":"#/$defs/78"},"schedule":{"$ref":"#/$defs/82"},"release_policy":{"$ref":"#/$defs/85"},"monitoring":{"$ref":"#/$defs/86"},"hardware":{"$ref":"#/$defs/87"},"reward":{"oneOf":[{"additionalProperties":false,"properties":{"model":{"oneOf":[{"$ref":"#/$defs/5"},{"$ref":"#/$defs/12"}]},"max_length":{"$ref":"#/$defs/42"}},"required":["max_length","model"],"type":"object"},{"additionalProperties":false,"properties":{"rule":{"enum":["exact-match","contains"],"type":"string"}},"required":["rule"],"type":"object"}]}},"required":["columns","datasets","description","hardware","model","monitoring","name","packages","peft","phase","privacy","release_policy","reward","scripts","trainer","validation","version"],"type":"object"},{"additionalProperties":false,"properties":{"version":{"const":1,"type":"integer"},"name":{"$ref":"#/$defs/0"},"description":{"$ref":"#/$defs/1"},"purpose":{"$ref":"#/$defs/2"},"legal_basis":{"$ref":"#/$defs/3"},"phase":{"const":"sft","type":"string"},"model":{"$ref":"#/$defs/4"},"datasets":{"$ref":"#/$defs/14"},"columns":{"oneOf":[{"$ref":"#/$defs/98"},{"additionalProperties":false,"properties":{"prompt":{"$ref":"#/$defs/17"},"completion":{"$ref":"#/$defs/17"}},"required":["completion","prompt"],"type":"object"},{"additionalProperties":false,"properties":{"messages":{"$ref":"#/$defs/17"},"tools":{"$ref":"#/$defs/101"}},"required":["messages"],"type":"object"}]},"trainer":{"additionalProperties":false,"properties":{"max_steps":{"$ref":"#/$defs/22"},"per_device_train_batch_size":{"$ref":"#/$defs/23"},"per_device_eval_batch_size":{"$ref":"#/$defs/23"},"gradient_accumulation_steps":{"$ref":"#/$defs/23"},"learning_rate":{"$ref":"#/$defs/24"},"lr_scheduler_type":{"$ref":"#/$defs/25"},"lr_scheduler_kwargs":{"$ref":"#/$defs/26"},"warmup_steps":{"$ref":"#/$defs/27"},"optim":{"$ref":"#/$defs/28"},"weight_decay":{"$ref":"#/$defs/29"},"adam_beta1":{"$ref":"#/$defs/30"},"adam_beta2":{"$ref":"#/$defs/30"},"adam_epsilon":{"$ref":"#/$defs/31"},"max_grad_norm":{"$ref":"#/$defs/32"},"label_smoothing_factor":{"$ref":"#/$defs/30"},"neftune_noise_alpha":{"$ref":"#/$defs/33"},"bf16":{"type":"boolean"},"fp16":{"$ref":"#/$defs/35"},"activation_checkpointing":{"type":"boolean"},"seed":{"$ref":"#/$defs/13"},"data_seed":{"$ref":"#/$defs/36"},"logging_steps":{"$ref":"#/$defs/22"},"save_steps":{"$ref":"#/$defs/22"},"save_total_limit":{"$ref":"#/$defs/37"},"eval_steps":{"$ref":"#/$defs/38"},"metric_for_best_model":{"$ref":"#/$defs/39"},"greater_is_better":{"$ref":"#/$defs/41"},"load_best_model_at_end":{"type":"boolean"},"early_stopping_patience":{"$ref":"#/$defs/38"},"early_stopping_threshold":{"$ref":"#/$defs/32"},"max_length":{"$ref":"#/$defs/105"},"truncation_mode":{"enum":["keep_start","keep_end"],"type":"string"},"packing":{"type":"boolean"},"packing_strategy":{"enum":["bfd","bfd_split","wrapped"],"type":"string"},"padding_free":{"type":"boolean"},"pad_to_multiple_of":{"$ref":"#/$defs/50"},"completion_only_loss":{"$ref":"#/$defs/41"},"assistant_only_loss":{"type":"boolean"},"loss_type":{"enum":["nll","dft"],"type":"string"},"eos_token":{"$ref":"#/$defs/107"},"pad_token":{"$ref":"#/$defs/107"}},"required":["activation_checkpointing","adam_beta1","adam_beta2","adam_epsilon","assistant_only_loss","bf16","completion_only_loss","data_seed","early_stopping_patience","early_stopping_threshold","eos_token","eval_steps","gradient_accumulation_steps","greater_is_better","label_smoothing_factor","learning_rate","load_best_model_at_end","logging_steps","loss_type","lr_scheduler_kwargs","lr_scheduler_type","max_grad_norm","max_length","max_steps","metric_for_best_model","neftune_noise_alpha","optim","packing","packing_strategy","pad_to_multiple_of","pad_token","padding_free","per_device_eval_batch_size","per_device_train_batch_size","save_steps","save_total_limit","seed","truncation_mode","warmup_steps","weight_decay"],"type":"object"},"peft":{"$ref":"#/$defs/43"},"backend":{"$ref":"#/$defs/52"},"collaboration":{"$ref":"#/$defs/54"},"scripts":{"$ref":"#/$defs/71"},"packages":{"$ref":"#/$defs/72"},"validation":{"$ref":"#/$defs/73"},"privacy":{"$ref":"#/$defs/78"},"schedule":{"$ref":"#/$defs/82"},"release_policy":{"$ref":"#/$defs/85"},"monitoring":{"$ref":"#/$defs/86"},"hardware":{"$ref":"#/$defs/87"},"audit":{"$ref":"#/$defs/96"}},"required":["audit","columns","datasets","description","hardware","model","monitoring","name","packages","peft","phase","privacy","release_policy","scripts","trainer","validation","version"],"type":"object"},{"additionalProperties":false,"properties":{"version":{"const":1,"type":"integer"},"name":{"$ref":"#/$defs/0"},"description":{"$ref":"#/$defs/1"},"purpose":{"$ref":"#/$defs/2"},"legal_basis":{"$ref":"#/$defs/3"},"phase":{"const":"vlm","type":"string"},"model":{"$ref":"#/$defs/4"},"datasets":{"$ref":"#/$defs/14"},"columns":{"oneOf":[{"additionalProperties":false,"properties":{"image":{"$ref":"#/$defs/17"},"prompt":{"$ref":"#/$defs/17"},"completion":{"$ref":"#/$defs/17"}},"required":["completion","image","prompt"],"type":"object"},{"additionalProperties":false,"properties":{"image":{"$ref":"#/$defs/17"},"text":{"$ref":"#/$defs/17"}},"required":["image","text"],"type":"object"}]},"trainer":{"$ref":"#/$defs/21"},"peft":{"$ref":"#/$defs/43"},"backend":{"$ref":"#/$defs/52"},"collaboration":{"$ref":"#/$defs/54"},"scripts":{"$ref":"#/$defs/71"},"packages":{"$ref":"#/$defs/72"},"validation":{"$ref":"#/$defs/73"},"privacy":{"$ref":"#/$defs/78"},"schedule":{"$ref":"#/$defs/82"},"release_policy":{"$ref":"#/$defs/85"},"monitoring":{"$ref":"#/$defs/86"},"hardware":{"$ref":"#/$defs/87"},"preparation":{"anyOf":[{"oneOf":[{"$ref":"#/$defs/90"},{"additionalProperties":false,"properties":{"resample":{"$ref":"#/$defs/91"},"mean":{"$ref":"#/$defs/92"},"std":{"$ref":"#/$defs/93"},"max_pixels":{"$ref":"#/$defs/94"},"min_area":{"$ref":"#/$defs/111"},"max_area":{"$ref":"#/$defs/111"}},"required":["max_area","max_pixels","mean","min_area","resample","std"],"type":"object"},{"additionalProperties":false,"properties":{"resample":{"$ref":"#/$defs/91"},"mean":{"$ref":"#/$defs/92"},"std":{"$ref":"#/$defs/93"},"max_pixels":{"$ref":"#/$defs/94"},"size":{"$ref":"#/$defs/49"},"max_image_tiles":{"$ref":"#/$defs/51"}},"required":["max_image_tiles","max_pixels","mean","resample","size","std"],"type":"object"}]},{"type":"null"}]},"augmentation":{"anyOf":[{"$ref":"#/$defs/95"},{"type":"null"}]},"parts":{"items":{"enum":["vision","projector","language"],"type":"string"},"minItems":1,"type":"array","uniqueItems":true}},"required":["augmentation","columns","datasets","description","hardware","model","monitoring","name","packages","parts","peft","phase","preparation","privacy","release_policy","scripts","trainer","validation","version"],"type":"object"}]};
return { RECIPE_SCHEMA };
})();
const module_schema = (() => {
// JSON Schema 2020-12, of the keywords that the schema of a recipe has. An unknown keyword is refused
// before any value is looked at: a rule that is not understood must not pass for one that holds.

const kindOf = (value) => {
  if (value === null) return "null";
  return Array.isArray(value) ? "array" : typeof value;
};
const isObject = (value) => kindOf(value) === "object";
const lengthOf = (text) => [...text].length;

/** A rule for values of one kind; others pass. */
const of = (kind, holds) => (value) => kindOf(value) !== kind || holds(value);

function same(first, second) {
  const kind = kindOf(first);
  if (kind !== kindOf(second)) return false;
  if (kind === "array") return first.length === second.length && first.every((one, at) => same(one, second[at]));
  if (kind !== "object") return first === second;
  const names = Object.keys(first);
  return (
    names.length === Object.keys(second).length &&
    names.every((name) => Object.hasOwn(second, name) && same(first[name], second[name]))
  );
}

function areUnique(items) {
  if (items.every((one) => typeof one === "string")) return new Set(items).size === items.length;
  return items.every((one, at) => items.findIndex((other) => same(one, other)) === at);
}

function typed(type) {
  if (type === "integer") return (value) => Number.isInteger(value);
  if (["null", "array", "object", "string", "number", "boolean"].includes(type)) return (value) => kindOf(value) === type;
  throw new Error(`JSON Schema: unknown type ${type}`);
}

/** The names that neither `properties` nor `patternProperties` speak of. */
function others({ properties = {}, patternProperties = {} }) {
  const patterns = Object.keys(patternProperties).map((pattern) => new RegExp(pattern, "u"));
  return (name) => !Object.hasOwn(properties, name) && !patterns.some((pattern) => pattern.test(name));
}

// Keyword → (its value, tools to compile with) → rule. Cheap rules come before those that search.
const RULES = {
  type: typed,
  const: (wanted) => (value) => same(value, wanted),
  enum: (wanted) => (value) => wanted.some((one) => same(value, one)),
  minimum: (bound) => of("number", (value) => value >= bound),
  maximum: (bound) => of("number", (value) => value <= bound),
  exclusiveMinimum: (bound) => of("number", (value) => value > bound),
  exclusiveMaximum: (bound) => of("number", (value) => value < bound),
  minLength: (bound) => of("string", (value) => lengthOf(value) >= bound),
  maxLength: (bound) => of("string", (value) => lengthOf(value) <= bound),
  minItems: (bound) => of("array", (value) => value.length >= bound),
  maxItems: (bound) => of("array", (value) => value.length <= bound),
  minProperties: (bound) => of("object", (value) => Object.keys(value).length >= bound),
  maxProperties: (bound) => of("object", (value) => Object.keys(value).length <= bound),
  required: (names) => of("object", (value) => names.every((name) => Object.hasOwn(value, name))),
  pattern: (pattern) => {
    const compiled = new RegExp(pattern, "u");
    return of("string", (value) => compiled.test(value));
  },
  format: (name, { formats }) => {
    if (!Object.hasOwn(formats, name)) throw new Error(`JSON Schema: unknown format ${name}`);
    return of("string", formats[name]);
  },
  propertyNames: (schema, { compiled }) => {
    const holds = compiled(schema);
    return of("object", (value) => Object.keys(value).every(holds));
  },
  properties: (schemas, { compiled }) => {
    const rules = Object.entries(schemas).map(([name, schema]) => [name, compiled(schema)]);
    return of("object", (value) => rules.every(([name, holds]) => !Object.hasOwn(value, name) || holds(value[name])));
  },
  patternProperties: (schemas, { compiled }) => {
    const rules = Object.entries(schemas).map(([pattern, schema]) => [new RegExp(pattern, "u"), compiled(schema)]);
    return of("object", (value) =>
      rules.every(([pattern, holds]) => Object.keys(value).every((name) => !pattern.test(name) || holds(value[name]))),
    );
  },
  additionalProperties: (schema, { compiled, beside }) => {
    const [holds, isOther] = [compiled(schema), others(beside)];
    return of("object", (value) => Object.keys(value).every((name) => !isOther(name) || holds(value[name])));
  },
  prefixItems: (schemas, { compiled }) => {
    const rules = schemas.map(compiled);
    return of("array", (value) => value.slice(0, rules.length).every((item, at) => rules[at](item)));
  },
  items: (schema, { compiled, beside }) => {
    const [holds, from] = [compiled(schema), beside.prefixItems?.length ?? 0];
    return of("array", (value) => value.slice(from).every(holds));
  },
  uniqueItems: (unique) => of("array", (value) => !unique || areUnique(value)),
  not: (schema, { compiled }) => {
    const holds = compiled(schema);
    return (value) => !holds(value);
  },
  anyOf: (schemas, { compiled }) => {
    const rules = schemas.map(compiled);
    return (value) => rules.some((holds) => holds(value));
  },
  oneOf: (schemas, { compiled }) => {
    const rules = schemas.map(compiled);
    return (value) => rules.filter((holds) => holds(value)).length === 1;
  },
  $ref: (pointer, { definitions }) => {
    const name = pointer.replace(/^#\/\$defs\//, "");
    if (name === pointer || !Object.hasOwn(definitions, name)) throw new Error(`JSON Schema: nothing at ${pointer}`);
    return (value) => definitions[name](value);
  },
};

/**
 * The rule that a schema is, as a function from a value to whether it holds.
 *
 * `formats`: for each name of `format`, whether a string has it. Throws an Error at a keyword, type,
 * format or reference that is not known, anywhere in the schema.
 */
function validator({ $defs = {}, ...root }, formats = {}) {
  const definitions = Object.fromEntries(Object.keys($defs).map((name) => [name, null]));
  const compiled = (schema) => {
    if (typeof schema === "boolean") return () => schema;
    if (!isObject(schema)) throw new Error("JSON Schema: a schema is an object or a boolean");
    for (const keyword of Object.keys(schema)) {
      if (!Object.hasOwn(RULES, keyword)) throw new Error(`JSON Schema: unknown keyword ${keyword}`);
    }
    const tools = { compiled, definitions, formats, beside: schema };
    const rules = Object.keys(RULES)
      .filter((keyword) => Object.hasOwn(schema, keyword))
      .map((keyword) => RULES[keyword](schema[keyword], tools));
    return (value) => rules.every((holds) => holds(value));
  };
  for (const [name, schema] of Object.entries($defs)) definitions[name] = compiled(schema);
  return compiled(root);
}
return { validator };
})();
const module_recipe = (() => {
// Whether a recipe is one that a lock holds (spec/recipe.md §1, §2): its schema, and what is said of one
// field that no schema can say. Rules between fields are not checked here.

const { canonical } = module_json;
const { purposeText } = module_datause;
const { RECIPE_SCHEMA } = module_recipeschema;
const { validator } = module_schema;
const { anyObject, realTime, visible } = module_shape;

const CRON = [[0, 23], [1, 31], [1, 12], [0, 6]];
const ITEM = /^(?:\*|([0-9]{1,2})(?:-([0-9]{1,2}))?)(?:\/([0-9]{1,2}))?$/;

/** Five fields in their ranges, the minute one number, not days of the month and of the week (spec/schedule.md §1). */
function isCron(text) {
  const [minute, ...fields] = text.split(" ");
  if (fields.length !== 4 || !/^([0-9]|[1-5][0-9])$/.test(minute)) return false;
  if (fields[1] !== "*" && fields[3] !== "*") return false;
  return fields.every((field, at) =>
    field.split(",").every((item) => {
      const found = ITEM.exec(item);
      if (found === null) return false;
      const [first, last, step] = found.slice(1).map((part) => (part === undefined ? null : Number(part)));
      const bounds = [CRON[at][0], first, last, CRON[at][1]].filter((part) => part !== null);
      const ascends = bounds.every((bound, i) => i === 0 || bounds[i - 1] <= bound);
      return ascends && step !== 0 && !(step !== null && first !== null && last === null);
    }),
  );
}

const LEVELS = 6;
const FOREIGN = ["auto_map", "custom_pipelines", "custom_generate", "trust_remote_code"];

/** Settings that are visible, not nested deeply, and load no code from elsewhere (spec/recipe.md §2.1). */
function isPlain(value, level = 0) {
  if (level > LEVELS) return false;
  if (typeof value === "string") return visible(value);
  if (Array.isArray(value)) return value.every((item) => isPlain(item, level + 1));
  if (!anyObject(value)) return true;
  return Object.entries(value).every(([key, item]) => {
    const kernel = () => key.includes("implementation") && new TextDecoder().decode(canonical(item)).includes("/");
    const foreign = FOREIGN.includes(key) || key.startsWith("_");
    return visible(key) && !foreign && isPlain(item, level + 1) && !kernel();
  });
}

const keepsSchema = validator(RECIPE_SCHEMA, { visible, "date-time": realTime, cron: isCron });

/** Whether a value is a recipe as far as its schema and each field by itself say. */
function isRecipe(value) {
  if (!keepsSchema(value)) return false;
  const { purpose, model, backend, columns } = value;
  if (columns?.features?.includes(columns.label)) return false;
  const ranks = backend?.resume_ranks ?? [];
  if (ranks.some((number, at) => at > 0 && number <= ranks[at - 1])) return false;
  if (purpose !== undefined && !purposeText(purpose)) return false;
  if (model.config === undefined) return true;
  const { model_type: type } = model.config;
  return typeof type === "string" && type !== "" && isPlain(model.config);
}
return { isRecipe };
})();
const module_lock = (() => {
// Whether a value is a recipe's lock, and what checks read of it (spec/recipe.md §3). Whether the
// appraisal policy in it is one, and the rules between the recipe's fields, are not checked here.

const { digest, utf8 } = module_bytes;
const { canonical } = module_json;
const { isRecipe } = module_recipe;
const shape = module_shape;

const { either, hex40, hex64, line, list, literal, map, match, nullable, ownerName, record } = shape;
const none = literal(null);
const MOST_SCRIPT = 64 * 1024;

const version = match(/^[A-Za-z0-9.+!_-]{1,64}$/);
const PATH = /^(\.\.\/)?[A-Za-z0-9_][A-Za-z0-9._+@=-]*(\/[A-Za-z0-9_][A-Za-z0-9._+@=-]*)*$/;
const path = (value) => value.length <= 255 && PATH.test(value);
const script = (value) => typeof value === "string" && value.split("\n").every(shape.visible);
const MODEL = record({ kind: literal("folder", "config"), sha256: hex64 });
const TOKENIZER = either(
  record({ kind: literal("folder"), sha256: hex64 }),
  record({ kind: literal("bytes", "sealed", "none"), sha256: none }),
);

/** Kind of collaboration → sealtrain's distributions that its guests need beside the core. */
const TOGETHER = "sealtrain-together";
const ROOMS_OF = {
  travelling: [TOGETHER],
  federated: [TOGETHER],
  pads: [TOGETHER],
  cut: [TOGETHER],
  nodes: ["sealtrain-nodes", TOGETHER],
};

const LOCK = record(
  {
    version: literal(2),
    consortium_id: hex64,
    brokers: (value) =>
      list(hex64, { min: 1, max: 16 })(value) && value.every((one, i) => i === 0 || value[i - 1] < one),
    recipe: isRecipe,
    code: list(record({ name: literal("sealtrain", ...ROOMS_OF.nodes), version, sha256: hex64 }), { min: 1, max: 8 }),
    environment: record({
      python: match(/^3\.[0-9]{1,2}\.[0-9]{1,3}((a|b|rc)[0-9]{1,2})?\+?$/),
      packages: map(match(/^[a-z0-9]([a-z0-9-]{0,98}[a-z0-9])?$/), record({ version, record_sha256: hex64 })),
    }),
    scripts: map(path, script),
    model: either(MODEL, record({ kind: literal("sealed"), sha256: none })),
    tokenizer: TOKENIZER,
    models: map(ownerName, record({ model: MODEL, tokenizer: TOKENIZER })),
  },
  {
    hub: map(ownerName, record({ commit: hex40, licence: nullable(line(128, 1)) })),
    handed_on: record({ app_id: hex40, compose_hash: hex64, recipe_hash: hex64, owner: ownerName, dataset: ownerName }),
    policy: shape.anyObject,
  },
);

const sameNames = (first, second) => Object.keys(first).sort().join("\n") === Object.keys(second).sort().join("\n");
const tokenizerKind = ({ tokenizer }) => (tokenizer === null ? "none" : (tokenizer.kind ?? "folder"));
const modelKind = ({ sealed, config }) => (sealed !== undefined ? "sealed" : config !== undefined ? "config" : "folder");

/** The models that a recipe names, by the names that a lock gives them. */
function modelsOf({ model, reward }) {
  return reward?.model ? { model, reward: reward.model } : { model };
}

function scriptsFit({ recipe, scripts }) {
  const bytes = Object.values(scripts).reduce((sum, text) => sum + utf8(text).length, 0);
  return [...recipe.scripts].sort().join("\n") === Object.keys(scripts).sort().join("\n") && bytes <= MOST_SCRIPT;
}

function codeFits({ recipe, code }) {
  const needed = ["sealtrain", ...(ROOMS_OF[recipe.collaboration?.kind] ?? [])];
  return code.map(({ name }) => name).join() === needed.join();
}

function handOnFits({ recipe, handed_on: pin, brokers }) {
  const named = recipe.release_policy.model.handed_on;
  if ((named === undefined) !== (pin === undefined)) return false;
  if (named === undefined) return true;
  const [count, { threshold }] = [brokers.length, named];
  return count === 1 ? threshold === null : count < 2 * threshold && threshold <= count;
}

function hubFits({ recipe, hub }) {
  const named = Object.entries(modelsOf(recipe)).filter(([, { id }]) => id !== undefined);
  if (hub === undefined) return named.length === 0;
  const held = named.every(([name, { revision }]) => !shape.hex40(revision) || revision === hub[name]?.commit);
  return named.length > 0 && sameNames(hub, Object.fromEntries(named)) && held;
}

async function modelFits(named, model, tokenizer) {
  if (model.kind !== modelKind(named) || tokenizer.kind !== tokenizerKind(named)) return false;
  const { config, dtype, init_seed } = named;
  return config === undefined || (await digest(canonical({ config, dtype, init_seed }))) === model.sha256;
}

/** Whether a value has the form of a lock, and its parts fit each other. */
async function isLock(value) {
  if (!LOCK(value)) return false;
  const { recipe, brokers, policy } = value;
  const pins = { ...value.models, model: { model: value.model, tokenizer: value.tokenizer } };
  const named = modelsOf(recipe);
  const fits =
    scriptsFit(value) &&
    (policy === undefined) === (typeof recipe.collaboration?.policy !== "string") &&
    codeFits(value) &&
    handOnFits(value) &&
    hubFits(value) &&
    (recipe.schedule?.continue !== "last" || brokers.length === 1) &&
    sameNames(pins, named);
  if (!fits) return false;
  for (const [name, { model, tokenizer }] of Object.entries(pins)) {
    if (!(await modelFits(named[name], model, tokenizer))) return false;
  }
  return true;
}

/** Datasets of a recipe; a series has its name as `name` too. */
const datasetsOf = ({ datasets }) => datasets.map((one) => ({ ...one, name: one.name ?? one.series }));

/** Needs of a recipe, which every approval states (spec/consortium.md §3). */
function needsOf(recipe) {
  const actions = ["approve"];
  if (recipe.phase !== "evaluate") actions.push("export_model");
  if (recipe.release_policy.logs !== "none") actions.push("raise_logging");
  return { actions, owners: [...new Set(recipe.datasets.map((one) => one.owner))].sort() };
}

/** What the first release of a run reserves of each protected dataset (spec/key-release.md §4.2). */
function reservations(recipe) {
  const { privacy } = recipe;
  if (privacy.dp === "none") return [];
  const role = privacy.dp === "sgd" ? "train" : "test";
  return datasetsOf(recipe)
    .filter((one) => one.role === role)
    .map(({ owner, name }) => ({
      owner,
      name,
      epsilon: privacy.target_epsilon,
      delta: privacy.dp === "sgd" ? privacy.delta : 0,
      budget: privacy.budgets[owner] ?? null,
    }));
}
return { isLock, datasetsOf, needsOf, reservations };
})();
const module_counts = (() => {
// What the run log says of the records that trained (spec/run-manifest.md §2.5).

const { demand } = module_bytes;
const { datasetsOf } = module_lock;

const claim = (condition, message) => demand(condition, "claim-contradicted", message);
const PARTS = ["whole", "truncated", "filtered", "empty"];
/** Settings of a collaboration whose noise hides records. */
const HIDES = ["patient_privacy", "sequence_privacy"];

/** Whether counts of a dataset with so many records, null where unstated, may stand in the log. */
function isPublic(recipe, records) {
  const hides = HIDES.some((name) => (recipe.collaboration?.[name] ?? null) !== null);
  return records !== null && recipe.release_policy.logs === "structured" && recipe.privacy.dp === "none" && !hides;
}

/** Refuses counts that no guest writes; reads nothing where a check before refused log or datasets. */
function countsTrue({ log, datasets }, recipe) {
  if (!log || !datasets) return;
  const counted = log.filter((one) => one.event === "data.counted").flatMap((one) => Object.entries(one.fields));
  if (!counted.length) return;
  const pair = ({ owner, name }) => `${owner}/${name}`;
  const roles = new Map(datasetsOf(recipe).map((one) => [pair(one), one.role]));
  const trains = datasets.filter((one) => roles.get(pair(one)) === "train");
  const trained = new Map(trains.map((one) => [one.dataset_id, one]));
  const listed = counted.map(([id]) => id).sort().join();
  claim(listed === [...trained.keys()].sort().join(), "the log counts other datasets than were trained on");
  for (const [id, counts] of counted) {
    const { records } = trained.get(id);
    const open = isPublic(recipe, records);
    if (counts === null) {
      claim(!open, "the log withholds counts that the recipe lets out");
      continue;
    }
    demand(open, "egress-refused", "the log holds counts of records that may not leave");
    const total = PARTS.reduce((sum, part) => sum + counts[part], 0);
    claim(total === counts.records && total === records, "the counts of a dataset are not those of its records");
    claim(total === 0 || counts.whole + counts.truncated > 0, "no record of a dataset trained");
  }
}
return { isPublic, countsTrue };
})();
const module_served = (() => {
// What the run log says of the rows that the recipe's code was given (spec/run-manifest.md §2.6).

const { demand } = module_bytes;
const { isPublic } = module_counts;
const { datasetsOf } = module_lock;

const claim = (condition, message) => demand(condition, "claim-contradicted", message);

/** Refuses rows that no guest writes; reads nothing where a check before refused log or datasets. */
function rowsTrue({ log, datasets }, recipe) {
  if (!log || !datasets) return;
  const served = log.filter((one) => one.event === "rows.served").flatMap((one) => Object.entries(one.fields));
  if (!served.length) return;
  const pair = ({ owner, name }) => `${owner}/${name}`;
  const roles = new Map(datasetsOf(recipe).map((one) => [pair(one), one.role]));
  const opens = datasets.filter((one) => ["train", "test"].includes(roles.get(pair(one))));
  const opened = new Map(opens.map((one) => [one.dataset_id, one]));
  const listed = served.map(([id]) => id).sort().join();
  claim(listed === [...opened.keys()].sort().join(), "the log names other datasets than were opened");
  for (const [id, rows] of served) {
    const open = isPublic(recipe, opened.get(id).records);
    claim(rows !== null || !open, "the log withholds rows that the recipe lets out");
    demand(rows === null || open, "egress-refused", "the log holds a number of rows that may not leave");
  }
}
return { rowsTrue };
})();
const module_adopted = (() => {
// A deployment document that a platform added to (spec/deployment-document.md §8): a closed list of
// fields, and a launch script that does nothing or that the lock names.

const { demand, digest, equal, utf8 } = module_bytes;
const { canonical } = module_json;
const { line } = module_shape;

const SCRIPT = "pre_launch_script";
const EMPTY_SCRIPT = `#!/bin/sh
# sealtrain deployment document 3
# Nothing is done before the containers start.
:
`;

const changed = (condition, message) => demand(condition, "recipe-changed", `the measured document: ${message}`);
const same = (first, second) => equal(canonical(first), canonical(second));
const exactly = (expected) => (value) => same(value, expected);
const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
const ACCOUNT = new Set(["registry", "username", "password", "token_key"]);

const FIELDS = {
  features: (value, { kms_enabled: kms }) => same(value, []) || (same(value, ["kms"]) && kms === true),
  tproxy_enabled: exactly(false),
  docker_config: (value) =>
    isObject(value) && Object.entries(value).every(([name, text]) => ACCOUNT.has(name) && (text === null || text === "")),
  salt: (value) => value === null || (typeof value === "string" && /^[0-9a-f]{1,64}$/.test(value)),
  env_pubkey: (value) => typeof value === "string" && /^[0-9a-f]{0,130}$/.test(value),
  port_policy: (value) =>
    same(value, { ports: [], restrict_mode: true }) || same(value, { ports: [], restrict_mode: false }),
  swap_size: exactly(0),
  event_log_version: exactly(1),
  verity_volumes: exactly([]),
};

/** Refuse a document that has anything besides what the lock gives and a platform may add. */
async function requireAdditions(bytes, document, expected, launchScript) {
  changed(equal(canonical(document), bytes), "it is not canonical JSON");
  for (const [name, value] of Object.entries(expected)) {
    changed(Object.hasOwn(document, name), `it lacks ${name}`);
    const accepted = name === "name" ? line(128)(document.name) : same(document[name], value);
    changed(accepted || same(document[name], value), `it has another ${name}`);
  }
  for (const name of Object.keys(document)) {
    if (name === SCRIPT || Object.hasOwn(expected, name)) continue;
    changed(Object.hasOwn(FIELDS, name), `no platform may add ${name}`);
    changed(FIELDS[name](document[name], document), `no platform may give this value to ${name}`);
  }
  const script = document[SCRIPT];
  changed(typeof script === "string", "its launch script is no text");
  const named = script === EMPTY_SCRIPT || (await digest(utf8(script))) === launchScript;
  changed(named, "it runs another launch script than its lock names");
}
return { requireAdditions };
})();
const module_deployment = (() => {
// The deployment document of a guest: the lock in it, and that it is written as sealtrain writes it
// (spec/deployment-document.md).

const { requireAdditions } = module_adopted;
const { Refusal, demand, equal, utf8 } = module_bytes;
const { Malformed, canonical, parseJson } = module_json;

const LOCK = /<<'SEALTRAIN_FILE'\n(.*)\nSEALTRAIN_FILE\n/;
const GIVEN = "/run/sealtrain";
const FROM_DOCUMENT = "document:";
const KEPT = "/run-data";
const LOCK_NAME = "recipe.lock.json";
const REPORTS = "/sys/kernel/config/tsm/report";
const DOCUMENT = `${GIVEN}/app-compose.json`;
const TICKET = `${GIVEN}/ticket.json`;
const AGENT = "/var/run/dstack.sock";
const FIRST_PORT = 8471;

const changed = (condition, message) => demand(condition, "recipe-changed", message);
const readOnly = (path) => `${path}:${path}:ro`;

const DSTACK = {
  guest: AGENT,
  collateral: true,
  ticket: TICKET,
  volumes: [`${AGENT}:${AGENT}`, `/dstack/user_config:${TICKET}:ro`],
};
const reporting = (kind, collateral) => ({
  guest: `${kind}:${REPORTS}?compose=${DOCUMENT}`,
  collateral,
  ticket: TICKET,
  user: "0:0",
  volumes: [`${REPORTS}:${REPORTS}`, readOnly(DOCUMENT), readOnly(TICKET)],
});

/** What a document with an image says of each platform (spec/deployment-document.md §2). */
const PLATFORMS = {
  simulator: DSTACK,
  dstack: DSTACK,
  tdx: reporting("tdx", true),
  snp: reporting("snp", false),
  nitro: {
    guest: `nitro:/dev/nsm?compose=${DOCUMENT}`,
    collateral: false,
    ticket: "vsock:8475",
    volumes: [readOnly(DOCUMENT)],
    devices: ["/dev/nsm:/dev/nsm"],
  },
};

/** Bytes of the lock that a measured document embeds. */
async function embeddedLock(bytes) {
  try {
    const document = parseJson(bytes, { size: 256 * 1024 });
    const inContainer = document?.runner === "docker-compose";
    const found = inContainer ? ofCompose(document) : ofScript(document);
    const lock = parseJson(utf8(found));
    const whole = frame(lock.recipe, started(lock, found));
    if (inContainer && Object.hasOwn(document, "pre_launch_script")) {
      await requireAdditions(bytes, document, parseJson(whole), lock.recipe.hardware.launch_script);
    } else {
      changed(equal(whole, bytes), "the document is not written as sealtrain writes it");
    }
    return utf8(found);
  } catch (error) {
    if (error instanceof Malformed || error instanceof TypeError) {
      throw new Refusal("recipe-changed", `the measured document: ${error.message}`);
    }
    throw error;
  }
}

function ofScript(document) {
  changed(document?.runner === "bash" && typeof document.bash_script === "string", "unknown runner");
  const found = LOCK.exec(document.bash_script);
  changed(found, "the document embeds no lock");
  return found[1];
}

function ofCompose(document) {
  const { configs } = parseJson(utf8(document.docker_compose_file));
  const content = configs[LOCK_NAME]?.content;
  changed(typeof content === "string", "the document embeds no lock");
  changed(!content.replaceAll("$$", "").includes("$"), "something is left to interpolate");
  return content.replaceAll("$$", "$");
}

const started = ({ recipe }, lock) =>
  recipe.hardware.image === null
    ? { runner: "bash", bash_script: script(lock) }
    : { runner: "docker-compose", docker_compose_file: new TextDecoder().decode(canonical(service(recipe, lock))) };

const script = (lock) => `#!/bin/bash
# SIMULATED — NOT ATTESTED. This document names no image, so no hardware guest may run it.
# sealtrain deployment document 3
set -euo pipefail
printf %s "$(cat <<'SEALTRAIN_FILE'
${lock}
SEALTRAIN_FILE
)" > ${LOCK_NAME}
exec sealtrain guest ${LOCK_NAME} --platform simulator --guest guest.sock --collateral file:collateral.json --gpu-collateral file:gpu-collateral.json --base base --out out --ticket ticket.json --json
`;

function service(recipe, lock) {
  const { hardware } = recipe;
  const name = hardware.platforms.find((one) => one !== "simulator") ?? "simulator";
  changed(Object.hasOwn(PLATFORMS, name), "unknown platform");
  const platform = PLATFORMS[name];
  const collateral = platform.collateral ? ["--collateral", `file:${KEPT}/collateral.json`] : [];
  const guest = {
    image: hardware.image,
    labels: { "sealtrain.document": "3" },
    entrypoint: ["sealtrain"],
    command: [
      ...["guest", `${FROM_DOCUMENT}${LOCK_NAME}`, "--platform", name, "--guest", platform.guest, ...collateral],
      ...["--gpu-collateral", `file:${KEPT}/gpu-collateral.json`, "--base", `${KEPT}/base`],
      ...["--out", `${KEPT}/out`, "--ticket", platform.ticket, "--json"],
    ],
    working_dir: KEPT,
    volumes: [...platform.volumes, `run-data:${KEPT}`],
    cap_drop: ["ALL"],
    security_opt: ["no-new-privileges:true"],
    read_only: true,
    tmpfs: ["/tmp:exec"],
    shm_size: "8gb",
    restart: "no",
  };
  const ports = portsOf(recipe);
  if (ports.length) guest.ports = ports.map((port) => `${port}:${port}`);
  if (platform.user) guest.user = platform.user;
  if (platform.devices) guest.devices = platform.devices;
  if (hardware.gpu) {
    const all = { capabilities: ["gpu"], count: "all", driver: "nvidia" };
    guest.deploy = { resources: { reservations: { devices: [all] } } };
  }
  return {
    configs: { [LOCK_NAME]: { content: lock.replaceAll("$", "$$$$") } },
    services: { guest },
    volumes: { "run-data": {} },
  };
}

function portsOf({ collaboration, backend }) {
  if (!collaboration) return [];
  const more = collaboration.kind === "nodes" ? (backend?.ranks ?? 1) : 1;
  return Array.from({ length: more + 1 }, (_, place) => FIRST_PORT + place);
}

function frame({ name, hardware }, start) {
  return canonical({
    manifest_version: 2,
    name,
    key_provider: hardware.key_provider,
    key_provider_id: hardware.key_provider_id ?? "",
    kms_enabled: hardware.key_provider === "kms",
    local_key_provider_enabled: hardware.key_provider === "local",
    public_logs: false,
    public_sysinfo: false,
    gateway_enabled: false,
    no_instance_id: false,
    public_tcbinfo: true,
    secure_time: true,
    allowed_envs: [],
    storage_fs: "zfs",
    ...start,
  });
}
return { embeddedLock };
})();
const module_dstack = (() => {
// What a dstack guest measured: the event log against a verified quote (spec/evidence.md §5).

const { concat, demand, equal, fromHex, hex, sha256, sha384, utf8 } = module_bytes;
const { Malformed, canonical, parseJson } = module_json;
const { keccak256 } = module_keccak;

const RUNTIME = 134217729;
const KINDS = { none: 0, local: 1, kms: 2, tpm: 3 };
const replays = (condition, message) => demand(condition, "event-log-mismatch", message);

function le32(value) {
  return new Uint8Array([value, value >>> 8, value >>> 16, value >>> 24]);
}

/** What is hashed of a run-time event, in whichever bank. */
function runtimePreimage(entry) {
  replays(entry.event_type === RUNTIME, "a foreign event");
  replays(entry.digest === "", "an event brings its own digest");
  if (entry.version === 1) {
    return concat(le32(RUNTIME), utf8(":"), utf8(entry.event), utf8(":"), fromHex(entry.event_payload));
  }
  return canonical({ name: entry.event, payload: entry.event_payload, type: RUNTIME });
}

async function entryDigest(entry) {
  if (entry.imr < 3) {
    const bare = entry.event_type === 0 && entry.event === "" && entry.event_payload === "";
    replays(bare && entry.version === 1 && entry.digest.length === 96, "a firmware event with more than a digest");
    return fromHex(entry.digest);
  }
  return sha384(runtimePreimage(entry));
}

/** What a log that replays to a quote's registers says of the guest. */
async function replay(log, quote) {
  const firmware = log.some((entry) => entry.imr < 3);
  for (const [index, quoted] of quote.rtmr.entries()) {
    if (index < 3 && !firmware) continue;
    let register = new Uint8Array(48);
    for (const entry of log.filter((one) => one.imr === index)) {
      register = await sha384(register, await entryDigest(entry));
    }
    replays(hex(register) === quoted, `event log does not replay to RTMR${index}`);
  }
  const events = bootEvents(log);
  const measured = { ...facts(events), firmwareLogged: log.some((entry) => entry.imr === 0) };
  if (quote.configId.some((byte) => byte !== 0)) await checkConfigId(quote.configId, measured, events);
  return measured;
}

function bootEvents(log) {
  const events = new Map();
  for (const entry of log.filter((one) => one.imr === 3)) {
    if (entry.event === "system-ready") return events;
    replays(!events.has(entry.event), "an event was measured twice");
    replays(!entry.event.includes(":"), "an ambiguous name of an event");
    events.set(entry.event, entry.event_payload);
  }
  replays(false, "no system-ready");
}

function facts(events) {
  const provider = keyProvider(events.get("key-provider"));
  const image = events.get("os-image-hash") ?? null;
  replays(image === null || image.length === 64, "os-image-hash has another length");
  const required = (name, ...lengths) => {
    const value = events.get(name);
    replays(value !== undefined && lengths.includes(value.length), `${name} is missing or malformed`);
    return value;
  };
  return {
    appId: required("app-id", 40),
    composeHash: required("compose-hash", 64),
    instanceId: required("instance-id", 0, 40),
    provider,
    image,
  };
}

function keyProvider(payload) {
  replays(payload !== undefined, "no key-provider");
  let value = null;
  try {
    value = parseJson(fromHex(payload), { depth: 2, size: 8192 });
  } catch (error) {
    if (!(error instanceof Malformed)) throw error;
  }
  const sound = typeof value?.name === "string" && fromHex(value.id) !== null;
  demand(sound, "key-provider-mismatch", "the key provider's event is malformed");
  return { name: value.name, id: value.id };
}

/** What the run-time events of a log say; that they replay is compared by the caller. */
const measuredGuest = (log) => facts(bootEvents(log));

/** Configuration ids of form 2 (33 bytes) that commit to what was measured. */
function configIds({ appId, composeHash, provider }) {
  const kind = provider.name.replace(/-sgx$/, "");
  if (!Object.hasOwn(KINDS, kind)) return [];
  return [provider.id, ""].map((id) => {
    const tail = concat(new Uint8Array([KINDS[kind]]), fromHex(id));
    return concat(new Uint8Array([2]), keccak256(concat(fromHex(composeHash), fromHex(appId), tail)));
  });
}

async function checkConfigId(configId, measured, events) {
  const { appId, composeHash, instanceId, provider } = measured;
  const kind = provider.name.replace(/-sgx$/, "");
  const accepted = [concat(new Uint8Array([1]), fromHex(composeHash)), ...configIds(measured)];
  for (const id of [provider.id, ""]) {
    const document = {
      app_id: appId,
      compose_hash: composeHash,
      instance_id: instanceId,
      key_provider: kind,
      key_provider_id: id,
      version: 3,
    };
    const gpu = events.get("gpu-policy-hash") ?? hex(await sha256(utf8("{}")));
    for (const variant of [document, { ...document, gpu_policy_hash: gpu }]) {
      const value = await sha256(utf8("dstack-mr-config-v3:\0"), canonical(variant));
      accepted.push(concat(new Uint8Array([3]), value));
    }
  }
  const commits = accepted.some((value) => equal(concat(value, new Uint8Array(15)), configId));
  replays(commits, "MRCONFIGID commits to other values than the log");
}

/** The rules of a policy for what a dstack guest measured. */
function appraiseMeasured(measured, rules) {
  const provider = measured.provider.id || measured.provider.name;
  const known = rules.key_provider === "any" || rules.key_provider === provider;
  demand(known, "key-provider-mismatch", "another key provider");
  const image = ["any", "measured"].includes(rules.os_image_hash) || rules.os_image_hash.includes(measured.image);
  demand(image, "measurement-mismatch", "another OS image");
}
return { runtimePreimage, replay, measuredGuest, configIds, appraiseMeasured };
})();
const module_cbor = (() => {
// A reader of CBOR, as far as documents of Nitro use it (spec/evidence-nitro.md, rule 2).

const { concat, hex, text, u16be, u32be } = module_bytes;

/** Bytes that are not one item of the CBOR that this reader knows; the caller names the refusal. */
class BadCbor extends Error {}

const LEVELS = 16;
const SIZES = { 24: 1, 25: 2, 26: 4, 27: 8 };
const INDEFINITE = 31;
const BREAK = 0xff;

function fail(message) {
  throw new BadCbor(message);
}

class Reader {
  constructor(bytes) {
    this.bytes = bytes;
    this.at = 0;
  }

  take(size) {
    if (this.at + size > this.bytes.length) fail("truncated");
    this.at += size;
    return this.bytes.subarray(this.at - size, this.at);
  }

  argument(detail) {
    if (detail < 24) return detail;
    const size = SIZES[detail] ?? fail("an unknown length");
    const bytes = this.take(size);
    if (size === 1) return bytes[0];
    if (size === 2) return u16be(bytes, 0);
    const high = u32be(bytes, 0);
    if (size === 4) return high;
    const whole = high * 2 ** 32 + u32be(bytes, 4);
    return Number.isSafeInteger(whole) ? whole : (BigInt(high) << 32n) | BigInt(u32be(bytes, 4));
  }

  value(level) {
    if (level > LEVELS) fail("nested too deeply");
    const [first] = this.take(1);
    const [major, detail] = [first >> 5, first & 31];
    if (major === 7) {
      if (detail === 20 || detail === 21) return detail === 21;
      return detail === 22 ? null : fail("a float or another simple value");
    }
    if (major === 6) fail("a tag");
    if (detail === INDEFINITE) {
      return major === 4 || major === 5 ? this.items(major, Infinity, level) : fail("a string in chunks");
    }
    const count = this.argument(detail);
    if (major === 0) return count;
    if (major === 1) return typeof count === "bigint" ? -1n - count : -1 - count;
    if (typeof count === "bigint" || count > this.bytes.length) fail("a length beyond the end");
    if (major === 2) return this.take(count);
    if (major === 3) return this.text(count);
    return this.items(major, count, level);
  }

  text(size) {
    try {
      return text(this.take(size));
    } catch (error) {
      if (error instanceof TypeError) fail("text that is not UTF-8");
      throw error;
    }
  }

  ended(place, count) {
    if (count !== Infinity) return place === count;
    if (this.bytes[this.at] !== BREAK) return false;
    this.at++;
    return true;
  }

  items(major, count, level) {
    if (major === 4) {
      const list = [];
      while (!this.ended(list.length, count)) list.push(this.value(level + 1));
      return list;
    }
    const map = new Map();
    const seen = new Set();
    while (!this.ended(map.size, count)) {
      const key = this.value(level + 1);
      const name = key instanceof Uint8Array ? `bytes ${hex(key)}` : `${typeof key} ${key}`;
      if (typeof key === "object" && !(key instanceof Uint8Array)) fail("a key that is no scalar");
      if (seen.has(name)) fail("a key occurs twice");
      seen.add(name);
      map.set(key, this.value(level + 1));
    }
    return map;
  }
}

/** The value of bytes that are exactly one item: maps are `Map`, byte strings `Uint8Array`. */
function parseCbor(bytes) {
  const reader = new Reader(bytes);
  const value = reader.value(0);
  return reader.at === bytes.length ? value : fail("bytes follow the item");
}

/** The shortest head of a byte string, and the bytes. */
function byteString(bytes) {
  const size = bytes.length;
  if (size < 24) return concat(new Uint8Array([0x40 | size]), bytes);
  if (size < 256) return concat(new Uint8Array([0x58, size]), bytes);
  return concat(new Uint8Array([0x59, size >> 8, size & 255]), bytes);
}
return { BadCbor, parseCbor, byteString };
})();
const module_x509 = (() => {
// A reader of strict DER, and as much of X.509 and of revocation lists as evidence needs.

const { ecdsa, equal, hex, latin1, rsaPss, text } = module_bytes;

/** Bytes that are no certificate or list this reader knows; the caller names the refusal. */
class BadDer extends Error {}

const fail = (message) => {
  throw new BadDer(message);
};

/** One element: `{tag, whole, content}`; the bytes must end with it. */
function der(bytes) {
  const [element, end] = element_at(bytes, 0);
  return end === bytes.length ? element : fail("bytes follow a DER value");
}

function element_at(bytes, at) {
  if (at + 2 > bytes.length) fail("truncated");
  const tag = bytes[at];
  let length = bytes[at + 1];
  let start = at + 2;
  if (length & 0x80) {
    const digits = length & 0x7f;
    if (digits === 0 || digits > 3 || start + digits > bytes.length) fail("bad length");
    length = 0;
    for (let i = 0; i < digits; i++) length = length * 256 + bytes[start + i];
    start += digits;
    if (length < 128 || bytes[start - digits] === 0) fail("length is not the shortest");
  }
  if (start + length > bytes.length) fail("truncated");
  const end = start + length;
  return [{ tag, whole: bytes.subarray(at, end), content: bytes.subarray(start, end) }, end];
}

/** Elements of a constructed value. */
function items(element, tag = 0x30) {
  if (element?.tag !== tag) fail("another element than expected");
  const result = [];
  for (let at = 0; at < element.content.length; ) {
    const [item, end] = element_at(element.content, at);
    result.push(item);
    at = end;
  }
  return result;
}

/** A list of exactly so many elements. */
function exactly(count, elements) {
  return elements.length === count ? elements : fail("more or fewer elements than expected");
}

/** The bits of a BIT STRING's content; those that are not used are zeros. */
function bitString(content) {
  const [unused, ...bytes] = content;
  const spare = bytes.length === 0 ? unused === 0 : unused < 8 && (bytes.at(-1) & ((1 << unused) - 1)) === 0;
  return spare ? bytes : fail("no bit string");
}

/** A BOOLEAN that is true: one that is false is left out, being the default. */
function isTrue({ tag, content }) {
  return (tag === 1 && content.length === 1 && content[0] === 0xff) || fail("no truth value of DER");
}

/** An INTEGER in its shortest form, perhaps negative. */
function integer(element) {
  const { content } = element ?? {};
  const long = content?.length > 1 && [0, 0x1ff].includes((content[0] << 1) | (content[1] >> 7));
  return element?.tag === 2 && content.length > 0 && !long ? content : fail("no integer");
}

/** Bytes of a BIT STRING of whole bytes. */
function bits(element) {
  if (element?.tag !== 3 || element.content[0] !== 0) fail("no bit string of whole bytes");
  return element.content.subarray(1);
}

function oid(element) {
  if (element?.tag !== 6) fail("no object identifier");
  const { content } = element;
  const begins = (at) => at === 0 || !(content[at - 1] & 0x80);
  const padded = content.some((byte, at) => byte === 0x80 && begins(at));
  if (!content.length || content.length > 63 || content.at(-1) & 0x80 || padded) fail("no object identifier");
  const numbers = [Math.min(2, Math.floor(content[0] / 40))];
  numbers.push(content[0] - 40 * numbers[0]);
  let value = 0;
  for (const byte of content.subarray(1)) {
    value = value * 128 + (byte & 0x7f);
    if (!(byte & 0x80)) {
      numbers.push(value);
      value = 0;
    }
  }
  return numbers.join(".");
}

/** Value of a small unsigned INTEGER. */
function small(element) {
  if (element?.tag !== 2 || element.content.length === 0 || element.content.length > 6) fail("no integer");
  if (element.content[0] & 0x80) fail("negative");
  return element.content.reduce((sum, byte) => sum * 256 + byte, 0);
}

/** Seconds since the epoch of a UTCTime or GeneralizedTime. */
function time(element) {
  const written = latin1(element.content);
  let digits = /^\d{12}Z$/.test(written) && element.tag === 0x17 ? written : null;
  if (digits !== null) digits = (digits < "50" ? "20" : "19") + digits;
  else if (element.tag === 0x18 && /^\d{14}Z$/.test(written)) digits = written;
  else fail("no time");
  const [, ...parts] = /^(\d{4})(\d\d)(\d\d)(\d\d)(\d\d)(\d\d)Z$/.exec(digits);
  const [year, month, day, hour, minute, second] = parts.map(Number);
  const found = Date.UTC(year, month - 1, day, hour, minute, second) / 1000;
  const same = new Date(found * 1000).toISOString().replace(/[-:T]|\.000/g, "") === digits;
  return same ? found : fail("a time that no calendar has");
}

const CURVES = {
  "1.2.840.10045.3.1.7": ["P-256", 32],
  "1.3.132.0.34": ["P-384", 48],
};
const SIGNATURES = { "1.2.840.10045.4.3.2": "SHA-256", "1.2.840.10045.4.3.3": "SHA-384" };

const VERSION_3 = "020102";
const EC = "1.2.840.10045.2.1";
const OF_RSA = /^1\.2\.840\.113549\.1\.1\.(?:[45]|1[1-4])$/;
/** Extensions whose value is DER, besides those that are read here. */
const PARSED = new Set(
  [14, 16, 17, 18, 30, 31, 32, 35, 36, 37, 46, 54]
    .map((arc) => `2.5.29.${arc}`)
    .concat(["1", "11", "24"].map((arc) => `1.3.6.1.5.5.7.1.${arc}`))
    .concat(["2", "3", "5"].map((arc) => `1.3.6.1.4.1.11129.2.4.${arc}`))
    .concat(["1.3.6.1.5.5.7.48.1.5", "1.3.6.1.4.1.311.21.7", "1.3.36.8.3.3"]),
);
const COMMON_NAME = "2.5.4.3";
const BMP = 0x1e;
/** Tags of the texts that names are made of → which bytes they may have. */
const TEXTS = {
  0x0c: isUtf8,
  0x12: isUtf8,
  0x13: (bytes) => /^[A-Za-z0-9 '()+,\-./:=?]*$/.test(latin1(bytes)),
  0x14: isUtf8,
  0x16: (bytes) => bytes.every((byte) => byte < 0x80),
  0x1c: isUtf8,
  [BMP]: (bytes) => bytes.length % 2 === 0,
};
const SERIAL_NUMBER = "2.5.4.5";
const RSA = "1.2.840.113549.1.1.1";
const PSS = "1.2.840.113549.1.1.10";
const MGF1 = "1.2.840.113549.1.1.8";
const SHA384 = "2.16.840.1.101.3.4.2.2";

function names(element, wanted) {
  const result = [];
  for (const set of items(element)) {
    const pairs = items(set, 0x31);
    const ordered = pairs.every(({ whole }, at) => at === 0 || isBefore(pairs[at - 1].whole, whole));
    if (pairs.length === 0 || !ordered) fail("a name that is empty, or not in order");
    for (const pair of pairs) {
      const [type, value] = exactly(2, items(pair));
      if (!TEXTS[value.tag]?.(value.content)) fail("a name that is no text");
      if (oid(type) === wanted) result.push(safeText(value.content));
    }
  }
  return result;
}

/** Hash of a signature algorithm, `PSS` for RSASSA-PSS with SHA-384 throughout; else undefined. */
function hashOf(algorithm) {
  const [name, parameters] = items(algorithm);
  if (oid(name) !== PSS) return SIGNATURES[oid(name)];
  const fields = new Map(items(parameters).map((one) => [one.tag, one.content]));
  const hash = fields.get(0xa0);
  const mask = fields.get(0xa1);
  const salt = fields.get(0xa2);
  if (!hash || !mask || !salt) return undefined;
  const [generator, inner] = items(der(mask));
  const both = [items(der(hash))[0], items(inner)[0]].every((one) => oid(one) === SHA384);
  return both && oid(generator) === MGF1 && small(der(salt)) === 48 ? "PSS" : undefined;
}

/** Bits of an RSA key's modulus, 0 of another key, and its exponent in hex. */
function rsaKey(kind, key) {
  if (oid(kind[0]) !== RSA) return { rsaBits: 0, rsaExponent: "" };
  const [modulus, exponent] = exactly(2, items(der(bits(key))));
  const odd = integer(exponent).at(-1) & 1 && hex(exponent.content) !== "01";
  if (!odd || (integer(modulus)[0] | exponent.content[0]) & 0x80) fail("no RSA key");
  const bytes = modulus.content[0] === 0 ? modulus.content.subarray(1) : modulus.content;
  return { rsaBits: bytes.length * 8 - Math.clz32(bytes[0]) + 24, rsaExponent: hex(exponent.content) };
}

function isUtf8(bytes) {
  try {
    text(bytes);
    return true;
  } catch {
    return false;
  }
}

function isBefore(first, second) {
  const [a, b] = [hex(first), hex(second)];
  return a <= b;
}

function safeText(bytes) {
  try {
    return text(bytes);
  } catch {
    return latin1(bytes);
  }
}

function extensions(element) {
  const result = new Map();
  for (const [name, extension] of listed(element)) {
    if (result.has(name)) fail("an extension twice");
    if (PARSED.has(name)) der(extension.value);
    result.set(name, extension);
  }
  return result;
}

function listed(element) {
  const result = [];
  for (const item of items(exactly(1, items(element, element.tag))[0])) {
    const parts = items(item);
    const critical = parts.length === 3 && isTrue(parts[1]);
    if (parts.length !== 2 && parts.length !== 3) fail("an extension of another form");
    const value = parts[parts.length - 1];
    if (value.tag !== 4) fail("extension without octets");
    result.push([oid(parts[0]), { critical, value: value.content }]);
  }
  return result;
}

/** What may follow a key: unique ids of issuer and subject, and extensions, in this order. */
function further(rest) {
  const tags = rest.map(({ tag }) => tag);
  if ([0x81, 0x82, 0xa3].filter((tag) => tags.includes(tag)).join() !== tags.join()) fail("unknown fields");
  for (const { tag, content } of rest) if (tag !== 0xa3) bitString(content);
}

function algorithmOf(element) {
  const [name, ...parameters] = items(element);
  const nothing = parameters.length === 0 || (parameters.length === 1 && hex(parameters[0].whole) === "0500");
  if (OF_RSA.test(oid(name)) && !nothing) fail("parameters of an algorithm that has none");
  return oid(name);
}

/** The fields of a certificate, each an element. */
function fieldsOf(bytes) {
  const [body, algorithm, signature] = exactly(3, items(der(bytes)));
  const fields = items(body);
  const [version] = exactly(1, items(fields[0], 0xa0));
  if (hex(version.whole) !== VERSION_3) fail("another version than 3");
  const [, serial, inner, issuer, validity, subject, info, ...rest] = fields;
  integer(serial);
  further(rest);
  const [first, last] = exactly(2, items(validity));
  const [keyAlgorithm, key] = exactly(2, items(info));
  const kind = items(keyAlgorithm);
  if (oid(kind[0]) === EC && kind[1]?.tag !== 6) fail("a curve without a name");
  if (oid(kind[0]) === PSS) fail("a key for one kind of signature");
  [key, signature].forEach(bits);
  [first, last].forEach(time);
  algorithmOf(inner);
  const extra = rest.find((one) => one.tag === 0xa3);
  if (extra) listed(extra);
  return { body, algorithm, signature, serial, inner, issuer, first, last, subject, info, kind, key, extra };
}

/** The parts of a certificate that checks read. Nothing of it is verified. */
function certificate(bytes) {
  const fields = fieldsOf(bytes);
  const { algorithm, inner, kind, key, subject } = fields;
  const curve = kind[1]?.tag === 6 ? CURVES[oid(kind[1])] : undefined;
  const named = equal(inner.whole, algorithm.whole); // else nothing verifies it
  return {
    bytes,
    signed: fields.body.whole,
    signature: bits(fields.signature),
    hash: named ? hashOf(algorithm) : undefined,
    algorithm: named ? algorithmOf(algorithm) : undefined,
    serial: hex(fields.serial.content),
    issuer: fields.issuer.whole,
    subject: subject.whole,
    names: names(subject, COMMON_NAME),
    serialNumbers: names(subject, SERIAL_NUMBER),
    info: fields.info.whole,
    key: bits(key),
    ...rsaKey(kind, key),
    start: time(fields.first),
    end: time(fields.last),
    curve: curve?.[0],
    point: bits(key),
    extensions: fields.extra ? extensions(fields.extra) : new Map(),
  };
}

/** Raw `r ‖ s` of an ECDSA signature in DER, null where it is none. */
function rawSignature(bytes, size) {
  let numbers;
  try {
    numbers = items(der(bytes));
  } catch {
    return null;
  }
  if (numbers.length !== 2) return null;
  const result = new Uint8Array(2 * size);
  for (const [i, number] of numbers.entries()) {
    let { content } = number;
    if (number.tag !== 2 || content.length === 0 || content[0] & 0x80) return null;
    if (content.length > 1 && content[0] === 0 && !(content[1] & 0x80)) return null;
    if (content[0] === 0) content = content.subarray(1);
    if (content.length > size) return null;
    result.set(content, size * (i + 1) - content.length);
  }
  return result;
}

/** Whether a certificate's key signed bytes with a signature in DER. */
async function signedBy(issuer, hash, signature, message) {
  if (hash === "PSS") return issuer.rsaBits > 0 && rsaPss(issuer.info, signature, message);
  const size = { "P-256": 32, "P-384": 48 }[issuer.curve];
  if (!size || !hash) return false;
  const raw = rawSignature(signature, size);
  return raw !== null && ecdsa(issuer.curve, hash, issuer.point, raw, message);
}

const flags = (found) => (found ? der(found.value) : null);

/** Whether a certificate may sign others. */
function isAuthority(one) {
  const basic = one.extensions.get("2.5.29.19");
  if (!basic) return false;
  const [ca] = items(der(basic.value));
  const usage = flags(one.extensions.get("2.5.29.15"));
  const signs = usage === null || Boolean(usage.content[1] & 0x04);
  return ca?.tag === 1 && ca.content[0] === 0xff && signs;
}

/** Whether bytes are a certificate whose common name begins with SIMULATED. */
function callsItselfSimulated(bytes) {
  try {
    return names(fieldsOf(bytes).subject, COMMON_NAME).some((name) => name.startsWith("SIMULATED"));
  } catch (error) {
    if (error instanceof BadDer || error instanceof TypeError) return false;
    throw error;
  }
}

/** What a certificate's extensions say: `authority`, `certifies` and `signs` are null where they are silent. */
function powers(one) {
  const basic = flags(one.extensions.get("2.5.29.19"));
  const fields = basic ? items(basic) : [];
  const authority = fields.length > 0 && isTrue(fields[0]);
  const [depth, ...more] = fields.slice(1);
  if (more.length > 0) fail("basic constraints of another form");
  const usage = flags(one.extensions.get("2.5.29.15"));
  if (usage && usage.tag !== 3) fail("key usage is malformed");
  const [said = 0, beyond = 0] = usage ? bitString(usage.content) : [];
  const alone = said & 0x01 || beyond & 0x80; // to encipher or decipher only, in an agreement of keys
  if (alone && !(said & 0x08)) fail("key usage contradicts itself");
  const has = (bit) => (usage === null ? null : Boolean(said & bit));
  return { authority, depth: depth ? small(depth) : Infinity, certifies: has(0x04), signs: has(0x80) };
}

/**
 * Refuse a path, root first, unless each certificate signed the next one with ECDSA and SHA-384 on
 * P-384, all but the last are authorities within their depth, and the last one may only sign.
 * `constrained` demands of each that it says whether it is an authority.
 */
async function checkPath(path, { now, critical = [], constrained = false }) {
  const known = ["2.5.29.19", "2.5.29.15", ...critical];
  for (const [place, one] of path.entries()) {
    const leaf = place === path.length - 1;
    if (one.curve !== "P-384") fail("a key that is not on P-384");
    for (const [name, extension] of one.extensions) {
      if (extension.critical && !known.includes(name)) fail("an unknown critical extension");
    }
    if (constrained && !one.extensions.has("2.5.29.19")) fail("a certificate without basic constraints");
    const { authority, depth, certifies, signs } = powers(one);
    if (leaf && (authority || signs !== true)) fail("the leaf is an authority, or may not sign");
    if (!leaf && !(authority && certifies === true)) fail("an issuer may not sign certificates");
    if (!leaf && depth < path.length - 2 - place) fail("the path is too long");
    if (now !== null && !(one.start <= now && now <= one.end)) fail("a certificate is not valid at that time");
    if (place === 0) continue;
    const issuer = path[place - 1];
    if (!equal(issuer.subject, one.issuer) || one.hash !== "SHA-384") fail("issued by another");
    if (!(await signedBy(issuer, one.hash, one.signature, one.signed))) fail("a signature does not hold");
  }
}

/** Whether an authority signed a certificate and is named as its issuer. */
async function issued(issuer, one) {
  if (!isAuthority(issuer) || !equal(issuer.subject, one.issuer)) return false;
  const known = ["2.5.29.19", "2.5.29.15"];
  for (const [name, { critical }] of one.extensions) {
    if (critical && !known.includes(name)) return false;
  }
  return signedBy(issuer, one.hash, one.signature, one.signed);
}

/** Extensions of revocation lists: their number, and the key of their issuer. */
const OF_LISTS = {
  "2.5.29.20": (number) => number.tag === 2 || fail("a number that is no integer"),
  "2.5.29.35": (issuer) => {
    const parts = items(issuer).map(({ tag }) => tag);
    const known = [0x80, 0xa1, 0x82].filter((tag) => parts.includes(tag));
    if (known.join() !== parts.join()) fail("an issuer's key of another form");
  },
};

/** A revocation list: its dates, issuer, and the revoked serial numbers. */
function revocationList(bytes) {
  const [body, algorithm, signature] = items(der(bytes));
  const fields = items(body);
  if (fields[0].tag === 2) fields.shift();
  const [, issuer, start, ...rest] = fields;
  const end = [0x17, 0x18].includes(rest[0]?.tag) ? time(rest.shift()) : 0;
  const revoked = new Set();
  if (rest[0]?.tag === 0x30) {
    for (const entry of items(rest[0])) revoked.add(hex(items(entry)[0].content));
  }
  const tail = rest.find((one) => one.tag === 0xa0);
  for (const [name, { critical, value }] of tail ? extensions(tail) : []) {
    if (critical && !Object.hasOwn(OF_LISTS, name)) fail("an unknown critical extension");
    if (Object.hasOwn(OF_LISTS, name)) OF_LISTS[name](der(value));
  }
  return {
    signed: body.whole,
    signature: bits(signature),
    hash: hashOf(algorithm),
    issuer: issuer.whole,
    start: time(start),
    end,
    revoked,
  };
}

const PEM = /^(?:-----BEGIN CERTIFICATE-----\n((?:[A-Za-z0-9+/=]{1,64}\n)+)-----END CERTIFICATE-----(?:\n|$))+$/;
const ONE = /-----BEGIN CERTIFICATE-----\n([A-Za-z0-9+/=\n]+)\n-----END CERTIFICATE-----/g;

/** Certificates of PEM text: nothing else is in it, lines have 64 characters. */
const pemCertificates = (source) => pemBytes(source).map(certificate);

/** The same as bytes, which may be no certificates. */
function pemBytes(source) {
  if (!PEM.test(source)) fail("not PEM of certificates alone");
  return [...source.matchAll(ONE)].map(([, lines]) => {
    const whole = lines.split("\n");
    if (whole.slice(0, -1).some((line) => line.length !== 64)) fail("lines are not of 64");
    let raw;
    try {
      raw = atob(whole.join(""));
    } catch {
      fail("not base64");
    }
    if (btoa(raw) !== whole.join("")) fail("not the one base64");
    return Uint8Array.from(raw, (character) => character.charCodeAt(0));
  });
}
return { BadDer, der, items, bits, oid, small, time, certificate, rawSignature, signedBy, isAuthority, callsItselfSimulated, powers, checkPath, issued, revocationList, pemCertificates, pemBytes };
})();
const module_nitro = (() => {
// The document of AWS Nitro Enclaves (spec/evidence-nitro.md).

const { Refusal, concat, demand, ecdsa, equal, fromBase64, fromHex, hex, sha256, sha384, utf8 } = module_bytes;
const { BadCbor, byteString, parseCbor } = module_cbor;
const shape = module_shape;
const x509 = module_x509;

const { literal, record } = shape;
const AWS_ROOT = "641a0321a3e244efe456463195d606317ed7cdcc3c1756e09893f3c68f79bb5b";
const ENCLAVE = { registers: "pcrs", module: /^(i-(?:[0-9a-f]{8,32}))-enc([0-9a-f]{16})$/, required: [0, 1, 2] };
/** What the documents of a NitroTPM have in place of those of enclaves. */
const NITRO_TPM = {
  registers: "nitrotpm_pcrs",
  module: /^(i-(?:[0-9a-f]{8,32}))-tpm([0-9a-f]{16})$/,
  required: [],
};
const YEAR_10000 = 253_402_300_800_000;
const ZEROS = new Uint8Array(48);
const MAX_DOCUMENT = 16384;

const any = literal("any");
const register = (value) => shape.hex96(value) && !/^0+$/.test(value);
const anyOf = (item, max) => shape.either(any, shape.list(item, { max }));

/** Evidence of a Nitro enclave. */
const FORM = record({
  tee: literal("nitro"),
  document: (value) => value !== "" && (fromBase64(value)?.length ?? Infinity) <= MAX_DOCUMENT,
  app_compose: shape.compose,
});

/** A policy's rules for Nitro enclaves. */
const RULES = record({
  tee: literal("nitro"),
  images: shape.either(
    any,
    shape.list(record({ pcr0: register, pcr1: register, pcr2: register }), { max: 1024 }),
  ),
  signers: anyOf(register, 256),
  parents: anyOf(shape.match(/^i-[0-9a-f]{8,32}$/), 4096),
  iam_roles: anyOf(register, 256),
  max_age_s: shape.integer(1, 10800),
  debug: literal("refuse"),
});

const isBytes = (value, min, max) => value instanceof Uint8Array && value.length >= min && value.length <= max;
const form = (condition, message) => demand(condition, "evidence-malformed", message);

function read(bytes) {
  try {
    return parseCbor(bytes);
  } catch (error) {
    if (error instanceof BadCbor) throw new Refusal("evidence-malformed", `document: ${error.message}`);
    throw error;
  }
}

/** The parts of a document in COSE_Sign1, before anything of it is verified. */
function parseDocument(raw, kind = ENCLAVE) {
  const outer = read(raw[0] === 0xd2 ? raw.subarray(1) : raw);
  form(Array.isArray(outer) && outer.length === 4, "not an array of four");
  const [header, unprotected, payload, signature] = outer;
  form(isBytes(header, 1, 64), "no protected header");
  const algorithm = read(header);
  form(algorithm instanceof Map && algorithm.size === 1 && algorithm.get(1) === -35, "not signed by ES384");
  form(unprotected instanceof Map && unprotected.size === 0, "an unprotected header");
  form(payload instanceof Uint8Array, "no payload");
  form(isBytes(signature, 96, 96), "not a signature of 96 bytes");
  const halves = [signature.subarray(0, 48), signature.subarray(48)];
  form(halves.every((half) => !equal(half, ZEROS)), "a signature of zeros");
  const fields = read(payload);
  form(fields instanceof Map, "the payload is no map");
  form([...fields.keys()].every((key) => typeof key === "string"), "a key of the payload is no text");
  const identity = concat(new Uint8Array([0x84, 0x6a]), utf8("Signature1"), byteString(header), new Uint8Array([0x40]), byteString(payload));
  return { ...parsePayload(fields, kind), signature, signed: identity };
}

function parsePayload(fields, { registers, module, required }) {
  const moduleId = fields.get("module_id");
  const named = typeof moduleId === "string" ? module.exec(moduleId) : null;
  form(named, "module_id is malformed");
  const timestamp = fields.get("timestamp");
  form(Number.isSafeInteger(timestamp) && timestamp > 0 && timestamp < YEAR_10000, "timestamp is no time");
  form(fields.get("digest") === "SHA384", "another digest than SHA384");
  const pcrs = fields.get(registers);
  form(pcrs instanceof Map, "no registers");
  for (const [index, value] of pcrs) {
    form(Number.isSafeInteger(index) && index >= 0 && index <= 31 && isBytes(value, 48, 48), "a register is malformed");
  }
  form(required.every((index) => pcrs.has(index)), "PCR0, PCR1 or PCR2 is missing");
  const leaf = fields.get("certificate");
  const bundle = fields.get("cabundle");
  form(isBytes(leaf, 1, 1024), "certificate is malformed");
  form(Array.isArray(bundle) && bundle.length >= 1 && bundle.length <= 8, "cabundle is malformed");
  form(bundle.every((one) => isBytes(one, 1, 1024)), "cabundle is malformed");
  for (const name of ["public_key", "user_data", "nonce"]) {
    const value = fields.get(name) ?? null;
    form(value === null || isBytes(value, 0, 1024), `${name} is malformed`);
  }
  const userData = fields.get("user_data") ?? null;
  return { parent: named[1], timestamp, pcrs, leaf, bundle, userData };
}

async function trustedRoot(found, simulatorRoot) {
  if (simulatorRoot) {
    demand(equal(found, simulatorRoot), "quote-root-untrusted", "another simulator's root");
  } else if (hex(await sha256(found)) !== AWS_ROOT) {
    demand(!x509.callsItselfSimulated(found), "simulated-evidence", "a simulator where hardware is asked for");
    throw new Refusal("quote-root-untrusted", "not the root of AWS");
  }
}

async function chain({ bundle, leaf }, now) {
  try {
    const path = [...bundle, leaf].map(x509.certificate);
    await x509.checkPath(path, { now, constrained: true });
    return path.at(-1);
  } catch (error) {
    if (!(error instanceof x509.BadDer || error instanceof TypeError)) throw error;
    throw new Refusal("certificate-chain-invalid", error.message);
  }
}

/** A document whose chain and signature hold. */
async function verifyDocument(raw, root, now, kind = ENCLAVE) {
  const document = parseDocument(raw, kind);
  await trustedRoot(document.bundle[0], root);
  const leaf = await chain(document, now);
  const holds = await ecdsa("P-384", "SHA-384", leaf.point, document.signature, document.signed);
  demand(holds, "quote-invalid", "the leaf did not sign the document");
  return document;
}

/** Facts that AWS signed about an enclave. */
async function verify(cpu, { rules, root, now }) {
  const document = await verifyDocument(fromBase64(cpu.document), root, now);
  const at = document.timestamp / 1000;
  const fresh = now - rules.max_age_s <= at && at <= now + 60;
  demand(fresh, "evidence-stale", "the document was made at another time");
  const { pcrs, parent } = document;
  const measured = [0, 1, 2].every((index) => !equal(pcrs.get(index), ZEROS));
  demand(measured, "debug-guest", "the enclave runs in debug mode");
  const instance = pcrs.get(4) ?? ZEROS;
  const expected = await sha384(ZEROS, utf8(parent));
  demand(equal(instance, ZEROS) || equal(instance, expected), "measurement-mismatch", "PCR4 is not of the module's instance");
  const shown = await sha256(utf8(cpu.app_compose));
  const named = pcrs.has(16) && equal(pcrs.get(16), await sha384(ZEROS, shown));
  demand(named, "compose-hash-mismatch", "PCR16 is of another deployment document");
  demand(document.userData?.length === 64, "report-data-mismatch", "user data is not report data");
  const composeHash = hex(shown);
  return {
    document,
    simulated: Boolean(root),
    reportData: document.userData,
    composeHash,
    appId: composeHash.slice(0, 40),
    keyProvider: "",
  };
}

/** The rules of a policy for an enclave whose document verified. */
function appraise({ document }, rules) {
  const { pcrs, parent } = document;
  const value = (index) => (pcrs.has(index) ? hex(pcrs.get(index)) : null);
  const image = (one) => [0, 1, 2].every((index) => one[`pcr${index}`] === value(index));
  demand(rules.images === "any" || rules.images.some(image), "measurement-mismatch", "another image");
  const signer = rules.signers === "any" || rules.signers.includes(value(8));
  demand(signer, "measurement-mismatch", "an image of another signer");
  const instance = pcrs.has(4) && !equal(pcrs.get(4), ZEROS) && rules.parents.includes(parent);
  demand(rules.parents === "any" || instance, "platform-mismatch", "another parent instance");
  const role = rules.iam_roles === "any" || rules.iam_roles.includes(value(3));
  demand(role, "platform-mismatch", "another role of the parent");
}

return { NITRO_TPM, FORM, RULES, parseDocument, verifyDocument, verify, appraise };
})();
const module_tpm = (() => {
// Quotes of a TPM 2.0 under Google's chain (spec/evidence-tpm.md).

const {
  Refusal,
  concat,
  demand,
  ecdsa,
  equal,
  fromBase64,
  fromHex,
  hex,
  rsaPkcs1,
  sha256,
  sha384,
  text,
  u16be,
  u32be,
} = module_bytes;
const shape = module_shape;
const x509 = module_x509;

const { either, encoded, integer, list, record } = shape;
const GOOGLE_ROOT = "594759594b9b61524f6c8ef668f7177f7b9066bc0674f2f49fe9e052be78beb2";
const MACHINE = "1.3.6.1.4.1.11129.2.1.21";
const [RSA_SHA256, ECDSA_SHA256] = ["1.2.840.113549.1.1.11", "1.2.840.10045.4.3.2"];
const REGISTERS = 24;
const NAMES = { 11: 32, 12: 48, 13: 64 };
const BANKS = { 11: { name: "sha256", size: 32 }, 12: { name: "sha384", size: 48 } };
const HASHES = { sha256, sha384 };

const digest = either(shape.hex64, shape.hex96);
const index = integer(0, REGISTERS - 1);
const ascending = (registers) => registers.every((one, i) => i === 0 || registers[i - 1].index < one.index);
const QUOTED = {
  message: encoded(1024),
  signature: encoded(518),
  registers: list(record({ index, value: digest }), { min: 1, max: REGISTERS }),
  events: list(record({ index, digest }), { max: 1024 }),
};
const CHAIN = { certificates: list(encoded(4096), { min: 1, max: 4 }) };
const SHOWN = record({ ...QUOTED, ...CHAIN });
const whole = ({ registers }) =>
  ascending(registers) && registers.length === REGISTERS && registers.every(({ value }) => value.length === 64);

/** What a guest shows of its vTPM. */
const FORM = (value) => SHOWN(value) && ascending(value.registers);

/** The same with all registers of the SHA-256 bank. */
const WHOLE_SHOWN_FORM = (value) => SHOWN(value) && whole(value);

const ALONE = record(QUOTED);

/** The same where something else vouches for the key. */
const WHOLE_FORM = (value) => ALONE(value) && whole(value);

const form = (condition, message) => demand(condition, "evidence-malformed", `TPM quote: ${message}`);
const chained = (condition, message) => demand(condition, "certificate-chain-invalid", message);

class Octets {
  constructor(bytes) {
    this.bytes = bytes;
    this.at = 0;
  }

  take(size) {
    form(this.at + size <= this.bytes.length, "truncated");
    this.at += size;
    return this.bytes.subarray(this.at - size, this.at);
  }

  u8() {
    return this.take(1)[0];
  }

  u16() {
    return u16be(this.take(2), 0);
  }

  u32() {
    return u32be(this.take(4), 0);
  }

  sized(most) {
    const size = this.u16();
    form(size <= most, "a field is too long");
    return this.take(size);
  }

  finish() {
    form(this.at === this.bytes.length, "bytes follow it");
  }
}

/** The fields of a `TPMS_ATTEST`, before anything of it is verified. */
function parseQuote(raw) {
  form(raw.length <= 1024, "too long");
  const reader = new Octets(raw);
  form(reader.u32() === 0xff544347 && reader.u16() === 0x8018, "no quote that a TPM made");
  const signer = reader.sized(66);
  form(signer.length === 0 || NAMES[u16be(signer, 0)] === signer.length - 2, "the name of its key");
  const qualifying = reader.sized(64);
  reader.take(16);
  form(reader.u8() <= 1, "the state of its clock");
  reader.take(8);
  form(reader.u32() === 1, "registers of more or fewer banks than one");
  const bank = BANKS[reader.u16()];
  form(bank, "another bank");
  form(reader.u8() === 3, "a selection of another length");
  const [low, middle, high] = reader.take(3);
  const bits = low | (middle << 8) | (high << 16);
  const value = reader.sized(64);
  form(bits !== 0 && value.length === 32, "nothing is selected, or another digest");
  reader.finish();
  const selection = [...Array(REGISTERS).keys()].filter((one) => (bits >> one) & 1);
  return { raw, qualifying, bank, selection, digest: value };
}

function natural(element) {
  const { tag, content } = element ?? {};
  const sound = tag === 2 && content.length >= 1 && content.length <= 9 && !(content[0] & 0x80);
  chained(sound && !(content.length > 1 && content[0] === 0 && content[1] < 0x80), "no number");
  return BigInt(`0x${hex(content)}`).toString();
}

function named(element) {
  const { tag, content } = element ?? {};
  const printable = (byte) => byte > 0x20 && byte < 0x7f;
  const sound = tag === 0x0c && content.length >= 1 && content.length <= 128 && content.every(printable);
  chained(sound, "a name that is not of printable ASCII");
  return text(content);
}

function isProduction(element) {
  const inner = x509.items(element, 0xa0);
  chained(inner.length === 1, "properties of another form");
  let production = false;
  let before = 0;
  for (const { tag, content } of x509.items(inner[0])) {
    chained(tag > before, "properties are not in order");
    before = tag;
    if (tag === 0xa0) natural(x509.der(content));
    if (tag === 0xa1) {
      const truth = x509.der(content);
      const sound = truth.tag === 1 && truth.content.length === 1 && [0, 0xff].includes(truth.content[0]);
      chained(sound, "a truth value that is neither");
      production = truth.content[0] === 0xff;
    }
  }
  return production;
}

function machineOf(leaf) {
  const found = leaf.extensions.get(MACHINE);
  chained(found, "the attestation key names no machine");
  const fields = x509.items(x509.der(found.value));
  chained(fields.length === 5 || fields.length === 6, "a machine's name of another form");
  const [zone, projectNumber, project, instanceId, instance, properties] = fields;
  natural(projectNumber);
  named(instance);
  return {
    zone: named(zone),
    project: named(project),
    instance: natural(instanceId),
    production: properties !== undefined && isProduction(properties),
  };
}

async function isIssued(below, above, simulated) {
  if (!equal(above.subject, below.issuer)) return false;
  if (below.algorithm === RSA_SHA256) {
    if (above.rsaBits < 2048 && !simulated) return false;
    return above.rsaBits > 0 && rsaPkcs1(above.info, below.signature, below.signed);
  }
  if (!simulated || below.algorithm !== ECDSA_SHA256) return false;
  return x509.signedBy(above, "SHA-256", below.signature, below.signed);
}

async function checkChain(path, now, simulated) {
  const known = ["2.5.29.19", "2.5.29.15"];
  for (const [place, one] of path.entries()) {
    for (const [name, { critical }] of one.extensions) {
      chained(!critical || known.includes(name), "an unknown critical extension");
    }
    chained(one.extensions.has("2.5.29.19"), "no basic constraints");
    const { authority, depth, certifies, signs } = x509.powers(one);
    chained(certifies !== null, "no key usage");
    if (place === 0) {
      chained(!authority && !certifies && signs, "the attestation key is an authority's, or may not sign");
      continue;
    }
    chained(authority && certifies && depth >= place - 1, "an issuer may not sign certificates");
    chained(await isIssued(path[place - 1], one, simulated), "a certificate was issued by another");
  }
  for (const one of path) chained(one.start <= now && now <= one.end, "not valid at that time");
}

/** The attestation key and its machine, of certificates with the key's own first. */
async function verifyKey(certificates, root, now) {
  chained(certificates.length >= 2 && certificates.every((one) => one.length <= 4096), "a chain of another length");
  const last = certificates.at(-1);
  if (root) {
    demand(equal(last, root), "quote-root-untrusted", "another simulator's root");
  } else if (hex(await sha256(last)) !== GOOGLE_ROOT) {
    demand(!x509.callsItselfSimulated(last), "simulated-evidence", "a simulator where hardware is asked for");
    throw new Refusal("quote-root-untrusted", "not Google's root of vTPM keys");
  }
  try {
    const path = certificates.map(x509.certificate);
    await checkChain(path, now, Boolean(root));
    const machine = machineOf(path[0]);
    demand(machine.production, "debug-guest", "the attestation key was not made for production");
    return { key: path[0], machine };
  } catch (error) {
    if (!(error instanceof x509.BadDer || error instanceof TypeError)) throw error;
    throw new Refusal("certificate-chain-invalid", error.message);
  }
}

const RSA_EXPONENT = "010001";

function keyKind(key) {
  if (key.curve === "P-256") return "ecdsa";
  const fits = key.rsaBits >= 2048 && key.rsaBits <= 4096 && key.rsaExponent === RSA_EXPONENT;
  demand(fits, "quote-invalid", "the attestation key is of another kind");
  return "rsassa";
}

async function checkSignature(quote, raw, key) {
  const kind = keyKind(key);
  const reader = new Octets(raw);
  form(raw.length <= 518, "signature is too long");
  const scheme = { 0x14: "rsassa", 0x18: "ecdsa" }[reader.u16()];
  form(scheme && reader.u16() === 0x0b, "another kind of signature");
  const parts = [reader.sized(518)];
  if (scheme === "ecdsa") parts.push(reader.sized(518));
  reader.finish();
  let holds = false;
  if (scheme === "ecdsa") {
    const sound = (part) => part.length <= 32 && part.some((byte) => byte !== 0);
    form(parts.every(sound), "no two numbers of a signature");
    const padded = parts.map((part) => concat(new Uint8Array(32 - part.length), part));
    holds = kind === scheme && (await ecdsa("P-256", "SHA-256", key.point, concat(...padded), quote.raw));
  } else {
    holds = kind === scheme && (await rsaPkcs1(key.info, parts[0], quote.raw));
  }
  demand(holds, "quote-invalid", "the attestation key did not sign the TPM quote");
}

/** A register that was extended with each digest in turn. */
async function replayed(bank, digests) {
  let register = new Uint8Array(bank.size);
  for (const one of digests) register = await HASHES[bank.name](register, one);
  return hex(register);
}

async function checkEvents(quote, values, events) {
  const size = values.values().next().value.length;
  form(events.every((event) => event.digest.length === size), "an event of another bank");
  const indexes = [...new Set(events.map((event) => event.index))].sort((a, b) => a - b);
  for (const one of indexes) {
    const digests = events.filter((event) => event.index === one).map((event) => fromHex(event.digest));
    const holds = values.get(one) === (await replayed(quote.bank, digests));
    demand(holds, "event-log-mismatch", `events do not replay to PCR ${one} of the vTPM`);
  }
}

function element(tag, ...parts) {
  const content = concat(...parts);
  const size = content.length;
  const length = size < 0x80 ? [size] : size < 0x100 ? [0x81, size] : [0x82, size >> 8, size & 0xff];
  return concat(new Uint8Array([tag, ...length]), content);
}

function unsigned(bytes) {
  const first = bytes.findIndex((byte) => byte !== 0);
  const found = first < 0 ? new Uint8Array(1) : bytes.subarray(first);
  return found[0] & 0x80 ? concat(new Uint8Array(1), found) : found;
}

const RSA_ENCRYPTION = fromHex("06092a864886f70d0101010500");

/** An attestation key (RSA) of its two numbers, big-endian. */
function rsaKey(exponent, modulus) {
  const [small, large] = [unsigned(exponent), unsigned(modulus)];
  const bare = large[0] === 0 ? large.subarray(1) : large;
  const key = element(0x30, element(2, large), element(2, small));
  const found = {
    rsaBits: bare.length === 0 ? 0 : bare.length * 8 - Math.clz32(bare[0]) + 24,
    rsaExponent: hex(small),
    info: element(0x30, element(0x30, RSA_ENCRYPTION), element(3, new Uint8Array(1), key)),
  };
  keyKind(found);
  return found;
}

/** A quote that a key signed, with its registers (index to hex); something else vouches for the key. */
async function verifyBoot(shown, key) {
  return checkBoot(parseQuote(fromBase64(shown.message)), shown, key);
}

async function checkBoot(quote, shown, key) {
  await checkSignature(quote, fromBase64(shown.signature), key);
  const registers = new Map(shown.registers.map((one) => [one.index, one.value]));
  form([...registers.keys()].join() === quote.selection.join(), "other registers than the quoted ones");
  form([...registers.values()].every((one) => one.length === 2 * quote.bank.size), "a register of another bank");
  const found = await sha256(concat(...[...registers.values()].map(fromHex)));
  demand(equal(found, quote.digest), "measurement-mismatch", "other registers than the quoted ones");
  await checkEvents(quote, registers, shown.events);
  return { quote, registers };
}

/** Facts that Google signed about a vTPM: `quote`, `registers` (index to hex) and `machine`. */
async function verifyTpm(shown, root, now) {
  const quote = parseQuote(fromBase64(shown.message));
  const { key, machine } = await verifyKey(shown.certificates.map(fromBase64), root, now);
  return { ...(await checkBoot(quote, shown, key)), machine };
}
return { FORM, WHOLE_SHOWN_FORM, WHOLE_FORM, parseQuote, replayed, rsaKey, verifyBoot, verifyTpm };
})();
const module_rented = (() => {
// dstack guests on rented machines: Google Cloud with TDX, EC2 with a NitroTPM (spec/evidence-tpm.md).

const { concat, demand, equal, fromBase64, hex, sha256, sha384, utf8 } = module_bytes;
const { configIds, measuredGuest, runtimePreimage } = module_dstack;
const nitro = module_nitro;
const shape = module_shape;
const tpm = module_tpm;

const { either, integer, list, literal, match, record } = shape;
const HASHES = { sha256, sha384 };
const SHA384 = { name: "sha384", size: 48 };
const EVENT_PCR = 14;
const ZEROS = new Uint8Array(48);
const any = literal("any");
const extended = (form) => (value) => form(value) && !/^0+$/.test(value);
const provider = match(/^(?:[0-9a-f]{2}){16,1024}$/);
const replays = (condition, message) => demand(condition, "event-log-mismatch", message);

const names = either(any, list(match(/^[a-z0-9][a-z0-9.:-]{0,127}$/), { max: 1024 }));
const numbers = either(any, list(match(/^(?:0|[1-9][0-9]{0,19})$/), { max: 1024 }));
const pcr = extended(shape.hex64);

/** Which machines of Google Cloud a policy accepts. */
const PLACE_RULES = { projects: names, zones: names, instances: numbers };

/** Fields that a policy for Google Cloud has besides those of dstack. */
const GOOGLE_RULES = {
  boots: either(any, list(record({ pcr0: pcr, pcr2: pcr }), { max: 1024 })),
  ...PLACE_RULES,
};

const register = extended(shape.hex96);

/** A policy's rules for EC2 with a NitroTPM. */
const NITRO_TPM_RULES = record({
  tee: literal("dstack-aws-nitro-tpm"),
  boots: list(record({ pcr4: register, pcr7: register, pcr12: shape.hex96 }), { max: 1024 }),
  config_id: literal("require", "any"),
  key_provider: either(any, provider),
  instances: either(any, list(match(/^i-[0-9a-f]{8,32}$/), { max: 4096 })),
  max_age_s: integer(1, 10800),
});

/** The register that the run-time events of a log extended, hex. */
async function eventRegister(log, bank) {
  const digests = [];
  for (const entry of log.filter((one) => one.imr === 3)) {
    digests.push(await HASHES[bank.name](runtimePreimage(entry)));
  }
  return tpm.replayed(bank, digests);
}

/** That a vTPM's quote is of this TDX quote and log. */
async function checkGoogle(cpu, root, now) {
  const found = await tpm.verifyTpm(cpu.tpm, root, now);
  return {
    found,
    async bound() {
      const expected = await sha256(fromBase64(cpu.quote));
      demand(equal(found.quote.qualifying, expected), "report-data-mismatch", "the vTPM signed for another quote");
      const register = await eventRegister(cpu.event_log, found.quote.bank);
      replays(found.registers.get(EVENT_PCR) === register, "event log does not replay to PCR 14 of the vTPM");
    },
  };
}

/** The rules of a policy for a vTPM whose quote verified. */
function appraiseGoogle({ quote, registers, machine }, rules) {
  const boot = (one) => one.pcr0 === registers.get(0) && one.pcr2 === registers.get(2);
  const booted = rules.boots === "any" || (quote.bank.name === "sha256" && rules.boots.some(boot));
  demand(booted, "measurement-mismatch", "another firmware or image was booted");
  appraisePlace(machine, rules);
}

/** The rules of a policy for where a vTPM's machine is. */
function appraisePlace(machine, rules) {
  for (const [allowed, got] of [
    [rules.projects, machine.project],
    [rules.zones, machine.zone],
    [rules.instances, machine.instance],
  ]) {
    demand(allowed === "any" || allowed.includes(got), "platform-mismatch", `another machine: ${got}`);
  }
}

/** Facts that AWS signed about a dstack guest on EC2. */
async function verifyNitroTpm(cpu, { root, now }) {
  const document = await nitro.verifyDocument(fromBase64(cpu.document), root, now, nitro.NITRO_TPM);
  const only = cpu.event_log.every((entry) => entry.imr === 3);
  const quoted = document.pcrs.has(EVENT_PCR) ? hex(document.pcrs.get(EVENT_PCR)) : null;
  const found = await eventRegister(cpu.event_log, SHA384);
  replays(only && quoted === found, "event log does not replay to PCR 14 of the NitroTPM");
  const measured = measuredGuest(cpu.event_log);
  const composeHash = hex(await sha256(utf8(cpu.app_compose)));
  demand(measured.composeHash === composeHash, "compose-hash-mismatch", "another deployment document");
  demand(document.userData?.length === 64, "report-data-mismatch", "user data is not report data");
  return {
    document,
    measured,
    simulated: Boolean(root),
    reportData: document.userData,
    composeHash,
    appId: measured.appId,
    keyProvider: measured.provider.id,
    configured: await configured(document, measured),
  };
}

/** Whether PCR 8 is unset, or commits to what was measured, or does neither (null). */
async function configured(document, measured) {
  const found = document.pcrs.get(8) ?? ZEROS;
  if (equal(found, ZEROS)) return "unset";
  for (const id of configIds(measured)) {
    if (equal(found, await sha384(ZEROS, concat(id, new Uint8Array(48 - id.length))))) return "set";
  }
  return null;
}

/** The rules of a policy for a NitroTPM whose document verified. */
function appraiseNitroTpm({ document, measured, configured: state }, rules, now) {
  const at = document.timestamp / 1000;
  const fresh = now - rules.max_age_s <= at && at <= now + 60;
  demand(fresh, "evidence-stale", "the document was made at another time");
  const value = (index) => (document.pcrs.has(index) ? hex(document.pcrs.get(index)) : null);
  const boot = (one) => [4, 7, 12].every((index) => one[`pcr${index}`] === value(index));
  demand(rules.boots.some(boot), "measurement-mismatch", "another image was booted");
  const committed = state === "set" || (state === "unset" && rules.config_id === "any");
  replays(committed, "PCR 8 commits to other values than the log");
  const named = measured.provider.id || measured.provider.name;
  const known = rules.key_provider === "any" || rules.key_provider === named;
  demand(known, "key-provider-mismatch", "another key provider");
  const instance = rules.instances === "any" || rules.instances.includes(document.parent);
  demand(instance, "platform-mismatch", "another instance");
}
return { PLACE_RULES, GOOGLE_RULES, NITRO_TPM_RULES, checkGoogle, appraiseGoogle, appraisePlace, verifyNitroTpm, appraiseNitroTpm };
})();
const module_snp = (() => {
// The report of AMD SEV-SNP (spec/evidence-snp.md).

const { Refusal, demand, ecdsa, equal, fromBase64, hex, sha256, u32le, utf8 } = module_bytes;
const { Malformed, parseJson } = module_json;
const shape = module_shape;
const x509 = module_x509;

const { either, list, literal, nullable, record } = shape;
const SIGNED = 0x2a0;
const AMD = "1.3.6.1.4.1.3704.1";
const ROOTS = {
  "69d063b45344d26a2e94e1f4210de49ef555308287d4c174445c95639a540bcd": "Milan",
  "4c6598d19c18719c5dfd4a7d335f674e5bfe1d8f800cea2cf270c10d103db2f1": "Genoa",
  "1f084161a44bb6d93778a904877d4819cafa5d05ef4193b2ded9dd9c73dd3f6a": "Turin",
};
const any = literal("any");


/** Fields of evidence that holds a report. */
const REPORT = {
  report: shape.encoded(1184),
  certificates: list(shape.encoded(8192), { min: 3, max: 3 }),
  crl: nullable(shape.encoded(65536)),
  app_compose: shape.compose,
};

/** Evidence of an SEV-SNP guest. */
const FORM = record({ tee: literal("snp"), ...REPORT });

/** Evidence of a dstack guest on SEV-SNP. */
const DSTACK_FORM = record({
  tee: literal("dstack-amd-sev-snp"),
  ...REPORT,
  mr_config: (value) => shape.string(value) && value.length >= 2 && [...value].length <= 65536,
});

const PRODUCTS = ["Genoa", "Turin", "InsecureMilan"];
const FLAGS = {
  smt: 0,
  tsme: 1,
  ecc: 2,
  rapl_disabled: 3,
  ciphertext_hiding: 4,
  alias_check_complete: 5,
  tio: 7,
};
const LEVEL = shape.integer(0, 255);
const LEVELS = { bootloader: LEVEL, tee: LEVEL, snp: LEVEL, microcode: LEVEL };
const UNUSED = { fmc: (value) => value === null };
const FLOOR = {
  Genoa: record(LEVELS, UNUSED),
  InsecureMilan: record(LEVELS, UNUSED),
  Turin: record({ ...LEVELS, fmc: LEVEL }),
};
const filled = (form) => (value) => form(value) && !/^0+$/.test(value);
const RULES_FIELDS = {
  products: list(literal(...PRODUCTS), { min: 1, max: 3 }),
  signing_keys: list(literal("vcek", "vlek"), { min: 1, max: 2 }),
  measurements: either(any, list(shape.hex96, { max: 1024 })),
  minimum_tcb: shape.anyObject,
  mitigations: either(any, shape.anyObject),
  extended_tcb: either(any, list(shape.hex64, { max: 256 })),
  platform_flags: either(any, list(literal(...Object.keys(FLAGS)), { min: 1, max: 7 })),
  chip_ids: either(any, list(filled(shape.match(/^[0-9a-f]{128}$/)), { max: 4096 })),
  vmpl: either(any, shape.integer(0, 3)),
  debug: literal("refuse"),
  migration: literal("refuse"),
  smt: literal("any", "refuse"),
  id_keys: either(any, list(filled(shape.hex96), { max: 1024 })),
  revocation: literal("any", "require"),
};
const namesExactly = (value, names) => Object.keys(value).sort().join() === [...names].sort().join();

/** A policy's rules for guests of another kind that show a report. */
function rulesOf(tee, further) {
  const form = record({ tee: literal(tee), ...RULES_FIELDS, ...further });
  return (value) => form(value) && consistent(value);
}

/** A policy's rules for SEV-SNP guests. */
const RULES = rulesOf("snp");

/** A policy's rules for dstack guests on SEV-SNP. */
const DSTACK_RULES = rulesOf("dstack-amd-sev-snp", {
  key_provider: either(any, shape.match(/^(?:[0-9a-f]{2}){16,1024}$/)),
});

function consistent(value) {
  const { products, minimum_tcb: floors, mitigations } = value;
  return (
    new Set(products).size === products.length &&
    namesExactly(floors, products) &&
    products.every((product) => FLOOR[product](floors[product])) &&
    (mitigations === "any" ||
      Object.keys(mitigations).length === 0 ||
      (namesExactly(mitigations, products) && Object.values(mitigations).every(shape.match(/^[0-9a-f]{16}$/))))
  );
}

const form = (condition, message) => demand(condition, "quote-invalid", message);
const ones = (bytes) => bytes.every((byte) => byte === 0xff);
const zeros = (bytes) => bytes.every((byte) => byte === 0);

/** The fields of a report in its one layout; nothing of it is verified. */
function parseReport(raw) {
  form(raw.length === 1184, "another length than a report");
  const version = u32le(raw, 0);
  form(version >= 2 && version <= 6, "unknown version");
  form(u32le(raw, 0x34) === 1, "unknown algorithm");
  const keyInfo = u32le(raw, 0x48);
  const signer = (keyInfo >> 2) & 7;
  form(signer <= 1, "unknown signing key");
  const vmpl = u32le(raw, 0x30);
  form(vmpl <= 3, "not a report that the guest asked for");
  const policy = u32le(raw, 8);
  form(Boolean(policy & 0x20000), "policy bit 17 is clear");
  form(zeros(raw.subarray(0x330)), "bytes behind the signature");
  const field = (at, size) => raw.subarray(at, at + size);
  return {
    version,
    policy,
    vmpl,
    signer: signer === 0 ? "vcek" : "vlek",
    authorKey: Boolean(keyInfo & 1),
    flags: raw[0x40],
    reportData: field(0x50, 64),
    measurement: hex(field(0x90, 48)),
    hostData: field(0xc0, 32),
    idKey: hex(field(0xe0, 48)),
    authorKeyDigest: hex(field(0x110, 48)),
    migrationAgent: field(0x160, 32),
    tcb: { reported: field(0x180, 8), committed: field(0x1e0, 8), launch: field(0x1f0, 8) },
    cpu: version >= 3 ? { family: raw[0x188], model: raw[0x189] } : null,
    chipId: field(0x1a0, 64),
    mitigations: version >= 5 ? [field(0x1f8, 8), field(0x200, 8)] : null,
    extended: version >= 6 ? [0x220, 0x240, 0x260].map((at) => hex(field(at, 32))) : null,
    signed: raw.subarray(0, SIGNED),
    signature: rawSignature(field(0x2a0, 72), field(0x2e8, 72)),
  };
}

/** `r ‖ s`, big endian, of two little-endian numbers of 72 bytes; null where one is too large. */
function rawSignature(r, s) {
  if (!zeros(r.subarray(48)) || !zeros(s.subarray(48))) return null;
  const result = new Uint8Array(96);
  result.set(r.slice(0, 48).reverse(), 0);
  result.set(s.slice(0, 48).reverse(), 48);
  return result;
}

function levels(bytes, product) {
  if (product === "Turin") {
    const [fmc, bootloader, tee, snp, , , , microcode] = bytes;
    return { fmc, bootloader, tee, snp, microcode };
  }
  const [bootloader, tee, , , , , snp, microcode] = bytes;
  return { bootloader, tee, snp, microcode };
}

async function trustedRoot(found, simulatorRoot) {
  if (simulatorRoot) {
    demand(equal(found, simulatorRoot), "quote-root-untrusted", "another simulator's root");
  } else if (!Object.hasOwn(ROOTS, hex(await sha256(found)))) {
    demand(!x509.callsItselfSimulated(found), "simulated-evidence", "a simulator where hardware is asked for");
    throw new Refusal("quote-root-untrusted", "not a root of AMD");
  }
}

const chain = (condition, message) => demand(condition, "certificate-chain-invalid", message);
const KNOWN_CRITICAL = ["2.5.29.19", "2.5.29.15"];

async function checkChain(certificates, now, simulated) {
  const [leaf, issuer, root] = certificates;
  for (const one of certificates) {
    for (const [name, { critical }] of one.extensions) {
      chain(!critical || KNOWN_CRITICAL.includes(name), "an unknown critical extension");
    }
    chain(one.start <= now && now <= one.end, "a certificate is not valid at that time");
  }
  for (const authority of [issuer, root]) {
    const { authority: isOne, certifies } = x509.powers(authority);
    chain(isOne && certifies !== false, "an issuer may not sign certificates");
    chain(simulated || authority.rsaBits === 4096, "an issuer's key is not RSA-4096");
  }
  chain(!x509.powers(leaf).authority && leaf.curve === "P-384", "the leaf is an authority, or not on P-384");
  for (const [one, by] of [[root, root], [issuer, root], [leaf, issuer]]) {
    chain(equal(one.issuer, by.subject), "issued by another");
    chain(simulated || one.hash === "PSS", "not signed with RSASSA-PSS");
    chain(await x509.signedBy(by, one.hash, one.signature, one.signed), "a signature does not hold");
  }
}

/** Kind, product, levels and chip of a leaf (VCEK or VLEK). */
function chipKey([leaf, issuer], simulated) {
  const prefix = simulated ? "SIMULATED " : "";
  const named = (one) => {
    const [name, ...more] = one.names;
    chain(more.length === 0 && name?.startsWith(prefix), "another name");
    return name.slice(prefix.length);
  };
  const [, lent, product] = /^SEV-(VLEK-)?(Milan|Genoa|Turin)$/.exec(named(issuer)) ?? [];
  const kind = lent ? "vlek" : "vcek";
  chain(product && named(leaf) === (lent ? "SEV-VLEK" : "SEV-VCEK"), "another kind of key");
  const value = (suffix) => leaf.extensions.get(`${AMD}.${suffix}`)?.value;
  const written = value("2") ? new TextDecoder().decode(x509.der(value("2")).content) : "";
  chain(written.startsWith(product), "a key of another product");
  const names = { bootloader: "3.1", tee: "3.2", snp: "3.3", microcode: "3.8" };
  if (product === "Turin") names.fmc = "3.9";
  const found = {};
  for (const [name, suffix] of Object.entries(names)) {
    chain(value(suffix), `no level of ${name}`);
    found[name] = x509.small(x509.der(value(suffix)));
  }
  return { kind, product, levels: found, chip: kind === "vcek" ? chipOf(value("4"), product) : noChip(value("4")) };
}

function chipOf(bytes, product) {
  const size = product === "Turin" ? 8 : 64;
  const bare = bytes?.length === size + 2 && bytes[0] === 4 && bytes[1] === size ? bytes.subarray(2) : bytes;
  chain(bare?.length === size, "no chip id");
  return bare;
}

function noChip(bytes) {
  chain(bytes === undefined, "a lent key that names a chip");
  return null;
}

function productOf({ family, model }) {
  if (family === 0x19) {
    if (model <= 0x0f) return "Milan";
    return (model >= 0x10 && model <= 0x1f) || (model >= 0xa0 && model <= 0xaf) ? "Genoa" : null;
  }
  return family === 0x1a && model <= 0x1f ? "Turin" : null;
}

function sameMachine(report, key) {
  const same = (condition, message) => demand(condition, "collateral-mismatch", message);
  chain(report.signer === key.kind, "the report names another kind of key");
  same(report.cpu === null || productOf(report.cpu) === key.product, "a key of another product");
  const reported = levels(report.tcb.reported, key.product);
  const equalLevels = Object.keys(reported).every((name) => reported[name] === key.levels[name]);
  same(equalLevels, "the key is of another TCB");
  if (key.chip === null || zeros(report.chipId)) return;
  const own = report.chipId.subarray(0, key.chip.length);
  same(equal(own, key.chip) && zeros(report.chipId.subarray(key.chip.length)), "the key is of another chip");
}

async function notRevoked(crl, certificates, now) {
  const unknown = (condition, message) => demand(condition, "revocation-unknown", message);
  unknown(crl !== null, "no revocation list");
  let list;
  try {
    list = x509.revocationList(fromBase64(crl));
  } catch (error) {
    if (!(error instanceof x509.BadDer || error instanceof TypeError)) throw error;
    unknown(false, "the revocation list cannot be read");
  }
  const root = certificates[2];
  const signed =
    equal(list.issuer, root.subject) && (await x509.signedBy(root, list.hash, list.signature, list.signed));
  unknown(signed && list.start <= now && now <= list.end, "the revocation list is another's, or not of this time");
  const revoked = certificates.some(({ serial }) => !/^0*$/.test(serial) && list.revoked.has(serial));
  demand(!revoked, "certificate-revoked", "the vendor revoked a certificate of the chain");
}

/** A report that a chip of AMD signed. */
async function signedReport(cpu, root, now) {
  const report = parseReport(fromBase64(cpu.report));
  const raw = cpu.certificates.map(fromBase64);
  chain(raw.every((one) => one.length <= 4096), "a certificate is too large");
  await trustedRoot(raw[2], root);
  let certificates;
  let key;
  try {
    certificates = raw.map(x509.certificate);
    await checkChain(certificates, now, Boolean(root));
    key = chipKey(certificates, Boolean(root));
  } catch (error) {
    if (!(error instanceof x509.BadDer || error instanceof TypeError)) throw error;
    throw new Refusal("certificate-chain-invalid", error.message);
  }
  sameMachine(report, key);
  const { signature } = report;
  const holds =
    signature !== null && (await ecdsa("P-384", "SHA-384", certificates[0].point, signature, report.signed));
  demand(holds, "quote-invalid", "the chip's key did not sign the report");
  return {
    report,
    certificates,
    product: key.product === "Milan" ? "InsecureMilan" : key.product,
    simulated: Boolean(root),
    reportData: report.reportData,
  };
}

/** That no certificate of a report's chain was revoked, where a policy asks for that. */
async function checkRevocation(cpu, signed, rules, now) {
  if (rules.revocation === "require") await notRevoked(cpu.crl, signed.certificates, now);
}

/** Facts that a chip of AMD signed about a guest. */
async function verify(cpu, { rules, root, now }) {
  const signed = await signedReport(cpu, root, now);
  const shown = await sha256(utf8(cpu.app_compose));
  demand(equal(shown, signed.report.hostData), "compose-hash-mismatch", "another deployment document");
  await checkRevocation(cpu, signed, rules, now);
  const composeHash = hex(shown);
  return { ...signed, composeHash, appId: composeHash.slice(0, 40), keyProvider: "" };
}

const octets = shape.match(/^(?:[0-9a-f]{2}){0,2048}$/);
const LAUNCH_CONFIG = record(
  { compose_hash: shape.hex64, key_provider: literal("none", "local", "kms", "tpm") },
  {
    version: literal(3),
    app_id: nullable(shape.hex40),
    gpu_policy_hash: nullable(shape.hex64),
    key_provider_id: nullable(octets),
    instance_id: nullable(shape.hex40),
    init_script_hashes: nullable(list(shape.hex64, { max: 256 })),
  },
);

/** The text that HOST_DATA of a dstack guest commits to (spec/evidence-tdx.md). */
async function launchConfig(text, hostData) {
  const bytes = utf8(text);
  const expected = await sha256(utf8("dstack-mr-config-v3:\0"), bytes);
  demand(equal(expected, hostData), "compose-hash-mismatch", "HOST_DATA commits to another launch configuration");
  let config = null;
  try {
    config = parseJson(bytes, { depth: 4, size: 65536 });
  } catch (error) {
    if (!(error instanceof Malformed)) throw error;
  }
  demand(LAUNCH_CONFIG(config), "evidence-malformed", "the launch configuration has another form");
  return config;
}

/** Facts that a chip of AMD signed about a dstack guest. */
async function verifyDstack(cpu, { rules, root, now }) {
  const signed = await signedReport(cpu, root, now);
  const config = await launchConfig(cpu.mr_config, signed.report.hostData);
  const composeHash = hex(await sha256(utf8(cpu.app_compose)));
  demand(config.compose_hash === composeHash, "compose-hash-mismatch", "another deployment document");
  await checkRevocation(cpu, signed, rules, now);
  const keyProvider = config.key_provider_id || "";
  const provider = keyProvider || config.key_provider;
  return { ...signed, composeHash, appId: config.app_id || composeHash.slice(0, 40), keyProvider, provider };
}

/** The rules of a policy for a dstack guest whose report verified. */
function appraiseDstack(facts, rules) {
  appraise(facts, rules);
  const known = rules.key_provider === "any" || rules.key_provider === facts.provider;
  demand(known, "key-provider-mismatch", "another key provider");
}

const within = (all, least) => Object.keys(all).every((name) => all[name] >= least[name]);

/** The rules of a policy for a guest whose report verified. */
function appraise({ report, product }, rules) {
  const platform = (condition, message) => demand(condition, "platform-mismatch", message);
  const level = (condition, message) => demand(condition, "tcb-status-refused", message);
  platform(rules.products.includes(product), `the product is ${product}`);
  platform(rules.signing_keys.includes(report.signer), "another kind of key");
  const image = rules.measurements === "any" || rules.measurements.includes(report.measurement);
  demand(image, "measurement-mismatch", "another launch measurement");
  const tcb = {};
  for (const name of ["reported", "committed", "launch"]) tcb[name] = levels(report.tcb[name], product);
  const floor = rules.minimum_tcb[product];
  level(within(tcb.reported, floor) && within(tcb.launch, floor), "TCB is below the floor");
  level(within(tcb.committed, tcb.reported), "the reported TCB is not committed");
  if (rules.mitigations !== "any") {
    const asked = rules.mitigations[product];
    level(asked !== undefined && report.mitigations, "mitigations are not named, or not reported");
    const needed = BigInt(`0x${asked}`);
    const bits = (bytes) => BigInt(`0x${hex(bytes.slice().reverse())}`);
    const set = report.mitigations.every((bytes) => (bits(bytes) & needed) === needed);
    level(set, "a mitigation is missing");
  }
  if (rules.extended_tcb !== "any") {
    level(report.extended?.every((value) => rules.extended_tcb.includes(value)), "another extended TCB");
  }
  if (rules.platform_flags !== "any") {
    platform(rules.platform_flags.every((name) => report.flags & (1 << FLAGS[name])), "a flag is not set");
  }
  const chip = hex(report.chipId);
  platform(rules.chip_ids === "any" || (!/^0+$/.test(chip) && rules.chip_ids.includes(chip)), "another chip");
  platform(rules.vmpl === "any" || rules.vmpl === report.vmpl, "another VMPL");
  demand(!(report.policy & 0x80000), "debug-guest", "guest runs in debug mode");
  const agent = Boolean(report.policy & 0x40000) || !ones(report.migrationAgent);
  demand(!agent, "migratable-guest", "guest has a migration agent");
  platform(rules.smt === "any" || !(report.policy & 0x10000), "guest allows SMT");
  const keys = report.authorKey ? [report.idKey, report.authorKeyDigest] : [report.idKey];
  const known = rules.id_keys === "any" || keys.some((one) => rules.id_keys.includes(one));
  demand(known, "measurement-mismatch", "another ID key");
}
return { REPORT, FORM, DSTACK_FORM, rulesOf, RULES, DSTACK_RULES, parseReport, signedReport, checkRevocation, verify, verifyDstack, appraiseDstack, appraise };
})();
const module_cloudtpm = (() => {
// Confidential machines of Azure and Google, whose cloud's TPM says what booted (spec/evidence-tpm.md).

const { concat, demand, equal, fromBase64, fromHex, hex, sha256, utf8 } = module_bytes;
const { Malformed, parseJson } = module_json;
const { PLACE_RULES, appraisePlace } = module_rented;
const shape = module_shape;
const snp = module_snp;
const tpm = module_tpm;

const { either, list, literal, match, record } = shape;
const any = literal("any");
const DOCUMENT_PCR = 14;
const BOOT = [4, 7, 8, 9, 11, 12];

const reportData = match(/^[0-9a-f]{128}$/);

const AZURE = {
  runtime: match(/^[\t\n\r -~]{2,16384}$/),
  tpm: tpm.WHOLE_FORM,
  report_data: reportData,
};
const AZURE_SNP_FORM = record({ tee: literal("azure-snp"), ...snp.REPORT, ...AZURE });
const GCP_SNP_FORM = record({ tee: literal("gcp-snp"), ...snp.REPORT, tpm: tpm.WHOLE_SHOWN_FORM });

const TEST_VTPM_FORM = record({
  tee: literal("test-vtpm"),
  app_compose: shape.compose,
  tpm: tpm.WHOLE_SHOWN_FORM,
  report_data: reportData,
});

/** Evidence of an Azure guest with TDX, of the form of a quote. */
const azureTdxForm = (quote) =>
  record({ tee: literal("azure-tdx"), quote, app_compose: shape.compose, ...AZURE });

const extended = (value) => shape.hex64(value) && !/^0+$/.test(value);
const BOOT_RULE = {
  pcr4: extended,
  pcr7: extended,
  pcr8: shape.hex64,
  pcr9: shape.hex64,
  pcr11: shape.hex64,
  pcr12: shape.hex64,
};
/** Fields that a policy for Azure has besides those of the processor. */
const AZURE_RULES = {
  boots: list(record(BOOT_RULE), { max: 1024 }),
  vm_ids: either(any, list(match(/^[0-9A-Za-z-]{1,64}$/), { max: 4096 })),
};
const AZURE_SNP_RULES = snp.rulesOf("azure-snp", AZURE_RULES);
const GCP_SNP_RULES = snp.rulesOf("gcp-snp", {
  boots: list(record({ pcr0: extended, ...BOOT_RULE }), { max: 1024 }),
  ...PLACE_RULES,
});

const TEST_VTPM_RULES = record({
  tee: literal("test-vtpm"),
  boots: list(record(BOOT_RULE), { max: 1024 }),
});

const malformed = (condition, message) => demand(condition, "evidence-malformed", `runtime data: ${message}`);
const isRecord = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

/** What the paravisor says of a machine: `bytes`, `key` and `vmId`; nothing of it is verified. */
function parseRuntime(text) {
  const bytes = utf8(text);
  let value = null;
  try {
    value = parseJson(bytes, { depth: 8, size: 16384 });
  } catch (error) {
    if (!(error instanceof Malformed)) throw error;
    malformed(false, "no JSON");
  }
  malformed(isRecord(value), "no object");
  const { keys, "vm-configuration": configuration } = value;
  malformed(Array.isArray(keys) && isRecord(configuration), "no keys or no configuration");
  const { "secure-boot": secureBoot, vmUniqueId: vmId } = configuration;
  const named = typeof secureBoot === "boolean" && match(/^[0-9A-Za-z-]{0,64}$/)(vmId);
  malformed(named, "they do not say what was booted");
  const found = keys.filter((key) => isRecord(key) && key.kid === "HCLAkPub");
  malformed(found.length === 1 && found[0].kty === "RSA", "not exactly one attestation key");
  return { bytes, vmId, key: tpm.rsaKey(number(found[0].e), number(found[0].n)) };
}

function number(value) {
  const written = match(/^[A-Za-z0-9_-]{1,1024}$/)(value);
  const text = written ? value.replaceAll("-", "+").replaceAll("_", "/") : "";
  const found = fromBase64(text + "=".repeat((4 - (text.length % 4)) % 4));
  demand(written && found !== null, "quote-invalid", "the attestation key is no RSA key");
  return found;
}

async function bound(cpu, quoted) {
  const composeHash = hex(await sha256(utf8(cpu.app_compose)));
  const register = hex(await sha256(new Uint8Array(32), fromHex(composeHash)));
  const measured = quoted.registers.get(DOCUMENT_PCR) === register;
  demand(measured, "compose-hash-mismatch", "another deployment document");
  return { composeHash, appId: composeHash.slice(0, 40), keyProvider: "" };
}

/** What Azure's TPM signed, under the key that a processor signed for with its report data. */
async function verifyAzure(cpu, signed) {
  const runtime = parseRuntime(cpu.runtime);
  const committed = concat(await sha256(runtime.bytes), new Uint8Array(32));
  demand(equal(committed, signed), "report-data-mismatch", "the processor signed for other runtime data");
  const quoted = await tpm.verifyBoot(cpu.tpm, runtime.key);
  const reportData = fromHex(cpu.report_data);
  const asked = equal(await sha256(reportData), quoted.quote.qualifying);
  demand(asked, "report-data-mismatch", "the TPM signed for another conversation");
  return { ...(await bound(cpu, quoted)), quoted, reportData, vmId: runtime.vmId };
}

/** Facts about an Azure guest with SEV-SNP. */
async function verifyAzureSnp(cpu, { rules, root, now }) {
  const signed = await snp.signedReport(cpu, root, now);
  const facts = await verifyAzure(cpu, signed.reportData);
  await snp.checkRevocation(cpu, signed, rules, now);
  return { ...signed, ...facts };
}

/** Facts about a Google guest with SEV-SNP. */
async function verifyGcpSnp(cpu, { rules, root, now }) {
  const signed = await snp.signedReport(cpu, root, now);
  const quoted = await tpm.verifyTpm(cpu.tpm, root, now);
  const expected = await sha256(fromBase64(cpu.report));
  demand(equal(quoted.quote.qualifying, expected), "report-data-mismatch", "the vTPM signed for another report");
  const facts = await bound(cpu, quoted);
  await snp.checkRevocation(cpu, signed, rules, now);
  return { ...signed, ...facts, quoted };
}

/** Facts about a machine whose TPM's key a test root certified; never under a root of hardware. */
async function verifyTestVtpm(cpu, { root, now }) {
  demand(root !== null, "simulated-evidence", "evidence under a test root");
  const quoted = await tpm.verifyTpm(cpu.tpm, root, now);
  const reportData = fromHex(cpu.report_data);
  const asked = equal(await sha256(reportData), quoted.quote.qualifying);
  demand(asked, "report-data-mismatch", "the TPM signed for another conversation");
  return { ...(await bound(cpu, quoted)), quoted, reportData, simulated: true };
}

/** The rules of a policy for a machine with a TPM under a test root. */
const appraiseTestVtpm = ({ quoted }, rules) => appraiseBoot(quoted, rules, BOOT);

function appraiseBoot({ registers }, rules, indexes) {
  const boot = (one) => indexes.every((index) => one[`pcr${index}`] === registers.get(index));
  demand(rules.boots.some(boot), "measurement-mismatch", "another image was booted");
}

/** The rules of a policy for what Azure's paravisor and its TPM say. */
function appraiseAzure({ quoted, vmId }, rules) {
  appraiseBoot(quoted, rules, BOOT);
  demand(rules.vm_ids === "any" || rules.vm_ids.includes(vmId), "platform-mismatch", "another virtual machine");
}

/** The rules of a policy for a Google guest with SEV-SNP. */
function appraiseGcpSnp(facts, rules) {
  snp.appraise(facts, rules);
  appraiseBoot(facts.quoted, rules, [0, ...BOOT]);
  appraisePlace(facts.quoted.machine, rules);
}
return { AZURE_SNP_FORM, GCP_SNP_FORM, TEST_VTPM_FORM, azureTdxForm, AZURE_RULES, AZURE_SNP_RULES, GCP_SNP_RULES, TEST_VTPM_RULES, verifyAzure, verifyAzureSnp, verifyGcpSnp, verifyTestVtpm, appraiseTestVtpm, appraiseAzure, appraiseGcpSnp };
})();
const module_spdm = (() => {
// Reports of NVIDIA's GPUs and switches (spec/evidence-nvidia.md, "The report"); no trust yet.

const { concat, demand, digest, equal, fromHex, hex, latin1, u16le } = module_bytes;

const RECORDS_AT = 45;
const RECORD = 55;
const SIGNATURE = 96;
const REQUEST = fromHex("11e001ff");
const RESPONSE = fromHex("1160");
const TEXT = /^[0-9A-Za-z._ -]{0,64}$/;
const VBIOS_TEXT = /^[0-9A-F]{2}(?:\.[0-9A-F]{2}){4}$/;
const NOTHING = new Uint8Array(0);

const form = (condition, message) => demand(condition, "gpu-report-invalid", message);
const u24le = (bytes, at) => u16le(bytes, at) + bytes[at + 2] * 65536;
const filled = (bytes) => bytes.some((byte) => byte !== 0);

/** The fields of one report; its one length is exact. */
async function parseReport(raw) {
  form(raw.length <= 65536 && raw.length >= RECORDS_AT, "report has the wrong length");
  const known = equal(raw.subarray(0, 4), REQUEST) && equal(raw.subarray(37, 39), RESPONSE);
  form(known, "not a signed report of all measurements");
  const recordsEnd = RECORDS_AT + u24le(raw, RECORDS_AT - 3);
  const opaqueAt = recordsEnd + 34;
  form(raw.length >= opaqueAt, "report is truncated");
  const opaqueEnd = opaqueAt + u16le(raw, opaqueAt - 2);
  form(raw.length === opaqueEnd + SIGNATURE, "report is truncated, or bytes follow its signature");
  const measurements = records(raw.subarray(RECORDS_AT, recordsEnd), raw[41]);
  const opaque = fields(raw.subarray(opaqueAt, opaqueEnd));
  const version = small(opaque.get(34) ?? NOTHING);
  form(version <= 1 && (opaque.get(34) ?? NOTHING).length <= 8, "fields of a later version");
  const driver = textOf(opaque, 3);
  const identities = eights(opaque.get(22) ?? NOTHING);
  form(driver !== "" || identities.length <= 1, "a switch names several identities");
  const firmware = opaque.get(20) ?? null;
  form(firmware === null || firmware.length === 48, "firmware id is no SHA-384 digest");
  const gpus = eights(opaque.get(26) ?? NOTHING).slice(0, 8);
  const signed = raw.subarray(0, opaqueEnd);
  return {
    kind: driver === "" ? "switch" : "gpu",
    signed,
    signature: raw.subarray(opaqueEnd),
    identity: await digest(signed),
    nonce: raw.subarray(4, 36),
    measurements,
    driver,
    vbios: vbiosOf(opaque.get(6) ?? NOTHING),
    decoder: switched(opaque.get(11)),
    chipSku: textOf(opaque, 15),
    project: textOf(opaque, 17),
    projectSku: textOf(opaque, 18),
    chip: textOf(opaque, 35),
    firmware,
    protectedPcie: switched(opaque.get(21)),
    // A GPU spells the identities of its switches backwards.
    switches: driver === "" ? [] : identities.filter(filled).map((one) => hex(one.slice().reverse())),
    ownIdentity: driver === "" ? hex(concat(...identities)) : "",
    gpus: driver === "" ? gpus.filter(filled).map(hex) : [],
    flag: flagOf(opaque.get(36), version),
  };
}

function records(data, count) {
  form(count > 0 && data.length === count * RECORD, "records do not fill their length");
  const found = new Map();
  for (let at = 0; at < data.length; at += RECORD) {
    const index = data[at];
    const plain = data[at + 1] === 1 && u16le(data, at + 2) === 51 && u16le(data, at + 5) === 48;
    form(plain && !(data[at + 4] & 0x80), `block ${index} is no SHA-384 digest`);
    form(index > 0 && !found.has(index), `block ${index} occurs twice or counts from zero`);
    found.set(index, hex(data.subarray(at + 7, at + RECORD)));
  }
  return found;
}

function fields(data) {
  const found = new Map();
  for (let at = 0; at < data.length; ) {
    form(data.length - at >= 4, "fields end inside a head");
    const [kind, size] = [u16le(data, at), u16le(data, at + 2)];
    at += 4;
    form(size <= data.length - at && !found.has(kind), `field ${kind} occurs twice or runs past the end`);
    found.set(kind, data.subarray(at, at + size));
    at += size;
  }
  return found;
}

const unpadded = (bytes) => latin1(bytes).replace(/\0+$/, "");

function textOf(opaque, kind) {
  const value = unpadded(opaque.get(kind) ?? NOTHING);
  form(TEXT.test(value), `field ${kind} is no short text`);
  return value;
}

/** GPUs write eight bytes backwards with the last part in the other half, switches text. */
function vbiosOf(value) {
  if (value.length === 8) {
    const digits = hex(value.slice().reverse()).toUpperCase();
    return (digits.slice(8) + digits.slice(6, 8)).match(/../g).join(".");
  }
  const written = unpadded(value).toUpperCase();
  form(VBIOS_TEXT.test(written), "no VBIOS version");
  return written;
}

function switched(value) {
  if (value === undefined) return null;
  form(value.length === 1 && (value[0] === 0xaa || value[0] === 0x55), "neither on nor off");
  return value[0] === 0xaa;
}

function eights(value) {
  form(value.length % 8 === 0, "identities are not eight bytes each");
  return Array.from({ length: value.length / 8 }, (_, i) => value.subarray(8 * i, 8 * i + 8));
}

/** A number below 256 of bytes, little endian; infinite where it is larger. */
const small = (value) => (filled(value.subarray(1)) ? Infinity : (value[0] ?? 0));

function flagOf(value, version) {
  if (value === undefined || version < 1) return null;
  const found = ["SPT", "MPT", "PPCIE"][small(value)];
  form(found !== undefined, "an unknown feature flag");
  return found;
}
return { parseReport };
})();
const module_accelerator = (() => {
// One NVIDIA accelerator: its certificate chain and its signed report (spec/evidence-nvidia.md).

const { Refusal, demand, digest, ecdsa, equal, fromBase64 } = module_bytes;
const { parseReport } = module_spdm;
const x509 = module_x509;

const ROOT = "102bf659d5419614c9d8e6aecebc80454eb26b1df6a769ac720b9a690b167b48";
const ARCHITECTURES = { GH: "HOPPER", GB: "BLACKWELL", LS: "LS10" };
const DICE = "2.23.133.5.4";
const COMPOSITE = `${DICE}.1`;
const TCB_INFO = `${DICE}.1.1`;
const SHA384 = "2.16.840.1.101.3.4.2.2";

const chain = (condition, message) => demand(condition, "certificate-chain-invalid", message);
const report = (condition, message) => demand(condition, "gpu-report-invalid", message);

/** Run what reads certificates; what it cannot read is refused as a chain. */
async function reading(judge) {
  try {
    return await judge();
  } catch (error) {
    if (!(error instanceof x509.BadDer || error instanceof TypeError)) throw error;
    throw new Refusal("certificate-chain-invalid", error.message);
  }
}

/**
 * Facts of a device whose report is signed by a key that the trusted root certifies for it.
 *
 * @param {object} shown One of the evidence's devices.
 * @param {Uint8Array|null} root DER of a simulator's root, null for NVIDIA's.
 * @param {number} now Seconds since the epoch.
 */
async function verifyDevice(shown, root, now) {
  const parsed = await parseReport(fromBase64(shown.report));
  const found = await reading(() => verifyChain(shown.certificate_chain, root, now));
  const same = shown.architecture === found.architecture && shown.kind === parsed.kind;
  report(same, "evidence calls the device something else than its certificate and report do");
  const [leaf] = found.certificates;
  const holds = await ecdsa("P-384", "SHA-384", leaf.point, parsed.signature, parsed.signed);
  report(holds, "the report's signature does not hold under its certificate");
  const firmware = parsed.firmware === null || (found.firmware && equal(parsed.firmware, found.firmware));
  chain(firmware, "the report comes from other firmware than its certificate was made for");
  return { ...found, kind: parsed.kind, report: parsed };
}

async function verifyChain(pem, root, now) {
  const raw = x509.pemBytes(pem);
  chain(raw.length <= 5, "the chain has more than five certificates");
  await trustedRoot(raw[raw.length - 1], root);
  chain(raw.length === 5, `the chain has ${raw.length} certificates`);
  const certificates = raw.map(x509.certificate);
  const extensions = certificates.flatMap((one) => [...one.extensions.keys()]);
  const critical = extensions.filter((name) => name === DICE || name.startsWith(`${DICE}.`));
  await x509.checkPath([...certificates].reverse(), { now, critical });
  const [leaf, device] = certificates;
  chain(x509.powers(leaf).certifies === false, "the leaf may sign certificates");
  const [chip, named] = [chipOf(device), chipOf(leaf)];
  const architecture = ARCHITECTURES[chip.slice(0, 2)];
  chain(architecture && named === chip, "the certificates name no accelerator that is known");
  const serial = serialOf(device);
  const [, identity = ""] = /^(?:41|50)([0-9a-f]{16})$/.exec(serial) ?? [];
  return { certificates, architecture, ueid: serialOf(leaf), serial, identity, firmware: firmwareOf(leaf) };
}

async function trustedRoot(found, simulatorRoot) {
  if (simulatorRoot !== null) {
    demand(equal(found, simulatorRoot), "quote-root-untrusted", "another simulator's root");
  } else if ((await digest(found)) !== ROOT) {
    const { names } = x509.certificate(found);
    const simulated = names.some((name) => name.startsWith("SIMULATED"));
    demand(!simulated, "simulated-evidence", "a simulator where hardware is asked for");
    throw new Refusal("quote-root-untrusted", "not NVIDIA's root");
  }
}

function chipOf({ names }) {
  chain(names.length === 1, "a certificate does not name its device once");
  return names[0].replace(/^SIMULATED /, "").split(" ")[0];
}

function serialOf({ serialNumbers }) {
  const [written, ...more] = serialNumbers;
  const serial = written?.toLowerCase() ?? "";
  chain(more.length === 0 && /^[0-9a-f]{8,64}$/.test(serial), "a device's serial number is not hexadecimal");
  return serial;
}

/** Digest of the firmware that a leaf's key was made for, null where it names none. */
function firmwareOf(leaf) {
  const [composite, info] = [COMPOSITE, TCB_INFO].map((name) => leaf.extensions.get(name)?.value);
  chain(!(composite && info), "the leaf names two firmware ids");
  if (composite) {
    const tail = composite.subarray(-50);
    chain(tail.length === 50 && tail[0] === 4 && tail[1] === 48, "the firmware id is no SHA-384 digest");
    return tail.subarray(2);
  }
  if (!info) return null;
  const lists = x509.items(x509.der(info)).filter(({ tag }) => tag === 0xa6);
  chain(lists.length === 1, "the firmware id holds no list of digests");
  const [name, value, ...more] = x509.items(x509.items(lists[0], 0xa6)[0]);
  const known = more.length === 0 && x509.oid(name) === SHA384 && value?.tag === 4 && value.content.length === 48;
  chain(known, "the firmware id is no SHA-384 digest");
  return value.content;
}
return { verifyDevice };
})();
const module_ocsp = (() => {
// Archived answers about certificates of accelerators (spec/evidence-nvidia.md, "Revocation").

const { CannotCheck, Refusal, demand, ecdsa, equal, fromBase64, hex, sha1, sha256, sha384 } = module_bytes;
const { BadDer, bits, certificate, der, items, oid, rawSignature, signedBy, time } = module_x509;

const SKEW = 300;
const BASIC = "1.3.6.1.5.5.7.48.1.1";
const SIGNING = "1.3.6.1.5.5.7.3.9";
const USAGE = "2.5.29.37";
const HASHES = {
  "1.3.14.3.2.26": sha1,
  "2.16.840.1.101.3.4.2.1": sha256,
  "2.16.840.1.101.3.4.2.2": sha384,
};
const PASSED_OVER = ["2.16.840.1.101.3.4.2.3", "2.16.840.1.101.3.4.2.4"];
const ALGORITHMS = {
  "1.2.840.10045.4.3.2": "SHA-256",
  "1.2.840.10045.4.3.3": "SHA-384",
  "1.2.840.10045.4.3.4": "SHA-512",
};

/** Why one answer says nothing about one certificate. */
class Unusable extends Error {}

const usable = (condition, message) => {
  if (!condition) throw new Unusable(message);
};
const unknown = (condition, message) => demand(condition, "revocation-unknown", message);
const unread = (error) => error instanceof BadDer || error instanceof TypeError;

/**
 * Demand a good answer for every certificate between a device's leaf and its root.
 *
 * @param {object[]} chain Of `x509.certificate`, leaf first, root last, verified.
 * @param {{ocsp: string[]}|null} collateral Where the answers are.
 * @param {object} rules The policy's.
 * @param {number} now Seconds since the epoch.
 */
async function checkRevocation(chain, collateral, rules, now) {
  if (rules.revocation === "any") return;
  const answers = (collateral?.ocsp ?? []).map((one) => parse(fromBase64(one)));
  unknown(chain.length > 2, "no authority answers for a chain of this length");
  for (let place = 1; place < chain.length - 1; place++) {
    await good(chain[place], chain[place + 1], answers, now, rules.max_ocsp_age_s);
  }
}

function parse(bytes) {
  unknown(bytes.length <= 16384, "an answer is too long");
  try {
    return response(bytes);
  } catch (error) {
    if (!unread(error)) throw error;
    throw new Refusal("revocation-unknown", "an entry is no OCSP answer");
  }
}

const fail = (message) => {
  throw new BadDer(message);
};
const octets = (element) => (element?.tag === 4 ? element.content : fail("no octets"));
const inside = (element) => der(element.content);

/** An answer: null where the responder gives none. */
function response(bytes) {
  const [status, wrapped, ...more] = items(der(bytes));
  if (status?.tag !== 0x0a || status.content.length !== 1 || more.length > 0) fail("no status");
  if (status.content[0] !== 0) return [1, 2, 3, 5, 6].includes(status.content[0]) ? null : fail("an unknown status");
  if (wrapped?.tag !== 0xa0) fail("no answer");
  const [type, held] = items(inside(wrapped));
  if (oid(type) !== BASIC) fail("another kind of answer");
  const [body, algorithm, signature, carried] = items(der(octets(held)));
  const fields = items(body);
  if (fields[0]?.tag === 0xa0) fields.shift();
  const [responder, produced, list] = fields;
  if (![0xa1, 0xa2].includes(responder?.tag)) fail("no responder");
  time(produced);
  return {
    signed: body.whole,
    hash: ALGORITHMS[oid(items(algorithm)[0])],
    signature: bits(signature),
    responder: responder.tag === 0xa1 ? { name: inside(responder).whole } : { key: octets(inside(responder)) },
    certificates: carried ? items(inside(carried)).map(({ whole }) => certificate(whole)) : [],
    singles: items(list).map(single),
  };
}

function single(element) {
  const [id, status, made, ...rest] = items(element);
  const [algorithm, name, key, serial] = items(id);
  if (serial?.tag !== 2 || ![0x80, 0xa1, 0x82].includes(status?.tag)) fail("no certificate or status");
  const next = rest.find(({ tag }) => tag === 0xa0);
  return {
    algorithm: oid(items(algorithm)[0]),
    name: octets(name),
    key: octets(key),
    serial: hex(serial.content),
    status: { 0x80: "good", 0xa1: "revoked", 0x82: "unknown" }[status.tag],
    made: time(made),
    until: next ? time(inside(next)) : null,
  };
}

/** A revocation outweighs any good answer. */
async function good(subject, issuer, answers, now, maxAge) {
  let found = false;
  let reason = "no answer is about it";
  for (const answer of answers) {
    try {
      const said = answer && (await about(answer, subject, issuer));
      if (!said) continue;
      await checkResponder(answer, issuer, now);
      usable(said.made <= now + SKEW, "an answer was made later");
      demand(said.status !== "revoked", "certificate-revoked", "a device's certificate is revoked or on hold");
      usable(said.status === "good", "the responder does not know it");
      usable(said.until !== null && now <= said.until, "an answer is past its next update");
      usable(now - said.made <= maxAge, "an answer is too old");
      found = true;
    } catch (error) {
      if (!(error instanceof Unusable || unread(error))) throw error;
      reason = error.message;
    }
  }
  unknown(found, reason);
}

async function about(answer, subject, issuer) {
  for (const one of answer.singles) {
    if (one.serial !== subject.serial || PASSED_OVER.includes(one.algorithm)) continue;
    const hash = HASHES[one.algorithm];
    usable(hash, "an unknown hash");
    if (equal(one.name, await hash(issuer.subject)) && equal(one.key, await hash(issuer.point))) return one;
  }
  return null;
}

async function checkResponder(answer, issuer, now) {
  usable(answer.hash, "an answer is signed with an unknown algorithm");
  usable(answer.certificates.length <= 4, "an answer carries too many certificates");
  let signer = null;
  for (const one of [issuer, ...answer.certificates]) {
    if (signer === null && (await isResponder(answer.responder, one))) signer = one;
  }
  usable(signer, "an answer does not carry its responder's certificate");
  if (signer !== issuer) await checkDelegated(signer, issuer);
  if (!signer.curve && !signer.rsaBits) throw new CannotCheck("an answer signed on a curve that this program lacks");
  usable(signer.curve, "the responder's key is of another kind");
  const raw = rawSignature(answer.signature, { "P-256": 32, "P-384": 48 }[signer.curve]);
  const holds = raw !== null && (await ecdsa(signer.curve, answer.hash, signer.point, raw, answer.signed));
  usable(holds, "an answer's signature does not hold");
  usable(signer.start <= now && now <= signer.end, "the responder's certificate is not valid at that time");
}

async function isResponder({ name, key }, one) {
  if (name) return equal(name, one.subject);
  return Boolean(one.curve) && equal(key, await sha1(one.point));
}

async function checkDelegated(signer, issuer) {
  const issued =
    equal(signer.issuer, issuer.subject) && (await signedBy(issuer, signer.hash, signer.signature, signer.signed));
  usable(issued, "the responder was not certified by the issuer");
  const usage = signer.extensions.get(USAGE);
  usable(usage && items(der(usage.value)).some((one) => oid(one) === SIGNING), "not certified to sign answers");
}
return { checkRevocation };
})();
const module_xml = (() => {
// As much of XML as vendors' lists of reference values use, and Canonical XML 1.1 of it. Comments,
// processing instructions, CDATA and other forms that no such list has cannot be checked here.

const { CannotCheck, text, utf8 } = module_bytes;

/** Bytes that are no well-formed XML; the caller names the refusal. */
class NotXml extends Error {}

const XML = "http://www.w3.org/XML/1998/namespace";
const DECLARATION = /^<\?xml version="1\.0"(?: encoding="[A-Za-z][A-Za-z0-9._-]*")?(?: standalone="(?:yes|no)")? ?\?>/;
const STRANGE = /[^\t\n\r -\ud7ff\ue000-\ufffd\u{10000}-\u{10ffff}]/u;
const OPEN = /<([A-Za-z_][\w.-]*)(?::([A-Za-z_][\w.-]*))?/y;
const ATTRIBUTE = /[ \t\n]+([A-Za-z_][\w.-]*)(?::([A-Za-z_][\w.-]*))?[ \t\n]*=[ \t\n]*("[^"<]*"|'[^'<]*')/y;
const CLOSE = /[ \t\n]*(\/?)>/y;
const END = /<\/([A-Za-z_][\w.:-]*)[ \t\n]*>/y;
const TEXT = /[^<]+/y;
const URI = /^[A-Za-z][A-Za-z0-9+.-]*:[\w.~:/?#[\]@!$&'()*+,;=%-]*$/;
const ENTITIES = { lt: "<", gt: ">", amp: "&", quot: '"', apos: "'" };

const fail = (message) => {
  throw new NotXml(message);
};
const unusual = (what) => {
  throw new CannotCheck(`reference values: this program does not read ${what}`);
};

function decoded(source) {
  return source.replace(/&([^;&]*;)?/g, (_, name) => {
    const word = name?.slice(0, -1) ?? "";
    if (Object.hasOwn(ENTITIES, word)) return ENTITIES[word];
    const [, ten, sixteen] = /^#(?:([0-9]+)|x([0-9a-fA-F]+))$/.exec(word) ?? fail("an unknown entity");
    const code = ten ? parseInt(ten, 10) : parseInt(sixteen, 16);
    if (code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)) fail("no character");
    const character = String.fromCodePoint(code);
    return STRANGE.test(character) ? fail("no character") : character;
  });
}

/**
 * The root element. An element has `name`, `space`, `local`, `attributes` (each `name`, `space`,
 * `local`, `value`), `scope` (namespaces by prefix), `parent`, and `children`, elements and texts.
 */
function parseXml(bytes) {
  let source;
  try {
    source = text(bytes);
  } catch {
    fail("not UTF-8");
  }
  if (STRANGE.test(source)) fail("a character that XML has not");
  source = source.replace(/\r\n?/g, "\n");
  const declared = DECLARATION.exec(source);
  if (declared) source = source.slice(declared[0].length);
  if (source.startsWith("\ufeff")) unusual("a byte order mark");
  if (/<!-{2}|<\?|<!\[CDATA\[/.test(source)) unusual("comments, instructions or CDATA");
  return new Reader(source).document();
}

class Reader {
  constructor(source) {
    this.source = source;
    this.at = 0;
  }

  take(pattern) {
    pattern.lastIndex = this.at;
    const found = pattern.exec(this.source);
    if (found) this.at += found[0].length;
    return found;
  }

  document() {
    const top = { children: [], scope: new Map(), parent: null };
    let current = top;
    while (this.at < this.source.length) {
      const words = this.take(TEXT);
      if (words) {
        if (words[0].includes("]]>")) fail("an end of CDATA");
        if (current !== top) current.children.push(decoded(words[0]));
        else if (/[^ \t\n]/.test(words[0])) fail("text beside the root element");
        continue;
      }
      const end = this.take(END);
      if (end) {
        if (current === top || end[1] !== current.name) fail("an end without a beginning");
        current = current.parent;
        continue;
      }
      if (current === top && top.children.length > 0) fail("two root elements");
      const [element, empty] = this.element(current);
      current.children.push(element);
      if (!empty) current = element;
    }
    if (current !== top || top.children.length !== 1) fail("not one closed element");
    top.children[0].parent = null;
    return top.children[0];
  }

  element(parent) {
    const [, first, second] = this.take(OPEN) ?? fail("no element");
    const written = [];
    for (let one = this.take(ATTRIBUTE); one; one = this.take(ATTRIBUTE)) {
      const value = decoded(one[3].slice(1, -1).replace(/[\t\n]/g, " "));
      written.push({ prefix: one[2] ? one[1] : "", local: one[2] ?? one[1], value });
    }
    const [, empty] = this.take(CLOSE) ?? fail("an element is not closed");
    const scope = scopeOf(parent.scope, written);
    const seen = new Set();
    const attributes = [];
    for (const { prefix, local, value } of written) {
      const name = prefix ? `${prefix}:${local}` : local;
      if (prefix === "xmlns" || name === "xmlns") continue;
      const space = prefix === "" ? "" : namespace(scope, prefix);
      if (seen.has(`${space} ${local}`)) fail("an attribute twice");
      seen.add(`${space} ${local}`);
      attributes.push({ name, space, local, value });
    }
    const space = second ? namespace(scope, first) : (scope.get("") ?? "");
    const name = second ? `${first}:${second}` : first;
    const element = { name, space, local: second ?? first, attributes, scope, parent, children: [] };
    return [element, empty === "/"];
  }
}

function scopeOf(outer, written) {
  const result = new Map(outer);
  const declared = new Set();
  for (const { prefix, local, value } of written) {
    if (prefix !== "xmlns" && !(prefix === "" && local === "xmlns")) continue;
    const name = prefix === "" ? "" : local;
    if (declared.has(name)) fail("a namespace twice");
    declared.add(name);
    if (["xml", "xmlns"].includes(name) || value === XML || value === "") unusual("such a namespace");
    if (!URI.test(value)) fail("a namespace that is no absolute URI");
    result.set(name, value);
  }
  return result;
}

function namespace(scope, prefix) {
  if (prefix === "xml") return XML;
  return scope.get(prefix) ?? fail("an undeclared prefix");
}

const TEXTS = { "&": "&amp;", "<": "&lt;", ">": "&gt;", "\r": "&#xD;" };
const VALUES = { "&": "&amp;", "<": "&lt;", '"': "&quot;", "\t": "&#x9;", "\n": "&#xA;", "\r": "&#xD;" };
const escaped = (value) => value.replace(/[&<>\r]/g, (character) => TEXTS[character]);
const quoted = (value) => value.replace(/[&<"\t\n\r]/g, (character) => VALUES[character]);
const ordered = (first, second) => (first < second ? -1 : first > second ? 1 : 0);

function write(element, outer, without) {
  const spaces = [...element.scope].filter(([prefix, uri]) => outer.get(prefix) !== uri);
  spaces.sort(([one], [other]) => ordered(one, other));
  const names = [...element.attributes];
  names.sort((one, other) => ordered(one.space, other.space) || ordered(one.local, other.local));
  const head = [
    element.name,
    ...spaces.map(([prefix, uri]) => `xmlns${prefix && ":"}${prefix}="${quoted(uri)}"`),
    ...names.map(({ name, value }) => `${name}="${quoted(value)}"`),
  ].join(" ");
  const inner = element.children.map((child) => {
    if (typeof child === "string") return escaped(child);
    return child === without ? "" : write(child, element.scope, without);
  });
  return `<${head}>${inner.join("")}</${element.name}>`;
}

/** Canonical XML 1.1 of an element, as bytes. One element of it may be left out. */
function canonicalXml(element, without = null) {
  for (let one = element.parent; one; one = one.parent) {
    if (one.attributes.some(({ space }) => space === XML)) unusual("inherited attributes of XML");
  }
  return utf8(write(element, new Map(), without));
}

/** Elements among the children. */
const elements = (element) => element.children.filter((child) => typeof child !== "string");

/** Value of an attribute, `""` where there is none. */
function attribute(element, local, space = "") {
  const found = element.attributes.find((one) => one.local === local && one.space === space);
  return found?.value ?? "";
}

/** The text of an element without elements; null where it has some. */
const content = (element) => (elements(element).length === 0 ? element.children.join("") : null);
return { NotXml, parseXml, canonicalXml, elements, attribute, content };
})();
const module_rim = (() => {
// Files of reference values of NVIDIA's firmware (spec/evidence-nvidia.md, "Reference values").

const { CannotCheck, demand, digest, ecdsa, equal, fromBase64, sha384 } = module_bytes;
const x509 = module_x509;
const { NotXml, attribute, canonicalXml, content, elements, parseXml } = module_xml;

const ROOT = "12977b5115acb0381179279fffeb5a8c4d264971ebb32298023a465fa41df5d1";
const SWID = "http://standards.iso.org/iso/19770/-2/2015/schema.xsd";
const HASH = "http://www.w3.org/2001/04/xmlenc#sha384";
const DS = "http://www.w3.org/2000/09/xmldsig#";
const C14N = "http://www.w3.org/2006/12/xml-c14n11";
const ECDSA = "http://www.w3.org/2001/04/xmldsig-more#ecdsa-sha384";
const SHA384 = "http://www.w3.org/2001/04/xmldsig-more#sha384";
const ENVELOPED = `${DS}enveloped-signature`;
const INDEX = /^(?:0|[1-9][0-9]{0,2})$/;
const DECODER = 35;
const DRIVERS = { HOPPER: "NV_GPU_DRIVER_GH100", BLACKWELL: "NV_GPU_CC_DRIVER_GB100" };
const SWITCH = "NV_SWITCH_BIOS_5612_0002_890";

const valid = (condition, message) => demand(condition, "reference-value-invalid", message);
const same = (condition, message) => demand(condition, "reference-value-mismatch", message);

/** Name of each file that a device needs, with the version that it must be for. */
function filesOf({ architecture, report }) {
  const { driver, vbios, project, projectSku, chipSku } = report;
  const plain = vbios.replaceAll(".", "").toUpperCase();
  if (report.kind === "switch") return [[`${SWITCH}_${plain}`, vbios]];
  return [
    [`${DRIVERS[architecture]}_${driver}`, driver],
    [`NV_GPU_VBIOS_${project}_${projectSku}_${chipSku}_${plain}`, vbios],
  ];
}

/**
 * Compare a device's measurements with the vendor's files.
 *
 * @param {object} device Verified.
 * @param {{rims: object}|null} collateral Where the files are.
 * @param {object} rules The policy's.
 * @param {Uint8Array|null} root DER of a simulator's root, null for NVIDIA's.
 * @param {Map} read Files that were verified before, by digest.
 */
async function checkReferenceValues(device, collateral, rules, { root, now, read }) {
  const wanted = rules.reference_values;
  if (wanted === "any") return;
  const pins = typeof wanted === "string" ? null : wanted;
  const taken = new Set();
  const { measurements, decoder, kind } = device.report;
  for (const [name, version] of filesOf(device)) {
    const held = collateral !== null && Object.hasOwn(collateral.rims, name);
    same(held, `no file ${name}`);
    const xml = fromBase64(collateral.rims[name]);
    const sha = await digest(xml);
    const pinned = pins !== null && Object.hasOwn(pins, name) && pins[name].includes(sha);
    valid(pins === null || pinned, `the file ${name} is not pinned`);
    if (!read.has(sha)) read.set(sha, await authentic(xml, root === null ? ROOT : await digest(root)));
    const { values, version: own, start, end } = read.get(sha);
    valid(pinned || (start <= now && now <= end), "the signer is not valid at that time");
    same(own.toUpperCase() === version.toUpperCase(), `the file ${name} is of another version`);
    for (const [index, digests] of values) {
      same(!taken.has(index), "two files share an index");
      taken.add(index);
      const looked = index !== DECODER || kind !== "gpu" || decoder !== false;
      same(!looked || digests.includes(measurements.get(index + 1)), `${name}: index ${index} differs`);
    }
  }
}

/** Values of a file under a root of this SHA-256, and the seconds between which its chain is valid. */
async function authentic(xml, rootDigest) {
  valid(xml.length > 0 && xml.length <= 262144, "the file has the wrong length");
  const declares = (word) => includes(xml, word);
  valid(!declares("<!DOCTYPE") && !declares("<!ENTITY"), "the file declares a document type");
  try {
    const root = parseXml(xml);
    bounded(root);
    const { signature, others } = signatureOf(root);
    const parts = partsOf(signature);
    const { signer, start, end } = await chainOf(parts.info, rootDigest);
    await signedWhole(root, signature, parts, signer);
    return { ...valuesOf(root, others), start, end };
  } catch (error) {
    if (!(error instanceof NotXml || error instanceof x509.BadDer || error instanceof TypeError)) throw error;
    valid(false, error.message);
  }
}

function includes(bytes, word) {
  const codes = [...word].map((character) => character.charCodeAt(0));
  for (let at = bytes.indexOf(codes[0]); at >= 0; at = bytes.indexOf(codes[0], at + 1)) {
    if (codes.every((code, i) => bytes[at + i] === code)) return true;
  }
  return false;
}

function bounded(root) {
  let count = 0;
  const visit = (element, depth) => {
    count += 1;
    const { attributes, scope } = element;
    const small = count <= 1024 && depth <= 8 && attributes.length <= 64 && scope.size <= 16;
    valid(small, "the file is larger or deeper than a list of measurements");
    for (const child of elements(element)) visit(child, depth + 1);
  };
  visit(root, 1);
}

const is = (element, local, space = DS) => element?.space === space && element.local === local;

function signatureOf(root) {
  const visit = (element) => [element, ...elements(element).flatMap(visit)];
  const found = visit(root).filter((element) => is(element, "Signature"));
  valid(found.length === 1 && found[0].parent === root, "not exactly one signature below the root");
  return { signature: found[0], others: elements(root).filter((element) => element !== found[0]) };
}

/** Parts of a signature in their plain form. Nothing signs them but the first. */
function partsOf(signature) {
  const parts = elements(signature);
  const [info, value, key] = parts;
  const known = is(info, "SignedInfo") && is(value, "SignatureValue") && is(key, "KeyInfo");
  valid(known, "the signature has other parts");
  const plain = parts.length === 3 && [signature, value, key].every((one) => one.attributes.length === 0);
  if (!plain) throw new CannotCheck("reference values: a signature with objects or attributes beside it");
  return { signed: info, value: packed(value), info: key };
}

const onlyElements = (element) => element.children.every((one) => typeof one !== "string" || !/[^ \t\n\r]/.test(one));
const packed = (element) => fromBase64((content(element) ?? "?").replace(/[ \t\n\r]+/g, ""));

async function chainOf(info, rootDigest) {
  const [data, ...more] = elements(info);
  valid(is(data, "X509Data") && more.length === 0, "the signature does not carry one chain");
  const parts = elements(data);
  const known = parts.length >= 2 && parts.length <= 5 && parts.every((one) => is(one, "X509Certificate"));
  valid(known && onlyElements(info) && onlyElements(data), "the signer's chain has another form");
  if ([data, ...parts].some((one) => one.attributes.length > 0)) {
    throw new CannotCheck("reference values: attributes beside a certificate");
  }
  const certificates = parts.map((part) => x509.certificate(packed(part)));
  const root = certificates[certificates.length - 1];
  valid((await digest(root.bytes)) === rootDigest, "the signer's chain leads to a foreign root");
  await x509.checkPath([...certificates].reverse(), { now: null });
  const own = equal(root.subject, root.issuer) && root.hash === "SHA-384";
  valid(own && (await x509.signedBy(root, root.hash, root.signature, root.signed)), "the root did not sign itself");
  const start = Math.max(...certificates.map((one) => one.start));
  const end = Math.min(...certificates.map((one) => one.end));
  return { signer: certificates[0], start, end };
}

async function signedWhole(root, signature, { signed, value }, signer) {
  const holds =
    value?.length === 96 && (await ecdsa("P-384", "SHA-384", signer.point, value, canonicalXml(signed)));
  valid(holds, "the signature does not hold");
  const [method, algorithm, reference, ...more] = elements(signed);
  const [transforms, hashing, found, ...rest] = elements(reference);
  const steps = elements(transforms);
  const names = (one, local, uri) => is(one, local) && attribute(one, "Algorithm") === uri && elements(one).length === 0;
  const whole =
    more.length + rest.length === 0 &&
    names(method, "CanonicalizationMethod", C14N) &&
    names(algorithm, "SignatureMethod", ECDSA) &&
    is(reference, "Reference") &&
    reference.attributes.some((one) => one.local === "URI" && one.space === "" && one.value === "") &&
    is(transforms, "Transforms") &&
    steps.length === 2 &&
    names(steps[0], "Transform", ENVELOPED) &&
    names(steps[1], "Transform", C14N) &&
    names(hashing, "DigestMethod", SHA384) &&
    is(found, "DigestValue");
  valid(whole && onlyElements(signature), "the signature does not cover the whole document");
  const expected = packed(found);
  valid(expected && equal(expected, await sha384(canonicalXml(root, signature))), "the document is another");
}

function valuesOf(root, children) {
  const metas = children.filter((one) => is(one, "Meta", SWID));
  const payloads = children.filter((one) => is(one, "Payload", SWID));
  const tag = is(root, "SoftwareIdentity", SWID) && metas.length === 1 && payloads.length === 1;
  valid(tag, "not a SWID tag with one Meta and one Payload");
  const version = attribute(metas[0], "colloquialVersion");
  valid(/^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$/.test(version), "no firmware version");
  const seen = new Set();
  const values = new Map();
  for (const resource of elements(payloads[0])) {
    if (!is(resource, "Resource", SWID) || attribute(resource, "type") !== "Measurement") continue;
    const { index, active, digests } = measurement(resource);
    valid(!seen.has(index), "an index twice");
    seen.add(index);
    if (active) values.set(index, digests);
  }
  valid(values.size > 0, "no active measurement");
  return { version, values: new Map([...values].sort(([one], [other]) => one - other)) };
}

function measurement(resource) {
  const [index, count] = [attribute(resource, "index"), attribute(resource, "alternatives")];
  valid(INDEX.test(index) && Number(index) <= 254, "a measurement without an index");
  valid(INDEX.test(count) && Number(count) >= 1 && Number(count) <= 32, "no count of alternatives");
  const found = resource.attributes.filter(({ space, local }) => space === HASH && local.startsWith("Hash"));
  const digests = Array.from({ length: Number(count) }, (_, i) => attribute(resource, `Hash${i}`, HASH));
  const active = attribute(resource, "active");
  const plain =
    found.length === digests.length &&
    ["True", "False"].includes(active) &&
    attribute(resource, "size") === "48" &&
    digests.every((one) => /^[0-9A-Fa-f]{96}$/.test(one));
  valid(plain, "a measurement of another form");
  return { index: Number(index), active: active === "True", digests: digests.map((one) => one.toLowerCase()) };
}
return { checkReferenceValues, authentic };
})();
const module_nvidia = (() => {
// Evidence of NVIDIA accelerators (spec/evidence-nvidia.md): its forms, its rules, the set of devices.

const { demand, equal, fromBase64, hex } = module_bytes;
const { verifyDevice } = module_accelerator;
const { checkRevocation } = module_ocsp;
const { checkReferenceValues } = module_rim;
const shape = module_shape;
const { callsItselfSimulated } = module_x509;

const { either, integer, list, literal, map, match, nullable, record, string } = shape;
const any = literal("any");
const filled = shape.base64();
const packed = (most) => (value) =>
  string(value) && value.length >= 4 && value.length <= Math.floor((most * 4) / 3) + 4 && filled(value);
const text = (most) => (value) => {
  if (!string(value) || value.length < 2 || value.length > 2 * most) return false;
  const length = [...value].length;
  return length >= 2 && length <= most;
};
const chain = (value) => string(value) && value.length <= 65536 && /^[\n -~]+$/.test(value);

const DEVICE = record({
  kind: literal("gpu", "switch"),
  architecture: literal("HOPPER", "BLACKWELL", "LS10"),
  report: packed(65536),
  certificate_chain: chain,
});

/** The part `gpu` of an evidence document. */
const FORM = record({
  devices: list((one) => DEVICE(one) && (one.kind === "switch") === (one.architecture === "LS10"), {
    min: 1,
    max: 32,
  }),
  claims: record({
    environment: literal("PROD", "SIM", "UNAVAILABLE"),
    cc_feature: shape.boolean,
    dev_tools: shape.boolean,
    multi_gpu_mode: literal("none", "protected_pcie", "nvle"),
    driver_version: match(/^[0-9A-Za-z._-]{1,64}$/),
    gpu_count: integer(0, 32),
  }),
});

/** The part `gpu_collateral` of an evidence document. */
const COLLATERAL = record({
  rims: map(match(/^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$/), packed(262144), { max: 32 }),
  ocsp: list(packed(16384), { max: 128 }),
  nras: nullable(record({ token: text(262144), jwks: text(524288) })),
});

const SIMULATOR = record({ insecure_simulator_root: filled });
const ROOT = either(
  literal("nvidia"),
  (value) => SIMULATOR(value) && callsItselfSimulated(fromBase64(value.insecure_simulator_root)),
);
const DRIVER = match(/^[0-9]{1,6}(?:\.[0-9]{1,6}){1,3}$/);
const VBIOS = match(/^[0-9A-F]{2}(?:\.[0-9A-F]{2}){4}$/);
const PINS = map(match(/^[0-9A-Za-z._-]{1,128}$/), list(shape.hex64, { min: 1, max: 16 }), { max: 256 });
const RULES_FORM = record({
  root: ROOT,
  rim_root: ROOT,
  gpu_count: integer(1, 32),
  switch_count: either(any, integer(0, 32)),
  architectures: list(literal("HOPPER", "BLACKWELL"), { min: 1, max: 2 }),
  mode: list(literal("single", "mpt", "protected_pcie"), { min: 1, max: 3 }),
  cc: literal("on"),
  devtools: literal("off"),
  devices: either(any, list(match(/^[0-9a-f]{8,64}$/), { max: 4096 })),
  driver_versions: either(any, record({ minimum: DRIVER, denied: list(DRIVER, { max: 256 }) })),
  vbios_versions: either(
    any,
    list(
      record({
        architecture: literal("HOPPER", "BLACKWELL", "LS10"),
        minimum: VBIOS,
        denied: list(VBIOS, { max: 256 }),
      }),
      { max: 3 },
    ),
  ),
  reference_values: either(literal("any", "require"), (value) => PINS(value) && Object.keys(value).length > 0),
  revocation: literal("any", "require"),
  max_ocsp_age_s: integer(1, 2 ** 31),
  nras: literal("local", "require"),
});

/** A policy's rules for accelerators, of a simulator or of hardware. */
function RULES(value, simulated) {
  if (!RULES_FORM(value)) return false;
  const floors = value.vbios_versions === "any" ? [] : value.vbios_versions.map((one) => one.architecture);
  return (
    [value.root, value.rim_root].every((root) => (typeof root !== "string") === simulated) &&
    !(value.mode.length === 1 && value.mode[0] === "protected_pcie" && value.switch_count === 0) &&
    new Set(floors).size === floors.length
  );
}

const mode = (condition, message) => demand(condition, "gpu-mode-refused", message);
const set = (condition, message) => demand(condition, "gpu-set-refused", message);
const level = (condition, message) => demand(condition, "tcb-status-refused", message);
const fresh = (condition, message) => demand(condition, "gpu-nonce-mismatch", message);
const platform = (condition, message) => demand(condition, "platform-mismatch", message);
const rootOf = (root) => (typeof root === "string" ? null : fromBase64(root.insecure_simulator_root));

/**
 * Every accelerator of a guest, for one conversation.
 *
 * The verdict that collateral may hold is never read: the guest that is judged could have chosen its
 * keys. A policy that asks for one is therefore not met.
 *
 * @param {{devices: object[], claims: object}} evidence Of `FORM`.
 * @param {{rules: object, nonce: Uint8Array, now: number, collateral: object|null}} given
 */
async function verify({ devices: shown, claims }, { rules, nonce, now, collateral }) {
  protection(claims);
  counts(shown, claims, rules);
  const read = new Map();
  const devices = [];
  for (const one of shown) {
    const device = await verifyDevice(one, rootOf(rules.root), now);
    const own = nonce.length === 32 && equal(device.report.nonce, nonce);
    fresh(own, "a report was made for another conversation");
    appraise(device, rules);
    await checkReferenceValues(device, collateral, rules, { root: rootOf(rules.rim_root), now, read });
    await checkRevocation(device.certificates, collateral, rules, now);
    devices.push(device);
  }
  together(devices, claims, rules);
  demand(rules.nras === "local", "remote-verdict-refused", "the policy asks for NVIDIA's verdict; there is none");
}

function protection({ environment, cc_feature, dev_tools, multi_gpu_mode }) {
  mode(environment === "PROD", "accelerators are not in production mode");
  // Protected PCIe is a mode beside the plain feature, which then reads as off.
  mode(cc_feature || multi_gpu_mode === "protected_pcie", "accelerators do not protect their memory");
  mode(!dev_tools, "accelerators are in developer mode");
}

function counts(shown, claims, rules) {
  const gpus = shown.filter(({ kind }) => kind === "gpu").length;
  set(claims.gpu_count === gpus, "the guest shows other GPUs than its driver sees");
  set(gpus === rules.gpu_count, "another number of GPUs");
  const switches = rules.switch_count === "any" || shown.length - gpus === rules.switch_count;
  set(switches, "another number of NVSwitches");
}

function appraise({ kind, architecture, ueid, report }, rules) {
  const families = kind === "switch" ? ["LS10"] : rules.architectures;
  platform(families.includes(architecture), "an accelerator of another family");
  platform(rules.devices === "any" || rules.devices.includes(ueid), "an accelerator that is not listed");
  if (kind === "gpu" && rules.driver_versions !== "any") above(report.driver, rules.driver_versions, 10);
  if (rules.vbios_versions === "any") return;
  const floor = rules.vbios_versions.find((one) => one.architecture === architecture);
  level(floor, "no floor for this family's VBIOS");
  above(report.vbios, floor, 16);
}

function above(version, { minimum, denied }, base) {
  const found = numbers(version, base);
  const held = found !== null && order(found, numbers(minimum, base)) >= 0;
  level(held && denied.every((one) => order(found, numbers(one, base)) !== 0), `version ${version}`);
}

function numbers(version, base) {
  const parts = version.split(".");
  const digits = base === 10 ? /^[0-9]+$/ : /^[0-9A-Fa-f]+$/;
  if (version.length > 64 || !parts.every((part) => digits.test(part))) return null;
  return parts.map((part) => BigInt(base === 10 ? part : `0x${part}`));
}

function order(first, second) {
  for (let i = 0; i < Math.max(first.length, second.length); i++) {
    const [one, other] = [first[i] ?? 0n, second[i] ?? 0n];
    if (one !== other) return one < other ? -1 : 1;
  }
  return 0;
}

const alike = (values) => new Set(values).size <= 1;
const distinct = (values) => new Set(values).size === values.length;

function together(devices, claims, rules) {
  const gpus = devices.filter(({ kind }) => kind === "gpu");
  const switches = devices.filter(({ kind }) => kind === "switch");
  for (const values of [
    devices.map(({ ueid }) => ueid),
    devices.map(({ serial }) => serial),
    switches.map(({ report }) => report.ownIdentity),
    devices.map(({ report }) => report.identity),
  ]) {
    set(distinct(values), "a device is shown more than once");
  }
  for (const kind of [gpus, switches]) {
    const same = [({ architecture }) => architecture, ({ report }) => report.driver, ({ report }) => report.vbios];
    set(same.every((value) => alike(kind.map(value))), "devices of one set differ");
  }
  fresh(alike(devices.map(({ report }) => hex(report.nonce))), "reports of different conversations");
  mode(claims.driver_version === gpus[0].report.driver, "the guest runs another driver than its GPUs report");
  const found = modeOf(gpus, claims.multi_gpu_mode);
  mode(rules.mode.includes(found), `the GPUs' mode is ${found}`);
  if (switches.length > 0 || found === "protected_pcie") wiring(gpus, switches);
}

/** The one mode on which every source agrees. */
function modeOf(gpus, driver) {
  const [{ flag, protectedPcie }] = gpus.map(({ report }) => report);
  const same = gpus.every(({ report }) => report.flag === flag && report.protectedPcie === protectedPcie);
  mode(same, "GPUs of one set are in different modes");
  if (driver === "protected_pcie") {
    mode(protectedPcie === true && [null, "PPCIE"].includes(flag), "GPUs do not report protected PCIe");
    return "protected_pcie";
  }
  mode(protectedPcie !== true && flag !== "PPCIE", "GPUs report protected PCIe, their driver does not");
  if (flag === "MPT") return "mpt";
  mode(driver !== "nvle", "GPUs do not report encrypted NVLink");
  mode(gpus.length === 1, "nothing says how GPUs protect what they say to each other");
  return "single";
}

function wiring(gpus, switches) {
  const own = switches.every(({ identity, report }) => report.ownIdentity === identity);
  set(own, "a switch reports another identity than it is certified for");
  names(gpus.map(({ report }) => report.switches), switches);
  names(switches.map(({ report }) => report.gpus), gpus);
}

/** Each device of one kind names exactly the devices of the other kind that are shown. */
function names(named, shown) {
  const identities = [...new Set(shown.map(({ identity }) => identity))].sort();
  const known = named.length > 0 && identities.length > 0 && !identities.includes("");
  const exact = named.every((found) => [...new Set(found)].sort().join() === identities.join());
  set(known && exact, "devices name others than those shown");
}
return { FORM, COLLATERAL, RULES, verify };
})();
const module_tdx = (() => {
// The quote of TDX and its collateral (spec/evidence.md §4), by the rules of Intel's DCAP.

const {
  Refusal,
  concat,
  demand,
  ecdsa,
  equal,
  fromHex,
  hex,
  latin1,
  seconds,
  sha256,
  u16le,
  u32le,
  utf8,
} = module_bytes;
const { Malformed, parseJson } = module_json;
const x509 = module_x509;

const INTEL_ROOT = "44a0196b2b99f889b8e149e95b807a350e7424964399e885a7cbb8ccfab674d3";
const SGX = "1.2.840.113741.1.13.1";
const structure = (condition, message) => demand(condition, "quote-invalid", message);

/** Fields of a quote in its one encoding. */
function parseQuote(raw) {
  structure(raw.length >= 54, "quote is truncated");
  const version = u16le(raw, 0);
  demand(u32le(raw, 4) === 0x81 && version !== 3, "platform-mismatch", "not a quote of TDX");
  structure(version === 4 || version === 5, "unknown version");
  structure(u16le(raw, 2) === 2, "unknown key type");
  const head = version === 5 ? 54 : 48;
  const kind = version === 5 ? u16le(raw, 48) : 2;
  const size = { 2: 584, 3: 648 }[kind];
  structure(size && (version === 4 || u32le(raw, 50) === size), "unknown report");
  const end = head + size;
  structure(raw.length >= end + 4, "quote is truncated");
  structure(end + 4 + u32le(raw, end) === raw.length, "surplus or missing bytes");
  const auth = end + 4;
  const outer = auth + 128;
  structure(raw.length >= outer + 6, "quote is truncated");
  structure(outer + 6 + u32le(raw, outer + 2) === raw.length, "surplus or missing bytes");
  structure(u16le(raw, outer) === 6, "unknown certification data");
  const qe = outer + 6;
  structure(raw.length >= qe + 450, "quote is truncated");
  const inner = qe + 450 + u16le(raw, qe + 448);
  structure(raw.length >= inner + 6, "quote is truncated");
  structure(inner + 6 + u32le(raw, inner + 2) === raw.length, "surplus or missing bytes");
  structure(u16le(raw, inner) === 5, "unknown certificate chain");
  let chain;
  try {
    chain = x509.pemBytes(latin1(raw.subarray(inner + 6)).replace(/\0$/, ""));
  } catch (error) {
    if (!(error instanceof x509.BadDer)) throw error;
  }
  structure(chain?.length === 3, "not a chain of three certificates");
  const report = raw.subarray(head, end);
  const field = (from, to) => report.subarray(from, to);
  return {
    signed: raw.subarray(0, end),
    svn: field(0, 16),
    moduleSigner: field(64, 112),
    moduleAttributes: field(112, 120),
    attributes: field(120, 128),
    mrtd: hex(field(136, 184)),
    configId: field(184, 232),
    rtmr: [328, 376, 424, 472].map((at) => hex(field(at, at + 48))),
    reportData: field(520, 584),
    service: size === 648 ? field(600, 648) : new Uint8Array(48),
    signature: raw.subarray(auth, auth + 64),
    key: raw.subarray(auth + 64, auth + 128),
    qeReport: raw.subarray(qe, qe + 384),
    qeSignature: raw.subarray(qe + 384, qe + 448),
    qeData: raw.subarray(qe + 450, inner),
    chain,
  };
}

function collateralParts(quote, collateral) {
  const code = "collateral-mismatch";
  try {
    const lists = ["root_ca_crl", "pck_crl"].map((name) => {
      const bytes = fromHex(collateral[name]);
      demand(bytes, code, `${name} is not hexadecimal`);
      return x509.revocationList(bytes);
    });
    const [pck, tcb, qe] = ["pck_crl", "tcb_info", "qe_identity"].map((name) =>
      x509.pemCertificates(collateral[`${name}_issuer_chain`]),
    );
    const [info, identity] = ["tcb_info", "qe_identity"].map((name) => {
      const value = parseJson(utf8(collateral[name]), { depth: 16, values: 32768 });
      const dates = [seconds(value?.issueDate), seconds(value?.nextUpdate)];
      demand(!dates.includes(null), code, `${name} has no dates`);
      return { value, issued: dates[0], end: dates[1] };
    });
    return { own: quote.chain.map(x509.certificate), lists, chains: { pck, tcb, qe }, info, identity };
  } catch (error) {
    if (error instanceof x509.BadDer || error instanceof Malformed) {
      throw new Refusal(code, `collateral cannot be parsed: ${error.message}`);
    }
    throw error;
  }
}

function checkChains(quote, collateral) {
  const [, issuer, root] = quote.chain;
  for (const name of ["pck_crl", "tcb_info", "qe_identity"]) {
    let chain;
    try {
      chain = x509.pemBytes(collateral[`${name}_issuer_chain`]);
    } catch (error) {
      if (!(error instanceof x509.BadDer)) throw error;
    }
    const fits = chain?.length === 2 && equal(chain[1], root) && (name !== "pck_crl" || equal(chain[0], issuer));
    demand(fits, "collateral-mismatch", `chain of ${name} is of another platform or root`);
  }
}

function checkTime(quote, parts, now) {
  const { lists, chains, info, identity } = parts;
  const certificates = [...quote.chain, ...Object.values(chains).flat()];
  const starts = [info.issued, identity.issued, ...lists.map((one) => one.start)];
  const ends = [info.end, identity.end, ...lists.map((one) => one.end)];
  const start = Math.max(...starts, ...certificates.map((one) => one.start));
  const end = Math.min(...ends, ...certificates.map((one) => one.end + 1));
  demand(start <= now && now < end, "collateral-expired", "collateral is not valid at that time");
}

const STATUSES = [
  "UpToDate",
  "SWHardeningNeeded",
  "ConfigurationNeeded",
  "ConfigurationAndSWHardeningNeeded",
  "OutOfDate",
  "OutOfDateConfigurationNeeded",
  "Revoked",
];

/** Whether every level of TCB info or a QE identity has a status that Intel defines. */
function statusesKnown({ tcbLevels = [], tdxModuleIdentities = [] }) {
  const levels = [tcbLevels, ...tdxModuleIdentities.map((one) => one?.tcbLevels ?? [])].flat();
  return levels.every((level) => STATUSES.includes(level?.tcbStatus));
}

async function checkCollateral(quote, collateral, parts) {
  const root = quote.chain[2];
  const { chains, lists } = parts;
  const code = "collateral-mismatch";
  for (const [one, issuer] of [[lists[0], root], [lists[1], quote.chain[1]]]) {
    const holds =
      equal(one.issuer, issuer.subject) &&
      (await x509.signedBy(issuer, one.hash, one.signature, one.signed));
    demand(holds, "quote-root-untrusted", "a revocation list is not its issuer's");
  }
  for (const [name, chain] of [["tcb_info", chains.tcb], ["qe_identity", chains.qe]]) {
    demand(await x509.issued(root, chain[0]), "quote-root-untrusted", `${name}: chain does not hold`);
    demand(!lists[0].revoked.has(chain[0].serial), code, `${name}: signer is revoked`);
    const signature = fromHex(collateral[`${name}_signature`]);
    const holds =
      signature?.length === 64 &&
      (await ecdsa("P-256", "SHA-256", chain[0].point, signature, utf8(collateral[name])));
    demand(holds, code, `${name} is not its issuer's`);
    demand(statusesKnown(parts[name === "tcb_info" ? "info" : "identity"].value), code, `${name} has an unknown status`);
  }
}

async function checkPlatform(quote, parts) {
  const [leaf, issuer, root] = quote.chain;
  demand(
    (await x509.issued(root, root)) && (await x509.issued(root, issuer)),
    "quote-root-untrusted",
    "certificate chain does not lead to the trusted root",
  );
  demand(await x509.issued(issuer, leaf), "quote-root-untrusted", "PCK certificate is another's");
  const revoked = parts.lists[1].revoked.has(leaf.serial) || parts.lists[0].revoked.has(issuer.serial);
  demand(!revoked, "certificate-revoked", "the vendor revoked this platform");
}

function pckFields(leaf) {
  try {
    const found = leaf.extensions.get(SGX);
    const fields = new Map(
      x509.items(x509.der(found.value)).map((pair) => {
        const [name, value] = x509.items(pair);
        return [x509.oid(name), value];
      }),
    );
    const tcb = new Map(
      x509.items(fields.get(`${SGX}.2`)).map((pair) => {
        const [name, value] = x509.items(pair);
        return [x509.oid(name), value];
      }),
    );
    const levels = Array.from({ length: 16 }, (_, i) => x509.small(tcb.get(`${SGX}.2.${i + 1}`)));
    return {
      ppid: hex(fields.get(`${SGX}.1`).content),
      pceId: hex(fields.get(`${SGX}.3`).content),
      fmspc: hex(fields.get(`${SGX}.4`).content),
      levels,
      pceSvn: x509.small(tcb.get(`${SGX}.2.17`)),
    };
  } catch (error) {
    if (error instanceof x509.BadDer || error instanceof TypeError) {
      throw new Refusal("quote-invalid", "PCK certificate does not describe a platform");
    }
    throw error;
  }
}

const masked = (bytes, mask) => bytes.map((byte, i) => byte & mask[i]);

function reversed(value, size) {
  const bytes = fromHex(value.toLowerCase());
  return bytes?.length === size ? bytes : new Uint8Array(size);
}

function checkEnclave(quote, { value }) {
  const { qeReport: report } = quote;
  const fits =
    value.id === "TD_QE" &&
    equal(masked(report.subarray(16, 20), reversed(value.miscselectMask, 4)), reversed(value.miscselect, 4)) &&
    equal(masked(report.subarray(48, 64), reversed(value.attributesMask, 16)), reversed(value.attributes, 16)) &&
    hex(report.subarray(128, 160)) === value.mrsigner.toLowerCase() &&
    u16le(report, 256) === value.isvprodid;
  demand(fits, "collateral-mismatch", "quoting enclave is not the one that the vendor names");
  return value.tcbLevels.find((level) => level.tcb.isvsvn <= u16le(report, 258));
}

function checkModule(quote, { value }) {
  const major = quote.svn[1];
  let module = value.tdxModule;
  let level = null;
  if (major > 0) {
    const id = `TDX_${hex(quote.svn.subarray(1, 2)).toUpperCase()}`;
    module = value.tdxModuleIdentities?.find((one) => one.id === id);
    level = module?.tcbLevels.find((one) => one.tcb.isvsvn <= quote.svn[0]);
    demand(level, "tcb-status-refused", "version of the TDX module is unknown");
  }
  const fits =
    module &&
    hex(quote.moduleSigner) === module.mrsigner.toLowerCase() &&
    equal(masked(quote.moduleAttributes, reversed(module.attributesMask, 8)), reversed(module.attributes, 8));
  demand(fits, "collateral-mismatch", "TDX module is not the one that the vendor names");
  return level;
}

function platformLevel(quote, pck, { value }) {
  const skip = quote.svn[1] > 0 ? 2 : 0;
  return value.tcbLevels.find(({ tcb }) => {
    const sgx = tcb.sgxtcbcomponents.every(({ svn }, i) => pck.levels[i] >= svn);
    const tdx = tcb.tdxtcbcomponents.every(({ svn }, i) => i < skip || quote.svn[i] >= svn);
    return sgx && tdx && pck.pceSvn >= tcb.pcesvn;
  });
}

const needsConfiguration = (status) => /^Configuration|ConfigurationNeeded$/.test(status);

/** The status of a platform whose quoting enclave or module has a status of its own. */
function merged(platform, other) {
  if (other === undefined || other === "UpToDate") return platform;
  if (platform === "Revoked" || other === "Revoked") return "Revoked";
  if (other === "OutOfDate") {
    return needsConfiguration(platform) ? "OutOfDateConfigurationNeeded" : "OutOfDate";
  }
  return platform === "UpToDate" ? other : platform;
}

/** A quote that verifies at a moment, with what its collateral says of the platform. */
async function verifyQuote(raw, collateral, rules, simulatorRoot, now) {
  demand(collateral !== null, "collateral-mismatch", "no collateral");
  const quote = parseQuote(raw);
  const root = quote.chain[2];
  if (simulatorRoot) {
    demand(equal(root, simulatorRoot), "quote-root-untrusted", "another simulator's root");
  } else if (hex(await sha256(root)) !== INTEL_ROOT) {
    demand(!x509.callsItselfSimulated(root), "simulated-evidence", "a simulator where hardware is asked for");
    throw new Refusal("quote-root-untrusted", "not Intel's root");
  }
  checkChains(quote, collateral);
  const parts = collateralParts(quote, collateral);
  quote.chain = parts.own;
  checkTime(quote, parts, now);
  await checkCollateral(quote, collateral, parts);
  await checkPlatform(quote, parts);
  const pck = pckFields(quote.chain[0]);
  const info = parts.info.value;
  try {
    return await judged(quote, parts, pck, rules, Boolean(simulatorRoot), info);
  } catch (error) {
    if (error instanceof TypeError) throw new Refusal("collateral-mismatch", "collateral has another form");
    throw error;
  }
}

async function judged(quote, parts, pck, rules, simulated, info) {
  const point = (key) => concat(new Uint8Array([4]), key);
  demand(
    await ecdsa("P-256", "SHA-256", quote.chain[0].point, quote.qeSignature, quote.qeReport),
    "quote-invalid",
    "the platform did not sign the quoting enclave's report",
  );
  const bound = concat(await sha256(quote.key, quote.qeData), new Uint8Array(32));
  demand(equal(bound, quote.qeReport.subarray(320, 384)), "quote-invalid", "another quoting key");
  demand(
    await ecdsa("P-256", "SHA-256", point(quote.key), quote.signature, quote.signed),
    "quote-invalid",
    "the quoting key did not sign the quote",
  );
  demand(info.id === "TDX" && info.version === 3, "collateral-mismatch", "TCB info of another kind");
  demand(pck.fmspc === info.fmspc.toLowerCase(), "collateral-mismatch", "another FMSPC");
  demand(pck.pceId === info.pceId.toLowerCase(), "collateral-mismatch", "another PCE");
  const enclave = checkEnclave(quote, parts.identity);
  demand(enclave, "tcb-status-refused", "quoting enclave has no known level");
  const module = checkModule(quote, parts.info);
  const level = platformLevel(quote, pck, parts.info);
  demand(level, "tcb-status-refused", "platform has no known TCB level");
  const status = merged(merged(level.tcbStatus, module?.tcbStatus), enclave.tcbStatus);
  const listed = rules.tcb_status.includes(status);
  const number = Math.min(info.tcbEvaluationDataNumber, parts.identity.value.tcbEvaluationDataNumber);
  demand(listed && status !== "Revoked", "tcb-status-refused", `TCB status is ${status}`);
  demand(number >= rules.min_tcb_evaluation_data_number, "tcb-status-refused", "old collateral");
  const protectedPages = Boolean(quote.attributes[3] & 0x10);
  demand(!(quote.attributes[0] & 1), "debug-guest", "guest runs in debug mode");
  demand(protectedPages, "debug-guest", "guest leaves its page tables open to the host");
  demand(quote.service.every((byte) => byte === 0), "migratable-guest", "a service guest is bound");
  const advisories = [enclave, module, level].flatMap((one) => one?.advisoryIDs ?? []);
  return {
    quote,
    simulated,
    advisories: [...new Set(advisories)],
    evaluation: number,
    issued: Math.min(parts.info.issued, parts.identity.issued),
    ppid: pck.ppid,
  };
}

/** The rules of a policy for a quote that verified. */
function appraiseQuote(verified, rules, now, logged = false) {
  const { quote, advisories, issued, ppid } = verified;
  if (rules.advisories !== "any") {
    const accepted = rules.advisories === "none" ? [] : rules.advisories;
    const open = advisories.every((one) => accepted.includes(one));
    demand(open, "tcb-status-refused", "platform has open advisories");
  }
  if (rules.max_collateral_age_s !== "any") {
    demand(now - issued <= rules.max_collateral_age_s, "collateral-expired", "collateral is old");
  }
  const machine = rules.platform_ids === "any" || rules.platform_ids.includes(ppid);
  demand(machine, "platform-mismatch", "another machine");
  const image =
    rules.measurements === "any" ||
    rules.measurements.some(
      (one) =>
        one.mrtd === quote.mrtd &&
        (one.rtmr0 === quote.rtmr[0] || (one.rtmr0 === "log" && logged)) &&
        [1, 2].every((i) => one[`rtmr${i}`] === quote.rtmr[i]),
    );
  demand(image, "measurement-mismatch", "another guest image");
}
return { parseQuote, verifyQuote, appraiseQuote };
})();
const module_evidence = (() => {
// The evidence document: its form, its verification, its appraisal (spec/evidence.md).

const { Refusal, concat, demand, digest, equal, fromBase64, fromHex, hex, sha256, sha512, utf8 } = module_bytes;
const cloud = module_cloudtpm;
const { appraiseMeasured, replay } = module_dstack;
const { Malformed, canonical, parseCanonical } = module_json;
const nitro = module_nitro;
const nvidia = module_nvidia;
const { appraiseGoogle, appraiseNitroTpm, checkGoogle, verifyNitroTpm } = module_rented;
const shape = module_shape;
const snp = module_snp;
const { appraiseQuote, verifyQuote } = module_tdx;
const tpm = module_tpm;
const { TIER_OF_KIND, reaches } = module_tiers;

const { compose, list, literal, nullable, record, string } = shape;
const hexText = (value) => fromHex(value) !== null;
const quote = shape.encoded(32768);

const ENTRY = record({
  imr: shape.integer(0, 3),
  event_type: shape.integer(0, 2 ** 32 - 1),
  digest: (value) => value === "" || shape.hex96(value),
  event: string,
  event_payload: hexText,
  version: shape.integer(1, 2),
});
const DSTACK_FORM = record({
  tee: literal("dstack"),
  quote,
  event_log: list(ENTRY, { min: 1, max: 1024 }),
  app_compose: compose,
  vm_config: nullable(string),
});
const GOOGLE_FORM = record({
  tee: literal("dstack-gcp-tdx"),
  quote,
  event_log: list(ENTRY, { min: 1, max: 1024 }),
  app_compose: compose,
  vm_config: nullable(string),
  tpm: tpm.FORM,
});
const NITRO_TPM_FORM = record({
  tee: literal("dstack-aws-nitro-tpm"),
  document: shape.encoded(16384),
  event_log: list(ENTRY, { min: 1, max: 1024 }),
  app_compose: compose,
  vm_config: nullable(string),
});
const TDX_FORM = record({ tee: literal("tdx"), quote, app_compose: compose });

/**
 * Each TEE: the form of its evidence; the facts that its root signed; what a policy asks of them.
 * Facts have `simulated`, `reportData`, `composeHash`, `appId` and `keyProvider`.
 */
const TEES = {
  dstack: {
    form: DSTACK_FORM,
    verify: (cpu, given) => quoted(cpu, given, dstackGuest),
    appraise(facts, rules, now) {
      appraiseQuote(facts.signed, rules, now, facts.measured.firmwareLogged);
      appraiseMeasured(facts.measured, rules);
    },
  },
  tdx: {
    form: TDX_FORM,
    verify: (cpu, given) => quoted(cpu, given, bareGuest),
    appraise: (facts, rules, now) => appraiseQuote(facts.signed, rules, now),
  },
  nitro: { form: nitro.FORM, verify: nitro.verify, appraise: nitro.appraise },
  snp: { form: snp.FORM, verify: snp.verify, appraise: snp.appraise },
  "dstack-gcp-tdx": {
    form: GOOGLE_FORM,
    verify: (cpu, given) => quoted(cpu, given, googleGuest),
    appraise(facts, rules, now) {
      appraiseQuote(facts.signed, rules, now, facts.measured.firmwareLogged);
      appraiseMeasured(facts.measured, rules);
      appraiseGoogle(facts.vtpm, rules);
    },
  },
  "dstack-aws-nitro-tpm": { form: NITRO_TPM_FORM, verify: verifyNitroTpm, appraise: appraiseNitroTpm },
  "dstack-amd-sev-snp": { form: snp.DSTACK_FORM, verify: snp.verifyDstack, appraise: snp.appraiseDstack },
  "azure-snp": {
    form: cloud.AZURE_SNP_FORM,
    verify: cloud.verifyAzureSnp,
    appraise(facts, rules) {
      snp.appraise(facts, rules);
      cloud.appraiseAzure(facts, rules);
    },
  },
  "azure-tdx": {
    form: cloud.azureTdxForm(quote),
    verify: (cpu, given) => quoted(cpu, given, azureGuest),
    appraise(facts, rules, now) {
      appraiseQuote(facts.signed, rules, now);
      cloud.appraiseAzure(facts, rules);
    },
  },
  "gcp-snp": { form: cloud.GCP_SNP_FORM, verify: cloud.verifyGcpSnp, appraise: cloud.appraiseGcpSnp },
  "test-vtpm": { form: cloud.TEST_VTPM_FORM, verify: cloud.verifyTestVtpm, appraise: cloud.appraiseTestVtpm },
};
/** Kinds of evidence that a platform of another name shows. */
const SHOWN_BY = {
  "dstack-gcp-tdx": "dstack",
  "dstack-aws-nitro-tpm": "dstack",
  "dstack-amd-sev-snp": "dstack",
  "azure-snp": "snp",
  "azure-tdx": "tdx",
  "gcp-snp": "snp",
  "test-vtpm": "simulator",
};
const DCAP = ["dstack", "tdx", "dstack-gcp-tdx", "azure-tdx"];
const crl = (value) => hexText(value) && value.length > 0;
const filled = (value) => string(value) && value !== "";
const sealed = shape.match(/^[0-9a-f]{128}$/);
const COLLATERAL = record({
  pck_crl: crl,
  pck_crl_issuer_chain: filled,
  qe_identity: filled,
  qe_identity_issuer_chain: filled,
  qe_identity_signature: sealed,
  root_ca_crl: crl,
  tcb_info: filled,
  tcb_info_issuer_chain: filled,
  tcb_info_signature: sealed,
});
const EVIDENCE = record({
  version: literal(2),
  platform: literal("dstack", "tdx", "nitro", "snp", "simulator"),
  cpu: (value) =>
    shape.anyObject(value) && string(value.tee) && Object.hasOwn(TEES, value.tee) && TEES[value.tee].form(value),
  gpu: nullable(nvidia.FORM),
  collateral: nullable(COLLATERAL),
  gpu_collateral: nullable(nvidia.COLLATERAL),
});

/** The evidence of its canonical bytes. */
function readEvidence(bytes) {
  let value = null;
  try {
    value = parseCanonical(bytes, { size: 16 * 2 ** 20, depth: 32, values: 65536 });
  } catch (error) {
    if (!(error instanceof Malformed)) throw error;
  }
  const agrees = (evidence) =>
    ["simulator", SHOWN_BY[evidence.cpu.tee] ?? evidence.cpu.tee].includes(evidence.platform) &&
    (evidence.collateral === null || DCAP.includes(evidence.cpu.tee)) &&
    (evidence.gpu_collateral === null || evidence.gpu !== null);
  demand(EVIDENCE(value) && agrees(value), "evidence-malformed", "not an evidence document");
  return value;
}

/** 64 bytes that a quote made for a conversation commits to. */
async function reportData(purpose, transcript, gpu) {
  const tail = gpu === null ? new Uint8Array(0) : await sha256(canonical(gpu));
  return sha512(utf8(`sealtrain/${purpose}/v1:`), canonical(transcript), tail);
}

/** 32 bytes that accelerators of a conversation answer. */
const gpuNonce = (purpose, transcript) =>
  sha256(utf8(`sealtrain/${purpose}/gpu-nonce/v1:`), canonical(transcript));

/**
 * Facts that a root of trust signed, at a moment.
 *
 * @param {object} evidence Of `readEvidence`.
 * @param {object} policy The trust file's appraisal policy.
 * @param {number} now Seconds since the epoch.
 * @param {{purpose: string, transcript: object}} conversation What accelerators answered for.
 */
async function verifyEvidence(evidence, policy, now, conversation) {
  const { cpu, platform } = evidence;
  if (platform !== policy.platform) {
    const code = platform === "simulator" ? "simulated-evidence" : "platform-mismatch";
    throw new Refusal(code, "evidence of another platform than the policy asks for");
  }
  demand(cpu.tee === policy.cpu.tee, "platform-mismatch", "evidence of another TEE");
  const root = typeof policy.root === "string" ? null : fromBase64(policy.root.insecure_simulator_root);
  const given = { rules: policy.cpu, root, now, collateral: evidence.collateral };
  const facts = await TEES[cpu.tee].verify(cpu, given);
  demand(policy.gpu !== "none" || evidence.gpu === null, "gpu-set-refused", "accelerators are shown");
  if (typeof policy.gpu !== "string") {
    demand(evidence.gpu !== null, "gpu-set-refused", "no accelerator is shown");
    const nonce = await gpuNonce(conversation.purpose, conversation.transcript);
    await nvidia.verify(evidence.gpu, { rules: policy.gpu, nonce, now, collateral: evidence.gpu_collateral });
  }
  return { ...facts, platform, tee: cpu.tee, tier: TIER_OF_KIND[cpu.tee], appCompose: utf8(cpu.app_compose) };
}

async function quoted(cpu, given, guest) {
  const { rules, root, now, collateral } = given;
  const signed = await verifyQuote(fromBase64(cpu.quote), collateral, rules, root, now);
  const shown = await digest(utf8(cpu.app_compose));
  const facts = await guest(cpu, signed, shown, given);
  return { reportData: signed.quote.reportData, ...facts, signed, simulated: signed.simulated };
}

async function dstackGuest(cpu, signed, shown) {
  const measured = await replay(cpu.event_log, signed.quote);
  demand(measured.composeHash === shown, "compose-hash-mismatch", "another deployment document");
  return { measured, composeHash: shown, appId: measured.appId, keyProvider: measured.provider.id };
}

async function googleGuest(cpu, signed, shown, { root, now }) {
  const { found, bound } = await checkGoogle(cpu, root, now);
  await bound();
  return { ...(await dstackGuest(cpu, signed, shown)), vtpm: found };
}

const azureGuest = (cpu, signed) => cloud.verifyAzure(cpu, signed.quote.reportData);

async function bareGuest(cpu, signed, shown) {
  const expected = concat(new Uint8Array([1]), fromHex(shown), new Uint8Array(15));
  const named = equal(expected, signed.quote.configId);
  demand(named, "compose-hash-mismatch", `another deployment document: ${hex(signed.quote.configId)}`);
  return { composeHash: shown, appId: shown.slice(0, 40), keyProvider: "" };
}

/** Compare verified facts with a policy's reference values and with what is expected. */
function appraise(verified, policy, deployment, now) {
  const simulated = typeof policy.root !== "string";
  demand(verified.simulated === simulated, "platform-mismatch", "another kind of root");
  const { tier } = verified;
  demand(reaches(tier, policy.tier), "tier-refused", `the machine proves ${tier}, the policy asks for ${policy.tier}`);
  TEES[verified.tee].appraise(verified, policy.cpu, now);
  const document = verified.composeHash === deployment.compose_hash;
  demand(document, "compose-hash-mismatch", "guest runs another deployment document");
  demand(verified.appId === deployment.app_id, "app-id-mismatch", "guest runs another app");
}
return { readEvidence, reportData, gpuNonce, verifyEvidence, appraise };
})();
const module_logevents = (() => {
// The closed table of a run log's events (spec/run-log.md): written by
// tools/verifier_page.py from src/sealtrain/signing/logevents.py.

const shape = module_shape;

/** Event → the kind of collaboration that has it, null for every run; its fields. */
const EVENTS = {
  "run.started": {
    of: null,
    fields: shape.record({platform: shape.literal("dstack", "tdx", "nitro", "snp", "simulator"), phase: shape.literal("classify", "cpt", "dpo", "embed", "evaluate", "reward", "rlhf", "sft", "vlm")}, {collaboration: shape.literal("cut", "federated", "nodes", "pads", "travelling")}),
  },
  "run.restarted": {
    of: null,
    fields: shape.record({}),
  },
  "run.resumed": {
    of: null,
    fields: shape.record({counter: shape.integer(0, 9007199254740991), step: shape.integer(0, 9007199254740991), checkpoint: shape.hex64}),
  },
  "border.closed": {
    of: null,
    fields: shape.record({landlock: shape.integer(0, 9007199254740991), seccomp: shape.boolean, unbound: shape.integer(0, 9007199254740991), memory: shape.literal("private", "folder")}),
  },
  "keys.released": {
    of: null,
    fields: shape.record({lease_id: shape.hex64, not_after: shape.realTime}),
  },
  "data.validated": {
    of: null,
    fields: shape.record({rules_sha256: shape.hex64}, {report_sha256: shape.hex64}),
  },
  "data.counted": {
    of: null,
    fields: shape.map(shape.hex32, shape.nullable(shape.record({records: shape.integer(0, 9007199254740991), whole: shape.integer(0, 9007199254740991), truncated: shape.integer(0, 9007199254740991), filtered: shape.integer(0, 9007199254740991), empty: shape.integer(0, 9007199254740991)})), { min: 1, max: 256 }),
  },
  "rows.served": {
    of: null,
    fields: shape.map(shape.hex32, shape.nullable(shape.integer(0, 9007199254740991)), { min: 1, max: 256 }),
  },
  "checkpoint.sealed": {
    of: null,
    fields: shape.record({counter: shape.integer(0, 9007199254740991), step: shape.integer(0, 9007199254740991), digest: shape.hex64}),
  },
  "training.finished": {
    of: null,
    fields: shape.record({steps: shape.integer(0, 9007199254740991), samples: shape.integer(0, 9007199254740991)}),
  },
  "output.withheld": {
    of: null,
    fields: shape.map(shape.either(shape.literal("channel.broken", "exception.thread", "exception.uncaught", "exception.unraisable", "file.refused", "logged.error", "logged.info", "logged.warning", "network.refused", "printed", "program.refused", "warned"), (value) => value.startsWith("holder.") && shape.errorCode(value.slice(7))), shape.integer(1, 9007199254740991), { min: 0, max: 512 }),
  },
  "outputs.sealed": {
    of: null,
    fields: shape.map(shape.match(/^(?:model\/[A-Za-z0-9_][A-Za-z0-9._-]{0,127}(?:\/[A-Za-z0-9_][A-Za-z0-9._-]{0,127})*\.sealed)$/), shape.hex64, { min: 1, max: 4096 }),
  },
  "nodes.joined": {
    of: "nodes",
    fields: shape.record({session: shape.hex32, ranks: shape.integer(1, 64), nodes: shape.list(shape.record({node: shape.integer(1, 255), run_id: shape.hex32, evidence: shape.hex64, key: shape.hex64, from: shape.realTime}), { min: 1, max: 255 })}),
  },
  "federation.begun": {
    of: "federated",
    fields: shape.record({rule: shape.literal("exact", "fedavg", "ffa", "flower", "median", "trimmed-mean"), rounds: shape.integer(1, 9007199254740991), min_parties: shape.integer(1, 9007199254740991), parties: shape.list(shape.match(/^(?:[a-z0-9][a-z0-9-]{0,62})$/), { min: 1, max: 256 }), state: shape.hex64}),
  },
  "federation.planned": {
    of: "federated",
    fields: shape.record({patients: shape.map(shape.match(/^(?:[a-z0-9][a-z0-9-]{0,62})$/), shape.integer(1, 9007199254740991), { min: 1, max: 256 }), rate: shape.number((value) => value > 0 && value <= 1), noise_multiplier: shape.number((value) => value >= 0.001 && value <= 1000000.0), epsilon: shape.number((value) => value >= 0 && value <= 1000000.0)}),
  },
  "party.joined": {
    of: "federated",
    fields: shape.record({party: shape.match(/^(?:[a-z0-9][a-z0-9-]{0,62})$/), records: shape.nullable(shape.integer(1, 9007199254740991))}, {patients: shape.integer(1, 9007199254740991), products: shape.record({pads: shape.literal("own", "pool", "dealer"), checks: shape.integer(1, 4), skip: shape.list(shape.match(/^(?:[A-Za-z0-9_][A-Za-z0-9_.]{0,199})$/), { min: 0, max: 256 }), layers: shape.map(shape.match(/^(?:[A-Za-z0-9_][A-Za-z0-9_.]{0,199})$/), shape.integer(1, 1000000), { min: 1, max: 4096 }), products: shape.integer(1, 1000000), dealer: shape.nullable(shape.record({simulated: shape.boolean}))})}),
  },
  "party.left": {
    of: "federated",
    fields: shape.record({party: shape.match(/^(?:[a-z0-9][a-z0-9-]{0,62})$/), code: shape.errorCode}),
  },
  "party.refused": {
    of: "federated",
    fields: shape.record({code: shape.errorCode}),
  },
  "round.begun": {
    of: "federated",
    fields: shape.record({round: shape.integer(1, 9007199254740991), state: shape.hex64}),
  },
  "update.taken": {
    of: "federated",
    fields: shape.record({round: shape.integer(1, 9007199254740991), party: shape.match(/^(?:[a-z0-9][a-z0-9-]{0,62})$/), digest: shape.nullable(shape.hex64), records: shape.nullable(shape.integer(1, 9007199254740991)), norm: shape.nullable(shape.number((value) => value >= 0))}, {products: shape.record({session: shape.hex32, products: shape.integer(0, 9007199254740991), rows: shape.integer(0, 9007199254740991), bytes_out: shape.integer(0, 9007199254740991), bytes_in: shape.integer(0, 9007199254740991)})}),
  },
  "update.refused": {
    of: "federated",
    fields: shape.record({round: shape.integer(1, 9007199254740991), party: shape.match(/^(?:[a-z0-9][a-z0-9-]{0,62})$/), code: shape.errorCode}),
  },
  "round.merged": {
    of: "federated",
    fields: shape.record({round: shape.integer(1, 9007199254740991), rule: shape.literal("exact", "fedavg", "ffa", "flower", "median", "trimmed-mean"), parties: shape.list(shape.match(/^(?:[a-z0-9][a-z0-9-]{0,62})$/), { min: 1, max: 256 }), state: shape.hex64}, {noise_multiplier: shape.number((value) => value >= 0.001 && value <= 1000000.0)}),
  },
  "federation.finished": {
    of: "federated",
    fields: shape.record({rounds: shape.integer(1, 9007199254740991), state: shape.hex64}),
  },
  "cut.begun": {
    of: "cut",
    fields: shape.record({layers: shape.integer(0, 1000), wire: shape.literal("bfloat16", "int8"), spf_share: shape.number((value) => value >= 0 && value <= 1)}),
  },
  "cut.joined": {
    of: "cut",
    fields: shape.record({party: shape.match(/^(?:[a-z0-9][a-z0-9-]{0,62})$/), consent: shape.record({payload: shape.match(/^(?:[A-Za-z0-9+\/]*={0,2})$/), payloadType: shape.literal("application/vnd.sealtrain.cut-consent+json"), signatures: shape.list(shape.record({keyid: shape.match(/^(?:ed25519:[0-9a-f]{64})$/), sig: shape.match(/^(?:[A-Za-z0-9+\/]{86}==)$/)}), { min: 1, max: 1 })})}),
  },
  "cut.received": {
    of: "cut",
    fields: shape.record({party: shape.match(/^(?:[a-z0-9][a-z0-9-]{0,62})$/), dataset_id: shape.hex32, rows: shape.integer(0, 9007199254740991), messages: shape.integer(0, 9007199254740991), bytes: shape.integer(0, 9007199254740991), digest: shape.hex64}),
  },
  "cut.finished": {
    of: "cut",
    fields: shape.record({entries: shape.integer(0, 9007199254740991)}),
  },
  "pads.begun": {
    of: "pads",
    fields: shape.record({pads: shape.literal("own", "pool", "dealer"), checks: shape.integer(1, 4), skip: shape.list(shape.match(/^(?:[A-Za-z0-9_][A-Za-z0-9_.]{0,199})$/), { min: 0, max: 256 }), layers: shape.map(shape.match(/^(?:[A-Za-z0-9_][A-Za-z0-9_.]{0,199})$/), shape.integer(1, 1000000), { min: 1, max: 4096 }), products: shape.integer(1, 1000000), dealer: shape.nullable(shape.record({simulated: shape.boolean}))}),
  },
  "pads.spent": {
    of: "pads",
    fields: shape.record({products: shape.integer(0, 9007199254740991), rows: shape.integer(0, 9007199254740991), bytes_out: shape.integer(0, 9007199254740991), bytes_in: shape.integer(0, 9007199254740991)}),
  },
  "travel.setup": {
    of: "travelling",
    fields: shape.record({buffer: shape.integer(1, 9007199254740991), program: shape.anyObject, holders: shape.map(shape.match(/^(?:[a-z0-9][a-z0-9-]{0,62})$/), shape.integer(1, 9007199254740991), { min: 1, max: 256 }), nonce: shape.hex64, code: shape.hex64, model: shape.hex64}),
  },
  "travel.taken-over": {
    of: "travelling",
    fields: shape.record({code: shape.hex64, model: shape.hex64}),
  },
  "travel.finished": {
    of: "travelling",
    fields: shape.record({model: shape.hex64}, {privacy: shape.map(shape.match(/^(?:[a-z0-9][a-z0-9-]{0,62})$/), shape.record({epsilon: shape.number((value) => value >= 0), delta: shape.number((value) => value >= 0 && value <= 1), sequences: shape.integer(0, 9007199254740991)}), { min: 1, max: 256 })}),
  },
  "trip.lent": {
    of: "travelling",
    fields: shape.record({trip: shape.integer(0, 9007199254740991), holder: shape.match(/^(?:[a-z0-9][a-z0-9-]{0,62})$/), start: shape.integer(0, 9007199254740991), end: shape.integer(0, 9007199254740991), id: shape.hex32}),
  },
  "trip.written": {
    of: "travelling",
    fields: shape.record({trip: shape.integer(0, 9007199254740991), size: shape.integer(0, 9007199254740991), mark: shape.hex64}),
  },
  "trip.refused": {
    of: "travelling",
    fields: shape.record({trip: shape.integer(0, 9007199254740991), holder: shape.match(/^(?:[a-z0-9][a-z0-9-]{0,62})$/), code: shape.errorCode}),
  },
  "trip.trained": {
    of: "travelling",
    fields: shape.record({trip: shape.integer(0, 9007199254740991), tokens: shape.integer(1, 9007199254740991), nonce: shape.hex64, after: shape.record({code: shape.hex64, model: shape.hex64})}, {moved: shape.number((value) => value >= -1)}),
  },
  "trip.scrubbed": {
    of: "travelling",
    fields: shape.record({trip: shape.integer(0, 9007199254740991), seed: shape.hex64, nonce: shape.hex64, proof: shape.hex64}),
  },
};

/** Whether the table has such an event with such fields. */
const isWritten = (event, fields) =>
  Object.hasOwn(EVENTS, event) && EVENTS[event].fields(fields);
return { EVENTS, isWritten };
})();
const module_cut = (() => {
// Rules of a run whose model is cut between owners and a guest (spec/split-cut.md §4).

const { Refusal, demand, seconds } = module_bytes;
const { readOwned } = module_consortium;
const { isWritten } = module_logevents;
const shape = module_shape;

const { count, list, literal, record } = shape;
const TOLERANCE = 300;
const claim = (condition, message) => demand(condition, "claim-contradicted", message);
const ids = (values) => values.every((one, i) => i === 0 || values[i - 1].dataset_id < one.dataset_id);

const ORDER = ["cut.begun", "cut.joined", "cut.received", "cut.finished"];

const CONSENT = record({
  version: literal(1),
  consortium_id: shape.hex64,
  owner: shape.ownerName,
  owner_id: shape.hex64,
  nonce: shape.hex32,
  signed_at: shape.realTime,
  run_id: shape.hex32,
  app_id: shape.hex40,
  compose_hash: shape.hex64,
  recipe_hash: shape.hex64,
  datasets: (value) =>
    list(record({ dataset_id: shape.hex32, name: shape.ownerName, root: shape.hex64, rows: count }), {
      min: 1,
      max: 1024,
    })(value) && ids(value),
});

async function cutHolds(state) {
  const { predicate } = state;
  const { recipe } = state.need("lock");
  const events = predicate.run_log.entries.filter((one) => one.event.startsWith("cut."));
  let place = 0;
  for (const { event, fields } of events) {
    claim(isWritten(event, fields), `${event} is unknown or has another form`);
    claim(ORDER.indexOf(event) >= place, `${event} is out of order`);
    place = ORDER.indexOf(event);
  }
  const of = (name) => events.filter((one) => one.event === name).map((one) => one.fields);
  const [begun, finished] = [of("cut.begun"), of("cut.finished")];
  claim(begun.length === 1 && finished.length === 1, "not begun and finished once");
  for (const name of ["layers", "wire", "spf_share"]) {
    claim(begun[0][name] === recipe.collaboration[name], `another ${name} than the recipe's`);
  }
  const consents = new Map();
  for (const { party, consent } of of("cut.joined")) {
    const document = await consentOf(state, party, consent);
    claim(!consents.has(party), "a consent is given twice");
    consents.set(party, document);
  }
  const listed = predicate.collaboration.parties.map((one) => one.name).sort().join();
  const owners = [...new Set(recipe.datasets.map((one) => one.owner))].sort().join();
  const joined = [...consents.keys()].sort().join();
  claim(listed === joined && joined === owners, "parties, consents and owners differ");
  const known = new Map(state.need("datasets").map((one) => [one.dataset_id, one]));
  const rows = new Map();
  for (const [party, { datasets }] of consents) {
    const own = [...known.values()].filter((one) => one.owner === party);
    claim(own.length === datasets.length, "a consent is to other datasets");
    for (const one of datasets) {
      const { owner, name, root, records } = known.get(one.dataset_id) ?? {};
      claim(owner === party && name === one.name && root === one.root, "a consent is to another dataset or root");
      claim(records === null || one.rows <= records, "a consent to more rows than the dataset has");
      rows.set(one.dataset_id, { party, rows: one.rows });
    }
  }
  const seen = new Set();
  for (const { party, dataset_id: id, rows: got } of of("cut.received")) {
    claim(rows.has(id) && rows.get(id).party === party, "a dataset came from another party");
    claim(!seen.has(id), "a dataset came twice");
    claim(got <= rows.get(id).rows, "more rows than consented to");
    seen.add(id);
  }
  claim(seen.size === rows.size, "a dataset never came");
  for (const { event, fields } of predicate.run_log.entries) {
    if (event !== "data.counted") continue;
    claim(isWritten(event, fields), "counts of another form");
    for (const [id, counts] of Object.entries(fields)) {
      if (counts === null || !rows.has(id)) continue;
      claim(counts.whole + counts.truncated === rows.get(id).rows, "other records counted than consented to");
    }
  }
  return `${consents.size} owners gave their consent and kept their records`;
}

async function consentOf({ predicate, owners, consortiumId }, party, envelope) {
  const type = "application/vnd.sealtrain.cut-consent+json";
  const { owner, document } = await readOwned(envelope, owners, consortiumId, { type, form: CONSENT, what: "consent" });
  const { run, deployment, recipe } = predicate;
  claim(owner === party, "a consent by another owner");
  const target = { run_id: run.run_id, app_id: deployment.app_id, compose_hash: deployment.compose_hash, recipe_hash: recipe.recipe_hash };
  const fits = Object.keys(target).every((name) => document[name] === target[name]);
  demand(fits, "run-mismatch", "a consent to another run, deployment or recipe");
  const at = seconds(document.signed_at);
  const [first, last] = [seconds(run.started_at), seconds(run.finished_at)];
  if (first === null || last === null) throw new Refusal("claim-contradicted", "no such time");
  claim(first - TOLERANCE <= at && at <= last + TOLERANCE, "a consent from outside the run");
  return document;
}
return { cutHolds };
})();
const module_stays = (() => {
// The guests that held keys in a run, and when (spec/parties.md, spec/run-manifest.md §4.1).

const { demand, digest, seconds, utf8 } = module_bytes;
const { isWritten } = module_logevents;

/** What a kind of collaboration asks of the manifest; `null` for one guest. */
const KINDS = {
  travelling: { role: "holder", limits: ["parties-evidence", "lent-by-software"] },
  federated: { role: "holder", limits: ["parties-evidence", "updates-merged"] },
  pads: { role: null, limits: ["base-model-public", "outsourced-shapes", "dealer-apart"] },
  cut: { role: "client", limits: ["activations-reveal", "clients-word"], keys: false },
  nodes: { role: null, limits: ["nodes-evidence"] },
};

const kindOf = (name) => (Object.hasOwn(KINDS, name) ? KINDS[name] : null);
const runId = async (whole) => (await digest(utf8(whole))).slice(0, 32);
const partyRunId = (run, party) => runId(`sealtrain/party/v1:${run}/${party}`);
const nodeRunId = (run, session, node) => runId(`sealtrain/node/v1:${run}/${session}/${node}`);

/** Seconds of a time in the manifest; refused where no calendar has it. */
function moment(value) {
  const found = seconds(value);
  demand(found !== null, "claim-contradicted", `no such time: ${value}`);
  return found;
}

/** Whether brokers released keys to a run. */
const keysReleased = ({ collaboration }) =>
  !collaboration || (kindOf(collaboration.kind)?.keys ?? true);

/** Every guest that held keys: `{runId, party, begins, until, leads}`. */
async function staysOf(predicate) {
  const { run, collaboration } = predicate;
  const ends = { begins: moment(run.started_at), until: moment(run.finished_at) };
  const own = { runId: run.run_id, party: null, leads: true, ...ends };
  if (!collaboration || !kindOf(collaboration.kind)?.role) {
    return collaboration?.kind === "nodes" ? [own, ...(await nodes(predicate))] : [own];
  }
  return Promise.all(
    collaboration.parties.map(async (party) => ({
      runId: await partyRunId(run.run_id, party.name),
      party: party.name,
      leads: false,
      begins: moment(party.from),
      until: moment(party.until),
    })),
  );
}

const BEGINNINGS = ["run.started", "run.restarted", "run.resumed"];
const WORK = ["checkpoint.sealed", "outputs.sealed", "training.finished"];

/** The meetings of a run log: what was joined, and when that was over (spec/nodes.md §5). */
function meetings({ run, run_log: { entries } }) {
  const claim = (condition, message) => demand(condition, "claim-contradicted", message);
  const found = [];
  let there = false;
  let latest = null;
  for (const { event, at: written, fields } of entries) {
    const at = moment(written);
    if (BEGINNINGS.includes(event)) {
      if (there) found.at(-1).until = latest;
      there = false;
    } else if (event === "nodes.joined") {
      claim(!there, "nodes joined twice without an interruption");
      claim(isWritten(event, fields), "nodes.joined has another form");
      found.push({ ...fields, at, until: null });
      there = true;
    }
    claim(there || !WORK.includes(event), `${event} without nodes that had joined`);
    if (event === "training.finished") found.at(-1).until ??= at;
    latest = at;
  }
  return found.map((one) => ({ ...one, until: one.until ?? moment(run.finished_at) }));
}

async function nodes(predicate) {
  const all = meetings(predicate).flatMap(({ session, nodes: joined, until }) =>
    joined.map(async ({ node, from }) => ({
      runId: await nodeRunId(predicate.run.run_id, session, node),
      party: null,
      leads: false,
      begins: moment(from),
      until,
    })),
  );
  return Promise.all(all);
}

/** Check 10's first half: the parties are the recipe's. Returns the owners whose data is listed. */
async function checkParties(predicate, recipe) {
  const { collaboration, run } = predicate;
  const claim = (condition, message) => demand(condition, "claim-contradicted", message);
  const owners = new Set(recipe.datasets.map((one) => one.owner));
  const kind = collaboration?.kind ?? null;
  claim(kind === (recipe.collaboration?.kind ?? null), "another kind of collaboration");
  const role = kind === null ? null : kindOf(kind)?.role;
  if (!role) {
    claim(!collaboration?.parties.length, "parties in a run of one guest");
    return owners;
  }
  const names = collaboration.parties.map((one) => one.name);
  claim(new Set(names).size === names.length, "a party is listed twice");
  for (const party of collaboration.parties) {
    claim(owners.has(party.name), "a party that is no owner of data");
    claim(party.run_id === (await partyRunId(run.run_id, party.name)), "another run id of a party");
    claim(party.role === role, "another role of a party");
  }
  const holders = new Set(recipe.datasets.filter((one) => one.role === "train").map((one) => one.owner));
  const needed = { travelling: holders.size, federated: recipe.collaboration.min_parties, cut: 1 }[kind];
  claim(names.filter((name) => holders.has(name)).length >= needed, "a party is missing");
  return new Set(names);
}
return { kindOf, partyRunId, nodeRunId, moment, keysReleased, staysOf, BEGINNINGS, meetings, checkParties };
})();
const module_pads = (() => {
// Rules of a run under one-time pads (spec/one-time-pads.md §8).

const { demand } = module_bytes;
const { canonical } = module_json;
const { isWritten } = module_logevents;
const { BEGINNINGS } = module_stays;

const claim = (condition, message) => demand(condition, "claim-contradicted", message);
const text = (value) => new TextDecoder().decode(canonical(value));

/** Whether a session of pads began as a recipe asks for (spec/one-time-pads.md §8, rule 2). */
const beganAsAsked = (begun, asked) =>
  ["pads", "checks", "skip"].every((name) => text(begun[name]) === text(asked[name])) &&
  (begun.dealer !== null) === (asked.pads === "dealer");

async function padsHold(state) {
  const { predicate } = state;
  const asked = state.need("lock").recipe.collaboration;
  let layers = null;
  let begun = false;
  let spent = null;
  let products = 0;
  for (const { event, fields } of predicate.run_log.entries) {
    if (BEGINNINGS.includes(event)) {
      if (spent) products += spent.products;
      begun = false;
      spent = null;
    } else if (event === "pads.begun") {
      claim(isWritten(event, fields), "pads.begun has another form");
      claim(!begun, "pads are begun twice in one process");
      claim(beganAsAsked(fields, asked), "pads are begun otherwise than the recipe says");
      claim(layers === null || layers === text(fields.layers), "other layers than before");
      layers = text(fields.layers);
      begun = true;
    } else if (event === "pads.spent") {
      claim(isWritten(event, fields), "pads.spent has another form");
      claim(begun, "pads are spent before they are begun");
      const falls = spent && Object.keys(fields).some((name) => fields[name] < spent[name]);
      claim(!falls, "a count falls");
      spent = fields;
    } else if (event === "checkpoint.sealed" || event === "training.finished") {
      claim(spent, "work without products of the accelerator");
    } else {
      claim(!event.startsWith("pads."), `unknown event ${event}`);
    }
  }
  claim(layers !== null, "pads were never begun");
  return `${products + (spent?.products ?? 0)} products by an accelerator that sees none of their inputs`;
}
return { beganAsAsked, padsHold };
})();
const module_privacyloss = (() => {
// Epsilon of a subsampled Gaussian mechanism, by composing its privacy loss on a grid
// (spec/federated-rounds.md §6, rule 9). It agrees with accountants to a hundredth, and is no bound.

const POINTS = 2 ** 15;

/** Normal distribution function, from a series where it is exact to 1e-15 and a fraction beyond. */
function normal(x) {
  if (x > 0) return 1 - normal(-x);
  if (x < -38) return 0;
  const density = Math.exp((-x * x) / 2) / Math.sqrt(2 * Math.PI);
  if (x > -3) {
    let [term, sum] = [-x, -x];
    for (let k = 1; k < 200 && Math.abs(term) > 1e-18; k++) sum += term *= (x * x) / (2 * k + 1);
    return 0.5 - density * sum;
  }
  let fraction = 0;
  for (let k = 120; k > 0; k--) fraction = k / (-x + fraction);
  return density / (-x + fraction);
}

function transform(real, imaginary, sign) {
  const size = real.length;
  for (let i = 1, j = 0; i < size; i++) {
    let bit = size >> 1;
    for (; j & bit; bit >>= 1) j ^= bit;
    j ^= bit;
    if (i >= j) continue;
    [real[i], real[j]] = [real[j], real[i]];
    [imaginary[i], imaginary[j]] = [imaginary[j], imaginary[i]];
  }
  for (let length = 2; length <= size; length <<= 1) {
    const half = length >> 1;
    const angle = (sign * 2 * Math.PI) / length;
    for (let k = 0; k < half; k++) {
      const [cosine, sine] = [Math.cos(angle * k), Math.sin(angle * k)];
      for (let at = k; at < size; at += length) {
        const other = at + half;
        const [x, y] = [real[other] * cosine - imaginary[other] * sine, real[other] * sine + imaginary[other] * cosine];
        real[other] = real[at] - x;
        imaginary[other] = imaginary[at] - y;
        real[at] += x;
        imaginary[at] += y;
      }
    }
  }
}

/** Mass of one step's loss at the points of a grid, and mean and variance of the loss. */
function oneStep(noise, rate, width, points) {
  const where = (loss) => {
    const inner = Math.expm1(loss) / rate + 1;
    return inner <= 0 ? -Infinity : noise * noise * Math.log(inner) + 0.5;
  };
  const below = (x) => (1 - rate) * normal(x / noise) + rate * normal((x - 1) / noise);
  const mass = new Float64Array(points);
  const half = points / 2;
  let mean = 0;
  for (let i = 0; i < points; i++) {
    const loss = (i - half) * width;
    mass[i] = Math.max(0, below(where(loss + width / 2)) - below(where(loss - width / 2)));
    mean += mass[i] * loss;
  }
  return { mass, mean };
}

/** Mean and variance of the loss itself. */
function moments(noise, rate) {
  const steps = 20000;
  const [low, high] = [-12 * noise, 1 + 12 * noise];
  const dx = (high - low) / steps;
  let [total, mean, square] = [0, 0, 0];
  for (let i = 0; i <= steps; i++) {
    const x = low + i * dx;
    const weight = (1 - rate) * Math.exp(-((x / noise) ** 2) / 2) + rate * Math.exp(-(((x - 1) / noise) ** 2) / 2);
    const loss = Math.log1p(rate * Math.expm1((2 * x - 1) / (2 * noise * noise)));
    total += weight;
    mean += weight * loss;
    square += weight * loss * loss;
  }
  mean /= total;
  return { mean, variance: square / total - mean * mean };
}

/** What so many steps spend of each patient at `delta`. */
function epsilonOf({ noise, rate, steps, delta }) {
  const { mean, variance } = moments(noise, rate);
  const largest = Math.log1p(rate * Math.expm1((1 + 16 * noise) / (2 * noise * noise)));
  const reach = 1.25 * (Math.abs(steps * mean) + 14 * Math.sqrt(steps * variance) + largest) + 1;
  const width = (2 * reach) / POINTS;
  const { mass, mean: rounded } = oneStep(noise, rate, width, POINTS);
  const real = new Float64Array(POINTS);
  for (let i = 0; i < POINTS; i++) real[(i + POINTS / 2) % POINTS] = mass[i];
  const imaginary = new Float64Array(POINTS);
  transform(real, imaginary, -1);
  for (let i = 0; i < POINTS; i++) {
    const size = Math.hypot(real[i], imaginary[i]) ** steps;
    const angle = Math.atan2(imaginary[i], real[i]) * steps;
    real[i] = size * Math.cos(angle);
    imaginary[i] = size * Math.sin(angle);
  }
  transform(real, imaginary, 1);
  const shift = steps * (mean - rounded);
  const losses = Array.from(real, (value, i) => ({
    loss: (i < POINTS / 2 ? i : i - POINTS) * width + shift,
    mass: Math.max(0, value / POINTS),
  }));
  const spent = (epsilon) =>
    losses.reduce((sum, one) => (one.loss > epsilon ? sum + one.mass * -Math.expm1(epsilon - one.loss) : sum), 0);
  let [low, high] = [0, reach];
  if (spent(0) <= delta) return 0;
  for (let i = 0; i < 50; i++) {
    const middle = (low + high) / 2;
    if (spent(middle) > delta) low = middle;
    else high = middle;
  }
  return high;
}
return { epsilonOf };
})();
const module_federated = (() => {
// Rules of federated rounds (spec/federated-rounds.md §6).

const { demand, seconds } = module_bytes;
const { canonical } = module_json;
const { isWritten } = module_logevents;
const { beganAsAsked } = module_pads;
const { epsilonOf } = module_privacyloss;

const claim = (condition, message) => demand(condition, "claim-contradicted", message);
const names = (values) => [...values].sort().join();
const text = (value) => new TextDecoder().decode(canonical(value));
const COUNTS = ["products", "rows", "bytes_out", "bytes_in"];
const NOTHING = Object.fromEntries(COUNTS.map((name) => [name, 0]));
const TOLERANCE = 300;
const SHARE = 0.98;

/** Fields that an event has exactly where patients are hidden, and those that are null then. */
const IF_HIDDEN = { "party.joined": ["patients"], "round.merged": ["noise_multiplier"] };
const NULL_IF_HIDDEN = { "update.taken": ["digest", "norm"] };

/** Whether the log of a federation that hides patients, or hides none, may have an event. */
function isTold(event, fields, hidden) {
  if (!isWritten(event, fields) || (event === "federation.planned" && !hidden)) return false;
  return (
    (IF_HIDDEN[event] ?? []).every((name) => Object.hasOwn(fields, name) === hidden) &&
    (NULL_IF_HIDDEN[event] ?? []).every((name) => (fields[name] === null) === hidden)
  );
}

/** Sessions of pads, where an accelerator multiplies for the parties: each one party's, and forward only. */
class Sessions {
  constructor({ products, local_steps: steps }) {
    this.asked = products ?? null;
    this.steps = steps;
    this.layers = null;
    this.last = new Map();
  }

  join(begun) {
    claim((begun !== undefined) === (this.asked !== null), "other products made elsewhere than the recipe's");
    if (!begun) return;
    claim(beganAsAsked(begun, this.asked), "pads are begun otherwise than the recipe says");
    const layers = text(begun.layers);
    claim((this.layers ?? layers) === layers, "pads are begun for other layers than the others'");
    this.layers = layers;
  }

  give(party, spent) {
    claim((spent !== undefined) === (this.asked !== null), "other products counted than the recipe's");
    if (!spent) return;
    const { owner, counts } = this.last.get(spent.session) ?? { owner: party, counts: NOTHING };
    claim(owner === party, "pads of another party");
    claim(COUNTS.every((name) => spent[name] >= counts[name]), "pads that were used before");
    const [products, rows] = COUNTS.map((name) => spent[name] - counts[name]);
    claim(this.steps <= products && products <= rows, "an update of fewer products than steps");
    this.last.set(spent.session, { owner: party, counts: spent });
  }
}

class Federation {
  constructor(state) {
    const { collaboration, datasets } = state.need("lock").recipe;
    this.asked = collaboration;
    this.sessions = new Sessions(collaboration);
    this.hidden = collaboration.patient_privacy ?? null;
    this.stays = new Map(state.predicate.collaboration.parties.map((one) => [one.name, one]));
    this.holders = new Set(datasets.filter((one) => one.role === "train").map((one) => one.owner));
    this.records = recordsOf(state, datasets);
    this.present = new Map();
    this.patients = new Map();
    this.merged = new Set();
    this.begun = false;
    this.finished = false;
    this.plan = null;
    this.round = 0;
    this.open = false;
    this.taken = new Set();
    this.state = null;
  }

  read({ event, fields, at }) {
    if (event !== "federation.begun") claim(this.begun, `${event} before the federation begins`);
    claim(!this.finished, `${event} after the federation finished`);
    this[STEPS[event]](fields, seconds(at));
  }

  begin(fields) {
    const { aggregation, rounds, min_parties: least } = this.asked;
    claim(!this.begun, "a federation begins twice");
    const same = fields.rule === aggregation && fields.rounds === rounds && fields.min_parties === least;
    claim(same && names(fields.parties) === names(this.holders), "another federation than the recipe's");
    this.begun = true;
    this.state = fields.state;
  }

  join({ party, records, patients, products }) {
    claim(this.holders.has(party) && !this.present.has(party), "a party that is no owner, or present already");
    claim(records === this.records.get(party), "another number of records than its manifests say");
    if (this.hidden) {
      claim((this.patients.get(party) ?? patients) === patients, "another number of patients than before");
      this.patients.set(party, patients);
    }
    this.sessions.join(products);
    this.present.set(party, records);
  }

  leave({ party }) {
    claim(this.present.delete(party), "a party left that was not present");
  }

  refuse() {}

  planned(fields) {
    claim(this.plan === null && this.round === 0, "the noise is planned twice, or too late");
    const there = [...this.present.keys()];
    const same = names(Object.keys(fields.patients)) === names(there);
    claim(same && there.every((one) => fields.patients[one] === this.patients.get(one)), "planned for other patients");
    const all = there.reduce((sum, one) => sum + this.patients.get(one), 0);
    const rate = this.hidden.patients_a_round / all;
    claim(Math.abs(fields.rate - rate) <= 1e-9 * rate, "another rate than the recipe's");
    const noise = this.hidden.noise_multiplier ?? null;
    claim(noise === null || noise === fields.noise_multiplier, "another noise than the recipe's");
    claim(fields.epsilon <= this.hidden.target_epsilon, "epsilon is above the recipe's");
    const own = epsilonOf({ noise: fields.noise_multiplier, rate: fields.rate, steps: this.asked.rounds, delta: this.hidden.delta });
    claim(fields.epsilon >= SHARE * own, "epsilon is too small for this noise");
    this.plan = fields;
  }

  open_round(fields) {
    claim(!this.open && fields.round === this.round + 1, "a round is out of order");
    claim(fields.round <= this.asked.rounds, "more rounds than the recipe's");
    claim(!this.hidden || this.plan, "a round before the noise was planned");
    claim(fields.state === this.state, "a round begins from another state");
    this.round = fields.round;
    this.open = true;
    this.taken = new Set();
  }

  take({ round: of, party, records, products }, at) {
    claim(this.open && of === this.round, "an update outside of its round");
    claim(this.present.has(party) && !this.taken.has(party), "an update of an absent party, or a second one");
    claim(records === this.present.get(party), "another number of records than at its join");
    const stay = this.stays.get(party);
    claim(stay, "an update of a party that the manifest does not name");
    const [from, until] = [seconds(stay.from), seconds(stay.until)];
    claim(from - TOLERANCE <= at && at <= until + TOLERANCE, "an update while its party took no part");
    this.sessions.give(party, products);
    this.taken.add(party);
  }

  refuse_update({ round: of, party }) {
    claim(this.holders.has(party), "a refusal of a party that is no owner");
    claim(of <= this.round, "a refusal of a later round");
  }

  merge(fields) {
    claim(this.open && fields.round === this.round, "a round is merged out of order");
    claim(fields.rule === this.asked.aggregation, "another rule than the recipe's");
    const listed = fields.parties;
    const same = new Set(listed).size === listed.length && names(listed) === names(this.taken);
    claim(same && listed.length >= this.asked.min_parties, "merged of other parties than gave an update");
    claim(!this.hidden || fields.noise_multiplier === this.plan.noise_multiplier, "merged under another noise");
    for (const party of listed) this.merged.add(party);
    this.state = fields.state;
    this.open = false;
  }

  finish(fields) {
    const over = !this.open && this.round === this.asked.rounds && fields.rounds === this.round;
    claim(over && fields.state === this.state, "finished before its last round, or with another state");
    this.finished = true;
  }
}

const STEPS = {
  "federation.begun": "begin",
  "party.joined": "join",
  "party.left": "leave",
  "party.refused": "refuse",
  "federation.planned": "planned",
  "round.begun": "open_round",
  "update.taken": "take",
  "update.refused": "refuse_update",
  "round.merged": "merge",
  "federation.finished": "finish",
};
const OURS = /^(?:federation|party|round|update)\./;

/** Number of each party's training records, null where one of its manifests states no number. */
function recordsOf(state, asked) {
  const training = new Set(asked.filter((one) => one.role === "train").map((one) => `${one.owner}/${one.name}`));
  const result = new Map();
  for (const { owner, name, records } of state.need("datasets")) {
    const own = training.has(`${owner}/${name}`) ? records : 0;
    const before = result.has(owner) ? result.get(owner) : 0;
    result.set(owner, before === null || records === null ? null : before + own);
  }
  return result;
}

/** The federation that a run log tells of, held to rules 1 to 10. */
function mergedRounds(state) {
  const { predicate } = state;
  const federation = new Federation(state);
  const hidden = federation.hidden !== null;
  for (const entry of predicate.run_log.entries) {
    if (!OURS.test(entry.event)) continue;
    claim(isTold(entry.event, entry.fields, hidden), `${entry.event} is unknown or has another form`);
    federation.read(entry);
  }
  claim(federation.finished, "the federation never finished");
  const listed = predicate.collaboration.parties.map((one) => one.name);
  claim(names(listed) === names(federation.merged), "other parties than those whose updates were merged");
  return federation;
}

async function roundsHold(state) {
  const federation = mergedRounds(state);
  if (federation.hidden) privacyFollows(state.predicate, federation);
  return `${federation.round} rounds of ${federation.merged.size} parties`;
}

function privacyFollows({ privacy, collaboration }, { hidden, plan, asked, patients }) {
  const expected = {
    epsilon: plan.epsilon,
    delta: hidden.delta,
    accountant: hidden.accountant,
    noise_multiplier: plan.noise_multiplier,
    max_patient_norm: hidden.max_patient_norm,
    records_a_patient: hidden.records_a_patient,
    sample_rate: plan.rate,
    rounds: asked.rounds,
  };
  for (const [name, value] of Object.entries(expected)) {
    claim(privacy[name] === value, `another ${name} than the plan's`);
  }
  const parties = collaboration.parties.map((one) => one.name).sort();
  const same = privacy.parties.map((one) => one.name).join() === parties.join();
  claim(same && privacy.parties.every((one) => one.patients === patients.get(one.name)), "patients of other parties");
}
return { mergedRounds, roundsHold };
})();
const module_nodes = (() => {
// Rules of a run of several nodes (spec/nodes.md §5).

const { demand, seconds } = module_bytes;
const { meetings, nodeRunId } = module_stays;

const TOLERANCE = 300;
const claim = (condition, message) => demand(condition, "claim-contradicted", message);

async function nodesHold(state) {
  const { predicate } = state;
  const { recipe } = state.need("lock");
  const { nodes: size } = recipe.collaboration;
  const ranks = recipe.backend?.ranks ?? 1;
  const met = meetings(predicate);
  claim(met.length > 0, "no node ever joined");
  const sessions = new Set(met.map((one) => one.session));
  claim(sessions.size === met.length, "a session occurs twice");
  const before = new Set();
  for (const { session, ranks: told, nodes, at } of met) {
    claim(told === ranks, "another number of ranks than the recipe's");
    const expected = Array.from({ length: size - 1 }, (_, place) => place + 1);
    claim(nodes.map((one) => one.node).join() === expected.join(), "not every node joined, in order");
    for (const { node, run_id: id, from } of nodes) {
      claim(id === (await nodeRunId(predicate.run.run_id, session, node)), "another run id of a node");
      const begins = seconds(from);
      claim(begins !== null && begins <= at + TOLERANCE, "a node had its keys after it joined");
    }
    const evidence = nodes.map((one) => one.evidence);
    const keys = new Set(nodes.map((one) => one.key));
    const once = new Set(evidence).size === nodes.length && keys.size === nodes.length;
    claim(once, "two nodes with the same evidence or key");
    claim(!evidence.some((one) => before.has(one)), "evidence of an earlier session");
    for (const one of evidence) before.add(one);
  }
  const told = predicate.run.environment.world_size;
  claim(told === String(size * ranks), "another number of processes than the recipe's");
  return `${size} nodes of ${ranks} ranks, met ${met.length} times`;
}
return { nodesHold };
})();
const module_travelling = (() => {
// Rules of a run whose accelerator travels (spec/travelling.md §5).

const { CannotCheck, concat, demand, digest, fromHex, hex, seconds, sha256 } = module_bytes;
const { canonical } = module_json;
const { isWritten } = module_logevents;

const TOLERANCE = 300;
const PIECE = 2 ** 18;
const [NARROW, WIDE] = [2, 4];
const broken = (condition, message) => demand(condition, "transcript-invalid", message);
const text = (value) => new TextDecoder().decode(canonical(value));

const OURS = /^(?:travel|trip)\./;

/** Settings of the program that trains a recipe with the trainer of its phase. */
async function trainerOf(recipe) {
  const { phase, trainer, collaboration } = recipe;
  const program = { version: 1, phase, recipe: await digest(canonical(recipe)) };
  program.seq_len = phase === "cpt" ? trainer.block_size : trainer.max_length;
  program.batch_size = trainer.per_device_train_batch_size * trainer.gradient_accumulation_steps;
  if (typeof collaboration.max_update_norm === "number") program.max_update_norm = collaboration.max_update_norm;
  return program;
}

/** Settings of the accelerator's program that a recipe means, but for its device. */
async function programOf(recipe) {
  const { model, trainer, collaboration } = recipe;
  if (collaboration.program === "trainer") return trainerOf(recipe);
  const { sequence_privacy: privacy, max_update_norm: norm } = collaboration;
  const { n_layer, n_head, n_embd, vocab_size } = model.config;
  const program = { version: 1, n_layer, n_head, n_embd, vocab_size };
  program.seq_len = trainer.block_size;
  program.batch_size = trainer.per_device_train_batch_size;
  program.seed = model.init_seed;
  for (const name of ["learning_rate", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon", "max_grad_norm"]) {
    program[name] = trainer[name];
  }
  if (model.dtype === "bfloat16") program.dtype = model.dtype;
  if (privacy) program.privacy = privacy;
  if (typeof norm === "number") program.max_update_norm = norm;
  return program;
}

/** Fingerprint under a nonce of so many bytes of a seed's keystream (spec/travelling.md §4). */
async function proofOfWipe(seed, nonce, size) {
  const subtle = globalThis.crypto?.subtle;
  if (!subtle) throw new CannotCheck("this browser offers no WebCrypto on this page");
  const stream = await subtle.importKey("raw", fromHex(seed), "AES-CTR", false, ["encrypt"]);
  const key = await subtle.importKey("raw", fromHex(nonce), "AES-GCM", false, ["encrypt"]);
  const tags = [];
  for (let at = 0; at < size; at += PIECE) {
    const counter = new Uint8Array(16);
    new DataView(counter.buffer).setBigUint64(8, BigInt(at / 16));
    const zeros = new Uint8Array(Math.min(PIECE, size - at));
    const additionalData = new Uint8Array(await subtle.encrypt({ name: "AES-CTR", counter, length: 64 }, stream, zeros));
    const iv = new Uint8Array(12);
    new DataView(iv.buffer).setBigUint64(4, BigInt(at));
    const tag = await subtle.encrypt({ name: "AES-GCM", iv, additionalData }, key, new Uint8Array(0));
    tags.push(new Uint8Array(tag));
  }
  return hex(await sha256(concat(...tags)));
}

class Travel {
  constructor(recipe, program, parties) {
    this.recipe = recipe;
    this.asked = recipe.collaboration;
    this.windows = new Map(parties.map((one) => [one.name, [seconds(one.from), seconds(one.until)]]));
    this.owners = [...new Set(recipe.datasets.filter((one) => one.role === "train").map((one) => one.owner))].sort();
    this.program = program;
    this.width = "recipe" in program || program.vocab_size > 65536 ? WIDE : NARROW;
    this.trips = [];
    this.ids = new Set();
    this.nonces = new Set();
    this.trained = new Map();
    this.steps = 0;
    this.setup = null;
    this.finished = false;
  }

  async read({ event, fields, at }) {
    broken(!this.finished, `${event} after the end`);
    broken((this.setup !== null) === (event !== "travel.setup"), "not one setup before all else");
    await this[STEPS[event]](fields, seconds(at));
  }

  begin(fields) {
    const { device, ...program } = fields.program;
    broken(["cpu", "cuda"].includes(device) && text(program) === text(this.program), "another program than the recipe's");
    broken(fields.buffer === this.asked.buffer_bytes, "another buffer than the recipe's");
    broken(Object.keys(fields.holders).sort().join() === this.owners.join(), "other holders than the recipe's");
    this.fresh(fields.nonce);
    this.setup = fields;
    this.model = fields.model;
  }

  fresh(...nonces) {
    for (const nonce of nonces) {
      broken(!this.nonces.has(nonce), "a nonce or seed was used twice");
      this.nonces.add(nonce);
    }
  }

  of(trip, holds, becomes) {
    const found = this.trips[trip];
    broken(found && holds.includes(found.state), `trip ${trip} is out of order`);
    found.state = becomes;
    return found;
  }

  lend({ trip, holder, start, end, id }) {
    broken(trip === this.trips.length, "trips are not counted");
    broken(Object.hasOwn(this.setup.holders, holder), "a holder that the setup does not name");
    broken(start < end && end <= this.setup.buffer, "a range outside of the buffer");
    broken(!this.ids.has(id), "a capability occurs twice");
    this.ids.add(id);
    this.trips.push({ holder, start, end, state: "lent" });
  }

  write({ trip, size }, at) {
    const { holder, start, end } = this.of(trip, ["lent"], "written");
    broken(size === end - start, "not the whole range was written");
    const window = this.windows.get(holder);
    const inside = window && window[0] - TOLERANCE <= at && at <= window[1] + TOLERANCE;
    broken(inside, "a chunk from outside of its holder's part");
  }

  refuse({ trip, holder }) {
    const found = this.of(trip, ["lent", "written"], "refused");
    broken(found.holder === holder, "a refusal of another holder");
  }

  train({ trip, tokens, nonce, after, moved }) {
    const { holder, start, end } = this.of(trip, ["written"], "trained");
    const { code, holders } = this.setup;
    broken(after.code === code, "another code");
    this.fresh(nonce);
    broken((moved !== undefined) === ("max_update_norm" in this.program), "what bounds a chunk does not show");
    const step = this.program.batch_size * this.program.seq_len;
    broken(tokens > 0 && tokens % step === 0 && tokens * this.width <= end - start, "not whole steps of what was written");
    const whole = (this.trained.get(holder) ?? 0) + tokens;
    broken(whole <= holders[holder] && whole <= this.most(holder), "a holder gave more than its limit");
    this.steps += tokens / step;
    broken(this.steps <= this.recipe.trainer.max_steps, "more steps than the recipe's");
    this.trained.set(holder, whole);
    this.model = after.model;
  }

  most(holder) {
    const { max_tokens: limit } = this.asked;
    if (typeof limit === "number") return limit;
    return limit?.[holder] ?? Infinity;
  }

  async scrub({ trip, seed, nonce, proof }) {
    const { start, end } = this.of(trip, ["trained", "refused"], "scrubbed");
    this.fresh(nonce, seed);
    broken(proof === (await proofOfWipe(seed, nonce, end - start)), "the range was not wiped");
  }

  takeOver({ code, model }) {
    broken(code === this.setup.code && model === this.model, "taken over from another state");
    for (const trip of this.trips) trip.state = "scrubbed";
  }

  finish({ model, privacy }) {
    broken(this.trips.every((one) => one.state === "scrubbed"), "finished before every trip was wiped");
    broken(model === this.model, "another model state than was trained");
    broken((privacy !== undefined) === ("privacy" in this.program), "what was spent does not show");
    this.finished = true;
  }
}

const STEPS = {
  "travel.setup": "begin",
  "trip.lent": "lend",
  "trip.written": "write",
  "trip.refused": "refuse",
  "trip.trained": "train",
  "trip.scrubbed": "scrub",
  "travel.taken-over": "takeOver",
  "travel.finished": "finish",
};

/** The travel that a run log tells of, held to rules 1 to 7. */
async function travelled({ predicate, need }) {
  const { recipe } = need("lock");
  const travel = new Travel(recipe, await programOf(recipe), predicate.collaboration.parties);
  for (const entry of predicate.run_log.entries) {
    if (!OURS.test(entry.event)) continue;
    broken(isWritten(entry.event, entry.fields), `${entry.event} is unknown or has another form`);
    await travel.read(entry);
  }
  broken(travel.finished, "the travel never finished");
  return travel;
}

async function tripsHold(state) {
  const travel = await travelled(state);
  const { predicate } = state;
  const tokens = [...travel.trained.values()].reduce((sum, one) => sum + one, 0);
  const counted = predicate.run.steps === travel.steps && predicate.run.tokens === tokens;
  demand(counted, "claim-contradicted", "the run counts other steps or tokens than its trips");
  return `${travel.trips.length} trips, ${travel.steps} steps`;
}
return { travelled, tripsHold };
})();
const module_kinds = (() => {
// Check 18: the run log's rules of each kind of collaboration (spec/parties.md §5).

const { demand } = module_bytes;
const { cutHolds } = module_cut;
const { roundsHold } = module_federated;
const { nodesHold } = module_nodes;
const { padsHold } = module_pads;
const { tripsHold } = module_travelling;

/** Kind → examination of a state: returns one line for a reader, or throws what it refuses. */
const RULES = {
  cut: cutHolds,
  federated: roundsHold,
  nodes: nodesHold,
  pads: padsHold,
  travelling: tripsHold,
};

/** (18) What the parties did together follows the rules of their kind. */
async function collaborationHolds(state) {
  const stated = state.predicate.collaboration;
  const asked = state.need("lock").recipe.collaboration;
  if (!stated && !asked) return "one guest, no other party";
  state.need("datasets");
  state.need("log");
  const known = stated && Object.hasOwn(RULES, stated.kind);
  demand(known, "claim-contradicted", "no verifier has rules for this kind");
  return RULES[stated.kind](state);
}
return { RULES, collaborationHolds };
})();
const module_limits = (() => {
// The limits that the facts of a manifest require (spec/run-manifest.md §5).

const { kindOf } = module_stays;

const BEGINNINGS = ["run.started", "run.restarted", "run.resumed"];
const ALWAYS = [
  "side-channels",
  "revocation",
  "owners-word",
  "recipe-judgement",
  "guest-clock",
  "broker-word",
  "sealed-outputs",
];

const OF_TIER = {
  processor: [],
  "processor-and-paravisor": ["paravisor-word"],
  "cloud-tpm": ["cloud-tpm-word"],
  cloud: ["cloud-word"],
};

/** Whether the kernel held the border of every process of a run (spec/run-log.md). */
function borderHeld(entries) {
  let asked = false;
  let closed = false;
  for (const { event, fields } of entries) {
    if (BEGINNINGS.includes(event)) {
      if (asked) return false;
      asked = true;
    } else if (event === "border.closed") {
      const { landlock, unbound, seccomp } = fields ?? {};
      if (!(Number.isInteger(landlock) && landlock >= 6 && unbound === 0 && seccomp === true)) return false;
      asked = false;
      closed = true;
    }
  }
  return closed && !asked;
}

/** Whether public counts say that half of the records or more did not train. */
function halfLeftOut(entries) {
  let total = 0;
  let out = 0;
  for (const { event, fields } of entries) {
    if (event !== "data.counted") continue;
    for (const counts of Object.values(fields ?? {})) {
      const { records, filtered, empty } = counts ?? {};
      if (![records, filtered, empty].every(Number.isInteger)) continue;
      total += records;
      out += filtered + empty;
    }
  }
  return total > 0 && 2 * out >= total;
}

/** Whether the recipe trains on records, and the run log does not say how many of them. */
function trainsUncounted(lock, entries) {
  if (entries.some(({ event }) => event === "data.counted")) return false;
  const datasets = lock.recipe?.datasets;
  return Array.isArray(datasets) && datasets.some((one) => one?.role === "train");
}

/** Ids that a manifest with these facts must list. */
function requiredLimits(predicate) {
  const { privacy, collaboration, consortium, recipe, compute, run_log: log } = predicate;
  const ids = [predicate.simulated ? "simulated" : "hardware", ...OF_TIER[predicate.deployment.tier]];
  if (!borderHeld(log.entries)) ids.push("border-in-software");
  if (!consortium.own_data_consent) ids.push("owners-not-asked");
  const { scripts } = recipe.lock;
  if (scripts && Object.keys(scripts).length) ids.push("own-script");
  if ((scripts && Object.keys(scripts).length) || log.entries.some(({ event }) => event === "rows.served")) {
    ids.push("workload-word");
  }
  if ((recipe.lock.recipe?.hardware?.launch_script ?? null) !== null) ids.push("platform-script");
  if (halfLeftOut(log.entries)) ids.push("records-left-out");
  if (trainsUncounted(recipe.lock, log.entries)) ids.push("records-not-counted");
  if (compute.accelerators.length) ids.push("accelerator-binding");
  ids.push({ none: "memorisation", patients: "patient-scope" }[privacy.dp] ?? "privacy-scope");
  if (privacy.accountant === "gdp") ids.push("accountant-approximate");
  if (collaboration) {
    ids.push(...(kindOf(collaboration.kind)?.limits ?? []));
    const { products } = recipe.lock.recipe?.collaboration ?? {};
    if (collaboration.kind === "federated" && (products ?? null) !== null) ids.push(...kindOf("pads").limits);
  }
  return [...ids, ...ALWAYS];
}
return { requiredLimits };
})();
const module_leases = (() => {
// Within check 14: the leases of each broker, and how many were live (spec/run-manifest.md §4).

const { demand, seconds } = module_bytes;

const ordered = (condition, message) => demand(condition, "claim-contradicted", message);
const live = (condition, message) => demand(condition, "lease-stale", message);

/**
 * Leases that one broker granted to one guest, in the order of its receipts. A renewal says that its
 * lease was live until then: a broker renews none that has ended.
 */
function windowsOf(receipts) {
  const windows = [];
  for (const [place, receipt] of receipts.entries()) {
    const begins = seconds(receipt.released_at);
    const ends = seconds(receipt.lease.not_after);
    const window = windows.at(-1);
    if (place === 0) {
      ordered(receipt.kind === "release", "the first receipt is a renewal");
    } else {
      const before = receipts[place - 1];
      ordered(begins >= seconds(before.released_at), "receipts go back in time");
      if (!(receipt.kind === "release" && receipt.resume)) {
        const same = receipt.kind === "renewal" && receipt.lease.lease_id === before.lease.lease_id;
        ordered(same, "a receipt belongs to another lease");
      }
    }
    if (receipt.kind === "renewal") {
      window.ends = ends;
      continue;
    }
    if (window) window.ends = Math.min(window.ends, begins);
    windows.push({ begins, ends, datasets: new Set(receipt.datasets.map((one) => one.dataset_id)) });
  }
  return windows;
}

/** Refuse unless so many windows are live from when they are for the first time until the end. */
function liveThroughout(windows, threshold, until, name) {
  const moments = windows.flatMap(({ begins, ends }) => [[begins, 1], [ends, -1]]);
  moments.sort((one, other) => one[0] - other[0] || one[1] - other[1]);
  let now = 0;
  let lastEnd = null;
  for (const [at, change] of moments) {
    if (now >= threshold && now + change < threshold) lastEnd = at;
    now += change;
  }
  live(lastEnd !== null, `too few leases on ${name} were live at once`);
  live(until <= lastEnd, `the run went on after its lease on ${name} had ended`);
}
return { windowsOf, liveThroughout };
})();
const module_ledger = (() => {
// Inclusion in a broker's signed log (spec/ledger.md §2, §3).

const { concat, demand, ed25519, equal, fromBase64, fromHex, sha256, utf8 } = module_bytes;
const { canonical } = module_json;
const shape = module_shape;

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
async function verifyProof(proof, key, origin) {
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
return { verifyProof };
})();
const module_series = (() => {
// Series of datasets and standing approvals (spec/approvals.md §2.1 and §5.2, spec/run-manifest.md §2.4).

const { demand, digest, seconds, utf8 } = module_bytes;
const { isFor, readDataset, readDecision } = module_consortium;
const { canonical } = module_json;
const { datasetsOf } = module_lock;
const shape = module_shape;

const { integer, list, literal, number, record } = shape;
const TOLERANCE = 300;
const ROUNDING = 1e-9;
const MAX_MEMBERS = 512;
const claim = (condition, message) => demand(condition, "claim-contradicted", message);
const whole = (condition, message) => demand(condition, "series-mismatch", message);
const proven = (condition, message) => demand(condition, "proof-invalid", message);
const nameOf = ({ owner, name }) => `${owner}/${name}`;

/** Digest of a member, which covers all before it. */
const memberDigest = ({ owner, dataset_id, root, records, schema_digest, series }) =>
  digest(
    utf8("sealtrain/series-member/v1:"),
    canonical({ owner, dataset_id, root, records, schema_digest, series }),
  );

async function follows(member, before) {
  const { series } = member;
  whole(series !== undefined && series.number === before.length + 1, "a gap in a series, or a dataset in none");
  if (before.length === 0) return;
  const [first] = before;
  const last = before[before.length - 1];
  whole(series.mode === last.series.mode, "a successor of another mode");
  whole(series.previous === (await memberDigest(last)), "a successor that names another member before it");
  const { bounds } = first.series;
  if (bounds === undefined) return;
  whole(bounds.schema !== "same" || member.schema_digest === first.schema_digest, "a successor with other columns");
  if (member.records === null || (series.mode === "replace" && last.records === null)) return;
  const growth = member.records - (series.mode === "replace" ? last.records : 0);
  const { min_growth: least = -Infinity, max_growth: most = Infinity } = bounds;
  whole(least <= growth && growth <= most, "a successor that grew less or more than its series allows");
}

async function chainOf(item, found, owners) {
  const former = [];
  for (const envelope of item.former) former.push(await readDataset(envelope, owners));
  const read = item.members.map((id) => found.find((one) => one.dataset_id === id));
  claim(!read.includes(undefined), "a series lists a member that is not among the datasets");
  const members = [...former, ...read];
  const chain = [];
  for (const member of members) {
    whole(nameOf(member) === nameOf(item), "a series lists a dataset of another owner or name");
    await follows(member, chain);
    chain.push(member);
  }
  const expected = chain[0].series.mode === "append" ? chain.length : 1;
  whole(read.length === expected, "not the members that a run of this mode reads");
  const own = found.filter((one) => nameOf(one) === nameOf(item));
  whole(own.length === read.length, "a dataset of the series' name is left out");
  return chain;
}

/** (10) Every series of the lock is one chain: members up to the newest, by owner and name. */
async function chainsOf(predicate, recipe, found, owners) {
  const series = predicate.series ?? [];
  const asked = datasetsOf(recipe).filter((one) => one.series !== undefined);
  claim(series.map(nameOf).join() === asked.map(nameOf).join(), "not the series that the recipe names");
  const chains = new Map();
  for (const item of series) chains.set(nameOf(item), await chainOf(item, found, owners));
  return chains;
}

/** Whether an owner's approval admits a dataset of that owner, root aside. */
async function admits(statement, dataset, chains) {
  const { datasets: pins, standing } = statement;
  if (pins.some((one) => one.dataset_id === dataset.dataset_id)) return true;
  if (standing?.series === undefined) return pins.length === 0;
  const chain = chains.get(nameOf(dataset)) ?? [];
  if (!chain.some((one) => one.dataset_id === dataset.dataset_id)) return false;
  const approved = standing.series.find((one) => one.name === dataset.name);
  return approved !== undefined && approved.first === (await memberDigest(chain[0]));
}

const NEWEST = record({
  owner: shape.ownerName,
  name: shape.ownerName,
  number: integer(1, MAX_MEMBERS),
  member: shape.hex64,
});
const USE = record(
  { owner: shape.ownerName, approval: shape.hex64, run: integer(1) },
  { epsilon: number((value) => value >= 0) },
);

function items(body, name, form) {
  if (!Object.hasOwn(body, name)) return [];
  proven(list(form, { min: 1 })(body[name]), `${name} has another form`);
  return body[name];
}

/** (13) The entry with which a run begins counts it, and names the newest member of each series. */
async function beginsAsAllowed(state, { receipt, ids }, body) {
  if (receipt.kind !== "release" || receipt.resume) {
    const silent = !Object.hasOwn(body, "standing") && !Object.hasOwn(body, "series");
    proven(silent, "only the entry with which a run begins counts it");
    return;
  }
  state.need("datasets");
  await newestRead(state.chains, receipt, items(body, "series", NEWEST));
  await counted(state, receipt, ids, items(body, "standing", USE));
}

async function newestRead(chains, receipt, stated) {
  const said = new Map(stated.map((item) => [nameOf(item), item]));
  proven(said.size === stated.length, "the newest member of a series is stated twice");
  whole([...said.keys()].every((name) => chains.has(name)), "a series that the recipe does not read");
  const place = ({ owner_id, dataset_id }) => `${owner_id}/${dataset_id}`;
  const released = new Set(receipt.datasets.map(place));
  for (const [name, chain] of chains) {
    const item = said.get(name);
    const handedOut = chain.some((one) => released.has(place(one)));
    proven(item !== undefined || !handedOut, "the newest member of a released series is not stated");
    if (item === undefined) continue;
    const newest = chain[chain.length - 1];
    const same = item.number === newest.series.number && item.member === (await memberDigest(newest));
    whole(same, "the broker knew another newest member than the run read");
  }
}

async function counted(state, receipt, ids, uses) {
  const { predicate, owners, consortiumId } = state;
  const names = uses.map((use) => use.owner);
  const order = predicate.consortium.owners.map((one) => one.name).filter((name) => names.includes(name));
  const ours = names.join() === order.join() && names.every((name) => receipt.approved_by.includes(name));
  proven(ours, "approvals of other owners than the receipt names are counted");
  const known = [];
  for (const envelope of predicate.approvals) known.push(await readDecision(envelope, owners, consortiumId));
  const until = seconds(receipt.released_at) + TOLERANCE;
  const target = { ...predicate.deployment, recipe_hash: predicate.recipe.recipe_hash };
  const approvals = known.filter(
    ({ statement }) =>
      isFor({ statement }, ids) &&
      statement.decision === "approve" &&
      ["app_id", "compose_hash", "recipe_hash"].every((name) => statement[name] === target[name]) &&
      seconds(statement.signed_at) <= until,
  );
  for (const use of uses) {
    const signed = approvals.find((one) => one.owner === use.owner && one.digest === use.approval);
    const terms = signed?.statement.standing;
    const fits = terms !== undefined && (terms.epsilon === undefined) === (use.epsilon === undefined);
    proven(fits, "an approval is counted that the manifest does not hold");
    demand(use.run <= terms.runs, "approval-spent", "one run more than the standing approval allows");
    const within = use.epsilon === undefined || use.epsilon <= terms.epsilon + ROUNDING;
    demand(within, "budget-spent", "more epsilon than the standing approval allows");
  }
  for (const owner of receipt.approved_by) {
    const plain = approvals.some((one) => one.owner === owner && one.statement.standing === undefined);
    proven(names.includes(owner) || plain, "the run is not counted under a standing approval");
  }
}
return { memberDigest, chainsOf, admits, beginsAsAllowed };
})();
const module_releases = (() => {
// Checks 11, 13 and 14: the brokers' receipts, their ledgers, and the order of events.

const { Refusal, demand, digest, fromBase64, seconds } = module_bytes;
const { chainAllowed } = module_chainword;
const { brokerId, listedReceipt, readReceipt, readRotation } = module_consortium;
const { requireRetained } = module_datause;
const { keyId, readEnvelope } = module_dsse;
const { canonical } = module_json;
const { liveThroughout, windowsOf } = module_leases;
const { verifyProof } = module_ledger;
const { reservations } = module_lock;
const { beginsAsAllowed } = module_series;
const { keysReleased, moment, staysOf } = module_stays;
const { equal } = module_bytes;

const TOLERANCE = 300;
const claim = (condition, message) => demand(condition, "claim-contradicted", message);
const same = (condition, message) => demand(condition, "dataset-mismatch", message);

/** (11) Enough trusted brokers of the lock released each dataset to this run. */
async function receiptsHold(state) {
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
async function ledgerHolds(state) {
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
async function eventsInOrder(state) {
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
return { receiptsHold, ledgerHolds, eventsInOrder };
})();
const module_checks = (() => {
// The checks of a run manifest in the order of spec/run-manifest.md §3. Each takes the state of a
// verification, throws a Refusal or CannotCheck, or returns one line for a reader.

const { Refusal, demand, digest, equal, fromHex, hex, seconds, sha256, utf8 } = module_bytes;
const { artefactsMatch } = module_artefacts;
const { isFor, readDataset, readDecision, tally } = module_consortium;
const { countsTrue } = module_counts;
const { rowsTrue } = module_served;
const { requirePurpose } = module_datause;
const { embeddedLock } = module_deployment;
const { verifyEnvelope } = module_dsse;
const { appraise, readEvidence, reportData, verifyEvidence } = module_evidence;
const { EVIDENCE_TYPE, MARKER, STATEMENT_TYPE, commitment, outputName } = module_form;
const { canonical } = module_json;
const { collaborationHolds } = module_kinds;
const { requiredLimits } = module_limits;
const { datasetsOf, isLock, needsOf } = module_lock;
const { EVENTS, isWritten } = module_logevents;
const { eventsInOrder, ledgerHolds, receiptsHold } = module_releases;
const { admits, chainsOf } = module_series;
const shape = module_shape;
const { checkParties, keysReleased, moment, staysOf } = module_stays;
const { datasetRoot } = module_roots;
const { reaches } = module_tiers;

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

async function limits({ predicate }) {
  const listed = predicate.limits.map((one) => one.id);
  claim(new Set(listed).size === listed.length, "a limit is listed twice");
  const missing = requiredLimits(predicate).filter((id) => !listed.includes(id));
  claim(missing.length === 0, `a limit is concealed: ${missing.join(", ")}`);
  return `${listed.length} limits stated`;
}

/** Every check after `form`, in order: name, title, function. */
const CHECKS = [
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
return { CHECKS };
})();
const module_openwords = (() => {
// What a trust file or policy accepts that leaves a field open: written by
// tools/verifier_page.py from attest/open_values.py and manifest/limits.py.

const OPEN_WORDS = {
  "compose_hash": "deployment document that embeds the recipe",
  "app_id": "app id",
  "advisories": "open security advisory of the processor",
  "measurements": "guest image: firmware, kernel and command line are not compared",
  "key_provider": "key provider for the guest's own keys",
  "os_image_hash": "operating system image",
  "platform_ids": "machine, wherever it stands and whoever can open it",
  "max_collateral_age_s": "age of the vendor's collateral",
  "chip_ids": "machine: no chip is named",
  "extended_tcb": "version of what the extended TCB counts",
  "mitigations": "state of the processor's mitigations",
  "platform_flags": "setting of the platform's memory and threads",
  "vmpl": "privilege level of whatever asked for the report",
  "smt": "use of simultaneous threads",
  "id_keys": "key that authorised the launch, or none",
  "revocation": "certificate without looking whether the vendor revoked it",
  "boots": "firmware and image that the machine's TPM measured: they are not compared",
  "projects": "customer of the cloud whose machine the TPM belongs to",
  "zones": "zone of the cloud",
  "instances": "machine of the cloud: no instance is named",
  "vm_ids": "virtual machine: no id is named",
  "config_id": "guest whose TPM does not commit to its configuration",
  "images": "enclave image: it is not compared",
  "signers": "signer of the enclave image, or none",
  "parents": "parent instance",
  "iam_roles": "role of the parent instance",
  "gpu": "accelerators, attested or not",
  "switch_count": "number of switches",
  "devices": "accelerator of the model: none is named",
  "driver_versions": "version of the accelerator's driver",
  "vbios_versions": "version of the accelerator's firmware",
  "reference_values": "accelerator without the vendor's reference values"
};
const OPEN_RTMR0 = "tables of the host's machine (RTMR0), as the guest's log has them";
return { OPEN_WORDS, OPEN_RTMR0 };
})();
const module_openvalues = (() => {
// What the reader's own trust file leaves open (spec/evidence.md §6.2).

const { OPEN_RTMR0, OPEN_WORDS } = module_openwords;

const fieldsOf = (part, rules) =>
  typeof rules === "string" ? [[part, rules]] : Object.entries(rules).map(([name, value]) => [`${part}.${name}`, value]);

/** Each open value in the order of the file: `field`, and in `words` what it accepts any of. */
function openValues(trust) {
  const { cpu, gpu } = trust.appraisal;
  const pins = [
    ["compose_hash", trust.compose_hash],
    ["app_id", trust.app_id],
  ];
  const open = [...pins, ...fieldsOf("cpu", cpu), ...fieldsOf("gpu", gpu)]
    .filter(([, value]) => value === "any")
    .map(([field]) => ({ field, words: OPEN_WORDS[field.split(".").at(-1)] }));
  const logged = Array.isArray(cpu.measurements) && cpu.measurements.some(({ rtmr0 }) => rtmr0 === "log");
  return logged ? [...open, { field: "cpu.measurements.rtmr0", words: OPEN_RTMR0 }] : open;
}

const COMPARISON = /^[A-Za-z0-9][A-Za-z0-9 -]{0,63}$/;
const isRecord = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

/** What brokers did not compare before they released keys, by the verdicts that they signed: sorted names. */
function releasedOpen(receipts) {
  const names = new Set();
  for (const { verdict } of receipts) {
    if (!isRecord(verdict.submods)) continue;
    for (const part of Object.values(verdict.submods)) {
      if (!isRecord(part) || !Array.isArray(part.claims)) continue;
      for (const claim of part.claims) {
        const named = isRecord(claim) && claim.outcome === "any" && typeof claim.name === "string";
        if (named && COMPARISON.test(claim.name)) names.add(claim.name);
      }
    }
  }
  return [...names].sort();
}
return { openValues, releasedOpen };
})();
const module_limitwords = (() => {
// What a manifest does not prove, by the id of the limit: written by
// tools/verifier_page.py from manifest/limits.py.

const LIMIT_TEXTS = {
  "border-in-software": "The kernel of the guest that wrote this file did not enforce the whole sandbox of the training. Python's own hooks did, which stop library code; native code of the pinned packages or of a script could have written files, connected or started programs.",
  "simulated": "The evidence comes from a software simulator. It shows that the protocol was followed, and nothing about hardware: its operator could read the data and the keys.",
  "owners-not-asked": "This consortium lets an owner's data be used without that owner's approval, if enough others approve.",
  "own-script": "A script of the engineer's trained, in place of sealtrain's own training. The trainer settings of the recipe need not be those that it used. Its text shows how it used the records: read the script with the digest shown here.",
  "workload-word": "The recipe's code ran in a process of its own. Steps, tokens, samples, metrics, history and what follows from them are that process's word; the process that kept the keys could not recompute them. It counted by itself the rows that it served, and read environment and accelerators by itself.",
  "platform-script": "The recipe lets a script of the platform run in the guest before the run, as root. It could read and change everything there: read the script with the digest in hardware.launch_script.",
  "records-left-out": "Half of the records or more left nothing to learn, at the recipe's length or by their form, and did not train. The model has learned from the others alone.",
  "records-not-counted": "This kind of run does not count how many of its records trained whole, cut or not at all. How many the model learned from does not follow from this file.",
  "hardware": "The evidence is as good as the processor that made it. Attackers with physical access to a machine's memory have extracted attestation keys from such processors before, and a stolen key makes evidence that verifies.",
  "paravisor-word": "The cloud's paravisor measured what started; the processor's vendor vouches for the paravisor and for the encryption of memory. The cloud that wrote the paravisor could read the data and the keys.",
  "cloud-tpm-word": "The cloud's TPM measured what started. The processor's vendor vouches for the encryption of memory and for the firmware, and for nothing that started after it: a cloud whose TPM lies could read the data and the keys.",
  "cloud-word": "The cloud alone vouches for what started. No vendor of a processor does, and nothing shows that memory is encrypted: the cloud could read the data and the keys.",
  "side-channels": "The machine's operator sees sizes, timing, memory access patterns and network traffic. Sealing does not hide them.",
  "memorisation": "The model was trained without differential privacy. It may repeat or reveal records it was trained on to anyone who can query it.",
  "privacy-scope": "Differential privacy hides single records: whether one record of one dataset took part. It does not hide patterns that many records share, a person with several records, numbers of records, or measurements without noise: on test records, by validation, or by an audit of the model.",
  "patient-scope": "Differential privacy hides single patients: whether all of one party's records of a patient took part. A patient of two parties counts as two, and the owner alone says which patient a record belongs to. It does not hide patterns that many patients share, numbers of patients and records, how long a party took, or measurements on test records. Brokers do not count it over several runs.",
  "accountant-approximate": "Epsilon was computed by a central limit approximation, which can fall below the true value. It is not a bound.",
  "revocation": "A revocation stops further releases and renewals. It recalls neither keys already released nor the finished model.",
  "owners-word": "Owners vouch for their data. Nothing here shows that records are true, complete, lawful to use or correctly labelled; only which ciphertext was used.",
  "recipe-judgement": "Approvals show that owners agreed to this exact recipe. They do not show that it is safe, fair or fit for a purpose.",
  "guest-clock": "Start, finish and events are by the guest's clock, which its host can shift. Only the broker's receipts bracket them from outside.",
  "broker-word": "Receipts and the ledger are signed by the broker. A holder of its root secret can open the data without leaving a trace in this file, or show another ledger to other readers.",
  "sealed-outputs": "Digests are of the sealed files. Only their recipients, or the guests that the model was handed on to, can see the contents; anyone else has the measured code's word that they are the model this run trained.",
  "accelerator-binding": "An accelerator took part in the run. Where the evidence has a section for it, it was genuine and answered this run; that it stood in this very machine rests on the measured code, for no hardware of today ties the two. Where the evidence has none, data it computed on was outside what the evidence covers. Accelerators in the mode protected_pcie encrypt what goes to the processor; what they say to each other over NVLink is in clear inside the machine.",
  "parties-evidence": "Several guests took part. This file holds the evidence of the guest that led; of the others it holds the brokers' receipts for the keys released to them. That each guest accepted the others by their evidence is the word of the measured code. The file does not say how far the kernels of the others enforced the sandbox of their training.",
  "nodes-evidence": "Several guests of one deployment trained together. This file holds the evidence of the guest that led; of the others it holds the digests of the evidence that the lead accepted and the brokers' receipts for the keys released to them. That the nodes exchanged tensors with no other machine is the word of the measured code. The file does not say how far the kernels of the others enforced their sandbox.",
  "updates-merged": "Parties' updates reveal something of their records; the guest that led read each one, and released only the merge. A party may have chosen records to steer the model: the recipe's rule bounds the influence of one party, and does not detect it.",
  "lent-by-software": "One accelerator had every holder's chunks in its memory, one after another. That a holder could write to the range it was lent and read nothing, and that each chunk was wiped before the next, is the word of the code measured there: no hardware of today lends a range of an accelerator's memory.",
  "base-model-public": "Frozen weights of the base model were given, as eight-bit integers, to an untrusted accelerator. They are public now; the trained weights are not.",
  "outsourced-shapes": "The accelerator saw how many rows each product had, when and how often: sizes of batches, lengths of texts, how long training took. It saw no number of the data, of a gradient or of the trained weights.",
  "dealer-apart": "Pads hide nothing from a reader who has them and also sees the accelerator's traffic. Where a dealer made them, its guest proved itself to the guest that trained, which is the word of the measured code, and kept them in its memory.",
  "activations-reveal": "Owners' records came to the guest as activations of the model's front half, which is public. A reader of such activations recovers much of the text, after few layers nearly all of it. Only the attested channel and the guest hide them.",
  "clients-word": "Owners' clients ran on machines of their owners, outside of any TEE. That their messages were computed from the sealed records named here is their owners' word."
};
return { LIMIT_TEXTS };
})();
const module_stated = (() => {
// What a reader of a manifest is told that it does not prove: as `sealtrain verify` lists it.

const { requiredLimits } = module_limits;
const { LIMIT_TEXTS } = module_limitwords;

const UNLOOKED = "The output files were not looked at; only their names and digests are known.";
const SHOWN_BLOCKS = 64;
const THEIRS =
  "Your trust file asks only about datasets that its own brokers released; other keys and leases were not looked at.";

/** Limits in this program's texts: a manifest can neither soften nor conceal one that it requires. */
function ofManifest(predicate, unasked) {
  const texts = new Map(predicate.limits.map(({ id, text }) => [id, LIMIT_TEXTS[id] ?? text]));
  for (const id of requiredLimits(predicate)) texts.set(id, LIMIT_TEXTS[id]);
  const asked = texts.get("owners-not-asked");
  if (unasked !== null && asked !== undefined) {
    const used = unasked.length
      ? ` Data of ${unasked.join(", ")} was used without approval.`
      : " Every owner whose data was used had approved this run.";
    texts.set("owners-not-asked", asked + used);
  }
  return [...texts].map(([id, text]) => ({ id, text }));
}

/** Of blocks that receipts rely on, where the trust file names no chain. */
function ofChain(blocks) {
  const { chain_id: chain, contract } = blocks[0];
  const named = blocks.slice(0, SHOWN_BLOCKS).map(({ number, block }) => `${number} (${block})`).join(", ");
  const more = blocks.length > SHOWN_BLOCKS ? ` and ${blocks.length - SHOWN_BLOCKS} more` : "";
  return `Owners decide on chain ${chain} by the contract ${contract}, and your trust file names no chain: that these blocks are of it was not compared: ${named}${more}.`;
}

/** Every limit and everything left open, in order: `{id, text}`, where the id of no limit is null. */
function statedLimits({ manifest, unasked, released, chain, open }, trust, { artefacts }) {
  if (manifest === null) return [];
  const said = ofManifest(manifest.predicate, unasked);
  const add = (text, facts = {}) => said.push({ id: null, text, ...facts });
  if (released.length) add(`Brokers released keys without a demand on: ${released.join(", ")}.`, { released });
  if (chain.length) add(ofChain(chain), { chain: chain[0].chain_id });
  for (const { field, words } of open) add(`Your trust file accepts any ${words}.`, { field });
  if (trust.brokers.datasets === "theirs") add(THEIRS);
  if (artefacts === null) add(UNLOOKED);
  return said;
}
return { statedLimits };
})();
const module_yaml = (() => {
// The strict subset of YAML that a trust file is written in (spec/recipe.md §1): the reader of
// src/sealtrain/base/yamltext.py once more, with the same expressions.

const { text } = module_bytes;
const { Malformed } = module_json;
const { HIDDEN } = module_characters;

const DEPTH = 24;
const VALUES = 20_000;
const LONGEST_KEY = 1000;
const WORDS = new Map([["~", null], ["null", null], ["true", true], ["false", false]]);
const INTEGER = /^[-+]?(?:0|[1-9][0-9]*)$/;
const NUMBER = /^[-+]?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?$/;
const BOUNDED = /^[-+]?[0-9]{1,31}(?:\.[0-9]{1,30})?(?:[eE][-+]?[0-9]{1,3})?$/;
const QUOTED = String.raw`(?:"(?:[^"\\]|\\["\\/bfnrt]|\\u[0-9A-Fa-f]{4})*"|'(?:[^']|'')*')`;
const START = String.raw`(?:[^ \-?:,\[\]{}#&*!|>'"%@\x60]|-(?=[0-9A-Za-z.]))`;
const IN_BLOCK = String.raw`${START}(?:[^ :]|:(?=[^ ])| +(?=[^ #:]))*`;
const IN_FLOW = String.raw`${START}(?:[^ :,?\[\]{}]|:(?=[^ ,?\[\]{}])| +(?=[^ #:,?\[\]{}]))*`;
const BLOCK_WORD = new RegExp(`${QUOTED}|${IN_BLOCK}`, "uy");
const FLOW_WORD = new RegExp(`${QUOTED}|${IN_FLOW}`, "uy");
const COLON = / *:(?= |$)/y;
const ENDING = /^(?: +#.*)?$/;
const LONE = /[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/;

const isItem = (said) => said === "-" || said.startsWith("- ");

/** Key of a line of a block mapping, and where its colon ends; null for another line. */
function entry(said) {
  FLOW_WORD.lastIndex = 0;
  const word = FLOW_WORD.exec(said);
  COLON.lastIndex = word === null ? 0 : word[0].length;
  return word !== null && COLON.test(said) ? [word[0], COLON.lastIndex] : null;
}

/** The value of a YAML document; `whole` refuses an integer that is written as a fraction or with an exponent. */
function parseYaml(bytes, { size = 1 << 20, whole = false } = {}) {
  if (bytes.length > size) throw new Malformed("too large");
  let source;
  try {
    source = text(bytes);
  } catch {
    throw new Malformed("not UTF-8");
  }
  return new Reader(source, whole).document();
}

class Reader {
  constructor(source, whole) {
    this.whole = whole;
    this.left = VALUES;
    this.row = 0;
    this.column = 0;
    this.lines = [];
    for (const [at, line] of source.split(/\r?\n/).entries()) {
      if (line.search(HIDDEN) >= 0) throw new Malformed(`line ${at + 1}: a character that is not visible`);
      const said = line.trim(); // of visible characters only U+0020 is a space
      if (said === "" || said.startsWith("#")) continue;
      if (this.lines.length === 0 && line.startsWith("---") && said === "---") continue;
      this.lines.push({ indent: line.length - line.trimStart().length, said, number: at + 1 });
    }
  }

  fail(message) {
    throw new Malformed(`line ${this.lines[this.row]?.number ?? "after the last"}: ${message}`);
  }

  document() {
    if (this.lines.length === 0) return null;
    const value = this.node(-1, 0);
    return this.row < this.lines.length ? this.fail("goes on where nothing can follow") : value;
  }

  node(floor, depth) {
    const { indent, said } = this.lines[this.row];
    if (isItem(said)) return this.sequence(indent, depth);
    if (entry(said) !== null) return this.mapping(indent, depth);
    return this.inline(0, floor, depth);
  }

  sequence(indent, depth) {
    const items = [];
    this.open(depth);
    while (this.row < this.lines.length) {
      const line = this.lines[this.row];
      if (line.indent !== indent || !isItem(line.said)) break;
      const rest = line.said.slice(1).trimStart();
      if (rest === "" || rest.startsWith("#")) {
        this.row++;
        items.push(this.below(indent, depth + 1, false));
      } else {
        this.lines[this.row] = { ...line, indent: indent + line.said.length - rest.length, said: rest };
        items.push(this.node(indent, depth + 1));
      }
    }
    return items;
  }

  mapping(indent, depth) {
    const found = Object.create(null);
    this.open(depth);
    while (this.row < this.lines.length && this.lines[this.row].indent === indent) {
      const { said } = this.lines[this.row];
      const [word, end] = entry(said) ?? this.fail("no key with its value");
      const key = this.key(word, found);
      const rest = said.slice(end).trimStart();
      if (rest === "" || rest.startsWith("#")) {
        this.row++;
        found[key] = this.below(indent, depth + 1, true);
      } else {
        found[key] = this.inline(said.length - rest.length, indent, depth + 1);
      }
    }
    return found;
  }

  below(indent, depth, itemsBeside) {
    if (this.row < this.lines.length) {
      const line = this.lines[this.row];
      if (line.indent > indent) return this.node(indent, depth);
      if (itemsBeside && line.indent === indent && isItem(line.said)) return this.sequence(indent, depth);
    }
    this.count();
    return null;
  }

  inline(column, floor, depth) {
    this.column = column;
    const first = this.character();
    const value =
      first === "[" || first === "{" ? this.flow(floor, depth) : this.scalar(this.word(BLOCK_WORD));
    if (!ENDING.test(this.lines[this.row].said.slice(this.column))) this.fail("something behind a value");
    this.row++;
    return value;
  }

  flow(floor, depth) {
    const first = this.character();
    if (first !== "[" && first !== "{") return this.scalar(this.word(FLOW_WORD));
    this.open(depth);
    this.column++;
    const [close, result] = first === "[" ? ["]", []] : ["}", Object.create(null)];
    this.skip(floor);
    while (this.character() !== close) {
      if (first === "[") {
        result.push(this.flow(floor, depth + 1));
      } else {
        const key = this.flowKey(result);
        this.skip(floor);
        result[key] = this.flow(floor, depth + 1);
      }
      this.skip(floor);
      if (this.character() === ",") {
        this.column++;
        this.skip(floor);
      } else if (this.character() !== close) {
        this.fail("neither a comma nor a bracket behind a value");
      }
    }
    this.column++;
    return result;
  }

  flowKey(found) {
    const word = this.word(FLOW_WORD);
    while (this.character() === " ") this.column++;
    if (this.character() !== ":") this.fail("a key without a value");
    this.column++;
    const next = this.character();
    if (!/^["']/.test(word) && next !== "" && next !== " ") this.fail("no space behind a colon");
    return this.key(word, found);
  }

  skip(floor) {
    for (;;) {
      const { said } = this.lines[this.row];
      while (said[this.column] === " ") this.column++;
      const isComment = said[this.column] === "#" && said[this.column - 1] === " ";
      if (this.column < said.length && !isComment) return;
      this.row++;
      this.column = 0;
      if (this.row === this.lines.length || this.lines[this.row].indent <= floor) {
        this.fail("a collection that does not end");
      }
    }
  }

  character() {
    return this.lines[this.row].said[this.column] ?? "";
  }

  word(pattern) {
    pattern.lastIndex = this.column;
    const [found] = pattern.exec(this.lines[this.row].said) ?? this.fail("no value of the subset");
    this.column += found.length;
    return found;
  }

  key(word, found) {
    this.count();
    const key = this.resolve(word);
    if (typeof key !== "string" || key === "<<") this.fail("a key that is not text");
    if ([...word].length > LONGEST_KEY) this.fail("a key that is too long");
    return key in found ? this.fail("a key twice") : key;
  }

  scalar(word) {
    this.count();
    return this.resolve(word);
  }

  resolve(word) {
    if (word.startsWith("'")) return word.slice(1, -1).replaceAll("''", "'");
    if (word.startsWith('"')) {
      const value = JSON.parse(word);
      return LONE.test(value) ? this.fail("half of a surrogate pair") : value;
    }
    if (WORDS.has(word)) return WORDS.get(word);
    if (word.startsWith("...")) this.fail("the end of a document");
    const value = Number(word);
    if (INTEGER.test(word)) {
      return word.length > 17 || !Number.isSafeInteger(value) ? this.fail("an integer beyond 2^53 - 1") : value;
    }
    if (!NUMBER.test(word)) return word;
    if (!BOUNDED.test(word) || !Number.isFinite(value)) this.fail("a number out of range");
    return this.whole && Number.isInteger(value) ? this.fail("an integer written otherwise") : value;
  }

  open(depth) {
    if (depth >= DEPTH) this.fail("nested too deeply");
    this.count();
  }

  count() {
    if (--this.left < 0) this.fail("too many values");
  }
}
return { parseYaml };
})();
const module_trust = (() => {
// The trust file (spec/trust.md) with its appraisal policy (spec/evidence.md §6).

const { Refusal, demand, equal, fromBase64 } = module_bytes;
const { isTrustedChain } = module_chainword;
const { AZURE_RULES, AZURE_SNP_RULES, GCP_SNP_RULES, TEST_VTPM_RULES } = module_cloudtpm;
const { Malformed } = module_json;
const { RULES: NITRO } = module_nitro;
const { RULES: NVIDIA } = module_nvidia;
const { GOOGLE_RULES, NITRO_TPM_RULES } = module_rented;
const shape = module_shape;
const { DSTACK_RULES: DSTACK_SNP, RULES: SNP } = module_snp;
const { TIERS } = module_tiers;
const { BadDer, certificate, signedBy } = module_x509;
const { parseYaml } = module_yaml;

const { either, integer, list, literal, record } = shape;
const any = literal("any");
const refuse = literal("refuse");

const TCB = [
  "UpToDate",
  "SWHardeningNeeded",
  "ConfigurationNeeded",
  "ConfigurationAndSWHardeningNeeded",
  "OutOfDate",
  "OutOfDateConfigurationNeeded",
];
const QUOTE = {
  tcb_status: list(literal(...TCB), { min: 1, max: 8 }),
  advisories: either(literal("any", "none"), list(shape.match(/^[A-Z0-9-]{3,64}$/), { max: 256 })),
  debug: refuse,
  migration: refuse,
  measurements: either(
    any,
    list(
      record({
        mrtd: shape.hex96,
        rtmr0: either(literal("log"), shape.hex96),
        rtmr1: shape.hex96,
        rtmr2: shape.hex96,
      }),
      { max: 1024 },
    ),
  ),
  platform_ids: either(any, list(shape.hex32, { max: 4096 })),
  min_tcb_evaluation_data_number: integer(0, 2 ** 31),
  max_collateral_age_s: either(any, integer(1, 2 ** 31)),
};
const TDX = record({ tee: literal("tdx"), ...QUOTE });
const AZURE_TDX = record({ tee: literal("azure-tdx"), ...QUOTE, ...AZURE_RULES });
const valued = ({ rtmr0 }) => rtmr0 !== "log"; // such a guest shows no event log
const namesRegisters = ({ measurements }) => measurements === "any" || measurements.every(valued);
const AGENT = {
  ...QUOTE,
  key_provider: either(any, shape.match(/^(?:[0-9a-f]{2}){16,1024}$/)),
  os_image_hash: either(literal("any", "measured"), list(shape.hex64, { min: 1, max: 256 })),
};
const DSTACK = record({ tee: literal("dstack"), ...AGENT });
const GOOGLE = record({ tee: literal("dstack-gcp-tdx"), ...AGENT, ...GOOGLE_RULES });
function namesImage({ os_image_hash: image, key_provider: provider, measurements }) {
  return image === "measured" ? measurements !== "any" : image === "any" || provider !== "any";
}
/** Each kind of evidence: the platform that shows it, and whose root vouches for it. */
const TEES = {
  dstack: { platform: "dstack", vendor: "intel" },
  tdx: { platform: "tdx", vendor: "intel" },
  nitro: { platform: "nitro", vendor: "aws" },
  snp: { platform: "snp", vendor: "amd" },
  "dstack-gcp-tdx": { platform: "dstack", vendor: "intel" },
  "dstack-aws-nitro-tpm": { platform: "dstack", vendor: "aws" },
  "dstack-amd-sev-snp": { platform: "dstack", vendor: "amd" },
  "azure-snp": { platform: "snp", vendor: "amd" },
  "azure-tdx": { platform: "tdx", vendor: "intel" },
  "gcp-snp": { platform: "snp", vendor: "amd" },
  "test-vtpm": { platform: "simulator", vendor: null }, // under a test root alone
};
const each = (field) => [...new Set(Object.values(TEES).map((one) => one[field]))].filter((name) => name !== null);
const CPU = {
  dstack: (value) => DSTACK(value) && namesImage(value),
  "dstack-gcp-tdx": (value) => GOOGLE(value) && namesImage(value),
  "dstack-aws-nitro-tpm": NITRO_TPM_RULES,
  tdx: (value) => TDX(value) && namesRegisters(value),
  "azure-tdx": (value) => AZURE_TDX(value) && namesRegisters(value),
  "azure-snp": AZURE_SNP_RULES,
  "gcp-snp": GCP_SNP_RULES,
  "test-vtpm": TEST_VTPM_RULES,
  nitro: NITRO,
  snp: SNP,
  "dstack-amd-sev-snp": DSTACK_SNP,
};

function isSimulatorRoot(value) {
  if (!record({ insecure_simulator_root: shape.base64() })(value)) return false;
  try {
    const { names } = certificate(fromBase64(value.insecure_simulator_root));
    return names.some((name) => name.startsWith("SIMULATED"));
  } catch (error) {
    if (error instanceof BadDer || error instanceof TypeError) return false;
    throw error;
  }
}

function isPolicy(value) {
  const form = record({
    version: literal(2),
    platform: literal("simulator", ...each("platform")),
    root: either(literal(...each("vendor")), isSimulatorRoot),
    tier: literal(...TIERS),
    cpu: (cpu) => shape.anyObject(cpu) && shape.string(cpu.tee) && Object.hasOwn(CPU, cpu.tee) && CPU[cpu.tee](cpu),
    gpu: either(literal("any", "none"), shape.anyObject),
  });
  if (!form(value)) return false;
  const simulated = typeof value.root !== "string";
  if (typeof value.gpu !== "string" && !NVIDIA(value.gpu, simulated)) return false;
  if (simulated || value.platform === "simulator") return simulated && value.platform === "simulator";
  const { platform, vendor } = TEES[value.cpu.tee];
  return value.platform === platform && value.root === vendor;
}

const keys = list(shape.base64(32), { min: 1, max: 64 });
const BROKERS = record({
  signing_keys: (value) => keys(value) && new Set(value).size === value.length,
  threshold: integer(1, 64),
  datasets: literal("all", "theirs"),
});
const TRUST = record(
  {
    version: literal(1),
    consortium_id: shape.hex64,
    recipe_hash: shape.hex64,
    compose_hash: either(any, shape.hex64),
    app_id: either(any, shape.hex40),
    brokers: (value) => BROKERS(value) && value.threshold <= value.signing_keys.length,
    appraisal: isPolicy,
    simulated: literal("refuse", "accept-insecure"),
  },
  { chain: shape.nullable(isTrustedChain) },
);

async function signsItself(root) {
  const found = certificate(fromBase64(root.insecure_simulator_root));
  if (!equal(found.issuer, found.subject)) return false;
  return signedBy(found, found.hash, found.signature, found.signed);
}

/** That every software root of a policy signs itself: an altered copy of a root is none. */
async function checkSimulators({ root, gpu }) {
  const roots = [root, ...(typeof gpu === "string" ? [] : [gpu.root, gpu.rim_root])];
  for (const one of roots.filter((each) => typeof each !== "string")) {
    demand(await signsItself(one), "trust-invalid", "a simulator's root does not sign itself");
  }
}

/** The trust file of bytes in YAML or JSON. */
async function readTrust(bytes) {
  let document;
  try {
    document = parseYaml(bytes, { whole: true });
  } catch (error) {
    if (!(error instanceof Malformed)) throw error;
    throw new Refusal("trust-invalid", `trust file: ${error.message}`);
  }
  demand(TRUST(document), "trust-invalid", "a field of the trust file is missing, unknown or malformed");
  await checkSimulators(document.appraisal);
  return document;
}
return { isPolicy, checkSimulators, readTrust };
})();
const module_verify = (() => {
// Verify a run manifest offline: every check of spec/run-manifest.md §3, each reported by itself.

const { CannotCheck, Refusal } = module_bytes;
const { chainBlocks } = module_chainword;
const { CHECKS } = module_checks;
const { consortiumId, ownersOf } = module_consortium;
const { readManifest } = module_form;
const { openValues, releasedOpen } = module_openvalues;
const { statedLimits } = module_stated;

const { readTrust } = module_trust;

/** A check needs a fact that another check did not establish. */
class NotEstablished extends Error {}

const ESTABLISHED_BY = {
  evidence: "evidence-signature",
  verified: "quote",
  bound: "binding",
  lock: "recipe",
  log: "run-log",
  datasets: "datasets",
  receipts: "releases",
};

function stateOf(manifest, inputs) {
  const state = { manifest, predicate: manifest.predicate, ...inputs };
  state.need = (fact) => {
    if (state[fact] === undefined) throw new NotEstablished(ESTABLISHED_BY[fact] ?? "releases");
    return state[fact];
  };
  return state;
}

/**
 * Run every check that can be run.
 *
 * `outcome` of a check is `passed`, `failed`, `not-done` (another check did not establish what it
 * needs, or the caller left the files out) or `not-checked` (this program or browser cannot).
 * `verdict` is `verified`, `refused` or `not verified`; the last is no refusal of the manifest and
 * no pass either. `open` lists the values that the trust file leaves open,
 * `released` what brokers did not compare before they released keys, `chain` the blocks of a public
 * chain that they relied on, where the trust file names no chain, `limits` all that the manifest
 * does not prove and that the trust file leaves open, a text each.
 *
 * @param {Uint8Array} bytes The manifest file.
 * @param {object} trust Of `readTrust`.
 * @param {{artefacts?: Map<string, () => Promise<Uint8Array>>|null, now: number}} options
 *   Output files by path, null for the choice not to check them; seconds since the epoch.
 */
async function verify(bytes, trust, { artefacts = null, now }) {
  const checks = [];
  let manifest = null;
  let state = null;
  checks.push(
    await outcomeOf("form", "File is well formed", async () => {
      manifest = await readManifest(bytes);
      return `canonical, ${bytes.length} bytes, ${manifest.subjects.length} files`;
    }),
  );
  if (manifest !== null) {
    const id = await consortiumId(manifest.predicate.consortium);
    const owners = await ownersOf(manifest.predicate.consortium);
    state = stateOf(manifest, { trust, artefacts, now, consortiumId: id, owners });
  }
  for (const [name, title, check] of CHECKS) {
    checks.push(
      await outcomeOf(name, title, async () => {
        if (state === null) throw new NotEstablished("form");
        if (name === "artefacts" && artefacts === null) throw new LeftOut();
        return check(state);
      }),
    );
  }
  const unasked = state?.unasked ?? null;
  const receipts = (state?.receipts ?? []).map(({ receipt }) => receipt);
  const released = releasedOpen(receipts);
  const chain = (trust.chain ?? null) === null ? chainBlocks(receipts) : [];
  const facts = { manifest, unasked, released, chain, open: openValues(trust) };
  return { ...verdictOf(checks), checks, ...facts, limits: statedLimits(facts, trust, { artefacts }) };
}

class LeftOut extends Error {}

async function outcomeOf(name, title, examine) {
  const base = { name, title };
  try {
    return { ...base, outcome: "passed", detail: await examine() };
  } catch (error) {
    if (error instanceof Refusal) {
      return { ...base, outcome: "failed", detail: error.message, code: error.code };
    }
    if (error instanceof NotEstablished) {
      return { ...base, outcome: "not-done", detail: `needs the check '${error.message}'`, needs: error.message };
    }
    if (error instanceof LeftOut) {
      return { ...base, outcome: "not-done", detail: "not looked at, as asked" };
    }
    const known = error instanceof CannotCheck;
    const detail = known ? error.message : `fault of this program: ${error}`;
    return { ...base, outcome: "not-checked", detail, fault: !known };
  }
}

function verdictOf(checks) {
  const failed = checks.find((check) => check.outcome === "failed");
  if (failed) return { verdict: "refused", check: failed.name, code: failed.code };
  const open = checks.find(
    ({ outcome, needs }) => outcome === "not-checked" || (outcome === "not-done" && needs),
  );
  if (open) return { verdict: "not verified", check: open.name, code: null };
  return { verdict: "verified", check: null, code: null };
}
return { verify, readTrust };
})();
const module_embedded = (() => {
// A report that verifies itself: the manifest and the trust file that lie in the page, checked here.

const { Refusal, fromBase64 } = module_bytes;
const { escapeHidden } = module_characters;
const { readTrust, verify } = module_verify;

const MARKS = { passed: "✓", failed: "✗", "not-done": "–", "not-checked": "?" };
const WORDS = { passed: "passed", failed: "failed", "not-done": "not done", "not-checked": "not checked" };
const box = document.getElementById("self-check");

function say(verdict, text) {
  box.dataset.verdict = verdict;
  document.getElementById("self-verdict").textContent = escapeHidden(text);
}

function rowOf({ name, title, outcome, code, detail }) {
  const row = document.createElement("li");
  row.className = outcome;
  row.dataset.check = name;
  row.dataset.outcome = outcome;
  const parts = { mark: MARKS[outcome], title, detail: [WORDS[outcome], code, detail].filter(Boolean).join(": ") };
  for (const [kind, text] of Object.entries(parts)) {
    const part = document.createElement("span");
    part.className = kind;
    part.textContent = escapeHidden(text);
    row.append(part);
  }
  return row;
}

function textOf({ verdict, check, code, manifest, open }) {
  if (verdict === "refused") return `✗ Refused by this page: ${code} (${check})`;
  if (verdict !== "verified") return `? Could not check: ${check}. This is not a pass.`;
  const simulated = manifest.predicate.simulated ? " SIMULATED — NOT ATTESTED." : "";
  const left = open.map(({ field }) => field).join(", ");
  const openly = left && ` Left open by the trust file: ${left}.`;
  return `✓ Verified again by this page.${simulated} The output files were not looked at.${openly}`;
}

async function run() {
  const part = (id) => fromBase64(document.getElementById(id).textContent);
  const began = performance.now();
  try {
    const trust = await readTrust(part("self-trust"));
    const report = await verify(part("self-manifest"), trust, { now: Math.floor(Date.now() / 1000) });
    document.getElementById("self-rows").replaceChildren(...report.checks.map(rowOf));
    box.dataset.milliseconds = String(Math.round(performance.now() - began));
    box.dataset.simulated = String(Boolean(report.manifest?.predicate.simulated));
    say(report.verdict, textOf(report));
  } catch (error) {
    const said = error instanceof Refusal ? `${error.code}: ${error.message}` : String(error);
    say("unusable", `? Could not check: ${said}. This is not a pass.`);
  }
}

run();
return {  };
})();
