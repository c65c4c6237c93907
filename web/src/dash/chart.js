// SPDX-License-Identifier: Apache-2.0
// One chart: a heading with the value of now, and lines over the last minutes, drawn as SVG in real pixels so that
// its letters stay sharp at every width. To a screen reader it is one picture whose name says the numbers; the
// lines differ by dashes as well as by colour. The pointer, or the arrow keys, read out any moment.
import { html } from '../shared/html.js';
import { useSignal } from '@preact/signals';
import { useLayoutEffect, useRef } from 'preact/hooks';
import { ticks, linePath, areaPath, runsOf } from './scale.js';

const HEIGHT = 148;
const EDGE = { top: 8, right: 10, bottom: 22, left: 46 };

function last(points, key) {
  const p = points[points.length - 1];
  return p && p[key] !== undefined ? p[key] : null;
}

function highest(points, lines) {
  let top = 0;
  for (const p of points) {
    for (const { key } of lines) {
      top = Math.max(top, p[key] ?? 0);
    }
  }
  return top;
}

function useWidth() {
  const box = useRef(null);
  const width = useSignal(0);
  useLayoutEffect(() => {
    const measure = () => {
      width.value = Math.floor(box.current.clientWidth);
    };
    const watch = new ResizeObserver(measure);
    watch.observe(box.current);
    measure();
    return () => watch.disconnect();
  }, []);
  return [box, width.value];
}

// 'now' and every fourth to sixth part of the span before it, in whole half minutes.
function TimeAxis({ now, span, x, say }) {
  const step = Math.max(30, Math.floor(span / 4 / 60 / 2) * 120 || 30, span / 6);
  const places = [];
  for (let back = 0; back < span; back += step) {
    places.push(html`<text class="tick" x=${x(now - back)} y=${HEIGHT - 6}
      text-anchor=${back ? 'middle' : 'end'}>${say.ago(back)}</text>`);
  }
  return places;
}

function axisOf(kind, top) {
  if (kind === 'share') {
    return top > 0.5 ? [0, 0.5, 1] : top > 0.1 ? [0, 0.25, 0.5] : [0, 0.05, 0.1];
  }
  return ticks(top, 3, kind === 'count');
}

function Moment({ point, lines, x, width, say }) {
  const place = x(point.at);
  return html`
    <line class="moment" x1=${place} x2=${place} y1=${EDGE.top} y2=${HEIGHT - EDGE.bottom} />
    <text class="reading" x=${place > width / 2 ? place - 6 : place + 6} y=${EDGE.top + 10}
      text-anchor=${place > width / 2 ? 'end' : 'start'}>
      ${`${say.clock(point.at)}  ${lines.map((l) => say.value(point[l.key])).join(' / ')}`}
    </text>`;
}

// lines: [{ key, name }]; kind: 'count' | 'rate' | 'share' | 'time'; say: words and number formats of that kind.
export function Chart({ id, title, note, lines, kind, points, now, span, say }) {
  const [box, width] = useWidth();
  const chosen = useSignal(null);
  const from = now - span;
  const shown = points.filter((p) => p.at >= from - 5);
  const top = highest(shown, lines);
  const axis = axisOf(kind, top);
  const ceiling = axis[axis.length - 1];
  const unit = say.unit(ceiling);
  const x = (at) => EDGE.left + ((at - from) / span) * (width - EDGE.left - EDGE.right);
  const y = (v) => HEIGHT - EDGE.bottom - (v / ceiling) * (HEIGHT - EDGE.top - EDGE.bottom);
  const point = chosen.value !== null && shown.find((p) => p.at === chosen.value);
  const nearest = (event) => {
    const at = from + ((event.clientX - event.currentTarget.getBoundingClientRect().left - EDGE.left) /
      (width - EDGE.left - EDGE.right)) * span;
    const best = shown.reduce((b, p) => (b && Math.abs(b.at - at) <= Math.abs(p.at - at) ? b : p), null);
    chosen.value = best ? best.at : null;
  };
  const step = (event) => {
    const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === 'Escape') {
      chosen.value = null;
    } else if (way && shown.length) {
      event.preventDefault();
      const i = point ? shown.indexOf(point) + way : shown.length - 1;
      chosen.value = shown[Math.min(Math.max(i, 0), shown.length - 1)].at;
    }
  };
  const current = lines.map((l) => say.value(last(points, l.key)));
  const words = lines.map((l, i) => `${l.name}: ${current[i]}`).join('; ');
  const label = `${title}. ${words}. ${say.highest}: ${say.value(shown.length ? top : null)}`;
  const reading = point ? `${say.clock(point.at)}: ${lines.map((l) => `${l.name} ${say.value(point[l.key])}`).join('; ')}` : '';
  return html`
    <section class="card" id=${id} aria-labelledby=${`${id}-title`}>
      <header>
        <h2 id=${`${id}-title`}>${title}</h2>
        <p class="now" data-value=${lines[0].key}>${current[0]}</p>
      </header>
      <p class="legend">
        ${lines.length > 1
          ? lines.map((l, i) => html`<span class=${`key line${i}`}>${l.name}${i ? html` <b data-value=${l.key}>${current[i]}</b>` : ''}</span>`)
          : html`<span>${note}</span>`}
      </p>
      <div class="plot" ref=${box}>
        ${width > 0 &&
        html`<svg role="img" tabindex="0" aria-label=${label} width=${width} height=${HEIGHT} onPointerMove=${nearest}
          onPointerLeave=${() => { chosen.value = null; }} onBlur=${() => { chosen.value = null; }} onKeyDown=${step}>
          ${axis.map((v) => html`
            <line class=${v === 0 ? 'base' : 'grid'} x1=${EDGE.left} x2=${width - EDGE.right} y1=${y(v)} y2=${y(v)} />
            <text class="tick" x=${EDGE.left - 6} y=${y(v) + 3.5} text-anchor="end">${say.tick(v, unit)}</text>`)}
          <${TimeAxis} now=${now} span=${span} x=${x} say=${say} />
          ${lines.map((l, i) => {
            const runs = runsOf(shown, l.key, x, y);
            return html`
              ${i === 0 && html`<path class="area" d=${areaPath(runs, HEIGHT - EDGE.bottom)} />`}
              <path class=${`line line${i}`} d=${linePath(runs)} />`;
          })}
          ${point && html`<${Moment} point=${point} lines=${lines} x=${x} width=${width} say=${say} />`}
        </svg>`}
        ${shown.length < 2 && html`<p class="empty" aria-hidden="true">${say.collecting}</p>`}
      </div>
      <p class="visually-hidden" aria-live="polite">${reading}</p>
    </section>`;
}
