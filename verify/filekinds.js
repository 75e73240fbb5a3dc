// What a file given to the page is, by its content: the page asks for two files, and a person who
// gives another one reads what it is and what the page needs in its place.

/** Most bytes of a file that the page reads: those of a manifest (spec/run-manifest.md §1). */
export const MOST_BYTES = 48 * 2 ** 20;
/** So many bytes tell what a file is that the page does not read whole. */
export const HEAD_BYTES = 64;

const MOST_LISTED = 200;
const MANIFEST = "the manifest.json of a run";
const INSIDE = `a manifest holds it already: give ${MANIFEST}`;

const decoder = new TextDecoder("utf-8", { fatal: true });
const latin = new TextDecoder("latin1");

/** First bytes of files in other formats, their kind, what they are, and what the page needs. */
const MAGIC = [
  ["SEALTRN\x01", "sealed-file", "a sealed file", "its owner opens it with sealtrain open; this page needs manifest and trust file alone"],
  ["SQLite format 3\0", "database", "a database, such as a broker's ledger", "sealtrain verify --chain --database reads a ledger"],
  ["%PDF", "pdf", "a PDF", `give ${MANIFEST} in place of a print of it`],
  ["\x89PNG", "picture", "a picture", `give ${MANIFEST} in place of a picture of it`],
  ["\xff\xd8\xff", "picture", "a picture", `give ${MANIFEST} in place of a picture of it`],
  ["PK\x03\x04", "archive", "a ZIP archive", "unpack it, and give the files in it"],
  ["\x1f\x8b", "archive", "a gzip archive", "unpack it, and give the files in it"],
  ["PAR1", "table", "a Parquet table", `this page reads no records: give ${MANIFEST}`],
  ["\xff\xfe", "utf-16", "a text in UTF-16", "save it again as UTF-8"],
  ["\xfe\xff", "utf-16", "a text in UTF-16", "save it again as UTF-8"],
];

/** Documents of sealtrain by their outermost fields; the first row whose fields are all there counts. */
const DOCUMENTS = [
  [["seed", "type"], "identity", "an identity with a private key", "keep it to yourself: no verifier needs it, and this page has not sent it anywhere"],
  [["recipe", "environment", "code"], "lock", "a lock", INSIDE],
  [["url", "signing_key"], "broker-file", "a broker file", "put the broker's signing key into your trust file: sealtrain trust new"],
  [["chain_id", "rpc"], "chain-file", "a chain file", "your trust file names the chain: sealtrain trust new --chain"],
  [["owners", "thresholds"], "consortium", "a consortium", INSIDE],
  [["docker_compose_file"], "deployment", "a deployment document", INSIDE],
  [["bash_script"], "deployment", "a deployment document", INSIDE],
  [["cpu", "platform", "root"], "policy", "an appraisal policy", "a trust file holds it: sealtrain trust new --policy"],
  [["datasets", "phase"], "recipe", "a recipe", INSIDE],
  [["payload", "payloadType", "signatures"], "signed-document", "a signed document of an owner or a broker", INSIDE],
  [["checks", "verdict"], "answer", "the answer of sealtrain verify --json", `give ${MANIFEST} that it is about`],
  [["error"], "error", "the error of a command", `give ${MANIFEST} that the command was about`],
];
const TRUST_FIELDS = ["consortium_id", "recipe_hash", "compose_hash", "app_id", "brokers", "appraisal", "simulated"];

const other = (kind, what, need) => ({ kind, what, need });
const MOST_TEXT = 2 ** 20;

