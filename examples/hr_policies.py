"""The content of a long conversation: a company's handbook, an employee's questions, and facts about her."""

from __future__ import annotations

HANDBOOK = [
    ("how many days of annual leave are there", "Annual leave is 28 days a year, and 30 from the sixth year on."),
    ("how far ahead must annual leave be asked for", "Annual leave is asked for two weeks ahead, in the calendar."),
    ("which days of annual leave carry over", "Up to five days of annual leave carry over, until the end of March."),
    ("when does sick leave need a doctor's note", "Sick leave needs a doctor's note from the third day on."),
    ("how is sick leave paid", "Sick leave is paid in full for six weeks, then at seventy percent."),
    ("how long may parental leave take", "Parental leave takes up to fourteen months, in at most three parts."),
    ("how is parental leave paid", "Parental leave is paid by the state; the company adds up to eighty percent."),
    ("when must parental leave be announced", "Parental leave is announced seven weeks before it begins."),
    ("how much may a hotel cost on travel", "On travel a hotel may cost 140 euros a night, 190 in a capital."),
    ("which class of train may travel be booked in", "Travel goes by train, first class from three hours on."),
    ("when may travel go by plane", "Travel goes by plane only where the train takes more than six hours."),
    ("what is the daily allowance on travel", "The daily allowance on travel is 36 euros, less what meals were free."),
    ("by when must expenses be handed in", "Expenses are handed in within 60 days, with a photo of each receipt."),
    ("who approves of expenses", "Expenses over 500 euros need the manager's approval, over 5,000 the controller's."),
    ("how soon are expenses paid back", "Expenses are paid back with the next salary, or within ten days if urgent."),
    ("how many days of remote work are fine", "Remote work is fine on three days a week; the team agrees on which."),
    ("may remote work be done from abroad", "Remote work from abroad is limited to 30 days a year, within the EU."),
    (
        "what does the company pay for remote work",
        "For remote work the company pays 300 euros once, for desk and chair.",
    ),
    ("how often is the laptop replaced", "The laptop is replaced every four years; a broken one on the same day."),
    ("what if equipment is stolen", "Stolen equipment is reported within a day, to the police and to the help desk."),
    ("may equipment be used in private", "Equipment may be used in private, but not by others and not for a business."),
    ("how much training does everybody get", "Training is five days and 2,000 euros a year for everybody."),
    ("what if training is left unused", "Training that is left unused lapses at the end of the year."),
    ("how is overtime made up for", "Overtime is made up for by time off within three months, and never paid."),
    ("what does the pension plan add", "To the pension plan the company adds one euro for each that is paid in."),
    ("how long is the notice period", "The notice period is four weeks in the first two years, then three months."),
]
"""Questions, and the handbook's rules that answer them."""

SYSTEM = "You help the employees of Northwind. Answer from the handbook, in two sentences.\n\nHandbook"
SYSTEM += "".join(f"\n- {rule}" for _, rule in HANDBOOK)

LEAVE = "My parental leave is booked from 2 March to 29 May."

FACTS = [
    "Hello! I am Mara Lindqvist. I work in the Ghent office.",
    "I started on 4 May 2019. My cost centre is 47-110.",
    LEAVE,
    "I am allergic to peanuts, should there ever be a team lunch.",
]
"""The first prompt."""

LATER = ["My new manager is Joris Maes.", "My desk has moved to the third floor."]
"""Facts that she mentions later."""

ASKED = "What did I tell you about my parental leave?"
"""The last prompt."""

_CITIES = ["Lyon", "Porto", "Turin", "Gdansk", "Leipzig", "Bergen", "Tartu"]
_MONTHS = ["February", "April", "June", "September", "November"]
_OPENINGS = [
    "A colleague in {city} would like to know: {question}?",
    "We are preparing a workshop in {city} in {month}, and somebody asked: {question}?",
    "In {month} a new colleague joins us in {city}. For her list: {question}, and does it change in the first year?",
    "Before {month} it was different in {city}, or so they say there: {question} now?",
]


def conversation(turns: int) -> list[str]:
    """Return her prompts for this number of turns, always the same: facts first, then questions."""
    prompts = list(FACTS)
    for at in range(turns - len(prompts)):
        opening = _OPENINGS[at % len(_OPENINGS)]
        question = HANDBOOK[at * 7 % len(HANDBOOK)][0]
        prompts.append(opening.format(city=_CITIES[at % 7], month=_MONTHS[at % 5], question=question))
    for number, fact in enumerate(LATER, 1):
        at = number * turns // (len(LATER) + 1)
        prompts[at] = f"{fact} {prompts[at]}"
    return prompts
