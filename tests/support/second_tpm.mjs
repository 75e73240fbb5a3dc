// Judge many quotes of a vTPM in one process: a JSON object a line in, the code of its refusal out.

import { createInterface } from "node:readline";

import { CannotCheck, Refusal, fromBase64 } from "../../verify/bytes.js";
import { FORM, verifyTpm } from "../../verify/tpm.js";

async function judged({ shown, root, now }) {
  if (!FORM(shown)) return "evidence-malformed";
  const { machine } = await verifyTpm(shown, root === null ? null : fromBase64(root), now);
  return `accepted ${machine.zone} ${machine.project} ${machine.instance}`;
}

for await (const line of createInterface({ input: process.stdin })) {
  let code;
  try {
    code = await judged(JSON.parse(line));
  } catch (error) {
    if (error instanceof Refusal) code = error.code;
    else if (error instanceof CannotCheck) code = "not-checked";
    else code = `fault: ${error.stack}`;
  }
  process.stdout.write(`${JSON.stringify(code)}\n`);
}
