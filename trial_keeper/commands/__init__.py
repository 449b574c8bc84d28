"""The commands that a manager runs on a node over SSH, each a JSON object in and one out.

Entry: `main.answer_to`, the table of commands. Reading order: main, input, directory, keeper (start, stop, remove),
unpack (uploaded archives), survey (what a keeper would find here).
"""
