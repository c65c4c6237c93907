// SPDX-License-Identifier: Apache-2.0
// What the scripts share: checks run in order and the first that fails ends the script; requests are remembered as sent.
export async function run(checks) {
  for (const [name, check] of Object.entries(checks)) {
    try {
      await check();
    } catch (e) {
      console.error(`FAILED ${name}`);
      throw e;
    }
    console.log(`ok ${name}`);
  }
  console.log('all checks passed');
}

// A fetch that keeps { path, body } of every request.
export function recorder() {
  const sent = [];
  const record = async (url, init) => {
    sent.push({
      path: new URL(typeof url === 'string' ? url : url.url ?? url.href).pathname,
      body: typeof init?.body === 'string' ? JSON.parse(init.body) : null,
    });
    return fetch(url, init);
  };
  return { sent, record };
}

export const poem = '写一首五言绝句，题目是《夜雨》。';
