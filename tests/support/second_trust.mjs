// Read many trust files in one process: a JSON string a line in, its canonical JSON or a code out.

import { createInterface } from "node:readline";

import { Refusal } from "../../verify/bytes.js";
import { canonical } from "../../verify/json.js";
import { readTrust } from "../../verify/trust.js";

for await (const line of createInterface({ input: process.stdin })) {
  let said;
  try {
    said = new TextDecoder().decode(canonical(await readTrust(new TextEncoder().encode(JSON.parse(line)))));
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    said = error.code;
  }
  process.stdout.write(`${JSON.stringify(said)}\n`);
}
