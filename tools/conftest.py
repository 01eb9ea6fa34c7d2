"""Its presence puts this folder on the import path of the tests."""
