"""Tables and figures of what benchmarks/transfer.py has measured."""

import argparse
import itertools
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import transfer_grid as grid
from transfer_grid import Cell, Done, Task

Rows = Mapping[str, Sequence[Mapping[Any, float]]]  # by the name of a row: for each seed, values by their columns

ORDERS = {"exact_2": "2: exact", "tau_2": "2: tau", "exact_4": "4: exact", "tau_4": "4: tau"}
COLORS = {"T5": "C0", "DEPTH": "C1", "scratch": "grey"}


def spread(values: Sequence[float]) -> str:
    """Mean and standard error over seeds."""
    if not values:
        return ""
    error = f" ± {standard_error(values):.3f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.3f}{error}"


def standard_error(values: Sequence[float]) -> float:
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def markdown(title: str, head: Sequence[str], lines: Iterable[Sequence[str]]) -> Iterator[str]:
    """A table of the lines with a value; none if there is no such line."""
    lines = [line for line in lines if any(line[1:])]
    if lines:
        lines = [head, ["---"] * len(head), *lines]
        yield "\n".join([f"## {title}\n", *("| " + " | ".join(line) + " |" for line in lines)]) + "\n"


def table(title: str, corner: str, columns: Mapping[Any, str], rows: Rows) -> Iterator[str]:
    """A table of means and standard errors; `columns` are the titles of values."""
    lines = []
    for name, found in rows.items():
        values = [[one[key] for one in found if one.get(key) is not None] for key in columns]
        lines.append([name, *map(spread, values)])
    yield from markdown(title, [corner, *columns.values()], lines)


def same(names: Sequence[Any]) -> dict[Any, str]:
    return {name: str(name) for name in names}


