from absl.testing import parameterized

from helpers import CorpusTestCase
from hf_depth.data.corpus import load_corpus
from hf_depth.data.sentences import get_sentence_splitter
from hf_depth.tasks.loaders.python_modules import MAX_CHARACTERS, MIN_CHARACTERS, PythonModulesOptions, load, passages
from hf_depth.tasks.registry import get_task
from hf_depth.tasks.sources import TaskFiles

SENTENCE = "The {} file is opened, and its first line is read by the caller of this function."  # about 80 characters


def without_spaces(text: str) -> str:
    return "".join(text.split())


class PythonModulesTest(CorpusTestCase):
    def test_examples_are_passages_of_each_module_and_no_document_is_in_two_splits(self):
        task = get_task("python/module_of_passage")
        splits = load(task, TaskFiles(), PythonModulesOptions(test_split_percentage=10))
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
                self.assertBetween(len(row["text"]), MIN_CHARACTERS, MAX_CHARACTERS)
        texts = [set(rows["text"]) for rows in splits.values()]
        self.assertLen(set.union(*texts), sum(map(len, splits.values())))

    def test_the_test_documents_are_held_out_of_pre_training(self):
        held_out = without_spaces(" ".join(load_corpus()["validation"]["text"]))
        for row in load(get_task("python/module_of_passage"), TaskFiles(), PythonModulesOptions())["test"]:
            self.assertTrue(without_spaces(row["text"]) in held_out)

    def test_files_are_read_as_a_table(self):
        self.write("new.jsonl", '{"text": "A coroutine is awaited.", "label": "asyncio"}')
        files = TaskFiles(test_file=self.path("new.jsonl"), cache_dir=self.path("cache"))
        splits = load(get_task("python/module_of_passage"), files, PythonModulesOptions())
        self.assertEqual([row["label"] for row in splits["test"]], [1])


class PassagesTest(parameterized.TestCase):
    @parameterized.parameters((1, []), (2, [2]), (3, [3]), (7, [3, 3]), (8, [3, 3, 2]))
    def test_they_are_whole_sentences_in_order_as_many_as_there_is_room_for(self, number, expected):
        sentences = [SENTENCE.format(index) for index in range(number)]
        found = list(passages(" ".join(sentences)))
        self.assertEqual([text.count("The ") for text in found], expected)
        self.assertEqual(" ".join(found), " ".join(sentences[: sum(expected)]))
