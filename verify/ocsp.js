// Archived answers about certificates of accelerators (spec/evidence-nvidia.md, "Revocation").

import { CannotCheck, Refusal, demand, ecdsa, equal, fromBase64, hex, sha1, sha256, sha384 } from "./bytes.js";
import { BadDer, bits, certificate, der, items, oid, rawSignature, signedBy, time } from "./x509.js";

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
export async function checkRevocation(chain, collateral, rules, now) {
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
