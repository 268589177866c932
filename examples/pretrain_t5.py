"""
Pre-train a DEPTH model (span corruption and sentence un-shuffling) or a T5 (span corruption, prefix-LM).

    python examples/pretrain_t5.py examples/configs/quickstart.yaml
    accelerate launch examples/pretrain_t5.py examples/configs/quickstart.yaml --max_steps 100
    accelerate launch examples/pretrain_t5.py --train_file texts.jsonl.gz --output_dir runs/mine --do_train --do_eval

Arguments come from a YAML or JSON file, from flags, or from a file followed by flags that override it.
"""

import json
import logging
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path

import torch
import transformers
from datasets import IterableDataset
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, set_seed
from transformers.trainer_utils import get_last_checkpoint

from hf_depth import DataCollatorForDepth, DataCollatorForT5SpanCorruption, DepthTrainer, DepthTrainingArguments
from hf_depth.arguments import check_launch, parse_arguments
from hf_depth.corpus import load_corpus, train_tokenizer
from hf_depth.corruption import t5_input_and_target_lengths, t5_raw_length
from hf_depth.metrics import is_shuffled
from hf_depth.model_args import ModelArguments, build_model, load_tokenizer, with_sentence_tokens
from hf_depth.preprocessing import (
    DepthPreprocessor,
    SpanCorruptionPreprocessor,
    dataset_statistics,
    prepare_dataset,
)
from hf_depth.reporting import describe_example, metrics_table, plot_losses, unshuffle

logger = logging.getLogger(__name__)

DEFAULT_VOCAB_SIZE = 4096  # of a vocabulary trained here
MAX_TOKENIZER_DOCUMENTS = 200_000
REPORTED_METRICS = (
    "eval_loss",
    "eval_sentence_loss",
    "eval_reconstruction_loss",
    "eval_sentence_accuracy",
    "eval_sentence_accuracy_chance",
    "eval_sentence_accuracy_shuffled",
    "eval_sentence_accuracy_shuffled_chance",
    "eval_sentence_accuracy_unshuffled",
    "eval_reconstruction_accuracy",
    "eval_order_exact_shuffled",
    "eval_order_exact_shuffled_chance",
    "eval_order_kendall_tau_shuffled",
)


@dataclass
class DataArguments:
    """The text, and what becomes of it. With no source at all: the Python reference that every CPython carries."""

    dataset_name: str | None = field(default=None, metadata={"help": "Data set on the Hub (or folder)."})
    dataset_config_name: str | None = field(default=None, metadata={"help": "Configuration of that data set."})
    train_file: list[str] | None = field(
        default=None, metadata={"help": "Files or globs: txt, json, jsonl, csv, parquet, or .gz of these."}
    )
    validation_file: list[str] | None = field(default=None, metadata={"help": "Likewise, for evaluation."})
    test_file: list[str] | None = field(default=None, metadata={"help": "Likewise, for --do_predict."})
    text_column: str = field(default="text", metadata={"help": "Column that holds the documents."})
    validation_split_percentage: int = field(
        default=5, metadata={"help": "Documents kept for evaluation when there is no validation data."}
    )
    streaming: bool = field(default=False, metadata={"help": "Read the data while training; needs --max_steps."})
    shuffle_buffer_size: int = field(default=10_000, metadata={"help": "Examples to shuffle among when streaming."})
    max_train_samples: int | None = field(default=None, metadata={"help": "Use this many training examples only."})
    max_eval_samples: int | None = field(default=None, metadata={"help": "Use this many evaluation examples only."})
    max_predict_samples: int | None = field(default=None, metadata={"help": "Use this many test examples only."})
    preprocessing_num_workers: int | None = field(default=None, metadata={"help": "Processes that prepare the text."})
    overwrite_cache: bool = field(default=False, metadata={"help": "Prepare the text anew."})
    objective: str = field(
        default="span_corruption",
        metadata={"help": "Of a T5: span_corruption or prefix_lm.", "choices": ["span_corruption", "prefix_lm"]},
    )
    mlm_probability: float | None = field(
        default=None, metadata={"help": "Share of the words to hide (default: 0.3 for DEPTH, 0.15 for T5)."}
    )
    mean_noise_span_length: float = field(default=3.0, metadata={"help": "Mean length of a hidden span in tokens."})
    sentence_shuffling_probability: float = field(
        default=0.5, metadata={"help": "DEPTH: share of the examples whose sentences are shuffled."}
    )
    max_source_length: int = field(default=512, metadata={"help": "Longest encoder input in tokens."})
    max_target_length: int | None = field(
        default=None,
        metadata={
            "help": "Longest target in tokens (default: what the longest input needs; DEPTH: max_source_length)."
        },
    )
    max_sentences: int | None = field(
        default=None, metadata={"help": "DEPTH: most sentences of an example (default: all sentence tokens)."}
    )
    sentence_language: str = field(default="en", metadata={"help": "DEPTH: language for splitting sentences."})
    pack_examples: bool = field(
        default=False, metadata={"help": "T5: join documents, so that every input has max_source_length tokens."}
    )
    pad_to_max_length: bool = field(
        default=False, metadata={"help": "Pad to the maximal lengths (static shapes, for --torch_compile)."}
    )
    pad_to_multiple_of: int | None = field(default=None, metadata={"help": "Pad lengths to a multiple of this."})

    def __post_init__(self):
        for name in ("max_train_samples", "max_eval_samples", "max_predict_samples"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"`--{name}` must be at least 1, got {getattr(self, name)}.")


