// SPDX-License-Identifier: Apache-2.0
// What the page knows about its server: whether it can answer, which models it has, their context and defaults. Asked
// again every second or two until it is ready, then now and then, so that an end is noticed.
import { effect, signal } from '@preact/signals';
import { request, requestJson } from '../shared/api.js';
import { apiKey } from '../shared/prefs.js';
import { readDefaults } from './settings.js';

export const status = signal({ state: 'connecting', since: Date.now() }); // loading, ready, down, key, stopping
export const models = signal([]);                                        // [{id, context}]
export const model = signal('');
export const info = signal({ defaults: {}, thinking: false });
export const version = signal('');

const CHOSEN = 'tern.model';
let timer = 0, asked = 0;

function set(state) {
  if (status.value.state !== state) status.value = { state, since: Date.now() };
}

function chosen() {
  try {
    return localStorage.getItem(CHOSEN);
  } catch {
    return null;
  }
}

export async function chooseModel(id) {
  model.value = id;
  try {
    localStorage.setItem(CHOSEN, id);
  } catch { /* this session only */ }
  try {
    const show = await requestJson('api/show', { body: { model: id } });
    if (model.value === id) {
      info.value = { defaults: readDefaults(show.parameters), thinking: show.capabilities?.includes('thinking') ?? false };
    }
  } catch { /* the neutral defaults are shown then */ }
}

async function look() {
  const mine = ++asked;
  let next = 1500;
  try {
    if (status.value.state === 'ready') {
      await request('health');
    } else {
      const list = (await requestJson('v1/models')).data.map(m => ({ id: m.id, context: m.max_model_len ?? 0 }));
      if (mine !== asked) return;
      models.value = list;
      const before = list.find(m => m.id === chosen()) ?? list[0];
      set('ready');
      if (before && (before.id !== model.value || !version.value)) chooseModel(before.id);
      requestJson('version').then(v => { version.value = v.version; }, () => {});
    }
    next = 15000;
  } catch (e) {
    if (mine !== asked) return;
    if (e.status === 401) set('key');
    else if (e.status === 503) set(/shutting down/.test(e.message) ? 'stopping' : 'loading');
    else set('down');
    if (e.status === 401) return; // the effect below looks again when there is a key
  }
  clearTimeout(timer);
  timer = setTimeout(look, next);
}

// Something failed: look at once instead of when the time comes.
export function lookAgain() {
  clearTimeout(timer);
  if (status.value.state === 'ready') set('connecting');
  look();
}

export function watchServer() {
  let first = true;
  effect(() => {
    apiKey.value;
    if (first || status.peek().state === 'key') look();
    first = false;
  });
  document.addEventListener('visibilitychange', () => { if (!document.hidden) look(); });
}
