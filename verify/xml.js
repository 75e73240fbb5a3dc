// As much of XML as vendors' lists of reference values use, and Canonical XML 1.1 of it. Comments,
// processing instructions, CDATA and other forms that no such list has cannot be checked here.

import { CannotCheck, text, utf8 } from "./bytes.js";

/** Bytes that are no well-formed XML; the caller names the refusal. */
export class NotXml extends Error {}

const XML = "http://www.w3.org/XML/1998/namespace";
const DECLARATION = /^<\?xml version="1\.0"(?: encoding="[A-Za-z][A-Za-z0-9._-]*")?(?: standalone="(?:yes|no)")? ?\?>/;
const STRANGE = /[^\t\n\r -\ud7ff\ue000-\ufffd\u{10000}-\u{10ffff}]/u;
const OPEN = /<([A-Za-z_][\w.-]*)(?::([A-Za-z_][\w.-]*))?/y;
const ATTRIBUTE = /[ \t\n]+([A-Za-z_][\w.-]*)(?::([A-Za-z_][\w.-]*))?[ \t\n]*=[ \t\n]*("[^"<]*"|'[^'<]*')/y;
const CLOSE = /[ \t\n]*(\/?)>/y;
const END = /<\/([A-Za-z_][\w.:-]*)[ \t\n]*>/y;
const TEXT = /[^<]+/y;
const URI = /^[A-Za-z][A-Za-z0-9+.-]*:[\w.~:/?#[\]@!$&'()*+,;=%-]*$/;
const ENTITIES = { lt: "<", gt: ">", amp: "&", quot: '"', apos: "'" };

const fail = (message) => {
  throw new NotXml(message);
};
const unusual = (what) => {
  throw new CannotCheck(`reference values: this program does not read ${what}`);
};

function decoded(source) {
  return source.replace(/&([^;&]*;)?/g, (_, name) => {
    const word = name?.slice(0, -1) ?? "";
    if (Object.hasOwn(ENTITIES, word)) return ENTITIES[word];
    const [, ten, sixteen] = /^#(?:([0-9]+)|x([0-9a-fA-F]+))$/.exec(word) ?? fail("an unknown entity");
    const code = ten ? parseInt(ten, 10) : parseInt(sixteen, 16);
    if (code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)) fail("no character");
    const character = String.fromCodePoint(code);
    return STRANGE.test(character) ? fail("no character") : character;
  });
}

/**
 * The root element. An element has `name`, `space`, `local`, `attributes` (each `name`, `space`,
 * `local`, `value`), `scope` (namespaces by prefix), `parent`, and `children`, elements and texts.
 */
