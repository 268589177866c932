"""
What a probe reads of an example: features of a model's frozen sentence embeddings, or of a bag of words.

Both turn examples into a matrix, `(num_examples, num_features)`, by what they have learnt of the training examples;
`regularization` are the values that a [`Probe`] chooses from: the inverse of its strength, from strong to weak.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data.tokenization import TextEncoder
from ..errors import UserError
from ..suggestions import suggestion
from ..tasks.spec import TaskSpec
from .embeddings import sentence_embeddings

NORMALIZATIONS = ("standardize", "whiten", "none")

# By `TaskSpec.probe_features`: features of the embeddings of an example, (N, number of columns, D) -> (N, F).
FEATURES: dict[str, Callable[[np.ndarray], list[np.ndarray]]] = {
    "concatenation": lambda x: list(x.swapaxes(0, 1)),
    "first_differences": lambda x: [x[:, 0], *(x[:, 0] - x[:, i] for i in range(1, x.shape[1]))],
    "difference": lambda x: [x[:, 0], x[:, 1], x[:, 0] - x[:, 1]],
    "product": lambda x: [x[:, 0], x[:, 1], np.abs(x[:, 0] - x[:, 1]), x[:, 0] * x[:, 1]],
}


@dataclass(frozen=True)
class ProbeOptions:
    """
    How the examples of a probe are embedded.

    Args:
        layer (`int`, *optional*, defaults to -1), pooling (`str`, *optional*): see [`sentence_embeddings`].
        read_together (`bool`, *optional*, defaults to `False`):
            The encoder reads the text columns of an example as the sentences of one document, in their order, instead
            of each by itself, which is what DiscoEval does.
        normalization (`str`, *optional*, defaults to `"standardize"`):
            Scales embeddings by those of the training examples: `"standardize"` gives each dimension the mean 0 and
            the variance 1, `"whiten"` makes them uncorrelated, too, and `"none"` leaves them as they are.
        batch_size (`int`, *optional*, defaults to 32): documents of one forward pass.

    Raises:
        `ValueError`: if there is no such normalization.
    """

    layer: int = -1
    pooling: str | None = None
    read_together: bool = False
    normalization: str = "standardize"
    batch_size: int = 32

    def __post_init__(self):
        if self.normalization not in NORMALIZATIONS:
            raise UserError(
                f"`normalization` must be one of {', '.join(NORMALIZATIONS)}, got {self.normalization!r}."
                f"{suggestion(str(self.normalization), NORMALIZATIONS)}"
            )


class EmbeddingFeatures:
    """Features of a model's embeddings of the text columns, float32, those that `spec.probe_features` names."""

    title = "embeddings"  # in the log, as in the table of scores
    regularization = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, spec: TaskSpec, options: ProbeOptions
    ):
        self.model, self.tokenizer, self.spec, self.options = model, tokenizer, spec, options
        self.encoder = TextEncoder(tokenizer)
        self.normalizer: Any = None
        self.num_empty_texts = 0  # so far

    def fit_transform(self, rows: Dataset) -> np.ndarray:
        embeddings = self.embed(rows)
        embedded = embeddings[_is_embedded(embeddings)]
        self.normalizer = _normalizer(self.options.normalization).fit(embedded.astype(np.float64))
        return self._features(embeddings)

    def transform(self, rows: Dataset) -> np.ndarray:
        return self._features(self.embed(rows))

    def embed(self, rows: Dataset) -> np.ndarray:
        """
        The embedding of each text of each example, float32 of shape `(num_examples, num_columns, d_model)`; zeros for
        a text without tokens, such as the empty questions of QQP.
        """
        columns = [rows[name][:] for name in self.spec.text_column_name]
        examples = list(zip(*columns, strict=True))
        # Texts occur in several examples: a sentence is moved to the front, or swapped with its neighbour.
        texts = list(dict.fromkeys(text for example in examples for text in example))
        embedded = [text for text, ids in zip(texts, self.encoder(texts), strict=True) if ids]
        places = {text: place for place, text in enumerate(embedded)}
        is_embedded = np.array([[text in places for text in example] for example in examples], dtype=bool)  # (N, C)
        self.num_empty_texts += int((~is_embedded).sum())
        embeddings = np.zeros(
            (*is_embedded.shape, self.model.get_encoder().config.get_text_config().hidden_size), dtype=np.float32
        )
        if self.options.read_together:
            documents = [[text for text in example if text in places] for example in examples]
            embeddings[is_embedded] = self._embed([document for document in documents if document])
        elif embedded:
            chosen = [places[text] for example in examples for text in example if text in places]
            embeddings[is_embedded] = self._embed([[text] for text in embedded])[chosen]
        return embeddings

    def _embed(self, documents: list[list[str]]) -> np.ndarray:
        """The embeddings of all texts, one after the other: float32 of shape `(num_texts, d_model)`."""
        options = {"layer": self.options.layer, "pooling": self.options.pooling, "batch_size": self.options.batch_size}
        embeddings = sentence_embeddings(self.model, self.tokenizer, documents, **options)
        return torch.cat(
            [torch.empty(0, self.model.get_encoder().config.get_text_config().hidden_size), *embeddings]
        ).numpy()

    def _features(self, embeddings: np.ndarray) -> np.ndarray:
        # In float64: whitening magnifies a direction, and the rounding in it, up to a thousand times.
        flat = self.normalizer.transform(embeddings.reshape(-1, embeddings.shape[-1]).astype(np.float64))
        embeddings = flat.reshape(*embeddings.shape[:2], -1) * _is_embedded(embeddings)[..., None]
        return np.concatenate(FEATURES[self.spec.probe_features](embeddings), axis=-1, dtype=np.float32)


