"""Fault scenes for `nearpath measure stages`, and a judge that decides from the kernel's raw trace."""
