"""Words from which prompts are put together: topics, questions, writing and code tasks.

Plain constants, no logic and no imports. Read by ``prompts``, ``follow_ups`` and ``chat_opening``.
"""

from __future__ import annotations

_TOPICS = """
    photosynthesis; black holes; the French Revolution; inflation; vaccines; plate tectonics;
    jazz; the Roman aqueducts; electric cars; coffee; the stock market; neural networks; coral
    reefs; chess; time management; the water cycle; Ancient Egypt; renewable energy; sleep;
    bread baking; the moon landing; climate change; cybersecurity; the human heart; gravity;
    impressionist painting; public libraries; volcanoes; remote work; the Silk Road; bees;
    quantum computers; yoga; the printing press; antibiotics; democracy; soil; music theory; the
    Great Wall of China; evolution; stress; online privacy; bridges; whales; probability;
    lighthouses; the Industrial Revolution; nutrition; glaciers; photography; earthquakes;
    poetry; robots; ocean currents; the Olympic Games; DNA; the Renaissance; supply and demand;
    deserts; satellites; trains; friendship; the immune system; tea; urban gardening; the Cold
    War; logarithms; recycling; the violin; migratory birds; budgeting; lasers; rain forests;
    mythology; batteries; the Mongol Empire; public speaking; hurricanes; blockchain; dinosaurs;
    the nervous system; film editing; airplanes; constitutional law; semiconductors; comets;
    first aid; cheese; the Aztecs; statistics; dreams; fermentation; tides; opera; cryptography;
    meditation; the periodic table; wolves; elections; optical fibre; steel; the Sahara;
    self-driving cars; the United Nations; chocolate; graph theory; insurance; penguins; the
    Black Death; guitars; user interfaces; nuclear fusion; taxes; the Amazon river; marathon
    running; ancient Greece; machine translation; folk tales; mental health; spices; hydropower;
    copyright; knitting; the Big Bang; customer service; orchids; sailing; the Ottoman Empire;
    databases; vitamins; street art; the water supply of cities; negotiation; owls; algebra;
    the Berlin Wall; podcasts; carbon dioxide; animal migration; leadership; pottery; Mars;
    labour unions; compilers; diabetes; wedding customs; fashion; the Vikings; open source;
    camping; tectonic faults; cinema; lullabies; the euro; hiking; search engines; asthma;
    museums; rice; typography; sharks; the Inca; job interviews; tax havens; gardening in winter;
    crosswords; genes; the Suez Canal; football; operating systems; procrastination; salt
"""
TOPICS = tuple(" ".join(topic.split()) for topic in _TOPICS.split(";"))

QUESTIONS = (
    "What is {t}?",
    "Explain {t} to a ten-year-old.",
    "Why does {t} matter?",
    "What are the main facts about {t}?",
    "Give me five surprising facts about {t}.",
    "How did our understanding of {t} change over the last century?",
    "What are the advantages and disadvantages of {t}?",
    "Compare {t} and {u}.",
    "What is the connection between {t} and {u}?",
    "Who are the most important people in the history of {t}?",
    "When was {t} first described, and by whom?",
    "where can you find {t}",
    "how does {t} work",
    "what is the origin of {t}",
    "who first studied {t}",
    "List the key terms a student of {t} should know, with a short definition of each.",
    "What common mistakes do people make about {t}?",
    "Describe the role of {t} in everyday life.",
    "I have to give a talk about {t} tomorrow. How should I structure it?",
    "Can you recommend a plan to learn about {t} in one month?",
    "What would happen if there were no {t}?",
    "Answer in one sentence: what is {t}?",
    "Give a step-by-step explanation of {t}.",
    "What questions should I ask an expert on {t}?",
)

