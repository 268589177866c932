"""Model cards: the README of a folder or a repository on the Hub, with code, data, settings, results and limits."""

import json
import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import transformers
from huggingface_hub import EvalResult, ModelCard, ModelCardData
from transformers import PreTrainedModel, TrainingArguments
from transformers.trainer_pt_utils import get_model_param_count

from ..credentials import is_hub_name, told_name
from ..data.metadata import metadata_prefix
from ..data.sentences import LINES, get_sentence_splitter
from ..evaluation.attention_entropy import SATURATED
from ..evaluation.outputs import results_table
from ..evaluation.scoring import TaskResult, get_metric
from ..models.modeling_depth import has_sentence_tokens
from ..tables import markdown_table
from ..tasks.splits import TaskSplits
from .card_code import Usage
from .statistics import is_without_order
from .training_args import DepthTrainingArguments, TaskTrainingArguments

logger = logging.getLogger(__name__)

PAPERS = {
    "depth": "DEPTH (Discourse Education through Pre-Training Hierarchically, "
    "[arXiv 2405.07788](https://arxiv.org/abs/2405.07788))",
    "t5": "T5 ([arXiv 1910.10683](https://arxiv.org/abs/1910.10683))",
    "umt5": "UMT5 ([arXiv 2304.09151](https://arxiv.org/abs/2304.09151))",
}

TASK_RESULTS = """\
Beside the scores stand those of always predicting the most frequent class (majority) and of guessing (chance);
`unparsed` is the fraction of generated texts that are none of the labels, which count as wrong.

{table}
"""

METADATA_NOTE = """\
In training, metadata stood before {share:.0%} of the inputs of documents that had some: `{prefix}`. Before any other
input they are put by:

```python
import torch
from hf_depth.data.metadata import metadata_prefix

prefix = metadata_prefix({{{values}}})
prefix_ids = tokenizer(prefix, add_special_tokens=False, return_tensors="pt").input_ids
input_ids = torch.cat([prefix_ids, input_ids], dim=1)
```"""

TRAINING_SETTINGS = (
    "learning_rate",
    "lr_scheduler_type",
    "warmup_steps",
    "optim",
    "seed",
)
# Endings of what an evaluation logs beside the measures of the model; chance has a column of its own.
NO_MEASURES = ("time", "per_second", "_chance", "padding_fraction", "shuffled_fraction", "tokens_cut")
ATTENTION_BY_LAYER = "attention_entropy_"  # the card has the least of all layers
EVALUATED = (
    "It was evaluated on data like that of its training (see below) and on no other text, language or domain, and "
    "not for bias or errors of fact, which it takes over from its data."
)
ADAPTER = (
    "The folder holds a PEFT adapter, not a whole model. Load its base model by `load_model(name, tokenizer)` with "
    "the tokenizer beside the adapter, then the adapter by `peft.PeftModel.from_pretrained(model, folder)`."
)
# Parameters below which a model is one to try things out with.
SMALL_MODEL = 50_000_000


@dataclass
class CardContent:
    """
    What a model card states beside code and results.

    Args:
        sections: title -> what to list there, such as `{"Data": {"source": "novels"}}`. Values are numbers, texts or
            lists of them; of several mappings a table with a row for each is made.
        base_model: what the training started from: a name on the Hub, or a folder, of which only the name is told.
        datasets: the names on the Hub of the data, if they are from there.
        language: ISO 639-1 code of the text, or several.
        license: as the Hub writes it, such as `"apache-2.0"`.
        tags: more of them.
    """

    sections: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    base_model: str | None = None
    datasets: Sequence[str] = ()
    language: str | Sequence[str] | None = None
    license: str | None = None
    tags: Sequence[str] = ()

    def updated(
        self,
        language: str | Sequence[str] | None = None,
        license: str | None = None,
        tags: str | Sequence[str] | None = None,
        finetuned_from: str | None = None,
        dataset_tags: str | Sequence[str] | None = None,
        dataset: str | Sequence[str] | None = None,
        **others: Any,
    ) -> "CardContent":
        """
        With what `Trainer.push_to_hub` and `Trainer.create_model_card` are told. (`dataset_tags` are names on the Hub,
        `dataset` names to read.)

        Raises:
            `TypeError`: for `tasks` and `dataset_args`, which the results say already, and for what there is not.
        """
        if others:
            raise TypeError(
                f"`{next(iter(others))}` is no argument of this model card. There are: language, license, tags, "
                "model_name, finetuned_from, dataset_tags, dataset."
            )
        sections = dict(self.sections)
        if dataset is not None:
            sections["Data"] = {**sections.get("Data", {}), "source": ", ".join(_as_list(dataset))}
        return replace(
            self,
            sections=sections,
            base_model=finetuned_from or self.base_model,
            datasets=self.datasets if dataset_tags is None else _as_list(dataset_tags),
            language=language or self.language,
            license=license or self.license,
            tags=[*self.tags, *_as_list(tags)],
        )


