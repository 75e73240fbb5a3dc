// Bytes, text encodings and the hashes of WebCrypto; and the two errors that a check can end in.

/** A check refuses: `code` is the code of docs/reference/errors.md. */
export class Refusal extends Error {
  constructor(code, message) {
    super(message);
    this.code = code;
  }
}

/** This program or this browser cannot make the check. Never a pass. */
export class CannotCheck extends Error {}

/** Throw a refusal unless a condition holds. */
export function demand(condition, code, message) {
  if (!condition) throw new Refusal(code, message);
}

const encoder = new TextEncoder();
const strictDecoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

export const utf8 = (text) => encoder.encode(text);

/** Text of UTF-8 bytes; throws TypeError where they are none. */
export const text = (bytes) => strictDecoder.decode(bytes);

/** Text whose code units are the bytes. */
export function latin1(bytes) {
  let result = "";
  for (let at = 0; at < bytes.length; at += 8192) {
    result += String.fromCharCode(...bytes.subarray(at, at + 8192));
  }
  return result;
}

export function concat(...parts) {
  const result = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    result.set(part, at);
    at += part.length;
  }
  return result;
}

export function equal(first, second) {
  if (first.length !== second.length) return false;
  let difference = 0;
  for (let i = 0; i < first.length; i++) difference |= first[i] ^ second[i];
  return difference === 0;
}

const HEX = Array.from({ length: 256 }, (_, byte) => byte.toString(16).padStart(2, "0"));

export function hex(bytes) {
  let result = "";
  for (const byte of bytes) result += HEX[byte];
  return result;
}

/** Bytes of lower-case hexadecimal text, null where it is none. */
export function fromHex(value) {
  if (typeof value !== "string" || value.length % 2 || !/^[0-9a-f]*$/.test(value)) return null;
  const result = new Uint8Array(value.length / 2);
  for (let i = 0; i < result.length; i++) result[i] = parseInt(value.slice(2 * i, 2 * i + 2), 16);
  return result;
}

export const toBase64 = (bytes) => btoa(latin1(bytes));

/** Bytes of padded standard base64 in its one encoding, null where it is none. */
export function fromBase64(value) {
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

export const u16be = (bytes, at) => (bytes[at] << 8) | bytes[at + 1];
export const u16le = (bytes, at) => bytes[at] | (bytes[at + 1] << 8);
export const u32be = (bytes, at) => u16be(bytes, at) * 65536 + u16be(bytes, at + 2);
export const u32le = (bytes, at) => u16le(bytes, at + 2) * 65536 + u16le(bytes, at);

/** Eight bytes, big endian. */
export function u64be(value) {
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

export const sha1 = (...parts) => hash("SHA-1", parts);
export const sha256 = (...parts) => hash("SHA-256", parts);
export const sha384 = (...parts) => hash("SHA-384", parts);
export const sha512 = (...parts) => hash("SHA-512", parts);
export const digest = async (...parts) => hex(await sha256(...parts));

/** Whether an Ed25519 signature verifies. */
export async function ed25519(publicKey, signature, message) {
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
export async function ecdsa(curve, hashName, point, signature, message) {
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
export async function rsaPss(info, signature, message) {
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
export async function rsaPkcs1(info, signature, message) {
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
export function seconds(value) {
  if (typeof value !== "string" || !/^(?!0000)\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$/.test(value)) return null;
  const milliseconds = Date.parse(value);
  if (Number.isNaN(milliseconds)) return null;
  return new Date(milliseconds).toISOString().slice(0, 19) + "Z" === value
    ? milliseconds / 1000
    : null;
}
