// Ask the second verifier of many texts in one process: a JSON string a line in, what it says of it out.

import { createInterface } from "node:readline";

import { escapeHidden } from "../../verify/characters.js";
import { visible } from "../../verify/shape.js";

for await (const line of createInterface({ input: process.stdin })) {
  const text = JSON.parse(line);
  process.stdout.write(`${JSON.stringify([visible(text), escapeHidden(text)])}\n`);
}
