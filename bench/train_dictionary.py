"""Dictionary 1, which compresses small rows: the corpus it is made from, and how it is made.

    python bench/train_dictionary.py --check              what the shipped dictionary is worth; can it be made again?
    python bench/train_dictionary.py --check other.bin    what another one is worth
    python bench/train_dictionary.py dictionary2.bin      make a dictionary, in a new file

A released dictionary never changes: rows that were written with it need it. A better corpus makes dictionary 2,
with a codec byte of its own. So this script does not write to a file that is there already.

The corpus was written for this purpose. Prose: the sentences in STOCK and LINES, the words in WORDS. Code, shell
output, tracebacks: the pieces in CODE. A `Writer` fills them in and puts them into messages as OpenAI, Anthropic,
LangChain and others shape them, into states of agents, and those into rows of the log. One seed, one corpus: there
is no other source, and no network. What comes out depends on the version of zstd, too; it was 1.5.7.

What is in the dictionary, the most useful last, where it is cheapest to point at:

1. zstd's entropy tables: what is common in messages of this corpus, when the rest is there to point at;
2. words that stand nowhere else in it; some sentences in other languages; some code; objects in JSON;
3. most sentences in STOCK;
4. one row for each shape of message, without its texts and ids.

zstd itself would choose what is frequent in the corpus. Whatever k and d were, that made rows of held-out prose up to
3 % larger, and more so with one seed than with another: it takes pieces of messages, random ids among them.

The held-out texts at the end of the file were written by hand, in another voice, and before the corpus. They are not
in it; but the shares below were chosen by looking at their ratios.
"""

# ruff: noqa: RUF001

from __future__ import annotations

import argparse
import json
import random
import re
import string
import sys
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ormsgpack
import zstandard

from backtrail.engine.compression import dictionary1, small_parameters, squeeze

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SEED = 1
SIZE = 32 * 1024
PROSE_SHARE = 18_000
"""Characters of STOCK."""
CODE_SHARE = 500
"""Characters for each language in CODE, or a little more."""
DICTIONARY_ID = 0x8001
"""In the dictionary's header only. Below 0x8000, ids are reserved."""

# -- the corpus: text ---------------------------------------------------------------------------------
# `{name}` stands for one word or line of that name, `[a|b]` for one of its parts.

TOPICS = (
    "travel", "code", "data", "support", "finance", "medicine", "science", "planning", "cooking", "legal", "education",
    "home", "writing",
)  # fmt: skip
LANGUAGES = ("german", "french", "spanish", "lingua")

WORDS: dict[str, str] = {
    "noun": """
        time year people way day man thing woman life child world school state family student group country problem
        hand part place case week company system program question work government number night point home water room
        mother area money story fact month lot right study book eye job word business issue side kind head house
        service friend father power hour game line end member law car city community name president team minute idea
        body information back parent face level office door health person art war history party result change morning
        reason research girl guy moment air teacher force education foot boy age policy process music market sense
        nation plan college interest death experience effect use class control care field development role effort rate
        heart drug show leader light voice wife police mind price report decision son view relationship town road
        difference value building action season society tax director position player record paper space ground form
        event official matter center couple site project activity star table need court oil situation cost industry
        figure street image phone data picture practice piece land product doctor wall patient worker news test movie
        north love support technology step baby computer type attention film tree source hair window culture chance
        brother energy period course summer plant opportunity term letter condition choice rule daughter south husband
        floor campaign material population call economy hospital church risk fire future bank agreement glass board
        garden kitchen bottle corner surface weather station machine method analysis example answer language structure
        memory pressure knowledge detail amount distance beginning attempt approach purpose response resource quality
        argument evidence contract discussion meeting message document account address option feature version request
        feedback solution environment application network database schedule deadline budget customer payment delivery
        equipment instrument vegetable breakfast afternoon evening weekend holiday neighbour village mountain island
        bridge corridor ceiling temperature direction movement explanation conversation appointment permission
        insurance requirement recommendation improvement sister cousin grandfather cupboard drawer ladder basket
        blanket pocket jacket engine bicycle platform winter autumn spring teenager volunteer colleague manager
        engineer lawyer nurse farmer driver writer reader stranger audience
    """,
    "verb": """
        ask need call try want work help talk turn start show hear play move like live believe hold happen provide
        include continue learn change watch follow create open walk offer remember consider appear serve expect stay
        reach remain suggest raise pass require report decide pull return explain hope develop carry receive agree
        support remove describe produce prepare manage improve discuss measure compare collect complete deliver design
        discover enjoy escape examine explore express finish gather handle identify imagine increase introduce
        investigate maintain mention notice observe organise perform prefer present prevent promise propose protect
        prove publish purchase realise recognise recommend record reduce reflect refuse relate release replace
        represent resolve respond review reveal satisfy search select separate settle share solve store submit succeed
        suffer supply survive test train transfer travel treat trust update visit wait warn wonder worry achieve
        announce apply argue arrange assume attach attend avoid check choose claim clean collapse combine connect
        contain contribute control cover cross deal declare demand deny depend deserve destroy determine borrow bother
        breathe celebrate complain
    """,
    "adj": """
        other new good high old great big American small large national young different black long little important
        political bad white real best right social only public sure low early able human local late hard major better
        economic strong possible whole free military true federal international full special easy clear recent certain
        personal open red difficult available likely short single medical current wrong private past foreign fine
        common poor natural significant similar hot dead central happy serious ready simple left physical general
        environmental financial blue democratic dark various entire close legal religious cold final main green nice
        huge popular traditional cultural additional useful careful reasonable expensive comfortable dangerous
        interesting beautiful wonderful terrible ordinary familiar obvious necessary practical relevant separate
        specific sensitive temporary permanent powerful previous professional responsible successful surprising
        sufficient suitable typical unusual valuable visible wooden broken empty quiet gentle narrow heavy bright
        sharp smooth rough gradual nervous angry strange funny tired patient grateful lovely brilliant ridiculous
        enormous tiny ancient modern
    """,
    "adverb": """
        just now then more also here well only very even back there down still never really most over again always
        today away yet often however almost later much once together around already enough both maybe actually
        probably perhaps sometimes finally less better early especially either quite simply nearly soon certainly
        quickly recently before usually exactly particularly generally slowly carefully directly immediately
        completely absolutely suddenly otherwise eventually fairly rather roughly honestly apparently basically
        currently easily extremely frequently fully gradually hardly hopefully largely mainly merely mostly naturally
        necessarily normally obviously occasionally originally partly perfectly possibly precisely previously properly
        regularly relatively seriously significantly similarly slightly somewhat specifically strongly surprisingly
        thoroughly typically unfortunately anyway somewhere everywhere straight halfway tomorrow yesterday tonight
    """,
    "ing": """
        being having doing saying going getting making knowing thinking taking seeing coming wanting looking using
        finding giving telling working calling trying asking needing feeling becoming leaving putting meaning keeping
        letting beginning seeming helping talking turning starting showing hearing playing running moving living
        believing bringing happening writing providing sitting standing losing paying meeting including continuing
        setting learning changing leading understanding watching following stopping creating speaking reading allowing
        adding spending growing opening walking winning offering remembering considering appearing buying waiting
        serving sending expecting building staying falling cutting reaching remaining suggesting raising passing
        selling requiring reporting deciding pulling driving eating sleeping drinking breaking choosing drawing
        holding
    """,
    "past": """
        was had did said went got made knew thought took saw came wanted looked used found gave told worked called
        tried asked needed felt became left put meant kept let began seemed helped talked turned started showed heard
        played ran moved lived believed brought happened wrote provided sat stood lost paid met included continued set
        learned changed led understood watched followed stopped created spoke read allowed added spent grew opened
        walked won offered remembered considered appeared bought waited served died sent expected built stayed fell
        cut reached remained suggested raised passed sold required reported decided pulled drove ate slept drank broke
        chose drew held threw caught taught fought forgot hid rose shook stole wore woke bent lent hung struck
    """,
    "done": """
        been had done said gone made known thought taken seen wanted looked used found given told worked called tried
        asked needed felt left put kept helped moved turned started shown heard played run brought written provided
        lost paid met included set learned changed understood watched followed stopped created spoken read allowed
        added spent grown opened offered considered bought sent expected built fallen cut reached raised sold required
        reported decided driven eaten broken chosen drawn held thrown caught forgotten removed replaced
    """,
    "name": """
        Alice Ben Carla Daniel Elena Farid Grace Hiro Ines Jonas Kavya Liam Maria Nadia Oscar Priya Quentin Rosa
        Samuel Tara Ulrich Vera Wei Xenia Yusuf Zoe Anna Peter David Sarah Michael Laura James Emily John Kate
    """,
    "surname": """
        Smith Johnson Garcia Martin Müller Rossi Tanaka Kim Nguyen Patel Silva Novak Andersen Haddad Okafor Cohen
        Dubois Larsen Brown Taylor
    """,
    "city": """
        London Paris Berlin Madrid Lisbon Rome Vienna Prague Tokyo Kyoto Seoul Singapore Sydney Toronto Boston Chicago
        Denver Austin Seattle Amsterdam Copenhagen Stockholm Dublin Edinburgh Athens Istanbul Cairo Nairobi Mumbai
        Delhi Bangkok
    """,
    "month": "January February March April May June July August September October November December",
    "weekday": "Monday Tuesday Wednesday Thursday Friday Saturday Sunday",
    "small": "two three four five six seven eight nine ten twelve fifteen twenty thirty forty fifty",
    "unit": "minutes hours days weeks months years people times kilometres euros dollars percent items rows points",
    "lib": """
        pandas numpy requests fastapi django flask react asyncio pytest sqlalchemy pydantic docker kubernetes redis
    """,
    "tool": """
        search_web get_weather read_file write_file list_files run_command execute_sql query_database send_email
        create_event get_user_info book_flight search_flights search_hotels calculate fetch_url python_interpreter
        code_interpreter retrieve_documents search_documents create_ticket update_order get_order_status
        lookup_customer transfer_to_agent get_stock_price translate_text summarize_text edit_file grep web_search
        str_replace_editor bash view_image save_memory search_memory final_answer
    """,
    "ident": """
        user item order result value data name count index total config message response request client server session
        token payload record row column query path file line text key status error event handler callback options
        context state model node edge graph items users orders settings timeout limit offset page cursor cache buffer
        start end length size score weight label target source input output customer product price amount account date
        timestamp created_at updated_at user_id order_id session_id max_retries batch_size is_active
    """,
    "func": """
        get_user load_config parse_args fetch_data process_items save_results validate_input build_query send_request
        handle_error update_state create_session read_lines write_output compute_total normalize_text format_date
        to_dict from_dict main run setup teardown connect close retry_request merge_records split_batches
    """,
    "klass": """
        UserService OrderRepository Config Client Session MessageHandler DataLoader Pipeline Cache EventBus
        RequestContext ResponseModel TaskQueue Worker Parser Tokenizer AgentState ToolResult
    """,
    "exc": """
        ValueError KeyError TypeError RuntimeError AttributeError IndexError FileNotFoundError ConnectionError
        TimeoutError PermissionError ModuleNotFoundError AssertionError OSError
    """,
    "model": """
        gpt-4o gpt-4o-mini gpt-4.1 gpt-4.1-mini gpt-5 gpt-5-mini o3-mini claude-3-5-sonnet-20241022
        claude-3-7-sonnet-20250219 claude-sonnet-4-20250514 claude-opus-4-20250514 gemini-2.0-flash gemini-2.5-pro
        llama-3.3-70b-instruct mistral-large-latest qwen2.5-72b-instruct deepseek-chat
    """,
    "node": """
        agent tools planner researcher writer reviewer supervisor router retriever generate grade_documents human
    """,
    "folder": """
        src tests lib app docs scripts config data utils components services models api core static home/user
    """,
    "ext": "py ts tsx js json md yaml toml sql sh txt csv html css rs go",
    "travel_noun": """
        flight hotel itinerary passport visa luggage airport train ticket museum beach reservation destination
        restaurant layover departure arrival boarding-pass city-centre neighbourhood
    """,
    "code_noun": """
        function class module method variable argument exception test repository branch commit pull-request dependency
        package interface endpoint server request response thread loop query index migration deployment container
        pipeline cache configuration environment library framework stack-trace memory-leak
    """,
    "data_noun": """
        dataset column row table chart average median distribution outlier correlation regression sample forecast
        trend dashboard metric percentage quarter revenue conversion-rate missing-value confidence-interval
    """,
    "support_noun": """
        order refund subscription account invoice delivery warranty replacement password email-address tracking-number
        shipment return-label support-team payment-method billing-address customer
    """,
    "finance_noun": """
        portfolio stock bond interest-rate mortgage loan budget savings-account pension dividend tax-return income
        expense credit-card emergency-fund index-fund balance-sheet investment
    """,
    "medicine_noun": """
        symptom treatment dose blood-pressure infection diagnosis prescription side-effect allergy headache fever
        vaccine operation appointment specialist painkiller medication diet
    """,
    "science_noun": """
        experiment hypothesis molecule protein gene temperature galaxy planet particle species climate cell reaction
        measurement theory ecosystem telescope
    """,
    "planning_noun": """
        project milestone deadline task meeting agenda stakeholder roadmap priority risk timeline checklist goal
        team-member status-update action-item budget
    """,
    "cooking_noun": """
        recipe oven garlic onion butter flour sugar salt pepper olive-oil chicken pasta rice tomato sauce cheese lemon
        dough pan tablespoon teaspoon baking-sheet
    """,
    "legal_noun": """
        contract clause agreement liability party notice landlord tenant lease employer employee copyright licence
        privacy-policy regulation court claim termination
    """,
    "education_noun": """
        student teacher lesson essay exam assignment grade course lecture textbook chapter exercise vocabulary grammar
        equation homework thesis paragraph introduction conclusion
    """,
    "home_noun": """
        kitchen bathroom wall paint roof window garden plant tree soil tool screw pipe leak boiler furniture shelf
        carpet neighbour noise parking-space
    """,
    "writing_noun": """
        story character chapter scene plot dialogue poem title paragraph sentence reader narrator opening ending draft
        editor headline blog-post newsletter
    """,
}

