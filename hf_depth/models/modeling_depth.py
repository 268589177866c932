"""
DEPTH: T5 with sentence tokens and hierarchical attention (arXiv 2405.07788).

Imports only torch, transformers and the configuration beside it: the Hub ships these two files as custom code.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from transformers import T5ForConditionalGeneration as HFT5ForConditionalGeneration
from transformers import initialization as init
from transformers.masking_utils import (
    ALL_MASK_ATTENTION_FUNCTIONS,
    and_masks,
    causal_mask_function,
    padding_mask_function,
)
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput
from transformers.models.t5.modeling_t5 import T5Attention, T5Stack

from .configuration_depth import DepthConfig


@dataclass
class DepthEncoderOutput(BaseModelOutput):
    """
    A [`BaseModelOutput`] that remembers where the sentence tokens stand, so that the decoder can find them, also in
    `generate()`, which calls the encoder by itself.

    Args:
        sentence_mask (`torch.BoolTensor` of shape `(batch_size, source_length)`, *optional*):
            `True` where the encoder input is a sentence token; `None` when the input came as embeddings.
    """

    sentence_mask: torch.BoolTensor | None = None


@dataclass
class TokenLossSeq2SeqLMOutput(Seq2SeqLMOutput):
    """
    A [`Seq2SeqLMOutput`] with one loss per label.

    Args:
        token_losses (`torch.FloatTensor` of shape `(batch_size, target_length)`, *optional*):
            Cross-entropy in nats, float32, 0 where the label is -100. Returned when `labels` are given.
    """

    token_losses: torch.FloatTensor | None = None


class InitializedAsT5:
    """
    Makes a class outside of transformers start from the weights of T5. In such "custom code" transformers (5.17 to
    5.23) skips all modules without parameters of their own. T5 initializes its layers there, so that every matrix
    would keep the standard deviation of 1 that a plain `nn.Linear` gets.
    """

    @classmethod
    def is_custom_code(cls) -> bool:
        return False


class T5ForConditionalGeneration(InitializedAsT5, HFT5ForConditionalGeneration):
    """
    The stock T5 with three repairs; it saves and loads as the stock class does.

    - A T5 v1.1 (`config.scale_decoder_outputs=False`) really has an output head of its own, which starts with
      standard deviation `d_model ** -0.5`, survives saving, loading and resizing, and is never tied.
    - The loss is normalised by `num_items_in_batch`, the number of labels in the global batch, when that is given.
    - The output has `token_losses`, one per label.
    """

    def __init__(self, config):
        super().__init__(config)
        # T5Config forces True; releases that read the flag (transformers 4) would tie a saved v1.1 head.
        self.config.tie_word_embeddings = config.scale_decoder_outputs

    def get_expanded_tied_weights_keys(self, all_submodels: bool = False) -> dict[str, str]:
        """The weights that share storage, `{target: source}`: the embeddings always, the head in T5 v1.0 only."""
        return {
            target: source
            for target, source in self._tied_weights_keys.items()
            if self.config.scale_decoder_outputs or target != "lm_head.weight"
        }

    def tie_weights(self, missing_keys: set[str] | None = None, **kwargs):
        """Tie the embeddings. A v1.1 head missing from a checkpoint starts as a copy of the input embedding."""
        super().tie_weights(missing_keys=missing_keys, **kwargs)
        head_is_missing = missing_keys is not None and "lm_head.weight" in missing_keys
        if head_is_missing and "shared.weight" not in missing_keys and not self.config.scale_decoder_outputs:
            # Transformers 5 trains such models tied and leaves the head out of the file: this keeps their function.
            self.lm_head.weight = nn.Parameter(self.shared.weight.detach().clone())
            missing_keys.discard("lm_head.weight")

    @torch.no_grad()
    def _init_weights(self, module):
        super()._init_weights(module)
        if module is self and not self.config.scale_decoder_outputs:
            # T5X and FlashT5 do so: logits of unit variance, hence a first loss near ln(vocab_size).
            init.normal_(self.lm_head.weight, mean=0.0, std=self.config.initializer_factor * self.config.d_model**-0.5)

    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.LongTensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        decoder_inputs_embeds: torch.Tensor | None = None,
        labels: torch.LongTensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        use_cache: bool | None = None,
        return_dict: bool | None = None,
        **kwargs,
    ) -> TokenLossSeq2SeqLMOutput:
        """
        As [`T5ForConditionalGeneration.forward`], with two additions.

        Args:
            labels (`torch.LongTensor` of shape `(batch_size, target_length)`, *optional*):
                Target ids; -100 is ignored.
            num_items_in_batch (`torch.Tensor` or `int`, *optional*):
                What the summed loss is divided by: the number of labels of the whole global batch. Defaults to the
                number of labels in this batch, which gives the mean per token.

        Returns:
            [`TokenLossSeq2SeqLMOutput`], or a tuple if `return_dict=False`.
        """
        if labels is not None:
            if decoder_input_ids is None and decoder_inputs_embeds is None:
                decoder_input_ids = self._shift_right(labels)
            # The decoder's own copy of the configuration would build a key/value cache during training.
            use_cache = False if use_cache is None else use_cache
        outputs = super().forward(
            input_ids=input_ids,
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            decoder_inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            return_dict=True,
            **kwargs,
        )
        loss, token_losses = None, None
        if labels is not None:
            token_losses = cross_entropy_per_token(outputs.logits, labels)
            num_items = (labels != -100).sum().clamp(min=1) if num_items_in_batch is None else num_items_in_batch
            loss = token_losses.sum() / num_items
        outputs = TokenLossSeq2SeqLMOutput(**{**outputs, "loss": loss, "token_losses": token_losses})
        return_dict = self.config.return_dict if return_dict is None else return_dict
        return outputs if return_dict else outputs.to_tuple()


class DepthAttention(T5Attention):
    """T5 attention whose position bias has a batch axis under flex attention, which indexes it by batch."""

    def forward(
        self, hidden_states, mask=None, key_value_states=None, position_bias=None, past_key_values=None, **kwargs
    ):
        if position_bias is None and self.config._attn_implementation == "flex_attention":
            batch_size, query_length = hidden_states.shape[:2]
            # Under flex the mask is a BlockMask of shape (batch_size, 1, query_length, key_length).
            key_length = mask.shape[-1]
            if self.has_relative_attention_bias:
                past = past_key_values.get_seq_length(self.layer_idx) if past_key_values is not None else 0
                position_bias = self.compute_bias(query_length, key_length, hidden_states.device, past)
            else:
                position_bias = hidden_states.new_zeros(1, self.n_heads, query_length, key_length)
            position_bias = position_bias.expand(batch_size, -1, -1, -1)
        return super().forward(
            hidden_states,
            mask=mask,
            key_value_states=key_value_states,
            position_bias=position_bias,
            past_key_values=past_key_values,
            **kwargs,
        )


class DepthStack(InitializedAsT5, T5Stack):
    """A [`T5Stack`] with [`DepthAttention`]; used as the decoder."""

    def __init__(self, config: DepthConfig):
        super().__init__(config)
        for index, block in enumerate(self.block):
            block.layer[0].SelfAttention = DepthAttention(
                config, has_relative_attention_bias=index == 0, layer_idx=index, is_causal=config.is_decoder
            )
            if config.is_decoder:
                block.layer[1].EncDecAttention = DepthAttention(config, layer_idx=index)


class DepthEncoder(DepthStack):
    """The encoder. It builds its own hierarchical mask, since `generate()` calls it without the model around it."""

    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        return_dict: bool | None = None,
        **kwargs,
    ) -> DepthEncoderOutput:
        """
        As [`T5Stack.forward`].

        Args:
            input_ids (`torch.LongTensor` of shape `(batch_size, source_length)`, *optional*):
                Token ids. Sentence tokens are found in them; `inputs_embeds` instead get plain T5 attention.
            attention_mask (`torch.Tensor` of shape `(batch_size, source_length)`, *optional*):
                Non-zero on real tokens. A 4-D mask is used as it is.
        """
        sentence_mask = None
        if input_ids is not None:
            sentence_mask = is_sentence_token(input_ids, self.config, attention_mask)
            if self.config.hierarchical_encoder_mask:
                attention_mask = create_mask(
                    self.config,
                    own_sentence_mask_function(sentence_mask),
                    attention_mask,
                    query_shape=input_ids.shape,
                    key_length=input_ids.shape[1],
                    like=self.embed_tokens.weight,
                )
        outputs = super().forward(
            input_ids=input_ids, attention_mask=attention_mask, inputs_embeds=inputs_embeds, return_dict=True, **kwargs
        )
        outputs = DepthEncoderOutput(
            last_hidden_state=outputs.last_hidden_state,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
            sentence_mask=sentence_mask,
        )
        return outputs.to_tuple() if return_dict is False else outputs


class DepthForConditionalGeneration(T5ForConditionalGeneration):
    """
    T5 in which sentence tokens see only their sentence (encoder), only earlier sentence tokens (decoder) and only the
    encoder's sentence tokens (cross-attention); every other token sees what it sees in T5 (paper, section 3).

    All masks follow from the ids, on the device of the model, for the eager, sdpa and flex_attention implementations.
    Without sentence tokens in its input the model is T5. It loads any T5 checkpoint.
    """

    config_class = DepthConfig

    def __init__(self, config: DepthConfig):
        _check_sentence_token_ids(config)
        super().__init__(config)
        self.encoder = DepthEncoder(self.encoder.config)
        self.decoder = DepthStack(self.decoder.config)
        self.post_init()

    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.LongTensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple[torch.Tensor] | None = None,
        past_key_values=None,
        inputs_embeds: torch.Tensor | None = None,
        decoder_inputs_embeds: torch.Tensor | None = None,
        labels: torch.LongTensor | None = None,
        decoder_sentence_mask: torch.BoolTensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        use_cache: bool | None = None,
        return_dict: bool | None = None,
        **kwargs,
    ) -> TokenLossSeq2SeqLMOutput:
        """
        As [`T5ForConditionalGeneration.forward`], with `num_items_in_batch` and one more argument.

        Args:
            decoder_sentence_mask (`torch.BoolTensor` of shape `(batch_size, decoded_length)`, *optional*):
                `True` where the decoder input is a sentence token, for all ids so far, those in `past_key_values`
                included. Needed with a filled cache only; `generate()` passes it.

        Returns:
            [`TokenLossSeq2SeqLMOutput`], or a tuple if `return_dict=False`.

        Raises:
            `ValueError`: if there is a filled cache and no `decoder_sentence_mask`.
        """
        if encoder_outputs is None:
            encoder_outputs = self.encoder(
                input_ids=input_ids, attention_mask=attention_mask, inputs_embeds=inputs_embeds, **kwargs
            )
        if labels is not None and decoder_input_ids is None and decoder_inputs_embeds is None:
            decoder_input_ids = self._shift_right(labels)
        if decoder_input_ids is not None:
            encoder_sentence_mask = getattr(encoder_outputs, "sentence_mask", None)
            if encoder_sentence_mask is None and input_ids is not None:
                encoder_sentence_mask = is_sentence_token(input_ids, self.config, attention_mask)
            attention_mask = self._cross_attention_mask(
                decoder_input_ids, encoder_outputs[0], attention_mask, encoder_sentence_mask
            )
            decoder_attention_mask = self._decoder_attention_mask(
                decoder_input_ids, decoder_attention_mask, decoder_sentence_mask, past_key_values
            )
        return super().forward(
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            encoder_outputs=encoder_outputs,
            past_key_values=past_key_values,
            decoder_inputs_embeds=decoder_inputs_embeds,
            labels=labels,
            num_items_in_batch=num_items_in_batch,
            use_cache=use_cache,
            return_dict=return_dict,
            **kwargs,
        )

    def _cross_attention_mask(self, decoder_input_ids, encoder_hidden_states, attention_mask, encoder_sentence_mask):
        """The mask of cross-attention: (B, T) queries on (B, S) keys."""
        if not self.config.hierarchical_cross_mask or encoder_sentence_mask is None:
            return attention_mask
        decoder_sentence_mask = is_sentence_token(decoder_input_ids, self.config)
        return create_mask(
            self.decoder.config,
            sentence_to_sentence_mask_function(decoder_sentence_mask, encoder_sentence_mask),
            attention_mask,
            query_shape=decoder_input_ids.shape,
            key_length=encoder_hidden_states.shape[1],
            like=encoder_hidden_states,
        )

    def _decoder_attention_mask(self, decoder_input_ids, attention_mask, sentence_mask, past_key_values):
        """The mask of decoder self-attention: (B, T) queries on the (B, past + T) keys up to themselves."""
        if not self.config.hierarchical_decoder_mask:
            return attention_mask
        past_length, key_length = 0, decoder_input_ids.shape[1]
        if past_key_values is not None:
            cache = getattr(past_key_values, "self_attention_cache", past_key_values)
            past_length = cache.get_seq_length()
            if isinstance(past_length, torch.Tensor):
                past_length = past_length.clone()  # a static cache counts on in place, before a block mask is read
            key_length = cache.get_mask_sizes(key_length, 0)[0]
        if sentence_mask is None:
            # The length of a static cache is a tensor, which a compiled graph cannot read.
            if not torch.compiler.is_compiling() and past_length > 0:
                raise ValueError(
                    f"`past_key_values` holds {int(past_length)} tokens, but `decoder_sentence_mask` is missing: pass "
                    "the flags of all decoder ids so far, or decode with `generate()`, which does."
                )
            sentence_mask = is_sentence_token(decoder_input_ids, self.config)
        # A static cache has more keys than ids; the causal mask hides the rest.
        sentence_mask = _pad_to(sentence_mask, key_length)
        return create_mask(
            self.decoder.config,
            and_masks(causal_mask_function, sentence_to_sentence_mask_function(sentence_mask, sentence_mask)),
            attention_mask,
            query_shape=decoder_input_ids.shape,
            key_length=key_length,
            like=self.shared.weight,
            query_offset=past_length,
        )

    def prepare_inputs_for_generation(self, input_ids, decoder_attention_mask=None, **kwargs):
        """Adds the flags of all decoder ids, and keeps the decoder mask 2-D: `forward` builds the hierarchical one."""
        inputs = super().prepare_inputs_for_generation(
            input_ids, decoder_attention_mask=decoder_attention_mask, **kwargs
        )
        inputs["decoder_attention_mask"] = decoder_attention_mask
        sentence_mask = is_sentence_token(input_ids, self.config)
        cache = inputs.get("past_key_values")
        if getattr(cache, "is_compileable", False):
            # A static cache is there to keep shapes static: flags that grew by one a step would recompile each time.
            sentence_mask = _pad_to(sentence_mask, cache.get_mask_sizes(input_ids.shape[1], 0)[0])
        inputs["decoder_sentence_mask"] = sentence_mask
        return inputs


def cross_entropy_per_token(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """
    Cross-entropy of each label in nats.

    Args:
        logits (`torch.FloatTensor` of shape `(batch_size, target_length, vocab_size)`): any float dtype.
        labels (`torch.LongTensor` of shape `(batch_size, target_length)`): -100 is ignored.

    Returns:
        `torch.FloatTensor` of shape `(batch_size, target_length)`: float32, 0 where the label is -100.
    """
    labels = labels.to(logits.device)
    losses = nn.functional.cross_entropy(
        logits.float().flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="none"
    )
    return losses.view(labels.shape)


def is_sentence_token(
    input_ids: torch.LongTensor, config: DepthConfig, attention_mask: torch.Tensor | None = None
) -> torch.BoolTensor:
    """`True` where an id of `input_ids` (any shape) is one of the configuration's sentence tokens, and no padding."""
    first = config.first_sentence_token_id
    sentence_mask = (input_ids >= first) & (input_ids < first + config.num_sentence_tokens)
    if attention_mask is not None and attention_mask.shape == input_ids.shape:
        # Whatever id stands in a padded place, it is no sentence.
        sentence_mask = sentence_mask & attention_mask.to(sentence_mask.device, torch.bool)
    return sentence_mask


