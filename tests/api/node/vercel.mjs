// SPDX-License-Identifier: Apache-2.0
// The Vercel AI SDK against a running server: node vercel.mjs http://127.0.0.1:8000/v1
import assert from 'node:assert/strict';
import { createOpenAI } from '@ai-sdk/openai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import {
  APICallError, embed, generateObject, generateText, jsonSchema, stepCountIs, streamObject, streamText, tool,
} from 'ai';
import { z } from 'zod';
import { poem, recorder, run } from './run.mjs';

const { sent, record } = recorder();
const provider = createOpenAICompatible({
  name: 'tern', baseURL: process.argv[2], apiKey: 'none', includeUsage: true, supportsStructuredOutputs: true,
  fetch: record,
});
// Its models speak /v1/responses, and it checks every event against its own schema.
const openai = createOpenAI({ baseURL: process.argv[2], apiKey: 'none', fetch: record });
const id = (await (await fetch(`${process.argv[2]}/models`)).json()).data[0].id;
const model = provider.chatModel(id);
const base = { model, prompt: poem, temperature: 0, maxOutputTokens: 40, maxRetries: 0 };
const Weather = z.object({ city: z.string().max(6), days: z.number().int().min(1).max(9) });
const weather = tool({
  description: 'Weather of a city', inputSchema: Weather, execute: async ({ city }) => ({ city, sky: '晴' }),
});
const add = tool({
  description: 'Adds one', inputSchema: jsonSchema({
    type: 'object', properties: { a: { type: 'integer', minimum: 0, maximum: 99 } }, required: ['a'],
    additionalProperties: false,
  }),
});

