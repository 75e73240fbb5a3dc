// JSON Schema 2020-12, of the keywords that the schema of a recipe has. An unknown keyword is refused
// before any value is looked at: a rule that is not understood must not pass for one that holds.

const kindOf = (value) => {
  if (value === null) return "null";
  return Array.isArray(value) ? "array" : typeof value;
};
const isObject = (value) => kindOf(value) === "object";
const lengthOf = (text) => [...text].length;

/** A rule for values of one kind; others pass. */
const of = (kind, holds) => (value) => kindOf(value) !== kind || holds(value);

function same(first, second) {
  const kind = kindOf(first);
  if (kind !== kindOf(second)) return false;
  if (kind === "array") return first.length === second.length && first.every((one, at) => same(one, second[at]));
  if (kind !== "object") return first === second;
  const names = Object.keys(first);
  return (
    names.length === Object.keys(second).length &&
    names.every((name) => Object.hasOwn(second, name) && same(first[name], second[name]))
  );
}

function areUnique(items) {
  if (items.every((one) => typeof one === "string")) return new Set(items).size === items.length;
  return items.every((one, at) => items.findIndex((other) => same(one, other)) === at);
}

function typed(type) {
  if (type === "integer") return (value) => Number.isInteger(value);
  if (["null", "array", "object", "string", "number", "boolean"].includes(type)) return (value) => kindOf(value) === type;
  throw new Error(`JSON Schema: unknown type ${type}`);
}

/** The names that neither `properties` nor `patternProperties` speak of. */
function others({ properties = {}, patternProperties = {} }) {
  const patterns = Object.keys(patternProperties).map((pattern) => new RegExp(pattern, "u"));
  return (name) => !Object.hasOwn(properties, name) && !patterns.some((pattern) => pattern.test(name));
}

// Keyword → (its value, tools to compile with) → rule. Cheap rules come before those that search.
const RULES = {
  type: typed,
  const: (wanted) => (value) => same(value, wanted),
  enum: (wanted) => (value) => wanted.some((one) => same(value, one)),
  minimum: (bound) => of("number", (value) => value >= bound),
  maximum: (bound) => of("number", (value) => value <= bound),
  exclusiveMinimum: (bound) => of("number", (value) => value > bound),
  exclusiveMaximum: (bound) => of("number", (value) => value < bound),
  minLength: (bound) => of("string", (value) => lengthOf(value) >= bound),
  maxLength: (bound) => of("string", (value) => lengthOf(value) <= bound),
  minItems: (bound) => of("array", (value) => value.length >= bound),
  maxItems: (bound) => of("array", (value) => value.length <= bound),
  minProperties: (bound) => of("object", (value) => Object.keys(value).length >= bound),
  maxProperties: (bound) => of("object", (value) => Object.keys(value).length <= bound),
  required: (names) => of("object", (value) => names.every((name) => Object.hasOwn(value, name))),
  pattern: (pattern) => {
    const compiled = new RegExp(pattern, "u");
    return of("string", (value) => compiled.test(value));
  },
  format: (name, { formats }) => {
    if (!Object.hasOwn(formats, name)) throw new Error(`JSON Schema: unknown format ${name}`);
    return of("string", formats[name]);
  },
  propertyNames: (schema, { compiled }) => {
    const holds = compiled(schema);
    return of("object", (value) => Object.keys(value).every(holds));
  },
  properties: (schemas, { compiled }) => {
    const rules = Object.entries(schemas).map(([name, schema]) => [name, compiled(schema)]);
    return of("object", (value) => rules.every(([name, holds]) => !Object.hasOwn(value, name) || holds(value[name])));
  },
  patternProperties: (schemas, { compiled }) => {
    const rules = Object.entries(schemas).map(([pattern, schema]) => [new RegExp(pattern, "u"), compiled(schema)]);
    return of("object", (value) =>
      rules.every(([pattern, holds]) => Object.keys(value).every((name) => !pattern.test(name) || holds(value[name]))),
    );
  },
  additionalProperties: (schema, { compiled, beside }) => {
    const [holds, isOther] = [compiled(schema), others(beside)];
    return of("object", (value) => Object.keys(value).every((name) => !isOther(name) || holds(value[name])));
  },
  prefixItems: (schemas, { compiled }) => {
    const rules = schemas.map(compiled);
    return of("array", (value) => value.slice(0, rules.length).every((item, at) => rules[at](item)));
  },
  items: (schema, { compiled, beside }) => {
    const [holds, from] = [compiled(schema), beside.prefixItems?.length ?? 0];
    return of("array", (value) => value.slice(from).every(holds));
  },
  uniqueItems: (unique) => of("array", (value) => !unique || areUnique(value)),
  not: (schema, { compiled }) => {
    const holds = compiled(schema);
    return (value) => !holds(value);
  },
  anyOf: (schemas, { compiled }) => {
    const rules = schemas.map(compiled);
    return (value) => rules.some((holds) => holds(value));
  },
  oneOf: (schemas, { compiled }) => {
    const rules = schemas.map(compiled);
    return (value) => rules.filter((holds) => holds(value)).length === 1;
  },
  $ref: (pointer, { definitions }) => {
    const name = pointer.replace(/^#\/\$defs\//, "");
    if (name === pointer || !Object.hasOwn(definitions, name)) throw new Error(`JSON Schema: nothing at ${pointer}`);
    return (value) => definitions[name](value);
  },
};

/**
 * The rule that a schema is, as a function from a value to whether it holds.
 *
 * `formats`: for each name of `format`, whether a string has it. Throws an Error at a keyword, type,
 * format or reference that is not known, anywhere in the schema.
 */
export function validator({ $defs = {}, ...root }, formats = {}) {
  const definitions = Object.fromEntries(Object.keys($defs).map((name) => [name, null]));
  const compiled = (schema) => {
    if (typeof schema === "boolean") return () => schema;
    if (!isObject(schema)) throw new Error("JSON Schema: a schema is an object or a boolean");
    for (const keyword of Object.keys(schema)) {
      if (!Object.hasOwn(RULES, keyword)) throw new Error(`JSON Schema: unknown keyword ${keyword}`);
    }
    const tools = { compiled, definitions, formats, beside: schema };
    const rules = Object.keys(RULES)
      .filter((keyword) => Object.hasOwn(schema, keyword))
      .map((keyword) => RULES[keyword](schema[keyword], tools));
    return (value) => rules.every((holds) => holds(value));
  };
  for (const [name, schema] of Object.entries($defs)) definitions[name] = compiled(schema);
  return compiled(root);
}
