import json
import pickle
import re
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
import sentencepiece
from absl.testing import parameterized
from datasets.fingerprint import Hasher
from hypothesis import given
from hypothesis import strategies as st
from transformers import AddedToken, ByT5Tokenizer, T5Config, T5Tokenizer

from helpers import (
    DOCUMENTS,
    SENTENCES,
    t5_vocabulary_tokenizer,
    tiny_tokenizer,
    write_mt5_model,
    write_sentencepiece_model,
)
from hf_depth import DepthConfig, DepthForConditionalGeneration, T5ForConditionalGeneration, add_sentence_tokens
from hf_depth.data import tokenization
from hf_depth.data.sentences import get_sentence_splitter
from hf_depth.data.tokenization import (
    SENTENCE_TOKENS,
    TextEncoder,
    add_mode_tokens,
    check_sentence_tokens,
    encode_sentences,
    eosen_token_id,
    layout_document,
    load_tokenizer,
    mode_token_id,
    sentence_token_ids,
    sentinel_token_ids,
)

SPECIAL_TOKENS = [*SENTENCE_TOKENS, "<eosen>", "</s>", "<pad>", "<unk>", *(f"<extra_id_{i}>" for i in range(100))]
TOKENIZER = tiny_tokenizer(sentence_tokens=True)
ENCODER = TextEncoder(TOKENIZER)
TINY = {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}


def without_white_space(*texts: str) -> str:
    return "".join("".join(texts).split())


class SentenceTokensTest(parameterized.TestCase):
    def test_ids_follow_the_t5_vocabulary_and_fit_a_t5_embedding(self):
        tokenizer = add_sentence_tokens(t5_vocabulary_tokenizer())
        self.assertEqual(sentence_token_ids(tokenizer).tolist(), list(range(32100, 32120)))
        self.assertEqual(eosen_token_id(tokenizer), 32120)
        self.assertEqual(sentinel_token_ids(tokenizer).tolist(), list(range(32099, 31999, -1)))
        self.assertEqual(sentinel_token_ids(tokenizer).dtype, np.int64)

    @parameterized.parameters(1, 5, 20, 64)
    def test_there_are_as_many_as_requested(self, number):
        tokenizer = tiny_tokenizer()
        first = len(tokenizer)
        self.assertIs(add_sentence_tokens(tokenizer, number), tokenizer)
        self.assertEqual(sentence_token_ids(tokenizer).tolist(), list(range(first, first + number)))
        self.assertEqual(eosen_token_id(tokenizer), first + number)

    def test_adding_them_twice_changes_nothing(self):
        tokenizer = tiny_tokenizer(sentence_tokens=True)
        vocabulary, special = tokenizer.get_vocab(), tokenizer.all_special_tokens
        add_sentence_tokens(tokenizer)
        self.assertEqual(tokenizer.get_vocab(), vocabulary)
        self.assertEqual(tokenizer.all_special_tokens, special)

    def test_sentinels_stay_special_tokens(self):
        self.assertContainsSubset(SPECIAL_TOKENS, TOKENIZER.all_special_tokens)
        self.assertEqual(
            TOKENIZER.decode(TOKENIZER.convert_tokens_to_ids(SPECIAL_TOKENS), skip_special_tokens=True), ""
        )

    @parameterized.parameters(19, 21)
    def test_another_number_is_refused_before_anything_changes(self, number):
        tokenizer = tiny_tokenizer(sentence_tokens=True)
        with self.assertRaisesRegex(ValueError, f"already has 20 sentence tokens, {number} were requested"):
            add_sentence_tokens(tokenizer, number)
        self.assertLen(tokenizer, len(TOKENIZER))

    def test_ids_apart_from_each_other_are_refused(self):
        tokenizer = tiny_tokenizer()
        tokenizer.add_tokens(["<eosen>"])
        with self.assertRaisesRegex(ValueError, "must follow each other"):
            add_sentence_tokens(tokenizer)

    def test_a_tokenizer_without_sentinels_gets_them(self):
        tokenizer = T5Tokenizer(extra_ids=0)
        with self.assertRaisesRegex(ValueError, "no sentinel token `<extra_id_0>`. Use a T5 tokenizer"):
            sentinel_token_ids(tokenizer)
        add_sentence_tokens(tokenizer)
        self.assertEqual((len(sentinel_token_ids(tokenizer)), len(sentence_token_ids(tokenizer))), (100, 20))

    def test_no_sentence_tokens_is_no_number(self):
        with self.assertRaisesRegex(ValueError, "`num_sentence_tokens` must be at least 1, got 0"):
            add_sentence_tokens(tiny_tokenizer(), 0)

    @parameterized.parameters(sentence_token_ids, eosen_token_id)
    def test_asking_for_ids_before_they_are_added_names_the_remedy(self, get_ids):
        with self.assertRaisesRegex(ValueError, "call `add_sentence_tokens\\(tokenizer\\)` first"):
            get_ids(tiny_tokenizer())


