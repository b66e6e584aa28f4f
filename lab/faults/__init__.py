"""Fault scenes for `nearpath measure stages`, and a judge that uses only the kernel's raw trace."""
