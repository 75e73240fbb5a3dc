// Confidential machines of Azure and Google, whose cloud's TPM says what booted (spec/evidence-tpm.md).

import { concat, demand, equal, fromBase64, fromHex, hex, sha256, utf8 } from "./bytes.js";
import { Malformed, parseJson } from "./json.js";
import { PLACE_RULES, appraisePlace } from "./rented.js";
import * as shape from "./shape.js";
import * as snp from "./snp.js";
import * as tpm from "./tpm.js";

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
export const AZURE_SNP_FORM = record({ tee: literal("azure-snp"), ...snp.REPORT, ...AZURE });
export const GCP_SNP_FORM = record({ tee: literal("gcp-snp"), ...snp.REPORT, tpm: tpm.WHOLE_SHOWN_FORM });

export const TEST_VTPM_FORM = record({
  tee: literal("test-vtpm"),
  app_compose: shape.compose,
  tpm: tpm.WHOLE_SHOWN_FORM,
  report_data: reportData,
});

/** Evidence of an Azure guest with TDX, of the form of a quote. */
export const azureTdxForm = (quote) =>
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
export const AZURE_RULES = {
  boots: list(record(BOOT_RULE), { max: 1024 }),
  vm_ids: either(any, list(match(/^[0-9A-Za-z-]{1,64}$/), { max: 4096 })),
};
export const AZURE_SNP_RULES = snp.rulesOf("azure-snp", AZURE_RULES);
export const GCP_SNP_RULES = snp.rulesOf("gcp-snp", {
  boots: list(record({ pcr0: extended, ...BOOT_RULE }), { max: 1024 }),
  ...PLACE_RULES,
});

export const TEST_VTPM_RULES = record({
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
export async function verifyAzure(cpu, signed) {
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
export async function verifyAzureSnp(cpu, { rules, root, now }) {
  const signed = await snp.signedReport(cpu, root, now);
  const facts = await verifyAzure(cpu, signed.reportData);
  await snp.checkRevocation(cpu, signed, rules, now);
  return { ...signed, ...facts };
}

/** Facts about a Google guest with SEV-SNP. */
export async function verifyGcpSnp(cpu, { rules, root, now }) {
  const signed = await snp.signedReport(cpu, root, now);
  const quoted = await tpm.verifyTpm(cpu.tpm, root, now);
  const expected = await sha256(fromBase64(cpu.report));
  demand(equal(quoted.quote.qualifying, expected), "report-data-mismatch", "the vTPM signed for another report");
  const facts = await bound(cpu, quoted);
  await snp.checkRevocation(cpu, signed, rules, now);
  return { ...signed, ...facts, quoted };
}

/** Facts about a machine whose TPM's key a test root certified; never under a root of hardware. */
export async function verifyTestVtpm(cpu, { root, now }) {
  demand(root !== null, "simulated-evidence", "evidence under a test root");
  const quoted = await tpm.verifyTpm(cpu.tpm, root, now);
  const reportData = fromHex(cpu.report_data);
  const asked = equal(await sha256(reportData), quoted.quote.qualifying);
  demand(asked, "report-data-mismatch", "the TPM signed for another conversation");
  return { ...(await bound(cpu, quoted)), quoted, reportData, simulated: true };
}

/** The rules of a policy for a machine with a TPM under a test root. */
export const appraiseTestVtpm = ({ quoted }, rules) => appraiseBoot(quoted, rules, BOOT);

function appraiseBoot({ registers }, rules, indexes) {
  const boot = (one) => indexes.every((index) => one[`pcr${index}`] === registers.get(index));
  demand(rules.boots.some(boot), "measurement-mismatch", "another image was booted");
}

/** The rules of a policy for what Azure's paravisor and its TPM say. */
export function appraiseAzure({ quoted, vmId }, rules) {
  appraiseBoot(quoted, rules, BOOT);
  demand(rules.vm_ids === "any" || rules.vm_ids.includes(vmId), "platform-mismatch", "another virtual machine");
}

/** The rules of a policy for a Google guest with SEV-SNP. */
export function appraiseGcpSnp(facts, rules) {
  snp.appraise(facts, rules);
  appraiseBoot(facts.quoted, rules, [0, ...BOOT]);
  appraisePlace(facts.quoted.machine, rules);
}