CORPUS_ARGUMENTS = (
    "dataset_name",
    "dataset_config_name",
    "train_file",
    "validation_file",
    "test_file",
    "text_column",
    "streaming",
    "validation_split_percentage",
)


def set_up(training_args):
    """Logging, and the checks that need no data."""
    logging.basicConfig(
        format="%(asctime)s %(levelname)s %(message)s",
        datefmt="%H:%M:%S",
        level=logging.INFO if training_args.should_log else logging.WARNING,
    )
    check_launch(training_args)
    if not (training_args.do_train or training_args.do_eval or training_args.do_predict):
        raise ValueError("Nothing to do: give `--do_train`, `--do_eval` or `--do_predict`.")


def complete(model_args, data_args, training_args):
    """Fill in the defaults that depend on other arguments, and stop on arguments that contradict each other."""
    depth = model_args.model_type == "depth"
    if depth:
        for name, value in (("objective", "span_corruption"), ("pack_examples", False)):
            if getattr(data_args, name) != value:
                raise ValueError(
                    f"`--{name} {getattr(data_args, name)}` is for `--model_type t5`; leave it out for depth."
                )
    if data_args.streaming and training_args.do_train and training_args.max_steps <= 0:
        raise ValueError("`--streaming` reads data whose length is not known: say how long to train by `--max_steps`.")
    if data_args.mlm_probability is None:
        data_args.mlm_probability = 0.3 if depth else 0.15
    if data_args.max_sentences is None:
        data_args.max_sentences = model_args.num_sentence_tokens
    if data_args.max_target_length is None:
        if depth or data_args.objective == "prefix_lm":
            data_args.max_target_length = data_args.max_source_length
        else:
            noise = (data_args.mlm_probability, data_args.mean_noise_span_length)
            raw_length = t5_raw_length(data_args.max_source_length, *noise)
            data_args.max_target_length = int(t5_input_and_target_lengths(raw_length, *noise)[1])
    if training_args.generation_max_length is None:
        training_args.generation_max_length = data_args.max_target_length  # the host's default is 20 tokens


def checkpoint_to_resume(training_args):
    """The checkpoint that `--resume_from_checkpoint` names, or the last one in `output_dir`; `None` to start anew."""
    asked = training_args.resume_from_checkpoint
    if not training_args.do_train or str(asked).lower() == "false":
        return None
    last = get_last_checkpoint(training_args.output_dir) if Path(training_args.output_dir).is_dir() else None
    if asked is None or str(asked).lower() in ("true", "last", "auto"):
        if asked is not None and last is None:
            raise ValueError(
                f"`--resume_from_checkpoint {asked}`: there is no checkpoint in {training_args.output_dir}. "
                "Name a checkpoint folder, or leave the argument out to start anew."
            )
        if last is not None:
            logger.info(f"Resuming from {last}. To start anew, choose another `--output_dir`.")
        return last
    if not Path(asked).is_dir():
        raise ValueError(f"`--resume_from_checkpoint {asked}`: there is no such folder.")
    return asked


