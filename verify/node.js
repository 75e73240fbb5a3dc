// Verify run manifests with Node: `node verify/node.js MANIFEST TRUST [--artefacts FOLDER]`.
//
// Prints the checks as JSON. Exit code 0: verified; 3: refused; 1: some check could not be made;
// 2: the trust file or an argument cannot be used.

import { lstat, readFile, readdir } from "node:fs/promises";
import path from "node:path";
import { pathToFileURL } from "node:url";

import { Refusal } from "./bytes.js";
import { HIDDEN } from "./characters.js";
import { readTrust, verify } from "./verify.js";

/** Everything below a folder, as `verify` takes it. Links are not followed. */
export async function filesBelow(folder) {
  const found = new Map();
  const walk = async (below) => {
    const here = path.join(folder, below);
    if (below !== "" && !(await lstat(here)).isDirectory()) return;
    for (const entry of await readdir(here, { withFileTypes: true })) {
      const name = below === "" ? entry.name : `${below}/${entry.name}`;
      const inside = name === "model" || name.startsWith("model/");
      if (entry.isDirectory() && inside) await walk(name);
      else if (entry.isFile()) found.set(name, () => readFile(path.join(folder, name)));
      else if (inside) found.set(name, null);
    }
  };
  await walk("");
  return found;
}

/** A value as JSON in characters that show; the others as JSON's escapes. */
function shown(value, indent) {
  const escape = (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`;
  const written = (found) => found.split("").map(escape).join("");
  const lines = JSON.stringify(value, null, indent).split("\n");
  return lines.map((line) => line.replace(HIDDEN, written)).join("\n");
}

async function main([manifest, trust, ...rest]) {
  if (!trust || (rest.length && (rest[0] !== "--artefacts" || rest.length !== 2))) {
    console.error("usage: node verify/node.js MANIFEST TRUST [--artefacts FOLDER]");
    return 2;
  }
  let given;
  try {
    given = await readTrust(await readFile(trust));
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    console.log(shown({ error: { code: error.code, message: error.message } }));
    return 2;
  }
  const artefacts = rest.length ? await filesBelow(rest[1]) : null;
  const now = Math.floor(Date.now() / 1000);
  const report = await verify(await readFile(manifest), given, { artefacts, now });
  const { verdict, check, code, checks } = report;
  console.log(shown({ verdict, check, code, checks }, 1));
  return { verified: 0, refused: 3 }[verdict] ?? 1;
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? "").href) {
  process.exitCode = await main(process.argv.slice(2));
}
