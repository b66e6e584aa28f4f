"""The fixtures of the lab, for all tests of this folder."""

pytest_plugins = ["lab.fixtures", "lab.tests.show"]