def own_tokenizer(corpus, model_args, data_args, training_args):
    """A vocabulary trained on the training documents by the first process, and read from `output_dir` by all."""
    folder = Path(training_args.output_dir, "tokenizer")
    num_added = model_args.num_sentence_tokens + 1  # `<sent_i>` and `<eosen>`
    vocab_size = (model_args.vocab_size or DEFAULT_VOCAB_SIZE) - num_added
    with training_args.main_process_first(local=False, desc="training a tokenizer"):
        if training_args.process_index == 0:
            logger.info(f"Training a vocabulary of {vocab_size} tokens (and {num_added} for sentences) on the text")
            documents = islice(corpus["train"], MAX_TOKENIZER_DOCUMENTS)
            texts = (document[data_args.text_column] for document in documents)
            train_tokenizer(texts, vocab_size, folder, allow_fewer=model_args.vocab_size is None)
    return with_sentence_tokens(AutoTokenizer.from_pretrained(folder), model_args)


def prepare(corpus, tokenizer, model_args, data_args, training_args):
    """Documents -> rows of the collator, split by split."""
    preprocessor = build_preprocessor(tokenizer, model_args, data_args)
    limits = {"train": data_args.max_train_samples, "validation": data_args.max_eval_samples}
    data = {"train": None, "validation": None, "test": None}
    wanted = {"train": True, "validation": training_args.do_eval, "test": training_args.do_predict}
    for split, documents in corpus.items():
        if not wanted[split]:
            continue
        limit = limits.get(split, data_args.max_predict_samples)
        # Each document gives at least one example, so the first `limit` examples are in the first `limit` documents.
        with training_args.main_process_first(desc=f"preparing the {split} split"):
            rows = prepare_dataset(
                first(documents, limit),
                preprocessor,
                num_proc=data_args.preprocessing_num_workers,
                overwrite_cache=data_args.overwrite_cache,
                desc=f"Preparing {split}",
            )
        data[split] = first(rows, limit)
        report_statistics(data[split], split, model_args)
    if data["test"] is None and training_args.do_predict:
        raise ValueError("`--do_predict` needs test data: name it by `--test_file`.")
    if data_args.streaming:
        data["train"] = data["train"].shuffle(seed=training_args.seed, buffer_size=data_args.shuffle_buffer_size)
    return {
        split: rows if rows is None or is_stream(rows) else rows.with_format("numpy") for split, rows in data.items()
    }


def build_preprocessor(tokenizer, model_args, data_args):
    noise = (data_args.mlm_probability, data_args.mean_noise_span_length)
    if model_args.model_type == "depth":
        return DepthPreprocessor(
            tokenizer,
            max_source_length=data_args.max_source_length,
            max_target_length=data_args.max_target_length,
            mlm_probability=data_args.mlm_probability,
            mean_noise_span_length=data_args.mean_noise_span_length,
            max_sentences=data_args.max_sentences,
            text_column=data_args.text_column,
            language=data_args.sentence_language,
        )
    if data_args.objective == "prefix_lm":
        raw_length = min(data_args.max_source_length, data_args.max_target_length)
    else:
        raw_length = t5_raw_length(data_args.max_source_length, *noise, data_args.max_target_length)
    return SpanCorruptionPreprocessor(
        tokenizer, raw_length, text_column=data_args.text_column, pack_examples=data_args.pack_examples
    )


def build_collator(tokenizer, model_args, data_args, training_args):
    arguments = {
        "tokenizer": tokenizer,
        "mlm_probability": data_args.mlm_probability,
        "mean_noise_span_length": data_args.mean_noise_span_length,
        "max_source_length": data_args.max_source_length,
        "max_target_length": data_args.max_target_length,
        "padding": "max_length" if data_args.pad_to_max_length else "longest",
        "pad_to_multiple_of": data_args.pad_to_multiple_of,
        "seed": training_args.data_seed if training_args.data_seed is not None else training_args.seed,
    }
    if model_args.model_type == "depth":
        probability = data_args.sentence_shuffling_probability
        return DataCollatorForDepth(**arguments, sentence_shuffling_probability=probability)
    return DataCollatorForT5SpanCorruption(**arguments, objective=data_args.objective)


