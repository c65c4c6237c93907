// SPDX-License-Identifier: Apache-2.0
// A conversation is a tree: editing a question or asking for another answer makes a sibling, nothing is overwritten.
//
//   thread = {id, title, named, created, updated, nodes: {id: node}}
//   node   = {id, parent, role, text, created, children: [id], pick, …}
//
// The root has the id '' and the role 'root'. `pick` says which child the shown path goes through. Assistants' nodes
// also have: reasoning, model, finish (null while it runs), error, stats. Everything is plain data, so that it can be
// stored and exported as it is.

let last = 0;
export function newId() {
  last = Math.max(Date.now(), last + 1); // sorts by time
  return last.toString(36) + Math.floor(Math.random() * 36 ** 4).toString(36).padStart(4, '0');
}

export function newThread(now = Date.now()) {
  const root = { id: '', parent: null, role: 'root', text: '', created: now, children: [], pick: 0 };
  return { id: newId(), title: '', named: false, created: now, updated: now, nodes: { '': root } };
}

// Adds a child and shows it.
export function addNode(thread, parentId, fields) {
  const parent = thread.nodes[parentId];
  const node = { id: newId(), parent: parentId, role: 'user', text: '', created: Date.now(), children: [], pick: 0,
                 ...fields };
  thread.nodes[node.id] = node;
  parent.children.push(node.id);
  parent.pick = parent.children.length - 1;
  thread.updated = Date.now();
  return node;
}

// The shown messages, first to last, without the root.
export function path(thread) {
  const out = [];
  for (let n = thread.nodes['']; n.children.length; out.push(n)) n = thread.nodes[n.children[n.pick]];
  return out;
}

export function leaf(thread) {
  return path(thread).at(-1) ?? thread.nodes[''];
}

// From the root to the node, both without the root: what the node answers, or is.
export function ancestors(thread, id) {
  const out = [];
  for (let n = thread.nodes[id]; n && n.role !== 'root'; n = thread.nodes[n.parent]) out.unshift(n);
  return out;
}

export function siblings(thread, node) {
  const parent = thread.nodes[node.parent];
  return { index: parent.children.indexOf(node.id), count: parent.children.length };
}

export function pickSibling(thread, node, step) {
  const parent = thread.nodes[node.parent], n = parent.children.length;
  parent.pick = Math.min(n - 1, Math.max(0, parent.children.indexOf(node.id) + step));
}

// Removes a node with everything below it.
export function removeNode(thread, id) {
  const node = thread.nodes[id], parent = thread.nodes[node.parent];
  for (const child of [...node.children]) removeNode(thread, child);
  parent.children.splice(parent.children.indexOf(id), 1);
  parent.pick = Math.min(parent.pick, Math.max(0, parent.children.length - 1));
  delete thread.nodes[id];
}

// What the API is sent. With `open`, the last message is an answer to go on with.
export function toMessages(nodes, system) {
  const out = system ? [{ role: 'system', content: system }] : [];
  for (const n of nodes) {
    if (n.role === 'user' || (n.role === 'assistant' && n.text)) out.push({ role: n.role, content: n.text });
  }
  return out;
}

export function titleOf(thread) {
  if (thread.title) return thread.title;
  const first = path(thread).find(n => n.role === 'user');
  const line = first?.text.trim().split('\n')[0] ?? '';
  const letters = [...line];
  return letters.length > 48 ? letters.slice(0, 47).join('') + '…' : line;
}

export function matches(thread, words) {
  const all = words.toLowerCase().split(/\s+/).filter(Boolean);
  if (!all.length) return true;
  const texts = [titleOf(thread), ...Object.values(thread.nodes).map(n => n.text)].map(s => s.toLowerCase());
  return all.every(w => texts.some(s => s.includes(w)));
}

// Whether outside data is a thread that everything above can walk: the tree hangs together and holds no cycle.
export function isThread(t) {
  const text = v => typeof v === 'string';
  if (!t || !text(t.id) || !t.id || !t.nodes || typeof t.nodes !== 'object' || !t.nodes['']) return false;
  let seen = 0;
  const stack = [''];
  while (stack.length) {
    const id = stack.pop(), n = t.nodes[id];
    if (!n || n.id !== id || !text(n.text) || !Array.isArray(n.children)) return false;
    if (!['root', 'user', 'assistant'].includes(n.role) || (n.role === 'root') !== (id === '')) return false;
    if (n.children.length && !(Number.isInteger(n.pick) && n.pick >= 0 && n.pick < n.children.length)) return false;
    if (++seen > 100000) return false;
    for (const c of n.children) {
      if (!text(c) || t.nodes[c]?.parent !== id) return false;
      stack.push(c);
    }
    if (new Set(n.children).size !== n.children.length) return false;
  }
  return seen === Object.keys(t.nodes).length;
}
