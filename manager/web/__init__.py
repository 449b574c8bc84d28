"""The first page: experiments, trials and nodes as plain HTML from the server, kept fresh by a few lines of script.

Entry: `pages`. `charts` draws, `best_charts` caches the curve of best values, `formats` writes numbers and times.
"""
