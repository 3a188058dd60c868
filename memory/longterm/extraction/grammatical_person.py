"""Word lists by which `evidence` compares the user's first-person sentence with a third-person claim, by language.

Claims in other languages are not supported by any rule.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Language:
    """The function words of a language, and how its verbs change from the first to the third person."""

    name: str
    selves: frozenset[str]
    """The first-person subject pronouns."""
    users: frozenset[str]
    """The subjects that stand for the user in a claim, without articles."""
    persons: Mapping[str, frozenset[str]]
    """Other first-person words, possessives included, and the third-person words for them in a claim."""
    possessives: frozenset[str]
    """The possessives that may begin a sentence."""
    verbs: Mapping[str, frozenset[str]]
    """Irregular verbs: the third-person forms by first-person form."""
    third: Callable[[str], Iterable[str]]
    """Returns the possible third-person forms of a regular verb."""
    articles: frozenset[str]
    """Words that are removed from both sentences before the comparison."""
    adverbs: frozenset[str]
    """Words that may be missing anywhere in the claim, since they do not change the meaning."""
    before: re.Pattern[str]
    """Phrases that may precede a sentence without changing its meaning."""
    tails: re.Pattern[str]
    """Matches the rest of a sentence, from its beginning, if a claim may leave that rest out."""
    nots: frozenset[str] = frozenset()
    """Negations that may precede a verb without a subject."""
    drops_subjects: bool = False
    """Whether a sentence may have no subject, since the form of the verb shows the person."""
    links: frozenset[str] = frozenset()
    """Words between the parts of an enumeration."""

    def agrees(self, word: str, claimed: str) -> bool:
        """Return whether the claim's word is the user's word, or its third-person form."""
        return word == claimed or claimed in self.persons.get(word, ()) or self.is_third(word, claimed)

    def is_third(self, word: str, claimed: str) -> bool:
        """Return whether the claim's word is the third-person form of the user's verb."""
        thirds = self.verbs.get(word)
        return claimed in thirds if thirds is not None else claimed in self.third(word)


def word_set(text: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(text.split())


def _table(text: str) -> dict[str, frozenset[str]]:
    """Parse a table of words and their counterparts, such as "am:is,are have:has"."""
    pairs = (entry.split(":") for entry in text.split())
    return {word: frozenset(counterparts.split(",")) for word, counterparts in pairs}


def _before(phrases: str) -> re.Pattern[str]:
    words = "|".join(sorted((" ".join(phrase.split()) for phrase in phrases.split("|")), key=len, reverse=True))
    return re.compile(rf"(?:(?:{words})(?: *[,!:.-]+)? +)")


def _english(verb: str) -> tuple[str, ...]:
    if verb.endswith("y") and verb[-2:-1] not in "aeiou":
        return (f"{verb[:-1]}ies",)
    return (f"{verb}es",) if verb.endswith(("s", "x", "z", "ch", "sh", "o")) else (f"{verb}s",)


def _german(verb: str) -> tuple[str, ...]:
    root = verb.removesuffix("e")
    return (f"{root}t", f"{root}et")


def _french(verb: str) -> tuple[str, ...]:
    if verb.endswith(("ds", "ts")):
        return (verb[:-1],)
    return (f"{verb[:-1]}t",) if verb.endswith("s") else ()


def _romance(verb: str) -> tuple[str, ...]:
    return (f"{verb[:-1]}a", f"{verb[:-1]}e") if verb.endswith("o") else ()


def _dutch(verb: str) -> tuple[str, ...]:
    return (f"{verb}t",)


_HE = "he,she,they,user"
ENGLISH = Language(
    name="en",
    selves=word_set("i"),
    users=word_set("user he she they"),
    persons=_table(
        "me:him,her,them,user my:his,her,their,user's mine:his,hers,theirs myself:himself,herself,themself,themselves"
        f" i:{_HE} our:their us:them we:they"
    ),
    possessives=word_set("my"),
    verbs=_table("am:is,are have:has,have do:does,do 've:has"),
    third=_english,
    articles=word_set("a an the"),
    adverbs=word_set("also really actually currently now still just definitely very personally too"),
    before=_before(
        "hi|hello|hey|hi there|hello there|well|so|and|but|oh|ok|okay|yes|yeah|by the way|btw|fyi|actually|anyway"
        "|also|please|note|note that|please note|please note that|remember|remember that|keep in mind|keep in mind that"
        "|just so you know|so you know|for your information|for the record|now|currently|in fact|good morning|thanks"
        "|thank you|from now on|in future|in the future|to be clear|i should mention|i should mention that"
    ),
    tails=re.compile(r"(?:, )?(?:and |because |since |so |with (?:my|our) |please$|thanks$|thank you$)"),
    links=word_set("and ,"),
)
_SEIN = {
    f"mein{end}": frozenset(f"{possessive}{end}" for possessive in ("sein", "ihr", "mein"))
    for end in ("", "e", "en", "em", "er", "es")
}
GERMAN = Language(
    name="de",
    selves=word_set("ich"),
    users=word_set("nutzer nutzerin benutzer benutzerin er sie user"),
    persons=_SEIN | _table("mich:sich,ihn,sie mir:sich,ihm,ihr"),
    possessives=word_set("mein meine"),
    verbs=_table(
        "bin:ist habe:hat hab:hat mag:mag kann:kann will:will muss:muss darf:darf soll:soll weiß:weiß werde:wird"
        " esse:isst lese:liest spreche:spricht fahre:fährt schlafe:schläft nehme:nimmt gebe:gibt trage:trägt"
        " heiße:heißt laufe:läuft helfe:hilft sehe:sieht trinke:trinkt treffe:trifft"
    ),
    third=_german,
    articles=word_set("der die das den dem des ein eine einen einem einer eines"),
    adverbs=word_set("auch wirklich derzeit aktuell zurzeit momentan jetzt gerade ja sehr"),
    before=_before(
        "hallo|hi|guten tag|guten morgen|also|und|aber|übrigens|bitte|ja|nein|danke|bitte merke dir|zur info"
    ),
    tails=re.compile(r"(?:, )?(?:und |weil |seit |mit mein)"),
)
FRENCH = Language(
    name="fr",
    selves=word_set("je j'"),
    users=word_set("utilisateur utilisatrice il elle"),
    persons=_table("mon:son,mon ma:sa,ma mes:ses,mes me:se,le,la m':s',l' moi:lui,elle"),
    possessives=word_set("mon ma mes"),
    verbs=_table("suis:est ai:a vais:va peux:peut veux:veut"),
    third=_french,
    articles=word_set("le la les l' un une des de du d'"),
    adverbs=word_set("aussi vraiment actuellement maintenant très"),
    before=_before("bonjour|salut|alors|et|mais|donc|au fait|oui|non|merci|d'ailleurs|pour info"),
    tails=re.compile(r"(?:, )?(?:et |parce |depuis |avec (?:mon|ma|mes) )"),
)
_ROMANCE: dict[str, Any] = {
    "third": _romance,
    "tails": re.compile(r"(?:, )?(?:y |e |ed |porque |perché |desde |da quando |con (?:mi|mia|mio) )"),
    "drops_subjects": True,
}
SPANISH = Language(
    name="es",
    selves=word_set("yo"),
    users=word_set("usuario usuaria él ella"),
    persons=_table("mi:su,mi mis:sus,mis me:se,le,lo,la"),
    possessives=word_set("mi mis"),
    verbs=_table(
        "soy:es estoy:está tengo:tiene voy:va hago:hace prefiero:prefiere quiero:quiere puedo:puede sé:sabe"
        " duermo:duerme vengo:viene digo:dice juego:juega pienso:piensa"
    ),
    articles=word_set("el la los las un una unos unas"),
    adverbs=word_set("también realmente actualmente ahora muy"),
    before=_before("hola|bueno|pues|y|pero|por cierto|sí|gracias|buenos días"),
    nots=word_set("no nunca"),
    **_ROMANCE,
)
ITALIAN = Language(
    name="it",
    selves=word_set("io"),
    users=word_set("utente lui lei"),
    persons=_table("mio:suo,mio mia:sua,mia miei:suoi,miei mie:sue,mie mi:si,lo,la,gli,le"),
    possessives=word_set("mio mia miei mie"),
    verbs=_table(
        "sono:è ho:ha sto:sta vado:va faccio:fa voglio:vuole posso:può so:sa vengo:viene bevo:beve"
        " preferisco:preferisce"
    ),
    articles=word_set("il lo la i gli le l' un uno una un'"),
    adverbs=word_set("anche davvero attualmente adesso ora molto"),
    before=_before("ciao|salve|allora|e|ma|comunque|sì|grazie|buongiorno"),
    nots=word_set("non"),
    **_ROMANCE,
)
PORTUGUESE = Language(
    name="pt",
    selves=word_set("eu"),
    users=word_set("usuário usuária utilizador utilizadora ele ela"),
    persons=_table("meu:seu,meu minha:sua,minha meus:seus,meus minhas:suas,minhas me:se,o,a,lhe"),
    possessives=word_set("meu minha meus minhas"),
    verbs=_table("sou:é estou:está tenho:tem vou:vai faço:faz quero:quer posso:pode sei:sabe prefiro:prefere"),
    articles=word_set("o a os as um uma uns umas"),
    adverbs=word_set("também realmente atualmente agora muito"),
    before=_before("olá|oi|bom|então|e|mas|aliás|sim|obrigado|obrigada|bom dia"),
    nots=word_set("não nunca"),
    **_ROMANCE,
)
DUTCH = Language(
    name="nl",
    selves=word_set("ik"),
    users=word_set("gebruiker gebruikster hij zij ze"),
    persons=_table("mijn:zijn,haar,hun,mijn me:zich,hem,haar mij:hem,haar"),
    possessives=word_set("mijn"),
    verbs=_table("ben:is heb:heeft kan:kan wil:wil mag:mag zal:zal ga:gaat doe:doet sta:staat eet:eet"),
    third=_dutch,
    articles=word_set("de het een"),
    adverbs=word_set("ook echt momenteel nu zeer erg"),
    before=_before("hallo|hoi|dag|dus|en|maar|trouwens|ja|nee|bedankt|overigens"),
    tails=re.compile(r"(?:, )?(?:en |omdat |sinds |met mijn )"),
)

LANGUAGES = (ENGLISH, GERMAN, FRENCH, SPANISH, ITALIAN, PORTUGUESE, DUTCH)

TAKES_BACK = word_set(
    # English: negation, limits, doubt, other times, reported speech
    """not no never nor neither none nothing nobody nowhere without hardly barely rarely seldom scarcely almost nearly
    but except only unless until if whether or when whenever while before once formerly previously ago sometimes
    occasionally maybe perhaps possibly probably allegedly apparently supposedly theoretically think thinks thought
    guess suppose believe believes say says said claim claims claimed told tells tell heard hear joke joking kidding lie
    lying pretend imagine dream dreams would could might should used
    anymore former ex least though although however instead
    january february march april june july august september october november december
    theory game story hypothetically wait help let make see watch"""
    # German
    """ nicht kein keine keinen keinem keiner nie niemals niemand nichts kaum fast nur außer aber sondern wenn falls bis
    ob oder als früher ehemals damals manchmal selten vielleicht wohl angeblich glaube denke sagt sagte meint wäre hätte
    würde mehr theoretisch eigentlich ohne weder noch"""
    # French
    """ pas ne n' plus jamais rien aucun aucune personne guère sans sauf mais si ou quand lorsque avant autrefois
    parfois rarement peut-être presque dit disait pense crois seulement sinon"""
    # Spanish, Italian, Portuguese
    """ nunca nada nadie ningún ninguna sin salvo pero sino cuando hasta antes casi quizás quizá tal acaso dice creo
    solo sólo apenas jamás tampoco non mai niente nessuno senza tranne però ma se quando fino prima quasi forse penso
    soltanto o oppure não nem sem exceto mas até talvez acho diz só raramente às"""
    # Dutch
    """ niet geen nooit niemand niets nauwelijks bijna alleen behalve maar als tenzij tot of toen vroeger soms zelden
    misschien zegt denk geloof zonder meer"""
    # negation in languages that have no rules
    " nie ne nem ei inte ikke icke nu değil не нет ні δεν tidak bukan không jest ale ali mutta men"
)
"""Words by which the rest of a sentence may negate or limit what precedes it, in all languages, as users mix them."""

BLOCKS = TAKES_BACK | word_set(
    "that who which whom whose to of from in at with for on by about what how where than like"
)
"""Words that no skipped part of a sentence may contain."""

OTHERS_WORDS = re.compile(
    r"\b(?:translat\w+|proof-?read\w*|rewrite|paraphrase|summari[sz]e|grammatical\w*|grammar|stor(?:y|ies)|poems?|novels?"
    r"|lyrics|songs?|essay|screenplay|role-?play\w*|pretend\w*|imagine|suppose|hypothetical\w*|fiction\w*|dialogue"
    r"|characters?|quot(?:e|ed|ation)|jok(?:e|ing)|kidding|sarcas\w+|for example|act as|forwarded"
    r"|übersetz\w*|korrigier\w*|geschichte|gedicht|stell dir vor|angenommen|scherz|traduis\w*|tradui[rs]\w*|corrige\w*"
    r"|histoire|poème|imagin\w+|supposons|traduc\w+|traduz\w*|traduci\w*|cuento|poema|historia|racconto|poesia|broma"
    r"|scherzo|brincadeira|vertaal\w*|verhaal|gedicht|grapje)\b"
)
"""Words that show that a message is about a text, or is fiction."""

RETRACTS = re.compile(
    r"(?:but|or|not|no(?=$|[,.!]| wait)|nope|at least|well|until|wait|actually|except|unless|however|though"
    r"|scratch that|sorry|i mean|just kidding|correction|aber|oder|nicht|nein|zumindest|mais|non|ou|enfin|pero"
    r"|anzi|mas|não|maar|nee)\b"
)
"""The beginnings of a sentence that takes back the previous one."""

ORDERS = re.compile(
    r"(?:always|never|don't|do not|answer|reply|respond|write|use|keep|avoid|call|address|speak|talk|be|give|include"
    r"|leave|add|format|explain|prefer|start|end|show|cite|stop|treat|assume|make)\b"
)
"""The beginnings of an instruction."""
