// SPDX-License-Identifier: Apache-2.0
// Two languages. A page calls words({key: [english, 中文], …}) once and then t('key', {n: 3}); {n} in the text is the
// value. Reading t inside a component follows the language, because lang is a signal.
import { lang } from './prefs.js';

export function words(table) {
  return (key, values) => {
    const row = table[key];
    if (!row) throw new Error(`no text '${key}'`);
    const text = row[lang.value === 'zh-CN' ? 1 : 0];
    return values ? text.replace(/\{(\w+)\}/g, (all, name) => values[name] ?? all) : text;
  };
}
