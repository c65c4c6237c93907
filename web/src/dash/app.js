// SPDX-License-Identifier: Apache-2.0
// The dashboard: what /metrics says, as it moves. feed.js asks, series.js reckons, chart.js draws.
import { render } from 'preact';
import { signal, effect } from '@preact/signals';
import { html } from '../shared/html.js';
import { apiKey, lang, savePref, theme } from '../shared/prefs.js';
import { Chart } from './chart.js';
import * as feed from './feed.js';
import { bytes, say, share, whole } from './say.js';
import { t } from './words.js';

const RANGES = [2, 10, 30];
const minutes = signal(RANGES[0]);

const CHARTS = [
  { id: 'requests', kind: 'count', lines: ['running', 'waiting'] },
  { id: 'generation', kind: 'rate', lines: ['generated'], note: 'generationNote' },
  { id: 'prompt', kind: 'rate', lines: ['computed', 'cached'] },
  { id: 'kv', kind: 'share', lines: ['kv'], note: 'kvNote' },
  { id: 'hits', kind: 'share', lines: ['hits'], note: 'hitsNote' },
  { id: 'step', kind: 'time', lines: ['stepMean', 'stepP95'] },
  { id: 'token', kind: 'time', lines: ['tokenMean', 'tokenP95'] },
  { id: 'ttft', kind: 'time', lines: ['ttftMean', 'ttftP95'] },
];

function lineName(chart, key) {
  if (chart.lines.length === 1) {
    return t(chart.id);
  }
  return t(key.endsWith('Mean') ? 'mean' : key.endsWith('P95') ? 'p95' : key);
}

function State() {
  const word = feed.paused.value ? 'paused' : feed.state.value;
  return html`<p class=${`state ${word}`} role="status"><span class="dot" aria-hidden="true"></span>${t(word)}</p>`;
}

function KeyForm() {
  const submit = (event) => {
    event.preventDefault();
    savePref('apiKey', new FormData(event.currentTarget).get('key').trim());
    feed.wake();
  };
  return html`
    <form onSubmit=${submit}>
      <label for="key">${t('key')}</label>
      <input id="key" name="key" type="password" autocomplete="off" spellcheck=${false} defaultValue=${apiKey.value} />
      <button type="submit">${t('save')}</button>
    </form>`;
}

function Notice() {
  const s = feed.state.value;
  if (feed.paused.value || s === 'live' || s === 'connecting') {
    return null;
  }
  return html`
    <div class="notice" role="status">
      <p>${t(`${s}Long`, { status: feed.status.value })}</p>
      ${s === 'refused' && html`<${KeyForm} />`}
    </div>`;
}

function Choice({ name, options, value, choose }) {
  return html`
    <label class="choice"><span class="visually-hidden">${name}</span>
      <select value=${value} onChange=${(e) => choose(e.currentTarget.value)}>
        ${options.map(([v, label]) => html`<option value=${v} selected=${v === value}>${label}</option>`)}
      </select>
    </label>`;
}

function Head() {
  const model = feed.reading.value?.model;
  return html`
    <header class="top">
      <div class="who">
        <h1>${t('title')}</h1>
        <p class="model" title=${model}>${model}</p>
        <${State} />
      </div>
      <a class="chat" href="./">${t('chat')}</a>
      <nav aria-label=${t('controls')}>
        <button type="button" aria-pressed=${feed.paused.value} onClick=${() => { feed.paused.value = !feed.paused.value; feed.wake(); }}>
          ${t(feed.paused.value ? 'resume' : 'pause')}
        </button>
        <${Choice} name=${t('range')} value=${minutes.value} choose=${(v) => { minutes.value = Number(v); }}
          options=${RANGES.map((n) => [n, t('minutes', { n })])} />
        <${Choice} name=${t('theme')} value=${theme.value} choose=${(v) => savePref('theme', v)}
          options=${['auto', 'light', 'dark'].map((v) => [v, t(v)])} />
        <${Choice} name=${t('language')} value=${lang.value} choose=${(v) => savePref('lang', v)}
          options=${[['en', 'English'], ['zh-CN', '中文']]} />
      </nav>
    </header>`;
}

function uptime(seconds) {
  const s = Math.max(0, Math.floor(seconds));
  const part = { d: Math.floor(s / 86400), h: Math.floor(s / 3600) % 24, m: Math.floor(s / 60) % 60, s: s % 60 };
  return t(part.d ? 'days' : part.h ? 'hours' : 'short', part);
}

function Rows({ title, rows, wide }) {
  return html`
    <section class=${`card totals ${wide ? 'wide' : ''}`} aria-label=${title}>
      <h2>${title}</h2>
      <dl>${rows.map(([key, value, minor]) => html`
        <div class=${minor ? 'minor' : ''}><dt>${t(key)}</dt><dd data-value=${key}>${value}</dd></div>`)}</dl>
    </section>`;
}

function Totals() {
  const r = feed.reading.value;
  if (!r) {
    return null;
  }
  const all = r.finished.reduce((n, [, count]) => n + count, 0);
  const reasons = r.finished.filter(([, count]) => count > 0);
  return html`
    <${Rows} title=${t('memory')} rows=${[
      ['weights', bytes(r.weights)],
      ['kvStore', bytes(r.kvBytes)],
      ['kvTouched', bytes(r.kvResident), true],
      ['process', bytes(r.memory)],
      ['admissible', r.admissible === null ? '–' : t('tokens', { n: whole(r.admissible) })],
    ]} />
    <${Rows} wide title=${t('totals')} rows=${[
      ['finished', whole(all)],
      ...reasons.map(([reason, count]) => [reason, whole(count), true]),
      ['promptTokens', whole(r.prompt)],
      ['promptCached', whole(r.cached), true],
      ['generatedTokens', whole(r.generated)],
      ['hitShare', share(r.queries > 0 ? r.hits / r.queries : null)],
      ['preemptions', whole(r.preemptions)],
      ['steps', whole(r.steps)],
      ['uptime', r.started === null ? '–' : uptime(r.at - r.started)],
    ]} />`;
}

function App() {
  const points = feed.points.value;
  const now = points.length ? points[points.length - 1].at : 0;
  return html`
    <a class="skip" href="#charts">${t('skip')}</a>
    <${Head} />
    <main id="charts" tabindex="-1">
      <${Notice} />
      <h2 class="visually-hidden">${t('charts')}</h2>
      <div class=${`grid ${feed.state.value}`}>
        ${CHARTS.map((c) => html`<${Chart} key=${c.id} id=${c.id} title=${t(c.id)} note=${c.note && t(c.note)} kind=${c.kind}
          lines=${c.lines.map((key) => ({ key, name: lineName(c, key) }))} points=${points} now=${now}
          span=${minutes.value * 60} say=${say(c.kind)} />`)}
        <${Totals} />
      </div>
    </main>`;
}

effect(() => {
  document.title = `${t('title')} · tern`;
});
render(html`<${App} />`, document.body);
feed.start();
