// SPDX-License-Identifier: Apache-2.0
import { render } from 'preact';
import { html } from '../shared/html.js';
import { words } from '../shared/i18n.js';

const t = words({ title: ['Chat', '对话'], dashboard: ['Dashboard', '仪表盘'] });
const App = () => html`<main><h1>${t('title')}</h1><a href="dashboard">${t('dashboard')}</a></main>`;
render(html`<${App}/>`, document.body);