WRITING = (
    "Write a short story about {t}.",
    "Write a poem about {t} and {u}.",
    "Write a formal email to invite colleagues to a seminar about {t}.",
    "Write a blog post about {t} with a catchy title.",
    "Write a news article about a discovery in the field of {t}.",
    "Write a dialogue between a teacher and a student about {t}.",
    "Write the opening paragraph of a novel that begins with {t}.",
    "Write a persuasive essay: should schools teach more about {t}?",
    "Write a product description for a game about {t}.",
    "Write a letter to a friend who is afraid of {t}.",
    "Draft an outline for a lecture on {t}.",
    "Describe a rainy morning in a town known for {t}.",
    "Pretend you are a museum guide and introduce an exhibition on {t}.",
    "You are an old sailor. Tell me what you think about {t}.",
    "Act as an interviewer and ask me five questions about {t}.",
    "Write three tweets about {t}.",
    "Summarize what is known about {t} in two paragraphs.",
    "Make a table with three columns that compares {t} and {u}.",
    "Give the pros and cons of {t} as JSON.",
    "Rewrite this sentence in a more formal style: {t} is really cool and everybody likes it.",
    "Correct the grammar: me and him was talking about {t} since two hours.",
    "Classify the sentiment of this review as positive or negative: "
    "I read the book about {t} twice, and it was a waste of time.",
    "Extract the nouns from this sentence: The committee discussed {t} and {u} last Monday.",
)

ROLEPLAY = (
    "Imagine you are a famous scientist who studies {t}. Introduce yourself.",
    "You are a travel agent. Convince me to book a trip that has to do with {t}.",
    "Act as a judge in a debate about {t} and {u}. Who wins, and why?",
    "Play the part of a grumpy librarian whom I ask for a book about {t}.",
    "Speak like a pirate and tell me about {t}.",
    "You are a tutor. Ask me three questions about {t}, from easy to hard, and give the answers.",
    "Be my personal assistant and plan a day around {t}.",
    "You are a doctor who has just heard of {t}. What do you advise your patients?",
)

REASONING = (
    "If {t} had never been discovered, would {u} still exist? Think step by step.",
    "Which is older, {t} or {u}? Explain how you know.",
    "Someone claims that {t} is more important than {u}. Is the argument sound?",
    "Find the odd one out and say why: {t}, {u}, a spoon.",
    "A class of {n} students is split into groups of {m} to work on {t}. How many groups are "
    "there, and how many students are left over?",
    "A shop sells {n} books about {t} at {m} dollars each and gives a discount of 10 percent. "
    "What is the total price?",
    "A train covers {n} miles in {m} hours. How fast is it, and how far does it get in 7 hours?",
    "I had {n} coins, lost {m} of them and then doubled what was left. How many do I have?",
    "What is {n} times {m}? Show your work.",
    "Solve for x: {m}x + {n} = 100.",
    "The sides of a right triangle next to the right angle are {m} and {n}. What is its area?",
)

EXTRACTION = (
    "Extract all names of places and people from the text below as a JSON list.\n\n{d}",
    "{d}\n\nWhich numbers and dates does this text mention? Make a table.",
    "Give five keywords for the following text.\n\n{d}",
    "For the text below, write one question that it answers, and the answer.\n\n{d}",
    "Rate the tone of this text from 1 (calm) to 5 (excited), and give a reason.\n\n{d}",
)

PASSAGE_TASKS = (
    "{d}\n\nQuestion: {q}",
    "Read the passages and answer the question.\n\n{d}\n\nQuestion: {q}\nAnswer:",
    "Use the following information to answer.\n\n{d}\n\n{q}",
    "{q}\n\nHere is some text that may help:\n\n{d}",
    "Context:\n{d}\n\nAnswer this using only the context: {q}",
)

PASSAGE_QUESTIONS = (
    "What does the text say about {x}?",
    "Who or what is {x}?",
    "Why is {x} mentioned?",
    "what happened to {x}",
    "How is {x} described?",
)

SUMMARY_TASKS = (
    "Summarize: {d}",
    "Summarize the following text:\n\n{d}",
    "{d}\n\nSummarize the text above in two sentences.",
    "TL;DR of the following?\n{d}",
    "List the key points of this text as bullet points:\n\n{d}",
    "Write a short summary of this article for a newspaper.\n\n{d}",
)

CODE = (
    "Write a Rust function that {c}.",
    "Write a shell script that {c}.",
    "Write a Go function that {c}, with a short comment on each line.",
    "I have a list of names in Python. Show me how a program {c}.",
    "Write a SQL query for a table about {t}, and explain it.",
    "Review this idea: a single function that {c}. What can go wrong?",
    "Write a Python function that {c}.",
    "Write a JavaScript function that {c}.",
    "Write a C++ program that {c}.",
    "Write a Java method that {c}.",
    "Explain, with an example in Python, how a program {c}.",
    "Write a Python class with a method that {c}, and add unit tests.",
    "What is the time complexity of an algorithm that {c}?",
)

