"""
Does pre-training help, and does DEPTH help more than T5? Small models are pre-trained on three kinds of text for a
number of CPU minutes, and compared with models from scratch and with bags of words.

    python benchmarks/transfer.py --output_dir runs/transfer --prose "novels/*.jsonl.gz" --processes 2
    python benchmarks/transfer.py --output_dir runs/transfer --minutes 3 --parts curves

The texts are documentation and Python functions of what is installed, and `--prose`, files of documents. All parts are
measured by default:

    optimizers  optimizers and learning rates from scratch at three sizes: held-out loss, entropy of attention
    tuning      optimizers and learning rates for fine-tuning a checkpoint, and to go on with its pre-training
    curves      accuracy over the number of labels: T5, DEPTH, from scratch, bag of words
    unshuffle   exact order and Kendall's tau of 2 and 4 sentences without any label, beside a linear ranker
    pairs       minimal pairs: is the sentence as it was written the likelier one?
    probes      position and coherence of sentences from frozen embeddings, and DiscoEval's tasks of `--disco_eval`

Each process uses one thread; a budget of minutes is CPU time of the optimizer's steps. Each measurement is a line of
results.jsonl; started again, the script goes on with those that are missing, also within a pre-training. At the end,
and by `--report`, it writes results.md and order.png.
"""

import argparse
import contextlib
import itertools
import json
import math
import multiprocessing
import os
import re
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transfer_data as data
import transfer_grid as grid
from transfer_grid import Cell
from transfer_report import Report
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback, set_seed
from transformers.trainer_utils import get_last_checkpoint

from hf_depth import (
    DepthObjective,
    DepthTrainer,
    DepthTrainingArguments,
    SpanCorruptionObjective,
    TaskSplits,
    TaskTrainer,
    TaskTrainingArguments,
    add_sentence_tokens,
    load_corpus,
    load_model,
    load_tokenizer,
    order_sentences,
    train_tokenizer,
)
from hf_depth.data.tokenization import TextEncoder
from hf_depth.evaluation.minimal_pairs import fill_log_probabilities
from hf_depth.evaluation.probing import ProbeOptions, probe_task

# ---- Measurements: each is a function of its settings and the folder with all files ---------------------------------


QUIET = {"disable_tqdm": True, "report_to": "none"}  # arguments of all trainers
ON_CPU = QUIET | {"use_cpu": True}
ON_GPU = QUIET | {"torch_compile": True, "dataloader_num_workers": 1}
OBJECTIVES = {"T5": SpanCorruptionObjective, "DEPTH": DepthObjective}
STEPS_PER_MINUTE: float | None = None  # of pre-training on a GPU


class StepClock(TrainerCallback):
    """CPU seconds of each step, without evaluations and checkpoints."""

    def __init__(self):
        self.seconds: list[float] = []

    def on_step_begin(self, *args, **kwargs):
        self.started = time.process_time()

    def on_step_end(self, *args, **kwargs):
        self.seconds.append(time.process_time() - self.started)

    def minutes(self, steps: int) -> float:
        return statistics.fmean(self.seconds) * steps / 60


