// SPDX-License-Identifier: Apache-2.0
// The one place to write. Enter sends, unless an input method is composing: some browsers say so by isComposing, others
// by key code 229, and Safari ends the composition before it reports the Enter that ended it. On touch screens Enter is
// a new line.
import { useSignal } from '@preact/signals';
import { useEffect, useLayoutEffect, useRef } from 'preact/hooks';
import { html } from '../shared/html.js';
import { IconButton } from './icons.js';
import { loadView } from './message.js';
import { info, model, models, status } from './server.js';
import { changeSettings, isPoet, modelSettings } from './settings.js';
import { current, rev, runOf, sendMessage } from './state.js';
import { path } from './tree.js';
import { t } from './words.js';

const DRAFTS = 'tern.drafts';
const touch = () => matchMedia('(hover: none) and (pointer: coarse)').matches;

function drafts(change) {
  try {
    const all = JSON.parse(sessionStorage.getItem(DRAFTS)) ?? {};
    if (!change) return all;
    sessionStorage.setItem(DRAFTS, JSON.stringify({ ...all, ...change }));
  } catch { /* drafts are lost by a reload then */ }
  return {};
}

// Tokens that the shown conversation takes, as the server counted them for its last answer.
function Meter({ thread }) {
  rev.value;
  const run = runOf(thread);
  if (run) run.frame.value;
  const all = models.value.find(m => m.id === model.value)?.context;
  const last = thread && path(thread).filter(n => n.stats?.prompt).at(-1);
  if (!all) return null;
  const used = last ? last.stats.prompt + last.stats.completion : 0, share = Math.min(1, used / all);
  const text = t('context', { used: used.toLocaleString(), all: all.toLocaleString() });
  return html`<span class="meter" data-testid="context-meter" title=${text}><span class="meter-bar" role="meter" aria-label=${text}
    aria-valuemin="0" aria-valuemax=${all} aria-valuenow=${used}><span class=${share > 0.9 ? 'full' : ''}
    style=${{ width: `${share * 100}%` }}></span></span><span aria-hidden="true">${used.toLocaleString()} / ${all.toLocaleString()}</span></span>`;
}

export function Composer({ openSettings }) {
  const area = useRef(), text = useSignal(''), composing = useRef(false), ended = useRef(0);
  rev.value;
  const thread = current.value, key = thread?.id ?? '', run = runOf(thread), name = model.value;
  const settings = modelSettings(name), ready = status.value.state === 'ready';
  useEffect(() => {
    text.value = drafts()[key] ?? '';
    if (!touch()) area.current.focus();
  }, [key]);
  useLayoutEffect(() => {
    const a = area.current;
    a.style.height = 'auto';
    a.style.height = `${Math.min(a.scrollHeight, innerHeight * 0.4)}px`;
  }, [text.value]);
  const set = v => {
    loadView();
    text.value = v;
    drafts({ [key]: v });
  };
  const send = () => {
    const v = text.value;
    if (!v.trim() || run || !ready) return;
    set('');
    sendMessage(v.trimEnd());
    area.current.focus();
  };
  const onKeyDown = e => {
    if (e.key === 'Escape' && run) run.stop();
    if (e.key !== 'Enter' || e.shiftKey || e.altKey || touch()) return;
    if (e.isComposing || e.keyCode === 229 || composing.current || performance.now() - ended.current < 30) return;
    e.preventDefault();
    send();
  };
  const think = { auto: 'on', on: 'off', off: 'auto' };
  return html`<form class="composer" onSubmit=${e => { e.preventDefault(); send(); }}>
    <textarea id="composer" ref=${area} rows="1" data-testid="composer" aria-label=${t('message')} aria-describedby="composer-hint"
      placeholder=${t(isPoet(name) ? 'placeholderPoet' : 'placeholder')} value=${text.value} enterkeyhint="send"
      onInput=${e => set(e.target.value)} onKeyDown=${onKeyDown}
      onCompositionStart=${() => { composing.current = true; }}
      onCompositionEnd=${() => { composing.current = false; ended.current = performance.now(); }}></textarea>
    <div class="composer-row"><span class="chips">
      ${name && html`<button type="button" class="chip" aria-pressed=${settings.systemOn} data-testid="system-toggle"
        onClick=${() => changeSettings(name, { systemOn: !settings.systemOn })}>${t(settings.systemOn ? 'systemOn' : 'systemOff')}</button>`}
      ${info.value.thinking && html`<button type="button" class="chip" data-testid="thinking-toggle"
        onClick=${() => changeSettings(name, { thinking: think[settings.thinking] })}>
        ${t('thinkSwitch', { state: t(settings.thinking === 'auto' ? 'thinkAuto' : settings.thinking) })}</button>`}
      <${IconButton} icon="sliders" label=${t('promptAndSampling')} testid="composer-settings" onClick=${openSettings}/>
      </span><${Meter} thread=${thread}/>
      ${run ? html`<button type="button" class="send" aria-label=${t('stop')} title=${t('stop')} data-testid="stop"
          onClick=${() => { run.stop(); area.current.focus(); }}><${StopIcon}/></button>`
        : html`<button type="submit" class="send" aria-label=${t('send')} title=${t('send')} data-testid="send"
          disabled=${!ready || !text.value.trim()}><${SendIcon}/></button>`}
    </div>
    <p id="composer-hint" class="visually-hidden">${t('hint')}</p>
  </form>`;
}

const StopIcon = () => html`<svg viewBox="0 0 20 20" width="18" height="18" aria-hidden="true"><rect x="5" y="5" width="10"
  height="10" rx="1.5" fill="currentColor"/></svg>`;
const SendIcon = () => html`<svg viewBox="0 0 20 20" width="18" height="18" aria-hidden="true"><path d="M10 16V4M5 9l5-5 5 5"
  fill="none" stroke="currentColor" stroke-width="2" stroke-linecap="round" stroke-linejoin="round"/></svg>`;
