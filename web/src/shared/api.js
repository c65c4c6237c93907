// SPDX-License-Identifier: Apache-2.0
// Requests to the server that served the page. Paths are relative ('v1/models', no slash in front), so that the page
// works under any sub-path; the key of the settings goes along.
import { apiKey } from './prefs.js';

export class ApiError extends Error {
  constructor(status, message, code) {
    super(message);
    this.status = status; // 0: no answer at all
    this.code = code;     // a word such as context_length_exceeded, or the status again
  }
}

export async function request(path, { body, headers, ...options } = {}) {
  const all = { ...headers };
  if (apiKey.value) all.Authorization = `Bearer ${apiKey.value}`;
  if (body !== undefined) {
    options.method ??= 'POST';
    options.body = JSON.stringify(body);
    all['Content-Type'] = 'application/json';
  }
  let r;
  try {
    r = await fetch(path, { ...options, headers: all, credentials: 'same-origin', cache: 'no-store' });
  } catch (e) {
    if (e.name === 'AbortError') throw e;
    throw new ApiError(0, String(e.message ?? e));
  }
  if (r.ok) return r;
  const text = await r.text().catch(() => '');
  let message = text.slice(0, 400), code;
  try {
    const e = JSON.parse(text).error;
    // What is in the last brackets is for programs.
    message = typeof e === 'string' ? e : e.message.replace(/ \(parameter=.*\)$/s, '');
    code = e.code;
  } catch { /* a proxy's own page, say */ }
  throw new ApiError(r.status, message || r.statusText, code);
}

export const requestJson = async (path, options) => (await request(path, options)).json();
