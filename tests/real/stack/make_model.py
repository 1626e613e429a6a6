"""Writes a tiny Llama with random weights (seed 0) and a byte-level tokenizer; runs inside the stack's own environment.

Usage: python make_model.py DIRECTORY. Some 400,000 parameters in bfloat16: enough for answers that differ per prompt
and for log-probabilities that move when a wrong key or value is read, small enough to run a thousand tokens in a
tenth of a second.
"""

import sys

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

WORDS = (
    "the cache key value prefix token block model layer chunk store retrieve lookup evict disk memory "
    "server engine prompt request hello world of to and in is a it for on with as at by"
)
SPECIAL = ["<unk>", "<s>", "</s>", "<|user|>", "<|assistant|>", "<|system|>"]
CHAT = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def vocabulary() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Byte-level alphabet plus a few whole words, and the merges that build them."""
    vocab: dict[str, int] = {}
    for token in [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]:
        vocab[token] = len(vocab)
    merges: list[tuple[str, str]] = []
    for word in WORDS.split():
        for spelled in ("Ġ" + word, word):
            parts = list(spelled)
            while len(parts) > 1:
                pair = (parts[0], parts[1])
                joined = "".join(pair)
                if joined not in vocab:
                    vocab[joined] = len(vocab)
                    merges.append(pair)
                parts = [joined, *parts[2:]]
    return vocab, merges


def main(directory: str) -> None:
    """Writes tokenizer, configuration and weights into `directory`."""
    vocab, merges = vocabulary()
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        pad_token="</s>",
        additional_special_tokens=SPECIAL[3:],
    )
    fast.chat_template = CHAT
    fast.model_max_length = 8192
    fast.save_pretrained(directory)
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=(len(vocab) + 63) // 64 * 64,
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            max_position_embeddings=8192,
            rms_norm_eps=1e-5,
            bos_token_id=1,
            eos_token_id=2,
            pad_token_id=2,
            tie_word_embeddings=False,
            torch_dtype="bfloat16",
        )
    )
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.15)
    model.to(torch.bfloat16).save_pretrained(directory, safe_serialization=True)


if __name__ == "__main__":
    main(sys.argv[1])
