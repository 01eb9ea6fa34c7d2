"""Makes ``fakes`` importable from the folders below."""
