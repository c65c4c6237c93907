// SPDX-License-Identifier: Apache-2.0
import assert from 'node:assert/strict';
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
