// SPDX-License-Identifier: Apache-2.0
// Shows markdown that grows. Blocks that can't change any more are made once and never touched again; only the last one
// is made anew. A code block that is still open just gets text appended, and a block beyond BIG characters is shown as
// plain text until it ends, so that the work for a piece of text does not grow with the answer. However much comes at
// once, a turn of the event loop takes STEP characters after STEP characters until BUDGET_MS are over, and the rest waits
// for the next turn: the page always answers to keys.
import DOMPurify from 'dompurify';
import { highlight } from './code.js';
import { blocks, lex, openFence, settled, toHtml } from './markup.js';
import { renderMath } from './math.js';

const BIG = 12000;      // a block that grew so long is text until it ends
const HUGE = 150000;    // and stays text if it is that long then
const STEP = 4000;
const CHUNK = 6000;     // long text is laid out in pieces
const BUDGET_MS = 12;
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

// A long text as a column of pieces, each laid out by itself. A piece ends at the first line break behind CHUNK
// characters, or at a blank or anywhere when there is none.
function textColumn(holder) {
  let node = null;
  return text => {
    while (text) {
      if (!node) {
        const piece = document.createElement('span');
        piece.className = 'chunk';
        node = document.createTextNode('');
        piece.append(node);
        holder.append(piece);
      }
      const from = Math.max(0, CHUNK - node.length), most = 2 * CHUNK - node.length;
      const line = text.indexOf('\n', from) + 1, blank = text.indexOf(' ', from) + 1;
      let end = text.length, isFull = true;
      if (line > 0 && line <= most) end = line;
      else if (text.length < most) isFull = false;
      else end = blank > 0 && blank <= most ? blank : most;
      if (/[\ud800-\udbff]/.test(text[end - 1]) && end < text.length) end++;
      node.appendData(text.slice(0, end));
      text = text.slice(end);
      if (isFull) node = null;
    }
  };
}

// root: an empty element that belongs to the view from now on. words: texts of buttons, and words.copy.
export function markdownView(root, words) {
  let text = '', complete = false, limit = 0; // text[0..limit) is shown
  let offset = 0;                             // text[0..offset) is settled
  let tail = [];                              // nodes of what is not
  let open = null;                            // the tail is one growing text: {kind, start, shown, add, code, tried}
  let turn = 0;

  const make = (source, isSettled) => {
    const fragment = sanitize(toHtml(lex(source)));
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
  const keep = () => {
    tail = [];
    open = null;
  };

  // A text that only grows, until `end`; its markup is made when the block ends.
  const grow = (kind, start, end, lang) => {
    if (open?.kind !== kind || open.start !== start) {
      drop();
      const outer = document.createElement(kind === 'code' ? 'pre' : 'p');
      let holder = outer;
      root.append(outer);
      tail = [outer];
      if (kind === 'code') {
        holder = document.createElement('code');
        const name = /^[\w+#.-]{1,24}/.exec(lang)?.[0].toLowerCase();
        if (name) holder.className = `language-${name}`;
        outer.append(holder);
        codeFrame(outer, holder, words);
        tail = [outer.parentElement];
      } else {
        outer.className = 'plain';
      }
      open = { kind, start, shown: start, add: textColumn(holder), holder, tried: end - start };
    }
    if (end > open.shown) open.add(text.slice(open.shown, end));
    open.shown = Math.max(open.shown, end);
  };

  // An open fence at the offset. True: the rest of the text up to `end` is in it.
  const renderFence = (fence, end, done) => {
    const start = offset + fence.start;
    // Only what came since the last look can hold the end of the fence.
    const from = open?.kind === 'code' ? Math.max(start - 1, open.shown - 80) : start - 1;
    const close = fence.close.exec(text.slice(from, end));
    const stop = close ? from + close.index + close[0].length : end;
    const isClosed = close && (close[0].endsWith('\n') || done);
    if (!isClosed && !done) {
      grow('code', start, end, fence.lang);
      return true;
    }
    const codeEnd = isClosed ? from + close.index + 1 : end;
    if (codeEnd - start > BIG) { // as it is: no colours
      if (open?.kind !== 'code' || open.start !== start || open.shown > codeEnd) drop();
      grow('code', start, codeEnd, fence.lang);
      keep();
    } else {
      drop();
      make(text.slice(offset, stop), true);
    }
    offset = stop;
    return offset >= end;
  };

  const settle = (tokens, end) => {
    let from = offset;
    const flush = to => {
      if (to > from) make(text.slice(from, to), true);
      from = to;
    };
    tokens.forEach((token, i) => {
      const next = i + 1 === tokens.length && end !== undefined ? end : offset + token.raw.length;
      if (token.raw.length > HUGE) {
        flush(offset);
        grow('plain', offset, next);
        keep();
        from = next;
      }
      offset = next;
    });
    flush(offset);
  };

  function render(end, done) {
    for (;;) {
      const fence = openFence(text.slice(offset, Math.min(end, offset + 400)));
      if (fence) {
        if (renderFence(fence, end, done)) return;
        continue;
      }
      // A long block is looked at again when it has doubled.
      if (!done && open?.kind === 'plain' && end - offset < 2 * open.tried) return grow('plain', offset, end);
      const rest = text.slice(offset, end), tokens = rest ? blocks(rest) : [];
      const n = done ? tokens.length : settled(tokens);
      if (n === 0 && rest.length > BIG) {
        grow('plain', offset, end);
        open.tried = rest.length;
        return undefined;
      }
      drop();
      settle(tokens.slice(0, n), done ? end : undefined);
      if (done || n === tokens.length) return undefined;
      if (n > 0 && openFence(text.slice(offset, Math.min(end, offset + 400)))) continue;
      if (end - offset > BIG) grow('plain', offset, end);
      else tail = make(text.slice(offset, end), false);
      return undefined;
    }
  }

  function pump() {
    const until = performance.now() + BUDGET_MS;
    turn = 0;
    do {
      limit = Math.min(text.length, limit + STEP);
      render(limit, complete && limit === text.length);
    } while (limit < text.length && performance.now() < until);
    if (limit < text.length) turn = setTimeout(() => { if (root.isConnected) pump(); });
  }

  return {
    update(next, done) {
      // An answer that goes on after its end goes on inside its last block.
      if (next.length < text.length || !next.startsWith(text.slice(0, 64)) || (complete && !done)) {
        drop();
        root.replaceChildren();
        offset = limit = 0;
      }
      text = next;
      complete = done;
      root.classList.toggle('long', text.length > 30000);
      clearTimeout(turn);
      pump();
    },
  };
}
