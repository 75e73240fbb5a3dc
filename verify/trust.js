// The trust file (spec/trust.md) with its appraisal policy (spec/evidence.md §6).

import { Refusal, demand, fromBase64 } from "./bytes.js";
import { Malformed } from "./json.js";
import { RULES as NITRO } from "./nitro.js";
import { RULES as NVIDIA } from "./nvidia.js";
import * as shape from "./shape.js";
import { RULES as SNP } from "./snp.js";
import { BadDer, certificate } from "./x509.js";
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
const TDX = record({ tee: literal("tdx"), ...QUOTE });
const valued = ({ rtmr0 }) => rtmr0 !== "log"; // a tdx guest shows no event log
const DSTACK = record({
  tee: literal("dstack"),
  ...QUOTE,
  key_provider: either(any, shape.match(/^(?:[0-9a-f]{2}){16,1024}$/)),
  os_image_hash: either(any, list(shape.hex64, { min: 1, max: 256 })),
});
const VENDORS = { dstack: "intel", tdx: "intel", nitro: "aws", snp: "amd" };
const CPU = {
  dstack: (value) => DSTACK(value) && (value.os_image_hash === "any" || value.key_provider !== "any"),
  tdx: (value) => TDX(value) && (value.measurements === "any" || value.measurements.every(valued)),
  nitro: NITRO,
  snp: SNP,
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
    platform: literal("simulator", ...Object.keys(VENDORS)),
    root: either(literal(...Object.values(VENDORS)), isSimulatorRoot),
    cpu: (cpu) => shape.anyObject(cpu) && shape.string(cpu.tee) && Object.hasOwn(CPU, cpu.tee) && CPU[cpu.tee](cpu),
    gpu: either(literal("any", "none"), shape.anyObject),
  });
  if (!form(value)) return false;
  const simulated = typeof value.root !== "string";
  if (typeof value.gpu !== "string" && !NVIDIA(value.gpu, simulated)) return false;
  if (simulated || value.platform === "simulator") return simulated && value.platform === "simulator";
  return value.platform === value.cpu.tee && value.root === VENDORS[value.platform];
}

const keys = list(shape.base64(32), { min: 1, max: 64 });
const BROKERS = record({
  signing_keys: (value) => keys(value) && new Set(value).size === value.length,
  threshold: integer(1, 64),
  datasets: literal("all", "theirs"),
});
const TRUST = record({
  version: literal(1),
  consortium_id: shape.hex64,
  recipe_hash: shape.hex64,
  compose_hash: either(any, shape.hex64),
  app_id: either(any, shape.hex40),
  brokers: (value) => BROKERS(value) && value.threshold <= value.signing_keys.length,
  appraisal: isPolicy,
  simulated: literal("refuse", "accept-insecure"),
});

/** The trust file of bytes in YAML or JSON. */
export function readTrust(bytes) {
  let document;
  try {
    document = parseYaml(bytes, { whole: true });
  } catch (error) {
    if (!(error instanceof Malformed)) throw error;
    throw new Refusal("trust-invalid", `trust file: ${error.message}`);
  }
  demand(TRUST(document), "trust-invalid", "a field of the trust file is missing, unknown or malformed");
  return document;
}
