# SPDX-License-Identifier: Apache-2.0
"""Eager against compiled on three prompts, two engines in one process; only the import lines are changed."""
import dataclasses
import sys

from vllm import LLM, SamplingParams
from vllm.engine.arg_utils import EngineArgs

prompts = ["春江", "秋月", "Hello, my name is"]
params = SamplingParams(temperature=0, max_tokens=24, logprobs=1)

args = EngineArgs(model=sys.argv[1], dtype="bfloat16", max_model_len=256, gpu_memory_utilization=0.4)
eager = LLM(**{**dataclasses.asdict(args), "enforce_eager": True})
compiled = LLM(model=sys.argv[1], dtype="bfloat16", max_model_len=256, gpu_memory_utilization=0.4,
               enforce_eager=False)

for a, b in zip(eager.generate(prompts, params), compiled.generate(prompts, params)):
    one, two = a.outputs[0], b.outputs[0]
    same = one.token_ids == two.token_ids and one.cumulative_logprob == two.cumulative_logprob
    print("same" if same else "different", repr(a.prompt), repr(one.text))
