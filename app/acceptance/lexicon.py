"""Learning the token ids of the built-in texts from the engine, so that prompts have exact lengths."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from app.acceptance.prompts import Lexicon, Prompt, common_prefix
from app.errors import TargetError
from app.vllm.client import VLLMClient
from app.vllm.completions import CompletionRequest

_SAMPLES = ("a", "b")


class Tokenizer:
    """The engine's tokenizer: ``/tokenize``, or where that is closed, the prompt ids that a completion gives back."""

    def __init__(self, vllm: VLLMClient, model: str, run_key: str) -> None:
        self._vllm = vllm
        self._model = model
        self._salt = f"tk-{run_key}-tokenizer"
        self.source: str = "none"

    async def ids(self, text: str, messages: Sequence[Mapping[str, str]] | None = None) -> tuple[int, ...] | None:
        """Token ids with whatever the tokenizer puts around them; None where the engine tells nothing."""
        if self.source in ("none", "tokenize"):
            try:
                tokens = await self._vllm.tokenize(text, model=self._model, messages=messages)
            except TargetError as error:
                if error.http_status is None:
                    raise
            else:
                self.source = "tokenize"
                return tokens.ids
        request = CompletionRequest(
            model=self._model,
            prompt=None if messages is not None else text,
            messages=messages,
            max_tokens=1,
            logprobs=None,
            cache_salt=self._salt,
            kv_stats=False,
            stream=False,
        )
        answer = await self._vllm.complete(request)
        if answer.error is None and answer.prompt_token_ids:
            self.source = "prompt_token_ids"
            return answer.prompt_token_ids
        return None

    async def learn(self, texts: Iterable[str]) -> Lexicon | None:
        """A lexicon of these texts, or None where the engine tells no token ids."""
        one, two = await self.ids(_SAMPLES[0]), await self.ids(_SAMPLES[1])
        if one is None or two is None:
            return None
        lead = common_prefix(one, two)
        tail = common_prefix(one[::-1], two[::-1])
        ids: dict[str, tuple[int, ...]] = {}
        for text in dict.fromkeys(texts):
            found = await self.ids(text)
            if found is None:
                return None
            ids[text] = found[lead : len(found) - tail]
        return Lexicon(ids, one[:lead])

    async def measure(self, prompt: Prompt) -> Prompt:
        """The prompt with its real length and what it shares with its other question, where the engine can tell."""
        if prompt.token_ids is not None or prompt.tokens is not None:
            return prompt
        own = await self.ids(prompt.text or "", prompt.messages)
        if own is None or prompt.other is None:
            return prompt if own is None else replace(prompt, tokens=len(own))
        other = await self.ids(prompt.other.text or "", prompt.other.messages)
        shared = None if other is None else common_prefix(own, other)
        return replace(prompt, tokens=len(own), shared_tokens=shared)
