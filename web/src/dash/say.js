// SPDX-License-Identifier: Apache-2.0
// How numbers are written in the language in use: one object per kind of quantity. null is a dash: nothing was seen.
import { lang } from '../shared/prefs.js';
import { t } from './words.js';

const formats = new Map();
function format(value, options) {
  const key = lang.value + JSON.stringify(options);
  if (!formats.has(key)) {
    formats.set(key, new Intl.NumberFormat(lang.value, options));
  }
  return formats.get(key).format(value);
}

const significant = (v) => format(v, v >= 1000 ? { maximumFractionDigits: 0 } : { maximumSignificantDigits: 3 });
export const whole = (v) => (v === null ? '–' : format(v, { maximumFractionDigits: 0 }));
export const share = (v) => (v === null ? '–' : format(v, { style: 'percent',
  ...(v > 0 && v < 0.01 ? { maximumSignificantDigits: 2 } : { maximumFractionDigits: 1 }) }));
export const bytes = (v) => {
  if (v === null) {
    return '–';
  }
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  const i = v > 0 ? Math.min(4, Math.floor(Math.log2(v) / 10)) : 0;
  return `${format(v / 1024 ** i, { maximumFractionDigits: i ? 1 : 0 })} ${units[i]}`;
};
const seconds = (v) => (v < 1 ? `${significant(v * 1000)} ms` : `${significant(v)} s`);
const short = (v) => format(v, { notation: 'compact', maximumSignificantDigits: 3 });

function ago(s) {
  if (s === 0) {
    return t('now');
  }
  return s < 60 || s % 60 ? t('secondsAgo', { n: whole(s) }) : t('minutesAgo', { n: whole(s / 60) });
}

function clock(at) {
  return new Intl.DateTimeFormat(lang.value, { hour: '2-digit', minute: '2-digit', second: '2-digit', hourCycle: 'h23' })
    .format(at * 1000);
}

const kinds = {
  count: { value: whole, unit: () => null, tick: whole },
  rate: { value: (v) => (v === null ? '–' : `${significant(v)} ${t('tokensPerSecond')}`), unit: () => null, tick: short },
  share: { value: share, unit: () => null, tick: share },
  time: {
    value: (v) => (v === null ? '–' : seconds(v)),
    unit: (top) => (top < 1 ? 'ms' : 's'),
    tick: (v, unit) => (v === 0 ? '0' : `${significant(unit === 'ms' ? v * 1000 : v)} ${unit}`),
  },
};

export const say = (kind) => ({ ...kinds[kind], ago, clock, highest: t('highest'), collecting: t('collecting') });