def tiny_depth_model(**changes) -> DepthForConditionalGeneration:
    """A model that fits `TOKENIZER` but for the changes."""
    ids = sentence_token_ids(TOKENIZER)
    fitting = {
        "vocab_size": len(TOKENIZER),
        "first_sentence_token_id": int(ids[0]),
        "num_sentence_tokens": len(ids),
        "eosen_token_id": eosen_token_id(TOKENIZER),
    }
    return DepthForConditionalGeneration(DepthConfig(**{**TINY, **fitting, **changes}))


class CheckSentenceTokensTest(parameterized.TestCase):
    def test_models_that_fit_pass(self):
        check_sentence_tokens(tiny_depth_model(), TOKENIZER)
        for tokenizer in (TOKENIZER, tiny_tokenizer()):
            check_sentence_tokens(T5ForConditionalGeneration(T5Config(**TINY, vocab_size=len(TOKENIZER))), tokenizer)

    @parameterized.product(
        part=("model", "model.encoder", "model.decoder"),
        name=("first_sentence_token_id", "num_sentence_tokens", "eosen_token_id"),
    )
    def test_another_id_in_any_configuration_is_refused_with_the_line_to_paste(self, part, name):
        model = tiny_depth_model()
        config = {"model": model, "model.encoder": model.encoder, "model.decoder": model.decoder}[part].config
        value = getattr(config, name)
        setattr(config, name, 7)
        message = f"`{part}.config.{name}` is 7, but the tokenizer has {value}"
        with self.assertRaisesRegex(ValueError, re.escape(message)) as raised:
            check_sentence_tokens(model, TOKENIZER)
        self.assertIn('`model = load_model(model.config, tokenizer, model_type="depth")`', str(raised.exception))
        model.name_or_path = "google-t5/t5-small"
        line = "`model = load_model('google-t5/t5-small', tokenizer, model_type=\"depth\")`"
        with self.assertRaisesRegex(ValueError, re.escape(line)):
            check_sentence_tokens(model, TOKENIZER)

    def test_the_default_ids_do_not_fit_another_vocabulary(self):
        model = DepthForConditionalGeneration(DepthConfig(**TINY, vocab_size=32128))
        with self.assertRaisesRegex(ValueError, "`model.config.first_sentence_token_id` is 32100, but the tokenizer"):
            check_sentence_tokens(model, TOKENIZER)

    def test_a_depth_model_needs_a_tokenizer_with_sentence_tokens(self):
        with self.assertRaisesRegex(
            ValueError, r"has no `<sent_0>`.*`add_sentence_tokens\(tokenizer\)`.*load_model\("
        ):
            check_sentence_tokens(tiny_depth_model(), tiny_tokenizer())

    def test_each_token_needs_a_row_of_the_embeddings(self):
        size = len(TOKENIZER) - 1
        model = T5ForConditionalGeneration(T5Config(**TINY, vocab_size=size))
        message = rf"`model.config.vocab_size` is {size}, .* has {size + 1} tokens, .*model_type=\"t5\""
        with self.assertRaisesRegex(ValueError, message):
            check_sentence_tokens(model, TOKENIZER)
        check_sentence_tokens(model, tiny_tokenizer())


class LoadTokenizerTest(parameterized.TestCase):
    def test_a_bare_sentencepiece_model_is_read_as_a_t5_tokenizer_and_a_saved_one_as_itself(self):
        with tempfile.TemporaryDirectory() as folder:
            write_sentencepiece_model(folder)
            bare = load_tokenizer(folder)
            add_sentence_tokens(bare).save_pretrained(folder)
            saved = load_tokenizer(folder)
        self.assertIsInstance(bare, T5Tokenizer)
        self.assertEqual(bare.get_vocab(), TOKENIZER.get_vocab())
        self.assertEqual(saved.get_vocab(), TOKENIZER.get_vocab())

    def test_a_protobuf_that_does_not_go_with_sentencepiece_is_named(self):
        name = "sentencepiece.sentencepiece_model_pb2"
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(sentencepiece, "sentencepiece_model_pb2"):
            write_sentencepiece_model(folder)
            del sentencepiece.sentencepiece_model_pb2
            with mock.patch.dict("sys.modules", {name: None}):
                with self.assertRaisesRegex(ValueError, f"protobuf do not go together: .*{name}.*-U protobuf"):
                    load_tokenizer(folder)

    def test_what_is_no_sentencepiece_model_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "spiece.model").write_text("version https://git-lfs.github.com/spec/v1")
            with self.assertRaisesRegex(ValueError, "cannot be read: it is no SentencePiece model. Name a folder"):
                load_tokenizer(folder)


