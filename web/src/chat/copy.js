// SPDX-License-Identifier: Apache-2.0
// The clipboard. Without TLS a browser offers its interface only on this machine itself; then the old way is used.
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch { /* below */ }
  const area = document.createElement('textarea'), focused = document.activeElement;
  area.value = text;
  area.className = 'visually-hidden';
  document.body.append(area);
  area.select();
  let done = false;
  try {
    done = document.execCommand('copy');
  } catch { /* told by the result */ }
  area.remove();
  focused?.focus();
  return done;
}
