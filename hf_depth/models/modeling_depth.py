"""
DEPTH: T5 with sentence tokens and hierarchical attention (arXiv 2405.07788).

Imports only torch, transformers and the files `*_depth.py` beside it: the Hub ships them as custom code.
"""

import contextlib
import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import (
    Cache,
    GenerationMixin,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    T5Config,
    UMT5Config,
)
from transformers import T5ForConditionalGeneration as HFT5ForConditionalGeneration
from transformers import initialization as init
from transformers.integrations import deepspeed as hf_deepspeed
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPastAndCrossAttentions,
    Seq2SeqLMOutput,
)
from transformers.models.t5.modeling_t5 import T5Attention, T5Stack
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, can_return_tuple

from .attention_depth import DepthAttention, register_attention
from .cache_depth import CACHE, takes_cache
from .configuration_depth import DepthConfig
from .flex_depth import depth_flex
from .layers_depth import is_plain_layer, speed_up_layers
from .loss_depth import cross_entropy_per_token, linear_cross_entropy
from .masking_depth import (
    check_segment_ids,
    create_mask,
    is_4d,
    is_segment_start,
    is_sentence_token,
    own_sentence_groups,
    pad_to,
    sentence_to_sentence_groups,
)
from .operators_depth import is_transformed
from .sdpa_depth import depth_sdpa
from .triton_depth import INTERPRETED, check_triton_attention, depth_triton

# Implementations of attention that transformers then knows by name, as in `COMPACT_IMPLEMENTATIONS`. A model that is
# on a CPU after all, where kernels for GPUs cannot run, computes the same by depth_sdpa.
register_attention("depth_sdpa", depth_sdpa)
register_attention("depth_triton", depth_triton, None if INTERPRETED else ("cuda",), check_triton_attention)
register_attention("depth_flex", depth_flex, ("cuda", "xpu"))

# Fields of which the encoder's and the decoder's configurations have copies.
SENTENCE_SETTINGS = (
    "first_sentence_token_id",
    "num_sentence_tokens",
    "eosen_token_id",
    "hierarchical_encoder_mask",
    "hierarchical_decoder_mask",
    "hierarchical_cross_mask",
)
# For `_required`: an argument that lacks the positions of the sentence tokens, and those that have them.
_DECODER_INPUT = (
    "`decoder_inputs_embeds`",
    "`decoder_sentence_mask` beside it, or `labels` or `decoder_input_ids` instead",
)
_ENCODER_OUTPUT = (
    "`encoder_outputs`",
    "the output of `model.encoder` as it is, or beside it `input_ids` or `sentence_mask`",
)


@dataclass
class DepthEncoderOutput(BaseModelOutput):
    """
    A [`BaseModelOutput`] with the positions of the sentence tokens, which cross-attention needs, also in `generate()`,
    which calls the model without the encoder input.

    Args:
        sentence_mask (`torch.BoolTensor` of shape `(batch_size, source_length)`, *optional*):
            `True` where the encoder input is a sentence token.
    """

    sentence_mask: torch.BoolTensor | None = None

    @classmethod
    def from_tuple(cls, values: tuple) -> "DepthEncoderOutput":
        """
        From the `to_tuple()` of this class, which ends in the sentence mask, or of a plain [`BaseModelOutput`]. Any
        other tensor behind the hidden states, such as an attention mask of integers, is no sentence mask.
        """
        last_hidden_state, *others = values
        sentence_mask = None
        if others and isinstance(others[-1], torch.Tensor):
            last = others.pop()
            sentence_mask = last if last.dtype == torch.bool else None
        return cls(last_hidden_state, *others[:2], sentence_mask=sentence_mask)


@dataclass
class TokenLossSeq2SeqLMOutput(Seq2SeqLMOutput):
    """
    A [`Seq2SeqLMOutput`] with one loss per label.

    Args:
        token_losses (`torch.FloatTensor` of shape `(batch_size, target_length)`, *optional*):
            Cross-entropy in nats, float32, 0 where the label is -100. Returned when `labels` are given.
        predictions (`torch.LongTensor` of shape `(batch_size, target_length)`, *optional*):
            The likeliest ids, -100 where the label is. Returned in evaluation mode with `skip_logits=True`.
    """

    token_losses: torch.FloatTensor | None = None
    predictions: torch.LongTensor | None = None


class InitializedAsT5:
    """
    Makes a class outside of transformers start from the weights of T5. In such "custom code" transformers (5.17 to
    5.23) skips all modules without parameters of their own. T5 initializes its layers there, so that every matrix
    would keep the standard deviation of 1 that a plain `nn.Linear` gets.
    """

    @classmethod
    def is_custom_code(cls) -> bool:
        return False


@contextlib.contextmanager
def whole_parameters() -> Iterator[None]:
    """
    Under DeepSpeed ZeRO-3, models are built, loaded and resized here as in a single process: each process holds the
    whole model, on the CPU, until [`partition_parameters`].

    Transformers (5.23) has `deepspeed.zero.Init` partition each parameter as soon as it is there, and initializes
    afterwards: with other random numbers than those of a single process, for classes outside of transformers by the
    rule that [`InitializedAsT5`] lifts elsewhere, and without a look at weights that a checkpoint lacks or has too
    many of.
    """
    if not hf_deepspeed.is_deepspeed_zero3_enabled():
        yield
        return
    config = hf_deepspeed._hf_deepspeed_config_weak_ref()
    hf_deepspeed.unset_hf_deepspeed_config()
    try:
        yield
    finally:
        hf_deepspeed.set_hf_deepspeed_config(config)


def partition_parameters(model: PreTrainedModel) -> None:
    """
    Under DeepSpeed ZeRO-3, leave each process its part of the parameters: those of the first process, which are sent
    to the others one by one. Else, and inside of [`whole_parameters`], nothing happens.
    """
    if not hf_deepspeed.is_deepspeed_zero3_enabled():
        return
    # By its name: whoever loads this file from the Hub would need each package that it imports.
    deepspeed = importlib.import_module("deepspeed")
    # Started by torchrun on a CPU, DeepSpeed does not know of the other processes yet, and would refuse the batch size
    # of all of them.
    deepspeed.init_distributed()
    config = hf_deepspeed.deepspeed_config()
    for name, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        if config.get(name, {}).get("enabled") is True:
            model.to(dtype)  # DeepSpeed computes in the type that the parts have, and keeps a float32 copy of its own
    deepspeed.zero.Init(module=model, config_dict_or_path=config)


