"""The model card of a run, `README.md`: `model_card_template.md` filled. Its code runs with and without hf_depth."""

import json
import math
import re
import sys
from collections.abc import Mapping, Sequence, Sized
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import EvalResult, ModelCard, ModelCardData
from transformers import PreTrainedModel, Trainer
from transformers.trainer_pt_utils import get_model_param_count

from .. import __version__
from ..credentials import is_hub_name, told_command, told_name, without_credentials
from ..data.data_collator import DataCollatorForDepth, DataCollatorForT5SpanCorruption
from ..data.sentences import LINES, get_sentence_splitter
from ..evaluation.metrics import METRICS
from ..evaluation.outputs import REPORTED_METRICS, before_and_after, results_table
from ..evaluation.prediction import generation_length
from ..models.modeling_depth import has_sentence_tokens
from ..tables import markdown_tables, readable
from ..tasks.config import prompt_format
from ..tasks.preprocessing import INSTANCE_COLUMN, encode_labels
from .inputs import by_name, objective_collator

TEMPLATE = Path(__file__).with_name("model_card_template.md")
PAPERS = {"depth": "2405.07788", "t5": "1910.10683", "umt5": "2304.09151"}  # on arXiv, by model type
TRAINING_SETTINGS = "learning_rate lr_scheduler_type lr_scheduler_kwargs warmup_steps optim optim_args seed".split()
PRETRAINING_SCORES = ("loss", "sentence_accuracy_shuffled", "reconstruction_accuracy")  # those of the model index
# What the code of a pre-trained model shows. It is not of the data, which may be private.
SENTENCES = ["The bell rang early in the morning.", "Then the children ran across the wet yard to the door."]
MASKED_SENTENCES = [
    "Then the children ran <extra_id_0> the wet yard to the door.",
    "The bell rang <extra_id_1> in the morning.",
]


@dataclass
class CardContent:
    """What a model card states beside what the trainer knows: `sections`, and what `create_model_card` takes."""

    # Title -> what to list there, such as `{"Data": {"source": "novels"}}`; mappings become rows.
    sections: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    finetuned_from: str | None = None  # a name on the Hub, or a folder, of which only the name is told
    dataset: str | Sequence[str] | None = None  # names to read
    dataset_tags: str | Sequence[str] | None = None  # names on the Hub
    language: str | Sequence[str] | None = None
    license: str | None = None  # as the Hub writes it; by default `hub_license`
    tags: str | Sequence[str] | None = None


def write_model_card(trainer: Trainer, model_name: str | None = None, **kwargs: Any) -> None:
    """Write `README.md` on one process; `kwargs` are fields of [`CardContent`], which stay in `trainer.card`."""
    told = {name: value for name, value in kwargs.items() if value is not None}
    told["tags"] = [*_as_list(trainer.card.tags), *_as_list(told.get("tags"))]
    content = trainer.card = replace(trainer.card, **told)
    model, folder = trainer.accelerator.unwrap_model(trainer.model), Path(trainer.args.output_dir).resolve()
    revision = trainer.args.hub_revision if trainer.hub_model_id else None
    title = " ".join((trainer.hub_model_id or model_name or folder.name).split())
    name = getattr(model, "name_or_path", None) or None
    goes_on = name is not None and Path(name).resolve().is_relative_to(folder)  # from a model of its own
    base = content.finetuned_from or (None if goes_on else name)
    language = None  # by whose rules the text of a DEPTH model was split into sentences
    if has_sentence_tokens(model.config):
        of_text = content.sections.get("Settings", {}).get("sentence_language")
        language = getattr(trainer.task_config, "sentence_language", None) if trainer.is_of_tasks else of_text
    sections = _sections(trainer, model, language)
    if not goes_on or base:
        sections["Settings"]["initialised from"] = told_name(base) or "scratch"
    facts = (_task_facts if trainer.is_of_tasks else _pretraining_facts)(trainer, model, sections)
    metadata = ModelCardData(
        # No `pipeline_tag`: the Hub would show the code of a pipeline, and there is none for encoder-decoders.
        base_model=base if base and is_hub_name(base) else None,
        datasets=sorted({name for name in _as_list(content.dataset_tags) if is_hub_name(name)}) or None,
        language=content.language or (None if language == LINES else language),
        library_name="peft" if hasattr(model, "peft_config") else "transformers",
        license=content.license or trainer.args.hub_license,
        metrics=sorted({score.metric_type for score in facts["scores"]}) or None,
        model_name=title if facts["scores"] else None,
        tags=sorted({"hf_depth", model.config.model_type, *facts["tags"], *content.tags}),
        eval_results=facts["scores"] or None,
    )
    card = ModelCard.from_template(
        metadata,
        template_path=str(TEMPLATE),
        title=title,
        kind=model.config.model_type,
        paper=PAPERS.get(model.config.model_type),
        trainer=trainer,
        is_depth=has_sentence_tokens(model.config),
        is_adapter=hasattr(model, "peft_config"),
        # A name without `./` would be looked up on the Hub, where it may be somebody else's.
        name=repr(trainer.hub_model_id or f"./{folder.name}"),
        revision=f", revision={revision!r}" if revision not in (None, "main") else "",
        base=told_name(base),
        sections=sections,
        tables={name: markdown_tables(values) for name, values in sections.items() if values},
        command=told_command(sys.argv),
        **facts,
    )
    (folder / "README.md").write_text(without_credentials(str(card)), encoding="utf-8")


