# SPDX-License-Identifier: Apache-2.0
"""ERNIE 4.5 models on CPUs, with vLLM's Python interface.

    from tern import LLM, SamplingParams
    llm = LLM(model="models/tern-poet")
    print(llm.generate("春", SamplingParams(max_tokens=40))[0].outputs[0].text)
"""
from ._native import TernError, lib as _lib
from .engine.arg_utils import AsyncEngineArgs, EngineArgs
from .engine.async_llm_engine import AsyncLLMEngine
from .engine.core import Metrics
from .inputs import PromptType, TextPrompt, TokensPrompt
from .llm import LLM
from .outputs import CompletionOutput, Logprob, RequestOutput
from .sampling_params import GuidedDecodingParams, RequestOutputKind, SamplingParams, StructuredOutputsParams
from .tokenizer import Tokenizer

__version__: str = _lib.tern_version().decode()

__all__ = ["LLM", "AsyncEngineArgs", "AsyncLLMEngine", "CompletionOutput", "EngineArgs", "GuidedDecodingParams",
           "Logprob", "Metrics", "PromptType", "RequestOutput", "RequestOutputKind", "SamplingParams",
           "StructuredOutputsParams", "TernError", "TextPrompt", "Tokenizer", "TokensPrompt", "__version__"]
