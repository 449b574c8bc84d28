"""What the dashboard costs the manager (`dashboard`), and what a person waits for in a browser.

Entry: `dashboard` and `browser`.
"""