def _as_list(values: str | Sequence[str] | None) -> list[str]:
    return [] if values is None else [values] if isinstance(values, str) else list(values)


def _sections(trainer: Trainer, model: PreTrainedModel, language: str | None) -> dict[str, dict[str, Any]]:
    """The data, the settings and what else the card was told, completed by what the trainer knows."""
    args, content = trainer.args, trainer.card
    data, settings = (dict(content.sections.get(title, {})) for title in ("Data", "Settings"))
    if content.dataset is not None:
        data["source"] = ", ".join(_as_list(content.dataset))
    if not any(isinstance(value, Mapping) for value in data.values()):
        for name, dataset in {"train": trainer.train_dataset, **by_name(trainer.eval_dataset)}.items():
            if isinstance(dataset, Sized):
                data[name or "validation"] = {"examples": len(dataset)}
    data |= {f"{name}, seen in training": counts for name, counts in trainer.running.sources.items()}
    if language:
        data["sentences split by"] = f"{get_sentence_splitter(language).version}, language {language}"
    if trainer.is_of_tasks:
        settings = {"prediction_mode": args.prediction_mode} | settings
    elif has_sentence_tokens(model.config):
        settings["sentence_loss_coefficient"] = args.sentence_loss_coefficient
    length = "max_steps" if args.max_steps > 0 else "num_train_epochs"
    for name in (length, *TRAINING_SETTINGS):
        value = getattr(getattr(args, name), "value", getattr(args, name))  # of an enumeration
        if value not in (None, {}):
            settings[name] = json.dumps(value) if isinstance(value, dict) else value
    settings |= {
        "parameters": get_model_param_count(model),  # of ZeRO-3, the parameters themselves are empty
        "hf_depth": __version__,
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "global batch size": trainer.get_total_train_batch_size(args),
    }
    if trainer.weights_step != trainer.state.global_step:
        settings["weights of step"] = f"{trainer.weights_step:,} of {trainer.state.global_step:,}, the best one"
    return {**content.sections, "Data": data, "Settings": settings}


def _pretraining_facts(trainer: Trainer, model: PreTrainedModel, sections: Mapping[str, Any]) -> dict[str, Any]:
    """What the card states of a pre-trained model alone."""
    logs = [log for log in trainer.state.log_history if "eval_loss" in log and log["step"] == trainer.weights_step]
    last = logs[-1] if logs else {}
    data = {
        "task_type": "fill-mask",
        "task_name": "pre-training",
        "dataset_type": next(iter(_as_list(trainer.card.dataset_tags)), "text"),
        "dataset_name": readable(sections["Data"].get("source", "text")),
        "dataset_split": "validation",
    }
    return {
        "tags": ["pre-training"],
        "scores": _scores({name: last.get(f"eval_{name}", math.nan) for name in PRETRAINING_SCORES}, data),
        "results": f"```text\n{before_and_after(trainer.state, last, REPORTED_METRICS)}\n```" if logs else "",
        "use": _pretraining_use(trainer, model),
    }


def _scores(values: Mapping[str, float], data: Mapping[str, Any]) -> list[EvalResult]:
    """Values that are finite, in the form of the Hub."""
    kinds = {name: metric.hub_name or name for name, metric in METRICS.items()}
    finite = {name: round(float(value), 6) for name, value in values.items() if math.isfinite(value)}
    return [
        EvalResult(metric_name=name, metric_type=kinds.get(name, name), metric_value=value, **data)
        for name, value in finite.items()
    ]


