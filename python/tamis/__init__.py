"""The Python side of tamis. Importing it imports nothing heavy."""
