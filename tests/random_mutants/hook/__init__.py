"""A folder for PYTHONPATH: Python imports the ``sitecustomize`` in it when it starts, in every process of a run."""
