"""
Writes folders of shards, see [`~hf_depth.data.shards.ShardFolder`].

A shard holds the examples of some consecutive documents, in their order. Which documents these are does not depend on
the number of processes. A shard is written aside and renamed when it is on the disk: a preparation that was killed
goes on with the shards that are missing.
"""

import hashlib
import json
import logging
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from multiprocessing import connection, parent_process
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import tokenizers
from datasets import Dataset
from datasets.utils import tqdm
from filelock import FileLock, Timeout
from transformers import PreTrainedTokenizerBase

from ..disk import (
    MANIFEST_FILE,
    UNFINISHED_FOLDER,
    damaged_file,
    file_entries,
    read_manifest,
    replace_text,
    sync_folder,
    write_manifest,
)
from .base_objective import Documents, Objective, summed_statistics
from .files import check_text_column, without_format
from .metadata import check_metadata_columns, column_values
from .mixture import DocumentMixture, naming_source
from .preprocessing import EXAMPLES_VERSION, NoExamplesError, dataset_statistics
from .sentences import get_sentence_splitter
from .shards import (
    DOCUMENT_COUNTS,
    PLAN_FILE,
    SHARDS_VERSION,
    TOKENIZER_FOLDER,
    Counts,
    ShardFolder,
    differences,
    example_counts,
    preparation_settings,
    revision_advice,
    source_folder,
    tokenizer_digest,
)
from .streams import DOCUMENTS_AT_ONCE, PACKED_DOCUMENTS_AT_ONCE

logger = logging.getLogger(__name__)

LOCK_FILE = ".lock"  # there while a folder is being prepared
LOCK_TIMEOUT = 5.0  # seconds: the processes of a preparation that was killed end soon after it
SOURCE = "text"  # the name of the only source, where documents are not mixed
SHARD_SIZE = 16_000_000  # characters of text
ROW_GROUP_SIZE = 1000  # examples that are read together
FOOTER_KEY = b"hf_depth"


class _Part(NamedTuple):
    """
    The documents of a shard.

    Args:
        name: of the file, relative to the folder of the shards.
        columns: what the preprocessor reads of the documents.
        digest: of these columns.
    """

    name: str
    columns: dict[str, list]
    digest: str