export function parseXml(bytes) {
  let source;
  try {
    source = text(bytes);
  } catch {
    fail("not UTF-8");
  }
  if (STRANGE.test(source)) fail("a character that XML has not");
  source = source.replace(/\r\n?/g, "\n");
  const declared = DECLARATION.exec(source);
  if (declared) source = source.slice(declared[0].length);
  if (source.startsWith("\ufeff")) unusual("a byte order mark");
  if (/<!-{2}|<\?|<!\[CDATA\[/.test(source)) unusual("comments, instructions or CDATA");
  return new Reader(source).document();
}

class Reader {
  constructor(source) {
    this.source = source;
    this.at = 0;
  }

  take(pattern) {
    pattern.lastIndex = this.at;
    const found = pattern.exec(this.source);
    if (found) this.at += found[0].length;
    return found;
  }

  document() {
    const top = { children: [], scope: new Map(), parent: null };
    let current = top;
    while (this.at < this.source.length) {
      const words = this.take(TEXT);
      if (words) {
        if (words[0].includes("]]>")) fail("an end of CDATA");
        if (current !== top) current.children.push(decoded(words[0]));
        else if (/[^ \t\n]/.test(words[0])) fail("text beside the root element");
        continue;
      }
      const end = this.take(END);
      if (end) {
        if (current === top || end[1] !== current.name) fail("an end without a beginning");
        current = current.parent;
        continue;
      }
      if (current === top && top.children.length > 0) fail("two root elements");
      const [element, empty] = this.element(current);
      current.children.push(element);
      if (!empty) current = element;
    }
    if (current !== top || top.children.length !== 1) fail("not one closed element");
    top.children[0].parent = null;
    return top.children[0];
  }

  element(parent) {
    const [, first, second] = this.take(OPEN) ?? fail("no element");
    const written = [];
    for (let one = this.take(ATTRIBUTE); one; one = this.take(ATTRIBUTE)) {
      const value = decoded(one[3].slice(1, -1).replace(/[\t\n]/g, " "));
      written.push({ prefix: one[2] ? one[1] : "", local: one[2] ?? one[1], value });
    }
    const [, empty] = this.take(CLOSE) ?? fail("an element is not closed");
    const scope = scopeOf(parent.scope, written);
    const seen = new Set();
    const attributes = [];
    for (const { prefix, local, value } of written) {
      const name = prefix ? `${prefix}:${local}` : local;
      if (prefix === "xmlns" || name === "xmlns") continue;
      const space = prefix === "" ? "" : namespace(scope, prefix);
      if (seen.has(`${space} ${local}`)) fail("an attribute twice");
      seen.add(`${space} ${local}`);
      attributes.push({ name, space, local, value });
    }
    const space = second ? namespace(scope, first) : (scope.get("") ?? "");
    const name = second ? `${first}:${second}` : first;
    const element = { name, space, local: second ?? first, attributes, scope, parent, children: [] };
    return [element, empty === "/"];
  }
}

function scopeOf(outer, written) {
  const result = new Map(outer);
  const declared = new Set();
  for (const { prefix, local, value } of written) {
    if (prefix !== "xmlns" && !(prefix === "" && local === "xmlns")) continue;
    const name = prefix === "" ? "" : local;
    if (declared.has(name)) fail("a namespace twice");
    declared.add(name);
    if (["xml", "xmlns"].includes(name) || value === XML || value === "") unusual("such a namespace");
    if (!URI.test(value)) fail("a namespace that is no absolute URI");
    result.set(name, value);
  }
  return result;
}

function namespace(scope, prefix) {
  if (prefix === "xml") return XML;
  return scope.get(prefix) ?? fail("an undeclared prefix");
}

const TEXTS = { "&": "&amp;", "<": "&lt;", ">": "&gt;", "\r": "&#xD;" };
const VALUES = { "&": "&amp;", "<": "&lt;", '"': "&quot;", "\t": "&#x9;", "\n": "&#xA;", "\r": "&#xD;" };
const escaped = (value) => value.replace(/[&<>\r]/g, (character) => TEXTS[character]);
const quoted = (value) => value.replace(/[&<"\t\n\r]/g, (character) => VALUES[character]);
const ordered = (first, second) => (first < second ? -1 : first > second ? 1 : 0);

function write(element, outer, without) {
  const spaces = [...element.scope].filter(([prefix, uri]) => outer.get(prefix) !== uri);
  spaces.sort(([one], [other]) => ordered(one, other));
  const names = [...element.attributes];
  names.sort((one, other) => ordered(one.space, other.space) || ordered(one.local, other.local));
  const head = [
    element.name,
    ...spaces.map(([prefix, uri]) => `xmlns${prefix && ":"}${prefix}="${quoted(uri)}"`),
    ...names.map(({ name, value }) => `${name}="${quoted(value)}"`),
  ].join(" ");
  const inner = element.children.map((child) => {
    if (typeof child === "string") return escaped(child);
    return child === without ? "" : write(child, element.scope, without);
  });
  return `<${head}>${inner.join("")}</${element.name}>`;
}

/** Canonical XML 1.1 of an element, as bytes. One element of it may be left out. */
export function canonicalXml(element, without = null) {
  for (let one = element.parent; one; one = one.parent) {
    if (one.attributes.some(({ space }) => space === XML)) unusual("inherited attributes of XML");
  }
  return utf8(write(element, new Map(), without));
}

/** Elements among the children. */
export const elements = (element) => element.children.filter((child) => typeof child !== "string");

/** Value of an attribute, `""` where there is none. */
export function attribute(element, local, space = "") {
  const found = element.attributes.find((one) => one.local === local && one.space === space);
  return found?.value ?? "";
}

/** The text of an element without elements; null where it has some. */
export const content = (element) => (elements(element).length === 0 ? element.children.join("") : null);
