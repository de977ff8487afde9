"""Five models of Hugging Face's transformers, small and with random weights, to be judged as one's own.

fsdp-conformance run --model hugging_face:gpt2 (see README.md)
"""

from __future__ import annotations

from typing import Any

import torch
import transformers as hf

DECODER = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 4}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "use_cache": False}


def text() -> dict[str, Any]:
    """Two sentences of eight tokens, which are also the labels."""
    tokens = torch.randint(0, 64, (2, 8))
    return {"input_ids": tokens, "labels": tokens}


def llama() -> Any:
    """A decoder with rotary embeddings and grouped queries."""
    return hf.LlamaForCausalLM(hf.LlamaConfig(**DECODER, **HEADS)), text()


def gpt2() -> Any:
    """A decoder whose head is tied to its embedding."""
    config = hf.GPT2Config(
        vocab_size=64, n_positions=16, n_embd=16, n_layer=4, n_head=4, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0
    )
    return hf.GPT2LMHeadModel(config), text()


def t5() -> Any:
    """An encoder and a decoder, of which each has a position bias in its first block."""
    config = hf.T5Config(
        vocab_size=64, d_model=16, d_kv=4, d_ff=32, num_layers=3, num_heads=4, dropout_rate=0,
        use_cache=False, decoder_start_token_id=0,
    )  # fmt: skip
    return hf.T5ForConditionalGeneration(config), text()


def mixtral() -> Any:
    """A decoder of experts, of which each token is sent to two."""
    config = hf.MixtralConfig(**DECODER, **HEADS, num_local_experts=4, experts_implementation="eager")
    return hf.MixtralForCausalLM(config), text()


def vit() -> Any:
    """An encoder of pictures."""
    config = hf.ViTConfig(
        **{name: size for name, size in DECODER.items() if name != "vocab_size"},
        num_attention_heads=4, image_size=8, patch_size=4, num_labels=8,
    )  # fmt: skip
    return hf.ViTForImageClassification(config), {"pixel_values": torch.randn(2, 3, 8, 8), "labels": torch.arange(2)}
