"""The pytest plugin. To follow a test from option to record, read these files in this order:

``options.py``
    ``pytest_addoption``, ``pytest_configure``: options and Hypothesis profiles; ``pytest_sessionstart``: the seed.
``starting.py``
    ``pytest_configure``: load the next three files, and torch with them, where tests run. ``start_ahead``: the fork
    server meanwhile. Of pytest-xdist's workers the first starts alone: what it reports says whether others may.
``collection.py``
    ``pytest_generate_tests``: one test per world. ``pytest_collection_modifyitems``: load the subject and its waivers
    (``loaded_subject.py``), apply ``--level`` and ``--world``. ``pytest_collection_finish``: ``--case``, and the
    header (``header.py``).
``running.py``
    ``pytest_runtest_setup``: skip what is not claimed or not possible here. ``trial``: the fixture.
    ``pytest_timeout_set_timer``: the time limit. ``pytest_runtest_call``: the verdict, and rerunning a failing case.
``finishing.py``
    ``pytest_runtest_makereport``: the result becomes a record, and its verdict the outcome of pytest's report.
``recording.py``
    ``pytest_runtest_logreport``: write the record that a report carries, in the process that has the record file.
    ``pytest_sessionfinish``: the footer, and the problems of the run.
``progress.py``
    ``pytest_runtest_logreport``: print each failing result as it comes, and how far the run is.
``ending.py``
    ``pytest_terminal_summary``, ``pytest_sessionfinish``: counts, what did not pass, problems, and the verdict.

``places.py`` (where tests are), ``environment.py``, ``planned.py`` and ``html_columns.py`` (pytest-html's report) are
used by these.
"""

pytest_plugins = (
    "harness.pytest_plugin.options",
    "harness.pytest_plugin.starting",
    "harness.pytest_plugin.recording",
    "harness.pytest_plugin.ending",
    "harness.pytest_plugin.html_columns",
)
