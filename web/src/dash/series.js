// SPDX-License-Identifier: Apache-2.0
// Readings of /metrics -> points of the charts. Pure, like prom.js: no clock, no page.
//
// A reading is what one answer said; a point is what changed between readings. Counters give rates over the time
// since the reading before. Times come from histograms, over the last WINDOW seconds, because one poll may see a
// single step. After a restart of the server counters start again: then, and after a pause, there is nothing to
// compare with, and the lines have a gap rather than a spike.
import { parse, total, histogram, between } from './prom.js';

export const WINDOW = 10;

const REASONS = ['stop', 'length', 'abort', 'error', 'repetition'];

function modelName(families) {
  for (const list of families.values()) {
    const name = list[0].labels.model_name;
    if (name) {
      return name;
    }
  }
  return '';
}

// text of /metrics, seconds -> reading; null when the text is no tern's.
export function read(text, at) {
  const families = parse(text);
  const get = (name, want) => total(families, name, want);
  if (get('vllm:num_requests_running') === null) {
    return null;
  }
  const finished = REASONS.map((reason) => [reason, get('vllm:request_success_total', { finished_reason: reason }) ?? 0]);
  return {
    at,
    model: modelName(families),
    ready: get('vllm:engine_sleep_state', { sleep_state: 'awake' }) !== 0,
    started: get('process_start_time_seconds'),
    running: get('vllm:num_requests_running'),
    waiting: get('vllm:num_requests_waiting') ?? 0,
    kv: get('vllm:kv_cache_usage_perc'),
    kvBytes: get('vllm:kv_cache_bytes'),
    kvResident: get('vllm:kv_cache_resident_bytes'),
    weights: get('vllm:model_weight_bytes'),
    memory: get('process_resident_memory_bytes'),
    admissible: get('vllm:largest_admissible_prompt_tokens'),
    computed: get('vllm:prompt_tokens_by_source_total', { source: 'local_compute' }) ?? 0,
    cached: get('vllm:prompt_tokens_by_source_total', { source: 'local_cache_hit' }) ?? 0,
    prompt: get('vllm:prompt_tokens_total') ?? 0,
    generated: get('vllm:generation_tokens_total') ?? 0,
    queries: get('vllm:prefix_cache_queries_total') ?? 0,
    hits: get('vllm:prefix_cache_hits_total') ?? 0,
    preemptions: get('vllm:num_preemptions_total') ?? 0,
    steps: get('vllm:engine_steps_total') ?? 0,
    finished,
    step: histogram(families, 'vllm:engine_step_seconds'),
    token: histogram(families, 'vllm:inter_token_latency_seconds'),
    ttft: histogram(families, 'vllm:time_to_first_token_seconds'),
  };
}

// b goes on where a was: the same process (its start may move by a second when the clock is set), and nothing
// counted backwards.
export function follows(a, b) {
  const counters = ['prompt', 'generated', 'queries', 'hits', 'steps'];
  return Math.abs(a.started - b.started) < 2 && counters.every((name) => b[name] >= a[name]);
}

function times(base, now, name, point) {
  const seen = between(base?.[name], now[name]);
  point[`${name}Mean`] = seen ? seen.mean : null;
  point[`${name}P95`] = seen ? seen.quantile(0.95) : null;
}

// readings: oldest first, the last one is new. period: seconds between polls. -> the point of the last reading.
export function point(readings, period) {
  const now = readings[readings.length - 1];
  const before = readings[readings.length - 2];
  const whole = before && follows(before, now) && now.at - before.at < 4 * period + 2;
  const rate = (name) => (whole ? (now[name] - before[name]) / (now.at - before.at) : null);
  const p = {
    at: now.at,
    joined: Boolean(whole),
    running: now.running,
    waiting: now.waiting,
    kv: now.kv,
    generated: rate('generated'),
    computed: rate('computed'),
    cached: rate('cached'),
    hits: null,
  };
  let base = whole ? before : undefined;
  for (let i = readings.length - 3; base && i >= 0; i--) {
    if (now.at - readings[i].at > WINDOW + period / 2 || !follows(readings[i], base)) {
      break;
    }
    base = readings[i];
  }
  if (base && now.queries > base.queries) {
    p.hits = (now.hits - base.hits) / (now.queries - base.queries);
  }
  for (const name of ['step', 'token', 'ttft']) {
    times(base, now, name, p);
  }
  return p;
}
