// SPDX-License-Identifier: Apache-2.0
// The official openai client and /v1/responses: node responses.mjs URL-with-/v1 [URL of a server that keeps responses]
import assert from 'node:assert/strict';
import OpenAI, { APIError, BadRequestError, NotFoundError } from 'openai';
import { zodTextFormat, zodResponsesFunction } from 'openai/helpers/zod';
import { z } from 'zod';
import { poem, run } from './run.mjs';

const client = new OpenAI({ baseURL: process.argv[2], apiKey: 'none', maxRetries: 0 });
const keeper = new OpenAI({ baseURL: process.argv[3], apiKey: 'none', maxRetries: 0 });
const model = (await client.models.list()).data[0].id;
const base = { model, input: poem, temperature: 0, max_output_tokens: 40 };
const Weather = z.object({ city: z.string().max(6), days: z.number().int().min(1).max(9) });
const weather = {
  type: 'function', name: 'weather', description: 'Weather of a city', strict: true,
  parameters: {
    type: 'object', additionalProperties: false, required: ['city', 'days'],
    properties: { city: { type: 'string', maxLength: 6 }, days: { type: 'integer', minimum: 1, maximum: 9 } },
  },
};

// What the events of one stream say, put together by hand.
function assemble(events) {
  const items = [];
  let final = null;
  for (const e of events) {
    const item = items[e.output_index];
    switch (e.type) {
      case 'response.output_item.added':
        assert.equal(e.output_index, items.length);
        items.push(structuredClone(e.item));
        break;
      case 'response.content_part.added': item.content.push(structuredClone(e.part)); break;
      case 'response.output_text.delta': item.content[e.content_index].text += e.delta; break;
      case 'response.output_text.done': assert.equal(item.content[e.content_index].text, e.text); break;
      case 'response.function_call_arguments.delta': item.arguments += e.delta; break;
      case 'response.function_call_arguments.done': assert.equal(item.arguments, e.arguments); break;
      case 'response.output_item.done': item.status = e.item.status; assert.deepEqual(item, e.item); break;
      case 'response.completed': case 'response.incomplete': case 'response.failed': final = e.response; break;
      default: break;
    }
  }
  return { items, final };
}

async function collect(stream) {
  const events = [];
  for await (const e of stream) events.push(e);
  assert.deepEqual(events.map((e) => e.sequence_number), events.map((_, i) => i));
  return events;
}

