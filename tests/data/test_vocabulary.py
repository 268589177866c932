import functools
import re
import unicodedata

import sentencepiece
from absl.testing import parameterized
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer, T5Tokenizer

from helpers import SENTENCES, CorpusTestCase
from hf_depth.data.default_corpus import python_reference_documents
from hf_depth.data.tokenization import TextEncoder, sentinel_token_ids
from hf_depth.data.vocabulary import train_tokenizer


@functools.cache
def small_tokenizer() -> T5Tokenizer:
    return train_tokenizer(SENTENCES, 300)


@functools.cache
def long_texts() -> list[str]:
    return [document["text"] for document in python_reference_documents()[:60]]


class TrainTokenizerTest(CorpusTestCase):
    def train(self, texts: list[str] | None = None, vocab_size=1000, **arguments) -> T5Tokenizer:
        texts = long_texts() if texts is None else texts
        return train_tokenizer(texts, vocab_size, self.path("tokenizer"), **arguments)

    def test_ids_are_those_of_t5(self):
        tokenizer = self.train()
        self.assertIsInstance(tokenizer, T5Tokenizer)
        self.assertLen(tokenizer, 1000)
        self.assertEqual(tokenizer.convert_ids_to_tokens([0, 1, 2]), ["<pad>", "</s>", "<unk>"])
        self.assertEqual((tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id), (0, 1, 2))
        self.assertEqual(sentinel_token_ids(tokenizer).tolist(), list(range(999, 899, -1)))
        self.assertIsNone(tokenizer.bos_token)

    def test_the_saved_tokenizer_is_the_returned_one_and_training_repeats(self):
        tokenizer = self.train()
        saved = AutoTokenizer.from_pretrained(self.path("tokenizer"))
        self.assertEqual(saved.backend_tokenizer.to_str(), tokenizer.backend_tokenizer.to_str())
        self.assertEqual(self.train().backend_tokenizer.to_str(), tokenizer.backend_tokenizer.to_str())

    def test_ids_are_those_of_sentencepiece_and_decode_to_the_text(self):
        texts = long_texts()
        ids = self.train()(texts, add_special_tokens=False)["input_ids"]
        model = sentencepiece.SentencePieceProcessor(model_file=self.path("tokenizer/spiece.model"))
        self.assertEqual(ids, model.encode(texts))
        for text, decoded in zip(texts, model.decode(ids), strict=True):
            self.assertEqual(decoded, unicodedata.normalize("NFKC", " ".join(text.split())))

    @given(st.text("aZ9 <>_/[]{}!?.,;:'\"\\%&*()@#$^+=|~`-"))
    def test_printable_ascii_is_always_known(self, text):
        tokenizer = small_tokenizer()
        ids = TextEncoder(tokenizer)([text])[0]
        self.assertNotIn(tokenizer.unk_token_id, ids)
        self.assertEqual(tokenizer.decode(ids), " ".join(text.split()))

    @parameterized.parameters(
        (SENTENCES, 10_000, "`vocab_size`=10000 cannot be trained on this text: it gives at most \\d+ ids. Lower"),
        (SENTENCES, 150, "`vocab_size`=150 .* its characters alone need \\d+ ids. Raise `vocab_size`"),
        (SENTENCES, 100, "`vocab_size` must be larger than its 100 sentinels, got 100"),
        ([""], 1000, "There is no text to train a vocabulary on"),
        ("Some text.", 300, r"`texts` must be several documents.*`\[text\]`"),
    )
    def test_a_vocabulary_that_does_not_fit_the_text_is_refused_with_the_number_that_does(self, texts, size, message):
        with self.assertRaisesRegex(ValueError, message):
            self.train(texts, size)

    def test_a_smaller_vocabulary_is_taken_when_allowed(self):
        with self.assertRaises(ValueError) as refused:
            self.train(SENTENCES, 10_000)
        most = int(re.search("at most (\\d+)", str(refused.exception))[1])
        self.assertLen(self.train(SENTENCES, 10_000, allow_fewer=True), most)
