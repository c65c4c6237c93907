// SPDX-License-Identifier: Apache-2.0
// Conversations are kept, found, renamed, deleted, exported and imported; both languages; themes.
import { after, before, test } from 'node:test';
import assert from 'node:assert/strict';
import fs from 'node:fs';
import { enter, leave, open, standIn, tern, until } from './world.mjs';
import * as talk from './talk.mjs';

let fast;
let fake;
before(async () => {
  [fast] = await Promise.all([tern(), enter()]);
  fake = await standIn(fast.url);
  fake.script = async (say, body) => { await say.text(`answer to ${body.messages.at(-1).content}`); say.end(); };
});
after(() => leave(fake, fast));

const chat = async (t, options = {}) => {
  const page = await open(t, fake.url, options);
  await talk.ready(page);
  return page;
};
const list = (page) => page.getByRole('navigation', { name: 'Conversations' });
const entry = (page, title) => list(page).getByRole('link', { name: title, exact: true });
async function three(page) {
  for (const title of ['apples', 'pears', 'plums']) {
    await talk.by(page, 'new-chat').click();
    await talk.ask(page, title);
  }
}

test('conversations are listed by their first question and kept over a reload', async (t) => {
  const page = await chat(t);
  await three(page);
  await page.reload();
  await entry(page, 'apples').click();
  await until('its answer', async () => (await talk.written(page)) === 'answer to apples');
  await entry(page, 'plums').click();
  await until('the other answer', async () => (await talk.written(page)) === 'answer to plums');
});

test('the search looks into questions and answers', async (t) => {
  const page = await chat(t);
  await three(page);
  const search = page.getByRole('searchbox', { name: 'Search conversations' });
  await search.fill('answer pear');
  await entry(page, 'apples').waitFor({ state: 'hidden' });
  assert.equal(await entry(page, 'pears').count(), 1);
  await search.fill('nowhere');
  await page.getByText('Nothing found.').waitFor();
  await search.fill('');
  await entry(page, 'apples').waitFor();
});

test('a conversation can be renamed', async (t) => {
  const page = await chat(t);
  await three(page);
  await entry(page, 'pears').hover();
  await talk.button(page, 'Rename “pears”').click();
  await talk.field(page, 'New name').fill('Birnen');
  await page.keyboard.press('Enter');
  await entry(page, 'Birnen').waitFor();
  await page.reload();
  await entry(page, 'Birnen').waitFor();
  assert.equal(await entry(page, 'pears').count(), 0);
});

test('a deleted conversation is gone, and Undo brings it back', async (t) => {
  const page = await chat(t);
  await three(page);
  await entry(page, 'pears').hover();
  await talk.button(page, 'Delete “pears”').click();
  await entry(page, 'pears').waitFor({ state: 'hidden' });
  await talk.button(page, 'Undo').click();
  await entry(page, 'pears').waitFor();
  await entry(page, 'apples').hover();
  await talk.button(page, 'Delete “apples”').click();
  await entry(page, 'apples').waitFor({ state: 'hidden' });
  await page.reload();
  await entry(page, 'pears').waitFor();
  assert.equal(await entry(page, 'apples').count(), 0);
});

async function exported(page) {
  const [download] = await Promise.all([page.waitForEvent('download'), talk.by(page, 'export').click()]);
  return download.path();
}

test('everything is exported, and imported by another browser', async (t) => {
  const page = await chat(t);
  await three(page);
  const file = await exported(page);
  const text = fs.readFileSync(file, 'utf8');
  for (const word of ['apples', 'answer to pears', 'plums']) {
    assert.ok(text.includes(word), word);
  }
  const other = await chat(t);
  const [chooser] = await Promise.all([other.waitForEvent('filechooser'), talk.by(other, 'import').click()]);
  await chooser.setFiles({ name: 'chats.json', mimeType: 'application/json', buffer: Buffer.from(text) });
  await other.getByText('Imported 3 conversations.').waitFor();
  await entry(other, 'pears').click();
  await until('the answer', async () => (await talk.written(other)) === 'answer to pears');
});

test('a file that is no export is refused in a sentence', async (t) => {
  const page = await chat(t);
  for (const [text, words] of [['{"a":1}', 'This file is no export of this page.'], ['{"a":', 'This file is damaged']]) {
    const [chooser] = await Promise.all([page.waitForEvent('filechooser'), talk.by(page, 'import').click()]);
    await chooser.setFiles({ name: 'x.json', mimeType: 'application/json', buffer: Buffer.from(text) });
    await page.getByText(words).waitFor();
  }
});

test('a Chinese browser gets the page in Chinese, and it can be changed', async (t) => {
  const page = await chat(t, { zh: true });
  assert.equal(await page.locator('html').getAttribute('lang'), 'zh-CN');
  await talk.openSettings(page);
  await page.getByLabel('语言').selectOption('en');
  await page.getByRole('dialog', { name: 'Settings' }).waitFor();
  await page.reload();
  await talk.ready(page);
  await page.goto(`${fake.url}dashboard`);
  await page.getByRole('heading', { name: 'Dashboard', level: 1 }).waitFor();
});

test('no text of the page is left in English in Chinese', async (t) => {
  const page = await chat(t, { zh: true });
  await talk.ask(page, '你好');
  assert.equal(await talk.answers(page, /的回答$/).count(), 1);
  await talk.openSettings(page);
  const words = await page.evaluate(() => {
    const texts = [document.body.innerText];
    for (const e of document.querySelectorAll('[aria-label],[title],[placeholder]')) {
      texts.push(e.getAttribute('aria-label') ?? '', e.getAttribute('title') ?? '', e.getAttribute('placeholder') ?? '');
    }
    return [...new Set(texts.join('\n').match(/\b[A-Za-z]{3,}\b/g) ?? [])];
  });
  const known = ['tern', 'poet', 'models', 'English', 'API', 'answer', 'Top', 'Min', 'tok', 'Enter', 'Shift', 'KiB', 'MiB', 'JSON'];
  assert.deepEqual(words.filter((w) => !known.includes(w)), []);
});

test('a dark page does not flash white when it is loaded', async (t) => {
  const page = await chat(t);
  await page.evaluate(`localStorage.setItem('tern.prefs', JSON.stringify({ theme: 'dark' }))`);
  await page.reload({ waitUntil: 'commit' });
  await page.waitForLoadState('domcontentloaded');
  const [r, g, b] = (await page.evaluate('getComputedStyle(document.body).backgroundColor')).match(/\d+/g).map(Number);
  assert.ok(r + g + b < 200, `${r} ${g} ${b}`);
});
