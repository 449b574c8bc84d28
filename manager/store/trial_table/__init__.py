"""The trials of an experiment as a table: any column, filtered and sorted by any column.

Entry: `table`. Reading order: filters (the language, text to syntax tree), columns (names, and both to SQL), table,
changes (which trials and points are new).
"""
