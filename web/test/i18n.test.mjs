// SPDX-License-Identifier: Apache-2.0
import assert from 'node:assert/strict';
import fs from 'node:fs';
import test from 'node:test';
import { words } from '../src/shared/i18n.js';
import { savePref } from '../src/shared/prefs.js';

test('texts follow the language and take values', () => {
  const t = words({ n: ['{n} tokens', '{n} 个词元'] });
  savePref('lang', 'en');
  assert.equal(t('n', { n: 3 }), '3 tokens');
  savePref('lang', 'zh-CN');
  assert.equal(t('n', { n: 3 }), '3 个词元');
  assert.throws(() => t('missing'), /missing/);
});

for (const page of ['chat', 'dash']) {
  test(`no text of the ${page} page is without use`, () => {
    const dir = new URL(`../src/${page}/`, import.meta.url), read = f => fs.readFileSync(new URL(f, dir), 'utf8');
    const keys = [...read('words.js').matchAll(/^ {2}(\w+): \[/gm)].map(m => m[1]);
    const source = fs.readdirSync(dir).filter(f => f.endsWith('.js') && f !== 'words.js').map(read).join('\n');
    assert.ok(keys.length > 40);
    const uses = k => new RegExp(`\\b${k}\\b`).test(source);
    // goneLong and its like are put together out of a state's name
    assert.deepEqual(keys.filter(k => !uses(k) && !(k.endsWith('Long') && uses(k.slice(0, -4)))), []);
  });
}
