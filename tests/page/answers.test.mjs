// SPDX-License-Identifier: Apache-2.0
// Asking and answering on the chat page: streams, Stop, reload, branches, what is sent.
import { after, before, test } from 'node:test';
import assert from 'node:assert/strict';
import { enter, leave, open, sleep, standIn, tern, until } from './world.mjs';
import * as talk from './talk.mjs';

let fast;
let slow;
let fake;
before(async () => {
  [fast, slow] = await Promise.all([tern(), tern({ slow: true }), enter()]);
  fake = await standIn(fast.url);
});
after(() => leave(fake, fast, slow));

const chat = async (t, url = fake.url, options = {}) => {
  fake.sent.length = 0;
  fake.script = async (say, body) => {
    await say.text(`回答 ${fake.sent.length} to «${body.messages.at(-1).content}»`);
    say.end();
  };
  const page = await open(t, url, options);
  await talk.ready(page);
  return page;
};
const lastSent = () => fake.sent.at(-1);
const said = () => lastSent().messages.map((m) => `${m.role}: ${m.content}`);

test('a poem of the real model is streamed to the page', async (t) => {
  const page = await chat(t, fast.url);
  await talk.send(page, '夜雨');
  await talk.firstText(page);
  await talk.whole(page);
  assert.match(await talk.written(page), /[\u4e00-\u9fff]{5}/);
});

test('text is shown as it comes, before the answer ends', async (t) => {
  const page = await chat(t);
  let go;
  fake.script = async (say) => {
    await say.text('first');
    await new Promise((done) => { go = done; });
    await say.text(' second');
    say.end();
  };
  await talk.send(page, 'hello');
  await until('the first word', async () => (await talk.written(page)) === 'first');
  await talk.by(page, 'stop').waitFor();
  go();
  await talk.whole(page);
  assert.equal(await talk.written(page), 'first second');
});

test('Stop frees the engine in less than two seconds and keeps the text', async (t) => {
  const page = await chat(t, slow.url);
  await talk.endless(page);
  await talk.send(page, '夜雨');
  await talk.firstText(page, 4);
  assert.equal(await slow.metric('vllm:num_requests_running'), 1);
  const start = performance.now();
  await talk.by(page, 'stop').click();
  await until('a free engine', async () => (await slow.metric('vllm:num_requests_running')) === 0);
  const took = performance.now() - start;
  assert.ok(took < 2000, `took ${took} ms`);
  assert.ok((await talk.written(page)).length >= 4);
  assert.ok((await slow.metric('vllm:request_success_total', { want: 'finished_reason="abort"' })) >= 1);
});

test('Continue goes on with a stopped answer in place', async (t) => {
  const page = await chat(t);
  fake.script = async (say) => {
    await say.text('one two');
    await new Promise((done) => { say.res.once('close', done); });
  };
  await talk.send(page, 'count');
  await until('text', async () => (await talk.written(page)) === 'one two');
  await talk.by(page, 'stop').click();
  fake.script = async (say) => { await say.text(' three'); say.end(); };
  await talk.button(page, 'Continue').click();
  await until('the rest', async () => (await talk.written(page)) === 'one two three');
  assert.equal(lastSent().continue_final_message, true);
  assert.deepEqual(lastSent().messages.at(-1), { role: 'assistant', content: 'one two' });
  assert.equal(await talk.answers(page).count(), 1);
});

test('a reload in the middle of an answer keeps what was written and frees the engine', async (t) => {
  const page = await chat(t, slow.url);
  await talk.endless(page);
  await talk.send(page, '夜雨');
  await talk.firstText(page, 6);
  await sleep(1500);
  const before = await talk.written(page);
  await page.reload();
  await talk.answers(page).first().waitFor();
  const kept = await talk.written(page);
  assert.ok(kept.length >= 4 && (before.startsWith(kept.slice(0, 4))), `${before} -> ${kept}`);
  await page.getByText('Interrupted').waitFor();
  await talk.button(page, 'Continue').waitFor();
  await until('a free engine', async () => (await slow.metric('vllm:num_requests_running')) === 0, 5000);
});

test('the conversation is sent with each question', async (t) => {
  const page = await chat(t);
  await talk.ask(page, 'one');
  await talk.ask(page, 'two');
  assert.deepEqual(said().slice(-3), ['user: one', 'assistant: 回答 1 to «one»', 'user: two']);
});

test('an edited question is a branch; both are kept', async (t) => {
  const page = await chat(t);
  await talk.ask(page, 'first');
  await page.getByLabel('You').hover();
  await talk.button(page, 'Edit').click();
  await talk.field(page, 'Edit the message').fill('changed');
  await talk.button(page, 'Send as a new branch').click();
  await until('the new answer', async () => (await talk.written(page)) === '回答 2 to «changed»');
  assert.deepEqual(said().filter((m) => m.startsWith('user')), ['user: changed']);
  await talk.button(page, 'Earlier version').click();
  await until('the old answer', async () => (await talk.written(page)) === '回答 1 to «first»');
  await page.getByText('first', { exact: true }).first().waitFor();
});

test('Answer again makes a second version of the answer', async (t) => {
  const page = await chat(t);
  await talk.ask(page, 'x');
  await talk.answers(page).hover();
  await talk.button(page, 'Answer again').click();
  await until('the second answer', async () => (await talk.written(page)) === '回答 2 to «x»');
  assert.deepEqual(said().slice(-1), ['user: x']);
  await talk.button(page, 'Earlier version').click();
  await until('the first answer', async () => (await talk.written(page)) === '回答 1 to «x»');
});

