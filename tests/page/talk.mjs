// SPDX-License-Identifier: Apache-2.0
// How a person uses the chat page: by the names that a screen reader would say, never by classes.
import assert from 'node:assert/strict';
import { until } from './world.mjs';

export const field = (page, name = 'Message') => page.getByRole('textbox', { name, exact: true });
export const button = (page, name, exact = true) => page.getByRole('button', { name, exact });
export const answers = (page, name = /^Answer of /) => page.getByLabel(name);
export const textOf = async (locator) => ((await locator.count()) ? (await locator.last().innerText()).trim() : '');
export const settings = (page) => page.getByRole('dialog', { name: /Settings|设置/ });
export const by = (page, id) => page.getByTestId(id);

export async function ready(page) {
  await by(page, 'composer').waitFor();
  await until('a server that can answer', async () => (await by(page, 'server-status').count()) === 0 &&
    ((await by(page, 'model-name').count()) === 0 || (await by(page, 'model-name').innerText()) !== ''));
}

export async function send(page, text) {
  await by(page, 'composer').fill(text);
  await page.locator('[data-testid=send]:enabled').waitFor();
  if (page.viewportSize().width < 500) { // on a touch screen Enter is a new line
    await by(page, 'send').click();
  } else {
    await by(page, 'composer').press('Enter');
  }
}

// Sends and waits for the whole answer.
export async function ask(page, text) {
  const before = await by(page, 'message-assistant').count();
  await send(page, text);
  await until('an answer', async () => (await by(page, 'message-assistant').count()) > before);
  await whole(page);
}

export async function whole(page) {
  await until('the end of the answer', async () => (await by(page, 'stop').count()) === 0 &&
    (await by(page, 'message-assistant').last().getAttribute('data-finish')) !== '');
}

export async function firstText(page, atLeast = 1) {
  await until('text of the answer', async () => (await written(page)).length >= atLeast);
}

// What the model wrote in the last answer, without names, buttons and counts.
export async function written(page) {
  const text = by(page, 'message-assistant').last().getByTestId('answer-text');
  return (await text.count()) ? (await text.innerText()).trim() : '';
}

export async function openSettings(page) {
  await by(page, 'settings').click();
  await settings(page).waitFor();
}

export async function closeSettings(page) {
  await page.keyboard.press('Escape');
  await settings(page).waitFor({ state: 'hidden' });
}

// Every answer of this page goes on until the context is full or it is stopped.
export async function endless(page) {
  await page.route('**/v1/chat/completions', (route) => route.continue({
    postData: JSON.stringify({ ...route.request().postDataJSON(), ignore_eos: true }),
  }));
}

// Tab, as often as it takes.
export async function tabTo(page, locator, most = 80) {
  for (let i = 0; i < most; i++) {
    if (await locator.evaluate((e) => e === document.activeElement).catch(() => false)) {
      return;
    }
    await page.keyboard.press('Tab');
  }
  assert.fail(`Tab does not reach ${locator}`);
}
