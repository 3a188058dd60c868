"""Which English words speak of the same thing: what a question names in general, an answer often names by its kind."""

from __future__ import annotations

from turnwise.memory.vocabulary import lemma, stem


def related(word: str) -> tuple[str, ...]:
    """Return words that speak of what the word does, more generally or more particularly; none for most words."""
    return _RELATED.get(stem(lemma(word)), ())


_GROUPS = """
    accident collision crash injury |
    adopt adoption foster |
    advertise ad advertising campaign marketing promote promotion |
    advice recommend suggest suggestion tip |
    afraid fear frightened scared terrified worried |
    age birthday born old |
    allergy allergic intolerance |
    angry annoyed furious mad |
    animal bear bird cat cow dog elephant horse lion pig sheep wildlife zoo |
    art artist artwork draw drawing gallery museum paint painting pottery sculpture |
    award honor medal prize |
    beach coast ocean sand sea shore surf |
    beautiful gorgeous lovely pretty |
    belief church faith god prayer religion spiritual |
    big great huge large |
    birthday anniversary celebrate |
    book author novel read reading story writer |
    born birth birthday |
    boss employer manager supervisor |
    business company enterprise entrepreneur firm shop startup store venture |
    buy order purchase shop shopping |
    call phone telephone |
    camp campfire camping tent |
    car automobile drive truck van vehicle |
    career field job occupation path profession |
    change switch transform |
    child baby boy daughter girl kid son teenager toddler |
    childhood kid young |
    city place town village |
    clothes clothing coat dress hat jacket outfit pants shirt shoes |
    clothing clothes dress fashion outfit |
    colleague coworker teammate |
    color black blue green orange pink purple red white yellow |
    community association club group organization |
    competition contest match race tournament |
    computer laptop pc software |
    conference convention meeting summit workshop |
    cook bake chef cooking kitchen recipe |
    country abroad homeland nation |
    craft ceramics crochet knitting pottery sewing woodworking |
    dance ballet choreography dancer dancing salsa |
    decide choice choose decision |
    dessert cake chocolate cookie pastry pie |
    die dead death died funeral passed |
    diet food gluten vegan vegetarian |
    doctor appointment clinic hospital physician |
    drink beer cocktail coffee juice tea wine |
    education college course degree major school study university |
    evening dusk night sunset |
    event concert conference fair festival meeting parade show workshop |
    exam grade quiz test |
    exercise fitness gym jog run running swim training workout yoga |
    family aunt baby brother child cousin dad daughter father grandfather grandma grandmother grandpa husband
        kid mom mother nephew niece parent relative sibling sister son spouse toddler uncle wife |
    feel emotion feeling mood |
    finish complete done end |
    fired jobless quit resign unemployed |
    fix mend repair |
    food breakfast cook cuisine dinner dish eat lunch meal snack |
    friend bestie buddy companion mate pal |
    fruit apple banana berry grape orange peach strawberry |
    furniture bed chair couch desk sofa table |
    game chess console gaming play puzzle videogame |
    garden flower gardening plant |
    gift present surprise |
    goal aim ambition aspiration dream hope plan |
    grow expand increase |
    hair haircut hairstyle |
    happy delighted excited glad joy joyful thrilled |
    hate detest dislike |
    health condition disease doctor hospital ill illness medicine sick |
    help aid assist support |
    hike hiking trail trek walk |
    hobby activity interest leisure pastime |
    holiday christmas easter halloween thanksgiving |
    home apartment flat house place residence |
    hotel airbnb hostel resort |
    identity gay gender lesbian nonbinary queer transgender |
    important meaningful significant |
    injury accident broken hurt wound |
    instrument cello clarinet drum flute guitar harp piano saxophone trumpet ukulele violin |
    internet online web website |
    jewelry bracelet earring necklace pendant ring |
    job career employer employment hire hired occupation position profession role work |
    language chinese english french german spanish |
    law court lawyer legal police |
    learn course practice study training |
    like enjoy favorite love prefer |
    lose loss lost missing |
    love adore enjoy favorite fond like passion |
    make build create design produce |
    mean meaning represent signify symbolize |
    meat beef chicken pork steak |
    medicine drug pill prescription treatment |
    meet encounter meeting |
    message email letter text |
    money budget cost debt expense fund income loan pay price salary savings |
    morning breakfast dawn sunrise |
    move moved moving relocate relocation |
    movie cinema documentary film series show watch |
    music album band concert melody musician singer song tune |
    musician artist band composer guitarist pianist singer |
    name called nickname |
    nature beach flower forest lake mountain ocean river tree wildlife |
    new fresh recent |
    old aged elderly |
    open launch opening |
    outdoors camping forest hiking mountain nature park trail |
    party birthday celebrate celebration event |
    pet cat dog fish hamster kitten parrot puppy rabbit turtle |
    phone iphone mobile smartphone |
    photo camera image photography picture |
    plan going intend schedule |
    plant flower garden rose tree |
    politics conservative election government liberal party political vote |
    problem challenge difficulty issue setback trouble |
    profession accountant artist banker chef counselor designer developer doctor engineer journalist lawyer
        manager nurse programmer teacher therapist writer |
    promote advertise marketing promotion |
    proud accomplishment pride |
    race marathon run |
    recommend recommendation suggest suggestion |
    relationship boyfriend breakup couple dating divorced engaged girlfriend married partner single spouse |
    relax calm destress relaxation rest unwind |
    religion buddhist christian church faith hindu jewish mosque muslim pray temple |
    restaurant bistro cafe diner eat |
    room bathroom bedroom kitchen |
    sad depressed down grief unhappy upset |
    school class college course degree education student study university |
    sell client customer sale store |
    setback challenge failure loss obstacle |
    shoes boots sandals sneakers |
    sleep bed insomnia nap rest |
    small little tiny |
    sport baseball basketball cricket football golf hockey rugby running soccer swimming tennis volleyball |
    spouse fiance husband marriage married partner wife |
    start begin found launch open |
    stop cease quit |
    stress anxiety nervous overwhelmed pressure stressed worry |
    subject biology chemistry geography history literature math physics |
    success accomplishment achievement succeed |
    support encourage encouragement help |
    symbol mean meaning represent stand symbolize |
    talk chat conversation discuss speak |
    tattoo piercing |
    teach class instructor lesson mentor teacher tutor |
    therapy counseling counselor therapist |
    think believe consider opinion view |
    transport bicycle bike bus car plane subway taxi train |
    travel flight holiday journey roadtrip tour trip vacation visit |
    vacation getaway holiday trip |
    vegetable broccoli carrot lettuce onion potato spinach tomato |
    volunteer charity donate help nonprofit shelter |
    want desire dream hope wish |
    water lake ocean river sea |
    weather cold hot rain snow storm sun sunny wind |
    weekend saturday sunday |
    win award medal prize trophy victory won |
    write author blog book journal poem story writing |
    yoga meditation mindfulness
"""
"""Groups: a word, then those that are more particular or otherwise akin. Words of a group are related to its first."""


def _relate() -> dict[str, tuple[str, ...]]:
    found: dict[str, dict[str, None]] = {}
    for first, *others in map(str.split, _GROUPS.split("|")):
        for other in others:
            found.setdefault(stem(lemma(first)), {})[other] = None
            found.setdefault(stem(lemma(other)), {})[first] = None
    return {word: tuple(others) for word, others in found.items()}


_RELATED = _relate()
