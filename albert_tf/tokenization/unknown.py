"""A warning where the vocabulary does not know much of a text: as a rule it is the vocabulary of some other text."""

import os
import sys

from albert_tf.tokenization.tokenizer import Tokenizer

_USUAL_SHARE = 0.05  # of a text's tokens


def warn_of_unknown(share: float, tokenizer: Tokenizer, source: str | os.PathLike) -> None:
    """Warns on standard error where much of the text of `source` is unknown: `share` of its tokens, no special ones."""
    if share > _USUAL_SHARE:
        print(
            f"WARNING: {source}: {share:.1%} of the tokens are unknown to {tokenizer.path}: is it the vocabulary of "
            "this language, casing and script?",
            file=sys.stderr,
        )
