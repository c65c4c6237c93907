// SPDX-License-Identifier: Apache-2.0
// Drives a tern server with the official openai client: node client.mjs http://127.0.0.1:8000/v1
import assert from 'node:assert/strict';
import OpenAI, { APIError, BadRequestError, NotFoundError } from 'openai';

const client = new OpenAI({ baseURL: process.argv[2], apiKey: 'none', maxRetries: 0 });
const english = [{ role: 'user', content: 'Tell me an old tale.' }];
const chinese = [
  { role: 'system', content: '你是一位诗人。' },
  { role: 'user', content: '写一首七言绝句，题目是《春晓》。' },
];
const checks = {
  async 'lists models'() {
    const models = [];
    for await (const m of client.models.list()) models.push(m);
    assert.equal(models.length, 1);
    assert.equal(models[0].object, 'model');
    return models[0].id;
  },
  async 'completes chat in English and Chinese'(model) {
    for (const messages of [english, chinese]) {
      const r = await client.chat.completions.create({ model, messages, max_tokens: 60, temperature: 0 });
      assert.equal(r.choices[0].message.role, 'assistant');
      assert.ok(r.choices[0].message.content.length > 0);
      assert.ok(['stop', 'length'].includes(r.choices[0].finish_reason));
      assert.equal(r.usage.total_tokens, r.usage.prompt_tokens + r.usage.completion_tokens);
    }
  },
  async 'answers in Chinese characters to a Chinese prompt'(model) {
    const r = await client.chat.completions.create({ model, messages: chinese, max_tokens: 60, temperature: 0 });
    assert.match(r.choices[0].message.content, /\p{Script=Han}{4}/u);
    assert.doesNotMatch(r.choices[0].message.content, /\ufffd/u);
  },
  async 'streams chat equal to the plain answer, with usage'(model) {
    for (const messages of [english, chinese]) {
      const body = { model, messages, max_tokens: 50, temperature: 0, seed: 1 };
      const plain = await client.chat.completions.create(body);
      const stream = await client.chat.completions.create({
        ...body, stream: true, stream_options: { include_usage: true },
      });
      let text = '', finish = null, usage = null, roles = 0;
      for await (const chunk of stream) {
        const choice = chunk.choices[0];
        if (!choice) { usage = chunk.usage; continue; }
        roles += choice.delta.role === 'assistant';
        text += choice.delta.content ?? '';
        finish = choice.finish_reason ?? finish;
      }
      assert.equal(text, plain.choices[0].message.content);
      assert.equal(finish, plain.choices[0].finish_reason);
      assert.equal(usage.total_tokens, plain.usage.total_tokens);
      assert.equal(roles, 1);
    }
  },
  async 'the stream helper assembles the final message'(model) {
    const runner = client.chat.completions.stream({ model, messages: chinese, max_tokens: 40, temperature: 0 });
    let deltas = '';
    runner.on('content', (d) => { deltas += d; });
    const final = await runner.finalChatCompletion();
    assert.equal(final.choices[0].message.content, deltas);
  },
  async 'completions, plain and streamed, several prompts'(model) {
    const body = { model, prompt: ['Once upon a time', '春眠不觉晓，'], max_tokens: 12, temperature: 0, logprobs: 2 };
    const plain = await client.completions.create(body);
    assert.deepEqual(plain.choices.map((c) => c.index), [0, 1]);
    assert.ok(plain.choices.every((c) => c.logprobs.tokens.length === c.logprobs.token_logprobs.length));
    const texts = ['', ''];
    for await (const chunk of await client.completions.create({ ...body, stream: true })) {
      for (const c of chunk.choices) texts[c.index] += c.text;
    }
    assert.deepEqual(texts, plain.choices.map((c) => c.text));
  },
  async 'n, stop, logprobs and penalties'(model) {
    const r = await client.chat.completions.create({
      model, messages: chinese, n: 3, temperature: 1, seed: 7, max_tokens: 20, stop: ['。'], logprobs: true,
      top_logprobs: 2, presence_penalty: 0.5, frequency_penalty: 0.5,
    });
    assert.deepEqual(r.choices.map((c) => c.index), [0, 1, 2]);
    for (const c of r.choices) {
      assert.ok(!c.message.content.includes('。'));
      assert.ok(c.logprobs.content.every((t) => t.top_logprobs.length === 2 && Number.isFinite(t.logprob)));
    }
  },
  async 'errors are typed'(model) {
    await assert.rejects(client.chat.completions.create({ model: 'nobody', messages: english }), (e) => {
      assert.ok(e instanceof NotFoundError);
      assert.equal(e.status, 404);
      assert.equal(e.param, 'model');
      return true;
    });
    await assert.rejects(client.chat.completions.create({ model, messages: english, temperature: -1 }),
      BadRequestError);
    await assert.rejects(client.chat.completions.create({ model, messages: english, stream: true, top_p: 7 }),
      BadRequestError);
    await assert.rejects(client.completions.create({ model, prompt: '' }), BadRequestError);
    await assert.rejects(client.embeddings.create({ model, input: 'x' }), NotFoundError);
    await assert.rejects(client.chat.completions.create({ model, messages: [] }), APIError);
  },
  async 'an aborted stream leaves the server working'(model) {
    for (let i = 0; i < 5; i++) {
      const stream = await client.chat.completions.create({ model, messages: english, stream: true, max_tokens: 500 });
      for await (const _ of stream) break;
      const slow = new AbortController();
      const p = client.chat.completions.create({ model, messages: english, max_tokens: 1500 }, { signal: slow.signal });
      setTimeout(() => slow.abort(), 5);
      await p.catch((e) => assert.match(e.message, /abort/i));
    }
    const r = await client.chat.completions.create({ model, messages: english, max_tokens: 3 });
    assert.equal(r.choices.length, 1);
  },
  async 'twenty streams at once'(model) {
    const body = { model, messages: chinese, max_tokens: 30, temperature: 0 };
    const want = (await client.chat.completions.create(body)).choices[0].message.content;
    const all = await Promise.all(Array.from({ length: 20 }, async () => {
      let text = '';
      for await (const c of await client.chat.completions.create({ ...body, stream: true })) {
        text += c.choices[0]?.delta.content ?? '';
      }
      return text;
    }));
    for (const text of all) assert.equal(text, want);
  },
};

let model;
for (const [name, check] of Object.entries(checks)) {
  model = (await check(model)) ?? model;
  console.log(`ok ${name}`);
}
console.log('all checks passed');
