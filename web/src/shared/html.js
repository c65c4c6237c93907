// SPDX-License-Identifier: Apache-2.0
// Markup without a compiler: html`<p>…</p>` makes Preact elements. Values are set as properties and text, never parsed.
import htm from 'htm';
import { h } from 'preact';

export const html = htm.bind(h);
