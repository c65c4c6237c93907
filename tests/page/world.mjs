// SPDX-License-Identifier: Apache-2.0
// What the tests of the page stand on: a tern with the small model, a stand-in for what must be said word by word, and
// one browser a file. Every page that is opened here is watched: a request that leaves the machine, an error of the
// console (a violated content-security policy is one) or an exception fails the test that opened it.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import fs from 'node:fs';
import http from 'node:http';
import net from 'node:net';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { chromium } from 'playwright-core';

export const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '../..');
const bin = process.env.TERN_BIN ?? path.join(root, 'build/tern');
export const PATIENCE = 60000; // a loaded machine; nothing waits that long when all is well

export const sleep = (ms) => new Promise((done) => { setTimeout(done, ms); });

// Until check() is true, or the assertion of its last exception.
export async function until(what, check, ms = PATIENCE) {
  const end = Date.now() + ms;
  for (;;) {
    if (await check()) {
      return;
    }
    assert.ok(Date.now() < end, `waited ${ms} ms for: ${what}`);
    await sleep(30);
  }
}

export async function freePort() {
  const s = net.createServer().listen(0, '127.0.0.1');
  await new Promise((done) => { s.once('listening', done); });
  const { port } = s.address();
  await new Promise((done) => { s.close(done); });
  return port;
}

// ---- programs ----------------------------------------------------------------------------------------------------

export async function program(command, args, options = {}) {
  const child = spawn(command, args, { cwd: root, stdio: ['ignore', 'pipe', 'pipe'], ...options });
  let log = '';
  for (const stream of [child.stdout, child.stderr]) {
    stream.on('data', (d) => { log = (log + d).slice(-20000); });
  }
  const gone = new Promise((done) => { child.once('exit', done); });
  child.once('error', (e) => { log += e.message; });
  process.once('exit', () => child.kill('SIGKILL'));
  return {
    child,
    log: () => log,
    async end(signal = 'SIGTERM') {
      if (child.exitCode === null && child.signalCode === null) {
        child.kill(signal);
        await gone;
      }
    },
  };
}

// A tern that serves; slow: one thread of scalar code, some fifteen tokens a second.
export async function tern({ args = [], slow = false, ready = true, model = 'models/tern-poet' } = {}) {
  const port = await freePort();
  const p = await program(bin, ['serve', model, '--host', '127.0.0.1', '--port', String(port),
    ...(slow ? ['--cpu-mask', 'scalar', '--threads', '1'] : []), ...args]);
  const url = `http://127.0.0.1:${port}/`;
  const health = async () => (await fetch(`${url}health`).catch(() => null))?.status;
  await until('tern to answer', async () => {
    assert.equal(p.child.exitCode, null, `tern ended: ${p.log()}`);
    const status = await health();
    return ready ? status === 200 : status;
  });
  return { ...p, url, port, metric: (name, headers) => metric(url, name, headers) };
}

// One sum over the label sets of a series, or over those that hold `want` literally.
export async function metric(url, name, { want = '', headers = {} } = {}) {
  const text = await (await fetch(`${url}metrics`, { headers })).text();
  let sum = 0;
  for (const line of text.split('\n')) {
    if (line.startsWith(`${name}{`) && line.includes(want)) {
      sum += Number(line.slice(line.lastIndexOf(' ')));
    }
  }
  return sum;
}

// nginx with the defaults of its distribution in front of `upstream`, under `prefix` ('/a/b/'); more: other directives.
export async function nginx(upstream, prefix, more = '') {
  const port = await freePort();
  const dir = fs.mkdtempSync(path.join(process.env.TMPDIR ?? '/tmp', 'tern-nginx-'));
  fs.mkdirSync(path.join(dir, 'temp'));
  fs.writeFileSync(path.join(dir, 'nginx.conf'), `
    daemon off; pid ${dir}/pid; error_log stderr; worker_processes 1;
    events {}
    http {
      access_log off;
      client_body_temp_path ${dir}/temp/a; proxy_temp_path ${dir}/temp/b; fastcgi_temp_path ${dir}/temp/c;
      uwsgi_temp_path ${dir}/temp/d; scgi_temp_path ${dir}/temp/e;
      server { listen 127.0.0.1:${port}; location ${prefix} { proxy_pass ${upstream}; ${more} } }
    }`);
  const p = await program(process.env.TERN_NGINX ?? '/usr/sbin/nginx', ['-p', dir, '-c', path.join(dir, 'nginx.conf')]);
  const url = `http://127.0.0.1:${port}${prefix}`;
  await until('nginx to answer', async () => {
    assert.equal(p.child.exitCode, null, `nginx ended: ${p.log()}`);
    return fetch(url).then(() => true, () => false);
  });
  return { url, async end() { await p.end('SIGQUIT'); fs.rmSync(dir, { recursive: true }); } };
}

// ---- the stand-in ------------------------------------------------------------------------------------------------

const frame = (o) => `data: ${JSON.stringify(o)}\n\n`;

