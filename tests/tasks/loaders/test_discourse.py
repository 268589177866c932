import functools
import gzip
import json
import os
import tempfile
from collections import Counter, defaultdict
from unittest import mock

from absl.testing import parameterized
from datasets import Dataset

from helpers import CorpusTestCase, tiny_tokenizer
from hf_depth.data.corpus import load_corpus
from hf_depth.data.sentences import get_sentence_splitter
from hf_depth.tasks.loaders import discourse as discourse_tasks
from hf_depth.tasks.loaders.discourse import (
    DISCOURSE_TASKS,
    MAX_PASSAGE,
    MIN_PASSAGE,
    DiscourseOptions,
    PythonModulesOptions,
    is_sentence,
    load,
    load_passages,
    passages,
)
from hf_depth.tasks.loading import load_task
from hf_depth.tasks.preprocessing import TaskPreprocessor, prepare_task
from hf_depth.tasks.reading import TaskFiles
from hf_depth.tasks.registry import get_task
from hf_depth.tasks.spec import TaskSpec


def sentence(document: int, number: int) -> str:
    return f"In document {document} this is the sentence with number {number}."


def document(index: int, num_sentences: int = 9) -> str:
    return " ".join(sentence(index, number) for number in range(num_sentences))


def texts_of(row: dict) -> list[str]:
    return [row[name] for name in sorted(row) if name.startswith("sentence_")]


@functools.cache
def default_splits() -> dict[str, Dataset]:
    return load(get_task("sentence_ordering"), TaskFiles(), DiscourseOptions())


class DiscourseTestCase(parameterized.TestCase):
    """Works in a folder of its own, with a cache of its own."""

    def setUp(self):
        super().setUp()
        self.folder = self.enterContext(tempfile.TemporaryDirectory())

    def write(self, name: str, texts: list[str], column: str = "text") -> str:
        path = os.path.join(self.folder, name)
        with gzip.open(path, "wt") if name.endswith(".gz") else open(path, "w") as file:
            file.writelines(json.dumps({column: text}) + "\n" for text in texts)
        return path

    def load(self, kind: str, texts: list[str] | None = None, split_seed: int = 42, **options) -> dict[str, Dataset]:
        file = self.write("train.jsonl", [document(index) for index in range(30)] if texts is None else texts)
        files = TaskFiles(train_file=file, cache_dir=self.folder)
        return load(get_task(kind), files, DiscourseOptions(**options), split_seed=split_seed)


class DefinitionTest(DiscourseTestCase):
    def test_the_label_says_from_which_position_a_sentence_was_moved_to_the_front(self):
        for rows in self.load("sentence_position", max_examples_per_document=None).values():
            for row in rows:
                moved, *others = texts_of(row)
                original = others[: row["label"]] + [moved] + others[row["label"] :]
                index = int(original[0].split()[2])
                numbers = [int(text.removesuffix(".").split()[-1]) for text in original]
                self.assertEqual(original, [sentence(index, number) for number in numbers])
                self.assertEqual(numbers, list(range(numbers[0], numbers[0] + 5)))

    def test_two_neighbours_stand_in_the_right_order_or_swapped(self):
        pairs = defaultdict(set)
        for row in self.load("sentence_ordering", max_examples_per_document=None)["train"]:
            first, second = texts_of(row) if row["label"] else reversed(texts_of(row))
            index, number = int(first.split()[2]), int(first.removesuffix(".").split()[-1])
            self.assertEqual((first, second), (sentence(index, number), sentence(index, number + 1)))
            pairs[first].add(row["label"])
        self.assertLen(pairs, 8 * len({first.split()[2] for first in pairs}))  # every pair of neighbours
        self.assertEqual(set(map(frozenset, pairs.values())), {frozenset({0, 1})})

    def test_an_incoherent_text_has_one_foreign_sentence_and_never_at_either_end(self):
        positions = Counter()
        for split, rows in self.load("discourse_coherence", max_examples_per_document=None).items():
            texts = [texts_of(row) for row in rows]
            in_split = {text for row, label in zip(texts, rows["label"], strict=True) if label for text in row}
            for row, label in zip(texts, rows["label"], strict=True):
                indices = [int(text.split()[2]) for text in row]
                own = Counter(indices).most_common(1)[0][0]
                foreign = [place for place, index in enumerate(indices) if index != own]
                self.assertLen(foreign, 0 if label else 1)
                positions.update(foreign)
                self.assertContainsSubset(row, in_split, f"{split}: a foreign sentence is of another split")
        self.assertSameElements(positions, [1, 2, 3, 4])
        self.assertLess(max(positions.values()) / sum(positions.values()), 0.4)

    def test_a_foreign_sentence_comes_from_the_same_place_of_its_window(self):
        # Else the first sentence of a document, which is never at an inner place of a window, would show itself.
        texts = [document(index, num_sentences=6) for index in range(40)]
        for row in self.load("discourse_coherence", texts)["train"]:
            numbers = [int(text.removesuffix(".").split()[-1]) for text in texts_of(row)]
            self.assertEqual(numbers, list(range(6)))