class MT5Test(parameterized.TestCase):
    """Sentinels that are pieces of the vocabulary, with the mark of a space."""

    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        write_mt5_model(self.folder)

    @parameterized.parameters(
        {},
        {"config.json": {"model_type": "mt5"}},
        {"config.json": {"model_type": "mt5"}, "tokenizer_config.json": {"extra_ids": 0}},
    )
    def test_its_sentinels_are_found_and_none_are_added(self, **files):
        for name, content in files.items():
            Path(self.folder, name).write_text(json.dumps(content))
        tokenizer = load_tokenizer(self.folder)
        size = len(tiny_tokenizer())
        self.assertLen(tokenizer, size)
        self.assertEqual(sentinel_token_ids(tokenizer).tolist(), list(reversed(range(size - 100, size))))
        add_sentence_tokens(tokenizer)
        self.assertLen(tokenizer, size + 21)

    def test_they_are_read_by_a_saved_tokenizer_too(self):
        tokenizer = add_sentence_tokens(load_tokenizer(self.folder))
        with tempfile.TemporaryDirectory() as folder:
            tokenizer.save_pretrained(folder)
            saved = load_tokenizer(folder)
        self.assertEqual(sentinel_token_ids(saved).tolist(), sentinel_token_ids(tokenizer).tolist())
        self.assertEqual(saved.get_vocab(), tokenizer.get_vocab())

    @parameterized.parameters("<extra_id_3>", "a <extra_id_3> b", "▁<extra_id_3>", "a<extra_id_99>b")
    def test_those_written_in_a_text_are_only_characters(self, text):
        tokenizer = load_tokenizer(self.folder)
        (ids,) = TextEncoder(tokenizer)([text])
        self.assertNoCommonElements(ids, sentinel_token_ids(tokenizer).tolist())
        self.assertEqual(TextEncoder(tokenizer)([text]), TextEncoder(tiny_tokenizer())([text]))

    def test_they_are_shown_as_sentinels(self):
        tokenizer = load_tokenizer(self.folder)
        (ids,) = TextEncoder(tokenizer)(["The cat slept."])
        sentinels = sentinel_token_ids(tokenizer)
        shown = tokenizer.decode([sentinels[0], *ids, sentinels[12], tokenizer.eos_token_id])
        self.assertEqual(shown, "<extra_id_0> The cat slept. <extra_id_12></s>")


class ModeTokensTest(parameterized.TestCase):
    def test_a_mode_is_a_special_token_also_of_a_saved_tokenizer(self):
        tokenizer = add_mode_tokens(tiny_tokenizer(), ["[R]"])
        with tempfile.TemporaryDirectory() as folder:
            tokenizer.save_pretrained(folder)
            tokenizer = add_mode_tokens(load_tokenizer(folder), ["[R]", "[S]"])
        size = len(tokenizer)
        self.assertEqual([mode_token_id(tokenizer, mode) for mode in ("[R]", "[S]")], [size - 2, size - 1])
        self.assertNoCommonElements(TextEncoder(tokenizer)(["[R] [S]"])[0], [size - 2, size - 1])

    @parameterized.parameters("</s>", "<pad>", "<extra_id_0>", "<sent_3>")
    def test_a_token_with_a_meaning_of_its_own_is_no_mode(self, mode):
        with self.assertRaisesRegex(ValueError, f"{mode!r} of a denoiser is a token with a meaning of its own"):
            add_mode_tokens(tiny_tokenizer(sentence_tokens=True), [mode])

    @parameterized.parameters("a", "▁the")
    def test_a_piece_of_text_is_no_mode(self, mode):
        tokenizer = tiny_tokenizer()
        for read in (lambda: add_mode_tokens(tokenizer, ["[R]", mode]), lambda: mode_token_id(tokenizer, mode)):
            with self.assertRaisesRegex(ValueError, f"{mode!r} of a denoiser is a piece of the vocabulary"):
                read()
        self.assertLen(tokenizer, len(tiny_tokenizer()))


