// SPDX-License-Identifier: Apache-2.0
// The dashboard's arithmetic, without a browser: text of /metrics -> numbers -> points of the charts.
import { test } from 'node:test';
import assert from 'node:assert/strict';
import { parse, total, histogram, between } from '../src/dash/prom.js';
import { read, point, follows } from '../src/dash/series.js';
import { ticks, runsOf, linePath } from '../src/dash/scale.js';

test('a sample has its name, labels and value', () => {
  const f = parse('# HELP a what it is\n# TYPE a counter\na{x="1",y="two"} 3\na{x="2"} 4.5e1 1700000000\nb 7\n');
  assert.deepEqual(f.get('a').map(({ labels, value }) => [labels, value]), [[{ x: '1', y: 'two' }, 3], [{ x: '2' }, 45]]);
  assert.equal(total(f, 'b'), 7);
  assert.equal(total(f, 'c'), null);
});

test('labels may hold braces, commas, quotes, backslashes and line breaks', () => {
  const f = parse('a{p="x},y=\\"z\\"",q="1\\\\2\\n3",} 1\n');
  assert.deepEqual(f.get('a')[0].labels, { p: 'x},y="z"', q: '1\\2\n3' });
});

test('infinities and not-a-number are read as such', () => {
  const f = parse('a +Inf\nb -Inf\nc NaN\n');
  assert.equal(total(f, 'a'), Infinity);
  assert.equal(total(f, 'b'), -Infinity);
  assert.ok(Number.isNaN(total(f, 'c')));
});

test('lines that are no samples are skipped', () => {
  const f = parse('<html>\n{x="1"} 2\na{x=1} 3\na{x="1" 3\nb\ngood 5\n\n');
  assert.deepEqual([...f.keys()], ['good']);
});

test('several engines count together, one label set alone', () => {
  const f = parse('n{engine="0",r="stop"} 1\nn{engine="1",r="stop"} 2\nn{engine="0",r="length"} 4\n');
  assert.equal(total(f, 'n'), 7);
  assert.equal(total(f, 'n', { r: 'stop' }), 3);
  assert.equal(total(f, 'n', { r: 'abort' }), null);
});

const hist = (counts, sum) => {
  const bounds = ['0.1', '0.2', '0.4', '+Inf'];
  return histogram(parse(bounds.map((b, i) => `h_bucket{le="${b}"} ${counts[i]}\n`).join('') +
    `h_sum ${sum}\nh_count ${counts[3]}\n`), 'h');
};

test('between two readings of a histogram lie a mean and quantiles', () => {
  const seen = between(hist([2, 2, 2, 2], 0.1), hist([2, 6, 12, 12], 3.1));
  assert.ok(Math.abs(seen.mean - 0.3) < 1e-12);
  assert.ok(Math.abs(seen.quantile(0.4) - 0.2) < 1e-12); // 4 of 10 lie at or below 0.2
  assert.ok(Math.abs(seen.quantile(0.7) - 0.3) < 1e-12); // 3 of 6 into the bucket from 0.2 to 0.4
});

test('a quantile beyond the last finite bound is that bound', () => {
  assert.equal(between(hist([0, 0, 0, 0], 0), hist([0, 0, 1, 9], 50)).quantile(0.95), 0.4);
});

test('nothing observed is null, not zero', () => {
  assert.equal(between(hist([1, 2, 3, 4], 1), hist([1, 2, 3, 4], 1)), null);
  assert.equal(between(null, hist([1, 2, 3, 4], 1)), null);
});