await run({
  async 'creates a response with its text and usage'() {
    const r = await client.responses.create({ ...base, instructions: '你是诗人。' });
    assert.equal(r.object, 'response');
    assert.ok(['completed', 'incomplete'].includes(r.status));
    assert.match(r.output_text, /\p{Script=Han}{4}/u);
    assert.equal(r.usage.total_tokens, r.usage.input_tokens + r.usage.output_tokens);
    assert.equal(r.error, null);
  },
  async 'says what chat says'() {
    const r = await client.responses.create(base);
    const c = await client.chat.completions.create({
      model, messages: [{ role: 'user', content: poem }], temperature: 0, max_tokens: 40,
    });
    assert.equal(r.output_text, c.choices[0].message.content);
  },
  async 'streams events that add up to the plain response'() {
    const plain = await client.responses.create(base);
    const events = await collect(await client.responses.create({ ...base, stream: true }));
    const { items, final } = assemble(events);
    assert.equal(events[0].type, 'response.created');
    assert.deepEqual(items, final.output);
    assert.equal(items[0].content[0].text, plain.output_text);
    assert.equal(final.status, plain.status);
    assert.deepEqual(final.usage.output_tokens, plain.usage.output_tokens);
  },
  async 'the stream helper assembles the final response'() {
    const stream = client.responses.stream(base);
    let text = '', snapshot = '';
    stream.on('response.output_text.delta', (e) => { text += e.delta; snapshot = e.snapshot; });
    const final = await stream.finalResponse();
    assert.ok(text.length > 0);
    assert.equal(final.output[0].content[0].text, text);
    assert.equal(snapshot, text);
  },
  async 'parses a zod schema'() {
    const body = { ...base, max_output_tokens: 300, temperature: 1, text: { format: zodTextFormat(Weather, 'weather') } };
    const r = await client.responses.parse(body);
    assert.deepEqual(Weather.parse(r.output_parsed), r.output_parsed);
    const final = await client.responses.stream(body).finalResponse();
    assert.deepEqual(Weather.parse(final.output_parsed), final.output_parsed);
  },
  async 'a required function is called, plain and streamed, and its output is taken'() {
    const body = { ...base, tools: [weather], tool_choice: 'required', max_output_tokens: 300, parallel_tool_calls: false };
    const r = await client.responses.create(body);
    assert.equal(r.output.length, 1);
    const [call] = r.output;
    assert.equal(call.type, 'function_call');
    Weather.parse(JSON.parse(call.arguments));
    const { items, final } = assemble(await collect(await client.responses.create({ ...body, stream: true })));
    assert.deepEqual(items, final.output);
    assert.equal(items[0].arguments, call.arguments);
    const next = await client.responses.create({
      ...base, tools: [weather],
      input: [{ role: 'user', content: poem }, ...r.output,
        { type: 'function_call_output', call_id: call.call_id, output: '{"sky":"晴"}' }],
    });
    assert.ok(next.output.length > 0);
  },
  async 'a zod function is called by name'() {
    const r = await client.responses.parse({
      ...base, max_output_tokens: 300, tools: [zodResponsesFunction({ name: 'weather', parameters: Weather })],
      tool_choice: { type: 'function', name: 'weather' },
    });
    Weather.parse(JSON.parse(r.output[0].arguments)); // this client's parsed_arguments is the parsed call
  },
  async 'the output of one turn is the input of the next'() {
    const input = [{ role: 'user', content: '写一首诗。' }];
    for (const question of ['再写一首。', '谁写的？', '谢谢。']) {
      const r = await client.responses.create({ ...base, input, max_output_tokens: 10 });
      input.push(...r.output, { role: 'user', content: question });
    }
    const r = await client.responses.create({ ...base, input, max_output_tokens: 10 });
    assert.ok(r.usage.input_tokens > 40);
  },
  async 'logprobs can be included'() {
    const r = await client.responses.create({ ...base, include: ['message.output_text.logprobs'], top_logprobs: 3 });
    const { logprobs } = r.output[0].content[0];
    assert.equal(logprobs.length, r.usage.output_tokens);
    assert.ok(logprobs.every((t) => t.top_logprobs.length === 3));
  },
  async 'errors are typed'() {
    await assert.rejects(client.responses.create({ ...base, model: 'nobody' }), NotFoundError);
    await assert.rejects(client.responses.create({ ...base, temperature: 9 }), BadRequestError);
    await assert.rejects(client.responses.create({ ...base, stream: true, top_p: 7 }), BadRequestError);
    await assert.rejects(client.responses.create({ ...base, tools: [{ type: 'web_search_preview' }] }), (e) => {
      assert.ok(e instanceof APIError);
      assert.equal(e.param, 'tools.0');
      return true;
    });
    await assert.rejects(client.responses.retrieve('resp_nobody'), NotFoundError);
    await assert.rejects(client.responses.create({ ...base, background: true }), BadRequestError);
  },
  async 'an aborted stream leaves the server working'() {
    const stream = await client.responses.create({ ...base, max_output_tokens: 500, stream: true });
    for await (const _ of stream) break;
    assert.ok((await client.responses.create({ ...base, max_output_tokens: 3 })).output_text.length > 0);
  },
  async 'a stored response is retrieved and continued by its id'() {
    const first = await keeper.responses.create(base);
    assert.deepEqual((await keeper.responses.retrieve(first.id)).output, first.output);
    const byId = await keeper.responses.create({ ...base, input: '再来。', previous_response_id: first.id });
    const byItems = await keeper.responses.create({
      ...base, input: [{ role: 'user', content: poem }, ...first.output, { role: 'user', content: '再来。' }],
    });
    assert.equal(byId.output_text, byItems.output_text);
    assert.equal(byId.usage.input_tokens, byItems.usage.input_tokens);
  },
  async 'a background response is polled, or cancelled'() {
    let r = await keeper.responses.create({ ...base, background: true });
    assert.equal(r.status, 'queued');
    while (['queued', 'in_progress'].includes(r.status)) {
      await new Promise((done) => { setTimeout(done, 20); });
      r = await keeper.responses.retrieve(r.id);
    }
    assert.equal(r.output_text, (await keeper.responses.create(base)).output_text);
    const long = await keeper.responses.create({ ...base, background: true, max_output_tokens: null, ignore_eos: true });
    assert.equal((await keeper.responses.cancel(long.id)).status, 'cancelled');
    await assert.rejects(keeper.responses.cancel(r.id), BadRequestError);
  },
  async 'a background stream is taken up again after a break'() {
    const stream = await keeper.responses.create({ ...base, background: true, stream: true, max_output_tokens: 60 });
    const head = [];
    for await (const e of stream) {
      head.push(e);
      if (head.length === 6) break;
    }
    const rest = [];
    for await (const e of await keeper.responses.retrieve(head[0].response.id, { stream: true, starting_after: 5 })) {
      rest.push(e);
    }
    assert.equal(rest[0].sequence_number, 6);
    const { items, final } = assemble([...head, ...rest]);
    assert.deepEqual(items, final.output);
  },
});