class Report:
    """Tables and figures from the scores of all cells."""

    def __init__(self, args: argparse.Namespace, done: Done):
        self.args, self.done = args, done
        self.cells = [(json.loads(key), scores) for key, scores in done.items()]

    def found(self, *cells: Cell) -> list[dict[str, Any]]:
        return [self.done[key] for key in map(grid.key_of, cells) if key in self.done]

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
        lines = []
        for name, optimizer in grid.OPTIMIZERS.items():
            line = [name]
            for size in grid.SIZES:
                settings = {**optimizer, "size": size}
                cell = grid.pretraining("documentation", "T5", grid.OPTIMIZER_MINUTES, 0, settings)
                texts = (
                    f"{own['reconstruction_loss']:.3f} ({own['attention_entropy']:.3f})" for own in self.found(cell)
                )
                line.append("".join(texts))
            lines.append(line)
        title = "Optimizers: held-out loss (least entropy of attention)"
        yield from markdown(title, ["", *grid.SIZES], lines)

    def tuning(self) -> Iterator[str]:
        rows = defaultdict(list)
        for cell in grid.tuning_cells(self.args):
            name = f"{cell['optim']} {cell['rate']:g}"
            rows[name] += [{cell["task"]: scores["test"]} for scores in self.found(cell)]
        yield from table(f"Fine-tuning, {grid.TUNED_AT} labels", "", same(grid.TUNING_TASKS), rows)
        models = {"as it was": grid.pretraining("documentation", "DEPTH", min(self.args.minutes), 0)}
        models |= grid.continued(self.args)
        rows = {name: self.found(model, grid.unshuffling(model)) for name, model in models.items()}
        columns = {"sentence_loss": "sentence loss", "reconstruction_loss": "other loss"}
        columns |= {"attention_entropy": "entropy"} | ORDERS
        title = f"{grid.CONTINUED_MINUTES} more minutes of pre-training"
        if any(rows[name] for name in grid.continued(self.args)):
            yield from table(title, "", columns, rows)

    def starts(self) -> Iterator[tuple[str, str, float]]:
        """Name, kind and minutes of what a task is fine-tuned from."""
        yield "from scratch", "scratch", self.args.minutes[0]
        for kind, minutes in itertools.product(grid.KINDS, self.args.minutes):
            yield f"{kind}, {minutes:g} minutes", kind, minutes

    def curve(self, task: Task, kind: str, minutes: float, labels: int) -> list[float]:
        """The test scores of all seeds; `kind` may be "bag of words", too."""
        if kind == "bag of words":
            cells = [grid.bag_of_words(task, labels, seed) for seed in grid.SEEDS]
        else:
            cells = grid.curve(task, kind, minutes, labels, self.done, self.args.seeded_minutes)
        return [scores["test"] for scores in self.found(*cells)]

    def fine_tuned(self) -> Iterator[str]:
        for task in grid.tasks_of(self.args):
            labels = grid.labels_of(task)
            rows = {
                name: [{number: score} for number in labels for score in self.curve(task, kind, minutes, number)]
                for name, kind, minutes in (("bag of words", "bag of words", 0), *self.starts())
            }
            if any(found for name, found in rows.items() if name != "bag of words"):
                yield from table(f"{task[0]}, {task[1]}", "labels", same(labels), rows)

    def by_model(self, what: str, corpus: str) -> dict[str, list[dict[str, float]]]:
        """The scores of a measurement by kind and minutes of the model."""
        rows = defaultdict(list)
        for cell, scores in self.cells:
            if cell["what"] == what and cell["corpus"] == corpus:
                _, *model = cell["model"].split("-")
                if len(model) in (0, 3):  # the usual settings: kind, minutes, seed
                    rows[f"{model[0]}, {model[1]} minutes" if model else cell["model"]].append(scores)
        return rows

    def unshuffled(self) -> Iterator[str]:
        for corpus in grid.CORPORA:
            found = self.by_model("unshuffle", corpus)
            if found:
                rows = {name.replace("ranker", "linear ranker on words"): scores for name, scores in found.items()}
                rows["chance"] = [{"exact_2": 1 / 2, "tau_2": 0.0, "exact_4": 1 / 24, "tau_4": 0.0}]
                yield from table(f"{corpus}: sentences put in order without labels", "", ORDERS, rows)

    def pairs(self) -> Iterator[str]:
        kinds = same(("all", "agreement", "determiner", "neighbours", "replaced"))
        for corpus in grid.CORPORA:
            yield from table(f"{corpus}: minimal pairs", "", kinds, self.by_model("minimal_pairs", corpus))

    def variants(self) -> Iterator[str]:
        rows = {}
        for name, settings in grid.VARIANTS.items():
            model = grid.pretraining("documentation", "DEPTH", grid.VARIANT_MINUTES, 0, settings)
            rows[name] = self.found(grid.unshuffling(model))
        title = f"DEPTH, {grid.VARIANT_MINUTES:g} minutes of documentation: what was tried"
        yield from table(title, "", ORDERS, rows)

    def probes(self) -> Iterator[str]:
        rows = {}
        for cell, scores in self.cells:
            if cell["what"] == "probe":
                rows.setdefault(cell["model"], [{}])[0][cell["task"]] = scores["accuracy"]
                for name in ("chance", "majority", "bag_of_words", "random_weights"):
                    of_baseline = rows.setdefault(name.replace("_", " "), [{}])[0]
                    of_baseline.setdefault(cell["task"], scores[f"{name}_accuracy"])
        yield from table("Probes of DiscoEval", "", same(grid.PROBES), rows)

    # ---- Figures ----------------------------------------------------------------------------------------------------

    def figures(self, folder: Path) -> None:
        """Write curves.png, scores over labels, and order.png, un-shuffling over the minutes of pre-training."""
        tasks = [task for task in grid.tasks_of(self.args) if len(grid.labels_of(task)) > 1]
        fine_tuned = {(cell["corpus"], cell["task"]) for cell, _ in self.cells if cell["what"] == "fine_tune"}
        write_figure(folder / "curves.png", filter(fine_tuned.__contains__, tasks), self.draw_curve, "test score")
        unshuffled = dict.fromkeys(cell["corpus"] for cell, _ in self.cells if cell["what"] == "unshuffle")
        title = "pairs of sentences in the right order, without labels"
        write_figure(folder / "order.png", unshuffled, self.draw_order, title, sharey=True)

    def draw_curve(self, axes: Any, task: Task) -> None:
        for name, kind, minutes in self.starts():
            groups = [self.curve(task, kind, minutes, labels) for labels in grid.LABELS]
            share = self.args.minutes.index(minutes) / max(1, len(self.args.minutes) - 1)
            shade = 0.4 + 0.6 * share if kind in grid.KINDS else 1.0
            draw(axes, grid.LABELS, groups, label=name, color=COLORS[kind], alpha=shade)
        bags = [self.curve(task, "bag of words", 0, labels) for labels in grid.LABELS]
        draw(axes, grid.LABELS, bags, label="bag of words", color="C2", linestyle="--")
        axes.set(xscale="log", xlabel="labels", title=f"{task[0]}\n{task[1]}")
        axes.set_xticks(grid.LABELS, grid.LABELS)

    def draw_order(self, axes: Any, corpus: str) -> None:
        found, ticks = self.by_model("unshuffle", corpus), set()
        for kind in grid.KINDS:
            places = {float(name.split()[1]): name for name in found if name.startswith(f"{kind}, ")}
            groups = [[one["exact_2"] for one in found[places[place]]] for place in sorted(places)]
            draw(axes, sorted(places), groups, label=kind, color=COLORS[kind])
            ticks |= set(places)
        for scores in found.get("ranker", ()):
            axes.axhline(scores["exact_2"], color="C2", linestyle="--", label="linear ranker on words")
        axes.axhline(0.5, color="grey", linestyle=":", label="chance")
        axes.set(xscale="log", xlabel="CPU minutes of pre-training", title=corpus)
        axes.set_xticks(sorted(ticks), [f"{tick:g}" for tick in sorted(ticks)])


def write_figure(path: Path, names: Any, drawing: Any, ylabel: str, sharey: bool = False) -> None:
    """One panel for each name, drawn by `drawing`."""
    from matplotlib.figure import Figure

    names = list(names)
    if not names:
        return
    figure = Figure(figsize=(4.5 * len(names), 4), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False, sharey=sharey)[0], names, strict=True):
        drawing(axes, name)
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylabel(ylabel)
    figure.axes[-1].legend(fontsize="x-small")
    figure.savefig(path, dpi=110)


def draw(axes: Any, places: Sequence[float], groups: Sequence[Sequence[float]], **style: Any) -> None:
    """A line through the means of groups of scores, with standard errors."""
    kept = [(place, values) for place, values in zip(places, groups, strict=True) if values]
    if kept:
        means = [statistics.fmean(values) for _, values in kept]
        errors = [standard_error(values) for _, values in kept]
        axes.errorbar([place for place, _ in kept], means, errors, marker="o", markersize=3, **style)
