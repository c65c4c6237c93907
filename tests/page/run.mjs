// SPDX-License-Identifier: Apache-2.0
// run.mjs FILE: runs one file of tests for ctest. Installs what package-lock.json names when that changed; says by name
// why it can't run where there is no Chromium or no registry, and ends with 77 then, which ctest counts as skipped.
import { spawnSync } from 'node:child_process';
import fs from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

const here = path.dirname(fileURLToPath(import.meta.url));
const file = path.resolve(process.argv[2]);

function skip(why) {
  console.log(`skipped ${path.basename(file)}: ${why}`);
  process.exit(77);
}

function install() {
  const lock = fs.readFileSync(path.join(here, 'package-lock.json'));
  const mark = path.join(here, 'node_modules', '.installed');
  if (fs.existsSync(mark) && fs.readFileSync(mark).equals(lock)) {
    return;
  }
  const r = spawnSync('npm', ['ci', '--ignore-scripts', '--no-audit', '--no-fund', '--loglevel=error'],
    { cwd: here, encoding: 'utf8' });
  if (r.status !== 0) {
    skip(`npm ci did not work here: ${r.error?.message ?? r.stderr.slice(-400)}`);
  }
  fs.writeFileSync(mark, lock);
}

const chromium = process.env.TERN_CHROMIUM ?? '/usr/bin/chromium';
if (!fs.existsSync(chromium)) {
  skip(`${chromium} is not here (Debian's package chromium; TERN_CHROMIUM names another one)`);
}
install();
const r = spawnSync(process.execPath, ['--test-reporter=tap', file], { stdio: 'inherit' });
process.exit(r.status ?? 1);
