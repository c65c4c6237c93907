// SPDX-License-Identifier: Apache-2.0
// Runs before the first paint, so that a dark page does not flash white: theme and language from what was stored.
// Kept apart from prefs.js (which owns these settings) because it must be small and must not wait for modules.
let stored = {};
try {
  stored = JSON.parse(localStorage.getItem('tern.prefs')) ?? {};
} catch { /* storage is off or broken: the defaults will do */ }
const root = document.documentElement;
if (stored.theme === 'dark' || stored.theme === 'light') root.dataset.theme = stored.theme;
root.lang = stored.lang ?? (/^zh/i.test(navigator.language) ? 'zh-CN' : 'en');
