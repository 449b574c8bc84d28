"""The first page: experiments, trials and nodes as plain HTML from the server, kept fresh by a few lines of script.

Entry: `pages`. Reading order: pages, charts (curves as SVG), best_charts (the kept curve of best values), formats
(numbers and times).
"""
