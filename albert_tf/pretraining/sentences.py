"""Text of one document -> its sentences.

Rules, not a model: they need no data, are fast, and fail in ways a reader can predict. A sentence ends at
`. ! ? …` followed by white space and something that is not a lower-case letter, unless the word before a single full
stop is an abbreviation or an initial; scripts with terminators of their own (`。！？` `।` `؟` ...) end there.
"""

import re

MAX_SENTENCE_CHARS = (
    4096  # text without any terminator (tables, lists, dumps) is cut at a space before this many characters
)

_TITLES = frozenset(
    "mr mrs ms dr st prof rev hon capt col gen lt sgt maj cmdr adm gov sen rep pres messrs mme mlle mm mt ft esq vs "
    "viz cf approx dept inc ltd co bros hr frau sra srta".split()
)
_BEFORE_NUMBERS = frozenset(
    "no nos vol vols ch chap fig figs p pp sec art eq ver jan feb mar apr jun jul aug sep sept oct nov dec".split()
)

_OPENERS = "\"'“‘«‹„([{¿¡–—-"
_CLOSERS = "\"'”’»›)]}」』）》】"
_UNSPACED = "。！？｡।॥؟۔։።၊။។"  # terminators of scripts that need no space behind a sentence
# It begins with one set of characters, which is what the regular expression engine searches for fastest.
_CANDIDATE = re.compile(f"([.!?…{_UNSPACED}]+)[{re.escape(_CLOSERS)}]*( ?)")
_PARAGRAPH_END = re.compile(r"\n[^\S\n]*\n\s*")
_WRAPPED_HYPHEN = re.compile(r"-\n(?<=\w-\n)[^\S\n]*(?=\w)")
_DOTTED = re.compile(r"\w{1,2}(?:\.\w{1,2})+")


def split_text(text: str, input_format: str) -> list[str]:
    """Sentences of a document; white space inside a sentence becomes one space.

    input_format "sentences": every line that is not blank is one. "paragraphs": wrapped lines are joined, a blank line
    ends a paragraph, sentences are found in each paragraph.
    """
    if input_format == "sentences":
        return [piece for line in text.split("\n") for piece in _bounded(" ".join(line.split()))]
    text = _WRAPPED_HYPHEN.sub("-", text)
    return [sentence for paragraph in _PARAGRAPH_END.split(text) for sentence in split_paragraph(paragraph)]


def split_paragraph(paragraph: str) -> list[str]:
    """Sentences of one paragraph: 'He met Mr. Hall. "Well?" he said.' -> ['He met Mr. Hall.', '"Well?" he said.']."""
    paragraph = " ".join(paragraph.split())
    sentences, start = [], 0
    for match in _CANDIDATE.finditer(paragraph):
        if _ends_sentence(paragraph, start, match):
            sentences += _bounded(paragraph[start : match.end()].rstrip())
            start = match.end()
    return sentences + _bounded(paragraph[start:])


def _ends_sentence(paragraph: str, start: int, match: re.Match) -> bool:
    terminators, space = match.groups()
    if not space:
        return terminators[-1] in _UNSPACED
    following = paragraph[match.end()]
    if following in _OPENERS:
        following = paragraph[match.end() : match.end() + 16].lstrip(_OPENERS)[:1]
    if following.islower():
        return False  # "Well?" he said; e.g. this
    if terminators != ".":
        return True
    stop = match.start()
    word = paragraph[max(paragraph.rfind(" ", start, stop) + 1, start) : stop].lstrip(_OPENERS)
    folded = word.lower()
    if folded in _TITLES or (len(word) > 2 and _DOTTED.fullmatch(word)):  # Dr. Watson; U.S. Navy; i.e. Monday
        return False
    if len(word) == 1 and word.isalpha() and word != "I":  # J. K. Jerome, but: So do I. They left.
        return False
    if following.isdigit() and folded in _BEFORE_NUMBERS:  # No. 7
        return False
    return not (word.isdigit() and len(word) <= 3 and stop - len(word) == start)  # "1. First item"


def _bounded(sentence: str) -> list[str]:
    """[sentence] as a rule; nothing where it is empty, several pieces where it is longer than any sentence."""
    if len(sentence) <= MAX_SENTENCE_CHARS:
        return [sentence] if sentence else []
    pieces = []
    while len(sentence) > MAX_SENTENCE_CHARS:
        cut = sentence.rfind(" ", 1, MAX_SENTENCE_CHARS)
        cut = cut if cut > 0 else MAX_SENTENCE_CHARS
        pieces.append(sentence[:cut])
        sentence = sentence[cut:].lstrip()
    return [*pieces, sentence] if sentence else pieces
