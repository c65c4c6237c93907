// SPDX-License-Identifier: Apache-2.0
// What must not happen: text that acts, half a message sent, a page that hangs; and what is said when things go wrong.
import { after, before, test } from 'node:test';
import assert from 'node:assert/strict';
import { enter, leave, nginx, open, sleep, standIn, tern, until } from './world.mjs';
import * as talk from './talk.mjs';

let fast;
let slow;
let fake;
before(async () => {
  [fast, slow] = await Promise.all([tern({ args: ['--api-key', 'sesame'] }), tern({ slow: true }), enter()]);
  fake = await standIn(slow.url);
});
after(() => leave(fake, fast, slow));

const chat = async (t, options = {}, url = fake.url) => {
  fake.sent.length = 0;
  fake.script = async (say) => { await say.text('ok'); say.end(); };
  const page = await open(t, url, options);
  await talk.ready(page);
  return page;
};
const answer = async (page, text) => {
  fake.script = async (say) => {
    for (let i = 0; i < text.length; i += 7) { // in pieces: half a tag must not act either
      await say.text(text.slice(i, i + 7));
    }
    say.end();
  };
  await talk.ask(page, 'x');
};

const HOSTILE = [
  '<img src=x onerror="window.acted=1">', '<img src="http://example.com/a.png">', '![a](http://example.com/b.png)',
  '![a](x" onerror="window.acted=1)', '<script>window.acted=1</script>', '<svg onload="window.acted=1"><circle r="1"/></svg>',
  '<iframe srcdoc="<script>parent.acted=1</script>"></iframe>', '<a href="javascript:window.acted=1">click1</a>',
  '[click2](javascript:window.acted=1)', '[click3](JaVaScRiPt&#58;window.acted=1)', '[click4](java\tscript:window.acted=1)',
  '[click5](data:text/html,<script>window.acted=1</script>)', '<a href="&#1;javascript:window.acted=1">click6</a>',
  '<style>body{display:none}</style>', '<link rel="stylesheet" href="http://example.com/c.css">',
  '<form action="http://example.com/"><button>click7</button></form>', '<base href="http://example.com/">',
  '<meta http-equiv="refresh" content="0;url=http://example.com/">', '<details open ontoggle="window.acted=1">d</details>',
  '`<img src=x onerror=window.acted=1>`', '```html\n<img src=x onerror=window.acted=1>\n```',
  '$\\href{javascript:window.acted=1}{click8}$', '$$\\includegraphics{http://example.com/d.png}$$',
  '<math><mtext><img src=x onerror=window.acted=1></mtext></math>', '| a |\n|---|\n| <img src=x onerror=window.acted=1> |',
];

test('markup of an answer does nothing: no script, no image, no request, no javascript: link', async (t) => {
  const page = await chat(t);
  await answer(page, HOSTILE.join('\n\n'));
  await sleep(500);
  const links = await talk.answers(page).last().locator('a').evaluateAll((all) => all.map((a) => a.href));
  assert.deepEqual(links.filter((href) => !/^(https?|mailto):/.test(href)), []);
  for (const word of await page.getByText(/^click\d$/).all()) {
    await word.click({ modifiers: ['Control'], trial: true }).catch(() => {});
    await word.dispatchEvent('click');
  }
  assert.equal(await page.evaluate('window.acted'), undefined);
  const tags = 'img, script, iframe, style, link, form, base, meta, object, embed, svg circle';
  assert.equal(await talk.answers(page).last().getByTestId('answer-text').locator(tags).count(), 0);
  await talk.field(page).waitFor();
});

test('hostile text in a question, a title and an import is text', async (t) => {
  const page = await chat(t);
  await talk.ask(page, HOSTILE.slice(0, 9).join(' '));
  await page.reload();
  await talk.answers(page).first().waitFor();
  assert.equal(await page.evaluate('window.acted'), undefined);
  assert.equal(await page.locator('img, iframe, main script').count(), 0);
});

