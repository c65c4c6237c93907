// SPDX-License-Identifier: Apache-2.0
import assert from 'node:assert/strict';
import fs from 'node:fs';
import test from 'node:test';

const css = fs.readFileSync(new URL('../src/shared/base.css', import.meta.url), 'utf8');

function palette(selector) {
  const from = css.indexOf(`${selector} {`);
  assert.ok(from >= 0, selector);
  const found = [...css.slice(from, css.indexOf('}', from)).matchAll(/(--[\w-]+): ([^;]+);/g)].map(m => [m[1], m[2]]);
  const colours = Object.fromEntries(found);
  assert.equal(found.length, Object.keys(colours).length, `${selector} names a colour twice`);
  return colours;
}

test('dark by choice has the colours of dark by the system, and each colour of the light theme has a dark one', () => {
  const light = palette(':root'), dark = palette(':root[data-theme="dark"]');
  assert.deepEqual(palette(':root:not([data-theme="light"])'), dark);
  const both = ['--sans', '--mono', '--radius'];
  assert.deepEqual(Object.keys(light).filter(name => !both.includes(name)), Object.keys(dark));
});
