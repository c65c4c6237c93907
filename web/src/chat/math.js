// SPDX-License-Identifier: Apache-2.0
// Formulas. KaTeX, its style and its fonts are fetched from the server when the first formula appears. It builds
// elements (katex.render), so the content policy needs no exception for inline styles.
import { soon } from './soon.js';

let loading = null;

function load() {
  if (!loading) {
    const style = document.createElement('link');
    style.rel = 'stylesheet';
    style.href = new URL(MATH_STYLE, import.meta.url).href;
    document.head.append(style);
    loading = import('katex').then(m => m.default);
    loading.catch(() => { loading = null; });
  }
  return loading;
}

let katex = null;

export function renderMath(root) {
  const places = root.querySelectorAll('.math');
  if (!places.length) return undefined;
  const draw = el => {
    if (el.dataset.done) return;
    el.dataset.done = '1';
    const tex = el.textContent;
    try {
      katex.render(tex, el, { displayMode: el.classList.contains('block'), throwOnError: true, trust: false,
                              maxSize: 20, maxExpand: 500, strict: 'ignore' });
    } catch {
      el.textContent = tex;
      el.classList.add('bad');
    }
  };
  if (katex) return places.forEach(draw);
  load().then(k => {
    katex = k;
    for (const el of places) soon(() => { if (el.isConnected) draw(el); });
  }, () => {});
  return undefined;
}
