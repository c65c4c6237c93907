// SPDX-License-Identifier: Apache-2.0
// Asks for /metrics every PERIOD seconds and keeps what the charts show. It asks nothing while the tab is hidden or the
// user paused, at once when they come back, and more rarely while nobody answers.
import { signal } from '@preact/signals';
import { request } from '../shared/api.js';
import { read, point, WINDOW } from './series.js';

export const PERIOD = 2;
const SLOWEST = 10;
const PATIENCE_MS = 8000;
const KEEP_SECONDS = 31 * 60;

export const state = signal('connecting'); // connecting, live, loading, gone, refused, odd
export const status = signal(0);           // HTTP status of the last refusal
export const paused = signal(false);
export const reading = signal(null);
export const points = signal([]);

let readings = [];
let timer = 0;
let asking = null;
let misses = 0;

function take(text) {
  const now = Date.now() / 1000;
  const r = read(text, now);
  if (!r) {
    status.value = 200;
    return 'odd';
  }
  readings = readings.filter((old) => now - old.at < WINDOW + 4 * PERIOD);
  readings.push(r);
  reading.value = r;
  points.value = [...points.value.filter((p) => now - p.at < KEEP_SECONDS), point(readings, PERIOD)];
  return r.ready ? 'live' : 'loading';
}

async function ask(stop) {
  try {
    return take(await (await request('metrics', { signal: stop.signal })).text());
  } catch (e) {
    status.value = e.status ?? 0;
    return status.value === 401 || status.value === 403 ? 'refused' : status.value ? 'odd' : 'gone';
  }
}

async function turn() {
  const stop = new AbortController();
  asking = stop;
  const patience = setTimeout(() => stop.abort(), PATIENCE_MS);
  const result = await ask(stop);
  clearTimeout(patience);
  if (asking !== stop) {
    return; // paused, hidden or asked again meanwhile: this answer is nobody's
  }
  asking = null;
  state.value = result;
  misses = result === 'live' || result === 'loading' ? 0 : misses + 1;
  timer = setTimeout(turn, Math.min(PERIOD * 1.5 ** misses, SLOWEST) * 1000);
}

function halt() {
  clearTimeout(timer);
  const stop = asking;
  asking = null;
  stop?.abort();
}

// Goes on, at once, unless the user paused or nobody looks.
export function wake() {
  halt();
  if (!paused.value && document.visibilityState === 'visible') {
    misses = 0;
    turn();
  }
}

export function start() {
  document.addEventListener('visibilitychange', wake);
  addEventListener('online', wake);
  wake();
}
