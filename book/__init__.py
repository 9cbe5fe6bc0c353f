"""Makes the book. Its stages, one module each:

1. ``lessons``  the sources: which lessons there are, in which editions
2. ``check``    the sources are whole and the two editions agree
3. ``execute``  every lesson runs in its own kernel; the outputs form a *run*
4. ``render``   Jupyter Book turns a run into one HTML site per edition

``machine`` says what hardware and software the lessons run on, and ``__main__``
is the command line. Execute and render share nothing but the folder of the run,
so a GPU machine can execute and any machine can render.
"""