# Sentences that could stand anywhere.
STOCK = """
There are a few things to keep in mind here. It's not the end of the world, but it's something we should deal with
sooner rather than later. I don't think there's anything wrong with what you did, though you could have told us a
little earlier. The rest of the work can wait until next week, when everyone is back from holiday. As soon as we have
more information, we will let you know and take it from there. I've been doing this for a long time, and I have never
seen anything like it before. That would be great, thank you very much for your help with this. You don't need to do
anything else at this point; it should happen on its own. At the end of the day, it comes down to how much time and
money you are willing to spend. We went there a couple of years ago and had a really good time, even though it rained
most of the week. If you have any other questions, feel free to ask, and I'll do my best to help. Let me know if you'd
like me to go into more detail about any of these points. I wasn't able to find what I was looking for, so I ended up
buying something else instead. Nothing has changed since the last time we talked about it, as far as I can tell. It
took me the whole afternoon to figure out what was going on, and in the end it was something very simple. On top of
that, there was no way of knowing how long it would take or whether it would work at all. What I'd really like to know
is whether anybody else has had the same problem. She said she would call back before the end of the day, but I
haven't heard anything from her since. Most people would have given up by now, but you've come a long way and you're
almost there. That's why I'd rather not make any promises about when it will be ready. They have been living in the
same house for more than thirty years, and everyone in the street knows them. It's hard to say without seeing it, but
it sounds as though something came loose on the inside. He didn't seem to mind at all, which surprised me, because he
usually gets upset about that kind of thing. There's no need to worry about it too much, since you can always change
your mind later. I'm looking forward to hearing from you, and I hope you have a great weekend. We might as well start
now, because it isn't going to get any easier if we wait. You could also try something different: leave it alone for a
while and see what happens. I can't remember where I put it, but it has to be somewhere around here. The first thing
you should do is make a list of everything that needs to be done. As you probably know, this isn't the first time that
something like this has happened. It might be worth asking one of your friends or somebody at work who knows more
about it than I do. When I was a child, my father used to take us down to the river every Sunday morning. I would
start with the small one, because if it doesn't work out you haven't lost very much. Please don't hesitate to contact
us if there is anything else we can do for you. It doesn't matter which one you choose, as long as you stick with it.
Half of it was already gone by the time we got there, and the other half wasn't worth keeping. I'm afraid I don't have
access to that information, so I can't give you an exact number. It would have been much cheaper to do it ourselves,
but nobody had the time. Try to get enough sleep, drink plenty of water, and don't be too hard on yourself. In the
long run it's probably better to pay a little more for something that lasts. The whole thing shouldn't take more than
an hour or two, depending on how careful you want to be. I know it sounds strange, but that's exactly how it works,
and there's a good reason for it. You'll want to double-check the numbers before you send it to anybody outside the
company. There was a time when you could walk from one end of the town to the other without meeting a single car. Make
sure you read through everything carefully before signing, especially the part about the notice period. I haven't
decided yet, because each of them has its advantages and disadvantages. What happened next was even more interesting,
and nobody had expected it. We should be able to finish most of this today, and the remaining parts tomorrow morning.
Thank you for your patience while we look into this; somebody from our team will be in touch shortly. Take your time,
there is no hurry, and we can talk about it again whenever you're ready. It's one of those things that look easy from
the outside but turn out to be surprisingly difficult. Whatever you decide, don't do it just because other people
think you should. I thought about it for a few days and came to the conclusion that you were right all along. None of
them could explain where the money had gone or who was supposed to look after it. You can find a lot of information
about this on the internet, but not all of it is true. We've got about three hundred of them left, which is more than
enough for the time being. They told us that it would be fixed within twenty-four hours, but that was almost two weeks
ago. Once you've finished that, go back to the beginning and see whether the results are still the same. Sometimes the
simplest explanation is the right one, and sometimes it isn't. The weather was terrible, the food was cold, and the
people were wonderful. It depends on a number of different things, such as how old it is and where it comes from. I
really appreciate everything you've done for us over the past few months. Somebody must have left the door open,
because the dog was standing in the middle of the kitchen. The older I get, the less I understand how anyone manages
to do all of this at once. If it were up to me, I would throw the whole thing away and begin again from scratch. She
looked at me as if I had said something funny, and then she started to laugh. That is not quite what I meant, so let
me try to put it another way. People often forget that it used to be completely normal to do this by hand. For the
sake of simplicity, let's assume that nothing else changes during that time. There isn't much we can do about it right
now, apart from waiting for them to answer. Both of them are fine, although the second one is slightly more expensive
than the first. In some cases you may have to wait a little longer, particularly during the summer months. I'm not
saying it's a bad idea; I'm just saying that we ought to think about it first. As a rule of thumb, you should set
aside about ten percent of what you earn each month. Before we go any further, could you tell me a little bit more
about what you're trying to do? It turned out to be much bigger than we thought, and it wouldn't fit through the front
door. Everything else stays the same, so you won't have to change anything on your side. You shouldn't feel bad about
it, because anybody could have made the same mistake. I asked around and it seems that nobody knows who is responsible
for this anymore. Even if it works perfectly, we will still need someone to look at it from time to time. The
difference between the two is that one of them was made to last and the other one wasn't. We're going to need a bigger
table, another pot of coffee and quite a lot of luck. Whether or not this is a good thing depends very much on who you
ask. I'd be careful with that, because the last time we tried it we lost almost everything. He put his hands in his
pockets, turned around slowly, and walked out of the room without saying a word. Not everybody agrees with this, of
course, and there are good arguments on both sides. According to the latest figures, the number has gone up by almost
a third since last year. It has nothing to do with you; it's just the way things are done around here. Please keep in
mind that these are only rough estimates and may change at any time. How would you feel about meeting somewhere in the
middle, perhaps on Thursday evening? We could have stayed there forever, watching the light change over the water.
That's a completely different question, and I'm not sure I'm the right person to answer it. There is something about
the way he talks that makes people want to listen to him. I suppose we will have to see about that when the time
comes. By the time she came downstairs, breakfast was over and the children had already left for school. You might
think that this is a waste of time, yet without it the rest wouldn't make any sense. The trouble with this approach is
that it only works when everybody plays by the same rules. Ask yourself what you would do if you had twice as much
time and half as much money. As for the other part of your question, I don't have a good answer at the moment. We used
to spend hours in the garden, talking about nothing in particular until it got dark. I've attached a copy of the
letter, along with a few photographs from last Saturday. Nowadays hardly anyone does it this way, although there's
nothing wrong with it in principle. Let's not forget that somebody has to pay for all of this in the end. It's been
raining for most of the day, and the water in the cellar is about an inch deep. They seemed to be perfectly happy, or
at any rate that's what they wanted us to believe. I had to read it three times before I understood what the author
was trying to say. You may well be right about that, but how are we supposed to prove it? Having said that, there are
still one or two things that I would do differently. Every now and then something goes wrong, and then you're glad to
have a second copy. The best part was the very last scene, where the two brothers finally talk to each other. It costs
roughly three times as much as it did ten years ago, which is hard to believe. Just because something has always been
done like that doesn't mean that it has to stay that way. My mother, who had never been further than the next town,
bought herself a ticket and went. This approach ensures that every request is handled correctly, even when several
users are working on the same document. It's important to note that these results are based on a relatively small
sample, so they should be interpreted with caution. To implement this feature, you'll need to make changes in three
different places: the database, the server and the user interface. The following example demonstrates how to connect
to the service, authenticate with an access token and retrieve the available resources. Additionally, consider adding
a simple logging mechanism, which would provide valuable insights into how the application is being used. Here's a
step-by-step guide that explains everything you need to know in order to get started, including the most common
mistakes. Based on your requirements, I would recommend the second option, since it offers better performance and is
significantly easier to maintain. There are several factors that contribute to this, including the overall quality of
the material, the level of experience and the available budget. While this might seem like a minor detail, it can have
a major impact on how quickly people are able to find what they need. The main advantage of this method is its
flexibility; the main disadvantage is that it requires considerably more memory. Overall, the proposal is well
structured and addresses the key challenges, although some sections could be more specific. I need to understand the
current implementation before making any changes, so let me start by exploring the directory structure. Now that I
have a better understanding of the problem, I can see that the error occurs because the value is never updated. The
user is asking about the difference between the two plans, so I should provide a clear comparison and mention the
price. Let me search for more information about this topic and then summarize the most relevant findings for you. I've
successfully completed the following tasks: created the new configuration file, updated the documentation and removed
the old dependencies. If the problem persists after restarting the device, please contact customer support and include
the exact error message. Unfortunately, I couldn't find any results matching your search criteria; would you like to
try different dates or a nearby location? Your account has been successfully created, and you will receive a
confirmation email with further instructions within the next few minutes. Please make sure that all of the required
fields are filled in before you submit the application form. These are some of the best practices that experienced
developers follow in order to keep their code readable and easy to test. In conclusion, regular exercise, a balanced
diet and sufficient sleep are essential for both physical and mental health. The purpose of this section is to give
you a general overview of the process without going into too much technical detail. Once the analysis is complete, the
system automatically generates a detailed report that can be shared with other members of the team. Depending on your
specific needs, you may want to consider an alternative solution that does not involve any additional costs. As an
experienced professional, you are probably already familiar with most of these concepts, so I'll keep the introduction
short. Several studies have shown that people who spend more time outdoors are generally happier and less likely to
suffer from stress. The government announced on Wednesday that it would increase spending on public transport by more
than two billion over the next decade. Historically, the region was known for its agriculture, but over the last
century most of the younger population has moved to the cities. Climate change affects everyone, but developing
countries are particularly vulnerable because they have fewer resources to respond to it. Artificial intelligence is
already being used in many different areas, from medical research and education to customer service and
transportation. A good leader knows how to listen, how to give honest feedback and, above all, how to take
responsibility when something goes wrong. Customers who purchased this product were generally satisfied with the
quality, although some complained about the slow delivery. You should always keep a backup of your important files in
at least two separate locations, one of which should be outside your home. The temperature inside the building must
not rise above twenty-five degrees, otherwise the equipment could be damaged permanently. In mathematics, a function
assigns exactly one output to each input, and its graph shows the relationship between the two. Suppose that we have a
large collection of documents and would like to find those that are most similar to a given question. The first step
is to identify the root cause of the problem, and the second is to decide what can be done to prevent it from
happening again. They decided to postpone the decision until September, when the new director would be available to
discuss the details in person. It is recommended that you arrive at the airport at least two hours before departure,
especially during the holiday season. Although the initial investment is fairly high, the savings on electricity will
cover the cost within approximately five years. The committee has reviewed your application carefully, and we are
pleased to inform you that it has been approved. Write down three things that went well today, three things that could
have gone better, and one thing you would like to change tomorrow. She has worked as a nurse in the children's
hospital for almost twenty years and still enjoys getting up in the morning. My brother bought an old boat last
spring, and since then he has spent every free weekend repairing the engine. The restaurant around the corner serves
excellent fish, but you have to book a table several days in advance. Could somebody please explain to me why the
lights in the hallway are always on during the day and off at night? We've received a large number of complaints about
the noise from the building site, most of them from families with young children. The police are looking for a tall
man with short dark hair who was seen near the station shortly before midnight. After dinner we sat around the table
for hours, drinking wine, telling stories and listening to the rain against the windows. Their relationship had always
been difficult, and after the accident they hardly spoke to each other anymore. He spent most of his childhood on a
farm in the north of the country, surrounded by horses, dogs and an enormous number of books. You can't expect people
to trust you if you keep changing your story every time somebody asks a simple question. I'm going to be perfectly
honest with you: I have absolutely no idea how we are supposed to finish this on time. Everybody was waiting for
someone else to say something, so in the end nobody said anything at all. If I were in your position, I'd speak to a
lawyer before agreeing to anything, no matter how friendly they seem. It was so cold that the river froze over, and
for the first time in living memory people were able to walk across it. The museum is closed on Mondays, but the
gardens behind it are open to the public throughout the year and entrance is free. Imagine that you are standing in
front of a mirror with a candle in your left hand; which hand is your reflection holding? Almost nothing is known
about the early life of the painter, except that he was born in a small village near the southern border. The trouble
is that cheap shoes fall apart after six months, so you end up spending more than if you'd bought a decent pair. Leave
the dough in a warm place for about an hour until it has doubled in size, then shape it into small round loaves. Cut
the potatoes into thin slices, rinse them under cold water, and dry them thoroughly before frying. Be careful not to
touch the surface with your fingers, because even a tiny amount of grease will make the paint come off again. Before
buying a used car, check the tyres, look underneath for rust, and ask the owner how many people have driven it before.
What we see when we look at the night sky is the past: some of those stars may have disappeared thousands of years
ago. The heart pumps about five litres of blood through the body every minute, and considerably more during exercise.
Children learn languages much faster than adults, partly because they aren't afraid of making mistakes. Both sides
signed the agreement, yet neither of them believed that the other would keep its promises for very long. The price of
oil dropped sharply last month, which is good news for drivers but bad news for companies that invested heavily in it.
In theory you could do all of it in a single afternoon; in practice it will probably take you the better part of a
week. I'd like to cancel my subscription immediately and get my money back, because the service hasn't worked properly
for the last three weeks. Instead of complaining about it, why don't we sit down together and work out a better way of
sharing the housework? There's a small shop next to the post office that sells everything from fresh bread and
newspapers to screws and garden tools. Somewhere between the kitchen and the bathroom I lost one of my earrings, and
I've been searching for it ever since. Thousands of people came out into the streets to celebrate, singing and dancing
until the early hours of the morning. The teacher explained the exercise twice, but half of the class still didn't
understand what they were supposed to do. Every single one of these problems could have been avoided if someone had
taken the trouble to ask the right people. It's a beautiful house, no doubt about it, but the bathroom is tiny and the
garden gets hardly any sun in the winter. The older brother became a doctor, the younger one a musician, and their
sister travelled around the world with nothing but a backpack. Nothing could be further from the truth; on the
contrary, we have been trying to solve this for a considerable length of time. You will need a sharp knife, a large
bowl, two clean towels and a great deal of patience. Whenever I hear that song, I'm reminded of the summer we spent
together on the island, and how young we all were. His argument was simple: if nobody is willing to pay for it, then
perhaps it isn't worth doing in the first place. We were just about to leave when the telephone rang, and by the time
I had found my keys the bus was gone. Most of the damage was caused by water rather than fire, and the insurance
company refuses to pay for any of it. The patient is a 54-year-old woman with a history of high blood pressure who
presents with severe pain in her right shoulder. Take one tablet every eight hours with plenty of water, and stop
taking them if you notice any unusual symptoms. Sales have been growing steadily since January, mostly because of the
new website and the advertising campaign in the spring. Thank you for your interest in our company; however, we have
decided to move forward with another candidate for this position. The tenant is responsible for keeping the apartment
clean and in good condition, and must report any damage to the owner without delay. Neither the author nor the
publisher can be held responsible for any loss or damage that results from the use of this information. How many times
have I told you not to leave your wet clothes lying on the bathroom floor? That reminds me of something my grandfather
used to say: measure twice, cut once, and never lend anybody your best hammer. The train was delayed because of heavy
snow, so we spent most of the night in a waiting room with about forty other passengers. At first sight the two
pictures look exactly the same, but if you look more closely you'll notice that the shadows are different. Don't
forget to bring warm clothes, a torch and something to eat, since there won't be any shops once we leave the main
road. Which of the following statements best describes the main idea of the second paragraph? Our neighbours are
lovely people, but their dog barks every time someone walks past the front door. I wonder what would have happened if
we'd taken the other road that evening, or stayed at home, or simply missed the train.
"""