def pretrain(cell: Cell, root: Path) -> dict[str, Any]:
    """
    Pre-train for `minutes` of CPU time, from scratch or from `start` on; goes on with a checkpoint. With a number of
    steps per minute, the same is done on a GPU.
    """
    on_gpu = STEPS_PER_MINUTE is not None
    settings = grid.KINDS[cell["kind"]] | {"sentence_language": grid.language_of(cell["corpus"])}
    settings |= cell.get("settings", {})
    folder, corpus = root / "models" / grid.name_of(cell), root / "corpora" / cell["corpus"]
    tokenizer = load_tokenizer(str(root / "tokenizers" / cell["corpus"]))
    if cell["kind"] == "DEPTH":
        tokenizer = add_sentence_tokens(tokenizer, settings["num_sentence_tokens"])
    objective_class = OBJECTIVES[cell["kind"]]
    objective = objective_class(tokenizer, **settings_of(objective_class, settings))
    documents = load_corpus(**{f"{split}_file": str(corpus / f"{split}.jsonl") for split in ("train", "validation")})
    held_out = documents["validation"]
    documents["validation"] = held_out.select(range(min(grid.MAX_HELD_OUT, len(held_out))))
    prepared, counts = objective.prepare_splits(documents)

    def trainer(output_dir: Path, steps: int, clock: StepClock) -> DepthTrainer:
        set_seed(cell["seed"])
        start, of_model = None, {"model_type": cell["kind"].lower(), **grid.SIZES[settings["size"]]}
        if "start" in cell:
            start, of_model = str(root / "models" / cell["start"]), {}
        return DepthTrainer(
            model=load_model(start, tokenizer, dropout_rate=settings["dropout_rate"], **of_model),
            args=DepthTrainingArguments(
                str(output_dir),
                max_steps=steps,
                per_device_eval_batch_size=64,
                logging_steps=max(1, steps // 20),
                save_steps=max(1, steps // 10),
                save_total_limit=1,
                seed=cell["seed"],
                **(ON_GPU if on_gpu else ON_CPU),
                **settings_of(DepthTrainingArguments, settings),
            ),
            data_collator=objective.collator(padding="max_length" if on_gpu else "longest"),
            train_dataset=prepared["train"],
            eval_dataset=prepared["validation"],
            processing_class=tokenizer,
            callbacks=[clock],
        )

    plan = folder / "plan.json"
    if on_gpu and not plan.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        plan.write_text(json.dumps({"steps": round(STEPS_PER_MINUTE * cell["minutes"])}))
    elif not plan.is_file():
        clock = StepClock()
        trainer(folder / "trial", 14, clock).train()
        seconds = statistics.median(clock.seconds[4:])
        steps = max(20, round(60 * cell["minutes"] / seconds))
        plan.write_text(json.dumps({"steps": steps, "trial_seconds": seconds}))
    steps, clock = json.loads(plan.read_text())["steps"], StepClock()
    run = trainer(folder, steps, clock)
    run.train(resume_from_checkpoint=get_last_checkpoint(str(folder)))
    metrics = run.evaluate()
    run.save_model()
    kept = {name.removeprefix("eval_"): value for name, value in metrics.items() if not name.endswith("_second")}
    kept |= {"gpu": torch.cuda.get_device_name()} if on_gpu else {"cpu_minutes": clock.minutes(steps)}
    return kept | {
        "steps": steps,
        "examples": counts["train"]["examples"],
        "parameters": sum(parameter.numel() for parameter in run.model.parameters()),
    }


def settings_of(dataclass: type, settings: Mapping[str, Any]) -> dict[str, Any]:
    return {field.name: settings[field.name] for field in fields(dataclass) if field.name in settings}


def load_splits(cell: Cell, root: Path) -> TaskSplits:
    """The splits of a task: so many labels, and the same held-out rows for all."""
    settings = {
        "max_train_samples": cell["labels"],
        "max_eval_samples": data.TASK_ROWS["validation"],
        "max_predict_samples": data.TASK_ROWS["test"],
        "seed": cell["seed"],
    }
    task = cell["task"]
    folder = root / "tasks" / task if task in data.SPECS else root / "corpora" / cell["corpus"]
    return TaskSplits.load(
        data.SPECS.get(task, f"discourse/{task}"),
        **{f"{split}_file": str(folder / f"{split}.jsonl") for split in data.SPLITS},
        sentence_language=grid.language_of(cell["corpus"]),
        **settings,
    )


def load_start(cell: Cell, root: Path, **changes: Any) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A pre-trained model with its tokenizer; "scratch" is a DEPTH model with random weights, of the usual size."""
    if cell["model"] != "scratch":
        folder = str(root / "models" / cell["model"])
        return load_model(folder, tokenizer := load_tokenizer(folder), **changes), tokenizer
    torch.manual_seed(cell["seed"])
    tokenizer = add_sentence_tokens(load_tokenizer(str(root / "tokenizers" / cell["corpus"])))
    return load_model(None, tokenizer, **grid.SIZE, **changes), tokenizer


def fine_tune(cell: Cell, root: Path) -> dict[str, Any]:
    """Fine-tune a pre-trained model, or one from scratch, on some labels; score held-out examples."""
    set_seed(cell["seed"])
    model, tokenizer = load_start(cell, root, dropout_rate=0.1)
    splits = load_splits(cell, root).prepare(tokenizer)
    spec = splits.tasks[0]
    trainer = TaskTrainer(
        model=model,
        args=TaskTrainingArguments(
            str(root / "fine_tuning" / str(os.getpid())),
            max_steps=grid.STEPS[cell["labels"]],
            per_device_train_batch_size=16,
            per_device_eval_batch_size=64,
            optim=cell.get("optim", "adamw_scale"),
            optim_args=cell.get("optim_args"),
            learning_rate=cell["rate"],
            lr_scheduler_type="cosine",
            warmup_steps=0.1,
            prediction_mode="generate" if spec.labels is None else "score_labels",
            save_strategy="no",
            logging_steps=100,
            seed=cell["seed"],
            **ON_CPU,
        ),
        train_dataset=splits.train_dataset(),
        eval_dataset=splits.eval_dataset(),
        processing_class=tokenizer,
    )
    trainer.train()
    scores = {}
    for split, dataset in (("validation", splits.eval_dataset()), ("test", splits.test_datasets())):
        metrics = trainer.evaluate_tasks(dataset, metric_key_prefix=split)
        scores[split] = metrics[f"{split}_{spec.metric_to_optimize}"]
        names = [f"{split}_{kind}_{spec.metric_to_optimize}" for kind in ("majority", "chance")]
        scores |= {name.removeprefix(f"{split}_"): metrics[name] for name in names if name in metrics}
        scores["attention_entropy"] = metrics.get(f"{split}_attention_entropy")
    return scores


def bag_of_words(cell: Cell, root: Path) -> dict[str, Any]:
    """TF-IDF of words and pairs of words, by column, and a logistic regression chosen by validation examples."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    (part,) = load_splits(cell, root).parts
    spec, examples = part.spec, part.examples
    if spec.labels is None:
        return following_words(examples, read_texts(root, cell["corpus"]))
    labels, found = {split: spec.label_ids(rows) for split, rows in examples.items()}, []
    texts = {
        split: [words_by_column([row[name] for name in spec.text_column_name]) for row in rows]
        for split, rows in examples.items()
    }
    for most, strength in itertools.product((1, 2), (0.1, 1.0, 10.0, 100.0)):
        vectorizer = TfidfVectorizer(sublinear_tf=True, token_pattern=r"\S+", ngram_range=(1, most), lowercase=False)
        classifier = LogisticRegression(C=strength, max_iter=2000)
        classifier.fit(vectorizer.fit_transform(texts["train"]), labels["train"])
        parts = ("validation", "test")
        found.append({part: classifier.score(vectorizer.transform(texts[part]), labels[part]) for part in parts})
    return max(found, key=lambda scores: scores["validation"])


def words_by_column(columns: Sequence[str]) -> str:
    """The words of each column, each with the number of its column."""
    return " ".join(f"{place}:{word}" for place, text in enumerate(columns) for word in words(text))


def words(text: str) -> list[str]:
    return re.findall(r"\w+|[^\w\s]", text.lower())


def read_texts(root: Path, corpus: str) -> list[str]:
    return [row["text"] for row in data.read_rows(root / "corpora" / corpus / "train.jsonl")]


def following_words(examples: Mapping[str, Any], texts: Sequence[str]) -> dict[str, Any]:
    """Which word ends a sentence: the one that ends most, after the last two words, or one, in all texts."""
    counts: dict[tuple[str, ...], Counter] = defaultdict(Counter)
    for text in texts:
        pieces = text.split()
        for place, piece in enumerate(pieces):
            word = piece[:-1]
            if piece.endswith(".") and word.isalpha() and word.islower() and len(word) > 2:
                for size in range(3):
                    counts[tuple(pieces[max(0, place - size) : place])][word] += 1

    def guess(text: str, most: int) -> str:
        pieces = text.split()
        for size in range(most, -1, -1):
            found = counts.get(tuple(pieces[len(pieces) - size :]))
            if found:
                return found.most_common(1)[0][0]
        return ""

    def score(split: str, most: int) -> float:
        return statistics.fmean([guess(row["text"], most)] == row["label"] for row in examples[split])

    return {split: score(split, 2) for split in ("validation", "test")} | {"majority_exact_match": score("test", 0)}


def unshuffle(cell: Cell, root: Path) -> dict[str, Any]:
    """Put windows of 2 and of 4 sentences in order, which come in a random one."""
    windows = json.loads((root / "windows" / f"{cell['corpus']}.json").read_text(encoding="utf-8"))
    order = order_by(cell, root, windows["train"])
    rng, scores = np.random.default_rng(0), {}
    for size in ("2", "4"):
        arranged = [rng.permutation(len(window)).tolist() for window in windows[size]]
        given = [[window[i] for i in places] for window, places in zip(windows[size], arranged, strict=True)]
        found = [[places[i] for i in own] for own, places in zip(order(given), arranged, strict=True)]
        scores[f"exact_{size}"] = statistics.fmean(own == sorted(own) for own in found)
        scores[f"tau_{size}"] = statistics.fmean(map(kendall_tau, found))
    return scores


def kendall_tau(order: Sequence[int]) -> float:
    pairs = list(itertools.combinations(order, 2))
    return sum(1 if a < b else -1 for a, b in pairs) / len(pairs)


def order_by(cell: Cell, root: Path, pairs: Sequence[Sequence[str]]) -> Callable[[list[list[str]]], list[list[int]]]:
    """A function that gives the order of the sentences of each window."""
    if cell["model"] == "ranker":
        return ranker(pairs)
    model, tokenizer = load_start(cell, root)
    if cell["kind"] == "DEPTH":
        return lambda windows: [one["order"] for one in order_sentences(model, tokenizer, windows, num_arrangements=2)]
    return lambda windows: by_likelihood(model.eval(), tokenizer, windows)


def ranker(pairs: Sequence[Sequence[str]]) -> Callable[[list[list[str]]], list[list[int]]]:
    """
    A logistic regression on the difference between the words of the first and of the second sentence; sentences are
    sorted by its weights.
    """
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression

    vectorizer = CountVectorizer(tokenizer=words_and_ends, token_pattern=None, lowercase=False, binary=True)
    vectorizer.fit(text for pair in pairs for text in pair)
    firsts, seconds = (vectorizer.transform([pair[place] for pair in pairs]) for place in (0, 1))
    signs = np.where(np.arange(len(pairs)) % 2, -1, 1)  # every second pair is turned round: there must be two classes
    classifier = LogisticRegression(C=0.1, fit_intercept=False, max_iter=2000)
    classifier.fit((firsts - seconds).multiply(signs[:, None]).tocsr(), signs)

    def order(windows: list[list[str]]) -> list[list[int]]:
        return [np.argsort(-classifier.decision_function(vectorizer.transform(one))).tolist() for one in windows]

    return order


def words_and_ends(text: str) -> list[str]:
    found = words(text)
    return [*found, f"begins {found[0]}", f"ends {found[-1]}", f"words {len(found) // 5}"] if found else []


def by_likelihood(model, tokenizer, windows: list[list[str]]) -> list[list[int]]:
    """
    By a T5, without labels: for each two sentences, how likely is each as what follows the other, against as what
    precedes it? The sentence that wins most comes first.
    """
    asked, places = [], []
    for number, window in enumerate(windows):
        for a, b in itertools.permutations(range(len(window)), 2):  # a before b
            asked += [((window[a], ""), window[b]), (("", window[b]), window[a])]
            places += [(number, a, b)] * 2
    scores = log_likelihoods(model, tokenizer, asked)
    wins = [np.zeros((len(window), len(window))) for window in windows]
    for (number, a, b), score in zip(places, scores, strict=True):
        wins[number][a, b] += score
    return [np.argsort(-np.sign(matrix - matrix.T).sum(1), kind="stable").tolist() for matrix in wins]


def log_likelihoods(
    model, tokenizer, asked: Sequence[tuple[tuple[str, str], str]], batch_size: int = 64
) -> list[float]:
    """
    The log-probability in nats of each text between what stands before and behind it: `((before, behind), text)`.
    """
    texts = sorted({text for (before, behind), middle in asked for text in (before, behind, middle) if text})
    ids = dict(zip(texts, TextEncoder(tokenizer)(texts), strict=True)) | {"": []}
    blanks = [(ids[before], ids[middle], ids[behind]) for (before, behind), middle in asked]
    return fill_log_probabilities(model, tokenizer, blanks, batch_size)


def minimal_pairs(cell: Cell, root: Path) -> dict[str, Any]:
    """How often what was written is likelier than what was not, by the model, or by frequencies of words and pairs."""
    rows = data.read_rows(root / "minimal_pairs" / f"{cell['corpus']}.jsonl")
    if cell["model"] == "bigrams":
        scores = bigram_scores(rows, read_texts(root, cell["corpus"]))
    else:
        model, tokenizer = load_start(cell, root)
        asked = [((row["before"], row["after"]), row[name]) for row in rows for name in ("good", "bad")]
        scores = log_likelihoods(model.eval(), tokenizer, asked)
    right = defaultdict(list)
    for row, good, bad in zip(rows, scores[::2], scores[1::2], strict=True):
        for kind in ("all", row["kind"]):
            right[kind].append(1.0 if good > bad else 0.5 if good == bad else 0.0)
    return {kind: statistics.fmean(values) for kind, values in right.items()} | {"pairs": len(rows)}


def bigram_scores(rows: Sequence[Mapping[str, str]], texts: Sequence[str]) -> list[float]:
    singles, pairs = Counter(), Counter()
    for text in texts:
        pieces = text.lower().split()
        singles.update(pieces)
        pairs.update(itertools.pairwise(pieces))
    total = sum(singles.values())

    def score(text: str) -> float:
        pieces = text.lower().split()
        return sum(
            math.log(0.9 * pairs[a, b] / max(1, singles[a]) + 0.1 * (singles[b] + 0.1) / total)
            for a, b in itertools.pairwise(pieces)
        )

    whole = (f"{row['before']} {row[name]} {row['after']}" for row in rows for name in ("good", "bad"))
    return list(map(score, whole))


def probe(cell: Cell, root: Path) -> dict[str, Any]:
    """
    A task of DiscoEval, or the same made of held-out documents, by a classifier of frozen embeddings, beside the same
    of random weights and words.
    """
    model, tokenizer = load_start(cell, root)
    if cell["task"] in grid.PROBES:
        (part,) = TaskSplits.load(
            f"disco_eval/{cell['task']}",
            dataset_dir=str(Path(cell["folder"], cell["task"])),
            max_train_samples=1000,
            max_eval_samples=500,
            max_predict_samples=1000,
            seed=cell["seed"],
        ).parts
    else:
        (part,) = load_splits(cell | {"labels": 1000}, root).parts
    splits = [part.examples[name] for name in data.SPLITS]
    (found,) = probe_task(
        model,
        tokenizer,
        part.spec,
        *splits[:2],
        {"test": splits[2]},
        ProbeOptions(batch_size=64, read_together=cell["read_together"]),
        seed=cell["seed"],
    )
    return {name: value for name, value in found.metrics.items() if name.endswith("accuracy")}


MEASURES: dict[str, Callable[[Cell, Path], dict[str, Any]]] = {
    function.__name__: function for function in (pretrain, fine_tune, bag_of_words, unshuffle, minimal_pairs, probe)
}


# ---- Execution ------------------------------------------------------------------------------------------------------


def use_gpu(steps_per_minute: float | None) -> None:
    """In a new process: pre-train on a GPU, if there is a number of steps."""
    global STEPS_PER_MINUTE
    STEPS_PER_MINUTE = steps_per_minute


def measure(cell: Cell, root: Path) -> dict[str, Any]:
    """In a process of its own: the scores of a cell and its CPU seconds. What is printed goes to a file."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    started = time.process_time()
    (root / "logs").mkdir(exist_ok=True)
    with (root / "logs" / f"{os.getpid()}.log").open("a", encoding="utf-8") as log:
        print(f"\n---- {grid.key_of(cell)}", file=log, flush=True)
        with contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
            scores = MEASURES[cell["what"]](cell, root)
    return scores | {"seconds": round(time.process_time() - started, 1)}


def prepare(args: argparse.Namespace, root: Path) -> None:
    """Write texts, vocabularies and tasks that are not there."""
    for corpus in grid.corpora_of(args):
        folder, tokenizer = root / "corpora" / corpus, root / "tokenizers" / corpus
        pairs, windows = root / "minimal_pairs" / f"{corpus}.jsonl", root / "windows" / f"{corpus}.json"
        if not (folder / "test.jsonl").is_file():
            data.write_corpus(corpus, folder, grid.given_files(args).get(corpus))
        if not tokenizer.is_dir():
            train_tokenizer(read_texts(root, corpus), grid.VOCAB_SIZE, str(tokenizer), allow_fewer=True)
        if corpus in data.WITH_PAIRS and not pairs.is_file():
            data.write_minimal_pairs(folder, pairs)
        if corpus not in grid.WITHOUT_ORDER and not windows.is_file():
            data.write_windows(folder, windows, grid.language_of(corpus))
    for corpus, task in grid.tasks_of(args):
        folder = root / "tasks" / task
        if task in data.SPECS and not (folder / "test.jsonl").is_file():
            data.write_task(task, root / "corpora" / corpus, folder)


def read_results(root: Path) -> dict[str, dict[str, Any]]:
    path = root / "results.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
    return {grid.key_of(line["cell"]): line["scores"] for line in lines}


def execute(args: argparse.Namespace, root: Path) -> dict[str, dict[str, Any]]:
    """Measure all cells that are not in results.jsonl, and return the scores of all."""
    path, done = root / "results.jsonl", read_results(root)
    context = multiprocessing.get_context("spawn")
    with (
        ProcessPoolExecutor(args.processes, context, use_gpu, (args.gpu_steps_per_minute,)) as pool,
        path.open("a", encoding="utf-8") as file,
    ):
        for wave in grid.plan(args, done):
            missing = list({grid.key_of(cell): cell for cell in wave if grid.key_of(cell) not in done}.values())
            running = {pool.submit(measure, cell, root): cell for cell in missing}
            for number, future in enumerate(as_completed(running), 1):
                cell, scores = running[future], future.result()
                done[grid.key_of(cell)] = scores
                print(json.dumps({"cell": cell, "scores": scores}), file=file, flush=True)
                print(f"{number}/{len(missing)} {cell} {scores['seconds']} s", flush=True)
    return done


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output_dir", required=True, help="is continued")
    parser.add_argument("--parts", nargs="+", choices=grid.PARTS, default=list(grid.PARTS))
    parser.add_argument("--corpora", nargs="+", choices=grid.CORPORA, default=list(grid.CORPORA))
    parser.add_argument(
        "--minutes", nargs="+", type=float, default=list(grid.MINUTES), help="of pre-training, CPU time"
    )
    parser.add_argument("--seeded_minutes", type=float, default=120, help="up to which each seed has its pre-training")
    parser.add_argument("--prose", nargs="+", help="files of documents, with a column title for what belongs together")
    parser.add_argument("--subjectivity", help="JSON lines of text and label: Pang and Lee's subjectivity sentences")
    parser.add_argument("--disco_eval", help="folder of DiscoEval, with a folder of files for each of its tasks")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument(
        "--gpu_steps_per_minute",
        type=float,
        help="pre-train on a GPU, for each minute so many steps: as many as the core takes that is compared with",
    )
    parser.add_argument("--report", action="store_true", help="of what there is; measures nothing")
    return parser.parse_args(argv)


def main() -> None:
    args = parse_args()
    args.minutes = [int(minutes) if minutes == int(minutes) else minutes for minutes in args.minutes]
    root = Path(args.output_dir).resolve()
    root.mkdir(parents=True, exist_ok=True)
    if not args.report:
        prepare(args, root)
        execute(args, root)
    report = Report(args, read_results(root))
    (root / "results.md").write_text("\n".join(report.tables()), encoding="utf-8")
    report.figure(root / "order.png")
    print("\n".join(report.tables()))


if __name__ == "__main__":
    main()
