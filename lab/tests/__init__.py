"""The tests that run on virtual hosts."""
