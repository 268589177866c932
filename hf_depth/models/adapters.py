"""LoRA adapters of PEFT, which is optional: adding one to a model, and loading a saved one."""

import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

from transformers import PreTrainedConfig, PreTrainedModel
from transformers.utils.peft_utils import find_adapter_config_file

from ..errors import UserError
from .modeling_depth import has_sentence_tokens
from .stock import vocabulary_size


def peft(what: str = "`--use_peft`") -> ModuleType:
    """The package peft. Raises `ValueError` if it is not installed, and says that `what` needs it."""
    try:
        import peft
    except ImportError as error:
        raise UserError(f"{what} needs the package peft: `pip install peft`.") from error
    return peft


def is_adapter(name_or_path: str | os.PathLike, **hub_arguments: Any) -> bool:
    """Whether a folder or a repository of the Hub holds a PEFT adapter."""
    return find_adapter_config_file(name_or_path, **hub_arguments) is not None


def add_lora(
    model: PreTrainedModel,
    base: PreTrainedConfig,
    r: int = 16,
    alpha: int = 32,
    dropout: float = 0.05,
    target_modules: str | list[str] | None = None,
) -> PreTrainedModel:
    """
    A model with a LoRA adapter. Only the adapter is trained and saved.

    Args:
        model (`PreTrainedModel`): loaded from a checkpoint, which the adapter names as its base.
        base (`PreTrainedConfig`): the configuration of that checkpoint.
        r, alpha, dropout: rank, scale (`alpha / r`) and dropout of the adapter, by default as in TRL.
        target_modules (`str` or `list[str]`, *optional*): names of linear layers; by default all but the output head.

    Returns:
        `peft.PeftModel`.

    Raises:
        `ValueError`: if peft is not installed, or no layer has such a name. Also if the model has new tokens or
            sentence tokens that its base lacks, which an adapter would not save or learn.
    """
    library = peft()
    if vocabulary_size(model.config) != vocabulary_size(base):
        raise UserError(
            f"The tokenizer has tokens for which {model.name_or_path} has no rows, and an adapter would not save new "
            "ones. Save the model first by `load_model(...).save_pretrained(folder)`, and start from that folder."
        )
    if has_sentence_tokens(model.config) and not has_sentence_tokens(base):
        raise UserError(
            f"{model.name_or_path} knows no sentence tokens, and an adapter would not learn them, since embeddings "
            "stay as they are. Pre-train a DEPTH model of it without `use_peft` first."
        )
    if getattr(model, "is_quantized", False):
        model = library.prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    config = library.LoraConfig(
        task_type="SEQ_2_SEQ_LM",
        r=r,
        lora_alpha=alpha,
        lora_dropout=dropout,
        target_modules="all-linear" if target_modules in (None, "", ["all-linear"]) else target_modules,
        exclude_modules=[name for name, module in model.named_modules() if module is model.get_output_embeddings()],
    )
    try:
        return library.get_peft_model(model, config)
    except ValueError as error:
        raise UserError(f"`lora_target_modules` {target_modules}: {error}") from error


def load_adapted(
    name_or_path: str | os.PathLike, load_base: Callable[[str], PreTrainedModel], **hub_arguments: Any
) -> PreTrainedModel:
    """An adapter merged into its base model, which `load_base` loads by name."""
    library = peft(f"{name_or_path} is a PEFT adapter, which")
    model = load_base(library.PeftConfig.from_pretrained(name_or_path, **hub_arguments).base_model_name_or_path)
    tied = getattr(model.config, "tie_word_embeddings", None)
    model = library.PeftModel.from_pretrained(model, name_or_path, **hub_arguments).merge_and_unload()
    if tied is not None:  # PEFT takes the head of a T5Gemma for untied, since the encoder's embedding is another one
        model.config.tie_word_embeddings = tied
    model.name_or_path = str(name_or_path)
    return model