await run({
  async 'generateText gives text, reason and usage'() {
    const r = await generateText({ ...base, system: '你是诗人。' });
    assert.match(r.text, /\p{Script=Han}{4}/u);
    assert.ok(['stop', 'length'].includes(r.finishReason));
    assert.equal(r.usage.totalTokens, r.usage.inputTokens + r.usage.outputTokens);
    assert.deepEqual(sent.at(-1).body.messages.map((m) => m.role), ['system', 'user']);
    assert.equal(r.warnings?.length ?? 0, 0);
  },
  async 'streamText says the same, with usage'() {
    const plain = await generateText(base);
    const stream = streamText(base);
    let text = '';
    for await (const part of stream.textStream) text += part;
    assert.equal(text, plain.text);
    assert.equal(await stream.finishReason, plain.finishReason);
    assert.equal((await stream.usage).outputTokens, plain.usage.outputTokens);
    assert.deepEqual(sent.at(-1).body.stream_options, { include_usage: true });
  },
  async 'sampling settings reach the server'() {
    const settings = { temperature: 1, topP: 0.9, seed: 11, presencePenalty: 0.2, frequencyPenalty: 0.2, stopSequences: ['。'] };
    const a = await generateText({ ...base, ...settings });
    const b = await generateText({ ...base, ...settings });
    assert.equal(a.text, b.text);
    assert.ok(!a.text.includes('。'));
    assert.equal(sent.at(-1).body.seed, 11);
  },
  async 'generateObject obeys a zod schema and a JSON schema'() {
    for (let seed = 0; seed < 3; seed++) {
      const { object } = await generateObject({ ...base, schema: Weather, temperature: 1, seed, maxOutputTokens: 300 });
      assert.deepEqual(Weather.parse(object), object);
    }
    assert.equal(sent.at(-1).body.response_format.type, 'json_schema');
    const { object } = await generateObject({
      ...base, maxOutputTokens: 300,
      schema: jsonSchema({ type: 'object', properties: { kind: { enum: ['诗', '词'] } }, required: ['kind'], additionalProperties: false }),
    });
    assert.ok(['诗', '词'].includes(object.kind));
  },
  async 'generateObject makes lists and choices'() {
    const list = await generateObject({
      ...base, output: 'array', schema: z.object({ n: z.number().int().min(0).max(9) }), temperature: 1, seed: 2,
      maxOutputTokens: 600,
    }).catch((e) => e);
    // A list has no bound: the model may go on until the limit cuts it.
    assert.ok(Array.isArray(list.object) || list.finishReason === 'length', String(list));
    const choice = await generateObject({ ...base, output: 'enum', enum: ['甲', '乙'], maxOutputTokens: 300 });
    assert.ok(['甲', '乙'].includes(choice.object));
  },
  async 'streamObject grows towards a valid object'() {
    const stream = streamObject({ ...base, schema: Weather, maxOutputTokens: 300 });
    let n = 0;
    for await (const _ of stream.partialObjectStream) n++;
    assert.ok(n > 0);
    Weather.parse(await stream.object);
  },
  async 'a required tool is called, run, and its result goes back'() {
    const r = await generateText({
      ...base, tools: { weather, add }, toolChoice: 'required', stopWhen: stepCountIs(2), maxOutputTokens: 300,
      providerOptions: { tern: { parallel_tool_calls: false } },
      prepareStep: ({ stepNumber }) => (stepNumber === 0 ? { activeTools: ['weather'] } : { toolChoice: 'none' }),
    });
    assert.equal(r.steps.length, 2);
    assert.equal(r.steps[0].finishReason, 'tool-calls');
    for (const call of r.steps[0].toolCalls) Weather.parse(call.input);
    assert.equal(r.steps[0].toolResults[0].output.sky, '晴');
    const [user, assistant, result] = sent.at(-1).body.messages;
    assert.equal(user.role, 'user');
    assert.equal(assistant.role, 'assistant');
    assert.equal(typeof assistant.tool_calls[0].function.arguments, 'string');
    assert.equal(result.role, 'tool');
    assert.equal(result.tool_call_id, assistant.tool_calls[0].id);
    // the whole conversation as the SDK gives it back, one turn further
    const next = await generateText({
      ...base, prompt: undefined, tools: { weather },
      messages: [{ role: 'user', content: poem }, ...r.response.messages, { role: 'user', content: '谢谢。' }],
    });
    assert.ok(next.usage.inputTokens > r.steps[0].usage.inputTokens);
  },
  async 'a tool without execute is left to the caller'() {
    const r = await generateText({ ...base, tools: { weather, add }, toolChoice: { type: 'tool', toolName: 'add' }, maxOutputTokens: 300 });
    assert.equal(r.toolCalls.length, 1);
    assert.equal(r.toolCalls[0].toolName, 'add');
    assert.ok(Number.isInteger(r.toolCalls[0].input.a));
    assert.deepEqual(sent.at(-1).body.tool_choice, { type: 'function', function: { name: 'add' } });
  },
  async 'streamed tool calls come in pieces that are the input'() {
    const stream = streamText({ ...base, tools: { add }, toolChoice: 'required', maxOutputTokens: 300 });
    const pieces = {}, calls = [];
    for await (const part of stream.fullStream) {
      if (part.type === 'error') throw part.error;
      if (part.type === 'tool-input-delta') pieces[part.id] = (pieces[part.id] ?? '') + part.delta;
      if (part.type === 'tool-call') calls.push(part);
    }
    assert.ok(calls.length > 0);
    for (const call of calls) assert.deepEqual(JSON.parse(pieces[call.toolCallId]), call.input);
    assert.equal(await stream.finishReason, 'tool-calls');
  },
  async 'the completion model works too'() {
    const r = await generateText({ ...base, model: provider.completionModel(id), maxOutputTokens: 8 });
    assert.ok(r.text.length > 0);
    let text = '';
    for await (const part of streamText({ ...base, model: provider.completionModel(id), maxOutputTokens: 8 }).textStream) text += part;
    assert.equal(text, r.text);
  },
  async 'the OpenAI provider speaks /v1/responses'() {
    const body = { ...base, model: openai(id), maxOutputTokens: 300 };
    const plain = await generateText({ ...body, system: '你是诗人。' });
    assert.equal(sent.at(-1).path, '/v1/responses');
    assert.equal(plain.text, (await generateText({ ...base, system: '你是诗人。', maxOutputTokens: 300 })).text);
    assert.equal(plain.usage.totalTokens, plain.usage.inputTokens + plain.usage.outputTokens);
    const stream = streamText({ ...body, system: '你是诗人。' });
    let text = '';
    for await (const part of stream.fullStream) {
      if (part.type === 'error') throw part.error;
      if (part.type === 'text-delta') text += part.text;
    }
    assert.equal(text, plain.text);
    assert.equal(await stream.finishReason, plain.finishReason);
    const { object } = await generateObject({ ...body, schema: Weather });
    assert.deepEqual(Weather.parse(object), object);
    const called = await generateText({
      ...body, tools: { weather, add }, toolChoice: 'required', stopWhen: stepCountIs(2),
      providerOptions: { openai: { parallelToolCalls: false, store: false, include: ['reasoning.encrypted_content'] } },
      prepareStep: ({ stepNumber }) => (stepNumber === 0 ? { activeTools: ['weather'] } : { toolChoice: 'none' }),
    });
    assert.equal(called.steps.length, 2);
    assert.equal(called.steps[0].toolResults[0].output.sky, '晴');
    assert.deepEqual(sent.at(-1).body.input.map((i) => i.type ?? i.role), ['user', 'function_call', 'function_call_output']);
    const streamed = streamText({ ...body, tools: { add }, toolChoice: { type: 'tool', toolName: 'add' } });
    const calls = [];
    for await (const part of streamed.fullStream) {
      if (part.type === 'error') throw part.error;
      if (part.type === 'tool-call') calls.push(part);
    }
    assert.equal(calls.length, 1);
    assert.ok(Number.isInteger(calls[0].input.a));
    const logprobs = await generateText({ ...body, providerOptions: { openai: { logprobs: 2 } } });
    assert.ok(logprobs.providerMetadata.openai.logprobs.length > 0);
  },
  async 'errors are APICallErrors with status and message'() {
    const status = async (promise, code, word) => assert.rejects(promise, (e) => {
      assert.ok(APICallError.isInstance(e), String(e));
      assert.equal(e.statusCode, code);
      assert.ok(e.message.includes(word), e.message);
      return true;
    });
    await status(generateText({ ...base, model: provider.chatModel('nobody') }), 404, 'nobody');
    await status(generateText({ ...base, temperature: 9 }), 400, 'temperature');
    await status(generateObject({ ...base, schema: jsonSchema({ type: 'nonsense' }) }), 400, 'type must be one of');
    await status(generateText({
      ...base, prompt: undefined,
      messages: [{ role: 'user', content: [{ type: 'image', image: new Uint8Array([137, 80, 78, 71]) }] }],
    }), 400, 'image_url');
    await status(embed({ model: provider.textEmbeddingModel(id), value: 'x', maxRetries: 0 }), 404, 'Not Found');
  },
  async 'an aborted stream leaves the server working'() {
    const stop = new AbortController();
    const stream = streamText({ ...base, maxOutputTokens: 1000, abortSignal: stop.signal });
    for await (const _ of stream.textStream) { stop.abort(); break; }
    assert.ok((await generateText({ ...base, maxOutputTokens: 3 })).text.length > 0);
  },
});