LINES: dict[str, str] = {
    "open_a": """
        - Sure! Here's [a quick overview|a short summary|an example|what I found|how to do it|one way to do that].
        - Of course! [Let me|I'd be happy to|I'll] [help you with that|walk you through it|take a closer
          look|explain].
        - Great question! [The short answer is|In short|It depends on] what you [want to achieve|are trying to do|have
          in mind].
        - Thanks for [the details|sharing that|the additional information|getting back to me|your patience|reaching
          out].
        - I understand [your concern|how frustrating that can be|that this is not what you expected].
        - You're right, and I apologize for the [confusion|mistake|inconvenience|misunderstanding].
        - Let me [check|look into|search for|read|update|verify|take a look at] [that for you|the file|the latest
          information|this].
        - Based on [the information you provided|the search results|the documents|what you've described|the data],
          {clause}.
        - I've [updated|created|fixed|reviewed|checked|finished] the {tn} and [everything looks good|all tests pass
          now|here is the result].
        - Here are [some|a few|the main|three|five] [options|things|steps|ideas|points|suggestions] [to consider|you
          might want to try|that come to mind]:
        - Yes, that's [correct|possible|a good idea|exactly right], [but|although|and] {clause}.
        - No, I don't think [so|that is the case|that would work], because {clause}.
        - It looks like {clause}, so {clause}.
        - That's a [really good|very common|fair|tricky|great] question, and the answer is [not straightforward|more
          complicated than it seems|yes].
        - I'm sorry to hear that. [Let's see what we can do|Could you tell me a bit more about what happened]?
        - Now let me [look at|check|run|read|search for] the {tn} to [see|understand|find out|make sure] [what is
          going on|how it works|if it works].
        - The issue [is|seems to be|was] that the {tn} [is not|isn't|was never|has already been] {done}
          [before|when|after|until] the {tn} is {done}.
    """,
    "open_u": """
        - Hi, I [need|would like|want|am looking for] [some help|advice|information|a second opinion] [with|on|about]
          [my|the|a] {tn}.
        - Can you [help me|tell me|show me|explain|find|write|check|summarize|give me] [how to|what|why|whether|the
          best way to] {vp}?
        - I'm trying to {vp}, but [it doesn't work|I keep getting an error|I don't know where to start|nothing
          happens|I'm stuck].
        - What [is|are|would be|do you think is] the [best|easiest|difference between|main reason|right] [way
          to|the|and] {vp}?
        - How [do I|can I|should I|would you|long does it take to|much does it cost to] {vp}?
        - Please [write|create|find|make|update|fix|send|look up|book|add|remove|compare|translate] [a|the|my|our|all
          the] {tn} [for|and|with|to|from] [the|my|a] {tn}.
        - Thanks, that [works|helps|makes sense|was very helpful]! [One more thing|Another question|Now]: {q}
        - I have a [question|problem|meeting|few questions|deadline] [about|with|regarding|on] the {tn},
          [and|because|since] {clause}.
        - Is there [any|a|another] way to {vp} without {ing} the {adj} {tn}?
        - We are [planning|thinking about|working on|looking at|considering] [a trip to {city}|a new {tn}|{ing} the
          {tn}] [in {month}|next week|next year|this summer].
        - Could you please [take a look at|double-check|go through|rewrite|shorten] [this|the following|my] {tn}?
        - My {tn} [is|has been|was] {adj} [since|for|after] [yesterday|a few days|last week|the update|{small}
          {unit}].
    """,
    "q": """
        - What do you think?
        - Does that make sense?
        - Is that [right|correct|possible|normal|still the case]?
        - Do you have any [other|idea|suggestions|questions|recommendations] [on this|what could be wrong|for me]?
        - Would you like me to {vp}?
        - Could you tell me [what|which|when|how many|how much|whether] [you|they|we] [need|want|have|would prefer|are
          going to do]?
        - Have you [already|ever] tried {ing} the {tn}?
        - How [many|much|long|often|far] [people|time|does it take|do you|is it] [are there|do you have|until
          {weekday}]?
        - Why [is|does|did|would|isn't|doesn't|can't] [it|that|this|the {tn}] [so {adj}|work|happen|matter]?
        - Which [one|of these|option|version] [do you prefer|would you recommend|is better|should I use]?
        - When [is|does|will|would] the {tn} [be ready|start|arrive|end|be available]?
        - Should I [wait|try again|call them|use the {adj} one|ask someone else] or [is there|do you know] [another
          way|something better]?
    """,
    "clause": """
        - the {tn} [is|was|has been|will be|might be|seems] [too|very|quite|more|a bit|not] {adj}
        - [you|we|they|I] [can|could|should|will|would|may|might|need to|have to|want to|don't have to] {vp}
        - it [is|was|would be|might be|will be] [better|possible|easier|important|a good
          idea|difficult|necessary|hard] to {vp}
        - there [is|are|was|were|will be|might be] [a lot of|no|some|a few|only one|several|many|enough|plenty of]
          {adj} [{noun}|{tn}s|ways] [in|on|for|to|about|with] the {noun}
        - [most|some|many|all|none|few|both|half] of the {tn}s [are|were|have been|will be] [{adj}|{done}|{done} by
          the {noun}]
        - [this|that|it|which] [means|suggests|shows|makes sure|is because|depends on whether|explains why] the {tn}
          [is|has|can|does not|wants to|ought to] {verb} [the|a|your] {noun}
        - [I|we|they|people|you] {past} [the|a|this|that|their|our|my] {adj} {noun}
          [in|on|at|from|with|for|of|before|after|through|between|over|under|into|behind|across|along|against]
          [the|my|a|her|his] {tn}
        - [I|we|you|they] [don't|didn't|can't|couldn't|won't|haven't|wouldn't|shouldn't]
          [know|think|see|find|need|want|believe|remember|understand|have] [it|that|any {tn}|the {noun}|what to do|how
          to {vp}]
        - [he|she|the {noun}|my {noun}|the {adj} one|somebody] {past} [it|me|us|them|the
          {tn}|something|everything|nothing] {adverb} [about|for|with|and|because of|out of|into] the {noun}
        - [what|how|where|why] [you|we|they|it] {past} [is|was] [up to you|not clear|the most {adj} part|still
          {adj}|another {noun}]
        - [I|we|they|she|he|you|it] [have|had|has|would have|must have|could have|should have|might have] {adverb}
          {done} [the|a|its|their|some] {noun} [and|or|but not|as well as|rather than|instead of|because of] the {adj}
          {noun}
        - [I've|we've|you've|they've|I'd|you'd|we'd|they'd|he'd] {adverb} {done} [it|the {noun}|a {adj} {noun}|more
          than {small} {unit}|that way] [since {month}|for {small} {unit}|on {weekday}|last {weekday}|every day|all
          the time|so far]
    """,
    "vp": """
        - [get|find|make|use|take|keep|give|have|see|put|bring|buy|send|read|write|run|set up|choose|change]
          [the|a|your|my|some|all|an|another] [{adj} {tn}|{tn}]
        - {verb} [the|a|your|this|that|it|each|every] [{adj} {noun}|{noun}] [of|in|for|from|with|to|at|by|on]
          [the|a|your|each] [{tn}|{noun}]
        - [make sure that|find out whether|check that|see if|understand why|explain how|decide when] the {tn}
          [is|was|can be|has been] {adj}
        - [work|go|come|look|talk|think|deal|start|get rid|take care|keep track|take advantage]
          [with|of|about|through|on|at|to|for] the {tn}
        - [go|get|come] [back|out|home|there|started|together|ahead] [with|to|and|before] {verb} [it|the {noun}|them]
        - {verb} [it|them|this|everything|something else|one] [again|first|later|yourself|by hand|at the same time|as
          well|for free|right away|as soon as possible]
    """,
    "sent": """
        - {lead} {clause}, [and|but|so|because|which means that|while|although|since|or|whereas|unless|if] {clause}.
        - {lead} {clause}.
        - {lead} {clause}[;|:| -|,] [otherwise|in that case|after that|as a result|for example|that way|even so],
          {clause}.
        - [If|When|Once|Before|After|While|Because|Since|Unless|Although|As long as] {clause}, {clause}.
        - {stock}
        - {stock}
        - {stock}
    """,
    "lead": """
        - [However|Also|Then|First|Finally|In addition|For example|For instance|On the other hand|In general|As a
          result|In fact|Of course|At first|At the moment|By the way|In other words|In my experience|That said|Even
          so|Still|Instead|Overall|In the end|Most of the time|As far as I know|To be
          honest|Unfortunately|Fortunately|Actually|Maybe|Perhaps|Usually|Personally|Apparently|After all|At
          least|More importantly|Meanwhile|Next|Otherwise|Similarly|Therefore|Ultimately|Later on|Sometimes|So far|If
          possible|In the meantime|As you can see|As mentioned above|Before that],
        - [I think|I believe|I guess|I hope|I'm sure|I'm not sure whether|It seems that|It turns out that|It's
          possible that|The problem is that|The point is that|The good news is that|My guess is that|Keep in mind
          that|Note that|Remember that|Make sure that|Please note that|I would say that|They say that|Everyone knows
          that|He said that|She told me that|We found that|It's worth noting that|There's a chance that|I noticed
          that|What matters is that|One of the reasons is that|The only thing is that]
        - [And|But|So|Or|Yet]
    """,
    "close": """
        - I hope this helps! [Let me know if you have any questions|Feel free to ask if anything is unclear|Happy to
          help further].
        - Would you like me to [continue|do that|proceed|make these changes|show you an example|look into it
          further|explain this in more detail]?
        - Please let me know [how you would like to proceed|if you need anything else|which option you prefer|what you
          think].
        - Is there anything else I can help you with today?
        - {q}
    """,
    "travel": """
        - The [direct|cheapest|next|earliest|overnight] flight from {city} to {city} [leaves|departs|arrives] at
          {clock} and costs [about|around|just under|from] {money}.
        - The hotel is [a short walk|ten minutes by train|right across the street] from the [city centre|main
          station|airport|old town], and breakfast is included.
        - I've found {small} hotels in {city} for {month} {dayn}, all of them under {money} per night with free
          cancellation.
        - Spend the first day [walking around|exploring] the old town, then take the [ferry|train|bus] to the
          [island|coast|mountains|lake].
        - You don't need a visa for stays of up to 90 days, but your passport must be valid for at least six months.
        - The best time to visit is [spring|autumn|between {month} and {month}], when the weather is [mild|warm and
          dry] and there are fewer tourists.
        - [Book|Reserve] your tickets in advance, especially on weekends, because the lines at the museum can be very
          long.
        - Public transportation in {city} is excellent, so there is no need to rent a car.
    """,
    "code": """
        - The function [returns|raises|expects|takes|ignores] [None|a list of strings|a dictionary|an exception|the
          wrong type] [when|if|because] the {ident} [is empty|is missing|does not exist|is not a valid `{ident}`].
        - I [added|removed|renamed|updated|refactored|fixed] the `{func}` [function|method|helper|test] in `{path}` so
          that it [handles|returns|checks|ignores|no longer uses] the `{ident}`.
        - Run `{cmd}` to [make sure|check that|verify] everything [still works|passes|is installed correctly].
        - You [can use|should use|need to install|might want to try] `{lib}` [for this|instead|to do this], since it
          [supports|handles|provides] this out of the box.
        - The error message `{exc}: {errtext}` means that [the variable is not defined|the file could not be found|the
          connection was closed|the key is missing from the dictionary].
        - This [is because|happens when|is caused by] the [event loop|connection pool|cache|database session] is
          [shared between threads|closed before the request is finished|never released|created at import time].
        - Make sure to [set|export|check] the `{envvar}` environment variable before [running the tests|starting the
          server|deploying].
        - All {small} tests pass now, and I also added a regression test for the edge case you mentioned.
        - Let me [look at|read|search] the [source code|existing implementation|test file|configuration] first to
          understand the structure of the project.
    """,
    "data": """
        - The average {ident} [increased|decreased|rose|fell] by {pct} [compared to|from] the previous
          [quarter|month|year], [mainly due to|driven by] [higher|lower] [sales|demand|costs|traffic] in {month}.
        - There are {num} rows and {small} columns, of which {pct} have missing values in the `{ident}` column.
        - The correlation between {ident} and {ident} is {float}, which is [statistically significant|fairly
          weak|surprisingly strong] (p < 0.05).
        - I would [plot|group|filter|sort|join] the data by [month|region|customer|category] before drawing any
          conclusions.
        - The chart shows a clear upward trend with a seasonal pattern and a few outliers at the end of the year.
        - The median is more robust than the mean here, because the distribution is heavily skewed to the right.
    """,
    "support": """
        - Your order #{num} [was shipped|has been delivered|is on its way|is being processed] on {month} {dayn} and
          should arrive within [3-5 business days|a week|two days].
        - I have [issued|processed|requested] a full refund of {money} to your original payment method, which can take
          [up to 10 business days|a few days] to appear.
        - Could you please provide your order number and the email address associated with your account so that I can
          look into this for you?
        - To reset your password, click on "Forgot password" on the login page and follow the instructions in the
          email.
        - I'm sorry for the inconvenience this has caused. I've escalated the issue to our technical team.
        - Your subscription will remain active until the end of the current billing period, and you won't be charged
          again.
    """,
    "finance": """
        - If you invest {money} per month at an average annual return of {pct}, you will have about {money} after
          {small} years.
        - The interest rate on [your mortgage|the loan|a savings account] is currently {pct}, [up from|down
          from|compared with] {pct} last year.
        - It's generally a good idea to keep three to six months of expenses in an emergency fund before investing.
        - The company reported revenue of {money} million for the quarter, an increase of {pct} year over year.
        - Please note that this is not financial advice, and you should speak to a qualified adviser about your
          situation.
    """,
    "medicine": """
        - Common side effects include [headache|nausea|dizziness|tiredness|dry mouth], which usually go away after a
          few days.
        - You should see a doctor [immediately|as soon as possible|within the next few days] if you have [a high
          fever|chest pain|trouble breathing|severe pain].
        - The recommended dose for adults is {num} mg [once|twice|three times] a day, taken with food.
        - I'm not a doctor, but these symptoms can have many different causes, most of which are harmless.
        - Your blood pressure was [slightly higher than normal|within the normal range], so we will check it again at
          your next appointment.
    """,
    "science": """
        - The [experiment|study|survey] [showed|suggests|confirmed|found] that the
          [temperature|energy|concentration|rate] [increases with|depends on|is proportional to] the
          [pressure|distance|number of particles].
        - Plants use sunlight, water and carbon dioxide to produce sugar and oxygen, a process known as
          photosynthesis.
        - The light from that galaxy has been travelling for billions of years before it reaches our telescopes.
        - Scientists are still not sure how this works, but there are several theories that could explain it.
        - In other words, the speed of an object does not depend on its mass as long as there is no air resistance.
    """,
    "planning": """
        - The next milestone is due on {weekday}, {month} {dayn}, and {name} is responsible for the {tn}.
        - Here's the updated plan: first we finish the {tn}, then we review the {tn} with the team, and finally we
          launch.
        - We're [on track|behind schedule|slightly over budget|waiting for approval], mainly because the {tn} took
          longer than expected.
        - Can we move the meeting with {name} to {weekday} at {clock}? I have a conflict in the afternoon.
        - Action items: {name} will prepare the {tn}, {name} will follow up with the client, and I will send the
          notes.
    """,
    "cooking": """
        - Preheat the oven to [180|200|220] degrees and bake for about {num} minutes, until golden brown.
        - Heat the olive oil in a large pan over medium heat, add the [onion and garlic|chicken|vegetables] and cook
          for {small} minutes, stirring occasionally.
        - Season with salt and freshly ground black pepper, and serve with [rice|a green salad|fresh bread].
        - You can replace the [butter|eggs|cream|flour] with [olive oil|yogurt|coconut milk|almond flour] if you want
          to keep it [vegan|gluten-free|light].
        - Mix the flour, sugar and baking powder in a bowl, then slowly add the milk and eggs until you have a smooth
          batter.
    """,
    "legal": """
        - [The tenant|The landlord|Either party|The company|The employee] [shall|may|must|agrees to] [give written
          notice|terminate this agreement|pay all costs|keep the information confidential] within {num} days.
        - In most cases the landlord has to return the deposit within a reasonable period after the end of the lease.
        - This agreement shall be governed by the laws of the state in which the property is located.
        - I'm not a lawyer, and this is not legal advice, but you may have a claim if the contract was not fulfilled.
        - Under the regulation you have the right to request a copy of all personal data the company holds about you.
    """,
    "education": """
        - Let's break the problem down into smaller steps: first solve for x, then substitute the value into the
          second equation.
        - The essay should have a clear introduction, three body paragraphs, and a conclusion that restates your main
          argument.
        - Try the following exercise: write {small} sentences using the past tense, and check your answers against the
          list below.
        - Students who practice a little every day tend to remember more than those who study everything the night
          before.
        - Can you explain in your own words why the answer to question {small} is not {num}?
    """,
    "home": """
        - Turn off the water at the main valve before you [remove the tap|replace the pipe|open the boiler].
        - The walls need two coats of paint, and you should leave at least four hours between them to let it dry.
        - Water the plants early in the morning, two or three times a week, and keep them out of direct sunlight.
        - We've lived here for {small} years and the heating has never worked properly in the small bedroom.
        - The neighbours upstairs make so much noise in the evening that the children can't sleep.
    """,
    "writing": """
        - The opening is strong, but the second paragraph is a little long and repeats what you already said.
        - She opened the letter, read it twice, and put it back into the drawer without telling anyone.
        - I'd suggest a shorter title and a more natural dialogue between the two main characters.
        - It was late in the evening when the old man finally came down the stairs and sat beside the fire.
        - Once upon a time, in a small village between the mountains and the sea, there lived a girl who could talk to
          birds.
    """,
    "german": """
        - Vielen Dank für [Ihre Nachricht|deine Hilfe|die schnelle Antwort]. Ich habe [noch eine Frage|ein Problem mit
          der Bestellung|das bereits versucht], aber es funktioniert [leider nicht|immer noch nicht].
        - Können Sie mir bitte [sagen|erklären|helfen], [wie ich das machen kann|warum das so ist|wann die Lieferung
          ankommt|ob das möglich ist]?
        - Das ist [eine gute Frage|nicht ganz richtig|kein Problem]. Sie können [die Einstellungen|das Dokument|den
          Termin|die Rechnung] jederzeit [ändern|löschen|überprüfen], wenn Sie [möchten|angemeldet sind].
        - Wir haben uns entschieden, [die Reise|das Projekt|den Vertrag] um [eine Woche|einen Monat] zu verschieben,
          weil [noch nicht alles fertig ist|es zu teuer geworden ist].
        - Gerne, hier ist eine Zusammenfassung: Zuerst werden die Daten geladen, danach wird geprüft, ob sie
          vollständig sind, und schließlich werden sie gespeichert.
    """,
    "french": """
        - Bonjour, je voudrais savoir [comment|pourquoi|si|quand] [je peux|il est possible de|nous pouvons]
          [modifier|annuler|obtenir|vérifier] [ma commande|le rendez-vous|la réservation|le fichier], s'il vous plaît.
        - Merci beaucoup pour votre [réponse|aide|patience]. J'ai [déjà essayé|bien reçu le message|une autre
          question], mais [ça ne marche pas|je ne comprends pas|il y a encore une erreur].
        - Bien sûr, voici [un résumé|quelques exemples|les étapes] : tout d'abord, il faut [choisir|ouvrir|préparer]
          [le document|les données|la liste], puis [attendre quelques minutes|continuer avec la suite].
        - C'est une très bonne question, et la réponse dépend de ce que vous voulez faire avec [cette information|les
          résultats].
    """,
    "spanish": """
        - Hola, me gustaría saber [cómo|cuándo|si|por qué] [puedo|es posible|tengo que|podemos]
          [cambiar|cancelar|recibir|hacer] [mi pedido|la reserva|una copia del contrato|el pago], por favor.
        - Muchas gracias por [tu ayuda|la respuesta|la información]. [Ya lo he intentado|Todavía no funciona|Tengo
          otra pregunta], pero [no entiendo|no sé|creo que] [lo que significa|dónde está el problema|es lo mismo que
          antes].
        - Claro que sí, aquí tienes [un resumen|algunas opciones|los pasos principales]: primero hay que
          [abrir|elegir|comprobar] [el archivo|la cuenta|los datos], y después [esperar unos minutos|seguir las
          instrucciones].
        - Está bien, pero también hay que tener en cuenta que [el precio|el tiempo|la situación] puede cambiar de un
          día para otro.
    """,
    "lingua": """
        - Olá, gostaria de saber se você pode me ajudar com [a reserva|o pedido|o relatório], porque não consigo
          encontrar a informação que preciso.
        - Obrigado pela resposta! Isso não funcionou, mas vou tentar de novo amanhã e depois eu digo o que aconteceu.
        - Buongiorno, vorrei sapere se è possibile [cambiare la prenotazione|avere una copia della fattura], grazie
          mille per il vostro aiuto.
        - Non sono sicuro che questa sia la soluzione migliore, perché ci sono ancora alcune cose che non funzionano.
        - Dank je wel voor de informatie, ik heb nog een vraag over de bestelling en wanneer het pakket wordt
          geleverd.
        - Спасибо за помощь! Я хотел бы узнать, как это работает и почему не получается открыть файл. Можно ли это
          сделать сегодня?
        - 您好，请问我可以怎么修改我的订单？谢谢您的帮助，我们会尽快处理这个问题。如果您还有其他问题，请告诉我。
        - ありがとうございます。この問題について確認しました。もう一度お試しください。何か質問があれば教えてください。
    """,
    "errtext": """
        - name '{ident}' is not defined
        - '{ident}'
        - 'NoneType' object has no attribute '{ident}'
        - [Errno 2] No such file or directory: '/{path}'
        - No module named '{lib}'
        - expected str, got int
        - list index out of range
        - {func}() missing 1 required positional argument: '{ident}'
        - Connection refused
        - invalid literal for int() with base 10: '{ident}'
    """,
    "cmd": """
        - pytest -q {path}
        - pip install {lib}
        - npm run [test|build|dev]
        - git [status|diff|add -A|checkout -b {func}|commit -m "fix {ident}"]
        - docker [ps|compose up -d|build -t app .]
        - ls -la {folder}/
        - grep -rn "{func}" {folder}/
        - cat {path}
        - python -m {func}
        - cd {folder} && make [test|install|lint]
        - curl -s https://api.example.com/v1/{ident}s?limit={num}
        - sed -n '1,{num}p' {path}
    """,
    "path": """
        - {folder}/{ident}.{ext}
        - {folder}/{folder}/{ident}_{ident}.{ext}
        - {folder}/{func}.py
        - tests/test_{ident}.py
    """,
    "envvar": """
        - OPENAI_API_KEY
        - ANTHROPIC_API_KEY
        - DATABASE_URL
        - PYTHONPATH
        - LOG_LEVEL
        - {lib}_HOST
    """,
}
# Pieces of code, each ending at a line of its own that says %%. `@name@` stands for one word or line of that name.
CODE: dict[str, str] = {
    "python": '''\
import @std@
%%
from typing import Any, Optional
%%
from @lib@ import @klass@


%%
def @func@(@ident@, @ident@=None):
    if not @ident@:
        return None
    for @ident@ in @ident@s:
        @ident@.append(@ident@["@ident@"])
    return @ident@


%%
async def @func@(@ident@: str, *, @ident@: int = @num@) -> dict[str, Any]:
    async with @ident@.get(url) as response:
        response.raise_for_status()
        return await response.json()


%%
class @klass@:
    """A @ident@ of @ident@s."""

    def __init__(self, @ident@: str, @ident@: int = @num@) -> None:
        self.@ident@ = @ident@
        self.@ident@ = @ident@

%%
    def @func@(self) -> list[str]:
        return [@ident@ for @ident@ in self.@ident@ if @ident@ is not None]

%%
    @property
    def @ident@(self):
        return self._@ident@

%%
@dataclass
class @klass@:
    @ident@: str
    @ident@: int = 0
    @ident@: float | None = None


%%
def test_@func@(@ident@):
    @ident@ = @func@(@ident@)
    assert @ident@ == @num@


%%
try:
    @ident@ = @func@(@ident@)
except @exc@ as e:
    logger.error("Failed to load @ident@: %s", e)
    raise
%%
    while True:
        @ident@ = await @func@(@ident@)
        if len(@ident@) == 0:
            break
        yield @ident@
%%
    if @ident@ > max(@ident@, key=lambda x: x.@ident@):
        raise @exc@(f"unexpected {@ident@!r}")
    elif isinstance(@ident@, str):
        continue
    else:
        return False
%%
if __name__ == "__main__":
    main()
%%
with open("@path@", encoding="utf-8") as f:
    @ident@ = json.load(f)
%%
df = pd.read_csv("@path@")
print(df.groupby("@ident@")["@ident@"].mean().sort_values(ascending=False).head())
%%
print(f"@ident@: {@ident@}")
%%
''',
    "typescript": """\
import { @klass@ } from "./@ident@";
%%
export interface @klass@ {
  @ident@: string;
  @ident@?: number;
  @ident@: boolean;
}

%%
export async function @func@(@ident@: string): Promise<@klass@> {
  const response = await fetch(`/api/@ident@s/${@ident@}`);
  if (!response.ok) {
    throw new Error(`Request failed: ${response.status}`);
  }
  return response.json();
}

%%
const [@ident@, setState] = useState<string | null>(null);
%%
  const @ident@ = @ident@s.filter((item) => item.@ident@ !== undefined).map((item) => item.@ident@);
%%
  useEffect(() => {
    @func@();
  }, [@ident@]);
%%
  for (const @ident@ of @ident@s) {
    console.log(@ident@.@ident@);
  }
%%
  if (@ident@ === null || @ident@.length > @num@) {
    return;
  }
%%
  return (
    <div className="@ident@">
      <h1>{@ident@.@ident@}</h1>
    </div>
  );
%%
export const @ident@ = async (req: Request, res: Response) => {
  try {
    await @func@(req.body);
  } catch (error) {
    res.status(500).json({ error: error.message });
  }
};
%%
""",
    "sql": """\
SELECT @ident@, @ident@, COUNT(*) AS @ident@
FROM @ident@s
WHERE @ident@ >= '@date@'
GROUP BY @ident@
ORDER BY @ident@ DESC
LIMIT @num@;
%%
SELECT u.id, u.name, SUM(o.@ident@) AS total
FROM users u
LEFT JOIN orders o ON o.user_id = u.id
WHERE o.status = 'completed'
GROUP BY u.id, u.name
HAVING SUM(o.@ident@) > @num@;
%%
CREATE TABLE IF NOT EXISTS @ident@s (
    id INTEGER PRIMARY KEY,
    @ident@ TEXT NOT NULL,
    @ident@ NUMERIC DEFAULT 0,
    created_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP
);
%%
select @ident@, avg(@ident@) over (partition by @ident@ order by @ident@) as @ident@
from @ident@s
where @ident@ is not null and @ident@ in ('active', 'pending')
group by @ident@
order by 2 desc
limit @num@;
%%
with @ident@s as (
    select *, row_number() over (partition by @ident@) as n
    from @ident@s
    where created_at >= current_date - interval '@num@ days'
)
%%
UPDATE @ident@s SET @ident@ = '@ident@', updated_at = NOW() WHERE id = @num@;
%%
INSERT INTO @ident@s (@ident@, @ident@) VALUES (@num@, '@ident@');
%%
""",
    "shell": """\
$ @cmd@
%%
drwxr-xr-x  @dayn@ user user  4096 Mar @dayn@ @clock@ @ident@
%%
-rw-r--r--  1 user user @num@ Apr @dayn@ @clock@ @ident@.@ext@
%%
-rw-r--r-- 1 root root @num@ Jan @dayn@ @clock@ @path@
%%
@path@:@num@:    @ident@ = @func@(@ident@)
%%
./@path@
%%
./@path@
%%
@path@
%%
@path@
%%
[main @hash@] Fix @ident@ handling
 @small@ files changed, @num@ insertions(+), @num@ deletions(-)
%%
On branch main
Your branch is up to date with 'origin/main'.

Changes not staged for commit:
  modified:   @path@
%%
diff --git a/@path@ b/@path@
--- a/@path@
+++ b/@path@
@@ -@num@,7 +@num@,9 @@ def @func@(@ident@):
%%
============================= test session starts ==============================
platform linux -- Python 3.12.3, pytest-8.3.2
collected @num@ items

@path@ ........                               [100%]

============================== @num@ passed in @float@s ==============================
%%
FAILED @path@::test_@func@ - @exc@: @errtext@
%%
Successfully installed @lib@-@float@.@dayn@
%%
bash: @func@: command not found
%%
@stamp@ INFO @func@: @ident@ started
%%
@stamp@ ERROR @func@: @errtext@
%%
@month3@ @dayn@ @clock@:17 server @func@[@num@]: warning: @ident@ timed out
%%
[@stamp@] "GET /api/@ident@s/@num@ HTTP/1.1" 200 @num@
%%
Filesystem      Size  Used Avail Use% Mounted on
/dev/sda1        50G   @dayn@G   12G  @dayn@% /
%%
exit code: 0
%%
""",
    "traceback": """\
  File "/app/@path@", line @num@, in @func@
    @ident@ = @func@(@ident@, @ident@=@ident@)
%%
  File "/app/@path@", line @num@, in <module>
    main()
%%
  File "/home/user/project/@path@", line @num@, in @func@
    return self.@ident@.@func@(*args, **kwargs)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
%%
  File "/usr/lib/python3.12/@std@/__init__.py", line @num@, in @func@
    raise @exc@(@ident@)
%%
  File "/usr/local/lib/python3.11/site-packages/@lib@/@ident@.py", line @num@, in __init__
    self.@ident@[@ident@] = value
%%
""",
}

