// A reader of strict DER, and as much of X.509 and of revocation lists as evidence needs.

import { ecdsa, equal, hex, latin1, rsaPss, text } from "./bytes.js";

/** Bytes that are no certificate or list this reader knows; the caller names the refusal. */
export class BadDer extends Error {}

const fail = (message) => {
  throw new BadDer(message);
};

/** One element: `{tag, whole, content}`; the bytes must end with it. */
export function der(bytes) {
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
export function items(element, tag = 0x30) {
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
export function bits(element) {
  if (element?.tag !== 3 || element.content[0] !== 0) fail("no bit string of whole bytes");
  return element.content.subarray(1);
}

export function oid(element) {
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
export function small(element) {
  if (element?.tag !== 2 || element.content.length === 0 || element.content.length > 6) fail("no integer");
  if (element.content[0] & 0x80) fail("negative");
  return element.content.reduce((sum, byte) => sum * 256 + byte, 0);
}

/** Seconds since the epoch of a UTCTime or GeneralizedTime. */
export function time(element) {
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
export function certificate(bytes) {
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
export function rawSignature(bytes, size) {
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
export async function signedBy(issuer, hash, signature, message) {
  if (hash === "PSS") return issuer.rsaBits > 0 && rsaPss(issuer.info, signature, message);
  const size = { "P-256": 32, "P-384": 48 }[issuer.curve];
  if (!size || !hash) return false;
  const raw = rawSignature(signature, size);
  return raw !== null && ecdsa(issuer.curve, hash, issuer.point, raw, message);
}

const flags = (found) => (found ? der(found.value) : null);

/** Whether a certificate may sign others. */
export function isAuthority(one) {
  const basic = one.extensions.get("2.5.29.19");
  if (!basic) return false;
  const [ca] = items(der(basic.value));
  const usage = flags(one.extensions.get("2.5.29.15"));
  const signs = usage === null || Boolean(usage.content[1] & 0x04);
  return ca?.tag === 1 && ca.content[0] === 0xff && signs;
}

/** Whether bytes are a certificate whose common name begins with SIMULATED. */
export function callsItselfSimulated(bytes) {
  try {
    return names(fieldsOf(bytes).subject, COMMON_NAME).some((name) => name.startsWith("SIMULATED"));
  } catch (error) {
    if (error instanceof BadDer || error instanceof TypeError) return false;
    throw error;
  }
}

/** What a certificate's extensions say: `authority`, `certifies` and `signs` are null where they are silent. */
export function powers(one) {
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
export async function checkPath(path, { now, critical = [], constrained = false }) {
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
export async function issued(issuer, one) {
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
export function revocationList(bytes) {
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
export const pemCertificates = (source) => pemBytes(source).map(certificate);

/** The same as bytes, which may be no certificates. */
export function pemBytes(source) {
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
