#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Train a small ERNIE-4.5-architecture language model on CPU with PyTorch and export it as a Hugging Face checkpoint (BF16 safetensors).

usage: train.py DATA_DIR OUT_DIR --minutes M [--bf16] [--resume CKPT]
DATA_DIR holds train.bin, val.bin (uint16 ids) and tokenizer.model from prepare.py.
Architecture: RMSNorm, interleaved RoPE (fp32), grouped-query attention with head_dim != hidden/heads, SwiGLU, tied embeddings, no biases.
"""
import argparse, json, math, os, struct, time
import numpy as np, torch
import torch.nn.functional as F

p = argparse.ArgumentParser()
p.add_argument("data"); p.add_argument("out"); p.add_argument("--minutes", type=float, default=60)
p.add_argument("--hidden", type=int, default=256); p.add_argument("--layers", type=int, default=6)
p.add_argument("--heads", type=int, default=4); p.add_argument("--kv", type=int, default=2); p.add_argument("--head-dim", type=int, default=128)
p.add_argument("--inter", type=int, default=768); p.add_argument("--ctx", type=int, default=256); p.add_argument("--batch", type=int, default=32)
p.add_argument("--lr", type=float, default=2e-3); p.add_argument("--bf16", action="store_true"); p.add_argument("--resume"); p.add_argument("--steps", type=int, default=0)
a = p.parse_args()
torch.manual_seed(1); torch.set_num_threads(2)
V, H, L, NH, KV, D, I = 8192, a.hidden, a.layers, a.heads, a.kv, a.head_dim, a.inter
train = np.memmap(a.data + "/train.bin", dtype=np.uint16, mode="r"); val = np.fromfile(a.data + "/val.bin", dtype=np.uint16)
std = 0.02
def w(*s, scale=1.0): return torch.nn.Parameter(torch.randn(*s) * std * scale)
P = {"model.embed_tokens.weight": w(V, H), "model.norm.weight": torch.nn.Parameter(torch.ones(H))}
for i in range(L):
    q = f"model.layers.{i}."
    P[q + "input_layernorm.weight"] = torch.nn.Parameter(torch.ones(H)); P[q + "post_attention_layernorm.weight"] = torch.nn.Parameter(torch.ones(H))
    P[q + "self_attn.q_proj.weight"] = w(NH * D, H); P[q + "self_attn.k_proj.weight"] = w(KV * D, H); P[q + "self_attn.v_proj.weight"] = w(KV * D, H)
    P[q + "self_attn.o_proj.weight"] = w(H, NH * D, scale=1 / math.sqrt(2 * L))
    P[q + "mlp.gate_proj.weight"] = w(I, H); P[q + "mlp.up_proj.weight"] = w(I, H); P[q + "mlp.down_proj.weight"] = w(H, I, scale=1 / math.sqrt(2 * L))
if a.resume: P = {k: torch.nn.Parameter(v) for k, v in torch.load(a.resume).items()}
inv = 500000.0 ** (-torch.arange(0, D, 2).float() / D)
ang = torch.arange(a.ctx).float()[:, None] * inv[None]
COS, SIN = ang.cos(), ang.sin()                       # [ctx, D/2]
MASK = torch.full((a.ctx, a.ctx), float("-inf")).triu(1)
def norm(x, g): x = x.float(); return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * g
def rope(x):                                          # [B, n, T, D], pairs (2i, 2i+1)
    T = x.shape[2]; x0, x1 = x[..., 0::2].float(), x[..., 1::2].float(); c, s = COS[:T], SIN[:T]
    return torch.stack((x0 * c - x1 * s, x1 * c + x0 * s), -1).flatten(-2)
dt = torch.bfloat16 if a.bf16 else torch.float32
def lin(x, W): return F.linear(x.to(dt), W.to(dt))
def forward(ids):
    B, T = ids.shape; x = P["model.embed_tokens.weight"][ids]
    for i in range(L):
        q = f"model.layers.{i}."
        h = norm(x, P[q + "input_layernorm.weight"])
        Q = lin(h, P[q + "self_attn.q_proj.weight"]).view(B, T, NH, D).transpose(1, 2); K = lin(h, P[q + "self_attn.k_proj.weight"]).view(B, T, KV, D).transpose(1, 2)
        Vv = lin(h, P[q + "self_attn.v_proj.weight"]).view(B, T, KV, D).transpose(1, 2)
        Q, K = rope(Q).to(dt), rope(K).to(dt); r = NH // KV
        K, Vv = K.repeat_interleave(r, 1), Vv.repeat_interleave(r, 1)
        s = (Q @ K.transpose(-1, -2)).float() * D ** -0.5 + MASK[:T, :T]
        o = (s.softmax(-1).to(dt) @ Vv).transpose(1, 2).reshape(B, T, NH * D)
        x = x + lin(o, P[q + "self_attn.o_proj.weight"]).float()
        h = norm(x, P[q + "post_attention_layernorm.weight"])
        x = x + lin(F.silu(lin(h, P[q + "mlp.gate_proj.weight"])) * lin(h, P[q + "mlp.up_proj.weight"]), P[q + "mlp.down_proj.weight"]).float()
    return lin(norm(x, P["model.norm.weight"]), P["model.embed_tokens.weight"]).float()
def batch(src, n, rng):
    i = rng.integers(0, len(src) - a.ctx - 1, n)
    x = np.stack([src[k:k + a.ctx + 1] for k in i]).astype(np.int64)
    return torch.from_numpy(x[:, :-1]), torch.from_numpy(x[:, 1:])
def loss_of(x, y): return F.cross_entropy(forward(x).view(-1, V), y.reshape(-1))
@torch.no_grad()
def evaluate():
    r = np.random.default_rng(0); return sum(loss_of(*batch(val, 16, r)).item() for _ in range(6)) / 6
decay = [v for k, v in P.items() if v.ndim > 1]; rest = [v for k, v in P.items() if v.ndim == 1]
opt = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], lr=a.lr, betas=(0.9, 0.95))
n_par = sum(v.numel() for v in P.values()); print(f"{n_par/1e6:.2f} M parameters", flush=True)
def export():
    os.makedirs(a.out, exist_ok=True); hdr, blobs, off = {"__metadata__": {"format": "pt"}}, [], 0
    for k in sorted(P):
        b = P[k].detach().to(torch.bfloat16).contiguous().view(torch.int16).numpy().tobytes()
        hdr[k] = {"dtype": "BF16", "shape": list(P[k].shape), "data_offsets": [off, off + len(b)]}; off += len(b); blobs.append(b)
    h = json.dumps(hdr).encode(); h += b" " * (-len(h) % 8)
    with open(a.out + "/model.safetensors.tmp", "wb") as f: f.write(struct.pack("<Q", len(h)) + h + b"".join(blobs))
    os.replace(a.out + "/model.safetensors.tmp", a.out + "/model.safetensors")
    json.dump({"architectures": ["Ernie4_5ForCausalLM"], "model_type": "ernie4_5", "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "hidden_act": "silu", "hidden_size": H,
        "intermediate_size": I, "num_hidden_layers": L, "num_attention_heads": NH, "num_key_value_heads": KV, "head_dim": D, "max_position_embeddings": 2048, "rms_norm_eps": 1e-05,
        "rope_theta": 500000.0, "tie_word_embeddings": True, "use_bias": False, "vocab_size": V, "torch_dtype": "bfloat16"}, open(a.out + "/config.json", "w"), indent=2)
    torch.save({k: v.detach() for k, v in P.items()}, a.data + "/ckpt.pt")
t0 = time.time(); rng = np.random.default_rng(1); step = 0; seen = 0; run = None
budget = a.minutes * 60
while True:
    el = time.time() - t0; frac = min(1.0, el / budget) if not a.steps else step / a.steps
    if frac >= 1.0: break
    lr = a.lr * min(1.0, (step + 1) / 100) * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * frac)))
    for g in opt.param_groups: g["lr"] = lr
    x, y = batch(train, a.batch, rng); l = loss_of(x, y); opt.zero_grad(set_to_none=True); l.backward()
    torch.nn.utils.clip_grad_norm_(list(P.values()), 1.0); opt.step()
    step += 1; seen += x.numel(); run = l.item() if run is None else 0.95 * run + 0.05 * l.item()
    if step % 20 == 0: print(f"step {step} tokens {seen/1e6:.2f}M loss {run:.3f} lr {lr:.2e} {seen/(time.time()-t0):.0f} tok/s", flush=True)
    if step % 400 == 0: print(f"  val {evaluate():.4f}", flush=True); export()
print(f"final val {evaluate():.4f} after {seen/1e6:.1f}M tokens, {(time.time()-t0)/60:.1f} min", flush=True); export()
