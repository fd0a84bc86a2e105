"""Answer from the command line: look at a run, check it, and change what its next start begins from.

Data goes to stdout, everything else to stderr; ``--json`` makes one document of it; exit codes are those of
`milepost.errors`. What a verb does is done by the layers below, the same functions that a program would call.
"""
