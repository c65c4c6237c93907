// SPDX-License-Identifier: Apache-2.0
// The chat page for everybody: keyboard alone, screen readers (axe-core), phones, slow lines.
import { after, before, test } from 'node:test';
import assert from 'node:assert/strict';
import { accessible, enter, leave, noSidewaysScroll, open, sleep, standIn, tern, until } from './world.mjs';
import * as talk from './talk.mjs';

let fast;
let fake;
before(async () => {
  [fast] = await Promise.all([tern(), enter()]);
  fake = await standIn(fast.url);
});
after(() => leave(fake, fast));

const RICH = '# A heading\n\nText with `code`, **bold** and [a link](https://example.com/).\n\n```python\ndef f(x):\n' +
  '    return "a string", x + 1  # a comment\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n1. one\n2. two\n\n> quoted\n\n' +
  '公式 $E = mc^2$ and\n\n$$\\int_0^1 x^2\\,dx = \\frac13$$\n\n' + 'averyveryverylongword'.repeat(12);

const chat = async (t, options = {}) => {
  fake.sent.length = 0;
  fake.script = async (say) => { say.think('A thought.'); await say.text(RICH); say.end(); };
  const page = await open(t, fake.url, options);
  await talk.ready(page);
  return page;
};

test('keyboard alone: ask, stop, another conversation, settings', async (t) => {
  const page = await chat(t);
  const press = (key) => page.keyboard.press(key);
  fake.script = async (say) => {
    await say.text('it goes on');
    await new Promise((done) => { say.res.once('close', done); });
  };
  await talk.tabTo(page, talk.field(page));
  await page.keyboard.type('first');
  await press('Enter');
  await until('text', async () => (await talk.written(page)) === 'it goes on');
  await talk.tabTo(page, talk.by(page, 'stop'));
  await press('Enter');
  await talk.by(page, 'stop').waitFor({ state: 'hidden' });
  await until('a closed request', () => fake.open === 0);

  fake.script = async (say) => { await say.text('second answer'); say.end(); };
  await talk.tabTo(page, talk.by(page, 'new-chat'));
  await press('Enter');
  await talk.tabTo(page, talk.field(page));
  await page.keyboard.type('second');
  await press('Enter');
  await until('the answer', async () => (await talk.written(page)) === 'second answer');
  const list = page.getByRole('navigation', { name: 'Conversations' });
  const entry = list.getByRole('link', { name: 'first', exact: true });
  await talk.tabTo(page, entry);
  await press('Enter');
  await until('the first conversation', async () => (await talk.written(page)) === 'it goes on');

  await talk.tabTo(page, talk.by(page, 'settings'));
  await press('Enter');
  await talk.settings(page).waitFor();
  const inside = () => page.evaluate('Boolean(document.activeElement.closest("dialog, [role=dialog]"))');
  assert.ok(await inside(), 'focus is in the dialog');
  const temperature = page.getByRole('spinbutton', { name: 'Temperature' });
  await talk.tabTo(page, temperature);
  await press('Control+A');
  await page.keyboard.type('0.5');
  await press('Escape');
  await talk.settings(page).waitFor({ state: 'hidden' });
  assert.ok(await talk.by(page, 'settings').evaluate((e) => e === document.activeElement), 'focus is back');
});

test('what is focused can be seen', async (t) => {
  const page = await chat(t);
  for (let i = 0; i < 12; i++) {
    await page.keyboard.press('Tab');
    const seen = await page.evaluate(() => {
      const e = document.activeElement;
      const box = e.getBoundingClientRect();
      const rings = [];
      for (let at = e; at && rings.length < 4; at = at.parentElement) {
        const s = getComputedStyle(at);
        rings.push(`${s.outlineStyle} ${s.outlineWidth} ${s.boxShadow} ${s.borderColor}`);
      }
      return { what: e.outerHTML.slice(0, 100), size: box.width * box.height, ring: /(solid|auto) [1-9]/.test(rings.join()), body: e === document.body };
    });
    assert.ok(seen.body || (seen.size > 0 && seen.ring), seen.what);
  }
});

for (const [what, options] of [['light', {}], ['dark', { dark: true }], ['on a phone', { phone: true }]]) {
  test(`axe finds no serious fault, ${what}: empty page, answers, settings`, async (t) => {
    const page = await chat(t, options);
    await accessible(page, 'empty');
    await talk.ask(page, 'Show everything.');
    await page.locator('.katex').first().waitFor();
    await accessible(page, 'with an answer');
    await talk.openSettings(page);
    await accessible(page, 'settings');
  });
}

test('axe finds no serious fault in Chinese, while an answer is written and when one failed', async (t) => {
  const page = await open(t, fake.url, { zh: true, mild: true });
  let go;
  fake.script = async (say) => { await say.text('好'); await new Promise((done) => { go = done; }); say.die(); };
  await talk.ready(page);
  await talk.send(page, '你好');
  await talk.button(page, '停止').waitFor();
  await accessible(page, 'while it is written');
  await until('the stream', () => go);
  go();
  await page.getByText('连接中断').waitFor();
  await accessible(page, 'failed');
});

test('a screen reader hears that an answer begins and ends', async (t) => {
  const page = await chat(t);
  const status = page.locator('[role="status"], [aria-live="polite"]');
  const heard = async (words) => until(words, async () => (await status.allTextContents()).some((s) => s.includes(words)));
  let go;
  fake.script = async (say) => { await say.text('x'); await new Promise((done) => { go = done; }); say.end(); };
  await talk.send(page, 'x');
  await heard('Answering…');
  await until('the stream', () => go);
  go();
  await heard('The answer is complete.');
});

test('a phone: nothing scrolls sideways, the list opens and closes, the field is in reach', async (t) => {
  const page = await chat(t, { phone: true });
  await noSidewaysScroll(page);
  await talk.ask(page, 'Show everything.');
  await noSidewaysScroll(page);
  const box = await talk.field(page).boundingBox();
  assert.ok(box.y + box.height <= 740 && box.width > 200, JSON.stringify(box));
  await talk.by(page, 'open-sidebar').click();
  await page.getByRole('navigation', { name: 'Conversations' }).getByText('Show everything.').first().waitFor();
  await noSidewaysScroll(page);
  await talk.by(page, 'close-sidebar').click();
  await talk.openSettings(page);
  await noSidewaysScroll(page);
});

for (const path of ['', 'dashboard']) {
  test(`the first load of /${path} takes at most 60 kB`, async (t) => {
    const page = await open(t, null);
    const wire = await page.context().newCDPSession(page);
    await wire.send('Network.enable');
    const files = new Map();
    wire.on('Network.responseReceived', (e) => files.set(e.requestId, { url: e.response.url, bytes: 0 }));
    wire.on('Network.loadingFinished', (e) => { if (files.has(e.requestId)) files.get(e.requestId).bytes = e.encodedDataLength; });
    await page.goto(fast.url + path);
    await (path ? page.locator('.state', { hasText: 'Live' }).waitFor() : talk.ready(page));
    await sleep(1000);
    const site = [...files.values()].filter((f) => f.url === fast.url + path || f.url.includes('/assets/'));
    const sum = site.reduce((n, f) => n + f.bytes, 0);
    t.diagnostic(`${sum} bytes in ${site.length} files`);
    assert.ok(site.length >= 3 && sum > 5000 && sum <= 60000, JSON.stringify(site));
  });
}