# -- the corpus: messages -----------------------------------------------------------------------------

SLOT = re.compile(r"\{([a-z_]+)\}")
ALTERNATIVES = re.compile(r"\[([^\[\]|]*\|[^\[\]]*)\]")
CODE_SLOT = re.compile(r"@([a-z0-9]+)@")
ALPHANUMERIC = string.ascii_letters + string.digits


def lines(text: str) -> list[str]:
    """Return the lines of a name in LINES: each starts with a dash and may go on below."""
    return [" ".join(line.split()) for line in re.split(r"\n\s*- ", text)[1:]]


def stock() -> list[str]:
    """Return the sentences in STOCK."""
    return [" ".join(sentence.split()) for sentence in re.split(r"(?<=[.?!])\s", STOCK.strip())]


def pieces(text: str) -> list[str]:
    """Return the pieces of a name in CODE."""
    return text.split("%%\n")[:-1]


Shapes = tuple["Callable[[], dict[str, Any]]", ...]
"""Ways to make a message, each of which makes one kind."""


class Writer:
    """Writes messages. All that is chosen comes from one seeded generator: a seed is a corpus."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.topic = TOPICS[0]
        self.banks = {name: words.split() for name, words in WORDS.items()}
        self.banks |= {name: lines(text) for name, text in LINES.items()} | {"stock": stock()}
        self.followers: dict[str, list[str]] = {}
        rng = self.rng
        self.made: dict[str, Callable[[], str]] = {
            "tn": lambda: rng.choice(self.banks[f"{self.topic}_noun"]).replace("-", " "),
            "clock": lambda: f"{rng.randrange(24):02}:{rng.randrange(60):02}",
            "money": lambda: (
                rng.choice("$€") + rng.choice((f"{rng.randrange(10, 999)}", f"{rng.randrange(1, 99)},500"))
            ),
            "pct": lambda: f"{rng.randrange(1, 99)}{rng.choice(('', '.5', f'.{rng.randrange(10)}'))}%",
            "dayn": lambda: str(rng.randrange(1, 29)),
            "num": lambda: str(rng.randrange(1, 10 ** rng.randrange(1, 5))),
            "float": lambda: f"{rng.random() * 10:.{rng.randrange(1, 4)}f}",
            "date": lambda: self.stamp()[:10],
            "stamp": self.stamp,
            "hash": lambda: self.hexes(7),
            "std": lambda: rng.choice(("os", "sys", "json", "re", "time", "logging", "asyncio")),
            "month3": lambda: rng.choice(self.banks["month"])[:3],
        }

    # -- text

    def slot(self, name: str) -> str:
        """Return something for the slot `name`."""
        if name in self.made:
            return self.made[name]()
        return self.expand(self.rng.choice(self.banks[name]))

    def expand(self, text: str) -> str:
        """Return `text` with its alternatives chosen and its slots filled."""
        while (chosen := ALTERNATIVES.sub(lambda m: self.rng.choice(m[1].split("|")), text)) != text:
            text = chosen
        return SLOT.sub(lambda m: self.slot(m[1]), text)

    def sentence(self) -> str:
        """Return a sentence: on the topic, on nothing in particular, or a walk."""
        draw = self.rng.random()
        text = self.slot(self.topic) if draw < 0.2 else self.slot("sent") if draw < 0.55 else self.walk()
        return text[0].upper() + text[1:]

    def walk(self) -> str:
        """Return words of which each has been seen after the one before: phrases as short as they are in new text."""
        if not self.followers:
            for _ in range(6000):
                self.topic = self.rng.choice(TOPICS)
                source = self.rng.choice(("sent", "stock", "stock", self.topic))
                for word, following in pairwise(["", *self.slot(source).split(), ""]):
                    self.followers.setdefault(word, []).append(following)
        words: list[str] = []
        word = ""
        while len(words) < 30 and (word := self.rng.choice(self.followers[word])):
            words.append(word)
        return " ".join(words)

    def paragraph(self, low: int, high: int) -> str:
        """Return `low` to `high` sentences."""
        return " ".join(self.sentence() for _ in range(self.rng.randint(low, high)))

    def foreign(self) -> str:
        """Return some sentences in another language."""
        language = self.rng.choice(LANGUAGES)
        return " ".join(self.slot(language) for _ in range(self.rng.randint(2, 5)))

    def prose(self, role: str) -> str:
        """Return what a user or an assistant says; an assistant uses Markdown now and then."""
        rng = self.rng
        self.topic = rng.choice(TOPICS)
        if rng.random() < 0.05:
            return self.foreign()
        if role == "user":
            parts = [self.slot("open_u")] if rng.random() < 0.6 else []
            return " ".join([*parts, self.paragraph(1, 8), *([self.slot("q")] if rng.random() < 0.4 else [])])
        parts = [self.slot("open_a")] if rng.random() < 0.5 else []
        for _ in range(rng.randint(1, 3)):
            draw = rng.random()
            parts.append(self.paragraph(2, 6) if draw < 0.7 else self.listing() if draw < 0.9 else self.block())
        if rng.random() < 0.3:
            parts.append(self.slot("close"))
        return "\n\n".join(parts)

    def listing(self) -> str:
        """Return a Markdown list, or a table."""
        rng = self.rng
        title = " ".join(self.slot("noun") for _ in range(rng.randint(1, 2))).capitalize()
        head = rng.choice(("", "", f"## {title}\n\n", f"### {title}\n\n", f"**{title}**\n\n"))
        if rng.random() < 0.15:
            rows = "".join(f"| {self.slot('noun')} | {self.slot('num')} | {self.slot('adj')} |\n" for _ in range(4))
            return f"{head}| {title} | {self.slot('noun').title()} | Status |\n|---|---|---|\n{rows}"
        style = rng.choice(("- ", "* ", "1. ", "- **"))
        items = []
        for number in range(1, rng.randint(3, 6)):
            mark = f"{number}. " if style == "1. " else style
            bold = f"{self.slot('noun').capitalize()}**: " if style == "- **" else ""
            items.append(mark + bold + self.sentence())
        return head + "\n".join(items)

    def code(self, language: str, low: int = 2, high: int = 6) -> str:
        """Return `low` to `high` pieces of CODE."""
        chosen = self.rng.choices(pieces(CODE[language]), k=self.rng.randint(low, high))
        return self.fill("".join(chosen))

    def fill(self, code: str) -> str:
        """Return code with its slots filled."""
        return CODE_SLOT.sub(lambda m: self.slot(m[1]), code)

    def block(self) -> str:
        """Return a fenced block of code."""
        language = self.rng.choice(("python", "python", "typescript", "sql", "bash"))
        body = f"{self.slot('cmd')}\n" if language == "bash" else self.code(language)
        return f"```{language}\n{body}```"

    # -- values

    def hexes(self, count: int) -> str:
        """Return `count` hexadecimal digits."""
        return f"{self.rng.getrandbits(4 * count):0{count}x}"

    def letters(self, count: int) -> str:
        """Return `count` letters and digits, as in ids."""
        return "".join(self.rng.choices(ALPHANUMERIC, k=count))

    def uuid(self) -> str:
        """Return a UUID of version 4."""
        digits = self.hexes(32)
        return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{self.rng.choice('89ab')}{digits[17:20]}-{digits[20:]}"

    def call(self) -> str:
        """Return the id of a tool call."""
        return f"call_{self.letters(24)}"

    def use(self) -> str:
        """Return the id of a tool call, as Anthropic spells it."""
        return f"toolu_01{self.letters(22)}"

    def stamp(self) -> str:
        """Return a time in ISO 8601, in one of the usual spellings."""
        rng = self.rng
        day = f"202{rng.randrange(4, 7)}-{rng.randrange(1, 13):02}-{rng.randrange(1, 29):02}"
        clock = f"{rng.randrange(24):02}:{rng.randrange(60):02}:{rng.randrange(60):02}"
        tail = rng.choice(("Z", f".{rng.randrange(1000):03}Z", f".{rng.randrange(10**6):06}+00:00", "+00:00"))
        return f"{day}T{clock}{tail}"

    def url(self) -> str:
        """Return an address."""
        hosts = ("www.example.com", "docs.example.org", "github.com", "en.wikipedia.org/wiki", "api.example.com")
        return f"https://{self.rng.choice(hosts)}/{self.slot('noun')}/{self.slot('noun')}-{self.slot('noun')}"

    def email(self) -> str:
        """Return an address for mail."""
        return f"{self.slot('name')}.{self.slot('surname')}@example.com".lower()

    def some(self, parts: dict[str, Callable[[], Any]], low: int, high: int) -> dict[str, Any]:
        """Return `low` to `high` of these."""
        return {name: parts[name]() for name in self.rng.sample(sorted(parts), self.rng.randint(low, high))}

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of a tool call."""
        rng = self.rng
        return self.some(
            {
                "query": lambda: f"{self.slot('adj')} {self.slot('noun')} {self.slot('noun')} {self.slot('city')}",
                "location": lambda: f"{self.slot('city')}, {self.slot('city')}",
                "path": lambda: "/" + self.slot("path"),
                "command": lambda: self.slot("cmd"),
                "content": lambda: self.code("python"),
                "url": self.url,
                "limit": lambda: rng.choice((5, 10, 20, 50)),
                "max_results": lambda: rng.choice((3, 5, 10)),
                "date": lambda: self.stamp()[:10],
                "unit": lambda: rng.choice(("celsius", "fahrenheit")),
                "user_id": lambda: rng.choice((self.uuid(), f"user_{self.slot('num')}")),
                "email": self.email,
                "sql": lambda: self.code("sql"),
                "include_details": lambda: rng.random() < 0.5,
            },
            1,
            3,
        )

    def record(self) -> dict[str, Any]:
        """Return an object as tools return it."""
        return self.rng.choice(self.kinds_of_records())()

    def kinds_of_records(self) -> Shapes:
        """Return what tools return: a hit, a user, an order ..."""
        rng = self.rng
        return (
            lambda: {
                "title": self.sentence()[:60],
                "url": self.url(),
                "snippet": self.paragraph(1, 2),
                "score": rng.random(),
            },
            lambda: {
                "id": rng.randrange(10**5),
                "name": f"{self.slot('name')} {self.slot('surname')}",
                "email": self.email(),
                "created_at": self.stamp(),
                "is_active": rng.random() < 0.8,
            },
            lambda: {
                "order_id": f"ORD-{rng.randrange(10**6)}",
                "status": rng.choice(("shipped", "pending", "delivered")),
                "total": rng.randrange(10**5) / 100,
                "currency": rng.choice(("USD", "EUR")),
                "items": rng.randrange(9),
            },
            lambda: {
                "temperature": rng.randrange(-10, 35),
                "condition": rng.choice(("sunny", "cloudy", "light rain")),
                "humidity": rng.randrange(100),
                "wind_speed": rng.randrange(400) / 10,
                "date": self.stamp()[:10],
            },
            lambda: {
                "page_content": self.paragraph(1, 4),
                "metadata": {"source": self.slot("path"), "page": rng.randrange(90)},
                "type": "Document",
            },
            lambda: {
                "id": self.uuid(),
                "type": rng.choice(("user", "file", "event")),
                "description": self.sentence(),
                "tags": [self.slot("noun") for _ in range(3)],
                "updated_at": self.stamp(),
                "version": 1,
            },
            lambda: {
                "flight": f"LH{rng.randrange(100, 999)}",
                "from": self.slot("city"),
                "to": self.slot("city"),
                "departure": self.stamp(),
                "arrival": self.stamp(),
                "price": rng.randrange(900),
                "stops": 0,
            },
        )

    def outcome(self) -> str:
        """Return what a tool gave back, as text."""
        rng = self.rng
        self.topic = rng.choice(TOPICS)
        kind = rng.choices(("json", "shell", "traceback", "code", "prose"), (40, 20, 10, 15, 15))[0]
        if kind == "json":
            records: Any = [self.record() for _ in range(rng.randint(1, 4))]
            if rng.random() < 0.5:
                name = rng.choice(("results", "items", "data", "documents"))
                records = {name: records, "total": len(records), "error": None}
            return json.dumps(records, indent=rng.choice((None, None, 2)), ensure_ascii=rng.random() < 0.5)
        if kind == "shell":
            return self.code("shell", 4, 12)
        if kind == "traceback":
            frames = self.code("traceback", 1, 4)
            return f"Traceback (most recent call last):\n{frames}{self.slot('exc')}: {self.slot('errtext')}\n"
        if kind == "code":
            return self.code(rng.choice(("python", "typescript", "sql")))
        return self.paragraph(1, 5)

    # -- messages

    def usage(self) -> dict[str, Any]:
        """Return counts of tokens, as one service or another spells them."""
        used, made = self.rng.randrange(20, 9000), self.rng.randrange(5, 900)
        return self.rng.choice(
            (
                {"prompt_tokens": used, "completion_tokens": made, "total_tokens": used + made},
                {
                    "input_tokens": used,
                    "output_tokens": made,
                    "total_tokens": used + made,
                    "input_token_details": {"cache_read": 0},
                    "output_token_details": {"reasoning": 0},
                },
                {
                    "input_tokens": used,
                    "cache_creation_input_tokens": 0,
                    "cache_read_input_tokens": 0,
                    "output_tokens": made,
                },
            )
        )

    def plain(self) -> Shapes:
        """Return messages with no framework behind them."""
        return tuple(partial(self.plain_message, role) for role in ("system", "tool", "user", "assistant"))

    def plain_message(self, role: str) -> dict[str, Any]:
        """Return a message with some of what people add to one."""
        rng = self.rng
        message: dict[str, Any] = {"role": role, "content": self.outcome() if role == "tool" else self.prose(role)}
        further: dict[str, Callable[[], Any]] = {
            "id": lambda: rng.choice((self.uuid(), f"msg_{self.letters(24)}", rng.randrange(10**4))),
            "timestamp": lambda: rng.choice((self.stamp(), 1.7e9 + rng.randrange(10**14) / 10**6)),
            "name": lambda: self.slot("node"),
            "metadata": lambda: {
                "model": self.slot("model"),
                "source": rng.choice(("api", "web", "chat")),
                "latency_ms": rng.randrange(9000),
                "session_id": self.uuid(),
                "tags": [],
                "user_id": f"user_{rng.randrange(999)}",
            },
            "tool_calls": lambda: (
                [{"id": self.call(), "name": self.slot("tool"), "arguments": self.arguments()}]
                if role == "assistant"
                else []
            ),
            "created_at": self.stamp,
            "model": lambda: self.slot("model"),
            "usage": self.usage,
            "finish_reason": lambda: rng.choice(("stop", "tool_calls", "length")),
        }
        for name, make in further.items():
            if rng.random() < 0.4:
                message[name] = make()
        if role == "tool":
            message["tool_call_id"] = self.call()
        return message

    def openai(self) -> Shapes:
        """Return the messages of OpenAI's chat completions, and the items of its responses."""
        rng = self.rng
        return (
            lambda: {
                "role": rng.choice(("system", "developer")),
                "content": "You are a helpful assistant. " + self.prose("user"),
            },
            lambda: {"role": "user", "content": self.prose("user")},
            lambda: {
                "role": "user",
                "content": [
                    {"type": "text", "text": self.prose("user")},
                    {"type": "image_url", "image_url": {"url": self.url(), "detail": "auto"}},
                ],
            },
            lambda: {
                "role": "assistant",
                "content": self.prose("assistant"),
                "refusal": None,
                "annotations": [],
                "audio": None,
                "function_call": None,
                "tool_calls": None,
            },
            lambda: {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": self.call(),
                        "type": "function",
                        "function": {"name": self.slot("tool"), "arguments": json.dumps(self.arguments())},
                    }
                ],
            },
            lambda: {
                "role": "tool",
                "tool_call_id": self.call(),
                "name": self.slot("tool"),
                "content": self.outcome(),
            },
            lambda: {
                "id": f"msg_{self.hexes(48)}",
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": [
                    {"type": "output_text", "text": self.prose("assistant"), "annotations": [], "logprobs": []}
                ],
            },
            lambda: {
                "id": f"fc_{self.hexes(48)}",
                "type": "function_call",
                "call_id": self.call(),
                "name": self.slot("tool"),
                "arguments": json.dumps(self.arguments()),
                "status": "completed",
            },
            lambda: {"type": "function_call_output", "call_id": self.call(), "output": self.outcome()},
            lambda: {
                "id": f"rs_{self.hexes(48)}",
                "type": "reasoning",
                "summary": [{"type": "summary_text", "text": self.paragraph(2, 5)}],
                "encrypted_content": None,
            },
        )

    def anthropic(self) -> Shapes:
        """Return Anthropic's messages: their content is a list of blocks."""
        rng = self.rng
        return (
            lambda: {"role": "user", "content": [{"type": "text", "text": self.prose("user")}]},
            lambda: {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": self.prose("assistant"), "citations": None},
                    {"type": "tool_use", "id": self.use(), "name": self.slot("tool"), "input": self.arguments()},
                ],
            },
            lambda: {
                "id": f"msg_01{self.letters(22)}",
                "type": "message",
                "role": "assistant",
                "model": self.slot("model"),
                "content": [{"type": "text", "text": self.prose("assistant")}],
                "stop_reason": rng.choice(("end_turn", "tool_use")),
                "stop_sequence": None,
                "usage": self.usage(),
            },
            lambda: {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": self.use(), "content": self.outcome(), "is_error": False}
                ],
            },
            lambda: {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": self.use(),
                        "content": [{"type": "text", "text": self.outcome()}],
                    }
                ],
            },
            lambda: {
                "role": "assistant",
                "content": [
                    {
                        "type": "thinking",
                        "thinking": f"The user wants to {self.slot('vp')}. {self.paragraph(2, 5)}",
                        "signature": self.letters(40),
                    },
                    {"type": "text", "text": self.prose("assistant")},
                ],
            },
        )

    def langchain(self) -> Shapes:
        """Return LangChain's messages: their fields, or the constructors that they are written as."""
        fields = tuple(partial(self.langchain_message, kind) for kind in ("system", "human", "tool", "ai"))
        return (*fields, self.langchain_constructor)

    def langchain_constructor(self) -> dict[str, Any]:
        """Return a message as LangChain writes it down."""
        kind, name = self.rng.choice((("human", "HumanMessage"), ("ai", "AIMessage"), ("tool", "ToolMessage")))
        message = self.langchain_message(kind)
        return {"lc": 1, "type": "constructor", "id": ["langchain", "schema", "messages", name], "kwargs": message}

    def langchain_message(self, kind: str) -> dict[str, Any]:
        """Return the fields of a message."""
        rng = self.rng
        message: dict[str, Any] = {
            "content": self.outcome() if kind == "tool" else self.prose("assistant" if kind == "ai" else "user"),
            "additional_kwargs": {},
            "response_metadata": {},
            "type": kind,
            "name": None,
            "id": self.uuid(),
        }
        if kind == "human":
            message["example"] = False
        if kind == "tool":
            message |= {"tool_call_id": self.call(), "artifact": None, "status": "success"}
        if kind == "ai":
            message |= {
                "id": rng.choice((f"run-{self.uuid()}", f"run--{self.uuid()}-0")),
                "response_metadata": {
                    "token_usage": self.usage(),
                    "model_name": self.slot("model"),
                    "system_fingerprint": f"fp_{self.hexes(10)}",
                    "finish_reason": "stop",
                    "logprobs": None,
                },
                "example": False,
                "tool_calls": [],
                "invalid_tool_calls": [],
                "usage_metadata": self.usage(),
            }
            if rng.random() < 0.5:
                message["tool_calls"] = [
                    {"name": self.slot("tool"), "args": self.arguments(), "id": self.call(), "type": "tool_call"}
                ]
        return message

    def parts(self) -> Shapes:
        """Return messages in parts, as further frameworks keep them."""
        rng = self.rng
        return (
            lambda: {
                "parts": [{"content": self.prose("user"), "timestamp": self.stamp(), "part_kind": "user-prompt"}],
                "instructions": None,
                "kind": "request",
            },
            lambda: {
                "parts": [{"content": self.prose("assistant"), "part_kind": "text"}],
                "usage": self.usage(),
                "model_name": self.slot("model"),
                "timestamp": self.stamp(),
                "kind": "response",
            },
            lambda: {
                "parts": [
                    {
                        "tool_name": self.slot("tool"),
                        "args": json.dumps(self.arguments()),
                        "tool_call_id": self.call(),
                        "part_kind": "tool-call",
                    }
                ],
                "kind": "response",
            },
            lambda: {"role": rng.choice(("user", "model")), "parts": [{"text": self.prose("assistant")}]},
            lambda: {
                "role": "model",
                "parts": [{"functionCall": {"name": self.slot("tool"), "args": self.arguments()}}],
            },
            lambda: {
                "id": self.letters(16),
                "role": "assistant",
                "parts": [{"type": "step-start"}, {"type": "text", "text": self.prose("assistant"), "state": "done"}],
                "createdAt": self.stamp(),
            },
            lambda: {
                "source": self.slot("node"),
                "content": self.prose("assistant"),
                "models_usage": self.usage(),
                "type": "TextMessage",
                "metadata": {},
            },
        )

    def state(self) -> dict[str, Any]:
        """Return what an agent keeps beside its messages: settings, plans, memory, results."""
        rng = self.rng
        self.topic = rng.choice(TOPICS)
        return self.some(
            {
                "config": lambda: {
                    "configurable": {"thread_id": self.uuid(), "checkpoint_ns": "", "user_id": self.letters(8)},
                    "recursion_limit": 25,
                    "model": self.slot("model"),
                    "temperature": rng.randrange(10) / 10,
                    "max_tokens": rng.choice((1024, 4096)),
                    "stream": True,
                    "tools": [self.slot("tool")],
                },
                "plan": lambda: [
                    {
                        "id": number,
                        "task": self.sentence(),
                        "status": rng.choice(("pending", "completed", "in_progress")),
                        "assigned_to": self.slot("node"),
                        "result": None,
                    }
                    for number in range(rng.randint(1, 4))
                ],
                "next": lambda: self.slot("node"),
                "step": lambda: rng.randrange(50),
                "summary": lambda: self.paragraph(2, 5),
                "memory": lambda: {
                    "facts": [self.sentence() for _ in range(2)],
                    "preferences": {"language": "en", "theme": "dark"},
                },
                "files": lambda: {self.slot("path"): self.code("python")},
                "error": lambda: None,
                "retries": lambda: 0,
                "user": lambda: {"id": self.uuid(), "name": self.slot("name"), "email": self.email()},
                "context": lambda: {"documents": [self.record()], "query": self.sentence(), "score": rng.random()},
                "todos": lambda: [
                    {"content": self.sentence(), "status": "pending", "priority": "high"} for _ in range(2)
                ],
                "scratchpad": lambda: (
                    f"Thought: {self.sentence()}\nAction: {self.slot('tool')}\nObservation: {self.sentence()}"
                ),
                "updated_at": self.stamp,
                "done": lambda: False,
            },
            2,
            5,
        )

    def families(self) -> tuple[Shapes, ...]:
        """Return all shapes, the most common last."""
        return ((self.state,), self.parts(), self.langchain(), self.anthropic(), self.openai(), self.plain())

    def message(self) -> dict[str, Any]:
        """Return a message of any shape."""
        family = self.rng.choices(self.families(), (10, 8, 18, 16, 18, 30))[0]
        return self.rng.choice(family)()

    def sample(self) -> bytes:
        """Return a training sample: a message, some of them, a state with them in it, or a row that appends them."""
        draw = self.rng.random()
        if draw < 0.35:
            return pack(self.message())
        messages = [self.message() for _ in range(self.rng.choice((1, 1, 1, 2, 3)))]
        if draw < 0.85:
            return row(messages, at=self.rng.randrange(200))
        return pack(messages if draw < 0.95 else {"messages": messages, **self.state()})

    def samples(self, count: int, low: int, high: int) -> list[bytes]:
        """Return `count` samples of `low` to `high` bytes."""
        found: list[bytes] = []
        while len(found) < count:
            if low <= len(sample := self.sample()) <= high:
                found.append(sample)
        return found


