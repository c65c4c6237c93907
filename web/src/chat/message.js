// SPDX-License-Identifier: Apache-2.0
// One message with its tools. A question is a bubble; an answer is plain text with its model's name.
import { signal, useSignal } from '@preact/signals';
import { useEffect, useLayoutEffect, useRef } from 'preact/hooks';
import { html } from '../shared/html.js';
import { lang } from '../shared/prefs.js';
import { copyText } from './copy.js';
import { IconButton } from './icons.js';
import { editMessage, goOn, regenerate, retry, rev, runOf, runs, showBranch } from './state.js';
import { models, status } from './server.js';
import { formatMs, formatRate } from './stats.js';
import { siblings } from './tree.js';
import { t } from './words.js';

// Markdown's parts come with the first message; until then its text is shown as it is.
const view = signal(null);
let asked = false;
export function loadView() {
  if (asked) return;
  asked = true;
  import('./view.js').then(m => { view.value = m; }, () => { asked = false; });
}

const viewWords = Object.assign(key => t(key), { copy: copyText });

function Markdown({ text, run, testid }) {
  const el = useRef(), mine = useRef(), shown = useRef(null), make = view.value?.markdownView;
  if (run) run.frame.value; // follow the answer
  const now = typeof text === 'function' ? text() : text;
  useLayoutEffect(() => {
    if (!make) {
      loadView();
      el.current.textContent = now;
      el.current.classList.add('plain');
      return;
    }
    if (!mine.current) {
      el.current.replaceChildren();
      el.current.classList.remove('plain');
      mine.current = make(el.current, viewWords);
    }
    const state = `${!!run}:${now.length}`;
    if (shown.current?.text === now && shown.current.state === state) return;
    shown.current = { text: now, state };
    mine.current.update(now, !run);
  });
  return html`<div class="md" ref=${el} data-testid=${testid}></div>`;
}

function CopyButton({ text }) {
  const said = useSignal('copy');
  return html`<${IconButton} icon="copy" label=${t(said.value)} testid="copy" onClick=${async () => {
    said.value = (await copyText(text)) ? 'copied' : 'copyFailed';
    setTimeout(() => { said.value = 'copy'; }, 1500);
  }}/>${said.value !== 'copy' && html`<span class="done" role="status">${t(said.value)}</span>`}`;
}

function Branches({ thread, node }) {
  const { index, count } = siblings(thread, node);
  if (count < 2) return null;
  return html`<span class="branches" role="group" aria-label=${t('branch', { i: index + 1, n: count })}>
    <${IconButton} icon="left" label=${t('prev')} testid="branch-prev" disabled=${index === 0}
      onClick=${() => showBranch(thread, node, -1)}/>
    <span data-testid="branch-count">${index + 1} / ${count}</span>
    <${IconButton} icon="right" label=${t('next')} testid="branch-next" disabled=${index === count - 1}
      onClick=${() => showBranch(thread, node, 1)}/>
  </span>`;
}

function Edit({ thread, node, done }) {
  const area = useRef();
  useEffect(() => {
    area.current.focus();
    area.current.setSelectionRange(node.text.length, node.text.length);
  }, []);
  const send = () => {
    const text = area.current.value;
    if (!text.trim() || status.value.state !== 'ready') return;
    done();
    editMessage(thread, node, text);
  };
  return html`<div class="edit">
    <textarea ref=${area} aria-label=${t('editLabel')} data-testid="edit-input" defaultValue=${node.text}
      rows=${Math.min(12, node.text.split('\n').length + 1)} onKeyDown=${e => {
        if (e.isComposing || e.keyCode === 229) return;
        if (e.key === 'Escape') {
          e.stopPropagation();
          done();
        }
        if (e.key === 'Enter' && (e.ctrlKey || e.metaKey)) send();
      }}></textarea>
    <div class="row">
      <button type="button" class="button" data-testid="edit-cancel" onClick=${done}>${t('cancel')}</button>
      <button type="button" class="button primary" data-testid="edit-save" onClick=${send}
        disabled=${status.value.state !== 'ready'}>${t('editSend')}</button>
    </div></div>`;
}

export function Question({ thread, node }) {
  const editing = useSignal(false), self = useRef();
  rev.value;
  const done = () => {
    editing.value = false;
    setTimeout(() => self.current?.querySelector('[data-testid="edit"]')?.focus());
  };
  return html`<article ref=${self} class="question" aria-label=${t('you')} data-testid="message-user">
    ${editing.value ? html`<${Edit} thread=${thread} node=${node} done=${done}/>`
      : html`<div class="bubble">${node.text}</div>
        <div class="tools"><${Branches} thread=${thread} node=${node}/><${CopyButton} text=${node.text}/>
          <${IconButton} icon="pen" label=${t('edit')} testid="edit" disabled=${!!runOf(thread)}
            onClick=${() => { editing.value = true; }}/></div>`}
  </article>`;
}

