// SPDX-License-Identifier: Apache-2.0
// The conversations: search, open, rename, delete; export and import.
import { useSignal } from '@preact/signals';
import { useEffect, useRef } from 'preact/hooks';
import { html } from '../shared/html.js';
import { Icon, IconButton } from './icons.js';
import { current, deleteThread, exportFile, importFile, openThread, renameThread, rev, runOf, threads } from './state.js';
import { matches, titleOf } from './tree.js';
import { t } from './words.js';

function Rename({ thread, done }) {
  const input = useRef();
  useEffect(() => input.current.select(), []);
  const save = () => {
    if (!input.current) return; // the field left the page, and that took its focus
    if (input.current.value.trim()) renameThread(thread, input.current.value);
    done();
  };
  return html`<input ref=${input} class="rename" aria-label=${t('renameLabel')} data-testid="thread-rename-input"
    defaultValue=${titleOf(thread)} onBlur=${save} onKeyDown=${e => {
      if (e.isComposing || e.keyCode === 229) return;
      if (e.key === 'Enter') save();
      if (e.key === 'Escape') {
        e.stopPropagation();
        done();
      }
    }}/>`;
}

function Row({ thread, close }) {
  const renaming = useSignal(false), link = useRef();
  rev.value;
  const title = titleOf(thread) || t('untitled'), shown = current.value === thread;
  if (renaming.value) {
    return html`<li class="thread"><${Rename} thread=${thread} done=${() => {
      renaming.value = false;
      setTimeout(() => link.current?.focus());
    }}/></li>`;
  }
  return html`<li class=${`thread${shown ? ' shown' : ''}`} data-testid="thread-item">
    <a ref=${link} href=${`#${thread.id}`} aria-current=${shown ? 'page' : undefined} onClick=${e => {
      e.preventDefault();
      openThread(thread);
      close();
    }}>${runOf(thread) && html`<span class="busy" aria-hidden="true"></span>`}${title}</a>
    <span class="thread-tools">
      <${IconButton} icon="pen" label=${t('rename', { title })} testid="thread-rename" onClick=${() => { renaming.value = true; }}/>
      <${IconButton} icon="bin" label=${t('remove', { title })} testid="thread-delete" onClick=${() => deleteThread(thread)}/>
    </span></li>`;
}

export function Sidebar({ open, close }) {
  const words = useSignal(''), file = useRef();
  rev.value;
  const list = threads.value.filter(th => matches(th, words.value));
  return html`<nav class=${`sidebar${open ? ' open' : ''}`} aria-label=${t('threads')} inert=${!open} id="sidebar">
    <div class="side-head">
      <button type="button" class="wide-button" data-testid="new-chat" onClick=${() => {
        openThread(null);
        close();
        document.getElementById('composer')?.focus();
      }}><${Icon} name="plus"/>${t('newChat')}</button>
      <${IconButton} icon="close" label=${t('closeSidebar')} testid="close-sidebar" onClick=${() => close(true)}/>
    </div>
    <input type="search" class="search" data-testid="thread-search" placeholder=${t('search')} aria-label=${t('search')}
      value=${words.value} onInput=${e => { words.value = e.target.value; }}/>
    ${list.length ? html`<ul class="threads" data-testid="thread-list">
      ${list.map(th => html`<${Row} key=${th.id} thread=${th} close=${close}/>`)}</ul>`
      : html`<p class="quiet">${t(words.value ? 'noMatch' : 'noThreads')}</p>`}
    <div class="side-foot">
      <button type="button" class="text-button" data-testid="export" onClick=${exportFile} disabled=${!threads.value.length}>
        ${t('exportAll')}</button>
      <button type="button" class="text-button" data-testid="import" onClick=${() => file.current.click()}>${t('importAll')}</button>
      <input ref=${file} type="file" accept="application/json,.json" hidden data-testid="import-file" aria-label=${t('importAll')}
        onChange=${e => {
          if (e.target.files[0]) importFile(e.target.files[0]);
          e.target.value = '';
        }}/>
      <a class="text-button" href="dashboard" data-testid="dashboard-link"><${Icon} name="chart"/>${t('dashboard')}</a>
    </div>
  </nav>`;
}
