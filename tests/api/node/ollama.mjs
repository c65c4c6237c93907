// SPDX-License-Identifier: Apache-2.0
// Drives a tern server with the official ollama client: node ollama.mjs http://127.0.0.1:8000
import assert from 'node:assert/strict';
import { Ollama } from 'ollama';

const client = new Ollama({ host: process.argv[2] });
const messages = [{ role: 'user', content: '写一首七言绝句，题目是《春晓》。' }];
const options = { temperature: 0, num_predict: 30 };
const checks = {
  async 'lists, shows and finds running models'() {
    const { models } = await client.list();
    assert.equal(models.length, 1);
    const { name, digest, details } = models[0];
    assert.equal(details.family, 'ernie4_5');
    const shown = await client.show({ model: name });
    assert.equal(shown.model_info['general.architecture'], 'ernie4_5');
    assert.ok(shown.capabilities.includes('completion'));
    assert.equal((await client.ps()).models[0].digest, digest);
    assert.match((await client.version()).version, /^\d+\.\d+\.\d+$/);
    return name;
  },
  async 'chats, plain and streamed'(model) {
    const plain = await client.chat({ model, messages, options });
    assert.equal(plain.message.role, 'assistant');
    assert.match(plain.message.content, /\p{Script=Han}{4}/u);
    assert.equal(plain.eval_count, 30);
    let text = '', last;
    for await (const part of await client.chat({ model, messages, options, stream: true })) {
      text += part.message.content;
      last = part;
    }
    assert.equal(text, plain.message.content);
    assert.ok(last.done);
    assert.equal(last.done_reason, 'length');
    assert.equal(last.eval_count, plain.eval_count);
  },
  async 'generates, plain, streamed and raw'(model) {
    const body = { model, prompt: 'The sky', options };
    const plain = await client.generate(body);
    let text = '';
    for await (const part of await client.generate({ ...body, stream: true })) text += part.response;
    assert.equal(text, plain.response);
    const raw = await client.generate({ ...body, raw: true });
    assert.ok(raw.prompt_eval_count < plain.prompt_eval_count);
    const load = await client.generate({ model, prompt: '' });
    assert.equal(load.done_reason, 'load');
  },
  async 'keeps to a schema'(model) {
    const format = {
      type: 'object', properties: { city: { enum: ['北京', '上海'] }, warm: { type: 'boolean' } },
      required: ['city', 'warm'],
    };
    const r = await client.chat({ model, messages, format, options: { temperature: 1, seed: 3 } });
    const value = JSON.parse(r.message.content);
    assert.ok(['北京', '上海'].includes(value.city));
    assert.equal(typeof value.warm, 'boolean');
  },
  async 'errors have a status and a sentence'(model) {
    const rejects = (promise, status, text) => assert.rejects(promise, (e) => {
      assert.equal(e.status_code, status);
      assert.match(e.error ?? e.message, text);
      return true;
    });
    await rejects(client.chat({ model: 'nobody', messages }), 404, /nobody/);
    await rejects(client.chat({ model, messages, options: { mirostat: 2 } }), 400, /mirostat/);
    await rejects(client.chat({ model, messages: [{ ...messages[0], images: ['aGk='] }] }), 400, /text only/);
    await rejects(client.embed({ model, input: 'x' }), 404, /Not Found/);
  },
  async 'an aborted stream leaves the server working'(model) {
    for (let i = 0; i < 5; i++) {
      const stream = await client.chat({ model, messages, stream: true, options: { num_predict: 1000 } });
      await assert.rejects(async () => {
        for await (const _ of stream) stream.abort();
      }, /abort/i);
    }
    const r = await client.chat({ model, messages, options });
    assert.equal(r.done, true);
  },
};

let model;
for (const [name, check] of Object.entries(checks)) {
  model = (await check(model)) ?? model;
  console.log(`ok ${name}`);
}
console.log('all checks passed');
