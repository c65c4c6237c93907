// SPDX-License-Identifier: Apache-2.0
// Prometheus' text format (0.0.4) -> numbers. Pure: text in, values out, so that Node's test runner can judge it.
//
// A line is `name{label="value",…} number [timestamp]`. Inside a label's value \\ \" and \n are escapes; a value may
// hold `}` and `,`, which is why the labels are walked and not split. Comments (# HELP, # TYPE) say nothing that the
// dashboard needs. A line that is none of these is skipped: one odd line of a proxy must not blank eight charts.

const NAME = /[a-zA-Z_:][a-zA-Z0-9_:]*/y;
const LABEL = /\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\\n]|\\.)*)"\s*(,|(?=\}))/y;
const NUMBER = /\s*([^\s]+)(?:\s+-?\d+)?\s*$/y;

function at(pattern, line, position) {
  pattern.lastIndex = position;
  return pattern.exec(line);
}

function number(word) {
  if (/^[+-]?Inf$/i.test(word)) {
    return word[0] === '-' ? -Infinity : Infinity;
  }
  return /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(word) ? Number(word) : NaN;
}

function sample(line) {
  const name = at(NAME, line, 0);
  if (!name) {
    return null;
  }
  const labels = {};
  let position = NAME.lastIndex;
  if (line[position] === '{') {
    position += 1;
    for (let label = at(LABEL, line, position); label; label = at(LABEL, line, position)) {
      labels[label[1]] = label[2].replace(/\\(.)/g, (_, c) => (c === 'n' ? '\n' : c));
      position = LABEL.lastIndex;
    }
    if (line[position] !== '}') {
      return null;
    }
    position += 1;
  }
  const value = at(NUMBER, line, position);
  return value && { name: name[0], labels, value: number(value[1]) };
}

// -> Map: name -> [{ labels, value }]
export function parse(text) {
  const families = new Map();
  for (const line of text.split('\n')) {
    const s = line && line[0] !== '#' ? sample(line) : null;
    if (s) {
      const list = families.get(s.name);
      if (list) {
        list.push(s);
      } else {
        families.set(s.name, [s]);
      }
    }
  }
  return families;
}

// The sum over the label sets (several engines count together) that agree with `want`; null: no such series.
export function total(families, name, want = {}) {
  let sum = null;
  for (const { labels, value } of families.get(name) ?? []) {
    if (Object.entries(want).every(([k, v]) => labels[k] === v)) {
      sum = (sum ?? 0) + value;
    }
  }
  return sum;
}

// A histogram, summed over label sets: { bounds, counts (cumulative), sum, count }; null: no such series.
export function histogram(families, name) {
  const buckets = new Map();
  for (const { labels, value } of families.get(`${name}_bucket`) ?? []) {
    const bound = number(labels.le ?? '');
    buckets.set(bound, (buckets.get(bound) ?? 0) + value);
  }
  const count = total(families, `${name}_count`);
  if (count === null) {
    return null;
  }
  const bounds = [...buckets.keys()].sort((a, b) => a - b);
  return { bounds, counts: bounds.map((b) => buckets.get(b)), sum: total(families, `${name}_sum`) ?? 0, count };
}

// What was observed between two readings of one histogram: { mean, quantile(q) }; null: nothing was.
export function between(before, after) {
  const n = after && before ? after.count - before.count : 0;
  if (!(n > 0) || before.bounds.length !== after.bounds.length) {
    return null;
  }
  const counts = after.counts.map((c, i) => c - before.counts[i]);
  return {
    mean: (after.sum - before.sum) / n,
    // As Prometheus does it: linear inside the bucket; beyond the last finite bound it can only say that bound.
    quantile(q) {
      const rank = q * n;
      const i = counts.findIndex((c) => c >= rank);
      const low = i > 0 ? after.bounds[i - 1] : 0;
      if (i < 0 || after.bounds[i] === Infinity) {
        const finite = after.bounds.filter(Number.isFinite);
        return finite.length ? finite[finite.length - 1] : null;
      }
      const below = i > 0 ? counts[i - 1] : 0;
      return low + ((after.bounds[i] - low) * (rank - below)) / (counts[i] - below);
    },
  };
}