def pretraining_content(
    source: str,
    statistics: Mapping[str, Mapping[str, int]],
    objective_settings: Mapping[str, Any],
    training_args: DepthTrainingArguments,
    model: PreTrainedModel,
    base_model: str | None = None,
    dataset_name: str | Sequence[str] | None = None,
) -> CardContent:
    """
    What the card of a pre-trained model states about data and settings.

    Args:
        source: where the text is from.
        statistics: what the preparation counted, of each split.
        objective_settings: see [`Objective.settings`].
        base_model: the checkpoint that training started from.
        dataset_name: the data sets on the Hub, if the text is from there.
    """
    settings, data, language = dict(objective_settings), {"source": source}, None
    if has_sentence_tokens(model.config):
        settings["sentence_loss_coefficient"] = training_args.sentence_loss_coefficient
        language = settings.get("sentence_language")
        data |= _sentence_rules(language)
    settings |= run_settings(training_args, model, base_model)
    datasets = [name for name in _as_list(dataset_name) if is_hub_name(name)]
    sections = {"Data": {**data, **statistics}, "Settings": settings}
    return CardContent(sections, base_model, datasets, _iso_code(language), training_args.hub_license)


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
    data, language = dict(splits.sources), None
    if has_sentence_tokens(model.config):
        language = splits.sentence_language
        data |= _sentence_rules(language)
    sections = {"Data": data | splits.statistics, "Settings": settings}
    return CardContent(sections, base_model, splits.hub_datasets, _iso_code(language), training_args.hub_license)


def _iso_code(language: str | None) -> str | None:
    return None if language == LINES else language


def _sentence_rules(language: str | None) -> dict[str, str]:
    return (
        {"sentences split by": f"{get_sentence_splitter(language).version}, language {language}"} if language else {}
    )


def run_settings(
    training_args: TrainingArguments, model: PreTrainedModel, base_model: str | None = None
) -> dict[str, Any]:
    """
    What a model card states about how a model was trained.

    Args:
        base_model: the checkpoint that training started from; of a folder, only the name is told.
    """
    settings = {}
    length = "max_steps" if training_args.max_steps > 0 else "num_train_epochs"
    for name in (length, *TRAINING_SETTINGS):
        value = getattr(training_args, name)
        settings[name] = getattr(value, "value", value)  # of an enumeration
    if training_args.optim_args:
        settings["optim_args"] = training_args.optim_args
    if training_args.lr_scheduler_kwargs:
        settings["lr_scheduler_kwargs"] = json.dumps(training_args.lr_scheduler_kwargs)
    batch_size = training_args.train_batch_size * training_args.gradient_accumulation_steps * training_args.world_size
    return settings | {
        "global batch size": batch_size,
        "parameters": get_model_param_count(model),  # of ZeRO-3, the parameters themselves are empty
        "initialised from": told_name(base_model) or "scratch",
        "transformers": transformers.__version__,
        "torch": torch.__version__,
    }


# ---- The parts of a card --------------------------------------------------------------------------------------------


def card_section(title: str, values: Mapping[str, Any]) -> str:
    """
    One section of a model card: single values as a table of two columns, mappings as one with a row for each.

    >>> print(card_section("Data", {"source": "novels", "train": {"examples": 1200}, "test": {"examples": 80}}))
    ## Data
    <BLANKLINE>
    |  |  |
    | --- | --- |
    | source | novels |
    <BLANKLINE>
    |  | examples |
    | --- | ---: |
    | train | 1,200 |
    | test | 80 |
    <BLANKLINE>
    """
    single = {name: value for name, value in values.items() if not isinstance(value, Mapping)}
    several = {name: value for name, value in values.items() if isinstance(value, Mapping) and value}
    parts = [f"## {title}\n"]
    if single:
        rows = [["", ""], *([name, _cell(value)] for name, value in single.items())]
        parts.append(markdown_table(rows, num_text_columns=2) + "\n")
    if several:
        columns = list(dict.fromkeys(column for value in several.values() for column in value))
        rows = [["", *(column.replace("_", " ") for column in columns)]]
        rows += [[name, *(_cell(value.get(column, "")) for column in columns)] for name, value in several.items()]
        parts.append(markdown_table(rows) + "\n")
    return "\n".join(parts)