def prepare_shards(
    corpus: Mapping[str, Documents | Mapping[str, Documents]],
    objective: Objective,
    folder: str | os.PathLike,
    *,
    text_column: str = "text",
    num_proc: int | None = None,
    shard_size: int = SHARD_SIZE,
    text: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> ShardFolder:
    """
    Prepare documents as [`Objective.prepare`] does, and write the examples to a folder of shards.

    Documents are read one after the other and held no longer than their shard takes, so that the memory does not grow
    with the corpus, if it is streamed. What an earlier call with the same arguments has written is not prepared again.

    Args:
        corpus: splits, see [`load_corpus`]; each one data set, or several by the names of their sources. How those of
            a [`DocumentMixture`] are mixed is kept as well.
        objective: with its tokenizer, which is saved as well.
        folder: for the shards; new, empty, or that of an earlier call.
        text_column: the column that holds the documents, but for the sources of a [`DocumentMixture`].
        num_proc: processes.
        shard_size: characters of text for each shard.
        text: what identifies the documents, for the manifest.
        overwrite: prepare anew what is there.

    Returns:
        [`ShardFolder`]: the finished folder.

    Raises:
        `ValueError`: if the folder holds something else, if no example comes of a source, or as
            [`Objective.prepare_splits`].

    >>> import tempfile
    >>> from datasets import Dataset
    >>> from hf_depth import SpanCorruptionObjective, prepare_shards, train_tokenizer
    >>> documents = Dataset.from_dict({"text": ["The dog barked.", "The cat slept.", ""]})
    >>> tokenizer = train_tokenizer(documents["text"], vocab_size=300, allow_fewer=True)
    >>> objective = SpanCorruptionObjective(tokenizer, max_source_length=64)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     shards = prepare_shards({"train": documents}, objective, folder)
    ...     [tokenizer.decode(ids) for ids in shards.sources("train", cache_dir=folder)["text"]["input_ids"]]
    ['The dog barked.', 'The cat slept.']
    >>> shards.counts["train"]["text"]["documents"], shards.counts["train"]["text"]["documents_dropped"]
    (3, 1)
    """
    folder = Path(folder)
    plan = _plan(objective, shard_size, text or {})
    mixing = getattr(corpus["train"], "mixing", None) if "train" in corpus else None
    mixing = mixing and asdict(mixing)
    is_begun = _is_begun(folder)
    with _alone_in(folder):
        if is_begun and not overwrite and _is_finished(folder, plan):
            logger.info(f"{folder} is finished already.")
            manifest = read_manifest(folder)
            if manifest["mixing"] != mixing:  # which is for the runs: no example depends on it
                write_manifest(folder, **manifest | {"mixing": mixing})
            return ShardFolder.open(folder)
        parts = _documents_by_source(corpus, objective, text_column)
        _begin(folder, plan, objective.tokenizer, overwrite)
        names = sorted(f"{TOKENIZER_FOLDER}/{path.name}" for path in (folder / TOKENIZER_FOLDER).iterdir())
        files, counts = file_entries(folder, names, sync=True), {}
        for split, source, documents, column in parts:
            writer = _ShardWriter.of(objective, column, folder, split)
            shards = _write_source(writer, documents, split, source, shard_size, num_proc)
            files |= {name: {key: shards[name][key] for key in ("examples", "size", "sha256")} for name in shards}
            counts.setdefault(split, {})[source] = summed_statistics(shard["counts"] for shard in shards.values())
            _report_dropped(split, source, counts[split][source])
        for split in counts:
            objective.report(example_counts(summed_statistics(counts[split].values())), split)
        write_manifest(folder, files, **plan, sources=counts, mixing=mixing)
        shutil.rmtree(folder / UNFINISHED_FOLDER, ignore_errors=True)
        return ShardFolder.open(folder)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """No other process prepares the folder meanwhile."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK_FILE, timeout=LOCK_TIMEOUT)
    try:
        lock.acquire()
    except Timeout:
        raise ValueError(
            f"`tokenized_dataset_dir` {folder} is being prepared by another process. Wait for its end, or name "
            "another folder."
        ) from None
    try:
        yield
    finally:
        (folder / LOCK_FILE).unlink(missing_ok=True)
        lock.release()


def _plan(objective: Objective, shard_size: int, text: Mapping[str, Any]) -> dict[str, Any]:
    """What the shards depend on, as JSON."""
    versions = {"format": SHARDS_VERSION, "examples": EXAMPLES_VERSION, "tokenizers": tokenizers.__version__}
    language = objective.settings.get("sentence_language")
    if language is not None:
        versions["sentences"] = get_sentence_splitter(language).version
    plan = {
        "versions": versions,
        "tokenizer": tokenizer_digest(objective.tokenizer),
        "settings": preparation_settings(objective),
        "shard_size": shard_size,
        "text": text,
    }
    return json.loads(json.dumps(plan, default=str))


def begun_tokenizer_folder(folder: str | os.PathLike) -> str | None:
    """
    The tokenizer of a folder whose preparation has begun, by which it goes on; `None` before.

    Args:
        folder: for shards.

    Raises:
        `ValueError`: if it holds something else.
    """
    return str(Path(folder, TOKENIZER_FOLDER)) if _is_begun(Path(folder)) else None


def _is_begun(folder: Path) -> bool:
    names = {item.name for item in folder.iterdir()} if folder.is_dir() else set()
    is_begun = MANIFEST_FILE in names or (folder / UNFINISHED_FOLDER / PLAN_FILE).is_file()
    others = names - {UNFINISHED_FOLDER, TOKENIZER_FOLDER, LOCK_FILE}
    if others and not is_begun:
        raise ValueError(
            f"`tokenized_dataset_dir` {folder} is no folder of shards, but holds {min(others)}. Name a new folder."
        )
    return is_begun


def _is_finished(folder: Path, plan: Mapping[str, Any]) -> bool:
    """Whether a folder holds what is planned; files of it that are damaged are removed, to be written again."""
    try:
        manifest = read_manifest(folder)
    except ValueError as error:
        raise ValueError(f"`tokenized_dataset_dir` {folder}: {error}. Begin anew by `overwrite_cache`.") from error
    if manifest is None:
        return False
    _check_same(folder, manifest, plan)
    bad = [name for name, entry in manifest["files"].items() if damaged_file(folder, {name: entry})]
    for name in bad:
        logger.warning(f"{folder}/{name} is missing or damaged, and is prepared again.")
        (folder / name).unlink(missing_ok=True)
    return not bad


def _check_same(folder: Path, saved: Mapping[str, Any], plan: Mapping[str, Any]) -> None:
    changed = differences({name: saved.get(name) for name in plan}, plan)
    if changed:
        raise ValueError(
            f"`tokenized_dataset_dir` {folder} holds another preparation, with {', '.join(changed)}. Choose another "
            f"folder, or prepare this one anew by `overwrite_cache`.{revision_advice(changed)}"
        )


def _begin(folder: Path, plan: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase, overwrite: bool) -> None:
    """Make the folder one of this preparation, unless it is one of something else."""
    path = folder / UNFINISHED_FOLDER / PLAN_FILE
    if path.is_file() and not overwrite:
        try:
            begun = dict(json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"`tokenized_dataset_dir`: {path} cannot be read ({error}). Begin anew by `overwrite_cache`."
            ) from error
        _check_same(folder, begun, plan)
        logger.info(f"Going on with the shards in {folder}")
    (folder / MANIFEST_FILE).unlink(missing_ok=True)
    shutil.rmtree(folder / UNFINISHED_FOLDER, ignore_errors=True)
    if overwrite:
        for shard in folder.glob("*/*/*.parquet"):
            shard.unlink()
    path.parent.mkdir(parents=True)
    tokenizer.save_pretrained(folder / TOKENIZER_FOLDER)  # before the plan, which says that it is complete
    replace_text(path, json.dumps(plan, indent=2))
    sync_folder(path.parent)


def _documents_by_source(
    corpus: Mapping[str, Documents | Mapping[str, Documents]], objective: Objective, text_column: str
) -> list[tuple[str, str, Documents, str]]:
    """Split, source, documents and text column of all that is to be prepared, checked before any of it is written."""
    parts = []
    for split, documents in corpus.items():
        sources = dict(documents) if isinstance(documents, Mapping) else {SOURCE: documents}
        folders = [source_folder(source) for source in sources]
        double = [source for source, name in zip(sources, folders, strict=True) if folders.count(name) > 1]
        if double:
            raise ValueError(f"The sources {', '.join(map(repr, double))} would share one folder. Rename them.")
        named = documents.sources if isinstance(documents, DocumentMixture) else {}
        for source, part in sources.items():
            part = without_format(part)
            column = named[source].text_column if source in named else text_column
            with naming_source(source) if source in named else nullcontext():
                check_text_column(part, column)
                check_metadata_columns(part, objective.metadata_columns, column)
            parts.append((split, source, part, column))
    return parts


def _write_source(
    writer: "_ShardWriter", documents: Documents, split: str, source: str, shard_size: int, num_proc: int | None
) -> dict[str, dict[str, Any]]:
    """Write the shards of a source that are missing; what is to be known of all of them, by their names."""
    place = f"{split}/{source_folder(source)}"
    for folder in (writer.folder, writer.folder / UNFINISHED_FOLDER):
        (folder / place).mkdir(parents=True, exist_ok=True)
    shards = {}

    def missing() -> Iterator[_Part]:
        for part in _parts(documents, writer, shard_size, place):
            shards[part.name] = writer.written(part)
            if shards[part.name] is None:
                yield part

    with tqdm(desc=f"Preparing {place}", unit=" shards") as progress:
        for name, shard in _map(writer, missing(), num_proc):
            shards[name] = shard
            progress.update()
    for path in (writer.folder / place).glob("*.parquet"):
        if f"{place}/{path.name}" not in shards:  # of a text that was longer when the preparation began
            path.unlink()
    if not any(shard["examples"] for shard in shards.values()):
        raise NoExamplesError(f"No document of {place} holds enough text for an example.")
    return shards


def _parts(documents: Documents, writer: "_ShardWriter", shard_size: int, place: str) -> Iterator[_Part]:
    """The documents of each shard: as many as have `shard_size` characters; none are parted that are joined."""
    number, rows, size = 0, [], 0
    for row in _rows(documents, writer.columns):
        rows.append(row)
        size += sum(len(value) for value in row if isinstance(value, str))
        if size >= shard_size and (not writer.is_joined or len(rows) % writer.documents_at_once == 0):
            yield _part(place, number, writer.columns, rows)
            number, rows, size = number + 1, [], 0
    if rows:
        yield _part(place, number, writer.columns, rows)


def _rows(documents: Documents, columns: tuple[str, ...]) -> Iterator[tuple]:
    for batch in documents.iter(DOCUMENTS_AT_ONCE):
        yield from column_values(batch, columns)


def _part(place: str, number: int, columns: tuple[str, ...], rows: list[tuple]) -> _Part:
    digest = hashlib.blake2b(digest_size=16)
    for row in rows:
        digest.update(json.dumps(row, default=str).encode())
    values = map(list, zip(*rows, strict=True))
    return _Part(f"{place}/{number:05}.parquet", dict(zip(columns, values, strict=True)), digest.hexdigest())


def _map(writer: "_ShardWriter", parts: Iterable[_Part], num_proc: int | None) -> Iterator[tuple[str, dict[str, Any]]]:
    """The shards as they are written. Of the documents, hardly more are held than the processes work on."""
    if not num_proc or num_proc == 1:
        yield from map(writer, parts)
        return
    with ProcessPoolExecutor(num_proc, initializer=_start_worker, initargs=(writer,)) as pool:
        running = set()
        try:
            for part in parts:
                running.add(pool.submit(_write_in_worker, part))
                if len(running) > num_proc:
                    done, running = wait(running, return_when=FIRST_COMPLETED)
                    yield from (future.result() for future in done)
            while running:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                yield from (future.result() for future in done)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


_worker: dict[str, "_ShardWriter"] = {}  # of this process, if it is one of the pool


def _start_worker(writer: "_ShardWriter") -> None:
    """Set up a process of the pool: one thread, no signal handlers of a script, and an end with its parent."""
    _worker["writer"] = writer
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent as well, which waits for the shards
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    connection.wait([parent_process().sentinel])
    os._exit(1)


def _write_in_worker(part: _Part) -> tuple[str, dict[str, Any]]:
    return _worker["writer"](part)


@dataclass
class _ShardWriter:
    """
    Writes the shard of some documents.

    Args:
        folder: of all shards.
        preprocessor: of the objective.
        is_joined: whether documents are joined that are prepared together.
        min_sentences: examples with fewer are left out.
        unk_token_id: for the counts.
        id_type: of the integers in lists: the smallest that holds the vocabulary.
    """

    folder: Path
    preprocessor: Callable[[dict[str, list]], dict[str, list]]
    is_joined: bool
    min_sentences: int
    unk_token_id: int | None
    id_type: pa.DataType

    @classmethod
    def of(cls, objective: Objective, text_column: str, folder: Path, split: str) -> "_ShardWriter":
        make = objective.training_preprocessor if split == "train" else objective.preprocessor
        preprocessor = make(text_column)
        return cls(
            folder,
            preprocessor,
            getattr(preprocessor, "joins_documents", False),
            objective.min_sentences,
            objective.tokenizer.unk_token_id,
            id_type(len(objective.tokenizer)),
        )

    @property
    def columns(self) -> tuple[str, ...]:
        return self.preprocessor.input_columns

    @property
    def documents_at_once(self) -> int:
        return PACKED_DOCUMENTS_AT_ONCE if self.is_joined else DOCUMENTS_AT_ONCE

    def written(self, part: _Part) -> dict[str, Any] | None:
        """What is known of a shard that holds these documents already, `None` if it is missing."""
        path = self.folder / part.name
        if not path.is_file():
            return None
        footer = json.loads(pq.read_schema(path).metadata[FOOTER_KEY])
        if footer.pop("digest") != part.digest:  # the text has changed
            return None
        return footer | file_entries(self.folder, [part.name])[part.name]

    def __call__(self, part: _Part) -> tuple[str, dict[str, Any]]:
        tables, counts = [], dict.fromkeys(DOCUMENT_COUNTS, 0)
        counts["documents"] = len(part.columns[self.columns[0]])
        for start in range(0, counts["documents"], self.documents_at_once):
            batch = {name: part.columns[name][start : start + self.documents_at_once] for name in self.columns}
            tables.append(self._examples(self.preprocessor(batch), counts))
        table = pa.concat_tables(tables)
        known = {"examples": len(table), "counts": counts | dataset_statistics(Dataset(table), self.unk_token_id)}
        aside = self.folder / UNFINISHED_FOLDER / part.name
        footer = {FOOTER_KEY: json.dumps(known | {"digest": part.digest})}
        pq.write_table(table.replace_schema_metadata(footer), aside, row_group_size=ROW_GROUP_SIZE, compression="zstd")
        described = file_entries(aside.parent, [aside.name], sync=True)[aside.name]
        os.replace(aside, self.folder / part.name)
        sync_folder((self.folder / part.name).parent)
        return part.name, known | described

    def _examples(self, columns: dict[str, list], counts: Counts) -> pa.Table:
        """The examples that are kept, with small integers in lists; what is left out is counted."""
        table = pa.Table.from_pydict(columns, schema=self.preprocessor.features.arrow_schema)
        kept = table.filter(pc.greater(pc.list_value_length(table["input_ids"]), 0))
        counts["documents_dropped"] += len(table) - len(kept)
        if self.min_sentences > 1:
            table = kept
            kept = table.filter(pc.greater_equal(pc.list_value_length(table["sentence_lengths"]), self.min_sentences))
            counts["examples_dropped"] += len(table) - len(kept)
        fields = [pa.field(field.name, _narrow(field.type, self.id_type)) for field in kept.schema]
        try:
            return kept.cast(pa.schema(fields))
        except pa.ArrowInvalid as error:  # a length beyond the vocabulary
            raise ValueError(
                f"The examples do not fit into integers of type {self.id_type}: {error}. Lower `max_source_length`."
            ) from error


def id_type(vocab_size: int) -> pa.DataType:
    """
    The smallest type of integers that holds all ids of a vocabulary.

    >>> id_type(32128), id_type(65536), id_type(65537)
    (DataType(uint16), DataType(uint16), DataType(uint32))
    """
    return pa.uint16() if vocab_size <= 1 << 16 else pa.uint32()


def _narrow(kind: pa.DataType, integer: pa.DataType) -> pa.DataType:
    """Ids and lengths, which stand in lists, become small; a count, such as that of cut tokens, may be large."""
    return pa.list_(integer) if pa.types.is_list(kind) and pa.types.is_integer(kind.value_type) else kind


def _report_dropped(split: str, source: str, counts: Counts) -> None:
    if counts["documents_dropped"]:
        logger.warning(
            f"{split}/{source}: dropped {counts['documents_dropped']:,} of {counts['documents']:,} documents with too "
            "little text for an example."
        )
    if counts["examples_dropped"]:
        number = counts["examples"] + counts["examples_dropped"]
        logger.warning(
            f"{split}/{source}: left out {counts['examples_dropped']:,} of {number:,} examples: too few sentences "
            "(`min_sentences`)."
        )
