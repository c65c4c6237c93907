// SPDX-License-Identifier: Apache-2.0
// Shows markdown that grows. Blocks that can't change any more are made once and never touched again; only the last one
// is made anew. A code block that is still open just gets text appended, and a paragraph beyond BIG characters is shown
// as plain text until it ends, so that the work for a piece of text does not grow with the answer.
import DOMPurify from 'dompurify';
import { highlight } from './code.js';
import { lex, openFence, settled, toHtml } from './markup.js';
import { renderMath } from './math.js';

const BIG = 12000;
const clean = {
  RETURN_DOM_FRAGMENT: true,
  ALLOWED_TAGS: ['a', 'b', 'blockquote', 'br', 'code', 'del', 'div', 'em', 'h1', 'h2', 'h3', 'h4', 'h5', 'h6', 'hr', 'i',
                 'li', 'ol', 'p', 'pre', 's', 'span', 'strong', 'table', 'tbody', 'td', 'th', 'thead', 'tr', 'ul'],
  ALLOWED_ATTR: ['href', 'class', 'start', 'align', 'target', 'rel'],
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  ADD_ATTR: ['target'],
};

export const sanitize = text => DOMPurify.sanitize(text, clean);

function codeFrame(pre, code, words) {
  const frame = document.createElement('div'), bar = document.createElement('div');
  const name = document.createElement('span'), button = document.createElement('button');
  frame.className = 'code';
  bar.className = 'code-bar';
  name.textContent = /language-(\S+)/.exec(code.className)?.[1] ?? '';
  button.type = 'button';
  button.className = 'text-button';
  button.dataset.testid = 'copy-code';
  button.textContent = words('copyCode');
  button.onclick = async () => {
    const done = await words.copy(code.textContent);
    button.textContent = words(done ? 'copied' : 'copyFailed');
    setTimeout(() => { button.textContent = words('copyCode'); }, 1500);
  };
  pre.tabIndex = 0; // it scrolls sideways: the keyboard must reach it
  bar.append(name, button);
  frame.append(bar);
  pre.replaceWith(frame);
  frame.append(pre);
}

// Table wrapper, code frames, colours, formulas: what needs elements.
function dress(fragment, isSettled, words) {
  for (const table of fragment.querySelectorAll('table')) {
    const box = document.createElement('div');
    box.className = 'table';
    box.tabIndex = 0;
    table.replaceWith(box);
    box.append(table);
  }
  for (const code of fragment.querySelectorAll('pre > code')) {
    codeFrame(code.parentElement, code, words);
    if (isSettled) highlight(code, sanitize);
  }
  renderMath(fragment);
}

// root: an empty element that belongs to the view from now on. words: texts of buttons, and words.copy.
export function markdownView(root, words) {
  let text = '', offset = 0;      // text[0..offset) is settled
  let tail = [];                  // nodes of what is not
  let open = null;                // {text node, shown, fence}: the tail is one growing text
  let ended = false;              // everything was settled, because no more text was expected
  const make = (tokens, isSettled) => {
    const fragment = sanitize(toHtml(tokens));
    dress(fragment, isSettled, words);
    const nodes = [...fragment.childNodes];
    root.append(fragment);
    return nodes;
  };
  const drop = () => {
    for (const n of tail) n.remove();
    tail = [];
    open = null;
  };

  // A text node that only grows; its markup is made when the block ends.
  const grow = (kind, start, lang) => {
    if (open?.kind !== kind || open.start !== start) {
      drop();
      const pre = document.createElement(kind === 'code' ? 'pre' : 'p'), node = document.createTextNode('');
      let holder = pre;
      if (kind === 'code') {
        holder = document.createElement('code');
        const name = /^[\w+#.-]{1,24}/.exec(lang)?.[0].toLowerCase();
        if (name) holder.className = `language-${name}`;
        pre.append(holder);
        root.append(pre);
        codeFrame(pre, holder, words);
        tail = [pre.parentElement];
      } else {
        pre.className = 'plain';
        root.append(pre);
        tail = [pre];
      }
      holder.append(node);
      open = { kind, start, node, shown: start };
    }
    if (text.length > open.shown) open.node.appendData(text.slice(open.shown));
    open.shown = text.length;
  };

  function render(done) {
    for (;;) {
      const fence = openFence(text.slice(offset, offset + 400));
      if (fence && !done) {
        // Only what came since the last look can hold the end of the fence.
        const from = open?.kind === 'code' ? Math.max(offset + fence.start - 1, open.shown - 80) : offset + fence.start - 1;
        const end = fence.close.exec(text.slice(from));
        if (!end) return grow('code', offset + fence.start, fence.lang);
        const stop = from + end.index + end[0].length;
        if (stop >= text.length && !end[0].endsWith('\n')) return grow('code', offset + fence.start, fence.lang);
        drop();
        make(lex(text.slice(offset, stop)), true);
        offset = stop;
        continue;
      }
      const rest = text.slice(offset);
      if (!done && rest.length > BIG && open?.kind === 'plain' &&
          !/\n\s*\n|\n {0,3}(?:`{3}|~{3})/.test(text.slice(Math.max(offset, open.shown - 80)))) {
        return grow('plain', offset);
      }
      const tokens = rest ? lex(rest) : [];
      const n = done ? tokens.length : settled(tokens);
      if (n === 0 && !done && rest.length > BIG) return grow('plain', offset);
      drop();
      if (n > 0) {
        const group = tokens.slice(0, n);
        if (done && rest.length > 40 * BIG && n === 1) {
          grow('plain', offset); // one endless paragraph stays as it is
          tail = [];
        } else {
          make(group, true);
        }
        for (const t of group) offset += t.raw.length;
      }
      const last = tokens.slice(n);
      if (done || !last.length) {
        offset = done ? text.length : offset;
        return undefined;
      }
      if (n > 0 && openFence(text.slice(offset, offset + 400))) continue;
      if (text.length - offset > BIG) return grow('plain', offset);
      tail = make(last, false);
      return undefined;
    }
  }

  return {
    update(next, done) {
      // An answer that goes on after its end goes on inside its last block.
      if (!next.startsWith(text.slice(0, 64)) || next.length < text.length || (ended && !done)) {
        drop();
        root.replaceChildren();
        offset = 0;
      }
      text = next;
      ended = done;
      root.classList.toggle('long', text.length > 60000);
      render(done);
    },
  };
}
