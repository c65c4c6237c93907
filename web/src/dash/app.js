// SPDX-License-Identifier: Apache-2.0
import { render } from 'preact';
import { html } from '../shared/html.js';
import { words } from '../shared/i18n.js';

const t = words({ title: ['Dashboard', '仪表盘'], chat: ['Chat', '对话'] });
const App = () => html`<main><h1>${t('title')}</h1><a href="./">${t('chat')}</a></main>`;
render(html`<${App}/>`, document.body);
