// The strict subset of YAML that a trust file is written in (spec/recipe.md §1): the reader of
// src/sealtrain/base/yamltext.py once more, with the same expressions.

import { text } from "./bytes.js";
import { Malformed } from "./json.js";
import { HIDDEN } from "./characters.js";

const DEPTH = 24;
const VALUES = 20_000;
const LONGEST_KEY = 1000;
const WORDS = new Map([["~", null], ["null", null], ["true", true], ["false", false]]);
const INTEGER = /^[-+]?(?:0|[1-9][0-9]*)$/;
const NUMBER = /^[-+]?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?$/;
const BOUNDED = /^[-+]?[0-9]{1,31}(?:\.[0-9]{1,30})?(?:[eE][-+]?[0-9]{1,3})?$/;
const QUOTED = String.raw`(?:"(?:[^"\\]|\\["\\/bfnrt]|\\u[0-9A-Fa-f]{4})*"|'(?:[^']|'')*')`;
const START = String.raw`(?:[^ \-?:,\[\]{}#&*!|>'"%@\x60]|-(?=[0-9A-Za-z.]))`;
const IN_BLOCK = String.raw`${START}(?:[^ :]|:(?=[^ ])| +(?=[^ #:]))*`;
const IN_FLOW = String.raw`${START}(?:[^ :,?\[\]{}]|:(?=[^ ,?\[\]{}])| +(?=[^ #:,?\[\]{}]))*`;
const BLOCK_WORD = new RegExp(`${QUOTED}|${IN_BLOCK}`, "uy");
const FLOW_WORD = new RegExp(`${QUOTED}|${IN_FLOW}`, "uy");
const COLON = / *:(?= |$)/y;
const ENDING = /^(?: +#.*)?$/;
const LONE = /[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/;

const isItem = (said) => said === "-" || said.startsWith("- ");

/** Key of a line of a block mapping, and where its colon ends; null for another line. */
function entry(said) {
  FLOW_WORD.lastIndex = 0;
  const word = FLOW_WORD.exec(said);
  COLON.lastIndex = word === null ? 0 : word[0].length;
  return word !== null && COLON.test(said) ? [word[0], COLON.lastIndex] : null;
}

/** The value of a YAML document; `whole` refuses an integer that is written as a fraction or with an exponent. */
export function parseYaml(bytes, { size = 1 << 20, whole = false } = {}) {
  if (bytes.length > size) throw new Malformed("too large");
  let source;
  try {
    source = text(bytes);
  } catch {
    throw new Malformed("not UTF-8");
  }
  return new Reader(source, whole).document();
}

class Reader {
  constructor(source, whole) {
    this.whole = whole;
    this.left = VALUES;
    this.row = 0;
    this.column = 0;
    this.lines = [];
    for (const [at, line] of source.split(/\r?\n/).entries()) {
      if (line.search(HIDDEN) >= 0) throw new Malformed(`line ${at + 1}: a character that is not visible`);
      const said = line.trim(); // of visible characters only U+0020 is a space
      if (said === "" || said.startsWith("#")) continue;
      if (this.lines.length === 0 && line.startsWith("---") && said === "---") continue;
      this.lines.push({ indent: line.length - line.trimStart().length, said, number: at + 1 });
    }
  }

  fail(message) {
    throw new Malformed(`line ${this.lines[this.row]?.number ?? "after the last"}: ${message}`);
  }

  document() {
    if (this.lines.length === 0) return null;
    const value = this.node(-1, 0);
    return this.row < this.lines.length ? this.fail("goes on where nothing can follow") : value;
  }

  node(floor, depth) {
    const { indent, said } = this.lines[this.row];
    if (isItem(said)) return this.sequence(indent, depth);
    if (entry(said) !== null) return this.mapping(indent, depth);
    return this.inline(0, floor, depth);
  }

  sequence(indent, depth) {
    const items = [];
    this.open(depth);
    while (this.row < this.lines.length) {
      const line = this.lines[this.row];
      if (line.indent !== indent || !isItem(line.said)) break;
      const rest = line.said.slice(1).trimStart();
      if (rest === "" || rest.startsWith("#")) {
        this.row++;
        items.push(this.below(indent, depth + 1, false));
      } else {
        this.lines[this.row] = { ...line, indent: indent + line.said.length - rest.length, said: rest };
        items.push(this.node(indent, depth + 1));
      }
    }
    return items;
  }

  mapping(indent, depth) {
    const found = Object.create(null);
    this.open(depth);
    while (this.row < this.lines.length && this.lines[this.row].indent === indent) {
      const { said } = this.lines[this.row];
      const [word, end] = entry(said) ?? this.fail("no key with its value");
      const key = this.key(word, found);
      const rest = said.slice(end).trimStart();
      if (rest === "" || rest.startsWith("#")) {
        this.row++;
        found[key] = this.below(indent, depth + 1, true);
      } else {
        found[key] = this.inline(said.length - rest.length, indent, depth + 1);
      }
    }
    return found;
  }

  below(indent, depth, itemsBeside) {
    if (this.row < this.lines.length) {
      const line = this.lines[this.row];
      if (line.indent > indent) return this.node(indent, depth);
      if (itemsBeside && line.indent === indent && isItem(line.said)) return this.sequence(indent, depth);
    }
    this.count();
    return null;
  }

  inline(column, floor, depth) {
    this.column = column;
    const first = this.character();
    const value =
      first === "[" || first === "{" ? this.flow(floor, depth) : this.scalar(this.word(BLOCK_WORD));
    if (!ENDING.test(this.lines[this.row].said.slice(this.column))) this.fail("something behind a value");
    this.row++;
    return value;
  }

  flow(floor, depth) {
    const first = this.character();
    if (first !== "[" && first !== "{") return this.scalar(this.word(FLOW_WORD));
    this.open(depth);
    this.column++;
    const [close, result] = first === "[" ? ["]", []] : ["}", Object.create(null)];
    this.skip(floor);
    while (this.character() !== close) {
      if (first === "[") {
        result.push(this.flow(floor, depth + 1));
      } else {
        const key = this.flowKey(result);
        this.skip(floor);
        result[key] = this.flow(floor, depth + 1);
      }
      this.skip(floor);
      if (this.character() === ",") {
        this.column++;
        this.skip(floor);
      } else if (this.character() !== close) {
        this.fail("neither a comma nor a bracket behind a value");
      }
    }
    this.column++;
    return result;
  }

  flowKey(found) {
    const word = this.word(FLOW_WORD);
    while (this.character() === " ") this.column++;
    if (this.character() !== ":") this.fail("a key without a value");
    this.column++;
    const next = this.character();
    if (!/^["']/.test(word) && next !== "" && next !== " ") this.fail("no space behind a colon");
    return this.key(word, found);
  }

  skip(floor) {
    for (;;) {
      const { said } = this.lines[this.row];
      while (said[this.column] === " ") this.column++;
      const isComment = said[this.column] === "#" && said[this.column - 1] === " ";
      if (this.column < said.length && !isComment) return;
      this.row++;
      this.column = 0;
      if (this.row === this.lines.length || this.lines[this.row].indent <= floor) {
        this.fail("a collection that does not end");
      }
    }
  }

  character() {
    return this.lines[this.row].said[this.column] ?? "";
  }

  word(pattern) {
    pattern.lastIndex = this.column;
    const [found] = pattern.exec(this.lines[this.row].said) ?? this.fail("no value of the subset");
    this.column += found.length;
    return found;
  }

  key(word, found) {
    this.count();
    const key = this.resolve(word);
    if (typeof key !== "string" || key === "<<") this.fail("a key that is not text");
    if ([...word].length > LONGEST_KEY) this.fail("a key that is too long");
    return key in found ? this.fail("a key twice") : key;
  }

  scalar(word) {
    this.count();
    return this.resolve(word);
  }

  resolve(word) {
    if (word.startsWith("'")) return word.slice(1, -1).replaceAll("''", "'");
    if (word.startsWith('"')) {
      const value = JSON.parse(word);
      return LONE.test(value) ? this.fail("half of a surrogate pair") : value;
    }
    if (WORDS.has(word)) return WORDS.get(word);
    if (word.startsWith("...")) this.fail("the end of a document");
    const value = Number(word);
    if (INTEGER.test(word)) {
      return word.length > 17 || !Number.isSafeInteger(value) ? this.fail("an integer beyond 2^53 - 1") : value;
    }
    if (!NUMBER.test(word)) return word;
    if (!BOUNDED.test(word) || !Number.isFinite(value)) this.fail("a number out of range");
    return this.whole && Number.isInteger(value) ? this.fail("an integer written otherwise") : value;
  }

  open(depth) {
    if (depth >= DEPTH) this.fail("nested too deeply");
    this.count();
  }

  count() {
    if (--this.left < 0) this.fail("too many values");
  }
}