CODE_TASKS = (
    "reverses a linked list",
    "checks whether a string is a palindrome",
    "finds the two largest numbers in a list",
    "counts the words in a text file",
    "merges two sorted arrays",
    "computes the Fibonacci numbers with memoization",
    "removes duplicates from a list and keeps the order",
    "parses a CSV file and prints the average of a column",
    "finds the shortest path in a graph",
    "validates an email address",
    "sorts a dictionary by its values",
    "generates all permutations of a string",
    "converts a Roman numeral to an integer",
    "implements a stack with push and pop",
    "performs a binary search",
    "transposes a matrix",
    "reads JSON from a URL and prints a field",
    "simulates a bank account",
    "finds prime numbers up to n",
    "flattens a nested list",
    "rotates an array by k positions",
    "computes the edit distance between two strings",
    "draws a triangle of stars",
    "schedules tasks by priority",
    "finds the most common word in a sentence",
    "converts temperatures between Celsius and Fahrenheit",
    "groups anagrams together",
    "checks whether brackets are balanced",
    "counts the vowels of a string",
    "merges overlapping intervals",
    "computes the greatest common divisor of two numbers",
    "prints a multiplication table",
    "inserts a node into a binary search tree",
    "traverses a tree level by level",
    "detects a cycle in a linked list",
    "splits a list into chunks of equal size",
    "computes a moving average",
    "encrypts a message with a Caesar cipher",
    "generates random passwords",
    "plays rock, paper, scissors against the user",
    "downloads a web page and lists its links",
    "retries a failing request with growing pauses",
    "caches the results of an expensive call",
    "writes log messages to a file",
    "parses command-line arguments",
    "converts a number to binary",
    "finds the median of a stream of numbers",
    "solves a sudoku by backtracking",
    "multiplies two matrices",
    "compresses a string by counting repeated letters",
    "tells how many days lie between two dates",
    "filters a list of dictionaries by a key",
    "implements a queue with two stacks",
    "finds the longest common prefix of several words",
    "counts the islands in a grid",
    "formats a number of bytes for people to read",
    "reads a configuration file and checks its values",
    "renames all files of a folder by date",
    "draws a bar chart from a dictionary",
    "runs several downloads at the same time",
)

DOCUMENT_TASKS = (
    "Write a headline for this text:\n{d}",
    "Read the passage and answer the question.\n\nPassage: {d}\n\nQuestion: What is it about?",
    "Context: {d}\n\nUsing the context, answer: who or what is mentioned, and what happens?",
    "Use only the text below to answer.\n\n{d}\n\nWhich three facts are the most important?",
    "Continue this text in the same style:\n\n{d}",
    "Rewrite this text in simple modern English:\n\n{d}",
    "Rewrite the following text in a more formal style.\n\n{d}",
    "Correct the spelling and grammar of this text:\n\n{d}",
    "Explain the following text to a child:\n\n{d}",
)

TRANSLATION_TASKS = (
    "Translate {a} to {b}: {s}",
    "Translate {a} to {b}: {s}",
    "Translate the following {a} sentence to {b}.\n\n{s}",
    'How do you say "{s}" in {b}?',
    "{s}\n\nTranslate this {a} text into {b}.",
)

FOLLOW_UPS = (
    "Can you explain that in simpler terms?",
    "Give me an example.",
    "Make it shorter.",
    "Now write it as a list.",
    "Why?",
    "Are you sure? Check your answer.",
    "Continue.",
    "Rewrite your answer in a more formal style.",
    "What should I read next about this?",
    "Thanks! What is the most important point?",
    "Translate your answer to Spanish.",
    "What are the limits of what you said?",
    "Now do the same for a different example.",
    "Summarize the conversation so far.",
)

TRANSLATE_TO = ("German", "Spanish", "French", "Italian", "Portuguese", "Chinese", "Japanese")

OPENINGS = (
    "",
    "",
    "",
    "What",
    "How",
    "Write",
    "Can you",
    "I",
    "Please",
    "Explain",
    "Why",
    "Summarize",
    "Create",
    "The",
    "Given",
    "Is it",
    "Who",
    "When",
    "Translate",
    "In",
)
