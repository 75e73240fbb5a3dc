// What verify.html says of files that come at once: a JSON list of {size, base64} a line in, the kind of each, the index
// of the manifest and of the trust file that it takes, kinds of which several came, and which files it uses out.

import { createInterface } from "node:readline";

import { fromBase64 } from "../../verify/bytes.js";
import { chooseFiles, recogniseFile } from "../../verify/filekinds.js";

for await (const line of createInterface({ input: process.stdin })) {
  const files = JSON.parse(line).map(({ size, base64 }) => recogniseFile({ size, bytes: fromBase64(base64) }));
  const { taken, several, notes, more } = chooseFiles(files);
  const said = notes.every(({ what, need, used }) => what !== "" && (used || need !== ""));
  const used = notes.map((note) => note.used);
  process.stdout.write(`${JSON.stringify({ kinds: files.map(({ kind }) => kind), taken, several, used, more, said })}\n`);
}
