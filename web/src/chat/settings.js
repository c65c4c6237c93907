// SPDX-License-Identifier: Apache-2.0
// Settings of each model, in localStorage 'tern.models': {name: {system, systemOn, sampling, thinking}}. What is not
// there is the default; sampling holds only what differs from the server's values.
import { signal } from '@preact/signals';
import { lang } from '../shared/prefs.js';

const KEY = 'tern.models';
const defaultSystem = {
  en: 'Answer professionally and concisely. Come straight to the point, without padding or repetition.',
  'zh-CN': '请以专业、简洁的方式回答，直接切题，不说空话，不重复。',
};

export const samplingFields = [
  { name: 'temperature', min: 0, max: 2, step: 0.05, neutral: 1 },
  { name: 'top_p', min: 0.01, max: 1, step: 0.01, neutral: 1 },
  { name: 'top_k', min: 0, max: 100000, step: 1, neutral: 0 },
  { name: 'min_p', min: 0, max: 1, step: 0.01, neutral: 0 },
  { name: 'repetition_penalty', min: 0.01, max: 10, step: 0.01, neutral: 1 },
  { name: 'presence_penalty', min: -2, max: 2, step: 0.1, neutral: 0 },
  { name: 'frequency_penalty', min: -2, max: 2, step: 0.1, neutral: 0 },
  { name: 'max_tokens', min: 1, max: 10000000, step: 1, neutral: null },
  { name: 'seed', min: 0, max: 9007199254740991, step: 1, neutral: null },
];

// The model that ships writes verse on a title and follows no instructions.
export const isPoet = model => /(^|\/)tern-poet/.test(model ?? '');

function load() {
  try {
    const v = JSON.parse(globalThis.localStorage?.getItem(KEY));
    return v && typeof v === 'object' && !Array.isArray(v) ? v : {};
  } catch {
    return {};
  }
}

export const stored = signal(load());

export function modelSettings(model) {
  const s = stored.value[model] ?? {};
  return {
    system: typeof s.system === 'string' ? s.system : isPoet(model) ? '' : defaultSystem[lang.value],
    systemOn: s.systemOn ?? !isPoet(model),
    sampling: s.sampling ?? {},
    thinking: s.thinking ?? 'auto',
  };
}

export function replaceSettings(all) {
  stored.value = all;
  try {
    localStorage.setItem(KEY, JSON.stringify(all));
  } catch { /* kept in memory */ }
}

// A value of undefined goes back to the default.
export function changeSettings(model, change) {
  const next = { ...stored.value[model], ...change };
  for (const k of Object.keys(next)) if (next[k] === undefined) delete next[k];
  replaceSettings({ ...stored.value, [model]: next });
}

export function checkSampling(sampling) {
  const out = {};
  for (const f of samplingFields) {
    const v = sampling[f.name];
    if (typeof v === 'number' && v >= f.min && v <= f.max && (f.step < 1 || Number.isInteger(v))) out[f.name] = v;
  }
  return out;
}

// The body of a chat request.
export function requestBody(model, messages, settings, { goOn = false, canThink = false } = {}) {
  const body = {
    model, messages, stream: true,
    stream_options: { include_usage: true, continuous_usage_stats: true, include_progress: true },
    ...checkSampling(settings.sampling),
  };
  if (goOn) Object.assign(body, { continue_final_message: true, add_generation_prompt: false });
  if (canThink && settings.thinking !== 'auto') body.chat_template_kwargs = { enable_thinking: settings.thinking === 'on' };
  return body;
}

// "temperature 0.8\ntop_p 0.8" of /api/show -> values by the names of requests.
export function readDefaults(parameters) {
  const names = { repeat_penalty: 'repetition_penalty', num_predict: 'max_tokens' };
  const out = {};
  for (const line of (parameters ?? '').split('\n')) {
    const m = /^(\w+)\s+(-?[\d.eE+-]+)$/.exec(line.trim());
    if (m && Number.isFinite(+m[2])) out[names[m[1]] ?? m[1]] = +m[2];
  }
  return out;
}