class Skeletons(Writer):
    """Writes the same messages without their texts and ids. The bytes that encode how long those were stay."""

    BLANK = "\x7f"

    def letters(self, count: int) -> str:
        """Return blanks."""
        return self.BLANK * count

    hexes = letters

    def uuid(self) -> str:
        """Return blanks."""
        return self.letters(36)

    def sentence(self) -> str:
        """Return blanks."""
        return self.letters(80)

    def paragraph(self, low: int, high: int) -> str:
        """Return blanks."""
        return self.letters(40 * (low + high))

    def prose(self, role: str) -> str:  # noqa: ARG002 - whoever speaks
        """Return blanks."""
        return self.letters(600)

    def outcome(self) -> str:
        """Return blanks."""
        return self.letters(600)

    def code(self, language: str, low: int = 2, high: int = 6) -> str:  # noqa: ARG002 - in whatever language
        """Return blanks."""
        return self.letters(100)

    def arguments(self) -> dict[str, Any]:
        """Return the most common argument."""
        return {"query": self.letters(20)}

    def rows(self) -> Iterator[bytes]:
        """Write a row for each shape, and for states a few."""
        for family in self.families():
            for shape in family * (3 if len(family) == 1 else 1):
                yield row([shape()], at=self.rng.randrange(128)).replace(self.BLANK.encode(), b"")

    def records(self) -> Iterator[bytes]:
        """Write each record as JSON."""
        for record in self.kinds_of_records():
            yield json.dumps(record()).replace(json.dumps(self.BLANK)[1:-1], "").encode()