def _cell(value: Any) -> str:
    """A value as it stands in a table."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}" if value >= 1000 else str(value)
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Sequence | set) and not isinstance(value, str):
        return ", ".join(map(_cell, value))
    return " ".join(str(value).split())


def usage_sections(usage: Usage | None) -> list[str]:
    """The code, and the input format with an example; nothing without a tokenizer or data to take it from."""
    if usage is None:
        return []
    packages = " ".join(usage.packages)
    fence = "`" * 3
    return [
        "## Use\n",
        "With hf_depth installed:\n",
        f"{fence}python\n{usage.with_package}{fence}\n",
        f"Without it, after `pip install {packages}`:\n",
        f"{fence}python\n{usage.without_package}{fence}\n",
        "A name that begins with `./` is that of this folder: the code runs in the folder that it is in.\n",
        "## Input format\n",
        f"{usage.notes}\n",
        f"{fence}text\ninput:  {_one_line(usage.source)}\ntarget: {_one_line(usage.target)}\n{fence}\n",
    ]


def _one_line(text: str) -> str:
    return " ".join(text.split())


def pretraining_results(log_history: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """
    The metrics of the last evaluation by their names, each with its values `before` training and `after` it, as far
    as they were measured, and `chance`, where there is one. Kendall's tau is left out of a model that wrote no order.

    >>> pretraining_results([{"step": 0, "eval_loss": 7.1}, {"step": 9, "eval_loss": 4.2, "eval_runtime": 1.0}])
    {'loss': {'before': 7.1, 'after': 4.2}}
    """
    evaluations = [log for log in log_history if "eval_loss" in log]
    if not evaluations:
        return {}
    first, last = evaluations[0], evaluations[-1]
    results = {}
    for key, value in last.items():
        name = key.removeprefix("eval_")
        is_measure = isinstance(value, int | float) and not name.endswith(NO_MEASURES)
        is_measure &= not name.startswith(ATTENTION_BY_LAYER)
        if key == name or not is_measure:
            continue
        logs = {"before": first} if first["step"] == 0 and first is not last and key in first else {}
        logs |= {"after": last}
        values = {when: log[key] for when, log in logs.items() if not is_without_order(key, log)}
        chance = last.get(f"{key.replace('_constrained', '')}_chance")  # decoding makes no difference to it
        if values:
            results[name] = values | ({} if chance is None else {"chance": chance})
    return results


def pretraining_limits(
    settings: Mapping[str, Any], results: Mapping[str, Mapping[str, float]], num_steps: int
) -> list[str]:
    """What a pre-trained model is not good for, as far as the run itself tells."""
    limits = [
        "It is pre-trained only: it follows no instructions, answers no questions. Fine-tune it first.",
        *_size_limits(settings, num_steps),
        *([EVALUATED] if results else ["It was not evaluated."]),
    ]
    order = results.get("sentence_accuracy_shuffled", {})
    if {"after", "chance"} <= order.keys():
        relation = "no better than" if order["after"] < order["chance"] + 0.02 else "against"
        limits.append(
            f"Of shuffled held-out sentences it names {order['after']:.1%} right from the true ones before them, "
            f"{relation} {order['chance']:.1%} by chance."
        )
    if results.get("attention_entropy", {}).get("after", 1.0) < SATURATED:
        limits.append(
            f"The attention of a layer has {results['attention_entropy']['after']:.3f} of the entropy of uniform "
            "attention: it is saturated, and the model reads little of its input."
        )
    if settings.get("max_source_length"):
        limits.append(f"It was trained on inputs of at most {settings['max_source_length']} tokens.")
    return limits


def metadata_note(settings: Mapping[str, Any]) -> str:
    """
    How to put metadata before an input, for a model that was trained with some.

    >>> print(metadata_note({"metadata_columns": ["title"], "metadata_probability": 0.5}))
    In training, metadata stood before 50% of the inputs of documents that had some: `title: … |||`. Before any other
    input they are put by:
    <BLANKLINE>
    ```python
    import torch
    from hf_depth.data.metadata import metadata_prefix
    <BLANKLINE>
    prefix = metadata_prefix({"title": "…"})
    prefix_ids = tokenizer(prefix, add_special_tokens=False, return_tensors="pt").input_ids
    input_ids = torch.cat([prefix_ids, input_ids], dim=1)
    ```
    """
    columns = settings["metadata_columns"]
    return METADATA_NOTE.format(
        share=settings["metadata_probability"],
        prefix=metadata_prefix(dict.fromkeys(columns, "…")),
        values=", ".join(f'{json.dumps(column, ensure_ascii=False)}: "…"' for column in columns),
    )


def fine_tuning_limits(
    settings: Mapping[str, Any], results: Sequence[TaskResult], num_steps: int, has_format: bool
) -> list[str]:
    """What a fine-tuned model is not good for, as far as the run itself tells."""
    source = "the input format above" if has_format else "the prompts of its `task_config.json`"
    is_evaluated = any(set(result.spec.metric_names) & result.metrics.keys() for result in results)
    limits = [
        f"It reads {source} and writes what its task asks for; it was trained for nothing else.",
        *_size_limits(settings, num_steps),
        *([EVALUATED] if is_evaluated else ["It was not evaluated on labeled examples."]),
    ]
    for result in results:
        for name in result.spec.metric_names:
            score, majority = result.metrics.get(name), result.metrics.get(f"majority_{name}")
            if score is not None and majority is not None and score <= majority:
                limits.append(
                    f"Its {name} on {result.spec.full_name} ({result.split}), {score:.4f}, is not above that of "
                    f"always predicting the most frequent class, {majority:.4f}: do not rely on its predictions."
                )
    return limits


def loading_limits(model: PreTrainedModel) -> list[str]:
    """What is to be known about a model that the usual ways of loading do not give as it was trained."""
    return [ADAPTER] * is_adapter(model)


def is_adapter(model: torch.nn.Module) -> bool:
    """Whether what is saved of a model is a PEFT adapter."""
    return hasattr(model, "peft_config")


def _size_limits(settings: Mapping[str, Any], num_steps: int) -> list[str]:
    """What follows from size and training, for which the settings are those of [`run_settings`]."""
    limits = []
    if {"parameters", "global batch size"} <= settings.keys():
        verdict = " A model of this size is for experiments." if settings["parameters"] < SMALL_MODEL else ""
        steps = f" and was trained for {num_steps:,} steps of {settings['global batch size']:,} examples"
        limits.append(
            f"It has {settings['parameters'] / 1e6:.1f} million parameters{steps if num_steps else ''}.{verdict}"
        )
    return limits


# ---- Cards ----------------------------------------------------------------------------------------------------------


def pretraining_card(
    model_name: str,
    model: PreTrainedModel,
    content: CardContent,
    log_history: Sequence[Mapping[str, Any]] = (),
    usage: Usage | None = None,
    num_steps: int = 0,
) -> ModelCard:
    """
    The card of a pre-trained model.

    Args:
        model_name: title, and the name of the results on the Hub.
        content: what to state about data and settings.
        log_history: of the trainer's state; the last evaluation in it is that of the model.
        usage: the code and the example.
        num_steps: of the training, after which the weights were as they are.
    """
    kind, results = model.config.model_type, pretraining_results(log_history)
    source = content.sections.get("Data", {}).get("source")
    scores = [
        EvalResult(
            task_type="fill-mask",
            task_name="pre-training",
            dataset_type=content.datasets[0] if content.datasets else "text",
            dataset_name=_cell(source or "text"),
            dataset_split="validation",
            metric_type=name,
            metric_name=name,
            metric_value=round(float(values["after"]), 6),
        )
        for name, values in results.items()
        if name in ("loss", "sentence_accuracy_shuffled", "reconstruction_accuracy") and math.isfinite(values["after"])
    ]
    base = f", from {told_name(content.base_model)} on" if content.base_model else ""
    trained = f"on {source} " if source else ""
    introduction = f"An encoder-decoder of the kind {PAPERS[kind]}, pre-trained {trained}with hf_depth{base}.\n"
    settings = content.sections.get("Settings", {})
    if usage is not None and settings.get("metadata_columns"):
        usage = replace(usage, notes=f"{usage.notes}\n\n{metadata_note(settings)}")
    limits = pretraining_limits(settings, results, num_steps) + loading_limits(model)
    table = card_section("Results", results) if results else ""
    metadata = _metadata(model_name, content, [kind, "pre-training"], scores, _library(model))
    return _card(metadata, model_name, introduction, usage, limits, table, content.sections)


def fine_tuning_card(
    model_name: str,
    model: PreTrainedModel,
    results: Sequence[TaskResult],
    content: CardContent,
    usage: Usage | None = None,
    num_steps: int = 0,
) -> ModelCard:
    """
    The card of a fine-tuned model, with its scores as the Hub's `model-index`.

    Args:
        model_name: title, and the name of the results on the Hub.
        results: the scores, those of validation and test sets.
        content: what else to state. A base model that is a folder is named in the text only, without its path.
        usage: the code and the example.
        num_steps: of the training, after which the weights were as they are.
    """
    kind = model.config.model_type
    base = f" from {told_name(content.base_model)}" if content.base_model else ""
    tasks = ", ".join(dict.fromkeys(result.spec.full_name for result in results))
    introduction = (
        f"A model of the kind {PAPERS[kind]}, fine-tuned with hf_depth{base}{' on ' + tasks if tasks else ''}.\n"
    )
    limits = fine_tuning_limits(content.sections.get("Settings", {}), results, num_steps, usage is not None)
    limits += loading_limits(model)
    table = results_table(results, markdown=True) if results else ""
    table = f"## Results\n\n{TASK_RESULTS.format(table=table)}" if results else ""
    tags = [kind, *(result.spec.benchmark for result in results)]
    metadata = _metadata(model_name, content, tags, model_index(results, content.datasets), _library(model))
    return _card(metadata, model_name, introduction, usage, limits, table, content.sections)


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


def _metadata(
    model_name: str, content: CardContent, tags: Iterable[str], scores: Sequence[EvalResult], library: str
) -> ModelCardData:
    """
    The head of a card. There is no `pipeline_tag`: the Hub would show the code of a pipeline, and transformers 5 has
    none for encoder-decoders.
    """
    base_model = content.base_model
    return ModelCardData(
        base_model=base_model if base_model and is_hub_name(base_model) else None,
        datasets=sorted(set(content.datasets)) or None,
        language=content.language or None,
        library_name=library,
        license=content.license,
        metrics=sorted({score.metric_type for score in scores}) or None,
        model_name=model_name if scores else None,
        tags=sorted({"hf_depth", *tags, *content.tags}),
        eval_results=list(scores) or None,
    )


def _library(model: PreTrainedModel) -> str:
    return "peft" if is_adapter(model) else "transformers"


def check_metadata(content: CardContent) -> None:
    """
    Have the Hub check what the head of a card will state, which it would refuse with the upload after all training.

    Raises:
        `ValueError`: if the Hub refuses it, for its license above all.
    """
    card = ModelCard(f"---\n{_metadata('', content, [], [], 'transformers').to_yaml()}\n---\n")
    try:
        card.validate()
    except ValueError as error:
        reason = " ".join(str(error).split())
        raise ValueError(
            f"The Hub would refuse the model card: {reason} Licenses have names such as apache-2.0, see "
            "`--hub_license` and https://huggingface.co/docs/hub/repositories-licenses."
        ) from error
    except Exception as error:  # no network, …: that of the upload counts
        logger.warning(f"The Hub could not check the head of the model card: {error}")


def _card(
    metadata: ModelCardData,
    model_name: str,
    introduction: str,
    usage: Usage | None,
    limits: Sequence[str],
    results: str,
    sections: Mapping[str, Mapping[str, Any]],
) -> ModelCard:
    parts = [
        f"# {_one_line(model_name)}\n",
        introduction,
        *usage_sections(usage),
        "## Limits\n",
        "\n".join(f"- {limit}" for limit in limits) + "\n",
        *([results] if results else []),
        *(card_section(title, values) for title, values in sections.items() if values),
    ]
    return ModelCard(f"---\n{metadata.to_yaml()}\n---\n\n" + "\n".join(parts))


def _as_list(values: str | Sequence[str] | None) -> list[str]:
    return [] if values is None else [values] if isinstance(values, str) else list(values)
