"""Tables and figures of what benchmarks/transfer.py has measured."""

import argparse
import itertools
import json
import math
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import transfer_grid as grid
from transfer_grid import Cell, Done


def spread(values: Sequence[float]) -> str:
    """Mean and standard error over seeds."""
    if not values:
        return ""
    error = f" ± {statistics.stdev(values) / math.sqrt(len(values)):.3f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.3f}{error}"


def markdown(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join([f"## {title}\n", *("| " + " | ".join(map(str, line)) + " |" for line in lines)]) + "\n"


class Report:
    """Tables and figures from the scores of all cells."""

    def __init__(self, args: argparse.Namespace, done: Done):
        self.args, self.done = args, done
        self.cells = [(json.loads(key), scores) for key, scores in done.items()]

    def found(self, cells: Sequence[Cell], name: str) -> list[float]:
        keys = map(grid.key_of, cells)
        return [self.done[key][name] for key in keys if self.done.get(key, {}).get(name) is not None]

    def tables(self) -> list[str]:
        parts = (
            self.optimizers,
            self.tuning,
            self.fine_tuned,
            self.unshuffled,
            self.pairs,
            self.variants,
            self.probes,
        )
        return [table for part in parts for table in part()]

    def optimizers(self) -> Iterator[str]:
        rows = []
        for name, optimizer in grid.OPTIMIZERS.items():
            row = [name]
            for size in grid.SIZES:
                cell = grid.pretraining("documentation", "T5", grid.OPTIMIZER_MINUTES, 0, {**optimizer, "size": size})
                scores = self.done.get(grid.key_of(cell))
                found = f"{scores['reconstruction_loss']:.3f} ({scores['attention_entropy']:.3f})" if scores else ""
                row.append(found)
            rows.append(row)
        if any(map(any, (row[1:] for row in rows))):
            yield markdown("Optimizers: held-out loss (least entropy of attention)", ["", *grid.SIZES], rows)

    def tuning(self) -> Iterator[str]:
        cells = [cell for cell in grid.tuning_cells(self.args) if grid.key_of(cell) in self.done]
        rows: dict[tuple, dict[str, list[Cell]]] = {}
        for cell in cells:
            rows.setdefault((cell["optim"], cell["rate"]), {}).setdefault(cell["task"], []).append(cell)
        tasks = list(dict.fromkeys(cell["task"] for cell in cells))
        lines = [
            [optim, f"{rate:g}", *(spread(self.found(of.get(task, ()), "test")) for task in tasks)]
            for (optim, rate), of in rows.items()
        ]
        if lines:
            yield markdown(f"Fine-tuning, {grid.TUNED_AT} labels", ["optimizer", "learning rate", *tasks], lines)

    def starts(self, task: tuple[str, str]) -> Iterator[tuple[str, str, float]]:
        """Name, kind and minutes of what a task is fine-tuned from."""
        yield "from scratch", "scratch", self.args.minutes[0]
        for kind, minutes in itertools.product(grid.KINDS, self.args.minutes):
            yield f"{kind}, {minutes:g} minutes", kind, minutes

    def cells_of(self, task: tuple[str, str], kind: str, minutes: float, labels: int) -> list[Cell]:
        tried = [one for one in grid.tuned(task, kind, minutes) if grid.key_of(grid.fine_tuning(*one)) in self.done]
        if not tried:
            return []
        best = max(tried, key=lambda one: self.done[grid.key_of(grid.fine_tuning(*one))]["validation"])
        starts = [grid.start_of(task, kind, minutes, seed, self.args.seeded_minutes) for seed in grid.SEEDS]
        return [
            grid.fine_tuning(task, start, labels, best[3], seed)
            for start, seed in zip(starts, grid.SEEDS, strict=True)
        ]

    def fine_tuned(self) -> Iterator[str]:
        for task in grid.tasks_of(self.args):
            labels = grid.labels_of(task)
            rows = []
            for name, kind, minutes in self.starts(task):
                row = [spread(self.found(self.cells_of(task, kind, minutes, number), "test")) for number in labels]
                if any(row):
                    rows.append([name, *row])
            bags = [
                spread([scores["test"] for cell, scores in self.cells if is_bag_of_words(cell, task, number)])
                for number in labels
            ]
            if rows:
                rows.insert(0, ["bag of words", *bags])
                yield markdown(f"{task[0]}, {task[1]}", ["labels", *map(str, labels)], rows)

    def unshuffled(self) -> Iterator[str]:
        names = ("exact_2", "tau_2", "exact_4", "tau_4")
        for corpus in grid.CORPORA:
            own = [(cell, s) for cell, s in self.cells if cell["what"] == "unshuffle" and cell["corpus"] == corpus]
            own = [(cell, s) for cell, s in own if is_usual(cell["model"])]
            by_name: dict[str, list[dict]] = {}
            for cell, scores in own:
                model = cell["model"]
                name = (
                    "linear ranker on words" if model == "ranker" else f"{cell['kind']}, {minutes_of(model)} minutes"
                )
                by_name.setdefault(name, []).append(scores)
            rows = [[name, *(spread([one[k] for one in scores]) for k in names)] for name, scores in by_name.items()]
            if rows:
                rows.append(["chance", "0.500", "0.000", "0.042", "0.000"])
                head = ["", "2: exact", "2: tau", "4: exact", "4: tau"]
                yield markdown(f"{corpus}: sentences put in order without labels", head, rows)

    def pairs(self) -> Iterator[str]:
        kinds = ("all", "agreement", "determiner", "neighbours", "replaced")
        for corpus in ("documentation", "prose"):
            by_name: dict[str, list[dict]] = {}
            for cell, scores in self.cells:
                if cell["what"] == "minimal_pairs" and cell["corpus"] == corpus:
                    model = cell["model"]
                    is_own = model in ("scratch", "bigrams")
                    name = model if is_own else f"{model.split('-')[1]}, {minutes_of(model)} minutes"
                    by_name.setdefault(name, []).append(scores)
            rows = [
                [name, *(spread([one[k] for one in scores if k in one]) for k in kinds)]
                for name, scores in by_name.items()
            ]
            if rows:
                yield markdown(f"{corpus}: minimal pairs", ["", *kinds], rows)

    def variants(self) -> Iterator[str]:
        rows = []
        for name, settings in grid.VARIANTS.items():
            model = grid.pretraining("documentation", "DEPTH", grid.VARIANT_MINUTES, 0, settings)
            scores = self.done.get(grid.key_of(grid.unshuffling(model)))
            if scores:
                names = ("exact_2", "tau_2", "exact_4", "tau_4")
                rows.append([name, *(f"{scores[key]:.3f}" if key in scores else "" for key in names)])
        if rows:
            head = ["", "2: exact", "2: tau", "4: exact", "4: tau"]
            yield markdown(f"DEPTH, {grid.VARIANT_MINUTES:g} minutes of documentation: what was tried", head, rows)

    def probes(self) -> Iterator[str]:
        rows: dict[str, dict[str, float]] = {}
        for cell, scores in self.cells:
            if cell["what"] == "probe":
                rows.setdefault(cell["model"], {})[cell["task"]] = scores["accuracy"]
                for name in ("chance", "majority", "bag_of_words", "random_weights"):
                    rows.setdefault(name.replace("_", " "), {}).setdefault(cell["task"], scores[f"{name}_accuracy"])
        lines = [
            [name, *(f"{of[task]:.3f}" if task in of else "" for task in grid.PROBES)] for name, of in rows.items()
        ]
        if lines:
            yield markdown("Probes of DiscoEval", ["", *grid.PROBES], lines)

    def figures(self, folder: Path) -> None:
        """Write curves.png, scores over labels, and order.png, un-shuffling over the minutes of pre-training."""
        self.draw_curves(folder / "curves.png")
        self.draw_order(folder / "order.png")

    def draw_curves(self, path: Path) -> None:
        from matplotlib.figure import Figure

        fine_tuned = {(cell["corpus"], cell["task"]) for cell, _ in self.cells if cell["what"] == "fine_tune"}
        tasks = [task for task in grid.tasks_of(self.args) if len(grid.labels_of(task)) > 1 and task in fine_tuned]
        if not tasks:
            return
        figure = Figure(figsize=(4.5 * len(tasks), 4), layout="constrained")
        for axes, task in zip(figure.subplots(1, len(tasks), squeeze=False)[0], tasks, strict=True):
            for name, kind, minutes in self.starts(task):
                groups = [self.found(self.cells_of(task, kind, minutes, number), "test") for number in grid.LABELS]
                color = {"T5": "C0", "DEPTH": "C1"}.get(kind, "grey")
                shade = 0.4 + 0.6 * self.args.minutes.index(minutes) / max(1, len(self.args.minutes) - 1)
                draw(axes, grid.LABELS, groups, label=name, color=color, alpha=shade if kind in grid.KINDS else 1.0)
            bags = [
                [scores["test"] for cell, scores in self.cells if is_bag_of_words(cell, task, number)]
                for number in grid.LABELS
            ]
            draw(axes, grid.LABELS, bags, label="bag of words", color="C2", linestyle="--")
            axes.set(
                xscale="log",
                xticks=grid.LABELS,
                xticklabels=grid.LABELS,
                xlabel="labels",
                title=f"{task[0]}\n{task[1]}",
            )
            axes.grid(alpha=0.3)
        figure.axes[0].set_ylabel("test score")
        figure.axes[-1].legend(fontsize="x-small")
        figure.savefig(path, dpi=110)

    def draw_order(self, path: Path) -> None:
        from matplotlib.figure import Figure

        scores: dict[str, dict[str, dict[float, list[float]]]] = {}  # by corpus, kind and minutes
        for cell, found in self.cells:
            if cell["what"] == "unshuffle" and is_usual(cell["model"]):
                kind, minutes = cell.get("kind", "ranker"), 0.0
                if kind in grid.KINDS:
                    minutes = float(minutes_of(cell["model"]))
                of = scores.setdefault(cell["corpus"], {}).setdefault(kind, {})
                of.setdefault(minutes, []).append(found["exact_2"])
        if not scores:
            return
        figure = Figure(figsize=(4.5 * len(scores), 4), layout="constrained")
        panels = figure.subplots(1, len(scores), squeeze=False, sharey=True)[0]
        for axes, (corpus, kinds) in zip(panels, scores.items(), strict=True):
            for kind in grid.KINDS:
                places = sorted(kinds.get(kind, {}))
                color = {"T5": "C0", "DEPTH": "C1"}[kind]
                draw(axes, places, [kinds[kind][place] for place in places], label=kind, color=color)
            for value in kinds.get("ranker", {}).get(0.0, ()):
                axes.axhline(value, color="C2", linestyle="--", label="linear ranker on words")
            axes.axhline(0.5, color="grey", linestyle=":", label="chance")
            ticks = sorted({place for kind in grid.KINDS for place in kinds.get(kind, ())})
            axes.set(xscale="log", xlabel="CPU minutes of pre-training", title=corpus)
            axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
            axes.minorticks_off()
            axes.grid(alpha=0.3)
        figure.axes[0].set_ylabel("pairs of sentences in the right order, without labels")
        figure.axes[-1].legend(fontsize="x-small")
        figure.savefig(path, dpi=110)


def draw(axes: Any, places: Sequence[float], groups: Sequence[Sequence[float]], **style: Any) -> None:
    """A line through the means of groups of scores, with standard errors."""
    kept = [(place, values) for place, values in zip(places, groups, strict=True) if values]
    if kept:
        means = [statistics.fmean(values) for _, values in kept]
        errors = [statistics.stdev(v) / math.sqrt(len(v)) if len(v) > 1 else 0.0 for _, v in kept]
        axes.errorbar([place for place, _ in kept], means, errors, marker="o", markersize=3, **style)


def is_bag_of_words(cell: Cell, task: tuple[str, str], labels: int) -> bool:
    return cell["what"] == "bag_of_words" and (cell["corpus"], cell["task"]) == task and cell["labels"] == labels


def is_usual(model: str) -> bool:
    """Whether the name of a model is that of the usual settings: corpus, kind, minutes, seed."""
    return model == "ranker" or len(model.split("-")) == 4


def minutes_of(model: str) -> str:
    return model.split("-")[2]