def _pretraining_use(trainer: Trainer, model: PreTrainedModel) -> dict[str, Any] | None:
    """What the code restores; `None` without a tokenizer, with noise of the user's own, and of PEFT."""
    tokenizer, collator = trainer.processing_class, copy(objective_collator(trainer.data_collator))
    is_ours = type(collator) in (DataCollatorForT5SpanCorruption, DataCollatorForDepth)
    if tokenizer is None or not is_ours or hasattr(model, "peft_config"):
        return None
    encoded = tokenizer(SENTENCES, add_special_tokens=False)["input_ids"]
    # The sentences may be longer than the examples of the run, as in bytes.
    collator.padding, collator.max_source_length, collator.max_target_length = "longest", None, None
    ids, lengths = sum(encoded, []), list(map(len, encoded))
    batch = collator([{"input_ids": ids, "sentence_lengths": lengths, "unit_lengths": [1] * len(ids)}])
    source, target = batch["input_ids"][0][batch["attention_mask"][0].bool()], batch["labels"][0]
    is_masked = collator.objective != "prefix_lm"
    given = MASKED_SENTENCES if is_masked else SENTENCES[::-1]
    return {
        "sentences": [repr(sentence) for sentence in given],
        "text": repr(" ".join([getattr(collator, "input_prefix", ""), *given]).strip()),
        "input": readable(tokenizer.decode(source)),
        "target": readable(tokenizer.decode(target[target >= 0])),
        "is_masked": is_masked,
        "generation": f"max_length={trainer.generation_max_length or model.generation_config.max_length}",
    }


def _task_facts(trainer: Trainer, model: PreTrainedModel, sections: Mapping[str, Any]) -> dict[str, Any]:
    """What the card states of a fine-tuned model alone, with the scores of its present weights."""
    evaluations = [one for one in trainer.evaluations.values() if one.step == trainer.weights_step]
    scores = []
    for evaluation in evaluations:
        spec, metrics = evaluation.dataset.spec, evaluation.metrics
        is_of_hub = spec.path in _as_list(trainer.card.dataset_tags)
        data = {
            "task_type": "text-classification" if spec.labels is not None else "text-generation",
            "task_name": spec.name,
            # Examples from files need not be those of the Hub: they have the name of their task instead.
            "dataset_type": spec.path if is_of_hub else spec.full_name,
            "dataset_name": spec.full_name,
            "dataset_config": spec.config_name if is_of_hub else None,
            "dataset_split": evaluation.dataset.split,
        }
        scores += _scores({name: metrics.get(name, math.nan) for name in spec.metric_names}, data)
    return {
        "tags": [evaluation.dataset.spec.benchmark for evaluation in evaluations],
        "scores": scores,
        "tasks": ", ".join(dict.fromkeys(evaluation.dataset.spec.full_name for evaluation in evaluations)),
        "results": results_table(evaluations, markdown=True) if evaluations else "",
        "use": _task_use(trainer, model),
    }


def _task_use(trainer: Trainer, model: PreTrainedModel) -> dict[str, Any] | None:
    """What the code predicts, the shortest of the first examples; `None` without any example, and of PEFT."""
    config, tokenizer = trainer.task_config, trainer.processing_class
    datasets = [*by_name(trainer.eval_dataset).values(), *(one.dataset for one in trainer.evaluations.values())]
    dataset = next((data for data in datasets if data is not None and len(data)), None)
    if config is None or dataset is None or hasattr(model, "peft_config"):
        return None
    spec, rows = dataset.spec, dataset.rows
    index = min(range(min(100, len(rows))), key=lambda index: len(spec.prompt(rows[index])))
    row, prepared = rows[index], dataset.prepared[index]
    columns = [column for column in dict.fromkeys([*spec.text_column_name, INSTANCE_COLUMN]) if column in row]
    labels = list((spec.labels or {}).values())
    label_ids = encode_labels(tokenizer, labels) if labels else None
    length = config.generation_max_length or generation_length(spec, label_ids)
    beams = f", num_beams={config.generation_num_beams}" if config.generation_num_beams else ""
    source = tokenizer.decode(prepared["input_ids"])
    text = source.removesuffix(tokenizer.eos_token)
    sentences = map(str.strip, re.split(r"<eosen>(?:<sent_\d+>)?", text))
    return {
        "text": repr(text),
        "sentences": [repr(sentence) for sentence in sentences if sentence],
        "input": readable(source),
        "target": readable(tokenizer.decode(prepared["labels"])),
        "task": repr(spec.full_name),
        "example": repr({column: row[column] for column in columns}),
        "prompt": prompt_format(spec),
        "labels": labels,
        "is_scored": config.prediction_mode == "score_labels",
        "is_mean_loss": config.length_normalize_scores,
        "generation": f"max_length={length}{beams}",
        "is_one_of_several": len(config.tasks) > 1,
    }
