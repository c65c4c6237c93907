# SPDX-License-Identifier: Apache-2.0
"""Offline generation with two prompts, as vLLM's users write it; the tests change nothing but the import line."""
import sys

from vllm import LLM, SamplingParams

prompts = ["春风", "The moon"]
sampling_params = SamplingParams(temperature=0.0, top_p=0.95, max_tokens=32)

llm = LLM(model=sys.argv[1], trust_remote_code=True, max_model_len=256)
outputs = llm.generate(prompts, sampling_params)

for output in outputs:
    prompt = output.prompt
    generated_text = output.outputs[0].text
    print(f"Prompt: {prompt!r}, Generated text: {generated_text!r}")
