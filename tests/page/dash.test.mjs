// SPDX-License-Identifier: Apache-2.0
// The dashboard in a real browser, over a real tern.
import { after, before, test } from 'node:test';
import assert from 'node:assert/strict';
import { accessible, enter, leave, metric, noSidewaysScroll, open, sleep, standIn, tern, until } from './world.mjs';

let fast;
let slow;
let fake;
before(async () => {
  [fast, slow] = await Promise.all([tern({ args: ['--api-key', 'sesame'] }), tern({ slow: true }), enter()]);
  fake = await standIn(slow.url);
});
after(() => leave(fake, fast, slow));

const key = { Authorization: 'Bearer sesame' };
const dashboard = (t, url = slow.url, options = {}) => open(t, `${url}dashboard`, options);
const value = (page, name) => page.locator(`[data-value="${name}"]`).first().textContent();
const figure = async (page, name) => Number((await value(page, name)).replace(/[^0-9.]/g, ''));
const state = (page, word) => page.locator('.state', { hasText: word }).waitFor();

// A request that runs until it is let go.
function running(url, prompt = '写') {
  const stop = new AbortController();
  const done = fetch(`${url}v1/completions`, {
    method: 'POST', signal: stop.signal, headers: { 'Content-Type': 'application/json' },
    body: JSON.stringify({ prompt, max_tokens: 1900, ignore_eos: true, stream: true }),
  }).then((r) => r.text()).catch(() => null);
  return { async end() { stop.abort(); await done; } };
}

async function withStoredKey(t, url, secret) {
  const page = await open(t, null);
  await page.addInitScript(`localStorage.setItem('tern.prefs', ${JSON.stringify(JSON.stringify({ apiKey: secret }))})`);
  await page.goto(`${url}dashboard`);
  return page;
}

test('the totals are the numbers of /metrics', async (t) => {
  for (let i = 0; i < 3; i++) {
    const r = await fetch(`${fast.url}v1/chat/completions`, { method: 'POST', headers: { ...key, 'Content-Type': 'application/json' },
      body: JSON.stringify({ messages: [{ role: 'user', content: '写一首五言绝句，题目是《夜雨》。' }], max_tokens: 20 + i }) });
    assert.equal(r.status, 200);
  }
  const page = await withStoredKey(t, fast.url, 'sesame');
  await state(page, 'Live');
  const told = (name, want) => metric(fast.url, name, { want, headers: key });
  assert.equal(await figure(page, 'finished'), await told('vllm:request_success_total'));
  assert.equal(await figure(page, 'finished'), 3);
  assert.equal(await figure(page, 'promptTokens'), await told('vllm:prompt_tokens_total'));
  assert.equal(await figure(page, 'generatedTokens'), await told('vllm:generation_tokens_total'));
  assert.equal(await figure(page, 'promptCached'), await told('vllm:prompt_tokens_cached_total'));
  assert.equal(await figure(page, 'steps'), await told('vllm:engine_steps_total'));
  const hits = (await told('vllm:prefix_cache_hits_total')) / (await told('vllm:prefix_cache_queries_total'));
  assert.ok(hits > 0 && Math.abs((await figure(page, 'hitShare')) / 100 - hits) < 0.001);
  assert.match(await value(page, 'kvStore'), /iB$/);
});

test('a running request moves the charts, and its end does', async (t) => {
  const page = await dashboard(t);
  const request = running(slow.url);
  t.after(() => request.end());
  await until('one running request', async () => (await value(page, 'running')) === '1');
  await until('a rate of new tokens', async () => (await figure(page, 'generated')) > 0);
  await until('a time per step', async () => /\d m?s$/.test(await value(page, 'stepMean')));
  await until('KV blocks in use', async () => (await figure(page, 'kv')) > 0);
  await until('a line', async () => ((await page.locator('#generation path.line0').getAttribute('d')) ?? '').includes('L'));
  await request.end();
  await until('no running request', async () => (await value(page, 'running')) === '0');
});

test('requests that wait are counted apart', async (t) => {
  const page = await dashboard(t, fake.url);
  fake.override['GET /metrics'] = async (req, res) => {
    const text = await (await fetch(`${slow.url}metrics`)).text();
    res.end(text.replace(/(num_requests_running\{.*\}) .*/, '$1 7').replace(/(num_requests_waiting\{.*\}) .*/, '$1 5'));
  };
  t.after(() => { delete fake.override['GET /metrics']; });
  await until('the numbers', async () => (await value(page, 'running')) === '7' && (await value(page, 'waiting')) === '5');
  const name = await page.locator('#requests svg').getAttribute('aria-label');
  assert.match(name, /^Requests\. Running: 7; Waiting: 5\. Highest shown: 7$/);
});

test('every chart is a picture whose name says its numbers', async (t) => {
  const page = await dashboard(t);
  await state(page, 'Live');
  const names = await page.getByRole('img').evaluateAll((all) => all.map((e) => e.getAttribute('aria-label')));
  assert.equal(names.length, 8);
  for (const name of names) {
    assert.match(name, /^[^.]+\. .+: (–|[\d.,]+.*)\. Highest shown: /);
  }
});

