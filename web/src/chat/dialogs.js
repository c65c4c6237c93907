// SPDX-License-Identifier: Apache-2.0
// Settings and the key. Native dialogs: they hold the focus, Escape closes them.
import { useSignal } from '@preact/signals';
import { useEffect, useRef } from 'preact/hooks';
import { html } from '../shared/html.js';
import { apiKey, savePref } from '../shared/prefs.js';
import { IconButton } from './icons.js';
import { chooseModel, lookAgain, model, models, status } from './server.js';
import { t } from './words.js';

function Dialog({ open, close, title, testid, children }) {
  const el = useRef();
  useEffect(() => {
    if (open && !el.current.open) el.current.showModal();
    if (!open && el.current.open) el.current.close();
  }, [open]);
  return html`<dialog ref=${el} data-testid=${testid} aria-label=${title} onClose=${close}
    onClick=${e => { if (e.target === el.current) el.current.close(); }}>
    ${open && html`<div class="dialog"><header><h2>${title}</h2>
      <${IconButton} icon="close" label=${t('close')} testid="dialog-close" onClick=${() => el.current.close()}/></header>
      ${children}</div>`}</dialog>`;
}

export function KeyField({ done }) {
  const input = useRef();
  return html`<form class="row" onSubmit=${e => {
      e.preventDefault();
      savePref('apiKey', input.current.value.trim());
      lookAgain();
      done?.();
    }}>
    <input ref=${input} type="password" autocomplete="off" spellcheck="false" aria-label=${t('apiKey')} data-testid="api-key"
      defaultValue=${apiKey.value}/>
    <button type="submit" class="button" data-testid="key-save">${t('save')}</button></form>`;
}

export function ModelSelect() {
  return html`<select class="model-select" data-testid="model-select" aria-label=${t('model')} value=${model.value}
    onChange=${e => chooseModel(e.target.value)}>
    ${models.value.map(m => html`<option key=${m.id} value=${m.id}>${m.id.split('/').filter(Boolean).pop()}</option>`)}</select>`;
}

export function SettingsDialog({ open, close }) {
  const content = useSignal(null);
  useEffect(() => {
    if (open && !content.value) import('./options.js').then(m => { content.value = { Options: m.default }; }, close);
  }, [open]);
  return html`<${Dialog} open=${open && !!content.value} close=${close} title=${t('settings')} testid="settings-dialog">
    <${content.value?.Options}/></${Dialog}>`;
}

// Comes up by itself when the server refuses the page for want of a key.
export function KeyDialog() {
  const dismissed = useSignal(false), need = status.value.state === 'key';
  useEffect(() => { if (!need) dismissed.value = false; }, [need]);
  return html`<${Dialog} open=${need && !dismissed.value} close=${() => { dismissed.value = true; }} title=${t('needsKey')}
    testid="key-dialog">${apiKey.value && html`<p class="fault" role="alert">${t('keyWrong')}</p>`}<p class="quiet">${t('keyHelp')}</p><${KeyField}/></${Dialog}>`;
}