/** The outermost fields of a document in JSON or YAML; null where the text is neither. */
function fieldsOf(text) {
  try {
    const value = JSON.parse(text);
    return value !== null && typeof value === "object" && !Array.isArray(value) ? new Set(Object.keys(value)) : null;
  } catch {
    if (text.length > MOST_TEXT) return null;
    const found = [...text.matchAll(/^(["']?)([A-Za-z_][\w-]{0,63})\1[ ]*:(?=\s|$)/gm)].map((match) => match[2]);
    return found.length ? new Set(found) : null;
  }
}

function kindOfText(text) {
  if (text.includes('"dsseEnvelope"')) return { kind: "manifest", what: "a run's manifest", need: "" };
  if (/^\s*<(?:!doctype|html)/i.test(text)) {
    return other("web-page", "a web page, such as a report", "a report verifies itself when you open it");
  }
  const words = text.slice(0, MOST_TEXT).replace(/[[\]",]/g, " ").split(/\s+/).filter(Boolean);
  if (words.length && text.length <= MOST_TEXT && words.every((word) => /^(?:0x)?[0-9a-f]{64}$/i.test(word))) {
    return other(
      "hashes",
      "hashes, such as those of a chain's blocks",
      "your trust file names blocks in chain, blocks: sealtrain trust new --chain-block HASH",
    );
  }
  const fields = fieldsOf(text);
  if (fields === null) return other("text", "a text that is no document of sealtrain", `give ${MANIFEST}`);
  const trusts = TRUST_FIELDS.filter((field) => fields.has(field)).length;
  if (trusts >= 3 && (fields.has("appraisal") || fields.has("brokers"))) {
    return { kind: "trust", what: "a trust file", need: "" };
  }
  const row = DOCUMENTS.find(([wanted]) => wanted.every((field) => fields.has(field)));
  return row ? other(...row.slice(1)) : other("other", "another document", `give ${MANIFEST}, or a trust file`);
}

/**
 * What a file is: the page verifies the kinds `manifest` and `trust`; `what` says any kind in words,
 * and `need` what to give or do in place of such a file.
 *
 * @param {{size: number, bytes: Uint8Array}} file Its size, and its bytes: all of them up to
 *   `MOST_BYTES`, of a longer file the first `HEAD_BYTES` or more.
 */
export function recogniseFile({ size, bytes }) {
  if (size === 0) return other("empty", "an empty file", "copy it again from where it came");
  const head = latin.decode(bytes.subarray(0, HEAD_BYTES));
  const magic = MAGIC.find(([begin]) => head.startsWith(begin));
  if (magic) return other(...magic.slice(1));
  if (size > MOST_BYTES) {
    return other("too-long", `a file of ${Math.round(size / 2 ** 20)} MiB`, `no manifest has more than ${MOST_BYTES / 2 ** 20} MiB`);
  }
  try {
    return kindOfText(decoder.decode(bytes));
  } catch (error) {
    if (!(error instanceof TypeError)) throw error;
    return other("binary", "a file in a binary format", `give ${MANIFEST}, which is JSON`);
  }
}

/**
 * Which of the files that came at once the page takes: at most one of a kind.
 *
 * Returns `taken`, the index of the manifest and of the trust file (null for none), `several`, the kinds
 * of which more than one came, so that an earlier file of the kind is in doubt, too, and a note about each file: `{kind, what, need, used}`.
 *
 * @param {{kind: string, what: string, need: string}[]} files Of `recogniseFile`.
 */
export function chooseFiles(files) {
  const taken = { manifest: null, trust: null };
  const several = [];
  const notes = files.map(({ kind, what, need }) => ({ kind, what, need, used: false }));
  for (const kind of Object.keys(taken)) {
    const found = files.flatMap((file, at) => (file.kind === kind ? [at] : []));
    if (found.length === 1) {
      taken[kind] = found[0];
      notes[found[0]].used = true;
    }
    if (found.length < 2) continue;
    several.push(kind);
    const told = `${found.length} ${kind === "manifest" ? "manifests" : "trust files"} came at once: give one`;
    const chain = kind === "manifest" ? ", or use sealtrain verify --chain for the runs of a chain" : "";
    for (const at of found) notes[at].need = told + chain;
  }
  return { taken, several, notes: notes.slice(0, MOST_LISTED), more: Math.max(0, notes.length - MOST_LISTED) };
}
