// DSSE envelopes as spec/approvals.md §1 reads them, and keys that sign them.

import { concat, demand, digest, ed25519, fromBase64, hex, sha256, utf8 } from "./bytes.js";
import { base64, list, record, string } from "./shape.js";

const name = (value) => string(value) && value !== "" && [...value].length <= 128;
const ENVELOPE = record({
  payload: base64(),
  payloadType: name,
  signatures: list(record({ keyid: name, sig: base64(64) }), { min: 1, max: 64 }),
});

export const keyId = async (key) => `ed25519:${await digest(key)}`;

/** Whether a document has the form of an envelope; says nothing about its signatures. */
export const isEnvelope = (document) => ENVELOPE(document);

export function readEnvelope(document) {
  demand(isEnvelope(document), "signature-invalid", "not a DSSE envelope");
  return document;
}

export function signedBytes(envelope) {
  const payload = fromBase64(envelope.payload);
  const type = utf8(envelope.payloadType);
  return concat(utf8(`DSSEv1 ${type.length} `), type, utf8(` ${payload.length} `), payload);
}

/** Payload of an envelope that exactly these keys signed. */
export async function verifyEnvelope(envelope, keys, type) {
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
export function isSoundKey(key) {
  if (key === null || key.length !== 32) return false;
  const whole = BigInt(`0x${hex(key.slice().reverse())}`);
  const y = whole & (2n ** 255n - 1n);
  return y < P && !SMALL_ORDER.has(y);
}

const SPKI = new Uint8Array([0x30, 0x2a, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 3, 0x21, 0]);

/** SHA-256 of a key's SubjectPublicKeyInfo, which Sigstore takes as its hint. */
export const spkiDigest = (key) => sha256(SPKI, key);
