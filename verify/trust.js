// The trust file (spec/trust.md) with its appraisal policy (spec/evidence.md §6).

import { Refusal, demand, equal, fromBase64 } from "./bytes.js";
import { isTrustedChain } from "./chainword.js";
import { AZURE_RULES, AZURE_SNP_RULES, GCP_SNP_RULES, TEST_VTPM_RULES } from "./cloudtpm.js";
import { Malformed } from "./json.js";
import { RULES as NITRO, TEST_RULES as TEST_NITRO } from "./nitro.js";
import { RULES as NVIDIA } from "./nvidia.js";
import { GOOGLE_RULES, NITRO_TPM_RULES } from "./rented.js";
import * as shape from "./shape.js";
import { DSTACK_RULES as DSTACK_SNP, RULES as SNP } from "./snp.js";
import { TIERS } from "./tiers.js";
import { BadDer, certificate, signedBy } from "./x509.js";
import { parseYaml } from "./yaml.js";

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
const TDX = record({ tee: literal("tdx"), ...QUOTE, boot_log: literal("any", "require") });
const AZURE_TDX = record({ tee: literal("azure-tdx"), ...QUOTE, ...AZURE_RULES });
const valued = ({ rtmr0 }) => rtmr0 !== "log"; // where no event log need be shown
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
  "test-nitro": { platform: "simulator", vendor: null },
};
const each = (field) => [...new Set(Object.values(TEES).map((one) => one[field]))].filter((name) => name !== null);
const CPU = {
  dstack: (value) => DSTACK(value) && namesImage(value),
  "dstack-gcp-tdx": (value) => GOOGLE(value) && namesImage(value),
  "dstack-aws-nitro-tpm": NITRO_TPM_RULES,
  tdx: (value) => TDX(value) && (value.boot_log === "require" || namesRegisters(value)),
  "azure-tdx": (value) => AZURE_TDX(value) && namesRegisters(value),
  "azure-snp": AZURE_SNP_RULES,
  "gcp-snp": GCP_SNP_RULES,
  "test-vtpm": TEST_VTPM_RULES,
  "test-nitro": TEST_NITRO,
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

export function isPolicy(value) {
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
export async function checkSimulators({ root, gpu }) {
  const roots = [root, ...(typeof gpu === "string" ? [] : [gpu.root, gpu.rim_root])];
  for (const one of roots.filter((each) => typeof each !== "string")) {
    demand(await signsItself(one), "trust-invalid", "a simulator's root does not sign itself");
  }
}

/** The trust file of bytes in YAML or JSON. */
export async function readTrust(bytes) {
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
