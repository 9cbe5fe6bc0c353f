"""Makes the book. The way of the data, and the modules that it goes through:

notebooks/EDITION/*  ── sources ──▶  a Book (model), which `check` holds to its rules
lessons of the Book  ── execute, machine ──▶  _build/run: a run, which `runs` reads, records and compares
Book + run           ── site: Sphinx with extension ──▶  _build/html, one folder for each edition

Imports point one way: model ← played ← asking ← files ← texts ← runs ← sources ← machine ← check ← execute | site,
elements, directives, extension ← __main__.
"""

__version__ = "0.2.0"  # CHANGELOG.md and CITATION.cff have the same
