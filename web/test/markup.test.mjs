// SPDX-License-Identifier: Apache-2.0
import assert from 'node:assert/strict';
import test from 'node:test';
import { blocks, lex, markdown, openFence, safeHref, settled, toHtml } from '../src/chat/markup.js';

test('raw HTML is text', () => {
  for (const s of ['<img src=x onerror=alert(1)>', '<script>alert(1)</script>', 'a <b onclick=x>c</b>',
                   '<svg><script>1</script></svg>', '<!-- x -->', '<iframe src="javascript:1">']) {
    const out = markdown(s);
    assert.ok(!/<(?!\/?(p|br)\b)/.test(out), out);
    assert.match(out, /&lt;/);
  }
});

test('only web and mail addresses become links, without handing on who asked', () => {
  assert.match(markdown('[x](https://e.org/?a=1&b="2")'), /^<p><a href="https:\/\/e\.org\/\?a=1&amp;b=[^"]*" target="_blank" rel="noopener noreferrer nofollow">x<\/a>/);
  for (const bad of ['javascript:alert(1)', 'JaVaScRiPt:alert(1)', 'java\tscript:alert(1)', ' javascript:1', '\u0001javascript:1',
                     'data:text/html,x', 'vbscript:x', 'file:///etc/passwd', '//evil.org', 'blob:x', '/relative']) {
    assert.equal(safeHref(bad), null, bad);
    assert.ok(!markdown(`[x](<${bad}>)`).includes('<a '), bad);
  }
  assert.ok(!markdown('[x](&#106;avascript:alert(1))').includes('<a '));
  assert.ok(!markdown('[x]: javascript:alert(1)\n\n[x]').includes('<a '));
});

test('images are links, so that nothing is fetched', () => {
  const out = markdown('![a "cat"](https://e.org/cat.png) ![](data:image/png;base64,AA==)');
  assert.ok(!out.includes('<img'));
  assert.match(out, /<a href="https:\/\/e\.org\/cat\.png"[^>]*>a &quot;cat&quot;<\/a>/);
});

test('code keeps its language and nothing else', () => {
  assert.equal(markdown('```python x="y"\na<b\n```'), '<pre><code class="language-python">a&lt;b</code></pre>');
  assert.equal(markdown('```"><img\nx\n```'), '<pre><code>x</code></pre>');
});

test('formulas are found and prices are not', () => {
  assert.match(markdown('so $a_1 < b$.'), /<span class="math">a_1 &lt; b<\/span>/);
  assert.match(markdown('\\(x*y*z\\)'), /<span class="math">x\*y\*z<\/span>/);
  assert.match(markdown('$$\n\\sum_i *a* \n$$'), /<div class="math block">\\sum_i \*a\*<\/div>/);
  assert.match(markdown('text\n\\[ x \\]\nmore'), /<div class="math block">x<\/div>/);
  assert.ok(!markdown('costs $5 and $10 today').includes('math'));
  assert.ok(!markdown('`$a$`').includes('math'));
});

test('a line of a poem is a line', () => {
  assert.match(markdown('春眠不觉晓，\n处处闻啼鸟。'), /晓，<br>处处/);
});

test('blocks that are settled stay the same whatever comes behind them', () => {
  const text = '# Title\n\npara *one*\nline\n\n- a\n- b\n\n  more of b\n\n1. x\n\n> quote\n> on\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n' +
    '```c\nint x;\n\nint y;\n```\n\n$$\na\n$$\n\n    indented\n\n    code\n\nlast [l](https://e.org) para\n\n---\n\nend';
  for (let cut = 1; cut <= text.length; cut++) {
    let html = '', at = 0;
    for (const end of [cut, text.length]) {
      const tokens = lex(text.slice(at, end)), done = tokens.slice(0, end === text.length ? tokens.length : settled(tokens));
      html += toHtml(done);
      at += done.reduce((n, token) => n + token.raw.length, 0);
    }
    assert.equal(html.replace(/\s+/g, ' '), markdown(text).replace(/\s+/g, ' '), `cut at ${cut}`);
  }
});

test('an open fence is known with the pattern that closes it', () => {
  const f = openFence('````python\nx\n```\ny');
  assert.equal(f.lang, 'python');
  assert.ok(!f.close.test('\n```\n'));
  assert.ok(f.close.test('\n`````  \n'));
  assert.equal(openFence('text\n```\n'), null);
});

test('block bounds are those of the whole parser', () => {
  const text = '# a\n\nb $x$ *c*\n\n- d\n  - e\n\n$$\nf\n$$\n\n> g\n\n```\nh\n```\n\n|a|\n|-|\n|1|\n';
  assert.deepEqual(blocks(text).map(k => [k.type, k.raw]), lex(text).map(k => [k.type, k.raw]));
});
