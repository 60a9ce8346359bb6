"""From raw text to training batches: corpus, vocabulary, sequences, records, masks, dataset."""
