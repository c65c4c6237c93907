// SPDX-License-Identifier: Apache-2.0
// Every output that a grammar allows must satisfy its schema: ajv (draft 2020-12, with formats) is the judge of what a
// random walk writes, and the suite's own instances that a schema forbids must not be accepted either. Schemas come
// from the public suite of JSON Schema tests and from cases.json; a schema that is refused must be refused by name,
// and few may be. A schema that the suite gives no valid instance for must end in an error and is no refusal. Where
// ajv and the suite differ on an instance (dynamic scopes, annotations of a lone "if"), ajv is not asked.
// usage: judge.mjs GRAMMAR_WALK MODEL_DIR SUITE_DIR|- (SUITE_DIR: its folder tests/draft2020-12)
import { spawnSync } from 'node:child_process';
import { readFileSync, readdirSync } from 'node:fs';
import { createRequire } from 'node:module';
import path from 'node:path';
import addFormats from 'ajv-formats';
import Ajv2020 from 'ajv/dist/2020.js';

const MIN_CASES = 200;
const MAX_REFUSED = 0.15;
const N_OUTPUTS = 40;
// Every keyword of draft 2020-12 that can constrain a value, and those that name or reach schemas.
const KEYWORDS = ['type', 'enum', 'const', 'multipleOf', 'maximum', 'exclusiveMaximum', 'minimum', 'exclusiveMinimum',
  'maxLength', 'minLength', 'pattern', 'maxItems', 'minItems', 'uniqueItems', 'maxContains', 'minContains',
  'maxProperties', 'minProperties', 'required', 'dependentRequired', 'prefixItems', 'items', 'contains',
  'additionalProperties', 'properties', 'patternProperties', 'dependentSchemas', 'propertyNames', 'if', 'then', 'else',
  'allOf', 'anyOf', 'oneOf', 'not', 'unevaluatedItems', 'unevaluatedProperties', 'format', '$ref', '$anchor',
  '$dynamicRef', '$dynamicAnchor', '$defs', '$id', '$schema', '$comment', '$vocabulary', 'title', 'description',
  'default', 'deprecated', 'examples', 'readOnly', 'writeOnly', 'contentEncoding', 'contentMediaType', 'contentSchema'];
const [tool, model, suite] = process.argv.slice(2);
const here = path.dirname(new URL(import.meta.url).pathname);

const tests = new Map(); // name -> {schema, tests}
const readFolder = (dir, label) => {
  for (const f of readdirSync(dir).filter((n) => n.endsWith('.json')).sort()) {
    JSON.parse(readFileSync(path.join(dir, f))).forEach((c, i) =>
      tests.set(`${label}${f}#${i} ${c.description}`, { schema: c.schema, tests: c.tests, own: label === '' }));
  }
};
if (suite !== '-') {
  readFolder(suite, '');
}
readFolder(path.join(path.dirname(createRequire(import.meta.url).resolve('json-schema-test-suite')), 'tests/draft4'),
  'draft4/');
JSON.parse(readFileSync(path.join(here, 'cases.json'))).forEach((schema, i) =>
  tests.set(`cases.json#${i}`, { schema, tests: [] }));

// Keywords thrown together at random (seeded): what they mean side by side is where mistakes hide. Refusals of these
// are not counted.
const N_RANDOM = 300;
let random = 12345;
const below = (n) => {
  random = (Math.imul(random, 1664525) + 1013904223) >>> 0;
  return (random >>> 8) % n;
};
const oneOf = (list) => list[below(list.length)];
const some = (list, n) => list.filter(() => below(list.length) < n);
const anySchema = (depth) => {
  if (below(12) === 0) {
    return below(3) > 0;
  }
  const sub = () => anySchema(depth - 1);
  const names = ['a', 'b', 'ab', 'ba'];
  const props = () => Object.fromEntries(some(names, 2).map((n) => [n, sub()]));
  const leaf = {
    type: () => (below(3) > 0 ? oneOf(['null', 'boolean', 'integer', 'number', 'string', 'array', 'object'])
      : [...new Set([oneOf(['null', 'boolean', 'integer']), oneOf(['string', 'array', 'object'])])]),
    enum: () => [oneOf([0, 1, 2.5]), oneOf(['a', 'ab', 'b']), oneOf([null, true, [1], { a: 1 }])],
    const: () => oneOf([0, 1, 'a', 'ab', null, false, [], { a: 1 }]),
    minimum: () => below(6) - 3, maximum: () => below(6), exclusiveMinimum: () => below(4), exclusiveMaximum: () => below(5),
    multipleOf: () => oneOf([1, 2, 3, 0.5]),
    minLength: () => below(3), maxLength: () => below(4), pattern: () => oneOf(['^a', 'b$', 'a', '^[ab]*$', '^.b']),
    minItems: () => below(3), maxItems: () => below(4), uniqueItems: () => below(2) === 0,
    minProperties: () => below(2), maxProperties: () => below(4), required: () => some(names, 1),
    dependentRequired: () => ({ [oneOf(names)]: some(names, 1) }),
  };
  const nested = {
    properties: props, additionalProperties: sub, patternProperties: () => ({ [oneOf(['^a', 'b', 'a$'])]: sub() }),
    propertyNames: () => ({ [oneOf(['maxLength', 'minLength'])]: below(3) }), unevaluatedProperties: sub,
    items: sub, prefixItems: () => [sub(), sub()], contains: sub, maxContains: () => below(3), minContains: () => below(3),
    unevaluatedItems: sub, dependentSchemas: () => ({ [oneOf(names)]: sub() }),
    anyOf: () => [sub(), sub()], oneOf: () => [sub(), sub()], allOf: () => [sub(), sub()], not: sub,
    if: sub, then: sub, else: sub,
  };
  const all = depth > 0 && below(4) > 0 ? { ...leaf, ...nested } : leaf;
  return Object.fromEntries(Array.from({ length: 1 + below(4) }, () => oneOf(Object.keys(all))).map((k) => [k, all[k]()]));
};
for (let i = 0; i < N_RANDOM; i++) {
  tests.set(`random#${i}`, { schema: anySchema(2), tests: [], random: true });
}

