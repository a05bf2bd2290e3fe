"""Roles that heads play, each against what chance alone would give."""

from headwise.analysis.roles.positional import above, below, itself, next_token, previous, window
from headwise.analysis.roles.punctuation import punctuation
from headwise.analysis.roles.random_sequences import duplicate, induction
from headwise.analysis.roles.relation import Relation, Role, View
from headwise.analysis.roles.sinks import first_token, separator
from headwise.analysis.roles.tokens import MARKS, function_word, mark, number, repeated

#: Every role by name. Adding one: its file, a line here, its test.
ROLES: dict[str, Role] = {
    role.name: role
    for role in (
        Role("previous", "attends to the token before", previous),
        Role("next", "attends to the token after", next_token),
        Role("above", "attends to the patch above", above),
        Role("below", "attends to the patch below", below),
        Role("self", "attends to the token itself", itself),
        Role("window", "attends to the tokens around", window, beyond=("previous", "next", "self", "above", "below")),
        Role("first-token", "parks its attention on the first token", first_token),
        Role("separator", "parks its attention on separators", separator),
        Role("punctuation", "attends to punctuation marks", punctuation, lexical=True),
        *(
            Role(name, f"attends to one kind of mark: {name}", mark(name), within="punctuation", lexical=True)
            for name in MARKS
        ),
        Role("number", "attends to numbers", number, lexical=True),
        Role("function-word", "attends to function words", function_word, lexical=True),
        Role("rare-token", "attends to the rarest tokens of the texts", lexical=True),
        Role("repeated-token", "attends to its own token elsewhere in the text", repeated, lexical=True),
        Role("fixed-offset", "attends to a fixed distance, found by search"),
        Role("induction", "attends to what followed its token before", induction, on="random", lexical=True),
        Role("duplicate-token", "attends to its own token said before", duplicate, on="random", lexical=True),
        Role("coreference", "attends from a mention to what it refers to"),
        Role("broad", "spreads its attention over most tokens, unevenly"),
        Role(
            "confident",
            "puts most of its attention on one token, whichever that is",
            beyond=("previous", "next", "self", "above", "below", "first-token", "repeated-token", "fixed-offset"),
        ),
        Role("dormant", "hands on next to nothing", active=False),
    )
}

__all__ = ["ROLES", "Relation", "Role", "View"]
