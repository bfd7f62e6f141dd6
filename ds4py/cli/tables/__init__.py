"""The rows of the option table, one file per help topic."""