def pack(value: Any) -> bytes:
    """Return `value` as MessagePack."""
    return ormsgpack.packb(value)


def row(messages: list[Any], *, at: int, key: str = "messages") -> bytes:
    """Return the row of a save that appends `messages`: ops on paths, keys and items encoded on their own."""
    return pack([[2, [pack(key)], at, 0, [pack(message) for message in messages]]])


# -- the dictionary -----------------------------------------------------------------------------------


def content() -> bytes:
    """Return what the dictionary holds after its tables."""
    writer = Writer(SEED)
    skeletons = Skeletons(SEED)
    parts = (
        " ".join(writer.slot(language) for language in LANGUAGES * 2).encode(),
        *(some_code(writer, language) for language in CODE),
        *skeletons.records(),
        " ".join(stock())[:PROSE_SHARE].encode(),
        *skeletons.rows(),
    )
    rest = b"".join(parts)
    words = "".join(f" {word}" for word in common_words() if len(word) > 4 and f" {word}".encode() not in rest)
    return words.encode()[: SIZE - len(rest)] + rest


def common_words() -> list[str]:
    """Return words of any text, each once."""
    classes = ("noun", "adverb", "adj", "verb", "ing", "past", "done")
    return list(dict.fromkeys(word for name in classes for word in WORDS[name].split()))


def some_code(writer: Writer, language: str) -> bytes:
    """Return the first pieces of a language."""
    code = ""
    for piece in pieces(CODE[language]):
        if len(code) < CODE_SHARE:
            code += writer.fill(piece)
    return code.encode()


def split(dictionary: bytes) -> tuple[bytes, bytes]:
    """Return a dictionary's entropy tables, which end with three first offsets (1, 4, 8), and its content."""
    offsets = b"".join(offset.to_bytes(4, "little") for offset in (1, 4, 8))
    end = dictionary.index(offsets) + len(offsets)
    return dictionary[:end], dictionary[end:]


