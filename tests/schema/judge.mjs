// SPDX-License-Identifier: Apache-2.0
// Every output that a grammar allows must satisfy its schema: ajv (draft 2020-12, with formats) is the judge. Schemas
// come from the public suite of JSON Schema tests and from cases.json; a schema that is refused must be refused by
// name, and few may be. usage: judge.mjs GRAMMAR_WALK MODEL_DIR
import { spawnSync } from 'node:child_process';
import { readFileSync, readdirSync } from 'node:fs';
import { createRequire } from 'node:module';
import path from 'node:path';
import addFormats from 'ajv-formats';
import Ajv2020 from 'ajv/dist/2020.js';

const MIN_CASES = 200;
const MAX_REFUSED = 0.25; // the aim is 0.15
const N_OUTPUTS = 60;
const [tool, model] = process.argv.slice(2);
const here = path.dirname(new URL(import.meta.url).pathname);
const suite = path.join(path.dirname(createRequire(import.meta.url).resolve('json-schema-test-suite')), 'tests/draft4');

const schemas = new Map();
for (const f of readdirSync(suite).filter((n) => n.endsWith('.json'))) {
  JSON.parse(readFileSync(path.join(suite, f))).forEach((c, i) => schemas.set(`${f}#${i} ${c.description}`, c.schema));
}
JSON.parse(readFileSync(path.join(here, 'cases.json'))).forEach((s, i) => schemas.set(`cases.json#${i}`, s));

const newAjv = () => {
  const ajv = new Ajv2020({ strict: false, validateFormats: true, logger: false });
  addFormats(ajv);
  return ajv;
};
// What ajv itself does not take as 2020-12 (draft 4 spellings, remote documents) is no case.
const cases = [];
let skipped = 0;
for (const [name, schema] of schemas) {
  try {
    cases.push({ name, schema, validate: newAjv().compile(schema) });
  } catch {
    skipped++;
  }
}
const r = spawnSync(tool, [model, String(N_OUTPUTS)],
  { input: cases.map((c) => JSON.stringify(c.schema) + '\n').join(''), maxBuffer: 1 << 30 });
if (r.status !== 0) {
  console.error(r.stderr.toString());
  process.exit(1);
}
const lines = r.stdout.toString().trim().split('\n').map((l) => JSON.parse(l));
let wrong = 0, outputs = 0, refused = 0, invalid = 0, barren = 0;
for (const [i, c] of cases.entries()) {
  const a = lines[i];
  if (a.error !== undefined) {
    refused++;
    console.log(`refused: ${c.name}: ${a.error}`);
    continue;
  }
  barren += a.outputs.length === 0;
  for (const text of a.outputs) {
    outputs++;
    let ok = false;
    try {
      ok = c.validate(JSON.parse(text));
    } catch (e) {
      c.validate.errors = e.message;
    }
    if (!ok) {
      wrong++;
      console.log(`WRONG: ${c.name}: ${JSON.stringify(c.schema)} allows ${text}: ${JSON.stringify(c.validate.errors)}`);
      break;
    }
  }
}
console.log(`${cases.length} cases (${skipped} are not 2020-12), ${outputs} outputs, ${wrong} schemas with a wrong one, ` +
  `${refused} refused (${(100 * refused / cases.length).toFixed(1)} %), ${barren} without an output`);
process.exit(wrong > 0 || cases.length < MIN_CASES || refused > MAX_REFUSED * cases.length ? 1 : 0);