class TextEncoderTest(parameterized.TestCase):
    @parameterized.parameters(True, False)
    def test_ids_of_ordinary_text_are_those_of_the_tokenizer(self, sentence_tokens):
        tokenizer = tiny_tokenizer(sentence_tokens)
        texts = [*SENTENCES, *DOCUMENTS, "", "  two   spaces\n\n", "naïve façade … “quoted” ﬁ 漢字 🙂\x00"]
        self.assertEqual(TextEncoder(tokenizer)(texts), tokenizer(texts, add_special_tokens=False)["input_ids"])

    def test_no_texts_have_no_ids(self):
        self.assertEqual(ENCODER([]), [])

    @given(st.lists(st.sampled_from([*SPECIAL_TOKENS, " ", "\n", "▁", "<", "word", "<extra_id_100>", "< /s>"])))
    def test_special_tokens_written_in_a_text_are_only_characters(self, pieces):
        text = "".join(pieces)
        (ids,) = ENCODER([text])
        self.assertNoCommonElements(ids, TOKENIZER.all_special_ids)  # every character is in the vocabulary
        shown = TOKENIZER.decode(ids).replace("▁", " ")  # `▁` is how the vocabulary itself writes a space
        self.assertEqual(without_white_space(shown), without_white_space(text.replace("▁", " ")))

    @given(st.text())
    def test_no_text_at_all_reaches_a_special_token_other_than_unknown(self, text):
        special = set(TOKENIZER.all_special_ids) - {TOKENIZER.unk_token_id}
        self.assertNoCommonElements(ENCODER([text])[0], special)

    def test_the_written_unknown_token_is_not_unknown(self):
        self.assertNotIn(TOKENIZER.unk_token_id, ENCODER(["<unk>"])[0])
        self.assertIn(TOKENIZER.unk_token_id, ENCODER(["漢"])[0])

    def test_tokens_that_a_user_added_are_still_found(self):
        tokenizer = tiny_tokenizer(sentence_tokens=True)
        tokenizer.add_tokens(["[NEWLINE]"])
        self.assertIn(len(tokenizer) - 1, TextEncoder(tokenizer)(["a [NEWLINE] b"])[0])

    def test_whole_words_that_a_user_added_are_not_found_within_others(self):
        tokenizer = tiny_tokenizer()
        tokenizer.add_tokens([AddedToken("dog", single_word=True), AddedToken("the cat", single_word=True)])
        texts = ["dogged dog hotdog dog", "the cat, the cats", "bathe cat."]
        self.assertEqual(TextEncoder(tokenizer)(texts), tokenizer(texts, add_special_tokens=False)["input_ids"])

    def test_sentinels_that_are_not_marked_as_special_are_not_found(self):
        tokenizer = T5Tokenizer(extra_ids=0, vocab=[(piece, -1.0) for piece in ("<pad>", "</s>", "<unk>", "▁", "a")])
        tokenizer.add_tokens(["<extra_id_0>", "<extra_id_1>"])
        self.assertNoCommonElements(TextEncoder(tokenizer)(["a <extra_id_1> a"])[0], sentinel_token_ids(tokenizer))

    def test_bytes_of_a_byte_tokenizer_are_never_special(self):
        tokenizer = add_sentence_tokens(ByT5Tokenizer())
        (ids,) = TextEncoder(tokenizer)(["é</s><extra_id_0><sent_2>"])
        self.assertNoCommonElements(ids, tokenizer.all_special_ids)
        self.assertEqual(tokenizer.decode(ids), "é</s><extra_id_0><sent_2>")

    def test_one_vocabulary_has_one_fingerprint_wherever_it_was_loaded_and_however_it_was_used(self):
        used = tiny_tokenizer(sentence_tokens=True)  # each call loads from another folder
        used(DOCUMENTS, padding=True, truncation=True, max_length=8)
        ENCODER(DOCUMENTS)
        self.assertEqual(Hasher.hash(TextEncoder(used)), Hasher.hash(ENCODER))
        self.assertNotEqual(Hasher.hash(TextEncoder(t5_vocabulary_tokenizer())), Hasher.hash(ENCODER))

    def test_kept_words_have_the_ids_that_the_tokenizer_gives_their_text(self):
        tricky = [
            "",
            " ",
            "a\x0bb c\x1cd",
            "e\u00a0f",
            "g\r\nh\t i",
            "\u0301j k\u0301",
            "ﬁn. Ⅷ",
            "(l) -- m's",
            "</s> <sent_2>x",
            "“é” — ‘ª’… €½™",
            "¨ ´ \u00adx \u2028y\u200d \ufe0f z",
        ]
        texts = [*tricky, *DOCUMENTS, *(f"{one}{other}" for one in tricky for other in tricky)]
        for tokenizer in (tiny_tokenizer(sentence_tokens=True), t5_vocabulary_tokenizer()):
            encoder = TextEncoder(tokenizer)
            self.assertTrue(encoder.keeps_words)
            for _ in range(2):  # of the second time, all words are known
                self.assertEqual(encoder(texts), encoder._encode(texts))
        self.assertFalse(TextEncoder(ByT5Tokenizer()).keeps_words)

    @parameterized.parameters(1, 50)
    def test_the_words_that_are_kept_are_limited(self, length):
        encoder = TextEncoder(tiny_tokenizer())
        with mock.patch.object(tokenization, "MAX_CHARACTERS", 100):
            for number in range(40):
                encoder([f"{number:03}" + "word" * length, "and some more"])
                self.assertLessEqual(sum(map(len, encoder._words)), 100 + 3 + 4 * length + 11)
        self.assertEqual(encoder(["word3 and"]), encoder._encode(["word3 and"]))

    def test_a_copy_knows_no_words(self):
        encoder = TextEncoder(tiny_tokenizer())
        encoder(DOCUMENTS)
        copied = pickle.loads(pickle.dumps(encoder))
        self.assertTrue(encoder._words)
        self.assertEqual((copied._words, copied._num_characters), ({}, 0))

    def test_a_tokenizer_that_finds_added_words_encodes_whole_texts(self):
        tokenizer = tiny_tokenizer()
        tokenizer.add_tokens(["of the"])
        encoder = TextEncoder(tokenizer)
        self.assertFalse(encoder.keeps_words)
        self.assertEqual(encoder(DOCUMENTS), [tokenizer.encode(text, add_special_tokens=False) for text in DOCUMENTS])

    def test_a_copy_in_another_process_encodes_alike(self):
        texts = [*DOCUMENTS, "".join(SPECIAL_TOKENS)]
        self.assertEqual(pickle.loads(pickle.dumps(ENCODER))(texts), ENCODER(texts))


