// Strict JSON and its canonical form (RFC 8785).

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
