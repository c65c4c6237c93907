// SPDX-License-Identifier: Apache-2.0
// The chat page. State: state.js (conversations), run.js (an answer being written), server.js (what the server is and
// can), settings.js (of each model), ../shared/prefs.js (language, theme, key).
//
// Tests find things by these data-testid; they stay:
//   server-status key-dialog api-key key-save settings-dialog dialog-close
//   sidebar: open-sidebar close-sidebar new-chat thread-search thread-list thread-item thread-rename thread-rename-input
//     thread-delete export import import-file dashboard-link
//   head: model-name or model-select, theme-button, language-button, settings
//   messages: messages message-user message-assistant (data-finish: '' while it runs, then stop, length, stopped,
//     interrupted, error, abort, repetition) answer-text thinking thinking-text progress answer-model answer-stats
//     answer-ending answer-error retry regenerate continue copy copy-code edit edit-input edit-save edit-cancel
//     branch-prev branch-next branch-count jump suggestion
//   composer: composer send stop system-toggle thinking-toggle composer-settings context-meter
//   settings: system-on system-text system-reset sampling-NAME sampling-reset language theme delete-all
//   toast toast-action announcer
import { useSignal } from '@preact/signals';
import { render } from 'preact';
import { useEffect, useLayoutEffect, useRef } from 'preact/hooks';
import { html } from '../shared/html.js';
import { lang, savePref, theme } from '../shared/prefs.js';
import { Composer } from './composer.js';
import { KeyDialog, ModelSelect, SettingsDialog } from './dialogs.js';
import { Icon, IconButton } from './icons.js';
import { Answer, Question } from './message.js';
import { model, models, status, watchServer } from './server.js';
import { Sidebar } from './sidebar.js';
import { isPoet } from './settings.js';
import { current, openState, openThread, rev, runOf, said, sendMessage, toast, trouble } from './state.js';
import { path, titleOf } from './tree.js';
import { t } from './words.js';

const wide = () => matchMedia('(min-width: 56rem)').matches;

const poems = ['春晓', '秋夜', '江上', '塞下曲'];
const asks = {
  en: ['Explain what a KV cache is, in three sentences.', 'Write a C function that reverses a string in place.',
       'What speaks for and against working from home?'],
  'zh-CN': ['用三句话解释什么是 KV 缓存。', '写一个原地反转字符串的 C 函数。', '居家办公有哪些利弊？'],
};

function Empty() {
  const poet = isPoet(model.value);
  const items = poet ? poems.map(p => [`《${p}》`, `写一首七言绝句，题目是《${p}》。`]) : asks[lang.value].map(a => [a, a]);
  return html`<div class="empty"><h1>${t(poet ? 'helloPoet' : 'hello')}</h1>
    ${model.value && html`<ul class=${poet ? 'poems' : ''} aria-label=${t('suggestions')}>${items.map(([label, text]) => html`<li key=${text}>
      <button type="button" class="suggestion" data-testid="suggestion" title=${text} disabled=${status.value.state !== 'ready'}
        onClick=${() => sendMessage(text)}>${label}</button></li>`)}</ul>`}</div>`;
}

function Status() {
  const s = status.value, now = useSignal(Date.now());
  useEffect(() => {
    if (s.state !== 'loading') return undefined;
    const timer = setInterval(() => { now.value = Date.now(); }, 1000);
    return () => clearInterval(timer);
  }, [s.state]);
  // A look that takes no time is no state worth telling.
  const slow = useSignal(false);
  useEffect(() => {
    slow.value = false;
    const timer = setTimeout(() => { slow.value = true; }, 800);
    return () => clearTimeout(timer);
  }, [s.state]);
  if (s.state === 'ready' || (s.state === 'connecting' && !slow.value)) return null;
  const seconds = Math.floor((now.value - s.since) / 1000);
  const texts = { connecting: 'connecting', loading: 'loading', down: 'down', key: 'needsKey', stopping: 'stopping' };
  return html`<div class=${`notice ${s.state}`} role="status" data-testid="server-status" data-state=${s.state}>
    <span class="busy" aria-hidden="true"></span><span>${t(texts[s.state])}
    ${s.state === 'loading' && seconds > 2 && html`<span aria-hidden="true"> ${t('loadingFor', { s: seconds })}</span>`}</span></div>`;
}

function Trouble() {
  const texts = { memory: 'memoryOnly', full: 'storageFull', large: 'storageLarge' };
  return trouble.value && html`<div class="notice" role="status">${t(texts[trouble.value])}</div>`;
}

// Stays at the end while text comes, unless the reader scrolled away.
function Messages({ thread }) {
  const box = useRef(), stick = useRef(true), top = useRef(0), away = useSignal(false);
  rev.value;
  const run = runOf(thread), nodes = thread ? path(thread) : [];
  const toEnd = () => {
    stick.current = true;
    box.current.scrollTop = box.current.scrollHeight;
  };
  useLayoutEffect(() => { toEnd(); away.value = false; }, [thread]);
  useLayoutEffect(() => { if (run) toEnd(); }, [run]);
  useEffect(() => {
    const watch = new ResizeObserver(() => { if (stick.current) toEnd(); });
    watch.observe(box.current.firstElementChild);
    watch.observe(box.current);
    return () => watch.disconnect();
  }, []);
  const touched = useRef(0), touch = () => { touched.current = performance.now(); };
  const onScroll = () => {
    const b = box.current, gap = b.scrollHeight - b.scrollTop - b.clientHeight;
    // Text that comes, and blocks whose height becomes known, move the end, not the reader: only he can go up.
    if (b.scrollTop < top.current - 2 && performance.now() - touched.current < 700) stick.current = false;
    if (gap < 40) stick.current = true;
    top.current = b.scrollTop;
    away.value = gap > 200 && !stick.current;
  };
  return html`<div class="scroll" ref=${box} onScroll=${onScroll} tabindex="-1" onWheel=${touch}
      onTouchMove=${touch} onPointerDown=${touch} onPointerMove=${e => { if (e.buttons) touch(); }} onKeyDown=${touch}><div class="column">
      ${nodes.length ? html`<h1 class="visually-hidden">${titleOf(thread) || t('untitled')}</h1><section aria-label=${t('messages')} data-testid="messages">${nodes.map((n, i) => (n.role === 'user'
        ? html`<${Question} key=${n.id} thread=${thread} node=${n}/>`
        : html`<${Answer} key=${n.id} thread=${thread} node=${n} isLast=${i === nodes.length - 1}/>`))}</section>`
        : html`<${Empty}/>`}
    </div></div>
    ${away.value && html`<button type="button" class="jump" data-testid="jump" aria-label=${t('jump')} title=${t('jump')}
      onClick=${toEnd}><${Icon} name="down"/></button>`}`;
}

