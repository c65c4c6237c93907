// SPDX-License-Identifier: Apache-2.0
// Tool calls through the official openai client: node tools.mjs http://127.0.0.1:8000/v1
// The model was not trained for tools, so calls are forced; the schemas have to hold all the same.
import assert from 'node:assert/strict';
import OpenAI, { BadRequestError } from 'openai';

const client = new OpenAI({ baseURL: process.argv[2], apiKey: 'none', maxRetries: 0 });
const model = (await client.models.list()).data[0].id;
const messages = [{ role: 'user', content: '巴黎天气怎么样？罗马几点了？' }];
const tools = [
  {
    type: 'function',
    function: {
      name: '查天气', description: '一个城市的天气',
      parameters: {
        type: 'object', required: ['城市', 'unit'], additionalProperties: false,
        properties: { 城市: { type: 'string', maxLength: 8 }, unit: { enum: ['c', 'f'] } },
      },
    },
  },
  {
    type: 'function',
    function: {
      name: 'get_time',
      parameters: {
        type: 'object', required: ['zone'], properties: { zone: { type: 'string', pattern: '^[A-Z]{3}$' } },
      },
    },
  },
];
const body = { model, messages, tools, tool_choice: 'required', temperature: 1, max_tokens: 300 };

function checkCall({ function: f }) {
  const args = JSON.parse(f.arguments);
  if (f.name === '查天气') {
    assert.deepEqual(Object.keys(args), ['城市', 'unit']);
    assert.ok([...args.城市].length <= 8 && ['c', 'f'].includes(args.unit));
  } else {
    assert.equal(f.name, 'get_time');
    assert.match(args.zone, /^[A-Z]{3}$/);
  }
}

let seed = 0;
const checks = {
  async 'finds a seed with two calls'() {
    for (;; seed++) {
      assert.ok(seed < 64);
      const r = await client.chat.completions.create({ ...body, seed });
      if (r.choices[0].message.tool_calls.length > 1) {
        r.choices[0].message.tool_calls.forEach(checkCall);
        assert.equal(r.choices[0].finish_reason, 'tool_calls');
        return;
      }
    }
  },
  async 'the stream helper assembles the calls of the plain answer'() {
    const plain = (await client.chat.completions.create({ ...body, seed })).choices[0].message;
    const runner = client.chat.completions.stream({ ...body, seed });
    const done = [];
    runner.on('tool_calls.function.arguments.done', (e) => done.push([e.index, e.name, e.arguments]));
    const final = (await runner.finalChatCompletion()).choices[0];
    assert.equal(final.finish_reason, 'tool_calls');
    const shape = (calls) => calls.map((c, i) => [i, c.function.name, c.function.arguments]);
    assert.deepEqual(shape(final.message.tool_calls), shape(plain.tool_calls));
    assert.deepEqual(done, shape(plain.tool_calls));
    const ids = [...final.message.tool_calls, ...plain.tool_calls].map((c) => c.id);
    assert.equal(new Set(ids).size, ids.length);
  },
  async 'raw deltas have an index; id, type and name come once'() {
    const seen = [];
    for await (const chunk of await client.chat.completions.create({ ...body, seed, stream: true })) {
      for (const call of chunk.choices[0]?.delta.tool_calls ?? []) {
        assert.equal(typeof call.index, 'number');
        if (call.id) {
          assert.equal(call.index, seen.length);
          assert.equal(call.type, 'function');
          seen.push({ name: call.function.name, arguments: '' });
        }
        seen[call.index].arguments += call.function.arguments;
      }
    }
    seen.forEach((f) => checkCall({ function: f }));
    assert.ok(seen.length > 1);
  },
  async 'a conversation goes on behind its results'() {
    const { message } = (await client.chat.completions.create({ ...body, seed })).choices[0];
    const results = message.tool_calls.map((c) => ({ role: 'tool', tool_call_id: c.id, content: '18' }));
    const next = await client.chat.completions.create({
      ...body, messages: [...messages, message, ...results], tool_choice: 'none', max_tokens: 8,
    });
    assert.ok(next.choices[0].message.content.length > 0);
    assert.equal(next.choices[0].message.tool_calls, undefined);
  },
  async 'a named function and one call at a time'() {
    const named = await client.chat.completions.create({
      ...body, tool_choice: { type: 'function', function: { name: '查天气' } },
    });
    assert.equal(named.choices[0].message.tool_calls.length, 1);
    checkCall(named.choices[0].message.tool_calls[0]);
    const single = await client.chat.completions.create({ ...body, seed, parallel_tool_calls: false });
    assert.equal(single.choices[0].message.tool_calls.length, 1);
  },
  async 'the parse helper reads strict functions'() {
    const strict = tools.map((t) => ({ ...t, function: { ...t.function, strict: true } }));
    const r = await client.chat.completions.parse({ ...body, seed, tools: strict });
    for (const c of r.choices[0].message.tool_calls) assert.equal(typeof c.function.parsed_arguments, 'object');
  },
  async 'unknown functions and automatic calls without a parser are refused'() {
    const bad = [{ type: 'function', function: { name: 'nobody' } }, 'auto'];
    for (const tool_choice of bad) {
      await assert.rejects(client.chat.completions.create({ ...body, tool_choice }), (e) => {
        assert.ok(e instanceof BadRequestError);
        assert.equal(e.param, 'tool_choice');
        return true;
      });
    }
  },
};

for (const [name, check] of Object.entries(checks)) {
  await check();
  console.log(`ok ${name}`);
}
console.log('all checks passed');