def own_sentence_mask_function(sentence_mask: torch.BoolTensor) -> Callable:
    """
    Encoder self-attention: a sentence token attends to the tokens of its own sentence, any other token to all.

    Args:
        sentence_mask (`torch.BoolTensor` of shape `(batch_size, source_length)`): `True` on sentence tokens.

    Returns:
        A mask function of (batch, head, query, key) indices, `True` = may attend (see `transformers.masking_utils`).
    """
    # The running count of sentence tokens; the `<eosen>` in front of the first one belongs to the first sentence.
    sentence_index = sentence_mask.cumsum(dim=-1).clamp(min=1)

    def mask_function(batch_idx, head_idx, q_idx, kv_idx):
        own = sentence_index[batch_idx, q_idx] == sentence_index[batch_idx, kv_idx]
        return ~sentence_mask[batch_idx, q_idx] | own

    return mask_function


def sentence_to_sentence_mask_function(query_mask: torch.BoolTensor, key_mask: torch.BoolTensor) -> Callable:
    """
    Decoder self- and cross-attention: a sentence token attends to sentence tokens, any other token to all.

    Where a row has no sentence token among its keys (a prompt with sentence tokens for an input without), its queries
    attend to all keys: a softmax over nothing would attend to the padding.

    Args:
        query_mask (`torch.BoolTensor` of shape `(batch_size, query_length)`): `True` on sentence tokens.
        key_mask (`torch.BoolTensor` of shape `(batch_size, key_length)`): `True` on sentence tokens.
    """
    unrestricted = ~(query_mask & key_mask.any(dim=-1, keepdim=True))  # (B, Q)

    def mask_function(batch_idx, head_idx, q_idx, kv_idx):
        return unrestricted[batch_idx, q_idx] | key_mask[batch_idx, kv_idx]

    return mask_function


