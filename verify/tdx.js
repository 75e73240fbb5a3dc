// The quote of TDX and its collateral (spec/evidence.md §4), by the rules of Intel's DCAP.

import {
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
} from "./bytes.js";
import { Malformed, parseJson } from "./json.js";
import * as x509 from "./x509.js";

const INTEL_ROOT = "44a0196b2b99f889b8e149e95b807a350e7424964399e885a7cbb8ccfab674d3";
const SGX = "1.2.840.113741.1.13.1";
const structure = (condition, message) => demand(condition, "quote-invalid", message);

/** Fields of a quote in its one encoding. */
export function parseQuote(raw) {
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
export async function verifyQuote(raw, collateral, rules, simulatorRoot, now) {
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
export function appraiseQuote(verified, rules, now, logged = false) {
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
