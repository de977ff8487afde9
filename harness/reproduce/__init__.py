"""From a record to what shows its failure again: the line that runs it, or a plain script of torch.

choose.py       which record is meant, and what of it may be believed
suite_test.py   the installed suites' test that the record is of, and its case, rebuilt and checked
script.py       the script: a template of the suites, filled with checked values
"""
