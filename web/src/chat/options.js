// SPDX-License-Identifier: Apache-2.0
// What the settings dialog holds; fetched when it is opened for the first time.
import { useSignal } from '@preact/signals';
import { useRef } from 'preact/hooks';
import { html } from '../shared/html.js';
import { lang, savePref, theme } from '../shared/prefs.js';
import { KeyField, ModelSelect } from './dialogs.js';
import { info, model, models, version } from './server.js';
import { changeSettings, modelSettings, samplingFields } from './settings.js';
import { deleteAll, exportFile, importFile, rev, threads } from './state.js';
import { sizeOf } from './store.js';
import { t } from './words.js';

function Sampling({ name, settings }) {
  const set = (field, value) => {
    const sampling = { ...settings.sampling };
    if (value === '' || !Number.isFinite(+value)) delete sampling[field.name];
    else sampling[field.name] = Math.min(field.max, Math.max(field.min, field.step < 1 ? +value : Math.round(+value)));
    changeSettings(name, { sampling: Object.keys(sampling).length ? sampling : undefined });
  };
  return html`<fieldset><legend>${t('sampling')}</legend><p class="quiet">${t('samplingHelp')}</p>
    <div class="fields">${samplingFields.map(f => {
      const own = settings.sampling[f.name], server = info.value.defaults[f.name] ?? f.neutral;
      return html`<label key=${f.name} class=${own === undefined ? '' : 'own'}><span>${t(f.name)}</span>
        <input type="number" inputmode="decimal" data-testid=${`sampling-${f.name}`} min=${f.min} max=${f.max}
          step=${f.step < 1 ? 'any' : 1} value=${own ?? server ?? ''} placeholder=${t('automatic')}
          onChange=${e => set(f, e.target.value)}/></label>`;
    })}</div>
    <button type="button" class="text-button" data-testid="sampling-reset" disabled=${!Object.keys(settings.sampling).length}
      onClick=${() => changeSettings(name, { sampling: undefined })}>${t('resetSampling')}</button></fieldset>`;
}

function System({ name, settings }) {
  return html`<fieldset><legend>${t('system')}</legend>
    <label class="check"><input type="checkbox" checked=${settings.systemOn} data-testid="system-on"
      onChange=${e => changeSettings(name, { systemOn: e.target.checked })}/>${t('useSystem')}</label>
    <textarea rows="4" aria-label=${t('system')} data-testid="system-text" value=${settings.system}
      onInput=${e => changeSettings(name, { system: e.target.value })}></textarea>
    <p class="quiet">${t('systemHelp')}
      <button type="button" class="text-button" data-testid="system-reset"
        onClick=${() => changeSettings(name, { system: undefined, systemOn: undefined })}>${t('resetDefault')}</button></p></fieldset>`;
}

export default function Options() {
  const sure = useSignal(false), file = useRef(), name = model.value, settings = modelSettings(name);
  rev.value;
  const size = threads.value.reduce((n, th) => n + sizeOf(th), 0);
  const sizeText = size > 1e6 ? `${(size / 1e6).toFixed(1)} MB` : `${Math.ceil(size / 1e3)} kB`;
  return html`${models.value.length > 1 && html`<label class="line"><span>${t('model')}</span><${ModelSelect}/></label>`}
    ${name && html`<${System} name=${name} settings=${settings}/><${Sampling} name=${name} settings=${settings}/>`}
    <fieldset><legend>${t('appearance')}</legend>
      <label class="line"><span>${t('language')}</span><select data-testid="language" value=${lang.value}
        onChange=${e => savePref('lang', e.target.value)}><option value="en" lang="en">English</option>
        <option value="zh-CN" lang="zh-CN">中文</option></select></label>
      <label class="line"><span>${t('theme')}</span><select data-testid="theme" value=${theme.value}
        onChange=${e => savePref('theme', e.target.value)}><option value="auto">${t('themeAuto')}</option>
        <option value="light">${t('themeLight')}</option><option value="dark">${t('themeDark')}</option></select></label></fieldset>
    <fieldset><legend>${t('apiKey')}</legend><p class="quiet">${t('keyHelp')}</p><${KeyField}/></fieldset>
    <fieldset><legend>${t('data')}</legend><p class="quiet">${t('dataHelp', { n: threads.value.length, size: sizeText })}</p>
      <div class="row"><button type="button" class="button" onClick=${exportFile} disabled=${!threads.value.length}>${t('exportAll')}</button>
        <button type="button" class="button" onClick=${() => file.current.click()}>${t('importAll')}</button>
        <input ref=${file} type="file" accept="application/json,.json" hidden aria-label=${t('importAll')} onChange=${e => {
          if (e.target.files[0]) importFile(e.target.files[0]);
          e.target.value = '';
        }}/>
        <button type="button" class="button danger" data-testid="delete-all" disabled=${!threads.value.length}
          onClick=${() => (sure.value ? deleteAll().then(() => { sure.value = false; }) : (sure.value = true))}>
          ${sure.value ? t('removeAllSure', { n: threads.value.length }) : t('removeAll')}</button></div></fieldset>
    <p class="quiet">${version.value && t('version', { v: version.value })} <a href=${LICENCES} target="_blank">${t('licences')}</a></p>
`;
}
