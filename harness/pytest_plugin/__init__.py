"""The pytest plugin: options, collection, running one test, finishing, recording and progress."""

pytest_plugins = (
    "harness.pytest_plugin.collection",
    "harness.pytest_plugin.one_test",
    "harness.pytest_plugin.finish",
)