// Where a request is before its first token.
function Progress({ run }) {
  run.frame.value;
  const p = run.progress;
  let text = t('waiting'), share = null;
  if (p?.queue_position > 0) text = p.queue_position > 1 ? t('queued', { n: p.queue_position - 1 }) : t('queuedNext');
  else if (p && p.prompt_tokens > 0) {
    text = t('prefill', { done: p.computed_tokens, all: p.prompt_tokens });
    share = p.computed_tokens / p.prompt_tokens;
  }
  return html`<div class="progress" data-testid="progress"><span class="busy" aria-hidden="true"></span>${text}
    ${share !== null && html`<progress max="1" value=${share} aria-label=${text}></progress>`}</div>`;
}

function Thinking({ node, run }) {
  if (run) run.frame.value;
  const now = run && !node.text;
  return html`<details class="thinking" data-testid="thinking">
    <summary>${now && html`<span class="busy" aria-hidden="true"></span>`}${t(now ? 'thinkingNow' : 'thinking')}</summary>
    <${Markdown} text=${() => node.reasoning} run=${now ? run : undefined} testid="thinking-text"/></details>`;
}

function Stats({ node, run }) {
  if (run) run.frame.value;
  const s = node.stats;
  if (!s?.completion || s.ttft == null) return null;
  const ttft = formatMs(s.ttft), n = s.completion.toLocaleString();
  return html`<span class="stats" data-testid="answer-stats">${s.rate ? t('stats', { n, rate: formatRate(s.rate), ttft })
    : t('statsShort', { n, ttft })}</span>`;
}

const endings = { length: 'endLength', stopped: 'endStopped', interrupted: 'endInterrupted', abort: 'endAbort',
                  repetition: 'endRepetition' };

function Body({ node, run }) {
  if (run) run.frame.value;
  return html`${node.reasoning && html`<${Thinking} node=${node} run=${run}/>`}
    ${run && !node.text && !node.reasoning ? html`<${Progress} run=${run}/>` : null}
    <${Markdown} text=${() => node.text} run=${run} testid="answer-text"/>`;
}

function faultText({ error, model: name }) {
  if (error.code === 'context_length_exceeded') {
    return t('tooLong', { n: models.value.find(m => m.id === name)?.context.toLocaleString(lang.value) ?? '' });
  }
  return error.message ? t('failed', { message: error.message }) : t('cutStream');
}

export function Answer({ thread, node, isLast }) {
  rev.value;
  const run = runs.get(node.id), busy = !!runOf(thread), ready = status.value.state === 'ready';
  const model = (node.model ?? '').split('/').filter(Boolean).pop() ?? '';
  const canGoOn = isLast && node.text && ['length', 'stopped', 'interrupted', 'abort', 'error'].includes(node.finish);
  return html`<article class="answer" aria-label=${t('answerOf', { model })} aria-busy=${!!run} data-testid="message-assistant"
      data-finish=${node.finish ?? ''}>
    <header class="byline"><span class="model" data-testid="answer-model" title=${node.model}>${model}</span>
      <${Stats} node=${node} run=${run}/></header>
    <${Body} node=${node} run=${run}/>
    ${node.error && html`<div class="fault" role="alert" data-testid="answer-error">
      ${faultText(node)}</div>`}
    ${!run && !node.error && endings[node.finish] && html`<p class="ending" data-testid="answer-ending">${t(endings[node.finish])}</p>`}
    ${!run && node.finish === 'stop' && !node.text && !node.reasoning && html`<p class="ending">${t('emptyAnswer')}</p>`}
    ${!run && html`<div class="tools"><${Branches} thread=${thread} node=${node}/>
      ${node.text && html`<${CopyButton} text=${node.text}/>`}
      ${node.error || (!node.text && !node.reasoning)
        ? html`<button type="button" class="text-button" data-testid="retry" disabled=${busy || !ready}
            onClick=${() => retry(thread, node)}>${t('retry')}</button>`
        : html`<${IconButton} icon="again" label=${t('regenerate')} testid="regenerate" disabled=${busy || !ready}
            onClick=${() => regenerate(thread, node)}/>`}
      ${canGoOn && html`<button type="button" class="text-button" data-testid="continue" disabled=${busy || !ready}
        onClick=${() => goOn(thread, node)}>${t('goOn')}</button>`}
    </div>`}
  </article>`;
}
