// SPDX-License-Identifier: Apache-2.0
import assert from 'node:assert/strict';
import test from 'node:test';
import { applyPartials, exportAll, importAll, mergeThreads, openStore, sizeOf } from '../src/chat/store.js';
import { addNode, newThread } from '../src/chat/tree.js';

function talk(text = 'half', finish = null) {
  const thread = newThread();
  const q = addNode(thread, '', { text: 'question' });
  const a = addNode(thread, q.id, { role: 'assistant', text, reasoning: '', finish });
  return { thread, a };
}

test('what is exported comes back equal', () => {
  const all = [talk('x', 'stop').thread, talk('y', 'length').thread], settings = { m: { systemOn: false } };
  const back = importAll(exportAll(all, settings));
  assert.deepEqual(back, { threads: all, settings });
});

test('files of others and damaged files are told apart', () => {
  assert.throws(() => importAll('{'), /broken/);
  assert.throws(() => importAll('{"threads":[]}'), /notOurs/);
  assert.throws(() => importAll('null'), /notOurs/);
  const bad = JSON.parse(exportAll([talk().thread], {}));
  bad.threads[0].nodes[''].children = ['gone'];
  assert.throws(() => importAll(JSON.stringify(bad)), /broken/);
});

test('importing twice adds nothing; a changed thread comes as a copy', () => {
  const a = talk('a', 'stop').thread, file = exportAll([a], {});
  assert.equal(mergeThreads([a], importAll(file).threads, () => 'new').length, 0);
  assert.equal(mergeThreads([], importAll(file).threads, () => 'new').length, 1);
  const changed = importAll(file).threads;
  Object.values(changed[0].nodes)[1].text = 'edited elsewhere';
  assert.deepEqual(mergeThreads([a], changed, () => 'new').map(t => t.id), ['new']);
});

test('an answer that a reload cut gets what was saved of it and is named interrupted', () => {
  const { thread, a } = talk('');
  const whole = talk('done', 'stop');
  assert.deepEqual(applyPartials([thread, whole.thread], [{ id: a.id, text: 'half an', reasoning: 'hm' }]), [thread]);
  assert.equal(a.text, 'half an');
  assert.equal(a.reasoning, 'hm');
  assert.equal(a.finish, 'interrupted');
  assert.equal(whole.a.finish, 'stop');
});

test('without IndexedDB the page works in memory and says so', async () => {
  const store = await openStore({ open() { throw new Error('refused'); } });
  assert.equal(store.trouble, 'memory');
  await store.put(talk().thread);
  assert.deepEqual(await store.threads(), []);
});

test('a full disk is told as such', async () => {
  const fault = Object.assign(new Error('no room'), { name: 'QuotaExceededError' });
  const later = f => { const r = {}; queueMicrotask(() => f(r)); return r; };
  const db = { transaction: () => ({ objectStore: () => ({ put: () => later(r => { r.error = fault; r.onerror(); }) }) }) };
  const store = await openStore({ open: () => later(r => { r.result = db; r.onsuccess(); }) });
  let told = null;
  store.onTrouble = v => { told = v; };
  await store.put(talk().thread);
  assert.equal(told, 'full');
});

test('sizes grow with the text', () => {
  assert.ok(sizeOf(talk('x'.repeat(10000)).thread) > 10000);
});
