"""Reading SQuAD files, v1.1 and v2.0, with the place of every fault."""

import dataclasses
import json
import os
from collections.abc import Iterator
from typing import Any

from albert_tf import files
from albert_tf.errors import UserError

V1, V2 = "1.1", "2.0"


@dataclasses.dataclass(frozen=True, slots=True)
class GoldAnswer:
    """context[start:start + len(text)] == text."""

    text: str
    start: int


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """A question on a passage. `answers` is None where unknown, empty where the passage has no answer (v2.0)."""

    id: str
    question: str
    context: str
    answers: tuple[GoldAnswer, ...] | None
    version: str | None  # of the file; None where it has no answers to tell it by

    @property
    def label(self) -> tuple[GoldAnswer, ...] | None:
        return self.answers


def read_questions(path: str | os.PathLike, *, with_labels: bool = True) -> list[Question]:
    """Every question of a file in the official layout, in order.

    The version comes from the content: `is_impossible`, or a question without answers among others with, means v2.0.
    Files for prediction need neither `answers` nor `is_impossible`; without labels, they are not looked at.

    Raises UserError naming file and place: layout, repeated ids, an answer that is not at its answer_start, questions
    of both versions.
    """
    articles = _get(files.read_json(path, "SQuAD file"), "data", list, f"{path}: ")
    questions = [(place, context, qa) for place, context, qa in _questions(articles, f"{path}: ")]
    if not questions:
        raise UserError(f"{path} has no questions: expected data[].paragraphs[].qas[]; check the file")
    version = _version([qa for _, _, qa in questions], str(path)) if with_labels else None
    seen: dict[str, str] = {}
    result = []
    for place, context, qa in questions:
        identity = _get(qa, "id", str, place)
        if identity in seen:
            raise UserError(f"{place}id {identity!r} is also at {seen[identity]}; ids must be unique, rename one")
        seen[identity] = place.removeprefix(f"{path}: ").rstrip(": ")
        known = version is not None and "answers" in qa
        answers = _answers(qa, context, f"{place}(id {identity!r}) ") if known else None
        result.append(Question(identity, _text(qa, "question", place), context, answers, version))
    return result


def official_files(data_dir: str | os.PathLike, version: str | None) -> dict[str, str]:
    """train and dev of the version; where it is open, of the one whose files are there.

    Raises UserError where files of both are.
    """
    paths = {
        known: {split: os.path.join(data_dir, f"{split}-v{known}.json") for split in ("train", "dev")}
        for known in (V1, V2)
    }
    if version is None:
        present = [known for known in paths if any(map(os.path.isfile, paths[known].values()))]
        if len(present) > 1:
            raise UserError(f"{data_dir} has files of v{V1} and v{V2}: say which with task squad{V1} or squad{V2}")
        version = present[0] if present else V1
    return paths[version]


def _questions(articles: list, place: str) -> Iterator[tuple[str, str, dict]]:
    """(place, context, question object) for each; a place is "file: data[0].paragraphs[2].qas[1]: "."""
    for a, article in enumerate(articles):
        at_article = f"{place}data[{a}]"
        for p, paragraph in enumerate(_get(article, "paragraphs", list, f"{at_article}: ")):
            at_paragraph = f"{at_article}.paragraphs[{p}]"
            context = _text(paragraph, "context", f"{at_paragraph}: ")
            for q, qa in enumerate(_get(paragraph, "qas", list, f"{at_paragraph}: ")):
                at_question = f"{at_paragraph}.qas[{q}]: "
                if not isinstance(qa, dict):
                    raise UserError(f"{at_question}found {_shown(qa)}, expected an object with id and question")
                yield at_question, context, qa


def _version(questions: list[dict], path: str) -> str | None:
    """The version that the answers show; None where there are none (or empty lists only, and no is_impossible)."""
    flagged = sum("is_impossible" in qa for qa in questions)
    if 0 < flagged < len(questions):
        raise UserError(
            f"{path} mixes versions: {flagged} of {len(questions)} questions have is_impossible; expected it at all of "
            "them (v2.0) or none (v1.1); split the file"
        )
    answered = [qa for qa in questions if "answers" in qa]
    if flagged and answered:
        return V2
    if not any(qa["answers"] for qa in answered):
        return None
    return V1 if all(qa["answers"] for qa in answered) else V2


def _answers(qa: dict, context: str, place: str) -> tuple[GoldAnswer, ...]:
    answers = tuple(_answer(answer, context, place) for answer in _get(qa, "answers", list, place))
    impossible = qa.get("is_impossible", not answers)
    if not isinstance(impossible, bool):
        raise UserError(f"{place}is_impossible is {_shown(impossible)}, expected true or false")
    if impossible == bool(answers):
        raise UserError(
            f"{place}is_impossible is {str(impossible).lower()} beside {len(answers)} answers; expected answers "
            "exactly where it is false; correct one of the two"
        )
    return answers


def _answer(answer: Any, context: str, place: str) -> GoldAnswer:
    text = _text(answer, "text", f"{place}answers: ")
    start = _get(answer, "answer_start", int, f"{place}answers: ")
    found = context[max(start, 0) : max(start, 0) + len(text)]
    if start < 0 or found != text:
        raise UserError(
            f"{place}the answer {_shown(text)} is not at answer_start {start}: found {_shown(found)} there; "
            "answer_start counts characters from 0"
        )
    if not text.strip():
        raise UserError(f"{place}has an answer without text; leave answers empty where there is none (v2.0)")
    return GoldAnswer(text, start)


def _get(value: Any, key: str, kind: type, place: str) -> Any:
    if not isinstance(value, dict):
        raise UserError(f"{place}found {_shown(value)}, expected an object with {key}")
    if key not in value:
        raise UserError(f"{place}has no {key}: found {', '.join(map(str, value)) or 'nothing'}; add it")
    found = value[key]
    if not isinstance(found, kind) or isinstance(found, bool):
        names = {list: "a list", str: "a text", int: "a whole number"}
        raise UserError(f"{place}{key} is {_shown(found)}, expected {names[kind]}")
    return found


def _text(value: Any, key: str, place: str) -> str:
    text = _get(value, key, str, place)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UserError(f"{place}{key} has half a character pair at {error.start}; write whole characters") from error
    return text


def _shown(value: Any) -> str:
    """A value as JSON, cut to one short line."""
    text = json.dumps(value, ensure_ascii=True)
    return text if len(text) <= 60 else f"{text[:57]}..."
