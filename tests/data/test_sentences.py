import pickle
from unittest import mock

from absl.testing import parameterized
from datasets.fingerprint import Hasher
from hypothesis import given
from hypothesis import strategies as st

from helpers import SENTENCES
from hf_depth.data.sentences import SENTENCEX_LANGUAGES, get_sentence_splitter
from hf_depth.data.tokenization import SENTENCE_TOKENS

SPECIAL_TOKENS = [*SENTENCE_TOKENS, "<eosen>", "</s>", "<pad>", "<unk>", "<extra_id_0>"]


class SentenceSplitterTest(parameterized.TestCase):
    def test_prose_and_dialogue_are_split_into_their_sentences(self):
        self.assertEqual(get_sentence_splitter("en")(" ".join(SENTENCES)), SENTENCES)

    @parameterized.parameters(
        ("A heading\nThe text begins. It goes on.", ["A heading", "The text begins.", "It goes on."]),
        ("One line\nof a paragraph.\n\nanother", ["One line\nof a paragraph.", "another"]),
        ("A list:\n- milk\n- bread and butter", ["A list:", "- milk", "- bread and butter"]),
        ("Dr. No met Mr. Bond at 5 p.m. on Friday.", ["Dr. No met Mr. Bond at 5 p.m. on Friday."]),
        ("", []),
        (" \n\t ", []),
    )
    def test_blank_lines_headings_and_list_items_end_sentences_but_abbreviations_do_not(self, text, sentences):
        self.assertEqual(get_sentence_splitter("en")(text), sentences)

    @parameterized.parameters(
        ("de", "Er kam z. B. am 3. Mai. Wann ging er?", ["Er kam z. B. am 3. Mai.", "Wann ging er?"]),
        ("es", "El Sr. Pérez llegó. ¿Quién es?", ["El Sr. Pérez llegó.", "¿Quién es?"]),
        ("ja", "これは文です。次の文です!", ["これは文です。", "次の文です!"]),
    )
    def test_other_languages_have_rules_of_their_own(self, language, text, sentences):
        self.assertEqual(get_sentence_splitter(language)(text), sentences)

    def test_a_stray_quotation_mark_spoils_no_more_than_its_paragraph(self):
        text = '"Eins ist offen. Und so fort.\nZwei kam. Drei ging.\nVier blieb. "Fünf."'
        self.assertContainsSubset(["Zwei kam.", "Drei ging."], get_sentence_splitter("de")(text))

    @given(
        st.text()
        | st.lists(st.sampled_from([*SENTENCES, *SPECIAL_TOKENS, "\n", "\n\n", " ", '"', "1. "])).map("".join)
    )
    def test_no_character_is_lost_and_no_sentence_is_empty(self, text):
        for language in ("en", "de", "ja"):
            sentences = get_sentence_splitter(language)(text)
            self.assertEqual("".join("".join(sentences).split()), "".join(text.split()))
            self.assertEqual(sentences, [sentence.strip() for sentence in sentences if sentence.strip()])

    @parameterized.product(language=sorted(SENTENCEX_LANGUAGES), space=["\u00a0", "\u2028", "\u202f\n", " \u00a0"])
    def test_a_wide_space_between_a_capital_and_a_full_stop_is_kept(self, language, space):
        text = f"Ab\u00a0cd A{space}. B"
        sentences = get_sentence_splitter(language)(text)
        self.assertEqual("".join("".join(sentences).split()), "".join(text.split()))
        self.assertIn("Ab\u00a0cd", sentences[0])  # as it is in the text

    def test_text_on_which_the_library_fails_is_named(self):
        class PanicException(BaseException):
            pass

        with mock.patch("sentencex.segment", side_effect=PanicException("byte index 3")):
            with self.assertRaisesRegex(ValueError, "cannot split the 'de' text 'Er kam.': byte index 3"):
                get_sentence_splitter("de")("Er kam.")
        with mock.patch("sentencex.segment", side_effect=KeyboardInterrupt), self.assertRaises(KeyboardInterrupt):
            get_sentence_splitter("de")("Er kam.")

    @parameterized.parameters("en", "de")
    def test_another_version_of_the_rules_has_another_fingerprint(self, language):
        fingerprint = Hasher.hash(get_sentence_splitter(language))
        with mock.patch("hf_depth.data.sentences._version", lambda library: "0.0"):
            self.assertNotEqual(Hasher.hash(get_sentence_splitter(language)), fingerprint)

    def test_splitters_of_one_language_are_one_to_pickle_and_datasets(self):
        splitter = get_sentence_splitter("de")
        self.assertEqual(pickle.loads(pickle.dumps(splitter)), splitter)
        self.assertEqual(Hasher.hash(get_sentence_splitter("de")), Hasher.hash(splitter))
        self.assertNotEqual(Hasher.hash(get_sentence_splitter("en")), Hasher.hash(splitter))

    @parameterized.parameters(
        ("EN", "Did you mean 'en'"), ("pt-br", "Did you mean 'pt'"), ("tlh", "Known languages: am, ")
    )
    def test_an_unknown_language_is_refused_with_those_near_to_it(self, language, message):
        with self.assertRaisesRegex(ValueError, message):
            get_sentence_splitter(language)
