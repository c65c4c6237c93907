// SPDX-License-Identifier: Apache-2.0
// Speed of one answer. Times in milliseconds of a monotonic clock; counts are the server's (usage in every chunk).
export function answerStats(sentAt) {
  let firstAt = 0, lastAt = 0, base = 0, count = 0;
  return {
    // completed: tokens of the answer so far.
    tokens(completed, now) {
      if (!firstAt) {
        firstAt = now;
        base = completed; // what came with the first piece took no time that we saw
      }
      lastAt = now;
      count = completed;
    },
    get ttft() { return firstAt ? firstAt - sentAt : null; },
    get rate() { return lastAt > firstAt && count > base ? (count - base) * 1000 / (lastAt - firstAt) : null; },
    get count() { return count; },
  };
}

export function formatRate(rate) {
  return rate >= 100 ? rate.toFixed(0) : rate.toFixed(1);
}

export function formatMs(ms) {
  return ms >= 10000 ? `${(ms / 1000).toFixed(0)} s` : ms >= 1000 ? `${(ms / 1000).toFixed(1)} s` : `${Math.round(ms)} ms`;
}