def entropy_tables(body: bytes) -> bytes:
    """Return the entropy tables for messages that are compressed with `body`.

    zstd makes them for the dictionary that it has chosen. So that it chooses `body`, samples that repeat `body` make
    up the second half; with accel=2 the tables are counted on the first half alone, which is whole messages.
    """
    messages = Writer(SEED).samples(3000, 200, 6000)
    length = 2048
    stretches = [body[at : at + length] for at in range(0, len(body), length)]
    repeats = (stretches * len(messages))[: len(messages)]
    trained = zstandard.train_dictionary(
        SIZE, [*messages, *repeats], k=length, d=8, accel=2, level=3, dict_id=DICTIONARY_ID
    )
    return split(trained.as_bytes())[0]


def train() -> bytes:
    """Return the dictionary, of at most SIZE bytes."""
    body = content()
    tables = entropy_tables(body)
    return tables + body[len(tables) - SIZE :]


# -- the check ----------------------------------------------------------------------------------------


def held_out(text: str, number: int) -> bytes:
    """Return a row with `text` in a message of one of four shapes."""
    writer = Writer(number)
    rng = writer.rng
    role = ("user", "assistant")[number % 2]
    shapes: Shapes = (
        lambda: {
            "role": role,
            "content": text,
            "id": writer.uuid(),
            "timestamp": writer.stamp(),
            "metadata": {"model": writer.slot("model"), "latency_ms": rng.randrange(9000), "channel": "web"},
        },
        lambda: {
            "id": f"msg_01{writer.letters(22)}",
            "type": "message",
            "role": "assistant",
            "model": writer.slot("model"),
            "content": [{"type": "text", "text": text}],
            "stop_reason": "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": rng.randrange(9000), "output_tokens": rng.randrange(900)},
        },
        lambda: {
            "content": text,
            "additional_kwargs": {},
            "response_metadata": {},
            "type": "human",
            "name": None,
            "id": writer.uuid(),
            "example": False,
        },
        lambda: {
            "role": role,
            "content": text,
            "tool_calls": [{"id": writer.call(), "name": "look_up", "arguments": {"q": text[:12]}}],
            "created_at": writer.stamp(),
        },
    )
    return row([shapes[number % len(shapes)]()], at=7 * number)


def check_sets() -> dict[str, list[bytes]]:
    """Return what ratios are shown of."""
    rng = random.Random(SEED)
    invented = ["".join(rng.choices(string.ascii_lowercase, k=rng.randint(2, 9))) for _ in range(200)]
    prose = [" ".join(paragraph.split()) for paragraph in PROSE.split("\n\n")]
    other = OTHER | {name: " ".join(text.split()) for name, text in OTHER_JOINED.items()}
    sets = {
        "prose, held out": [held_out(text, number) for number, text in enumerate(prose)],
        "prose, held out, in twos": [
            row([{"role": "user", "content": one}, {"role": "assistant", "content": two}], at=4)
            for one, two in zip(prose[::2], prose[1::2], strict=True)
        ],
        "prose, held out, bare": [pack({"role": "user", "content": text}) for text in prose],
        "other, held out": [held_out(text, number) for number, text in enumerate(other.values())],
    }
    sets |= {f"  {name}": [held_out(text, number)] for number, (name, text) in enumerate(other.items())}
    return sets | {
        "corpus, another seed": Writer(SEED + 1).samples(200, 200, 6000),
        "200 invented words": [pack({"content": " ".join(rng.choices(invented, k=160))}) for _ in range(20)],
        "200 common words": [pack({"content": " ".join(rng.choices(common_words()[:200], k=160))}) for _ in range(20)],
        "random hex": [pack({"content": f"{rng.getrandbits(4096):01024x}"}) for _ in range(20)],
    }


def ratio(compress: Callable[[bytes], bytes], rows: list[bytes]) -> float:
    """Return how many times smaller rows get."""
    return sum(map(len, rows)) / sum(len(compress(data)) for data in rows)


def check(dictionary: bytes) -> None:
    """Print ratios, each with a codec byte: zstd alone, with the dictionary, with more of a search, and `squeeze`."""
    trained = zstandard.ZstdCompressionDict(dictionary)
    compressors = {
        "level 3": zstandard.ZstdCompressor(level=3),
        "+ dict": zstandard.ZstdCompressor(level=3, dict_data=trained, write_dict_id=False),
        "+ search": zstandard.ZstdCompressor(compression_params=small_parameters(), dict_data=trained),
    }
    ways: dict[str, Callable[[bytes], bytes]] = {
        name: lambda data, compressor=compressor: b"c" + compressor.compress(data)  # type: ignore[misc]
        for name, compressor in compressors.items()
    }
    if dictionary == dictionary1():
        ways["squeeze"] = squeeze
    print(f"{'':26}{'rows':>6}{'bytes':>6}" + "".join(f"{name:>10}" for name in ways))
    for name, rows in check_sets().items():
        ratios = "".join(f"{ratio(compress, rows):10.2f}" for compress in ways.values())
        print(f"{name:26}{len(rows):6}{sum(map(len, rows)) // len(rows):6}{ratios}")


def main() -> None:
    """Train, or check."""
    parser = argparse.ArgumentParser(description="Make a dictionary, or show what one is worth.")
    parser.add_argument(
        "file", type=Path, nargs="?", help="the dictionary; it is made here, unless it is to be checked"
    )
    parser.add_argument("--check", action="store_true", help="show ratios on texts that nothing was trained on")
    asked = parser.parse_args()
    if asked.check:
        shipped = dictionary1()
        check(asked.file.read_bytes() if asked.file else shipped)
        if asked.file is None:
            again = "the same bytes" if train() == shipped else "OTHER BYTES (is it another zstd?)"
            print(f"trained again with zstd {'.'.join(map(str, zstandard.ZSTD_VERSION))}: {again}")
    elif asked.file is None:
        parser.error("a file to write the dictionary to, or --check")
    elif asked.file.exists():
        sys.exit(f"{asked.file} is there already, and a released dictionary never changes. Choose another name.")
    else:
        asked.file.write_bytes(train())
        check(asked.file.read_bytes())


# -- the held-out texts ------------------------------------------------------------------------------

# Prose: paragraphs.
PROSE = """
My grandmother kept bees behind the barn for nearly forty years, and she swore the hives could tell who was nervous. I
never believed her until last June, when I took over two colonies and got stung eleven times in one afternoon. Since
then I have slowed down. I light the smoker well before I open anything, I wear pale clothes, and I hum while I lift
the frames. Whether the humming does anything for the bees I couldn't say, but it keeps my breathing even. We pulled
about thirty pounds of honey in August, most of it dark and a little bitter from the chestnut trees down the lane.
What I still haven't worked out is how to get them through a wet winter without the mould creeping up the back wall of
the box.

Honestly the second chapter drags. You spend four pages on the harbour before anybody speaks, and by the time Marta
finally walks into the customs office I had forgotten why she was angry. Cut the gulls, cut the fog, and open with her
slamming the ledger shut. The quarrel is the best thing you have written so far: it's funny, it's cruel, and it tells
us everything about her father without once mentioning him. I'd also think hard about the letter. Readers will guess
who sent it long before she does, which is fine if you want dread, but right now it is played as a twist. Either hide
it better or let us in on the secret from the start and make us squirm.

Short answer: no, you can't deduct the whole laptop this year if you also use it for streaming films on the weekend.
Keep a rough log for a month, work out what share of the hours was business, and claim that share. If it comes to
seventy percent, then seventy percent of the price goes on the form. Nobody expects a minute by minute diary, though a
pattern you can defend is worth having. The same logic covers your phone bill and the broadband. Rent is messier,
because the office has to be used regularly and for nothing else, and a desk in the corner of the bedroom tends not to
pass. Ask somebody licensed before you file anything unusual, please.

So I've been staring at this for an hour. The job runs perfectly on my machine, then dies overnight on the server with
nothing in the log apart from the word Killed. No stack trace, no core dump. I bumped the memory from two gigs to six
and it just took longer to fall over, which makes me suspect we never let go of the parsed pages. Could it be the
cache? Somebody wrapped the fetch function last spring and I don't think anyone put a bound on it. Before I rip that
out, is there a cheap way to see what is holding on to all those objects? I'd rather not run a full profiler against
production at three in the morning.

The tide tables say low water is at 6:42 on Saturday, so we ought to be on the sand by half past five if we want the
causeway to ourselves. Bring boots, not trainers; the middle stretch never dries out and last year Owen lost a shoe in
it. There's a tap and a very basic loo by the chapel, nothing else until you get back to the village. Weather looks
mixed: bright early on, then a band of rain sweeping up from the southwest around noon. If the wind goes above twenty
knots I'm calling it off, no arguments. Otherwise plan on four hours there and back, a flask of something hot, and
absolutely no climbing on the wreck, however much the kids beg.

It helps to picture voltage as height and current as water. A battery lifts the water up a hill; a wire is a channel
running back down; a resistor is a narrow bit where everything has to squeeze through. Two narrow bits one after
another slow the whole stream, so they add up. Two side by side give the water a choice, so more gets through than
either would allow alone. That picture breaks as soon as you meet magnets, and a physicist would wince at it, but
it'll carry you through the first dozen problems on the sheet. Try number three again with it in mind and tell me
where the big drop happens. I bet you'll see it before you touch the algebra.

I am writing about the sofa delivered on the ninth. Two of the legs are a slightly different shade from the others,
and one of the cushions has a seam that is already coming apart. I rang the shop twice; the first person promised a
call back that never came, and the second told me it was normal for walnut to vary. Perhaps it is. Loose stitching is
not, though, and I paid for the better fabric exactly so I wouldn't have to deal with this. I don't want a voucher.
Either send someone to repair it properly within the next two weeks or come and take it away and give me my money
back. I've attached six photographs, including one of the label underneath.

Good news first: the swelling is exactly what we'd hope to see four days after the operation, and the wound is clean.
The numb patch along the outside of your ankle is common and usually fades over several months as the nerve wakes up.
What I'm less happy about is the calf. If it's tender when you press it, or warmer than the other one, or if you get
out of breath climbing the stairs, don't wait for the next appointment, ring us the same day. Keep the boot on at
night for now. You may put a little weight on the heel from Thursday, with both crutches, and only indoors. And yes,
you can have the wine, one glass, not with the strong tablets.

Half the committee thinks the old cinema should be knocked down and the other half would chain themselves to the
doors. I've sat through nine meetings now and I can see both sides. It leaks, the wiring is terrifying, and the
insurer wants a fortune. On the flip side it is the only room in town that seats more than two hundred people, and
every wedding, school play and angry public debate since 1936 has happened in it. The architect's sketch keeps the
front and the staircase and rebuilds the rest. It's a fudge, it pleases nobody completely, and it is probably what
will happen. My vote is for getting on with it before the roof makes the decision for us.

Whales, oddly enough, don't drink the sea. They get nearly all of their water from the animals they swallow and from
burning fat, and their kidneys can get rid of more salt than ours ever could. A camel does something similar with its
hump. The trick in both cases is chemistry rather than storage: break down a gram of fat and you're left with slightly
more than a gram of water. Of course you also need oxygen for that, and breathing loses moisture, so on dry land the
sums only just work out. In the ocean the humid air close to the surface tips the balance. Isn't it lovely that a
thing surrounded by water has to live like a creature of the desert?

Right, dinner for nine with one vegan, one coeliac and a teenager who eats beige things. I'd do a big tray of roast
squash with chickpeas, cumin and far too much garlic, a bowl of herby rice, and a yoghurt sauce on the side so people
can ignore it. Polenta keeps the coeliac safe and happens to be beige. Make the tomato thing the night before; it's
better cold. For afters, poached pears, since they look like effort and are mostly waiting around. Shop on Thursday
because the market's shut Friday. Don't whatever you do attempt the bread again, the oven seal is gone and it'll come
out like a doorstop. Candles, playlist, done. Stop worrying.

The contract says either party may walk away with sixty days' notice, but clause fourteen quietly takes that back: if
you leave before the second anniversary you owe the remaining licence fees in full. I would not sign it like that. Ask
them to cap the exit charge at three months, and to drop the bit that lets them raise prices whenever an index nobody
has heard of goes up. The confidentiality section is ordinary. The piece on liability isn't terrible, although it
excludes data loss, which given what they're holding for you is rather the point. None of this is unusual for a first
draft from a vendor. They expect to be pushed, so push, politely and in writing.

We lost the signal somewhere past the second tunnel, and for about six hours nobody knew where the train was,
including, I think, the driver. An old man across the aisle unpacked an entire roast chicken. A girl with a violin
case asked whether anyone minded, and then played for most of the evening while snow piled up against the windows.
Around midnight a soldier came through with blankets and a list, wrote down our names in pencil, and vanished. I've
told this story so often that I no longer trust it. Was there really a dog? My sister says there was no dog. But I can
feel it lying across my feet, heavy and warm, the whole way down to the coast.

Your regression isn't wrong, it's answering a different question. You asked whether shops with a bakery sell more
milk, and they do, but shops with a bakery are also twice the size and sit in richer streets. Put floor area in and
the effect shrinks by two thirds; add the postcode and it's gone. If you truly care about the bakery you need places
where one opened or closed while everything else stayed put. There are fourteen of those in the sheet, not many,
though enough for a plot. I'd draw weekly sales for a year on either side of each opening and simply look. If you
can't see anything by eye, a cleverer model is unlikely to rescue it.

Could you please not schedule things over lunch? I know the calendar shows it as free, that's because I gave up
blocking it. Three of us eat together on Tuesdays, it is the one time in the week when the support people and the
folks who write the software end up at the same table, and half the bugs we fix get mentioned there first. The
planning session could go at four. Or, here's a thought, it could be an email. Last time we went round the room for
fifty minutes and the only decision was to meet again. Send the list, give everybody until Wednesday to scribble on
it, and we'll talk about whatever is still red.

Learning the cello at fifty-three is humbling. My teacher is twenty-six, endlessly patient, and has a way of saying
interesting when she means dreadful. For the first month all I did was drag the bow over open strings, trying to make
one long note that didn't wobble. My neighbours were kind about it, then less kind. But last night, quite by accident,
I got through eight bars of a slow dance without stopping, and for a few seconds the thing hummed against my ribs like
a cat. I suppose that is what people mean. I've ordered a rubber mute, a better chair and, in a fit of optimism, a
book of duets. Does anyone near the canal play the viola, badly?

Don't upgrade the database and the driver on the same evening. I know it's tempting while the site is down anyway, but
when something goes sideways you'll have two suspects rather than one. Do the driver first, leave it a week, watch the
slow query graph. Then take a snapshot, practise the restore on the spare box (really restore it, don't just admire
the file) and only then flip the server over. If replication lags by more than a minute afterwards, roll back without
holding a debate. Somebody should sit with the phone. I'd also turn the nightly export off for that one night, since
it locks the orders table for ages and nobody will miss it.

The kids have to hand in a poster about volcanoes on Monday and ours currently consists of a title and a ring from a
coffee cup. What would make it stand out? We've got cardboard, bicarbonate, red food colouring, a glue gun and a nine
year old who refuses to draw. I was thinking of a slice through the mountain with flaps you lift up, one for the
chamber, one for the pipe, one for the crater, and a joke under each. She likes jokes. She also likes disasters, so
maybe a strip along the bottom with the five worst eruptions and how far away people heard the bang. Nothing too grim,
her teacher is squeamish. Can you write me five very short captions she could copy out?

Property in that valley looks cheap until you price the road. The last mile is private, unpaved, and shared between
five households who haven't spoken since a row over a culvert in the nineties. The bank will want a written agreement
about who clears the snow. There isn't one. Your surveyor ought to check the septic tank as well: the rules tightened
a while back and a replacement runs to fifteen thousand at least, more if they hit rock, and up there they always hit
rock. Having said all that, the light in the kitchen is extraordinary and you'd wake up to deer. Offer low, blame the
drains, and be prepared to walk. Spring is when they get desperate.

What the paper actually shows is narrower than the headline. They took forty-one students, kept them awake for a
night, and had them press a button whenever a dot turned green. Tired people were slower and missed more dots. Nobody
will be shocked. The claim about coffee rests on nine volunteers, and the error bars overlap so much that I wouldn't
bet a sandwich on it. It may well be true! Other groups have found something similar with bigger samples. But if
you're going to quote it in the talk, quote the slower reactions, which are solid, and leave the espresso out, or at
any rate say suggestive and move along quickly before someone raises a hand.

Hey, it's me again, the one with the printer. I did what you told me: unplugged it, counted to sixty, held the little
button down with a paperclip. It came back to life, printed a cheerful test page, and went straight back to insisting
that the tray is empty. The tray isn't empty. I have now filled it, emptied it, fanned the paper, turned the paper
over, and sworn at the paper in two languages. There's a grey plastic tongue at the rear which looks bent. Is that
meant to point upwards? If it's snapped I'd rather know, because the warranty lapses on the thirtieth and I am not
paying for another one of these wretched machines out of my own pocket.

Nobody tells you how much of running a small theatre is counting chairs. Today I counted chairs, argued with the fire
officer about chairs, and found eleven of them in the river. In between I read a play by a plumber from up the coast
that made me cry on the stairs. It's rough. The middle act has a funeral, a strike and a goat, and he doesn't know how
to get anyone off stage. But the two sisters talk precisely like people who've shared a bedroom for thirty years, and
that can't be taught. I want to do it in the autumn, eight nights, pay what you like. We shall lose money. We always
lose money; the trick is losing it on the right thing.

Inflation isn't one number so much as an average of everybody's very different shopping. If you rent and drive, the
last two years were brutal. If you own your house outright and cycle, you may barely have noticed beyond the price of
butter. So when the bank says three percent, and your cousin says that's nonsense, they can both be right. Central
bankers know this, by the way; they publish the breakdown and almost nobody reads it. What they can do about it is
limited. Raising rates cools borrowing, which eventually cools hiring, which cools wages. It is a bit like steering a
barge with a tea tray: you push now and find out in a year and a half whether you hit the bank.

I'd leave on the sleeper, the one that goes at ten to nine, and skip the hotel altogether. You arrive before the
galleries open, drop the bags in a locker, and have coffee standing up at that place with the green tiles. Monday is a
poor choice, everything's closed except churches. Walk across the old bridge, never the new one, and turn left at the
pharmacy. If it's raining there is a museum of locks that sounds dull and is brilliant. Eat early or eat very late.
They do a soup with bread and marrow which I still dream about, and the waiter will pretend not to understand you,
then bring precisely what you wanted. Two days is enough. Three and you'll start looking at flats.

As for the failing exam, let's be practical. You have nineteen days, a part time job and a baby who doesn't sleep, so
forget about reading the whole textbook. Take the last five papers and mark which topics came up every single time. I
count six. Do one of those each morning, by hand, with the phone in another room, and stop when the hour's up even if
it's going well. In the evenings only look over what you got wrong. You'll feel as though you are cheating. You
aren't; that's just how it's done. If a question frightens you, write down what you do know and move on. Examiners
love to give a mark away. And please eat something before you go in.

The orchard came with the house, thirty-odd trees nobody had touched since the previous owner's stroke, and for two
winters we were too scared to cut anything. Then a retired woman from the allotments marched in with a saw. Take out
what's dead, she said, then what's crossing, then stand back and see if a pigeon could fly through the middle. That
was it, the entire course. We took a trailer of wood off the first four alone. In May they looked butchered and I felt
sick about it, but by September we'd more apples than we had boxes, huge things with pink streaks, no idea what
they're called. The pigeons, incidentally, do not fly through. They sit in there and eat the buds.

Look, the robot vacuum isn't haunted. It maps the flat with a tiny laser, and you hung a mirror at ankle height, so as
far as it's concerned there is a second living room behind the wall and it's furious about not being let in. Put a
strip of tape along the bottom of the glass or draw a barrier in the app. The midnight thing is the clock: it lost the
time zone when the router was swapped, and thinks it's noon somewhere over the Pacific. Log it out, log back in, set
the region, job done. As to why it says goodnight in Polish I have honestly no clue, though I think we should keep
that. Mum screamed. It was the best evening we've had in weeks.

Thanks for sending the figures over. Before I say anything about the totals, could we agree what a customer is? Sheet
one counts accounts, sheet two counts people who logged in, and the chart in the deck seems to count invoices. That's
how we ended up with growth of eight percent, minus three and twenty-one in the same slide. I don't mind which we
pick. Personally I would go with paying accounts on the last day of the month, as it's dull and hard to argue with.
Whatever it is, write it under the graph in small letters. Then redo March, where somebody has pasted February twice,
and I'll happily stand up on Friday and take whatever the board throws at us.
"""

