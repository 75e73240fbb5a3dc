// Read many YAML documents in one process: their bytes in base64 a line in, canonical JSON or null out.

import { createInterface } from "node:readline";

import { fromBase64 } from "../../verify/bytes.js";
import { Malformed, canonical } from "../../verify/json.js";
import { parseYaml } from "../../verify/yaml.js";

for await (const line of createInterface({ input: process.stdin })) {
  let said = null;
  try {
    said = new TextDecoder().decode(canonical(parseYaml(fromBase64(line))));
  } catch (error) {
    if (!(error instanceof Malformed)) throw error;
  }
  process.stdout.write(`${JSON.stringify(said)}\n`);
}
