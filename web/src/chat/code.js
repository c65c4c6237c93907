// SPDX-License-Identifier: Apache-2.0
// Colours of code blocks that are complete and name a language; highlight.js comes when the first of them appears.
import { soon } from './soon.js';

const MAX = 60000;
let loading = null;

export async function highlight(code, sanitize) {
  const name = /language-(\S+)/.exec(code.className)?.[1];
  const text = code.textContent;
  if (!name || text.length > MAX) return;
  try {
    loading ??= import('./languages.js');
    const { hljs } = await loading;
    if (!hljs.getLanguage(name)) return;
    soon(() => {
      if (!code.isConnected) return;
      code.replaceChildren(sanitize(hljs.highlight(text, { language: name, ignoreIllegals: true }).value));
    });
  } catch {
    loading = null; // plain code will do
  }
}