// Answers chat requests as `script(say, body)` wants it; the page's files, and every route it does not play, come from
// the tern behind it. `override` maps 'GET /v1/models' and the like to (req, res) => void. `sent` are the bodies.
export async function standIn(upstream, port = 0) {
  const sent = [];
  const self = { sent, override: {}, script: async (say) => { say.text('好。'); say.end(); }, open: 0, aborted: 0 };
  const chat = async (req, res, body) => {
    sent.push(body);
    self.open += 1;
    res.once('close', () => { self.open -= 1; self.aborted += res.writableFinished ? 0 : 1; });
    const base = { id: `chatcmpl-${sent.length}`, object: 'chat.completion.chunk', created: 0, model: body.model || 'stand-in' };
    let started = false;
    const send = (delta, finish = null) => {
      if (!started) {
        started = true;
        res.writeHead(200, { 'Content-Type': 'text/event-stream; charset=utf-8' });
        res.write(frame({ ...base, choices: [{ index: 0, delta: { role: 'assistant', content: '' }, finish_reason: null }] }));
      }
      return res.write(frame({ ...base, choices: [{ index: 0, delta, finish_reason: finish }] }));
    };
    const say = {
      res,
      gone: () => res.destroyed,
      async text(content) {
        if (!send({ content }) && !res.destroyed) {
          await new Promise((done) => { res.once('drain', done); res.once('close', done); });
        }
      },
      progress(progress) {
        if (!started) {
          res.writeHead(200, { 'Content-Type': 'text/event-stream; charset=utf-8' });
        }
        started = true;
        res.write(frame({ ...base, choices: [], progress }));
      },
      think: (reasoning) => send({ reasoning_content: reasoning, reasoning }),
      fail(status, error) {
        res.writeHead(status, { 'Content-Type': 'application/json' });
        res.end(JSON.stringify({ error }));
      },
      end(finish = 'stop', usage = { prompt_tokens: 12, completion_tokens: 34, total_tokens: 46 }) {
        send({ content: '' }, finish);
        res.write(frame({ ...base, choices: [], usage }));
        res.end('data: [DONE]\n\n');
      },
      die: () => res.destroy(),
    };
    await self.script(say, body);
  };
  const forward = (req, res, body) => {
    // A connection of its own: a kept one may be closed by the server in the moment it is used again.
    const how = { method: req.method, headers: { ...req.headers, connection: 'close' }, agent: false };
    const to = http.request(new URL(req.url, upstream), how, (r) => {
      const { connection, 'keep-alive': keep, ...headers } = r.headers;
      res.writeHead(r.statusCode, headers);
      r.pipe(res);
    });
    to.on('error', () => res.destroy());
    to.end(body);
  };
  const server = http.createServer(async (req, res) => {
    const parts = [];
    for await (const d of req) {
      parts.push(d);
    }
    const body = Buffer.concat(parts);
    const route = `${req.method} ${req.url.split('?')[0]}`;
    if (self.override[route]) {
      self.override[route](req, res, body);
    } else if (route === 'POST /v1/chat/completions') {
      await chat(req, res, JSON.parse(body));
    } else {
      forward(req, res, body);
    }
  });
  await new Promise((done) => { server.listen(port, '127.0.0.1', done); });
  self.port = server.address().port;
  self.url = `http://127.0.0.1:${self.port}/`;
  self.json = (value, status = 200) => (req, res) => {
    res.writeHead(status, { 'Content-Type': 'application/json' });
    res.end(JSON.stringify(value));
  };
  self.end = async () => {
    server.closeAllConnections();
    await new Promise((done) => { server.close(done); });
  };
  return self;
}

// ---- the browser -------------------------------------------------------------------------------------------------

let browser = null;

export async function enter() {
  browser = await chromium.launch({
    executablePath: process.env.TERN_CHROMIUM ?? '/usr/bin/chromium',
    args: ['--no-sandbox', '--disable-dev-shm-usage', '--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1'],
    timeout: PATIENCE * 2,
  });
  return browser;
}

export async function leave(...things) {
  await browser?.close();
  for (const thing of things) {
    await thing?.end();
  }
}

// A fresh profile with one page. mild: errors of the network are part of the test. The page is closed, and what was
// watched is judged, when the test ends.
export async function open(t, url, { zh = false, dark = false, phone = false, mild = false, ...more } = {}) {
  const context = await browser.newContext({
    locale: zh ? 'zh-CN' : 'en-US',
    colorScheme: dark ? 'dark' : 'light',
    viewport: phone ? { width: 360, height: 740 } : { width: 1200, height: 800 },
    hasTouch: phone,
    isMobile: phone,
    acceptDownloads: true,
    ...more,
  });
  context.setDefaultTimeout(PATIENCE);
  const faults = [];
  context.on('request', (r) => {
    const { protocol, hostname } = new URL(r.url());
    if (!['data:', 'blob:', 'about:'].includes(protocol) && hostname !== '127.0.0.1') {
      faults.push(`a request left the machine: ${r.url()}`);
    }
  });
  context.on('console', (m) => {
    if (m.type() === 'error' && !(mild && /Failed to load resource/.test(m.text()))) {
      faults.push(`console: ${m.text()}`);
    }
  });
  context.on('weberror', (e) => faults.push(`exception: ${e.error().stack}`));
  t.after(async () => {
    await context.close();
    assert.deepEqual(faults, []);
  });
  const page = await context.newPage();
  page.faults = faults;
  if (url) {
    await page.goto(url);
  }
  return page;
}

// No serious or critical fault, by axe-core. It is evaluated, not inserted: the page's policy lets no script in.
const axe = fs.readFileSync(path.join(root, 'tests/page/node_modules/axe-core/axe.min.js'), 'utf8');
export async function accessible(page, what) {
  await page.evaluate(axe);
  const { violations } = await page.evaluate('axe.run(document, { resultTypes: ["violations"] })');
  const bad = violations.filter((v) => ['serious', 'critical'].includes(v.impact));
  assert.deepEqual(bad.map((v) => `${v.id} (${v.impact}): ${v.help}: ${v.nodes.map((n) => `${n.html.slice(0, 160)} [${n.failureSummary}]`).join(' | ')}`), [], what);
}

export async function noSidewaysScroll(page) {
  const [content, window_] = await page.evaluate('[document.documentElement.scrollWidth, document.documentElement.clientWidth]');
  assert.ok(content <= window_, `the page is ${content} px wide in a window of ${window_}`);
}