function Head({ open, toggle, openSettings }) {
  const names = { auto: 'themeAuto', light: 'themeLight', dark: 'themeDark' }, next = { auto: 'light', light: 'dark', dark: 'auto' };
  const icons = { auto: 'half', light: 'sun', dark: 'moon' }, other = lang.value === 'en' ? 'zh-CN' : 'en';
  return html`<header class="head">
    ${!open && html`<${IconButton} icon="menu" label=${t('openSidebar')} testid="open-sidebar" aria-expanded="false"
      aria-controls="sidebar" onClick=${toggle}/>`}
    ${models.value.length > 1 ? html`<${ModelSelect}/>`
      : html`<span class="model-name" data-testid="model-name">${model.value.split('/').filter(Boolean).pop() ?? ''}</span>`}
    <span class="grow"></span>
    <button type="button" class="icon-button" lang=${other} data-testid="language-button" aria-label=${other === 'en' ? 'EN: English' : '中文'}
      title=${other === 'en' ? 'English' : '中文'} onClick=${() => savePref('lang', other)}>${other === 'en' ? 'EN' : '中'}</button>
    <${IconButton} icon=${icons[theme.value]} label=${t('themeIs', { name: t(names[theme.value]) })} testid="theme-button"
      onClick=${() => savePref('theme', next[theme.value])}/>
    <${IconButton} icon="gear" label=${t('settings')} testid="settings" onClick=${openSettings}/>
  </header>`;
}

function App() {
  const sidebar = useSignal(wide()), settings = useSignal(false), opener = useRef();
  rev.value;
  const thread = current.value;
  useEffect(() => {
    const query = matchMedia('(min-width: 56rem)'), follow = () => { sidebar.value = query.matches; };
    query.addEventListener('change', follow);
    return () => query.removeEventListener('change', follow);
  }, []);
  useEffect(() => { document.title = thread ? `${titleOf(thread)} · tern` : 'tern'; });
  useEffect(() => {
    const onKey = e => {
      if (e.isComposing || e.keyCode === 229 || document.querySelector('dialog[open]')) return;
      const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement?.tagName);
      if (e.key === 'Escape') {
        if (sidebar.value && !wide()) closeSidebar(true);
        else runOf(current.value)?.stop();
      } else if (e.key === '/' && !typing && !e.ctrlKey && !e.metaKey) {
        e.preventDefault();
        document.getElementById('composer').focus();
      } else if ((e.ctrlKey || e.metaKey) && e.shiftKey && e.key.toLowerCase() === 'o') {
        e.preventDefault();
        openThread(null);
        document.getElementById('composer').focus();
      }
    };
    addEventListener('keydown', onKey);
    return () => removeEventListener('keydown', onKey);
  }, []);
  const closeSidebar = always => {
    if (wide() && !always) return;
    sidebar.value = false;
    setTimeout(() => document.querySelector('[data-testid="open-sidebar"]')?.focus());
  };
  const openSettings = () => {
    opener.current = document.activeElement;
    settings.value = true;
  };
  return html`<a class="skip" href="#composer" onClick=${e => {
      e.preventDefault();
      document.getElementById('composer').focus();
    }}>${t('skip')}</a>
    <div class=${`app${sidebar.value ? ' with-sidebar' : ''}`}>
      <${Sidebar} open=${sidebar.value} close=${closeSidebar}/>
      ${sidebar.value && html`<div class="shade" onClick=${() => closeSidebar(true)}></div>`}
      <main inert=${sidebar.value && !wide()}>
        <${Head} open=${sidebar.value} openSettings=${openSettings} toggle=${() => {
          sidebar.value = true;
          setTimeout(() => document.querySelector('[data-testid="new-chat"]')?.focus());
        }}/>
        <${Status}/><${Trouble}/>
        <${Messages} thread=${thread}/>
        <div class="foot"><${Composer} openSettings=${openSettings}/></div>
      </main>
    </div>
    <${SettingsDialog} open=${settings.value} close=${() => { settings.value = false; opener.current?.focus(); }}/>
    <${KeyDialog}/>
    ${toast.value && html`<div class="toast" role="status" data-testid="toast">${toast.value.text}
      ${toast.value.action && html`<button type="button" class="text-button" data-testid="toast-action" onClick=${() => {
        toast.value.run();
        toast.value = null;
      }}>${toast.value.action}</button>`}</div>`}
    <div class="visually-hidden" role="status" aria-live="polite" data-testid="announcer">${said.value}</div>`;
}

watchServer();
openState().finally(() => render(html`<${App}/>`, document.body));
