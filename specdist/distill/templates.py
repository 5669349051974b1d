"""Words from which prompts are put together: topics, questions, writing and code tasks.

Plain constants, no logic and no imports. Read by ``specdist.distill.prompts`` only.
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
    meditation; the periodic table; wolves; elections; optical fibre; steel; the Sahara
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

CODE = (
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
)

DOCUMENT_TASKS = (
    "Summarize the following text:\n\n{d}",
    "{d}\n\nSummarize the text above in two sentences.",
    "Write a headline for this text:\n{d}",
    "Read the passage and answer the question.\n\nPassage: {d}\n\nQuestion: What is it about?",
    "Context: {d}\n\nUsing the context, answer: who or what is mentioned, and what happens?",
    "Use only the text below to answer.\n\n{d}\n\nWhich three facts are the most important?",
    "Continue this text in the same style:\n\n{d}",
    "Rewrite this text in simple modern English:\n\n{d}",
    "TL;DR of the following?\n{d}",
    "List the key points of this text as bullet points:\n\n{d}",
)

TRANSLATION_TASKS = (
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