def create_mask(
    config: DepthConfig,
    mask_function: Callable,
    attention_mask: torch.Tensor | None,
    query_shape: tuple[int, int],
    key_length: int,
    like: torch.Tensor,
    query_offset: torch.Tensor | int = 0,
):
    """
    The mask of one attention in the form its implementation wants: additive for eager, boolean for sdpa, blocks for
    flex_attention.

    `create_causal_mask(and_mask_function=...)` of transformers calls the same registry, but evaluates the function by
    `torch.vmap`: about 5 ms a mask of any size on a CPU, more than a step of `generate()` of a small model. Ours only
    index, so broadcasting does.

    Args:
        mask_function (`Callable`): of (batch, head, query, key) indices, `True` = may attend.
        attention_mask (`torch.Tensor` of shape `(batch_size, key_length)` or shorter, *optional*):
            Non-zero on real tokens. A 4-D mask is returned as it is.
        query_shape (`tuple[int, int]`): batch size and number of queries.
        like (`torch.Tensor`): has the dtype and the device of the attention.
        query_offset (`torch.Tensor` or `int`): index of the first query among the keys.
    """
    if attention_mask is not None:
        if len(attention_mask.shape) == 4:
            return attention_mask
        padding_mask = _pad_to(attention_mask.to(like.device, torch.bool), key_length)
        mask_function = and_masks(mask_function, padding_mask_function(padding_mask))
    return ALL_MASK_ATTENTION_FUNCTIONS[config._attn_implementation](
        batch_size=query_shape[0],
        q_length=query_shape[1],
        kv_length=key_length,
        q_offset=query_offset,
        kv_offset=0,
        mask_function=mask_function,
        allow_is_causal_skip=False,
        dtype=like.dtype,
        device=like.device,
        config=config,
    )