# Transformers looks for GenerationMixin among the direct bases of a class from the Hub: without it there, each load
# would be of a class of its own, which cannot be pickled.
class T5ForConditionalGeneration(InitializedAsT5, HFT5ForConditionalGeneration, GenerationMixin):
    """
    The T5 of transformers with five changes; it saves and loads as the original class does.

    - A T5 v1.1 (`config.scale_decoder_outputs=False`) really has an output head of its own, which starts with
      standard deviation `d_model ** -0.5`, survives saving, loading and resizing, and is never tied.
    - The loss is normalized by `num_items_in_batch`, the number of labels in the global batch, when that is given.
    - The output has `token_losses`, one per label.
    - In training mode the loss is computed without the logits of all labels, which are not returned
      (`outputs.logits is None`) unless `skip_logits=False`.
    - `flex_attention` takes batches of more than one example.

    A row may hold several examples, one after the other: `encoder_segment_ids` and `decoder_segment_ids` say which
    tokens belong together, and no token attends to one of another example. Loss and gradients are those of separate
    rows, also the relative positions, which are differences of places in a row.

    Example:

    >>> import torch
    >>> from transformers import T5Config
    >>> config = T5Config(vocab_size=64, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2)
    >>> model = T5ForConditionalGeneration(config)
    >>> batch = {"input_ids": torch.tensor([[5, 6, 1]]), "labels": torch.tensor([[7, 8, 9, 1]])}
    >>> model(**batch).token_losses.shape
    torch.Size([1, 4])
    >>> model(**batch, skip_logits=False).logits.shape
    torch.Size([1, 4, 64])
    """

    def __init__(self, config: T5Config):
        if config.model_type != self.config_class.model_type:  # a field that a file of another kind has set
            raise ValueError(
                f"{type(self).__name__} is the class of {self.config_class.model_type!r} models, but the "
                f"configuration is that of a {config.model_type!r}. `hf_depth.load_model(name, tokenizer, "
                "model_type=...)` reads T5, mT5, UMT5, ByT5, Flan-T5 and DEPTH checkpoints."
            )
        if config.scale_decoder_outputs and not config.tie_word_embeddings:
            raise ValueError(
                "`tie_word_embeddings=False` was set on a configuration that was made with `True`, and "
                "`scale_decoder_outputs`, by which T5 knows whether its head is tied, is `True` still. For a model "
                "from scratch, set that to `False`, too. The weights of a checkpoint fit no other head than their own."
            )
        if getattr(config, "decoder_start_token_id", None) is None:
            config.decoder_start_token_id = config.pad_token_id  # as in all T5 checkpoints
        if not config.scale_decoder_outputs:
            tied = HFT5ForConditionalGeneration._tied_weights_keys
            self._tied_weights_keys = {key: tied[key] for key in tied if key != "lm_head.weight"}
        super().__init__(config)
        if any(hasattr(parameter, "ds_id") for parameter in self.parameters()):  # DeepSpeed's mark of a part
            raise ValueError(
                f"A {type(self).__name__} that is built inside of `deepspeed.zero.Init()` would start from wrong "
                "weights: they are initialized after they were partitioned. Build it outside, and then call "
                "`deepspeed.zero.Init(module=model)`; `load_model` does so under ZeRO-3."
            )
        # T5Config forces True; releases that read the flag (transformers 4) would tie a saved v1.1 head.
        self.config.tie_word_embeddings = config.scale_decoder_outputs
        for module in self.modules():
            if type(module) is T5Attention:  # a new module would draw its weights anew
                module.__class__ = DepthAttention
        speed_up_layers(self)

    @classmethod
    def _from_config(cls, config: PreTrainedConfig, **kwargs: Any) -> PreTrainedModel:
        with whole_parameters():
            model = super()._from_config(config, **kwargs)
        partition_parameters(model)
        return model

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: Any, *model_args: Any, **kwargs: Any
    ) -> PreTrainedModel | tuple[PreTrainedModel, dict[str, Any]]:
        """
        As in all models of transformers, except that missing and unexpected weights are an error, not a warning. With
        `output_loading_info=True` they are left to the caller.

        Raises:
            `ValueError`: if the checkpoint is of another kind of model, or if its weights are not those of the model.
        """
        returns_info = kwargs.pop("output_loading_info", False)
        with whole_parameters():
            model, loading_info = super().from_pretrained(
                pretrained_model_name_or_path, *model_args, output_loading_info=True, **kwargs
            )
        partition_parameters(model)
        if returns_info:
            return model, loading_info
        # Quantized weights have keys of their own, and of an adapter only its own keys are reported.
        if not hasattr(model, "hf_quantizer") and not model._hf_peft_config_loaded:
            check_loaded_weights(pretrained_model_name_or_path, loading_info, kinds=("missing", "unexpected"))
        return model

    def get_expanded_tied_weights_keys(self, all_submodels: bool = False) -> dict[str, str]:
        """The weights that share storage, `{target: source}`: the embeddings always, the head in T5 v1.0 only."""
        return dict(self._tied_weights_keys)

    def tie_weights(self, missing_keys: set[str] | None = None, **kwargs) -> None:
        """Tie the embeddings. A v1.1 head missing from a checkpoint starts as a copy of the input embedding."""
        super().tie_weights(missing_keys=missing_keys, **kwargs)
        # A head that differs from the embedding in a checkpoint was left untied: resizing must not tie it either.
        self._tied_weights_keys = dict(self.all_tied_weights_keys)
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

    def _replace_stacks(self, encoder_class: type[T5Stack], decoder_class: type[T5Stack], checkpointing: bool) -> None:
        """Put other stacks in place of those that T5's `__init__` has built; `checkpointing`: as configured."""
        self.encoder = encoder_class(self.encoder.config)
        self.decoder = decoder_class(self.decoder.config)
        speed_up_layers(self)
        if checkpointing:
            # `post_init` applies and deletes this field; T5 has done so for the stacks that are gone.
            self.config.gradient_checkpointing = True
        self.post_init()

    @takes_cache
    def prepare_inputs_for_generation(
        self, input_ids: torch.LongTensor, *, cache: Cache | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """As in T5, except that the decoder is not fed again what a cache holds, an assistant's or a given one."""
        # Transformers (5.24) names no length when an assistant goes on with its cache, nor when `generate()` is given
        # one without a `decoder_attention_mask`, which would say whether the ids are all of them or the new ones.
        has_all_ids = not kwargs.get("is_first_iteration") or kwargs.get("decoder_attention_mask") is None
        if cache is not None and kwargs.get("next_sequence_length") is None and has_all_ids:
            if 0 < (past_length := cache.get_seq_length()) < input_ids.shape[1]:
                kwargs["next_sequence_length"] = input_ids.shape[1] - past_length
        return super().prepare_inputs_for_generation(input_ids, **{CACHE: cache}, **kwargs)

    def _shift_right(
        self, input_ids: torch.LongTensor, segment_ids: torch.LongTensor | None = None
    ) -> torch.LongTensor:
        """As in T5; with `segment_ids` (B, T), each segment by itself: it begins with the start token."""
        shifted = super()._shift_right(input_ids)
        if segment_ids is None:
            return shifted
        return shifted.masked_fill(is_segment_start(segment_ids), self.config.decoder_start_token_id)

    @can_return_tuple
    @takes_cache
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.LongTensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple[torch.Tensor] | None = None,
        cache: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        decoder_inputs_embeds: torch.Tensor | None = None,
        labels: torch.LongTensor | None = None,
        use_cache: bool | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        encoder_segment_ids: torch.LongTensor | None = None,
        decoder_segment_ids: torch.LongTensor | None = None,
        loss_weights: torch.FloatTensor | None = None,
        skip_logits: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> TokenLossSeq2SeqLMOutput:
        """
        Args:
            input_ids (`torch.LongTensor` of shape `(batch_size, source_length)`, *optional*):
                Token ids of the encoder input.
            attention_mask (`torch.Tensor` of shape `(batch_size, source_length)`, *optional*):
                Non-zero on tokens that are not padding, of any integer, boolean or floating-point type.
            decoder_input_ids (`torch.LongTensor` of shape `(batch_size, target_length)`, *optional*):
                Token ids of the decoder input. Defaults to `labels`, shifted to the right.
            decoder_attention_mask (`torch.Tensor` of shape `(batch_size, target_length)`, *optional*):
                Non-zero on tokens of the decoder that are not padding, those in `cache` included.
            encoder_outputs ([`BaseModelOutput`] or `tuple`, *optional*):
                What `model.encoder` returned, instead of `input_ids`. The first element is the last hidden state, of
                shape `(batch_size, source_length, d_model)`.
            cache (`EncoderDecoderCache`, *optional*):
                Keys and values of earlier decoder tokens. Its name before transformers 5.24, `past_key_values`, is
                taken as well.
            inputs_embeds (`torch.FloatTensor` of shape `(batch_size, source_length, d_model)`, *optional*):
                Embeddings instead of `input_ids`.
            decoder_inputs_embeds (`torch.FloatTensor` of shape `(batch_size, target_length, d_model)`, *optional*):
                Embeddings instead of `decoder_input_ids`.
            labels (`torch.LongTensor` of shape `(batch_size, target_length)`, *optional*):
                Target ids; -100 is ignored.
            use_cache (`bool`, *optional*):
                Whether to return `cache`. Defaults to `False` beside `labels`, else to the configuration's.
            num_items_in_batch (`torch.Tensor` or `int`, *optional*):
                What the summed loss is divided by: the number of labels of the whole global batch. Defaults to the
                number of labels in this batch, which gives the mean per token.
            encoder_segment_ids (`torch.LongTensor` of shape `(batch_size, source_length)`, *optional*):
                For rows that hold several examples: which one each token of the encoder input belongs to. They count
                up from 1, in the order of the tokens; 0 is padding.
            decoder_segment_ids (`torch.LongTensor` of shape `(batch_size, target_length)`, *optional*):
                The same for the decoder; needed beside `encoder_segment_ids`.
            loss_weights (`torch.FloatTensor` of shape `(batch_size, target_length)`, *optional*):
                Weights of the labels in the loss, which is then `(loss_weights * token_losses).sum()`, divided by
                `num_items_in_batch` only if that is given. Gradients flow through the loss: beside weights,
                `token_losses` have none.
            skip_logits (`bool`, *optional*):
                Whether to compute the losses without a tensor of all logits, of which none are returned. By default
                in training mode with `labels`. In evaluation mode the output then has `predictions`.
            kwargs:
                `output_attentions`, `output_hidden_states` and `return_dict`, as in all models of transformers.

        Returns:
            [`TokenLossSeq2SeqLMOutput`], or a tuple if `return_dict=False`.

        Raises:
            `ValueError`: if `skip_logits=True` or `loss_weights` come without `labels`, or if the segment ids do not
                fit each other or the other arguments. Their values are looked at on the CPU alone: elsewhere that
                would wait for the device.
        """
        if labels is None and (skip_logits or loss_weights is not None):
            name = "skip_logits=True" if skip_logits else "loss_weights"
            raise ValueError(f"`{name}` needs `labels`, without which there is no loss: pass them, or leave it out.")
        is_packed = encoder_segment_ids is not None or decoder_segment_ids is not None
        if is_packed:
            source = encoder_outputs[0] if encoder_outputs is not None else _first(input_ids, inputs_embeds)
            target = _first(decoder_input_ids, decoder_inputs_embeds, labels)
            check_segment_ids(encoder_segment_ids, decoder_segment_ids, source, target)
            _check_packed_arguments(attention_mask, decoder_attention_mask, cache, use_cache)
            dtype = _states_dtype(self, self.shared)
        if labels is not None and decoder_input_ids is None and decoder_inputs_embeds is None:
            decoder_input_ids = self._shift_right(labels, decoder_segment_ids)
        if encoder_outputs is None:
            input_ids, inputs_embeds, decoder_input_ids, decoder_inputs_embeds = self._embedded(
                input_ids, inputs_embeds, decoder_input_ids, decoder_inputs_embeds
            )
        if labels is not None or is_packed:
            # The decoder's own copy of the configuration would build a key/value cache during training.
            use_cache = False if use_cache is None else use_cache
        if encoder_outputs is None:
            mask = attention_mask
            if is_packed:
                mask = _segment_mask(
                    getattr(self.encoder, "config", self.config),
                    encoder_segment_ids,
                    encoder_segment_ids,
                    attention_mask,
                    dtype,
                )
            encoder_outputs = self.encoder(
                input_ids=input_ids,
                attention_mask=mask,
                inputs_embeds=inputs_embeds,
                **_return_dict(self.encoder),
                **kwargs,
            )
        elif not isinstance(encoder_outputs, BaseModelOutput):
            encoder_outputs = BaseModelOutput(*encoder_outputs[:3])
        if is_packed:
            config = getattr(self.decoder, "config", self.config)
            attention_mask = _segment_mask(config, decoder_segment_ids, encoder_segment_ids, attention_mask, dtype)
            decoder_attention_mask = _segment_mask(
                config, decoder_segment_ids, decoder_segment_ids, decoder_attention_mask, dtype, is_causal=True
            )
        decoder_outputs = self.decoder(
            input_ids=decoder_input_ids,
            attention_mask=decoder_attention_mask,
            inputs_embeds=decoder_inputs_embeds,
            **{CACHE: cache},
            encoder_hidden_states=encoder_outputs[0],
            encoder_attention_mask=attention_mask,
            use_cache=use_cache,
            **_return_dict(self.decoder),
            **kwargs,
        )
        hidden_states = decoder_outputs[0]
        if self.config.scale_decoder_outputs:
            hidden_states = hidden_states * self.model_dim**-0.5
        if skip_logits is None:
            skip_logits = self.training and labels is not None
        return TokenLossSeq2SeqLMOutput(
            **self._losses(hidden_states, labels, num_items_in_batch, loss_weights, skip_logits),
            **{CACHE: getattr(decoder_outputs, CACHE)},
            decoder_hidden_states=decoder_outputs.hidden_states,
            decoder_attentions=decoder_outputs.attentions,
            cross_attentions=decoder_outputs.cross_attentions,
            encoder_last_hidden_state=encoder_outputs.last_hidden_state,
            encoder_hidden_states=encoder_outputs.hidden_states,
            encoder_attentions=encoder_outputs.attentions,
        )

    def _embedded(self, input_ids, inputs_embeds, decoder_input_ids, decoder_inputs_embeds):
        """
        In training, the embeddings of both inputs in place of their ids, by one lookup: two lookups would each make a
        gradient of the size of the embedding.
        """
        has_both = input_ids is not None and decoder_input_ids is not None
        has_others = inputs_embeds is not None or decoder_inputs_embeds is not None
        stacks = (self.encoder, self.decoder)
        is_one = is_plain_layer(self.shared, nn.Embedding) and all(
            isinstance(stack, T5Stack)  # any other module around one may want ids
            and is_plain_layer(stack.embed_tokens, nn.Embedding)
            and stack.embed_tokens.weight is self.shared.weight
            for stack in stacks
        )
        if not self.training or not has_both or has_others or not is_one:
            return input_ids, inputs_embeds, decoder_input_ids, decoder_inputs_embeds
        states = self.shared(torch.cat([input_ids.flatten(), decoder_input_ids.flatten()]))
        source, target = states.split([input_ids.numel(), decoder_input_ids.numel()])
        return None, source.view(*input_ids.shape, -1), None, target.view(*decoder_input_ids.shape, -1)

    def _losses(self, hidden_states, labels, num_items_in_batch, loss_weights, skip_logits):
        """The fields of the output that come from what the head reads (B, T, D), scaled."""
        if labels is None:
            return {"logits": self.lm_head(hidden_states)}
        _check_loss_arguments(hidden_states, labels, num_items_in_batch, loss_weights)
        predictions = None
        is_fused = skip_logits and is_plain_layer(self.lm_head, nn.Linear) and self.lm_head.bias is None
        is_fused = is_fused and not is_transformed()
        logits = None if is_fused else self.lm_head(hidden_states)
        # A model may be spread over several devices: all else moves to that of the logits, as in T5.
        device = (hidden_states if is_fused else logits).device
        labels = labels.to(device)
        loss_weights = None if loss_weights is None else loss_weights.to(device)
        if isinstance(num_items_in_batch, torch.Tensor):
            num_items_in_batch = num_items_in_batch.to(device).reshape(())
        divisor = num_items_in_batch
        if divisor is None and loss_weights is None:
            divisor = (labels != -100).sum()
        if divisor is not None:  # of no labels at all, the loss is 0
            divisor = divisor.clamp(min=1) if isinstance(divisor, torch.Tensor) else max(1, divisor)
        if is_fused:
            # The weights are divided, not the loss: then a CPU need not multiply the gradient of the head by 1 / N.
            weights = torch.ones(labels.shape, device=device) if loss_weights is None else loss_weights
            exact = torch.promote_types(self.lm_head.weight.dtype, torch.float32)
            weights = weights.to(torch.promote_types(weights.dtype, exact))
            loss, *by_label = linear_cross_entropy(
                hidden_states.flatten(0, 1),
                self.lm_head.weight,
                labels.flatten(),
                (weights if divisor is None else weights / divisor).flatten(),
                with_predictions=not self.training,
            )
            token_losses, *others = (values.view(labels.shape) for values in by_label)
            predictions = others[0] if others else None
        else:
            token_losses = cross_entropy_per_token(logits, labels)
            loss = (token_losses if loss_weights is None else loss_weights * token_losses).sum()
            loss = loss if divisor is None else loss / divisor
            if skip_logits:
                predictions = None if self.training else logits.argmax(-1).where(labels != -100, -100)
                logits = None
        # Beside weights, the loss is all that is differentiated.
        token_losses = token_losses if loss_weights is None else token_losses.detach()
        return {"loss": loss, "logits": logits, "token_losses": token_losses, "predictions": predictions}


class DepthStack(InitializedAsT5, T5Stack):
    """A [`T5Stack`] with [`DepthAttention`], for UMT5 with a relative bias in every layer."""

    def __init__(self, config: DepthConfig | UMT5Config):
        super().__init__(config)
        in_every_layer = getattr(config, "relative_attention_bias_in_every_layer", config.model_type == "umt5")
        for index, block in enumerate(self.block):
            block.layer[0].SelfAttention = DepthAttention(
                config,
                has_relative_attention_bias=index == 0 or in_every_layer,
                layer_idx=index,
                is_causal=config.is_decoder,
            )
            if config.is_decoder:
                block.layer[1].EncDecAttention = DepthAttention(config, layer_idx=index)


class DepthEncoder(DepthStack):
    """The encoder. It builds its own hierarchical mask, since `generate()` calls it without the model around it."""

    @takes_cache
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        encoder_hidden_states: torch.Tensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        cache: Cache | None = None,
        use_cache: bool | None = None,
        sentence_mask: torch.BoolTensor | None = None,
        return_dict: bool | None = None,
        segment_ids: torch.LongTensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> DepthEncoderOutput:
        """
        Args:
            input_ids (`torch.LongTensor` of shape `(batch_size, source_length)`, *optional*):
                Token ids, in which the sentence tokens are found.
            attention_mask (`torch.Tensor` of shape `(batch_size, source_length)`, *optional*):
                Non-zero on tokens that are not padding. A 4-D mask is used as it is.
            encoder_hidden_states, encoder_attention_mask, cache, use_cache:
                For the decoder of T5, whose class is that of its encoder; of no use here.
            inputs_embeds (`torch.FloatTensor` of shape `(batch_size, source_length, d_model)`, *optional*):
                Embeddings instead of `input_ids`.
            sentence_mask (`torch.BoolTensor` of shape `(batch_size, source_length)`, *optional*):
                `True` where the input is a sentence token; needed with `inputs_embeds`.
            segment_ids (`torch.LongTensor` of shape `(batch_size, source_length)`, *optional*):
                Which example of a row each token belongs to, see `encoder_segment_ids` of the model.

        Returns:
            [`DepthEncoderOutput`], or a tuple if `return_dict=False`.

        Raises:
            `ValueError`: if there are `inputs_embeds` and no `sentence_mask`, or if that is of another shape.
        """
        if sentence_mask is None and input_ids is not None:
            sentence_mask = is_sentence_token(input_ids, self.config, attention_mask)
        has_input = input_ids is not None or inputs_embeds is not None  # else T5 says what is missing
        if has_input and not is_4d(attention_mask):
            groups = None
            if self.config.hierarchical_encoder_mask:
                sentence_mask = _required(sentence_mask, "`inputs_embeds`", "`sentence_mask` beside it")
                _check_sentence_mask(sentence_mask, "sentence_mask", _first(input_ids, inputs_embeds))
                groups = own_sentence_groups(sentence_mask, segment_ids)
            segments = None if segment_ids is None else (segment_ids, segment_ids)
            if groups is not None or segments is not None:
                tokens = _first(input_ids, inputs_embeds)
                attention_mask = create_mask(
                    self.config,
                    attention_mask,
                    query_shape=tokens.shape[:2],
                    key_length=tokens.shape[1],
                    dtype=_states_dtype(self, self.embed_tokens),
                    device=tokens.device,
                    segments=segments,
                    groups=groups,
                )
        outputs = super().forward(
            input_ids=input_ids,
            attention_mask=attention_mask,
            encoder_hidden_states=encoder_hidden_states,
            encoder_attention_mask=encoder_attention_mask,
            inputs_embeds=inputs_embeds,
            **{CACHE: cache},
            use_cache=use_cache,
            return_dict=True,
            **kwargs,
        )
        outputs = DepthEncoderOutput(
            last_hidden_state=outputs.last_hidden_state,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
            sentence_mask=sentence_mask,
        )
        return outputs.to_tuple() if return_dict is False else outputs


class DepthDecoder(DepthStack):
    """
    The decoder. The model around it gives it complete masks; called without them, such as by `model.get_decoder()`, it
    makes its own.
    """

    @takes_cache
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        encoder_hidden_states: torch.Tensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        cache: Cache | None = None,
        use_cache: bool | None = None,
        sentence_mask: torch.BoolTensor | None = None,
        encoder_sentence_mask: torch.BoolTensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """
        As the decoder of T5, with two more arguments.

        Args:
            input_ids (`torch.LongTensor` of shape `(batch_size, target_length)`, *optional*):
                Token ids, in which the sentence tokens are found.
            attention_mask (`torch.Tensor` of shape `(batch_size, decoded_length)`, *optional*):
                Non-zero on tokens that are not padding, those in `cache` included. A 4-D mask is used as it
                is.
            encoder_hidden_states (`torch.FloatTensor` of shape `(batch_size, source_length, d_model)`, *optional*):
                What `model.encoder` returned first. Without it there is no cross-attention.
            encoder_attention_mask (`torch.Tensor` of shape `(batch_size, source_length)`, *optional*):
                Non-zero on tokens of the encoder that are not padding. A 4-D mask is used as it is.
            inputs_embeds (`torch.FloatTensor` of shape `(batch_size, target_length, d_model)`, *optional*):
                Embeddings instead of `input_ids`.
            sentence_mask (`torch.BoolTensor` of shape `(batch_size, decoded_length)`, *optional*):
                `True` where the decoder input is a sentence token, for all tokens so far. Needed with a filled cache
                or `inputs_embeds`.
            encoder_sentence_mask (`torch.BoolTensor` of shape `(batch_size, source_length)`, *optional*):
                `True` where the encoder input is a sentence token, as in the output of `model.encoder`. Needed for
                hierarchical cross-attention.

        Returns:
            [`BaseModelOutputWithPastAndCrossAttentions`], or a tuple if `return_dict=False`.

        Raises:
            `ValueError`: if a sentence mask is needed but missing, or of another shape.
        """
        has_input = input_ids is not None or inputs_embeds is not None  # else T5 says what is missing
        is_own = self.config.hierarchical_decoder_mask and not is_4d(attention_mask)
        is_own_cross = self.config.hierarchical_cross_mask and not is_4d(encoder_attention_mask)
        is_own_cross = is_own_cross and encoder_hidden_states is not None
        if has_input and (is_own or is_own_cross):
            query_mask = _decoder_query_mask(self.config, input_ids, inputs_embeds, sentence_mask, cache)
            query_mask = _required(query_mask, "`inputs_embeds`", "`sentence_mask` beside it, or `input_ids` instead")
            if is_own_cross:
                encoder_sentence_mask = _required(
                    encoder_sentence_mask,
                    "`encoder_hidden_states`",
                    "`encoder_sentence_mask`, which is `sentence_mask` in the output of `model.encoder`",
                )
                encoder_attention_mask = _cross_attention_mask(
                    self.config, query_mask, encoder_hidden_states, encoder_attention_mask, encoder_sentence_mask
                )
            if is_own:
                dtype = _states_dtype(self, self.embed_tokens)
                attention_mask = _decoder_attention_mask(
                    self.config, query_mask, attention_mask, sentence_mask, cache, dtype
                )
        return super().forward(
            input_ids=input_ids,
            attention_mask=attention_mask,
            encoder_hidden_states=encoder_hidden_states,
            encoder_attention_mask=encoder_attention_mask,
            inputs_embeds=inputs_embeds,
            **{CACHE: cache},
            use_cache=use_cache,
            **kwargs,
        )


class UMT5ForConditionalGeneration(T5ForConditionalGeneration, GenerationMixin):
    """
    UMT5, a T5 with a relative position bias in every layer, with the repairs of [`T5ForConditionalGeneration`].

    Those that Google published have an output head of their own: their `config.json` says `tie_word_embeddings=False`,
    which [`load_model`] honors by `scale_decoder_outputs=False`. Saved again, such a model has the same field and both
    matrices. The classes of transformers 4 and from 5.24 on compute the same logits from it; those between set
    `tie_word_embeddings=True` whatever the file says and multiply them by `d_model ** -0.5`: the order of the tokens
    (greedy decoding) is the same, their probabilities are not, until `model.config.tie_word_embeddings = False` is set
    after loading. With a tied head all compute the same.
    """

    config_class = UMT5Config

    def __init__(self, config: UMT5Config):
        if not hasattr(config, "scale_decoder_outputs"):
            config.scale_decoder_outputs = True
        checkpointing = getattr(config, "gradient_checkpointing", False)
        super().__init__(config)
        self._replace_stacks(DepthStack, DepthStack, checkpointing)


class DepthForConditionalGeneration(T5ForConditionalGeneration, GenerationMixin):
    """
    T5 in which sentence tokens attend only to their sentence (encoder), only to earlier sentence tokens (decoder) and
    only to the encoder's sentence tokens (cross-attention); every other token attends as in T5 (paper, section 3).

    All masks follow from the ids, on the device of the model, for all implementations of attention.
    Without sentence tokens in its input the model is T5. It loads any T5, mT5, UMT5 or ByT5 checkpoint that has
    embedding rows for the sentence tokens; their ids must be given where the vocabulary is not that of T5.
    [`load_model`] takes them from the tokenizer, and adds missing rows.

    Example:

    >>> import torch
    >>> size = {"vocab_size": 64, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}
    >>> config = DepthConfig(**size, first_sentence_token_id=40, num_sentence_tokens=20, eosen_token_id=60)
    >>> model = DepthForConditionalGeneration(config)
    >>> source = torch.tensor([[60, 41, 5, 6, 60, 40, 7, 60, 1]])  # two sentences in the wrong order
    >>> target = torch.tensor([[40, 7, 60, 41, 5, 6, 60, 1]])
    >>> model(input_ids=source, labels=target).token_losses.shape
    torch.Size([1, 8])
    >>> model.generate(source, max_new_tokens=5, min_new_tokens=5, do_sample=False).shape
    torch.Size([1, 6])
    """

    config_class = DepthConfig

    def __init__(self, config: DepthConfig):
        checkpointing = getattr(config, "gradient_checkpointing", False)
        super().__init__(config)
        _check_sentence_token_ids(config, config.vocab_size)
        self._replace_stacks(DepthEncoder, DepthDecoder, checkpointing)

    def resize_token_embeddings(
        self, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Embedding:
        """
        As in all models of transformers.

        Raises:
            `ValueError`: if the sentence tokens would lose their rows.
        """
        if new_num_tokens is not None:
            multiple = pad_to_multiple_of or 1
            _check_sentence_token_ids(self.config, -(-new_num_tokens // multiple) * multiple)
        return super().resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)

    def encode_sentences(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *texts: Sequence[str],
        max_length: int | None = None,
    ) -> torch.LongTensor:
        """
        The encoder input of one example, `<eosen> <sent_0> s1 <eosen> <sent_1> s2 <eosen> … </s>`, from its sentences.
        It is here, and not in a tokenizer, for those who have the files of a model and not hf_depth.

        Sentence tokens count up, and sentences past the last one share it. An input that is too long loses tokens at
        the end of its longest text, until several are equally long and all of them do. Special tokens that are written
        in a sentence are read as such: `<extra_id_0>` stands for a masked span.

        Args:
            tokenizer (`PreTrainedTokenizerBase`): the one of the model.
            texts (`Sequence[str]`): the sentences of each text, such as those of a premise and those of a hypothesis.
            max_length (`int`, *optional*): the most tokens of the input, special tokens included.

        Returns:
            `torch.LongTensor` of shape `(1, source_length)`: `input_ids`, on the device of the model.

        Raises:
            `TypeError`: if a text is not a list of sentences.
            `ValueError`: if a sentence has no tokens: the sentence tokens would count without it; or if `max_length`
                leaves no room for `</s>`.
        """
        if max_length is not None and max_length < 1:
            raise ValueError(f"`max_length` is {max_length}, but an input has at least one token, `</s>`.")
        for text in texts:
            if isinstance(text, str):
                raise TypeError(
                    f"Each text is a list of its sentences, got {text[:40]!r}: call "
                    '`encode_sentences(tokenizer, ["First sentence.", "Second sentence."])`.'
                )
        kept = parts = [tokenizer(list(text), add_special_tokens=False)["input_ids"] if text else [] for text in texts]
        for text, sentences in zip(texts, parts, strict=True):
            if [] in sentences:
                number = sentences.index([])
                raise ValueError(f"Sentence {number}, {text[number]!r}, has no tokens: leave it out.")
        budget = sum(map(_cost, parts))
        while max_length is not None and (excess := len(self._layout(kept)) - max_length) > 0:
            # More than once only if there are more sentences than sentence tokens, as those behind cost less.
            budget -= excess
            kept = _cut_longest(parts, budget)
        return torch.tensor([self._layout(kept)], device=self.device)

    def _layout(self, parts: list[list[list[int]]]) -> list[int]:
        """The ids of the sentences of all texts in one row, with their special tokens."""
        ids = []
        for position, sentence in enumerate(sentence for part in parts for sentence in part):
            if position < self.config.num_sentence_tokens:
                ids += [self.config.eosen_token_id, self.config.first_sentence_token_id + position]
            ids += sentence
        return [*ids, self.config.eosen_token_id, self.config.eos_token_id] if ids else [self.config.eos_token_id]

    @can_return_tuple
    @takes_cache
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.LongTensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple[torch.Tensor] | None = None,
        cache: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        decoder_inputs_embeds: torch.Tensor | None = None,
        labels: torch.LongTensor | None = None,
        use_cache: bool | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        sentence_mask: torch.BoolTensor | None = None,
        decoder_sentence_mask: torch.BoolTensor | None = None,
        encoder_segment_ids: torch.LongTensor | None = None,
        decoder_segment_ids: torch.LongTensor | None = None,
        loss_weights: torch.FloatTensor | None = None,
        skip_logits: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> TokenLossSeq2SeqLMOutput:
        """
        As [`T5ForConditionalGeneration.forward`], with two more arguments. 4-D attention masks are used as they are.

        Args:
            encoder_outputs ([`DepthEncoderOutput`], [`BaseModelOutput`] or `tuple`, *optional*):
                What `model.encoder` returned. Any other output needs `input_ids` or `sentence_mask` beside it.
            sentence_mask (`torch.BoolTensor` of shape `(batch_size, source_length)`, *optional*):
                `True` where the encoder input is a sentence token; needed only where neither `input_ids` nor the
                output of `model.encoder` is given.
            decoder_sentence_mask (`torch.BoolTensor` of shape `(batch_size, decoded_length)`, *optional*):
                `True` where the decoder input is a sentence token, for all tokens so far, those in `cache`
                included. Needed only with a filled cache or `decoder_inputs_embeds`; `generate()` passes it.
            encoder_segment_ids (`torch.LongTensor` of shape `(batch_size, source_length)`, *optional*):
                As in T5: several examples in one row. The rules for sentence tokens hold within each of them.
            decoder_segment_ids (`torch.LongTensor` of shape `(batch_size, target_length)`, *optional*):
                The same for the decoder; needed beside `encoder_segment_ids`.

        Returns:
            [`TokenLossSeq2SeqLMOutput`], or a tuple if `return_dict=False`.

        Raises:
            `ValueError`: if the decoder has no input, if a mask is needed but missing, if the configurations of the
                encoder or of the decoder have other sentence tokens or other switches than that of the model, or if
                the segment ids do not fit.
        """
        self._check_configurations()
        if encoder_segment_ids is not None or decoder_segment_ids is not None:
            source = encoder_outputs[0] if encoder_outputs is not None else _first(input_ids, inputs_embeds)
            target = _first(decoder_input_ids, decoder_inputs_embeds, labels)
            check_segment_ids(encoder_segment_ids, decoder_segment_ids, source, target)
            _check_packed_arguments(attention_mask, decoder_attention_mask, cache, use_cache)
            use_cache = False if use_cache is None else use_cache
        if labels is not None and decoder_input_ids is None and decoder_inputs_embeds is None:
            decoder_input_ids = self._shift_right(labels, decoder_segment_ids)
        query_mask = _decoder_query_mask(
            self.config, decoder_input_ids, decoder_inputs_embeds, decoder_sentence_mask, cache
        )
        if encoder_outputs is None:
            given = {"sentence_mask": sentence_mask, "segment_ids": encoder_segment_ids}
            if sentence_mask is None and input_ids is not None:
                sentence_mask = is_sentence_token(input_ids, self.config, attention_mask)
            if isinstance(self.encoder, DepthEncoder):  # a module around it gets ids, and may know no other arguments
                given["sentence_mask"] = sentence_mask
            input_ids, inputs_embeds, decoder_input_ids, decoder_inputs_embeds = self._embedded(
                input_ids, inputs_embeds, decoder_input_ids, decoder_inputs_embeds
            )
            encoder_outputs = self.encoder(
                input_ids=input_ids,
                attention_mask=attention_mask,
                inputs_embeds=inputs_embeds,
                **{name: value for name, value in given.items() if value is not None},
                **kwargs,
            )
        elif not isinstance(encoder_outputs, BaseModelOutput):
            # Slicing, unlike unpacking, gives the values of an output of another class, such as that of T5's encoder.
            encoder_outputs = DepthEncoderOutput.from_tuple(tuple(encoder_outputs[:]))
        if decoder_input_ids is None and decoder_inputs_embeds is None:
            raise ValueError(
                "There is nothing for the decoder: pass `labels` for a loss or `decoder_input_ids` for logits, or "
                "call `generate()`, which starts by itself."
            )
        if sentence_mask is None:
            sentence_mask = getattr(encoder_outputs, "sentence_mask", None)
        if sentence_mask is None and input_ids is not None:
            sentence_mask = is_sentence_token(input_ids, self.config, attention_mask)
        config, dtype = getattr(self.decoder, "config", self.config), _states_dtype(self, self.shared)
        attention_mask = _cross_attention_mask(
            config,
            query_mask,
            encoder_outputs[0],
            attention_mask,
            sentence_mask,
            decoder_segment_ids,
            encoder_segment_ids,
        )
        decoder_attention_mask = _decoder_attention_mask(
            config,
            query_mask,
            decoder_attention_mask,
            decoder_sentence_mask,
            cache,
            dtype,
            decoder_segment_ids,
        )
        return super().forward(
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            encoder_outputs=encoder_outputs,
            cache=cache,
            decoder_inputs_embeds=decoder_inputs_embeds,
            labels=labels,
            use_cache=use_cache,
            num_items_in_batch=num_items_in_batch,
            loss_weights=loss_weights,
            skip_logits=skip_logits,
            return_dict=True,
            **kwargs,
        )

    def _check_configurations(self):
        """Raise if the encoder's or the decoder's copy of the configuration has other sentence settings."""
        for part in (self.encoder, self.decoder):
            config = getattr(part, "config", self.config)  # a module around one of them may have none
            for name in SENTENCE_SETTINGS:
                if getattr(config, name) != getattr(self.config, name):
                    where = "encoder" if part is self.encoder else "decoder"
                    raise ValueError(
                        f"`model.config.{name}` is {getattr(self.config, name)}, but `model.{where}.config.{name}` is "
                        f"{getattr(config, name)}. Set it in all three: `for part in (model, model.encoder, "
                        f"model.decoder): part.config.{name} = ...`, or give it to `load_model` or `DepthConfig`."
                    )

    def prepare_inputs_for_generation(
        self, input_ids: torch.LongTensor, decoder_attention_mask: torch.Tensor | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """
        As in T5, with the `decoder_sentence_mask` of all decoder ids. The attention mask stays 2-D, since `forward`
        makes the hierarchical one of it.
        """
        inputs = super().prepare_inputs_for_generation(
            input_ids, decoder_attention_mask=decoder_attention_mask, **kwargs
        )
        inputs["decoder_attention_mask"] = decoder_attention_mask
        sentence_mask = is_sentence_token(input_ids, self.config)
        cache = inputs.get(CACHE)
        if (given := kwargs.get("decoder_sentence_mask")) is not None and cache is not None:
            # Of a given cache whose ids `generate()` does not know.
            unknown = int(cache.get_seq_length()) + inputs["decoder_input_ids"].shape[1] - input_ids.shape[1]
            sentence_mask = torch.cat([given[:, : max(0, unknown)], sentence_mask], dim=1)
        if getattr(cache, "is_compileable", False):
            # A static cache is there to keep shapes static: a mask that grew by one a step would recompile each time.
            sentence_mask = pad_to(sentence_mask, cache.get_mask_sizes(input_ids.shape[1], 0)[0])
        inputs["decoder_sentence_mask"] = sentence_mask
        return inputs


def _cost(sentences: list[list[int]]) -> int:
    """How many tokens the sentences of a text take, each with `<eosen>` and its sentence token."""
    return sum(len(sentence) + 2 for sentence in sentences)


def _cut_longest(parts: list[list[list[int]]], budget: int) -> list[list[list[int]]]:
    """The first tokens of texts that cost no more than `budget` together: the longest ones are cut at their ends."""
    costs = [_cost(sentences) for sentences in parts]
    limits = list(costs)
    for _ in range(sum(costs) - max(budget, 0)):
        # Of several, the one that was shorter before.
        longest = max(range(len(limits)), key=lambda i: (limits[i], -costs[i]))
        limits[longest] -= 1
    kept = []
    for sentences, limit in zip(parts, limits, strict=True):
        kept.append([])
        for sentence in sentences:
            if limit > 2:
                kept[-1].append(sentence[: limit - 2])
            limit -= len(sentence) + 2
    return kept


def check_loaded_weights(
    name_or_path: Any, loading_info: dict[str, Any], kinds: Sequence[str] = ("missing", "unexpected", "mismatched")
) -> None:
    """
    Check that a checkpoint has exactly the weights of the model.

    Args:
        name_or_path (`str` or `os.PathLike`): of the checkpoint.
        loading_info (`dict`): what `from_pretrained(..., output_loading_info=True)` returns beside the model.
        kinds (`Sequence[str]`, *optional*): of keys to look at.

    Raises:
        `ValueError`: if there are any such keys.
    """
    problems = []
    for kind in kinds:
        keys = sorted(key if isinstance(key, str) else key[0] for key in loading_info[f"{kind}_keys"])
        if keys:
            more = f" and {len(keys) - 5} more" if len(keys) > 5 else ""
            problems.append(f"{kind}: {', '.join(keys[:5])}{more}")
    remedy = ""
    if "missing" in kinds and loading_info["missing_keys"]:
        remedy = (
            " A class that adds weights, such as another head, is started from one by `from_pretrained(..., "
            "output_loading_info=True)`, which returns the model and what its checkpoint lacks."
        )
    if problems:
        raise ValueError(
            f"The weights of {name_or_path} are not those of the model that its config.json describes ("
            f"{'; '.join(problems)}). Name a checkpoint of a T5, mT5, UMT5 or DEPTH model with encoder, decoder and "
            f"output head.{remedy}"
        )


def _check_packed_arguments(attention_mask, decoder_attention_mask, cache, use_cache):
    """Raise on what cannot go together with several examples in a row."""
    if is_4d(attention_mask) or is_4d(decoder_attention_mask):
        raise ValueError(
            "An attention mask of four dimensions says by itself who attends to whom: leave out the segment ids, or "
            "give masks of shape `(batch_size, length)`."
        )
    if cache is not None or use_cache:
        raise ValueError(
            f"`{CACHE}` and `use_cache` are for rows of one example: leave out the segment ids to generate."
        )


def _first(*tensors: torch.Tensor | None) -> torch.Tensor | None:
    """The first one that is given."""
    return next((tensor for tensor in tensors if tensor is not None), None)


def _segment_mask(config, query_segments, key_segments, attention_mask, dtype, is_causal=False):
    """The mask of queries (B, Q) on keys (B, K) of their own segments."""
    return create_mask(
        config,
        attention_mask,
        query_shape=query_segments.shape,
        key_length=key_segments.shape[1],
        dtype=dtype,
        device=query_segments.device,
        is_causal=is_causal,
        segments=(query_segments, key_segments),
    )


def _check_loss_arguments(hidden_states, labels, num_items_in_batch, loss_weights):
    """Raise if labels or weights are not one per position of the decoder: flattened, they would be misaligned."""
    positions = hidden_states.shape[:2]
    if labels.shape != positions:
        raise ValueError(
            f"`labels` must have one id for each position of the decoder, shape {tuple(positions)}, got the shape "
            f"{tuple(labels.shape)}: set those to -100 that do not count."
        )
    if loss_weights is not None and loss_weights.shape != positions:
        raise ValueError(
            f"`loss_weights` must have one number per label, shape {tuple(positions)}, got the shape "
            f"{tuple(loss_weights.shape)}: `weights.expand(labels.shape)` repeats what is of shape `(batch_size, 1)`."
        )
    if isinstance(num_items_in_batch, torch.Tensor) and num_items_in_batch.numel() != 1:
        raise ValueError(
            "`num_items_in_batch` must be one number, that of the labels of the whole global batch, got the shape "
            f"{tuple(num_items_in_batch.shape)}: pass its sum."
        )


def _return_dict(stack: nn.Module) -> dict[str, bool]:
    """What makes a stack return no tuple, whatever its configuration says; another module may not know it."""
    stack = getattr(stack, "_orig_mod", stack)  # of a compiled one
    return {"return_dict": True} if isinstance(stack, T5Stack) else {}


def _states_dtype(model: PreTrainedModel, embedding: nn.Module) -> torch.dtype:
    """The dtype of the hidden states; a module in place of an embedding may have no weight."""
    weight = getattr(embedding, "weight", None)
    is_float = isinstance(weight, torch.Tensor) and weight.is_floating_point()
    return weight.dtype if is_float else model.dtype


def _decoder_query_mask(config, input_ids, inputs_embeds, sentence_mask, cache):
    """Which tokens that the decoder gets now, those of the cache not among them, are sentence tokens: (B, T)."""
    if input_ids is not None:
        return is_sentence_token(input_ids, config)
    if sentence_mask is None or inputs_embeds is None:
        return None
    past_length = 0 if cache is None else int(cache.get_seq_length())
    return sentence_mask[:, past_length : past_length + inputs_embeds.shape[1]]


def _cross_attention_mask(
    config, query_mask, encoder_hidden_states, attention_mask, sentence_mask, query_segments=None, key_segments=None
):
    """The mask of cross-attention: (B, T) queries on (B, S) keys."""
    if is_4d(attention_mask):
        return attention_mask
    groups = None
    if config.hierarchical_cross_mask:
        query_mask = _required(query_mask, *_DECODER_INPUT)
        sentence_mask = _required(sentence_mask, *_ENCODER_OUTPUT)
        _check_sentence_mask(sentence_mask, "sentence_mask", encoder_hidden_states)
        groups = sentence_to_sentence_groups(query_mask, sentence_mask, query_segments, key_segments)
    if groups is None and query_segments is None:
        return attention_mask
    return create_mask(
        config,
        attention_mask,
        query_shape=_first(query_segments, query_mask).shape,
        key_length=encoder_hidden_states.shape[1],
        dtype=encoder_hidden_states.dtype,
        device=encoder_hidden_states.device,
        segments=None if query_segments is None else (query_segments, key_segments),
        groups=groups,
    )


def _decoder_attention_mask(config, query_mask, attention_mask, sentence_mask, cache, dtype, segment_ids=None):
    """The mask of decoder self-attention: (B, T) queries on the (B, past + T) keys up to themselves."""
    if is_4d(attention_mask):
        return attention_mask
    if not config.hierarchical_decoder_mask:
        if segment_ids is None:
            return attention_mask
        return _segment_mask(config, segment_ids, segment_ids, attention_mask, dtype, is_causal=True)
    query_mask = _required(query_mask, *_DECODER_INPUT)
    past_length, key_length = 0, query_mask.shape[1]
    if cache is not None:
        cache = getattr(cache, "self_attention_cache", cache)
        past_length = cache.get_seq_length()
        if isinstance(past_length, torch.Tensor):
            past_length = past_length.clone()  # a static cache counts on in place, before a block mask is read
        key_length = cache.get_mask_sizes(key_length, 0)[0]
    known_length = 0 if sentence_mask is None else sentence_mask.shape[-1]
    # The length of a static cache is a tensor, which a compiled graph cannot read. `generate()` pads its mask.
    is_readable = isinstance(past_length, int) or not (known_length or torch.compiler.is_compiling())
    if is_readable and past_length > 0 and known_length < past_length + query_mask.shape[1]:
        raise ValueError(
            f"`{CACHE}` holds {int(past_length)} tokens, but `decoder_sentence_mask` is missing or does "
            "not cover them: pass it (to the decoder by itself, as `sentence_mask`) for all decoder tokens so far. "
            "`generate()` makes it of its `decoder_input_ids` if those are all ids so far, not only the last ones. "
            f"Prefix tuning (PEFT) fills `{CACHE}` with virtual tokens, for which hierarchical attention "
            "has no rule: use LoRA, or a model with `hierarchical_decoder_mask=False`."
        )
    if sentence_mask is None:
        sentence_mask = query_mask
    else:  # it may be longer: `generate()` pads it to the length of a static cache
        known = sentence_mask[..., : query_mask.shape[1]]
        _check_sentence_mask(known, "decoder_sentence_mask", query_mask)
    # A static cache has more keys than ids; the causal mask excludes the rest.
    sentence_mask = pad_to(sentence_mask, key_length)
    # A sentence token attends to itself: the groups need not know of segments to leave none without a key.
    return create_mask(
        config,
        attention_mask,
        query_shape=query_mask.shape,
        key_length=key_length,
        dtype=dtype,
        device=query_mask.device,
        query_offset=past_length,
        is_causal=True,
        segments=None if segment_ids is None else (segment_ids, segment_ids),
        groups=sentence_to_sentence_groups(sentence_mask, sentence_mask),
    )


def _check_sentence_mask(sentence_mask, name, tokens):
    """Raise unless a sentence mask is one of the tokens (B, L, ...): groups of other places would not be seen."""
    rows, length = tokens.shape[:2]
    if sentence_mask.dim() != 2 or sentence_mask.shape[0] not in (1, rows) or sentence_mask.shape[1] != length:
        raise ValueError(
            f"`{name}` must have one entry for each token, shape {(rows, length)}, got the shape "
            f"{tuple(sentence_mask.shape)}."
        )


def _required(sentence_mask: torch.BoolTensor | None, given: str, remedy: str) -> torch.BoolTensor:
    """`sentence_mask`, or an error if there is none."""
    if sentence_mask is None:
        raise ValueError(
            f"{given} does not say which tokens are sentence tokens, and the hierarchical masks depend on them. Pass "
            f"{remedy}. (A sentence mask is boolean, of shape `(batch_size, length)`, `True` on sentence tokens.)"
        )
    return sentence_mask


def _check_sentence_token_ids(config: DepthConfig, vocab_size: int) -> None:
    if config.num_sentence_tokens < 1:
        raise ValueError(
            f"`num_sentence_tokens` must be at least 1, got {config.num_sentence_tokens}: a model without sentence "
            "tokens is a `T5ForConditionalGeneration`."
        )
    last = max(config.first_sentence_token_id + config.num_sentence_tokens - 1, config.eosen_token_id)
    if last >= vocab_size or config.first_sentence_token_id < 0:
        raise ValueError(
            f"The sentence tokens {config.first_sentence_token_id} to {last} do not fit `vocab_size`={vocab_size}. "
            '`load_model(name_or_config, tokenizer, model_type="depth")` sets `first_sentence_token_id` and '
            "`eosen_token_id` to the ids that `add_sentence_tokens(tokenizer)` gave them, and adds rows to embeddings "
            "with too few."
        )
    if 0 <= config.eosen_token_id - config.first_sentence_token_id < config.num_sentence_tokens:
        raise ValueError(
            f"`eosen_token_id` {config.eosen_token_id} is one of the {config.num_sentence_tokens} sentence tokens "
            f"from `first_sentence_token_id` {config.first_sentence_token_id} on: whoever changes one of them has to "
            'give both. `load_model(name_or_config, tokenizer, model_type="depth")` takes them from the tokenizer.'
        )


__all__ = ["DepthForConditionalGeneration", "T5ForConditionalGeneration", "UMT5ForConditionalGeneration"]
