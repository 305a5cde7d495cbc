"""`longwatch doctor`: what is wrong on this machine, and how to mend it.

    findings.py      what a check found: ok, warning or problem, and the cure
    subject.py       what is examined: settings, state directory, stores, running supervisors
    examination.py   runs all checks side by side, each with a time limit
    checks.py        the table of checks

The other files have the checks of one topic each. A check reads facts and passes them to a function
that decides. It changes nothing, except for a probe file that it removes. A check that fails or
does not end in time is a finding of its own and stops no other.
"""
