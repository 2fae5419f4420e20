"""Attention for CPUs, registered with transformers as NAME: torch's kernel, keys and values not copied."""

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward as transformers_sdpa
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

NAME = "cpu_sdpa"


def cpu_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: torch.Tensor | None = None,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """Return the attention's output, (batch, length, heads, head size) in the query's dtype, and no weights.

    transformers' sdpa repeats each key and value for the heads that share it, which on a CPU costs more than
    the attention. For one new token those heads are passed as positions of one head, so that each key is read
    once, an eighth of the time. Where gradients are wanted it computes in float32: bfloat16's backward pass
    is about four times slower. query: (batch, heads, length, head size); key, value: the same with fewer
    heads, value's with a head size of its own.
    """
    if position_bias is not None:  # Inkling's, which transformers 5.17 adds to the scores
        others = {"dropout": dropout, "scaling": scaling, "is_causal": is_causal}
        return transformers_sdpa(
            module, query, key, value, attention_mask, position_bias=position_bias, **others
        )
    dtype, shape = query.dtype, query.shape
    masks_heads = attention_mask is not None and attention_mask.shape[1] > 1
    if shape[2] == 1 and shape[1] != key.shape[1] and not masks_heads:
        query = query.reshape(shape[0], key.shape[1], -1, shape[3])
    if torch.is_grad_enabled() and dtype != torch.float32:
        query, key, value = query.float(), key.float(), value.float()
        if attention_mask is not None and attention_mask.is_floating_point():
            attention_mask = attention_mask.float()
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    output = scaled_dot_product_attention(
        query, key, value, attn_mask=attention_mask, dropout_p=dropout, scale=scaling,
        is_causal=is_causal and attention_mask is None and shape[2] > 1,
        enable_gqa=query.shape[1] != key.shape[1],
    )  # fmt: skip
    return output.reshape(*shape[:3], value.shape[3]).to(dtype).transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, cpu_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)


def use_cpu_attention(model: PreTrainedModel) -> None:
    """Replace transformers' sdpa in a model on a CPU; other models and other attention stay as they are."""
    if model.device.type == "cpu" and model.config._attn_implementation == "sdpa":
        model.set_attn_implementation(NAME)
