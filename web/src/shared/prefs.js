// SPDX-License-Identifier: Apache-2.0
// Settings that both pages share: language, theme, API key. One object in localStorage ('tern.prefs'); another tab's
// change arrives by the storage event. Private windows may refuse storage: then the settings last as long as the page.
import { effect, signal } from '@preact/signals';

const KEY = 'tern.prefs';
const languages = ['en', 'zh-CN'];

function read() {
  try {
    const p = JSON.parse(localStorage.getItem(KEY));
    return p && typeof p === 'object' ? p : {};
  } catch {
    return {};
  }
}

const first = read();
const ownLanguage = /^zh/i.test(globalThis.navigator?.language ?? '') ? 'zh-CN' : 'en';
export const lang = signal(languages.includes(first.lang) ? first.lang : ownLanguage);
export const theme = signal(['light', 'dark'].includes(first.theme) ? first.theme : 'auto'); // auto: the system's
export const apiKey = signal(typeof first.apiKey === 'string' ? first.apiKey : '');

export function savePref(name, value) {
  ({ lang, theme, apiKey })[name].value = value;
  try {
    localStorage.setItem(KEY, JSON.stringify({ ...read(), [name]: value }));
  } catch { /* kept in memory */ }
}

if (globalThis.document) {
  effect(() => { document.documentElement.lang = lang.value; });
  effect(() => {
    if (theme.value === 'auto') delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme.value;
  });
  addEventListener('storage', e => {
    if (e.key !== KEY) return;
    const p = read();
    if (languages.includes(p.lang)) lang.value = p.lang;
    theme.value = p.theme ?? 'auto';
    apiKey.value = p.apiKey ?? '';
  });
}
