"""Model cards: the README of a folder or a repository on the Hub, with data, settings and results."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import EvalResult, ModelCard, ModelCardData
from transformers import PreTrainedModel, TrainingArguments

from ..evaluation.outputs import results_table
from ..evaluation.scoring import TaskResult, get_metric
from ..models.modeling_depth import has_sentence_tokens
from ..tasks.splits import TaskSplits
from .training_args import TaskTrainingArguments

_HUB_NAME = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")

RESULTS_SECTION = """## Results

Beside the scores stand those of always answering the most frequent class, and of guessing; `unparsed` is the fraction
of generated texts that are none of the labels, which count as wrong.

{table}

"""

TRAINING_SETTINGS = (
    "learning_rate",
    "lr_scheduler_type",
    "warmup_steps",
    "max_steps",
    "num_train_epochs",
    "optim",
    "seed",
)


@dataclass
class CardContent:
    """
    What a model card states beside the results.

    Args:
        sections: title -> what to list there, such as `{"Data": {"source": "novels"}}`; values must be
            JSON-serialisable.
        base_model: what was fine-tuned: a name on the Hub, or a folder.
        datasets: the names on the Hub of the data, if they are from there.
    """

    sections: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    base_model: str | None = None
    datasets: Sequence[str] = ()


def model_card(model_name: str, model_type: str, sections: Mapping[str, Mapping]) -> str:
    """
    A README for the Hub that states data, settings and results.

    Args:
        model_name: title.
        model_type: `depth`, `t5` or `umt5`.
        sections: title -> what to list there; values must be JSON-serialisable.
    """
    paper = {
        "depth": "as a DEPTH model ([arXiv 2405.07788](https://arxiv.org/abs/2405.07788))",
        "t5": "as a T5 ([arXiv 1910.10683](https://arxiv.org/abs/1910.10683))",
        "umt5": "as a UMT5 ([arXiv 2304.09151](https://arxiv.org/abs/2304.09151))",
    }[model_type]
    trust = ", trust_remote_code=True" if model_type == "depth" else ""
    usage = f'model = AutoModelForSeq2SeqLM.from_pretrained("{model_name}"{trust})'
    head = [
        "---",
        "library_name: transformers",
        f"tags: [{model_type}, pre-training, hf_depth]",
        "---",
        "",
        f"# {model_name}",
        "",
        f"An encoder-decoder pre-trained with hf_depth {paper}.",
        "",
        "```python",
        "from transformers import AutoModelForSeq2SeqLM, AutoTokenizer",
        "",
        f'tokenizer = AutoTokenizer.from_pretrained("{model_name}")',
        usage,
        "```",
        "",
    ]
    return "\n".join(head + [line for title, values in sections.items() for line in card_section(title, values)])


def run_settings(
    training_args: TrainingArguments, model: PreTrainedModel, base_model: str | None = None
) -> dict[str, Any]:
    """
    What a model card states about how a model was trained.

    Args:
        base_model: the checkpoint that training started from; of a folder, only the name is told.
    """
    settings = {}
    for name in TRAINING_SETTINGS:
        value = getattr(training_args, name)
        settings[name] = getattr(value, "value", value)  # of an enumeration
    if base_model is not None and Path(base_model).exists():
        base_model = Path(base_model).resolve().name
    batch_size = training_args.train_batch_size * training_args.gradient_accumulation_steps * training_args.world_size
    return settings | {
        "global batch size": batch_size,
        "parameters": model.num_parameters(),
        "initialised from": base_model or "scratch",
        "transformers": transformers.__version__,
        "torch": torch.__version__,
    }


def pretraining_content(
    source: str,
    statistics: Mapping[str, Mapping[str, int]],
    objective_settings: Mapping[str, Any],
    training_args: TrainingArguments,
    model: PreTrainedModel,
    base_model: str | None = None,
) -> CardContent:
    """
    What the card of a pre-trained model states about data and settings.

    Args:
        source: where the text is from.
        statistics: what the preparation counted, of each split.
        objective_settings: see [`Objective.settings`].
        base_model: the checkpoint that training started from.
    """
    settings = dict(objective_settings)
    if has_sentence_tokens(model.config):
        settings["sentence_loss_coefficient"] = training_args.sentence_loss_coefficient
    settings |= run_settings(training_args, model, base_model)
    return CardContent({"Data": {"source": source, **statistics}, "Settings": settings}, base_model)


def fine_tuning_content(
    splits: TaskSplits,
    training_args: TaskTrainingArguments,
    model: PreTrainedModel,
    base_model: str | None = None,
    mixing: Mapping[str, Any] | None = None,
) -> CardContent:
    """
    What the card of a fine-tuned model states about data and settings.

    Args:
        splits: the data, prepared.
        base_model: the checkpoint that was fine-tuned.
        mixing: how several tasks were mixed.
    """
    settings = {"prediction_mode": training_args.prediction_mode}
    if len(splits.tasks) > 1:
        settings |= mixing or {}
    settings |= run_settings(training_args, model, base_model)
    return CardContent({"Data": splits.description, "Settings": settings}, base_model, splits.hub_datasets)


def card_section(title: str, values: Mapping) -> list[str]:
    """The lines of one section of a model card: a title, and a table of what is in `values`."""

    def text(value):
        return f"{value:.4g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)

    rows = [f"| {name} | {text(value)} |" for name, value in values.items()]
    return [f"## {title}", "", "| | |", "|---|---|", *rows, ""]


def model_index(results: Sequence[TaskResult], datasets: Sequence[str] = ()) -> list[EvalResult]:
    """
    The scores in the form in which the Hub shows them beside a model, one per task, split and metric.

    Args:
        datasets: the names on the Hub of what was read from there. Examples from files have the name of their task
            instead: they need not be those of the Hub.
    """
    return [
        EvalResult(
            task_type="text-classification" if result.spec.labels is not None else "text-generation",
            task_name=result.spec.name,
            dataset_type=result.spec.path if result.spec.path in datasets else result.spec.full_name,
            dataset_name=result.spec.full_name,
            dataset_config=result.spec.config_name if result.spec.path in datasets else None,
            dataset_split=result.split,
            metric_type=get_metric(name).hub_name or name,
            metric_name=name,
            metric_value=round(float(result.metrics[name]), 6),
        )
        for result in results
        for name in result.spec.metric_names
        if math.isfinite(result.metrics.get(name, math.nan))
    ]


def fine_tuning_card(
    model_name: str,
    model_type: str,
    results: Sequence[TaskResult],
    content: CardContent,
) -> str:
    """
    A README for the Hub of a fine-tuned model, with its scores as the Hub's `model-index`.

    Args:
        model_name: title.
        model_type: `depth`, `t5` or `umt5`.
        results: the scores, those of validation and test sets.
        content: what else to state. A base model that is a folder is named in the text only, without its path.
    """
    base_model, datasets = content.base_model, content.datasets
    is_folder = base_model is not None and (Path(base_model).exists() or not _HUB_NAME.fullmatch(base_model))
    scores = model_index(results, datasets)
    data = ModelCardData(
        library_name="transformers",
        tags=sorted({model_type, "hf_depth", *(result.spec.benchmark for result in results)}),
        base_model=None if is_folder else base_model,
        datasets=sorted(set(datasets)) or None,
        metrics=sorted({score.metric_type for score in scores}) or None,
        model_name=model_name,
        eval_results=scores or None,
    )
    tasks = ", ".join(dict.fromkeys(result.spec.full_name for result in results))
    trust = ", trust_remote_code=True" if model_type == "depth" else ""
    source = f" from {Path(base_model).name if is_folder else base_model}" if base_model else ""
    body = [
        f"# {model_name}",
        "",
        f"A {model_type.upper()} model, fine-tuned with hf_depth{source}{' on ' + tasks if tasks else ''}.",
        "",
        "```python",
        "from transformers import AutoModelForSeq2SeqLM, AutoTokenizer",
        "",
        f'tokenizer = AutoTokenizer.from_pretrained("{model_name}")',
        f'model = AutoModelForSeq2SeqLM.from_pretrained("{model_name}"{trust})',
        "```",
        "",
        *(RESULTS_SECTION.format(table=results_table(results, markdown=True)).splitlines() if results else ()),
        *(line for title, values in content.sections.items() for line in card_section(title, values)),
    ]
    return str(ModelCard(f"---\n{data.to_yaml()}\n---\n\n" + "\n".join(body)))
