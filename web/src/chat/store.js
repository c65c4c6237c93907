// SPDX-License-Identifier: Apache-2.0
// Where conversations are kept: IndexedDB 'tern', one record a thread, and one record for each answer that is being
// written ('partials': small, saved often, so that a reload loses less than a second of it). When the browser refuses
// IndexedDB or its space, everything stays in memory and `trouble` says so.
import { isThread } from './tree.js';

export const SIZE_LIMIT_CHARS = 50e6;   // above it the page asks to export and to delete
export const IMPORT_LIMIT_BYTES = 100e6;

const wait = request => new Promise((done, fail) => {
  request.onsuccess = () => done(request.result);
  request.onerror = () => fail(request.error);
});

export async function openStore(idb = globalThis.indexedDB) {
  const store = { trouble: null, onTrouble: () => {} };
  let db = null;
  try {
    const r = idb.open('tern', 1);
    r.onupgradeneeded = () => {
      r.result.createObjectStore('threads', { keyPath: 'id' });
      r.result.createObjectStore('partials', { keyPath: 'id' });
    };
    db = await wait(r);
    db.onversionchange = () => db.close();
  } catch {
    store.trouble = 'memory';
  }
  const run = async (name, mode, f) => {
    if (!db) return undefined;
    try {
      return await wait(f(db.transaction(name, mode).objectStore(name)));
    } catch (e) {
      store.trouble = e?.name === 'QuotaExceededError' ? 'full' : 'memory';
      store.onTrouble(store.trouble);
      return undefined;
    }
  };
  return Object.assign(store, {
    threads: async () => ((await run('threads', 'readonly', s => s.getAll())) ?? []).filter(isThread),
    thread: id => run('threads', 'readonly', s => s.get(id)),
    partials: async () => (await run('partials', 'readonly', s => s.getAll())) ?? [],
    put: thread => run('threads', 'readwrite', s => s.put(thread)),
    remove: id => run('threads', 'readwrite', s => s.delete(id)),
    putPartial: p => run('partials', 'readwrite', s => s.put(p)),
    removePartial: id => run('partials', 'readwrite', s => s.delete(id)),
  });
}

// Answers that were being written when the page went away get what was saved of them.
export function applyPartials(threads, partials) {
  const touched = new Set();
  for (const t of threads) {
    for (const n of Object.values(t.nodes)) {
      if (n.role !== 'assistant' || n.finish !== null) continue;
      const p = partials.find(q => q.id === n.id);
      if (p && p.text.length >= n.text.length) Object.assign(n, { text: p.text, reasoning: p.reasoning || n.reasoning });
      n.finish = 'interrupted';
      touched.add(t);
    }
  }
  return [...touched];
}

export function sizeOf(thread) {
  return Object.values(thread.nodes).reduce((n, m) => n + m.text.length + (m.reasoning?.length ?? 0) + 200, 0);
}

export function exportAll(threads, settings, now = new Date()) {
  return JSON.stringify({ format: 'tern-chats', version: 1, exported: now.toISOString(), settings, threads });
}

// Text of a file -> {threads, settings}; throws a word for the message ('notOurs', 'broken').
export function importAll(text) {
  let doc;
  try {
    doc = JSON.parse(text);
  } catch {
    throw new Error('broken');
  }
  if (doc?.format !== 'tern-chats' || doc.version !== 1 || !Array.isArray(doc.threads)) throw new Error('notOurs');
  if (!doc.threads.every(isThread)) throw new Error('broken');
  for (const t of doc.threads) {
    for (const n of Object.values(t.nodes)) if (n.role === 'assistant') n.finish ??= 'interrupted';
    t.updated = Number.isFinite(t.updated) ? t.updated : 0;
    t.title = typeof t.title === 'string' ? t.title : '';
  }
  return { threads: doc.threads, settings: doc.settings && typeof doc.settings === 'object' ? doc.settings : {} };
}

// What an import adds to what is there: same id and same content once, same id and other content as a copy.
export function mergeThreads(have, incoming, newId) {
  const byId = new Map(have.map(t => [t.id, t]));
  const added = [];
  for (const t of incoming) {
    const mine = byId.get(t.id);
    if (mine && JSON.stringify(mine.nodes) === JSON.stringify(t.nodes)) continue;
    const copy = mine ? { ...t, id: newId() } : t;
    byId.set(copy.id, copy);
    added.push(copy);
  }
  return added;
}
