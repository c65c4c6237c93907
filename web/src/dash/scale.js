// SPDX-License-Identifier: Apache-2.0
// Axes and lines as numbers and path text. Pure.

// Round steps (1, 2, 5 times a power of ten) from 0 to at least `top`, about `n` of them; whole numbers if asked.
export function ticks(top, n = 3, whole = false) {
  const high = top > 0 ? top : 1;
  const rough = high / n;
  const power = 10 ** Math.floor(Math.log10(rough));
  let step = power * [1, 2, 5, 10].find((m) => m * power >= rough * 0.999);
  if (whole) {
    step = Math.max(1, Math.round(step));
  }
  const list = [0];
  while (list[list.length - 1] < high * 0.999) {
    list.push(Number((list.length * step).toPrecision(12)));
  }
  return list;
}

// Runs of [x, y] without a hole -> 'M…L…'. A lone point becomes a short dash, or it could not be seen.
export function linePath(runs) {
  return runs
    .map((run) => {
      const [x, y] = run[0];
      const rest = run.length > 1 ? run.slice(1) : [[x + 1.5, y]];
      return `M${x.toFixed(1)} ${y.toFixed(1)}${rest.map(([a, b]) => `L${a.toFixed(1)} ${b.toFixed(1)}`).join('')}`;
    })
    .join('');
}

export function areaPath(runs, floor) {
  return runs
    .filter((run) => run.length > 1)
    .map((run) => `${linePath([run])}L${run[run.length - 1][0].toFixed(1)} ${floor}L${run[0][0].toFixed(1)} ${floor}Z`)
    .join('');
}

// points -> runs of [x, y]; a value that is null, or a point that joins nothing before it, begins a new run.
export function runsOf(points, key, x, y) {
  const runs = [];
  let run = null;
  for (const p of points) {
    const value = p[key];
    if (value === null || value === undefined) {
      run = null;
    } else {
      if (!run || !p.joined) {
        run = [];
        runs.push(run);
      }
      run.push([x(p.at), y(value)]);
    }
  }
  return runs;
}
