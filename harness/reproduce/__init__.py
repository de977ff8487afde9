"""From a record to what shows its failure again: the line that runs it, or a script of plain torch.

choose.py    which record is meant, and what of it may be believed
literal.py   a case as the Python that builds it
sources.py   the texts of suites and harness, and what a name in them means
uses.py      which names of the module a definition uses
shaken.py    the definitions that a function needs, and no others
names.py     what each is called in one file
script.py    the file
runtime.py, torch_names.py   what such a file runs on; read as text, and shaken like the rest
"""