test('every file of the page comes with a policy that lets nothing in from outside', async () => {
  for (const path of ['', 'dashboard']) {
    const r = await fetch(slow.url + path);
    const policy = r.headers.get('content-security-policy') ?? '';
    assert.match(policy, /default-src 'none'/);
    assert.match(policy, /script-src 'self'(;|$)/);
    assert.match(policy, /connect-src 'self'(;|$)/);
    assert.match(policy, /frame-ancestors 'none'/);
    assert.doesNotMatch(policy, /unsafe|https?:|\*/);
    const html = await r.text();
    assert.doesNotMatch(html, /(src|href)=["']?(https?:)?\/\//);
    assert.doesNotMatch(html, /<script(?![^>]*\bsrc=)/);
  }
});

test('a script that got in would not run', async (t) => {
  const page = await open(t, slow.url);
  await talk.ready(page);
  const refused = page.waitForEvent('console', (m) => /Content Security Policy|TrustedHTML|TrustedScript/i.test(m.text()));
  await page.evaluate(() => {
    const e = document.createElement('div');
    document.body.append(e);
    try {
      e.innerHTML = '<img src=x onerror="window.acted=1">';
    } catch { /* trusted types */ }
  });
  await refused;
  assert.equal(await page.evaluate('window.acted'), undefined);
  page.faults.length = 0; // what was refused is what was wanted
});

test('Enter that ends a composition does not send', async (t) => {
  const page = await chat(t);
  const keys = await page.context().newCDPSession(page);
  await talk.field(page).focus();
  await keys.send('Input.imeSetComposition', { text: 'ni hao', selectionStart: 6, selectionEnd: 6 });
  assert.equal(await talk.field(page).inputValue(), 'ni hao');
  await page.keyboard.press('Enter');
  await sleep(300);
  assert.equal(fake.sent.length, 0);
  await keys.send('Input.imeSetComposition', { text: '你好', selectionStart: 2, selectionEnd: 2 });
  await keys.send('Input.insertText', { text: '你好' });
  await sleep(300);
  assert.equal(fake.sent.length, 0);
  await talk.field(page).fill('你好');
  await page.keyboard.press('Enter');
  await until('one request', () => fake.sent.length === 1);
  assert.equal(fake.sent[0].messages.at(-1).content, '你好');
});

test('Enter with the key code of an input method does not send, though the composition is over', async (t) => {
  const page = await chat(t);
  await talk.field(page).fill('ni');
  await talk.field(page).evaluate((e) => {
    e.dispatchEvent(new CompositionEvent('compositionstart', { bubbles: true }));
    e.dispatchEvent(new CompositionEvent('compositionend', { bubbles: true, data: 'ni' }));
    const key = new KeyboardEvent('keydown', { key: 'Enter', code: 'Enter', keyCode: 229, bubbles: true, cancelable: true });
    e.dispatchEvent(key);
  });
  await sleep(300);
  assert.equal(fake.sent.length, 0);
});

test('Shift and Enter make a line, an empty message is not sent', async (t) => {
  const page = await chat(t);
  await talk.field(page).focus();
  await page.keyboard.press('Enter');
  await page.keyboard.type('   ');
  await page.keyboard.press('Enter');
  await sleep(200);
  assert.equal(fake.sent.length, 0);
  await talk.field(page).fill('');
  await page.keyboard.type('a');
  await page.keyboard.press('Shift+Enter');
  await page.keyboard.type('b');
  await page.keyboard.press('Enter');
  await until('one request', () => fake.sent.length === 1);
  assert.equal(fake.sent[0].messages.at(-1).content, 'a\nb');
});

const PROSE = '## 标题 with *words*\n\nA paragraph of **bold**, `code`, [a link](https://example.com/) and 中文文字，再加一点。\n\n' +
  '- one\n- two\n\n```python\ndef f(x):\n    return x + 1\n```\n\n';
for (const [what, unit] of [['of prose', PROSE], ['in one block of code', 'let someName = otherName + 12345; // a line\n'],
  ['in one paragraph', 'word after word without an end, ']]) {
  test(`an answer of 1 MB ${what} leaves the page responsive`, async (t) => {
    const page = await chat(t);
    const body = (what.includes('code') ? '```js\n' : '') + unit.repeat(Math.ceil(1e6 / Buffer.byteLength(unit)));
    let finished = false;
    fake.script = async (say) => {
      for (let i = 0; i < body.length; i += 1500) {
        await say.text(body.slice(i, i + 1500));
        await sleep(5);
      }
      say.end();
      finished = true;
    };
    await page.evaluate(() => {
      window.gaps = [];
      let last = performance.now();
      const turn = (now) => { window.gaps.push(now - last); last = now; requestAnimationFrame(turn); };
      requestAnimationFrame(turn);
    });
    await talk.send(page, 'x');
    await until('the stream to run', () => fake.open === 1);
    await talk.field(page).focus();
    // While it is written the page takes what is typed, and shows it at once.
    const delays = [];
    do {
      const start = performance.now();
      await page.keyboard.press('a');
      delays.push(performance.now() - start);
      await sleep(150);
    } while (!finished);
    await until('the end', async () => (await talk.by(page, 'stop').count()) === 0);
    const gaps = await page.evaluate('window.gaps');
    const worst = (list) => Math.max(...list);
    const middle = (list) => [...list].sort((a, b) => a - b)[Math.floor(list.length / 2)];
    t.diagnostic(`frames: median ${middle(gaps).toFixed(0)} ms, worst ${worst(gaps).toFixed(0)} ms of ${gaps.length}; keys: median ` +
      `${middle(delays).toFixed(0)} ms, worst ${worst(delays).toFixed(0)} ms of ${delays.length}`);
    assert.ok(worst(gaps) < 2000, `a frame took ${worst(gaps)} ms`);
    assert.ok(middle(delays) < 500, `a key took ${middle(delays)} ms`);
    assert.equal(await talk.field(page).inputValue(), 'a'.repeat(delays.length));
  });
}

// How many bytes of a stream come first.
async function firstBytes(url) {
  const stop = new AbortController();
  const r = await fetch(`${url}v1/completions`, {
    method: 'POST', signal: stop.signal, headers: { 'Content-Type': 'application/json' },
    body: JSON.stringify({ prompt: '写', max_tokens: 400, ignore_eos: true, stream: true }),
  });
  const { value } = await r.body.getReader().read();
  stop.abort();
  return value.length;
}

test('nginx with its defaults passes each token on, because the stream asks for it', async (t) => {
  const proxy = await nginx(slow.url, '/a/');
  t.after(() => proxy.end());
  const deaf = await nginx(slow.url, '/a/', 'proxy_ignore_headers X-Accel-Buffering;');
  t.after(() => deaf.end());
  const held = await firstBytes(deaf.url);
  assert.ok(held >= 3000, `a proxy that does not know the header holds back: ${held} bytes`);
  const first = await firstBytes(proxy.url);
  assert.ok(first < 2000, `${first} bytes came first`);
});

test('behind nginx with its defaults, under a prefix, the first token is shown while the answer is written', async (t) => {
  const proxy = await nginx(slow.url, '/some/where/');
  t.after(() => proxy.end());
  const page = await chat(t, {}, proxy.url);
  await talk.endless(page);
  await talk.send(page, '夜雨');
  await talk.firstText(page);
  assert.equal(await slow.metric('vllm:num_requests_running'), 1, 'the answer was still being written');
  assert.ok((await talk.written(page)).length < 60, 'little of it was there');
  await talk.by(page, 'stop').click();
  await until('a free engine', async () => (await slow.metric('vllm:num_requests_running')) === 0, 5000);
  await page.getByRole('link', { name: 'Dashboard' }).click();
  await page.locator('.state', { hasText: 'Live' }).waitFor();
  assert.equal(page.url(), `${proxy.url}dashboard`);
  await page.getByRole('link', { name: 'Chat' }).click();
  await talk.ready(page);
});

test('a server with a key: the page asks for it, and keeps it', async (t) => {
  const page = await open(t, fast.url, { mild: true });
  const dialog = page.getByRole('dialog', { name: 'This server wants an API key.' });
  await dialog.getByLabel('API key').fill('wrong');
  await page.keyboard.press('Enter');
  await dialog.getByText('The server did not accept the key.').waitFor();
  await dialog.getByLabel('API key').fill('sesame');
  await talk.button(page, 'Save').click();
  await dialog.waitFor({ state: 'hidden' });
  await talk.ask(page, '夜雨');
  await page.reload();
  await talk.ready(page);
  await talk.ask(page, '春晓');
});

test('while the model loads the page says so, and can be used as soon as it is there', async (t) => {
  const busy = (req, res) => { res.writeHead(503, { 'Content-Type': 'application/json', 'Retry-After': '1' })
    .end('{"error":{"message":"The model is loading","type":"ServiceUnavailableError","param":null,"code":503}}'); };
  Object.assign(fake.override, { 'GET /v1/models': busy, 'GET /health': busy, 'POST /api/show': busy });
  const page = await open(t, fake.url, { mild: true });
  await page.getByText('The model is loading.').waitFor();
  await talk.field(page).fill('written meanwhile');
  await page.keyboard.press('Enter');
  assert.equal(await talk.field(page).inputValue(), 'written meanwhile');
  fake.override = {};
  await page.getByText('The model is loading.').waitFor({ state: 'hidden' });
  fake.script = async (say) => { await say.text('ok'); say.end(); };
  await page.locator('[data-testid=send]:enabled').waitFor();
  await talk.field(page).press('Enter');
  await until('the answer', async () => (await talk.written(page)) === 'ok');
});

test('a server that dies in the middle of an answer: the text stays, a sentence tells, and another try works', async (t) => {
  const page = await chat(t, { mild: true });
  let die;
  fake.script = async (say) => { await say.text('half of'); die = say.die; };
  await talk.send(page, 'x');
  await until('text', async () => (await talk.written(page)) === 'half of');
  die();
  await page.getByText('The connection broke off.').waitFor();
  assert.equal(await talk.written(page), 'half of');
  fake.script = async (say) => { await say.text('all of it'); say.end(); };
  await talk.button(page, 'Try again').click();
  await until('the answer', async () => (await talk.written(page)) === 'all of it');
});

test('a conversation that is too long is told in a sentence that names the context', async (t) => {
  const page = await chat(t, { mild: true }, slow.url);
  await talk.send(page, '春眠不觉晓，处处闻啼鸟。'.repeat(400));
  const words = await page.getByRole('alert').innerText();
  assert.match(words, /2,?048/);
  assert.doesNotMatch(words, /[{}"]|parameter=/);
});

test('an error of the server is shown with its own words', async (t) => {
  const page = await chat(t, { mild: true });
  fake.script = async (say) => say.fail(500, { message: 'The engine stumbled', type: 'InternalServerError', param: null, code: 500 });
  await talk.send(page, 'x');
  await page.getByText(/The engine stumbled/).waitFor();
  await talk.button(page, 'Try again').waitFor();
});