class EncodeSentencesTest(parameterized.TestCase):
    def test_sentences_are_encoded_document_by_document(self):
        encoded = encode_sentences([DOCUMENTS[0], "", DOCUMENTS[1]], ENCODER, get_sentence_splitter())
        self.assertEqual(encoded, [ENCODER(SENTENCES[:9]), [], ENCODER(SENTENCES[9:])])

    def test_sentences_of_a_document_have_the_ids_of_the_document(self):
        encoded = encode_sentences(DOCUMENTS, ENCODER, get_sentence_splitter())
        self.assertEqual([sum(sentences, []) for sentences in encoded], ENCODER(DOCUMENTS))

    def test_sentences_without_a_token_are_left_out(self):
        self.assertEqual(
            encode_sentences(["\u200b\n\nWords."], ENCODER, get_sentence_splitter()), [ENCODER(["Words."])]
        )


class LayoutDocumentTest(parameterized.TestCase):
    IDS = {"sentence_token_ids": [100, 101, 102], "eosen_token_id": 120, "eos_token_id": 1}

    @parameterized.parameters(
        ([], [1]),
        ([[5]], [120, 100, 5, 120, 1]),
        ([[5, 6], [7]], [120, 100, 5, 6, 120, 101, 7, 120, 1]),
        ([[5], [6], [7], [8], [9]], [120, 100, 5, 120, 101, 6, 120, 102, 7, 8, 9, 120, 1]),
    )
    def test_sentences_count_up_and_the_tail_shares_the_last_sentence_token(self, sentences, expected):
        self.assertEqual(layout_document(sentences, **self.IDS), expected)

    def test_a_real_document_reads_as_its_sentences(self):
        (sentences,) = encode_sentences(DOCUMENTS[:1], ENCODER, get_sentence_splitter())
        ids = layout_document(
            sentences, sentence_token_ids(TOKENIZER), eosen_token_id(TOKENIZER), TOKENIZER.eos_token_id
        )
        expected = "".join(f"<eosen><sent_{i}>{sentence}" for i, sentence in enumerate(SENTENCES[:9])) + "<eosen></s>"
        self.assertEqual(without_white_space(TOKENIZER.decode(ids)), without_white_space(expected))
        self.assertTrue(all(type(token_id) is int for token_id in ids))