def train(trainer, checkpoint):
    result = trainer.train(resume_from_checkpoint=checkpoint)
    trainer.save_model()
    trainer.save_state()
    metrics = result.metrics | split_statistics(trainer.train_dataset, "train")
    trainer.log_metrics("train", metrics)
    trainer.save_metrics("train", metrics)


def evaluate(trainer):
    """Evaluate the final model, and show it beside the first evaluation of the run."""
    metrics = trainer.evaluate()
    metrics |= split_statistics(trainer.eval_dataset, "eval")
    trainer.save_metrics("eval", metrics)
    first_log = next((log for log in trainer.state.log_history if "eval_loss" in log), None)
    before = first_log if first_log is not None and first_log["step"] == 0 and trainer.state.global_step else None
    if trainer.args.should_log:
        print("\n" + metrics_table(before, metrics, REPORTED_METRICS), flush=True)


def predict(trainer, test_dataset):
    """Metrics of the test data; with `--predict_with_generate` also what the model writes, one example a line."""
    output = trainer.predict(test_dataset, metric_key_prefix="predict")
    trainer.log_metrics("predict", output.metrics)
    trainer.save_metrics("predict", output.metrics)
    if trainer.is_world_process_zero() and trainer.args.predict_with_generate:
        decode, pad = trainer.processing_class.decode, trainer.processing_class.pad_token_id
        path = Path(trainer.args.output_dir, "predictions.jsonl")
        with path.open("w", encoding="utf-8") as file:
            for prediction, target in zip(output.predictions, output.label_ids, strict=True):
                texts = {
                    "prediction": decode(prediction[(prediction >= 0) & (prediction != pad)]),
                    "target": decode(target[target >= 0]),
                }
                file.write(json.dumps(texts, ensure_ascii=False) + "\n")
        logger.info(f"Predictions are in {path}")


def show_examples(dataset, collator, tokenizer, number=2):
    print("\nWhat the model reads and writes:")
    for row in islice(dataset, number):
        print(describe_example(row, collator, tokenizer) + "\n", flush=True)


def unshuffle_one(trainer):
    """Load what was saved, as a user would, and let it put one held-out document in order."""
    tokenizer = trainer.processing_class
    source = trainer.args.output_dir if trainer.args.do_train else None
    model = AutoModelForSeq2SeqLM.from_pretrained(source) if source else trainer.model
    collator = replace(trainer.eval_data_collator, sentence_shuffling_probability=1.0)
    for row in islice(trainer.eval_dataset, 100):
        batch = collator([row])
        if is_shuffled(batch["input_ids"], batch["labels"], model.config).item():
            break
    else:
        logger.warning("No evaluation example has several sentences: there is nothing to un-shuffle.")
        return
    result = unshuffle(model, tokenizer, row, batch, max_length=trainer.args.generation_max_length)
    print("\nUn-shuffling a held-out document by generate():")
    for title in ("given", "predicted", "true"):
        print(f"  {title} order:")
        print("".join(f"    {number}. {sentence}\n" for number, sentence in enumerate(result[title], 1)), end="")
    print(f"  Kendall's tau {result['kendall_tau']:.2f} (1: the true order, 0: chance, -1: reversed)")
    print(f"  generated: {result['generated']}", flush=True)


def report_statistics(rows, split, model_args):
    """Say what the preparation made of the documents; stop if there is nothing to learn from."""
    if is_stream(rows):
        return
    statistics = dataset_statistics(rows)
    logger.info(f"{split}: " + ", ".join(f"{value:,} {name.replace('_', ' ')}" for name, value in statistics.items()))
    if not statistics["examples"]:
        raise ValueError(f"The {split} data hold no text. Check the files and `--text_column`.")
    if model_args.model_type == "depth" and statistics["one_sentence_examples"] == statistics["examples"]:
        raise ValueError(
            f"No example of the {split} data has more than one sentence, so there is nothing to un-shuffle. DEPTH "
            "needs documents of several sentences: check `--text_column` (one document per row, not one sentence) and "
            "`--sentence_language`, raise `--max_source_length`, or train a `--model_type t5`."
        )


