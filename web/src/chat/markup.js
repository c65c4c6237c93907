// SPDX-License-Identifier: Apache-2.0
// Markdown to HTML text, the half that needs no browser. What a model writes is untrusted: raw HTML is shown as text,
// only http, https and mailto links become links, images become links (nothing is fetched from anywhere). view.js
// sanitizes the result once more before it reaches the document.
import { Marked } from 'marked';

export function escape(text) {
  return text.replace(/[&<>"']/g, c => ({ '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;', "'": '&#39;' })[c]);
}

export function safeHref(href) {
  // Control characters and blanks inside a scheme are ignored by browsers, so they are removed before looking.
  const bare = href.replace(/[\u0000-\u0020\u007f-\u00a0\u200b-\u200f\u2028-\u202e\ufeff]/g, '');
  return /^(https?:\/\/|mailto:)/i.test(bare) ? bare : null;
}

const link = (href, inner) => {
  const safe = safeHref(href);
  return safe ? `<a href="${escape(safe)}" target="_blank" rel="noopener noreferrer nofollow">${inner}</a>` : inner;
};

// TeX between $$ $$, \[ \], \( \) and $ $; the last only where it can't be a price: no blank inside the dollars, no digit
// behind them. The text stays visible until KaTeX has come.
const mathBlock = {
  name: 'mathBlock',
  level: 'block',
  start: src => src.match(/(?:^|\n)[ ]{0,3}(?:\$\$|\\\[)/)?.index,
  tokenizer(src) {
    const m = /^[ ]{0,3}(?:\$\$([\s\S]+?)\$\$|\\\[([\s\S]+?)\\\])[ \t]*(?:\n+|$)/.exec(src);
    return m ? { type: 'mathBlock', raw: m[0], text: (m[1] ?? m[2]).trim() } : undefined;
  },
  renderer: token => `<div class="math block">${escape(token.text)}</div>`,
};
const mathInline = {
  name: 'mathInline',
  level: 'inline',
  start: src => src.match(/\$|\\\(|\\\[/)?.index,
  tokenizer(src) {
    const m = /^\$\$([^$]+?)\$\$/.exec(src) ?? /^\\\(([\s\S]+?)\\\)/.exec(src) ?? /^\\\[([\s\S]+?)\\\]/.exec(src) ??
              /^\$(?![\s$])((?:\\.|[^\\$\n])+?)(?<![\s\\])\$(?!\d)/.exec(src);
    return m ? { type: 'mathInline', raw: m[0], text: m[1].trim(), block: /^\$\$|^\\\[/.test(m[0]) } : undefined;
  },
  renderer: token => `<span class="math${token.block ? ' block' : ''}">${escape(token.text)}</span>`,
};

const marked = new Marked({
  gfm: true,
  breaks: true, // a line of a poem is a line
  extensions: [mathBlock, mathInline],
  renderer: {
    html: ({ text }) => escape(text),
    link({ href, tokens }) { return link(href, this.parser.parseInline(tokens)); },
    image: ({ href, text }) => link(href, escape(text || href)),
    code: ({ text, lang }) => {
      const name = (lang ?? '').match(/^[\w+#.-]{1,24}/)?.[0].toLowerCase() ?? '';
      return `<pre><code${name ? ` class="language-${escape(name)}"` : ''}>${escape(text)}</code></pre>`;
    },
    checkbox: ({ checked }) => (checked ? '☑ ' : '☐ '),
  },
});

export const lex = text => marked.lexer(text);
// Only where blocks begin and end: without what is inside them, which takes most of the time.
export function blocks(text) {
  const lexer = new marked.Lexer(marked.defaults);
  return lexer.blockTokens(text.replace(/\r\n|\r/g, '\n'), lexer.tokens);
}
export const toHtml = tokens => marked.parser(tokens);
export const markdown = text => toHtml(lex(text));

// How many of the tokens can't change any more when text is appended: all before the last that is not blank.
export function settled(tokens) {
  let n = tokens.length;
  while (n > 0 && tokens[n - 1].type === 'space') n--;
  return Math.max(0, n - 1);
}

// An answer that begins with an open code fence: {lang, start} of the code, or null.
export function openFence(text) {
  const m = /^ {0,3}(`{3,}|~{3,})([^`\n]*)\n/.exec(text);
  if (!m) return null;
  const close = new RegExp(`\\n {0,3}${m[1][0]}{${m[1].length},}[ \\t]*(?:\\n|$)`);
  return { lang: m[2].trim(), start: m[0].length, close };
}
