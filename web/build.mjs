// SPDX-License-Identifier: Apache-2.0
// Builds the pages: node build.mjs OUTDIR
//
// Installs what package-lock.json names (npm ci, only when the lock file changed), bundles web/src with esbuild and
// writes to OUTDIR
//   site/…          the files as they are served: index.html, dashboard.html, assets/NAME-HASH.EXT
//   page.bin        their bytes one after another, plain and gzipped, 16-byte aligned
//   page_data.c     a table over page.bin (api/page.h), which .incbin puts into the program
//   sizes.json      what the first load of each page takes
// Everything the pages ask for is here: no outside file, no outside request. Names hold a hash of the content, so they
// may be cached for ever; only the two HTML files are asked for again.
import { createHash } from 'node:crypto';
import { execFileSync } from 'node:child_process';
import fs from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { gzipSync } from 'node:zlib';

const here = path.dirname(fileURLToPath(import.meta.url));
const out = path.resolve(process.argv[2] ?? 'dist');

function install() {
  const lock = fs.readFileSync(path.join(here, 'package-lock.json'));
  const mark = path.join(here, 'node_modules', '.installed');
  if (fs.existsSync(mark) && fs.readFileSync(mark).equals(lock)) return;
  console.log('web: npm ci');
  try {
    execFileSync('npm', ['ci', '--ignore-scripts', '--no-audit', '--no-fund', '--loglevel=error'],
                 { cwd: here, stdio: ['ignore', 'inherit', 'inherit'] });
  } catch {
    console.error('web: npm ci did not work here, so the chat page can\'t be built; configure with -DTERN_PAGE=OFF ' +
                  '(make PAGE=OFF) to build without it');
    process.exit(1);
  }
  fs.writeFileSync(mark, lock);
}

install();
const esbuild = await import('esbuild');

const hash = data => createHash('sha256').update(data).digest('hex').slice(0, 12);
const files = new Map(); // path as served -> bytes

