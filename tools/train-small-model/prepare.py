#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Build the training text of the small poet model and its tokenizer.

usage: prepare.py POETRY_DIR TALES_TXT NOVELS_TXT OUT_DIR
POETRY_DIR: a tree of JSON files, lists of {title|rhythmic, author, paragraphs} (classical Chinese verse, public domain).
Writes OUT_DIR/{train,val}.bin (uint16 token ids, documents separated by </s>), tokenizer.model, docs sample.
"""
import glob, json, random, re, subprocess, sys
import numpy as np
import sentencepiece as spm

poetry_dir, tales, novels, out = sys.argv[1:5]
rng = random.Random(7)
CLS, SEP, EOS = "<|begin_of_sentence|>", "<|end_of_sentence|>", "</s>"

def to_simplified(lines):
    r = subprocess.run(["opencc", "-c", "t2s"], input="\n".join(lines), capture_output=True, text=True, check=True)
    return r.stdout.split("\n")

def form_of(paras):
    """Name the verse form from line lengths, or None."""
    lines = [x for p in paras for x in re.split(r"[，。！？；]", p) if x]
    n = {len(x) for x in lines}
    if len(n) != 1: return None
    k, m = n.pop(), len(lines)
    if k not in (5, 7): return None
    name = {5: "五言", 7: "七言"}[k]
    return name + {4: "绝句", 8: "律诗"}.get(m, "诗")

def poems():
    out = []
    for f in sorted(glob.glob(poetry_dir + "/**/*.json", recursive=True)):
        if "/error/" in f or "author" in f: continue
        try: data = json.load(open(f, encoding="utf-8"))
        except Exception: continue
        for p in data if isinstance(data, list) else []:
            if not isinstance(p, dict) or not isinstance(p.get("paragraphs"), list): continue
            title = (p.get("title") or p.get("rhythmic") or "").strip()
            body = "\n".join(x.strip() for x in p["paragraphs"])
            if title and 16 <= len(body) <= 220 and len(title) <= 14 and not re.search(r"[□\[\]（(A-Za-z0-9]", title + body):
                out.append((title, (p.get("author") or "").strip(), body, "rhythmic" in p))
    return out

ASK = ["写一首{form}，题目是《{t}》。", "以《{t}》为题写一首{form}。", "请作{form}一首：{t}", "{form}《{t}》", "写诗：{t}", "给我写一首关于{t}的诗。"]
CI = ["填一首{t}。", "写一首词，词牌是{t}。", "请填词《{t}》。"]
IDENT = [("你是谁？", "我是 tern 自带的示范小模型，只会写旧体诗和讲几句英文故事。"), ("你好", "你好！给我一个题目，我来写一首诗。"),
         ("你能做什么？", "给我一个题目，我能写五言、七言诗，也能填词。"), ("Hello", "Hello! Give me a title and I will write a short Chinese poem, or start a tale for me to go on with."),
         ("Who are you?", "I am the small demonstration model that ships with tern. I write classical Chinese verse and bits of old tales."),
         ("What can you do?", "I write short classical Chinese poems, and I can go on with a tale in English.")]

docs, raw = [], []
items = poems(); rng.shuffle(items)
flat = []
for t, a, b, ci in items: flat += [t, a, b.replace("\n", "\t"), ""]
flat = to_simplified(flat)
for i, (t0, a0, b0, ci) in enumerate(items):
    t, a, b = flat[4*i], flat[4*i+1], flat[4*i+2].replace("\t", "\n")
    form = form_of(b.split("\n"))
    if rng.random() < 0.75:
        ask = rng.choice(CI).format(t=t) if ci else rng.choice(ASK).format(t=t, form=form or "诗")
        docs.append(f"{CLS}User: {ask}\nAssistant: {b}{EOS}")
    else:
        docs.append(f"《{t}》{a}\n{b}{EOS}")
    raw.append(t + "\n" + b)
print("poems", len(docs))
english = open(tales, encoding="utf-8").read()
chunks = [c for c in re.split(r"\n+", english) if len(c) > 200]
for c in chunks:
    cut = c.find(". ", 40, 200)
    if cut > 0 and rng.random() < 0.5:
        docs.append(f"{CLS}User: Go on with this tale: {c[:cut+1]}\nAssistant: {c[cut+2:]}{EOS}")
    else: docs.append(c + EOS)
raw += chunks * 3
nov = open(novels, encoding="utf-8", errors="replace").read()
step = 1200
picks = [nov[i:i+step] for i in range(0, len(nov) - step, step)]
rng.shuffle(picks)
picks = [re.sub(r"\s*\n\s*", " ", p[p.find(" ")+1:]).strip() for p in picks[:9000]]
docs += [p + EOS for p in picks]; raw += picks
for _ in range(400):
    q, a = rng.choice(IDENT)
    docs.append(f"{CLS}User: {q}\nAssistant: {a}{EOS}")
rng.shuffle(docs)
sample = rng.sample(raw, min(len(raw), 120000))
open(out + "/spm.txt", "w", encoding="utf-8").write("\n".join(x for r in sample for x in r.split("\n") if x.strip()))
spm.SentencePieceTrainer.train(input=out + "/spm.txt", model_prefix=out + "/tokenizer", model_type="bpe", vocab_size=8192, byte_fallback=True,
    character_coverage=0.9995, add_dummy_prefix=False, remove_extra_whitespaces=False, normalization_rule_name="identity", split_digits=True,
    unk_id=0, bos_id=1, eos_id=2, pad_id=-1, user_defined_symbols=[str(i) for i in range(10)],
    control_symbols=[CLS, SEP] + [f"<mask:{i}>" for i in range(8)], max_sentence_length=8192, input_sentence_size=400000, shuffle_input_sentence=True, num_threads=1, allow_whitespace_only_pieces=True)
sp = spm.SentencePieceProcessor(model_file=out + "/tokenizer.model")
ids = {s: sp.piece_to_id(s) for s in (CLS, SEP, EOS)}
print(ids, "vocab", sp.vocab_size())
pat = re.compile("|".join(re.escape(s) for s in ids))
def encode(d):
    r, pos = [], 0
    for m in pat.finditer(d):
        if m.start() > pos: r += sp.encode(d[pos:m.start()])
        r.append(ids[m.group()]); pos = m.end()
    if pos < len(d): r += sp.encode(d[pos:])
    return r
n_val = 1500
for name, part in (("val", docs[:n_val]), ("train", docs[n_val:])):
    a = np.fromiter((t for d in part for t in encode(d)), dtype=np.uint16)
    a.tofile(f"{out}/{name}.bin"); print(name, len(part), "docs", len(a), "tokens")
open(out + "/val_docs.json", "w", encoding="utf-8").write(json.dumps(docs[:200], ensure_ascii=False, indent=0))
