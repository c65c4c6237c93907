// SPDX-License-Identifier: Apache-2.0
// The conversations in memory, and everything that changes them. Threads are plain objects (tree.js) that are changed
// in place; `rev` counts changes, so that components that read it follow.
import { signal } from '@preact/signals';
import { requestBody, modelSettings, replaceSettings, stored } from './settings.js';
import { runAnswer } from './run.js';
import * as server from './server.js';
import { IMPORT_LIMIT_BYTES, SIZE_LIMIT_CHARS, applyPartials, exportAll, importAll, mergeThreads, openStore, sizeOf }
  from './store.js';
import { addNode, ancestors, newId, newThread, pickSibling, removeNode, titleOf, toMessages } from './tree.js';
import { t } from './words.js';

export const rev = signal(0);
export const threads = signal([]);      // newest first
export const current = signal(null);    // a thread, or null: an empty page
export const trouble = signal(null);    // 'memory', 'full', 'large'
export const toast = signal(null);      // {text, action, run}
export const said = signal('');         // for screen readers
export const runs = new Map();          // node id -> answer being written (run.js)

let store, channel, toastTimer = 0;

const changed = () => { rev.value++; };
const sort = () => { threads.value = [...threads.value].sort((a, b) => b.updated - a.updated); };

function save(thread) {
  changed();
  store.put(thread).then(() => channel?.postMessage({ id: thread.id }));
}

export function say(text, action, run) {
  clearTimeout(toastTimer);
  toast.value = { text, action, run };
  toastTimer = setTimeout(() => { toast.value = null; }, action ? 8000 : 4000);
}

export async function openState() {
  store = await openStore();
  store.onTrouble = v => { trouble.value = v; };
  trouble.value = store.trouble;
  const [all, partials] = await Promise.all([store.threads(), store.partials()]);
  // An answer that another tab is writing is that tab's business.
  let held = new Set();
  try {
    held = new Set((await navigator.locks.query()).held.map(l => l.name));
  } catch { /* no locks without TLS: a second tab then sees such answers as interrupted */ }
  const mine = all.filter(th => !Object.values(th.nodes).some(n => held.has(`tern-${n.id}`)));
  for (const th of applyPartials(mine, partials)) store.put(th);
  for (const p of partials) if (!held.has(`tern-${p.id}`)) store.removePartial(p.id);
  threads.value = all;
  sort();
  const size = all.reduce((n, th) => n + sizeOf(th), 0);
  if (!trouble.value && size > SIZE_LIMIT_CHARS) trouble.value = 'large';
  openFromAddress();
  addEventListener('hashchange', openFromAddress);
  try {
    channel = new BroadcastChannel('tern');
    channel.onmessage = async e => {
      if (Object.values(threads.value.find(th => th.id === e.data.id)?.nodes ?? {}).some(n => runs.has(n.id))) return;
      const fresh = await store.thread(e.data.id);
      threads.value = threads.value.filter(th => th.id !== e.data.id).concat(fresh ?? []);
      if (current.value?.id === e.data.id) current.value = fresh ?? null;
      sort();
      changed();
    };
  } catch { /* tabs then don't hear of each other */ }
}

function openFromAddress() {
  const id = decodeURIComponent(location.hash.slice(1));
  current.value = threads.value.find(th => th.id === id) ?? null;
}

export function openThread(thread) {
  current.value = thread;
  history.pushState(null, '', thread ? `#${encodeURIComponent(thread.id)}` : location.pathname + location.search);
}

export function renameThread(thread, title) {
  thread.title = title.trim().slice(0, 200);
  save(thread);
}

export function deleteThread(thread) {
  for (const n of Object.values(thread.nodes)) runs.get(n.id)?.stop();
  threads.value = threads.value.filter(th => th !== thread);
  if (current.value === thread) openThread(null);
  store.remove(thread.id).then(() => channel?.postMessage({ id: thread.id }));
  changed();
  say(t('removed', { title: titleOf(thread) || t('untitled') }), t('undo'), () => {
    threads.value = [...threads.value, thread];
    sort();
    save(thread);
  });
}

