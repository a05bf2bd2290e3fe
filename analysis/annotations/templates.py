"""The sentence templates and the words that the coreference set is made of: data only.

How a template is written: `[A]` is a person or several (`[A:noun]` never a name), `[T:thing]` a thing or
several, `[L=the letter]` this very phrase; every one of them is a mention. `<A|B:he>` is the anaphor, a pronoun
of that form (`man`: "the man", "the woman", "those people") that stands for A in some texts and for B in others.
`{was}` agrees with the anaphor, `{was:A}` with A; every other `{name}` is a word of the list of that name.
The anaphor's reading is licit for each of its antecedents (reflexives only with their local subject, pronouns
never with it), so gender and number decide.
"""

from __future__ import annotations

#: Name to template; results on these may be used to choose heads.
DEV = {
    "subject-relative": "[A:noun] who {met} [B] {said} that <A|B:he> {was} {tired}.",
    "object-relative": "[A:noun] whom [B] {met} {said} that <A|B:he> {was} {tired}.",
    "told-that": "[A] told [B] that <A|B:he> {was} {tired}.",
    "because": "[A] {met} [B] because <A|B:he> {was} {tired}.",
    "when-first": "When [A] {met} [B], <A|B:he> {was} {tired}.",
    "two-sentences": "[A] {met} [B] {when}. Then <A|B:he> walked home.",
    "three-sentences": "[A] arrived {when}. [B] came much later. Nobody knew that <A|B:he> {was} {tired}.",
    "possessive-about": "[A] talked to [B] about <A|B:his> plans.",
    "reflexive-subject-relative": "[A:noun] who {met} [B] blamed <A:himself>.",
    "reflexive-object-relative": "[A:noun] whom [B] {met} hurt <A:himself> {when}.",
    "reflexive-embedded": "[A] {said} that [B] had hurt <B:himself>.",
    "reflexive-next-to": "[A:noun] next to [B] looked at <A:himself> for a long time.",
    "knew-that": "[A] knew that [B] {met} <A:him>.",
    "passive-after": "[A] {was:A} {met} by [B] after <A|B:he> had complained.",
    "gave-after": "[A] gave [T:thing] to [B] after <A|B:he> had asked for help.",
    "thing-next-to-thing": "[T:thing] next to [S:thing] belonged to [A], but <T|S:it> {was} {heavy}.",
    "put-on": "[A] put [T:thing] on [S:thing] because <T|S:it> {was} {heavy}.",
    "found-behind": "When [A] found [T:thing] behind [S:thing], <A:he> laughed.",
    "letter": "[L=the letter] from [A] to [B] showed that <A|B:he> {was} {tired}.",
    "comparative": "[A] walked faster than [B], so <A|B:he> had to wait.",
    "went-with": "[A] went {where} with [B] and [T:thing], but <A|B:he> came back alone.",
    "question": "Did [A] tell [B] that <A|B:he> {was} {tired}?",
    "never-told-where": "[A] never told [B] where <A|B:he> lived.",
    "asked-why": "[A] asked [B] why <A|B:he> had left so early.",
    "while-waiting": "While waiting for [B], [A] talked to <A:himself>.",
    "inverted": "Behind [B] stood [A], and <A|B:he> looked {tired}.",
    "noun-later": "[A] {met} [B] {when}. Later <A|B:man> walked home.",
    "thing-between": "[A] {met} [B]. [T:thing] stood on [S=the table]. Soon <A|B:he> left.",
    "long-coordination": "[A] came into [R=the room], opened [W=the window] and waited for [B], "
    "but <A|B:he> {was} too {tired} to talk.",
    "according-to": "According to [B], [A] thought that <A|B:he> {was} {tired}.",
    "what-surprised": "What surprised [A] most was that [B] remembered <A:his> promise.",
    "waited-until": "[A] waited until [B] had finished, and then <A|B:he> left.",
    "conditional": "If [A] {met} [B] tomorrow, <A|B:he> would be {glad}.",
    "bought-for": "[A] bought [T:thing] for [B] {when}, but <T:it> {was} {heavy}.",
    "forgotten": "[A] had forgotten [T:thing], but [B] remembered <A|T:him> at once.",
}

