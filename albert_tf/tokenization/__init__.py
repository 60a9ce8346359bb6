"""Tokenisation: SentencePiece models (the English releases) and WordPiece vocabularies (the Chinese ones).

`load_tokenizer` tells the two apart by the file's content. Reading order: normalization (the rules on characters),
tokenizer (what both kinds share), unigram (SentencePiece), wordpiece, loading. Nothing here needs TensorFlow.
"""

from albert_tf.tokenization.loading import find_vocabulary, load_tokenizer
from albert_tf.tokenization.tokenizer import Encoding, Tokenizer
from albert_tf.tokenization.unigram import SentencePieceTokenizer
from albert_tf.tokenization.unknown import warn_of_unknown
from albert_tf.tokenization.wordpiece import WordPieceTokenizer

__all__ = [
    "Encoding",
    "SentencePieceTokenizer",
    "Tokenizer",
    "WordPieceTokenizer",
    "find_vocabulary",
    "load_tokenizer",
    "warn_of_unknown",
]
