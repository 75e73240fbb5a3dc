// Strict JSON, its canonical form (RFC 8785), and the reading of YAML that a trust file needs.

import { text, utf8 } from "./bytes.js";

/** Bytes or text that are not the expected JSON; the caller names the refusal. */
export class Malformed extends Error {}

function fail(message) {
  throw new Malformed(message);
}

const NUMBER = /-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?/y;
const PLAIN = /[^"\\\u0000-\u001f]*/y;
const ESCAPES = { '"': '"', "\\": "\\", "/": "/", b: "\b", f: "\f", n: "\n", r: "\r", t: "\t" };
const LONE = /[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/;

class Parser {
  constructor(source, { depth, values, whole }) {
    this.source = source;
    this.at = 0;
    this.depth = depth;
    this.left = values;
    this.whole = whole;
  }

  space() {
    while (" \t\n\r".includes(this.source[this.at] ?? "x")) this.at++;
  }

  expect(word) {
    if (!this.source.startsWith(word, this.at)) fail(`unexpected character at ${this.at}`);
    this.at += word.length;
  }

  value(level) {
    if (--this.left < 0) fail("too many values");
    this.space();
    const first = this.source[this.at];
    if (first === "{") return this.object(level + 1);
    if (first === "[") return this.array(level + 1);
    if (first === '"') return this.string();
    if (first === "t") return this.expect("true"), true;
    if (first === "f") return this.expect("false"), false;
    if (first === "n") return this.expect("null"), null;
    NUMBER.lastIndex = this.at;
    const [number] = NUMBER.exec(this.source) ?? fail(`no value at ${this.at}`);
    this.at += number.length;
    return Number.isFinite(Number(number)) ? counted(number, this.whole) : fail("number out of range");
  }

  /** An empty object or array counts as two values (spec/key-release.md §1). */
  empty(result) {
    if (--this.left < 0) fail("too many values");
    this.at++;
    return result;
  }

  object(level) {
    if (level > this.depth) fail("nested too deeply");
    const result = Object.create(null);
    this.at++;
    this.space();
    if (this.source[this.at] === "}") return this.empty(result);
    for (;;) {
      this.space();
      if (this.source[this.at] !== '"') fail(`no key at ${this.at}`);
      const key = this.string();
      if (key in result) fail("a key occurs twice");
      this.space();
      this.expect(":");
      result[key] = this.value(level);
      this.space();
      if (this.source[this.at] === "}") return this.at++, result;
      this.expect(",");
    }
  }

  array(level) {
    if (level > this.depth) fail("nested too deeply");
    const result = [];
    this.at++;
    this.space();
    if (this.source[this.at] === "]") return this.empty(result);
    for (;;) {
      result.push(this.value(level));
      this.space();
      if (this.source[this.at] === "]") return this.at++, result;
      this.expect(",");
    }
  }

  string() {
    this.at++;
    let result = "";
    for (;;) {
      PLAIN.lastIndex = this.at;
      const [plain] = PLAIN.exec(this.source);
      result += plain;
      this.at += plain.length;
      const next = this.source[this.at++];
      if (next === '"') break;
      if (next !== "\\") fail("text is not closed or holds a control character");
      const escape = this.source[this.at++];
      if (escape === "u") {
        const digits = this.source.slice(this.at, this.at + 4);
        if (!/^[0-9a-fA-F]{4}$/.test(digits)) fail("bad escape");
        result += String.fromCharCode(parseInt(digits, 16));
        this.at += 4;
      } else {
        result += Object.hasOwn(ESCAPES, escape) ? ESCAPES[escape] : fail("bad escape");
      }
    }
    return LONE.test(result) ? fail("half of a surrogate pair") : result;
  }
}

/** A number; `whole` refuses an integer that is written as a fraction or with an exponent. */
function counted(written, whole) {
  const value = Number(written);
  if (whole && Number.isInteger(value) && /[.eE]/.test(written)) fail("an integer written otherwise");
  return value;
}

/** The value of strict JSON bytes. Objects have no prototype. */
export function parseJson(bytes, { depth = 64, values = 2 ** 20, size = Infinity, whole = false } = {}) {
  if (bytes.length > size) fail("too large");
  let source;
  try {
    source = text(bytes);
  } catch {
    fail("not UTF-8");
  }
  const parser = new Parser(source, { depth, values, whole });
  const result = parser.value(0);
  parser.space();
  if (parser.at !== source.length) fail("something follows the value");
  return result;
}

function write(value) {
  if (value === null || typeof value === "boolean") return String(value);
  if (typeof value === "number") {
    return Number.isFinite(value) ? String(Object.is(value, -0) ? 0 : value) : fail("no number");
  }
  if (typeof value === "string") return JSON.stringify(value);
  if (Array.isArray(value)) return `[${value.map(write).join(",")}]`;
  const keys = Object.keys(value).sort();
  return `{${keys.map((key) => `${JSON.stringify(key)}:${write(value[key])}`).join(",")}}`;
}

/** Canonical JSON of RFC 8785, as bytes. */
export const canonical = (value) => utf8(write(value));

/** The value of bytes that are its canonical JSON and nothing else. */
export function parseCanonical(bytes, limits) {
  const value = parseJson(bytes, limits);
  if (write(value) !== text(bytes)) fail("not canonical");
  return value;
}

// YAML as spec/recipe.md §1 reads it, of block and flow collections and one-line scalars. Anchors,
// tags, block scalars and text over several lines are refused: no trust file needs them.

const INTEGER = /^[-+]?(?:0|[1-9][0-9]{0,18})$/;
const FRACTION = /^[-+]?(?:0|[1-9][0-9]{0,30})(?:\.[0-9]{1,30})?(?:[eE][-+]?[0-9]{1,3})?$/;
const KEY = /^("(?:[^"\\]|\\.)*"|'(?:[^']|'')*'|[^\s#&*!|>'"%@`{}[\],][^#]*?)\s*:(?=\s|$)/;

/** The value of a YAML document, or of a JSON one. */
export function parseYaml(bytes, { size = 1 << 20 } = {}) {
  if (bytes.length > size) fail("too large");
  let source;
  try {
    source = text(bytes);
  } catch {
    fail("not UTF-8");
  }
  if (/^\s*\{/.test(source)) return parseJson(bytes, { depth: 24, values: 20_000, whole: true });
  const lines = [];
  for (const raw of source.split(/\r?\n/)) {
    const line = withoutComment(raw);
    if (line.trim() === "" || (lines.length === 0 && line.trim() === "---")) continue;
    const indent = line.length - line.trimStart().length;
    if (/\t/.test(line)) fail("a tab");
    lines.push({ indent, content: line.trim() });
  }
  if (lines.length === 0) return null;
  const reader = new Block(lines);
  const value = reader.node(lines[0].indent, 1);
  return reader.at === lines.length ? value : fail(`cannot read: ${lines[reader.at].content}`);
}

function withoutComment(line) {
  let quote = "";
  for (let i = 0; i < line.length; i++) {
    const character = line[i];
    if (quote === '"' && character === "\\") i++;
    else if (quote) quote = character === quote ? "" : quote;
    else if (character === "#" && (i === 0 || /\s/.test(line[i - 1]))) return line.slice(0, i);
    else if ((character === '"' || character === "'") && /[\s,[{:]/.test(line[i - 1] ?? " ")) {
      quote = character;
    }
  }
  return line;
}

class Block {
  constructor(lines) {
    this.lines = lines;
    this.at = 0;
  }

  node(indent, level) {
    if (level > 24) fail("nested too deeply");
    const { content } = this.lines[this.at];
    if (content === "-" || content.startsWith("- ")) return this.list(indent, level);
    if (KEY.test(content)) return this.mapping(indent, level);
    this.at++;
    return inline(content);
  }

  list(indent, level) {
    const result = [];
    while (this.at < this.lines.length) {
      const line = this.lines[this.at];
      if (line.indent !== indent || !(line.content === "-" || line.content.startsWith("- "))) break;
      const rest = line.content.slice(1).trimStart();
      if (rest === "") {
        this.at++;
        result.push(this.below(indent, level));
      } else {
        const inner = indent + line.content.length - rest.length;
        this.lines[this.at] = { indent: inner, content: rest };
        result.push(this.node(inner, level + 1));
      }
    }
    return result;
  }

  below(indent, level, listToo = false) {
    const next = this.lines[this.at];
    if (next === undefined) return null;
    if (next.indent > indent) return this.node(next.indent, level + 1);
    const isItem = next.content === "-" || next.content.startsWith("- ");
    return listToo && next.indent === indent && isItem ? this.list(indent, level + 1) : null;
  }

  mapping(indent, level) {
    const result = Object.create(null);
    while (this.at < this.lines.length && this.lines[this.at].indent === indent) {
      const { content } = this.lines[this.at];
      const [whole, written] = KEY.exec(content) ?? fail(`not a key: ${content}`);
      const key = scalar(written);
      if (typeof key !== "string" || key === "<<" || key in result) fail("a key twice, or no text");
      const rest = content.slice(whole.length).trim();
      this.at++;
      result[key] = rest === "" ? this.below(indent, level, true) : this.folded(rest, indent);
    }
    return result;
  }

  folded(first, indent) {
    // A flow collection may go on over lines of deeper indentation.
    let whole = first;
    if (/^[[{]/.test(first)) {
      while (this.at < this.lines.length && this.lines[this.at].indent > indent) {
        whole += ` ${this.lines[this.at++].content}`;
      }
    }
    return inline(whole);
  }
}

function inline(source) {
  const flow = new Flow(source);
  const value = flow.value(1);
  flow.space();
  return flow.at === source.length ? value : fail(`cannot read: ${source}`);
}

class Flow {
  constructor(source) {
    this.source = source;
    this.at = 0;
  }

  space() {
    while (this.source[this.at] === " ") this.at++;
  }

  value(level) {
    if (level > 24) fail("nested too deeply");
    this.space();
    const first = this.source[this.at];
    if (first === "[" || first === "{") return this.collection(first, level);
    return scalar(this.word(level > 1));
  }

  word(inside) {
    const pattern = inside
      ? /"(?:[^"\\]|\\.)*"|'(?:[^']|'')*'|(?:[^,[\]{}:]|:(?! |$))+/y
      : /"(?:[^"\\]|\\.)*"|'(?:[^']|'')*'|.+/y;
    pattern.lastIndex = this.at;
    const [found] = pattern.exec(this.source) ?? fail(`cannot read: ${this.source}`);
    this.at += found.length;
    return found.trim();
  }

  collection(open, level) {
    const [close, result] = open === "[" ? ["]", []] : ["}", Object.create(null)];
    this.at++;
    this.space();
    while (this.source[this.at] !== close) {
      if (open === "[") {
        result.push(this.value(level + 1));
      } else {
        const key = scalar(this.word(true));
        if (typeof key !== "string" || key in result) fail("a key twice, or no text");
        this.space();
        if (this.source[this.at++] !== ":") fail("no value for a key");
        result[key] = this.value(level + 1);
      }
      this.space();
      if (this.source[this.at] === ",") this.at++;
      else if (this.source[this.at] !== close) fail(`cannot read: ${this.source}`);
      this.space();
    }
    this.at++;
    return result;
  }
}

function scalar(word) {
  if (word.startsWith("'")) return word.slice(1, -1).replaceAll("''", "'");
  if (word.startsWith('"')) return parseJson(utf8(word));
  if (word === "" || word === "~" || word === "null") return null;
  if (word === "true") return true;
  if (word === "false") return false;
  if (/^[&*!|>%@`]|^[-?:](?: |$)|:(?: |$)/.test(word)) fail(`cannot read: ${word}`);
  return INTEGER.test(word) || FRACTION.test(word) ? counted(word, true) : word;
}
