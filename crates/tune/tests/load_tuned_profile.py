"""Loads the profile `nearpath` of a folder as tuned does, and prints each option of each of its units.

Goes in: the folder. Comes out: lines of unit, name, `=` and value. Needs tuned's own Python modules.
"""

import sys

from tuned.profiles import Factory, Loader, Locator, Merger
from tuned.profiles.variables import Variables

loader = Loader(Locator([sys.argv[1]]), Factory(), Merger(), None, Variables())
for unit in loader.load(["nearpath"]).units.values():
    for name, given in unit.options.items():
        value = given[0] if isinstance(given, list) else given
        print(f"{unit.name} {name}={value}")
