// Hold values to schemas: a JSON array of schema and value a line in, whether it holds out, or "Error".

import { createInterface } from "node:readline";

import { parseJson } from "../../verify/json.js";
import { validator } from "../../verify/schema.js";

for await (const line of createInterface({ input: process.stdin })) {
  const [schema] = JSON.parse(line);
  const value = parseJson(new TextEncoder().encode(line))[1];
  let said;
  try {
    said = validator(schema)(value);
  } catch (error) {
    said = error.constructor.name;
  }
  process.stdout.write(`${JSON.stringify(said)}\n`);
}
