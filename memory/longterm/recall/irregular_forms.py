"""English words whose forms share no ending: "went" is a form of "go", "children" of "child".

The forms come from the appendices "English irregular verbs" and "English irregular nouns" of Wiktionary. Left out are
forms that a stemmer reduces by itself, auxiliaries, forms that are mostly other words ("rose", "ground", "bit"), and
rare verbs.
"""

from __future__ import annotations

_VERBS = """
    awake awoke awoken; beat beaten; become became; begin began begun; bend bent; bite bitten; blow blew blown;
    break broke broken; breed bred; bring brought; build built; burn burnt; buy bought; catch caught;
    choose chose chosen; cling clung; come came; creep crept; deal dealt; dig dug; draw drew drawn; dream dreamt;
    drink drank drunk; drive drove driven; eat ate eaten; fall fell fallen; feed fed; feel felt; fight fought;
    find found; flee fled; fling flung; fly flew flown; forbid forbade forbidden; forget forgot forgotten;
    forgive forgave forgiven; freeze froze frozen; get got gotten; give gave given; go went gone; grow grew grown;
    hang hung; hear heard; hide hid hidden; hold held; keep kept; kneel knelt; know knew known; lead led; lean leant;
    leap leapt; learn learnt; leave left; lend lent; light lit; lose lost; make made; mean meant; meet met;
    mistake mistook mistaken; pay paid; prove proven; ride rode ridden; ring rang rung; rise risen; run ran; say said;
    see saw seen; seek sought; sell sold; send sent; sew sewn; shake shook shaken; shine shone; shoot shot;
    show shown; shrink shrank shrunk; sing sang sung; sink sank sunk; sit sat; sleep slept; slide slid; smell smelt;
    speak spoke spoken; spell spelt; spend spent; spill spilt; spin spun; spit spat; spoil spoilt;
    spring sprang sprung; stand stood; steal stole stolen; stick stuck; sting stung; stink stank; strike struck;
    strive strove; swear swore sworn; sweep swept; swell swollen; swim swam swum; swing swung; take took taken;
    teach taught; tear tore torn; tell told; think thought; throw threw thrown; understand understood;
    wake woke woken; wear wore worn; weave wove woven; weep wept; win won; withdraw withdrew withdrawn;
    write wrote written
"""

_NOUNS = """
    appendix appendices; calf calves; child children; crisis crises; criterion criteria; elf elves; foot feet;
    goose geese; half halves; hoof hooves; knife knives; leaf leaves; life lives; loaf loaves; louse lice; man men;
    matrix matrices; mouse mice; person people; phenomenon phenomena; scarf scarves; shelf shelves; thief thieves;
    tooth teeth; wife wives; wolf wolves; woman women
"""

BASES: dict[str, str] = {
    form: base for line in f"{_VERBS};{_NOUNS}".split(";") for base, *forms in [line.split()] for form in forms
}
"""The base of each form."""