#: Name to template; no text of these is looked at before the heads are chosen.
HELD_OUT = {
    "although-first": "Although [B] {met} [A], <A|B:he> {was} never {tired}.",
    "thing-relative": "[T:thing] that [A] bought from [B] lasted longer than <A|B:he> had expected.",
    "nobody-told": "Nobody told [A] that [B] had criticized <A:him>.",
    "asked-to-help": "[A] asked [B] to help <A:him> {soon}.",
    "promised-to-call": "[A] promised [B] to call <B:him> {soon}.",
    "reflexive-object-control": "[A] asked [B] to introduce <B:himself>.",
    "reflexive-subject-control": "[A] promised [B] to control <A:himself>.",
    "reflexive-raising": "[A] seemed to [B] to have hurt <A:himself>.",
    "reflexive-for": "[A:noun] in front of [B] bought [T:thing] for <A:himself>.",
    "sold-for": "[B] heard that [A] had sold [T:thing] to pay for <A|B:his> trip.",
    "would-visit": "[A] believed that [B] would visit <A:him> {soon}.",
    "noun-trusted": "[A] avoided [B] for weeks because nobody trusted <A|B:man>.",
    "fell-asleep": "[A] cleaned [T:thing] slowly. [B] watched. After an hour <A|B:he> fell asleep.",
    "surprised-that": "[A] {was:A} surprised that [B] had lost <A|B:his> keys.",
    "thing-fell": "[T:thing] fell on [S:thing] while [A] {was:A} talking to [B], and <T|S:it> {was} damaged.",
    "photograph": "[P=the photograph] of [A] beside [B] proved that <A|B:he> had been there.",
    "long-before": "Long before [A] {met} [B], <A|B:he> had lived abroad.",
    "found-out": "After [A] had moved away, [B] found out that <A|B:he> {was} {tired}.",
    "in-office": "[A] {met} [B] in <A|B:his> office {when}.",
    "carried-home": "[A] carried [T:thing] and [S:thing] home, although <T|S:it> {was} {heavy}.",
    "unlike": "[A], unlike [B], hoped that <A|B:he> would lose.",
    "double-object": "[A] showed [B] [T:thing] that <A|B:he> had found {when}.",
    "rumor": "[R=the rumor] that [A] had followed [B] suggested that <A|B:he> {was} in danger.",
}


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.replace("\n", " ").split(","))


#: Nouns by agreement class: feminine, masculine, plural people, one thing, several things.
NOUNS = {
    "f": _words("""actress, queen, nun, waitress, princess, duchess, mother, aunt, grandmother, widow, bride,
        girl, stewardess, heiress, countess, sister, niece, daughter, empress, landlady, saleswoman,
        policewoman, businesswoman, schoolgirl, housewife, seamstress, stepmother, baroness"""),
    "m": _words("""king, monk, waiter, prince, duke, father, uncle, grandfather, widower, groom, boy,
        gentleman, count, brother, nephew, son, emperor, landlord, salesman, policeman, businessman,
        schoolboy, fireman, fisherman, stepfather, baron, postman, wizard"""),
    "p": _words("""plumbers, guards, sailors, doctors, nurses, farmers, lawyers, teachers, students,
        soldiers, singers, tourists, children, neighbors, drivers, painters, judges, pilots, bakers,
        dancers, engineers, gardeners, librarians, musicians, reporters, scientists, surgeons, tailors,
        writers, carpenters, clerks, cooks, hunters, miners, officers, poets"""),
    "n": _words("""vase, box, lamp, chair, guitar, bicycle, painting, camera, clock, map, suitcase,
        umbrella, carpet, piano, mirror, ladder, basket, bottle, blanket, violin, ring, coin, hammer,
        radio, sofa, book"""),
    "q": _words("""boxes, cups, plates, candles, shoes, books, lamps, bags, pillows, ropes, tools, bricks,
        bells, paintings, coats, pots, chairs, bottles, baskets, maps, letters, cameras, drums, gloves"""),
}

#: First names by agreement class.
NAMES = {
    "f": _words("""Mary, Anna, Susan, Emma, Laura, Alice, Julia, Helen, Sarah, Linda, Karen, Nancy, Diana,
        Martha, Rachel, Rebecca, Emily, Lucy, Maria, Elizabeth, Margaret, Barbara, Jane, Catherine"""),
    "m": _words("""John, Peter, David, Thomas, Paul, James, Robert, Richard, George, Henry, Edward, Daniel,
        Michael, William, Frank, Martin, Simon, Charles, Walter, Stephen, Philip, Anthony, Arthur, Albert"""),
}

#: The words of every `{name}`.
FILLERS = {
    "met": _words("""thanked, admired, praised, visited, followed, helped, noticed, called, greeted, trusted,
        avoided, ignored, recognized, watched, invited, interviewed, welcomed, defended, criticized,
        remembered, assisted, consulted, annoyed, surprised"""),
    "said": _words("said, believed, thought, claimed, explained, knew, admitted, insisted, announced, suspected"),
    "tired": _words("""tired, hungry, late, ill, happy, angry, nervous, busy, famous, lonely, calm, bored,
        proud, patient, curious, worried, rich, sad, thirsty, jealous, shy, lucky, honest, afraid"""),
    "heavy": _words("heavy, old, dirty, cheap, broken, expensive, wet, dusty, new, fragile, beautiful, ugly"),
    "when": _words("""yesterday, last week, on Monday, on Sunday, last summer, in April, in March, at noon,
        last night, last winter, at midnight, two days ago"""),
    "soon": _words("soon, tomorrow, on Tuesday, next week, next month, before noon, in May, in June"),
    "glad": _words("happy, proud, glad, angry, delighted, embarrassed, grateful, amused"),
    "where": _words("abroad, downtown, outside, upstairs, downstairs, overseas, indoors, ashore"),
}

#: The anaphor's form by agreement class.
ANAPHORS = {
    "f": {"he": "she", "him": "her", "his": "her", "himself": "herself", "man": "the woman"},
    "m": {"he": "he", "him": "him", "his": "his", "himself": "himself", "man": "the man"},
    "n": {"he": "it", "him": "it", "his": "its", "himself": "itself", "it": "it"},
    "p": {"he": "they", "him": "them", "his": "their", "himself": "themselves", "man": "those people"},
    "q": {"he": "they", "him": "them", "his": "their", "himself": "themselves", "it": "they"},
}
