// SPDX-License-Identifier: Apache-2.0
// LangChain JS against a running server: node langchain.mjs http://127.0.0.1:8000/v1
import assert from 'node:assert/strict';
import { AIMessage, HumanMessage, SystemMessage, ToolMessage } from '@langchain/core/messages';
import { tool } from '@langchain/core/tools';
import { ChatOpenAI, OpenAI, OpenAIEmbeddings } from '@langchain/openai';
import { z } from 'zod';
import { poem, recorder, run } from './run.mjs';

const { sent, record } = recorder();
const configuration = { baseURL: process.argv[2], fetch: record };
const model = (await (await fetch(`${process.argv[2]}/models`)).json()).data[0].id;
const common = { model, apiKey: 'none', configuration, maxRetries: 0, temperature: 0, maxTokens: 40 };
const chat = new ChatOpenAI(common);
const long = new ChatOpenAI({ ...common, maxTokens: 300 });
const Weather = z.object({ city: z.string().max(6), days: z.number().int().min(1).max(9) });
const weather = tool(async ({ city }) => `${city}：晴`, { name: 'weather', description: 'Weather of a city', schema: Weather });
const add = tool(async ({ a }) => String(a + 1), {
  name: 'add', description: 'Adds one', schema: z.object({ a: z.number().int().min(0).max(99) }),
});

async function joined(stream) {
  let all = null;
  for await (const chunk of stream) all = all ? all.concat(chunk) : chunk;
  return all;
}

const textOf = (m) => (typeof m.content === 'string' ? m.content : m.content.map((p) => p.text ?? '').join(''));