test('arrow keys read out the moments of a chart', async (t) => {
  const page = await dashboard(t);
  await until('two points', async () => ((await page.locator('#kv path.line0').getAttribute('d')) ?? '').includes('L'));
  await page.locator('#kv svg').focus();
  await page.keyboard.press('ArrowLeft');
  const spoken = page.locator('#kv [aria-live]');
  await until('a reading', async () => /^\d\d:\d\d:\d\d: .*%$/.test(await spoken.textContent()));
  await page.keyboard.press('Escape');
  await until('no reading', async () => (await spoken.textContent()) === '');
});

test('it speaks Chinese to a Chinese browser, and remembers another choice', async (t) => {
  const page = await dashboard(t, slow.url, { zh: true });
  assert.equal(await page.locator('h1').textContent(), '仪表盘');
  assert.equal(await page.locator('html').getAttribute('lang'), 'zh-CN');
  await page.getByLabel('语言').selectOption('en');
  await page.getByRole('heading', { name: 'Dashboard', level: 1 }).waitFor();
  await page.reload();
  await page.getByRole('heading', { name: 'Dashboard', level: 1 }).waitFor();
});

test('dark and light can be chosen against the system', async (t) => {
  const page = await dashboard(t);
  const ground = () => page.evaluate('getComputedStyle(document.body).backgroundColor');
  const light = await ground();
  await page.getByLabel('Theme').selectOption('dark');
  await until('a dark page', async () => (await ground()) !== light);
  const dark = await ground();
  await page.reload();
  assert.equal(await ground(), dark);
});

test('a phone shows it without scrolling sideways', async (t) => {
  const page = await dashboard(t, slow.url, { phone: true });
  await state(page, 'Live');
  await noSidewaysScroll(page);
  const widths = await page.locator('.card').evaluateAll((all) => all.map((e) => e.getBoundingClientRect().width));
  assert.ok(widths.every((w) => w > 300), `one column: ${widths}`);
});

test('a hidden tab asks nothing, and asks at once when it is seen again', async (t) => {
  const page = await dashboard(t);
  await state(page, 'Live');
  let asked = 0;
  page.on('request', (r) => { asked += r.url().endsWith('/metrics') ? 1 : 0; });
  const turn = (to) => page.evaluate(`Object.defineProperty(document, 'visibilityState', { value: '${to}', configurable: true });
    document.dispatchEvent(new Event('visibilitychange'))`);
  await turn('hidden');
  await sleep(200);
  asked = 0;
  await sleep(4500);
  assert.equal(asked, 0);
  await turn('visible');
  await until('a question', () => asked > 0);
});

test('Pause stops asking, Resume goes on', async (t) => {
  const page = await dashboard(t);
  await state(page, 'Live');
  await page.getByRole('button', { name: 'Pause' }).click();
  await state(page, 'Paused');
  let asked = 0;
  page.on('request', (r) => { asked += r.url().endsWith('/metrics') ? 1 : 0; });
  await sleep(4500);
  assert.equal(asked, 0);
  await page.getByRole('button', { name: 'Resume' }).click();
  await state(page, 'Live');
});

test('a server with a key is asked for it, and the key stays', async (t) => {
  const page = await dashboard(t, fast.url, { mild: true });
  await state(page, 'Key needed');
  await page.getByLabel('API key').fill('wrong');
  await page.keyboard.press('Enter');
  await page.waitForResponse((r) => r.url().endsWith('/metrics') && r.status() === 401);
  await page.getByLabel('API key').fill('sesame');
  await page.getByRole('button', { name: 'Save' }).click();
  await state(page, 'Live');
  await page.reload();
  await state(page, 'Live');
});

test('while the model loads it says so', async (t) => {
  fake.override['GET /metrics'] = async (req, res) => {
    const text = await (await fetch(`${slow.url}metrics`)).text();
    res.end(text.replace(/(engine_sleep_state\{.*"awake"\}) 1/, '$1 0'));
  };
  t.after(() => { delete fake.override['GET /metrics']; });
  const page = await dashboard(t, fake.url);
  await state(page, 'Model is loading');
  delete fake.override['GET /metrics'];
  await state(page, 'Live');
});

test('a server that is gone is said in a sentence, and the charts go on when it is back', async (t) => {
  const lone = await standIn(slow.url);
  const page = await dashboard(t, lone.url, { mild: true });
  await state(page, 'Live');
  await lone.end();
  await state(page, 'No answer');
  await page.getByText('The server does not answer.').waitFor();
  await accessible(page, 'without a server');
  const back = await standIn(slow.url, lone.port);
  t.after(() => back.end());
  await state(page, 'Live');
});

test("a proxy's own page is not taken for metrics", async (t) => {
  fake.override['GET /metrics'] = (req, res) => { res.writeHead(502, { 'Content-Type': 'text/html' }).end('<h1>Bad gateway</h1>'); };
  t.after(() => { delete fake.override['GET /metrics']; });
  const page = await dashboard(t, fake.url, { mild: true });
  await state(page, 'No metrics');
  await page.getByText('status 502').waitFor();
});

for (const [what, options] of [['light', {}], ['dark', { dark: true }], ['Chinese, on a phone', { zh: true, phone: true }]]) {
  test(`axe finds no serious fault: ${what}`, async (t) => {
    const page = await dashboard(t, slow.url, options);
    await state(page, options.zh ? '实时' : 'Live');
    await accessible(page, what);
  });
}
