"""The first page: experiments, trials and nodes as plain HTML from the server, kept fresh by a few lines of script."""