const newAjv = () => {
  const ajv = new Ajv2020({ strict: false, validateFormats: true, ownProperties: true, logger: false });
  addFormats(ajv);
  return ajv;
};
// What ajv itself does not take as 2020-12 (draft 4 spellings, remote documents) is no case; nor is a schema that was
// seen before.
const cases = [];
const seen = new Set();
const keywords = new Set();
const collect = (v) => {
  if (v !== null && typeof v === 'object') {
    Object.entries(v).forEach(([k, x]) => { keywords.add(k); collect(x); });
  }
};
let skipped = 0;
for (const [name, t] of tests) {
  const text = JSON.stringify(t.schema);
  if (seen.has(text)) {
    continue;
  }
  seen.add(text);
  try {
    cases.push({ name, schema: t.schema, tests: t.tests, own: t.own, random: t.random, validate: newAjv().compile(t.schema) });
    collect(t.schema);
  } catch {
    skipped++;
  }
}
// ajv's verdict; undefined where it has none (it recurses for ever on some $dynamicRefs).
const verdict = (c, data) => {
  try {
    return c.validate(data);
  } catch {
    return undefined;
  }
};
for (const c of cases) {
  c.ajv = !c.own || c.tests.every((t) => verdict(c, t.data) === t.valid);
}
const input = cases.map((c) => JSON.stringify({ schema: c.schema,
  texts: c.tests.flatMap((t) => [JSON.stringify(t.data), JSON.stringify(t.data, null, 1)]) }) + '\n').join('');
const r = spawnSync(tool, [model, String(N_OUTPUTS)], { input, maxBuffer: 1 << 30 });
if (r.status !== 0) {
  console.error(r.stderr.toString(), r.signal);
  process.exit(1);
}
const lines = r.stdout.toString().trim().split('\n').map((l) => JSON.parse(l));
let wrong = 0, outputs = 0, refused = 0, empty = 0, barren = 0, forbidden = 0, permitted = 0, reached = 0, unjudged = 0,
  random_refused = 0;
for (const [i, c] of cases.entries()) {
  const a = lines[i];
  if (a.error !== undefined) {
    if (c.own && c.tests.every((t) => !t.valid)) {
      empty++;
      continue;
    }
    if (c.random) {
      random_refused++;
      continue;
    }
    refused++;
    console.log(`refused: ${c.name}: ${a.error}`);
    if (!/'|JSON schema|regex|number|multipleOf|grammar/.test(a.error)) {
      console.log(`WRONG: ${c.name}: the refusal names nothing`);
      wrong++;
    }
    continue;
  }
  barren += a.outputs.length === 0;
  for (const text of a.outputs) {
    outputs++;
    let ok = false;
    try {
      ok = verdict(c, JSON.parse(text));
    } catch (e) {
      c.validate.errors = e.message;
    }
    if (ok === undefined || !c.ajv) {
      unjudged++;
    } else if (!ok) {
      wrong++;
      console.log(`WRONG: ${c.name}: ${JSON.stringify(c.schema)} allows ${text}: ${JSON.stringify(c.validate.errors)}`);
      break;
    }
  }
  for (const [k, t] of c.tests.entries()) {
    const accepted = a.accepts[2 * k] || a.accepts[2 * k + 1];
    if (c.own ? t.valid : verdict(c, t.data) !== false) {
      permitted++;
      reached += accepted;
    } else {
      forbidden++;
      if (accepted) {
        wrong++;
        console.log(`WRONG: ${c.name}: ${JSON.stringify(c.schema)} accepts ${JSON.stringify(t.data)}`);
      }
    }
  }
}
const n_random = cases.filter((c) => c.random).length, n_cases = cases.length - n_random;
const missing = KEYWORDS.filter((k) => !keywords.has(k));
if (suite !== '-' && missing.length > 0) {
  console.log(`no case has ${missing.join(', ')}`);
  wrong++;
}
console.log(`${n_random} random schemas, of which ${random_refused} are refused`);
console.log(`${n_cases} cases (${skipped} are not 2020-12), ${outputs} outputs and ${forbidden} forbidden instances, ` +
  `(${unjudged} outputs not judged), ${wrong} wrong, ${empty} schemas without any document, ${refused} refused (${(100 * refused / n_cases).toFixed(1)} %), ${barren} without an output, ` +
  `${reached} of ${permitted} permitted instances accepted`);
process.exit(wrong > 0 || n_cases < MIN_CASES || refused > MAX_REFUSED * n_cases ? 1 : 0);
