"""A table of healed hosts: faults on the machine's own kernel, and what `nearpath fix` makes of them."""