// KaTeX names each font in three formats; every browser that runs the page knows woff2.
const katexFonts = {
  name: 'katex-fonts',
  setup(build) {
    build.onLoad({ filter: /katex[\\/]dist[\\/]katex(\.min)?\.css$/ }, async args => ({
      contents: (await fs.promises.readFile(args.path, 'utf8'))
        .replace(/,\s*url\([^)]*\.(woff|ttf)\)\s*format\(["'](woff|truetype)["']\)/g, ''),
      loader: 'css',
    }));
  },
};

const common = {
  absWorkingDir: here,
  bundle: true,
  minify: true,
  legalComments: 'none',
  charset: 'utf8',
  target: ['chrome111', 'firefox113', 'safari16.4'],
  write: false,
  outdir: '/site',
  entryNames: 'assets/[name]-[hash]',
  chunkNames: 'assets/[name]-[hash]',
  assetNames: 'assets/[name]-[hash]',
  loader: { '.woff2': 'file', '.svg': 'file' },
  metafile: true,
  logLevel: 'warning',
};

function take(result) {
  for (const f of result.outputFiles) files.set(path.relative('/site', f.path), Buffer.from(f.contents));
  const entries = {};
  for (const [name, o] of Object.entries(result.metafile.outputs)) {
    if (o.entryPoint) entries[o.entryPoint] = { file: name.slice(name.indexOf('assets/')), imports: o.imports };
  }
  return entries;
}

// Style sheets first: one of them is loaded by script, which has to know its name.
const styles = take(await esbuild.build({
  ...common,
  entryPoints: { chat: 'src/chat/style.css', dash: 'src/dash/style.css', katex: 'src/chat/math.css' },
  plugins: [katexFonts],
}));

// Licences of the parts, as their terms ask.
const parts = Object.entries(JSON.parse(fs.readFileSync(path.join(here, 'package-lock.json'))).packages)
  .filter(([name, p]) => name && !p.dev && !p.optional)
  .map(([name, p]) => ({ dir: path.join(here, name), title: `${name.replace(/^node_modules\//, '')} ${p.version}`, p }));
let licences = '';
for (const { dir, title, p } of parts) {
  if (!fs.existsSync(dir)) continue;
  const text = fs.readdirSync(dir).filter(f => /^licen[cs]e/i.test(f)).sort()
    .map(f => fs.readFileSync(path.join(dir, f), 'utf8')).join('\n');
  licences += `${title} (${p.license ?? 'see below'})\n\n${text}\n\n${'-'.repeat(72)}\n\n`;
}
const licencesFile = `assets/licences-${hash(licences)}.txt`;
files.set(licencesFile, Buffer.from(licences));
const icon = fs.readFileSync(path.join(here, 'src/shared/icon.svg'));
const iconFile = `assets/icon-${hash(icon)}.svg`;
files.set(iconFile, icon);

const scripts = take(await esbuild.build({
  ...common,
  entryPoints: { chat: 'src/chat/app.js', dash: 'src/dash/app.js', boot: 'src/shared/boot.js' },
  format: 'esm',
  splitting: true,
  define: {
    MATH_STYLE: JSON.stringify(path.basename(styles['src/chat/math.css'].file)),
    LICENCES: JSON.stringify(licencesFile),
    'process.env.NODE_ENV': '"production"',
  },
}));

const sizes = {};
const gz = data => gzipSync(data, { level: 9 });
// Both scripts fill the body and set the title.
const shell = fs.readFileSync(path.join(here, 'src/shared/page.html'), 'utf8');
function page(name, script, style) {
  const js = scripts[script], chunks = js.imports.filter(i => i.kind === 'import-statement')
    .map(i => i.path.slice(i.path.indexOf('assets/')));
  const used = { ICON: iconFile, STYLE: styles[style].file, BOOT: scripts['src/shared/boot.js'].file, SCRIPT: js.file };
  let text = shell.replace(/%([A-Z]+)%/g, (all, key) => used[key] ?? all);
  text = text.replace('%CHUNKS%', () => chunks.map(c => `<link rel="modulepreload" href="${c}">`).join('\n'));
  const data = Buffer.from(text);
  files.set(name, data);
  sizes[name] = [name, ...Object.values(used), ...chunks].reduce((n, f) => n + gz(files.get(f)).length, 0);
}
page('index.html', 'src/chat/app.js', 'src/chat/style.css');
page('dashboard.html', 'src/dash/app.js', 'src/dash/style.css');

const types = {
  '.html': 'text/html; charset=utf-8', '.js': 'text/javascript; charset=utf-8', '.css': 'text/css; charset=utf-8',
  '.svg': 'image/svg+xml', '.woff2': 'font/woff2', '.txt': 'text/plain; charset=utf-8',
};
const blob = [], rows = [];
let at = 0;
function put(data) {
  const start = at;
  blob.push(data, Buffer.alloc(-data.length & 15));
  at += data.length + (-data.length & 15);
  return start;
}
fs.rmSync(path.join(out, 'site'), { recursive: true, force: true });
for (const [name, data] of [...files].sort(([a], [b]) => (a < b ? -1 : 1))) {
  const file = path.join(out, 'site', name), type = types[path.extname(name)];
  if (!type) throw new Error(`no content type for ${name}`);
  fs.mkdirSync(path.dirname(file), { recursive: true });
  fs.writeFileSync(file, data);
  const small = gz(data), use = small.length < data.length * 0.95;
  const plainAt = put(data), gzipAt = use ? put(small) : 0;
  rows.push(`    {"${name}", "${type}", "\\"${hash(data)}\\"", tern_page_bin + ${plainAt}, ${data.length}, ` +
            (use ? `tern_page_bin + ${gzipAt}, ${small.length}},` : 'NULL, 0},'));
}
fs.writeFileSync(path.join(out, 'page.bin'), Buffer.concat(blob));
fs.writeFileSync(path.join(out, 'sizes.json'), JSON.stringify(sizes) + '\n');
fs.writeFileSync(path.join(out, 'page_data.c'), `/* SPDX-License-Identifier: Apache-2.0 */
/* Made by web/build.mjs. The bytes are in page.bin beside this file. */
#include "api/page.h"

__asm__(".section .rodata\\n"
        ".balign 16\\n"
        ".globl tern_page_bin\\n"
        ".hidden tern_page_bin\\n"
        "tern_page_bin:\\n"
        ".incbin \\"${path.join(out, 'page.bin')}\\"\\n"
        ".byte 0\\n"
        ".previous\\n");
extern const unsigned char tern_page_bin[];

static const struct page_file files[] = {
${rows.join('\n')}
};

const struct page *page_built_in(void)
{
    static const struct page page = {files, (int)(sizeof files / sizeof files[0])};
    return &page;
}
`);
console.log('web: first load, gzipped: ' + Object.entries(sizes).map(([n, s]) => `${n} ${s} bytes`).join(', '));