def card_sections(model_args, data_args, training_args, data, model):
    """What the model card states about the data and the settings of a run."""
    source = data_args.dataset_name or ", ".join(data_args.train_file or []) or "the Python language reference"
    statistics = {f"{name} data": json.dumps(split_statistics(rows, name)) for name, rows in data.items() if rows}
    chosen = ("learning_rate", "lr_scheduler_type", "warmup_steps", "max_steps", "num_train_epochs", "optim", "seed")
    batch_size = training_args.train_batch_size * training_args.gradient_accumulation_steps * training_args.world_size
    settings = {name: asdict(data_args)[name] for name in SETTINGS if asdict(data_args)[name] is not None}
    settings |= {name: str(getattr(training_args, name)) for name in chosen}
    settings |= {
        "sentence_loss_coefficient": training_args.sentence_loss_coefficient,
        "global batch size": batch_size,
        "parameters": model.num_parameters(),
        "initialised from": model_args.model_name_or_path or "scratch",
        "transformers": transformers.__version__,
        "torch": torch.__version__,
    }
    return {"Data": {"source": source, **statistics}, "Settings": settings}


SETTINGS = (
    "objective",
    "mlm_probability",
    "mean_noise_span_length",
    "sentence_shuffling_probability",
    "max_source_length",
    "max_target_length",
    "max_sentences",
)


def split_statistics(rows, split):
    """`dataset_statistics` under the names of metrics; nothing for a stream."""
    if is_stream(rows):
        return {}
    return {f"{split}_{name}": value for name, value in dataset_statistics(rows).items()}


def first(rows, limit):
    if limit is None:
        return rows
    return rows.take(limit) if is_stream(rows) else rows.select(range(min(limit, len(rows))))


def is_stream(rows):
    return isinstance(rows, IterableDataset)


def main(args=None):
    model_args, data_args, training_args = parse_arguments(
        (ModelArguments, DataArguments, DepthTrainingArguments), args
    )
    set_up(training_args)
    complete(model_args, data_args, training_args)
    checkpoint = checkpoint_to_resume(training_args)
    set_seed(training_args.seed)

    corpus = load_corpus(
        **{name: getattr(data_args, name) for name in CORPUS_ARGUMENTS},
        seed=training_args.seed,
        cache_dir=model_args.cache_dir,
        token=model_args.token,
    )
    tokenizer = load_tokenizer(model_args) or own_tokenizer(corpus, model_args, data_args, training_args)
    data = prepare(corpus, tokenizer, model_args, data_args, training_args)
    collator = build_collator(tokenizer, model_args, data_args, training_args)
    model = build_model(model_args, tokenizer)
    logger.info(f"{type(model).__name__} with {model.num_parameters() / 1e6:.1f} M parameters")
    if training_args.should_log:
        show_examples(data["train"], collator, tokenizer)

    trainer = DepthTrainer(
        model=model,
        args=training_args,
        data_collator=collator,
        train_dataset=data["train"],
        eval_dataset=data["validation"],
        processing_class=tokenizer,
    )
    trainer.card_sections = card_sections(model_args, data_args, training_args, data, model)
    if training_args.do_train:
        train(trainer, checkpoint)
    if training_args.do_eval:
        evaluate(trainer)
    if training_args.do_predict:
        predict(trainer, data["test"])
    if training_args.do_train and trainer.is_world_process_zero():
        plot_losses(
            trainer.state.log_history, Path(training_args.output_dir, "losses.png"), training_args.run_name or ""
        )
        trainer.create_model_card()
    if training_args.do_eval and model_args.model_type == "depth" and trainer.is_world_process_zero():
        unshuffle_one(trainer)
    if training_args.push_to_hub:
        trainer.push_to_hub()
    trainer.end()
    return trainer


if __name__ == "__main__":
    main()
