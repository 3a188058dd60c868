"""What is made from code, and what shows code: the reference, the docs site, the blocking family, and code blocks.

`make docs`, `make reference` and `make blocking` run `docs_site.py`, `reference_pages.py` and `blocking_family.py`.
"""
