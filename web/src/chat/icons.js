// SPDX-License-Identifier: Apache-2.0
// Line icons, 20 x 20, in the colour of the text.
import { html } from '../shared/html.js';

const paths = {
  menu: 'M3 5h14M3 10h14M3 15h14',
  plus: 'M10 4v12M4 10h12',
  gear: 'M10 12.5a2.5 2.5 0 1 0 0-5 2.5 2.5 0 0 0 0 5zM10 2.5v2M10 15.5v2M2.5 10h2M15.5 10h2M4.7 4.7l1.4 1.4M13.9 13.9l1.4 1.4M15.3 4.7l-1.4 1.4M6.1 13.9l-1.4 1.4',
  sliders: 'M3 6h8M15 6h2M3 14h2M9 14h8M13 8a2 2 0 1 0 0-4 2 2 0 0 0 0 4zM7 16a2 2 0 1 0 0-4 2 2 0 0 0 0 4z',
  chart: 'M3 17h14M5.5 14V9M10 14V4M14.5 14v-3',
  sun: 'M10 13.5a3.5 3.5 0 1 0 0-7 3.5 3.5 0 0 0 0 7zM10 2v2M10 16v2M2 10h2M16 10h2M4.3 4.3l1.4 1.4M14.3 14.3l1.4 1.4M15.7 4.3l-1.4 1.4M5.7 14.3l-1.4 1.4',
  moon: 'M16.5 12A7 7 0 0 1 8 3.5a7 7 0 1 0 8.5 8.5z',
  half: 'M10 3a7 7 0 1 0 0 14 7 7 0 0 0 0-14zM10 3v14M13 4v12M16 7v6',
  copy: 'M7 7h9v9H7zM4 13V4h9',
  pen: 'M4 16l.8-3.2L13.5 4 16 6.5 7.2 15.2z',
  again: 'M16 10a6 6 0 1 1-1.8-4.3M16 3v3.5h-3.5',
  right: 'M7 4l6 6-6 6',
  left: 'M13 4l-6 6 6 6',
  down: 'M10 4v12M5 11l5 5 5-5',
  up: 'M10 16V4M5 9l5-5 5 5',
  stop: 'M6 6h8v8H6z',
  bin: 'M4 6h12M8 6V4h4v2M6 6l.7 10h6.6L14 6',
  close: 'M5 5l10 10M15 5L5 15',
  play: 'M6 4l10 6-10 6z',
};

export const Icon = ({ name }) => html`<svg class="icon" viewBox="0 0 20 20" width="20" height="20" aria-hidden="true"
  focusable="false"><path d=${paths[name]} fill=${name === 'stop' ? 'currentColor' : 'none'} stroke="currentColor"
  stroke-width="1.5" stroke-linecap="round" stroke-linejoin="round"/></svg>`;

// A button that shows only a picture: its name is its label and its tooltip.
export const IconButton = ({ icon, label, testid, ...rest }) => html`<button type="button" class="icon-button"
  aria-label=${label} title=${label} data-testid=${testid} ...${rest}><${Icon} name=${icon}/></button>`;
