"""Generators of the pages below docs/reference: one module for each page.

A page is written by hand, and parts of it are generated. A generated part stands between
`<!-- generated NAME -->` and `<!-- end of generated -->`; everything else is kept. A generator
returns its parts by name. A part that the page lacks is added as a section at its end. A part that
the code no longer has is removed.
"""