def _is_embedded(embeddings: np.ndarray) -> np.ndarray:
    """Which texts have tokens: bool of shape `(num_examples, num_columns)`."""
    return embeddings.any(axis=-1)


def _normalizer(name: str) -> Any:
    from sklearn.decomposition import PCA  # half a second to import
    from sklearn.preprocessing import FunctionTransformer, StandardScaler

    if name == "whiten":  # without directions in which there is nothing but rounding to be magnified
        return PCA(n_components=1 - 1e-6, whiten=True, svd_solver="full")
    return StandardScaler() if name == "standardize" else FunctionTransformer()


class BagOfWords:
    """
    For each text column the tf-idf weights of its tokens, one column beside the other. The tokens are those of the
    model's tokenizer, so that every language has some. `dimensions` is for a hidden layer, which would have as many
    rows as the vocabulary: each text gets at most so many, by a singular value decomposition (latent semantic
    analysis), whose randomness is that of `seed`.
    """

    title = "bag of words"
    regularization = (1e-2, 1e-1, 1.0, 10.0, 100.0)

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, spec: TaskSpec, dimensions: int | None = None, seed: int = 42
    ):
        from sklearn.feature_extraction.text import TfidfVectorizer

        self.encoder, self.spec, self.dimensions, self.seed = TextEncoder(tokenizer), spec, dimensions, seed
        self.vectorizer = TfidfVectorizer(analyzer=list, sublinear_tf=True)
        self.decomposition: Any = None
        self.scale = 1.0  # a network learns slowly from numbers as small as these

    def fit_transform(self, rows: Dataset) -> Any:
        from sklearn.decomposition import TruncatedSVD

        columns = self._tokens(rows)
        weights = self.vectorizer.fit_transform([tokens for column in columns for tokens in column])
        if self.dimensions is not None:
            self.decomposition = TruncatedSVD(min(self.dimensions, *weights.shape), random_state=self.seed)
            self.scale = np.sqrt(np.mean(self.decomposition.fit_transform(weights) ** 2))
        return self._features(columns)

    def transform(self, rows: Dataset) -> Any:
        return self._features(self._tokens(rows))

    def _tokens(self, rows: Dataset) -> list[list[list[int]]]:
        return [self.encoder(rows[name][:]) for name in self.spec.text_column_name]

    def _features(self, columns: list[list[list[int]]]) -> Any:
        from scipy.sparse import hstack

        weights = [self.vectorizer.transform(column) for column in columns]
        if self.decomposition is None:
            return hstack(weights, format="csr")
        features = [self.decomposition.transform(column) / self.scale for column in weights]
        return np.concatenate(features, axis=-1, dtype=np.float32)