def _pad_to(mask: torch.BoolTensor, length: int) -> torch.BoolTensor:
    """A (B, L) mask with `False` behind, up to `length`."""
    return nn.functional.pad(mask, (0, max(0, length - mask.shape[1])))


def _check_sentence_token_ids(config: DepthConfig) -> None:
    last = max(config.first_sentence_token_id + config.num_sentence_tokens - 1, config.eosen_token_id)
    if last >= config.vocab_size or config.first_sentence_token_id < 0:
        raise ValueError(
            f"The sentence tokens {config.first_sentence_token_id} to {last} do not fit `vocab_size`="
            f"{config.vocab_size}. Set `first_sentence_token_id` and `eosen_token_id` to the ids that "
            "`add_sentence_tokens(tokenizer)` gave them, or raise `vocab_size`."
        )


__all__ = ["DepthForConditionalGeneration", "T5ForConditionalGeneration"]


def has_sentence_tokens(config) -> bool:
    """Whether `config` is a DEPTH model's, be its class from this package or from a Hub repository."""
    return hasattr(config, "first_sentence_token_id")


def sentence_token_mask(ids: torch.Tensor, config) -> torch.Tensor:
    """`True` where an id (any shape) is a sentence token of `config`; nowhere if the model has none (plain T5)."""
    if not has_sentence_tokens(config):
        return torch.zeros_like(ids, dtype=torch.bool)
    return is_sentence_token(ids, config)
