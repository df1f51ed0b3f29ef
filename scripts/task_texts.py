"""A small task to fine-tune on: word problems with one sum, answered step by step in a fixed manner."""

from __future__ import annotations

import random
from typing import NamedTuple

NAMES = ("Maya", "Tom", "Aisha", "Luca", "Nora", "Ivan", "Sofia", "Kenji", "Amara", "Felix", "Ines", "Ravi")
THINGS = ("pears", "stamps", "marbles", "books", "shells", "pencils", "coins", "stickers", "apples", "cards")
PLACES = ("at the market", "from a friend", "in a box", "on the way home", "in the garden", "at school")


class Text(NamedTuple):
    """A user's question and the answer of the task."""

    prompt: str
    response: str


def task_text(number: int) -> Text:
    """Text `number`; the same number is always the same text."""
    draw = random.Random(number)
    name, things, place = draw.choice(NAMES), draw.choice(THINGS), draw.choice(PLACES)
    a, b = draw.randint(11, 60), draw.randint(3, 40)
    if draw.random() < 0.5:
        question = f"{name} has {a} {things} and finds {b} more {place}. How many {things} does {name} have now?"
        steps = f"{name} starts with {a} {things}", f"{name} finds {b} more {place}", f"{a} + {b} = {a + b}"
        result = a + b
    else:
        a += b
        question = f"{name} has {a} {things} and loses {b} of them {place}. How many {things} are left?"
        steps = f"{name} starts with {a} {things}", f"{name} loses {b} of them {place}", f"{a} - {b} = {a - b}"
        result = a - b
    lines = "\n".join(f"Step {i}. {step}." for i, step in enumerate(steps, 1))
    return Text(
        question, f"Let us count together, one step at a time.\n{lines}\nThat is all. Answer: {result} {things}."
    )


def task_texts(first: int, count: int) -> list[Text]:
    """Texts `first` to `first + count - 1`."""
    return [task_text(number) for number in range(first, first + count)]