class SplitsTest(DiscourseTestCase):
    def load_files(self, kind: str, splits: tuple[str, ...], number: int) -> dict[str, Dataset]:
        """Each split has a file of so many documents, whose numbers begin with the number of the split."""
        files = {
            f"{split}_file": self.write(f"{split}.jsonl", [document(100 * place + i) for i in range(number)])
            for place, split in enumerate(splits)
        }
        return load(get_task(kind), TaskFiles(**files, cache_dir=self.folder), DiscourseOptions())

    def test_no_document_and_no_sentence_is_in_two_splits(self):
        splits = default_splits()
        self.assertEqual(list(splits), ["train", "validation", "test"])
        for one, other in (("train", "validation"), ("train", "test"), ("validation", "test")):
            self.assertNoCommonElements(splits[one]["document"], splits[other]["document"])
            sentences = [{text for row in splits[name] for text in texts_of(row)} for name in (one, other)]
            self.assertNoCommonElements(*sentences)

    @parameterized.parameters((False, 42, 12), (True, 7, 60))
    def test_documents_to_test_on_are_never_pre_trained_on(self, streaming, split_seed, number):
        texts = [document(index) for index in range(number)]
        one, other = self.write("one.jsonl", texts[: number // 3]), self.write("other.jsonl.gz", texts[number // 3 :])
        arguments = {"cache_dir": self.folder, "split_seed": split_seed}
        corpus = load_corpus(train_file=[one, other], streaming=streaming, **arguments)
        trained = {text for row in corpus["train"] for text in get_sentence_splitter()(row["text"])}
        tests = load_task("sentence_ordering", train_file=[other, one], **arguments)["test"]
        self.assertNotEmpty(tests)
        self.assertNoCommonElements({text for row in tests for text in texts_of(row)}, trained)

    def test_documents_to_test_on_are_never_pre_trained_on_without_files(self):
        held_out = load_corpus()["validation"]
        sentences = {" ".join(text.split()) for row in held_out for text in get_sentence_splitter()(row["text"])}
        for row in default_splits()["test"]:
            self.assertContainsSubset(texts_of(row), sentences)

    def test_a_repeated_document_is_used_once(self):
        texts = [document(index) for index in range(20)]
        once, twice = (self.load("sentence_ordering", some) for some in (texts, [*texts, *texts]))
        documents = [set().union(*(rows["document"] for rows in splits.values())) for splits in (once, twice)]
        self.assertEqual(*documents)
        self.assertEqual(*(sum(map(len, splits.values())) for splits in (once, twice)))

    def test_a_sentence_of_several_documents_is_in_no_split_and_its_neighbours_stay_apart(self):
        byline = "This is a text by the same author."
        texts = [f"{document(2 * i, 2)} {byline} {document(2 * i + 1, 2)}" for i in range(40)]
        splits = self.load("sentence_ordering", texts)
        for rows in splits.values():
            for row in rows:
                self.assertLen({text.split()[2] for text in texts_of(row)}, 1)
        self.assertEqual(sum(map(len, splits.values())), 40 * 2 * 2)

    @parameterized.parameters(
        (("train", "validation"), {"train": 10, "validation": 10}),
        (("train", "test"), {"train": 9, "validation": 1, "test": 10}),
        (("validation",), {"validation": 10}),
        (("test",), {"test": 10}),
    )
    def test_only_what_training_needs_is_set_apart(self, given, expected):
        splits = self.load_files("sentence_position", given, number=10)
        self.assertEqual({name: len(set(rows["document"])) for name, rows in splits.items()}, expected)


class RandomnessTest(DiscourseTestCase):
    def test_the_same_seed_gives_the_same_rows_and_another_one_others(self):
        splits = [self.load("discourse_coherence", split_seed=seed) for seed in (1, 1, 2)]
        rows = [{name: rows.to_list() for name, rows in parts.items()} for parts in splits]
        self.assertEqual(rows[0], rows[1])
        self.assertNotEqual(rows[0], rows[2])

    def test_the_examples_of_a_document_do_not_depend_on_other_documents(self):
        few, many = [document(index, 30) for index in range(10)], [document(index, 30) for index in range(30)]
        by_document = []
        for texts in (few, many):
            by_document.append(defaultdict(list))
            for rows in self.load("sentence_position", texts, max_examples_per_document=7).values():
                for row in rows:
                    by_document[-1][row["document"]].append(row)
        self.assertContainsSubset(by_document[0], by_document[1])
        for name, rows in by_document[0].items():
            self.assertEqual(rows, by_document[1][name])

    @parameterized.parameters(*((kind, 3) for kind in DISCOURSE_TASKS), ("sentence_ordering", None))
    def test_a_document_gives_a_limited_number_of_examples(self, kind, limit):
        texts = [document(index, 40) for index in range(45)]
        splits = self.load(kind, texts, max_examples_per_document=limit, test_split_percentage=20)
        all_examples = (40 - len(get_task(kind).text_column_name) + 1) * get_task(kind).num_labels
        for rows in splits.values():
            num_labels = get_task(kind).num_labels
            whole = all_examples if limit is None else max(1, limit // num_labels) * num_labels
            self.assertEqual(set(Counter(rows["document"]).values()), {whole})
            labels = Counter(zip(rows["document"], rows["label"], strict=True))
            self.assertEqual(set(labels.values()), {whole // num_labels})  # in each document


class CacheTest(DiscourseTestCase):
    def test_rows_and_what_was_made_of_them_are_found_again(self):
        task = get_task("discourse_coherence")
        file = self.write("train.jsonl", [document(index) for index in range(30)])

        def prepare() -> dict[str, Dataset]:
            preprocessor = TaskPreprocessor(tiny_tokenizer(True), task, sentence_tokens=True)
            splits = load(task, TaskFiles(train_file=file, cache_dir=self.folder), DiscourseOptions())
            return {split: prepare_task(rows, preprocessor) for split, rows in splits.items()}

        first = prepare()
        with (
            mock.patch.object(discourse_tasks, "_examples", side_effect=AssertionError),
            mock.patch.object(TaskPreprocessor, "_layout", side_effect=AssertionError),
        ):
            again = prepare()
        for split, rows in first.items():
            self.assertNotEmpty(rows.cache_files)
            self.assertEqual(again[split].cache_files, rows.cache_files)


class FilterTest(DiscourseTestCase):
    @parameterized.parameters(
        ("It is never empty.", True),
        ("He said, “I have no objection to hearing it.”", True),
        ("これは日本語で書かれた文です。", True),
        ("यह हिन्दी में एक वाक्य है।", True),
        ("هل هذه جملة باللغة العربية؟", True),
        ("Yes.", False),
        ("The Data Model and its Uses", False),
        ("The following names are known:", False),
        ("for (i = 0; i < n; i++) { x[i] += f(*y, **z); } // e.", False),
        ("1 2 3 4 5 6 7 8 9 10 11 12 values.", False),
        ("...", False),
        ("word " * 300 + "end.", False),
    )
    def test_what_is_a_sentence(self, text, expected):
        self.assertEqual(is_sentence(text), expected)

    def test_other_languages_have_their_own_rules(self):
        texts = ["".join(f"这是文档{i}里面的第{j}个句子啊。" for j in range(6)) for i in range(20)]
        rows = self.load("sentence_position", texts, sentence_language="zh", max_examples_per_document=None)
        self.assertEqual(sum(map(len, rows.values())), 20 * 2 * 5)


class ErrorTest(DiscourseTestCase):
    @parameterized.parameters(
        ("sentence_position", 20, 1, {}, "'sentence_position', test split: 0 examples .* needs 5 sentences in a row"),
        ("sentence_position", 2, 9, {}, "There are too few documents .* Add documents"),
        ("discourse_coherence", 5, 9, {}, "needs a sentence of another document"),
        ("sentence_position", 30, 9, {"max_examples_per_document": 0}, "`max_examples_per_document` must be"),
        ("sentence_position", 30, 9, {"test_split_percentage": 90}, "`test_split_percentage` must be above 0 and"),
        ("sentence_position", 30, 9, {"text_column": "body"}, "no column 'body'"),
    )
    def test_what_gives_no_examples_is_named(self, kind, number, num_sentences, options, message):
        with self.assertRaisesRegex(ValueError, message):
            self.load(kind, [document(index, num_sentences) for index in range(number)], **options)

    def test_other_labels_columns_and_names_are_the_users(self):
        spec = TaskSpec(
            benchmark="mine",
            name="order",
            text_column_name=("left", "right"),
            prefix=("left:", "right:"),
            labels={0: "swapped", 1: "kept"},
            label_column_name="order",
            loader="discourse",
            config_name="sentence_ordering",
        )
        options = DiscourseOptions(max_examples_per_document=2)
        file = self.write("train.jsonl", [document(index) for index in range(30)])
        row = load(spec, TaskFiles(train_file=file, cache_dir=self.folder), options)["train"][0]
        self.assertEqual(list(row), ["left", "right", "order", "document"])
        self.assertEqual(spec.targets(row), ["kept"])


SENTENCE = "The {} file is opened, and its first line is read by the caller of this function."  # about 80 characters


def without_spaces(text: str) -> str:
    return "".join(text.split())


class PythonModulesTest(CorpusTestCase):
    def test_examples_are_passages_of_each_module_and_no_document_is_in_two_splits(self):
        task = get_task("python/module_of_passage")
        splits = load_passages(task, TaskFiles(), PythonModulesOptions(test_split_percentage=10))
        self.assertEqual(set(splits), {"train", "validation", "test"})
        texts_of = dict.fromkeys(task.labels.values(), "")
        for document in load_corpus(validation_split_percentage=0)["train"]:
            if document["source"] in texts_of:
                texts_of[document["source"]] += without_spaces(document["text"])
        self.assertGreater(len(splits["train"]), 1000)
        for rows in splits.values():
            self.assertEqual(set(rows["label"]), set(task.labels))
            for row in rows.select(range(0, len(rows), 20)):
                for sentence in get_sentence_splitter()(row["text"]):
                    self.assertIn(without_spaces(sentence), texts_of[task.labels[row["label"]]])
                self.assertBetween(len(row["text"]), MIN_PASSAGE, MAX_PASSAGE)
        texts = [set(rows["text"]) for rows in splits.values()]
        self.assertLen(set.union(*texts), sum(map(len, splits.values())))

    def test_the_test_documents_are_held_out_of_pre_training(self):
        held_out = without_spaces(" ".join(load_corpus()["validation"]["text"]))
        for row in load_passages(get_task("python/module_of_passage"), TaskFiles(), PythonModulesOptions())["test"]:
            self.assertTrue(without_spaces(row["text"]) in held_out)

    def test_files_are_read_as_a_table(self):
        self.write("new.jsonl", '{"text": "A coroutine is awaited.", "label": "asyncio"}')
        files = TaskFiles(test_file=self.path("new.jsonl"), cache_dir=self.path("cache"))
        splits = load_passages(get_task("python/module_of_passage"), files, PythonModulesOptions())
        self.assertEqual([row["label"] for row in splits["test"]], [1])


class PassagesTest(parameterized.TestCase):
    @parameterized.parameters((1, []), (2, [2]), (3, [3]), (7, [3, 3]), (8, [3, 3, 2]))
    def test_they_are_whole_sentences_in_order_as_many_as_there_is_room_for(self, number, expected):
        sentences = [SENTENCE.format(index) for index in range(number)]
        found = list(passages(" ".join(sentences)))
        self.assertEqual([text.count("The ") for text in found], expected)
        self.assertEqual(" ".join(found), " ".join(sentences[: sum(expected)]))
