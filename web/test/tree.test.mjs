// SPDX-License-Identifier: Apache-2.0
import assert from 'node:assert/strict';
import test from 'node:test';
import { addNode, ancestors, isThread, leaf, matches, newId, newThread, path, pickSibling, removeNode, siblings, titleOf,
         toMessages } from '../src/chat/tree.js';

function talk() {
  const thread = newThread();
  const q = addNode(thread, '', { text: 'question' });
  const a = addNode(thread, q.id, { role: 'assistant', text: 'answer', finish: 'stop' });
  return { thread, q, a };
}
const texts = thread => path(thread).map(n => n.text);

test('another answer is a sibling and is shown; the first can be shown again', () => {
  const { thread, q, a } = talk();
  const b = addNode(thread, q.id, { role: 'assistant', text: 'other', finish: 'stop' });
  assert.deepEqual(texts(thread), ['question', 'other']);
  assert.deepEqual(siblings(thread, b), { index: 1, count: 2 });
  pickSibling(thread, b, -1);
  assert.deepEqual(texts(thread), ['question', 'answer']);
  pickSibling(thread, a, -1);
  assert.deepEqual(texts(thread), ['question', 'answer'], 'there is none before the first');
});

test('an edited question opens a branch and keeps what followed the old one', () => {
  const { thread, q } = talk();
  const edited = addNode(thread, q.parent, { text: 'better question' });
  addNode(thread, edited.id, { role: 'assistant', text: 'better answer', finish: 'stop' });
  assert.deepEqual(texts(thread), ['better question', 'better answer']);
  pickSibling(thread, edited, -1);
  assert.deepEqual(texts(thread), ['question', 'answer']);
});

test('a removed node takes its descendants along and the path ends before it', () => {
  const { thread, q, a } = talk();
  addNode(thread, a.id, { text: 'more' });
  removeNode(thread, a.id);
  assert.deepEqual(texts(thread), ['question']);
  assert.equal(Object.keys(thread.nodes).length, 2);
  assert.equal(leaf(thread), q);
  assert.ok(isThread(thread));
});

test('messages have the system prompt first and leave out empty answers', () => {
  const { thread, a } = talk();
  const next = addNode(thread, a.id, { text: 'next' });
  addNode(thread, next.id, { role: 'assistant', text: '', finish: null });
  assert.deepEqual(toMessages(path(thread), 'be brief'), [
    { role: 'system', content: 'be brief' }, { role: 'user', content: 'question' },
    { role: 'assistant', content: 'answer' }, { role: 'user', content: 'next' }]);
  assert.deepEqual(toMessages(ancestors(thread, a.id), ''), [
    { role: 'user', content: 'question' }, { role: 'assistant', content: 'answer' }]);
});

test('titles come from the first question, whole characters, unless one was given', () => {
  const thread = newThread();
  addNode(thread, '', { text: '𠮷'.repeat(60) + '\nsecond line' });
  assert.equal(titleOf(thread), '𠮷'.repeat(47) + '…');
  thread.title = 'mine';
  assert.equal(titleOf(thread), 'mine');
});

test('search needs every word, in titles or texts of any branch', () => {
  const { thread, q } = talk();
  addNode(thread, q.id, { role: 'assistant', text: '江上 River', finish: 'stop' });
  assert.ok(matches(thread, 'river ANSWER'));
  assert.ok(matches(thread, '江上'));
  assert.ok(!matches(thread, 'river sea'));
  assert.ok(matches(thread, '  '));
});

test('outside data that does not hang together is refused', () => {
  const good = () => JSON.parse(JSON.stringify(talk().thread));
  assert.ok(isThread(good()));
  const faults = [t => { delete t.nodes['']; }, t => { t.id = ''; }, t => { t.nodes[''].pick = 7; },
    t => { Object.values(t.nodes)[1].parent = 'nobody'; }, t => { Object.values(t.nodes)[1].text = 5; },
    t => { Object.values(t.nodes)[2].children = [Object.values(t.nodes)[1].id]; },
    t => { t.nodes.lost = { id: 'lost', parent: '', role: 'user', text: '', children: [] }; },
    t => { t.nodes[''].children.push(t.nodes[''].children[0]); }, t => { Object.values(t.nodes)[1].role = 'root'; }];
  for (const f of faults) {
    const t = good();
    f(t);
    assert.ok(!isThread(t), f.toString());
  }
  for (const t of [null, 5, [], {}, { id: 'a' }, { id: 'a', nodes: [] }]) assert.ok(!isThread(t));
});

test('ids are unique and sort by time', () => {
  const ids = Array.from({ length: 2000 }, newId);
  assert.equal(new Set(ids).size, ids.length);
  assert.deepEqual(ids, [...ids].sort());
});