const metrics = (v) => `
vllm:num_requests_running{model_name="m",engine="0"} ${v.running ?? 0}
vllm:num_requests_waiting{model_name="m",engine="0"} ${v.waiting ?? 0}
vllm:engine_sleep_state{model_name="m",engine="0",sleep_state="awake"} ${v.ready ?? 1}
vllm:kv_cache_usage_perc{model_name="m",engine="0"} ${v.kv ?? 0}
vllm:generation_tokens_total{model_name="m",engine="0"} ${v.generated ?? 0}
vllm:prompt_tokens_by_source_total{model_name="m",engine="0",source="local_compute"} ${v.computed ?? 0}
vllm:prompt_tokens_by_source_total{model_name="m",engine="0",source="local_cache_hit"} ${v.cached ?? 0}
vllm:prefix_cache_queries_total{model_name="m",engine="0"} ${v.queries ?? 0}
vllm:prefix_cache_hits_total{model_name="m",engine="0"} ${v.hits ?? 0}
vllm:request_success_total{model_name="m",engine="0",finished_reason="stop"} 3
vllm:engine_step_seconds_bucket{model_name="m",engine="0",le="0.5"} ${v.steps ?? 0}
vllm:engine_step_seconds_bucket{model_name="m",engine="0",le="+Inf"} ${v.steps ?? 0}
vllm:engine_step_seconds_sum{model_name="m",engine="0"} ${(v.steps ?? 0) * 0.25}
vllm:engine_step_seconds_count{model_name="m",engine="0"} ${v.steps ?? 0}
process_start_time_seconds ${v.started ?? 1000}
`;

test('a reading knows the model and whether it is loaded; other text is no reading', () => {
  assert.equal(read(metrics({}), 0).model, 'm');
  assert.equal(read(metrics({}), 0).ready, true);
  assert.equal(read(metrics({ ready: 0 }), 0).ready, false);
  assert.equal(read('<html>502 Bad Gateway</html>', 0), null);
});

test('rates are differences over the time between two readings', () => {
  const p = point([read(metrics({ generated: 100, computed: 8, cached: 0 }), 10),
    read(metrics({ generated: 160, computed: 28, cached: 4, running: 3, waiting: 2, kv: 0.25 }), 12)], 2);
  assert.deepEqual([p.generated, p.computed, p.cached, p.running, p.waiting, p.kv], [30, 10, 2, 3, 2, 0.25]);
});

test('hit rate and times look back ten seconds', () => {
  const readings = [0, 2, 4, 6, 8, 10, 12].map((at) => read(metrics({ queries: at * 10, hits: at < 4 ? at * 10 : 20 + at, steps: at }), at));
  const p = point(readings, 2);
  assert.equal(p.hits, (32 - 20) / (120 - 20)); // from 2 to 12
  assert.equal(p.stepMean, 0.25);
});

test('a restart and a long pause leave a gap, not a spike', () => {
  const before = read(metrics({ generated: 500 }), 10);
  const restarted = read(metrics({ generated: 4, started: 2000 }), 12);
  assert.equal(follows(before, restarted), false);
  assert.equal(point([before, restarted], 2).generated, null);
  assert.equal(point([before, restarted], 2).joined, false);
  assert.equal(point([before, read(metrics({ generated: 600 }), 70)], 2).generated, null);
});

test('axes have round steps from nought to the highest value', () => {
  assert.deepEqual(ticks(147), [0, 50, 100, 150]);
  assert.deepEqual(ticks(0.037), [0, 0.02, 0.04]);
  assert.deepEqual(ticks(0, 3, true), [0, 1]);
  assert.deepEqual(ticks(2, 3, true), [0, 1, 2]);
  for (const top of [1e-9, 0.3, 7, 99.9, 123456, 1e9]) {
    const list = ticks(top);
    assert.ok(list[list.length - 1] >= top * 0.999 && list.length <= 5, `${top}: ${list}`);
  }
});

test('a line is broken where nothing was seen', () => {
  const points = [{ at: 0, v: 1, joined: false }, { at: 1, v: 2, joined: true }, { at: 2, v: null, joined: true },
    { at: 3, v: 4, joined: true }, { at: 9, v: 5, joined: false }, { at: 10, v: 6, joined: true }];
  const runs = runsOf(points, 'v', (x) => x, (y) => y);
  assert.deepEqual(runs, [[[0, 1], [1, 2]], [[3, 4]], [[9, 5], [10, 6]]]);
  assert.equal(linePath(runs).match(/M/g).length, 3);
});
