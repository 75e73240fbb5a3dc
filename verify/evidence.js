// The evidence document: its form, its verification, its appraisal (spec/evidence.md).

import { Refusal, concat, demand, digest, equal, fromBase64, fromHex, hex, sha256, sha512, utf8 } from "./bytes.js";
import * as cloud from "./cloudtpm.js";
import { appraiseMeasured, replay, replayFirmware } from "./dstack.js";
import { Malformed, canonical, parseCanonical } from "./json.js";
import * as nitro from "./nitro.js";
import * as nvidia from "./nvidia.js";
import { appraiseGoogle, appraiseNitroTpm, checkGoogle, verifyNitroTpm } from "./rented.js";
import * as shape from "./shape.js";
import * as snp from "./snp.js";
import { appraiseQuote, verifyQuote } from "./tdx.js";
import * as tpm from "./tpm.js";
import { TIER_OF_KIND, reaches } from "./tiers.js";

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
const FIRMWARE_EVENT = record({ index: shape.integer(0, 2), digest: shape.hex96 });
const TDX_FORM = record(
  { tee: literal("tdx"), quote, app_compose: compose },
  { boot_events: list(FIRMWARE_EVENT, { min: 1, max: 1024 }) },
);

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
    appraise(facts, rules, now) {
      appraiseQuote(facts.signed, rules, now, facts.logged);
      const shown = rules.boot_log === "any" || facts.logged;
      demand(shown, "event-log-mismatch", "no log of what the firmware measured");
    },
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
  "test-nitro": { form: nitro.TEST_FORM, verify: nitro.verifyTest, appraise: nitro.appraiseTest },
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
  "test-nitro": "simulator",
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
export function readEvidence(bytes) {
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
export async function reportData(purpose, transcript, gpu) {
  const tail = gpu === null ? new Uint8Array(0) : await sha256(canonical(gpu));
  return sha512(utf8(`sealtrain/${purpose}/v1:`), canonical(transcript), tail);
}

/** 32 bytes that accelerators of a conversation answer. */
export const gpuNonce = (purpose, transcript) =>
  sha256(utf8(`sealtrain/${purpose}/gpu-nonce/v1:`), canonical(transcript));

/**
 * Facts that a root of trust signed, at a moment.
 *
 * @param {object} evidence Of `readEvidence`.
 * @param {object} policy The trust file's appraisal policy.
 * @param {number} now Seconds since the epoch.
 * @param {{purpose: string, transcript: object}} conversation What accelerators answered for.
 */
export async function verifyEvidence(evidence, policy, now, conversation) {
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
  const logged = cpu.boot_events !== undefined;
  if (logged) await replayFirmware(cpu.boot_events, signed.quote);
  const expected = concat(new Uint8Array([1]), fromHex(shown), new Uint8Array(15));
  const named = equal(expected, signed.quote.configId);
  demand(named, "compose-hash-mismatch", `another deployment document: ${hex(signed.quote.configId)}`);
  return { composeHash: shown, appId: shown.slice(0, 40), keyProvider: "", logged };
}

/** Compare verified facts with a policy's reference values and with what is expected. */
export function appraise(verified, policy, deployment, now) {
  const simulated = typeof policy.root !== "string";
  demand(verified.simulated === simulated, "platform-mismatch", "another kind of root");
  const { tier } = verified;
  demand(reaches(tier, policy.tier), "tier-refused", `the machine proves ${tier}, the policy asks for ${policy.tier}`);
  TEES[verified.tee].appraise(verified, policy.cpu, now);
  const document = verified.composeHash === deployment.compose_hash;
  demand(document, "compose-hash-mismatch", "guest runs another deployment document");
  demand(verified.appId === deployment.app_id, "app-id-mismatch", "guest runs another app");
}
