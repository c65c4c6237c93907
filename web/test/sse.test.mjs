// SPDX-License-Identifier: Apache-2.0
import assert from 'node:assert/strict';
import test from 'node:test';
import { sseParser } from '../src/chat/sse.js';

const whole = ': hello\n\ndata: {"a":1}\n\nevent: x\r\ndata:two\r\ndata: lines\r\n\r\ndata: 春晓\n\ndata: [DONE]\n\n';
const events = ['{"a":1}', 'two\nlines', '春晓', '[DONE]'];

test('events are found however the text is cut', () => {
  for (let step = 1; step <= whole.length; step++) {
    const parse = sseParser(), got = [];
    for (let i = 0; i < whole.length; i += step) got.push(...parse(whole.slice(i, i + step)));
    assert.deepEqual(got, events, `pieces of ${step}`);
  }
});

test('an event without its blank line is not given out', () => {
  assert.deepEqual(sseParser()('data: {"a"'), []);
  assert.deepEqual(sseParser()('data: 1\n'), []);
});

test('a carriage return alone ends a line too', () => {
  assert.deepEqual(sseParser()('data: 1\r\rdata: 2\r\r '), ['1', '2']);
});
