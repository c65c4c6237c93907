// SPDX-License-Identifier: Apache-2.0
import assert from 'node:assert/strict';
import test from 'node:test';
import { savePref } from '../src/shared/prefs.js';
import { changeSettings, checkSampling, isPoet, modelSettings, readDefaults, requestBody } from '../src/chat/settings.js';
import { answerStats, formatMs, formatRate } from '../src/chat/stats.js';

test('chat models have a short system prompt, the poet none', () => {
  savePref('lang', 'en');
  assert.match(modelSettings('baidu/ERNIE-4.5-0.3B-PT').system, /professionally and concisely/);
  assert.equal(modelSettings('baidu/ERNIE-4.5-0.3B-PT').systemOn, true);
  for (const name of ['tern-poet', 'models/tern-poet', '/a/b/tern-poet/']) {
    assert.ok(isPoet(name));
    assert.equal(modelSettings(name).systemOn, false);
    assert.equal(modelSettings(name).system, '');
  }
});

test('settings belong to one model and go back to the default', () => {
  changeSettings('a', { system: 'mine', systemOn: false });
  assert.equal(modelSettings('a').system, 'mine');
  assert.notEqual(modelSettings('b').system, 'mine');
  changeSettings('a', { system: undefined, systemOn: undefined });
  assert.equal(modelSettings('a').systemOn, true);
  assert.notEqual(modelSettings('a').system, 'mine');
});

test('only changed and sensible sampling values are sent', () => {
  assert.deepEqual(checkSampling({ temperature: 0, top_k: 5, top_p: 7, seed: 1.5, evil: 1, min_p: '0.1' }),
                   { temperature: 0, top_k: 5 });
  const body = requestBody('m', [], { sampling: { temperature: 0.3 }, thinking: 'auto' });
  assert.equal(body.temperature, 0.3);
  assert.ok(!('top_p' in body) && !('chat_template_kwargs' in body));
  const more = requestBody('m', [], { sampling: {}, thinking: 'off' }, { goOn: true, canThink: true });
  assert.deepEqual(more.chat_template_kwargs, { enable_thinking: false });
  assert.ok(more.continue_final_message && more.add_generation_prompt === false);
});

test('defaults are read from a model file\'s parameters', () => {
  assert.deepEqual(readDefaults('temperature 0.8\ntop_p 0.8\nrepeat_penalty 1.05\nnum_predict 100\nbad x\n'),
                   { temperature: 0.8, top_p: 0.8, repetition_penalty: 1.05, max_tokens: 100 });
  assert.deepEqual(readDefaults(undefined), {});
});

test('speed counts the tokens behind the first piece', () => {
  const s = answerStats(1000);
  assert.equal(s.ttft, null);
  s.tokens(1, 1250);
  assert.equal(s.ttft, 250);
  assert.equal(s.rate, null);
  s.tokens(21, 2250);
  assert.equal(s.rate, 20);
  assert.equal(formatRate(20), '20.0');
  assert.equal(formatRate(123.4), '123');
  assert.equal(formatMs(250.4), '250 ms');
  assert.equal(formatMs(2500), '2.5 s');
});
