// SPDX-License-Identifier: Apache-2.0
// One answer being written: asks, reads the stream, keeps node and times up to date. What is shown follows `frame`, which
// moves at most once a painted frame, and more slowly when painting takes long (a huge answer): the stream itself is
// always read. Stop cuts the connection, by which the server frees the sequence within a step.
import { signal } from '@preact/signals';
import { ApiError, request } from '../shared/api.js';
import { sseParser } from './sse.js';
import { answerStats } from './stats.js';

// Shows at once what came first, then no more often than it can be painted.
function framer(frame) {
  let waiting = false, cost = 0, last = 0;
  const paint = () => {
    const began = performance.now();
    waiting = false;
    frame.value++;
    setTimeout(() => { // after the paint
      last = performance.now();
      cost = last - began;
    });
  };
  return () => {
    if (waiting) return;
    waiting = true;
    const pause = cost > 30 ? Math.max(0, last + 3 * cost - performance.now()) : 0;
    if (document.hidden) setTimeout(paint, 250);
    else if (pause > 0) setTimeout(() => requestAnimationFrame(paint), pause);
    else requestAnimationFrame(paint);
  };
}

async function readStream(response, onData) {
  const reader = response.body.getReader(), decoder = new TextDecoder(), parse = sseParser();
  let busy = 0; // since the last turn of the event loop: pieces that are there already come without one
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    for (const data of parse(decoder.decode(value, { stream: true }))) {
      const began = performance.now();
      onData(data);
      busy += performance.now() - began;
      if (busy > 10) { // much came at once: keys and paints get their turn
        await new Promise(later => { setTimeout(later); });
        busy = 0;
      }
    }
  }
}

export function runAnswer(node, body, { save, end }) {
  const control = new AbortController(), frame = signal(0), show = framer(frame);
  const run = { node, frame, progress: null, stats: answerStats(performance.now()), stop: () => control.abort() };
  let saved = 0, finished = false, whole = false, prompt = 0, release;
  try { // tells other tabs that this answer is alive
    navigator.locks.request(`tern-${node.id}`, () => new Promise(done => { release = done; }));
  } catch { /* only with TLS or on this machine */ }

  const onData = data => {
    if (data === '[DONE]') {
      whole = true;
      return;
    }
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ApiError(chunk.error.code ?? 500, chunk.error.message ?? String(chunk.error));
    if (chunk.progress) run.progress = chunk.progress;
    if (chunk.usage) prompt = chunk.usage.prompt_tokens;
    const choice = chunk.choices?.[0], delta = choice?.delta;
    if (delta) {
      const thought = delta.reasoning_content ?? delta.reasoning ?? '', text = delta.content ?? '';
      if (thought) node.reasoning = (node.reasoning ?? '') + thought;
      if (text) node.text += text;
      if (thought || text) run.progress = null;
      const now = performance.now();
      if (chunk.usage?.completion_tokens) run.stats.tokens(chunk.usage.completion_tokens, now);
      else if (thought || text) run.stats.tokens(run.stats.count + 1, now);
      if (choice.finish_reason) node.finish = choice.finish_reason;
      if (now - saved > 500 + node.text.length / 500) { // a long text is saved less often
        saved = now;
        save();
      }
    } else if (chunk.usage && !chunk.choices?.length && chunk.usage.completion_tokens) {
      run.stats.total = chunk.usage.completion_tokens;
    }
    node.stats = { prompt, completion: run.stats.total ?? run.stats.count, ttft: run.stats.ttft, rate: run.stats.rate };
    show();
  };

  const finish = error => {
    if (finished) return;
    finished = true;
    if (error?.name === 'AbortError') node.finish = 'stopped';
    else if (error) {
      node.error = { status: error.status ?? 0, code: error.code, message: error.status === undefined ? '' : error.message };
    }
    node.finish ??= error ? 'error' : 'interrupted';
    release?.();
    end();
    frame.value++;
  };

  (async () => {
    const r = await request('v1/chat/completions', { body, signal: control.signal });
    await readStream(r, onData);
    if (!whole && node.finish === null) throw new ApiError(0, '');
  })().then(() => finish(null), finish);
  return run;
}
