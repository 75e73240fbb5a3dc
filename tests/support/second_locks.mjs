// Hold many locks to their form: base64 of canonical bytes a line in, whether it is a lock out.

import { createInterface } from "node:readline";

import { Malformed, parseCanonical } from "../../verify/json.js";
import { isLock } from "../../verify/lock.js";

for await (const line of createInterface({ input: process.stdin })) {
  let said;
  try {
    said = await isLock(parseCanonical(new Uint8Array(Buffer.from(line, "base64")), { size: 192 * 1024 }));
  } catch (error) {
    said = error instanceof Malformed ? false : `fault ${error.stack}`;
  }
  process.stdout.write(`${JSON.stringify(said)}\n`);
}