test('Copy puts the text as it was written on the clipboard', async (t) => {
  const page = await chat(t, fake.url, { permissions: ['clipboard-read', 'clipboard-write'] });
  fake.script = async (say) => { await say.text('**bold** and `code`'); say.end(); };
  await talk.ask(page, 'x');
  await talk.answers(page).hover();
  await talk.answers(page).last().getByRole('button', { name: 'Copy', exact: true }).click();
  await until('the text', async () => (await page.evaluate('navigator.clipboard.readText()')) === '**bold** and `code`');
});

test('a code block has its own copy button', async (t) => {
  const page = await chat(t, fake.url, { permissions: ['clipboard-read', 'clipboard-write'] });
  fake.script = async (say) => { await say.text('Look:\n\n```c\nint x = 1;\n```\n\nDone.'); say.end(); };
  await talk.ask(page, 'x');
  await talk.button(page, 'Copy code').click();
  await until('the code', async () => (await page.evaluate('navigator.clipboard.readText()')).trim() === 'int x = 1;');
});

test('the system prompt is sent, and one click leaves it out', async (t) => {
  fake.override['GET /v1/models'] = fake.json({ object: 'list', data: [{ id: 'ernie', object: 'model', max_model_len: 4096 }] });
  fake.override['POST /api/show'] = fake.json({ parameters: 'temperature 0.8', capabilities: ['completion'] });
  t.after(() => { fake.override = {}; });
  const page = await chat(t);
  await talk.ask(page, 'one');
  assert.equal(lastSent().messages[0].role, 'system');
  assert.ok(lastSent().messages[0].content.length < 200);
  await talk.button(page, 'System prompt: on').click();
  await talk.ask(page, 'two');
  assert.equal(lastSent().messages[0].role, 'user');
  await talk.button(page, 'System prompt: off').waitFor();
});

test('the poet gets no system prompt', async (t) => {
  const page = await chat(t);
  await talk.ask(page, 'one');
  assert.deepEqual(said(), ['user: one']);
});

test('sampling starts from the defaults of the server, and only changes are sent', async (t) => {
  const page = await chat(t);
  await talk.ask(page, 'one');
  for (const name of ['temperature', 'top_p', 'max_tokens', 'seed']) {
    assert.equal(lastSent()[name], undefined, name);
  }
  await talk.openSettings(page);
  const shown = await page.getByRole('spinbutton', { name: 'Temperature' }).inputValue();
  const show = await (await fetch(`${fast.url}api/show`, { method: 'POST', body: JSON.stringify({ model: '' }) })).json();
  assert.match(show.parameters, new RegExp(`temperature\\s+${shown.replace('.', '\\.')}0*\\b`));
  await page.getByRole('spinbutton', { name: 'Temperature' }).fill('0.3');
  await page.getByRole('spinbutton', { name: 'Longest answer (tokens)' }).fill('77');
  await page.getByRole('spinbutton', { name: 'Seed' }).fill('5');
  await talk.closeSettings(page);
  await talk.ask(page, 'two');
  const { temperature, max_tokens, seed, top_p } = lastSent();
  assert.deepEqual({ temperature, max_tokens, seed, top_p }, { temperature: 0.3, max_tokens: 77, seed: 5, top_p: undefined });
  await page.reload();
  await talk.ready(page);
  await talk.ask(page, 'three');
  assert.equal(lastSent().temperature, 0.3);
});

test('thinking is folded, and opens by a click', async (t) => {
  const page = await chat(t);
  fake.script = async (say) => { say.think('deep thought'); await sleep(100); await say.text('42'); say.end(); };
  await talk.ask(page, 'x');
  assert.equal(await talk.written(page), '42');
  const thought = page.getByText('deep thought');
  assert.equal(await thought.isVisible(), false);
  await page.locator('summary', { hasText: 'Thinking' }).click();
  await thought.waitFor({ state: 'visible' });
});

test('each answer says which model wrote it, and how fast', async (t) => {
  const page = await chat(t, fast.url);
  await talk.ask(page, '夜雨');
  assert.match(await talk.answers(page).last().getAttribute('aria-label'), /tern-poet/);
  await page.getByText(/\d+ tokens · [\d.]+ tok\/s · first after \d/).waitFor();
});

test('the context meter counts the tokens of the conversation', async (t) => {
  const page = await chat(t);
  fake.script = async (say) => { await say.text('x'); say.end('stop', { prompt_tokens: 100, completion_tokens: 23, total_tokens: 123 }); };
  await talk.ask(page, 'x');
  await page.getByRole('meter', { name: /Context: 123 of 2,?048 tokens/ }).waitFor();
});

test('an answer that reached its limit says so and can go on', async (t) => {
  const page = await chat(t);
  fake.script = async (say) => { await say.text('half'); say.end('length'); };
  await talk.ask(page, 'x');
  await page.getByText('Cut off at the token limit.').waitFor();
  await talk.button(page, 'Continue').waitFor();
});

test('before the first token the page tells the place in the queue, then how much of the prompt is read', async (t) => {
  const page = await chat(t);
  let go;
  const pause = () => new Promise((done) => { go = done; });
  fake.script = async (say) => {
    say.progress({ queue_position: 3, prompt_tokens: 900, computed_tokens: 0 });
    await pause();
    say.progress({ queue_position: 0, prompt_tokens: 900, computed_tokens: 300 });
    await pause();
    await say.text('there');
    say.end();
  };
  await talk.send(page, 'x');
  const progress = talk.by(page, 'progress');
  await progress.getByText('Waiting: 2 ahead').waitFor();
  go();
  await progress.getByText('Reading the prompt: 300 of 900 tokens').first().waitFor();
  go();
  await until('the answer', async () => (await talk.written(page)) === 'there');
  await progress.waitFor({ state: 'hidden' });
});
