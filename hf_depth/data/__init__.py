"""From text to batches: files, corpora, vocabularies, sentences, windows of token ids, corruption and collators."""