export async function deleteAll() {
  for (const r of runs.values()) r.stop();
  for (const th of threads.value) await store.remove(th.id);
  threads.value = [];
  trouble.value = trouble.value === 'memory' ? 'memory' : null;
  openThread(null);
  changed();
}

export function exportFile() {
  const url = URL.createObjectURL(new Blob([exportAll(threads.value, stored.value)], { type: 'application/json' }));
  const a = document.createElement('a');
  a.href = url;
  a.download = `tern-chats-${new Date().toISOString().slice(0, 10)}.json`;
  a.click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

export async function importFile(file) {
  if (file.size > IMPORT_LIMIT_BYTES) return say(t('importTooBig'));
  try {
    const { threads: incoming, settings } = importAll(await file.text());
    const added = mergeThreads(threads.value, incoming, newId);
    for (const th of added) await store.put(th);
    replaceSettings({ ...settings, ...stored.value });
    threads.value = [...threads.value, ...added];
    sort();
    changed();
    return say(t('imported', { n: added.length }));
  } catch (e) {
    return say(t(e.message === 'notOurs' ? 'importNotOurs' : 'importBroken'));
  }
}

// ---- answers ----

function start(thread, node, goOn) {
  const name = server.model.value, settings = modelSettings(name);
  const before = ancestors(thread, goOn ? node.id : node.parent);
  const system = settings.systemOn ? settings.system.trim() : '';
  node.model = name;
  node.finish = null;
  node.error = null;
  const body = requestBody(name, toMessages(before, system), settings, { goOn, canThink: server.info.value.thinking });
  const run = runAnswer(node, body, {
    save: () => store.putPartial({ id: node.id, text: node.text, reasoning: node.reasoning ?? '' }),
    end: () => {
      runs.delete(node.id);
      if (!threads.value.includes(thread)) { // deleted meanwhile
        store.removePartial(node.id);
        return;
      }
      thread.updated = Date.now();
      sort();
      store.put(thread).then(() => {
        store.removePartial(node.id);
        channel?.postMessage({ id: thread.id });
      });
      said.value = t(node.error ? 'saidFail' : node.finish === 'stopped' ? 'saidStop' : 'saidEnd');
      if (node.error && [0, 401, 503].includes(node.error.status)) server.lookAgain();
      changed();
    },
  });
  runs.set(node.id, run);
  said.value = t('saidStart');
  save(thread);
  sort();
}

const answerTo = (thread, parentId) => addNode(thread, parentId, { role: 'assistant', reasoning: '', finish: null });

export function sendMessage(text) {
  let thread = current.value;
  if (!thread) {
    thread = newThread();
    threads.value = [thread, ...threads.value];
  }
  let at = thread.nodes[''];
  while (at.children.length) at = thread.nodes[at.children[at.pick]];
  const question = addNode(thread, at.id, { text });
  start(thread, answerTo(thread, question.id), false);
  if (current.value !== thread) openThread(thread);
}

export function editMessage(thread, node, text) {
  const question = addNode(thread, node.parent, { text });
  start(thread, answerTo(thread, question.id), false);
}

export function regenerate(thread, node) {
  start(thread, answerTo(thread, node.parent), false);
}

// After a fault the same place is used again; an answer of which nothing came is no version to keep.
export function retry(thread, node) {
  const parent = node.parent;
  if (!node.text && !node.reasoning) removeNode(thread, node.id);
  start(thread, answerTo(thread, parent), false);
}

export function goOn(thread, node) {
  start(thread, node, true);
}

export function showBranch(thread, node, step) {
  pickSibling(thread, node, step);
  save(thread);
}

export function runOf(thread) {
  return thread ? Object.values(thread.nodes).map(n => runs.get(n.id)).find(Boolean) : undefined;
}
