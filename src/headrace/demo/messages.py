"""Messages of invented customers: seeded, all different, in the project's own words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

COUNT_MAX = 20_000  # a tenth of what the parts below can be put together to, so that a new one is soon found
OFF_TOPIC_SHARE = 0.12  # of messages that no intent fits: enough to see them in a short run

_FIRST = [
    "ada",
    "ben",
    "chloe",
    "dev",
    "elif",
    "finn",
    "grace",
    "hugo",
    "ines",
    "jonas",
    "kira",
    "leo",
    "mina",
    "noor",
    "omar",
    "pia",
    "quin",
    "rosa",
    "sam",
    "tess",
]
_LAST = [
    "abbot",
    "baker",
    "cohen",
    "diaz",
    "ekman",
    "fofana",
    "gupta",
    "haas",
    "ito",
    "jansen",
    "kaya",
    "lund",
    "moreau",
    "novak",
    "okafor",
]
#: A few hundred customers, so that each comes back now and then.
CUSTOMERS = [f"{first}.{last}" for first, last in product(_FIRST, _LAST)]

_OPENINGS = ("", "", "", "Hi, ", "Hello, ", "Hi team, ", "Good morning, ", "Hey, ", "Sorry to bother you. ")
_CLOSINGS = ("", "", "", " Thanks!", " Thank you.", " Please.", " Cheers", " Many thanks.", " It is urgent.")

_SLOTS = {
    "amount": ("$20", "$45", "$80", "$120", "$250", "$310", "$475", "$600", "$1,150", "$2,300"),
    "bill": ("electric bill", "water bill", "phone bill", "internet bill", "gas bill", "rent"),
    "city": [
        "Oslo",
        "Lisbon",
        "Denver",
        "Kyoto",
        "Nairobi",
        "Toronto",
        "Madrid",
        "Chicago",
        "Dublin",
        "Seattle",
        "Vienna",
        "Lima",
    ],
    "country": [
        "Norway",
        "Portugal",
        "Japan",
        "Kenya",
        "Canada",
        "Spain",
        "Ireland",
        "Austria",
        "Peru",
        "Greece",
        "Mexico",
        "India",
    ],
    "day": [
        "today",
        "tomorrow",
        "on monday",
        "on tuesday",
        "on friday",
        "this weekend",
        "next week",
        "on the 5th",
    ],
    "dish": ("lentil soup", "lasagna", "pancakes", "chicken curry", "banana bread", "risotto", "fish tacos"),
    "flight": ("dl 214", "ba 88", "ua 1432", "lh 407", "af 66", "kl 1021"),
    "from_account": ("checking", "savings", "joint"),
    "ingredient": ("butter", "buttermilk", "eggs", "sour cream", "yeast", "heavy cream", "soy sauce"),
    "ingredient2": ("margarine", "yogurt", "milk", "oil", "honey", "oat milk"),
    "item": ("headphones", "kettle", "desk lamp", "running shoes", "backpack", "blender", "book"),
    "people": ("two", "three", "four", "five", "six", "eight"),
    "shop": ("the grocery store", "a gas station", "the pharmacy", "a cafe", "the cinema", "the bookshop"),
    "to_city": [
        "Boston",
        "Berlin",
        "Osaka",
        "Bergen",
        "Porto",
        "Austin",
        "Montreal",
        "Galway",
        "Graz",
        "Cusco",
    ],
    "to_account": ("savings", "checking", "my brother's", "the business"),
}

#: Sentences by the intent that they are meant for. The model was not trained on any of them.
INTENTS: dict[str, tuple[str, ...]] = {
    "balance": (
        "is there still {amount} left in my {from_account} account balance?",
        "I only want the current balance of the {from_account} account, nothing else.",
    ),
    "transfer": (
        "kindly transfer {amount} out of {from_account} and over to {to_account} account {day}.",
        "{amount} should be transferred to {to_account} account, take it from {from_account}.",
    ),
    "pay_bill": (
        "use the {from_account} account for the {bill}, pay it {day}.",
        "pay {amount} for the {bill}, I want that bill paid {day}.",
    ),
    "bill_due": (
        "remind me which date the {bill} is due, somewhere around {amount}?",
        "until when can I pay the {bill}, or is it due {day} already?",
    ),
    "card_declined": (
        "my card got declined at {shop}, although {amount} should be fine, why?",
        "why is my card being declined by {shop} {day}?",
    ),
    "report_lost_card": (
        "my wallet is gone since {city}, so report the card in it as lost.",
        "I must have lost the card between {shop} and home, report it lost before someone spends {amount}.",
    ),
    "report_fraud": (
        "{amount} to {shop} is a fraudulent charge, I was in {country} that day.",
        "fraud on my card: {shop} in {city} charged {amount} and it wasn't me.",
    ),
    "freeze_account": (
        "freeze {from_account} account, please freeze it {day}.",
        "block and freeze {from_account} account now, strangers know my password.",
    ),
    "pin_change": (
        "how can I change the pin on {from_account}, somebody in {city} saw it?",
        "set a new pin for the {from_account} account, the old pin is known to half of {city}.",
    ),
    "transactions": (
        "list the latest transactions with {shop}, I am doing my books {day}.",
        "show the last {people} transactions on {from_account}, and those with {shop}.",
    ),
    "exchange_rate": (
        "what exchange rate do I get from dollars into the currency of {country}?",
        "with {amount} in hand, what exchange rate do you give for {country}?",
    ),
    "travel_notification": (
        "tell the bank I'm travelling to {country} so that my card works.",
        "my bank should know that I travel to {country} {day}.",
    ),
    "international_visa": (
        "must I have a visa for {country} or can I travel without a visa?",
        "my sister says a visa is needed for {country}, is that so {day}?",
    ),
    "book_flight": (
        "find flights from {city} to {to_city} {day} and book the cheapest flight.",
        "please book a flight for {people} from {city} to {to_city} {day}.",
    ),
    "flight_status": (
        "my mother sits in flight {flight}, what's its status, will it land in {city} late?",
        "is {flight} delayed, I'd like the flight status?",
    ),
    "book_hotel": (
        "we are {people} and need hotel rooms near the harbour of {city} {day}.",
        "a quiet hotel in {city}, please book it for {people} nights.",
    ),
    "lost_luggage": (
        "{flight} landed in {city} and my luggage did not, it seems to be lost.",
        "nobody in {city} can find our {people} suitcases, the luggage is lost.",
    ),
    "car_rental": (
        "the train is cancelled, so I'd rather rent a car from {city} {day}.",
        "is there a rental car for {people} of us at {city} airport?",
    ),
    "restaurant_reservation": (
        "can you book a restaurant in {city}, a table for {people} {day}?",
        "reserve us a table at a nice restaurant in {city} {day}, for {people}.",
    ),
    "cancel_reservation": (
        "half of us are ill, cancel the reservation in {city} {day}.",
        "the table for {people} {day} is not needed, please cancel that reservation.",
    ),
    "recipe": (
        "find me a recipe to make {dish} with {ingredient}.",
        "how do you make {dish} at home, is there a recipe?",
    ),
    "ingredient_substitution": (
        "what can I use in place of {ingredient} for {dish}?",
        "my {dish} needs {ingredient}, can I substitute {ingredient2} for that?",
    ),
    "cook_time": (
        "{dish} for {people}: how long does that cook?",
        "how long does {dish} take to cook?",
    ),
    "order_status": (
        "my order of a {item} worth {amount} is still under way, what is its status?",
        "has the order with the {item} been shipped to {city}, and when will it arrive?",
    ),
}

OFF_TOPIC = (
    "the {item} in your window at {city} made my dog sneeze.",
    "do you sponsor chess clubs in {city}?",
    "my neighbour practises the trumpet {day}, who do I talk to?",
    "is the ghost in your {city} branch a known issue?",
    "a purple {item} sang to me last night in {city}.",
    "your hold music reminds me of {country} in the rain.",
    "would {people} penguins fit in an elevator in {city}?",
    "we are a school choir of {people} and would like to sing for your staff {day}.",
    "who painted the mural next to {shop} in {city}?",
    "since the update my {item} hums the anthem of {country}.",
)


def messages(count: int, seed: int = 1) -> Iterator[tuple[str, str]]:
    """Yield ``count`` times (customer, text); the same for the same seed, and no text twice."""
    if not 0 <= count <= COUNT_MAX:
        raise ValueError(f"count must be 0 to {COUNT_MAX}")
    dice, told = _Dice(seed), set[str]()
    while len(told) < count:
        text = _compose(dice)
        if text not in told:
            told.add(text)
            yield dice.one_of(CUSTOMERS), text


def _compose(dice: _Dice) -> str:
    if dice.roll(1_000) < OFF_TOPIC_SHARE * 1_000:
        sentence = dice.one_of(OFF_TOPIC)
    else:
        sentence = dice.one_of(INTENTS[dice.one_of(list(INTENTS))])
    told = sentence.format(**{slot: dice.one_of(values) for slot, values in _SLOTS.items()})
    opening = dice.one_of(_OPENINGS)
    first = told[0] if opening.endswith(", ") else told[0].upper()
    return f"{opening}{first}{told[1:]}{dice.one_of(_CLOSINGS)}"


class _Dice:
    """A small generator of its own, so that a seed means the same on every Python."""

    def __init__(self, seed: int) -> None:
        self._state = seed % 2**64

    def roll(self, sides: int) -> int:
        """Return a number from 0 to ``sides`` - 1 (Knuth's MMIX; the upper half is the random one)."""
        self._state = (self._state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self._state >> 32) % sides

    def one_of(self, choices: Sequence[str]) -> str:
        """Return one of them, each as often."""
        return choices[self.roll(len(choices))]
