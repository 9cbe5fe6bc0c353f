"""Makes the book. Its stages, one module each:

1. ``lessons``  the sources: which lessons there are, in which editions
2. ``check``    the sources are whole and the two editions agree
3. ``execute``  every lesson runs in its own kernel (``kernels``); the outputs form a *run*
4. ``render``   the run is laid out (``stage``), and Jupyter Book makes one HTML site per edition

``runs`` records runs, compares them, and gives them to the site; ``machine`` says what
hardware and software the lessons run on, and ``__main__`` is the command line. Execute and render share nothing but the folder of the run,
so a GPU machine can execute and any machine can render.
"""

import sys

__version__ = "0.1.0"  # CHANGELOG.md and CITATION.cff have the same

# nbformat and Jupyter Book import jsonschema, and that a check of addresses which neither asks for, and which takes
# longer to import than all the rest.
sys.modules.setdefault("rfc3987_syntax", None)
