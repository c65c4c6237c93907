// SPDX-License-Identifier: Apache-2.0
// Work that may wait: done in order, a few milliseconds a turn of the event loop, so that keys and paints come between.
const BUDGET_MS = 8;
const queue = [];
let planned = false;

function work() {
  const until = performance.now() + BUDGET_MS;
  planned = false;
  while (queue.length && performance.now() < until) queue.shift()();
  plan();
}

function plan() {
  if (planned || !queue.length) return;
  planned = true;
  setTimeout(work);
}

export function soon(f) {
  queue.push(f);
  plan();
}