await run({
  async 'invoke gives a message with usage and reason'() {
    const m = await chat.invoke([new SystemMessage('你是诗人。'), new HumanMessage(poem)]);
    assert.match(m.content, /\p{Script=Han}{4}/u);
    assert.ok(['stop', 'length'].includes(m.response_metadata.finish_reason));
    assert.equal(m.usage_metadata.total_tokens, m.usage_metadata.input_tokens + m.usage_metadata.output_tokens);
    assert.deepEqual(sent.at(-1).body.messages.map((x) => x.role), ['system', 'user']);
  },
  async 'stream says the same, with usage'() {
    const plain = await chat.invoke(poem);
    const all = await joined(await chat.stream(poem));
    assert.equal(all.content, plain.content);
    assert.equal(all.usage_metadata.output_tokens, plain.usage_metadata.output_tokens);
    assert.equal(sent.at(-1).body.stream_options.include_usage, true);
  },
  async 'batches run side by side'() {
    const answers = await chat.batch(Array.from({ length: 8 }, () => poem));
    assert.equal(new Set(answers.map((m) => m.content)).size, 1);
  },
  async 'parts, names and old turns are taken'() {
    const m = await chat.invoke([
      new HumanMessage({ content: [{ type: 'text', text: '写一首诗。' }, { type: 'text', text: poem }], name: 'li' }),
      new AIMessage('夜雨'), new HumanMessage('再来。'),
    ]);
    assert.ok(m.content.length > 0);
    assert.equal(sent.at(-1).body.messages.length, 3);
  },
  async 'withStructuredOutput obeys a schema by every method'() {
    for (const method of ['jsonSchema', 'functionCalling']) {
      const out = await long.withStructuredOutput(Weather, { method, name: 'weather' }).invoke(poem);
      assert.deepEqual(Weather.parse(out), out);
      const { body } = sent.at(-1);
      assert.ok(method === 'jsonSchema' ? body.response_format.type === 'json_schema' : body.tool_choice.function.name === 'weather');
      const { parsed, raw } = await long.withStructuredOutput(Weather, { method, includeRaw: true }).invoke(poem);
      assert.deepEqual(Weather.parse(parsed), parsed);
      assert.ok(AIMessage.isInstance?.(raw) ?? raw instanceof AIMessage);
    }
  },
  async 'a streamed schema ends in a valid object'() {
    const stream = await long.withStructuredOutput(Weather, { method: 'functionCalling' }).stream(poem);
    let last = null;
    for await (const part of stream) last = part;
    Weather.parse(last);
  },
  async 'a bound tool is called, run, and its result goes back'() {
    for (const choice of ['required', 'any']) {
      const bound = long.bindTools([weather, add], { tool_choice: choice, parallel_tool_calls: false });
      const m = await bound.invoke(poem);
      assert.equal(sent.at(-1).body.tool_choice, 'required');
      assert.equal(m.tool_calls.length, 1);
      assert.equal(m.invalid_tool_calls.length, 0);
      const [call] = m.tool_calls;
      const result = await (call.name === 'weather' ? weather : add).invoke(call);
      assert.ok(result instanceof ToolMessage);
      const next = await long.bindTools([weather, add]).invoke([new HumanMessage(poem), m, result]);
      const [, assistant, told] = sent.at(-1).body.messages;
      assert.equal(assistant.role, 'assistant');
      assert.equal(assistant.tool_calls[0].id, told.tool_call_id);
      assert.ok(next.usage_metadata.input_tokens > 0);
    }
  },
  async 'a tool is called by its name'() {
    for (const choice of ['add', { type: 'function', function: { name: 'add' } }]) {
      const m = await long.bindTools([weather, add], { tool_choice: choice }).invoke(poem);
      assert.equal(m.tool_calls.length, 1);
      assert.equal(m.tool_calls[0].name, 'add');
      assert.ok(Number.isInteger(m.tool_calls[0].args.a));
    }
  },
  async 'streamed calls add up'() {
    const all = await joined(await long.bindTools([weather], { tool_choice: 'required' }).stream(poem));
    assert.ok(all.tool_call_chunks.length > 0);
    for (const call of all.tool_calls) Weather.parse(call.args);
    const none = await joined(await long.bindTools([weather], { tool_choice: 'none' }).stream(poem));
    assert.equal(none.tool_calls.length, 0);
  },
  async 'the responses API: invoke, stream, schema, tools'() {
    const responses = new ChatOpenAI({ ...common, maxTokens: 300, useResponsesApi: true });
    const plain = await responses.invoke(poem);
    assert.equal(sent.at(-1).path, '/v1/responses');
    assert.equal(textOf(plain), (await long.invoke(poem)).content);
    assert.equal(textOf(await joined(await responses.stream(poem))), textOf(plain));
    const out = await responses.withStructuredOutput(Weather, { method: 'jsonSchema', name: 'weather' }).invoke(poem);
    Weather.parse(out);
    const bound = responses.bindTools([weather, add], { tool_choice: 'weather' }); // this client drops "required" here
    const m = await bound.invoke(poem);
    assert.equal(m.tool_calls.length, 1);
    const all = await joined(await bound.stream(poem));
    assert.deepEqual(all.tool_calls.map((c) => [c.name, c.args]), m.tool_calls.map((c) => [c.name, c.args]));
    const result = await weather.invoke(m.tool_calls[0]);
    const next = await responses.bindTools([weather, add]).invoke([new HumanMessage(poem), m, result]);
    const types = sent.at(-1).body.input.map((i) => i.type ?? 'message');
    assert.deepEqual(types, ['message', 'function_call', 'function_call_output']);
    assert.ok(next.usage_metadata.input_tokens > 0);
    const again = await responses.invoke([new HumanMessage(poem), next, new HumanMessage('谢谢。')]);
    assert.ok(again.usage_metadata.input_tokens > 0);
  },
  async 'the completions class works too'() {
    const llm = new OpenAI({ ...common, maxTokens: 8 });
    const text = await llm.invoke('春眠不觉晓，');
    assert.ok(text.length > 0);
    let streamed = '';
    for await (const part of await llm.stream('春眠不觉晓，')) streamed += part;
    assert.equal(streamed, text);
  },
  async 'errors keep their status'() {
    await assert.rejects(new ChatOpenAI({ ...common, model: 'nobody' }).invoke(poem), (e) => e.status === 404);
    await assert.rejects(new ChatOpenAI({ ...common, temperature: 9 }).invoke(poem), (e) => e.status === 400);
    await assert.rejects(chat.invoke([new HumanMessage({
      content: [{ type: 'image_url', image_url: { url: 'data:image/png;base64,AAAA' } }],
    })]), (e) => e.status === 400 && /image_url/.test(e.message));
    const embeddings = new OpenAIEmbeddings({ model, apiKey: 'none', configuration, maxRetries: 0 });
    await assert.rejects(embeddings.embedQuery('x'), (e) => e.status === 404);
  },
  async 'an aborted call leaves the server working'() {
    const stop = new AbortController();
    const endless = new ChatOpenAI({ ...common, maxTokens: 1500, modelKwargs: { ignore_eos: true } });
    setTimeout(() => stop.abort(), 20);
    await assert.rejects(endless.invoke(poem, { signal: stop.signal }));
    for await (const _ of await endless.stream(poem)) break;
    assert.ok((await chat.invoke(poem)).content.length > 0);
  },
});