# Anything else, as it stands; where lines do not matter, they are joined.
OTHER: dict[str, str] = {
    "python": '''\
def rolling_median(stream, width=9):
    """Yield the middle of the latest `width` readings."""
    ring = deque(maxlen=width)
    ordered = []
    for reading in stream:
        if len(ring) == width:
            ordered.pop(bisect_left(ordered, ring[0]))
        ring.append(reading)
        insort(ordered, reading)
        middle = len(ordered) // 2
        yield ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


class Thermostat:
    def __init__(self, target, slack=0.5):
        self.target = target
        self.slack = slack
        self.heating = False

    def update(self, celsius):
        if celsius < self.target - self.slack:
            self.heating = True
        elif celsius > self.target + self.slack:
            self.heating = False
        return self.heating
''',
    "typescript": """\
type Seat = { row: string; column: number; taken: boolean };

export async function holdSeats(show: ShowId, wanted: number): Promise<Seat[]> {
  const plan = await api.get<Seat[]>(`/shows/${show}/plan`);
  const free = plan.filter((seat) => !seat.taken);
  for (let i = 0; i + wanted <= free.length; i++) {
    const block = free.slice(i, i + wanted);
    const together = block.every((s, n) => n === 0 || follows(block[n - 1], s));
    if (together) {
      await api.post(`/shows/${show}/hold`, { seats: block });
      return block;
    }
  }
  throw new Error(`no ${wanted} seats side by side`);
}
""",
    "sql": """\
with moves as (
    select depot, sku, moved_on, sum(case when direction = 'in' then units else -units end) as net
    from stock_moves
    where moved_on >= current_date - interval '90 days'
    group by depot, sku, moved_on
),
running as (
    select depot, sku, moved_on, sum(net) over (partition by depot, sku order by moved_on) as on_hand
    from moves
)
select d.city, r.sku, min(r.on_hand) as lowest, count(*) filter (where r.on_hand <= 0) as days_out
from running r
join depots d on d.id = r.depot
group by d.city, r.sku
having min(r.on_hand) <= 0
order by days_out desc, d.city
limit 50;
""",
    "shell": """\
$ du -sh /srv/media/* | sort -h | tail -5
1.2G\t/srv/media/podcasts
3.9G\t/srv/media/scans
18G\t/srv/media/raw
22G\t/srv/media/backup-2023
61G\t/srv/media/video
$ journalctl -u encoder --since yesterday | grep -i warn
Mar 03 02:14:07 attic encoder[811]: warning: frame 20113 dropped, queue full
Mar 03 02:14:09 attic encoder[811]: warning: frame 20160 dropped, queue full
Mar 03 04:40:51 attic encoder[811]: warning: clock went backwards by 212 ms
$ df -h /srv
Filesystem      Size  Used Avail Use% Mounted on
/dev/sdb1       120G  107G  7.4G  94% /srv
$ sudo systemctl restart encoder && echo ok
ok
""",
    "traceback": """\
Traceback (most recent call last):
  File "/opt/kiosk/bin/sell.py", line 212, in <module>
    main(sys.argv[1:])
  File "/opt/kiosk/bin/sell.py", line 187, in main
    receipt = till.close(basket, tender)
  File "/opt/kiosk/lib/till.py", line 94, in close
    change = self._change(tender - basket.total())
  File "/opt/kiosk/lib/till.py", line 61, in _change
    coin = max(c for c in self.float if c <= owed)
ValueError: max() arg is an empty sequence

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/opt/kiosk/bin/sell.py", line 190, in main
    lamp.red()
  File "/opt/kiosk/lib/lamp.py", line 17, in red
    self.pin.write(1)
OSError: [Errno 5] Input/output error
""",
    "markdown": """\
## Moving the allotment shed

We agreed on **Sunday the 14th**, weather permitting.

### Who brings what

- Priya: two jacks and the long planks
- Tom: rollers (the scaffold poles, *not* the drainpipes)
- Everyone else: gloves

### Order of work

1. Empty it. Really empty it, paint tins included.
2. Unscrew the gutter and the water butt.
3. Lift the north side first, slide a plank under, repeat.
4. Roll, slowly, with one person watching the door frame.

| time | job | lead |
|------|-----|------|
| 9:00 | emptying | Ruth |
| 10:30 | lifting | Priya |
| 12:00 | lunch | whoever is cleanest |

> If it starts to lean, put it down and have a biscuit.
""",
    "listing": """\
./Makefile
./README.txt
./firmware/boot.S
./firmware/clock.c
./firmware/clock.h
./firmware/motor.c
./firmware/motor.h
./firmware/radio/antenna.c
./firmware/radio/packet.c
./firmware/radio/packet.h
./host/cli/main.go
./host/cli/flags.go
./host/cli/flags_test.go
./host/replay/replay.go
./host/replay/testdata/flight-03.bin
./host/replay/testdata/flight-07.bin
./scripts/flash.sh
./scripts/calibrate.py
./docs/wiring.svg
./docs/checklist.md
./hardware/frame.step
./hardware/bom.csv
""",
}

OTHER_JOINED: dict[str, str] = {
    "json": """
{"station": "Ullapool pier", "units": {"wind": "kn", "wave": "m", "air": "C"}, "readings": [{"at":
"2024-11-02T06:00:00Z", "wind": 17.5, "gust": 26, "wave": 1.9, "air": 7.1}, {"at": "2024-11-02T07:00:00Z", "wind":
19.0, "gust": 29, "wave": 2.2, "air": 7.0}, {"at": "2024-11-02T08:00:00Z", "wind": 22.5, "gust": 34, "wave": 2.6,
"air": 6.8}, {"at": "2024-11-02T09:00:00Z", "wind": 21.0, "gust": 31, "wave": 2.7, "air": 6.9}], "warnings": [{"kind":
"small craft", "from": "2024-11-02T08:00:00Z", "note": "seas building behind the front, easing after dark"}],
"licence": "open", "next": "/stations/ullapool?page=2"}
""",
    "search": """
[{"title": "Why sourdough goes flat", "link": "https://breadnotes.example/flat-loaves", "summary": "Cold kitchens,
tired starters and too much water: the three usual culprits, and how to tell them apart by the crumb."}, {"title":
"Starter rescue in four feeds", "link": "https://oven.example/p/8841", "summary": "A schedule for bringing a neglected
jar back, with photographs taken every six hours."}, {"title": "Flour strength explained", "link":
"https://mill.example/guides/protein", "summary": "What the figure on the bag means and why strong flour forgives a
long prove."}]
""",
    "german": """
Ehrlich gesagt verstehe ich die Rechnung nicht. Im Mai waren es noch 84 Euro, jetzt sollen wir fast das Doppelte
zahlen, obwohl wir drei Wochen verreist waren und die Heizung aus war. Am Telefon hieß es, der Zähler sei getauscht
worden, aber davon hat uns niemand etwas gesagt, und im Keller hängt immer noch der alte. Könnten Sie bitte prüfen, ob
da vielleicht zwei Wohnungen verwechselt wurden? Wir haben Fotos vom Zählerstand, jeweils zum Monatsersten, die
schicke ich gern mit. Bis das geklärt ist, würde ich den bisherigen Betrag weiter überweisen. Und falls ein Techniker
kommen muss: nachmittags ist meine Schwiegermutter da, sie hört allerdings die Klingel schlecht.
""",
    "french": """
Alors voilà, j'ai repris le vieux vélo de mon oncle, celui qui dormait au fond du garage depuis vingt ans, et je
voudrais le remettre en état sans me ruiner. La chaîne est rouillée mais elle tourne, les pneus sont cuits, et le
guidon a un drôle de jeu vers la gauche. Par quoi faut-il commencer ? Un voisin me dit de tout démonter et de tremper
les pièces dans le vinaigre, un autre jure que c'est la meilleure façon de tout abîmer. J'ai une clé à molette, un peu
de graisse et mes dimanches. Si ça dépasse cent euros, ma compagne m'a prévenu qu'elle le déposerait elle-même à la
déchetterie.
""",
    "spanish": """
Mira, lo del piso se ha complicado. La dueña quiere subirnos el alquiler en septiembre y dice que el contrato se lo
permite, pero yo lo he leído tres veces y no encuentro esa frase por ninguna parte. Además llevamos desde marzo con la
caldera a medias: o te duchas con agua hirviendo o te hielas. ¿Tú sabes si podemos descontar lo que pagamos al
fontanero? Guardé la factura, fueron ciento cuarenta. Mi hermano opina que mejor no discutir y buscar otra cosa,
aunque con los precios que hay por el barrio me entra la risa. El jueves hemos quedado con ella para tomar un café y
hablarlo.
""",
}


if __name__ == "__main__":
    main()
