"""Small folders of shards for tests."""

import hashlib
from pathlib import Path

from datasets import Dataset

from helpers import SENTENCES, CorpusTestCase, tiny_tokenizer
from hf_depth import DepthObjective, PrefixLMObjective, SpanCorruptionObjective
from hf_depth.data.shards import ShardFolder, prepare_shards

TOKENIZER = tiny_tokenizer(sentence_tokens=True)


OBJECTIVES = {
    "depth": lambda **changes: DepthObjective(TOKENIZER, **{"max_source_length": 96} | changes),
    "t5": lambda **changes: SpanCorruptionObjective(TOKENIZER, max_source_length=64, **changes),
    "joined": lambda **changes: SpanCorruptionObjective(TOKENIZER, 64, pack_examples=True, **changes),
    "prefix_lm": lambda **changes: PrefixLMObjective(TOKENIZER, max_source_length=64, **changes),
}


def texts(number: int = 40) -> list[str | None]:
    """Documents of 1 to 8 sentences; some are empty."""
    return [" ".join(SENTENCES[i % 9 :][: 1 + (i * 5) % 8]) if i % 11 else "" for i in range(number)]


def documents(number: int = 40) -> Dataset:
    return Dataset.from_dict({"text": texts(number), "title": ["a title"] * number})


def contents(folder: str) -> dict[str, str]:
    """A hash of each file below a folder."""
    files = (path for path in Path(folder).rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


class ShardsTestCase(CorpusTestCase):
    def prepare(self, kind: str = "depth", number: int = 40, name: str = "shards", **options) -> ShardFolder:
        """Small shards, of five or six documents."""
        options = {"shard_size": 2000, "text": {"source": "tests"}} | options
        return prepare_shards({"train": documents(number)}, OBJECTIVES[kind](), self.path(name), **options)

    def examples(self, folder: ShardFolder, split: str = "train"):
        return folder.sources(split)["text"]
