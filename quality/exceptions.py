"""English pieces that stay whole or are cut at fixed places: contractions, abbreviations, emoticons, units.

Facts as in the English tokenizer exceptions of spaCy 3.8 (MIT), with which the published quality rules were run:
don't → do + n't, cannot → can + not; Mr. and e.g. keep their dot; ): and 8) are one mark. Each also with a curly
apostrophe. The rules are generated here, about 1,350 entries; `taojin.quality.words` looks them up.
"""

from collections.abc import Iterator

LONGEST = 12  # characters of the longest entry, couldn't've
_NOT_AN_EXCEPTION = {
    "ill",
    "its",
    "hell",
    "shell",
    "shed",
    "were",
    "well",
    "whore",
}  # words of their own, also in title case

_PRONOUNS = "i you he she it we they"
_QUESTIONS = "who what when where why how there that this these those"
_VERBS_NOT = "ca could do does did had may might must need ought sha should wo would"
_VERBS_NOT_ALONE = "ai are is was were have has dare"
_VERBS_HAVE = "could might must should would"

_ABBREVIATIONS = (
    "Mt. Ak. Ala. Apr. Ariz. Ark. Aug. Calif. Colo. Conn. Dec. Del. Feb. Fla. Ga. Ia. Id. Ill. Ind. Jan. "
    "Jul. Jun. Kan. Kans. Ky. La. Mar. Mass. Mich. Minn. Miss. N.C. N.D. N.H. N.J. N.M. N.Y. Neb. Nebr. "
    "Nev. Nov. Oct. Okla. Ore. Pa. S.C. Sep. Sept. Tenn. Va. Wash. Wis. a.m. Adm. Bros. co. Co. Corp. "
    "D.C. Dr. e.g. E.g. E.G. Gen. Gov. i.e. I.e. I.E. Inc. Jr. Ltd. Md. Messrs. Mo. Mont. Mr. Mrs. Ms. "
    "p.m. Ph.D. Prof. Rep. Rev. Sen. St. vs. v.s. ä. ö. ü. "
    + " ".join(f"{letter}." for letter in "abcdefghijklmnopqrstuvwxyz")
)
_WHOLE = (
    "' '' 'S 's ‘S ‘s 're 'Cause 'cause 'cos 'Cos 'coz 'Coz 'cuz 'Cuz 'bout 'd 'em em 'll ll 'nuff nuff "
    "and/or w/o ma'am Ma'am o'clock O'clock C++ <space> \\t \\n \\\") —"
)
_DROPPED_G = "doin goin nothin nuthin ol somethin lovin havin"
_EMOTICONS = (
    ":) :-) :)) :-)) :))) :-))) (: (-: =) :] :-] [: [-: [= =] :o) (o: :} :-} 8) 8-) (-8 ;) ;-) (; (-; :( "
    ":-( :(( :-(( :((( :-((( ): )-: =( >:( :') :'-) :'( :'-( :/ :-/ =/ =| :| :-| ]= =[ :1 :P :-P :p :-p "
    ":O :-O :o :-o :0 :-0 :() >:o :* :-* :3 :-3 =3 :> :-> :X :-X :x :-x :D :-D ;D ;-D =D xD XD xDD XDD 8D "
    "8-D ^_^ ^__^ ^___^ >.< >.> <.< ._. ;_; -_- -__- v.v V.V v_v V_V o_o o_O O_o O_O 0_o o_0 0_0 o.O O.o "
    "O.O o.o 0.0 o.0 0.o @_@ <3 <33 <333 </3 (^_^) (-_-) (._.) (>_<) (*_*) (=  (¬_¬) ಠ_ಠ ಠ︵ಠ (ಠ_ಠ) "
    "¯\\(ツ)/¯ (╯°□°）╯︵┻━┻ ><(((*>"
)
# Split off a digit that they follow: 10km → 10 + km.
_UNITS = (
    "km km² km³ m m² m³ dm dm² dm³ cm cm² cm³ mm mm² mm³ ha µm nm yd in ft kg g mg µg t lb oz m/s km/h "
    "kmh mph hPa Pa mbar mb MB kb KB gb GB tb TB T G M K % км км² км³ м м² м³ дм дм² дм³ см см² см³ мм "
    "мм² мм³ нм кг г мг м/с км/ч кПа Па мбар Кб КБ кб Мб МБ мб Гб ГБ гб Тб ТБ"
)


def units() -> list[str]:
    return _UNITS.split()


def exceptions() -> dict[str, tuple[str, ...]]:
    """Piece → the words it becomes, one for those that stay whole."""
    found: dict[str, tuple[str, ...]] = {}
    for parts in _all_parts():
        for apostrophe in "'’":
            spelled = tuple(part.replace("'", apostrophe) for part in parts)
            found["".join(spelled)] = spelled
    return found


def _all_parts() -> Iterator[tuple[str, ...]]:
    for parts in _contractions():
        for first in (parts[0], parts[0][0].upper() + parts[0][1:]):
            if "".join((first, *parts[1:])).lower() not in _NOT_AN_EXCEPTION:
                yield (first, *parts[1:])
    for hour in range(1, 13):
        for half in ("am", "pm", "a.m.", "p.m."):
            yield (str(hour), half)
    for unit in "cfkCFK":
        yield ("°", unit, ".")
    yield from (("y'", "all"), ("y", "all"))
    for word in _DROPPED_G.split():
        yield from ((word,), (word.title(),), (word + "'",), (word.title() + "'",))
    for word in (*_ABBREVIATIONS.split(), *_WHOLE.split(), *_EMOTICONS.split()):
        yield (word,)


def _contractions() -> Iterator[tuple[str, ...]]:
    """In lower case, with and without their apostrophes; either way they are cut at the same letters."""
    for parts in _with_apostrophes():
        yield parts
        yield tuple(part.replace("'", "") for part in parts)
    yield from (("how", "'d", "'y"), ("let", "'s"), ("c'm", "on"), ("can", "not"), ("gon", "na"), ("got", "ta"))


def _with_apostrophes() -> Iterator[tuple[str, ...]]:
    yield from (("i", "'m"), ("i", "'m", "a"), ("not", "'ve"))
    for subject in (*_PRONOUNS.split(), *_QUESTIONS.split()):
        yield from ((subject, "'ll"), (subject, "'ll", "'ve"), (subject, "'d"), (subject, "'d", "'ve"))
        if subject not in ("he", "she", "it", "this", "that"):
            yield (subject, "'ve")
        if subject not in ("i", "he", "she", "it", "this", "that"):
            yield (subject, "'re")
        if subject not in ("i", "you", "we", "they", "these", "those"):
            yield (subject, "'s")
    for verb in _VERBS_NOT.split():
        yield from ((verb, "n't"), (verb, "n't", "'ve"))
    for verb in _VERBS_NOT_ALONE.split():
        yield (verb, "n't")
    for verb in _VERBS_HAVE.split():
        yield (verb, "'ve")
